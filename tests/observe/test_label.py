"""Labels are bounded in number, whatever names arrive and from however many threads."""

import gc
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from ratebound import Decision, Limit, Limiter
from ratebound.events import Listener
from ratebound.observe.label import OTHER, label_of, new_names
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from tests.observe.decisions import told


def test_a_million_names_leave_as_many_labels_as_the_bound_and_one() -> None:
    made: dict[str, str] = {}
    for i in range(1_000_000):
        label_of(f"limit-{i}", made, 200, str.upper)
    assert made == {**{f"limit-{i}": f"LIMIT-{i}" for i in range(200)}, OTHER: "OTHER"}


def test_names_from_before_the_bound_keep_their_labels() -> None:
    made: dict[str, str] = {}
    first = [label_of(name, made, 2, str.upper) for name in ("a", "b", "c", "d")]
    assert first == ["A", "B", "OTHER", "OTHER"]
    assert [label_of(name, made, 2, str.upper) for name in ("d", "c", "b", "a")] == ["OTHER", "OTHER", "B", "A"]


def test_a_name_that_is_other_shares_the_label_of_the_rest() -> None:
    made: dict[str, str] = {}
    assert [label_of(name, made, 2, str.upper) for name in (OTHER, "a", "b", "a")] == ["OTHER", "A", "OTHER", "A"]
    assert list(made) == [OTHER, "a"]


def test_names_above_the_bound_wait_for_nobody() -> None:
    made: dict[str, str] = {}
    for name in ("a", "b"):
        label_of(name, made, 1, str.upper)
    found: list[str] = []
    with new_names.lock:
        thread = threading.Thread(target=lambda: found.append(label_of("c", made, 1, str.upper)), daemon=True)
        thread.start()
        thread.join(10)
        assert found == ["OTHER"]


def test_threads_that_bring_new_names_agree_on_every_label() -> None:
    made: dict[str, str] = {}
    found: list[dict[str, str]] = [{} for _ in range(4)]
    begin = threading.Barrier(4)

    def bring(mine: dict[str, str]) -> None:
        begin.wait()
        for i in range(500):
            mine[f"limit-{i}"] = label_of(f"limit-{i}", made, 250, str.upper)

    threads = [threading.Thread(target=bring, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == found[0] for mine in found)
    assert len(made) == 251


def prometheus() -> Listener:
    return PrometheusListener(CollectorRegistry(), max_limits=10)


def open_telemetry() -> Listener:
    return OpenTelemetryListener(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False), max_limits=10)


@pytest.mark.parametrize("make", [prometheus, open_telemetry])
def test_a_listener_does_not_grow_with_the_names_of_limits(make: Callable[[], Listener]) -> None:
    listener = make()
    rows = Limiter("10/hour").hit("k").rows

    def listen(begin: int, end: int) -> None:
        for i in range(begin, end):
            limit = Limit(10, 3_600_000_000, name=f"limit-{i}")
            listener(told(Decision((("k", (limit,), 1, None, None),), rows)))
        gc.collect()  # the SDK of OpenTelemetry leaves cycles

    listen(0, 100)
    tracemalloc.start()
    try:
        listen(100, 200)
        before, _ = tracemalloc.get_traced_memory()
        listen(200, 3_200)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 30_000, "ten bytes for each name"
