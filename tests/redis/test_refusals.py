"""What a server may answer instead of a decision: each ends in a StorageError that says what to do, nothing is granted
or charged for it, and service is back when the cause is gone. What a client can mend by itself, no caller hears of."""

import asyncio
import itertools
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from ratebound import Check, Limiter, StorageError, parse_limit
from ratebound.limit import ALGORITHMS, NOT_GIVEN, Algorithm, Extra, Failure, Mode
from ratebound.outcome import Row
from ratebound.storage import Storage, holders_of
from ratebound.storage.redis.keys import Keys
from tests.redis.bare import KINDS, bare_async_limiter, bare_limiter
from tests.servers import HOST, Server, redis_server, wait_until

SLOW = "timeout=5&connect_timeout=5"
FIVE = "100/day; 100/day sliding-counter; 100/day fixed-window; 100/day burst 100; 100/day burst 100 leaky-bucket"
MANUAL = Path(__file__).parents[2] / "docs" / "guides" / "redis.md"
runs = itertools.count()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[str], Storage]:
    return KINDS[request.param]


@pytest.fixture
def server(fresh_redis: Server) -> Server:
    return fresh_redis


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}?{SLOW}&prefix=refused{next(runs)}-"


def refusal(limiter: Limiter, key: str = "k") -> str:
    with pytest.raises(StorageError) as caught:
        limiter.hit(key)
    return str(caught.value)


@contextmanager
def endless_script(server: Server) -> Iterator[None]:
    """Somebody else's, in which the server hears nobody."""

    def loop() -> None:
        with suppress(redis.RedisError), server.client(socket_timeout=None) as client:
            client.eval("while true do end", 0)

    with server.client() as client:
        client.config_set("busy-reply-threshold", 1)
        thread = threading.Thread(target=loop)
        thread.start()
        try:
            wait_until(lambda: answer(server, "PING").startswith("-BUSY"), 10, "a busy server")
            yield
        finally:
            client.script_kill()
            thread.join()
            client.config_set("busy-reply-threshold", 5000)


