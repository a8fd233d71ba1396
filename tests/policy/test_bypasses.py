"""Known ways around a limiter, as far as they lead through a policy: none of them gets a request more than the limit.

Those through the storage (races inside of it, keys without an end, eviction) are in the tests of the storages.
"""

import itertools
import json
import math
import threading
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import MemoryStorage
from ratebound.policy import (
    Computed,
    Gate,
    Identity,
    Match,
    Policy,
    PolicyError,
    Rule,
    Source,
    canonical_name,
    read_policy,
)
from ratebound.policy.cost import MAX_COST, graphql_cost, json_batch_cost
from ratebound.policy.identity.identify import AGENTS
from tests.policy.gates import decide, gate_of, passes, request

LOGIN = Rule("login", "5/minute", match=Match(paths=("/login",), methods=("POST",)), by="address")


def test_a_spoofed_forwarded_header_is_no_fresh_quota() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address")]))
    assert passes(gate, *(request(headers={"x-forwarded-for": f"203.0.113.{n}"}) for n in range(50))) == 5


def test_a_forwarded_header_is_read_from_the_right_behind_a_trusted_proxy() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address")], trusted=["10.0.0.1"]))
    spoofed = (request(peer="10.0.0.1", headers={"x-forwarded-for": f"203.0.113.{n}, 192.0.2.9"}) for n in range(50))
    assert passes(gate, *spoofed) == 5


@pytest.mark.parametrize(
    "name", ["x-real-ip", "cf-connecting-ip", "true-client-ip", "forwarded", "x_forwarded_for", "client-ip"]
)
def test_single_address_headers_are_not_believed_by_themselves(name: str) -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address")], trusted=["10.0.0.1"]))
    assert passes(gate, *(request(peer="192.0.2.1", headers={name: f"203.0.113.{n}"}) for n in range(50))) == 5


