"""What tests share: a clock, and servers that are started when the first test asks for one. Who breaks a shared
server puts it in order."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ratebound.policy.function_errors import function_errors
from ratebound.testing import FakeClock
from tests.servers import Cluster, SentinelGroup, Server, cluster, redis_server, sentinel_group

# The same examples in every run, so that a change is what makes a test fail; `make test-long` asks for more of them and
# draws them at random. A busy machine is no failure: examples have no deadline.
EXAMPLES = int(os.environ.get("RATEBOUND_EXAMPLES", "0"))
settings.register_profile(
    "ratebound", max_examples=EXAMPLES or 150, derandomize=not EXAMPLES, deadline=None, print_blob=True
)
settings.load_profile("ratebound")


def pytest_configure() -> None:
    """End on SIGTERM as on control-C: with the servers stopped and their folders removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


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


@pytest.fixture(scope="session")
def redis_url_server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def fresh_redis() -> Iterator[Server]:
    """One to break."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def sentinels() -> Iterator[SentinelGroup]:
    with sentinel_group() as group:
        yield group


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    with cluster() as nodes:
        yield nodes
