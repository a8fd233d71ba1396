"""The figures of a gate with a dashboard: when they are taken, published and read, and when that ends."""

import asyncio
import gc
import os
import weakref
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.errors import StorageError
from ratebound.flow import run
from ratebound.policy import RequestView
from ratebound.testing import FakeClock
from ratebound.web import AsyncWebGate, WebGate, gate_figures
from ratebound.web.dashboard import figures_of
from ratebound.web.gate_figures import GateFigures
from tests.servers import Server, wait_until

VIEW = RequestView("GET", "/", peer="192.0.2.1")


def of_gate(**options: Any) -> tuple[WebGate, GateFigures]:
    gate = WebGate("5/minute", **{"storage": MemoryStorage(clock=FakeClock()), **options})
    return gate, figures_of(gate)


def _has_looks(figures: GateFigures) -> bool:
    return figures._looks is not None


def test_the_first_decision_starts_the_looks_and_the_end_of_the_gate_ends_them() -> None:
    gate, figures = of_gate()
    assert figures_of(gate) is figures
    assert not _has_looks(figures)
    gate.before(VIEW)
    looks: Any = figures._looks
    assert looks._thread.is_alive()
    gate.before(VIEW)
    assert vars(figures)["_looks"] is looks
    gate.close()
    looks._thread.join(20)
    assert looks.have_ended()


def test_looks_end_with_a_gate_that_nobody_has_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_figures, "EVERY", 0.01)
    gate, figures = of_gate()
    gate.before(VIEW)
    looks: Any = figures._looks
    thread, found = looks._thread, weakref.ref(figures)
    del gate, figures, looks

    def is_over() -> bool:
        gc.collect()
        return found() is None and not thread.is_alive()

    wait_until(is_over, 20, "the end of the thread")


def test_in_tasks_the_looks_are_a_task_of_each_event_loop() -> None:
    gate = AsyncWebGate("5/minute", storage=MemoryStorage(clock=FakeClock()))
    figures = figures_of(gate)

    async def play() -> None:
        await gate.before(VIEW)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert names.count("ratebound-figures") == 1
        await gate.before(VIEW)
        assert len(asyncio.all_tasks()) == len(names)

    asyncio.run(play())
    looks: Any = figures._looks
    assert looks.have_ended()
    asyncio.run(play())

    async def end() -> None:
        await play()
        await gate.close()
        assert "ratebound-figures" not in [task.get_name() for task in asyncio.all_tasks()]

    asyncio.run(end())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_looks_by_itself() -> None:
    gate, figures = of_gate()
    gate.before(VIEW)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            gate.before(VIEW)
            looks: Any = figures._looks
            is_own = looks._thread.is_alive() and figures.live.own()["allowed"] == 1
            status = 0 if is_own and figures.live.name.endswith(f":{os.getpid()}") else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    gate.close()


def test_on_memory_the_view_says_how_many_processes_it_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, figures = of_gate()
    run(figures.look())
    assert figures.view()["problem"] == ""
    gate.close()
    monkeypatch.setattr(gate_figures, "known_workers", lambda: 4)
    gate, figures = of_gate()
    run(figures.look())
    assert figures.view()["problem"].startswith("This page shows one of 4 processes")
    gate.close()


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


def test_a_storage_without_documents_shows_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_figures, "known_workers", lambda: 4)
    gate, figures = of_gate(storage=WithoutDocuments())
    gate.before(VIEW)
    run(figures.look())
    assert len(figures.view()["processes"]) == 1
    assert "one of 4 processes, the one that has answered: the storage keeps no" in figures.view()["problem"]
    gate.close()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test looks."""
    monkeypatch.setattr(GateFigures, "start", lambda figures: None)


@pytest.mark.usefixtures("by_hand")
def test_figures_of_other_processes_are_read_and_those_that_leave_are_forgotten(fresh_redis: Server) -> None:
    (gate, figures), (another, others) = of_gate(storage=fresh_redis.url), of_gate(storage=fresh_redis.url)
    for each in (figures, others):
        run(each.look())
    run(figures.look())  # not read again so soon, as nobody looks
    assert len(figures._view.view()["processes"]) == 1
    figures.view()
    run(figures.look())
    assert sorted(one["is_local"] for one in figures.view()["processes"]) == [False, True]
    asyncio.run(others.leave())
    run(figures.look())
    assert len(figures.view()["processes"]) == 1
    gate.close()
    another.close()


@pytest.mark.usefixtures("by_hand")
def test_a_storage_that_does_not_answer_is_a_problem_on_the_page(fresh_redis: Server) -> None:
    gate, figures = of_gate(storage=fresh_redis.url)
    run(figures.look())
    assert figures.view()["problem"] == ""
    fresh_redis.kill()
    run(figures.look())
    assert figures.view()["problem"].startswith("The storage does not answer: ")
    assert len(figures.view()["processes"]) == 1
    gate.close()


def test_a_look_that_fails_is_logged_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate_figures, "EVERY", 0.01)
    gate, figures = of_gate()
    looks: list[int] = []

    def look() -> Any:
        looks.append(1)
        if len(looks) == 1:
            raise StorageError("as asked")
        yield from ()

    monkeypatch.setattr(figures, "look", look)
    gate.before(VIEW)
    wait_until(lambda: len(looks) > 2, 20, "more looks")
    assert "the figures of the dashboard could not be read" in caplog.text
    gate.close()
