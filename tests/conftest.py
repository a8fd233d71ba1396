"""What tests share: a clock, and servers that are started when the first test asks for one. Who breaks a shared
server puts it in order."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ratebound.policy.function_errors import function_errors
from ratebound.testing import FakeClock
from tests.databases import Memcached, PgBouncer, Postgres, memcached_servers, pgbouncer_of, postgres_server
from tests.servers import Cluster, SentinelGroup, Server, cluster, redis_server, sentinel_group
from tests.zones import fresh_zone_url

# The same examples in every run, so that a change is what makes a test fail; `make test-long` asks for more of them and
# draws them at random. A busy machine is no failure: examples have no deadline.
EXAMPLES = int(os.environ.get("RATEBOUND_EXAMPLES", "0"))
settings.register_profile(
    "ratebound", max_examples=EXAMPLES or 30, derandomize=EXAMPLES < 1000, deadline=None, print_blob=True
)
settings.load_profile("ratebound")
TESTS = Path(__file__).parent


def pytest_configure() -> None:
    """End on SIGTERM as on control-C: with the servers stopped and their folders removed.

    Nothing becomes garbage while tests are collected: it is not looked for.
    """
    gc.disable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


# Fixtures and functions that start real servers, or have them started.
SERVER_FIXTURES = {
    "redis_url_server",
    "fresh_redis",
    "sentinels",
    "redis_cluster",
    "served",
    "postgres",
    "fresh_postgres",
    "pgbouncer",
    "memcached",
    "memcached_pair",
    "fresh_memcached",
    "limited_app",
}
SERVER_STARTERS = {
    "redis_server",
    "sentinel_group",
    "cluster",
    "serving",
    "nursery",
    "running_edge",
    "postgres_server",
    "pgbouncer_of",
    "memcached_servers",
    "terminal",
}


def needs_real_servers(item: pytest.Item) -> bool:
    """Return True if the machine may be why the test fails: it starts or breaks servers, and waits for them.

    Wrong numbers are no such failure. Property tests, and counts of what many workers are granted, are left out: if one
    of them fails now and then, it has found something.
    """
    assert isinstance(item, pytest.Function)
    folder = item.path.relative_to(TESTS).parts[0]
    if folder in ("property", "shared_memory") or item.path.name == "test_grants.py":
        return False
    used = SERVER_FIXTURES & set(item.fixturenames) or SERVER_STARTERS & vars(item.module).keys()
    return folder in ("redis", "faults") or bool(used)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a failed test of real servers once more, except in the long run. The summary lists every such rerun.

    Tests of shared memory fork thousands of times, and come first: a fork takes longer the more memory a worker has.
    """
    items.sort(key=lambda item: item.path.parent.name != "shared_memory")
    if os.environ.get("RATEBOUND_LONG") == "1":
        return
    for item in items:
        if needs_real_servers(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


def collect_and_freeze() -> None:
    """Collect garbage, and leave out what is there now from then on: thousands of tests and modules, which all stay.

    Many tests collect garbage, and would look at all of it each time. So would Python, by itself.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Collect garbage again."""
    collect_and_freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Freeze what each file of tests has imported and left behind."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        collect_and_freeze()
    return result


def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: much of the time some worker waits for a server that was broken on purpose. Not
    many more: every worker has servers of its own."""
    return min((os.cpu_count() or 2) + 2, 8)


@pytest.fixture(autouse=True)
def _forgotten_errors() -> None:
    """The log speaks once a minute of a function that fails: no test may silence the next."""
    function_errors.forget()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def zone_url() -> Iterator[str]:
    """A zone of shared memory, which is dropped at the end."""
    with fresh_zone_url() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url_server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def fresh_redis() -> Iterator[Server]:
    """One to break."""
    with redis_server() as server:
        yield server


# Sentinels and nodes of a cluster talk to each other all the time: no worker keeps them for files that do not ask.
@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelGroup]:
    with sentinel_group() as group:
        yield group


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[Cluster]:
    with cluster() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def fresh_postgres() -> Iterator[Postgres]:
    """One to break."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with pgbouncer_of(postgres) as bouncer:
        yield bouncer


@pytest.fixture(scope="session")
def memcached() -> Iterator[Memcached]:
    with memcached_servers() as (server,):
        yield server


@pytest.fixture(scope="session")
def memcached_pair() -> Iterator[list[Memcached]]:
    """Two that share the keys of a storage."""
    with memcached_servers(2) as servers:
        yield servers


@pytest.fixture
def fresh_memcached() -> Iterator[Memcached]:
    """One to break."""
    with memcached_servers() as (server,):
        yield server
