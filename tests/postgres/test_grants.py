"""Many processes on one key of one database are granted exactly the count, directly and through PgBouncer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ratebound.limit import ALGORITHMS, BUCKETS
from tests.databases import Postgres
from tests.postgres.tables import fresh_url

ROOT = Path(__file__).parents[2]
PROCESSES = 4
GRANTS = 400
PATIENT = "timeout=20"  # a busy machine must not look like a locked row


class PostgresHammers:
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
    command = [sys.executable, "-m", "tests.postgres.hammer", kind, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def hammers(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[PostgresHammers]:
    kind, way = request.param
    through = request.getfixturevalue("pgbouncer") if way == "through PgBouncer" else None
    url = fresh_url(postgres, through, PATIENT + ("&prepare=yes" if way == "prepared" else ""))
    with ExitStack() as stack:
        yield PostgresHammers([stack.enter_context(hammer(kind, url)) for _ in range(PROCESSES)])


LONG = os.environ.get("RATEBOUND_LONG") == "1"
WAYS = [("threads", "directly"), ("tasks", "directly"), ("tasks", "through PgBouncer"), ("threads", "prepared")]
CASES = [
    (way, algorithm)
    for way in WAYS
    for algorithm in (ALGORITHMS if LONG or way[1] == "directly" else ("sliding-counter",))
]


@pytest.mark.parametrize(("hammers", "algorithm"), CASES, indirect=["hammers"], ids=str)
def test_four_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, hammers: PostgresHammers) -> None:
    limit = f"{GRANTS}/day {algorithm}"
    if algorithm in BUCKETS:
        limit = f"1/100 seconds burst {GRANTS} {algorithm}"
    each_once = list(range(GRANTS))

    enough = hammers.hit(f"enough:{algorithm}", limit, GRANTS)
    assert sorted(enough) == each_once, "as many asks as the limit has: none is denied"
    assert hammers.hit(f"enough:{algorithm}", limit, GRANTS) == [], "and that is all"

    too_many = hammers.hit(f"too many:{algorithm}", limit, 2 * GRANTS)
    assert sorted(too_many) == each_once, "twice as many asks at once"
