"""The gate that all adapters share: endpoints under a policy that changes, delays, and what results cost."""

import asyncio
import gc
import logging
import re
import weakref
from typing import Any

import pytest
from flask import Flask
from litestar import Litestar, Request, get
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette

from ratebound import Limit, MemoryStorage
from ratebound.policy import Match, Policy, PolicyError, RequestView, Rule
from ratebound.testing import FakeClock
from ratebound.web import AsyncWebGate, Passed, WebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.route_limit import Endpoint, RouteLimit, join
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.drivers import environ_of, fetch, http_scope, wsgi_fetch


def view(path: str = "/", **more: Any) -> RequestView:
    return RequestView("GET", path, peer="192.0.2.1", **more)


def passed(answer: object) -> Passed:
    assert isinstance(answer, Passed), answer
    return answer


def left(gate: WebGate, endpoint: Endpoint | None = None) -> str:
    return dict(passed(gate.before(view(), endpoint)).headers)["RateLimit"]


def test_a_quota_that_a_group_and_its_endpoint_share_is_asked_once() -> None:
    shared = RouteLimit(limits="4/minute", name="heavy")
    again = RouteLimit(limits="4/minute", name="heavy")
    own = RouteLimit(limits="9/minute")
    gate = WebGate()
    assert [rule.name for rule in Endpoint("view", [own, shared, again]).rules] == ["view", "heavy"]
    joined = join(Endpoint("view", [own, shared]), Endpoint("group", [again]))
    assert joined is not None
    assert left(gate, joined) == '"view/minute";r=8;t=60, "heavy/minute";r=3;t=60'


def test_one_name_for_unequal_limits_is_refused() -> None:
    endpoint = Endpoint("view", [RouteLimit(limits="4/minute", name="x"), RouteLimit(limits="5/minute", name="x")])
    with pytest.raises(ValueError, match="'x'"):
        WebGate().prepare(endpoint)


def test_a_policy_that_an_endpoint_does_not_go_with_leaves_the_old_one_in_force_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = WebGate(Policy(rules=[Rule("all", "9/minute")]))
    met, unmet = (Endpoint(name, [RouteLimit(limits="5/minute", name=name)]) for name in ("login", "search"))
    assert left(gate, met) == '"login/minute";r=4;t=60, "all/minute";r=8;t=60'
    with caplog.at_level(logging.ERROR):
        elsewhere = Match(paths=["/elsewhere"])
        taken = [Rule(name, "2/minute", match=elsewhere) for name in ("login", "search")]
        gate.use(Policy(rules=[Rule("all", "5/minute"), *taken]))
        assert left(gate, met) == '"login/minute";r=3;t=60, "all/minute";r=7;t=60'
        assert left(gate, unmet) == '"search/minute";r=4;t=60, "all/minute";r=6;t=60'
    assert caplog.text.count("the previous policy stays in force") == 2
    assert '"all/minute";r=1' in left(gate), "without an endpoint the new one holds, and has counted all the while"
    gate.use(Policy(rules=[Rule("all", "20/minute")]))
    assert '"all/minute";r=15' in left(gate, unmet)


def test_an_endpoint_that_is_met_after_a_reload_keeps_an_older_policy_that_it_goes_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = WebGate(Policy(rules=[Rule("all", "9/minute")]))
    met, unmet = (Endpoint(name, [RouteLimit(limits="5/minute", name=name)]) for name in ("login", "search"))
    gate.prepare(met)
    taken = Rule("search", "2/minute", match=Match(paths=["/elsewhere"]))
    for count in (5, 4):
        with caplog.at_level(logging.ERROR):
            gate.use(Policy(rules=[Rule("all", f"{count}/minute"), taken]))
    assert left(gate, met) == '"login/minute";r=4;t=60, "all/minute";r=3;t=60'
    assert left(gate, unmet) == '"search/minute";r=4;t=60, "all/minute";r=7;t=60'
    assert caplog.text.count("the previous policy stays in force") == 1


