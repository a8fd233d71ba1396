"""Every storage, sync and async, keeps the one contract."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from ratebound import AsyncMemoryStorage, MemoryStorage
from ratebound.limit import Group, Mode
from ratebound.storage import Storage
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.memcached.storage import AsyncMemcachedStorage, MemcachedStorage
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.storage.shared_memory.storage import AsyncSharedMemoryStorage, SharedMemoryStorage
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.testing import (
    STORAGE_CONTRACT,
    Blocking,
    Claim,
    FakeClock,
    a_row_has_all_fields,
)
from tests.postgres.tables import fresh_url
from tests.zones import LOCKS, fresh_zone

runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"  # a busy machine must not look like a dead server


def redis_at(server: str) -> dict[str, Callable[[pytest.FixtureRequest, FakeClock], Storage]]:
    """Both kinds on one server of the fixtures, with a prefix of their own for each test."""

    def url(request: pytest.FixtureRequest) -> str:
        found: Any = request.getfixturevalue(server)
        return f"{found.url}?{SLOW}&prefix=contract{next(runs)}-"

    return {
        server: lambda request, clock: RedisStorage(url(request), clock=clock),
        f"{server}, async": lambda request, clock: Blocking(AsyncRedisStorage(url(request), clock=clock)),
    }


def prompt(clock: FakeClock) -> Storage:
    """One that promises a deadline, so that its guard calls it directly."""
    memory: Any = MemoryStorage(clock=clock)
    memory.deadline = 5.0
    return memory  # type: ignore[no-any-return]


def zones_with(locks: str) -> dict[str, Callable[[pytest.FixtureRequest, FakeClock], Storage]]:
    """Shared memory with one kind of locks: for threads, for tasks, behind a guard, and as the twin of another."""

    def zone(request: pytest.FixtureRequest, clock: FakeClock) -> SharedMemoryStorage:
        stack = ExitStack()
        request.addfinalizer(stack.close)
        return stack.enter_context(fresh_zone(clock=clock, locks=LOCKS[locks]))

    def tasks(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncSharedMemoryStorage:
        return AsyncSharedMemoryStorage(shared=zone(request, clock))

    name = f"shared memory, {locks}"
    return {
        name: zone,
        f"{name}, async": lambda request, clock: Blocking(tasks(request, clock)),
        f"{name}, twin": lambda request, clock: Blocking(zone(request, clock).async_twin()),
        f"{name}, guarded": lambda request, clock: GuardedStorage(zone(request, clock)),
        f"{name}, guarded, async": lambda request, clock: Blocking(AsyncGuardedStorage(tasks(request, clock))),
    }


def sqlite_file(request: pytest.FixtureRequest, clock: FakeClock) -> SqliteStorage:
    """A file of its own for each test. No disk is waited for: what it would keep is tested elsewhere."""
    path = request.getfixturevalue("tmp_path") / "limits.db"
    return SqliteStorage(str(path), deadline=5, synchronous="off", clock=clock)


def sqlite_for_tasks(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncSqliteStorage:
    return AsyncSqliteStorage(shared=sqlite_file(request, clock))


def postgres_with(
    options: str, bounces: bool = False
) -> dict[str, Callable[[pytest.FixtureRequest, FakeClock], Storage]]:
    """PostgreSQL with options of the URL, directly or through PgBouncer: for threads, and for tasks."""

    def url(request: pytest.FixtureRequest) -> str:
        through = request.getfixturevalue("pgbouncer") if bounces else None
        return fresh_url(request.getfixturevalue("postgres"), through, options)

    def twin(request: pytest.FixtureRequest, clock: FakeClock) -> Storage:
        return Blocking(PostgresStorage(url(request), clock=clock).async_twin())

    name = f"postgres, {'PgBouncer' if bounces else options}"
    return {
        name: lambda request, clock: PostgresStorage(url(request), clock=clock),
        f"{name}, async": lambda request, clock: Blocking(AsyncPostgresStorage(url(request), clock=clock)),
        **({} if bounces else {f"{name}, twin": twin}),
    }


def memcached() -> dict[str, Callable[[pytest.FixtureRequest, FakeClock], Storage]]:
    """Memcached: for threads, for tasks, behind a guard, and on two servers. Each test has a prefix of its own."""

    def made(request: pytest.FixtureRequest, clock: FakeClock) -> MemcachedStorage:
        server: Any = request.getfixturevalue("memcached")
        return MemcachedStorage(f"{server.url}?{SLOW}&prefix=contract{next(runs)}-", clock=clock)

    def pair(request: pytest.FixtureRequest, clock: FakeClock) -> MemcachedStorage:
        servers: Any = request.getfixturevalue("memcached_pair")
        hosts = ",".join(server.url.removeprefix("memcached://") for server in servers)
        return MemcachedStorage(f"memcached://{hosts}?{SLOW}&prefix=contract{next(runs)}-", clock=clock)

    def tasks(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncMemcachedStorage:
        return AsyncMemcachedStorage(shared=made(request, clock))

    return {
        "memcached": made,
        "memcached, async": lambda request, clock: Blocking(tasks(request, clock)),
        "memcached, two servers": pair,
        "memcached, two servers, guarded": lambda request, clock: GuardedStorage(pair(request, clock)),
        "memcached, two servers, twin": lambda request, clock: Blocking(pair(request, clock).async_twin()),
        "memcached, guarded": lambda request, clock: GuardedStorage(made(request, clock)),
        "memcached, guarded, async": lambda request, clock: Blocking(AsyncGuardedStorage(tasks(request, clock))),
    }


STORAGES: dict[str, Callable[[pytest.FixtureRequest, FakeClock], Storage]] = {
    "memory": lambda request, clock: MemoryStorage(clock=clock),
    "memory, async": lambda request, clock: Blocking(AsyncMemoryStorage(clock=clock)),
    "guarded": lambda request, clock: GuardedStorage(prompt(clock)),
    "guarded, in threads": lambda request, clock: GuardedStorage(MemoryStorage(clock=clock), deadline=5),
    "guarded, async": lambda request, clock: Blocking(AsyncGuardedStorage(AsyncMemoryStorage(clock=clock), deadline=5)),
    **zones_with("mutexes"),
    **zones_with("file locks"),
    "sqlite": sqlite_file,
    "sqlite, async": lambda request, clock: Blocking(sqlite_for_tasks(request, clock)),
    "sqlite, twin": lambda request, clock: Blocking(sqlite_file(request, clock).async_twin()),
    "sqlite, guarded": lambda request, clock: GuardedStorage(sqlite_file(request, clock)),
    "sqlite, guarded, async": lambda request, clock: Blocking(AsyncGuardedStorage(sqlite_for_tasks(request, clock))),
    **redis_at("redis_url_server"),
    **redis_at("sentinels"),
    **redis_at("redis_cluster"),
    **postgres_with("timeout=5"),
    **postgres_with("timeout=5", bounces=True),
    "postgres, guarded, prepared": lambda request, clock: GuardedStorage(
        PostgresStorage(fresh_url(request.getfixturevalue("postgres"), options="timeout=5&prepare=yes"), clock=clock)
    ),
    **memcached(),
}


@pytest.fixture(params=STORAGES)
def subject(request: pytest.FixtureRequest) -> Iterator[tuple[Storage, FakeClock]]:
    clock = FakeClock()
    storage = STORAGES[request.param](request, clock)
    yield storage, clock
    storage.close()


@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
def test_it_is_true_that(claim: Claim, subject: tuple[Storage, FakeClock]) -> None:
    claim(*subject)


@pytest.mark.parametrize(
    "written",
    [lambda row: row[:8], lambda row: (*row, None), lambda row: (1, *row[1:]), lambda row: (*row[:3], 0.5, *row[4:])],
    ids=["short", "long", "a number for a bool", "a fraction"],
)
def test_a_storage_whose_rows_compiled_code_would_refuse_is_found(written: Callable[[Any], Any]) -> None:
    class Storage(MemoryStorage):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Any]]:
            return [[written(row) for row in rows] for rows in super().evaluate(groups, mode)]

    clock = FakeClock()
    with pytest.raises(AssertionError):
        a_row_has_all_fields(Storage(clock=clock), clock)
