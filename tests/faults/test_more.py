"""What the page docs/explanation/failure.md says and no other file shows: workers that are killed or cut off, servers
that forget, passwords that change, a failover that nobody waits for, and how much all of this can ever admit."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ratebound import Limiter
from ratebound.events import Degraded, Recovered
from tests.faults.test_redis import (
    BACK,
    COUNT,
    DEADLINE,
    SPARE,
    Fault,
    Subject,
    connections_are_refused,
    replies_never_come,
    the_server_is_killed,
)
from tests.proxy import Proxy, proxy
from tests.servers import HOST, SentinelGroup, Server, wait_until

ROOT = Path(__file__).parents[2]
KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
PERIOD = 3  # seconds
UNITS = 61  # a count that three workers cannot share evenly
WORKERS = ("threads", "threads", "tasks")
SHARE = -(-UNITS // len(WORKERS))
SECONDS = 8.0
NAME = "redis.invalid"
LOOK_UP = 3.0  # seconds after which it is given up
FAULTS: list[Fault] = [connections_are_refused, replies_never_come, the_server_is_killed]


@pytest.fixture
def between(fresh_redis: Server) -> Iterator[Proxy]:
    with proxy(fresh_redis) as found:
        yield found


class Worker:
    """A process that asks; see asker.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert self.grants() == []

    def begin(self, key: str, asks: int, seconds: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([key, asks, seconds]) + "\n")
        self.process.stdin.flush()

    def grants(self) -> list[tuple[int, bool]]:
        """Of the job that has begun: when, and whether without the storage."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"a worker ended with {self.process.wait(10)}"
        return [(at, degraded) for at, degraded in json.loads(line)]

    def ask(self, key: str, asks: int) -> list[bool]:
        """For each grant, whether it was made without the storage."""
        self.begin(key, asks, 10.0)
        return [degraded for _, degraded in self.grants()]


@contextmanager
def worker(kind: str, url: str, limit: str, workers: int) -> Iterator[Worker]:
    command = [sys.executable, "-m", "tests.faults.asker", kind, url, limit, str(workers)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def most(window: int, forgotten: list[tuple[float, float]]) -> int:
    """Of one key in one window: what the storage gives, once more for each time it forgot, and every worker's share."""
    begin, end = window * PERIOD, (window + 1) * PERIOD
    forgot = sum(1 for before, after in forgotten if before <= end and begin <= after)
    return UNITS * (1 + forgot) + len(WORKERS) * SHARE


def test_three_processes_whose_storage_comes_and_goes_grant_no_more_than_the_count_and_their_shares(
    fresh_redis: Server, between: Proxy, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("RATEBOUND_SEED") or random.SystemRandom().randrange(10**6))
    chance, forgotten = random.Random(seed), list[tuple[float, float]]()
    limit = f"{UNITS}/{PERIOD} seconds fixed-window"
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(kind, between.url, limit, len(WORKERS))) for kind in WORKERS]
        time.sleep(PERIOD - time.time() % PERIOD)
        for each in workers:
            each.begin("a", 10**9, SECONDS)
        ends = time.monotonic() + SECONDS - 1.5
        time.sleep(0.6)  # the count of this window is used up: what the workers grant now comes on top
        fault: Fault = connections_are_refused  # and the others may follow
        while time.monotonic() < ends:
            before = time.time()
            with fault(fresh_redis, between):
                time.sleep(chance.uniform(0.3, 1.0))
            if fault is the_server_is_killed:
                forgotten.append((before, time.time()))
            time.sleep(chance.uniform(0.1, 1.2))
            fault = chance.choice(FAULTS)
        found = [each.grants() for each in workers]
    granted = Counter(at // 1_000_000 // PERIOD for grants in found for at, _ in grants)
    worst = max(granted, key=lambda window: granted[window] / most(window, forgotten))
    told = f"RATEBOUND_SEED={seed}: {dict(granted)} of {[most(window, forgotten) for window in granted]}"
    record_property("granted in a window", told)
    sys.stdout.write(f"\n{told}; worst {granted[worst]} of at most {most(worst, forgotten)}\n")
    assert all(any(degraded for _, degraded in grants) for grants in found), "every worker was alone for a while"
    assert all(granted[window] <= most(window, forgotten) for window in granted), told
    assert max(granted.values()) > UNITS, "and it would have shown if the bound did not hold"


@KINDS
def test_a_worker_that_is_killed_takes_what_it_granted_alone_with_it(
    kind: str, fresh_redis: Server, between: Proxy
) -> None:
    limit, share = "10/hour", 5
    url = f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}"
    with ExitStack() as stack:
        first = stack.enter_context(worker(kind, url, limit, 2))
        assert first.ask("a", 3) == [False] * 3
        with connections_are_refused(fresh_redis, between):
            assert first.ask("a", 30) == [True] * share
            first.process.kill()
            first.process.wait()
            second = stack.enter_context(worker(kind, url, limit, 2))
            assert second.ask("a", 30) == [True] * share, "a new process has a share of its own"
        direct = stack.enter_context(Limiter(limit, storage=fresh_redis.url, failure="raise"))
        assert direct.peek("a").remaining == 7, "what was spent before it died is there"
        tries = (f"probe {number}" for number in range(1_000))
        wait_until(lambda: second.ask(next(tries), 1) == [False], BACK, "the storage decides again")
        wait_until(lambda: second.ask(next(tries), 1) == [False] and direct.peek("a").remaining < 7, BACK, "written")
        assert direct.peek("a").remaining == 7 - share, "of the living one; nobody knows of the other's"


