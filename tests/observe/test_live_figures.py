"""Live figures of one process: what they count, how they name clients, and what a snapshot holds."""

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ratebound import Limiter, StorageError
from ratebound.events import (
    BlockBegan,
    Called,
    Decided,
    Degraded,
    Event,
    PressureChanged,
    Recovered,
    RequestShed,
    Shadowed,
)
from ratebound.notation import parse_limits
from ratebound.observe.decision_counts import MOST_RULES, DecisionCounts
from ratebound.observe.figures_snapshot import BUCKETS, MAX_BYTES, read_snapshot, written_snapshot
from ratebound.observe.figures_view import FiguresView
from ratebound.observe.live_figures import FOLDED, LiveFigures
from ratebound.observe.prometheus import PrometheusListener
from ratebound.policy import Gate, RequestView, read_policy
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import refusal, told, without_storage
from tests.policy.gates import request
from tests.zones import fresh_zone

LIMITS = [
    "3/minute",
    "5/minute burst 2; 9/hour",
    "2 concurrent",
    "4/minute; 3 strikes/hour block 5 minutes",
    "6/minute leaky-bucket burst 2",
    "3/hour fixed-window over allow",
]
RULES: dict[str, Any] = {
    "penalties": {"guessing": {"after": "1 strike/hour", "block": "5 minutes"}},
    "rules": [
        {"name": "login", "match": {"paths": ["/login"]}, "by": "address", "limits": "2/hour", "penalty": "guessing"},
        {"name": "search", "match": {"paths": ["/search"]}, "by": "address", "limits": "5/hour", "candidate": "2/hour"},
        {"name": "all", "by": "address", "limits": "100/minute; 1000/hour"},
    ],
}


def traffic(clock: FakeClock, many: int = 600) -> list[Event]:
    """Return the events of random requests to all kinds of limits, some of them without the storage."""
    chosen, storage = random.Random(7), MemoryStorage(clock=clock)
    events: list[Event] = []
    limiters = [Limiter(text, storage=storage, listeners=[events.append]) for text in LIMITS]
    for _ in range(many):
        chosen.choice(limiters).hit(chosen.choice("abc"))
        clock.advance(chosen.random() * 5)
    decided = [event for event in events if isinstance(event, Decided)]
    events += [told(without_storage(event.decision)) for event in decided[:50]]
    events += [told(without_storage(event.decision, closed=True)) for event in decided[50:100]]
    return events


def test_every_decision_is_counted_once(clock: FakeClock) -> None:
    figures, events = LiveFigures(clock=clock), traffic(clock)
    for event in events:
        figures(event)
    decisions = [event.decision for event in events if isinstance(event, Decided)]
    own = figures.own()
    assert own["allowed"] == sum(decision.allowed for decision in decisions)
    assert own["denied"] == sum(not decision.allowed for decision in decisions)
    assert own["degraded"] == 100
    assert sum(own["seconds"]) == len(decisions)
    assert sum(row[1] for row in own["rules"].values()) == own["denied"]


def test_a_rule_counts_each_decision_in_which_it_took_part(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[figures])
    for _ in range(3):
        gate.decide(request("/other"))
        gate.decide(request("/search"))
    assert figures.own()["rules"] == {"all": [6, 0], "search": [3, 0]}


def test_a_denial_by_a_penalty_is_one_of_its_rule(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[figures])
    for _ in range(6):
        gate.decide(request("/login"))
        clock.advance(2)
    own = figures.own()
    assert own["rules"]["login"] == [2, 4]
    assert set(own["rules"]) == {"login", "all"}
    (client, limit, seconds) = own["penalized"][0]
    assert (limit, len(own["penalized"])) == ("guessing", 1)
    assert 280 < seconds <= 300
    assert client == own["top"][0][0]


def test_the_used_share_is_told_for_each_limit(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[figures])
    gate.decide(request("/login"))
    gate.decide(request("/login"))
    rule, total, many = figures.own()["used"]["login/hour"]
    assert (rule, many) == ("login", 2)
    assert total == pytest.approx(1.5)


