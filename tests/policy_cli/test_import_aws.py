"""AWS usage plans as a policy: throttles, quotas and throttles of methods, for each API key."""

import json
import os
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ratebound.cli.policy_functions import functions_from
from ratebound.policy import Gate, Identity, PolicyError, RequestView, read_policy
from ratebound.policy.imports import Imported, import_aws
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

LONG = os.environ.get("RATEBOUND_LONG") == "1"
STORE: dict[str, Any] = {
    "items": [
        {
            "id": "a1b2c3",
            "name": "Basic",
            "description": "Free of charge",
            "apiStages": [
                {
                    "apiId": "x9y8z7",
                    "stage": "prod",
                    "throttle": {
                        "/pets/GET": {"burstLimit": 2, "rateLimit": 0.5},
                        "/pets/{pet-id}/DELETE": {"burstLimit": 1, "rateLimit": 1.0},
                        "/files/{proxy+}/ANY": {"burstLimit": 9, "rateLimit": 33.3},
                    },
                }
            ],
            "throttle": {"burstLimit": 20, "rateLimit": 10.0},
            "quota": {"limit": 30, "offset": 0, "period": "DAY"},
        },
        {
            "id": "d4e5f6",
            "name": "Pro (2026)",
            "apiStages": [{"apiId": "x9y8z7", "stage": "prod"}],
            "throttle": {"burstLimit": 40, "rateLimit": 33.3},
            "quota": {"limit": 1000, "offset": 2, "period": "MONTH"},
            "productCode": "p",
        },
    ]
}
PLANS = json.dumps(STORE)
OWNERS = {"ann": Identity("api-key", "1", "Basic"), "bob": Identity("api-key", "2", "Pro-2026")}


def gate(imported: Imported, clock: FakeClock | None = None, owners: Mapping[str, Any] | None = None) -> Gate:
    return gate_of(imported.text, clock, functions={"find_api_key": (OWNERS if owners is None else owners).get})


def keyed(key: str, path: str = "/", method: str = "GET") -> RequestView:
    return request(path, method, headers={"x-api-key": key})


def lost(imported: Imported) -> str:
    return "\n".join(imported.lost)


def plan(**keys: Any) -> dict[str, Any]:
    return {"id": "a1", "name": "Basic", "apiStages": [{"apiId": "x", "stage": "prod"}], **keys}


def limits(**keys: Any) -> str:
    """The limits of a plan, in the text of the policy."""
    policy = yaml.safe_load(import_aws(json.dumps(plan(**keys))).text)
    found = policy["rules"][0]["limits"]
    assert found["default"] == "deny"
    return str(found["Basic"])


def test_each_key_has_the_limits_of_its_plan() -> None:
    clock = FakeClock()
    store = gate(import_aws(PLANS), clock)
    assert passes(store, keyed("ann")) == 20
    assert passes(store, keyed("bob")) == 40
    clock.advance(3600)
    assert passes(store, keyed("ann")) == 10, "the quota of the day"
    assert passes(store, keyed("bob")) == 40
    clock.advance(86_400)
    assert passes(store, keyed("ann")) == 20


def test_without_a_valid_key_a_request_is_refused() -> None:
    store = gate(import_aws(PLANS))
    assert [decide(store, one).kind for one in (request(), keyed("mallory"), keyed("ann"))] == [
        "deny",
        "deny",
        "limited",
    ]


def test_a_method_counts_besides_the_plan() -> None:
    store = gate(import_aws(PLANS))
    assert passes(store, keyed("ann", "/pets")) == 2
    assert passes(store, keyed("ann", "/pets/7", "DELETE")) == 1
    assert passes(store, keyed("ann", "/files/a/b.txt", "PUT")) == 9
    assert passes(store, keyed("ann", "/files")) == 8, "{proxy+} is one segment or more; 12 of 20 were spent before"
    assert passes(store, keyed("bob", "/pets")) == 40, "another plan has no throttle for the method"


