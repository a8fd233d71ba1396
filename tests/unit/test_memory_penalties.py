"""Penalties and distinct values in memory (law 7): a block outlives floods, and strikes do not grow without bound."""

import random

import pytest

from ratebound import Limiter, MemoryStorage, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import NOT_GIVEN, STRIKE, Group
from ratebound.storage.memory_states import Blocks
from ratebound.testing import FakeClock, ask
from tests.unit.test_memory import held

HOUR = 3600 * SECOND
BLOCK = "1 strike/hour block 1 hour then 1 day as guessing"


def strike(storage: MemoryStorage, key: str, text: str = BLOCK) -> None:
    ask(storage, key, text, 1, "force", extra=STRIKE)


def is_blocked(storage: MemoryStorage, key: str, text: str = BLOCK) -> bool:
    return not ask(storage, key, text, mode="peek").allowed


def steps(storage: MemoryStorage, key: str) -> int:
    """The number of blocks that are remembered of a key."""
    state = storage.states._tables["guessing;penalty;"].states.get(key)
    return getattr(state, "step", 0)


def test_an_allowed_check_needs_no_room_for_its_penalty(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=10, clock=clock)
    limiter = Limiter(f"5/hour; {BLOCK}", storage=storage)
    for number in range(10):
        assert limiter.hit(f"k:{number}")
    assert (held(storage), storage.evicted, storage.overflowed) == (10, 0, 0)


@pytest.mark.parametrize("flood", ["allowed", "denied", "blocked", "values", "large values"])
def test_a_flood_of_keys_frees_no_blocked_client(flood: str, clock: FakeClock) -> None:
    """A million keys of each kind are as good as ten times the cap."""
    most = 200
    storage = MemoryStorage(max_keys=most, clock=clock)
    login = Limiter(f"1/hour; {BLOCK}", storage=storage)
    blocked = [f"blocked:{number}" for number in range(25)]
    for key in blocked:
        login.hit(key)
        clock.now += 1_000
        assert login.hit(key).blocked
    limits = {
        "allowed": "5/hour as other",
        "denied": "1/hour as other; 3 strikes/hour block 1 minute as others",
        "blocked": "1/hour as other; 1 strike/hour block 1 minute as others",
        "values": "5 distinct account/hour",
        "large values": "100 distinct account/hour",
    }
    others = Limiter(limits[flood], storage=storage)
    for number in range(10 * most):
        clock.now += 1_000
        if "values" in flood:
            for value in range(1 if flood == "values" else number % 40):
                others.hit(f"flood:{number}", values={"account": value})
        else:
            others.hit(f"flood:{number}")
            others.hit(f"flood:{number}")
        assert storage.weight <= most + most // 4 + 8
    held(storage)
    clock.now += HOUR - 10 * most * 1_000 - 25 * 1_000 - 1
    assert all(login.hit(key).blocked for key in blocked)


def test_blocks_are_dropped_only_if_there_are_too_many_and_room_is_needed_the_soonest_first(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=40, clock=clock)
    ends = list(range(1, 31))
    random.Random(1).shuffle(ends)
    for end in ends:
        strike(storage, f"k:{end}", f"1 strike/hour block {end} hours as guessing")
    assert all(is_blocked(storage, f"k:{end}") for end in ends), "there is room"
    for number in range(30):
        assert ask(storage, f"new:{number}", "5/hour").allowed
    assert [end for end in range(1, 31) if not is_blocked(storage, f"k:{end}")] == list(range(1, 21))
    assert held(storage) == 40
    for number in range(200):
        ask(storage, f"later:{number}", "5/hour")
    assert all(is_blocked(storage, f"k:{end}") for end in range(21, 31)), "a quarter of the cap is never dropped"


def test_a_new_block_takes_the_place_of_the_one_that_ends_soonest(clock: FakeClock) -> None:
    """All other states deny, so no other can go."""
    storage = MemoryStorage(max_keys=40, clock=clock)
    for number in range(30):
        ask(storage, f"denied:{number}", "1/day")
    for number in range(10):
        strike(storage, f"k:{number}", f"1 strike/hour block {number + 2} hours as guessing")
    strike(storage, "new", "1 strike/hour block 1 day as guessing")
    assert not is_blocked(storage, "k:0")
    strike(storage, "short", "1 strike/hour block 1 hour as guessing")
    strike(storage, "other", "1 strike/hour block 1 day as guessing")
    assert not is_blocked(storage, "short")
    assert all(is_blocked(storage, key) for key in ("new", "other", *[f"k:{number}" for number in range(2, 10)]))
    assert not any(ask(storage, f"denied:{number}", "1/day").allowed for number in range(30))
    assert held(storage) == 40


def test_strikes_do_not_grow_without_bound_where_every_other_state_denies(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=200, clock=clock)
    limiter = Limiter("1/day; 3 strikes/hour block 1 day as guessing", storage=storage)
    for number in range(200):
        limiter.hit(f"denied:{number}")
    for _ in range(5):
        for number in range(200):
            clock.now += 30_000
            limiter.hit(f"denied:{number}")
    assert storage.weight <= 200 + 50 + 25
    assert held(storage) == storage.weight
    assert not any(limiter.hit(f"denied:{number}") for number in range(200))


