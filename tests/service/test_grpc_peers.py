"""gRPC with real clients over real sockets: grpcio, grpclib, h2, httpx and h2load, plain and over TLS."""

import asyncio
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpclib.client
import h2.config
import h2.connection
import h2.events
import h2.settings
import httpx
import pytest
import trustme
import uvloop

from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.grpc import RESOURCE_EXHAUSTED, GrpcCall, GrpcError, GrpcServer, health_methods
from ratebound.service.http2 import Http2Connection
from ratebound.service.http2_frames import DATA, GOAWAY
from tests.servers import HOST, needs, wait_until
from tests.service.http2_peer import frames_of, last_stream

TOKEN = "0123456789abcdef"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Test/Echo"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


async def slow(call: GrpcCall) -> bytes:
    await asyncio.sleep(0.01)
    return call.message


async def never(call: GrpcCall) -> bytes:
    await asyncio.sleep(1000)
    return b""


def denied(call: GrpcCall) -> bytes:
    raise GrpcError(RESOURCE_EXHAUSTED, "100% – zu viel")


METHODS: Any = {
    b"/test.Test/Echo": lambda call: call.message,
    b"/test.Test/Metadata": lambda call: json.dumps([[k.decode(), v.decode()] for k, v in call.metadata]).encode(),
    b"/test.Test/Large": lambda call: bytes(int(call.message)),
    b"/test.Test/Slow": slow,
    b"/test.Test/Never": never,
    b"/test.Test/Denied": denied,
    **health_methods(lambda: True),
}


@dataclass
class Served:
    """A server in a thread of its own."""

    port: int
    loop: asyncio.AbstractEventLoop
    connections: Connections

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def stop(self, seconds: float = 5) -> None:
        asyncio.run_coroutine_threadsafe(self.connections.stop(seconds), self.loop).result(20)


async def turns() -> None:
    """Let the event loop end what it has begun."""
    for _ in range(10):
        await asyncio.sleep(0)


@contextmanager
def serving_grpc(
    *, tokens: BearerTokens | None = None, context: ssl.SSLContext | None = None, on_uvloop: bool = True
) -> Iterator[Served]:
    """Serve METHODS until the end, when no connection may be left."""
    started: list[Served] = []
    ready = threading.Event()
    ending: list[asyncio.Event] = []

    async def main() -> None:
        connections = Connections(Bounds())
        server = GrpcServer(METHODS, tokens or BearerTokens())
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: Http2Connection(server.handle, connections), HOST, 0, ssl=context)
        end = asyncio.Event()
        ending.append(end)
        started.append(Served(listener.sockets[0].getsockname()[1], loop, connections))
        ready.set()
        await end.wait()
        listener.close()
        await turns()  # connections that were being accepted
        await connections.stop(5)
        await turns()  # connections that were refused

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if on_uvloop else None) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(ending[0].set)
        thread.join(20)
    assert not thread.is_alive()
    assert len(started[0].connections) == 0


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving_grpc(on_uvloop=request.param) as server:
        yield server


def unary(channel: Any, method: str, message: bytes = b"hello", **options: Any) -> bytes:
    call = channel.unary_unary(method if method.startswith("/") else f"/test.Test/{method}")
    answer: bytes = call(message, timeout=options.pop("timeout", 20), **options)
    return answer


def code_of(channel: Any, method: str, message: bytes = b"hello", **options: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, method, message, **options)
    return error.value.code(), error.value.details()


