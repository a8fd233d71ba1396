"""Litestar: one line around the application limits all of it, unknown paths too, and nothing in it changes.

`uvicorn litestar_app:app` serves it; run as it is, it asks itself.
"""

import asyncio
from typing import Any

import httpx
from litestar import Litestar, Request, get
from litestar.params import FromPath

from ratebound.policy import Match, Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware


@get("/users/{id:int}")
async def user(id: FromPath[int], request: Request[Any, Any, Any]) -> dict[str, int]:
    return {"id": id, "left": request.state.ratebound.decision.remaining}


policy = Policy(
    rules=[
        Rule("users", "3/minute", match=Match(paths=["/users/{id}"])),
        Rule("rest", "100/minute", default=True),
    ]
)
app = RateLimitMiddleware(Litestar([user]), policy)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://example.com") as client:
        for path in ("/users/1", "/users/2", "/users/3", "/users/4", "/nowhere"):
            response = await client.get(path)
            print(f"GET {path}: {response.status_code}  {response.headers['ratelimit']}")


if __name__ == "__main__":
    asyncio.run(main())
