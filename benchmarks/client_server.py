"""The server of the client benchmark. It counts its answers, and GET /counts returns and forgets the counts.

python -m benchmarks.client_server PORT outage|well|LIMITS

`outage` answers 503 to everything and `well` 200. Limits, for example "200/second burst 200", are kept by our own
middleware. Nothing here counts or limits GET /counts.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import Any

COUNTS = "/counts"


class PlainServer(asyncio.Protocol):
    """Answers every request with one status: as little work as Python can do."""

    def __init__(self, status: int, counts: Counter[int]) -> None:
        self._status = status
        self._counts = counts
        self._answer = _response(status, b"ok")
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer all requests that are complete. They have no bodies."""
        *requests, self._unread = (self._unread + data).split(b"\r\n\r\n")
        for request in requests:
            if request.startswith(b"GET /counts "):
                self._transport.write(_response(200, json.dumps(self._counts).encode()))
                self._counts.clear()
            else:
                self._counts[self._status] += 1
                self._transport.write(self._answer)


def _response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Told\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def serve_plainly(port: int, status: int) -> None:
    """Serve until this process is ended."""
    counts: Counter[int] = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: PlainServer(status, counts), "127.0.0.1", port)
    await server.serve_forever()


class Counting:
    """An ASGI application that counts the statuses of another one."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._counts: Counter[int] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == COUNTS:
            await answer(send, json.dumps(self._counts).encode())
            self._counts.clear()
            return

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._counts[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)


async def answer(send: Any, body: bytes) -> None:
    """Answer 200 with a body."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def well(scope: Any, receive: Any, send: Any) -> None:
    """Answer 200: an ASGI application."""
    if scope["type"] == "http":
        await answer(send, b"ok")


def limited(limits: str) -> Any:
    """Return an application behind our middleware."""
    from ratebound.web.asgi import RateLimitMiddleware

    return Counting(RateLimitMiddleware(well, limits))


if __name__ == "__main__":
    at, kind = int(sys.argv[1]), sys.argv[2]
    if kind in ("outage", "well"):
        asyncio.run(serve_plainly(at, 503 if kind == "outage" else 200))
    else:
        import uvicorn

        uvicorn.run(limited(kind), host="127.0.0.1", port=at, log_level="critical")
