"""HTTP/2 frames (RFC 9113): their numbers, how one is written, and the two kinds of errors."""

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 16_384  # bytes of payload: the protocol's smallest maximum, which both sides always allow
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535

# Types
DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

# Flags
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

# Settings
HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6
NO_RFC7540_PRIORITIES = 9

# Error codes
NO_ERROR = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2
FLOW_CONTROL_ERROR = 3
SETTINGS_TIMEOUT = 4
STREAM_CLOSED = 5
FRAME_SIZE_ERROR = 6
REFUSED_STREAM = 7
CANCEL = 8
COMPRESSION_ERROR = 9
ENHANCE_YOUR_CALM = 11

# The length is cut in two, because struct has no format for three bytes.
FRAME_HEAD = Struct(">HBBBI")
SETTING = Struct(">HI")
NUMBER = Struct(">I")
TWO_NUMBERS = Struct(">II")


class ConnectionFault(Exception):
    """An error of the peer that ends the connection. `reason` is sent to the peer with GOAWAY; it is ASCII."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamFault(Exception):
    """An error of the peer that ends one stream. The others go on."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    length = len(payload)
    return FRAME_HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame: the peer may send `size` more bytes."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size))


def reset(stream: int, code: int) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last: int, code: int, reason: str = "") -> bytes:
    """Return a GOAWAY frame. `last` is the last stream of the peer that is answered."""
    return frame(GOAWAY, 0, 0, TWO_NUMBERS.pack(last, code) + reason.encode("ascii", "replace"))
