"""Tools for users' own tests: a fake clock, switches for limiting and sleeping, and the contract of every storage.

@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
def test_my_storage(claim):
    clock = FakeClock()
    claim(MyStorage(clock=clock), clock)

`ratebound.storage` says what a storage must have, and what is optional.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from ratebound.clock import SECOND
from ratebound.duration import Duration
from ratebound.limit import ALGORITHMS, Ask, Group, Limit, Mode
from ratebound.notation import parse_limit
from ratebound.outcome import Outcome, Row
from ratebound.settling import spent_of
from ratebound.storage import AsyncStorage, Holder, Storage, async_twin_of, holders_of
from ratebound.switch import switch


class FakeClock:
    """A clock that stands still until it is told to move.

    `now` is in microseconds; `sleep` moves it instead of sleeping.
    """

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: Duration) -> None:
        """Move the clock forward by `seconds`, or by a timedelta; back if it is negative."""
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        self.now += round(seconds * SECOND)

    sleep = advance

    async def async_sleep(self, seconds: Duration) -> None:
        """Move the clock forward by `seconds` and let other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)


@contextlib.contextmanager
def limiting_off() -> Iterator[None]:
    """Make every limiter allow everything and count nothing inside the `with`, like RATEBOUND_TESTING=off."""
    before, switch.limiting = switch.limiting, False
    try:
        yield
    finally:
        switch.limiting = before


@contextlib.contextmanager
def nothing_sleeps() -> Iterator[None]:
    """Make limits count without sleeping inside the `with`, like RATEBOUND_TESTING=nosleep."""
    before, switch.sleeping = switch.sleeping, False
    try:
        yield
    finally:
        switch.sleeping = before


class Blocking:
    """A sync storage over an async one, on its own event loop, so that one contract covers both."""

    def __init__(self, storage: AsyncStorage) -> None:
        self.storage = storage
        self._runner = asyncio.Runner()
        self._closed = False

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Run the storage's `evaluate` and return its rows."""
        return self._runner.run(self.storage.evaluate(groups, mode))

    def reset(self, group: Group) -> None:
        """Run the storage's `reset`."""
        self._runner.run(self.storage.reset(group))

    def holders(self, key: str, limit: Limit) -> list[Holder]:
        """Run the storage's `holders` and return what it lists."""
        found: list[Holder] = self._runner.run(holders_of(self.storage)(key, limit))
        return found

    def close(self) -> None:
        """Close the storage twice, which it must allow, and then the event loop."""
        if not self._closed:
            self._closed = True
            self._runner.run(self.storage.close())
            self._runner.run(self.storage.close())  # twice: a second close of this object does not reach the storage
            self._runner.close()


def ask(
    storage: Storage,
    key: str,
    limit: Limit | str,
    cost: int = 1,
    mode: Mode = "spend",
    patience: int | None = None,
    spent: Outcome | None = None,
) -> Outcome:
    """Return the outcome of one check by itself."""
    limit = parse_limit(limit) if isinstance(limit, str) else limit
    group: Group = ((key, (limit,), cost, patience, None if spent is None else [spent_of(spent)]),)
    return Outcome(*storage.evaluate((group,), mode)[0][0])


def ask_together(storage: Storage, *asks: tuple[str, str, int], mode: Mode = "spend") -> list[Outcome]:
    """Return the outcomes of several checks (key, limit, cost) decided as one group."""
    group: list[Ask] = [(key, (parse_limit(text),), cost, None, None) for key, text, cost in asks]
    return [Outcome(*row) for row in storage.evaluate((group,), mode)[0]]


def _each(count: int, period: int, burst: int = 0) -> list[Limit]:
    """Return one limit for each algorithm; only buckets get the burst."""
    buckets = ("token-bucket", "gcra", "leaky-bucket")
    return [Limit(count, period, burst if name in buckets else 0, name) for name in ALGORITHMS]


