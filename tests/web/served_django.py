"""The same site in Django, for WSGI and for ASGI."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import path

from ratebound.web.django import dashboard, limit

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests",
    MIDDLEWARE=["ratebound.web.django.RateLimitMiddleware"],
    RATEBOUND={
        "policy": "20/hour",
        "storage": os.environ.get("RATEBOUND_TEST_STORAGE", "memory://"),
        "deadline": 0.25,
        "trusted": ["127.0.0.1"],
    },
)
django.setup()


def home(request: Any) -> Any:
    return HttpResponse(os.getpid())


@limit("3/hour")
def user(request: Any, number: int) -> Any:
    return HttpResponse(number)


@limit("5/minute", charge="failure")
def login(request: Any) -> Any:
    time.sleep(0.02)
    return HttpResponse("no", status=401)


def stream(request: Any) -> Any:
    async def parts() -> AsyncIterator[str]:
        for part in ("one", "two", "three"):
            yield part

    return StreamingHttpResponse(parts() if hasattr(request, "scope") else iter(["one", "two", "three"]))


@limit("3/hour", charge="failure", name="endless")
def endless(request: Any) -> Any:
    def parts() -> Iterator[str]:
        while True:
            yield "part " * 20
            time.sleep(0.02)

    async def awaited() -> AsyncIterator[str]:
        while True:
            yield "part " * 20
            await asyncio.sleep(0.02)

    return StreamingHttpResponse(awaited() if hasattr(request, "scope") else parts())


@limit("2 concurrent", name="exports")
def exports(request: Any) -> Any:
    return endless.__wrapped__(request)  # type: ignore[attr-defined]


@limit("2 concurrent", name="download")
def download(request: Any) -> Any:
    return FileResponse(Path(__file__).open("rb"))


urlpatterns = [
    path("exports", exports),
    path("download", download),
    path("", home),
    path("users/<int:number>", user),
    path("login", login),
    path("stream", stream),
    path("endless", endless),
]
if os.environ.get("RATEBOUND_TEST_DASHBOARD"):
    urlpatterns.append(path("limits/", dashboard(auth=lambda request: request.headers.get("x-role"))))
application = get_wsgi_application()
asgi_application = get_asgi_application()
