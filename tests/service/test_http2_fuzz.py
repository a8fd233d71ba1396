"""Frames in any order, right, wrong and mutated, cut anywhere: nothing escapes or leaks, and no stream is forgotten."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ratebound.service.connections import Bounds
from ratebound.service.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    RST_STREAM,
    SETTING,
    SETTINGS,
    frame,
    goaway,
    reset,
    settings,
    window_update,
)
from tests.service.http2_peer import ACKNOWLEDGED, FIELDS, HELLO, Peer, block, end, frames_of, with_path
from tests.waiting.virtual import run, seconds

PATHS = [b"/echo", b"/echo", b"/later", b"/never", b"/bare", b"/wrong", b"/wrong-later"]
BLOCKS = [
    *(block(with_path(path)) for path in PATHS),
    block((*FIELDS, (b"content-length", b"5"))),
    block((*FIELDS, (b"Upper", b"x"))),
    block((*FIELDS, (b"connection", b"x"))),
    block(()),
    block(((b"checksum", b"1"),)),
    block()[1:],
    block()[:7],
    b"\x20" * 3,
    b"",
    b"\xff\xff\xff\xff\xff\x7f",
]
BOUNDS = Bounds(pending=4, body=60, head=400)
streams = st.integers(0, 13)
odd_streams = st.sampled_from([1, 3, 5, 7, 9, 11, 13])
blocks = st.sampled_from(BLOCKS) | st.binary(max_size=40)
bodies = st.sampled_from([b"", b"hello", bytes(30), bytes(61)]) | st.binary(max_size=20)
flags = st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM]) | st.integers(0, 255)
numbers = st.sampled_from([0, 1, 20, 65535, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)


def joined(stream: int, head: bytes, parts: Sequence[bytes]) -> bytes:
    """Return a whole request."""
    last = len(parts) - 1
    data = (frame(DATA, END_STREAM if i == last else 0, stream, part) for i, part in enumerate(parts))
    return frame(HEADERS, END_HEADERS, stream, head) + b"".join(data)


requests = st.builds(joined, odd_streams, st.sampled_from(BLOCKS[:8]), st.lists(bodies, min_size=1, max_size=3))
odd_frames = st.one_of(
    st.builds(frame, st.just(HEADERS), flags, streams, blocks),
    st.builds(frame, st.just(DATA), flags, streams, bodies),
    st.builds(frame, st.integers(0, 11), flags, streams, st.binary(max_size=12)),
    st.builds(frame, st.integers(0, 255), flags, numbers, blocks),
    st.builds(reset, odd_streams, st.integers(0, 13)),
    st.builds(window_update, streams, numbers),
    st.builds(lambda name, value: settings({name: value}), st.integers(0, 9), numbers),
    st.builds(lambda name, value: frame(SETTINGS, 0, 0, SETTING.pack(name, value)[:5]), st.integers(0, 9), numbers),
    st.just(frame(6, 0, 0, bytes(8))),
    st.just(frame(SETTINGS, ACK, 0)),
    st.just(goaway(0, 0)),
)


@st.composite
def mutated(draw: st.DrawFn, parts: list[bytes]) -> bytes:
    """Return the bytes, some of them changed, left out or added."""
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


beginnings = st.sampled_from([HELLO + ACKNOWLEDGED] * 6 + [HELLO, HELLO + settings({4: 3}) + ACKNOWLEDGED, b""])
rising = st.lists(st.sampled_from(BLOCKS[:8]), max_size=7).map(
    lambda heads: [joined(2 * i + 1, head, [b"he", b"llo"]) for i, head in enumerate(heads)]
)
sequences = st.one_of(st.lists(requests | odd_frames, max_size=12), rising, st.lists(odd_frames, max_size=30))
plain = st.builds(lambda begin, parts: begin + b"".join(parts), beginnings, sequences)
wild = st.builds(lambda begin, parts: [begin, *parts], beginnings, sequences).flatmap(mutated)
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=10)


async def served(data: bytes, sizes: Sequence[int]) -> bytes:
    """Send bytes in pieces of these sizes, over and over. Check what has to hold, and return what was written."""
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    peer = Peer(bounds=BOUNDS)
    connection = peer.connection
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        connection.data_received(data[at : at + size])
        at += size
        turn += 1
        assert len(connection._streams) <= BOUNDS.pending
        assert connection._held <= 2 * BOUNDS.body
    await asyncio.sleep(2)
    written = peer.wire.written
    sent = frames_of(written)
    said = [each for each in sent if each.kind == GOAWAY]
    assert len(said) <= 1
    if not said:
        check_every_stream(peer, data)
    else:
        assert said[0].code != NO_ERROR
        assert sent[-1] is said[0]
    peer.connections.expire(seconds() + 1000)
    await end(peer)
    assert peer.is_clean()
    assert problems == []
    return written


def check_every_stream(peer: Peer, data: bytes) -> None:
    """Assert that each stream was answered or reset, or still waits: for its end, for window, or for its answer."""
    connection = peer.connection
    sent = frames_of(peer.wire.written)
    ended = [each.stream for each in sent if each.kind in (DATA, HEADERS) and each.flags & END_STREAM]
    assert len(ended) == len(set(ended)), "a stream was answered twice"
    done = {*ended, *(each.stream for each in sent if each.kind == RST_STREAM)}
    skipped = {stream for left_out in connection._skipped for stream in left_out}
    reset_by_peer = {stream for stream in range(1, 14, 2) if data.find(frame(RST_STREAM, 0, stream)[3:]) >= 0}
    for stream in range(1, min(connection._last_id, 13) + 1, 2):
        waiting = connection._streams.get(stream)
        if waiting is None:
            assert stream in done | skipped | reset_by_peer, f"stream {stream} was forgotten"
        else:
            assert not waiting.is_ended or waiting.unsent is not None or waiting.task is not None


@given(plain, cuts)
def test_any_frames_give_the_same_answers_in_one_read_or_in_many(data: bytes, sizes: list[int]) -> None:
    whole = run(served(data, [len(data) or 1]))
    assert run(served(data, sizes)) == whole
    assert run(served(data, [1])) == whole


@given(wild, cuts)
def test_mutated_frames_give_the_same_answers_in_one_read_or_in_many(data: bytes, sizes: list[int]) -> None:
    whole = run(served(data, [len(data) or 1]))
    assert run(served(data, sizes)) == whole


@given(st.binary(max_size=200))
def test_any_bytes_after_the_preface_do_no_harm(data: bytes) -> None:
    assert run(served(HELLO + data, [len(data) + len(HELLO)])) == run(served(HELLO + data, [1]))
