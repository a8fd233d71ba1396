"""Groups that are decided part by part: a part that fails leaves nothing charged, and says what is known."""

from collections.abc import Sequence
from typing import Any

import pytest

from ratebound import MemoryStorage, StorageError, parse_limit
from ratebound.limit import Ask, Group
from ratebound.storage.parts import decide

LIMIT = parse_limit("5/day fixed-window")


def group_of(*keys: str) -> Group:
    asks: list[Ask] = [(key, (LIMIT,), 1, None, None) for key in keys]
    return asks


def play(storage: MemoryStorage, group: Group, failing: Sequence[tuple[str, str]]) -> Any:
    """Decide a group with every key as a part. A call of a (key, mode) in `failing` raises an error that is undone."""
    rounds = decide(group, "spend", str)
    calls = next(rounds)
    try:
        while True:
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
