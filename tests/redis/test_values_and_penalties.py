"""Distinct values and penalties on a real Redis: one trip, what is written, changed secrets, Cluster."""

import asyncio
import itertools
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limit, Limiter, StorageError, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import NO_STRIKE, NOT_GIVEN, STRIKE, Ask, Extra, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import undoing
from ratebound.storage import Storage, holders_of
from ratebound.storage.redis import hash_slots, script
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from tests.property.histories import Plain
from tests.redis.bare import KINDS
from tests.servers import Cluster, Server

runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"
START = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
RATE = parse_limit("1/day")
ACCOUNTS = parse_limit("2 distinct account/hour")
GUESSING = parse_limit("2 strikes/hour block 5 minutes then 1 day as guessing")
EVERYTHING = "5/day; 100/calendar-month; 20 concurrent; 9 distinct account/hour; 3 strikes/hour block 5 minutes"


@pytest.fixture
def url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?{SLOW}&prefix=values{next(runs)}-"


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, url: str, clock: FakeClock) -> Iterator[Storage]:
    clock.now = START
    with closing(KINDS[request.param](url, clock=clock)) as storage:
        yield storage


def sight(key: str, value: int, *others: Limit, cost: int = 1) -> Ask:
    """An ask about a value, and other limits after it."""
    return key, (ACCOUNTS, *others), cost, None, [(value, 0, 0, 0), *[NOT_GIVEN] * len(others)]


def spend(key: str, *limits: Limit, extra: Extra = NOT_GIVEN) -> Ask:
    return key, limits, 1, None, [extra if limit.is_penalty else NOT_GIVEN for limit in limits]


def rows_of(storage: Storage, *asks: Ask, mode: Mode = "spend") -> list[Row]:
    return list(storage.evaluate((asks,), mode)[0])


def allowed(storage: Storage, *asks: Ask, mode: Mode = "spend") -> list[bool]:
    return [row[0] for row in rows_of(storage, *asks, mode=mode)]


def strikes_left(storage: Storage, key: str, penalty: Limit = GUESSING) -> int:
    return rows_of(storage, spend(key, penalty), mode="peek")[0][1]


def name_of(url: str, key: str, limit: Limit) -> bytes:
    with closing(RedisStorage(url)) as storage:
        return storage.address.keys.subject(key) + limit.scope.encode()


def calls(stats: Any) -> dict[str, int]:
    """The calls of each command since the statistics were reset."""
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}


def test_a_rate_a_quota_a_slot_a_value_and_a_penalty_are_one_trip(fresh_redis: Server) -> None:
    client: Any = fresh_redis.client()
    url = f"{fresh_redis.url}?{SLOW}"
    answers: list[bool] = []
    with Limiter(EVERYTHING, storage=url) as limiter:
        limiter.hit("warm", values={"account": "a"})
        client.config_resetstat()
        answers += [limiter.hit("k", values={"account": "a"}).allowed for _ in range(7)]

    async def main() -> None:
        async with AsyncLimiter(EVERYTHING, storage=url) as limiter:
            for _ in range(7):
                answers.append((await limiter.hit("tasks", values={"account": "a"})).allowed)

    asyncio.run(main())
    assert answers == [True] * 5 + [False] * 2 + [True] * 5 + [False] * 2
    found = calls(client.info("commandstats"))
    assert found["evalsha"] == 14
    assert "eval" not in found


def test_an_allowed_check_with_a_penalty_writes_nothing_of_it(fresh_redis: Server) -> None:
    many = parse_limit("100/day sliding-log")  # a list, which SET does not write
    client: Any = fresh_redis.client()
    url = f"{fresh_redis.url}?{SLOW}"
    with closing(RedisStorage(url)) as storage:
        for strikes in range(2):
            client.config_resetstat()
            for _ in range(3):
                assert all(allowed(storage, spend("k", many, GUESSING)))
            assert not calls(client.info("commandstats")).keys() & {"set", "del"}
            assert client.exists(name_of(url, "k", GUESSING)) == strikes
            assert rows_of(storage, spend("k", GUESSING, extra=STRIKE), mode="force")[0][6] == 1 - strikes


