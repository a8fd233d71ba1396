"""The Flask extension: rules that are asked before any hook, and what else may stand around the application."""

from typing import Any

import flask
import pytest
from werkzeug.middleware.proxy_fix import ProxyFix

from ratebound import MemoryStorage
from ratebound.policy import Policy, Rule
from ratebound.policy.cost import json_batch_cost
from ratebound.policy.model.rule import Stage
from ratebound.testing import FakeClock
from ratebound.web.flask import RateLimits
from ratebound.web.wsgi import RateLimitMiddleware
from tests.web.drivers import environ_of, wsgi_fetch
from tests.web.flask_site import Site

FLOOD = Rule("flood", "1/minute", stage="early")
WIDE = Rule("flood", "1000/minute", stage="early")


def site_of(*rules: Rule, **options: Any) -> Site:
    site = Site(Policy(rules=rules), **options)
    site.app.config["PROPAGATE_EXCEPTIONS"] = False
    site.view("/a")
    return site


# Who the client is.


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("rules", [(WIDE, Rule("all", "1/minute")), (FLOOD,), (Rule("all", "1/minute"),)])
def test_each_client_behind_a_proxy_is_counted_by_itself(rules: tuple[Rule, ...], is_before: bool) -> None:
    app = flask.Flask("tests.site")
    if is_before:
        app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    site = Site(Policy(rules=rules), app=app)
    if not is_before:
        app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    site.view("/a")
    clients = [{"x-forwarded-for": f"9.9.9.{number}"} for number in (1, 2, 1, 2)]
    assert [site.get("/a", **client).status_code for client in clients] == [200, 200, 429, 429]


# What an early rejection is.


def test_an_early_refusal_has_what_the_application_puts_on_every_response() -> None:
    site = site_of(FLOOD)

    @site.app.after_request
    def allow(response: flask.Response) -> flask.Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response

    responses = [site.get("/a") for _ in range(2)]
    assert [(one.status_code, one.headers["Access-Control-Allow-Origin"]) for one in responses] == [
        *((200, "*"), (429, "*"))
    ]


def test_a_handler_that_fails_for_an_early_refusal_is_the_applications_error() -> None:
    site = site_of(FLOOD)

    @site.app.errorhandler(429)
    def too_many(error: Exception) -> str:
        raise LookupError("no such template")

    @site.app.errorhandler(500)
    def broken(error: Exception) -> tuple[str, int]:
        return "own page", 500

    assert [site.get("/a").status_code, site.get("/a").text] == [200, "own page"]


def test_a_listener_that_fails_for_an_early_refusal_is_the_applications_error() -> None:
    site = site_of(FLOOD, on_breach=lambda refused: 1 / 0)
    site.app.register_error_handler(ZeroDivisionError, lambda error: ("by zero", 503))
    assert [site.get("/a").status_code, site.get("/a").status_code] == [200, 503]


def test_early_rules_come_before_what_reads_the_parts_of_a_url() -> None:
    site = site_of(FLOOD)
    seen: list[str | None] = []
    site.app.url_value_preprocessor(lambda endpoint, values: seen.append(endpoint))
    assert [site.get("/a").status_code for _ in range(3)] == [200, 429, 429]
    assert seen == ["a"]


@pytest.mark.parametrize("stage", ["early", "late"])
def test_what_a_part_has_cost_in_a_hook_before_ours_is_settled(stage: Stage) -> None:
    app = flask.Flask("tests.site")
    limiter = RateLimits(policy=Policy(rules=[Rule("all", "100/minute", stage=stage)]))

    @app.before_request
    def pay() -> None:
        with limiter.limit("100/minute", name="mail") as part:
            part.charge(60)

    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    told = app.test_client().get("/a").headers["RateLimit"]
    assert sorted(item.partition(";t=")[0] for item in told.split(", ")) == ['"all/minute";r=99', '"mail/minute";r=40']


def test_an_early_rule_may_look_at_the_body_and_the_view_reads_it_again() -> None:
    site = Site(Policy(rules=[Rule("calls", "10/minute", cost=json_batch_cost, stage="early")]))
    site.view("/a", answer=lambda: flask.request.get_json(), methods=["POST"])
    client = site.app.test_client()
    assert client.post("/a", json=[1] * 7).json == [1] * 7
    assert client.post("/a", json=[1] * 4).status_code == 429


# Our own gate around the application.


def own_gate_around(policy: Any) -> tuple[Site, Any]:
    site = Site(policy)
    site.view("/a", answer=lambda: str(flask.g.ratebound.decision.remaining))
    site.view("/own", site.limiter.limit("1/minute"))
    site.view("/free", site.limiter.exempt)
    return site, RateLimitMiddleware(site.app.wsgi_app, gate=site.limiter.gate)


@pytest.mark.parametrize("stage", ["early", "late"])
def test_a_middleware_with_the_same_gate_is_not_asked_for_twice(stage: Stage) -> None:
    _, app = own_gate_around(Policy(rules=[Rule("all", "5/minute", stage=stage)]))
    paths = ["/a", "/own", "/own", "/free", "/a"]
    answers = [wsgi_fetch(app, environ_of("GET", path)) for path in paths]
    assert [answer.status for answer in answers] == [200, 200, 429, 200, 200]
    told = [[value.split(";t=")[0] for name, value in answer.headers if name == "ratelimit"] for answer in answers]
    is_kept = stage == "early"  # what was asked early is not given back
    assert told == [
        ['"all/minute";r=4'],
        ['"all/minute";r=3'],
        ['"site.own/minute";r=0'],
        ['"all/minute";r=1' if is_kept else '"all/minute";r=2'],
        ['"all/minute";r=0' if is_kept else '"all/minute";r=1'],
    ]


def test_a_hook_before_ours_and_a_middleware_with_the_same_gate_are_told_together() -> None:
    app = flask.Flask("tests.site")
    limiter = RateLimits(policy="5/minute", storage=MemoryStorage(clock=FakeClock()))

    @app.before_request
    @limiter.limit("3/minute", name="tokens")
    def look_up() -> None: ...

    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    around = RateLimitMiddleware(app.wsgi_app, gate=limiter.gate)
    answers = [wsgi_fetch(around, environ_of("GET", "/a")) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    told = [value for name, value in answers[0].headers if name == "ratelimit"]
    assert told == ['"default/minute";r=4;t=60, "tokens/minute";r=2;t=60']
