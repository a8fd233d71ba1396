"""Clients that operators block by hand: who is refused, for how long, and what a gate reads to know it."""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from ratebound import AsyncMemoryStorage, MemoryStorage, StorageError
from ratebound.clock import utc_datetime
from ratebound.limit import Group, Mode
from ratebound.policy import AsyncGate, Gate, Identity, Judged, read_policy
from ratebound.policy.model.client_list import split_client
from ratebound.policy.runtime import operator_clients, operator_documents
from ratebound.policy.runtime.client_name import client_under
from ratebound.policy.runtime.operator_blocks import BLOCKS, MAX_BLOCKS, Block
from ratebound.policy.runtime.operator_clients import OperatorClients
from ratebound.testing import FakeClock, limiting_off
from tests.policy.gates import request
from tests.policy.operated import AsyncRemoteStorage, Make, RemoteStorage

CUSTOMERS = {"key-1": Identity("customer", "acme"), "key-2": Identity("customer", "zenith")}
POLICY: dict[str, Any] = {
    "identities": {"api-key": {"header": "x-api-key", "verify": CUSTOMERS.get, "kinds": ["customer"]}},
    "rules": [
        {"name": "flood", "limits": "100/second", "stage": "early", "match": {"paths": ["/early"]}},
        {"name": "rest", "limits": "100/minute"},
    ],
    "exempt": [{"paths": ["/health"]}],
    "allow": ["192.0.2.99"],
}
PLAIN: dict[str, Any] = {"rules": [{"name": "rest", "limits": "3/minute"}]}


def write_blocks(blocks: Sequence[Block]) -> bytes:
    return json.dumps({"blocks": [BLOCKS.write(block) for block in blocks]}).encode()


