"""The rules that hold for one endpoint: its own limits, as a layer on the compiled policy."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ratebound.policy import Policy, RequestView, Rule, Verdict
from ratebound.policy.model.charge_by_result import ByResult
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.web.passed import Passed, delay_of
from ratebound.web.passed_fields import Terms
from ratebound.web.rejected import Rejected, rejection_of
from ratebound.web.route_limit import Endpoint
from ratebound.web.user import names_user, rules_by_user_alone

log = logging.getLogger("ratebound")

NO_USER: Final = (
    "the limit %r counts by user, but here it counts by address, and users behind one address share it: %s. If that is"
    " intended, write key=['user', 'address']"
)


class SeenUsers:
    """Users that one gate has seen: whether any request had one, and how often rules by user were checked without."""

    def __init__(self) -> None:
        self.are_known = False
        self.anonymous: dict[str, int] = {}  # requests by the name of a rule
        self.warned: set[str] = set()


class EndpointRules:
    """All rules for one endpoint, compiled.

    `base` is the compiled policy without the endpoint's limits. `is_plain` means that one decision is enough, and that
    it needs no body. `is_direct` means that besides no request takes slots, which would have to be released. `line` is
    the fast path, where plain_path.py can use it. `measured_by` is the pressure that has to be told how long requests
    take, if any. `uses_request` means that functions of the application, or the search
    for the reason why no user is known, may look at the framework's own request. `wants_user` means that a rule may
    need the user.
    """

    __slots__ = (
        "_breaches",
        "_by_user",
        "_hold",
        "_made_of",
        "_seen_users",
        "base",
        "compiled",
        "has_early",
        "has_functions",
        "has_paths",
        "is_direct",
        "is_plain",
        "last_stage",
        "line",
        "may_hold",
        "may_queue",
        "measured_by",
        "reads_body",
        "terms",
        "uses_request",
        "wants_user",
    )

    def __init__(
        self,
        owner: Any,
        base: CompiledPolicy,
        compiled: CompiledPolicy,
        endpoint: Endpoint | None,
        charges: Mapping[str, ByResult],
        seen_users: SeenUsers,
    ) -> None:
        self._made_of = (owner, base, compiled, endpoint, charges, seen_users)
        self._hold: Callable[[Verdict], list[object]] = owner.hold
        policy = compiled.policy
        limits = () if endpoint is None else endpoint.limits
        pairs = [] if endpoint is None else list(zip(endpoint.rules, limits, strict=True))
        self.base = base
        self.compiled = compiled
        # Then MAX_BODY + 1 bytes of it at most are read first.
        self.reads_body = policy.reads_body or any(limit.reads_body for limit in limits)
        self.may_queue = compiled.may_queue
        self.may_hold = compiled.may_hold
        is_exempt = endpoint is not None and endpoint.is_exempt_under(policy)
        self.last_stage = "early" if is_exempt else "late"
        self.has_early = self.last_stage == "late" and base.has_early
        self.has_paths = bool(policy.exempt) or any(rule.match.paths for rule in policy.rules)
        self.is_plain = not self.has_early and not self.reads_body
        pressure = compiled.pressure
        self.measured_by = pressure if pressure is not None and pressure.measures_requests else None
        self.is_direct = self.is_plain and not self.may_hold and self.measured_by is None
        self._breaches = {rule.name: limit.on_breach for rule, limit in pairs if limit.on_breach is not None}
        plans = policy.response_headers.usual_plans
        own = [rule.name for rule, _ in pairs]
        self.terms = Terms(owner, limits, own, _with_own(charges, policy.rules, own), plans)
        self._by_user = rules_by_user_alone(policy)
        is_one_decision = self.is_plain and not base.has_early and not self.may_queue and not self._by_user
        is_one_decision = is_one_decision and self.measured_by is None
        self.line = compiled.line(self.last_stage) if is_one_decision else None
        self.has_functions = any(True for _ in compiled.functions())
        self.uses_request = bool(self._by_user) or self.has_functions
        lists = (policy.tier_names, policy.allow, policy.block, policy.overrides, policy.identities)
        self.wants_user = any(lists) or any(
            wants_user(policy, rule, with_functions=index >= len(pairs))  # the endpoint's own rules come first
            for index, rule in enumerate(policy.rules)
            if rule.stage == "late"
        )
        self._seen_users = seen_users

    def kept_under(self, base: CompiledPolicy) -> "EndpointRules":
        """Return the same rules for a new policy with which the endpoint's limits cannot be combined."""
        kept = EndpointRules(*self._made_of)
        kept.base = base
        return kept

    def checks_early(self, stage: str | None) -> bool:
        """Return True if a check of this stage begins with the early rules."""
        return self.has_early if stage is None else stage == "early"

    def answer(self, view: RequestView, verdicts: list[Verdict]) -> Passed | Rejected:
        """Return the answer of the last verdict. Those before it let the request pass."""
        if self._by_user:
            self._note_user(view, verdicts[-1])
        if not verdicts[-1].allowed:
            return self.rejection(view, verdicts[-1])
        is_overridden = verdicts[-1].grounds.is_overridden or verdicts[0].grounds.is_overridden  # there are two at most
        delay = delay_of(verdicts) if self.may_queue or is_overridden else 0.0
        passed = Passed(verdicts, self.terms, delay, view.is_scripted)
        if self.may_hold or is_overridden:
            passed.slots = [verdict for verdict in verdicts if verdict.holding]
            if is_overridden and passed.slots:  # adapters hold slots only where rules may take some
                passed.held = [held for verdict in passed.slots for held in self._hold(verdict)]
        return passed

    def rejection(self, view: RequestView, verdict: Verdict) -> Rejected:
        """Return the rejection that a verdict stands for."""
        return rejection_of(verdict, view, self._breaches)

    def _note_user(self, view: RequestView, verdict: Verdict) -> None:
        """Warn once of each rule that counts by user alone, if no user can be known."""
        users = self._seen_users
        if view.user is not None:
            users.are_known = True
        elif not users.are_known:
            for rule in (*verdict.asked, *(shadow.rule for shadow in verdict.shadows)):
                if rule.name in self._by_user and rule.name not in users.warned and (reason := view.no_user):
                    count = users.anonymous[rule.name] = users.anonymous.get(rule.name, 0) + 1
                    if count >= view.anonymous:
                        users.warned.add(rule.name)
                        log.warning(NO_USER, rule.name, reason)


def _with_own(charges: Mapping[str, ByResult], rules: Iterable[Rule], own: Sequence[str]) -> dict[str, ByResult]:
    """Return what results decide, by name of the rule. `charges` of the gate come before the charge of a rule in the
    policy, and after the charge of a limit at an endpoint."""
    found: dict[str, ByResult] = {}
    for rule in rules:
        given, by_result = None if rule.name in own else charges.get(rule.name), rule.by_result
        if given is None:
            given = by_result
        elif by_result is not None:
            given = given._replace(strikes=by_result.strikes)
        if given is not None:
            found[rule.name] = given
    return found


def wants_user(policy: Policy, rule: Rule, *, with_functions: bool) -> bool:
    """Return True if a rule may count by the user. `with_functions` also counts functions, which may look at it."""
    by = policy.by if rule.by is None else rule.by
    listed = [by] if isinstance(by, str) or not isinstance(by, Iterable) else by
    functions = (*listed, rule.cost, rule.computed and rule.computed.function, *rule.sources.values())
    if with_functions and any(callable(one) for one in functions):
        return True
    return any(names_user(one) for one in (*listed, *rule.sources.values()))
