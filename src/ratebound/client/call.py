"""The life of one call to an API, written once without I/O: pacing, sending, retries, the budget and the circuit.

`call_flow` is a flow of `ratebound.flow`: it yields functions to call. `call` runs it in a thread, `call_async` in a
task. An adapter brings a `ClientExchange`, which sends requests and reads responses of one HTTP library, and decides
nothing. Its methods that do I/O are coroutines in an asynchronous adapter.

One call goes like this:

1. The circuit of the API is asked: open, `CircuitOpen` is raised and nothing is sent.
2. The pacer is asked for a turn. This may wait.
3. The request is sent.
4. The answer is read: status, headers and, of a refusal, the beginning of the body. The pacer learns from it.
5. `Retry` says whether to send it again. If so: the answer is discarded, so that its connection is free; the call
   waits, and goes on at 1. If not, or if a bound is reached, the caller gets the answer or the error as it is.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from random import SystemRandom
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, TypeVar
from uuid import uuid4

from ratebound.breaker import Breaker
from ratebound.client.call_events import (
    BECAUSE,
    Attempted,
    BudgetExhausted,
    CallEvent,
    CallListener,
    CircuitClosed,
    CircuitOpened,
    GaveUp,
    NotReplayable,
    Paced,
    Retrying,
    tell_call,
)
from ratebound.client.call_log import CallLogListener
from ratebound.client.circuit import CircuitBreaker, CircuitOpen
from ratebound.client.origin import origin_of
from ratebound.client.pacer import AsyncPacer, Pacer
from ratebound.client.retry import Failure, Retry, Wish
from ratebound.client.retry_budget import RetryBudget
from ratebound.flow import Flow, Step, run, run_async
from ratebound.http.advice import read_advice
from ratebound.http.client_ip import Lines
from ratebound.http.quota import Advice
from ratebound.switch import switch

R = TypeVar("R")
Sent = TypeVar("Sent", contravariant=True)
Default = Literal["default"]

RETRY: Final = Retry()
NEVER: Final = Retry(attempts=1)
BODIES: Final = frozenset((403, 429, 503, 529))
READ: Final = 65_536  # bytes of the body of a refusal that are looked at
DRAINED: Final = 65_536  # bytes of a refused answer that are read so that its connection can be used again
NOTICED: Final = 0.001  # seconds: to ask for a turn takes some time, too, and that is no wait
KEY_HEADER: Final = "Idempotency-Key"
KEYED: Final = ("POST", "PATCH")  # methods that get a key with `idempotency_key=True`

_log: Final = CallLogListener()  # one for all clients: the log has one budget of lines
_random = SystemRandom()  # the system's own: forked processes must not wait for the same time


class Outgoing(NamedTuple):
    """A request as an adapter knows it before it is sent."""

    method: str
    url: str
    headers: Lines = ()
    cost: int = 1  # requests that it counts for
    tokens: int = 0  # tokens that it is expected to use, for APIs that limit those
    retry: Retry | None = None  # instead of that of the options, for this call


class Head(NamedTuple):
    """The status and the headers of a response."""

    status: int
    headers: Lines


class CallReport(NamedTuple):
    """The report of one call.

    Attributes:
        attempts: The requests that were sent.
        waited: The seconds that were spent on pacing and pauses.
        advice: What the last answer says about limits; None without an answer.
        gave_up: Why a failed call was not retried (again), in the words of `GaveUp.obstacle`; empty if nothing failed.
    """

    attempts: int
    waited: float
    advice: Advice | None
    gave_up: str = ""


class ClientExchange(Protocol[Sent]):
    """One request of one HTTP library, and its responses. An asynchronous adapter has coroutines for send, read and
    discard.
    """

    def send(self, attempt: int, add: Lines) -> Any:
        """Send the request with these headers added, and return the response, its body unread.

        `attempt` is 1 for the first. A body must be sent in full from its beginning each time.
        """

    def head(self, response: Sent) -> Head:
        """Return the status and the headers of a response."""

    def failure(self, error: Exception) -> Failure | None:
        """Return what kind of connection error this is; None for every other error, which is raised at once."""

    def replayable(self) -> bool:
        """Return True if the body can be sent once more in full. Called after a failed attempt."""

    def read(self, response: Sent, most: int) -> Any:
        """Return up to `most` bytes of the body, or None if that cannot be done.

        The caller of the library must still be able to read the whole body. A broken connection gives what has come.
        """

    def discard(self, response: Sent, most: int) -> Any:
        """Give the connection of a response back: read the rest of its body if that has at most `most` bytes, or close
        it. Nobody reads this response any more. Raises nothing that a broken connection causes."""


class TurnTaken(Protocol):
    """The turn that a pacer gives: see `Pacer.wait`."""

    @property
    def waited(self) -> float:
        """Seconds for which the caller has waited."""

    def answered(self, status: int, headers: Lines, body: bytes | None = None) -> Any:
        """Learn from an answer, and return its Advice."""

    def failed(self) -> Any:
        """Report that there was no answer."""


class Pacing(Protocol):
    """A Pacer or an AsyncPacer."""

    def wait(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: float | None = None) -> Any:
        """Wait for a turn and return it."""

    def close(self) -> Any:
        """Release what the pacer holds."""


class PoliteOptions(TypedDict, total=False):
    """The keyword arguments that all adapters take. See `CallOptions` for their meaning and defaults."""

    retry: Retry | None
    pacer: Pacing | Default | None
    budget: RetryBudget | Default | None
    breaker: CircuitBreaker | Default | None
    listeners: Sequence[CallListener]
    idempotency_key: bool
    read_bodies_of: Collection[int]


class CallOptions:
    """The options of all calls that one adapter makes.

    | option | default | meaning |
    |---|---|---|
    | retry | Retry() | 4 attempts within 60 s; see `Retry`. None: never retry |
    | pacer | a new one | learns limits from answers and waits in advance; see `Pacer`. None: no pacing |
    | budget | RetryBudget() | retries are at most 10 % of requests in 30 s, or 3; None: no bound over all calls |
    | breaker | CircuitBreaker() | opens after 10 failures in a row, a probe every 2.5 to 5 s; None: off |
    | listeners | () | functions that receive events; see `call_events`. A log is kept in any case |
    | idempotency_key | False | True: add an Idempotency-Key to POST and PATCH requests that have none |
    | read_bodies_of | 403, 429, 503, 529 | statuses whose JSON body is searched for advice, if it has at most 64 KiB |

    The wait that is added to one call is at most `within` of its Retry, pacing included. It is 60 s if `retry` is None.
    `asynchronous` is True for adapters that use `call_async`: their pacer is an AsyncPacer.
    """

    __slots__ = (
        "breaker",
        "budget",
        "clock",
        "idempotency_key",
        "listeners",
        "own_pacer",
        "pacer",
        "random",
        "read_bodies_of",
        "refusals",
        "retry",
    )

    def __init__(
        self,
        options: PoliteOptions,
        *,
        asynchronous: bool = False,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        unknown = sorted(set(options) - set(PoliteOptions.__annotations__))
        if unknown:
            known = ", ".join(PoliteOptions.__annotations__)
            raise TypeError(f"unknown options: {', '.join(unknown)}; expected some of: {known}")
        retry = options.get("retry", RETRY)
        pacer = options.get("pacer", "default")
        budget = options.get("budget", "default")
        breaker = options.get("breaker", "default")
        listeners = tuple(options.get("listeners", ()))
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry is {retry!r}: expected a Retry, for example Retry(attempts=5), or None")
        if pacer is not None and pacer != "default":
            _check_pacer(pacer, asynchronous)
        if budget is not None and budget != "default" and not isinstance(budget, RetryBudget):
            raise TypeError(f"budget is {budget!r}: expected a RetryBudget, for example RetryBudget(0.1), or None")
        if breaker is not None and breaker != "default" and not isinstance(breaker, CircuitBreaker):
            raise TypeError(f"breaker is {breaker!r}: expected a CircuitBreaker, or None")
        if not all(map(callable, listeners)):
            raise TypeError(f"listeners is {listeners!r}: expected functions of one event")
        self.retry: Final = NEVER if retry is None else retry
        self.own_pacer: Final[Pacing | None] = (
            (AsyncPacer() if asynchronous else Pacer()) if pacer == "default" else None
        )
        self.pacer: Final[Pacing | None] = self.own_pacer if pacer == "default" else pacer
        self.budget: Final = RetryBudget(clock=clock) if budget == "default" else budget
        self.breaker: Final = CircuitBreaker(clock=clock) if breaker == "default" else breaker
        is_logged = any(getattr(listener, "logs", False) for listener in listeners)
        self.listeners: Final[tuple[CallListener, ...]] = listeners if is_logged else (_log, *listeners)
        self.idempotency_key: Final = bool(options.get("idempotency_key", False))
        self.read_bodies_of: Final = frozenset(options.get("read_bodies_of", BODIES))
        # Errors that may be retried. Their bodies may never end, so no more than a beginning of them is read before.
        self.refusals: Final = frozenset(
            status for status in self.retry.statuses | self.read_bodies_of if status >= 400
        )
        self.clock: Final = clock
        self.random: Final = random

    def close(self) -> Any:
        """Close the pacer if these options made it. Return what its `close` returns: a coroutine of an AsyncPacer."""
        return None if self.own_pacer is None else self.own_pacer.close()


def call(outgoing: Outgoing, exchange: ClientExchange[R], options: CallOptions) -> tuple[R, CallReport]:
    """Make one call in this thread. Return its answer and what happened.

    Raises CircuitOpen, what the pacer raises if the turn does not come in time, or the error of the last attempt.
    """
    return run(call_flow(outgoing, exchange, options, _sleep))


async def call_async(outgoing: Outgoing, exchange: ClientExchange[R], options: CallOptions) -> tuple[R, CallReport]:
    """Make one call in this task; see `call`."""
    return await run_async(call_flow(outgoing, exchange, options, _sleep_async))


def call_flow(
    outgoing: Outgoing, exchange: ClientExchange[R], options: CallOptions, sleep: Callable[[float], Any]
) -> Flow[tuple[R, CallReport]]:
    """Make one call; see the module. `sleep` waits for some seconds, in a thread or as a coroutine."""
    made = _CallState(outgoing, options)
    while True:
        turn, ticket = yield from made.start()
        failed: Exception | None = None
        began = options.clock()
        try:
            response: R = yield partial(exchange.send, made.attempts, made.added)
        except Exception as error:
            failed = error
        except GeneratorExit:
            made.let_go(ticket)
            raise
        except BaseException:
            made.let_go(ticket)
            yield from _report_no_answer(turn)
            raise
        seconds = options.clock() - began
        try:
            if failed is not None:
                failure = exchange.failure(failed)
                yield from _report_no_answer(turn)
                wait = made.after_failure(failure, ticket, seconds, exchange.replayable)
                if wait is None:
                    made.explain(failed)
                    raise failed
                made.last_error = failed
            else:
                wait = yield from made.after_answer(exchange, response, turn, ticket, seconds)
                if wait is None:
                    return response, made.report()
        finally:
            failed = None  # an error and the frame that holds it would be a cycle
        yield partial(sleep, wait)
        made.waited += wait


class _CallState:
    """The state of one call: what it has done so far, and what it may still do."""

    def __init__(self, outgoing: Outgoing, options: CallOptions) -> None:
        self._outgoing = outgoing
        self._options = options
        self._retry = options.retry if outgoing.retry is None else outgoing.retry
        self._origin = origin_of(outgoing.url)
        self._method = outgoing.method.upper()
        self._breaker: Breaker | None = None if options.breaker is None else options.breaker.of(self._origin)
        self._deadline = options.clock() + self._retry.within
        self._before: float | None = None  # the wait before the last attempt
        self._advice: Advice | None = None
        self._gave_up = ""
        self.attempts = 0
        self.waited = 0.0
        self.last_error: Exception | None = None
        has_key = any(name.lower() == KEY_HEADER.lower() for name, _ in outgoing.headers)
        self.added: Lines = ()
        if options.idempotency_key and not has_key and self._method in KEYED:
            self.added = ((KEY_HEADER, uuid4().hex),)
        self._idempotent = has_key or bool(self.added) or self._method in self._retry.methods

    def start(self) -> Generator[Step, Any, tuple[TurnTaken | None, int]]:
        """Begin one attempt: return the pacer's turn and the breaker's ticket. Raises CircuitOpen."""
        breaker, pacer = self._breaker, self._options.pacer
        if breaker is not None and breaker.probe_after() > 0:
            raise CircuitOpen(self._origin, breaker.probe_after()) from self.last_error
        turn: TurnTaken | None = None
        if pacer is not None:
            _, url, _, cost, tokens, _ = self._outgoing
            timeout = max(self._deadline - self._options.clock(), 0.0)
            turn = yield partial(pacer.wait, url, cost=cost, tokens=tokens, timeout=timeout)
            assert turn is not None
            self.waited += turn.waited
            if turn.waited >= NOTICED:
                self._tell(Paced(self._origin, turn.waited))
        ticket = 1 if breaker is None else breaker.admit()
        if not ticket and breaker is not None:
            yield from _report_no_answer(turn)
            raise CircuitOpen(self._origin, breaker.probe_after()) from self.last_error
        self.attempts += 1
        if self.attempts == 1 and self._options.budget is not None:
            self._options.budget.requested()
        return turn, ticket

    def let_go(self, ticket: int) -> None:
        """Return the breaker's ticket of an attempt without a result."""
        if self._breaker is not None:
            self._breaker.release(ticket)

    def after_failure(
        self, failure: Failure | None, ticket: int, seconds: float, replayable: Callable[[], bool]
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is none."""
        self._advice = None
        if failure is None:
            self.let_go(ticket)
            return None
        self._tell(Attempted(self._origin, self._method, self.attempts, 0, failure.kind, seconds))
        self._judge(ticket, ok=False)
        return self._wait(self._retry.after_failure(failure, idempotent=self._idempotent), None, replayable)

    def after_answer(
        self, exchange: ClientExchange[R], response: R, turn: TurnTaken | None, ticket: int, seconds: float
    ) -> Generator[Step, Any, float | None]:
        """Return the seconds to wait before the next attempt, the answer discarded; None to return the answer."""
        try:
            status, headers = exchange.head(response)
            self._judge(ticket, ok=status < 500)
            self._tell(Attempted(self._origin, self._method, self.attempts, status, "", seconds))
            body: bytes | None = None
            if status in self._options.read_bodies_of and _is_json(headers) and self._method != "HEAD":
                body = yield partial(exchange.read, response, READ)
            advice: Advice
            if turn is None:
                advice = read_advice(status, headers, body=body)
            else:
                advice = yield partial(turn.answered, status, headers, body)
                turn = None  # it is over
            self._advice = advice
            wish = self._retry.after_answer(status, advice, idempotent=self._idempotent)
            wait = self._wait(wish, advice.retry_after, exchange.replayable)
            if wait is not None:
                yield partial(exchange.discard, response, DRAINED)
            return wait
        except GeneratorExit:  # nobody drives this any more
            raise
        except BaseException:
            with suppress(Exception):  # it must not hide why the call ends
                yield from _report_no_answer(turn)
            with suppress(Exception):
                yield partial(exchange.discard, response, 0)
            raise

    def explain(self, error: Exception) -> None:
        """Add a note to the error that the caller gets."""
        if self._gave_up == "body":
            error.add_note(f"ratebound: {NotReplayable()}")
        elif self.attempts > 1:
            why = BECAUSE.get(self._gave_up, self._gave_up)
            error.add_note(f"ratebound: {self.attempts} attempts, {self.waited:.3g} s of waiting; {why}")

    def report(self) -> CallReport:
        """Return what happened up to now."""
        return CallReport(self.attempts, self.waited, self._advice, self._gave_up)

    def _wait(self, wish: Wish, server: float | None, replayable: Callable[[], bool]) -> float | None:
        """Return the seconds before the next attempt. None if there is nothing to retry, or the call gives up."""
        reason, obstacle = wish
        if not reason:
            return None
        wait: float | None = None
        options = self._options
        if not obstacle and self.attempts >= self._retry.attempts:
            obstacle = "attempts"
        if not obstacle and not replayable():
            obstacle = "body"
        if not obstacle:
            left = self._deadline - options.clock()
            wait = self._retry.wait(self.attempts - 1, self._before, server, left, options.random)
            if wait is None:
                obstacle = "within"
            elif self._breaker is not None and self._breaker.probe_after() > wait:
                obstacle = "circuit"
            elif options.budget is not None and not options.budget.take():
                obstacle = "budget"
                self._tell(BudgetExhausted(self._origin))
        if obstacle or wait is None:
            self._gave_up = obstacle
            if self._retry.attempts > 1:
                explanation = NotReplayable() if obstacle == "body" else None
                event = GaveUp(self._origin, self._method, self.attempts, reason, obstacle, self.waited, explanation)
                self._tell(event)
            return None
        self._before = wait
        self._tell(Retrying(self._origin, self._method, self.attempts, reason, wait, server))
        return wait

    def _judge(self, ticket: int, *, ok: bool) -> None:
        """Report the result of an attempt to the breaker, and tell the listeners if its circuit opened or closed."""
        breaker = self._breaker
        if breaker is None:
            return
        if not ok:
            if breaker.failed(ticket):
                self._tell(CircuitOpened(self._origin, breaker.probe_after()))
            return
        seconds = breaker.succeeded(ticket)
        if seconds:
            self._tell(CircuitClosed(self._origin, seconds))

    def _tell(self, event: CallEvent) -> None:
        tell_call(self._options.listeners, event)


def _check_pacer(pacer: object, asynchronous: bool) -> None:
    """Raise TypeError unless this is a pacer for threads, or for tasks if `asynchronous`."""
    expected = "AsyncPacer" if asynchronous else "Pacer"
    wait = getattr(pacer, "wait", None)
    if not callable(wait) or iscoroutinefunction(wait) is not asynchronous:
        kind = "asynchronous" if asynchronous else "synchronous"
        raise TypeError(
            f"pacer is {pacer!r}: expected the pacer of {kind} code, for example {expected}('50/second'), or None"
        )


def _report_no_answer(turn: TurnTaken | None) -> Generator[Step, Any, None]:
    if turn is not None:
        yield turn.failed


def _is_json(headers: Lines) -> bool:
    return any(name.lower() == "content-type" and "json" in value.lower() for name, value in headers)


def _sleep(seconds: float) -> None:
    if switch.sleeping:
        time.sleep(seconds)


async def _sleep_async(seconds: float) -> None:
    if switch.sleeping:
        await asyncio.sleep(seconds)
