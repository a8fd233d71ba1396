"""Every example of a policy does what its first lines say."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from ratebound.clock import SECOND
from ratebound.policy import ANY_FUNCTION, SCHEMA_PATH, Identity, load_policy
from ratebound.testing import FakeClock
from tests.policy.gates import EXAMPLES, decide, example_gate, passes, request

FILES = sorted(path.name for path in EXAMPLES.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_an_example_loads(name: str) -> None:
    assert load_policy(EXAMPLES / name, functions=ANY_FUNCTION).rules


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".toml")])
def test_an_example_is_what_the_schema_says(name: str) -> None:
    tree = yaml.safe_load((EXAMPLES / name).read_text())
    jsonschema.validate(tree, json.loads(SCHEMA_PATH.read_text()), jsonschema.Draft202012Validator)


def test_users_have_a_quota_each() -> None:
    gate = example_gate("per_user.yaml")
    assert passes(gate, request(user="ann")) == 100
    assert passes(gate, request(user="bob")) == 100
    assert passes(gate, request()) == 100


def test_addresses_have_a_quota_each_behind_the_balancer() -> None:
    gate = example_gate("per_address.yaml")

    def behind(client: str) -> Any:
        return request(peer="10.0.0.1", headers={"x-forwarded-for": client})

    assert passes(gate, behind("192.0.2.1")) == 60
    assert passes(gate, behind("192.0.2.2")) == 60
    assert passes(gate, behind("2001:db8::1"), behind("2001:db8::2")) == 60


def test_ranges_have_rising_limits() -> None:
    gate = example_gate("per_range.yaml")
    nets = [request(peer=f"2001:db8:0:{net:x}::1") for net in range(16)]
    assert passes(gate, nets[0]) == 10
    assert passes(gate, *nets[1:]) == 10, "of 20 for the /56, 10 were left"
    others = [request(peer=f"2001:db8:0:{net:x}00::1") for net in range(1, 256)]
    assert passes(gate, *others) == 20, "of 40 for the /48, 20 were left"


def test_a_range_may_share_one_quota() -> None:
    gate = example_gate("per_range.yaml")
    assert passes(gate, *(request(peer=f"198.51.100.{last}") for last in range(1, 50))) == 5


def test_known_shared_addresses_get_more() -> None:
    gate = example_gate("shared_addresses.yaml")
    assert passes(gate, request(peer="192.0.2.8")) == 10
    assert passes(gate, request(peer="192.0.2.7")) == 100
    assert passes(gate, request(peer="203.0.113.9")) == 50


def find_api_key(key: str) -> Identity | None:
    client, _, tier = key.partition(".")
    return Identity("", client, tier) if tier in ("free", "basic", "premium", "enterprise", "pro") else None


@pytest.mark.parametrize(
    ("tier", "burst", "minute", "hour", "day"),
    [
        ("free", 5, 30, 500, 2000),
        ("basic", 20, 200, 5000, 50_000),
        ("premium", 100, 1000, 30_000, 500_000),
        ("enterprise", 500, 5000, 200_000, 4_000_000),
    ],
)
def test_four_tiers_have_a_burst_and_three_quotas_each(tier: str, burst: int, minute: int, hour: int, day: int) -> None:
    gate = example_gate("tiers.yaml", find_api_key=find_api_key)
    verdict = decide(gate, request(headers={"x-api-key": f"acme.{tier}"}))
    assert verdict.decision is not None
    assert [limit.burst for limit in verdict.decision.limits] == [burst, minute, hour, day]
    assert passes(gate, request(headers={"x-api-key": f"acme.{tier}"}), most=1000) == burst - 1


def test_burst_minute_hour_and_day_of_a_tier_bite_in_turn(clock: FakeClock) -> None:
    """A client that asks again as soon as it was told to, for a day."""
    gate = example_gate("tiers.yaml", clock, find_api_key=find_api_key)
    begin, refused_by = clock.now, []
    granted: list[int] = []  # when, in seconds
    while (since := (clock.now - begin) / SECOND) < 86_400:
        verdict = decide(gate, request(headers={"x-api-key": "ann.free"}))
        assert verdict.decision is not None
        if verdict:
            granted.append(int(since))
        else:
            refused_by.append(verdict.decision.limit.period_us // SECOND)
            assert verdict.decision.retry_after
            clock.advance(verdict.decision.retry_after)
    assert list(dict.fromkeys(refused_by)) == [1, 60, 3600, 86_400]
    assert [sum(when < seconds for when in granted) for seconds in (1, 60, 3600, 86_400)] == [5, 30, 500, 2000]


def test_an_unknown_key_leaves_a_tier_to_the_address() -> None:
    gate = example_gate("tiers.yaml", find_api_key=find_api_key)
    assert decide(gate, request(headers={"x-api-key": "nobody"})).identity == Identity("address", "192.0.2.1")


def test_a_tier_may_be_said_of_a_client() -> None:
    gate = example_gate("tiers.yaml", find_api_key=find_api_key)
    assert passes(gate, request(user="acme"), most=1000) == 500


@pytest.mark.parametrize(
    ("method", "path", "count", "stage"),
    [
        ("POST", "/auth/login", 5, "early"),
        ("POST", "/v2/auth/login", 5, "early"),
        ("POST", "/auth/signup", 3, "late"),
        ("GET", "/reports/2024/q1", 5, "late"),
        ("POST", "/exports", 10, "late"),
        ("GET", "/search", 20, "late"),
        ("GET", "/anything", 1000, "late"),
        ("HEAD", "/anything", 1000, "late"),
        ("DELETE", "/anything", 100, "late"),
    ],
)
def test_each_endpoint_has_its_limit(method: str, path: str, count: int, stage: Any) -> None:
    gate = example_gate("endpoints.yaml")
    assert passes(gate, request(path, method), most=2000, stage=stage) == count


def test_operations_cost_what_they_ask_for() -> None:
    gate = example_gate("costs.yaml")
    query = json.dumps({"query": "{ a: user(id: 1) { name } b: user(id: 2) { name } }"}).encode()
    assert passes(gate, request("/graphql", "POST", body=query)) == 25
    assert not decide(gate, request("/graphql", query="query={a}")), "the same quota"
    batch = json.dumps([{"method": "add"}] * 5).encode()
    assert passes(gate, request("/rpc", "POST", body=batch)) == 4
    assert passes(gate, request("/render")) == 10


def test_quotas_slots_and_metering_stand_in_one_policy() -> None:
    clock = FakeClock()
    gate = example_gate("quotas.yaml", clock)
    api = decide(gate, request("/api/x", user="ann"))
    assert [limit.text for limit in api.decision.limits] == [  # type: ignore[union-attr]
        "20/second burst 50",
        "1000/calendar-month in Europe/Berlin",
    ]
    assert passes(gate, request("/exports", "POST", user="ann")) == 3
    denied = decide(gate, request("/exports", "POST", user="ann"))
    assert denied.rule is not None
    assert denied.rule.name == "exports"
    response = denied.policy.rejection_format.respond(denied.decision)  # type: ignore[arg-type]
    assert dict(response.headers)["Retry-After"] == "5"
    clock.advance(600)
    assert decide(gate, request("/exports", "POST", user="ann")), "the leases have ended"
    found = []
    for _ in range(60):
        clock.advance(1)
        verdict = decide(gate, request("/convert", "POST", user="ann"))
        assert verdict.decision is not None
        found.append(verdict.decision.overage)
    assert found == [0] * 50 + [10] * 10


def test_health_checks_are_not_counted() -> None:
    gate = example_gate("health.yaml")
    assert passes(gate, request("/health"), request("/ready", "HEAD"), most=100) == 100
    assert decide(gate, request("/health")).kind == "exempt"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/health"), ("GET", "/HEALTH"), ("GET", "//health"), ("GET", "/x/../health")]
)
def test_what_only_looks_like_a_health_check_is_counted(method: str, path: str) -> None:
    assert passes(example_gate("health.yaml"), request(path, method)) == 5


def test_clients_are_known_by_what_was_verified() -> None:
    claims = {"good": {"sub": "ann", "plan": "pro"}}
    gate = example_gate(
        "identities.yaml",
        find_api_key=find_api_key,
        read_token=claims.get,
        find_session=lambda sid: "bob" if sid == "s1" else None,
    )
    assert passes(gate, request(headers={"x-api-key": "carl.pro"})) == 10
    assert passes(gate, request(headers={"authorization": "Bearer good"})) == 10
    assert passes(gate, request(headers={"cookie": "a=b; sid=s1"})) == 5
    random = (request(headers={"x-api-key": f"k{n}", "cookie": f"sid=x{n}"}) for n in range(20))
    assert passes(gate, *random) == 5
    tenants = [
        request(peer=f"10.0.0.{n}", headers={"x-tenant": "acme", "x-api-key": f"c{n}.pro"}) for n in range(1, 200)
    ]
    assert passes(gate, *tenants) == 50


def test_new_limits_are_reported_and_refuse_nobody() -> None:
    gate = example_gate("trying_out.yaml")
    verdicts = [decide(gate, request("/upload")) for _ in range(11)]
    assert [bool(verdict) for verdict in verdicts] == [True] * 10 + [False]
    refused = {(s.rule.name, s.candidate): 0 for s in verdicts[0].shadows}
    for verdict in verdicts:
        for shadow in verdict.shadows:
            refused[shadow.rule.name, shadow.candidate] += not shadow.allowed
    assert refused == {("api", True): 6, ("uploads", False): 9}


def test_lists_say_something_else_of_single_clients() -> None:
    gate = example_gate("lists.yaml")
    assert passes(gate, request(peer="192.0.2.10")) == 200
    assert passes(gate, request(user="monitoring")) == 200
    assert decide(gate, request(peer="198.51.100.9")).kind == "block"
    assert decide(gate, request(user="mallory", peer="192.0.2.10")).kind == "block"
    assert passes(gate, request(user="batch")) == 20
    assert passes(gate, request(user="ann")) == 5
    assert decide(gate, request("/admin/users")).kind == "deny"


def test_plans_have_monthly_quotas_and_the_largest_is_metered() -> None:
    customers = {f"k-{tier}": Identity("customer", tier, tier) for tier in ("free", "pro", "enterprise")}
    clock = FakeClock()
    gate = example_gate("monthly_plans.yaml", clock, find_customer=customers.get)

    def quota(key: str) -> tuple[int, bool]:
        _, monthly = gate.usage(request("/api/report", headers={"x-api-key": key}))
        return monthly.quota, monthly.limit.metered

    assert [quota(key) for key in customers] == [(1000, False), (100_000, False), (1_000_000, True)]
    assert quota("unknown") == (1000, False)


def test_the_page_about_quotas_shows_the_example() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "guides" / "quotas.md").read_text()
    _, _, shown = (EXAMPLES / "monthly_plans.yaml").read_text().partition("\n")  # the first line is for editors
    assert f"```yaml\n{shown}```" in page


@pytest.mark.parametrize("name", ["endpoints.toml", "endpoints.json"])
def test_toml_and_json_say_the_same(name: str) -> None:
    gate = example_gate(name)
    assert passes(gate, request("/auth/login", "POST")) == 5
    assert passes(gate, request("/"), most=2000) == 1000
