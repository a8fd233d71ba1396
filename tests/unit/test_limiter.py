"""The limiter's own promises: what it takes, what it refuses, what a decision says."""

import asyncio
import math
import pickle
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest

import ratebound
from ratebound import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    InvalidCost,
    InvalidKey,
    InvalidLimit,
    Limit,
    Limiter,
    MemoryStorage,
    RateLimited,
    parse_limit,
    parse_limits,
)
from ratebound.testing import FakeClock, limiting_off, nothing_sleeps
from tests.limiters import limiter_of


def test_a_decision_speaks_of_the_limit_that_is_nearest_to_being_used_up(clock: FakeClock) -> None:
    limiter = limiter_of("100/minute; 10/second burst 20", clock)
    decision = limiter.hit("user:42")
    assert decision
    assert decision.allowed is True
    assert (decision.remaining, str(decision.limit)) == (19, "10/second burst 20")
    assert (decision.retry_after, decision.reset_after, decision.delay) == (0.0, 0.1, 0.0)
    assert [outcome.remaining for outcome in decision.outcomes] == [99, 19]
    assert [str(limit) for limit in decision.limits] == ["100/minute", "10/second burst 20"]
    assert decision.degraded is None
    assert decision.at == clock.now


def test_of_equal_remaining_the_longest_reset_is_spoken_of(clock: FakeClock) -> None:
    assert str(limiter_of("5/second; 5/hour; 5/minute", clock).hit("a").limit) == "5/hour"


def test_a_denial_speaks_of_the_limit_that_denies_for_longest(clock: FakeClock) -> None:
    limiter = limiter_of("1/second; 2/minute; 100/day", clock)
    assert limiter.hit("a")
    denied = limiter.hit("a")
    assert (str(denied.limit), denied.retry_after, denied.remaining) == ("1/second", 1.0, 0)
    clock.advance(1)
    assert limiter.hit("a")
    denied = limiter.hit("a")
    assert not denied
    assert (str(denied.limit), denied.retry_after) == ("2/minute", 59.0)
    assert denied.delay == 0.0


def test_a_cost_above_one_of_the_limits_has_no_retry_after(clock: FakeClock) -> None:
    denied = limiter_of("5/second; 3/minute", clock).hit("a", cost=4)
    assert (denied.retry_after, str(denied.limit)) == (None, "3/minute")


def test_hit_many_gives_independent_answers_in_order(clock: FakeClock) -> None:
    limiter = limiter_of("1/minute", clock)
    assert [bool(decision) for decision in limiter.hit_many(["a", "b", "a"])] == [True, True, False]
    assert limiter.hit_many([]) == []


