"""The general path from a request to a verdict, written once for threads and tasks; and compiled policies.

`CompiledPolicy.deliberate` is a generator without I/O. It yields groups for the storage, or an awaitable that a
function of the user returned, and is sent the answer.
"""

import logging
import math
import operator
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.extras import extras_of
from ratebound.http.client_ip import ClientAddress
from ratebound.limit import MAX_COUNT, Ask, Extra, Group, Limit
from ratebound.lowered import STEPS, LoweredLimits
from ratebound.outcome import Row
from ratebound.policy.function_errors import function_errors
from ratebound.policy.functions import is_async, is_awaitable, unwrapped
from ratebound.policy.identity.identify import (
    UNIDENTIFIED,
    IdentityKind,
    PendingVerification,
    RequestIdentities,
    id_text,
    is_doubled,
    pending_of,
    resolve,
    take,
)
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.index import Index
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.match.request_body import UnreadableRequest
from ratebound.policy.match.request_value import RequestValue
from ratebound.policy.model.client_list import ClientList
from ratebound.policy.model.policy import Policy, needs_verified
from ratebound.policy.model.rule import DEFAULT, Plan, Rule
from ratebound.policy.problem import PolicyError
from ratebound.policy.runtime.compiled_descriptors import DescriptorTable
from ratebound.policy.runtime.compiled_rules import (
    CompiledExemption,
    CompiledRule,
    CompiledStage,
    compile_rule,
    may_hold,
    may_queue,
    plan_of,
    without_penalties,
)
from ratebound.policy.runtime.fast_path import Asked, FastPath, MatchedRules, is_exempt, readings_of
from ratebound.policy.runtime.layered_policy import (
    with_defaults_kept,
    with_rules_in_front,
    without_rules,
    written_out,
)
from ratebound.policy.runtime.operator_clients import OperatorClients
from ratebound.policy.runtime.operator_switches import RuleSwitches
from ratebound.policy.runtime.switched_policy import switched_policy, switched_rules
from ratebound.policy.runtime.verdict import Grounds, Shadow, Verdict

log = logging.getLogger("ratebound")

MAX_SWITCHED = 4  # compiled policies that are kept, for as many sets of switches
DOUBLED = "A credential occurs twice, or is too long."

Step = list[Group] | Awaitable[Any]
Deliberation = Generator[Step, Any, Verdict]
RuleValues = Mapping[str, str] | None  # what the limits of distinct values of a rule count


class RequestCase:
    """The asks of one request. Those of enforced rules are one group, and each shadow is a group of its own."""

    __slots__ = ("asks", "identities", "is_overridden", "rules", "shadows")

    def __init__(self, *, is_overridden: bool = False) -> None:
        self.is_overridden = is_overridden
        self.asks: list[Ask] = []
        self.rules: list[Rule] = []
        self.identities: list[Identity] = []
        self.shadows: list[tuple[Rule, bool, Identity, Ask | None]] = []

    def add(self, rule: Rule, who: Identity, plan: Plan, cost: int, values: RuleValues = None) -> None:
        """Add an enforced rule. A plan without limits asks nothing."""
        if not isinstance(plan, str):
            strikes = not isinstance(plan, LoweredLimits)  # what is denied under overload is not the client's fault
            self.asks.append((who.key, plan, cost, None, _extras(who.key, plan, values, strikes=strikes)))
            self.rules.append(rule)
            self.identities.append(who)

    def add_shadow(
        self, rule: Rule, who: Identity, plan: Plan, cost: int, values: RuleValues = None, *, candidate: bool
    ) -> None:
        """Add a rule in shadow, or the candidate limits of a rule. They never strike."""
        plan = without_penalties(plan)
        if plan != "unlimited":
            ask = None if isinstance(plan, str) else (who.key, plan, cost, None, _extras(who.key, plan, values))
            self.shadows.append((rule, candidate, who, ask))

    def groups(self) -> list[Group]:
        """Return the groups to ask the storage for."""
        groups: list[Group] = [self.asks] if self.asks else []
        return groups + [(ask,) for *_, ask in self.shadows if ask is not None]

    def verdict(self, policy: Policy, stage: str, client: ClientAddress, answers: Iterator[Sequence[Row]]) -> Verdict:
        """Return the verdict that follows from the storage's answers, one for each of `groups`."""
        decision = Decision(self.asks, next(answers)) if self.asks else None
        shadows = [
            Shadow(rule, candidate, who, None if ask is None else Decision((ask,), next(answers)))
            for rule, candidate, who, ask in self.shadows
        ]
        kind = "unlimited" if decision is None else "limited"
        grounds = Grounds(kind, policy, stage, self.rules, is_overridden=self.is_overridden)
        allowed = decision is None or decision.allowed
        return Verdict(grounds, client, allowed, decision, self.identities, tuple(shadows))


