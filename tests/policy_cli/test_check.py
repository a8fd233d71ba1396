"""`ratebound policy check`: mistakes by line, warnings by name, and a status for scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ratebound.cli import main
from tests.policy_cli.commands import run, written

GOOD = """
exempt: [{paths: /health, methods: [GET, HEAD]}]
rules:
  - {name: search, match: {paths: /search}, limits: 20/minute}
  - {name: others, default: true, limits: 10/second burst 50; 5000/hour}
"""
BAD = """
rules:
  - name: a
    limits: 10/fortnight
  - name: b
    limts: 5/minute
    limits: 5/minute
"""
DOUBTFUL = """
# comment
rules:
  - name: login
    match: {paths: /login}
    by: address
    limits: 5/minute fixed-window
  - name: others
    default: true
    limits: 100/minute
"""


def test_a_good_policy_has_status_0(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    result = run("check", file, "--strict")
    assert result.exit_code == 0
    assert result.stdout == f"{file}: 2 rules, no mistakes, no warnings\n"
    assert result.stderr == ""


def test_every_mistake_is_told_with_file_line_and_place(tmp_path: Path) -> None:
    file = written(tmp_path, BAD)
    result = run("check", file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{file}:4: rules[0].limits: cannot read limit '10/fortnight'" in result.stderr
    assert f"{file}:6: rules[1].limts: unknown key 'limts': did you mean 'limits'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_warnings_have_a_name_a_line_a_reason_and_a_remedy(tmp_path: Path) -> None:
    file = written(tmp_path, DOUBTFUL)
    result = run("check", file)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"{file}:7: rules[0].limits: fixed-window-on-credentials" in lines
    assert f"{file}:4: rules[0]: login-without-account" in lines
    assert "   wrong    rule 'login' uses a fixed window: 5/minute fixed-window" in lines
    assert any(line.startswith("   why      A client that sends") for line in lines)
    assert any(line.startswith("   instead  Leave the algorithm out") for line in lines)
    assert lines[-1] == f"{file}: 2 rules, no mistakes, 2 warnings"


def test_strict_makes_warnings_count(tmp_path: Path) -> None:
    file = written(tmp_path, DOUBTFUL)
    ignore = ("--ignore", "login-without-account", "--ignore", "fixed-window-on-credentials")
    assert run("check", file, "--strict").exit_code == 1
    assert run("check", file, "--strict", *ignore[:2]).exit_code == 1
    result = run("check", file, "--strict", *ignore)
    assert result.exit_code == 0
    assert result.stdout.endswith("no warnings (2 ignored)\n")


def test_an_unknown_name_to_ignore_is_refused(tmp_path: Path) -> None:
    result = run("check", written(tmp_path, GOOD), "--ignore", "address-along")
    assert result.exit_code == 2
    assert "unknown warning 'address-along': expected one of address-alone" in result.stderr


def test_several_workers_and_a_memory_of_each(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    assert "memory-with-workers" in run("check", file, "--workers", "4").stdout
    assert "memory-with-workers" in run("check", file, WEB_CONCURRENCY="4").stdout
    assert "memory-with-workers" not in run("check", file).stdout
    assert run("check", file, "--workers", "0").exit_code == 2


def test_json_tells_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, DOUBTFUL)
    result = run("check", file, "--format", "json", "--strict")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["file"], told["rules"], told["problems"]) == (file, 2, [])
    by_name = {warning["name"]: warning for warning in told["warnings"]}
    assert by_name["fixed-window-on-credentials"]["line"] == 7
    assert by_name["fixed-window-on-credentials"]["place"] == "rules[0].limits"
    assert set(by_name["login-without-account"]) == {"name", "line", "place", "wrong", "why", "instead"}


def test_json_tells_mistakes_too(tmp_path: Path) -> None:
    result = run("check", written(tmp_path, BAD), "--format", "json")
    assert result.exit_code == 2
    assert [(one["line"], one["place"]) for one in json.loads(result.stdout)["problems"]] == [
        (4, "rules[0].limits"),
        (6, "rules[1].limts"),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("policy.toml", '[[rules]]\nname = "a"\nby = "address"\nlimits = "5/minute"\n'),
        ("policy.json", '{"rules": [\n{"name": "a", "by": "address", "limits": "5/minute"}]}'),
    ],
)
def test_the_lines_of_toml_and_json_are_known(tmp_path: Path, name: str, text: str) -> None:
    result = run("check", written(tmp_path, text, name), "--format", "json")
    lines = {warning["name"]: warning["line"] for warning in json.loads(result.stdout)["warnings"]}
    assert lines["one-limit-for-everything"] == (1 if name.endswith("toml") else 2)


def test_a_file_that_is_not_there_or_not_a_policy(tmp_path: Path) -> None:
    missing = run("check", str(tmp_path / "none.yaml"))
    assert missing.exit_code == 2
    assert "cannot read the policy" in missing.stderr
    other = run("check", written(tmp_path, "x", "policy.txt"))
    assert other.exit_code == 2
    assert "ends in .yaml" in other.stderr


def test_the_environment_is_filled_in(tmp_path: Path) -> None:
    file = written(tmp_path, "storage: ${STORE}\nrules: [{name: a, limits: '${MANY}/minute'}]")
    assert "STORE is not set" in run("check", file, "--env", "MANY=5").stderr
    assert run("check", file, "--env", "MANY=5", "--env", "STORE=redis://x").exit_code == 0
    assert run("check", file, "--env", "MANY").exit_code == 2


def test_functions_are_looked_up_in_a_module_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits_of_mine.py").write_text("def find(key):\n    return key\n")
    file = written(tmp_path, "identities: {api-key: {verify: fnd}}\nrules: [{name: a, by: api-key, limits: 9/second}]")
    assert run("check", file).exit_code == 0
    result = run("check", file, "--functions", "limits_of_mine")
    assert result.exit_code == 2
    assert "unknown function 'fnd': did you mean 'find'?" in result.stderr
    absent = run("check", file, "--functions", "not_of_mine")
    assert (absent.exit_code, "cannot import not_of_mine" in absent.stderr) == (2, True)


def test_a_narrow_terminal_gets_narrow_text(tmp_path: Path) -> None:
    file = written(tmp_path, DOUBTFUL)
    for width in (20, 60):
        words = [line for line in run("check", file, width=width).stdout.splitlines() if line.startswith("   ")]
        assert words
        assert max(map(len, words)) <= max(width, 50)
    assert "\x1b" not in run("check", file).stdout


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ratebound", "policy", "check", written(tmp_path, DOUBTFUL)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_without_yaml_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ratebound.policy.load.yaml_text", raising=False)
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = run("check", written(tmp_path, GOOD))
    assert result.exit_code == 2
    assert "PyYAML is not installed" in result.stderr


def test_the_program_has_the_group_with_examples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("check", "explain", "import"):
        monkeypatch.setattr(sys, "argv", ["ratebound", "policy", command, "--help"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        assert f"Examples:\n    ratebound policy {command}" in capsys.readouterr().out


def test_the_shell_can_complete_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_RATEBOUND_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ratebound policy ")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setattr(sys, "argv", ["ratebound"])
    with pytest.raises(SystemExit):
        main()
    offered = capsys.readouterr().out.split()
    assert offered == ["plain,check", "plain,explain", "plain,diff", "plain,import", "plain,schema"]


SLICED = """
storage: redis://localhost
exempt: [{paths: /health, methods: [GET, HEAD]}]
rules:
  - name: search
    match: {paths: /search}
    limits: 600/minute; 9000/calendar-day
    slice: {share: 5%, for: 1 second}
  - {name: others, default: true, limits: 10/second burst 50; 5000/hour, deny_cache: true}
