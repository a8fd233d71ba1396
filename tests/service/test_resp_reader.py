"""Commands out of bytes: however they are cut, whatever they hold, and however much they announce."""

import sys
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratebound.service.resp_reader import MAX_ARGUMENTS, MAX_LINE, CommandReader
from tests.service.resp_server import wire

MOST = 4096
# Arguments as callers send them, and such as look like the protocol itself.
ARGUMENTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"\r\n", b"\n*1000000000\r\n", b"\r\n$99999999\r\n", b"*1\r\n*1\r\n", b"\n~1\r\n", b"%2\r\n"]
    ),
)
COMMANDS = st.lists(st.lists(ARGUMENTS, min_size=1, max_size=6), min_size=1, max_size=6)
PIECES = st.one_of(st.binary(max_size=3), st.sampled_from([b"*", b"$", b"\r\n", b"+", b"9999", b"-1"]))
CUTS = st.lists(st.integers(0, 400), max_size=8)


def in_parts(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if begin < end]


def read_all(parts: Sequence[bytes], most: int = MOST) -> tuple[list[list[bytes]], str]:
    """Return the commands in `parts`, and the error behind them."""
    reader = CommandReader(most)
    found: list[list[bytes]] = []
    for part in parts:
        found += reader.read(part)
        if reader.error:
            break
    return found, reader.error


@given(COMMANDS, CUTS)
def test_commands_are_the_same_however_they_are_cut(commands: list[list[bytes]], cuts: list[int]) -> None:
    data = b"".join(wire(*command) for command in commands)
    assert read_all(in_parts(data, cuts)) == (commands, "")


@given(COMMANDS, st.data())
def test_changed_bytes_are_read_in_the_same_way_in_one_piece_and_byte_by_byte(
    commands: list[list[bytes]], data: st.DataObject
) -> None:
    changed = bytearray(b"".join(wire(*command) for command in commands))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        piece = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"*", b"$", b"\r\n", b"+", b"9999", b"-1"]))
        )
        changed[at : at + data.draw(st.integers(0, 4))] = piece
    whole = bytes(changed)
    assert read_all([whole]) == read_all([bytes([byte]) for byte in whole])


@given(st.binary(max_size=200), CUTS)
@example(b"*0\r\n$", [])
@example(b"*-1\r\n$1\r\n", [])
@example(b"*1\r\n$4\r\nPING\r\n*0\r\n*1\r\n$4\r\nPING\r\n", [])
def test_any_bytes_are_read_in_the_same_way_in_one_piece_and_in_parts(data: bytes, cuts: list[int]) -> None:
    assert read_all([data]) == read_all(in_parts(data, cuts))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*4294967295\r\n", "invalid multibulk length"),
        (b"*%d\r\n" % (MAX_ARGUMENTS + 1), "invalid multibulk length"),
        (b"*1x\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*-2\r\n", "invalid multibulk length"),
        (b"*1\r\n$1000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$%d\r\n" % (MOST + 1), "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        (b"*2\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", "expected '$', got '*'"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"*1\r\n=8\r\ntxt:PING\r\n", "expected '$', got '='"),
        (b"*1\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n", "expected '$', got '%'"),
        (b"*1\r\n\x00\r\n", "expected '$', got '?'"),
        (b"*1\r\n$4\r\nPINGS\r\n", "an argument is longer than its header says"),
        (b"*1\n$4\r\nPING\r\n", "expected the end of a header"),
        (b"*" + b"1" * 40, "too big count string"),
        (b"a" * MAX_LINE, "too big inline request"),
        (b'PING "a\r\n', "unbalanced quotes in request"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "this is HTTP"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "this is HTTP"),
    ],
)
def test_what_is_no_command_ends_the_reading_behind_the_commands_before_it(data: bytes, error: str) -> None:
    found, told = read_all([wire("PING") + data], MAX_LINE * 2 if len(data) > MOST else MOST)
    assert told == error
    assert found[0] == [b"PING"]
    assert [] not in found


def test_headers_that_announce_a_billion_allocate_nothing() -> None:
    announced = [b"*1000000000\r\n", b"*2147483647\r\n", b"*1\r\n$1000000000\r\n", b"*999\r\n" * 500, b"*1\r\n" * 1000]
    cut = [part for data in announced for part in (data[:5], data[5:])]
    tracemalloc.start()
    try:
        for data in announced:
            assert read_all([wire("PING"), data])[1]
            assert read_all([wire("PING") + data])[1]
        for first, second in zip(cut[::2], cut[1::2], strict=True):
            assert read_all([first, second])[1]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_command_that_is_too_long_is_refused_before_its_end() -> None:
    reader = CommandReader(MOST)
    sent = b"*1000\r\n" + b"$1000\r\n%b\r\n" % (b"x" * 1000) * 3
    assert reader.read(sent) == []
    assert not reader.error
    assert reader.is_within_command
    assert reader.read(b"$1000\r\n%b\r\n" % (b"x" * 1000)) == []
    assert reader.read(b"$1000\r\n%b" % (b"x" * 97)) == []
    assert reader.error == f"a command is longer than {MOST} bytes"
    assert read_all([wire("ECHO", b"x" * 3000, b"x" * 3000)])[1] == f"a command is longer than {MOST} bytes"


def test_a_long_pipeline_of_short_commands_is_not_too_long() -> None:
    data = wire("ECHO", "x" * 100) * 1000
    assert read_all([data]) == ([[b"ECHO", b"x" * 100]] * 1000, "")
    assert read_all(in_parts(data, range(0, len(data), 1500))) == ([[b"ECHO", b"x" * 100]] * 1000, "")


def test_a_large_command_may_come_byte_by_byte() -> None:
    reader = CommandReader(1 << 20)
    data = wire("RB.DECIDE", *["x" * 100] * 1000)
    for at in range(len(data)):
        found = reader.read(data[at : at + 1])
    assert len(found[0]) == 1001


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"  PING \t a \n", [b"PING", b"a"]),
        (b'RB.HIT k "10/second burst 20"\r\n', [b"RB.HIT", b"k", b"10/second burst 20"]),
        (b"ECHO ''\r\n", [b"ECHO", b""]),
        (b"\r\n\r\nPING\r\n", [b"PING"]),
        (b"*0\r\n*-1\r\nPING\r\n", [b"PING"]),
    ],
)
def test_a_line_is_a_command_of_words(line: bytes, words: list[bytes]) -> None:
    assert read_all([line]) == ([words], "")
    assert read_all([bytes([byte]) for byte in line]) == ([words], "")


@given(st.lists(st.sampled_from([b"\n", b"\r\n", b" \n", wire("PING"), b"PING\r\n"])), CUTS)
def test_blank_lines_ask_for_nothing(parts: list[bytes], cuts: list[int]) -> None:
    pings = sum(b"PING" in part for part in parts)
    assert read_all(in_parts(b"".join(parts), cuts)) == ([[b"PING"]] * pings, "")


def test_blank_lines_are_skipped_together() -> None:
    reader = CommandReader(MOST)
    steps = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "call"

    sys.setprofile(counted)
    try:
        found = reader.read(b"\r\n" * 50_000 + wire("PING"))
    finally:
        sys.setprofile(None)
    assert found == [[b"PING"]]
    assert steps < 100
