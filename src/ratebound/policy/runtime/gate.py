"""The gate: a policy, a storage, and a verdict for each request. Sync and async stand side by side.

How a verdict is found is in general_path.py. What is left in each class is what differs by an `await`.
"""

import inspect
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar

from ratebound.arguments import in_parts
from ratebound.clock import microseconds
from ratebound.decider import AsyncDecider, Decider
from ratebound.decision import Decision
from ratebound.duration import Duration, as_seconds
from ratebound.errors import StorageError
from ratebound.events import ChangeMade, Listener, Shadowed, log
from ratebound.flow import Flow, Paused, run, run_async, run_at_once
from ratebound.limit import MAX_PERIOD, Group
from ratebound.outcome import Row
from ratebound.policy.functions import is_async
from ratebound.policy.load.loader import read_policy
from ratebound.policy.match.request import RequestView
from ratebound.policy.model.client_list import client_of
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.policy import SWITCHES, Policy, Switch
from ratebound.policy.model.rule import Rule, Stage
from ratebound.policy.problem import PolicyError, check_choice
from ratebound.policy.runtime.bounded_queue import with_bounded_queues
from ratebound.policy.runtime.compiled_rules import CompiledRule, override_problem
from ratebound.policy.runtime.fast_path import Asked
from ratebound.policy.runtime.general_path import CompiledPolicy, Step
from ratebound.policy.runtime.kept_limits import KeptLimits
from ratebound.policy.runtime.operator_blocks import BLOCKS, Block, adding_block, removing_block
from ratebound.policy.runtime.operator_clients import OperatorClients
from ratebound.policy.runtime.operator_documents import (
    Change,
    Tell,
    listing_changes,
    listing_entries,
    reading,
    recording,
)
from ratebound.policy.runtime.operator_measures import (
    DOCUMENTS,
    CopiedMeasures,
    MemoryMeasures,
    OperatorMeasures,
    measures_in,
)
from ratebound.policy.runtime.operator_overrides import (
    OVERRIDES,
    ClientOverride,
    overriding,
    removing_override,
)
from ratebound.policy.runtime.operator_switches import (
    RULE_SWITCHES,
    RuleSwitch,
    SwitchState,
    removing_switch,
    switching,
)
from ratebound.policy.runtime.policy_in_force import PolicyInForce
from ratebound.policy.runtime.policy_url import FollowedPolicy
from ratebound.policy.runtime.reload import Preparations, log_swap
from ratebound.policy.runtime.switched_policy import candidate_text, switch_problem
from ratebound.policy.runtime.usage import ClientLimits, RuleAsk, asks_of_request, switched_compiled
from ratebound.policy.runtime.verdict import Judged, Verdict
from ratebound.settling import Settlement
from ratebound.slots import Holder
from ratebound.storage import AsyncStorage, Storage, refusals_of
from ratebound.storage.quick_states import QuickStates
from ratebound.switch import switch
from ratebound.telling import tell, tell_decided
from ratebound.uncancelled import uncancelled
from ratebound.usage import Usage, usages_of

T = TypeVar("T")


class _Source(PolicyInForce):
    """The policy that is in force now, given as an object or as a file, and the switch that overrides it."""

    __slots__ = ("__weakref__", "_checked", "_refused", "blocking", "forget", "kept", "preparations")

    compiled: CompiledPolicy
    file: FollowedPolicy | None
    switch: Switch | None

    def __init__(self, policy: Policy | FollowedPolicy | Mapping[str, Any], *, blocking: bool) -> None:
        if isinstance(policy, Mapping):
            policy = read_policy(policy)
        if not isinstance(policy, Policy | FollowedPolicy):
            raise TypeError(f"expected a Policy or a PolicyFile, not {policy!r}: load_policy('policy.yaml') makes one")
        file = None if isinstance(policy, Policy) else policy
        super().__init__(CompiledPolicy(policy) if isinstance(policy, Policy) else policy.compiled, file)
        self.blocking = blocking
        self.forget: Callable[[], None] = _nothing  # called when another policy has come into force
        self._refused: CompiledPolicy | None = None
        self.kept = KeptLimits()
        self._check(self.compiled)
        self._checked = self.compiled  # the last policy that was prepared for
        self.preparations = Preparations()
        if self.file is not None:
            self.file.preparations.add(self._prepare)
            self.file.checks.add(self.kept.check)

    def keep_in(self, storage: object) -> None:
        """Check the policy, and every later one, against a storage. Raises PolicyError for limits that it does not
        keep."""
        kept = KeptLimits(refusals_of(storage))
        kept.check(self.compiled)
        self.kept.refusals = kept.refusals

    def current(self) -> CompiledPolicy:
        """Return the policy in force, made ready. A file that has changed is taken up here."""
        file = self.file
        if file is not None:
            file.refresh()
            compiled = file.compiled
            if (
                compiled is not self.compiled
                and compiled is not self._refused
                and (compiled is self._checked or self._is_usable(compiled))  # it was read while this gate was made
            ):
                self.compiled = compiled
                self.forget()
        return self.compiled

    def use(self, policy: Policy) -> None:
        """Put a policy in force instead of the one before, or of the file."""
        compiled = CompiledPolicy(policy)
        self._check(compiled)
        self.preparations.run(compiled)
        log_swap(self.compiled.policy, policy)
        self.compiled = self._checked = compiled
        self.file = None
        self.forget()

    def layered(self, base: CompiledPolicy, rules: Sequence[Rule], alone: bool, keep_defaults: bool) -> CompiledPolicy:
        """Return `base` with more rules. Raises TypeError for a function that the gate cannot call, and PolicyError for
        a limit that the storage does not keep."""
        compiled = base.layered(rules, alone=alone, keep_defaults=keep_defaults)
        self._check(compiled)
        return compiled

    def _prepare(self, compiled: CompiledPolicy) -> None:
        """Check a new policy of the file, and prepare what is built on it, before it is in force."""
        if self.file is not None and self._is_usable(compiled):
            self.preparations.run(compiled)
            self._checked = compiled

    def _is_usable(self, compiled: CompiledPolicy) -> bool:
        """Return True if this gate can use a new policy; else log why, and remember to leave the old one in force."""
        try:
            self._check(compiled)
        except (TypeError, PolicyError):
            path = self.file and self.file.path
            log.exception("the new policy of %s cannot be used here; the old one stays in force", path)
            self._refused = compiled
            return False
        return True

    def set_switch(self, value: Switch | None) -> None:
        """Set the switch. Raises ValueError for one that does not exist."""
        if value is not None:
            check_choice("switch", value, SWITCHES)
        self.switch = value

    def _check(self, compiled: CompiledPolicy) -> None:
        for function in compiled.functions() if self.blocking else ():
            if is_async(function):
                raise TypeError(f"{getattr(function, '__name__', function)} is an async def: it is for AsyncGate")
        self.kept.check(compiled)


