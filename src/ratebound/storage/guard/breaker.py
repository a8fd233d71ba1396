"""A circuit breaker: after some outages in a row a node is left alone, and then asked by one caller at a time.

A state machine and nothing else: who calls the node tells it what came of that. Leave to call is a ticket, and only
the newest kind counts: what comes back late from before a change neither closes nor opens anything.
"""

import random
import threading
import time
from collections.abc import Callable


class Breaker:
    """Closed, it lets everybody through; open, one probe every half to whole `interval` (seconds, with jitter, so that
    many processes do not ask at once). A probe that is never heard of again makes way for another after `lease`."""

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
        self.calm = 1  # a ticket while it is closed and nothing has failed since the last success, else 0
        self._most = failures
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = 1  # goes up with every change, so that tickets from before it are known to be old
        self._failed = 0  # outages in a row
        self._opened: float | None = None
        self._probe_at = 0.0

    @property
    def closed(self) -> bool:
        return self._opened is None

    def admit(self) -> int:
        """A ticket, to be given back with what came of the call; 0 when the node is to be left alone."""
        turn = self._turn  # read first: if the breaker opens in between, this ticket is an old one
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
        """The ticket was not used: somebody else may be the probe at once."""
        with self._lock:
            if self._opened is not None and ticket == self._turn:
                self._probe_at = self._clock()

    def succeeded(self, ticket: int) -> float | None:
        """How long it was open, in seconds, if this ends a trouble; 0.0 if it was never open, None if all was well."""
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
        """An outage. Whether that has opened it."""
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
        """Seconds until the node may be asked again."""
        return 0.0 if self._opened is None else max(self._probe_at - self._clock(), 0.0)

    def renew(self) -> None:
        """For a child process: the thread that held the lock is not there any more."""
        self._lock = threading.Lock()
