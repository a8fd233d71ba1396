"""nginx's limit_req and limit_conn as a policy that grants what nginx grants."""

import random

import pytest

from ratebound.policy import Gate, PolicyError
from ratebound.policy.imports import Imported, import_nginx
from ratebound.policy.imports.nginx_text import parse_nginx
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

SITE = """
http {
    set_real_ip_from 10.0.0.0/8;
    real_ip_header X-Forwarded-For;
    real_ip_recursive on;
    geo $limit { default 1; 192.0.2.0/24 0; }
    map $limit $limit_key { 0 ""; 1 $binary_remote_addr; }
    limit_req_zone $limit_key zone=site:10m rate=10r/s;
    limit_req_zone $binary_remote_addr zone=login:10m rate=6r/m;   # one in ten seconds
    limit_req_zone $server_name zone=perserver:10m rate=100r/s;
    limit_conn_zone $binary_remote_addr zone=addr:10m;
    limit_req_status 429;
    limit_conn_status 429;
    server {
        listen 80;
        server_name example.com;
        limit_req zone=site burst=20 nodelay;
        location / { proxy_pass http://app; }
        location = /login { limit_req zone=login burst=2; proxy_pass http://app; }
        location /api/ { limit_req zone=site burst=20 nodelay; limit_req zone=perserver burst=29; }
        location ~ \\.php$ { limit_req zone=login; }
        location /static/ { limit_conn addr 5; }
    }
}
"""
CLIENT = "203.0.113.9"


def gate(imported: Imported, clock: FakeClock | None = None, **more: object) -> Gate:
    return gate_of(imported.text, clock, **more)


def zone(use: str, rate: str = "10r/s", key: str = "$binary_remote_addr") -> Imported:
    return import_nginx(f"limit_req_zone {key} zone=z:1m rate={rate}; server {{ {use} }}")


def lost(imported: Imported) -> str:
    return "\n".join(imported.lost)


def test_a_site_is_granted_what_nginx_grants(clock: FakeClock) -> None:
    site = gate(import_nginx(SITE), clock)
    assert passes(site, request("/", peer=CLIENT)) == 21
    assert passes(site, request("/api/x", peer=CLIENT)) == 0, "the zone is one count for the server and its locations"
    assert passes(site, request("/login", "POST", peer=CLIENT)) == 3, "a location with its own limit inherits none"
    clock.advance(10)
    assert passes(site, request("/login", "POST", peer=CLIENT)) == 1
    assert passes(site, request("/static/logo", peer=CLIENT)) == 5, "these requests do not end"
    clock.advance(60)
    assert passes(site, request("/static/logo", peer=CLIENT)) == 5, "their slots were held for one lease"
    assert passes(site, request("/", peer="192.0.2.77")) == 200, "an empty key is not counted"


def test_a_zone_by_server_is_one_count_for_all(clock: FakeClock) -> None:
    site = gate(import_nginx(SITE), clock)
    api = [request("/api/x", peer=f"203.0.113.{n}") for n in range(1, 200)]
    assert passes(site, *api) == 30


def test_the_address_comes_from_trusted_proxies() -> None:
    site = gate(import_nginx(SITE))
    behind = [request("/", peer="10.0.0.1", headers={"x-forwarded-for": f"203.0.113.{n}"}) for n in range(1, 100)]
    assert passes(site, *behind, most=99) == 99
    assert passes(site, behind[0]) == 20


def test_what_stays_behind_is_told_with_its_line() -> None:
    told = lost(import_nginx(SITE))
    assert "line 21: location ~ \\.php$ is left out: it cannot be expressed as a pattern" in told
    assert "limit_conn" not in told
    assert "processes do not share memory://" in told


