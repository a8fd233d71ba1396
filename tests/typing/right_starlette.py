"""Starlette and pure ASGI."""

from typing import Any, assert_type

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratebound.web import AsyncWebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits

limits = RateLimits(["100/minute", "1000/hour"])


@limits.limit("5/minute")
async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


@limits.limit("5/minute", name="pages")
class Page(HTTPEndpoint):
    @limits.limit("1/minute")
    async def post(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("page")


app = Starlette(
    routes=[Route("/", home), Route("/page", Page)],
    middleware=[
        Middleware(RateLimitMiddleware, policy="5/minute"),
        Middleware(RateLimitMiddleware, gate=AsyncWebGate("5/minute", workers=4)),
    ],
)
limits.install(app)
app.add_middleware(RateLimitMiddleware, policy="5/minute", headers="x-ratelimit", workers=2)
wrapped = RateLimitMiddleware(app, "100/minute", user=lambda scope: scope.get("user"))


async def calls(request: Request) -> None:
    assert_type(await home(request), PlainTextResponse)
    page: type[Page] = Page
    assert_type(await page({}, _receive, _send).post(request), PlainTextResponse)


async def _receive() -> dict[str, Any]:
    return {}


async def _send(message: Any) -> None: ...
