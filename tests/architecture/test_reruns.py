"""Which tests run a second time if they fail: those of real servers, and only in the short run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITH_SERVERS = ["tests/redis/test_states.py", "tests/faults/test_blame.py", "tests/web/test_api_example.py"]
WITHOUT = ["tests/unit/test_settling.py", "tests/property/test_redis.py", "tests/redis/test_grants.py"]


@pytest.mark.parametrize(("long", "rerun"), [("0", WITH_SERVERS), ("1", [])], ids=["short", "long"])
def test_only_tests_of_real_servers_run_again_and_none_in_the_long_run(long: str, rerun: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "flaky", *WITH_SERVERS, *WITHOUT]
    environ = {**os.environ, "RATEBOUND_LONG": long}
    said = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True).stdout
    assert {line.partition("::")[0] for line in said.splitlines() if "::" in line} == set(rerun), said