class Nginx:
    """ngx_http_limit_req_lookup, in thousandths of a request and whole milliseconds."""

    def __init__(self, rate: int, burst: int) -> None:
        self.rate, self.burst = rate, burst * 1000
        self.excess, self.last, self.fresh = 0, 0, True

    def grants(self, now: int) -> bool:
        if self.fresh:
            self.fresh, self.last = False, now
            return True
        excess = max(self.excess - self.rate * (now - self.last) // 1000 + 1000, 0)
        if excess > self.burst:
            return False
        self.excess, self.last = excess, now
        return True


@pytest.mark.parametrize("options", ["", " burst=1", " burst=5", " burst=5 nodelay", " burst=20 nodelay"])
@pytest.mark.parametrize(
    ("rate", "thousandths"), [("10r/s", 10_000), ("30r/m", 500), ("1r/s", 1000), ("250r/s", 250_000)]
)
def test_every_request_is_answered_as_nginx_would(options: str, rate: str, thousandths: int) -> None:
    clock = FakeClock()
    burst = int("".join(c for c in options if c.isdecimal()) or 0)
    ours, theirs = gate(zone(f"limit_req zone=z{options};", rate), clock), Nginx(thousandths, burst)
    dice = random.Random(options + rate)
    start, now, granted = clock.now, 0, 0
    for _ in range(500):
        now += dice.choice([0, 0, 1, 700_000 // thousandths, 2_000_000 // thousandths])
        clock.now = start + now * 1000
        allowed = bool(decide(ours, request()))
        assert allowed == theirs.grants(now), now
        granted += allowed
    assert 0 < granted < 500


def test_without_nodelay_the_queue_is_told_its_delay() -> None:
    queue = gate(zone("limit_req zone=z burst=5;"))
    delays = [decide(queue, request()).decision.delay for _ in range(6)]  # type: ignore[union-attr]
    assert delays == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    at_once = gate(zone("limit_req zone=z burst=5 nodelay;"))
    assert [decide(at_once, request()).decision.delay for _ in range(6)] == [0.0] * 6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("use", "limits"),
    [
        ("limit_req zone=z;", "10/second burst 1"),
        ("limit_req zone=z burst=7;", "10/second burst 8 leaky-bucket"),
        ("limit_req zone=z burst=7 nodelay;", "10/second burst 8"),
        ("limit_req zone=z burst=7 delay=7;", "10/second burst 8"),
        ("limit_req zone=z burst=7 delay=3;", "10/second burst 8 leaky-bucket"),
        ("limit_req zone=z burst=7 delay=0;", "10/second burst 8 leaky-bucket"),
    ],
)
def test_bursts_and_delays(use: str, limits: str) -> None:
    imported = zone(use)
    assert f"    limits: {limits}\n" in imported.text
    assert ("delay=3 serves the first 3 requests of a burst at once" in lost(imported)) is ("delay=3" in use)


@pytest.mark.parametrize(
    ("key", "by", "told"),
    [
        ("$binary_remote_addr", "address", ""),
        ("$remote_user", "user", ""),
        ('"$remote_addr$http_x_api_key"', "address + header:x-api-key", "write a function find_x_api_key(text)"),
        ("$cookie_sid", "cookie:sid", "find_sid(text)"),
        ("$http_authorization", "bearer", "find_token(text)"),
        ("$jwt_claim_sub", "jwt:sub", "read_token(text)"),
        ("$server_name", "global", ""),
        ("constant", "global", ""),
        ("$http_x_forwarded_for", "address", "which clients can forge"),
        ("$arg_token", "arg_token", "write a function arg_token_of(request)"),
        ("$request_uri", "global", "a count for each $request_uri"),
        ("${binary_remote_addr}", "address", ""),
    ],
)
def test_keys_become_identities(key: str, by: str, told: str) -> None:
    imported = zone("limit_req zone=z;", key=key)
    assert told in lost(imported)
    assert f"    by: {by}\n" in imported.text.replace('"', "")
    gate_of(
        imported.text,
        functions=dict.fromkeys(("find_x_api_key", "find_sid", "find_token", "read_token", "arg_token_of"), str),
    )


def test_a_header_that_clients_choose_is_no_key_until_it_is_verified() -> None:
    api = gate(zone("limit_req zone=z burst=2;", key="$http_x_api_key"), functions={"find_x_api_key": lambda key: None})
    keys = [request(headers={"x-api-key": f"k{n}"}) for n in range(20)]
    assert passes(api, *keys) == 3


def test_only_some_methods_are_counted() -> None:
    posts = gate(
        import_nginx(
            "map $request_method $key { POST $binary_remote_addr; default ''; }"
            "limit_req_zone $key zone=z:1m rate=1r/s;"
            "server { location /a/ { limit_req zone=z; } location / { limit_req zone=z burst=9; } }"
        )
    )
    assert passes(posts, request("/a/", "POST")) == 1
    assert passes(posts, request("/a/", "GET")) == 200
    assert passes(posts, request("/b", "POST")) == 10


def test_a_location_without_a_limit_inside_of_one_with_a_limit_is_free() -> None:
    site = gate(
        zone(
            "location / { limit_req zone=z burst=4; } location /static/ { root /x; }"
            "location /static/api/ { limit_req zone=z; }"
        )
    )
    assert passes(site, request("/")) == 5
    assert passes(site, request("/static/a.css")) == 200
    assert passes(site, request("/static/api/x")) == 1


def test_a_limit_inside_of_a_free_location_holds_again() -> None:
    use = "limit_req zone=z burst=4;"
    site = gate(zone(f"location / {{ {use} }} location /static/ {{ root /x; }} location /static/api/ {{ {use} }}"))
    assert [passes(site, request(path)) for path in ("/", "/static/a.css", "/static/api/x")] == [5, 200, 5]


def test_the_longest_prefix_is_chosen_and_an_exact_one_before_it() -> None:
    site = gate(
        zone(
            "location /a/ { limit_req zone=z burst=1; } location /a/b/ { limit_req zone=z burst=5; }"
            "location = /a/b/c { limit_req zone=z burst=9; } location ^~ /d { limit_req zone=z burst=3; }"
        )
    )
    assert [passes(site, request(path)) for path in ("/a/x", "/a/b/x", "/a/b/c", "/dig", "/e")] == [2, 6, 10, 4, 200]


def test_a_simple_regular_expression_becomes_a_pattern() -> None:
    imported = zone("location ~ ^/v[0-9]+/users$ { limit_req zone=z burst=2; }")
    assert passes(gate(imported), request("/v2/users")) == 3
    assert "is imported as /v*/users" in lost(imported)


def test_servers_are_told_apart_by_their_hosts() -> None:
    imported = import_nginx(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;"
        "limit_req_zone $binary_remote_addr zone=b:1m rate=1r/s;"
        "server { server_name one.example; limit_req zone=a burst=1; }"
        "server { server_name .two.example; limit_req zone=b burst=3; }"
        "server { server_name free.example; } server { listen 80 default_server; limit_req zone=a burst=5; }"
    )
    site = gate(imported)
    hosts = ("one.example", "two.example", "www.two.example:443", "free.example", "other")
    assert [passes(site, request(host=host)) for host in hosts[:2]] == [2, 4]
    assert passes(site, request(host=hosts[2])) == 0
    assert [passes(site, request(host=host)) for host in hosts[3:]] == [200, 6]
    assert "zone a counts several servers together" in lost(imported)


BOTH = (
    "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; limit_req_zone $binary_remote_addr zone=b:1m rate=1r/s;"
    "limit_req_zone $binary_remote_addr zone=c:1m rate=1r/s;"
)


@pytest.mark.parametrize("host", ["one.example", "unknown.example", ""])
def test_a_host_that_no_server_names_has_the_limits_of_the_default_server(host: str) -> None:
    one = "server { server_name one.example; limit_req zone=a burst=1; location /x/ { limit_req zone=a burst=1; } }"
    two = "server { listen 80LISTEN; server_name two.example; limit_req zone=b burst=3; }"
    first = gate(import_nginx(BOTH + one + two.replace("LISTEN", "")))
    assert [passes(first, request(path, host=host)) for path in ("/", "/x/y")] == [2, 0], "the first, and one count"
    assert passes(first, request(host="two.example")) == 4
    marked = gate(import_nginx(BOTH + one + two.replace("LISTEN", " default_server")))
    assert passes(marked, request("/", host=host)) == (2 if host == "one.example" else 4)


def test_a_server_that_ends_the_search_keeps_a_zone_as_one_count() -> None:
    site = gate(
        import_nginx(
            BOTH + "server { server_name one.example; limit_req zone=a burst=1; }"
            "server { server_name two.example; limit_req zone=b burst=3;"
            " location /x/ { limit_req zone=b burst=3; limit_req zone=c burst=2; } }"
        )
    )
    assert [passes(site, request(path, host="two.example")) for path in ("/x/y", "/", "/x/y")] == [3, 1, 0]
    assert passes(site, request(host="one.example")) == 2


def test_a_redirect_on_another_port_does_not_set_free() -> None:
    imported = import_nginx(
        BOTH + "server { listen 80; listen [::]:80; server_name one.example; return 301 https://$host; }"
        "server { listen 443 ssl; server_name one.example; limit_req zone=a burst=1; }"
        "server { listen 443 ssl; server_name two.example; limit_req zone=b burst=3; }"
    )
    site = gate(imported)
    assert [passes(site, request(host=host)) for host in ("one.example", "two.example")] == [2, 4]
    assert passes(site, request(host="unknown", peer="192.0.2.9")) == 2
    assert "distinguished by their hosts alone" in lost(imported)
    assert "server_name one.example has several servers" in lost(imported)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("server { server_name one; USE } server { USE }", "only for requests without a Host"),
        ("server { USE } server { server_name ~^a$; USE }", "server_name ~^a$ cannot be expressed as a host"),
        (
            "server { server_name www.a; USE } server { server_name *.a; USE }",
            "in this policy it has the limits of *.a",
        ),
        ("server { listen 1.2.3.4; USE } server { listen 1.2.3.4:81; server_name a; USE }", "by their hosts alone"),
        ("server { listen unix:/x; USE } server { listen [::1]:8080; server_name a; USE }", "by their hosts alone"),
    ],
)
def test_servers_that_hosts_cannot_tell_apart_are_told(servers: str, words: str) -> None:
    imported = import_nginx(BOTH + servers.replace("USE", "limit_req zone=a;"))
    assert words in lost(imported)
    assert gate(imported)


