"""What `import ratebound` does not import: modules that take time, and that few programs need."""

import asyncio
import subprocess
import sys

import pytest

from ratebound import late_asyncio

# Packages of the extras, and costly parts of the standard library.
NOT_BY_THE_CORE = """
    aiohttp click django fastapi flask hiredis httpx msgspec prometheus_client psutil psycopg pydantic redis requests
    rich starlette urllib3 uvicorn yaml
    argparse asyncio calendar concurrent.futures ctypes decimal email fractions http http.client importlib.metadata
    importlib.resources json mmap multiprocessing pathlib socket sqlite3 ssl subprocess tempfile tomllib unittest
    urllib.request uuid zoneinfo
"""
NOT_BY_THE_FASTAPI_ADAPTER = """
    aiohttp click django fastapi flask hiredis msgspec prometheus_client psutil psycopg redis requests rich uvicorn yaml
    argparse ctypes multiprocessing sqlite3 unittest
"""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("ratebound", NOT_BY_THE_CORE), ("ratebound.web.fastapi", NOT_BY_THE_FASTAPI_ADAPTER)],
    ids=["core", "FastAPI"],
)
def test_an_import_brings_no_costly_module_that_it_does_not_need(module: str, unwanted: str) -> None:
    code = f"import sys; before = {{*sys.modules}}; import {module}; print(*{{*sys.modules}} - before)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert module in shown.split()
    assert sorted({*unwanted.split()} & {*shown.split()}) == []


def test_a_command_brings_nothing_that_only_other_commands_need() -> None:
    code = """
import sys
from ratebound.cli import command

command()(["explain", "1/second"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = {".".join(module.split(".")[:2]) for module in done.stderr.split()}
    assert "ratebound.cli" in brought
    assert brought & {f"ratebound.{name}" for name in ("ledger", "loadtest", "policy", "replay", "service")} == set()


def test_an_async_limiter_works_after_an_import_without_asyncio() -> None:
    code = """
import sys
from ratebound import AsyncLimiter

limiter = AsyncLimiter("1/hour; 1 concurrent")
import asyncio

async def main():
    async with limiter.acquire("a", timeout=0):
        return bool(await limiter.hit("a"))

print(asyncio.run(main()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_patched_function_of_asyncio_does_not_stay_when_the_patch_is_over() -> None:
    async def at_once(seconds: float) -> None: ...

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "sleep", at_once)
        assert late_asyncio.asyncio.sleep is at_once
    assert late_asyncio.asyncio.sleep is asyncio.sleep


@pytest.mark.parametrize(("module", "package"), [("redis", "redis-py"), ("hiredis", "hiredis")])
def test_a_redis_storage_names_the_package_that_is_missing(module: str, package: str) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
from ratebound import Limiter
Limiter("1/second", storage="redis://127.0.0.1:1")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f'ModuleNotFoundError: {package} is not installed. Run: pip install "ratebound[redis]"'
    assert done.stderr.splitlines()[-1] == expected
