"""Sync and async stand side by side: every pair has the same names, arguments, defaults and answers."""

import inspect
from typing import Any

import pytest

from ratebound import (
    AsyncGuardedStorage,
    AsyncLimiter,
    AsyncMemoryStorage,
    AsyncReservation,
    GuardedStorage,
    Limiter,
    MemoryStorage,
    Reservation,
)
from ratebound.client import AsyncPacer, AsyncTurn, Pacer, Turn
from ratebound.decider import AsyncDecider, Decider
from ratebound.policy import AsyncGate, Gate
from ratebound.storage import AsyncStorage, Storage
from ratebound.storage.memcached.storage import AsyncMemcachedStorage, MemcachedStorage
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.storage.shared_memory.storage import AsyncSharedMemoryStorage, SharedMemoryStorage
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.web.gate import AsyncWebGate, WebGate

PAIRS: list[tuple[type, type]] = [
    (Limiter, AsyncLimiter),
    (Pacer, AsyncPacer),
    (Turn, AsyncTurn),
    (Decider, AsyncDecider),
    (Reservation, AsyncReservation),
    (Gate, AsyncGate),
    (WebGate, AsyncWebGate),
    (Storage, AsyncStorage),
    (MemoryStorage, AsyncMemoryStorage),
    (RedisStorage, AsyncRedisStorage),
    (GuardedStorage, AsyncGuardedStorage),
    (SharedMemoryStorage, AsyncSharedMemoryStorage),
    (SqliteStorage, AsyncSqliteStorage),
    (MemcachedStorage, AsyncMemcachedStorage),
    (PostgresStorage, AsyncPostgresStorage),
]
# What only one of a pair has: threads that a child process renews, the twin, the event loops.
ONLY_SYNC: dict[type, set[str]] = {
    Decider: {"twin_storage"},
    MemoryStorage: {"async_twin", "at_once", "renew", "keys", "max_keys", "weight", "evicted", "overflowed"},
    RedisStorage: {"async_twin", "renew"},
    PostgresStorage: {"async_twin"},
    GuardedStorage: {"async_twin"},
    MemcachedStorage: {"async_twin", "answers", "job", "node_of", "reset_jobs"},
    SharedMemoryStorage: {"async_twin", "too_late", "damaged", "keys", "max_keys", "evicted", "overflowed"},
    SqliteStorage: {"async_twin", "peek"},
}
ONLY_ASYNC: dict[type, set[str]] = {
    AsyncMemoryStorage: {"at_once"},  # a property: the method of the memory itself
    AsyncRedisStorage: {"loops"},
    AsyncPostgresStorage: {"loops"},
    AsyncDecider: {"spend"},  # only tasks can be cancelled
    AsyncGate: {"decide_now", "in_force_now"},  # threads always may pause
}
OTHERWISE = {
    "self",
    "sleep",
    "storage",
    "inner",
    "memory",
    "name",
    "path",
    "url",
}  # arguments of another type, or with another default


def members(kind: type, left_out: set[str]) -> dict[str, Any]:
    names = {name for name in dir(kind) if not name.startswith("_")} - left_out
    return {name: inspect.getattr_static(kind, name) for name in names}


def signature(member: Any) -> list[tuple[Any, ...]]:
    """Return arguments and answer, as they are written, without what says that it is async."""
    found = inspect.signature(member)
    arguments = [
        (one.name, one.kind)
        if one.name in OTHERWISE
        else (one.name, one.kind, one.default, str(one.annotation).replace("Async", ""))
        for one in found.parameters.values()
    ]
    return [*arguments, ("return", str(found.return_annotation).replace("Async", ""))]


@pytest.mark.parametrize(("sync", "tasks"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_pair_has_the_same_names_and_signatures(sync: type, tasks: type) -> None:
    ours = members(sync, ONLY_SYNC.get(sync, set()))
    theirs = members(tasks, ONLY_ASYNC.get(tasks, set()))
    assert ours.keys() == theirs.keys()
    for name, member in ours.items():
        other = theirs[name]
        assert isinstance(other, property) == isinstance(member, property), name
        if isinstance(member, property):
            assert (member.fset is None) == (other.fset is None), name
        elif inspect.isfunction(member):
            assert signature(member) == signature(other), name


@pytest.mark.parametrize(("sync", "tasks"), [pair for pair in PAIRS if pair[0] is not Storage], ids=str)
def test_a_pair_is_made_with_the_same_options(sync: type, tasks: type) -> None:
    ours, theirs = signature(sync.__init__), signature(tasks.__init__)  # type: ignore[misc]
    assert ours == [one for one in theirs if one[0] not in ("memory", "shared")]


@pytest.mark.parametrize(("sync", "tasks"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_one_for_threads_awaits_nothing(sync: type, tasks: type) -> None:
    assert not [name for name, one in members(sync, set()).items() if inspect.iscoroutinefunction(one)]
    assert [name for name, one in members(tasks, set()).items() if inspect.iscoroutinefunction(one)]
