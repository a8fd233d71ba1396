"""Distinct values, number by number: two of them, each counted for one second after its last allowed sight."""

import pytest

from ratebound import InvalidLimit, InvalidValue, Limiter, MemoryStorage, parse_limit
from ratebound.extras import extras_of
from ratebound.kernels.distinct import Values
from ratebound.kernels.packing import packed, unpacked
from ratebound.limit import NOT_GIVEN, Extra, Limit
from ratebound.settling import settlement, undoing
from ratebound.testing import FakeClock
from ratebound.values import digest_of
from tests.packed_kernels import (
    Packed,
    Written,
    check_fits,
    evaluate,
    force,
    grows_after,
    repair,
    spend,
    standing,
    turn_after,
    written,
)

S = 1_000_000
TWO = parse_limit("2 distinct account/second")


def value(digest: int, expiry: int = 0, before: int = 0) -> Extra:
    return (digest, expiry, before, 0)


def take(state: Packed | None, now: int, digest: int) -> tuple[Packed | None, Written]:
    found = unpacked(TWO.numbers, state)
    assert isinstance(found, Values)
    row = found.take(TWO.numbers, now, value(digest))
    return packed(TWO.numbers, found), written(row)


@pytest.mark.parametrize(
    ("state", "now", "after", "row"),
    [
        (None, 100, (S + 100, 1, 7, S + 100), (True, 1, 0, S, 0, 100, 0, 0)),
        (None, 0, (S, 1, 7, S), (True, 1, 0, S, 0, 0, 0, 0)),
        ((900, 1, 3, 900), 100, (S + 100, 2, 3, 900, 7, S + 100), (True, 0, 0, S, 0, 100, 0, 0)),
        ((900, 1, 3, 900), 899, (S + 899, 2, 3, 900, 7, S + 899), (True, 0, 0, S, 0, 899, 0, 0)),
        ((900, 1, 3, 900), 900, (S + 900, 1, 7, S + 900), (True, 1, 0, S, 0, 900, 0, 0)),
        # a third is denied until the earliest is over, and not stored
        ((900, 2, 3, 800, 4, 900), 100, (900, 2, 3, 800, 4, 900), (False, 0, 700, 800, 0, 100, 0, 0)),
        # one that is counted passes, and is counted for longer; `given` is the expiry that it had
        (
            (900, 2, 7, 800, 4, 900),
            100,
            (S + 100, 2, 4, 900, 7, S + 100),
            (True, 0, 0, S, 0, 100, 800, 0),
        ),
        # one that is over is new again
        ((900, 2, 7, 800, 4, 900), 800, (S + 800, 2, 4, 900, 7, S + 800), (True, 0, 0, S, 0, 800, 0, 0)),
        # more than the count: enough of them must be over
        (
            (900, 4, 3, 600, 4, 700, 5, 800, 6, 900),
            100,
            (900, 4, 3, 600, 4, 700, 5, 800, 6, 900),
            (False, 0, 700, 800, 0, 100, 0, 0),
        ),
        # a clock that stepped back: no sight makes a value count for less
        (
            (9 * S, 1, 7, 9 * S),
            0,
            (9 * S, 1, 7, 9 * S),
            (True, 1, 0, 9 * S, 0, 0, 9 * S, 0),
        ),
    ],
)
def test_a_value_is_counted_if_it_is_known_or_there_is_room(
    state: Packed | None, now: int, after: Packed | None, row: Written
) -> None:
    assert take(state, now, 7) == (after, row)


