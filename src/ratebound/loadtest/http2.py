"""HTTP/2: many exchanges at once on a connection, as many as the server allows. h2 keeps the rules of the protocol.

Without TLS the connection begins with HTTP/2 at once (prior knowledge); with TLS the server must choose it (ALPN).
A connection carries its first request after the server's settings have come, since they say how many it takes.
"""

from functools import lru_cache
from typing import Any

from ratebound.from_extra import from_extra
from ratebound.loadtest.answer import ERROR_NUMBERS
from ratebound.loadtest.exchange import Finish, LoadExchange, RawLines, now, tells_limits
from ratebound.loadtest.identities import ClientMarks
from ratebound.loadtest.plan import LoadTarget

with from_extra("loadtest", h2="h2"):
    import h2.config
    import h2.connection
    import h2.errors
    import h2.events
    import h2.exceptions
    import h2.settings

MAX_ANSWER = 64 * 1024 * 1024
MAX_LINES = 256
MAX_IDLE = 128 * 1024  # bytes in a row that belong to no answer: a flood of small frames would keep the sender busy
MAX_STREAMS = 1000  # at once on one connection, whatever the server allows
LAST_STREAM = 2**30  # a connection that has used so many streams is replaced
WINDOW = 2**24  # bytes that a server may send on one stream before it is told that they were read
SETTINGS_TYPE = b"\4"

CLOSED = ERROR_NUMBERS["closed"]
ANSWERING = (h2.events.ResponseReceived, h2.events.DataReceived, h2.events.StreamEnded)
MALFORMED = ERROR_NUMBERS["malformed"]
NO_HTTP2 = ERROR_NUMBERS["no-http2"]
STREAM = ERROR_NUMBERS["stream"]
TOO_LARGE = ERROR_NUMBERS["too-large"]

_tells_limits = lru_cache(4096)(tells_limits)

Fields = list[tuple[bytes, bytes]]


def request_fields(target: LoadTarget, marks: ClientMarks) -> tuple[Fields, bytes]:
    """Return the fields of a request and its body."""
    origin = target.origin
    fields = [
        (":method", target.method),
        (":scheme", "https" if origin.is_tls else "http"),
        (":authority", origin.authority),
        (":path", target.path(marks.query)),
    ]
    fields += [(name.lower(), value) for name, value in target.lines(marks)]
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields], target.body


