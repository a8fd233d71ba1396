"""Kong's rate-limiting plugin as a policy: the most specific plugin holds, and counts in fixed windows."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from ratebound.policy import Gate, PolicyError
from ratebound.policy.imports import Imported, import_kong
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

SHOP = """
_format_version: "3.0"
services:
  - name: shop
    url: http://shop.internal
    plugins:
      - name: rate-limiting
        config: { minute: 6, limit_by: ip, policy: redis,
                  redis: { host: cache.internal, port: 6380, password: secret } }
    routes:
      - name: cart
        paths: [/cart]
      - name: orders
        paths: [/orders]
      - name: login
        paths: [/login]
        methods: [POST]
        plugins:
          - name: rate-limiting
            config: { minute: 3, hour: 4, limit_by: ip, policy: redis, fault_tolerant: false, error_message: Slow down,
                      redis: { host: cache.internal, port: 6380, password: secret } }
  - name: free
    routes: [{ name: about, paths: [/about], hosts: [www.example] }]
consumers:
  - username: alice
    plugins: [{ name: rate-limiting, config: { minute: 20 } }]
plugins:
  - name: rate-limiting
    config: { second: 5, month: 100000, limit_by: consumer, policy: local, error_code: 429 }
  - name: rate-limiting
    consumer: bob
    route: login
    config: { minute: 9 }
  - name: cors
