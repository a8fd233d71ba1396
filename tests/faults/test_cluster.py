"""One node of a real Cluster fails: what is on it is decided here, what is on the others there, and it comes back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ratebound import AsyncLimiter, Check, Decision, Limit, Limiter, parse_limit
from ratebound.events import Degraded, Event, Recovered
from ratebound.limit import Group
from tests.servers import Cluster, Server, cluster, wait_until

DEADLINE = 0.5
SPARE = 1.0
LIMIT = parse_limit("100/hour")


@pytest.fixture(scope="module")
def three_masters() -> Iterator[Cluster]:
    with cluster(masters=3, replicas=0) as nodes:
        for node in nodes.nodes:
            with node.client() as admin:
                admin.config_set("cluster-require-full-coverage", "no")
        yield nodes


class Subject:
    """A limiter for threads or for tasks, and which of its keys are on which node."""

    def __init__(self, kind: str, url: str, limits: Limit | str = LIMIT) -> None:
        self.events: list[Event] = []
        options: Any = {"deadline": DEADLINE, "listeners": [self.events.append]}
        self.runner: asyncio.Runner | None = None
        self.limiter: Any
        if kind == "threads":
            self.limiter = Limiter(limits, storage=url, **options)
        else:
            self.limiter = AsyncLimiter(limits, storage=url, **options)
            self.runner = asyncio.Runner()

    def do(self, method: Any, *arguments: Any) -> Any:
        result = method(*arguments)
        return result if self.runner is None else self.runner.run(result)

    def keys_by_node(self, count: int) -> dict[str, list[str]]:
        async def look() -> dict[str, list[str]]:  # a storage for tasks knows its nodes inside of its loop
            found: dict[str, list[str]] = {}
            for i in range(count):
                group: Group = ((f"k{i}", self.limiter.limits, 1, None, None),)
                (node,) = self.limiter.storage.inner.nodes_of(group)
                found.setdefault(node, []).append(f"k{i}")
            return found

        return asyncio.run(look()) if self.runner is None else self.runner.run(look())

    def told(self) -> list[tuple[type, str]]:
        return [(type(event), event.node) for event in self.events if isinstance(event, Degraded | Recovered)]

    def close(self) -> None:
        self.do(self.limiter.close)
        if self.runner is not None:
            self.runner.close()


def server_at(nodes: Cluster, name: str) -> Server:
    return next(node for node in nodes.nodes if name.endswith(f":{node.port}"))


def test_a_healthy_cluster_decides_for_any_number_of_threads(three_masters: Cluster) -> None:
    url = f"{three_masters.url}?prefix=crowd&timeout=10&connect_timeout=10"  # they wait for each other's connections
    with Limiter("100000/hour", storage=url, deadline=10) as limiter:
        reasons: list[str | None] = []
        begin = threading.Barrier(120)

        def work(key: str) -> None:
            begin.wait()
            reasons.extend(limiter.hit(key).degraded for _ in range(5))

        threads = [threading.Thread(target=work, args=(f"k{i}",)) for i in range(120)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reasons == [None] * 600


@pytest.fixture(params=["threads", "tasks"])
def subject(request: pytest.FixtureRequest, three_masters: Cluster) -> Iterator[Subject]:
    prefix = f"{request.param}{uuid4().hex}"  # of its own: a second run must not find what the first has spent
    subject = Subject(request.param, f"{three_masters.url}?timeout={DEADLINE}&prefix={prefix}")
    yield subject
    subject.close()


def test_a_node_that_hangs_degrades_what_is_on_it_and_nothing_else(subject: Subject, three_masters: Cluster) -> None:
    limiter = subject.limiter
    for _ in range(3):
        subject.do(limiter.hit, "warm")
    keys = subject.keys_by_node(60)
    assert len(keys) == 3
    broken, *sound = sorted(keys)
    server = server_at(three_masters, broken)
    server.pause()
    try:
        for i in range(6):
            begin = time.monotonic()
            degraded: Decision = subject.do(limiter.hit, keys[broken][0])
            assert degraded
            assert degraded.degraded, i
            assert time.monotonic() - begin < DEADLINE + SPARE
            for node in sound:
                assert subject.do(limiter.hit, keys[node][0]).degraded is None
        assert subject.told() == [(Degraded, broken)]
        mixed = [keys[sound[0]][1], keys[broken][1], keys[sound[1]][1], keys[broken][1]]
        answers = subject.do(limiter.hit_many, mixed)
        assert [bool(answer.degraded) for answer in answers] == [False, True, False, True]
        assert [answer.remaining for answer in answers] == [99, 99, 99, 98]
        spanning = [Check(keys[sound[0]][2], LIMIT), Check(keys[broken][2], LIMIT)]
        assert subject.do(limiter.check, spanning).degraded
    finally:
        server.resume()

    def back() -> bool:
        return subject.do(limiter.hit, keys[broken][3]).degraded is None

    wait_until(back, 15, "the node decides again")
    wait_until(lambda: subject.do(limiter.peek, keys[broken][1]).remaining == 98, 15, "what was granted is written")

    def is_told() -> bool:
        subject.do(limiter.peek, keys[broken][1])  # lets the event loop of tasks run
        return subject.told() == [(Degraded, broken), (Recovered, broken)]

    wait_until(is_told, 15, "it is said to be back")
    assert subject.do(limiter.check, [Check(keys[sound[0]][2], LIMIT), Check(keys[broken][2], LIMIT)]).degraded is None


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_clients_that_are_blocked_on_a_node_that_hangs_stay_blocked(kind: str, three_masters: Cluster) -> None:
    url = f"{three_masters.url}?timeout={DEADLINE}&prefix={kind}{uuid4().hex}"
    subject = Subject(kind, url, "1/hour; 1 strike/hour block 1 hour as guessing")
    limiter = subject.limiter
    subject.do(limiter.hit, "warm")
    keys = subject.keys_by_node(60)
    broken, *sound = sorted(keys)
    for name in keys:
        found: list[Decision] = [subject.do(limiter.hit, keys[name][0]) for _ in range(2)]
        assert [decision.blocked for decision in found] == [False, True]
    server = server_at(three_masters, broken)
    server.pause()
    try:
        for _ in range(5):
            blocked: Decision = subject.do(limiter.hit, keys[broken][0])
            assert blocked.degraded
            assert blocked.blocked
        assert subject.do(limiter.hit, keys[broken][1]), "its share"
        for name in sound:
            decision: Decision = subject.do(limiter.hit, keys[name][0])
            assert (decision.blocked, decision.degraded) == (True, None)
    finally:
        server.resume()
    wait_until(lambda: subject.do(limiter.peek, keys[broken][0]).degraded is None, 15, "the node decides again")
    assert subject.do(limiter.hit, keys[broken][0]).blocked
    subject.close()
