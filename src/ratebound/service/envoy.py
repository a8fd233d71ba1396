"""Envoy's rate limit service: one atomic decision over all descriptors of a request.

A request that comes again, byte for byte, is neither parsed nor matched again. From memory a decision needs no task.
"""

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

from google.protobuf.message import DecodeError

from ratebound.clock import SECOND
from ratebound.decision import Decision, most_pressing
from ratebound.errors import StorageError
from ratebound.extras import extras_of
from ratebound.limit import MAX_COUNT, NOT_GIVEN, UNITS, Ask, Group, Limit
from ratebound.outcome import Row
from ratebound.policy import Identity, Policy, Rule
from ratebound.policy.runtime.bounded_queue import with_bounded_queues
from ratebound.policy.runtime.compiled_descriptors import CompiledDescriptor, override_identity
from ratebound.policy.runtime.gate import tell_verdict, wants_verdicts
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.verdict import Grounds, Shadow, Verdict
from ratebound.service.engine import Engine
from ratebound.service.envoy_messages import (
    METHOD,
    OK,
    OVER_LIMIT,
    UNIT_NAMES,
    UNIT_NUMBERS,
    RateLimitRequest,
    current_limit,
    response,
    status,
)
from ratebound.service.grpc import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    UNAVAILABLE,
    GrpcAnswer,
    GrpcCall,
    GrpcError,
    Method,
)
from ratebound.settling import peeked
from ratebound.switch import switch
from ratebound.telling import tell_decided

MAX_DESCRIPTORS: Final = 100  # of one request: Envoy's configuration decides how many it sends
MAX_REMEMBERED: Final = 4096  # requests that are remembered
MAX_MESSAGE: Final = 1024  # bytes of a request that is remembered
EXPECTED: Final = b"x-envoy-expected-rq-timeout-ms"
TOO_LATE: Final = "the storage of the limits did not answer in time"
OUT_OF_REACH: Final = "the storage of the limits is out of reach"
FREE: Final = status(OK)


class Hits:
    """The hits of one descriptor against the rule that it matches. A `cost` of 0 is a check, a negative one a refund.

    `limits` has the bytes of `current_limit` for each limit that is asked.
    """

    __slots__ = ("compiled", "cost", "is_enforced", "limits", "who")

    def __init__(self, compiled: CompiledDescriptor, who: Identity, cost: int, limits: Sequence[bytes]) -> None:
        self.compiled = compiled
        self.who = who
        self.cost = cost
        self.is_enforced = cost >= 0  # False if it never denies
        self.limits = limits
        if cost < 0 and isinstance(compiled.plan, tuple):
            pairs = zip(compiled.plan, limits, strict=True)
            self.limits = [told for limit, told in pairs if limit.takes_cost]

    def ask(self) -> Ask:
        """Return what to ask the storage. A check asks for one hit."""
        of_key = self.compiled.of_key
        assert of_key is not None
        extras = None if of_key.plain else extras_of(self.who.key, of_key.limits)
        return self.who.key, of_key.limits, self.cost or self.compiled.cost, None, extras

    def forced(self) -> Ask:
        """Return what to force. Only rates and quotas take a cost."""
        of_key = self.compiled.of_key
        assert of_key is not None
        limits = tuple(limit for limit in of_key.limits if limit.takes_cost)
        return self.who.key, limits, self.cost, None, [NOT_GIVEN] * len(limits)


