"""The rules of every endpoint that a gate has met.

`EndpointRulesTable._compile` is the one place where an endpoint's limits and a policy are put together. No request
compiles a policy: for endpoints that were met, a new policy is prepared where it is loaded.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ratebound.policy.model.charge_by_result import Charge, read_charge
from ratebound.policy.runtime.compiled_rules import CompiledRule
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.web.endpoint_rules import EndpointRules, SeenUsers
from ratebound.web.route_limit import Endpoint, RouteLimit, told_as_options

log = logging.getLogger("ratebound")

MAX_PREPARED = 4096  # endpoints that are compiled for a new policy before it is in force

CLASH = (
    "the new policy cannot be combined with the limits of %r: the previous policy stays in force there. Correct the"
    " policy or these limits, and load the policy again"
)


class EndpointRulesTable:
    """The rules of every endpoint that one gate has met; compiled anew when the policy changes."""

    def __init__(self, gate: Any, charge: Mapping[str, Charge] | None) -> None:
        self.gate = gate
        self._current: Callable[[], CompiledPolicy] = gate.current
        if charge is not None and not isinstance(charge, Mapping):
            raise TypeError(
                f"expected charges by the names of rules, for example charge={{'login': 'failure'}}, not {charge!r}"
            )
        found = {name: read_charge(one) for name, one in (charge or {}).items()}
        self._charges = {name: one for name, one in found.items() if one is not None}
        unknown = found.keys() - {rule.name for rule in gate.policy.rules}
        if unknown:
            raise ValueError(
                f"charge= names {', '.join(sorted(unknown))}, and the policy has no rule of that name: its rules are"
                f" {', '.join(rule.name for rule in gate.policy.rules)}"
            )
        cached = [rule.name for rule in gate.policy.rules if rule.deny_cache and rule.name in self._charges]
        if cached:
            raise ValueError(
                f"charge= names {', '.join(cached)}, which has a deny cache: the result of a request changes what is"
                " denied; leave one of them out"
            )
        self.full: dict[Endpoint | None, EndpointRules] = {}  # with the rules of the policy
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
        rules = self.full.get(endpoint)
        if rules is None or rules.base is not base:
            rules = self.full[endpoint] = self._renew(rules, base, endpoint, False)
        return rules

    def alone(self, endpoint: Endpoint) -> EndpointRules:
        """Return the rules of an endpoint, without those of the policy."""
        base = self._current()
        rules = self._alone.get(endpoint)
        if rules is None or rules.base is not base:
            rules = self._alone[endpoint] = self._renew(rules, base, endpoint, True)
        return rules

    def all_rules(self, *, callable_now: bool = False) -> list[CompiledRule]:
        """Return the rules of the policy and those of all endpoints that were met, each name once.

        With `callable_now` rules of limits inside of a handler are left out if a function finds their limits: it looks
        at the request that the handler handles.
        """
        found = {one.rule.name: one for one in self._current().rules}
        for endpoint in list(self.full):
            for one in self.of(endpoint).compiled.rules if endpoint is not None else ():
                found.setdefault(one.rule.name, one)
        for endpoint in list(self._alone):
            for one in self.alone(endpoint).compiled.rules if endpoint is not None else ():
                if one.rule.computed is None or not callable_now:
                    found.setdefault(one.rule.name, one)
        return list(found.values())

    def check(self, limit: RouteLimit) -> None:
        """Raise ValueError for a limit that the policy cannot be combined with, wherever it will stand."""
        with told_as_options():
            self.gate.layered(self._current(), [replace(limit, name="").rule("limit")], alone=True)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop an endpoint that will not be met again."""
        self.release(endpoint)
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            if self._named.get(rule.name) is limit:
                del self._named[rule.name]

    def release(self, endpoint: Endpoint) -> None:
        """Drop the rules of an endpoint that will not be met again. The names of its limits stay taken."""
        self.full.pop(endpoint, None)
        self._alone.pop(endpoint, None)
        for alone in (False, True):
            self._prepared.pop((endpoint, alone), None)

    def _prepare(self, base: CompiledPolicy) -> None:
        """Compile the rules of all endpoints for a policy that will be in force, so that no request has to."""
        tables = {False: self.full, True: self._alone}
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
            return old.kept_under(base)  # a copy: a request may look at the old one, whose policy is still in force
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
