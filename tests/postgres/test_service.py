"""The service and the operators' commands on PostgreSQL: counts and measures outlast a restart, workers share them."""

import asyncio
import json
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.blocks import blocks
from ratebound.cli.state import state
from ratebound.policy import AsyncGate, Gate, read_policy
from tests.databases import Postgres
from tests.policy.gates import request
from tests.postgres.tables import fresh_url
from tests.service.running_service import RunningService, running_service

POLICY = """
rules:
  - {name: login, match: {paths: /login, methods: POST}, by: address, limits: 6/calendar-month}
  - {name: rest, default: true, by: address, limits: 1000/hour}
"""


def logins(service: RunningService, times: int) -> list[bool]:
    described = {"method": "POST", "path": "/login", "address": "203.0.113.7"}
    return [bool(service.ask("/v1/decide", described)["allowed"]) for _ in range(times)]


def command(*words: str) -> Result:
    return CliRunner().invoke({"blocks": blocks, "state": state}[words[0]], words[1:])


def test_two_workers_count_together_and_a_restart_forgets_nothing(postgres: Postgres) -> None:
    url = fresh_url(postgres).replace("ratebound@", "ratebound:hunter2@")
    options, environ = ("--workers", "2", "--deadline", "5"), {"RATEBOUND_STORAGE": url}
    with running_service(*options, policy=POLICY, environ=environ) as service:
        assert "hunter2" not in service.log
        assert logins(service, 4) == [True] * 4
        assert service.end() == 0
        assert "Traceback" not in service.log
    with running_service(*options, policy=POLICY, environ=environ) as service:
        assert logins(service, 4) == [True, True, False, False]


def test_a_service_without_tables_runs_and_its_log_says_which_command_makes_them(postgres: Postgres) -> None:
    url = postgres.new_database()
    with running_service(policy=POLICY, environ={"RATEBOUND_STORAGE": f"{url}?timeout=5"}) as service:
        assert logins(service, 1) == [True], "the failure mode answers"
        ends = time.monotonic() + 20
        while f"ratebound storage init {url.replace('ratebound@', '')}" not in service.log:
            assert time.monotonic() < ends, service.log
            time.sleep(0.05)


def test_operators_commands_work_on_the_tables(postgres: Postgres) -> None:
    url = fresh_url(postgres)
    with Limiter("5/hour", storage=url) as limiter:
        limiter.hit("user:42", cost=3)
    shown = command("state", "usage", "user:42", "--limits", "5/hour", "--storage", url, "--format", "json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)[0]["used"] == 3
    reset = command("state", "reset", "user:42", "--limits", "5/hour", "--storage", url)
    assert reset.exit_code == 0, reset.output
    with Limiter("5/hour", storage=url) as limiter:
        assert limiter.peek("user:42").remaining == 5
    added = command("blocks", "add", "203.0.113.7", "--for", "1 hour", "--reason", "test", "--storage", url)
    assert added.exit_code == 0, added.output
    assert "203.0.113.7" in command("blocks", "list", "--storage", url).output


def test_a_block_by_one_gate_is_seen_by_all_and_many_writers_lose_none(postgres: Postgres) -> None:
    url, policy = fresh_url(postgres), read_policy({"rules": [{"name": "rest", "limits": "1000/minute"}]})

    async def play() -> None:
        gates: list[Any] = [AsyncGate(policy, storage=url) for _ in range(5)]
        await asyncio.gather(*(gate.block(f"203.0.113.{place}", "1 hour") for place, gate in enumerate(gates)))
        for gate in gates:
            await gate.close()

    asyncio.run(play())
    with Gate(policy, storage=url) as gate:
        assert len(gate.blocks()) == 5
        assert not gate.decide(request(peer="203.0.113.3")).allowed
        assert gate.decide(request(peer="203.0.113.9")).allowed


@pytest.mark.parametrize("failure", ["open", "raise"])
def test_a_gate_without_tables_follows_its_failure_mode(failure: str, postgres: Postgres) -> None:
    policy = read_policy({"failure": failure, "rules": [{"name": "rest", "limits": "1000/minute"}]})
    with Gate(policy, storage=f"{postgres.new_database()}?timeout=5") as gate:
        if failure == "open":
            assert gate.decide(request()).allowed
        else:
            with pytest.raises(Exception, match="Run: ratebound storage init"):
                gate.decide(request())
