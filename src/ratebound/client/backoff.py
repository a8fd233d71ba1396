"""Backoff: how long to wait before a retry when the server does not say.

Waits double from `first` up to `most`. Clients that failed together must not come back together, so a random part of
each wait is left out (jitter). All waits here are seconds.

| jitter | the wait before retry n (n = 0, 1, …), with top = min(most, first · 2ⁿ) |
|---|---|
| full | between 0 and top |
| equal | between top / 2 and top |
| decorrelated | between first and three times the wait before, at most `most` |
| none | top |
"""

import math
from collections.abc import Callable
from typing import Final, Literal, get_args

from ratebound.duration import Duration, as_seconds

Jitter = Literal["full", "equal", "decorrelated", "none"]
JITTERS: Final = get_args(Jitter)
LONGEST: Final = 86_400.0  # seconds: no wait or period of a client may be longer
DOUBLINGS: Final = 64  # more would only overflow: any `first` has reached `most` by then
SPREAD: Final = 0.1  # of a server's own wait


class Backoff:
    """The waits before retries. It has no state: a call passes the wait before to the next one.

    With top = min(most, first · 2ⁿ) before retry n = 0, 1, …, the wait is between 0 and top (full), between top / 2 and
    top (equal), or top (none). Decorrelated is between `first` and three times the wait before, at most `most`.

    Args:
        jitter: `"full"`, `"equal"`, `"decorrelated"` or `"none"`.
        first: The longest wait before the first retry: seconds or a timedelta, above 0 and up to a day.
        most: The longest wait of all: seconds or a timedelta, `first` or more and up to a day.

    Raises:
        ValueError: The jitter is unknown, or a duration is out of bounds.

    Examples:
        >>> from ratebound.client import Backoff
        >>> backoff = Backoff("none", first=0.5, most=10)
        >>> [backoff.wait(retry, None, lambda: 0.5) for retry in range(6)]
        [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    """

    __slots__ = ("first", "jitter", "most")

    def __init__(self, jitter: Jitter = "full", *, first: Duration = 0.5, most: Duration = 30.0) -> None:
        if jitter not in JITTERS:
            raise ValueError(f"jitter is {jitter!r}: expected one of {', '.join(map(repr, JITTERS))}")
        first = as_seconds("first", first, positive=True, most=LONGEST)
        most = as_seconds("most", most, positive=True, most=LONGEST)
        if first > most:
            raise ValueError(f"first is {first!r} and most is {most!r}: expected first <= most")
        self.jitter: Final = jitter
        self.first: Final = float(first)
        self.most: Final = float(most)

    def __repr__(self) -> str:
        return f"Backoff({self.jitter!r}, first={self.first}, most={self.most})"

    def wait(self, retry: int, before: float | None, random: Callable[[], float]) -> float:
        """Return the seconds to wait before a retry.

        Args:
            retry: The number of the retry; 0 is the first.
            before: The wait before the retry before, in seconds; None if there was none.
            random: A function that returns numbers from 0 to 1.
        """
        if self.jitter == "decorrelated":
            start = self.first if before is None else max(before, self.first)
            return min(self.first + random() * (3 * start - self.first), self.most)
        top = min(math.ldexp(self.first, min(retry, DOUBLINGS)), self.most)
        if self.jitter == "full":
            return top * random()
        return top * (0.5 + 0.5 * random()) if self.jitter == "equal" else top

    def after(self, server: float, random: Callable[[], float]) -> float:
        """Return the seconds before a retry for which the server named a wait: never less, and up to a tenth more.

        At least up to `first` is added, at most `most`, so that clients which were told the same do not come at once.

        Args:
            server: The wait that the server named, in seconds.
            random: A function that returns numbers from 0 to 1.
        """
        if self.jitter == "none":
            return server
        return server + random() * min(max(SPREAD * server, self.first), self.most)
