"""A listener for OpenTelemetry: metrics of clients, and an event on the current span for each retry. Only its API is
used.

The instruments are those of prometheus.py with OpenTelemetry's names, and attributes are bounded in the same way.
"""

import threading
from collections.abc import Iterable
from typing import Any

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
from ratebound.fork import renew_in_children
from ratebound.from_extra import from_extra

with from_extra("otel", opentelemetry="opentelemetry-api"):
    from opentelemetry import metrics, trace


class OpenTelemetryCallListener:
    """A listener that writes metrics of calls to OpenTelemetry, and adds retries to the current span.

    Args:
        meter_provider: Where the metrics are written. None means the global provider.
        spans: False if retries and calls that gave up are not added to the current span.
        max_origins: The origins that get a label of their own. The rest are "other".

    Raises:
        ValueError: `max_origins` is not positive.

    Examples:
        >>> import httpx
        >>> from ratebound.client.httpx import PoliteTransport
        >>> from ratebound.client.otel import OpenTelemetryCallListener
        >>> client = httpx.Client(transport=PoliteTransport(listeners=[OpenTelemetryCallListener()]))
    """

    def __init__(
        self, meter_provider: metrics.MeterProvider | None = None, *, spans: bool = True, max_origins: int = 100
    ) -> None:
        self._spans = spans
        self._labels = CallLabels(max_origins)
        self._open: dict[str, bool] = {}
        self.renew()
        renew_in_children(self)
        meter = metrics.get_meter("ratebound", meter_provider=meter_provider)

        def counter(name: str, unit: str, text: str) -> Any:
            return meter.create_counter(f"ratebound.client.{name}", unit, text)

        def histogram(name: str, text: str) -> Any:
            full = f"ratebound.client.{name}"
            return meter.create_histogram(full, "s", text, explicit_bucket_boundaries_advisory=WAITS)

        self._requests = counter("requests", "{request}", "Requests sent, retries included")
        self._retries = counter("retries", "{retry}", "Retries, by the reason of the last failure")
        self._given_up = counter("given_up", "{call}", "Failed calls that were not retried (again)")
        self._budget = counter("budget_refusals", "{retry}", "Retries left out because the budget was used up")
        self._seconds = histogram("request.duration", "Time until the headers of an answer, or an error")
        self._waits = histogram("wait.duration", "Waits before requests, for a turn or a retry")
        meter.create_observable_gauge(
            "ratebound.client.circuit.open",
            [self._circuits],
            "1",
            "1 while an API is not called because its last calls failed",
        )

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def __call__(self, event: CallEvent) -> None:
        label = self._labels.origin(event.origin)
        origin = {"ratebound.origin": label}
        if isinstance(event, Attempted):
            self._requests.add(1, {**origin, "ratebound.result": result_of(event)})
            self._seconds.record(event.seconds, origin)
        elif isinstance(event, Retrying):
            reason = self._labels.reason(event.reason)
            self._retries.add(1, {**origin, "ratebound.reason": reason})
            self._waits.record(event.wait, {**origin, "ratebound.cause": "retry"})
            self._add_to_span("ratebound.retry", {"ratebound.reason": event.reason, "ratebound.wait": event.wait})
        elif isinstance(event, Paced):
            self._waits.record(event.seconds, {**origin, "ratebound.cause": "pacing"})
        elif isinstance(event, GaveUp):
            self._given_up.add(1, {**origin, "ratebound.obstacle": event.obstacle})
            found = {"ratebound.obstacle": event.obstacle, "ratebound.attempts": event.attempts}
            self._add_to_span("ratebound.gave_up", found)
        elif isinstance(event, BudgetExhausted):
            self._budget.add(1, origin)
        elif isinstance(event, CircuitOpened | CircuitClosed):
            with self._lock:
                self._open[label] = isinstance(event, CircuitOpened)

    def _add_to_span(self, name: str, attributes: dict[str, Any]) -> None:
        span = trace.get_current_span() if self._spans else None
        if span is not None and span.is_recording():
            span.add_event(name, attributes)

    def _circuits(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        with self._lock:
            found = dict(self._open)
        return [metrics.Observation(int(is_open), {"ratebound.origin": origin}) for origin, is_open in found.items()]
