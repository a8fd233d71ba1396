"""What peers get wrong, and we must not: one test for each defect that concerns memory, notation or waiting.

Each test names the package in which the defect was reproduced.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from ratebound import AsyncLimiter, Check, InvalidLimit, Limit, Limiter, MemoryStorage, RateLimited, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, BUCKETS, Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.waiting.virtual import limiter_of as virtual_limiter
from tests.waiting.virtual import run, seconds


def in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_fastapi_limiter_one_address_takes_the_quota_of_another(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute", clock)
    assert [limiter.hit("ip:a").allowed for _ in range(3)] == [True, True, False]
    assert limiter.hit("ip:b")


def test_pyrate_limiter_the_key_is_ignored(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute burst 2", clock)
    limiter.hit("alice", cost=2)
    assert limiter.hit("bob")


def test_pyrate_limiter_contention_is_returned_as_a_denial() -> None:
    limiter = Limiter("10000000/hour")
    denied: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        denied.extend(1 for _ in range(3_000) if not limiter.hit("k"))

    in_threads(4, work)
    sys.setswitchinterval(interval)
    assert not denied


def test_pyrate_limiter_a_waiter_on_one_key_holds_up_another() -> None:
    async def main() -> float:
        limiter = virtual_limiter("1/second")
        await limiter.hit("a")
        waiting = asyncio.create_task(limiter.wait("a"))
        await asyncio.sleep(0)
        await limiter.wait("b")
        came_through = seconds()
        await waiting
        return came_through

    assert run(main()) == 0.0


@pytest.mark.parametrize("text", ["1/10ms", "100/second burst 1", "100/second burst 1 leaky-bucket"])
def test_pyrate_limiter_and_throttled_waiting_gives_17_or_5_a_second_for_100(text: str) -> None:
    async def main() -> float:
        limiter = virtual_limiter(text)
        for _ in range(301):
            await limiter.wait("k")
        return 300 / seconds()

    assert run(main()) == pytest.approx(100)


@pytest.mark.parametrize("count", [54, 90, 119])
@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket", "gcra"])
def test_throttled_rounds_the_rate_down_to_whole_seconds(count: int, algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"{count}/minute burst 2 {algorithm}", clock)
    limiter.hit("k", cost=2)
    granted, begin = 0, clock.now
    while clock.now < begin + 600 * SECOND:
        clock.now += 10_000  # a client that polls
        granted += limiter.hit("k").allowed
    assert granted == pytest.approx(10 * count, rel=0.01)


def test_throttled_a_burst_below_the_rate_never_limits(clock: FakeClock) -> None:
    limiter = limiter_of("1000/second burst 100", clock)
    assert sum(limiter.hit("k").allowed for _ in range(400)) == 100


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_throttled_and_traffik_retry_after_is_honoured_and_still_denied(algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"5/10 seconds {algorithm}", clock)
    clock.now += 3_333_333
    for _ in range(20):
        while (decision := limiter.hit("k")).allowed:
            clock.now += 123_457
        assert decision.retry_after
        clock.advance(decision.retry_after)
        assert limiter.hit("k"), algorithm


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_throttled_a_rejected_first_hit_of_a_window_is_charged(algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"5/minute {algorithm}", clock)
    assert not limiter.hit("k", cost=6)
    assert limiter.peek("k").remaining == 5


def test_throttled_spraying_a_thousand_keys_resets_a_victim(clock: FakeClock) -> None:
    limiter = Limiter("2/hour", storage=MemoryStorage(max_keys=1_024, clock=clock))
    limiter.hit("victim", cost=2)
    for i in range(5_000):
        assert limiter.hit(f"spray:{i}")
    assert not limiter.hit("victim")


def test_throttled_a_context_ignores_its_cost(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute", clock)
    with limiter.acquire("k", cost=5) as decision:
        assert decision.remaining == 5


def test_throttled_half_a_second_divides_by_zero_and_one_and_a_half_is_one(clock: FakeClock) -> None:
    assert parse_limit("5/500ms").period_us == SECOND // 2
    assert parse_limit("5/1500 ms").period_us == 3 * SECOND // 2
    limiter = limiter_of("1/1500ms", clock)
    limiter.hit("k")
    clock.advance(1.4)
    assert not limiter.hit("k")
    clock.advance(0.1)
    assert limiter.hit("k")


def test_slowapi_and_flask_limiter_a_bad_limit_leaves_the_route_unlimited() -> None:
    for text in ("5 per fortnight", "5/minute; nonsense"):
        with pytest.raises(InvalidLimit):
            Limiter(text)
        with pytest.raises(InvalidLimit):
            AsyncLimiter(text)


def test_flask_limiter_forty_failed_logins_at_once_pass_a_limit_of_five() -> None:
    """Charge before, refund after a success: what is tested is what is charged."""
    limiter = Limiter("5/minute")
    passed: list[int] = []
    gate = threading.Barrier(40)

    def log_in() -> None:
        gate.wait()
        if limiter.hit("login:bob"):
            passed.append(1)  # a wrong password: the charge stays

    in_threads(40, log_in)
    assert len(passed) == 5
    good = Limiter("5/minute")
    for _ in range(40):
        assert good.settle(good.hit("login:ann"), cost=0)  # the right password costs nothing


def test_flask_limiter_a_rejected_request_burns_the_other_limits(clock: FakeClock) -> None:
    limiter = limiter_of("100/minute; 2/hour", clock)
    answers = [limiter.hit("k") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, False, False, False]
    assert [outcome.remaining for outcome in answers[-1].outcomes] == [98, 0]
    assert str(answers[0].limit) == "2/hour", "the limit about to bite is the one to speak of"


def test_flask_limiter_a_decision_takes_a_trip_for_each_limit_and_header() -> None:
    trips: list[int] = []

    class Counting(MemoryStorage):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            trips.append(len(groups))
            return super().evaluate(groups, mode)

    limiter = Limiter("10/second; 100/minute; 1000/hour; 5000/day; 9/second burst 20", storage=Counting())
    decision = limiter.hit("k")
    assert len([(o.remaining, o.retry_after_us, o.reset_after_us) for o in decision.outcomes]) == 5
    limiter.check([Check("a", limiter.limits), Check("b", limiter.limits)])
    limiter.hit_many(["a", "b", "c"])
    assert trips == [1, 1, 3]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_limits_a_rejected_cost_is_charged(algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"10/minute {algorithm}", clock)
    assert [limiter.hit("k", cost=cost).allowed for cost in (8, 5, 2)] == [True, False, True]


def test_limits_threads_can_only_be_started_once() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []
    limiter = Limiter("10/second")

    def work() -> None:
        try:
            for i in range(2_000):
                limiter.hit(f"k:{i}")
        except BaseException as error:
            errors.append(error)

    in_threads(8, work)
    sys.setswitchinterval(interval)
    assert not errors


def test_limits_expired_keys_of_a_moving_window_stay_for_ever(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/second sliding-log", storage=storage)
    for i in range(5_000):
        limiter.hit(f"old:{i}")
    clock.advance(2)
    for i in range(5_000):
        limiter.hit(f"new:{i}")
    assert storage.keys <= 5_100


def test_limits_two_identifiers_make_the_key_of_another(clock: FakeClock) -> None:
    """A key is one text and is never joined with the limit's name: nothing in it can reach into another's state."""
    limits = [parse_limit("1/hour"), parse_limit("1/hour as a"), parse_limit("1/hour as b"), parse_limit("1/day as a")]
    limiter = limiter_of("1/second", clock)
    for key in ("a", "a/b", "a;b", "a:b", "b", "", "a_b"):
        for limit in limits:
            assert limiter.check([Check(key, limit)]), (key, limit)


def test_limits_a_year_has_360_days_and_less_than_a_second_is_refused() -> None:
    assert parse_limit("1/year").period_us == 365 * 86_400 * SECOND
    assert parse_limit("1/ms").period_us == 1_000


def test_django_smart_two_views_with_the_same_key_share_a_count() -> None:
    """Two limiters never share by accident: each has a memory of its own, or limits with names of their own."""
    browse, login = Limiter("500/minute"), Limiter("5/minute")
    for _ in range(6):
        browse.hit("ip:127.0.0.1")
    assert login.hit("ip:127.0.0.1").remaining == 4
    shared = MemoryStorage()
    browse, login = Limiter("50/minute as browse", storage=shared), Limiter("5/minute as login", storage=shared)
    for _ in range(6):
        browse.hit("ip:127.0.0.1")
    assert login.hit("ip:127.0.0.1").remaining == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_django_smart_rejected_requests_are_stored_and_prolong_the_ban(algorithm: str, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter(f"5/minute {algorithm}", storage=storage)
    for _ in range(5):
        assert limiter.hit("k")
    first = limiter.hit("k").retry_after
    sizes, tables = set(), storage.states._tables
    for _ in range(2_000):
        limiter.hit("k")
        sizes.add(
            len(
                repr(
                    [(key, state.pack(table.limit)) for table in tables.values() for key, state in table.states.items()]
                )
            )
        )
    assert len(sizes) == 1
    assert limiter.hit("k").retry_after == first


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_django_smart_a_cost_is_so_many_calls_and_not_atomic(algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"60/minute {algorithm}", clock)
    assert limiter.hit("k", cost=50).remaining == 10
    assert not limiter.hit("k", cost=50)
    assert limiter.peek("k").remaining == 10


def test_django_smart_the_algorithm_asked_for_is_ignored() -> None:
    for algorithm in ALGORITHMS:
        assert Limiter(f"5/minute {algorithm}").limits[0].algorithm == algorithm


@pytest.mark.parametrize("text", ["10/second burst 10", "10/second", "10/second leaky-bucket"])
def test_aiolimiter_a_large_cost_that_came_first_goes_last(text: str) -> None:
    async def main() -> list[int]:
        limiter = virtual_limiter(text)
        order: list[int] = []

        async def one(cost: int) -> None:
            await limiter.wait("k", cost=cost, timeout=math.inf)
            order.append(cost)

        await limiter.hit("k", cost=10)
        await asyncio.gather(*(one(cost) for cost in [8] + [1] * 30))
        return order

    assert run(main())[0] == 8


def test_asgi_ratelimit_a_fraction_of_a_second_is_rounded_to_allowed(clock: FakeClock) -> None:
    limiter = limiter_of("1/second; 100/minute", clock)
    limiter.hit("k")
    clock.advance(0.6)
    denied = limiter.hit("k")
    assert not denied
    assert denied.retry_after == 0.4
    assert denied.outcomes[1].remaining == 99, "a rejected call must not fill the minute"


def test_asgi_ratelimit_retry_after_is_always_the_full_window(clock: FakeClock) -> None:
    limiter = limiter_of("1/minute fixed-window", clock)
    clock.now += 60 * SECOND - clock.now % (60 * SECOND) + 45 * SECOND
    limiter.hit("k")
    assert limiter.hit("k").retry_after == 15.0


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_upstash_denied_calls_dig_a_debt(algorithm: str, clock: FakeClock) -> None:
    limiter = limiter_of(f"3/hour burst 3 {algorithm}", clock)
    answers = [limiter.hit("k", cost=cost) for cost in (2, 2, 1, 1, 1)]
    assert [answer.allowed for answer in answers] == [True, False, True, False, False]
    assert [answer.remaining for answer in answers] == [1, 1, 0, 0, 0]


def test_upstash_a_denied_sliding_window_is_charged(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute sliding-counter", clock)
    assert [limiter.hit("k", cost=cost).allowed for cost in (9, 9, 1)] == [True, False, True]


def test_envoy_ratelimit_descriptors_collide_through_an_underscore(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    assert limiter.check([Check("foo_x_bar_y", parse_limit("1/hour as d"))])
    assert limiter.check([Check("foo_x", parse_limit("1/hour as bar_y_d"))])
    assert limiter.check([Check("foo", parse_limit("1/hour as x_bar_y_d"))])


def test_envoy_ratelimit_a_denial_by_one_descriptor_charges_the_others(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    checks = [Check("ip", parse_limit("10/minute")), Check("user", parse_limit("1/hour"))]
    assert [limiter.check(checks).allowed for _ in range(5)] == [True] + [False] * 4
    assert limiter.check(checks[:1]).remaining == 8


def test_envoy_ratelimit_twice_the_limit_passes_across_the_edge_of_a_window(clock: FakeClock) -> None:
    """Unless a fixed window was asked for, whose documentation says so."""
    for algorithm, most in (("", 5), ("sliding-counter", 5), ("fixed-window", 10)):
        limiter = limiter_of(f"5/minute {algorithm}", clock)
        clock.now += 60 * SECOND - clock.now % (60 * SECOND) - SECOND
        granted = sum(limiter.hit("k").allowed for _ in range(9))
        clock.advance(2)
        granted += sum(limiter.hit("k").allowed for _ in range(9))
        assert granted == most


def test_kong_check_then_increment_admits_too_many_at_once() -> None:
    limiter = Limiter("50/hour")
    granted: list[int] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        granted.extend(1 for _ in range(50) if limiter.hit("k"))

    in_threads(8, work)
    assert len(granted) == 50


def test_openlimit_and_others_cannot_give_unused_tokens_back(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    tokens = Limit(10_000, 60 * SECOND, 10_000, "token-bucket", "tokens")
    first = limiter.check([Check("org", tokens, cost=9_000)])
    clock.advance(0.001)
    assert not limiter.check([Check("org", tokens, cost=5_000)])
    limiter.settle(first, cost=1_000)
    assert limiter.check([Check("org", tokens, cost=5_000)])


def test_a_wait_that_cannot_succeed_is_not_waited_for(clock: FakeClock) -> None:
    limiter = limiter_of("5/minute", clock)
    begin = clock.now
    with pytest.raises(RateLimited):
        limiter.wait("k", cost=6, timeout=math.inf)
    assert clock.now == begin
