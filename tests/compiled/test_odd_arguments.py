"""Keys, costs and clocks that nobody expects get the same answers, and the same errors, in both builds."""

import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ratebound
from ratebound import Decision, InvalidCost, InvalidKey, Limit, Limiter, MemoryStorage, Outcome
from ratebound.limit import ALGORITHMS, MAX_PERIOD, Algorithm
from ratebound.testing import FakeClock
from tests.limiters import limiter_of

PACKAGE = Path(ratebound.__file__).parent


class Name(str):
    """A key that is no plain text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"

    def __hash__(self) -> int:
        return 7


class Number:
    """A whole number as other packages have it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("key", ["", "a", "\x00", "\ud800", "\ud800" * 300, "ü" * 256, "ü" * 257, "x" * 10**7])
def test_any_text_is_a_key(key: str, clock: FakeClock) -> None:
    limiter = limiter_of("2/minute; 3/hour", clock)
    assert [limiter.hit(key).allowed for _ in range(3)] == [True, True, False]
    assert limiter.hit(key + "b").allowed
    assert limiter.hit(key).asks[0][0] == key
    limiter.reset(key)
    assert limiter.hit(key).allowed


def test_a_subclass_of_text_is_the_plain_text_that_it_holds(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute", clock)
    assert limiter.hit(Name("a")).remaining == 1
    assert limiter.hit("a").remaining == 0
    assert not limiter.hit(Name("a"))
    assert type(limiter.hit(Name("a")).asks[0][0]) is str


@pytest.mark.parametrize("key", [None, 1, b"a", ["a"], object()])
def test_what_is_no_text_is_no_key(key: Any, clock: FakeClock) -> None:
    with pytest.raises(InvalidKey) as caught:
        limiter_of("2/minute", clock).hit(key)
    assert str(caught.value) == f"key must be text, not {type(key).__name__}: for example 'user:42'"


@pytest.mark.parametrize("listeners", [[], [lambda event: None]])
@pytest.mark.parametrize(
    "cost", [True, False, 0, -1, 10**12 + 1, 2**62, 2**64, -(2**63), 10**100, 1.0, None, "1", Number(0), Number(2**64)]
)
def test_a_cost_out_of_range_raises(cost: Any, listeners: Any, clock: FakeClock) -> None:
    limiter = limiter_of("2/minute; 5/hour", clock, listeners=listeners)
    with pytest.raises(InvalidCost) as caught:
        limiter.hit("a", cost=cost)
    assert str(caught.value).startswith(f"cost must be a whole number from 1 to 1000000000000, not {cost!r};")
    assert limiter.hit("a").remaining == 1


@pytest.mark.parametrize("cost", [Number(3), Number(1)])
def test_whole_numbers_of_other_types_are_costs(cost: Any, clock: FakeClock) -> None:
    decision = limiter_of("5/minute", clock).hit("a", cost=cost)
    assert decision.remaining == 5 - cost.value
    assert type(decision.asks[0][2]) is int


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_largest_costs_are_counted_exactly(algorithm: Algorithm, clock: FakeClock) -> None:
    limit = Limit(10**12, MAX_PERIOD, 0, algorithm, large=True)
    limiter = Limiter(limit, storage=MemoryStorage(clock=clock))
    assert limiter.hit("a", cost=10**12 - 1).remaining == 1
    assert limiter.hit("b", cost=10**12).remaining == 0
    denied = limiter.hit("a", cost=10**12)
    assert (denied.allowed, denied.remaining) == (False, 1)
    assert limiter.settle(limiter.hit("a"), cost=10**12).remaining == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("start", [0, 60_000_000, 2**53, 2**61, -60_000_000, -(10**15)])
def test_answers_do_not_depend_on_where_a_clock_begins(start: int, algorithm: Algorithm) -> None:
    limit = Limit(3, 60_000_000, 0, algorithm)
    start -= start % 60_000_000  # fixed windows are aligned to the clock
    assert _played(limit, start) == _played(limit, 1_700_000_040_000_000)


def _played(limit: Limit, start: int) -> list[Any]:
    """Return what a limiter answers from an instant on: spends, refunds, a step back of the clock."""
    clock = FakeClock(start)
    limiter = Limiter(limit, storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    answers: list[Any] = []
    for step in (0, 1, 5, 0, 30_000_000, 90_000_000, -45_000_000, 0, 10_000_000, 120_000_000):
        clock.now += step
        decision = limiter.hit("a")
        answers.append((decision.allowed, decision.remaining, decision.retry_after, decision.reset_after))
        if step in (5, 30_000_000):
            settled = limiter.settle(decision, cost=0)
            answers.append((settled.remaining, settled.reset_after))
        waited = limiter.wait("b", timeout=1_000)
        answers.append((waited.remaining, waited.delay, clock.now - start))
    return answers


@pytest.mark.parametrize("now", [1_700_000_000_000_000.75, Number(1_700_000_000_000_000)])
def test_a_clock_may_return_other_numbers(now: Any) -> None:
    limiter = Limiter("3/minute; 5/hour", storage=MemoryStorage(clock=lambda: now))
    decision = limiter.hit("a")
    assert (decision.remaining, decision.at) == (2, 1_700_000_000_000_000)
    assert type(decision.at) is int


def test_a_clock_that_raises_raises_and_leaves_the_lock_free(clock: FakeClock) -> None:
    broken = [False]

    def ticking() -> int:
        if broken[0]:
            raise OSError("no clock")
        return clock.now

    limiter = Limiter("3/minute; 5/hour", storage=MemoryStorage(clock=ticking))
    first = limiter.hit("a")
    broken[0] = True
    for ask in (limiter.hit, limiter.peek, limiter.wait, lambda key: limiter.hit_many([key])):
        with pytest.raises(OSError, match="^no clock$"):
            ask("a")
    with pytest.raises(OSError, match="^no clock$"):
        limiter.settle(first, cost=0)
    broken[0] = False
    assert limiter.hit("a").remaining == 1


@pytest.mark.parametrize("text", ["3/minute", "3/minute; 5/hour"])
def test_a_listener_that_raises_is_logged_with_its_traceback(
    text: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(event: Any) -> None:
        raise LookupError("a listener's mistake")

    heard: list[Any] = []
    limiter = limiter_of(text, clock, listeners=[listener, heard.append])
    assert limiter.hit("a").remaining == 2
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("ratebound", logging.ERROR)
    assert record.getMessage() == "a listener failed; the decision stands"
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError
    functions = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
    assert functions == ["tell", "listener"]
    assert len(heard) == 1
    assert sys.exc_info() == (None, None, None)


def test_an_interruption_in_a_listener_passes(clock: FakeClock) -> None:
    def listener(event: Any) -> None:
        raise KeyboardInterrupt

    limiter = limiter_of("3/minute", clock, listeners=[listener])
    with pytest.raises(KeyboardInterrupt):
        limiter.hit("a")
    assert limiter.peek("a").remaining == 2


def _no_key(limiter: Limiter) -> None:
    limiter.hit(None)  # type: ignore[arg-type]


def _no_cost(limiter: Limiter) -> None:
    limiter.hit("a", cost=0)


def _no_time(limiter: Limiter) -> None:
    def broken() -> int:
        raise OSError("no clock")

    limiter.storage = MemoryStorage(clock=broken)
    limiter.hit("a")


@pytest.mark.parametrize(
    ("mistake", "error", "through"),
    [
        (_no_key, InvalidKey, ["hit_method.py", "limiter.py", "arguments.py", "limit.py"]),
        (_no_cost, InvalidCost, ["hit_method.py", "limiter.py", "arguments.py", "limit.py"]),
        (_no_time, OSError, ["hit_method.py", "memory_states.py", "clock.py"]),
    ],
)
def test_a_traceback_names_our_files_and_lines(
    mistake: Callable[[Limiter], None], error: type[Exception], through: list[str], clock: FakeClock
) -> None:
    with pytest.raises(error) as caught:
        mistake(limiter_of("3/minute", clock))
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if "ratebound" in Path(frame.filename).parts and "tests" not in frame.filename]
    assert list(dict.fromkeys(Path(frame.filename).name for frame in ours)) == through
    for frame in ours:
        parts = Path(frame.filename).parts
        inside = parts[len(parts) - parts[::-1].index("ratebound") :]
        lines = PACKAGE.joinpath(*inside).read_text("utf-8").splitlines()
        assert 1 <= (frame.lineno or 0) <= len(lines)
        assert lines[(frame.lineno or 0) - 1].strip(), frame


def test_rows_may_be_outcomes(clock: FakeClock) -> None:
    decision = limiter_of("3/minute; 9/hour", clock).hit("a")
    other = Decision(decision.asks, decision.outcomes)
    assert (other.remaining, other.limit, other.outcomes) == (2, decision.limit, decision.outcomes)
    assert Outcome(*other.rows[0]) == decision.outcomes[0]


def test_a_decision_of_wrong_things_raises_a_type_error() -> None:
    with pytest.raises(TypeError):
        Decision(1, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Decision()  # type: ignore[call-arg]