@pytest.mark.parametrize("trusted", ["*", "0.0.0.0/0", "::/0"])
def test_trust_in_everyone_is_refused_at_start(trusted: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(f"trusted: ['{trusted}']\nrules: [{{name: a, limits: 5/minute}}]")
    assert caught.value.problems[0].where.startswith("trusted")


def test_a_random_api_key_per_request_is_no_fresh_quota_and_no_new_state() -> None:
    storage = MemoryStorage()
    policy = Policy(
        rules=[Rule("all", "5/minute", by=["api-key", "address"])],
        identities={"api-key": Source(verify=lambda key: "ann" if key == "good" else None)},
    )
    gate = Gate(policy, storage=storage)
    assert passes(gate, *(request(headers={"x-api-key": f"{n}"}) for n in range(100))) == 5
    assert storage.keys == 1
    assert passes(gate, request(headers={"x-api-key": "good"})) == 5


@pytest.mark.parametrize("by", ["api-key", "bearer", "session", "tenant", "cookie:id", "header:x-user", "jwt:sub"])
def test_what_a_client_mints_by_itself_is_no_key(by: str) -> None:
    with pytest.raises(PolicyError, match="only a claim of the client"):
        Policy(rules=[Rule("all", "5/minute", by=by)])


def test_a_victim_is_not_locked_out_by_a_spoofed_identity() -> None:
    policy = Policy(
        rules=[Rule("all", "5/minute", by=["header:x-user", "address"])],
        identities={"header:x-user": Source(proxy=True)},
        trusted=["10.0.0.1"],
    )
    gate = gate_of(policy)
    assert passes(gate, request(peer="192.0.2.66", headers={"x-user": "victim"})) == 5
    assert passes(gate, request(peer="10.0.0.1", headers={"x-user": "victim"})) == 5


def test_a_header_that_came_twice_through_the_proxy_is_not_taken_as_set_by_it() -> None:
    policy = Policy(
        rules=[Rule("all", "5/minute", by="tenant")],
        identities={"tenant": Source(proxy=True)},
        trusted=["10.0.0.1"],
    )
    verdict = decide(gate_of(policy), request(peer="10.0.0.1", headers=[("x-tenant", "mine"), ("x-tenant", "acme")]))
    assert verdict.identity == Identity("address", "10.0.0.1")


def test_rotating_ipv6_addresses_is_no_fresh_quota() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address")]))
    assert passes(gate, *(request(peer=f"2001:db8::{n:x}") for n in range(1, 60))) == 5
    assert passes(gate, *(request(peer=f"fe80::1%zone{n}") for n in range(1, 60))) == 5


def test_mapped_addresses_do_not_collapse_into_one_quota() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address")]))
    assert passes(gate, request(peer="::ffff:192.0.2.1"), request(peer="192.0.2.1")) == 5
    assert passes(gate, request(peer="::ffff:192.0.2.2")) == 5


SPELLINGS = ["/login", "/login/", "/Login", "//login", "/./login", "/x/../login", "/%6c%6fgin", "/login;a=1", "\\login"]


def test_slashes_case_and_dot_segments_are_no_fresh_quota() -> None:
    assert passes(gate_of(Policy(rules=[LOGIN])), *(request(path, "POST") for path in SPELLINGS)) == 5


def test_a_spelling_does_not_slip_through_a_final_rule_that_is_generous() -> None:
    gate = gate_of(
        Policy(
            rules=[
                Rule("static", "unlimited", match=Match(paths=("/static/{path*}",)), final=True),
                Rule("all", "5/minute", by="address"),
            ]
        )
    )
    assert passes(gate, request("/static/app.js"), most=50) == 50
    tricks = ["/static/../login", "/static/%2e%2e/login", "/static/%252e%252e/login", "/static/..;/login", "/STATIC/x"]
    assert passes(gate, *(request(path) for path in tricks)) == 5


def test_a_spelling_does_not_escape_the_defaults() -> None:
    gate = gate_of(
        Policy(rules=[Rule("free", "unlimited", match=Match(paths=("/free",))), Rule("rest", "5/minute", default=True)])
    )
    assert passes(gate, request("/free"), most=50) == 50
    assert passes(gate, request("/FREE"), request("/free/../login")) == 5


def test_head_counts_as_get() -> None:
    gate = gate_of(Policy(rules=[Rule("reads", "5/minute", match=Match(methods=("GET",)))]))
    assert passes(gate, request(method="HEAD"), request(method="GET"), request(method="get")) == 5


def test_a_method_override_does_not_escape_a_rule() -> None:
    gate = gate_of(Policy(rules=[Rule("deletes", "5/minute", match=Match(methods=("DELETE",)))]))
    assert passes(gate, request(method="POST", headers={"x-http-method-override": "DELETE"})) == 5


def test_a_method_override_does_not_make_a_request_exempt() -> None:
    gate = gate_of(
        Policy(rules=[Rule("all", "5/minute")], exempt=[Match(paths=("/health",), methods=("GET",))]),
    )
    assert passes(gate, request("/health", "POST", headers={"x-http-method-override": "GET"})) == 5


def test_a_method_override_does_not_slip_through_a_rule_that_is_generous() -> None:
    reads = Match(methods=("GET",))
    rules = [Rule("reads", "unlimited", match=reads, final=True), Rule("all", "5/minute", by="address")]
    override = request(method="POST", headers={"x-http-method-override": "GET"})
    assert passes(gate_of(Policy(rules=rules)), override) == 5
    rules = [Rule("reads", "unlimited", match=reads), Rule("rest", "5/minute", default=True)]
    assert passes(gate_of(Policy(rules=rules)), override) == 5


def test_a_preflight_counts_like_any_other_request() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute")]))
    preflight = {"origin": "https://a.example", "access-control-request-method": "PUT"}
    assert passes(gate, request(method="OPTIONS", headers=preflight)) == 5
    assert passes(gate, request(method="OPTIONS")) == 0


def test_versioned_routes_share_the_rule() -> None:
    gate = gate_of(Policy(rules=[Rule("login", "5/minute", match=Match(paths=("/v{n}/login", "/login")))]))
    assert passes(gate, request("/v1/login"), request("/v2/login"), request("/V3/login"), request("/login")) == 5


def test_a_race_gives_no_more_than_the_limit() -> None:
    gate = Gate(Policy(rules=[Rule("user", "50/hour", by="user"), Rule("all", "1000/hour", by="global")]))
    barrier, granted = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        for _ in range(20):
            if decide(gate, request(user="ann")):
                granted.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 50


def test_a_batch_costs_what_it_holds() -> None:
    batch = json.dumps([{"method": "login"}] * 100).encode()
    assert json_batch_cost(request(body=batch)) == 100
    gate = gate_of(Policy(rules=[Rule("rpc", "50/minute", cost=json_batch_cost)]))
    assert decide(gate, request(body=batch)).decision.retry_after is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("query", "cost"),
    [
        ("{ me }", 1),
        ("query Q($a: Int = 1) { a: user(id: $a) { name } b: user(id: 2) { name } }", 4),
        ("{ ...f ...f ...f } fragment f on User { a b c }", 9),
        ("{ ... on User { a b } ... @include(if: true) { c } }", 3),
        ("{ ...a } fragment a on X { ...b ...b } fragment b on X { ...c ...c } fragment c on X { d e }", 8),
        ("{ ...f } fragment f on X { ...f }", MAX_COST),
        ('{ a(text: "{ b c d }") # e f\n g }', 2),
        ("{ a @skip(if: false) { b } }", 2),
        ("mutation { a: login(u: 1) b: login(u: 2) c: login(u: 3) }", 3),
        ("not graphql", 1),
        ("{ a }  query B { b c }", 3),
        ("{ on: fragment { query } }", 2),
        ('{ a(text: """x "quoted" }""") }', 1),
    ],
)
def test_aliases_and_fragments_cost_what_they_ask_for(query: str, cost: int) -> None:
    assert graphql_cost(request(body=json.dumps({"query": query}).encode())) == cost


