"""Signal handlers, forks, spawned processes and threads in the middle of hits leave no lock held, and lose no grant."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ratebound import Check, Limiter, StorageError, parse_limit
from ratebound.storage.shared_memory import zone_file
from ratebound.storage.shared_memory.locks import Locks
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_states import Zone
from tests.shared_memory.kinds_of_locks import LOCKS
from tests.shared_memory.zone_check import check_zone

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("RATEBOUND_LONG") == "1"
COUNT = 400
DAY = f"{COUNT}/day burst {COUNT}"

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads


@pytest.fixture(params=LOCKS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMemoryStorage:
    return opened(tmp_path, request.param)


def opened(directory: Path, locks: str | None = None) -> SharedMemoryStorage:
    return SharedMemoryStorage("hits", size=1 << 20, directory=str(directory), deadline=60, locks=locks)


def in_child(work: Callable[[], int]) -> int:
    """Start a child that exits with what `work` returns. Return its process id."""
    child = os.fork()
    if not child:
        code = 255
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_all(storage: SharedMemoryStorage) -> None:
    """Fail unless every lock is free and the zone is whole."""
    zone = storage.states.zone
    limit = parse_limit("1/day")
    for key in {zone.cells.shard_of(str(n)): str(n) for n in range(400)}.values():
        zone.evaluate([(key, (limit,), 1, None, None)], "peek", 0.0)
    check_zone(zone.cells, zone.owner.geometry)  # type: ignore[attr-defined]


# Handlers


@pytest.mark.parametrize("locks", LOCKS)
@pytest.mark.parametrize("what", ["raise", "hit"])
def test_a_handler_in_the_middle_of_hits_leaves_the_zone_whole(what: str, locks: str, tmp_path: Path) -> None:
    number = "20000" if LONG else "400"
    program = [sys.executable, "-m", "tests.shared_memory.interrupted", what, str(tmp_path), locks, number]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=1200 if LONG else 120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ends", [sys.exit, os._exit], ids=["sys.exit", "os._exit"])
def test_a_handler_that_exits_leaves_the_zone_whole(storage: SharedMemoryStorage, ends: Any) -> None:
    limiter = Limiter("100/day", storage=storage, failure="raise")
    checks = [Check(key, parse_limit("1000/day")) for key in "abcd"]

    def work() -> int:
        signal.signal(signal.SIGALRM, lambda *_: ends(3))
        try:
            hit_for_ever()
        except SystemExit:
            with suppress(SystemExit):  # of the next alarm
                signal.setitimer(signal.ITIMER_REAL, 0)
        return 3

    def hit_for_ever() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.05)  # again: one in a weak reference's callback is swallowed
        while True:
            limiter.hit("k")
            limiter.check(checks)

    for _ in range(20 if LONG else 8):
        assert exit_code(in_child(work)) == 3
        check_all(storage)


class Interruption(Exception):
    """What a signal handler raises."""


class InterruptedLocks(Locks):
    """Locks of which one function is interrupted once, by an exception before or after its work."""

    def __init__(self, locks: Locks, name: str, *, before: bool) -> None:
        self.handles = locks.handles
        self.count = 0
        self._locks = locks
        self._name, self._before = name, before
        self.try_take = self._watched("try_take", locks.try_take)
        self.release = self._watched("release", locks.release)
        self._wait = self._watched("wait", locks.wait)

    def wait(self, handle: int, code: int, seconds: float) -> int:
        return int(self._wait(handle, code, seconds))

    def abandon(self, handle: int) -> None:
        self._locks.abandon(handle)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            if name != self._name:
                return function(*arguments)
            self.count += 1
            if self._before and self.count == 1:
                raise Interruption
            result = function(*arguments)
            if self.count == 1:
                raise Interruption
            return result

        return watched


@pytest.mark.parametrize("call", ["hit", "evaluate", "reset", "holders"])
@pytest.mark.parametrize("owner_died", [False, True])
@pytest.mark.parametrize(
    ("name", "before"), [("try_take", False), ("wait", False), ("wait", True), ("release", False), ("release", True)]
)
def test_an_exception_next_to_a_lock_does_not_leave_it_held(
    storage: SharedMemoryStorage, name: str, before: bool, owner_died: bool, call: str
) -> None:
    limit = parse_limit("9/day")
    limiter = Limiter(limit, storage=storage, failure="raise")
    limiter.hit("k")
    plain = storage.states.zone
    locks = storage.states.zone.owner.locks  # type: ignore[attr-defined]
    interrupted = InterruptedLocks(locks, name, before=before)
    zone = Zone(plain.cells, interrupted, lambda: plain.now() * 1_000, 0, plain.owner)
    if owner_died:

        def die() -> int:
            plain.enter(plain.cells.shard_of("k"), 1.0)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        assert exit_code(in_child(die)) == -signal.SIGKILL
    group = [("k", (limit,), 1, None, None)]
    calls: dict[str, Callable[[], object]] = {
        "hit": lambda: zone.hit(limiter._plan, "k", 1),
        "evaluate": lambda: zone.evaluate(group, "spend", 0.0),
        "reset": lambda: zone.reset(group, 0.0),
        "holders": lambda: zone.holders("k", limit, 0.0),
    }
    try:
        calls[call]()
    except Interruption:
        assert interrupted.count
    assert exit_code(in_child(lambda: limiter.hit("k").remaining)) in (6, 7, 8)
    assert limiter.hit("k").remaining in (5, 6, 7)
    check_all(storage)


# Forks, spawned processes and threads


@contextmanager
def held_by_a_thread(zone: Zone, shard: int) -> Iterator[None]:
    """Let another thread have the lock of a shard."""
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert zone.enter(shard, 10.0)
        ready.set()
        done.wait(60)
        zone.leave(shard)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(60)
    yield
    done.set()
    thread.join()


def test_a_child_forked_while_a_thread_has_a_lock_waits_for_it_and_goes_on(storage: SharedMemoryStorage) -> None:
    zone, shard = storage.states.zone, storage.states.zone.cells.shard_of("k")
    limiter = Limiter("9/day", storage=storage, failure="raise")
    with held_by_a_thread(zone, shard):
        assert exit_code(in_child(lambda: int(zone.enter(shard, 0.0)))) == 0  # nor is it free for a child
        child = in_child(lambda: limiter.hit("k").remaining)
    assert exit_code(child) == 8
    assert limiter.hit("k").remaining == 7


def test_children_forked_in_the_middle_of_hits_share_the_count(storage: SharedMemoryStorage) -> None:
    limiter = Limiter(DAY, storage=storage, failure="raise")
    stop, granted = threading.Event(), [0, 0]

    def hit(thread: int) -> None:
        while not stop.is_set():
            granted[thread] += limiter.hit("k").allowed

    threads = [threading.Thread(target=hit, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    children = [in_child(lambda: sum(limiter.hit("k").allowed for _ in range(20))) for _ in range(15)]
    total = sum(exit_code(child) for child in children)
    stop.set()
    for thread in threads:
        thread.join()
    total += sum(granted)
    while limiter.hit("k").allowed:
        total += 1
    assert total == COUNT
    check_all(storage)


def spawned(directory: str, results: Any) -> None:
    """Hit from several threads of a spawned process, and put the number of grants into a queue."""
    limiter = Limiter(DAY, storage=opened(Path(directory)), failure="raise")
    granted: list[int] = []

    def hit() -> None:
        granted.append(sum(limiter.hit("k").allowed for _ in range(COUNT // 4)))

    threads = [threading.Thread(target=hit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(sum(granted))


def test_threads_of_spawned_processes_are_granted_exactly_the_count(storage: SharedMemoryStorage) -> None:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = [context.Process(target=spawned, args=(storage.zone_name.directory, results)) for _ in range(2)]
    for process in processes:
        process.start()
    total = sum(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert total == COUNT
    check_all(storage)


@pytest.mark.skipif("mutex" not in LOCKS, reason="needs robust mutexes")
def test_the_mutex_of_a_thread_that_has_ended_is_free(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    zone = storage.states.zone
    limiter = Limiter("9/day", storage=storage, failure="raise")
    limiter.hit("k")
    thread = threading.Thread(target=lambda: zone.enter(zone.cells.shard_of("k"), 1.0))
    thread.start()
    thread.join()
    assert limiter.hit("k").remaining == 7
    check_all(storage)


def test_a_signal_handler_that_needs_the_same_lock_is_answered_by_the_failure_mode(
    storage: SharedMemoryStorage,
) -> None:
    zone, shard = storage.states.zone, storage.states.zone.cells.shard_of("k")
    assert zone.enter(shard, 1.0)
    try:
        assert not Limiter("9/day", storage=storage, failure="closed").hit("k").allowed
        with pytest.raises(StorageError, match="signal handler"):
            Limiter("9/day", storage=storage, failure="raise").hit("k")
    finally:
        zone.leave(shard)
    assert Limiter("9/day", storage=storage, failure="raise").hit("k").remaining == 8


def test_threads_that_open_a_zone_at_the_same_time_do_not_release_its_file_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(tmp_path, "file")
    zone, shard = storage.states.zone, storage.states.zone.cells.shard_of("k")
    known = zone_file.known_zone
    answers = [None]  # to a thread that looks before another one has opened the zone
    monkeypatch.setattr(zone_file, "known_zone", lambda name: answers.pop() if answers else known(name))
    assert zone.enter(shard, 1.0)
    assert opened(tmp_path).states.zone.owner is zone.owner
    assert not answers
    assert exit_code(in_child(lambda: int(zone.enter(shard, 0.0)))) == 0  # the lock is still held
    zone.leave(shard)
    assert exit_code(in_child(lambda: int(zone.enter(shard, 0.0)))) == 1


def test_a_thread_that_makes_a_zone_closes_its_file_before_others_can_lock_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster: list[SharedMemoryStorage] = []
    link = os.link

    def link_and_lock(source: str, target: str) -> None:
        """Do what a faster thread does as soon as the zone has its name."""
        link(source, target)
        faster.append(opened(tmp_path))
        assert faster[0].states.zone.enter(0, 1.0)

    monkeypatch.setattr(os, "link", link_and_lock)
    zone = opened(tmp_path, "file").states.zone
    assert exit_code(in_child(lambda: int(zone.enter(0, 0.0)))) == 0  # the lock is still held
    zone.leave(0)
