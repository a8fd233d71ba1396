"""Bounded memory that is not a bypass (law 7), and expiry without a thread."""

import threading
from collections.abc import Sequence

import pytest

from ratebound import Check, Limiter, MemoryStorage, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, BUCKETS, GRANT, Algorithm, Group, Limit, Mode
from ratebound.numbers import Numbers
from ratebound.outcome import Row
from ratebound.slots import slots_of
from ratebound.storage.memory_states import Table
from ratebound.testing import FakeClock, ask, ask_together


def counted(limit: Numbers | None) -> int | None:
    return None if limit is None else limit.count


def judges(table: Table) -> dict[str | bytes, int]:
    """By the count of which limit each key is judged, if it is not the table's."""
    return {key: limit.count for key, limit in table.others.items()}


def held(storage: MemoryStorage) -> int:
    """What is really there: the counter must say the same, and a ring never grows away from its states."""
    states = sum(len(table.states) for table in storage.states._tables.values())
    assert storage.keys == states
    for table in storage.states._tables.values():
        assert len(table.ring) <= 2 * len(table.states) + 64
        assert set(table.states) <= set(table.ring)
    return states


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flood_of_keys_neither_grows_memory_nor_frees_an_offender(algorithm: Algorithm, clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1_000, clock=clock)
    limiter = Limiter(f"5/hour {'burst 5 ' if algorithm in BUCKETS else ''}{algorithm}", storage=storage)
    offenders = [f"offender:{i}" for i in range(20)]
    for offender in offenders:
        for _ in range(6):
            decision = limiter.hit(offender)
        assert not decision
    served = 0
    for i in range(10_000):
        served += limiter.hit(f"flood:{i}").allowed
        clock.now += 1_000
    assert held(storage) <= 1_000
    assert served == 10_000
    assert storage.evicted >= 9_000
    for offender in offenders:
        assert not limiter.hit(offender), "a client that was blocked stays blocked"
    assert all(limiter.hit("honest").allowed for _ in range(5)), "an honest new client is still served"
    assert not limiter.hit("honest")


def test_when_every_key_denies_new_ones_share_one_state_and_old_ones_stay_blocked(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1_000, clock=clock)
    limiter = Limiter("1/hour", storage=storage)
    assert all(limiter.hit(f"k:{i}") for i in range(1_000))
    answers = [limiter.hit(f"new:{i}").allowed for i in range(100)]
    assert answers == [True] + [False] * 99
    assert storage.overflowed == 100
    assert held(storage) == 1_000
    assert not any(limiter.hit(f"k:{i}") for i in range(1_000))
    clock.advance(3600)
    assert limiter.hit("new:5")


def test_new_keys_that_overflow_together_in_one_group_are_each_charged(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=2, clock=clock)
    limiter, limit = Limiter("10/hour", storage=storage), parse_limit("10/hour")
    for key in ("a", "b"):
        limiter.hit(key, cost=10)
    granted = sum(limiter.check([Check(f"x:{i}", limit), Check(f"y:{i}", limit)]).allowed for i in range(20))
    assert granted == 5


def test_a_refund_for_a_key_that_was_evicted_does_not_refund_the_shared_state(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=2, clock=clock)
    limiter = Limiter("5/hour fixed-window", storage=storage)
    decision = limiter.hit("mild", cost=1)
    limiter.hit("a", cost=5)
    limiter.hit("b", cost=5)
    assert storage.evicted == 1
    limiter.hit("overflows", cost=5)
    limiter.settle(decision, cost=0)
    assert not limiter.hit("overflows too")


