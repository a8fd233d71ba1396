"""Ratebound behind a real Envoy: what clients see, what Envoy counts, and what happens while Ratebound is away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ratebound.policy import load_policy, read_policy
from ratebound.policy.imports import import_envoy_descriptors
from ratebound.service.engine import Engine
from ratebound.service.envoy import EnvoyRateLimits
from tests.servers import HOST, wait_until
from tests.service.envoy_calls import Site, route, service, site

EXAMPLE = Path(__file__).parents[2] / "examples" / "proxies" / "envoy-ratelimit"
KEY: dict[str, Any] = {"actions": [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}]}
ADDRESS: dict[str, Any] = {"actions": [{"remote_address": {}}]}
TOKENS: dict[str, Any] = {
    "entries": [{"generic_key": "tokens"}],
    "limits": "12/hour fixed-window",
    "name": "tokens",
    "over": "charge",
}
GENERIC = {"generic_key": {"descriptor_value": "tokens"}}

ROUTES = [
    route("/", KEY, ADDRESS),
    route("/three", {**KEY, "hits_addend": {"number": 3}}, own=True),
    route("/back", {**KEY, "hits_addend": {"number": 3, "is_negative_hits": True}}, own=True),
    route("/check", {**KEY, "hits_addend": {"number": 0}}, own=True),
    route("/own", {**KEY, "limit": {"rate_limit": {"requests_per_unit": 42, "unit": "HOUR"}}}, own=True),
    route(
        "/tokens",
        {"actions": [GENERIC], "hits_addend": {"number": 0}},
        {"actions": [GENERIC], "hits_addend": {"format": "%BYTES_SENT%"}, "apply_on_stream_done": True},
        own=True,
    ),
    route("/closed.Service/Call", {"actions": [{"generic_key": {"descriptor_value": "closed"}}]}),
]
RULES: list[dict[str, Any]] = [
    {"entries": ["remote_address"], "limits": "100000/minute", "name": "address"},
    {"entries": ["api_key"], "limits": "5/hour fixed-window", "name": "key", "message": "Too many."},
    {"entries": [{"generic_key": "closed"}], "limits": "deny", "name": "closed", "message": "Closed."},
    TOKENS,
]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    limits = service(RULES, negative_hits=True)
    with site(limits, tmp_path_factory.mktemp("envoy"), ROUTES) as found:
        yield found


def test_clients_see_the_limits_and_the_denial(edge: Site) -> None:
    key = {"x-api-key": "seen"}
    first = edge.envoy.get("/", key)
    assert (first.status, first.body) == (200, b"hello")
    assert first.header("x-ratelimit-limit") == '5, 5;w=3600;name="key", 100000;w=60;name="address"'
    assert first.header("x-ratelimit-remaining") == "4"
    assert first.header("ratelimit-policy") == '"key/hour";q=5;w=3600, "address/minute";q=100000;w=60'
    assert [edge.envoy.get("/", key).status for _ in range(4)] == [200] * 4
    denied = edge.envoy.get("/", key)
    body = json.loads(denied.body)
    assert denied.status == body["status"] == 429
    assert denied.header("content-type") == "application/problem+json"
    assert (body["detail"], body["violated-policies"]) == ("Too many.", ["key/hour"])
    assert denied.header("x-envoy-ratelimited") == "true"
    assert 0 < int(denied.header("retry-after")) <= 3600
    assert denied.header("retry-after") == str(body["retry_after"])
    assert denied.header("x-ratelimit-remaining") == "0"


def test_a_descriptor_without_its_header_is_not_sent(edge: Site) -> None:
    assert edge.envoy.get("/").header("x-ratelimit-limit") == '100000, 100000;w=60;name="address"'
    assert len(edge.carrier.seen[-1].descriptors) == 1


def test_a_header_that_is_no_text_is_no_way_around_the_limit(edge: Site) -> None:
    key = {"x-api-key": b"\xff\xfe\x80"}
    assert [edge.envoy.get("/", key).status for _ in range(6)] == [200] * 5 + [429]
    assert edge.carrier.seen[-1].descriptors[0].entries[0].value == b"\xff\xfe\x80"
    assert edge.envoy.stat("error") == 0


def test_hits_of_a_descriptor_and_refunds(edge: Site) -> None:
    key = {"x-api-key": "hits"}
    assert edge.envoy.get("/three", key).header("x-ratelimit-remaining") == "2"
    assert edge.envoy.get("/three", key).status == 429
    assert edge.envoy.get("/check", key).header("x-ratelimit-remaining") == "2"
    assert edge.envoy.get("/back", key).header("x-ratelimit-remaining") == "5"
    assert edge.carrier.seen[-1].descriptors[0].is_negative_hits
    assert edge.envoy.get("/three", key).status == 200


def test_an_override_of_envoy_keeps_the_count_of_the_same_unit(edge: Site) -> None:
    key = {"x-api-key": "own"}
    assert edge.envoy.get("/", key).header("x-ratelimit-remaining") == "4"
    reply = edge.envoy.get("/own", key)
    assert reply.header("x-ratelimit-limit") == '42, 42;w=3600;name="key"'
    assert reply.header("x-ratelimit-remaining") == "40"


def test_what_a_response_cost_is_charged_when_it_has_ended(edge: Site) -> None:
    def charges() -> int:
        return [one.descriptors[0].hits_addend.value for one in list(edge.carrier.seen)].count(5)

    def ask_and_be_charged() -> None:
        before = charges()
        assert edge.envoy.get("/tokens").status == 200
        wait_until(lambda: charges() > before, 10, "the charge of a response")

    for _ in range(3):  # the third has 2 bytes left, and costs 5
        ask_and_be_charged()
    wait_until(lambda: edge.envoy.get("/tokens").status == 429, 10, "the last charge counts, although it exceeds")


def test_a_grpc_client_is_told_of_an_exhausted_resource(edge: Site) -> None:
    with grpc.insecure_channel(f"{HOST}:{edge.envoy.port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/closed.Service/Call")(b"", timeout=10)
        error: Any = caught.value
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert json.loads(error.details())["detail"] == "Closed."


@pytest.mark.parametrize(("deny", "status"), [(False, 200), (True, 500)])
def test_while_ratebound_is_away_envoy_decides(deny: bool, status: int, tmp_path: Path) -> None:
    limits = service([{"entries": ["remote_address"], "limits": "2/hour", "name": "address"}])
    with site(limits, tmp_path, [route("/", ADDRESS)], failure_mode_deny=deny, timeout="1s") as edge:
        assert edge.envoy.get().status == 200
        edge.carrier.kill()
        assert edge.envoy.get().status == status
        assert edge.envoy.stat("error") == 1
        edge.carrier.start()
        wait_until(lambda: bool(edge.envoy.get().all("ratelimit")), 20, "Ratebound is asked again")
        wait_until(lambda: edge.envoy.get().status == 429, 10, "its count has been kept")


def test_a_storage_that_fails_is_an_error_for_envoy(tmp_path: Path) -> None:
    limits = service(
        [{"entries": ["remote_address"], "limits": "2/hour", "name": "address"}],
        storage="redis://127.0.0.1:1/0",
        failure="closed",
        deadline=0.2,
    )
    with site(limits, tmp_path, [route("/", ADDRESS)], failure_mode_deny=True) as edge:
        assert edge.envoy.get().status == 500
        assert edge.envoy.stat("error") == 1
        assert edge.envoy.stat("over_limit") == 0


def test_the_example_works_as_it_is(tmp_path: Path) -> None:
    limits = EnvoyRateLimits(Engine(load_policy(EXAMPLE / "policy.yaml")))
    with site(limits, tmp_path, (EXAMPLE / "envoy.yaml").read_text()) as edge:
        replies = [edge.envoy.get("/login") for _ in range(6)]
        assert [reply.status for reply in replies] == [200] * 5 + [429]
        assert json.loads(replies[-1].body)["detail"] == "Too many attempts to log in."
        assert "retry-after" in dict(replies[-1].headers)
        page = edge.envoy.get("/", {"x-api-key": "k"})
        assert page.header("ratelimit").startswith('"address/minute";r=99')
        assert '"api-key/hour"' in page.header("ratelimit")


IMPORTED = """
domain: edge
descriptors:
  - key: api_key
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: api_key
    value: blocked
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: api_key
    value: "partner-*"
    share_threshold: true
    rate_limit: { unit: day, requests_per_unit: 3 }
  - key: api_key
    value: friend
    rate_limit: { unlimited: true }
  - key: remote_address
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1, name: per_address }
"""


def test_an_imported_file_serves_envoy_unchanged(tmp_path: Path) -> None:
    limits = EnvoyRateLimits(Engine(read_policy(import_envoy_descriptors(IMPORTED).text)))

    def statuses(key: str, count: int) -> list[int]:
        return [imported.envoy.get("/", {"x-api-key": key}).status for _ in range(count)]

    with site(limits, tmp_path, [route("/", KEY, ADDRESS)]) as imported:
        assert statuses("a", 3) == [200, 200, 429]
        assert statuses("b", 3) == [200, 200, 429]
        assert statuses("blocked", 1) == [429]
        assert statuses("friend", 4) == [200] * 4
        assert statuses("partner-1", 2) + statuses("partner-2", 2) == [200, 200, 200, 429]
        assert imported.envoy.get("/").status == 200
        assert imported.envoy.stat("error") == 0
