"""Pacers with configured limits."""

import asyncio
import threading

import pytest

from ratebound import AsyncMemoryStorage, RateLimited
from ratebound.client import AsyncPacer, Pacer
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock
from tests.waiting import virtual

URL = "https://api.example.com/v1/things?token=secret"


def test_a_configured_limit_is_kept_exactly() -> None:
    clock = FakeClock()
    sent: list[int] = []
    with Pacer("5/second, 8/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep) as pacer:
        for _ in range(9):
            with pacer.turn(URL):
                sent.append(clock())
    since = [instant - sent[0] for instant in sent]
    assert since == [0] * 5 + [1_000_000] * 3 + [60_000_000]


def test_several_limits_can_be_given_as_a_list() -> None:
    clock = FakeClock()
    with Pacer(["5/second", "8/minute"], storage=MemoryStorage(clock=clock), sleep=clock.sleep) as pacer:
        begin = clock()
        for _ in range(9):
            pacer.wait(URL)
        assert clock() - begin == 60_000_000


def test_a_turn_that_cannot_come_in_time_raises_at_once() -> None:
    clock = FakeClock()
    with Pacer("1/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep) as pacer:
        pacer.wait(URL)
        before = clock()
        with pytest.raises(RateLimited, match="1/minute"):
            pacer.wait(URL, timeout=5)
        assert clock() == before


def test_tasks_share_a_configured_limit() -> None:
    clock = FakeClock()
    sent: list[int] = []

    async def main() -> None:
        async with AsyncPacer("5/second", storage=MemoryStorage(clock=clock), sleep=clock.async_sleep) as pacer:

            async def send() -> None:
                async with pacer.turn(URL):
                    sent.append(clock())

            await asyncio.gather(*(send() for _ in range(15)))

    asyncio.run(main())
    assert [instant - sent[0] for instant in sent] == [0] * 5 + [1_000_000] * 5 + [2_000_000] * 5


def test_threads_share_a_configured_limit() -> None:
    granted = []
    with Pacer("20/hour") as pacer:

        def send() -> None:
            try:
                while True:
                    pacer.wait(URL, timeout=0)
                    granted.append(1)
            except RateLimited:
                pass

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(granted) == 20


def test_origins_have_limits_of_their_own_and_a_name_joins_them() -> None:
    with Pacer("1/hour") as pacer:
        pacer.wait("https://a.example.com/")
        pacer.wait("https://b.example.com/", timeout=0)
    with Pacer("1/hour", name="billing") as pacer:
        pacer.wait("https://a.example.com/")
        with pytest.raises(RateLimited):
            pacer.wait("https://b.example.com/", timeout=0)


def test_a_pacer_without_limits_never_waits() -> None:
    with Pacer() as pacer, pacer.turn(URL) as turn:
        assert turn.answered(200, []).quotas == ()
        assert not turn.answered(200, []).refused


def test_those_behind_cancelled_tasks_move_up() -> None:
    """Places far ahead would stay empty: those behind a cancelled task have places of their own."""

    async def last_of_thirty(learn: bool) -> float:
        storage = AsyncMemoryStorage(clock=virtual.clock)
        pacer = AsyncPacer("20/second burst 1", storage=storage, clock=virtual.seconds, learn=learn)
        tasks = [asyncio.create_task(pacer.wait(URL)) for _ in range(60)]
        await asyncio.sleep(0.1)
        for task in tasks[:30]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return virtual.seconds()

    assert virtual.run(last_of_thirty(learn=True)) == pytest.approx(1.6)
    assert virtual.run(last_of_thirty(learn=False)) == pytest.approx(1.6)
