"""The answer to one request: a Decision (law 8). Compiled where that can be done.

What the storage answered for one limit is in outcome.py, and the exception that carries a decision in rate_limited.py.
"""

from collections.abc import Sequence
from typing import Final

from ratebound.compiling import mypyc_attr
from ratebound.limit import Group, Limit
from ratebound.lowered import LoweredLimits
from ratebound.numbers import Numbers
from ratebound.outcome import DegradedRows, Outcome, Row

_AT_ONCE: Final[float | None] = 0.0  # a float of its own for every decision would take time
PEEKED: Final = "it is a peek, which was charged nothing"  # the reason why a peek is final


class Plan:
    """The limits of one key, and their numbers in the same order.

    `first` is the first limit. `only` has the numbers of the only limit; it is None if there are several. `plain` is
    False if an ask needs an extra for one of them. `is_watched` is True if events may follow from a decision.
    `local` says what is decided without a storage that others share (see local_states.py); -1 until it is asked for.
    """

    __slots__ = ("first", "is_watched", "limits", "local", "numbers", "only", "plain")

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits
        self.first = limits[0]
        self.numbers: list[Numbers] = []
        self.plain = True
        self.is_watched = False
        self.local = -1
        for limit in limits:  # one loop: some calls of a storage make a plan
            numbers: Numbers = limit.numbers
            self.numbers.append(numbers)
            if not numbers.plain:
                self.plain = False
            if limit.is_watched:
                self.is_watched = True
        self.only = self.numbers[0] if len(limits) == 1 else None