@pytest.mark.parametrize("listen", ["80", "*:80", "0.0.0.0", "[::]:80", "[::]"])
def test_spellings_of_one_socket_are_one(listen: str) -> None:
    imported = import_nginx(BOTH + f"server {{ limit_req zone=a; }} server {{ listen {listen}; server_name a; }}")
    assert "distinguished" not in lost(imported)


def test_a_dry_run_is_a_shadow() -> None:
    imported = zone("limit_req zone=z; limit_req_dry_run on;")
    site = gate(imported)
    verdicts = [decide(site, request()) for _ in range(3)]
    assert all(verdicts)
    assert [verdict.shadows[0].allowed for verdict in verdicts] == [True, False, False]


def test_a_dry_run_in_one_location_ends_there() -> None:
    site = gate(
        zone("location /a/ { limit_req zone=z; limit_req_dry_run on; } location / { limit_req zone=z burst=1; }")
    )
    assert passes(site, request("/a/x")) == 200
    assert passes(site, request("/b")) == 2


CONNECTIONS = "limit_conn_zone $binary_remote_addr zone=addr:1m; limit_conn_zone $server_name zone=site:1m;"


def connections(server: str) -> Imported:
    return import_nginx(f"{CONNECTIONS} limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; {server}")


def test_limit_conn_is_a_number_of_concurrent_requests() -> None:
    imported = connections("server { limit_conn addr 10; }")
    assert "    limits: 10 concurrent\n" in imported.text
    assert passes(gate(imported), request()) == 10
    assert passes(gate(imported), *(request(peer=f"192.0.2.{n}") for n in range(1, 100)), most=99) == 99


