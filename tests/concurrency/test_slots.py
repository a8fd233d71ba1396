"""Never more holders than slots: in threads, and in processes that share a storage. The kernel counts."""

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratebound import Limiter, RateLimited
from ratebound.events import SlotLost
from tests.concurrency.exporter import KEY, one_of
from tests.servers import Server, wait_until

COUNT = 3
LONGEST = 120.0  # seconds, for a machine that is busy with other things
OPTIONS = "timeout=10&connect_timeout=10"
runs = itertools.count()


@pytest.fixture(params=["redis", "shared memory"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "shared memory":
        return str(request.getfixturevalue("zone_url"))
    server: Server = request.getfixturevalue("redis_url_server")
    return f"{server.url}?prefix=slots{next(runs)}-&{OPTIONS}"


class Exporter:
    """A process that runs exporter.py."""

    def __init__(self, url: str, folder: Path, text: str, *, tasks: int, rounds: int, seconds: float) -> None:
        arguments = [url, str(folder), text, str(tasks), str(rounds), str(seconds)]
        command = [sys.executable, "-m", "tests.concurrency.exporter", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def told(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def result(self) -> tuple[int, bool, int]:
        """Return how many times a slot was held, whether one was too many, and how many lock files were used."""
        out, _ = self.process.communicate(timeout=LONGEST)
        assert self.process.returncode == 0
        held, caught, used = json.loads(out.splitlines()[-1])
        return held, caught, used


@contextmanager
def exporters(number: int, *arguments: Any, **options: Any) -> Iterator[list[Exporter]]:
    started = [Exporter(*arguments, **options) for _ in range(number)]
    try:
        yield started
    finally:
        for each in started:
            each.process.kill()
            each.process.communicate()


def test_threads_never_hold_more_slots_than_there_are(tmp_path: Path) -> None:
    limiter = Limiter(f"{COUNT} concurrent", max_delay=LONGEST)
    used: list[int | None] = []

    def work() -> None:
        for _ in range(5):
            with limiter.acquire(KEY), one_of(tmp_path, COUNT) as number:
                used.append(number)
                time.sleep(random.uniform(0, 0.002))

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == 250
    assert set(used) == set(range(COUNT))
    assert limiter.holders(KEY) == []


def test_processes_never_hold_more_slots_than_there_are(url: str, tmp_path: Path) -> None:
    text = f"{COUNT} concurrent for 30 seconds"
    with exporters(4, url, tmp_path, text, tasks=50, rounds=3, seconds=0.01) as started:
        found = [each.result() for each in started]
    assert [held for held, _, _ in found] == [150] * 4
    assert not any(caught for _, caught, _ in found)
    assert max(used for _, _, used in found) == COUNT, "all slots were in use"
    with Limiter(text, storage=url) as limiter:
        assert limiter.holders(KEY) == []


def test_slots_of_killed_processes_are_free_after_one_lease(url: str, tmp_path: Path) -> None:
    lease = 4
    text = f"{COUNT} concurrent for {lease} seconds"
    with (
        Limiter(text, storage=url, failure="raise") as limiter,
        exporters(1, url, tmp_path, text, tasks=COUNT, rounds=1, seconds=1e6) as (killed,),
    ):
        assert [killed.told() for _ in range(COUNT)] == [1, 2, 3]
        first = {holder.id: holder.expires_at for holder in limiter.holders(KEY)}
        assert len(first) == COUNT
        wait_until(lambda: all(first[held.id] < held.expires_at for held in limiter.holders(KEY)), 60, "renewals")
        with exporters(3, url, tmp_path, text, tasks=50, rounds=1, seconds=0.02) as started:
            killed.process.kill()
            killed.process.wait()
            left = limiter.holders(KEY)
            assert {held.id for held in left} <= first.keys()
            now = time.time()  # of this host, as the clock of the storage is
            assert all(held.expires_at.timestamp() <= now + lease for held in left), "blocked for at most one lease"
            started[0].told()
            started[0].process.kill()  # at work, or waiting
            found = [each.result() for each in started[1:]]
        assert [(held, caught) for held, caught, _ in found] == [(50, False)] * 2
        assert not first.keys() & {held.id for held in limiter.holders(KEY)}


@pytest.mark.parametrize("loss", ["reset", "restart"])
def test_after_a_loss_no_more_than_the_lost_slots_come_on_top(loss: str, fresh_redis: Server) -> None:
    url, text = f"{fresh_redis.url}?{OPTIONS}", f"{COUNT} concurrent for 6 seconds"
    events: list[object] = []
    with (
        Limiter(text, storage=url, failure="raise", listeners=[events.append]) as old,
        Limiter(text, storage=url, failure="raise") as new,
        ExitStack() as before,
        ExitStack() as after,
    ):
        for _ in range(COUNT):
            before.enter_context(old.acquire(KEY))
        if loss == "reset":
            new.reset(KEY)
        else:
            fresh_redis.kill()  # a server without persistence, like a replica that has heard nothing
            fresh_redis.restart()
        granted = 0
        while len(new.holders(KEY)) < COUNT or not all_told(events):
            try:
                after.enter_context(new.acquire(KEY, timeout=0))
                granted += 1
            except RateLimited:
                time.sleep(0.01)
        assert granted <= COUNT
        wait_until(lambda: len(new.holders(KEY)) == COUNT + granted, 60, "renewals")
        with pytest.raises(RateLimited), new.acquire(KEY, timeout=0):
            pytest.fail("more than the lost slots came on top")
        after.close()
        assert not new.hit(KEY), "the old holders have all slots"
        before.close()
        assert [new.hit(KEY).allowed for _ in range(COUNT + 1)] == [True] * COUNT + [False]


def all_told(events: list[object]) -> bool:
    return sum(isinstance(event, SlotLost) for event in events) >= COUNT
