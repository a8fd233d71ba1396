"""`ratebound policy explain`: which rules, by whom, how much; and nothing is charged."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratebound.cli.policy_explain import stages_of
from ratebound.policy import load_policy
from tests.policy.gates import EXAMPLES
from tests.policy_cli.commands import LOGIN, run, written


def told(*arguments: str) -> list[dict[str, Any]]:
    result = run("explain", *arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def rule(stage: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in stage["rules"] if one["name"] == name)


def test_a_login_is_explained() -> None:
    result = run("explain", LOGIN, "--method", "post", "--path", "/auth/login", "--peer", "203.0.113.7")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "POST /auth/login from 203.0.113.7"
    assert "stage early: the matching rules count it" in lines
    assert "   yes  login: path /auth/login, /v{version}/auth/login; method POST" in lines
    assert "          counts by address:203.0.113.7" in lines
    assert "          limit     5/minute, sliding-log, named login/minute" in lines
    assert "   no   search: the path is none of /search" in lines
    assert "   no   reads: the method is none of GET, HEAD" in lines
    assert "          counts by address:203.0.113.7 (not found: user)" in lines
    assert '   RateLimit: "login/minute";r=4;t=60' in lines
    assert "denied, once the limit is used up: 429" in lines
    assert "   Retry-After: 60" in lines
    assert "Too many attempts to log in." in result.stdout


def test_json_tells_the_same() -> None:
    early, late = told(LOGIN, "--method", "POST", "--path", "/auth/login", "--peer", "203.0.113.7")
    assert (early["stage"], early["kind"], early["address"]) == ("early", "limited", "203.0.113.7")
    login = rule(early, "login")
    assert login["applies"]
    assert (login["identity"], login["limits"]) == ("address:203.0.113.7", ["5/minute as login/minute"])
    assert (login["cost"], login["mode"], login["failure"]) == (1, "enforce", "local")
    assert not rule(late, "search")["applies"]
    assert rule(late, "login")["why"] == "it belongs to the stage early"
    assert early["rejection"]["status"] == 429
    assert ["Retry-After", "60"] in early["rejection"]["headers"]
    assert json.loads(early["rejection"]["body"])["violated-policies"] == ["login/minute"]


def test_the_priority_is_told_where_limits_adapt(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    rules = "rules: [{name: a, limits: 5/minute, priority: low}, {name: b, limits: 9/minute, priority: critical}]\n"
    path.write_text(rules)
    assert "priority" not in run("explain", str(path), "--path", "/").stdout
    path.write_text("adaptive: {lag: 1 s}\n" + rules)
    lines = run("explain", str(path), "--path", "/").stdout.splitlines()
    assert "          priority  low: lowered first under overload" in lines
    assert "          priority  critical: never lowered" in lines


def test_one_stage_may_be_chosen() -> None:
    assert [one["stage"] for one in told(LOGIN, "--path", "/", "--stage", "early")] == ["early"]
    assert [one["stage"] for one in told(LOGIN, "--path", "/", "--stage", "late")] == ["late"]
    assert stages_of(load_policy(EXAMPLES / "per_user.yaml")) == ["late"]


def test_a_key_that_nobody_verified_is_not_an_identity() -> None:
    file = str(EXAMPLES / "identities.yaml")
    (said,) = told(file, "--path", "/", "--header", "X-Api-Key: k", "--peer", "203.0.113.7")
    assert rule(said, "clients")["identity"] == "address:203.0.113.7"
    assert "not found: api-key, jwt.sub, session" in run("explain", file, "--path", "/", "--peer", "203.0.113.7").stdout


@pytest.mark.parametrize(
    ("arguments", "identity", "limits"),
    [
        (("--identity", "api-key=acme", "--tier", "pro"), "api-key:acme", "10/minute as clients/minute"),
        (("--identity", "api-key=acme"), "api-key:acme", "5/minute as clients/minute"),
        (("--identity", "jwt:sub=42", "--tier", "pro"), "jwt.sub:42", "10/minute as clients/minute"),
        (("--identity", "session=s"), "session:s", "5/minute as clients/minute"),
        (("--tier", "pro"), "address:203.0.113.7", "10/minute as clients/minute"),
    ],
)
def test_what_a_verifier_would_find_can_be_said(arguments: tuple[str, ...], identity: str, limits: str) -> None:
    (said,) = told(str(EXAMPLES / "identities.yaml"), "--path", "/", "--peer", "203.0.113.7", *arguments)
    assert (rule(said, "clients")["identity"], rule(said, "clients")["limits"]) == (identity, [limits])


def test_a_kind_that_a_source_declares_can_be_said(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "identities: {api-key: {verify: {call: find, cache: 5 minutes}, kinds: customer}}\n"
        "overrides: [{client: 'customer:42', limits: 9/minute}]\n"
        "rules: [{name: a, by: api-key, limits: 5/minute}]\n"
    )
    (said,) = told(str(file), "--path", "/", "--identity", "customer=42")
    assert (rule(said, "a")["identity"], rule(said, "a")["limits"]) == ("customer:42", ["9/minute as a/minute"])


def test_a_user_and_a_tier() -> None:
    file = str(EXAMPLES / "tiers.yaml")
    (said,) = told(file, "--path", "/", "--user", "ann", "--tier", "premium")
    assert rule(said, "api")["identity"] == "user:ann"
    assert rule(said, "api")["limits"][1] == "1000/minute as api/minute"
    (acme,) = told(file, "--path", "/", "--user", "acme")
    assert acme["tier"] == "enterprise"


def test_the_address_behind_a_proxy() -> None:
    file = str(EXAMPLES / "per_address.yaml")
    (said,) = told(file, "--path", "/", "--peer", "10.0.0.1", "--header", "X-Forwarded-For: 6.6.6.6, 203.0.113.7")
    assert (said["address"], said["address_from"]) == ("203.0.113.7", "x-forwarded-for")
    result = run("explain", file, "--path", "/", "--peer", "10.0.0.1", "--header", "x-forwarded-for: 203.0.113.7")
    assert "from 203.0.113.7 (from x-forwarded-for)" in result.stdout
    (unknown,) = told(file, "--path", "/", "--peer", "9.9.9.9", "--header", "X-Forwarded-For: 203.0.113.7")
    assert unknown["address"] == "9.9.9.9"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "status"),
    [
        ("lists.yaml", ("--path", "/", "--peer", "198.51.100.9"), "block", 403),
        ("lists.yaml", ("--path", "/", "--user", "monitoring"), "allow", None),
        ("lists.yaml", ("--path", "/admin/x"), "deny", 403),
        ("health.yaml", ("--path", "/health"), "exempt", None),
        ("costs.yaml", ("--path", "/nothing"), "unmatched", None),
    ],
)
def test_what_is_decided_without_counting(name: str, arguments: tuple[str, ...], kind: str, status: int | None) -> None:
    (said,) = told(str(EXAMPLES / name), *arguments)
    assert said["kind"] == kind
    assert (said["rejection"] or {}).get("status") == status
    assert run("explain", str(EXAMPLES / name), *arguments).exit_code == 0


def test_a_switch_that_is_off(tmp_path: Path) -> None:
    (said,) = told(written(tmp_path, "switch: off\nrules: [{name: a, limits: 1/minute}]"), "--path", "/")
    assert (said["kind"], said["allowed"]) == ("off", True)


def test_an_override_is_said() -> None:
    (said,) = told(str(EXAMPLES / "lists.yaml"), "--path", "/", "--user", "batch")
    assert rule(said, "api")["limits"] == ["20/minute as api/minute"]
    assert "an override for this client" in rule(said, "api")["why"]


def test_costs_are_found_in_the_body() -> None:
    body = json.dumps([{"method": "add"}] * 5)
    (said,) = told(str(EXAMPLES / "costs.yaml"), "--method", "POST", "--path", "/rpc", "--body", body)
    assert rule(said, "rpc")["cost"] is None
    assert ["RateLimit", '"rpc/minute";r=15;t=60'] in said["headers"]


def test_charges_and_strikes_by_result_are_said(tmp_path: Path) -> None:
    penalty = "3 strikes/hour block 5 minutes"
    file = written(
        tmp_path,
        f"""
