"""What the ledger counts of a decision: its units, the denial, the overage, and what settling changes."""

import sys
import threading
import time
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Check, Decision, Limiter, MemoryStorage, parse_limit
from ratebound.events import Decided, Settled
from ratebound.ledger.usage_counts import MOST_RULES, OTHER, UsageCounts
from ratebound.limit import Limit
from ratebound.policy import Gate, Policy, Rule
from ratebound.testing import FakeClock
from tests.policy.gates import request
from tests.servers import free_port

HOUR = 3600 * 1_000_000
Sums = dict[tuple[str, str], tuple[int, int, int, int]]


def counting(**options: Any) -> UsageCounts:
    return UsageCounts(HOUR, **options)


def take(counts: UsageCounts) -> list[Any]:
    """Take what was counted, as a writer that writes it."""
    found: list[Any] = counts.take()
    counts.taken = {}
    return found


def sums_of(counts: UsageCounts) -> Sums:
    """Units, allowed, denied and overage by key and rule."""
    found: dict[tuple[str, str], list[int]] = {}
    for _, key, rule, _, *numbers in take(counts):
        sums = found.setdefault((key, rule), [0, 0, 0, 0])
        for place, number in enumerate(numbers):
            sums[place] += number
    return {name: (sums[0], sums[1], sums[2], sums[3]) for name, sums in found.items()}


def test_allowed_units_and_denials_are_counted_by_client_and_rule() -> None:
    counts = counting()
    limiter = Limiter("5/minute as search", listeners=[counts])
    for cost in (2, 3, 1, 1):
        limiter.hit("ann", cost=cost)
    limiter.hit("bob")
    assert sums_of(counts) == {("ann", "search"): (5, 2, 2, 0), ("bob", "search"): (1, 1, 0, 0)}
    assert sums_of(counts) == {}, "what was taken is not there again"


def test_a_limit_without_a_name_is_a_rule_by_itself() -> None:
    counts = counting()
    Limiter("5/minute", listeners=[counts]).hit("ann")
    assert sums_of(counts) == {("ann", "5/minute"): (1, 1, 0, 0)}


def test_several_limits_of_one_rule_are_one_row() -> None:
    counts = counting()
    limits = [parse_limit("5/minute as login/minute"), parse_limit("9/hour as login/hour")]
    Limiter(limits, listeners=[counts]).hit("ann", cost=2)
    assert sums_of(counts) == {("ann", "login"): (2, 1, 0, 0)}


def test_a_group_counts_each_key_and_a_denial_only_where_it_was_denied() -> None:
    counts = counting()
    limiter = Limiter("100/minute", listeners=[counts])
    tight, wide = parse_limit("1/minute as tight"), parse_limit("9/minute as wide")
    checks = [Check("ann", wide, cost=2), Check("team", tight)]
    assert limiter.check(checks).allowed
    assert not limiter.check(checks).allowed
    assert sums_of(counts) == {("ann", "wide"): (2, 1, 0, 0), ("team", "tight"): (1, 1, 1, 0)}


def test_one_limit_on_two_keys_is_denied_for_the_key_that_is_used_up() -> None:
    counts = counting()
    limiter = Limiter("1/minute as one", listeners=[counts])
    (limit,) = limiter.limits
    limiter.hit("bob")
    limiter.check([Check("ann", limit), Check("bob", limit)])
    assert sums_of(counts) == {("bob", "one"): (1, 1, 1, 0)}


def test_settling_changes_units_in_the_bucket_of_the_decision() -> None:
    counts, clock = counting(), FakeClock()
    limiter = Limiter("50/day", storage=MemoryStorage(clock=clock), listeners=[counts])
    decision = limiter.hit("ann", cost=10)
    at = clock.now // HOUR
    clock.advance(7200)
    limiter.settle(decision, cost=4)
    assert [(row[0], row[4], row[5]) for row in take(counts)] == [(at, 4, 1)]


def test_a_settlement_after_the_flush_is_a_negative_row() -> None:
    counts = counting()
    limiter = Limiter("50/day as d", listeners=[counts])
    decision = limiter.hit("ann", cost=10)
    take(counts)
    limiter.settle(decision, cost=0)
    assert sums_of(counts) == {("ann", "d"): (-10, 0, 0, 0)}


