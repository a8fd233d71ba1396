"""A new policy is in force for endpoints with limits of their own, and no request pays for the change."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from ratebound.policy import Policy, PolicyFile, read_policy
from ratebound.policy.match.index import Index
from ratebound.policy.runtime.compiled_rules import CompiledRule
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.web.fastapi import RateLimits
from tests.web.drivers import fetch
from tests.web.flask_site import Site

COMPILING: tuple[Any, ...] = (CompiledPolicy.__init__, CompiledRule.__init__, Index.__init__, Policy.__post_init__)
RULES = """
rules:
  - {{name: all, limits: {count}/minute}}
  - {{name: files, limits: {count}/minute, match: {{paths: [/files]}}}}
  - {{name: rest, limits: {count}/hour, default: true}}
"""


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Note each call, in this thread, of a function that compiles something of a policy."""
    codes = {function.__code__: function.__qualname__ for function in COMPILING}
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            found.append(codes[frame.f_code])

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    path = tmp_path / "policy.yaml"
    path.write_text(RULES.format(count=50))
    return PolicyFile(path, every=0)


def change(file: PolicyFile, count: int = 40) -> None:
    file.path.write_text(RULES.format(count=count))
    assert file.reload()


PATHS = ("/plain", "/limited", "/both", "/inside", "/files")


def limits_told(headers: Any) -> dict[str, int]:
    """The counts that a client is told of, by limit."""
    (policy,) = [value for name, value in headers if name.lower() == "ratelimit-policy"]
    parts = [part.split(";") for part in policy.split(", ")]
    return {name.strip('"'): int(quota.removeprefix("q=")) for name, quota, *_ in parts}


@pytest.mark.anyio
async def test_no_request_compiles_anything_after_a_reload_in_fastapi(file: PolicyFile) -> None:
    app = FastAPI()
    limits = RateLimits(file, app=app)

    def view() -> Callable[[], Any]:
        async def answer() -> str:
            return "ok"

        return answer

    app.get("/plain")(view())
    app.get("/limited")(limits.limit("30/minute", name="limited")(view()))
    app.get("/both")(limits.limit("30/minute", name="both", keep_defaults=True)(view()))
    app.get("/inside", dependencies=[Depends(limits.limit("30/minute", name="inside"))])(view())
    app.get("/files")(limits.limit("30/minute", name="own-files")(view()))
    before = [limits_told((await fetch(app, "GET", path)).headers) for path in PATHS]
    change(file)
    with compilations() as found:
        after = [limits_told((await fetch(app, "GET", path)).headers) for path in PATHS]
    assert found == []
    assert after == [{name: 40 if count == 50 else count for name, count in one.items()} for one in before]


def test_no_request_compiles_anything_after_a_reload_in_flask(file: PolicyFile) -> None:
    site = Site(file)

    def inside() -> str:
        with site.limiter.limit("30/minute", name="inside"):
            return "ok"

    site.view("/plain")
    site.view("/limited", site.limiter.limit("30/minute"))
    site.view("/both", site.limiter.limit("30/minute", keep_defaults=True))
    site.view("/inside", answer=inside)
    site.view("/files", site.limiter.limit("30/minute"))
    before = [limits_told(site.get(path).headers.to_wsgi_list()) for path in PATHS]
    change(file)
    with compilations() as found:
        after = [limits_told(site.get(path).headers.to_wsgi_list()) for path in PATHS]
    assert found == []
    assert after == [{name: 40 if count == 50 else count for name, count in one.items()} for one in before]


@pytest.mark.anyio
async def test_no_request_compiles_anything_after_a_policy_was_given(file: PolicyFile) -> None:
    app = FastAPI()
    limits = RateLimits(file, app=app)

    @app.get("/")
    @limits.limit("30/minute", name="own")
    async def answer() -> str:
        return "ok"

    assert limits_told((await fetch(app, "GET", "/")).headers) == {"own/minute": 30, "all/minute": 50}
    limits.gate.use(read_policy({"rules": [{"name": "other", "limits": "9/minute"}]}))
    with compilations() as found:
        answered = await fetch(app, "GET", "/")
    assert found == []
    assert limits_told(answered.headers) == {"own/minute": 30, "other/minute": 9}


def test_a_policy_that_an_endpoint_cannot_use_is_told_of_at_the_reload(
    file: PolicyFile, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(file)
    site.view("/taken", site.limiter.limit("30/minute", name="mine"))
    site.view("/free")
    assert [site.get(path).status_code for path in ("/taken", "/free")] == [200, 200]
    file.path.write_text("rules: [{name: mine, limits: 20/minute}]")
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert file.reload()
    count = caplog.text.count("the previous policy stays in force there")
    assert count
    with compilations() as found:
        told = [limits_told(site.get(path).headers.to_wsgi_list()) for path in ("/taken", "/free", "/taken")]
    assert found == []
    assert told == [{"mine/minute": 30, "all/minute": 50}, {"mine/minute": 20}, {"mine/minute": 30, "all/minute": 50}]
    assert caplog.text.count("the previous policy stays in force there") == count, "it is told once of each endpoint"