rules:
  - {{name: a, by: address, limits: 9/minute; {penalty}, charge: failure, strike: {{status: [401, 5xx]}}}}
  - {{name: b, by: address, limits: 9/second, charge: {{bytes: 1 KB}}}}
  - {{name: c, by: address, limits: 9/hour}}
""",
    )
    (said,) = told(file, "--path", "/")
    assert (rule(said, "a")["charge"], rule(said, "a")["strike"]) == ("failure", {"status": [401, "5xx"]})
    assert (rule(said, "b")["charge"], rule(said, "b")["strike"]) == ({"bytes": "1 KB"}, None)
    words = " ".join(run("explain", file, "--path", "/").stdout.split())
    assert "charge by result: failure" in words
    assert "charge by result: bytes: 1 KB" in words
    assert "also a result: status: 401, 5xx" in words
    assert words.count("charge by result") == 2


def test_a_cost_that_is_not_at_hand_counts_as_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path, "rules: [{name: a, cost: {call: weight}, limits: 9/minute}]")
    (said,) = told(file, "--path", "/")
    assert ["RateLimit", '"a/minute";r=8;t=60'] in said["headers"]
    assert "computed by a function" in run("explain", file, "--path", "/").stdout
    assert not caplog.records


def test_real_functions_are_called_if_asked_async_ones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verifiers_of_mine.py").write_text("async def find(key):\n    return key.upper()\n")
    file = written(tmp_path, "identities: {api-key: {verify: find}}\nrules: [{name: a, by: api-key, limits: 9/second}]")
    (said,) = told(file, "--path", "/", "--header", "X-Api-Key: acme", "--functions", "verifiers_of_mine")
    assert rule(said, "a")["identity"] == "api-key:ACME"


def test_the_storage_of_the_policy_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("ratebound.storage.urls._redis", refuse)
    file = written(tmp_path, "storage: redis://127.0.0.1:1\nrules: [{name: a, limits: 2/minute}]")
    for _ in range(3):
        (said,) = told(file, "--path", "/", "--peer", "192.0.2.1")
        assert ["RateLimit", '"a/minute";r=1;t=60'] in said["headers"]


def test_all_readings_of_a_path_are_told() -> None:
    result = run("explain", LOGIN, "--path", "/x/..%2fsearch", "--stage", "late")
    assert "readings of the path:" in result.stdout
    assert "   yes  search: path /search" in result.stdout


def test_shadows_and_candidates_are_marked() -> None:
    result = run("explain", str(EXAMPLES / "trying_out.yaml"), "--path", "/upload", "--peer", "192.0.2.1")
    assert "mode      shadow: only reported" in result.stdout
    assert "candidate evaluated as well, and only reported" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--path", "x"), "expected a path that begins with '/'"),
        (("--path", "/", "--header", "nothing"), "expected 'Name: value'"),
        (("--path", "/", "--tier", "gold"), "--tier 'gold'"),
        (("--path", "/", "--identity", "api-kee=x"), "did you mean 'api-key'?"),
        (("--path", "/", "--identity", "x"), "expected NAME=VALUE"),
    ],
)
def test_a_mistake_goes_to_stderr_as_the_message_alone_with_status_2(arguments: tuple[str, ...], words: str) -> None:
    result = run("explain", str(EXAMPLES / "identities.yaml"), *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_broken_policy_is_told(tmp_path: Path) -> None:
    result = run("explain", written(tmp_path, "rules: []"), "--path", "/")
    assert (result.exit_code, "a policy without rules limits nothing" in result.stderr) == (2, True)


def test_a_narrow_terminal_survives() -> None:
    assert run("explain", LOGIN, "--path", "/search", width=10).exit_code == 0


ABUSE = """
penalties:
  guessing: {after: 3 strikes/hour, block: [5 minutes, 1 hour], forget: 1 day}
