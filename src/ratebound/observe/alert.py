"""Alerts: calls of a user's function when the storage is lost or back, and when too many requests are denied.

Such a function sends a message, which takes its time. So it runs in its own thread: inline it would delay the request
that brought the news, or a whole event loop. The thread lives only while there are alerts to send.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from ratebound.clock import SECOND, Clock, ticking
from ratebound.duration import Duration, as_seconds
from ratebound.events import Decided, Degraded, Event, Recovered, log
from ratebound.fork import renew_in_children
from ratebound.limit import MAX_PERIOD

SLICES = 12  # the window moves on by a twelfth of itself
EASED = 0.8  # the share must fall below this part of the threshold before another alert can follow
MAX_WAITING = 100  # alerts that wait while the function handles an earlier one
MAX_NODES = 1000


class Alert(NamedTuple):
    """An alert of one kind, with a sentence that describes it.

    Attributes:
        kind: "degraded", "recovered", "denials" or "eased".
        text: The sentence.
        node: The server, for "degraded" and "recovered", if there are several.
        share: The share of denials, for "denials" and "eased".
    """

    kind: Literal["degraded", "recovered", "denials", "eased"]
    text: str
    node: str = ""
    share: float = 0.0


class AlertListener:
    """A listener that calls your function in its own thread, one alert after the other.

    Exceptions of the function are logged. "degraded" and "recovered" come once for each outage of a node. "denials"
    comes when too many decisions were denied. It does not come again before "eased": the share has fallen below four
    fifths of `denied_share`, or a whole window passed without decisions. Both are noticed with the next decision.

    Args:
        call: A function of one `Alert`. It may be slow.
        degraded: False turns "degraded" and "recovered" off.
        denied_share: The share of denials, between 0 and 1, above which "denials" comes. None turns it and "eased" off.
        window: The time that is looked at: seconds or a timedelta.
        least: The decisions in a window without which no share is alarming.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: An option is out of bounds.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.observe import AlertListener
        >>> alerts = []
        >>> listener = AlertListener(alerts.append, denied_share=0.5, least=4)
        >>> limiter = Limiter("1/minute", listeners=[listener])
        >>> decisions = limiter.hit_many(["user:42"] * 4)
        >>> listener.flush()
        True
        >>> alerts[0].text
        '75% of the last 4 decisions were denials'
    """

    def __init__(
        self,
        call: Callable[[Alert], object],
        *,
        degraded: bool = True,
        denied_share: float | None = 0.5,
        window: Duration = 60.0,
        least: int = 100,
        clock: Clock | None = None,
    ) -> None:
        if denied_share is not None and not 0 < denied_share < 1:
            raise ValueError(f"denied_share must be between 0 and 1, or None, not {denied_share!r}")
        seconds = as_seconds("window", window, positive=True, most=MAX_PERIOD / SECOND)
        if type(least) is not int or least < 1:
            raise ValueError(f"least must be a positive whole number, not {least!r}")
        self._call = call
        self._degraded = degraded
        self._share = denied_share
        self._least = least
        self._length = max(1, round(seconds * SECOND / SLICES))
        self._ticks, self._anchor = ticking(clock)
        self._lock = threading.Lock()
        self._down: set[str] = set()
        self._slices = [[0, 0] for _ in range(SLICES)]  # decisions and denials
        self._slice = self._now() // self._length
        self._total = self._denied = 0
        self._high = False
        self._waiting: deque[Alert] = deque()
        self._dropped = 0
        self._telling = False
        self._thread: threading.Thread | None = None  # the latest, which may have ended
        renew_in_children(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided):
            if self._share is not None:
                self._decided(not event.decision.allowed, self._share)
        elif isinstance(event, Degraded) and self._degraded:
            text = f"decisions are made without {_named(event.node)}: {event.reason}"
            with self._lock:
                if event.node not in self._down and len(self._down) < MAX_NODES:
                    self._down.add(event.node)
                    self._tell(Alert("degraded", text, node=event.node))
        elif isinstance(event, Recovered) and self._degraded:
            text = f"{_named(event.node)} decides again after {event.seconds:.3g} s"
            with self._lock:
                if event.node in self._down:
                    self._down.remove(event.node)
                    self._tell(Alert("recovered", text, node=event.node))

    def flush(self, timeout: Duration | None = None) -> bool:
        """Wait until all alerts are sent. Return True if they are.

        The thread ends with the process, so call this before exit if the last alert matters.

        Args:
            timeout: The longest wait: seconds or a timedelta. None means no bound.
        """
        end = None if timeout is None else time.monotonic() + as_seconds("timeout", timeout)
        while True:
            with self._lock:
                thread = self._thread
            if thread is None:
                return True
            if thread is threading.current_thread():
                return False
            thread.join(None if end is None else min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX))
            if thread.is_alive():
                return False
            with self._lock:
                if not self._telling:
                    return True

    def renew(self) -> None:
        """Forget waiting alerts in a forked child: the parent sends them."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._telling, self._thread = False, None

    def _decided(self, denied: bool, most: float) -> None:
        with self._lock:
            self._roll()
            if self._high and not self._total:
                self._ease(0.0)
            current = self._slices[self._slice % SLICES]
            current[0] += 1
            current[1] += denied
            self._total += 1
            self._denied += denied
            share = self._denied / self._total
            if self._high and share < most * EASED:
                self._ease(share)
            elif not self._high and share > most and self._total >= self._least:
                self._high = True
                text = f"{share:.0%} of the last {self._total} decisions were denials"
                self._tell(Alert("denials", text, share=share))

    def _ease(self, share: float) -> None:
        self._high = False
        self._tell(Alert("eased", f"only {share:.0%} of decisions are denials now", share=share))

    def _now(self) -> int:
        return self._ticks() // 1000 + self._anchor

    def _roll(self) -> None:
        """Empty the slices that have left the window."""
        now = self._now() // self._length
        if now <= self._slice:
            return
        for index in range(max(self._slice, now - SLICES) + 1, now + 1):
            slot = self._slices[index % SLICES]
            self._total -= slot[0]
            self._denied -= slot[1]
            slot[:] = 0, 0
        self._slice = now

    def _tell(self, alert: Alert) -> None:
        """Queue an alert and start the thread if there is none.

        The caller holds the lock, which keeps alerts in order.
        """
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(alert)
        if not self._telling:
            thread = threading.Thread(target=self._run, name="ratebound-alert", daemon=True)
            thread.start()  # it waits for our lock; raises if the interpreter is shutting down
            self._telling, self._thread = True, thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._telling = False
                    return
                alert = self._waiting.popleft()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.error("the alert function is too slow: %d alerts were dropped", dropped)
            try:
                self._call(alert)
            except BaseException:  # also SystemExit: it would end this thread, and with it all alerts
                log.exception("the alert function failed; decisions are not affected")


def _named(node: str) -> str:
    return f"the storage {node}" if node else "the storage"
