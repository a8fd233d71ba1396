"""Import time: the core, and the FastAPI adapter beside FastAPI itself, in both builds.

The figure is the CPU time of a new process that imports and ends, less that of one that imports nothing. A round starts
each of them once, and ratios are those of one round. Bytecode is there: the round before the first writes it.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.builds import FOLDERS, Done
from benchmarks.measure import spread
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_most

NOTHING, CORE, FASTAPI, BOTH = "pass", "import ratebound", "import fastapi", "import fastapi, ratebound.web.fastapi"
STATEMENTS = (NOTHING, "import asyncio", CORE, FASTAPI, "import ratebound.web.fastapi", BOTH)
MOST_SECONDS = 0.060  # for the core
MOST_RATIO = 2.0  # of FastAPI with the adapter to FastAPI


@dataclass(slots=True)
class Importing:
    """Seconds of CPU of each statement, by build: one figure for each round."""

    times: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on each build."""
        judged = []
        for build in dict.fromkeys(build for build, _ in self.times):
            core = spread([1000 * seconds for seconds in self.times[build, CORE]])
            judged.append(at_most(build, f"{CORE}: ms of CPU", 1000 * MOST_SECONDS, core))
            judged.append(at_most(build, f"{BOTH}: in times {FASTAPI}", MOST_RATIO, spread(self.ratios(build, BOTH))))
        return judged

    def ratios(self, build: str, statement: str) -> list[float]:
        """Return the ratio to FastAPI in each round."""
        pairs = zip(self.times[build, statement], self.times[build, FASTAPI], strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [{"build": build, "statement": what, "seconds": each} for (build, what), each in self.times.items()]

    def sheets(self) -> list[Sheet]:
        """Return the table."""
        rows = [
            (build, what, *figures(spread(each), 1000), f"{spread(self.ratios(build, what)).median:.2f}")
            for (build, what), each in self.times.items()
        ]
        head = ("build", "statement", "ms of CPU", "quartiles", "times FastAPI")
        return [Sheet("Import time", head, rows)] if rows else []


def steps(rounds: int, builds: Sequence[str]) -> int:
    """Return the number of steps of a run."""
    return len(builds) * len(STATEMENTS) * (rounds + 1)


def measure_imports(rounds: int, builds: Sequence[str], done: Done) -> Importing:
    """Return the figures of all builds."""
    results = Importing({(build, what): [] for build in builds for what in STATEMENTS if what != NOTHING})
    for number in range(rounds + 1):
        for build in builds:
            spent = {}
            for statement in STATEMENTS:
                spent[statement] = _seconds(build, statement)
                done()
            if number:
                for statement in STATEMENTS[1:]:
                    results.times[build, statement].append(spent[statement] - spent[NOTHING])
    return results


def _seconds(build: str, statement: str) -> float:
    """Return the CPU time of a process that runs a statement. Exits if it fails."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPATH"] = str(FOLDERS[build])
    process = os.posix_spawn(sys.executable, [sys.executable, "-P", "-c", statement], environ)
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{statement} failed. Its error is above.")
    return used.ru_utime + used.ru_stime
