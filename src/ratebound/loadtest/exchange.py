"""One request on its way, and the seams between the schedule, the pool and the connections that carry it."""

from time import monotonic, time
from typing import Any, Protocol

from ratebound.http.advice import is_limit_field, parse_rate_limit, parse_retry_after
from ratebound.loadtest.answer import Advised, Answers

MAX_CACHED = 8192
LONGEST_CACHED = 4096  # bytes of one set of headers
RawLine = tuple[bytes, bytes]
RawLines = list[RawLine]


class LoadExchange:
    """One request: what is sent, and where it stands."""

    __slots__ = ("client", "due", "is_over", "probe", "request", "sent", "started", "stream", "target", "wire")

    def __init__(self, client: int, target: int, due: float, started: float, request: Any, probe: bool) -> None:
        self.client = client
        self.target = target
        self.due = due
        self.started = started  # when the schedule handed it over
        self.sent = 0.0  # 0: not yet
        self.request = request  # bytes of HTTP/1.1, or the fields of HTTP/2 and a body
        self.probe = probe
        self.is_over = False
        self.wire: LoadWire | None = None
        self.stream = 0


class LoadWire(Protocol):
    """A connection that carries exchanges."""

    @property
    def room(self) -> int:
        """The number of exchanges that may be sent now. 0 or less after the connection has ended."""

    @property
    def is_idle(self) -> bool:
        """True if no exchange is on its way."""

    @property
    def used(self) -> float:
        """When it was used last."""

    def send(self, exchange: LoadExchange) -> None:
        """Send a request now. There must be room."""

    def give_up(self, exchange: LoadExchange) -> None:
        """Stop waiting for an answer. The exchange is already over."""

    def close(self) -> None:
        """Close the connection without telling the pool."""


class Finish(Protocol):
    """The function that receives every end of an exchange."""

    def __call__(
        self, exchange: LoadExchange, status: int, error: int = 0, lines: RawLines | None = None, done: float = 0.0
    ) -> None:
        """Record an answer, or an error with status 0."""


class AdviceCache:
    """Reads rate limit headers once per different bytes, so that reading does not slow down the sender."""

    __slots__ = ("_answers", "_cached")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._cached: dict[tuple[object, ...], tuple[int, float | None]] = {}

    def read(self, lines: RawLines) -> tuple[int, float | None]:
        """Return the number of the advice and its Retry-After. Date is the last line, if there was one."""
        has_date = lines[-1][0] in (b"date", b"Date")
        # Without Date, a reset that is an instant is compared with our clock: it is read anew every second.
        moment = 0.0 if has_date else time()
        key = (int(moment), *lines)
        found = self._cached.get(key)
        if found is None:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            text = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]
            clock = moment or None
            advice = Advised(parse_retry_after(text, now=clock), tuple(parse_rate_limit(text, now=clock)))
            found = self._answers.number_of(advice), advice.retry_after
            if sum(len(name) + len(value) for name, value in lines) <= LONGEST_CACHED:
                self._cached[key] = found
        return found


def tells_limits(name: bytes) -> bool:
    """Return True if a header with this name, in lower case, may say something about limits."""
    return name == b"age" or is_limit_field(name.decode("latin-1"))


now = monotonic  # the one clock of a run
