"""Perform a load test: send each request when it is due, whatever the server does, and keep all answers.

The load is open: the schedule never waits for an answer, and latencies count from the due time. So a server that stalls
shows the stall in every request that was due in it (no coordinated omission). The sender measures its own delay, too:
if the machine could not keep the schedule, the result says so.
"""

import asyncio
import heapq
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from ratebound.loadtest.addresses import CheckedServer, checked_servers
from ratebound.loadtest.answer import ERROR_NUMBERS, ERRORS, Answers
from ratebound.loadtest.exchange import AdviceCache, LoadExchange, RawLines, now
from ratebound.loadtest.http1 import Http1Wire, request_bytes
from ratebound.loadtest.identities import ClientMarks, weighted
from ratebound.loadtest.plan import LoadPlan, LoadTarget, Origin
from ratebound.loadtest.pool import ConnectionCap, NewWire, WirePool, oldest_useful
from ratebound.loadtest.progress import LatencyHistogram, Progress, ProgressCounts
from ratebound.loadtest.wake_up import WakeUp

TICK = 0.05  # seconds between looks at timeouts
PROGRESS = 5  # ticks between two calls of on_progress: 0.25 s
AT_ONCE = 128  # requests that are sent before answers are read again
DRAIN = 1.0  # seconds that answers may still take after an interruption
LATE = 0.010  # seconds. A sender that is later than this, in 1 of 100 requests, has not kept its schedule
LEAST_REST = 0.1  # seconds. A server that says 'Retry-After: 0' must not make clients send without end
USUAL_STREAMS = 100  # that a server of HTTP/2 takes on one connection
MAX_REQUESTS = 20_000  # different requests whose bytes are kept

TIMEOUT = ERROR_NUMBERS["timeout"]
CONNECT = ERROR_NUMBERS["connect"]
UNSENT = ERROR_NUMBERS["unsent"]
ABORTED = ERROR_NUMBERS["aborted"]

NewRequest = Callable[[LoadTarget, ClientMarks], Any]
OnProgress = Callable[[Progress], object]


