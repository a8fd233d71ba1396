"""Many processes on one key of one Redis are granted exactly the count, and it does not matter what time they think."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratebound.limit import ALGORITHMS, BUCKETS
from tests.servers import Server

ROOT = Path(__file__).parents[2]
GRANTS = 400
WRONG = 130  # seconds
CLOCKS = {"right": (0, 0, 0, 0), "ahead": (0, 0, 0, WRONG), "behind": (0, 0, 0, -WRONG)}
ASKERS = [(kind, clocks) for kind in ("threads", "tasks") for clocks in CLOCKS]


class Hammers:
    """Four processes, each of four threads or of fifty tasks."""

    def __init__(self, kind: str, clocks: str, processes: list["subprocess.Popen[str]"]) -> None:
        self.name = f"{kind}-{clocks}"
        self.processes = processes
        self.wrong = [round(float(self._heard(process)[0]) - time.time()) for process in processes]

    def hit(self, key: str, limit: str, asks: int) -> list[int]:
        """All at once, `asks` times in all; what each grant left."""
        line = json.dumps([asks // len(self.processes), key, limit])
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return [left for process in self.processes for left in self._heard(process)]

    def _heard(self, process: "subprocess.Popen[str]") -> list[Any]:
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"a process ended with {process.wait(10)}"
        answer: list[Any] = json.loads(line)
        return answer


@contextmanager
def hammer(kind: str, url: str, wrong: int) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.redis.hammer", kind, url, str(wrong)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module", params=ASKERS, ids="-".join)
def hammers(request: pytest.FixtureRequest, redis_url_server: Server) -> Iterator[Hammers]:
    kind, clocks = request.param
    url = f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=hammer-{kind}-{clocks}-"
    with ExitStack() as stack:
        processes = [stack.enter_context(hammer(kind, url, wrong)) for wrong in CLOCKS[clocks]]
        yield Hammers(kind, clocks, processes)


def limit_text(algorithm: str, now: int) -> str:
    """So short a period that a clock which is 130 s wrong would matter, and yet nothing comes back during the test."""
    if algorithm in BUCKETS:
        return f"1/100 seconds burst {GRANTS} {algorithm}"
    period = next(period for period in range(100, WRONG) if period - now % period > 60)
    return f"{GRANTS}/{period} seconds {algorithm}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_four_processes_on_one_key_are_granted_exactly_the_count_whatever_time_one_thinks_it_is(
    algorithm: str, hammers: Hammers, redis_url_server: Server
) -> None:
    assert max(map(abs, hammers.wrong)) in (range(10) if "right" in hammers.name else range(WRONG - 10, WRONG + 10))
    now: Any = redis_url_server.client().time()
    limit = limit_text(algorithm, now[0])
    each_once = list(range(GRANTS))

    enough = hammers.hit(f"enough:{algorithm}", limit, GRANTS)
    assert sorted(enough) == each_once, "as many asks as the limit has: none is denied"
    assert hammers.hit(f"enough:{algorithm}", limit, GRANTS) == [], "and that is all"

    too_many = hammers.hit(f"too many:{algorithm}", limit, 2 * GRANTS)
    assert sorted(too_many) == each_once, "twice as many asks at once"
