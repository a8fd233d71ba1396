"""Figures in the documents of a storage: slots, their takeover, digests that all processes share, hostile content."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import GuardedStorage, MemoryStorage, StorageError
from ratebound.flow import run, run_async
from ratebound.observe.live_figures import LiveFigures
from ratebound.observe.shared_figures import DEAD_AFTER, DIRECTORY, LOOK_EVERY, MOST_SLOTS, SharedFigures
from ratebound.storage.urls import open_async_storage, open_storage
from tests.limiters import limiter_of
from tests.observe.decisions import refusal, told
from tests.servers import Server, wait_until
from tests.zones import fresh_zone_url

runs = itertools.count()
Drive = Callable[[Any], Any]


class Seconds:
    """A clock in seconds that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "shared memory", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield ""
        elif request.param == "shared memory":
            yield stack.enter_context(fresh_zone_url())
        else:
            server: Server = request.getfixturevalue("redis_url_server")
            yield f"{server.url}?timeout=5&connect_timeout=5&prefix=figures{os.getpid()}-{next(runs)}-"


@pytest.fixture(params=["threads", "tasks"])
def stored(request: pytest.FixtureRequest, url: str) -> Iterator[tuple[Any, Drive]]:
    """A storage of each kind, and what drives a flow over it."""
    if request.param == "threads":
        storage: Any = GuardedStorage(open_storage(url)) if url else MemoryStorage()
        yield storage, run
        storage.close()
        return
    loop = asyncio.new_event_loop()
    tasks: Any = open_async_storage(url) if url else MemoryStorage().async_twin()
    yield tasks, lambda flow: loop.run_until_complete(run_async(flow))
    loop.run_until_complete(tasks.close())
    loop.close()


def slots_in(storage: Any, drive: Drive) -> list[str]:
    def reading() -> Generator[Any, Any, Any]:
        return (yield lambda: storage.read_document(DIRECTORY))

    content = drive(reading())[1]
    return list(json.loads(content)["slots"]) if content else []


def test_processes_read_what_others_publish(stored: tuple[Any, Drive], clock: Any) -> None:
    storage, drive = stored
    all_figures = [LiveFigures(clock=clock) for _ in range(3)]
    shared = [SharedFigures(storage, figures) for figures in all_figures]
    denied = told(refusal(limiter_of("1/hour", clock), "user:42"))
    for number, figures in enumerate(all_figures):
        for _ in range(number + 1):
            figures(denied)
    for one in shared:
        drive(one.publishing())
    found = drive(shared[0].reading())
    assert {one["run"]: one["denied"] for one in found} == {all_figures[1].run: 2, all_figures[2].run: 3}
    assert all(one["age"] == 0 for one in found)
    outside = drive(SharedFigures(storage).reading())
    assert len(outside) == 3
    assert len({row[0] for one in outside for row in one["top"]}) == 1  # one client has one digest
    assert all(figures.names([outside[0]["top"][0][0]]) for figures in all_figures)
    assert "user:42" not in json.dumps(outside)


def test_a_process_that_is_dead_disappears_and_its_slot_is_taken_again(stored: tuple[Any, Drive]) -> None:
    storage, drive = stored
    clock = Seconds()
    alive, dead = (SharedFigures(storage, LiveFigures(), clock=clock) for _ in range(2))
    reader = SharedFigures(storage, clock=clock)
    drive(dead.publishing())
    drive(alive.publishing())
    assert len(drive(reader.reading())) == 2
    for _ in range(12):
        clock.now += 2
        drive(alive.publishing())
        found = drive(reader.reading())
    assert [one["age"] for one in found] == [0]
    assert slots_in(storage, drive).count("") == 1
    late = LiveFigures()
    drive(SharedFigures(storage, late, clock=clock).publishing())
    assert slots_in(storage, drive)[0] == late.run
    assert late.run in {one["run"] for one in drive(reader.reading())}


def test_a_process_that_was_asleep_while_its_slot_was_given_away_finds_another(stored: tuple[Any, Drive]) -> None:
    storage, drive = stored
    clock = Seconds()
    figures = [LiveFigures() for _ in range(3)]
    sleeper, awake, late = (SharedFigures(storage, one, clock=clock) for one in figures)
    drive(sleeper.publishing())
    for _ in range(12):
        drive(awake.publishing())
        clock.now += 2
    drive(late.publishing())
    assert slots_in(storage, drive) == [figures[2].run, figures[1].run]
    for _ in range(LOOK_EVERY + 2):
        for one in (sleeper, awake, late):
            drive(one.publishing())
    assert sorted(slots_in(storage, drive)) == sorted(one.run for one in figures)
    found = drive(SharedFigures(storage).reading())
    assert sorted(one["run"] for one in found) == sorted(one.run for one in figures)


def test_a_process_that_leaves_is_gone_at_once(stored: tuple[Any, Drive]) -> None:
    storage, drive = stored
    one, two = (SharedFigures(storage, LiveFigures()) for _ in range(2))
    drive(one.publishing())
    drive(two.publishing())
    drive(two.leaving())
    assert len(drive(SharedFigures(storage).reading())) == 1
    drive(one.leaving())
    assert slots_in(storage, drive) == []
    assert drive(SharedFigures(storage).reading()) == []


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"key":"00","slots":[]}', b'{"key":null,"slots":[]}', b'{"key":"%s","slots":[1]}'],
)
def test_a_directory_that_somebody_else_wrote_is_left_alone(content: bytes) -> None:
    storage = MemoryStorage()
    content = content.replace(b"%s", b"00" * 32)
    storage.write_document(DIRECTORY, content, 0)
    for flow in (SharedFigures(storage, LiveFigures()).publishing(), SharedFigures(storage).reading()):
        with pytest.raises(StorageError, match="is not ours: delete it, or use another prefix"):
            run(flow)
    assert storage.read_document(DIRECTORY) == (1, content)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 7}', b"\xff"])