class SendingDelay(NamedTuple):
    """The time from the due time of a request until the sender handed it to its connections, in seconds.

    It is the delay of the sender, not of the server. Exact to 2.2 %.
    """

    p50: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a load test."""

    plan: LoadPlan
    answers: Answers
    started: float  # Unix time
    elapsed: float  # seconds from the start to the last answer
    due: int  # requests of the schedule whose time came. due = sent + held
    sent: int  # requests that were handed to connections, without probes
    held: int  # requests that obedient clients did not send, because they waited as Retry-After said
    probes: int
    probes_left: int  # probes that would have come after the end
    ended_by: str  # "schedule", "interrupted" or "errors"
    delay: SendingDelay
    kept_schedule: bool
    connections: int  # the most that were open at once
    cpu: float  # CPU seconds of the sender per second
    notes: tuple[str, ...]  # sentences on bounds that were reached and on an early end


async def run_load(
    plan: LoadPlan, *, on_progress: OnProgress | None = None, stop: asyncio.Event | None = None
) -> LoadRun:
    """Perform a load test in the running loop. `stop` ends it early, with the results so far.

    Raises LoadTestRefused if an address is not allowed, and OSError or ssl.SSLError for an unusable `ca_file`.
    """
    servers = await checked_servers(plan)
    return await _LoadSender(plan, servers, on_progress).run(stop)


def run_load_here(plan: LoadPlan, *, on_progress: OnProgress | None = None) -> LoadRun:
    """Perform a load test in a loop of its own: of uvloop if that is installed.

    Ctrl-C ends the test early, with the results so far. A second Ctrl-C raises KeyboardInterrupt.
    """

    async def run() -> LoadRun:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)

        with suppress(NotImplementedError, ValueError, RuntimeError):  # Windows, and threads other than the main one
            loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            return await run_load(plan, on_progress=on_progress, stop=stop)
        finally:
            with suppress(NotImplementedError, ValueError, RuntimeError):
                loop.remove_signal_handler(signal.SIGINT)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


class _LoadSender:
    """One run."""

    def __init__(self, plan: LoadPlan, servers: dict[Origin, CheckedServer], on_progress: OnProgress | None) -> None:
        self._plan = plan
        self._servers = servers
        self._on_progress = on_progress
        self._answers = Answers(plan.max_answers)
        self._advice = AdviceCache(self._answers)
        self._counts = ProgressCounts(self._answers)
        self._delays = LatencyHistogram()
        self._most_delay = 0.0
        self._cap = ConnectionCap(plan.max_connections)
        self._tls = _tls_context(plan)
        self._new_wire, self._new_request = _protocol(plan)
        self._pools: dict[tuple[Origin, str | None], WirePool] = {}
        self._requests: dict[tuple[int, int], tuple[WirePool, Any]] = {}
        self._due_times = plan.arrivals.due_times()
        self._clients = plan.clients.assigned(plan.seed)
        self._chosen_targets: Iterator[int] = repeat(0)
        if len(plan.targets) > 1:
            self._chosen_targets = weighted([target.weight for target in plan.targets], plan.seed + 1)
        self._in_flight: dict[LoadExchange, None] = {}
        self._answered = 0
        self._due = self._sent = self._held = self._probes = self._probes_left = self._unsent = 0
        self._failing_since: float | None = None
        self._resting: dict[int, float] = {}  # obedient clients that were refused: until when they wait
        self._probe_times: list[tuple[float, int, int]] = []  # a heap: when, the client, its target
        self._next: float | None = next(self._due_times, None)
        self._zero = 0.0
        self._ticks = 0
        self._is_stopping = False
        self._ended_by = "schedule"
        self._failure: BaseException | None = None
        self._over = asyncio.Event()
        self._wake_up: WakeUp
        self._tick: asyncio.Handle | None = None

    async def run(self, stop: asyncio.Event | None) -> LoadRun:
        """Send everything, wait for the answers, and return the result."""
        self._loop = asyncio.get_running_loop()
        stopping = None if stop is None else self._loop.create_task(stop.wait())
        if stopping is not None:
            stopping.add_done_callback(self._interrupted)
        self._wake_up = WakeUp(self._pump)
        started, cpu = time.time(), time.process_time()
        self._zero = now()
        try:
            self._pump()
            self._look()
            await self._over.wait()
        finally:
            elapsed = now() - self._zero
            self._wake_up.close()
            if self._tick is not None:
                self._tick.cancel()
            if stopping is not None:
                stopping.cancel()
            self._abort_all()
            for pool in self._pools.values():
                await pool.close()
        if self._failure is not None:
            raise self._failure
        if self._on_progress is not None:
            self._on_progress(self._progress(elapsed))
        await asyncio.sleep(0)  # transports close
        return self._result(started, elapsed, (time.process_time() - cpu) / max(elapsed, 1e-9))

    # The schedule

    def _pump(self) -> None:
        """Send all requests that are due, and wake up for the next."""
        try:
            for _ in range(AT_ONCE):
                wait = self._send_next()
                if wait is None:
                    return
                if wait > 0:
                    self._wake_up.set(now() + wait)
                    return
            self._wake_up.set(now())  # after answers that have come
        except Exception as error:
            self._fail(error)

    def _send_next(self) -> float | None:
        """Send one request if one is due, and return 0; else return the seconds until one is. None: there are none."""
        due, probes = self._next, self._probe_times
        elapsed = now() - self._zero
        if probes and (due is None or probes[0][0] <= due):
            when, client, target = probes[0]
            if when > elapsed:
                return when - elapsed
            heapq.heappop(probes)
            self._send_probe(when, client, target, elapsed)
            return 0.0
        if due is None:
            self._end_if_done()
            return None
        if due > elapsed:
            return due - elapsed
        self._next = next(self._due_times, None)
        self._due += 1
        client = next(self._clients)
        target = next(self._chosen_targets)
        if client in self._resting:
            self._held += 1
        else:
            self._sent += 1
            self._send(client, target, due, elapsed, probe=False)
        return 0.0

    def _send(self, client: int, target: int, due: float, elapsed: float, *, probe: bool) -> None:
        late = elapsed - due
        self._delays.add(late)
        if late > self._most_delay:
            self._most_delay = late
        found = self._requests.get((target, client))
        if found is None:
            found = self._request(target, client)
        pool, request = found
        exchange = LoadExchange(client, target, due, elapsed + self._zero, request, probe)
        self._in_flight[exchange] = None
        if len(self._in_flight) > self._plan.max_in_flight:
            self._unsent += 1
            self._finish(exchange, 0, UNSENT)
        else:
            pool.send(exchange)

    def _request(self, target: int, client: int) -> tuple[WirePool, Any]:
        """Return the request of a client and the connections that it takes."""
        marks = self._plan.clients.marks_of(client)
        wanted = self._plan.targets[target]
        key = (wanted.origin, marks.source)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = WirePool(
                self._servers[wanted.origin],
                marks.source,
                self._new_wire,
                self._finish,
                self._cap,
                tls=self._tls if wanted.origin.is_tls else None,
                timeout=self._plan.timeout,
                per_wire=USUAL_STREAMS if self._plan.http2 else 1,
            )
        found = pool, self._new_request(wanted, marks)
        if len(self._requests) < MAX_REQUESTS:
            self._requests[target, client] = found
        return found

    # Answers

    def _finish(
        self, exchange: LoadExchange, status: int, error: int = 0, lines: RawLines | None = None, done: float = 0.0
    ) -> None:
        """Keep an answer. Only the first end of an exchange counts."""
        if exchange.is_over:
            return
        exchange.is_over = True
        del self._in_flight[exchange]
        self._answered += 1
        done = (done or now()) - self._zero
        sent = exchange.sent - self._zero if exchange.sent else done
        advice, retry_after = self._advice.read(lines) if lines else (0, None)
        client = exchange.client
        self._answers.add(client, exchange.due, sent, done, status, error, advice, exchange.probe, exchange.target)
        if status:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = done
        if self._plan.obey:
            self._obey(exchange, status, done, retry_after)
        if self._next is None and not self._in_flight:
            self._end_if_done()

    def _obey(self, exchange: LoadExchange, status: int, done: float, retry_after: float | None) -> None:
        """Let a refused client rest as long as it was told; it sends nothing else until its probe is answered."""
        client = exchange.client
        if status >= 400 and retry_after is not None and not self._is_stopping:
            until = done + max(retry_after, LEAST_REST)
            has_probe = client in self._resting and not exchange.probe
            self._resting[client] = max(self._resting.get(client, 0.0), until)
            if not has_probe:
                self._plan_probe(until, client, exchange.target)
        elif exchange.probe:
            self._resting.pop(client, None)

    def _plan_probe(self, when: float, client: int, target: int) -> None:
        if when > self._plan.arrivals.duration + self._plan.probe_within:
            self._probes_left += 1  # the client rests until the end
            return
        heapq.heappush(self._probe_times, (when, client, target))
        if self._probe_times[0][1] == client:
            self._wake_up.set(now())

    def _send_probe(self, when: float, client: int, target: int, elapsed: float) -> None:
        until = self._resting.get(client, when)
        if until > when:  # a later refusal, of a request that was on its way, said to wait longer
            self._plan_probe(until, client, target)
            return
        self._probes += 1
        self._send(client, target, when, elapsed, probe=True)

    # Timeouts, progress and the end

    def _look(self) -> None:
        """Fail what takes too long, and report progress."""
        try:
            self._tick = self._loop.call_later(TICK, self._look)
            self._ticks += 1
            moment = now()
            self._time_out(moment - self._plan.timeout)
            since = self._failing_since
            if since is not None and moment - self._zero - since > self._plan.stop_after_errors:
                self._stop("errors")
            if self._ticks % PROGRESS == 0:
                oldest = oldest_useful()
                for pool in self._pools.values():
                    pool.close_idle(oldest)
                if self._on_progress is not None:
                    self._on_progress(self._progress(moment - self._zero))
        except Exception as error:
            self._fail(error)

    def _time_out(self, limit: float) -> None:
        expired = []
        for exchange in self._in_flight:
            if exchange.started > limit:
                break
            if (exchange.sent or exchange.started) <= limit:
                expired.append(exchange)
        for exchange in expired:
            if exchange.sent:
                error = TIMEOUT
            else:
                error = UNSENT if self._cap.was_reached else CONNECT
            self._end(exchange, error)

    def _end(self, exchange: LoadExchange, error: int) -> None:
        wire = exchange.wire
        self._finish(exchange, 0, error)
        if wire is not None:
            wire.give_up(exchange)

    def _progress(self, elapsed: float) -> Progress:
        return self._counts.read(
            elapsed,
            self._plan.arrivals.duration,
            self._sent + self._probes,
            self._answered,
            len(self._in_flight),
            self._cap.open,
            self._held,
        )

    def _interrupted(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled():
            self._stop("interrupted")

    def _stop(self, ended_by: str) -> None:
        """Send nothing more. Answers that are on their way get a moment."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._ended_by = ended_by
        self._next = None
        self._probes_left += len(self._probe_times)
        self._probe_times.clear()
        if self._in_flight:
            self._loop.call_later(min(DRAIN, self._plan.timeout), self._over.set)
        else:
            self._over.set()

    def _end_if_done(self) -> None:
        if self._next is None and not self._in_flight and not self._probe_times:
            self._over.set()

    def _abort_all(self) -> None:
        self._is_stopping = True
        for exchange in list(self._in_flight):
            self._end(exchange, ABORTED)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._over.set()

    def _result(self, started: float, elapsed: float, cpu: float) -> LoadRun:
        delay = SendingDelay(self._delays.percentile(0.5), self._delays.percentile(0.99), self._most_delay)
        kept = delay.p99 <= LATE
        return LoadRun(
            self._plan,
            self._answers,
            started,
            elapsed,
            self._due,
            self._sent,
            self._held,
            self._probes,
            self._probes_left,
            self._ended_by,
            delay,
            kept,
            self._cap.peak,
            cpu,
            tuple(self._notes(delay, kept)),
        )

    def _notes(self, delay: SendingDelay, kept: bool) -> Iterator[str]:
        plan, answers = self._plan, self._answers
        if self._ended_by == "interrupted":
            yield "The test was interrupted. The results are those until then."
        elif self._ended_by == "errors":
            kinds = ", ".join(sorted({ERRORS[number] for number in answers.error[-100:] if number}))
            yield f"The test was stopped: no request was answered for {plan.stop_after_errors:g} s ({kinds})."
        if not kept:
            yield (
                f"The sender could not keep its schedule: 1 of 100 requests was {delay.p99 * 1000:.0f} ms late or more."
                " Latencies include this delay, which is not the server's. Lower the rate, or use a larger machine."
            )
        if self._cap.was_reached:
            yield (
                f"All {plan.max_connections} connections were in use. Requests waited for one, and their latencies"
                " include the wait. Raise max_connections if the server can take more."
            )
        if self._unsent:
            yield f"{self._unsent} requests were not sent: more than {plan.max_in_flight} were in flight."
        if answers.dropped:
            yield f"{answers.dropped} answers were not kept: the bound is {plan.max_answers}."
        if answers.advice_dropped:
            yield "There were too many different rate limit headers: those of some answers were not kept."


def _protocol(plan: LoadPlan) -> tuple[NewWire, NewRequest]:
    if not plan.http2:
        return Http1Wire, request_bytes
    from ratebound.loadtest.http2 import Http2Wire, request_fields  # needs a package that HTTP/1.1 does not

    return Http2Wire, request_fields


def _tls_context(plan: LoadPlan) -> ssl.SSLContext | None:
    if not any(target.origin.is_tls for target in plan.targets):
        return None
    try:
        context = ssl.create_default_context(cafile=plan.ca_file)
    except OSError as error:
        error.filename = plan.ca_file  # OpenSSL does not name it
        raise
    if plan.insecure:  # checked_servers allows it on loopback only
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"] if plan.http2 else ["http/1.1"])
    return context
