"""How many Python functions a warm plain request calls: one rule, by address, in memory, headers on, nothing to settle.

Counted are `call` events of sys.setprofile between the adapter being called and its return, of functions in the
package `ratebound` and of the application that stands for the user's own in this file: its handler, its `receive` and
`send`, or its `start_response`. Functions of the frameworks and of the standard library are not counted. In Python 3.11
a list comprehension is a call as well, from 3.12 on it is not.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask

import ratebound
from ratebound import MemoryStorage
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.django_site import site
from tests.web.drivers import environ_of, http_scope

WARM = 5  # requests before the one that is counted
PACKAGE = str(Path(ratebound.__file__).parent)
COUNTED = (PACKAGE, __file__)
LIMIT = "1000000/minute"


def still() -> MemoryStorage:
    """Return a storage whose clock stands still, or a sweep would be counted now and then."""
    return MemoryStorage(clock=partial(int, 1_000_000_000_000_000))  # no Python function, so it is not counted


def counting(calls: "Counter[str]") -> Callable[[FrameType, str, Any], None]:
    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(COUNTED):
            calls[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"] += 1

    return profile


def asgi_calls(app: Any) -> "Counter[str]":
    calls: Counter[str] = Counter()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    async def run() -> None:
        for _ in range(WARM):
            await app(http_scope("GET", "/"), receive, send)
        scope = http_scope("GET", "/")
        sys.setprofile(counting(calls))
        try:
            await app(scope, receive, send)
        finally:
            sys.setprofile(None)

    asyncio.run(run())
    return calls


def wsgi_calls(app: Any) -> "Counter[str]":
    calls: Counter[str] = Counter()

    def start_response(*_: Any) -> None:
        pass

    for _ in range(WARM):
        list(app(environ_of("GET", "/"), start_response))
    environ = environ_of("GET", "/")
    sys.setprofile(counting(calls))
    try:
        app(environ, start_response)
    finally:
        sys.setprofile(None)
    return calls


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_asgi_middleware() -> None:
    calls = asgi_calls(RateLimitMiddleware(plain, LIMIT, storage=still()))
    assert sum(calls.values()) <= 30, calls


def test_fastapi() -> None:
    app = FastAPI()
    RateLimits(LIMIT, app=app, storage=still())

    @app.get("/")
    async def home() -> str:
        return "ok"

    calls = asgi_calls(app)
    assert sum(calls.values()) <= 38, calls


def test_fastapi_with_a_limit_of_the_endpoint() -> None:
    app = FastAPI()
    limits = RateLimits(app=app, storage=still())

    @app.get("/")
    @limits.limit(LIMIT)
    async def home() -> str:
        return "ok"

    calls = asgi_calls(app)
    assert sum(calls.values()) <= 41, calls


def test_wsgi_middleware() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    calls = wsgi_calls(WsgiMiddleware(app, LIMIT, storage=still()))
    assert sum(calls.values()) <= 28, calls


def test_flask() -> None:
    app = Flask("counted")
    FlaskLimits(app, LIMIT, storage=still())

    @app.get("/")
    def home() -> str:
        return "ok"

    calls = wsgi_calls(app)
    assert sum(calls.values()) <= 25, calls


def home(request: Any) -> Any:
    return HttpResponse("ok")


urlpatterns = [path("", home)]


def test_django() -> None:
    with site({"policy": LIMIT, "storage": still()}, ROOT_URLCONF=__name__):
        calls = wsgi_calls(WSGIHandler())
    assert sum(calls.values()) <= 38, calls