"""


def kong(config: dict[str, Any], **more: Any) -> Imported:
    return import_kong(json.dumps({"plugins": [{"name": "rate-limiting", "config": config, **more}]}))


def gate(text: str, clock: FakeClock | None = None) -> Gate:
    return gate_of(import_kong(text).text, clock)


def lost(imported: Imported) -> str:
    return "\n".join(imported.lost)


def test_the_most_specific_plugin_holds() -> None:
    shop = gate(SHOP)
    assert passes(shop, request("/login", "POST")) == 3
    assert passes(shop, request("/login", "GET")) == 5, "the route is for POST: only the global plugin is left"
    assert passes(shop, request("/elsewhere")) == 0, "which is one count for all that has no other"


def test_a_service_has_one_count_for_its_routes() -> None:
    shop = gate(SHOP)
    assert passes(shop, request("/cart/1"), request("/orders"), request("/cartoons")) == 6
    assert passes(shop, request("/elsewhere")) == 5


def test_a_consumer_may_have_limits_of_its_own() -> None:
    shop = gate(SHOP)
    assert passes(shop, request("/elsewhere", user="alice")) == 20
    assert passes(shop, request("/elsewhere", user="carl")) == 5
    assert passes(shop, request("/login", "POST", user="bob", peer="192.0.2.50")) == 9
    assert passes(shop, request("/login", "POST", user="alice", peer="192.0.2.51")) == 0, "one count for all routes"
    assert passes(gate(SHOP), request("/login", "POST", user="alice")) == 20


@pytest.mark.parametrize("limit_by", ["ip", "service", "consumer", "credential"])
def test_a_consumer_counts_as_one_whatever_the_others_are_counted_by(limit_by: str) -> None:
    """The plugin of a consumer says by what it counts, and says nothing: by consumer."""
    own = {"name": "rate-limiting", "config": {"minute": 7}}
    tree: dict[str, Any] = {
        "routes": [{"name": "r", "paths": ["/r"]}, {"name": "s", "paths": ["/s"]}],
        "consumers": [{"username": "bob", "plugins": [own]}],
        "plugins": [
            {"name": "rate-limiting", "config": {"minute": 3, "limit_by": limit_by}},
            {"name": "rate-limiting", "config": {"minute": 2, "limit_by": limit_by}, "route": "r"},
            own | {"consumer": "eve", "route": "r"},
        ],
    }
    functions = {"credential_of": lambda view: view.user}
    site = gate_of(import_kong(json.dumps(tree)).text, functions=functions)
    for user, path in (("bob", ""), ("eve", "/r")):
        places = [request(path or f"/{n % 4 or 'r'}", user=user, peer=f"192.0.2.{n}") for n in range(1, 20)]
        assert passes(site, *places) == 7
    assert passes(site, request("/r", user="carl", peer="192.0.2.60")) == 2, "neither is charged to the others"
    assert passes(site, request("/s", user="eve", peer="192.0.2.61")) == 3


def test_a_consumer_may_be_named_by_its_custom_id() -> None:
    site = gate_of(kong({"minute": 2}, consumer={"custom_id": "x"}).text)
    assert (passes(site, request(user="x")), passes(site, request(user="y"))) == (2, 200)


def test_a_consumer_whose_own_plugin_counts_by_address_has_a_count_for_each() -> None:
    site = gate("consumers: [{username: bob, plugins: [{name: rate-limiting, config: {minute: 2, limit_by: ip}}]}]")
    assert [passes(site, request(user="bob", peer=f"192.0.2.{n}")) for n in (1, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("consumer", "words"),
    [
        (
            {"route": "nowhere"},
            "the limit of consumer bob on route nowhere is left out: this text has no route nowhere",
        ),
        ({"route": "cart"}, "on route cart applies to all of orders, cart in this policy"),
        ({"service": "shop"}, "one count for consumer bob on service shop"),
        ({"config": {"minute": 1, "limit_by": "path", "path": "/x"}}, "consumer bob is imported as ip"),
    ],
)
def test_what_a_consumer_has_elsewhere_is_told(consumer: dict[str, Any], words: str) -> None:
    tree = yaml.safe_load(SHOP)
    tree["plugins"].append({"name": "rate-limiting", "consumer": "bob", "config": {"minute": 9}, **consumer})
    imported = import_kong(json.dumps(tree))
    assert words in lost(imported)
    assert gate_of(imported.text)


def test_a_consumer_on_a_route_comes_before_the_consumer_everywhere() -> None:
    bob = "  - username: bob\n    plugins: [{ name: rate-limiting, config: { minute: 7 } }]\n"
    shop = gate(SHOP.replace("consumers:\n", f"consumers:\n{bob}"))
    assert passes(shop, request("/login", "POST", user="bob")) == 9
    assert passes(shop, request("/elsewhere", user="bob")) == 7
    told = lost(import_kong(SHOP.replace("consumers:\n", f"consumers:\n{bob}")))
    assert "Kong has one count for consumer bob everywhere; this policy has one per route or service" in told


def test_all_windows_of_a_plugin_hold(clock: FakeClock) -> None:
    shop = gate(SHOP, clock)
    clock.now -= clock.now % 3_600_000_000
    assert passes(shop, request("/login", "POST")) == 3
    clock.advance(60)
    assert passes(shop, request("/login", "POST")) == 1, "four in an hour"
    clock.advance(3600)
    assert passes(shop, request("/login", "POST")) == 3


def test_the_settings_are_carried_over_without_the_password() -> None:
    imported = import_kong(SHOP)
    assert "secret" not in imported.text + lost(imported)
    policy = gate_of(imported.text, environ={"REDIS_PASSWORD": "hidden", "REDIS_USER": "me"}).policy
    assert policy.storage == "redis://me:hidden@cache.internal:6380/0"
    assert policy.headers == "kong"
    by_name = {rule.name: rule for rule in policy.rules}
    assert (by_name["login"].failure, by_name["shop"].failure, by_name["all"].failure) == ("closed", "open", "")
    assert by_name["login"].message == "Slow down"
    assert policy.rejection_format.status == 429


def test_the_headers_are_those_of_kong() -> None:
    shop = gate(SHOP)
    verdict = decide(shop, request("/cart"))
    assert verdict.decision is not None
    pairs = dict(verdict.policy.response_headers.pairs(verdict.decision))
    assert (pairs["X-RateLimit-Limit-Minute"], pairs["X-RateLimit-Remaining-Minute"]) == ("6", "5")


def test_months_and_years_are_those_of_the_calendar() -> None:
    clock = FakeClock(int(datetime(2027, 2, 28, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000)
    imported = kong({"month": 3, "year": 5, "limit_by": "ip"})
    assert "limits: 3/calendar-month; 5/calendar-year" in imported.text.replace('"', "")
    assert "calendar" not in lost(imported)
    shop = gate_of(imported.text, clock)
    assert passes(shop, request()) == 3
    clock.advance(1)
    verdict = decide(shop, request())
    assert verdict.decision is not None
    pairs = dict(verdict.policy.response_headers.pairs(verdict.decision))
    assert (pairs["X-RateLimit-Remaining-Month"], pairs["X-RateLimit-Remaining-Year"]) == ("2", "1")
    assert passes(shop, request()) == 1


def test_what_stays_behind_is_told() -> None:
    told = lost(import_kong(SHOP))
    for words in (
        "only Kong knows its consumers",
        "REDIS_PASSWORD",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("config", "by"),
    [
        ({}, '["user", "address"]'),
        ({"limit_by": "consumer"}, '["user", "address"]'),
        ({"limit_by": "ip"}, '"address"'),
        ({"limit_by": "service"}, '"global"'),
        ({"limit_by": "credential"}, '["credential", "address"]'),
        ({"limit_by": "header", "header_name": "X-Tenant-Key"}, '["header:x-tenant-key", "address"]'),
    ],
)
def test_who_is_counted(config: dict[str, Any], by: str) -> None:
    imported = kong({"minute": 3, **config})
    loaded = gate_of(imported.text, functions={"credential_of": str, "find_x_tenant_key": str}).policy
    assert loaded.rules[0].by == json.loads(by)


def test_the_port_of_a_host_is_left_out_and_told() -> None:
    routes = [{"name": "about", "hosts": ["www.example:8443"], "plugins": [{"name": "rate-limiting", "config": {}}]}]
    routes[0]["plugins"][0]["config"] = {"minute": 3}  # type: ignore[index]
    imported = import_kong(json.dumps({"services": [{"name": "free", "routes": routes}]}))
    assert "about: the port of www.example:8443 is left out" in lost(imported)
    assert passes(gate_of(imported.text), request(host="www.example:8443")) == 3


def test_a_header_is_not_believed_until_it_is_verified() -> None:
    imported = kong({"minute": 3, "limit_by": "header", "header_name": "x-key"})
    tenants = gate_of(imported.text, functions={"find_x_key": lambda key: key if key.startswith("good") else None})
    assert passes(tenants, *[request(headers={"x-key": f"k{n}"}) for n in range(9)]) == 3
    assert passes(tenants, request(headers={"x-key": "good1"})) == 3
    assert "write a function find_x_key(text) that verifies it" in lost(imported)


def test_a_path_is_one_count_for_all_and_the_rest_by_address() -> None:
    paths = gate_of(kong({"minute": 3, "limit_by": "path", "path": "/status"}).text)
    assert passes(paths, *[request("/status", peer=f"192.0.2.{n}") for n in range(1, 9)]) == 3
    assert passes(paths, request("/other")) == 3
    assert passes(paths, request("/other", peer="192.0.2.2")) == 3


def test_a_route_without_a_plugin_inside_of_one_with_a_plugin_is_free() -> None:
    routes = [
        {"name": "root", "paths": ["/"], "plugins": [{"name": "rate-limiting", "config": {"minute": 2}}]},
        {"name": "assets", "paths": ["/assets/"]},
    ]
    site = gate(json.dumps({"routes": routes}))
    assert passes(site, request("/assets/logo")) == 200
    assert passes(site, request("/x")) == 2


def test_a_route_under_the_global_plugin_keeps_it_inside_of_another() -> None:
    tree = {
        "routes": [
            {"name": "root", "paths": ["/"], "plugins": [{"name": "rate-limiting", "config": {"minute": 2}}]},
            {"name": "assets", "paths": ["/assets/"]},
        ],
        "plugins": [{"name": "rate-limiting", "config": {"minute": 7}}],
    }
    site = gate(json.dumps(tree))
    assert (passes(site, request("/assets/logo")), passes(site, request("/x"))) == (7, 2)


def test_routes_with_other_conditions_count_by_themselves_and_that_is_told() -> None:
    tree = {
        "services": [
            {
                "name": "s",
                "plugins": [{"name": "rate-limiting", "config": {"minute": 2}}],
                "routes": [
                    {"name": "a", "paths": ["/a"], "methods": ["POST"]},
                    {"name": "b", "paths": ["~/v[0-9]+/b$"], "headers": {"x-kind": ["one", "two"]}},
                ],
            }
        ]
    }
    imported = import_kong(json.dumps(tree))
    site = gate_of(imported.text)
    assert passes(site, request("/a", "POST")) == 2
    assert passes(site, request("/v1/b", headers={"x-kind": "two"})) == 2
    assert passes(site, request("/v1/b")) == 200
    assert "this policy counts each separately" in lost(imported)
    assert "is imported as /v*/b" in lost(imported)


def test_consumers_alone_are_limited_wherever_they_go() -> None:
    site = gate("consumers: [{username: alice, plugins: [{name: rate-limiting, config: {minute: 2}}]}]")
    assert (passes(site, request(user="alice")), passes(site, request(user="bob"))) == (2, 200)


def test_the_advanced_plugin_is_read_as_far_as_it_is_the_same() -> None:
    config = {"limit": [2, 9], "window_size": [60, 7200], "identifier": "ip", "strategy": "redis", "sync_rate": 0.5,
              "redis": {"host": "r", "ssl": True}, "throttling": {"enabled": True}}  # fmt: skip
    imported = import_kong(json.dumps({"plugins": [{"name": "rate-limiting-advanced", "config": config}]}))
    assert 'limits: "2/minute sliding-counter; 9/2 hours sliding-counter"' in imported.text
    assert 'storage: "rediss://r:6379/0"' in imported.text
    assert passes(gate_of(imported.text), request()) == 2
    for words in ("throttling", "a denied request costs nothing", "sync_rate"):
        assert words in lost(imported)


def test_a_plugin_inside_an_entity_may_name_more_that_it_is_for() -> None:
    limit = {"name": "rate-limiting", "config": {"minute": 2, "limit_by": "ip"}}
    more = limit | {"config": {"minute": 4, "limit_by": "ip"}}
    tree = {
        "services": [
            {
                "name": "shop",
                "routes": [
                    {"name": "cart", "paths": ["/cart"]},
                    {"name": "login", "paths": ["/login"], "methods": ["POST"]},
                ],
                "plugins": [limit, more | {"consumer_group": "gold"}],
            }
        ],
        "consumers": [{"username": "alice", "plugins": [more | {"route": "cart"}]}],
    }
    imported = import_kong(json.dumps(tree))
    assert "consumer groups are left out" in lost(imported)
    assert passes(gate_of(imported.text), request("/cart")) == 2
    assert passes(gate_of(imported.text), request("/cart", user="alice")) == 4
    assert passes(gate_of(imported.text), request("/login", method="POST", user="alice")) == 2


def test_routes_and_services_need_no_names() -> None:
    limit = {"name": "rate-limiting", "config": {"minute": 2, "limit_by": "ip"}}
    more = limit | {"config": {"minute": 4, "limit_by": "ip"}}
    routes = [{"paths": ["/a"]}, {"paths": ["/b"], "plugins": [more]}]
    text = import_kong(json.dumps({"services": [{"routes": routes, "plugins": [limit]}]})).text
    assert [passes(gate_of(text), request(path)) for path in ("/a", "/b", "/c")] == [2, 4, 200]


@pytest.mark.parametrize("place", [{}, {"service": "shop"}, {"consumer": "alice"}])
def test_a_second_plugin_for_the_same_is_told(place: dict[str, str]) -> None:
    advanced = {"limit": [9], "window_size": [60], "limit_by": "ip"}
    plugins = [
        {"name": "rate-limiting", "config": {"minute": 2, "limit_by": "ip"}, **place},
        {"name": "rate-limiting-advanced", "config": advanced, **place},
    ]
    services = [{"name": "shop", "routes": [{"name": "all", "paths": ["/"]}]}]
    imported = import_kong(json.dumps({"services": services, "plugins": plugins}))
    assert "only the first of them is imported" in lost(imported)
    assert "9/minute" not in imported.text


def test_limits_of_other_plugins_are_told() -> None:
    others = ("response-ratelimiting", "ai-rate-limiting-advanced")
    plugins = [{"name": "rate-limiting", "config": {"minute": 2}}, *({"name": one, "config": {}} for one in others)]
    told = lost(import_kong(json.dumps({"plugins": plugins})))
    assert all(f"the plugin {one} is left out" in told for one in others)


@pytest.mark.parametrize(("version", "passed"), [("2.1", 2), ("3.0", 200)])
def test_paths_were_regular_expressions_before_kong_3(version: str, passed: int) -> None:
    plugins = [{"name": "rate-limiting", "config": {"minute": 2, "limit_by": "ip"}}]
    route = {"name": "users", "paths": ["/users/[0-9]+"], "plugins": plugins}
    text = json.dumps({"_format_version": version, "services": [{"name": "api", "routes": [route]}]})
    assert passes(gate(text), request("/users/17")) == passed


def test_a_route_with_a_regular_expression_comes_first() -> None:
    def route(name: str, path: str, minute: int, **more: int) -> dict[str, Any]:
        config = {"minute": minute, "limit_by": "ip"}
        return {"name": name, "paths": [path], "plugins": [{"name": "rate-limiting", "config": config}], **more}

    routes = [
        route("long", "/users/1234567890", 5),
        route("some", r"~/users/\d+$", 2),
        route("first", r"~/users/[^/]+$", 3, regex_priority=7),
    ]
    text = json.dumps({"services": [{"name": "api", "routes": routes}]})
    assert passes(gate(text), request("/users/1234567890")) == 3
    assert passes(gate(text), request("/users/1234567890/orders")) == 5


def test_a_plugin_of_kubernetes_is_read() -> None:
    text = "kind: KongPlugin\nplugin: rate-limiting\nconfig: {minute: 3, limit_by: ip}"
    assert passes(gate(text), request()) == 3


def test_hidden_headers_stay_hidden() -> None:
    assert "headers: none" in kong({"minute": 1, "hide_client_headers": True}).text


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"plugins": [{"name": "cors"}]}, "nothing to import from Kong"),
        ({"plugins": [{"name": "rate-limiting", "config": {}}]}, "it has no limit"),
        ({"plugins": [{"name": "rate-limiting"}]}, "expected a mapping as config"),
        ({"plugins": [{"name": "rate-limiting", "config": {"minute": "many"}}]}, "minute: expected a whole number"),
        ({"plugins": "x"}, "plugins: expected a list of entities"),
        ({"plugins": [{"name": "rate-limiting", "config": {"minute": 1, "limit_by": "header"}}]}, "header_name"),
        ({"plugins": [{"name": "rate-limiting", "config": {"minute": 1, "limit_by": "path"}}]}, "needs a path"),
        (
            {"plugins": [{"name": "rate-limiting", "enabled": False, "config": {"minute": 1}}]},
            "is not enabled, so it is left out",
        ),
        ("text", "expected Kong's declarative configuration"),
    ],
)
def test_what_cannot_be_read_is_told(tree: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        import_kong(json.dumps(tree))