def test_a_client_that_was_blocked_stays_so_whatever_limit_the_others_have(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    strict, mild = Limiter("10/hour burst 1", storage=storage), Limiter("9/hour burst 1000", storage=storage)
    strict.hit("bad")
    for i in range(2_000):
        mild.hit(f"new:{i}")
    assert not strict.hit("bad")


def test_a_blocked_client_stays_blocked_whatever_limits_of_its_scope_flood_memory(clock: FakeClock) -> None:
    """Tiers and overrides: one state for each key, but not one limit for all keys."""
    for blocked, flood, each in (
        ("1000/hour burst 10 as api", "1/hour burst 9 as api", 1),
        ("100/hour burst 20 as api", "10/hour burst 10 as api", 3),
        ("5/hour as api sliding-log", "50/hour as api sliding-log", 9),
        ("5/hour as api fixed-window", "1000/hour as api fixed-window", 9),
        ("200/hour as api sliding-counter", "3/hour as api sliding-counter", 1),
    ):
        storage = MemoryStorage(max_keys=100, clock=clock)
        strict, other = Limiter(blocked, storage=storage), Limiter(flood, storage=storage)
        while strict.hit("blocked"):
            pass
        for i in range(2_000):
            for _ in range(each):
                other.hit(f"flood:{i}")
        assert not strict.hit("blocked"), (blocked, flood)
        assert storage.evicted > 1_800


def test_a_client_is_judged_by_the_limit_that_it_has_now(clock: FakeClock) -> None:
    """A denial stores nothing, yet it says which limit a client has."""
    storage = MemoryStorage(max_keys=100, clock=clock)
    many = Limiter("1000/hour fixed-window", storage=storage)
    few = Limiter("5/hour fixed-window", storage=storage)
    for _ in range(7):
        many.hit("lowered")
    assert not few.hit("lowered")
    for i in range(2_000):
        for _ in range(9):
            many.hit(f"flood:{i}")
    assert not few.hit("lowered")


def test_the_limits_of_a_group_judge_their_keys_too(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    limiter = Limiter("1000/hour fixed-window", storage=storage)
    strict, mild = parse_limit("5/hour fixed-window"), parse_limit("900/hour fixed-window")
    key = "k" * 300  # kept as a digest
    limiter.check([Check(key, mild)])
    while limiter.check([Check(key, strict), Check("b", mild)]):
        pass
    for i in range(2_000):
        limiter.check([Check(f"flood:{i}", mild, cost=9)])
    assert not limiter.check([Check(key, strict)])


def test_a_client_that_one_limit_blocks_stays_blocked_while_it_uses_a_milder_one(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    login, search = Limiter("5/hour fixed-window", storage=storage), Limiter("100/hour fixed-window", storage=storage)
    while login.hit("blocked"):
        pass
    assert search.hit("blocked")
    for i in range(2_000):
        for _ in range(9):
            search.hit(f"flood:{i}")
    assert not login.hit("blocked")


def test_a_client_whose_limit_was_raised_makes_room_again(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    few, many = Limiter("1/hour burst 2", storage=storage), Limiter("1000/hour burst 1000", storage=storage)
    for i in range(100):
        few.hit(f"k:{i}", cost=2)
    clock.advance(7_200)
    for i in range(100):
        many.hit(f"k:{i}", cost=4)
    assert many.hit("new").remaining == 999
    assert (storage.evicted, storage.overflowed) == (1, 0)


def test_the_key_that_used_least_goes_first_though_others_have_more_left(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    free, pro = Limiter("10/hour fixed-window", storage=storage), Limiter("1000/hour fixed-window", storage=storage)
    pro.hit("heavy", cost=500)
    for i in range(2_000):
        free.hit(f"light:{i}")
    assert pro.peek("heavy").remaining == 500


def test_what_is_remembered_of_limits_goes_with_its_keys(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    first, second = Limiter("10/second", storage=storage), Limiter("20/second", storage=storage)
    first.hit("k")
    for i in range(50):
        second.hit(f"new:{i}")
    (table,) = storage.states._tables.values()
    assert len(table.others) == 50
    second.reset("new:0")
    assert len(table.others) == 49
    assert first.hit("new:1")
    assert len(table.others) == 48
    clock.advance(2)
    for _ in range(100):
        clock.now += 20_000
        first.hit("k")
    assert (len(table.others), len(table.states), counted(table.only)) == (0, 1, 10)


def test_one_more_limit_for_a_key_changes_nothing_for_the_others(clock: FakeClock) -> None:
    """Only the key that was checked is judged by the limit, and by the first one again when that is its limit."""
    storage = MemoryStorage(clock=clock)
    first, second = Limiter("10/hour", storage=storage), Limiter("20/hour", storage=storage)
    same = Limiter("10/hour", storage=storage)
    for key in ("a", "b"):
        first.hit(key)
    (table,) = storage.states._tables.values()
    second.hit("a")
    assert (judges(table), table.only) == ({"a": 20}, None)
    second.hit("b")
    same.hit("a")
    assert (judges(table), table.only) == ({"b": 20}, None)
    second.peek("a")
    assert set(table.others) == {"b"}, "a peek changes nothing"
    first.hit("b")
    assert (judges(table), counted(table.only)) == ({}, 10)


@pytest.mark.parametrize("other", ["5/hour burst 9 as l", "6/hour burst 5 as l"])
def test_a_limit_that_differs_in_count_or_burst_alone_judges_its_own_keys(other: str, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    first, second = parse_limit("5/hour burst 5 as l"), parse_limit(other)
    ask(storage, "a", first)
    ask(storage, "b", second)
    (table,) = storage.states._tables.values()
    assert table.limit is first.numbers
    assert table.others == {"b": second.numbers}


def test_of_several_limits_each_judges_the_keys_of_its_own_scope(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    first, second = Limiter("10/hour; 100/day", storage=storage), Limiter("20/hour; 100/day", storage=storage)
    first.hit("k")
    second.hit("k")
    hours, days = storage.states._tables.values()
    assert (judges(hours), judges(days)) == ({"k": 20}, {})


@pytest.mark.parametrize(("spent", "judge"), [(4, 5), (3, 1_000)])
def test_a_stricter_limit_judges_while_it_denies_and_no_longer(spent: int, judge: int, clock: FakeClock) -> None:
    """One unit more is what the milder limit takes."""
    storage = MemoryStorage(clock=clock)
    few, many = Limiter("5/hour fixed-window", storage=storage), Limiter("1000/hour fixed-window", storage=storage)
    few.hit("k", cost=spent)
    many.hit("k")
    (table,) = storage.states._tables.values()
    assert table.others.get("k", table.limit).count == judge


def test_a_lowered_limit_judges_at_once(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    many, few = Limiter("1000/hour fixed-window", storage=storage), Limiter("5/hour fixed-window", storage=storage)
    many.hit("k", cost=2)
    few.hit("k")
    (table,) = storage.states._tables.values()
    assert table.others["k"].count == 5


def test_of_two_keys_with_one_limit_the_least_used_goes(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    limiter = Limiter("10/hour fixed-window", storage=storage)
    for i in range(5):
        limiter.hit(f"much:{i}", cost=8)
    for i in range(1_000):
        limiter.hit(f"little:{i}", cost=2)
    assert all(limiter.peek(f"much:{i}").remaining == 2 for i in range(5))


def test_a_key_with_one_unit_left_may_go_and_one_with_none_may_not(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limiter = Limiter("5/hour fixed-window", storage=storage)
    limiter.hit("a", cost=4)
    assert limiter.hit("b", cost=5)
    assert (storage.evicted, storage.overflowed) == (1, 0)
    limiter.hit("c")
    assert (storage.evicted, storage.overflowed) == (1, 1)
    assert not limiter.hit("b")


def test_a_correction_of_nothing_for_an_unknown_key_takes_no_room(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limit = parse_limit("5/hour fixed-window")
    Limiter(limit, storage=storage).hit("a")
    storage.evaluate([(("new", (limit,), 0, None, None),)], "force")
    assert (storage.evicted, storage.overflowed, storage.keys) == (0, 0, 1)


def test_a_state_is_swept_after_its_last_instant_and_not_before(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/second sliding-log", storage=storage)
    limiter.hit("old")
    clock.advance(1)
    (table,) = storage.states._tables.values()
    for i in range(4):
        limiter.hit(f"k:{i}")
    assert "old" in table.states
    clock.now += 1
    for i in range(4, 8):
        limiter.hit(f"k:{i}")
    assert "old" not in table.states
    assert held(storage) == 8


def test_nothing_is_held_after_clear_and_counting_begins_anew(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for i in range(3):
        limiter.hit(f"k:{i}")
    storage.clear()
    assert held(storage) == 0
    limiter.hit("k:0")
    assert held(storage) == 1


def test_a_refund_of_all_that_was_spent_frees_the_key(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour sliding-log", storage=storage)
    limiter.settle(limiter.hit("k"), cost=0)
    assert held(storage) == 0


def test_storages_tell_the_same_time_in_every_mode() -> None:
    limiter = Limiter("5/hour")
    first, peek, second = limiter.hit("k"), limiter.peek("k"), limiter.hit("k")
    assert first.at <= peek.at <= second.at
    check = limiter.hit_many(["k", "other"])[0]
    assert second.at <= check.at < second.at + 60 * SECOND


def test_the_longest_key_that_is_kept_as_it_is_and_the_shortest_that_is_not(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for length in (256, 257):
        limiter.hit("k" * length)
        assert limiter.peek("k" * length).remaining == 4
        assert limiter.hit("k" * length).remaining == 3
    (table,) = storage.states._tables.values()
    assert [len(key) for key in table.states] == [256, 16]


def test_one_key_is_room_enough(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    assert [limiter.hit("k").remaining for _ in range(3)] == [4, 3, 2]
    assert held(storage) == 1


def test_an_overflow_is_forgotten_when_it_has_expired_and_not_before(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limiter = Limiter("1/second fixed-window; 1/minute fixed-window", storage=storage)
    for key in ("a", "b"):
        limiter.hit(key)
    other = Limiter("5/hour as other", storage=storage)
    for _ in range(200):
        clock.now += 20_000
        other.peek("k")
    assert not limiter.hit("c"), "new keys still share what is spent for a minute"
    clock.advance(120)
    for _ in range(200):
        clock.now += 20_000
        other.peek("k")
    assert list(storage.states._tables) == list(storage.states._turns) == ["other;sliding-log;3600000000"]


def test_a_full_table_of_offenders_does_not_keep_others_from_a_table_that_has_room(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1_000, clock=clock)
    offenders, mild = Limiter("1/hour as a", storage=storage), Limiter("100/hour as b", storage=storage)
    for i in range(600):
        offenders.hit(f"k:{i}")
    for i in range(400):
        mild.hit(f"k:{i}")
    assert all(mild.hit(f"new:{i}").remaining == 99 for i in range(300))
    assert storage.overflowed == 0


def test_a_key_with_waiters_is_not_evicted_though_a_place_among_them_is_free(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limit = parse_limit("1/second burst 1")
    places = [ask(storage, "waiting", limit, patience=60 * SECOND) for _ in range(5)]
    ask(storage, "waiting", limit, -1, "force", spent=places[1])
    clock.advance(1)
    assert ask(storage, "waiting", limit, mode="peek").allowed, "the free place"
    for i in range(50):
        ask(storage, f"new {i}", limit)
    assert storage.evicted == 0
    assert ask(storage, "waiting", limit, mode="peek").reset_after_us == 4 * SECOND
    clock.advance(5)  # all have gone ahead
    overflowed = storage.overflowed
    assert ask(storage, "other", limit).allowed
    assert storage.overflowed == overflowed


def test_the_keys_of_a_group_are_not_evicted_to_make_room_for_each_other(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=2, clock=clock)
    limiter, limit = Limiter("5/hour", storage=storage), parse_limit("5/hour")
    limiter.hit("known", cost=2)
    for i in range(50):
        decision = limiter.check([Check("known", limit), Check(f"new:{i}", limit)])
        assert held(storage) <= 2
        if not decision:
            break
    assert limiter.peek("known").remaining == 0


def test_the_only_other_key_of_a_group_is_not_evicted_for_a_new_one(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1, clock=clock)
    limiter, limit = Limiter("5/hour", storage=storage), parse_limit("5/hour")
    limiter.hit("known")
    assert limiter.check([Check("known", limit), Check("new", limit)])
    assert (held(storage), storage.evicted, storage.overflowed) == (1, 0, 1)


def test_a_reset_of_an_unknown_key_frees_nothing(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    limiter.hit("k")
    limiter.reset("unknown")
    assert held(storage) == 1


def test_a_group_of_two_keys_is_charged_for_both_at_once(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limit = parse_limit("5/hour")
    group = tuple((key, (limit,), 1, None, None) for key in ("a", "b"))
    assert [[row[1] for row in storage.at_once(group)] for _ in range(3)] == [[4, 4], [3, 3], [2, 2]]


def test_a_place_in_the_future_is_taken_for_one_instant_in_both_of_two_buckets(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    slow, fast = parse_limit("1/second burst 1"), parse_limit("10/second burst 1 as fast")
    group = (("k", (slow, fast), 1, 5 * SECOND, None),)
    storage.at_once(group)
    assert [row[3:5] for row in storage.at_once(group)] == [(2 * SECOND, SECOND), (11 * SECOND // 10, SECOND)]


def test_scopes_that_nobody_uses_any_more_are_forgotten(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("1/second", storage=storage)
    for i in range(3_000):
        limiter.check([Check("k", parse_limit(f"5/second as rule{i}"))])
        clock.now += 100
    for _ in range(2_000):
        clock.now += 20_000
        limiter.hit("k")
    assert held(storage) <= 2
    assert len(storage.states._tables) == len(storage.states._turns) <= 2


def test_if_every_key_of_a_flood_is_used_up_a_new_client_has_to_share(clock: FakeClock) -> None:
    """The price of never letting an offender go: it is counted, and ends as the first of them expire."""
    storage = MemoryStorage(max_keys=1_000, clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for i in range(2_000):
        for _ in range(5):
            limiter.hit(f"flood:{i}")
    assert storage.overflowed > 0
    assert not limiter.hit("honest")
    clock.advance(3_601)
    assert limiter.hit("honest").remaining == 4


def test_a_slot_of_the_overflow_is_renewed_and_released_there(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=5, clock=clock)
    limiter = Limiter("1 concurrent for 10 minutes", storage=storage)
    blocked = [limiter.hit(f"blocked:{i}") for i in range(5)]
    decision = limiter.hit("new")
    assert decision
    assert not limiter.hit("another")
    limiter.release(blocked[0])  # from now on there is room for a state of its own
    clock.advance(500)
    (renewed,) = storage.evaluate((slots_of(decision.asks, 1),), "force")[0]
    assert renewed[6] == 0, "it was not lost"
    assert held(storage) == 4
    assert limiter.hit("taken")
    clock.advance(500)
    for i in range(5):
        limiter.hit(f"blocked:{i}")
    assert not limiter.hit("another")
    limiter.release(decision)
    assert limiter.hit("another")
    limiter.release(decision)
    assert not limiter.hit("yet another"), "a slot is released once"


def test_an_overflow_of_one_limit_is_not_shared_with_another(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=10, clock=clock)
    one, other = Limiter("1/hour as one", storage=storage), Limiter("1/hour as other", storage=storage)
    for i in range(20):
        one.hit(f"k:{i}")
    assert not one.hit("new")
    assert other.hit("new")


def test_a_flood_on_one_limit_takes_no_room_from_the_small_table_of_another(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=1_000, clock=clock)
    users, addresses = Limiter("5/hour as users", storage=storage), Limiter("5/hour as ip", storage=storage)
    for i in range(50):
        users.hit(f"user:{i}")
    for i in range(5_000):
        addresses.hit(f"ip:{i}")
    assert all(users.peek(f"user:{i}").remaining == 4 for i in range(50))
    for i in range(50, 100):
        users.hit(f"user:{i}")
    assert all(users.peek(f"user:{i}").remaining == 4 for i in range(100))


def test_a_peek_of_unknown_keys_keeps_nothing(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for i in range(1_000):
        limiter.peek(f"k:{i}")
    assert held(storage) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_untouched_keys_are_swept_as_new_ones_come(algorithm: Algorithm, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter(f"5/second {algorithm}", storage=storage)
    for i in range(5_000):
        limiter.hit(f"old:{i}")
    clock.advance(3)
    for i in range(5_000):
        limiter.hit(f"new:{i}")
    assert held(storage) <= 5_100


def test_untouched_keys_are_swept_by_traffic_on_old_ones_too(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/second; 50/minute burst 9", storage=storage)
    for i in range(5_000):
        limiter.hit(f"gone:{i}")
    for _ in range(3_000):
        clock.now += 20_000
        limiter.hit("regular")
    assert held(storage) <= 2


def test_reset_and_hit_again_and_again_does_not_grow_the_ring(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for _ in range(10_000):
        limiter.hit("k")
        limiter.reset("k")
    assert held(storage) == 0


def test_a_state_that_is_swept_in_the_middle_of_its_own_group_is_counted_once(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter, limit = Limiter("1/second", storage=storage), parse_limit("5/second")
    for i in range(200):
        clock.advance(3)
        checks = [Check(f"new:{i}", limit), Check("old", limit), Check(f"other:{i}", limit)]
        assert limiter.check(checks)
        held(storage)


def test_a_refund_puts_no_state_back_that_was_swept_in_the_middle_of_its_own_group(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    short, long = parse_limit("1000/second burst 1"), parse_limit("1000/second burst 1000")
    Limiter(short, storage=storage).hit("old")
    for i in range(9):
        Limiter(long, storage=storage).hit(f"other:{i}", cost=1000)
    clock.advance(0.005)  # less than from one sweep to the next
    table = storage.states._tables[short.scope]
    table.hand = table.ring.index("old")
    storage.evaluate([[("new", (long,), 1000, None, None), ("old", (short,), -1, None, None)]], "force")
    assert "old" not in table.states
    assert held(storage) == 10


def test_no_thread_is_started() -> None:
    before = threading.active_count()
    limiter = Limiter("5/second")
    for i in range(1_000):
        limiter.hit(f"k:{i}")
    assert threading.active_count() == before


def test_only_a_child_that_goes_on_with_a_limiter_is_warned_and_only_once(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("ratebound.storage.memory_states.warn_of_many_workers", lambda: asked.append("in memory"))
    storage, limit = MemoryStorage(clock=clock), parse_limit("5/hour")

    def use() -> int:
        for _ in range(3):
            clock.now += SECOND
            storage.evaluate([(("k", (limit,), 1, None, None),)])
        for thread in threading.enumerate():
            if thread.name == "ratebound warning":
                thread.join()
        return len(asked)

    assert use() == 0
    storage.renew()
    assert use() == 0
    storage.states.is_limiters = True
    assert use() == 0
    storage.renew()
    assert use() == 1


def test_a_child_that_may_start_no_thread_decides_without_a_warning(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    storage = MemoryStorage(clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    storage.renew()
    monkeypatch.setattr(threading.Thread, "start", fail)
    assert limiter.hit("k").remaining == 4


def test_a_group_of_new_keys_at_the_cap_stays_within_it(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=3, clock=clock)
    limiter = Limiter("5/hour; 9/day; 20/week; 30/month", storage=storage)
    for i in range(50):
        limiter.hit(f"k:{i}")
    assert held(storage) <= 3


def test_a_peek_at_the_cap_drops_nobody(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=100, clock=clock)
    limiter = Limiter("5/hour", storage=storage)
    for i in range(100):
        limiter.hit(f"k:{i}")
    for i in range(1_000):
        assert limiter.peek(f"new:{i}").remaining == 5
    assert storage.evicted == 0
    assert all(limiter.peek(f"k:{i}").remaining == 4 for i in range(100))


def test_the_clock_is_the_wall_clock_at_the_start_and_never_goes_back() -> None:
    import time

    decisions = [Limiter("9/second").hit("k") for _ in range(100)]
    assert abs(decisions[-1].at / SECOND - time.time()) < 60
    storage = MemoryStorage()
    instants = [Limiter("1000000/second", storage=storage).hit("k").at for _ in range(1_000)]
    assert instants == sorted(instants)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "9", None])
def test_a_bad_cap_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="max_keys must be a positive whole number"):
        MemoryStorage(max_keys=bad)  # type: ignore[arg-type]


def test_a_spend_at_once_has_patience_for_a_place_in_the_future(clock: FakeClock) -> None:
    storage, limit = MemoryStorage(clock=clock), parse_limit("10/second burst 1")
    for delay in (0, 100_000, 200_000):
        (row,) = storage.at_once((("k", (limit,), 1, 500_000, None),))
        assert (row[0], row[4]) == (True, delay)


def test_a_spend_at_once_takes_a_free_place_that_begins_now(clock: FakeClock) -> None:
    storage, limit = MemoryStorage(clock=clock), parse_limit("10/second burst 1")
    ask(storage, "k", limit)
    first, _ = (ask(storage, "k", limit, patience=500_000) for _ in range(2))
    ask(storage, "k", limit, -1, "force", spent=first)
    clock.now += 100_000
    assert storage.at_once((("k", (limit,), 1, None, None),))[0][0]
    assert not storage.at_once((("k", (limit,), 1, None, None),))[0][0]


def test_a_bucket_with_a_waiter_is_not_evicted_though_it_has_a_free_place(clock: FakeClock) -> None:
    storage, limit = MemoryStorage(max_keys=1, clock=clock), Limit(1, 2, 1, "gcra")
    spent = ask(storage, "k", limit)
    assert ask(storage, "k", limit, patience=2).delay_us == 2
    ask(storage, "k", limit, -1, "force", spent=spent)
    assert ask(storage, "k", limit, mode="peek").allowed
    ask(storage, "new", limit)
    assert (storage.evicted, storage.overflowed) == (0, 1)


def test_a_bucket_that_is_full_to_the_burst_has_no_waiters_and_is_evicted_if_it_allows(clock: FakeClock) -> None:
    storage, limit = MemoryStorage(max_keys=1, clock=clock), Limit(7, 2, 9, "gcra")  # several units in a microsecond
    assert ask(storage, "k", limit, 9).remaining == 3
    ask(storage, "new", limit)
    assert (storage.evicted, storage.overflowed) == (1, 0)


def test_a_subclass_whose_at_once_is_written_with_its_evaluate_counts_each_spend_once(clock: FakeClock) -> None:
    class Counting(MemoryStorage):
        spends = 0

        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            self.spends += len(groups) if mode == "spend" else 0
            return super().evaluate(groups, mode)

        def at_once(self, group: Group) -> Sequence[Row]:
            return self.evaluate((group,))[0]

    storage = Counting(clock=clock)
    limiter = Limiter("3/day", storage=storage)
    decisions = [limiter.hit("k"), *limiter.hit_many(["k"] * 3)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert storage.spends == 4


@pytest.mark.parametrize(("cost", "remaining"), [(1, 0), (2, 1)])
def test_a_denial_with_patience_says_when_the_same_patience_is_enough(
    clock: FakeClock, cost: int, remaining: int
) -> None:
    storage = MemoryStorage(clock=clock)
    limit = parse_limit("4/second fixed-window")
    clock.now -= clock.now % SECOND
    for _ in range(4 - remaining):
        ask(storage, "k", limit)
    (row,) = storage.at_once((("k", (limit,), cost, SECOND // 4, None),))
    assert row[:3] == (False, remaining, SECOND - SECOND // 4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_limits_of_a_key_are_charged_together_after_a_step_back_of_the_clock(
    algorithm: Algorithm, clock: FakeClock
) -> None:
    limits = [Limit(5, SECOND, 0, algorithm), Limit(7, 60 * SECOND, 0, algorithm)]
    limiter = Limiter(limits, storage=MemoryStorage(clock=clock))
    assert limiter.hit("k")
    clock.now -= 3600 * SECOND
    for spent in range(2, 6):
        decision = limiter.hit("k")
        assert decision.allowed
        assert [row[:2] for row in decision.rows] == [(True, 5 - spent), (True, 7 - spent)]
    decision = limiter.hit("k")
    assert not decision.allowed
    assert [row[:2] for row in decision.rows] == [(False, 0), (True, 2)]


def test_a_denial_stores_no_state_for_a_limit_that_the_key_meets_for_the_first_time(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    others = [f"other:{i}" for i in range(12)]  # or the new state would be swept at once
    assert all(Limiter("5/hour as b", storage=storage).hit_many(others))
    assert Limiter("1/hour as a", storage=storage).hit("k")
    assert not Limiter("1/hour as a; 5/hour as b", storage=storage).hit("k")
    assert held(storage) == 13


def test_a_group_that_just_fits_evicts_nobody(clock: FakeClock) -> None:
    storage = MemoryStorage(max_keys=4, clock=clock)
    ask(storage, "a", "5/hour")
    ask_together(storage, ("b", "5/hour", 1), ("c", "5/hour", 1), ("d", "5/hour", 1))
    assert (storage.evicted, held(storage)) == (0, 4)


def test_a_state_that_expires_at_the_first_instant_of_the_clock_is_stored() -> None:
    storage = MemoryStorage(clock=FakeClock(0))
    limit = Limit(2, 1, 2, "gcra")
    storage.evaluate([(("a", (limit,), 1, None, None), ("b", (limit,), 1, None, None))])
    assert held(storage) == 2


def test_a_key_with_granted_units_is_not_the_least_used(clock: FakeClock) -> None:
    """Dropped, it would lose them."""
    quota = parse_limit("10/calendar-month")
    storage = MemoryStorage(max_keys=20, clock=clock)  # with two keys, a whole sample may be this one
    ask(storage, "granted", quota, 500, "force", extra=GRANT)
    for number in range(200):
        ask(storage, f"new{number}", quota)
    assert ask(storage, "granted", quota, mode="peek").remaining == 510


def test_a_log_that_grows_takes_room_from_others_and_not_from_itself(clock: FakeClock) -> None:
    log, rate = parse_limit("1000/hour sliding-log"), parse_limit("10/hour burst 10")
    storage = MemoryStorage(max_keys=100, clock=clock)
    for number in range(90):
        ask(storage, f"k{number}", rate)
    for _ in range(800):
        clock.now += 1
        ask(storage, "log", log)
    clock.advance(1)
    for _ in range(20):
        clock.advance(0.01)
        ask(storage, "nobody", rate, mode="peek")
    assert storage.weight <= 100
    assert storage.weight == storage.keys + 800 // 16
    assert ask(storage, "log", log, mode="peek").remaining == 200


def test_a_single_key_that_outgrows_the_cap_keeps_its_state(clock: FakeClock) -> None:
    """Without its state it would be given its whole quota again."""
    log = parse_limit("400/hour sliding-log")
    storage = MemoryStorage(max_keys=3, clock=clock)
    for _ in range(500):
        clock.advance(0.01)
        ask(storage, "log", log)
    assert not ask(storage, "log", log).allowed


def test_a_lowered_cap_is_kept_before_long(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    for number in range(200):
        ask(storage, f"k{number}", "10/hour burst 10")
    storage.max_keys = 50
    for _ in range(40):
        clock.advance(0.01)
        ask(storage, "nobody", "10/hour burst 10", mode="peek")
    assert storage.weight == storage.keys <= 50
