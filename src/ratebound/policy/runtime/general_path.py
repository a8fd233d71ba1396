"""From a request to what a storage is asked, and from its answer to a verdict. Written once, for threads and tasks.

`deliberate` is a generator: it yields what has to be waited for, the groups for the storage or an awaitable of the
user's own functions, and is sent the answer. Nothing in it does I/O.
"""

import logging
import math
import operator
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ratebound.decision import Decision, Row
from ratebound.errors import StorageError
from ratebound.http.client_ip import ClientAddress
from ratebound.limit import MAX_COUNT, Ask, Group
from ratebound.policy.function_errors import function_errors
from ratebound.policy.functions import is_awaitable, unwrapped
from ratebound.policy.identity.identify import (
    UNIDENTIFIED,
    IdentityKind,
    PendingVerification,
    RequestIdentities,
    resolve,
    take,
)
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.index import Index
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.model.client_list import ClientList
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import DEFAULT, Plan, Rule
from ratebound.policy.runtime.compiled_rules import (
    CompiledExemption,
    CompiledRule,
    CompiledStage,
    may_queue,
    plan_of,
    with_failure_cached,
)
from ratebound.policy.runtime.fast_path import Asked, FastPath, is_exempt, readings_of
from ratebound.policy.runtime.verdict import Grounds, Shadow, Verdict

log = logging.getLogger("ratebound")

Step = list[Group] | Awaitable[Any]
Deliberation = Generator[Step, Any, Verdict]


class RequestCase:
    """What is asked for one request: by the rules that are enforced, together; by each shadow, for itself."""

    __slots__ = ("asks", "identities", "rules", "shadows")

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.rules: list[Rule] = []
        self.identities: list[Identity] = []
        self.shadows: list[tuple[Rule, bool, Identity, Ask | None]] = []

    def add(self, rule: Rule, who: Identity, plan: Plan, cost: int) -> None:
        if not isinstance(plan, str):
            self.asks.append((who.key, plan, cost, None, None))
            self.rules.append(rule)
            self.identities.append(who)

    def add_shadow(self, rule: Rule, who: Identity, plan: Plan, cost: int, *, candidate: bool) -> None:
        if plan != "unlimited":
            ask = None if plan == "deny" else (who.key, plan, cost, None, None)
            self.shadows.append((rule, candidate, who, ask))

    def groups(self) -> list[Group]:
        groups: list[Group] = [self.asks] if self.asks else []
        return groups + [(ask,) for *_, ask in self.shadows if ask is not None]

    def verdict(self, policy: Policy, stage: str, client: ClientAddress, answers: Iterator[Sequence[Row]]) -> Verdict:
        decision = Decision(self.asks, next(answers)) if self.asks else None
        shadows = [
            Shadow(rule, candidate, who, None if ask is None else Decision((ask,), next(answers)))
            for rule, candidate, who, ask in self.shadows
        ]
        grounds = Grounds("unlimited" if decision is None else "limited", policy, stage, self.rules)
        allowed = decision is None or decision.allowed
        return Verdict(grounds, client, allowed, decision, self.identities, tuple(shadows))


