"""Memcached in trouble: decisions return in time, nothing but StorageError leaves, and the guard answers."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError, parse_limit
from ratebound.events import Degraded, Recovered
from ratebound.limit import Failure, Group, Limit
from ratebound.storage.blame import TooLate
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.memcached.storage import AsyncMemcachedStorage, MemcachedStorage
from ratebound.testing import Blocking, ask
from tests.databases import Memcached, memcached_servers
from tests.proxy import Proxy
from tests.servers import HOST, free_port, wait_until

LIMIT = parse_limit("5/hour")
BOUND = 5.0  # seconds: far more than any deadline here, and far less than for ever
KINDS: dict[str, Callable[[str], Any]] = {
    "threads": MemcachedStorage,
    "tasks": lambda url: Blocking(AsyncMemcachedStorage(url)),
}
runs = itertools.count()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return KINDS[request.param]


@pytest.fixture
def proxy(memcached: Memcached) -> Iterator[Proxy]:
    made: Any = memcached
    between = Proxy(made)
    yield between
    between.close()


def through(proxy: Proxy, timeout: float = 0.3) -> str:
    return f"memcached://{HOST}:{proxy.port}?timeout={timeout}&prefix=faults{next(runs)}-"


def failed(storage: Any, key: str = "a", limit: Limit = LIMIT) -> StorageError:
    """The error of a spend, which must come in time."""
    begin = time.monotonic()
    with pytest.raises(StorageError) as caught:
        ask(storage, key, limit)
    assert time.monotonic() - begin < BOUND
    return caught.value


def test_a_server_that_was_never_there_has_certainly_decided_nothing(kind: Callable[[str], Any]) -> None:
    with closing(kind(f"memcached://{HOST}:{free_port()}")) as storage:
        error = failed(storage)
        assert (error.undone, error.outage) == (True, True)
        assert "cannot connect to Memcached" in str(error)
        with pytest.raises(StorageError):
            storage.reset((("a", (LIMIT,), 1, None, None),))


def test_a_name_that_nobody_knows_is_an_outage(kind: Callable[[str], Any]) -> None:
    with closing(kind("memcached://nowhere.invalid?timeout=2")) as storage:
        error = failed(storage)
        assert (error.undone, error.outage) == (True, True)


def test_a_resolver_that_hangs_does_not_hang_the_call(
    kind: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: go.wait(60) and [])
    try:
        with closing(kind("memcached://slow.example?timeout=0.1")) as storage:
            error = failed(storage)
            assert (isinstance(error, TooLate), error.outage) == (True, True)
    finally:
        go.set()


def test_a_killed_server_is_an_outage_and_one_that_is_back_counts_anew(
    kind: Callable[[str], Any], fresh_memcached: Memcached
) -> None:
    with closing(kind(f"{fresh_memcached.url}?timeout=2")) as storage:
        for _ in range(5):
            assert ask(storage, "a", LIMIT).allowed
        assert not ask(storage, "a", LIMIT).allowed
        fresh_memcached.kill()
        assert failed(storage).outage
        fresh_memcached.start()
        assert [ask(storage, "a", LIMIT).allowed for _ in range(6)] == [True] * 5 + [False], "it has forgotten them"


def test_a_restart_between_two_calls_is_not_noticed_but_by_the_counts(
    kind: Callable[[str], Any], fresh_memcached: Memcached
) -> None:
    with closing(kind(f"{fresh_memcached.url}?timeout=2")) as storage:
        assert ask(storage, "a", LIMIT).remaining == 4
        fresh_memcached.restart()
        assert ask(storage, "a", LIMIT).remaining == 4


def test_a_paused_server_is_an_outage_in_time_and_goes_on_afterwards(
    kind: Callable[[str], Any], fresh_memcached: Memcached
) -> None:
    with closing(kind(f"{fresh_memcached.url}?timeout=0.3")) as storage:
        assert ask(storage, "a", LIMIT).remaining == 4
        fresh_memcached.pause()
        try:
            error = failed(storage)
            assert (isinstance(error, TooLate), error.outage) == (True, True)
        finally:
            fresh_memcached.resume()
        # The call that was given up may have been written to the socket: then the server counts it after the pause
        assert ask(storage, "a", LIMIT).remaining in (2, 3)


def test_an_answer_that_is_cut_leaves_it_open_whether_a_swap_was_made(kind: Callable[[str], Any], proxy: Proxy) -> None:
    with closing(kind(through(proxy, 5))) as storage:
        assert ask(storage, "a", LIMIT).remaining == 4
        proxy.cut_reply(3)  # of the read
        assert failed(storage).undone
        assert ask(storage, "a", LIMIT).remaining == 3


@pytest.mark.parametrize("answer", [b"", b"STO", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"STORED"])
def test_a_swap_without_a_whole_answer_may_have_been_made(answer: bytes, proxy: Proxy) -> None:
    with closing(MemcachedStorage(through(proxy))) as storage:
        ask(storage, "a", LIMIT)
        server: Any = storage._servers[0]
        read = server.read

        def then_trouble(*arguments: Any) -> Any:
            found = read(*arguments)
            proxy.garbage, proxy.mute = answer or None, not answer
            return found

        server.read = then_trouble
        error = failed(storage)
        assert (error.undone, error.outage) == (False, True)
        server.read = read
        proxy.mend()
        proxy.mute = False
        assert ask(storage, "a", LIMIT, mode="peek").remaining == 3, "here it was"


@pytest.mark.parametrize(
    "answer", [b"x\r\n", b"VALUE \r\n", b"VALUE a 0 nine 1\r\n", b"\xff" * 100, b"ERROR Too many open connections\r\n"]
)
def test_an_answer_of_another_program_is_an_outage_that_changed_nothing(
    answer: bytes, kind: Callable[[str], Any], proxy: Proxy
) -> None:
    with closing(kind(through(proxy))) as storage:
        ask(storage, "a", LIMIT)
        proxy.garbage = answer
        error = failed(storage)
        assert (error.undone, error.outage) == (True, True)
        proxy.mend()
        assert ask(storage, "a", LIMIT).remaining == 3


def test_a_server_that_answers_byte_by_byte_does_not_prolong_a_call() -> None:
    """Each byte is in time, and all of them are not."""
    with socket.create_server((HOST, 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            peer, _ = listener.accept()
            with peer:
                while not ended.wait(0.05):
                    try:
                        peer.sendall(b"V")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with closing(MemcachedStorage(f"memcached://{HOST}:{listener.getsockname()[1]}?timeout=0.3")) as storage:
            assert isinstance(failed(storage), TooLate)
        ended.set()
        thread.join(10)


def test_a_swap_that_never_wins_ends_at_the_deadline_and_has_changed_nothing(memcached: Memcached) -> None:
    """The server is not blamed: other processes were quicker."""
    with closing(MemcachedStorage(f"{memcached.url}?timeout=0.3&prefix=busy{next(runs)}-")) as storage:
        ask(storage, "a", LIMIT)
        storage._servers[0].swap = lambda *_: False  # type: ignore[method-assign]
        error = failed(storage)
        assert (error.undone, error.outage) == (True, False)
        assert "larger ?timeout=" in str(error)
        assert ask(storage, "a", LIMIT, mode="peek").remaining == 4


def two_keys(storage: MemcachedStorage) -> tuple[list[str], list[str]]:
    """Keys of the first server, and of the second."""
    keys: tuple[list[str], list[str]] = [], []
    for number in range(200):
        key = f"key:{number}"
        (node,) = storage.nodes_of(((key, (LIMIT,), 1, None, None),))
        keys[[server.name for server in storage.address.servers].index(node)].append(key)
    return keys


def test_one_of_two_servers_that_is_dead_keeps_its_keys_and_the_other_goes_on() -> None:
    with memcached_servers(2) as servers:
        hosts = ",".join(server.url.removeprefix("memcached://") for server in servers)
        told: list[Any] = []
        inner = MemcachedStorage(f"memcached://{hosts}?timeout=2")
        first, second = two_keys(inner)
        assert min(len(first), len(second)) > 50, "they share the keys"
        storage = GuardedStorage(inner, listeners=[told.append], workers=1, probe_interval=0.05)
        for key in (*first[:5], *second[:5]):
            assert ask(storage, key, LIMIT).remaining == 4
        servers[0].kill()
        for key in (*first[:5], *second[:5]) * 3:
            assert ask(storage, key, LIMIT).allowed
        dead, alive = (storage.guard.breakers[server.name] for server in inner.address.servers)
        assert (dead.closed, alive.closed) == (False, True)
        assert [ask(storage, key, LIMIT, mode="peek").remaining for key in second[:5]] == [1] * 5
        both: Group = [(first[0], (LIMIT,), 1, None, None), (second[9], (LIMIT,), 1, None, None)]
        assert all(row[0] for row in storage.evaluate((both,))[0]), "decided here"
        rows = storage.evaluate([[ask] for ask in both])
        assert all(found[0][0] for found in rows)
        assert alive.closed
        servers[0].start()
        wait_until(lambda: ask(storage, first[20], LIMIT, mode="peek").allowed and dead.closed, 20, "a closed breaker")
        wait_until(lambda: any(isinstance(event, Recovered) for event in told), 20, "an event")
        assert {event.node for event in told if isinstance(event, Degraded)} == {inner.address.servers[0].name}
        storage.close()


def test_what_was_granted_without_the_server_is_written_back(fresh_memcached: Memcached) -> None:
    storage = GuardedStorage(MemcachedStorage(f"{fresh_memcached.url}?timeout=1"), workers=1, probe_interval=0.05)
    assert ask(storage, "a", "10/hour").remaining == 9
    fresh_memcached.kill()
    assert [ask(storage, "a", "10/hour").allowed for _ in range(4)] == [True] * 4
    fresh_memcached.start()

    def is_written() -> bool:
        ask(storage, "other", "10/hour", mode="peek")
        with closing(MemcachedStorage(f"{fresh_memcached.url}?timeout=5")) as plain:
            return ask(plain, "a", "10/hour", mode="peek").remaining == 6

    wait_until(is_written, 20, "four units, which the restarted server has not seen")
    storage.close()


@pytest.mark.parametrize(("failure", "allowed"), [("open", True), ("closed", False), ("local", True)])
def test_the_failure_mode_answers_for_a_server_that_is_away(failure: Failure, allowed: bool) -> None:
    url = f"memcached://{HOST}:{free_port()}"
    with Limiter("5/hour", storage=url, failure=failure) as limiter:
        decision = limiter.hit("a")
        assert decision.allowed is allowed
        assert "cannot connect to Memcached" in str(decision.degraded)

    async def main() -> None:
        async with AsyncLimiter("5/hour", storage=url, failure=failure) as tasks:
            decision = await tasks.hit("a")
            assert decision.allowed is allowed
            assert "cannot connect to Memcached" in str(decision.degraded)

    asyncio.run(main())
    with Limiter("5/hour", storage=url, failure="raise") as limiter, pytest.raises(StorageError):
        limiter.hit("a")


def test_many_tasks_on_a_paused_server_all_return_in_time_and_leave_no_thread_busy(fresh_memcached: Memcached) -> None:
    async def main() -> None:
        storage = AsyncMemcachedStorage(f"{fresh_memcached.url}?timeout=0.3")
        group: Group = (("a", (LIMIT,), 1, None, None),)
        await storage.evaluate((group,))
        fresh_memcached.pause()
        begin = time.monotonic()
        found = await asyncio.gather(*(storage.evaluate((group,)) for _ in range(300)), return_exceptions=True)
        assert time.monotonic() - begin < BOUND
        assert {isinstance(one, StorageError) for one in found} == {True}
        fresh_memcached.resume()
        while storage._lines:
            await asyncio.sleep(0.01)
        ((row,),) = await storage.evaluate((group,), "peek")
        assert row[0]
        await storage.close()

    asyncio.run(main())


@pytest.mark.parametrize("hands", KINDS)
def test_connections_that_drop_at_any_moment_lose_no_grant_and_count_nothing_that_is_said_to_be_undone(
    hands: str, proxy: Proxy
) -> None:
    """What was granted is counted. What failed is counted at most where the error says that its fate is unknown."""
    storage = MemcachedStorage(through(proxy, 5))
    group: Group = (("a", (parse_limit("1000000/day fixed-window"),), 1, None, None),)
    granted: list[int] = []
    unknown: list[StorageError] = []
    others: list[BaseException] = []
    stop = threading.Event()

    def note(error: BaseException) -> None:
        if not isinstance(error, StorageError):
            others.append(error)
        elif not error.undone:
            unknown.append(error)

    def in_thread() -> None:
        while not stop.is_set():
            try:
                storage.evaluate((group,))
                granted.append(1)
            except BaseException as error:
                note(error)

    async def in_tasks() -> None:
        tasks = storage.async_twin()

        async def work() -> None:
            while not stop.is_set():
                try:
                    await tasks.evaluate((group,))
                    granted.append(1)
                except Exception as error:
                    note(error)

        await asyncio.gather(*(work() for _ in range(20)))

    hitting = [threading.Thread(target=in_thread) for _ in range(3)]
    if hands == "tasks":
        hitting = [threading.Thread(target=asyncio.run, args=(in_tasks(),))]
    for thread in hitting:
        thread.start()
    for _ in range(30):
        enough = len(granted) + 3
        wait_until(lambda enough=enough: len(granted) > enough, 20, "some grants")  # type: ignore[misc]
        proxy.drop()
    stop.set()
    for thread in hitting:
        thread.join(20)
    assert others == []
    counted = ask(storage, "a", "1000000/day fixed-window", mode="peek")
    used = 1_000_000 - counted.remaining
    assert len(granted) <= used <= len(granted) + len(unknown)
    storage.close()
