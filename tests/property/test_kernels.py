"""The kernels against the oracle: every claim of the design, for any limit and any history."""

from math import floor

from hypothesis import assume
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage, Outcome
from ratebound.limit import BUCKETS
from ratebound.testing import FakeClock, ask
from tests.property import oracle
from tests.property.strategies import START, costs, for_each, gaps, near

EXACT_WINDOWS = ("sliding-log", "fixed-window")


class History:
    """One key of one limit, the events admitted so far, and a clock."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.clock = FakeClock(START)
        self.storage = MemoryStorage(clock=self.clock)
        self.events: list[oracle.Event] = []

    def hit(self, cost: int = 1) -> Outcome:
        outcome = ask(self.storage, "k", self.limit, cost)
        if outcome.allowed:
            self.events.append((self.clock.now, cost))
        return outcome

    def peek(self, cost: int = 1) -> Outcome:
        return ask(self.storage, "k", self.limit, cost, "peek")

    def play(self, data: st.DataObject, most: int = 12) -> None:
        for _ in range(data.draw(st.integers(0, most))):
            self.clock.now += data.draw(gaps(self.limit))
            self.hit(data.draw(costs(self.limit)))


@for_each()
def test_every_answer_is_that_of_the_oracle(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    for _ in range(data.draw(st.integers(1, 20))):
        history.clock.now += data.draw(gaps(limit))
        now, events, cost = history.clock.now, history.events.copy(), data.draw(costs(limit))
        outcome = history.hit(cost)
        assert outcome.allowed == oracle.allows(limit, events, now, cost)
        assert outcome.remaining == max(oracle.left(limit, history.events, now), 0)
        if outcome.allowed:
            assert outcome.delay_us == oracle.delay(limit, events, now)
        assert outcome.at_us == now


@for_each(EXACT_WINDOWS)
def test_no_window_of_an_exact_algorithm_holds_more_than_its_limit(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data, most=30)
    assert oracle.keeps(limit, history.events)


@for_each(BUCKETS)
def test_a_bucket_never_gives_more_than_burst_and_rate_times_time(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data, most=30)
    assert oracle.keeps(limit, history.events)


@for_each(("sliding-counter",))
def test_a_sliding_counter_never_exceeds_its_own_estimate(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    for _ in range(data.draw(st.integers(1, 20))):
        history.clock.now += data.draw(gaps(limit))
        history.hit(data.draw(costs(limit)))
        assert oracle.estimate(limit, history.events, history.clock.now) <= limit.count


@for_each()
def test_waiting_exactly_retry_after_passes_and_a_microsecond_less_does_not(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data)
    cost = data.draw(costs(limit))
    denied = history.peek(cost)
    assume(not denied.allowed)
    if denied.retry_after_us is None:
        assert cost > limit.burst
        return
    assert denied.retry_after_us > 0
    history.clock.now += denied.retry_after_us - 1
    assert not history.hit(cost).allowed
    history.clock.now += 1
    assert history.hit(cost).allowed


@for_each()
def test_peek_changes_nothing_and_says_what_a_spend_would(limit: Limit, data: st.DataObject) -> None:
    history, silent = History(limit), History(limit)
    for _ in range(data.draw(st.integers(1, 12))):
        gap, cost = data.draw(gaps(limit)), data.draw(costs(limit))
        history.clock.now += gap
        silent.clock.now += gap
        before = history.peek(cost)
        assert history.peek(cost) == before
        assert before.remaining == max(oracle.left(limit, history.events, history.clock.now), 0)
        outcome = history.hit(cost)
        assert (outcome.allowed, outcome.retry_after_us) == (before.allowed, before.retry_after_us)
        assert outcome == silent.hit(cost)


@for_each()
def test_after_reset_after_and_not_before_the_state_is_as_if_untouched(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data)
    reset_after = history.peek().reset_after_us
    if reset_after:
        history.clock.now += reset_after - 1
        assert history.peek().reset_after_us == 1
        history.clock.now += 1
    outcome = history.peek()
    assert (outcome.remaining, outcome.reset_after_us) == (limit.burst, 0)


@for_each()
def test_hit_then_refund_at_the_same_instant_is_as_if_it_never_happened(limit: Limit, data: st.DataObject) -> None:
    history, silent = History(limit), History(limit)
    cost = data.draw(costs(limit))
    for _ in range(data.draw(st.integers(1, 8))):
        gap, other = data.draw(gaps(limit)), data.draw(costs(limit))
        for each in (history, silent):
            each.clock.now += gap
            each.hit(other)
        spent = ask(history.storage, "k", limit, cost)
        if spent.allowed:
            ask(history.storage, "k", limit, -cost, "force", spent=spent)
        assert history.peek() == silent.peek()


@for_each()
def test_a_late_refund_never_leaves_more_than_if_the_spend_had_never_been(limit: Limit, data: st.DataObject) -> None:
    """`history` spends and is refunded later, `silent` never spends: the first must not end up richer."""
    history, silent = History(limit), History(limit)
    cost = data.draw(costs(limit))
    spent = history.hit(cost)
    assume(spent.allowed)
    for _ in range(data.draw(st.integers(0, 6))):
        gap, other = data.draw(gaps(limit)), data.draw(costs(limit))
        for each in (history, silent):
            each.clock.now += gap
        if history.hit(other).allowed:
            assert silent.hit(other).allowed or limit.algorithm == "sliding-counter"
    gap = data.draw(gaps(limit))
    for each in (history, silent):
        each.clock.now += gap
    before = history.peek()
    ask(history.storage, "k", limit, -cost, "force", spent=spent)
    after, never = history.peek(), silent.peek()
    assert before.remaining <= after.remaining
    assert after.reset_after_us <= before.reset_after_us
    if limit.algorithm == "sliding-counter":  # the spend still says where its windows begin
        events = [(START, 0), *history.events[1:]]
        assert after.remaining <= max(oracle.left(limit, events, history.clock.now), 0)
    else:
        assert after.remaining <= never.remaining
        assert never.reset_after_us <= after.reset_after_us


@for_each(("fixed-window", "sliding-log", "sliding-counter"))
def test_a_refund_in_a_window_mints_nothing_wherever_the_clock_has_stepped(limit: Limit, data: st.DataObject) -> None:
    """`history` spends and is refunded later, `silent` never spends: the first must not end up richer."""
    history, silent = History(limit), History(limit)
    cost = data.draw(costs(limit))
    spent = history.hit(cost)
    assume(spent.allowed)
    left = False  # the window of the spend, backwards
    for _ in range(data.draw(st.integers(1, 6))):
        gap, other = data.draw(gaps(limit)), data.draw(costs(limit))
        if data.draw(st.booleans()):
            gap = -data.draw(near(1, 1_000, limit.period_us, 3 * limit.period_us, 10**14))
        for each in (history, silent):
            each.clock.now += gap
        assume(
            (history.clock.now - START) % limit.period_us
        )  # a window that begins in step with the first looks like it
        left = left or history.clock.now < START
        silent.peek()  # both see the clock step back
        if history.hit(other).allowed:
            ask(silent.storage, "k", limit, other, "force")
    before = history.peek()
    ask(history.storage, "k", limit, -cost, "force", spent=spent)
    after, never = history.peek(), silent.peek()
    if limit.algorithm != "sliding-counter":  # of which the spend says where its windows begin
        assert after.remaining <= never.remaining
    elif left:
        assert after == before


@for_each(BUCKETS + EXACT_WINDOWS)
def test_whatever_is_settled_in_whatever_order_what_stays_charged_keeps_the_limit(
    limit: Limit, data: st.DataObject
) -> None:
    clock = FakeClock(START)
    storage = MemoryStorage(clock=clock)
    kept: list[tuple[int, int]] = []  # instant and what stays charged
    open_spends: list[tuple[int, int, Outcome]] = []  # place in `kept`, cost, outcome
    for _ in range(data.draw(st.integers(2, 25))):
        clock.now += data.draw(gaps(limit))
        settle: bool = data.draw(st.booleans())
        if settle and open_spends:
            place, cost, spent = open_spends.pop(data.draw(st.integers(0, len(open_spends) - 1)))
            less = data.draw(st.integers(1, cost))
            ask(storage, "k", limit, -less, "force", spent=spent)
            kept[place] = (kept[place][0], cost - less)
        else:
            cost = data.draw(costs(limit))
            outcome = ask(storage, "k", limit, cost)
            if outcome.allowed:
                open_spends.append((len(kept), cost, outcome))
                kept.append((clock.now, cost))
    assert oracle.keeps(limit, kept)


@for_each()
def test_an_overdraft_is_capped_and_ends(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data, most=6)
    forced = ask(history.storage, "k", limit, data.draw(st.integers(1, 10**12)), "force")
    assert forced.allowed
    denied = history.peek()
    if not denied.allowed:
        assert forced.remaining == 0
        assert denied.retry_after_us is not None
        interval = limit.period_us // limit.count
        assert denied.retry_after_us <= 2 * limit.period_us + interval + 1
        history.clock.now += denied.retry_after_us - 1
        assert not history.peek().allowed
        history.clock.now += 1
        assert history.peek().allowed


@for_each()
def test_a_clock_that_jumps_back_mints_nothing_and_blocks_no_longer_than_a_period(
    limit: Limit, data: st.DataObject
) -> None:
    history = History(limit)
    history.play(data)
    cost = data.draw(costs(limit))
    before = history.peek(cost)
    history.clock.now -= data.draw(
        st.one_of(st.integers(1, 1_000), st.integers(1, 3 * limit.period_us), st.integers(1, 10**14))
    )
    after = history.peek(cost)
    assert after.remaining <= before.remaining
    assert not (after.allowed and not before.allowed)
    if before.retry_after_us is None:
        assert after.retry_after_us is None
        return
    assert after.retry_after_us is not None
    # A period; for a bucket that holds more than its count, the time that a whole burst takes to come back.
    longer = max(limit.period_us, limit.refill_us + 1)
    # A sliding counter may always ask for two periods: the one it counts and the one it decays in.
    natural = 2 * limit.period_us if limit.algorithm == "sliding-counter" else 0
    assert after.retry_after_us <= max(before.retry_after_us + longer, natural)
    if after.retry_after_us:
        history.clock.now += after.retry_after_us - 1
        assert not history.hit(cost).allowed
        history.clock.now += 1
        assert history.hit(cost).allowed


@for_each(BUCKETS)
def test_patience_charges_now_and_tells_the_delay_at_which_it_conforms(limit: Limit, data: st.DataObject) -> None:
    history = History(limit)
    history.play(data)
    cost = data.draw(costs(limit))
    plain = history.peek(cost)
    patience = data.draw(st.integers(0, 2 * limit.period_us))
    patient = ask(history.storage, "k", limit, cost, "peek", patience=patience)
    if plain.retry_after_us is None:
        assert patient.retry_after_us is None
    elif limit.algorithm == "leaky-bucket":
        waiting = max(floor(oracle.arrival(limit, history.events)) - history.clock.now, 0)
        assert patient.allowed == (waiting <= patience)
        assert patient.allowed or patient.retry_after_us == waiting - patience
    else:
        assert patient.allowed == (plain.retry_after_us <= patience)
        assert patient.delay_us == (plain.retry_after_us if patient.allowed else 0)
        assert patient.allowed or patient.retry_after_us == plain.retry_after_us - patience