identities: {api-key: {verify: find}}
rules:
  - name: login
    match: {paths: [/login]}
    by: [api-key, address]
    limits: 10/minute
    penalty: guessing
  - {name: ids, match: {paths: ["/users/{id}"]}, by: address, limits: 2 distinct id/hour, distinct: {id: path.id}}
  - {name: account, match: {paths: [/login]}, by: body.username, limits: 5/hour}
"""


def test_it_says_what_strikes_and_for_how_long_a_client_is_blocked(tmp_path: Path) -> None:
    result = run("explain", written(tmp_path, ABUSE), "--path", "/login", "--identity", "api-key=x", width=200)
    lines = result.stdout.splitlines()
    assert "          strike    a denial by this rule, but not because no slot is free; one a second at most" in lines
    assert (
        "          block     at 3 strikes/hour for 5 minutes, then 1 hour, which repeats; forgotten 1 day after a block"
        " or strike" in lines
    )
    [stage] = told(written(tmp_path, ABUSE), "--path", "/login", "--body", '{"username": "Ann"}')
    assert rule(stage, "login")["penalty"] == "guessing"
    assert rule(stage, "account")["identity"] == "body.username:ann"


def test_it_says_where_a_distinct_value_comes_from(tmp_path: Path) -> None:
    result = run("explain", written(tmp_path, ABUSE), "--path", "/users/7", width=200)
    assert "          value     id is path.id; absent is one value" in result.stdout.splitlines()
    [stage] = told(written(tmp_path, ABUSE), "--path", "/users/7")
    assert rule(stage, "ids")["distinct"] == {"id": "path.id"}
    assert stage["allowed"]
    assert stage["rejection"]["status"] == 429


def test_it_says_why_a_body_cannot_be_read(tmp_path: Path) -> None:
    [stage] = told(written(tmp_path, ABUSE), "--path", "/login", "--body", "{")
    assert (stage["kind"], stage["rejection"]["status"]) == ("deny", 403)
    assert "unreadable: The body is not valid JSON" in rule(stage, "account")["why"]


SLICED = """
rules:
  - {name: search, match: {paths: /search}, by: user, limits: 600/minute, slice: true, deny_cache: true}
  - {name: window, match: {paths: /window}, by: user, limits: 600/minute fixed-window, slice: {share: 10%, for: 500 ms}}
  - {name: address, match: {paths: /window}, by: address, limits: 9000/hour}
