"""The life of one call, on a clock that stands still: what is sent, when, and what the caller gets."""

import asyncio
from collections.abc import Generator

import pytest

from ratebound.client import AsyncPacer, CircuitBreaker, CircuitOpen, NotReplayable, Pacer, Retry, RetryBudget
from ratebound.client.call import CallOptions, Outgoing, PoliteOptions, call_flow
from ratebound.client.call_events import Attempted, CircuitClosed, CircuitOpened, GaveUp, Paced, Retrying
from ratebound.errors import RateboundError
from ratebound.flow import Step
from ratebound.http.advice import read_advice
from ratebound.http.client_ip import Lines
from ratebound.http.quota import Advice
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


def test_an_idempotency_key_is_added_once_and_is_the_same_in_all_attempts() -> None:
    exchange = ScriptedExchange(Time(), [Scripted(502), Scripted(502), OK])
    assert made(exchange, method="POST", idempotency_key=True)[0] is OK
    (((name, key),), *others) = exchange.added
    assert name == "Idempotency-Key"
    assert len(key) >= 32
    assert others == [((name, key),)] * 2
    again = ScriptedExchange(Time(), [OK])
    made(again, method="POST", idempotency_key=True)
    assert again.added != [((name, key),)]


def test_a_key_of_the_caller_makes_a_post_idempotent_and_is_left_as_it_is() -> None:
    exchange = ScriptedExchange(Time(), [ConnectionLost(), OK])
    key = (("idempotency-KEY", "order-7"),)
    assert made(exchange, method="post", headers=key, idempotency_key=True)[0] is OK
    assert exchange.added == [(), ()]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_get_no_key(method: str) -> None:
    exchange = ScriptedExchange(Time(), [OK])
    made(exchange, method=method, idempotency_key=True)
    assert exchange.added == [()]


def test_a_body_that_can_be_read_once_is_explained_on_the_hook_and_on_the_error() -> None:
    events: list[object] = []
    exchange = ScriptedExchange(Time(), [REFUSED], replayable=False)
    response, report = made(exchange, listeners=[events.append])
    assert response is REFUSED
    assert report.gave_up == "body"
    (gave_up,) = [event for event in events if isinstance(event, GaveUp)]
    assert isinstance(gave_up.explanation, NotReplayable)
    with pytest.raises(ConnectionLost) as raised:
        made(ScriptedExchange(Time(), [ConnectionLost()], replayable=False))
    assert "RepeatableBody" in raised.value.__notes__[0]


def test_a_server_that_says_no_is_believed() -> None:
    spent = Scripted(429, (("Content-Type", "application/json"),), b'{"error": {"code": "insufficient_quota"}}')
    exchange = ScriptedExchange(Time(), [spent])
    _, report = made(exchange)
    assert (len(exchange.sent), report.gave_up) == (1, "server")
    assert exchange.read_from == [spent]


def test_bodies_of_other_answers_are_not_touched() -> None:
    json, html = (("Content-Type", "application/json"),), (("Content-Type", "text/html"),)
    for answer in (Scripted(200, json), Scripted(404, json), Scripted(429, html)):
        exchange = ScriptedExchange(Time(), [answer])
        made(exchange, retry=None)
        assert not exchange.read_from


def test_an_error_that_is_no_connection_error_is_raised_at_once() -> None:
    error = ValueError("a mistake of the application")
    exchange = ScriptedExchange(Time(), [error])
    with pytest.raises(ValueError, match="a mistake") as raised:
        made(exchange)
    assert raised.value is error
    assert len(exchange.sent) == 1
    assert not hasattr(error, "__notes__")


def test_a_429_does_not_open_the_circuit() -> None:
    time = Time()
    breaker = CircuitBreaker(failures=2, clock=time)
    made(ScriptedExchange(time, [REFUSED]), breaker=breaker)
    assert made(ScriptedExchange(time, [OK]), breaker=breaker)[0] is OK


def test_events_tell_the_whole_story_and_no_secrets() -> None:
    events: list[object] = []
    time = Time()
    script: list[Scripted | Exception] = [
        Scripted(503, (("Retry-After", "3"),), takes=0.5),
        ConnectionLost("timeout", takes=1.0),
        OK,
    ]
    url = "https://user:password@api.example.com:8443/path/token?key=secret"
    made(ScriptedExchange(time, script), url=url, listeners=[events.append], random=0.0)
    origin = "https://api.example.com:8443"
    assert events == [
        Attempted(origin, "GET", 1, 503, "", 0.5),
        Retrying(origin, "GET", 1, "overloaded", 3.0, 3.0),
        Attempted(origin, "GET", 2, 0, "timeout", 1.0),
        Retrying(origin, "GET", 2, "timeout", 0.0, None),
        Attempted(origin, "GET", 3, 200, "", 0.0),
    ]


def test_circuits_are_told_when_they_open_and_close() -> None:
    events: list[object] = []
    time = Time()
    options = CallOptions(
        {"pacer": None, "breaker": CircuitBreaker(failures=1, clock=time), "listeners": [events.append]}, clock=time
    )
    made(ScriptedExchange(time, [Scripted(500)]), options=options)
    (opened,) = [event for event in events if isinstance(event, CircuitOpened)]
    time.now += opened.retry_after
    made(ScriptedExchange(time, [OK]), options=options)
    (closed,) = [event for event in events if isinstance(event, CircuitClosed)]
    assert closed.seconds == pytest.approx(opened.retry_after)


