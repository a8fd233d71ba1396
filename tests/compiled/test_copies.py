"""Decisions, limits and events can be pickled and copied, and the copies read the same."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from ratebound import Check, Decision, Limiter, MemoryStorage, Outcome, RateLimited, parse_limit
from ratebound.events import Decided
from ratebound.outcome import DegradedRows
from ratebound.rate_limited import Patience
from ratebound.testing import FakeClock
from tests.compiled.history import read


def pickled(protocol: int) -> Callable[[Any], Any]:
    return lambda value: pickle.loads(pickle.dumps(value, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": pickled(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
}


def decisions() -> dict[str, Decision]:
    """Return a decision of each kind."""
    storage = MemoryStorage(clock=FakeClock())
    one = Limiter("5/minute", storage=storage)
    several = Limiter("5/minute; 20/hour burst 30; 40/day leaky-bucket", storage=storage)
    keys = [Check("a", parse_limit("3/hour")), Check("b", [parse_limit("3/day"), parse_limit("9/year")], 2)]
    settled = several.hit("settled")
    abuse = Limiter("2 distinct account/hour; 1 strike/hour block 1 hour", storage=storage)
    hit = one.hit("a")
    return {
        "one limit": hit,
        "several limits": several.hit("b"),
        "several keys": one.check(keys),
        "one limit denied": one.hit("a", cost=5),
        "one limit never": one.hit("a", cost=6),
        "several limits denied": several.hit("b", cost=5),
        "several keys denied": [one.check(keys) for _ in range(3)][-1],
        "a value": abuse.hit("c", values={"account": "alice"}),
        "a known value": abuse.hit("c", values={"account": "alice"}),
        "a value that blocks": [abuse.hit("c", values={"account": name}) for name in "xy"][-1],
        "blocked": abuse.hit("c", values={"account": "alice"}),
        "peeked": several.peek("b"),
        "as it stands when settled": several.settle(settled, cost=3),
        "settled": settled,
        "degraded": Decision(hit.asks, DegradedRows(hit.rows, "the storage is away", granted=7)),
        "closed": Decision(hit.asks, DegradedRows(one.hit("a", cost=9).rows, "the storage is away", closed=True)),
    }


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", decisions())
def test_a_copy_of_a_decision_reads_the_same(kind: str, how: str) -> None:
    decision = decisions()[kind]
    copied = COPIES[how](decision)
    assert isinstance(copied, Decision)
    assert read(copied) == read(decision)
    assert type(copied.rows) is type(decision.rows)
    if isinstance(decision.rows, DegradedRows):
        assert vars(copied.rows) == vars(decision.rows)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_can_be_settled_in_its_place(how: str) -> None:
    limiter = Limiter("5/hour; 7/day", storage=MemoryStorage(clock=FakeClock()))
    copied = COPIES[how](limiter.hit("a", cost=4))
    assert limiter.settle(copied, cost=1).remaining == 4
    with pytest.raises(ValueError, match="has been already"):
        limiter.settle(copied, cost=0)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_takes_back_its_value_and_can_be_a_strike(how: str) -> None:
    text = "2 distinct account/hour; 1 strike/hour block 1 hour"
    limiter = Limiter(text, storage=MemoryStorage(clock=FakeClock()))
    copied = COPIES[how](limiter.hit("a", values={"account": "alice"}))
    limiter.settle(copied, cost=0)
    assert [usage.remaining for usage in limiter.usage("a")] == [2, 1]
    copied = COPIES[how](limiter.hit("a", values={"account": "bob"}))
    settled = COPIES[how](limiter.settle(copied, cost=1, strike=True))
    assert (settled.allowed, settled.blocked) == (True, True)
    assert limiter.hit("a", values={"account": "bob"}).blocked


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", decisions())
def test_copies_of_what_carries_a_decision_read_the_same(kind: str, how: str) -> None:
    decision = decisions()[kind]
    error = RateLimited(decision, Patience("timeout", 1.0, 1_000_000))
    again = COPIES[how](error)
    assert (type(again), str(again), again.patience) == (RateLimited, str(error), error.patience)
    assert read(again.decision) == read(decision)
    event = COPIES[how](Decided(decision, 0.5))
    assert (type(event), event.seconds, read(event.decision)) == (Decided, 0.5, read(decision))
    assert COPIES[how](decision.outcomes) == decision.outcomes
    assert all(type(outcome) is Outcome for outcome in COPIES[how](decision.outcomes))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(
    "text", ["5/minute", "7/second burst 9 as api", "3/day leaky-bucket", "20000/hour sliding-log large"]
)
def test_a_copy_of_a_limit_is_equal(text: str, how: str) -> None:
    limit = parse_limit(text)
    copied = COPIES[how](limit)
    assert copied == limit
    assert (str(copied), copied.scope, hash(copied)) == (str(limit), limit.scope, hash(limit))
    assert copied.numbers.room_for(1) == limit.numbers.room_for(1)
    assert COPIES[how](Check("a", limit, 2)) == Check("a", limit, 2)
