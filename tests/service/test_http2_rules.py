"""Every rule of RFC 9113 that a peer can break, one line each: the bytes, and the error that they must get.

Each line runs twice, in one read and byte by byte, and must give the same answer.
"""

import asyncio

import pytest

from ratebound.service.connections import Bounds
from ratebound.service.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_CLOSED,
    TWO_NUMBERS,
    WINDOW_UPDATE,
    frame,
    goaway,
    reset,
    settings,
    window_update,
)
from tests.service.http2_peer import (
    ACKNOWLEDGED,
    FIELDS,
    HELLO,
    Fields,
    Peer,
    Sent,
    block,
    end,
    frames_of,
    headers,
    request,
    with_path,
)
from tests.waiting.virtual import run, seconds

LATER = with_path(b"/later")
NEVER = with_path(b"/never")
LAST = END_HEADERS | END_STREAM
PRIORITIES = b"\0\0\0\0\x10"


def number(value: int) -> bytes:
    return NUMBER.pack(value)


def without(name: bytes) -> Fields:
    return tuple(field for field in FIELDS if field[0] != name)


def exchange(sent: bytes, size: int | None, bounds: Bounds | None = None) -> tuple[list[Sent], bool, bytes]:
    """Return what the server sends, whether it still answers then, and its bytes."""

    async def main() -> tuple[list[Sent], bool, bytes]:
        peer = Peer(bounds=bounds)
        peer.send(sent, size=size)
        written = peer.wire.written
        return peer.frames(), peer.is_open(), written

    return run(main())


