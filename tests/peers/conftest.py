"""What the tests of the web share."""

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.peers.sites import django_site
from tests.servers import Server
from tests.web.suite import Answer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def look(redis_url_server: Server) -> Iterator[redis.Redis]:
    with redis_url_server.client() as client:
        yield client


@pytest.fixture
def django_get() -> Iterator[Callable[..., Answer]]:
    """`django_get(settings, {"/a": view}, "/a")`: a request to a site with these settings, which is kept."""
    with django_site() as get:
        yield get
