"""What the fast path remembers of requests, and for which of them (its answers: tests/property/test_straight.py)."""

from collections import deque
from typing import Any

import pytest

from ratebound.policy import Gate, Match, Policy, RequestView, Rule
from ratebound.policy.match.path import Segments, spellings
from ratebound.policy.match.reading import Readings
from ratebound.policy.runtime import bounded_memo
from ratebound.policy.runtime.bounded_memo import BoundedMemo, remember
from ratebound.policy.runtime.fast_path import MAX_LENGTH, FastPath, MatchedRules, readings_of
from tests.policy.gates import decide, gate_of, request


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_memo, "_order", deque())


def line_of(gate: Gate) -> FastPath:
    return gate.current()._lines["late"]


def matched_by(gate: Gate, view: RequestView) -> MatchedRules:
    found = line_of(gate).find(view)
    assert found is not None
    return found


def test_what_is_remembered_longest_is_forgotten_first_over_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_memo, "MAX_KNOWN", 2)
    one: BoundedMemo[str, int] = BoundedMemo()
    other: BoundedMemo[str, int] = BoundedMemo()
    assert remember(one, "a", 1) == 1
    remember(other, "a", 2)
    assert (one, other) == ({"a": 1}, {"a": 2})
    remember(other, "b", 3)
    assert (one, other) == ({}, {"a": 2, "b": 3})
    remember(one, "c", 4)
    assert (one, other) == ({"c": 4}, {"b": 3})
    del other
    remember(one, "d", 5)
    assert one == {"c": 4, "d": 5}
    assert len(bounded_memo._order) == 2


def test_what_is_remembered_of_requests_is_bounded_over_all_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_memo, "MAX_KNOWN", 100)
    gates = [gate_of(Policy(rules=[Rule("a", "5/minute", match=Match(paths=["/a/{x}"]))])) for _ in range(4)]
    for number in range(50):
        for gate in gates:
            decide(gate, request(f"/a/{number}", peer=f"10.1.0.{number}"))
    tables = {id(table): table for held, _ in bounded_memo._order if (table := held()) is not None}
    assert len(bounded_memo._order) == 100
    assert sum(len(table) for table in tables.values()) <= 100
    assert decide(gates[0], request("/a/0", peer="10.1.0.0")).kind == "limited"
    assert decide(gates[0], request("/b", peer="10.1.0.0")).kind == "unmatched"


LONG = "/a/" + "x" * (MAX_LENGTH - 3)


@pytest.mark.parametrize(
    ("match", "view", "longer"),
    [
        (Match(paths=["/a/{x}"]), request(LONG), request(LONG + "x")),
        (Match(paths=["/a/{x}"], methods=["GET"]), request(LONG[:-3]), request(LONG[:-2])),
        (
            Match(paths=["/a/{x}"], hosts=["h.test"]),
            request(LONG[:-6], host="h.test"),
            request(LONG[:-5], host="h.test"),
        ),
        (Match(methods=["GET"]), request(LONG + "x"), request("/", "POST", headers={"x-method-override": "x" * 253})),
        (
            Match(paths=["/a/{x}"]),
            RequestView("GET", Readings("/a/x", (("/a/x", "/b/a/" + "x" * (MAX_LENGTH - 13)),))),
            RequestView("GET", Readings("/a/x", (("/a/x", "/b/a/" + "x" * (MAX_LENGTH - 12)),))),
        ),
    ],
    ids=["path", "path and method", "path and host", "method", "readings"],
)
def test_a_request_is_remembered_up_to_a_length(match: Match, view: RequestView, longer: RequestView) -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute", match=match)]))
    for one, remembered in ((view, 1), (longer, 1)):
        assert matched_by(gate, one).grounds.kind in ("limited", "unmatched")
        assert len(line_of(gate)._known) == remembered


def test_requests_that_are_alike_are_looked_for_once() -> None:
    rules = [Rule("a", "5/minute", match=Match(paths=["/a/{x}"])), Rule("b", "5/minute", match=Match(paths=["/b"]))]
    gate = gate_of(Policy(rules=rules, exempt=[Match(paths=["/free"])]))
    first = matched_by(gate, request("/a/1"))
    assert matched_by(gate, request("/a/1", peer="192.0.2.2")) is first
    assert matched_by(gate, request("/a/2")) is first, "the same rules"
    assert len(line_of(gate)._known) == 2
    assert matched_by(gate, request("/b")) is not first
    assert matched_by(gate, request("/c")).grounds.kind == "unmatched"
    assert matched_by(gate, request("/free")).grounds.kind == "exempt"


