"""The command `ratebound replay`, with real files."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratebound.cli.policy import policy as policy_command
from ratebound.cli.replay import replay
from ratebound.replay.report import ReplayReport

LINE = (
    '{address} - {user} [05/Nov/2026:10:{minute:02}:{second:02} +0000] "GET {target} HTTP/1.1" {status} 12 "-" "curl"'
)
HOSTILE = "<script>alert(1)</script>\x1b[31mred"


def line(number: int, address: str = "192.0.2.1", target: str = "/", status: int = 200, user: str = "-") -> str:
    minute, second = divmod(number, 60)
    return LINE.format(address=address, user=user, minute=minute, second=second, target=target, status=status)


def run(*arguments: object, stdin: str | bytes | None = None, width: int = 80) -> Result:
    return CliRunner().invoke(replay, [str(one) for one in arguments], input=stdin, env={"COLUMNS": str(width)})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten requests of a quick client, one a second, and three of a slow one."""
    lines = [line(number) for number in range(10)] + [
        line(20 + 20 * one, "198.51.100.7", "/orders/12") for one in range(3)
    ]
    path = tmp_path / "access.log"
    path.write_text("\n".join([*lines, "garbage", line(80, status=429)]) + "\n")
    return path


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("rules:\n  - {name: all, limits: 4/minute}\n")
    return path


