"""Interleaved blocks, CPU time, medians.

In each round every contender of a case runs one short block in the worker of each build, in random order, so that other
load on the machine affects all alike. A figure is the median over the rounds. A ratio is the median of the ratios of
two blocks of one round.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from random import Random
from statistics import quantiles
from typing import Any, NamedTuple

from benchmarks.builds import BUILDS, Done, Worker

# A block is many decisions in a row. It returns how many of them were denials: reading the answer is part of the work.
Block = Callable[[Sequence[str]], int]
AsyncBlock = Callable[[Sequence[str]], Awaitable[int]]
Times = dict[str, dict[str, list[float]]]  # CPU seconds per decision of every round, by build and contender

USERS = 100
SETTLE = 0.015  # seconds; limits cleans up in a thread 10 ms after a hit: not on the next contender's bill
THREADS = 8


def counting(allows: Callable[[str], Any]) -> Block:
    """Return a block that calls `allows` for each key: one Python call around the measured one, the same for all."""

    def block(asked: Sequence[str]) -> int:
        denied = 0
        for key in asked:
            if not allows(key):
                denied += 1
        return denied

    return block


class Spread(NamedTuple):
    """The median and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of values."""
    low, median, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else list(values) * 3
    return Spread(median, low, high)


@dataclass(frozen=True, slots=True)
class Contender:
    """A library, the way it is called, its return type, and a factory. Each block gets a new one, without old state."""

    library: str
    how: str
    returns: str
    make: Callable[[], Block]
    builds: tuple[str, ...] = BUILDS  # those that can run it

    @property
    def name(self) -> str:
        """The library and the way it is called."""
        return f"{self.library} {self.how}"


@dataclass(frozen=True, slots=True)
class AsyncContender:
    """A contender for tasks. `make` is called inside a running event loop."""

    library: str
    how: str
    returns: str
    make: Callable[[], AsyncBlock]
    builds: tuple[str, ...] = BUILDS

    @property
    def name(self) -> str:
        """The library and the way it is called."""
        return f"{self.library} {self.how}"


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement with several contenders. The first is what the others are compared with."""

    name: str
    contenders: Sequence[Contender] | Sequence[AsyncContender]
    denied: bool = False
    threads: int = 0  # how many keys the threads use; 0 without threads
    warm_up: int = 20  # decisions for each key before the clock starts: the key is known, the code has run


def measure(module: str, case: Case, workers: Sequence[Worker], rounds: int, each: int, done: Done) -> Times:
    """Return CPU seconds per decision of every round. `each` is the number of decisions per key in a block.

    The workers find the case by its name in CASES of the module.
    """
    turns = [
        (worker, contender.name)
        for worker in workers
        for contender in case.contenders
        if worker.build in contender.builds
    ]
    times: Times = {worker.build: {} for worker in workers}
    for worker, name in turns:
        times[worker.build][name] = []
    for number in range(rounds):
        for worker, name in Random(number).sample(turns, len(turns)):
            spent = worker.run(run_block, module, case.name, name, number, each, done=done)
            times[worker.build][name].append(spent)
    return times


def steps_of(case: Case, builds: Sequence[str], rounds: int) -> int:
    """Return how many times `measure` calls `done`."""
    return rounds * sum(build in contender.builds for build in builds for contender in case.contenders)


def run_block(module: str, case_name: str, contender_name: str, number: int, each: int, done: Done) -> float:
    """Return CPU seconds per decision of one block. Workers run this."""
    case = next(case for case in import_module(module).CASES if case.name == case_name)
    contender = next(contender for contender in case.contenders if contender.name == contender_name)
    seconds = _block(case, contender, number, each)
    done()
    return seconds


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return theirs / ours within each round."""
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def added(times: dict[str, list[float]], who: str, base: str) -> Spread:
    """Return the microseconds that `who` takes more than `base`, within each round."""
    return spread([(more - less) * 1e6 for less, more in zip(times[base], times[who], strict=True)])


def _block(case: Case, contender: Contender | AsyncContender, number: int, each: int) -> float:
    gc.collect()  # nobody pays for another's garbage; collection stays on during the block
    time.sleep(SETTLE)
    if isinstance(contender, AsyncContender):
        spent, asked, denied = asyncio.run(_in_loop(contender, case.warm_up, number, each))
    elif case.threads:
        spent, asked, denied = _in_threads(contender, case.warm_up, case.threads, each)
    else:
        spent, asked, denied = _in_line(contender, case.warm_up, number, each)
    expected = asked if case.denied else 0
    if denied != expected:
        raise AssertionError(f"{case.name}: {contender.name} denied {denied} of {asked}, expected {expected}")
    return spent / asked


def keys(number: int, each: int) -> list[str]:
    """Return `each` visits of every user, shuffled. Each is a new string, as in a server: its hash is not computed
    yet."""
    users = [user for user in range(12_300, 12_300 + USERS) for _ in range(each)]
    Random(number).shuffle(users)
    return [f"user:{user}" for user in users]


def _in_line(contender: Contender, warm_up: int, number: int, each: int) -> tuple[float, int, int]:
    block = contender.make()
    block(keys(number, warm_up))
    asked = keys(number, each)
    start = time.process_time()
    denied = block(asked)
    return time.process_time() - start, len(asked), denied


async def _in_loop(contender: AsyncContender, warm_up: int, number: int, each: int) -> tuple[float, int, int]:
    block = contender.make()
    await block(keys(number, warm_up))
    asked = keys(number, each)
    start = time.process_time()
    denied = await block(asked)
    return time.process_time() - start, len(asked), denied


def _in_threads(contender: Contender, warm_up: int, users: int, each: int) -> tuple[float, int, int]:
    """Return the CPU time of all threads together, from the moment that all are ready."""
    block = contender.make()
    block([f"user:{12_300 + user}" for user in range(users) for _ in range(warm_up)])
    ready = threading.Barrier(THREADS + 1)
    denials: list[int] = []

    def work(asked: list[str]) -> None:
        ready.wait()
        denials.append(block(asked))

    share = 2 * USERS * each // THREADS  # two blocks between them, so that the threads take turns many times
    threads = [
        threading.Thread(target=work, args=([f"user:{12_300 + number % users}" for _ in range(share)],))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    start = time.process_time()
    ready.wait()
    for thread in threads:
        thread.join()
    return time.process_time() - start, share * THREADS, sum(denials)
