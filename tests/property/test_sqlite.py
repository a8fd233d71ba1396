"""SQLite decides like the kernels over a dict, to the unit. Its sweeps change no answer while time moves on."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage, parse_limit
from ratebound.limit import Group
from ratebound.storage.sqlite import group_commit
from ratebound.storage.sqlite.storage import SqliteStorage
from ratebound.testing import FakeClock
from tests.property.histories import check_every_kind, check_history, check_slots, penalties, value_limits
from tests.property.strategies import limits, quotas, slot_limits, starts


def opened(path: Path, clock: FakeClock) -> SqliteStorage:
    return SqliteStorage(str(path), deadline=5, synchronous="off", clock=clock)


@pytest.fixture
def storage(clock: FakeClock, tmp_path: Path) -> Iterator[SqliteStorage]:
    found = opened(tmp_path / "limits.db", clock)
    yield found
    found.close()


@settings(max_examples=max(settings().max_examples // 4, 1), suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.one_of(limits(), quotas(), slot_limits(), value_limits(), penalties()), min_size=1, max_size=4),
    starts(),
    st.data(),
)
def test_any_history_is_answered_alike(pool: list[Limit], start: int, data: st.DataObject) -> None:
    """Half of the history is by another storage, as another process has it."""
    clock = FakeClock(start)
    with tempfile.TemporaryDirectory() as folder:
        before, after = (opened(Path(folder) / "limits.db", clock) for _ in range(2))
        check_history(before, after, clock, pool, data)
        before.close()
        after.close()


def test_a_long_history_of_every_kind_of_limit_is_answered_alike(storage: SqliteStorage, clock: FakeClock) -> None:
    check_every_kind(storage, clock, seed=1)


def test_groups_that_touch_many_slots_of_one_key_are_answered_alike(storage: SqliteStorage, clock: FakeClock) -> None:
    check_slots(storage, clock, seed=1)


def test_a_sweep_in_every_transaction_changes_no_answer(
    storage: SqliteStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "SWEEP_INTERVAL", 0.0)
    monkeypatch.setattr(group_commit, "SWEPT", 2)
    monkeypatch.setattr(group_commit, "KEPT_EXPIRED", 0)
    memory = MemoryStorage(clock=clock)
    kinds = [parse_limit(text) for text in ("2/second", "3/minute burst 2", "2/10 seconds fixed-window")]
    for step in range(400):
        clock.now += step * 997 % 700_000
        group: Group = ((f"key {step * 7 % 31}", (kinds[step % 3], kinds[(step + 1) % 3]), 1, None, None),)
        assert [list(rows) for rows in storage.evaluate([group])] == [list(rows) for rows in memory.evaluate([group])]