def test_grpcio_gets_replies_and_statuses(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        assert unary(channel, "Echo") == b"hello"
        assert unary(channel, "Echo", b"") == b""
        assert unary(channel, "Slow") == b"hello"
        assert unary(channel, "Echo", bytes(500_000)) == bytes(500_000)
        assert unary(channel, "Large", b"3000000") == bytes(3_000_000)
        assert unary(channel, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"
        assert code_of(channel, "Denied") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "100% – zu viel")
        assert code_of(channel, "Unknown")[0] == grpc.StatusCode.UNIMPLEMENTED
        assert code_of(channel, "Never", timeout=0.2)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
        assert code_of(channel, "Echo", bytes(2_000_000))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        compressed = code_of(channel, "Echo", bytes(1000), compression=grpc.Compression.Gzip)
        assert compressed[0] == grpc.StatusCode.UNIMPLEMENTED
        metadata = [("x-name", "value"), ("x-name", "other"), ("x-data-bin", b"\0\1")]
        told = json.loads(unary(channel, "Metadata", metadata=metadata))
        assert ["x-name", "value"] in told
        assert ["x-name", "other"] in told
        assert any(name == "x-data-bin" for name, _ in told)
        long = [("x-long", "x" * 20_000)]  # in CONTINUATION frames
        assert ["x-long", "x" * 20_000] in json.loads(unary(channel, "Metadata", metadata=long))
        assert unary(channel, "Echo") == b"hello"


def test_grpcio_with_many_calls_at_once(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel, ThreadPoolExecutor(32) as pool:
        calls = [
            (("Slow", "Echo")[i % 2], b"%d" % i, [("traceparent", f"00-{i:032x}-{i:016x}-01")] if i % 3 else None)
            for i in range(600)
        ]
        found = pool.map(lambda each: unary(channel, each[0], each[1], metadata=each[2]), calls)
        assert list(found) == [text for _, text, _ in calls]


def test_grpcio_is_answered_over_tls_on_both_event_loops() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", HOST).configure_cert(context)
    context.set_alpn_protocols(["h2"])
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    for on_uvloop in (True, False):
        with serving_grpc(context=context, on_uvloop=on_uvloop) as served:
            with grpc.secure_channel(f"localhost:{served.port}", credentials) as channel:
                assert unary(channel, "Echo") == b"hello"
                assert unary(channel, "Large", b"300000") == bytes(300_000)
            trusting = ssl.create_default_context()
            authority.configure_trust(trusting)
            with httpx.Client(http1=False, http2=True, verify=trusting, timeout=20) as client:
                response = client.post(
                    f"https://localhost:{served.port}/test.Test/Echo",
                    content=b"\0\0\0\0\1x",
                    headers={"content-type": "application/grpc", "te": "trailers"},
                )
                assert (response.http_version, response.content) == ("HTTP/2", b"\0\0\0\0\1x")


def test_grpcio_with_a_token() -> None:
    with serving_grpc(tokens=BearerTokens([TOKEN])) as served, grpc.insecure_channel(served.address) as channel:
        assert code_of(channel, "Echo")[0] == grpc.StatusCode.UNAUTHENTICATED
        assert unary(channel, "Echo", metadata=[("authorization", f"Bearer {TOKEN}")]) == b"hello"
        assert unary(channel, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"


def test_grpcio_finds_another_connection_after_the_server_has_said_goodbye(served: Served) -> None:
    """A channel that was told to go away connects again, and no call is lost."""
    with grpc.insecure_channel(served.address) as channel, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(unary, channel, "Slow", b"%d" % i, wait_for_ready=True) for i in range(400)]
        for _ in range(5):
            calls[0].result(20)
            served.loop.call_soon_threadsafe(finish_all, served.connections)
            calls = [*calls[1:], pool.submit(unary, channel, "Slow", b"last", wait_for_ready=True)]
        for each in calls:
            each.result(30)


def finish_all(connections: Connections) -> None:
    for connection in list(connections._open):
        connection.finish()


def test_grpclib_gets_replies_and_statuses(served: Served) -> None:
    class Raw(grpclib.client.CodecBase):  # type: ignore[misc]
        __content_subtype__ = "proto"

        def encode(self, message: bytes, message_type: Any) -> bytes:
            return message

        def decode(self, data: bytes, message_type: Any) -> bytes:
            return data

    async def main() -> None:
        channel = grpclib.client.Channel(HOST, served.port, codec=Raw())
        try:
            for name in ("Echo", "Slow"):
                method = grpclib.client.UnaryUnaryMethod(channel, f"/test.Test/{name}", bytes, bytes)
                answers = await asyncio.gather(*(method(b"%d" % i, timeout=20) for i in range(100)))
                assert answers == [b"%d" % i for i in range(100)]
            with pytest.raises(grpclib.GRPCError) as error:
                await grpclib.client.UnaryUnaryMethod(channel, "/test.Test/Denied", bytes, bytes)(b"x")
            assert error.value.status == grpclib.const.Status.RESOURCE_EXHAUSTED
            assert error.value.message == "100% – zu viel"
        finally:
            channel.close()
            await turns()

    asyncio.run(main())


class StrictPeer:
    """The h2 library on a socket: it raises whatever the server does against the protocol."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=20)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events: list[Any] = []
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def until(self, kind: type, stream: int | None = None) -> Any:
        """Read until an event of a kind comes, on a stream if one is named."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream in (None, getattr(event, "stream_id", None)):
                    self.events.remove(event)
                    return event
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self.events += self.h2.receive_data(data)
            self.flush()

    def call(self, body: bytes, headers: list[tuple[str, str]] = HEADERS) -> int:
        stream: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, headers)
        self.h2.send_data(stream, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
        self.flush()
        return stream


@pytest.fixture
def strict(served: Served) -> Iterator[StrictPeer]:
    peer = StrictPeer(served.port)
    try:
        yield peer
    finally:
        peer.socket.close()


def test_h2_accepts_everything_that_the_server_sends(strict: StrictPeer) -> None:
    for text in (b"one", b"two", b"three"):
        stream = strict.call(text)
        assert dict(strict.until(h2.events.ResponseReceived, stream).headers)[":status"] == "200"
        assert strict.until(h2.events.DataReceived, stream).data[5:] == text
        assert dict(strict.until(h2.events.TrailersReceived, stream).headers) == {"grpc-status": "0"}
        strict.until(h2.events.StreamEnded, stream)
    assert strict.h2.remote_settings.header_table_size == 0
    assert strict.h2.remote_settings.max_concurrent_streams == Bounds().pending


def test_h2_opens_its_window_in_small_steps(strict: StrictPeer) -> None:
    strict.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    strict.flush()
    strict.until(h2.events.SettingsAcknowledged)
    stream = strict.call(b"200000", [*HEADERS[:2], (":path", "/test.Test/Large"), *HEADERS[3:]])
    received = 0
    while received < 200_005:
        data = strict.until(h2.events.DataReceived, stream)
        received += len(data.data)
        strict.h2.acknowledge_received_data(data.flow_controlled_length, stream)
        strict.flush()
    strict.until(h2.events.StreamEnded, stream)


def test_h2_pings_resets_and_says_goodbye(strict: StrictPeer, served: Served) -> None:
    strict.h2.ping(b"12345678")
    strict.flush()
    assert strict.until(h2.events.PingAckReceived).ping_data == b"12345678"
    stream = strict.call(b"", [*HEADERS[:2], (":path", "/test.Test/Never"), *HEADERS[3:]])
    strict.h2.reset_stream(stream)
    slow = strict.call(b"x", [*HEADERS[:2], (":path", "/test.Test/Slow"), *HEADERS[3:]])
    strict.until(h2.events.StreamEnded, slow)
    strict.h2.close_connection()
    strict.flush()


def test_h2_is_told_the_last_stream_and_gets_its_answer_before_the_end(strict: StrictPeer, served: Served) -> None:
    stream = strict.call(b"x", [*HEADERS[:2], (":path", "/test.Test/Slow"), *HEADERS[3:]])
    strict.h2.ping(bytes(8))
    strict.flush()
    strict.until(h2.events.PingAckReceived)
    stopping = threading.Thread(target=served.stop)
    stopping.start()
    said = strict.until(h2.events.ConnectionTerminated)
    assert (said.error_code, said.last_stream_id) == (0, 2**31 - 1)
    data = b""
    while part := strict.socket.recv(65536):  # h2 itself reads nothing after a GOAWAY
        data += part
    frames = frames_of(data)
    assert [last_stream(sent) for sent in frames if sent.kind == GOAWAY] == [stream]
    told = [event.data for event in strict.events if isinstance(event, h2.events.DataReceived)]
    told += [sent.payload for sent in frames if sent.kind == DATA]
    assert b"".join(told)[5:] == b"x"
    strict.socket.close()
    stopping.join(20)
    assert len(served.connections) == 0


def test_httpx_with_prior_knowledge(served: Served) -> None:
    with httpx.Client(http1=False, http2=True, timeout=20) as client:
        url = f"http://{served.address}/test.Test/Echo"
        headers = {"content-type": "application/grpc", "te": "trailers"}
        for i in range(20):
            assert client.post(url, content=b"\0\0\0\0\1%c" % i, headers=headers).content == b"\0\0\0\0\1%c" % i
        assert client.post(url, content=b"{}", headers={"content-type": "application/json"}).status_code == 415
        assert client.get(url).status_code == 405


def test_a_client_of_http_1_is_refused(served: Served) -> None:
    with socket.create_connection((HOST, served.port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while part := client.recv(65536):
            data += part
    assert b"this is not HTTP/2" in data


def test_h2load_has_no_failed_call(served: Served, tmp_path: Path) -> None:
    needs("h2load")
    body = tmp_path / "body"
    body.write_bytes(b"\0\0\0\0\5hello")
    options = ["-n", "4000", "-c", "8", "-m", "32", "-d", str(body), "-T", "20"]
    grpc_headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    for method in ("Echo", "Slow"):
        url = f"http://{served.address}/test.Test/{method}"
        done = subprocess.run(["h2load", *options, *grpc_headers, url], capture_output=True, text=True, timeout=60)
        assert "4000 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout
        assert "4000 2xx" in done.stdout


def test_curl(served: Served, tmp_path: Path) -> None:
    needs("curl")
    body = tmp_path / "body"
    body.write_bytes(b"\0\0\0\0\5hello")
    command = ["curl", "-sS", "--http2-prior-knowledge", "--data-binary", f"@{body}", "--include", "--max-time", "20"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run([*command, f"http://{served.address}/test.Test/Echo"], capture_output=True, timeout=60)
    if b"the installed libcurl version does not support this" in done.stderr:
        pytest.skip("this curl has no HTTP/2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"HTTP/2 200")
    assert b"\0\0\0\0\5hello" in done.stdout
    assert b"grpc-status: 0" in done.stdout


def test_a_peer_that_does_not_read_is_aborted(served: Served, strict: StrictPeer) -> None:
    """It asks for more and more, and reads nothing: the server stops to read, then gives up."""
    strict.until(h2.events.RemoteSettingsChanged)
    strict.h2.increment_flow_control_window(2**30)
    strict.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    strict.flush()
    large = [*HEADERS[:2], (":path", "/test.Test/Large"), *HEADERS[3:]]
    for _ in range(50):
        strict.call(b"3000000", large)
    (connection,) = served.connections._open
    assert isinstance(connection, Http2Connection)
    wait_until(lambda: connection._is_paused, 20, "the server notices that nobody reads")
    assert connection._transport.get_write_buffer_size() < 1_000_000
    served.loop.call_soon_threadsafe(lambda: served.connections.expire(served.loop.time() + 11))
    wait_until(lambda: len(served.connections) == 0, 20, "the connection is closed")