def _extras(key: str, plan: tuple[Limit, ...], values: RuleValues, *, strikes: bool = True) -> list[Extra] | None:
    """Return the extras of an ask. A rule may have values that this plan does not count."""
    if values is not None:
        values = {limit.values: values[limit.values] for limit in plan if limit.is_distinct}
    return extras_of(key, plan, values, strikes=strikes)


class ClientLists:
    """The clients that a policy names: blocked ones, allowed ones, members of tiers, and those with overrides.

    `kinds` are the identities that must be looked for before it is known whether a list names a client.
    """

    __slots__ = ("allow", "are_empty", "block", "kinds")

    def __init__(self, policy: Policy) -> None:
        self.block = ClientList([(client, client) for client in policy.block], policy.kinds)
        self.allow = ClientList([(client, client) for client in policy.allow], policy.kinds)
        lists = (self.block, self.allow, policy.members, policy.overridden)
        kinds = {name: kind for one in lists for name, kind in one.kinds.items()}
        self.kinds: list[IdentityKind] = list(kinds.values())
        self.are_empty = all(one.empty for one in lists)


class CompiledPolicy:
    """A policy, with everything computed that can be computed before the first request.

    `layered` puts rules in front of it. It compiles a policy onto the one `below`: only the rules that this does not
    have are compiled, and the rest is shared. `switched` returns it as operators have switched its rules. Then `origin`
    is the policy as it was written, and `off` are the names of the rules that are off.
    """

    def __init__(
        self,
        policy: Policy,
        below: "CompiledPolicy | None" = None,
        *,
        off: frozenset[str] = frozenset(),
        alike: Iterable[CompiledRule] = (),
    ) -> None:
        self.policy = policy
        self.origin = self
        self.off = off
        self._layer: tuple[CompiledPolicy, Sequence[Rule], dict[str, bool]] | None = None  # if `layered` has made it
        self._switched: dict[RuleSwitches, CompiledPolicy] = {}  # the last ones
        reused = {rule.rule: rule for rule in alike}  # compiled for the same policy, but for other rules
        known: dict[Rule, CompiledRule] = {} if below is None else {rule.rule: rule for rule in below.rules}
        self.rules: list[CompiledRule] = [
            known.get(rule) or reused.get(rule) or compile_rule(policy, place)
            for place, rule in enumerate(policy.rules)
        ]
        new = [rule for rule in self.rules if rule.rule not in known]
        by_stage = {name: [rule for rule in new if rule.rule.stage == name] for name in ("early", "late")}
        if below is None:
            self.exempt: Index[CompiledExemption] = Index(
                CompiledExemption(match, place) for place, match in enumerate(policy.exempt)
            )
            self.clients = ClientLists(policy)
            self.stages = {name: CompiledStage.of(rules) for name, rules in by_stage.items()}
            self.may_queue = may_queue(policy.rules, policy.overrides)
            self.may_hold = may_hold(policy.rules, policy.overrides)
            self.descriptors = DescriptorTable(policy, off)
            kinds = [*self.clients.kinds, *(kind for parts in policy.alternatives for kind in parts)]
            self._functions = [*_functions_of(new), *(function for kind in kinds for function in kind.functions)]
        else:
            self.exempt, self.clients, self.descriptors = below.exempt, below.clients, below.descriptors
            stages = below.stages
            if len(self.rules) < len(known) + len(new):  # the default rules were replaced by such as always apply
                stages = {name: stage.without_defaults() for name, stage in stages.items()}
            self.stages = {name: stages[name].with_rules(rules) for name, rules in by_stage.items()}
            self.may_queue = below.may_queue or may_queue([rule.rule for rule in new], ())
            self.may_hold = below.may_hold or may_hold([rule.rule for rule in new], ())
            self._functions = [*_functions_of(new), *below._functions]
        self.pressure = policy.pressure
        if self.pressure is not None:
            self.pressure.include(rule.rule.priority for rule in new if rule.rule.mode == "enforce")
        self.has_early = any(rule.rule.stage == "early" for rule in self.rules)
        # Any function may return something to await: early rules must not have been charged before that is known.
        self.may_await = any(
            is_async(function) or (self.has_early and not isinstance(function, RequestValue))
            for function in self._functions
        )
        self._lines: dict[str, FastPath] = {}
        if policy.switch == "on" and self.clients.are_empty:
            for name, stage in self.stages.items():
                shared = None if below is None or stage is not below.stages[name] else below._lines.get(name)
                line = shared or FastPath(policy, name, stage, self.exempt)
                if line.is_open:
                    self._lines[name] = line
        for rule in new:
            for plan in rule.plans.values():
                if isinstance(plan, tuple):
                    policy.response_headers.prepare(plan)

    def layered(self, rules: Sequence[Rule], *, alone: bool = False, keep_defaults: bool = False) -> "CompiledPolicy":
        """Return a compiled policy with `rules` in front of this one's, or in their place if `alone`.

        `keep_defaults` makes the default rules of this policy apply always. Only `rules` are checked and compiled, but
        the result decides like the policy that `written_out` returns. Raises PolicyError with everything that is wrong
        with all rules together.
        """
        try:
            below = self._without_rules if alone else self._with_defaults_kept if keep_defaults else self
            made = CompiledPolicy(with_rules_in_front(below.policy, rules), below)
            made._layer = self, rules, {"alone": alone, "keep_defaults": keep_defaults}
            return made
        except PolicyError as error:
            found = error
        written_out(self.policy, rules, alone=alone, keep_defaults=keep_defaults)  # raises with all that is wrong
        raise found

    def switched(self, switches: RuleSwitches) -> "CompiledPolicy":
        """Return this policy as operators have switched its rules. It is compiled once for these switches."""
        known = self._switched
        made = known.get(switches)
        if made is None:
            # Several: gates that share this policy learn of a change one after the other.
            last = list(known.items())[1 - MAX_SWITCHED :]
            made = self._compile_switched(switches)
            self._switched = {**dict(last), switches: made}
        return made

    def _compile_switched(self, switches: RuleSwitches) -> "CompiledPolicy":
        try:
            if self._layer is None:
                policy = switched_policy(self.policy, switches)
                made = self if policy is self.policy else CompiledPolicy(policy, off=switches.off, alike=self.rules)
            else:
                base, rules, options = self._layer
                below, own = base.switched(switches), switched_rules(rules, switches)
                is_same = below is base and all(new is old for new, old in zip(own, rules, strict=True))
                made = self if is_same else below.layered(own, **options)
        except PolicyError:
            log.exception("operators' switches cannot be combined with the policy, and have no effect on it")
            return self
        if made is not self:
            made.origin, made.off = self, switches.off
            made.may_queue, made.may_hold = made.may_queue or self.may_queue, made.may_hold or self.may_hold
        return made

    @cached_property
    def _without_rules(self) -> "CompiledPolicy":
        return CompiledPolicy(without_rules(self.policy))

    @cached_property
    def _with_defaults_kept(self) -> "CompiledPolicy":
        return CompiledPolicy(with_defaults_kept(self.policy), self)

    def functions(self) -> Sequence[Callable[..., Any]]:
        """Return the user's own functions: an AsyncGate may await them, a Gate cannot."""
        return self._functions

    def asks_early(self, request: RequestView) -> bool:
        """Return True if there are early rules, and this request has not passed them yet."""
        found = request.found
        return self.has_early and not (
            isinstance(found, RequestIdentities) and found.owner is self.origin and found.passed_early
        )

    def passed_early(self, request: RequestView, verdict: Verdict) -> None:
        """Note on the request that an early verdict of this policy allowed it. A request that no rule looked at has
        nothing to note it on, and counts as not passed."""
        found = request.found
        if verdict.allowed and isinstance(found, RequestIdentities) and found.owner is self.origin:
            found.passed_early = True

    def line(self, stage: str) -> FastPath | None:
        """Return the fast path of a stage, if it has one."""
        return self._lines.get(stage)

    def straight(
        self, request: RequestView, stage: str, matched: MatchedRules | None = None
    ) -> Asked | MatchedRules | None:
        """Return everything that a verdict is made of but the storage's answer. If `deliberate` must decide, return the
        rules that apply, or None if they are not known. `matched` are the rules, if the caller knows them."""
        if matched is None:
            line = self._lines.get(stage)
            matched = None if line is None else line.find(request)
        if matched is None or not matched.is_straight:
            return matched
        pressure = self.pressure
        if pressure is not None and not pressure.is_calm and matched.bounds:
            return matched
        asked = matched.known.get(request.peer) if request.user is None or not matched.by_user else None
        if asked is None:
            asked = matched.ask(request, self._client(request), self.origin, is_peer=not self.policy.proxies.believes)
            if asked is None:
                return matched
        if self.has_early:
            request.found = RequestIdentities(self.origin, asked.client)
        return asked

    def exempts(self, request: RequestView) -> bool:
        """Return True if the policy exempts the request from all rules."""
        if not self.policy.exempt:
            return False
        return is_exempt(self.exempt, request, readings_of(request), methods_of(request), self._client(request))

    def deliberate(
        self,
        request: RequestView,
        stage: str,
        switch: str,
        matched: MatchedRules | None = None,
        named: OperatorClients | None = None,
    ) -> Deliberation:
        """Decide one request at one stage: yield what has to be asked or awaited, and return the verdict.

        `matched` has the rules that apply, if `straight` has found them. `named` has the clients that operators have
        blocked or given other limits, if they may concern this request; then there is no `matched`.
        """
        policy = self.policy
        if switch == "off":
            return Verdict(Grounds("off", policy, stage), None)
        client = self._client(request)
        found = request.found = pending_of(request, self.origin) or RequestIdentities(self.origin, client)
        is_overridden = False
        if matched is not None:
            applying = matched.bounds
        else:
            readings = readings_of(request)
            methods = methods_of(request)
            if policy.exempt and is_exempt(self.exempt, request, readings, methods, client):
                return Verdict(Grounds("exempt", policy, stage), client)
            if not self.clients.are_empty:
                if stage == "late" and self.clients.kinds:
                    yield from self.look_up(request, found)
                if is_doubled(self.clients.block.kinds.values(), found):
                    return _denied_for_doubled(Grounds("deny", policy, stage), client, switch)
                if self.clients.block.find(found.keys, client.ip):
                    return Verdict(Grounds("block", policy, stage), client, switch == "shadow")
            keys: Sequence[str] = ()
            if named is not None:
                kinds = named.kinds(policy.kinds) if stage == "late" else ()
                keys = yield from _keys_of(kinds, request, found)
                block = named.block_of(keys, client.ip)
                if is_doubled(named.blocks.kinds(policy.kinds) if kinds else (), found):
                    return _denied_for_doubled(Grounds("deny", policy, stage), client, switch)
                if block is not None:
                    return Verdict(Grounds("block", policy, stage, (), *block), client, switch == "shadow")
            if not self.clients.are_empty:
                if self.clients.allow.find(found.keys, client.ip):
                    return Verdict(Grounds("allow", policy, stage), client)
                found.overrides = policy.overridden.find(found.keys, client.ip)
            if named is not None:
                is_overridden = self.note_overrides(found, named, keys)
            rules = self.stages[stage]
            tier = (yield from self.tier(request, found, None)) if rules.wants_tier else None
            applying = rules.applying(request, readings, methods, client.ip, tier)
        if not applying:
            return Verdict(Grounds("unmatched", policy, stage), client)
        case, pressure = RequestCase(is_overridden=is_overridden), self.pressure
        for compiled in applying:
            rule = compiled.rule
            in_shadow = rule.mode == "shadow" or switch == "shadow"
            values: RuleValues = None
            try:
                who = resolve(compiled.by, request, found, rule.name)
                while isinstance(who, PendingVerification):
                    yield from verified(who, found)
                    who = resolve(compiled.by, request, found, rule.name)
                assert who is not None  # the address is always there
                plan = compiled.flat
                if plan is None or found.overrides:
                    plan = yield from self.plan_for(compiled, request, found, who)
                if found.doubled and needs_verified(plan) and is_doubled(chain(*compiled.by), found):
                    raise UnreadableRequest(DOUBLED)
                if _counts_values(plan):
                    values = yield from _values(compiled, request, found)
            except UnreadableRequest as unreadable:
                who = self._by_address(client)
                if not in_shadow:
                    grounds = Grounds("deny", policy, stage, (rule,))
                    return Verdict(grounds, client, False, identities=(who,), unreadable=str(unreadable))
                case.add_shadow(rule, who, "deny", 1, candidate=False)
                continue
            if plan == "deny" and not in_shadow:
                return Verdict(Grounds("deny", policy, stage, (rule,)), client, False, identities=(who,))
            cost = rule.cost
            if not isinstance(cost, int):
                cost = yield from _cost(rule, cost, request)
            if in_shadow:
                case.add_shadow(rule, who, plan, cost, values, candidate=False)
            else:
                if pressure is not None and (step := pressure.step(rule.priority)) < STEPS:
                    plan = compiled.lowered(plan, step, cost)
                case.add(rule, who, plan, cost, values)
            if compiled.candidates:
                plan = yield from self._of_tier(compiled.candidates, request, found, who)
                try:
                    if values is None and _counts_values(plan):
                        values = yield from _values(compiled, request, found)
                except UnreadableRequest:
                    plan = "deny"
                case.add_shadow(rule, who, plan, cost, values, candidate=True)
        groups = case.groups()
        if not groups:
            return case.verdict(policy, stage, client, iter(()))
        try:
            answers = yield groups
        except StorageError:
            if case.asks:
                raise
            log.exception("the storage failed; all rules that apply are in shadow, so the request goes ahead")
            return Verdict(Grounds("unlimited", policy, stage), client)
        return case.verdict(policy, stage, client, iter(answers))

    def _by_address(self, client: ClientAddress) -> Identity:
        of_client = self.policy.kinds.kind("address").of_client
        assert of_client is not None
        return of_client(client)[0]

    def note_client(self, request: RequestView) -> ClientAddress:
        """Return the client's address, and note it on the request: functions may read it before there is a decision."""
        client = self._client(request)
        request.found = RequestIdentities(self.origin, client)
        return client

    def _client(self, request: RequestView) -> ClientAddress:
        """Return the client's address. The late stage takes it from the early one; identities may differ by then."""
        before = request.found
        if before is not None and isinstance(before, RequestIdentities) and before.owner is self.origin:
            return before.client
        proxies = self.policy.proxies
        return proxies.client_address(request.peer, request.headers if proxies.believes else ())

    def look_up(self, request: RequestView, found: RequestIdentities) -> Generator[Step, Any, None]:
        """Note the keys of all identities that a list of clients may name."""
        found.keys = yield from _keys_of(self.clients.kinds, request, found)

    def note_overrides(self, found: RequestIdentities, named: OperatorClients, keys: Iterable[str]) -> bool:
        """Put the overrides that operators have given to a client before those of the policy. Return True if there are
        any. A tier that the policy does not know has no effect."""
        overrides = [
            override
            for override in named.overrides_of(keys, found.client.ip)
            if override.tier is None or override.tier in self.policy.tier_names or _warn_of_override(override.tier)
        ]
        if overrides:
            found.overrides = [*((override, None) for override in overrides), *found.overrides]
        return bool(overrides)

    def look_up_named(
        self, request: RequestView, found: RequestIdentities, named: OperatorClients, stage: str
    ) -> Generator[Step, Any, None]:
        """Note the overrides that operators have given to the client of a request."""
        kinds = named.kinds(self.policy.kinds) if stage == "late" else ()
        self.note_overrides(found, named, (yield from _keys_of(kinds, request, found)))

    def may_be_named(self, request: RequestView, stage: str, named: OperatorClients) -> bool:
        """Return True if one of the clients that operators have named may be that of this request."""
        if named.has(self._client(request).ip):
            return True
        kinds = named.kinds(self.policy.kinds) if stage == "late" else ()
        return any(kind.name != "user" or request.user is not None for kind in kinds)

    def overridden_plan(
        self, compiled: CompiledRule, overrides: Iterable[tuple[Any, Mapping[str, Plan] | None]]
    ) -> Plan | None:
        """Return the plan of the first of these overrides that has one for a rule; None if there is none.

        An operator's override has no plans of its own: the rule makes one of its limits. Where it gives a tier, and the
        rule has limits by tier, limits that the policy gives to the client do not count.
        """
        name = compiled.rule.name
        if name in self.off:
            return "unlimited"
        has_tier = False
        for override, plans in overrides:
            if plans is not None:
                if has_tier and compiled.is_by_tier:
                    return None
                if name in plans:
                    return compiled.enforced(plans[name])
            elif override.concerns(name):
                plan = compiled.of_operator(override.limits)
                if plan is not None:
                    return plan
            else:
                has_tier = has_tier or override.tier is not None
        return None

    def plan_for(
        self, compiled: CompiledRule, request: RequestView, found: RequestIdentities, who: Identity
    ) -> Generator[Step, Any, Plan]:
        """Return what a rule allows the client: by an override, a function, its tier, or to everybody."""
        rule = compiled.rule
        plan = self.overridden_plan(compiled, found.overrides)
        if plan is not None:
            return plan
        if compiled.flat is not None:
            return compiled.flat
        if rule.computed is not None:
            what, otherwise = f"finding the limits of rule {rule.name}", "its other limits hold"
            value = yield from _called(rule.computed.function, request, what, otherwise)
            try:
                if value is not None:
                    return compiled.computed(value)
            except Exception:  # whatever it is that the function gave
                function_errors.note(f"using the limits found for rule {rule.name}", otherwise)
        return (yield from self._of_tier(compiled.plans, request, found, who))

    def _of_tier(
        self, plans: Mapping[str, Plan], request: RequestView, found: RequestIdentities, who: Identity
    ) -> Generator[Step, Any, Plan]:
        if len(plans) == 1 and DEFAULT in plans:
            return plans[DEFAULT]
        tier = yield from self.tier(request, found, who)
        return plan_of(plans, tier, self.policy.default_tier)

    def tier(
        self, request: RequestView, found: RequestIdentities, who: Identity | None
    ) -> Generator[Step, Any, str | None]:
        """Return the tier of a client: that of its override, else of the list it is a member of, else of the identity
        that the rule counts, else of the first of the policy's own identities that has one, else the default."""
        policy = self.policy
        for override, _ in found.overrides:
            if override.tier is not None:
                return str(override.tier)
        for tier in policy.members.find(found.keys, found.client.ip):
            return tier
        if who is not None and who.tier in policy.tier_names:
            return who.tier
        for parts in policy.alternatives:
            identity = resolve((parts,), request, found)
            while isinstance(identity, PendingVerification):
                yield from verified(identity, found)
                identity = resolve((parts,), request, found)
            if identity is not None and identity.tier is not None:
                if identity.tier in policy.tier_names:
                    return identity.tier
                _warn_of_tier("+".join(kind.name for kind in parts), identity.tier, ", ".join(policy.tier_names))
        return policy.default_tier


