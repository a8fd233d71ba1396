"""Header blocks of HTTP/2: what a request's block means, and the blocks of answers.

The server announces a dynamic table of size 0. Once the peer has agreed, a block depends on nothing but its own bytes:
equal blocks mean the same, so a small memo maps a block to its head, and another one a single field to its name and
value. A block that differs from all others in one field costs the decoding of that field. Until the peer has agreed,
every block goes through the connection's own hpack decoder, which has the peer's table.

Answers use literals that are never added to a table, so that their blocks are the same bytes for every peer.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

from ratebound.service.http2_frames import (
    COMPRESSION_ERROR,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    MAX_FRAME,
    PROTOCOL_ERROR,
    ConnectionFault,
    StreamFault,
    frame,
)

STATIC_TABLE: tuple[tuple[bytes, bytes], ...] = HeaderTable.STATIC_TABLE
STATIC_SIZE = len(STATIC_TABLE)
ENTRY = 32  # bytes that a field counts beside its name and value, in the size of a header list
REMEMBERED_HEADS = 512
REMEMBERED_FIELDS = 2048
MAX_SEEN = 4096
MAX_REMEMBERED = 2048  # bytes of a block or a field; longer ones are decoded each time
MANY_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,4}[\x00-\x7f]){9}")  # of the table size; two make sense
EMPTY_TABLE = 0x20  # the only table size update that is left: to 0

NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
COLON = ord(":")
BLANKS = (b" ", b"\t")
LENGTH = re.compile(rb"[0-9]{1,18}")
PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
FORBIDDEN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
CHECKED = PSEUDO | FORBIDDEN | {b"content-length", b"host", b"te"}

Field = tuple[bytes, bytes]


class RequestHead:
    """The head of a request: method, path and headers in lower case, without the pseudo headers.

    Heads are shared by all requests whose blocks are equal, so nobody may change one. `meaning` is for the handler,
    which may keep there what it has found out about the head.
    """

    __slots__ = ("headers", "length", "meaning", "method", "path", "size")

    def __init__(self, method: bytes, path: bytes, headers: list[Field], length: int | None, size: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.length = length  # of the body, if the peer tells it
        self.size = size  # as SETTINGS_MAX_HEADER_LIST_SIZE counts
        self.meaning: Any = None


class BlockDecoder:
    """Decodes the header blocks of one connection. `limit` is the size of the largest header list that is taken.

    `is_static` is True once the peer has emptied its table.
    """

    __slots__ = ("_decoder", "_limit", "is_static")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder: Decoder | None = Decoder(limit)
        self.is_static = False

    def table_is_refused(self) -> None:
        """Take note that the peer has acknowledged the table size of 0. Its next block must begin by saying so."""
        if self._decoder is not None:
            self._decoder.max_allowed_table_size = 0

    def head(self, block: bytes) -> RequestHead:
        """Return the head of a request. Raises ConnectionFault, or StreamFault if only this request is wrong."""
        if not self.is_static:
            return head_of(self._decoded(block))
        head = _heads.get(block)
        if head is None:
            head = head_of(_static_fields(block, self._limit))
            if len(block) <= MAX_REMEMBERED and head.size <= MAX_REMEMBERED * 4 and _was_seen(block):
                if len(_heads) >= REMEMBERED_HEADS:
                    _heads.clear()
                _heads[block] = head
        if head.size > self._limit:
            raise StreamFault(ENHANCE_YOUR_CALM, "the headers are too long")
        return head

    def trailers(self, block: bytes) -> None:
        """Check the trailers of a request. They mean nothing here. Raises as `head` does."""
        for (name, _), _, _ in self._fields(block):
            if name in PSEUDO or name in FORBIDDEN:
                raise StreamFault(PROTOCOL_ERROR, "trailers hold a field that is not allowed there")

    def skip(self, block: bytes) -> None:
        """Decode a block that is ignored, so that the table stays right. Raises ConnectionFault."""
        with suppress(StreamFault):
            self._fields(block)

    def _fields(self, block: bytes) -> "list[_Checked]":
        return _static_fields(block, self._limit) if self.is_static else self._decoded(block)

    def _decoded(self, block: bytes) -> "list[_Checked]":
        decoder = self._decoder
        assert decoder is not None
        if MANY_UPDATES.match(block):
            raise ConnectionFault(COMPRESSION_ERROR, "a header block has too many table size updates")
        try:
            fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "the headers are too long") from None
        except (HPACKError, IndexError, ValueError):
            raise ConnectionFault(COMPRESSION_ERROR, "a header block cannot be decoded") from None
        if decoder.max_allowed_table_size == 0:  # so that the table is empty: the decoder has checked it
            self.is_static = True
            self._decoder = None
        return [_checked(name, value) for name, value in fields]


_Checked = tuple[Field, bool, int]  # name and value, True if head_of has to look at it, and its size in a list
NO_FIELD: _Checked = ((b"", b""), False, ENTRY)  # stands for a field that is wrong
_heads: dict[bytes, RequestHead] = {}
_fields: dict[bytes, _Checked] = {}
_names: dict[bytes, bytes] = {}
_seen: set[int] = set()  # hashes of blocks and fields that came once


def _was_seen(coded: bytes) -> bool:
    """Return True if these bytes came before. What differs with every request is not worth remembering."""
    key = hash(coded)
    if key in _seen:
        return True
    if len(_seen) >= MAX_SEEN:
        _seen.clear()
    _seen.add(key)
    return False


def head_of(fields: "list[_Checked]") -> RequestHead:
    """Return the head that a list of fields stands for. Raises StreamFault if it is malformed (RFC 9113, 8.2, 8.3)."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[Field] = []
    length = host = None
    size = 0
    for field, is_checked, counts in fields:
        size += counts
        if is_checked:
            name, value = field
            if name in PSEUDO:
                if headers or name in pseudo:
                    raise StreamFault(PROTOCOL_ERROR, "a pseudo header is late or repeated")
                pseudo[name] = value
                continue
            if name in FORBIDDEN or (name == b"te" and value != b"trailers"):
                raise StreamFault(PROTOCOL_ERROR, "a header of HTTP/1 connections")
            if name == b"content-length":
                if not LENGTH.fullmatch(value) or length not in (None, int(value)):
                    raise StreamFault(PROTOCOL_ERROR, "content-length is not one number")
                length = int(value)
            elif name == b"host":
                if host not in (None, value):
                    raise StreamFault(PROTOCOL_ERROR, "several hosts")
                host = value
        headers.append(field)
    method = pseudo.get(b":method")
    path = pseudo.get(b":path")
    authority = pseudo.get(b":authority")
    if method == b"CONNECT":
        if authority is None or len(pseudo) != 2:
            raise StreamFault(PROTOCOL_ERROR, "CONNECT takes :authority and nothing else")
        path = b""
    elif not method or not path or not pseudo.get(b":scheme") or not (path[:1] == b"/" or path == b"*"):
        raise StreamFault(PROTOCOL_ERROR, ":method, :scheme or :path is missing or wrong")
    if authority is not None and (b"@" in authority or host not in (None, authority)):
        raise StreamFault(PROTOCOL_ERROR, ":authority is wrong, or not the host")
    return RequestHead(method, path, headers, length, size)


