"""Budgets of log lines: a log that an attack or an outage can flood causes another outage.

The budget of each kind of line is enforced by the same kernels as every limit.
"""

import threading
from collections import Counter

from ratebound.clock import Clock
from ratebound.fork import renew_in_children
from ratebound.limit import UNITS, Limit
from ratebound.storage.memory import MemoryStorage


class LineBudget:
    """The budget of a log: each kind of line may have `per_minute` lines at once, then that many per minute, evenly."""

    def __init__(self, per_minute: int, *, clock: Clock | None = None) -> None:
        self._limits = (Limit(per_minute, UNITS["minute"], burst=per_minute),)
        self._storage = MemoryStorage(clock=clock)
        self._suppressed: Counter[str] = Counter()
        self._lock = threading.Lock()
        renew_in_children(self)

    def admit(self, kind: str) -> int | None:
        """Return the number of lines of this kind suppressed since the last one; None to suppress this one too."""
        with self._lock:
            ((row,),) = self._storage.evaluate((((kind, self._limits, 1, None, None),),))
            if not row[0]:
                self._suppressed[kind] += 1
                return None
            suppressed, self._suppressed[kind] = self._suppressed[kind], 0
            return suppressed

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()