@lru_cache(maxsize=64)
def _warn_of_override(tier: str) -> bool:
    log.error("an operator's override gives the tier %r, which the policy does not have: it has no effect", tier)
    return False


@lru_cache(maxsize=64)
def _warn_of_tier(source: str, tier: str, known: str) -> None:
    log.error(
        "identifying by %s gave the tier %r; the client counts as having none. The tiers of the policy: known are %s",
        source,
        tier,
        known or "none",
    )


def _functions_of(rules: Sequence[CompiledRule]) -> Iterator[Callable[..., Any]]:
    """Yield the user's functions that identify clients, find costs or find limits for these rules."""
    for rule in rules:
        for parts in rule.by:
            for kind in parts:
                yield from kind.functions
        if callable(rule.rule.cost):
            yield rule.rule.cost
        if rule.rule.computed is not None:
            yield rule.rule.computed.function
        for source in rule.sources.values():
            yield from source.functions if isinstance(source, IdentityKind) else (source,)


def _denied_for_doubled(grounds: Grounds, client: ClientAddress, switch: str) -> Verdict:
    """Return the verdict for a request with a credential twice or one too long, where clients are blocked by it: the
    application may read the one that is blocked."""
    return Verdict(grounds, client, switch == "shadow", unreadable=DOUBLED)


