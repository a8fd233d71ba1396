"""Distinct values and penalties behind every adapter: what is read of a request, and what a client is told."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import Gate, Policy, PolicyError, RequestView, Rule
from ratebound.testing import FakeClock
from ratebound.web.endpoint_rules import wants_user
from ratebound.web.route_limit import Endpoint, RouteLimit
from tests.web.applications import ADAPTERS

Make = Callable[..., AbstractContextManager[Any]]
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def policy(**more: Any) -> dict[str, Any]:
    login = {"name": "login", "by": "address", "match": {"paths": ["/login"]}, "limits": "2 distinct account/hour"}
    return {"rules": [{**login, "distinct": {"account": "body.username"}, **more}]}


@pytest.fixture(params=ADAPTERS.values(), ids=list(ADAPTERS))
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def test_every_adapter_counts_a_field_of_the_body(make: Make, clock: FakeClock) -> None:
    with make(policy=policy(), storage=MemoryStorage(clock=clock)) as send:
        statuses = [
            send("POST", "/login", headers, body=body).status
            for headers, body in [
                (JSON, b'{"username": "ann"}'),
                (FORM, b"username=bob"),
                (JSON, b'{"username": "bob"}'),
                (JSON, b'{"username": "eve"}'),
                (FORM, b"username=eve&a=b"),
                (FORM, b"username=ann"),
            ]
        ]
        assert [status == 429 for status in statuses] == [False, False, False, True, True, False]


def test_every_adapter_denies_a_body_that_cannot_be_read_and_says_why(make: Make, clock: FakeClock) -> None:
    with make(policy=policy(message="Slow down."), storage=MemoryStorage(clock=clock)) as send:
        for body in (b'{"username": "ann"', b'{"username": "ann", "username": "eve"}', b'{"username": ["ann"]}'):
            answer = send("POST", "/login", JSON, body=body)
            assert answer.status == 403
            told = json.loads(answer.body)["detail"]
            assert "body" in told.lower()
            assert "ann" not in told.split()
        assert send("POST", "/login", JSON, body=b" " * 1_000_001).status == 403
        assert send("GET", "/", {}).status == 200


def test_every_adapter_counts_parameters_of_the_path(make: Make, clock: FakeClock) -> None:
    rule = {"match": {"paths": ["/users/{id}"]}, "distinct": {"account": "path.id"}}
    with make(policy=policy(**rule), storage=MemoryStorage(clock=clock)) as send:
        statuses = [send("GET", f"/users/{name}", {}).status for name in ("1", "2", "1", "3", "%33", "%31")]
        assert statuses == [200, 200, 200, 429, 429, 200]


def test_every_adapter_blocks_after_strikes(make: Make, clock: FakeClock) -> None:
    rule = {"limits": "1/second; 2 strikes/hour block 5 minutes", "distinct": None, "match": {"paths": ["/users/{id}"]}}
    with make(policy=policy(**rule), storage=MemoryStorage(clock=clock)) as send:
        for _ in range(2):
            assert send("GET", "/users/1", {}).status == 200
            assert send("GET", "/users/1", {}).status == 429
            clock.advance(2)
        answer = send("GET", "/users/1", {})
        assert answer.status == 429
        assert dict(answer.headers)["retry-after"] == "298"
        clock.advance(300)
        assert send("GET", "/users/1", {}).status == 200


def test_every_adapter_counts_the_target_of_a_login_from_all_addresses(make: Make, clock: FakeClock) -> None:
    rule = {"by": "body.username", "limits": "2/minute", "distinct": None}
    options = {"policy": {**policy(**rule), "trusted": ["127.0.0.1"]}, "storage": MemoryStorage(clock=clock)}
    with make(**options) as send:
        statuses = [
            send("POST", "/login", {**JSON, "x-forwarded-for": f"192.0.2.{number}"}, body=b'{"username": "ann"}').status
            for number in range(3)
        ]
        assert [status == 429 for status in statuses] == [False, False, True]


def test_in_every_adapter_a_doubled_credential_is_no_way_out_of_a_block(make: Make, clock: FakeClock) -> None:
    sessions = {"session": {"verify": str}}
    blocking = {**policy(distinct=None, limits="9/minute"), "identities": sessions, "block": ["session:ann"]}
    with make(policy=blocking, storage=MemoryStorage(clock=clock)) as send:
        for cookie in ("session=ann", "session=eve; session=ann"):
            answer = send("GET", "/", {"cookie": cookie})
            assert answer.status == 403
            assert json.loads(answer.body)["status"] == 403
        assert send("GET", "/", {"cookie": "session=eve"}).status == 200


def test_a_limit_at_an_endpoint_takes_distinct_and_penalty() -> None:
    limit = RouteLimit(
        limits="2 distinct account/hour", key="address", distinct={"account": "body.username"}, penalty="guessing"
    )
    [rule] = Endpoint("login", [limit]).rules
    assert (rule.distinct, rule.penalty, limit.reads_body) == ({"account": "body.username"}, "guessing", True)
    assert RouteLimit(limits="2/hour", key="body.username + address").reads_body
    assert RouteLimit(limits="2/hour", key=["body.username", "address"]).reads_body
    assert not RouteLimit(limits="2/hour", key="query.q").reads_body
    without = RouteLimit(limits="2 distinct n/hour", key="address", distinct={"n": lambda: "1"})
    assert without.rule("login").sources["n"](RequestView("GET", "/")) == "1"  # type: ignore[operator]
    with pytest.raises(PolicyError, match="no limit of this rule counts"):
        RouteLimit(limits="2/hour", distinct={"account": "body.username"})


@pytest.mark.parametrize("limits", ["9/minute", lambda: "9/minute"], ids=["text", "function"])
def test_an_exempt_request_is_neither_blocked_nor_struck(limits: Any) -> None:
    limit = RouteLimit(
        limits=limits,
        otherwise="9/minute" if callable(limits) else None,
        key="address",
        penalty="guessing",
        strike="failure",
        exempt_when=lambda request: request.path == "/staff",
    )
    gate = Gate(
        Policy(rules=[limit.rule("login")], penalties={"guessing": "1 strike/hour block 1 hour"}),
        storage=MemoryStorage(clock=FakeClock()),
    )
    view = RequestView("GET", "/", peer="192.0.2.1")
    gate.settle(gate.decide(view), cost=1, strike=True)
    assert not gate.decide(RequestView("GET", "/", peer="192.0.2.1"))
    assert gate.decide(RequestView("GET", "/staff", peer="192.0.2.1")).kind == "unlimited"


def test_a_value_that_is_the_user_wants_the_user() -> None:
    rule = Rule("a", "2 distinct who/hour", by="address", distinct={"who": "user"})
    assert wants_user(Policy(rules=[rule], by="address"), rule, with_functions=False)


def test_decorators_of_fastapi_count_values_and_share_an_entry(clock: FakeClock) -> None:
    from fastapi import FastAPI

    from ratebound.web.fastapi import RateLimits
    from tests.web.drivers import asgi_client

    app = FastAPI()
    entry = {"guessing": {"after": "1 strike/hour", "block": "5 minutes"}}
    limits = RateLimits("100/minute", app=app, penalties=entry, storage=MemoryStorage(clock=clock))

    @app.post("/login")
    @limits.limit("1 distinct account/hour", key="address", distinct={"account": "body.username"}, penalty="guessing")
    def login(body: dict[str, str]) -> str:
        return body["username"]

    @app.get("/users/{id}")
    @limits.limit("5 distinct user/hour", key="address", distinct={"user": "path.id"}, penalty="guessing")
    def user(id: int) -> int:
        return id

    send: Any = asgi_client(app)
    try:
        assert send("GET", "/users/1", {}).status == 200
        answers = [send("POST", "/login", JSON, body=b'{"username": "%s"}' % name) for name in (b"ann", b"ann", b"eve")]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].body == b'"ann"'
        assert send("GET", "/users/1", {}).status == 429
        clock.advance(301)
        assert send("GET", "/users/1", {}).status == 200
    finally:
        send.close()


def test_decorators_of_flask_count_values() -> None:
    from tests.web.flask_site import Site

    site = Site()
    limit = site.limiter.limit("2 distinct user/hour", key="address", distinct={"user": "path.id"})
    site.view("/people/<id>", limit, answer="shown")
    assert [site.get(f"/people/{name}").status_code for name in ("1", "2", "1", "3")] == [200, 200, 200, 429]
