"""Memcached as a storage: URLs, names, items, and what it refuses."""

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from ratebound import AsyncLimiter, InvalidLimit, Limit, Limiter, StorageError, parse_limit
from ratebound.admin.storage_name import storage_name
from ratebound.limit import ALGORITHMS, Algorithm, Ask, Group
from ratebound.policy import AsyncGate, Gate, PolicyError, PolicyFile, RequestView, read_policy
from ratebound.storage import refusal_of
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.memcached import item
from ratebound.storage.memcached.address import ServerAddress, read_url, server_of
from ratebound.storage.memcached.storage import AsyncMemcachedStorage, MemcachedStorage
from ratebound.storage.urls import check_storage_url, open_async_storage, open_storage
from ratebound.testing import FakeClock, ask
from tests.databases import Memcached, memcached_servers, program, running
from tests.servers import HOST

runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"
REFUSED = {
    "3 concurrent": "slots",
    "20 distinct account/hour": "distinct values",
    "3 strikes/hour block 5 minutes as guessing": "penalties",
    "20000/day sliding-log large": "sliding-counter",
}


@pytest.fixture
def url(memcached: Memcached) -> str:
    return f"{memcached.url}?{SLOW}&prefix=storage{next(runs)}-"


@pytest.fixture
def storage(url: str, clock: FakeClock) -> Iterator[MemcachedStorage]:
    with closing(MemcachedStorage(url, clock=clock)) as made:
        yield made


def at(server: Memcached, method: str, *arguments: Any, **options: Any) -> Any:
    """Call the server itself."""
    with closing(Client((HOST, server.port))) as client:
        return getattr(client, method)(*arguments, **options)


def fill(server: Memcached, like: bytes) -> None:
    """Write more items of one size than the server has memory for. Their names are as long as ours."""
    with closing(Client((HOST, server.port))) as client:
        for number in range(100):
            client.set_many({f"filler:{number:012}:{each:016}": like for each in range(500)}, noreply=True)
        client.version()  # all of them have arrived


class OnSocket(Memcached):
    """A server that listens on a socket of the file system."""

    def command(self) -> list[str]:
        return [program("memcached"), "-s", self.path, "-a", "0777"]

    def answers(self) -> bool:
        return Path(self.path).exists()

    @property
    def path(self) -> str:
        return f"{self.folder}/it.sock"


# URLs


def test_a_url_names_servers_and_options() -> None:
    found = read_url("memcached://one,two:11212,[::1]:11213?timeout=0.5&prefix=x&secret=s")
    assert [server.name for server in found.servers] == ["one:11211", "two:11212", "[::1]:11213"]
    assert (found.timeout, found.connect_timeout, found.prefix) == (0.5, 0.5, b"x")
    assert read_url("memcached://one?connect_timeout=0.1").connect_timeout == 0.1
    assert read_url("memcached:///run/memcached.sock").servers == (ServerAddress("", path="/run/memcached.sock"),)
    assert found.url == "memcached://one:11211,two:11212,[::1]:11213"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memcached://", "no server"),
        ("memcached://one,", "without a host"),
        ("memcached://one:0", "port 0"),
        ("memcached://one:x", "a port is a number"),
        ("memcached://one,one:11211", "one:11211 is given twice"),
        ("memcached://one/0", "no databases"),
        ("memcached://user:hush@one", "a login is not supported"),
        ("memcached://one?timeout=soon", "timeout must be seconds"),
        ("memcached://one?timeout=0", "timeout must be seconds"),
        ("memcached://one?connect_timeout=-1", "connect_timeout must be seconds"),
        ("memcached://one?prefix=a%20b", "prefix must be"),
        ("memcached://one?hush=1", "option 1 is unknown or repeated, expected timeout, connect_timeout, prefix or"),
        ("memcached://one?prefix=a&prefix=b", "option 2 is unknown or repeated"),
        (f"memcached://one?secret={'hush' * 17}", "at most 64 bytes"),
    ],
)
def test_a_wrong_url_is_refused_and_shows_no_secret(url: str, said: str) -> None:
    for read in (check_storage_url, open_storage, open_async_storage):
        with pytest.raises(ValueError, match=said) as caught:
            read(url)
        assert "hush" not in str(caught.value)


