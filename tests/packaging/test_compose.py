"""deploy/compose.yaml, without an engine: its files exist, and its names are those of the service."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratebound.policy import load_policy
from ratebound.service.settings import BY_NAME, PREFIX, SETTINGS, read_settings
from tests.compiled.test_which_build_runs import ROOT
from tests.packaging.test_container_file import LISTENERS, port_of

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLES = {setting.variable: setting.name for setting in SETTINGS}


def example() -> dict[str, str]:
    """Return the variables of the example of secrets."""
    lines = (DEPLOY / "ratebound.env.example").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def mounts() -> dict[str, Path]:
    """Return where each file and folder of this project is mounted."""
    lines = [line for service in SERVICES.values() for line in service.get("volumes", []) if line.startswith(".")]
    assert all(line.endswith(":ro") for line in lines)
    return {line.split(":")[1]: DEPLOY / line.split(":")[0] for line in lines}


def test_every_file_that_is_mounted_or_built_exists() -> None:
    assert len(mounts()) == 4
    assert [path for path in mounts().values() if not path.exists()] == []
    build = SERVICES["ratebound"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_every_volume_and_every_secret_is_declared() -> None:
    named = [line.split(":")[0] for service in SERVICES.values() for line in service.get("volumes", [])]
    assert {*COMPOSE["volumes"]} == {name for name in named if not name.startswith(".")}
    assert {*COMPOSE["secrets"]} == {name for service in SERVICES.values() for name in service.get("secrets", [])}
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert "deploy/secrets/" in ignored
    assert f"deploy/{SERVICES['ratebound']['env_file']}" in ignored


def test_the_settings_are_those_of_the_service(tmp_path: Path) -> None:
    environ: dict[str, str] = SERVICES["ratebound"]["environment"]
    assert {*environ, *example()} <= {*VARIABLES}
    assert environ["RATEBOUND_POLICY"] == "/etc/ratebound/policy.yaml"
    token = tmp_path / "token"
    token.write_text("m" * 64)
    given = {VARIABLES[name]: value for name, value in environ.items()}
    given |= {"policy": str(mounts()["/etc/ratebound"] / "policy.yaml"), "admin_read_token_file": str(token)}
    secrets = {name: f"{'ann=' * ('ADMIN' in name)}{'s' * 64}" for name in example()}
    image = {BY_NAME[name].variable: f":{port_of(name)}" for name in LISTENERS}
    settings = read_settings(given, environ=secrets | image)
    assert str(settings.storage) == "redis://redis:6379/0"
    assert load_policy(given["policy"])


def test_the_ports_are_published_to_this_host_only() -> None:
    assert SERVICES["ratebound"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in map(port_of, LISTENERS)]
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_container_is_read_only_without_privileges_and_has_a_check() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "healthcheck" in service or "build" in service, name  # the image that is built has its own


def test_prometheus_asks_the_service_with_the_token_that_both_have() -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (job,) = settings["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"ratebound:{port_of('admin')}"]}]
    token = job["authorization"]["credentials_file"]
    assert token == SERVICES["ratebound"]["environment"][f"{PREFIX}ADMIN_READ_TOKEN_FILE"]
    assert token == f"/run/secrets/{SERVICES['prometheus']['secrets'][0]}"
    rules = {path.name for path in (DEPLOY / "prometheus").glob("*.rules.yml")}
    assert {*settings["rule_files"]} == rules


def test_promtool_accepts_the_configuration_and_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH")
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    (tmp_path / "token").write_text("m" * 64)
    file = tmp_path / "prometheus" / "prometheus.yml"
    file.write_text(re.sub("/run/secrets/metrics_token", str(tmp_path / "token"), file.read_text("utf-8")), "utf-8")
    done = subprocess.run([promtool, "check", "config", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_the_dashboard_and_the_data() -> None:
    provisioning = mounts()["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "ratebound.yaml").read_text("utf-8"))["providers"]
    assert f"{provider['options']['path']}/ratebound.json" in mounts()
