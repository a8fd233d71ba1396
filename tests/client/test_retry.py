"""The rules of retries, backoff and the retry budget, without I/O."""

import math
import random
import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.client import Backoff, CircuitBreaker, Retry, RetryBudget
from ratebound.client.retry import Failure, Wish
from ratebound.client.retry_budget import PARTS
from ratebound.http.advice import read_advice
from ratebound.http.quota import Advice
from tests.client.exchanges import Time

REFUSED = Advice(refused=True, reason="rate")
OVERLOADED = Advice(refused=True, reason="overloaded")
POST, GET = False, True  # idempotent


@pytest.mark.parametrize(
    ("status", "advice", "idempotent", "wish"),
    [
        (200, Advice(), GET, Wish()),
        (404, Advice(), GET, Wish()),
        (500, Advice(), GET, Wish()),
        (403, Advice(), GET, Wish()),
        (429, REFUSED, POST, Wish("rate")),
        (403, REFUSED, POST, Wish("rate")),
        (200, REFUSED, POST, Wish("rate")),
        (529, OVERLOADED, POST, Wish("overloaded")),
        (503, OVERLOADED, POST, Wish("overloaded", "method")),
        (503, OVERLOADED._replace(retry_after=0.0), POST, Wish("overloaded")),
        (503, OVERLOADED, GET, Wish("overloaded")),
        (502, Advice(), GET, Wish("502")),
        (504, Advice(), POST, Wish("504", "method")),
        (429, REFUSED._replace(should_retry=False), GET, Wish("rate", "server")),
        (409, Advice(should_retry=True), GET, Wish("409")),
        (409, Advice(should_retry=True), POST, Wish("409", "method")),
        (200, Advice(should_retry=True), GET, Wish()),
        (302, Advice(should_retry=True), GET, Wish()),
    ],
)
def test_an_answer_is_retried_if_that_is_safe(status: int, advice: Advice, idempotent: bool, wish: Wish) -> None:
    assert Retry().after_answer(status, advice, idempotent=idempotent) == wish


def test_statuses_that_are_left_out_are_not_retried() -> None:
    only = Retry(statuses=(503,))
    assert only.after_answer(429, REFUSED, idempotent=True) == Wish()
    assert only.after_answer(403, REFUSED, idempotent=True) == Wish()
    assert only.after_answer(529, OVERLOADED, idempotent=True) == Wish()
    assert only.after_answer(503, OVERLOADED, idempotent=True) == Wish("overloaded")


@pytest.mark.parametrize(
    ("failure", "idempotent", "wish"),
    [
        (Failure("connect", sent=False), POST, Wish("connect")),
        (Failure("closed"), POST, Wish("closed", "method")),
        (Failure("closed"), GET, Wish("closed")),
    ],
)
def test_a_connection_error_is_retried_if_that_is_safe(failure: Failure, idempotent: bool, wish: Wish) -> None:
    assert Retry().after_failure(failure, idempotent=idempotent) == wish
    assert Retry(connection_errors=False).after_failure(failure, idempotent=idempotent) == Wish()


@given(
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    first=st.floats(0.001, 100),
    factor=st.floats(1, 1000),
    retry=st.integers(0, 10_000),
    before=st.none() | st.floats(0, 86_400),
    drawn=st.floats(0, 1),
)
def test_backoff_keeps_within_the_bounds_of_its_jitter(
    jitter: str, first: float, factor: float, retry: int, before: float | None, drawn: float
) -> None:
    backoff = Backoff(jitter, first=first, most=min(first * factor, 86_400))  # type: ignore[arg-type]
    wait = backoff.wait(retry, before, lambda: drawn)
    top = backoff.most if retry > 40 else min(backoff.first * 2**retry, backoff.most)
    lowest, highest = {
        "full": (0.0, top),
        "equal": (top / 2, top),
        "none": (top, top),
        "decorrelated": (min(first, backoff.most), min(3 * max(before or 0, first), backoff.most)),
    }[jitter]
    assert lowest * (1 - 1e-9) <= wait <= highest * (1 + 1e-9)


def test_jitter_spreads_waits_over_the_whole_range() -> None:
    drawn = random.Random(5).random
    for jitter, lowest in (("full", 0.0), ("equal", 4.0), ("decorrelated", 1.0)):
        backoff = Backoff(jitter, first=1.0, most=8.0)  # type: ignore[arg-type]
        waits = [backoff.wait(3, 4.0, drawn) for _ in range(2000)]
        assert min(waits) < lowest + 0.2
        assert max(waits) > 7.8


@given(
    server=st.floats(0, 1e9), drawn=st.floats(0, 1), jitter=st.sampled_from(["full", "none"]), left=st.floats(0, 1e5)
)
def test_a_server_is_never_asked_earlier_than_it_says(server: float, drawn: float, jitter: str, left: float) -> None:
    retry = Retry(backoff=Backoff(jitter))  # type: ignore[arg-type]
    wait = retry.wait(0, None, server, left, lambda: drawn)
    assert (wait is None) == (server > left)
    assert wait is None or server <= wait <= left


def test_jitter_is_added_to_the_wait_of_a_server_and_none_if_there_is_no_jitter() -> None:
    for jitter in ("full", "equal", "decorrelated"):
        assert Backoff(jitter, first=1, most=20).after(100, lambda: 0.5) == 105
        assert Backoff(jitter, first=1, most=20).after(5, lambda: 1.0) == 6, "at least up to first"
        assert Backoff(jitter, first=1, most=20).after(1000, lambda: 1.0) == 1020, "at most most"
    assert Backoff("none", first=1, most=20).after(100, lambda: 1.0) == 100


