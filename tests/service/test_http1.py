"""HTTP/1.1: order, connections that stay open or end, bounds, what looks like smuggling, and peers that misbehave."""

import asyncio
import gc
import logging
import random
import socket
import struct
import warnings
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.http1 import PART, Answer, Http1Connection, HttpRequest, response
from ratebound.service.routes import ServiceRoutes
from tests.service.http_calls import HOST, Loops, Running, exchanged, listening, run


@pytest.fixture(scope="module", params=["asyncio", "uvloop"], autouse=True)
def _loops(request: pytest.FixtureRequest) -> Iterator[None]:
    Loops.factory = uvloop.new_event_loop if request.param == "uvloop" else None
    yield
    Loops.factory = None


def echo(request: HttpRequest) -> Answer:
    """Answer at once, or later for targets that say so."""
    if request.target.startswith(b"/later"):
        return _later(request)
    if request.target.startswith(b"/raise"):
        raise RuntimeError("a mistake in a handler")
    return _echoed(request)


async def _later(request: HttpRequest) -> bytes:
    turns = request.target.partition(b"?")[2]
    for _ in range(int(turns) if turns.isdigit() and len(turns) == 1 else 1):
        await asyncio.sleep(0)
    if request.target.startswith(b"/later-raise"):
        raise RuntimeError("a mistake in a handler")
    if request.target.startswith(b"/later-cancel"):
        raise asyncio.CancelledError
    return _echoed(request)


def _echoed(request: HttpRequest) -> bytes:
    names = ",".join(name.decode() for name, _ in request.headers)
    return response(200, [("x-names", names)], b"%b %b %b." % (request.method.encode(), request.target, request.body))


