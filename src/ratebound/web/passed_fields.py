"""The fields of a request that may go ahead, and the headers of a plain one: what every request needs. `Passed` is a
class over these for everything else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from ratebound.compiling import mypyc_attr
from ratebound.decision import Decision
from ratebound.http.header_plan import HeaderPlans, Pairs, usual_pairs
from ratebound.policy import Verdict
from ratebound.policy.model.charge_by_result import ByResult
from ratebound.policy.runtime.fast_path import Asked
from ratebound.web.route_limit import RouteLimit

Charges = Mapping[str, ByResult]  # by name of the rule

COMPLETE: Final = "the response is complete, and its cost is settled"


class Terms:
    """The terms that all requests to one endpoint share: the gate that decides, the limits that the endpoint declares,
    the names of their rules, the charges by result, and the prepared headers if their style is the usual one.
    `cost_headers` are the headers in which the application tells a cost, in lower case: no client gets them."""

    __slots__ = ("charges", "cost_headers", "limits", "own", "owner", "plans")

    def __init__(
        self,
        owner: object,
        limits: Sequence[RouteLimit],
        own: Sequence[str],
        charges: Charges,
        plans: HeaderPlans | None,
    ) -> None:
        self.owner = owner
        self.limits = limits
        self.own = own
        self.charges = charges
        self.cost_headers = frozenset([one.header for one in charges.values() if one.header])
        self.plans = plans

    def joined(self, later: "Terms") -> "Terms":
        """Return these terms and later ones of the same request."""
        limits, own = (*self.limits, *later.limits), (*self.own, *later.own)
        return Terms(self.owner, limits, own, {**self.charges, **later.charges}, self.plans)


@mypyc_attr(allow_interpreted_subclasses=True)
class PassedFields:
    """The fields of `Passed`, see there. It has its verdicts, or what the only one is made of when somebody asks."""

    __slots__ = (
        "_asked",
        "_costs",
        "_decision",
        "_failed",
        "_held",
        "_is_broken",
        "_is_handled",
        "_is_scripted",
        "_is_unhandled_preflight",
        "_settled_by",
        "_slots",
        "_told",
        "_verdicts",
        "delay",
        "ended",
        "may_settle",
        "tells",
        "terms",
    )

    # Set for few requests, so not when each is made.
    _failed: bool | None
    _held: list[object]
    _is_broken: bool
    _settled_by: Any
    _slots: list[Verdict]
    _told: dict[str, int | None]

    def __init__(
        self,
        verdicts: list[Verdict] | None,
        terms: Terms,
        delay: float,
        is_scripted: bool,
        asked: Asked | None = None,
        decision: Decision | None = None,
    ) -> None:
        self._verdicts = verdicts  # of each stage, in order
        self.terms = terms
        self.delay = delay
        self.tells = True
        self.ended = ""
        self.may_settle = bool(terms.charges)
        self._is_scripted = is_scripted
        self._asked = asked
        self._decision = decision
        self._costs: dict[str, int] | None = None  # given by the handler, by name of the rule; "" for all
        self._is_handled = self._is_unhandled_preflight = False

    @final
    def settle_at_once(self, gate: Any, status: str) -> None:
        """Let the gate settle each later `charge` at once: nobody sees the end of the response."""
        self._settled_by = gate, status

    @final
    def plain_headers(self) -> Pairs | None:
        """Return the headers of a request about which nothing is unusual; None where it takes more to tell."""
        decision, plans = self._decision, self.terms.plans
        if plans is None or decision is None or self._verdicts is not None or self._is_scripted or not self.tells:
            return None
        return usual_pairs(plans, decision)
