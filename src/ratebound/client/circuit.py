"""Circuit breakers, one for each origin: an API that is down is not called, except by one probe at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ratebound.breaker import Breaker
from ratebound.client.backoff import LONGEST
from ratebound.duration import Duration, as_seconds
from ratebound.errors import RateboundError
from ratebound.fork import renew_in_children

LOOKED_AT: Final = 8  # origins, when one must go: an open circuit is kept if any of these is closed


class CircuitOpen(RateboundError):
    """The request was not sent: the last calls to this API failed.

    Args:
        origin: The scheme, host and port of the API.
        retry_after: The seconds after which to try again.
    """

    def __init__(self, origin: str, retry_after: float) -> None:
        Exception.__init__(self, origin, retry_after)  # adapters derive from an error of their library as well
        self.origin = origin
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"not sent: the last calls to {self.origin or 'this API'} failed; try again in {self.retry_after:.3g} s"


class CircuitBreaker:
    """Circuit breakers of all origins that a client calls. It is thread-safe, and may be shared by several clients.

    A circuit opens after `failures` calls in a row that ended in a 5xx status or in a connection error. A 429 is no
    failure: the server works. Open, one call is let through as a probe every half to whole `interval`. One that
    succeeds closes the circuit.

    Args:
        failures: The failed calls in a row after which a circuit opens.
        interval: The longest time between two probes: seconds or a timedelta, up to a day.
        lease: The time after which a probe without a result is replaced: seconds or a timedelta, up to a day.
        max_origins: The most origins that are remembered.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        ValueError: A number is not positive, or a duration is out of bounds.

    Examples:
        >>> import httpx
        >>> from ratebound.client import CircuitBreaker
        >>> from ratebound.client.httpx import PoliteTransport
        >>> breaker = CircuitBreaker(failures=5, interval=10)
        >>> client = httpx.Client(transport=PoliteTransport(breaker=breaker))
    """

    def __init__(
        self,
        *,
        failures: int = 10,
        interval: Duration = 5.0,
        lease: Duration = 60.0,
        max_origins: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, number in (("failures", failures), ("max_origins", max_origins)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name} is {number!r}: expected a whole number, 1 or more")
        self._failures = failures
        self._interval = as_seconds("interval", interval, positive=True, most=LONGEST)
        self._lease = as_seconds("lease", lease, positive=True, most=LONGEST)
        self._most = max_origins
        self._clock = clock
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()  # the one used longest ago first
        self._lock = threading.Lock()
        renew_in_children(self)

    def of(self, origin: str) -> Breaker:
        """Return the breaker of an origin, made on first use.

        Args:
            origin: The scheme, host and port of the API.
        """
        with self._lock:
            found = self._breakers.get(origin)
            if found is not None:
                self._breakers.move_to_end(origin)
                return found
            if len(self._breakers) >= self._most:
                self._forget_one()
            found = Breaker(failures=self._failures, interval=self._interval, lease=self._lease, clock=self._clock)
            self._breakers[origin] = found
            return found

    def renew(self) -> None:
        """Replace the locks in a forked child: the threads that may have held them do not exist there."""
        self._lock = threading.Lock()
        for breaker in list(self._breakers.values()):
            breaker.renew()

    def _forget_one(self) -> None:
        oldest = [origin for origin, _ in zip(self._breakers, range(LOOKED_AT), strict=False)]
        calm = (origin for origin in oldest if self._breakers[origin].calm)
        del self._breakers[next(calm, oldest[0])]
