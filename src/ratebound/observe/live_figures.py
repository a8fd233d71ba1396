"""Live figures of one process: what a dashboard shows of its decisions, clients, storage and slots.

Usual decisions are counted by decision_counts.py, everything else here. Keys of clients stay in this process, in clear;
a snapshot has their digests. So the work of a digest is done once for each snapshot, not for each denial, and an
operator of this process can be told a name.
"""

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

from ratebound.clock import Clock
from ratebound.decision import Decision
from ratebound.duration import Duration
from ratebound.events import (
    BlockBegan,
    Called,
    Decided,
    Degraded,
    Event,
    PressureChanged,
    Recovered,
    RequestShed,
    Shadowed,
)
from ratebound.fork import renew_in_children
from ratebound.holding import loop_renewers, thread_renewer
from ratebound.limit import Limit
from ratebound.observe.client import LONG_KEY, denied_keys, naming
from ratebound.observe.decision_counts import MOST_RULES, DecisionCounts, Histogram, RuleCounts, denying_limit
from ratebound.observe.figures_snapshot import Snapshot
from ratebound.observe.label import SECONDS, SHARES, checked_limits, label_of, node_label, used_share
from ratebound.observe.memory_usage import InMemory, memory_of
from ratebound.observe.top import TopListener, blocks_of
from ratebound.outcome import DegradedRows
from ratebound.storage import unguarded
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage

MOST_CLIENTS: Final = 50  # in a snapshot
MOST_USED: Final = 150  # limits whose used share is in a snapshot
MOST_NODES: Final = 20
MOST_SLOTS: Final = 50  # limits whose slots are in a snapshot
WINDOW: Final = 600.0  # seconds: denials of clients are those of the last one to two windows
FOLDED: Final = 1_000  # denials that are collected before they are counted by client


class NodeCounts:
    """The calls to one node of the storage. The shards of a zone of shared memory are one node."""

    __slots__ = ("away", "calls", "errors", "seconds")

    def __init__(self, name: str) -> None:
        self.away: set[str] = set()  # what is out of reach
        self.calls = 0
        self.errors = 0
        self.seconds = Histogram(SECONDS)


class ShadowCounts:
    """The decisions that a rule in shadow, or candidate limits, would have made, and what the rule had counted before.

    If the rule has decided before, the first decision of the shadow is missing in the counts of the rule.
    """

    __slots__ = ("allowed", "denied", "live", "live_allowed", "live_denied", "since")

    def __init__(self, live: RuleCounts | None, since: float) -> None:
        self.allowed = 0
        self.denied = 0
        self.since = since
        self.live = live
        self.live_allowed = self.live_denied = 0
        if live is not None and live.allowed + live.denied > 1:  # one is the decision that this shadow belongs to
            self.live_allowed, self.live_denied = live.allowed, live.denied

    def row(self, live: RuleCounts | None) -> list[Any]:
        """Return the counts of the shadow, and those of the rule since the shadow began."""
        if live is None:
            return [self.allowed, self.denied, 0, 0, self.since]
        before = (self.live_allowed, self.live_denied) if live is self.live else (0, 0)
        return [self.allowed, self.denied, live.allowed - before[0], live.denied - before[1], self.since]


