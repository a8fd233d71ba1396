"""The server of the load test benchmark: it answers a constant, faster than any of the senders asks.

python -m benchmarks.loadtest_server PORT
"""

import asyncio
import sys
from typing import Any

ANSWER = (
    b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nRateLimit: "all";r=42;t=7\r\n'
    b'RateLimit-Policy: "all";q=100;w=60\r\n\r\nok'
)


class Constant(asyncio.Protocol):
    """A connection that answers each request with the same bytes."""

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer all requests that have come."""
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


async def serve(port: int) -> None:
    """Serve until the process is killed."""
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
