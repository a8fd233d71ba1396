"""The types of an answer: an Outcome for one limit, a Decision for one request (law 8)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratebound.clock import seconds
from ratebound.errors import RateboundError
from ratebound.limit import Group, Limit


class Outcome(NamedTuple):
    """The answer of one limit. Times are whole microseconds.

    `retry_after_us` is 0 if allowed and None if no wait can help. `reset_after_us` is the time until the state is as if
    untouched. `at_us` is the storage's clock at the decision.

    The other fields are for settling. `given` is the time that refunds had given back to a bucket; for a fixed window,
    the instant since which it counts. `part` is the fraction of the instant at which this spend's place in a bucket
    ends. `ahead_us` is that instant, in microseconds from `at_us`; None if it equals `reset_after_us`.
    """

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    at_us: int
    given: int = 0
    part: int = 0
    ahead_us: int | None = None


# An Outcome as kernels and storages pass it on: the same fields in a plain tuple, which is four times as fast to make.
Row = (
    tuple[bool, int, int | None, int, int, int, int, int]
    | tuple[bool, int, int | None, int, int, int, int, int, int | None]
)


class DegradedRows(list[Row]):
    """Rows that were decided without the storage, and the reason.

    `closed` is True if they deny only because the storage is out of reach. `granted` is the ledger's number for a spend
    that the storage has certainly not seen and may be charged later (see fallback.py); otherwise 0.
    """

    def __init__(self, rows: Iterable[Row], reason: str, *, closed: bool = False, granted: int = 0) -> None:
        super().__init__(rows)
        self.reason = reason
        self.closed = closed
        self.granted = granted


class Decision:
    """The answer to one request: true if it is allowed. Durations are float seconds here."""

    __slots__ = ("allowed", "asks", "final", "rows")

    final: str  # the reason why it cannot be settled any more; unset until then

    def __init__(self, asks: Group, rows: Sequence[Row]) -> None:
        self.allowed = rows[0][0] if len(rows) == 1 else all([row[0] for row in rows])  # noqa: C419 - a list is faster
        self.asks = asks
        self.rows = rows

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        return (
            f"Decision(allowed={self.allowed}, limit={str(self.limit)!r}, remaining={self.remaining},"
            f" retry_after={self.retry_after}, reset_after={self.reset_after}, delay={self.delay})"
        )

    @property
    def outcomes(self) -> list[Outcome]:
        """One Outcome for each of `limits`, in the same order. Their durations are whole microseconds."""
        return [Outcome(*row) for row in self.rows]

    @property
    def limits(self) -> list[Limit]:
        """The limits that were checked. `zip(decision.limits, decision.outcomes)` pairs each with its answer."""
        return [limit for _, limits, *_ in self.asks for limit in limits]

    @property
    def degraded(self) -> str | None:
        """The reason why this was decided without the storage; None if the storage decided."""
        return self.rows.reason if isinstance(self.rows, DegradedRows) else None

    @property
    def unavailable(self) -> bool:
        """True if denied only because the storage is out of reach: a 503, not a 429."""
        return isinstance(self.rows, DegradedRows) and self.rows.closed and not self.allowed

    def _decisive(self) -> tuple[Limit, Outcome]:
        """Return the limit to report: the one that denies for longest, or the one nearest to exhaustion."""
        pairs = list(zip(self.limits, self.outcomes, strict=True))
        if self.allowed:
            return min(pairs, key=lambda pair: (pair[1].remaining, -pair[1].reset_after_us))
        return max((pair for pair in pairs if not pair[1].allowed), key=lambda pair: _longest(pair[1].retry_after_us))

    @property
    def limit(self) -> Limit:
        """The limit to report to the client: nearest to exhaustion, or denying for longest.

        Its quota is `limit.burst`, which for windows is the count.
        """
        return self._decisive()[0]

    @property
    def remaining(self) -> int:
        """Units of cost left in `limit`."""
        return self._decisive()[1].remaining

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request passes if no other comes; 0.0 if allowed, None if it never passes."""
        if self.allowed:
            return 0.0
        wait = self._decisive()[1].retry_after_us
        return None if wait is None else seconds(wait)

    @property
    def reset_after(self) -> float:
        """Seconds until `limit` is as if untouched, if nothing more is spent."""
        return seconds(self._decisive()[1].reset_after_us)

    @property
    def delay(self) -> float:
        """Seconds to hold an allowed request back: a leaky bucket's turn, or a place taken in the future."""
        return seconds(max(row[4] for row in self.rows)) if self.allowed else 0.0

    @property
    def at(self) -> int:
        """The storage's clock at this decision, in microseconds."""
        return self.rows[0][5]


def _longest(wait: int | None) -> float:
    return float("inf") if wait is None else wait


class Patience(NamedTuple):
    """The longest time that a wait may take, and the argument that gave it: `timeout` or `max_delay`."""

    argument: str
    seconds: float
    microseconds: int


class RateLimited(RateboundError):
    """A denial, raised by `wait`, `acquire` and decorators. `decision` has the limit and the wait."""

    def __init__(self, decision: Decision, patience: Patience | None = None) -> None:
        super().__init__(decision, patience)
        self.decision = decision
        self.patience = patience

    def __str__(self) -> str:
        if self.decision.unavailable:
            return "the storage is out of reach and failure is 'closed'; see decision.degraded for the reason"
        limit, wait = self.decision.limit, self.decision.retry_after
        if wait is None:
            return f"over the limit {limit}; no wait can help because the cost exceeds the limit"
        if self.patience is None:
            return f"over the limit {limit}; retry in {wait:.6g} s"
        argument, given, _ = self.patience
        longer = "a longer timeout=" if argument == "timeout" else "timeout=, or max_delay=math.inf"
        return (
            f"over the limit {limit}: it would not pass within {argument}={given} s;"
            f" retry in {wait:.6g} s, or set {longer}"
        )