def test_a_listener_that_fails_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: object) -> None:
        raise RuntimeError("no room on the disk")

    assert made(ScriptedExchange(Time(), [OK]), listeners=[fail])[0] is OK
    assert "the call goes on" in caplog.text


class FakeTurn:
    def __init__(self, pacer: "FakePacer", waited: float) -> None:
        self.pacer = pacer
        self.waited = waited

    def answered(self, status: int, headers: Lines, body: bytes | None = None) -> Advice:
        self.pacer.told.append(status)
        return read_advice(status, headers, body=body)

    def failed(self) -> None:
        self.pacer.told.append("failed")


class FakePacer:
    """A pacer that makes each request wait for a second, and records the rest."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.told: list[object] = []
        self.timeouts: list[float | None] = []

    def wait(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: float | None = None) -> FakeTurn:
        self.timeouts.append(timeout)
        if timeout is not None and timeout < 1:
            raise RateboundError("no turn in time")
        self.time.sleep(1.0)
        return FakeTurn(self, 1.0)

    def close(self) -> None:
        self.told.append("closed")


def test_every_attempt_waits_for_its_turn_and_the_pacer_learns_from_every_answer() -> None:
    time = Time()
    pacer = FakePacer(time)
    events: list[object] = []
    exchange = ScriptedExchange(time, [REFUSED, ConnectionLost(), OK])
    _, report = made(exchange, pacer=pacer, random=0.0, listeners=[events.append])
    assert pacer.told == [429, "failed", 200]
    assert pacer.timeouts == [60.0, 57.0, 56.0]
    assert report.waited == pytest.approx(5.0)
    assert sum(isinstance(event, Paced) for event in events) == 3


def test_a_turn_that_does_not_come_in_time_raises_what_the_pacer_raises() -> None:
    time = Time()
    exchange = ScriptedExchange(time, [ConnectionLost()])
    with pytest.raises(RateboundError, match="no turn in time"):
        made(exchange, pacer=FakePacer(time), retry=Retry(within=0.5))
    assert not exchange.sent


def test_a_pacer_of_the_caller_is_not_closed() -> None:
    pacer = FakePacer(Time())
    CallOptions({"pacer": pacer}).close()
    assert not pacer.told


@pytest.mark.parametrize("at", ["send", "read", "answered", "discard", "pause"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_an_interrupted_call_leaves_nothing_behind(at: str, error: type[BaseException]) -> None:
    """The answer is closed, the turn is over, the circuit's probe is free again, and the interrupt arrives as it is."""
    time = Time()
    breaker = CircuitBreaker(failures=1, clock=time)
    made(ScriptedExchange(time, [Scripted(500)]), breaker=breaker)
    time.now += 100
    pacer = FakePacer(time)
    refused = Scripted(429, (("Content-Type", "application/json"), ("Retry-After", "1")), b"{}")
    exchange = ScriptedExchange(time, [refused])
    options = CallOptions({"pacer": pacer, "breaker": breaker}, clock=time)
    flow = call_flow(Outgoing("GET", "https://api.example.com"), exchange, options, time.sleep)
    names = {"send": "send", "read": "read", "answered": "answered", "discard": "discard", "pause": "sleep"}
    step = next(flow)
    while getattr(step, "func", step).__name__ != names[at]:
        step = flow.send(step())
    with pytest.raises(error):
        _interrupt(flow, error())
    assert pacer.told == {"discard": [429], "pause": [429]}.get(at, ["failed"])
    open_answers = {"send": 0, "pause": 0}.get(at, 1)
    assert len([most for _, most in exchange.discarded if most == 0]) == open_answers
    assert made(ScriptedExchange(time, [OK]), breaker=breaker)[0] is OK


def _interrupt(flow: Generator[Step, object, object], error: BaseException) -> None:
    cleaning = flow.throw(error)
    while True:
        cleaning = flow.send(cleaning())


def test_an_abandoned_call_gives_its_probe_back() -> None:
    time = Time()
    breaker = CircuitBreaker(failures=1, clock=time)
    made(ScriptedExchange(time, [Scripted(500)]), breaker=breaker)
    time.now += 100
    options = CallOptions({"pacer": None, "breaker": breaker}, clock=time)
    flow = call_flow(Outgoing("GET", "https://api.example.com"), ScriptedExchange(time, [OK]), options, time.sleep)
    next(flow)
    flow.close()
    assert made(ScriptedExchange(time, [OK]), breaker=breaker)[0] is OK


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"retries": 3}, "unknown options: retries; expected some of: retry, pacer"),
        ({"retry": 3}, "retry is 3"),
        ({"pacer": "50/second"}, "pacer is '50/second'"),
        ({"pacer": AsyncPacer("50/second")}, "expected the pacer of synchronous code, for example Pacer"),
        ({"budget": 0.1}, "budget is 0.1"),
        ({"breaker": True}, "breaker is True"),
        ({"listeners": ["log"]}, "listeners is"),
    ],
)
def test_wrong_options_are_named(options: PoliteOptions, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        CallOptions(options)


def test_the_default_options_are_those_of_the_table() -> None:
    options = CallOptions({})
    assert (options.retry.attempts, options.retry.within) == (4, 60.0)
    assert options.retry.statuses == {429, 502, 503, 504, 529}
    assert isinstance(options.pacer, Pacer)
    assert options.budget is not None
    assert (options.budget.share, options.budget.period, options.budget.floor) == (0.1, 30.0, 3)
    assert options.breaker is not None
    options.close()
