"""The pages of docs/migrate: their form, and their worked examples, before and after."""

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ratebound import MemoryStorage
from ratebound.cli.policy import policy as policy_command
from ratebound.policy import Gate, RequestView, read_policy
from ratebound.testing import FakeClock, nothing_sleeps
from tests.documentation.pages import PAGES, all_blocks, read
from tests.service.test_resp_commands import Caller

FOLDER = "docs/migrate/"
GUIDES = [page for page in PAGES if page.startswith(FOLDER) and not page.endswith("/index.md")]
SECTIONS = {"What behaves differently", "Feature by feature", "Switch over"}
IN_TEST_REQUIREMENTS = {"limits"}  # the others come with `make bench`
ADDRESS = "192.0.2.1"


def examples(name: str, language: str, title: str) -> list[str]:
    return [
        block.text for block in all_blocks(f"{FOLDER}{name}.md") if (block.language, block.title) == (language, title)
    ]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)
    return names


def peer(name: str) -> ModuleType:
    """Import another package. Only one that the tests do not require may be missing."""
    if name in IN_TEST_REQUIREMENTS:
        return __import__(name)
    found: ModuleType = pytest.importorskip(name, reason=f"{name} comes with make bench")
    return found


@pytest.mark.parametrize("page", GUIDES)
def test_a_page_says_for_whom_it_is_and_has_the_usual_sections(page: str) -> None:
    text = read(page)
    assert text.splitlines()[2].startswith("For ")
    assert set(re.findall(r"^## (.*)", text, re.MULTILINE)) >= SECTIONS
    if not page.endswith("/databases.md"):
        assert re.search(r"^\*\*What .* ha(s|ve) and Ratebound does not:\*\*", text, re.MULTILINE)
        assert {"Before", "After"} <= {block.title for block in all_blocks(page)}


@pytest.mark.parametrize("page", GUIDES)
def test_every_table_has_three_columns(page: str) -> None:
    rows = [line for line in read(page).splitlines() if line.startswith("|")]
    assert len(rows) > 8
    assert {re.sub(r"`[^`]*`", "", row).count("|") for row in rows} == {4}


def test_the_first_page_lists_all_others() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", read(f"{FOLDER}index.md")))
    assert {FOLDER + name for name in listed} == set(GUIDES)


@pytest.mark.parametrize(
    ("name", "package"), [("limits", "limits"), ("throttled-py", "throttled"), ("pyrate-limiter", "pyrate_limiter")]
)
def test_three_messages_pass_before_and_after(name: str, package: str) -> None:
    peer(package)
    for title in ("Before", "After"):
        may_send = run(examples(name, "python", title)[0])["may_send"]
        assert [may_send("ann") for _ in range(4)] == [True, True, True, False], title
        assert may_send("bob"), title


def test_limits_charges_what_it_denies_as_the_page_says() -> None:
    from limits import parse
    from limits.storage import MemoryStorage as Theirs
    from limits.strategies import FixedWindowRateLimiter

    from ratebound import Limiter

    theirs, minute, hour = FixedWindowRateLimiter(Theirs()), parse("100/minute"), parse("2/hour")
    assert [theirs.hit(parse("10/minute"), "a", cost=cost) for cost in (8, 5, 2)] == [True, False, False]
    ours = Limiter("10/minute", default_algorithm="fixed-window", storage=MemoryStorage(clock=FakeClock()))
    assert [ours.hit("a", cost=cost).allowed for cost in (8, 5, 2)] == [True, False, True]
    allowed = [theirs.hit(minute, "b") and theirs.hit(hour, "b") for _ in range(5)]
    assert (allowed.count(True), theirs.get_window_stats(minute, "b").remaining) == (2, 95)


def test_limits_of_one_period_share_a_count_unless_they_have_names_as_the_page_says() -> None:
    from limits import parse
    from limits.storage import MemoryStorage as Theirs
    from limits.strategies import MovingWindowRateLimiter

    from ratebound import Limiter

    def left(few: str, many: str) -> int:
        storage = MemoryStorage(clock=FakeClock())
        for _ in range(3):
            Limiter(few, storage=storage).hit("a")
        return Limiter(many, storage=storage).peek("a").remaining

    theirs = MovingWindowRateLimiter(Theirs())
    for _ in range(3):
        theirs.hit(parse("5/minute"), "a")
    assert theirs.get_window_stats(parse("50/minute"), "a").remaining == 50
    assert left("5/minute", "50/minute") == 47
    assert left("5/minute as login", "50/minute as api") == 50