def _nothing() -> None:
    """Forget nothing."""


class _PolicyGate:
    """The part of a gate that does no I/O: the policy in force, the switch above it, and how long a queue may be."""

    def __init__(
        self, policy: Policy | FollowedPolicy | Mapping[str, Any], max_delay: Duration | None, *, blocking: bool
    ) -> None:
        self._patience = None if max_delay is None else microseconds(as_seconds("max_delay", max_delay), MAX_PERIOD)
        self._source = _Source(policy, blocking=blocking)
        self.current = self._source.current  # the policy in force, made ready
        self._operators: MemoryMeasures | CopiedMeasures | None = None  # None if the storage keeps no documents

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._source.current().policy

    @property
    def switch(self) -> Switch | None:
        """'on', 'off' or 'shadow' for everything, whatever the policy says; None leaves it to the policy."""
        return self._source.switch

    @switch.setter
    def switch(self, value: Switch | None) -> None:
        self._source.set_switch(value)

    def layered(
        self, base: CompiledPolicy, rules: Sequence[Rule], *, alone: bool = False, keep_defaults: bool = False
    ) -> CompiledPolicy:
        """Return `base` with more rules, for `decide_by`; see `CompiledPolicy.layered`. Raises TypeError for a function
        that this gate cannot call, and PolicyError for a limit that its storage does not keep."""
        return self._source.layered(base, rules, alone, keep_defaults)

    def before_new_policy(self, method: Callable[[CompiledPolicy], None]) -> None:
        """Call a method with every new policy before it is in force, in the thread that loads it. The object of the
        method is held weakly."""
        self._source.preparations.add(method)

    def use(self, policy: Policy) -> None:
        """Decide by this policy from now on. Counts are kept, except where an algorithm or a period has changed."""
        self._source.use(policy)

    def _client_limits(
        self,
        identity: str | Sequence[str],
        tier: str | None,
        rule: str | None,
        rules: Iterable[CompiledRule] | None,
        measures: OperatorMeasures | None,
    ) -> ClientLimits:
        compiled = self.current()
        looked_at = compiled.rules if rules is None else rules
        return ClientLimits(compiled.policy, looked_at, identity, tier=tier, rule=rule, measures=measures)

    @property
    def _is_unmeasured(self) -> bool:
        """True if operators' measures have no effect, and need not be read."""
        return self._operators is None or not switch.limiting or self._source.switch == "off"

    def _known_measures(self) -> OperatorMeasures | None:
        """Return operators' measures as far as they are known without reading, None if there are none."""
        return None if self._operators is None or self._is_unmeasured else self._operators.look()

    def _blocks_key(self, key: str) -> bool:
        """Return True if operators block the client that is counted under a key, as far as this process knows."""
        measures = self._known_measures()
        return measures is not None and measures.clients is not None and measures.clients.blocks_key(key)

    def _copy_to_read(self) -> CopiedMeasures | None:
        """Return the copy of operators' documents if it is too old; None if nothing has to be read."""
        operators = self._operators
        if not isinstance(operators, CopiedMeasures) or self._is_unmeasured:
            return None
        return operators if operators.copy.must_read() else None

    def _written(self, decider: Any) -> Tell:
        """Return what to tell of a document that was written: this gate applies it at once, and tells its listeners."""

        def written(name: str, content: bytes, change: Change) -> None:
            if isinstance(self._operators, CopiedMeasures) and name in DOCUMENTS:
                self._operators.copy.write(name, content)
            tell(decider.listeners, ChangeMade(change))

        return written

    def _blocking(self, decider: Any, client: object, for_: object, reason: object, by: object) -> Flow[Block]:
        kinds = self.current().policy.kinds
        return adding_block(decider.storage, client, for_, reason, kinds, self._written(decider), by)

    def _overriding(
        self,
        decider: Any,
        client: object,
        given: tuple[object, object, object],
        more: tuple[object, object, object],
        known: Iterable[CompiledRule] | None,
    ) -> Flow[ClientOverride]:
        policy = self.current().policy

        def check(override: ClientOverride) -> None:
            problem = self.problem_of(override, known=known)
            if problem:
                raise ValueError(problem)

        return overriding(decider.storage, client, *given, *more, check, policy.kinds, self._written(decider))

    def _switching(
        self,
        decider: Any,
        state: object,
        rule: object,
        more: tuple[object, object, object],
        known: Iterable[CompiledRule] | None,
    ) -> Flow[RuleSwitch]:
        def check(entry: RuleSwitch) -> RuleSwitch:
            if entry.state == "candidate":
                rules = self.current().rules if known is None else known
                found = [candidate_text(one.rule) for one in rules if one.rule.name == entry.rule]
                entry = entry._replace(candidate=found[0] if found else "")
            problem = self.problem_of(entry, known=known)
            if problem:
                raise ValueError(problem)
            return entry

        return switching(decider.storage, state, rule, *more, check, self._written(decider))

    def _promoted(self, rule: object, known: Iterable[CompiledRule] | None) -> SwitchState:
        """Return the state to which a rule is promoted: a rule in shadow that has no candidate is switched on."""
        compiled = self.current()
        rules = [one.rule for one in (compiled.rules if known is None else known) if one.rule.candidate is None]
        found: list[Rule | DescriptorRule] = [*rules, *compiled.policy.descriptors]
        return "on" if any(one.name == rule and one.mode == "shadow" for one in found) else "candidate"

    def problem_of(
        self, entry: Block | ClientOverride | RuleSwitch, *, known: Iterable[CompiledRule] | None = None
    ) -> str:
        """Return why an operator's block, override or switch has no effect under the policy in force, or not on all
        rules that it is for; "" if nothing is wrong. `known` are the compiled rules to look at instead of the
        policy's."""
        compiled = self.current()
        policy = compiled.policy
        rules = {one.rule.name: one for one in (compiled.rules if known is None else known)}
        if isinstance(entry, RuleSwitch):
            return switch_problem(entry, [one.rule for one in rules.values()], policy.descriptors)
        try:
            client_of(entry.client, policy.kinds)
        except ValueError as error:
            return str(error)
        if isinstance(entry, Block):
            return ""
        return override_problem(entry, policy, rules, self._source.kept.problem_of)

    def _usage_flow(
        self,
        request: RequestView,
        all_rules: bool,
        rules: Sequence[CompiledRule] | None,
        measures: OperatorMeasures | None,
    ) -> Generator[Step, Any, list[RuleAsk]]:
        compiled = self.current()
        switches = None if measures is None else measures.switches
        looked_at = None
        if all_rules:
            written = compiled.rules if rules is None else rules
            looked_at = [switched_compiled(one, switches, compiled.policy.failure) for one in written]
        if switches is not None:
            compiled = compiled.switched(switches)
        turned = self._source.switch or compiled.policy.switch
        return asks_of_request(compiled, request, turned, looked_at, None if measures is None else measures.clients)

    def _bounded(self, groups: Sequence[Group]) -> Sequence[Group]:
        """Return what to ask the storage: groups whose queues are no longer than `max_delay` allows."""
        return groups if self._patience is None else with_bounded_queues(groups, self._patience)