def test_check_decides_several_keys_and_limits_atomically(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    per_ip, per_user = parse_limit("10/minute as ip"), parse_limits("2/minute; 100/day")
    for expected in (True, True, False, False):
        decision = limiter.check([Check("ip:1.2.3.4", per_ip), Check("user:7", per_user, cost=1)])
        assert decision.allowed is expected
    assert [outcome.remaining for outcome in decision.outcomes] == [8, 0, 98]
    assert str(decision.limit) == "2/minute"


@pytest.mark.parametrize(
    "cost", [0, -1, True, False, 1.0, 0.5, math.nan, math.inf, "1", None, Fraction(1, 2), 10**12 + 1]
)
def test_a_bad_cost_is_refused_before_any_state_is_touched(cost: Any, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/minute; 3/second burst 9", storage=storage, sleep=clock.sleep)
    for call in (limiter.hit, limiter.peek, limiter.wait):
        with pytest.raises(InvalidCost, match="whole number from 1 .* scale the unit"):
            call("a", cost=cost)
    with pytest.raises(InvalidCost):
        limiter.hit_many(["a", "b"], cost=cost)
    with pytest.raises(InvalidCost):
        limiter.check([Check("a", parse_limit("5/minute")), Check("b", parse_limit("5/minute"), cost=cost)])
    assert storage.keys == 0


def test_what_acts_as_a_whole_number_is_a_cost(clock: FakeClock) -> None:
    class Weight(IntEnum):
        HEAVY = 3

    assert limiter_of("5/minute", clock).hit("a", cost=Weight.HEAVY).remaining == 2


@pytest.mark.parametrize("key", [None, 42, b"a", ("a", "b"), 1.5])
def test_a_key_that_is_not_text_is_refused(key: Any, clock: FakeClock) -> None:
    limiter = limiter_of("5/minute", clock)
    for call in (limiter.hit, limiter.peek, limiter.wait, limiter.reset):
        with pytest.raises(InvalidKey, match="for example 'user:42'"):
            call(key)


def test_text_of_another_class_is_the_same_key(clock: FakeClock) -> None:
    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 7

        def __str__(self) -> str:
            return "b"

    limiter = limiter_of("1/minute", clock)
    assert limiter.hit(Name("a"))
    assert not limiter.hit("a")


@pytest.mark.parametrize("limits", ["", "5 per fortnight", [], [5], None, 5])
def test_a_bad_configuration_raises_at_construction(limits: Any) -> None:
    for make in (Limiter, AsyncLimiter):
        with pytest.raises(InvalidLimit, match="expected"):
            make(limits)


def test_limits_that_would_share_a_count_are_refused(clock: FakeClock) -> None:
    with pytest.raises(InvalidLimit, match="'20/minute as other'"):
        Limiter("10/minute; 20/minute")
    both = limiter_of("10/minute; 20/minute as other", clock).hit("a")
    assert [outcome.remaining for outcome in both.outcomes] == [9, 19]


@pytest.mark.parametrize(
    "url", ["", "memory", "redis", "memory://host", "memory://?max_key=5", "memory://?max_keys=-5", "memory:///x"]
)
def test_a_bad_storage_url_says_what_is_expected(url: str) -> None:
    for make in (Limiter, AsyncLimiter):
        with pytest.raises(ValueError, match="expected .*(memory://|max_keys=10000)"):
            make("5/minute", storage=url)


def test_a_storage_url_has_options() -> None:
    limiter = Limiter("5/minute", storage="memory://?max_keys=7")
    assert isinstance(limiter.storage, MemoryStorage)
    assert limiter.storage.max_keys == 7


def test_a_storage_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="AsyncMemoryStorage is for AsyncLimiter"):
        Limiter("5/minute", storage=AsyncMemoryStorage())  # type: ignore[arg-type]
    for thing in (None, MemoryStorage, 5, object()):
        for make in (Limiter, AsyncLimiter):
            with pytest.raises(TypeError, match="a storage is a URL like 'memory://', or an object"):
                make("5/minute", storage=thing)  # type: ignore[arg-type]


def test_an_async_limiter_takes_a_sync_memory_and_shares_its_states() -> None:
    memory = MemoryStorage()
    assert Limiter("1/minute", storage=memory).hit("a")
    assert not asyncio.run(AsyncLimiter("1/minute", storage=memory).hit("a"))


def test_the_sleep_of_an_async_limiter_must_be_awaited(clock: FakeClock) -> None:
    with pytest.raises(TypeError, match="async_sleep"):
        AsyncLimiter("1/minute", sleep=clock.sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, math.nan, "1", True])
def test_a_bad_timeout_is_refused(seconds: Any, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="max_delay must be seconds or a timedelta, 0 or more, or math.inf to wait"):
        Limiter("5/minute", max_delay=seconds)
    with pytest.raises(ValueError, match="timeout must be seconds or a timedelta, 0 or more, or math.inf to wait"):
        limiter_of("5/minute", clock).wait("a", timeout=seconds)


def test_no_max_delay_at_all_is_refused_and_told_what_waits_for_ever() -> None:
    with pytest.raises(ValueError, match=r"max_delay must be .* math\.inf to wait for ever, not None"):
        Limiter("5/minute", max_delay=None)  # type: ignore[arg-type]


def test_the_default_algorithm_can_be_chosen_for_a_whole_limiter() -> None:
    limiter = Limiter("5/minute; 9/second burst 20", default_algorithm="fixed-window")
    assert [limit.algorithm for limit in limiter.limits] == ["fixed-window", "token-bucket"]


