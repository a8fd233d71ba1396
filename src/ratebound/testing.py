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
from datetime import datetime, timedelta
from functools import wraps

from ratebound.clock import SECOND
from ratebound.duration import Duration
from ratebound.errors import InvalidLimit
from ratebound.limit import ALGORITHMS, GRANT, NO_STRIKE, NOT_GIVEN, SPAN, STRIKE, Ask, Extra, Group, Limit, Mode
from ratebound.notation import parse_limit, parse_limits
from ratebound.outcome import Outcome, Row
from ratebound.settling import settlement, spent_of, undoing
from ratebound.storage import (
    AsyncStorage,
    Document,
    HeldSlot,
    Storage,
    async_twin_of,
    documents_of,
    holders_of,
    keeps_documents,
    refusal_of,
)
from ratebound.switch import switch


class FakeClock:
    """A clock that stands still until it is told to move. Storages and limiters take it as `clock` and its `sleep` as
    `sleep`.

    Args:
        now: Microseconds since 1970.

    Examples:
        >>> from ratebound import Limiter, MemoryStorage
        >>> from ratebound.testing import FakeClock
        >>> clock = FakeClock()
        >>> limiter = Limiter("1/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
        >>> limiter.hit("user:42").allowed, limiter.hit("user:42").allowed
        (True, False)
        >>> clock.advance(60)
        >>> limiter.hit("user:42").allowed
        True
    """

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: Duration) -> None:
        """Move the clock forward; back if the time is negative. `sleep` is the same function.

        Args:
            seconds: Seconds or a timedelta.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        self.now += round(seconds * SECOND)

    sleep = advance

    async def async_sleep(self, seconds: Duration) -> None:
        """Move the clock forward and let other tasks run.

        Args:
            seconds: Seconds or a timedelta.
        """
        self.advance(seconds)
        await asyncio.sleep(0)


@contextlib.contextmanager
def limiting_off() -> Iterator[None]:
    """Make every limiter allow everything and count nothing inside the `with`, like RATEBOUND_TESTING=off.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.testing import limiting_off
        >>> limiter = Limiter("1/hour")
        >>> with limiting_off():
        ...     [limiter.hit("user:42").allowed for _ in range(3)]
        [True, True, True]
    """
    before, switch.limiting = switch.limiting, False
    try:
        yield
    finally:
        switch.limiting = before


@contextlib.contextmanager
def nothing_sleeps() -> Iterator[None]:
    """Make limits count without sleeping inside the `with`, like RATEBOUND_TESTING=nosleep.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.testing import nothing_sleeps
        >>> limiter = Limiter("1/minute leaky-bucket burst 2", max_delay=3600)
        >>> with nothing_sleeps():
        ...     [limiter.wait("user:42").delay > 50 for _ in range(2)]
        [False, True]
    """
    before, switch.sleeping = switch.sleeping, False
    try:
        yield
    finally:
        switch.sleeping = before


class Blocking:
    """A sync storage over an async one, on its own event loop, so that one contract covers both.

    Args:
        storage: The storage for tasks.

    Examples:
        >>> from ratebound import AsyncMemoryStorage
        >>> from ratebound.testing import STORAGE_CONTRACT, Blocking, FakeClock
        >>> clock = FakeClock()
        >>> storage = Blocking(AsyncMemoryStorage(clock=clock))
        >>> STORAGE_CONTRACT[0](storage, clock)
        >>> storage.close()
    """

    def __init__(self, storage: AsyncStorage) -> None:
        self.storage = storage
        self._runner = asyncio.Runner()
        self._closed = False

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Run the storage's `evaluate` and return its rows.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        return self._runner.run(self.storage.evaluate(groups, mode))

    def reset(self, group: Group) -> None:
        """Run the storage's `reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.
        """
        self._runner.run(self.storage.reset(group))

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Run the storage's `holders` and return what it lists.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.
        """
        found: list[HeldSlot] = self._runner.run(holders_of(self.storage)(key, limit))
        return found

    def refusal_of(self, limit: Limit) -> str:
        """Return why the storage does not keep a limit; "" if it does.

        Args:
            limit: The limit to look at.
        """
        return refusal_of(self.storage, limit)

    @property
    def keeps_documents(self) -> bool:
        """True if the storage keeps shared documents."""
        return keeps_documents(self.storage)

    def read_document(self, name: str) -> Document:
        """Run the storage's `read_document` and return what it found.

        Args:
            name: The name of the document.
        """
        found: Document = self._runner.run(documents_of(self.storage).read_document(name))
        return found

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Run the storage's `write_document` and return its answer.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.
        """
        written: bool = self._runner.run(documents_of(self.storage).write_document(name, content, version))
        return written

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
    extra: Extra | None = None,
) -> Outcome:
    """Return the outcome of one check by itself. `spent` is the spend to correct; `extra` is for a slot or a grant."""
    limit = parse_limit(limit) if isinstance(limit, str) else limit
    extra = extra if spent is None else spent_of(spent)
    group: Group = ((key, (limit,), cost, patience, None if extra is None else [extra]),)
    return Outcome(*storage.evaluate((group,), mode)[0][0])


def ask_together(storage: Storage, *asks: tuple[str, str, int], mode: Mode = "spend") -> list[Outcome]:
    """Return the outcomes of several checks (key, limit, cost) decided as one group."""
    group: list[Ask] = [(key, (parse_limit(text),), cost, None, None) for key, text, cost in asks]
    return [Outcome(*row) for row in storage.evaluate((group,), mode)[0]]


Claim = Callable[[Storage, FakeClock], None]


def about(*texts: str) -> Callable[[Claim], Claim]:
    """Return a decorator for a claim about limits that a storage may refuse (see `refusal_of` in `ratebound.storage`).

    If the storage refuses one of them, the claim is that it does so without charging anything.
    """
    limits = [parse_limit(text) for text in texts]

    def decorate(claim: Claim) -> Claim:
        @wraps(claim)
        def claimed(storage: Storage, clock: FakeClock) -> None:
            refused = [limit for limit in limits if refusal_of(storage, limit)]
            for limit in refused:
                _is_refused(storage, limit)
            if not refused:
                claim(storage, clock)

        return claimed

    return decorate


def _is_refused(storage: Storage, limit: Limit) -> None:
    """Assert that a storage raises InvalidLimit for a limit, in every mode, and charges nothing beside it."""
    rate = parse_limit("10/hour as beside")
    modes: tuple[Mode, ...] = ("spend", "peek", "force")
    for mode in modes:
        said = ""
        try:
            storage.evaluate(((("refused", (rate, limit), 1, None, None),),), mode)
        except InvalidLimit as error:
            said = str(error)
        assert refusal_of(storage, limit) in said != "", (limit, mode)
    assert ask(storage, "refused", rate, mode="peek").remaining == 10, limit


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


@about("3 concurrent for 10 seconds")
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


def a_document_is_written_only_over_the_version_that_was_read(storage: Storage, clock: FakeClock) -> None:
    """`write_document` compares and sets, and nothing expires. A storage without documents has nothing to keep."""
    if not keeps_documents(storage):
        return
    documents, content = documents_of(storage), bytes(range(256)) + b"7:\r\n" + "é".encode()
    for name in ("", "two words", "{a}:b", "é", "\ud800"):
        assert documents.read_document(name) == (0, b"")
    assert documents.read_document("one") == (0, b"")
    assert not documents.write_document("one", b"too soon", 1)
    assert documents.write_document("one", content, 0)
    assert documents.read_document("one") == (1, content)
    assert not documents.write_document("one", b"too late", 0)
    assert documents.read_document("two") == (0, b"")
    assert documents.write_document("two", b"", 0)
    clock.advance(timedelta(days=4000))
    assert documents.read_document("one") == (1, content)
    assert documents.write_document("one", b"new", 1)
    assert documents.read_document("one") == (2, b"new")
    assert documents.read_document("two") == (1, b"")
    storage.reset((("one", (parse_limit("1/minute"),), 1, None, None),))
    assert documents.read_document("one") == (2, b"new")


def an_async_twin_has_the_same_documents(storage: Storage, clock: FakeClock) -> None:
    """A storage without `async_twin`, or without documents, has nothing to keep here."""
    twin = async_twin_of(storage) if keeps_documents(storage) else None
    if twin is None:
        return
    tasks = Blocking(twin)
    try:
        assert documents_of(storage).write_document("one", b"threads", 0)
        assert tasks.read_document("one") == (1, b"threads")
        assert tasks.write_document("one", b"tasks", 1)
        assert documents_of(storage).read_document("one") == (2, b"tasks")
    finally:
        tasks.close()


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


QUOTAS = (
    "10/calendar-day",
    "10/calendar-week in America/New_York from sunday",
    "10/calendar-month in Asia/Tokyo from 31",
    "10/calendar-year in Pacific/Auckland",
)
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def instant(text: str) -> int:
    """Return the microseconds of an instant that is written as '2026-03-29T00:00+01:00'."""
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


def slot(number: int) -> Extra:
    """Return the extra of an ask for the slot with this id."""
    return (number, 0, 0, 0)


def a_quota_admits_its_count_until_its_window_ends(storage: Storage, clock: FakeClock) -> None:
    """Units are counted until exactly `retry_after`, and all of them are available again from then on."""
    for limit in map(parse_limit, QUOTAS):
        answers = [ask(storage, "a", limit, 3) for _ in range(5)]
        assert [answer.allowed for answer in answers] == [True, True, True, False, False], limit
        assert [answer.remaining for answer in answers] == [7, 4, 1, 1, 1], limit
        wait = answers[4].retry_after_us
        assert wait, limit
        assert {answer.reset_after_us for answer in answers} == {wait}, limit
        assert ask(storage, "a", limit, 11).retry_after_us is None, limit
        clock.now += wait - 1
        assert not ask(storage, "a", limit, 2).allowed, limit
        clock.now += 1
        assert ask(storage, "a", limit, 10).remaining == 0, limit


def a_window_of_a_quota_is_a_period_of_the_calendar(storage: Storage, clock: FakeClock) -> None:
    """Windows begin at midnight in their zone: on days of 23 and 25 hours, in leap years and short months, too."""
    for text, begin, end in (
        ("1/calendar-day", "2026-01-31T00:00+00:00", "2026-02-01T00:00+00:00"),
        ("1/calendar-day in Europe/Berlin", "2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"),
        ("1/calendar-day in Europe/Berlin", "2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"),
        ("1/calendar-day in America/Sao_Paulo", "2018-11-03T00:00-03:00", "2018-11-04T01:00-02:00"),
        ("1/calendar-day in America/Sao_Paulo", "2018-11-04T01:00-02:00", "2018-11-05T00:00-02:00"),
        ("1/calendar-week", "2026-02-23T00:00+00:00", "2026-03-02T00:00+00:00"),
        ("1/calendar-week in Asia/Tokyo from sunday", "2026-02-22T00:00+09:00", "2026-03-01T00:00+09:00"),
        ("1/calendar-month", "2028-02-01T00:00+00:00", "2028-03-01T00:00+00:00"),
        ("1/calendar-month from 29", "2027-01-29T00:00+00:00", "2027-02-28T00:00+00:00"),
        ("1/calendar-month from 30", "2028-02-29T00:00+00:00", "2028-03-30T00:00+00:00"),
        ("1/calendar-month in America/New_York from 31", "2026-04-30T00:00-04:00", "2026-05-31T00:00-04:00"),
        ("1/calendar-year in Australia/Sydney", "2028-01-01T00:00+11:00", "2029-01-01T00:00+11:00"),
    ):
        limit, key = parse_limit(text), f"{text} {begin}"
        clock.now = instant(begin) - 1
        assert ask(storage, key, limit).reset_after_us == 1, key
        clock.now += 1
        assert ask(storage, key, limit).reset_after_us == instant(end) - instant(begin), key
        clock.now = instant(end) - 1
        assert ask(storage, key, limit).retry_after_us == 1, key
        clock.now += 1
        assert ask(storage, key, limit).allowed, key


def a_changed_zone_or_first_day_keeps_the_count_of_a_quota(storage: Storage, clock: FakeClock) -> None:
    """Quotas that differ in count, zone, first day or metering share a state; those that differ in unit do not."""
    clock.now = instant("2026-05-20T12:00+00:00")
    assert ask(storage, "a", "10/calendar-month", 8).allowed
    for text in ("10/calendar-month in Asia/Tokyo", "10/calendar-month from 3", "9/calendar-month in America/New_York"):
        assert not ask(storage, "a", text, 3).allowed, text
    assert ask(storage, "a", "10/calendar-month over allow", 3).part == 1
    for unit in ("day", "week", "year"):
        assert ask(storage, "a", f"10/calendar-{unit}", 10).allowed, unit
    assert ask(storage, "a", "10/calendar-month as other", 10).allowed


def a_clock_near_the_end_of_a_window_makes_no_second_quota(storage: Storage, clock: FakeClock) -> None:
    """A state of the next window counts for a clock that is behind. A clock far behind moves it to its own window."""
    limit = parse_limit("10/calendar-day")
    midnight = instant("2026-05-20T00:00+00:00")
    clock.now = midnight + SECOND
    assert ask(storage, "a", limit, 10).allowed
    clock.now = midnight - SECOND
    denied = ask(storage, "a", limit)
    assert (denied.allowed, denied.retry_after_us) == (False, DAY + SECOND)
    clock.now = midnight + DAY - 1
    assert not ask(storage, "a", limit).allowed
    clock.now = midnight - 3 * DAY
    refused = ask(storage, "a", limit, 0, "force", extra=(1, 1, 0, 1))
    assert (refused.remaining, refused.reset_after_us) == (0, DAY)
    denied = ask(storage, "a", limit)
    assert (denied.allowed, denied.retry_after_us) == (False, DAY)
    clock.now += DAY
    assert ask(storage, "a", limit, 10).allowed


def a_peek_tells_the_counts_of_a_quota(storage: Storage, clock: FakeClock) -> None:
    """A row that charges nothing has the units granted, used, and used in the window before, for one window more."""
    clock.now = instant("2026-05-20T12:00+00:00")
    for text in ("10/calendar-day", "10/day fixed-window over allow"):
        limit, key = parse_limit(text), f"counts {text}"
        start = clock.now
        assert ask(storage, key, limit, mode="peek")[:9] == (True, 10, 0, 0, 0, start, 0, 0, 0), text
        ask(storage, key, limit, 4)
        assert ask(storage, key, limit, mode="peek")[:9] == (True, 6, 0, DAY // 2, 0, start, 0, 4, 0), text
        ask(storage, key, limit, 5, "force", extra=GRANT)
        assert ask(storage, key, limit, mode="peek")[6:] == (5, 4, 0), text
        if not limit.metered:
            assert ask(storage, key, limit, 12)[6:] == (5, 4, 0), text
        clock.now += DAY
        assert ask(storage, key, limit, mode="peek")[:9] == (True, 10, 0, 0, 0, clock.now, 0, 0, 4), text
        ask(storage, key, limit, 7)
        assert ask(storage, key, limit, mode="peek")[6:] == (0, 7, 4), text
        clock.now += 2 * DAY
        assert ask(storage, key, limit, mode="peek")[6:] == (0, 0, 0), text
        clock.now = start


def a_metered_quota_denies_nothing_and_tells_what_exceeds_it(storage: Storage, clock: FakeClock) -> None:
    """The part of a cost that is above the quota is told; so is the change when a cost is settled."""
    for text in ("10/calendar-month over allow", "10/hour fixed-window over allow"):
        limit = parse_limit(text)
        answers = [ask(storage, "a", limit, cost) for cost in (6, 6, 1_000)]
        assert [answer.allowed for answer in answers] == [True] * 3, text
        assert [answer.remaining for answer in answers] == [4, 0, 0], text
        assert [answer.part for answer in answers] == [0, 2, 1_000], text
        assert ask(storage, "a", limit, 8, "force", spent=answers[0]).part == 8, text
        assert ask(storage, "a", limit, -1_000, "force", spent=answers[2]).part == -1_000, text
        assert ask(storage, "a", limit, -14, "force", spent=answers[0]).part == -10, text
        assert ask(storage, "a", limit, mode="peek")[6:] == (0, 6, 0), text


def a_grant_is_for_one_window(storage: Storage, clock: FakeClock) -> None:
    """Granted units are added to what the current window allows, whether it was used or not, and end with it."""
    clock.now = instant("2026-05-20T12:00+00:00")
    for key, used in (("new", 0), ("used", 10)):
        limit = parse_limit("10/calendar-day")
        if used:
            ask(storage, key, limit, used)
        assert ask(storage, key, limit, 5, "force", extra=GRANT)[:4] == (True, 15 - used, 0, DAY // 2), key
        assert ask(storage, key, limit, 15 - used).allowed, key
        denied = ask(storage, key, limit)
        assert (denied.allowed, denied.retry_after_us) == (False, DAY // 2), key
        ask(storage, key, limit, 2, "force", extra=GRANT)
        assert ask(storage, key, limit, 2).remaining == 0, key
        clock.now += DAY // 2
        assert ask(storage, key, limit, 11).retry_after_us is None, key
        assert ask(storage, key, limit, 10).remaining == 0, key
        clock.now -= DAY // 2
    ask(storage, "in line", "10/calendar-day", 5, "force", extra=GRANT)
    assert ask(storage, "in line", "10/calendar-day", 15, "peek", patience=0).allowed, "a waiter may have them, too"
    assert ask(storage, "metered", "10/calendar-day over allow", 5, "force", extra=GRANT).remaining == 15
    assert ask(storage, "metered", "10/calendar-day over allow", 16).part == 1


def a_refund_of_a_quota_is_for_its_own_window(storage: Storage, clock: FakeClock) -> None:
    """A refund returns what this window counts; one from before its beginning or a reset changes nothing."""
    clock.now = instant("2026-05-20T12:00+00:00")
    limit = parse_limit("10/calendar-day")
    first = ask(storage, "a", limit, 4)
    clock.now += HOUR
    second = ask(storage, "a", limit, 6)
    assert ask(storage, "a", limit, -3, "force", spent=first).remaining == 3
    clock.now += HOUR
    storage.reset((("a", (limit,), 1, None, None),))
    third = ask(storage, "a", limit, 10)
    assert ask(storage, "a", limit, -6, "force", spent=second).remaining == 0
    clock.now += DAY
    assert ask(storage, "a", limit, -10, "force", spent=third)[:4] == (True, 10, 0, 0)
    ask(storage, "a", limit, 10)
    assert ask(storage, "a", limit, -10, "force", spent=third).remaining == 0
    assert ask(storage, "a", limit, 1_000, "force").remaining == 0
    assert ask(storage, "a", limit, -10, "force").remaining == 0, "at most one quota more was charged"
    assert ask(storage, "a", limit, -1, "force").remaining == 1


@about("2 concurrent")
def slots_are_held_until_they_are_released_or_their_lease_ends(storage: Storage, clock: FakeClock) -> None:
    """No more than the count are held at once; each for one lease, unless it is released."""
    limit = parse_limit("3 concurrent for 10 seconds")
    answers = []
    for number in range(5):
        answers.append(ask(storage, "a", limit, extra=slot(number)))
        clock.now += SECOND
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0, 0]
    assert [answer.retry_after_us for answer in answers] == [0, 0, 0, 7 * SECOND, 6 * SECOND]
    assert [answer.reset_after_us // SECOND for answer in answers] == [10, 10, 10, 9, 8]
    assert ask(storage, "b", limit, extra=slot(0)).allowed, "another key has slots of its own"
    released = ask(storage, "a", limit, -1, "force", extra=slot(1))
    assert (released.allowed, released.remaining) == (True, 1)
    assert ask(storage, "a", limit, -1, "force", extra=slot(1)).remaining == 1, "a release can be repeated"
    assert ask(storage, "a", limit, extra=slot(5)).allowed
    clock.now += 5 * SECOND - 1  # the first lease has a microsecond left
    assert not ask(storage, "a", limit, extra=slot(6)).allowed
    clock.now += 1
    assert ask(storage, "a", limit, extra=slot(6)).allowed
    for number in (2, 5, 6):
        ask(storage, "a", limit, -1, "force", extra=slot(number))
    assert ask(storage, "a", limit, mode="peek")[:4] == (True, 3, 0, 0)


@about("2 concurrent")
def a_slot_that_is_held_is_renewed(storage: Storage, clock: FakeClock) -> None:
    """A slot that is taken again, or forced, is held for a lease from then on. It is still one slot."""
    limit = parse_limit("2 concurrent for 10 seconds")
    ask(storage, "a", limit, extra=slot(1))
    ask(storage, "a", limit, extra=slot(2))
    for mode in ("spend", "force"):
        clock.now += 9 * SECOND
        renewed = ask(storage, "a", limit, 1, "spend" if mode == "spend" else "force", extra=slot(1))
        assert (renewed.allowed, renewed.reset_after_us) == (True, 10 * SECOND), mode
    assert ask(storage, "a", limit, mode="peek").remaining == 1, "the other one has expired"


@about("2 concurrent")
def a_slot_can_be_held_above_the_count(storage: Storage, clock: FakeClock) -> None:
    """Force holds a slot always: its work runs. None is free before enough of them have gone."""
    limit = parse_limit("2 concurrent")
    for number in range(4):
        held = ask(storage, "a", limit, 1, "force", extra=slot(number))
        assert (held.allowed, held.remaining) == (True, max(1 - number, 0))
    for number in range(3):
        assert not ask(storage, "a", limit, extra=slot(9)).allowed
        ask(storage, "a", limit, -1, "force", extra=slot(number))
    assert ask(storage, "a", limit, extra=slot(9)).allowed
    ask(storage, "a", limit, -5, "force", extra=NOT_GIVEN)
    ask(storage, "a", limit, 5, "force", extra=NOT_GIVEN)
    assert ask(storage, "a", limit, mode="peek").remaining == 0, "without an id nothing changes"


@about("2 concurrent")
def a_slot_takes_no_cost(storage: Storage, clock: FakeClock) -> None:
    """A request has one slot, whatever it costs. The largest id is 2**53 - 1."""
    limit = parse_limit("2 concurrent")
    assert ask(storage, "a", limit, 1_000, extra=slot(2**53 - 1)).remaining == 1
    assert ask(storage, "a", limit, 1_000, extra=slot(2**53 - 2)).remaining == 0
    assert ask(storage, "a", limit, -1_000, "force", extra=slot(2**53 - 1)).remaining == 1
    assert ask(storage, "a", limit, 1_000, "peek").allowed


@about("2 concurrent")
def a_peek_takes_no_slot(storage: Storage, clock: FakeClock) -> None:
    """A peek tells what a spend would, with and without an id. A slot that is held is allowed again."""
    limit = parse_limit("2 concurrent")
    for _ in range(2):
        assert ask(storage, "a", limit, mode="peek", extra=slot(1))[:4] == (True, 2, 0, 0)
    ask(storage, "a", limit, extra=slot(1))
    ask(storage, "a", limit, extra=slot(2))
    for _ in range(2):
        assert ask(storage, "a", limit, mode="peek")[:3] == (False, 0, 60 * SECOND)
        assert ask(storage, "a", limit, mode="peek", extra=slot(3))[:3] == (False, 0, 60 * SECOND)
        assert ask(storage, "a", limit, mode="peek", extra=slot(2))[:3] == (True, 0, 0)


@about("2 concurrent")
def a_changed_lease_or_count_keeps_the_slots(storage: Storage, clock: FakeClock) -> None:
    """Slots that differ in count or lease share a state. A reset forgets them, and force puts them back."""
    ask(storage, "a", "2 concurrent for 10 seconds", extra=slot(1))
    assert ask(storage, "a", "2 concurrent for 1 hour", extra=slot(2)).remaining == 0
    assert not ask(storage, "a", "1 concurrent", extra=slot(3)).allowed
    assert ask(storage, "a", "3 concurrent", extra=slot(3)).allowed
    assert ask(storage, "a", "2 concurrent as other", extra=slot(1)).remaining == 1
    storage.reset((("a", (parse_limit("2 concurrent"),), 1, None, None),))
    assert ask(storage, "a", "2 concurrent", 1, "force", extra=slot(1)).remaining == 1


def _all_kinds() -> tuple[Limit, Limit, Limit]:
    return parse_limit("10/minute burst 10"), parse_limit("20/calendar-month"), parse_limit("2 concurrent")


@about("2 concurrent")
def rates_quotas_and_slots_are_decided_together(storage: Storage, clock: FakeClock) -> None:
    """A group of all kinds charges all of them or none, whichever denies, and each answers with what it has left."""
    limits = _all_kinds()
    for key, first, then, denied, left in (
        ("rate", [9], 2, 0, [1, 11, 1]),
        ("quota", [9, 9], 3, 1, [10, 2, 2]),
        ("slot", [1, 1], 1, 2, [8, 18, 0]),
    ):
        for number, cost in enumerate(first):
            group: Group = ((key, limits, cost, None, [NOT_GIVEN, NOT_GIVEN, slot(number)]),)
            assert all(row[0] for row in storage.evaluate((group,))[0]), key
            clock.now += 60 * SECOND if key == "quota" else 0
        if key == "quota":  # the leases of its slots have ended
            assert ask(storage, key, limits[2], mode="peek").remaining == 2
        for _ in range(2):
            rows = storage.evaluate((((key, limits, then, None, [NOT_GIVEN, NOT_GIVEN, slot(9)]),),))[0]
            assert [row[0] for row in rows] == [i != denied for i in range(3)], key
            assert [row[1] for row in rows] == left, key
        peeks = [ask(storage, key, limit, mode="peek").remaining for limit in limits]
        assert peeks == left, key


@about("2 concurrent")
def settling_leaves_slots_alone_and_undoing_releases_them(storage: Storage, clock: FakeClock) -> None:
    """A settlement corrects rates and quotas; undoing a decision leaves nothing behind."""
    limits = _all_kinds()
    untouched = [ask(storage, "a", limit, mode="peek") for limit in limits]
    group: Group = (("a", limits, 4, None, [NOT_GIVEN, NOT_GIVEN, slot(1)]),)
    rows = storage.evaluate((group,))[0]
    assert [row[1] for row in storage.evaluate((settlement(group, rows, [1]),), "force")[0]] == [9, 19, 1]
    settled: Group = (("a", limits, 1, None, [NOT_GIVEN, NOT_GIVEN, slot(1)]),)
    assert [row[1] for row in storage.evaluate((undoing(settled, rows),), "force")[0]] == [10, 20, 2]
    assert [ask(storage, "a", limit, mode="peek") for limit in limits] == untouched


def a_row_of_a_quota_or_a_slot_has_all_fields(storage: Storage, clock: FakeClock) -> None:
    """Every row has the nine fields of an Outcome: a bool and whole numbers. Compiled code accepts no other row."""
    modes: tuple[Mode, ...] = ("peek", "spend", "spend", "peek", "force")
    for text in ("1/calendar-day", "1/calendar-day over allow as metered", "1 concurrent"):
        limit = parse_limit(text)
        if refusal_of(storage, limit):
            _is_refused(storage, limit)
            continue
        for number, (mode, cost) in enumerate((mode, cost) for cost in (1, 2) for mode in modes):
            group: Group = (("a", (limit,), cost, None, [slot(number)] if limit.has_slots else None),)
            for row in storage.evaluate((group,), mode)[0]:
                assert len(row) == len(Outcome._fields), (text, mode, row)
                assert type(row[0]) is bool, (text, mode, row)
                optional = [row[place] for place in (2, 8) if row[place] is not None]
                assert {type(field) for field in (row[1], *row[3:8], *optional)} == {int}, (text, mode, row)


PENALTY = "2 strikes/minute block 10 seconds then 1 minute forget 1 hour as guessing"
STRUCK, BLOCKED = 1, 2  # `given` in the row of a penalty: the decision was a strike, or it began a block


def sight(digest: int) -> Extra:
    """Return the extra of an ask for a limit of distinct values."""
    return (digest, 0, 0, 0)


def ask_limits(
    storage: Storage,
    key: str,
    texts: str,
    extras: Sequence[Extra] | None = None,
    *,
    cost: int = 1,
    mode: Mode = "spend",
    patience: int | None = None,
) -> list[Outcome]:
    """Return the outcomes of one ask for several limits of a key."""
    group: Group = ((key, tuple(parse_limits(texts)), cost, patience, extras),)
    return [Outcome(*row) for row in storage.evaluate((group,), mode)[0]]


@about("2 distinct account/minute")
def values_count_until_one_period_after_their_last_allowed_sight(storage: Storage, clock: FakeClock) -> None:
    """No more than the count are allowed; one that is counted passes, and then counts for longer."""
    limit = parse_limit("3 distinct account/10 seconds")
    answers = []
    for digest in (1, 2, 3, 4, 1, 5):
        answers.append(ask(storage, "a", limit, extra=sight(digest)))
        clock.now += SECOND
    assert [answer.allowed for answer in answers] == [True, True, True, False, True, False]
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0, 0, 0]
    assert [answer.retry_after_us for answer in answers] == [0, 0, 0, 7 * SECOND, 0, 6 * SECOND]
    assert [answer.reset_after_us // SECOND for answer in answers] == [10, 10, 10, 9, 10, 9]
    begin = answers[0].at_us
    assert [answer.given for answer in answers] == [0, 0, 0, 0, begin + 10 * SECOND, 0]
    assert ask(storage, "b", limit, extra=sight(4)).allowed, "another key has values of its own"
    clock.now = begin + 11 * SECOND - 1  # the second value has a microsecond left
    assert not ask(storage, "a", limit, extra=sight(4)).allowed
    clock.now += 1
    assert ask(storage, "a", limit, extra=sight(4)).allowed
    assert ask(storage, "a", limit, extra=sight(1)).allowed, "its second sight made it count for longer"
    clock.now += 10 * SECOND
    assert ask(storage, "a", limit, mode="peek")[:4] == (True, 3, 0, 0)


@about("2 distinct account/minute")
def a_denied_value_is_not_stored(storage: Storage, clock: FakeClock) -> None:
    """Thousands of denied values leave nothing behind: neither a count nor a longer wait."""
    limit = parse_limit("2 distinct account/minute")
    for digest in (1, 2):
        ask(storage, "a", limit, extra=sight(digest))
    for digest in range(3, 103):
        assert ask(storage, "a", limit, extra=sight(digest))[:4] == (False, 0, 60 * SECOND, 60 * SECOND)
    clock.now += 60 * SECOND
    assert [ask(storage, "a", limit, extra=sight(digest)).remaining for digest in (50, 60)] == [1, 0]


@about("2 distinct account/minute")
def a_value_takes_no_cost(storage: Storage, clock: FakeClock) -> None:
    """A request has one value, whatever it costs. The largest digest is 2**53 - 1."""
    limit = parse_limit("2 distinct account/minute")
    assert ask(storage, "a", limit, 1_000, extra=sight(2**53 - 1)).remaining == 1
    assert ask(storage, "a", limit, 1_000, extra=sight(2**53 - 1)).remaining == 1
    assert ask(storage, "a", limit, 1_000, extra=sight(2**53 - 2)).remaining == 0
    assert ask(storage, "a", limit, 1_000, "peek", extra=sight(2**53 - 1)).allowed


@about("2 distinct account/minute")
def a_peek_counts_no_value(storage: Storage, clock: FakeClock) -> None:
    """A peek tells what a spend would, with and without a digest."""
    limit = parse_limit("2 distinct account/minute")
    for _ in range(2):
        assert ask(storage, "a", limit, mode="peek", extra=sight(1))[:4] == (True, 2, 0, 0)
    ask(storage, "a", limit, extra=sight(1))
    ask(storage, "a", limit, extra=sight(2))
    for _ in range(2):
        assert ask(storage, "a", limit, mode="peek")[:3] == (False, 0, 60 * SECOND)
        assert ask(storage, "a", limit, mode="peek", extra=sight(3))[:3] == (False, 0, 60 * SECOND)
        assert ask(storage, "a", limit, mode="peek", extra=sight(2))[:3] == (True, 0, 0)


@about("2 distinct account/minute")
def a_sight_is_taken_back_unless_the_value_was_seen_since(storage: Storage, clock: FakeClock) -> None:
    """Settling to 0 and undoing take back what the decision added, and no other sight."""
    limit = parse_limit("3 distinct account/minute")

    def seen(digest: int) -> tuple[Group, Sequence[Row]]:
        clock.now += SECOND
        group: Group = (("a", (limit,), 1, None, [sight(digest)]),)
        return group, storage.evaluate((group,))[0]

    def left() -> tuple[int, int]:
        found = ask(storage, "a", limit, mode="peek")
        return found.remaining, found.reset_after_us

    for correct in (lambda group, rows: settlement(group, rows, [0]), undoing):
        storage.evaluate((correct(*seen(1)),), "force")
        assert left() == (3, 0), "it was new"
        first = seen(1)
        second = seen(1)
        storage.evaluate((correct(*second),), "force")
        assert left() == (2, 59 * SECOND), "it is as the first sight left it"
        storage.evaluate((correct(*first),), "force")
        assert left() == (3, 0)
        first = seen(1)
        seen(1)
        storage.evaluate((correct(*first),), "force")
        assert left() == (2, 60 * SECOND), "somebody saw it since"
        storage.reset((("a", (limit,), 1, None, None),))
    group, rows = seen(1)
    storage.evaluate((settlement(group, rows, [5]),), "force")
    assert left() == (2, 60 * SECOND), "only a cost of 0 takes it back"
    clock.now += 60 * SECOND
    storage.evaluate((undoing(group, rows),), "force")
    assert left() == (3, 0), "it is over"
    group, rows = seen(2)
    storage.reset((("a", (limit,), 1, None, None),))
    seen(2)
    storage.evaluate((undoing(group, rows),), "force")
    assert left() == (2, 60 * SECOND), "it was seen after a reset"


@about("2 distinct account/minute")
def a_value_can_be_counted_above_the_count(storage: Storage, clock: FakeClock) -> None:
    """Force counts a value always; without a digest nothing changes."""
    limit = parse_limit("2 distinct account/minute")
    for digest in range(4):
        forced = ask(storage, "a", limit, 1, "force", extra=sight(digest))
        assert (forced.allowed, forced.remaining) == (True, max(1 - digest, 0))
        clock.now += SECOND
    assert ask(storage, "a", limit, extra=sight(9)).retry_after_us == 58 * SECOND
    assert ask(storage, "a", limit, extra=sight(3)).allowed
    for cost in (-5, 5):
        ask(storage, "a", limit, cost, "force", extra=NOT_GIVEN)
    ask(storage, "a", limit, -1, "force", extra=sight(3))
    assert ask(storage, "a", limit, mode="peek").remaining == 0


@about("2 distinct account/minute")
def a_changed_count_of_values_keeps_them_and_a_changed_period_starts_anew(storage: Storage, clock: FakeClock) -> None:
    """Limits that differ in count share values. A reset forgets them."""
    for digest in (1, 2):
        ask(storage, "a", "2 distinct account/minute", extra=sight(digest))
    assert not ask(storage, "a", "1 distinct account/minute", extra=sight(3)).allowed
    assert ask(storage, "a", "3 distinct account/minute", extra=sight(3)).allowed
    for other in ("2 distinct account/hour", "2 distinct user/minute", "2 distinct account/minute as other"):
        assert ask(storage, "a", other, extra=sight(3)).remaining == 1, other
    storage.reset((("a", (parse_limit("2 distinct account/minute"),), 1, None, None),))
    assert ask(storage, "a", "2 distinct account/minute", extra=sight(3)).remaining == 1


@about("2 distinct account/minute")
def a_clock_that_steps_back_frees_no_value(storage: Storage, clock: FakeClock) -> None:
    """Values count until the instant that they were given."""
    limit = parse_limit("2 distinct account/minute")
    for digest in (1, 2):
        ask(storage, "a", limit, extra=sight(digest))
    clock.now -= 30 * SECOND
    assert ask(storage, "a", limit, extra=sight(3))[:3] == (False, 0, 90 * SECOND)
    assert ask(storage, "a", limit, extra=sight(1)).reset_after_us == 90 * SECOND
    clock.now += 90 * SECOND
    assert ask(storage, "a", limit, extra=sight(3)).allowed


@about(PENALTY)
def a_denial_is_a_strike_in_the_same_step(storage: Storage, clock: FakeClock) -> None:
    """The row of the penalty shows it. Denials within one second are one strike."""
    texts = f"2/hour fixed-window; {PENALTY}"
    ask_limits(storage, "a", texts, cost=2)
    for _ in range(3):
        answers = ask_limits(storage, "a", texts)
        assert [answer.allowed for answer in answers] == [False, True]
        clock.now += SECOND // 3
    peeked = ask_limits(storage, "a", texts, mode="peek")[1]
    assert (peeked.remaining, peeked.given, peeked.reset_after_us) == (1, 0, 59 * SECOND + 1)
    clock.now += 1
    answers = ask_limits(storage, "a", texts)
    assert [answer.allowed for answer in answers] == [False, False], "the second strike blocks at once"
    assert answers[1][1:] == (0, 10 * SECOND, 3610 * SECOND, 0, clock.now, BLOCKED, 0, None)
    assert ask_limits(storage, "b", texts)[1].remaining == 2, "another key has strikes of its own"


@about(PENALTY)
def an_allowed_check_stores_no_strike(storage: Storage, clock: FakeClock) -> None:
    """A penalty is as untouched after thousands of allowed checks, and so is one that was only looked at."""
    for _ in range(20):
        clock.now += SECOND
        assert all(answer.allowed for answer in ask_limits(storage, "a", f"100/hour; {PENALTY}"))
        ask_limits(storage, "a", f"100/hour; {PENALTY}", mode="peek")
    assert ask(storage, "a", PENALTY, mode="peek")[:4] == (True, 2, 0, 0)


def _block(storage: Storage, clock: FakeClock, key: str = "a", text: str = PENALTY) -> Outcome:
    """Strike until a block begins, and return its row."""
    while (row := ask(storage, key, text, 1, "force", extra=STRIKE)).given == STRUCK:
        clock.now += SECOND
    return row


@about(PENALTY)
def a_blocked_key_stays_blocked_until_exactly_the_end(storage: Storage, clock: FakeClock) -> None:
    """Whatever it asks meanwhile: its denials charge nothing and make the block no longer."""
    texts = f"5/second fixed-window; {PENALTY}"
    assert _block(storage, clock).retry_after_us == 10 * SECOND
    until = clock.now + 10 * SECOND
    for _ in range(5):
        answers = ask_limits(storage, "a", texts)
        assert [answer.allowed for answer in answers] == [True, False]
        assert (answers[0].remaining, answers[1].retry_after_us) == (5, until - clock.now)
        for cost in (6, 100):
            ask_limits(storage, "a", texts, cost=cost)
        clock.now += SECOND
    clock.now = until - 1
    assert not ask_limits(storage, "a", texts)[1].allowed
    clock.now = until
    assert all(answer.allowed for answer in ask_limits(storage, "a", texts))


@about(PENALTY)
def blocks_become_longer_and_are_forgotten(storage: Storage, clock: FakeClock) -> None:
    """The last length repeats. `forget` runs from the end of a block, and a strike restarts it."""
    for length in (10, 60, 60, 60):
        assert _block(storage, clock).retry_after_us == length * SECOND
        clock.now += length * SECOND
    clock.now += 3600 * SECOND - 1
    assert ask(storage, "a", PENALTY, mode="peek").reset_after_us == 1
    assert ask(storage, "a", PENALTY, 1, "force", extra=STRIKE).reset_after_us == 3600 * SECOND
    clock.now += 3600 * SECOND - 1
    assert _block(storage, clock).retry_after_us == 60 * SECOND
    clock.now += 3660 * SECOND
    assert ask(storage, "a", PENALTY, mode="peek")[:4] == (True, 2, 0, 0)
    assert _block(storage, clock).retry_after_us == 10 * SECOND


@about(PENALTY)
def a_reset_lifts_a_block(storage: Storage, clock: FakeClock) -> None:
    """Of that key alone; it starts again, as if it had never been blocked."""
    for key in ("a", "b"):
        _block(storage, clock, key)
    storage.reset((("a", (parse_limit(PENALTY),), 1, None, None),))
    assert ask(storage, "a", PENALTY, mode="peek")[:4] == (True, 2, 0, 0)
    assert not ask(storage, "b", PENALTY).allowed
    assert _block(storage, clock).retry_after_us == 10 * SECOND


@about(PENALTY)
def a_changed_penalty_keeps_its_strikes_and_blocks(storage: Storage, clock: FakeClock) -> None:
    """So a reload frees nobody. Only the name separates two penalties of a key."""
    _block(storage, clock)
    changed = "5 strikes/day block 1 second forget 1 day as guessing"
    assert ask(storage, "a", changed).retry_after_us == 10 * SECOND
    assert ask(storage, "a", PENALTY.replace("guessing", "other")).allowed
    clock.now += 10 * SECOND
    ask(storage, "a", PENALTY, 1, "force", extra=STRIKE)
    assert ask(storage, "a", changed, mode="peek").remaining == 4


@about(PENALTY)
def limits_share_a_penalty_by_its_name(storage: Storage, clock: FakeClock) -> None:
    """Strikes of one are strikes of the other, and both are blocked."""
    login, reset = f"1/hour as login; {PENALTY}", f"1/hour as reset; {PENALTY}"
    for texts in (login, reset):
        assert all(answer.allowed for answer in ask_limits(storage, "a", texts))
    assert ask_limits(storage, "a", login)[1].given == STRUCK
    clock.now += SECOND
    assert ask_limits(storage, "a", reset)[1].given == BLOCKED
    for texts in (login, reset, f"1/hour as third; {PENALTY}"):
        assert not ask_limits(storage, "a", texts)[1].allowed
    group: list[Ask] = [("a", tuple(parse_limits(texts)), 1, None, None) for texts in (login, reset)]
    assert [row[0] for row in storage.evaluate((group,))[0]] == [False] * 4


@about(PENALTY)
def a_penalty_of_several_asks_is_struck_once(storage: Storage, clock: FakeClock) -> None:
    """Those of one group, for one key, share a state."""
    group: list[Ask] = [
        ("a", tuple(parse_limits(f"1/hour as {name}; {PENALTY}")), 1, None, None) for name in ("login", "reset")
    ]
    storage.evaluate((group,))
    rows = storage.evaluate((group,))[0]
    assert [(row[0], row[1], row[6]) for row in rows[1::2]] == [(True, 1, STRUCK)] * 2


@about(PENALTY)
def a_strike_can_be_forced(storage: Storage, clock: FakeClock) -> None:
    """A result can be a strike. Without the word for it, force changes no penalty."""
    limits = tuple(parse_limits(f"10/hour; {PENALTY}"))
    for given in (STRUCK, BLOCKED):
        clock.now += SECOND
        group: Group = (("a", limits, 1, None, None),)
        rows = storage.evaluate((group,))[0]
        assert all(row[0] for row in rows)
        settled = storage.evaluate((settlement(group, rows, [1]),), "force")[0]
        assert settled[1][6] == 0
        assert storage.evaluate((settlement(group, rows, [3], [True]),), "force")[0][1][6] == given
        assert storage.evaluate((settlement(group, rows, [1], [True]),), "force")[0][1][6] == 0, "within one second"
    assert not storage.evaluate((group,))[0][1][0]
    storage.evaluate((undoing(group, rows),), "force")
    assert not storage.evaluate((group,))[0][1][0], "what is undone is not forgiven"


@about("1 concurrent", PENALTY)
def some_denials_are_no_strikes(storage: Storage, clock: FakeClock) -> None:
    """Those of slots, of a cost that never passes, of waiters, and those that say so."""
    ask_limits(storage, "a", "1/day")
    ask_limits(storage, "a", "1 concurrent", [slot(1)])
    for texts, extras, cost, patience in (
        (f"1 concurrent; {PENALTY}", [slot(2), NOT_GIVEN], 1, None),
        (f"1/day; {PENALTY}", None, 2, None),
        (f"1/day; {PENALTY}", None, 1, 5 * SECOND),
        (f"1/day; {PENALTY}", [NOT_GIVEN, NO_STRIKE], 1, None),
    ):
        for _ in range(2):
            clock.now += 2 * SECOND
            answers = ask_limits(storage, "a", texts, extras, cost=cost, patience=patience)
            assert [answer.allowed for answer in answers] == [False, True], texts
            assert (answers[1].remaining, answers[1].given) == (2, 0), texts
    assert ask(storage, "a", PENALTY, mode="peek")[:4] == (True, 2, 0, 0)


@about(PENALTY)
def a_penalty_may_span_several_asks(storage: Storage, clock: FakeClock) -> None:
    """Limits that belong together may be in asks of their own, one of which has patience."""
    queue, rate = parse_limit("1/minute burst 3 leaky-bucket"), parse_limit("9/day")
    penalty, alone = (parse_limit(f"1 strike/hour block 5 minutes as {name}") for name in ("spans", "alone"))

    def hit(key: str, extra: Extra) -> list[Outcome]:
        group: Group = (
            (key, (queue,), 1, 0, None),
            (key, (rate, penalty), 1, None, [NOT_GIVEN, extra]),
            (key, (alone,), 1, None, [NOT_GIVEN]),
        )
        return [Outcome(*row) for row in storage.evaluate((group,))[0]]

    for key, extra, passes in (("a", (SPAN, 2, 0, 0), False), ("b", NOT_GIVEN, True), ("c", NO_STRIKE, True)):
        assert all(outcome.allowed for outcome in hit(key, extra))
        denied, _, after, other = hit(key, extra)  # the queue has no place for now
        assert not denied.allowed
        assert after.allowed is passes
        assert other.allowed


@about(PENALTY)
def a_strike_is_for_the_key_that_was_denied(storage: Storage, clock: FakeClock) -> None:
    """In a group of several keys; and where one of them is blocked, no other is struck."""
    asks = {key: (key, tuple(parse_limits(f"{key[-1]}/hour; {PENALTY}")), 1, None, None) for key in ("k1", "k2", "k3")}
    group: list[Ask] = list(asks.values())
    assert all(row[0] for row in storage.evaluate((group,))[0])
    assert [row[0] for row in storage.evaluate((group,))[0][::2]] == [False, True, True]
    assert [ask(storage, key, PENALTY, mode="peek").remaining for key in asks] == [1, 2, 2]
    clock.now += SECOND
    assert all(row[0] for row in storage.evaluate((group[1:],))[0])
    clock.now += SECOND
    storage.evaluate((group[1:],))
    assert [ask(storage, key, PENALTY, mode="peek").remaining for key in asks] == [1, 1, 2]
    _block(storage, clock, "k3")
    clock.now += SECOND
    for _ in range(2):
        rows = storage.evaluate((group,))[0]
        assert [row[0] for row in rows] == [False, True, False, True, True, False]
    assert [ask(storage, key, PENALTY, mode="peek").remaining for key in asks] == [1, 1, 0]


@about(PENALTY)
def a_clock_that_steps_back_lifts_no_block_and_makes_none_longer(storage: Storage, clock: FakeClock) -> None:
    """It is as if the last strike were now."""
    _block(storage, clock)
    clock.now += 4 * SECOND
    assert ask(storage, "a", PENALTY).retry_after_us == 6 * SECOND
    clock.now -= 1_000 * SECOND
    assert ask(storage, "a", PENALTY, mode="peek").retry_after_us == 10 * SECOND
    assert ask_limits(storage, "a", f"1/hour; {PENALTY}")[1].retry_after_us == 10 * SECOND


@about("2 concurrent", "2 distinct account/minute", PENALTY)
def all_kinds_are_decided_together(storage: Storage, clock: FakeClock) -> None:
    """A rate, a quota, a slot, a value and a penalty are charged all or none, in one group."""
    texts = f"9/minute burst 9; 9/calendar-month; 2 concurrent; 2 distinct account/minute; {PENALTY}"

    def tried(number: int, digest: int, cost: int = 1) -> list[Outcome]:
        extras = [NOT_GIVEN, NOT_GIVEN, slot(number), sight(digest), NOT_GIVEN]
        return ask_limits(storage, "a", texts, extras, cost=cost)

    assert [answer.remaining for answer in tried(1, 1)] == [8, 8, 1, 1, 2]
    answers = tried(2, 2, cost=9)
    assert [answer.allowed for answer in answers] == [False, False, True, True, True]
    assert [answer.remaining for answer in answers] == [8, 8, 1, 1, 1], "the denial of the rate is a strike"
    assert [answer.remaining for answer in tried(2, 2)] == [7, 7, 0, 0, 1]
    ask(storage, "a", "2 concurrent", -1, "force", extra=slot(2))
    clock.now += SECOND
    answers = tried(3, 3)
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert answers[4].given == BLOCKED
    assert [answer.remaining for answer in answers] == [7, 7, 1, 0, 0]
    clock.now += 10 * SECOND
    group: Group = (("a", tuple(parse_limits(texts)), 1, None, [NOT_GIVEN, NOT_GIVEN, slot(4), sight(1), NOT_GIVEN]),)
    rows = storage.evaluate((group,))[0]
    assert all(row[0] for row in rows)
    storage.evaluate((undoing(group, rows),), "force")
    usage = ask_limits(storage, "a", texts, [NOT_GIVEN] * 5, mode="peek")
    assert [answer.remaining for answer in usage][1:] == [7, 1, 0, 2]


@about("1 distinct account/minute", PENALTY)
def a_row_of_values_or_a_penalty_has_all_fields(storage: Storage, clock: FakeClock) -> None:
    """Every row has the nine fields of an Outcome: a bool and whole numbers. Compiled code accepts no other row."""
    texts = f"1 distinct account/minute; {PENALTY}"
    modes: tuple[Mode, ...] = ("peek", "spend", "spend", "peek", "force")
    for number, mode in enumerate((*modes, *modes)):
        clock.now += SECOND
        extra = STRIKE if mode == "force" else NOT_GIVEN
        group: Group = (("a", tuple(parse_limits(texts)), 1, None, [sight(number), extra]),)
        for row in storage.evaluate((group,), mode)[0]:
            assert len(row) == len(Outcome._fields), (mode, row)
            assert type(row[0]) is bool, (mode, row)
            optional = [row[place] for place in (2, 8) if row[place] is not None]
            assert {type(field) for field in (row[1], *row[3:8], *optional)} == {int}, (mode, row)


# The parts of the contract that are about limits that are not rates.
QUOTA_AND_SLOT_CLAIMS: list[Claim] = [
    a_quota_admits_its_count_until_its_window_ends,
    a_window_of_a_quota_is_a_period_of_the_calendar,
    a_changed_zone_or_first_day_keeps_the_count_of_a_quota,
    a_clock_near_the_end_of_a_window_makes_no_second_quota,
    a_peek_tells_the_counts_of_a_quota,
    a_metered_quota_denies_nothing_and_tells_what_exceeds_it,
    a_grant_is_for_one_window,
    a_refund_of_a_quota_is_for_its_own_window,
    slots_are_held_until_they_are_released_or_their_lease_ends,
    a_slot_that_is_held_is_renewed,
    a_slot_can_be_held_above_the_count,
    a_slot_takes_no_cost,
    a_peek_takes_no_slot,
    a_changed_lease_or_count_keeps_the_slots,
    rates_quotas_and_slots_are_decided_together,
    settling_leaves_slots_alone_and_undoing_releases_them,
    a_row_of_a_quota_or_a_slot_has_all_fields,
]
VALUE_AND_PENALTY_CLAIMS: list[Claim] = [
    values_count_until_one_period_after_their_last_allowed_sight,
    a_denied_value_is_not_stored,
    a_value_takes_no_cost,
    a_peek_counts_no_value,
    a_sight_is_taken_back_unless_the_value_was_seen_since,
    a_value_can_be_counted_above_the_count,
    a_changed_count_of_values_keeps_them_and_a_changed_period_starts_anew,
    a_clock_that_steps_back_frees_no_value,
    a_denial_is_a_strike_in_the_same_step,
    an_allowed_check_stores_no_strike,
    a_blocked_key_stays_blocked_until_exactly_the_end,
    blocks_become_longer_and_are_forgotten,
    a_reset_lifts_a_block,
    a_changed_penalty_keeps_its_strikes_and_blocks,
    limits_share_a_penalty_by_its_name,
    a_penalty_of_several_asks_is_struck_once,
    a_strike_can_be_forced,
    some_denials_are_no_strikes,
    a_penalty_may_span_several_asks,
    a_strike_is_for_the_key_that_was_denied,
    a_clock_that_steps_back_lifts_no_block_and_makes_none_longer,
    all_kinds_are_decided_together,
    a_row_of_values_or_a_penalty_has_all_fields,
]
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
    a_document_is_written_only_over_the_version_that_was_read,
    an_async_twin_has_the_same_documents,
    *QUOTA_AND_SLOT_CLAIMS,
    *VALUE_AND_PENALTY_CLAIMS,
    closing_twice_is_fine,
]