def _checked(name: bytes, value: bytes) -> _Checked:
    if not NAME.fullmatch(name) or (name[0] == COLON and name not in PSEUDO):
        raise StreamFault(PROTOCOL_ERROR, "a header has a wrong name")
    if b"\0" in value or b"\r" in value or b"\n" in value or value[:1] in BLANKS or value[-1:] in BLANKS:
        raise StreamFault(PROTOCOL_ERROR, "a header has a wrong value")
    return (name, value), name in CHECKED, len(name) + len(value) + ENTRY


def _static_fields(block: bytes, limit: int) -> list[_Checked]:
    """Return the fields of a block of a peer whose table is empty (RFC 7541, 6). Raises as `BlockDecoder.head` does."""
    found: list[_Checked] = []
    fault: StreamFault | None = None
    total = at = 0
    is_begun = False  # a field has come
    end = len(block)
    try:
        while at < end:
            begin = at
            first = block[at]
            at += 1
            if first < 0x80:
                if first >= 0x40:
                    index = first & 0x3F
                elif first >= EMPTY_TABLE:
                    if first != EMPTY_TABLE or is_begun:
                        raise ConnectionFault(COMPRESSION_ERROR, "a table size update is late, or not to 0")
                    continue
                else:
                    index = first & 0x0F
                    if index == 0x0F:
                        index, at = _integer(index, block, at)
                if not index:  # a name, then a value
                    size = block[at] & 0x7F
                    at += 1
                    if size == 0x7F:
                        size, at = _integer(size, block, at)
                    at += size
                size = block[at] & 0x7F
                at += 1
                if size == 0x7F:
                    size, at = _integer(size, block, at)
                at += size
            is_begun = True
            part = block[begin:at]
            field = _fields.get(part)
            if field is None:
                if at > end:
                    raise IndexError
                try:
                    field = _static_field(part)
                except StreamFault as error:  # a later field may be worse: an error of the connection
                    fault = error
                    field = NO_FIELD
            found.append(field)
            total += field[2]
            if total > limit:
                raise StreamFault(ENHANCE_YOUR_CALM, "the headers are too long")
    except (HPACKError, IndexError):
        raise ConnectionFault(COMPRESSION_ERROR, "a header block cannot be decoded") from None
    if fault is not None:
        raise fault
    return found


