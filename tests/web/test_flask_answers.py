"""The Flask extension: who is told of a rejection, what is charged when, and where it lives."""

import threading
from typing import Any

import flask
import pytest
from werkzeug.exceptions import HTTPException

from ratebound import MemoryStorage
from ratebound.policy.cost import json_batch_cost
from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.web import RouteLimit
from ratebound.web.flask import RateLimits
from ratebound.web.wsgi import RateLimitMiddleware
from tests.servers import Server
from tests.web.drivers import environ_of, wsgi_fetch
from tests.web.flask_site import Site

# What a rejection is.


def test_a_refusal_is_flasks_own_429_for_the_applications_handler() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("1/minute", message="Slow down."))
    seen: list[Any] = []

    @site.app.errorhandler(429)
    def too_many(error: HTTPException) -> tuple[str, int]:
        seen.append((error.code, error.description, flask.g.ratebound.retry_after))
        return "own page", 429

    site.get("/a")
    response = site.get("/a", Origin="https://example.com")
    assert seen == [(429, "Slow down.", 60.0)]
    assert response.text == "own page"
    for name in ("Retry-After", "RateLimit", "RateLimit-Policy", "Access-Control-Expose-Headers", "Content-Type"):
        assert len(response.headers.getlist(name)) == 1, name
    assert response.headers["Retry-After"] == "60"


def test_a_handler_for_all_errors_gets_a_response_it_can_change() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("1/minute"))

    @site.app.errorhandler(HTTPException)
    def any_error(error: HTTPException) -> Any:
        response = error.get_response()
        response.data = f"{error.code}: {error.description}"
        return response

    site.get("/a")
    response = site.get("/a")
    assert (response.status_code, response.text) == (429, "429: Too many requests: try again in 60 seconds.")
    assert response.headers.getlist("RateLimit") == ['"site.a/minute";r=0;t=60']


def test_who_is_told_of_a_breach_may_answer_it() -> None:
    site = Site(on_breach=lambda refused: (f"all: {refused.retry_after}", 420))
    site.view("/a", site.limiter.limit("1/minute"))
    site.view("/b", site.limiter.limit("1/minute", on_breach=lambda refused: ("own", 200)))
    site.view("/c", site.limiter.limit("1/minute", on_breach=lambda refused: None))
    answers = {}
    for path in ("/a", "/b", "/c"):
        site.get(path)
        response = site.get(path)
        answers[path] = response.status_code, response.text, response.headers.getlist("Retry-After")
    assert answers == {
        "/a": (420, "all: 60.0", ["60"]),
        "/b": (200, "own", ["60"]),
        "/c": (420, "all: 60.0", ["60"]),
    }


def test_refused_requests_burn_nothing_and_headers_show_the_limit_that_bites() -> None:  # peers: row 17
    site = Site()
    site.view("/a", site.limiter.limit("100/minute; 2/hour"))
    responses = [site.get("/a") for _ in range(5)]
    assert [response.status_code for response in responses] == [200, 200, 429, 429, 429]
    assert responses[-1].headers["RateLimit"] == '"site.a/minute";r=98;t=60, "site.a/hour";r=0;t=3600'
    assert responses[-1].headers["Retry-After"] == "3600"


def test_only_a_refusal_says_when_to_come_back() -> None:  # peers: section 3, item 5
    site = Site("1/minute")
    site.view("/a")
    assert "Retry-After" not in site.get("/a").headers
    site.clock.advance(20.25)
    assert site.get("/a").headers["Retry-After"] == "40"  # 39.75 s: never too early, never 0
    site.clock.advance(39.75)
    assert site.get("/a").status_code == 200


def test_a_view_sees_the_decision() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("3/minute"), answer=lambda: str(flask.g.ratebound.decision.remaining))
    assert [site.get("/a").text for _ in range(3)] == ["2", "1", "0"]


# What it costs.