def test_several_limit_conn_of_a_level_all_apply() -> None:
    site = gate(connections("server { limit_conn addr 2; limit_conn site 5; }"))
    clients = [request(peer=f"192.0.2.{n}") for n in range(1, 9)]
    assert [passes(site, client) for client in clients] == [2, 2, 1, 0, 0, 0, 0, 0]


def test_a_level_inherits_limit_conn_and_limit_req_separately() -> None:
    site = gate(
        connections(
            "limit_conn addr 3; server { limit_req zone=z burst=5 nodelay;"
            " location /conn/ { limit_conn addr 2; } location /req/ { limit_req zone=z burst=1 nodelay; } }"
        )
    )
    assert [passes(site, request(path, peer=f"192.0.2.{n}")) for n, path in enumerate(("/", "/conn/", "/req/"), 1)] == [
        3,
        2,
        2,
    ]


def test_a_count_by_server_name_is_one_for_each_server() -> None:
    imported = connections(
        "limit_conn site 3; server { server_name one.example; } server { server_name two.example; limit_conn site 4; }"
    )
    site = gate(imported)
    clients = [request(host=host, peer=f"192.0.2.{n}") for n in (1, 2) for host in ("one.example", "two.example")]
    assert [passes(site, client) for client in clients] == [3, 4, 0, 0]
    assert "zone site counts several servers together" not in lost(imported)