CONNECTION: dict[str, tuple[bytes, int]] = {
    # The beginning
    "HTTP/1.1": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", PROTOCOL_ERROR),
    "a preface that is wrong at its end": (PREFACE[:-1] + b"x", PROTOCOL_ERROR),
    "PING before SETTINGS": (PREFACE + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "HEADERS before SETTINGS": (PREFACE + headers(1), PROTOCOL_ERROR),
    "an unknown frame before SETTINGS": (PREFACE + frame(99, 0, 0), PROTOCOL_ERROR),
    "an acknowledgement before SETTINGS": (PREFACE + ACKNOWLEDGED, PROTOCOL_ERROR),
}
AFTER_HELLO: dict[str, tuple[bytes, int]] = {
    # Frames in general
    "DATA that is too long": (headers(1) + frame(DATA, 0, 1, bytes(16385)), FRAME_SIZE_ERROR),
    "HEADERS that are too long": (frame(HEADERS, END_HEADERS, 1, bytes(16385)), FRAME_SIZE_ERROR),
    "an unknown frame that is too long": (frame(99, 0, 0, bytes(16385)), FRAME_SIZE_ERROR),
    # Header blocks
    "a block that is cut": (frame(HEADERS, END_HEADERS, 1, block()[:-3]), COMPRESSION_ERROR),
    "an index that does not exist": (frame(HEADERS, END_HEADERS, 1, b"\x20\xfe"), COMPRESSION_ERROR),
    "index 0": (frame(HEADERS, END_HEADERS, 1, b"\x20\x80"), COMPRESSION_ERROR),
    "a table above the one allowed": (frame(HEADERS, END_HEADERS, 1, b"\x21" + block()[1:]), COMPRESSION_ERROR),
    "no table size update after the acknowledgement": (
        frame(HEADERS, END_HEADERS, 1, block()[1:]),
        COMPRESSION_ERROR,
    ),
    "a later table above the one allowed": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x21" + block()[1:]),
        COMPRESSION_ERROR,
    ),
    "a table size update in the middle": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, block() + b"\x20"),
        COMPRESSION_ERROR,
    ),
    "a later block that is cut": (headers(1) + frame(HEADERS, END_HEADERS, 3, block()[:-3]), COMPRESSION_ERROR),
    "a later index that does not exist": (headers(1) + frame(HEADERS, END_HEADERS, 3, b"\xbe"), COMPRESSION_ERROR),
    "a later index 0": (headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x80"), COMPRESSION_ERROR),
    "a later name that does not exist": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x7e\x01a"),
        COMPRESSION_ERROR,
    ),
    "a later length without an end": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x00\x7f\xff\xff\xff\xff\xff\xff"),
        COMPRESSION_ERROR,
    ),
    "a later Huffman string that ends within a code": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x00\x81\x00\x01a"),
        COMPRESSION_ERROR,
    ),
    "a later Huffman string with the end of string in it": (
        headers(1) + frame(HEADERS, END_HEADERS, 3, b"\x00\x84\xff\xff\xff\xff\x01a"),
        COMPRESSION_ERROR,
    ),
    "trailers that are cut": (headers(1) + frame(HEADERS, LAST, 1, b"\x00\x05x"), COMPRESSION_ERROR),
    # Streams
    "HEADERS without a stream": (headers(0), PROTOCOL_ERROR),
    "HEADERS on an even stream": (headers(2), PROTOCOL_ERROR),
    "HEADERS on an even stream below": (headers(5) + headers(2), PROTOCOL_ERROR),
    "HEADERS on a stream that was left out": (headers(5) + headers(3), PROTOCOL_ERROR),
    "HEADERS on a stream that was answered": (request(1) + headers(1), STREAM_CLOSED),
    "HEADERS on a stream that the peer has reset": (headers(1) + reset(1, 8) + headers(1), STREAM_CLOSED),
    "DATA without a stream": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "the last DATA on an idle stream": (frame(DATA, END_STREAM, 1, b"x"), PROTOCOL_ERROR),
    "DATA on an even stream": (headers(3) + frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
    "PUSH_PROMISE": (headers(1) + frame(PUSH_PROMISE, END_HEADERS, 1, number(2) + block()), PROTOCOL_ERROR),
    # CONTINUATION
    "CONTINUATION without HEADERS": (frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL_ERROR),
    "CONTINUATION after the end": (headers(1) + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
    "DATA within a block": (frame(HEADERS, 0, 1, block()) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "PING within a block": (frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "an unknown frame within a block": (frame(HEADERS, 0, 1, block()) + frame(99, 0, 1), PROTOCOL_ERROR),
    "HEADERS within a block": (frame(HEADERS, 0, 1, block()) + headers(3), PROTOCOL_ERROR),
    "CONTINUATION on another stream": (
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 3, b""),
        PROTOCOL_ERROR,
    ),
    "many CONTINUATION frames": (
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1) * 17,
        ENHANCE_YOUR_CALM,
    ),
    "long CONTINUATION frames": (
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, bytes(16384)) * 2,
        ENHANCE_YOUR_CALM,
    ),
    # Padding
    "DATA padded with all of it": (headers(1) + frame(DATA, PADDED, 1, b"\x04abc"), PROTOCOL_ERROR),
    "DATA padded without a length": (headers(1) + frame(DATA, PADDED, 1), FRAME_SIZE_ERROR),
    "HEADERS padded with all of them": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()), PROTOCOL_ERROR),
    "HEADERS padded without a length": (frame(HEADERS, END_HEADERS | PADDED, 1), FRAME_SIZE_ERROR),
    "HEADERS too short for their priority": (frame(HEADERS, LAST | HAS_PRIORITY, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
    # Sizes and streams of the other frames
    "PRIORITY without a stream": (frame(PRIORITY, 0, 0, PRIORITIES), PROTOCOL_ERROR),
    "PRIORITY of a wrong length on an idle stream": (frame(PRIORITY, 0, 1, b"\0"), FRAME_SIZE_ERROR),
    "RST_STREAM without a stream": (frame(RST_STREAM, 0, 0, number(8)), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (reset(1, 8), PROTOCOL_ERROR),
    "RST_STREAM of a wrong length": (headers(1) + frame(RST_STREAM, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "SETTINGS of a wrong length": (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "an acknowledgement that is not empty": (frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    "ENABLE_PUSH 2": (settings({2: 2}), PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE too large": (settings({4: 2**31}), FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE too small": (settings({5: 16383}), PROTOCOL_ERROR),
    "MAX_FRAME_SIZE too large": (settings({5: 2**24}), PROTOCOL_ERROR),
    "NO_RFC7540_PRIORITIES 2": (settings({9: 2}), PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE that makes a window too large": (
        headers(1) + window_update(1, 2**31 - 1 - 65535) + settings({4: 65536}),
        FLOW_CONTROL_ERROR,
    ),
    "PING on a stream": (headers(1) + frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "PING of a wrong length": (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, TWO_NUMBERS.pack(0, 0)), PROTOCOL_ERROR),
    "GOAWAY that is too short": (frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of a wrong length": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0 on the connection": (window_update(0, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond the largest window": (window_update(0, 2**31 - 1), FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (window_update(1, 1), PROTOCOL_ERROR),
    # Floods
    "many SETTINGS": (settings({}) * 21, ENHANCE_YOUR_CALM),
    "many acknowledgements": (ACKNOWLEDGED * 21, ENHANCE_YOUR_CALM),
    "many PING": (frame(PING, 0, 0, bytes(8)) * 201, ENHANCE_YOUR_CALM),
    "many acknowledgements of PING": (frame(PING, ACK, 0, bytes(8)) * 201, ENHANCE_YOUR_CALM),
    "many PRIORITY": (frame(PRIORITY, 0, 1, PRIORITIES) * 1001, ENHANCE_YOUR_CALM),
    "many unknown frames": (frame(99, 0, 0) * 201, ENHANCE_YOUR_CALM),
    "many empty DATA": (headers(1) + frame(DATA, 0, 1) * 201, ENHANCE_YOUR_CALM),
    "many DATA that are only padding": (headers(1) + frame(DATA, PADDED, 1, b"\0") * 201, ENHANCE_YOUR_CALM),
    "many WINDOW_UPDATE": (window_update(0, 1) * 2001, ENHANCE_YOUR_CALM),
    "rapid reset": (
        b"".join(headers(2 * i + 1) + reset(2 * i + 1, 8) for i in range(1001)),
        ENHANCE_YOUR_CALM,
    ),
    "rapid faults, so that the server resets": (
        b"".join(headers(2 * i + 1) + window_update(2 * i + 1, 0) for i in range(1001)),
        ENHANCE_YOUR_CALM,
    ),
}
CONNECTION |= {name: (HELLO + ACKNOWLEDGED + sent, code) for name, (sent, code) in AFTER_HELLO.items()}


@pytest.mark.parametrize(("sent", "code"), CONNECTION.values(), ids=CONNECTION)
def test_an_error_of_the_connection_is_named_and_closes_it(sent: bytes, code: int) -> None:
    frames, is_open, written = exchange(sent, None)
    assert [(frame.kind, frame.code) for frame in frames if frame.kind == GOAWAY] == [(GOAWAY, code)]
    assert frames[-1].kind == GOAWAY
    assert frames[-1].payload[8:].isascii()
    assert not is_open
    assert exchange(sent, 1)[2] == written


STREAM: dict[str, tuple[bytes, int]] = {
    # The life of a stream
    "HEADERS after the end": (headers(1, LAST, NEVER) + headers(1, LAST), STREAM_CLOSED),
    "DATA after the end": (headers(1, LAST, NEVER) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "the last DATA after the end": (headers(1, LAST, NEVER) + frame(DATA, END_STREAM, 1, b"x"), STREAM_CLOSED),
    "DATA on a stream that was answered": (request(1) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "DATA on a stream that the peer has reset": (headers(1) + reset(1, 8) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "DATA on a stream that was left out": (headers(3) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "trailers that do not end the stream": (headers(1) + frame(HEADERS, END_HEADERS, 1, block(())), PROTOCOL_ERROR),
    "PRIORITY of a wrong length": (headers(1) + frame(PRIORITY, 0, 1, b"\0"), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (headers(1) + window_update(1, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond the largest window": (headers(1) + window_update(1, 2**31 - 1), FLOW_CONTROL_ERROR),
    # Bodies
    "a body longer than content-length": (
        headers(1, fields=(*FIELDS, (b"content-length", b"3"))) + frame(DATA, 0, 1, b"four"),
        PROTOCOL_ERROR,
    ),
    "a body shorter than content-length": (
        request(1, b"two", (*FIELDS, (b"content-length", b"4"))),
        PROTOCOL_ERROR,
    ),
    "no body but a content-length": (headers(1, LAST, (*FIELDS, (b"content-length", b"4"))), PROTOCOL_ERROR),
    "a body shorter than content-length, then trailers": (
        headers(1, fields=(*FIELDS, (b"content-length", b"4")))
        + frame(DATA, 0, 1, b"two")
        + frame(HEADERS, LAST, 1, block(((b"a", b"b"),))),
        PROTOCOL_ERROR,
    ),
    "a content-length above the bound": (
        headers(1, fields=(*FIELDS, (b"content-length", b"1048577"))),
        ENHANCE_YOUR_CALM,
    ),
    "a body above the bound": (headers(1) + frame(DATA, 0, 1, bytes(16384)) * 65, ENHANCE_YOUR_CALM),
    "a header list above the bound": (
        headers(1) + reset(1, 8) + frame(HEADERS, END_HEADERS, 3, b"\x82" * 1000),
        ENHANCE_YOUR_CALM,
    ),
}


def malformed(*fields: tuple[bytes, bytes]) -> tuple[bytes, int]:
    return headers(1, LAST, fields), PROTOCOL_ERROR


STREAM |= {
    "no :method": malformed(*without(b":method")),
    "no :scheme": malformed(*without(b":scheme")),
    "no :path": malformed(*without(b":path")),
    "an empty :path": malformed(*without(b":path"), (b":path", b"")),
    "a :path without a slash": malformed(*without(b":path"), (b":path", b"echo")),
    "two :path": malformed(*FIELDS, (b":path", b"/echo")),
    "a pseudo header that does not exist": malformed(*FIELDS, (b":colour", b"blue")),
    "a pseudo header of answers": malformed(*FIELDS, (b":status", b"200")),
    "a pseudo header of extended CONNECT": malformed(*FIELDS, (b":protocol", b"websocket")),
    "a pseudo header after the others": malformed(*without(b":path"), (b"a", b"b"), (b":path", b"/echo")),
    "no header at all": malformed(),
    "CONNECT with a path": malformed((b":method", b"CONNECT"), *without(b":method")),
    "CONNECT without an authority": malformed((b":method", b"CONNECT")),
    "upper case": malformed(*FIELDS, (b"Upper", b"x")),
    "an empty name": malformed(*FIELDS, (b"", b"x")),
    "a name of a colon": malformed(*FIELDS, (b":", b"x")),
    "a blank in a name": malformed(*FIELDS, (b"a b", b"x")),
    "a colon in a name": malformed(*FIELDS, (b"a:b", b"x")),
    "a byte above ASCII in a name": malformed(*FIELDS, (b"a\xe9", b"x")),
    "NUL in a value": malformed(*FIELDS, (b"a", b"x\0y")),
    "CR in a value": malformed(*FIELDS, (b"a", b"x\ry")),
    "LF in a value": malformed(*FIELDS, (b"a", b"x\ny")),
    "LF at the end of a value": malformed(*FIELDS, (b"a", b"x\n")),
    "a blank before a value": malformed(*FIELDS, (b"a", b" x")),
    "a tab after a value": malformed(*FIELDS, (b"a", b"x\t")),
    "connection": malformed(*FIELDS, (b"connection", b"close")),
    "keep-alive": malformed(*FIELDS, (b"keep-alive", b"1")),
    "proxy-connection": malformed(*FIELDS, (b"proxy-connection", b"close")),
    "transfer-encoding": malformed(*FIELDS, (b"transfer-encoding", b"chunked")),
    "upgrade": malformed(*FIELDS, (b"upgrade", b"h2c")),
    "te other than trailers": malformed(*FIELDS, (b"te", b"gzip")),
    "a content-length that is no number": malformed(*FIELDS, (b"content-length", b"+1")),
    "content-lengths that differ": malformed(*FIELDS, (b"content-length", b"0"), (b"content-length", b"1")),
    "a host that is not the authority": malformed(*FIELDS, (b"host", b"elsewhere")),
    "hosts that differ": malformed(*without(b":authority"), (b"host", b"one"), (b"host", b"two")),
    "an authority with a user": malformed(*without(b":authority"), (b":authority", b"me@localhost")),
    "a pseudo header in trailers": (headers(1) + headers(1, LAST), PROTOCOL_ERROR),
    "a header of connections in trailers": (
        headers(1) + headers(1, LAST, ((b"connection", b"close"),)),
        PROTOCOL_ERROR,
    ),
    "upper case in trailers": (headers(1) + headers(1, LAST, ((b"Upper", b"x"),)), PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), STREAM.values(), ids=STREAM)
def test_an_error_of_a_stream_is_named_and_leaves_the_others_alone(sent: bytes, code: int) -> None:
    frames, is_open, written = exchange(HELLO + ACKNOWLEDGED + sent, None)
    assert [frame.code for frame in frames if frame.kind == RST_STREAM] == [code]
    assert is_open
    assert exchange(HELLO + ACKNOWLEDGED + sent, 1)[2] == written


@pytest.mark.parametrize(("sent", "code"), STREAM.values(), ids=STREAM)
def test_an_error_of_a_stream_is_the_same_once_blocks_are_looked_up(sent: bytes, code: int) -> None:
    """A first request has emptied the table, so that the decoder of the connection is gone."""

    async def main() -> None:
        peer = Peer().begin()
        assert peer.send(request(1)).answers() == {1: b"hello"}
        assert peer.connection._decoder.is_static
        peer.send(moved(sent, 2))
        assert [frame.code for frame in peer.frames() if frame.kind == RST_STREAM] == [code]
        assert peer.is_open()

    run(main())


def moved(sent: bytes, by: int) -> bytes:
    """Return frames with other stream ids."""
    return b"".join(frame(each.kind, each.flags, each.stream + by, each.payload) for each in frames_of(sent))


ACCEPTED: dict[str, bytes] = {
    "as it is": request(1),
    "padding": headers(1) + frame(DATA, PADDED, 1, b"\x03hel" + bytes(3)) + frame(DATA, END_STREAM, 1, b"lo"),
    "padding that is empty": headers(1) + frame(DATA, PADDED | END_STREAM, 1, b"\0hello"),
    "padded HEADERS": frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05" + block() + bytes(5))
    + frame(DATA, END_STREAM, 1, b"hello"),
    "HEADERS with a priority": frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, PRIORITIES + block())
    + frame(DATA, END_STREAM, 1, b"hello"),
    "CONTINUATION": frame(HEADERS, 0, 1, block()[:5])
    + frame(CONTINUATION, 0, 1, block()[5:9])
    + frame(CONTINUATION, 0, 1)
    + frame(CONTINUATION, END_HEADERS, 1, block()[9:])
    + frame(DATA, END_STREAM, 1, b"hello"),
    "trailers": headers(1) + frame(DATA, 0, 1, b"hello") + headers(1, LAST, ((b"checksum", b"1"),)),
    "many DATA": headers(1) + b"".join(frame(DATA, 0, 1, bytes((c,))) for c in b"hello") + frame(DATA, END_STREAM, 1),
    "empty DATA": headers(1) + frame(DATA, 0, 1) + frame(DATA, END_STREAM, 1, b"hello"),
    "content-length": request(1, b"hello", (*FIELDS, (b"content-length", b"5"))),
    "content-length twice": request(1, b"hello", (*FIELDS, *[(b"content-length", b"5")] * 2)),
    "host as the authority": request(1, b"hello", (*FIELDS, (b"host", b"localhost"))),
    "te: trailers": request(1, b"hello", (*FIELDS, (b"te", b"trailers"))),
    "an empty value": request(1, b"hello", (*FIELDS, (b"empty", b""))),
    "a value above ASCII": request(1, b"hello", (*FIELDS, (b"name", "é".encode()))),
    "PRIORITY": frame(PRIORITY, 0, 1, PRIORITIES) + frame(PRIORITY, 0, 2, PRIORITIES) + request(1),
    "PRIORITY_UPDATE": frame(16, 0, 0, number(1) + b"u=1") + request(1),
    "an unknown frame": frame(99, 255, 7, b"what is this") + request(1),
    "an unknown setting": frame(SETTINGS, 0, 0, SETTING.pack(99, 2**32 - 1)) + request(1),
    "settings that do not matter": settings({1: 0, 2: 0, 3: 0, 5: 2**24 - 1, 6: 1, 8: 1, 9: 1}) + request(1),
    "flags that do not exist": headers(1, END_HEADERS | 0xC2) + frame(DATA, END_STREAM | 0xF6, 1, b"hello"),
    "the reserved bit of the stream": frame(HEADERS, END_HEADERS, 1 | 1 << 31, block())
    + frame(DATA, END_STREAM, 1 | 1 << 31, b"hello"),
    "the reserved bit of a window": window_update(0, 1 | 1 << 31) + request(1),
    "WINDOW_UPDATE on a stream": headers(1) + window_update(1, 5) + frame(DATA, END_STREAM, 1, b"hello"),
    "an acknowledgement too many": ACKNOWLEDGED + request(1),
    "an acknowledgement of a PING": frame(PING, ACK, 0, bytes(8)) + request(1),
    "a reset of another stream": headers(1) + headers(3) + reset(3, 8) + frame(DATA, END_STREAM, 1, b"hello"),
    "a stream that was left out": headers(1) + headers(7) + frame(DATA, END_STREAM, 1, b"hello"),
    "frames of a stream after its answer": request(1) + window_update(1, 5) + reset(1, 0) + window_update(1, 0),
    "frames on their way to a stream that the server has reset": headers(1)
    + headers(3)
    + window_update(3, 0)
    + frame(DATA, 0, 3, b"x")
    + headers(3, LAST, ((b"a", b"b"),))
    + frame(DATA, END_STREAM, 1, b"hello"),
}


@pytest.mark.parametrize("sent", ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("size", [None, 1, 2, 7, 10])
def test_what_is_allowed_is_answered_however_it_is_cut(sent: bytes, size: int | None) -> None:
    async def main() -> None:
        peer = Peer()
        peer.send(HELLO, ACKNOWLEDGED, sent, size=size)
        assert peer.answers()[1] == b"hello"
        assert peer.is_open()

    run(main())


def test_a_connection_error_in_a_later_field_wins_over_a_malformed_one() -> None:
    """Else the peer would not learn that its encoder is broken."""
    sent = HELLO + ACKNOWLEDGED + request(1) + frame(HEADERS, LAST, 3, block((*FIELDS, (b"Upper", b"x"))) + b"\xfe")
    assert exchange(sent, None)[0][-1].code == COMPRESSION_ERROR


def test_a_header_list_above_the_bound_ends_a_connection_whose_table_is_in_use() -> None:
    sent = HELLO + frame(HEADERS, END_HEADERS, 1, b"\x82" * 1000)
    frames, is_open, _ = exchange(sent, None)
    assert frames[-1].code == ENHANCE_YOUR_CALM
    assert not is_open


def test_a_ping_is_answered_with_its_payload() -> None:
    frames, _, _ = exchange(HELLO + frame(PING, 0, 0, b"12345678"), None)
    assert Sent(PING, ACK, 0, b"12345678") in frames


def test_each_request_allows_for_a_ping() -> None:
    sent = b"".join(request(2 * i + 1) + frame(PING, 0, 0, bytes(8)) for i in range(1000))
    assert exchange(HELLO + ACKNOWLEDGED + sent, None)[1]


def test_goaway_names_the_last_stream_that_was_seen() -> None:
    frames, _, _ = exchange(HELLO + ACKNOWLEDGED + request(1) + request(7) + window_update(0, 0), None)
    assert frames[-1].payload[:4] == number(7)


def test_a_peer_that_says_goodbye_gets_its_answers_first() -> None:
    async def main() -> None:
        peer = Peer().begin()
        peer.send(request(1, b"first", LATER), goaway(0, 0))
        peer.connections.expire(seconds())
        assert not peer.wire.is_closing()
        await asyncio.sleep(2)
        assert peer.answers() == {1: b"first"}
        peer.connections.expire(seconds())
        assert peer.wire.is_closing()
        await end(peer)
        assert peer.is_clean()

    run(main())
