"""The policy's rules with those that an endpoint declares, made ready as one policy; all are asked of one gate."""

import logging
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from ratebound.policy import RequestView, Verdict
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.web.answer import Passed, Refused, Terms, delay_of, refusal
from ratebound.web.charge import Charge, Outcome, charge_function
from ratebound.web.declared import Endpoint, RouteLimit
from ratebound.web.user import rules_by_user_alone

log = logging.getLogger("ratebound")

MAX_PREPARED = 4096  # endpoints that are made ready for a new policy before it is in force


class Users:
    """What was seen of users by all doors of one gate: whether a request had one, and the rules by user that were asked
    without one."""

    __slots__ = ("anonymous", "are_known", "warned")

    def __init__(self) -> None:
        self.are_known = False
        self.anonymous: dict[str, int] = {}  # requests by the name of a rule
        self.warned: set[str] = set()


class Door:
    """All that holds for one endpoint. `base` is the policy in force without what the endpoint declares. `looks` says
    whether the framework's own request may be looked at: by functions of the application, or to find out why no user is
    known."""

    __slots__ = (
        "_breaches",
        "_by_user",
        "_users",
        "answer",
        "base",
        "compiled",
        "has_early",
        "last_stage",
        "looks",
        "may_queue",
        "reads_body",
        "terms",
    )

    def __init__(
        self,
        owner: object,
        base: CompiledPolicy,
        compiled: CompiledPolicy,
        endpoint: Endpoint | None,
        charges: Mapping[str, Callable[[Outcome], int]],
        users: Users,
    ) -> None:
        self.base = base
        self.compiled = compiled
        self.reads_body = compiled.policy.reads_body  # then MAX_BODY + 1 bytes of it at most are read first
        self.may_queue = compiled.may_queue
        self.last_stage = "early" if endpoint is not None and endpoint.exempt else "late"
        self.has_early = self.last_stage == "late" and base.has_early
        pairs = [] if endpoint is None else list(zip(endpoint.rules, endpoint.limits, strict=True))
        self._breaches = {rule.name: limit.on_breach for rule, limit in pairs if limit.on_breach is not None}
        own = {rule.name: limit.charged for rule, limit in pairs if limit.charged is not None}
        names = [rule.name for rule, _ in pairs]
        self.terms = Terms(owner, [limit for _, limit in pairs], names, {**charges, **own})
        self._by_user = rules_by_user_alone(compiled.policy)
        self.looks = bool(self._by_user) or any(True for _ in compiled.functions())
        self._users = users
        self.answer: Callable[..., Passed | Refused] = self._checked_answer if self._by_user else self._answer

    def asks_early(self, stage: str | None) -> bool:
        return self.has_early if stage is None else stage == "early"

    def _checked_answer(self, view: RequestView, verdicts: list[Verdict], slept: int = 0) -> Passed | Refused:
        """`answer`, where rules count by users only. Warn once of each rule if no user can be known."""
        users = self._users
        if view.user is not None:
            users.are_known = True
        elif not users.are_known:
            verdict = verdicts[-1]
            for rule in (*verdict.asked, *(shadow.rule for shadow in verdict.shadows)):
                if rule.name in self._by_user and rule.name not in users.warned and (reason := view.no_user):
                    asked = users.anonymous[rule.name] = users.anonymous.get(rule.name, 0) + 1
                    if asked < view.anonymous:
                        continue
                    users.warned.add(rule.name)
                    log.warning(
                        "the limit %r counts by user, but here it counts by address, and users behind one address share"
                        " it: %s. If that is what you want, write key=['user', 'address']",
                        rule.name,
                        reason,
                    )
        return self._answer(view, verdicts, slept)

    def _answer(self, view: RequestView, verdicts: list[Verdict], slept: int = 0) -> Passed | Refused:
        """By the last of the verdicts; those before it have passed, and `slept` of them were waited for."""
        if not verdicts[-1].allowed:
            return refusal(verdicts[-1], view, self._breaches)
        return Passed(verdicts, self.terms, delay_of(verdicts[slept:]) if self.may_queue else 0.0, view.is_scripted)


