"""HTTP/1.1 over httptools: requests in, answers out, in order. What they mean is for routes.py.

Everything that one read brought is answered by one write, unless it brought very much. An answer is bytes if it was
found at once, else something to await. A connection that has sent `bounds.pending` requests without an answer is not
read from until it has them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import httptools

from ratebound.service.connections import Connections, peer_of

log = logging.getLogger("ratebound.service")

Answer = bytes | Coroutine[Any, Any, bytes]
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
MOST_WITHOUT_TOKEN = 16 * 1024  # bytes of a body
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_HEADERS = 200  # lines
MAX_DIGITS = 20  # of a Content-Length: zeros in front count too
PART = 16 * 1024  # bytes of a read that are parsed before the bounds are looked at: one read may bring 256 KB
CHUNKED = 8  # a body in chunks of one byte is sent as six bytes for each, and some more for extensions and trailers


def first_line(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first line of a header; None if there is none. `name` is in lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None


class HttpRequest:
    """One request. Names of headers are in lower case; values and the target are as received.

    `peer` is the address of the other end of the connection, None on a Unix socket.
    """

    __slots__ = ("body", "headers", "method", "peer", "target")

    def __init__(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, peer: str | None
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.peer = peer

    def lines(self, name: bytes) -> list[bytes]:
        """Return every line of a header, in order. `name` is in lower case."""
        return [value for key, value in self.headers if key == name]

    def header(self, name: bytes) -> bytes | None:
        """Return the first line of a header; None if there is none. `name` is in lower case."""
        return first_line(self.headers, name)


Handle = Callable[[HttpRequest], Answer]
HasToken = Callable[[list[tuple[bytes, bytes]]], bool]
Lines = Sequence[tuple[str, str]]


class _Date:
    """The line of the Date header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = ""

    def line(self) -> str:
        """Return the line for now."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = f"date: {formatdate(now, usegmt=True)}\r\n"
        return self._line


date = _Date()


def response(status: int, headers: Lines, body: bytes = b"") -> bytes:
    """Return the bytes of a response. Line breaks in headers become blanks: no text can add a header."""
    lines = [STATUS_LINES.get(status) or f"HTTP/1.1 {status} Status\r\n", date.line()]
    for name, value in headers:
        if "\n" in value or "\r" in value:
            value = " ".join(value.split())
        lines.append(f"{name}: {value}\r\n")
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "".join(lines).encode("latin-1", "replace") + body


class _Refused(Exception):
    """A request that is not taken: its status, and a sentence for the caller."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def problem(status: int, detail: str, headers: Lines = ()) -> bytes:
    """Return a response that says what is wrong, as problem+json. `detail` is one sentence of ASCII without quotes."""
    title = HTTPStatus(status).phrase
    body = f'{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}'.encode()
    return response(status, [("content-type", "application/problem+json"), *headers], body)


