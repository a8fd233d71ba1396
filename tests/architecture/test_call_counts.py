"""Python calls of a decision in memory: each costs about as much as the arithmetic itself, so they are counted.

The figures are upper bounds. A change that needs more calls on these paths has to say why here.
"""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.limit import ALGORITHMS
from ratebound.policy import AsyncGate, Gate, RequestView, read_policy
from ratebound.storage.stored_states import StateNames, StoredGroup
from tests.builds import needs_pure_build

ALLOWED = 4  # hit, the states, the kernel's spend, Decision
DENIED = 6  # and how long it takes, where a kernel computes that by itself
LISTENED = 3  # on top: the event, tell, and the listener itself
LISTENED_ASYNC = LISTENED + 1  # and the `hit` of threads, which tells the listeners


def calls_of(function: Callable[[], object]) -> list[str]:
    """Return the names of the Python functions that a warm call of `function` runs, itself left out.

    Now and then a call sweeps old keys, too: of several calls the shortest counts.
    """
    counted: list[list[str]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            counted[-1].append(frame.f_code.co_qualname)

    function()
    for _ in range(20):
        counted.append([])
        sys.setprofile(profile)
        try:
            function()
        finally:
            sys.setprofile(None)
    return min(counted, key=len)[1:]


def listener(event: object) -> None: ...


@pytest.mark.parametrize("listeners", [(), (listener,)], ids=["unheard", "listened to"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("count", "most"), [(9_999, ALLOWED), (1, DENIED)], ids=["allowed", "denied"])
def test_a_warm_hit_takes_few_calls(algorithm: str, count: int, most: int, listeners: Any) -> None:
    limiter = Limiter(f"{count}/day {algorithm}", listeners=listeners)
    called = calls_of(lambda: limiter.hit("k"))
    assert limiter.hit("k").allowed is (count > 1)
    assert len(called) <= most + (LISTENED if listeners else 0), called


@pytest.mark.parametrize("listeners", [(), (listener,)], ids=["unheard", "listened to"])
@pytest.mark.parametrize(("count", "most"), [(9_999, ALLOWED), (1, DENIED)], ids=["allowed", "denied"])
def test_a_warm_async_hit_takes_as_few(count: int, most: int, listeners: Any) -> None:
    limiter = AsyncLimiter(f"{count}/day token-bucket", listeners=listeners)

    def hit() -> None:
        coroutine = limiter.hit("k")
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("memory answers without a pause")

    called = calls_of(hit)
    assert asyncio.run(limiter.hit("k")).allowed is (count > 1)
    assert len(called) <= most + (LISTENED_ASYNC if listeners else 0), called


@pytest.mark.parametrize("count", [9_999, 1], ids=["allowed", "denied"])
def test_a_listener_does_not_lead_off_the_fast_path(count: int) -> None:
    limiter = Limiter(f"{count}/day token-bucket")
    unheard = calls_of(lambda: limiter.hit("k"))
    limiter.listen(listener)
    heard = calls_of(lambda: limiter.hit("k"))
    assert [name for name in heard if name in unheard] == unheard


@needs_pure_build
@pytest.mark.parametrize("listeners", [(), (listener,)], ids=["unheard", "listened to"])
def test_a_gate_asks_memory_at_once_whoever_listens(listeners: Any) -> None:
    gate = Gate(read_policy({"rules": [{"name": "all", "limits": "1/day token-bucket"}]}), listeners=listeners)
    called = calls_of(lambda: gate.decide(RequestView("GET", "/", peer="192.0.2.1")))
    assert "States.hit" in called
    assert "MemoryStorage.evaluate" not in called
    assert "Decider.evaluate" not in called


@needs_pure_build
def test_a_gate_for_tasks_makes_one_verdict() -> None:
    gate = AsyncGate(read_policy({"rules": [{"name": "all", "limits": "9999/day token-bucket"}]}))
    called = calls_of(lambda: gate.decide_now(RequestView("GET", "/", peer="192.0.2.1")))
    assert called.count("Verdict.__init__") == 1, called


@needs_pure_build
def test_a_listener_of_a_gate_costs_no_copy_of_the_asks() -> None:
    gate = Gate(read_policy({"rules": [{"name": "all", "limits": "9999/day token-bucket"}]}), listeners=[listener])
    called = calls_of(lambda: gate.decide(RequestView("GET", "/", peer="192.0.2.1")))
    assert "listener" in called
    assert "MemoryDecision.asks" not in called


@needs_pure_build
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_denied_hit_reads_the_bytes_of_a_state_once(algorithm: str) -> None:
    limits = Limiter(f"1/day {algorithm}").limits
    group = StoredGroup((("k", limits, 1, None, None),), StateNames())
    _, changes = group.decide({}, "spend", 1_000_000)
    found = {change.name: change.data for change in changes}
    rows, _ = group.decide(found, "spend", 1_000_000)
    assert not rows[0][0]
    called = calls_of(lambda: group.decide(found, "spend", 1_000_000))
    assert called.count("state_from_bytes") == 1, called


@needs_pure_build
def test_the_rule_that_a_denied_client_is_told_of_is_looked_up_once_for_each_use() -> None:
    rules = [{"name": "a", "limits": "1/day", "message": "Slow down."}, {"name": "b", "limits": "1/day"}]
    gate = Gate(read_policy({"rules": rules}))
    view = RequestView("GET", "/", peer="192.0.2.1")
    gate.decide(view)
    denied = gate.decide(view)
    assert denied.message == "Slow down."
    assert calls_of(lambda: (denied.message, denied.documentation)).count("Verdict.rule") == 2