def test_batched_queries_cost_together() -> None:
    assert graphql_cost(request(body=json.dumps([{"query": "{ a b }"}, {"query": "{ c }"}]).encode())) == 3


def test_a_query_costs_the_same_wherever_it_stands() -> None:
    query = "{ a b c }"
    assert graphql_cost(request(query=f"x=1&query={quote(query)}")) == 3
    assert graphql_cost(request(body=query.encode())) == 3
    assert graphql_cost(request(query=f"query={quote(query)}", body=json.dumps({"query": query}).encode())) == 6


def test_a_policy_says_whether_it_has_to_see_the_body() -> None:
    assert Policy(rules=[Rule("a", "500/minute", cost=graphql_cost)]).reads_body
    assert not Policy(rules=[Rule("a", "500/minute", cost=lambda view: 1)]).reads_body


def test_a_body_that_is_too_large_or_too_deep_costs_what_nobody_has() -> None:
    assert graphql_cost(request(body=b" " * 2_000_000)) == MAX_COST
    assert json_batch_cost(request(body=b"[" * 200_000)) in (1, MAX_COST)
    deep = "{ ...f0 }" + "".join(f" fragment f{n} on X {{ ...f{n + 1} }}" for n in range(5000))
    assert graphql_cost(request(body=json.dumps({"query": deep}).encode())) == MAX_COST


@given(st.binary(max_size=200))
def test_any_body_has_a_cost(body: bytes) -> None:
    for cost in (graphql_cost(request(body=body)), json_batch_cost(request(body=body))):
        assert 1 <= cost <= MAX_COST


@pytest.mark.parametrize("cost", [0, -5, math.nan, math.inf, -math.inf, 10**30, "7", None, True, 2.5, []])
def test_no_cost_lets_a_request_through_for_free(cost: Any) -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", cost=lambda request: cost)]))
    assert passes(gate, request()) <= 5


@pytest.mark.parametrize("cost", [math.nan, math.inf, 10**30])
def test_a_cost_that_is_beyond_counting_never_passes(cost: Any) -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", cost=lambda request: cost)]))
    assert passes(gate, request()) == 0


