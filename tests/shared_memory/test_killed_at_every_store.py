"""A worker is killed at every store to the zone: all states are then as before or as after, and every lock is free.

The repair after such a kill is killed at each of its own stores as well.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds import needs_pure_build
from tests.shared_memory.failpoints import watched_stores
from tests.shared_memory.kills import Enumeration, Moment, killed, marks_of, stores_of
from tests.shared_memory.kinds_of_locks import LOCKS
from tests.shared_memory.operations import OPERATIONS, Operation, Scene

LONG = os.environ.get("RATEBOUND_LONG") == "1"

NAMES = ("log of 14 grows", "several limits, new", "several shards, known and new", "reset of a log")
REPAIRED = [operation for operation in OPERATIONS if operation.name in NAMES]

pytestmark = needs_pure_build


@pytest.fixture(params=LOCKS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with watched_stores():
        yield Scene(str(tmp_path), request.param)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_worker_killed_at_any_store_leaves_all_or_nothing(operation: Operation, scene: Scene) -> None:
    enumeration = Enumeration(scene, operation)
    assert enumeration.stores
    few = not LONG and scene.locks == "file"  # the stores are the same with any locks
    for point in range(0, enumeration.stores, 19 if few else 1):
        enumeration.begin.restore()
        killed(enumeration.act, point)
        enumeration.check()


@pytest.mark.parametrize("operation", OPERATIONS if LONG else REPAIRED, ids=lambda operation: operation.name)
def test_a_repair_killed_at_any_store_is_done_again(operation: Operation, scene: Scene) -> None:
    enumeration = Enumeration(scene, operation)
    broken: dict[object, Moment] = {}
    for point in range(enumeration.stores):
        enumeration.begin.restore()
        killed(enumeration.act, point)
        marks = marks_of(scene)
        if any(marks):
            broken[(marks, point // 6 if LONG else 0)] = Moment(scene)  # some of each kind: all would take hours
    for moment in broken.values():
        moment.restore()
        for point in range(0, stores_of(enumeration.use_all_shards), 1 if LONG else 29):
            moment.restore()
            killed(enumeration.use_all_shards, point)
            enumeration.check()