class DescribedRequest:
    """A request of Envoy, with the rules that its descriptors match.

    `found` has one entry for each descriptor: None if it is free. `group` is what to spend if the request is plain: it
    only spends, and its asks are always the same.
    """

    __slots__ = ("checks", "denied", "found", "group", "is_plain", "queues", "refunds", "shadows", "spends")

    def __init__(self, found: list[Hits | None], shadowed: bool) -> None:
        self.found = found
        self.spends: list[Hits] = []
        self.checks: list[Hits] = []
        self.refunds: list[Hits] = []
        self.shadows: list[Hits] = []
        self.denied: Rule | None = None
        for place, hits in enumerate(found):
            if hits is None:
                continue
            compiled = hits.compiled
            if hits.cost < 0:
                if compiled.of_key is None:
                    found[place] = None
                else:
                    self.refunds.append(hits)
            elif shadowed or compiled.in_shadow:
                if hits.cost:
                    hits.is_enforced = False
                    self.shadows.append(hits)
                else:
                    found[place] = None
            elif compiled.plan == "deny":
                self.denied = self.denied or compiled.rule
            else:
                (self.spends if hits.cost else self.checks).append(hits)
        self.queues = any(hits.compiled.queues for hits in (*self.spends, *self.checks, *self.shadows))
        self.is_plain = (
            bool(self.spends)
            and not (self.checks or self.refunds or self.shadows or self.denied or self.queues)
            and not any(hits.compiled.charges_denied for hits in self.spends)
            and all(hits.compiled.of_key is not None and hits.compiled.of_key.plain for hits in self.spends)
        )
        self.group: Group = [hits.ask() for hits in self.spends] if self.is_plain else ()


class MatchedRequests:
    """The requests that came lately, matched to the rules of one policy under one position of the switch."""

    __slots__ = ("_known", "_limits", "_negative_hits", "compiled", "rejection", "turned")

    def __init__(self, compiled: CompiledPolicy, turned: str, negative_hits: bool) -> None:
        self.compiled = compiled
        self.turned = turned
        self._negative_hits = negative_hits
        self._known: dict[bytes, DescribedRequest] = {}
        self._limits: dict[int, tuple[CompiledDescriptor, list[bytes]]] = {}
        self.rejection = copy(compiled.policy.rejection_format)
        self.rejection.blocked_status = 429  # Envoy chooses the status, and the body must not tell another

    def find(self, message: bytes) -> DescribedRequest:
        """Return what a message asks. Raises GrpcError if it is not a valid request."""
        found = self._known.get(message)
        if found is None:
            found = self._read(message)
            if len(message) <= MAX_MESSAGE:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.clear()
                self._known[message] = found
        return found

    def _read(self, message: bytes) -> DescribedRequest:
        try:
            request = RateLimitRequest.FromString(message)
        except DecodeError:
            raise GrpcError(INVALID_ARGUMENT, "the message is not a RateLimitRequest") from None
        domain: bytes = request.domain
        if not domain:
            raise GrpcError(INVALID_ARGUMENT, "domain is empty: set the domain of Envoy's rate limit filter")
        if not 0 < len(request.descriptors) <= MAX_DESCRIPTORS:
            given = len(request.descriptors)
            raise GrpcError(INVALID_ARGUMENT, f"expected 1 to {MAX_DESCRIPTORS} descriptors, not {given}")
        hits = request.hits_addend or 1
        found = [self._hits(domain, one, hits, place) for place, one in enumerate(request.descriptors)]
        replaced = {name for one in found if one is not None for name in one.compiled.replaces}
        if replaced:
            found = [None if one is None or one.compiled.rule.name in replaced else one for one in found]
        return DescribedRequest(found, self.turned == "shadow")

    def _hits(self, domain: bytes, descriptor: Any, hits: int, place: int) -> Hits | None:
        """Return the hits of one descriptor; None if it is free."""
        if descriptor.HasField("hits_addend"):
            hits = descriptor.hits_addend.value
        if descriptor.is_negative_hits and not self._negative_hits:
            raise GrpcError(
                INVALID_ARGUMENT,
                f"descriptors[{place}].is_negative_hits: refunds are turned off; turn on negative_hits of the service",
            )
        table = self.compiled.descriptors
        if self.turned == "off" or not table.knows(domain):
            return None
        entries = [(entry.key, entry.value) for entry in descriptor.entries]
        compiled = table.find(domain, entries)
        if compiled is not None and compiled.is_off:
            return None
        if descriptor.HasField("limit"):
            unit = UNIT_NAMES.get(descriptor.limit.unit)
            if unit is None:
                raise GrpcError(
                    INVALID_ARGUMENT, f"descriptors[{place}].limit.unit: unknown unit {descriptor.limit.unit}"
                )
            count: int = descriptor.limit.requests_per_unit
            overridden = None if compiled is None else compiled.overridden(count, unit)
            compiled = overridden or table.override(count, unit)
            who = compiled.identity(entries) if overridden else override_identity(domain, entries)
        elif compiled is None or compiled.plan == "unlimited":
            return None
        else:
            who = compiled.identity(entries)
        cost = min(hits * compiled.cost, MAX_COUNT)
        if descriptor.is_negative_hits and cost and _has_log(compiled):
            raise GrpcError(
                INVALID_ARGUMENT,
                f"descriptors[{place}].is_negative_hits: the sliding log of rule {compiled.rule.name!r} cannot take"
                " hits back: write for example 'fixed-window' behind its limit",
            )
        return Hits(compiled, who, -cost if descriptor.is_negative_hits else cost, self._limits_of(compiled))

    def _limits_of(self, compiled: CompiledDescriptor) -> list[bytes]:
        """Return the limits of a rule as they are told to Envoy."""
        known = self._limits.get(id(compiled))
        if known is None:
            if len(self._limits) >= MAX_REMEMBERED:
                self._limits.clear()
            name, plan = compiled.rule.name, compiled.plan
            headers = self.compiled.policy.response_headers
            written = [current_limit(0, 0, name)] if plan == "deny" else []
            for limit in plan if isinstance(plan, tuple) else ():
                shown = headers.shown(limit)
                told = (
                    b""
                    if limit.is_penalty
                    else current_limit(shown.quota, _unit_of(limit), name if len(plan) == 1 else shown.name)
                )
                written.append(told)
            known = self._limits[id(compiled)] = compiled, written  # kept, so that its identity stays its own
        return known[1]


