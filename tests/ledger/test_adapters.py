"""The ledger in every web framework: endpoints by route, and costs as they were settled."""

import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.ledger import Ledger
from tests.ledger.ledgers import rows_of
from tests.web.applications import ADAPTERS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.fixture(params=list(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def used(adapter: str, ledger: Ledger, requests: list[tuple[str, str, dict[str, str]]], **rule: Any) -> dict[str, Any]:
    """Send requests, and return units, allowed and denied by endpoint."""
    policy = {"rules": [{"name": "all", "limits": "100/minute", **rule}], "by": "address"}
    with ADAPTERS[adapter](policy=policy, storage=MemoryStorage(), listeners=[ledger]) as client:
        for method, path, headers in requests:
            client(method, path, headers)
    ledger.flush()
    return {endpoint: numbers[:3] for (_, _, endpoint), numbers in rows_of(ledger).items()}


def test_endpoints_are_routes_and_failures_cost(adapter: str, sqlite_ledger: Ledger) -> None:
    requests = [
        ("GET", "/users/7", {}),
        ("GET", "/users/8", {}),
        ("POST", "/login", {"x-password": "right"}),
        ("POST", "/login", {"x-password": "wrong"}),
    ]
    found = used(adapter, sqlite_ledger, requests, charge={"status": [200, 401]}, cost=1)
    assert {name.replace("<id>", "{id}").replace("<int:id>", "{id}"): found[name] for name in found} == {
        "GET /users/{id}": (2, 2, 0),
        "POST /login": (2, 2, 0),
    }


def test_a_response_that_costs_nothing_is_settled_in_the_ledger(adapter: str, sqlite_ledger: Ledger) -> None:
    requests = [("POST", "/login", {"x-password": word}) for word in ("right", "right", "wrong")]
    assert used(adapter, sqlite_ledger, requests, charge={"status": [401]}) == {"POST /login": (1, 3, 0)}


def test_a_denied_request_is_counted_with_its_endpoint(adapter: str, sqlite_ledger: Ledger) -> None:
    assert used(adapter, sqlite_ledger, [("GET", "/", {})] * 3, limits="2/minute") == {"GET /": (2, 2, 1)}


def test_bytes_of_a_stream_are_counted(adapter: str, sqlite_ledger: Ledger) -> None:
    assert used(adapter, sqlite_ledger, [("GET", "/stream", {})], charge="bytes") == {"GET /stream": (11, 1, 0)}
