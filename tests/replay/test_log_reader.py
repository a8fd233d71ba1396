"""Reading logs: files, blocks, malformed lines, order."""

import bz2
import gzip
import heapq
import lzma
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from benchmarks.made_logs import write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LONGEST_LINE, LogError
from ratebound.replay.read_log import LogReader
from ratebound.replay.time_order import MOST_KEPT, TimeOrder

NOON = 1_794_830_400_000_000  # 16 November 2026, 12:00 UTC
LINE = '192.0.2.1 - ann [16/Nov/2026:12:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 5 "-" "curl/8.5.0"'

FIELDS = {"ident": "", "bytes": "5", "referer": ""}


def entries_of(reader: LogReader) -> list[Entry]:
    return [entry for entries in reader for entry in entries]


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_a_line_becomes_an_entry(tmp_path: Path) -> None:
    reader = LogReader([written(tmp_path / "access.log", LINE)])
    assert entries_of(reader) == [
        Entry(NOON, "192.0.2.1", "GET", "/a?b=c", 200, user="ann", agent="curl/8.5.0", fields=FIELDS)
    ]
    assert (reader.format, reader.lines, reader.malformed, reader.late) == ("combined", 1, 0, 0)


def test_malformed_lines_are_counted_and_the_first_five_are_kept(tmp_path: Path) -> None:
    broken = [f"broken {number} \x1b[31m" for number in range(9)]
    reader = LogReader([written(tmp_path / "access.log", LINE, *broken, LINE)])
    assert len(entries_of(reader)) == 2
    assert (reader.lines, reader.malformed) == (11, 9)
    assert [(sample.line, sample.text) for sample in reader.samples] == [
        (number + 2, f"broken {number} \N{REPLACEMENT CHARACTER}[31m") for number in range(5)
    ]


def test_a_directory_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"is a directory. Give its files"):
        LogReader([tmp_path])


def line_at(second: float, target: str = "/") -> str:
    """A line of the JSON format, so many seconds after noon."""
    return f'{{"ts":{NOON // 1_000_000 + second:.3f},"ip":"192.0.2.1","method":"GET","path":"{target}","status":200}}'


def targets(reader: LogReader) -> list[str]:
    return [entry.target for entry in entries_of(reader)]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("name", COMPRESS)
