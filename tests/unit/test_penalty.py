"""Penalties, number by number: three strikes within 10 seconds, blocks of 5, 20 and 60 seconds, forgotten after 100."""

import pytest

from ratebound import InvalidLimit, Limiter, MemoryStorage, parse_limit
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.penalty import BLOCKED, STRUCK, Strikes
from ratebound.kernels.state import UNTOUCHED
from ratebound.limit import GRANT, NO_STRIKE, NOT_GIVEN, STRIKE, Extra, Limit
from ratebound.testing import FakeClock
from tests.packed_kernels import (
    Packed,
    Written,
    check_fits,
    force,
    grows_after,
    peek,
    repair,
    spend,
    standing,
    turn_after,
)

S = 1_000_000
THREE = parse_limit("3 strikes/10 seconds block 5 seconds then 20 seconds then 60 seconds forget 100 seconds")
ONE = parse_limit("1 strike/10 seconds block 5 seconds then 20 seconds forget 100 seconds")


def struck(limit: Limit, state: Packed | None, now: int) -> tuple[Packed | None, int]:
    found = unpacked(limit.numbers, state)
    assert isinstance(found, Strikes)
    given = found.strike(limit.numbers, now)
    return packed(limit.numbers, found), given


@pytest.mark.parametrize(
    ("limit", "state", "now", "after", "given"),
    [
        # the first, the second, and the third, which blocks
        (THREE, None, 50 * S, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S), STRUCK),
        (
            THREE,
            (60 * S, 50 * S, UNTOUCHED, 0, 50 * S),
            51 * S,
            (61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S),
            STRUCK,
        ),
        (
            THREE,
            (61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S),
            59 * S,
            (164 * S, 59 * S, 64 * S, 1),
            BLOCKED,
        ),
        (ONE, None, 50 * S, (155 * S, 50 * S, 55 * S, 1), BLOCKED),
        # those within one second are one
        (THREE, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 50 * S, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 0),
        (THREE, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 51 * S - 1, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 0),
        # one that is as old as the period does not count
        (
            THREE,
            (61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S),
            60 * S - 1,
            (165 * S - 1, 60 * S - 1, 65 * S - 1, 1),
            BLOCKED,
        ),
        (
            THREE,
            (61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S),
            60 * S,
            (70 * S, 60 * S, UNTOUCHED, 0, 51 * S, 60 * S),
            STRUCK,
        ),
        # a blocked key gets none, until the very end
        (ONE, (155 * S, 50 * S, 55 * S, 1), 55 * S - 1, (155 * S, 50 * S, 55 * S, 1), 0),
        (ONE, (155 * S, 50 * S, 55 * S, 1), 55 * S, (175 * S, 55 * S, 75 * S, 2), BLOCKED),
        # the last block repeats
        (ONE, (175 * S, 55 * S, 75 * S, 2), 80 * S, (200 * S, 80 * S, 100 * S, 2), BLOCKED),
        # more blocks than the list has: it was longer before a reload
        (ONE, (175 * S, 55 * S, 75 * S, 7), 80 * S, (200 * S, 80 * S, 100 * S, 2), BLOCKED),
        # after the last microsecond of `forget` the first block comes again
        (ONE, (155 * S, 50 * S, 55 * S, 1), 155 * S - 1, (275 * S - 1, 155 * S - 1, 175 * S - 1, 2), BLOCKED),
        (ONE, (155 * S, 50 * S, 55 * S, 1), 155 * S, (260 * S, 155 * S, 160 * S, 1), BLOCKED),
        # a strike restarts `forget`
        (THREE, (164 * S, 59 * S, 64 * S, 1), 70 * S, (170 * S, 70 * S, 64 * S, 1, 70 * S), STRUCK),
        # and what is forgotten is not remembered by a strike
        (THREE, (164 * S, 59 * S, 64 * S, 1), 164 * S, (174 * S, 164 * S, 64 * S, 0, 164 * S), STRUCK),
    ],
)
def test_strikes_count_towards_the_next_block(
    limit: Limit, state: Packed | None, now: int, after: Packed | None, given: int
) -> None:
    assert struck(limit, state, now) == (after, given)


def test_a_forget_that_is_shorter_than_the_period_drops_no_strike() -> None:
    limit = parse_limit("2 strikes/hour block 5 seconds forget 10 seconds")
    state, _ = struck(limit, (15 * S, 0, 5 * S, 1), 6 * S)
    assert state == (3606 * S, 6 * S, 5 * S, 1, 6 * S)
    assert struck(limit, state, 3605 * S)[1] == BLOCKED


