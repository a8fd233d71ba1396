"""A request that is cancelled, as servers do when a client goes, ends for itself alone: in both builds."""

import asyncio
from typing import Any

from ratebound.web.asgi import RateLimitMiddleware


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/hangs":
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


def test_other_requests_do_not_notice() -> None:
    async def main() -> int:
        limited = RateLimitMiddleware(RateLimitMiddleware(app, "unlimited"), "unlimited")
        answered = 0

        async def send(message: Any) -> None:
            nonlocal answered
            answered += message["type"] == "http.response.body"

        def scope(path: str) -> Any:
            return {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("192.0.2.1", 1)}

        for _ in range(20):
            task = asyncio.create_task(limited(scope("/hangs"), None, send))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            await limited(scope("/"), None, send)
        return answered

    assert asyncio.run(main()) == 20
