"""What an import says if the package of an extra is missing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ratebound.from_extra import from_extra

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# The module of Ratebound, the module that is missing, its package, and the extra that brings it
INTEGRATIONS = [
    ("client.aiohttp", "aiohttp", "aiohttp", "aiohttp"),
    ("client.httpx", "httpx", "httpx", "httpx"),
    ("client.otel", "opentelemetry", "opentelemetry-api", "otel"),
    ("client.prometheus", "prometheus_client", "prometheus-client", "prometheus"),
    ("client.urllib3", "urllib3", "urllib3", "urllib3"),
    ("loadtest.http1", "httptools", "httptools", "loadtest"),
    ("loadtest.http2", "h2", "h2", "loadtest"),
    ("observe.otel", "opentelemetry", "opentelemetry-api", "otel"),
    ("observe.prometheus", "prometheus_client", "prometheus-client", "prometheus"),
    ("web.django", "django", "Django", "django"),
    ("web.fastapi", "starlette", "Starlette", "fastapi"),
    ("web.flask", "werkzeug", "Flask", "flask"),
]


def test_an_integration_without_its_package_says_what_to_install() -> None:
    code = f"""
import sys
from importlib import import_module

for module, missing, *_ in {INTEGRATIONS}:
    sys.modules[missing] = None
    try:
        import_module(f"ratebound.{{module}}")
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        f'{package} is not installed. Run: pip install "ratebound[{extra}]"' for *_, package, extra in INTEGRATIONS
    ], done.stderr
    assert {extra for *_, extra in INTEGRATIONS} <= PROJECT["optional-dependencies"].keys()


@from_extra("loadtest", h2="h2")
def import_what_h2_needs() -> None:
    raise ModuleNotFoundError("No module named 'hyperframe.frame'", name="hyperframe.frame")


def test_what_the_extra_does_not_name_is_left_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hyperframe\.frame'$"):
        import_what_h2_needs()
