"""What is logged, counted and traced about calls: never a path, a query, a header or the text of an error."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from ratebound.client import CircuitBreaker, Retry
from ratebound.client.call import CallOptions
from ratebound.client.call_events import (
    BECAUSE,
    Attempted,
    BudgetExhausted,
    CallEvent,
    CircuitClosed,
    CircuitOpened,
    GaveUp,
    Paced,
    Retrying,
)
from ratebound.client.call_log import CallLogListener
from ratebound.client.otel import OpenTelemetryCallListener
from ratebound.client.prometheus import PrometheusCallListener
from ratebound.testing import FakeClock
from tests.client.exchanges import ConnectionLost, Scripted, ScriptedExchange, Time, made

API = "https://api.example.com"
STORY: list[CallEvent] = [
    Paced(API, 0.5),
    Attempted(API, "GET", 1, 503, "", 0.2),
    Retrying(API, "GET", 1, "overloaded", 2.0, 2.0),
    Attempted(API, "GET", 2, 0, "timeout", 5.0),
    Retrying(API, "GET", 2, "timeout", 1.0, None),
    Attempted(API, "GET", 3, 429, "", 0.1),
    BudgetExhausted(API),
    GaveUp(API, "GET", 3, "rate", "budget", 3.5),
    CircuitOpened(API, 4.0),
]


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Return the points of each metric by the values of their attributes: a value, or (count, sum)."""
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple[Any, ...], Any]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        name = metric.name.removeprefix("ratebound.client.")
        for point in metric.data.data_points:
            value = getattr(point, "value", None)
            attributes = tuple((point.attributes or {}).values())
            found.setdefault(name, {})[attributes] = (point.count, point.sum) if value is None else value  # type: ignore[union-attr]
    return found


def test_prometheus_counts_requests_retries_refusals_of_the_budget_and_waits() -> None:
    registry = CollectorRegistry()
    listener = PrometheusCallListener(registry)
    for event in STORY:
        listener(event)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ratebound_client_{name}", {"origin": API, **labels})

    assert [value("requests_total", result=result) for result in ("5xx", "error", "429")] == [1, 1, 1]
    assert [value("retries_total", reason=reason) for reason in ("overloaded", "timeout")] == [1, 1]
    assert value("given_up_total", obstacle="budget") == 1
    assert value("budget_refusals_total") == 1
    assert value("wait_seconds_sum", cause="retry") == 3.0
    assert value("wait_seconds_sum", cause="pacing") == 0.5
    assert value("request_seconds_count") == 3
    assert value("circuit_open") == 1
    listener(CircuitClosed(API, 9.0))
    assert value("circuit_open") == 0


def test_opentelemetry_has_the_same_figures(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    listener = OpenTelemetryCallListener(provider)
    for event in STORY:
        listener(event)
    assert points(reader) == {
        "requests": {(API, "5xx"): 1, (API, "error"): 1, (API, "429"): 1},
        "retries": {(API, "overloaded"): 1, (API, "timeout"): 1},
        "given_up": {(API, "budget"): 1},
        "budget_refusals": {(API,): 1},
        "request.duration": {(API,): (3, pytest.approx(5.3))},
        "wait.duration": {(API, "pacing"): (1, 0.5), (API, "retry"): (2, 3.0)},
        "circuit.open": {(API,): 1},
    }


def test_retries_are_events_of_the_current_span(provider: MeterProvider) -> None:
    exporter = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    listener = OpenTelemetryCallListener(provider)
    with tracing.get_tracer("test").start_as_current_span("call"):
        for event in STORY:
            listener(event)
    (span,) = exporter.get_finished_spans()
    assert [event.name for event in span.events] == ["ratebound.retry", "ratebound.retry", "ratebound.gave_up"]
    tracing.shutdown()


def test_origins_and_reasons_are_bounded_in_number() -> None:
    registry = CollectorRegistry()
    listener = PrometheusCallListener(registry, max_origins=3)
    for number in range(1000):
        listener(Attempted(f"https://{number}.example.com", "GET", 1, 200, "", 0.1))
        listener(Retrying(API, "GET", 1, f"reason {number}", 0.1, None))
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert len({sample.labels["origin"] for sample in samples}) == 4
    assert len({sample.labels.get("reason") for sample in samples}) <= 52


@pytest.mark.parametrize("make", [PrometheusCallListener, OpenTelemetryCallListener])
def test_a_wrong_bound_is_named(make: Any) -> None:
    with pytest.raises(ValueError, match="max_origins must be a positive whole number, not 0"):
        make(max_origins=0)


def test_the_log_has_a_line_for_each_retry_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    exchange = ScriptedExchange(time, [Scripted(429, (("Retry-After", "2"),)), ConnectionLost("closed")])
    url = "https://user:secret@api.example.com/secret?key=secret"
    with caplog.at_level(logging.DEBUG, "ratebound.client"), pytest.raises(ConnectionLost):
        made(exchange, url=url, random=0.0, retry=Retry(attempts=2), listeners=[CallLogListener()])
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "retry GET to https://api.example.com in 2 s: rate") in lines
    assert lines[-1][0] == "WARNING"
    assert lines[-1][1].startswith("gave up GET to https://api.example.com after 2 attempts")
    assert "user" not in caplog.text
    assert "secret" not in caplog.text


def test_an_outage_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    listener = CallLogListener(per_minute=5, clock=clock)
    with caplog.at_level(logging.INFO, "ratebound.client"):
        for _ in range(1000):
            listener(STORY[2])
        assert len(caplog.records) == 5
        clock.now += 60_000_000
        listener(STORY[2])
    assert "995 more like this were not logged" in caplog.records[-1].getMessage()


def test_words_from_servers_cannot_forge_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ratebound.client"):
        for event in (
            Retrying("https://a\x1b[31m", "GET\n", 1, "bad\nWARNING forged", 1.0, None),
            Attempted("https://a\n", "GET", 1, 0, "%s\n\x1b", 1.0),
            GaveUp(API, "GET", 1, "bad\r\n", "new\n obstacle %d", 1.0),
        ):
            CallLogListener()(event)
    assert len(caplog.records) == 3
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_every_obstacle_has_words() -> None:
    assert set(BECAUSE) == {"attempts", "within", "budget", "circuit", "body", "method", "server"}


def test_another_log_takes_the_place_of_the_usual_one() -> None:
    mine = CallLogListener(logging.getLogger("mine"))
    assert CallOptions({"pacer": None, "listeners": [mine]}).listeners == (mine,)
    assert len(CallOptions({"pacer": None, "listeners": [print]}).listeners) == 2


def test_a_circuit_is_logged_when_it_opens_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    log = [CallLogListener()]  # of its own: all clients share the budget of the usual one
    breaker = CircuitBreaker(failures=1, clock=time)
    made(ScriptedExchange(time, [Scripted(500)]), breaker=breaker, listeners=log)
    time.now += 10
    made(ScriptedExchange(time, [Scripted(200)]), breaker=breaker, listeners=log)
    assert "https://api.example.com is down" in caplog.text
    assert "https://api.example.com answers again after" in caplog.text
