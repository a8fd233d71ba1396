"""Answers to the requests of a load test, kept in columns: about 40 bytes each, so a million need 40 MB."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from ratebound.http.quota import Quota

# Why a request has no answer. The number of an error in a column is its place here.
ERRORS = (
    "",
    "connect",  # no connection: refused, unreachable, or reset while connecting
    "tls",  # no TLS connection, or a certificate that does not verify
    "timeout",
    "closed",  # the server closed the connection before its answer was complete
    "malformed",  # bytes that are no HTTP
    "too-large",  # an answer above the bound
    "no-http2",  # the server does not speak HTTP/2
    "stream",  # HTTP/2: the server reset the stream or rejected it with GOAWAY
    "unsent",  # no connection became free, or too many requests were in flight
    "aborted",  # the run ended before the answer came
)
ERROR_NUMBERS = {error: number for number, error in enumerate(ERRORS)}
MAX_ADVICE = 100_000  # different sets of rate limit fields that are kept


class Advised(NamedTuple):
    """The rate limit headers of an answer."""

    retry_after: float | None = None
    quotas: tuple[Quota, ...] = ()


NO_ADVICE = Advised()


class Answer(NamedTuple):
    """One request and its answer. Times are seconds from the start of the run, on one monotonic clock.

    The latency is `done - due`: a request that was sent late, because the server or the sender was slow, counts with
    its delay.
    """

    client: int
    due: float
    sent: float  # when it was written to a connection; `done` if that never happened
    done: float
    status: int  # 0: no answer
    error: str = ""  # one of ERRORS
    retry_after: float | None = None
    quotas: tuple[Quota, ...] = ()
    probe: bool = False  # sent exactly when the Retry-After of this client's last refusal had passed
    target: int = 0  # the index of its URL in the plan


class Answers:
    """A sequence of Answer in the order of their ends.

    It keeps at most `most` answers; `dropped` counts those beyond. The columns may be read directly.
    """

    __slots__ = (
        "_advice",
        "_advice_numbers",
        "_flags",
        "_most",
        "advice_dropped",
        "advice_number",
        "client",
        "done",
        "dropped",
        "due",
        "error",
        "sent",
        "status",
        "target",
    )

    def __init__(self, most: int = 5_000_000) -> None:
        self.client = array("l")
        self.due = array("d")
        self.sent = array("d")
        self.done = array("d")
        self.status = array("H")
        self.error = array("B")
        self.target = array("H")
        self.advice_number = array("l")
        self.dropped = 0
        self.advice_dropped = 0
        self._flags = array("B")
        self._most = most
        self._advice: list[Advised] = [NO_ADVICE]
        self._advice_numbers: dict[Advised, int] = {NO_ADVICE: 0}

    def number_of(self, advice: Advised) -> int:
        """Return the number under which this advice is kept, or 0 if there are too many already."""
        number = self._advice_numbers.get(advice)
        if number is None:
            if len(self._advice) >= MAX_ADVICE:
                self.advice_dropped += 1
                return 0
            number = self._advice_numbers[advice] = len(self._advice)
            self._advice.append(advice)
        return number

    def add(
        self,
        client: int,
        due: float,
        sent: float,
        done: float,
        status: int,
        error: int = 0,
        advice_number: int = 0,
        probe: bool = False,
        target: int = 0,
    ) -> None:
        """Keep an answer. The error and the advice are numbers."""
        if len(self.due) >= self._most:
            self.dropped += 1
            return
        self.client.append(client)
        self.due.append(due)
        self.sent.append(sent)
        self.done.append(done)
        self.status.append(status)
        self.error.append(error)
        self.advice_number.append(advice_number)
        self._flags.append(probe)
        self.target.append(target)

    def advice(self, number: int) -> Advised:
        """Return the advice with this number of the column `advice_number`."""
        return self._advice[number]

    def is_probe(self, index: int) -> bool:
        """Return True if the request was a probe."""
        return self._flags[index] == 1

    def __len__(self) -> int:
        return len(self.due)

    def __getitem__(self, index: int) -> Answer:
        retry_after, quotas = self._advice[self.advice_number[index]]
        return Answer(
            self.client[index],
            self.due[index],
            self.sent[index],
            self.done[index],
            self.status[index],
            ERRORS[self.error[index]],
            retry_after,
            quotas,
            self._flags[index] == 1,
            self.target[index],
        )

    def __iter__(self) -> Iterator[Answer]:
        for index in range(len(self.due)):
            yield self[index]