@pytest.mark.parametrize(
    ("state", "cost", "extra", "after", "given"),
    [
        # count a value, even above the count
        (None, 5, value(7), (S + 100, 1, 7, S + 100), 0),
        ((900, 2, 3, 800, 4, 900), 1, value(7), (S + 100, 3, 3, 800, 4, 900, 7, S + 100), 0),
        ((900, 2, 3, 800, 4, 900), 1, value(3), (S + 100, 2, 4, 900, 3, S + 100), 800),
        ((9 * S, 1, 3, 9 * S), 1, value(3), (9 * S, 1, 3, 9 * S), 9 * S),
        ((900, 1, 3, 900), 1, value(0), (S + 100, 2, 3, 900, 0, S + 100), 0),
        # take back a sight of a value that it added, or that was known before
        ((900, 2, 3, 800, 4, 900), -1, value(4, 900), (800, 1, 3, 800), 900),
        ((900, 2, 3, 800, 4, 900), -1, value(4, 900, 850), (850, 2, 3, 800, 4, 850), 900),
        ((900, 2, 3, 800, 4, 900), -1, value(4, 900, 300), (800, 2, 4, 300, 3, 800), 900),
        ((900, 2, 3, 800, 4, 900), -1, value(4, 900, 101), (800, 2, 4, 101, 3, 800), 900),
        ((900, 2, 3, 800, 4, 900), -1, value(4, 900, 100), (800, 1, 3, 800), 900),
        ((900, 1, 3, 900), -1, value(3, 900), None, 900),
        ((900, 1, 3, 900), 0, value(3, 900), None, 900),
        # it was seen again since, or is over, or was forgotten
        ((900, 2, 3, 800, 4, 900), -1, value(4, 899), (900, 2, 3, 800, 4, 900), 900),
        ((900, 2, 3, 800, 4, 900), -1, value(4, 901), (900, 2, 3, 800, 4, 900), 900),
        ((900, 2, 3, 50, 4, 900), -1, value(3, 50), (900, 2, 3, 50, 4, 900), 0),
        ((900, 1, 4, 900), -1, value(3, 900), (900, 1, 4, 900), 0),
        (None, -1, value(3, 900), None, 0),
        # no sight is named
        ((900, 1, 3, 900), -1, value(3), (900, 1, 3, 900), 900),
        ((900, 1, 3, 900), 0, value(7), (900, 1, 3, 900), 0),
        ((900, 1, 3, 900), 1, None, (900, 1, 3, 900), 0),
        ((900, 1, 3, 900), 1, NOT_GIVEN, (900, 1, 3, 900), 0),
        ((900, 1, 3, 900), -1, NOT_GIVEN, (900, 1, 3, 900), 0),
        ((900, 1, 3, 900), 1, (-1, 0, 0, 0), (900, 1, 3, 900), 0),
    ],
)
def test_force_counts_above_the_count_and_takes_back_a_sight(
    state: Packed | None, cost: int, extra: Extra | None, after: Packed | None, given: int
) -> None:
    found, row = force(TWO, state, 100, cost, extra)
    assert (found, row[0], row[6]) == (after, True, given)
    assert row[3] == (0 if after is None else after[0] - 100)


def test_the_questions_of_a_state_count_values_that_are_not_over() -> None:
    state = (900, 2, 3, 800, 4, 900)
    assert standing(TWO, None, 100) == (2, 0)
    assert standing(TWO, state, 100) == (0, 800)
    assert standing(TWO, state, 800) == (1, 100)
    assert standing(TWO, state, 900) == (2, 0)
    assert turn_after(TWO, state, 100, 0, 1) == 700
    assert turn_after(TWO, state, 800, 5, 9) == 0
    assert repair(TWO, state, 100) == state
    assert grows_after(TWO, 0, 800) == 800
    assert spend(TWO, state, 100, 1, None, 0) == (state, (False, 0, 700, 800, 0, 100, 0, 0))
    assert spend(TWO, state, 800, 9, None, 0) == (state, (True, 1, 0, 100, 0, 800, 0, 0))
    for now in (799, 800, 801, 900):
        check_fits(TWO, unpacked(TWO.numbers, state), now, 5)


def test_a_copy_is_of_values_and_shares_nothing() -> None:
    state = unpacked(TWO.numbers, (900, 1, 3, 900))
    copied = state.copy()
    assert isinstance(copied, Values)
    copied.take(TWO.numbers, 100, value(4))
    assert packed(TWO.numbers, state) == (900, 1, 3, 900)


def test_equal_checks_of_one_group_count_their_values_together() -> None:
    one = parse_limit("1 distinct account/second")
    for limit, digests, allowed in (
        (one, (1, 2), [True, False]),
        (one, (1, 1), [True, True]),
        (TWO, (1, 2), [True, True]),
    ):
        states: list[Packed | None] = [None]
        asks = [("k", (limit,), 1, None, [value(digest)]) for digest in digests]
        for mode in ("peek", "spend"):
            rows = evaluate(asks, "peek" if mode == "peek" else "spend", [0, 0], states, 100)
            assert [row[0] for row in rows] == allowed
        assert (states[0] is not None) is all(allowed)