def test_a_blocked_address_is_refused_before_any_rule_until_it_is_unblocked(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    assert gate.kind(peer="192.0.2.1") == "limited"
    block = gate.block("192.0.2.1", reason="scans for .env")
    verdict = gate.decide(request(peer="192.0.2.1"))
    assert (verdict.allowed, verdict.kind, verdict.decision, verdict.block_wait) == (False, "block", None, None)
    assert verdict.block == block
    assert gate.kind(peer="192.0.2.2") == "limited"
    assert gate.blocks() == [block]
    assert gate.unblock("192.0.2.1") is True
    assert gate.unblock("192.0.2.1") is False
    assert gate.decide(request(peer="192.0.2.1")).decision.remaining == 1  # nothing was charged meanwhile
    assert gate.blocks() == []


def test_a_block_ends_by_itself_and_tells_how_long_that_takes(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    block = gate.block("192.0.2.1", "1 minute")
    assert (block.since, block.until) == (utc_datetime(clock.now), utc_datetime(clock.now + 60_000_000))
    clock.advance(59.5)
    assert gate.decide(request(peer="192.0.2.1")).block_wait == 500_000
    clock.advance(0.5)
    assert gate.kind(peer="192.0.2.1") == "limited"
    assert gate.blocks() == []


@pytest.mark.parametrize("length", [90, 90.0, timedelta(seconds=90), "90 seconds", "1.5 minutes"])
def test_a_time_is_seconds_a_timedelta_or_text(length: Any, make: Make, clock: FakeClock) -> None:
    block = make(PLAIN, MemoryStorage(clock=clock)).block("192.0.2.1", length)
    assert block.until == utc_datetime(clock.now + 90_000_000)


@pytest.mark.parametrize(
    ("client", "peer", "headers", "user", "blocks"),
    [
        ("192.0.2.0/24", "192.0.2.200", {}, None, True),
        ("192.0.2.0/24", "192.0.3.1", {}, None, False),
        ("2001:DB8::/32", "2001:db8::7", {}, None, True),
        ("::ffff:192.0.2.1", "192.0.2.1", {}, None, True),
        ("user:42", "192.0.2.1", {}, "42", True),
        ("user:42", "192.0.2.1", {}, "43", False),
        ("user:42", "192.0.2.1", {}, None, False),
        ("customer:acme", "192.0.2.1", {"x-api-key": "key-1"}, None, True),
        ("api-key:acme", "192.0.2.1", {"x-api-key": "key-1"}, None, True),
        ("customer:acme", "192.0.2.1", {"x-api-key": "key-2"}, None, False),
        ("customer:acme", "192.0.2.1", {"x-api-key": "acme"}, None, False),
        ("192.0.2.99", "192.0.2.99", {}, None, True),
    ],
)
def test_a_client_is_written_as_in_the_lists_of_a_policy(
    client: str, peer: str, headers: dict[str, str], user: str | None, blocks: bool, make: Make, storage: Any
) -> None:
    gate = make(POLICY, storage)
    gate.block(client)
    assert (gate.kind(peer=peer, headers=headers, user=user) == "block") is blocks
    assert gate.unblock(client)
    assert gate.kind(peer=peer, headers=headers, user=user) != "block"


def test_exempt_paths_and_switches_hold_as_for_the_block_list_of_the_policy(make: Make, storage: Any) -> None:
    listed = make({**POLICY, "block": ["192.0.2.1"]}, storage)
    blocked = make(POLICY, storage)
    blocked.block("192.0.2.1")
    for path in ("/", "/health", "/early"):
        for stage in (None, "early", "late"):
            for turned in (None, "on", "off", "shadow"):
                listed.gate.switch = blocked.gate.switch = turned
                ours = blocked.decide(request(path, peer="192.0.2.1"), stage)
                theirs = listed.decide(request(path, peer="192.0.2.1"), stage)
                assert (ours.kind, ours.allowed) == (theirs.kind, theirs.allowed), (path, stage, turned)


def test_an_early_stage_looks_at_addresses_only(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.block("user:42")
    assert gate.kind("/early", user="42", stage="early") == "limited"
    assert gate.kind("/early", user="42", stage="late") == "block"
    gate.block("192.0.2.1")
    assert gate.kind("/early", stage="early") == "block"


def test_of_several_blocks_the_one_that_ends_last_counts(make: Make, clock: FakeClock) -> None:
    gate = make(PLAIN, MemoryStorage(clock=clock))
    gate.block("192.0.2.1", "1 minute")
    gate.block("192.0.2.0/24", "1 hour")
    gate.block("192.0.0.0/16", "1 second")
    assert gate.decide(request(peer="192.0.2.1")).block.client == "192.0.2.0/24"
    gate.block("user:42")
    verdict = gate.decide(request(peer="192.0.2.1", user="42"))
    assert (verdict.block.client, verdict.block_wait) == ("user:42", None)


def test_a_client_has_one_block_however_it_is_written(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    gate.block("2001:DB8::1/128", "1 hour", reason="first")
    gate.block("2001:db8:0::1", reason="second")
    (block,) = gate.blocks()
    assert (block.client, block.until, block.reason) == ("2001:db8::1", None, "second")
    assert gate.unblock("2001:db8::1/128")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("somebody",), "identity like 'user:42'"),
        (("192.0.2.1/24",), "did you mean '192.0.2.0/24'"),
        (("address:192.0.2.1",), "without 'address:'"),
        (("bearer:x",), "only a claim"),
        ((42,), "not 42"),
        (("192.0.2.1", 0), "more than 0 seconds"),
        (("192.0.2.1", -1), "more than 0 seconds"),
        (("192.0.2.1", "20 years"), "at most"),
        (("192.0.2.1", "soon"), "cannot read 'soon'"),
        (("192.0.2.1", True), "expected seconds"),
        (("192.0.2.1", None, "x" * 201), "at most 200 characters"),
        (("192.0.2.1", None, "two\nlines"), "one line"),
        (("192.0.2.1", None, 7), "one line"),
        (("user:" + "x" * 1_000,), "at most 1000 characters"),
    ],
)
def test_a_mistake_raises_and_blocks_nobody(arguments: tuple[Any, ...], message: str, make: Make) -> None:
    gate = make(PLAIN, MemoryStorage())
    with pytest.raises(ValueError, match=message):
        gate.block(*arguments)
    assert gate.blocks() == []


def test_a_block_of_an_identity_that_this_policy_does_not_know_can_be_listed_and_removed(
    make: Make, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make(POLICY, storage).block("customer:acme")
    other = make(PLAIN, storage)
    assert other.kind(headers={"x-api-key": "key-1"}) == "limited"
    assert "'customer' have no effect here" in caplog.text
    assert [block.client for block in other.blocks()] == ["customer:acme"]
    assert other.unblock("customer:acme")


def test_blocks_that_ended_long_ago_are_dropped_by_whoever_writes(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    gate.block("192.0.2.1", 10)
    gate.block("192.0.2.2", 3600)
    clock.advance(10 + 7200)
    gate.block("192.0.2.3")
    content = json.loads(storage.read_document("blocks")[1])
    assert [entry["client"] for entry in content["blocks"]] == ["192.0.2.2", "192.0.2.3"]


def test_a_machine_whose_clock_is_ahead_removes_nothing_that_holds_on_others(make: Make, clock: FakeClock) -> None:
    memory, ahead = MemoryStorage(clock=clock), FakeClock(clock.now + 3600 * 1_000_000)
    here, there = make(PLAIN, RemoteStorage(clock, memory)), make(PLAIN, RemoteStorage(ahead, memory))
    here.block("192.0.2.1", "30 minutes")
    here.override("192.0.2.2", limits="deny", for_="30 minutes")
    here.set_switch("shadow", rule="rest", for_="30 minutes")
    there.block("192.0.2.9", 10)
    there.override("192.0.2.9", limits="deny")
    there.set_switch("shadow")
    clock.advance(1)
    assert here.kind() == "block"
    assert [one.client for one in here.overrides()] == ["192.0.2.2", "192.0.2.9"]
    assert [one.rule for one in here.switches()] == ["rest", ""]
    there.block("192.0.2.1", "1 minute")  # instead of the block that has ended there
    assert [one.client for one in here.blocks()] == ["192.0.2.9", "192.0.2.1"]


def test_the_document_is_readable_by_people(make: Make, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    make(PLAIN, storage).block("192.0.2.1", 3600, reason="à voir", by="ann")
    assert json.loads(storage.read_document("blocks")[1]) == {
        "blocks": [
            {
                "client": "192.0.2.1",
                "since": "2023-11-14T22:13:20+00:00",
                "until": "2023-11-14T23:13:20+00:00",
                "reason": "à voir",
                "by": "ann",
            }
        ],
        "changes": [
            {
                "at": "2023-11-14T22:13:20+00:00",
                "by": "ann",
                "action": "block",
                "target": "192.0.2.1",
                "detail": "until 2023-11-14 23:13:20 UTC: à voir",
            }
        ],
    }


def test_there_is_room_for_so_many_blocks_and_no_more(make: Make, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    gate = make(PLAIN, storage)
    first = gate.block("192.0.2.1", "1 minute")
    others = [first._replace(client=f"user:{number}", until=None) for number in range(MAX_BLOCKS - 1)]
    assert storage.write_document("blocks", write_blocks([first, *others]), 1)
    with pytest.raises(ValueError, match="there are 10000 blocks, and no room for another"):
        gate.block("192.0.2.2")
    gate.block("192.0.2.1", "2 minutes")  # instead of its first block
    assert gate.kind(user=str(MAX_BLOCKS - 2)) == "block"
    clock.advance(120)
    gate.block("192.0.2.2")


def test_memory_shows_a_block_at_once_to_every_gate_on_it(make: Make, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    one, two = make(PLAIN, storage), make(PLAIN, storage)
    assert one.kind() == two.kind() == "limited"
    two.block("192.0.2.1")
    assert one.kind() == two.kind() == "block"
    one.unblock("192.0.2.1")
    assert one.kind() == two.kind() == "limited"
    two.block("192.0.2.1")
    storage.clear()
    assert one.kind() == two.kind() == "limited"


def test_a_gate_reads_once_a_second_and_sees_what_others_have_changed(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    one, two = make(PLAIN, storage), make(PLAIN, storage)
    one.kind(peer="192.0.2.7")
    two.kind(peer="192.0.2.7")
    one.block("192.0.2.1")
    reads = storage.reads
    assert one.kind() == "block"
    assert storage.reads == reads
    for _ in range(3):
        assert two.kind() == "limited"
    assert storage.reads == reads
    clock.advance(1)
    assert two.kind() == "block"  # an idle process's first request reads
    assert storage.reads == reads + 3  # all documents together
    assert two.kind() == "block"
    assert storage.reads == reads + 3
    one.unblock("192.0.2.1")
    clock.advance(1)
    assert two.kind() == "limited"


def test_the_first_request_of_a_process_knows_the_blocks(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    make(PLAIN, storage).block("192.0.2.1")
    assert make(PLAIN, storage).kind() == "block"


def test_while_one_request_reads_others_go_on_with_the_copy(clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    gate = Gate(read_policy(PLAIN), storage=storage)
    gate.decide(request())
    clock.advance(1)
    reading, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reading.set()
        assert go_on.wait(30)

    storage.while_reading = wait
    reader = threading.Thread(target=gate.decide, args=(request(),))
    reader.start()
    assert reading.wait(30)
    assert gate.decide(request(peer="192.0.2.2")).kind == "limited"
    storage.while_reading = lambda: None
    Gate(read_policy(PLAIN), storage=storage).block("192.0.2.1")
    clock.advance(1)  # longer than a reader may take
    assert gate.decide(request()).kind == "block"
    go_on.set()
    reader.join(30)
    assert gate.decide(request()).kind == "block"  # not by the older copy, which came later


def test_after_a_pause_all_of_a_burst_of_requests_know_what_has_changed(clock: FakeClock) -> None:
    class Pausing(RemoteStorage):
        def async_twin(self) -> AsyncRemoteStorage:
            return PausingTwin(self)

    class PausingTwin(AsyncRemoteStorage):
        async def read_document(self, name: str) -> tuple[int, bytes]:
            await asyncio.sleep(0)
            return await super().read_document(name)

    async def burst() -> list[str]:
        storage = Pausing(clock)
        one, two = (AsyncGate(read_policy(PLAIN), storage=storage) for _ in "12")
        await two.decide(request())
        await one.block("192.0.2.1")
        clock.advance(60)
        return [verdict.kind for verdict in await asyncio.gather(*(two.decide(request()) for _ in range(5)))]

    assert asyncio.run(burst()) == ["block"] * 5


def test_a_read_that_takes_long_is_used_and_not_repeated_at_once(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    one, two = make(PLAIN, storage), make(PLAIN, storage)
    one.block("192.0.2.1")
    one.set_switch("off", rule="rest")
    storage.while_reading = lambda: clock.advance(2)
    assert [rule.flat for rule in two.in_force().rules] == ["unlimited"]
    reads = storage.reads
    assert two.kind() == "block"
    assert storage.reads == reads


def test_what_a_gate_has_written_is_not_undone_by_a_read_that_began_before(clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    gate = Gate(read_policy(PLAIN), storage=storage)
    gate.decide(request())
    clock.advance(1)

    def block() -> None:
        storage.while_reading = lambda: None
        gate.block("192.0.2.1")

    storage.while_reading = block
    assert gate.decide(request()).kind == "block"
    assert gate.decide(request()).kind == "block"


def test_a_blocked_client_stays_blocked_while_the_storage_fails(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    gate = make(PLAIN, storage)
    gate.block("192.0.2.1", "1 hour")
    storage.fails = True
    reads = storage.reads
    for second in range(1, 4):
        clock.advance(1)
        assert gate.kind() == gate.kind() == "block"
        assert storage.reads <= reads + 3 * second  # asked once a second
    assert gate.kind(peer="192.0.2.2") == "limited"  # by the failure mode
    for call in (lambda: gate.block("192.0.2.2"), lambda: gate.unblock("192.0.2.1"), gate.blocks):
        with pytest.raises(StorageError):
            call()
    clock.advance(3597)
    assert gate.kind() == "limited"


def test_a_process_that_starts_in_an_outage_blocks_once_it_has_read(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    make(PLAIN, storage).block("192.0.2.1")
    storage.fails = True
    gate = make(PLAIN, storage)
    assert gate.kind() == "limited"
    storage.fails = False
    clock.advance(1)
    assert gate.kind() == "block"


def test_a_storage_that_has_lost_its_data_blocks_nobody(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    gate = make(PLAIN, storage)
    for _ in range(3):
        gate.block("192.0.2.1")
    storage.memory.clear()
    clock.advance(1)
    assert gate.kind() == "limited"
    gate.block("192.0.2.1")
    assert gate.kind() == "block"


def test_a_clock_that_steps_back_does_not_stop_the_reading(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    gate = make(PLAIN, storage)
    gate.kind()
    make(PLAIN, storage).block("192.0.2.1")
    clock.advance(-3600)
    assert gate.kind() == "block"


def test_a_document_that_is_not_ours_leaves_the_blocks_as_they_were(
    make: Make, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for storage in (MemoryStorage(clock=clock), RemoteStorage(clock)):
        operator_documents.log_unreadable.cache_clear()
        caplog.clear()
        gate = make(PLAIN, storage)
        gate.block("192.0.2.1")
        assert gate.kind() == "block"
        contents = (
            b"nonsense",
            b"[]",
            b'{"blocks": {}}',
            b'{"changes": []}',
            b"[" * 100_000,
        )
        for content in contents:
            version, _ = storage.read_document("blocks")
            storage.write_document("blocks", content, version)
            clock.advance(1)
            assert gate.kind() == "block"
            with pytest.raises(StorageError, match="not a list of blocks"):
                gate.block("192.0.2.2")
            with pytest.raises(StorageError, match="not a list of blocks"):
                gate.blocks()
        told = caplog.text.count("Its last readable version stays in force")
        assert told == len(contents) - 1  # two are wrong in one way


def test_a_client_in_the_document_that_cannot_be_read_leaves_the_others_blocked_and_can_be_removed(
    make: Make, storage: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A person has edited the document, or a later version has written it."""
    gate = make(PLAIN, storage)
    since = utc_datetime(clock.now)
    written = write_blocks([Block("somebody", since), Block("192.0.2.1", since), Block("", since)])
    assert storage.write_document("blocks", written, 0)
    clock.advance(1)
    assert gate.kind() == "block"
    assert "'somebody'" in caplog.text
    assert gate.kind(peer="192.0.2.2") == "limited"
    gate.block("192.0.2.2")
    assert gate.kind(peer="192.0.2.2") == "block"
    assert gate.unblock("somebody")
    assert gate.unblock("")
    assert [block.client for block in gate.blocks()] == ["192.0.2.1", "192.0.2.2"]
    with pytest.raises(ValueError, match="identity like 'user:42'"):
        gate.unblock("somebody")


def test_an_entry_that_cannot_be_read_leaves_the_others_in_force_and_is_kept(
    make: Make, storage: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A person has edited the document, or a later version has written it."""
    gate = make(PLAIN, storage)
    good = {"client": "192.0.2.1", "since": "2023-11-14T22:13:20+00:00", "until": None, "reason": "", "ticket": 7}
    bad = [
        {"client": "192.0.2.3"},
        {"client": "::1", "since": "0001-01-01T00:00:00+14:00", "until": None, "reason": ""},
        {**good, "client": 5},
        "192.0.2.9",
        None,
    ]
    document = {"blocks": [*bad, good], "later": {"version": 2}}
    assert storage.write_document("blocks", json.dumps(document).encode(), 0)
    clock.advance(1)
    assert gate.kind() == gate.kind() == "block"
    assert gate.kind(peer="192.0.2.3") == "limited"
    assert caplog.text.count("cannot be read") == len(bad)
    gate.block("192.0.2.2")
    assert gate.unblock("192.0.2.2")
    written = json.loads(storage.read_document("blocks")[1])
    assert (written["blocks"], written["later"]) == ([*bad, good], {"version": 2})
    assert [change["action"] for change in written["changes"]] == ["block", "unblock"]


def test_a_document_of_an_earlier_version_is_read(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    entry = {"client": "192.0.2.1", "since": "2023-11-14T22:13:20+00:00", "until": None, "reason": "scans"}
    assert storage.write_document("blocks", json.dumps({"blocks": [entry]}).encode(), 0)
    clock.advance(1)
    assert gate.kind() == "block"
    (block,) = gate.blocks()
    assert (block.client, block.reason, block.by) == ("192.0.2.1", "scans", "")
    assert gate.changes() == []


class Undocumented:
    """A storage that keeps no documents."""

    deadline = 5.0

    def __init__(self, memory: MemoryStorage) -> None:
        self._memory = memory

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Any]:
        return self._memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self._memory.reset(group)

    def close(self) -> None:
        pass

    def async_twin(self) -> Any:
        return AsyncUndocumented(self._memory)


class AsyncUndocumented:
    deadline = 5.0

    def __init__(self, memory: MemoryStorage) -> None:
        self._memory = AsyncMemoryStorage(memory)

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Any]:
        return await self._memory.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        await self._memory.reset(group)

    async def close(self) -> None:
        pass


def test_a_storage_without_documents_says_so_and_decides(make: Make, clock: FakeClock) -> None:
    gate = make(PLAIN, Undocumented(MemoryStorage(clock=clock)))
    assert gate.kind() == "limited"
    for call in (lambda: gate.block("192.0.2.1"), lambda: gate.unblock("192.0.2.1"), gate.blocks):
        with pytest.raises(TypeError, match="Undocumented keeps no shared documents"):
            call()
    assert gate.operators_name_users() is False


def test_a_new_policy_keeps_the_blocks(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    gate.block("192.0.2.1")
    gate.block("user:42")
    gate.gate.use(read_policy(POLICY))
    assert gate.kind(peer="192.0.2.1") == gate.kind(user="42", peer="192.0.2.9") == "block"


def test_another_storage_has_other_blocks(make: Make, clock: FakeClock) -> None:
    gate = make(PLAIN, MemoryStorage(clock=clock))
    gate.block("192.0.2.1")
    gate.gate.storage = (
        AsyncMemoryStorage(clock=clock) if isinstance(gate.gate, AsyncGate) else MemoryStorage(clock=clock)
    )
    assert gate.kind() == "limited"
    gate.block("192.0.2.1")
    assert gate.kind() == "block"


def test_listeners_get_the_reason(make: Make, storage: Any) -> None:
    events: list[Any] = []
    gate = make(PLAIN, storage, listeners=[events.append])
    gate.block("192.0.2.1", reason="scans")
    gate.kind()
    (judged,) = [event for event in events if isinstance(event, Judged)]
    assert judged.verdict.block is not None
    assert (judged.verdict.kind, judged.verdict.block.reason) == ("block", "scans")


def test_with_limiting_off_nothing_is_read_and_nobody_blocked(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    make(PLAIN, storage).block("192.0.2.1")
    reads = storage.reads
    with limiting_off():
        assert make(PLAIN, storage).kind() == "limited"
    assert storage.reads == reads


def test_with_the_switch_off_nothing_is_read(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    make(PLAIN, storage).block("192.0.2.1")
    reads = storage.reads
    gate = make(PLAIN, storage)
    gate.gate.switch = "off"
    assert gate.kind() == "off"
    assert gate.operators_name_users() is False
    assert storage.reads == reads
    gate.gate.switch = None
    assert gate.kind() == "block"


def test_writers_at_the_same_time_lose_nothing(storage: Any) -> None:
    gates = [Gate(read_policy(PLAIN), storage=storage) for _ in range(4)]
    begin = threading.Barrier(4)

    def write(number: int) -> None:
        begin.wait(30)
        for i in range(25):
            gates[number].block(f"user:{number}-{i}")
        for i in range(0, 25, 2):
            assert gates[number].unblock(f"user:{number}-{i}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = {f"user:{number}-{i}" for number in range(4) for i in range(1, 25, 2)}
    assert {block.client for block in gates[0].blocks()} == expected


def test_a_writer_who_never_gets_a_turn_gives_up(make: Make, clock: FakeClock) -> None:
    class Contested(RemoteStorage):
        def write_document(self, name: str, content: bytes, version: int) -> bool:
            return False

    with pytest.raises(StorageError, match="try again"):
        make(PLAIN, Contested(clock)).block("192.0.2.1")


def test_a_user_must_be_known_only_if_a_block_names_one(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    assert gate.operators_name_users() is False
    gate.block("192.0.2.1")
    assert gate.operators_name_users() is False
    gate.block("user:42", 60)
    assert gate.operators_name_users() is True
    gate.unblock("user:42")
    assert gate.operators_name_users() is False


def test_requests_that_no_block_concerns_stay_on_the_fast_path(
    make: Make, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratebound.policy.runtime.general_path import CompiledPolicy

    gate = make(PLAIN, storage)
    gate.block("192.0.2.1")
    gate.block("user:42")
    monkeypatch.setattr(CompiledPolicy, "deliberate", lambda *_: pytest.fail("the general path"))
    assert gate.kind(peer="192.0.2.2") == "limited"


def test_every_block_is_read_as_it_was_written(clock: FakeClock) -> None:
    gate = Gate(read_policy(PLAIN), storage=MemoryStorage(clock=clock))
    clients = ["192.0.2.1", "192.0.2.0/24", "2001:db8::/32", "user:a:b", "user:\ud800", 'user:"', "user:é"]
    blocks = [gate.block(client, 60 if number % 2 else None) for number, client in enumerate(clients)]
    assert BLOCKS.readable(write_blocks(blocks)) == blocks == gate.blocks()
    assert BLOCKS.readable(b"") == []


def test_ranges_are_found_narrow_or_wide(clock: FakeClock) -> None:
    from ratebound.http.prefix import parse_address

    gate = Gate(read_policy(PLAIN), storage=MemoryStorage(clock=clock))
    listed = OperatorClients([gate.block("10.0.0.0/8"), gate.block("2001:db8::1")], [], clock)
    assert [listed.has(parse_address(text)) for text in ("10.9.9.9", "11.0.0.1", "2001:db8::1", "2001:db8::2")] == [
        True,
        False,
        True,
        False,
    ]
    assert not listed.has(None)


def test_a_change_of_one_list_leaves_another_one_as_it_was_made_ready(
    make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = make(PLAIN, RemoteStorage(clock))
    for number in range(3):
        gate.block(f"192.0.2.{number}", 60)
    made: list[Any] = []

    def split(text: object) -> Any:
        made.append(text)
        return split_client(text)

    monkeypatch.setattr(operator_clients, "split_client", split)
    gate.override("198.51.100.1", limits="5/minute")
    gate.set_switch("on", rule="rest")
    assert made == ["198.51.100.1"]
    gate.unblock("192.0.2.0")
    assert made == ["198.51.100.1", "192.0.2.1", "192.0.2.2"]
    assert gate.kind(peer="192.0.2.1") == "block"
    clock.advance(60)
    assert gate.kind(peer="192.0.2.1") == "limited"


@pytest.fixture(autouse=True)
def forget_warnings(caplog: pytest.LogCaptureFixture) -> None:
    operator_clients.warn_of_name.cache_clear()
    operator_documents._log_entry.cache_clear()
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize("listed", [False, True], ids=["by an operator", "by the policy"])
def test_whoever_sends_a_credential_twice_does_not_escape_a_block_by_it(listed: bool) -> None:
    gate = Gate(read_policy({**POLICY, "block": ["customer:acme"]} if listed else POLICY))
    if not listed:
        gate.block("customer:acme")
    once, twice = [("x-api-key", "key-1")], [("x-api-key", "key-1"), ("x-api-key", "key-2")]
    assert gate.decide(request(headers=once)).kind == "block"
    verdict = gate.decide(request(headers=twice))
    assert (verdict.allowed, verdict.kind, verdict.message) == (
        False,
        "deny",
        "A credential occurs twice, or is too long.",
    )
    assert gate.decide(request(headers=[("x-api-key", "key-2")])).allowed
    assert gate.decide(request()).allowed
    gate.switch = "shadow"
    assert gate.decide(request(headers=twice)).allowed
    if not listed:
        gate.switch = None
        gate.unblock("customer:acme")
        assert gate.decide(request(headers=twice)).allowed


def test_a_thread_that_is_slow_does_not_put_back_what_another_has_replaced() -> None:
    gate = Gate(read_policy({"rules": [{"name": "api", "limits": "unlimited"}]}))
    for number in range(100):  # reading them takes so long that threads overtake each other
        gate.block(f"198.51.100.{number}")
    wrong: list[str] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            gate.decide(request())

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    try:
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        for _ in range(30):
            gate.block("192.0.2.1")
            wrong += ["blocked, and served" for _ in range(5) if gate.decide(request()).allowed]
            gate.unblock("192.0.2.1")
            wrong += ["unblocked, and denied" for _ in range(5) if not gate.decide(request()).allowed]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.parametrize(
    ("key", "client"),
    [
        ("address:203.0.113.7", "203.0.113.7"),
        ("prefix.24:203.0.113.0/24", "203.0.113.0/24"),
        ("user:a:b", "user:a:b"),
        ("jwt.sub:42", "jwt:sub:42"),
        ("user+address:x", "user+address:x"),
        ("somebody", "somebody"),
        ("10.0.0.1:8080", "10.0.0.1:8080"),
        ("shop.example:42", "shop.example:42"),
    ],
)
def test_a_key_is_shown_as_operators_write_its_client(key: str, client: str) -> None:
    assert client_under(key) == client