def test_a_flood_that_is_denied_costs_one_call_each_and_one_write_for_each_strike(fresh_redis: Server) -> None:
    clock = FakeClock(START)
    client: Any = fresh_redis.client()
    for number, make in enumerate(KINDS.values()):
        with closing(make(f"{fresh_redis.url}?{SLOW}", clock=clock)) as storage:
            key = f"k{number}"
            assert all(allowed(storage, spend(key, RATE, GUESSING)))
            client.config_resetstat()
            given = [rows_of(storage, spend(key, RATE, GUESSING))[1][6] for _ in range(20)]
            assert given == [1] + [0] * 19, "those within one second are one"
            clock.now += SECOND
            given = [rows_of(storage, spend(key, RATE, GUESSING))[1][6] for _ in range(20)]
            assert given == [2] + [0] * 19, "while it is blocked, there is none"
            found = calls(client.info("commandstats"))
            assert found["evalsha"] == 40
            assert found["set"] == 2
            assert not found.keys() - {"evalsha", "set", "get", "lindex", "lrange", "llen", "info", "config|resetstat"}


def test_states_are_stored_as_the_manual_says_and_expire(storage: Storage, url: str, redis_url_server: Server) -> None:
    client: Any = redis_url_server.client(decode_responses=False)
    allowed(storage, sight("k", 7))
    allowed(storage, sight("k", 2**53 - 1))
    name = name_of(url, "k", ACCOUNTS)
    assert client.zrange(name, 0, -1, withscores=True) == [
        (b"7", START + HOUR),
        (b"9007199254740991", START + HOUR),
    ]
    assert client.pttl(name) > 0
    name = name_of(url, "k", GUESSING)
    rows_of(storage, spend("k", GUESSING, extra=STRIKE), mode="force")
    assert struct.unpack("<5d", client.get(name)) == (START + HOUR, START, -(2.0**60), 0, START)
    assert client.pttl(name) > 0


def test_a_state_lives_as_long_as_its_kernel_says(url: str, redis_url_server: Server) -> None:
    client: Any = redis_url_server.client()
    forgets = parse_limit("2 strikes/10 minutes block 5 minutes forget 1 hour")
    with closing(RedisStorage(url)) as storage:
        allowed(storage, sight("k", 1))
        assert 3_500_000 < client.pttl(name_of(url, "k", ACCOUNTS)) <= 3_600_000
        rows_of(storage, spend("k", forgets, extra=STRIKE), mode="force")
        assert 500_000 < client.pttl(name_of(url, "k", forgets)) <= 600_000
        once = parse_limit("1 strike/10 minutes block 5 minutes forget 1 hour as once")
        rows_of(storage, spend("k", once, extra=STRIKE), mode="force")
        assert 3_800_000 < client.pttl(name_of(url, "k", once)) <= 3_900_000, "the block, then the time to forget it"
        storage.reset((spend("k", once),))
        assert allowed(storage, spend("k", once)) == [True], "a reset lifts the block"


def test_a_value_without_a_digest_is_refused_and_nothing_is_counted(storage: Storage) -> None:
    with pytest.raises(ValueError, match="needs an id in the extras"):
        storage.evaluate(((("k", (ACCOUNTS,), 1, None, None),),))
    assert holders_of(storage)("k", ACCOUNTS) == []


@pytest.mark.parametrize("value", ["text", "list"])
@pytest.mark.parametrize("limit", [ACCOUNTS, GUESSING], ids=str)
def test_a_foreign_value_is_an_error_of_that_group_alone(
    limit: Limit, value: str, storage: Storage, url: str, redis_url_server: Server
) -> None:
    client, name = redis_url_server.client(), name_of(url, "taken", limit)
    if value == "text":
        client.set(name, "hello")
    else:
        client.lpush(name, "x")
    extras = [(1, 0, 0, 0) if limit.is_distinct else NOT_GIVEN, NOT_GIVEN]
    groups: list[Group] = [[(key, (limit, RATE), 1, None, extras)] for key in ("free", "taken")]
    with pytest.raises(StorageError, match="a Ratebound key holds a value that Ratebound did not write") as caught:
        storage.evaluate(groups)
    assert not caught.value.outage
    assert rows_of(storage, spend("taken", RATE), mode="peek")[0][1] == 1, "nothing of that group was charged"


def test_penalties_are_on_the_wire_with_the_limits_of_their_ask() -> None:
    group: Group = [spend("a", RATE), spend("b", RATE, GUESSING, extra=NO_STRIKE)]
    *_, sent = script.arguments([group], "spend", Keys(), None)
    records = [struct.unpack_from("<11d", sent, at) for at in range(0, len(sent), 88)]
    assert len(records) == 4
    assert records[2] == (3, 9, 2, HOUR, 2, 1, -1, -4, 2, 3, 0)
    assert records[3] == (0, 7 * 24 * HOUR, 300 * SECOND, 24 * HOUR, *[0] * 7)


