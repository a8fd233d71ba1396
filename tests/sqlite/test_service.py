"""The service and the operators' commands on a file of SQLite: counts and measures outlast a restart."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from flask import Flask

from ratebound import Limiter
from ratebound.admin.storage_name import storage_name
from ratebound.cli.blocks import blocks
from ratebound.cli.state import state
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.web.flask import RateLimits
from tests.service.running_service import RunningService, running_service

POLICY = """
rules:
  - {name: login, match: {paths: /login, methods: POST}, by: address, limits: 6/day}
  - {name: rest, default: true, by: address, limits: 1000/hour}
"""


def logins(service: RunningService, times: int) -> list[bool]:
    described = {"method": "POST", "path": "/login", "address": "203.0.113.7"}
    return [bool(service.ask("/v1/decide", described)["allowed"]) for _ in range(times)]


def command(*words: str) -> Result:
    return CliRunner().invoke({"blocks": blocks, "state": state}[words[0]], words[1:])


def test_two_workers_count_together_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    options = ("--storage", url, "--workers", "2", "--deadline", "5")
    with running_service(*options, policy=POLICY) as service:
        assert f"states are kept in {url}" in service.log
        assert logins(service, 4) == [True] * 4
        assert service.end() == 0
        assert "Traceback" not in service.log
    with running_service(*options, policy=POLICY) as service:
        assert logins(service, 4) == [True, True, False, False]
        service.process.kill()
    with running_service(*options, policy=POLICY) as service:
        assert logins(service, 1) == [False]


def test_an_operators_block_outlasts_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with running_service("--storage", url, policy=POLICY) as service:
        assert logins(service, 1) == [True]
    blocked = command("blocks", "add", "203.0.113.7", "--for", "1 hour", "--reason", "test", "--storage", url)
    assert blocked.exit_code == 0, blocked.output
    with running_service("--storage", url, policy=POLICY) as service:
        assert logins(service, 1) == [False]
    assert "203.0.113.7" in command("blocks", "list", "--storage", url).output


def test_a_command_shows_and_resets_a_state_of_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with Limiter("5/hour", storage=url) as limiter:
        limiter.hit("user:42", cost=3)
    shown = command("state", "usage", "user:42", "--limits", "5/hour", "--storage", url)
    assert (shown.exit_code, "3" in shown.output) == (0, True), shown.output
    reset = command("state", "reset", "user:42", "--limits", "5/hour", "--storage", url)
    assert reset.exit_code == 0, reset.output
    with Limiter("5/hour", storage=url) as limiter:
        assert limiter.peek("user:42").remaining == 5


def test_a_command_does_not_make_a_file(tmp_path: Path) -> None:
    shown = command("state", "usage", "user:42", "--limits", "5/hour", "--storage", f"sqlite:///{tmp_path}/none.db")
    assert shown.exit_code == 1
    assert "start the application first" in shown.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [SqliteStorage, AsyncSqliteStorage])
def test_operators_read_the_name_of_the_file_and_no_secret(
    kind: type[SqliteStorage] | type[AsyncSqliteStorage],
) -> None:
    assert storage_name(kind.from_url("sqlite:////tmp/limits.db?secret=hush")) == "sqlite:////tmp/limits.db"


def test_a_key_that_no_limiter_counts_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with Limiter("5/hour", storage=url) as limiter:
        limiter.hit("user:42")
    where = ("--limits", "5/hour", "--storage", url)
    assert command("state", "usage", "user:42", *where).stderr == ""
    assert command("state", "reset", "user:42", *where).stderr == ""
    for action in ("usage", "reset"):
        told = command("state", action, "user:42", *where)
        assert (told.exit_code, told.stderr.split(".")[0]) == (0, "nothing is counted for this key")


def test_limits_in_code_are_read_by_a_policy_that_names_their_rule(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    app = Flask("site")
    RateLimits(app, "100/minute", storage=url)
    assert app.test_client().get("/").headers["RateLimit"].startswith('"default/minute";r=99')
    page = Path(__file__).parents[2] / "docs" / "guides" / "quotas.md"
    (written,) = re.findall(r'```yaml title="in-code.yaml"\n(.*?)```', page.read_text(), re.DOTALL)
    policy = tmp_path / "in-code.yaml"
    policy.write_text(written)
    shown = command("state", "usage", "127.0.0.1", "--policy", str(policy), "--storage", url, "--json")
    assert [(one["rule"], one["used"]) for one in json.loads(shown.stdout)] == [("default", 1)], shown.output
