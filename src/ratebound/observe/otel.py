"""A listener for OpenTelemetry: metrics, and an event on the current span. Only its API is used.

The instruments are those of prometheus.py with OpenTelemetry's names. Attributes are bounded in the same way and never
hold a key.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ratebound.decision import Decision
from ratebound.events import (
    BlockBegan,
    Called,
    Decided,
    Degraded,
    Event,
    PressureChanged,
    Recovered,
    RequestShed,
    Shadowed,
    Struck,
    Warned,
)
from ratebound.fork import renew_in_children
from ratebound.from_extra import from_extra
from ratebound.observe.label import (
    IN_FLIGHT,
    SECONDS,
    SHARES,
    checked_limits,
    checked_most,
    label_of,
    node_label,
    used_share,
)
from ratebound.observe.memory_usage import MemoryUse, WatchedMemory
from ratebound.outcome import DegradedRows

with from_extra("otel", opentelemetry="opentelemetry-api"):
    from opentelemetry import metrics, trace

Attributes = dict[str, str | bool]


class OpenTelemetryListener:
    """A listener that writes metrics to OpenTelemetry, and adds denials and degraded decisions to the current span.

    Args:
        meter_provider: Where the metrics are written. None means the global provider.
        spans: False if denials and degraded decisions are not added to the current span.
        max_limits: The number of names of limits, and of rules, that get a label of their own. The rest are "other".
        max_nodes: The number of names of nodes that get a label of their own. The rest are "other".

    Raises:
        ValueError: A number is not positive.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.observe.otel import OpenTelemetryListener
        >>> limiter = Limiter("100/minute", listeners=[OpenTelemetryListener(spans=False)])
    """

    def __init__(
        self,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        spans: bool = True,
        max_limits: int = 200,
        max_nodes: int = 100,
    ) -> None:
        self._spans = spans
        self._max_limits = checked_most("max_limits", max_limits)
        self._max_nodes = checked_most("max_nodes", max_nodes)
        self._of_limit: dict[str, Attributes] = {}
        self._of_node: dict[str, Attributes] = {}
        self._of_rule: dict[str, Attributes] = {}
        self._held = WatchedMemory()
        self._open: dict[str, bool] = {}
        self._factors: Mapping[str, float] = {}
        self.renew()
        renew_in_children(self)

        meter = metrics.get_meter("ratebound", meter_provider=meter_provider)

        def counter(name: str, unit: str, text: str) -> Any:
            return meter.create_counter(f"ratebound.{name}", unit, text)

        def histogram(name: str, unit: str, text: str, bounds: tuple[float, ...]) -> Any:
            return meter.create_histogram(f"ratebound.{name}", unit, text, explicit_bucket_boundaries_advisory=bounds)

        self._decisions = counter("decisions", "{decision}", "Decisions, by the limit that was decisive")
        self._shadows = counter("shadow.decisions", "{decision}", "Answers of rules in shadow and candidate limits")
        self._overage = counter("overage", "{unit}", "Units above a metered quota, when they were charged")
        self._consequences = {
            Struck: counter("strikes", "{strike}", "Strikes that penalties counted"),
            BlockBegan: counter("blocks", "{block}", "Blocks that penalties began"),
            Warned: counter("warnings", "{warning}", "Crossings of the share at which a limit warns"),
        }
        self._seconds = histogram("decision.duration", "s", "Time of a decision, including the storage", SECONDS)
        self._used = histogram("used_share", "1", "Used share of each limit after an allowed decision", SHARES)
        self._calls = histogram("storage.call.duration", "s", "Time of a call to a storage, failed or not", SECONDS)
        self._errors = counter("storage.errors", "{call}", "Calls to a storage that gave no answer")
        self._degradations = counter("degradations", "{degradation}", "Outages of a node")
        self._recoveries = counter("recoveries", "{recovery}", "Recoveries of a node")
        self._degraded_seconds = counter("degraded.duration", "s", "Time without a node, counted at its recovery")
        self._written_back = counter("written_back", "{unit}", "Units granted in an outage and charged afterwards")
        self._shed = counter("shed", "{request}", "Requests turned away because the process is overloaded")
        meter.create_observable_gauge(
            "ratebound.limit.factor",
            [self._factors_now],
            "1",
            "The part of their limits that rules of this priority have now; 1 as configured",
        )
        meter.create_observable_gauge(
            "ratebound.breaker.open", [self._breakers], "1", "1 while decisions are made without this node"
        )
        meter.create_observable_gauge(
            "ratebound.keys", [self._reading(lambda held: held.keys)], "{key}", "States held in memory"
        )
        meter.create_observable_gauge(
            "ratebound.max_keys", [self._reading(lambda held: held.max_keys)], "{key}", "States that memory may hold"
        )
        meter.create_observable_counter(
            "ratebound.evicted_keys",
            [self._reading(lambda held: held.evicted)],
            "{key}",
            "States dropped to make room",
        )
        meter.create_observable_counter(
            "ratebound.overflowed_checks",
            [self._reading(lambda held: held.overflowed)],
            "{check}",
            "Checks answered from a shared state because memory is full of denying keys",
        )

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided):
            self._seconds.record(event.seconds)
            self._decided(event.decision)
        elif isinstance(event, Called):
            node = self._node(event.node)
            self._calls.record(event.seconds, node)
            if event.error is not None:
                self._errors.add(1, node)
        elif isinstance(event, Struck | BlockBegan | Warned):
            self._consequences[type(event)].add(1, self._limit(event.limit.name))
        elif isinstance(event, Degraded):
            node = self._node(event.node, open_now=True)
            self._degradations.add(1, node)
        elif isinstance(event, Recovered):
            node = self._node(event.node, open_now=False)
            self._recoveries.add(1, node)
            self._degraded_seconds.add(event.seconds, node)
            self._written_back.add(event.written_back, node)
        elif isinstance(event, Shadowed):
            rule = label_of(event.rule, self._of_rule, self._max_limits, lambda name: {"ratebound.rule": name})
            result = "allowed" if event.allowed else "denied"
            self._shadows.add(1, {**rule, "ratebound.candidate": event.candidate, "ratebound.result": result})
        elif isinstance(event, PressureChanged):
            self._factors = event.factors
        elif isinstance(event, RequestShed):
            self._shed.add(1, self._limit(IN_FLIGHT))

    def watch(self, owner: object, *, name: str) -> None:
        """Export the size of the memory, or shared memory, that `owner` counts in, as `ratebound.storage`.

        Args:
            owner: A storage, a limiter, a gate, or the limits or the middleware of a web application.
            name: The value of the attribute.

        Raises:
            ValueError: The owner has no memory, or another storage has that name.
        """
        self._held.watch(owner, name)

    def _decided(self, decision: Decision) -> None:
        rows = decision.rows
        name = decision.limit.name
        degraded = isinstance(rows, DegradedRows)
        attributes: Attributes = {
            **self._limit(name),
            "ratebound.result": "allowed" if decision.allowed else "denied",
            "ratebound.degraded": degraded,
        }
        self._decisions.add(1, attributes)
        if decision.shed:
            self._shed.add(1, self._limit(name))
        if decision.allowed and not degraded:
            for limit, row in zip(checked_limits(decision), rows, strict=True):
                if not limit.is_penalty:
                    self._used.record(used_share(limit, row), self._limit(limit.name))
                if limit.over == "allow" and row[7] > 0:
                    self._overage.add(row[7], self._limit(limit.name))
        elif self._spans:
            span = trace.get_current_span()
            if span.is_recording():
                span.add_event("ratebound.decision", _span_attributes(decision, attributes, name))

    def _limit(self, name: str) -> Attributes:
        return label_of(name, self._of_limit, self._max_limits, lambda name: {"ratebound.limit": name})

    def _node(self, name: str, open_now: bool | None = None) -> Attributes:
        node = label_of(node_label(name), self._of_node, self._max_nodes, lambda name: {"ratebound.node": name})
        label = str(node["ratebound.node"])
        if open_now is not None or label not in self._open:
            with self._lock:
                if open_now is None:
                    self._open.setdefault(label, False)  # a call may be reported after the outage that it caused
                else:
                    self._open[label] = open_now
        return node

    def _factors_now(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(factor, {"ratebound.priority": priority}) for priority, factor in self._factors.items()
        ]

    def _breakers(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        with self._lock:
            nodes = dict(self._open)
        return [metrics.Observation(int(is_open), {"ratebound.node": node}) for node, is_open in nodes.items()]

    def _reading(
        self, read: Callable[[MemoryUse], int]
    ) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        return lambda _: [
            metrics.Observation(read(holding), {"ratebound.storage": holding.name}) for holding in self._held.now()
        ]


def _span_attributes(decision: Decision, attributes: Attributes, limit: str) -> dict[str, str | bool | float]:
    """Return the attributes of a span event.

    Spans are not time series, so they may hold any limit's name and the reason.
    """
    found: dict[str, str | bool | float] = {**attributes, "ratebound.limit": limit}
    if decision.retry_after is not None and not decision.limit.has_slots:  # a lease is no time to wait for
        found["ratebound.retry_after"] = decision.retry_after
    if decision.blocked:
        found["ratebound.blocked"] = True
    if decision.degraded is not None:
        found["ratebound.reason"] = decision.degraded
    return found
