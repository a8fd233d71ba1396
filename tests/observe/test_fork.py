"""Listeners that were made before a fork work in the children, whatever other threads did at that moment."""

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.client.call_events import CircuitOpened
from ratebound.client.otel import OpenTelemetryCallListener
from ratebound.events import Degraded
from ratebound.observe import LimitedClient, LogListener, TopListener, label
from ratebound.observe.memory_usage import WatchedMemory
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.testing import FakeClock
from ratebound.web.request_limits import EndpointCache
from tests.limiters import limiter_of
from tests.observe.decisions import held_elsewhere, refusal, told


def child_ends(work: Callable[[], object]) -> bool:
    """Return True if a function returns in a forked child."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads
@pytest.mark.parametrize("kind", [LogListener, TopListener])
def test_a_child_is_not_held_up_by_a_lock_of_its_parent(
    kind: type[LogListener] | type[TopListener], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ratebound")
    listener, denied = kind(clear=True, clock=clock), told(refusal(limiter_of("1/hour", clock), "k"))
    listener(denied)
    lock = listener._budget._lock if isinstance(listener, LogListener) else listener._lock
    with held_elsewhere(lock):
        child = os.fork()
        if not child:
            signal.alarm(10)
            listener(denied)
            own = not isinstance(listener, TopListener) or listener.top() == [LimitedClient("k", 1, 0)]
            os._exit(0 if own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_finds_names_metrics_and_endpoints_although_its_parent_had_their_locks() -> None:
    storage, memory, endpoints = MemoryStorage(), WatchedMemory(), EndpointCache(lambda endpoint: None)
    decisions, calls = OpenTelemetryListener(), OpenTelemetryCallListener()
    endpoint: Any = object()
    with held_elsewhere(label.new_names.lock):
        assert child_ends(lambda: label.label_of("new", {}, 9, str))
    with held_elsewhere(memory._lock):
        assert child_ends(lambda: memory.watch(storage, "main"))
    with held_elsewhere(decisions._lock):
        assert child_ends(lambda: decisions(Degraded("node", "away")))
    with held_elsewhere(calls._lock):
        assert child_ends(lambda: calls(CircuitOpened("https://api.example", 1.0)))
    with held_elsewhere(endpoints.lock):
        assert child_ends(lambda: endpoints.find("view", lambda: endpoint))
