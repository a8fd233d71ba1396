"""What an adapter is told: go ahead, with these headers; or answer this, and go no further."""

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from ratebound.clock import SECOND
from ratebound.decision import Decision, DegradedRows
from ratebound.http import Response, expose
from ratebound.http.caching import NAMES as CACHING
from ratebound.http.headers import FIELDS
from ratebound.limit import MAX_COUNT, checked_cost
from ratebound.policy import RequestView, Verdict
from ratebound.web.charge import Outcome
from ratebound.web.declared import RouteLimit

log = logging.getLogger("ratebound")

Pairs = list[tuple[str, str]]
Charges = Mapping[str, Callable[[Outcome], int]]  # by name of the rule
EXPOSE = "access-control-expose-headers"
CORS = {"access-control-allow-origin", "access-control-allow-methods"}  # in every answer to a preflight
# Fields of the application that ours stand in for, or that say whether a cache may keep the response. One that has none
# of them, and is no redirect, takes ours as they are.
RATES = frozenset(name.lower() for name in chain(*FIELDS.values()))
FOR_CDNS = CACHING - {"cache-control", "expires"}
NONE: frozenset[str] = frozenset()
NOTED = frozenset({EXPOSE, "retry-after", *CACHING, *RATES})
COMPLETE = "the response is complete, and what it has cost is settled"


class Terms(NamedTuple):
    """What all requests have in common that pass for one endpoint: whose decision it is (an application may stand
    behind several gates), the limits that the endpoint declares, the names of their rules, and what results cost."""

    owner: object
    limits: Sequence[RouteLimit]
    own: Sequence[str]
    charges: Charges

    def joined(self, later: "Terms") -> "Terms":
        """Return these terms and later ones of the same request."""
        limits, own = (*self.limits, *later.limits), (*self.own, *later.own)
        return Terms(self.owner, limits, own, {**self.charges, **later.charges})


