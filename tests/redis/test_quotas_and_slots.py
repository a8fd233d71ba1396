"""Quotas and slots on a real Redis: one trip, a TTL on every key, calendars by the server's clock, changed secrets."""

import itertools
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from ratebound import Limit, StorageError, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import GRANT, Ask, Group, Mode
from ratebound.storage import Storage, holders_of
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.redis import script
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import Blocking, ask
from tests.redis.bare import KINDS
from tests.servers import Server

Kind = type[RedisStorage] | type[AsyncRedisStorage]
runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"
DAY = 86_400 * SECOND
START = 1_700_000_000 * SECOND
MONTH = parse_limit("10/calendar-month in Europe/Berlin from 15")
SLOTS = parse_limit("3 concurrent")


@pytest.fixture
def url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?{SLOW}&prefix=kinds{next(runs)}-"


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, url: str) -> Iterator[Storage]:
    with closing(KINDS[request.param](url)) as storage:
        yield storage


def take(key: str, limit: Limit, slot: int, sign: int = 1) -> Ask:
    return key, (limit,), sign, None, [(slot, 0, 0, 0)]


def allowed(storage: Storage, *asks: Ask, mode: Mode = "spend") -> list[bool]:
    return [row[0] for row in storage.evaluate((asks,), mode)[0]]


def held(storage: Storage, key: str, limit: Limit = SLOTS) -> list[int]:
    return [slot for slot, _ in holders_of(storage)(key, limit)]


def name_of(url: str, key: str, limit: Limit) -> bytes:
    with closing(RedisStorage(url)) as storage:
        return storage.address.keys.subject(key) + limit.scope.encode()