def test_forty_concurrent_failed_logins_pass_five() -> None:  # peers: row 16
    barrier = threading.Barrier(40, timeout=30)

    def login() -> tuple[str, int]:
        inside.append(1)
        return "wrong", 401

    inside: list[int] = []
    site = Site()
    site.view("/login", site.limiter.limit("5/minute", charge="failure"), answer=login, methods=["POST"])
    statuses: list[int] = []

    def attempt() -> None:
        environ = environ_of("POST", "/login")
        barrier.wait()
        statuses.append(wsgi_fetch(site.app.wsgi_app, environ).status)

    threads = [threading.Thread(target=attempt) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (statuses.count(401), statuses.count(429), len(inside)) == (5, 35, 5)


def test_a_stream_is_charged_for_its_bytes_when_it_ends_and_at_least_one_when_it_does_not() -> None:
    def kilobytes(outcome: FinishedResponse) -> int:
        return outcome.sent // 1000

    closed: list[str] = []

    class Parts:
        def __iter__(self) -> Any:
            return iter([b"x" * 2000, b"x" * 1000])

        def close(self) -> None:
            closed.append("closed")

    site = Site()
    site.view("/a", site.limiter.limit("10/minute", charge=kilobytes), answer=lambda: flask.Response(Parts()))
    assert len(site.get("/a").data) == 3000
    assert site.get("/a", "HEAD").headers["RateLimit"] == '"site.a/minute";r=7;t=60'  # a HEAD sends nothing
    body = site.app.wsgi_app(environ_of("GET", "/a"), lambda *_: lambda part: None)
    next(iter(body))
    body.close()  # type: ignore[attr-defined]
    assert closed == ["closed"]
    assert site.get("/a", "HEAD").headers["RateLimit"].startswith('"site.a/minute";r=6')


def test_a_crash_keeps_its_charge() -> None:  # peers: section 3, item 15
    site = Site()
    site.app.testing = True
    site.view("/a", site.limiter.limit("2/minute", charge="failure"), answer=lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            site.get("/a")
    assert site.get("/a").status_code == 429


# Where it lives.


def test_a_factory_configures_each_application_for_itself() -> None:
    limiter = RateLimits(default_limits="1/minute")
    apps = []
    for _ in range(2):
        app = flask.Flask("factory")
        app.config.update(RATEBOUND_POLICY="9/minute", RATEBOUND_HEADERS="x-ratelimit")
        app.add_url_rule("/a", "a", lambda: "a")
        limiter.init_app(app)
        apps.append(app)
    for app in apps:
        response = app.test_client().get("/a")
        assert (response.status_code, response.headers["X-RateLimit-Remaining"]) == (200, "0")
    with pytest.raises(RuntimeError, match="already"):
        limiter.init_app(apps[0])
    with apps[0].app_context():
        limiter.gate.switch = "off"
    assert [app.test_client().get("/a").status_code for app in apps] == [200, 429]


def test_an_application_without_the_extension_says_so() -> None:
    app = flask.Flask("bare")
    app.testing = True
    app.add_url_rule("/a", "a", RateLimits().limit("1/minute")(lambda: "a"))
    with pytest.raises(RuntimeError, match="init_app"):
        app.test_client().get("/a")


def test_a_wsgi_middleware_around_it_and_its_own_limits_both_hold() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("2/minute"))
    site.view("/b")
    app = RateLimitMiddleware(site.app.wsgi_app, "3/minute", storage=MemoryStorage(clock=site.clock))
    statuses = [wsgi_fetch(app, environ_of("GET", path)).status for path in ("/a", "/a", "/a", "/b")]
    assert statuses == [200, 200, 429, 429]


def test_rules_may_look_at_the_body_and_the_view_reads_it_again() -> None:
    site = Site(default_limits=RouteLimit(limits="10/minute", cost=json_batch_cost))
    site.view("/a", answer=lambda: flask.request.get_json(), methods=["POST"])
    client = site.app.test_client()
    assert client.post("/a", json=[1, 2, 3, 4]).json == [1, 2, 3, 4]
    assert client.post("/a", json=[1, 2, 3, 4]).headers["RateLimit"] == '"site.a/minute";r=2;t=60'
    assert client.post("/a", json=[1, 2, 3, 4]).status_code == 429


def test_two_limits_with_headers_are_one_call_to_redis(redis_url_server: Server) -> None:  # peers: row 18
    site = Site("50/minute", storage=redis_url_server.url + "?prefix=flask", by="address")
    site.view("/a", site.limiter.limit("10/minute; 100/hour", keep_defaults=True))
    assert site.get("/a").status_code == 200
    look = redis_url_server.client()
    before = _trips(look)
    response = site.get("/a")
    assert _trips(look) - before == 1
    assert response.headers["RateLimit"].count(";r=") == 3
    with site.app.app_context():
        site.limiter.gate.close()
    look.close()


def _trips(look: Any) -> int:
    """Calls from outside: a script, or what Flask-Limiter asks beside it. What a script calls is not a trip."""
    stats = look.info("commandstats")
    names = ("evalsha", "eval", "get", "ttl", "script|load", "multi", "exec")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)