def test_limits_of_callers_leave_room_for_the_rules_of_the_policy(clock: FakeClock) -> None:
    figures, storage = LiveFigures(clock=clock), MemoryStorage(clock=clock)
    for count in range(1, 400):
        Limiter(f"{count}/minute", storage=storage, listeners=[figures]).hit("a")
    Gate(read_policy(RULES), storage=storage, listeners=[figures]).decide(request("/search"))
    rules = figures.own()["rules"]
    assert len(rules) <= MOST_RULES + 1
    assert rules["search"] == rules["all"] == [1, 0]
    assert rules["other"][0] > 300
    assert rules["1/minute"] == [1, 0]


def test_counts_that_are_shared_with_metrics_are_the_same_and_not_twice(clock: FakeClock) -> None:
    events = traffic(clock)
    alone, registry = LiveFigures(clock=clock), CollectorRegistry()
    prometheus = PrometheusListener(registry)
    counts = DecisionCounts(prometheus)
    beside = LiveFigures(counts, clock=clock)
    for event in events:
        alone(event)
        counts(event)
    one, two = dict(alone.own()), dict(beside.own())
    for name in ("run", "ticks", "top", "penalized"):
        del one[name], two[name]
    assert one == two
    assert counts.logs
    assert not alone.counts.logs


