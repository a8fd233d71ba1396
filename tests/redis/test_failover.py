"""A master that dies, or is one no more, under load: service resumes by itself, and what may be admitted twice is
what the dead one had granted and not yet told its replica. Real servers, killed.

Nothing comes back to these limits while a test runs, so what a grant leaves says which unit of the count it was.
"""

import asyncio
import itertools
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError
from ratebound.storage.redis.address import parse_url
from tests.servers import HOST, Cluster, SentinelGroup, Server, cluster, sentinel_group, wait_until

COUNT = 100_000
LIMIT = f"1/10000 seconds burst {COUNT}"
OPTIONS = "timeout=1&connect_timeout=1"
THREADS = 3
TASKS = 8
RESUMES = 30.0  # seconds, at most
runs = itertools.count()
long = pytest.mark.skipif(
    os.environ.get("RATEBOUND_LONG") != "1", reason="set RATEBOUND_LONG=1: all of them take a minute"
)
deafness = pytest.mark.parametrize("deaf", [False, pytest.param(True, marks=long)], ids=["", "replica hears nothing"])
sureness = pytest.mark.parametrize("sure", [0, 1], ids=["", "replicas=1"])
# redis-py drops the nodes of a Cluster that changed without closing them.
pytestmark = [long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


class Load:
    """Threads and tasks that hit keys until they are told to end, and what they were told."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url = url
        self.keys = keys
        self.left: dict[str, list[tuple[float, int]]] = defaultdict(list)  # by key: when a grant came, what it left
        self.decided: dict[tuple[str, str], float] = {}  # by kind and key: when the last decision came
        self.errors: Counter[str] = Counter()
        self.escaped: list[BaseException] = []
        self._end = False
        self._threads = [threading.Thread(target=self._guard, args=(self._hit,)) for _ in range(THREADS)]
        self._threads.append(threading.Thread(target=self._guard, args=(self._run_tasks,)))
        self._limiter = Limiter(LIMIT, storage=url, failure="raise")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self.wait_for_decisions()

    def end(self) -> None:
        self._end = True
        for thread in self._threads:
            thread.join(RESUMES)
        self._limiter.close()

    def wait_for_decisions(self) -> None:
        """Until threads and tasks have been given new ones on every key."""
        begin = time.time()
        kinds = [(kind, key) for kind in ("threads", "tasks") for key in self.keys]
        wait_until(
            lambda: bool(self.escaped) or all(self.decided.get(kind, 0.0) > begin for kind in kinds),
            RESUMES,
            f"decisions for all of {self.keys}, after {self.errors}",
        )
        assert not self.escaped, self.escaped

    def _told(self, kind: str, key: str, allowed: bool, left: int) -> None:
        now = time.time()
        self.decided[kind, key] = now
        if allowed:
            self.left[key].append((now, left))

    def _failed(self, error: StorageError) -> None:
        self.errors[str(error).partition("(")[0]] += 1

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.escaped.append(error)

    def _hit(self) -> None:
        for key in itertools.cycle(self.keys):
            if self._end:
                return
            try:
                decision = self._limiter.hit(key)
                self._told("threads", key, decision.allowed, decision.remaining)
            except StorageError as error:
                self._failed(error)
                time.sleep(0.02)

    def _run_tasks(self) -> None:
        asyncio.run(self._all_tasks())

    async def _all_tasks(self) -> None:
        async with AsyncLimiter(LIMIT, storage=self.url, failure="raise") as limiter:
            await asyncio.gather(*(self._hit_in_task(limiter) for _ in range(TASKS)))

    async def _hit_in_task(self, limiter: AsyncLimiter) -> None:
        for key in itertools.cycle(self.keys):
            if self._end:
                return
            try:
                decision = await limiter.hit(key)
                self._told("tasks", key, decision.allowed, decision.remaining)
            except StorageError as error:
                self._failed(error)
                await asyncio.sleep(0.02)


@contextmanager
def load(url: str, keys: list[str]) -> Iterator[Load]:
    hands = Load(url, keys)
    try:
        hands.start()
        yield hands
    finally:
        hands.end()
    assert not hands.escaped, hands.escaped


def drained(url: str, key: str) -> int:
    """Spend all that is left of a key; how much it was."""
    with Limiter(LIMIT, storage=url, failure="raise") as limiter:
        left = limiter.peek(key).remaining
        assert not left or limiter.hit(key, cost=left)
        assert not limiter.hit(key)
    return left


def admitted_twice(hands: Load, key: str, broke: float) -> int:
    """How many units of the count were granted before and after; never more than were granted and then forgotten."""
    before = [left for when, left in hands.left[key] if when <= broke]
    after = [left for when, left in hands.left[key] if when > broke]
    for reign in (before, after):
        assert len(set(reign)) == len(reign), f"one master has granted a unit of {key} twice"
    rest = drained(hands.url, key)
    forgotten = [left for left in before if left <= max(after)]
    twice = len(set(before) & {*after, *range(rest)})
    assert len(before) + len(after) + rest - COUNT <= twice <= len(forgotten) <= COUNT
    return twice


def report(
    record: Callable[[str, object], None], what: str, hands: Load, twice: dict[str, int], paused: float, deaf: bool
) -> None:
    what += ", the replica heard nothing for the last 0.2 s" if deaf else ""
    record(f"admitted twice, {what}", twice)
    grants = {key: len(left) for key, left in hands.left.items()}
    sys.stdout.write(
        f"\n{what}: admitted twice {twice} of {grants} grants; decisions on every key again after {paused:.1f} s;"
        f" errors meanwhile {dict(hands.errors)}\n"
    )


def sentinel_url(sentinels: SentinelGroup, replicas: int = 0) -> str:
    return f"{sentinels.url}?{OPTIONS}&prefix=failover{next(runs)}-&replicas={replicas}"


def cluster_url(redis_cluster: Cluster, replicas: int = 0) -> str:
    """Known by all its nodes, since the one named first may be the one that dies."""
    hosts = ",".join(f"{HOST}:{node.port}" for node in redis_cluster.nodes)
    return f"redis+cluster://{hosts}?{OPTIONS}&prefix=failover{next(runs)}-&replicas={replicas}"


def keys_on(url: str, redis_cluster: Cluster, victim: Server, count: int, *, others: bool = False) -> list[str]:
    subject = parse_url(url).keys.subject
    every = (f"key:{i}" for i in itertools.count())
    return list(
        itertools.islice(
            (key for key in every if (redis_cluster.node_of(subject(key).decode()) is victim) is not others), count
        )
    )


@contextmanager
def revived(server: Server, servers: SentinelGroup | Cluster) -> Iterator[None]:
    """In the end, whatever happens: the tests share their servers."""
    try:
        yield
    finally:
        revive(server)
        servers.wait_until_ok()


def revive(server: Server) -> None:
    server.kill()
    server.spawn()
    server.wait_until_up()


def cut_off(master: Server, replica: Server) -> None:
    """From now on the replica hears nothing: it is paused, and what the master would send goes nowhere."""
    replica.pause()
    with master.client() as client:
        client.execute_command("CLIENT KILL TYPE replica")


def replica_of(master: Server, redis_cluster: Cluster) -> Server:
    for node in redis_cluster.nodes:
        with node.client() as client:
            role: Any = client.role()
        if role[0] == "slave" and role[2] == master.port:
            return node
    raise LookupError(f"no replica of {master.port}")


def die_under_load(master: Server, replica: Server, deaf: bool) -> None:
    wait_until_replicated(master, replica)
    time.sleep(0.3)
    if deaf:
        cut_off(master, replica)
        time.sleep(0.2)
    master.kill()
    if deaf:
        replica.resume()


def wait_until_replicated(master: Server, replica: Server) -> None:
    """Until it has all that was written by now. After a full sync a link is up for a second before anything flows."""

    def offset(server: Server, name: str) -> int:
        with server.client() as client:
            info: Any = client.info("replication")
        return int(info[name])

    written = offset(master, "master_repl_offset")
    wait_until(lambda: offset(replica, "slave_repl_offset") >= written, 10, "replication")


@sureness
@deafness
def test_a_sentinel_failover_under_load_is_survived_and_admits_twice_only_what_was_not_replicated(
    deaf: bool, sure: int, sentinels: SentinelGroup, record_property: Callable[[str, object], None]
) -> None:
    keys = ["a", "b", "c"]
    master = sentinels.master
    (replica,) = sentinels.replicas
    with load(sentinel_url(sentinels, sure), keys) as hands, revived(master, sentinels):
        die_under_load(master, replica, deaf)
        broke = time.time() + 0.1  # replies that were under way are in by then, a new master is not
        if sure:  # or the new master has no replica, and no spend counts
            sentinels.wait_for_master_other_than(master.port)
            revive(master)
        hands.wait_for_decisions()
        paused = time.time() - broke
    assert sentinels.master is not master
    twice = {key: admitted_twice(hands, key, broke) for key in keys}
    report(record_property, f"Sentinel failover, replicas={sure}", hands, twice, paused, deaf)
    assert any(twice.values()) if deaf and not sure else not (sure and any(twice.values()))


@sureness
@deafness
def test_a_cluster_master_killed_under_load_is_survived_and_admits_twice_only_what_was_not_replicated(
    deaf: bool, sure: int, redis_cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    url = cluster_url(redis_cluster, sure)
    victim = redis_cluster.node_of("any")
    struck, safe = keys_on(url, redis_cluster, victim, 2), keys_on(url, redis_cluster, victim, 1, others=True)
    replica = replica_of(victim, redis_cluster)
    with load(url, struck + safe) as hands, revived(victim, redis_cluster):
        die_under_load(victim, replica, deaf)
        broke = time.time() + 0.1
        if sure:
            wait_until(lambda: redis_cluster.node_of("any") is not victim, RESUMES, "another master")
            revive(victim)
        hands.wait_for_decisions()
        paused = time.time() - broke
    twice = {key: admitted_twice(hands, key, broke) for key in struck + safe}
    report(record_property, f"Cluster node kill, replicas={sure}", hands, twice, paused, deaf)
    assert not any(twice[key] for key in safe), "a master that lives forgets nothing"
    assert any(twice.values()) if deaf and not sure else not (sure and any(twice.values()))


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_what_no_replica_heard_of_is_granted_again_and_not_one_more(
    kind: str, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    known, forgotten = 30, 20
    servers: Any = request.getfixturevalue("sentinels" if kind == "sentinel" else "redis_cluster")
    if kind == "sentinel":
        url, key, master = sentinel_url(servers), "k", servers.master
        (replica,) = servers.replicas
    else:
        url, master = cluster_url(servers), servers.node_of("any")
        (key,) = keys_on(url, servers, master, 1)
        replica = replica_of(master, servers)
    limit = f"1/10000 seconds burst {known + forgotten}"
    with revived(master, servers), Limiter(limit, storage=url, failure="raise") as limiter:
        assert all(limiter.hit(key) for _ in range(known))
        wait_until_replicated(master, replica)
        cut_off(master, replica)
        assert all(limiter.hit(key) for _ in range(forgotten))
        assert not limiter.hit(key)
        master.kill()
        replica.resume()
        again = 0

        def denied() -> bool:
            nonlocal again
            try:
                allowed = limiter.hit(key).allowed
            except StorageError:
                return False
            again += allowed
            return not allowed

        wait_until(denied, RESUMES, "a denial by the new master")
        assert again <= forgotten, "an answer that got lost is charged and not counted, and so fewer"
        record_property(f"admitted twice, {kind}", again)
        sys.stdout.write(f"\n{kind}, {forgotten} spends that no replica heard of: admitted twice {again}\n")


def test_a_replica_answers_with_a_storage_error_and_not_with_a_grant(sentinels: SentinelGroup) -> None:
    (replica,) = sentinels.replicas

    async def main() -> None:
        async with AsyncLimiter(LIMIT, storage=f"{replica.url}?{OPTIONS}", failure="raise") as limiter:
            with pytest.raises(StorageError, match="this server is a replica"):
                await limiter.hit("k")

    with (
        Limiter(LIMIT, storage=f"{replica.url}?{OPTIONS}", failure="raise") as limiter,
        pytest.raises(StorageError, match="this server is a replica"),
    ):
        limiter.hit("k")
    asyncio.run(main())


def test_a_master_that_is_replaced_under_load_and_comes_back_as_a_replica_grants_nothing(
    sentinels: SentinelGroup,
) -> None:
    keys = ["a", "b"]
    old = sentinels.master
    with load(sentinel_url(sentinels), keys) as hands:
        with sentinels.sentinels[0].client() as client:
            client.execute_command("SENTINEL FAILOVER", sentinels.service)
        sentinels.wait_for_master_other_than(old.port)
        sentinels.wait_until_ok()
        hands.wait_for_decisions()
    for key in keys:
        most = max(Counter(left for _, left in hands.left[key]).values())
        assert most <= 2, "two masters: each grants a unit once"
        assert len(hands.left[key]) + drained(hands.url, key) <= 2 * COUNT


def test_a_connection_to_a_master_that_was_demoted_is_given_up_for_the_right_one(sentinels: SentinelGroup) -> None:
    """By hand, without the CLIENT KILL that Sentinel sends: as for who asks a sentinel that has not heard yet."""
    url = sentinel_url(sentinels)
    old = sentinels.master
    (new,) = sentinels.replicas
    quorum = len(sentinels.sentinels) // 2 + 1

    def right() -> bool:
        try:
            return limiter.hit("k").allowed
        except StorageError:
            return False

    async def main() -> None:
        async with AsyncLimiter(LIMIT, storage=url, failure="raise") as tasks:

            async def right_in_task() -> bool:
                try:
                    return (await tasks.hit("k")).allowed
                except StorageError:
                    return False

            assert await tasks.hit("k")
            swap()
            deadline = time.monotonic() + 5
            while not await right_in_task():
                assert time.monotonic() < deadline, "tasks are stuck at the old master"
                await asyncio.sleep(0.02)

    def swap() -> None:
        for sentinel in sentinels.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL REMOVE", sentinels.service)
        wait_until_replicated(old, new)
        with new.client() as client:
            client.execute_command("REPLICAOF NO ONE")
        with old.client() as client:
            client.execute_command("REPLICAOF", HOST, new.port)
        for sentinel in sentinels.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL MONITOR", sentinels.service, HOST, new.port, quorum)

    with Limiter(LIMIT, storage=url, failure="raise") as limiter:
        assert limiter.hit("k")
        asyncio.run(main())
        wait_until(right, 5, "threads at the right master")


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_with_replicas_1_eight_failovers_under_load_admit_nothing_twice(kind: str) -> None:
    with sentinel_group() if kind == "sentinel" else cluster() as servers:
        if isinstance(servers, SentinelGroup):
            url, keys = sentinel_url(servers, 1), ["a", "b"]
        else:
            url = cluster_url(servers, 1)
            keys = keys_on(url, servers, servers.node_of("any"), 2)
        with load(url, keys) as hands:
            for _ in range(8):
                time.sleep(0.3)
                if isinstance(servers, SentinelGroup):
                    master = servers.master
                    master.kill()
                    servers.wait_for_master_other_than(master.port)
                else:
                    master = servers.node_of("any")
                    master.kill()
                    wait_until(lambda: servers.node_of("any") is not master, RESUMES, "another master")  # noqa: B023
                revive(master)  # only now: it comes back empty
                servers.wait_until_ok()
                hands.wait_for_decisions()
        for key in keys:
            grants = Counter(left for _, left in hands.left[key])
            sys.stdout.write(f"\neight failovers, {kind}, replicas=1: {len(grants)} units of {key} granted once each\n")
            assert max(grants.values()) == 1
            assert len(grants) + drained(url, key) <= COUNT


@long
def test_failover_after_failover_leaks_no_connections_and_service_always_resumes() -> None:
    with sentinel_group() as sentinels, load(f"{sentinels.url}?{OPTIONS}&pool=16", ["a", "b"]) as hands:
        for _ in range(8):
            master = sentinels.master
            master.kill()
            sentinels.wait_for_master_other_than(master.port)
            revive(master)
            sentinels.wait_until_ok()
            hands.wait_for_decisions()
        for key in hands.keys:
            most = max(Counter(left for _, left in hands.left[key]).values())
            sys.stdout.write(f"\neight failovers: a unit of {key} was granted {most} times at most\n")
            assert most <= 1 + 8
