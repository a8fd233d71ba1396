"""Operators' blocks and shared documents on a real Redis: several gates, outages, forks, and the command."""

import asyncio
import inspect
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratebound import GuardedStorage, StorageError
from ratebound.cli.blocks import blocks
from ratebound.policy import AsyncGate, Gate, read_policy
from ratebound.policy.runtime.operator_blocks import BLOCKS, Block
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import FakeClock
from tests.policy.gates import request
from tests.redis.test_clients import forked
from tests.servers import Server

runs = itertools.count()
OF_PENALTIES = (
    "Blocks by penalties are not in this list: ratebound state usage CLIENT --policy FILE shows them, and ratebound"
    " state reset lifts them."
)
SLOW = "timeout=5&connect_timeout=5"
POLICY: dict[str, Any] = {"rules": [{"name": "rest", "limits": "1000/minute"}]}
SERVERS = ["redis_url_server", "sentinels", "redis_cluster"]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    found: Any = request.getfixturevalue(request.param)
    return f"{found.url}?{SLOW}&prefix=blocks{os.getpid()}-{next(runs)}-"


@pytest.fixture
def one_url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?{SLOW}&prefix=blocks{os.getpid()}-{next(runs)}-"


@pytest.fixture(params=["threads", "tasks"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make gates of either kind. The answer is a function that calls one by the name of a method."""
    loop, made = asyncio.new_event_loop(), []

    def make(url: str, clock: FakeClock) -> Callable[..., Any]:
        is_async = request.param == "tasks"
        storage: Any = AsyncRedisStorage(url, clock=clock) if is_async else RedisStorage(url, clock=clock)
        gate: Any = (AsyncGate if is_async else Gate)(read_policy(POLICY), storage=storage)

        def call(name: str, *arguments: Any) -> Any:
            found = getattr(gate, name)(*arguments)
            return loop.run_until_complete(found) if inspect.isawaitable(found) else found

        made.append(call)
        return call

    yield make
    for call in made:
        call("close")
    loop.close()


def kind(gate: Callable[..., Any], peer: str = "192.0.2.1") -> str:
    return str(gate("decide", request(peer=peer)).kind)


def test_another_gate_sees_a_block_at_its_next_read(url: str, make: Callable[..., Any], clock: FakeClock) -> None:
    one, two = make(url, clock), make(url, clock)
    assert kind(one) == kind(two) == "limited"
    block = one("block", "192.0.2.1", "1 hour", "scans")
    assert kind(one) == "block"
    assert two("blocks") == [block]
    clock.advance(1)
    assert kind(two) == "block"
    assert kind(make(url, clock)) == "block"  # a process that has just started
    assert two("unblock", "192.0.2.1")
    clock.advance(1)
    assert kind(one) == kind(two) == "limited"


def test_a_request_that_knows_the_blocks_makes_one_trip(fresh_redis: Server, clock: FakeClock) -> None:
    with Gate(read_policy(POLICY), storage=RedisStorage(f"{fresh_redis.url}?{SLOW}", clock=clock)) as gate:
        gate.block("192.0.2.9")
        gate.decide(request())
        with fresh_redis.client() as client:
            before = client.info("commandstats")
            for _ in range(20):
                gate.decide(request())
            gate.decide(request(peer="192.0.2.9"))
            after = client.info("commandstats")
    reads = "cmdstat_get"  # the script of the limits reads its states too
    scripts = after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"]
    assert scripts == 20
    assert after[reads]["calls"] - before[reads]["calls"] == 20


def test_blocks_outlive_an_outage_and_a_process_that_starts_in_it_learns_them_afterwards(
    fresh_redis: Server, make: Callable[..., Any], clock: FakeClock
) -> None:
    fresh_redis.configure("appendonly yes", "appendfsync always")
    fresh_redis.restart()
    url = f"{fresh_redis.url}?{SLOW}"
    gate = make(url, clock)
    gate("block", "192.0.2.1")
    fresh_redis.kill()
    young = make(url, clock)
    for _ in range(3):
        clock.advance(1)
        assert kind(gate) == "block"
    assert kind(young) == "limited"
    with pytest.raises(StorageError):
        gate("unblock", "192.0.2.1")
    fresh_redis.restart()
    for _ in range(10):
        clock.advance(1)
        if kind(young) == "block":
            break
    assert kind(young) == "block"
    assert kind(gate) == "block"


def test_a_server_that_lost_its_data_blocks_nobody(
    fresh_redis: Server, make: Callable[..., Any], clock: FakeClock
) -> None:
    gate = make(f"{fresh_redis.url}?{SLOW}", clock)
    gate("block", "192.0.2.1")
    with fresh_redis.client() as client:
        client.flushall()
    clock.advance(1)
    assert kind(gate) == "limited"


def test_writers_at_the_same_time_lose_nothing(url: str, clock: FakeClock) -> None:
    gates = [Gate(read_policy(POLICY), storage=RedisStorage(url, clock=clock)) for _ in range(3)]

    def write(number: int) -> None:
        for i in range(10):
            gates[number].block(f"user:{number}-{i}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = {block.client for block in gates[0].blocks()}
    for gate in gates:
        gate.close()
    assert found == {f"user:{number}-{i}" for number in range(3) for i in range(10)}


def test_a_document_is_in_clear_although_there_is_a_secret_and_never_expires(redis_url_server: Server) -> None:
    prefix = f"clear{os.getpid()}-{next(runs)}-"
    for secret in ("one", "two"):  # a new secret loses no document
        storage = RedisStorage(f"{redis_url_server.url}?{SLOW}&prefix={prefix}&secret={secret}")
        version, _ = storage.read_document("blocks")
        assert storage.write_document("blocks", secret.encode(), version)
        storage.close()
    with redis_url_server.client() as client:
        (key,) = client.keys(f"{prefix}*")
        assert key.endswith("}document:blocks")
        assert (client.get(key), client.ttl(key)) == ("2:two", -1)


def test_a_value_that_is_not_a_document_is_not_overwritten(redis_url_server: Server) -> None:
    prefix = f"foreign{os.getpid()}-{next(runs)}-"
    storage = GuardedStorage(RedisStorage(f"{redis_url_server.url}?{SLOW}&prefix={prefix}"))
    assert storage.write_document("blocks", b"", 0)
    with redis_url_server.client() as client:
        (key,) = client.keys(f"{prefix}*")
        for foreign in ("nonsense", "-1:x", ":x", "9" * 5_000 + ":x", "{}"):
            client.set(key, foreign)
            for call in (
                lambda: storage.read_document("blocks"),
                lambda: storage.write_document("blocks", b"mine", 0),
            ):
                with pytest.raises(StorageError, match="did not write") as raised:
                    call()
                assert not raised.value.outage, "one key is not ours: the server is fine"
            assert client.get(key) == foreign
        client.delete(key)
        client.rpush(key, "a list")
        with pytest.raises(StorageError, match="did not write"):
            storage.read_document("blocks")
    storage.close()


def test_a_forked_child_reads_and_writes_blocks(one_url: str, clock: FakeClock) -> None:
    with Gate(read_policy(POLICY), storage=RedisStorage(one_url, clock=clock)) as gate:
        assert gate.decide(request()).kind == "limited"
        gate.block("192.0.2.1")
        held = gate._operators.copy._lock  # type: ignore[union-attr]
        with held:  # as by another thread at the fork

            def work() -> list[int]:
                clock.advance(1)
                first = gate.decide(request()).kind == "block"
                gate.block("192.0.2.2")
                return [first, gate.decide(request(peer="192.0.2.2")).kind == "block"]

            answer = forked(work)
        assert answer() == [True, True]
        clock.advance(1)
        assert gate.decide(request(peer="192.0.2.2")).kind == "block"


def run(*arguments: str, width: int = 120) -> Result:
    return CliRunner().invoke(blocks, arguments, env={"COLUMNS": str(width)})


def test_the_command_adds_lists_and_removes(url: str, clock: FakeClock) -> None:
    with Gate(read_policy(POLICY), storage=RedisStorage(url, clock=clock)) as gate:
        assert gate.decide(request()).kind == "limited"
        options = ["--for", "1h", "--reason", "scans [red]", "--by", "ann", "--json"]
        done = run("add", "192.0.2.1", *options, "--storage", url)
        assert done.exit_code == 0, done.output
        (block,) = gate.blocks()
        entry = {
            "client": "192.0.2.1",
            "since": block.since.isoformat(),
            "until": block.until and block.until.isoformat(),
            "reason": "scans [red]",
            "by": "ann",
        }
        assert json.loads(done.stdout) == [entry]
        assert block.until is not None
        assert (block.until - block.since).total_seconds() == 3600
        clock.advance(1)
        assert gate.decide(request()).kind == "block"
        assert run("add", "user:42", "--storage", url).exit_code == 0
        listed = json.loads(run("list", "--storage", url, "--format", "json").stdout)
        assert [one["client"] for one in listed] == ["192.0.2.1", "user:42"]
        table = run("list", "--storage", url).output
        cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.splitlines()]
        assert ["client", "since (UTC)", "until (UTC)", "by", "reason"] in cells
        since, until = (f"{instant:%Y-%m-%d %H:%M:%S}" for instant in (block.since, block.until))
        assert ["192.0.2.1", since, until, "ann", "scans [red]"] in cells
        done = run("remove", "192.0.2.1/32", "--storage", url)
        assert (done.exit_code, done.stdout) == (0, "192.0.2.1/32 is no longer blocked\n")
        clock.advance(1)
        assert gate.decide(request()).kind == "limited"
        done = run("remove", "192.0.2.1", "--storage", url)
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"no operator blocks 192.0.2.1\n{OF_PENALTIES}\n")


def test_the_command_shows_what_cannot_be_printed_as_escapes(one_url: str) -> None:
    """Nothing that is stored reaches the terminal as a command, also if another program wrote it."""
    since = datetime(2030, 1, 1, tzinfo=UTC)
    storage = RedisStorage(one_url)
    block = Block("user:\x1b[31m\ud800", since, None, "\x1b[2J\x9b31m\ud800 é")
    assert storage.write_document("blocks", json.dumps({"blocks": [BLOCKS.write(block)]}).encode(), 0)
    storage.close()
    for shape in ("text", "json"):
        done = run("list", "--storage", one_url, "--format", shape)
        assert done.exit_code == 0, done.output
        assert done.stdout.replace("\n", "").isprintable()
    (listed,) = json.loads(done.stdout)
    assert (listed["client"], listed["reason"]) == ("user:\x1b[31m\ud800", "\x1b[2J\x9b31m\ud800 é")


def test_an_empty_list_does_not_say_that_penalties_block_nobody(one_url: str) -> None:
    done = run("list", "--storage", one_url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "operators block nobody\n", f"{OF_PENALTIES}\n")
    assert json.loads(run("list", "--storage", one_url, "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "expected --storage"),
        (["list", "--storage", "memory://"], "this command cannot see it: use gate.blocks() there"),
        (["list", "--storage", "http://x"], "cannot open storage 'http://x'"),
        (["add", "somebody", "--storage", "redis://x"], "an identity like 'user:42'"),
        (["add", "192.0.2.1", "--for", "soon", "--storage", "redis://x"], "cannot read 'soon'"),
        (["add", "192.0.2.1", "--for", "0s", "--storage", "redis://x"], "more than 0 seconds"),
        (["add", "192.0.2.1", "--reason", "x" * 201, "--storage", "redis://x"], "at most 200 characters"),
        (["add", "fe80::1%eth0", "--storage", "redis://x"], "cannot read the range 'fe80::1%eth0'"),
        (["add", "fd00::12g4", "--storage", "redis://x"], "cannot read the range 'fd00::12g4'"),
        (["add", "--storage", "redis://x"], "Missing argument 'CLIENT'"),
    ],
)
def test_a_mistake_is_told_with_status_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("command", [["list"], ["add", "192.0.2.1"], ["remove", "192.0.2.1"]])
def test_a_storage_that_is_out_of_reach_is_told_with_status_1(command: list[str]) -> None:
    done = run(*command, "--storage", "redis://127.0.0.1:1/0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the storage could not be reached" in done.stderr