def as_json(*arguments: object) -> dict[str, object]:
    done = run(*arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_report_tells_who_is_denied(log: Path, policy: Path) -> None:
    done = run(log, "--policy", policy)
    assert done.exit_code == 0, done.output
    for text in ("6 requests (43 %) of 1 clients", "4/minute", "192.0.2.1", "1 malformed", "garbage", "answered 429"):
        assert text in done.output
    assert max(map(len, done.output.splitlines())) <= 80


@pytest.mark.parametrize("name", ["limits[prod].yaml", "[/red].yaml"])
def test_names_of_policies_are_shown_as_they_are(
    name: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("rules:\n  - {name: all, limits: 4/minute}\n")
    done = run(log, "--policy", name, "--against", name)
    assert done.exit_code == 0, done.output
    assert done.output.count(f"rules of {name}") == 2


def test_the_json_has_all_of_it(log: Path, policy: Path) -> None:
    found = as_json(log, "--policy", policy)
    assert list(found) == ["schema", *ReplayReport._fields]
    assert (found["schema"], found["requests"], found["malformed"], found["refused"]) == (1, 14, 1, 1)
    assert found["policy"]["denied"] == 6  # type: ignore[index]
    assert found["top"][0]["client"] == "192.0.2.1"  # type: ignore[index]
    assert found["top"][0]["first_denied"] == "2026-11-05T10:00:04Z"  # type: ignore[index]
    assert found["statuses"] == {"200": 6}
    assert [one["endpoint"] for one in found["endpoints"]] == ["GET /", "GET /orders/{id}"]  # type: ignore[attr-defined]


def test_gzip_and_the_standard_input_give_the_same(log: Path, policy: Path, tmp_path: Path) -> None:
    packed = tmp_path / "access.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    plain, unpacked = as_json(log, "--policy", policy), as_json(packed, "--policy", policy)
    done = run("-", "--policy", policy, "--json", "-", stdin=log.read_bytes())
    piped = json.loads(done.stdout)
    for name in ("requests", "policy", "top", "timeline", "endpoints", "malformed"):
        assert plain[name] == unpacked[name] == piped[name]


def test_two_policies_are_compared(log: Path, policy: Path, tmp_path: Path) -> None:
    stricter = tmp_path / "stricter.yaml"
    stricter.write_text("rules:\n  - {name: all, limits: 2/minute}\n")
    found = as_json(log, "--policy", stricter, "--against", policy)
    assert (found["newly_denied"], found["freed"]) == (3, 0)
    text = run(log, "--policy", policy, "--against", stricter).output
    assert "3 freed" in text
    assert "clients freed" in text


def test_429_can_be_left_out(log: Path, policy: Path) -> None:
    assert as_json(log, "--policy", policy, "--skip-429")["requests"] == 13


def test_a_share_of_denials_fails_for_ci(log: Path, policy: Path) -> None:
    assert run(log, "--policy", policy, "--fail-if-denied", "50%").exit_code == 0
    assert run(log, "--policy", policy, "--fail-if-denied", "0.1").exit_code == 1
    assert run(log, "--policy", policy, "--fail-if-denied", "0").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "POLICY"], "need a policy"),
        (["--policy", "POLICY", "--fail-if-denied", "many"], "expected a share"),
        (["--policy", "missing.yaml"], "missing.yaml"),
        (["--policy", "POLICY", "--header", "x"], "expected NAME=FIELD"),
        (["--policy", "POLICY", "--json", "-", "--html", "-"], "only one"),
        (["--policy", "POLICY", "--html", "/nowhere/report.html"], "cannot write"),
        (["--log-format", "nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_exits_with_2(log: Path, policy: Path, arguments: list[str], words: str) -> None:
    done = run(log, *(str(policy) if one == "POLICY" else one for one in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.output


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", [], "no request was found: 0 lines"),
        (line(1), ["--log-format", "json"], "1 of them malformed as format json; the first is: 192.0.2.1"),
        (line(1, status=429), ["--skip-429"], "1 answered 429, which --skip-429 leaves out"),
    ],
)
def test_a_log_without_requests_proves_nothing(
    tmp_path: Path, policy: Path, text: str, arguments: list[str], words: str
) -> None:
    (tmp_path / "empty.log").write_text(text)
    checked = run(tmp_path / "empty.log", "--policy", policy, "--fail-if-denied", "1%", *arguments)
    assert (checked.exit_code, words in checked.stderr) == (2, True), checked.output
    written = tmp_path / "suggested.yaml"
    assert run(tmp_path / "empty.log", "--write-policy", written, *arguments).exit_code == 2
    assert not written.read_text()


def test_a_short_log_does_not_tell_what_clients_use_in_an_hour(log: Path, policy: Path) -> None:
    words = "The log covers 1 min, less than an hour."
    assert words in run(log, width=200).stdout
    assert words not in run(log, "--policy", policy, width=200).stdout


def test_only_whole_seconds_are_called_so(tmp_path: Path, log: Path) -> None:
    words = "The log has whole seconds"
    assert words in run(log, width=200).stdout
    (tmp_path / "fine.log").write_text('{"time": "2026-11-16T00:00:00.030Z", "client_ip": "192.0.2.1", "url": "/"}\n')
    assert words not in run(tmp_path / "fine.log", width=200).stdout


def test_a_missing_log_exits_with_2(policy: Path) -> None:
    done = run("missing.log", "--policy", policy)
    assert done.exit_code == 2
    assert "missing.log" in done.output


def test_a_suggested_policy_is_accepted_and_touches_the_clients_that_were_told(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lines = [(at, f"192.0.2.{client}") for client in range(1, 40) for at in range(0, 600, 30 + client)]
    lines += [(at, "198.51.100.7") for at in range(300)]
    log.write_text("".join(f"{line(at, address)}\n" for at, address in sorted(lines)))
    written = tmp_path / "suggested.yaml"
    found = as_json(log, "--write-policy", written)
    checked = CliRunner().invoke(policy_command, ["check", str(written)])
    assert checked.exit_code == 0, checked.output
    everything = found["suggestion"]["everything"]  # type: ignore[index]
    touched = everything["honest_touched"] + everything["others_touched"]
    for period in everything["periods"]:
        for one in period["candidates"]:
            limits = f"{one['limit']}/{period['period']} sliding-counter"
            tried = tmp_path / "tried.yaml"
            tried.write_text(f"rules:\n  - {{name: all, limits: {limits}}}\n")
            denied = as_json(log, "--policy", tried)["denied_clients"]
            assert denied == one["honest_touched"] + one["others_touched"], limits
    assert as_json(log, "--policy", written)["denied_clients"] == touched


def test_no_path_that_a_rule_cannot_match_is_suggested(tmp_path: Path) -> None:
    log, written = tmp_path / "access.log", tmp_path / "suggested.yaml"
    paths = ("/orders", "/orders/..", "/./orders", "/orders/.", "/orders/...")
    lines = [line(at, f"192.0.2.{client}", path) for at in (0, 1, 300, 301) for client in range(6) for path in paths]
    log.write_text("".join(one.replace("GET", "POST") + "\n" for one in lines))
    done = run(log, "--write-policy", written)
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(policy_command, ["check", str(written)])
    assert checked.exit_code == 0, checked.output
    assert written.read_text().count("match:") == 2


def test_hostile_names_are_escaped_everywhere(tmp_path: Path, policy: Path) -> None:
    log, page = tmp_path / "access.log", tmp_path / "report.html"
    entries = [
        {"time": 1762300800 + at, "remote_addr": HOSTILE, "method": "GET", "uri": f"/{HOSTILE}", "status": 200}
        for at in range(9)
    ]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    done = run(log, "--policy", policy, "--suggest", "--html", page)
    assert done.exit_code == 0, done.output
    assert "\x1b[31m" not in done.output
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text


def test_fields_of_json_logs_become_users_clients_and_headers(tmp_path: Path) -> None:
    log, rules = tmp_path / "access.log", tmp_path / "policy.yaml"
    entry = {"remote_addr": "192.0.2.1", "method": "GET", "uri": "/", "status": 200}
    lines = [
        {**entry, "time": 1762300800 + at, "who": "ada", "kind": "batch", "real": f"198.51.100.{at}"} for at in range(4)
    ]
    log.write_text("".join(json.dumps(one) + "\n" for one in lines))
    rules.write_text("rules:\n  - {name: batch, match: {headers: {x-kind: batch}}, limits: 1/minute}\n")
    unjudged = as_json(log, "--policy", rules)
    assert unjudged["policy"]["denied"] == 0  # type: ignore[index]
    assert "x-kind" in unjudged["policy"]["unjudged"][0]["reason"]  # type: ignore[index]
    by_address = as_json(log, "--policy", rules, "--header", "X-Kind=kind")
    assert by_address["policy"]["denied"] == 3  # type: ignore[index]
    assert as_json(log, "--policy", rules, "--header", "x-kind=kind", "--client-field", "real")["policy"]["denied"] == 0  # type: ignore[index]
    by_user = as_json(
        log, "--policy", rules, "--header", "x-kind=kind", "--client-field", "real", "--user-field", "who"
    )
    assert by_user["policy"]["denied"] == 3  # type: ignore[index]
    assert by_user["top"][0]["client"] == "user:ada"  # type: ignore[index]


def test_the_real_command_is_quiet_without_a_terminal(log: Path, policy: Path) -> None:
    command = [sys.executable, "-m", "ratebound", "replay", str(log), "--policy", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 requests" in done.stdout
