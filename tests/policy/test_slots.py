"""Slots under a gate: held for a verdict, released and undone with everything that was decided for the request."""

import asyncio
from typing import Any

import pytest

from ratebound import AsyncMemoryStorage
from ratebound.policy import AsyncGate, Gate, RequestView
from tests.web.running_requests import SlotLedger

SHADOW = {"name": "planned", "limits": "9 concurrent; 100/hour", "mode": "shadow"}
EARLY = {"name": "early", "limits": "9 concurrent; 100/hour", "stage": "early"}


def request() -> RequestView:
    return RequestView("GET", "/", peer="198.51.100.1")


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"rules": list(rules), "by": "address"}


def left(gate: Gate) -> list[int]:
    """What remains of each rate, if one more request comes."""
    verdict = gate.decide(request())
    gate.undo(verdict)
    found = [outcome for decision in verdict.decisions for outcome in zip(decision.limits, decision.rows, strict=True)]
    return [row[1] + 1 for limit, row in found if not limit.has_slots]


@pytest.fixture
def storage() -> SlotLedger:
    return SlotLedger()


def test_release_releases_all_slots_of_a_verdict_and_keeps_its_charge(storage: SlotLedger) -> None:
    gate = Gate(policy(EARLY, {"name": "late", "limits": "3 concurrent; 100/minute"}, SHADOW), storage=storage)
    verdict = gate.decide(request())
    assert verdict.allowed
    assert len(storage.held) == 3
    gate.release(verdict)
    gate.release(verdict)
    assert not storage.held
    assert left(gate) == [99, 99, 99]


def test_undo_refunds_everything_rules_in_shadow_included(storage: SlotLedger) -> None:
    gate = Gate(policy(EARLY, {"name": "late", "limits": "3 concurrent; 100/minute"}, SHADOW), storage=storage)
    verdict = gate.decide(request())
    gate.undo(verdict)
    gate.undo(verdict)
    assert not storage.held
    assert left(gate) == [100, 100, 100]


def test_what_was_settled_stays_charged_when_it_is_undone(storage: SlotLedger) -> None:
    gate = Gate(policy({"name": "late", "limits": "3 concurrent; 100/minute"}), storage=storage)
    verdict = gate.settle(gate.decide(request()), cost=5)
    assert len(storage.held) == 1
    gate.undo(verdict)
    assert not storage.held
    assert left(gate) == [95]


def test_a_denial_of_the_late_stage_releases_the_slots_of_the_early_one_and_keeps_its_charge(
    storage: SlotLedger,
) -> None:
    gate = Gate(policy(EARLY, {"name": "late", "limits": "1/minute"}), storage=storage)
    first = gate.decide(request())
    assert first.allowed
    assert not gate.decide(request())
    assert len(storage.held) == 1
    gate.release(first)
    assert not storage.held


def test_a_denial_releases_the_slots_of_rules_in_shadow(storage: SlotLedger) -> None:
    gate = Gate(policy({"name": "late", "limits": "1 concurrent"}, SHADOW), storage=storage)
    first = gate.decide(request())
    assert not gate.decide(request())
    assert len(storage.held) == 2
    gate.release(first)
    assert not storage.held


def test_an_error_in_the_late_stage_releases_the_slots_of_the_early_one(storage: SlotLedger) -> None:
    class Broken(Gate):
        def decide_by(self, compiled: Any, request: RequestView, stage: str) -> Any:
            if stage == "late":
                raise KeyboardInterrupt
            return super().decide_by(compiled, request, stage)

    gate = Broken(policy(EARLY, {"name": "late", "limits": "1/minute"}), storage=storage)
    with pytest.raises(KeyboardInterrupt):
        gate.decide(request())
    assert storage.trips == ["spend", "force"]
    assert not storage.held


def test_a_queue_and_a_slot_in_one_rule(storage: SlotLedger) -> None:
    rule = {"name": "both", "limits": "1 concurrent; 10/second burst 10 leaky-bucket"}
    gate = Gate(policy(rule), storage=storage, max_delay=5)
    verdict = gate.decide(request())
    assert verdict.allowed
    assert not gate.decide(request())
    gate.release(verdict)
    assert gate.decide(request())


async def _async_gate(storage: SlotLedger) -> None:
    gate = AsyncGate(policy(EARLY, {"name": "late", "limits": "1 concurrent; 100/minute"}, SHADOW), storage=storage)
    verdict = await gate.decide(request())
    assert len(storage.held) == 3
    assert not await gate.decide(request())
    assert len(storage.held) == 3
    await gate.release(verdict)
    assert not storage.held
    await gate.undo(await gate.decide(request()))
    assert not storage.held


def test_tasks_release_and_undo_alike(storage: SlotLedger) -> None:
    asyncio.run(_async_gate(storage))


class Slow:
    """A storage for tasks whose answers come when the test lets them."""

    def __init__(self, ledger: SlotLedger) -> None:
        self.inner = AsyncMemoryStorage(ledger)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
        answers = await self.inner.evaluate(groups, mode)
        self.asked.set()
        await self.go.wait()
        return answers

    async def reset(self, group: Any) -> None:
        await self.inner.reset(group)

    async def close(self) -> None:
        pass


async def _cancelled_decision(storage: SlotLedger) -> None:
    slow = Slow(storage)
    gate = AsyncGate(policy({"name": "late", "limits": "1 concurrent"}), storage=slow, deadline=30)
    deciding = asyncio.create_task(gate.decide(request()))
    await slow.asked.wait()
    assert len(storage.held) == 1
    deciding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deciding
    slow.go.set()
    while storage.held:
        await asyncio.sleep(0)


def test_a_request_that_is_cancelled_while_it_is_decided_holds_nothing(storage: SlotLedger) -> None:
    asyncio.run(asyncio.wait_for(_cancelled_decision(storage), 30))


async def _cancelled_release(storage: SlotLedger) -> None:
    slow = Slow(storage)
    slow.go.set()
    gate = AsyncGate(policy({"name": "late", "limits": "1 concurrent"}, SHADOW), storage=slow, deadline=30)
    verdict = await gate.decide(request())
    slow.go.clear()
    slow.asked.clear()
    releasing = asyncio.create_task(gate.release(verdict))
    await slow.asked.wait()
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    slow.go.set()
    while storage.held:
        await asyncio.sleep(0)


def test_a_release_goes_on_when_its_caller_is_cancelled(storage: SlotLedger) -> None:
    asyncio.run(asyncio.wait_for(_cancelled_release(storage), 30))