def a_limit_admits_its_count_and_no_more(storage: Storage, clock: FakeClock) -> None:
    """Nine spends against a count of seven: seven pass, two are denied, and `remaining` counts down."""
    for limit in _each(7, 60 * SECOND):
        answers = [ask(storage, "a", limit) for _ in range(9)]
        assert [answer.allowed for answer in answers] == [True] * 7 + [False] * 2, limit
        assert [answer.remaining for answer in answers] == [6, 5, 4, 3, 2, 1, 0, 0, 0], limit
        assert all(answer.retry_after_us == 0 for answer in answers[:7]), limit


def waiting_exactly_retry_after_is_enough_and_less_is_not(storage: Storage, clock: FakeClock) -> None:
    """A spend after `retry_after` passes, and one a microsecond earlier is denied."""
    for limit in _each(7, SECOND, burst=5):
        for cost in (1, 2, 5):
            key = f"wait:{cost}"
            while (denied := ask(storage, key, limit, cost)).allowed:
                clock.now += 1_003
            assert denied.retry_after_us, limit
            clock.now += denied.retry_after_us - 1
            assert not ask(storage, key, limit, cost).allowed, limit
            clock.now += 1
            assert ask(storage, key, limit, cost).allowed, limit


def a_row_has_all_fields(storage: Storage, clock: FakeClock) -> None:
    """Every row has the nine fields of an Outcome: a bool and whole numbers. Compiled code accepts no other row."""
    modes: tuple[Mode, ...] = ("peek", "spend", "spend", "force")
    for limit in _each(1, SECOND):
        for mode, cost in [(mode, cost) for cost in (1, 2) for mode in modes]:
            group: Group = (("a", (limit,), cost, None, None),)
            for row in storage.evaluate((group,), mode)[0]:
                assert len(row) == len(Outcome._fields), (limit, mode, row)
                assert type(row[0]) is bool, (limit, mode, row)
                optional = [row[place] for place in (2, 8) if row[place] is not None]
                assert {type(field) for field in (row[1], *row[3:8], *optional)} == {int}, (limit, mode, row)


def a_denial_costs_nothing(storage: Storage, clock: FakeClock) -> None:
    """Denied spends leave all remaining units to a later one."""
    for limit in _each(10, 60 * SECOND):
        assert ask(storage, "a", limit, 8).allowed
        for _ in range(3):
            assert not ask(storage, "a", limit, 5).allowed
        assert ask(storage, "a", limit, 2).allowed, limit


def a_cost_above_the_limit_never_passes(storage: Storage, clock: FakeClock) -> None:
    """A cost above the count is denied with a `retry_after` of None and leaves the state alone."""
    for limit in _each(5, SECOND):
        for expected in (5, 4):
            answer = ask(storage, "a", limit, 6)
            assert (answer.allowed, answer.retry_after_us, answer.remaining) == (False, None, expected), limit
            assert ask(storage, "a", limit).allowed


def a_peek_tells_what_a_spend_would_say_and_changes_nothing(storage: Storage, clock: FakeClock) -> None:
    """Repeated peeks agree with each other and with the spend that follows."""
    for limit in _each(3, 10 * SECOND):
        for spent in range(5):
            peeks = [ask(storage, "a", limit, mode="peek") for _ in range(3)]
            assert peeks[0] == peeks[1] == peeks[2]
            assert peeks[0].remaining == max(3 - spent, 0)
            answer = ask(storage, "a", limit)
            assert (answer.allowed, answer.retry_after_us) == (peeks[0].allowed, peeks[0].retry_after_us)


def an_untouched_state_says_so(storage: Storage, clock: FakeClock) -> None:
    """A state reports a `reset_after` above 0 until exactly that instant, and is as new from then on."""
    for limit in _each(3, 10 * SECOND):
        assert ask(storage, "a", limit, mode="peek")[:5] == (True, 3, 0, 0, 0)
        spent = ask(storage, "a", limit)
        clock.now += spent.reset_after_us - 1
        assert ask(storage, "a", limit, mode="peek").reset_after_us > 0, limit
        clock.now += 1
        assert ask(storage, "a", limit, mode="peek")[:5] == (True, 3, 0, 0, 0), limit


