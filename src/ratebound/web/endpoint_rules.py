"""The rules that hold for one endpoint: its own limits, as a layer on the compiled policy.

`EndpointRulesTable._compile` is the one place where an endpoint's limits and a policy are put together. No request
compiles a policy: for endpoints that were met, a new policy is prepared where it is loaded.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from ratebound.policy import Policy, RequestView, Rule, Verdict
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.web.charge_by_result import Charge, FinishedResponse, charge_function
from ratebound.web.passed import Passed, Terms, delay_of
from ratebound.web.rejected import Rejected, rejection_of
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.user import names_user, rules_by_user_alone

log = logging.getLogger("ratebound")

MAX_PREPARED = 4096  # endpoints that are compiled for a new policy before it is in force

CLASH = (
    "the new policy cannot be combined with the limits of %r: the previous policy stays in force there. Correct the"
    " policy or these limits, and load the policy again"
)
NO_USER = (
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
    it needs no body. `uses_request` means that functions of the application, or the search for the reason why no user
    is known, may look at the framework's own request. `wants_user` means that a rule may need the user.
    """

    def __init__(
        self,
        owner: object,
        base: CompiledPolicy,
        compiled: CompiledPolicy,
        endpoint: Endpoint | None,
        charges: Mapping[str, Callable[[FinishedResponse], int]],
        seen_users: SeenUsers,
    ) -> None:
        policy = compiled.policy
        limits = () if endpoint is None else endpoint.limits
        pairs = [] if endpoint is None else list(zip(endpoint.rules, limits, strict=True))
        self.base = base
        self.compiled = compiled
        # Then MAX_BODY + 1 bytes of it at most are read first.
        self.reads_body = policy.reads_body or any(limit.reads_body for limit in limits)
        self.may_queue = compiled.may_queue
        self.last_stage = "early" if endpoint is not None and endpoint.exempt else "late"
        self.has_early = self.last_stage == "late" and base.has_early
        self.has_paths = bool(policy.exempt) or any(rule.match.paths for rule in policy.rules)
        self.is_plain = not self.has_early and not self.reads_body
        self._breaches = {rule.name: limit.on_breach for rule, limit in pairs if limit.on_breach is not None}
        own = {rule.name: limit.charged for rule, limit in pairs if limit.charged is not None}
        self.terms = Terms(owner, limits, [rule.name for rule, _ in pairs], {**charges, **own})
        self._by_user = rules_by_user_alone(policy)
        self.has_functions = any(True for _ in compiled.functions())
        self.uses_request = bool(self._by_user) or self.has_functions
        lists = (policy.tier_names, policy.allow, policy.block, policy.overrides, policy.identities)
        self.wants_user = any(lists) or any(
            wants_user(policy, rule, with_functions=index >= len(pairs))  # the endpoint's own rules come first
            for index, rule in enumerate(policy.rules)
            if rule.stage == "late"
        )
        self._seen_users = seen_users
        self.answer: Callable[..., Passed | Rejected] = self._checked_answer if self._by_user else self._answer

    def checks_early(self, stage: str | None) -> bool:
        """Return True if a check of this stage begins with the early rules."""
        return self.has_early if stage is None else stage == "early"

    def _checked_answer(self, view: RequestView, verdicts: list[Verdict]) -> Passed | Rejected:
        """Return `_answer`, where rules count by user alone. Warn once of each rule if no user can be known."""
        users = self._seen_users
        if view.user is not None:
            users.are_known = True
        elif not users.are_known:
            verdict = verdicts[-1]
            for rule in (*verdict.asked, *(shadow.rule for shadow in verdict.shadows)):
                if rule.name in self._by_user and rule.name not in users.warned and (reason := view.no_user):
                    count = users.anonymous[rule.name] = users.anonymous.get(rule.name, 0) + 1
                    if count >= view.anonymous:
                        users.warned.add(rule.name)
                        log.warning(NO_USER, rule.name, reason)
        return self._answer(view, verdicts)

    def _answer(self, view: RequestView, verdicts: list[Verdict]) -> Passed | Rejected:
        """Return the answer of the last verdict. Those before it let the request pass."""
        if not verdicts[-1].allowed:
            return rejection_of(verdicts[-1], view, self._breaches)
        return Passed(verdicts, self.terms, delay_of(verdicts) if self.may_queue else 0.0, view.is_scripted)


def wants_user(policy: Policy, rule: Rule, *, with_functions: bool) -> bool:
    """Return True if a rule may count by the user. `with_functions` also counts functions, which may look at it."""
    by = policy.by if rule.by is None else rule.by
    listed = [by] if isinstance(by, str) or not isinstance(by, Iterable) else by
    if with_functions and any(callable(one) for one in (*listed, rule.cost, rule.computed and rule.computed.function)):
        return True
    return any(names_user(one) for one in listed)


