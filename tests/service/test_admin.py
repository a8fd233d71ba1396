"""Metrics over workers: what a worker counts, and how the control plane adds it up."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from ratebound import Limiter
from ratebound.events import Degraded, Event
from ratebound.observe.decision_counts import DecisionCounts
from ratebound.observe.prometheus import PrometheusListener
from ratebound.service.http1 import Answer, HttpRequest, problem, response
from ratebound.service.merged_metrics import MergedMetrics
from ratebound.service.metrics import WorkerMetrics
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]
LIMITS = [
    "3/minute",
    "5/minute burst 2; 9/hour",
    "2 concurrent",
    "4/minute; 3 strikes/hour block 5 minutes",
    "6/minute leaky-bucket burst 2",
]


def ignored(event: Event) -> None:
    """A log that writes nothing."""


def read(text: str) -> Found:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def not_zero(found: Found) -> dict[object, object]:
    return {key: pytest.approx(value) for key, value in found.items() if value}


def merged(tmp_path: Path, *metrics: WorkerMetrics) -> Found:
    whole = MergedMetrics(tmp_path / "retired.json")
    for slot, one in enumerate(metrics):
        whole.take(slot, 0, one.snapshot({}))
    return read(whole.text())


def test_a_worker_counts_what_the_prometheus_listener_counts(tmp_path: Path) -> None:
    metrics, registry = WorkerMetrics(ignored), CollectorRegistry()
    listener = PrometheusListener(registry)
    chosen = random.Random(5)
    clock = FakeClock()
    events: list[Event] = []
    storage = MemoryStorage(clock=clock)
    limiters = [Limiter(text, storage=storage, listeners=[events.append]) for text in LIMITS]
    for _ in range(600):
        chosen.choice(limiters).hit(chosen.choice("abc"), cost=1)
        clock.advance(chosen.random() * 5)
    for event in [*events, Degraded("", "gone")]:
        listener(event)
        for counting in metrics.listeners:
            counting(event)
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }
    assert not_zero(merged(tmp_path, metrics)) == not_zero(expected)
    assert len(not_zero(expected)) > 50


def test_denials_are_logged_only_if_that_is_asked_for() -> None:
    limiter = Limiter("1/hour")
    for wanted, expected in ((True, 1), (False, 0)):
        logged: list[Event] = []
        counts = DecisionCounts(ignored, denials=logged.append if wanted else None)
        limiter.reset("a")
        told = Limiter("1/hour", storage=limiter.storage, listeners=[counts])
        assert [bool(told.hit("a")) for _ in range(2)] == [True, False]
        assert len(logged) == expected


def test_answers_are_counted_by_their_status(tmp_path: Path) -> None:
    metrics = WorkerMetrics(ignored)
    answers: dict[bytes, Answer] = {b"/a": response(200, []), b"/b": problem(429, "no")}
    handle = metrics.counted(lambda request: answers[request.target])
    for target in (b"/a", b"/a", b"/b"):
        handle(HttpRequest("GET", target, [], b"", None))
    found = merged(tmp_path, metrics)
    assert found["ratebound_service_requests_total", (("result", "200"), ("wire", "http"))] == 2
    assert found["ratebound_service_requests_total", (("result", "429"), ("wire", "http"))] == 1


class _Failed(Exception):
    status = 14


async def _later(answer: bytes) -> bytes:
    if not answer:
        raise _Failed
    return answer


def _now(answer: bytes) -> bytes:
    if not answer:
        raise _Failed
    return answer


def test_replies_of_grpc_are_counted_by_their_status(tmp_path: Path) -> None:
    metrics = WorkerMetrics(ignored)
    assert metrics.counted_method(_now)(b"a") == b"a"
    assert asyncio.run(metrics.counted_method(_later)(b"b")) == b"b"  # type: ignore[arg-type]
    with pytest.raises(_Failed):
        metrics.counted_method(_now)(b"")
    with pytest.raises(_Failed):
        asyncio.run(metrics.counted_method(_later)(b""))  # type: ignore[arg-type]
    found = merged(tmp_path, metrics)
    assert found["ratebound_service_requests_total", (("result", "0"), ("wire", "grpc"))] == 2
    assert found["ratebound_service_requests_total", (("result", "14"), ("wire", "grpc"))] == 2


def test_answers_of_resp_are_counted_as_ok_or_error(tmp_path: Path) -> None:
    class Commands:
        def new_session(self) -> int:
            return 1

        def answer(self, session: int, command: list[bytes]) -> Any:
            return command[0] if len(command) == 1 else _later(command[0])

    metrics = WorkerMetrics(ignored)
    counted = metrics.counted_commands(Commands())
    assert counted.answer(counted.new_session(), [b"+OK\r\n"]) == b"+OK\r\n"
    assert counted.answer(1, [b"-ERR no\r\n"]) == b"-ERR no\r\n"
    assert asyncio.run(counted.answer(1, [b"-ERR no\r\n", b""])) == b"-ERR no\r\n"
    found = merged(tmp_path, metrics)
    assert found["ratebound_service_requests_total", (("result", "ok"), ("wire", "resp"))] == 1
    assert found["ratebound_service_requests_total", (("result", "error"), ("wire", "resp"))] == 2


def family(name: str, kind: str, value: float, **labels: str) -> dict[str, object]:
    return {"name": name, "type": kind, "help": "", "samples": [[name, labels, value]]}


def test_counters_of_dead_workers_are_kept_also_by_the_next_control_plane(tmp_path: Path) -> None:
    key = ("a_total", (("x", "1"),))
    first = MergedMetrics(tmp_path / "retired.json")
    first.take(0, 0, [family("a_total", "counter", 5, x="1"), family("g", "gauge", 7)])
    first.take(1, 0, [family("a_total", "counter", 3, x="1"), family("g", "gauge", 1)])
    assert read(first.text())[key] == 8
    first.take(0, 2, [family("a_total", "counter", 1, x="1"), family("g", "gauge", 2)])
    assert read(first.text()) == {key: 9, ("g", ()): 3}
    assert first.restarts == 2
    second = MergedMetrics(tmp_path / "retired.json")
    second.take(0, 2, [family("a_total", "counter", 2, x="1")])
    second.take(1, 0, [family("a_total", "counter", 3, x="1")])
    assert read(second.text())[key] == 10
    assert second.restarts == 2


def test_a_state_that_all_workers_see_is_not_added_up(tmp_path: Path) -> None:
    whole = MergedMetrics(tmp_path / "retired.json")
    for slot, (keys, factor) in enumerate(((10, 0.5), (11, 1.0))):
        shared = family("ratebound_keys", "gauge", keys, storage="service")
        whole.take(slot, 0, [shared, family("ratebound_limit_factor", "gauge", factor, priority="low")])
    found = read(whole.text())
    assert found["ratebound_keys", (("storage", "service"),)] == 11
    assert found["ratebound_limit_factor", (("priority", "low"),)] == 0.5


def test_labels_are_escaped(tmp_path: Path) -> None:
    whole = MergedMetrics(tmp_path / "retired.json")
    odd = 'a"b\\c\nd é'
    whole.take(0, 0, [family("a_total", "counter", 1, x=odd)])
    assert read(whole.text()) == {("a_total", (("x", odd),)): 1}