def test_a_plan_is_chosen_in_each_call_as_the_page_of_limits_says() -> None:
    from ratebound import Check, Limiter, parse_limits

    plans = {"free": parse_limits("3/minute; 100/hour", default="sliding-log"), "pro": parse_limits("20/minute")}
    limiter = Limiter("1/minute")
    passed = {
        plan: sum(limiter.check([Check(f"user:{plan}", limit) for limit in limits]).allowed for _ in range(30))
        for plan, limits in plans.items()
    }
    assert passed == {"free": 3, "pro": 20}


def test_a_fixed_window_of_throttled_py_charges_what_it_denies_as_the_page_says() -> None:
    from ratebound import Limiter

    throttled = peer("throttled")
    theirs = throttled.Throttled(using="fixed_window", quota="10/m", store=throttled.MemoryStore())
    assert [not theirs.limit("a", cost=cost).limited for cost in (4, 4, 4, 2)] == [True, True, False, False]
    ours = Limiter("10/m fixed-window", storage=MemoryStorage(clock=FakeClock()))
    assert [ours.hit("a", cost=cost).allowed for cost in (4, 4, 4, 2)] == [True, True, False, True]


def test_decorators_of_throttled_py_raise_at_once_and_ours_with_timeout_0_as_the_page_says() -> None:
    from ratebound import Limiter, RateLimited

    throttled = peer("throttled")
    quota = throttled.Throttled(key="a", using="gcra", quota="2/s burst 1", store=throttled.MemoryStore())
    slept: list[float] = []
    limiter = Limiter("2/second burst 1", storage=MemoryStorage(clock=FakeClock()), sleep=slept.append)
    theirs, at_once, waits = quota(len), limiter.limit(key="a", timeout=0)(len), limiter.limit(key="b")(len)
    assert (theirs("x"), at_once("x"), waits("x")) == (1, 1, 1)
    with pytest.raises(throttled.exceptions.LimitedError):
        theirs("x")
    with pytest.raises(RateLimited):
        at_once("x")
    assert slept == []
    assert waits("x") == 1
    assert slept == [0.5]


def test_a_wait_ends_after_a_second_unless_max_delay_says_more_as_the_pages_say() -> None:
    from ratebound import Limiter, RateLimited

    slept: list[float] = []
    text, storage = "1/3 seconds burst 1", MemoryStorage(clock=FakeClock())
    Limiter(text, storage=storage).hit("a")
    with pytest.raises(RateLimited, match=r"or max_delay=math\.inf"):
        Limiter(text, storage=storage, sleep=slept.append).wait("a")
    Limiter(text, storage=storage, max_delay=math.inf, sleep=slept.append).wait("a")
    assert slept == [3.0]


def test_rates_of_requests_ratelimiter_are_written_as_the_page_says() -> None:
    from ratebound import parse_limit

    for options, text in (({"per_second": 5, "burst": 2}, "10/2 seconds"), ({"per_second": 0.5}, "1/2 seconds")):
        with peer("requests_ratelimiter").LimiterSession(**options) as session:
            (rate,) = session.limiter.bucket_factory.rates
        limit = parse_limit(text)
        assert (rate.limit, rate.interval * 1000) == (limit.count, limit.period_us)


def test_a_flood_of_keys_frees_a_limited_key_of_throttled_py_as_the_page_says() -> None:
    throttled = peer("throttled")
    theirs = throttled.Throttled(using="fixed_window", quota="1/h", store=throttled.MemoryStore())
    assert [theirs.limit("victim").limited for _ in range(2)] == [False, True]
    for number in range(1024):
        theirs.limit(f"other {number}")
    assert not theirs.limit("victim").limited


def test_a_bucket_of_throttled_py_rounds_down_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = peer("throttled")
    now = 1_000_000.0
    monkeypatch.setattr(throttled.utils, "now_sec", lambda: int(now))
    theirs = throttled.Throttled(using="token_bucket", quota="119/m burst 1", store=throttled.MemoryStore())
    passed = 0
    for _ in range(600):  # ten times in each second of a minute
        passed += not theirs.limit("a").limited
        now += 0.1
    assert passed == 60


def test_names_of_pyrate_limiter_share_a_rate_as_the_page_says() -> None:
    pyrate = peer("pyrate_limiter")
    with pyrate.Limiter(pyrate.Rate(2, pyrate.Duration.HOUR)) as theirs:
        assert [theirs.try_acquire(name, blocking=False) for name in ("ann", "ann", "bob")] == [True, True, False]


@pytest.mark.parametrize("title", ["Before", "After"])
def test_a_loop_of_calls_passes_aiolimiter_and_a_pacer(title: str) -> None:
    if title == "Before":
        peer("aiolimiter")
    calls = run(examples("clients", "python", title)[1])["calls"]
    assert asyncio.run(calls(10)) == 10


