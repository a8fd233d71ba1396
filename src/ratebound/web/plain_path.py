"""The plain path of a request through a web gate: one decision from memory, about which nobody is told.

Most requests need nothing but the address of their peer. Everything else (users that rules count by, early rules,
bodies, queues, listeners, other storages, functions) is for the gate's `decide_by` and visit.py. Both decide alike.
"""

from collections.abc import Callable
from typing import Any

from ratebound.memory_fast_path import MemoryFastPath
from ratebound.policy import RequestView, Verdict
from ratebound.policy.runtime.fast_path import Asked
from ratebound.policy.runtime.policy_in_force import PolicyInForce
from ratebound.switch import switch
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.passed import Passed
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint


class PlainPath:
    """The plain path of one gate. `rules` are the rules of its endpoints; the table that fills it renews them.

    `is_open` is False where the application replaces the gate's own `decide_by`.
    """

    __slots__ = ("_current", "_fast_path", "_in_force", "_rules", "is_open")

    def __init__(
        self,
        in_force: PolicyInForce,
        current: Callable[[], Any],
        fast_path: MemoryFastPath,
        rules: dict[Endpoint | None, EndpointRules],
    ) -> None:
        self._in_force = in_force
        self._current = current
        self._fast_path = fast_path
        self._rules = rules
        self.is_open = True

    def compiled(self) -> Any:
        """Return the policy in force, compiled."""
        in_force = self._in_force
        return in_force.compiled if in_force.file is None else self._current()

    def rules_of(self, endpoint: Endpoint | None) -> EndpointRules | None:
        """Return the rules of an endpoint; None if they have to be compiled."""
        rules = self._rules.get(endpoint)
        return rules if rules is not None and rules.base is self.compiled() else None

    def check_view(self, rules: EndpointRules, view: Any) -> Passed | Rejected | None:
        """Decide a request whose view is made already; see `check`."""
        return self.check(rules, None, None, view.method, view.peer, view.user, view.route, view.is_scripted, view)

    def check(
        self,
        rules: EndpointRules,
        wire: Any,
        source: object,
        method: Any,
        peer: Any,
        user: object,
        route: str | None,
        is_scripted: bool,
        view: RequestView | None = None,
    ) -> Passed | Rejected | None:
        """Decide a request. Return None, having done nothing, if it takes more than this.

        `wire` and what follows are the parts of a view, which is made of them only if a rule looks at it. `method` and
        `peer` are as the server gives them: compiled code would raise TypeError for another type than a declared one.
        """
        line, states = rules.line, self._fast_path.states
        if line is None or states is None or self._fast_path.listeners or self._in_force.switch is not None:
            return None
        if not switch.limiting or not self.is_open or states.documents is not self._fast_path.unblocked:
            return None
        pressure = line.pressure
        if pressure is not None and not pressure.is_calm:
            return None
        matched = line.only
        if matched is None:
            if view is None:
                view = RequestView.on_demand(wire, source, method, peer, user, route)
            matched = line.find(view)
        if not matched.is_straight or matched.calls_functions:  # the general path would call them again
            return None
        asked = matched.known.get(peer) if user is None or not matched.by_user else None
        if asked is None:
            if view is None:
                view = RequestView.on_demand(wire, source, method, peer, user, route)
            found = rules.compiled.straight(view, rules.last_stage)
            if not isinstance(found, Asked):
                return None
            asked = found
        if not asked.asks:
            return Passed(None, rules.terms, 0.0, is_scripted, asked)
        decision = asked.decide(states)
        if decision.allowed:
            return Passed(None, rules.terms, 0.0, is_scripted, asked, decision)
        if view is None:
            view = RequestView.on_demand(wire, source, method, peer, user, route)
        return rules.rejection(view, Verdict(asked.grounds, asked.client, False, decision, asked.identities))
