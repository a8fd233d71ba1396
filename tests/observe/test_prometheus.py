"""What Prometheus scrapes: every event counted, labels bounded, never a key."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ratebound import AsyncLimiter, Check, Limiter, MemoryStorage, StorageError, parse_limit
from ratebound.events import Called, Degraded, Recovered, Shadowed
from ratebound.observe.prometheus import PrometheusListener
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import told, without_storage


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


@pytest.fixture
def listener(registry: CollectorRegistry) -> PrometheusListener:
    return PrometheusListener(registry)


def value(registry: CollectorRegistry, metric: str, /, **labels: str) -> float | None:
    return registry.get_sample_value(f"ratebound_{metric}", labels)


def test_decisions_are_counted_by_limit_result_and_whether_the_storage_was_asked(
    registry: CollectorRegistry, listener: PrometheusListener, clock: FakeClock
) -> None:
    limiter = limiter_of("2/minute as login", clock)
    for _ in range(5):
        listener(told(limiter.hit("user:42")))
    listener(told(without_storage(limiter.hit("user:42"))))
    listener(told(without_storage(limiter.hit("user:43"))))
    counted = {
        (result, degraded): value(registry, "decisions_total", limit="login", result=result, degraded=degraded)
        for result in ("allowed", "denied")
        for degraded in ("false", "true")
    }
    assert counted == {
        ("allowed", "false"): 2,
        ("allowed", "true"): 1,
        ("denied", "false"): 3,
        ("denied", "true"): 1,
    }
    assert value(registry, "decision_seconds_count") == 7
    assert value(registry, "decision_seconds_sum") == pytest.approx(0.007)


def test_a_decision_counts_once_under_the_limit_that_was_decisive(
    registry: CollectorRegistry, listener: PrometheusListener, clock: FakeClock
) -> None:
    limiter = limiter_of("2/minute as short; 10/day as long", clock)
    for _ in range(3):
        listener(told(limiter.hit("k")))
    assert value(registry, "decisions_total", limit="short", result="allowed", degraded="false") == 2
    assert value(registry, "decisions_total", limit="short", result="denied", degraded="false") == 1
    assert value(registry, "decisions_total", limit="long", result="allowed", degraded="false") == 0


def test_every_limit_of_an_allowed_decision_shows_its_used_share(
    registry: CollectorRegistry, listener: PrometheusListener, clock: FakeClock
) -> None:
    limiter = limiter_of("2/minute as short; 10/day as long", clock)
    for _ in range(3):
        listener(told(limiter.hit("k")))
    listener(told(without_storage(limiter.hit("other"))))
    listener(told(limiter.check([Check("a", parse_limit("4/hour as a")), Check("b", parse_limit("5/hour as b"))])))
    sums = {name: value(registry, "used_share_sum", limit=name) for name in ("short", "long", "a", "b")}
    assert sums == pytest.approx({"short": 0.5 + 1.0, "long": 0.1 + 0.2, "a": 0.25, "b": 0.2})
    assert value(registry, "used_share_count", limit="short") == 2
    assert value(registry, "used_share_bucket", limit="short", le="0.9") == 1
    assert value(registry, "used_share_bucket", limit="short", le="0.5") == 1


def test_calls_outages_and_recoveries_are_counted_by_node(
    registry: CollectorRegistry, listener: PrometheusListener
) -> None:
    listener(Called("a:1", 0.25, None))
    zeros = ("storage_errors_total", "breaker_open", "degradations_total", "recoveries_total")
    assert [value(registry, name, node="a:1") for name in zeros] == [0, 0, 0, 0], "healthy is zero, not absent"
    listener(Called("a:1", 0.5, StorageError("gone")))
    listener(Degraded("a:1", "gone"))
    assert [value(registry, name, node="a:1") for name in zeros] == [1, 1, 1, 0]
    listener(Called("a:1", 0.5, StorageError("gone")))
    assert value(registry, "breaker_open", node="a:1") == 1
    listener(Recovered("a:1", 7.5, 40))
    assert [value(registry, name, node="a:1") for name in zeros] == [2, 0, 1, 1]
    assert value(registry, "storage_call_seconds_count", node="a:1") == 3
    assert value(registry, "storage_call_seconds_sum", node="a:1") == 1.25
    assert value(registry, "degraded_seconds_total", node="a:1") == 7.5
    assert value(registry, "written_back_units_total", node="a:1") == 40


def test_a_server_without_a_name_and_several_at_once_have_labels_of_their_own(
    registry: CollectorRegistry, listener: PrometheusListener
) -> None:
    for node in ("", "a:1,b:1", "b:1,c:1"):
        listener(Called(node, 0.25, None))
    assert value(registry, "storage_call_seconds_count", node="storage") == 1
    assert value(registry, "storage_call_seconds_count", node="several") == 2


def test_watched_memory_shows_what_it_holds_at_each_scrape(
    registry: CollectorRegistry, listener: PrometheusListener, clock: FakeClock
) -> None:
    limiter = Limiter("1/hour", storage=MemoryStorage(max_keys=10, clock=clock))
    listener.watch(limiter, name="api")
    for i in range(10):
        limiter.hit(f"k{i}")
    assert value(registry, "keys", storage="api") == 10
    assert value(registry, "max_keys", storage="api") == 10
    limiter.hit("one more")
    assert value(registry, "overflowed_checks_total", storage="api") == 1
    limiter.reset("k1")
    assert value(registry, "keys", storage="api") == 9
    assert value(registry, "evicted_keys_total", storage="api") == 0


def test_what_is_watched_may_be_a_storage_or_a_limiter_of_either_kind(
    registry: CollectorRegistry, listener: PrometheusListener
) -> None:
    tasks, storage = AsyncLimiter("1/hour"), MemoryStorage()
    listener.watch(tasks, name="tasks")
    listener.watch(storage, name="storage")
    listener.watch(storage, name="storage")
    assert [value(registry, "keys", storage=name) for name in ("tasks", "storage")] == [0, 0]
    with pytest.raises(ValueError, match="another storage is already watched as 'storage'"):
        listener.watch(tasks, name="storage")
    with pytest.raises(ValueError, match="str has no memory storage"):
        listener.watch("redis://", name="redis")


def test_a_watched_storage_is_not_kept_alive(registry: CollectorRegistry, listener: PrometheusListener) -> None:
    limiter = Limiter("1/hour")
    listener.watch(limiter, name="api")
    assert value(registry, "keys", storage="api") == 0
    del limiter
    gc.collect()
    assert value(registry, "keys", storage="api") is None
    another = MemoryStorage()
    listener.watch(another, name="api")
    assert value(registry, "keys", storage="api") == 0


def test_names_beyond_the_bound_are_counted_together(registry: CollectorRegistry, clock: FakeClock) -> None:
    listener = PrometheusListener(registry, max_limits=3, max_nodes=2)
    limiter = limiter_of("1/hour", clock)
    for i in range(50):
        listener(told(limiter.check(Check("k", parse_limit(f"{i + 1}/hour as limit-{i}")))))
        listener(Called(f"node-{i}", 0.1, None))
    (decisions,) = (family for family in registry.collect() if family.name == "ratebound_decisions")
    counts = {
        sample.labels["limit"]: sample.value
        for sample in decisions.samples
        if sample.name.endswith("_total")
        and (sample.labels["result"], sample.labels["degraded"]) == ("allowed", "false")
    }
    assert counts == {"limit-0": 1, "limit-1": 1, "limit-2": 1, "other": 47}
    assert value(registry, "used_share_count", limit="other") == 47
    assert value(registry, "storage_call_seconds_count", node="other") == 48


def test_no_key_is_ever_exported(registry: CollectorRegistry, listener: PrometheusListener, clock: FakeClock) -> None:
    limiter = limiter_of("1/hour as login; 5/hour", clock)
    listener.watch(limiter, name="api")
    listener(told(limiter.hit("secret@example.com")))
    listener(told(limiter.hit("secret@example.com")))
    listener(told(limiter.check([Check("secret@example.com", parse_limit("1/day"))])))
    listener(Called("a:1", 0.1, StorageError("secret@example.com")))
    listener(Degraded("a:1", "secret@example.com"))
    assert b"secret" not in generate_latest(registry)


def test_threads_lose_no_count(registry: CollectorRegistry, clock: FakeClock) -> None:
    listener, limiter = PrometheusListener(registry, max_limits=2), limiter_of("1/hour", clock)
    events = [told(limiter.check(Check("k", parse_limit(f"9/hour as l{i}")))) for i in range(4)]

    def tell() -> None:
        for event in events * 100:
            listener(event)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {limit: value(registry, "used_share_count", limit=limit) for limit in ("l0", "l1", "l2", "l3", "other")}
    assert sum(count or 0 for count in names.values()) == 1600
    assert sum(count is not None for count in names.values()) == 3


@pytest.mark.parametrize("options", [{"max_limits": 0}, {"max_nodes": 1.5}])
def test_bounds_that_are_none_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be a positive whole number"):
        PrometheusListener(CollectorRegistry(), **options)


WORKER = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from ratebound import Limiter
from ratebound.events import Called, Decided, Degraded, Recovered
from ratebound.observe.prometheus import PrometheusListener

listener, limiter = PrometheusListener(), Limiter("2/hour as login")
listener.watch(limiter, name="api")
for _ in range(3):
    listener(Decided(limiter.hit("k"), 0.001))
listener(Called("a:1", 0.1, None))
if os.fork():
    assert os.wait()[1] == 0
    listener(Degraded("a:1", "gone"))
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    sys.stdout.write(generate_latest(registry).decode())
else:
    for _ in range(3):
        listener(Decided(limiter.hit("k"), 0.001))
    listener(Recovered("a:1", 0.1, 0))
"""


