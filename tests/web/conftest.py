"""Async tests run on asyncio, by the plugin that comes with anyio."""

import pytest

from tests.web.suite import Naps


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def naps() -> Naps:
    return Naps()
