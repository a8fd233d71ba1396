"""`ratebound policy import`: the policy to stdout or a file, what was lost to stderr."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy.imports import SYSTEMS
from ratebound.policy.imports.draft import Draft, flow, from_regex, literal, prefixed
from tests.policy.gates import gate_of, passes, request
from tests.policy_cli.commands import run, written
from tests.policy_cli.test_import_aws import KEYS, PLANS
from tests.policy_cli.test_import_envoy import EDGE
from tests.policy_cli.test_import_kong import SHOP
from tests.policy_cli.test_import_nginx import SITE

CONFIGURATIONS = {"aws": PLANS, "envoy": EDGE, "nginx": SITE, "kong": SHOP}


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_what_is_imported_passes_the_check(system: str, tmp_path: Path) -> None:
    file = written(tmp_path, CONFIGURATIONS[system], "their.conf")
    output = str(tmp_path / "policy.yaml")
    result = run("import", system, file, "-o", output)
    assert (result.exit_code, result.stdout) == (0, "")
    told = result.stderr.splitlines()
    assert told
    assert all(line.startswith("note: ") for line in told)
    assert run("check", output).exit_code == 0
    text = Path(output).read_text()
    for line in told:
        assert f"# - {line.removeprefix('note: ')}" in text, "the file says so, too"


def test_without_a_file_to_write_it_goes_to_stdout(tmp_path: Path) -> None:
    result = run("import", "nginx", written(tmp_path, SITE))
    assert result.exit_code == 0
    assert result.stdout.startswith("# Imported from nginx.")
    assert result.stdout == run("import", "nginx", "-", stdin=SITE).stdout
    assert passes(gate_of(result.stdout), request("/")) == 200


def test_keys_of_aws_are_read_from_files_of_their_own(tmp_path: Path) -> None:
    plans, keys = written(tmp_path, PLANS, "plans.json"), written(tmp_path, KEYS, "keys.json")
    result = run("import", "aws", plans, "--keys", f"Basic={keys}")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["tiers"]["Basic"] == ["api-key:k1k1k1k1k1"]
    assert "SECRET" not in result.output
    for arguments, words in (
        (("aws", plans, "--keys", keys), "expected NAME=VALUE"),
        (("aws", plans, "--keys", f"Gold={keys}"), "keys of the plan 'Gold'"),
        (("aws", plans, "--keys", f"Basic={tmp_path}/none"), "cannot read"),
        (("nginx", plans, "--keys", f"Basic={keys}"), "--keys is for aws, not for nginx"),
    ):
        result = run("import", *arguments)
        assert result.exit_code == 2
        assert words in result.stderr


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    file, output = written(tmp_path, SITE), written(tmp_path, "mine", "out.yaml")
    result = run("import", "nginx", file, "-o", output)
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert Path(output).read_text() == "mine"
    assert run("import", "nginx", file, "-o", output, "--force").exit_code == 0
    assert Path(output).read_text() != "mine"


def test_mistakes_have_the_file_and_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, "\nserver {", "nginx.conf")
    result = run("import", "nginx", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:2: cannot read this as nginx's configuration")
    assert run("import", "nginx", str(tmp_path / "none")).exit_code == 2
    assert run("import", "apache", file).exit_code == 2


def test_a_place_that_cannot_be_written_has_status_1(tmp_path: Path) -> None:
    result = run("import", "nginx", written(tmp_path, SITE), "-o", str(tmp_path / "no" / "out.yaml"))
    assert result.exit_code == 1
    assert f"cannot use {tmp_path / 'no' / 'out.yaml'}: No such file or directory" in result.stderr


@given(
    st.recursive(
        st.text(max_size=20) | st.integers(0, 99) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab:#${", min_size=1), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_is_written_is_read_back(value: object) -> None:
    def doubled(one: object) -> object:
        if isinstance(one, str):
            return one.replace("$", "$$")
        if isinstance(one, list):
            return [doubled(each) for each in one]
        if isinstance(one, dict):
            return {doubled(key): doubled(each) for key, each in one.items()}
        return one

    assert yaml.safe_load(f"a: {flow(value)}") == {"a": doubled(value)}


@pytest.mark.parametrize(
    ("regex", "patterns"),
    [
        ("^/a$", ["/a"]),
        ("^/a/?$", ["/a"]),
        ("^/a/(.*)$", ["/a/{rest*}"]),
        ("^/a(/|$)", ["/a/{rest*}"]),
        ("^/a/", ["/a/{rest*}"]),
        ("^/a", ["/a/{rest*}", "/a*/{rest*}"]),
        (r"^/v\d+/a\.json$", ["/v*/a.json"]),
        (r"^/users/([^/]+)$", ["/users/*"]),
        (r"^/users/\d+", ["/users/*/{rest*}"]),
        (r"\.php$", None),
        ("/a", None),
        ("^/(a|b)$", None),
        ("^/a.*b$", None),
        (r"^/\d+\d+$", None),
    ],
)
def test_only_plain_regular_expressions_become_patterns(regex: str, patterns: list[str] | None) -> None:
    assert from_regex(regex) == patterns


def test_prefixes_and_literal_paths() -> None:
    assert prefixed("/a/") == ["/a/{rest*}"]
    assert prefixed("/a") == ["/a/{rest*}", "/a*/{rest*}"]
    assert literal("a{b}*") == "/a%7Bb%7D%2A"


def test_names_are_short_and_of_one_kind_each() -> None:
    draft = Draft("x")
    names = [draft.add(wanted, limits="1/day") for wanted in ("a b", "a b", "-", "ü", "x" * 99, "x" * 99)]
    assert names == ["a-b", "a-b-2", "rule", "rule-2", "x" * 36, f"{'x' * 36}-2"]
