"""Settling: a decision that was charged one cost is made to have cost another."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ratebound.decision import PEEKED, Decision
from ratebound.fork import renew_in_children
from ratebound.limit import NOT_GIVEN, STRIKE, Ask, Extra, Group, Limit, Spent, checked_cost
from ratebound.outcome import DegradedRows, Outcome, Row


class DegradedGroup(list[Ask]):
    """A settlement of what was decided without the storage. Its instants are of this process's own clock, so it must
    never get there: a refund would give back what the storage was never charged."""

    def __init__(self, asks: Sequence[Ask], rows: DegradedRows) -> None:
        super().__init__(asks)
        self.reason = rows.reason
        self.granted = rows.granted


def spent_of(row: Row) -> Spent:
    """Return what `force` has to know of a spend to correct it."""
    outcome = Outcome(*row)
    ahead = outcome.ahead_us
    if ahead is None:
        ahead = outcome.reset_after_us - (outcome.part > 0)
    return outcome.at_us, outcome.at_us + ahead, outcome.part, outcome.given


def settlement(asks: Group, rows: Sequence[Row], costs: Sequence[int], strikes: Sequence[bool] = ()) -> Group:
    """Return what to force so that each of the asks, answered by `rows`, costs what `costs` says instead of what was
    charged. Slots stay as they are. An ask that costs 0 takes back its values, unless others have come since. Of an
    ask that `strikes` names, the penalties count a strike."""
    return _correction(asks, rows, costs, strikes, keep_slots=True)


def undoing(asks: Group, rows: Sequence[Row]) -> Group:
    """Return what to force so that it is as if the asks, answered by `rows`, had not been made. Slots are released."""
    return _correction(asks, rows, [0] * len(asks), (), keep_slots=False)


def _correction(
    asks: Group, rows: Sequence[Row], costs: Sequence[int], strikes: Sequence[bool], *, keep_slots: bool
) -> Group:
    group: list[Ask] = []
    rest = iter(rows)
    for number, ((key, limits, charged, _, extras), cost) in enumerate(zip(asks, costs, strict=True)):
        found: list[Extra] = []
        for i, limit in enumerate(limits):
            row = next(rest)
            if limit.has_slots:
                found.append(NOT_GIVEN if keep_slots or extras is None else extras[i])
            elif limit.is_distinct:
                found.append(NOT_GIVEN if cost or extras is None else _sight(limit, extras[i], row))
            elif limit.is_penalty:
                found.append(STRIKE if strikes and strikes[number] else NOT_GIVEN)
            else:
                found.append(spent_of(row))
        group.append((key, limits, cost - charged, None, found))
    return DegradedGroup(group, rows) if isinstance(rows, DegradedRows) else group


def _sight(limit: Limit, extra: Extra, row: Row) -> Extra:
    """Return what to force to take back the sight of a value: its digest, the expiry that it got, and that before."""
    before = row[6]
    return extra[0], max(before, row[5] + limit.period_us), before, 0


class _Settled:
    """The one mark that a decision is settled: of several threads that settle one, the first does, the others raise."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def mark(self, decision: Decision) -> None:
        with self._lock:
            _refuse_if_final(decision)
            decision.final = "it has been already, and would be refunded twice"


_settled = _Settled()


def checked_decision(decision: object) -> Decision:
    """Return a decision as it is. Raises TypeError for anything else."""
    if isinstance(decision, Decision):
        return decision
    raise TypeError(f"expected a Decision, as `hit` returns it, not {decision!r}")


def _refuse_if_final(decision: Decision) -> None:
    if decision.final:
        raise ValueError(f"this decision cannot be settled: {decision.final}")


def settled_costs(decision: Decision, cost: int | Sequence[int]) -> list[int]:
    """Return one cost for each ask. From here on the decision is settled, so this comes after every other check.

    Raises ValueError if it was settled before, by whichever thread, or cannot be.
    """
    _refuse_if_final(checked_decision(decision))
    given = list(cost) if isinstance(cost, list | tuple) else [cost] * len(decision.asks)
    if len(given) != len(decision.asks):
        raise ValueError(f"expected one cost, or one for each of {len(decision.asks)} checks, not {cost!r}")
    costs = [checked_cost(each, least=0) for each in given]
    _settled.mark(decision)
    return costs


def strikes_of(decision: Decision, strike: bool | Sequence[bool]) -> list[bool]:
    """Return for each ask whether its penalties count a strike. Raises ValueError."""
    asks = checked_decision(decision).asks
    found: list[Any] = list(strike) if isinstance(strike, list | tuple) else [strike] * len(asks)
    if len(found) != len(asks) or not all(isinstance(each, bool) for each in found):
        raise ValueError(f"expected one strike, True or False, or one for each of {len(asks)} checks, not {strike!r}")
    return found


class Settlement(NamedTuple):
    """An allowed decision, and for each of its asks what it has cost after all and whether it is a strike."""

    decision: Decision
    costs: list[int]
    strikes: list[bool]


def settlement_groups(settlements: Sequence[Settlement]) -> list[Group]:
    """Return what to force for each of these settlements. From here on their decisions are settled.

    Raises ValueError if one was settled before, or cannot be.
    """
    groups: list[Group] = []
    for decision, costs, strikes in settlements:
        settled_costs(decision, costs)
        groups.append(settlement(decision.asks, decision.rows, costs, strikes))
    return groups


def restated_each(settlements: Sequence[Settlement], answers: Sequence[Sequence[Row]]) -> list[Decision]:
    """Return the decisions as they stand after settling."""
    return [restated(one.decision, one.costs, rows) for one, rows in zip(settlements, answers, strict=True)]


def restated(decision: Decision, costs: Sequence[int], rows: Sequence[Row]) -> Decision:
    """Return the decision as it stands after settling. It is final, and as allowed as it was: a key that is blocked by
    now was not when the request went ahead."""
    asks = tuple(
        (key, limits, cost, None, extras)
        for (key, limits, _, _, extras), cost in zip(decision.asks, costs, strict=True)
    )
    after = Decision(asks, rows)
    after.allowed = decision.allowed
    after.final = decision.final
    return after


def peeked(decision: Decision) -> Decision:
    """Mark a decision as a peek, which cannot be settled, and return it."""
    decision.final = PEEKED
    return decision
