"""Replay of an access log: CPU time and peak memory of reading alone, and of the whole replay, in both builds.

The floor is what a script would do: one regular expression for each line in a bare loop, and counts of clients and
statuses.
Memory is measured for a fifth of the log and for all of it: flat means that both are alike.

python -m benchmarks.replay WHAT LOG performs one of them, and prints its CPU seconds and its peak memory in MB.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.builds import COMPILED, FOLDERS, ROOT, Done
from benchmarks.measure import spread
from benchmarks.table import Sheet
from benchmarks.verdict import Verdict, at_most

READING, WHOLE, COMPARING, SUGGESTING, BARE = "reading alone", "replay", "two policies", "suggestions", "bare loop"
WHATS = (READING, WHOLE, COMPARING, SUGGESTING, BARE)
MOST_RATIO = 3.0  # of the whole replay to reading alone
MOST_GROWTH = 1.15  # of memory, from a fifth of the log to all of it
POLICY: dict[str, Any] = {
    "rules": [
        {"name": "all", "limits": "300/minute; 5000/hour"},
        {"name": "search", "match": {"paths": ["/search"]}, "limits": "30/minute"},
        {"name": "login", "match": {"paths": ["/login"], "methods": ["POST"]}, "limits": "10/minute"},
        {"name": "orders", "match": {"paths": ["/api/orders/{id}"], "methods": ["PATCH"]}, "limits": "60/minute"},
    ]
}
LINE = re.compile(r'([^ ]+) [^ ]+ ([^ ]+) \[([^\]]+)\] "([A-Z]+) ([^" ]+)[^"]*" (\d+) ([^ ]+) "([^"]*)" "([^"]*)"')


@dataclass(slots=True)
class Replaying:
    """Microseconds of CPU per line, and MB at the peak, by build and what was done."""

    lines: int = 0
    times: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[tuple[str, str], float] = field(default_factory=dict)
    memory_of_fifth: dict[tuple[str, str], float] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on the compiled build."""
        if COMPILED not in self.ratios:
            return []
        growth = self.memory[COMPILED, WHOLE] / self.memory_of_fifth[COMPILED, WHOLE]
        return [
            at_most(COMPILED, "replay: CPU time, in times reading alone", MOST_RATIO, spread(self.ratios[COMPILED])),
            at_most(COMPILED, "replay: memory, in times that of a fifth of the log", MOST_GROWTH, spread([growth])),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "lines": self.lines,
            "runs": [
                {
                    "build": build,
                    "what": what,
                    "microseconds": times,
                    "megabytes": self.memory[build, what],
                    "megabytes_of_fifth": self.memory_of_fifth[build, what],
                }
                for (build, what), times in self.times.items()
            ],
            "ratios": self.ratios,
        }

    def sheets(self) -> list[Sheet]:
        """Return the table of all runs."""
        rows = [
            (
                build,
                what,
                f"{spread(times).median:.2f}",
                f"{spread(times).median / spread(self.times[build, READING]).median:.2f}",
                f"{1e6 / spread(times).median:,.0f}",
                f"{self.memory_of_fifth[build, what]:.0f}",
                f"{self.memory[build, what]:.0f}",
            )
            for (build, what), times in self.times.items()
        ]
        columns = ("build", "what", "µs a line", "times reading", "lines a second", "MB, a fifth", "MB, all")
        return [Sheet(f"Replay of a log of {self.lines:,} lines", columns, rows)] if rows else []


def steps(rounds: int, builds: Sequence[str]) -> int:
    """Return the number of steps of a run."""
    return len(builds) * len(WHATS) * (rounds + 1) + 1


def measure_replay(lines: int, rounds: int, builds: Sequence[str], done: Done) -> Replaying:
    """Return the figures of all builds: in each round each of them does everything once."""
    results = Replaying(lines)
    with tempfile.TemporaryDirectory(prefix="ratebound-replay-") as folder:
        log, fifth = Path(folder) / "access.log", Path(folder) / "fifth.log"
        _make(lines, log, fifth)
        done()
        for number in range(rounds + 1):
            for build in builds:
                for what in WHATS:
                    seconds, megabytes = _performed(build, what, log if number else fifth)
                    if number:
                        results.times.setdefault((build, what), []).append(seconds / lines * 1e6)
                        results.memory[build, what] = megabytes
                    else:
                        results.memory_of_fifth[build, what] = megabytes
                    done()
                if number:
                    ratio = results.times[build, WHOLE][-1] / results.times[build, READING][-1]
                    results.ratios.setdefault(build, []).append(ratio)
    return results


def _make(lines: int, log: Path, fifth: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.made_logs", "combined", str(lines), str(log)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    with log.open("rb") as whole, fifth.open("wb") as part:
        for _, line in zip(range(lines // 5), whole, strict=False):
            part.write(line)


def _performed(build: str, what: str, log: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.replay", what, str(log)]
    env = os.environ | {"PYTHONPATH": str(FOLDERS[build])}
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=env)
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def _read(log: str) -> None:
    from ratebound.replay.read_log import LogReader
    from ratebound.replay.whole_log import few_collections

    with few_collections() as collect:  # as in a replay
        for entries in LogReader([log], fields=()):
            collect(len(entries))


def _replay(log: str, policies: int, *, suggests: bool = False) -> None:
    from ratebound.policy import read_policy
    from ratebound.replay.client_peaks import PeakTable
    from ratebound.replay.engine import PolicyRun
    from ratebound.replay.log_replay import LogReplay
    from ratebound.replay.read_log import LogReader
    from ratebound.replay.whole_log import replay_log

    runs = [PolicyRun(read_policy(POLICY)) for _ in range(policies)]
    replay = LogReplay(*runs, peaks=PeakTable() if suggests else None)
    replay_log(LogReader([log], fields=()), replay)
    assert replay.requests


def _loop(log: str) -> None:
    clients: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = LINE.match(line)
            if found is not None:
                clients[found[1]] += 1
                statuses[found[6]] += 1


def _peak_megabytes() -> float:
    """Return the largest memory of this process. Not ru_maxrss: that is the parent's, if the parent was larger."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


WORK: dict[str, Callable[[str], None]] = {
    READING: _read,
    WHOLE: lambda log: _replay(log, 1),
    COMPARING: lambda log: _replay(log, 2),
    SUGGESTING: lambda log: _replay(log, 0, suggests=True),
    BARE: _loop,
}

if __name__ == "__main__":
    begun = time.process_time()
    WORK[sys.argv[1]](sys.argv[2])
    print(json.dumps([time.process_time() - begun, _peak_megabytes()]))
