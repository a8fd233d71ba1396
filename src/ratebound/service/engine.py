"""The engine, which all wire formats ask: one storage, the policy's gates, and callers' own limits.

Each question has a form without a pause, which returns None where the storage has to be waited for, and one to await.
Protocols try the first, so that a decision from memory needs no task.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from ratebound.decider import AsyncDecider
from ratebound.decision import Decision, Plan
from ratebound.duration import Duration
from ratebound.errors import StorageError
from ratebound.events import Listener
from ratebound.flow import run_at_once
from ratebound.limit import UNITS, Group, Limit, limit_set
from ratebound.notation import parse_limits
from ratebound.policy import AsyncGate, Policy, PolicyFile, RequestView
from ratebound.policy.runtime.verdict import Verdict
from ratebound.service.collected_calls import with_collected_calls
from ratebound.storage import keeps_documents, refusals_of, refuse_unkept, unguarded
from ratebound.switch import switch
from ratebound.telling import tell_decided

T = TypeVar("T")
MAX_LIMITS_TEXT = 1000  # characters of the limits that a caller brings; longer ones are refused
SHORT_LIMITS_TEXT = 64  # characters. A plan takes up to 90 bytes for each
READY = "ready"  # a shared document that is never written, or a key that is never spent: reading it asks the storage
ASKED = (Limit(1, UNITS["second"], algorithm="fixed-window", name=READY, failure="raise"),)
MOST_LOOKED_AT = 64  # keys among which there is one for each server


class Engine:
    """A policy and a storage at work in one worker.

    `gate` decides described requests. `strict_gate` decides the same where nobody can be told to wait: a queue there
    has no places. `decider` spends the limits that callers bring themselves, from the same storage. `never_pauses` is
    True if the storage is memory: then every coroutine of the decider can be run at once.
    """

    def __init__(
        self,
        policy: Policy | PolicyFile,
        *,
        storage: Any = None,
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        told = tuple(listeners)
        if storage is None:
            storage = policy.policy.storage if isinstance(policy, PolicyFile) else policy.storage
        storage = with_collected_calls(storage)
        self.gate = AsyncGate(policy, storage=storage, deadline=deadline, workers=workers, listeners=told)
        self.decider: AsyncDecider = self.gate._decider
        self.strict_gate = AsyncGate(policy, storage=self.gate.storage, max_delay=0, listeners=told)
        self._keeps_all = refusals_of(self.gate.storage) is None

    @property
    def never_pauses(self) -> bool:
        """True if the storage answers everything at once."""
        return self.decider.at_once is not None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.gate.policy

    def decide_now(self, request: RequestView) -> Verdict | None:
        """Decide a described request without a pause; None, having changed nothing, if it has to be awaited."""
        return self.gate.decide_now(request)

    async def decide(self, request: RequestView) -> Verdict:
        """Decide a described request. It may be told to wait: `verdict.decision.delay`."""
        return await self.gate.decide(request)

    def check_now(self, request: RequestView) -> Verdict | None:
        """Decide the request of a proxy's client without a pause; None if it has to be awaited."""
        return self.strict_gate.decide_now(request)

    async def check(self, request: RequestView) -> Verdict:
        """Decide the request of a proxy's client. It is never told to wait."""
        return await self.strict_gate.decide(request)

    def hit_now(self, key: str, plan: Plan, cost: int) -> Decision | None:
        """Spend plain limits of a caller's own without a pause; None, having changed nothing, if it is not possible.

        `key` and `cost` must have been checked.
        """
        path = self.decider.fast_path
        if path.quick is None or not plan.plain or not switch.limiting:
            return None
        listeners = path.listeners
        begin = time.perf_counter() if listeners else 0.0
        decision = path.quick.hit(plan, key, cost)
        if listeners and decision is not None:
            tell_decided(listeners, decision, time.perf_counter() - begin)
        return decision

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
        """Return the result of a coroutine of the decider if the storage answers at once, else the coroutine."""
        return run_at_once(coroutine) if self.never_pauses else coroutine

    def refuse_unkept(self, group: Group) -> None:
        """Raise InvalidLimit if the storage does not keep a limit of a caller's own group."""
        if not self._keeps_all:
            refuse_unkept(self.decider.storage, [limit for _, limits, *_ in group for limit in limits])

    async def spend(self, group: Group) -> Decision:
        """Spend a group of a caller's own limits: all or nothing."""
        return await self.decider.decide(group)

    async def spend_each(self, groups: Sequence[Group]) -> list[Decision]:
        """Spend several groups, each by itself, in one trip to the storage. At most 100."""
        return await self.decider.decide_each(groups)

    async def is_ready(self) -> bool:
        """Return True if the storage answers; of several servers without shared documents, one of them."""
        storage: Any = self.decider.storage
        if not keeps_documents(storage):
            asked = [storage.evaluate((group,), "peek") for group in _one_for_each_server(storage)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, StorageError):
                    raise answer
            return not all(isinstance(answer, StorageError) for answer in answers)
        try:
            await storage.read_document(READY)
        except StorageError:
            return False
        return True

    async def close(self) -> None:
        """Close the storage."""
        await self.gate.close()


def _one_for_each_server(storage: Any) -> list[Group]:
    """Return groups to peek, so that every server of a storage is asked once."""
    nodes_of = getattr(unguarded(storage), "nodes_of", None)
    groups: list[Group] = [((f"{READY}{number}", ASKED, 1, None, None),) for number in range(MOST_LOOKED_AT)]
    return groups[:1] if nodes_of is None else list({nodes_of(group): group for group in groups}.values())


def plan_of(text: str) -> Plan:
    """Return the limits that a caller has written. Raises InvalidLimit.

    They are kept for the next call: many short ones, and few that are long, because callers must not fill memory.
    """
    return _short_plan(text) if len(text) <= SHORT_LIMITS_TEXT else _long_plan(text)


@lru_cache(maxsize=4096)
def _short_plan(text: str) -> Plan:
    return Plan(limit_set(parse_limits(text)))


@lru_cache(maxsize=256)
def _long_plan(text: str) -> Plan:
    return Plan(limit_set(parse_limits(text)))
