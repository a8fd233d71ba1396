"""The policy for operators: its text without secrets, a dry run that can do nothing, and reading it again."""

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ratebound.admin.policy_source import GatePolicySource, PolicyOrigin, read_sent, without_secrets
from ratebound.flow import run_async
from ratebound.policy import AsyncGate, Gate, Policy, PolicyFile, Rule
from ratebound.policy.problem import PolicyError
from tests.admin.sites import WRITE_TOKEN, Answered, a_site, ask, request_of

TEXT = """\
storage: redis://:hunter2hunter2@cache.internal:6379/0  # the one before was redis://:oldpassword@old:6379
salt: a long salt that nobody knows
rules:
  - {name: partners, limits: 10/minute, match: {headers: {x-api-key: partner-key-123456, x-kind: trusted}}}
  - {name: all, limits: 100/minute}
"""


def check(site: Any, body: dict[str, Any]) -> Answered:
    return ask(site, "POST", "api/policy/check", body, token=WRITE_TOKEN)


def a_file(folder: Path, text: str) -> PolicyFile:
    path = folder / "policy.yaml"
    path.write_text(text)
    return PolicyFile(path, every=0)


def test_the_text_is_shown_without_secrets() -> None:
    shown, format = without_secrets(TEXT, "yaml")
    assert format == "yaml"
    for secret in ("hunter2", "oldpassword", "salt that nobody", "partner-key"):
        assert secret not in shown
    for kept in ("cache.internal:6379", "x-api-key", "x-kind: trusted", "100/minute", "# the one before was"):
        assert kept in shown


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ('{"storage": "redis://:p\\u0061ss%2Fword@h/0", "rules": []}', "json"),  # escapes
        ('storage: "redis://:p\\x61ss%2Fword@h/0"\nrules: []', "yaml"),
        ("salt: pass\nrules: []", "yaml"),  # short: it may be in other words
        ('salt = "pass"\nrules = []', "toml"),
        ("rules: [{name: a, limits: 1/day, match: {headers: {authorization: [pass, word]}}}]", "yaml"),
    ],
)
def test_a_secret_that_is_hard_to_find_makes_the_text_be_written_anew(text: str, format: str) -> None:
    shown, written = without_secrets(text, format)
    assert written == "json"
    assert json.loads(shown)
    assert "pass" not in shown
    assert "word" not in shown


@pytest.mark.parametrize(
    "line",
    [
        "salt: ${SALT:-hunter2hunter2}",
        "storage: ${STORAGE:-redis://:hunter2/hunter2@h/0}",
        "storage: ${STORAGE:-postgresql://h/db?password=hunter2hunter2}",
        "rules: [{name: a, limits: 1/day, match: {headers: {x-api-key: '${KEY:-hunter2hunter2}'}}}]",
        "rules: [{name: a, limits: 1/day, match: {headers: {x-api-key: 1234567890}}}]",
        "rules: [{name: a, limits: 1/day, match: {headers: {x-api-key: [12, 1_234_567_890]}}}]",
    ],
)
def test_secrets_that_are_numbers_or_stand_in_for_a_variable_are_not_shown(line: str) -> None:
    shown, _ = without_secrets(f"{line}\nby: address", "yaml")
    for secret in ("hunter2", "1234567890", "1_234"):
        assert secret not in shown


def test_a_short_secret_leaves_no_gap_in_other_words() -> None:
    shown, _ = without_secrets("salt: earch\nrules: [{name: search, limits: 1/day}]", "yaml")
    assert json.loads(shown) == {"salt": "(not shown)", "rules": [{"name": "search", "limits": "1/day"}]}


def test_variables_and_a_text_without_secrets_stay_as_they_are() -> None:
    text = "storage: ${REDIS_URL}\nsalt: ${SALT}\nrules: [{name: all, limits: 1/day}]  # a comment"
    assert without_secrets(text, "yaml") == (text, "yaml")
    assert without_secrets("rules: [", "yaml") == ("", "yaml")


