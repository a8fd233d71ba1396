"""The storage's clock, as a process knows it between two calls. Processes on several hosts share no other clock."""

import time
from collections.abc import Callable

from ratebound.clock import SECOND, wall_clock

AGEING = 1e-4  # an estimate is taken to be worse by this many seconds for each second of its age


class StorageTime:
    """An estimate of the storage's clock: the difference between it and the clock of this process.

    An answer of the storage says its time at some instant of the call, so a short call says it exactly.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seen_at = clock()
        self._error = float("inf")
        self._ahead = wall_clock() - round(self._seen_at * SECOND)

    @property
    def known(self) -> bool:
        """True if the storage has told its time."""
        return self._error != float("inf")

    def now(self) -> int:
        """Return the storage's time in microseconds."""
        return round(self.clock() * SECOND) + self._ahead

    def see(self, at: int, before: float, after: float) -> None:
        """Learn from a call that began and ended at these times of this process, and in which the storage said `at`."""
        error = (after - before) / 2
        if error <= self._error + AGEING * (before - self._seen_at):
            self._error, self._seen_at = error, after
            self._ahead = at - round((before + after) / 2 * SECOND)
