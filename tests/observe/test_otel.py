"""What OpenTelemetry exports: the same as Prometheus, and an event on the span of a request that was denied."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ratebound import Check, Limiter, MemoryStorage, StorageError, parse_limit
from ratebound.events import Called, Degraded, Recovered, Shadowed
from ratebound.observe.label import SECONDS
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import refusal, told, without_storage


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def listener(provider: MeterProvider) -> OpenTelemetryListener:
    return OpenTelemetryListener(provider)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[Any, ...], Any]]:
    """By metric, then by the values of the attributes in the order of their names: a number, or (count, sum)."""
    found: dict[str, dict[tuple[Any, ...], Any]] = {}
    collected = reader.get_metrics_data()
    for metric in collected.resource_metrics[0].scope_metrics[0].metrics if collected else ():
        for point in metric.data.data_points:
            attributes = tuple(found_value for _, found_value in sorted((point.attributes or {}).items()))
            is_histogram = isinstance(metric.data, Histogram)
            amount = (point.count, point.sum) if is_histogram else point.value  # type: ignore[union-attr]
            found.setdefault(metric.name, {})[attributes] = amount
    return found


def test_every_event_is_counted(
    reader: InMemoryMetricReader, listener: OpenTelemetryListener, clock: FakeClock
) -> None:
    limiter = limiter_of("2/minute as login", clock)
    for _ in range(3):
        listener(told(limiter.hit("user:42"), 0.25))
    listener(told(without_storage(limiter.hit("user:42")), 0.25))
    listener(Called("a:1", 0.25, None))
    listener(Called("a:1", 0.5, StorageError("gone")))
    listener(Called("b:1", 0.5, None))
    listener(Degraded("a:1", "gone"))
    during = points(reader)
    assert during["ratebound.breaker.open"] == {("a:1",): 1, ("b:1",): 0}
    listener(Recovered("a:1", 7.5, 40))
    listener(Shadowed("exports", candidate=True, allowed=False))
    found = points(reader)
    assert found == {
        "ratebound.decisions": {
            (False, "login", "allowed"): 2,
            (False, "login", "denied"): 1,
            (True, "login", "denied"): 1,
        },
        "ratebound.shadow.decisions": {(True, "denied", "exports"): 1},
        "ratebound.decision.duration": {(): (4, 1.0)},
        "ratebound.used_share": {("login",): (2, 1.5)},
        "ratebound.storage.call.duration": {("a:1",): (2, 0.75), ("b:1",): (1, 0.5)},
        "ratebound.storage.errors": {("a:1",): 1},
        "ratebound.breaker.open": {("a:1",): 0, ("b:1",): 0},
        "ratebound.degradations": {("a:1",): 1},
        "ratebound.recoveries": {("a:1",): 1},
        "ratebound.degraded.duration": {("a:1",): 7.5},
        "ratebound.written_back": {("a:1",): 40},
    }


def test_durations_are_sorted_into_buckets_that_fit(
    reader: InMemoryMetricReader, listener: OpenTelemetryListener, clock: FakeClock
) -> None:
    listener(told(limiter_of("2/minute", clock).hit("k"), 0.000_02))
    collected = reader.get_metrics_data()
    assert collected is not None
    metrics = {metric.name: metric for metric in collected.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = metrics["ratebound.decision.duration"].data.data_points
    assert tuple(point.explicit_bounds) == SECONDS  # type: ignore[union-attr]
    assert list(point.bucket_counts).index(1) == 2  # type: ignore[union-attr]


def test_watched_memory_shows_what_it_holds(
    reader: InMemoryMetricReader, listener: OpenTelemetryListener, clock: FakeClock
) -> None:
    limiter = Limiter("1/hour", storage=MemoryStorage(max_keys=2, clock=clock))
    listener.watch(limiter, name="api")
    for key in "abc":
        limiter.hit(key)
    found = points(reader)
    assert found == {
        "ratebound.keys": {("api",): 2},
        "ratebound.max_keys": {("api",): 2},
        "ratebound.evicted_keys": {("api",): 0},
        "ratebound.overflowed_checks": {("api",): 1},
    }


def test_names_beyond_the_bound_are_counted_together(
    reader: InMemoryMetricReader, provider: MeterProvider, clock: FakeClock
) -> None:
    listener = OpenTelemetryListener(provider, max_limits=2, max_nodes=1)
    limiter = limiter_of("1/hour", clock)
    for i in range(10):
        listener(told(limiter.check(Check("k", parse_limit(f"{i + 1}/hour as limit-{i}")))))
        listener(Degraded(f"node-{i}", "gone"))
    found = points(reader)
    assert found["ratebound.used_share"].keys() == {("limit-0",), ("limit-1",), ("other",)}
    assert found["ratebound.breaker.open"] == {("node-0",): 1, ("other",): 1}


def test_refusals_and_degraded_decisions_are_events_of_the_current_span(
    listener: OpenTelemetryListener, traces: TracerProvider, spans: InMemorySpanExporter, clock: FakeClock
) -> None:
    limiter = limiter_of("2/minute as login", clock)
    with traces.get_tracer("test").start_as_current_span("request"):
        listener(told(limiter.hit("user:42")))
        listener(told(without_storage(limiter.hit("user:42"), "timed out")))
        listener(told(limiter.hit("user:42")))
        listener(told(limiter.hit("user:42", cost=3)))
    (span,) = spans.get_finished_spans()
    assert [event.name for event in span.events] == ["ratebound.decision"] * 3
    assert [dict(event.attributes or {}) for event in span.events] == [
        {
            "ratebound.limit": "login",
            "ratebound.result": "allowed",
            "ratebound.degraded": True,
            "ratebound.retry_after": 0.0,
            "ratebound.reason": "timed out",
        },
        {
            "ratebound.limit": "login",
            "ratebound.result": "denied",
            "ratebound.degraded": False,
            "ratebound.retry_after": 60.0,
        },
        {"ratebound.limit": "login", "ratebound.result": "denied", "ratebound.degraded": False},
    ]


def test_spans_can_be_left_alone(
    provider: MeterProvider, traces: TracerProvider, spans: InMemorySpanExporter, clock: FakeClock
) -> None:
    denied = told(refusal(limiter_of("1/minute", clock), "k"))
    with traces.get_tracer("test").start_as_current_span("request"):
        OpenTelemetryListener(provider, spans=False)(denied)
    assert [span.events for span in spans.get_finished_spans()] == [()]


def test_no_key_is_ever_exported(
    reader: InMemoryMetricReader,
    listener: OpenTelemetryListener,
    traces: TracerProvider,
    spans: InMemorySpanExporter,
    clock: FakeClock,
) -> None:
    limiter = limiter_of("1/hour as login; 5/hour", clock)
    listener.watch(limiter, name="api")
    with traces.get_tracer("test").start_as_current_span("request"):
        listener(told(limiter.hit("secret@example.com")))
        listener(told(refusal(limiter, "secret@example.com")))
    (span,) = spans.get_finished_spans()
    assert len(span.events) == 1
    assert "secret" not in f"{reader.get_metrics_data()} {span.to_json()}"


def test_without_a_provider_it_goes_to_the_global_one_and_does_no_harm(clock: FakeClock) -> None:
    listener = OpenTelemetryListener()
    listener(told(refusal(limiter_of("1/minute", clock), "k")))
    listener(Degraded("a:1", "gone"))
    listener(Recovered("a:1", 1.0, 0))