def a_denied_group_charges_none_and_is_answered_in_full(storage: Storage, clock: FakeClock) -> None:
    """One denial in a group charges no limit; the others still report what they have left."""
    ask(storage, "user", "2/hour as hourly", 2)
    for _ in range(3):
        group = ask_together(
            storage, ("ip", "100/minute", 1), ("user", "2/hour as hourly", 1), ("ip", "9/second burst 9", 2)
        )
        assert [answer.allowed for answer in group] == [True, False, True]
        assert [answer.remaining for answer in group] == [100, 0, 9]
        assert group[1].retry_after_us == 3600 * SECOND


def an_allowed_group_charges_all(storage: Storage, clock: FakeClock) -> None:
    """An allowed group charges every limit, at one instant."""
    group = ask_together(storage, ("ip", "100/minute", 1), ("user", "20/hour fixed-window", 3))
    assert [(answer.allowed, answer.remaining) for answer in group] == [(True, 99), (True, 17)]
    assert {answer.at_us for answer in group} == {clock.now}


def groups_of_one_call_are_independent_and_answered_in_order(storage: Storage, clock: FakeClock) -> None:
    """Groups of one call see each other's spends but not each other's denials."""
    limit = parse_limit("1/minute")
    groups: list[Group] = [((key, (limit,), 1, None, None),) for key in ("a", "b", "a", "c")]
    assert [rows[0][0] for rows in storage.evaluate(groups)] == [True, True, False, True]


def equal_checks_see_each_other(storage: Storage, clock: FakeClock) -> None:
    """Two checks of one key and limit in a group need the sum of their costs."""
    for limit in map(str, _each(5, 10 * SECOND)):
        pair = ask_together(storage, ("a", limit, 2), ("a", limit, 2))
        assert [(answer.allowed, answer.remaining) for answer in pair] == [(True, 3), (True, 1)], limit
        pair = ask_together(storage, ("a", limit, 1), ("a", limit, 1))
        assert [(answer.allowed, answer.remaining) for answer in pair] == [(True, 1), (False, 1)], limit
        assert pair[1].retry_after_us
        clock.now += pair[1].retry_after_us - 1
        assert not all(answer.allowed for answer in ask_together(storage, ("a", limit, 1), ("a", limit, 1))), limit
        clock.now += 1
        assert all(answer.allowed for answer in ask_together(storage, ("a", limit, 1), ("a", limit, 1))), limit
        never = ask_together(storage, ("a", limit, 3), ("a", limit, 3))
        assert never[1].retry_after_us is None, limit


def a_refund_at_the_same_instant_is_as_if_it_never_happened(storage: Storage, clock: FakeClock) -> None:
    """A spend that is refunded in full at once leaves the state as before."""
    for limit in _each(10, 7 * SECOND):
        ask(storage, "a", limit, 3)
        clock.now += 500_001
        before = ask(storage, "a", limit, mode="peek")
        spent = ask(storage, "a", limit, 4)
        ask(storage, "a", limit, -4, "force", spent=spent)
        assert ask(storage, "a", limit, mode="peek") == before, limit


def a_late_refund_mints_nothing(storage: Storage, clock: FakeClock) -> None:
    """A refund of a spend that no longer counts changes nothing."""
    for limit in _each(10, SECOND):
        spent = ask(storage, "a", limit, 4)
        clock.now += 2 * SECOND
        ask(storage, "a", limit, 6)
        before = ask(storage, "a", limit, mode="peek")
        ask(storage, "a", limit, -4, "force", spent=spent)
        assert ask(storage, "a", limit, mode="peek") == before, limit


def an_overdraft_is_capped_and_shows(storage: Storage, clock: FakeClock) -> None:
    """A forced cost overdraws by at most one count, and later spends are denied until that is paid."""
    for limit in _each(10, 10 * SECOND):
        forced = ask(storage, "a", limit, 1_000, "force")
        assert (forced.allowed, forced.remaining) == (True, 0), limit
        denied = ask(storage, "a", limit)
        assert denied.retry_after_us is not None
        assert 0 < denied.retry_after_us <= 2 * limit.period_us + limit.period_us // 10, limit
        clock.now += denied.retry_after_us
        assert ask(storage, "a", limit).allowed, limit


