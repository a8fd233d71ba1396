"""Names of endpoints: a template, or a path in which ids are replaced; never more than a bound."""

import pytest

from ratebound.ledger.endpoint import MOST_ENDPOINTS, EndpointNames, endpoint_name
from ratebound.policy import RequestView


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "GET /"),
        ("/orders", "GET /orders"),
        ("/orders/17", "GET /orders/{id}"),
        ("/v2/orders/17/items", "GET /v2/orders/{id}/items"),
        ("/u/0b9c6ad1-3a92-4f0e-9f9e-0d3b7f3f2a11", "GET /u/{id}"),
        ("/c/DEADBEEFdeadbeef", "GET /c/{id}"),
        ("/orders/ord-48213", "GET /orders/{id}"),
        ("/days/2026-11-16", "GET /days/{id}"),
        ("/u/ann@example.com", "GET /u/{id}"),
        ("/u/ann%40example.com", "GET /u/{id}"),
        ("/v2/s3/oauth2", "GET /v2/s3/oauth2"),
        ("/c/deadbeef", "GET /c/deadbeef"),
        ("/reset/" + "x" * 41, "GET /reset/{id}"),
        ("/w/" + "x" * 40, "GET /w/" + "x" * 40),
        ("/s?token=1", "GET /s"),
        ("/a" * 20, "GET " + "/a" * 10 + "/…"),
    ],
)
def test_what_looks_like_an_id_is_replaced(path: str, expected: str) -> None:
    assert endpoint_name("GET", path) == expected


def test_a_template_is_used_as_it_is() -> None:
    view = RequestView("GET", "/orders/abc", route="/orders/{order}")
    assert EndpointNames()(view) == "GET /orders/{order}"


def test_a_method_of_the_client_s_own_is_other() -> None:
    assert endpoint_name("PWN", "/") == "OTHER /"


def test_names_are_bounded_and_known_ones_stay() -> None:
    names = EndpointNames()
    found = {names(RequestView("GET", f"/p{number}x")) for number in range(MOST_ENDPOINTS + 10)}
    assert len(found) == MOST_ENDPOINTS + 1
    assert names(RequestView("GET", "/p3x")) == "GET /p3x"
    assert names(RequestView("GET", "/never-seen")) == "other"


def test_memory_for_paths_is_bounded() -> None:
    names = EndpointNames()
    for number in range(20_000):
        assert names(RequestView("GET", f"/orders/{number}")) == "GET /orders/{id}"
    assert len(names._by_path) <= 5_000
