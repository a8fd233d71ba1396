"""Starlette and pure ASGI."""

from typing import Any, Literal, assert_type

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import Scope

from ratebound.web import AsyncWebGate, Operator
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


async def is_operator(request: Request) -> Operator | None:
    return Operator("ann", "read")


def of_scope(scope: Scope) -> Literal["read", "write"] | None:
    return "write" if scope["client"] else None


limited = RateLimitMiddleware(Starlette(routes=[Mount("/limits", limits.dashboard(auth=is_operator))]), "5/minute")
served = limited.with_dashboard("/all-limits", auth=of_scope)
beside = Starlette(routes=[Mount("/limits", limited.dashboard(auth=of_scope)), Mount("/", served)])


async def calls(request: Request) -> None:
    assert_type(await home(request), PlainTextResponse)
    page: type[Page] = Page
    assert_type(await page({}, _receive, _send).post(request), PlainTextResponse)


async def _receive() -> dict[str, Any]:
    return {}


async def _send(message: Any) -> None: ...
