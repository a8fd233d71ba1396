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
        first = next(iter(settings))
        raise TypeError(
            f"{', '.join(settings)}: write it in the policy, beside its rules: {{'{first}': …, 'rules': […]}};"
            " settings go with limits as text or by tier"
        )
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
    """A gate for a web framework, for threads: it decides over the policy and the limits of endpoints together.

    Args:
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
            None means that only endpoints have limits.
        storage: A URL, a storage, or a client of redis-py, in place of the policy's own. An object that is given is not
            closed.
        max_delay: The longest time for which a leaky bucket holds a request back: seconds or a timedelta. A request
            that would wait longer is rejected, and charged nothing.
        charge: What a request costs once its result is known, by the name of a rule of the policy; see `Rule`.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        sleep: The function that waits for a number of seconds. Tests give `FakeClock().sleep`.
        **settings: Options of `Policy`, like `failure`, `by` and `headers`, if the policy is limits as text.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> from ratebound.policy import RequestView
        >>> from ratebound.web import WebGate
        >>> gate = WebGate("1/minute", failure="open")
        >>> request = RequestView("GET", "/orders", peer="203.0.113.7")
        >>> passed, rejected = gate.before(request), gate.before(request)
        >>> bool(passed), rejected.status
        (True, 429)
        >>> gate.leave(passed)
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
        """Decide. Nothing sleeps here: see `sleep`. Call `leave` at the end of the response.

        If `rules_for(endpoint).reads_body`, read the body into the view first.

        Args:
            view: The request.
            endpoint: The limits of the endpoint; None if it has none of its own.
            stage: `"early"` or `"late"`. None decides the early stage if the policy has early rules, then the late one.
            earlier: The result of the early stage, if that was checked by itself. It is returned with the new decision
                joined to it.
        """
        return run(check_rules(self, self.rules_for(endpoint), view, stage, earlier))

    def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Rejected:
        """Decide by the endpoint's own limits, without the rules of the policy, which were checked already. Slots are
        not held.

        Args:
            view: The request.
            endpoint: The limits of the endpoint.
        """
        rules = self.rules_alone(endpoint)
        answer = rules.answer(view, [self.decide_by(rules.compiled, view, "late")])
        if isinstance(answer, Passed) and answer.slots:
            self.leave(answer)
        return answer

    def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle a complete response. What was charged for one that broke off stays charged.

        Args:
            passed: The result of `before`.
            status: The status of the response.
            sent: The bytes of the body that were sent.
        """
        run(settle(self, passed, status, sent))

    def leave(self, passed: Passed) -> None:
        """Release the slots of a request: its response has ended, or has broken off.

        Args:
            passed: The result of `before`.
        """
        run(release_slots(self, passed))

    def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage, and release all slots: the request was rejected after all.

        Args:
            passed: The result of `before`.
        """
        run(give_back(self, passed))

    def usage(self, view: RequestView) -> list[Usage]:
        """Return the usage of all limits that count the client of this request, on any request; see `Gate.usage`.

        Args:
            view: The request.
        """
        return self.gate.usage(view, all_rules=True, rules=self.known_rules(callable_now=True))

    def usage_after(self, answer: object) -> list[Usage]:
        """Return the usage of the limits that a request was checked against, from its Passed or Rejected.

        Args:
            answer: A `Passed` or a `Rejected`.
        """
        return self.gate.read_usage(self.asks_of(answer))

    def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client, endpoints' own included; see `Gate.usage_of`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return self.gate.usage_of(identity, rule=rule, tier=tier, rules=self.known_rules())

    def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas; see `Gate.grant`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            units: The units to add: a whole number from 1 to 10**12.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: None of the rules has a quota.
            InvalidCost: The units are not a whole number from 1 to 10**12.
        """
        return self.gate.grant(identity, units, rule=rule, tier=tier, rules=self.known_rules())

    def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent, of limits of endpoints too; see `Gate.reset`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
        """
        self.gate.reset(identity, rule=rule, rules=self.known_rules())

    def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now, of limits of endpoints too; see `Gate.holders`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return self.gate.holders(identity, rule=rule, rules=self.known_rules())

    def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `limits.block("user:42", "1 hour")`; see `Gate.block`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.block(client, for_, reason, by=by)

    def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.unblock(client, by=by)

    def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage is out of reach.
        """
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
        """Give a client other limits or another tier, also of endpoints; see `Gate.override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            limits: Text as in a rule, also `"deny"` or `"unlimited"`. Limits without an algorithm take that of the
                rule, so that the client keeps its count where the period is the same.
            tier: The other tier, in place of limits.
            rules: The names of the rules that get the limits. Empty means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The client, the time or a text is invalid, a rule or a tier does not exist, or a rule cannot
                have these limits.
        """
        return self.gate.override(
            client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by, known=self.known_rules()
        )

    def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            rules: The names of the rules, exactly as the override has them. Empty means the override for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
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
        """Switch a rule of the policy or of an endpoint, or all rules; see `Gate.set_switch`.

        Args:
            state: `"on"` enforces the rule, also if the policy has it in shadow; `"off"` asks nothing, but the rule
                still matches; `"shadow"`; or `"candidate"` enforces its candidate limits. All rules can be on, off or
                shadow.
            rule: The name of the rule. None means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The state, the time or a text is invalid, or the rule does not exist or has no candidate.
        """
        known = self.known_rules()
        return self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`.

        Args:
            rule: The name of the rule. None means the switch for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.remove_switch(rule, by=by)

    def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return self.gate.switches()

    def promote(self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = "") -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`.

        Args:
            rule: The name of the rule.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The time or a text is invalid, or the rule does not exist or has nothing to promote.
        """
        return self.gate.promote(rule, for_=for_, reason=reason, by=by, known=self.known_rules())

    def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return self.gate.changes()

    def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`.

        Args:
            action: What was done, in one word.
            target: The client or the rule.
            detail: The rest, in words.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: A text is invalid.
        """
        return self.gate.record(action, target, detail, by=by)

    def sleep(self, passed: Passed) -> None:
        """Hold the request back for its `delay`.

        Args:
            passed: The result of `before`.
        """
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
    """`WebGate` for tasks: the same names, with await. See there.

    Args:
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
            None means that only endpoints have limits.
        storage: A URL, a storage, or a client of redis-py, in place of the policy's own. An object that is given is not
            closed.
        max_delay: The longest time for which a leaky bucket holds a request back: seconds or a timedelta. A request
            that would wait longer is rejected, and charged nothing.
        charge: What a request costs once its result is known, by the name of a rule of the policy; see `Rule`.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        sleep: The async def that waits for a number of seconds. Tests give `FakeClock().async_sleep`.
        **settings: Options of `Policy`, like `failure`, `by` and `headers`, if the policy is limits as text.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> import asyncio
        >>> from ratebound.policy import RequestView
        >>> from ratebound.web import AsyncWebGate
        >>> gate = AsyncWebGate("1/minute")
        >>> passed = asyncio.run(gate.before(RequestView("GET", "/orders", peer="203.0.113.7")))
        >>> passed.decision.remaining
        0
    """

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
        """Decide; see `WebGate.before`.

        Args:
            view: The request.
            endpoint: The limits of the endpoint; None if it has none of its own.
            stage: `"early"` or `"late"`. None decides the early stage if the policy has early rules, then the late one.
            earlier: The result of the early stage, if that was checked by itself. It is returned with the new decision
                joined to it.
        """
        return await run_async(check_rules(self, self.rules_for(endpoint), view, stage, earlier))

    async def alone(self, view: RequestView, endpoint: Endpoint) -> Passed | Rejected:
        """Decide by the endpoint's own limits; see `WebGate.alone`.

        Args:
            view: The request.
            endpoint: The limits of the endpoint.
        """
        rules = self.rules_alone(endpoint)
        answer = rules.answer(view, [await self.decide_by(rules.compiled, view, "late")])
        if isinstance(answer, Passed) and answer.slots:
            await self.leave(answer)
        return answer

    async def after(self, passed: Passed, status: int, sent: int) -> None:
        """Settle a complete response; see `WebGate.after`.

        Args:
            passed: The result of `before`.
            status: The status of the response.
            sent: The bytes of the body that were sent.
        """
        await run_async(settle(self, passed, status, sent))

    async def leave(self, passed: Passed) -> None:
        """Release the slots of a request; see `WebGate.leave`.

        Args:
            passed: The result of `before`.
        """
        await run_async(release_slots(self, passed))

    async def give_back(self, passed: Passed) -> None:
        """Undo what was charged in the late stage; see `WebGate.give_back`.

        Args:
            passed: The result of `before`.
        """
        await run_async(give_back(self, passed))

    async def usage(self, view: RequestView) -> list[Usage]:
        """Return the usage of all limits that count the client of this request; see `WebGate.usage`.

        Args:
            view: The request.
        """
        return await self.gate.usage(view, all_rules=True, rules=self.known_rules(callable_now=True))

    async def usage_after(self, answer: object) -> list[Usage]:
        """Return the usage of the limits that a request was checked against; see `WebGate.usage_after`.

        Args:
            answer: A `Passed` or a `Rejected`.
        """
        return await self.gate.read_usage(self.asks_of(answer))

    async def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client; see `Gate.usage_of`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return await self.gate.usage_of(identity, rule=rule, tier=tier, rules=self.known_rules())

    async def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas; see `Gate.grant`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            units: The units to add: a whole number from 1 to 10**12.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: None of the rules has a quota.
            InvalidCost: The units are not a whole number from 1 to 10**12.
        """
        return await self.gate.grant(identity, units, rule=rule, tier=tier, rules=self.known_rules())

    async def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent; see `Gate.reset`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
        """
        await self.gate.reset(identity, rule=rule, rules=self.known_rules())

    async def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now; see `Gate.holders`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return await self.gate.holders(identity, rule=rule, rules=self.known_rules())

    async def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `limits.block("user:42", "1 hour")`; see `Gate.block`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return await self.gate.block(client, for_, reason, by=by)

    async def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return await self.gate.unblock(client, by=by)

    async def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage is out of reach.
        """
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
        """Give a client other limits or another tier, also of endpoints; see `Gate.override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            limits: Text as in a rule, also `"deny"` or `"unlimited"`. Limits without an algorithm take that of the
                rule, so that the client keeps its count where the period is the same.
            tier: The other tier, in place of limits.
            rules: The names of the rules that get the limits. Empty means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The client, the time or a text is invalid, a rule or a tier does not exist, or a rule cannot
                have these limits.
        """
        return await self.gate.override(
            client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by, known=self.known_rules()
        )

    async def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            rules: The names of the rules, exactly as the override has them. Empty means the override for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
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
        """Switch a rule of the policy or of an endpoint, or all rules; see `Gate.set_switch`.

        Args:
            state: `"on"` enforces the rule, also if the policy has it in shadow; `"off"` asks nothing, but the rule
                still matches; `"shadow"`; or `"candidate"` enforces its candidate limits. All rules can be on, off or
                shadow.
            rule: The name of the rule. None means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The state, the time or a text is invalid, or the rule does not exist or has no candidate.
        """
        known = self.known_rules()
        return await self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    async def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`.

        Args:
            rule: The name of the rule. None means the switch for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return await self.gate.remove_switch(rule, by=by)

    async def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return await self.gate.switches()

    async def promote(
        self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = ""
    ) -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`.

        Args:
            rule: The name of the rule.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The time or a text is invalid, or the rule does not exist or has nothing to promote.
        """
        return await self.gate.promote(rule, for_=for_, reason=reason, by=by, known=self.known_rules())

    async def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return await self.gate.changes()

    async def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`.

        Args:
            action: What was done, in one word.
            target: The client or the rule.
            detail: The rest, in words.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: A text is invalid.
        """
        return await self.gate.record(action, target, detail, by=by)

    async def sleep(self, passed: Passed) -> None:
        """Hold the request back for its `delay`.

        Args:
            passed: The result of `before`.
        """
        if passed.delay and switch.sleeping:
            await self._sleep(passed.delay)

    async def close(self) -> None:
        """Flush listeners, and close the storage unless it was given as an object."""
        await asyncio.to_thread(flush_listeners, self.gate._decider.listeners)
        if self.figures is not None:
            await run_async(self.figures.leaving())
        if self._closes:
            await self.gate.close()
