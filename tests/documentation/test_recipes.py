"""What the recipes say beside their terminals: variations and pitfalls, in the applications that the pages show."""

import asyncio
import importlib.util
import json
import re
import sqlite3
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import jwt
import pytest
import yaml
from fastapi import HTTPException, Request

from ratebound import MemoryStorage
from ratebound.policy import Gate, PolicyError, RequestView, load_policy, read_policy
from ratebound.testing import FakeClock
from ratebound.web import Rejected, WebGate
from tests.documentation.terminal import BLOCK, ROOT, Step, steps, terminal

Load = Callable[[str, str], ModuleType]
Headers = dict[str, str] | list[tuple[str, str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a function that writes the files of a page into the folder of this test, and imports one of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def imported(page: str, name: str) -> ModuleType:
        for step in steps(page):
            if step.title:
                here.play(step)
        spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), tmp_path / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with terminal(tmp_path) as here:
        yield imported
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def variations(page: str) -> dict[str, Any]:
    """Run the examples of a page that are no files, and return their names."""
    names: dict[str, Any] = {"__name__": "variations"}
    for block in BLOCK.finditer((ROOT / page).read_text()):
        if block["language"] == "python" and not block["title"]:
            exec(compile(block["text"], page, "exec", dont_inherit=True), names)
    return names


def statuses(app: Any, requests: list[tuple[str, str, Headers, Any]]) -> list[int]:
    """Send requests to an ASGI application, one after the other, and return the statuses of its responses."""

    async def send() -> list[int]:
        transport = httpx.ASGITransport(app=app, client=("192.0.2.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return [
                (await client.request(method, path, headers=headers, json=body)).status_code
                for method, path, headers, body in requests
            ]

    return asyncio.run(send())


def bearer(key: str, **claims: Any) -> dict[str, str]:
    """Return the header of a request with a token that is valid for a minute."""
    token = jwt.encode({"exp": int(time.time()) + 60, **claims}, key, algorithm="HS256")
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("what", "is_ann"),
    [
        ({"sub": "ann"}, True),
        ({"sub": "ann", "exp": 1}, False),
        ({"sub": "ann", "aud": "another"}, False),
        ({}, False),
    ],
    ids=["valid", "expired", "for another application", "without a subject"],
)
def test_only_a_token_that_is_valid_names_a_user(load: Load, what: dict[str, Any], is_ann: bool) -> None:
    main = load("docs/how-to/jwt-users-in-fastapi.md", "main.py")
    header = bearer(main.KEY, **{"aud": "shop", **what})["authorization"]
    scope = {"type": "http", "headers": [(b"authorization", header.encode())]}
    assert main.user_of(scope) == ("ann" if is_ann else None)


def test_a_token_without_a_signature_names_nobody(load: Load) -> None:
    main = load("docs/how-to/jwt-users-in-fastapi.md", "main.py")
    token = jwt.encode({"sub": "ann", "aud": "shop", "exp": int(time.time()) + 60}, "", algorithm="none")
    assert main.claims_of(f"Bearer {token}") is None
    assert main.claims_of("Bearer \xff") is None


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_second_authorization_header_does_not_get_around_the_limit(load: Load, is_first: bool) -> None:
    main = load("docs/how-to/jwt-users-in-fastapi.md", "main.py")
    ann = bearer(main.KEY, aud="shop", sub="ann")
    for n in range(6):
        forged = bearer(f"a key that somebody else has made up, {n}", aud="shop", sub="ann")
        headers = [*ann.items(), *forged.items()] if is_first else [*forged.items(), *ann.items()]
        (found,) = statuses(main.app, [("GET", "/orders", headers, None)])
        assert found == (429 if n == 5 else 200 if is_first else 401)
    assert statuses(main.app, [("GET", "/orders", ann, None)]) == [429 if is_first else 200]


def test_a_second_authorization_header_does_not_choose_another_plan() -> None:
    names = variations("docs/how-to/jwt-users-in-fastapi.md")
    free, pro = (bearer(names["KEY"], sub="ann", plan=plan).items() for plan in ("free", "pro"))
    found = statuses(names["app"], [("GET", "/search", [*free, *pro], None)] * 3)
    assert found == [200, 200, 429]


def test_anonymous_clients_have_fewer_requests_than_users(load: Load) -> None:
    tiers = load("docs/how-to/jwt-users-in-fastapi.md", "tiers.py")
    ann, ben = (bearer(tiers.name_of.__globals__["KEY"], aud="shop", sub=user) for user in ("ann", "ben"))
    for token, count in [(ann, 20), (ben, 20), ({}, 5)]:
        found = statuses(tiers.app, [("GET", "/prices", token, None)] * (count + 1))
        assert found == [200] * count + [429]


def test_users_of_the_policy_file_have_limits_of_their_own(load: Load) -> None:
    program = load("docs/how-to/jwt-users-in-fastapi.md", "with_policy.py")
    ann, ben = (bearer(program.KEY, aud="shop", sub=user) for user in ("ann", "ben"))
    for token, count in [(ann, 20), (ben, 20), ({}, 5)]:
        found = statuses(program.app, [("GET", "/prices", token, None)] * (count + 1))
        assert found == [200] * count + [429]


def test_the_plan_in_a_token_chooses_the_limit() -> None:
    names = variations("docs/how-to/jwt-users-in-fastapi.md")
    for plan, count in [("free", 2), ("pro", 4), ("platinum", 2)]:
        token = bearer(names["KEY"], sub=plan, plan=plan)
        found = statuses(names["app"], [("GET", "/search", token, None)] * (count + 1))
        assert found == [200] * count + [429], plan


def test_a_dependency_that_finds_the_user_limits_one_endpoint() -> None:
    names = variations("docs/how-to/jwt-users-in-fastapi.md")
    ann, ben = (bearer(names["KEY"], sub=user) for user in ("ann", "ben"))
    found = statuses(names["app"], [("GET", "/exports", token, None) for token in [ann] * 4 + [ben, {}]])
    assert found == [200, 200, 200, 429, 200, 401]


TIERS = "docs/how-to/tiers-from-a-database-in-flask.md"


def logged_in(names: dict[str, Any], user: str) -> Any:
    """Return a client of the application on the page of tiers that is logged in."""
    client = names["app"].test_client()
    with client.session_transaction() as session:
        session["user"] = user
    return client


def test_the_plan_of_a_user_chooses_the_limit_in_flask() -> None:
    names = variations(TIERS)
    assert [logged_in(names, "ann").get("/search").status_code for _ in range(7)] == [200] * 6 + [429]
    assert [logged_in(names, "ben").get("/search").status_code for _ in range(4)] == [200] * 3 + [429]


def test_a_plan_that_changes_holds_after_the_time_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    names = variations(TIERS)
    assert names["plan_of"]("ben") == "free"
    names["PLANS"]["ben"] = "pro"
    assert names["plan_of"]("ben") == "free"
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert names["plan_of"]("ben") == "pro"


def test_the_count_of_a_customer_comes_from_a_function_in_flask() -> None:
    names = variations(TIERS)
    assert [logged_in(names, "acme").get("/export").status_code for _ in range(5)] == [200] * 4 + [429]
    other, claim = logged_in(names, "other"), {"x-customer": "acme"}
    assert [other.get("/export", headers=claim).status_code for _ in range(3)] == [200] * 2 + [429]
    anonymous = names["app"].test_client()
    assert [anonymous.get("/export", headers=claim).status_code for _ in range(3)] == [200] * 2 + [429]


def test_customers_count_by_address_while_the_database_is_down(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    app = load("docs/how-to/tiers-from-a-database-in-flask.md", "app.py").app
    client = app.test_client()
    found = [
        client.get("/report", headers={"x-api-key": f"key-{n}"}).status_code for n in range(4)
    ]  # there is no table
    assert found == [200, 200, 200, 429]
    assert sqlite3.OperationalError.__name__ in caplog.text


def test_a_rule_that_leaves_out_a_tier_is_refused_at_the_start() -> None:
    with pytest.raises(PolicyError, match="pro"):
        read_policy({"tiers": ["free", "pro"], "rules": [{"name": "api", "limits": {"free": "3/minute"}}]})


def test_a_penalty_that_counts_by_the_name_of_an_account_is_refused() -> None:
    (text,) = [step.text for step in steps("docs/how-to/login-protection.md") if step.title == "policy.yaml"]
    changed = text.replace("    by: address\n", "    by: body.username\n")
    assert changed != text
    with pytest.raises(PolicyError):
        read_policy(changed, functions={"known_device": lambda view: None})


def test_guesses_at_the_same_moment_do_not_slip_through(load: Load) -> None:
    main = load("docs/how-to/login-protection.md", "main.py")

    async def guess() -> list[int]:
        transport = httpx.ASGITransport(app=main.app, client=("192.0.2.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            body = {"username": "ann", "password": "guess"}
            answers = await asyncio.gather(*(client.post("/login", json=body) for _ in range(40)))
            return [answer.status_code for answer in answers]

    assert sorted(asyncio.run(guess())) == [401] * 5 + [429] * 35


def test_the_cookie_of_another_account_is_the_cookie_of_a_stranger(load: Load) -> None:
    main = load("docs/how-to/login-protection.md", "main.py")
    view = RequestView(
        "POST",
        "/login",
        headers=[("cookie", f"device={main.device_cookie('ben')}"), ("content-type", "application/json")],
        body=json.dumps({"username": "ann"}).encode(),
    )
    assert main.known_device(view) is None
    view.body = json.dumps({"username": " Ben "}).encode()
    assert main.known_device(view) == "ben"


def login_with(load: Load, clock: FakeClock, change: Callable[[str], str] = str) -> tuple[ModuleType, WebGate]:
    """Return the login of the recipe, and its policy in memory, with a clock that tests move."""
    main = load("docs/how-to/login-protection.md", "main.py")
    policy = read_policy(change(Path("policy.yaml").read_text()), functions={"known_device": main.known_device})
    return main, WebGate(policy, storage=MemoryStorage(clock=clock))


def guess(gate: WebGate, address: str, cookie: str = "", *, status: int = 401) -> Rejected | None:
    """Log in to the account of Ann with a form. Return the rejection, None if the application has answered."""
    headers = [("content-type", "application/x-www-form-urlencoded"), ("cookie", f"device={cookie}")]
    view = RequestView("POST", "/login", peer=address, headers=headers, body=b"username=Ann&password=x")
    answer = gate.before(view)
    if isinstance(answer, Rejected):
        return answer
    gate.after(answer, status, 0)
    return None


def test_an_address_that_hammers_at_one_account_is_blocked_for_longer_each_time(load: Load) -> None:
    clock = FakeClock()
    _, gate = login_with(load, clock)
    blocks: list[float] = []
    looked_at = 0
    for _ in range(4000):
        rejected = guess(gate, "203.0.113.9")
        looked_at += rejected is None
        if rejected is not None and rejected.decision is not None and rejected.decision.blocked:
            assert rejected.retry_after is not None
            blocks.append(rejected.retry_after)
            clock.advance(rejected.retry_after)
            if len(blocks) == 3:
                break
        clock.advance(2)
    assert len(blocks) == 3
    assert 300 <= blocks[0] <= 600, "until the block and the limit of ten minutes have ended"
    assert 3590 <= blocks[1] <= 3600
    assert 3590 <= blocks[2] <= 3600
    assert looked_at < 60


def test_successful_logins_use_up_no_limit_of_the_recipe(load: Load) -> None:
    _, gate = login_with(load, FakeClock())
    assert [guess(gate, "192.0.2.10", status=200) for _ in range(300)] == [None] * 300


def test_an_owner_with_the_cookie_logs_in_by_a_form_while_strangers_guess(load: Load) -> None:
    main, gate = login_with(load, FakeClock())
    found = [guess(gate, f"198.51.100.{n}") for n in range(8)]
    assert [one is None for one in found] == [True] * 5 + [False] * 3
    assert guess(gate, "192.0.2.20", status=200) is not None
    assert guess(gate, "192.0.2.10", main.device_cookie("ann"), status=200) is None


def test_accounts_counted_by_address_are_locked_by_nobody_elsewhere(load: Load) -> None:
    _, gate = login_with(
        load, FakeClock(), lambda text: text.replace("[device, body.username]", "body.username + address")
    )
    assert [guess(gate, "198.51.100.1") is None for _ in range(6)] == [True] * 5 + [False]
    assert guess(gate, "192.0.2.20", status=200) is None


def test_a_body_that_the_endpoint_refuses_costs_one_token(load: Load) -> None:
    main = load("docs/how-to/language-model-tokens.md", "main.py")
    acme = {"x-api-key": "key-of-acme"}
    found = statuses(
        main.app,
        [
            ("POST", "/chat", acme, {"prompt": "hello", "max_tokens": -5}),
            ("POST", "/chat", acme, {"prompt": "hello", "max_tokens": 999}),  # 1000 do not fit beside it
            ("POST", "/chat", acme, {"prompt": "hello", "max_tokens": 998}),
            ("POST", "/chat", {"x-api-key": "unknown"}, {"prompt": "hello"}),
        ],
    )
    assert found == [422, 429, 200, 401]


@pytest.mark.parametrize(("says", "used"), [("nothing", 301), ("that it cost nothing", 0)])
def test_an_endpoint_that_raises_keeps_the_estimate_unless_it_says_otherwise(load: Load, says: str, used: int) -> None:
    main = load("docs/how-to/language-model-tokens.md", "main.py")

    async def failing(request: Request) -> None:
        if says != "nothing":
            request.state.ratebound.charge(0, "tokens")
        raise HTTPException(502, "the model has failed")

    main.app.post("/failing")(main.tokens(failing))
    acme = {"x-api-key": "key-of-acme"}
    assert statuses(main.app, [("POST", "/failing", acme, {"prompt": "hello", "max_tokens": 300})]) == [502]
    found = asyncio.run(main.limits.usage_of("org:acme"))
    assert [entry.used for entry in found if entry.name.startswith("tokens")] == [used]


@pytest.mark.parametrize("read", [0, 3])
def test_a_stream_that_nobody_reads_to_the_end_has_paid_what_was_used(load: Load, read: int) -> None:
    main = load("docs/how-to/language-model-tokens.md", "main.py")
    prompt = " ".join(["word"] * 50)
    body = json.dumps({"prompt": prompt, "max_tokens": 300}).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/stream",
        "raw_path": b"/stream",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"x-api-key", b"key-of-acme"), (b"content-type", b"application/json")],
        "client": ("192.0.2.1", 1234),
        "server": ("api", 80),
    }

    async def play() -> int:
        parts, gone = 0, asyncio.Event()
        received = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            if (message := next(received, None)) is None:
                await gone.wait()
            return message or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal parts
            parts += bool(message.get("body"))
            if parts == 3:
                gone.set()
                await asyncio.sleep(3600)  # nobody reads on

        async def silent(prompt: str, max_tokens: int) -> AsyncIterator[str]:
            gone.set()
            await asyncio.sleep(3600)  # the model thinks
            yield prompt

        if read == 0:
            main.__dict__["call_model"] = silent
        await asyncio.wait_for(main.app(scope, receive, send), 10)
        (usage,) = [entry for entry in await main.limits.usage_of("org:acme") if entry.name.startswith("tokens")]
        return int(usage.used)

    assert asyncio.run(play()) == 50 + read


def test_the_month_of_the_recipe_is_one_quota_in_all_plans(load: Load) -> None:
    load("docs/how-to/monthly-quota-with-usage-page.md", "main.py")
    with Gate(load_policy("policy.yaml")) as gate:
        gate.decide(RequestView("GET", "/api/report", peer="192.0.2.1", headers=[("x-api-key", "key-of-zenith")]))
        for tier, quota in [("trial", 3), ("standard", 10000)]:
            (usage,) = gate.usage_of("customer:zenith", tier=tier)
            assert (usage.quota, usage.used) == (quota, 1)


def test_the_pipeline_of_the_recipe_about_tests_passes(tmp_path: Path) -> None:
    files = [step for step in steps("docs/how-to/test-your-limits.md") if step.title]
    (pipeline,) = [yaml.safe_load(step.text) for step in files if step.title == "ci.yaml"]
    with terminal(tmp_path) as here:
        for step in files:
            here.play(step)
        printed = [here.play(Step(None, f"set +e; {step['run']}")) for step in pipeline["steps"]]
    assert "7 passed" in printed[0], printed
    assert "PASS     The limit was kept: 5/minute sliding-log for each of 4 clients: granted 20," in printed[1], printed
    assert "FAIL" not in printed[1], printed


def test_the_page_about_installation_names_every_extra() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    table = (ROOT / "docs/install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`([a-z0-9]+)`", row)}
    assert named == {*extras}