class Http1Connection(asyncio.Protocol):
    """One connection. `handle` answers its requests, and must not raise.

    `has_token` returns True if the headers of a request have a token. Without one, only small bodies are read.
    """

    __slots__ = (
        "_answers",
        "_begun",
        "_body",
        "_body_size",
        "_closing",
        "_connections",
        "_handle",
        "_has_head",
        "_has_token",
        "_head_size",
        "_headers",
        "_is_old",
        "_is_paused",
        "_is_reading",
        "_last",
        "_left",
        "_lingers",
        "_loop",
        "_parser",
        "_peer",
        "_ready",
        "_received",
        "_target",
        "_transport",
        "_upgrade",
    )

    def __init__(self, handle: Handle, connections: Connections, has_token: HasToken | None = None) -> None:
        self._handle = handle
        self._connections = connections
        self._has_token = has_token
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._peer: str | None = None
        # Answers in the order of their requests: bytes, or a task that will return them.
        self._answers: deque[bytes | asyncio.Task[bytes]] = deque()
        self._ready: list[bytes] = []  # answers to write when this read is over
        self._closing = False  # after the answers that are left
        self._lingers = False  # the peer may still be sending what was refused
        self._is_paused = False  # the peer does not read its answers
        self._is_reading = True
        self._left = b""  # of a read, to be parsed when there are fewer answers to wait for
        self._begun: float | None = None  # when the request that is being read began
        self._last = self._loop.time()  # when something happened last
        self._upgrade: list[tuple[bytes, bytes]] = []  # headers that the parser must not see
        self._forget()

    def _forget(self) -> None:
        """Make ready for the next request."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_head = False
        self._received = 0  # bytes of the reads since the last request
        self._is_old = False  # HTTP/1.0, whose peers have to be told that a connection is kept
        self._head_size = 0
        self._body: list[bytes] = []
        self._body_size = 0

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, or refuse it."""
        self._transport = transport
        self._peer = peer_of(transport)
        if not self._connections.add(self):
            transport.write(problem(503, "Too many connections.", [("connection", "close"), ("retry-after", "1")]))
            transport.close()
            self._closing = True

    def data_received(self, data: bytes) -> None:
        """Read what has come, answer it, and write all answers that are ready at once."""
        if self._closing:
            return
        self._last = self._loop.time()
        if len(data) > PART:
            self._read_parts(data)
        else:
            self._read(data)

    def _read_parts(self, data: bytes) -> None:
        """Read a part after the other, until the peer has to wait. The rest is kept until then."""
        start = 0
        while start < len(data) and self._is_reading and not self._closing:
            self._read(data[start : start + PART])
            start += PART
        self._left = b"" if self._closing else data[start:]

    def _read(self, data: bytes) -> None:
        self._received += len(data)
        try:
            self._feed(data)
            if self._received > self._connections.bounds.head and self._begun is not None:
                self._check_received()
        except (httptools.HttpParserError, _Refused) as error:
            self._refuse(error)
        self._write()
        if len(self._answers) >= self._connections.bounds.pending and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        """Let the parser read what has come."""
        left: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(left)
            except httptools.HttpParserUpgrade as upgrade:
                if self._closing:
                    return
                left = memoryview(left)[upgrade.args[0] :]
            else:
                return
            # Nothing is upgraded here. But the parser takes the body of such a request for another protocol, so the
            # request is read once more without the header that asks for it.
            head = self._head_without_upgrade()
            self._parser = httptools.HttpRequestParser(self)
            self._forget()
            self._parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        parser = self._parser
        self._upgrade = [line for line in self._headers if line[0] == b"upgrade"]
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self._target, parser.get_http_version().encode())]
        lines += [b"%b: %b" % line for line in self._headers if line[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _check_received(self) -> None:
        """Refuse a request that is too long so far: the parser keeps a header until it is complete."""
        bounds = self._connections.bounds
        if not self._has_head:
            raise _Refused(431, f"The headers are longer than {bounds.head} bytes.")
        if self._received > bounds.head + CHUNKED * bounds.body:
            raise _Refused(413, f"The body is longer than {bounds.body} bytes.")

    def eof_received(self) -> bool:
        """Answer what was received; the peer may still read. With TLS it may not."""
        self._lingers = False
        self.finish()
        return bool(self._transport.can_write_eof())

    def connection_lost(self, error: Exception | None) -> None:
        """End what is still being answered: nobody waits for it."""
        self._closing = True
        self._connections.remove(self)
        for answer in self._answers:
            if not isinstance(answer, bytes):
                # Not at once: a coroutine that is cancelled before its first step never awaits what it was given.
                self._loop.call_soon(answer.cancel)
        self._answers.clear()
        self._parser = None

    def pause_writing(self) -> None:
        """Read nothing more from a peer that does not read its answers."""
        self._is_paused = True
        self._last = self._loop.time()
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        self._read_on()

    # What httptools calls

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._begun is None:
            self._begun = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line; trailers are ignored."""
        if not self._has_head:
            self._headers.append((name.lower(), value))
            self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """Refuse a body that is too long before it is sent, and let the peer send one that it asks for."""
        self._has_head = True
        version = self._parser.get_http_version()
        if version != "1.1":
            if version != "1.0":
                raise _Refused(505, "This port takes HTTP/1.1 and HTTP/1.0.")
            self._is_old = True
        expects = False
        for name, value in self._headers:
            if name == b"content-length":
                if len(value) > MAX_DIGITS or int(value) > self._connections.bounds.body:
                    raise _Refused(413, f"The body is longer than {self._connections.bounds.body} bytes.")
                if int(value) > MOST_WITHOUT_TOKEN:
                    self._check_token()
            elif name == b"expect":
                expects = value.lower() == b"100-continue" and not self._is_old
            elif name == b"transfer-encoding":
                if self._is_old:
                    raise _Refused(400, "HTTP/1.0 has no Transfer-Encoding.")
                if value.lower() != b"chunked":
                    raise _Refused(501, "The only Transfer-Encoding here is chunked.")
        if self._upgrade:
            self._headers += self._upgrade
            self._upgrade = []
        if expects and not self._answers and not self._parser.should_upgrade():
            self._write()
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._body_size <= MOST_WITHOUT_TOKEN < self._body_size + len(body):
            self._check_token()
        self._body_size += len(body)
        if self._body_size > self._connections.bounds.body:
            raise _Refused(413, f"The body is longer than {self._connections.bounds.body} bytes.")
        self._body.append(body)

    def _check_token(self) -> None:
        """Refuse a body that is not small if there is no token: it would be kept until the request is complete."""
        if self._has_token is not None and not self._has_token(self._headers):
            raise _Refused(401, f"A body of more than {MOST_WITHOUT_TOKEN} bytes needs a valid token.")

    def on_message_complete(self) -> None:
        """Answer a request."""
        parser = self._parser
        method = parser.get_method().decode("latin-1")
        upgrades = parser.should_upgrade()
        if upgrades and method != "CONNECT":
            return  # it is read once more
        body = b"".join(self._body) if self._body else b""
        request = HttpRequest(method, self._target, self._headers, body, self._peer)
        keeps = parser.should_keep_alive() and not self._connections.is_ending and not upgrades
        connection = b"" if keeps and not self._is_old else b"keep-alive" if keeps else b"close"
        self._forget()
        self._begun = None
        answer = self._handle(request)
        if not isinstance(answer, bytes):
            if method == "HEAD" or connection:
                answer = _reshaped(answer, method, connection)
            task = self._loop.create_task(answer)
            task.add_done_callback(self._answered)
            self._answers.append(task)
        else:
            if method == "HEAD" or connection:
                answer = _as_sent(answer, method, connection)
            if self._answers:
                self._answers.append(answer)
            else:
                self._ready.append(answer)
        if not keeps:
            self._closing = True
            self._lingers = self._connections.is_ending
            raise _Last

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._connections.bounds.head:
            raise _Refused(431, f"The headers are longer than {self._connections.bounds.head} bytes.")
        if len(self._headers) > MAX_HEADERS:
            raise _Refused(431, f"There are more than {MAX_HEADERS} lines of headers.")

    # Answers

    def _refuse(self, error: Exception) -> None:
        """Answer what cannot be read, and read nothing more."""
        self._closing = True
        self._begun = None
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        if isinstance(cause, _Last):
            return
        self._lingers = True
        if isinstance(cause, _Refused):
            answer = problem(cause.status, cause.detail, [("connection", "close")])
        elif cause is error:
            answer = problem(400, "This is not a valid HTTP request.", [("connection", "close")])
        else:
            log.error("an HTTP request could not be handled; it was answered with 500", exc_info=cause)
            answer = problem(500, "The request could not be handled.", [("connection", "close")])
        (self._answers if self._answers else self._ready).append(answer)

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        """Write the answers that are ready, in order."""
        if self._parser is None:
            return
        self._last = self._loop.time()
        while self._answers:
            first = self._answers[0]
            if isinstance(first, bytes):
                self._ready.append(first)
            elif not first.done():
                break
            else:
                error = asyncio.CancelledError() if first.cancelled() else first.exception()
                if error is not None:
                    log.error("an HTTP request could not be answered; it got status 500", exc_info=error)
                self._ready.append(first.result() if error is None else problem(500, "The request was not answered."))
            self._answers.popleft()
        self._write()
        self._read_on()

    def _write(self) -> None:
        if self._ready:
            self._transport.write(self._ready[0] if len(self._ready) == 1 else b"".join(self._ready))
            self._ready.clear()
        if self._closing and not self._answers:
            self._end()

    def _end(self) -> None:
        """Close. While the peer still sends what was refused, read and ignore that: a reset would lose the answer."""
        if not self._lingers or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._lingers = False
            self._transport.write_eof()
            self._is_paused = False
            if not self._is_reading:
                self._is_reading = True
                self._transport.resume_reading()

    def _read_on(self) -> None:
        waits = self._is_paused or self._closing or len(self._answers) >= self._connections.bounds.pending
        if not self._is_reading and not waits:
            self._is_reading = True
            self._transport.resume_reading()
            if self._left:
                self._read_parts(self._left)

    # What its worker calls

    def finish(self) -> None:
        """Answer what was received, then close."""
        if self._left and not self._closing:
            left, self._left = self._left, b""
            self._read(left)
        self._closing = True
        self._begun = None
        if not self._answers:
            self._end()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Close if no request came for long, if one is too slow, or if its answers are not read."""
        bounds = self._connections.bounds
        is_late = now - self._last > bounds.request
        if is_late and (self._is_paused or (self._closing and not self._answers)):
            self._transport.abort()
        elif self._begun is not None and now - self._begun > bounds.request:
            self._refuse(_Refused(408, "The request took too long."))
            self._write()
        elif not self._answers and now - self._last > bounds.idle:
            self.finish()


class _Last(Exception):
    """The last request of a connection was read. What follows it is ignored."""


async def _reshaped(answer: Coroutine[Any, Any, bytes], method: str, connection: bytes) -> bytes:
    return _as_sent(await answer, method, connection)


def _as_sent(answer: bytes, method: str, connection: bytes) -> bytes:
    """Return an answer without its body for HEAD, and with a header that says what becomes of the connection."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if connection:
        head += b"\r\nconnection: " + connection
    return head + end + (b"" if method == "HEAD" else body)
