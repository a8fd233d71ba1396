"""Gates for web frameworks: a request goes in, `Passed` or `Rejected` comes out; settled when its result is known.

The same policy gives the same answers in every adapter (law 11). Limits that an endpoint declares are checked together
with the policy's own: one decision, all or nothing, one trip to the storage.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, Unpack

from ratebound.adaptive.in_flight import InFlight
from ratebound.arguments import as_sleep
from ratebound.duration import Duration
from ratebound.events import Listener
from ratebound.flow import run, run_async
from ratebound.limit import Limit
from ratebound.policy import AsyncGate, Gate, Policy, PolicyFile, PolicyUrl, RequestView, Rule, read_policy
from ratebound.policy.load.url_text import is_url
from ratebound.policy.model.charge_by_result import Charge
from ratebound.policy.model.policy import Switch
from ratebound.policy.model.rule import DEFAULT, Stage
from ratebound.policy.problem import as_texts, nearest, shown
from ratebound.policy.runtime.compiled_rules import CompiledRule
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.policy.runtime.operator_documents import Change
from ratebound.policy.runtime.operator_overrides import ClientOverride
from ratebound.policy.runtime.operator_switches import RuleSwitch, SwitchState
from ratebound.policy.runtime.policy_url import FollowedPolicy
from ratebound.policy.runtime.usage import RuleAsk
from ratebound.policy.schema import KEYS
from ratebound.slots import Holder
from ratebound.switch import switch
from ratebound.usage import Usage
from ratebound.web.endpoint_rules_table import EndpointRulesTable
from ratebound.web.load_meter import LoadMeter
from ratebound.web.options import AnyPolicy, PolicyOptions, check_options
from ratebound.web.passed import Passed
from ratebound.web.plain_path import PlainPath
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.usage_page import asks_of
from ratebound.web.visit import check_rules, give_back, release_slots, settle

log = logging.getLogger("ratebound")

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
DECIDE_BY = (Gate.decide_by, AsyncGate.decide_by)
UNLISTED = Rule("unlisted", "unlimited", default=True)  # where only endpoints have limits


def as_policy(policy: Any, settings: Mapping[str, Any]) -> Policy | FollowedPolicy:
    """Return the policy that was given: as an object, a file, a URL, a mapping or limits. Limits apply where no
    endpoint has its own. Raises PolicyError for a wrong policy, FetchError for one that cannot be fetched, and
    TypeError for settings that do not go with it."""
    if "rules" in settings:
        raise TypeError("unknown option 'rules': give the whole policy as one dict, policy={'rules': […], …}")
    check_options(settings)
    is_file = (
        is_url(policy)
        or isinstance(policy, os.PathLike)
        or (isinstance(policy, str) and Path(policy).suffix in SUFFIXES)
    )
    is_tree = isinstance(policy, Mapping) and not is_by_tier(policy, settings.get("tiers", ()))
    if settings and (is_file or is_tree or isinstance(policy, Policy | FollowedPolicy)):
        raise TypeError(f"{', '.join(settings)}: write it in the policy; settings go with limits as text")
    if isinstance(policy, Policy | FollowedPolicy):
        return policy
    if is_file:
        return PolicyUrl(policy) if is_url(policy) else PolicyFile(policy)
    if is_tree:
        return read_policy(policy)
    return Policy(rules=[UNLISTED if policy is None else Rule("default", policy, default=True)], **settings)


def is_by_tier(given: Mapping[Any, Any], tiers: Any) -> bool:
    """Return True for limits by tier, and False for a whole policy. Raises TypeError if it is neither."""
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


class _GateBase:
    """The part of a web gate that does no I/O, for threads and tasks alike."""

    gate: Any

    def __init__(self, gate: Any, charge: Mapping[str, Charge] | None, storage: Any) -> None:
        self.gate = gate
        self.current = gate.current  # the policy in force, compiled
        self.settle_each = gate.settle_each
        self.undo = gate.undo
        self.release_slots = gate.release
        self.operators_name_users = gate.operators_name_users
        self._table = EndpointRulesTable(gate, charge)
        self.plain = PlainPath(gate._source, gate.current, gate._decider.fast_path, self._table.full)
        self.decide_by = gate.decide_by
        self.plain.is_open = type(gate).decide_by in DECIDE_BY  # else somebody has replaced it
        self.rules_for = self._table.of  # an endpoint's rules, under the policy in force
        self.rules_alone = self._table.alone
        self._closes = not hasattr(storage, "evaluate")
        concurrent = gate.policy.concurrent
        self.meter = None if concurrent is None else LoadMeter(gate, InFlight(**concurrent))
        self.figures: Any = None  # that its dashboards show; None if it has no dashboard
        self.read_endpoints: Callable[[], object] = lambda: None  # set by adapters that know endpoints in advance

    @property
    def decide_by(self) -> Callable[..., Any]:
        """The gate's own `decide_by`. Another one that is set decides all requests."""
        return self._decide_by

    @decide_by.setter
    def decide_by(self, decide_by: Callable[..., Any]) -> None:
        self._decide_by = decide_by
        self.plain.is_open = False

    @property
    def policy(self) -> Policy:
        """The policy in force, without the limits of endpoints."""
        return self.gate.policy  # type: ignore[no-any-return]

    @property
    def has_early(self) -> bool:
        """True if the policy has rules that are checked before anybody is identified."""
        return self.rules_for(None).has_early

    def owns(self, passed: object) -> TypeGuard[Passed]:
        """Return True if this gate let the request pass, and not another one around it."""
        return isinstance(passed, Passed) and passed.terms.owner is self.gate

    def known_rules(self, *, callable_now: bool = False) -> list[CompiledRule]:
        """Return the rules of the policy and of all endpoints that are known, each name once; see `all_rules` of
        EndpointRulesTable."""
        self.read_endpoints()
        return self._table.all_rules(callable_now=callable_now)

    def asks_of(self, answer: object) -> list[RuleAsk]:
        """Return the asks that show the usage of the limits that a request was checked against. Raises RuntimeError if
        this gate has not checked it."""
        if isinstance(answer, Rejected) or self.owns(answer):
            return asks_of(answer)
        raise RuntimeError("these limits have not checked this request: install them in the application around it")

    def problem_of(self, entry: Block | ClientOverride | RuleSwitch) -> str:
        """Return why an operator's measure has no effect, or not on all rules; see `Gate.problem_of`."""
        return self.gate.problem_of(entry, known=self.known_rules())  # type: ignore[no-any-return]

    def hold_slots(self, passed: Passed) -> None:
        """Renew the slots of a request until they are released."""
        passed.held = [held for verdict in passed.slots for held in self.gate.hold(verdict)]

    def prepare(self, endpoint: Endpoint | None) -> None:
        """Raise ValueError if an endpoint's limits cannot be combined with the policy."""
        self.rules_for(endpoint)

    def check(self, limit: RouteLimit) -> None:
        """Raise ValueError if a limit cannot be combined with the policy, wherever it will stand."""
        self._table.check(limit)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop an endpoint that will not be met again, for example one made for a single request."""
        self._table.forget(endpoint)

    def release(self, endpoint: Endpoint) -> None:
        """Drop the rules of an endpoint that will not be met again. The names of its limits stay taken."""
        self._table.release(endpoint)

    @property
    def switch(self) -> Switch | None:
        """'on', 'off' or 'shadow' for everything, whatever the policy says; None leaves it to the policy."""
        return self.gate.switch  # type: ignore[no-any-return]

    @switch.setter
    def switch(self, value: Switch | None) -> None:
        self.gate.switch = value

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on, as if it had been among `listeners`."""
        self.gate._decider.listen(listener)

    def use(self, policy: Policy) -> None:
        """Decide by this policy from now on, and by the limits of endpoints."""
        self.gate.use(policy)