def a_reset_forgets_that_key_alone(storage: Storage, clock: FakeClock) -> None:
    """A reset clears the key's state, keeps others, and accepts a key that was never seen."""
    limit = parse_limit("1/hour")
    for key in ("a", "b"):
        assert ask(storage, key, limit).allowed
    storage.reset((("a", (limit,), 1, None, None),))
    storage.reset((("never seen", (limit,), 1, None, None),))
    assert ask(storage, "a", limit).allowed
    assert not ask(storage, "b", limit).allowed


def no_key_can_be_mistaken_for_another(storage: Storage, clock: FakeClock) -> None:
    """Keys with separators, braces, control characters, surrogates and great length keep separate states."""
    keys = ["", "a", "a:", ":a", "a/b", "a;b", "a|b", "{a}", "{a}b", "a\0", "\0a", "a\n", "ä", "a\u0308", "\ud800", "*"]
    keys += ["x" * 256, "x" * 257, "x" * 1_000_000, "x" * 1_000_001, "user:1", "user:10"]
    limits = [
        parse_limit(text) for text in ("1/hour", "1/hour as a", "1/hour as a:b", "1/2 hours", "1/hour fixed-window")
    ]
    for key in keys:
        for limit in limits:
            assert ask(storage, key, limit).allowed, (key[:20], limit)
    for key in keys:
        for limit in limits:
            assert not ask(storage, key, limit).allowed, (key[:20], limit)


def a_changed_count_keeps_the_state_and_a_changed_period_starts_anew(storage: Storage, clock: FakeClock) -> None:
    """Limits that differ in count share a state; limits that differ in period do not."""
    for name in ALGORITHMS:
        ask(storage, "a", Limit(10, 60 * SECOND, algorithm=name), 9)
        assert not ask(storage, "a", Limit(5, 60 * SECOND, algorithm=name)).allowed, name
        assert ask(storage, "a", Limit(20, 60 * SECOND, algorithm=name), 2).allowed, name
        assert ask(storage, "a", Limit(5, 61 * SECOND, algorithm=name), 5).allowed, name


def a_clock_that_steps_back_mints_nothing_and_blocks_no_longer_than_a_period(
    storage: Storage, clock: FakeClock
) -> None:
    """A used-up limit stays denied after a step back of the clock, and `retry_after` stays exact and bounded."""
    start = clock.now
    for step in (1, 1_000, 10 * SECOND, 3_600 * SECOND, 400 * 86_400 * SECOND):
        for limit in _each(5, 10 * SECOND):
            clock.now, key = start, f"step:{step}"
            assert ask(storage, key, limit, 5).allowed
            clock.now -= step
            denied = ask(storage, key, limit)
            assert not denied.allowed, (limit, step)
            assert denied.retry_after_us is not None
            periods = 2 if limit.algorithm == "sliding-counter" else 1  # it counts in one and decays in the next
            assert denied.retry_after_us <= periods * limit.period_us, (limit, step)
            clock.now += denied.retry_after_us - 1
            assert not ask(storage, key, limit).allowed, (limit, step)
            clock.now += 1
            assert ask(storage, key, limit).allowed, (limit, step)
    clock.now = start


def a_leaky_bucket_gives_each_its_turn(storage: Storage, clock: FakeClock) -> None:
    """Allowed requests get growing delays, at the rate of the bucket."""
    answers = [ask(storage, "a", "10/second burst 4 leaky-bucket") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True] * 4 + [False]
    assert [answer.delay_us for answer in answers] == [0, 100_000, 200_000, 300_000, 0]
    assert answers[4].retry_after_us == 100_000


