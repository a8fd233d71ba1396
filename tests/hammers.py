"""Processes that hit one key of a storage at once, and the claim about what they are granted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ratebound.limit import BUCKETS

ROOT = Path(__file__).parents[1]
PROCESSES = 4
GRANTS = 400


class Hammers:
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

    def are_granted_exactly_the_count(self, algorithm: str) -> None:
        """Assert that a limit grants each of its units once, to as many asks as it has and to twice as many."""
        limit = f"{GRANTS}/day {algorithm}"
        if algorithm in BUCKETS:
            limit = f"1/100 seconds burst {GRANTS} {algorithm}"
        elif algorithm == "calendar":
            limit = f"{GRANTS}/calendar-year"
        each_once = list(range(GRANTS))

        enough = self.hit(f"enough:{algorithm}", limit, GRANTS)
        assert sorted(enough) == each_once, "as many asks as the limit has: none is denied"
        assert self.hit(f"enough:{algorithm}", limit, GRANTS) == [], "and that is all"

        too_many = self.hit(f"too many:{algorithm}", limit, 2 * GRANTS)
        assert sorted(too_many) == each_once, "twice as many asks at once"

    def _heard(self, process: "subprocess.Popen[str]") -> list[int]:
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"a process ended with {process.wait(10)}"
        answer: list[int] = json.loads(line)
        return answer


@contextmanager
def started_hammers(kind: str, url: str) -> Iterator[Hammers]:
    """Start processes of `kind`, threads or tasks, on the storage of a URL. They are killed at the end."""
    with ExitStack() as stack:
        yield Hammers([stack.enter_context(_hammer(kind, url)) for _ in range(PROCESSES)])


@contextmanager
def _hammer(kind: str, url: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.hammer", kind, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
