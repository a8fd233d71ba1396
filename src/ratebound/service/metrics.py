"""The metrics of one worker: what it has decided and answered, as samples that the control plane adds up.

Names and labels are those of observe/prometheus.py, so that dashboards and alerts work for both. A decision is counted
in plain numbers first, which takes less than half of the time of Prometheus metrics: a worker has one thread and needs
no locks. Unusual events go to the Prometheus listener itself. No label holds a key.
"""

from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry
from prometheus_client.utils import floatToGoString

from ratebound.events import Decided, Listener
from ratebound.limit import Limit
from ratebound.observe.label import SECONDS, SHARES, checked_limits, label_of
from ratebound.observe.prometheus import PrometheusListener
from ratebound.outcome import DegradedRows, Row
from ratebound.policy.runtime.verdict import Judged
from ratebound.service.http1 import Answer, Handle, HttpRequest

MOST_LIMITS = 200  # names of limits with labels of their own; the others are "other"
C = TypeVar("C")
Labels = dict[str, str]
Method = Callable[[Any], bytes | Coroutine[Any, Any, bytes]]
Sample = tuple[str, Labels, float]


@dataclass(slots=True)
class Histogram:
    """Counts by bucket. The last one is for values above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """Yield the samples of this histogram."""
        count = 0
        for bound, many in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += many
            yield f"{name}_bucket", {**labels, "le": floatToGoString(bound)}, count  # type: ignore[no-untyped-call]
        yield f"{name}_count", labels, count
        yield f"{name}_sum", labels, self.total


class _LimitCounts:
    """The decisions of one limit that the storage has made."""

    __slots__ = ("allowed", "denied", "used")

    def __init__(self, name: str) -> None:
        self.allowed = 0
        self.denied = 0
        self.used = Histogram(SHARES)


class DecisionCounts:
    """A listener that counts decisions. `others` receive the events that it does not count itself, and `denials` each
    decision that denies."""

    logs = True  # one of the others does: a guard need not log outages itself

    def __init__(self, *others: Listener, denials: Listener | None = None) -> None:
        self._others = others
        self._denials = denials
        self._seconds = Histogram(SECONDS)
        self._limits: dict[str, _LimitCounts] = {}

    def __call__(self, event: Any) -> None:
        kind = type(event)
        if kind is not Decided:
            if kind is not Judged:
                self._pass_on(event)
            return
        decision, seconds = event
        rows = decision.rows
        limit: Limit = decision.limit
        if isinstance(rows, DegradedRows):
            self._pass_on(event)
            return
        counts = self._limits.get(limit.name) or self._new(limit.name)
        if not decision.allowed:
            if decision.shed:
                self._pass_on(event)
                return
            counts.denied += 1
            if self._denials is not None:
                self._denials(event)
        elif len(rows) == 1:
            if limit.over != "deny" or limit.is_watched:
                self._pass_on(event)
                return
            counts.allowed += 1
            _count_used(counts.used, limit, rows[0])
        else:
            limits = checked_limits(decision)
            for one in limits:
                if one.over != "deny" or one.is_watched:
                    self._pass_on(event)
                    return
            counts.allowed += 1
            for one, row in zip(limits, rows, strict=True):
                of_limit = self._limits.get(one.name) or self._new(one.name)
                _count_used(of_limit.used, one, row)
        times = self._seconds
        times.counts[bisect_left(SECONDS, seconds)] += 1
        times.total += seconds

    def samples(self) -> Iterator[Sample]:
        """Yield what was counted here."""
        yield from self._seconds.samples("ratebound_decision_seconds", {})
        for name, counts in self._limits.items():
            for result, many in (("allowed", counts.allowed), ("denied", counts.denied)):
                labels = {"limit": name, "result": result, "degraded": "false"}
                yield "ratebound_decisions_total", labels, many
            yield from counts.used.samples("ratebound_used_share", {"limit": name})

    def _new(self, name: str) -> _LimitCounts:
        return label_of(name, self._limits, MOST_LIMITS, _LimitCounts)

    def _pass_on(self, event: Any) -> None:
        for listener in self._others:
            listener(event)


def _count_used(used: Histogram, limit: Limit, row: Row) -> None:
    share = 1 - row[1] / limit.burst
    if share < 0.0:
        share = 0.0  # units were granted
    used.counts[bisect_left(SHARES, share)] += 1
    used.total += share


class WorkerMetrics:
    """All metrics of a worker. `listeners` are for its engine.

    `log` receives what is unusual, and with `logs_denials` every denial.
    """

    def __init__(self, log: Listener, *, logs_denials: bool = False) -> None:
        self._registry = CollectorRegistry()
        self.prometheus = PrometheusListener(self._registry, max_limits=MOST_LIMITS)
        self._decisions = DecisionCounts(self.prometheus, log, denials=log if logs_denials else None)
        self.listeners: Sequence[Listener] = (self._decisions,)
        self._requests: dict[tuple[str, str], int] = {}

    def counted(self, handle: Handle) -> Handle:
        """Return a handle of HTTP requests that counts its answers by their status."""
        count = self._counter("http")

        async def awaited(answer: Coroutine[Any, Any, bytes]) -> bytes:
            found = await answer
            count(found[9:12].decode())
            return found

        def counting(request: HttpRequest) -> Answer:
            answer = handle(request)
            if isinstance(answer, bytes):
                count(answer[9:12].decode())
                return answer
            return awaited(answer)

        return counting

    def counted_method(self, method: Method) -> Method:
        """Return a gRPC method that counts its replies, by the number of their status."""
        count = self._counter("grpc")

        async def awaited(answer: Coroutine[Any, Any, bytes]) -> bytes:
            try:
                found = await answer
            except Exception as error:
                count(str(getattr(error, "status", 13)))
                raise
            count("0")
            return found

        def counting(call: Any) -> bytes | Coroutine[Any, Any, bytes]:
            try:
                answer = method(call)
            except Exception as error:
                count(str(getattr(error, "status", 13)))
                raise
            if isinstance(answer, bytes):
                count("0")
                return answer
            return awaited(answer)

        return counting

    def counted_commands(self, commands: C) -> C:
        """Return commands of RESP that count their answers: ok or error."""
        return cast(C, CountedCommands(commands, self._counter("resp")))

    def snapshot(self, connections: dict[str, int]) -> list[dict[str, Any]]:
        """Return all samples by family, as JSON can hold them."""
        families: dict[str, dict[str, Any]] = {}
        for metric in self._registry.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            samples = [
                (sample.name, dict(sample.labels), sample.value)
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            families[name] = {
                "name": name,
                "type": metric.type,
                "help": metric.documentation,
                "samples": samples,
            }
        for sample in self._decisions.samples():
            name = sample[0]
            for end in ("_bucket", "_count", "_sum"):
                name = name.removesuffix(end)
            families[name]["samples"].append(sample)
        requests = [
            ("ratebound_service_requests_total", {"wire": wire, "result": result}, many)
            for (wire, result), many in self._requests.items()
        ]
        opened = [("ratebound_service_connections", {"wire": wire}, many) for wire, many in connections.items()]
        return [
            *families.values(),
            _family("ratebound_service_requests_total", "counter", "Answered requests, by wire format", requests),
            _family("ratebound_service_connections", "gauge", "Open connections, by wire format", opened),
        ]

    def _counter(self, wire: str) -> Callable[[str], None]:
        requests = self._requests

        def count(result: str) -> None:
            requests[wire, result] = requests.get((wire, result), 0) + 1

        return count


class CountedCommands:
    """The commands of RESP, with a count of their answers."""

    def __init__(self, commands: Any, count: Callable[[str], None]) -> None:
        self.new_session = commands.new_session
        self._answer = commands.answer
        self._count = count

    def answer(self, session: Any, command: list[bytes]) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a command, and count the answer."""
        found: bytes | Coroutine[Any, Any, bytes] = self._answer(session, command)
        if isinstance(found, bytes):
            self._count("error" if found[:1] == b"-" else "ok")
            return found
        return self._awaited(found)

    async def _awaited(self, answer: Coroutine[Any, Any, bytes]) -> bytes:
        found = await answer
        self._count("error" if found[:1] == b"-" else "ok")
        return found


def _family(name: str, kind: str, text: str, samples: list[Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "help": text, "samples": samples}