def get(target: str, *lines: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/{version}", *lines, "", ""]).encode("latin-1")


def post(target: str, body: bytes, *lines: str) -> bytes:
    return get(target, f"Content-Length: {len(body)}", *lines, method="POST") + body


def chunked(target: str, *chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return get(target, "Transfer-Encoding: chunked", method="POST") + sent + end


def bodies(raw: bytes) -> list[bytes]:
    """The bodies of the answers, in order. Each must be whole, with no byte between them."""
    return [body for _, _, body in answers(raw)]


def answers(raw: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    found = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        assert end, raw
        first, *lines = head.split(b"\r\n")
        assert first.startswith(b"HTTP/1.1 "), first
        headers = dict(line.split(b": ", 1) for line in lines)
        status = int(first.split()[1])
        size = int(headers.get(b"content-length", b"0"))
        assert len(rest) >= size
        found.append((status, headers, rest[:size]))
        raw = rest[size:]
    return found


def statuses(raw: bytes) -> list[int]:
    return [status for status, _, _ in answers(raw)]


def served(
    test: Callable[[Running], Awaitable[Any]], bounds: Bounds | None = None, handle: Callable[..., Answer] = echo
) -> Any:
    async def main() -> Any:
        async with listening(handle, bounds) as running:
            return await test(running)

    return run(main)


def asked(*parts: bytes, bounds: Bounds | None = None, ends: bool = True) -> bytes:
    """All that a server answers to these bytes."""
    return bytes(served(lambda running: exchanged(running.port, *parts, ends=ends), bounds))


# Order and connections


def test_pipelined_answers_come_in_order_whether_awaited_or_not() -> None:
    targets = ["/a", "/later?5", "/b", "/later?1", "/c", "/later?3", "/d"]
    found = bodies(asked(b"".join(get(target) for target in targets)))
    assert found == [f"GET {target} .".encode() for target in targets]


@given(st.lists(st.sampled_from(["/a", "/later?1", "/later?7", "/later?3", "/b"]), min_size=1, max_size=12))
def test_answers_come_in_the_order_of_their_requests(targets: list[str]) -> None:
    assert bodies(asked(b"".join(map(get, targets)))) == [f"GET {target} .".encode() for target in targets]


def test_everything_that_one_read_brought_is_answered_by_one_write() -> None:
    transport = InMemory()
    run(lambda: fed(transport, [get("/a") + get("/b") + get("/c")]))
    assert len(transport.writes) == 1


def test_a_head_request_has_the_length_and_no_body() -> None:
    for target in ("/a", "/later"):
        raw = asked(get(target, method="HEAD") + get("/b", "Connection: close"))
        head, _, rest = raw.partition(b"\r\n\r\n")
        assert f"content-length: {len(f'HEAD {target} .')}".encode() in head
        assert bodies(rest) == [b"GET /b ."]


@pytest.mark.parametrize("target", ["/a", "/later"])
def test_http_1_0_is_closed_unless_it_asks_for_more(target: str) -> None:
    (only,) = answers(asked(get(target, version="1.0") + get("/b", version="1.0"), ends=False))
    assert only[1][b"connection"] == b"close"
    kept = get(target, "Connection: keep-alive", version="1.0")
    first, second = answers(asked(kept + get("/b", version="1.0"), ends=False))
    assert first[1][b"connection"] == b"keep-alive"
    assert second[1][b"connection"] == b"close"


@pytest.mark.parametrize("target", ["/a", "/later"])
def test_connection_close_ends_the_connection_after_its_answer(target: str) -> None:
    ((status, headers, body),) = answers(asked(get(target, "Connection: close") + get("/b"), ends=False))
    assert (status, headers[b"connection"], body) == (200, b"close", f"GET {target} .".encode())


def test_a_half_closed_peer_gets_all_answers() -> None:
    assert len(bodies(asked(get("/later?9") + get("/a") + get("/later?2")))) == 3


def test_bodies_are_read_by_length_and_in_chunks() -> None:
    sent = post("/a", b"hello") + chunked("/b", b"he", b"l", b"lo") + chunked("/c") + get("/d")
    assert bodies(asked(sent)) == [b"POST /a hello.", b"POST /b hello.", b"POST /c .", b"GET /d ."]


@pytest.mark.parametrize("chunks", [(), (b"x",)])
def test_trailers_are_no_headers(chunks: tuple[bytes, ...]) -> None:
    ((_, headers, _),) = answers(asked(chunked("/a", *chunks, end=b"0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")))
    assert headers[b"x-names"] == b"transfer-encoding"


def test_a_peer_that_expects_it_is_told_to_continue() -> None:
    raw = asked(post("/a", b"hi", "Expect: 100-continue"))
    assert raw.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_a_body_that_will_be_refused_is_not_asked_for() -> None:
    for lines in (["Expect: 100-continue", "Content-Length: 9999"], ["Content-Length: 9999", "Expect: 100-continue"]):
        assert statuses(asked(get("/a", *lines, method="POST"), bounds=Bounds(body=100), ends=False)) == [413]
    assert statuses(asked(get("/a", "Expect: 100-continue", "Content-Length: 0", version="1.0"))) == [200]


@pytest.mark.parametrize("body", [b"", b"hello"])
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_nothing_is_upgraded_and_no_body_is_lost(protocol: str, body: bytes) -> None:
    lines = ["Host: a", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABk"]
    first, second = answers(asked(post("/a", body, *lines) + get("/b")))
    assert first[2] == b"POST /a " + body + b"."
    assert b"upgrade" in first[1][b"x-names"].split(b",")
    assert second[2] == b"GET /b ."
    in_chunks = chunked("/c", b"x", body or b"y").replace(b"\r\n", b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", 1)
    assert bodies(asked(in_chunks + get("/d"))) == [b"POST /c x" + (body or b"y") + b".", b"GET /d ."]


def test_many_upgrades_in_one_read_are_answered() -> None:
    one = get("/a", "Connection: Upgrade", "Upgrade: h2c")
    assert len(bodies(asked(one * 3000))) == 3000


def test_connect_ends_the_connection() -> None:
    ((_, headers, _),) = answers(asked(get("a:1", method="CONNECT") + get("/b"), ends=False))
    assert headers[b"connection"] == b"close"


# What is refused


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("POST /a HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 5 5\r\n\r\nhello", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nhello", 400),
        (f"POST /a HTTP/1.1\r\nContent-Length: {'0' * 5000}5\r\n\r\nhello", 413),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\nhello\r\n0\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        ("GET /a HTTP/1.1\nHost: a\n\n", 400),
        ("GET /a HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nHost: a\0b\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\n: a\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\n\r\n", 400),
        ("GET /a\r\n\r\n", 505),
        ("GET /a HTTP/2.0\r\n\r\n", 505),
        ("GET /a HTTP/1.7\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("get /a HTTP/1.1\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01", 400),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(sent: str, status: int) -> None:
    raw = asked(get("/before") + sent.encode("latin-1") + get("/after"), ends=False)
    assert statuses(raw) == [200, status]
    assert answers(raw)[-1][1][b"connection"] == b"close"
    assert answers(raw)[-1][1][b"content-type"] == b"application/problem+json"


def test_a_refusal_comes_after_the_answers_before_it() -> None:
    raw = asked(get("/later?9") + get("/a") + b"nonsense\r\n\r\n", ends=False)
    assert statuses(raw) == [200, 200, 400]


def test_headers_and_targets_that_are_too_long_are_431() -> None:
    bounds = Bounds(head=1000)
    for sent in (
        get("/" + "a" * 1200),
        get("/", "X: " + "a" * 1200),
        get("/", *(f"X{n}: a" for n in range(300))),
        get("/", "X: " + "a" * 100_000).rstrip(),
    ):
        assert statuses(asked(sent, bounds=bounds, ends=False)) == [431]


def test_too_many_lines_of_headers_are_named_as_such() -> None:
    sent = b"GET /a HTTP/1.1\r\n" + b"a: b\r\n" * 201 + b"\r\n"
    assert b"There are more than 200 lines of headers." in asked(sent, ends=False)


def test_a_header_that_never_ends_is_431() -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        found = asyncio.ensure_future(reader.read())
        for _ in range(1000):
            writer.write(b"a" * 1000)
            await writer.drain()
            await asyncio.sleep(0)
            if found.done():
                break
        writer.write_eof()
        assert statuses(await found) == [431]
        writer.close()

    served(test, Bounds(head=10_000))


def test_a_trailer_or_an_extension_that_never_ends_is_refused() -> None:
    for tail in (b"0\r\nX: " + b"a" * 200_000, b"1;" + b"a" * 200_000, b"1\r\na\r\n" * 50_000):
        transport = InMemory()
        sent = chunked("/a", end=tail)
        pieces = [sent[place : place + 500] for place in range(0, len(sent), 500)]
        run(partial(fed, transport, pieces, Bounds(head=500, body=1000)))
        assert statuses(b"".join(transport.writes)) == [413]


@pytest.mark.parametrize(
    ("lines", "status"),
    [(["Authorization: Bearer 0123456789abcdef"], 200), (["Authorization: Bearer 0123456789abcdeX"], 401), ([], 401)],
)
def test_a_large_body_is_read_only_with_a_token(lines: list[str], status: int) -> None:
    tokens = BearerTokens(["0123456789abcdef"])
    small, large = b"a" * 16_384, b"a" * 16_385
    head = get("/a", *lines, "Transfer-Encoding: chunked", method="POST")
    in_chunks = [head, b"2000\r\n", large[:8192], b"\r\n2001\r\n", large[8192:], b"\r\n0\r\n\r\n"]
    for pieces in ([post("/a", large, *lines)], in_chunks):
        transport = InMemory()
        run(partial(fed, transport, pieces, None, tokens))
        assert statuses(b"".join(transport.writes)) == [status]
    transport = InMemory()
    run(partial(fed, transport, [post("/a", small)], None, tokens))
    assert statuses(b"".join(transport.writes)) == [200], "who has no token is told by the path that needs one"


def test_bodies_that_are_too_long_are_413() -> None:
    bounds = Bounds(body=1000)
    assert statuses(asked(post("/a", b"a" * 1000), bounds=bounds)) == [200]
    assert statuses(asked(post("/a", b"a" * 1001), bounds=bounds, ends=False)) == [413]
    assert statuses(asked(chunked("/a", b"a" * 600, b"a" * 600), bounds=bounds, ends=False)) == [413]


def test_a_peer_that_goes_on_sending_still_reads_why_it_was_refused() -> None:
    def send() -> bytes:
        with socket.create_connection((HOST, port), timeout=20) as peer:
            peer.sendall(get("/a", "Content-Length: 30000000", method="POST"))
            for _ in range(300):
                peer.sendall(b"a" * 100_000)
            peer.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: peer.recv(65536), b""))

    port = 0

    async def test(running: Running) -> bytes:
        nonlocal port
        port = running.port
        return await asyncio.to_thread(send)

    assert statuses(served(test, Bounds(body=1000))) == [413]


def test_a_handler_that_raises_is_500_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL + 1, "ratebound.service"):
        assert statuses(asked(get("/later-raise") + get("/b"))) == [500, 200]
        assert statuses(asked(get("/later-cancel") + get("/b"))) == [500, 200]
        assert statuses(asked(get("/raise") + get("/b"), ends=False)) == [500]


# Slow peers, and the end


class Clock:
    """Time for `expire`: that of the loop, and more."""

    def __init__(self, running: Running) -> None:
        self._connections = running.connections

    def pass_by(self, seconds: float) -> None:
        self._connections.expire(asyncio.get_running_loop().time() + seconds)


async def opened(running: Running, *sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the server has received something."""
    reader, writer = await asyncio.open_connection(HOST, running.port)
    for part in sent:
        writer.write(part)
        await writer.drain()
    while not running.connections._open:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0.001)
    return reader, writer


@pytest.mark.parametrize(
    "sent", [b"G", b"GET /", get("/a")[:-2], post("/a", b"hello")[:-1], chunked("/a", b"x", end=b"")]
)
def test_a_request_that_takes_too_long_is_408(sent: bytes) -> None:
    async def test(running: Running) -> None:
        reader, writer = await opened(running, sent)
        clock = Clock(running)
        clock.pass_by(9)
        assert len(running.connections) == 1
        clock.pass_by(11)
        assert statuses(await reader.read()) == [408]
        writer.close()

    served(test)


def test_a_slow_request_is_refused_after_the_answers_before_it() -> None:
    async def test(running: Running) -> None:
        reader, writer = await opened(running, get("/wait") + get("/b")[:-2])
        Clock(running).pass_by(11)
        Clock(running).pass_by(11)
        gate.set()
        assert statuses(await reader.read()) == [200, 408]
        writer.close()

    gate = asyncio.Event()

    async def waiting(request: HttpRequest) -> bytes:
        await gate.wait()
        return _echoed(request)

    served(test, handle=waiting)


def test_an_idle_connection_is_closed_without_a_word() -> None:
    async def test(running: Running) -> None:
        reader, writer = await opened(running, get("/a"))
        Clock(running).pass_by(70)
        assert len(running.connections) == 1
        Clock(running).pass_by(76)
        assert statuses(await reader.read()) == [200]
        writer.close()

    served(test)


def test_a_peer_that_does_not_read_is_not_read_from_and_then_cut_off() -> None:
    large = response(200, [], b"a" * 100_000)

    async def test(running: Running) -> None:
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sending.connect((HOST, running.port))
        sending.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sending, get("/a") * 200)
        (connection,) = await until(lambda: list(running.connections._open))
        await until(lambda: connection._is_paused)
        Clock(running).pass_by(11)
        await until(lambda: not len(running.connections))
        sending.close()

    served(test, handle=lambda _: large)


def test_a_peer_that_reads_again_gets_everything() -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(get("/a") * 300)
        (connection,) = await until(lambda: list(running.connections._open))
        await until(lambda: connection._is_paused)
        writer.write_eof()
        assert len(bodies(await reader.read())) == 300
        writer.close()

    large = response(200, [], b"a" * 100_000)
    served(test, handle=lambda _: large)


def test_a_peer_with_many_unanswered_requests_is_not_read_from() -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(get("/a") * 20)
        (connection,) = await until(lambda: list(running.connections._open))
        await until(lambda: not connection._is_reading)
        writer.write(get("/b") * 20)
        await writer.drain()
        gate.set()
        writer.write_eof()
        assert bodies(await reader.read()) == [b"GET /a ."] * 20 + [b"GET /b ."] * 20
        writer.close()

    gate = asyncio.Event()

    async def waiting(request: HttpRequest) -> bytes:
        await gate.wait()
        return _echoed(request)

    served(test, Bounds(pending=10), handle=waiting)


@pytest.mark.parametrize("stops", [False, True])
def test_one_read_with_many_requests_does_not_exceed_the_bound(stops: bool) -> None:
    many = get("/a") * 5000  # most of them come in one read, on most machines

    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(many)
        (connection,) = await until(lambda: list(running.connections._open))
        await until(lambda: connection._left)
        assert len(connection._answers) == len(begun) <= 10 + PART // len(get("/a")) + 1
        if stops:
            was_received = len(begun) + len(connection._left) // len(get("/a"))
            connection.finish()
            gate.set()
            assert len(bodies(await reader.read())) in (was_received, was_received + 1)
        else:
            gate.set()
            writer.write_eof()
            assert bodies(await reader.read()) == [b"GET /a ."] * 5000
        writer.close()

    gate = asyncio.Event()
    begun: list[HttpRequest] = []

    async def waiting(request: HttpRequest) -> bytes:
        await gate.wait()
        return _echoed(request)

    def handle(request: HttpRequest) -> Answer:
        begun.append(request)
        return waiting(request)

    served(test, Bounds(pending=10), handle=handle)


def test_one_read_with_many_requests_does_not_fill_memory_with_answers_that_nobody_reads() -> None:
    handled: list[HttpRequest] = []
    large = response(200, [], b"a" * 5_000)

    def handle(request: HttpRequest) -> Answer:
        handled.append(request)
        return large

    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(get("/a") * 5000)
        (connection,) = await until(lambda: list(running.connections._open))
        await until(lambda: connection._left)
        assert connection._is_paused
        assert len(handled) < 4000
        writer.write_eof()
        assert (await reader.read()).count(b"HTTP/1.1 200 OK") == len(handled) == 5000
        writer.close()

    served(test, handle=handle)


def test_a_connection_above_the_limit_is_refused() -> None:
    async def test(running: Running) -> None:
        _, first = await opened(running, get("/a"))
        raw = await exchanged(running.port, get("/b"), ends=False)
        ((status, headers, _),) = answers(raw)
        assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
        first.close()
        await until(lambda: not len(running.connections))
        assert statuses(await exchanged(running.port, get("/b", "Connection: close"))) == [200]

    served(test, Bounds(connections=1))


def test_a_worker_that_stops_answers_what_it_has_received() -> None:
    async def test(running: Running) -> None:
        reader, writer = await opened(running, get("/a") + get("/b") + get("/c")[:-2])
        idle_reader, idle = await opened(running)
        stopping = asyncio.ensure_future(running.connections.stop(10))
        await asyncio.sleep(0)
        assert await idle_reader.read() == b""
        writer.write(b"\r\n" + get("/d"))
        gate.set()
        assert bodies(await reader.read()) == [b"GET /a .", b"GET /b ."]
        await stopping
        assert len(running.connections) == 0
        writer.close()
        idle.close()

    gate = asyncio.Event()

    async def waiting(request: HttpRequest) -> bytes:
        await gate.wait()
        return _echoed(request)

    served(test, handle=waiting)


def test_a_connection_that_is_kept_is_ended_by_an_answer_when_the_worker_stops() -> None:
    async def test(running: Running) -> None:
        reader, writer = await opened(running, get("/a"))
        assert b"connection" not in (await reader.readuntil(b"/a .")).lower()
        ending = asyncio.ensure_future(running.connections.wind_down(10))
        await asyncio.sleep(0)
        writer.write(get("/b") + get("/c"))
        ((status, headers, body),) = answers(await reader.read())
        assert (status, headers[b"connection"], body) == (200, b"close", b"GET /b .")
        writer.close()
        await ending
        assert len(running.connections) == 0

    served(test)


def test_a_worker_that_stops_does_not_wait_for_ever() -> None:
    async def test(running: Running) -> None:
        _, writer = await opened(running, get("/a"))
        await running.connections.stop(0.01)
        await until(lambda: not len(running.connections))
        writer.close()

    async def never(request: HttpRequest) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    served(test, handle=never)


def test_what_a_peer_no_longer_waits_for_is_cancelled() -> None:
    async def test(running: Running) -> None:
        _, writer = await opened(running, get("/a") + get("/b", method="HEAD"))
        assert len(begun) == 2
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        writer.transport.abort()
        await until(lambda: len(ended) == 2)

    begun: list[bytes] = []
    ended: list[bytes] = []

    async def never(request: HttpRequest) -> bytes:
        begun.append(request.target)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request.target)
        raise AssertionError

    served(test, handle=never)


async def until(condition: Callable[[], Any]) -> Any:
    """What a condition returns once it is true."""
    async with asyncio.timeout(20):
        while not (found := condition()):
            await asyncio.sleep(0.001)
    return found


# Bytes that are cut anywhere


class InMemory(asyncio.Transport):
    """The other end of a connection of which a test decides what each read brings."""

    def __init__(self) -> None:
        super().__init__({"peername": (HOST, 1)})
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def fed(
    transport: InMemory, pieces: list[bytes], bounds: Bounds | None = None, tokens: BearerTokens | None = None
) -> None:
    """Feed a connection piece by piece, and let it answer."""
    connections = Connections(bounds or Bounds())
    routes = ServiceRoutes({}, echo, tokens or BearerTokens(), lambda: True)
    connection = Http1Connection(echo, connections, routes.has_token)
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    assert len(connections) == 0
    assert len(asyncio.all_tasks()) <= 2  # the test's own


REQUESTS = [
    get("/a", "Host: a"),
    get("/later?3"),
    get("/b", method="HEAD"),
    post("/c", b"hello\r\n\r\nGET /"),
    chunked("/d", b"a", b"\r\n0\r\n\r\n", end=b"0\r\nX: y\r\n\r\n"),
    get("/e", "Connection: Upgrade", "Upgrade: h2c"),
    post("/f", b"body", "Connection: upgrade", "Upgrade: websocket"),
    b"\r\n" + get("/g"),
    get("/h", "Connection: close"),
    get("/i", version="1.0"),
    get("/j", "Transfer-Encoding: gzip"),
    b"GET /k HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    post("/l", b"a" * 2000),
    b"nonsense",
]


def undated(raw: bytes) -> bytes:
    return b"\r\n".join(line for line in raw.split(b"\r\n") if not line.startswith(b"date: "))


@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=5), st.integers(0, 2**32))
def test_the_answers_are_the_same_wherever_the_bytes_are_cut(requests: list[bytes], seed: int) -> None:
    sent = b"".join(requests)
    dice = random.Random(seed)
    bounds = Bounds(body=1000, head=1000)
    places = sorted({0, len(sent), *(dice.randrange(len(sent)) for _ in range(dice.choice([1, 5, 40])))})
    one_by_one = [sent[place : place + 1] for place in range(len(sent))]
    found = []
    for pieces in ([sent], [sent[a:b] for a, b in pairwise(places)], one_by_one):
        transport = InMemory()
        run(partial(fed, transport, pieces, bounds))
        found.append(undated(b"".join(transport.writes)))
    assert found[0] == found[1] == found[2]


@given(st.binary(max_size=300), st.lists(st.sampled_from(REQUESTS), max_size=3), st.integers(0, 400))
def test_no_bytes_break_a_connection(noise: bytes, requests: list[bytes], place: int) -> None:
    sent = b"".join(requests)
    transport = InMemory()
    run(lambda: fed(transport, [sent[:place] + noise + sent[place:]]))
    assert b" 500 " not in b"".join(transport.writes)


def test_a_request_that_nobody_has_begun_to_answer_is_dropped_without_a_warning() -> None:
    async def passed_on(answer: Any) -> bytes:
        found: bytes = await answer
        return found

    async def lose() -> None:
        connection = Http1Connection(lambda request: passed_on(_later(request)), Connections(Bounds()))
        connection.connection_made(asyncio.Transport())
        connection.data_received(get("/later", "Host: x"))
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(lose())
        gc.collect()
    assert not [str(one.message) for one in seen if "never awaited" in str(one.message)]


def test_a_peer_that_has_reset_its_connection_is_no_unix_socket() -> None:
    """uvloop does not know its address any more. Peers on Unix sockets may be trusted proxies."""
    seen: list[str | None] = []

    def note(request: HttpRequest) -> Answer:
        seen.append(request.peer)
        return echo(request)

    async def scenario() -> None:
        async with listening(note) as running:
            for _ in range(20):
                with socket.create_connection((HOST, running.port)) as raw:
                    raw.sendall(get("/", "Host: x"))
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0.2)

    run(scenario)
    assert None not in seen
