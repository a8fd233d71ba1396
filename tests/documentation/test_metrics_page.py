"""The page of metrics has exactly what is exported: names, types, labels, units and attributes."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader
from prometheus_client import CollectorRegistry

from ratebound import Limiter, StorageError
from ratebound.client.call_events import Attempted, BudgetExhausted, CallEvent, CircuitOpened, GaveUp, Paced, Retrying
from ratebound.client.otel import OpenTelemetryCallListener
from ratebound.client.prometheus import PrometheusCallListener
from ratebound.events import BlockBegan, Called, Decided, Degraded, PressureChanged, Recovered, Shadowed, Struck, Warned
from ratebound.ledger import Ledger
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from ratebound.service.metrics import WorkerMetrics, ledger_families
from tests.documentation.messages import trees
from tests.documentation.pages import ROOT, read
from tests.observe.test_deploy import shed

PAGE = "docs/reference/metrics.md"
ORIGIN = "https://api.example.org"
CALLS: list[CallEvent] = [
    Attempted(ORIGIN, "GET", 1, 200, "", 0.1),
    Retrying(ORIGIN, "GET", 1, "503", 0.1, None),
    GaveUp(ORIGIN, "GET", 2, "503", "attempts", 0.1),
    BudgetExhausted(ORIGIN),
    Paced(ORIGIN, 0.1),
    CircuitOpened(ORIGIN, 1.0),
]


class Metric(NamedTuple):
    """A metric, or an instrument with its unit."""

    kind: str
    labels: frozenset[str]
    unit: str = ""


def rows(heading: str) -> list[list[str]]:
    """Return the cells of all tables whose first column has this heading, without marks of code."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def names_in(cell: str) -> frozenset[str]:
    return frozenset(filter(None, cell.split(", ")))


def tell(listener: Any, limiter: Limiter) -> None:
    """Tell a listener of every kind of event, so that it exports everything."""
    listener.watch(limiter, name="api")
    decision = limiter.hit("k")
    listener(Decided(decision, 0.1))
    listener(Decided(shed(), 0.1))
    listener(Decided(Limiter("1/calendar-day over allow").hit("k", cost=2), 0.1))
    listener(Struck(decision, decision.limit, 0, 1))
    listener(BlockBegan(decision, decision.limit, 0, 300.0))
    listener(Warned(decision, decision.limit, 0, 0))
    listener(Called("node", 0.1, StorageError("refused")))
    listener(Degraded("node", "refused"))
    listener(Recovered("node", 0.1, 1))
    listener(Shadowed("rule", False, True))
    listener(PressureChanged({"low": 0.5}))


def exported_to_prometheus() -> dict[str, Metric]:
    registry = CollectorRegistry()
    limiter, calls = Limiter("1/hour"), PrometheusCallListener(registry)  # kept: what is watched is held weakly
    tell(PrometheusListener(registry), limiter)
    for event in CALLS:
        calls(event)
    found = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = Metric(family.type, frozenset(labels))
    return found


def exported_by_the_service(ledger: Ledger) -> dict[str, Metric]:
    """Return what the service adds: from its workers, its ledger, and the control plane's own code."""
    metrics = WorkerMetrics(lambda event: None)
    metrics.counts_of("http")[b"200"] += 1
    found = {
        family["name"]: Metric(family["type"], frozenset(family["samples"][0][1]))
        for family in [*metrics.snapshot({"http": 1}), *ledger_families(ledger)]
        if family["name"].startswith(("ratebound_service_", "ratebound_ledger_"))
    }
    source = (ROOT / "src/ratebound/service/admin.py").read_text()
    build = re.search(r"build = \{(.*)\}", source)
    assert build is not None
    for name, kind, labels in re.findall(r'_own\("(\w+)", "(\w+)", (?:told|".*?"), (\{\}|build), ', source):
        names = re.findall(r'"(\w+)":', build[1]) if labels == "build" else []
        found[f"ratebound_service_{name}"] = Metric(kind, frozenset(names))
    return found


def exported_to_otel() -> dict[str, Metric]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    limiter, calls = Limiter("1/hour"), OpenTelemetryCallListener(provider)
    tell(OpenTelemetryListener(provider), limiter)
    for event in CALLS:
        calls(event)
    found = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        kind = {Histogram: "histogram", Gauge: "gauge"}.get(type(metric.data), "counter")
        labels = {label for point in metric.data.data_points for label in point.attributes or {}}
        found[metric.name] = Metric(kind, frozenset(labels), metric.unit or "")
    provider.shutdown()
    return found


def test_the_metrics_of_the_page_are_those_of_prometheus(tmp_path: Path) -> None:
    page = {name: Metric(kind, names_in(labels)) for name, kind, labels, _ in rows("Metric")}
    with Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name") as ledger:
        assert page == exported_to_prometheus() | exported_by_the_service(ledger)


def test_the_instruments_of_the_page_are_those_of_opentelemetry() -> None:
    page = {name: Metric(kind, names_in(labels), unit) for name, kind, unit, labels, _ in rows("Instrument")}
    assert page == exported_to_otel()


def test_every_instrument_names_its_twin() -> None:
    """The labels of the metric in Prometheus are the attributes of the instrument."""
    exported = exported_to_prometheus()
    for name, kind, _, labels, twin in rows("Instrument"):
        metric = exported.pop(twin)
        assert kind == metric.kind, name
        assert set(names_in(labels)) == {f"ratebound.{label}" for label in metric.labels}, name
    assert set(exported) == set()


def test_every_label_and_span_event_is_explained() -> None:
    exported = exported_to_prometheus().values()
    assert {label for metric in exported for label in metric.labels} == {row[0] for row in rows("Label")}
    source = "".join(path.read_text(encoding="utf-8") for path in trees() if path.name == "otel.py")
    events = set(re.findall(r'(?:add_event|_add_to_span)\("([\w.]+)"', source))
    assert events == {row[0] for row in rows("Span event")}