def _counts_values(plan: Plan) -> bool:
    return isinstance(plan, tuple) and any(limit.is_distinct for limit in plan)


def _values(
    compiled: CompiledRule, request: RequestView, found: RequestIdentities
) -> Generator[Step, Any, dict[str, str]]:
    """Return what the limits of distinct values of a rule count. An absent value is one value of its own, which no
    client can send. Raises UnreadableRequest."""
    values: dict[str, str] = {}
    for name, source in compiled.sources.items():
        if isinstance(source, IdentityKind):
            identity = take(source, request, found, compiled.rule.name)
            if isinstance(identity, PendingVerification):
                yield from verified(identity, found)
                identity = take(source, request, found, compiled.rule.name)
            if is_doubled((source,), found):
                raise UnreadableRequest(DOUBLED)
            text = identity.key if isinstance(identity, Identity) else None
        else:
            text = yield from _value(compiled.rule, name, source, request)
        values[name] = "" if text is None else f"={text}"
    return values


def _value(
    rule: Rule, name: str, function: Callable[[RequestView], Any], request: RequestView
) -> Generator[Step, Any, str | None]:
    """Return the text of a value; None if it is absent. If a function of the user fails, the request is denied: else
    whoever makes it fail could use any number of values. Raises UnreadableRequest."""
    try:
        value = unwrapped(function(request))
        if is_awaitable(value):
            value = unwrapped((yield value))
        text = None if value is None else id_text(value)
        if text is None and value is not None:
            raise TypeError(f"expected text, a whole number or None, not {type(value).__name__}")
        return text
    except UnreadableRequest:
        raise
    except Exception:
        function_errors.note(f"finding {name} for rule {rule.name}", "the request is denied")
        raise UnreadableRequest("This request cannot be checked.") from None


