"""Servers that the service is measured against. Each answers a constant, or echoes.

python -m benchmarks.service_peers KIND PORT [REDIS POLICY]
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CONSTANT = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n"
METHOD = "envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit"
OK = b"\x08\x01"  # a RateLimitResponse that says OK


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer a constant over ASGI."""
    if scope["type"] == "http":
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


def serve_uvicorn(port: int) -> None:
    """Answer a constant by uvicorn, as fast as it can be told to."""
    import uvicorn

    uvicorn.run(
        application,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="critical",
    )


def serve_grpcio(port: int) -> None:
    """Echo by grpcio with four threads."""
    import grpc

    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((_echo(grpc, lambda message, _: message),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def serve_grpcio_aio(port: int) -> None:
    """Echo by grpcio's asyncio server."""
    import grpc.aio

    async def echo(message: bytes, _: Any) -> bytes:
        return message

    async def main() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_echo(grpc, echo),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


def _echo(grpc: Any, function: Any) -> Any:
    service, method = METHOD
    return grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(function)})


def serve_http(port: int) -> None:
    """Answer a constant by the service's own HTTP protocol."""
    from ratebound.service.connections import Bounds, Connections
    from ratebound.service.http1 import Http1Connection, response

    answer = response(200, [("content-type", "application/json")], b"{}")

    async def main() -> None:
        connections = Connections(Bounds())
        await _listen(lambda: Http1Connection(lambda request: answer, connections), port)

    _run(main())


def serve_grpc(port: int) -> None:
    """Answer a constant by the service's own gRPC server."""
    from ratebound.service.bearer_tokens import BearerTokens
    from ratebound.service.connections import Bounds, Connections
    from ratebound.service.grpc import GrpcServer
    from ratebound.service.http2 import Http2Connection

    async def main() -> None:
        connections = Connections(Bounds())
        server = GrpcServer({f"/{METHOD[0]}/{METHOD[1]}".encode(): lambda call: OK}, BearerTokens())
        await _listen(lambda: Http2Connection(server.handle, connections), port)

    _run(main())


class ConstantSession:
    """A connection that may ask for anything, and goes on."""

    is_allowed = True
    is_ending = False


class ConstantCommands:
    """Commands that all have one answer."""

    new_session = ConstantSession

    def answer(self, session: ConstantSession, command: list[bytes]) -> bytes:
        """Return the constant."""
        return CONSTANT


def serve_resp(port: int) -> None:
    """Answer a constant by the service's own RESP protocol."""
    from ratebound.service.connections import Bounds, Connections
    from ratebound.service.resp import RespConnection

    async def main() -> None:
        connections = Connections(Bounds())
        commands: Any = ConstantCommands()
        await _listen(lambda: RespConnection(commands, connections), port)

    _run(main())


def serve_checks(port: int, url: str, policy: str, *, collected: bool) -> None:
    """Answer checks of proxies on Redis, with calls that are collected or that are sent one by one."""
    from ratebound.policy import load_policy
    from ratebound.service.check import ProxyCheck
    from ratebound.service.connections import Bounds, Connections
    from ratebound.service.engine import Engine
    from ratebound.service.http1 import Http1Connection
    from ratebound.storage.urls import open_async_storage

    async def main() -> None:
        connections = Connections(Bounds())
        engine = Engine(load_policy(policy), storage=url if collected else open_async_storage(url))
        check = ProxyCheck(engine)
        await _listen(lambda: Http1Connection(check, connections), port)

    _run(main())


async def _listen(make: Any, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port)
    await server.serve_forever()


def _run(main: Any) -> None:
    import uvloop

    uvloop.install()
    asyncio.run(main)


PEERS = {
    "uvicorn": serve_uvicorn,
    "grpcio": serve_grpcio,
    "grpcio-aio": serve_grpcio_aio,
    "http": serve_http,
    "grpc": serve_grpc,
    "resp": serve_resp,
}

if __name__ == "__main__":
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind in ("collected", "pipelined"):
        serve_checks(port, *sys.argv[3:], collected=kind == "collected")
    else:
        PEERS[kind](port)