"""


def test_notes_say_what_slices_and_deny_caches_do(tmp_path: Path) -> None:
    file = written(tmp_path, SLICED)
    result = run("check", file, "--strict", width=400)
    assert result.exit_code == 0, "a note is no warning"
    text = " ".join(result.stdout.split())
    assert f"{file}:8: rules[0].slice: note" in text
    assert (
        "does a process takes up to 5% of what remains of '600/minute' at once, at most 30, and uses it within 1 s; in"
        " any minute no more passes than '600/minute' gives in 1 minute and 1 s"
    ) in text
    assert "does a process takes up to 5% of what remains of '9000/calendar-day' at once, at most 450," in text
    assert "it ends with its window, so no window has more than 9,000" in text
    assert f"{file}:9: rules[1].deny_cache: note does a process repeats a denial for up to 1 s" in text
    assert text.endswith(f"{file}: 2 rules, no mistakes, no warnings")


def test_json_has_the_notes(tmp_path: Path) -> None:
    found = json.loads(run("check", written(tmp_path, SLICED), "--format", "json").stdout)
    assert [(note["line"], note["place"]) for note in found["notes"]] == [
        (8, "rules[0].slice"),
        (8, "rules[0].slice"),
        (9, "rules[1].deny_cache"),
    ]
    assert "in any minute no more passes than '600/minute' gives in 1 minute and 1 s" in found["notes"][0]["text"]
    assert json.loads(run("check", written(tmp_path, GOOD), "--format", "json").stdout)["notes"] == []
