"""Overload in metrics and logs."""

import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from ratebound.events import Decided, PressureChanged, RequestShed
from ratebound.observe import LogListener, TopListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from tests.observe.test_deploy import shed

FACTORS = {"low": 0.1, "normal": 0.55, "high": 1.0, "critical": 1.0}


def test_prometheus_shows_factors_and_what_was_shed() -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry)
    listener(PressureChanged(FACTORS))
    for _ in range(3):
        listener(Decided(shed(), 0.1))
    for name, factor in FACTORS.items():
        assert registry.get_sample_value("ratebound_limit_factor", {"priority": name}) == factor
    assert registry.get_sample_value("ratebound_shed_total", {"limit": "api"}) == 3
    listener(RequestShed(20))
    assert registry.get_sample_value("ratebound_shed_total", {"limit": "concurrent: auto"}) == 1
    denied = {"limit": "api", "result": "denied", "degraded": "false"}
    assert registry.get_sample_value("ratebound_decisions_total", denied) == 3


def test_open_telemetry_shows_factors_and_what_was_shed() -> None:
    reader = InMemoryMetricReader()
    listener = OpenTelemetryListener(MeterProvider([reader]))
    listener(PressureChanged(FACTORS))
    listener(Decided(shed(), 0.1))
    listener(RequestShed(20))
    data = reader.get_metrics_data()
    assert data is not None
    found = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
    metrics: dict[str, dict[Any, Any]] = {metric.name: {} for metric in found}
    for metric in found:
        for point in metric.data.data_points:
            metrics[metric.name][tuple((point.attributes or {}).values())] = getattr(point, "value", None)
    assert metrics["ratebound.limit.factor"] == {(name,): factor for name, factor in FACTORS.items()}
    assert metrics["ratebound.shed"] == {("api",): 1, ("concurrent: auto",): 1}


def test_the_log_says_why_and_the_top_list_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    top = TopListener()
    for listener in (LogListener(), top):
        listener(Decided(shed(), 0.1))
    assert caplog.messages[0].endswith("; the limit is lowered because of overload")
    assert caplog.records[0].__dict__["ratebound_shed"] is True
    assert top.top() == []


def test_the_log_tells_of_requests_that_found_no_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    listener = LogListener(per_minute=1)
    listener(RequestShed(20))
    listener(RequestShed(20))
    LogListener(denials=False)(RequestShed(20))
    assert caplog.messages == ["shed a request: at most 20 may be in the process at once"]
