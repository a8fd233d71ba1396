"""The policy's rules with those that an endpoint declares, as one gate; over one storage for all endpoints."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ratekeeper.policy import Policy, RequestView, Verdict
from ratekeeper.web.answer import Passed, Refused, refusal
from ratekeeper.web.charge import Charge, Outcome, charge_function
from ratekeeper.web.declared import Endpoint, RouteLimit, with_defaults

log = logging.getLogger("ratekeeper")


class Door:
    """The gate for one endpoint: the policy's rules with those that the endpoint declares."""

    __slots__ = (
        "breaches",
        "charges",
        "gate",
        "has_early",
        "last_stage",
        "limits",
        "own",
        "owner",
        "policy",
        "reads_body",
    )

    def __init__(
        self, owner: object, gate: Any, policy: Policy, endpoint: Endpoint | None, charges: Mapping[str, Any]
    ) -> None:
        self.owner = owner
        self.gate = gate
        self.policy = policy
        self.reads_body: bool = gate.policy.reads_body
        self.last_stage = "early" if endpoint is not None and endpoint.exempt else "late"
        self.has_early = self.last_stage == "late" and any(rule.stage == "early" for rule in policy.rules)
        pairs = [] if endpoint is None else list(zip(endpoint.rules, endpoint.limits, strict=True))
        self.own = [rule.name for rule, _ in pairs]
        self.limits = [limit for _, limit in pairs]
        self.breaches = {rule.name: limit.on_breach for rule, limit in pairs if limit.on_breach is not None}
        own = {rule.name: limit.charged for rule, limit in pairs if limit.charged is not None}
        self.charges: Mapping[str, Callable[[Outcome], int]] = {**charges, **own}

    def asks_early(self, stage: str | None) -> bool:
        return self.has_early if stage is None else stage == "early"

    def answer(self, view: RequestView, *verdicts: Verdict) -> Passed | Refused:
        """By the last of the verdicts; those before it have passed."""
        if not verdicts[-1].allowed:
            return refusal(verdicts[-1], view, self.breaches)
        return Passed(verdicts, view, owner=self.owner, charges=self.charges, limits=self.limits, own=self.own)


class Doors:
    """A door for each endpoint that was met, all over one storage; made anew when the policy changes."""

    def __init__(self, gate: Any, impatient: Any, charge: Mapping[str, Charge] | None, listeners: Any) -> None:
        self.gate = gate
        self._kind, self._storage, self._listeners = type(gate), gate.storage, listeners
        self._impatient = impatient  # the same storage, for policies that have queues
        self._charges = {name: charge_function(one) for name, one in (charge or {}).items()}
        unknown = self._charges.keys() - {rule.name for rule in gate.policy.rules}
        if unknown:
            raise ValueError(f"charge for {', '.join(sorted(unknown))}: the policy has no rule of that name")
        self._doors: dict[tuple[Endpoint | None, bool], Door] = {}
        self._named: dict[str, RouteLimit] = {}
        self.of(None)

    def of(self, endpoint: Endpoint | None, alone: bool = False) -> Door:
        """`alone` leaves out the rules of the policy."""
        policy = self.gate.policy
        door = self._doors.get((endpoint, alone))
        if door is None or door.policy is not policy:
            door = self._doors[endpoint, alone] = self._renewed(door, policy, endpoint, alone)
        if door.gate.switch != self.gate.switch:
            door.gate.switch = self.gate.switch
        return door

    def _renewed(self, old: Door | None, policy: Policy, endpoint: Endpoint | None, alone: bool) -> Door:
        """A new policy that does not go with what an endpoint declares leaves the old one in force there."""
        try:
            return self._made(policy, endpoint, alone)
        except ValueError:
            if old is None:
                raise
            log.exception("the new policy does not go with %r: there the old one stays in force", endpoint)
            old.policy = policy
            return old

    def _made(self, policy: Policy, endpoint: Endpoint | None, alone: bool) -> Door:
        if endpoint is None or not endpoint.rules:
            self.gate.storage = self._impatient if may_queue(policy) else self._storage
            return Door(self.gate, self.gate, policy, endpoint, self._charges)
        self._check_names(endpoint)
        kept = [with_defaults(rule) if endpoint.keep_defaults else rule for rule in policy.rules]
        overrides = policy.overrides
        if alone:
            kept, overrides = [], [one for one in overrides if not one.rules]
        # In front: a final rule of the policy must not set free what the endpoint limits.
        rules = [*endpoint.rules, *kept]
        joined = replace(
            policy, rules=rules, overrides=overrides, headers=policy.response_headers, refusal=policy.rejection
        )
        gate = self._kind(joined, storage=self._storage, listeners=self._listeners)
        gate.storage = self._impatient if may_queue(joined) else self._storage
        return Door(self.gate, gate, policy, endpoint, {} if alone else self._charges)

    def _check_names(self, endpoint: Endpoint) -> None:
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            known = self._named.setdefault(rule.name, limit)
            if known is not limit and not (limit.name and known.limits == limit.limits):
                raise ValueError(f"two limits are named {rule.name!r} and would share one quota: give one a name=")


def may_queue(policy: Policy) -> bool:
    """Whether a request may have to wait for its turn: there is a leaky bucket, or limits that are not known yet."""
    if any(override.limits is not None for override in policy.overrides):
        return True
    return any(
        rule.computed is not None
        or any(limit.queues for plan in rule.plans.values() if isinstance(plan, tuple) for limit in plan)
        for rule in policy.rules
    )