@pytest.mark.parametrize(
    ("state", "now", "row"),
    [
        (None, 50 * S, (True, 3, 0, 0, 0, 50 * S, 0, 0)),
        ((61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S), 52 * S, (True, 1, 0, 9 * S, 0, 52 * S, 0, 0)),
        ((61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S), 60 * S, (True, 2, 0, S, 0, 60 * S, 0, 0)),
        ((61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S), 62 * S, (True, 3, 0, 0, 0, 62 * S, 0, 0)),
        ((164 * S, 59 * S, 64 * S, 1), 60 * S, (False, 0, 4 * S, 104 * S, 0, 60 * S, 0, 0)),
        ((164 * S, 59 * S, 64 * S, 1), 64 * S - 1, (False, 0, 1, 100 * S + 1, 0, 64 * S - 1, 0, 0)),
        ((164 * S, 59 * S, 64 * S, 1), 64 * S, (True, 3, 0, 100 * S, 0, 64 * S, 0, 0)),
        ((164 * S, 59 * S, 64 * S, 1), 165 * S, (True, 3, 0, 0, 0, 165 * S, 0, 0)),
        # the count was lowered by a reload: no strike is left, and the next one blocks
        ((70 * S, 60 * S, 0, 0, 57 * S, 58 * S, 59 * S, 60 * S), 60 * S, (True, 0, 0, 10 * S, 0, 60 * S, 0, 0)),
    ],
)
def test_a_penalty_denies_only_while_it_blocks_and_an_answer_changes_nothing(
    state: Packed | None, now: int, row: Written
) -> None:
    for cost in (1, 9, 10**12):
        assert spend(THREE, state, now, cost, None, 0) == (state, row)
        assert peek(THREE, state, now, cost, None, 5) == (state, row)
    assert standing(THREE, state, now) == (row[1], row[3])
    assert turn_after(THREE, state, now, 9, 9) == row[2]
    assert force(THREE, state, now, 5, None) == (state, row)
    assert repair(THREE, state, now) == state if state else True
    assert grows_after(THREE, row[1], row[3]) == row[3]


def test_a_patient_peek_says_when_the_block_is_over() -> None:
    blocked = (164 * S, 59 * S, 64 * S, 1)
    assert peek(THREE, blocked, 60 * S, 1, 4 * S)[1][:5] == (True, 0, 0, 104 * S, 4 * S)
    assert peek(THREE, blocked, 60 * S, 1, 4 * S - 1)[1][:5] == (False, 0, 1, 104 * S, 0)


@pytest.mark.parametrize("extra", [None, NOT_GIVEN, GRANT, NO_STRIKE, (0, 0, 0, 0)])
def test_force_without_the_word_strike_changes_nothing(extra: Extra | None) -> None:
    state = (61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S)
    for cost in (-5, 0, 5):
        assert force(THREE, state, 55 * S, cost, extra)[0] == state


@pytest.mark.parametrize("cost", [-5, 0, 5])
def test_force_with_the_word_strike_is_one_and_says_so(cost: int) -> None:
    state: Packed | None = None
    for now, row in (
        (50 * S, (True, 2, 0, 10 * S, 0, 50 * S, STRUCK, 0)),
        (50 * S + 1, (True, 2, 0, 10 * S - 1, 0, 50 * S + 1, 0, 0)),
        (52 * S, (True, 1, 0, 10 * S, 0, 52 * S, STRUCK, 0)),
        (54 * S, (False, 0, 5 * S, 105 * S, 0, 54 * S, BLOCKED, 0)),
        (56 * S, (False, 0, 3 * S, 103 * S, 0, 56 * S, 0, 0)),
    ):
        state, found = force(THREE, state, now, cost, STRIKE)
        assert found == row


@pytest.mark.parametrize(
    ("state", "now", "after"),
    [
        ((60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 50 * S, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S)),
        ((60 * S, 50 * S, UNTOUCHED, 0, 50 * S), 50 * S - 1, (60 * S - 1, 50 * S - 1, UNTOUCHED, 0, 50 * S - 1)),
        # as if the last strike were now: no block is longer, none is over
        ((61 * S, 51 * S, UNTOUCHED, 0, 50 * S, 51 * S), 21 * S, (31 * S, 21 * S, UNTOUCHED, 0, 20 * S, 21 * S)),
        ((164 * S, 59 * S, 64 * S, 1), 9 * S, (114 * S, 9 * S, 14 * S, 1)),
        ((170 * S, 70 * S, 64 * S, 1, 70 * S), 65 * S, (165 * S, 65 * S, 59 * S, 1, 65 * S)),
        ((0, -10 * S, UNTOUCHED, 0, -10 * S), -20 * S, (-10 * S, -20 * S, UNTOUCHED, 0, -20 * S)),
    ],
)
def test_after_a_step_back_of_the_clock_the_last_strike_is_now(state: Packed, now: int, after: Packed) -> None:
    assert repair(THREE, state, now) == after
    for cost in (1, 5):
        assert spend(THREE, state, now, cost, None, 0)[0] == after
        check_fits(THREE, unpacked(THREE.numbers, state), now, cost)
    assert force(THREE, state, now, 1, NOT_GIVEN)[0] == after
    assert force(THREE, state, now, 1, STRIKE)[0] == after, "less than a second ago"