class Doors:
    """A door for each endpoint that was met, all of one gate; made anew when the policy changes."""

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
            raise ValueError(f"charge for {', '.join(sorted(unknown))}: the policy has no rule of that name")
        self._doors: dict[Endpoint | None, Door] = {}
        self._alone: dict[Endpoint | None, Door] = {}
        self._prepared: dict[tuple[Endpoint | None, bool], Door] = {}  # for the policy that was loaded last
        self._named: dict[str, RouteLimit] = {}
        self._users = Users()
        self._good = self._current()  # the last policy that went with what an endpoint declares
        self.of(None)
        gate.before_new_policy(self._prepare)

    def of(self, endpoint: Endpoint | None = None) -> Door:
        """That of an endpoint, as the policy is now."""
        base = self._current()
        door = self._doors.get(endpoint)
        if door is None or door.base is not base:
            door = self._doors[endpoint] = self._renewed(door, base, endpoint, False)
        return door

    def alone(self, endpoint: Endpoint) -> Door:
        """The same without the rules of the policy."""
        base = self._current()
        door = self._alone.get(endpoint)
        if door is None or door.base is not base:
            door = self._alone[endpoint] = self._renewed(door, base, endpoint, True)
        return door

    def check(self, limit: RouteLimit) -> None:
        """Raise ValueError for a limit that does not go with the policy, wherever it will stand."""
        endpoint = Endpoint("limit", [replace(limit, name="")])
        try:
            self._made(self._current(), endpoint, True)
        finally:
            self.forget(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of an endpoint that will not be met again."""
        self._doors.pop(endpoint, None)
        self._alone.pop(endpoint, None)
        for alone in (False, True):
            self._prepared.pop((endpoint, alone), None)
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            if self._named.get(rule.name) is limit:
                del self._named[rule.name]

    def _prepare(self, base: CompiledPolicy) -> None:
        """Make the doors of all endpoints for a policy that will be in force: no request has to."""
        tables = {False: self._doors, True: self._alone}
        met = [(endpoint, alone, door) for alone, doors in tables.items() for endpoint, door in list(doors.items())]
        self._prepared = {
            (endpoint, alone): self._renewed(door, base, endpoint, alone)
            for endpoint, alone, door in met[:MAX_PREPARED]
        }

    def _renewed(self, old: Door | None, base: CompiledPolicy, endpoint: Endpoint | None, alone: bool) -> Door:
        """A new policy that does not go with what an endpoint declares leaves the one before it in force there; for an
        endpoint that was not met before, the last one that goes with any."""
        prepared = self._prepared.get((endpoint, alone))
        if prepared is not None and prepared.base is base:
            return prepared
        try:
            door = self._made(base, endpoint, alone)
        except ValueError as error:
            if old is None:
                if self._good is base:
                    raise
                old = self._made(self._good, endpoint, alone)
            log.error("the new policy does not go with %r: there the old one stays in force", endpoint, exc_info=error)
            kept = copy(old)  # a request may look at the old one, whose policy is still in force
            kept.base = base
            return kept
        if endpoint is not None and endpoint.rules:
            self._good = base
        return door

    def _made(self, base: CompiledPolicy, endpoint: Endpoint | None, alone: bool) -> Door:
        if endpoint is None or not endpoint.rules:
            return Door(self.gate, base, base, endpoint, self._charges, self._users)
        self._check_names(endpoint)
        ready = self.gate.layered(base, endpoint.rules, alone=alone, keep_defaults=endpoint.keep_defaults)
        charges = {} if alone else self._charges
        return Door(self.gate, base, ready, endpoint, charges, self._users)

    def _check_names(self, endpoint: Endpoint) -> None:
        for rule, limit in zip(endpoint.rules, endpoint.limits, strict=True):
            known = self._named.setdefault(rule.name, limit)
            if known is not limit and not (limit.name and known.limits == limit.limits):
                what = (
                    "have different limits: make them equal, or give one another name"
                    if limit.name
                    else ("would share one quota: give one a name=")
                )
                raise ValueError(f"two limits are named {rule.name!r}, and {what}")
