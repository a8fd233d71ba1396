import json
from pathlib import Path

from tests.policy.policy_server import respond, serving
from tests.policy_cli.commands import run, written

OLD = """
storage: redis://user:hunter2@localhost/0
rules:
  - {name: search, limits: 10/second}
  - {name: login, limits: 5/minute, by: {call: find_account}}
"""
NEW = """
storage: redis://user:hunter3@localhost/0
rules:
  - {name: search, limits: 20/second}
  - {name: login, limits: 20/hour, by: {call: find_account}}
  - {name: export, limits: 5/hour, match: {paths: /export}}
"""


def test_differences_are_told_in_words_with_what_starts_anew(tmp_path: Path) -> None:
    old, new = written(tmp_path, OLD, "old.yaml"), written(tmp_path, NEW, "new.yaml")
    result = run("diff", old, new)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "~ rule search: limits: '10/second' -> '20/second'",
        "~ rule login: limits: '5/minute' -> '20/hour'",
        "+ rule export: as 3 of 3: limits: '5/hour', match: {paths: ['/export']}",
        "~ storage: 'redis://…@localhost/0' with another password or other options",
        "~ rule login: '20/hour' starts anew: its algorithm or its period has changed",
        "~ storage: a change takes a restart; the old one stays in use",
        f"{old} -> {new}: 6 changes, 1 starts anew",
    ]


def test_strict_fails_if_something_starts_anew_and_only_then(tmp_path: Path) -> None:
    old, new = written(tmp_path, OLD, "old.yaml"), written(tmp_path, NEW, "new.yaml")
    assert run("diff", old, new, "--strict").exit_code == 1
    kept = written(tmp_path, OLD.replace("10/second", "11/second"), "kept.yaml")
    assert run("diff", old, kept, "--strict").exit_code == 0
    same = run("diff", old, old, "--strict")
    assert (same.exit_code, same.output) == (0, f"{old} -> {old}: no changes, nothing starts anew\n")


def test_programs_get_json(tmp_path: Path) -> None:
    old, new = written(tmp_path, OLD, "old.yaml"), written(tmp_path, NEW, "new.yaml")
    result = run("diff", old, new, "--format", "json")
    assert json.loads(result.output)["changes"][0] == {
        "where": "rule search",
        "what": "changed",
        "detail": "limits: '10/second' -> '20/second'",
        "starts_anew": False,
    }
    assert "hunter" not in result.output


def test_a_file_is_compared_with_what_is_deployed(tmp_path: Path) -> None:
    new = written(tmp_path, NEW, "new.yaml")
    with serving(OLD) as server:
        result = run("diff", server.url, new)
        assert "~ rule search: limits: '10/second' -> '20/second'" in result.output
        server.answer = lambda handler: respond(handler, 404)
        result = run("diff", server.url, new)
        assert (result.exit_code, result.stderr) == (2, f"{server.url}: the server answers with status 404\n")
    result = run("diff", "https://user:hunter2@host/policy.yaml", new)
    assert result.exit_code == 2
    assert "hunter2" not in result.output


def test_a_file_with_a_mistake_is_named(tmp_path: Path) -> None:
    old, new = written(tmp_path, OLD, "old.yaml"), written(tmp_path, "rules: 5", "new.yaml")
    result = run("diff", old, new)
    assert result.exit_code == 2
    assert f"{new}:1: rules:" in result.stderr
