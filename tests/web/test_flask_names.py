"""The Flask extension: which limits hold for which view and method, and what each is called."""

import sys
from typing import Any

import flask
import pytest
from flask.views import MethodView

from ratebound.policy import PolicyError
from ratebound.web import RouteLimit
from ratebound.web.flask import RateLimits
from ratebound.web.rule_names import method_name
from tests.web.flask_site import Site


def names(response: Any) -> list[str]:
    """Of the rules that were asked."""
    told = response.headers.get("RateLimit-Policy", "")
    return [item.partition(";")[0].strip('"').partition("/")[0] for item in told.split(", ") if item]


# Which of them hold.


def test_only_static_files_are_left_to_the_policy_and_not_what_sounds_like_them() -> None:
    site = Site(default_limits="2/minute", application_limits="3/minute")
    site.view("/electrostatic")
    files = flask.Blueprint("files", "tests.site", static_folder="web", url_prefix="/files")
    site.app.register_blueprint(files)
    assert site.passes("/electrostatic") == 2
    responses = [site.get("/files/web/test_flask.py") for _ in range(5)]
    assert 429 not in [response.status_code for response in responses]


def test_a_limit_for_one_method_leaves_the_default_limits_to_the_others() -> None:
    site = Site(default_limits="2/minute", application_limits="9/minute")
    site.view("/a", site.limiter.limit("1/minute", methods=["post"]), methods=["GET", "POST"])
    assert [site.passes("/a"), site.passes("/a", method="POST")] == [2, 1]
    assert names(site.get("/a")) == ["site.a-2", "application"]
    assert names(site.get("/a", "POST")) == ["site.a", "application"]
    assert site.passes("/a", method="HEAD") == 0  # a HEAD is a GET


def test_a_limit_for_one_method_leaves_the_policy_to_the_others() -> None:
    site = Site("3/minute")
    site.view("/a", site.limiter.limit("1/minute", methods=["POST"]), methods=["GET", "POST"])
    assert [site.passes("/a", method="POST"), site.passes("/a")] == [1, 3]


def test_a_shared_limit_on_a_blueprint_and_on_one_of_its_views_counts_once() -> None:
    site = Site()
    shared = site.limiter.shared_limit("4/minute", scope="mysql")
    blueprint = flask.Blueprint("b", "tests.site")
    blueprint.add_url_rule("/a", "a", shared(lambda: "a"))
    blueprint.add_url_rule("/b", "b", site.limiter.shared_limit("4/minute", scope="mysql")(lambda: "b"))
    shared(blueprint)
    site.app.register_blueprint(blueprint)
    assert [site.get(path).status_code for path in ("/a", "/b", "/a", "/b", "/a")] == [200] * 4 + [429]


