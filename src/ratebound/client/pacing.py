"""Pacing: how a request waits for its turn, and what is learned from its answer. Flows without I/O.

`PacerCalls` are the calls that a pacer makes: with `run` of flow.py they are made in a thread, with `run_async` in a
task. A turn is decided by one group of asks, all or nothing: the configured limits, the mirrors of the learned quotas
(see learned_limits.py), and the gate of the origin, a limit that nobody ever reaches and that a refusal fills up to the
instant at which the server wants to be asked again. So a turn takes one trip to the storage.

What is learned of an origin is in a shared document, so that one process learns from the answers of another.
"""

import logging
import random
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol

from ratebound.client.learned_limits import (
    LOG,
    SMOOTH,
    TELLING,
    WINDOW,
    Mirror,
    Shape,
    as_told,
    at,
    checked_count,
    corrections,
    first_shape,
    joined,
    mirrored,
    next_shape,
    refuted,
    surprise,
)
from ratebound.client.learned_origins import (
    KnownLimit,
    LearnedOrigin,
    LearnedOrigins,
    LearnedQuota,
    SharedShape,
    known_limit,
    printable,
    read_shapes,
    sight_of,
    write_shapes,
)
from ratebound.client.storage_time import StorageTime
from ratebound.clock import SECOND, seconds
from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.extras import extras_of
from ratebound.flow import Flow
from ratebound.fork import renew_in_children
from ratebound.http.quota import Advice, Quota
from ratebound.limit import BUCKETS, MAX_PERIOD, Ask, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.rate_limited import Patience, RateLimited
from ratebound.settling import undoing
from ratebound.switch import switch
from ratebound.waiting import Lines, Ticket

log = logging.getLogger("ratebound")

DOCUMENT: Final = "pacing"
FRESH: Final = 0.2  # seconds for which a copy of the shared document is used
PROBE: Final = 2.0  # seconds for which others wait for the first answer of an origin
PROBE_NAP: Final = 0.005
HORIZON: Final = SECOND // 4  # a place in a bucket is taken no further ahead: until then more may be learned
NAP: Final = 1.0  # the longest sleep between two tries, in seconds
SLOT_NAP: Final = 0.05
REFUSED_FOR: Final = 1.0  # seconds, if a refusal says no time
MOST_CLOSED: Final = 900.0
TRIES: Final = 8
LONGEST_NAME: Final = 256  # of a quota that is learned: names are in the shared document
FORGIVEN: Final = 2  # refusals that a server may make before the kind of its quota is given up
FORGIVEN_IF_SHORT: Final = 0  # of a quota whose kind its resets do not tell
MOVED: Final = 2_000  # microseconds by which the end of a window moves before other processes are told
GATE_COUNT: Final = 10**9  # per 1 000 seconds: one for each microsecond


def gate(burst: int) -> Limit:
    """Return the limit that is the gate of an origin. With a larger burst it is what closes the gate for longer."""
    return Limit(GATE_COUNT, 1_000 * SECOND, max(burst, 1), "gcra", "server:closed")


GATE: Final = gate(1_000)


class PacerCalls(Protocol):
    """The calls that a pacer makes. What they return is awaited if it can be."""

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> Any:
        """Ask the storage. A caller that is interrupted has spent nothing."""

    def sleep(self, seconds: float) -> Any:
        """Sleep."""

    def in_time(self, ticket: Any, seconds: float | None) -> Any:
        """Wait until the ticket is set. Return False if it was not set in time."""

    def read_document(self, name: str) -> Any:
        """Return the version and the content of a shared document."""

    def write_document(self, name: str, content: bytes, version: int) -> Any:
        """Store a shared document if the version is still the stored one."""


