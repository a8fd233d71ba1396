"""Many threads and tasks on one key with slices are granted exactly the count."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from ratebound import AsyncLimiter, MemoryStorage
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.remote import RemoteStorage, by_clock, sliced

THREADS = 8
GRANTS = 1_000
LIMITS = [f"{GRANTS}/day sliding-counter", f"{GRANTS}/day burst {GRANTS}", f"{GRANTS}/day fixed-window; 5000/week"]


@pytest.fixture(autouse=True)
def _switch_as_often_as_can_be() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("text", LIMITS)
def test_threads_are_granted_exactly_the_count(text: str) -> None:
    clock = FakeClock()  # it stands still, so no token is lost
    remote = RemoteStorage(MemoryStorage(clock=clock), clock)
    limiter = sliced(text, remote)
    granted: list[int] = []
    gate = threading.Barrier(THREADS)

    def work() -> None:
        gate.wait()
        granted.append(sum(limiter.hit("k").allowed for _ in range(2 * GRANTS // THREADS)))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == THREADS
    rest = sum(limiter.hit("k").allowed for _ in range(GRANTS))  # tokens that came when others had been denied
    assert sum(granted) + rest == GRANTS


class Pausing:
    """A storage for tasks that lets others run before and after each decision."""

    def __init__(self, memory: MemoryStorage) -> None:
        self.memory = memory

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(0)
        answers = self.memory.evaluate(groups, mode)
        await asyncio.sleep(0)
        return answers

    async def reset(self, group: Group) -> None:
        self.memory.reset(group)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("text", LIMITS)
def test_tasks_are_granted_exactly_the_count(text: str) -> None:
    async def main() -> int:
        clock = FakeClock()
        limiter = AsyncLimiter(text, storage=Pausing(MemoryStorage(clock=clock)), slice=True, deadline=60)
        by_clock(limiter._decider, clock)

        async def work() -> int:
            return sum([(await limiter.hit("k")).allowed for _ in range(2 * GRANTS // 50)])

        granted = sum(await asyncio.gather(*(work() for _ in range(50))))
        return granted + sum([(await limiter.hit("k")).allowed for _ in range(GRANTS)])

    assert asyncio.run(main()) == GRANTS