class EndpointRulesTable:
    """The rules of every endpoint that one gate has met; compiled anew when the policy changes."""

    def __init__(self, gate: Any, charge: Mapping[str, Charge] | None) -> None:
        self.gate = gate
        self._current: Callable[[], CompiledPolicy] = gate.current
        if charge is not None and not isinstance(charge, Mapping):
            raise TypeError(
                f"expected charges by the names of rules, for example charge={{'login': 'failure'}}, not {charge!r}"
            )
        found = {name: charge_function(one) for name, one in (charge or {}).items()}
        self._charges = {name: one for name, one in found.items() if one is not None}
        unknown = found.keys() - {rule.name for rule in gate.policy.rules}
        if unknown:
            raise ValueError(
                f"charge= names {', '.join(sorted(unknown))}, and the policy has no rule of that name: its rules are"
                f" {', '.join(rule.name for rule in gate.policy.rules)}"
            )
        self._full: dict[Endpoint | None, EndpointRules] = {}
        self._alone: dict[Endpoint | None, EndpointRules] = {}
        self._prepared: dict[tuple[Endpoint | None, bool], EndpointRules] = {}  # for the policy that was loaded last
        self._named: dict[str, RouteLimit] = {}
        self._seen_users = SeenUsers()
        self._first = self._good = self._current()  # the second: the last one compatible with an endpoint's limits
        self.of(None)
        gate.before_new_policy(self._prepare)

    def of(self, endpoint: Endpoint | None = None) -> EndpointRules:
        """Return the rules of an endpoint and of the policy, as it is now."""
        base = self._current()
        rules = self._full.get(endpoint)
        if rules is None or rules.base is not base:
            rules = self._full[endpoint] = self._renew(rules, base, endpoint, False)
        return rules

    def alone(self, endpoint: Endpoint) -> EndpointRules:
        """Return the rules of an endpoint, without those of the policy."""
        base = self._current()
        rules = self._alone.get(endpoint)
        if rules is None or rules.base is not base:
            rules = self._alone[endpoint] = self._renew(rules, base, endpoint, True)
        return rules

    def check(self, limit: RouteLimit) -> None:
        """Raise ValueError for a limit that the policy cannot be combined with, wherever it will stand."""
        self.gate.layered(self._current(), [replace(limit, name="").rule("limit")], alone=True)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop an endpoint that will not be met again."""
        self.release(endpoint)
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            if self._named.get(rule.name) is limit:
                del self._named[rule.name]

    def release(self, endpoint: Endpoint) -> None:
        """Drop the rules of an endpoint that will not be met again. The names of its limits stay taken."""
        self._full.pop(endpoint, None)
        self._alone.pop(endpoint, None)
        for alone in (False, True):
            self._prepared.pop((endpoint, alone), None)

    def _prepare(self, base: CompiledPolicy) -> None:
        """Compile the rules of all endpoints for a policy that will be in force, so that no request has to."""
        tables = {False: self._full, True: self._alone}
        met = [(endpoint, alone, rules) for alone, table in tables.items() for endpoint, rules in list(table.items())]
        self._prepared = {
            (endpoint, alone): self._renew(rules, base, endpoint, alone)
            for endpoint, alone, rules in met[:MAX_PREPARED]
        }
        for endpoint, alone, _ in met:
            if endpoint is not None and endpoint not in tables[alone]:
                self.release(endpoint)  # another thread has dropped it before it was compiled here

    def _renew(
        self, old: EndpointRules | None, base: CompiledPolicy, endpoint: Endpoint | None, alone: bool
    ) -> EndpointRules:
        """Compile under a new policy. If that fails, the previous rules stay in force; for an endpoint that was not met
        before, those under the last policy that was compatible with any endpoint, or under the first one."""
        prepared = self._prepared.get((endpoint, alone))
        if prepared is not None and prepared.base is base:
            return prepared
        if old is None and endpoint is not None:
            self._check_names(endpoint)
        try:
            rules = self._compile(base, endpoint, alone)
        except ValueError as error:
            if old is None:
                known = self._first if self._good is base else self._good
                if known is base:
                    raise
                old = self._compile(known, endpoint, alone)
            log.error(CLASH, endpoint, exc_info=error)
            kept = copy(old)  # a request may look at the old one, whose policy is still in force
            kept.base = base
            return kept
        if endpoint is not None and endpoint.rules:
            self._good = base
        return rules

    def _compile(self, base: CompiledPolicy, endpoint: Endpoint | None, alone: bool) -> EndpointRules:
        """Put an endpoint's limits before the rules of the policy, or in their place (`alone`)."""
        if endpoint is None or not endpoint.rules:
            return EndpointRules(self.gate, base, base, endpoint, self._charges, self._seen_users)
        compiled = self.gate.layered(base, endpoint.rules, alone=alone, keep_defaults=endpoint.keep_defaults)
        charges = {} if alone else self._charges
        return EndpointRules(self.gate, base, compiled, endpoint, charges, self._seen_users)

    def _check_names(self, endpoint: Endpoint) -> None:
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            known = self._named.setdefault(rule.name, limit)
            if known is not limit and not (limit.name and limit.agrees_with(known)):
                what = (
                    "have different limits: make them equal, or give one another name"
                    if limit.name
                    else "would share one quota: give one a name="
                )
                raise ValueError(f"two limits are named {rule.name!r}, and {what}")
