"""The Flask extension among others: hooks that answer before it, rules that are asked before them, gates around it."""

from typing import Any

import flask
import pytest
from werkzeug.exceptions import HTTPException

from ratebound import MemoryStorage
from ratebound.policy import Policy, Rule
from ratebound.testing import FakeClock
from ratebound.web.flask import RateLimits
from ratebound.web.wsgi import RateLimitMiddleware
from tests.web.drivers import environ_of, wsgi_fetch
from tests.web.flask_site import Site
from tests.web.suite import Answer, Naps

EARLY = Policy(rules=[Rule("flood", "2/minute", stage="early")])


def login() -> Any:
    """As many applications have it: who is not logged in gets no further."""
    if flask.request.headers.get("x-token") != "right":
        if flask.request.path == "/redirected":
            return flask.redirect("/login")
        flask.abort(401)
    return None


def guarded(policy: Any, **options: Any) -> Site:
    """A site whose own hook stands before ours."""
    app = flask.Flask("tests.site")
    app.before_request(login)
    site = Site(policy, app=app, **options)
    site.view("/a")
    site.view("/redirected")
    return site


def told(answer: Answer, name: str) -> list[str]:
    return [value for key, value in answer.headers if key == name]


# What a hook answers that stands before ours.


@pytest.mark.parametrize(("path", "status"), [("/a", 401), ("/redirected", 302), ("/nowhere", 401)])
def test_what_another_hook_answers_is_counted_and_told(path: str, status: int) -> None:
    site = guarded("2/minute")
    responses = [site.get(path) for _ in range(4)]
    assert [response.status_code for response in responses] == [status, status, 429, 429]
    told = [response.headers.getlist("RateLimit") for response in responses[:2]]
    if status == 302:  # where clients may take it for a reason to wait
        assert told == [[], []]
    else:
        assert told == [['"default/minute";r=1;t=60'], ['"default/minute";r=0;t=60']]
    assert responses[2].headers["Retry-After"] == "60"


def test_a_refusal_in_place_of_another_hooks_answer_is_the_applications_own() -> None:
    site = guarded("1/minute")
    after: list[int] = []

    @site.app.errorhandler(429)
    def too_many(error: Exception) -> tuple[str, int]:
        return f"own page: {flask.g.ratebound.retry_after}", 429

    @site.app.after_request
    def noted(response: flask.Response) -> flask.Response:
        after.append(response.status_code)
        return response

    assert [site.get(path).text for path in ("/redirected", "/a", "/redirected")][1:] == ["own page: 60.0"] * 2
    assert after == [302, 429, 429]


def test_failed_logins_by_a_hook_are_charged_and_others_are_not() -> None:
    site = guarded("100/minute")
    site.view("/own", site.limiter.limit("2/minute", charge="failure"))
    assert site.passes("/own", 5, **{"x-token": "right"}) == 5
    assert site.passes("/own", 5) == 2


def test_what_reads_the_parts_of_a_url_may_answer_too() -> None:
    site = Site("3/minute")
    site.view("/<language>/a")

    @site.app.url_value_preprocessor
    def language(endpoint: str | None, values: dict[str, Any] | None) -> None:
        if values and values.pop("language") != "de":
            flask.abort(404)

    assert [site.get(path).status_code for path in ("/de/a", "/xx/a", "/xx/a", "/xx/a")] == [200, 404, 404, 429]


def test_a_hook_that_crashes_has_asked_and_is_not_hidden() -> None:
    app = flask.Flask("tests.site")
    app.testing = True
    app.before_request(lambda: str(1 / 0))
    site = Site("2/minute", app=app)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            site.get("/a")
    assert site.get("/a").status_code == 429


def test_an_application_without_hooks_before_ours_is_left_as_it_is() -> None:
    site = Site("2/minute")
    site.app.before_request(login)
    assert [site.get("/a").status_code for _ in range(3)] == [401, 401, 429]
    assert "preprocess_request" not in vars(site.app)


# What is asked before the application has done anything.


def test_early_rules_are_asked_before_any_hook() -> None:
    site = guarded(EARLY)
    seen: list[str] = []
    site.app.before_request_funcs[None].insert(0, lambda: seen.append("hook"))
    assert [site.get("/a").status_code for _ in range(4)] == [401, 401, 429, 429]
    assert seen == ["hook", "hook"]


@pytest.mark.parametrize("is_worded", [False, True])
def test_an_early_refusal_is_the_applications_own_and_says_when_to_come_back(is_worded: bool) -> None:
    site = guarded(EARLY)

    def too_many(error: Any) -> tuple[str, int]:
        return f"own page: {error.description} {flask.g.ratebound.retry_after}", 429

    if is_worded:
        site.app.register_error_handler(429, too_many)
    refused = [site.get("/a") for _ in range(3)][-1]
    assert (refused.status_code, refused.headers.getlist("Retry-After")) == (429, ["60"])
    assert refused.headers.getlist("RateLimit") == ['"flood/minute";r=0;t=60']
    if is_worded:
        assert refused.text == "own page: Too many requests: try again in 60 seconds. 60.0"
    else:
        assert refused.content_type == "application/problem+json"


