"""A scripted exchange for the flow of a call: answers and errors in a row, on a clock that moves only by waiting."""

from collections.abc import Sequence
from typing import NamedTuple

from ratebound.client.call import CallOptions, CallReport, Head, Outgoing, PoliteOptions, call_flow
from ratebound.client.retry import Failure
from ratebound.flow import run
from ratebound.http.client_ip import Lines


class Scripted(NamedTuple):
    """One answer of the script."""

    status: int = 200
    headers: Lines = ()
    body: bytes = b""
    takes: float = 0.0  # seconds until it comes


class ConnectionLost(Exception):
    """A connection error of the script."""

    def __init__(self, kind: str = "closed", *, sent: bool = True, takes: float = 0.0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.sent = sent
        self.takes = takes


class Time:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


class ScriptedExchange:
    """Answers from a list; the last one repeats. It records when requests were sent, and what became of responses."""

    def __init__(self, time: Time, script: Sequence[Scripted | Exception], *, replayable: bool = True) -> None:
        self.time = time
        self.script = script
        self.can_replay = replayable
        self.sent: list[float] = []
        self.added: list[Lines] = []
        self.discarded: list[tuple[Scripted, int]] = []
        self.read_from: list[Scripted] = []

    def send(self, attempt: int, add: Lines) -> Scripted:
        self.sent.append(self.time.now)
        self.added.append(add)
        assert attempt == len(self.sent)
        step = self.script[min(attempt, len(self.script)) - 1]
        self.time.now += getattr(step, "takes", 0.0)
        if isinstance(step, Exception):
            raise step
        return step

    def head(self, response: Scripted) -> Head:
        return Head(response.status, response.headers)

    def failure(self, error: Exception) -> Failure | None:
        return Failure(error.kind, error.sent) if isinstance(error, ConnectionLost) else None

    def replayable(self) -> bool:
        return self.can_replay

    def read(self, response: Scripted, most: int) -> bytes:
        self.read_from.append(response)
        return response.body[:most]

    def discard(self, response: Scripted, most: int) -> None:
        self.discarded.append((response, most))


def made(
    exchange: ScriptedExchange,
    *,
    method: str = "GET",
    url: str = "https://api.example.com/things?secret=1",
    headers: Lines = (),
    random: float = 0.5,
    options: CallOptions | None = None,
    **given: object,
) -> tuple[Scripted, CallReport]:
    """Make one call without pacing, on the clock of the exchange."""
    time = exchange.time
    if options is None:
        chosen: PoliteOptions = {"pacer": None, **given}  # type: ignore[typeddict-item]
        options = CallOptions(chosen, clock=time, random=lambda: random)
    return run(call_flow(Outgoing(method, url, headers), exchange, options, time.sleep))