def test_a_penalty_that_has_blocked_is_worth_more_than_other_states(clock: FakeClock) -> None:
    """Losing it would make the next block the shortest again."""
    storage = MemoryStorage(max_keys=100, clock=clock)
    for number in range(60):
        strike(storage, f"k:{number}")
    clock.advance(3600)
    for number in range(2_000):
        clock.now += 1_000
        ask(storage, f"flood:{number}", "5/hour", 4)
        strike(storage, f"once:{number}", "3 strikes/hour block 1 hour as guessing")
    assert sum(steps(storage, f"k:{number}") for number in range(60)) == 60
    assert held(storage) == 100
    strike(storage, "k:7")
    clock.advance(3600)
    assert is_blocked(storage, "k:7"), "for a day"


def test_of_states_that_deny_and_penalties_that_have_blocked_a_penalty_goes(clock: FakeClock) -> None:
    """Otherwise clients that were blocked once could leave no room to new ones for a week."""
    storage = MemoryStorage(max_keys=100, clock=clock)
    for number in range(100):
        strike(storage, f"k:{number}")
    clock.advance(3600)
    assert ask(storage, "new", "1/hour").allowed
    assert (storage.evicted, storage.overflowed) == (1, 0)
    assert sum(steps(storage, f"k:{number}") for number in range(100)) == 99


def test_a_peek_drops_no_block_and_an_allowed_one_says_that_there_is_room(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=4, clock=clock)
    for number in range(4):
        strike(storage, f"k:{number}")
    assert ask(storage, "new", "1/hour", mode="peek").allowed
    assert (storage.evicted, storage.overflowed) == (0, 0)
    assert all(is_blocked(storage, f"k:{number}") for number in range(4))


def test_denials_of_shared_states_are_no_strikes(clock: FakeClock) -> None:
    """They are nobody's fault: other keys have used the state up."""
    for text, values in (("1/day", None), ("1 distinct account/day", {"account": "a"})):
        storage = MemoryStorage(max_keys=4, clock=clock)
        limiter = Limiter(f"{text}; 1 strike/hour block 1 hour as guessing", storage=storage)
        for number in range(4):
            assert limiter.hit(f"k:{number}", values=values)
        assert limiter.hit("shared", values=values)
        for number in range(20):
            clock.now += 2 * SECOND
            decision = limiter.hit(f"new:{number}", values=values)
            assert (decision.allowed, decision.blocked) == (False, False)
        assert storage.overflowed == 21
        assert "guessing;penalty;" not in storage.states._tables or not storage.states._blocks.ends


def test_a_value_that_was_counted_in_a_shared_state_is_no_strike_when_it_comes_back_too_late(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limit, penalty = parse_limit("2 distinct account/hour"), parse_limit(BLOCK)

    def seen(key: str, digest: int) -> list[bool]:
        group: Group = ((key, (limit, penalty), 1, None, [(digest, 0, 0, 0), NOT_GIVEN]),)
        return [row[0] for row in storage.evaluate((group,))[0]]

    for digest in (1, 2):
        assert all(seen("denied", digest))
    assert all(seen("new", 3))
    clock.advance(3599)
    assert all(seen("denied", 2))
    assert all(seen("denied", 1))
    clock.advance(1)  # 3 is over, but still in the shared state
    for digest in (4, 5):
        assert all(seen("other", digest))
    assert seen("new", 3) == [False, True]
    assert not storage.states._blocks.ends


def test_a_reset_lifts_a_block_and_leaves_nothing_behind(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=40, clock=clock)
    for number in range(1_000):
        strike(storage, "k")
        assert is_blocked(storage, "k")
        storage.reset((("k", (parse_limit(BLOCK),), 1, None, None),))
        assert not is_blocked(storage, "k")
        assert len(storage.states._blocks._heap) <= 66, number
    assert (storage.states._blocks.ends, held(storage)) == ({}, 0)
    strike(storage, "k")
    storage.clear()
    assert storage.states._blocks.ends == {}


def test_blocks_are_held_until_their_end_and_of_all_types_of_keys() -> None:
    blocks = Blocks()
    assert blocks.held(0) == 0
    for key, until in (("a", 30), (b"b", 20), ("c", 20), ("a", 40)):
        blocks.note("s", key, until)
        blocks.note("s", key, until)
    assert (blocks.held(0), blocks.soonest()) == (3, ("s", b"b"))
    assert blocks.held(19) == 3
    assert (blocks.held(20), blocks.soonest()) == (1, ("s", "a"))
    assert blocks.held(39) == 1
    assert blocks.held(40) == 0
    blocks.note("s", "a", 50)
    blocks.note("t", "a", 60)
    blocks.forget("s", "a")
    blocks.forget("s", "never")
    assert (blocks.held(0), blocks.soonest()) == (1, ("t", "a"))


def test_values_and_strikes_weigh_like_slots(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("1000 distinct account/hour", storage=storage)
    for number in range(48):
        limiter.hit("k", values={"account": number})
    assert (storage.keys, storage.weight) == (1, 4)
    text = "100 strikes/hour block 1 hour as guessing"
    for _ in range(32):
        clock.advance(1)
        strike(storage, "k", text)
    assert (storage.keys, storage.weight) == (2, 7)