# While a secret is being changed.
SECRETS: dict[str, tuple[str, str]] = {
    "first step": ("&secret=old", "&secret=new&old_secret=old"),
    "second step": ("&secret=new&old_secret=old", "&secret=new"),
    "and back": ("&secret=new&old_secret=old", "&secret=old&old_secret=new"),
}


@pytest.fixture(params=SECRETS)
def neighbours(request: pytest.FixtureRequest, url: str, clock: FakeClock) -> Iterator[Sequence[RedisStorage]]:
    clock.now = START
    one, other = (RedisStorage(url + options, clock=clock) for options in SECRETS[request.param])
    with closing(one), closing(other):
        yield one, other


def test_while_a_secret_is_changed_a_block_under_either_name_holds(
    neighbours: Sequence[RedisStorage], clock: FakeClock
) -> None:
    both = next(storage for storage in neighbours if storage.address.keys.rotating)
    for number, storage in enumerate(neighbours):
        key = f"k{number}"
        for _ in range(2):
            clock.now += SECOND
            rows_of(storage, spend(key, GUESSING, extra=STRIKE), mode="force")
        assert allowed(both, spend(key, GUESSING)) == [False]
        assert allowed(storage, spend(key, GUESSING)) == [False]


def test_while_a_secret_is_changed_a_block_holds_whichever_name_was_struck_last(url: str) -> None:
    clock = FakeClock(START)
    old, new, both = (
        RedisStorage(url + options, clock=clock) for options in ("&secret=a", "&secret=b", "&secret=b&old_secret=a")
    )

    def struck(storage: Storage, times: int) -> int:
        for _ in range(times):
            clock.now += SECOND
            row = rows_of(storage, spend("k", GUESSING, extra=STRIKE), mode="force")[0]
        return row[6]

    with closing(old), closing(new), closing(both):
        assert (struck(old, 2), struck(new, 1)) == (2, 1)
        assert rows_of(both, spend("k", GUESSING))[0][:3] == (False, 0, 299 * SECOND)
        clock.now += 300 * SECOND
        assert struck(both, 1) == 2
        assert rows_of(both, spend("k", GUESSING))[0][2] == 24 * HOUR, "the second block of the list"
        clock.now += 9 * 24 * HOUR
        assert struck(new, 1) == 1, "all is forgotten"
        assert struck(both, 1) == 2
        assert rows_of(both, spend("k", GUESSING))[0][2] == 300 * SECOND, "so it is the first block again"


def test_while_a_secret_is_changed_strikes_of_old_and_new_processes_are_counted_together(
    neighbours: Sequence[RedisStorage], clock: FakeClock
) -> None:
    one, other = neighbours
    many = parse_limit("6 strikes/hour block 5 minutes")
    given = []
    for storage in (one, other, other, one, one, other):
        clock.now += SECOND
        given.append(rows_of(storage, spend("k", many, extra=STRIKE), mode="force")[0][6])
    assert given == [1, 1, 1, 1, 1, 2]
    assert allowed(other, spend("k", many)) == [False]
    clock.now += 400 * SECOND
    assert strikes_left(one, "k", many) == strikes_left(other, "k", many) == 6, "the block has used them up"


def test_while_a_secret_is_changed_a_value_is_counted_under_either_name(neighbours: Sequence[RedisStorage]) -> None:
    one, other = neighbours
    assert allowed(one, sight("k", 1)) == allowed(other, sight("k", 2)) == [True]
    both = next(storage for storage in neighbours if storage.address.keys.rotating)
    assert [value for value, _ in both.holders("k", ACCOUNTS)] == [1, 2]
    assert allowed(both, sight("k", 3)) == [False]
    assert allowed(both, sight("k", 1)) == allowed(both, sight("k", 2)) == [True]