@pytest.mark.parametrize(
    ("throttle", "text"),
    [
        ({"rateLimit": 10.0, "burstLimit": 20}, "10/second burst 20"),
        ({"rateLimit": 10, "burstLimit": 20}, "10/second burst 20"),
        ({"rateLimit": 0.5, "burstLimit": 1}, "1/2 seconds burst 1"),
        ({"rateLimit": 33.3, "burstLimit": 100}, "333/10 seconds burst 100"),
        ({"rateLimit": 0.1, "burstLimit": 5}, "1/10 seconds burst 5"),
        ({"rateLimit": 0.0125, "burstLimit": 5}, "1/80 seconds burst 5"),
        ({"rateLimit": 2.5}, "5/2 seconds burst 3"),
        ({"rateLimit": 0.3333333333, "burstLimit": 5}, "1/3 seconds burst 5"),
        ({"rateLimit": 0, "burstLimit": 5}, "deny"),
        ({"rateLimit": 10.0, "burstLimit": 0}, "deny"),
    ],
)
def test_rates_are_exact(throttle: dict[str, Any], text: str) -> None:
    assert limits(throttle=throttle) == text


def test_a_rate_that_has_no_exact_limit_is_rounded_and_told() -> None:
    imported = import_aws(json.dumps(plan(throttle={"rateLimit": 0.3333333333, "burstLimit": 5})))
    assert "is rounded to 1/3 per second" in lost(imported)
    assert "rounded" not in lost(import_aws(PLANS))


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        ({"limit": 500, "period": "DAY"}, "500/calendar-day"),
        ({"limit": 500, "offset": 0, "period": "WEEK"}, "500/calendar-week from sunday"),
        ({"limit": 500, "offset": 3, "period": "MONTH"}, "500/calendar-month"),
        ({"limit": 0, "period": "MONTH"}, "deny"),
    ],
)
def test_quotas_are_by_the_calendar(quota: dict[str, Any], text: str) -> None:
    assert limits(quota=quota) == text


class Plan:
    """A usage plan for one key: a bucket with fractions, and a count for each day, week or month in UTC."""

    def __init__(self, rate: Fraction, burst: int, quota: int, period: str) -> None:
        self.rate, self.burst, self.quota, self.period = rate, burst, quota, period
        self.tokens, self.last = Fraction(burst), 0
        self.used: dict[date, int] = {}

    def grants(self, now: int) -> bool:
        """`now` is in microseconds."""
        self.tokens = min(self.tokens + self.rate * (now - self.last) / 1_000_000, Fraction(self.burst))
        self.last = now
        day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now)).date()
        if self.period == "WEEK":
            day -= timedelta(days=day.isoweekday() % 7)
        elif self.period == "MONTH":
            day = day.replace(day=1)
        soon = self.rate / 1_000_000  # the token becomes whole within this microsecond
        if self.tokens + soon <= 1 or self.used.get(day, 0) >= self.quota:
            return False
        self.tokens -= 1
        self.used[day] = self.used.get(day, 0) + 1
        return True


