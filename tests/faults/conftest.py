"""A server for each module of faults, and a proxy between a test and its server."""

from collections.abc import Iterator

import pytest

from tests.proxy import Proxy, proxy
from tests.servers import Server, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def between(server: Server) -> Iterator[Proxy]:
    with server.client() as admin:
        admin.flushall()
    with proxy(server) as found:
        yield found
