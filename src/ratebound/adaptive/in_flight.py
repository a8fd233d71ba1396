"""The number of requests that a process can work on at once, found from the time that they take.

Work beyond what a server can do at once only waits: latency rises, and throughput does not. So requests are timed in
short windows. While they take about as long as an unhurried request, a limit that is reached rises by half its square
root; it doubles if it was never too high. When they take more than TOLERANCE times as long, the limit falls in
proportion, at most to half.

The time of an unhurried request changes with the application, with its backends and with what clients ask for, and a
loaded process does not show it. So it is measured by probes: for one window, the process takes a quarter of its limit.
There is a probe when requests seem to wait, before the limit falls, and now and then while the limit is reached. A
window in which the process is not busy measures it for free. Until the next probe, a limit falls at most to a quarter;
if that probe shows that unhurried requests take longer now, the limit is what it was at the probe before.

The time of a window is the geometric mean. A median jumps where some requests take a hundred times as long as others,
and a mean follows the few that take longest. A window lasts as long as nine in ten of the requests before it: in a
shorter one, quick requests would be over-represented.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

from ratebound.fork import renew_in_children

TOLERANCE: Final = 2.0  # requests that take so many times as long as unhurried ones wait
SHORTEST: Final = 0.05  # seconds: shorter requests count as so long, because nobody minds to wait for that
WINDOW: Final = 0.1  # seconds that a window lasts at least
SAMPLES: Final = 20  # requests that a window has at least
MOST_SAMPLES: Final = 500  # of a window that are kept
LONGEST_WINDOW: Final = 10.0  # seconds after which a window ends with fewer requests
FIRST_PROBE: Final = 1.0  # seconds after the start
PROBE_EVERY: Final = 10.0  # seconds
PROBE_COST: Final = 20  # probes take at most one in so many of all seconds
PROBE_SHARE: Final = 4  # a probe takes one in so many of the limit
DEEPEST: Final = 0.25  # of the limit at a probe: it falls no further until the next
MISJUDGED: Final = 1.5  # a probe that takes so many times as long as the measure says that this was wrong
IDLE_SHARE: Final = 4  # a process with fewer than one in so many of its limit at once is not busy


class InFlight:
    """A limit of the requests that are in this process at the same time. It finds its own number.

    `least` and `most` bound the limit, and `first` is where it begins: 4, 1000 and 20, as far as those given allow. A
    request calls `enter` when it comes, and `note` and `leave` when its answer starts. `limit` is the limit now,
    `now_in` the requests that are there, and `shed` those that found no place. Thread-safe.
    """

    def __init__(
        self,
        *,
        least: int | None = None,
        most: int = 1000,
        first: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if least is None:
            least = min(4, most) if type(most) is int else 4
        if first is None:
            first = min(max(20, least), most) if type(least) is type(most) is int else 20
        for name, number in (("least", least), ("first", first), ("most", most)):
            if type(number) is not int or not 1 <= number <= 100_000:
                raise ValueError(f"{name} must be a whole number from 1 to 100000, not {number!r}")
        if not least <= first <= most:
            raise ValueError(f"expected least <= first <= most, not {least}, {first} and {most}")
        self.least = least
        self.most = most
        self.limit = first
        self.shed = 0
        self._now = now
        self._measure: float | None = None  # seconds that an unhurried request takes
        self._estimate = float(first)
        self._probed = self._estimate  # the highest since the last probe
        self._is_new = True  # the limit has never been too high
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with no request. A child process has none of its parent's."""
        self._lock = threading.RLock()  # the collector may end a request in a thread that holds it
        self.now_in = 0
        self._probes_at = self._now() + FIRST_PROBE
        self._may_probe_at = self._now()
        self._is_probe = False
        self._was_full = False  # since the last probe
        self._window = WINDOW
        self._begin_window()

    def _begin_window(self) -> None:
        self._begins = self._now()
        self._busiest = self.now_in
        self._is_full = False
        self._samples: list[float] = []

    def enter(self) -> bool:
        """Take a place. Return False if there is none."""
        with self._lock:
            if self.now_in >= (max(self.limit // PROBE_SHARE, 1) if self._is_probe else self.limit):
                self._is_full = True
                self.shed += 1
                return False
            self.now_in += 1
            self._busiest = max(self._busiest, self.now_in)
            return True

    def enter_again(self) -> None:
        """Take a place, even if there is none: the request was here before."""
        with self._lock:
            self.now_in += 1
            self._busiest = max(self._busiest, self.now_in)

    def leave(self) -> None:
        """Give back a place."""
        with self._lock:
            self.now_in -= 1

    def note(self, seconds: float) -> None:
        """Note the time that a request took until its answer."""
        with self._lock:
            now = self._now()
            if self._is_probe and now - seconds < self._begins:
                # It has waited among those that came before the probe. If all take very long, there is no probe.
                self._is_probe = now - self._begins < LONGEST_WINDOW
                return
            if len(self._samples) < MOST_SAMPLES:
                self._samples.append(max(seconds, SHORTEST))
            lasted = now - self._begins
            if lasted >= LONGEST_WINDOW or (lasted >= self._window and len(self._samples) >= SAMPLES):
                self._end_window(now)

    def _end_window(self, now: float) -> None:
        taken = statistics.geometric_mean(self._samples)
        self._window = max(WINDOW, sorted(self._samples)[len(self._samples) * 9 // 10])
        is_idle = self._busiest * IDLE_SHARE <= self.limit
        seems_slow = False
        if self._measure is None:
            self._measure = taken
        elif self._is_probe or is_idle:
            if self._is_probe:
                self._end_probe(misjudged=taken > self._measure * MISJUDGED)
            self._measure = taken
        else:
            seems_slow = taken > self._measure * TOLERANCE and now >= self._may_probe_at
            if not seems_slow:
                self._adjust(taken / self._measure)
        self._was_full = not self._is_probe and (self._was_full or self._is_full)
        if self._is_probe:
            # It was idle, if it lasted longer: nobody came while it was there.
            self._may_probe_at = now + PROBE_COST * min(now - self._begins, LONGEST_WINDOW)
            self._probes_at = max(now + PROBE_EVERY, self._may_probe_at)
        elif is_idle:  # it cost nothing, however long it was
            self._probes_at = now + PROBE_EVERY
        self._is_probe = seems_slow or (now >= self._probes_at and self._was_full)
        self._begin_window()

    def _end_probe(self, *, misjudged: bool) -> None:
        if misjudged:
            self._estimate = max(self._estimate, self._probed)
            self.limit = int(self._estimate)
        self._probed = self._estimate

    def _adjust(self, slower: float) -> None:
        if slower > TOLERANCE:
            self._estimate = max(self._estimate * max(TOLERANCE / slower, 0.5), self._probed * DEEPEST)
            self._is_new = False
        elif self._is_full:
            self._estimate += self._estimate if self._is_new else math.sqrt(self._estimate) / 2
        self._estimate = min(max(self._estimate, self.least), self.most)
        self._probed = max(self._probed, self._estimate)
        self.limit = int(self._estimate)