def test_the_policy_of_a_file_is_described(tmp_path: Path) -> None:
    file = a_file(tmp_path, "storage: 'shm://admin-test'\nrules: [{name: all, limits: 1/day}]")
    found = ask(a_site(Gate(file, storage="memory://")), "GET", "api/policy", token=WRITE_TOKEN).json
    assert found == {
        "source": str(file.path),
        "text": file.text,
        "format": "yaml",
        "error": "",
        "storage": "memory://",
        "can_reload": True,
    }


def test_a_dry_run_says_what_a_text_would_change_and_changes_nothing() -> None:
    gate = Gate(Policy(rules=[Rule("all", "100/minute"), Rule("old", "5/minute")]))
    before = gate.policy
    answer = check(a_site(gate), {"text": '{"rules": [{"name": "all", "limits": "7/day"}]}', "format": "json"})
    assert answer.json["valid"] is True
    kinds = {(one["where"], one["what"]) for one in answer.json["changes"]}
    assert {("rule all", "changed"), ("rule old", "removed")} <= kinds
    assert any(one["starts_anew"] for one in answer.json["changes"])
    assert gate.policy is before


def test_a_dry_run_without_a_change_says_nothing(tmp_path: Path) -> None:
    file = a_file(tmp_path, "rules: [{name: all, limits: 100/minute, cost: {call: 'json:dumps'}}]")
    site = a_site(Gate(file))
    assert check(site, {}).json == {"valid": True, "problems": [], "changes": []}
    assert check(site, {"text": file.text}).json["changes"] == []


def test_a_dry_run_says_everything_that_is_wrong_with_its_line() -> None:
    text = "rules:\n- {name: a b, limits: 1/day}\n- {name: c, limits: often}"
    answer = check(a_site(), {"text": text})
    assert answer.json["valid"] is False
    assert [(one["where"], one["line"]) for one in answer.json["problems"]] == [
        ("rules[0].name", 2),
        ("rules[1].limits", 3),
    ]
    assert check(a_site(), {"text": "rules: ["}).json["valid"] is False


def test_a_dry_run_of_a_sent_text_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_dry_run.py").write_text("def cost(request): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    text = "rules: [{name: all, limits: 1/day, cost: {call: 'imported_by_a_dry_run:cost'}}]"
    assert check(a_site(), {"text": text}).json["valid"] is True
    assert "imported_by_a_dry_run" not in sys.modules
    assert check(a_site(Gate(a_file(tmp_path, "rules: [{name: a, limits: 1/day}]"))), {"text": text}).json["valid"]
    assert "imported_by_a_dry_run" not in sys.modules


def test_a_dry_run_of_a_sent_text_shows_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "what-nobody-may-see")
    text = "rules: [{name: all, limits: '${A_SECRET}'}]"
    answer = check(a_site(), {"text": text})
    assert answer.json["valid"] is False
    assert "what-nobody-may-see" not in answer.body.decode()


def test_a_storage_that_is_a_variable_counts_as_unchanged() -> None:
    old = Policy(rules=[Rule("all", "1/day")], storage="redis://cache:6379/0", salt="salt")
    text = "storage: ${REDIS_URL}\nsalt: 'a${B}c'\nrules: [{name: all, limits: 1/day}]"
    new = read_sent(text, "yaml", old)
    assert (new.storage, new.salt) == (old.storage, old.salt)
    with pytest.raises(PolicyError, match="LIMITS is not set"):
        read_sent("rules: [{name: all, limits: '${LIMITS}'}]", "yaml", old)


def test_a_reload_puts_the_file_in_force(tmp_path: Path) -> None:
    file = a_file(tmp_path, "rules: [{name: all, limits: 100/minute}]")
    gate = Gate(file)
    site = a_site(gate)
    file.path.write_text("rules: [{name: all, limits: 50/minute}, {name: more, limits: 1/day}]")
    checked = check(site, {}).json
    assert [rule.name for rule in gate.policy.rules] == ["all"]
    reloaded = ask(site, "POST", "api/policy/reload", token=WRITE_TOKEN).json
    assert reloaded == checked
    assert [rule.name for rule in gate.policy.rules] == ["all", "more"]


