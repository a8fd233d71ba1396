"""Starlette, or anything that speaks ASGI: one line around the application, and nothing in it changes."""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratebound.web.asgi import RateLimitMiddleware


async def home(request: Request) -> PlainTextResponse:
    left = request.state.ratebound.decision.remaining
    return PlainTextResponse(f"hello, {left} left")


app = RateLimitMiddleware(Starlette(routes=[Route("/", home)]), "3/minute", headers=["draft-11", "x-ratelimit"])


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://example.com") as client:
        for _ in range(4):
            response = await client.get("/")
            print(response.status_code, response.headers["x-ratelimit-remaining"], response.text)


if __name__ == "__main__":
    asyncio.run(main())
