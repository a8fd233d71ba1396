"""Interleaved blocks, CPU time, medians.

In each round every contender of a case runs one short block, in an order that rotates from round to round, so that
other load on the machine affects all alike. A figure is the median over the rounds; a ratio is the median of the ratios
within each round.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import quantiles
from typing import NamedTuple

from benchmarks.contenders import AsyncContender, Contender

Done = Callable[[], None]  # called after each block, outside of what is measured

USERS = 100
WARM_UP = 20  # decisions for each key before the clock starts: the key is known, the code has run
SETTLE = 0.015  # seconds; limits cleans up in a thread 10 ms after a hit: not on the next contender's bill
THREADS = 8


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
class Case:
    """One measurement with several contenders. The first is ours."""

    name: str
    contenders: Sequence[Contender] | Sequence[AsyncContender]
    denied: bool = False
    threads: int = 0  # how many keys the threads use; 0 without threads


def measure(case: Case, rounds: int, each: int, done: Done) -> dict[str, list[float]]:
    """Return CPU seconds per decision of every round, by contender. `each` is the number of decisions per key in a
    block."""
    times: dict[str, list[float]] = {contender.name: [] for contender in case.contenders}
    for number in range(rounds):
        for place in range(len(case.contenders)):
            contender = case.contenders[(place + number) % len(case.contenders)]
            times[contender.name].append(_block(case, contender, number, each))
            done()
    return times


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return theirs / ours within each round."""
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def _block(case: Case, contender: Contender | AsyncContender, number: int, each: int) -> float:
    gc.collect()  # nobody pays for another's garbage; collection stays on during the block
    time.sleep(SETTLE)
    if isinstance(contender, AsyncContender):
        spent, asked, denied = asyncio.run(_in_loop(contender, number, each))
    elif case.threads:
        spent, asked, denied = _in_threads(contender, case.threads, each)
    else:
        spent, asked, denied = _in_line(contender, number, each)
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


def _in_line(contender: Contender, number: int, each: int) -> tuple[float, int, int]:
    block = contender.make()
    block(keys(number, WARM_UP))
    asked = keys(number, each)
    start = time.process_time()
    denied = block(asked)
    return time.process_time() - start, len(asked), denied


async def _in_loop(contender: AsyncContender, number: int, each: int) -> tuple[float, int, int]:
    block = contender.make()
    await block(keys(number, WARM_UP))
    asked = keys(number, each)
    start = time.process_time()
    denied = await block(asked)
    return time.process_time() - start, len(asked), denied


def _in_threads(contender: Contender, users: int, each: int) -> tuple[float, int, int]:
    """Return the CPU time of all threads together, from the moment that all are ready."""
    block = contender.make()
    block([f"user:{12_300 + user}" for user in range(users) for _ in range(WARM_UP)])
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
