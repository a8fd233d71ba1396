"""Of many locations or routes one is chosen: imported policies choose as nginx and Kong do, whatever they are given."""

import json
import os
import random
from typing import Any

import pytest

from ratebound.cli.policy_functions import functions_from
from ratebound.policy import PolicyError, read_policy
from ratebound.policy.imports import import_envoy, import_kong, import_nginx
from tests.policy.gates import gate_of, passes, request

LONG = os.environ.get("RATEBOUND_LONG") == "1"
PREFIXES = ["/", "/a", "/a/", "/a/b", "/a/b/", "/abc", "/d/"]
ASKED = ["/", "/a/x", "/a/b/c", "/abc", "/abcd", "/a/bc", "/d/e", "/z"]  # a slash at the end is no difference here
FREE = 50  # more than any limit here gives at once

Location = tuple[str, str, list[tuple[int, int]]]


@pytest.mark.parametrize("seed", range(60 if LONG else 20))
def test_the_location_is_that_of_nginx(seed: int) -> None:
    dice = random.Random(seed)
    zones = "".join(f"limit_req_zone $binary_remote_addr zone=z{n}:1m rate=1r/s;" for n in range(3))

    def limits() -> list[tuple[int, int]]:
        return [
            (zone, 5 * zone + dice.choice([1, 1, 1, 3])) for zone in dice.sample(range(3), dice.choice([0, 1, 1, 2]))
        ]

    server = limits()
    locations: list[Location] = [
        (mark, path, limits())
        for mark, path in dict.fromkeys((dice.choice(["", "", "=", "^~"]), dice.choice(PREFIXES)) for _ in range(5))
    ]
    locations = [one for one in locations if one[0] != "^~" or ("", one[1]) not in {other[:2] for other in locations}]
    body = _uses(server) + "".join(f"location {mark} {path} {{ {_uses(own)} }}" for mark, path, own in locations)
    try:
        text = import_nginx(f"{zones} server {{ {body} }}").text
    except PolicyError:
        assert not server
        assert not any(own for *_, own in locations)
        return
    for path in ASKED:
        held = _chosen(locations, path)
        expected = min((burst + 1 for _, burst in (held or server)), default=FREE)
        assert passes(gate_of(text), request(path), most=FREE) == expected, (path, body, text)


def _uses(limits: list[tuple[int, int]]) -> str:
    return "".join(f"limit_req zone=z{zone} burst={burst} nodelay;" for zone, burst in limits)


def _chosen(locations: list[Location], path: str) -> list[tuple[int, int]]:
    exact = [own for mark, at, own in locations if mark == "=" and at == path]
    if exact:
        return exact[0]
    prefixes = [(len(at), own) for mark, at, own in locations if mark != "=" and path.startswith(at)]
    return max(prefixes, key=lambda one: one[0])[1] if prefixes else []


@pytest.mark.parametrize("seed", range(60 if LONG else 20))
def test_the_route_is_that_of_kong(seed: int) -> None:
    dice = random.Random(seed)

    def plugins() -> tuple[list[dict[str, Any]], int]:
        count = dice.choice([0, 0, 1, 2, 3, 4, 5])
        config = {"hour": count, "limit_by": dice.choice(["ip", "consumer"])}
        return ([{"name": "rate-limiting", "config": config}] if count else []), count

    everyone, whole = plugins()
    paths = dice.sample(PREFIXES, 5)
    services, expected = [], {}
    for name in ("s", "t"):
        own, count = plugins()
        routes = []
        for path in [paths.pop() for _ in range(2)]:
            inner, closest = plugins()
            routes.append({"name": f"r{path}", "paths": [path], "plugins": inner})
            expected[path] = closest or count or whole
        services.append({"name": name, "plugins": own, "routes": routes})
    try:
        text = import_kong(json.dumps({"services": services, "plugins": everyone})).text
    except PolicyError:
        assert not any(expected.values())
        assert not whole
        return
    for path in ASKED:
        prefixes = [at for at in expected if path.startswith(at)]
        count = expected[max(prefixes, key=len)] if prefixes else whole
        assert passes(gate_of(text), request(path), most=FREE) == (count or FREE), (path, services, everyone, text)