def test_taking_back_a_group_of_equal_values_leaves_nothing(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    group = [("k", (TWO,), 1, None, [value(1)]) for _ in range(2)]
    rows = storage.evaluate((group,))[0]
    storage.evaluate((undoing(group, rows),), "force")
    assert storage.keys == 0


def test_a_value_without_a_digest_is_refused_by_every_path_of_memory(clock: FakeClock) -> None:
    """An allowed request whose value is not counted would be a way around the limit."""
    rate = parse_limit("10/minute")
    for limits in ((TWO,), (rate, TWO)):
        for extras in (None, [NOT_GIVEN] * len(limits)):
            storage = MemoryStorage(clock=clock)
            group = (("k", limits, 1, None, extras),)
            with pytest.raises(ValueError, match="needs an id"):
                storage.evaluate((group,))
            with pytest.raises(ValueError, match="needs an id"):
                storage.at_once(group)
            assert storage.evaluate((group,), "peek")[0][-1][:2] == (True, 2)


def test_a_digest_has_53_bits_and_is_salted_with_the_key() -> None:
    keys = ("", "a", "b", "ä", "\ud800", "a" * 1_000)
    values = ("", "x", "y", "1", "\ud800", "x" * 100_000)
    digests = {digest_of(key, text) for key in keys for text in values}
    assert len(digests) == len(keys) * len(values)
    assert all(0 <= digest < 2**53 for digest in digests)
    assert max(digests) > 2**51
    assert digest_of("ab", "c") != digest_of("a", "bc")


class Text(str):
    """Text of a type of somebody's own."""

    def __str__(self) -> str:
        return "other"


def test_the_extra_of_a_value_is_its_digest() -> None:
    rate, limit = parse_limit("10/minute"), TWO
    for given in ("alice", Text("alice")):
        assert extras_of("k", (rate, limit), {"account": given}) == [NOT_GIVEN, value(digest_of("k", "alice"))]
    assert extras_of("k", (limit,), {"account": 42}) == extras_of("k", (limit,), {"account": "42"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, r"'2 distinct account/second' needs a value: hit\(key, values=\{'account': …\}\)"),
        ({}, "needs a value"),
        ({"account": None}, "needs a value"),
        ({"user": "a"}, "unknown value 'user': expected 'account'"),
        ({"account": "a", "user": "b"}, "unknown value 'user'"),
        ({"account": 1.5}, "must be text or a whole number, not float"),
        ({"account": True}, "must be text or a whole number, not bool"),
        ({"account": 10**4300}, "whole number with at most 4300 digits: give it as text"),
        ({"account": b"a"}, "must be text or a whole number, not bytes"),
        ("account", "values must be a mapping like .*, not str"),
    ],
)
def test_a_missing_or_unknown_value_is_refused(values: object, message: str) -> None:
    limiter = Limiter("2 distinct account/second")
    with pytest.raises(InvalidValue, match=message):
        limiter.hit("k", values=values)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="no limit here counts distinct values"):
        Limiter("10/minute").hit("k", values={"account": "a"})


def test_a_cost_of_0_takes_back_the_value_and_any_other_keeps_it(clock: FakeClock) -> None:
    rate = parse_limit("10/minute")
    for cost, left in ((0, 2), (1, 1), (5, 1)):
        storage = MemoryStorage(clock=clock)
        group = (("k", (rate, TWO), 3, None, [NOT_GIVEN, value(1)]),)
        rows = storage.evaluate((group,))[0]
        settled = storage.evaluate((settlement(group, rows, [cost]),), "force")[0]
        assert [row[1] for row in settled] == [10 - cost, left]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a limit of distinct values names them: '20 distinct account/hour'"),
        ({"values": "1st"}, "values must be a name like 'account' or 'user_id', not '1st'"),
        ({"values": "a b"}, "values must be a name"),
        ({"values": "a" * 65}, "values must be a name"),
        ({"values": 5}, "values must be a name"),
        ({"values": "Per"}, "values cannot be named 'per'"),
        ({"values": "a", "count": 10_001, "large": True}, "at most 10000 values can be distinct, not 10001"),
        ({"values": "a", "count": 1_001}, "allow it with '1001 distinct a/… large'"),
        ({"values": "a", "burst": 9}, "distinct has no burst"),
        ({"values": "a", "over": "allow"}, "'over allow' needs windows"),
    ],
)
def test_a_limit_of_values_that_do_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"count": 5, "period_us": S, "algorithm": "distinct", **options}
    with pytest.raises(InvalidLimit, match=message):
        Limit(**given)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="names them"):
        Limit(5, S, values="account")


def test_counts_up_to_1000_are_counted_exactly_and_larger_ones_are_asked_for() -> None:
    assert Limit(1_000, S, algorithm="distinct", values="a" * 64).count == 1_000
    assert str(Limit(10_000, S, algorithm="distinct", values="a", large=True)) == "10000 distinct a/second large"


def test_the_scope_has_the_period_and_the_name_of_the_values() -> None:
    texts = ["2 distinct a/second", "2 distinct b/second", "2 distinct a/minute", "2 distinct a/second as other"]
    assert len({parse_limit(text).scope for text in texts}) == 4
    assert parse_limit("3 distinct a/second").scope == parse_limit(texts[0]).scope
