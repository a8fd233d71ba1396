"""The Flask extension: what is declared where, and who asks."""

from pathlib import Path
from typing import Any

import flask
import pytest
from flask.views import MethodView

from ratebound.policy import Identity, PolicyError
from ratebound.web.flask import RateLimits
from tests.web.flask_site import Site

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
    below = {"SCRIPT_NAME": "/mount"}
    statuses = [site.app.test_client().get("/f/a/b", environ_overrides=below).status_code for _ in range(3)]
    assert seen[0].route == "/f/{rest*}"
    assert statuses[-1] == 429


def test_bad_limits_raise_where_they_are_written() -> None:  # peers: row 14
    limiter = RateLimits()
    for wrong in (
        lambda: limiter.limit("5 per fortnight"),
        lambda: limiter.shared_limit("5 per fortnight", "mysql"),
        lambda: RateLimits(default_limits=["5 per fortnight"]),
        lambda: RateLimits(application_limits="5 per fortnight"),
        lambda: RateLimits(flask.Flask("x"), "5 per fortnight"),
    ):
        with pytest.raises(PolicyError, match="fortnight"):
            wrong()
    with pytest.raises(TypeError, match="unknown"):
        limiter.limit("5/minute", unknown=True)  # type: ignore[call-arg]
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
    with pytest.raises(TypeError, match="expected a view"):
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
    site.view("/sees", answer=lambda: str(flask.g.ratebound.decision))
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
        with site.limiter.limit("2/minute", name="block") as part:
            return str(part.decision and part.decision.remaining)

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
