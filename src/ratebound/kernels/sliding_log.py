"""Sliding log: every spend of the last period, exactly.

There is one entry for each instant, not one for each unit. An entry counts from its instant until one period later, so
no window of one period, wherever it begins, holds more than the count.

Packed, a state is (expires, used, instant, cost, instant, cost, …), oldest first. The newest entry is one period before
`expires`, so the object keeps only its cost; `older` holds the others, and most keys have none.
"""

from ratebound.compiling import COMPILED, mypyc_attr
from ratebound.kernels.instants import Instants, listed, new_instants
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Spent
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row


@mypyc_attr(acyclic=True)
class Log(State):
    """The state of a sliding log. `older` has the instants of its entries, oldest first; some of them may have left.

    `costs` has the cost of each of them; it is None if all are 1, as nearly always. `oldest` is the first instant of
    `older`, if there is one: compiled code reads a field faster than a list.
    """

    __slots__ = ("costs", "newest_cost", "older", "oldest", "used")

    def __init__(
        self,
        expires: int = UNTOUCHED,
        used: int = 0,
        newest_cost: int = 0,
        older: list[int] | None = None,
        costs: list[int] | None = None,
    ) -> None:
        self.expires = expires
        self.used = used  # by all entries, those that have left included
        self.newest_cost = newest_cost
        self.older: Instants | None = None if older is None else new_instants(older)
        self.costs = costs
        self.oldest = UNTOUCHED if older is None else older[0]

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the last period has room."""
        if self.expires > now + limit.period_us:
            return False
        if self.expires <= now:
            return cost <= limit.count
        return self.used + cost <= limit.count or self._live(now - limit.period_us)[0] + cost <= limit.count

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if the last period has room. Patience is ignored: entries of a later instant are not known."""
        count = limit.count
        period = limit.period_us
        if self.expires > now + period:
            self.repair(limit, now)
        used, first = self.used, 0
        older = self.older
        if self.expires <= now:
            used = 0
        elif older is not None and self.oldest + period <= now:
            used, first = self._live(now - period)
        if used + cost > count:
            remaining = count - used
            excess = used + cost - count
            wait: int | None = None
            if cost <= count:
                if excess == 1 and not first and older is not None:  # nearly always: the oldest entry makes room
                    wait = self.oldest + period - now
                else:
                    wait = self._leaves_at(period, first, excess) - now
            return (
                False,
                remaining if remaining > 0 else 0,
                wait,
                self.expires - now if used else 0,
                0,
                now,
                0,
                0,
                None,
            )
        if not used:
            self.older = None
            self.costs = None
            self.newest_cost = cost
        else:
            if first and older is not None:
                if COMPILED:
                    older.drop(first)
                else:  # without a call, see State
                    del older[:first]
                if self.costs is not None:
                    del self.costs[:first]
                if older:
                    self.oldest = older[0]
                else:
                    older = self.older = self.costs = None
                self.used = used  # whole again, before `_grow` is called
            if self.expires == now + period:
                self.newest_cost += cost
            else:
                costs = self.costs
                if older is None or (costs is None and self.newest_cost != 1):
                    self._grow(self.expires - period, self.newest_cost)
                elif COMPILED:
                    older.append(self.expires - period)
                    if costs is not None:
                        costs.append(self.newest_cost)
                else:
                    older += [self.expires - period]
                    if costs is not None:
                        costs += [self.newest_cost]
                self.newest_cost = cost
        used += cost
        self.expires = now + period
        self.used = used
        return (True, count - used, 0, period, 0, now, 0, 0, None)

    def _grow(self, instant: int, cost: int) -> None:
        """Add the first older entry, or the first one with a cost above 1."""
        older = self.older
        if older is None:
            added = new_instants([instant])
            self.oldest = instant
            self.older = added
            self.costs = None if cost == 1 else [cost]
            return
        costs = [1 for _ in range(len(older))]
        costs += [cost]
        older += [instant]
        self.costs = costs

    def _live(self, oldest: int) -> tuple[int, int]:
        """Return the units used after `oldest`, and the index in `older` of the first entry after it.

        The newest entry counts as live.
        """
        used, first = self.used, 0
        older, costs = self.older, self.costs
        if older is not None:
            while first < len(older) and older[first] <= oldest:
                used -= 1 if costs is None else costs[first]
                first += 1
        return used, first

    def _leaves_at(self, period: int, first: int, excess: int) -> int:
        """Return the instant at which `excess` units of the entries from `first` on have left."""
        older, costs = self.older, self.costs
        if older is not None:
            while first < len(older):
                cost = 1 if costs is None else costs[first]
                if excess <= cost:
                    return older[first] + period
                excess -= cost
                first += 1
        return self.expires

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Overdraw by at most one count, or refund the entry of the spend's instant if it still counts."""
        self.repair(limit, now)
        entries = self._entries(limit, now)
        if cost > 0:
            cost = max(min(cost, limit.count + limit.count - sum(entries[1::2])), 0)
            if entries and entries[-2] == now:
                entries[-1] += cost
            elif cost > 0:
                entries += [now, cost]
        else:
            at = now if spent is None else spent[0]
            for i in range(0, len(entries), 2):
                if entries[i] == at:
                    entries[i + 1] = max(entries[i + 1] + cost, 0)
                    if not entries[i + 1]:
                        del entries[i : i + 2]
                    break
        self._keep(limit, entries)
        remaining, reset_after = self.standing(limit, now)
        return (True, remaining, 0, reset_after, 0, now, 0, 0, None)

    def _entries(self, limit: Numbers, now: int) -> list[int]:
        """Return the live entries as a new list."""
        if self.expires <= now:
            return []
        _, first = self._live(now - limit.period_us)
        entries = self._pairs(first)
        entries += [self.expires - limit.period_us, self.newest_cost]
        return entries

    def _pairs(self, first: int) -> list[int]:
        """Return instant, cost, instant, cost, … of the older entries from `first` on."""
        pairs: list[int] = []
        older, costs = self.older, self.costs
        if older is not None:
            for i in range(first, len(older)):
                pairs += [older[i], 1 if costs is None else costs[i]]
        return pairs

    def _keep(self, limit: Numbers, entries: list[int]) -> None:
        """Make these the entries."""
        if entries:
            used = sum(entries[1::2])
            older = new_instants(entries[:-2:2]) if len(entries) > 2 else None
            costs = costs_or_none(entries[1:-2:2])
            self.expires = entries[-2] + limit.period_us
            self.used = used
            self.newest_cost = entries[-1]
            self.oldest = entries[0]
            self.older = older
            self.costs = costs
        else:
            self.expires, self.used, self.newest_cost, self.older, self.costs = UNTOUCHED, 0, 0, None, None

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        if self.expires <= now:
            return limit.count, 0
        used, _ = self._live(now - limit.period_us)
        return max(limit.count - used, 0), self.expires - now

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, count entries from the future from now on."""
        if self.expires <= now + limit.period_us:
            return
        older, costs = self.older, self.costs
        early: list[int] = []
        early_costs: list[int] = []
        if older is not None:
            for i, instant in enumerate(listed(older)):
                if instant < now:
                    early.append(instant)
                    early_costs.append(1 if costs is None else costs[i])
        late = self.used - sum(early_costs)
        oldest = early[0] if early else UNTOUCHED
        before = new_instants(early) if early else None
        costs = costs_or_none(early_costs)
        self.expires = now + limit.period_us
        self.newest_cost = late
        self.oldest = oldest
        self.older = before
        self.costs = costs

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` passes after `front` units; None if it never does.

        In a line of single units, each passes one period after the unit that is a whole count in front of it.
        """
        if cost > limit.count:
            return None
        periods, units = divmod(front + cost - 1, limit.count)
        wait = product(limit.period_us, periods)
        if self.expires > now:
            used, first = self._live(now - limit.period_us)
            excess = used + units + 1 - limit.count
            if excess > 0:
                wait += self._leaves_at(limit.period_us, first, excess) - now
        return wait

    def copy(self) -> "Log":
        """Return an equal state with entries of its own."""
        older = None if self.older is None else listed(self.older)
        costs = None if self.costs is None else self.costs[:]
        return Log(self.expires, self.used, self.newest_cost, older, costs)

    def entries(self) -> int:
        """Return the number of entries, those that have left included."""
        return 1 if self.older is None else len(self.older) + 1

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, used, instant, cost, instant, cost, …)."""
        return (self.expires, self.used, *self._pairs(0), self.expires - limit.period_us, self.newest_cost)


def costs_or_none(costs: list[int]) -> list[int] | None:
    """Return the costs of older entries as a state keeps them: None if all are 1."""
    for cost in costs:
        if cost != 1:
            return costs
    return None


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains, at the latest: the oldest entry may leave earlier."""
    return reset_after