def test_a_file_that_cannot_be_used_stays_out_of_force(tmp_path: Path) -> None:
    file = a_file(tmp_path, "rules: [{name: all, limits: 100/minute}]")
    gate = Gate(file)
    site = a_site(gate)
    file.path.write_text("rules: [{name: all, limits: often}]")
    assert check(site, {}).json["valid"] is False
    answer = ask(site, "POST", "api/policy/reload", token=WRITE_TOKEN)
    assert (answer.status, answer.json["valid"], len(answer.json["problems"])) == (200, False, 1)
    assert [rule.name for rule in gate.policy.rules] == ["all"]
    assert "often" in ask(site, "GET", "api/policy", token=WRITE_TOKEN).json["error"]
    health = ask(site, "GET", "api/health", token=WRITE_TOKEN).json
    assert health["healthy"] is False
    assert "The policy cannot be used" in health["problems"][0]


def test_a_policy_that_was_given_as_an_object_cannot_be_read_again() -> None:
    site = a_site()
    assert ask(site, "GET", "api/policy", token=WRITE_TOKEN).json["can_reload"] is False
    for path in ("api/policy/check", "api/policy/reload"):
        answer = ask(site, "POST", path, token=WRITE_TOKEN)
        assert answer.status == 409
        assert "given as an object" in answer.json["detail"]


def test_a_text_is_read_once_however_often_it_is_shown(tmp_path: Path) -> None:
    file = a_file(tmp_path, TEXT.replace("redis://:hunter2hunter2@cache.internal:6379/0", "memory://"))
    source = GatePolicySource(Gate(file))
    shown = source.describe().text
    assert source.describe().text is shown
    file.path.write_text(file.text.replace("100/minute", "200/minute"))
    assert source.reload()
    assert "200/minute" in str(source.describe().text)


@pytest.mark.parametrize("path", ["api/policy", "api/health"])
def test_the_event_loop_does_not_wait_for_a_text_to_be_read(path: str) -> None:
    threads: list[int] = []

    class Source:
        def describe(self) -> PolicyOrigin:
            threads.append(threading.get_ident())
            return PolicyOrigin("policy.yaml", "", "yaml", "", True)

        def revision(self) -> str:
            return ""

    site = a_site(AsyncGate(Policy(rules=(Rule("all", "1/day"),))), policy=Source())
    request = request_of("GET", path, token=WRITE_TOKEN)
    assert asyncio.run(run_async(site.answer(request))).status == 200
    assert threads
    assert threading.get_ident() not in threads


def test_the_revision_of_the_figures_changes_with_the_policy_and_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = a_file(tmp_path, "rules: [{name: all, limits: 100/minute}]")

    def revision() -> str:
        answer = ask(a_site(Gate(file)), "GET", "api/figures", token=WRITE_TOKEN)
        found: str = answer.json["revision"]
        return found

    seen = [revision()]
    for text in ("rules: [{name: all, limits: often}]", "rules: [{name: all, limits: 200/minute}]"):
        file.path.write_text(text)
        file.reload()
        seen.append(revision())
        assert revision() == seen[-1]
    assert len(set(seen)) == 3


def test_the_storage_that_is_shown_is_the_one_in_use(tmp_path: Path) -> None:
    file = a_file(tmp_path, "rules: [{name: all, limits: 100/minute}]")
    gate = Gate(file, storage="redis://:hunter2@cache.internal:6379/3?prefix=shop")
    answer = ask(a_site(gate), "GET", "api/policy", token=WRITE_TOKEN)
    assert answer.json["storage"] == "redis://cache.internal:6379/3"
