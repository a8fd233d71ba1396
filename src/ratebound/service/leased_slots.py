"""The slots that callers hold over the HTTP API, for figures. Nobody renews them: each ends with its lease.

A slot that is released at another worker, or reset, is counted here until its lease ends.
"""

import time
from collections import Counter
from collections.abc import Callable

from ratebound.clock import SECOND
from ratebound.limit import Group

MOST = 10_000  # slots that are counted at the same time


class LeasedSlots:
    """The slots that one worker has granted to callers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[tuple[str, object], float] = {}  # by limit and id, in the seconds of the clock

    def take(self, slots: Group) -> None:
        """Count slots from now on. `slots` are asks of one slot each; see `slots_of`."""
        if len(self._ends) >= MOST:
            self._expire()
        now = self._clock()
        for _, (limit,), _, _, extras in slots:
            if extras is not None and len(self._ends) < MOST:
                self._ends[limit.name, extras[0]] = now + limit.period_us / SECOND

    def release(self, slots: Group) -> None:
        """Count slots no longer."""
        for _, (limit,), _, _, extras in slots:
            if extras is not None:
                self._ends.pop((limit.name, extras[0]), None)

    def count(self, found: Counter[str]) -> None:
        """Add how many slots are held to `found`, by the names of their limits."""
        self._expire()
        found.update(name for name, _ in self._ends)

    def _expire(self) -> None:
        now = self._clock()
        self._ends = {slot: end for slot, end in self._ends.items() if end > now}