class CompiledPolicy:
    """A policy made ready: all that can be computed before the first request is computed here."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.bounds = [
            CompiledRule(rule, place, policy.rule_by[rule.name], policy.failure, policy.counter_windows[rule.name])
            for place, rule in enumerate(policy.rules)
        ]
        self.stages = {
            stage: CompiledStage([bound for bound in self.bounds if bound.rule.stage == stage])
            for stage in ("early", "late")
        }
        self.has_early = any(bound.rule.stage == "early" for bound in self.bounds)
        self.exempt: Index[CompiledExemption] = Index(
            CompiledExemption(match, place) for place, match in enumerate(policy.exempt)
        )
        self.block = ClientList([(client, client) for client in policy.block], policy.kinds)
        self.allow = ClientList([(client, client) for client in policy.allow], policy.kinds)
        lists = (self.block, self.allow, policy.members, policy.overridden)
        self.listed: list[IdentityKind] = list(
            {name: kind for one in lists for name, kind in one.kinds.items()}.values()
        )
        self.has_clients = not all(one.empty for one in lists)
        lines = {name: FastPath(policy, name, stage, self.exempt) for name, stage in self.stages.items()}
        is_plain = policy.switch == "on" and not self.has_clients
        self._lines = {name: line for name, line in lines.items() if is_plain and line.is_open}
        self.may_queue = may_queue(policy)
        for bound in self.bounds:
            for plan in bound.plans.values():
                if isinstance(plan, tuple):
                    policy.response_headers.prepare(plan)

    def functions(self) -> Iterator[Callable[..., Any]]:
        """The user's own functions: an AsyncGate may await them, a Gate cannot."""
        kinds = [kind for bound in self.bounds for parts in bound.by for kind in parts]
        for kind in [*kinds, *self.listed, *(kind for parts in self.policy.alternatives for kind in parts)]:
            yield from kind.functions
        for bound in self.bounds:
            if callable(bound.rule.cost):
                yield bound.rule.cost
            if bound.rule.computed is not None:
                yield bound.rule.computed.function

    def asks_early(self, request: RequestView) -> bool:
        """Whether there are early rules that this request has not passed."""
        found = request.found
        return self.has_early and not (
            isinstance(found, RequestIdentities) and found.owner is self and found.passed_early
        )

    def passed_early(self, request: RequestView, verdict: Verdict) -> None:
        """Note it. A request that was not looked at is not passed: its `found` is missing, or of another policy."""
        found = request.found
        if verdict.allowed and isinstance(found, RequestIdentities) and found.owner is self:
            found.passed_early = True

    def straight(self, request: RequestView, stage: str) -> tuple[Grounds, Asked] | None:
        """All that a verdict is made of but the storage's answer; None if it takes `deliberate`."""
        line = self._lines.get(stage)
        matched = None if line is None else line.find(request)
        if matched is None:
            return None
        asked = matched.known.get(request.peer) if request.user is None or not matched.by_user else None
        if asked is None:
            asked = matched.asks(request, self._client(request), self, is_peer=not self.policy.proxies.believes)
            if asked is None:
                return None
        if self.has_early:
            request.found = RequestIdentities(self, asked[0])
        return matched.grounds, asked

    def deliberate(self, request: RequestView, stage: str, switch: str) -> Deliberation:
        """Decide one request at one stage, whatever it takes."""
        policy = self.policy
        if switch == "off":
            return Verdict(Grounds("off", policy, stage), None)
        client = self._client(request)
        found = request.found = RequestIdentities(self, client)
        readings = readings_of(request)
        methods = methods_of(request)
        if policy.exempt and is_exempt(self.exempt, request, readings, methods, client):
            return Verdict(Grounds("exempt", policy, stage), client)
        if self.has_clients:
            if stage == "late" and self.listed:
                yield from self._look_up(request, found)
            if self.block.find(found.keys, client.ip):
                return Verdict(Grounds("block", policy, stage), client, switch == "shadow")
            if self.allow.find(found.keys, client.ip):
                return Verdict(Grounds("allow", policy, stage), client)
            found.overrides = policy.overridden.find(found.keys, client.ip)
        rules = self.stages[stage]
        tier = (yield from self.tier(request, found, None)) if rules.wants_tier else None
        bounds = rules.applying(request, readings, methods, client.ip, tier)
        if not bounds:
            return Verdict(Grounds("unmatched", policy, stage), client)
        case = RequestCase()
        for bound in bounds:
            rule = bound.rule
            who = resolve(bound.by, request, found, rule.name)
            while isinstance(who, PendingVerification):
                yield from _verified(who, found)
                who = resolve(bound.by, request, found, rule.name)
            assert who is not None  # the address is always there
            plan = bound.flat
            if plan is None or found.overrides:
                plan = yield from self._plan(bound, request, found, who)
            in_shadow = rule.mode == "shadow" or switch == "shadow"
            if plan == "deny" and not in_shadow:
                return Verdict(Grounds("deny", policy, stage, (rule,)), client, False, identities=(who,))
            cost = rule.cost
            if not isinstance(cost, int):
                cost = yield from _cost(rule, cost, request)
            if in_shadow:
                case.add_shadow(rule, who, plan, cost, candidate=False)
            else:
                case.add(rule, who, plan, cost)
            if bound.candidates:
                plan = yield from self._of_tier(bound.candidates, request, found, who)
                case.add_shadow(rule, who, plan, cost, candidate=True)
        groups = case.groups()
        if not groups:
            return case.verdict(policy, stage, client, iter(()))
        try:
            answers = yield groups
        except StorageError:
            if case.asks:
                raise
            log.exception("the storage failed where everything is in shadow; the request goes ahead")
            return Verdict(Grounds("unlimited", policy, stage), client)
        return case.verdict(policy, stage, client, iter(answers))

    def note_client(self, request: RequestView) -> ClientAddress:
        """Find the client's address, and note it for `request.address`: for functions called before a decision."""
        client = self._client(request)
        request.found = RequestIdentities(self, client)
        return client

    def _client(self, request: RequestView) -> ClientAddress:
        """The address is the same in both stages, but who it is may be known only in the late one."""
        before = request.found
        if before is not None and isinstance(before, RequestIdentities) and before.owner is self:
            return before.client
        proxies = self.policy.proxies
        return proxies.client_address(request.peer, request.headers if proxies.believes else ())

    def _look_up(self, request: RequestView, found: RequestIdentities) -> Generator[Step, Any, None]:
        """Find the identities of which a list may say something."""
        keys = []
        for kind in self.listed:
            identity = take(kind, request, found)
            if isinstance(identity, PendingVerification):
                yield from _verified(identity, found)
                identity = take(kind, request, found)
            if isinstance(identity, Identity):
                keys.append(identity.key)
                if identity.kind != kind.name:  # a list may name it by its source, too
                    keys.append(f"{kind.name}:{identity.value}")
        found.keys = keys

    def _plan(
        self, bound: CompiledRule, request: RequestView, found: RequestIdentities, who: Identity
    ) -> Generator[Step, Any, Plan]:
        rule = bound.rule
        for _, plans in found.overrides:
            if rule.name in plans:
                return with_failure_cached(plans[rule.name], bound.failure)
        if bound.flat is not None:
            return bound.flat
        if rule.computed is not None:
            what, otherwise = f"finding the limits of rule {rule.name}", "its other limits hold"
            value = yield from _called(rule.computed.function, request, what, otherwise)
            try:
                if value is not None:
                    return with_failure_cached(rule.plan(value, bound.wide), bound.failure)
            except Exception:  # whatever it is that the function gave
                function_errors.note(f"using the limits found for rule {rule.name}", otherwise)
        return (yield from self._of_tier(bound.plans, request, found, who))

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
        """By what is said of this client; else by the identity that the rule counts by; else by the first of the
        policy's own identities that has a tier; else the default."""
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
                yield from _verified(identity, found)
                identity = resolve((parts,), request, found)
            if identity is not None and identity.tier is not None:
                if identity.tier in policy.tier_names:
                    return identity.tier
                _warn_of_tier("+".join(kind.name for kind in parts), identity.tier, ", ".join(policy.tier_names))
        return policy.default_tier


@lru_cache(maxsize=64)
def _warn_of_tier(source: str, tier: str, known: str) -> None:
    log.error(
        "identifying by %s gave the tier %r; the client counts as having none. The tiers of the policy: known are %s",
        source,
        tier,
        known or "none",
    )


def _verified(pending: PendingVerification, found: RequestIdentities) -> Generator[Step, Any, None]:
    try:
        found.verified[pending.source] = unwrapped((yield pending.answer))
    except Exception:
        function_errors.note(pending.what, UNIDENTIFIED)
        found.verified[pending.source] = None


def _called(
    function: Callable[[RequestView], Any], request: RequestView, what: str, otherwise: str, value: Any = None
) -> Generator[Step, Any, Any]:
    """What the user's function says, `value` if it fails: `otherwise` says what holds then, for the log."""
    try:
        answer = unwrapped(function(request))
        if is_awaitable(answer):
            answer = unwrapped((yield answer))
        return answer
    except Exception:
        function_errors.note(what, otherwise)
        return value


def _cost(rule: Rule, function: Callable[[RequestView], Any], request: RequestView) -> Generator[Step, Any, int]:
    """A cost that no client can turn against us: never below 1, and what is beyond counting never passes."""
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
