"""Usage under a policy: the limits that count a request or a named client, as asks. No I/O.

Shadows are left out, and rules that deny or leave a client unlimited: there is nothing to use.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ratebound.errors import InvalidLimit
from ratebound.http.prefix import Address
from ratebound.limit import Ask, Failure, Group, Limit
from ratebound.policy.identity.identify import PendingVerification, RequestIdentities, resolve
from ratebound.policy.identity.named_client import NamedClient, identity_in, read_client
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.match.request_body import UnreadableRequest
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import DEFAULT, Plan, Rule
from ratebound.policy.problem import nearest, shown
from ratebound.policy.runtime.compiled_rules import CompiledRule, plan_of
from ratebound.policy.runtime.fast_path import readings_of
from ratebound.policy.runtime.general_path import CompiledPolicy, Step, verified
from ratebound.policy.runtime.operator_clients import OperatorClients
from ratebound.policy.runtime.operator_measures import OperatorMeasures
from ratebound.policy.runtime.operator_switches import RuleSwitches
from ratebound.policy.runtime.switched_policy import switched_rules
from ratebound.usage import checked_units, grant_ask, no_quota, quotas_among, usage_ask

CALL = "call."  # the names of identities that a function in a rule finds begin with it


class RuleAsk(NamedTuple):
    """The name of a rule, and an ask for the limits that it has for one client."""

    rule: str
    ask: Ask


def asks_of_request(
    compiled: CompiledPolicy,
    request: RequestView,
    switch: str,
    rules: Sequence[CompiledRule] | None = None,
    named: OperatorClients | None = None,
) -> Generator[Step, Any, list[RuleAsk]]:
    """Return the asks that show the usage of a request's client: of the rules that apply to this request, or of all of
    these `rules` that count the client on any request. Yields what must be awaited.

    Of `rules`, two kinds are left out, because a client is shown its own usage: those that count all clients together,
    and those that count by a value of the request or by a function in the rule itself, which may be anything that the
    client sends, such as the name of another account. `named` are the clients that operators have named.
    """
    if isinstance(request, str):
        raise TypeError(f"expected a RequestView, not {shown(request)}: use usage_of({shown(request)})")
    if switch != "on":
        return []
    before = request.found
    compiled.note_client(request)
    found: RequestIdentities = request.found
    try:
        asks: list[RuleAsk] = []
        for stage in ("early", "late") if rules is not None or not compiled.exempts(request) else ():
            for one in (yield from _counting(compiled, request, found, stage, rules, named)):
                try:
                    who = yield from _identified(one, request, found)
                except UnreadableRequest:
                    continue  # such a request is denied, and has no usage
                plan = yield from compiled.plan_for(one, request, found, who)
                if isinstance(plan, tuple) and (rules is None or who.kind != "global"):
                    asks.append(RuleAsk(one.rule.name, usage_ask(who.key, plan)))
        return asks
    finally:
        request.found = before


def _counting(
    compiled: CompiledPolicy,
    request: RequestView,
    found: RequestIdentities,
    stage: str,
    rules: Sequence[CompiledRule] | None,
    named: OperatorClients | None,
) -> Generator[Step, Any, list[CompiledRule]]:
    """Return the enforced rules of a stage that count the client: none if a list blocks or allows it."""
    policy, lists, client = compiled.policy, compiled.clients, found.client
    if not lists.are_empty:
        if stage == "late" and lists.kinds:
            yield from compiled.look_up(request, found)
        if lists.block.find(found.keys, client.ip) or lists.allow.find(found.keys, client.ip):
            return []
        found.overrides = policy.overridden.find(found.keys, client.ip)
    if named is not None:
        yield from compiled.look_up_named(request, found, named, stage)
    stage_rules = compiled.stages[stage]
    of_stage = [one for one in rules or () if one.rule.stage == stage]
    tier = None
    if stage_rules.wants_tier or any(one.match.tiers for one in of_stage):
        tier = yield from compiled.tier(request, found, None)
    if rules is None:
        readings, methods = readings_of(request), methods_of(request)
        of_stage = stage_rules.applying(request, readings, methods, client.ip, tier)
    else:
        of_stage = [one for one in of_stage if _is_for(one, client.ip, tier)]
    return [one for one in of_stage if one.rule.mode == "enforce"]


def _is_for(one: CompiledRule, address: Address | None, tier: str | None) -> bool:
    """Return True if a rule counts a client of this address and tier on any request, by an identity of its own."""
    match = one.match
    if match.tiers and tier not in match.tiers:
        return False
    if any(kind.is_target or kind.name.startswith(CALL) for parts in one.by for kind in parts):
        return False
    return match.networks is None or (address is not None and address in match.networks)


def _identified(one: CompiledRule, request: RequestView, found: RequestIdentities) -> Generator[Step, Any, Identity]:
    who = resolve(one.by, request, found, one.rule.name)
    while isinstance(who, PendingVerification):
        yield from verified(who, found)
        who = resolve(one.by, request, found, one.rule.name)
    assert who is not None  # the address is always there
    return who


class ClientLimits:
    """The limits of the rules that count a named client; see `read_client` for the names.

    `tier` is the client's tier, where no list of the policy names it. `rule` is the only rule to look at. `rules` are
    as they were written; `measures` are what operators have changed.

    Raises ValueError if a name cannot be read, or if no rule counts by it; also for a tier or a rule that does not
    exist.
    """

    def __init__(
        self,
        policy: Policy,
        rules: Iterable[CompiledRule],
        names: str | Sequence[str],
        *,
        tier: str | None = None,
        rule: str | None = None,
        measures: OperatorMeasures | None = None,
    ) -> None:
        if tier is not None and tier not in policy.tier_names:
            raise ValueError(f"unknown tier {tier!r}: {nearest(tier, policy.tier_names)}")
        self._policy = policy
        named = None if measures is None else measures.clients
        switches = None if measures is None else measures.switches
        self._off: frozenset[str] = frozenset() if switches is None else switches.off
        self._client = read_client(names, policy.kinds)
        named_rules = {one.rule.name: one for one in rules}
        if rule is not None and rule not in named_rules:
            raise ValueError(f"unknown rule {rule!r}: {nearest(rule, named_rules)}")
        chosen = list(named_rules.values()) if rule is None else [named_rules[rule]]
        counted = [(one, identity_in(one.by, self._client)) for one in chosen]
        self._written = [(one, who) for one, who in counted if who is not None]
        self._counted = [(switched_compiled(one, switches, policy.failure), who) for one, who in self._written]
        if not self._counted:
            raise ValueError(_not_counted(chosen, self._client, rule, policy))
        keys = [one.key for one in self._client]
        address = next((one.client.ip for one in self._client if one.client is not None), None)
        given = [] if named is None else named.overrides_of(keys, address)
        self._given = [override for override in given if override.tier in (None, *policy.tier_names)]
        self._overrides = [override for override, _ in policy.overridden.find(keys, address)]
        tiers = [override.tier for override in self._given if override.tier is not None]
        tiers += [override.tier for override in self._overrides if override.tier is not None]
        known = next(iter([*tiers, *policy.members.find(keys, address)]), tier)
        self._tier = policy.default_tier if known is None else known
        by_tier = known is None and any(one.is_by_tier for one, _ in self._counted)
        # The tier that decides about the limits though nobody has named it; None if there is none.
        self.assumed_tier = (policy.default_tier or DEFAULT) if by_tier else None

    def usage(self) -> list[RuleAsk]:
        """Return the asks that show the usage of the client."""
        asks = []
        for one, who in self._counted:
            plan = self._plan(one) if one.rule.mode == "enforce" else "unlimited"
            if isinstance(plan, tuple):
                asks.append(RuleAsk(one.rule.name, usage_ask(who.key, plan)))
        return asks

    @property
    def other_names(self) -> list[str]:
        """The clients that may be meant, if a source was named that declares other kinds than its own."""
        kinds = self._policy.kinds
        return [f"{kind}:{one.value}" for one in self._client for kind in kinds.returned_by(one.label)]

    def slots(self) -> list[tuple[str, tuple[Limit, ...]]]:
        """Return the keys of the client with the limits of slots that it may hold, those in shadow left out."""
        enforced = [(one, who) for one, who in self._counted if one.rule.mode == "enforce"]
        return [(who.key, tuple(limit for limit in self._limits(one) if limit.has_slots)) for one, who in enforced]

    def granting(self, units: object) -> Group:
        """Return what to force to grant units in the quotas. Raises InvalidLimit if there are none."""
        given = checked_units(units)
        found = [(who.key, tuple(quotas_among(self._limits(one)))) for one, who in self._counted]
        group = [grant_ask(key, quotas, given) for key, quotas in found if quotas]
        if not group:
            raise InvalidLimit(no_quota((), None))
        return group

    def spent(self) -> Group:
        """Return asks for all limits that the client may have spent of, candidates and shadows included; of rules that
        operators have switched, before and after."""
        found = []
        for (one, who), (written, _) in zip(self._counted, self._written, strict=True):
            more = [*one.candidates.values(), *written.plans.values(), *written.candidates.values()]
            found.append((who.key, tuple(self._limits(one, more))))
        return [usage_ask(key, limits) for key, limits in found if limits]

    def _plan(self, one: CompiledRule) -> Plan:
        if one.rule.name in self._off:
            return "unlimited"
        for given in self._given:
            plan = one.of_operator(given.limits) if given.limits and given.concerns(one.rule.name) else None
            if plan is not None:
                return plan
        has_tier = one.is_by_tier and any(given.tier is not None for given in self._given)  # it wins over the policy's
        for override in () if has_tier else self._overrides:
            if _has_limits(override, one.rule):
                return _overridden(override, one)
        return plan_of(one.plans, self._tier, self._policy.default_tier)

    def _limits(self, one: CompiledRule, more: Iterable[Plan] = ()) -> Iterator[Limit]:
        """Yield the limits of a rule, each state once: those of the client first, then those of other tiers and of
        overrides, which it may have had before."""
        overrides = [override for override in self._policy.overrides if _has_limits(override, one.rule)]
        plans = [self._plan(one), *one.plans.values(), *(_overridden(each, one) for each in overrides), *more]
        scopes: dict[str, Limit] = {}
        for plan in plans:
            for limit in plan if isinstance(plan, tuple) else ():
                scopes.setdefault(limit.scope, limit)
        yield from scopes.values()


def switched_compiled(one: CompiledRule, switches: RuleSwitches | None, failure: Failure) -> CompiledRule:
    """Return a compiled rule as operators have switched it. `failure` is the failure mode of the policy."""
    (rule,) = (one.rule,) if switches is None else switched_rules((one.rule,), switches)
    if rule is one.rule:
        return one
    windows = one.counter_windows | rule.counter_windows
    return CompiledRule(rule, one.order, one.by, failure, windows, one.penalty if rule.penalty else None, one.sources)


def _has_limits(override: Override, rule: Rule) -> bool:
    return override.limits is not None and (not override.rules or rule.name in override.rules)


def _overridden(override: Override, one: CompiledRule) -> Plan:
    return one.enforced(one.rule.plan(override.limits, one.counter_windows))


def _not_counted(rules: Iterable[CompiledRule], client: NamedClient, rule: str | None, policy: Policy) -> str:
    """Return the message for a client that no rule counts."""
    named = " + ".join(one.label for one in client)
    known = dict.fromkeys(" + ".join(kind.name for kind in parts) for one in rules for parts in one.by)
    what = "no rule counts" if rule is None else f"the rule {rule!r} does not count"
    unknown = [one.label for one in client if one.client is None and not one.sources]
    hint = ""
    if unknown and policy.identities:
        hint = f"; or declare the kind in the source that returns it, 'kinds: [{unknown[0]}]'"
    return f"{what} by {named}: expected {' or '.join(known) or 'a policy with rules'}{hint}"
