"""All listeners on real limiters: in memory, and on a server that dies and comes back."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from ratebound import AsyncLimiter, Check, Limiter, RateLimited, parse_limit
from ratebound.events import Event, Listener
from ratebound.observe import Alert, AlertListener, LimitedClient, LogListener, TopListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from tests.servers import Server, wait_until


class Ears:
    """One of each kind, and what they have to show."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.alerts: list[Alert] = []
        self.prometheus = PrometheusListener(self.registry)
        self.top = TopListener(clear=True)
        self.alert = AlertListener(self.alerts.append, least=10)
        otel = OpenTelemetryListener(MeterProvider(shutdown_on_exit=False))
        self.all: list[Listener] = [LogListener(), self.prometheus, self.top, self.alert, otel]

    def value(self, metric: str, /, **labels: str) -> Any:
        return self.registry.get_sample_value(f"ratebound_{metric}", labels)

    def decisions(self, result: str, degraded: str) -> Any:
        return self.value("decisions_total", limit="api", result=result, degraded=degraded)


@pytest.fixture
def ears(caplog: pytest.LogCaptureFixture) -> Ears:
    caplog.set_level(logging.INFO, logger="ratebound")
    return Ears()


def test_every_way_to_a_decision_is_heard_once(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter("6/hour as api", listeners=ears.all)
    limiter.hit("k")
    limiter.hit_many(["k", "k"])
    limiter.check(Check("k", limiter.limits))
    limiter.wait("k")
    with limiter.acquire("k"):
        pass
    assert ears.decisions("allowed", "false") == 6
    assert not limiter.hit("k")
    with pytest.raises(RateLimited):
        limiter.wait("k", timeout=0)
    assert ears.decisions("denied", "false") == 2
    assert ears.value("decision_seconds_count") == 8
    assert ears.top.top() == [LimitedClient("k", 2, 0)]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_tasks_are_heard_as_threads_are(ears: Ears) -> None:
    limiter = AsyncLimiter("10/hour as api", listeners=ears.all)

    async def ask() -> None:
        await asyncio.gather(*(limiter.hit("k") for _ in range(30)))

    asyncio.run(ask())
    assert (ears.decisions("allowed", "false"), ears.decisions("denied", "false")) == (10, 20)
    assert ears.alert.flush(10)
    assert [alert.kind for alert in ears.alerts] == ["denials"]


def test_threads_together_are_counted_to_the_last_decision(ears: Ears) -> None:
    limiter = Limiter([parse_limit("100/hour as api")], listeners=ears.all)

    def ask() -> None:
        for _ in range(250):
            limiter.hit("k")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ears.decisions("allowed", "false"), ears.decisions("denied", "false")) == (100, 900)
    assert ears.top.top() == [LimitedClient("k", 900, 0)]
    assert ears.alert.flush(10)


def test_a_listener_that_fails_keeps_no_other_from_hearing(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("broken")

    limiter = Limiter("6/hour as api", listeners=[fail, ears.prometheus])
    assert limiter.hit("k")
    assert ears.decisions("allowed", "false") == 1
    assert caplog.messages == ["a listener failed; the decision stands"]


def test_an_outage_is_seen_from_its_beginning_to_its_end(
    ears: Ears, fresh_redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Limiter("1000/hour as api", storage=fresh_redis.url, listeners=ears.all, workers=1) as limiter:
        ears.prometheus.watch(limiter, name="fallback")
        assert limiter.hit("k").degraded is None
        (node,) = {
            sample.labels["node"]
            for family in ears.registry.collect()
            for sample in family.samples
            if sample.name == "ratebound_breaker_open"
        }
        assert ears.value("storage_call_seconds_count", node=node) == 1
        assert ears.value("breaker_open", node=node) == 0
        fresh_redis.kill()
        wait_until(lambda: bool(limiter.hit("k")) and ears.value("breaker_open", node=node) == 1, 30, "breaker open")
        degraded = ears.decisions("allowed", "true")
        assert degraded >= 1
        assert ears.value("storage_errors_total", node=node) >= 1
        assert ears.value("degradations_total", node=node) == 1
        assert ears.value("keys", storage="fallback") == 1
        fresh_redis.spawn()
        fresh_redis.wait_until_up()
        wait_until(lambda: bool(limiter.hit("k")) and ears.value("recoveries_total", node=node) == 1, 30, "recovery")
        assert ears.value("breaker_open", node=node) == 0
        assert ears.value("degraded_seconds_total", node=node) > 0
    assert ears.alert.flush(10)
    assert [alert.kind for alert in ears.alerts] == ["degraded", "recovered"]
    levels = [record.levelname for record in caplog.records if hasattr(record, "ratebound_event")]
    assert levels == ["ERROR", "WARNING"]
