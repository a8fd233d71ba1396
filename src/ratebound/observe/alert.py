"""A call to the user's own function when the storage is lost or back, and when too many requests are refused.

Such a function sends a message somewhere, which takes as long as it takes. So it is called in a thread of its own:
inline it would hold up the request that happened to bring the news, or a whole event loop. The thread lives only
while there is something to tell.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from ratebound.clock import SECOND, Clock, ticking
from ratebound.events import Decided, Degraded, Event, Recovered, log
from ratebound.fork import renew_in_children

SLICES = 12  # the window moves on by a twelfth of itself
EASED = 0.8  # the share must fall below this part of the threshold before it can be risen above again
MAX_WAITING = 100  # alerts that wait for the function to return from the one before
MAX_NODES = 1000


class Alert(NamedTuple):
    """What happened, and a sentence about it. `node` is of the first two kinds, `share` of the other two."""

    kind: Literal["degraded", "recovered", "rejections", "eased"]
    text: str
    node: str = ""
    share: float = 0.0


class AlertListener:
    """Calls `call(alert)` in a thread of its own, one after the other; what it raises is logged.

    "degraded" and "recovered" come once for each outage of a node, unless `degraded` is false. "rejections" comes when
    more than `rejected_share` of at least `least` decisions in the last `window` seconds were refused, and not again
    before "eased": the share has fallen below four fifths of that, or nothing was decided for a whole window. Both are
    noticed with the next decision, not without one. `rejected_share=None` leaves them out.
    """

    def __init__(
        self,
        call: Callable[[Alert], object],
        *,
        degraded: bool = True,
        rejected_share: float | None = 0.5,
        window: float = 60.0,
        least: int = 100,
        clock: Clock | None = None,
    ) -> None:
        if rejected_share is not None and not 0 < rejected_share < 1:
            raise ValueError(f"rejected_share must be between 0 and 1, or None, not {rejected_share!r}")
        if not 0 < window < float("inf"):
            raise ValueError(f"window must be a positive number of seconds, not {window!r}")
        if type(least) is not int or least < 1:
            raise ValueError(f"least must be a positive whole number, not {least!r}")
        self._call = call
        self._degraded = degraded
        self._share = rejected_share
        self._least = least
        self._length = max(1, round(window * SECOND / SLICES))
        self._ticks, self._anchor = ticking(clock)
        self._lock = threading.Lock()
        self._down: set[str] = set()
        self._slices = [[0, 0] for _ in range(SLICES)]  # decisions and refusals
        self._slice = self._now() // self._length
        self._total = self._refused = 0
        self._high = False
        self._waiting: deque[Alert] = deque()
        self._dropped = 0
        self._telling = False
        self._thread: threading.Thread | None = None  # the last one: it may have ended
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

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is told, or `timeout` seconds have passed; true if all is. The thread dies with the process,
        so call this before the end if the last alert matters."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                thread = self._thread
            if thread is None:
                return True
            if thread is threading.current_thread():
                return False
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return False
            with self._lock:
                if not self._telling:
                    return True

    def renew(self) -> None:
        """For a child process, where no other thread is: what waits to be told is told by the parent."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._telling, self._thread = False, None

    def _decided(self, refused: bool, most: float) -> None:
        with self._lock:
            self._roll()
            if self._high and not self._total:
                self._ease(0.0)
            current = self._slices[self._slice % SLICES]
            current[0] += 1
            current[1] += refused
            self._total += 1
            self._refused += refused
            share = self._refused / self._total
            if self._high and share < most * EASED:
                self._ease(share)
            elif not self._high and share > most and self._total >= self._least:
                self._high = True
                text = f"{share:.0%} of the last {self._total} decisions were refusals"
                self._tell(Alert("rejections", text, share=share))

    def _ease(self, share: float) -> None:
        self._high = False
        self._tell(Alert("eased", f"only {share:.0%} of decisions are refusals now", share=share))

    def _now(self) -> int:
        return self._ticks() // 1000 + self._anchor

    def _roll(self) -> None:
        """Empty the slices that have left the window."""
        now = self._now() // self._length
        for index in range(max(self._slice, now - SLICES) + 1, now + 1):
            slot = self._slices[index % SLICES]
            self._total -= slot[0]
            self._refused -= slot[1]
            slot[:] = 0, 0
        self._slice = max(self._slice, now)

    def _tell(self, alert: Alert) -> None:
        """Under the lock: two threads must not both begin one, and alerts keep their order."""
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(alert)
        if not self._telling:
            thread = threading.Thread(target=self._run, name="ratebound-alert", daemon=True)
            thread.start()  # waits for our lock; raises when the interpreter is about to end
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
            except BaseException:  # sys.exit() too: it would end this thread, and with it all alerts
                log.exception("the alert function failed; decisions are not concerned")


def _named(node: str) -> str:
    return f"the storage {node}" if node else "the storage"