def _static_field(part: bytes) -> _Checked:
    """Decode one field, and remember it."""
    first = part[0]
    at = 1
    if first >= 0x80:
        name, value = STATIC_TABLE[_static_index(first & 0x7F)]
    else:
        index = first & 0x3F if first >= 0x40 else first & 0x0F
        if index == 0x0F and first < 0x40:
            index, at = _integer(index, part, at)
        if index:
            name = STATIC_TABLE[_static_index(index)][0]
        else:
            name, at = _name(part, at)
        value, at = _string(part, at)
    field = _checked(name, value)
    if len(part) <= MAX_REMEMBERED and _was_seen(part):
        if len(_fields) >= REMEMBERED_FIELDS:
            _fields.clear()
        _fields[part] = field
    return field


def _static_index(index: int) -> int:
    if not 1 <= index <= STATIC_SIZE:
        raise IndexError(index)
    return index - 1


def _integer(number: int, block: bytes, at: int) -> tuple[int, int]:
    """Return an integer whose first bits are all set, and where it ends. At most five bytes follow."""
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError(at)


def _name(part: bytes, at: int) -> tuple[bytes, int]:
    """Return a string that is likely to come again, with another value."""
    size = part[at] & 0x7F
    coded = part[at : at + 1 + size]
    name = _names.get(coded)
    if name is not None:
        return name, at + 1 + size
    name, end = _string(part, at)
    if size < 0x7F:  # so that `coded` is all of it
        if len(_names) >= REMEMBERED_FIELDS:
            _names.clear()
        _names[coded] = name
    return name, end


def _string(part: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = part[at] >= 0x80
    size = part[at] & 0x7F
    at += 1
    if size == 0x7F:
        size, at = _integer(size, part, at)
    text = part[at : at + size]
    return decode_huffman(text) if is_huffman else text, at + size


class _HuffmanSteps(dict[int, tuple[int, bytes, bool]]):
    """The steps of hpack's state machine for whole bytes; it takes half a byte at a time. They are made when needed.

    A step leads from a state and a byte to the next state, what was emitted, and True if the text may end there. States
    are multiples of 256, so that their sum with a byte is the key.
    """

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        node = key >> 8
        flags = 0
        emitted = b""
        for half in ((key & 0xFF) >> 4, key & 0x0F):
            node, flags, output = HUFFMAN_TABLE[node * 16 + half]
            if flags & HUFFMAN_FAIL:
                raise HPACKError("a Huffman coded string is invalid")
            if flags & HUFFMAN_EMIT_SYMBOL:
                emitted += bytes((output,))
        step = self[key] = (node << 8, emitted, bool(flags & HUFFMAN_COMPLETE))
        return step


_steps = _HuffmanSteps()


def decode_huffman(text: bytes) -> bytes:
    """Return a Huffman coded string in clear. Raises HPACKError."""
    steps = _steps
    state = 0
    is_end = True
    found: list[bytes] = []
    append = found.append
    for byte in text:
        state, emitted, is_end = steps[state | byte]
        append(emitted)
    if not is_end:
        raise HPACKError("a Huffman coded string is not complete")
    return b"".join(found)


class HeaderBlock:
    """A block of an answer, ready to be sent. `more` and `last` begin its frame: without END_STREAM, and with it."""

    __slots__ = ("block", "last", "more")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self.block = b"".join(_literal(name, value) for name, value in fields)
        if len(self.block) > MAX_FRAME:
            raise ValueError(f"a header block of {len(self.block)} bytes does not fit in a frame of {MAX_FRAME}")
        head = frame(HEADERS, END_HEADERS, 0, self.block)
        self.more = head[:5]
        self.last = frame(HEADERS, END_HEADERS | END_STREAM, 0, self.block)[:5]


def _literal(name: bytes, value: bytes) -> bytes:
    if (name, value) == (b":status", b"200"):
        return b"\x88"
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    """Return the length of a string that is not Huffman coded."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,))
    size -= 0x7F
    found = bytearray((0x7F,))
    while size >= 0x80:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    found.append(size)
    return bytes(found)