def flush_listeners(listeners: Iterable[Listener]) -> None:
    """Call `flush` of the listeners that have it, such as a Ledger. Log exceptions.

    The end of an application is the last chance: uvicorn, for one, ends by its signal, without running atexit.
    """
    for listener in listeners:
        flush = getattr(listener, "flush", None)
        if callable(flush):
            try:
                flush()
            except Exception as error:
                log.warning("a listener could not be flushed as the application ended: %s", error)


class WebGate(_GateBase):
    """A gate for a web framework. `policy` is a Policy, a PolicyFile, the path of a file (read again when it changes),
    a PolicyUrl, the URL of a policy (fetched again and again), a dict with the keys of a file, limits as text or by
    tier, or None if only endpoints have limits.

    `max_delay` is how many seconds a request is held back at most by a leaky bucket; beyond that it is rejected, and
    charged nothing. `charge` gives rules of the policy, by name, a cost that depends on the result of a request.
    """

    gate: Gate

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        storage: Any = None,
        max_delay: Duration = 1.0,
        charge: Mapping[str, Charge] | None = None,
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], object] = time.sleep,
        **settings: Unpack[PolicyOptions],
    ) -> None:
        self._sleep = as_sleep(sleep, awaited=False)
        gate = Gate(
            as_policy(policy, settings),
            storage=storage,
            deadline=deadline,
            workers=workers,
            max_delay=max_delay,
            listeners=listeners,
        )
        super().__init__(gate, charge, storage)

    def before(
        self,
        view: RequestView,
        endpoint: Endpoint | None = None,
        *,
        stage: Stage | None = None,
        earlier: Passed | None = None,
    ) -> Passed | Rejected:
        """Decide. Without a stage: the early one if the policy has early rules, then the late one. `earlier` is the
        result of the early stage, if that was checked by itself; it is returned with the new decision joined to it.
        Nothing sleeps here. If `rules_for(endpoint).reads_body`, read the body into the view first. Call `leave` at the
        end of the response."""
        return run(check_rules(self, self.rules_for(endpoint), view, stage, earlier))

    def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Rejected:
        """Decide by the endpoint's own limits, without the rules of the policy, which were checked already. Slots are
        not held."""
        rules = self.rules_alone(endpoint)
        answer = rules.answer(view, [self.decide_by(rules.compiled, view, "late")])
        if isinstance(answer, Passed) and answer.slots:
            self.leave(answer)
        return answer

    def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle a complete response. What was charged for one that broke off stays charged."""
        run(settle(self, passed, status, sent))

    def leave(self, passed: Passed) -> None:
        """Release the slots of a request: its response has ended, or has broken off."""
        run(release_slots(self, passed))

    def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage, and release all slots: the request was rejected after all."""
        run(give_back(self, passed))

    def usage(self, view: RequestView) -> list[Usage]:
        """Return the usage of all limits that count the client of this request, on any request; see `Gate.usage`."""
        return self.gate.usage(view, all_rules=True, rules=self.known_rules(callable_now=True))

    def usage_after(self, answer: object) -> list[Usage]:
        """Return the usage of the limits that a request was checked against, from its Passed or Rejected."""
        return self.gate.read_usage(self.asks_of(answer))

    def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client, endpoints' own included; see `Gate.usage_of`."""
        return self.gate.usage_of(identity, rule=rule, tier=tier, rules=self.known_rules())

    def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the present windows of its quotas; see `Gate.grant`."""
        return self.gate.grant(identity, units, rule=rule, tier=tier, rules=self.known_rules())

    def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent, of limits of endpoints too; see `Gate.reset`."""
        self.gate.reset(identity, rule=rule, rules=self.known_rules())

    def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now, of limits of endpoints too; see `Gate.holders`."""
        return self.gate.holders(identity, rule=rule, rules=self.known_rules())

    def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `limits.block("user:42", "1 hour")`; see `Gate.block`."""
        return self.gate.block(client, for_, reason, by=by)

    def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`."""
        return self.gate.unblock(client, by=by)

    def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`."""
        return self.gate.blocks()

    def override(
        self,
        client: str,
        *,
        limits: str | None = None,
        tier: str | None = None,
        rules: str | Sequence[str] = (),
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> ClientOverride:
        """Give a client other limits or another tier, also of endpoints; see `Gate.override`."""
        return self.gate.override(
            client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by, known=self.known_rules()
        )

    def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`."""
        return self.gate.remove_override(client, rules=rules, by=by)

    def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now; see `Gate.overrides`."""
        return self.gate.overrides()

    def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> RuleSwitch:
        """Switch a rule of the policy or of an endpoint, or all rules; see `Gate.set_switch`."""
        known = self.known_rules()
        return self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`."""
        return self.gate.remove_switch(rule, by=by)

    def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return self.gate.switches()

    def promote(self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = "") -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`."""
        return self.gate.promote(rule, for_=for_, reason=reason, by=by, known=self.known_rules())

    def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return self.gate.changes()

    def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`."""
        return self.gate.record(action, target, detail, by=by)

    def sleep(self, passed: Passed) -> None:
        """Hold the request back for its `delay`."""
        if passed.delay and switch.sleeping:
            self._sleep(passed.delay)

    def close(self) -> None:
        """Flush listeners, and close the storage unless it was given as an object."""
        flush_listeners(self.gate._decider.listeners)
        if self.figures is not None:
            run(self.figures.leaving())
        if self._closes:
            self.gate.close()


class AsyncWebGate(_GateBase):
    """`WebGate` for tasks: the same names, with await. See there."""

    gate: AsyncGate

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        storage: Any = None,
        max_delay: Duration = 1.0,
        charge: Mapping[str, Charge] | None = None,
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **settings: Unpack[PolicyOptions],
    ) -> None:
        self._sleep = as_sleep(sleep, awaited=True)
        gate = AsyncGate(
            as_policy(policy, settings),
            storage=storage,
            deadline=deadline,
            workers=workers,
            max_delay=max_delay,
            listeners=listeners,
        )
        super().__init__(gate, charge, storage)

    async def before(
        self,
        view: RequestView,
        endpoint: Endpoint | None = None,
        *,
        stage: Stage | None = None,
        earlier: Passed | None = None,
    ) -> Passed | Rejected:
        """Decide; see `WebGate.before`."""
        return await run_async(check_rules(self, self.rules_for(endpoint), view, stage, earlier))

    async def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Rejected:
        """Decide by the endpoint's own limits; see `WebGate.alone`."""
        rules = self.rules_alone(endpoint)
        answer = rules.answer(view, [await self.decide_by(rules.compiled, view, "late")])
        if isinstance(answer, Passed) and answer.slots:
            await self.leave(answer)
        return answer

    async def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle a complete response; see `WebGate.after`."""
        await run_async(settle(self, passed, status, sent))

    async def leave(self, passed: Passed) -> None:
        """Release the slots of a request; see `WebGate.leave`."""
        await run_async(release_slots(self, passed))

    async def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage; see `WebGate.give_back`."""
        await run_async(give_back(self, passed))

    async def usage(self, view: RequestView) -> list[Usage]:
        """Return the usage of all limits that count the client of this request; see `WebGate.usage`."""
        return await self.gate.usage(view, all_rules=True, rules=self.known_rules(callable_now=True))

    async def usage_after(self, answer: object) -> list[Usage]:
        """Return the usage of the limits that a request was checked against; see `WebGate.usage_after`."""
        return await self.gate.read_usage(self.asks_of(answer))

    async def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client; see `Gate.usage_of`."""
        return await self.gate.usage_of(identity, rule=rule, tier=tier, rules=self.known_rules())

    async def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the present windows of its quotas; see `Gate.grant`."""
        return await self.gate.grant(identity, units, rule=rule, tier=tier, rules=self.known_rules())

    async def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent; see `Gate.reset`."""
        await self.gate.reset(identity, rule=rule, rules=self.known_rules())

    async def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now; see `Gate.holders`."""
        return await self.gate.holders(identity, rule=rule, rules=self.known_rules())

    async def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `limits.block("user:42", "1 hour")`; see `Gate.block`."""
        return await self.gate.block(client, for_, reason, by=by)

    async def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`."""
        return await self.gate.unblock(client, by=by)

    async def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`."""
        return await self.gate.blocks()

    async def override(
        self,
        client: str,
        *,
        limits: str | None = None,
        tier: str | None = None,
        rules: str | Sequence[str] = (),
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> ClientOverride:
        """Give a client other limits or another tier, also of endpoints; see `Gate.override`."""
        return await self.gate.override(
            client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by, known=self.known_rules()
        )

    async def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`."""
        return await self.gate.remove_override(client, rules=rules, by=by)

    async def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now; see `Gate.overrides`."""
        return await self.gate.overrides()

    async def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> RuleSwitch:
        """Switch a rule of the policy or of an endpoint, or all rules; see `Gate.set_switch`."""
        known = self.known_rules()
        return await self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    async def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`."""
        return await self.gate.remove_switch(rule, by=by)

    async def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return await self.gate.switches()

    async def promote(
        self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = ""
    ) -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`."""
        return await self.gate.promote(rule, for_=for_, reason=reason, by=by, known=self.known_rules())

    async def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return await self.gate.changes()

    async def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`."""
        return await self.gate.record(action, target, detail, by=by)

    async def sleep(self, passed: Passed) -> None:
        """Hold the request back for its `delay`."""
        if passed.delay and switch.sleeping:
            await self._sleep(passed.delay)

    async def close(self) -> None:
        """Flush listeners, and close the storage unless it was given as an object."""
        await asyncio.to_thread(flush_listeners, self.gate._decider.listeners)
        if self.figures is not None:
            await run_async(self.figures.leaving())
        if self._closes:
            await self.gate.close()
