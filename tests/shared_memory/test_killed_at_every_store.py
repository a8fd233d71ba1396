"""A worker is killed at every store to the zone: all states are then as before or as after, and every lock is free.

The repair after such a kill is killed at each of its own stores as well.
"""

import os
from pathlib import Path

import pytest

from tests.builds import needs_pure_build
from tests.shared_memory.conftest import RunApart
from tests.shared_memory.failpoints import watched_stores
from tests.shared_memory.kills import Enumeration, Moment, killed, marks_at_stores, marks_of, stores_of
from tests.shared_memory.kinds_of_locks import LOCKS
from tests.shared_memory.operations import OPERATIONS, Scene

LONG = os.environ.get("RATEBOUND_LONG") == "1"

NAMES = [operation.name for operation in OPERATIONS]
REPAIRED = ["log of 14 grows", "several limits, new", "several shards, known and new", "reset of a log"]

pytestmark = [needs_pure_build, pytest.mark.parametrize("locks", LOCKS)]


def enumerated(name: str, locks: str, folder: str) -> Enumeration:
    return Enumeration(Scene(folder, locks), OPERATIONS[NAMES.index(name)])


def kill_at_stores(name: str, locks: str, folder: str) -> None:
    """Kill a worker at the stores of an operation, at one after the other."""
    with watched_stores():
        enumeration = enumerated(name, locks, folder)
        assert enumeration.stores
        step = 19 if not LONG and locks == "file" else 1  # the stores are the same with any locks
        for point in range(NAMES.index(name) % min(step, enumeration.stores), enumeration.stores, step):
            enumeration.begin.restore()
            killed(enumeration.act, point)
            enumeration.check()


def kill_repairs(name: str, locks: str, folder: str) -> None:
    """Kill a worker at the stores of an operation, and the next one at those of the repair."""
    with watched_stores():
        enumeration = enumerated(name, locks, folder)
        enumeration.begin.restore()
        marks = marks_at_stores(enumeration.scene, enumeration.act)
        # Some of each kind: all would take hours
        points = {(found, point // 6 if LONG else 0): point for point, found in enumerate(marks) if any(found)}
        assert points or name not in REPAIRED  # some operations leave nothing to repair, wherever they end
        for broken_at in points.values():
            enumeration.begin.restore()
            killed(enumeration.act, broken_at)
            assert marks_of(enumeration.scene) == marks[broken_at]
            moment = Moment(enumeration.scene)
            for point in range(0, stores_of(enumeration.use_all_shards), 1 if LONG else 29):
                moment.restore()
                killed(enumeration.use_all_shards, point)
                enumeration.check()


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_killed_at_any_store_leaves_all_or_nothing(
    name: str, locks: str, run_apart: RunApart, tmp_path: Path
) -> None:
    run_apart(kill_at_stores, name, locks, str(tmp_path))


@pytest.mark.parametrize("name", NAMES if LONG else REPAIRED)
def test_a_repair_killed_at_any_store_is_done_again(name: str, locks: str, run_apart: RunApart, tmp_path: Path) -> None:
    run_apart(kill_repairs, name, locks, str(tmp_path))
