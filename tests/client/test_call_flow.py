"""The life of one call, on a clock that stands still: what is sent, when, and what the caller gets."""

import pytest

from ratebound.client import CircuitBreaker, CircuitOpen, Retry, RetryBudget
from tests.client.exchanges import ConnectionLost, Scripted, ScriptedExchange, Time, made

REFUSED = Scripted(429, (("Retry-After", "2"),))
OK = Scripted(200)


def test_a_call_that_succeeds_is_sent_once() -> None:
    exchange = ScriptedExchange(Time(), [OK])
    response, report = made(exchange)
    assert response is OK
    assert (report.attempts, report.waited, report.gave_up) == (1, 0.0, "")
    assert exchange.sent == [1000.0]
    assert not exchange.discarded


def test_a_refusal_is_retried_after_the_wait_that_the_server_names() -> None:
    exchange = ScriptedExchange(Time(), [REFUSED, OK])
    response, report = made(exchange, method="POST", random=0.0)
    assert response is OK
    assert exchange.sent == [1000.0, 1002.0]
    assert exchange.discarded == [(REFUSED, 65_536)]
    assert (report.attempts, report.waited) == (2, 2.0)


def test_attempts_are_bounded_and_the_caller_gets_the_last_refusal() -> None:
    exchange = ScriptedExchange(Time(), [REFUSED])
    response, report = made(exchange, retry=Retry(attempts=3))
    assert response is REFUSED
    assert len(exchange.sent) == 3
    assert len(exchange.discarded) == 2
    assert report.gave_up == "attempts"


def test_a_wait_that_does_not_fit_is_not_begun() -> None:
    exchange = ScriptedExchange(Time(), [Scripted(429, (("Retry-After", "61"),))])
    response, report = made(exchange)
    assert response.status == 429
    assert (len(exchange.sent), exchange.time.slept, report.gave_up) == (1, [], "within")


def test_connection_errors_are_raised_as_they_are_with_a_note() -> None:
    error = ConnectionLost()
    exchange = ScriptedExchange(Time(), [error])
    with pytest.raises(ConnectionLost) as raised:
        made(exchange)
    assert raised.value is error
    assert len(exchange.sent) == 4
    assert "4 attempts" in raised.value.__notes__[0]


def test_the_budget_bounds_the_retries_of_all_calls() -> None:
    time = Time()
    budget = RetryBudget(0.1, floor=3, clock=time)
    exchanges = [ScriptedExchange(time, [ConnectionLost("connect", sent=False)]) for _ in range(10)]
    for exchange in exchanges:
        with pytest.raises(ConnectionLost):
            made(exchange, budget=budget, breaker=None)
    assert sum(len(exchange.sent) for exchange in exchanges) == 13


def test_an_open_circuit_sends_nothing() -> None:
    time = Time()
    breaker = CircuitBreaker(failures=2, clock=time)
    exchange = ScriptedExchange(time, [Scripted(500)])
    for _ in range(2):
        made(exchange := ScriptedExchange(time, [Scripted(500)]), breaker=breaker)
    with pytest.raises(CircuitOpen, match="try again in") as raised:
        made(unsent := ScriptedExchange(time, [OK]), breaker=breaker)
    assert not unsent.sent
    time.now += raised.value.retry_after
    assert made(ScriptedExchange(time, [OK]), breaker=breaker)[0] is OK
    assert exchange.sent
