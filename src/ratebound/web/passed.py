"""A request that may go ahead: its headers, and how much of it is charged when its result is known."""

import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.http import expose
from ratebound.http.header_plan import Pairs
from ratebound.limit import MAX_COUNT, checked_cost
from ratebound.outcome import DegradedRows
from ratebound.policy import Rule, Verdict
from ratebound.policy.model.charge_by_result import ByResult, FinishedResponse, told_cost
from ratebound.settling import Settlement
from ratebound.web.passed_fields import COMPLETE, PassedFields
from ratebound.web.route_limit import RouteLimit

log = logging.getLogger("ratebound")

NOTHING = ByResult()
CORS = {"access-control-allow-origin", "access-control-allow-methods"}  # in every answer to a preflight
TOO_LATE = (
    "charge(%d) came after the response had broken off, and changes nothing:"
    " call it before each part of a stream, with the cost so far"
)


class Passed(PassedFields):
    """A request that may go ahead, `delay` seconds from now. Handlers see their decision as this object.

    `tells` is False when a gate nearer to the application tells the client. `may_settle` is False for most requests:
    nothing about them depends on the result, and they hold no slots. `ended` says why nothing can be charged any more,
    "" while it can.

    Examples:
        >>> from ratebound.policy import RequestView
        >>> from ratebound.web import WebGate
        >>> gate = WebGate("100/minute", by="address")
        >>> passed = gate.before(RequestView("GET", "/orders", peer="203.0.113.7"))
        >>> passed.charge(10)
        >>> gate.after(passed, status=200, sent=512)
        >>> passed.decision.remaining
        90
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Passed({self.verdict!r})"

    @property
    def owner(self) -> object:
        """The gate that decided."""
        return self.terms.owner

    @property
    def limits(self) -> Sequence[RouteLimit]:
        """The limits that the endpoint declares."""
        return self.terms.limits

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of each stage, in order."""
        if self._verdicts is None:  # most requests pass without anybody asking
            asked = self._asked
            assert asked is not None
            self._verdicts = [Verdict(asked.grounds, asked.client, True, self._decision, asked.identities)]
        return self._verdicts

    @property
    def verdict(self) -> Verdict:
        """The verdict of the last stage."""
        return self.verdicts[-1]

    @property
    def decision(self) -> Decision | None:
        """The decision of all rules that were checked for this request; None if there were none."""
        decision = self.verdicts[0].decision
        for verdict in self.verdicts[1:]:
            decision = joined_decision(decision, verdict.decision)
        return decision

    @property
    def headers(self) -> Pairs:
        """The fields for the response, by the decision as it is now."""
        plain = self.plain_headers()
        if plain is not None:
            return plain
        verdict = self.verdicts[-1]
        decision = verdict.decision if len(self.verdicts) == 1 else self.decision
        if decision is None or not self.tells:
            return []
        return passed_headers(verdict, decision, self._is_scripted)

    @property
    def settles(self) -> bool:
        """True if the result of the request decides about its cost."""
        if self.ended or not self.may_settle or getattr(self, "_is_broken", False):
            return False
        if self._costs is not None or self._is_unhandled_preflight:
            return True
        charges = self.terms.charges
        return any(rule.name in charges for _, rules, _ in self._decisions() for rule in rules)

    @property
    def failed(self) -> bool | None:
        """The handler's own judgement, for `charge="failure"`: True for a failure that is answered with 200, as a login
        form that is shown again. None leaves it to the status."""
        return getattr(self, "_failed", None)  # set for few requests, so not when each is made

    @failed.setter
    def failed(self, value: bool | None) -> None:
        self._failed = None if value is None else bool(value)  # handlers also give what is true or false

    @property
    def slots(self) -> list[Verdict]:
        """The verdicts whose slots this request holds."""
        return getattr(self, "_slots", [])  # set for few requests, so not when each is made

    @slots.setter
    def slots(self, verdicts: list[Verdict]) -> None:
        self._slots = verdicts
        self.may_settle = self.may_settle or bool(verdicts)

    @property
    def held(self) -> list[object]:
        """Objects that keep the slots renewed as long as they exist."""
        return getattr(self, "_held", [])

    @held.setter
    def held(self, held: list[object]) -> None:
        self._held = held

    def charge(self, cost: int, rule: str = "") -> None:
        """Set the whole cost of this request, for a handler that knows it: settled when the response ends.

        The last cost that was set holds, also if the response breaks off. A stream may set it again with each part. A
        cost that is set after the response broke off comes too late: that is logged, and changes nothing.

        Args:
            cost: The units: a whole number from 0 to 10**12.
            rule: The name of the rule that it is for. Empty means all limits that the endpoint declares, or all rules
                if it has none.

        Raises:
            RuntimeError: The response is complete.
            ValueError: The rule was not checked for this request.
            InvalidCost: The cost is not a whole number from 0 to 10**12.
        """
        checked_cost(cost, least=0)
        if self.ended:
            raise RuntimeError(self.ended)
        names = self._rule_names()
        if rule and rule not in names:
            raise ValueError(f"no rule {rule!r} was checked for this request, but {', '.join(names) or 'none'}")
        if getattr(self, "_is_broken", False):
            log.warning(TOO_LATE, cost)
            return
        self._costs = {**(self._costs or {}), rule: cost}
        self.may_settle = True
        settled_by: tuple[Any, str] | None = getattr(self, "_settled_by", None)
        if settled_by is not None:
            settled_by[0].after(self, int(settled_by[1][:3]), 0)

    @property
    def is_settled_at_once(self) -> bool:
        """True if nobody sees the end of the response."""
        return getattr(self, "_settled_by", None) is not None

    def handle(self) -> None:
        """Note that a function of the application runs for this request, under a limit of its own."""
        self._is_handled = True
        self._is_unhandled_preflight = False

    def bypass_handler(self) -> None:
        """Note that this is a preflight and that no function of the application answers it.

        Only an adapter that knows this for certain may say so: the response can then make the request free.
        """
        if not self._is_handled:
            self._is_unhandled_preflight = self.may_settle = True

    def start_response(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Look at the start of a response. A preflight that a CORS layer answered costs nothing.

        Called where `settles` is true.

        Args:
            status: The status of the response.
            headers: The headers of the response, with names in any case.
        """
        found = [(name.lower(), value) for name, value in headers]
        if self._is_unhandled_preflight and status < 300 and {name for name, _ in found} >= CORS:
            self._costs = dict.fromkeys(self._rule_names(), 0)
            self.tells = False
        for header in self.terms.cost_headers:
            values = [value for name, value in found if name == header]
            if values:  # a start may be looked at again, without them
                self._told = {**getattr(self, "_told", {}), header: told_cost(values, header)}

    def settlements(self, status: int, sent: int, *, is_broken: bool = False) -> list[Settlement]:
        """Return what to settle: the decisions about this request that have cost something else, or were a strike.

        Ends the request, unless its response broke off: then rules that are not charged by bytes keep what was charged
        before, unless the handler has set their cost. Decisions of rules in shadow are settled, too, so that they
        count as they would in force; they never strike.

        Args:
            status: The status of the response.
            sent: The bytes of the body that were sent.
            is_broken: True if the response broke off.
        """
        if self.ended or getattr(self, "_is_broken", False):
            return []
        if is_broken:
            self._is_broken = True
        else:
            self.ended = COMPLETE
        general = {*self.terms.own} or self._rule_names()
        failed = status >= 400 if self.failed is None else self.failed
        told: dict[str, int | None] = getattr(self, "_told", {})
        found = []
        for decision, rules, is_enforced in self._decisions():
            charged, costs, strikes = [ask[2] for ask in decision.asks], [], []
            for rule, cost in zip(rules, charged, strict=True):
                by_result = self.terms.charges.get(rule.name, NOTHING)
                response = FinishedResponse(status, sent, cost, failed, told.get(by_result.header))
                is_set = not self._is_unhandled_preflight and self._given_cost(rule.name, general) is not None
                is_kept = is_broken and not by_result.is_by_bytes and not is_set
                costs.append(cost if is_kept else self._cost(rule.name, by_result, response, general))
                test = by_result.strikes if is_enforced and decision.degraded is None else None
                strikes.append(test is not None and test(response))
            if costs != charged or any(strikes):
                found.append(Settlement(decision, costs, strikes))
        return found

    def note_settled(self, settlements: Sequence[Settlement], decisions: Sequence[Decision]) -> None:
        """Note the decisions as they stand after settling.

        Args:
            settlements: What was settled.
            decisions: The decisions as they stand then, in the same order.
        """
        for before, after in zip(settlements, decisions, strict=True):
            for index, verdict in enumerate(self.verdicts):
                if verdict.decision is before.decision:
                    self.verdicts[index] = verdict.with_decision(after)

    def break_off(self) -> None:
        """Note that the response broke off: from now on `charge` changes nothing."""
        if not self.ended:
            self._is_broken = True

    def end(self, why: str = COMPLETE) -> None:
        """End the request: from now on `charge` raises RuntimeError.

        Args:
            why: The text of that error.
        """
        self.ended = why

    def join(self, later: "Passed") -> None:
        """Add one more decision for the same request: the headers tell of all.

        Args:
            later: The other decision.
        """
        self.verdicts.extend(later.verdicts)
        self.terms = self.terms.joined(later.terms)
        self.may_settle = self.may_settle or bool(later.terms.charges)
        if later.slots:
            self.slots = [*self.slots, *later.slots]
            self.held = [*self.held, *later.held]
        if later._is_handled:
            self.handle()

    def _rule_names(self) -> set[str]:
        return {rule.name for verdict in self.verdicts for rule in verdict.asked}

    def _decisions(self) -> Iterator[tuple[Decision, Sequence[Rule], bool]]:
        """Yield each decision that was charged, with the rules of its asks, and True unless it is one in shadow."""
        for verdict in self.verdicts:
            if verdict.decision is not None:
                yield verdict.decision, verdict.asked, True
            for shadow in verdict.shadows:
                if shadow.decision is not None and shadow.decision.allowed:
                    yield shadow.decision, (shadow.rule,), False

    def _given_cost(self, rule: str, general: set[str]) -> int | None:
        """Return the cost of a rule that the handler has set, or that a CORS layer has set by its answer; else None."""
        given = self._costs or {}
        return given.get(rule, given.get("") if rule in general else None)

    def _cost(self, rule: str, by_result: ByResult, response: FinishedResponse, general: set[str]) -> int:
        given = self._given_cost(rule, general)
        if given is not None:
            return given
        if by_result.cost is None:
            return response.cost
        return min(max(operator.index(by_result.cost(response)), 0), MAX_COUNT)


def passed_headers(verdict: Verdict, decision: Decision, is_scripted: bool) -> Pairs:
    """Return the fields for the response to a request that may go ahead, in the form of the verdict's policy."""
    pairs = verdict.grounds.policy.response_headers.pairs(decision)
    if is_scripted:  # a script in a browser sees only what is exposed to it
        pairs += expose(pairs)
    return pairs


def silence(around: object) -> None:
    """Keep a gate around this one from telling the client: the gate nearest to the application does."""
    if isinstance(around, Passed):
        around.tells = False


def joined_decision(first: Decision | None, second: Decision | None) -> Decision | None:
    """Return two decisions of one request as one, for its headers."""
    if first is None or second is None:
        return second if first is None else first
    rows = [*first.rows, *second.rows]
    reason = first.degraded or second.degraded
    return Decision([*first.asks, *second.asks], DegradedRows(rows, reason) if reason else rows)


def delay_of(verdicts: Sequence[Verdict]) -> float:
    """Return the seconds for which a request is to be held back, by verdicts that let it pass."""
    delays = [row[4] for verdict in verdicts if verdict.decision is not None for row in verdict.decision.rows]
    return max(delays, default=0) / SECOND
