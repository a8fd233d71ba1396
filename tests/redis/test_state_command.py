"""The command `ratebound state`, on a real Redis: what it shows, grants and resets, and what it says to a mistake."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.state import state
from ratebound.events import Called
from ratebound.policy import Gate, RequestView, load_policy
from tests.servers import Server

runs = itertools.count()
LIMITS = "10000/calendar-month as monthly; 100/minute"
POLICY = """\
identities:
  api-key: {verify: find_customer}
tiers: {pro: ["user:ann"]}
rules:
  - {name: monthly, limits: {pro: 5000/calendar-month, default: 100/calendar-month}, by: user}
  - {name: rate, limits: 20/minute, by: user}
  - {name: pair, limits: 30/minute, by: user+address}
"""


@pytest.fixture
def url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=state{next(runs)}-"


def run(*arguments: str, width: int = 100) -> Result:
    return CliRunner().invoke(state, arguments, env={"COLUMNS": str(width)})


def document(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return {one["name"]: one for one in json.loads(done.stdout)}


@pytest.fixture
def policy(tmp_path: Path, url: str) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(f"storage: {url}\n{POLICY}")
    return str(file)


def spend(policy: str, user: str, times: int = 1) -> None:
    with Gate(load_policy(policy, functions={"find_customer": lambda key: key})) as gate:
        for _ in range(times):
            assert gate.decide(RequestView("GET", "/", peer="192.0.2.1", user=user))


def test_usage_of_a_key_is_what_its_limiter_has_counted(url: str) -> None:
    with Limiter(LIMITS, storage=url) as limiter:
        limiter.hit("user:42", cost=7)
        (monthly, _) = limiter.usage("user:42")
    found = document("usage", "user:42", "--storage", url, "--limits", LIMITS)
    assert found["monthly"] == {
        "name": "monthly",
        "rule": None,
        "limit": "10000/calendar-month",
        "quota": 10000,
        "used": 7,
        "remaining": 9993,
        "granted": 0,
        "previous": 0,
        "resets_at": monthly.resets_at.isoformat(),
        "blocked": False,
    }
    assert (found["100/minute"]["used"], found["100/minute"]["previous"]) == (7, None)


def test_people_see_a_table(url: str) -> None:
    with Limiter(LIMITS, storage=url) as limiter:
        limiter.hit("user:42", cost=7)
        (monthly, _) = limiter.grant("user:42", 500)
    done = run("usage", "user:42", "--storage", url, "--limits", LIMITS)
    lines = [line.split("  ") for line in done.output.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["limit", "used", "quota", "remaining", "previous", "resets at (UTC)"] in cells
    ends = f"{monthly.resets_at:%Y-%m-%d %H:%M:%S}"
    assert ["monthly", "7", "10,500 (+500)", "10,493", "0", ends] in cells


def test_a_grant_and_a_reset_are_seen_by_the_limiter(url: str) -> None:
    where = ("--storage", url, "--limits", LIMITS)
    with Limiter(LIMITS, storage=url) as limiter:
        limiter.hit("user:42", cost=7)
        granted = document("grant", "user:42", "500", *where)
        assert granted["monthly"]["quota"] == limiter.usage("user:42")[0].quota == 10500
        left = document("reset", "user:42", *where, "--only", "100/minute")
        assert (list(left), left["100/minute"]["used"]) == (["100/minute"], 0)
        assert document("usage", "user:42", *where)["monthly"]["used"] == 7
        assert document("reset", "user:42", *where)["monthly"]["used"] == limiter.usage("user:42")[0].used == 0


def test_a_client_of_a_policy_is_named_by_its_identity(policy: str) -> None:
    spend(policy, "bob", 3)
    found = document("usage", "user:bob", "--policy", policy)
    assert {name: (one["rule"], one["quota"], one["used"]) for name, one in found.items()} == {
        "monthly/calendar-month": ("monthly", 100, 3),
        "rate/minute": ("rate", 20, 3),
    }
    assert document("usage", "user:bob", "--policy", policy, "--tier", "pro")["monthly/calendar-month"]["quota"] == 5000
    assert document("usage", "user:ann", "--policy", policy)["monthly/calendar-month"]["quota"] == 5000
    assert document("usage", "user:bob", "192.0.2.1", "--policy", policy)["pair/minute"]["used"] == 3


def test_a_tier_that_is_only_assumed_is_told_beside_the_usage(policy: str) -> None:
    assert run("usage", "user:bob", "--policy", policy).stderr == "tier default assumed: give --tier\n"
    for told in (["user:ann"], ["user:bob", "--tier", "pro"], ["user:bob", "--only", "rate"]):
        assert run("usage", *told, "--policy", policy).stderr == ""


def test_the_default_tier_is_assumed_as_in_a_decision(tmp_path: Path, url: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"storage: {url}\ntiers: [trial, pro]\ndefault_tier: trial\n"
        "rules: [{name: api, by: user, limits: {trial: 3/hour, pro: 9/hour, default: 5/hour}}]\n"
    )
    spend(str(file), "bob")
    done = run("usage", "user:bob", "--policy", str(file), "--json")
    assert [(one["quota"], one["used"]) for one in json.loads(done.stdout)] == [(3, 1)]
    assert done.stderr == "tier trial assumed: give --tier\n"


def test_a_client_of_a_source_that_declares_other_kinds_is_questioned(tmp_path: Path, url: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"storage: {url}\nidentities: {{api-key: {{verify: find_customer, kinds: [customer]}}}}\n"
        "rules: [{name: api, by: api-key, limits: 9/hour}]\n"
    )
    assert "did you mean customer:acme?" in run("usage", "api-key:acme", "--policy", str(file)).stderr
    assert run("usage", "customer:acme", "--policy", str(file)).stderr == ""
    assert "'203.0.113.7' or 'customer:acme'" in run("usage", "acme", "--policy", str(file)).stderr


def test_grants_and_resets_of_a_policy_may_name_a_rule(policy: str) -> None:
    spend(policy, "bob", 3)
    granted = document("grant", "user:bob", "40", "--policy", policy, "--only", "monthly")
    assert granted["monthly/calendar-month"]["quota"] == 140
    assert list(document("reset", "user:bob", "--policy", policy, "--only", "rate")) == ["rate/minute"]
    found = document("usage", "user:bob", "--policy", policy)
    assert (found["rate/minute"]["used"], found["monthly/calendar-month"]["used"]) == (0, 3)


def test_usage_may_name_a_rule_or_a_limit(policy: str, url: str) -> None:
    assert list(document("usage", "user:bob", "--policy", policy, "--only", "rate")) == ["rate/minute"]
    where = ("--storage", url, "--limits", LIMITS)
    assert list(document("usage", "user:42", *where, "--only", "monthly")) == ["monthly"]


def test_holders_of_slots_are_listed_by_key(url: str) -> None:
    with Limiter("3 concurrent; 2 concurrent for 10 minutes as long", storage=url) as limiter:
        with limiter.acquire("user:42"):
            held = limiter.holders("user:42")
            where = ("--storage", url, "--limits", "3 concurrent; 2 concurrent for 10 minutes as long")
            done = run("holders", "user:42", *where, "--json")
            assert [(one["name"], one["id"]) for one in json.loads(done.stdout)] == [
                (one.limit.name, one.id) for one in held
            ]
            (long,) = json.loads(run("holders", "user:42", *where, "--only", "long", "--json").stdout)
            assert long["id"] == held[1].id
            assert str(held[0].id) in run("holders", "user:42", *where).stdout
        assert run("holders", "user:42", *where).stdout == "no slot is held\n"


def test_holders_of_slots_under_a_policy_are_listed_by_identity(tmp_path: Path, url: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"storage: {url}\nrules: [{{name: exports, limits: 2 concurrent; 50/hour, by: user}}]")
    with Gate(load_policy(file)) as gate:
        gate.decide(RequestView("GET", "/", peer="192.0.2.1", user="bob"))
        (held,) = gate.holders("user:bob")
    done = run("holders", "user:bob", "--policy", str(file), "--json")
    assert json.loads(done.stdout) == [
        {
            "name": "exports/concurrent",
            "limit": "2 concurrent",
            "id": held.id,
            "expires_at": held.expires_at.isoformat(),
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usage", "a"], "expected either --limits"),
        (["usage", "a", "--limits", "1/minute", "--policy", "x.yaml"], "expected either --limits"),
        (["usage", "a", "--limits", "1/minute"], "expected --storage"),
        (["usage", "a", "--limits", "1/minute", "--storage", "memory://"], "this command cannot see it"),
        (["usage", "a", "--limits", "1/minute", "--storage", "http://x"], "cannot open storage 'http://x'"),
        (["usage", "a", "--limits", "1/fortnight", "--storage", "redis://x"], "1/fortnight"),
        (["usage", "a", "b", "--limits", "1/minute", "--storage", "redis://x"], "a limiter has one key"),
        (["grant", "a", "5", "--limits", "1/minute", "--storage", "redis://x"], "there is none: use a calendar period"),
        (["grant", "a", "0", "--limits", "1/calendar-day", "--storage", "redis://x"], "units must be a whole number"),
        (["grant", "a", "--limits", "1/calendar-day", "--storage", "redis://x"], "'a' is not a valid integer"),
        (["grant", "5", "--limits", "1/calendar-day", "--storage", "redis://x"], "Missing argument 'KEY...'"),
        (["reset", "a", "--limits", "1/minute", "--only", "b", "--storage", "redis://x"], "no limit is named 'b'"),
        (["usage", "a", "--limits", "1/minute", "--tier", "pro", "--storage", "redis://x"], "--tier is for --policy"),
    ],
)
def test_a_mistake_is_told_with_status_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usage", "session:x"], "no rule counts by session"),
        (["usage", "user"], "names no client"),
        (["reset", "user:1", "--only", "montly"], "unknown rule 'montly'"),
        (["usage", "user:1", "--only", "montly"], "unknown rule 'montly': did you mean 'monthly'?"),
        (["usage", "user:1", "--only", "monthly/calendar-month"], "unknown rule 'monthly/calendar-month'"),
        (["usage", "user:1", "--tier", "prö"], "unknown tier 'prö'"),
    ],
)
def test_a_mistake_about_a_policy_is_told_with_status_2(arguments: list[str], message: str, policy: str) -> None:
    done = run(*arguments, "--policy", policy)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("command", [["usage", "a"], ["reset", "a"], ["grant", "a", "5"], ["holders", "a"]])
def test_a_storage_that_is_out_of_reach_is_told_with_status_1(command: list[str]) -> None:
    done = run(*command, "--storage", "redis://127.0.0.1:1/0", "--limits", "5/calendar-day")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the storage could not be reached" in done.stderr


def test_values_strikes_and_blocks_are_shown_and_a_reset_lifts_the_block(url: str) -> None:
    limits = "1/day as daily; 5 distinct account/hour as accounts; 1 strike/hour block 5 minutes as guessing"
    told: list[Any] = []
    with Limiter(limits, storage=url, listeners=[told.append], warn="100%") as limiter:
        for _ in range(2):
            limiter.hit("user:42", values={"account": "alice"})
        events = [type(event).__name__ for event in told if not isinstance(event, Called)]
        assert events == ["Decided", "Warned", "Decided", "Struck", "BlockBegan"]
        assert sum(isinstance(event, Called) for event in told) == 2, "one call for each decision"
        options = ("user:42", "--storage", url, "--limits", limits)
        found = document("usage", *options)
        assert {name: (one["used"], one["blocked"]) for name, one in found.items()} == {
            "daily": (1, False),
            "accounts": (1, False),
            "guessing": (1, True),
        }
        assert "guessing, blocked" in run("usage", *options).output
        assert "alice" not in run("usage", *options).output
        assert not document("reset", *options, "--only", "guessing")["guessing"]["blocked"]
        assert not limiter.peek("user:42", values={"account": "alice"}).blocked


def test_grants_and_resets_are_in_the_audit_log(policy: str, url: str) -> None:
    def changes() -> list[tuple[str, ...]]:
        with Gate(load_policy(policy, functions={"find_customer": lambda key: key})) as gate:
            return [one[1:] for one in reversed(gate.changes())]

    spend(policy, "bob")
    for wrong in (("0", "monthly"), ("5", "nothing"), ("5", "rate")):
        assert run("grant", "user:bob", wrong[0], "--policy", policy, "--only", wrong[1]).exit_code == 2
    assert changes() == [], "what is refused is not recorded"
    assert run("grant", "user:bob", "5", "--policy", policy, "--only", "monthly", "--by", "ann").exit_code == 0
    assert run("reset", "user:bob", "203.0.113.7", "--policy", policy, "--by", "ann").exit_code == 0
    assert run("grant", "job:1", "7", "--storage", url, "--limits", LIMITS, "--by", "eve").exit_code == 0
    assert changes() == [
        ("ann", "grant", "user:bob", "5 units of rule monthly"),
        ("ann", "reset", "user:bob + 203.0.113.7", ""),
        ("eve", "grant", "job:1", "7 units"),
    ]
