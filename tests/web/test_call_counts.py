"""How many Python functions a warm plain request calls: one rule, by address, in memory, headers on, nothing to settle.

Counted are `call` events of sys.setprofile between the adapter being called and its return, of functions in the
package `ratebound` and of the application that stands for the user's own in this file: its handler, its `receive` and
`send`, or its `start_response`. Functions of the frameworks and of the standard library are not counted. In Python 3.11
a list comprehension is a call as well, from 3.12 on it is not. The least of several requests counts: now and then the
memory sweeps, which is not a request's.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask

import ratebound
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.django_site import site
from tests.web.drivers import environ_of, http_scope

REQUESTS = 10
PACKAGE = str(Path(ratebound.__file__).parent)
COUNTED = (PACKAGE, __file__)
LIMIT = "1000000/minute"


def counting(calls: "Counter[str]") -> Callable[[FrameType, str, Any], None]:
    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(COUNTED):
            calls[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"] += 1

    return profile


def asgi_calls(app: Any) -> "Counter[str]":
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    async def count() -> Counter[str]:
        calls: Counter[str] = Counter()
        scope = http_scope("GET", "/")
        sys.setprofile(counting(calls))
        try:
            await app(scope, receive, send)
        finally:
            sys.setprofile(None)
        return calls

    async def run() -> list[Counter[str]]:
        return [await count() for _ in range(REQUESTS)]

    return min(asyncio.run(run()), key=Counter.total)


def wsgi_calls(app: Any) -> "Counter[str]":
    def start_response(*_: Any) -> None:
        pass

    def count() -> Counter[str]:
        calls: Counter[str] = Counter()
        environ = environ_of("GET", "/")
        sys.setprofile(counting(calls))
        try:
            app(environ, start_response)
        finally:
            sys.setprofile(None)
        return calls

    return min((count() for _ in range(REQUESTS)), key=Counter.total)


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_asgi_middleware() -> None:
    calls = asgi_calls(RateLimitMiddleware(plain, LIMIT))
    assert calls.total() <= 28, calls


def test_fastapi() -> None:
    app = FastAPI()
    RateLimits(LIMIT, app=app)

    @app.get("/")
    async def home() -> str:
        return "ok"

    calls = asgi_calls(app)
    assert calls.total() <= 31, calls


def test_fastapi_with_a_limit_of_the_endpoint() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit(LIMIT)
    async def home() -> str:
        return "ok"

    calls = asgi_calls(app)
    assert calls.total() <= 34, calls


def test_wsgi_middleware() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    calls = wsgi_calls(WsgiMiddleware(app, LIMIT))
    assert calls.total() <= 23, calls


def test_flask() -> None:
    app = Flask("counted")
    FlaskLimits(app, LIMIT)

    @app.get("/")
    def home() -> str:
        return "ok"

    calls = wsgi_calls(app)
    assert calls.total() <= 23, calls


def home(request: Any) -> Any:
    return HttpResponse("ok")


urlpatterns = [path("", home)]


def test_django() -> None:
    with site(LIMIT, ROOT_URLCONF=__name__):
        calls = wsgi_calls(WSGIHandler())
    assert calls.total() <= 38, calls
