"""HTTP/1.1: one request at a time on a connection that is kept alive. httptools parses the answers.

Bodies are read and dropped: without a callback for them the parser makes no objects of them.
"""

from typing import Any

from ratebound.from_extra import from_extra
from ratebound.loadtest.answer import ERROR_NUMBERS
from ratebound.loadtest.exchange import Finish, LoadExchange, RawLines, now, tells_limits
from ratebound.loadtest.identities import ClientMarks
from ratebound.loadtest.plan import LoadTarget

with from_extra("loadtest", httptools="httptools"):
    import httptools

MAX_HEAD = 256 * 1024
MAX_ANSWER = 64 * 1024 * 1024
MAX_LINES = 256  # fields that tell limits
MAX_NAMES = 4096  # spellings of header names that are remembered

CLOSED = ERROR_NUMBERS["closed"]
MALFORMED = ERROR_NUMBERS["malformed"]
TOO_LARGE = ERROR_NUMBERS["too-large"]

OTHER, LIMITS, FRAMING, DATE, CONNECTION = range(5)
_kinds: dict[bytes, int] = {}


def request_bytes(target: LoadTarget, marks: ClientMarks) -> bytes:
    """Return a whole request."""
    lines = [f"{target.method} {target.path(marks.query)} HTTP/1.1", f"Host: {target.origin.authority}"]
    lines += [f"{name}: {value}" for name, value in target.lines(marks)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + target.body


class Http1Wire:
    """A connection of HTTP/1.1."""

    __slots__ = (
        "_complete",
        "_date",
        "_exchange",
        "_finish",
        "_has_framing",
        "_has_head",
        "_is_closed",
        "_is_head",
        "_keeps",
        "_lines",
        "_parser",
        "_pool",
        "_received",
        "_says_close",
        "_status",
        "_transport",
        "room",
        "used",
    )

    def __init__(self, pool: Any, finish: Finish) -> None:
        self._pool = pool
        self._finish = finish
        self._transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._exchange: LoadExchange | None = None
        self._is_closed = False
        self.room = 1
        self.used = 0.0  # when it was used last
        self._is_head = False
        self._forget()

    def _forget(self) -> None:
        """Make ready for the next answer."""
        self._received = 0
        self._status = 0
        self._lines: RawLines = []
        self._date: tuple[bytes, bytes] | None = None
        self._says_close = False
        self._has_head = False
        self._has_framing = False
        self._complete = 0
        self._keeps = True

    # The pool calls these

    @property
    def is_idle(self) -> bool:
        """True if no exchange is on its way."""
        return self._exchange is None

    def send(self, exchange: LoadExchange) -> None:
        """Send a request now."""
        self.room = 0
        self._exchange = exchange
        exchange.wire = self
        request = exchange.request
        self._is_head = request.startswith(b"HEAD ")
        exchange.sent = now()
        self._transport.write(request)

    def give_up(self, exchange: LoadExchange) -> None:
        """Close the connection: the answer may still come, and would be taken for that of the next request."""
        self._exchange = None
        self._end()

    def close(self) -> None:
        """Close the connection without telling the pool."""
        self._is_closed = True
        self.room = 0
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self._is_closed:
            self.close()
            self._pool.ended(self, CLOSED)

    def _fail(self, error: int) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._finish(exchange, 0, error)
        self._end()

    # asyncio calls these

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        self._transport = transport
        self._pool.made(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        if self._exchange is None:  # bytes that nobody asked for, like a 408 before the server closes
            self._end()
            return
        done = now()
        self._received += len(data)
        if self._received > (MAX_ANSWER if self._has_head else MAX_HEAD + len(data)):
            self._fail(TOO_LARGE)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._complete, self._keeps = max(self._complete, 1), False
        except httptools.HttpParserError:
            if not self._complete:
                self._fail(MALFORMED)
                return
            self._keeps = False
        if self._complete:
            self._completed(done)

    def _completed(self, done: float) -> None:
        exchange, self._exchange = self._exchange, None
        status, lines = self._status, self._lines
        if lines and self._date is not None:  # a reset may be an instant, by the server's clock
            lines.append(self._date)
        keeps = self._keeps and self._complete == 1 and not self._is_closed
        if self._is_head:
            self._parser = httptools.HttpResponseParser(self)  # the old one may wait for a body
        self._forget()
        if exchange is not None:
            self._finish(exchange, status, 0, lines, done)
        if keeps:
            self.room = 1
            self.used = done
            self._pool.released(self)
        else:
            self._end()

    def eof_received(self) -> bool:
        """Let the transport close."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End an answer that has no other end than this; any other one has failed."""
        if self._exchange is not None and error is None and self._has_head and not self._has_framing:
            self._keeps = False
            self._complete = 1
            self._completed(now())
        else:
            self._fail(CLOSED)

    def pause_writing(self) -> None:
        """Do nothing: the schedule waits for nobody."""

    def resume_writing(self) -> None:
        """Do nothing."""

    # The parser calls these

    def on_message_begin(self) -> None:
        """Keep no connection on which something follows the answer: it would be taken for the next one."""
        if self._complete:
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that tells limits; note how the body ends. Fields after the body are dropped, like the body."""
        if self._has_head:
            return
        kind = _kinds.get(name)
        if kind is None:
            kind = _kind(name)
        if kind:
            if kind == LIMITS:
                if len(self._lines) < MAX_LINES:
                    self._lines.append((name, value))
            elif kind == FRAMING:
                self._has_framing = True
            elif kind == DATE:
                self._date = (name, value)
            else:
                self._says_close = self._says_close or b"close" in value.lower()

    def on_headers_complete(self) -> None:
        """Note the status. An answer to HEAD ends here."""
        self._status = self._parser.get_status_code()
        if self._status >= 200 or self._status == 101:
            self._has_head = True
            if self._is_head:
                # The parser does not know the method, and says that an answer without a length ends the connection.
                self._keeps = not self._says_close and self._parser.get_http_version() == "1.1"
                self._complete = 1

    def on_message_complete(self) -> None:
        """Note the end of an answer. One of the kind 1xx is not the answer yet."""
        if not self._has_head:
            self._lines = []
            self._has_framing = False
        elif not self._is_head:
            if not self._complete:
                self._keeps = self._parser.should_keep_alive()
            self._complete += 1


def _kind(name: bytes) -> int:
    lower = name.lower()
    if lower in (b"content-length", b"transfer-encoding"):
        kind = FRAMING
    elif lower == b"date":
        kind = DATE
    elif lower == b"connection":
        kind = CONNECTION
    else:
        kind = LIMITS if tells_limits(lower) else OTHER
    if len(_kinds) < MAX_NAMES:
        _kinds[name] = kind
    return kind
