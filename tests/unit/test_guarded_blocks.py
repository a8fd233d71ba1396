"""Remembered blocks: by themselves, compared with a list of them, and in a guard whose storage comes and goes."""

from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ratebound import StorageError, parse_limit
from ratebound.extras import extras_of
from ratebound.kernels.packing import packed
from ratebound.limit import Group
from ratebound.outcome import Row
from ratebound.storage.guard.remembered_blocks import RememberedBlocks
from ratebound.testing import FakeClock
from tests.unit.faulty import DOWN, FOREIGN, UNKNOWN, Subject

LIMITS = [parse_limit(f"2 strikes/hour block 5 minutes as {name}") for name in ("one", "two")]
KEYS = ["a", "b", "c", "d" * 300, "d" * 301]
MOST = 3
SKEW = 987_654_321  # between the storage's clock and that of this process


@dataclass
class Known:
    place: tuple[str, str]
    until: int
    resets: int
    seen: int


actions = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 20)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("allowed"), st.integers(0, 9)),
    st.tuples(st.just("late"), st.integers(0, 9)),
    *[st.tuples(st.integers(1, 30).map(str), st.integers(0, 9)) for _ in range(4)],
)


@given(st.lists(actions, max_size=60))
def test_blocks_are_remembered_as_a_list_of_them_says(history: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    blocks = RememberedBlocks(clock, MOST)
    model: list[Known] = []
    for action, number in history:
        if action == "pass":
            clock.now += number
            continue
        key, limit = KEYS[number // 2], LIMITS[number % 2]
        place, at = (key, limit.scope), clock.now + SKEW
        known = next((each for each in model if each.place == place), None)
        if action in ("forget", "allowed"):
            if known is not None:
                model.remove(known)
            if action == "forget":
                blocks.forget(key, limit)
            else:
                blocks.saw(key, limit, (True, 2, 0, 0, 0, at, 0, 0, None))
        elif action == "late":
            if known is not None:
                blocks.saw(key, limit, (True, 2, 0, 0, 0, known.seen - 1, 0, 0, None))
        else:
            wait = int(action)
            row: Row = (False, 0, wait, 2 * wait, 0, at, 0, 0, None)
            blocks.saw(key, limit, row)
            if known is None or known.until != clock.now + wait:
                model = [each for each in model if each.until > clock.now and each is not known]
                model.append(Known(place, clock.now + wait, clock.now + 2 * wait, at))
                if len(model) > MOST:
                    model.remove(min(model, key=lambda each: each.until))
        assert len(blocks) <= MOST
        for each in KEYS:
            for penalty in LIMITS:
                here = [found for found in model if found.place == (each, penalty.scope) and found.until > clock.now]
                answer = blocks.state(each, penalty).answer(penalty.numbers, clock.now, 0)
                if here:
                    assert answer[:4] == (False, 0, here[0].until - clock.now, here[0].resets - clock.now)
                else:
                    assert answer[:3] == (True, 2, 0)


def test_the_soonest_to_end_is_forgotten_first_and_what_has_ended_before_it() -> None:
    clock = FakeClock()
    blocks = RememberedBlocks(clock, MOST)
    for key, wait in (("a", 30), ("b", 10), ("c", 20)):
        blocks.saw(key, LIMITS[0], (False, 0, wait, wait, 0, clock.now, 0, 0, None))
    clock.now += 10
    blocks.saw("d", LIMITS[0], (False, 0, 100, 100, 0, clock.now, 0, 0, None))
    assert len(blocks) == 3, "one has ended"
    blocks.saw("e", LIMITS[0], (False, 0, 100, 100, 0, clock.now, 0, 0, None))
    assert [bool(blocks.state(key, LIMITS[0]).until > clock.now) for key in "abcde"] == [True, False, False, True, True]


def test_a_client_that_knocks_again_and_again_is_remembered_once() -> None:
    """The first sight counts: an answer that comes late must not make the block longer."""
    clock = FakeClock()
    blocks = RememberedBlocks(clock, MOST)
    began, until = clock.now, clock.now + 1_000
    for passed in range(0, 1_000, 10):
        clock.now = began + passed + passed % 7
        blocks.saw("a", LIMITS[0], (False, 0, 1_000 - passed, 2_000, 0, began + passed, 0, 0, None))
        assert blocks.state("a", LIMITS[0]).until == until
    assert len(blocks._order) == 1
    clock.now = began + 990
    blocks.saw("a", LIMITS[0], (True, 0, 0, 5, 0, began + 990, 0, 0, None))  # lifted, and struck up to the last
    assert blocks.state("a", LIMITS[0]).fits(LIMITS[0].numbers, clock.now, 0)


def test_an_answer_about_an_earlier_block_that_comes_late_is_not_used() -> None:
    """Two threads get their answers in the other order. The first block was lifted, and the second one is longer."""
    clock = FakeClock()
    blocks = RememberedBlocks(clock, MOST)
    at = clock.now
    blocks.saw("a", LIMITS[0], (False, 0, 5_000, 9_000, 0, at, 0, 0, None))
    blocks.saw("a", LIMITS[0], (False, 0, 10, 9_000, 0, at - 100, 0, 0, None))
    assert blocks.state("a", LIMITS[0]).until == at + 5_000
    blocks.saw("a", LIMITS[0], (False, 0, 10, 9_000, 0, at + 100, 0, 0, None))
    assert blocks.state("a", LIMITS[0]).until == at + 10, "this one is newer"


def test_a_block_that_is_lifted_and_seen_again_and_again_takes_no_more_memory() -> None:
    clock = FakeClock()
    blocks = RememberedBlocks(clock, MOST)
    for number in range(1_000):
        blocks.saw("a", LIMITS[0], (False, 0, 10**9 + number, 2 * 10**9, 0, clock.now, 0, 0, None))
        if number % 2:
            blocks.forget("a", LIMITS[0])
        assert len(blocks._order) <= 2 * MOST


GUARDED = (
    parse_limit("2/minute"),
    parse_limit("2 distinct account/minute"),
    parse_limit("2 strikes/10 minutes block 10 seconds then 1 minute forget 1 minute as guessing"),
)
steps = st.one_of(
    st.tuples(st.just("hit"), st.integers(0, 5)),
    st.tuples(st.just("hit"), st.integers(0, 5)),
    st.tuples(st.just("pass"), st.integers(1, 70)),
    st.tuples(st.just("break"), st.integers(0, 2)),
    st.tuples(st.just("mend"), st.just(0)),
    st.tuples(st.just("reset"), st.integers(0, 1)),
)


def stored(subject: Subject) -> dict[str, object]:
    """The values and the strikes that the storage has, of all keys."""
    tables = subject.faulty.memory.states._tables
    return {
        limit.scope: {key: packed(limit.numbers, state) for key, state in tables[limit.scope].states.items()}
        for limit in GUARDED[1:]
        if limit.scope in tables
    }


@given(st.lists(steps, max_size=60))
def test_whatever_the_storage_does_those_who_were_seen_blocked_stay_so_and_nothing_is_made_up(
    history: list[tuple[str, int]],
) -> None:
    clock = FakeClock()
    subject = Subject("inline", clock)
    ends = {"a": 0, "b": 0}  # of each client's block, as it was seen last
    for action, number in history:
        key = "ab"[number % 2]
        group: Group = ((key, GUARDED, 1, None, extras_of(key, GUARDED, {"account": number})),)
        if action == "pass":
            clock.advance(number)
        elif action == "break":
            subject.faulty.error = (DOWN, UNKNOWN, FOREIGN)[number]
        elif action == "mend":
            subject.faulty.error = None
        elif action == "reset":
            with suppress(StorageError):
                subject.storage.reset(group)
            ends[key] = 0
        else:
            before = stored(subject)
            decision = subject.decide(group)
            row = decision.rows[2]
            if decision.degraded is None:
                ends[key] = 0 if row[0] else clock.now + (row[2] or 0)
            else:
                wait = max(ends[key] - clock.now, 0)
                assert (row[0], row[2]) == (not wait, wait)
                assert decision.blocked is (wait > 0)
                assert row[6] == 0, "no strike"
                subject.finish_writing()
                assert stored(subject) == before
    subject.storage.close()