def test_an_endpoint_that_is_forgotten_while_a_policy_is_loaded_stays_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = WebGate("9/minute")
    endpoints = [Endpoint("mail", [RouteLimit(limits="5/minute", name="mail")])]
    other = Endpoint("mail", [RouteLimit(limits="6/minute", name="mail")])
    gate.prepare(endpoints[0])
    compile_layer = gate.gate.layered

    def forget_meanwhile(*arguments: Any, **options: Any) -> Any:
        gate.forget(endpoints[0])  # as another thread may at any moment
        return compile_layer(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(gate.gate, "layered", forget_meanwhile)
        gate.use(Policy(rules=[Rule("all", "9/minute")]))
    known = weakref.ref(endpoints.pop().limits[0])
    gc.collect()
    assert known() is None
    assert left(gate, other) == '"mail/minute";r=5;t=60, "all/minute";r=8;t=60'


def test_a_limit_may_be_named_limit() -> None:
    gate = WebGate("9/minute")
    gate.prepare(Endpoint("view", [RouteLimit(limits="5/minute", name="limit")]))
    gate.check(RouteLimit(limits="6/minute"))


def test_the_delay_of_an_early_stage_is_slept_once() -> None:
    rule = Rule("queue", "1/second burst 5 leaky-bucket", stage="early")
    gate = WebGate(
        Policy(rules=[rule, Rule("late", "9/minute")]), storage=MemoryStorage(clock=FakeClock()), max_delay=5
    )
    delays = []
    for _ in range(3):
        request = view()
        early = passed(gate.before(request, stage="early"))
        delays.append((early.delay, passed(gate.before(request, stage="late", earlier=early)).delay))
    assert delays == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]
    assert passed(gate.before(view())).delay == 3.0


def test_a_charge_of_another_rule_holds_nothing_back() -> None:
    policy = Policy(rules=[Rule("login", "5/minute", match=Match(paths=["/login"])), Rule("rest", "5/minute")])
    gate = WebGate(policy, charge={"login": "failure"})
    assert passed(gate.before(view("/login"))).settles
    answer = passed(gate.before(view("/events")))
    assert not answer.settles
    answer.charge(3)
    assert answer.settles


async def _bytes(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 400})


