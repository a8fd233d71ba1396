"""Events as a limiter would tell them, with real decisions; and a thread that is in the middle of something."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ratebound import Decision, Limiter
from ratebound.events import Decided
from ratebound.outcome import DegradedRows


def told(decision: Decision, seconds: float = 0.001) -> Decided:
    return Decided(decision, seconds)


def without_storage(decision: Decision, reason: str = "timed out", *, closed: bool = False) -> Decision:
    """The same answer, as the failure mode would have given it."""
    return Decision(decision.asks, DegradedRows(decision.rows, reason, closed=closed))


def refusal(limiter: Limiter, key: str) -> Decision:
    while decision := limiter.hit(key):
        pass
    return decision


@contextmanager
def held_elsewhere(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Another thread holds the lock: who forks now has a child in which nobody will release it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()
