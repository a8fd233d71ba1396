"""One gate for every framework: a request goes in, `Passed` or `Refused` comes out; settled when its result is known.

Here is all that adapters share, so that the same policy gives the same answers everywhere (law 11). Limits that an
endpoint declares are asked together with the policy's own: one decision, all or nothing, one trip to the storage.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, Unpack

from ratebound import switch
from ratebound.arguments import as_sleep
from ratebound.events import Listener
from ratebound.limit import Limit
from ratebound.policy import AsyncGate, Gate, Policy, PolicyFile, RequestView, Rule, read_policy
from ratebound.policy.model.policy import Switch
from ratebound.policy.model.rule import DEFAULT, Stage
from ratebound.policy.problem import as_texts, nearest, shown
from ratebound.policy.schema import KEYS
from ratebound.web.answer import Passed, Refused, with_headers
from ratebound.web.charge import Charge
from ratebound.web.declared import Endpoint, RouteLimit
from ratebound.web.door import Door, Doors
from ratebound.web.options import AnyPolicy, PolicyOptions, check_options

__all__ = ["AsyncWebGate", "Passed", "Refused", "WebGate", "as_policy", "with_headers"]

log = logging.getLogger("ratebound")

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
UNSETTLED = "what a request has cost could not be settled: what was charged before stays"
UNLISTED = Rule("unlisted", "unlimited", default=True)  # where only endpoints have limits


def as_policy(policy: Any, settings: Mapping[str, Any]) -> Policy | PolicyFile:
    """Return the policy that was given: as an object, a file, a mapping or limits. Limits hold where no endpoint has
    its own. Raises PolicyError for a wrong policy, and TypeError for settings that do not go with it."""
    if "rules" in settings:
        raise TypeError("unknown option 'rules': give the whole policy as one dict, policy={'rules': […], …}")
    check_options(settings)
    is_file = isinstance(policy, os.PathLike) or (isinstance(policy, str) and Path(policy).suffix in SUFFIXES)
    is_tree = isinstance(policy, Mapping) and not is_by_tier(policy, settings.get("tiers", ()))
    if settings and (is_file or is_tree or isinstance(policy, Policy | PolicyFile)):
        raise TypeError(f"{', '.join(settings)}: say it in the policy; settings go with limits as text")
    if isinstance(policy, Policy | PolicyFile):
        return policy
    if is_file:
        return PolicyFile(policy)
    if is_tree:
        return read_policy(policy)
    return Policy(rules=[UNLISTED if policy is None else Rule("default", policy, default=True)], **settings)


def is_by_tier(given: Mapping[Any, Any], tiers: Any) -> bool:
    """Return True for limits by tier, and False for a whole policy. Raises TypeError for what is neither."""
    names = {*as_texts("tiers", tiers if not isinstance(tiers, Mapping) else list(tiers)), DEFAULT}
    if given and given.keys() <= names:
        return True  # a tier may have the name of a policy's key
    if not given or given.keys() & KEYS["policy"]:
        return False
    if all(_is_limits(one) for one in given.values()):
        return True
    name = next(iter(given))
    raise TypeError(
        f"expected a policy with 'rules', or limits by tier like {{'free': '10/minute'}}, not {shown(given)}:"
        f" a policy has no key {shown(name)}, {nearest(name, KEYS['policy'])}"
    )


def _is_limits(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return all(isinstance(one, str | Limit) for one in given)
    return isinstance(given, str | Limit)


class WebGate:
    """Decides for a web framework. `policy` is a Policy, a PolicyFile, the path of a file (read again when it changes),
    a dict with the keys of a file, limits as text or by tier, or None if only endpoints have limits.

    `max_delay` is how many seconds a request is held back at most by a leaky bucket; beyond that it is refused, and
    charged nothing. `charge` says for rules of the policy, by name, what a request has cost when its result is known.
    """

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        storage: Any = None,
        max_delay: float = 1.0,
        charge: Mapping[str, Charge] | None = None,
        deadline: float | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], object] = time.sleep,
        **settings: Unpack[PolicyOptions],
    ) -> None:
        self._sleep = as_sleep(sleep, awaited=False)
        self.gate = Gate(
            as_policy(policy, settings),
            storage=storage,
            deadline=deadline,
            workers=workers,
            max_delay=max_delay,
            listeners=listeners,
        )
        self._doors = Doors(self.gate, charge)
        self.door = self._doors.of  # that of an endpoint, as the policy is now
        self._owns = not hasattr(storage, "evaluate")

    @property
    def policy(self) -> Policy:
        """The policy in force, without what endpoints declare."""
        return self.gate.policy

    @property
    def has_early(self) -> bool:
        """Whether there is anything to ask before anybody is identified."""
        return self._doors.of(None).has_early

    def owns(self, passed: object) -> TypeGuard[Passed]:
        """Whether it was this gate that let the request pass, and not another one around it."""
        return isinstance(passed, Passed) and passed.owner is self.gate

    def prepare(self, endpoint: Endpoint | None) -> None:
        """Raise now for what would be wrong with this endpoint's limits under the policy."""
        self._doors.of(endpoint)

    def check(self, limit: RouteLimit) -> None:
        """Raise now for what would be wrong with a limit under the policy, wherever it will stand."""
        self._doors.check(limit)

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of an endpoint that will not be met again, as of a limit that was made for one request."""
        self._doors.forget(endpoint)

    @property
    def switch(self) -> Switch | None:
        """'on', 'off' or 'shadow' for everything, whatever the policy says; None leaves it to the policy."""
        return self.gate.switch

    @switch.setter
    def switch(self, value: Switch | None) -> None:
        self.gate.switch = value

    def use(self, policy: Policy) -> None:
        """From now on decide by this policy, and by what endpoints declare."""
        self.gate.use(policy)

    def before(
        self,
        view: RequestView,
        endpoint: Endpoint | None = None,
        *,
        stage: Stage | None = None,
        earlier: Passed | None = None,
    ) -> Passed | Refused:
        """Decide. Without a stage: the early one if the policy has early rules, then the late one. `earlier` is what
        the early stage said, if it was asked by itself. Nothing sleeps here."""
        return self.through(self.door(endpoint), view, stage=stage, earlier=earlier)

    def through(
        self, door: Door, view: RequestView, *, stage: Stage | None = None, earlier: Passed | None = None
    ) -> Passed | Refused:
        """`before`, for a door that was looked up: `door.reads_body` says whether the body has to be read first."""
        if not door.has_early and stage != "early" and earlier is None:  # by far the most
            return door.answer(view, [self.gate.decide_by(door.compiled, view, door.last_stage)])
        verdicts = [] if earlier is None else [*earlier.verdicts]
        slept = len(verdicts)
        if verdicts and door.last_stage == "early":
            return _following(door.answer(view, verdicts, slept), earlier)
        if door.asks_early(stage):
            verdicts.append(self.gate.decide_by(door.compiled, view, "early"))
            if stage == "early" or not verdicts[-1].allowed:
                return door.answer(view, verdicts, slept)
        verdicts.append(self.gate.decide_by(door.compiled, view, door.last_stage))
        return _following(door.answer(view, verdicts, slept), earlier)

    def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Refused:
        """Decide by what the endpoint declares, without the rules of the policy, for which it was decided already."""
        door = self._doors.alone(endpoint)
        return door.answer(view, [self.gate.decide_by(door.compiled, view, "late")])

    def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle: the response is complete. Not for one that broke off: what was charged for that stays."""
        for place, costs in _costs(passed, status, sent):
            try:
                passed.verdicts[place] = self.gate.settle(passed.verdicts[place], cost=costs)
            except Exception:
                log.exception(UNSETTLED)

    def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage: the request was refused after all."""
        for verdict in passed.verdicts:
            if verdict.stage == "late":
                try:
                    self.gate.settle(verdict, cost=0)
                except Exception:
                    log.exception(UNSETTLED)

    def sleep(self, passed: Passed) -> None:
        """Hold the request back until its turn has come."""
        if passed.delay and switch.sleeping:
            self._sleep(passed.delay)

    def close(self) -> None:
        """Close the storage, unless it was given as an object."""
        if self._owns:
            self.gate.close()


class AsyncWebGate:
    """`WebGate` for tasks: the same names, with await. See there."""

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        storage: Any = None,
        max_delay: float = 1.0,
        charge: Mapping[str, Charge] | None = None,
        deadline: float | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **settings: Unpack[PolicyOptions],
    ) -> None:
        self._sleep = as_sleep(sleep, awaited=True)
        self.gate = AsyncGate(
            as_policy(policy, settings),
            storage=storage,
            deadline=deadline,
            workers=workers,
            max_delay=max_delay,
            listeners=listeners,
        )
        self._doors = Doors(self.gate, charge)
        self.door = self._doors.of  # that of an endpoint, as the policy is now
        self._owns = not hasattr(storage, "evaluate")

    @property
    def policy(self) -> Policy:
        """The policy in force, without what endpoints declare."""
        return self.gate.policy

    @property
    def has_early(self) -> bool:
        """Whether there is anything to ask before anybody is identified."""
        return self._doors.of(None).has_early

    def owns(self, passed: object) -> TypeGuard[Passed]:
        """Whether it was this gate that let the request pass, and not another one around it."""
        return isinstance(passed, Passed) and passed.owner is self.gate

    def prepare(self, endpoint: Endpoint | None) -> None:
        """Raise now for what would be wrong; see `WebGate.prepare`."""
        self._doors.of(endpoint)

    def check(self, limit: RouteLimit) -> None:
        """Raise now for what would be wrong with a limit under the policy, wherever it will stand."""
        self._doors.check(limit)

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of an endpoint that will not be met again, as of a limit that was made for one request."""
        self._doors.forget(endpoint)

    @property
    def switch(self) -> Switch | None:
        """'on', 'off' or 'shadow' for everything; see `WebGate.switch`."""
        return self.gate.switch

    @switch.setter
    def switch(self, value: Switch | None) -> None:
        self.gate.switch = value

    def use(self, policy: Policy) -> None:
        """From now on decide by this policy; see `WebGate.use`."""
        self.gate.use(policy)

    async def before(
        self,
        view: RequestView,
        endpoint: Endpoint | None = None,
        *,
        stage: Stage | None = None,
        earlier: Passed | None = None,
    ) -> Passed | Refused:
        """Decide; see `WebGate.before`."""
        return await self.through(self.door(endpoint), view, stage=stage, earlier=earlier)

    async def through(
        self, door: Door, view: RequestView, *, stage: Stage | None = None, earlier: Passed | None = None
    ) -> Passed | Refused:
        """`before`, for a door that was looked up; see `WebGate.through`."""
        if not door.has_early and stage != "early" and earlier is None:  # by far the most
            return door.answer(view, [await self.gate.decide_by(door.compiled, view, door.last_stage)])
        verdicts = [] if earlier is None else [*earlier.verdicts]
        slept = len(verdicts)
        if verdicts and door.last_stage == "early":
            return _following(door.answer(view, verdicts, slept), earlier)
        if door.asks_early(stage):
            verdicts.append(await self.gate.decide_by(door.compiled, view, "early"))
            if stage == "early" or not verdicts[-1].allowed:
                return door.answer(view, verdicts, slept)
        verdicts.append(await self.gate.decide_by(door.compiled, view, door.last_stage))
        return _following(door.answer(view, verdicts, slept), earlier)

    async def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Refused:
        """Decide by what the endpoint declares; see `WebGate.alone`."""
        door = self._doors.alone(endpoint)
        return door.answer(view, [await self.gate.decide_by(door.compiled, view, "late")])

    async def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle: the response is complete; see `WebGate.after`."""
        for place, costs in _costs(passed, status, sent):
            try:
                passed.verdicts[place] = await self.gate.settle(passed.verdicts[place], cost=costs)
            except Exception:
                log.exception(UNSETTLED)

    async def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage; see `WebGate.give_back`."""
        for verdict in passed.verdicts:
            if verdict.stage == "late":
                try:
                    await self.gate.settle(verdict, cost=0)
                except Exception:
                    log.exception(UNSETTLED)

    async def sleep(self, passed: Passed) -> None:
        """Hold the request back until its turn has come; the loop goes on."""
        if passed.delay and switch.sleeping:
            await self._sleep(passed.delay)

    async def close(self) -> None:
        """Close the storage, unless it was given as an object."""
        if self._owns:
            await self.gate.close()


def _costs(passed: Passed, status: int, sent: int) -> list[tuple[int, list[int]]]:
    try:
        return passed.costs(status, sent)
    except Exception:
        log.exception(UNSETTLED)
        return []


def _following(answer: Passed | Refused, earlier: Passed | None) -> Passed | Refused:
    if earlier is not None and isinstance(answer, Passed):
        answer.follow(earlier)
    return answer
