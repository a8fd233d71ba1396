"""What the straight line remembers of requests (its answers: tests/property/test_straight.py)."""

from ratebound.policy import Match, Policy, Rule
from ratebound.policy.runtime.fast_path import MAX_KNOWN, MAX_LENGTH, _order
from tests.policy.gates import decide, gate_of, request


def test_what_is_remembered_of_requests_is_bounded_over_all_gates() -> None:
    gates = [gate_of(Policy(rules=[Rule("a", "5/minute", match=Match(paths=["/a/{x}"]))])) for _ in range(4)]
    for number in range(MAX_KNOWN // 2):
        for gate in gates:
            decide(gate, request(f"/a/{number}", peer=f"10.1.{number >> 8 & 255}.{number & 255}"))
    tables = [table for held, _ in _order if (table := held()) is not None]
    assert len(_order) <= MAX_KNOWN
    assert sum(len(table) for table in {id(table): table for table in tables}.values()) <= MAX_KNOWN
    assert decide(gates[0], request("/a/0", peer="10.1.0.0")).kind == "limited"
    assert decide(gates[0], request("/b", peer="10.1.0.0")).kind == "unmatched"


def test_what_is_long_is_not_remembered() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute", match=Match(paths=["/a/{x}"]))]))
    short, long = "p" * MAX_LENGTH, "p" * (MAX_LENGTH + 1)
    for peer in (short, long):
        assert decide(gate, request("/a/1", peer=peer)).kind == "limited"
    remembered = [key for _, key in _order]
    assert short in remembered
    assert long not in remembered
