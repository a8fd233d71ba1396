"""The real engine on the clock of a log: a gate with its states in memory. Compiled where that can be done.

A decision is made as in an application. Requests whose rules look at nothing but path, method, host and identity take
the engine's own fast path without a view of the request: what the rules ask for a client is remembered, as the engine
does itself.
"""

from typing import Any, Final

from ratebound.decision import Decision, Plan
from ratebound.limit import Group
from ratebound.numbers import product
from ratebound.policy.identity.identify import Alternatives
from ratebound.policy.match.request import RequestView
from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule
from ratebound.policy.runtime.fast_path import Asked, MatchedRules
from ratebound.policy.runtime.gate import Gate
from ratebound.policy.runtime.verdict import Verdict
from ratebound.replay.entry import Entry
from ratebound.replay.outcome_counts import ClientCounts
from ratebound.storage.memory import MemoryStorage
from ratebound.storage.memory_states import SWEEP_PERIOD, HeldStates

MOST_STATES: Final = 1_000_000
MOST_KNOWN: Final = 100_000  # pairs of a client and rules for which it is remembered what they ask
MOST_LIMITS: Final = 4096  # limits that are found by their identity; functions may make many
SHORT_SEARCH: Final = 8  # what is found further behind in a list moves to its front
LINES_PER_SWEEP: Final = 256  # states that are not needed any more are looked for once in so many entries
KINDS: Final = ("limited", "unlimited", "unmatched", "exempt", "allow", "block", "deny", "off")