@pytest.mark.parametrize("period", ["DAY", "WEEK", "MONTH"])
@pytest.mark.parametrize("rate", [0.5, 3, 33.3, 0.0125])
def test_every_request_is_answered_as_the_plan_says(period: str, rate: float) -> None:
    clock, dice = FakeClock(), random.Random(f"{period} {rate}")
    quota = 120
    text = json.dumps(plan(throttle={"rateLimit": rate, "burstLimit": 7}, quota={"limit": quota, "period": period}))
    ours, theirs = gate(import_aws(text), clock), Plan(Fraction(str(rate)), 7, quota, period)
    step = {"DAY": 1_800, "WEEK": 12_600, "MONTH": 54_000}[period]
    granted = {True: 0, False: 0}
    for _ in range(2_000):
        clock.now += dice.choice(
            [0, 0, 1, 20_000, round(900_000 / rate), round(1_100_000 / rate), step * 1_000_000 // 4]
        )
        allowed = bool(decide(ours, keyed("ann")))
        assert allowed == theirs.grants(clock.now), clock.now
        granted[allowed] += 1
    assert min(granted.values()) > 100
    assert any(used == quota for used in theirs.used.values())


PATHS = ["/a", "/a/{id}", "/a/mine", "/a/{id}/b", "/a/mine/{x}", "/{proxy+}", "/a/{proxy+}", "/"]
ASKED = ["/a", "/a/1", "/a/mine", "/a/1/b", "/a/mine/b", "/a/mine/c", "/z/z", "/"]


@pytest.mark.parametrize("seed", range(60 if LONG else 20))
def test_the_method_is_that_of_api_gateway(seed: int) -> None:
    dice = random.Random(seed)
    counts = iter(dice.sample(range(1, 30), 8))
    throttles = {
        f"{path.rstrip('/')}/{dice.choice(['GET', 'GET', 'POST', 'ANY'])}": {
            "rateLimit": 0.001,
            "burstLimit": next(counts),
        }
        for path in dice.sample(PATHS, 5)
    }
    whole = {"rateLimit": 0.001, "burstLimit": 40}
    text = json.dumps(plan(apiStages=[{"apiId": "x", "stage": "prod", "throttle": throttles}], throttle=whole))
    for path in ASKED:
        for method in ("GET", "POST"):
            found = passes(gate(import_aws(text)), keyed("ann", path, method), most=50)
            assert found == _routed(throttles, path, method, 40), (path, method, throttles)


def test_a_throttle_for_all_methods_comes_last() -> None:
    throttles = {
        name: {"rateLimit": 1, "burstLimit": n} for n, name in enumerate(("*/*", "/b/*", "/{x}/GET", "/a/GET"), 2)
    }
    text = json.dumps(plan(apiStages=[{"apiId": "x", "stage": "prod", "throttle": throttles}]))
    asked = [("/z/z", "GET"), ("/b", "POST"), ("/c", "GET"), ("/a", "GET"), ("/a", "POST")]
    store = gate(import_aws(text))
    assert [passes(store, keyed("ann", *one)) for one in asked[:4]] == [2, 3, 4, 5]
    assert passes(gate(import_aws(text)), keyed("ann", *asked[4])) == 2


def _routed(throttles: Mapping[str, Any], path: str, method: str, whole: int) -> int:
    """What the most specific of the resources gives: literal segments before {name}, these before {proxy+}."""
    best: tuple[list[int], bool, int] | None = None
    for name, throttle in throttles.items():
        template, _, verb = name.rpartition("/")
        ranks = _ranks(template, path)
        if ranks is not None and verb in (method, "ANY"):
            one = (ranks, verb == "ANY", throttle["burstLimit"])
            best = one if best is None else min(best, one)
    return min(whole, best[2]) if best else whole


def _ranks(template: str, path: str) -> list[int] | None:
    wanted, segments = ([part for part in text.split("/") if part] for text in (template, path))
    ranks: list[int] = []
    for place, part in enumerate(wanted):
        if part.endswith("+}"):
            return [*ranks, 2] if len(segments) > place else None
        if place >= len(segments) or (part != segments[place] and not part.startswith("{")):
            return None
        ranks.append(int(part.startswith("{")))
    return ranks if len(wanted) == len(segments) else None


KEYS = json.dumps(
    {
        "items": [
            {"id": "k1k1k1k1k1", "type": "API_KEY", "value": "SECRET-of-ann", "name": "Ann"},
            {"id": "k2k2k2k2k2", "type": "API_KEY", "name": "Bob", "enabled": False},
            {"id": "SECRETofoldkey0123456789", "type": "API_KEY", "name": "Old"},
            {"id": "SECRETofold", "type": "API_KEY", "name": "Older", "value": "SECRETofold"},
            {"id": "k1k1k1k1k1", "type": "API_KEY", "name": "Ann"},
        ]
    }
)


@pytest.mark.parametrize("name", ["Basic", "a1b2c3"])
def test_keys_are_listed_by_their_ids_and_never_by_their_values(name: str) -> None:
    imported = import_aws(PLANS, {name: KEYS})
    tree = yaml.safe_load(imported.text)
    assert tree["tiers"] == {"Basic": ["api-key:k1k1k1k1k1"], "Pro-2026": []}
    assert "SECRET" not in imported.text + lost(imported)
    assert "k2k2k2k2k2 of plan" in lost(imported)
    assert "API key Old of plan" in lost(imported)
    assert "API key Older of plan" in lost(imported)
    store = gate(imported, owners={"s1": "k1k1k1k1k1", "bob": Identity("api-key", "k3", "Pro-2026")})
    assert [passes(store, keyed(key)) for key in ("s1", "bob", "s2")] == [20, 40, 0]


def test_a_key_in_several_plans_has_the_first() -> None:
    keys = json.dumps({"items": [{"id": "k1", "name": "Ann"}]})
    imported = import_aws(PLANS, {"d4e5f6": keys, "Basic": keys})
    assert yaml.safe_load(imported.text)["tiers"] == {"Basic": [], "Pro-2026": ["api-key:k1"]}
    assert "k1 is in several plans; in this policy it is in Pro-2026" in lost(imported)


def test_the_output_of_every_command_is_read() -> None:
    one = STORE["items"][0]
    alone = import_aws(json.dumps(one))
    assert alone.text == import_aws(json.dumps({"items": [one]})).text == import_aws(json.dumps([one])).text
    assert alone.text == import_aws("\ufeff" + json.dumps(one, indent=4)).text
    assert passes(gate(alone), keyed("ann")) == 20


def test_what_stays_behind_is_told() -> None:
    told = lost(import_aws(PLANS))
    for words in (
        "plan Pro (2026) is the tier Pro-2026",
        "the offset of 2 in its quota is left out",
        "productCode is left out",
        'Identity("api-key", ID, TIER)',
        "add paths that need none to 'exempt'",
        "have no stage in front",
        "/pets/mine counts as /pets/{id} unless it has one",
        "throttles of the account and of API stages",
        "processes do not share memory://",
    ):
        assert words in told
    assert "API stages; this policy does not distinguish them" not in told


def test_several_stages_are_one_and_it_is_told() -> None:
    stages = [
        {"apiId": api, "stage": "prod", "throttle": {"/pets/GET": {"rateLimit": rate, "burstLimit": 5}}}
        for api, rate in (("x", 1), ("y", 2))
    ]
    imported = import_aws(json.dumps(plan(apiStages=stages)))
    assert "the plans are for 2 API stages" in lost(imported)
    assert (
        "throttles /pets/GET differently in several API stages; this policy has one limit for it: 1/second burst 5"
        in (lost(imported))
    )


def test_names_of_plans_become_names_of_tiers() -> None:
    names = ["Basic", "basic", "default", "9 lives", "ü", "x" * 60]
    text = json.dumps([plan(name=name, throttle={"rateLimit": 1, "burstLimit": 1}) for name in names])
    tiers = yaml.safe_load(import_aws(text).text)["tiers"]
    assert tiers == ["Basic", "basic-2", "plan-default", "plan-9-lives", "plan", "x" * 28]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"items": []}, "there is no usage plan: check the region of: aws apigateway get-usage-plans"),
        ([], "there is no usage plan"),
        ({}, "expected a usage plan with an id and a name. Expected the output of: aws apigateway get-usage-plans"),
        ("plans", "expected a usage plan, not 'plans'"),
        (None, "expected a usage plan, not None"),
        ({"items": [5]}, r"items\[0\]: expected a usage plan, not 5"),
        (json.loads(KEYS), "this is an API key, not a usage plan: give keys with --keys PLAN=FILE"),
        (plan(), "no usage plan has a throttle or a quota"),
        (plan(throttle=5), "throttle: expected rateLimit and burstLimit, not 5"),
        (plan(throttle={"rateLimit": "10", "burstLimit": 5}), "throttle.rateLimit: expected 0, or a number from .* to"),
        (plan(throttle={"rateLimit": True, "burstLimit": 5}), "throttle.rateLimit: expected 0, or a number"),
        (plan(throttle={"rateLimit": -1, "burstLimit": 5}), "throttle.rateLimit: expected 0, or a number"),
        (plan(throttle={"rateLimit": 1e-300, "burstLimit": 5}), "throttle.rateLimit: expected 0, or a number"),
        (plan(throttle={"rateLimit": float("nan"), "burstLimit": 5}), "cannot read this as JSON: NaN"),
        (
            plan(throttle={"rateLimit": 1, "burstLimit": 1.5}),
            "burstLimit: expected 0, or a whole number from 1 to .*, not 1.5",
        ),
        (plan(throttle={"rateLimit": 0.000001, "burstLimit": 10**9}), "throttle: .* is not possible in a policy"),
        (plan(quota=5), "quota: expected limit and period, not 5"),
        (plan(quota={"limit": 5, "period": "YEAR"}), "quota.period: expected DAY, WEEK, MONTH, not 'YEAR'"),
        (plan(quota={"period": "DAY"}), "quota.limit: expected the number of requests"),
        (plan(apiStages=5), "apiStages: expected a list of objects, not 5"),
        (plan(apiStages=[{"throttle": 5}]), r"apiStages\[0\].throttle: expected methods like '/pets/GET', not 5"),
        (plan(apiStages=[{"throttle": {"/pets": {}}}]), "cannot read the method '/pets'"),
        (
            plan(apiStages=[{"throttle": {"/pets/GET": {"rateLimit": "x"}}}]),
            r"apiStages\[0\].throttle./pets/GET.rateLimit: expected 0, or a number",
        ),
    ],
)
def test_what_cannot_be_read_is_told_by_place(tree: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        import_aws(json.dumps(tree))


def test_every_mistake_is_told_at_once() -> None:
    wrong = [{"limit": 1}, {"limit": -1, "period": "DAY"}, {"period": "DAY"}]
    plans = {"items": [plan(throttle={"rateLimit": "x", "burstLimit": "y"}), *(plan(quota=quota) for quota in wrong)]}
    with pytest.raises(PolicyError) as refused:
        import_aws(json.dumps(plans))
    assert [problem.where for problem in refused.value.problems] == [
        "items[0].throttle.rateLimit",
        "items[0].throttle.burstLimit",
        "items[1].quota.period",
        "items[2].quota.limit",
        "items[3].quota.limit",
    ]


@pytest.mark.parametrize("text", ["", "usage plans", "{", "ITEMS\ta1b2c3\tBasic", "[" * 100_000])
def test_text_that_is_no_json_says_which_command_prints_it(text: str) -> None:
    with pytest.raises(PolicyError, match="Expected the output of: aws apigateway get-usage-plans --output json"):
        import_aws(text)


def test_keys_of_an_unknown_plan_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"keys of the plan 'Gold': expected the id or name of one of Basic, Pro"):
        import_aws(PLANS, {"Gold": KEYS})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n{", "keys of the plan 'Basic', line 2: cannot read this as JSON"),
        ("{}", "keys of the plan 'Basic': expected a list of API keys"),
        ('{"items": [5]}', "expected a list of API keys"),
        ("5", "expected a list of API keys"),
        (PLANS, "expected a list of API keys"),
    ],
)
def test_keys_that_cannot_be_read_say_which_command_prints_them(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match="aws apigateway get-usage-plan-keys") as refused:
        import_aws(PLANS, {"Basic": text})
    assert words in str(refused.value)
    assert refused.value.problems[0].line is None, "the line would be taken for one of the plans"


