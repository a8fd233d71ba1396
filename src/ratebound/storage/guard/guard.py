"""The logic of a guarded storage without its I/O: which nodes may be called, what a failure means, what is owed.

The sync and the async guard share it. A limiter's async twin shares the same object: one breaker for each node, one
local memory, one list of debts.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence

from ratebound.breaker import Breaker
from ratebound.clock import SECOND, Clock
from ratebound.duration import Duration, as_seconds
from ratebound.errors import StorageError
from ratebound.events import Called, Degraded, Listener, Recovered
from ratebound.fork import renew_in_children
from ratebound.limit import FAILURES, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import DegradedGroup
from ratebound.storage.blame import Blameless
from ratebound.storage.guard.fallback import Debt, Entry, Fallback
from ratebound.storage.quick_states import Trouble
from ratebound.storage.workers import known_workers, warn_of_whole_share
from ratebound.telling import tell

log = logging.getLogger("ratebound")

BATCH = 100  # groups in one call of the write-back, so that it does not keep a server busy for long
SMALL_BATCH = 10  # if groups may be on several nodes: they are sent one by one and share one deadline
ONE_NODE = ("",)
HOUR = 3_600  # seconds: no deadline is longer

NodesOf = Callable[[Group], tuple[str, ...]]
Result = Sequence[Sequence[Row]] | StorageError
WriteBack = Generator[list[Group], StorageError | None, None]


class Call:
    """Groups that go to the storage together, their positions in the answer, and the breakers' tickets for them."""

    __slots__ = ("begin", "groups", "nodes", "places", "tickets")

    def __init__(self, nodes: tuple[str, ...], groups: Sequence[Group], places: Sequence[int]) -> None:
        self.nodes = nodes
        self.groups = groups
        self.places = places
        self.tickets: list[tuple[Breaker, int]] = []
        self.begin = time.monotonic()


class CallPlan:
    """The calls that one `evaluate` makes, and the answers that are known so far.

    `contested` are slots that a write-back may change at the same time.
    """

    __slots__ = ("answers", "calls", "contested", "mode")

    def __init__(self, size: int, mode: Mode, contested: set[Entry]) -> None:
        self.answers: list[Sequence[Row]] = [()] * size
        self.calls: list[Call] = []
        self.mode = mode
        self.contested = contested

    def fill(self, call: Call, answers: Sequence[Sequence[Row]]) -> None:
        """Store the answers of a call at their positions."""
        for place, rows in zip(call.places, answers, strict=True):
            self.answers[place] = rows


