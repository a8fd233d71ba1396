"""A listener for Prometheus: counters and histograms of decisions and storage calls.

Labels are names of limits, rules, nodes and watched storages, each bounded in number. They never hold a key: keys are
unbounded and personal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
from ratebound.from_extra import from_extra
from ratebound.limit import Limit
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
from ratebound.observe.memory_usage import WatchedMemory
from ratebound.outcome import DegradedRows, Row

with from_extra("prometheus", prometheus_client="prometheus-client"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

RESULTS = {True: "allowed", False: "denied"}
FLAGS = {True: "true", False: "false"}


@dataclass(frozen=True, slots=True)
class OfLimit:
    """The child metrics of one limit. Looking them up by their labels would cost more than counting."""

    allowed: Counter  # by the storage, as is `denied`
    denied: Counter
    decisions: dict[tuple[bool, bool], Counter]  # all four, by (allowed, degraded)
    used: Histogram


class OfNode(NamedTuple):
    """The child metrics of one node."""

    calls: Histogram
    errors: Counter
    breaker: Gauge
    degradations: Counter
    recoveries: Counter
    degraded_seconds: Counter
    written_back: Counter


OfRule = dict[tuple[bool, bool], Counter]  # by candidate and allowed


class PrometheusListener:
    """A listener that exports metrics to Prometheus. One is enough for all limiters of a process.

    Args:
        registry: The registry that exports the metrics. It accepts each metric name once.
        max_limits: The number of names of limits, and of rules, that get a label of their own. The rest are "other".
        max_nodes: The number of names of nodes that get a label of their own. The rest are "other".

    Raises:
        ValueError: The registry has these metrics already, or a number is not positive.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> from ratebound import Limiter
        >>> from ratebound.observe.prometheus import PrometheusListener
        >>> registry = CollectorRegistry()
        >>> limiter = Limiter("100/minute as api", listeners=[PrometheusListener(registry)])
        >>> decision = limiter.hit("user:42")
        >>> labels = {"limit": "api", "result": "allowed", "degraded": "false"}
        >>> registry.get_sample_value("ratebound_decisions_total", labels)
        1.0
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, max_limits: int = 200, max_nodes: int = 100) -> None:
        self._max_limits = checked_most("max_limits", max_limits)
        self._max_nodes = checked_most("max_nodes", max_nodes)
        self._of_limit: dict[str, OfLimit] = {}
        self._of_node: dict[str, OfNode] = {}
        self._of_rule: dict[str, OfRule] = {}
        self._of_metered: dict[str, Counter] = {}
        self._of_struck: dict[str, Counter] = {}
        self._of_blocked: dict[str, Counter] = {}
        self._of_warned: dict[str, Counter] = {}
        self._of_shed: dict[str, Counter] = {}
        self._held = WatchedMemory()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ratebound_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"ratebound_{name}", text, labels, buckets=buckets, registry=registry)

        self._decisions = counter(
            "decisions", "Decisions, by the limit that was decisive", "limit", "result", "degraded"
        )
        self._shadows = counter(
            "shadow_decisions",
            "Answers of rules in shadow and candidate limits",
            "rule",
            "candidate",
            "result",
        )
        self._overage = counter("overage", "Units above a metered quota, when they were charged", "limit")
        self._strikes = counter("strikes", "Strikes that penalties counted", "limit")
        self._blocks = counter("blocks", "Blocks that penalties began", "limit")
        self._warnings = counter("warnings", "Crossings of the share at which a limit warns", "limit")
        self._shed = counter("shed", "Requests turned away because the process is overloaded", "limit")
        self._factor = Gauge(
            "ratebound_limit_factor",
            "The part of their limits that rules of this priority have now; 1 as configured",
            ("priority",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._seconds = histogram("decision_seconds", "Time of a decision, including the storage", SECONDS)
        self._used = histogram("used_share", "Used share of each limit after an allowed decision", SHARES, "limit")
        self._calls = histogram("storage_call_seconds", "Time of a call to a storage, failed or not", SECONDS, "node")
        self._errors = counter("storage_errors", "Calls to a storage that gave no answer", "node")
        self._breaker = Gauge(
            "ratebound_breaker_open",
            "1 while decisions are made without this node",
            ("node",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._degradations = counter("degradations", "Outages of a node", "node")
        self._recoveries = counter("recoveries", "Recoveries of a node", "node")
        self._degraded_seconds = counter("degraded_seconds", "Time without a node, counted at its recovery", "node")
        self._written_back = counter("written_back_units", "Units granted in an outage and charged afterwards", "node")
        registry.register(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided):
            self._seconds.observe(event.seconds)
            self._decided(event.decision)
        elif isinstance(event, Called):
            node = self._node(event.node)
            node.calls.observe(event.seconds)
            if event.error is not None:
                node.errors.inc()
        elif isinstance(event, Struck):
            self._count(event.limit.name, self._of_struck, self._strikes)
        elif isinstance(event, BlockBegan):
            self._count(event.limit.name, self._of_blocked, self._blocks)
        elif isinstance(event, Warned):
            self._count(event.limit.name, self._of_warned, self._warnings)
        elif isinstance(event, Degraded):
            node = self._node(event.node)
            node.breaker.set(1)
            node.degradations.inc()
        elif isinstance(event, Recovered):
            node = self._node(event.node)
            node.breaker.set(0)
            node.recoveries.inc()
            node.degraded_seconds.inc(event.seconds)
            node.written_back.inc(event.written_back)
        elif isinstance(event, Shadowed):
            rule = label_of(event.rule, self._of_rule, self._max_limits, self._children_of_rule)
            rule[event.candidate, event.allowed].inc()
        elif isinstance(event, PressureChanged):
            for priority, factor in event.factors.items():
                self._factor.labels(priority).set(factor)
        elif isinstance(event, RequestShed):
            self._count(IN_FLIGHT, self._of_shed, self._shed)

    def watch(self, owner: object, *, name: str) -> None:
        """Export the size of the memory, or shared memory, that `owner` counts in, under the label `storage`.

        Args:
            owner: A storage, a limiter, a gate, or the limits or the middleware of a web application.
            name: The value of the label.

        Raises:
            ValueError: The owner has no memory, or another storage has that name.
        """
        self._held.watch(owner, name)

    def collect(self) -> Iterator[Metric]:
        """Yield the sizes of the watched storages. The registry calls this at each scrape."""
        held = self._held.now()
        keys = GaugeMetricFamily("ratebound_keys", "States held in memory", labels=["storage"])
        most = GaugeMetricFamily("ratebound_max_keys", "States that memory may hold", labels=["storage"])
        evicted = CounterMetricFamily("ratebound_evicted_keys", "States dropped to make room", labels=["storage"])
        overflowed = CounterMetricFamily(
            "ratebound_overflowed_checks",
            "Checks answered from a shared state because memory is full of denying keys",
            labels=["storage"],
        )
        for holding in held:
            keys.add_metric([holding.name], holding.keys)
            most.add_metric([holding.name], holding.max_keys)
            evicted.add_metric([holding.name], holding.evicted)
            overflowed.add_metric([holding.name], holding.overflowed)
        yield from (keys, most, evicted, overflowed)

    def _decided(self, decision: Decision) -> None:
        rows = decision.rows
        limit = decision.limit
        known = self._of_limit  # looked up here first: a call of `_limit` takes as long as all the rest
        of_limit = known.get(limit.name) or self._limit(limit.name)
        if isinstance(rows, DegradedRows):
            of_limit.decisions[decision.allowed, True].inc()
            if decision.shed:
                self._count(limit.name, self._of_shed, self._shed)
        elif not decision.allowed:
            of_limit.denied.inc()
            if decision.shed:
                self._count(limit.name, self._of_shed, self._shed)
        elif len(rows) == 1:
            of_limit.allowed.inc()
            if not limit.is_watched or not limit.is_penalty:
                of_limit.used.observe(used_share(limit, rows[0]))
            if limit.over == "allow":
                self._count_overage(limit, rows[0])
        else:
            of_limit.allowed.inc()
            for limit, row in zip(checked_limits(decision), rows, strict=True):
                if limit.is_watched and limit.is_penalty:
                    continue
                of_limit = known.get(limit.name) or self._limit(limit.name)
                of_limit.used.observe(used_share(limit, row))
                if limit.over == "allow":
                    self._count_overage(limit, row)

    def _count_overage(self, limit: Limit, row: Row) -> None:
        if row[7] > 0:
            label_of(limit.name, self._of_metered, self._max_limits, self._overage.labels).inc(int(row[7]))

    def _count(self, limit: str, made: dict[str, Counter], counter: Counter) -> None:
        label_of(limit, made, self._max_limits, counter.labels).inc()

    def _limit(self, name: str) -> OfLimit:
        return label_of(name, self._of_limit, self._max_limits, self._children_of_limit)

    def _children_of_limit(self, name: str) -> OfLimit:
        decisions = {
            (allowed, degraded): self._decisions.labels(name, RESULTS[allowed], FLAGS[degraded])
            for allowed in (True, False)
            for degraded in (True, False)
        }
        return OfLimit(decisions[True, False], decisions[False, False], decisions, self._used.labels(name))

    def _children_of_rule(self, name: str) -> OfRule:
        return {
            (candidate, allowed): self._shadows.labels(name, FLAGS[candidate], RESULTS[allowed])
            for candidate in (True, False)
            for allowed in (True, False)
        }

    def _node(self, name: str) -> OfNode:
        return label_of(node_label(name), self._of_node, self._max_nodes, self._children_of_node)

    def _children_of_node(self, name: str) -> OfNode:
        """Return the metrics of a node, all made at once, so that a node that never failed shows zeros."""
        return OfNode(
            self._calls.labels(name),
            self._errors.labels(name),
            self._breaker.labels(name),
            self._degradations.labels(name),
            self._recoveries.labels(name),
            self._degraded_seconds.labels(name),
            self._written_back.labels(name),
        )
