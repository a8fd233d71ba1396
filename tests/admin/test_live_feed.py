"""Live figures: one read for all who look, nothing while nobody looks, and no pile of events for a slow reader."""

import asyncio
import json
from typing import Any

import pytest

from ratebound.admin.live_feed import HEARTBEAT, LiveFeed, LiveReader
from ratebound.admin.messages import CallError
from tests.admin.sites import in_loop


class Source:
    """Answers of the calls that a feed makes: a view that counts, until a test changes it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.revision = "0"
        self.error: Exception | None = None

    async def __call__(self, name: str) -> Any:
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {"number": len(self.asked), "revision": self.revision, "name": "</script>"}


def events(part: bytes | None) -> list[tuple[str, Any]]:
    assert part is not None
    found = []
    for block in part.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line)
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@in_loop
async def test_the_first_event_is_the_history_and_then_come_figures() -> None:
    feed = LiveFeed(Source(), every=0.001)
    reader = await feed.join()
    first = await reader.take(10)
    assert first is not None
    assert first.startswith(b"retry: 1000\n\nevent: history\ndata: {")
    assert [name for name, _ in events(await reader.take(10))] == ["figures"]
    assert feed.readers == 1
    feed.leave(reader)


@in_loop
async def test_all_who_look_share_one_read_and_one_encoded_event() -> None:
    source = Source()
    feed = LiveFeed(source, every=0.01)
    readers = [await feed.join() for _ in range(50)]
    assert source.asked == ["history"]  # all of them within one moment
    for reader in readers:
        await reader.take(10)
    parts = [await reader.take(10) for reader in readers]
    assert len({id(part) for part in parts}) <= 3  # objects, not only equal bytes
    assert source.asked.count("figures") <= 3
    feed.close()
    assert feed.readers == 0


@in_loop
async def test_nothing_runs_while_nobody_looks() -> None:
    source = Source()
    feed = LiveFeed(source, every=0.001)
    assert len(asyncio.all_tasks()) == 1
    reader = await feed.join()
    assert len(asyncio.all_tasks()) == 2
    feed.leave(reader)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    again = await feed.join()
    await again.take(10)
    assert [name for name, _ in events(await again.take(10))] == ["figures"]
    feed.leave(again)


@in_loop
async def test_a_reader_that_is_slow_gets_the_newest_figures_once() -> None:
    source = Source()
    feed = LiveFeed(source, every=0.0001)
    reader = await feed.join()
    while len(source.asked) < 50:
        await asyncio.sleep(0)
    found = events(await reader.take(10))
    assert [name for name, _ in found] == ["history", "figures"]
    assert found[1][1]["number"] >= 49
    feed.leave(reader)


@in_loop
async def test_a_change_by_an_operator_is_told_once() -> None:
    source = Source()
    feed = LiveFeed(source, every=0.001)
    reader = await feed.join()
    await reader.take(10)
    await reader.take(10)
    source.revision = "1"
    seen: list[tuple[str, Any]] = []
    while len(seen) < 6:
        seen += events(await reader.take(10))
    assert [content for name, content in seen if name == "changed"] == [{"revision": "1"}]
    feed.leave(reader)


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (CallError(503, "The storage could not answer."), "The storage could not answer."),
        (RuntimeError("a bug"), "The figures could not be read: see the log."),
    ],
)
@in_loop
async def test_figures_that_cannot_be_read_are_a_problem_and_not_the_end(error: Exception, detail: str) -> None:
    source = Source()
    feed = LiveFeed(source, every=0.001)
    reader = await feed.join()
    await reader.take(10)
    source.error = error
    seen: list[tuple[str, Any]] = []
    while ("problem", {"detail": detail}) not in seen:
        seen += events(await reader.take(10))
    source.error = None
    seen.clear()
    while not [name for name, _ in seen if name == "figures"]:
        seen += events(await reader.take(10))
    feed.leave(reader)


@in_loop
async def test_a_feed_without_a_history_is_an_error_of_the_call() -> None:
    source = Source()
    source.error = CallError(503, "The storage could not answer.")
    feed = LiveFeed(source)
    with pytest.raises(CallError):
        await feed.join()
    assert feed.readers == 0


@in_loop
async def test_a_heartbeat_comes_if_there_is_nothing_new() -> None:
    assert await LiveReader().take(0.001) == HEARTBEAT


@in_loop
async def test_a_reader_that_has_ended_takes_nothing_more() -> None:
    reader = LiveReader()
    reader.put("figures", b"event: figures\n\n")
    reader.end()
    assert await reader.take(10) is None


@in_loop
async def test_events_hold_no_markup() -> None:
    feed = LiveFeed(Source(), every=0.001)
    reader = await feed.join()
    part = await reader.take(10)
    assert part is not None
    assert b"<" not in part
    assert events(part)[0][1]["name"] == "</script>"
    feed.leave(reader)