def test_a_reservation_counts_what_was_used_in_the_end() -> None:
    counts = counting()
    limiter = Limiter("50/day as d", listeners=[counts])
    with limiter.reserve("ann", cost=10) as reservation:
        reservation.commit(3)
    assert sums_of(counts) == {("ann", "d"): (3, 1, 0, 0)}


def test_overage_of_a_metered_quota_is_counted_and_settling_takes_it_back() -> None:
    counts = counting()
    limiter = Limiter("10/calendar-month over allow as q", listeners=[counts])
    first, second = limiter.hit("ann", cost=8), limiter.hit("ann", cost=5)
    assert sums_of(counts) == {("ann", "q"): (13, 2, 0, 3)}
    limiter.settle(second, cost=1)
    assert sums_of(counts) == {("ann", "q"): (-4, 0, 0, -3)}
    limiter.settle(first, cost=20)
    assert sums_of(counts) == {("ann", "q"): (12, 0, 0, 11)}


def test_peeks_are_not_counted() -> None:
    counts = counting()
    limiter = Limiter("5/minute", listeners=[counts])
    limiter.peek("ann")
    limiter.usage("ann")
    assert sums_of(counts) == {}


def test_decisions_without_the_storage_are_counted_but_nobody_is_billed_by_them() -> None:
    counts = counting()
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    with Limiter("2/calendar-day over allow as q", storage=nowhere, listeners=[counts], workers=2) as limiter:
        decisions = [limiter.hit("ann", cost=3) for _ in range(2)]
        assert all(decision.degraded for decision in decisions)
        assert abs(decisions[0].at / 1e6 - time.time()) < 3600, "in the bucket of today"
        limiter.settle(decisions[0], cost=1)
    assert sums_of(counts) == {("ann", "q"): (4, 2, 0, 0)}


def test_a_denial_because_the_storage_is_out_of_reach_is_counted() -> None:
    counts = counting()
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    with Limiter("2/minute as m", storage=nowhere, failure="closed", listeners=[counts]) as limiter:
        assert limiter.hit("ann").unavailable
    assert sums_of(counts) == {("ann", "m"): (0, 0, 1, 0)}


def test_rules_of_a_policy_are_counted_each_and_shadows_are_not() -> None:
    counts = counting()
    policy = Policy(
        rules=[Rule("all", "2/minute"), Rule("slow", "9/minute", cost=3), Rule("new", "1/minute", mode="shadow")]
    )
    with Gate(policy, storage="memory://", listeners=[counts]) as gate:
        verdicts = [gate.decide(request()) for _ in range(3)]
        gate.settle(verdicts[1], cost=[5, 1])
        gate.undo(verdicts[0])
    ((client, _), *_) = rows = sorted(sums_of(counts).items())
    assert {name[1]: numbers for name, numbers in rows} == {"all": (5, 2, 1, 0), "slow": (1, 2, 0, 0)}
    assert client[0] == "address:192.0.2.1"


def test_a_penalty_that_blocks_counts_for_its_rule() -> None:
    counts = counting()
    policy = {
        "penalties": {"guessing": {"after": "1 strikes/hour", "block": ["5 minutes"], "forget": "1 day"}},
        "rules": [{"name": "login", "limits": "1/minute", "by": "address", "penalty": "guessing"}],
    }
    with Gate(policy, storage="memory://", listeners=[counts]) as gate:
        assert [gate.decide(request()).allowed for _ in range(4)] == [True, False, False, False]
    assert {rule: numbers for (_, rule), numbers in sums_of(counts).items()} == {"login": (1, 1, 3, 0)}


def test_the_endpoint_of_a_request_is_counted_also_when_it_is_settled() -> None:
    counts = counting(endpoint_of=lambda view: f"{view.method} {view.path}")
    with Gate(Policy(rules=[Rule("all", "9/minute")]), storage="memory://", listeners=[counts]) as gate:
        verdict = gate.decide(request("/a", "POST"))
        gate.decide(request("/b"))
        gate.settle(verdict, cost=4)
    assert sorted((row[3], row[4]) for row in take(counts)) == [("GET /b", 1), ("POST /a", 4)]


