"""Fixtures for tests of what operators do: gates of both kinds, on memory and on a storage outside of the process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import AsyncGate, Gate, read_policy
from ratebound.testing import FakeClock
from tests.policy.operated import Make, OperatedGate, RemoteStorage


@pytest.fixture(params=["threads", "tasks"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    loop = asyncio.new_event_loop()

    def make(policy: Any, storage: Any, **more: Any) -> OperatedGate:
        policy = read_policy(policy) if isinstance(policy, dict) else policy
        kind = Gate if request.param == "threads" else AsyncGate
        return OperatedGate(kind(policy, storage=storage, **more), loop.run_until_complete)

    yield make
    loop.close()


@pytest.fixture(params=["memory", "remote"])
def storage(request: pytest.FixtureRequest, clock: FakeClock) -> Any:
    return MemoryStorage(clock=clock) if request.param == "memory" else RemoteStorage(clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
