"""The figures of a web gate with a dashboard: when they are taken, and when that ends."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.observe import gate_figures
from ratebound.observe.gate_figures import GateFigures
from ratebound.policy import RequestView
from ratebound.testing import FakeClock
from ratebound.web import AsyncWebGate, WebGate
from ratebound.web.dashboard import figures_of
from tests.servers import Server, wait_until

VIEW = RequestView("GET", "/", peer="192.0.2.1")


def of_gate(**options: Any) -> tuple[WebGate, GateFigures]:
    gate = WebGate("5/minute", **{"storage": MemoryStorage(clock=FakeClock()), **options})
    return gate, figures_of(gate)


def thread_of(figures: GateFigures) -> Any:
    return figures._thread


def test_the_first_decision_starts_the_work_and_the_end_of_the_gate_ends_it() -> None:
    gate, figures = of_gate()
    assert figures_of(gate) is figures
    assert thread_of(figures) is None
    gate.before(VIEW)
    thread = thread_of(figures)
    assert thread.is_alive()
    gate.before(VIEW)
    assert thread_of(figures) is thread
    gate.close()
    thread.join(20)
    assert not thread.is_alive()


def test_the_work_ends_with_a_gate_that_nobody_has_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_figures, "ROUND", 0.01)
    gate, figures = of_gate()
    gate.before(VIEW)
    thread, found = thread_of(figures), weakref.ref(figures)
    del gate, figures

    def is_over() -> bool:
        gc.collect()
        return found() is None and not thread.is_alive()

    wait_until(is_over, 20, "the end of the thread")


def test_a_gate_of_tasks_works_in_the_event_loop_of_its_decisions() -> None:
    async def play() -> None:
        gate = AsyncWebGate("5/minute", storage=MemoryStorage(clock=FakeClock()))
        figures = figures_of(gate)
        await gate.before(VIEW)
        assert figures._timer is not None
        assert figures._loop is asyncio.get_running_loop()
        await gate.close()
        assert figures._timer is None
        assert "ratebound-figures" not in [task.get_name() for task in asyncio.all_tasks()]

    asyncio.run(play())
    asyncio.run(play())


class WithoutDocuments:
    """A storage of somebody else's, which keeps no documents."""

    def __init__(self) -> None:
        self._inner = MemoryStorage(clock=FakeClock())

    def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
        return self._inner.evaluate(groups, mode)

    def reset(self, group: Any) -> None:
        self._inner.reset(group)

    def close(self) -> None:
        self._inner.close()


def test_figures_of_one_of_several_processes_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, figures = of_gate()
    assert figures.view()["problem"] == ""
    gate.close()
    monkeypatch.setattr(gate_figures, "known_workers", lambda: 4)
    for storage, why in ((MemoryStorage(), "memory:// is not shared"), (WithoutDocuments(), "the storage keeps no")):
        gate, figures = of_gate(storage=storage)
        gate.before(VIEW)
        assert f"one of 4 processes, the one that has answered: {why}" in figures.view()["problem"]
        assert len(figures.view()["processes"]) == 1
        gate.close()


def test_a_gate_that_is_closed_is_gone_for_others_at_once(redis_url_server: Server) -> None:
    url = f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=web-figures-"
    (gate, figures), (another, others) = of_gate(storage=url), of_gate(storage=url)
    gate.before(VIEW)
    another.before(VIEW)
    wait_until(lambda: len(figures.view()["processes"]) == 2, 20, "both are seen")
    another.close()
    wait_until(lambda: len(figures.view()["processes"]) == 1, 8, "one has left")
    gate.close()
    assert others is not figures
