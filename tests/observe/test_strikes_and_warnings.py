"""Every listener takes strikes, blocks and warnings; no listener shows a key unless it is told to."""

import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from ratebound import Limiter, MemoryStorage
from ratebound.clock import SECOND
from ratebound.events import Listener
from ratebound.observe import AlertListener, BlockedClient, LogListener, TopListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from ratebound.testing import FakeClock

TEXT = "2/hour as login; 9 distinct account/hour as accounts; 2 strikes/hour block 5 minutes then 1 hour as guessing"


def attack(clock: FakeClock, listener: Listener, key: str = "203.0.113.7") -> Limiter:
    """Two requests pass, which warns; two are denied, which are strikes; the second begins a block; two are blocked."""
    limiter = Limiter(TEXT, storage=MemoryStorage(clock=clock), listeners=[listener], warn="100%")
    for _ in range(6):
        limiter.hit(key, values={"account": "alice"})
        clock.now += SECOND
    return limiter


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def test_prometheus_counts_strikes_blocks_and_warnings_by_limit(clock: FakeClock, registry: CollectorRegistry) -> None:
    attack(clock, PrometheusListener(registry))

    def total(name: str, limit: str) -> float | None:
        return registry.get_sample_value(f"ratebound_{name}_total", {"limit": limit})

    assert total("strikes", "guessing") == 2
    assert total("blocks", "guessing") == 1
    assert total("warnings", "login") == 1
    assert total("warnings", "accounts") is None
    share = registry.get_sample_value("ratebound_used_share_count", {"limit": "guessing"})
    assert share == 0, "a penalty has no share"
    assert registry.get_sample_value("ratebound_used_share_count", {"limit": "accounts"}) == 2


def test_their_labels_are_bounded(clock: FakeClock, registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry, max_limits=1)
    for name in ("x", "y"):
        limiter = Limiter(f"1/hour; 1 strike/hour block 5 minutes as {name}", storage=MemoryStorage(clock=clock))
        limiter.listen(listener)
        limiter.hit("a")
        limiter.hit("a")
    blocks = [registry.get_sample_value("ratebound_blocks_total", {"limit": label}) for label in ("x", "y", "other")]
    assert blocks == [1, None, 1]


def test_opentelemetry_counts_the_same_and_marks_spans(clock: FakeClock) -> None:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    provider, tracing = MeterProvider([reader], shutdown_on_exit=False), TracerProvider(shutdown_on_exit=False)
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    with tracing.get_tracer("test").start_as_current_span("request"):
        attack(clock, OpenTelemetryListener(provider))
    collected = reader.get_metrics_data()
    assert collected is not None
    metrics = {metric.name: metric for metric in collected.resource_metrics[0].scope_metrics[0].metrics}

    def counted(name: str) -> dict[Any, Any]:
        points: Any = metrics[f"ratebound.{name}"].data.data_points
        return {point.attributes["ratebound.limit"]: point.value for point in points}

    assert counted("strikes") == {"guessing": 2}
    assert counted("blocks") == {"guessing": 1}
    assert counted("warnings") == {"login": 1}
    (span,) = spans.get_finished_spans()
    blocked = [(event.attributes or {}).get("ratebound.blocked") for event in span.events]
    assert blocked == [None, True, True, True]
    provider.shutdown()


def test_the_log_tells_them_with_digests(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    attack(clock, LogListener(clock=clock))
    kinds = [(record.levelname, record.ratebound_event) for record in caplog.records]  # type: ignore[attr-defined]
    assert kinds == [
        ("WARNING", "warned"),
        ("INFO", "denied"),
        ("INFO", "struck"),
        ("INFO", "denied"),
        ("INFO", "struck"),
        ("WARNING", "block_began"),
        ("INFO", "denied"),
        ("INFO", "denied"),
    ]
    texts = [record.getMessage() for record in caplog.records]
    assert "203.0.113.7" not in caplog.text
    assert "alice" not in caplog.text
    assert "has used 100% of login" in texts[0]
    assert "strike for" in texts[2]
    assert "by guessing, 1 more until a block" in texts[2]
    assert "by guessing for 300 s" in texts[5]
    assert "by guessing, blocked, retry after 3596 s" in texts[-2]
    digests = {record.ratebound_key for record in caplog.records}  # type: ignore[attr-defined]
    assert len(digests) == 1


def test_the_log_shows_keys_if_it_is_asked_to(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    attack(clock, LogListener(clear=True, clock=clock))
    assert "blocked 203.0.113.7 by guessing for 300 s" in [record.getMessage() for record in caplog.records]


def test_without_denials_the_log_tells_blocks_and_warnings(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    attack(clock, LogListener(denials=False, clock=clock))
    assert [record.ratebound_event for record in caplog.records] == ["warned", "block_began"]  # type: ignore[attr-defined]


def test_each_kind_has_a_budget_of_its_own(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    still = FakeClock(clock.now)
    listener = LogListener(per_minute=1, clock=still)
    for number in range(3):
        attack(clock, listener, f"client {number}")
    kinds = [record.ratebound_event for record in caplog.records]  # type: ignore[attr-defined]
    assert kinds == ["warned", "denied", "struck", "block_began"]
    still.now += 60 * SECOND
    attack(clock, listener, "client")
    assert "(2 more like this were not logged)" in caplog.text


def test_the_top_list_has_the_clients_that_are_blocked_now(clock: FakeClock) -> None:
    top = TopListener(clear=True, clock=clock)
    attack(clock, top, "first")
    attack(clock, top, "second")
    assert top.blocked() == [BlockedClient("second", "guessing", 297.0), BlockedClient("first", "guessing", 291.0)]
    assert top.blocked(1) == [BlockedClient("second", "guessing", 297.0)]
    clock.now += 295 * SECOND
    assert [client.client for client in top.blocked()] == ["second"]
    clock.now += 5 * SECOND
    assert top.blocked() == []


def test_a_block_that_another_process_began_is_in_the_list_once_its_client_is_seen(clock: FakeClock) -> None:
    limiter = attack(clock, lambda event: None, "first")
    top = TopListener(clock=clock)
    limiter.listen(top)
    limiter.hit("first", values={"account": "alice"})
    ((name, limit, seconds),) = top.blocked()
    assert (limit, seconds) == ("guessing", 297.0)
    assert name != "first"
    assert len(name) == 16


def test_the_list_of_blocked_clients_is_bounded_and_keeps_those_that_are_blocked_for_longest(clock: FakeClock) -> None:
    top = TopListener(size=3, clear=True, clock=clock)
    for number in range(20):
        attack(clock, top, f"client {number}")
    assert [client.client for client in top.blocked(100)] == ["client 19", "client 18", "client 17"]
    assert len(top._blocks) == 3


def test_every_listener_takes_every_event(clock: FakeClock, registry: CollectorRegistry) -> None:
    listeners: list[Listener] = [
        PrometheusListener(registry),
        OpenTelemetryListener(MeterProvider(shutdown_on_exit=False)),
        LogListener(),
        TopListener(),
        AlertListener(lambda alert: None),
    ]

    def told(event: Any) -> None:
        for listener in listeners:
            listener(event)

    attack(clock, told)
