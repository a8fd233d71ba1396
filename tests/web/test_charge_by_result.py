"""Charging by result and results as strikes, by the rules of a policy: the same in every adapter."""

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.errors import StorageError
from ratebound.policy import Policy, RequestView, Rule
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.testing import FakeClock
from ratebound.web import FinishedResponse, Passed, RouteLimit, WebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.conftest import collect_and_freeze
from tests.web.applications import ADAPTERS
from tests.web.drivers import CountingStorage, connect, environ_of, fetch, wsgi_fetch
from tests.web.running_requests import LIMITED, POLICIES, SECONDS, AsgiServer, SlotLedger
from tests.web.suite import Answer, Client

pytestmark = [
    pytest.mark.anyio,
    # Django leaves the body of a request open whose task is cancelled.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]

PENALTY = "100/minute; 3 strikes/hour block 5 minutes"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)
    collect_and_freeze()  # else another test would be blamed


@pytest.fixture(params=list(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def one_rule(limits: str = "100/minute", **keys: Any) -> dict[str, Any]:
    return {"rules": [{"name": "all", "limits": limits, **keys}], "by": "address"}


def site(adapter: str, policy: Any, **options: Any) -> Any:
    return ADAPTERS[adapter](policy=policy, storage=MemoryStorage(clock=FakeClock()), **options)


def left(answer: Answer) -> int:
    found = re.search(r";r=([0-9]+)", dict(answer.headers)["ratelimit"])
    assert found is not None
    return int(found[1])


def log_in(client: Client, password: str) -> Answer:
    return client("POST", "/login", {"x-password": password})


@pytest.mark.parametrize("statuses", [[401, 403], ["400-402", 500]], ids=str)
def test_only_these_statuses_are_charged(adapter: str, statuses: Any) -> None:
    with site(adapter, one_rule(charge={"status": statuses})) as client:
        found = [left(log_in(client, password)) for password in ("right", "wrong", "right", "wrong", "right")]
    assert found == [100, 99, 99, 98, 98]


def test_failures_and_successes_are_charged_by_the_handlers_own_judgement(adapter: str) -> None:
    with site(adapter, one_rule(charge="failure")) as client:
        assert [left(client("GET", "/form", {"x-password": one})) for one in ("right", "no")] == [100, 99]
    with site(adapter, one_rule(charge="success")) as client:
        assert [left(client("GET", "/form", {"x-password": one})) for one in ("right", "no")] == [99, 99]


@pytest.mark.parametrize(("charge", "found"), [("success", 100), ({"status": "5xx"}, 98), ("failure", 98)], ids=str)
def test_an_exception_of_the_handler_is_a_500(adapter: str, charge: Any, found: int) -> None:
    with site(adapter, one_rule(charge=charge)) as client:
        for _ in range(2):
            assert client("GET", "/fail", {}).status == 500
        after = left(client("GET", "/", {}))
    assert after == found - (charge == "success")


@pytest.mark.parametrize(
    ("charge", "units"), [("bytes", (11, 5)), ({"bytes": "4 B"}, (3, 2)), ({"bytes": "1 KB"}, (1, 1))]
)
def test_the_bytes_of_the_body_are_charged_at_least_what_was_charged_before(
    adapter: str, charge: Any, units: tuple[int, int]
) -> None:
    with site(adapter, one_rule(charge=charge)) as client:
        client("GET", "/stream", {})
        assert left(client("GET", "/", {})) == 100 - sum(units)
    with site(adapter, one_rule(charge=charge, cost=20)) as client:
        client("GET", "/stream", {})
        assert left(client("GET", "/", {})) == 60


# The suite's applications answer with the Cache-Control that a request asks for: here it is a header with a cost.
@pytest.mark.parametrize(("told", "units"), [("7", 7), ("0", 0), ("no-cache", 1)])
def test_a_header_of_the_response_tells_the_cost_and_is_taken_off(adapter: str, told: str, units: int) -> None:
    with site(adapter, one_rule(charge={"header": "Cache-Control"})) as client:
        answer = client("GET", "/cached", {"x-cache": told})
        assert "cache-control" not in dict(answer.headers)
        assert answer.body == b"kept"
        assert left(answer) == 100 - units
        assert left(client("GET", "/", {})) == 99 - units, "one without the header keeps what was charged"


def test_the_header_with_the_cost_is_taken_off_where_its_rule_does_not_apply(adapter: str) -> None:
    policy = one_rule(charge={"header": "cache-control"}, match={"paths": ["/elsewhere"]})
    with site(adapter, policy) as client:
        assert "cache-control" not in dict(client("GET", "/cached", {"x-cache": "7"}).headers)


def test_each_rule_of_a_request_is_charged_by_its_own_result(adapter: str) -> None:
    rules = [
        {"name": "failures", "limits": "50/minute", "charge": "failure"},
        {"name": "requests", "limits": "60/minute"},
        {"name": "bytes", "limits": "1000/minute", "charge": "bytes"},
        {"name": "early", "limits": "70/minute", "stage": "early", "charge": {"status": [401]}},
    ]
    with site(adapter, {"rules": rules, "by": "address"}) as client:
        log_in(client, "wrong")
        log_in(client, "right")
        shown = dict(client("GET", "/", {}).headers)["ratelimit"]
    found = {name: int(rest) for name, rest in re.findall(r'"([a-z]+)/minute";r=([0-9]+)', shown)}
    assert found == {"failures": 49, "requests": 57, "bytes": 1000 - 2 - 7 - 5, "early": 69}


@pytest.mark.parametrize("strike", ["failure", {"status": [401]}], ids=str)
def test_a_result_is_a_strike(adapter: str, strike: Any) -> None:
    clock = FakeClock()
    with ADAPTERS[adapter](policy=one_rule(PENALTY, strike=strike), storage=MemoryStorage(clock=clock)) as client:
        for _ in range(3):
            assert log_in(client, "right").status == 200
            assert log_in(client, "wrong").status == 401
            clock.advance(2)  # strikes within one second are one
        assert log_in(client, "right").status == 429
        clock.advance(300)
        assert log_in(client, "right").status == 200


def test_the_strike_that_blocks_leaves_no_slot_taken_and_is_told(adapter: str) -> None:
    told: list[str] = []
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    policy = one_rule("100/minute; 1 concurrent for 1 hour; 1 strike/hour block 5 minutes", strike="failure")
    listeners = [lambda event: told.append(type(event).__name__)]
    with ADAPTERS[adapter](policy=policy, storage=storage, listeners=listeners) as client:
        assert log_in(client, "wrong").status == 401
        assert [name for name in told if name in ("Struck", "BlockBegan")] == ["Struck", "BlockBegan"]
        clock.advance(300)
        assert log_in(client, "right").status == 200


def test_a_charge_of_the_gate_keeps_the_strikes_of_the_rule(adapter: str) -> None:
    clock = FakeClock()
    policy, storage = one_rule(PENALTY, strike="failure", charge="bytes"), MemoryStorage(clock=clock)
    with ADAPTERS[adapter](policy=policy, storage=storage, charge={"all": "success"}) as client:
        for _ in range(2):
            assert left(log_in(client, "wrong")) == 100
            clock.advance(2)
        assert log_in(client, "wrong").status == 401
        assert log_in(client, "right").status == 429


def test_a_head_costs_what_was_charged_before(adapter: str) -> None:
    with site(adapter, one_rule(charge="bytes")) as client:
        assert left(client("HEAD", "/users/1", {})) == 99


# Requests that run until a test lets them end.


@pytest.fixture
def storage() -> SlotLedger:
    return SlotLedger(clock=FakeClock())


@pytest.fixture(params=POLICIES.values(), ids=list(POLICIES))
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def rules(*given: dict[str, Any]) -> dict[str, Any]:
    return {"rules": [{"match": {"paths": LIMITED}, **one} for one in given], "by": "address"}


def ended(server: Any, path: str = "/work") -> Answer:
    answer = server.start(path).end()
    assert answer is not None
    return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["leaves", "is cancelled"])
def test_a_stream_that_breaks_off_is_charged_for_the_bytes_that_were_sent(
    make: Any, storage: SlotLedger, how: str
) -> None:
    with make(rules({"name": "bytes", "limits": "100/minute", "charge": "bytes"}), storage) as server:
        run = server.start("/stream")
        assert run.passed
        if how == "leaves":
            run.leave()
        elif isinstance(server, AsgiServer):
            run.cancel()
            run.end()
        else:
            pytest.skip("threads are not cancelled")
        assert storage.is_settled()
        assert left(ended(server)) in (100 - len("one") - 4, 100 - len("onetwo") - 4)
        assert storage.trips == ["spend", "force"] * 2


@pytest.mark.parametrize("charge", ["failure", "success", {"status": [200]}, {"header": "x-cost"}], ids=str)
def test_what_else_was_charged_for_a_stream_that_breaks_off_stays_charged(
    make: Any, storage: SlotLedger, charge: Any
) -> None:
    with make(rules({"name": "work", "limits": "100/minute", "charge": charge}), storage) as server:
        run = server.start("/stream")
        assert run.passed
        if isinstance(server, AsgiServer):
            run.cancel()  # of a client that leaves, some servers tell nothing
            run.answer.result(SECONDS)
        else:
            run.leave()
        assert left(ended(server)) == (99 if charge == "failure" else 98)


def test_a_handler_that_raises_is_a_500(make: Any, storage: SlotLedger) -> None:
    given = {"name": "work", "limits": PENALTY, "charge": "success", "strike": {"status": "5xx"}}
    with make(rules(given), storage) as server:
        server.start("/fail").end()
        assert storage.is_settled()
        assert storage.trips == ["spend", "force"]
        assert left(ended(server)) == 99


def test_a_stream_that_breaks_off_strikes_by_the_status_that_was_sent(make: Any, storage: SlotLedger) -> None:
    given = {"name": "work", "limits": "100/minute; 1 strikes/hour block 5 minutes", "strike": {"status": [200]}}
    with make(rules(given), storage) as server:
        run = server.start("/stream")
        assert run.passed
        run.leave()
        assert storage.is_settled()
        assert server.start("/work").status() == 429


def test_nothing_is_asked_if_nothing_changes_and_all_is_settled_in_one_trip(make: Any, storage: SlotLedger) -> None:
    early = {"name": "early", "limits": "100/minute", "stage": "early", "charge": "failure"}
    late = {"name": "late", "limits": "100/minute", "charge": "bytes"}
    shadow = {"name": "planned", "limits": "100/minute", "charge": "bytes", "mode": "shadow"}
    with make(rules(early, late, shadow), storage) as server:
        ended(server)
        assert storage.trips == ["spend", "spend", "force"]
    with make(rules({"name": "kept", "limits": "100/minute", "charge": "success"}), storage) as server:
        storage.trips.clear()
        ended(server)
        assert storage.trips == ["spend"]


def test_a_rule_in_shadow_counts_as_it_would_in_force(make: Any, storage: SlotLedger) -> None:
    told: list[Any] = []
    shadow = {"name": "planned", "limits": "1/minute", "charge": "failure", "mode": "shadow"}
    with make(rules(shadow), storage) as server:
        for _ in range(3):
            ended(server)
        told += storage.trips
    assert told == ["spend", "force"] * 3


# What needs no adapter, or one.


async def test_a_start_that_was_held_back_when_the_handler_raises_is_a_500() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/raise":
            raise RuntimeError("as asked")
        await send({"type": "http.response.body", "body": b"ok"})

    limited = RateLimitMiddleware(app, one_rule(charge="success"))
    with pytest.raises(RuntimeError, match="as asked"):
        await fetch(limited, "GET", "/raise")
    assert left(await fetch(limited, "GET", "/")) == 99


def test_a_body_that_raises_before_its_first_part_is_a_500_over_wsgi() -> None:
    def parts(path: str) -> Iterator[bytes]:
        if path == "/raise":
            raise RuntimeError("as asked")
        yield b"ok"
        if path == "/later":
            raise RuntimeError("as asked")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return parts(environ["PATH_INFO"])

    limited = WsgiMiddleware(app, one_rule(charge="success"))
    for path, found in (("/raise", 99), ("/later", 97)):
        with pytest.raises(RuntimeError, match="as asked"):
            wsgi_fetch(limited, environ_of("GET", path))
        assert left(wsgi_fetch(limited, environ_of("GET", "/"))) == found


def test_a_degraded_decision_is_no_strike() -> None:
    class Failing(MemoryStorage):
        def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
            raise StorageError("out of reach")

    policy = one_rule(PENALTY, strike="failure", failure="open")
    view = RequestView("GET", "/", peer="127.0.0.1")
    for kind, strikes in ((MemoryStorage, [[True]]), (Failing, [])):
        passed = WebGate(policy, storage=GuardedStorage(kind())).before(view)
        assert isinstance(passed, Passed)
        assert [one.strikes for one in passed.settlements(401, 0)] == strikes


async def test_a_request_that_is_rejected_is_no_strike() -> None:
    async def no(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    policy = {"rules": [
        {"name": "a", "limits": "100/minute; 9 strikes/hour block 5 minutes", "strike": "failure", "stage": "early"},
        {"name": "b", "limits": "deny"},
    ]}  # fmt: skip
    storage = CountingStorage(MemoryStorage().async_twin())
    app = RateLimitMiddleware(no, policy, storage=storage)
    assert (await fetch(app, "GET", "/")).status in (403, 429)
    assert storage.calls == ["spend"]


async def test_two_gates_each_settle_their_own_and_the_inner_one_takes_its_header() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"X-Cost", b"7"), (b"x-price", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    inner = RateLimitMiddleware(app, one_rule("50/minute", charge={"header": "x-cost"}))
    outer = RateLimitMiddleware(inner, one_rule("100/minute", charge={"header": "x-price"}))
    answer = await fetch(outer, "GET", "/")
    assert not {"x-cost", "x-price"} & dict(answer.headers).keys()
    assert left(answer) == 43
    assert [usage.remaining for usage in await outer.usage_of("127.0.0.1")] == [91]


async def test_a_cost_that_is_told_twice_keeps_the_charge_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"x-twice", b"7"), (b"X-Twice", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    logging.disable(logging.NOTSET)
    limited = RateLimitMiddleware(app, one_rule(charge={"header": "x-twice"}))
    assert [left(await fetch(limited, "GET", "/")) for _ in range(2)] == [99, 98]
    assert [record.getMessage().count("x-twice") for record in caplog.records] == [1]


async def test_a_304_has_no_bytes_and_a_background_task_changes_nothing() -> None:
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    def fail() -> None:
        raise RuntimeError("as asked")

    async def page(request: Any) -> Response:
        return PlainTextResponse("ok", 200, background=BackgroundTask(fail))

    async def unchanged(request: Any) -> Response:
        return Response(b"", 304)

    app = Starlette(routes=[Route("/", page), Route("/unchanged", unchanged)])
    RateLimits(one_rule(charge="bytes"), app=app)
    assert left(await fetch(app, "GET", "/unchanged")) == 99
    assert left(await fetch(app, "GET", "/")) == 97
    assert left(await fetch(app, "GET", "/unchanged")) == 96


async def test_middleware_within_the_limits_changes_the_result() -> None:
    """As one that answers 304 for a body that the client has: the outermost of our middleware sees that."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    class Tagged:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def drop(message: Any) -> None:
                """Drop the response."""

            await self.app(scope, receive, drop)
            await Response(b"", 304)(scope, receive, send)

    async def page(request: Any) -> Response:
        return PlainTextResponse("x" * 50)

    app = Starlette(routes=[Route("/", page)], middleware=[Middleware(Tagged)])
    RateLimits(one_rule(charge={"status": [200]}), app=app)
    assert left(await fetch(app, "GET", "/")) == 100


@pytest.mark.parametrize(
    ("how", "charge", "found"),
    [
        ("open", "success", 99),
        ("open", "failure", 100),
        ("open", "bytes", 97),
        ("open", {"status": [101]}, 99),
        ("open", {"header": "x-cost"}, 91),
        ("deny", "failure", 99),
        ("deny", {"status": [403]}, 99),
        ("raise", "success", 100),
        ("raise", {"status": [500]}, 99),
        ("crash", "bytes", 97),
        ("crash", "failure", 99),
    ],
    ids=str,
)
async def test_the_result_of_a_connection(how: str, charge: Any, found: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if how == "raise":
            raise RuntimeError("as asked")
        if how == "deny":
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept", "headers": [(b"x-cost", b"9"), (b"x-own", b"yes")]})
        await send({"type": "websocket.send", "text": "one"})
        if how == "crash":
            raise RuntimeError("as asked")
        await receive()

    limited = RateLimitMiddleware(app, one_rule(charge=charge))
    try:
        sent = await connect(limited)
    except RuntimeError:
        sent = []
    if sent and how == "open":
        names = [name for name, _ in sent[0]["headers"]]
        assert b"x-own" in names
        assert (b"x-cost" in names) == (charge != {"header": "x-cost"})
    assert [usage.remaining for usage in await limited.usage_of("127.0.0.1")] == [found]


async def test_a_cancelled_connection_is_charged_for_what_was_sent() -> None:
    opened = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept", "headers": []})
        await send({"type": "websocket.send", "text": "one"})
        opened.set()
        await asyncio.Event().wait()

    limited = RateLimitMiddleware(app, one_rule(charge="bytes"))
    task = asyncio.create_task(connect(limited))
    await opened.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [usage.remaining for usage in await limited.usage_of("127.0.0.1")] == [97]


def test_decorators_take_the_same_charges_and_strikes() -> None:
    limit = RouteLimit(limits=PENALTY, name="own", charge={"status": [401]}, strike="failure")
    by_result = limit.rule("own").by_result
    assert by_result is not None
    assert by_result.cost is not None
    assert by_result.strikes is not None
    assert [by_result.cost(FinishedResponse(status, 0, 2)) for status in (200, 401)] == [0, 2]
    with pytest.raises(ValueError, match="it is for penalties, and this rule has none"):
        RouteLimit(limits="5/minute", strike="failure")


def test_a_function_of_a_rule_is_a_charge_and_that_of_the_gate_comes_before_it() -> None:
    policy = Policy(rules=[Rule("a", "9/minute", charge=lambda response: 3), Rule("b", "9/minute", charge="success")])
    terms = WebGate(policy, charge={"b": lambda response: 5}).rules_for(None).terms
    found = {name: one.cost and one.cost(FinishedResponse(200, 0, 1)) for name, one in terms.charges.items()}
    assert found == {"a": 3, "b": 5}
