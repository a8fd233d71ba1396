"""Two instances of the service on one Redis: what operators change at one holds at the other, and nothing is lost when
processes die while they write."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from tests.servers import Server, free_port, redis_server, sentinel_group, wait_until
from tests.service.running_service import CLIENT, RunningService, running_service

TOKEN = "a-token-that-may-write"
BEARER = {"authorization": f"Bearer {TOKEN}"}
POLICY = """
rules:
  - {name: login, match: {paths: /login}, by: address, limits: 2/hour}
  - {name: search, match: {paths: /search}, by: address, limits: 1/hour, candidate: 5/hour}
  - {name: rest, default: true, by: address, limits: 1000/hour}
"""
runs = count()
addresses = (f"198.51.{high}.{low}" for high in range(100, 200) for low in range(1, 255))


@contextmanager
def instance(url: str, *options: str) -> Iterator[RunningService]:
    environ = {"RATEBOUND_ADMIN_TOKENS": f"ann={TOKEN}"}
    with running_service("--storage", url, *options, policy=POLICY, environ=environ) as service:
        yield service


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as found:
        yield found


def storage(server: Server) -> str:
    return f"{server.url}?prefix=two{next(runs)}-&timeout=2"


def call(service: RunningService, method: str, path: str, **options: Any) -> Any:
    answer = CLIENT.request(method, f"{service.url('admin')}/api/{path}", headers=BEARER, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def allows(service: RunningService, path: str, address: str) -> bool:
    return bool(service.ask("/v1/decide", {"path": path, "address": address})["allowed"])


def eventually(condition: Any, what: str) -> None:
    wait_until(condition, 20, what)


def test_a_change_at_one_instance_holds_at_the_other(server: Server) -> None:
    url = storage(server)
    with instance(url) as first, instance(url, "--workers", "2") as second:
        blocked, raised = next(addresses), next(addresses)
        assert allows(first, "/", blocked)
        assert allows(second, "/", blocked)
        call(first, "POST", "blocks", json={"client": blocked, "for": "1 hour", "reason": "scraping"})
        eventually(lambda: not allows(second, "/", blocked), "a block at the other instance")
        (found,) = call(second, "GET", "blocks")["blocks"]
        assert (found["client"], found["by"], found["reason"]) == (blocked, "ann", "scraping")
        call(second, "DELETE", "blocks", params={"client": blocked})
        eventually(lambda: allows(first, "/", blocked), "no block at the first instance")

        call(second, "POST", "overrides", json={"client": raised, "limits": "50/hour", "rules": ["login"]})
        eventually(lambda: all(allows(first, "/login", raised) for _ in range(4)), "an override at the first instance")

        call(first, "PUT", "switches", json={"rule": "login", "state": "off"})
        eventually(lambda: all(allows(second, "/login", "192.0.2.1") for _ in range(4)), "a switch at the other")
        call(second, "POST", "promotions", json={"rule": "search"})
        searcher = next(addresses)
        eventually(lambda: all(allows(first, "/search", searcher) for _ in range(2)), "a promotion at the first")

        made = [(one["by"], one["action"]) for one in call(first, "GET", "changes")["changes"]]
        assert {"block", "unblock", "override", "switch"} <= {action for _, action in made}
        assert {by for by, _ in made} == {"ann"}


def test_changes_survive_restarts(server: Server) -> None:
    url = storage(server)
    blocked = next(addresses)
    with instance(url) as second:
        with instance(url) as first:
            call(first, "POST", "blocks", json={"client": blocked})
            call(first, "PUT", "switches", json={"rule": "login", "state": "shadow"})
            eventually(lambda: not allows(second, "/", blocked), "a block at the other instance")
        for pid in second.workers():
            os.kill(pid, signal.SIGKILL)
        second.wait_for("worker 0 was ended by SIGKILL; it is started again")
        eventually(lambda: bool(second.workers()), "a new worker")
        with instance(url) as first:
            for service in (first, second):
                assert not allows(service, "/", blocked)
                assert all(allows(service, "/login", "192.0.2.7") for _ in range(4))
                assert [one["client"] for one in call(service, "GET", "blocks")["blocks"]] == [blocked]


class Writer:
    """Blocks one client after the other over the admin API, and notes which calls were acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.acknowledged: list[str] = []
        self.uncertain: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)

    def wait_for(self, many: int) -> None:
        """Wait until so many more calls were acknowledged."""
        wanted = len(self.acknowledged) + many
        eventually(lambda: len(self.acknowledged) >= wanted, f"{many} more acknowledged changes")

    def _write(self) -> None:
        with httpx.Client(timeout=10, trust_env=False) as client:
            while not self._stopping.is_set():
                address = next(addresses)
                try:
                    answer = client.post(f"{self._url}/api/blocks", json={"client": address}, headers=BEARER)
                except httpx.HTTPError:
                    self.uncertain.append(address)
                    self._stopping.wait(0.02)
                    continue
                assert answer.status_code in (200, 503), answer.text
                (self.acknowledged if answer.status_code == 200 else self.uncertain).append(address)


