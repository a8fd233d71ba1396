"""The dashboard among the URLs of a Django site."""

from tests.web.django_site import HttpResponse, path, site  # first: it makes the settings

# isort: split
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.urls import include

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from ratebound.web.django import Operator, configured_limits, dashboard, staff_operator
from ratebound.web.django.configuration import DASHBOARDS
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.suite import Client

OURS = "ratebound.web.django.RateLimitMiddleware"
READ = {"x-role": "read"}
EARLY_AND_REST = {
    "rules": [
        {"name": "flood", "limits": "1/hour", "by": "address", "stage": "early"},
        {"name": "rest", "limits": "1/hour", "by": "address", "default": True},
    ]
}


def is_operator(request: Any) -> Any:
    return request.headers.get("X-Role")


@contextmanager
def serving(
    kind: str, urls: list[Any], policy: Any = EARLY_AND_REST, middleware: Any = (OURS,), **settings: Any
) -> Iterator[Client]:
    options = {"policy": policy, "storage": MemoryStorage(clock=FakeClock())}
    with site(options, ROOT_URLCONF=type("Urls", (), {"urlpatterns": urls}), MIDDLEWARE=[*middleware], **settings):
        client = wsgi_client(WSGIHandler()) if kind == "wsgi" else asgi_client(ASGIHandler())
        try:
            yield client
        finally:
            getattr(client, "close", int)()


def statuses(send: Client, *paths: str, **headers: str) -> list[int]:
    return [send("GET", one, headers or READ).status for one in paths]


def hello(request: Any) -> Any:
    return HttpResponse("hello")


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("prefix", ["", "limits/", "admin/limits/", "<str:tenant>/limits/"])
def test_wherever_it_stands_it_is_not_limited(kind: str, prefix: str) -> None:
    with serving(kind, [path(prefix, dashboard(auth=is_operator))]) as send:
        below = prefix.replace("<str:tenant>", "acme")
        paths = [f"/{below}{file}" for file in ("", "dashboard.js", "api/session") * 2]
        assert statuses(send, *paths) == [200] * 6


def test_in_an_included_urlconf(kind: str) -> None:
    with serving(kind, [path("admin/", include([path("limits/", dashboard(auth=is_operator))]))]) as send:
        assert statuses(send, "/admin/limits/", "/admin/limits/api/session") == [200, 200]


def test_below_a_script_name() -> None:
    with serving("wsgi", [path("limits/", dashboard(auth=is_operator))]) as send:
        assert statuses(send, *[f"/shop|/limits/{file}" for file in ("", "dashboard.js", "api/session")]) == [200] * 3


def test_the_slash_that_is_missing(kind: str) -> None:
    with serving(kind, [path("limits", dashboard(auth=is_operator))]) as send:
        moved = send("GET", "/limits", READ)
        assert (moved.status, dict(moved.headers)["location"]) == (308, "./limits/")
        assert statuses(send, "/limits/", "/limits/api/session") == [200, 200]


async def operator_async(request: Any) -> Any:
    return is_operator(request)


def refuse(request: Any) -> Any:
    raise PermissionDenied


def test_auth_may_be_async_and_may_raise(kind: str) -> None:
    urls = [path("limits/", dashboard(auth=operator_async)), path("closed/", dashboard(auth=refuse))]
    with serving(kind, urls) as send:
        assert statuses(send, "/limits/", "/closed/", "/closed/") == [200, 403, 403]


class Refusing:
    """A middleware that answers by itself, in front of the view or in its place."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        if request.headers.get("X-Refuse") == "early":
            return HttpResponse("no", status=401)
        return self.get_response(request)

    def process_view(self, request: Any, *_: Any) -> Any:
        return HttpResponse("no", status=401) if request.headers.get("X-Refuse") == "view" else None


@pytest.mark.parametrize("when", ["early", "view"])
@pytest.mark.parametrize("policy", ["2/hour", {"rules": [{"name": "flood", "limits": "2/hour", "stage": "early"}]}])
def test_the_answer_of_a_middleware_in_place_of_the_dashboard_is_limited(kind: str, policy: Any, when: str) -> None:
    middleware = [OURS, f"{__name__}.Refusing"]
    with serving(kind, [path("limits/", dashboard(auth=is_operator))], policy, middleware) as send:
        assert statuses(send, *["/limits/"] * 4, **{"x-refuse": when}) == [401, 401, 429, 429]
        assert statuses(send, *["/limits/"] * 3) == [200] * 3


class Rewriting:
    """A middleware that routes requests by a header."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.path_info = request.headers.get("X-Rewrite-Url", request.path_info)
        return self.get_response(request)


@pytest.mark.parametrize("policy", ["1/hour", EARLY_AND_REST])
def test_a_middleware_that_changes_the_path_opens_no_way_around_limits(kind: str, policy: Any) -> None:
    urls = [path("x", hello), path("limits/", dashboard(auth=is_operator))]
    with serving(kind, urls, policy, [OURS, f"{__name__}.Rewriting"]) as send:
        assert statuses(send, *["/limits/"] * 3, **{**READ, "x-rewrite-url": "/x"}) == [200, 429, 429]
        assert statuses(send, *["/limits/"] * 3) == [200] * 3


def test_only_the_very_view_is_spared(kind: str) -> None:
    urls, name, namespace = dashboard(auth=is_operator)
    ordinary = urls[0].callback

    def wrapped(request: Any) -> Any:
        return ordinary(request, "")

    wrapped.csrf_exempt = True  # type: ignore[attr-defined]
    with serving(kind, [path("limits/", wrapped)], "1/hour") as send:
        assert statuses(send, "/limits/", "/limits/") == [200, 429]
    assert (name, namespace) == ("ratebound", "ratebound")
    assert ordinary in DASHBOARDS


def test_without_a_dashboard_in_its_urls_a_site_counts_no_figures(kind: str) -> None:
    dashboard(auth=is_operator)
    with serving(kind, [path("x", hello)]) as send:
        assert statuses(send, "/x") == [200]
        assert configured_limits().gate.figures is None
    with serving(kind, [path("limits/", dashboard(auth=is_operator))]):
        assert configured_limits().gate.figures is not None  # from the start


@pytest.mark.parametrize(
    ("user", "operator"),
    [
        (AnonymousUser(), None),
        (User(username="ann"), None),
        (User(username="ann", is_superuser=True), None),
        (User(username="ann", is_staff=True, is_active=False), None),
        (User(username="ann", is_staff=True), Operator("ann", "read")),
        (User(username="ann", is_staff=True, is_superuser=True), Operator("ann", "write")),
    ],
    ids=str,
)
def test_staff_may_look_and_superusers_may_act(user: Any, operator: Any) -> None:
    assert staff_operator(type("Request", (), {"user": user})) == operator


def test_staff_needs_users() -> None:
    with pytest.raises(ImproperlyConfigured, match="put AuthenticationMiddleware into MIDDLEWARE"):
        staff_operator(object())
