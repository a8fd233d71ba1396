"""Django REST framework: its throttles' names and settings, our decisions."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path

from ratebound import MemoryStorage
from ratebound.policy import PolicyError
from ratebound.testing import FakeClock
from tests.servers import Server
from tests.web.django_site import MIDDLEWARE, site
from tests.web.drivers import environ_of, wsgi_fetch
from tests.web.suite import Answer

RATES = {"anon": "2/minute", "user": "4/m", "uploads": "1/minute", "free": None}


def rest_view(**attributes: Any) -> Any:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    def get(self: Any, request: Any) -> Any:
        return Response({"ok": True})

    api: Any = type("Api", (APIView,), {"get": get, "authentication_classes": [Header], **attributes})
    return api.as_view()


class Header:
    """Authentication as the framework does it: inside the view."""

    def authenticate(self, request: Any) -> Any:
        number = request.headers.get("x-user")
        return (SimpleNamespace(pk=int(number), is_authenticated=True), None) if number else None

    def authenticate_header(self, request: Any) -> None:
        return None


class Sender:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.handler = WSGIHandler()

    def get(self, where: str, user: str = "") -> Answer:
        return wsgi_fetch(self.handler, environ_of("GET", where, {"x-user": user} if user else {}))

    def passes(self, where: str, user: str = "") -> int:
        return next((count for count in range(20) if self.get(where, user).status == 429), 20)


@contextmanager
def running(*patterns: Any, settings: Any = None, middleware: Any = (MIDDLEWARE,), **rest: Any) -> Iterator[Sender]:
    clock = FakeClock()
    module = ModuleType("urls")
    module.__dict__.update(urlpatterns=list(patterns))
    framework = {
        "DEFAULT_THROTTLE_CLASSES": ["ratebound.web.drf.Throttle"],
        "DEFAULT_THROTTLE_RATES": RATES,
        "UNAUTHENTICATED_USER": None,
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        **rest,
    }
    given = {"storage": MemoryStorage(clock=clock), **(settings or {})}
    with site(given, ROOT_URLCONF=module, MIDDLEWARE=list(middleware), REST_FRAMEWORK=framework):
        yield Sender(clock)


def fresh(**attributes: Any) -> Any:
    """A view that takes the settings as they are now; the framework keeps those of its import on the class."""
    from rest_framework.settings import api_settings

    return rest_view(**{"throttle_classes": api_settings.DEFAULT_THROTTLE_CLASSES, **attributes})


def views() -> list[Any]:
    from ratebound.web.drf import Throttle

    return [
        path("a", rest_view(throttle_classes=[Throttle])),
        path("uploads", rest_view(throttle_classes=[Throttle], throttle_scope="uploads")),
        path("free", rest_view(throttle_classes=[Throttle], throttle_scope="free")),
    ]


@pytest.mark.parametrize("middleware", [(MIDDLEWARE,), ()], ids=["middleware", "alone"])
def test_rates_hold_for_users_for_others_and_for_scopes(middleware: Any) -> None:
    with running(*views(), middleware=middleware) as sender:
        assert sender.passes("/a") == 2
        assert [sender.passes("/a", user) for user in ("1", "2", "1")] == [4, 4, 0]
        assert sender.passes("/uploads", "3") == 1
        assert sender.passes("/a", "3") == 3  # a rejection by the scope has cost the user nothing
        assert sender.passes("/free", "4") == 4


def test_the_settings_name_the_throttle_as_any_other() -> None:
    with running() as sender:
        module = ModuleType("more")
        module.__dict__.update(urlpatterns=[path("a", fresh())])
        with site({"storage": MemoryStorage(clock=sender.clock)}, ROOT_URLCONF=module):
            assert Sender(sender.clock).passes("/a") == 2


def test_a_wait_is_exact_and_headers_tell_once() -> None:
    with running(*views()) as sender:
        sender.get("/a")
        sender.clock.advance(20.5)
        sender.get("/a")
        refused = sender.get("/a")
        told = dict(refused.headers)
        assert (refused.status, told["retry-after"]) == (429, "40")  # 39.5 s, rounded up
        assert told["ratelimit"] == '"rest.anon/minute";r=0;t=40'
        for name in ("retry-after", "ratelimit", "ratelimit-policy"):
            assert [known for known, _ in refused.headers].count(name) == 1
        sender.clock.advance(39.4)
        assert sender.get("/a").status == 429
        sender.clock.advance(0.1)
        assert sender.get("/a").status == 200


def test_a_view_may_have_a_throttle_of_its_own() -> None:
    from ratebound.web.drf import throttle

    own = throttle("3/minute", key=lambda request: request.headers.get("x-user"))
    shared = throttle("2/minute", name="shared")
    patterns = [
        path("a", rest_view(throttle_classes=[own])),
        path("b", rest_view(throttle_classes=[shared])),
        path("c", rest_view(throttle_classes=[shared])),
    ]
    with running(*patterns) as sender:
        assert [sender.passes("/a", user) for user in ("1", "2")] == [3, 3]
        assert [sender.passes("/b"), sender.passes("/c")] == [2, 0]
    with pytest.raises(PolicyError, match="fortnight"):
        throttle("5 per fortnight")


def test_the_policy_is_asked_too_and_a_refusal_costs_it_nothing() -> None:
    with running(
        *views(), path("plain", lambda request: HttpResponse("ok")), settings={"policy": "10/minute"}
    ) as sender:
        told = dict(sender.get("/a").headers)
        assert told["ratelimit"] == '"default/minute";r=9;t=60, "rest.anon/minute";r=1;t=60'
        assert sender.passes("/a") == 1
        for _ in range(5):
            assert sender.get("/a").status == 429
        assert dict(sender.get("/plain").headers)["ratelimit"] == '"default/minute";r=7;t=60'


def test_a_scope_without_a_rate_is_an_error_and_not_unlimited() -> None:
    from ratebound.web.drf import Throttle

    view = rest_view(throttle_classes=[Throttle], throttle_scope="typo")
    with (
        running(path("a", view)) as sender,
        override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True),
        pytest.raises(ValueError, match="typo"),
    ):
        sender.get("/a")


def test_user_and_scope_are_one_call_to_redis(redis_url_server: Server) -> None:
    settings = {"storage": f"{redis_url_server.url}?prefix=rest"}
    look = redis_url_server.client()
    with running(*views(), settings=settings) as sender:
        sender.get("/uploads", "1")
        before: Any = look.info("commandstats")
        assert sender.get("/uploads", "2").status == 200
        after: Any = look.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1
    look.close()