class TurnNotInTime(RateLimited):
    """The turn of a request does not come within `timeout`.

    Args:
        decision: The denial.
        patience: How long the caller would have waited.
        origin: The server.
        wait: The time until the turn would come, in seconds.
    """

    def __init__(self, decision: Decision, patience: Patience, origin: str, wait: float) -> None:
        super().__init__(decision, patience)
        self.args = (decision, patience, origin, wait)
        self.origin = origin
        self.wait = wait

    def __str__(self) -> str:
        limit, given = self.decision.limit, self.patience.seconds if self.patience else 0.0
        whose = f" of {self.origin}" if self.origin else ""
        if limit.scope == GATE.scope:
            return f"the server{whose} refused requests for {self.wait:.6g} s more, but timeout is {given:g} s"
        return f"the limit '{limit}'{whose} gives the next turn in {self.wait:.6g} s, but timeout is {given:g} s"


class Wanted(NamedTuple):
    """The turn that a caller wants. Tokens are counted by quotas of tokens."""

    origin: str
    cost: int
    tokens: int
    patience: Patience | None  # None: as long as it takes


class Granted(NamedTuple):
    """A turn that has come. `sent` is the instant from which on the request is sent, by the storage's clock.

    `left` has what each mirror had left, by the key of its state.
    """

    wanted: Wanted
    decision: Decision | None
    sent: int
    left: dict[str, int]
    waited: float
    is_probe: bool

    def keeps_to(self, key: str) -> bool:
        """Return True if a mirror of the quota with this key gave the turn."""
        return any(state.startswith(f"{key} ") for state in self.left)

    def unspent(self, key: str, kind: str) -> int | None:
        """Return what the mirror of a quota of this kind had left; None if it was not asked, or not alone."""
        if kind == WINDOW:
            found = [left for state, left in self.left.items() if state.startswith(f"{key} ")]
            return found[0] if len(found) == 1 else None
        return self.left.get(f"{key} {LOG if kind == SMOOTH else kind}")


class TurnPlan(NamedTuple):
    """The asks of one try, and the mirrors among them by the index of their ask."""

    group: list[Ask]
    mirrors: dict[int, tuple[LearnedQuota, Mirror]]