def test_a_snapshot_that_cannot_be_read_is_not_shown_and_the_others_are(content: bytes) -> None:
    storage = MemoryStorage()
    one, two = (SharedFigures(storage, LiveFigures()) for _ in range(2))
    run(one.publishing())
    run(two.publishing())
    storage.write_document("figures:0", content, 1)
    assert len(run(SharedFigures(storage).reading())) == 1


def test_when_too_many_publish_the_rest_do_not_and_nothing_fails() -> None:
    storage = MemoryStorage()
    directory = {"key": "00" * 32, "slots": [f"run-{slot}" for slot in range(MOST_SLOTS)]}
    storage.write_document(DIRECTORY, json.dumps(directory).encode(), 0)
    figures = LiveFigures()
    run(SharedFigures(storage, figures).publishing())
    assert figures.run not in slots_in(storage, run)


class Unreliable:
    """Documents in memory. The answers to some writes are lost, before or after they were carried out."""

    def __init__(self, fates: Iterator[str]) -> None:
        self._memory = MemoryStorage()
        self.fates = fates

    def read_document(self, name: str) -> tuple[int, bytes]:
        return self._memory.read_document(name)

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        fate = next(self.fates, "well")
        if fate == "before":
            raise StorageError("lost before", undone=True)
        written = self._memory.write_document(name, content, version)
        if fate == "after":
            raise StorageError("lost after")
        return written


@given(
    fates=st.lists(st.sampled_from(["well", "before", "after"]), max_size=40),
    order=st.lists(st.integers(0, 3), max_size=200),
)
def test_no_two_processes_share_a_slot_whatever_is_lost_and_in_whatever_order_they_work(
    fates: list[str], order: list[int]
) -> None:
    storage, clock = Unreliable(iter(fates)), Seconds()
    figures = [LiveFigures() for _ in range(4)]
    shared = [SharedFigures(storage, one, clock=clock) for one in figures]
    flows: list[Generator[Any, Any, None] | None] = [None] * 4
    answers: list[Any] = [None] * 4

    def step(number: int) -> None:
        """Do one step of a process: between any two steps of one, others may work."""
        flow = flows[number]
        try:
            if flow is None:
                flow = flows[number] = shared[number].publishing()
                call = next(flow)
            else:
                call = flow.send(answers[number])
            try:
                answers[number] = call()
            except StorageError as error:
                call = flow.throw(error)
        except (StopIteration, StorageError):
            flows[number] = None

    for number in order:
        step(number)
        runs_in_slots = [one for one in slots_in(storage, run) if one]
        assert len(runs_in_slots) == len(set(runs_in_slots))
        clock.now += 0.5
    for number in range(4):
        while flows[number] is not None:
            step(number)
    storage.fates = iter(())
    for _ in range(LOOK_EVERY + 2):
        for one in shared:
            run(one.publishing())
    found = run(SharedFigures(storage, clock=clock).reading())
    assert sorted(one["run"] for one in found) == sorted(one.run for one in figures)


@pytest.mark.parametrize("kind", ["shared memory", "redis"])
def test_twenty_processes_publish_and_those_that_are_killed_disappear(kind: str, redis_url_server: Server) -> None:
    """Kill half of them by SIGKILL. For a clock that is five times as fast, 10 seconds are two."""
    with ExitStack() as stack:
        url = (
            stack.enter_context(fresh_zone_url())
            if kind == "shared memory"
            else f"{redis_url_server.url}?timeout=10&connect_timeout=10&prefix=twenty{os.getpid()}-"
        )
        command = [sys.executable, "-m", "tests.observe.publishing_process", url, "20"]
        first = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
        stack.callback(os.killpg, first.pid, signal.SIGKILL)
        processes: dict[str, int] = {}  # by run
        for line in first.stdout or ():
            name, process = line.split()
            processes[name] = int(process)
            if len(processes) == 20:
                break
        killed = [name for name, process in processes.items() if process != first.pid][:10]
        storage = GuardedStorage(open_storage(url), deadline=10)
        stack.callback(storage.close)
        reader = SharedFigures(storage, clock=lambda: time.monotonic() * 5)

        def seen() -> set[str]:
            return {one["run"] for one in run(reader.reading())}

        wait_until(lambda: seen() == set(processes), 60, "all twenty are seen")
        slots = slots_in(storage, run)
        assert sorted(slots) == sorted(processes)
        for name in killed:
            os.kill(processes[name], signal.SIGKILL)
        wait_until(lambda: seen() == processes.keys() - set(killed), 60, "those that were killed have disappeared")
        janitor = SharedFigures(storage, LiveFigures(), clock=lambda: time.monotonic() * 5)

        def free() -> int:
            run(janitor.publishing())
            return slots_in(storage, run).count("")

        wait_until(lambda: free() >= 9, 60, "their slots are free")
        late = LiveFigures()
        run(SharedFigures(storage, late).publishing())
        assert slots_in(storage, run).index(late.run) < len(slots)
        assert DEAD_AFTER == 10
