"""The figures of a gate, kept up to date in the background of threads and of event loops."""

import asyncio
import gc
import itertools
import logging
import os
import signal
import socket
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound.flow import run, run_async
from ratebound.observe.decision_counts import DecisionCounts
from ratebound.observe.gate_figures import GateFigures
from ratebound.policy import AsyncGate, Gate, read_policy
from ratebound.storage import documents_of
from tests.policy.gates import request
from tests.servers import Server, wait_until
from tests.zones import fresh_zone_url

runs = itertools.count()
POLICY: dict[str, Any] = {"rules": [{"name": "login", "by": "address", "limits": "2/hour"}]}


@pytest.fixture
def zone() -> Iterator[str]:
    with fresh_zone_url() as url:
        yield url


@pytest.fixture
def redis_url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=gate-figures{os.getpid()}-{next(runs)}-"


def processes(figures: GateFigures) -> int:
    return len(figures.view()["processes"])


def test_a_gate_in_memory_is_viewed_and_publishes_nothing() -> None:
    with Gate(read_policy(POLICY)) as gate:
        figures = GateFigures(gate)
        assert figures.view()["rules"] == []
        for _ in range(3):
            gate.decide(request("/"))
        wait_until(lambda: figures.view()["top"] != [], 10, "the denial is shown")
        view = figures.view()
        assert view is figures.view()  # made once a second
        assert [process["is_local"] for process in view["processes"]] == [True]
        assert list(figures.names([view["top"][0]["client"]]).values()) == ["address:192.0.2.1"]
        assert gate.storage.read_document("figures") == (0, b"")  # type: ignore[attr-defined]
        assert figures.own()["rules"] == {"login": [2, 1]}
        assert run(figures.others()) == []
        figures.stop()


def test_gates_of_threads_see_each_other(zone: str) -> None:
    with Gate(read_policy(POLICY), storage=zone) as one, Gate(read_policy(POLICY), storage=zone) as two:
        figures = [GateFigures(one), GateFigures(two)]
        for gate in (one, two):
            gate.decide(request("/"))
        for each in figures:
            wait_until(lambda each=each: processes(each) == 2, 20, "both are seen")  # type: ignore[misc]
        assert {process["is_local"] for process in figures[0].view()["processes"]} == {True, False}
        run(figures[1].leaving())
        wait_until(lambda: processes(figures[0]) == 1, 20, "one has left")
        figures[0].stop()


def test_gates_of_tasks_see_each_other(redis_url: str) -> None:
    async def serve() -> None:
        one, two = (AsyncGate(read_policy(POLICY), storage=redis_url) for _ in range(2))
        figures = [GateFigures(one), GateFigures(two)]
        for gate in (one, two):
            await gate.decide(request("/"))
        async with asyncio.timeout(20):
            for each in figures:
                while processes(each) != 2:
                    await asyncio.sleep(0.05)
        assert len(await run_async(figures[0].others())) == 1
        await run_async(figures[1].leaving())
        async with asyncio.timeout(20):
            while processes(figures[0]) != 1:
                await asyncio.sleep(0.05)
        await one.close()
        await two.close()

    asyncio.run(serve())


