"""A listener for Prometheus: requests, retries by reason, waits, and circuits of clients.

Labels are origins, reasons and results, each bounded in number. They hold no path, query or header.
"""

from ratebound.client.call_events import (
    Attempted,
    BudgetExhausted,
    CallEvent,
    CircuitClosed,
    CircuitOpened,
    GaveUp,
    Paced,
    Retrying,
)
from ratebound.client.call_labels import WAITS, CallLabels, result_of
from ratebound.from_extra import from_extra

with from_extra("prometheus", prometheus_client="prometheus-client"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class PrometheusCallListener:
    """A listener that exports metrics of calls to Prometheus. One is enough for all clients of a process.

    Args:
        registry: The registry that exports the metrics. It accepts each metric name once.
        max_origins: The origins that get a label of their own. The rest are "other".

    Raises:
        ValueError: The registry has these metrics already, or `max_origins` is not positive.

    Examples:
        >>> import httpx
        >>> from prometheus_client import CollectorRegistry
        >>> from ratebound.client.httpx import PoliteTransport
        >>> from ratebound.client.prometheus import PrometheusCallListener
        >>> listener = PrometheusCallListener(CollectorRegistry())
        >>> client = httpx.Client(transport=PoliteTransport(listeners=[listener]))
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, max_origins: int = 100) -> None:
        self._labels = CallLabels(max_origins)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ratebound_client_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"ratebound_client_{name}", text, labels, buckets=WAITS, registry=registry)

        self._requests = counter("requests", "Requests sent, retries included", "origin", "result")
        self._retries = counter("retries", "Retries, by the reason of the last failure", "origin", "reason")
        self._given_up = counter("given_up", "Failed calls that were not retried (again)", "origin", "obstacle")
        self._budget = counter("budget_refusals", "Retries left out because the budget was used up", "origin")
        self._seconds = histogram("request_seconds", "Time until the headers of an answer, or an error", "origin")
        self._waits = histogram("wait_seconds", "Waits before requests, for a turn or a retry", "origin", "cause")
        self._open = Gauge(
            "ratebound_client_circuit_open",
            "1 while an API is not called because its last calls failed",
            ("origin",),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def __call__(self, event: CallEvent) -> None:
        origin = self._labels.origin(event.origin)
        if isinstance(event, Attempted):
            self._requests.labels(origin, result_of(event)).inc()
            self._seconds.labels(origin).observe(event.seconds)
        elif isinstance(event, Retrying):
            self._retries.labels(origin, self._labels.reason(event.reason)).inc()
            self._waits.labels(origin, "retry").observe(event.wait)
        elif isinstance(event, Paced):
            self._waits.labels(origin, "pacing").observe(event.seconds)
        elif isinstance(event, GaveUp):
            self._given_up.labels(origin, event.obstacle).inc()
        elif isinstance(event, BudgetExhausted):
            self._budget.labels(origin).inc()
        elif isinstance(event, CircuitOpened | CircuitClosed):
            self._open.labels(origin).set(isinstance(event, CircuitOpened))