def kept(service: RunningService, writer: Writer) -> None:
    """Check that all acknowledged changes are there, and nothing that nobody has asked for."""
    blocked = {one["client"] for one in call(service, "GET", "blocks")["blocks"]}
    assert set(writer.acknowledged) <= blocked
    assert blocked <= {*writer.acknowledged, *writer.uncertain}
    noted = [one["target"] for one in call(service, "GET", "changes")["changes"] if one["action"] == "block"]
    assert set(writer.acknowledged[-100:]) <= set(noted)
    assert not allows(service, "/", writer.acknowledged[0])


@pytest.mark.parametrize("victim", ["worker", "control plane"])
def test_no_acknowledged_change_is_lost_when_a_process_is_killed(server: Server, victim: str) -> None:
    url, chosen = storage(server), random.Random(7)
    with instance(url, "--workers", "2") as first, instance(url) as second, Writer(first.url("admin")) as writer:
        for _ in range(4):
            writer.wait_for(chosen.randrange(1, 15))
            workers = set(first.workers())
            pid = chosen.choice([*workers] if victim == "worker" else [*set(first.children()) - workers])
            os.kill(pid, signal.SIGKILL)
            eventually(lambda gone=pid: gone not in first.children(), "the end of a process")
        writer.wait_for(10)
        writer.__exit__()
        kept(second, writer)
        kept(first, writer)


def test_no_acknowledged_change_is_lost_when_an_instance_is_killed(server: Server) -> None:
    url, port = storage(server), str(free_port())
    with instance(url) as second, ExitStack() as stack:
        writer: Writer | None = None
        for _ in range(3):
            with instance(url, "--admin", port) as first:
                if writer is None:
                    writer = stack.enter_context(Writer(first.url("admin")))
                writer.wait_for(8)
                everybody = [first.process.pid, *first.children()]
                for pid in everybody:
                    os.kill(pid, signal.SIGKILL)
        assert writer is not None
        writer.__exit__()
        kept(second, writer)


def test_changes_go_on_after_a_failover() -> None:
    with sentinel_group() as group:
        url = f"{group.url}?timeout=2"
        with instance(url) as first, instance(url) as second:
            before, after = next(addresses), next(addresses)
            call(first, "POST", "blocks", json={"client": before})
            call(first, "PUT", "switches", json={"rule": "login", "state": "off"})
            eventually(lambda: not allows(second, "/", before), "a block at the other instance")
            master = group.master
            with master.client() as client:
                assert client.wait(1, 5000) == 1  # what a replica does not have is lost: Redis replicates later
            master.kill()
            group.wait_for_master_other_than(master.port)

            def is_blocked() -> bool:
                answer = CLIENT.post(f"{second.url('admin')}/api/blocks", json={"client": after}, headers=BEARER)
                return answer.status_code == 200

            eventually(is_blocked, "a change on the new master")
            eventually(lambda: not allows(first, "/", after), "a block after the failover")
            for service in (first, second):
                assert not allows(service, "/", before)
                eventually(lambda at=service: all(allows(at, "/login", "192.0.2.9") for _ in range(4)), "a switch")
                assert {one["client"] for one in call(service, "GET", "blocks")["blocks"]} == {before, after}
