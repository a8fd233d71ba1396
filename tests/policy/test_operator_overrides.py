"""Other limits and tiers that operators give to one client: who gets them, for how long, and what keeps its count."""

import json
import logging
from typing import Any

import pytest

from ratebound import MemoryStorage, StorageError
from ratebound.clock import utc_datetime
from ratebound.policy import Gate, Identity, read_policy
from ratebound.policy.runtime import operator_documents
from ratebound.policy.runtime.operator_overrides import MAX_OVERRIDES, OVERRIDES
from ratebound.testing import FakeClock
from tests.policy.gates import request
from tests.policy.operated import Make, OperatedGate, RemoteStorage

CUSTOMERS = {"key-1": Identity("customer", "acme"), "key-2": Identity("customer", "zenith")}
POLICY: dict[str, Any] = {
    "identities": {"api-key": {"header": "x-api-key", "verify": CUSTOMERS.get, "kinds": ["customer"]}},
    "by": ["api-key", "user", "address"],
    "tiers": ["free", "gold"],
    "default_tier": "free",
    "rules": [
        {"name": "search", "match": {"paths": ["/search"]}, "limits": "2/minute"},
        {"name": "export", "match": {"paths": ["/export"]}, "limits": {"free": "1/minute", "gold": "4/minute"}},
    ],
}
PLAIN: dict[str, Any] = {"rules": [{"name": "rest", "limits": "3/minute"}]}


@pytest.fixture(autouse=True)
def forget_warnings(caplog: pytest.LogCaptureFixture) -> None:
    operator_documents._log_entry.cache_clear()
    caplog.set_level(logging.INFO)


def passes(gate: OperatedGate, path: str = "/", most: int = 50, **client: Any) -> int:
    """Return how many requests pass before the first is denied."""
    for count in range(most):
        if not gate.decide(request(path, **client)).allowed:
            return count
    return most


