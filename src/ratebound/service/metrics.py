"""The metrics of one worker: what it has decided and answered, as samples that the control plane adds up.

Names and labels are those of observe/prometheus.py, so that dashboards and alerts work for both. Usual decisions are
counted in observe/decision_counts.py, unusual events by the Prometheus listener itself. No label holds a key.
"""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry
from prometheus_client.utils import floatToGoString

from ratebound.events import Listener
from ratebound.ledger import Ledger
from ratebound.observe.decision_counts import MOST_LIMITS, DecisionCounts, Histogram
from ratebound.observe.prometheus import PrometheusListener
from ratebound.service.http1 import Answer, Handle, HttpRequest

C = TypeVar("C")
Labels = dict[str, str]
Method = Callable[[Any], bytes | Coroutine[Any, Any, bytes]]
Sample = tuple[str, Labels, float]


class WorkerMetrics:
    """All metrics of a worker. `listeners` are for its engine. `decisions` has the counts of usual decisions.

    `log` receives what is unusual, and with `logs_denials` every denial.
    """

    def __init__(self, log: Listener, *, logs_denials: bool = False) -> None:
        self._registry = CollectorRegistry()
        self.prometheus = PrometheusListener(self._registry, max_limits=MOST_LIMITS)
        self.decisions = DecisionCounts(self.prometheus, log, denials=log if logs_denials else None)
        self.listeners: Sequence[Listener] = (self.decisions,)
        self._requests: dict[str, dict[bytes, int]] = {}  # by wire format and result

    def counted(self, handle: Handle) -> Handle:
        """Return a handle of HTTP requests that counts its answers by their status."""
        counts = self.counts_of("http")

        async def awaited(answer: Coroutine[Any, Any, bytes]) -> bytes:
            found = await answer
            counts[found[9:12]] += 1
            return found

        def counting(request: HttpRequest) -> Answer:
            answer = handle(request)
            if isinstance(answer, bytes):
                counts[answer[9:12]] += 1
                return answer
            return awaited(answer)

        return counting

    def counted_method(self, method: Method) -> Method:
        """Return a gRPC method that counts its replies, by the number of their status."""
        counts = self.counts_of("grpc")

        async def awaited(answer: Coroutine[Any, Any, bytes]) -> bytes:
            try:
                found = await answer
            except Exception as error:
                counts[str(getattr(error, "status", 13)).encode()] += 1
                raise
            counts[b"0"] += 1
            return found

        def counting(call: Any) -> bytes | Coroutine[Any, Any, bytes]:
            try:
                answer = method(call)
            except Exception as error:
                counts[str(getattr(error, "status", 13)).encode()] += 1
                raise
            if isinstance(answer, bytes):
                counts[b"0"] += 1
                return answer
            return awaited(answer)

        return counting

    def counted_commands(self, commands: C) -> C:
        """Return commands of RESP that count their answers: ok or error."""
        return cast(C, CountedCommands(commands, self.counts_of("resp")))

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
            families[name] = family(name, metric.type, metric.documentation, samples)
        for sample in _samples_of(self.decisions):
            name = sample[0]
            for end in ("_bucket", "_count", "_sum"):
                name = name.removesuffix(end)
            families[name]["samples"].append(sample)
        requests = [
            ("ratebound_service_requests_total", {"wire": wire, "result": result.decode()}, many)
            for wire, counts in self._requests.items()
            for result, many in counts.items()
        ]
        opened = [("ratebound_service_connections", {"wire": wire}, many) for wire, many in connections.items()]
        return [
            *families.values(),
            family("ratebound_service_requests_total", "counter", "Answered requests, by wire format", requests),
            family("ratebound_service_connections", "gauge", "Open connections, by wire format", opened),
        ]

    def counts_of(self, wire: str) -> dict[bytes, int]:
        """Return the counts of a wire format, by result: to be added to."""
        return self._requests.setdefault(wire, defaultdict(int))


class CountedCommands:
    """The commands of RESP, with a count of their answers."""

    def __init__(self, commands: Any, counts: dict[bytes, int]) -> None:
        self.new_session = commands.new_session
        self._answer = commands.answer
        self._counts = counts

    def answer(self, session: Any, command: list[bytes]) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a command, and count the answer."""
        found: bytes | Coroutine[Any, Any, bytes] = self._answer(session, command)
        if isinstance(found, bytes):
            self._counts[b"error" if found[:1] == b"-" else b"ok"] += 1
            return found
        return self._awaited(found)

    async def _awaited(self, answer: Coroutine[Any, Any, bytes]) -> bytes:
        found = await answer
        self._counts[b"error" if found[:1] == b"-" else b"ok"] += 1
        return found


def family(name: str, kind: str, text: str, samples: list[Any]) -> dict[str, Any]:
    """Return a family of samples, as JSON can hold it."""
    return {"name": name, "type": kind, "help": text, "samples": samples}


def ledger_families(ledger: Ledger) -> list[dict[str, Any]]:
    """Return how writing to the usage ledger goes."""
    state = ledger.state
    return [
        family(name, kind, text, [(name, {}, value)])
        for name, kind, text, value in (
            ("ratebound_ledger_flushes_total", "counter", "Times that usage was written to the ledger", state.flushes),
            (
                "ratebound_ledger_failures_total",
                "counter",
                "Times that the ledger could not be written",
                state.failures,
            ),
            ("ratebound_ledger_pending_entries", "gauge", "Entries that are not in the ledger yet", state.pending),
        )
    ]


def _samples_of(decisions: DecisionCounts) -> Iterator[Sample]:
    yield from _histogram("ratebound_decision_seconds", {}, decisions.seconds)
    for name, counts in decisions.limits.items():
        for result, many in (("allowed", counts.allowed), ("denied", counts.denied)):
            yield "ratebound_decisions_total", {"limit": name, "result": result, "degraded": "false"}, many
        yield from _histogram("ratebound_used_share", {"limit": name}, counts.used)


def _histogram(name: str, labels: Labels, found: Histogram) -> Iterator[Sample]:
    count = 0
    for bound, many in zip((*found.bounds, float("inf")), found.counts, strict=True):
        count += many
        yield f"{name}_bucket", {**labels, "le": floatToGoString(bound)}, count  # type: ignore[no-untyped-call]
    yield f"{name}_count", labels, count
    yield f"{name}_sum", labels, found.total