def test_counts_are_bounded_and_no_unit_is_lost() -> None:
    wakes: list[bool] = []
    counts = counting(most=100, on_half_full=lambda: wakes.append(True))
    limiter = Limiter("9/minute as m", listeners=[counts])
    for number in range(500):
        limiter.hit(f"k{number}", cost=2)
    assert len(counts) == 101
    assert wakes == [True]
    found = sums_of(counts)
    assert found[OTHER, "m"] == (800, 400, 0, 0)
    assert sum(units for units, *_ in found.values()) == 1000


def test_endpoints_of_clients_that_are_counted_together_are_counted_together() -> None:
    counts = counting(most=2, endpoint_of=lambda request: request.path)
    limiter = Limiter("9/minute as m")
    for number in range(9):
        counts(Decided(limiter.hit(f"k{number}"), 0.0, request(f"/{number}")))
    assert [row[1:4] for row in take(counts)] == [("k0", "m", "/0"), ("k1", "m", "/1"), (OTHER, "m", OTHER)]


def test_names_of_rules_are_bounded() -> None:
    counts = counting()
    limiter = Limiter("1/minute", listeners=[counts])
    for number in range(1, MOST_RULES + 5):
        limiter.check(Check("k", Limit(number, 60_000_000, number, "fixed-window")))
    rules = {rule for _, rule in sums_of(counts)}
    assert len(rules) == MOST_RULES + 1
    assert OTHER in rules


def test_an_interrupted_take_returns_the_same_again() -> None:
    counts = counting()
    limiter = Limiter("9/minute as m", listeners=[counts])
    limiter.hit("ann")
    first = counts.take()
    limiter.hit("bob")
    assert counts.take() == first
    assert sums_of(counts) == {("ann", "m"): (1, 1, 0, 0)}
    assert sums_of(counts) == {("bob", "m"): (1, 1, 0, 0)}


def test_threads_lose_nothing_while_others_take() -> None:
    counts = counting()
    limiter = Limiter("1000000/day as d", listeners=[counts])
    taken: list[Any] = []
    over = threading.Event()

    def hit() -> None:
        for number in range(2000):
            limiter.hit(f"k{number % 7}")

    def take_all() -> None:
        while not over.is_set():
            taken.extend(take(counts))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=hit) for _ in range(4)]
        taker = threading.Thread(target=take_all)
        for thread in (taker, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        taker.join()
    finally:
        sys.setswitchinterval(interval)
    taken += take(counts)
    assert sum(row[4] for row in taken) == sum(row[5] for row in taken) == 8000


KEYS = st.sampled_from(["a", "b", "c"])
COSTS = st.integers(1, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hit"), KEYS, COSTS),
        st.tuples(
            st.just("group"), st.lists(st.tuples(KEYS, st.sampled_from(["x", "q"]), COSTS), min_size=1, max_size=3)
        ),
        st.tuples(st.just("settle"), st.integers(0, 30), st.integers(0, 9)),
        st.tuples(st.just("take")),
        st.tuples(st.just("tick"), st.integers(1, 5000)),
    ),
    max_size=60,
)