def test_a_client_gets_its_limits_and_others_keep_theirs(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    override = gate.override("192.0.2.1", limits="5/minute", for_="1 hour", reason="migration", by="ann")
    now = clock.now
    assert (override.since, override.until) == (utc_datetime(now), utc_datetime(now + 3_600_000_000))
    assert gate.overrides() == [override]
    assert (passes(gate), passes(gate, peer="192.0.2.2")) == (5, 3)
    assert gate.remove_override("192.0.2.1") is True
    assert gate.remove_override("192.0.2.1") is False
    clock.advance(60)
    assert passes(gate) == 3


def test_a_client_keeps_its_count_when_it_gets_an_override_and_when_it_loses_it(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    assert passes(gate, most=2) == 2
    gate.override("192.0.2.1", limits="5/minute")
    assert passes(gate) == 3
    gate.remove_override("192.0.2.1")
    assert passes(gate) == 0


@pytest.mark.parametrize(
    ("own", "given", "kept"),
    [
        ("3/minute", "150/minute", True),
        ("3/minute", "20000/minute", False),  # too many for a log
        ("150/minute", "3/minute", True),
        ("3/minute fixed-window", "5/minute", True),
        ("3/minute gcra", "5/minute", True),
        ("3/minute burst 2", "5/minute", True),
        ("3/minute", "5/minute fixed-window", False),
        ("3/minute", "5/hour", False),
        ("3/calendar-day", "5/calendar-day", True),
        ("3/minute as a; 9/hour", "5/minute as a; 20/hour", True),
    ],
)
def test_limits_without_an_algorithm_count_as_the_rule_does(own: str, given: str, kept: bool) -> None:
    gate = Gate(read_policy({"rules": [{"name": "rest", "limits": own}]}), storage=MemoryStorage(clock=FakeClock()))
    before = gate.decide(request()).decision
    gate.override("192.0.2.1", limits=given)
    after = gate.decide(request()).decision
    assert before is not None
    assert after is not None
    scopes = [[limit.scope for limit in decision.limits] for decision in (before, after)]
    assert (scopes[0] == scopes[1]) is kept


@pytest.mark.parametrize(
    ("client", "known", "other"),
    [
        ("192.0.2.0/24", {}, {"peer": "192.0.3.1"}),
        ("user:42", {"user": "42"}, {"user": "43"}),
        ("customer:acme", {"headers": {"x-api-key": "key-1"}}, {"headers": {"x-api-key": "key-2"}}),
        ("api-key:acme", {"headers": {"x-api-key": "key-1"}}, {}),
    ],
)
def test_a_client_is_written_as_in_the_lists_of_a_policy(
    client: str, known: dict[str, Any], other: dict[str, Any], make: Make, storage: Any
) -> None:
    gate = make(POLICY, storage)
    gate.override(client, limits="5/minute")
    assert (passes(gate, "/search", **known), passes(gate, "/search", **other)) == (5, 2)


def test_an_override_may_name_rules_deny_release_or_give_a_tier(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.override("192.0.2.1", limits="5/minute", rules=["search"])
    gate.override("192.0.2.2", limits="deny")
    gate.override("192.0.2.3", limits="unlimited", rules="export")
    gate.override("192.0.2.4", tier="gold")
    found = [[passes(gate, path, peer=f"192.0.2.{n}") for path in ("/search", "/export")] for n in range(1, 6)]
    assert found == [[5, 1], [0, 0], [2, 50], [2, 4], [2, 1]]


def test_the_most_specific_override_wins_and_an_operators_wins_over_the_policys(make: Make, storage: Any) -> None:
    overrides = [
        {"client": "user:42", "limits": "9/minute"},
        {"client": "192.0.2.8", "limits": "8/minute"},
        {"client": "192.0.2.7", "tier": "gold"},
    ]
    gate = make({**POLICY, "overrides": overrides}, storage)
    gate.override("192.0.2.0/24", limits="4/minute")
    assert passes(gate, "/search", user="42") == 4  # the range of an operator, not the user of the policy
    gate.override("user:43", limits="6/minute")
    gate.override("user:43", limits="7/minute", rules=["search"])
    assert passes(gate, "/search", user="43") == 7
    assert passes(gate, "/export", user="43") == 6
    assert passes(gate, "/search", peer="192.0.2.8") == 4
    gate.remove_override("192.0.2.0/24")
    assert passes(gate, "/search", peer="192.0.2.8") == 4  # it had 4 of 8
    gate.override("192.0.2.7", tier="free")
    assert passes(gate, "/export", peer="192.0.2.7") == 1


def test_a_tier_that_an_operator_gives_wins_over_limits_that_the_policy_gives(make: Make, storage: Any) -> None:
    overrides = [{"client": "user:42", "limits": "2/minute"}]
    gate = make({**POLICY, "overrides": overrides}, storage)
    gate.override("user:42", tier="gold")
    assert [usage.quota for usage in gate.usage_of("user:42")] == [2, 4]
    assert passes(gate, "/export", user="42") == 4
    assert passes(gate, "/search", user="42") == 2  # it has no limits by tier, so the policy's are for it


def test_a_second_override_for_the_same_client_and_rules_takes_the_place_of_the_first(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.override("2001:DB8::1/128", limits="5/minute", rules=["search", "export"])
    gate.override("2001:db8::1", limits="6/minute", rules=["export", "search"])
    gate.override("2001:db8::1", tier="gold")
    assert [(one.client, one.limits, one.tier) for one in gate.overrides()] == [
        ("2001:db8::1", "6/minute", None),
        ("2001:db8::1", None, "gold"),
    ]
    assert gate.remove_override("2001:db8::1", rules=["search"]) is False
    assert gate.remove_override("2001:db8::1", rules=["export", "search"]) is True
    assert [one.tier for one in gate.overrides()] == ["gold"]


def test_an_override_ends_by_itself(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    gate.override("192.0.2.1", limits="deny", for_=30)
    clock.advance(29.5)
    assert gate.kind() == "deny"
    clock.advance(0.5)
    assert gate.kind() == "limited"
    assert gate.overrides() == []


def test_another_gate_sees_an_override_within_a_second(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    one, two = make(PLAIN, storage), make(PLAIN, storage)
    assert one.kind() == two.kind() == "limited"
    one.override("192.0.2.1", limits="deny")
    assert one.kind() == "deny"
    clock.advance(1)
    assert two.kind() == "deny"
    assert make(PLAIN, storage).kind() == "deny"
    storage.fails = True
    clock.advance(1)
    assert two.kind() == "deny"  # as long as the storage fails
    with pytest.raises(StorageError):
        two.remove_override("192.0.2.1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "an override needs limits or a tier"),
        ({"limits": "5/minute", "tier": "gold"}, "this one has both"),
        ({"limits": "many"}, "cannot read"),
        ({"limits": 5}, "must be text like '100/minute'"),
        ({"limits": "5/minute", "rules": ["serach"]}, "did you mean 'search'"),
        ({"tier": "golden"}, "unknown tier 'golden'"),
        ({"tier": "gold", "rules": ["search"]}, "applies to all rules"),
        ({"limits": "5 distinct account/hour"}, "needs to know where 'account' is"),
        ({"limits": "5/minute", "for_": 0}, "more than 0 seconds"),
        ({"limits": "5/minute", "reason": "two\nlines"}, "one line"),
        ({"limits": "5/minute", "by": "x" * 101}, "at most 100 characters"),
        ({"limits": "5/minute as " + "x" * 200}, "at most 200 characters"),
        ({"limits": "5/minute", "rules": [f"r{n}" for n in range(101)]}, "at most 100 rules"),
        ({"limits": "5/minute as candidate.x"}, "reserved"),
    ],
)
def test_a_mistake_raises_and_changes_nothing(options: dict[str, Any], message: str, make: Make) -> None:
    gate = make(POLICY, MemoryStorage())
    with pytest.raises(ValueError, match=message):
        gate.override("192.0.2.1", **options)
    assert gate.overrides() == gate.changes() == []


def test_an_override_that_a_new_policy_cannot_have_has_no_effect_and_says_why(
    make: Make, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = make(POLICY, storage)
    limited = gate.override("192.0.2.1", limits="5/minute", rules=["search"])
    tiered = gate.override("192.0.2.2", tier="gold")
    assert gate.gate.problem_of(limited) == gate.gate.problem_of(tiered) == ""
    metered = {"name": "search", "limits": "2/day fixed-window", "over": "allow"}
    gate.gate.use(read_policy({"rules": [metered, {"name": "rest", "limits": "3/minute"}]}))
    for _ in range(2):
        assert gate.decide(request()).decision.limits[0].count == 2
        assert gate.kind(peer="192.0.2.2") == "limited"
    assert caplog.text.count("an operator's override has no effect on rule search") == 1
    assert "'over: allow', which needs windows" in gate.gate.problem_of(limited)
    assert "unknown tier 'gold'" in gate.gate.problem_of(tiered)
    gate.gate.use(read_policy(PLAIN))
    assert "unknown rule 'search'" in gate.gate.problem_of(limited)
    assert passes(gate, peer="192.0.2.3") == 3
    gate.gate.use(read_policy(POLICY))
    assert gate.decide(request("/search")).decision.limits[0].count == 5


def test_queues_of_an_override_are_bounded_and_slots_are_released(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage, max_delay=10)
    gate.override("192.0.2.1", limits="6/minute burst 6 leaky-bucket")
    verdicts = [gate.decide(request()) for _ in range(4)]
    assert [verdict.allowed for verdict in verdicts] == [
        True,
        True,
        False,
        False,
    ]  # the third has to wait too long
    gate.override("192.0.2.2", limits="1 concurrent")
    first = gate.decide(request(peer="192.0.2.2"))
    assert not gate.decide(request(peer="192.0.2.2")).allowed
    gate.release(first)
    assert gate.decide(request(peer="192.0.2.2")).allowed


def test_usage_grants_resets_and_holders_follow_overrides(make: Make, clock: FakeClock) -> None:
    policy = {"rules": [{"name": "rest", "by": "user", "limits": "3/calendar-day"}]}
    storage = RemoteStorage(clock)
    gate, operator = make(policy, storage), make(policy, storage)
    gate.usage_of("user:42")
    operator.override("user:42", limits="5/calendar-day; 2 concurrent")
    clock.advance(1)
    assert [usage.quota for usage in gate.usage_of("user:42")] == [5, 2]
    assert [usage.quota for usage in gate.usage_of("user:43")] == [3]
    assert [usage.quota for usage in gate.usage(request(user="42"))] == [5, 2]
    assert [usage.quota for usage in gate.usage(request(user="42"), all_rules=True)] == [5, 2]
    verdict = gate.decide(request(user="42"))
    gate.grant("user:42", 4)
    assert gate.usage_of("user:42")[0].remaining == 8
    assert verdict.allowed
    gate.reset("user:42")
    assert gate.usage_of("user:42")[0].used == 0


def test_a_cached_denial_does_not_outlive_a_change_of_limits(make: Make, clock: FakeClock) -> None:
    policy = {"rules": [{"name": "rest", "limits": "1/hour", "deny_cache": True}]}
    storage = RemoteStorage(clock)
    gate, operator = make(policy, storage), make(policy, storage)
    assert [gate.decide(request()).allowed for _ in range(3)] == [True, False, False]
    operator.override("192.0.2.1", limits="3/hour", for_=60)
    clock.advance(1)
    assert [gate.decide(request()).allowed for _ in range(3)] == [True, True, False]
    gate.override("192.0.2.1", limits="4/hour")
    assert gate.decide(request()).allowed


def test_every_override_is_read_as_it_was_written(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    made = [
        gate.override("192.0.2.1", limits="5/minute; 7/hour", rules=["search", "export"], reason="à voir", by="ann"),
        gate.override("user:\ud800", tier="gold", for_=60),
    ]
    assert gate.overrides() == made
    content = json.loads(storage.read_document("overrides")[1])
    assert content["overrides"][0] == {
        "client": "192.0.2.1",
        "limits": "5/minute; 7/hour",
        "tier": None,
        "rules": ["search", "export"],
        "since": "2023-11-14T22:13:20+00:00",
        "until": None,
        "reason": "à voir",
        "by": "ann",
    }


def test_an_entry_that_cannot_be_read_leaves_the_others_in_force(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(PLAIN, storage)
    good = {"client": "192.0.2.1", "limits": "deny", "since": "2023-11-14T22:13:20+00:00"}
    bad = [{**good, "limits": None}, {**good, "rules": 5}, {**good, "limits": ["x"], "tier": "y"}, {"limits": "deny"}]
    bad += [{**good, "client": {}}, {**good, "limits": ["1/minute"]}, {**good, "limits": None, "tier": ["gold"]}]
    bad += [{**good, "rules": [["rest"]]}]
    assert storage.write_document("overrides", json.dumps({"overrides": [*bad, good]}).encode(), 0)
    clock.advance(1)
    assert gate.kind() == "deny"
    assert [override.client for override in gate.overrides()] == ["192.0.2.1"]


def test_there_is_room_for_so_many_overrides_and_no_more(make: Make, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    gate = make(PLAIN, storage)
    first = gate.override("192.0.2.1", limits="5/minute", for_=60)
    others = [first._replace(client=f"user:{number}", until=None) for number in range(MAX_OVERRIDES - 1)]
    content = {"overrides": [OVERRIDES.write(one) for one in (first, *others)]}
    assert storage.write_document("overrides", json.dumps(content).encode(), 1)
    with pytest.raises(ValueError, match="there are 10000 overrides"):
        gate.override("192.0.2.2", limits="5/minute")
    assert passes(gate, user=str(MAX_OVERRIDES - 2)) == 5
    clock.advance(60)
    gate.override("192.0.2.2", limits="5/minute")


def test_requests_that_no_override_concerns_stay_on_the_fast_path(
    make: Make, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratebound.policy.runtime.general_path import CompiledPolicy

    gate = make(PLAIN, storage)
    gate.override("192.0.2.1", limits="5/minute")
    gate.override("user:42", limits="5/minute")
    monkeypatch.setattr(CompiledPolicy, "deliberate", lambda *_: pytest.fail("the general path"))
    assert gate.kind(peer="192.0.2.2") == "limited"


def test_the_user_must_be_known_if_an_override_names_one(make: Make, storage: Any) -> None:
    gate = make(PLAIN, storage)
    gate.override("192.0.2.1", limits="5/minute")
    assert gate.operators_name_users() is False
    gate.override("user:42", limits="5/minute", for_=60)
    assert gate.operators_name_users() is True