# A server that refuses writes.
def test_a_full_server_still_denies_although_it_cannot_write_the_strike(fresh_redis: Server, clock: FakeClock) -> None:
    client = fresh_redis.client()
    for number, make in enumerate(KINDS.values()):
        with closing(make(f"{fresh_redis.url}?{SLOW}", clock=clock)) as storage:
            key = f"k{number}"
            allowed(storage, spend(key, RATE, GUESSING))
            client.config_set("maxmemory", "1")
            (_, row), (_, again) = (rows_of(storage, spend(key, RATE, GUESSING)) for _ in range(2))
            assert row == again == (True, 2, 0, 0, 0, clock.now, 0, 0, None), "no strike is told that was not written"
            both = storage.evaluate([[spend(key, RATE, GUESSING)]] * 2)
            assert [list(rows)[1] for rows in both] == [row, row]
            with pytest.raises(StorageError, match="out of memory"):
                rows_of(storage, spend(key, GUESSING, extra=STRIKE), mode="force")
            client.config_set("maxmemory", "0")
            assert rows_of(storage, spend(key, RATE, GUESSING))[1][6] == 1


def test_a_replica_that_is_asked_to_strike_says_that_it_is_one(fresh_redis: Server, clock: FakeClock) -> None:
    client = fresh_redis.client()
    for number, make in enumerate(KINDS.values()):
        with closing(make(f"{fresh_redis.url}?{SLOW}", clock=clock)) as storage:
            key = f"k{number}"
            allowed(storage, spend(key, RATE, GUESSING))
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                with pytest.raises(StorageError, match="this server is a replica"):
                    rows_of(storage, spend(key, RATE, GUESSING))
            finally:
                client.execute_command("REPLICAOF", "NO", "ONE")


# A Cluster, on which a group may span hash slots.
@pytest.fixture(params=KINDS)
def across(request: pytest.FixtureRequest, redis_cluster: Cluster, clock: FakeClock) -> Iterator[Storage]:
    clock.now = START
    url = f"{redis_cluster.url}?{SLOW}&prefix=across{next(runs)}-"
    with closing(KINDS[request.param](url, clock=clock)) as storage:
        yield storage


KEYS = [f"key:{i}" for i in range(4)]


def test_the_keys_of_these_tests_are_in_different_hash_slots() -> None:
    assert len({Keys().tag(key) for key in KEYS}) == len(KEYS)


def test_a_group_over_several_hash_slots_strikes_the_ask_that_denied(across: Storage, clock: FakeClock) -> None:
    guilty = spend(KEYS[0], RATE, GUESSING)
    innocent = spend(KEYS[1], parse_limit("100/day"), GUESSING)
    assert all(allowed(across, guilty, innocent))
    rows = rows_of(across, guilty, innocent)
    assert [row[0] for row in rows] == [False, True, True, True]
    assert (rows[1][6], rows[3][6]) == (1, 0)
    assert [strikes_left(across, key) for key in KEYS[:2]] == [1, 2]
    assert rows_of(across, guilty, innocent)[1][6] == 0, "those within one second are one"
    clock.now += SECOND
    rows = rows_of(across, innocent, guilty)
    assert [row[0] for row in rows] == [True, True, False, False]
    assert rows[3][6] == 2, "the block begins with this denial"
    assert rows[3][2] == 300 * SECOND
    assert rows_of(across, spend(KEYS[2], RATE), spend(KEYS[0], GUESSING))[1][2] == 300 * SECOND


EXEMPTIONS: dict[str, list[Ask]] = {
    "slots": [(KEYS[0], (parse_limit("1 concurrent"), GUESSING), 1, None, [(1, 0, 0, 0), NOT_GIVEN])],
    "a cost that never passes": [(KEYS[0], (RATE, GUESSING), 5, None, None)],
    "a waiter": [(KEYS[0], (RATE, GUESSING), 1, SECOND, None)],
    "a denial that is no strike": [spend(KEYS[0], RATE, GUESSING, extra=NO_STRIKE)],
    "a block of another": [spend(KEYS[0], RATE, GUESSING), spend(KEYS[2], GUESSING)],
}


@pytest.mark.parametrize("kind", EXEMPTIONS)
def test_over_several_hash_slots_no_strike_comes_from(kind: str, across: Storage, clock: FakeClock) -> None:
    allowed(across, spend(KEYS[0], RATE))
    allowed(across, (KEYS[0], (parse_limit("1 concurrent"),), 1, None, [(9, 0, 0, 0)]))
    for _ in range(2):
        rows_of(across, spend(KEYS[2], GUESSING, extra=STRIKE), mode="force")
        clock.now += SECOND
    assert not all(allowed(across, *EXEMPTIONS[kind], spend(KEYS[1], RATE, GUESSING)))
    assert [strikes_left(across, key) for key in KEYS[:2]] == [2, 2]


