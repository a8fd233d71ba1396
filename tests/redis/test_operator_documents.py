"""Operators' documents that several processes share: what one changes holds in the others, through restarts, failovers
and deaths; and the commands."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratebound.admin.operations import Operations
from ratebound.admin.operators import Operator
from ratebound.cli.overrides import overrides
from ratebound.cli.switches import switches
from ratebound.flow import run as drive
from ratebound.observe.gate_figures import GateFigures
from ratebound.policy import Gate, read_policy
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from tests.policy.gates import request
from tests.redis.operator_process import POLICY, decide
from tests.redis.test_operator_blocks import SLOW
from tests.servers import Cluster, SentinelGroup, Server, sentinel_group, wait_until

ROOT = Path(__file__).parents[2]
runs = itertools.count()
SOON = 30.0  # seconds, at most, on a machine that is busy


class Process:
    """Another process with a gate on a storage."""

    def __init__(self, url: str, work: str = "serve") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.redis.operator_process", url, work],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if work == "serve":
            assert self.line() == "ready"

    def line(self) -> Any:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        return json.loads(text) if text.endswith("\n") else None

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments, options]) + "\n")
        self._process.stdin.flush()
        return self.line()

    def until(self, expected: Any, peer: str = "192.0.2.1", path: str = "/search") -> None:
        """Ask until the answer is as expected."""
        wait_until(lambda: bool(self("decide", peer, path) == expected), SOON, f"{expected} for {peer}")

    def kill(self) -> list[Any]:
        """Kill the process, and return what it had told."""
        self._process.kill()
        told = list(iter(self.line, None))
        self.close()
        return told

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(url: str, work: str = "serve") -> Process:
        started.append(Process(url, work))
        return started[-1]

    yield make
    for process in started:
        process.close()


def fresh(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{SLOW}&prefix=documents{os.getpid()}-{next(runs)}-"


@pytest.fixture(params=["redis_url_server", "sentinels", "redis_cluster"])
def url(request: pytest.FixtureRequest) -> str:
    server: Server | SentinelGroup | Cluster = request.getfixturevalue(request.param)
    return fresh(server.url)


@pytest.fixture
def one_url(redis_url_server: Server) -> str:
    return fresh(redis_url_server.url)


def test_what_one_process_changes_holds_in_another_and_after_restarts(url: str, start: Callable[..., Process]) -> None:
    expected = {
        ("192.0.2.2", "/search"): ["block", []],
        ("192.0.2.1", "/search"): ["limited", [7]],  # an override is for what is enforced
        ("192.0.2.3", "/search"): ["limited", [5]],
        ("192.0.2.3", "/"): ["unlimited", []],
    }
    one = start(url)
    with Gate(read_policy(POLICY), storage=url) as two:
        assert decide(two, "192.0.2.1", "/search") == ["limited", [1000]]
        one("override", "192.0.2.1", limits="7/minute", by="ann")
        one("block", "192.0.2.2")
        one("promote", "search")
        two.set_switch("off", rule="rest")
        one.until(["unlimited", []], "192.0.2.3", "/")

        def is_as_expected() -> bool:
            return all(decide(two, *asked) == answer for asked, answer in expected.items())

        wait_until(is_as_expected, SOON, "all changes")
    changes = one("changes")
    assert [change[2:4] for change in changes] == [
        ["switch", "rest"],
        ["switch", "search"],
        ["block", "192.0.2.2"],
        ["override", "192.0.2.1"],
    ]
    one.kill()
    three = start(url)
    assert [three("decide", *asked) for asked in expected] == [*expected.values()]  # its first requests know everything
    assert three("changes") == changes


def test_what_operators_have_set_outlives_a_failover(start: Callable[..., Process]) -> None:
    with sentinel_group() as group:
        url = f"{group.url}{'&' if '?' in group.url else '?'}timeout=1&connect_timeout=1&replicas=1"
        one, two = start(url), start(url)
        one("override", "192.0.2.1", limits="7/minute")
        one("block", "192.0.2.2")
        one("set_switch", "off", rule="rest")
        two.until(["limited", [7]])
        master = group.master
        master.kill()
        group.wait_for_master_other_than(master.port)
        three = start(url)
        for process in (two, three):
            process.until(["limited", [7]])
            process.until(["block", []], "192.0.2.2")
            process.until(["unlimited", []], "192.0.2.3", "/")
        master.restart()
        group.wait_until_ok()

        def is_removed() -> bool:
            return two("remove_override", "192.0.2.1") is True or not two("overrides")

        wait_until(is_removed, SOON, "the new master")
        three.until(["limited", [1000]])


@pytest.mark.parametrize("storage", ["redis", "shm"])
def test_a_process_that_is_killed_while_it_writes_loses_nothing_that_was_acknowledged(
    storage: str, start: Callable[..., Process], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("one_url" if storage == "redis" else "zone_url")
    seed = random.Random(19)
    with Gate(read_policy(POLICY), storage=url) as gate:
        for _ in range(3):
            writer = start(url, "write")
            first = [writer.line() for _ in range(seed.randrange(1, 20))]
            time.sleep(seed.random() / 50)  # so that it is killed somewhere in a change
            told = [*first, *writer.kill()]
            blocks, given = gate.blocks(), gate.overrides()
            noted = [(change.action, change.target) for change in gate.changes() if change.by == "writer"]
            assert {target for action, target in told if action == "block"} <= {block.client for block in blocks}
            assert {target for action, target in told if action == "override"} <= {one.client for one in given}
            acknowledged = [target for action, target in told if action == "switch"]
            if acknowledged:
                (switch,) = gate.switches()
                assert int(switch.reason) >= int(acknowledged[-1])
            for action, target in told:
                assert (action, "search" if action == "switch" else target) in noted
            for block in blocks:
                assert gate.unblock(block.client)
            for one in given:
                assert gate.remove_override(one.client)
            gate.remove_switch("search")
            assert gate.decide(request_of("user:0")).kind == "limited"


def request_of(user: str) -> Any:
    return request("/search", user=user.partition(":")[2])


def test_four_writers_at_the_same_time_lose_nothing(one_url: str, start: Callable[..., Process]) -> None:
    with Gate(read_policy(POLICY), storage=one_url) as gate:
        writers = [start(one_url) for _ in range(4)]
        for number in range(10):
            for place, writer in enumerate(writers):  # all of them are sent a call before the first answer is read
                assert writer._process.stdin is not None
                call = ["override", [f"user:{place}-{number}"], {"limits": "5/minute", "by": f"writer-{place}"}]
                writer._process.stdin.write(json.dumps(call) + "\n")
                writer._process.stdin.flush()
            for writer in writers:
                assert isinstance(writer.line(), list)
        expected = {f"user:{place}-{number}" for place in range(4) for number in range(10)}
        assert {override.client for override in gate.overrides()} == expected
        assert {change.target for change in gate.changes()} == expected


def test_all_documents_are_read_in_one_trip(fresh_redis: Server, clock: FakeClock) -> None:
    with Gate(read_policy(POLICY), storage=RedisStorage(f"{fresh_redis.url}?{SLOW}", clock=clock)) as gate:
        gate.decide(request())
        with fresh_redis.client() as client:
            client.config_resetstat()
            for _ in range(3):
                clock.advance(1)
                for _ in range(5):
                    gate.decide(request())
            calls = {name: stats["calls"] for name, stats in client.info("commandstats").items()}
    assert (calls["cmdstat_mget"], calls["cmdstat_evalsha"]) == (3, 15)


def test_several_documents_are_read_like_one(url: str) -> None:
    storage = RedisStorage(url)
    assert storage.write_document("one", b"first", 0)
    assert storage.write_document("three", b"", 0)
    assert storage.read_documents(["one", "two", "three"]) == [(1, b"first"), (0, b""), (1, b"")]
    storage.close()


def test_a_damaged_document_leaves_the_others_to_be_followed(fresh_redis: Server, clock: FakeClock) -> None:
    url = f"{fresh_redis.url}?{SLOW}"
    one, two = (Gate(read_policy(POLICY), storage=RedisStorage(url, clock=clock)) for _ in range(2))
    one.set_switch("off", rule="rest")
    assert two.decide(request()).kind == "unlimited"
    with fresh_redis.client() as client:
        (key,) = client.keys("*document:switches")
        client.set(key, "damaged")
    one.block("192.0.2.1")
    clock.advance(1)
    assert two.decide(request()).kind == "block"
    assert two.decide(request(peer="192.0.2.2")).kind == "unlimited"
    figures = drive(Operations(two, GateFigures(two)).call("figures", {}, Operator("ann", "read")))
    assert figures["revision"]  # the page goes on
    one.close()
    two.close()


@pytest.fixture
def policy_file(tmp_path: Path) -> str:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    return str(path)


def run(command: Any, *arguments: str) -> Any:
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})


def test_the_command_for_overrides(one_url: str, policy_file: str) -> None:
    with Gate(read_policy(POLICY), storage=one_url) as gate:
        done = run(overrides, "list", "--storage", one_url)
        assert (done.exit_code, done.stdout) == (0, "operators have set no overrides\n")
        options = ["--limits", "7/minute", "--rule", "search", "--for", "1h", "--by", "ann", "--json"]
        done = run(overrides, "add", "user:42", *options, "--policy", policy_file, "--storage", one_url)
        assert done.exit_code == 0, done.output
        (override,) = gate.overrides()
        (entry,) = json.loads(done.stdout)
        assert override.until is not None
        assert entry["until"] == override.until.isoformat()
        assert [entry[name] for name in ("client", "limits", "tier", "rules", "by")] == [
            "user:42",
            "7/minute",
            None,
            ["search"],
            "ann",
        ]
        assert run(overrides, "add", "192.0.2.1", "--limits", "deny", "--storage", one_url).exit_code == 0
        assert gate.decide(request()).kind == "deny"
        table = run(overrides, "list", "--storage", one_url).output
        assert "7/minute" in table
        assert "192.0.2.1" in table
        done = run(overrides, "remove", "user:42", "--storage", one_url)
        assert (done.exit_code, done.stderr) == (1, "user:42 has no such override\nit has one for search\n")
        assert run(overrides, "remove", "user:42", "--rule", "search", "--storage", one_url).exit_code == 0
        assert [change.by == "" for change in gate.changes()] == [False] * 3  # the login name


def test_the_command_for_switches(one_url: str, policy_file: str) -> None:
    with Gate(read_policy(POLICY), storage=one_url) as gate:
        where = ["--storage", one_url]
        done = run(switches, "set", "candidate", "--rule", "search", "--policy", policy_file, *where, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)[0]["candidate"] == "5/minute"
        assert gate.decide(request("/search")).decision.limits[0].count == 5  # type: ignore[union-attr]
        assert run(switches, "set", "shadow", "--rule", "own", *where).exit_code == 0  # a rule of an endpoint
        assert run(switches, "set", "off", "--for", "1h", *where).exit_code == 0
        assert [(one.rule, one.state) for one in gate.switches()] == [
            ("search", "candidate"),
            ("own", "shadow"),
            ("", "off"),
        ]
        assert "candidate" in run(switches, "list", *where).output
        assert run(switches, "remove", *where).stdout == "all rules no longer has this switch\n"
        done = run(switches, "remove", *where)
        assert (done.exit_code, done.stderr) == (1, "there is no switch for all rules\n")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (overrides, ["add", "user:42", "--limits", "many"], "cannot read"),
        (overrides, ["add", "user:42"], "an override needs limits or a tier"),
        (
            overrides,
            ["add", "user:42", "--limits", "5/minute", "--rule", "serach", "--policy"],
            "did you mean 'search'",
        ),
        (overrides, ["add", "user:42", "--tier", "gold", "--policy"], "unknown tier"),
        (switches, ["set", "of"], "'of' is not one of"),
        (switches, ["set", "candidate"], "with --policy"),
        (switches, ["set", "off", "--rule", "serach", "--policy"], "did you mean 'search'"),
        (switches, ["set", "off", "--for", "soon"], "cannot read 'soon'"),
    ],
)
def test_a_mistake_is_told_with_status_2(
    command: Any, arguments: list[str], message: str, one_url: str, policy_file: str
) -> None:
    more = [policy_file] if arguments[-1] == "--policy" else []
    done = run(command, *arguments, *more, "--storage", one_url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
