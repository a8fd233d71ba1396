"""The service with a policy from a URL: a process of its own fetches it, and all workers follow."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratebound.service.settings import SettingsError, read_settings
from tests.policy.policy_server import PolicyServer, respond, serving, tls_server
from tests.servers import free_port, wait_until
from tests.service.running_service import CLIENT, RunningService, running_service

TOKEN = "0123456789abcdef0123456789abcdef"


def rules(limits: str) -> str:
    return f"rules: [{{name: a, default: true, limits: {limits}}}]\n"


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with serving(rules("1/hour")) as found:
        yield found


@contextmanager
def service_on(
    server: PolicyServer, keep: Path, *options: str, every: str = "0.1", **more: Any
) -> Iterator[RunningService]:
    given = ("--policy", server.url, "--policy-keep", str(keep), "--policy-every", every, "--workers", "2", *options)
    with running_service(*given, **more) as service:
        yield service


def limits_of(service: RunningService) -> set[str]:
    described = {"method": "GET", "path": "/", "address": "203.0.113.9"}
    return {service.ask("/v1/decide", described)["decision"]["limit"]["text"] for _ in range(12)}


def told_of_policy(service: RunningService) -> str:
    return str(CLIENT.get(service.url("admin") + "/readyz").json()["policy"])


def eventually(service: RunningService, limits: str) -> None:
    wait_until(lambda: limits_of(service) == {limits}, 20, f"all workers decide by {limits}")


def test_all_workers_follow_the_server_through_failures(server: PolicyServer, tmp_path: Path) -> None:
    with service_on(server, tmp_path / "policy.yaml") as service:
        assert limits_of(service) == {"1/hour"}
        server.text = rules("7/hour")
        eventually(service, "7/hour")
        assert service.metrics()["ratebound_service_policy_is_old"] == 0
        server.text = rules("7/houx")
        service.wait_for("cannot read limit '7/houx'")
        wait_until(lambda: "cannot be fetched" in told_of_policy(service), 20, "a word on the old policy")
        assert service.metrics()["ratebound_service_policy_is_old"] == 1
        assert limits_of(service) == {"7/hour"}
        server.answer = lambda handler: respond(handler, 500)
        service.wait_for("status 500")
        many = len(server.asked)
        wait_until(lambda: len(server.asked) > many + 3, 20, "it goes on asking")
        server.answer, server.text = None, rules("8/hour")
        eventually(service, "8/hour")
        wait_until(lambda: told_of_policy(service) == "loaded", 20, "a word on the new policy")
        assert service.log.count("status 500") == 1, "one line for each kind of failure"
        assert service.log.count("policy: the policy can be fetched again") == 1
        assert 304 in server.statuses
        assert service.metrics()["ratebound_service_policy_age_seconds"] >= 0
        assert (tmp_path / "policy.yaml").read_text() == rules("8/hour")
        assert service.end() == 0


def test_a_signal_fetches_at_once(server: PolicyServer, tmp_path: Path) -> None:
    with service_on(server, tmp_path / "policy.yaml", "--reload", "off", every="3600") as service:
        server.text = rules("7/hour")
        service.send(signal.SIGHUP)
        eventually(service, "7/hour")
        server.answer = lambda handler: respond(handler, 404)
        service.send(signal.SIGHUP)
        service.wait_for("status 404")
        assert limits_of(service) == {"7/hour"}


def test_a_start_without_the_server_uses_the_copy(tmp_path: Path) -> None:
    port, keep = free_port(), tmp_path / "policy.yaml"
    with serving(rules("5/hour"), port) as server, service_on(server, keep) as service:
        assert limits_of(service) == {"5/hour"}
    with service_on(server, keep) as service:
        assert f"the copy in {keep} is used, which the server last confirmed at" in service.log
        assert limits_of(service) == {"5/hour"}
        assert "cannot be fetched" in told_of_policy(service)
        assert service.metrics()["ratebound_service_policy_is_old"] == 1
        with serving(rules("6/hour"), port):
            eventually(service, "6/hour")
            wait_until(lambda: told_of_policy(service) == "loaded", 20, "a word on the new policy")


@pytest.mark.parametrize("text", ["rules: [{name: a, limits: 1/houx}]", "<html>Log in</html>"])
def test_a_start_without_a_policy_and_a_copy_is_an_error(server: PolicyServer, tmp_path: Path, text: str) -> None:
    server.text = text
    with service_on(server, tmp_path / "policy.yaml", waits=False) as service:
        assert service.process.wait(20) == 2
        assert server.url in service.log
        assert "Traceback" not in service.log
        assert "is served on" not in service.log


def test_the_process_that_fetches_is_started_again(server: PolicyServer, tmp_path: Path) -> None:
    with service_on(server, tmp_path / "policy.yaml") as service:
        (poller,) = set(service.children()) - set(service.workers()) - {admin_of(service)}
        os.kill(poller, signal.SIGKILL)
        service.wait_for("policy was ended by SIGKILL; it is started again")
        server.text = rules("7/hour")
        eventually(service, "7/hour")


def admin_of(service: RunningService) -> int:
    """The process of the control plane: it was started after the workers, and before the one that fetches."""
    return sorted(service.children())[-2]


def test_two_instances_share_a_copy(server: PolicyServer, tmp_path: Path) -> None:
    keep = tmp_path / "policy.yaml"
    with service_on(server, keep) as first, service_on(server, keep) as second:
        for count in (2, 3, 4):
            server.text = rules(f"{count}/hour")
            eventually(first, f"{count}/hour")
            eventually(second, f"{count}/hour")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.yaml", "policy.yaml.fetched"]


def test_tls_and_a_token(tmp_path: Path) -> None:
    tls, authority = tls_server(tmp_path)
    environ = {"SSL_CERT_FILE": str(authority), "RATEBOUND_POLICY_TOKEN": "hunter2"}
    with serving(rules("5/hour"), tls=tls) as server:
        with service_on(server, tmp_path / "policy.yaml", environ=environ) as service:
            assert limits_of(service) == {"5/hour"}
            assert "hunter2" not in service.log
        assert server.asked[0]["authorization"] == "Bearer hunter2"


def test_operators_see_check_and_fetch_the_policy(server: PolicyServer, tmp_path: Path) -> None:
    environ = {"RATEBOUND_ADMIN_TOKENS": f"ann={TOKEN}"}
    with service_on(server, tmp_path / "policy.yaml", every="3600", environ=environ) as service:

        def call(method: str, path: str, status: int = 200) -> Any:
            more: dict[str, Any] = {} if method == "GET" else {"json": {}}
            headers = {"authorization": f"Bearer {TOKEN}"}
            answer = CLIENT.request(method, f"{service.url('admin')}/api/{path}", headers=headers, **more)
            assert answer.status_code == status, answer.text
            return answer.json()

        server.text = rules("7/hour")
        change = {"where": "rule a", "what": "changed", "detail": "limits: '1/hour' -> '7/hour'", "starts_anew": False}
        assert call("POST", "policy/check")["changes"] == [change]
        assert limits_of(service) == {"1/hour"}
        assert call("POST", "policy/reload")["changes"] == [change]
        assert limits_of(service) == {"7/hour"}
        assert call("POST", "policy/check")["changes"] == []
        server.answer = lambda handler: respond(handler, 500)
        assert "status 500" in call("POST", "policy/check", 502)["detail"]
        assert "status 500" in call("POST", "policy/reload", 502)["detail"]
        found = call("GET", "policy")
        assert found["source"] == server.url
        assert "status 500" in found["error"]
        server.answer, server.text = None, rules("7/houx")
        assert "7/houx" in call("POST", "policy/check")["problems"][0]["message"]
        assert limits_of(service) == {"7/hour"}


def test_settings_of_a_policy_from_a_url(tmp_path: Path) -> None:
    read = read_settings({"policy": "https://host/policy.toml"}, environ={})
    assert read.policy_url == "https://host/policy.toml"
    assert read.policy is not None
    assert read.policy.suffix == ".toml"
    assert read.policy_every == 30
    read = read_settings({"policy": "policy.yaml"}, environ={})
    assert (read.policy, read.policy_url) == (Path("policy.yaml"), "")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": "policy.yaml", "policy_keep": "kept.yaml"}, "it is for a policy from a URL"),
        ({"policy": "https://host/policies/3"}, "ends in .yaml"),
        ({"policy": "https://user:hunter2@host/policy.yaml"}, "RATEBOUND_POLICY_TOKEN"),
        ({"policy": "https://host/policy.yaml", "policy_keep": "kept.json"}, "of the format yaml"),
        ({"policy": "https://host/policy.yaml", "policy_every": "0"}, "expected seconds from 0.1"),
    ],
)
def test_settings_that_do_not_fit_are_mistakes(options: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as found:
        read_settings(options, environ={})
    assert "hunter2" not in str(found.value)
