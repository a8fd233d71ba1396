"""envoyproxy/ratelimit's YAML as a policy that counts as that service counts."""

import random
from typing import Any

import pytest

from ratebound.policy import Gate, Identity, PolicyError
from ratebound.policy.imports import Imported, import_envoy
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

EDGE = """
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 10 }
  - key: remote_address
    value: 50.0.0.5
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: remote_address
    value: 50.0.0.6
    rate_limit: { unit: second, requests_per_unit: 30 }
  - key: remote_address
    value: 50.0.0.7
  - key: path
    value: "files/*"
    share_threshold: true
    value_to_metric: true
    rate_limit: { unit: hour, requests_per_unit: 25 }
  - key: plan
    value: free
    descriptors:
      - key: account_id
        rate_limit:
          name: free_daily
          replaces: [{ name: old_limit }]
          unit: day
          requests_per_unit: 4
  - key: method
    value: DELETE
    descriptors:
      - key: remote_address
        shadow_mode: true
        rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: internal
    rate_limit: { unlimited: true }
  - key: service
    value: a
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    metadata: { any: struct }
"""


def account_id_of(view: Any) -> Any:
    account = view.header("x-account")
    return Identity("", account, "free") if account else None


def edge(text: str = EDGE, clock: FakeClock | None = None) -> Gate:
    return gate_of(import_envoy(text).text, clock, functions={"account_id_of": account_id_of})


def one(rate_limit: str, key: str = "remote_address", more: str = "") -> Imported:
    return import_envoy(f"descriptors: [{{key: '{key}', rate_limit: {{{rate_limit}}}{more}}}]")


def lost(imported: Imported) -> str:
    return "\n".join(imported.lost)


def test_each_address_has_a_count_and_some_have_another() -> None:
    gate = edge()
    assert passes(gate, request(peer="50.0.0.4")) == 10
    assert passes(gate, request(peer="50.0.0.3")) == 10
    assert decide(gate, request(peer="50.0.0.5")).kind == "deny"
    assert passes(gate, request(peer="50.0.0.6")) == 30
    assert passes(gate, request(peer="50.0.0.7")) == 200, "named without a limit: none"


def test_a_value_without_a_client_is_one_count_for_all() -> None:
    gate = edge()
    files = [request(f"/files/{n}/x", peer=f"198.51.100.{n}") for n in range(1, 60)]
    assert passes(gate, *files) == 25


def test_nested_descriptors_are_conditions_and_keys() -> None:
    gate = edge()
    accounts = [request(peer=f"198.51.100.{n}", headers={"x-account": "acme"}) for n in range(1, 60)]
    assert passes(gate, *accounts) == 4
    assert passes(gate, request(headers={"x-account": "other"})) == 4
    assert passes(gate, request(peer="198.51.100.200")) == 10


def test_shadow_mode_counts_and_lets_through() -> None:
    gate = edge()
    verdicts = [decide(gate, request("/", "DELETE")) for _ in range(3)]
    assert all(verdicts)
    assert [verdict.shadows[0].allowed for verdict in verdicts] == [True, False, False]


def test_windows_are_aligned_to_the_clock() -> None:
    clock = FakeClock()
    gate = edge("descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}]", clock)
    dice, counts, start = random.Random(5), dict[int, int](), clock.now
    for _ in range(400):
        clock.now = start = start + dice.randrange(8_000_000)
        window = clock.now // 60_000_000
        counts[window] = counts.get(window, 0) + 1
        assert bool(decide(gate, request())) is (counts[window] <= 5)
    assert max(counts.values()) > 5


@pytest.mark.parametrize("unit", ["second", "minute", "hour", "day", "week", "month", "year", "MINUTE"])
def test_every_unit_is_read(unit: str) -> None:
    imported = one(f"unit: {unit}, requests_per_unit: 7")
    assert f"limits: 7/{unit.lower()} fixed-window" in imported.text
    assert passes(gate_of(imported.text), request()) == 7


def test_what_stays_behind_is_told() -> None:
    told = lost(import_envoy(EDGE))
    for words in (
        "plan=free / account_id replaces old_limit where both apply",
        "service=a: quota_mode denies only if all quotas are used up",
        "write a function account_id_of(request)",
        "this policy matches the header service",
        "internal is unlimited",
        "metadata",
        "the domain edge",
    ):
        assert words in told
    assert "plan=free / account_id" in import_envoy(EDGE).text


@pytest.mark.parametrize(
    ("value", "met", "not_met"),
    [
        ("/api/*", "/api/a/b", "/apis"),
        ("/api*", "/apis/x", "/ap"),
        ("/api", "/api", "/api/x"),
        ("api/{x}", "/api/%7Bx%7D", "/api/y"),
        ("*", "/anything", None),
    ],
)
def test_a_path_is_met_as_it_is_there(value: str, met: str, not_met: str | None) -> None:
    text = f"descriptors: [{{key: path, value: '{value}', rate_limit: {{unit: hour, requests_per_unit: 2}}}}]"
    gate = gate_of(import_envoy(text).text)
    assert passes(gate, request(met)) == 2
    if not_met is not None:
        assert passes(gate, request(not_met)) == 200