def test_only_what_rules_look_at_tells_requests_apart() -> None:
    def remembered(match: Match) -> int:
        gate = gate_of(Policy(rules=[Rule("a", "5/minute", match=match)]))
        for method in ("GET", "POST"):
            for path in ("/a", "/b"):
                for host in ("x.test", "y.test"):
                    matched_by(gate, request(path, method, host=host))
        return len(line_of(gate)._known)

    assert remembered(Match()) == 0, "all requests are alike"
    assert remembered(Match(methods=["GET"])) == 2
    assert remembered(Match(paths=["/a"])) == 2
    assert remembered(Match(paths=["/a"], methods=["GET"])) == 4
    assert remembered(Match(hosts=["x.test"])) == 4, "a path may name a host"
    assert remembered(Match(hosts=["x.test"], methods=["GET"])) == 8


@pytest.mark.parametrize(
    ("by", "user", "is_remembered"),
    [
        ("address", None, True),
        ("address", "ann", True),
        ("prefix", "ann", True),
        (["user", "address"], None, True),
        (["user", "address"], "ann", False),
        (["user + agent", "address"], None, True),
        ("address + agent", None, False),
        ("address + agent", "ann", False),
        ("global", None, False),
    ],
)
def test_who_counts_by_address_alone_is_remembered_by_the_peer(by: Any, user: str | None, is_remembered: bool) -> None:
    for peer in ("192.0.2.1", None):
        gate = gate_of(Policy(rules=[Rule("a", "5/minute", by=by)]))
        view = request(peer=peer, user=user)
        assert decide(gate, view).kind == "limited"
        assert gate.current().straight(view, "late") is not None
        known = matched_by(gate, view).known
        assert list(known) == ([peer] if is_remembered else [])


def test_nobody_is_remembered_by_a_peer_that_may_speak_for_others() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute", by="address")], trusted=["10.0.0.1"]))
    for client in ("203.0.113.1", "203.0.113.2"):
        verdict = decide(gate, request(peer="10.0.0.1", headers={"x-forwarded-for": client}))
        assert verdict.identity == ("address", client, None)
    assert not matched_by(gate, request(peer="10.0.0.1")).known


def test_a_long_peer_is_not_remembered() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute")]))
    short, long = "p" * MAX_LENGTH, "p" * (MAX_LENGTH + 1)
    for peer in (short, long):
        assert decide(gate, request(peer=peer)).kind == "limited"
    assert list(matched_by(gate, request()).known) == [short]


def test_some_rules_count_by_address_and_some_do_not() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute", by="address"), Rule("b", "5/minute", by="address + agent")]))
    verdict = decide(gate, request())
    assert [identity.kind for identity in verdict.identities] == ["address", "address+agent"]


def test_rules_without_limits_leave_nothing_to_ask() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "unlimited")]))
    verdict = decide(gate, request())
    assert (verdict.kind, list(verdict.asked), list(verdict.identities)) == ("unlimited", [], [])


@pytest.mark.parametrize(
    ("view", "readings"),
    [
        (request("/a/../B"), [("a", "..", "b"), ("b",)]),
        (request("/a", route="/users/{id}"), [("a",), *spellings("/users/{id}")]),
        (RequestView("GET", Readings("/x", (("/x",), ("/y",)))), [("x",), ("y",)]),
        (RequestView("GET", Readings("/x", (("/x",),)), route="/r"), [("x",), ("r",)]),
        (RequestView("GET", Readings("/x", (("/x", "/api/x"),), ("/api",))), [("x",), ("api", "x")]),
        (
            RequestView("GET", Readings("/x", (("/x",),), ("/api", "/v1"))),
            [("x",), ("api", "x"), ("v1", "x"), ("v1", "api", "x")],
        ),
    ],
)
def test_the_readings_of_a_request_are_those_of_its_paths_and_its_route(
    view: RequestView, readings: list[Segments]
) -> None:
    assert readings_of(view) == readings