@given(STEPS)
def test_counts_equal_a_plain_oracle(steps: list[Any]) -> None:
    """The oracle reads the decisions that callers got, adds up by hand, and never looks at events."""
    limits = {"x": parse_limit("7/hour as x/hour"), "q": parse_limit("9/calendar-day over allow as q")}
    counts, clock = counting(), FakeClock()
    limiter = Limiter("5/hour as plain", storage=MemoryStorage(clock=clock), listeners=[counts])
    expected: Counter[tuple[int, str, str, str]] = Counter()
    found: Counter[tuple[int, str, str, str]] = Counter()
    open_decisions: list[Decision] = []

    def note(decision: Decision, asked: list[tuple[str, str, int]]) -> None:
        bucket = decision.at // HOUR
        if decision.allowed:
            open_decisions.append(decision)
            for (key, rule, cost), outcome in zip(asked, decision.outcomes, strict=True):
                expected[bucket, key, rule, "units"] += cost
                expected[bucket, key, rule, "allowed"] += 1
                expected[bucket, key, rule, "overage"] += outcome.part if rule == "q" else 0
        else:
            denying = [
                (outcome.retry_after_us or sys.maxsize, -place)
                for place, outcome in enumerate(decision.outcomes)
                if not outcome.allowed
            ]
            key, rule, _ = asked[-max(denying)[1]]
            expected[bucket, key, rule, "denied"] += 1

    def take_all() -> None:
        for bucket, key, rule, _, *numbers in take(counts):
            for name, number in zip(("units", "allowed", "denied", "overage"), numbers, strict=True):
                found[bucket, key, rule, name] += number

    for step in steps:
        if step[0] == "hit":
            note(limiter.hit(step[1], cost=step[2]), [(step[1], "plain", step[2])])
        elif step[0] == "group":
            note(limiter.check([Check(key, limits[rule], cost=cost) for key, rule, cost in step[1]]), step[1])
        elif step[0] == "settle" and open_decisions:
            decision = open_decisions.pop(step[1] % len(open_decisions))
            settled = limiter.settle(decision, cost=step[2])
            for (key, (limit,), charged, *_), outcome in zip(decision.asks, settled.outcomes, strict=True):
                rule = limit.name.partition("/")[0]
                expected[decision.at // HOUR, key, rule, "units"] += step[2] - charged
                expected[decision.at // HOUR, key, rule, "overage"] += outcome.part if rule == "q" else 0
        elif step[0] == "take":
            take_all()
        elif step[0] == "tick":
            clock.advance(step[1])
    take_all()
    assert +found == +expected
    assert -found == -expected


def test_an_event_says_nothing_of_the_request() -> None:
    heard: list[Any] = []
    with Gate(Policy(rules=[Rule("all", "9/minute")]), storage="memory://", listeners=[heard.append]) as gate:
        view = request("/secret-path")
        gate.settle(gate.decide(view), cost=2)
    decided = next(event for event in heard if isinstance(event, Decided))
    settled = next(event for event in heard if isinstance(event, Settled))
    assert decided.request is view
    assert "secret" not in repr(decided) + repr(settled)
    assert "192.0.2.1" not in repr(decided) + repr(settled)
    assert [ask[2] for ask in settled.decision.asks] == [1]
    assert [ask[2] for ask in settled.settled.asks] == [2]


def test_listeners_hear_that_an_undone_decision_costs_nothing() -> None:
    heard: list[Any] = []
    with Gate(Policy(rules=[Rule("all", "9/minute")]), storage="memory://", listeners=[heard.append]) as gate:
        gate.undo(gate.decide(request()))
    (settled,) = [event for event in heard if isinstance(event, Settled)]
    assert [ask[2] for ask in settled.settled.asks] == [0]


def test_settling_a_denied_decision_is_no_event() -> None:
    heard: list[Any] = []
    limiter = Limiter("1/minute", listeners=[heard.append])
    limiter.hit("a")
    limiter.settle(limiter.hit("a"), cost=5)
    assert not [event for event in heard if isinstance(event, Settled)]


def test_a_decision_that_no_ledger_has_counted_has_no_endpoint() -> None:
    decision = Limiter("1/minute").hit("a")
    assert decision.noted_endpoint() is None
    decision.note_endpoint("GET /")
    assert decision.noted_endpoint() == "GET /"


def test_two_ledgers_of_which_one_leaves_endpoints_out_do_not_disturb_each_other() -> None:
    by_endpoint, plain = counting(endpoint_of=lambda view: view.path), counting()
    policy = Policy(rules=[Rule("all", "9/minute")])
    with Gate(policy, storage="memory://", listeners=[by_endpoint, plain]) as gate:
        gate.settle(gate.decide(request("/a")), cost=4)
    assert [(row[3], row[4]) for row in take(by_endpoint)] == [("/a", 4)]
    assert [(row[3], row[4]) for row in take(plain)] == [("", 4)]