def test_compressed_files_are_known_by_their_content_and_may_have_several_members(name: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lines = [f"{line_at(second, f'/{second}')}\n" for second in range(2_000)]
    parts = ["".join(lines[:900]), "".join(lines[900:])]
    log.write_bytes(b"".join(COMPRESS[name](part.encode()) for part in parts))
    reader = LogReader([log], fields=())
    assert targets(reader) == [f"/{second}" for second in range(2_000)]
    assert reader.bytes_read == reader.bytes_total == log.stat().st_size
    assert reader.warnings == []


@pytest.mark.parametrize("name", COMPRESS)
def test_a_compressed_file_that_is_cut_off_is_read_as_far_as_it_goes(name: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    random = Random(1)
    text = "".join(f"{line_at(second, f'/{random.random()}')}\n" for second in range(20_000))
    whole = COMPRESS[name](text.encode())
    log.write_bytes(whole[: len(whole) * 3 // 4])
    reader = LogReader([log], fields=())
    assert 5_000 < len(entries_of(reader)) < 19_000
    assert reader.warnings == [f"{log} was read in part: its {name} data is cut off"]


def test_a_damaged_compressed_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    whole = gzip.compress("".join(f"{line_at(second)}\n" for second in range(100)).encode())
    log.write_bytes(whole + b"more that is no gzip")
    reader = LogReader([log], fields=())
    assert len(entries_of(reader)) == 100
    assert reader.warnings == [f"{log} was read in part: something that is not gzip follows its gzip data"]
    log.write_bytes(whole[:-8] + bytes(8))  # a wrong checksum
    reader = LogReader([log], fields=())
    entries_of(reader)
    assert reader.warnings == [f"{log} was read in part: its gzip data is damaged"]
    log.write_bytes(whole + bytes(1_000))  # as tape and some backup programs pad
    reader = LogReader([log], fields=())
    assert (len(entries_of(reader)), reader.warnings) == (100, [])


def test_a_small_file_that_expands_to_gigabytes_is_read_in_small_blocks(tmp_path: Path) -> None:
    log = tmp_path / "bomb.gz"
    with gzip.open(log, "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
        file.write(f"\n{LINE}\n".encode())
    tracemalloc.start()
    reader = LogReader([log], format="combined", fields=())
    assert len(entries_of(reader)) == 1
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20
    assert reader.malformed == 1


def test_zstandard_gets_advice(tmp_path: Path) -> None:
    log = tmp_path / "access.log.zst"
    log.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(LogError, match="Run: zstdcat .* | ratebound replay -"):
        entries_of(LogReader([log]))


def test_unusual_bytes_do_not_matter(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    agent = LINE.replace("curl/8.5.0", "caf\xe9 \x00 \x85 \x1c").encode("latin-1")
    log.write_bytes(b"\xef\xbb\xbf" + LINE.encode() + b"\r\n\r\n\n" + agent + b"\n\x00\n" + LINE.encode())
    reader = LogReader([log], fields=())
    entries = entries_of(reader)
    assert [entry.agent for entry in entries] == ["curl/8.5.0", "caf\\xe9 \x00 \\x85 \x1c", "curl/8.5.0"]
    assert entries[0].address == "192.0.2.1"
    assert (reader.lines, reader.malformed, [sample.line for sample in reader.samples]) == (6, 1, [5])


def test_half_a_last_line_is_malformed(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(f"{LINE}\n{LINE[:60]}")
    reader = LogReader([log])
    assert (len(entries_of(reader)), reader.malformed) == (1, 1)


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("before", [0, 10, 300, 65_000])
def test_a_line_over_64_kilobytes_is_malformed_wherever_it_is(extra: int, before: int, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    long = LINE.replace("/a?b=c", "/" + "x" * (LONGEST_LINE - len(LINE) + len("/a?b=c") - 1 + extra))
    assert len(long) == LONGEST_LINE + extra
    short = LINE.replace("/a?b=c", "/" + "y" * before)
    log.write_text(f"{short}\n{long}\n{LINE}\n{long}")
    reader = LogReader([log], fields=())
    kept = extra <= 0
    expected = [before > 60_000, *[True] * kept, False, *[True] * kept]
    assert [len(target) > 60_000 for target in targets(reader)] == expected
    assert (reader.lines, reader.malformed) == (4, 0 if kept else 2)


def test_a_very_long_line_is_not_held_in_memory(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with log.open("w") as file:
        file.write(f"{LINE}\n")
        for _ in range(320):
            file.write("x" * 100_000)
        file.write(f"\n{LINE}\n")
    tracemalloc.start()
    reader = LogReader([log], fields=())
    assert len(entries_of(reader)) == 2
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20
    assert (reader.lines, reader.malformed, reader.samples[0].line) == (3, 1, 2)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def most_memory(lines: int) -> int:
        log = tmp_path / "access.log"
        write_log(log, "combined", lines, rate=200)
        tracemalloc.start()
        reader = LogReader([log], fields=())
        assert sum(len(entries) for entries in reader) == lines
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert most_memory(24_000) < 1.3 * most_memory(6_000)


def test_the_standard_input_and_pipes(tmp_path: Path) -> None:
    program = (
        "from ratebound.replay.read_log import LogReader\n"
        "import sys\n"
        "reader = LogReader([sys.argv[1]])\n"
        "print(sum(map(len, reader)), reader.format, reader.bytes_read, reader.bytes_total)\n"
    )
    text = f"{LINE}\n" * 5_000
    command = [sys.executable, "-c", program, "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60, check=True)
    assert done.stdout.split() == [b"5000", b"combined", str(len(text)).encode(), b"None"]
    done = subprocess.run(command, input=gzip.compress(text.encode()), capture_output=True, timeout=60, check=True)
    assert done.stdout.split()[:2] == [b"5000", b"combined"]


def test_a_file_that_grows_is_read_to_the_end_that_it_had(tmp_path: Path) -> None:
    log = written(tmp_path / "access.log", *[line_at(second) for second in range(2_000)])
    reader = LogReader([log], fields=())
    count = 0
    for entries in reader:
        count += len(entries)
        with log.open("a") as file:
            file.write(f"{line_at(9_000)}\n" * 2_000)
    assert count == 2_000
    assert reader.bytes_read == reader.bytes_total


def test_entries_are_sorted_within_the_window_and_late_ones_get_the_newest_time(tmp_path: Path) -> None:
    seconds = [10, 12, 11, 20, 13, 40, 29, 21, 41]
    lines = [line_at(second, f"/{second}") for second in seconds]
    reader = LogReader([written(tmp_path / "access.log", *lines)], window=10)
    assert targets(reader) == [f"/{second}" for second in sorted(seconds)]  # one block: all of it is sorted
    assert reader.late == 0
    order = TimeOrder(10_000_000)
    out = []
    for second in seconds:
        out += order.put([Entry(second * 1_000_000, "", "GET", f"/{second}", 200)])
    out += order.rest()
    assert [entry.target for entry in out] == ["/10", "/11", "/12", "/13", "/20", "/29", "/21", "/40", "/41"]
    assert [entry.at // 1_000_000 for entry in out] == [10, 11, 12, 13, 20, 29, 29, 40, 41]
    assert order.late == 1


def test_the_order_keeps_a_bounded_number_of_entries() -> None:
    order = TimeOrder(3_600_000_000)
    entry = Entry(0, "", "", "", 0)
    count = sum(len(order.put([entry] * 1_000)) for _ in range(MOST_KEPT // 1_000 + 5))
    assert count == 5_000
    assert len(order.rest()) == MOST_KEPT


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=8),
    st.integers(0, 50),
)
def test_order_is_that_of_a_plain_heap(batches: list[list[int]], window: int) -> None:
    """The oracle puts one entry after the other into a heap, and takes those out that are older than the window."""
    order = TimeOrder(window)
    found: list[tuple[int, str]] = []
    heap: list[tuple[int, int]] = []
    expected: list[tuple[int, str]] = []
    newest = late = number = 0
    latest = -1
    for batch in batches:
        entries = []
        for at in batch:
            entries.append(Entry(at, "", "GET", str(number), 200))
            if at < latest:
                late += 1
                at = latest
            heapq.heappush(heap, (at, number))
            newest = max(newest, at)
            number += 1
        found += [(entry.at, entry.target) for entry in order.put(entries)]
        while heap and heap[0][0] <= newest - window:
            at, which = heapq.heappop(heap)
            latest = at
            expected.append((at, str(which)))
        assert [at for at, _ in found] == [at for at, _ in expected]
    found += [(entry.at, entry.target) for entry in order.rest()]
    expected += [(at, str(which)) for at, which in sorted(heap)]
    assert [at for at, _ in found] == [at for at, _ in expected]
    assert sorted(found) == sorted(expected)
    assert order.late == late


@given(st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=2, max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_several_files_are_merged_by_time(files: list[list[int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        paths = []
        for number, seconds in enumerate(files):
            lines = [line_at(second, f"/{number}/{second}") for second in sorted(seconds)]
            paths.append(written(Path(folder) / f"{number}.log", *lines))
        reader = LogReader(data.draw(st.permutations(paths)), fields=())
        entries = entries_of(reader)
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert sorted(entry.target for entry in entries) == sorted(
        f"/{number}/{second}" for number, seconds in enumerate(files) for second in seconds
    )
    assert (reader.late, reader.malformed, reader.bytes_read) == (0, 0, reader.bytes_total)


def test_many_rotated_files_need_few_open_files(tmp_path: Path) -> None:
    paths = []
    for number in range(30):
        lines = [line_at(number * 100 + second, f"/{number * 100 + second}") for second in range(100)]
        paths.append(written(tmp_path / f"access.log.{number}", *lines))
    reader = LogReader(list(reversed(paths)), fields=())
    most = 0
    found = []
    for entries in reader:
        found += [entry.target for entry in entries]
        most = max(most, sum("access.log" in os.readlink(f"/proc/self/fd/{fd}") for fd in open_files()))
    assert found == [f"/{number}" for number in range(3_000)]
    assert most <= 3


def open_files() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def test_files_of_different_formats(tmp_path: Path) -> None:
    first = written(tmp_path / "a.log", LINE)
    second = written(tmp_path / "b.log", line_at(1.5))
    reader = LogReader([second, first])
    assert [entry.target for entry in entries_of(reader)] == ["/a?b=c", "/"]
    assert (reader.format, reader.resolution) == ("json, combined", 1_000_000)


def test_a_file_with_mostly_malformed_lines_gives_a_warning(tmp_path: Path) -> None:
    log = written(tmp_path / "access.log", LINE, "x", "y")
    reader = LogReader([log])
    entries_of(reader)
    assert reader.warnings == [f"2 of 3 lines of {log} are malformed. The format 'combined' may be wrong"]


def test_samples_of_malformed_lines_hold_no_secrets(tmp_path: Path) -> None:
    secret = "https://ann:secret@example.com/?token=secret&x=secret Authorization: Bearer secret " + "x" * 500
    reader = LogReader([written(tmp_path / "access.log", LINE, LINE, secret)])
    entries_of(reader)
    assert reader.samples[0].text.startswith("https://…@example.com/?token=…&x=… Authorization: Bearer … xxx")
    assert len(reader.samples[0].text) == 201


def test_an_empty_file_has_no_entries_and_no_warnings(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "blank").write_text("\n\n")
    for names in (["empty"], ["blank"], ["empty", "blank"]):
        reader = LogReader([tmp_path / name for name in names])
        assert (entries_of(reader), reader.warnings, reader.malformed, reader.format) == ([], [], 0, "")


def test_files_and_options_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no file .*missing.log"):
        LogReader([tmp_path / "missing.log"])
    with pytest.raises(LogError, match="no log file was given"):
        LogReader([])
    with pytest.raises(LogError, match="given twice"):
        LogReader(["-", "-"])
    with pytest.raises(LogError, match="the window must be from 0 to 3600 seconds, not -1"):
        LogReader(["-"], window=-1)
    with pytest.raises(LogError, match="unknown log format 'x'"):
        LogReader(["-"], format="x")
    with pytest.raises(LogError, match="garbage.log: no known format fits"):
        entries_of(LogReader([written(tmp_path / "garbage.log", "a", "b")]))
    with pytest.raises(LogError, match="cannot open"):
        LogReader(["a\0b"])
