"""Listeners are told of strikes, of blocks that begin, and of limits that are nearly used up: each once."""

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import (
    AsyncLimiter,
    Check,
    Decision,
    InvalidLimit,
    Limit,
    Limiter,
    MemoryStorage,
    parse_limit,
    parse_limits,
)
from ratebound.arguments import group_of
from ratebound.clock import SECOND
from ratebound.decider import AsyncDecider, Decider
from ratebound.events import BlockBegan, Decided, Struck, Warned
from ratebound.limit import warning_at
from ratebound.outcome import DegradedRows
from ratebound.policy import Policy, PolicyError, Rule, read_policy
from ratebound.policy.schema import SCHEMA_PATH
from ratebound.settling import Settlement
from ratebound.share import read_share
from ratebound.telling import tell_decided
from ratebound.testing import FakeClock
from ratebound.web.route_limit import RouteLimit
from tests.policy.gates import decide, gate_of, request

GUARDED = "1/hour as login; 2 strikes/hour block 5 minutes then 1 hour as guessing"


class Heard:
    """A listener that keeps what it is told, but for decisions."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, Struck | BlockBegan | Warned):
            self.events.append(event)

    def take(self) -> list[str]:
        """What was heard since the last call."""
        names = [type(event).__name__ for event in self.events]
        self.events = []
        return names


@pytest.fixture
def heard() -> Heard:
    return Heard()


def limiter_of(text: Any, clock: FakeClock, heard: Heard, **options: Any) -> Limiter:
    return Limiter(text, storage=MemoryStorage(clock=clock), listeners=[heard], **options)


def test_strikes_and_the_block_that_they_begin_are_told(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of(GUARDED, clock, heard)
    assert limiter.hit("client")
    assert heard.take() == []
    limiter.hit("client")
    (struck,) = heard.events
    assert (struck.limit.name, struck.key, struck.remaining) == ("guessing", "client", 1)
    assert heard.take() == ["Struck"]
    limiter.hit("client")
    assert heard.take() == [], "denials within one second are one strike"
    clock.now += SECOND
    limiter.hit("client")
    _, began = heard.events
    assert (began.limit.name, began.key, began.seconds) == ("guessing", "client", 300.0)
    assert heard.take() == ["Struck", "BlockBegan"]
    clock.now += SECOND
    limiter.hit("client")
    assert heard.take() == [], "a blocked client gets no strikes"


def test_the_key_is_not_in_the_text_of_an_event(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of(Limit(1, SECOND, warn=1.0), clock, heard)
    limiter.hit("alice@example.org")
    guarded = limiter_of(GUARDED, clock, heard)
    for _ in range(3):
        guarded.hit("alice@example.org")
        clock.now += SECOND
    assert heard.events
    assert "alice" not in repr(heard.events)


def test_a_penalty_that_two_checks_share_is_told_once(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("1/minute", clock, heard)
    first = [parse_limit("1/hour as one"), parse_limit("1 strike/hour block 5 minutes as guessing")]
    second = [parse_limit("1/day as two"), first[1]]
    checks = [Check("client", first), Check("client", second)]
    assert limiter.check(checks)
    limiter.check(checks)
    assert heard.take() == ["Struck", "BlockBegan"]


def test_the_event_names_the_key_that_was_struck(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("1/minute", clock, heard)
    penalty = parse_limit("3 strikes/hour block 5 minutes as guessing")
    checks = [Check("wide", [parse_limit("9/hour"), penalty]), Check("narrow", [parse_limit("1/hour"), penalty])]
    limiter.check(checks)
    limiter.check(checks)
    assert [event.key for event in heard.events] == ["narrow"]


def test_a_result_that_is_a_strike_is_told(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("9/hour as login; 1 strike/hour block 5 minutes as guessing", clock, heard)
    decision = limiter.hit("client")
    assert heard.take() == []
    limiter.settle(decision, cost=1, strike=True)
    assert heard.take() == ["Struck", "BlockBegan"]


def test_results_that_are_settled_together_are_told(clock: FakeClock, heard: Heard) -> None:
    text = "2/hour as login; 1 strike/hour block 5 minutes as guessing"
    limits = warning_at(tuple(parse_limits(text)), 0.5)
    decider = Decider(MemoryStorage(clock=clock), listeners=[heard])
    decisions = [decider.decide(group_of(key, limits, 1)) for key in ("one", "other")]
    heard.take()
    decider.settle_each([Settlement(decisions[0], [1], [True]), Settlement(decisions[1], [1], [False])])
    assert [event.key for event in heard.events] == ["one", "one"]
    assert heard.take() == ["Struck", "BlockBegan"]

    async def main() -> None:
        decider = AsyncDecider(MemoryStorage(clock=clock), listeners=[heard])
        decision = await decider.decide(group_of("one", limits, 1))
        heard.take()
        await decider.settle_each([Settlement(decision, [1], [True])])
        assert heard.take() == ["Struck", "BlockBegan"]

    asyncio.run(main())


def test_tasks_are_told_the_same(clock: FakeClock, heard: Heard) -> None:
    text = "2/hour as login; 1 strike/hour block 5 minutes"

    async def main() -> None:
        limiter = AsyncLimiter(text, storage=MemoryStorage(clock=clock), listeners=[heard], warn="50%")
        decision = await limiter.hit("client")
        assert heard.take() == ["Warned"]
        await limiter.settle(decision, cost=1, strike=True)
        assert heard.take() == ["Struck", "BlockBegan"]

    asyncio.run(main())


def test_a_strike_is_told_after_its_decision(clock: FakeClock) -> None:
    told: list[str] = []
    limiter = Limiter(
        GUARDED, storage=MemoryStorage(clock=clock), listeners=[lambda event: told.append(type(event).__name__)]
    )
    limiter.hit("client")
    limiter.hit("client")
    assert told == ["Decided", "Decided", "Struck"]


def test_the_rules_of_a_policy_tell_of_strikes(clock: FakeClock, heard: Heard) -> None:
    gate = gate_of(Policy(rules=[Rule("login", "1/hour; 1 strike/hour block 5 minutes")]), clock, listeners=[heard])
    decide(gate, request())
    assert not decide(gate, request())
    assert heard.take() == ["Struck", "BlockBegan"]


# warn


def crossings(limiter: Limiter, heard: Heard, costs: list[int]) -> list[bool]:
    found = []
    for cost in costs:
        limiter.hit("client", cost=cost)
        found.append(bool(heard.take()))
    return found


@pytest.mark.parametrize(
    "text",
    ["10/hour sliding-log", "10/hour fixed-window", "10/hour burst 10", "10/hour sliding-counter", "10/calendar-day"],
)
def test_a_limit_warns_once_when_its_share_is_reached(text: str, clock: FakeClock, heard: Heard) -> None:
    clock.now = 1_700_000_000 * SECOND
    limiter = limiter_of(text, clock, heard, warn="80%")
    assert crossings(limiter, heard, [1] * 12) == [False] * 7 + [True] + [False] * 4
    limiter.reset("client")
    assert crossings(limiter, heard, [5, 5, 1]) == [False, True, False]
    limiter.reset("client")
    assert crossings(limiter, heard, [11]) == [False], "a denial takes nothing"


def test_a_limit_warns_again_when_it_is_crossed_again(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/second burst 10", clock, heard, warn=0.5)
    assert crossings(limiter, heard, [5, 1]) == [True, False]
    clock.now += SECOND
    assert crossings(limiter, heard, [4, 1]) == [False, True]


def test_all_of_a_limit_may_be_the_share(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("3/hour", clock, heard, warn="100%")
    assert crossings(limiter, heard, [1] * 5) == [False, False, True, False, False]


def test_a_metered_quota_warns_once_and_not_above_it(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("3/calendar-day over allow", clock, heard, warn="100%")
    assert crossings(limiter, heard, [2, 2, 1, 5]) == [False, True, False, False]


def test_only_a_new_value_crosses(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("2 distinct account/hour", clock, heard, warn="50%")
    found = []
    for account in "aabba":
        limiter.hit("client", values={"account": account})
        found.append(bool(heard.take()))
    assert found == [True, False, False, False, False]
    full = limiter_of("2 distinct account/hour", clock, heard, warn="100%")
    for account in "aabbca":
        full.hit("client", values={"account": account})
        found.append(bool(heard.take()))
    assert found[5:] == [False, False, True, False, False, False]


def test_slots_warn_when_they_are_taken(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("2 concurrent", clock, heard, warn="100%")
    assert crossings(limiter, heard, [1, 1, 1]) == [False, True, False]
    half = limiter_of("4 concurrent", clock, heard, warn="50%")
    assert crossings(half, heard, [1, 1, 1]) == [False, True, False]


def test_a_settlement_crosses_too(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/hour sliding-log", clock, heard, warn="80%")
    limiter.settle(limiter.hit("client"), cost=9)
    (warned,) = heard.events
    assert (warned.remaining, warned.limit.count) == (1, 10)
    assert heard.take() == ["Warned"]
    limiter.settle(limiter.hit("client"), cost=0)
    assert heard.take() == []


def test_a_settlement_far_above_a_limit_that_was_crossed_before_is_no_crossing(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/hour fixed-window", clock, heard, warn="80%")
    limiter.hit("client", cost=9)
    assert heard.take() == ["Warned"]
    limiter.settle(limiter.hit("client"), cost=50)
    assert heard.take() == []


def test_a_settlement_that_leaves_more_than_the_share_warns_of_nothing(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/hour sliding-log", clock, heard, warn="80%")
    limiter.settle(limiter.hit("client"), cost=7)
    assert heard.take() == []


def test_a_settlement_crosses_again_what_has_come_back_since_its_decision(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/second burst 10", clock, heard, warn="80%")
    decision = limiter.hit("client", cost=9)
    assert heard.take() == ["Warned"]
    clock.now += SECOND
    limiter.settle(decision, cost=18)
    assert heard.take() == ["Warned"]


def test_a_decision_without_the_storage_warns_of_nothing(clock: FakeClock, heard: Heard) -> None:
    limiter = Limiter("1/hour", storage=MemoryStorage(clock=clock), warn="50%")
    decision = limiter.hit("client")
    tell_decided((heard,), decision, 0.1)
    assert heard.take() == ["Warned"]
    tell_decided((heard,), Decision(decision.asks, DegradedRows(decision.rows, "down")), 0.1)
    assert heard.take() == []


def test_a_waiter_warns_once(clock: FakeClock, heard: Heard) -> None:
    limiter = Limiter(
        "10/second burst 2", storage=MemoryStorage(clock=clock), listeners=[heard], warn="100%", sleep=clock.sleep
    )
    for expected in (False, True, False, False):
        limiter.wait("client", timeout=1)
        assert bool(heard.take()) is expected


@given(st.integers(1, 40), st.integers(1, 100), st.lists(st.integers(1, 9), max_size=30))
def test_one_warning_for_each_crossing(count: int, percent: int, costs: list[int]) -> None:
    heard = Heard()
    limiter = limiter_of(f"{count}/hour fixed-window", FakeClock(), heard, warn=f"{percent}%")
    used = 0
    for cost in costs:
        after = used + cost if limiter.hit("client", cost=cost) else used
        assert bool(heard.take()) is (used * 100 < percent * count <= after * 100)
        used = after


def warned_rules(text: str) -> Iterator[Limit]:
    for rule in read_policy(text, environ={}).rules:
        for plan in rule.plans.values():
            yield from plan if isinstance(plan, tuple) else ()


def test_a_rule_warns(clock: FakeClock, heard: Heard) -> None:
    text = "rules: [{name: api, limits: '4/minute; 2 strikes/hour block 5 minutes', warn: 50%}]"
    assert [limit.warn for limit in warned_rules(text)] == [0.5, 0.0], "a penalty tells its strikes"
    gate = gate_of(text, clock, listeners=[heard])
    found = []
    for _ in range(4):
        assert decide(gate, request())
        found.append(bool(heard.take()))
    assert found == [False, True, False, False]


def test_shadows_and_candidates_warn_of_nothing(clock: FakeClock, heard: Heard) -> None:
    rules = [
        Rule("api", "9/minute", candidate="1/minute", warn="100%"),
        Rule("shadow", "1/minute", mode="shadow", warn="100%"),
    ]
    gate = gate_of(Policy(rules=rules), clock, listeners=[heard])
    decide(gate, request())
    assert heard.take() == []


@pytest.mark.parametrize(
    "given", ["80", "0%", "101%", "80 percent", 80, 0, 0.0, 1.5, -0.5, True, [], float("nan"), "%"]
)
def test_a_share_that_cannot_be_read_says_what_to_write(given: object) -> None:
    with pytest.raises(ValueError, match="'80%'"):
        read_share(given)
    with pytest.raises(PolicyError, match="warn.*'80%'"):
        Rule("api", "4/minute", warn=given)
    with pytest.raises(InvalidLimit, match="warn.*'80%'"):
        Limiter("4/minute", warn=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", ["unlimited", "deny", "2 strikes/hour block 5 minutes"])
def test_a_rule_that_has_nothing_to_warn_of_is_refused(limits: str) -> None:
    with pytest.raises(PolicyError, match=r"warn: .*has no limit"):
        Rule("api", limits, warn="80%")


def test_shares_are_read() -> None:
    assert [read_share(given) for given in ("80%", " 7.5 % ", "100%", 0.8, 1.0)] == [0.8, 0.075, 1.0, 0.8, 1.0]


def test_a_limit_keeps_its_warning_when_it_is_copied_and_is_equal_to_one_without() -> None:
    limit = Limit(10, SECOND, warn=0.8)
    assert pickle.loads(pickle.dumps(limit)).warn == copy.copy(limit).warn == 0.8
    assert limit == Limit(10, SECOND)
    with pytest.raises(InvalidLimit, match="penalties"):
        Limit(1, SECOND, algorithm="penalty", blocks_us=(SECOND,), warn=0.8)


def test_limits_that_are_set_anew_warn_too(clock: FakeClock, heard: Heard) -> None:
    limiter = limiter_of("10/hour", clock, heard, warn="100%")
    limiter.limits = parse_limit("1/hour")
    limiter.hit("client")
    assert heard.take() == ["Warned"]


def test_a_plain_decision_tells_only_of_itself(clock: FakeClock) -> None:
    told: list[Any] = []
    limiter = Limiter("1/hour", storage=MemoryStorage(clock=clock), listeners=[told.append])
    limiter.hit("client")
    limiter.hit("client")
    assert [type(event) for event in told] == [Decided, Decided]


def test_the_limit_of_an_endpoint_warns() -> None:
    assert RouteLimit(limits="5/minute", warn="80%").rule("endpoint").warn == 0.8
    with pytest.raises(ValueError, match="warn.*'80%'"):
        RouteLimit(limits="5/minute", warn="80")


def test_limits_that_cannot_be_read_say_nothing_of_warn() -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy("rules: [{name: a, limits: 3 per fortnight, warn: 80%}]", environ={})
    assert [problem.place for problem in caught.value.problems] == [("rules", 0, "limits")]


@pytest.mark.parametrize(
    ("value", "is_valid"), [("80%", True), (" 7.5 %", True), (0.8, True), ("80", False), (80, False)]
)
def test_the_schema_knows_warn(value: object, is_valid: bool) -> None:
    document = {"rules": [{"name": "a", "limits": "3/minute", "warn": value}]}
    assert jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).is_valid(document) is is_valid
