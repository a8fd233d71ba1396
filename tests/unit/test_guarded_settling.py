"""Decisions made before, in and after an outage, settled where they were charged."""

from tests.unit.faulty import UNKNOWN, Make


def test_a_degraded_decision_is_settled_here_and_in_what_is_owed(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    decision = subject.hit("a", "10/hour", cost=6)
    settled = subject.settle(decision, 2)
    assert settled.degraded
    assert settled.remaining == 8
    more = subject.hit("b", "10/hour", cost=1)
    assert subject.settle(more, 5).remaining == 5
    subject.come_back()
    assert subject.left("a", "10/hour") == 8
    assert subject.left("b", "10/hour") == 5


def test_a_degraded_decision_never_refunds_in_the_storage(make: Make) -> None:
    subject = make()
    subject.hit("a", "10/hour", cost=5)
    subject.open_breaker()
    decision = subject.hit("a", "10/hour", cost=5)
    subject.come_back()
    assert subject.left("a", "10/hour") == 0
    subject.faulty.calls.clear()
    assert subject.settle(decision, 0).remaining == 10, "as this process sees it"
    assert subject.left("a", "10/hour") == 0
    assert subject.faulty.calls == []


def test_a_refund_of_what_was_written_back_takes_nothing_off_what_is_owed_since(make: Make) -> None:
    subject = make()
    limit = "10/minute fixed-window"
    subject.open_breaker()
    written = subject.hit("a", limit, cost=4)
    subject.come_back()
    subject.clock.advance(120)
    subject.open_breaker()
    subject.hit("a", limit, cost=4)
    subject.settle(written, 0)
    subject.come_back()
    assert subject.left("a", limit) == 6


def test_a_refund_of_an_unknown_spend_takes_nothing_off_what_is_owed(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    unknown = subject.hit("a", "10/hour", cost=3)
    subject.open_breaker()
    subject.hit("a", "10/hour", cost=3)
    subject.settle(unknown, 0)
    subject.come_back()
    assert subject.left("a", "10/hour") == 7


def test_a_real_decision_is_settled_in_an_outage_by_what_is_charged_on_top_only(make: Make) -> None:
    subject = make()
    less, more = subject.hit("a", "10/hour", cost=5), subject.hit("b", "10/hour", cost=1)
    subject.open_breaker()
    assert subject.hit("a", "10/hour", cost=4)
    assert subject.settle(less, 0).remaining == 6, "what was spent here is not what is given back"
    assert subject.settle(more, 4).remaining == 7
    subject.come_back()
    assert subject.left("a", "10/hour") == 1
    assert subject.left("b", "10/hour") == 6


def test_a_real_decision_is_settled_in_the_storage_while_it_is_there(make: Make) -> None:
    subject = make()
    decision = subject.hit("a", "10/hour", cost=5)
    assert subject.settle(decision, 1).remaining == 9
