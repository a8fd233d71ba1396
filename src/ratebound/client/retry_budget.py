"""The retry budget: retries are at most a share of requests, however many calls fail.

Retries without a budget multiply the load on a server that is in trouble already: four attempts for each call are four
times the traffic. All calls of a client share one budget. A retry has room if two things are true:

- With it, retries of the last `period` are at most `share` of the requests that were sent in it.
- Requests have paid for it: each pays `share` of a retry, once. What is not used is kept for one period at most.

It also has room if there were fewer than `floor` retries in the last period, so that a client with little traffic can
retry at all. Later requests pay for these first. So with steady traffic of at least 2 · floor / share requests in a
period (2 per second by default) the floor adds nothing, and a client that meets an outage at its start sends at most
1 + share times its requests. One that has saved up before sends up to share · requests of one period more.

The period is a ring of counters: memory is constant, and so is the work of a call.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from ratebound.client.backoff import LONGEST
from ratebound.duration import Duration, as_seconds
from ratebound.fork import renew_in_children

SHORTEST: Final = 0.1  # seconds of a period
PARTS: Final = 30  # of a period: the oldest is forgotten as a whole, so the period is at most 1/30 shorter than it says
ONE: Final = 1 - 1e-9  # ten tenths are a little less than one


class RetryBudget:
    """A thread-safe budget of retries, shared by all calls that are given this object.

    The defaults (10 %, 30 s, 3) let one call make all its three retries every half a minute; from two requests per
    second on, the share counts.

    Args:
        share: The retries that each request pays for, from 0 to 10; 0.1 is one retry for ten requests.
        period: The time that is looked at: seconds or a timedelta, from 0.1 seconds to a day.
        floor: The retries of a period that need no requests to pay for them.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        ValueError: An option is out of bounds.

    Examples:
        >>> from ratebound.client import RetryBudget
        >>> budget = RetryBudget(0.1, floor=1)
        >>> budget.take(), budget.take()
        (True, False)
    """

    def __init__(
        self,
        share: float = 0.1,
        *,
        period: Duration = 30.0,
        floor: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 10:
            raise ValueError(f"share is {share!r}: expected a number from 0 to 10, for example 0.1 for 10 %")
        period = as_seconds("period", period, most=LONGEST)
        if period < SHORTEST:
            raise ValueError(f"period is {period!r}: expected at least {SHORTEST} seconds")
        if type(floor) is not int or floor < 0:
            raise ValueError(f"floor is {floor!r}: expected a whole number of retries, 0 or more")
        self.share: Final = share
        self.period: Final = period
        self.floor: Final = floor
        self._clock = clock
        self._part = period / PARTS
        self._ring = [(0, 0)] * PARTS  # (requests, retries) of each part of the period
        self._credit = 0.0  # retries that requests have paid for; negative while the floor is not paid back
        self._requests = 0  # the sums over the ring
        self._retries = 0
        self._number = math.floor(clock() / self._part)  # of the newest part
        self._lock = threading.Lock()
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"RetryBudget({self.share}, period={self.period}, floor={self.floor})"

    def requested(self) -> None:
        """Count one request that is sent for the first time."""
        with self._lock:
            self._move_on()
            at = self._number % PARTS
            requests, retries = self._ring[at]
            self._ring[at] = requests + 1, retries
            self._requests += 1
            self._credit = min(self._credit + self.share, self.share * self._requests)

    def take(self) -> bool:
        """Count one retry and return True, or return False if there is no room for it."""
        with self._lock:
            self._move_on()
            paid = self._credit >= ONE and self._retries + 1 <= self.share * self._requests
            if not paid and self._retries >= self.floor:
                return False
            self._credit = max(self._credit - 1, -float(self.floor))
            at = self._number % PARTS
            requests, retries = self._ring[at]
            self._ring[at] = requests, retries + 1
            self._retries += 1
            return True

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def _move_on(self) -> None:
        """Forget what is older than a period. A clock that steps back stays in the newest part."""
        number = math.floor(self._clock() / self._part)
        for newer in range(max(self._number, number - PARTS) + 1, number + 1):
            requests, retries = self._ring[newer % PARTS]
            self._requests -= requests
            self._retries -= retries
            self._ring[newer % PARTS] = 0, 0
        self._credit = min(self._credit, self.share * self._requests)
        self._number = max(self._number, number)
