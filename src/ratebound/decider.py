"""The decider: what Limiter and Gate share. It asks the storage, and tells the listeners what was decided.

Opening a storage, the test switch, spending, settling, listening and closing are written here and nowhere else.
`Decider` is for threads, `AsyncDecider` for tasks: the two differ by an `await`. What does no I/O is in their base.
"""

import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from ratebound.arguments import as_listeners, as_storage, unlimited
from ratebound.clock import Clock
from ratebound.decision import Decision
from ratebound.duration import Duration
from ratebound.events import Listener, Settled, log
from ratebound.flow import run, run_async
from ratebound.fork import renew_in_children
from ratebound.holding import Held, loop_renewers, thread_renewer
from ratebound.late_asyncio import asyncio
from ratebound.limit import Failure, Group, Limit, Mode
from ratebound.local_flow import forcing, spending
from ratebound.local_states import LocalStates
from ratebound.memory_fast_path import MemoryFastPath
from ratebound.outcome import Row
from ratebound.settling import (
    Settlement,
    checked_decision,
    peeked,
    restated,
    restated_each,
    settled_costs,
    settlement,
    settlement_groups,
    strikes_of,
    undoing,
)
from ratebound.slots import Holder, holders_from, slots_of
from ratebound.storage import AsyncStorage, AtOnce, Storage, async_twin_of, at_once_of, holders_of
from ratebound.storage.blame import is_programs_own
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage, guarded
from ratebound.storage.memory import states_of
from ratebound.storage.quick_states import GuardedQuickStates, QuickStates
from ratebound.storage.urls import open_async_storage, open_storage
from ratebound.switch import switch
from ratebound.telling import tell, tell_decided, tell_settled
from ratebound.waiting import slot_waiters

NOT_RELEASED = "slots could not be released; they end with their lease: %s"
S = TypeVar("S", Storage, AsyncStorage)