def test_a_copy_shares_nothing_with_its_state() -> None:
    state = unpacked(THREE.numbers, (60 * S, 50 * S, UNTOUCHED, 0, 50 * S))
    copied = state.copy()
    assert isinstance(copied, Strikes)
    copied.strike(THREE.numbers, 52 * S)
    assert packed(THREE.numbers, state) == (60 * S, 50 * S, UNTOUCHED, 0, 50 * S)
    assert (state.entries(), copied.entries()) == (1, 2)


def test_a_client_is_blocked_for_longer_each_time_and_forgiven_in_the_end(clock: FakeClock) -> None:
    limiter = Limiter(f"1/second; {ONE}", storage=MemoryStorage(clock=clock))
    waits = []
    for _ in range(4):
        limiter.hit("k")
        denied = limiter.hit("k")
        assert denied.blocked
        waits.append(denied.retry_after)
        assert limiter.hit("k").retry_after == denied.retry_after, "a blocked client gets no strikes"
        clock.advance(denied.retry_after or 0)
        assert limiter.hit("k"), "its rate has recovered meanwhile"
        clock.advance(1)
    assert waits == [5, 20, 20, 20]
    clock.advance(100)
    limiter.hit("k")
    assert limiter.hit("k").retry_after == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks_us": ()}, "a penalty blocks for 1 to 8 times"),
        ({"blocks_us": (S,) * 9}, "a penalty blocks for 1 to 8 times"),
        ({"blocks_us": [S]}, "a penalty blocks for 1 to 8 times"),
        ({"blocks_us": (S - 1,)}, "from 1 second to 1 year, not 999999 microseconds"),
        ({"blocks_us": (365 * 86_400 * S + 1,)}, "from 1 second to 1 year"),
        ({"blocks_us": (S, 1.5)}, "from 1 second to 1 year, not 1.5 microseconds"),
        ({"forget_us": S - 1}, "from 1 second to 1 year"),
        ({"forget_us": 365 * 86_400 * S + 1}, "from 1 second to 1 year"),
        ({"count": 101}, "counts at most 100 strikes, not 101"),
        ({"period_us": 365 * 86_400 * S + 1}, "within at most a year"),
        ({"burst": 9}, "penalty has no burst"),
        # three strikes in two seconds would be a penalty that never blocks
        ({"period_us": 2 * S}, "denials within one second are one strike, so 3 strikes take 2 seconds"),
        ({"count": 100, "period_us": 99 * S}, "so 100 strikes take 99 seconds"),
    ],
)
def test_a_penalty_whose_numbers_do_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "count": 3,
        "period_us": 3600 * S,
        "algorithm": "penalty",
        "blocks_us": (S,),
        "forget_us": S,
        **options,
    }
    with pytest.raises(InvalidLimit, match=message):
        Limit(**given)  # type: ignore[arg-type]


def test_times_of_a_penalty_belong_to_no_other_limit() -> None:
    for options in ({"blocks_us": (S,)}, {"forget_us": S}):
        with pytest.raises(InvalidLimit, match="are for penalties"):
            Limit(3, S, **options)


@pytest.mark.parametrize("text", ["1 strike/ms block 1 second", "3 strikes/2001 ms block 1 second"])
def test_the_shortest_penalties_can_block(text: str) -> None:
    limit, now, state, given = parse_limit(text), 0, None, 0
    for _ in range(limit.count):
        state, given = struck(limit, state, now)
        now += S
    assert given == BLOCKED


def test_a_penalty_keeps_its_state_whatever_changes_but_its_name() -> None:
    texts = ["3 strikes/hour block 1 day as a", "1 strike/minute block 1 second then 1 hour forget 1 hour as a"]
    assert len({parse_limit(text).scope for text in texts}) == 1
    assert len({parse_limit(text).scope for text in (texts[0], "3 strikes/hour block 1 day")}) == 2