@pytest.mark.parametrize(
    ("descriptor", "words"),
    [
        ("{key: path, rate_limit: RATE}", "has a count for each path"),
        ("{key: masked_remote_address, rate_limit: RATE}", "this policy uses /24 and /48"),
        ("{key: path, value: 'a*', rate_limit: RATE}", "a count for each path; this policy has one for all"),
        ("{key: remote_address, value: nowhere, rate_limit: RATE}", "nowhere is not an address"),
        ("{key: method, value: 'P*', rate_limit: RATE}", "cannot be expressed as a pattern"),
        ("{key: user_id, value: '42', rate_limit: RATE}", "use an override"),
        ("{key: path, value: 'a;b', rate_limit: RATE}", "can never match"),
        ("{key: host, value: a.example, colour: red, rate_limit: RATE}", "unknown key colour"),
        ("{key: tier, value: gold, rate_limit: {unit: day, requests_per_unit: 1, colour: 1}}", "rate_limit.colour"),
        (
            "{key: path, value: x, rate_limit: RATE}, {key: path, rate_limit: RATE},"
            " {key: tier, value: x, rate_limit: RATE}, {key: tier, rate_limit: RATE}",
            "where path=x matches, the service does not check path; in this policy both count",
        ),
        ("{key: user_id, value: x}, {key: user_id, descriptors: [{key: path, rate_limit: RATE}]}", "use an override"),
        ("{key: internal, rate_limit: {unlimited: true}}", "internal is unlimited"),
    ],
)
def test_what_is_not_the_same_is_told(descriptor: str, words: str) -> None:
    rate = "{unit: day, requests_per_unit: 1}"
    text = f"descriptors: [{{key: host, value: z.example, rate_limit: {rate}}}, {descriptor.replace('RATE', rate)}]"
    imported = import_envoy(text)
    assert words in lost(imported)
    assert gate_of(imported.text)


def test_a_whole_value_is_asked_alone_beside_one_with_a_star() -> None:
    text = """
descriptors:
  - {key: path, value: /api/*, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: path, value: /api/big, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: path, value: /api/dark, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: path, value: /api/free}
  - {key: path, value: /api/gone, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 150}}
"""
    imported = import_envoy(text)
    expected = {"/api/x": 10, "/api/big": 100, "/api/dark": 150, "/api/free": 150, "/api/gone": 0, "/else": 150}
    assert {path: passes(gate_of(imported.text), request(path)) for path in expected} == expected
    gate = gate_of(imported.text)
    assert (passes(gate, request("/api/big")), passes(gate, request("/api/x"))) == (100, 10), "counts of their own"
    assert "both count" not in lost(imported)


def test_limits_of_a_descriptor_and_of_one_nested_in_it_both_count_and_that_is_told() -> None:
    text = """
descriptors:
  - key: path
    value: /login
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 3}}]
"""
    imported = import_envoy(text)
    gate = gate_of(imported.text)
    assert [passes(gate, request("/login", peer=f"192.0.2.{n}")) for n in (1, 2, 3)] == [3, 2, 0]
    assert "path=/login has a limit, and more are nested in it" in lost(imported)
    assert "nested" not in lost(
        import_envoy(text.replace("    rate_limit: {unit: minute, requests_per_unit: 5}\n", ""))
    )


def test_limits_of_nothing_but_exceptions_are_nothing_to_import() -> None:
    with pytest.raises(PolicyError, match="nothing to import"):
        import_envoy("descriptors: [{key: path, value: /a}, {key: path, value: '/*', rate_limit: {unlimited: true}}]")


def test_a_user_may_have_another_limit() -> None:
    text = (
        "descriptors: [{key: user_id, value: vip, rate_limit: {unit: day, requests_per_unit: 9}},"
        " {key: user_id, rate_limit: {unit: day, requests_per_unit: 3}}]"
    )
    gate = gate_of(import_envoy(text).text)
    assert (passes(gate, request(user="vip")), passes(gate, request(user="ann"))) == (9, 3)


def test_names_that_a_policy_cannot_have_are_changed_and_kept_apart() -> None:
    text = "descriptors: [{key: 'a b/ü$', rate_limit: RATE}, {key: 'x_y', value: '${x}', rate_limit: RATE}]"
    imported = import_envoy(text.replace("RATE", "{unit: day, requests_per_unit: 1}"))
    gate = gate_of(imported.text, functions={"a_b_of": account_id_of})
    assert [rule.name for rule in gate.policy.rules] == ["a-b", "x_y_-x"]
    assert gate.policy.rules[1].match.header_matches[0].values == ("${x}",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("domain: x", "expected the keys domain and descriptors"),
        ("descriptors: []", "nothing to import"),
        ("descriptors: [{value: x}]", "a descriptor needs a key"),
        ("descriptors: [{key: a, rate_limit: 5}]", "expected unit and requests_per_unit"),
        ("descriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 5}}]", "'fortnight'"),
        ("descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -5}}]", "-5"),
        ("descriptors: [{key: a, descriptors: {key: b}}]", "descriptors below a: expected a list"),
        ("a: [", "cannot read this as YAML"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        import_envoy(text)
