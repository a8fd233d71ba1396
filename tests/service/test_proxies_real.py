"""nginx, Envoy, Traefik, Caddy and HAProxy with the configuration of examples/proxies, in front of an application."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratebound.service.bearer_tokens import BearerTokens
from tests.proxies import COMMANDS, Edge, client_address, running_edge
from tests.servers import wait_until

POLICY = """
trusted: [127.9.0.0/16]
identities:
  api-key: {header: x-api-key, verify: find_api_key}
rules:
  - {name: limited, match: {paths: [/limited/**]}, by: address, limits: 2/hour}
  - {name: posts, match: {paths: [/posts/**], methods: [POST]}, by: address, limits: 1/hour}
  - {name: secret, match: {paths: [/secret]}, limits: deny}
  - {name: keys, match: {paths: [/keys]}, by: api-key, limits: 1/hour}
"""
# What each proxy can do.
TELLS_ALLOWED = {"nginx", "envoy", "caddy", "haproxy"}  # headers reach the client of an allowed request
PASSES_BODIES = {"envoy", "traefik", "caddy", "haproxy"}  # the body of a denial reaches the client
AWAY = {"nginx": 200, "envoy": 200, "haproxy": 200, "traefik": 500, "caddy": 503}
APPENDS = {"nginx", "envoy", "haproxy"}  # X-Forwarded-For of every client is passed on
HEADERS = {"nginx": "nginx", "envoy": "path", "traefik": "forwarded", "caddy": "forwarded", "haproxy": "forwarded"}
CLEANS = {"traefik"}  # paths are resolved, for the policy and for the application
ENCODES = {"traefik", "caddy"}
REFUSED = {("nginx", "/%2e%2e/x")}  # a path above the root


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def edge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running_edge(request.param, tmp_path_factory.mktemp(request.param), POLICY) as running:
        yield running


def test_an_allowed_request_reaches_the_application_and_its_client_is_told_the_limits(edge: Edge) -> None:
    reply = edge.ask("/limited/a?b=1", source=client_address())
    assert (reply.status, reply.body) == (200, b"hello")
    assert edge.application.requests[-1].target == b"/limited/a?b=1"
    if edge.name in TELLS_ALLOWED:
        assert reply.headers["ratelimit"] == '"limited/hour";r=1;t=3600'
        assert reply.headers["ratelimit-policy"] == '"limited/hour";q=2;w=3600'
    else:
        assert "ratelimit" not in reply.headers


def test_a_limited_request_is_answered_in_full_and_never_reaches_the_application(edge: Edge) -> None:
    address = client_address()
    assert [edge.ask("/limited/a", source=address).status for _ in range(2)] == [200, 200]
    before = len(edge.application.requests)
    reply = edge.ask("/limited/a", source=address)
    assert reply.status == 429
    assert 3590 <= int(reply.headers["retry-after"]) <= 3600
    assert reply.headers["ratelimit"].startswith('"limited/hour";r=0;t=')
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["cache-control"] == "no-store"
    body = json.loads(reply.body)
    assert (body["status"], body["title"]) == (429, "Quota Exceeded")
    assert ("violated-policies" in body) is (edge.name in PASSES_BODIES)
    head = edge.ask("/limited/a", method="HEAD", source=address)
    assert (head.status, head.body) == (429, b"")
    assert len(edge.application.requests) == before
    assert edge.ask("/limited/a", source=client_address()).status == 200


def test_the_policy_sees_the_request_as_the_client_sent_it(edge: Edge) -> None:
    address = client_address()
    headers = [("X-Api-Key", "k"), ("Cookie", "a=b"), ("User-Agent", "curl/8")]
    edge.ask("/x?policy=free&cost=0&key=other", source=address, headers=headers, host="shop.example")
    (seen,) = edge.service.seen_from(address)
    assert seen[:6] == ("GET", "/x", "policy=free&cost=0&key=other", "shop.example", "http", address)
    got = dict(seen.headers)
    assert {name: got[name] for name in ("host", "x-api-key", "cookie", "user-agent")} == {
        "host": "shop.example",
        "x-api-key": "k",
        "cookie": "a=b",
        "user-agent": "curl/8",
    }
    ours = ("x-forwarded-", "x-original-", "x-envoy-", "content-length", "connection", "x-ratebound-token")
    assert [name for name in got if name.startswith(ours)] == []


def test_a_rule_counts_by_a_header_of_the_client(edge: Edge) -> None:
    first, second = ([("X-Api-Key", f"{edge.name}-{number}")] for number in (1, 2))
    replies = [edge.ask("/keys", source=client_address(), headers=key).status for key in (first, first, second)]
    assert replies == [200, 429, 200]


def test_a_body_reaches_the_application_whole_and_not_the_service(edge: Edge) -> None:
    address, body = client_address(), bytes(range(256)) * 1000
    reply = edge.ask("/posts/1", method="POST", source=address, body=body)
    assert reply.status == 200
    got = edge.application.requests[-1]
    assert (got.method, got.body == body) == ("POST", True)
    assert edge.ask("/posts/1", method="POST", source=address, body=body).status == 429
    assert edge.ask("/posts/1", source=address).status == 200  # only POST is limited
    assert [seen.method for seen in edge.service.seen_from(address)] == ["POST", "POST", "GET"]


def test_a_denial_without_a_limit_is_a_403(edge: Edge) -> None:
    reply = edge.ask("/secret", source=client_address())
    assert reply.status == 403
    assert json.loads(reply.body)["title"] == "Forbidden"
    assert "retry-after" not in reply.headers


@pytest.mark.parametrize(
    ("sent", "cleaned"),
    [
        ("/a%2Fb", None),
        ("//x//y", "/x/y"),
        ("/a/../b", "/b"),
        ("/a;b=c/d", None),
        ("/%2e%2e/x", "/x"),
        ("/a%20b", None),
        ("/%41", "/A"),
        ("/a\\b", None),
        ("/v1/check/../hit", "/v1/hit"),
    ],
)
def test_odd_paths_reach_the_policy_as_the_application_gets_them(edge: Edge, sent: str, cleaned: str | None) -> None:
    address = client_address()
    before = len(edge.application.requests)
    reply = edge.ask(f"{sent}?q=%2F", source=address)
    if (edge.name, sent) in REFUSED:
        assert (reply.status, edge.service.seen_from(address)) == (400, [])
        return
    expected = cleaned if cleaned and edge.name in CLEANS else sent
    if edge.name in ENCODES:
        expected = expected.replace("\\", "%5C")
    (seen,) = edge.service.seen_from(address)
    assert (reply.status, seen.path, seen.query) == (200, expected, "q=%2F")
    assert edge.application.targets()[before:] == [f"{expected}?q=%2F".encode()]


@pytest.mark.parametrize("target", ["/limited/a", "//limited/a", "/x/../limited/a", "/%6cimited/a", "/limited/a;x"])
def test_no_spelling_of_a_path_escapes_its_limit(edge: Edge, target: str) -> None:
    address = client_address()
    assert [edge.ask("/limited/a", source=address).status for _ in range(2)] == [200, 200]
    assert edge.ask(target, source=address).status == 429


HOSTILE = {
    "original": [("X-Original-URI", "/free"), ("X-Original-Method", "OPTIONS")],
    "original uri": [("X-Original-URI", "/free")],
    "original twice": [("X-Original-URI", "/free"), ("X-Original-URI", "/other")],
    "forwarded": [("X-Forwarded-Uri", "/free"), ("X-Forwarded-Method", "OPTIONS")],
    "forwarded method": [("X-Forwarded-Method", "OPTIONS")],
    "forwarded twice": [("X-Forwarded-Uri", "/free"), ("X-Forwarded-Uri", "/other")],
    "address": [("X-Forwarded-For", "203.0.113.9"), ("X-Real-IP", "203.0.113.9")],
    "addresses": [("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "203.0.113.8, 203.0.113.7")],
    "host": [("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Port", "1")],
    "envoy": [("X-Envoy-Original-Path", "/free"), ("X-Envoy-External-Address", "203.0.113.9")],
    "connection": [("Connection", "X-Forwarded-Uri, X-Forwarded-For, X-Original-URI, X-Real-IP")],
    "token": [("X-Ratebound-Token", "guess")],
    "upgrade": [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")],
}


@pytest.mark.parametrize("setting", ["auto", "set"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_header_of_a_client_changes_what_is_decided(edge: Edge, kind: str, setting: str) -> None:
    """It is decided as it is, or refused; never by what the client has sent about it."""
    address = client_address()
    edge.service.use(headers=HEADERS[edge.name] if setting == "set" else "auto")
    for _ in range(2):
        assert edge.ask("/limited/a", source=address).status == 200
    before, seen = len(edge.application.requests), len(edge.service.engine.seen)
    reply = edge.ask("/limited/a", source=address, headers=HOSTILE[kind])
    allowed = {429}
    if edge.name == "traefik" and kind.startswith("original") and setting == "auto":
        allowed = {400}
    if edge.name == "envoy" and kind in ("connection", "upgrade"):
        allowed = {400, 403, 429}  # Envoy does not take such a request
    assert reply.status in allowed
    assert len(edge.application.requests) == before
    for one in edge.service.engine.seen[seen:]:
        assert (one.method, one.path, one.host, one.scheme, one.peer) == (
            "GET",
            "/limited/a",
            "api.example",
            "http",
            address,
        )


def test_the_client_behind_a_cdn_is_counted_if_the_proxy_passes_its_address_on(edge: Edge) -> None:
    """The policy trusts 127.9.0.0/16. Nobody else can say for whom a request comes."""
    cdn = ".".join(["127", "9", *client_address().split(".")[2:]])
    others = [[("X-Forwarded-For", f"203.0.113.{number}")] for number in range(3)]
    by_cdn = [edge.ask("/limited/a", source=cdn, headers=other).status for other in others]
    assert by_cdn == ([200, 200, 200] if edge.name in APPENDS else [200, 200, 429])
    address = client_address()
    assert [edge.ask("/limited/a", source=address, headers=other).status for other in others] == [200, 200, 429]


@pytest.mark.parametrize("lines", [90, 97, 98, 150, 300])
@pytest.mark.parametrize("name", ["X-Same", "X-{}"])
def test_no_number_of_headers_escapes_a_limit_or_ends_the_proxy(edge: Edge, lines: int, name: str) -> None:
    address = client_address()
    before = len(edge.application.requests)
    headers = [(name.format(number), "v") for number in range(lines)]
    statuses = [edge.ask("/limited/a", source=address, headers=headers).status for _ in range(3)]
    assert statuses in ([200, 200, 429], [431] * 3, [400] * 3, [500] * 3)
    assert len(edge.application.requests) == before + statuses.count(200)
    assert edge.ask("/x", source=address).status == 200


def test_a_service_that_is_away_and_back(edge: Edge) -> None:
    """Each example has chosen: requests pass without limits, or are refused."""
    service = edge.service.server
    assert edge.ask("/limited/a", source=client_address()).status == 200
    service.kill()
    try:
        address = client_address()
        before = len(edge.application.requests)
        replies = [edge.ask("/limited/a", source=address) for _ in range(3)]
        assert [reply.status for reply in replies] == [AWAY[edge.name]] * 3
        assert len(edge.application.requests) - before == (3 if AWAY[edge.name] == 200 else 0)
        assert not any("ratelimit" in reply.headers for reply in replies)
    finally:
        service.start()
    wait_until(lambda: edge.ask("/secret", source=client_address()).status == 403, 20, "limits are kept again")


def test_a_service_that_does_not_answer_is_like_one_that_is_away(edge: Edge) -> None:
    if edge.name == "traefik":
        pytest.skip("ForwardAuth has no timeout that could be set: it waits for 30 seconds")
    edge.service.hang()
    try:
        assert edge.ask("/limited/a", source=client_address()).status == AWAY[edge.name]
    finally:
        edge.service.use()
    wait_until(lambda: edge.ask("/secret", source=client_address()).status == 403, 20, "limits are kept again")


TOKEN = "0123456789abcdef"
WRITTEN = '"the token of the service"'
SENT_TOKENS = {  # the changes in each example that make its proxy send the token
    "nginx": [("# proxy_set_header X-Ratebound-Token", "proxy_set_header X-Ratebound-Token"), (WRITTEN, TOKEN)],
    "envoy": [("headers_to_add: []  # - {", "headers_to_add: [{"), (f"{WRITTEN}}}", f"{TOKEN!r}}}]")],
    "caddy": [("# header_up X-Ratebound-Token", "header_up X-Ratebound-Token"), (WRITTEN, TOKEN)],
    "haproxy": [("local TOKEN = nil", f"local TOKEN = {TOKEN!r}")],
    "traefik": [
        ("[ratebound]  # if the service has tokens: [", "["),
        ("# send-token:", "send-token:"),
        ("# drop-token:", "drop-token:"),
        ("#   headers:", "  headers:"),
        (WRITTEN, repr(TOKEN)),
    ],
}


@pytest.mark.parametrize("name", SENT_TOKENS)
def test_a_proxy_sends_the_token_that_the_service_wants(name: str, tmp_path: Path) -> None:
    with running_edge(name, tmp_path, POLICY, SENT_TOKENS[name], tokens=BearerTokens([TOKEN])) as edge:
        address = client_address()
        guess = [("X-Ratebound-Token", "a client's own")]
        assert [edge.ask("/limited/a", source=address, headers=guess).status for _ in range(3)] == [200, 200, 429]
        assert not any(TOKEN in str(seen) for seen in edge.service.engine.seen)
        assert not any(TOKEN in str(request.headers) for request in edge.application.requests)
        edge.service.use(tokens=BearerTokens(["another token of it".replace(" ", "-")]))
        assert edge.ask("/x", source=address).status in (403, 500)


def test_a_request_without_limits_has_no_such_headers(edge: Edge) -> None:
    reply = edge.ask("/unlimited", source=client_address())
    assert reply.status == 200
    assert [name for name in reply.headers if "ratelimit" in name] == []


# What an operator adds if a CDN stands in front of a proxy that does not pass on X-Forwarded-For by itself.
BEHIND_CDN = {
    "caddy": [("auto_https off", "auto_https off\n servers {\n trusted_proxies static 127.9.0.0/16\n }")],
    "traefik": [
        ("providers:", "    forwardedHeaders: {trustedIPs: [127.9.0.0/16]}\nproviders:"),
        ("trustForwardHeader: false", "trustForwardHeader: true"),
        ("middlewares: [ratebound]", "middlewares: [unforwarded, ratebound]"),
        (
            "  middlewares:\n",
            "  middlewares:\n    unforwarded: {headers: {customRequestHeaders:"
            " {X-Forwarded-Uri: '', X-Forwarded-Method: '', X-Forwarded-Host: ''}}}\n",
        ),
    ],
}


@pytest.mark.parametrize("name", BEHIND_CDN)
def test_a_cdn_that_is_trusted_for_addresses_is_not_trusted_for_paths(name: str, tmp_path: Path) -> None:
    with running_edge(name, tmp_path, POLICY, BEHIND_CDN[name], headers="forwarded") as edge:
        clients = [[("X-Forwarded-For", f"198.51.100.1, 203.0.113.{number}")] for number in range(3)]
        assert [edge.ask("/limited/a", source="127.9.0.1", headers=client).status for client in clients] == [200] * 3
        hostile = [*HOSTILE["forwarded"], ("X-Forwarded-Host", "evil.example"), *clients[0]]
        statuses = [edge.ask("/limited/a", source="127.9.0.1", headers=hostile).status for _ in range(2)]
        assert statuses == [200, 429]
        seen = edge.service.seen_from("127.9.0.1")[-1]
        assert (seen.method, seen.path, seen.host) == ("GET", "/limited/a", "api.example")
        assert ("x-forwarded-for", "198.51.100.1, 203.0.113.0") in seen.headers


# The choice that the comments of an example offer for a service that is away.
CLOSED = {
    "nginx": ([("error_page 502 504 = @ratebound_away;", "")], 500),
    "envoy": ([("failure_mode_allow: true", "failure_mode_allow: false")], 503),
    "haproxy": ([("open if { nbsrv(ratebound) gt 0 }", "closed")], 503),
}


@pytest.mark.parametrize("name", CLOSED)
def test_the_other_choice_refuses_requests_while_the_service_is_away(name: str, tmp_path: Path) -> None:
    changes, status = CLOSED[name]
    with running_edge(name, tmp_path, POLICY, changes) as edge:
        assert edge.ask("/x", source=client_address()).status == 200
        edge.service.server.kill()
        before = len(edge.application.requests)
        assert edge.ask("/x", source=client_address()).status == status
        assert len(edge.application.requests) == before
        edge.service.server.start()
        wait_until(lambda: edge.ask("/x", source=client_address()).status == 200, 20, "requests pass again")