class Gate(_PolicyGate):
    """A policy at work, for threads.

    With a PolicyFile, a file that changes is in force soon after. As a context manager it closes its storage at the
    end.

    Args:
        policy: A Policy, a PolicyFile, a PolicyUrl, or a dict with the keys of a file.
        storage: A URL, a storage, or a client of redis-py, in place of the policy's own.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        max_delay: The longest time for which a leaky bucket may hold a request back: seconds or a timedelta. A request
            that would wait longer is refused, and charged nothing. None means no bound.
        listeners: Functions of one event that receive every decision, shadow and verdict; see `ratebound.events` and
            `Judged`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: The policy or the storage is something else than expected.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> from ratebound.policy import Gate, Match, Policy, RequestView, Rule
        >>> policy = Policy(rules=[Rule("login", "1/minute", Match(paths=["/login"]), by="address")])
        >>> gate = Gate(policy)
        >>> request = RequestView("POST", "/login", peer="203.0.113.7")
        >>> gate.decide(request).allowed, gate.decide(request).allowed
        (True, False)
    """

    def __init__(
        self,
        policy: Policy | FollowedPolicy | Mapping[str, Any],
        *,
        storage: Any = None,
        deadline: Duration | None = None,
        workers: int | None = None,
        max_delay: Duration | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        super().__init__(policy, max_delay, blocking=True)
        # Every limit of a policy carries its failure mode, so that a reload can change it: the guard's own is not used.
        where = self.policy.storage if storage is None else storage
        self._decider = Decider(where, deadline=deadline, workers=workers, listeners=listeners)
        self._source.keep_in(self._decider.storage)
        self._source.forget = self._decider.forget_local
        self._operators = measures_in(self._decider.storage, self._decider.fast_path, self._decider.forget_local)

    @property
    def storage(self) -> Storage:
        """The storage, in its guard if it has one."""
        return self._decider.storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        self._source.keep_in(storage)
        self._decider.storage = storage
        self._operators = measures_in(storage, self._decider.fast_path, self._decider.forget_local)

    def decide(self, request: RequestView, stage: Stage | None = None) -> Verdict:
        """Decide over all rules that match.

        Early and late rules are two decisions: the early ones are asked first, and if they refuse, that is the verdict;
        else what they said is its `earlier`. If the late ones refuse, the charge of the early ones stays, and their
        slots are released. A request that has passed `early` by itself is not asked again.

        Args:
            request: The request.
            stage: `"early"` for the rules before authentication, `"late"` for those after it. None decides both, one
                after the other.

        Returns:
            The verdict. It is true if the request may proceed.

        Raises:
            StorageError: The storage could not answer and the failure mode of a limit is `"raise"`.
            ValueError: The stage is unknown.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> verdict = gate.decide(RequestView("GET", "/orders", user="42"))
            >>> verdict.kind, verdict.rule.name, verdict.identity.key, verdict.decision.remaining
            ('limited', 'api', 'user:42', 99)
        """
        compiled = self._source.current()
        if stage is not None or not compiled.asks_early(request):
            return self.decide_by(compiled, request, "late" if stage is None else checked_stage(stage))
        earlier = self.decide_by(compiled, request, "early")
        if not earlier.allowed:
            return earlier
        try:
            verdict = self.decide_by(compiled, request, "late").after(earlier)
        except BaseException:
            self.release(earlier)
            raise
        if not verdict.allowed:
            self.release(earlier)
        return verdict

    def hold(self, verdict: Verdict) -> list[object]:
        """Renew the slots of a verdict until `release` or `undo`, or until the returned objects are gone.

        Without this, slots end with their lease.

        Args:
            verdict: The verdict of `decide`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("reports", "2 concurrent")]))
            >>> verdict = gate.decide(RequestView("GET", "/reports", user="42"))
            >>> holding = gate.hold(verdict)
            >>> gate.release(verdict)
        """
        return [self._decider.hold(decision) for decision in verdict.holding]

    def release(self, *verdicts: Verdict) -> None:
        """Release the slots of all of these verdicts, those of rules in shadow included. Can be repeated.

        Args:
            *verdicts: Verdicts of `decide`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("reports", "1 concurrent")]))
            >>> request = RequestView("GET", "/reports", user="42")
            >>> gate.release(gate.decide(request))
            >>> gate.decide(request).allowed
            True
        """
        for decision in [decision for verdict in verdicts for decision in verdict.holding]:
            self._decider.release(decision)

    def undo(self, *verdicts: Verdict) -> None:
        """Undo these verdicts: refund what they were charged, also by rules in shadow, and release their slots.

        What was settled before stays charged.

        Args:
            *verdicts: Verdicts of `decide`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "1/hour")]))
            >>> request = RequestView("GET", "/orders", user="42")
            >>> gate.undo(gate.decide(request))
            >>> gate.decide(request).allowed
            True
        """
        for decision in [decision for verdict in verdicts for decision in verdict.decisions]:
            if decision.final:
                self._decider.release(decision)
            else:
                self._decider.undo(decision)

    def settle(self, verdict: Verdict, *, cost: int | Sequence[int], strike: bool | Sequence[bool] = False) -> Verdict:
        """Make an allowed verdict have cost another amount than it was charged; see `Limiter.settle`.

        Args:
            verdict: The verdict of `decide`.
            cost: What it has cost in fact, 0 or more: one number for all its rules, or one for each.
            strike: True if the result is a strike of the rule's penalties: for all its rules, or for each.

        Returns:
            The verdict with the decision as it stands then.

        Raises:
            ValueError: The decision was settled already.
            InvalidCost: A cost is not a whole number from 0 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("tokens", "1000/minute", cost=500)]))
            >>> verdict = gate.decide(RequestView("POST", "/chat", user="42"))
            >>> gate.settle(verdict, cost=120).decision.remaining
            880
        """
        decision = verdict.decision
        if decision is None:
            return verdict
        settled = self._decider.settle(decision, cost, strike)
        return verdict if settled is decision else verdict.with_decision(settled)

    def settle_each(self, settlements: Sequence[Settlement]) -> list[Decision]:
        """Settle allowed decisions of one request in one trip, and return them as they stand then.

        Args:
            settlements: Allowed decisions, with their costs and strikes.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("api", "100/minute")])).settle_each([])
            []
        """
        return self._decider.settle_each(settlements)

    def usage(
        self, request: RequestView, *, all_rules: bool = False, rules: Sequence[CompiledRule] | None = None
    ) -> list[Usage]:
        """Return what the client of a request has used of each limit that applies to the request. Charges nothing.

        Rules in shadow are always left out.

        Args:
            request: The request.
            all_rules: True for every limit that counts this client, whatever the path, method, host or headers of the
                request. Limits that all clients share, and those of rules that count by a function, are left out then.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> request = RequestView("GET", "/orders", user="42")
            >>> verdict = gate.decide(request)
            >>> [(usage.rule, usage.used, usage.quota) for usage in gate.usage(request)]
            [('api', 1, 100)]
        """
        return self.read_usage(self._deliberate(self._usage_flow(request, all_rules, rules, self._measures())))

    def usage_of(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        tier: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Usage]:
        """Return what a client has used of each limit that counts it.

        "prefix:203.0.113.7" is the prefix of an address, "jwt:sub:42" a claim, and "global" all clients together. The
        limits are those of the client's override or of its tier.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> verdict = gate.decide(RequestView("GET", "/orders", user="42"))
            >>> [(usage.rule, usage.used) for usage in gate.usage_of("user:42")]
            [('api', 1)]
        """
        return self.read_usage(self._client_limits(identity, tier, rule, rules, self._measures()).usage())

    def grant(
        self,
        identity: str | Sequence[str],
        units: int,
        *,
        rule: str | None = None,
        tier: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas, and return the usage after that.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            units: The units to add: a whole number from 1 to 10**12.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: None of the rules has a quota.
            InvalidCost: The units are not a whole number from 1 to 10**12.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> gate = Gate(Policy(rules=[Rule("plan", "100/calendar-month")]))
            >>> gate.grant("user:42", 50)[0].quota
            150
        """
        limits = self._client_limits(identity, tier, rule, rules, self._measures())
        self._decider.force_or_raise(limits.granting(units))
        return self.read_usage(limits.usage())

    def reset(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> None:
        """Forget what a client has spent of the limits of rules that count by it, in all tiers and overrides.

        Limits that a function returns are forgotten only if another limit of the rule has the same period and
        algorithm.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("api", "100/minute")])).reset("user:42")
        """
        self._decider.reset(self._client_limits(identity, None, rule, rules, self._measures()).spent())

    def holders(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Holder]:
        """Return the slots that a client holds now, in all processes. Slots of rules in shadow are left out.

        While the storage is out of reach, return the slots that this process granted alone.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("reports", "2 concurrent")]))
            >>> verdict = gate.decide(RequestView("GET", "/reports", user="42"))
            >>> len(gate.holders("user:42"))
            1
        """
        found: list[Holder] = []
        for key, limits in self._client_limits(identity, None, rule, rules, self._measures()).slots():
            found += self._decider.holders(key, limits)
        return found

    def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule, in all processes on this storage. Other processes apply the block within a
        second.

        A client that is blocked already gets the new time and reason. At most 10 000 clients are blocked.

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

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> block = gate.block("203.0.113.7", "1 hour", "scraping", by="alice")
            >>> gate.decide(RequestView("GET", "/", peer="203.0.113.7")).kind
            'block'
        """
        return run(self._blocking(self._decider, client, for_, reason, by))

    def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("api", "100/minute")])).unblock("203.0.113.7", by="alice")
            False
        """
        return run(removing_block(self._decider.storage, client, self._written(self._decider), by))

    def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now, from the storage itself, the oldest first.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage is out of reach.
        """
        return run(listing_entries(self._decider.storage, BLOCKS))

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
        known: Iterable[CompiledRule] | None = None,
    ) -> ClientOverride:
        """Give a client other limits or another tier, in all processes on this storage.

        They win over the overrides of the policy. A second override for the same client and the same rules takes the
        place of the first.

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
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The client, the time or a text is invalid, a rule or a tier does not exist, or a rule cannot
                have these limits.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> override = gate.override("user:42", limits="1000/minute", for_="1 day", by="alice")
            >>> gate.decide(RequestView("GET", "/orders", user="42")).decision.remaining
            999
        """
        given, more = (limits, tier, rules), (for_, reason, by)
        return run(self._overriding(self._decider, client, given, more, known))

    def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client for exactly these rules, or the one for all rules. Return False without one.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            rules: The names of the rules, exactly as the override has them. Empty means the override for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("api", "100/minute")])).remove_override("user:42", by="alice")
            False
        """
        return run(removing_override(self._decider.storage, client, rules, self._written(self._decider), by))

    def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now, the oldest first; see `blocks`."""
        return run(listing_entries(self._decider.storage, OVERRIDES))

    def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
        known: Iterable[CompiledRule] | None = None,
    ) -> RuleSwitch:
        """Switch a rule, or all rules, in all processes on this storage.

        The switch for all rules takes the place of the policy's own `switch`; the gate's `switch` wins over both.

        Args:
            state: `"on"` enforces the rule, also if the policy has it in shadow; `"off"` asks nothing, but the rule
                still matches; `"shadow"`; or `"candidate"` enforces its candidate limits. All rules can be on, off or
                shadow.
            rule: The name of the rule. None means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The state, the time or a text is invalid, or the rule does not exist or has no candidate.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("search", "1/hour")]))
            >>> switch = gate.set_switch("shadow", rule="search", for_="10 minutes", by="alice")
            >>> request = RequestView("GET", "/search", user="42")
            >>> gate.decide(request).allowed, gate.decide(request).allowed
            (True, True)
        """
        return run(self._switching(self._decider, state, rule, (for_, reason, by), known))

    def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules. Return False if there is none.

        Args:
            rule: The name of the rule. None means the switch for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("search", "1/hour")])).remove_switch("search", by="alice")
            False
        """
        return run(removing_switch(self._decider.storage, rule, self._written(self._decider), by))

    def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now, the oldest first; see `blocks`."""
        return run(listing_entries(self._decider.storage, RULE_SWITCHES))

    def promote(
        self,
        rule: str,
        *,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
        known: Iterable[CompiledRule] | None = None,
    ) -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own, in all processes; see `set_switch`.

        A rule in shadow that has no candidate is switched on. The promotion of a candidate has no effect once the
        policy gives the rule another one.

        Args:
            rule: The name of the rule.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The time or a text is invalid, or the rule does not exist or has nothing to promote.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute", candidate="50/minute")]))
            >>> gate.promote("api", by="alice").state
            'candidate'
        """
        state = self._promoted(rule, known)
        return self.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    def changes(self) -> list[Change]:
        """Return the audit log: the last 200 changes of each document of operators, the newest first."""
        return run(listing_changes(self._decider.storage, DOCUMENTS))

    def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done besides blocks, overrides and switches. Return the change.

        Args:
            action: What was done, in one word.
            target: The client or the rule.
            detail: The rest, in words.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: A text is invalid.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> gate.record("refund", "user:42", "500 units after ticket 17", by="alice").action
            'refund'
        """
        return run(recording(self._decider.storage, action, target, detail, by, self._written(self._decider)))

    def operators_name_users(self) -> bool:
        """Return True if operators have blocked a user or given one other limits: then it must be known who the user of
        a request is."""
        measures = self._measures()
        return measures is not None and measures.clients is not None and measures.clients.name_users

    def in_force(self) -> CompiledPolicy:
        """Return the policy in force as operators have switched it."""
        compiled, measures = self._source.current(), self._measures()
        return compiled if measures is None or measures.switches is None else compiled.switched(measures.switches)

    def _measures(self) -> OperatorMeasures | None:
        """Return operators' measures, None if there are none. Reads their documents if the copy is old."""
        operators = self._copy_to_read()
        if operators is not None:
            number = operators.copy.begin()
            try:
                operators.copy.take(number, run(reading(self._decider.storage, DOCUMENTS)))
            except StorageError:
                operators.copy.fail()
        return self._known_measures()

    def read_usage(self, asks: Sequence[RuleAsk]) -> list[Usage]:
        """Return the usage that asks show, from one trip to the storage for every 100 of them.

        Args:
            asks: The names of rules, and what each is asked.

        Examples:
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> Gate(Policy(rules=[Rule("api", "100/minute")])).read_usage([])
            []
        """
        answers: list[Sequence[Row]] = []
        for part in in_parts([(ask,) for _, ask in asks]):
            answers += self._decider.evaluate(part, "peek")
        return _usages(asks, answers)

    def close(self) -> None:
        """Close the storage."""
        self._decider.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def decide_by(self, compiled: CompiledPolicy, request: RequestView, stage: str) -> Verdict:
        """Decide one stage, by the policy in force or by one that has more rules than it.

        Args:
            compiled: A compiled policy.
            request: The request.
            stage: `"early"` or `"late"`.

        Examples:
            >>> from ratebound.policy import Gate, Policy, RequestView, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> gate.decide_by(gate.in_force(), RequestView("GET", "/orders", user="42"), "late").allowed
            True
        """
        decider = self._decider
        begin = time.perf_counter() if decider.listeners else 0.0
        turned = self._source.switch
        memory, named = decider.fast_path.states, None
        if memory is None or memory.documents is not decider.fast_path.unblocked:
            measures = self._measures()
            if measures is not None:
                compiled, named = _measured(compiled, request, stage, measures)
        ready = compiled.straight(request, stage) if turned is None and named is None else None
        if not isinstance(ready, Asked):
            turned = turned or compiled.policy.switch
            if compiled.pressure is not None and not compiled.pressure.is_calm:
                compiled.pressure.begin(decider)
            verdict = self._deliberate(compiled.deliberate(request, stage, turned, ready, named))
            if not verdict.allowed:
                self.release(verdict)  # slots of rules in shadow
        else:
            asks = ready.asks
            if asks:
                states, at_once = decider.fast_path.states, decider.at_once
                if compiled.may_queue or not switch.limiting or at_once is None:
                    found = _hit_quickly(decider.fast_path.quick, compiled, ready)
                    if found is None:
                        groups = self._bounded([asks]) if compiled.may_queue else [asks]
                        found = Decision(asks, decider.evaluate(groups)[0])
                    decision = found
                else:
                    decision = Decision(asks, at_once(asks)) if states is None else ready.decide(states)
                verdict = Verdict(ready.grounds, ready.client, decision.allowed, decision, ready.identities)
            else:
                verdict = Verdict(ready.grounds, ready.client)
        if stage == "early":
            compiled.passed_early(request, verdict)
        if begin:
            _tell(decider.listeners, verdict, begin, request)
        return verdict

    def _deliberate(self, flow: Generator[Step, Any, T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, list):
                        answer = self._decider.evaluate(self._bounded(step))
                    else:
                        _refuse_to_await(step)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


class AsyncGate(_PolicyGate):
    """A policy at work, for tasks: the names of `Gate`, with await. Functions of the policy may be async.

    Args:
        policy: A Policy, a PolicyFile, a PolicyUrl, or a dict with the keys of a file.
        storage: A URL, a storage, or a client of redis-py, in place of the policy's own.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        max_delay: The longest time for which a leaky bucket may hold a request back: seconds or a timedelta. A request
            that would wait longer is refused, and charged nothing. None means no bound.
        listeners: Functions of one event that receive every decision, shadow and verdict; see `ratebound.events` and
            `Judged`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: The policy or the storage is something else than expected.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> import asyncio
        >>> from ratebound.policy import AsyncGate, Policy, RequestView, Rule
        >>> gate = AsyncGate(Policy(rules=[Rule("api", "100/minute")]))
        >>> verdict = asyncio.run(gate.decide(RequestView("GET", "/orders", user="42")))
        >>> verdict.allowed, verdict.decision.remaining
        (True, 99)
    """

    def __init__(
        self,
        policy: Policy | FollowedPolicy | Mapping[str, Any],
        *,
        storage: Any = None,
        deadline: Duration | None = None,
        workers: int | None = None,
        max_delay: Duration | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        super().__init__(policy, max_delay, blocking=False)
        where = self.policy.storage if storage is None else storage
        self._decider = AsyncDecider(where, deadline=deadline, workers=workers, listeners=listeners)
        self._source.keep_in(self._decider.storage)
        self._source.forget = self._decider.forget_local
        self._operators = measures_in(self._decider.storage, self._decider.fast_path, self._decider.forget_local)

    @property
    def storage(self) -> AsyncStorage:
        """The storage, in its guard if it has one."""
        return self._decider.storage

    @storage.setter
    def storage(self, storage: AsyncStorage) -> None:
        self._source.keep_in(storage)
        self._decider.storage = storage
        self._operators = measures_in(storage, self._decider.fast_path, self._decider.forget_local)

    async def decide(self, request: RequestView, stage: Stage | None = None) -> Verdict:
        """Decide over all rules that match; see `Gate.decide`.

        Args:
            request: The request.
            stage: `"early"` for the rules before authentication, `"late"` for those after it. None decides both, one
                after the other.

        Returns:
            The verdict. It is true if the request may proceed.

        Raises:
            StorageError: The storage could not answer and the failure mode of a limit is `"raise"`.
            ValueError: The stage is unknown.
        """
        compiled = self._source.current()
        if stage is not None or not compiled.asks_early(request):
            return await self.decide_by(compiled, request, "late" if stage is None else checked_stage(stage))
        earlier = await self.decide_by(compiled, request, "early")
        if not earlier.allowed:
            return earlier
        try:
            verdict = (await self.decide_by(compiled, request, "late")).after(earlier)
        except BaseException:
            await self.release(earlier)
            raise
        if not verdict.allowed:
            await self.release(earlier)
        return verdict

    def decide_now(self, request: RequestView) -> Verdict | None:
        """Decide without a pause. Return None, having charged nothing, if that is not possible: then await `decide`
        with the same request.

        Memory never pauses, unless a function of the policy has to be awaited. Shared memory pauses where more than one
        plain limit applies, or if another process holds a lock. Redis always does.

        Args:
            request: The request.
        """
        verdict = self._decide_straight(request)
        compiled = self._source.compiled
        if verdict is None and self._decider.at_once is not None and not compiled.may_await:
            try:
                return run_at_once(self.decide(request))
            except Paused:  # a function that is not async has returned something to await
                compiled.may_await = True
        return verdict

    def _decide_straight(self, request: RequestView) -> Verdict | None:
        """Decide by the fast path; None, having changed nothing, if the general path has to decide."""
        decider, source = self._decider, self._source
        compiled = source.current()
        path = decider.fast_path
        quick, states = path.quick, path.states
        if quick is None or source.switch is not None or compiled.has_early or compiled.may_queue:
            return None
        if not switch.limiting:
            return None
        begin = time.perf_counter() if decider.listeners else 0.0
        if states is not None:
            if states.documents is not path.unblocked:
                return None
        elif self._operators is not None:
            if self._copy_to_read() is not None:
                return None
            measures = self._known_measures()
            if measures is not None:
                compiled, named = _measured(compiled, request, "late", measures)
                if named is not None:
                    return None
        line = compiled.line("late")
        matched = None if line is None else line.find(request)
        if matched is None or (states is None and matched.calls_functions):  # `decide` would call them again
            return None
        ready = compiled.straight(request, "late", matched)
        if not isinstance(ready, Asked):
            return None
        if ready.asks:
            decision = ready.hit(quick) if states is None else ready.decide(states)
            if decision is None:
                return None
            verdict = Verdict(ready.grounds, ready.client, decision.allowed, decision, ready.identities)
        else:
            verdict = Verdict(ready.grounds, ready.client)
        if begin:
            _tell(decider.listeners, verdict, begin, request)
        return verdict

    def hold(self, verdict: Verdict) -> list[object]:
        """Renew the slots of a verdict; see `Gate.hold`. It is not awaited.

        Args:
            verdict: The verdict of `decide`.
        """
        return [self._decider.hold(decision) for decision in verdict.holding]

    async def release(self, *verdicts: Verdict) -> None:
        """Release the slots of verdicts, also if the caller is cancelled meanwhile; see `Gate.release`.

        Args:
            *verdicts: Verdicts of `decide`.
        """
        held = [decision for verdict in verdicts for decision in verdict.holding]
        if held:
            await uncancelled(_release(self._decider, held))

    async def undo(self, *verdicts: Verdict) -> None:
        """Undo verdicts, also if the caller is cancelled meanwhile; see `Gate.undo`.

        Args:
            *verdicts: Verdicts of `decide`.
        """
        made = [decision for verdict in verdicts for decision in verdict.decisions]
        if made:
            await uncancelled(_undo(self._decider, made))

    async def settle(
        self, verdict: Verdict, *, cost: int | Sequence[int], strike: bool | Sequence[bool] = False
    ) -> Verdict:
        """Make an allowed verdict have cost `cost`; see `Gate.settle`.

        Args:
            verdict: The verdict of `decide`.
            cost: What it has cost in fact, 0 or more: one number for all its rules, or one for each.
            strike: True if the result is a strike of the rule's penalties: for all its rules, or for each.
        """
        decision = verdict.decision
        if decision is None:
            return verdict
        settled = await self._decider.settle(decision, cost, strike)
        return verdict if settled is decision else verdict.with_decision(settled)

    async def settle_each(self, settlements: Sequence[Settlement]) -> list[Decision]:
        """Settle decisions, also if the caller is cancelled meanwhile; see `Gate.settle_each`.

        Args:
            settlements: Allowed decisions, with their costs and strikes.
        """
        return await uncancelled(self._decider.settle_each(settlements))

    async def usage(
        self, request: RequestView, *, all_rules: bool = False, rules: Sequence[CompiledRule] | None = None
    ) -> list[Usage]:
        """Return what the client of a request has used of each limit; see `Gate.usage`.

        Args:
            request: The request.
            all_rules: True for every limit that counts this client, whatever the path, method, host or headers of the
                request. Limits that all clients share, and those of rules that count by a function, are left out then.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.
        """
        flow = self._usage_flow(request, all_rules, rules, await self._measures())
        return await self.read_usage(await self._deliberate(flow))

    async def usage_of(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        tier: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Usage]:
        """Return what a client has used of each limit that counts it; see `Gate.usage_of`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return await self.read_usage(self._client_limits(identity, tier, rule, rules, await self._measures()).usage())

    async def grant(
        self,
        identity: str | Sequence[str],
        units: int,
        *,
        rule: str | None = None,
        tier: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas; see `Gate.grant`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            units: The units to add: a whole number from 1 to 10**12.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: None of the rules has a quota.
            InvalidCost: The units are not a whole number from 1 to 10**12.
        """
        limits = self._client_limits(identity, tier, rule, rules, await self._measures())
        await self._decider.force_or_raise(limits.granting(units))
        return await self.read_usage(limits.usage())

    async def reset(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> None:
        """Forget what a client has spent; see `Gate.reset`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
        """
        await self._decider.reset(self._client_limits(identity, None, rule, rules, await self._measures()).spent())

    async def holders(
        self,
        identity: str | Sequence[str],
        *,
        rule: str | None = None,
        rules: Iterable[CompiledRule] | None = None,
    ) -> list[Holder]:
        """Return the slots that a client holds now; see `Gate.holders`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            rules: The compiled rules to look at, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        found: list[Holder] = []
        for key, limits in self._client_limits(identity, None, rule, rules, await self._measures()).slots():
            found += await self._decider.holders(key, limits)
        return found

    async def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule; see `Gate.block`.

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
        return await run_async(self._blocking(self._decider, client, for_, reason, by))

    async def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client; see `Gate.unblock`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return await run_async(removing_block(self._decider.storage, client, self._written(self._decider), by))

    async def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`."""
        return await run_async(listing_entries(self._decider.storage, BLOCKS))

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
        known: Iterable[CompiledRule] | None = None,
    ) -> ClientOverride:
        """Give a client other limits or another tier; see `Gate.override`.

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
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The client, the time or a text is invalid, a rule or a tier does not exist, or a rule cannot
                have these limits.
        """
        given, more = (limits, tier, rules), (for_, reason, by)
        return await run_async(self._overriding(self._decider, client, given, more, known))

    async def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client; see `Gate.remove_override`.

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
        return await run_async(
            removing_override(self._decider.storage, client, rules, self._written(self._decider), by)
        )

    async def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now; see `Gate.overrides`."""
        return await run_async(listing_entries(self._decider.storage, OVERRIDES))

    async def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
        known: Iterable[CompiledRule] | None = None,
    ) -> RuleSwitch:
        """Switch a rule, or all rules; see `Gate.set_switch`.

        Args:
            state: `"on"` enforces the rule, also if the policy has it in shadow; `"off"` asks nothing, but the rule
                still matches; `"shadow"`; or `"candidate"` enforces its candidate limits. All rules can be on, off or
                shadow.
            rule: The name of the rule. None means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The state, the time or a text is invalid, or the rule does not exist or has no candidate.
        """
        return await run_async(self._switching(self._decider, state, rule, (for_, reason, by), known))

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
        return await run_async(removing_switch(self._decider.storage, rule, self._written(self._decider), by))

    async def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return await run_async(listing_entries(self._decider.storage, RULE_SWITCHES))

    async def promote(
        self,
        rule: str,
        *,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
        known: Iterable[CompiledRule] | None = None,
    ) -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`.

        Args:
            rule: The name of the rule.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.
            known: The compiled rules to choose from, in place of the policy's. Adapters for web frameworks use it.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The time or a text is invalid, or the rule does not exist or has nothing to promote.
        """
        state = self._promoted(rule, known)
        return await self.set_switch(state, rule=rule, for_=for_, reason=reason, by=by, known=known)

    async def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return await run_async(listing_changes(self._decider.storage, DOCUMENTS))

    async def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`.

        Args:
            action: What was done, in one word.
            target: The client or the rule.
            detail: The rest, in words.
            by: The name of the operator, for the audit log.
        """
        return await run_async(
            recording(self._decider.storage, action, target, detail, by, self._written(self._decider))
        )

    async def operators_name_users(self) -> bool:
        """Return True if operators have named a user; see `Gate.operators_name_users`."""
        measures = await self._measures()
        return measures is not None and measures.clients is not None and measures.clients.name_users

    async def in_force(self) -> CompiledPolicy:
        """Return the policy in force as operators have switched it; see `Gate.in_force`."""
        compiled, measures = self._source.current(), await self._measures()
        return compiled if measures is None or measures.switches is None else compiled.switched(measures.switches)

    def in_force_now(self) -> CompiledPolicy | None:
        """Return the policy in force as operators have switched it; None if their documents have to be read first: then
        await `in_force`."""
        path = self._decider.fast_path
        if path.states is not None and path.states.documents is path.unblocked:
            return self._source.current()
        if self._copy_to_read() is not None:
            return None
        compiled, measures = self._source.current(), self._known_measures()
        return compiled if measures is None or measures.switches is None else compiled.switched(measures.switches)

    async def _measures(self) -> OperatorMeasures | None:
        """Return operators' measures, None if there are none. Reads their documents if the copy is old."""
        operators = self._copy_to_read()
        if operators is not None:
            number = operators.copy.begin()
            try:
                operators.copy.take(number, await run_async(reading(self._decider.storage, DOCUMENTS)))
            except StorageError:
                operators.copy.fail()
        return self._known_measures()

    async def read_usage(self, asks: Sequence[RuleAsk]) -> list[Usage]:
        """Return the usage that asks show; see `Gate.read_usage`.

        Args:
            asks: The names of rules, and what each is asked.
        """
        answers: list[Sequence[Row]] = []
        for part in in_parts([(ask,) for _, ask in asks]):
            answers += await self._decider.evaluate(part, "peek")
        return _usages(asks, answers)

    async def close(self) -> None:
        """Close the storage."""
        await self._decider.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def decide_by(self, compiled: CompiledPolicy, request: RequestView, stage: str) -> Verdict:
        """Decide one stage; see `Gate.decide_by`.

        Args:
            compiled: A compiled policy.
            request: The request.
            stage: `"early"` or `"late"`.
        """
        decider = self._decider
        begin = time.perf_counter() if decider.listeners else 0.0
        turned = self._source.switch
        memory, named = decider.fast_path.states, None
        if memory is None or memory.documents is not decider.fast_path.unblocked:
            measures = await self._measures()
            if measures is not None:
                compiled, named = _measured(compiled, request, stage, measures)
        ready = compiled.straight(request, stage) if turned is None and named is None else None
        if not isinstance(ready, Asked):
            turned = turned or compiled.policy.switch
            if compiled.pressure is not None and not compiled.pressure.is_calm:
                compiled.pressure.begin(decider)
            verdict = await self._deliberate(compiled.deliberate(request, stage, turned, ready, named))
            if not verdict.allowed:
                await self.release(verdict)  # slots of rules in shadow
        else:
            asks = ready.asks
            if asks:
                states, at_once = decider.fast_path.states, decider.at_once
                if compiled.may_queue or not switch.limiting or at_once is None:
                    found = _hit_quickly(decider.fast_path.quick, compiled, ready)
                    if found is None:
                        groups = self._bounded([asks]) if compiled.may_queue else [asks]
                        found = Decision(asks, (await decider.evaluate(groups))[0])
                    decision = found
                else:
                    decision = Decision(asks, at_once(asks)) if states is None else ready.decide(states)
                verdict = Verdict(ready.grounds, ready.client, decision.allowed, decision, ready.identities)
            else:
                verdict = Verdict(ready.grounds, ready.client)
        if stage == "early":
            compiled.passed_early(request, verdict)
        if begin:
            _tell(decider.listeners, verdict, begin, request)
        return verdict

    async def _deliberate(self, flow: Generator[Step, Any, T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, list):
                        answer = await self._decider.spend(self._bounded(step))
                    else:
                        answer = await step
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


async def _release(decider: AsyncDecider, held: Sequence[Decision]) -> None:
    for decision in held:
        await decider.release(decision)


async def _undo(decider: AsyncDecider, made: Sequence[Decision]) -> None:
    for decision in made:
        if decision.final:
            await decider.release(decision)
        else:
            await decider.undo(decision)


def _measured(
    compiled: CompiledPolicy, request: RequestView, stage: str, measures: OperatorMeasures
) -> tuple[CompiledPolicy, OperatorClients | None]:
    """Return a policy as operators have switched it, and the clients that they have named if they may concern the
    request."""
    if measures.switches is not None:
        compiled = compiled.switched(measures.switches)
    named = measures.clients
    return compiled, named if named is not None and compiled.may_be_named(request, stage, named) else None


def checked_stage(stage: str) -> str:
    """Return the stage as it is. Raises ValueError for one that does not exist."""
    if stage not in ("early", "late"):
        raise ValueError(f"a stage is 'early' or 'late', not {stage!r}")
    return stage


def _usages(asks: Sequence[RuleAsk], answers: Sequence[Sequence[Row]]) -> list[Usage]:
    pairs = zip(asks, answers, strict=True)
    return [usage for (rule, ask), rows in pairs for usage in usages_of((ask,), rows, [rule])]


def _refuse_to_await(answer: Any) -> NoReturn:
    if inspect.iscoroutine(answer):
        answer.close()
    raise TypeError("a function of the policy returned something to await: it is for AsyncGate")


def _tell(listeners: tuple[Listener, ...], verdict: Verdict, begin: float, request: RequestView) -> None:
    seconds = time.perf_counter() - begin
    if verdict.decision is not None:
        tell_decided(listeners, verdict.decision, seconds, request)
    tell_verdict(listeners, verdict, seconds)


def wants_verdicts(listener: Listener) -> bool:
    """Return True if a listener has to be told of verdicts. One that ignores them says so, to save the time."""
    return not getattr(listener, "ignores_verdicts", False)


def tell_verdict(listeners: tuple[Listener, ...], verdict: Verdict, seconds: float) -> None:
    """Tell every listener of the shadows of a verdict, and of the verdict itself."""
    for shadow in verdict.shadows:
        tell(listeners, Shadowed(shadow.rule.name, shadow.candidate, shadow.allowed))
    for listener in listeners:
        if wants_verdicts(listener):
            tell((listener,), Judged(verdict, seconds))


def _hit_quickly(quick: QuickStates | None, compiled: CompiledPolicy, asked: Asked) -> Decision | None:
    """Spend what is asked from quick states that are not memory's. Return None if there are none, or not for this."""
    return None if quick is None or compiled.may_queue or not switch.limiting else asked.hit(quick)
