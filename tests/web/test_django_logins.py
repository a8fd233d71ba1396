"""Django: a wrong password is answered with 200, and `charge="failure"` counts it; `@login_required` above `@limit`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("django_logins.py")


@pytest.fixture(scope="module", params=["wsgi middleware", "asgi middleware", "wsgi decorator", "asgi decorator"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    kind, how = request.param.split()
    database = tmp_path_factory.mktemp("logins") / "users.sqlite3"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kind, how, str(database)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "middleware": how == "middleware"}


def test_wrong_passwords_count_at_django_s_own_login_and_right_ones_do_not(found: dict[str, Any]) -> None:
    assert found["form"] == [200, 302, 200, 302, 200, 429, 429]
    assert found["only right"] == [302] * 5


def test_wrong_passwords_count_at_the_login_of_the_admin(found: dict[str, Any]) -> None:
    few = [429, 429] if found["middleware"] else [200, 200]  # only the middleware asks rules of the policy
    assert found["admin/login/"] == [200, 302, 200, 302, 200, *few]


@pytest.mark.parametrize("view", ["bare", "awaited"])
def test_a_view_need_not_hand_its_request_to_authenticate(found: dict[str, Any], view: str) -> None:
    assert found[view] == [200, 200, 200, 200, 200, 429, 429]


def test_a_request_in_which_one_of_several_logins_failed_has_failed(found: dict[str, Any]) -> None:
    assert found["several"] == [200, 200, 200, 429, 429, 429, 429]


def test_a_request_that_has_logged_in_has_not_failed_whatever_its_status(found: dict[str, Any]) -> None:
    assert found["strange"] == [418, 418, 418, 418, 418, 429, 429]


def test_a_view_may_say_by_itself_that_it_has_failed(found: dict[str, Any]) -> None:
    assert found["told"] == [200, 200, 200, 200, 200, 429, 429]


def test_login_required_above_a_limit_turns_away_before_it_only_without_the_middleware(found: dict[str, Any]) -> None:
    """The middleware asks at the view's door, and counts every request to the view. Without it nothing of ours runs
    before the decorator that stands above."""
    assert found["export"] == ([302, 302, 429] if found["middleware"] else [302, 302, 302])
    assert found["export of ann"] == [200, 200, 429]