class Guard:
    """The shared state of a guarded storage. `GuardedStorage` documents the options. It is thread-safe."""

    def __init__(
        self,
        *,
        failure: str,
        deadline: Duration,
        workers: int | None,
        failures: int,
        probe_interval: Duration,
        write_back: bool,
        listeners: Iterable[Listener],
        parted: bool,
        clock: Clock | None,
    ) -> None:
        check_options(failure, workers)
        self.deadline = as_seconds("deadline", deadline, positive=True, most=HOUR)
        self._probe_interval = as_seconds("probe_interval", probe_interval, positive=True, most=HOUR)
        if type(failures) is not int or failures < 1:
            raise ValueError(f"failures must be a positive whole number, not {failures!r}")
        self.write_back = write_back
        self.listeners = tuple(listeners)
        known = workers or known_workers()
        self._is_share_known = known is not None
        self.fallback = Fallback(failure, known or 1, clock)
        self.breakers: dict[str, Breaker] = {}
        self._seconds: Callable[[], float] = time.monotonic if clock is None else lambda: clock() / SECOND
        self._failures = failures
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}  # of each node: why its last call failed
        self._returned: dict[str, tuple[float, int]] = {}  # recovered nodes, not reported yet: seconds away, units
        self.trouble = Trouble()
        self._due = False
        self._writing = False
        self._logged = False  # a driver's own exception is logged once for each outage
        self._parted = parted  # True if the groups of a call may be on several nodes
        self._only = self.breaker("")
        renew_in_children(self)

    def breaker(self, node: str) -> Breaker:
        """Return the breaker of a node, made on first use."""
        found = self.breakers.get(node)
        if found is None:
            # Twice the deadline: otherwise a second probe would follow one that hangs before that one has failed.
            lease = 2 * self.deadline
            fresh = Breaker(failures=self._failures, interval=self._probe_interval, lease=lease, clock=self._seconds)
            found = self.breakers.setdefault(node, fresh)
        return found

    def listen(self, listener: Listener) -> None:
        """Add a listener, once."""
        if listener not in self.listeners:
            self.listeners = (*self.listeners, listener)

    def plan(self, groups: Sequence[Group], mode: Mode, nodes_of: NodesOf | None) -> CallPlan:
        """Return the calls to make. Groups that the storage cannot be asked for are answered by the fallback at once.

        Raises StorageError, and makes no call at all, if the failure mode of such a group is `raise`.
        """
        self._look_for_trouble()
        plan = CallPlan(len(groups), mode, self.fallback.contested(groups, mode))
        not_admitted: list[Call] = []
        parts: list[tuple[tuple[str, ...], int]] = []
        for place, group in enumerate(groups):
            nodes = _nodes(group, nodes_of)
            if isinstance(group, DegradedGroup):
                plan.answers[place] = self.fallback.settle(group)
                if len(self.fallback.debts) and all(self.breaker(node).closed for node in nodes):
                    self._due = True  # a slot is to be released in the storage
            elif any(self.breaker(node).probe_after() for node in nodes):
                not_admitted.append(Call(nodes, (group,), (place,)))
            else:
                parts.append((nodes, place))
        for nodes, places in _together(parts):
            call = Call(nodes, [groups[place] for place in places], places)
            (plan.calls if self.admit(call) else not_admitted).append(call)
        away = [(call, self.out_of_reach(call)) for call in not_admitted]
        try:
            for call, error in away:
                self.fallback.raise_if_asked(call.groups, mode, error)
        except StorageError:  # then the other groups are neither sent nor charged
            for call in plan.calls:
                _release(call)
            raise
        for call, error in away:
            self._decide(plan, call, error)
        return plan

    def admit(self, call: Call) -> bool:
        """Take a ticket of every node of the call.

        Return False, and hold no ticket, if one of them must not be called.
        """
        for node in call.nodes:
            breaker = self.breaker(node)
            ticket = breaker.admit()
            if not ticket:
                _release(call)
                return False
            call.tickets.append((breaker, ticket))
        return True

    def call_for(self, group: Group, nodes_of: NodesOf | None) -> Call:
        """Return an admitted call for one group.

        Raises StorageError if a node must not be called, or if the group settles what was decided without the storage.
        """
        if isinstance(group, DegradedGroup):
            raise StorageError(group.reason, undone=True)
        return self._admitted(Call(_nodes(group, nodes_of), (group,), (0,)))

    def call_on(self, nodes: tuple[str, ...]) -> Call:
        """Return an admitted call of these nodes, for no group. Raises StorageError if one must not be called."""
        return self._admitted(Call(nodes, (), ()))

    def _admitted(self, call: Call) -> Call:
        if not self.admit(call):
            raise self.out_of_reach(call)
        return call

    def out_of_reach(self, call: Call) -> StorageError:
        """Return the error for a call that its breakers do not admit."""
        reasons = [self._reasons[node] for node in call.nodes if node in self._reasons]
        return StorageError(reasons[0] if reasons else "the storage is out of reach", undone=True)

    def finish(self, plan: CallPlan, call: Call, result: Result) -> None:
        """Store the answers of a call; if it failed, those of the fallback."""
        error = self.heard(call, result if isinstance(result, StorageError) else None)
        if error is None:
            plan.fill(call, result)  # type: ignore[arg-type]
            for place, group in zip(call.places, call.groups, strict=True):
                self._saw(plan, group, plan.answers[place])
        elif error.answers is None:
            self._decide(plan, call, error)
        else:
            for place, group, answer in zip(call.places, call.groups, error.answers, strict=True):
                if isinstance(answer, StorageError):
                    self._decide(plan, Call(call.nodes, (group,), (place,)), answer)
                else:
                    plan.answers[place] = answer
                    self._saw(plan, group, answer)

    def _saw(self, plan: CallPlan, group: Group, rows: Sequence[Row]) -> None:
        if self.fallback.saw(group, plan.mode, rows, plan.contested):
            self._due = True

    @property
    def _due(self) -> bool:
        """True if an outage has ended, so there may be something to write back."""
        return self._is_due

    @_due.setter
    def _due(self, due: bool) -> None:
        self._is_due = due
        if due:
            self.trouble.is_there = True

    def _look_for_trouble(self) -> None:
        """Find out whether trouble is over: every node is calm, and nothing is to be written back."""
        if not self.trouble.is_there or self._is_due:
            return
        self.trouble.is_there = False  # first: what another thread finds from here on is not overwritten
        if self._is_due or not all(breaker.calm for breaker in list(self.breakers.values())):
            self.trouble.is_there = True

    def calm(self, groups: Sequence[Group], mode: Mode) -> int:
        """Return a ticket for the fast path: there is no trouble, everything goes to one node, and no slot is taken.

        Else return 0.
        """
        if self.trouble.is_there:
            self._look_for_trouble()
        if self._is_due or self.listeners or mode == "force" or len(self.breakers) > 1:
            return 0
        if self._parted and len(groups) > 1:
            return 0
        for group in groups:
            for ask in group:
                if ask[4] is not None:  # slots: the fallback notes who holds them
                    return 0
        return self._only.calm

    def lost(
        self, groups: Sequence[Group], mode: Mode, nodes_of: NodesOf | None, ticket: int, error: Exception
    ) -> list[Sequence[Row]]:
        """Return the answers to a call that failed on the fast path."""
        nodes = {node for group in groups for node in _nodes(group, nodes_of)} or set(ONE_NODE)
        call = Call(tuple(sorted(nodes)), groups, range(len(groups)))
        if call.nodes == ONE_NODE:
            call.tickets.append((self._only, ticket))
        else:
            call.tickets += [(breaker, breaker.admit()) for breaker in map(self.breaker, call.nodes)]
        plan = CallPlan(len(groups), mode, set())
        self.finish(plan, call, self.as_storage_error(error))
        return plan.answers

    def heard(self, call: Call, error: StorageError | None) -> StorageError | None:
        """Report the result of a call to the breakers and listeners. Return `error`."""
        if self.listeners:
            tell(self.listeners, Called(",".join(call.nodes), time.monotonic() - call.begin, error))
        at_fault = getattr(error, "node", None)  # a storage may know which of its nodes failed
        for node, (breaker, ticket) in zip(call.nodes, call.tickets, strict=True):
            if error is None or not error.outage:
                self._succeeded(node, breaker.succeeded(ticket))
            elif isinstance(error, Blameless) or (at_fault in call.nodes and at_fault != node):
                breaker.release(ticket)
            else:
                self._failed(node, breaker, ticket, error)
        return error

    def as_storage_error(self, error: BaseException) -> StorageError:
        """Return an exception of a driver as a StorageError: an outage with an unknown charge."""
        if isinstance(error, StorageError):
            return error
        if not self._logged:
            self._logged = True
            log.error("the storage raised an unexpected exception; decisions are made without it", exc_info=error)
        known = StorageError(f"the storage failed ({type(error).__name__}: {error})")
        known.__cause__ = error
        return known

    def too_late(self) -> StorageError:
        """Return the error for a call without an answer by its deadline."""
        return StorageError(f"the storage did not answer within {self.deadline:g} s; it is unknown whether it decided")

    def crowded(self, *, undone: bool) -> StorageError:
        """Return the error for a call that waited too long behind other calls."""
        what = "was not called" if undone else "was called late, and it is unknown whether it decided"
        why = f"there are more calls than it answers within {self.deadline:g} s"
        return Blameless(f"the storage {what}: {why}", undone=undone)

    def begin_write_back(self, nodes_of: NodesOf | None) -> WriteBack | None:
        """Return the write-back to run after an outage; None if nothing is owed or another caller runs it."""
        if not self._due:
            return None
        with self._lock:
            if not self._due or self._writing:
                return None
            self._due = False
            self._writing = write = self.write_back and len(self.fallback.debts) > 0
        if write:
            flow = self._write_back(nodes_of)
            next(flow)  # from here on it cleans up after itself, even if it is never resumed
            return flow
        for node in list(self._returned):
            self._tell_return(node)
        return None

    def _write_back(self, nodes_of: NodesOf | None) -> WriteBack:
        """Yield an empty list first, then groups to force. Each result is sent back: None, or the error.

        What was certainly not written stays among the debts.
        """
        debts, returned = self.fallback.debts, list(self._returned)
        left: list[tuple[tuple[str, ...], Entry, Debt]] = []
        on_its_way: list[tuple[tuple[str, ...], Entry, Debt]] = []
        most = BATCH if nodes_of is None else SMALL_BATCH
        alone = 0  # entries to write one by one, because the storage refused one of them
        finished = False
        try:
            yield []
            left = [(ONE_NODE, *taken) for taken in debts.take()]
            left = [(_nodes([(entry[0], entry[1], 1, None, None)], nodes_of), entry, debt) for _, entry, debt in left]
            left.sort(key=lambda owed: owed[0])  # node by node, so that a failure concerns one node
            while left:
                nodes, batch = left[-1][0], []
                groups: list[Group] = []
                size = 1 if alone else most
                while left and left[-1][0] == nodes and len(groups) < size:
                    alone = max(alone - 1, 0)
                    _, entry, debt = left.pop()
                    group = self.fallback.owed(entry, debt.units)
                    if group and not all(self.breaker(node).closed for node in nodes):
                        debts.put_back(entry, debt)
                    elif group:
                        batch.append((nodes, entry, debt))
                        groups.append(group)
                on_its_way = batch
                error = (yield groups) if groups else None
                on_its_way = []
                answers = [error] * len(batch) if error is None or error.answers is None else error.answers
                written = [g for g, answer in zip(groups, answers, strict=True) if not isinstance(answer, StorageError)]
                unwritten = [
                    owed
                    for owed, answer in zip(batch, answers, strict=True)
                    if isinstance(answer, StorageError) and (answer.undone or len(owed[1]) == 3)
                ]
                self._count(nodes, sum(max(cost for _, _, cost, *_ in group) for group in _charging(written)))
                if error is None:
                    continue
                if error.outage:
                    left += unwritten
                    while left and left[-1][0] == nodes:  # the rest of this node waits for the next write-back
                        debts.put_back(*left.pop()[1:])
                    if isinstance(error, Blameless):
                        self._due = True
                        continue
                    for node in nodes:
                        self._failed(node, self.breaker(node), self.breaker(node).admit(), error)
                elif error.answers is None and len(batch) > 1:  # one of them, and it is not known which
                    left += unwritten
                    alone = len(unwritten)
                else:
                    for _, entry, debt in unwritten:
                        debts.put_back(entry, debt)
            finished = True
        finally:
            # Of a call that was cut short only changes of slots may be repeated.
            for _, entry, debt in (*left, *(owed for owed in on_its_way if len(owed[1]) == 3)):
                debts.put_back(entry, debt)
            debts.end_writing()
            if not finished:
                self._due = True  # without an outage, nothing else would start the write-back again
            self._writing = False
            for node in returned:
                self._tell_return(node)

    def renew(self) -> None:
        """Replace locks in a forked child, and forget debts: the parent writes them back."""
        self._lock = threading.Lock()
        self._returned, self._due, self._writing = {}, False, False
        self.fallback.debts.renew()
        self.fallback.blocks.renew()
        for breaker in self.breakers.values():
            breaker.renew()

    def _decide(self, plan: CallPlan, call: Call, error: StorageError) -> None:
        try:
            plan.fill(call, self.fallback.decide(call.groups, plan.mode, error, self._wait(call)))
        finally:
            if error.outage and len(self.fallback.debts) and all(self.breaker(node).calm for node in call.nodes):
                self._due = True  # the breaker is closed, so no recovery would start the write-back of this grant

    def _wait(self, call: Call) -> float:
        return max(self.breaker(node).probe_after() for node in call.nodes)

    def _succeeded(self, node: str, away: float | None) -> None:
        if away is None:
            return
        self._reasons.pop(node, None)
        self._logged = False
        if away:
            self._returned[node] = (away, 0)
        self._due = True

    def _failed(self, node: str, breaker: Breaker, ticket: int, error: StorageError) -> None:
        self._reasons[node] = str(error)
        opened = breaker.failed(ticket)
        self.trouble.is_there = True  # after the breaker knows, see _look_for_trouble
        if opened:
            self._tell_return(node)
            self._tell(Degraded(node, str(error)))

    def _count(self, nodes: tuple[str, ...], units: int) -> None:
        """Add written units to the first of the nodes that has just recovered, for its event."""
        for node in nodes:
            away = self._returned.get(node)
            if away is not None:
                self._returned[node] = (away[0], away[1] + units)
                return

    def _tell_return(self, node: str) -> None:
        """Report a recovery, once for each outage and before the next one."""
        away = self._returned.pop(node, None)
        if away is not None:
            self._tell(Recovered(node, *away))

    def _tell(self, event: Degraded | Recovered) -> None:
        """Send an event to listeners, and log it unless one of them logs.

        An outage must be in the log: requests are answered, so it would go unnoticed otherwise.
        """
        tell(self.listeners, event)
        if isinstance(event, Degraded) and not self._is_share_known:
            warn_of_whole_share()
        if any(getattr(listener, "logs", False) for listener in self.listeners):
            return
        name = f"the storage {event.node}".rstrip()
        if isinstance(event, Degraded):
            log.error("decisions are made without %s: %s", name, event.reason)
        else:
            log.warning("%s decides again after %.3g s", name, event.seconds)


def check_options(failure: str, workers: int | None) -> None:
    """Raise ValueError if a failure mode or a number of workers is invalid."""
    if failure not in FAILURES:
        raise ValueError(f"failure must be one of {', '.join(FAILURES)}, not {failure!r}")
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ValueError(f"workers must be a positive whole number, not {workers!r}")


def _together(parts: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return groups, by position, that share a node or are linked by groups that do.

    They stay in order, in one call.
    """
    found: list[tuple[set[str], list[int]]] = []
    for nodes, place in parts:
        linked = [part for part in found if not part[0].isdisjoint(nodes)]
        found = [part for part in found if part[0].isdisjoint(nodes)]
        found.append((set(nodes).union(*(part[0] for part in linked)), sorted(sum((p[1] for p in linked), [place]))))
    return [(tuple(sorted(nodes)), places) for nodes, places in found]


def _nodes(group: Group, nodes_of: NodesOf | None) -> tuple[str, ...]:
    return ONE_NODE if nodes_of is None else nodes_of(group) or ONE_NODE


def _charging(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of a write-back that charge units: not those that hold or release a slot."""
    return [group for group in groups if group[0][4] is None]


def _release(call: Call) -> None:
    for breaker, ticket in call.tickets:
        breaker.release(ticket)
