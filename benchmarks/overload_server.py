"""The server of the overload benchmark: each request needs one of a few connections to a backend for a while.

python -m benchmarks.overload_server PORT no|auto
"""

import asyncio
import sys
from random import uniform
from typing import Any

CONNECTIONS = 10
SECONDS = 0.05  # that a request needs a connection, half more or less
CAPACITY = CONNECTIONS / SECONDS


class Application:
    """An ASGI application whose work is a wait for its backend."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        async with self._free:
            await asyncio.sleep(uniform(SECONDS / 2, SECONDS * 1.5))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def application(concurrent: str) -> Any:
    """Return the application, with `concurrent: auto` around it or without."""
    from ratebound.web.asgi import RateLimitMiddleware

    return RateLimitMiddleware(Application(), "unlimited", concurrent="auto") if concurrent == "auto" else Application()


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(application(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
