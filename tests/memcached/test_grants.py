"""Many processes on one key of Memcached are granted exactly the count, as long as it drops nothing."""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ratebound import Check, Limiter, parse_limit
from ratebound.limit import ALGORITHMS, BUCKETS
from tests.databases import Memcached

ROOT = Path(__file__).parents[2]
PROCESSES = 4
GRANTS = 400
PATIENT = "timeout=20&connect_timeout=20"  # a busy machine must not look like a dead server
runs = itertools.count()


class MemcachedHammers:
    """Four processes, each of four threads or of fifty tasks."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self.processes = processes

    def hit(self, key: str, limit: str, asks: int) -> list[int]:
        """Let all processes ask at once, `asks` times together. Return what each grant left."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{json.dumps([asks // len(self.processes), key, limit])}\n")
            process.stdin.flush()
        return [left for process in self.processes for left in self._heard(process)]

    def _heard(self, process: "subprocess.Popen[str]") -> list[int]:
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"a process ended with {process.wait(10)}"
        answer: list[int] = json.loads(line)
        return answer


@contextmanager
def hammer(kind: str, url: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.memcached.hammer", kind, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["threads", "tasks"])
def hammers(request: pytest.FixtureRequest, memcached: Memcached) -> Iterator[MemcachedHammers]:
    url = f"{memcached.url}?{PATIENT}&prefix=grants-{request.param}-{next(runs)}-"
    with ExitStack() as stack:
        yield MemcachedHammers([stack.enter_context(hammer(request.param, url)) for _ in range(PROCESSES)])


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "calendar"])
def test_four_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, hammers: MemcachedHammers) -> None:
    limit = f"{GRANTS}/day {algorithm}"
    if algorithm in BUCKETS:
        limit = f"1/100 seconds burst {GRANTS} {algorithm}"
    elif algorithm == "calendar":
        limit = f"{GRANTS}/calendar-year"
    each_once = list(range(GRANTS))

    enough = hammers.hit(f"enough:{algorithm}", limit, GRANTS)
    assert sorted(enough) == each_once, "as many asks as the limit has: none is denied"
    assert hammers.hit(f"enough:{algorithm}", limit, GRANTS) == [], "and that is all"

    too_many = hammers.hit(f"too many:{algorithm}", limit, 2 * GRANTS)
    assert sorted(too_many) == each_once, "twice as many asks at once"


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