def test_checks_that_would_share_a_count_are_refused(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    checks = [Check("k", parse_limit("5/minute burst 5")), Check("k", parse_limit("10/minute burst 10"))]
    with pytest.raises(InvalidLimit, match="would share one count: name one"):
        limiter.check(checks)
    storage, rows = limiter.storage, []
    for _ in range(20):  # and a storage that is asked all the same never says yes without charging
        rows.append(storage.evaluate(([check.ask() for check in checks],))[0])
    assert sum(all(row[0] for row in answer) for answer in rows) == 3  # 18 s of 60 each


def test_the_switches_for_tests_can_be_nested(clock: FakeClock) -> None:
    limiter = limiter_of("1/hour", clock)
    with limiting_off(), nothing_sleeps():
        assert all(limiter.hit("a") for _ in range(3))
    assert limiter.hit("a")
    assert not limiter.hit("a")


def test_reset_forgets_one_key(clock: FakeClock) -> None:
    limiter = limiter_of("1/hour; 1/day burst 1", clock)
    limiter.hit("a")
    limiter.hit("b")
    limiter.reset("a")
    assert limiter.hit("a")
    assert not limiter.hit("b")


def test_reset_forgets_what_was_checked_if_told_the_limits(clock: FakeClock) -> None:
    limiter, other = limiter_of("1/hour", clock), parse_limit("1/day as other")
    limiter.check([Check("a", other)])
    limiter.reset("a")
    assert not limiter.check(Check("a", other))
    limiter.reset("a", limits=other)
    assert limiter.check(Check("a", other))


def test_common_slips_are_told_what_to_do(clock: FakeClock) -> None:
    limiter = limiter_of("1/hour", clock)
    with pytest.raises(InvalidKey, match=r"hit_many takes several keys, not one text"):
        limiter.hit_many("abc")
    with pytest.raises(TypeError, match=r"expected Check\('user:42'"):
        limiter.check([("a", "1/s")])  # type: ignore[list-item]
    with pytest.raises(InvalidLimit, match="whole number of microseconds"):
        Limit(10, 60.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="'100/minute as other'"):
        Limiter("100/minute as tokens; 100/minute as tokens")
    for options in ({"key": 5}, {"cost": 0.5}):
        with pytest.raises((InvalidKey, InvalidCost)):
            limiter.limit(**options)(len)


def test_closing_comes_with_the_context() -> None:
    closed: list[str] = []

    class Noting(MemoryStorage):
        def close(self) -> None:
            closed.append("sync")

    class AsyncNoting(AsyncMemoryStorage):
        async def close(self) -> None:
            closed.append("async")

    async def use() -> None:
        async with AsyncLimiter("1/second", storage=AsyncNoting()) as limiter:
            assert await limiter.hit("a")

    with Limiter("1/second", storage=Noting()) as limiter:
        assert limiter.hit("a")
    asyncio.run(use())
    assert closed == ["sync", "async"]


def test_limiting_off_allows_everything_and_counts_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("1/hour; 2/day burst 2", clock)
    with limiting_off():
        for _ in range(5):
            decision = limiter.hit("a", cost=3)
            assert decision.allowed
            assert decision.retry_after == 0.0 or decision.retry_after is None
            assert limiter.wait("a").allowed
        assert limiter.settle(decision, cost=0).allowed
    assert limiter.peek("a").remaining == 1


def test_nothing_sleeps_counts_but_goes_on_at_once() -> None:
    def never(seconds: float) -> None:
        raise AssertionError(f"slept {seconds}")

    for text in ("1/hour burst 1", "1/hour", "1/hour fixed-window; 2/day", "1/minute burst 9 leaky-bucket"):
        limiter = Limiter(text, sleep=never, max_delay=math.inf)
        with nothing_sleeps():
            for _ in range(3):
                assert limiter.wait("a").allowed
        assert limiter.peek("a").remaining <= 6


def test_the_async_limiter_gives_the_same_answers(clock: FakeClock) -> None:
    text = "3/minute; 2/second burst 5"
    sync = limiter_of(text, clock)
    limiter = AsyncLimiter(text, storage=AsyncMemoryStorage(clock=clock), sleep=clock.async_sleep)

    async def compare() -> None:
        both: list[tuple[Decision, Decision]] = []
        for cost in (1, 2, 1):
            both.append((sync.hit("a", cost=cost), await limiter.hit("a", cost=cost)))
            both.append((sync.peek("a"), await limiter.peek("a")))
        both += list(zip(sync.hit_many([*"aab"]), await limiter.hit_many([*"aab"]), strict=True))
        check = [Check("x", parse_limit("9/hour"), cost=4)]
        one, other = sync.check(check), await limiter.check(check)
        both += [(one, other), (sync.settle(one, cost=1), await limiter.settle(other, cost=1))]
        sync.reset("a")
        await limiter.reset("a")
        both.append((sync.wait("a", cost=3), await limiter.wait("a", cost=3)))
        for expected, given in both:
            assert given.outcomes == expected.outcomes

    asyncio.run(compare())


def test_the_public_names_are_these() -> None:
    assert set(ratebound.__all__) == {
        "AsyncGuardedStorage", "AsyncLimiter", "AsyncMemoryStorage", "AsyncReservation", "Check", "Decision",
        "GuardedStorage", "Holder", "InvalidCost", "InvalidKey", "InvalidLimit", "InvalidValue", "Limit", "Limiter",
        "MemoryStorage", "Outcome", "RateLimited", "RateboundError", "Reservation", "Slice", "StorageError", "Usage",
        "compiled", "parse_limit", "parse_limits",
    }  # fmt: skip


@pytest.mark.parametrize("made", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    "options", [{"sleep": None}, {"sleep": 1}, {"listeners": [5]}, {"listeners": 5}, {"listeners": print}]
)
def test_what_cannot_be_called_is_refused_when_the_limiter_is_made(made: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} must be"):
        made("1/second", **options)


def test_the_sleep_of_a_limiter_for_threads_is_not_an_async_def() -> None:
    with pytest.raises(TypeError, match="sleep must be a function of seconds"):
        Limiter("1/second", sleep=FakeClock().async_sleep)


def test_a_listener_that_is_added_later_is_checked_as_well() -> None:
    with pytest.raises(TypeError, match="listeners must be"):
        Limiter("1/second").listen(5)  # type: ignore[arg-type]


def test_rate_limited_says_which_limit_and_for_how_long(clock: FakeClock) -> None:
    limiter = limiter_of("1/hour", clock)
    limiter.hit("a")
    with pytest.raises(RateLimited, match="^over the limit 1/hour: .* retry in 3599 s") as caught:
        limiter.wait("a")
    assert caught.value.decision.retry_after == 3599.0  # then a second of waiting will do
    with pytest.raises(RateLimited, match="no wait can help"):
        limiter.wait("a", cost=2, timeout=math.inf)
    assert str(RateLimited(limiter.hit("a"))) == "over the limit 1/hour; retry in 3600 s"


@pytest.mark.parametrize("text", ["1/minute", "1/minute burst 1"])
def test_rate_limited_says_that_the_waiting_time_was_too_short_and_what_to_give(text: str, clock: FakeClock) -> None:
    limiter = limiter_of(text, clock)
    limiter.hit("a")
    with pytest.raises(RateLimited) as caught:
        limiter.wait("a")
    assert str(caught.value) == (
        f"over the limit {text}: it would not pass within max_delay=1.0 s;"
        " retry in 59 s, or set timeout=, or max_delay=math.inf"
    )
    with pytest.raises(RateLimited) as caught:
        limiter.wait("a", timeout=20)
    assert str(caught.value) == (
        f"over the limit {text}: it would not pass within timeout=20 s; retry in 40 s, or set a longer timeout="
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("mode", ["of", "Off", "1"])
def test_a_wrong_testing_switch_is_refused(mode: str) -> None:
    from ratebound.switch import switch

    with pytest.raises(ValueError, match="RATEBOUND_TESTING is"):
        switch.set_mode(mode)


def test_the_environment_sets_the_switch() -> None:
    import os
    import subprocess
    import sys

    code = "from ratebound import Limiter; l = Limiter('1/hour'); print([bool(l.hit('a')) for _ in 'ab'])"
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "RATEBOUND_TESTING": mode}, capture_output=True, text=True
        ).stdout
        for mode in ("", "off")
    ]
    assert said == ["[True, False]\n", "[True, True]\n"]


def test_limits_in_bytes_are_named_as_they_were_given() -> None:
    given: Any = b"5/second"
    with pytest.raises(InvalidLimit, match="not b'5/second'"):
        Limiter(given)