@pytest.mark.parametrize("name", ["ann", "ANN", " ann ", "Ann\u00a0", "ａｎｎ"])
def test_variants_of_a_user_name_are_one_key(name: str) -> None:
    assert canonical_name(name) == "ann"


@pytest.mark.parametrize("name", ["", "  ", "a\x00nn", "a\u200bnn", "\ud800", "x" * 10_000])
def test_a_user_name_that_only_looks_like_one_is_none(name: str) -> None:
    assert canonical_name(name) is None


def test_a_session_of_the_clients_own_making_is_no_key() -> None:
    policy = Policy(
        rules=[Rule("all", "5/minute", by="session")],
        identities={"session": Source(cookie="sid", verify=lambda sid: None)},
    )
    assert passes(gate_of(policy), *(request(headers={"cookie": f"sid={n}"}) for n in range(50))) == 5


def test_a_secret_is_not_in_the_key_of_a_state() -> None:
    policy = Policy(
        rules=[Rule("all", "5/minute", by="api-key")],
        identities={"api-key": Source(verify=lambda key: Identity("", "client-7", None))},
    )
    verdict = decide(gate_of(policy), request(headers={"x-api-key": "s3cret"}))
    assert verdict.decision is not None
    assert [ask[0] for ask in verdict.decision.asks] == ["api-key:client-7"]


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), min_size=2, max_size=6, unique=True))
def test_no_two_combined_identities_share_a_key(pairs: list[tuple[str, str]]) -> None:
    pairs = [pair for pair in pairs if all(pair)]
    policy = Policy(
        rules=[Rule("all", "5/minute", by="one + two")],
        identities={"one": Source(header="x-one", verify=str), "two": Source(header="x-two", verify=str)},
    )
    gate = gate_of(policy)
    keys = [decide(gate, request(headers={"x-one": a, "x-two": b})).decision.asks[0][0] for a, b in pairs]  # type: ignore[union-attr]
    assert len(set(keys)) == len(pairs)


def test_no_value_passes_for_one_of_another_kind() -> None:
    policy = Policy(
        rules=[Rule("all", "5/minute", by=["user", "key + team", "key", "address"])],
        identities={"key": Source(header="x-key", verify=str), "team": Source(header="x-team", verify=str)},
    )
    gate = gate_of(policy)
    values = ["1", "user:1", "key:1", "1:1", "+", "1,1:1", "address:192.0.2.1", "team:1:1"]
    keys = [decide(gate, request(user=value)).identity.key for value in values]  # type: ignore[union-attr]
    keys += [decide(gate, request(headers={"x-key": value})).identity.key for value in values]  # type: ignore[union-attr]
    for one, other in itertools.product(values, values):
        verdict = decide(gate, request(headers={"x-key": one, "x-team": other}))
        keys.append(verdict.identity.key)  # type: ignore[union-attr]
    keys.append(decide(gate, request()).identity.key)  # type: ignore[union-attr]
    assert len(set(keys)) == len(keys)


def test_a_new_user_agent_per_request_gains_no_more_than_a_few_quotas() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", by="address + agent")]))
    granted = sum(bool(decide(gate, request(headers={"user-agent": f"a{n}"}))) for n in range(2000))
    assert 5 < granted <= 5 * AGENTS


def test_two_rules_with_equal_limits_never_share_a_state() -> None:
    gate = gate_of(
        Policy(
            rules=[Rule("a", "5/minute", match=Match(paths=("/a",))), Rule("b", "5/minute", match=Match(paths=("/b",)))]
        )
    )
    assert passes(gate, request("/a")) == 5
    assert passes(gate, request("/b")) == 5


def test_a_verifier_or_a_function_that_fails_leaves_no_route_unlimited() -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no database")

    policy = Policy(
        rules=[Rule("all", Computed(fail, otherwise="5/minute"), by=["api-key", fail], cost=fail)],
        identities={"api-key": Source(verify=fail)},
    )
    assert passes(gate_of(policy), request(headers={"x-api-key": "k"})) == 5
