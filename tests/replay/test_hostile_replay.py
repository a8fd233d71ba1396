"""Replays that could go wrong: identities, odd times, long names, damaged output."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ratebound.cli.replay import replay as command
from ratebound.policy import read_policy
from ratebound.replay.client_peaks import CountHistogram, PeakTable
from ratebound.replay.engine import PolicyRun
from ratebound.replay.entry import Entry
from ratebound.replay.instant_text import time_text
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.outcome_counts import LONGEST_NAME, ClientTable
from ratebound.replay.read_log import LogReader
from ratebound.replay.suggest import suggest
from ratebound.replay.suggested_policy import policy_text
from ratebound.replay.time_order import TimeOrder

LINE = '192.0.2.1 - - [16/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8.5.0"\n'
NOON = 1_794_830_400_000_000  # 16 November 2026, 12:00 UTC


def test_what_an_address_asks_is_not_remembered_for_another_user_agent() -> None:
    policy = read_policy({"rules": [{"name": "all", "by": "address + agent", "limits": "1/minute"}]})
    entries = [Entry(NOON, "192.0.2.1", "GET", "/", 200, agent=agent) for agent in ("curl", "wget", "curl")]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert (replay.requests, replay.denied) == (3, 1)


def test_what_a_user_asks_is_remembered_for_that_user_alone() -> None:
    policy = read_policy({"rules": [{"name": "all", "by": ["user + agent", "address"], "limits": "1/minute"}]})
    clients = [("ada", "curl"), ("ada", "wget"), ("bob", "curl"), ("ada", "curl"), ("", "curl"), ("", "wget")]
    entries = [Entry(NOON, "192.0.2.1", "GET", "/", 200, user=user, agent=agent) for user, agent in clients]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert (replay.requests, replay.denied) == (6, 2)


def test_no_address_and_user_are_taken_for_others() -> None:
    policy = read_policy({"rules": [{"name": "all", "limits": "1/minute"}]})
    clients = [
        ("192.0.2.1", "1"),
        ("192.0.2.11", ""),
        ("192.0.2.1", ""),
        ("192.0.2.1", "0 192.0.2.1"),
        ("", "192.0.2.1"),
    ]
    entries = [Entry(NOON, address, "GET", "/", 200, user=user) for address, user in clients]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert replay.denied == 0


def test_times_before_1970_are_malformed(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(LINE.replace("2026", year) for year in ("0000", "0001", "1969", "1970", "2026")))
    reader = LogReader([log])
    years = [time_text(entry.at)[:4] for entries in reader for entry in entries]
    assert (years, reader.lines, reader.malformed) == (["1970", "2026"], 5, 3)


def test_the_timeline_has_requests_that_began_before_1970() -> None:
    replay = LogReplay()
    entries = [Entry(at, "192.0.2.1", "GET", "/", 200) for at in (-5_000_000, -1, 3_000_000)]  # by their durations
    replay.feed(entries, [entry.at for entry in entries])
    assert sum(bucket.requests for bucket in replay.timeline.ordered()) == 3
    assert (replay.first, replay.last) == (-5_000_000, 3_000_000)


def test_a_policy_is_suggested_from_a_log_of_the_year_10000(tmp_path: Path) -> None:
    replay = LogReplay(peaks=PeakTable())
    late = 253_402_387_139_000_000
    replay.feed([Entry(late, "192.0.2.1", "GET", "/", 200)], [late])
    replay.finish()
    assert replay.peaks is not None
    text = policy_text(suggest(replay.peaks, replay.clients), first=late, last=late, requests=1)
    assert len(read_policy(text).rules) == 1


def test_long_names_of_clients_are_cut_wherever_they_are_kept() -> None:
    replay = LogReplay(peaks=PeakTable())
    entries = [Entry(NOON, "192.0.2.1", "GET", "/", 200, user="u" * 60_000) for _ in range(2)]
    replay.feed(entries, [NOON, NOON])
    assert replay.peaks is not None
    assert [len(name) for name in replay.peaks.everything.clients] == [LONGEST_NAME]
    assert list(replay.peaks.everything.clients) == list(replay.clients.by_name)


@given(values=st.lists(st.integers(1, 1_000_000), min_size=1), cut=st.integers(0, 200))
def test_a_histogram_that_takes_another_has_all_counts(values: list[int], cut: int) -> None:
    whole, first, second = CountHistogram(), CountHistogram(), CountHistogram()
    for place, count in enumerate(values):
        whole.add(count)
        (first if place < cut else second).add(count)
    first.take(second)
    for share in (0.5, 0.9, 0.99, 0.999, 1.0):
        assert first.percentile(share) == whole.percentile(share)
    assert (first.total, first.largest, first.excess(100)) == (whole.total, whole.largest, whole.excess(100))


def test_dropped_clients_with_a_large_use_count_for_percentiles() -> None:
    peaks, clients = PeakTable(most=8), ClientTable()
    for number in range(40):
        clients.take(f"c{number}").requests = 300
        for _ in range(300):
            peaks.add(f"c{number}", "GET /", NOON)
    peaks.finish()
    assert peaks.dropped
    assert suggest(peaks, clients).everything.periods[1].peaks.p50 > 250


@pytest.mark.parametrize("share", ["0", "0%", "0.0", "0.00 %"])
def test_no_denial_at_all_may_be_asked_for(tmp_path: Path, share: str) -> None:
    log, policy = written(tmp_path)
    given = [str(log), "--policy", str(policy), "--fail-if-denied", share]
    assert CliRunner().invoke(command, given).exit_code == 1


def test_no_output_overwrites_a_log_or_another_output(tmp_path: Path) -> None:
    log, policy = written(tmp_path)
    before = log.read_text(), policy.read_text()
    both = str(tmp_path / "out")
    for more in (["--json", str(log)], ["--write-policy", str(policy)], ["--json", both, "--html", both]):
        result = CliRunner().invoke(command, [str(log), "--policy", str(policy), *more])
        assert result.exit_code == 2
        assert "would be overwritten" in result.output
    assert (log.read_text(), policy.read_text()) == before


def test_gzip_is_found_in_a_pipe_that_gives_one_byte_first() -> None:
    data = gzip.compress(LINE.encode())
    read_end, write_end = os.pipe()

    def write() -> None:
        for start, end in ((0, 1), (1, 2), (2, len(data))):
            os.write(write_end, data[start:end])
            time.sleep(0.05)
        os.close(write_end)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader = LogReader([f"/dev/fd/{read_end}"])
        assert sum(len(entries) for entries in reader) == 1
    finally:
        thread.join()
        os.close(read_end)


def test_an_interrupted_replay_does_not_exit_like_one_that_denies_too_much(tmp_path: Path) -> None:
    _, policy = written(tmp_path)
    command = [sys.executable, "-m", "ratebound", "replay", "-", "--policy", str(policy)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            # More than a pipe holds: when it is written, the command is reading.
            process.stdin.write(LINE.encode() * 20_000)
            process.stdin.flush()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()
        assert process.returncode == 130
        assert process.stderr is not None
        assert process.stderr.read().startswith(b"interrupted")


def test_a_rule_for_a_host_says_that_the_log_has_no_hosts(tmp_path: Path) -> None:
    log, policy = written(tmp_path)
    policy.write_text("rules: [{name: of-host, match: {hosts: api.example.com}, limits: 1/minute}]")
    plain = CliRunner().invoke(command, [str(log), "--policy", str(policy), "--json", "-"])
    assert "The log has no hosts, so these rules matched nothing: of-host" in plain.output
    log.write_text(f"api.example.com:443 {LINE}" * 3)
    told = CliRunner().invoke(command, [str(log), "--policy", str(policy), "--json", "-"])
    assert "no hosts" not in told.output
    assert json.loads(told.stdout)["policy"]["denied"] == 2


def test_a_few_lines_of_the_far_future_do_not_move_the_others() -> None:
    order = TimeOrder(10_000_000)
    times = [NOON + 1_000_000 * number for number in range(1000)]
    wrong = {99: 9000, 450: 9500, 451: 9000, 777: 9999}  # the first is the last of its block
    given: list[int] = []
    for start in range(0, 1000, 100):
        block = [
            Entry(times[place] + (wrong.get(place, 0) * 86_400_000_000), "192.0.2.1", "GET", f"/{place}", 200)
            for place in range(start, start + 100)
        ]
        given += [entry.at for entry in order.put(block)]
    given += [entry.at for entry in order.rest()]
    assert given == sorted(given)
    assert given[-1] == times[-1]
    assert len(set(given)) >= 1000 - 2 * len(wrong) - 10
    assert order.late <= len(wrong) + 10


def written(folder: Path) -> tuple[Path, Path]:
    log, policy = folder / "access.log", folder / "policy.yaml"
    log.write_text(LINE * 3)
    policy.write_text("rules: [{name: all, limits: 2/minute}]")
    return log, policy


def test_times_before_1970_and_far_ahead_are_counted() -> None:
    entries = [Entry(at, "192.0.2.1", "GET", "/", 200) for at in (-5_000_000, 0, NOON, 9_000_000_000_000_000_000)]
    replay = LogReplay(PolicyRun(read_policy({"rules": [{"name": "all", "limits": "1/minute"}]})))
    replay.feed(entries, [entry.at for entry in entries])
    assert sum(bucket.requests for bucket in replay.timeline.ordered()) == 4
    assert replay.denied == 1