def test_operators_read_the_servers_and_no_secret(url: str) -> None:
    for made in (MemcachedStorage(f"{url}&secret=hush"), AsyncMemcachedStorage(f"{url}&secret=hush")):
        assert storage_name(made) == url.partition("?")[0]


def test_a_socket_is_a_server_too() -> None:
    program("memcached")
    server = OnSocket()
    server.folder.chmod(0o777)
    with running(server), closing(MemcachedStorage(f"memcached://{server.path}?{SLOW}")) as made:
        assert ask(made, "a", "2/hour").remaining == 1
        assert storage_name(made) == f"memcached://{server.path}"


def test_a_host_whose_first_address_does_not_answer_is_reached_at_the_next(
    memcached: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 'localhost' where Memcached listens on IPv4 alone."""
    right = socket.getaddrinfo

    def found(host: str, port: int, **options: Any) -> Any:
        wrong = right("127.0.0.2", port, **options)
        return [*wrong, *right(HOST, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with closing(MemcachedStorage(f"memcached://localhost:{memcached.port}?{SLOW}&prefix=host-")) as made:
        assert ask(made, "a", "2/hour").allowed


# Names and items


def test_no_key_is_in_clear_and_a_secret_starts_anew(fresh_memcached: Memcached) -> None:
    url = f"{fresh_memcached.url}?{SLOW}&prefix=clear-"
    for number, options in enumerate(("", "&secret=one", "&secret=two")):
        with closing(MemcachedStorage(url + options)) as made:
            assert ask(made, "alice@example.com", "9/hour", number + 1).remaining == 8 - number
    said = b""
    with socket.create_connection((HOST, fresh_memcached.port), 10) as connection:
        connection.sendall(b"lru_crawler metadump all\r\n")
        while not said.endswith(b"END\r\n"):
            said += connection.recv(4096)
    assert b"alice" not in said
    assert said.count(b"key=clear-") == 3


def test_limits_of_a_key_are_in_one_item_and_expired_ones_are_dropped(
    storage: MemcachedStorage, clock: FakeClock, memcached: Memcached
) -> None:
    name = storage._name(storage.address.names.of_key("a"))
    for text in ("2/second", "5/minute fixed-window", "9/day burst 9"):
        ask(storage, "a", text)
    found = item.states_in(at(memcached, "get", name), storage.address.names.of_key("a"))
    assert len(found) == 3
    clock.advance(1800)
    ask(storage, "a", "9/day burst 9")
    kept = item.states_in(at(memcached, "get", name), storage.address.names.of_key("a"))
    assert len(kept) == 3, "the clock of this host may have been ahead"
    clock.advance(7200)
    ask(storage, "a", "9/day burst 9")
    assert len(item.states_in(at(memcached, "get", name), storage.address.names.of_key("a"))) == 1


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [(0.5, 3, 3), (60, 62, 62), (2_592_000, 1_700_000_000, 2**31), (100 * 31_536_000, 2**31 - 1, 2**31 - 1)],
)
def test_an_item_lives_a_little_longer_than_its_states(seconds: float, least: int, most: int) -> None:
    """Beyond 30 days Memcached takes an instant instead, by 2038 at the latest."""
    now = 1_700_000_000 * 1_000_000
    state = b"\x01" + (now + round(seconds * 1_000_000)).to_bytes(8, "little") * 3
    _, lives = item.item_of({b"k" * 16 + b"l" * 16: state}, now)
    assert least <= lives <= most


def test_a_server_whose_clock_is_ahead_drops_no_item_of_a_long_quota_early() -> None:
    now, later = time.time(), 40 * 86_400
    state = b"\x01" + round((now + later) * 1_000_000).to_bytes(8, "little") * 3
    _, until = item.item_of({b"k" * 16 + b"l" * 16: state}, round(now * 1_000_000))
    assert until >= int(now) + later + item.DRIFT


@pytest.mark.parametrize("seconds", [0.002, 0.2, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hosts_whose_clocks_differ_grant_together_what_one_clock_would(
    algorithm: Algorithm, seconds: float, url: str, clock: FakeClock
) -> None:
    """Each turn from the host behind to the one ahead must not look like time that has passed."""
    skew = round(seconds * 1_000_000)
    limit = Limit(100, 10_000_000, 100, algorithm)
    with (
        closing(MemcachedStorage(url, clock=clock)) as behind,
        closing(MemcachedStorage(url, clock=lambda: clock.now + skew)) as ahead,
    ):
        assert all(ask(storage, "a", limit, 50).allowed for storage in (ahead, behind))
        assert not any(ask(storage, "a", limit).allowed for _ in range(40) for storage in (behind, ahead))
        wait = ask(behind, "a", limit).retry_after_us
        assert wait is not None
        assert ask(ahead, "a", limit).retry_after_us == wait
        clock.now += wait - 1
        assert not any(ask(storage, "a", limit).allowed for storage in (behind, ahead, behind))
        clock.now += 1
        assert ask(behind, "a", limit).allowed


def test_a_clock_that_is_far_ahead_does_not_become_the_clock_of_others(
    url: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be wrong by years: nobody is denied for so long. The log tells, once."""
    limit = parse_limit("10/minute fixed-window")
    with (
        closing(MemcachedStorage(url, clock=clock)) as right,
        closing(MemcachedStorage(url, clock=lambda: clock.now + 10**15)) as wrong,
    ):
        ask(wrong, "a", limit, 10)
        assert [ask(right, key, limit).at_us for key in "aab"] == [clock.now] * 3
    assert [record.message[:51] for record in caplog.records] == ["the clock of this host is 1e+09 s behind that of an"]


def test_an_item_of_something_else_is_an_error_that_says_so(storage: MemcachedStorage, memcached: Memcached) -> None:
    name = storage._name(storage.address.names.of_key("a"))
    for data, said in ((b"\x07future", "has format 7"), (b"\x01torn", "damaged"), (b"\x01" + b"x" * 40, "damaged")):
        at(memcached, "set", name, data, noreply=False)
        with pytest.raises(StorageError, match=said) as caught:
            ask(storage, "a", "1/hour")
        assert (caught.value.undone, caught.value.outage) == (True, False)
    at(memcached, "delete", name, noreply=False)
    assert ask(storage, "a", "1/hour").allowed


def test_states_that_are_too_large_for_an_item_are_refused_by_the_server(
    storage: MemcachedStorage, clock: FakeClock, memcached: Memcached
) -> None:
    key = storage.address.names.of_key("a")
    ask(storage, "a", "5/hour", 2)
    states = item.states_in(at(memcached, "get", storage._name(key)), key)
    rest = 1_048_400 - len(item.item_of(states, clock.now)[0])
    states[key + b"another limit..."] = b"\x01" + (clock.now + 10**12).to_bytes(8, "little") + bytes(rest)
    assert at(memcached, "set", storage._name(key), item.item_of(states, clock.now)[0], noreply=False)
    with pytest.raises(StorageError, match="larger than an item") as caught:
        ask(storage, "a", "5/hour sliding-log as more")
    assert (caught.value.undone, caught.value.outage) == (True, False)
    assert ask(storage, "b", "5/hour").allowed, "other keys go on"
    assert ask(storage, "a", "5/hour", mode="peek").remaining == 3, "what was counted is still there"


def test_a_server_without_compare_and_swap_is_refused() -> None:
    with memcached_servers(options=["-C"]) as (server,), closing(MemcachedStorage(server.url)) as made:
        ask(made, "a", "5/hour")
        with pytest.raises(StorageError, match="without the option -C") as caught:
            ask(made, "a", "5/hour")
        assert caught.value.undone


def test_a_server_that_is_full_and_may_drop_nothing_says_what_to_do() -> None:
    with memcached_servers(options=["-M", "-m", "2"]) as (server,), closing(MemcachedStorage(server.url)) as made:
        ask(made, "a", "3/day")
        fill(server, at(server, "get", made._name(made.address.names.of_key("a"))))
        with pytest.raises(StorageError, match="without -M") as caught:
            ask(made, "b", "3/day")
        assert (caught.value.undone, caught.value.outage) == (True, True)


def test_dropped_items_begin_anew_and_admit_no_more_than_one_count_for_each() -> None:
    """A key is granted its count once for every time that Memcached has dropped its item."""
    with (
        memcached_servers(options=["-m", "2"]) as (server,),
        closing(MemcachedStorage(server.url)) as made,
    ):
        name = made._name(made.address.names.of_key("watched"))
        granted = dropped = 0
        for _ in range(60):
            dropped += at(server, "get", name) is None
            if dropped == 3:
                break
            granted += sum(ask(made, "watched", "3/day").allowed for _ in range(5))
            fill(server, at(server, "get", name) or bytes(60))
        assert (dropped, granted) == (3, 6), "it was not there at first, and has been dropped twice"


# Several servers


def test_a_server_that_is_added_takes_its_share_of_the_keys_and_no_other_key_moves() -> None:
    servers = [ServerAddress(f"cache{number}", 11211) for number in range(4)]
    digests = [os.urandom(16) for _ in range(2000)]
    before = [servers[server_of(servers[:3], digest)] for digest in digests]
    after = [servers[server_of(servers, digest)] for digest in digests]
    moved = [new for old, new in zip(before, after, strict=True) if old is not new]
    assert set(moved) == {servers[3]}
    assert 350 < len(moved) < 650
    assert min(before.count(server) for server in servers[:3]) > 550


def test_the_order_of_servers_in_a_url_does_not_matter() -> None:
    servers = [ServerAddress(f"cache{number}", 11211) for number in range(3)]
    for digest in (os.urandom(16) for _ in range(100)):
        found = servers[server_of(servers, digest)]
        assert servers[::-1][server_of(servers[::-1], digest)] is found


def test_a_call_of_many_groups_of_several_keys_is_answered_in_order(memcached_pair: list[Memcached]) -> None:
    hosts = ",".join(server.url.removeprefix("memcached://") for server in memcached_pair)
    with closing(MemcachedStorage(f"memcached://{hosts}?{SLOW}&prefix=many{next(runs)}-")) as made:
        limit = parse_limit("2/hour")
        groups: list[Group] = []
        for number in range(100):
            groups.append([(f"key:{number % 30}", (limit,), 1, None, None)])
            if number % 10 == 0:
                groups.append([(f"key:{key}", (limit,), 1, None, None) for key in range(40, 70)])
        rows = made.evaluate(groups)
        alone = [found[0][0] for group, found in zip(groups, rows, strict=True) if len(group) == 1]
        assert alone == [number < 60 for number in range(100)]
        assert [found[0][0] for group, found in zip(groups, rows, strict=True) if len(group) > 1] == [True] * 2 + [
            False
        ] * 8


@pytest.mark.parametrize("count", [1, 1_000], ids=["one group", "many groups"])
def test_a_call_of_thousands_of_keys_is_answered(count: int, memcached: Memcached) -> None:
    url = f"{memcached.url}?timeout=60&prefix={'p' * 90}{next(runs)}-"
    limit = parse_limit("2/hour")
    asks: list[Ask] = [(f"key:{number}", (limit,), 1, None, None) for number in range(1_000)]
    groups: list[Group] = [asks] if count == 1 else [[one] for one in asks]
    with closing(MemcachedStorage(url)) as made:
        for allowed in (True, True, False):
            assert {row[0] for rows in made.evaluate(groups) for row in rows} == {allowed}


# What is refused


@pytest.mark.parametrize("text", REFUSED)
def test_a_limit_that_is_not_kept_raises_where_it_is_given(text: str, url: str) -> None:
    limit = parse_limit(text)
    with closing(MemcachedStorage(url)) as made:
        assert REFUSED[text] in refusal_of(GuardedStorage(made), limit)
        for limits in (text, f"5/minute; {text}"):
            for kind in (Limiter, AsyncLimiter):
                with pytest.raises(InvalidLimit, match=REFUSED[text]):
                    kind(limits, storage=url)
        limiter = Limiter("5/minute", storage=made)
        with pytest.raises(InvalidLimit, match=REFUSED[text]):
            limiter.limits = (limit,)
        assert limiter.hit("a").remaining == 4
        in_memory = Limiter(text)
        with pytest.raises(InvalidLimit, match=REFUSED[text]):
            in_memory.storage = made
        with pytest.raises(InvalidLimit, match=REFUSED[text]):
            made.evaluate([(("a", (limit,), 1, None, None),)])


POLICIES: dict[str, Callable[[], dict[str, Any]]] = {
    "limits": lambda: {"rules": [{"name": "all", "by": "address", "limits": "3 concurrent"}]},
    "candidate": lambda: {
        "rules": [{"name": "all", "by": "address", "limits": "3/minute", "candidate": "3 concurrent"}]
    },
    "penalty": lambda: {
        "rules": [{"name": "all", "by": "address", "limits": "3/minute", "penalty": "guessing"}],
        "penalties": {"guessing": {"after": "3 strikes/hour", "block": ["5 minutes"]}},
    },
    "overrides": lambda: {
        "rules": [{"name": "all", "by": "address", "limits": "3/minute"}],
        "overrides": [{"client": "203.0.113.7", "limits": "3 concurrent"}],
    },
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_with_such_a_limit_is_refused_with_its_place(name: str, url: str) -> None:
    for kind in (Gate, AsyncGate):
        with pytest.raises(PolicyError, match="cannot be counted in this storage. Memcached keeps no") as caught:
            kind(POLICIES[name](), storage=url)
        assert any(name in problem.place for problem in caught.value.problems), caught.value.problems
        kind(POLICIES[name]())  # memory keeps it


def test_a_reload_that_brings_such_a_limit_is_refused_and_the_old_policy_stays(url: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"rules": [{"name": "all", "by": "address", "limits": "2/minute"}]}')
    file = PolicyFile(path, every=0)
    gate, in_memory = Gate(file, storage=url), Gate(read_policy(POLICIES["limits"]()))
    path.write_text('{"rules": [{"name": "all", "by": "address", "limits": "3 concurrent"}]}')
    assert not file.reload()
    assert "Memcached keeps no slots" in str(file.error)
    assert [gate.decide(RequestView("GET", "/", peer="203.0.113.7")).allowed for _ in range(3)] == [True, True, False]
    with pytest.raises(PolicyError):
        gate.use(in_memory.policy)
    gate.close()


def test_operators_are_told_that_there_are_no_shared_documents(url: str) -> None:
    gate = Gate(POLICIES["limits"]() | {"rules": [{"name": "all", "by": "address", "limits": "3/minute"}]}, storage=url)
    for call in (
        lambda: gate.block("203.0.113.7", "1 hour"),
        gate.blocks,
        lambda: gate.override("203.0.113.7", limits="5/minute"),
        lambda: gate.set_switch("off"),
        gate.changes,
    ):
        with pytest.raises(TypeError, match="MemcachedStorage keeps no shared documents"):
            call()
    assert gate.decide(RequestView("GET", "/", peer="203.0.113.7")).allowed
    assert gate.usage_of("203.0.113.7")[0].used == 1
    gate.reset("203.0.113.7")
    assert gate.usage_of("203.0.113.7")[0].used == 0
    gate.close()


# Tasks, and child processes


def test_a_task_that_is_cancelled_leaves_the_storage_in_order(url: str) -> None:
    async def main() -> None:
        made = AsyncMemcachedStorage(url)
        limit = parse_limit("1000/hour")
        group: Group = (("a", (limit,), 1, None, None),)
        tasks = [asyncio.ensure_future(made.evaluate((group,))) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
        left = [one[0][0][1] for one in found[1::2] if not isinstance(one, BaseException)]
        assert len(set(left)) == 25
        ((row,),) = await made.evaluate((group,), "peek")
        assert 950 <= row[1] <= 975, "those that were cancelled may have spent"
        await made.close()

    asyncio.run(main())


def test_event_loops_one_after_the_other_may_use_one_storage(url: str) -> None:
    limiter = AsyncLimiter("3/hour", storage=url)

    async def hit() -> int:
        return (await limiter.hit("a")).remaining

    assert [asyncio.run(hit()) for _ in range(3)] == [2, 1, 0]
    asyncio.run(limiter.close())


def test_a_child_process_goes_on_with_connections_of_its_own(url: str) -> None:
    with closing(MemcachedStorage(url)) as made:
        limit = parse_limit("100/hour")
        ask(made, "a", limit)
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = 0 if all(ask(made, "a", limit).allowed for _ in range(10)) else 2
                finally:
                    os._exit(status)
            children.append(pid)
        for _ in range(10):
            assert ask(made, "a", limit).allowed
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        assert ask(made, "a", limit, mode="peek").remaining == 100 - 41