class _Connection(h2.connection.H2Connection):
    """h2 takes no frames after GOAWAY. But a server that leaves still answers the streams that it has taken."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        state = self.state_machine.state
        received = super()._receive_goaway_frame(frame)
        self.state_machine.state = state
        return received


class _SentStream:
    """An exchange on its way over HTTP/2."""

    __slots__ = ("body", "exchange", "lines", "received", "status")

    def __init__(self, exchange: LoadExchange, body: bytes) -> None:
        self.exchange = exchange
        self.body = body  # what is still to be sent
        self.status = 0
        self.lines: RawLines = []
        self.received = 0


class Http2Wire:
    """A connection of HTTP/2."""

    __slots__ = (
        "_finish",
        "_first",
        "_h2",
        "_idle_bytes",
        "_is_closed",
        "_is_leaving",
        "_is_made",
        "_limit",
        "_pool",
        "_streams",
        "_transport",
        "used",
    )

    def __init__(self, pool: Any, finish: Finish) -> None:
        self._pool = pool
        self._finish = finish
        self._transport: Any = None
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,  # the plan has checked them
            normalize_outbound_headers=False,
        )
        self._h2 = _Connection(config)
        self._streams: dict[int, _SentStream] = {}
        self._limit = 0
        self._is_made = False
        self._first = b""  # the bytes that a connection begins with
        self._is_leaving = False  # the server takes no more streams
        self._is_closed = False
        self._idle_bytes = 0
        self.used = 0.0

    # The pool calls these

    @property
    def room(self) -> int:
        """The number of exchanges that may be sent now."""
        return 0 if self._is_closed or self._is_leaving else self._limit - len(self._streams)

    @property
    def is_idle(self) -> bool:
        """True if no exchange is on its way."""
        return not self._streams

    def send(self, exchange: LoadExchange) -> None:
        """Send a request now."""
        fields, body = exchange.request
        number = self._h2.get_next_available_stream_id()
        if number >= LAST_STREAM:
            self._is_leaving = True
        exchange.wire = self
        exchange.stream = number
        self._streams[number] = stream = _SentStream(exchange, body)
        exchange.sent = self.used = now()
        self._h2.send_headers(number, fields, end_stream=not body)
        if body:
            self._send_body(number, stream)
        self._flush()

    def give_up(self, exchange: LoadExchange) -> None:
        """Cancel the stream. The connection carries on."""
        if self._streams.pop(exchange.stream, None) is not None and not self._is_closed:
            self._reset(exchange.stream)
            self._flush()
            self._go_on()

    def close(self) -> None:
        """Close the connection without telling the pool."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _send_body(self, number: int, stream: _SentStream) -> None:
        """Send as much of a body as the server takes now."""
        while stream.body:
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if size <= 0:
                return
            part, stream.body = stream.body[:size], stream.body[size:]
            self._h2.send_data(number, part, end_stream=not stream.body)

    def _reset(self, number: int) -> None:
        try:
            self._h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
        except h2.exceptions.ProtocolError:  # it has ended already
            return

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._is_closed:
            self._transport.write(data)

    def _end(self, error: int) -> None:
        streams, self._streams = self._streams, {}
        was_closed = self._is_closed
        self.close()
        for stream in streams.values():
            self._finish(stream.exchange, 0, error)
        if not was_closed:
            self._pool.ended(self, error)

    def _go_on(self) -> None:
        """Use free room, or close a connection that the server is leaving once nothing is on its way."""
        if self._is_leaving and not self._streams:
            self._end(CLOSED)
        elif self.room > 0:
            self._pool.released(self)

    # asyncio calls these

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._end(NO_HTTP2)
            return
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: WINDOW}
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(2**30)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        if self._is_closed:
            return
        done = now()
        if not self._is_made:
            self._first += data[:4]
            if len(self._first) >= 4 and (self._first[:2] != b"\0\0" or self._first[3:4] != SETTINGS_TYPE):
                self._end(NO_HTTP2)  # h2 would take text for the length of a frame, and wait for megabytes
                return
        self._idle_bytes += len(data)
        try:
            for event in self._h2.receive_data(data):
                if isinstance(event, ANSWERING):
                    self._idle_bytes = 0
                self._read(event, done)
        except (h2.exceptions.ProtocolError, ValueError, KeyError, IndexError):  # h2 lets some of hyperframe's through
            self._flush()
            self._end(MALFORMED if self._is_made else NO_HTTP2)
            return
        self._flush()
        if self._idle_bytes > MAX_IDLE and not self._is_closed:
            self._end(MALFORMED)
            return
        if not self._is_closed and self._is_made:
            self._go_on()

    def _read(self, event: Any, done: float) -> None:
        events = h2.events
        if isinstance(event, events.DataReceived):
            stream = self._streams.get(event.stream_id)
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if stream is not None:
                stream.received += len(event.data)
                if stream.received > MAX_ANSWER:
                    self._reset(event.stream_id)
                    self._over(event.stream_id, 0, TOO_LARGE, done)
        elif isinstance(event, events.StreamEnded):
            self._over(event.stream_id, -1, 0, done)
        elif isinstance(event, events.ResponseReceived):
            self._begin(event)
        elif isinstance(event, events.StreamReset):
            self._over(event.stream_id, 0, STREAM, done)
        elif isinstance(event, events.RemoteSettingsChanged):
            self._limit = min(self._h2.remote_settings.max_concurrent_streams, MAX_STREAMS)
            if not self._is_made:
                self._is_made = True
                self._pool.made(self)
            self._continue_bodies()
        elif isinstance(event, events.WindowUpdated):
            self._continue_bodies()
        elif isinstance(event, events.ConnectionTerminated):
            self._is_leaving = True
            last = event.last_stream_id if event.last_stream_id is not None else 0
            for number in [number for number in self._streams if number > last]:
                self._over(number, 0, STREAM, done)

    def _begin(self, event: Any) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        date = None
        for name, value in event.headers[:MAX_LINES]:
            if name == b":status":
                stream.status = _status(value)
            elif name == b"date":
                date = (bytes(name), bytes(value))
            elif _tells_limits(name):
                stream.lines.append((bytes(name), bytes(value)))
        if date is not None and stream.lines:
            stream.lines.append(date)

    def _over(self, number: int, status: int, error: int, done: float) -> None:
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        if status:
            self._finish(stream.exchange, stream.status, 0, stream.lines, done)
        else:
            self._finish(stream.exchange, 0, error, None, done)
        if stream.body:  # the server answered before it had read the whole request
            self._reset(number)

    def _continue_bodies(self) -> None:
        for number, stream in self._streams.items():
            if stream.body:
                self._send_body(number, stream)

    def eof_received(self) -> bool:
        """Let the transport close."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail everything that is on its way."""
        self._end(CLOSED)

    def pause_writing(self) -> None:
        """Do nothing: the schedule waits for nobody."""

    def resume_writing(self) -> None:
        """Do nothing."""


def _status(value: bytes) -> int:
    """Return a status. Raises ValueError if the text is none."""
    if len(value) != 3 or not value.isdigit() or value < b"200":
        raise ValueError(f"not a status: {value!r}")
    return int(value)
