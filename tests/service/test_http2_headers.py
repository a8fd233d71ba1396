"""Header blocks: the decoder for peers without a table says what hpack says, and the blocks of answers can be read."""

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_as_hpack
from hypothesis import given
from hypothesis import strategies as st

from ratebound.service import http2_headers
from ratebound.service.http2_frames import COMPRESSION_ERROR, ConnectionFault, StreamFault
from ratebound.service.http2_headers import BlockDecoder, HeaderBlock, decode_huffman
from tests.service.http2_peer import FIELDS, block

names = st.sampled_from([b"te", b"accept", b"x-name", b"grpc-timeout", b"content-type"]) | st.from_regex(
    rb"[a-z0-9-]{1,150}", fullmatch=True
)
values = st.sampled_from([b"", b"trailers", b"application/grpc", b"gzip, deflate"]) | st.binary(max_size=300)
huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def static_decoder(limit: int = 1_000_000) -> BlockDecoder:
    decoder = BlockDecoder(limit)
    decoder.table_is_refused()
    decoder.head(block())
    assert decoder.is_static
    return decoder


def by_hpack(data: bytes) -> list[tuple[bytes, bytes]] | None:
    decoder = Decoder(1_000_000)
    decoder.header_table_size = 0
    decoder.max_allowed_table_size = 0
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(data, raw=True)]
    except HPACKError:
        return None


def by_us(data: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return [field for field, _, _ in http2_headers._static_fields(data, 1_000_000)]
    except ConnectionFault as fault:
        return None if fault.code == COMPRESSION_ERROR else []


@given(st.lists(st.tuples(names, values, st.booleans()), max_size=8), st.booleans())
def test_fields_are_decoded_as_hpack_decodes_them(fields: list[tuple[bytes, bytes, bool]], is_huffman: bool) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    data = encoder.encode(fields, huffman=is_huffman)
    expected = [(name, value) for name, value, _ in fields]
    assert by_hpack(data) == expected
    for _ in range(3):  # the third time, they are looked up
        try:
            assert by_us(data) == expected
        except StreamFault:
            assert any(is_refused(value) for _, value in expected)


def is_refused(value: bytes) -> bool:
    return value != value.strip(b" \t") or not {0, 10, 13}.isdisjoint(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused_as_by_hpack(data: bytes) -> None:
    expected = by_hpack(data)
    try:
        found = by_us(data)
    except StreamFault:
        assert expected is not None
    else:
        assert found == expected


@pytest.mark.parametrize(
    "data",
    [b"\x0f\x10\x01a", b"\x0f\x90\x00\x01a", b"\x0f\x90\x80\x80\x00\x01a", b"\x00\x01a\x7f\x80\x00" + b"x" * 127],
    ids=["a name of the table", "in two bytes", "in four bytes", "a length in two bytes"],
)
def test_integers_may_be_longer_than_needed(data: bytes) -> None:
    assert by_hpack(data) is not None
    assert by_us(data) == by_hpack(data)


@given(st.binary(max_size=100))
def test_huffman_codes_are_decoded(text: bytes) -> None:
    assert decode_huffman(huffman.encode(text)) == text


@given(st.binary(max_size=20))
def test_huffman_codes_are_refused_as_by_hpack(data: bytes) -> None:
    try:
        expected: bytes | None = decode_as_hpack(data)
    except HPACKError:
        expected = None
    try:
        found: bytes | None = decode_huffman(data)
    except HPACKError:
        found = None
    assert found == expected


def test_equal_blocks_have_one_head() -> None:
    first, second = static_decoder(), static_decoder()
    data = block((*FIELDS, (b"equal", b"yes")))
    first.head(data)
    assert data not in http2_headers._heads
    head = first.head(data)
    assert http2_headers._heads[data] is head
    assert first.head(data) is head
    assert second.head(data) is head


def test_a_head_that_another_connection_may_send_is_still_too_long_for_this_one() -> None:
    data = block((*FIELDS, (b"long", b"x" * 500)))
    for _ in range(2):
        static_decoder().head(data)
    assert data in http2_headers._heads
    with pytest.raises(StreamFault, match="too long"):
        static_decoder(400).head(data)


def test_what_is_remembered_is_bounded() -> None:
    decoder = static_decoder()
    for i in range(3000):
        data = block((*FIELDS, (b"name-%d" % i, b"%d" % i)))
        decoder.head(data)
        decoder.head(data)
    assert len(http2_headers._seen) <= http2_headers.MAX_SEEN
    assert len(http2_headers._heads) <= http2_headers.REMEMBERED_HEADS
    assert len(http2_headers._fields) <= http2_headers.REMEMBERED_FIELDS
    assert len(http2_headers._names) <= http2_headers.REMEMBERED_FIELDS
    long = block((*FIELDS, (b"long", b"x" * 5000)))
    for _ in range(3):
        decoder.head(long)
    assert long not in http2_headers._heads
    assert max(map(len, http2_headers._fields)) <= http2_headers.MAX_REMEMBERED


@given(st.lists(st.tuples(names, st.binary(max_size=400)), max_size=5))
def test_the_blocks_of_answers_say_what_they_were_given(fields: list[tuple[bytes, bytes]]) -> None:
    data = HeaderBlock([(b":status", b"200"), (b":status", b"415"), *fields])
    decoder = Decoder()
    for _ in range(2):  # and leave no trace in the peer's table
        assert [(bytes(name), bytes(value)) for name, value in decoder.decode(data.block, raw=True)] == [
            (b":status", b"200"),
            (b":status", b"415"),
            *fields,
        ]
    assert len(decoder.header_table.dynamic_entries) == 0


@pytest.mark.parametrize("size", [126, 127, 128, 254, 255, 256, 5000])
def test_long_texts_of_answers_can_be_read(size: int) -> None:
    fields = [(b"n" * size, b"v" * size), (b"end", b"")]
    found = Decoder().decode(HeaderBlock(fields).block, raw=True)
    assert [(bytes(name), bytes(value)) for name, value in found] == fields


def test_a_block_that_fits_in_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="16384"):
        HeaderBlock([(b"long", bytes(20_000))])
