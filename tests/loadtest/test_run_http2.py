"""Runs over HTTP/2: a real server, TLS, and a scripted one that breaks off, stalls and limits its streams."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
import trustme

from ratebound.loadtest.identities import Clients, parse_identity
from tests.loadtest.plans import ends, ran
from tests.loadtest.scripted_server import always, listening, scripted
from tests.servers import HOST, free_port
from tests.web.serving import serving


class Http2Script:
    """A server of HTTP/2 whose answers are a function: it is called with the connection and the number of a stream."""

    def __init__(self, answer: Callable[["Http2Connected", int], object], **settings: int) -> None:
        self.answer = answer
        self.settings = {getattr(h2.settings.SettingCodes, name.upper()): value for name, value in settings.items()}
        self.requests: list[dict[bytes, bytes]] = []
        self.connections = 0
        self.most_streams = 0
        self.received = 0
        self.resets = 0
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/path"


class Http2Connected:
    """One connection. It has the parts that an asyncio protocol needs."""

    def __init__(self, server: Http2Script) -> None:
        self.server = server
        self.transport: Any = None
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        if server.settings:
            self.h2.local_settings = h2.settings.Settings(client=False, initial_values=server.settings)
        self.open: set[int] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections += 1
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self.open.add(event.stream_id)
                self.server.most_streams = max(self.server.most_streams, len(self.open))
                self.server.requests.append(dict(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                self.server.received += len(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.open.discard(event.stream_id)
                self.server.resets += 1
            elif isinstance(event, h2.events.StreamEnded):
                self.server.answer(self, event.stream_id)
        self.flush()

    def respond(self, stream: int, *fields: tuple[str, str], status: int = 200, body: bytes = b"") -> None:
        self.h2.send_headers(stream, [(":status", str(status)), *fields], end_stream=not body)
        if body:
            self.h2.send_data(stream, body, end_stream=True)
        self.open.discard(stream)
        self.flush()

    def later(self, seconds: float, stream: int) -> None:
        asyncio.get_running_loop().call_later(seconds, self.respond, stream)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


@contextmanager
def scripted_http2(answer: Callable[[Http2Connected, int], object], **settings: int) -> Iterator[Http2Script]:
    server = Http2Script(answer, **settings)
    with listening(lambda: Http2Connected(server), server.port):
        yield server


def answered(connected: Http2Connected, stream: int) -> None:
    connected.respond(stream)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_limited_server_over_http2(scheme: str, tmp_path: Path) -> None:
    options, ca_file = [], None
    if scheme == "https":
        authority = trustme.CA()
        certificate = authority.issue_cert(HOST)
        ca_file = str(tmp_path / "ca.pem")
        authority.cert_pem.write_to_path(ca_file)
        certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        options = ["--certfile", str(tmp_path / "cert.pem"), "--keyfile", str(tmp_path / "key.pem")]
    with serving("hypercorn", *options) as web:
        url = f"{scheme}://{HOST}:{web.port}/"
        clients = Clients(2, [parse_identity("forwarded")])
        run = ran(url, "burst 60 every 1s", 0.1, clients=clients, http2=True, ca_file=ca_file)
        strict = ran(url, "burst 3 every 1s", 0.1, http2=True) if ca_file else None
        insecure = ran(url, "burst 3 every 1s", 0.1, http2=True, insecure=True) if ca_file else None
        old = ran(url, "burst 3 every 1s", 0.1, ca_file=ca_file)
    granted = [answer for answer in run.answers if answer.status < 400]
    assert len(run.answers) == 60
    for client in (0, 1):  # 20/hour each
        assert sum(answer.client == client for answer in granted) == 20
        left = [answer.quotas[0].remaining for answer in granted if answer.client == client]
        assert sorted(left, key=lambda count: count or 0) == list(range(20))
    assert all(answer.retry_after for answer in run.answers if answer.status == 429)
    if strict is not None and insecure is not None:
        assert ends(strict) == {"tls": 3}
        assert all(answer.status for answer in insecure.answers)
    assert all(answer.status for answer in old.answers)


def test_streams_stay_within_what_the_server_allows_and_connections_grow() -> None:
    with scripted_http2(lambda connected, stream: connected.later(0.1, stream), max_concurrent_streams=3) as server:
        run = ran(server.url, "burst 30 every 1s", 0.1, http2=True, max_connections=4)
    assert ends(run) == {200: 30}
    assert server.most_streams == 3
    assert 1 <= server.connections <= 4


def test_a_request_over_http2_is_complete() -> None:
    with scripted_http2(answered) as server:
        run = ran(
            server.url + "?a=1",
            "burst 3 every 1s",
            http2=True,
            method="POST",
            body=b"x" * 300_000,  # above the first window of a stream and of the connection
            headers=[("X-Kind", "test")],
            clients=Clients(1, [parse_identity("bearer:token-{n}")]),
        )
    assert ends(run) == {200: 3}
    assert server.received == 900_000
    request = server.requests[0]
    assert request[b":method"] == b"POST"
    assert request[b":path"] == b"/path?a=1"
    assert request[b":authority"] == f"{HOST}:{server.port}".encode()
    assert request[b"x-kind"] == b"test"
    assert request[b"authorization"] == b"Bearer token-0"
    assert request[b"content-length"] == b"300000"


def test_large_answers_are_read_and_dropped() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        connected.h2.send_headers(stream, [(":status", "200")])
        for number in range(60):
            connected.h2.send_data(stream, b"x" * 16_000, end_stream=number == 59)
        connected.open.discard(stream)

    with scripted_http2(answer) as server:
        run = ran(server.url, "50/s", 0.4, http2=True)
    assert ends(run) == {200: 20}


def test_headers_before_the_answer_are_not_the_answer() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        connected.h2.send_headers(stream, [(":status", "103"), ("retry-after", "9")])
        connected.respond(stream, ("retry-after", "3"), status=429)

    with scripted_http2(answer) as server:
        run = ran(server.url, http2=True)
    assert {(answer.status, answer.retry_after) for answer in run.answers} == {(429, 3.0)}


def test_a_stream_that_is_reset_fails_alone() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        if stream % 4 == 1:
            connected.h2.reset_stream(stream, 7)
            connected.open.discard(stream)
        else:
            connected.respond(stream)

    with scripted_http2(answer) as server:
        run = ran(server.url, http2=True)
    assert ends(run) == {200: 10, "stream": 10}
    assert server.connections == 1


def test_a_server_that_leaves_is_connected_to_anew() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        connected.respond(stream)
        if stream == 9:
            connected.h2.close_connection(last_stream_id=stream)

    with scripted_http2(answer) as server:
        run = ran(server.url, "50/s", 0.6, http2=True)
    found = ends(run)
    assert found[200] + found["stream"] + found["closed"] == 30
    assert found[200] >= 25
    assert server.connections >= 5


@pytest.mark.parametrize("last", [5, 2**31 - 1])
def test_a_server_that_leaves_still_answers_the_streams_that_it_has_taken(last: int) -> None:
    """nginx and Envoy leave after some requests: they say so, and then answer what is on its way."""
    leaving = b"\0\0\x08\7\0\0\0\0\0" + last.to_bytes(4) + bytes(4)

    def answer(connected: Http2Connected, stream: int) -> None:
        if stream < 5:
            connected.later(0.2, stream)
            return
        connected.h2.send_headers(stream, [(":status", "204")], end_stream=True)
        connected.transport.write(leaving + connected.h2.data_to_send())  # in one segment

    with scripted_http2(answer) as server:
        run = ran(server.url, "20/s", 0.6, http2=True)
    found = ends(run)
    rejected = found["stream"] if last == 5 else 0  # sent before the sender had read that the server leaves
    assert found[200] + found[204] + rejected == 12
    assert found[200] >= 2
    assert server.connections >= 2


@pytest.mark.parametrize("status", [b"0", b"99", b"-42", b"1000", b"70000", b"2_00", b"x"])
def test_a_status_that_is_none_is_malformed(status: bytes) -> None:
    block = b"\x08" + bytes([len(status)]) + status

    def answer(connected: Http2Connected, stream: int) -> None:
        connected.transport.write(bytes([0, 0, len(block), 1, 5, 0, 0, 0, stream]) + block)

    with scripted_http2(answer) as server:
        run = ran(server.url, "20/s", 0.2, http2=True)
    assert ends(run) == {"malformed": 4}


def test_a_timeout_cancels_its_stream_only() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        if stream != 1:
            connected.respond(stream)

    with scripted_http2(answer) as server:
        run = ran(server.url, "50/s", 0.6, http2=True, timeout=0.2)
    assert ends(run) == {200: 29, "timeout": 1}
    assert (server.resets, server.connections) == (1, 1)


def test_a_server_that_closes_fails_what_is_on_its_way() -> None:
    with scripted_http2(lambda connected, stream: connected.transport.abort()) as server:
        run = ran(server.url, "20/s", 0.4, http2=True)
    assert ends(run) == {"closed": 8}


@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"\0\0\0\5\0\0\0\0\1", b"\0\0\1\4\0\0\0\0\0x"]
)
def test_a_server_that_does_not_speak_http2_is_named(words: bytes) -> None:
    with scripted(always(words)) as server:
        run = ran(server.url, "20/s", 0.4, http2=True)
    assert ends(run) == {"no-http2": 8}


def test_bytes_that_are_no_frames_are_malformed() -> None:
    def answer(connected: Http2Connected, stream: int) -> None:
        connected.transport.write(b"\0\0\1\1\4\0\0\0\1\xff")  # a header block that cannot be read

    with scripted_http2(answer) as server:
        run = ran(server.url, "20/s", 0.2, http2=True)
    assert ends(run) == {"malformed": 4}


def test_a_server_that_says_nothing_is_an_error_of_the_connection() -> None:
    with scripted(lambda connected, head: None) as server:
        begun = time.monotonic()
        run = ran(server.url, "20/s", 0.2, http2=True, timeout=0.5)
    assert ends(run) == {"connect": 4}
    assert time.monotonic() - begun < 20


def test_a_tls_server_that_does_not_choose_http2_is_named(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    with scripted(tls=context) as server:
        url = server.url.replace("http:", "https:")
        run = ran(url, "20/s", 0.2, http2=True, ca_file=str(file))
        old = ran(url, "20/s", 0.2, ca_file=str(file))
    assert ends(run) == {"no-http2": 4}
    assert ends(old) == {200: 4}