@pytest.mark.parametrize("value", ["-5", "1e400", "9" * 400, "nan", "inf", "tomorrow", "\x00", ""])
def test_a_hostile_wait_is_harmless(value: str) -> None:
    advice = read_advice(429, (("Retry-After", value),))
    wait = Retry().wait(0, None, advice.retry_after, 60.0, lambda: 1.0)
    assert wait is None or 0 <= wait <= 60


def test_durations_may_be_timedeltas() -> None:
    backoff = Backoff(first=timedelta(seconds=1), most=timedelta(minutes=1))
    assert (backoff.first, backoff.most) == (1.0, 60.0)
    assert Retry(within=timedelta(minutes=2)).within == 120.0
    assert RetryBudget(period=timedelta(minutes=1)).period == 60.0
    CircuitBreaker(interval=timedelta(seconds=10), lease=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Retry(attempts=0), "attempts is 0"),
        (lambda: Retry(attempts=True), "attempts is True"),
        (lambda: Retry(within=math.inf), "within must be seconds .* not inf"),
        (lambda: Retry(within=-1), "within must be seconds .* not -1"),
        (lambda: Retry(statuses=(429, 1000)), "statuses has \\[1000\\]"),
        (lambda: Retry(methods="GET"), "methods is 'GET'"),
        (lambda: Retry(backoff="full"), "backoff is 'full'"),  # type: ignore[arg-type]
        (lambda: Backoff("half"), "jitter is 'half'"),  # type: ignore[arg-type]
        (lambda: Backoff(first=0), "first must be seconds .* not 0"),
        (lambda: Backoff(first=60), "first is 60 and most is 30"),
        (lambda: Backoff(most=math.nan), "most must be seconds .* not nan"),
        (lambda: RetryBudget(-0.1), "share is -0.1"),
        (lambda: RetryBudget(period=0), "period is 0"),
        (lambda: RetryBudget(floor=-1), "floor is -1"),
        (lambda: CircuitBreaker(failures=0), "failures is 0"),
        (lambda: CircuitBreaker(interval=0), "interval must be seconds .* not 0"),
    ],
)
def test_wrong_options_are_named(make: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()  # type: ignore[operator]


@given(
    share=st.sampled_from([0.0, 0.1, 0.5]),
    floor=st.integers(0, 4),
    steps=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.9, 1.0, 7.3, 29.0, 31.0, 400.0]), st.booleans()), max_size=90
    ),
)
def test_the_budget_keeps_its_laws(share: float, floor: int, steps: list[tuple[float, bool]]) -> None:
    time = Time()
    budget = RetryBudget(share, floor=floor, clock=time)  # parts of one second
    requests: list[int] = []
    retries: list[int] = []
    for passed, is_retry in steps:
        time.now += passed
        part = math.floor(time.now)
        if not is_retry:
            budget.requested()
            requests.append(part)
            continue
        granted = budget.take()
        sent = sum(at > part - PARTS for at in requests)
        repeated = sum(at > part - PARTS for at in retries) + 1
        assert granted or repeated > floor
        assert not granted or repeated <= max(floor, share * sent)
        retries += [part] * granted
        periods = len({at // PARTS for at in retries})
        assert len(retries) <= share * len(requests) + floor * periods + 1e-6


@pytest.mark.parametrize("per_second", [2, 3, 7, 50])
def test_a_total_outage_is_amplified_by_a_tenth_at_most(per_second: int) -> None:
    """From the beginning on: the floor is no more than the share, and is paid back."""
    time = Time()
    budget = RetryBudget(clock=time)
    sent = retried = 0
    for _ in range(300 * per_second):
        time.now += 1 / per_second
        budget.requested()
        sent += 1
        retried += sum(budget.take() for _ in range(3))
        assert retried <= max(3, 0.1 * sent + 1e-6)
    assert retried >= 0.09 * sent  # and it is used


def test_an_outage_after_healthy_times_begins_with_the_savings_of_one_period() -> None:
    time = Time()
    budget = RetryBudget(clock=time)
    sent = retried = 0
    for second in range(300):
        for _ in range(10):
            time.now += 0.1
            budget.requested()
            if second >= 100:
                sent += 1
                retried += sum(budget.take() for _ in range(3))
    assert 0.1 * sent - 1 <= retried <= 0.1 * (sent + 300)


def test_credit_of_healthy_times_is_bounded_by_the_period() -> None:
    time = Time()
    budget = RetryBudget(clock=time)
    for _ in range(10_000):
        time.now += 0.1
        budget.requested()
    assert sum(budget.take() for _ in range(1000)) in (29, 30)  # a tenth of 10 per second in 30 seconds


def test_threads_share_one_budget() -> None:
    budget = RetryBudget(0.1, floor=0, clock=Time())
    granted: list[int] = []

    def work() -> None:
        for _ in range(1000):
            budget.requested()
            granted.append(budget.take())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 800


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    time = Time()
    budget = RetryBudget(0.1, floor=1, clock=time)
    assert budget.take()
    time.now -= 500
    assert not budget.take()
    time.now += 529
    assert not budget.take()
    time.now += 2
    assert budget.take()


def test_the_breaker_remembers_a_bounded_number_of_origins_and_keeps_open_circuits() -> None:
    breakers = CircuitBreaker(failures=1, max_origins=5, clock=Time())
    down = breakers.of("https://down")
    assert down.failed(down.admit())
    for number in range(100):
        breakers.of(f"https://{number}")
    assert len(breakers._breakers) == 5
    assert breakers.of("https://down") is down