@pytest.mark.parametrize("seed", range(40 if LONG else 15))
def test_the_consumer_comes_before_the_route_as_in_kong(seed: int) -> None:
    dice = random.Random(seed)
    counts = iter(dice.sample(range(1, 40), 12))

    def plugin(**more: str) -> list[dict[str, Any]]:
        config = {"hour": next(counts), "limit_by": dice.choice(["ip", "consumer", "service"])}
        return [{"name": "rate-limiting", "config": config, **more}] if dice.random() < 0.5 else []

    everyone, route, service = plugin(), plugin(route="r"), plugin(service="s")
    own, on_route, on_service = (
        plugin(consumer="bob"),
        plugin(consumer="bob", route="r"),
        plugin(consumer="bob", service="s"),
    )
    routes = [{"name": "r", "paths": ["/r"]}, {"name": "q", "paths": ["/q"]}]
    plugins = [*everyone, *route, *service, *own, *on_route, *on_service]
    tree = {"services": [{"name": "s", "routes": routes}], "plugins": plugins}
    asked = {
        ("/r", "bob"): (on_route, on_service, own, route, service, everyone),
        ("/q", "bob"): (on_service, own, service, everyone),
        ("/z", "bob"): (own, everyone),
        ("/r", "ann"): (route, service, everyone),
        ("/q", "ann"): (service, everyone),
        ("/z", "ann"): (everyone,),
    }
    try:
        imported = import_kong(json.dumps(tree))
    except PolicyError:
        assert not plugins
        return
    for (path, user), order in asked.items():
        held = next((one[0] for one in order if one), None)
        if "applies to all of r, q in this policy" in "".join(imported.lost) and (path, user) == ("/q", "bob"):
            continue  # told
        expected = held["config"]["hour"] if held else FREE
        assert passes(gate_of(imported.text), request(path, user=user), most=FREE) == expected, (path, user, imported)
        several = [request(path, user=user, peer=f"192.0.2.{n}") for n in range(1, FREE)]
        if held and held["config"]["limit_by"] == "ip":
            expected = FREE
        assert passes(gate_of(imported.text), *several, most=FREE - 1) == min(expected, FREE - 1)


Descriptors = list[dict[str, Any]]


@pytest.mark.parametrize("seed", range(80 if LONG else 25))
def test_the_descriptor_is_that_of_envoys_service(seed: int) -> None:
    dice = random.Random(seed)

    def level(depth: int, keys: list[str]) -> Descriptors:
        found = []
        for key in dice.sample(keys, dice.choice([1, 2])):
            values = {"path": ["", *STARS], "method": ["GET", "POST"], "host": ["a.example", ""]}.get(key, [""])
            for value in dice.sample(values, dice.randrange(1, len(values) + 1)):
                one: dict[str, Any] = {"key": key, "value": value}
                if dice.random() < 0.7:
                    one["rate_limit"] = {"unit": "day", "requests_per_unit": dice.randrange(1, FREE)}
                if depth and dice.random() < 0.4:
                    one["descriptors"] = level(depth - 1, [other for other in keys if other != key])
                found.append(one)
        return found

    descriptors = level(2, ["path", "method", "host", "remote_address"])
    try:
        imported = import_envoy(json.dumps({"descriptors": descriptors}))
    except PolicyError:
        assert "requests_per_unit" not in json.dumps(descriptors)
        return
    told = "in this policy both count" in "".join(imported.lost)
    for path in ("/", "/a/x", "/a/b", "/a/bc", "/d"):  # a slash at the end is no difference here
        for method, host in (("GET", "a.example"), ("POST", "b.example")):
            entries = {"path": path, "method": method, "host": host, "remote_address": "192.0.2.1"}
            expected = min(_asked(descriptors, entries), default=FREE)
            found = passes(gate_of(imported.text), request(path, method, host=host), most=FREE)
            assert found == expected or (told and found < expected), (entries, descriptors, imported.text)


STARS = ["/a/*", "/a/b", "/a/b*", "/*", "/d"]


def _asked(descriptors: Descriptors, entries: dict[str, str]) -> list[int]:
    """The limits of all that a request meets: of each key the whole value, else the first with a star, else any."""
    found = []
    for key, value in entries.items():
        mine = [one for one in descriptors if one["key"] == key]
        chosen = [one for one in mine if one["value"] == value]
        chosen += [one for one in mine if one["value"][-1:] == "*" and value.startswith(one["value"][:-1])]
        for one in (chosen + [one for one in mine if not one["value"]])[:1]:
            found += [one["rate_limit"]["requests_per_unit"]] if "rate_limit" in one else []
            found += _asked(one.get("descriptors", []), entries)
    return found


VALUES: list[Any] = [
    None,
    "",
    "*",
    "a*",
    "/a",
    "10.0.0.1",
    "10.0.0.0/8",
    "GET",
    "a.example",
    "${X}",
    "a;b",
    "x" * 60,
    5,
    True,
]
VALUES += [[1], {"a": 1}, "ü", "free", "a b", "default", "{x}", "\n"]
KEYS = ["remote_address", "path", "method", "host", "user_id", "plan", "x y", "_", "9k", "jwt", "address", "header:x"]


@pytest.mark.parametrize("seed", range(150 if LONG else 50))
def test_any_descriptors_give_a_policy_that_loads_or_a_clear_error(seed: int) -> None:
    dice = random.Random(seed)

    def descriptor(depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {"key": dice.choice(KEYS), "value": dice.choice(VALUES)}
        counts = dice.choice([3, 3, 3, 0, 10**14, -1, "5"] if not seed % 3 else [3])
        found["rate_limit"] = {
            "unit": "day",
            "requests_per_unit": counts,
            "name": dice.choice(["", "n", "a b", "x" * 80]),
        }
        if depth < 3:
            found["descriptors"] = [descriptor(depth + 1) for _ in range(dice.randrange(2))]
        found[dice.choice(["shadow_mode", "share_threshold", "quota_mode", "other"])] = dice.choice([True, False, "x"])
        return found

    text = json.dumps({"domain": "d", "descriptors": [descriptor(0) for _ in range(3)]})
    try:
        imported = import_envoy(text)
    except PolicyError:
        return
    assert read_policy(imported.text, functions=functions_from(None), environ={}).rules