class _Deciding(Generic[S]):
    """The part of a decider that does no I/O.

    `at_once` is the storage's way to spend without a pause; None if it has none, and while the decider is closed.
    `fast_path` decides from memory without a call in between. `local` has slices and cached denials. It is asked only
    if `asks_local`: a storage that answers at once has no use for it. `lock` is held while the decider is opened,
    closed, listened to or given a twin.
    """

    at_once: AtOnce | None
    _storage: S

    def __init__(self, storage: S, listeners: tuple[Listener, ...], clock: Clock | None) -> None:
        self.listeners = listeners
        self.closed = False
        self.fast_path = MemoryFastPath()
        self.local = LocalStates(clock)
        self._entered = 0
        self._twin: AsyncDecider | None = None
        self.storage = storage
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self.lock = threading.RLock()  # reentrant: a signal handler may close what this thread opens or closes
        self.local.renew()

    @property
    def storage(self) -> S:
        """The storage that is asked, in its guard if it has one. Another one can be set."""
        return self._storage

    @storage.setter
    def storage(self, storage: S) -> None:
        self._storage = storage
        self.local.clear()
        self._choose_path()

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on."""
        with self.lock:
            self.listeners = (*self.listeners, *as_listeners([listener]))
            if isinstance(self._storage, GuardedStorage | AsyncGuardedStorage):
                self._storage.listen(listener)
            self._choose_path()
            if self._twin is not None:
                self._twin.listen(listener)

    def enter(self) -> None:
        """Open the decider for one `with` statement."""
        with self.lock:
            self._entered += 1
            self._set_closed(False)

    def leave(self) -> None:
        """Close the decider if this was the last `with` statement that had entered it."""
        with self.lock:
            self._entered -= 1
            self._set_closed(self._entered < 1)

    def shut(self) -> None:
        """Raise RuntimeError from now on, until the next `enter`."""
        with self.lock:
            self._set_closed(True)

    def check_open(self) -> None:
        """Raise RuntimeError if the decider is closed."""
        if self.closed:
            raise RuntimeError("this limiter is closed: make a new one, or open it again with a `with` statement")

    def adopt(self, twin: "AsyncDecider") -> None:
        """Open, close and listen together with `twin` from now on. The caller holds the lock."""
        self._twin = twin
        twin.local = self.local  # one process has one slice of a key
        twin._set_closed(self.closed)

    def forget_local(self) -> None:
        """Drop all slices and cached denials: other limits are in force."""
        self.local.clear()

    def _told(self, decisions: list[Decision], begin: float) -> list[Decision]:
        """Tell the listeners of decisions that were made together since `begin`, and return them."""
        seconds = time.perf_counter() - begin
        for decision in decisions if self.listeners else ():
            tell_decided(self.listeners, decision, seconds)
        return decisions

    def _told_settled(self, decision: Decision, settled: Decision) -> Decision:
        """Tell the listeners of a settlement and of what it has brought about, and return what it returns."""
        if self.listeners:
            tell_settled(self.listeners, decision, settled)
        return settled

    def _told_undone(self, decision: Decision, rows: Sequence[Row]) -> None:
        """Tell the listeners that a decision costs nothing after all. Undoing brings about nothing else."""
        if self.listeners:
            tell(self.listeners, Settled(decision, restated(decision, [0] * len(decision.asks), rows)))

    def _told_each_settled(self, settlements: Sequence[Settlement], answers: Sequence[Sequence[Row]]) -> list[Decision]:
        """Tell the listeners what settling has brought about, and return the decisions as they stand then."""
        settled = restated_each(settlements, answers)
        for one, after in zip(settlements, settled, strict=True):
            self._told_settled(one.decision, after)
        return settled

    def _set_closed(self, closed: bool) -> None:
        self.closed = closed
        self._choose_path()
        if self._twin is not None:
            self._twin._set_closed(closed)

    def _choose_path(self) -> None:
        self.at_once = None if self.closed else at_once_of(self._storage)
        self.fast_path.states = None if self.closed else states_of(self._storage)
        quick = None if self.closed else self.fast_path.states or _quick_states_of(self._storage)
        self.asks_local = not self.closed and self.at_once is None and quick is None
        self.fast_path.quick = self.local if self.asks_local else quick
        self.fast_path.may_pause = quick is None
        self.fast_path.listeners = self.listeners

    def _concerns_local(self, groups: Sequence[Group], mode: Mode) -> bool:
        """Return True if slices or cached denials have a part in this."""
        if mode == "peek":
            return False
        return self.local.concerns_spend(groups) if mode == "spend" else self.local.concerns_force(groups)


class Decider(_Deciding[Storage]):
    """A decider for threads. `storage` is a URL, a storage, or a client of redis-py; see `Limiter` for the options.

    `clock` is what slices and cached denials live by, in microseconds; the monotonic clock unless a test gives another.
    Raises TypeError for a storage that must be awaited.
    """

    def __init__(
        self,
        storage: Any,
        *,
        failure: Failure = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        clock: Clock | None = None,
    ) -> None:
        found = as_storage(storage, open_storage)
        if inspect.iscoroutinefunction(found.evaluate):
            raise TypeError(f"{type(found).__name__} is for AsyncLimiter and AsyncGate: its evaluate must be awaited")
        told = as_listeners(listeners)
        super().__init__(guarded(found, GuardedStorage, failure, deadline, workers, told), told, clock)

    def decide(self, group: Group) -> Decision:
        """Spend a group, and tell the listeners."""
        begin = time.perf_counter()
        at_once = self.at_once
        if at_once is not None and switch.limiting:
            decision = Decision(group, at_once(group))
        else:
            decision = Decision(group, self.evaluate((group,))[0])
        if self.listeners:
            tell_decided(self.listeners, decision, time.perf_counter() - begin)
        return decision

    def decide_or_undo(self, group: Group) -> Decision:
        """Spend a group, and tell the listeners. A caller that is interrupted meanwhile has spent nothing."""
        begin = time.perf_counter()
        return self._told([Decision(group, self.evaluate_or_undo((group,), "spend")[0])], begin)[0]

    def decide_each(self, groups: Sequence[Group]) -> list[Decision]:
        """Spend groups in one trip to the storage, each by itself, and tell the listeners of each."""
        begin = time.perf_counter()
        return self._told(list(map(Decision, groups, self.evaluate(groups))), begin)

    def settle(self, decision: Decision, cost: int | Sequence[int], strike: bool | Sequence[bool] = False) -> Decision:
        """Make an allowed decision have cost `cost`, and return it as it stands then; see `Limiter.settle`."""
        strikes = strikes_of(decision, strike)
        costs = settled_costs(decision, cost)
        if not decision.allowed:
            return decision
        forced = settlement(decision.asks, decision.rows, costs, strikes)
        return self._told_settled(decision, restated(decision, costs, self.evaluate((forced,), "force")[0]))

    def settle_each(self, settlements: Sequence[Settlement]) -> list[Decision]:
        """Settle allowed decisions in one trip to the storage, and return them as they stand then."""
        groups = settlement_groups(settlements)
        return self._told_each_settled(settlements, self.evaluate(groups, "force"))

    def hold(self, decision: Decision) -> Held | None:
        """Renew the slots of an allowed decision until they are released, or until the returned object is gone.

        Return None if it has no slots. Can be repeated.
        """
        slots = slots_of(decision.asks, 1) if decision.allowed else ()
        return thread_renewer.hold(self, decision, slots) if slots else None

    @contextmanager
    def holding(self, decision: Decision) -> Iterator[None]:
        """Hold the slots of an allowed decision for the body, and release them at its end.

        A release that fails is logged. Then the slots end with their lease.
        """
        held = self.hold(decision)
        if held is None:
            yield
            return
        collected = False
        try:
            yield
        except GeneratorExit:
            collected = True
            raise
        finally:
            if held.released or sys.is_finalizing():  # then other threads have stopped, and may have locks
                pass
            elif collected and thread_renewer.is_running:
                # Perhaps the collector ends a generator in the middle of a call that has the storage's lock.
                thread_renewer.call_soon(partial(self._release_quietly, decision))
            else:
                self._release_quietly(decision)

    def _release_quietly(self, decision: Decision) -> None:
        try:
            self.release(decision)
        except Exception as error:
            if is_programs_own(error):
                raise
            log.warning(NOT_RELEASED, error)

    def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision, and renew them no longer.

        Do nothing if it has none. Can be repeated. An exception of a signal handler does not stop it.
        """
        slots = slots_of(decision.asks, -1) if checked_decision(decision).allowed else ()
        if not slots:
            return
        thread_renewer.forget(slots)
        try:
            self.evaluate_or_undo((slots,), "force")
        except BaseException as error:
            # A guard's call continues without its caller.
            if is_programs_own(error) and not isinstance(self._storage, GuardedStorage):
                self.evaluate((slots,), "force")
            raise
        finally:
            slot_waiters.wake(slots)

    def undo(self, decision: Decision) -> None:
        """Undo an allowed decision: refund what it was charged, and release its slots."""
        if decision.allowed:
            settled_costs(decision, 0)
            slots = slots_of(decision.asks, -1)
            if slots:
                thread_renewer.forget(slots)
            rows = self.evaluate((undoing(decision.asks, decision.rows),), "force")[0]
            self._told_undone(decision, rows)
            slot_waiters.wake(slots)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        """Ask the storage. While tests have turned limiting off, answer as if every limit were untouched.

        Raises RuntimeError if the decider is closed.
        """
        if self.closed:
            self.check_open()
        if not switch.limiting:
            return unlimited(groups)
        ask = self._storage.evaluate
        if not self.asks_local or not self._concerns_local(groups, mode):
            return ask(groups, mode)
        return run(spending(self.local, groups, ask) if mode == "spend" else forcing(self.local, groups, ask))

    def peek(self, group: Group) -> Decision:
        """Return what `decide` would say, with what is left now. Changes nothing."""
        rows = self.evaluate((group,), "peek")[0]
        return peeked(Decision(group, self.local.peeked(group, rows) if self.asks_local else rows))

    def evaluate_or_undo(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Return what `evaluate` does, for a waiter, which may be interrupted. Memory answers without a pause."""
        if mode != "peek" and switch.limiting and isinstance(self._storage, GuardedStorage):
            self.check_open()
            ask = self._storage.evaluate_or_undo
            if not self.asks_local or not self._concerns_local(groups, mode):
                return ask(groups, mode)
            if mode == "spend":
                return run(spending(self.local, groups, ask, repeats_denials=False))
            return run(forcing(self.local, groups, ask))
        try:
            return self.evaluate(groups, mode)
        except BaseException:
            if mode == "spend":  # slots are known without the answer
                for slots in filter(None, (slots_of(group, -1) for group in groups)):
                    self.evaluate((slots,), "force")
            raise

    def holders(self, key: str, limits: tuple[Limit, ...]) -> list[Holder]:
        """Return the slots of a key that are held now. Raises TypeError if the storage cannot list them."""
        self.check_open()
        found: list[Holder] = []
        for limit in limits:
            if limit.has_slots:
                found += holders_from(limit, holders_of(self._storage)(key, limit))
        return found

    def reset(self, group: Group) -> None:
        """Forget the states of a group. Raises StorageError when the storage could not be told."""
        self.check_open()
        try:
            self._storage.reset(group)
        finally:
            self.local.drop(group)

    def force_or_raise(self, group: Group) -> None:
        """Force a group. Raises StorageError, in every failure mode, when the storage could not be told."""
        self.check_open()
        storage = self._storage
        if not switch.limiting:
            return
        try:
            if isinstance(storage, GuardedStorage):
                storage.force_or_raise(group)
            else:
                storage.evaluate((group,), "force")
        finally:
            self.local.denials.changed(group)

    def close(self) -> None:
        """Close the storage. The decider itself stays as open as it is."""
        self._storage.close()

    def twin_storage(self) -> AsyncStorage:
        """Return a storage for tasks over the same states. Raises TypeError if there is none."""
        twin = async_twin_of(self._storage)
        if twin is None:
            raise TypeError("this storage would block the event loop: decorate an async def with AsyncLimiter.limit")
        return twin


class AsyncDecider(_Deciding[AsyncStorage]):
    """A decider for tasks: the names of `Decider`, with await. A storage for threads is asked through its twin.

    Raises TypeError for a storage that would block the event loop.
    """

    def __init__(
        self,
        storage: Any,
        *,
        failure: Failure = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        clock: Clock | None = None,
    ) -> None:
        found = as_storage(storage, open_async_storage)
        if not inspect.iscoroutinefunction(found.evaluate):
            found = async_twin_of(found)
        if found is None:
            raise TypeError(f"{type(storage).__name__} would block the event loop: it is for Limiter and Gate")
        told = as_listeners(listeners)
        super().__init__(guarded(found, AsyncGuardedStorage, failure, deadline, workers, told), told, clock)

    async def decide(self, group: Group) -> Decision:
        """Spend a group, and tell the listeners. A caller that is cancelled meanwhile leaves no slot taken."""
        begin = time.perf_counter()
        at_once = self.at_once
        if at_once is not None and switch.limiting:
            decision = Decision(group, at_once(group))
        else:
            decision = Decision(group, (await self.spend((group,)))[0])
        if self.listeners:
            tell_decided(self.listeners, decision, time.perf_counter() - begin)
        return decision

    async def decide_or_undo(self, group: Group) -> Decision:
        """Spend a group, and tell the listeners. A caller that is cancelled meanwhile has spent nothing."""
        begin = time.perf_counter()
        return self._told([Decision(group, (await self.evaluate_or_undo((group,), "spend"))[0])], begin)[0]

    async def decide_each(self, groups: Sequence[Group]) -> list[Decision]:
        """Spend groups in one trip to the storage; see `Decider.decide_each`."""
        begin = time.perf_counter()
        return self._told(list(map(Decision, groups, await self.spend(groups))), begin)

    async def spend(self, groups: Sequence[Group]) -> Sequence[Sequence[Row]]:
        """Ask the storage to spend groups. A caller that is cancelled meanwhile leaves no slot taken."""
        if any(extras is not None for group in groups for *_, extras in group):
            return await self.evaluate_or_undo(groups, "spend")
        return await self.evaluate(groups)

    async def settle(
        self, decision: Decision, cost: int | Sequence[int], strike: bool | Sequence[bool] = False
    ) -> Decision:
        """Make an allowed decision have cost `cost`; see `Limiter.settle`."""
        strikes = strikes_of(decision, strike)
        costs = settled_costs(decision, cost)
        if not decision.allowed:
            return decision
        forced = settlement(decision.asks, decision.rows, costs, strikes)
        return self._told_settled(decision, restated(decision, costs, (await self.evaluate((forced,), "force"))[0]))

    async def settle_each(self, settlements: Sequence[Settlement]) -> list[Decision]:
        """Settle allowed decisions in one trip to the storage; see `Decider.settle_each`."""
        groups = settlement_groups(settlements)
        return self._told_each_settled(settlements, await self.evaluate(groups, "force"))

    def hold(self, decision: Decision) -> Held | None:
        """Renew the slots of an allowed decision in the running event loop; see `Decider.hold`. It is not awaited."""
        slots = slots_of(decision.asks, 1) if decision.allowed else ()
        return loop_renewers.hold(self, decision, slots) if slots else None

    @asynccontextmanager
    async def holding(self, decision: Decision) -> AsyncIterator[None]:
        """Hold the slots of an allowed decision for the body; see `Decider.holding`."""
        held = self.hold(decision)
        if held is None:
            yield
            return
        loop = asyncio._get_running_loop()
        try:
            yield
        finally:
            if not held.released and asyncio._get_running_loop() is loop:  # else nobody runs this task any more
                try:
                    await self.release(decision)
                except Exception as error:
                    log.warning(NOT_RELEASED, error)

    async def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision; see `Decider.release`. A cancelled caller does not stop it."""
        slots = slots_of(decision.asks, -1) if checked_decision(decision).allowed else ()
        if not slots:
            return
        loop_renewers.forget(slots)
        try:
            await self.evaluate_or_undo((slots,), "force")
        finally:
            slot_waiters.wake(slots)

    async def undo(self, decision: Decision) -> None:
        """Undo an allowed decision; see `Decider.undo`."""
        if decision.allowed:
            settled_costs(decision, 0)
            slots = slots_of(decision.asks, -1)
            if slots:
                loop_renewers.forget(slots)
            rows = (await self.evaluate((undoing(decision.asks, decision.rows),), "force"))[0]
            self._told_undone(decision, rows)
            slot_waiters.wake(slots)

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        """Ask the storage; see `Decider.evaluate`."""
        if self.closed:
            self.check_open()
        if not switch.limiting:
            return unlimited(groups)
        ask = self._storage.evaluate
        if not self.asks_local or not self._concerns_local(groups, mode):
            return await ask(groups, mode)
        flow = spending(self.local, groups, ask) if mode == "spend" else forcing(self.local, groups, ask)
        return await run_async(flow)

    async def peek(self, group: Group) -> Decision:
        """Return what `decide` would say; see `Decider.peek`."""
        rows = (await self.evaluate((group,), "peek"))[0]
        return peeked(Decision(group, self.local.peeked(group, rows) if self.asks_local else rows))

    async def evaluate_or_undo(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Return what `evaluate` does, for a waiter, which may be cancelled; see `Decider.evaluate_or_undo`."""
        if mode == "peek" or not switch.limiting or not isinstance(self._storage, AsyncGuardedStorage):
            return await self.evaluate(groups, mode)
        self.check_open()
        ask = self._storage.evaluate_or_undo
        if not self.asks_local or not self._concerns_local(groups, mode):
            return await ask(groups, mode)
        if mode == "spend":
            return await run_async(spending(self.local, groups, ask, repeats_denials=False))
        return await run_async(forcing(self.local, groups, ask))

    async def holders(self, key: str, limits: tuple[Limit, ...]) -> list[Holder]:
        """Return the slots of a key that are held now; see `Decider.holders`."""
        self.check_open()
        found: list[Holder] = []
        for limit in limits:
            if limit.has_slots:
                found += holders_from(limit, await holders_of(self._storage)(key, limit))
        return found

    async def reset(self, group: Group) -> None:
        """Forget the states of a group; see `Decider.reset`."""
        self.check_open()
        try:
            await self._storage.reset(group)
        finally:
            self.local.drop(group)

    async def force_or_raise(self, group: Group) -> None:
        """Force a group, in every failure mode by the storage itself; see `Decider.force_or_raise`."""
        self.check_open()
        storage = self._storage
        if not switch.limiting:
            return
        try:
            if isinstance(storage, AsyncGuardedStorage):
                await storage.force_or_raise(group)
            else:
                await storage.evaluate((group,), "force")
        finally:
            self.local.denials.changed(group)

    async def close(self) -> None:
        """Close what this event loop has open in the storage."""
        await self._storage.close()


def _quick_states_of(storage: Any) -> QuickStates | None:
    """Return the quick states of a guarded storage; None if it has none."""
    if not isinstance(storage, GuardedStorage | AsyncGuardedStorage):
        return None
    states: QuickStates | None = getattr(storage.inner, "quick_states", None)
    return None if states is None else GuardedQuickStates(states, storage.guard.trouble)