class LiveFigures:
    """A listener that counts what a dashboard shows. `own()` returns a snapshot of it.

    With `counts`, which must be a listener of the same gate, it shares them and is told by them: then it must not be a
    listener itself. Else it has counts of its own. Either way `figures.counts` is the quickest listener. A forked child
    begins at zero. Functions in `slot_counts` add slots that are held and not renewed, by limit.
    """

    ignores_verdicts = True
    logs = False

    def __init__(
        self, counts: DecisionCounts | None = None, *, window: Duration = WINDOW, clock: Clock | None = None
    ) -> None:
        self.counts = DecisionCounts(logs=False) if counts is None else counts
        self.counts.tell(self._unusual, self._denied)
        self.slot_counts: list[Callable[[Counter[str]], None]] = []
        self._top = TopListener(2 * MOST_CLIENTS, window=window, clear=True, clock=clock)
        self._memory: InMemory | None = None
        self._is_shared = False
        self._is_blocked: Callable[[str], bool] = _is_not_blocked  # by an operator, by the key of a client
        self._rules: dict[str, Any] = {}  # what the shadows of each rule depend on, in the policy in force
        self._use_key(os.urandom(32))
        self._begin()
        renew_in_children(self)

    def __call__(self, event: Event) -> None:
        self.counts(event)

    def renew(self) -> None:
        """Begin at zero in a forked child."""
        self.counts.clear()
        self._begin()

    def watch(self, gate: Any) -> None:
        """Show the size of the memory or the shared memory that a gate counts in, and whom operators block there.
        Shadows of a rule are counted anew when a new policy of the gate has changed the rule."""
        self._memory = memory_of(unguarded(gate.storage))
        self._is_shared = is_shared(gate.storage)
        self._is_blocked = gate._blocks_key
        self._rules = _shadow_rules(gate.current())
        gate.before_new_policy(self._forget_shadows)

    def use_key(self, key: bytes) -> None:
        """Make digests with this key, which other processes have, too."""
        if key != self._key:
            self._use_key(key)

    def own(self) -> Snapshot:
        """Return what this process has counted since it began, and what it sees now."""
        counts, slow = self.counts, self._slow
        limits = list(counts.limits.values())
        rules = list(counts.rules.items())
        self._fold()
        name = self._name
        top = self._top.top(MOST_CLIENTS)
        return {
            "run": self.run,
            "name": self.name,
            "ticks": time.monotonic(),
            "allowed": sum(one.allowed for one in limits) + slow.allowed,
            "denied": sum(one.denied for one in limits) + slow.denied,
            "degraded": slow.degraded,
            "shed": slow.shed,
            "seconds": [sum(pair) for pair in zip(counts.seconds.counts, slow.seconds.counts, strict=True)],
            "rules": {rule: [one.allowed, one.denied] for rule, one in rules},
            "used": self._used(),
            "shadows": self._shadow_rows(candidate=False),
            "candidates": self._shadow_rows(candidate=True),
            "nodes": {
                node: [bool(one.away), one.calls, one.errors, list(one.seconds.counts)]
                for node, one in list(self._nodes.items())
            },
            "keys": None if self._memory is None else [self._memory.keys, self._memory.max_keys, self._is_shared],
            "factors": dict(self._factors),
            "slots": self._slots(),
            "top": [[name(one.client), one.denials, one.error] for one in top],
            "blocked": [name(one.client) for one in top if self._is_blocked(one.client)],
            "penalized": [[name(one.client), one.limit, one.seconds] for one in self._top.blocked(MOST_CLIENTS)],
        }

    def _slots(self) -> dict[str, int]:
        """Return how many slots are held, by limit: those that this process renews, and those of `slot_counts`."""
        found: Counter[str] = Counter()
        renewals = [thread_renewer.renewals, *(one.renewals for one in list(loop_renewers.of_loops.values()))]
        for count in (*(one.count for one in renewals), *self.slot_counts):
            count(found)
        return dict(found.most_common(MOST_SLOTS))

    def names(self, digests: Iterable[str]) -> dict[str, str]:
        """Return the keys of clients, by digests that this process has shown. Those that it does not know are left out.

        They may be personal.
        """
        self._fold()
        keys = {one.client for one in self._top.top(4 * MOST_CLIENTS)}
        keys.update(one.client for one in self._top.blocked(2 * MOST_CLIENTS))
        known = {self._name(key): key for key in keys}
        return {digest: known[digest] for digest in digests if digest in known}

    def _begin(self) -> None:
        self.run = os.urandom(8).hex()
        self.name = f"{socket.gethostname()[:200]}:{os.getpid()}"
        self._lock = threading.Lock()
        self._slow = SlowCounts()
        self._nodes: dict[str, NodeCounts] = {}
        self._shadows: dict[tuple[str, bool], ShadowCounts] = {}
        self._factors: dict[str, float] = {}
        self._keys: deque[str] = deque()  # of denied clients, until they are counted

    def _use_key(self, key: bytes) -> None:
        self._key = key
        self._name = naming(key)

    def _unusual(self, event: Event) -> None:
        """Count an event that the counts of decisions leave out."""
        if isinstance(event, Called):
            node = self._node(event.node)
            node.calls += 1
            node.seconds.add(event.seconds)
            if event.error is not None:
                node.errors += 1
        elif isinstance(event, Decided):
            self._decided(event.decision, event.seconds)
        elif isinstance(event, Shadowed):
            self._shadowed(event)
        elif isinstance(event, BlockBegan):
            self._top.note_block(_short(event.key), event.limit.name, event.seconds)
        elif isinstance(event, Degraded):
            self._node(event.node).away.add(event.node)
        elif isinstance(event, Recovered):
            self._node(event.node).away.discard(event.node)
        elif isinstance(event, PressureChanged):
            self._factors = dict(event.factors)
        elif isinstance(event, RequestShed):
            self._slow.shed += 1

    def _decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision that was made without the storage, or has limits that warn, strike, meter or are lowered."""
        slow = self._slow
        slow.seconds.add(seconds)
        is_degraded = isinstance(decision.rows, DegradedRows)
        if is_degraded:
            slow.degraded += 1
        if decision.shed:
            slow.shed += 1
        elif decision.allowed:
            slow.allowed += 1
            self._applied(decision, is_degraded)
        else:
            slow.denied += 1
            self.counts.rule_of(denying_limit(decision, decision.limit)).denied += 1
            if not decision.unavailable:
                self._count_clients(decision)

    def _applied(self, decision: Decision, is_degraded: bool) -> None:
        """Count an allowed decision for each of its rules, and how much of their limits is used."""
        before: RuleCounts | None = None
        for limit, row in zip(checked_limits(decision), decision.rows, strict=True):
            if limit.is_penalty:
                continue
            rule = self.counts.rule_of(limit)
            if rule is not before:
                rule.allowed += 1
                before = rule
            if not is_degraded:
                self._slow.used_of(limit).add(used_share(limit, row))

    def _denied(self, event: Decided) -> None:
        """Count the client of a usual denial."""
        self._count_clients(event.decision)

    def _count_clients(self, decision: Decision) -> None:
        keys, asks = self._keys, decision.asks
        if len(asks) == 1:
            keys.append(asks[0][0])
        else:
            keys.extend(denied_keys(decision))
        if decision.limit.is_penalty:
            for key, limit, wait in blocks_of(decision):
                self._top.note_block(_short(key), limit, wait)
        if len(keys) >= FOLDED:
            self._fold()

    def _fold(self) -> None:
        """Count the denials that were collected, by client."""
        with self._lock:
            collected: list[str] = []
            keys = self._keys
            while keys and len(collected) < 2 * FOLDED:  # one by one: other threads add to them
                collected.append(keys.popleft())
        self._top.add({_short(key): many for key, many in Counter(collected).items()})

    def _node(self, node: str) -> NodeCounts:
        name = node_label("" if self._memory is not None else node)
        return label_of(name, self._nodes, MOST_NODES, NodeCounts)

    def _shadowed(self, event: Shadowed) -> None:
        shadow = self._shadows.get((event.rule, event.candidate))
        if shadow is None:
            if len(self._shadows) >= 2 * MOST_RULES:
                return
            made = ShadowCounts(self.counts.rules.get(event.rule), time.time())
            shadow = self._shadows.setdefault((event.rule, event.candidate), made)
        if event.allowed:
            shadow.allowed += 1
        else:
            shadow.denied += 1

    def _shadow_rows(self, *, candidate: bool) -> dict[str, list[Any]]:
        shadows = list(self._shadows.items())[:MOST_RULES]
        rules = self.counts.rules
        return {rule: one.row(rules.get(rule)) for (rule, is_candidate), one in shadows if is_candidate is candidate}

    def _forget_shadows(self, compiled: Any) -> None:
        """Forget the shadows of rules that a new policy changes."""
        rules = _shadow_rules(compiled)
        for rule, candidate in list(self._shadows):
            if rules.get(rule) != self._rules.get(rule):
                self._shadows.pop((rule, candidate), None)
        self._rules = rules

    def _used(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        usual = ((name, one.used) for name, one in list(self.counts.limits.items()))
        for name, used in chain(usual, list(self._slow.used.items())):
            many = sum(used.counts)
            if not many:
                continue
            row = found.get(name)
            if row is not None:
                row[1] += used.total
                row[2] += many
            elif len(found) < MOST_USED:
                rule = name.partition("/")[0]
                found[name] = [rule if rule in self.counts.rules else name, used.total, many]
        return found


class SlowCounts:
    """Counts of decisions that are not the usual ones, and of requests that were shed without one."""

    __slots__ = ("allowed", "degraded", "denied", "seconds", "shed", "used")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.degraded = 0
        self.shed = 0
        self.seconds = Histogram(SECONDS)
        self.used: dict[str, Histogram] = {}

    def used_of(self, limit: Limit) -> Histogram:
        """Return the used shares of a limit."""
        return label_of(limit.name, self.used, MOST_USED, _shares)


def is_shared(storage: Any) -> bool:
    """Return True if other processes see the states of a storage: it is not the memory of this process."""
    return not isinstance(unguarded(storage), MemoryStorage | AsyncMemoryStorage)


def _short(key: str) -> str:
    """Return a key that is not too long to be kept: of a long one the beginning, and a digest of all of it."""
    if len(key) <= LONG_KEY:
        return key
    return f"{key[:64]}…{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _is_not_blocked(key: str) -> bool:
    return False


def _shares(name: str) -> Histogram:
    return Histogram(SHARES)


def _shadow_rules(compiled: Any) -> dict[str, Any]:
    """Return what the shadows of each rule of a policy depend on."""
    return {rule.name: (rule.mode, rule.plans, rule.candidates) for rule in compiled.policy.rules}