@KINDS
def test_a_worker_that_is_cut_off_alone_grants_its_share_on_top_of_what_the_others_have(
    kind: str, fresh_redis: Server, between: Proxy
) -> None:
    url = f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}"
    with closing(Subject(kind, fresh_redis.url, workers=2)) as sound, closing(Subject(kind, url, workers=2)) as cut_off:
        assert cut_off.hit().degraded is None
        with connections_are_refused(fresh_redis, between):
            alone = [cut_off.hit() for _ in range(COUNT)]
            assert sum(decision.allowed for decision in alone) == COUNT // 2
            shared = [sound.hit() for _ in range(COUNT)]
            assert not any(decision.degraded for decision in shared)
            assert sum(decision.allowed for decision in shared) == COUNT - 1
        wait_until(lambda: cut_off.peek("other").degraded is None, BACK, "it is back")
        cut_off.rest(0.3)  # written back
        assert [event.written_back for event in cut_off.events if isinstance(event, Recovered)] == [COUNT // 2]
        denied = cut_off.hit()
        assert (denied.allowed, denied.degraded) == (False, None)
        assert cut_off.slowest < DEADLINE + SPARE


@KINDS
def test_a_host_that_swallows_every_packet_costs_nobody_more_than_the_deadline(kind: str) -> None:
    with socket.socket() as full, ExitStack() as stack:
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):  # once its queue is full, the kernel answers no more
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        url = f"redis://{HOST}:{full.getsockname()[1]}?timeout={DEADLINE}&connect_timeout=3"
        subject = stack.enter_context(closing(Subject(kind, url)))
        decisions = [subject.hit() for _ in range(10)]
        subject.rest(1.1)
        decisions += [subject.hit() for _ in range(3)]
        assert all(decision.allowed and decision.degraded for decision in decisions)
        assert subject.slowest < DEADLINE + SPARE


