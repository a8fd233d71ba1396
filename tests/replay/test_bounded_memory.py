"""Memory of a replay does not grow with the log, and counts stay honest when clients do not fit."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.http.prefix import parse_address, prefix_key
from ratebound.policy import read_policy
from ratebound.replay.client_peaks import CountHistogram, PeakTable
from ratebound.replay.engine import PolicyRun
from ratebound.replay.entry import Entry
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.outcome_counts import MOST_BUCKETS, ClientTable, DistinctNames, Timeline
from ratebound.replay.suggest import round_up, suggest

ROOT = Path(__file__).parents[2]
SECOND = 1_000_000
START = 1_762_300_800 * SECOND


def strangers(many: int) -> Iterator[Entry]:
    """Yield requests of clients that come once, to paths that nobody else asks for; every tenth is of one client."""
    for number in range(many):
        address = "192.0.2.1" if number % 10 == 0 else f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        yield Entry(START + number * SECOND // 20, address, "GET", f"/page-{number}/x?y={number}", 200)


def peak_memory(many: int) -> int:
    run = PolicyRun(
        read_policy({"rules": [{"name": "all", "limits": "30/minute fixed-window"}]}), most_states=2_000, most_known=200
    )
    replay = LogReplay(run, peaks=PeakTable(300), most_clients=300, most_targets=200)
    batch: list[Entry] = []
    tracemalloc.start()
    try:
        for entry in strangers(many):
            batch.append(entry)
            if len(batch) == 200:
                replay.feed(batch, [one.at for one in batch])
                batch.clear()
        replay.finish()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def print_peaks() -> None:
    """Print the peak memory of a short and of a three times longer log."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("policy.runtime.bounded_memo.MAX_KNOWN", "policy.identity.identify.MAX_KNOWN"):
            patched.setattr(f"ratebound.{name}", 200)  # so that they are full in both
        patched.setattr("ratebound.http.client_ip.lru_cache", lambda maxsize: lru_cache(200))
        for number in range(9_000):  # addresses that all policies of a process share
            prefix_key(IPv4Address(number + 1), 64, 32)
            parse_address(f"10.9.{number >> 8}.{number & 255}")
        peak_memory(500)  # what is made once
        sys.stdout.write(f"{peak_memory(3_000)} {peak_memory(9_000)}")


def test_memory_is_flat() -> None:
    """In a process of its own: what other tests have left behind would be measured, too."""
    code = "from tests.replay.test_bounded_memory import print_peaks; print_peaks()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    small, large = map(int, done.stdout.split())
    assert large < small * 1.7


def test_heavy_clients_are_kept_and_errors_are_told() -> None:
    table, real = ClientTable(100), {"heavy": 0}
    for number in range(10_000):
        for name in (f"stranger-{number}", *(["heavy"] * (number % 3 == 0))):
            client = table.take(name)
            client.requests += 1
            real[name] = real.get(name, 0) + 1
    heavy = table.by_name["heavy"]
    assert heavy.requests <= real["heavy"] <= heavy.requests + heavy.missed
    assert len(table.by_name) <= 100
    assert sum(one.requests for one in table.by_name.values()) + table.others.requests == sum(real.values())
    assert abs(table.clients - len(real)) < 0.06 * len(real)


def test_counts_are_exact_while_clients_fit() -> None:
    table = ClientTable(100)
    for number in range(100):
        table.take(str(number)).requests += 1
    assert (table.clients, table.dropped, table.lost) == (100, 0, 0)


def test_a_long_name_is_cut_once() -> None:
    table = ClientTable()
    assert table.take("x" * 5_000) is table.take("x" * 6_000)
    assert max(map(len, table.by_name)) == 256


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=50))
def test_the_timeline_has_few_buckets_and_loses_nothing(seconds: list[int]) -> None:
    timeline = Timeline()
    for second in seconds:
        timeline.bucket(second * SECOND).requests += 1
    ordered = timeline.ordered()
    assert len(ordered) <= MOST_BUCKETS
    assert sum(bucket.requests for bucket in ordered) == len(seconds)
    assert all(bucket.start % timeline.width == 0 for bucket in ordered)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=200), st.integers(1, 6_000))
def test_a_histogram_is_exact_for_small_counts_and_close_for_large_ones(values: list[int], limit: int) -> None:
    histogram = CountHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.99):
        real = next(one for place, one in enumerate(ordered, 1) if place >= share * len(ordered))
        found = histogram.percentile(share)
        assert found == real if real < 128 else abs(found - real) <= real / 60
    assert histogram.percentile(1.0) == ordered[-1]
    if limit < 128:
        assert histogram.above(limit) == len([one for one in values if one > limit])
        assert histogram.excess(limit) == sum(one - limit for one in values if one > limit)


def test_clients_that_are_dropped_stay_in_the_evidence() -> None:
    peaks, clients = PeakTable(50), ClientTable(1_000)
    for number in range(500):
        clients.take(f"client-{number}").requests += 1
        peaks.add(f"client-{number}", "GET /", START + number * SECOND)
    peaks.finish()
    found = suggest(peaks, clients)
    assert found.is_estimate
    assert found.everything.clients == 500
    assert found.everything.periods[1].peaks.most == 1
    assert found.everything.periods[1].windows.p50 == 1


def test_an_estimate_of_different_names_is_close() -> None:
    names = DistinctNames()
    for number in range(50_000):
        names.add(f"client-{number % 20_000}")
    assert abs(names.estimate() - 20_000) < 1_200


def test_suggested_numbers_are_round_and_not_below() -> None:
    assert [round_up(value) for value in (0, 1, 7, 10, 11, 87, 121, 1041, 99_999)] == [
        1, 1, 7, 10, 12, 100, 150, 1200, 100_000,
    ]  # fmt: skip
