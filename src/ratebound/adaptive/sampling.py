"""One thread for each process that samples all pressures. It ends when there are none."""

import logging
import threading
import time
from typing import Protocol
from weakref import WeakSet

from ratebound.fork import renew_in_children

log = logging.getLogger("ratebound")

INTERVAL = 0.25  # seconds between two samples


class Sampled(Protocol):
    """An object that is sampled: a Pressure."""

    def sample(self) -> None:
        """Read all signals."""


class Sampler:
    """The thread that samples pressures. It holds them weakly."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child, in which the thread does not exist."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pressures: WeakSet[Sampled] = WeakSet()  # a thread of the parent may have been within the other one

    def add(self, pressure: Sampled) -> None:
        """Sample a pressure from now on, as long as it exists. Raises RuntimeError if no thread can be started."""
        with self._lock:
            self._pressures.add(pressure)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ratebound pressure", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            with self._lock:
                pressures = list(self._pressures)
                if not pressures:
                    self._thread = None
                    return
            for pressure in pressures:
                try:
                    pressure.sample()
                except BaseException:  # without this thread, what is lowered would stay so
                    log.exception("the load of this process could not be sampled; the next sample is in %g s", INTERVAL)
            del pressure, pressures  # or they would live as long as this thread sleeps


sampler = Sampler()
