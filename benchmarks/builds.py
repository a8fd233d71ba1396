"""The two builds of Ratebound, pure Python and compiled, each in a process of its own.

A process can import only one of them. So every block runs in a worker, `python -m benchmarks.worker BUILD`, whose
PYTHONPATH leads to one build. The parent lets one worker run at a time and measures nothing itself.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")
Done = Callable[[], None]  # called after each block, outside of what is measured

PURE, COMPILED = "pure", "compiled"
BUILDS = (PURE, COMPILED)
ROOT = Path(__file__).parents[1]
FOLDERS = {PURE: ROOT / "src", COMPILED: ROOT / "build" / "compiled"}
HOW_TO_COMPILE = f"There is no compiled build in {FOLDERS[COMPILED].relative_to(ROOT)}. Run: make compiled"


def chosen(wanted: str) -> tuple[str, ...]:
    """Return the builds to measure: `wanted` is one of them, or "both".

    If both are wanted and the compiled one is missing, prints how to get it and returns the pure one. Exits if only the
    compiled one is wanted and is missing.
    """
    is_there = (FOLDERS[COMPILED] / "ratebound").is_dir()
    if wanted == COMPILED and not is_there:
        raise SystemExit(HOW_TO_COMPILE)
    if wanted == "both" and not is_there:
        print(f"{HOW_TO_COMPILE}\nOnly the pure build is measured.", file=sys.stderr)
        return (PURE,)
    return BUILDS if wanted == "both" else (wanted,)


class Worker:
    """A process that imports one build and runs functions, one at a time."""

    def __init__(self, build: str) -> None:
        self.build = build
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", build],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(FOLDERS[build])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, function: Callable[..., T], *arguments: object, done: Done = lambda: None) -> T:
        """Return what `function` returns in the worker. Its last argument there is a function that calls `done` here.

        Both names and arguments travel as pickles. The worker waits until `done` has returned.
        """
        self.begin(function, *arguments)
        found: T = self.result(done)
        return found

    def begin(self, function: Callable[..., object], *arguments: object) -> None:
        """Let the worker run a function, and do not wait. `result` returns what it returns."""
        self._send((function, arguments))

    def result(self, done: Done = lambda: None) -> Any:
        """Wait for the function that was begun, and return what it returns."""
        while True:
            is_result, value = self._receive()
            if is_result:
                return value
            done()
            self._send(None)

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except EOFError:
            raise SystemExit(f"The worker of the {self.build} build failed. Its error is above.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, at which it ends


def pin_to_one_core() -> None:
    """Keep this process and its workers on one core, if the system can: workers that take turns share its caches."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@contextmanager
def on_all_cores() -> Iterator[None]:
    """Give all cores to the processes that are started meanwhile: a server, or several processes at once."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the system leaves out those that are not for us
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_together(workers: Sequence[Worker], function: Callable[..., T], *arguments: object) -> list[T]:
    """Run a function in all workers at the same time. Its first argument is the number of the worker."""
    for number, worker in enumerate(workers):
        worker.begin(function, number, *arguments)
    return [worker.result() for worker in workers]