class Passed:
    """The request may go ahead, `delay` seconds from now. This is also what a handler sees of the decision."""

    __slots__ = (
        "_costs",
        "_failed",
        "_is_handled",
        "_is_scripted",
        "_is_unhandled_preflight",
        "_late",
        "_may_settle",
        "_settled",
        "delay",
        "tells",
        "terms",
        "verdicts",
    )

    def __init__(self, verdicts: list[Verdict], terms: Terms, delay: float, is_scripted: bool) -> None:
        self.verdicts = verdicts  # of each stage, in order
        self.terms = terms
        self.delay = delay
        self.tells = True  # False when a gate behind this one tells the client, of its own decision
        self._is_scripted = is_scripted
        self._costs: dict[str, int] | None = None  # what the handler said, by name of the rule; "" for all
        self._settled: bool | str = False  # or why nothing can be charged
        self._may_settle = bool(terms.charges)
        self._is_handled = self._is_unhandled_preflight = False

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Passed({self.verdict!r})"

    @property
    def owner(self) -> object:
        """Whose decision it is."""
        return self.terms.owner

    @property
    def limits(self) -> Sequence[RouteLimit]:
        """Those that the endpoint declares."""
        return self.terms.limits

    @property
    def verdict(self) -> Verdict:
        """That of the last stage."""
        return self.verdicts[-1]

    @property
    def decision(self) -> Decision | None:
        """What all rules said that were asked for this request; None if none was."""
        decision = self.verdicts[0].decision
        for verdict in self.verdicts[1:]:
            decision = together(decision, verdict.decision)
        return decision

    @property
    def headers(self) -> Pairs:
        """The fields for the response, as things stand now."""
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
        """Whether the result of the request has a say in what it costs."""
        if self._settled or not self._may_settle:
            return False
        if self._costs is not None or self._is_unhandled_preflight:
            return True
        return not self._asked().isdisjoint(self.terms.charges)

    @property
    def failed(self) -> bool | None:
        """What the handler says of its result, for `charge="failure"`: True for a failure that is answered with 200, as
        a login form that is shown again. None leaves it to the status."""
        return getattr(self, "_failed", None)  # set for few requests, so not when each is made

    @failed.setter
    def failed(self, value: bool | None) -> None:
        self._failed = value

    def charge(self, cost: int, rule: str = "") -> None:
        """For a handler that knows what its work has cost, all in all: settled when the response is complete.

        It is the cost of the named rule, or of all limits that the endpoint declares, or of all rules if it has none.
        """
        checked_cost(cost, least=0)
        if self._settled:
            raise RuntimeError(self._settled if isinstance(self._settled, str) else COMPLETE)
        asked = self._asked()
        if rule and rule not in asked:
            raise ValueError(f"no rule {rule!r} was asked, but {', '.join(asked) or 'none'}")
        self._costs = {**(self._costs or {}), rule: cost}
        self._may_settle = True
        late: tuple[Any, str] | None = getattr(self, "_late", None)
        if late is not None:
            late[0].after(self, int(late[1][:3]), 0)

    def handle(self) -> None:
        """Note that a function of the application runs for this request, under a limit of its own."""
        self._is_handled = True
        self._is_unhandled_preflight = False

    def bypass_handler(self) -> None:
        """Note that this is a preflight and that no function of the application answers it.

        Only an adapter that knows this for certain may say so: the response can then make the request free.
        """
        if not self._is_handled:
            self._is_unhandled_preflight = self._may_settle = True

    def start_response(self, status: int, names: Iterable[str]) -> None:
        """Look at the start of a response. A preflight that a CORS layer answered costs nothing.

        `names` are those of the response's headers, in any case. Called where `settles` is true.
        """
        if self._is_unhandled_preflight and status < 300 and {name.lower() for name in names} >= CORS:
            self._costs = dict.fromkeys(self._asked(), 0)
            self.tells = False

    def costs(self, status: int, sent: int) -> list[tuple[int, list[int]]]:
        """What is to be settled: the place of a verdict, and the cost for each rule that it asked. Only once."""
        if self._settled:
            return []
        self._settled = True
        general = {*self.terms.own} or self._asked()
        failed = status >= 400 if self.failed is None else self.failed
        found = []
        for place, verdict in enumerate(self.verdicts):
            if verdict.decision is not None:
                charged = [ask[2] for ask in verdict.decision.asks]
                costs = [
                    self._cost(rule.name, Outcome(status, sent, cost, failed), general)
                    for rule, cost in zip(verdict.asked, charged, strict=True)
                ]
                if costs != charged:
                    found.append((place, costs))
        return found

    def end(self, why: str = COMPLETE) -> None:
        """From now on nothing can be charged."""
        self._settled = why

    def leave(self, gate: Any, status: str) -> None:
        """The response goes its way, and nobody sees its end: the gate settles at once what is charged from now on."""
        self._late = gate, status

    def join(self, later: "Passed") -> None:
        """One more decision was made for the same request: the headers tell of all."""
        self.verdicts += later.verdicts
        self.terms = self.terms.joined(later.terms)
        self._may_settle = self._may_settle or bool(later.terms.charges)
        if later._is_handled:
            self.handle()

    def follow(self, earlier: "Passed") -> None:
        """Take over what was said of a request before this decision, which has the earlier verdicts too."""
        self._costs = earlier._costs
        self._may_settle = self._may_settle or earlier._may_settle
        if earlier.failed is not None:
            self.failed = earlier.failed
        if earlier._is_handled:
            self.handle()
            self.terms = earlier.terms.joined(self.terms)

    def _asked(self) -> set[str]:
        return {rule.name for verdict in self.verdicts for rule in verdict.asked}

    def _cost(self, rule: str, outcome: Outcome, general: set[str]) -> int:
        said = self._costs or {}
        if rule in said:
            return said[rule]
        if "" in said and rule in general:
            return said[""]
        charges = self.terms.charges
        if rule not in charges:
            return outcome.cost
        return min(max(operator.index(charges[rule](outcome)), 0), MAX_COUNT)


