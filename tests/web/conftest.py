"""Async tests run on asyncio, by the plugin that comes with anyio; those of Django in both kinds of server."""

import pytest

from tests.web.suite import Naps


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[["ratebound.web.django.RateLimitMiddleware"], []], ids=["middleware", "decorator only"])
def middleware(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)