def test_threads_lose_no_count(clock: FakeClock) -> None:
    figures = LiveFigures()
    limiter = limiter_of("1/hour", clock)
    allowed, denied = told(limiter.hit("a")), told(limiter.hit("a"))
    called = Called("", 0.001, None)

    def work() -> None:
        for _ in range(5_000):
            figures(allowed)
            figures(denied)
            figures(called)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = figures.own()
    while figures._keys:
        own = figures.own()
    assert (own["allowed"], own["denied"], own["nodes"]["storage"][1]) == (20_000, 20_000, 20_000)
    assert own["top"][0][1:] == [20_000, 0]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_begins_at_zero_with_a_name_of_its_own(clock: FakeClock) -> None:
    figures, denied = LiveFigures(clock=clock), told(refusal(limiter_of("1/hour", clock), "k"))
    figures(denied)
    parent = figures.own()
    child = os.fork()
    if not child:
        signal.alarm(10)
        own = figures.own()
        is_empty = (own["denied"], own["rules"], own["top"]) == (0, {}, [])
        figures(denied)
        is_own = own["run"] != parent["run"] and own["name"] != parent["name"]
        os._exit(0 if is_empty and is_own and figures.own()["denied"] == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert figures.own()["denied"] == 1


def test_clients_are_digests_and_only_this_process_can_name_them(clock: FakeClock) -> None:
    one, two = LiveFigures(clock=clock), LiveFigures(clock=clock)
    long = "x" * 300
    for key in ("user:secret-42", long, "two\udc80"):
        for figures in (one, two):
            figures(told(refusal(limiter_of("1/hour", clock), key)))
    assert "secret" not in json.dumps(one.own())
    assert {row[0] for row in one.own()["top"]}.isdisjoint(row[0] for row in two.own()["top"])
    one.use_key(b"k" * 32)
    two.use_key(b"k" * 32)
    digests = [row[0] for row in one.own()["top"]]
    assert digests == [row[0] for row in two.own()["top"]]
    names = one.names([*digests, "0" * 16])
    assert set(names) == set(digests)
    assert {"user:secret-42", "two\udc80"} < set(names.values())
    assert all(len(name) < 256 for name in names.values())


def test_the_most_denied_of_many_clients_are_found(clock: FakeClock) -> None:
    figures, limiter = LiveFigures(clock=clock), limiter_of("1/hour", clock)
    expected: Counter[str] = Counter()
    for number in range(60):
        denied = told(refusal(limiter, f"client-{number}"))
        for _ in range(number * 3):
            figures(denied)
            expected[f"client-{number}"] += 1
    assert expected.total() > FOLDED
    names = figures.names(row[0] for row in figures.own()["top"])
    shown = {names[digest]: (denials, error) for digest, denials, error in figures.own()["top"]}
    assert shown == {client: (many, 0) for client, many in expected.most_common(50)}


def test_denials_that_clients_did_not_cause_name_nobody(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    denied = refusal(limiter_of("1/hour", clock), "k")
    figures(told(without_storage(denied, closed=True)))
    assert figures.own()["top"] == []
    figures(told(without_storage(denied)))
    assert figures.own()["top"][0][1:] == [1, 0]


def test_nodes_tell_calls_errors_and_if_they_are_out_of_reach() -> None:
    figures = LiveFigures()
    figures(Called("a:1", 0.002, None))
    figures(Called("a:1", 0.2, StorageError("gone")))
    figures(Degraded("a:1", "gone"))
    is_open, calls, errors, seconds = figures.own()["nodes"]["a:1"]
    assert (is_open, calls, errors, sum(seconds), len(seconds)) == (True, 2, 1, 2, BUCKETS)
    figures(Recovered("a:1", 1.0, 0))
    assert figures.own()["nodes"]["a:1"][0] is False
    for number in range(100):
        figures(Called(f"b:{number}", 0.001, None))
    assert len(figures.own()["nodes"]) == 21


def test_overload_is_told_by_factors_and_requests_that_were_shed() -> None:
    figures = LiveFigures()
    figures(PressureChanged({"low": 0.5, "normal": 1.0}))
    figures(RequestShed(7))
    own = figures.own()
    assert own["factors"] == {"low": 0.5, "normal": 1.0}
    assert (own["shed"], own["denied"]) == (1, 0)


def test_slots_are_counted_while_they_are_held() -> None:
    figures = LiveFigures()
    limiter = Limiter("3 concurrent as export-figures")
    with limiter.acquire("a"), limiter.acquire("b"):
        assert figures.own()["slots"]["export-figures"] == 2
    assert "export-figures" not in figures.own()["slots"]


def test_a_candidate_stands_beside_what_its_rule_decided_since(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[figures])
    figures.watch(gate)
    for _ in range(10):
        gate.decide(request("/search"))
    allowed, denied, live_allowed, live_denied, since = figures.own()["candidates"]["search"]
    assert (allowed, denied, live_allowed, live_denied) == (2, 8, 5, 5)
    assert since > 1e9


@pytest.mark.parametrize(("changes", "expected"), [({"candidate": "3/hour"}, {}), ({}, {"search": 2})])
def test_a_shadow_is_counted_anew_only_if_its_rule_has_changed(
    clock: FakeClock, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    figures = LiveFigures(clock=clock)
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[figures])
    figures.watch(gate)
    for _ in range(4):
        gate.decide(request("/search"))
    login, search, rest = RULES["rules"]
    gate.use(read_policy({**RULES, "rules": [login, {**search, **changes}, {**rest, "limits": "99/minute"}]}))
    assert {rule: row[0] for rule, row in figures.own()["candidates"].items()} == expected


def test_the_number_of_shadows_is_bounded() -> None:
    figures = LiveFigures()
    for number in range(500):
        figures(Shadowed(f"rule-{number}", False, True))
    assert len(figures.own()["shadows"]) == MOST_RULES


def test_the_size_of_memory_is_told_and_that_of_a_fallback_is_not(clock: FakeClock, redis_url_server: Any) -> None:
    with fresh_zone() as zone:
        cases: list[tuple[Any, bool | None]] = [
            (MemoryStorage(max_keys=50), False),
            (zone, True),
            (redis_url_server.url, None),
        ]
        for storage, expected in cases:
            figures = LiveFigures(clock=clock)
            with Gate(read_policy(RULES), storage=storage) as gate:
                figures.watch(gate)
                keys = figures.own()["keys"]
            assert (None if keys is None else keys[2]) is expected


def test_a_snapshot_stays_small_whatever_its_names_are() -> None:
    figures, limiter = LiveFigures(), Limiter("1/hour")
    for number in range(300):
        text = f"1/hour as {'r' * 30}{number}/{'l' * 25}"
        for _ in range(2):
            figures(told(Limiter(parse_limits(text)).hit("a")))
        figures(Shadowed(f"{'s' * 30}{number}", number % 2 == 0, True))
        figures(told(refusal(limiter, f"client-{number}")))
        figures(Called(f"{'n' * 200}{number}", 0.001, None))
    content = written_snapshot(figures.own())
    assert len(content) <= MAX_BYTES
    found = read_snapshot(content)
    assert found is not None
    assert found["allowed"] == 600


def mistakes() -> list[Callable[[dict[str, Any]], object]]:
    return [
        lambda snapshot: snapshot.pop("run"),
        lambda snapshot: snapshot.update(run=7),
        lambda snapshot: snapshot.update(name="x" * 1000),
        lambda snapshot: snapshot.update(allowed=-1),
        lambda snapshot: snapshot.update(allowed=True),
        lambda snapshot: snapshot.update(ticks=float("nan")),
        lambda snapshot: snapshot.update(ticks=10**400),
        lambda snapshot: snapshot.update(seconds=[1, 2]),
        lambda snapshot: snapshot.update(seconds="a"),
        lambda snapshot: snapshot.update(rules=[]),
        lambda snapshot: snapshot.update(rules={"a": [1]}),
        lambda snapshot: snapshot.update(rules={"a": [1, "<script>"]}),
        lambda snapshot: snapshot.update(keys=[1, 2]),
        lambda snapshot: snapshot.update(top=[["a", 1.5, 0]]),
        lambda snapshot: snapshot.update(top={}),
        lambda snapshot: snapshot.update(nodes={"a": [True, 1, 1, None]}),
    ]


@pytest.mark.parametrize("mistake", mistakes())
def test_a_snapshot_that_somebody_else_wrote_is_not_used(mistake: Callable[[dict[str, Any]], object]) -> None:
    whole: dict[str, Any] = json.loads(written_snapshot(LiveFigures().own()))
    assert read_snapshot(json.dumps(whole).encode()) is not None
    mistake(whole)
    assert read_snapshot(json.dumps(whole).encode()) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_no_snapshot(content: bytes) -> None:
    assert read_snapshot(content) is None


def test_a_block_that_begins_is_shown_before_the_next_denial(clock: FakeClock) -> None:
    figures = LiveFigures(clock=clock)
    events: list[Event] = []
    gate = Gate(read_policy(RULES), storage=MemoryStorage(clock=clock), listeners=[events.append])
    while not any(isinstance(event, BlockBegan) for event in events):
        gate.decide(request("/login"))
    for event in events:
        figures(event)
    assert [row[1] for row in figures.own()["penalized"]] == ["guessing"]


def test_clients_that_operators_block_are_marked_among_the_most_denied(clock: FakeClock) -> None:
    figures = LiveFigures()
    rules = [
        {"name": "address", "limits": "1/minute", "by": "address"},
        {"name": "user", "limits": "1/minute", "by": "user"},
    ]
    gate = Gate(read_policy({"rules": rules}), storage=MemoryStorage(clock=clock), listeners=[figures.counts])
    figures.watch(gate)
    peers = ["203.0.113.7", "198.51.100.1", "192.0.2.1", "2001:db8:0:1::7", "2001:db8:0:2::7"]
    for _ in range(2):
        for peer in peers:
            gate.decide(RequestView("GET", "/", peer=peer))
        gate.decide(RequestView("GET", "/", peer="192.0.2.99", user="ann"))
    assert figures.own()["blocked"] == []

    for client in ("203.0.113.7", "198.51.100.0/24", "user:ann", "2001:db8:0:1::/64", "2001:db8:0:2::/128"):
        gate.block(client, 60)
    own = figures.own()
    names = figures.names(own["blocked"])
    expected = {"address:203.0.113.7", "address:198.51.100.1", "user:ann", "address:2001:db8:0:1::/64"}
    assert set(names.values()) == expected, "a block of one address is none of its whole /64"
    view = FiguresView()
    view.take([own], [], "")
    assert {one["client"] for one in view.view()["top"] if one["blocked"]} == set(own["blocked"])

    clock.advance(61)
    assert figures.own()["blocked"] == []
    read = read_snapshot(written_snapshot(own))
    assert read is not None
    assert read["blocked"] == own["blocked"]
