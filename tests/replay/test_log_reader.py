"""Reading logs: files, blocks, malformed lines, order."""

from pathlib import Path

import pytest

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LogError
from ratebound.replay.read_log import LogReader

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
