import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from ratebound.adaptive import CpuUse, ErrorRate, Latency, LoopLag, Pressure, Reading, Signal
from ratebound.adaptive.signals import HALF_LIFE, PROBE, Finished


def finished(slow: int, quick: int) -> list[Finished]:
    return [Finished(2.0, True)] * slow + [Finished(0.1, False)] * quick


@pytest.mark.parametrize("signal", [Latency(1.0), ErrorRate(0.1)])
def test_a_tenth_of_requests_may_be_slow_or_fail(signal: Latency | ErrorRate) -> None:
    assert signal.load(0.0) == 0.0
    signal.add(finished(1, 9), 0.0)
    assert signal.load(0.0) == pytest.approx(1.0)
    signal.add(finished(1, 0), 0.0)
    assert signal.load(0.0) > 1


@pytest.mark.parametrize("signal", [Latency(timedelta(seconds=1)), ErrorRate(0.1)])
def test_a_few_requests_say_nothing(signal: Latency | ErrorRate) -> None:
    signal.add(finished(4, 0), 0.0)
    assert signal.load(0.0) == 0.0


@pytest.mark.parametrize("signal", [Latency(1.0), ErrorRate(0.1)])
def test_old_requests_count_less(signal: Latency | ErrorRate) -> None:
    signal.add(finished(20, 0), 0.0)
    before = signal.load(0.0)
    signal.add(finished(0, 20), HALF_LIFE)
    assert signal.load(HALF_LIFE) == pytest.approx(before / 3)
    signal.add([], 20 * HALF_LIFE)
    assert signal.load(20 * HALF_LIFE) == 0.0


def test_a_reading_is_held_against_its_threshold() -> None:
    assert Reading("queue", lambda: 300, 200).load(0.0) == 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CpuUse(85), "cpu must be a share above 0 and at most 1, such as 0.85, not 85"),
        (lambda: CpuUse(True), "cpu must be a share"),
        (lambda: ErrorRate(0), "errors must be a share"),
        (lambda: Latency(0), "latency must be seconds or a timedelta, more than 0"),
        (lambda: LoopLag(-1), "lag must be seconds or a timedelta, more than 0"),
        (lambda: Reading("", lambda: 0, 1), "a signal needs a name, not ''"),
        (lambda: Reading("queue", 3, 1), "signal 'queue': expected a function, not 3"),  # type: ignore[arg-type]
        (lambda: Reading("queue", lambda: 0, 0), "signal 'queue': the threshold must be a number above 0, not 0"),
        (lambda: Pressure([]), "expected at least one signal"),
        (lambda: Pressure([0.85]), "expected signals like CpuUse"),  # type: ignore[list-item]
        (lambda: Pressure(CpuUse(0.5), floor=2), "floor must be a share"),  # type: ignore[arg-type]
        (lambda: Pressure([CpuUse(0.5)], floor=0), "floor must be a share"),
    ],
)
def test_what_is_wrong_raises_at_construction(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_all_signals_have_the_shape_of_one() -> None:
    for signal in (CpuUse(), LoopLag(), Latency(), ErrorRate(), Reading("queue", lambda: 0, 1)):
        assert isinstance(signal, Signal)


def test_the_lag_of_a_loop_that_hangs_is_seen_from_outside() -> None:
    now = [100.0]
    lag = LoopLag(0.1)
    assert lag.load(now[0]) == 0.0
    assert not lag.is_watching

    async def main() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        lag.watch(loop, lambda: now[0])
        lag.watch(loop, lambda: now[0])  # once is enough
        calm = lag.load(now[0])
        now[0] += PROBE + 0.3  # as if it had hung: its timer is late
        late = lag.load(now[0])
        while lag.load(now[0] + PROBE) >= late:  # until the timer has run
            await asyncio.sleep(0.01)
            now[0] += 0.001
        return calm, late, float(lag.is_watching)

    calm, late, is_watching = asyncio.run(main())
    assert calm == 0.0
    assert late == pytest.approx(3.0)
    assert is_watching
    assert not lag.is_watching  # the loop is gone
    assert lag.load(now[0] + 1000) == 0.0


def test_a_loop_that_works_in_time_has_little_lag() -> None:
    lag = LoopLag(60.0)

    async def main() -> float:
        lag.watch(asyncio.get_running_loop(), time.monotonic)
        await asyncio.sleep(0.25)
        return lag.load(time.monotonic())

    assert asyncio.run(main()) < 1