class PacerCore:
    """The part of a pacer that threads and tasks share: its limits, and what it has learned."""

    def __init__(
        self,
        limits: tuple[Limit, ...],
        *,
        name: str,
        learn: bool,
        shares: bool,
        max_wait: float,
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.name = name
        self.learn = learn
        self.max_wait = max_wait
        self.time = StorageTime(clock)
        self._clock = clock
        self._shares = shares and learn
        self._origins = LearnedOrigins(name)
        self._document = self._origins.key(DOCUMENT)
        self._shared: dict[str, SharedShape] = {}
        self._read_at = float("-inf")
        self._lines = Lines()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, and let no probe of the parent hold it up."""
        self._lock = threading.RLock()
        for origin in self._origins:
            origin.probe_until = 0.0

    def known_limits(self) -> list[KnownLimit]:
        """Return all limits, for people."""
        found = [
            KnownLimit(self.name, limit.name, "requests", limit.count, seconds(limit.period_us), "configured")
            for limit in self.limits
        ]
        with self._lock:
            for origin in self._origins:
                found += [known_limit(origin, each, each.shape) for each in origin.quotas.values() if each.shape]
        return found

    def coming(
        self, wanted: Wanted, calls: PacerCalls, ticket: Ticket, loop: AbstractEventLoop | None
    ) -> Flow[Granted]:
        """Wait until a request may be sent. Raises TurnNotInTime, with nothing charged, if that is too late.

        A caller that is cancelled or interrupted gives its turn back.
        """
        begin = self._clock()
        with self._lock:
            origin = self._origins.origin(wanted.origin)
            origin.last_turn = origin.last_turn or begin
        place = loop, wanted.origin
        is_first = self._lines.enter(place, ticket, 1)
        try:
            if not is_first:
                yield from self._behind_others(origin, wanted, calls, ticket)
            decision, mirrors, is_probe = yield from self._try(origin, wanted, calls, begin)
        finally:
            self._lines.leave(place, ticket)
        if decision is not None:
            yield from self._delay(origin, decision, wanted, begin, calls)
        origin.last_turn = self._clock()
        left = {} if decision is None else _left(decision, mirrors)
        return Granted(wanted, decision, self.time.now(), left, self._clock() - begin, is_probe)

    def _behind_others(self, origin: LearnedOrigin, wanted: Wanted, calls: PacerCalls, ticket: Ticket) -> Flow[None]:
        """Wait in line. Raises TurnNotInTime at once if not even the first in line would be in time."""
        if wanted.patience is None:
            yield partial(calls.in_time, ticket, None)
            return
        plan = self._plan(origin, wanted, 0)
        if plan.group:
            decision = yield from self._evaluate(calls, plan.group, "peek")
            if not decision.allowed:
                patience = wanted.patience.microseconds
                self._refuse_if_late(origin, decision, self._wait(decision, plan, patience)[0], wanted, patience)
        in_time = yield partial(calls.in_time, ticket, wanted.patience.seconds)
        if not in_time and plan.group:
            decision = yield from self._evaluate(calls, plan.group, "peek")
            raise TurnNotInTime(decision, wanted.patience, origin.name, decision.retry_after or 0.0)

    def _try(
        self, origin: LearnedOrigin, wanted: Wanted, calls: PacerCalls, begin: float
    ) -> Flow[tuple[Decision | None, dict[int, tuple[LearnedQuota, Mirror]], bool]]:
        """Try until the turn comes. The caller is the first in line."""
        since = self._clock()
        while True:
            left = self._left(wanted, begin)
            yield from self._refresh(calls)
            if self.learn and not self.time.known and self._shared:
                yield from self._evaluate(calls, [(origin.gate, (GATE,), 1, None, None)], "peek")
            if not self._may_go(origin) and left:
                yield partial(calls.sleep, min(PROBE_NAP, seconds(left)))
                continue
            plan = self._plan(origin, wanted, left)
            if not plan.group:
                return None, {}, self._probing(origin)
            decision = yield from self._evaluate(calls, plan.group, "spend")
            if decision.allowed:
                return decision, plan.mirrors, self._probing(origin)
            wait, nap = self._wait(decision, plan, left)
            waited = self._clock() - since
            is_stuck = self._is_stuck(origin, decision, wait, waited)
            if not is_stuck:
                self._refuse_if_late(origin, decision, wait, wanted, left)
            if is_stuck or not switch.sleeping:
                forced = yield from self._evaluate(calls, plan.group, "force")
                return forced, plan.mirrors, self._probing(origin)
            log.debug("%s: waiting %.3f s for %s", origin.name, nap, decision.limit)
            yield partial(calls.sleep, min(nap, NAP, max(self.max_wait - waited, 0.001)))

    def _evaluate(self, calls: PacerCalls, group: Group, mode: Mode) -> Flow[Decision]:
        before = self._clock()
        rows: Sequence[Row] = (yield partial(calls.evaluate, (group,), mode))[0]
        decision = Decision(group, rows)
        self.time.see(decision.at, before, self._clock())
        return decision

    def _is_unknown(self, origin: LearnedOrigin) -> bool:
        """Return True if nothing limits requests to an origin but what its first answer will say."""
        return self.learn and not (self.limits or origin.answered or origin.silent or origin.quotas)

    def _may_go(self, origin: LearnedOrigin) -> bool:
        """Return True unless the first answer of an origin is awaited: one request asks what its limits are."""
        if not self._is_unknown(origin):
            return True
        now = self._clock()
        with self._lock:
            if now < origin.probe_until:
                return False
            if origin.probe_until:
                origin.silent = True  # it was not answered, or nobody told
            return True

    def _probing(self, origin: LearnedOrigin) -> bool:
        """Return True if the request that goes now is the first of its origin. Others wait for its answer."""
        if not self._is_unknown(origin):
            return False
        with self._lock:
            origin.probe_until = self._clock() + PROBE
        return True

    def _plan(self, origin: LearnedOrigin, wanted: Wanted, left: int) -> TurnPlan:
        """Return what is asked for a turn now."""
        asks: list[tuple[str, tuple[Limit, ...], int]] = []
        mirrors: dict[int, tuple[LearnedQuota, Mirror]] = {}
        horizon = HORIZON
        if self.limits:
            asks.append((f"pacer {self.name or origin.name}", self.limits, wanted.cost))
        if self.learn:
            asks.append((origin.gate, (GATE,), 1))
            now = self.time.now()
            with self._lock:
                quotas = [(each, each.shape) for each in origin.quotas.values() if each.shape is not None]
            for quota, shape in quotas:
                horizon = 0 if shape.fill else horizon  # its rate is not sure, and an answer may correct it
                units = units_of(quota.unit, wanted)
                for mirror in mirrored(shape, now, quota.label) if units else ():
                    mirrors[len(asks)] = quota, mirror
                    asks.append((f"{quota.key} {mirror.suffix}", (mirror.limit,), min(units, mirror.limit.burst)))
        limits = [limit for _, its, _ in asks for limit in its]
        # Without a timeout a turn need not be known far ahead: in a short line, those behind a cancelled one move up.
        patience = left if not self.learn and wanted.patience is not None else min(left, horizon)
        if all(limit.algorithm in BUCKETS for limit in limits):
            return TurnPlan([(key, its, cost, patience, None) for key, its, cost in asks], mirrors)
        group: list[Ask] = []
        for key, its, cost in asks:  # a window counts no other instant than now, so nothing takes a place ahead
            queues = tuple(limit for limit in its if limit.queues)
            others = tuple(limit for limit in its if not limit.queues)
            if others:
                group.append((key, others, cost, None, extras_of(key, others, None, strikes=False)))
            if queues:
                group.append((key, queues, cost, 0, None))
        if len(group) > len(asks):  # the configured limits, which come first, were divided
            mirrors = {i + len(group) - len(asks): found for i, found in mirrors.items()}
        return TurnPlan(group, mirrors)

    def _wait(self, decision: Decision, plan: TurnPlan, left: int) -> tuple[int | None, float]:
        """Return the time until the turn comes, None if it never does, and the seconds after which to try again."""
        longest, nap = 0, float("inf")
        is_never = False
        row = 0
        for i, (_, limits, *_) in enumerate(plan.group):
            for limit in limits:
                allowed, _, wait, *_ = decision.rows[row]
                row += 1
                if allowed:
                    continue
                if limit.has_slots:
                    nap = random.uniform(SLOT_NAP / 2, SLOT_NAP)
                    wait = 0 if left else None
                elif i in plan.mirrors and plan.mirrors[i][1].lasts:
                    lasts, is_log = plan.mirrors[i][1].lasts, limit.algorithm == "sliding-log"
                    wait = min(wait, lasts) if is_log and wait is not None else lasts
                is_never = is_never or wait is None
                longest = max(longest, wait or 0)
        pause = min(seconds(longest), nap) if nap != float("inf") and not longest else max(seconds(longest), 0.0001)
        return None if is_never else longest, pause

    def _refuse_if_late(
        self, origin: LearnedOrigin, decision: Decision, wait: int | None, wanted: Wanted, left: int
    ) -> None:
        """Raise RateLimited if a turn comes too late, or never."""
        if wanted.patience is None:
            if wait is None:
                raise RateLimited(decision)
            return
        wait = MAX_PERIOD if wait is None else wait
        if wait > left:
            raise TurnNotInTime(decision, wanted.patience, origin.name, seconds(wait))

    def _is_stuck(self, origin: LearnedOrigin, decision: Decision, wait: int | None, waited: float) -> bool:
        """Return True if a server has held up requests for longer than it is believed.

        A caller with a timeout may never wait for so long: then the time since the last turn counts.
        """
        if wait is not None and wait > self.max_wait * SECOND:
            waited = max(waited, self._clock() - origin.last_turn)
        if waited < self.max_wait:
            return False
        if any(limit in self.limits and not row[0] for limit, row in zip(decision.limits, decision.rows, strict=True)):
            return False
        _log_stuck(origin.name, self.max_wait)
        return True

    def _left(self, wanted: Wanted, begin: float) -> int:
        """Return the microseconds that a caller still has."""
        if wanted.patience is None:
            return MAX_PERIOD
        return max(wanted.patience.microseconds - round((self._clock() - begin) * SECOND), 0)

    def _delay(
        self, origin: LearnedOrigin, decision: Decision, wanted: Wanted, begin: float, calls: PacerCalls
    ) -> Flow[None]:
        """Sleep until the place comes that was taken. A caller that is cancelled or interrupted gives it back.

        A refusal may have closed the origin meanwhile. Raises TurnNotInTime if it does not open in time.
        """
        if not decision.delay:
            return
        closed = round((origin.closed_until - self._clock()) * SECOND)
        try:
            if wanted.patience is not None and closed > max(self._left(wanted, begin), decision.delay * SECOND):
                gate_ask = (origin.gate, (GATE,), 1, None, None)
                denial = Decision([gate_ask], [(False, 0, closed, closed, 0, decision.at, 0, 0, None)])
                raise TurnNotInTime(denial, wanted.patience, origin.name, seconds(closed))
            yield partial(calls.sleep, max(decision.delay, seconds(closed)))
        except GeneratorExit:  # nobody drives this any more: the place comes back when its time has passed
            raise
        except BaseException:
            with suppress(Exception):  # a storage that fails now must not hide why the caller goes
                yield partial(calls.evaluate, (undoing(decision.asks, decision.rows),), "force")
            raise

    def ended(self, granted: Granted, *, told: bool) -> None:
        """Note that a turn is over. Without `told`, the caller never said how the request ended."""
        with self._lock:
            origin = self._origins.origin(granted.wanted.origin)
            if granted.is_probe and not origin.answered:
                origin.probe_until = 0.0
                origin.silent = origin.silent or not told

    def answered(self, granted: Granted, advice: Advice, calls: PacerCalls) -> Flow[None]:
        """Learn from an answer."""
        if not self.learn:
            return
        received = self.time.now()
        sent = min(granted.sent, received)
        with self._lock:
            origin = self._origins.origin(granted.wanted.origin)
            origin.answered = True
            origin.probe_until = 0.0
        closes = 0.0
        if advice.refused and not any(quota.remaining == 0 for quota in advice.quotas):
            yield from self._slow_down(origin, granted, received, calls)
        for quota in advice.quotas[:16]:
            units = units_of(quota.unit, granted.wanted)
            if len(quota.name) > LONGEST_NAME or len(quota.partition or b"") > LONGEST_NAME:
                units = 0
            if not units:
                if quota.remaining == 0 and quota.reset_after:
                    closes = max(closes, quota.reset_after)
                continue
            yield from self._learn(origin, quota, units, granted, advice, sent, received, calls)
        if advice.refused:
            wait = REFUSED_FOR if advice.retry_after is None else advice.retry_after
            closes = max(closes, wait + random.uniform(0.0, min(0.02, wait / 20)))
        if closes > 0:
            yield from self._close(origin, closes, calls)

    def _slow_down(self, origin: LearnedOrigin, granted: Granted, received: int, calls: PacerCalls) -> Flow[None]:
        """Keep buckets to the rate that the server told: what it says of the remaining units is not true."""
        with self._lock:
            found = [(one, each, each.shape) for one, each in origin.quotas.items() if granted.keeps_to(each.key)]
        for (name, partition, unit), learned, known in found:
            if known is not None and known.fill:
                learned.shape = as_told(known, received)
                quota = Quota(name, unit=unit, partition=partition)
                yield from self._tell(origin, quota, learned, known, learned.shape, received, calls)

    def _learn(
        self,
        origin: LearnedOrigin,
        quota: Quota,
        units: int,
        granted: Granted,
        advice: Advice,
        sent: int,
        received: int,
        calls: PacerCalls,
    ) -> Flow[None]:
        """Learn from one quota of an answer: its shape, and how far it is used."""
        count = checked_count(quota.limit if quota.limit is not None else quota.remaining)
        if count is None:
            return
        key = self._origins.quota_key(origin.name, quota)
        delayed = granted.waited > 0.0005
        with self._lock:
            learned = origin.quota(key, quota)
            known = learned.shape
            unspent = granted.unspent(key, known.kind) if known is not None else None
            sight = sight_of(quota, sent, received, delayed=delayed, count=count, unspent=unspent)
            shape = first_shape(sight) if known is None else next_shape(known, sight, learned.watch)
            if shape is None:
                return
            if advice.refused and known is not None and sight.remaining == 0 and granted.keeps_to(key):
                learned.watch.refusals += 1
                if learned.watch.refusals > (FORGIVEN_IF_SHORT if shape.period < TELLING else FORGIVEN):
                    shape = refuted(shape, received)
            learned.shape = shape
            learned.remaining = sight.remaining
        shape = yield from self._tell(origin, quota, learned, known, shape, received, calls)
        learned.watch.see(sight)
        is_fresh = shape.kind != WINDOW or sight.sent >= at(shape, received).early - shape.period
        if is_fresh and not granted.keeps_to(key):
            for mirror in mirrored(shape, received, learned.label):  # it was sent before this quota was known
                asks = [(f"{key} {mirror.suffix}", (mirror.limit,), min(units, mirror.limit.burst), None, None)]
                yield from self._evaluate(calls, asks, "force")
        missing = 0
        found = corrections(shape, sight, learned.label)
        if received < shape.since:
            found += corrections(shape._replace(kind=shape.before), sight, learned.label)
        for mirror, may_be_left in found:
            state = f"{key} {mirror.suffix}"
            left = granted.left.get(state, may_be_left + 1)
            if left > may_be_left or received < shape.since:
                used = yield from self._use_up(state, mirror.limit, calls)
                if state in granted.left and left > may_be_left:
                    missing = max(missing, used)
        if missing >= surprise(shape) and received >= shape.since:
            with self._lock:
                known, learned.shape = shape, refuted(shape, received)
            yield from self._tell(origin, quota, learned, known, learned.shape, received, calls)

    def _tell(
        self,
        origin: LearnedOrigin,
        quota: Quota,
        learned: LearnedQuota,
        known: Shape | None,
        shape: Shape,
        now: int,
        calls: PacerCalls,
    ) -> Flow[Shape]:
        """Share a shape if it differs from the known one. Return the shape that holds now."""
        if known is not None and not _differ(known, shape, now):
            return shape
        log.debug("%s: learned %s", origin.name, known_limit(origin, learned, shape))
        if self._shares:
            yield from self._share(origin, quota, learned, known, calls)
        return learned.shape or shape

    def _use_up(self, key: str, limit: Limit, calls: PacerCalls) -> Flow[int]:
        """Spend all that a limit has left, and return it. Several processes that do so at once spend it once."""
        for _ in range(TRIES):
            decision = yield from self._evaluate(calls, [(key, (limit,), 1, None, None)], "peek")
            left = decision.rows[0][1]
            if not left:
                return 0
            decision = yield from self._evaluate(calls, [(key, (limit,), left, None, None)], "spend")
            if decision.allowed:
                return left
        return 0

    def _close(self, origin: LearnedOrigin, closes: float, calls: PacerCalls) -> Flow[None]:
        """Let nobody send a request to an origin for so many seconds."""
        most = min(self.max_wait, MOST_CLOSED)
        if closes > most:
            _log_capped(origin.name, closes, most)
        closes = min(closes, most)
        origin.closed_until = max(origin.closed_until, self._clock() + closes)
        burst = round(closes * SECOND) + GATE.burst
        yield from self._use_up(origin.gate, gate(burst), calls)  # the gate's burst is no time to send

    def _refresh(self, calls: PacerCalls) -> Flow[None]:
        """Read the shared document if the copy of it is old."""
        if not self._shares or self._clock() - self._read_at < FRESH:
            return
        self._read_at = self._clock()
        try:
            _, content = yield partial(calls.read_document, self._document)
        except StorageError as error:
            _log_unshared(str(error))
            return
        self._adopt(read_shapes(content))

    def _adopt(self, shared: dict[str, SharedShape]) -> None:
        with self._lock:
            self._shared = shared
            for key, (name, quota, shape) in shared.items():
                origin = self._origins.origin(name)
                learned = origin.quota(key, quota)
                if learned.shape is None or _differ(learned.shape, shape, self.time.now()):
                    learned.shape = shape

    def _share(
        self, origin: LearnedOrigin, quota: Quota, learned: LearnedQuota, known: Shape | None, calls: PacerCalls
    ) -> Flow[None]:
        """Tell other processes of the shape of a quota, unless they have told another one meanwhile."""
        for _ in range(TRIES):
            try:
                version, content = yield partial(calls.read_document, self._document)
                entries = read_shapes(content)
                theirs = entries.pop(learned.key, None)
                if theirs is not None and (known is None or _essence(theirs.shape) != _essence(known)):
                    learned.shape = theirs.shape
                    return
                assert learned.shape is not None
                if theirs is not None:
                    learned.shape = joined(learned.shape, theirs.shape)
                entries[learned.key] = SharedShape(origin.name, quota, learned.shape)
                if (yield partial(calls.write_document, self._document, write_shapes(entries), version)):
                    return
            except StorageError as error:
                _log_unshared(str(error))
                return


def _left(decision: Decision, mirrors: dict[int, tuple[LearnedQuota, Mirror]]) -> dict[str, int]:
    """Return what each mirror has left, by the key of its state."""
    found: dict[str, int] = {}
    row = 0
    for i, (key, limits, *_) in enumerate(decision.asks):
        if i in mirrors:
            found[key] = decision.rows[row][1]
        row += len(limits)
    return found


def units_of(unit: str, wanted: Wanted) -> int:
    """Return what a request costs in a unit; 0 if that is not known."""
    if unit in ("requests", "request"):
        return wanted.cost
    return wanted.tokens if "token" in unit else 0


def _essence(shape: Shape) -> tuple[object, ...]:
    """Return what two processes must not change at once."""
    return shape.kind, shape.units, shape.period, shape.fill


def _differ(one: Shape, other: Shape, now: int) -> bool:
    """Return True if two shapes differ by more than others must know of."""
    one, other = at(one, now), at(other, now)
    same = one._replace(early=0, end=0, before="", since=0) == other._replace(early=0, end=0, before="", since=0)
    return not same or abs(one.end - other.end) > MOVED


@lru_cache(maxsize=256)
def _log_stuck(origin: str, most: float) -> None:
    log.warning(
        "%s has held up requests for %g s; the pacer now sends one request each time that this time has passed",
        printable(origin),
        most,
    )


@lru_cache(maxsize=256)
def _log_capped(origin: str, closes: float, most: float) -> None:
    log.warning("%s asks clients to wait %.0f s; the pacer waits at most %g s", printable(origin), closes, most)


@lru_cache(maxsize=8)
def _log_unshared(why: str) -> None:
    log.warning("the storage failed, so this process shares no learned limits until it answers: %s", why)
