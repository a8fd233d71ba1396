"""Many processes on one key of Memcached are granted exactly the count, as long as it drops nothing."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from ratebound import Check, Limiter, parse_limit
from ratebound.limit import ALGORITHMS
from tests.databases import Memcached
from tests.hammers import Hammers, started_hammers

PATIENT = "timeout=20&connect_timeout=20"  # a busy machine must not look like a dead server
runs = itertools.count()


@pytest.fixture(scope="module", params=["threads", "tasks"])
def hammers(request: pytest.FixtureRequest, memcached: Memcached) -> Iterator[Hammers]:
    url = f"{memcached.url}?{PATIENT}&prefix=grants-{request.param}-{next(runs)}-"
    with started_hammers(request.param, url) as hammers:
        yield hammers


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "calendar"])
def test_four_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, hammers: Hammers) -> None:
    hammers.are_granted_exactly_the_count(algorithm)


def test_threads_on_groups_of_several_keys_never_get_more_than_the_count(memcached_pair: list[Memcached]) -> None:
    """Others may be denied while a part of a group is charged, so that fewer pass at once. None is lost for good."""
    hosts = ",".join(server.url.removeprefix("memcached://") for server in memcached_pair)
    limiter = Limiter("1/second", storage=f"memcached://{hosts}?{PATIENT}&prefix=groups{next(runs)}-", failure="raise")
    checks = [Check(key, parse_limit(f"{count}/day"), cost=2) for key, count in (("a", 101), ("b", 120), ("c", 140))]
    granted: list[bool] = []
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        gate.wait()
        mine = checks if number % 2 else checks[::-1]
        granted.extend(limiter.check(mine).allowed for _ in range(20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 80
    assert sum(granted) <= 50
    while limiter.check(checks).allowed:
        granted.append(True)
    assert sum(granted) == 50, "what a denied group was charged for a moment was given back"
    limiter.close()