"""


def test_it_says_what_a_slice_and_a_deny_cache_do(tmp_path: Path) -> None:
    file = written(tmp_path, SLICED)
    lines = run("explain", file, "--path", "/search", width=400).stdout.splitlines()
    assert (
        "          slice     a process takes up to 5% of what remains of '600/minute' at once, at most 30, and uses it"
        " within 1 s; in any minute no more passes than '600/minute' gives in 1 minute and 1 s"
    ) in lines
    assert any(line.startswith("          denials   a process repeats a denial for up to 1 s") for line in lines)
    [stage] = told(file, "--path", "/search")
    assert (rule(stage, "search")["slice"], rule(stage, "search")["deny_cache"]) == ({"share": 0.05, "for": 1.0}, True)
    assert (rule(stage, "address")["slice"], rule(stage, "address")["deny_cache"]) == (None, False)


def test_long_words_are_indented_on_a_narrow_terminal(tmp_path: Path) -> None:
    lines = run("explain", written(tmp_path, SLICED), "--path", "/search", width=80).stdout.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("          slice     a process takes"))
    assert len(lines[begin]) <= 80
    assert lines[begin + 1].startswith(" " * 20)
    assert lines[begin + 1][20] != " "


def test_it_says_which_rule_keeps_a_slice_from_serving_the_request(tmp_path: Path) -> None:
    lines = run("explain", written(tmp_path, SLICED), "--path", "/window", width=400).stdout.splitlines()
    assert (
        "          slice     a process takes up to 10% of what remains of '600/minute fixed-window' at once, at most"
        " 60, and uses it within 500 ms; it ends with its window, so no window has more than 600"
    ) in lines
    assert "          slice     saves no trip for this request: rule 'address' has none" in lines


def test_a_path_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """A path from a log is decoded for its readings, and what it hides is not printed as it is."""
    file = written(tmp_path, "rules: [{name: all, limits: 5/minute}]")
    result = run("explain", file, "--path", "/%1b%5d0;x%07\x1b[2J\u202e")
    assert result.exit_code == 0, result.stderr
    assert not {one for one in result.stdout if not one.isprintable()} - {"\n"}
    assert "readings of the path: /\\x1b]0;x\\x07" in result.stdout
