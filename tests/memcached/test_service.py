"""The service, the policy command and the dashboard's figures on Memcached, which keeps no shared documents."""

import asyncio
from pathlib import Path

from click.testing import CliRunner

from ratebound.cli.blocks import blocks
from ratebound.cli.policy import policy as policy_command
from ratebound.policy import read_policy
from ratebound.service.engine import Engine
from tests.databases import Memcached, memcached_servers
from tests.servers import wait_until
from tests.service.running_service import CLIENT, RunningService, running_service

POLICY = """
rules:
  - {name: login, match: {paths: /login, methods: POST}, by: address, limits: 6/day}
  - {name: rest, default: true, by: address, limits: 1000/hour}
"""
SLOTS = POLICY.replace("1000/hour", "3 concurrent")


def logins(service: RunningService, times: int) -> list[bool]:
    described = {"method": "POST", "path": "/login", "address": "203.0.113.7"}
    return [bool(service.ask("/v1/decide", described)["allowed"]) for _ in range(times)]


def is_ready(service: RunningService) -> bool:
    return CLIENT.get(service.url("http") + "/readyz").status_code == 200


def test_two_workers_count_together_and_are_ready(memcached: Memcached) -> None:
    url = f"{memcached.url}?prefix=service-"
    with running_service("--storage", url, "--workers", "2", "--deadline", "5", policy=POLICY) as service:
        assert logins(service, 8) == [True] * 6 + [False] * 2
        assert is_ready(service)
        assert CLIENT.get(service.url("admin") + "/readyz").status_code == 200
        hit = {"key": "a", "limits": "2/hour"}
        assert [service.ask("/v1/hit", hit)["allowed"] for _ in range(3)] == [True, True, False]
        many = [{"key": "b", "limits": "2/hour"}, {"key": "b", "limits": "3 concurrent"}]
        first, second = CLIENT.post(service.url("http") + "/v1/hit", json=many).json()
        assert first["allowed"]
        assert (second["status"], "Memcached keeps no slots" in str(second)) == (422, True)
        token = service.ask("/v1/reserve", {"key": "c", "limits": "9/hour", "cost": 5})["reservation"]
        service.ask("/v1/commit", {"reservation": token, "cost": 2})
        used = CLIENT.post(service.url("http") + "/v1/commit", json={"reservation": token, "cost": 1})
        assert used.status_code == 409, "a token works once"
        assert service.ask("/v1/peek", {"key": "c", "limits": "9/hour"})["remaining"] == 7
        assert service.end() == 0
        assert "Traceback" not in service.log


def test_it_is_not_ready_while_no_server_answers() -> None:
    with memcached_servers(2) as servers:
        hosts = ",".join(server.url.removeprefix("memcached://") for server in servers)
        with running_service("--storage", f"memcached://{hosts}", policy=POLICY) as service:
            wait_until(lambda: is_ready(service), 20, "ready")
            servers[0].kill()
            assert all(service.ask("/v1/hit", {"key": f"key:{n}", "limits": "9/hour"})["allowed"] for n in range(40))
            servers[1].kill()
            wait_until(lambda: not is_ready(service), 20, "not ready")
            for server in servers:
                server.start()
            wait_until(lambda: is_ready(service), 20, "ready again")


def test_an_engine_is_ready_if_any_of_its_servers_answers() -> None:
    async def main(url: str, servers: list[Memcached]) -> list[bool]:
        engine = Engine(read_policy("rules: [{name: all, by: address, limits: 5/hour}]"), storage=url)
        found = [await engine.is_ready()]
        for server in servers:
            server.kill()
            found += [await engine.is_ready() for _ in range(5)]
        await engine.close()
        return found

    with memcached_servers(2) as servers:
        hosts = ",".join(server.url.removeprefix("memcached://") for server in servers)
        assert asyncio.run(main(f"memcached://{hosts}", servers)) == [True] * 6 + [False] * 5


def test_operators_are_told_that_memcached_keeps_no_documents(memcached: Memcached) -> None:
    token = "a-token-of-admins-4567"
    headers = {"authorization": f"Bearer {token}"}
    environ = {"RATEBOUND_ADMIN_TOKENS": token}
    url = f"{memcached.url}?prefix=operators-"
    with running_service("--storage", url, "--workers", "2", policy=POLICY, environ=environ) as service:
        logins(service, 7)
        admin = service.url("admin")
        answers = [
            CLIENT.get(f"{admin}/api/blocks", headers=headers),
            CLIENT.post(f"{admin}/api/blocks", headers=headers, json={"client": "203.0.113.7"}),
        ]
        assert [answer.status_code for answer in answers] == [501, 501]
        assert all("keeps no shared documents" in answer.text for answer in answers)
        for path in ("api/rules", "api/figures", "metrics"):
            assert CLIENT.get(f"{admin}/{path}", headers=headers).status_code == 200, path
        assert "Traceback" not in service.log
    said = CliRunner().invoke(blocks, ["list", "--storage", memcached.url])
    assert said.exit_code != 0
    assert "keeps no shared documents" in said.output + str(said.exception)


def test_a_policy_that_memcached_cannot_keep_does_not_start_and_is_not_reloaded(
    memcached: Memcached, tmp_path: Path
) -> None:
    url = f"{memcached.url}?prefix=reload-"
    with running_service("--storage", url, policy=SLOTS, waits=False) as service:
        assert service.process.wait(20) != 0
        assert "Memcached keeps no slots" in service.log
        assert "Traceback" not in service.log
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    with running_service("--storage", url, "--policy", str(path)) as service:
        path.write_text(SLOTS)
        service.wait_for("Memcached keeps no slots")
        service.wait_for("the old policy stays in force")
        assert logins(service, 7) == [True] * 6 + [False]


def test_the_policy_command_finds_what_the_storage_of_the_file_cannot_keep(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"storage: memcached://cache:11211\n{SLOTS}")
    said = CliRunner().invoke(policy_command, ["check", str(path)])
    assert said.exit_code != 0
    assert "Memcached keeps no slots" in said.output.replace("\n", " ").replace("  ", " ")
    path.write_text(f"storage: redis://cache\n{SLOTS}")
    assert CliRunner().invoke(policy_command, ["check", str(path)]).exit_code == 0
