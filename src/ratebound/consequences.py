"""Events that follow from a decision or from its settlement: strikes, blocks that begin, and warnings.

All of it is in the rows that the storage has answered, so no second trip is made and nothing is remembered. Decisions
without the storage have none: other numbers decided them, and their denials are no strikes.
"""

from collections.abc import Iterator

from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.events import BlockBegan, Struck, Warned
from ratebound.kernels.penalty import BLOCKED
from ratebound.limit import Limit
from ratebound.outcome import DegradedRows, Row

Consequence = Struck | BlockBegan | Warned


def consequences_of(decision: Decision) -> Iterator[Consequence]:
    """Yield what a decision has brought about, in the order of its limits."""
    yield from _strikes(decision)
    if not decision.allowed or isinstance(decision.rows, DegradedRows):
        return
    rows = iter(decision.rows)
    for number, (_, limits, cost, patience, _) in enumerate(decision.asks):
        for limit in limits:
            row = next(rows)
            # With patience, a place in the future was taken: nothing was left before.
            is_late = patience is not None and row[4] > 0
            if limit.warn and not is_late and row[1] <= limit.warns_at < row[1] + _taken(limit, cost, row):
                yield Warned(decision, limit, number, row[1])


def consequences_of_settling(decision: Decision, settled: Decision) -> Iterator[Consequence]:
    """Yield what the settlement of a decision has brought about."""
    yield from _strikes(settled)
    if isinstance(settled.rows, DegradedRows):
        return
    rows = zip(decision.rows, settled.rows, strict=True)
    for number, ((_, limits, charged, *_), (_, _, cost, *_)) in enumerate(
        zip(decision.asks, settled.asks, strict=True)
    ):
        for limit in limits:
            before, row = next(rows)
            if limit.warn and limit.takes_cost and cost > charged:
                left = row[1] + _taken(limit, cost - charged, row)
                if not row[1] and not limit.metered:  # more may have been charged than was left
                    left = min(left, before[1])
                if row[1] <= limit.warns_at < left:
                    yield Warned(settled, limit, number, row[1])


def _taken(limit: Limit, cost: int, row: Row) -> int:
    """Return the units that this row's decision took off what was left before."""
    if limit.is_distinct:
        return 0 if row[6] else 1  # a value that was counted before takes nothing
    if limit.metered:
        return cost - max(row[7], 0)  # the rest is above the quota
    return cost if limit.takes_cost else 1


def _strikes(decision: Decision) -> Iterator[Struck | BlockBegan]:
    """Yield the strikes. A penalty that is in several asks of one key was struck once."""
    if isinstance(decision.rows, DegradedRows):
        return
    rows = iter(decision.rows)
    seen: set[tuple[str, str]] = set()
    for number, (key, limits, *_) in enumerate(decision.asks):
        for limit in limits:
            row = next(rows)
            if not limit.is_penalty or not row[6] or (key, limit.scope) in seen:
                continue
            seen.add((key, limit.scope))
            yield Struck(decision, limit, number, row[1])
            if row[6] == BLOCKED:
                yield BlockBegan(decision, limit, number, (row[2] or 0) / SECOND)
