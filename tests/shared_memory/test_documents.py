"""Shared documents beside a zone, and operators' blocks that are in one."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratebound import StorageError
from ratebound.policy import Gate, read_policy
from ratebound.storage.shared_memory.documents import Documents
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import drop_zone, zone_name
from ratebound.testing import FakeClock, ask
from tests.policy.gates import request
from tests.zones import SMALL

POLICY: dict[str, Any] = {"rules": [{"name": "rest", "limits": "1000/minute"}]}


@pytest.fixture
def storage(tmp_path: Path, clock: FakeClock) -> Iterator[SharedMemoryStorage]:
    storage = opened("api", tmp_path, clock)
    yield storage
    assert all(path.name.startswith("ratebound-") for path in tmp_path.iterdir()), "no other file is left behind"


def opened(name: str, directory: Path, clock: FakeClock) -> SharedMemoryStorage:
    return SharedMemoryStorage(name, size=SMALL, directory=str(directory), clock=clock, deadline=30)


def test_another_gate_sees_a_block_at_its_next_read(
    storage: SharedMemoryStorage, tmp_path: Path, clock: FakeClock
) -> None:
    one, two = (Gate(read_policy(POLICY), storage=opened("api", tmp_path, clock)) for _ in range(2))
    assert [gate.decide(request(peer="192.0.2.1")).kind for gate in (one, two)] == ["limited"] * 2
    block = one.block("192.0.2.1", "1 hour", "scans")
    assert two.blocks() == [block]
    clock.advance(1)
    assert [gate.decide(request(peer="192.0.2.1")).kind for gate in (one, two)] == ["block"] * 2
    assert two.unblock("192.0.2.1")
    clock.advance(1)
    assert [gate.decide(request(peer="192.0.2.1")).kind for gate in (one, two)] == ["limited"] * 2


def test_writers_at_the_same_time_lose_nothing(storage: SharedMemoryStorage, tmp_path: Path, clock: FakeClock) -> None:
    gates = [Gate(read_policy(POLICY), storage=opened("api", tmp_path, clock)) for _ in range(3)]

    def write(number: int) -> None:
        for i in range(10):
            gates[number].block(f"user:{number}-{i}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = {block.client for block in gates[0].blocks()}
    assert found == {f"user:{number}-{i}" for number in range(3) for i in range(10)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_was_forked_while_a_document_is_written_does_not_keep_the_lock(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SharedMemoryStorage("api", size=SMALL, directory=str(tmp_path), clock=clock, deadline=0.5)
    children: list[int] = []
    replace = Documents._replace

    def forking(documents: Documents, name: str, data: bytes) -> None:
        child = os.fork()
        if not child:
            signal.alarm(60)
            signal.pause()
            os._exit(1)
        children.append(child)
        replace(documents, name, data)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(Documents, "_replace", forking)
            assert storage.write_document("blocks", b"one", 0)
        assert storage.write_document("blocks", b"two", 1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_zones_with_similar_names_share_no_document_and_are_dropped_one_by_one(
    tmp_path: Path, clock: FakeClock
) -> None:
    names = ["api", "api.v2", "api.lock", "api-2"]
    zones = {name: opened(name, tmp_path, clock) for name in names}
    for name, zone in zones.items():
        assert zone.write_document("blocks", name.encode(), 0)
        assert ask(zone, "k", "1/day").allowed
    assert {name: zone.read_document("blocks") for name, zone in zones.items()} == {
        name: (1, name.encode()) for name in names
    }
    drop_zone(zone_name("api", str(tmp_path)))
    for name in names[1:]:
        again = opened(name, tmp_path, clock)
        assert again.read_document("blocks") == (1, name.encode())
        assert not ask(again, "k", "1/day").allowed, "its zone is still there"
    assert opened("api", tmp_path, clock).read_document("blocks") == (0, b"")
    for name in names:
        drop_zone(zone_name(name, str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_document_is_told(storage: SharedMemoryStorage, tmp_path: Path) -> None:
    assert storage.write_document("blocks", b"content", 0)
    for path in tmp_path.iterdir():
        if path.read_bytes() == b"1:content":
            path.write_bytes(b"something else")
    with pytest.raises(StorageError, match="is not a document of a zone: remove it"):
        storage.read_document("blocks")


def test_a_damaged_document_leaves_its_entries_in_force_and_the_others_are_followed(
    storage: SharedMemoryStorage, tmp_path: Path, clock: FakeClock
) -> None:
    one, two = (Gate(read_policy(POLICY), storage=opened("api", tmp_path, clock)) for _ in range(2))
    one.block("192.0.2.1")
    one.override("192.0.2.2", limits="deny")
    assert two.decide(request()).kind == "block"
    for path in tmp_path.iterdir():
        if b'"blocks"' in path.read_bytes()[:100]:
            path.write_bytes(b"damaged")
    clock.advance(1)
    assert [two.decide(request(peer=f"192.0.2.{n}")).kind for n in (1, 2)] == ["block", "deny"]
    one.remove_override("192.0.2.2")
    one.set_switch("off", rule="rest")
    clock.advance(1)
    assert [two.decide(request(peer=f"192.0.2.{n}")).kind for n in (1, 2)] == ["block", "unlimited"]
    for call in (lambda: one.block("192.0.2.3"), one.blocks):
        with pytest.raises(StorageError, match="remove it"):
            call()
    assert {change.action for change in one.changes()} == {"override", "remove override", "switch"}
