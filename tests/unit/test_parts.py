"""Groups that are decided part by part: a denial charges nothing, and a part that fails says what is known."""

from collections.abc import Sequence
from typing import Any

import pytest

from ratebound import MemoryStorage, StorageError, parse_limit
from ratebound.limit import NOT_GIVEN, Ask, Group, Mode
from ratebound.storage.parts import decide
from ratebound.testing import FakeClock

LIMIT = parse_limit("5/day fixed-window")


def group_of(*keys: str) -> Group:
    asks: list[Ask] = [(key, (LIMIT,), 1, None, None) for key in keys]
    return asks


def play(
    storage: MemoryStorage,
    group: Group,
    failing: Sequence[tuple[str, str]] = (),
    mode: Mode = "spend",
    seen: list[list[tuple[str, str]]] | None = None,
) -> Any:
    """Decide a group with every key as a part. A call of a (key, mode) in `failing` raises an error that is undone.

    `seen` gets the rounds, each with the keys and modes of its calls.
    """
    rounds = decide(group, mode, str)
    calls = next(rounds)
    try:
        while True:
            if seen is not None:
                seen.append([(asks[0][0], mode) for asks, mode in calls])
            if any((asks[0][0], mode) in failing for asks, mode in calls):
                calls = rounds.throw(StorageError("down", undone=True))
            else:
                calls = rounds.send([storage.evaluate([asks], mode)[0] for asks, mode in calls])
    except StopIteration as done:
        return done.value


def left(storage: MemoryStorage, key: str) -> int:
    return storage.evaluate([group_of(key)], "peek")[0][0][1]


def test_a_part_that_fails_gives_back_the_parts_before_it_and_is_not_known_to_be_undone() -> None:
    storage = MemoryStorage()
    with pytest.raises(StorageError) as failed:
        play(storage, group_of("a", "b", "c"), [("c", "spend")])
    assert not failed.value.undone, "a refund may have failed"
    assert [left(storage, key) for key in "abc"] == [5, 5, 5]


def test_nothing_is_charged_and_that_is_known_if_the_first_part_or_a_peek_fails() -> None:
    for failing in ([("a", "spend")], [("b", "peek")]):
        storage = MemoryStorage()
        with pytest.raises(StorageError) as failed:
            play(storage, group_of("a", "b"), failing)
        assert failed.value.undone
        assert [left(storage, key) for key in "ab"] == [5, 5]


def test_a_refund_that_fails_leaves_a_charge_too_many_and_never_a_grant() -> None:
    storage = MemoryStorage()
    with pytest.raises(StorageError, match="down"):
        play(storage, group_of("a", "b"), [("b", "spend"), ("a", "force")])
    assert [left(storage, key) for key in "ab"] == [4, 5]


@pytest.mark.parametrize(("mode", "left_after"), [("peek", 5), ("force", 4)])
def test_peeks_and_forces_take_one_round_whatever_the_parts(mode: Mode, left_after: int) -> None:
    storage, seen = MemoryStorage(), list[list[tuple[str, str]]]()
    rows = play(storage, group_of("a", "b"), mode=mode, seen=seen)
    assert seen == [[("a", mode), ("b", mode)]]
    assert [row[0] for row in rows] == [True, True]
    assert [left(storage, key) for key in "ab"] == [left_after, left_after]


def test_the_last_unit_of_a_part_is_granted_and_rows_have_the_order_of_the_asks() -> None:
    storage = MemoryStorage()
    storage.evaluate([[("b", (LIMIT,), 4, None, None)]], "spend")
    rows = play(storage, group_of("a", "b", "a"))
    assert [row[:2] for row in rows] == [(True, 4), (True, 0), (True, 3)]


STRIKES = parse_limit("2 strikes/hour block 5 minutes")


def test_a_group_that_its_peeks_deny_is_struck_once_and_charges_nothing() -> None:
    storage, seen = MemoryStorage(clock=FakeClock()), list[list[tuple[str, str]]]()
    storage.evaluate([[("a", (LIMIT,), 5, None, None)]], "spend")
    guarded: Ask = ("a", (LIMIT, STRIKES), 1, None, [NOT_GIVEN, NOT_GIVEN])
    rows = play(storage, [guarded, guarded, *group_of("b")], seen=seen)
    assert seen == [[("a", "peek"), ("b", "peek")], [("a", "force")]]
    assert [row[0] for row in rows] == [False, True, False, True, True]
    assert [bool(row[6]) for row in (rows[1], rows[3])] == [True, True], "both rows of the penalty tell the strike"
    assert left(storage, "b") == 5


def test_a_strike_that_fails_leaves_the_denial() -> None:
    storage = MemoryStorage(clock=FakeClock())
    storage.evaluate([[("a", (LIMIT,), 5, None, None)]], "spend")
    guarded: Ask = ("a", (LIMIT, STRIKES), 1, None, [NOT_GIVEN, NOT_GIVEN])
    rows = play(storage, [guarded, *group_of("b")], [("a", "force")])
    assert [row[0] for row in rows] == [False, True, True]
    assert not rows[1][6]