def _keys_of(
    kinds: Iterable[IdentityKind], request: RequestView, found: RequestIdentities
) -> Generator[Step, Any, list[str]]:
    """Return the keys under which lists of clients may name the client of a request."""
    keys = []
    for kind in kinds:
        identity = take(kind, request, found)
        if isinstance(identity, PendingVerification):
            yield from verified(identity, found)
            identity = take(kind, request, found)
        if isinstance(identity, Identity):
            keys.append(identity.key)
            if identity.kind != kind.name:  # a list may name it by its source, too
                keys.append(f"{kind.name}:{identity.value}")
    return keys


def verified(pending: PendingVerification, found: RequestIdentities) -> Generator[Step, Any, None]:
    """Note the answer of a verification. One that fails counts as None."""
    del found.verified[pending.source]  # if this is cancelled, nobody may await the same answer again
    try:
        found.verified[pending.source] = unwrapped((yield pending.answer))
    except Exception:
        function_errors.note(pending.what, UNIDENTIFIED)
        found.verified[pending.source] = None


def _called(
    function: Callable[[RequestView], Any], request: RequestView, what: str, otherwise: str, value: Any = None
) -> Generator[Step, Any, Any]:
    """Return what the user's function returns, or `value` if it raises. `what` and `otherwise` are for the log: what
    it was called for, and what holds if it fails."""
    try:
        answer = unwrapped(function(request))
        if is_awaitable(answer):
            answer = unwrapped((yield answer))
        return answer
    except Exception:
        function_errors.note(what, otherwise)
        return value


def _cost(rule: Rule, function: Callable[[RequestView], Any], request: RequestView) -> Generator[Step, Any, int]:
    """Return the cost that a function finds. It is never below 1; one that is too large to count is never allowed."""
    value = yield from _called(function, request, f"finding the cost for rule {rule.name}", "it counts as 1", 1)
    try:
        if isinstance(value, float) and not math.isfinite(value):
            return MAX_COUNT
        cost = 0 if isinstance(value, bool) else operator.index(math.ceil(value) if isinstance(value, float) else value)
        return min(max(cost, 1), MAX_COUNT)
    except Exception:
        _log_cost(rule.name, type(value).__name__)
        return 1


@lru_cache(maxsize=256)
def _log_cost(rule: str, given: str) -> None:
    log.error("the cost for rule %s is %s: expected a whole number; it counts as 1", rule, given)