def test_a_limit_above_its_route_is_a_mistake_that_every_request_tells_of(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.app.testing = True
    monkeypatch.setattr(sys.modules[__name__], "bare", site.limiter.limit("1/minute")(site.app.get("/a")(bare)))
    site.view("/b")
    for path in ("/b", "/a", "/a"):
        with pytest.raises(RuntimeError, match=r"bare has its limit above its route"):
            site.get(path)


def test_a_limited_copy_of_a_view_in_a_factory_does_not_stop_the_application(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()

    @site.app.get("/a")
    def view() -> str:
        return "a"

    strict = site.limiter.limit("1/minute")(view)
    site.view("/strict", answer=lambda: strict())
    assert [site.passes(path, 3) for path in ("/a", "/strict")] == [3, 1]
    assert len([record for record in caplog.records if "above its route" in record.message]) == 1


def bare() -> str:
    return "bare"


def test_a_view_may_be_there_with_a_limit_and_without() -> None:
    site = Site()
    limited = site.limiter.limit("1/minute")(bare)
    site.app.add_url_rule("/bare", "bare", bare)
    site.app.add_url_rule("/limited", "limited", limited)
    other = Site()
    other.app.add_url_rule("/bare", "bare", bare)
    called = other.limiter.limit("1/minute")(bare)
    other.app.add_url_rule("/called", "called", lambda: called())
    assert [site.passes(path, 5) for path in ("/bare", "/limited")] == [5, 1]
    assert [other.passes(path, 5) for path in ("/bare", "/called")] == [5, 1]


def test_methods_that_a_client_makes_up_are_one_to_the_table() -> None:
    site = Site("20/minute")
    site.view("/a")
    site.app.url_map.add(site.app.url_rule_class("/any", endpoint="a"))  # which takes any method
    site.get("/a")
    table = site.app.extensions["ratebound"]._table
    before = len(table)
    for number in range(20):
        site.get("/any", f"M{number}")
        site.get("/nowhere", f"M{number}")
    assert len(table) <= before + 1
    assert site.get("/any", "M1").status_code == 429


# What they are called.


def test_two_limits_that_count_each_method_by_itself_may_stand_on_one_view() -> None:
    site = Site()
    limit = site.limiter.limit
    site.view("/a", limit("2/minute", per_method=True), limit("9/hour", per_method=True), methods=["GET", "POST"])
    assert [site.passes("/a"), site.passes("/a", method="POST"), site.passes("/a", method="HEAD")] == [2, 2, 0]
    assert names(site.get("/a")) == ["site.a:GET", "site.a-2:GET"]


def test_each_method_of_a_class_may_have_its_own_limit() -> None:
    site = Site(default_limits="4/minute")
    limiter = site.limiter

    class Reports(MethodView):
        @limiter.limit("1/minute")
        def get(self) -> str:
            return "get"

        @limiter.limit("2/minute", keep_defaults=True)
        def post(self) -> str:
            return "post"

        def put(self) -> str:
            return "put"

    site.app.add_url_rule("/a", view_func=Reports.as_view("reports"))
    assert [site.passes("/a", method=method) for method in ("GET", "POST", "PUT")] == [1, 2, 2]
    found = [names(site.get("/a", method)) for method in ("GET", "HEAD", "POST", "PUT")]
    assert found == [["site.reports.get"]] * 2 + [["site.reports.post", "site.reports"], ["site.reports"]]


def test_long_names_stay_apart_for_each_method() -> None:
    long = [f"shop.customer_accounts_management_report_{number}" for number in range(300)]
    made = [method_name(name, method) for name in long for method in ("GET", "POST", "PROPFIND", "PROPPATCH")]
    assert len(set(made)) == len(made)
    assert max(map(len, made)) <= 40
    assert method_name("shop.a", "HEAD") == method_name("shop.a", "GET") == "shop.a:GET"


def test_one_blueprint_in_another_with_the_same_limit_counts_once() -> None:
    site = Site()
    outer, inner = flask.Blueprint("outer", "x"), flask.Blueprint("inner", "x")
    same = site.limiter.limit("2/minute")
    same(outer)
    same(inner)
    inner.add_url_rule("/a", "a", lambda: "a")
    outer.register_blueprint(inner)
    site.app.register_blueprint(outer)
    assert [site.passes("/a"), names(site.get("/a"))] == [2, ["outer.inner.a"]]


def test_a_view_of_the_application_and_one_of_a_blueprint_that_is_called_like_it_stay_apart() -> None:
    site = Site()
    shop = flask.Blueprint("site", "x", url_prefix="/shop")
    site.view("/a", site.limiter.limit("2/minute"))
    shop.add_url_rule("/a", "a", site.limiter.limit("3/minute")(lambda: "a"))
    site.app.register_blueprint(shop)
    assert [site.passes("/a"), site.passes("/shop/a")] == [2, 3]
    assert [names(site.get("/a")), names(site.get("/shop/a"))] == [["a"], ["site.a"]]


# Limits of the extension.


def test_application_limits_are_one_quota_without_a_name() -> None:
    site = Site("50/minute", application_limits=RouteLimit(limits="3/minute"))
    site.view("/a")
    site.view("/b", site.limiter.limit("9/minute"))
    assert [site.get(path).status_code for path in ("/a", "/b", "/nowhere", "/a")] == [200, 200, 404, 429]
    assert names(site.get("/a")) == ["application", "default"]


def test_functions_of_the_extensions_limits_take_nothing_or_the_request() -> None:
    is_staff: Any = lambda: "x-staff" in flask.request.headers  # noqa: E731 - the type is that of the other kind
    site = Site(
        default_limits=RouteLimit(limits="4/minute", cost=lambda: 2, exempt_when=is_staff),
        application_limits=RouteLimit(limits="3/minute", key=lambda: flask.request.headers.get("x-who")),
    )
    site.view("/a")
    assert [site.passes("/a", 3, **{"x-who": "a"}), site.passes("/a", 9, **{"x-who": "b", "x-staff": "1"})] == [2, 3]


def test_functions_in_a_list_of_keys_take_nothing_or_the_request() -> None:
    keys: list[Any] = [lambda: flask.request.headers.get("x-who"), lambda view: view.header("x-other"), "address"]
    site = Site("2/minute", by=keys)
    site.view("/a")
    site.view("/own", site.limiter.limit("1/minute", key=keys))
    clients: list[dict[str, str]] = [{"x-who": "a"}, {"x-other": "b"}, {}]
    assert [site.passes("/a", **client) for client in clients] == [2, 2, 2]
    assert [site.passes("/own", **client) for client in clients] == [1, 1, 1]


def test_several_limits_of_the_extension_may_have_options_of_their_own() -> None:
    by_header = RouteLimit(limits="2/minute", key=lambda view: view.header("x-who"))
    site = Site(
        default_limits=["5/minute", by_header, "9/hour"],
        application_limits=[RouteLimit(limits="7/minute"), RouteLimit(limits="8/hour"), RouteLimit(limits="9/day")],
    )
    site.view("/a")
    response = site.get("/a")
    assert response.headers["RateLimit-Policy"] == (
        '"site.a/minute";q=5;w=60, "site.a/hour";q=9;w=3600, "site.a-2/minute";q=2;w=60,'
        ' "application/minute";q=7;w=60, "application-2/hour";q=8;w=3600, "application-3/day";q=9;w=86400'
    )
    assert [site.passes("/a", **{"x-who": who}) for who in ("a", "b")] == [2, 2]


def test_limits_of_the_extension_may_stand_in_the_config() -> None:
    limiter = RateLimits(default_limits="9/minute", by="address")
    app = flask.Flask("tests.site")
    app.config.update(
        RATEBOUND_DEFAULT_LIMITS=["2/minute", "9/hour"],
        RATEBOUND_APPLICATION_LIMITS="3/minute",
        RATEBOUND_BY=lambda: flask.request.headers.get("x-who"),
    )
    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    app.add_url_rule("/b", "b", lambda: "b")
    client = app.test_client()
    assert [client.get(path).status_code for path in ("/a", "/a", "/a", "/b", "/b")] == [200, 200, 429, 200, 429]
    assert client.get("/b", headers={"x-who": "other"}).status_code == 200
    wrong = flask.Flask("tests.site")
    wrong.config["RATEBOUND_DEFAULT_LIMITS"] = "5 per fortnight"
    with pytest.raises(PolicyError, match="fortnight"):
        limiter.init_app(wrong)