def test_work_begins_again_in_another_event_loop(zone: str) -> None:
    gate = AsyncGate(read_policy(POLICY), storage=zone)
    figures = GateFigures(gate)

    async def serve() -> int:
        known: int = (await documents_of(gate.storage).read_document("figures:0"))[0]
        for _ in range(3):  # the last one is denied
            await gate.decide(request("/"))
        async with asyncio.timeout(20):
            while (found := (await documents_of(gate.storage).read_document("figures:0"))[0]) <= known:
                await asyncio.sleep(0.05)
        return int(found)

    assert asyncio.run(serve()) < asyncio.run(serve())
    figures.stop()
    asyncio.run(gate.close())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_publishes_in_a_slot_of_its_own(zone: str) -> None:
    with Gate(read_policy(POLICY), storage=zone) as gate:
        figures = GateFigures(gate)
        gate.decide(request("/"))
        wait_until(lambda: processes(figures) == 1, 20, "the parent is seen")
        child = os.fork()
        if not child:
            signal.alarm(60)
            status = 1
            try:  # a child must not go on with the tests
                gate.decide(request("/"))
                wait_until(lambda: processes(figures) == 2, 30, "the child sees both")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        figures.stop()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_view_of_its_own_whatever_the_parent_did_at_that_moment() -> None:
    gate = Gate(read_policy(POLICY))
    figures = GateFigures(gate)
    gate.decide(request("/"))
    wait_until(lambda: processes(figures) == 1, 20, "the parent is seen")
    assert figures._view is not None
    with figures._view._lock:  # as a round may hold it
        child = os.fork()
        if not child:
            signal.alarm(20)
            status = 1
            try:
                found = [process["name"] for process in figures.view()["processes"]]
                status = int(found != [f"{socket.gethostname()[:200]}:{os.getpid()}"])
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    figures.stop()


def test_a_storage_that_fails_is_a_problem_to_show_and_hurts_no_decision(
    fresh_redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Gate(read_policy(POLICY), storage=f"{fresh_redis.url}?timeout=0.5&connect_timeout=0.5") as gate:
        figures = GateFigures(gate)
        gate.decide(request("/"))
        wait_until(lambda: processes(figures) == 1, 20, "it is seen")
        fresh_redis.kill()
        wait_until(lambda: "does not answer" in figures.view()["problem"], 20, "the problem is shown")
        assert gate.decide(request("/")).decision is not None
        wait_until(lambda: figures.view()["storage"]["nodes"][0]["is_open"], 20, "the breaker is open")
        assert [record.levelname for record in caplog.records] == ["ERROR"]  # of the guard, for the outage
        fresh_redis.spawn()
        fresh_redis.wait_until_up()
        wait_until(lambda: figures.view()["problem"] == "", 20, "it is over")
        figures.stop()


def test_the_thread_ends_with_its_figures() -> None:
    gate = Gate(read_policy(POLICY))
    figures = GateFigures(gate)
    gone = weakref.ref(figures)
    figures.begin()
    thread = figures._thread
    assert thread is not None
    assert thread.is_alive()
    del figures, gate
    gc.collect()
    wait_until(lambda: gone() is None and not thread.is_alive(), 20, "the thread has ended")


def test_work_that_was_stopped_begins_again_with_the_next_decision() -> None:
    with Gate(read_policy(POLICY)) as gate:
        figures = GateFigures(gate)
        for _ in range(2):
            gate.decide(request("/"))
            thread = figures._thread
            assert thread is not None
            figures.stop()
            thread.join(10)
            assert not thread.is_alive()

    async def serve() -> None:
        gate = AsyncGate(read_policy(POLICY))
        figures = GateFigures(gate)
        for _ in range(2):
            await gate.decide(request("/"))
            assert figures._timer is not None
            figures.stop()
            assert figures._timer is None
        await gate.decide(request("/"))
        async with asyncio.timeout(10):
            while figures.view()["top"] == []:
                await asyncio.sleep(0.05)
        await run_async(figures.leaving())
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "ratebound-figures"]) == 0

    asyncio.run(serve())


def test_counts_that_the_gate_has_already_are_not_added_again() -> None:
    counts = DecisionCounts()
    with Gate(read_policy(POLICY), listeners=[counts]) as gate:
        figures = GateFigures(gate, counts=counts, keeps_view=False)
        gate.decide(request("/"))
        assert figures.own()["allowed"] == 1
        figures.stop()


def test_nobody_who_looks_means_fewer_reads(zone: str) -> None:
    seconds = 100.0
    with Gate(read_policy(POLICY), storage=zone) as gate:
        figures = GateFigures(gate, clock=lambda: seconds)
        figures.stop()  # rounds are run by hand
        reads = []
        for at in range(48):
            if at >= 40:
                figures.view()
            run(figures.round())
            reads.append(figures._read)
            seconds += 1
        assert len(set(reads[:40])) == 4
        assert len(set(reads[40:])) == 4
