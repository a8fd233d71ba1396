import asyncio
import gc
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest

from ratebound.adaptive import CpuUse, ErrorRate, Latency, LoopLag, Pressure, Reading, Signal
from ratebound.adaptive.signals import LONGEST, PROBE, RECENT, UNKNOWN, Finished


def finished(slow: int, quick: int) -> list[Finished]:
    return [Finished(2.0, True)] * slow + [Finished(0.1, False)] * quick


@pytest.mark.parametrize("signal", [Latency(1.0), ErrorRate(0.1)])
def test_a_tenth_of_requests_may_be_slow_or_fail(signal: Latency | ErrorRate) -> None:
    assert signal.load(0.0) == 0.0
    signal.add(finished(1, 9), 0.0)
    assert signal.load(0.0) <= 1.0
    signal.add(finished(1, 0), 0.0)
    assert signal.load(0.0) > 1


def test_latency_is_the_90th_percentile_against_its_target() -> None:
    signal = Latency(0.5)
    signal.add([Finished(seconds / 100, False) for seconds in range(1, 101)], 0.0)
    assert signal.load(0.0) == pytest.approx(0.9 / 0.5)


@pytest.mark.parametrize("signal", [Latency(timedelta(seconds=1)), ErrorRate(0.1)])
def test_a_few_requests_say_nothing(signal: Latency | ErrorRate) -> None:
    signal.add(finished(4, 0), 0.0)
    assert signal.load(0.0) == 0.0


@pytest.mark.parametrize("signal", [Latency(1.0), ErrorRate(0.1)])
def test_old_requests_count_no_longer(signal: Latency | ErrorRate) -> None:
    signal.add(finished(20, 0), 0.0)
    assert signal.load(0.0) > 1
    signal.add([], RECENT)
    assert signal.load(RECENT) > 1  # the last few count until others come
    signal.add(finished(0, 20), RECENT)
    assert signal.load(RECENT) < 1
    signal.add(finished(20, 0), RECENT)
    signal.add([], RECENT + LONGEST)
    assert signal.load(RECENT + LONGEST) == 0.0


@pytest.mark.parametrize("signal", [Latency(1.0), ErrorRate(0.1)])
def test_requests_from_before_a_fall_do_not_count(signal: Latency | ErrorRate) -> None:
    signal.add(finished(20, 0), 50.0)
    signal.begin_anew(50.0)
    assert signal.load(50.0) == UNKNOWN
    signal.add(finished(20, 0), 51.0)  # they have taken two seconds
    assert signal.load(51.0) == UNKNOWN
    signal.add(finished(20, 0), 52.5)
    assert signal.load(52.5) > 1
    signal.begin_anew(53.0)
    assert signal.load(53.0 + LONGEST) == 0.0  # nobody comes


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


def test_a_loop_is_not_measured_for_a_signal_that_is_gone() -> None:
    async def main() -> None:
        lag = LoopLag(0.1)
        lag.watch(asyncio.get_running_loop(), time.monotonic)
        probe = weakref.ref(lag._probes[0])
        del lag
        gc.collect()
        assert probe() is None

    asyncio.run(main())


def test_a_loop_that_works_in_time_has_little_lag() -> None:
    lag = LoopLag(60.0)

    async def main() -> float:
        lag.watch(asyncio.get_running_loop(), time.monotonic)
        await asyncio.sleep(0.25)
        return lag.load(time.monotonic())

    assert asyncio.run(main()) < 1