VALUES = st.none() | st.booleans() | st.integers(-5, 10**13) | st.floats() | st.text(max_size=8)
THROTTLES = st.fixed_dictionaries({}, optional={"rateLimit": VALUES, "burstLimit": VALUES})
STAGES = st.fixed_dictionaries(
    {"apiId": VALUES, "stage": VALUES},
    optional={
        "throttle": VALUES | st.dictionaries(st.sampled_from([f"{path}/GET" for path in PATHS]) | st.text(), THROTTLES)
    },
)
ANY_PLAN = st.fixed_dictionaries(
    {"name": VALUES, "id": VALUES},
    optional={
        "throttle": VALUES | THROTTLES,
        "quota": VALUES | st.fixed_dictionaries({"limit": VALUES, "period": st.sampled_from(["DAY", "WEEK", 5])}),
        "apiStages": VALUES | st.lists(VALUES | STAGES, max_size=2),
    },
)


@given(st.lists(VALUES | ANY_PLAN, max_size=3), st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=1))
def test_any_plans_give_a_policy_that_loads_or_a_clear_error(plans: list[Any], keys: dict[str, str]) -> None:
    try:
        imported = import_aws(json.dumps(plans), keys)
    except PolicyError:
        return
    assert read_policy(imported.text, functions=functions_from(None), environ={}).rules