def test_a_quota_lives_until_its_next_window_ends_and_slots_for_a_lease(
    storage: Storage, url: str, redis_url_server: Server
) -> None:
    client: Any = redis_url_server.client()
    ask(storage, "k", MONTH)
    windows = MONTH.numbers.windows
    assert windows
    left = windows.at(time.time_ns() // 1000)[2] / 1e6 - time.time()
    assert left - 60 < client.ttl(name_of(url, "k", MONTH)) < left + 60
    allowed(storage, take("k", SLOTS, 1))
    assert 0 < client.pttl(name_of(url, "k", SLOTS)) <= 60_000
    allowed(storage, take("k", SLOTS, 1, -1), mode="force")
    assert not client.exists(name_of(url, "k", SLOTS)), "a set without slots is gone"


@pytest.mark.parametrize("years", [-20, 20])
def test_a_server_whose_clock_is_outside_of_all_windows_is_asked_once_more(
    years: int, storage: Storage, redis_url_server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, day, year = parse_limit("10/day"), parse_limit("10/calendar-day"), parse_limit("10/calendar-year")
    ask(storage, "warm", rate)
    client: Any = redis_url_server.client()
    client.config_resetstat()
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + years * 366 * DAY * 1000)
    groups: list[Group] = [
        (("a", (rate,), 1, None, None),),
        (("b", (rate, day), 1, None, None), ("c", (year,), 2, None, None)),
        (("d", (rate,), 3, None, None),),
    ]
    rows = storage.evaluate(groups)
    assert [[row[1] for row in each] for each in rows] == [[9], [9, 9, 8], [7]]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2
    monkeypatch.undo()
    assert [[row[1] for row in each] for each in storage.evaluate(groups, "peek")] == [[9], [9, 9, 8], [7]]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 3, "with the right clock, one call is enough"


@pytest.mark.parametrize("mode", ["spend", "peek", "force"])
@pytest.mark.parametrize("days", [-3, 3])
def test_a_single_group_is_asked_once_more_as_well(
    days: int, mode: Mode, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = (parse_limit("10/calendar-day"), parse_limit("10/day"))
    groups = [((key, limits[:number], 1, None, None),) for number, key in ((1, "one"), (2, "two"))]
    storage.evaluate(groups)
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + days * DAY * 1000)
    left = 9 if mode == "peek" else 8
    for number, group in enumerate(groups, 1):
        assert [row[1] for row in storage.evaluate([group], mode)[0]] == [left] * number
        assert [row[1] for row in storage.evaluate([group], "peek")[0]] == [left] * number


class Replies:
    """What a server answers whose clock jumps, or that fails, between two calls. No server can be made to do that."""

    def __init__(self, kind: Kind, monkeypatch: pytest.MonkeyPatch, *replies: Any) -> None:
        self.left = list(replies)
        if kind is RedisStorage:
            monkeypatch.setattr(kind, "_execute", lambda *_, **__: self.next())
        else:
            monkeypatch.setattr(kind, "_execute", self.next_async)

    def next(self) -> Any:
        reply = self.left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def next_async(self, *_: Any, **__: Any) -> Any:
        return self.next()


@pytest.fixture(params=[RedisStorage, AsyncRedisStorage])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def opened(kind: Kind) -> Storage:
    storage: Any = kind("redis://localhost")
    return storage if kind is RedisStorage else Blocking(storage)


def test_a_server_whose_clock_is_outside_again_is_told(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(kind, monkeypatch, [1_000 * DAY], [2_000 * DAY])
    with closing(opened(kind)) as storage, pytest.raises(StorageError, match=r"Redis server says 1975-.*NTP") as caught:
        ask(storage, "k", MONTH)
    assert replies.left == []
    assert (caught.value.undone, caught.value.outage) == (True, False)


def test_a_second_call_that_fails_takes_no_answer_of_the_first_away(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = [START, 1, 9, 0, 60, 0, 0, 0]
    Replies(kind, monkeypatch, [[row], [START]], StorageError("gone", undone=True))
    groups: list[Group] = [(("k", (limit,), 1, None, None),) for limit in (parse_limit("10/day"), MONTH)]
    with closing(opened(kind)) as storage, pytest.raises(StorageError, match="gone") as caught:
        storage.evaluate(groups)
    assert caught.value.answers
    assert not caught.value.undone
    assert caught.value.answers[0] == [(True, 9, 0, 60, 0, START, 0, 0, None)]


def test_a_time_instead_of_an_answer_about_rates_is_not_ours(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(kind, monkeypatch, [START])
    with closing(opened(kind)) as storage, pytest.raises(StorageError, match="does not answer like Redis"):
        ask(storage, "k", "10/day")
    assert replies.left == []


def test_rates_are_on_the_wire_as_they_were() -> None:
    """One record of eleven doubles for each limit: programs of two versions may share one Redis."""
    limits = (parse_limit("10/minute burst 20"), parse_limit("5/day fixed-window"))
    *_, sent = script.arguments((((("k", limits, 1, None, None)),),), "spend", Keys(), None)
    rows = [(1, 0, 10, 60 * SECOND, 20, 1, -1), (2, 3, 5, DAY, 5, 1, -1)]
    assert sent == b"".join(struct.pack("<11d", *row, -1, -1, -1, -1) for row in rows)


def test_a_slot_without_an_id_is_refused_and_nothing_is_held(storage: Storage) -> None:
    with pytest.raises(ValueError, match="needs an id in the extras"):
        ask(storage, "k", SLOTS)
    assert held(storage, "k") == []


@pytest.mark.parametrize("limit", [MONTH, SLOTS], ids=str)
@pytest.mark.parametrize("value", ["text", "list"])
def test_a_foreign_value_is_an_error_of_that_group_alone(
    value: str, limit: Limit, storage: Storage, url: str, redis_url_server: Server
) -> None:
    client, name = redis_url_server.client(), name_of(url, "taken", limit)
    if value == "text":
        client.set(name, "hello")
    else:
        client.lpush(name, "x")
    groups: list[Group] = [[take("free", limit, 1)], [take("free", limit, 2), take("taken", limit, 1)]]
    with pytest.raises(StorageError, match="a Ratebound key holds a value that Ratebound did not write") as caught:
        storage.evaluate(groups)
    assert not caught.value.outage
    assert ask(storage, "free", limit, mode="peek").remaining == limit.count - 1, "the second group left nothing"


def test_members_that_are_not_ours_are_told(storage: Storage, url: str, redis_url_server: Server) -> None:
    redis_url_server.client().zadd(name_of(url, "taken", SLOTS), {"x": 2.0**53})
    with pytest.raises(StorageError, match="a Ratebound key holds a value that Ratebound did not write"):
        held(storage, "taken")


def test_slots_are_not_read_as_a_whole(storage: Storage, redis_url_server: Server) -> None:
    limit = parse_limit("300 concurrent")
    everything: Group = [take("k", limit, slot) for slot in range(300)]
    assert all(allowed(storage, *everything))
    with redis_url_server.client().monitor() as monitor:
        assert allowed(storage, take("k", limit, 300)) == [False]
        assert allowed(storage, take("k", limit, 299)) == [True], "it is renewed"
        assert allowed(storage, take("k", limit, 299, -1), mode="force") == [True]
        assert allowed(storage, take("k", limit, 300)) == [True]
        assert allowed(storage, take("k", limit, 301), mode="peek") == [False]
        redis_url_server.client().echo("end")
        seen = list(itertools.takewhile(lambda command: "ECHO" not in command, commands(monitor)))
    assert seen
    for command in seen:
        assert "ZRANGEBYSCORE" not in command or command.split()[-2:] == ["0", "1"], command
        assert "ZREVRANGE" not in command or command.split()[-2] in ("0", "1"), command


def commands(monitor: Any) -> Iterator[str]:
    for seen in monitor.listen():
        yield seen["command"].upper() if seen["command"].startswith("echo") else seen["command"]


SECRETS: dict[str, tuple[str, str]] = {
    "first step": ("&secret=old", "&secret=new&old_secret=old"),
    "second step": ("&secret=new&old_secret=old", "&secret=new"),
    "and back": ("&secret=new&old_secret=old", "&secret=old&old_secret=new"),
}


@pytest.fixture(params=SECRETS)
def neighbours(request: pytest.FixtureRequest, url: str) -> Iterator[Sequence[RedisStorage]]:
    one, other = (RedisStorage(url + options) for options in SECRETS[request.param])
    with closing(one), closing(other):
        yield one, other


def test_while_a_secret_is_changed_old_and_new_processes_share_a_quota(neighbours: Sequence[RedisStorage]) -> None:
    one, other = neighbours
    granted = [ask(storage, "k", "9/calendar-year").allowed for storage in (one, other, other, one, one, other) * 2]
    assert granted == [True] * 9 + [False] * 3
    metered = parse_limit("2/calendar-year over allow as metered")
    for storage in (one, other, other, one, one, other):
        ask(storage, "k", metered)
    assert [ask(storage, "k", metered, mode="peek").part for storage in neighbours] == [6, 6], "what exceeds it, too"


def test_while_a_secret_is_changed_a_grant_counts_in_both(neighbours: Sequence[RedisStorage]) -> None:
    both, single = sorted(neighbours, key=lambda storage: not storage.address.keys.rotating)
    limit = parse_limit("2/calendar-year")
    assert ask(both, "k", limit, 2).allowed
    single.evaluate(((("k", (limit,), 5, None, [GRANT]),),), "force")
    assert ask(both, "k", limit).remaining == 4
    assert ask(single, "k", limit).remaining == 3


def test_while_a_secret_is_changed_no_slot_is_lost_and_none_stays(neighbours: Sequence[RedisStorage]) -> None:
    one, other = neighbours
    assert allowed(one, take("k", SLOTS, 1)) == allowed(other, take("k", SLOTS, 2)) == [True]
    both = other if other.address.keys.rotating else one
    assert held(both, "k") == [1, 2]
    assert allowed(both, take("k", SLOTS, 3)) == [True]
    assert allowed(both, take("k", SLOTS, 4)) == [False]
    for storage, slot in ((one, 1), (other, 2), (both, 3)):
        allowed(storage, take("k", SLOTS, slot, -1), mode="force")
    assert held(one, "k") == held(other, "k") == []


def test_a_group_over_several_hash_slots_leaves_no_slot_behind(redis_cluster: Any) -> None:
    url = f"{redis_cluster.url}?{SLOW}&prefix=across{next(runs)}-"
    keys = [f"key:{i}" for i in range(6)]
    one = parse_limit("1 concurrent")
    for make in KINDS.values():
        with closing(make(url)) as storage:
            assert allowed(storage, take(keys[-1], one, 99)) == [True]
            assert not all(allowed(storage, *[take(key, one, 1) for key in keys]))
            assert [held(storage, key, one) for key in keys] == [[]] * 5 + [[99]]
            assert allowed(storage, take(keys[-1], one, 99, -1), mode="force") == [True]
            assert all(allowed(storage, *[take(key, one, 2) for key in keys]))
            assert [held(storage, key, one) for key in keys] == [[2]] * 6
            storage.reset([take(key, one, 0) for key in keys])


GUARDS: dict[str, Callable[..., Any]] = {
    "threads": lambda url, failure="local": GuardedStorage(RedisStorage(url), failure=failure),
    "tasks": lambda url, failure="local": Blocking(AsyncGuardedStorage(AsyncRedisStorage(url), failure=failure)),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_holders_are_those_of_the_server_and_without_it_those_of_the_process(guard: str, fresh_redis: Server) -> None:
    with closing(GUARDS[guard](f"{fresh_redis.url}?{SLOW}")) as storage:
        with closing(RedisStorage(f"{fresh_redis.url}?{SLOW}")) as other_process:
            assert allowed(other_process, take("k", SLOTS, 1)) == [True]
        assert allowed(storage, take("k", SLOTS, 2)) == [True]
        assert held(storage, "k") == [1, 2]
        fresh_redis.kill()
        assert held(storage, "k") == [2]
        assert allowed(storage, take("k", SLOTS, 3)) == [True]
        assert held(storage, "k") == [2, 3]


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_server_holders_raise_in_the_failure_mode_raise(guard: str, fresh_redis: Server) -> None:
    fresh_redis.kill()
    with closing(GUARDS[guard](f"{fresh_redis.url}?{SLOW}", "raise")) as storage, pytest.raises(StorageError):
        held(storage, "k")


def test_a_storage_that_cannot_list_holders_says_so() -> None:
    class Small:
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Any]:
            return []

        def reset(self, group: Group) -> None: ...

        def close(self) -> None: ...

    with closing(GuardedStorage(Small())) as storage, pytest.raises(TypeError, match="Small cannot list the holders"):
        storage.holders("k", SLOTS)
