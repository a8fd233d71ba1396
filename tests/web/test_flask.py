"""The Flask extension: what is declared where, who is told of a refusal, and what is charged when."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import pytest
from flask.views import MethodView
from werkzeug.exceptions import HTTPException

from ratekeeper import MemoryStorage
from ratekeeper.policy import Identity, PolicyError
from ratekeeper.policy.cost import json_batch_cost
from ratekeeper.testing import FakeClock
from ratekeeper.web import RouteLimit
from ratekeeper.web.charge import Outcome
from ratekeeper.web.flask import RateKeeper
from ratekeeper.web.wsgi import RateLimitMiddleware
from tests.servers import Server
from tests.web.drivers import environ_of, wsgi_fetch


class Site:
    """An application on a clock that stands still."""

    def __init__(self, policy: Any = None, **options: Any) -> None:
        self.app = flask.Flask("tests.site")
        self.clock = FakeClock()
        self.limiter = RateKeeper(self.app, policy, **{"storage": MemoryStorage(clock=self.clock), **options})

    def view(self, path: str, *decorators: Callable[[Any], Any], answer: Any = "ok", **more: Any) -> None:
        def view(**_: Any) -> Any:
            return answer() if callable(answer) else answer

        view.__name__ = path.strip("/").partition("/")[0] or "home"
        for decorate in decorators:
            view = decorate(view)
        self.app.add_url_rule(path, view_func=view, **more)

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        return self.app.test_client().open(path, method=method, headers=headers)

    def passes(self, path: str, most: Any = 20, method: str = "GET", **headers: str) -> int:
        """How many in turn go ahead before the first is refused."""
        for count in range(most):
            if self.get(path, method, **headers).status_code in (429, 403):
                return count
        return int(most)


# Where limits are said.


def test_path_parameters_share_a_bucket() -> None:  # peers: row 13
    site = Site()
    site.view("/u/<int:number>", site.limiter.limit("2/minute"))
    assert [site.get(f"/u/{number}").status_code for number in range(4)] == [200, 200, 429, 429]


def test_a_policy_sees_the_template_of_a_route(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "rules:\n  - {name: files, limits: 2/minute, match: {paths: ['/mount/f/{rest*}']}}\n"
    )
    site = Site(tmp_path / "policy.yaml")
    seen: list[Any] = []
    site.limiter.user = seen.append
    site.view("/f/<path:rest>")
    site.app.test_client().get("/f/a/b", environ_overrides={"SCRIPT_NAME": "/mount"})
    assert seen[0].route == "/mount/f/{rest*}"


def test_bad_limits_raise_where_they_are_written() -> None:  # peers: row 14
    limiter = RateKeeper()
    for wrong in (
        lambda: limiter.limit("5 per fortnight"),
        lambda: limiter.shared_limit("5 per fortnight", "mysql"),
        lambda: RateKeeper(default_limits=["5 per fortnight"]),
        lambda: RateKeeper(application_limits="5 per fortnight"),
        lambda: RateKeeper(flask.Flask("x"), "5 per fortnight"),
    ):
        with pytest.raises(PolicyError, match="fortnight"):
            wrong()
    with pytest.raises(TypeError, match="unknown"):
        limiter.limit("5/minute", unknown=True)
    with pytest.raises(ValueError, match="otherwise"):
        limiter.limit(lambda: "5/minute")


def test_a_name_that_two_limits_have_stops_every_request_and_not_only_its_own() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("1/minute", name="same"))
    site.view("/b", site.limiter.limit("2/minute", name="same"))
    site.view("/c")
    site.app.testing = True
    with pytest.raises(ValueError, match="same"):
        site.get("/c")
    with pytest.raises(ValueError, match="same"):
        site.get("/c")


def test_default_limits_hold_for_each_view_that_has_none() -> None:  # peers: section 3, item 6
    site = Site(default_limits=["3/minute", "10/hour"])
    site.view("/a")
    site.view("/b")
    site.view("/own", site.limiter.limit("5/minute"))
    site.view("/both", site.limiter.limit("5/minute", keep_defaults=True))
    assert [site.passes(path) for path in ("/a", "/b", "/own", "/both")] == [3, 3, 5, 3]


def test_limits_as_text_are_one_quota_for_all_that_declare_none() -> None:
    site = Site("3/minute")
    site.view("/a")
    site.view("/b")
    site.view("/own", site.limiter.limit("5/minute"))
    assert [site.passes(path) for path in ("/a", "/b", "/own", "/nowhere")] == [3, 0, 5, 0]


def test_application_limits_hold_for_all_views_together_and_for_none_that_is_exempt() -> None:
    site = Site(application_limits="4/minute")
    site.view("/a", site.limiter.limit("3/minute"))
    site.view("/b")
    site.view("/free", site.limiter.exempt)
    assert [site.passes(path) for path in ("/a", "/b", "/nowhere", "/free")] == [3, 1, 0, 20]


def test_a_shared_limit_is_one_quota() -> None:
    site = Site()
    mysql = site.limiter.shared_limit("3/minute", scope="mysql")
    site.view("/a", mysql)
    site.view("/b", mysql)
    site.view("/c", site.limiter.shared_limit("3/minute", scope="mysql"))
    assert [site.get(path).status_code for path in ("/a", "/b", "/c", "/a", "/b", "/c")] == [200] * 3 + [429] * 3


def test_two_views_with_equal_limits_do_not_share() -> None:  # peers: row 24
    site = Site()
    five = site.limiter.limit("5/minute")
    site.view("/search", five)
    site.view("/login", five)
    assert site.passes("/search") == 5
    assert site.passes("/login") == 5


def test_a_blueprint_limits_its_views_each_by_itself_and_nested_ones_too() -> None:
    site = Site()
    outer, inner = flask.Blueprint("outer", "x"), flask.Blueprint("inner", "x")
    site.limiter.limit("4/minute")(outer)
    site.limiter.limit("2/minute")(inner)
    for blueprint in (outer, inner):
        blueprint.add_url_rule("/a", "a", lambda: "a")
        blueprint.add_url_rule("/b", "b", lambda: "b")
    outer.register_blueprint(inner, url_prefix="/inner")
    site.app.register_blueprint(outer, url_prefix="/outer")
    assert [site.passes(path) for path in ("/outer/a", "/outer/b", "/outer/inner/a", "/outer/inner/b")] == [4, 4, 2, 2]
    headers = site.get("/outer/inner/a").headers
    assert headers["RateLimit-Policy"] == '"outer.inner.a/minute";q=2;w=60, "outer.inner.a-2/minute";q=4;w=60'


def test_an_exempt_blueprint_is_free_but_for_views_with_limits_of_their_own() -> None:
    site = Site(default_limits="1/minute", application_limits="1/hour")
    blueprint = site.limiter.exempt(flask.Blueprint("free", "x"))
    blueprint.add_url_rule("/a", "a", lambda: "a")
    blueprint.add_url_rule("/b", "b", site.limiter.limit("3/minute")(lambda: "b"))
    site.app.register_blueprint(blueprint)
    assert [site.passes(path) for path in ("/a", "/b")] == [20, 3]


def test_static_files_are_the_policys_only(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    site = Site(default_limits="1/minute")
    site.app.static_folder = str(tmp_path)
    responses = [site.get("/static/x.txt") for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3
    for response in responses:
        response.close()


def test_class_based_views_are_limited_as_a_whole_or_by_method() -> None:
    site = Site()
    limiter = site.limiter

    class Whole(MethodView):
        decorators = [limiter.limit("2/minute")]  # noqa: RUF012 - as Flask's own example has it

        def get(self) -> str:
            return "get"

        def post(self) -> str:
            return "post"

    class ByMethod(MethodView):
        def get(self) -> str:
            return "get"

        @limiter.limit("1/minute")
        def post(self) -> str:
            return "post"

    @limiter.limit("3/minute")
    class Decorated(MethodView):
        def get(self) -> str:
            return "get"

    for kind in (Whole, ByMethod, Decorated):
        site.app.add_url_rule(f"/{kind.__name__}", view_func=kind.as_view(kind.__name__))
    assert [site.get("/Whole", method).status_code for method in ("GET", "POST", "GET")] == [200, 200, 429]
    assert site.passes("/ByMethod", method="POST") == 1
    assert site.passes("/ByMethod") == 20
    assert [site.passes("/Decorated"), site.passes("/Decorated", method="HEAD")] == [3, 0]
    with pytest.raises(TypeError, match="no view"):
        limiter.limit("1/minute")(dict)


def test_methods_choose_and_per_method_counts_apart() -> None:
    site = Site()
    site.view("/some", site.limiter.limit("1/minute", methods=["POST"]), methods=["GET", "POST"])
    site.view("/each", site.limiter.limit("2/minute", per_method=True), methods=["GET", "POST"])
    assert [site.passes("/some"), site.passes("/some", method="POST")] == [20, 1]
    assert [site.passes("/each"), site.passes("/each", method="POST")] == [2, 2]


def test_limits_by_policy_and_by_decorator_live_together(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules:\n  - {name: all, limits: 4/minute}\n")
    site = Site(str(tmp_path / "policy.yaml"))
    site.view("/a", site.limiter.limit("3/minute"))
    site.view("/b")
    assert [site.passes("/a"), site.passes("/b")] == [3, 1]
    assert site.get("/a").headers["RateLimit"] == '"site.a/minute";r=0;t=60, "all/minute";r=0;t=60'


# Who asks.


def test_functions_take_nothing_or_the_request() -> None:
    site = Site(user=lambda: flask.request.headers.get("x-user"))
    site.view("/user", site.limiter.limit("1/minute", key="user"))
    site.view("/key", site.limiter.limit("1/minute", key=lambda: flask.request.headers["x-user"]))
    site.view("/view", site.limiter.limit("1/minute", key=lambda request: request.header("x-user")))
    site.view("/cost", site.limiter.limit("10/minute", cost=lambda: 5))
    site.view("/free", site.limiter.limit("1/minute", exempt_when=lambda: flask.request.headers["x-user"] == "admin"))
    for path in ("/user", "/key", "/view"):
        statuses = [site.get(path, **{"x-user": user}).status_code for user in ("a", "b", "a")]
        assert statuses == [200, 200, 429], path
    assert site.passes("/cost") == 2
    assert [site.passes("/free", **{"x-user": user}) for user in ("admin", "other")] == [20, 1]


def test_limits_may_be_found_by_a_function_and_hold_when_it_fails() -> None:  # peers: section 3, item 8
    site = Site()

    def found() -> str:
        return {"gold": "5/minute", "broken": "5/fortnight"}[flask.request.headers["x-tier"]]

    site.view("/a", site.limiter.limit(found, otherwise="1/minute", key=lambda: flask.request.headers["x-tier"]))
    assert [site.passes("/a", **{"x-tier": tier}) for tier in ("gold", "broken", "absent")] == [5, 1, 1]


def test_tiers_come_with_the_user() -> None:
    site = Site(
        tiers=["gold"], user=lambda: Identity("user", "1", "gold") if "x-gold" in flask.request.headers else None
    )
    site.view("/a", site.limiter.limit({"gold": "5/minute", "default": "2/minute"}))
    assert [site.passes("/a", **{"x-gold": "1"}), site.passes("/a")] == [5, 2]


def test_whom_nothing_is_counted_for() -> None:
    site = Site("2/minute", exempt_when=lambda: "x-admin" in flask.request.headers)
    site.view("/a")
    site.view("/own", site.limiter.limit("1/minute"))
    site.view("/sees", answer=lambda: str(flask.g.ratekeeper.decision))
    assert [site.passes(path, **{"x-admin": "1"}) for path in ("/a", "/own")] == [20, 20]
    assert site.get("/sees", **{"x-admin": "1"}).text == "None"
    assert [site.passes(path) for path in ("/a", "/own")] == [2, 1]


def test_an_address_that_a_client_claims_counts_for_nothing() -> None:  # peers: section 3, item 10
    site = Site("2/minute")
    site.view("/a")
    statuses = [site.get("/a", **{"X-Forwarded-For": f"192.0.2.{n}", "X-Real-IP": f"192.0.2.{n}"}) for n in range(3)]
    assert [one.status_code for one in statuses] == [200, 200, 429]
    behind = Site("2/minute", trusted=["127.0.0.1"])
    behind.view("/a")
    assert [behind.get("/a", **{"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(3)] == [200] * 3


# What a limit is on that is not the view which Flask finds.


def test_a_decorator_that_hides_what_is_declared_leaves_nothing_unlimited() -> None:
    site = Site("10/minute")

    def hiding(function: Any) -> Any:
        def hidden(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return hidden

    site.view("/a", site.limiter.limit("2/minute"), hiding)
    assert site.passes("/a") == 2


def test_functions_that_views_call_and_blocks_are_limited_too_and_headers_tell_of_all() -> None:
    site = Site("10/minute")

    @site.limiter.limit("3/minute")
    def mail() -> str:
        return "sent"

    def block() -> str:
        with site.limiter.limit("2/minute", name="block") as passed:
            return str(passed.verdict.decision and passed.verdict.decision.remaining)

    site.view("/mail", answer=mail)
    site.view("/block", answer=block)
    response = site.get("/mail")
    assert response.headers.getlist("RateLimit") == [
        '"default/minute";r=9;t=60, "tests.web.test_flask.mail/minute";r=2;t=60'
    ]
    assert [site.get("/block").text for _ in range(2)] == ["1", "0"]
    refused = site.get("/block")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert site.get("/mail").headers["RateLimit"].startswith('"default/minute";r=6')  # the refused cost nothing
    with pytest.raises(ValueError, match="name"), site.limiter.limit("1/minute"):
        pass


def test_one_decorator_on_a_view_and_on_what_it_calls_is_two_quotas() -> None:
    site = Site()
    five = site.limiter.limit("5/minute")

    @five
    def mail() -> str:
        return "sent"

    site.view("/one", five, answer=mail)
    site.view("/two", answer=mail)
    assert [site.passes("/one", most=3), site.passes("/two"), site.passes("/one")] == [3, 2, 0]


def test_async_views_are_limited() -> None:
    site = Site()

    @site.limiter.limit("2/minute")
    async def view() -> str:
        return "async"

    site.app.add_url_rule("/a", view_func=view)
    assert site.passes("/a") == 2


# What a refusal is.


def test_a_refusal_is_flasks_own_429_for_the_applications_handler() -> None:
    site = Site()
    site.view("/a", site.limiter.limit("1/minute", message="Slow down."))
    seen: list[Any] = []

    @site.app.errorhandler(429)
    def too_many(error: HTTPException) -> tuple[str, int]:
        seen.append((error.code, error.description, flask.g.ratekeeper.retry_after))
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
    site.view("/a", site.limiter.limit("3/minute"), answer=lambda: str(flask.g.ratekeeper.decision.remaining))
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
    def kilobytes(outcome: Outcome) -> int:
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
    limiter = RateKeeper(default_limits="1/minute")
    apps = []
    for _ in range(2):
        app = flask.Flask("factory")
        app.config.update(RATEKEEPER_POLICY="9/minute", RATEKEEPER_HEADERS="x-ratelimit")
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
    app.add_url_rule("/a", "a", RateKeeper().limit("1/minute")(lambda: "a"))
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