@KINDS
def test_a_look_up_of_the_name_that_hangs_costs_nobody_more_than_the_deadline(
    kind: str, fresh_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, begun, look_up = threading.Event(), threading.Event(), socket.getaddrinfo

    def slow(host: Any, *rest: Any, **options: Any) -> Any:
        if host != NAME:
            return look_up(host, *rest, **options)
        begun.set()
        if not works.wait(LOOK_UP):
            raise socket.gaierror(socket.EAI_AGAIN, "no name server has answered")
        return look_up(HOST, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)  # no resolver of this machine can be told to hang
    url = f"redis://{NAME}:{fresh_redis.port}?timeout={DEADLINE}&connect_timeout={DEADLINE}"
    with closing(Subject(kind, url)) as subject:
        try:
            decisions = [subject.hit() for _ in range(8)]
            subject.rest(1.1)  # a probe or two that fail
            decisions += [subject.hit() for _ in range(3)]
            assert begun.is_set()
            assert all(decision.allowed and decision.degraded for decision in decisions)
            assert subject.slowest < DEADLINE + SPARE < LOOK_UP
        finally:
            works.set()
        granted = len(decisions) + subject.hits_until_it_is_back()
        subject.rest(0.3)  # written back
        assert subject.slowest < DEADLINE + SPARE
        left = subject.peek()
        assert left.degraded is None
        assert COUNT - granted <= left.remaining < COUNT


@KINDS
def test_a_server_that_is_slow_but_answers_by_the_deadline_decides(kind: str, between: Proxy) -> None:
    deadline = 5 * DEADLINE  # a third of it is slow, and the rest is for a busy machine
    with closing(Subject(kind, f"{between.url}?timeout={deadline}", deadline=deadline)) as subject:
        assert subject.hit().degraded is None
        between.delay = deadline / 3
        decisions = [subject.hit() for _ in range(5)]
        assert [decision.degraded for decision in decisions] == [None] * 5
        assert [decision.remaining for decision in decisions] == [COUNT - 2 - number for number in range(5)]
        assert subject.slowest >= deadline / 3
        assert not [event for event in subject.events if isinstance(event, Degraded)]


@KINDS
def test_too_many_clients_degrade_when_a_connection_is_made_and_not_before(
    kind: str, fresh_redis: Server, between: Proxy
) -> None:
    url = f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}"
    with fresh_redis.client() as admin, closing(Subject(kind, url)) as subject:
        assert subject.hit().degraded is None
        admin.config_set("maxclients", 1)
        assert [subject.hit().degraded for _ in range(5)] == [None] * 5, "who is connected stays so"
        between.drop()
        subject.rest(0.1)
        decisions = [subject.hit() for _ in range(5)]
        assert all(decision.allowed and decision.degraded for decision in decisions)
        admin.config_set("maxclients", 1_000)
        subject.hits_until_it_is_back()
        assert subject.slowest < DEADLINE + SPARE


@KINDS
def test_a_server_that_comes_back_empty_gives_every_key_one_count_more_and_no_decision_is_degraded(
    kind: str, fresh_redis: Server
) -> None:
    deadline = 10 * DEADLINE  # for a busy machine: nothing here is about time
    with closing(Subject(kind, f"{fresh_redis.url}?timeout={deadline}", deadline=deadline)) as subject:
        for _ in range(2):
            decisions = [subject.hit() for _ in range(COUNT + 10)]
            assert sum(decision.allowed for decision in decisions) == COUNT
            assert not any(decision.degraded for decision in decisions), "nobody asked while it was away"
            fresh_redis.kill()
            fresh_redis.spawn()
            fresh_redis.wait_until_up()


@KINDS
def test_a_password_that_is_changed_degrades_when_a_connection_is_made_and_not_before(
    kind: str, fresh_redis: Server, between: Proxy
) -> None:
    url = f"{between.url.replace('//', '//limiter:first-one@')}?timeout={DEADLINE}"
    with fresh_redis.client() as admin, closing(Subject(kind, url)) as subject:
        admin.execute_command("ACL SETUSER", "limiter", "on", ">first-one", "~*", "+@all")
        assert subject.hit().degraded is None
        admin.execute_command("ACL SETUSER", "limiter", "resetpass", ">second-one")
        assert subject.hit().degraded is None, "who has logged in stays so"
        between.drop()
        subject.rest(0.1)
        for _ in range(5):
            decision = subject.hit()
            assert decision
            assert "rejected the user or the password" in str(decision.degraded)
            assert "first-one" not in str(decision.degraded)
        admin.execute_command("ACL SETUSER", "limiter", ">first-one")  # both are right now: nobody has to be restarted
        granted = 7 + subject.hits_until_it_is_back()
        subject.rest(0.3)
        assert subject.peek().remaining == COUNT - granted, (
            "all of it is written back: a login that fails spends nothing"
        )


@KINDS
def test_in_a_sentinel_failover_every_decision_is_in_time_and_then_the_new_master_decides(
    kind: str, sentinels: SentinelGroup
) -> None:
    master = sentinels.master
    subject = Subject(kind, f"{sentinels.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}&prefix=guarded-{kind}-")
    wait_until(lambda: subject.hit("warm").degraded is None, BACK, "the first connection")
    subject.slowest = 0.0
    master.kill()
    try:
        decisions = [subject.hit(f"{number}") for number in range(20)]
        assert all(decision.allowed and decision.degraded for decision in decisions)
        wait_until(lambda: subject.hit("b").degraded is None, 30, "the new master decides")
        assert subject.slowest < DEADLINE + SPARE
        sentinels.wait_for_master_other_than(master.port)
    finally:
        master.spawn()
        master.wait_until_up()
        sentinels.wait_until_ok()
        subject.close()