def test_a_dry_run_of_limit_conn_refuses_nothing_but_limit_req_does() -> None:
    imported = connections(
        "server { limit_conn addr 2; limit_conn_dry_run on; limit_req zone=z burst=6 nodelay;"
        " location /held/ { limit_conn_dry_run off; } }"
    )
    assert passes(gate(imported), request("/")) == 7
    assert passes(gate(imported), request("/held/x")) == 2


@pytest.mark.parametrize(
    ("directives", "status"),
    [
        ("limit_conn_status 429; limit_req_status 429;", 429),
        ("limit_conn_status 444; limit_req_status 444;", 444),
        ("limit_conn_status 429;", None),
        ("limit_conn_status 429; limit_req_status 503;", None),
        ("limit_conn_status 503;", 503),
    ],
)
def test_one_status_is_for_both(directives: str, status: int | None) -> None:
    imported = connections(f"{directives} server {{ limit_conn addr 2; limit_req zone=z; }}")
    assert (f"rejection: {{status: {status}}}" in imported.text) is (status is not None)
    assert ("limit_req_status and limit_conn_status are [429, 503] in different places" in lost(imported)) is (
        status is None
    )


def test_a_very_large_limit_conn_is_the_most_of_a_policy() -> None:
    imported = connections("server { limit_conn addr 65535; }")
    assert "limit_conn addr 65535 is imported as 10000" in lost(imported)
    assert "10000 concurrent" in imported.text


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("server { limit_req zone=none; }", "this text has no limit_req_zone 'none'", 1),
        ("limit_req_zone $a zone=z:1m;", "expected a key, zone=name:size and rate=10r/s", 1),
        ("limit_req_zone $a zone=z:1m rate=0r/s;", "cannot be zero", 1),
        ("server { limit_conn none 5; }", "this text has no limit_conn_zone 'none'", 1),
        (f"{CONNECTIONS} limit_req zone=addr;", "this text has no limit_req_zone 'addr'", 1),
        (f"{CONNECTIONS}\nlimit_conn addr;", "limit_conn: expected a zone and a whole number of at least 1", 2),
        (f"{CONNECTIONS} limit_conn addr 0;", "limit_conn: expected a zone and a whole number of at least 1", 1),
        ("limit_conn_zone $a;", "limit_conn_zone: expected a key and zone=name:size", 1),
        ("\nserver {", "is a ';' or a '}' missing", 2),
        ("}", "unexpected '}'", 1),
        ("{", "without a name", 1),
        ('a "b', "a quote is not closed", 1),
        ("\nlimit_req_zone $a zone=z:1m rate=1r/s;\nserver { limit_req zone=z burst=x; }", "whole numbers", 3),
        ("worker_processes 1;", "nothing to import from nginx", None),
        ("a {" * 100, "nested too deep", 1),
    ],
)
def test_what_cannot_be_read_is_told_by_line(text: str, words: str, line: int | None) -> None:
    with pytest.raises(PolicyError, match=words) as refused:
        import_nginx(text)
    assert refused.value.problems[0].line == line


def test_comments_quotes_and_lua_are_passed_over() -> None:
    root = parse_nginx('# x {\na \'b ; c\' "d\\""; content_by_lua_block { if x then { } end }\nb $x${y}z;')
    assert [(one.name, one.words, one.line) for one in root.inner or ()] == [
        ("a", ("b ; c", 'd\\"'), 2),
        ("b", ("$x${y}z",), 3),
    ]


def test_any_text_gives_a_policy_or_a_clear_error() -> None:
    dice = random.Random(7)
    pieces = SITE.replace("{", " { ").replace("}", " } ").replace(";", " ; ").split()
    for _ in range(300):
        text = " ".join(dice.choice(pieces) for _ in range(dice.randrange(60)))
        try:
            gate(import_nginx(text))
        except PolicyError:
            continue


def test_limits_of_streams_are_told() -> None:
    stream = "stream {{ server {{ listen 53; {} }} }} "
    site = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; server { limit_req zone=a; }"
    assert "in stream, are left out" in " ".join(import_nginx(stream.format("limit_conn s 1;") + site).lost)
    assert "stream" not in " ".join(import_nginx(stream.format("") + site).lost)
