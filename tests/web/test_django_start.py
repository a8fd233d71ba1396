"""Django: what is wrong with limits is found where they are written, at the start, and by `manage.py check`."""

from tests.web.django_site import MIDDLEWARE, site  # first: it makes the settings

# isort: split
import sys
from types import ModuleType
from typing import Any

import flask
import pytest
from django.core.checks import Error, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from ratebound.policy import Source
from ratebound.web import RouteLimit
from ratebound.web.django import apps, limit
from ratebound.web.django.configuration import DjangoLimits
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web.django_running import view_for
from tests.web.drivers import environ_of, wsgi_fetch

PARTNER = Source(header="x-partner", verify=lambda value: value)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("ip", "unknown identity 'ip': did you mean 'address'"),
        ("user_or_ip", "did you mean 'address'"),
        ("user + ip", "did you mean 'address'"),
        ("post:username", "unknown identity 'post:username': did you mean 'body.username'"),
        ("get:q", "did you mean 'query.q'"),
        ("field:q", "did you mean 'body.q'"),
        ("prefix:999", "out of range"),
        ("agent", "a client can choose its user agent"),
        (["address", "user"], "never reached"),
        (["user", "user"], "twice"),
        ([], "at least one identity"),
        ("No such name", "unknown identity"),
        (5, "not 5"),
    ],
)
def test_a_key_that_no_policy_can_make_right_raises_where_it_is_written(key: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        RouteLimit(limits="5/minute", key=key)
    assert str(raised.value).startswith("key=")


@pytest.mark.parametrize(
    "key", ["partner", "api-key", "jwt:sub", "header:x-team", "user + partner", ["partner", "address"], len, None]
)
def test_a_key_that_some_policy_may_know_does_not(key: Any) -> None:
    RouteLimit(limits="5/minute", key=key)


def urls(*patterns: Any) -> ModuleType:
    module = ModuleType("urls")
    module.__dict__["urlpatterns"] = list(patterns)
    return module


class Report(View):  # type: ignore[misc]
    @method_decorator(limit({"gold": "5/minute", "default": "1/minute"}))  # type: ignore[untyped-decorator]
    def post(self, request: Any) -> Any:
        return HttpResponse()


WRONG = urls(
    path("a", limit("5/minute", key="partner")(view_for("wsgi", name="one"))),
    path("in/", include([path("b", limit("5/minute", key="api-key")(view_for("wsgi", name="two")))])),
    path("c", Report.as_view()),
    path("d", view_for("wsgi", name="well")),
)


def test_a_server_does_not_start_with_a_limit_that_the_policy_cannot_keep_and_tells_all() -> None:
    with site("100/minute", ROOT_URLCONF=WRONG), pytest.raises(ImproperlyConfigured) as raised:
        WSGIHandler()
    told = str(raised.value).splitlines()
    assert len(told) == 3
    for line, (view, what) in zip(
        told, [(".one", "'partner'"), (".two", "'api-key'"), (".Report", "'gold'")], strict=True
    ):
        assert line.startswith("the limits of ")
        assert f"{view}: " in line
        assert what in line


@pytest.mark.parametrize("middleware", [[MIDDLEWARE], []], ids=["middleware", "decorator only"])
def test_the_system_check_tells_the_same(middleware: list[str]) -> None:
    with site("100/minute", ROOT_URLCONF=WRONG, MIDDLEWARE=middleware):
        found = [one for one in run_checks() if str(one.id).startswith("ratebound.")]
    assert [(type(one), one.id) for one in found] == [(Error, "ratebound.E002")] * 3
    assert "partner" in found[0].msg


def test_the_system_check_tells_what_is_wrong_with_the_settings() -> None:
    with site({"policy": "5 per fortnight"}):
        found = [one for one in run_checks() if str(one.id).startswith("ratebound.")]
    assert [one.id for one in found] == ["ratebound.E001"]
    assert found[0].msg.startswith("RATEBOUND in the settings: ")


@pytest.mark.parametrize("wrong", [{"user": 5}, {"user": "no.such.function"}, {"charge": 5}])
def test_the_system_check_tells_what_is_no_function_and_what_is_no_charge(wrong: dict[str, Any]) -> None:
    with site({"policy": "5/minute", **wrong}):
        found = [one for one in run_checks() if str(one.id).startswith("ratebound.")]
    assert [one.id for one in found] == ["ratebound.E001"]


def test_the_system_check_is_silent_where_all_is_well() -> None:
    with site("100/minute"):
        assert not [one for one in run_checks() if str(one.id).startswith("ratebound.")]


def test_an_identity_of_the_policy_is_known_to_views() -> None:
    view = limit("5/minute", key="api-key")(view_for("wsgi"))
    with site({"policy": "5/minute", "identities": {"api-key": PARTNER}}, ROOT_URLCONF=urls(path("", view))):
        WSGIHandler()


def test_a_urlconf_that_cannot_be_imported_is_for_django_to_report() -> None:
    with site("100/minute", ROOT_URLCONF="tests.web.no_such_module"):
        WSGIHandler()


def test_a_urlconf_that_is_still_being_imported_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("half_imported_urls")
    monkeypatch.setitem(sys.modules, half.__name__, half)
    with site("100/minute", ROOT_URLCONF=half.__name__):
        handler = WSGIHandler()
        half.__dict__["urlpatterns"] = [path("", limit("1/minute")(view_for("wsgi")))]
        assert [wsgi_fetch(handler, environ_of("GET", "/")).status for _ in range(2)] == [200, 429]


def test_the_package_can_be_an_installed_application() -> None:
    config = apps.RateboundConfig.create("ratebound.web.django")
    assert (config.name, config.label) == ("ratebound.web.django", "ratebound")


# The same law elsewhere.


def test_flask_finds_a_limit_that_the_policy_cannot_keep_before_the_first_request() -> None:
    with pytest.raises(ValueError, match="'partner'"):
        FlaskLimits(flask.Flask("shop"), "100/minute").limit("5/minute", key="partner")
    later = FlaskLimits()
    app = flask.Flask("shop")
    app.add_url_rule("/", view_func=later.limit("1/minute", key="partner")(lambda: "hello"))
    with pytest.raises(ValueError, match="'partner'"):
        later.init_app(app)
    assert not app.extensions
    app.config["RATEBOUND_IDENTITIES"] = {"partner": PARTNER}
    later.init_app(app)
    assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 429]


def test_fastapi_finds_a_limit_that_the_policy_cannot_keep_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="'partner'"):
        RateLimits("100/minute").limit("5/minute", key="partner")


@pytest.mark.parametrize(
    ("name", "told"),
    [("polcy", "did you mean 'policy'"), ("usr", "did you mean 'user'"), ("zzz", ", policy, .*, user,")],
)
def test_an_unknown_setting_names_the_one_that_was_meant(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{name}': .*{told}"):
        DjangoLimits({name: "5/minute"})