@mypyc_attr(acyclic=True)
class Decision:
    """The answer to one request: true if it is allowed. Durations are float seconds here.

    Limiters and gates make it.

    Args:
        asks: What the storage received, as plain tuples.
        rows: What the storage answered, one tuple for each limit.

    Examples:
        >>> from ratebound import Limiter
        >>> limiter = Limiter("1/hour")
        >>> decision = limiter.hit("user:42")
        >>> decision = limiter.hit("user:42")
        >>> decision.allowed, str(decision.limit), decision.remaining
        (False, '1/hour', 0)
        >>> 3599 < decision.retry_after <= 3600
        True
    """

    __slots__ = ("_asks", "_endpoint", "_rows", "allowed", "final")

    allowed: bool  # slot allowed: compiled, it is read as fast as a slot (see tools/compile_modules.py)
    final: str  # the reason why it cannot be settled any more; empty until then
    # The endpoint under which a usage ledger has counted it, so that it counts a settlement there as well. Not set, to
    # save the time, unless a ledger listens; never set for a shadow.
    _endpoint: str
    _asks: Group
    _rows: Sequence[Row]

    def __init__(self, asks: Group, rows: Sequence[Row]) -> None:
        allowed = True
        for row in rows:
            if not row[0]:
                allowed = False
        self.allowed = allowed
        self.final = ""
        self._asks = asks
        self._rows = rows

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        return (
            f"Decision(allowed={self.allowed}, limit={str(self.limit)!r}, remaining={self.remaining},"
            f" retry_after={self.retry_after}, reset_after={self.reset_after}, delay={self.delay})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the asks, the rows, whether it is final and whether it is allowed."""
        return _remade, (self.asks, self.rows, self.final, self.allowed)

    @property
    def asks(self) -> Group:
        """The asks that the storage received, one for each key."""
        return self._asks

    @property
    def rows(self) -> Sequence[Row]:
        """The answers of the storage: the fields of `outcomes` in plain tuples."""
        return self._rows

    def note_endpoint(self, endpoint: str) -> None:
        """Note the endpoint under which a usage ledger counts this decision.

        Args:
            endpoint: The method and the route of the request; empty without a request.
        """
        self._endpoint = endpoint

    def noted_endpoint(self) -> str | None:
        """Return the endpoint that was noted; None if no usage ledger has counted this decision."""
        return getattr(self, "_endpoint", None)

    @property
    def outcomes(self) -> list[Outcome]:
        """One Outcome for each of `limits`, in the same order. Their durations are whole microseconds."""
        return [Outcome(*row) for row in self.rows]

    @property
    def limits(self) -> list[Limit]:
        """The limits that were checked. `zip(decision.limits, decision.outcomes)` pairs each with its answer."""
        return [limit for ask in self.asks for limit in ask[1]]

    @property
    def degraded(self) -> str | None:
        """The reason why this was decided without the storage; None if the storage decided."""
        rows = self.rows
        return rows.reason if isinstance(rows, DegradedRows) else None

    @property
    def unavailable(self) -> bool:
        """True if denied only because the storage is out of reach: a 503, not a 429."""
        rows = self.rows
        return isinstance(rows, DegradedRows) and rows.closed and not self.allowed

    @property
    def shed(self) -> bool:
        """True if denied only because limits are lowered while the process is overloaded: a 503, not a 429."""
        if self.allowed or self.unavailable:
            return False
        rows = self.rows
        at = 0
        for _, limits, cost, _, _ in self.asks:
            for index, limit in enumerate(limits):
                if not rows[at][0]:
                    if not isinstance(limits, LoweredLimits) or not limits.is_lowered(index):
                        return False
                    if limit.takes_cost and cost > limits.configured[index].burst:
                        return False
                at += 1
        return True

    @property
    def blocked(self) -> bool:
        """True if a penalty blocks the key. After settling, the decision may be allowed and the key blocked since."""
        if (self.allowed and not self.final) or self.unavailable:
            return False
        # A penalty that denies only because its storage is out of reach has no state, and so nothing to reset.
        pairs = zip(self.limits, self.rows, strict=True)
        return any(limit.is_penalty and not row[0] and row[3] > 0 for limit, row in pairs)

    def _decisive(self) -> int:
        """Return the index of the limit to report: the one that denies for longest, or is nearest to exhaustion.

        What is told last (see `Limit.is_told_last`) is reported only if there is nothing else. If a penalty blocks the
        key, that is the reason, however long other limits deny.
        """
        if len(self._rows) == 1:
            return 0
        set_back: list[bool] = []
        if self.blocked:
            set_back = [row[0] or not limit.is_penalty for limit, row in zip(self.limits, self._rows, strict=True)]
        elif self.allowed:
            set_back = [limit.is_told_last for limit in self.limits]
        return most_pressing(self._rows, set_back)

    def _row(self) -> Row:
        """Return the row of the limit to report."""
        return self._rows[self._decisive()]

    @property
    def limit(self) -> Limit:
        """The limit to report: nearest to exhaustion, or denying for longest. If a penalty blocks the key, the penalty.

        Limits that allow and are metered, or are no rates or quotas, are reported only if there is nothing else. Its
        quota is `limit.burst`, which for windows is the count.
        """
        index = self._decisive()
        for ask in self._asks:
            if index < len(ask[1]):
                return ask[1][index]
            index -= len(ask[1])
        raise IndexError(index)

    @property
    def remaining(self) -> int:
        """Units of cost left in `limit`."""
        return self._row()[1]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request passes if no other comes; 0.0 if allowed, None if it never passes."""
        if self.allowed:
            return 0.0
        longest = 0
        for row in self.rows:
            if not row[0]:
                wait = row[2]
                if wait is None:
                    return None
                longest = max(longest, wait)
        return longest / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until `limit` is as if untouched, if nothing more is spent."""
        return self._row()[3] / 1_000_000

    @property
    def delay(self) -> float:
        """Seconds to hold an allowed request back: a leaky bucket's turn, or a place taken in the future."""
        return max([row[4] for row in self.rows]) / 1_000_000 if self.allowed else 0.0

    @property
    def overage(self) -> int:
        """The units of this cost that exceed a metered quota. After settling, the change; it may be negative."""
        if not self.allowed or self.final == PEEKED:
            return 0
        most = least = 0
        for limit, row in zip(self.limits, self.rows, strict=True):
            if limit.metered:
                most, least = max(most, int(row[7])), min(least, int(row[7]))
        return most or least

    @property
    def at(self) -> int:
        """The storage's clock at this decision, in microseconds."""
        return self.rows[0][5]


_HELP: Final = """The answer to one request: true if it is allowed. Durations are float seconds here.

Limiters and gates make it.

Args:
    asks: What the storage received, as plain tuples.
    rows: What the storage answered, one tuple for each limit.

Examples:
    >>> from ratebound import Limiter
    >>> limiter = Limiter("1/hour")
    >>> decision = limiter.hit("user:42")
    >>> decision = limiter.hit("user:42")
    >>> decision.allowed, str(decision.limit), decision.remaining
    (False, '1/hour', 0)
    >>> 3599 < decision.retry_after <= 3600
    True

`allowed` is True or False. `final` is the reason why the decision cannot be settled any more; empty until then.
`limit` is the limit to report: nearest to exhaustion, or denying for longest, or the penalty that blocks the key. Its
quota is `limit.burst`.
`remaining` is the units of cost left in `limit`.
`retry_after` is the time until the same request passes if no other comes; 0.0 if allowed, None if it never passes.
`reset_after` is the time until `limit` is as if untouched, if nothing more is spent.
`delay` is the time to hold an allowed request back: a leaky bucket's turn, or a place taken in the future.
`overage` is the units of this cost that exceed a metered quota. After settling, the change; it may be negative.
`limits` are the limits that were checked, and `outcomes` has one Outcome for each, in whole microseconds.
`blocked` is True if a penalty blocks the key.
`shed` is True if denied only because limits are lowered while the process is overloaded: a 503, not a 429.
`degraded` is the reason why this was decided without the storage; None if the storage decided.
`unavailable` is True if denied only because the storage is out of reach: a 503, not a 429.
`at` is the storage's clock at this decision, in microseconds.
`asks` and `rows` are what the storage received and answered, as plain tuples.
`note_endpoint` and `noted_endpoint` are for usage ledgers: the endpoint under which one has counted the decision.
"""
# A compiled class has no docstring and its properties have none, so `help` finds all of it here. The compiler allows no
# assignment to Decision.__doc__.
setattr(Decision, "__doc__", _HELP)  # noqa: B010


def most_pressing(rows: Sequence[Row], set_back: Sequence[bool]) -> int:
    """Return the index of the row to report. Rows that are set back come after all others."""
    best = 0
    for index in range(1, len(rows)):
        if set_back and set_back[index] != set_back[best]:
            comes_first = set_back[best]
        else:
            comes_first = _comes_first(rows[index], rows[best])
        if comes_first:
            best = index
    return best


def _comes_first(row: Row, other: Row) -> bool:
    """Return True if a client is told of this limit, and not of the other, which comes before it in the decision."""
    if row[0] != other[0]:
        return other[0]
    if row[0]:
        return row[1] < other[1] or (row[1] == other[1] and row[3] > other[3])
    wait, longest = row[2], other[2]
    return longest is not None and (wait is None or wait > longest)


def _remade(asks: Group, rows: Sequence[Row], final: str, allowed: bool) -> Decision:
    """Return a decision that was pickled or copied."""
    decision = Decision(asks, rows)
    decision.final = final
    decision.allowed = allowed
    return decision


@mypyc_attr(acyclic=True)
class MemoryDecision(Decision):
    """A decision about one key from memory. `asks` and `rows` are made when they are read."""

    __slots__ = ("_cost", "_key", "_plan")

    _key: str
    _plan: Plan
    _cost: int

    @property
    def asks(self) -> Group:
        """The one ask that the storage received."""
        return ((self._key, self._plan.limits, self._cost, None, None),)

    @property
    def degraded(self) -> None:
        """None: the storage decided."""
        return None

    @property
    def unavailable(self) -> bool:
        """False: the storage decided."""
        return False


@mypyc_attr(acyclic=True, free_list_len=1)
class OneLimitDecision(MemoryDecision):
    """A decision about one key and one limit."""

    __slots__ = ("_answer", "_limit", "_retry")

    _limit: Limit  # slot limit
    _retry: float | None  # slot retry_after
    _answer: Row

    def __init__(self, key: str, plan: Plan, cost: int, answer: Row) -> None:
        self.allowed = answer[0]
        self._limit = plan.first
        if answer[0]:
            self._retry = _AT_ONCE
        else:
            wait = answer[2]
            self._retry = None if wait is None else wait / 1e6
        self.final = ""
        self._key = key
        self._plan = plan
        self._cost = cost
        self._answer = answer

    @property
    def rows(self) -> Sequence[Row]:
        """The answers of the storage."""
        return (self._answer,)

    @property
    def limit(self) -> Limit:
        """The one limit."""
        return self._limit

    @property
    def remaining(self) -> int:
        """Units of cost left."""
        return self._answer[1]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request passes."""
        return self._retry

    @property
    def reset_after(self) -> float:
        """Seconds until the limit is as if untouched."""
        wait: int = self._answer[3]
        return wait / 1e6  # a float, because compiled code divides floats faster; exact below 2**53

    @property
    def delay(self) -> float:
        """Seconds to hold the request back."""
        wait: int = self._answer[4]
        return wait / 1e6

    @property
    def at(self) -> int:
        """The storage's clock at this decision."""
        return self._answer[5]


@mypyc_attr(acyclic=True, free_list_len=1)
class StoredRow:
    """A row on the heap."""

    __slots__ = ("row",)

    def __init__(self, row: Row) -> None:
        self.row = row


@mypyc_attr(acyclic=True, free_list_len=1)
class OneKeyDecision(MemoryDecision):
    """A decision about one key and several limits."""

    __slots__ = ("_answers",)

    def __init__(self, key: str, plan: Plan, cost: int, answers: list[StoredRow], allowed: bool) -> None:
        self.allowed = allowed
        self.final = ""
        self._key = key
        self._plan = plan
        self._cost = cost
        self._answers = answers

    @property
    def rows(self) -> Sequence[Row]:
        """The answers of the storage."""
        return [answer.row for answer in self._answers]

    @property
    def limit(self) -> Limit:
        """The limit to report."""
        return self._plan.limits[self._decisive()]

    def _decisive(self) -> int:
        set_back = [numbers.metered for numbers in self._plan.numbers] if self.allowed else []
        return most_pressing(self.rows, set_back)

    def _row(self) -> Row:
        return self._answers[self._decisive()].row

    @property
    def at(self) -> int:
        """The storage's clock at this decision."""
        return self._answers[0].row[5]