def what_is_settled_upward_is_paid_before_a_refund_is_given(storage: Storage, clock: FakeClock) -> None:
    """Refunds pay off an overdraft first and allow nothing before that."""
    for name in ("token-bucket", "leaky-bucket"):
        limit = Limit(10, 10 * SECOND, 10, name)
        spends = [ask(storage, "a", limit) for _ in range(10)]
        ask(storage, "a", limit, 10, "force", spent=spends[0])
        for spent in spends[1:]:
            ask(storage, "a", limit, -1, "force", spent=spent)
        denied = ask(storage, "a", limit)
        assert (denied.allowed, denied.retry_after_us, denied.reset_after_us) == (False, 2 * SECOND, 11 * SECOND), limit


def settling_upward_is_charged_behind_a_long_line(storage: Storage, clock: FakeClock) -> None:
    """An overdraft behind many waiters is charged after them, up to one count."""
    limit = parse_limit("60/minute burst 10")
    first, *_ = [ask(storage, "a", limit, patience=1_000 * SECOND) for _ in range(140)]
    assert ask(storage, "a", limit, 49, "force", spent=first).reset_after_us == 189 * SECOND
    assert ask(storage, "a", limit, 1_000, "force", spent=first).reset_after_us == 249 * SECOND, "at most one count"


def a_refund_moves_no_place_of_a_group_that_waits_for_another_bucket(storage: Storage, clock: FakeClock) -> None:
    """A refund does not bring a place forward that another bucket holds for a later instant."""
    own, shared = parse_limit("30/25 seconds burst 30 as own"), parse_limit("60/minute burst 60 as shared")
    both: Group = (("a", (own, shared), 30, 60 * SECOND, None),)
    first, second = [storage.evaluate((both,))[0] for _ in range(2)]
    assert max(row[4] for row in second) == 25 * SECOND
    storage.evaluate(((("a", (own, shared), -30, None, [spent_of(row) for row in first]),),), "force")
    clock.now += 25 * SECOND  # the second goes ahead
    assert sum(ask(storage, "a", shared).allowed for _ in range(60)) == 30


def buckets_whose_holes_never_meet_give_the_end_of_their_lines(storage: Storage, clock: FakeClock) -> None:
    """A group of two buckets without a common free place gets a place behind both lines."""
    pair = parse_limit("1/second burst 1 as one"), parse_limit("1/second burst 1 as other")
    for odd, limit in enumerate(pair):
        places = [ask(storage, "a", limit, patience=100 * SECOND) for _ in range(62)]
        for place in places[odd:60:2]:
            ask(storage, "a", limit, -1, "force", spent=place)
    rows = storage.evaluate(((("a", pair, 1, 100 * SECOND, None),),))[0]
    assert [row[4] for row in rows] == [62 * SECOND, 62 * SECOND]
    rows = storage.evaluate(((("a", pair, 1, 50 * SECOND, None),),))[0]
    assert not all(row[0] for row in rows)


def a_refund_moves_no_place_of_a_waiter_that_was_settled_down(storage: Storage, clock: FakeClock) -> None:
    """A waiter that gave a part of its cost back keeps its turn when another spend is refunded."""
    limit = parse_limit("1/second burst 4")
    first, second = ask(storage, "a", limit, 3), ask(storage, "a", limit, 4, patience=9 * SECOND)
    assert second.delay_us == 3 * SECOND
    ask(storage, "a", limit, -1, "force", spent=second)
    clock.now += 2 * SECOND
    ask(storage, "a", limit, -3, "force", spent=first)
    clock.now += SECOND + 1  # the second has gone ahead, and taken three of four
    assert [ask(storage, "a", limit).allowed for _ in range(2)] == [True, False]