class EnvoyRateLimits:
    """Envoy's rate limit service over an engine. `methods` are its gRPC methods by path.

    Descriptors are matched to the `descriptors` of the policy. `negative_hits` allows refunds: a caller that may send
    them can undo any charge. A call waits for the storage no longer than Envoy waits for the call. If the storage fails
    and the failure mode is `closed` or `raise`, the call fails with UNAVAILABLE, and Envoy's own failure mode decides.
    """

    def __init__(self, engine: Engine, *, negative_hits: bool = False) -> None:
        self._engine = engine
        self._negative_hits = negative_hits
        self._matched = self._for(engine.gate.current(), "on")
        self.methods: dict[bytes, Method] = {METHOD: self.should_rate_limit}

    def _for(self, compiled: CompiledPolicy, turned: str) -> MatchedRequests:
        return MatchedRequests(compiled, turned, self._negative_hits)

    def should_rate_limit(self, call: GrpcCall) -> GrpcAnswer:
        """Answer one call: the bytes of a RateLimitResponse, or a coroutine that returns them.

        Raises GrpcError if the message is not a valid request.
        """
        gate = self._engine.gate
        compiled = gate.in_force_now()
        if compiled is None:
            return self._after_reading(call)
        turned = gate.switch or compiled.policy.switch
        matched = self._matched
        if matched.compiled is not compiled or matched.turned != turned:
            matched = self._matched = self._for(compiled, turned)
        asked = matched.find(call.message)
        if asked.is_plain:
            decision = self._decide_now(asked)
            if decision is not None:
                return self._answer(matched, asked, decision, _rows_of(asked.spends, decision.rows))
        elif not (asked.spends or asked.checks or asked.refunds or asked.shadows or asked.denied):
            return response(OK, FREE * len(asked.found))
        return self._engine.now(self._decide(matched, asked, call))

    async def _after_reading(self, call: GrpcCall) -> bytes:
        """Answer one call after operators' documents were read. Raises GrpcError if that takes too long."""
        try:
            async with asyncio.timeout(_patience(call)):
                await self._engine.gate.in_force()
        except TimeoutError:
            raise GrpcError(DEADLINE_EXCEEDED, TOO_LATE) from None
        answer = self.should_rate_limit(call)
        return answer if isinstance(answer, bytes) else await answer

    def _decide_now(self, asked: DescribedRequest) -> Decision | None:
        """Spend plain limits without a pause; None, having changed nothing, if that is not possible."""
        engine, group = self._engine, asked.group
        if len(group) == 1:
            of_key = asked.spends[0].compiled.of_key
            assert of_key is not None
            return engine.hit_now(group[0][0], of_key, group[0][2])
        decider = engine.decider
        at_once, listeners = decider.at_once, decider.listeners
        if at_once is None or not switch.limiting:
            return None
        begin = time.perf_counter() if listeners else 0.0
        decision = Decision(group, at_once(group))
        if listeners:
            tell_decided(listeners, decision, time.perf_counter() - begin)
        return decision

    async def _decide(self, matched: MatchedRequests, asked: DescribedRequest, call: GrpcCall) -> bytes:
        """Answer one call. Raises GrpcError if the storage cannot be asked, or not in time."""
        seconds = None if self._engine.never_pauses else _patience(call)
        try:
            if seconds is None:
                return await self._decided(matched, asked)
            async with asyncio.timeout(seconds):
                return await self._decided(matched, asked)
        except StorageError:
            raise GrpcError(UNAVAILABLE, OUT_OF_REACH) from None
        except TimeoutError:
            raise GrpcError(DEADLINE_EXCEEDED, TOO_LATE) from None

    async def _decided(self, matched: MatchedRequests, asked: DescribedRequest) -> bytes:
        if asked.denied is not None:
            return self._answer(matched, asked, None, {})
        decider = self._engine.decider
        begin = time.perf_counter()
        decision: Decision | None = None
        rows: RowsOfHits = {}
        if asked.checks:
            # A storage either checks or spends. The check comes first, and if it denies, nothing is spent.
            both = [*asked.checks, *asked.spends]
            group: Group = [hits.ask() for hits in both]
            decision = peeked(Decision(group, (await decider.evaluate(_bounded(asked, [group]), "peek"))[0]))
            rows.update(_rows_of(both, decision.rows))
        shadows: list[Shadow] = []
        if decision is None or decision.allowed:
            spent = asked.group or [hits.ask() for hits in asked.spends]
            tried: list[tuple[Hits, Group | None]] = [
                (hits, None if hits.compiled.of_key is None else (hits.ask(),)) for hits in asked.shadows
            ]
            groups = [*([spent] if spent else []), *(one for _, one in tried if one is not None)]
            answers = iter(await decider.spend(_bounded(asked, groups)) if groups else ())
            if spent:
                decision = Decision(spent, next(answers))
                rows.update(_rows_of(asked.spends, decision.rows))
                if decider.listeners:
                    tell_decided(decider.listeners, decision, time.perf_counter() - begin)
            for hits, one in tried:
                found = None if one is None else Decision(one, next(answers))
                shadows.append(Shadow(hits.compiled.rule, False, hits.who, found))
                if found is not None:
                    rows[hits] = found.rows
        if decision is None or decision.allowed:
            forced = asked.refunds
        else:
            forced = [hits for hits in asked.spends if hits.compiled.charges_denied]
        if forced:
            group = [hits.forced() for hits in forced]
            after = (await decider.evaluate([group], "force"))[0]
            if forced is asked.refunds:
                rows.update(_rows_of(forced, after))
        return self._answer(matched, asked, decision, rows, shadows, time.perf_counter() - begin)

    def _answer(
        self,
        matched: MatchedRequests,
        asked: DescribedRequest,
        decision: Decision | None,
        rows: "RowsOfHits",
        shadows: Sequence[Shadow] = (),
        seconds: float = 0.0,
    ) -> bytes:
        """Return the response, and tell the listeners of the verdict. Raises GrpcError if the storage is out of reach
        and the limits are to deny then: Envoy's own failure mode decides."""
        if decision is not None and decision.unavailable:
            raise GrpcError(UNAVAILABLE, OUT_OF_REACH)
        policy = matched.compiled.policy
        allowed = asked.denied is None and (decision is None or decision.allowed)
        listeners = self._engine.decider.listeners
        if shadows or not allowed or any(map(wants_verdicts, listeners)):
            verdict = _verdict(policy, asked, decision, allowed, shadows)
            tell_verdict(listeners, verdict, seconds)
            if not allowed:
                return self._rejection(matched, asked, verdict, rows)
        headers = policy.response_headers.pairs(decision) if decision is not None else ()
        return response(OK, _statuses(asked, rows), headers)

    def _rejection(
        self, matched: MatchedRequests, asked: DescribedRequest, verdict: Verdict, rows: "RowsOfHits"
    ) -> bytes:
        decision = verdict.decision
        _, message, documentation = verdict.told()
        if decision is None:
            written = matched.rejection.block(message=message, documentation=documentation)
        else:
            written = matched.rejection.respond(decision, message=message, documentation=documentation)
        return response(OVER_LIMIT, _statuses(asked, rows), written.headers, written.body)