class Refused:
    """The request goes no further. `headers` has all but Content-Length; a response to HEAD has no body."""

    __slots__ = ("body", "breach", "headers", "status", "verdict")

    def __init__(self, verdict: Verdict, response: Response, breach: Callable[..., Any] | None = None) -> None:
        self.verdict = verdict
        self.status, self.headers, self.body = response
        self.breach = breach

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Refused({self.status}, {self.verdict!r})"

    @property
    def decision(self) -> Decision | None:
        """What the limits said; None if the client is refused by name."""
        return self.verdict.decision

    @property
    def fields(self) -> Pairs:
        """The headers for a response in the application's own words: all but the type of our body."""
        return [pair for pair in self.headers if pair[0] != "Content-Type"]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request passes, if alone; None when no wait can help."""
        return None if self.verdict.decision is None else self.verdict.decision.retry_after


def refusal(verdict: Verdict, view: RequestView, breaches: Mapping[str, Callable[..., Any]]) -> Refused:
    rejection, rule = verdict.policy.rejection, verdict.rule
    message, documentation = (None, None) if rule is None else (rule.message or None, rule.documentation or None)
    if verdict.decision is not None:
        response = rejection.respond(verdict.decision, view.headers, message=message, documentation=documentation)
    else:
        response = rejection.block(view.headers, message=message, documentation=documentation)
    return Refused(verdict, response, None if rule is None else breaches.get(rule.name))


def fields_of(answer: Passed | Refused | None, status: int) -> Pairs:
    """Return the headers to add to a plain response: no redirect, and none of its own headers is NOTED."""
    if isinstance(answer, Passed):
        return answer.headers
    if answer is None:
        return []
    if 0 < status < 400:  # 0: the start of a WebSocket
        rule = answer.verdict.rule
        _log_mild_status("" if rule is None else rule.name, status, answer.status)
    return answer.fields


@lru_cache(maxsize=256)
def _log_mild_status(rule: str, status: int, expected: int) -> None:
    log.warning(
        "a refusal%s was answered with status %d, which clients take for a success: answer with status %d",
        f" by rule {rule}" if rule else "",
        status,
        expected,
    )


def changes(
    answer: Passed | Refused | None, status: int, existing: Iterable[tuple[str, str]]
) -> tuple[Pairs, frozenset[str]]:
    """Return the headers to add to any response, and the names in lower case of those to take off it.

    What a shared cache may store carries none of one client's numbers, not even those that a cache behind us kept from
    an earlier response. A refusal carries all, with the `no-store` that keeps it out of caches, and without the fields
    that CDNs obey instead.
    """
    if isinstance(answer, Refused):
        return fields_of(answer, status), FOR_CDNS
    if answer is None or answer.verdict.policy.response_headers.suit(status, existing):
        return fields_of(answer, status), NONE
    return [], RATES


def with_headers(existing: Iterable[tuple[str, str]], ours: Pairs, dropped: frozenset[str] = NONE) -> Pairs:
    """Return the application's headers and ours, each field once: ours win. A list of exposed headers is added to."""
    taken = ({name.lower() for name, _ in ours} - {EXPOSE}) | dropped
    return [*(pair for pair in existing if pair[0].lower() not in taken), *ours]


def together(first: Decision | None, second: Decision | None) -> Decision | None:
    """Two decisions of one request as one, for its headers."""
    if first is None or second is None:
        return second if first is None else first
    rows = [*first.rows, *second.rows]
    reason = first.degraded or second.degraded
    return Decision([*first.asks, *second.asks], DegradedRows(rows, reason) if reason else rows)


def delay_of(verdicts: Sequence[Verdict]) -> float:
    """For how many seconds the request is to be held back, by verdicts that let it pass."""
    delays = [row[4] for verdict in verdicts if verdict.decision is not None for row in verdict.decision.rows]
    return max(delays, default=0) / SECOND
