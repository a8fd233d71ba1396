"""Laws of every call, over any sequence of answers and errors: plain statements, checked on what was sent and when."""

from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate
from time import time as wall_time

from hypothesis import given
from hypothesis import strategies as st

from ratebound.client import Backoff, CircuitBreaker, CircuitOpen, Retry, RetryBudget
from ratebound.client.call import CallOptions, CallReport
from ratebound.client.call_events import GaveUp, Retrying
from tests.client.exchanges import ConnectionLost, Scripted, ScriptedExchange, Time, made

IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
HUGE = "9" * 30

retry_afters = st.sampled_from(["", "0", "1", "2.5", "7", "59", "60", "61", "315360000", "-1", "nan", "soon", HUGE])
answers = st.builds(
    lambda status, wait, takes, words: Scripted(
        status, (("Retry-After", wait), ("Content-Type", "application/json")) if wait else (), words, takes
    ),
    st.sampled_from([200, 204, 301, 400, 403, 404, 409, 429, 500, 501, 502, 503, 504, 529]),
    retry_afters,
    st.sampled_from([0.0, 0.1, 5.0]),
    st.sampled_from([b"", b"{", b'{"error": {"code": "insufficient_quota"}}', b"\xff" * 100]),
)
errors = st.builds(
    lambda sent, takes: ConnectionLost("closed" if sent else "connect", sent=sent, takes=takes),
    st.booleans(),
    st.sampled_from([0.0, 30.0]),
)
scripts = st.lists(answers | errors, min_size=1, max_size=8)


def retryable(step: Scripted | Exception, method: str) -> bool:
    """The table of retry.py, in plain words."""
    idempotent = method in IDEMPOTENT
    if isinstance(step, ConnectionLost):
        return idempotent or not step.sent
    assert isinstance(step, Scripted)
    if step.status in (429, 529):
        return b"insufficient_quota" not in step.body or not step.headers
    if step.status == 503:
        return idempotent or named_wait(step) is not None
    return step.status in (502, 504) and idempotent


def named_wait(step: Scripted | Exception) -> float | None:
    text = dict(step.headers).get("Retry-After", "") if isinstance(step, Scripted) else ""
    if text == HUGE:
        return None
    return float(text) if text.replace(".", "").isdecimal() else None


@given(
    script=scripts,
    method=st.sampled_from(["GET", "POST", "PATCH", "DELETE"]),
    attempts=st.integers(1, 6),
    within=st.sampled_from([0.0, 1.0, 60.0, 200.0]),
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    random=st.floats(0, 1),
    replayable=st.booleans(),
)
def test_the_laws_of_one_call(
    script: Sequence[Scripted | Exception],
    method: str,
    attempts: int,
    within: float,
    jitter: str,
    random: float,
    replayable: bool,
) -> None:
    time = Time()
    exchange = ScriptedExchange(time, script, replayable=replayable)
    events: list[object] = []
    retry = Retry(attempts=attempts, within=within, backoff=Backoff(jitter))  # type: ignore[arg-type]
    options = CallOptions(
        {"pacer": None, "retry": retry, "listeners": [events.append], "budget": None, "breaker": None},
        clock=time,
        random=lambda: random,
    )
    report: CallReport | None = None
    response: Scripted | None = None
    error: ConnectionLost | None = None
    try:
        response, report = made(exchange, method=method, options=options)
    except ConnectionLost as raised:
        error = raised
    steps = [script[min(number, len(script) - 1)] for number in range(len(exchange.sent))]
    last = steps[-1]

    # The caller gets the last result, whatever it is; every other answer is discarded, once.
    assert last is (response if error is None else error)
    assert [found for found, _ in exchange.discarded] == [step for step in steps[:-1] if isinstance(step, Scripted)]

    # Bounds of attempts and time.
    assert 1 <= len(exchange.sent) <= attempts
    assert all(sent <= 1000.0 + within + 1e-9 for sent in exchange.sent)
    assert sum(time.slept) <= within + 1e-9

    # Never earlier than the server says, and only what is safe to retry.
    for number, (step, sent) in enumerate(zip(steps[:-1], exchange.sent, strict=False)):
        ended = sent + step.takes  # type: ignore[union-attr]
        assert exchange.sent[number + 1] - ended >= (named_wait(step) or 0.0) - 1e-9
        assert retryable(step, method)
    assert replayable or len(exchange.sent) == 1

    # A call gives up only for a reason, and says it.
    obstacles = [event.obstacle for event in events if isinstance(event, GaveUp)]
    assert sum(isinstance(event, Retrying) for event in events) == len(exchange.sent) - 1
    assert report is None or report.attempts == len(exchange.sent)
    if retryable(last, method) and attempts > 1:
        left = 1000.0 + within - time.now
        if len(exchange.sent) == attempts:
            assert obstacles == ["attempts"]
        elif not replayable:
            assert obstacles == ["body"]
        else:
            assert obstacles == ["within"]
            assert left < (named_wait(last) or 3 * 86_400)
    if report is not None:
        assert report.gave_up == (obstacles[0] if obstacles else report.gave_up if attempts == 1 else "")


@given(
    calls=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 3.0, 40.0]), scripts), min_size=1, max_size=25),
    share=st.sampled_from([0.1, 0.5]),
    floor=st.integers(0, 3),
)
def test_all_calls_together_keep_the_budget_and_respect_the_circuit(
    calls: list[tuple[float, list[Scripted | Exception]]], share: float, floor: int
) -> None:
    time = Time()
    budget = RetryBudget(share, floor=floor, clock=time)
    breaker = CircuitBreaker(failures=3, interval=10.0, clock=time)
    events: list[object] = []
    options = CallOptions(
        {"pacer": None, "budget": budget, "breaker": breaker, "listeners": [events.append]},
        clock=time,
        random=lambda: 0.5,
    )
    sent: list[float] = []
    first: list[float] = []
    failed: list[bool] = []
    for passed, script in calls:
        time.now += passed
        exchange = ScriptedExchange(time, script)
        with suppress(ConnectionLost, CircuitOpen):
            made(exchange, options=options)
        sent += exchange.sent
        first += exchange.sent[:1]
        steps = [script[min(number, len(script) - 1)] for number in range(len(exchange.sent))]
        failed += [isinstance(step, ConnectionLost) or step.status >= 500 for step in steps]  # type: ignore[union-attr]
    retries = len(sent) - len(first)
    assert retries == sum(isinstance(event, Retrying) for event in events)
    periods = len({int(at // 30) for at in sent}) + 1
    assert retries <= share * len(first) + floor * periods + 1e-6
    # After three failures in a row nothing is sent for half the interval at least; then one probe.
    for number in range(3, len(sent)):
        if all(failed[number - 3 : number]):
            assert sent[number] - sent[number - 1] >= 5.0


def test_a_date_is_never_answered_early() -> None:
    time = Time(wall_time())
    at = int(time.now) + 7
    exchange = ScriptedExchange(time, [Scripted(429, (("Retry-After", formatdate(at, usegmt=True)),)), Scripted()])
    made(exchange, random=0.0)
    assert exchange.sent[1] >= at - 0.5  # the date is read on the real clock, some milliseconds later
