"""Lines from strangers: nothing raises, nothing takes long, and what a server escapes is what is read."""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from benchmarks.made_logs import NGINX_TIMED, WRITERS, made_requests
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LONGEST_LINE
from ratebound.replay.log_formats import FORMATS, WantedFields, make_format
from ratebound.replay.log_stream import printable
from ratebound.replay.read_log import LogReader
from tests.replay.test_log_reader import NOON, entries_of

LINES = {name: line_of(next(made_requests(1))) for name, line_of in WRITERS.items()}
STRINGS = {"nginx": NGINX_TIMED}
HOSTILE = st.sampled_from(
    [
        '"',
        '\\"',
        "\\",
        " ",
        "- ",
        "[",
        "]",
        "\t",
        "GET ",
        " HTTP/1.1",
        "{",
        "}",
        "[" * 50,
        ":",
        ",",
        "null",
        "1e999",
        "NaN",
    ]
)


@given(st.binary(max_size=400), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=150, deadline=None)
@example(b"[" * 60_000, "json")
@example(b'{"a":' * 10_000, "json")
@example(b'{"ts":' + b"9" * 5_000 + b',"method":"GET","path":"/"}', "json")
@example(b'{"ts":NaN,"method":"GET","path":"/"}', "json")
@example(b'{"ts":1e308,"method":"GET","path":"/"}', "json")
@example(b'{"ts":true,"method":"GET","path":"/"}', "json")
@example(b'{"ts":1,"method":{},"path":[["/"]],"status":[]}', "json")
@example(b'{"ts":1,"request":[1]}\n{"ts":1,"request":"GET /"}\n{"ts":1,"request":{"uri":1}}', "json")
@example(b'{"ts":"9999-99-99T99:99:99Z","method":"GET","path":"/"}', "json")
def test_any_bytes_are_read_without_an_error(data: bytes, format: str) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        log.write_bytes(data)
        reader = LogReader([log], format=format)
        entries = entries_of(reader)
    assert len(entries) + reader.malformed <= reader.lines
    assert all(sample.text.isprintable() for sample in reader.samples)
    for entry in entries:
        "".join((entry.address, entry.method, entry.target, entry.host, entry.user, entry.agent)).encode()


@pytest.mark.parametrize("duration", ["-inf", "inf", "nan", "-1e999", "1e999"])
def test_an_endless_duration_is_malformed(duration: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = "{}.123 192.0.2.1 200 GET / {}\n"
    log.write_text(line.format(1794830400, "0.5") + line.format(1794830401, duration))
    reader = LogReader([log], format="$msec $remote_addr $status $request_method $request_uri $request_time")
    assert len(entries_of(reader)) == 1
    assert reader.malformed == 1


@given(st.data(), st.sampled_from(sorted(WRITERS)))
@settings(max_examples=150, deadline=None)
def test_a_line_with_something_inserted_is_read_or_counted(data: st.DataObject, name: str) -> None:
    line = LINES[name]
    place = data.draw(st.integers(0, len(line)))
    changed = line[:place] + data.draw(HOSTILE | st.text(max_size=5)) + line[place + data.draw(st.integers(0, 3)) :]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        log.write_text("\n".join([line] * 5 + [changed] + [line] * 5), "utf-8", "backslashreplace", newline="\n")
        reader = LogReader([log], format=STRINGS.get(name, name), fields=())
        entries = entries_of(reader)
    (usual,) = make_format(STRINGS.get(name, name), [line], WantedFields(())).read(f"{line}\n")
    assert sum(entry == usual for entry in entries) >= 10
    assert reader.malformed <= 2 + changed.count("\n")


@pytest.mark.parametrize("format", [*sorted(FORMATS), NGINX_TIMED])
@pytest.mark.parametrize(
    "unit", ['"', '\\"', '" ', " ", "- ", ", ", "[", "\\", "a b ", ' "GET /', " : ", "/", "\t", "x"]
)
def test_a_long_hostile_line_takes_no_long_time(format: str, unit: str) -> None:
    """A regular expression that tries many ways to split a line would take hours."""
    name = next((name for name, string in STRINGS.items() if string == format), format)
    line = LINES.get(name, LINES["json"])
    made = make_format(format, [line], WantedFields(()))
    started = time.process_time()
    for start in ("", line[: len(line) // 2], line[:-1]):
        text = start + unit * ((LONGEST_LINE - len(start)) // len(unit))
        try:
            made.read(f"{text}\n")
        except ValueError:
            continue
    assert time.process_time() - started < 5


def nginx_escaped(text: str) -> str:
    """As nginx writes values by default."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in text.encode())


def apache_escaped(text: str) -> str:
    """As Apache writes values."""
    return nginx_escaped(text).replace("\\x22", '\\"').replace("\\x5C", "\\\\")


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=30)


@pytest.mark.parametrize("escaped", [nginx_escaped, apache_escaped])
@given(agent=PRINTABLE, path=PRINTABLE, user=st.text("abcäöü .-", max_size=8))
@settings(max_examples=100, deadline=None)
@example(agent="\\x22", path="", user="")
@example(agent="\\", path="\\", user="")
@example(agent='\\" "', path='" HTTP/1.1" 200 5 "-" "', user="")
def test_what_servers_escape_is_what_is_read(escaped: object, agent: str, path: str, user: str) -> None:
    assert callable(escaped)
    user = user.strip()
    target = "/" + path.replace(" ", "%20")
    line = (
        f'192.0.2.1 - {escaped(user) or "-"} [16/Nov/2026:12:00:00 +0000] "GET {escaped(target)} HTTP/1.1" '
        f'200 5 "{escaped(path)}" "{escaped(agent) or "-"}"'
    )
    (entry,) = make_format("combined", [], WantedFields(())).read(f"{line}\n")
    shown = agent if agent != "-" else ""
    name = user if user != "-" else ""
    assert entry == Entry(NOON, "192.0.2.1", "GET", target, 200, user=name, agent=shown)


@given(PRINTABLE, PRINTABLE, st.integers(1_000_000_000_000, 4_000_000_000_000), st.integers(100, 599))
@settings(max_examples=100, deadline=None)
def test_what_json_writes_is_what_is_read(agent: str, path: str, milliseconds: int, status: int) -> None:
    record = {
        "ts": milliseconds / 1000,
        "client_ip": "2001:db8::1",
        "method": "GET",
        "uri": f"/{path}",
        "status": status,
        "user_agent": agent,
    }
    line = json.dumps(record)
    (entry,) = make_format("json", [line], WantedFields(())).read(f"{line}\n")
    shown = agent if agent != "-" else ""
    assert entry == Entry(milliseconds * 1000, "2001:db8::1", "GET", f"/{path}", status, agent=shown)


@given(st.text(max_size=500))
def test_samples_are_short_and_printable(text: str) -> None:
    assert len(printable(text)) <= 201
    assert printable(text).isprintable()