def answer(server: Server, command: str) -> str:
    """As it comes over the wire."""
    with suppress(OSError), socket.create_connection((HOST, server.port), 5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(4096).decode()
    return ""


@pytest.mark.parametrize("database", ["", "&db=1"], ids=["", "a database to select"])
def test_somebodys_endless_script_is_told_and_survived(
    database: str, kind: Callable[[str], Storage], url: str, server: Server
) -> None:
    with (
        bare_limiter("5/day", storage=kind(url + database)) as old,
        bare_limiter("5/day", storage=kind(url + database)) as new,
    ):
        assert old.hit("k").remaining == 4
        with endless_script(server):
            assert "SCRIPT KILL" in refusal(old)
            assert "SCRIPT KILL" in refusal(new), "also where the connection was made only now"
        assert old.hit("k").remaining == 3
        assert new.hit("k").remaining == 2


def test_a_server_that_loads_its_data_is_told_and_survived(kind: Callable[[str], Storage]) -> None:
    slowly = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    with redis_server(*slowly) as server, server.client() as client:
        with bare_limiter("5/day", storage=kind(f"{server.url}?{SLOW}")) as limiter:
            assert limiter.hit("k").remaining == 4
        client.execute_command("DEBUG POPULATE", 5_000, "filling", 100)
        client.save()
        server.stop()
        server.spawn()
        with bare_limiter("5/day", storage=kind(f"{server.url}?{SLOW}")) as limiter:
            wait_until(lambda: answer(server, "PING").startswith("-LOADING"), 10, "a server that loads")
            assert "loading its data" in refusal(limiter)
            assert "loading its data" in refusal(limiter), "and again, on the connection that there is now"
            answer(server, "CONFIG SET key-load-delay 0")
            server.wait_until_up()
            assert limiter.hit("k").remaining == 3


def test_a_full_server_is_told_and_still_denies(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with bare_limiter("5/day burst 5", storage=kind(url)) as limiter, server.client() as client:
        limiter.hit("used up", cost=5)
        limiter.hit("k")
        client.config_set("maxmemory", "1")
        assert "raise maxmemory" in refusal(limiter)
        assert "raise maxmemory" in refusal(limiter, "new")
        assert not limiter.hit("used up")
        assert limiter.peek("k").remaining == 4
        client.config_set("maxmemory", "0")
        assert limiter.hit("k").remaining == 3


def test_a_replica_is_told_and_grants_nothing(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with bare_limiter("5/day burst 5", storage=kind(url)) as limiter, server.client() as client:
        assert limiter.hit("k").remaining == 4
        client.replicaof(HOST, 1)  # where nobody is: it keeps what it has
        assert "this server is a replica" in refusal(limiter)
        client.replicaof("NO", "ONE")
        assert limiter.hit("k").remaining == 3


def test_a_replica_that_has_lost_its_master_is_told(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with bare_limiter("5/day burst 5", storage=kind(url)) as limiter, server.client() as client:
        assert limiter.hit("k").remaining == 4
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof(HOST, 1)
        message = refusal(limiter)
        client.replicaof("NO", "ONE")
        assert limiter.hit("k").remaining == 3
    assert "the master of this replica is down" in message


def test_too_few_replicas_are_told(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with bare_limiter("5/day burst 5", storage=kind(url)) as limiter, server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        assert "min-replicas-to-write" in refusal(limiter)
        client.config_set("min-replicas-to-write", 0)
        assert limiter.hit("k").remaining == 4


@pytest.mark.parametrize("failure", ["local", "open", "closed", "raise"])
def test_too_few_replicas_fall_to_the_failure_mode(failure: Failure, url: str, server: Server) -> None:
    with Limiter("6/day burst 6", storage=url, failure=failure, workers=3) as limiter, server.client() as client:
        limiter.hit("used up", cost=6)
        client.config_set("min-replicas-to-write", 1)
        if failure == "raise":
            assert "min-replicas-to-write" in refusal(limiter)
            assert client.dbsize() == 1
            return
        decision = limiter.hit("k")
        assert "min-replicas-to-write" in str(decision.degraded)
        assert (decision.allowed, decision.unavailable) == (failure != "closed", failure == "closed")
        if failure == "local":
            assert decision.remaining == 6 // 3 - 1
        denied = limiter.hit("used up")
        assert (denied.allowed, denied.degraded) == (False, None)
        client.config_set("min-replicas-to-write", 0)
        wait_until(lambda: limiter.peek("k").remaining == (5 if failure == "local" else 6), 10, "the charge")


def test_a_server_that_cannot_save_is_told(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with bare_limiter("5/day burst 5", storage=kind(url)) as limiter, server.client() as client:
        (server.folder / "dump.rdb").mkdir()
        client.config_set("save", "3600 1")
        client.bgsave()
        wait_until(lambda: persistence(client)["rdb_last_bgsave_status"] == "err", 10, "a snapshot that fails")
        message = refusal(limiter)
        (server.folder / "dump.rdb").rmdir()
        client.config_set("save", "")
        assert limiter.hit("k").remaining == 4
    assert "a key of ours" not in message
    assert "stop-writes-on-bgsave-error" in message


def persistence(client: redis.Redis) -> dict[str, Any]:
    found: Any = client.info("persistence")
    return found  # type: ignore[no-any-return]


def test_a_wrong_password_is_told(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with server.client() as client:
        client.execute_command("ACL SETUSER", "limiter", "on", ">right", "~*", "+@all")
        client.config_set("requirepass", "secret")
        with bare_limiter("5/day", storage=kind(url)) as limiter:
            assert "Redis requires a password" in refusal(limiter)
            client.config_set("requirepass", "")
            assert limiter.hit("k").remaining == 4, "when it wants none any more"
        with bare_limiter("5/day", storage=kind(url.replace("//", "//limiter:hush@"))) as limiter:
            message = refusal(limiter)
            assert "rejected the user or the password" in message
            assert "hush" not in message
            client.execute_command("ACL SETUSER", "limiter", ">hush")
            assert limiter.hit("k").remaining == 3, "when it has become the right one"


def test_a_user_of_few_rights_is_told_and_needs_no_restart(
    kind: Callable[[str], Storage], url: str, server: Server
) -> None:
    with server.client() as client:
        client.execute_command("ACL SETUSER", "few", "on", ">p", "~*", "+evalsha")
        with bare_limiter("5/day burst 5", storage=kind(url.replace("//", "//few:p@"))) as limiter:
            assert "the Redis user lacks permissions" in refusal(limiter)
            client.execute_command("ACL SETUSER", "few", "+eval")
            assert "the Redis user lacks permissions" in refusal(limiter), "now inside of the script"
            client.execute_command("ACL SETUSER", "few", "+@all", "resetkeys", "~other:*")
            assert "the Redis user lacks permissions" in refusal(limiter), "all commands, and not on our keys"
            client.execute_command("ACL SETUSER", "few", "~*")
            assert limiter.hit("k").remaining == 4


def test_the_rights_that_the_manual_gives_are_enough_and_the_user_sees_no_other_keys(
    kind: Callable[[str], Storage], server: Server
) -> None:
    section = MANUAL.read_text().partition("## Permissions")[2].partition("\n## ")[0]
    command = re.search(r"redis-cli (ACL SETUSER .*?)```", section, re.DOTALL)
    assert command
    rights = [word for word in shlex.split(command[1].replace("\\\n", " ")) if word.strip()]
    with server.client() as client:
        client.execute_command(*rights)
        storage = kind(f"{server.url.replace('//', f'//{rights[2]}:password@')}?{SLOW}")
        with bare_limiter(FIVE, storage=storage) as limiter:
            limiter.reset("k")
            assert limiter.hit("k").remaining == 99
            assert limiter.settle(limiter.hit("k", cost=3), cost=1).remaining == 98
            assert limiter.settle(limiter.hit("k"), cost=2).remaining == 96
            assert not limiter.hit("k", cost=97)
            assert limiter.peek("k").remaining == 96
            client.script_flush()
            assert limiter.hit("k", cost=96)
            limiter.reset("k")
            assert limiter.peek("k").remaining == 100
            check_rights_for_quotas_and_slots(storage)
            check_rights_for_values_and_penalties(storage)


def check_rights_for_quotas_and_slots(storage: Storage) -> None:
    """Renew, deny, list and release slots beside a quota: every command that the script has for them."""
    limits = (parse_limit("100/calendar-month"), parse_limit("1 concurrent"))

    def hit(slot: int, mode: Mode = "spend", cost: int = 1) -> list[bool]:
        extras = [NOT_GIVEN, (slot, 0, 0, 0)]
        return [row[0] for row in storage.evaluate(((("k", limits, cost, None, extras),),), mode)[0]]

    assert hit(1) == hit(1) == [True, True]
    assert hit(2) == [True, False]
    assert [slot for slot, _ in holders_of(storage)("k", limits[1])] == [1]
    assert hit(2, "force") == hit(1, "force", -1) == [True, True]


def check_rights_for_values_and_penalties(storage: Storage) -> None:
    """Count, deny and take back a value, and strike: every command that the script has for them."""
    limits = (parse_limit("1 distinct account/hour"), parse_limit("1 strike/hour block 1 hour"))

    def hit(value: Extra, mode: Mode = "spend", cost: int = 1) -> list[Row]:
        return list(storage.evaluate(((("k", limits, cost, None, [value, NOT_GIVEN]),),), mode)[0])

    seen = hit((1, 0, 0, 0))[0]
    assert [row[0] for row in hit((2, 0, 0, 0))] == [False, False]
    hit((1, seen[5] + limits[0].period_us, 0, 0), "force", -1)
    assert holders_of(storage)("k", limits[0]) == []


def test_a_server_that_takes_no_more_clients_is_told(kind: Callable[[str], Storage], url: str, server: Server) -> None:
    with server.client() as client, bare_limiter("5/day", storage=kind(url)) as limiter:
        client.config_set("maxclients", 1)
        assert "communication with Redis failed" in refusal(limiter)
        client.config_set("maxclients", 1000)
        assert limiter.hit("k").remaining == 4


FOREIGN: dict[str, Callable[[redis.Redis, bytes], object]] = {
    "text": lambda client, name: client.set(name, "hello"),
    "a number": lambda client, name: client.set(name, 7),
    "a list": lambda client, name: client.rpush(name, "a", "b", "c"),
    "a hash": lambda client, name: client.hset(name, "field", "value"),
    "a set": lambda client, name: client.sadd(name, "member"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_we_did_not_write_is_told_and_hurts_nobody_else(
    algorithm: Algorithm, kind: Callable[[str], Storage], server: Server
) -> None:
    limit = parse_limit(f"5/day {algorithm}")
    for write in FOREIGN.values():
        prefix = f"foreign{next(runs)}-"
        name = Keys(prefix=prefix).subject("taken") + limit.scope.encode()
        with (
            bare_limiter(limit, storage=kind(f"{server.url}?{SLOW}&prefix={prefix}")) as limiter,
            server.client() as client,
        ):
            write(client, name)
            before = client.dump(name) if client.type(name) != "string" else client.get(name)
            for _ in range(2):
                assert "?prefix=" in refusal(limiter, "taken")
            with pytest.raises(StorageError, match="that Ratebound did not write"):
                limiter.peek("taken")
            for checks in (["free", "taken"], ["taken", "free"]):
                with pytest.raises(StorageError, match="that Ratebound did not write"):
                    limiter.check([Check(key, limit) for key in checks])
            assert limiter.peek("free").remaining == 5, "nothing of such a group is charged"
            with pytest.raises(StorageError, match="that Ratebound did not write"):
                limiter.hit_many(["one", "taken", "two"])
            assert limiter.hit("one").allowed
            assert limiter.hit("two").allowed
            assert before == (client.dump(name) if client.type(name) != "string" else client.get(name)), "left alone"
            limiter.reset("taken")
            assert limiter.hit("taken").remaining == 4, "when it is gone"


def test_of_tasks_that_share_a_call_only_the_one_with_a_foreign_key_is_told(server: Server) -> None:
    prefix = f"foreign{next(runs)}-"
    limit = parse_limit("5/day burst 5")
    with server.client() as client:
        client.set(Keys(prefix=prefix).subject("key:7") + limit.scope.encode(), "hello")

    async def main() -> None:
        async with bare_async_limiter(limit, storage=f"{server.url}?{SLOW}&prefix={prefix}") as limiter:
            await limiter.hit("warm")
            for left in (4, 3):
                found = await asyncio.gather(*(limiter.hit(f"key:{i}") for i in range(40)), return_exceptions=True)
                failed = [i for i, each in enumerate(found) if isinstance(each, StorageError)]
                assert failed == [7]
                assert {each.remaining for i, each in enumerate(found) if i != 7} == {left}  # type: ignore[union-attr]

    asyncio.run(main())


def kill_connections(client: redis.Redis) -> object:
    return client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")


MENDED: dict[str, Callable[[Server], None]] = {
    "SCRIPT FLUSH": lambda server: with_client(server, lambda client: client.script_flush()),
    "CLIENT KILL": lambda server: with_client(server, kill_connections),
    "both": lambda server: with_client(server, lambda client: (client.script_flush(), kill_connections(client))),
    "restart": lambda server: server.restart(),
}


def with_client(server: Server, work: Callable[[redis.Redis], object]) -> None:
    with server.client() as client:
        work(client)


def calls() -> Iterator[Any]:
    for name, event in itertools.product(KINDS, MENDED):
        yield pytest.param(KINDS[name], event, id=f"{name}-{event}")


@pytest.mark.parametrize(("kind", "event"), list(calls()))
def test_no_caller_hears_of(event: str, kind: Callable[[str], Storage]) -> None:
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_server(*kept) as server, bare_limiter(FIVE, storage=kind(f"{server.url}?{SLOW}")) as limiter:
        for left in (99, 98, 97, 96):
            assert limiter.hit("k").remaining == left
            MENDED[event](server)
        assert limiter.peek("k").remaining == 96
        MENDED[event](server)
        limiter.reset("k")
        MENDED[event](server)
        assert limiter.settle(limiter.hit("k", cost=5), cost=1).remaining == 99


@pytest.mark.parametrize("event", MENDED)
def test_no_task_of_a_running_loop_hears_of(event: str) -> None:
    async def main(server: Server) -> None:
        async with bare_async_limiter("1000/day", storage=f"{server.url}?{SLOW}") as limiter:
            for round in range(1, 5):
                found = await asyncio.gather(*(limiter.hit("k") for _ in range(100)))
                assert min(each.remaining for each in found) == 1000 - 100 * round
                await asyncio.to_thread(MENDED[event], server)

    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("event", ["SCRIPT FLUSH", "CLIENT KILL", "both"])
def test_no_thread_of_many_hears_of(event: str, url: str, server: Server) -> None:
    with bare_limiter("1000/day", storage=url) as limiter:
        for round in range(1, 5):
            left: list[int] = []
            gate = threading.Barrier(8)

            def work(left: list[int] = left, gate: threading.Barrier = gate) -> None:
                gate.wait()
                left.extend(limiter.hit("k").remaining for _ in range(10))

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(left) == list(range(1000 - 80 * round, 1080 - 80 * round))
            MENDED[event](server)


def test_a_refusal_is_not_waited_for(kind: Callable[[str], Storage], server: Server) -> None:
    with bare_limiter("5/day", storage=kind(server.url)) as limiter, server.client() as client:
        limiter.hit("k")
        client.config_set("maxmemory", "1")
        begin = time.monotonic()
        for _ in range(5):
            refusal(limiter)
        client.config_set("maxmemory", "0")
    assert time.monotonic() - begin < 1
