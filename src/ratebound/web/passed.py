"""A request that may go ahead: its headers, and how much of it is charged when its result is known."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.http import expose
from ratebound.http.header_plan import Pairs
from ratebound.limit import MAX_COUNT, checked_cost
from ratebound.outcome import DegradedRows
from ratebound.policy import Verdict
from ratebound.web.charge_by_result import FinishedResponse
from ratebound.web.passed_fields import COMPLETE, PassedFields
from ratebound.web.route_limit import RouteLimit

CORS = {"access-control-allow-origin", "access-control-allow-methods"}  # in every answer to a preflight


class Passed(PassedFields):
    """A request that may go ahead, `delay` seconds from now. Handlers see their decision as this object.

    `tells` is False when a gate nearer to the application tells the client. `may_settle` is False for most requests:
    nothing about them depends on the result, and they hold no slots. `ended` says why nothing can be charged any more,
    "" while it can.
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
        pairs = verdict.grounds.policy.response_headers.pairs(decision)
        if self._is_scripted:  # a script in a browser sees only what is exposed to it
            pairs += expose(pairs)
        return pairs

    @property
    def settles(self) -> bool:
        """True if the result of the request decides about its cost."""
        if self.ended or not self.may_settle:
            return False
        if self._costs is not None or self._is_unhandled_preflight:
            return True
        return not self._rule_names().isdisjoint(self.terms.charges)

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
        """Set the whole cost of this request, for a handler that knows it: settled when the response is complete.

        It is the cost of the named rule, or of all limits that the endpoint declares, or of all rules if it has none.
        Raises RuntimeError when the response is complete, and ValueError for a rule that was not checked.
        """
        checked_cost(cost, least=0)
        if self.ended:
            raise RuntimeError(self.ended)
        names = self._rule_names()
        if rule and rule not in names:
            raise ValueError(f"no rule {rule!r} was checked for this request, but {', '.join(names) or 'none'}")
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

    def start_response(self, status: int, names: Iterable[str]) -> None:
        """Look at the start of a response. A preflight that a CORS layer answered costs nothing.

        `names` are the names of the response's headers, in any case. Called where `settles` is true.
        """
        if self._is_unhandled_preflight and status < 300 and {name.lower() for name in names} >= CORS:
            self._costs = dict.fromkeys(self._rule_names(), 0)
            self.tells = False

    def costs(self, status: int, sent: int) -> list[tuple[int, list[int]]]:
        """Return the costs to settle: the index of a verdict, and a cost for each of its rules. Ends the request."""
        if self.ended:
            return []
        self.ended = COMPLETE
        general = {*self.terms.own} or self._rule_names()
        failed = status >= 400 if self.failed is None else self.failed
        found = []
        for index, verdict in enumerate(self.verdicts):
            if verdict.decision is not None:
                charged = [ask[2] for ask in verdict.decision.asks]
                costs = [
                    self._cost(rule.name, FinishedResponse(status, sent, cost, failed), general)
                    for rule, cost in zip(verdict.asked, charged, strict=True)
                ]
                if costs != charged:
                    found.append((index, costs))
        return found

    def end(self, why: str = COMPLETE) -> None:
        """End the request: from now on `charge` raises RuntimeError with this text."""
        self.ended = why

    def join(self, later: "Passed") -> None:
        """Add one more decision for the same request: the headers tell of all."""
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

    def _cost(self, rule: str, response: FinishedResponse, general: set[str]) -> int:
        given = self._costs or {}
        if rule in given:
            return given[rule]
        if "" in given and rule in general:
            return given[""]
        charges = self.terms.charges
        if rule not in charges:
            return response.cost
        return min(max(operator.index(charges[rule](response)), 0), MAX_COUNT)


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