def test_both_stages_are_counted_once_and_told_together() -> None:
    site = guarded(Policy(rules=[Rule("flood", "9/minute", stage="early"), Rule("all", "5/minute")]))
    site.view("/own", site.limiter.limit("3/minute"))
    site.view("/free", site.limiter.exempt)
    right = {"x-token": "right"}
    assert site.get("/own", **right).headers.getlist("RateLimit") == [
        '"flood/minute";r=8;t=60, "site.own/minute";r=2;t=60, "all/minute";r=4;t=60'
    ]
    assert site.get("/free", **right).headers.getlist("RateLimit") == ['"flood/minute";r=7;t=60']
    assert site.get("/a").headers.getlist("RateLimit") == ['"flood/minute";r=6;t=60, "all/minute";r=3;t=60']


def test_an_early_leaky_bucket_holds_a_request_back_once() -> None:
    naps = Naps()
    policy = Policy(rules=[Rule("queue", "1/second burst 3 leaky-bucket", stage="early"), Rule("all", "50/minute")])
    site = Site(policy, sleep=naps.sleep)
    site.view("/a")
    assert [site.get("/a").status_code for _ in range(2)] == [200, 200]
    assert naps.taken == [1.0]


def test_early_rules_may_come_and_go_with_the_policy() -> None:
    site = guarded("100/minute")
    with site.app.app_context():
        site.limiter.gate.use(EARLY)
    assert [site.get("/a").status_code for _ in range(4)] == [401, 401, 429, 429]
    with site.app.app_context():
        site.limiter.gate.use(Policy(rules=[Rule("all", "3/minute")]))
    assert [site.get("/a").status_code for _ in range(5)] == [401, 401, 401, 429, 429]


# Gates around it.


def test_the_gate_nearest_to_the_application_tells_the_client() -> None:
    site = Site("2/minute")
    site.view("/a")
    app = RateLimitMiddleware(site.app.wsgi_app, "100/minute", storage=MemoryStorage(clock=site.clock))
    answers = [wsgi_fetch(app, environ_of("GET", "/a")) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [told(answer, "ratelimit") for answer in answers] == [
        ['"default/minute";r=1;t=60'],
        ['"default/minute";r=0;t=60'],
        ['"default/minute";r=0;t=60'],
    ]


def test_where_ours_has_nothing_to_tell_the_gate_around_it_does() -> None:
    site = Site()
    site.view("/a")
    app = RateLimitMiddleware(site.app.wsgi_app, "100/minute", storage=MemoryStorage(clock=site.clock))
    assert told(wsgi_fetch(app, environ_of("GET", "/a")), "ratelimit") == ['"default/minute";r=99;t=60']


def test_a_gate_around_an_early_refusal_is_silent() -> None:
    site = Site(Policy(rules=[Rule("flood", "1/minute", stage="early")]))
    app = RateLimitMiddleware(site.app.wsgi_app, "100/minute", storage=MemoryStorage(clock=site.clock))
    wsgi_fetch(app, environ_of("GET", "/a"))
    refused = wsgi_fetch(app, environ_of("GET", "/a"))
    assert (refused.status, told(refused, "ratelimit")) == (429, ['"flood/minute";r=0;t=60'])


# A function that is limited, called by a hook before ours.


def test_what_another_hook_has_asked_for_is_told_and_settled_with_the_rest() -> None:
    app = flask.Flask("tests.site")
    limiter = RateLimits(default_limits="3/minute")

    @app.before_request
    @limiter.limit("5/minute", charge="failure", name="tokens")
    def look_up() -> None: ...

    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    client = app.test_client()
    responses = [client.get("/a") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert responses[2].headers["RateLimit"].split(";t=")[0] == '"tokens/minute";r=5, "site.a/minute";r=0'
    client.get("/a")
    assert client.get("/nowhere").headers["RateLimit"].startswith('"tokens/minute";r=4')


def test_what_another_hook_is_refused_for_costs_nothing_else_and_says_when_to_come_back() -> None:
    app = flask.Flask("tests.site")
    limiter = RateLimits(default_limits="9/minute", storage=MemoryStorage(clock=FakeClock()))

    @app.before_request
    @limiter.limit("1/minute", name="tokens", methods=["GET"])
    def look_up() -> None: ...

    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a", methods=["GET", "POST"])
    client = app.test_client()
    refused = [client.get("/a") for _ in range(4)][-1]
    assert (refused.status_code, refused.headers["RateLimit"]) == (429, '"tokens/minute";r=0;t=60')
    assert refused.headers["Retry-After"] == "60"
    assert client.post("/a").headers["RateLimit"] == '"site.a/minute";r=7;t=60'


@pytest.mark.parametrize("catches", [False, True], ids=["raised", "answered by the view"])
def test_a_gate_around_a_part_that_rejects_is_silent(catches: bool) -> None:
    def view() -> Any:
        try:
            with site.limiter.limit("1/minute", name="mail"):
                return "sent"
        except HTTPException:
            if not catches:
                raise
            return "later", 429

    site = Site()
    site.view("/a", answer=view)
    site.app.wsgi_app = RateLimitMiddleware(site.app.wsgi_app, "9/minute")  # type: ignore[method-assign]
    told = [site.get("/a").headers["RateLimit"] for _ in range(2)]
    assert told[1] == '"mail/minute";r=0;t=60', "the rejection is ours, and the client is told of that"
