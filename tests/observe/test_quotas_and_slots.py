"""Every listener takes decisions about quotas, metering and slots."""

import logging

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from ratebound import Decision, Limiter, MemoryStorage
from ratebound.events import Decided, Listener
from ratebound.limit import GRANT
from ratebound.observe.alert import AlertListener
from ratebound.observe.label import used_share
from ratebound.observe.logging import LogListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from ratebound.observe.top import TopListener
from ratebound.policy import Policy, Rule
from ratebound.testing import FakeClock
from tests.observe.decisions import told, without_storage
from tests.policy.gates import decide, gate_of, request

MIXED = "9/second; 3/calendar-month as month over allow; 2/day fixed-window over allow as day; 4 concurrent as exports"


def decisions(text: str, many: int, cost: int = 1) -> list[Decision]:
    """The decisions of a rule about one client."""
    gate = gate_of(Policy(rules=[Rule("a", text, cost=cost)]))
    found = [decide(gate, request()).decision for _ in range(many)]
    return [decision for decision in found if decision is not None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def overage(registry: CollectorRegistry, limit: str) -> float | None:
    return registry.get_sample_value("ratebound_overage_total", {"limit": limit})


def test_units_above_a_metered_quota_are_counted_by_limit(registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry)
    for decision in decisions(MIXED, 6):
        listener(told(decision))
    assert overage(registry, "a/month") == 1, "four are allowed, for there are four slots"
    assert overage(registry, "a/day") == 2
    assert overage(registry, "a/second") is None
    assert overage(registry, "a/exports") is None


def test_the_units_of_a_cost_that_exceed_a_quota_are_counted(registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry)
    for decision in decisions("5/calendar-day over allow", 2, cost=4):
        listener(told(decision))
        listener(told(without_storage(decision)))
    assert overage(registry, "a/calendar-day") == 3


def test_the_label_of_overage_is_bounded(registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry, max_limits=2)
    for name in ("x", "y", "z"):
        for decision in decisions(f"1/calendar-day over allow as {name}", 2):
            listener(told(decision))
    assert [overage(registry, label) for label in ("a/x", "a/y", "a/z", "other")] == [1, 1, None, 1]


def test_opentelemetry_counts_the_same() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    listener = OpenTelemetryListener(provider)
    for decision in decisions(MIXED, 6):
        listener(told(decision))
    collected = reader.get_metrics_data()
    assert collected is not None
    metrics = {metric.name: metric for metric in collected.resource_metrics[0].scope_metrics[0].metrics}
    points = metrics["ratebound.overage"].data.data_points
    assert {(point.attributes or {})["ratebound.limit"]: point.value for point in points} == {"a/month": 1, "a/day": 2}  # type: ignore[union-attr]
    provider.shutdown()


def test_the_share_of_a_quota_with_granted_units_is_never_below_zero(clock: FakeClock) -> None:
    limiter = Limiter("10/calendar-day", storage=MemoryStorage(clock=clock))
    limiter.storage.evaluate([[("k", limiter.limits, 50, None, [GRANT])]], "force")
    decision = limiter.hit("k")
    assert decision.remaining == 59
    assert used_share(decision.limit, decision.rows[0]) == 0.0


def test_the_share_of_slots_is_that_which_is_held() -> None:
    first, second = decisions("4 concurrent", 2)
    assert [used_share(decision.limit, decision.rows[0]) for decision in (first, second)] == [0.25, 0.5]


def test_a_denial_for_want_of_a_slot_is_logged_without_a_promise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    LogListener()(told(decisions("1 concurrent", 2)[-1]))
    (record,) = caplog.records
    assert "by a/concurrent, no slot is free" in record.getMessage()
    assert record.ratebound_retry_after is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text", ["2 concurrent", "2/calendar-month in Asia/Tokyo from 31", "2/day fixed-window over allow", MIXED]
)
def test_every_listener_takes_every_kind_of_limit(text: str, registry: CollectorRegistry) -> None:
    listeners: list[Listener] = [
        PrometheusListener(registry),
        OpenTelemetryListener(MeterProvider(shutdown_on_exit=False)),
        LogListener(),
        TopListener(),
        AlertListener(lambda alert: None),
    ]
    for decision in decisions(text, 6):
        for listener in listeners:
            listener(Decided(decision, 0.001))
            listener(Decided(without_storage(decision), 0.001))