def patience_takes_places_in_the_future(storage: Storage, clock: FakeClock) -> None:
    """Spends with patience get places with delays; a cancelled place is handed out again."""
    limit = parse_limit("10/second burst 2")
    answers = [ask(storage, "a", limit, patience=250_000) for _ in range(5)]
    assert [answer.delay_us for answer in answers] == [0, 0, 100_000, 200_000, 0]
    assert [answer.allowed for answer in answers] == [True, True, True, True, False]
    assert answers[4].retry_after_us == 50_000
    last = answers[3]
    ask(storage, "a", limit, -1, "force", spent=last)  # cancelled: the last place
    assert ask(storage, "a", limit, patience=250_000).delay_us == 200_000
    middle = answers[2]
    ask(storage, "a", limit, -1, "force", spent=middle)  # one with another behind it: handed out first
    answers = [ask(storage, "a", limit, patience=250_000) for _ in range(2)]
    assert [(answer.allowed, answer.delay_us) for answer in answers] == [(True, 100_000), (False, 0)]


def places_that_are_given_back_in_any_order_leave_nothing_behind(storage: Storage, clock: FakeClock) -> None:
    """Refunds of all places, in any order, restore the state."""
    for name in ("token-bucket", "leaky-bucket"):
        limit = Limit(7, SECOND, 1, name)  # a place has no whole number of microseconds
        for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 3, 0, 4, 2), (3, 1, 2, 4, 0)):
            key = f"{order}"
            ask(storage, key, limit)
            before = ask(storage, key, limit, mode="peek")
            places = [ask(storage, key, limit, patience=SECOND) for _ in range(5)]
            for i in order:
                ask(storage, key, limit, -1, "force", spent=places[i])
            assert ask(storage, key, limit, mode="peek") == before, (limit, order)


