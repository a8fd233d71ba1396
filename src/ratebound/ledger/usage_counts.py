"""Counts of usage by bucket of time, client, rule and endpoint, until a writer takes them. Compiled where that can be
done.

Each decision adds to one entry for each of its asks. A bucket is found by the storage's clock at the decision, so that
a month here is the month in which a calendar quota was charged. A settlement goes to the bucket of its decision. The
number of entries is bounded: beyond it, new clients are counted as "other".
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, cast

from ratebound.compiling import COMPILED
from ratebound.decision import Decision, OneLimitDecision
from ratebound.events import ChangeMade, Decided, Settled
from ratebound.limit import Limit
from ratebound.outcome import DegradedRows, Row
from ratebound.storage.mutex import Mutex

OTHER: Final = "other"  # the client, rule or endpoint of what is counted beyond a bound
MOST_ENTRIES: Final = 100_000
MOST_RULES: Final = 1_000  # names of rules; callers of a service may write limits of their own

# Compiled code reads a Final without looking up its name.
_DECIDED: Final[type[Decided]] = Decided
_SETTLED: Final[type[Settled]] = Settled
_CHANGE_MADE: Final[type[ChangeMade]] = ChangeMade
_DEGRADED: Final[type[DegradedRows]] = DegradedRows

EntryKey = tuple[int, str, str, str]  # the number of the bucket, the key of the client, the rule, the endpoint
Counted = tuple[int, str, str, str, int, int, int, int]  # the same, and units, allowed, denied, overage


class CountedUsage:
    """The usage by one client of one rule at one endpoint in one bucket, since counts were last taken.

    A settlement may make `units` and `overage` negative.
    """

    __slots__ = ("allowed", "denied", "overage", "units")

    def __init__(self) -> None:
        self.units = 0
        self.allowed = 0
        self.denied = 0
        self.overage = 0


class AskRule:
    """The rule to which the limits of an ask belong, and whether one of them is metered."""

    __slots__ = ("is_metered", "limits", "rule")

    def __init__(self, limits: tuple[Limit, ...], rule: str, is_metered: bool) -> None:
        self.limits = limits
        self.rule = rule
        self.is_metered = is_metered


class UsageCounts:
    """A listener that counts what was used. `endpoint_of` names the endpoint of a request.

    `bucket_us` is the length of a bucket in microseconds. `on_half_full` is called once the entries fill half of the
    room: then somebody has to `take` them. `on_change` is called with the changes that operators make.
    """

    __slots__ = (
        "_bucket_us",
        "_entries",
        "_half",
        "_lock",
        "_on_change",
        "_on_half_full",
        "_rule_names",
        "_rules",
        "endpoint_of",
        "most",
        "taken",
    )

    ignores_verdicts: ClassVar[bool] = True

    def __init__(
        self,
        bucket_us: int,
        endpoint_of: Callable[[Any], str] | None = None,
        on_half_full: Callable[[], object] | None = None,
        most: int = MOST_ENTRIES,
        on_change: Callable[[Any], object] | None = None,
    ) -> None:
        self._bucket_us = bucket_us
        self._on_half_full = on_half_full
        self._on_change = on_change
        self.endpoint_of = endpoint_of
        self.most = most
        self._half = most // 2
        self.clear()

    def clear(self) -> None:
        """Begin again at zero, also in a forked child, where the lock may be held by a thread that does not exist."""
        # Reentrant: a signal handler may count in the middle of a count. Compiled code runs none there.
        self._lock = Mutex() if COMPILED else cast(Mutex, threading.RLock())
        self._entries: dict[EntryKey, CountedUsage] = {}
        self.taken: dict[EntryKey, CountedUsage] = {}
        self._rules: dict[str, AskRule] = {}
        self._rule_names: dict[str, str] = {}

    def __call__(self, event: Any) -> None:
        if type(event) is not _DECIDED:
            if type(event) is _SETTLED:
                self._settled(event[0], event[1])
            elif type(event) is _CHANGE_MADE and self._on_change is not None:
                self._on_change(event[0])
            return
        decision: Decision = event[0]
        endpoint = ""
        if event[2] is not None and self.endpoint_of is not None:
            endpoint = self.endpoint_of(event[2])
        if not decision.allowed:
            self._denied(decision, endpoint)
            return
        if self.endpoint_of is not None or decision.noted_endpoint() is None:
            decision._endpoint = endpoint  # another ledger may have noted one, and this one leaves endpoints out
        # Nearly every decision is about one key: it is counted in as few calls as possible.
        if isinstance(decision, OneLimitDecision):
            key, limits, cost, at = decision._key, decision._plan.limits, decision._cost, decision._answer[5]
        else:
            asks = decision.asks
            if len(asks) > 1:
                self._allowed(decision, endpoint)
                return
            key, limits, cost, _, _ = asks[0]
            at = decision.at
        rule = self._rules.get(limits[0].name)
        if rule is None or rule.limits is not limits:
            rule = self._new_rule(limits)
        if rule.is_metered:
            self._allowed(decision, endpoint)
            return
        place: EntryKey = (at // self._bucket_us, key, rule.rule, endpoint)
        with self._lock:
            entry = self._entries.get(place)
            if entry is not None:
                entry.units += cost
                entry.allowed += 1
                return
        self._add(place, cost, 1, 0, 0)

    def take(self) -> list[Counted]:
        """Return all counts, and begin again at zero. Entries in which nothing is left are left out.

        They are kept in `taken` until the caller sets that to `{}`: one that is interrupted takes the same again.
        """
        empty: dict[EntryKey, CountedUsage] = {}
        with self._lock:
            if not self.taken:
                # One statement without a call: no signal handler comes between.
                self.taken, self._entries = self._entries, empty
        found: list[Counted] = []
        for key, entry in self.taken.items():
            if entry.units or entry.allowed or entry.denied or entry.overage:
                found.append((*key, entry.units, entry.allowed, entry.denied, entry.overage))
        return found

    def __len__(self) -> int:
        """Return the number of entries that nobody has taken yet."""
        return len(self._entries)

    def _allowed(self, decision: Decision, endpoint: str) -> None:
        bucket = decision.at // self._bucket_us
        rows = decision.rows
        place = 0
        for key, limits, cost, _, _ in decision.asks:
            rule = self._rule_of(limits)
            overage = _overage(limits, rows, place) if rule.is_metered else 0
            self._add((bucket, key, rule.rule, endpoint), cost, 1, 0, overage)
            place += len(limits)

    def _denied(self, decision: Decision, endpoint: str) -> None:
        """Count a denial for the ask whose limit is reported: a request that several rules deny is denied once."""
        ask = denying_ask(decision)
        rule = self._rule_of(ask[1])
        self._add((decision.at // self._bucket_us, ask[0], rule.rule, endpoint), 0, 0, 1, 0)

    def _settled(self, before: Decision, after: Decision) -> None:
        endpoint = before.noted_endpoint()
        if endpoint is None:  # a shadow, which is not counted
            return
        if self.endpoint_of is None:
            endpoint = ""
        bucket = before.at // self._bucket_us
        rows = after.rows
        place = 0
        for old, new in zip(before.asks, after.asks, strict=True):
            limits = old[1]
            rule = self._rule_of(limits)
            overage = _overage(limits, rows, place) if rule.is_metered else 0
            units = new[2] - old[2]
            if units or overage:
                self._add((bucket, old[0], rule.rule, endpoint), units, 0, 0, overage)
            place += len(limits)

    def _add(self, key: EntryKey, units: int, allowed: int, denied: int, overage: int) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.units += units
                entry.allowed += allowed
                entry.denied += denied
                entry.overage += overage
                return
        # Made before the lock is taken: an object may start the garbage collector, which may run any code.
        entry = CountedUsage()
        with self._lock:
            entries = self._entries
            if len(entries) >= self.most and key not in entries:
                key = (key[0], OTHER, key[2], OTHER if key[3] else "")
            known = entries.get(key)
            if known is None:
                entries[key] = entry
            else:
                entry = known
            entry.units += units
            entry.allowed += allowed
            entry.denied += denied
            entry.overage += overage
            is_half_full = len(entries) == self._half
        if is_half_full and self._on_half_full is not None:
            self._on_half_full()

    def _rule_of(self, limits: tuple[Limit, ...]) -> AskRule:
        known = self._rules.get(limits[0].name)
        return known if known is not None and known.limits is limits else self._new_rule(limits)

    def _new_rule(self, limits: tuple[Limit, ...]) -> AskRule:
        first = limits[0]
        for limit in limits:
            if not limit.is_penalty:  # several rules may share a penalty
                first = limit
                break
        name = first.name.partition("/")[0] if first.named else first.name
        names = self._rule_names
        if name not in names:
            if len(names) >= MOST_RULES:
                name = OTHER
            names[name] = name
        if len(self._rules) >= MOST_RULES:
            self._rules = {}
        is_metered = False
        for limit in limits:
            if limit.metered:
                is_metered = True
        rule = AskRule(limits, names[name], is_metered)
        self._rules[limits[0].name] = rule
        return rule


def denying_ask(decision: Decision) -> Any:
    """Return the ask with the limit that a denial reports."""
    asks = decision.asks
    if len(asks) == 1:
        return asks[0]
    reported = decision.limit
    rows = decision.rows
    place = 0
    denying: Any = None
    for ask in asks:
        for limit in ask[1]:
            if not rows[place][0]:
                if limit is reported:
                    return ask
                if denying is None:
                    denying = ask
            place += 1
    return asks[0] if denying is None else denying


def _overage(limits: tuple[Limit, ...], rows: Sequence[Row], place: int) -> int:
    """Return the units of an ask above its metered quotas, or their change by a settlement. `place` is its first row.

    What was decided without the storage has none: its rows tell of a share of the quota, and nobody is billed by that.
    """
    if isinstance(rows, _DEGRADED):
        return 0
    most = 0
    least = 0
    for limit in limits:
        if limit.metered:
            overage = int(rows[place][7])
            if overage > most:
                most = overage
            if overage < least:
                least = overage
        place += 1
    return most or least
