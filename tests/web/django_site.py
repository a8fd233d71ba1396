"""A Django site for the tests: configured once for the process, with the views of the suite and limited ones."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

MIDDLEWARE = "ratebound.web.django.RateLimitMiddleware"

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DEBUG=False,
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[MIDDLEWARE],
        SECRET_KEY="for tests",
        USE_TZ=True,
        LOGGING_CONFIG=None,
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
        REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    )
    django.setup()

Request = Any  # HttpRequest has no types here


@contextmanager
def site(ratebound: Any = None, **more: Any) -> Iterator[None]:
    """A site with these settings; the gate is made anew."""
    with override_settings(RATEBOUND=ratebound, **more):
        yield


def home(request: Request) -> Any:
    return HttpResponse("hello")


def user(request: Request, number: int) -> Any:
    return HttpResponse(f"user {number}")


def login(request: Request) -> Any:
    right = request.headers.get("x-password") == "right"
    return HttpResponse("welcome" if right else "no", status=200 if right else 401)


def stream(request: Request) -> Any:
    parts = (b"one", b"two", b"three")

    async def awaited() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return StreamingHttpResponse(awaited() if hasattr(request, "scope") else iter(parts))


def teapot(request: Request) -> Any:
    return HttpResponse("teapot", status=418, headers={"RateLimit": "mine", "X-Own": "yes"})


def queue(request: Request) -> Any:
    return HttpResponse("served")


def health(request: Request) -> Any:
    return HttpResponse("well")


def fail(request: Request) -> Any:
    raise ZeroDivisionError


def tokens(request: Request) -> Any:
    request.ratebound.charge(7)
    return HttpResponse("spent")


def cached(request: Request) -> Any:
    return HttpResponse("kept", headers={"Cache-Control": request.headers["x-cache"]})


def moved(request: Request) -> Any:
    return HttpResponseRedirect("/")


def form(request: Request) -> Any:
    request.ratebound.failed = request.headers.get("x-password") != "right"
    return HttpResponse("shown")


def secret(request: Request) -> Any:
    raise AssertionError


urlpatterns = [
    path("", home),
    path("users/<int:number>", user),
    path("login", login),
    path("stream", stream),
    path("teapot", teapot),
    path("queue", queue),
    path("health", health),
    path("fail", fail),
    path("tokens", tokens),
    path("form", form),
    path("secret", secret),
    path("cached", cached),
    path("moved", moved),
]

__all__ = ["MIDDLEWARE", "HttpRequest", "HttpResponse", "path", "site", "urlpatterns"]