RowsOfHits = dict[Hits, Sequence[Row]]


def _rows_of(asked: Sequence[Hits], rows: Sequence[Row]) -> RowsOfHits:
    """Return the rows of each of these hits."""
    if len(asked) == 1:
        return {asked[0]: rows}
    found: RowsOfHits = {}
    begin = 0
    for hits in asked:
        end = begin + len(hits.limits)
        found[hits] = rows[begin:end]
        begin = end
    return found


def _statuses(asked: DescribedRequest, rows: RowsOfHits) -> bytes:
    """Return the statuses of all descriptors, in their order."""
    written = b""
    for hits in asked.found:
        if hits is None:
            written += FREE
            continue
        of_hits = rows.get(hits)
        if of_hits is None:  # without an answer: a rule that denies all, or others if there is one
            denies = hits.is_enforced and hits.compiled.plan == "deny"
            written += status(OVER_LIMIT, hits.limits[0]) if denies else FREE
            continue
        place = 0
        if len(of_hits) > 1:
            allowed = all(row[0] for row in of_hits)
            place = most_pressing(of_hits, [not told for told in hits.limits] if allowed else ())
        row = of_hits[place]
        wait = row[3] if row[0] else row[2]
        if wait is None:  # it can never pass: without a time Envoy would tell the client to come back in a second
            limit = hits.compiled.plan[place]
            wait = limit.period_us if isinstance(limit, Limit) else SECOND
        until = -(-wait // SECOND)
        code = OK if row[0] or not hits.is_enforced else OVER_LIMIT
        written += status(code, hits.limits[place], row[1], until)
    return written


def _verdict(
    policy: Policy, asked: DescribedRequest, decision: Decision | None, allowed: bool, shadows: Sequence[Shadow]
) -> Verdict:
    """Return the verdict that listeners are told of."""
    rules: Sequence[Rule] = ()
    identities: Sequence[Identity] = ()
    kind = "unlimited"
    if asked.denied is not None:
        kind, rules = "deny", (asked.denied,)
        identities = [hits.who for hits in asked.found if hits is not None and hits.compiled.rule is asked.denied][:1]
    elif decision is not None:
        of_decision = [*asked.checks, *asked.spends] if decision.final else asked.spends
        kind, rules = "limited", [hits.compiled.rule for hits in of_decision]
        identities = [hits.who for hits in of_decision]
    grounds = Grounds(kind, policy, "late", rules)
    return Verdict(grounds, None, allowed, decision, identities, tuple(shadows))


def _bounded(asked: DescribedRequest, groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups with queues that have no places: Envoy cannot be told to wait."""
    return with_bounded_queues(groups, 0) if asked.queues else groups


def _patience(call: GrpcCall) -> float | None:
    """Return how long the caller waits, in seconds; None if it does not say so."""
    seconds = call.timeout
    for name, value in call.metadata:
        if name == EXPECTED and value.isdigit() and len(value) < 10:
            expected = int(value) / 1000
            seconds = expected if seconds is None else min(seconds, expected)
    return seconds


def _has_log(compiled: CompiledDescriptor) -> bool:
    """Return True if a limit stores each hit with its time: a refund does not say which hits it is for."""
    return isinstance(compiled.plan, tuple) and any(limit.algorithm == "sliding-log" for limit in compiled.plan)


def _unit_of(limit: Limit) -> int:
    """Return the number of the unit in which the quota of a limit comes back; 0 if it is another time."""
    if limit.calendar is not None:
        return UNIT_NUMBERS.get(limit.calendar.unit, 0)
    span = limit.burst * limit.period_us
    return next((number for unit, number in UNIT_NUMBERS.items() if span == limit.count * UNITS[unit]), 0)
