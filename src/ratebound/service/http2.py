"""An HTTP/2 server (RFC 9113) for short requests: strict and bounded. What a request means is for grpc.py.

A request is handed over when it is complete. Everything that one read brought is answered by one write. An answer is a
tuple if it was found at once, else something to await. A peer that breaks the protocol gets the error that the RFC
names, on the stream or on the connection. A peer that costs more than it may gets ENHANCE_YOUR_CALM.

DATA is given back to the peer's window as it comes. Memory is bounded by `bounds.body` for a request, and by twice that
for all unfinished requests of a connection: what exceeds it is reset.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ratebound.service.connections import Connections, peer_of
from ratebound.service.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEAD,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    NO_ERROR,
    NO_RFC7540_PRIORITIES,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    ConnectionFault,
    StreamFault,
    frame,
    goaway,
    reset,
    settings,
    window_update,
)
from ratebound.service.http2_headers import BlockDecoder, HeaderBlock, RequestHead

log = logging.getLogger("ratebound.service")

RECEIVE_WINDOW = 1024 * 1024  # bytes of a connection; half of it is given back at a time
PADDING_WINDOW = 8192  # bytes of padding on a stream that are given back at a time
MAX_CONTINUATIONS = 16  # frames of one header block
SKIPPED = 16  # ranges of stream ids that a peer has left out, remembered to name its error
MAX_SETTINGS = 64  # of one frame: each may change the windows of all streams
LARGE_HEAD = 4096  # bytes; heads of this size or less need no bound beside that of streams
# Bytes of unfinished bodies on a connection, and of its heads if all were as large as this one, for a request without a
# token.
MOST_WITHOUT_TOKEN = 16 * 1024
HELD_HEADS = 64  # heads of the largest size that the open requests of a connection may have together
FORGIVEN = 1024  # streams that were reset, remembered because frames on them may be on their way
SETTINGS_ACK = frame(SETTINGS, ACK, 0)
AT_ONCE = 2000  # parts of frames that are collected before they are written: about 250 answers
CHUNKS_AT_ONCE = 4  # DATA frames of long answers that are collected before they are written
LAST_PING = frame(PING, 0, 0, b"the last")
LAST_CALL = 1.0  # seconds in which a peer that is told to stop has to answer the last PING
LINGER = 1.0  # seconds in which a peer may read the last words and close

# Frames that a peer may send in one second although they ask for nothing. A peer may measure its connection with one
# PING for each request, and answers may be received in small pieces, so each request allows for more of those.
PER_SECOND = {
    DATA: 200,  # empty, and not the last of its stream
    PRIORITY: 1000,
    RST_STREAM: 1000,
    SETTINGS: 20,
    PING: 200,
    WINDOW_UPDATE: 2000,
}
UNKNOWN_PER_SECOND = 200
PATIENCE = 0.01  # seconds; a reset of a request that took longer is no attack: its caller could not wait any more
FOR_EACH_REQUEST = {PING: 1, WINDOW_UPDATE: 8, PRIORITY: 2}

Http2Response = tuple[HeaderBlock, bytes, HeaderBlock | None]
"""The head of an answer, its body, and its trailers. Without trailers there is no body either."""


class Http2Request:
    """One complete request. `peer` is the address of the other end of the connection, None on a Unix socket."""

    __slots__ = ("body", "head", "peer")

    def __init__(self, head: RequestHead, body: bytes, peer: str | None) -> None:
        self.head = head
        self.body = body
        self.peer = peer


Http2Answer = Http2Response | Coroutine[Any, Any, Http2Response]
Http2Handle = Callable[[Http2Request], Http2Answer]
HasToken = Callable[[RequestHead], bool]


class _Stream:
    """A request that is being received or answered."""

    __slots__ = ("begun", "body", "credit", "head", "is_ended", "padding", "task", "trailers", "unsent")

    def __init__(self, head: RequestHead, begun: float) -> None:
        self.head = head
        self.begun = begun  # when it began; later, when its answer began to wait for the peer's window
        self.body: bytes | bytearray = b""
        self.padding = 0  # received, and not given back
        self.credit = 0  # window that the peer has given, less what was sent; beside its INITIAL_WINDOW_SIZE
        self.is_ended = False  # the peer has sent all of it
        self.task: asyncio.Task[Http2Response] | None = None
        self.unsent: memoryview | None = None  # of the answer's body: the peer's window is too small
        self.trailers: HeaderBlock | None = None


class Http2Connection(asyncio.Protocol):
    """One connection. `handle` answers its requests, and must not raise.

    `has_token` returns True if the head of a request has a token. A request without one is answered before it is
    complete if its head or its body is not small.
    """

    __slots__ = (
        "_block",
        "_block_ends",
        "_block_frames",
        "_block_stream",
        "_blocked",
        "_bounds",
        "_connections",
        "_counts",
        "_decoder",
        "_expected",
        "_forgiven",
        "_handle",
        "_has_preface",
        "_has_token",
        "_held",
        "_is_acknowledged",
        "_is_closed",
        "_is_ended",
        "_is_finishing",
        "_is_flushing",
        "_is_left",
        "_is_paused",
        "_is_stopped",
        "_last",
        "_last_id",
        "_loop",
        "_made",
        "_now",
        "_out",
        "_partial",
        "_peer",
        "_received",
        "_rest",
        "_second",
        "_second_id",
        "_skipped",
        "_stop_id",
        "_stream_window",
        "_streams",
        "_tasks",
        "_timer",
        "_transport",
        "_window",
    )

    def __init__(self, handle: Http2Handle, connections: Connections, has_token: HasToken | None = None) -> None:
        self._handle = handle
        self._has_token = has_token
        self._connections = connections
        self._bounds = connections.bounds
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._peer: str | None = None
        self._decoder = BlockDecoder(self._bounds.head)
        self._rest = b""  # of the last read: a part of a frame
        self._out: list[bytes | memoryview] = []  # what to write when this read is over
        self._streams: dict[int, _Stream] = {}
        self._blocked: dict[int, _Stream] = {}  # streams whose answer waits for the connection, in order
        self._tasks: dict[asyncio.Task[Http2Response], int] = {}  # of streams, also of those that were reset
        self._held = 0  # bytes of bodies that are not complete

        # What the peer has done
        self._has_preface = False
        self._expected: int | None = SETTINGS  # the only type of frame that may come now; None: any
        self._is_acknowledged = False  # our SETTINGS
        self._last_id = -1  # the highest of its streams
        self._skipped: deque[range] = deque(maxlen=SKIPPED)
        self._forgiven: dict[int, None] = {}  # streams that we have reset: frames that were on their way are ignored
        self._received = 0  # bytes of DATA that were not given back to the connection's window
        self._counts: dict[int, int] = {}  # frames of this second that ask for nothing, by type
        self._block = b""  # a header block that CONTINUATION has to complete
        self._block_stream = self._block_frames = 0
        self._block_ends = False

        # What the peer allows
        self._window = self._stream_window = DEFAULT_WINDOW

        # How it ends
        self._is_left = False  # the peer has sent GOAWAY
        self._is_ended = False  # the peer sends nothing more
        self._is_finishing = False  # we have told the peer to stop
        self._is_stopped = False  # and have named its last stream
        self._stop_id = MAX_WINDOW  # streams above this one are ignored
        self._is_closed = False  # nothing is read or answered any more
        self._timer: asyncio.TimerHandle | None = None  # of its next step

        self._is_paused = False  # the peer does not read its answers
        self._is_flushing = False  # a flush is on its way
        self._now = self._made = self._last = self._second = self._loop.time()
        self._second_id = -1  # the last stream when this second began
        self._partial: float | None = None  # when the frame or header block that is not complete began

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, or refuse it."""
        self._transport = transport
        self._peer = peer_of(transport)
        bounds = self._bounds
        self._out.append(
            settings(
                {
                    HEADER_TABLE_SIZE: 0,
                    MAX_CONCURRENT_STREAMS: bounds.pending,
                    INITIAL_WINDOW_SIZE: min(bounds.body + DEFAULT_WINDOW, MAX_WINDOW),
                    MAX_HEADER_LIST_SIZE: bounds.head,
                }
            )
        )
        self._out.append(window_update(0, RECEIVE_WINDOW - DEFAULT_WINDOW))
        if self._connections.add(self):
            self._flush()
            return
        self._is_closed = True
        is_stopping = self._connections.is_finishing
        self._out.append(goaway(0, NO_ERROR) if is_stopping else goaway(0, ENHANCE_YOUR_CALM, "too many connections"))
        self._write()
        transport.close()

    def data_received(self, data: bytes) -> None:
        """Read what has come, answer it, and write all answers that are ready at once."""
        if self._is_closed:
            return
        self._now = self._loop.time()
        try:
            self._read(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            self._close(fault.code, fault.reason)
        self._flush()

    def eof_received(self) -> bool:
        """Answer what was received; the peer may still read, except over TLS."""
        self._is_ended = True
        for stream_id, stream in list(self._streams.items()):
            if not stream.is_ended:  # and now it never will be
                self._drop(stream_id)
        is_done = self._is_closed or not self._streams or self._transport.get_extra_info("sslcontext") is not None
        return not is_done

    def connection_lost(self, error: Exception | None) -> None:
        """End what is still being answered: nobody waits for it."""
        self._is_closed = True
        self._connections.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        self._forget()

    def pause_writing(self) -> None:
        """Read nothing more from a peer that does not read its answers."""
        self._is_paused = True
        self._last = self._loop.time()
        if not self._is_closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on: with long answers, then with what was read before the pause."""
        self._is_paused = False
        self._now = self._last = self._loop.time()
        self._transport.resume_reading()
        if self._is_closed:
            return
        self._send_blocked()
        if self._rest:
            self.data_received(b"")
        else:
            self._flush()

    # Frames

    def _read(self, data: bytes) -> None:
        """Take every complete frame. Raises ConnectionFault."""
        at = 0
        end = len(data)
        out = self._out
        if not self._has_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(PROTOCOL_ERROR, "this is not HTTP/2")
            if end >= len(PREFACE):
                self._has_preface = True
                at = len(PREFACE)
            else:
                end = 0
        streams = self._streams
        unpack = FRAME_HEAD.unpack_from
        while end - at >= 9:
            if len(out) > AT_ONCE:
                self._write()
            if self._is_paused:
                break
            high, low, kind, flags, stream_id = unpack(data, at)
            size = high << 8 | low
            if size > MAX_FRAME:
                raise ConnectionFault(FRAME_SIZE_ERROR, "a frame is too long")
            begin = at + 9
            if end - begin < size:
                break
            at = begin + size
            payload = data[begin:at]
            stream_id &= MAX_WINDOW  # the highest bit is reserved
            if self._expected is not None:
                self._expect(kind, flags, stream_id)
            try:
                if kind == HEADERS and flags == END_HEADERS:
                    self._on_block(stream_id, payload, False)
                elif kind == DATA and flags == END_STREAM:
                    stream = streams.get(stream_id)
                    if stream is None or stream.is_ended or stream.body or size > self._bounds.body:
                        self._on_data(flags, stream_id, payload)
                    else:
                        self._received += size
                        if self._received >= RECEIVE_WINDOW // 2:
                            self._give_back()
                        self._complete(stream_id, stream, payload)
                else:
                    take = TAKE.get(kind)
                    if take is not None:
                        take(self, flags, stream_id, payload)
                    else:
                        self._count(kind)
            except StreamFault as fault:
                self._count(RST_STREAM)  # a peer that makes us reset streams costs as much as one that does it
                self._reset(stream_id, fault.code)
        self._rest = data[at:] if at < len(data) else b""
        if not self._rest and self._expected is None:
            self._partial = None
        elif self._partial is None or (at and self._expected is None):
            self._partial = self._now

    def _expect(self, kind: int, flags: int, stream_id: int) -> None:
        """Raise ConnectionFault if a frame comes out of order."""
        if kind != self._expected:
            raise ConnectionFault(PROTOCOL_ERROR, "a frame came where only SETTINGS or CONTINUATION may come")
        if kind == CONTINUATION and stream_id != self._block_stream:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION came on another stream")
        if kind == SETTINGS:
            if flags & ACK:
                raise ConnectionFault(PROTOCOL_ERROR, "the first frame is an acknowledgement")
            self._expected = None

    def _count(self, kind: int) -> None:
        """Count a frame that asks for nothing. Raises ConnectionFault if there are too many in one second."""
        if self._now - self._second >= 1.0:
            self._second = self._now
            self._second_id = self._last_id
            self._counts.clear()
        count = self._counts.get(kind, 0) + 1
        self._counts[kind] = count
        allowed = PER_SECOND.get(kind, UNKNOWN_PER_SECOND)
        if count > allowed:
            requests = (self._last_id - self._second_id) // 2
            if count > allowed + requests * FOR_EACH_REQUEST.get(kind, 0):
                raise ConnectionFault(ENHANCE_YOUR_CALM, f"too many frames of type {kind} in one second")

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1

    # Requests

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        payload, _ = _unpadded(flags, payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(stream_id, payload, bool(flags & END_STREAM))
            return
        self._block = payload
        self._block_stream = stream_id
        self._block_ends = bool(flags & END_STREAM)
        self._block_frames = 0
        self._expected = CONTINUATION
        self._partial = self._now

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expected is None:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION came without HEADERS")
        self._block_frames += 1
        self._block += payload
        if self._block_frames > MAX_CONTINUATIONS or len(self._block) > self._bounds.head:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & END_HEADERS:
            block = self._block
            self._block = b""
            self._expected = None
            self._on_block(stream_id, block, self._block_ends)

    def _on_block(self, stream_id: int, block: bytes, is_last: bool) -> None:
        """Take the header block of a new request, or the trailers of one that is open."""
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, block, is_last)
            return
        if not stream_id & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "streams of a client have odd numbers")
        if stream_id != self._last_id + 2:
            self._skipped.append(range(self._last_id + 2, stream_id, 2))
            self._second_id += stream_id - self._last_id - 2  # ids that are left out are no requests
        self._last_id = stream_id
        if stream_id > self._stop_id:
            self._decoder.skip(block)
            return
        head = self._decoder.head(block)
        pending = self._bounds.pending
        is_full = len(self._streams) >= pending or len(self._tasks) >= pending
        if is_full or (head.size > LARGE_HEAD and self._holds_many_heads()):
            self._reset(stream_id, REFUSED_STREAM)
            return
        if head.length is not None and head.length > self._bounds.body:
            raise StreamFault(ENHANCE_YOUR_CALM, "the body is too long")
        self._last = self._now
        stream = self._streams[stream_id] = _Stream(head, self._now)
        if is_last:
            self._complete(stream_id, stream, b"")
        elif self._is_much(head) and self._lacks_token(head):
            self._answer_early(stream_id, stream)

    def _is_much(self, head: RequestHead) -> bool:
        """Return True if a head is large, or if there are many like it. One that has a meaning is shared."""
        return head.size > LARGE_HEAD or (head.meaning is None and head.size * len(self._streams) > MOST_WITHOUT_TOKEN)

    def _lacks_token(self, head: RequestHead) -> bool:
        return self._has_token is not None and not self._has_token(head)

    def _answer_early(self, stream_id: int, stream: _Stream) -> None:
        """Answer a request as if it had no body, and ignore the rest of it: too much of it would be kept."""
        self._count(RST_STREAM)
        self._held -= len(stream.body)
        stream.body = b""
        stream.is_ended = True
        answer = self._handle(Http2Request(stream.head, b"", self._peer))
        if isinstance(answer, tuple):
            self._answer(stream_id, stream, answer)
        else:
            answer.close()
        self._reset(stream_id, NO_ERROR)

    def _holds_many_heads(self) -> bool:
        return sum(stream.head.size for stream in self._streams.values()) > HELD_HEADS * self._bounds.head

    def _on_trailers(self, stream_id: int, block: bytes, is_last: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id not in self._forgiven and stream_id <= self._stop_id:
                is_unused = not stream_id & 1 or any(stream_id in skipped for skipped in self._skipped)
                raise ConnectionFault(PROTOCOL_ERROR if is_unused else STREAM_CLOSED, "HEADERS on a closed stream")
            self._decoder.skip(block)
            return
        if stream.is_ended:
            self._decoder.skip(block)
            raise StreamFault(STREAM_CLOSED, "HEADERS after the end of a stream")
        self._decoder.trailers(block)
        if not is_last:
            raise StreamFault(PROTOCOL_ERROR, "trailers that do not end their stream")
        self._complete(stream_id, stream, b"")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._is_idle(stream_id):
            raise ConnectionFault(PROTOCOL_ERROR, "DATA on a stream that is not open")
        self._received += len(payload)
        if self._received >= RECEIVE_WINDOW // 2:
            self._give_back()
        data, padding = _unpadded(flags, payload)
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id not in self._forgiven and stream_id <= self._stop_id:
                raise StreamFault(STREAM_CLOSED, "DATA on a closed stream")
            return
        if stream.is_ended:
            raise StreamFault(STREAM_CLOSED, "DATA after the end of a stream")
        is_last = bool(flags & END_STREAM)
        if not data and not is_last:
            self._count(DATA)
        size = len(stream.body) + len(data)
        if size > self._bounds.body:
            raise StreamFault(ENHANCE_YOUR_CALM, "the body is too long")
        if stream.head.length is not None and size > stream.head.length:
            raise StreamFault(PROTOCOL_ERROR, "the body is longer than its content-length")
        if is_last:
            self._complete(stream_id, stream, data)
            return
        stream.padding += padding
        if stream.padding >= PADDING_WINDOW:
            self._out.append(window_update(stream_id, stream.padding))
            stream.padding = 0
        if self._held + len(data) > 2 * self._bounds.body:
            raise StreamFault(ENHANCE_YOUR_CALM, "too much is unfinished")
        if self._held + len(data) > MOST_WITHOUT_TOKEN and self._lacks_token(stream.head):
            self._answer_early(stream_id, stream)
            return
        self._held += len(data)
        if not stream.body:
            stream.body = data
        elif isinstance(stream.body, bytes):
            stream.body = bytearray(stream.body) + data
        else:
            stream.body += data

    def _give_back(self) -> None:
        self._out.append(window_update(0, self._received))
        self._received = 0

    def _complete(self, stream_id: int, stream: _Stream, data: bytes) -> None:
        """Answer a request that ends with `data`."""
        if stream.body:
            self._held -= len(stream.body)
            data = bytes(stream.body) + data
            stream.body = b""
        head = stream.head
        if head.length is not None and head.length != len(data):
            raise StreamFault(PROTOCOL_ERROR, "the body is not as long as its content-length")
        stream.is_ended = True
        try:
            answer = self._handle(Http2Request(head, data, self._peer))
        except Exception as error:
            log.error("an HTTP/2 request could not be handled; its stream was reset", exc_info=error)
            self._reset(stream_id, INTERNAL_ERROR)
            return
        if isinstance(answer, tuple):
            self._answer(stream_id, stream, answer)
        else:
            stream.task = self._loop.create_task(answer)
            self._tasks[stream.task] = stream_id
            stream.task.add_done_callback(self._on_answer)

    # Answers

    def _answer(self, stream_id: int, stream: _Stream, response: Http2Response) -> None:
        """Send an answer, or as much of it as the peer's window allows."""
        head, body, trailers = response
        number = NUMBER.pack(stream_id)
        if trailers is None:
            self._out += (head.last, number, head.block)
        else:
            size = len(body)
            if size > MAX_FRAME or size > self._window or size > self._stream_window + stream.credit:
                self._out += (head.more, number, head.block)
                stream.unsent = memoryview(body)
                stream.trailers = trailers
                stream.begun = self._now = self._loop.time()
                self._send(stream_id, stream)
                return
            self._window -= size
            self._out += (
                head.more,
                number,
                head.block,
                FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream_id),
                body,
                trailers.last,
                number,
                trailers.block,
            )
        del self._streams[stream_id]

    def _send(self, stream_id: int, stream: _Stream) -> None:
        """Send what both windows allow of an answer, while the peer reads it."""
        unsent = stream.unsent
        trailers = stream.trailers
        assert unsent is not None
        assert trailers is not None
        chunks = 0
        while unsent and not self._is_paused:
            size = min(len(unsent), MAX_FRAME, self._window, self._stream_window + stream.credit)
            if size <= 0:
                break
            self._out += (FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream_id), unsent[:size])
            unsent = unsent[size:]
            self._window -= size
            stream.credit -= size
            stream.begun = self._now
            chunks += 1
            if chunks % CHUNKS_AT_ONCE == 0:
                self._write()
        if not unsent:
            self._out += (trailers.last, NUMBER.pack(stream_id), trailers.block)
            self._blocked.pop(stream_id, None)
            del self._streams[stream_id]
            return
        stream.unsent = unsent
        if self._stream_window + stream.credit > 0:
            self._blocked[stream_id] = stream
        else:
            self._blocked.pop(stream_id, None)

    def _send_blocked(self) -> None:
        """Send what waits for the connection's window or for the peer, in the order in which it began to wait.

        Each turn sends something. Streams without a window of their own are not looked at.
        """
        while self._blocked and self._window > 0 and not self._is_paused:
            stream_id = next(iter(self._blocked))
            self._send(stream_id, self._blocked[stream_id])

    def _on_answer(self, task: "asyncio.Task[Http2Response]") -> None:
        """Send the answer that a task has found. Answers of one turn of the loop are written together."""
        stream_id = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("an HTTP/2 request could not be answered; its stream was reset", exc_info=error)
        stream = self._streams.get(stream_id)
        if stream is None or stream.task is not task:
            return
        stream.task = None
        if error is not None or task.cancelled():
            self._reset(stream_id, INTERNAL_ERROR)
        else:
            self._answer(stream_id, stream, task.result())
        self._last = self._loop.time()
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _reset(self, stream_id: int, code: int) -> None:
        """End a stream with an error. What the peer has already sent on it is ignored."""
        self._drop(stream_id)
        self._out.append(reset(stream_id, code))
        if len(self._forgiven) >= FORGIVEN:
            del self._forgiven[next(iter(self._forgiven))]
        self._forgiven[stream_id] = None

    def _drop(self, stream_id: int) -> None:
        """Forget a stream, and cancel its task."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._blocked.pop(stream_id, None)
            self._held -= len(stream.body)
            if stream.task is not None:
                # Not at once: a coroutine that is cancelled before its first step never awaits what it was given.
                self._loop.call_soon(stream.task.cancel)
                stream.task = None

    def _write(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _flush(self) -> None:
        """Write what is ready; close if this was the last answer."""
        self._is_flushing = False
        if self._is_closed:
            self._out.clear()
            return
        self._write()
        if (self._is_stopped or self._is_ended) and not self._streams:
            self._close(NO_ERROR, "")

    # Frames about streams and the connection

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            if self._is_idle(stream_id):  # RST_STREAM is not allowed there
                raise ConnectionFault(FRAME_SIZE_ERROR, "PRIORITY has a wrong length")
            raise StreamFault(FRAME_SIZE_ERROR, "PRIORITY has a wrong length")
        self._count(PRIORITY)

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM has a wrong length")
        if self._is_idle(stream_id):
            raise ConnectionFault(PROTOCOL_ERROR, "RST_STREAM on a stream that is not open")
        stream = self._streams.get(stream_id)
        if stream is None or self._now - stream.begun < PATIENCE:
            self._count(RST_STREAM)
        self._drop(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS on a stream")
        self._count(SETTINGS)
        if flags & ACK:
            if payload:
                raise ConnectionFault(FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is not empty")
            if not self._is_acknowledged:
                self._is_acknowledged = True
                self._decoder.table_is_refused()
            return
        if len(payload) % 6:
            raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS has a wrong length")
        if len(payload) > 6 * MAX_SETTINGS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many settings in one frame")
        for name, value in SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
                if any(value + stream.credit > MAX_WINDOW for stream in self._streams.values()):
                    raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window too large")
                self._stream_window = value
            elif name == MAX_FRAME_SIZE:
                if not MAX_FRAME <= value < 2**24:
                    raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
            elif name in (ENABLE_PUSH, NO_RFC7540_PRIORITIES) and value > 1:
                raise ConnectionFault(PROTOCOL_ERROR, "a setting is neither 0 nor 1")
        self._out.append(SETTINGS_ACK)
        for stream_id, stream in list(self._streams.items()):
            if stream.unsent is not None:
                self._send(stream_id, stream)

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PING has a wrong length")
        self._count(PING)
        if not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif self._is_finishing and LAST_PING.endswith(payload):
            self._stop()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY is too short")
        self._is_left = True

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "WINDOW_UPDATE has a wrong length")
        self._count(WINDOW_UPDATE)
        size = NUMBER.unpack(payload)[0] & MAX_WINDOW
        if stream_id == 0:
            if size == 0:
                raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self._window + size > MAX_WINDOW:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "the window is too large")
            self._window += size
            self._send_blocked()
        else:
            if self._is_idle(stream_id):
                raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that is not open")
            stream = self._streams.get(stream_id)
            if stream is None:
                return
            if size == 0:
                raise StreamFault(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self._stream_window + stream.credit + size > MAX_WINDOW:
                raise StreamFault(FLOW_CONTROL_ERROR, "the window is too large")
            stream.credit += size
            if stream.unsent is not None:
                self._send(stream_id, stream)

    # The end

    def _forget(self) -> None:
        """Drop all streams, and what was read of another frame."""
        for stream_id in list(self._streams):
            self._drop(stream_id)
        self._rest = self._block = b""

    def _close(self, code: int, reason: str) -> None:
        """Say why, then close. The peer may read that: its last frames are read and thrown away for a moment."""
        if self._is_closed:
            return
        self._is_closed = True
        self._last = self._loop.time()
        if code != NO_ERROR or not self._is_stopped:
            self._out.append(goaway(max(min(self._last_id, self._stop_id), 0), code, reason))
        self._write()
        self._forget()
        transport = self._transport
        if self._is_left or self._is_ended:
            transport.close()
        elif not transport.is_closing():
            if transport.can_write_eof():
                transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(LINGER, transport.close)

    # What its worker calls

    def finish(self) -> None:
        """Tell the peer to send no more requests. Answer what it has sent until it knows, then close.

        The first GOAWAY names no last stream, because requests may be on their way. When the peer has answered the PING
        that comes with it, or has had the time to, the second one does.
        """
        if self._is_closed or self._is_finishing:
            return
        self._is_finishing = True
        if self._is_left or self._is_ended or not self._has_preface:
            self._stop()
        else:
            self._out += (LAST_PING, goaway(MAX_WINDOW, NO_ERROR))  # some peers take nothing after a GOAWAY
            self._timer = self._loop.call_later(LAST_CALL, self._stop)
        self._flush()

    def _stop(self) -> None:
        """Name the last stream that is answered. Later ones are ignored: the peer may send them elsewhere."""
        if self._is_closed or self._is_stopped:
            return
        self._is_stopped = True
        self._stop_id = max(self._last_id, 0)
        self._out.append(goaway(self._stop_id, NO_ERROR))
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Close if the peer has said goodbye, is idle or too slow, or does not read its answers."""
        bounds = self._bounds
        if self._is_closed or self._is_paused:
            if now - self._last > bounds.request:
                self._transport.abort()
        elif not self._is_acknowledged and now - self._made > bounds.request:
            self._close(SETTINGS_TIMEOUT, "SETTINGS were not acknowledged")
        elif self._partial is not None and now - self._partial > bounds.request:
            self._close(NO_ERROR, "a frame took too long")
        elif not self._streams:
            if self._is_left:
                self._close(NO_ERROR, "")
            elif now - self._last > bounds.idle:
                self.finish()
        else:
            for stream_id, stream in list(self._streams.items()):
                if (not stream.is_ended or stream.unsent is not None) and now - stream.begun > bounds.request:
                    self._reset(stream_id, CANCEL)
            self._flush()


def _unpadded(flags: int, payload: bytes) -> tuple[bytes, int]:
    """Return a payload without its padding, and how many bytes that was. Raises ConnectionFault."""
    if not flags & PADDED:
        return payload, 0
    if not payload:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a padded frame has no length of its padding")
    padding = payload[0] + 1
    if padding > len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - padding + 1], padding


TAKE: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    DATA: Http2Connection._on_data,
    HEADERS: Http2Connection._on_headers,
    PRIORITY: Http2Connection._on_priority,
    RST_STREAM: Http2Connection._on_reset,
    SETTINGS: Http2Connection._on_settings,
    PUSH_PROMISE: Http2Connection._on_push_promise,
    PING: Http2Connection._on_ping,
    GOAWAY: Http2Connection._on_goaway,
    WINDOW_UPDATE: Http2Connection._on_window_update,
    CONTINUATION: Http2Connection._on_continuation,
}