def test_a_large_amount_waits_for_all_small_ones_in_aiolimiter_and_not_here() -> None:
    from ratebound import AsyncLimiter

    async def order(acquire: Callable[[int], Any]) -> list[int]:
        done: list[int] = []

        async def one(amount: int) -> None:
            await acquire(amount)
            done.append(amount)

        await acquire(100)
        tasks = [asyncio.create_task(one(amount)) for amount in (80, 1, 1, 1)]
        await asyncio.gather(*tasks)
        return done

    async def both() -> tuple[list[int], list[int]]:
        theirs, ours = peer("aiolimiter").AsyncLimiter(100, 0.5), AsyncLimiter("100/500ms burst 100")
        return await order(theirs.acquire), await order(lambda cost: ours.wait("k", cost=cost, timeout=30))

    assert asyncio.run(both()) == ([1, 1, 1, 80], [80, 1, 1, 1])


@pytest.fixture
def failing_once() -> Iterator[str]:
    """The URL of a server that answers its first request with 503, and the others with 200."""
    statuses = iter([503])

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(statuses, 200))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("title", ["Before", "After"])
def test_a_call_is_paced_and_retried_before_and_after(
    title: str, failing_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if title == "Before":
        peer("requests_ratelimiter")
        monkeypatch.setattr(peer("tenacity").nap.time, "sleep", lambda seconds: None)
    with nothing_sleeps():
        fetch = run(examples("clients", "python", title)[0])["fetch"]
        assert fetch(failing_once).status_code == 200


def imported(system: str, text: str, *options: str) -> str:
    """Return what `ratebound policy import` writes, without the comments at its head."""
    done = CliRunner().invoke(policy_command, ["import", system, *options, "-"], input=text)
    assert done.exit_code == 0, done.output
    return re.sub(r"\A(#.*\n|\n)*", "", done.stdout)


@pytest.mark.parametrize(
    ("system", "language", "options"),
    [("nginx", "nginx", ()), ("kong", "yaml", ()), ("envoy", "yaml", ("--descriptors",)), ("aws", "json", ())],
)
def test_the_import_writes_what_the_page_shows(system: str, language: str, options: tuple[str, ...]) -> None:
    (before,) = examples(system, language, "Before")
    assert imported(system, before, *options).strip() == examples(system, "yaml", "After")[0].strip()


def admitted(policy: str, request: RequestView, most: int, **options: Any) -> int:
    """Return how many of `most` requests pass, all at one instant, in memory."""
    tree = {key: value for key, value in yaml.safe_load(policy).items() if key != "storage"}
    gate = Gate(read_policy(tree, **options), storage=MemoryStorage(clock=FakeClock()))
    return sum(gate.decide(request).allowed for _ in range(most))


@pytest.mark.parametrize(
    ("name", "place", "path", "count"),
    [
        ("nginx", 0, "/api/x", 21),
        ("kong", 0, "/orders", 60),
        ("express-rate-limit", 0, "/api/x", 100),
        ("aws", 1, "/", 2000),
    ],
)
def test_a_policy_of_a_page_admits_what_the_page_says(name: str, place: int, path: str, count: int) -> None:
    policy = examples(name, "yaml", "After")[place]
    assert admitted(policy, RequestView("GET", path, peer=ADDRESS), count + 5) == count


@pytest.mark.parametrize(("key", "count"), [("k-4711", 20), ("k-0815", 200), ("wrong", 0)])
def test_the_plan_of_an_api_key_decides(key: str, count: int) -> None:
    functions = {"find_api_key": run(examples("aws", "python", "After")[0])["find_api_key"]}
    request = RequestView("GET", "/", peer=ADDRESS, headers=[("x-api-key", key)])
    assert admitted(examples("aws", "yaml", "After")[0], request, 210, functions=functions) == count


@pytest.mark.parametrize(("name", "count"), [("bucket4j", 20), ("resilience4j", 10)])
def test_the_command_of_a_java_program_admits_what_the_page_says(name: str, count: int, clock: FakeClock) -> None:
    (code,) = examples(name, "java", "After")
    (limits,) = re.findall(r'sendCommand\(hit, .*?, "([^"]*/[^"]*)"\)', code)
    caller = Caller(clock)
    answers = [caller.ask("RB.HIT", "k", limits) for _ in range(count + 1)]
    places = {field: 2 * answers[0][::2].index(field) + 1 for field in ("allowed", "retry_after_ms")}
    assert [answer[places["allowed"]] for answer in answers] == [1] * count + [0]
    assert f"found.get({places['allowed']}) == 1" in code
    if "long wait" in code:
        assert f"(Long) found.get({places['retry_after_ms']});" in code
