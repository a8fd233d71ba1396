"""Processes that are killed while they use a zone, and what must be true afterwards."""

import os
import signal
import warnings
from collections.abc import Callable

from tests.shared_memory.failpoints import failpoints
from tests.shared_memory.operations import LOG, Operation, Scene
from tests.shared_memory.zone_check import States, check_zone, states_of


class Moment:
    """A zone as it was at some instant, with its locks, and the time of its clock."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._file: int = scene.zone.owner.file  # type: ignore[attr-defined]
        self._bytes = os.pread(self._file, scene.geometry.size, 0)
        self._now = scene.clock.now

    def restore(self) -> None:
        """Make the zone as it was."""
        os.pwrite(self._file, self._bytes, 0)
        self._scene.clock.now = self._now


def in_a_child(work: Callable[[], object]) -> int:
    """Do something in a forked child. Return its exit status, as `os.waitpid` tells it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a fork while there are threads
        child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def killed(work: Callable[[], object], point: int) -> None:
    """Let a child do something until it kills itself at a failpoint."""

    def run() -> None:
        failpoints.start(point)
        work()

    status = in_a_child(run)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def stores_of(work: Callable[[], object]) -> int:
    """Do something, and return how many failpoints that passes."""
    failpoints.start()
    work()
    return failpoints.passed


def marks_of(scene: Scene) -> tuple[int, ...]:
    """Return the marks of all shards."""
    return tuple(scene.cells.memory[scene.cells.mark_at(shard)] for shard in range(16))


def marks_at_stores(scene: Scene, work: Callable[[], object]) -> list[tuple[int, ...]]:
    """Do something, and return the marks of all shards at each failpoint."""
    found: list[tuple[int, ...]] = []
    failpoints.start(at_each=lambda: found.append(marks_of(scene)))
    work()
    failpoints.start()
    return found


class Enumeration:
    """An operation, and the states before it and after it."""

    def __init__(self, scene: Scene, operation: Operation) -> None:
        self.scene = scene
        self.operation = operation
        self._probes = [scene.key(0, shard) for shard in range(16)]
        operation.prepare(scene)
        scene.key(1)
        self.begin = Moment(scene)
        self.before = states_of(scene.cells)
        self.stores = stores_of(self.act)
        self.after = states_of(scene.cells)
        assert self.before != self.after
        check_zone(scene.cells, scene.geometry)

    def act(self) -> None:
        """Do the operation."""
        self.operation.act(self.scene)

    def use_all_shards(self) -> None:
        """Use every shard without waiting: a lock that is stuck raises Busy."""
        for key in self._probes:
            self.scene.zone.evaluate([(key, (LOG,), 1, None, None)], "peek", 0.0)

    def check(self) -> None:
        """Fail unless the zone works, and has the states before the operation or after it."""
        self.use_all_shards()
        check_zone(self.scene.cells, self.scene.geometry)
        found = states_of(self.scene.cells)
        if found == self.after:
            return
        assert found in self._unchanged(), "a part of the states has changed"
        self.act()
        assert states_of(self.scene.cells) == self.after
        check_zone(self.scene.cells, self.scene.geometry)

    def _unchanged(self) -> list[States]:
        left = {identity: state for identity, state in self.before.items() if identity in self.after}
        return [self.before, left] if self.operation.evicts else [self.before]