def test_several_processes_are_added_up_but_what_memory_holds_is_left_out(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        capture_output=True,
        text=True,
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert 'ratebound_decisions_total{degraded="false",limit="login",result="denied"} 4.0' in lines
    assert "ratebound_decision_seconds_count 6.0" in lines
    assert 'ratebound_breaker_open{node="a:1"} 1.0' in lines
    assert "ratebound_keys" not in done.stdout


def test_without_the_package_it_is_said_what_to_install() -> None:
    code = """
import sys
for name in ("prometheus_client", "opentelemetry"):
    sys.modules[name] = None
import ratebound.observe
for name in ("prometheus", "otel"):
    try:
        __import__(f"ratebound.observe.{name}")
    except ModuleNotFoundError as error:
        sys.stdout.write(f"{error}\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        'prometheus-client is not installed. Run: pip install "ratebound[prometheus]"',
        'opentelemetry-api is not installed. Run: pip install "ratebound[otel]"',
    ], done.stderr


def test_what_a_rule_in_shadow_would_have_said_is_counted_by_rule_and_not_without_bound() -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry, max_limits=2)
    for number in range(5):
        listener(Shadowed(f"rule-{number}", candidate=number == 0, allowed=number != 1))

    def count(rule: str, candidate: str, result: str) -> float | None:
        labels = {"rule": rule, "candidate": candidate, "result": result}
        return registry.get_sample_value("ratebound_shadow_decisions_total", labels)

    assert count("rule-0", "true", "allowed") == 1
    assert count("rule-1", "false", "denied") == 1
    assert count("other", "false", "allowed") == 3
    assert count("rule-4", "false", "allowed") is None