def test_a_head_is_charged_for_no_bytes() -> None:
    app = RateLimitMiddleware(_bytes, Policy(rules=[Rule("bytes", "1000/hour")]), charge={"bytes": lambda o: o.sent})

    async def run() -> list[str]:
        return [dict((await fetch(app, method, "/")).headers)["ratelimit"] for method in ("GET", "HEAD", "HEAD", "GET")]

    assert [text.split(";")[1] for text in asyncio.run(run())] == ["r=600", "r=600", "r=600", "r=200"]


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_a_response_without_a_body_is_settled(status: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> tuple[bytes, ...]:
        start_response(status, [])
        return ()

    limited = WsgiMiddleware(app, Policy(rules=[Rule("failures", "2/minute")]), charge={"failures": "failure"})
    answers = [wsgi_fetch(limited, environ_of("GET", "/")) for _ in range(5)]
    assert {answer.status for answer in answers} == {int(status[:3])}
    assert dict(answers[-1].headers)["ratelimit"] == '"failures/minute";r=2'


def test_a_stream_may_say_at_its_end_what_it_has_cost() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        yield b"tokens"
        environ["ratebound.passed"].charge(60)

    limited = WsgiMiddleware(app, "100/minute")
    assert [wsgi_fetch(limited, environ_of("GET", "/")).status for _ in range(4)] == [200, 200, 429, 429]


def test_a_policys_failure_mode_does_not_stand_in_for_a_rules_own() -> None:
    policy = Policy(
        rules=[
            Rule("closed", "5/minute", failure="closed"),
            Rule("own", "5/minute"),
            Rule("s", "1/minute", mode="shadow"),
        ],
        failure="open",
    )
    limits = [limit for rule in WebGate(policy).gate.current().rules for limit in rule.flat or ()]
    assert [limit.failure for limit in limits if not isinstance(limit, str)] == ["closed", "open", "open"]
    shadow = Policy(rules=[Rule("s", "1/minute", mode="shadow", failure="closed")], failure="closed")
    (plan,) = [rule.flat for rule in WebGate(shadow).gate.current().rules]
    assert isinstance(plan, tuple)
    assert [limit.failure for limit in plan] == ["open"], "a shadow must not refuse"


@get("/files/{rest:path}")
async def files(request: Request[Any, Any, Any]) -> str:
    return str(request.path_params["rest"])


def test_a_litestar_route_of_many_segments_does_not_free_what_one_segment_frees() -> None:
    policy = Policy(rules=[Rule("all", "2/minute")], exempt=[Match(paths=["/files/{name}"])])
    inside = DefineMiddleware(RateLimitMiddleware, gate=AsyncWebGate(policy))
    app = Litestar([files], middleware=[inside], openapi_config=None, logging_config=None)

    async def run(path: str) -> list[int]:
        return [(await fetch(app, "GET", path)).status for _ in range(4)]

    assert asyncio.run(run("/files/admin%2Fusers")) == [200, 200, 429, 429]
    assert asyncio.run(run("/files/one")) == [200] * 4


def test_a_gate_for_each_route_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    app = RateLimitMiddleware(_bytes, "5/minute")
    for _ in range(2):
        asyncio.run(fetch(app, "GET", "/", path_template="/"))
    assert caplog.text.count("counts each route by itself") == 1
    shared = RateLimitMiddleware(_bytes, gate=AsyncWebGate("5/minute"))
    asyncio.run(fetch(shared, "GET", "/", path_template="/"))
    assert caplog.text.count("counts each route by itself") == 1


def test_what_was_decided_does_not_lead_back_to_the_request() -> None:
    """Else each request would be garbage that only a collector finds, in every application."""
    import gc

    app = RateLimitMiddleware(_bytes, "500/minute")

    async def run() -> None:
        for _ in range(50):
            scope = http_scope("GET", "/")
            await app(scope, None, _nothing)

    async def _nothing(message: Any) -> None:
        pass

    asyncio.run(run())
    gc.collect()
    gc.disable()
    try:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(run())
        loop.close()
        before = gc.collect()
    finally:
        gc.enable()
    assert before < 50, before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WebGate("5/minute", storge="memory://"), "did you mean 'storage'"),  # type: ignore[call-arg]
        (lambda: FlaskLimits().limit("5/minute", exempt_wen=bool), "did you mean 'exempt_when'"),  # type: ignore[call-arg]
        (lambda: FlaskLimits("100/minute"), "the application first"),  # type: ignore[arg-type]
        (lambda: FlaskLimits("100/minute", app=Flask("x")), "the application first"),  # type: ignore[misc,arg-type]
        (lambda: RateLimits(Starlette()), "app=app"),  # type: ignore[arg-type]
        (lambda: RateLimits("5/minute", app=Flask("x")), "FastAPI or Starlette"),
    ],
)
def test_what_nobody_knows_is_told_with_what_was_meant(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_methods_that_are_misspelt_are_told_and_own_ones_are_not() -> None:
    with pytest.raises(ValueError, match="did you mean 'POST'"):
        RouteLimit(limits="5/minute", methods=["PSOT"])
    assert RouteLimit(limits="5/minute", methods=["FROBNICATE", "purge"]).methods


def test_what_is_left_of_flask_limiter_in_a_config_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("x")
    app.config["RATELIMIT_DEFAULT"] = "5/minute"
    keeper = FlaskLimits(app, "5/minute")
    assert "RATELIMIT_DEFAULT" in caplog.text
    assert keeper.gate.switch is None, "of the only application, outside of any context"


TREE = {"rules": [{"name": "all", "limits": "2/minute"}]}


def test_a_dict_is_a_whole_policy_or_limits_by_tier() -> None:
    tiers = {"free": "1/minute", "pro": Limit(2, 60_000_000), "default": ["3/minute", "9/hour"]}
    by_tier = WebGate(tiers, tiers=["free", "pro"]).policy.rules
    assert [(rule.name, set(rule.plans)) for rule in by_tier] == [("default", {"free", "pro", "default"})]
    assert [rule.name for rule in WebGate(TREE).policy.rules] == ["all"]
    assert [*WebGate({"block": ["192.0.2.1"]}).policy.block] == ["192.0.2.1"]
    assert [rule.name for rule in AsyncWebGate(TREE).policy.rules] == ["all"]


def test_a_tier_may_have_the_name_of_a_policys_key() -> None:
    gate = WebGate({"block": "1/minute", "default": "3/minute"}, tiers={"block": ["192.0.2.1"]})
    assert set(gate.policy.rules[0].plans) == {"block", "default"}


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ({}, {}, "the policy is empty: add 'rules'"),
        ({"rule": TREE["rules"]}, {}, "has no key 'rule', did you mean 'rules'?"),
        ({"rules": TREE["rules"], "free": "1/minute"}, {}, "unknown key 'free'"),
        ({"fre": "1/minute", "default": "1/minute"}, {"tiers": ["free"]}, "unknown tier 'fre': did you mean 'free'?"),
        (TREE, {"by": "address"}, "by: write it in the policy, beside its rules: {'by': …, 'rules': […]}"),
        (None, TREE, "give the whole policy as one dict"),
        ({"rules": [{"name": "all", "limits": "2/minit"}], "by": "usre"}, {}, "unknown unit 'minit'"),
    ],
)
def test_a_dict_that_is_neither_is_told(given: Any, settings: Any, message: str) -> None:
    with pytest.raises((PolicyError, TypeError), match=re.escape(message)):
        WebGate(given, **settings)


@pytest.mark.parametrize("kind", [WebGate, AsyncWebGate])
def test_settings_take_identities_as_dicts(kind: Any) -> None:
    gate = kind("5/minute", identities={"api-key": {"header": "x-api-key", "verify": str}}, by=["api-key", "address"])
    assert gate.policy.identities["api-key"].header == "x-api-key"
    with pytest.raises(PolicyError, match="identities.api-key.hedaer: unknown key"):
        kind("5/minute", identities={"api-key": {"hedaer": "x-api-key", "verify": str}})