def test_a_penalty_that_is_in_several_asks_is_struck_once(across: Storage) -> None:
    twice = [spend(KEYS[0], RATE, GUESSING), spend(KEYS[0], parse_limit("1/hour"), GUESSING)]
    assert all(allowed(across, *twice, spend(KEYS[1], parse_limit("9/day"))))
    rows = rows_of(across, *twice, spend(KEYS[1], parse_limit("9/day")))
    assert [row[6] for row in (rows[1], rows[3])] == [1, 1]
    assert strikes_left(across, KEYS[0]) == 1


def test_a_group_over_several_hash_slots_that_a_later_part_denies_leaves_no_value_behind() -> None:
    """A part that allows in the first round and denies in the second: others came in between."""
    clock = FakeClock(START)
    python = Plain(clock)
    group: Group = [sight(KEYS[0], 1), spend(KEYS[1], RATE, GUESSING)]
    rounds = hash_slots.decide(group, "spend", Keys())

    def answered(calls: list[hash_slots.Call]) -> list[Sequence[Row]]:
        return [python.evaluate([part], mode)[0] for part, mode in calls]

    peeked = answered(next(rounds))
    python.evaluate([[spend(KEYS[1], RATE)]], "spend")
    first = answered(rounds.send(peeked))
    second = answered(rounds.send(first))
    undone = answered(rounds.send(second))
    with pytest.raises(StopIteration) as done:
        rounds.send(undone)
    assert [row[0] for row in done.value.value] == [True, False, True]
    assert done.value.value[2][6] == 1, "the part strikes by itself"
    assert python.holders(KEYS[0], ACCOUNTS) == []


def test_a_denial_stays_one_if_the_strike_cannot_be_written_to_its_node() -> None:
    python = Plain(FakeClock(START))
    group: Group = [spend(KEYS[0], RATE, GUESSING), spend(KEYS[1], RATE)]
    python.evaluate([group], "spend")
    rounds = hash_slots.decide(group, "spend", Keys())
    calls = rounds.send([python.evaluate([part], mode)[0] for part, mode in next(rounds)])
    assert calls == [([(KEYS[0], (GUESSING,), 0, None, [STRIKE])], "force")]
    with pytest.raises(StopIteration) as done:
        rounds.throw(StorageError("gone"))
    assert [(row[0], row[6]) for row in done.value.value][1] == (True, 0)
    assert not all(row[0] for row in done.value.value)


@pytest.mark.parametrize("seed", range(2))
def test_a_history_over_several_hash_slots_is_answered_as_on_one(seed: int, across: Storage, clock: FakeClock) -> None:
    choose = random.Random(seed)
    python = Plain(clock)
    pool = [
        parse_limit(text)
        for text in (
            "3/2 seconds sliding-log",
            "5/4 seconds fixed-window",
            "9/calendar-day",
            "3 distinct account/4 seconds",
            "2 concurrent for 3 seconds",
            "3 strikes/10 seconds block 2 seconds then 5 seconds forget 30 seconds",
            "2 strikes/5 seconds block 1 second then 10 seconds forget 20 seconds as guessing",
        )
    ]

    def drawn() -> Ask:
        limits = tuple(choose.sample(pool, choose.randint(1, 5)))
        slot = choose.randrange(6)
        extras = [NOT_GIVEN if limit.takes_cost or limit.is_penalty else (slot, 0, 0, 0) for limit in limits]
        return choose.choice(KEYS), limits, 1, None, extras

    strikes = 0
    granted: list[tuple[Group, list[Row]]] = []
    for _ in range(150):
        clock.now += choose.choice([0, 300_000, 1_000_000, 2_500_000])
        group: Group = list({ask[0]: ask for ask in (drawn() for _ in range(choose.randint(1, 3)))}.values())
        mode: Mode = choose.choice(["spend", "spend", "spend", "spend", "peek"])
        (expected,) = python.evaluate([group], mode)
        assert rows_of(across, *group, mode=mode) == expected
        asked = [limit for _, limits, *_ in group for limit in limits]
        strikes += any(limit.is_penalty and row[6] for limit, row in zip(asked, expected, strict=True))
        if mode == "spend" and all(row[0] for row in expected):
            granted.append((group, expected))
            if choose.random() < 0.2:
                undo = undoing(*granted.pop())
                (expected,) = python.evaluate([undo], "force")
                assert rows_of(across, *undo, mode="force") == expected
    assert strikes > 5