def a_place_for_a_later_instant_leaves_the_time_before_it_to_others(storage: Storage, clock: FakeClock) -> None:
    """A fast bucket that is held for a later instant still serves others before that."""
    slow, fast = parse_limit("1/10 seconds burst 1 as slow"), parse_limit("2/second burst 2 as fast")
    both: Group = (("a", (slow, fast), 1, 60 * SECOND, None),)
    rows = [storage.evaluate((both,))[0] for _ in range(3)]
    assert [max(row[4] for row in each) for each in rows] == [0, 10 * SECOND, 20 * SECOND]
    assert ask(storage, "a", fast).allowed
    denied = ask(storage, "a", fast)
    assert (denied.allowed, denied.retry_after_us) == (False, SECOND // 2)
    clock.now += 10 * SECOND  # the second goes ahead, and takes one of two
    assert [ask(storage, "a", fast).allowed for _ in range(2)] == [True, False]


def settling_to_what_was_charged_changes_nothing(storage: Storage, clock: FakeClock) -> None:
    """A forced cost of 0 leaves every limit as it was."""
    queue, shared = parse_limit("100/2 seconds burst 100 as queue"), parse_limit("100/second burst 100 as shared")
    both: Group = (("a", (queue, shared), 100, 60 * SECOND, None),)
    storage.evaluate((both,))
    rows = storage.evaluate((both,))[0]
    clock.now += 2 * SECOND
    before = [ask(storage, "a", limit, mode="peek") for limit in (queue, shared)]
    storage.evaluate(((("a", (queue, shared), 0, None, [spent_of(row) for row in rows]),),), "force")
    assert [ask(storage, "a", limit, mode="peek") for limit in (queue, shared)] == before


def a_refund_of_what_a_reset_forgot_mints_nothing(storage: Storage, clock: FakeClock) -> None:
    """A refund of a spend from before a reset changes nothing."""
    clock.now -= clock.now % (60 * SECOND)
    for limit in _each(10, 60 * SECOND):
        forgotten = ask(storage, "a", limit, 10)
        clock.now += SECOND
        storage.reset((("a", (limit,), 1, None, None),))
        clock.now += SECOND
        assert ask(storage, "a", limit, 10).allowed, limit
        before = ask(storage, "a", limit, mode="peek")
        ask(storage, "a", limit, -10, "force", spent=forgotten)
        assert ask(storage, "a", limit, mode="peek") == before, limit


def a_refund_after_the_clock_stepped_back_mints_nothing(storage: Storage, clock: FakeClock) -> None:
    """A refund of a spend from before a step back of the clock changes nothing.

    This holds also if the clock passes the spend's instant again, in a window that is entered for the second time.
    """
    begin = clock.now - clock.now % (60 * SECOND)
    for back, on, later in ((3600, 120, 0), (60, 15, 0), (60, 15, 50), (60, 25, 50), (90, 61, 40), (61, 62, 70)):
        for limit in _each(10, 60 * SECOND):
            key, clock.now = f"{back} {on} {later}", begin + 50 * SECOND + 7
            spent = ask(storage, key, limit, 10)
            clock.now -= back * SECOND
            ask(storage, key, limit, mode="peek")
            clock.now += on * SECOND
            again = ask(storage, key, limit, 10).allowed
            clock.now += later * SECOND
            before = ask(storage, key, limit, mode="peek")
            ask(storage, key, limit, -10, "force", spent=spent)
            if again:
                assert ask(storage, key, limit, mode="peek") == before, (key, limit)


def a_peek_with_patience_tells_when_a_line_will_have_passed(storage: Storage, clock: FakeClock) -> None:
    """A peek with patience and asks before it returns the wait until all of them have passed."""
    clock.now -= clock.now % (10 * SECOND)
    for limit in _each(5, 10 * SECOND):
        for front, after in ((0, 0), (4, 0), (5, 1), (9, 1), (10, 2), (52, 10)):
            asks: list[Ask] = [("a", (limit,), cost, 0, None) for cost in (front, 1) if cost]
            wait = storage.evaluate((asks,), "peek")[0][-1][2]
            if limit.algorithm == "leaky-bucket":
                assert wait == front * 2 * SECOND, limit
            elif limit.algorithm in ("token-bucket", "gcra"):
                assert wait == max(front - 4, 0) * 2 * SECOND, limit
            elif limit.algorithm != "sliding-counter":
                assert wait == after * 10 * SECOND, limit
        never: Group = (("a", (limit,), 6, 0, None),)
        assert storage.evaluate((never,), "peek")[0][0][2] is None, limit


def places_in_several_buckets_are_for_one_instant(storage: Storage, clock: FakeClock) -> None:
    """A group with patience takes its places in all buckets for the same instant."""
    limits = (parse_limit("1/second burst 1"), parse_limit("20/second burst 1 gcra"))
    limits_only_slow: Group = (("a", limits[:1], 1, 5 * SECOND, None),)
    storage.evaluate((limits_only_slow,))
    both: Group = (("a", limits, 1, 5 * SECOND, None),)
    delays = [max(row[4] for row in storage.evaluate((both,))[0]) for _ in range(2)]
    assert delays == [SECOND, 2 * SECOND]
    clock.now += SECOND  # the first goes ahead now, so the faster bucket is full from now until 50 ms later
    assert not ask(storage, "a", limits[1]).allowed


def without_patience_a_bucket_counts_at_once_what_a_queue_beside_it_delays(storage: Storage, clock: FakeClock) -> None:
    """In a group without patience a token bucket is charged now, even if a leaky bucket delays the request."""
    queue, bucket = parse_limit("1/second burst 9 leaky-bucket"), parse_limit("1/second burst 1")
    for key, patience, passes in (("hit", None, [False, True, True, True]), ("wait", 9 * SECOND, [True] * 3 + [False])):
        start = clock.now
        for _ in range(3):
            ask(storage, key, queue)
        rows = storage.evaluate((((key, (queue, bucket), 1, patience, None),),))[0]
        assert rows[0][4] == 3 * SECOND, key
        for seconds, allowed in enumerate(passes):
            clock.now = start + seconds * SECOND
            assert ask(storage, key, bucket).allowed == allowed, (key, seconds)


def holders_are_the_slots_that_are_held_now(storage: Storage, clock: FakeClock) -> None:
    """`holders` lists id and expiry of live slots, the earliest first. A storage without it has nothing to keep."""
    if getattr(storage, "holders", None) is None:
        return
    holders, limit, begin = holders_of(storage), parse_limit("3 concurrent for 10 seconds"), clock.now
    assert holders("a", limit) == []
    for slot in (2**53 - 1, 7, 0):
        storage.evaluate(((("a", (limit,), 1, None, [(slot, 0, 0, 0)]),),))
        clock.now += SECOND
    assert holders("a", limit) == [(2**53 - 1, begin + 10 * SECOND), (7, begin + 11 * SECOND), (0, begin + 12 * SECOND)]
    storage.evaluate(((("a", (limit,), 1, None, [(2**53 - 1, 0, 0, 0)]),),))
    storage.evaluate(((("a", (limit,), -1, None, [(7, 0, 0, 0)]),),), "force")
    assert holders("a", limit) == [(0, begin + 12 * SECOND), (2**53 - 1, begin + 13 * SECOND)]
    clock.now = begin + 12 * SECOND
    assert holders("a", limit) == [(2**53 - 1, begin + 13 * SECOND)]
    assert holders("b", limit) == []
    storage.reset((("a", (limit,), 1, None, None),))
    assert holders("a", limit) == []


def an_async_twin_counts_in_the_same_states(storage: Storage, clock: FakeClock) -> None:
    """A storage without `async_twin` has nothing to keep here."""
    twin = async_twin_of(storage)
    if twin is None:
        return
    tasks = Blocking(twin)
    try:
        for limit in _each(5, 60 * SECOND):
            assert ask(storage, "a", limit, 2).remaining == 3, limit
            assert ask(tasks, "a", limit).remaining == 2, limit
            assert not ask(storage, "a", limit, 3).allowed, limit
            tasks.reset((("a", (limit,), 1, None, None),))
            assert ask(storage, "a", limit).remaining == 4, limit
    finally:
        tasks.close()


def closing_twice_is_fine(storage: Storage, clock: FakeClock) -> None:
    """A second `close` does nothing and does not raise."""
    storage.close()
    storage.close()


Claim = Callable[[Storage, FakeClock], None]
STORAGE_CONTRACT: list[Claim] = [
    a_limit_admits_its_count_and_no_more,
    waiting_exactly_retry_after_is_enough_and_less_is_not,
    a_row_has_all_fields,
    a_denial_costs_nothing,
    a_cost_above_the_limit_never_passes,
    a_peek_tells_what_a_spend_would_say_and_changes_nothing,
    an_untouched_state_says_so,
    a_denied_group_charges_none_and_is_answered_in_full,
    an_allowed_group_charges_all,
    groups_of_one_call_are_independent_and_answered_in_order,
    equal_checks_see_each_other,
    a_refund_at_the_same_instant_is_as_if_it_never_happened,
    a_late_refund_mints_nothing,
    an_overdraft_is_capped_and_shows,
    what_is_settled_upward_is_paid_before_a_refund_is_given,
    settling_upward_is_charged_behind_a_long_line,
    a_refund_moves_no_place_of_a_group_that_waits_for_another_bucket,
    a_refund_moves_no_place_of_a_waiter_that_was_settled_down,
    buckets_whose_holes_never_meet_give_the_end_of_their_lines,
    a_reset_forgets_that_key_alone,
    no_key_can_be_mistaken_for_another,
    a_changed_count_keeps_the_state_and_a_changed_period_starts_anew,
    a_clock_that_steps_back_mints_nothing_and_blocks_no_longer_than_a_period,
    a_leaky_bucket_gives_each_its_turn,
    patience_takes_places_in_the_future,
    places_that_are_given_back_in_any_order_leave_nothing_behind,
    a_place_for_a_later_instant_leaves_the_time_before_it_to_others,
    settling_to_what_was_charged_changes_nothing,
    a_refund_of_what_a_reset_forgot_mints_nothing,
    a_refund_after_the_clock_stepped_back_mints_nothing,
    a_peek_with_patience_tells_when_a_line_will_have_passed,
    places_in_several_buckets_are_for_one_instant,
    without_patience_a_bucket_counts_at_once_what_a_queue_beside_it_delays,
    holders_are_the_slots_that_are_held_now,
    an_async_twin_counts_in_the_same_states,
    closing_twice_is_fine,
]
