"""A circuit breaker: after several outages in a row a server is no longer called, except by one probe at a time.

It is a state machine without I/O: callers report the result of each call. Permission to call is a ticket, and only the
newest ticket counts: a late result from before a change of state neither closes nor opens the breaker.
"""

import random
import threading
import time
from collections.abc import Callable


class Breaker:
    """A thread-safe circuit breaker for one server: a node of a storage, or an API that a client calls.

    Closed, it admits every call. Open, it admits one probe every half to whole `interval`, in seconds, with jitter, so
    that many processes do not probe at once. A probe that never reports is replaced after `lease` seconds.
    """

    __slots__ = ("_clock", "_failed", "_lock", "_most", "_opened", "_probe_at", "_turn", "calm", "interval", "lease")

    def __init__(
        self,
        *,
        failures: int = 3,
        interval: float = 1.0,
        lease: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval = interval
        self.lease = lease
        self.calm = 1  # a ticket while closed and nothing has failed since the last success, else 0
        self._most = failures
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = 1  # increases with every change of state, so that older tickets are recognised
        self._failed = 0  # outages in a row
        self._opened: float | None = None
        self._probe_at = 0.0

    @property
    def closed(self) -> bool:
        """True while every call is admitted."""
        return self._opened is None

    def admit(self) -> int:
        """Return a ticket, to be passed on with the call's result; 0 if the server must not be called."""
        turn = self._turn  # read first: if the breaker opens in between, this ticket is already old
        if self._opened is None:
            return turn
        with self._lock:
            if self._opened is not None:
                now = self._clock()
                if now < self._probe_at:
                    return 0
                self._probe_at = now + self.lease
                self._turn += 1
            return self._turn

    def release(self, ticket: int) -> None:
        """Return an unused ticket, so that another caller can probe at once."""
        with self._lock:
            if self._opened is not None and ticket == self._turn:
                self._probe_at = self._clock()

    def succeeded(self, ticket: int) -> float | None:
        """Report a success. Return the seconds that the breaker was open if this ends trouble.

        Return 0.0 if it was never open, None if there was no trouble.
        """
        if ticket == self.calm:
            return None
        with self._lock:
            if ticket != self._turn or self.calm:
                return None
            opened, seconds = self._opened, 0.0
            if opened is not None:
                seconds = max(self._clock() - opened, 1e-6)
                self._turn += 1
            self._failed = 0
            self._opened = None
            self.calm = self._turn
            return seconds

    def failed(self, ticket: int) -> bool:
        """Report an outage. Return True if that opened the breaker."""
        with self._lock:
            if ticket != self._turn:
                return False
            self.calm = 0
            self._failed += 1
            now, was_closed = self._clock(), self._opened is None
            if was_closed:
                if self._failed < self._most:
                    return False
                self._opened = now
            self._turn += 1
            self._probe_at = now + self.interval * (0.5 + 0.5 * random.random())
            return was_closed

    def probe_after(self) -> float:
        """Return seconds until the server may be called again."""
        return 0.0 if self._opened is None else max(self._probe_at - self._clock(), 0.0)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()