class LogClock:
    """The time of the entry that is decided now, in microseconds."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class LimitTally:
    """The answers of one limit. In `shadow` it would have denied."""

    __slots__ = ("allowed", "denied", "is_shadow", "limit", "rule")

    def __init__(self, rule: str, limit: str, is_shadow: bool) -> None:
        self.rule = rule
        self.limit = limit
        self.is_shadow = is_shadow
        self.allowed = 0
        self.denied = 0


class RuleTallies:
    """The answers of one rule, and of each of its limits."""

    __slots__ = ("limits", "rule")

    def __init__(self, rule: LimitTally, limits: list[LimitTally]) -> None:
        self.rule = rule
        self.limits = limits

    def count(self, denying: int, first: int) -> int:
        """Count one decision. Each bit of `denying` is a limit that denies, from bit `first` on those of this rule.
        Return the first bit of the next rule."""
        is_allowed = True
        for tally in self.limits:
            if denying >> first & 1:
                tally.denied += 1
                is_allowed = False
            else:
                tally.allowed += 1
            first += 1
        if is_allowed:
            self.rule.allowed += 1
        else:
            self.rule.denied += 1
        return first


class KnownClient:
    """The asks of rules for a client. `held` is set if they all count it by one key and at one cost, else `asked`."""

    __slots__ = ("asked", "held", "rules")

    def __init__(self, rules: "RuleSet", asked: Asked | None, held: HeldStates | None) -> None:
        self.rules = rules
        self.asked = asked
        self.held = held


class Visitor:
    """An address, or a user at an address: its counts, and what rules ask for it.

    `dropped` is that of the table of clients at the time when `client` was in it.
    """

    __slots__ = ("client", "dropped", "known")

    def __init__(self, client: ClientCounts, dropped: int) -> None:
        self.client = client
        self.dropped = dropped
        self.known: list[KnownClient] = []

    def find(self, rules: "RuleSet") -> KnownClient | None:
        """Return what rules ask for it; None if that is not known. Visitors have few rules, so this is a search."""
        known = self.known
        for place, one in enumerate(known):
            if one.rules is rules:
                if place > SHORT_SEARCH:
                    known[place], known[0] = known[0], one
                return one
        return None


class RuleSet:
    """Rules that apply together on the fast path, and how many requests they all allowed.

    What they ask for each client is remembered if `is_by_client`: they look at nothing but address and user. `by` is
    how all of them identify clients, or None if they differ. `plan` has the limits of all rules, for clients that have
    one key. `tallies` has the counts of each rule and of its limits.
    """

    __slots__ = ("allowed", "by", "cost", "is_by_client", "matched", "plan", "tallies")

    def __init__(self, matched: MatchedRules, by: Alternatives | None) -> None:
        self.matched = matched
        self.by = by
        self.is_by_client = all(
            kind.name in ("user", "global") or kind.of_client is not None
            for bound in matched.bounds
            for parts in bound.by
            for kind in parts
        )
        self.allowed = 0
        self.cost = 0
        self.plan: Plan | None = None
        self.tallies: list[RuleTallies] = []

    def client(self, asked: Asked) -> KnownClient:
        """Return what is asked for a client. A denial of one limit charges none of them, whether they are in one ask or
        in several: so those of one key are one ask."""
        asks = asked.asks
        if not asks or len({ask[0] for ask in asks}) > 1 or len({ask[2] for ask in asks}) > 1:
            return KnownClient(self, asked, None)
        if self.plan is None:
            self.plan = Plan(tuple([limit for ask in asks for limit in ask[1]]))
            self.cost = asks[0][2]
        if not self.plan.plain:
            return KnownClient(self, asked, None)
        return KnownClient(self, None, HeldStates(asks[0][0]))


class PolicyRun:
    """A policy at work on a log, and what it decided.

    `headers` maps names of headers to fields of entries. `kinds` counts verdicts by how they were found. `known` is how
    many clients are remembered in all visitors; the caller forgets the visitors when it reaches `most_known`. With
    `is_by_user_alone` all rules count a user at any address as the same client.
    """

    __slots__ = (
        "_bys",
        "_clock",
        "_compiled",
        "_headers",
        "_is_fast",
        "_limits_by_id",
        "_of_limits",
        "_of_rules",
        "_sets",
        "_settles",
        "_states",
        "_storage",
        "gate",
        "is_by_user_alone",
        "kinds",
        "known",
        "most_known",
        "policy",
        "shadow_denied",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        headers: dict[str, str] | None = None,
        most_states: int = MOST_STATES,
        most_known: int = MOST_KNOWN,
    ) -> None:
        self._clock = LogClock()
        self._storage = MemoryStorage(max_keys=most_states, clock=self._clock)
        self._states = self._storage.states
        self.gate = Gate(policy, storage=self._storage)
        self._compiled = self.gate.current()
        self.policy = policy
        self._headers = headers or {}
        self._settles = any(rule.by_result is not None for rule in policy.rules)
        self._is_fast = (
            self._compiled.line("late") is not None
            and not self._compiled.has_early
            and not self._compiled.may_queue
            and not self._settles
            and not policy.proxies.believes
        )
        self._sets: dict[int, RuleSet] = {}
        self._bys: list[Alternatives] = []
        self.is_by_user_alone = all([kind.name for kind in by[0]] == ["user"] for by in policy.rule_by.values())
        self.known = 0
        self.most_known = most_known
        self._limits_by_id: dict[tuple[int, bool], tuple[LimitTally, object]] = {}  # the limit keeps its identity
        self._of_limits: dict[tuple[str, str, bool], LimitTally] = {}
        self._of_rules: dict[tuple[str, bool], LimitTally] = {}
        self.kinds: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.shadow_denied = False  # of the last decision

    @property
    def evicted(self) -> int:
        """The states that were dropped to make room: from the first on, denials may be missing."""
        return self._storage.evicted

    def note_pace(self, span: int, entries: int) -> None:
        """Note how much time of the log the next entries take. The clock of a log may run a thousand times as fast as a
        real one: states that expire would be swept for every entry."""
        self._states.sweep_period = max(SWEEP_PERIOD, product(span, LINES_PER_SWEEP) // max(entries, 1))

    def rules_for(self, entry: Entry, path: str) -> RuleSet | None:
        """Return the rules that apply to requests like this one; None if the general path must decide."""
        if not self._is_fast:
            return None
        line = self._compiled.line("late")
        matched = None if line is None else line.find(self._view(entry, path))
        if matched is None or not matched.is_straight or matched.calls_functions:
            return None
        found = self._sets.get(id(matched))
        if found is None:
            found = self._sets[id(matched)] = RuleSet(matched, self._common_by(matched))
        return found

    def _common_by(self, matched: MatchedRules) -> Alternatives | None:
        """Return how all these rules identify clients, or None if they differ. Equal ones are the same object."""
        if not matched.bounds or any(bound.by != matched.bounds[0].by for bound in matched.bounds):
            return None
        for by in self._bys:
            if by == matched.bounds[0].by:
                return by
        self._bys.append(matched.bounds[0].by)
        return self._bys[-1]

    def decide(self, rules: RuleSet | None, at: int, visitor: Visitor, entry: Entry, path: str) -> bool:
        """Decide one request. Return True if it is allowed. Visitor and path are those of the entry."""
        self._clock.now = at
        if rules is None:
            return self._decide_generally(entry, path)
        known = visitor.find(rules)
        if known is None:
            known = self._known_client(rules, visitor, entry, path)
            if known is None:
                return self._decide_generally(entry, path)
        self.shadow_denied = False
        held, plan, asked = known.held, rules.plan, known.asked
        if held is not None and plan is not None:
            denying = self._states.spend_held(plan, held, rules.cost, at)
            if denying < 0:
                denying = _denying(self._states.hit(plan, held.key, rules.cost))
        elif asked is not None and asked.asks:
            denying = _denying(asked.decide(self._states))
        else:
            denying = 0
        if denying:
            first = 0
            for tallies in rules.tallies or self._tallies_of(rules):
                first = tallies.count(denying, first)
            self.kinds["limited"] += 1
            return False
        rules.allowed += 1
        return True

    def _known_client(self, rules: RuleSet, visitor: Visitor, entry: Entry, path: str) -> KnownClient | None:
        """Find out what rules ask for a client; None if the general path must decide."""
        known: KnownClient | None = None
        if rules.by is not None and rules.plan is not None and rules.is_by_client:
            for one in visitor.known:
                if one.rules.by is rules.by and one.held is not None:
                    known = KnownClient(rules, None, HeldStates(one.held.key))
                    break
        if known is None:
            found = self._compiled.straight(self._view(entry, path), "late", rules.matched)
            if not isinstance(found, Asked):
                return None
            known = rules.client(found)
        if rules.is_by_client:
            visitor.known.append(known)
            self.known += 1
        return known

    def _tallies_of(self, rules: RuleSet) -> list[RuleTallies]:
        for bound in rules.matched.bounds:
            if isinstance(bound.flat, tuple):
                limits = [self._of_limit(bound.rule.name, limit, False) for limit in bound.flat]
                rules.tallies.append(RuleTallies(self._of_rule(bound.rule.name, False), limits))
        return rules.tallies

    def _view(self, entry: Entry, path: str) -> RequestView:
        _, address, method, target, _, host, user, agent, fields = entry
        headers = [("user-agent", agent)] if agent else []
        for name, field in self._headers.items():
            value = (fields or {}).get(field, "")
            if value and value != "-":
                headers.append((name, value))
        return RequestView(
            method,
            path,
            query=target[len(path) + 1 :],
            host=host,
            headers=headers,
            peer=address or None,
            user=user or None,
        )

    def _decide_generally(self, entry: Entry, path: str) -> bool:
        verdict = self.gate.decide(self._view(entry, path))
        self.shadow_denied = False
        for one in (verdict.earlier, verdict):
            if one is not None:
                self._note(one)
                if self._settles and verdict.allowed:
                    self._settle(one, entry)
        self.kinds[verdict.kind] += 1
        return verdict.allowed

    def _note(self, verdict: Verdict) -> None:
        if verdict.decision is not None:
            self._tally(verdict.asked, verdict.decision.asks, verdict.decision, False)
        elif verdict.kind == "deny":
            for rule in verdict.asked:
                self._of_rule(rule.name, False).denied += 1
        for shadow in verdict.shadows:
            if not shadow.allowed:
                self.shadow_denied = True
            if shadow.decision is None:
                self._of_rule(shadow.rule.name, True).denied += 1
            else:
                self._tally((shadow.rule,), shadow.decision.asks, shadow.decision, True)

    def _tally(self, rules: Any, asks: Group, decision: Decision, is_shadow: bool) -> None:
        """Count the rows of a decision, for each rule and each of its limits. `asks` has one ask for each rule."""
        denying = _denying(decision)
        first = 0
        for number, rule in enumerate(rules):
            limits = [self._of_limit(rule.name, limit, is_shadow) for limit in asks[number][1]]
            first = RuleTallies(self._of_rule(rule.name, is_shadow), limits).count(denying, first)

    def _of_limit(self, rule: str, limit: Any, is_shadow: bool) -> LimitTally:
        known = self._limits_by_id.get((id(limit), is_shadow))
        if known is not None:
            return known[0]
        key = (rule, limit.text, is_shadow)
        found = self._of_limits.get(key)
        if found is None:
            found = self._of_limits[key] = LimitTally(rule, key[1], is_shadow)
        if len(self._limits_by_id) >= MOST_LIMITS:
            self._limits_by_id.clear()
        self._limits_by_id[id(limit), is_shadow] = found, limit
        return found

    def _of_rule(self, rule: str, is_shadow: bool) -> LimitTally:
        found = self._of_rules.get((rule, is_shadow))
        if found is None:
            found = self._of_rules[rule, is_shadow] = LimitTally(rule, "", is_shadow)
        return found

    def _settle(self, verdict: Verdict, entry: Entry) -> None:
        """Charge and strike by the status that the log has."""
        decision, status = verdict.decision, entry.status
        if decision is None or not status:
            return
        costs: list[int] = []
        strikes: list[bool] = []
        for rule, ask in zip(verdict.asked, decision.asks, strict=True):
            result = rule.by_result
            response = FinishedResponse(status, 0, ask[2], status >= 400)
            costs.append(ask[2] if result is None or result.cost is None else result.cost(response))
            strikes.append(result is not None and result.strikes is not None and result.strikes(response))
        if any(strikes) or costs != [ask[2] for ask in decision.asks]:
            self.gate.settle(verdict, cost=costs, strike=strikes)

    def finish(self) -> None:
        """Add the counts of the fast path to those of the rules and limits."""
        for rules in self._sets.values():
            grounds, many = rules.matched.grounds, rules.allowed
            rules.allowed = 0
            self.kinds[grounds.kind] += many
            for bound in rules.matched.bounds if grounds.asked else ():
                rule: Rule = bound.rule
                if isinstance(bound.flat, tuple) and many:
                    self._of_rule(rule.name, False).allowed += many
                    for limit in bound.flat:
                        self._of_limit(rule.name, limit, False).allowed += many

    def tallies(self) -> tuple[list[LimitTally], list[LimitTally]]:
        """Return the counts of rules, and of limits, in the order of the policy."""
        order = {rule.name: place for place, rule in enumerate(self.policy.rules)}
        return (
            sorted(self._of_rules.values(), key=lambda one: (order[one.rule], one.is_shadow)),
            sorted(self._of_limits.values(), key=lambda one: (order[one.rule], one.is_shadow)),
        )


def _denying(decision: Decision) -> int:
    """Return one bit for each limit that denies, 1 for the first; 0 if the request is allowed."""
    if decision.allowed:
        return 0
    denying = 0
    for place, row in enumerate(decision.rows):
        if not row[0]:
            denying |= 1 << place
    return denying
