"""Mistakes in several places of a policy are all told at once, and nothing is told that is not one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import PolicyError, read_policy

Tree = dict[str, Any]


def valid() -> Tree:
    return {
        "storage": "memory://",
        "trusted": {"proxies": ["10.0.0.0/8"], "forwarded": "x-forwarded-for"},
        "headers": {"styles": ["draft-11"], "reset": "delta", "jitter": 1},
        "rejection": {"format": "problem+json", "status": 429},
        "identities": {
            "api-key": {"header": "x-api-key", "verify": str, "kinds": ["customer"]},
            "session": {"cookie": "s", "verify": {"call": str, "cache": "60 seconds"}},
        },
        "by": ["api-key", "user", "address"],
        "tiers": {"free": [], "pro": ["customer:42"]},
        "default_tier": "free",
        "exempt": [{"paths": ["/health"], "methods": ["GET"]}, {"addresses": ["10.1.0.0/16"]}],
        "allow": ["198.51.100.1", "user:7"],
        "block": ["203.0.113.0/24"],
        "overrides": [
            {"client": "192.0.2.9", "limits": "50/minute", "rules": ["api"]},
            {"client": "user:9", "tier": "pro"},
        ],
        "rules": [
            {"name": "login", "limits": "5/minute", "match": {"paths": ["/login"], "methods": ["POST"]}, "final": True},
            {
                "name": "api",
                "limits": {"free": "10/minute", "pro": "100/minute"},
                "cost": 2,
                "by": ["user", "address"],
                "slice": {"share": "5%", "for": "1 second"},
                "deny_cache": True,
            },
            {"name": "pro", "limits": "9/hour", "match": {"tiers": ["pro"], "hosts": ["a.example"]}, "mode": "shadow"},
            {"name": "rest", "limits": ["5/second", "60/hour"], "candidate": {"default": "4/minute"}, "default": True},
        ],
    }


def put(*path: Any, value: Any) -> Callable[[Tree], None]:
    def plant(tree: Tree) -> None:
        here: Any = tree
        for step in path[:-1]:
            here = here[step]
        here[path[-1]] = value

    return plant


def mistake(where: str, *path: Any, value: Any) -> Any:
    return pytest.param(where, put(*path, value=value), id=f"{where}: {value!r}")


# Where each is told, and how it is made. No two of them are in one place.
MISTAKES = [
    mistake("storag", "storag", value="memory://"),
    mistake("storage", "storage", value="foo://x"),
    mistake("failure", "failure", value="shut"),
    mistake("switch", "switch", value="maybe"),
    mistake("ipv6", "ipv6", value=7),
    mistake("trusted.proxies", "trusted", "proxies", value=["10.0.0.0/99"]),
    mistake("trusted.forwarded", "trusted", "forwarded", value="x_forwarded_for"),
    mistake("headers.styles", "headers", "styles", value=["draft-99"]),
    mistake("headers.reset", "headers", "reset", value="never"),
    mistake("headers.jitter", "headers", "jitter", value=-1),
    mistake("headers.style", "headers", "style", value=1),
    mistake("rejection.format", "rejection", "format", value="xml"),
    mistake("rejection.status", "rejection", "status", value=200),
    mistake("identities.api-key.header", "identities", "api-key", "header", value=5),
    mistake("identities.api-key.hedaer", "identities", "api-key", "hedaer", value="x"),
    mistake("identities.session.verify", "identities", "session", "verify", "call", value="no.such.module:f"),
    mistake("identities.session.cache", "identities", "session", "verify", "cache", value="soon"),
    mistake("identities.Team", "identities", "Team", value={"header": "x-team", "verify": str}),
    mistake("by[1]", "by", 1, value="usre"),
    mistake("tiers.free[0]", "tiers", "free", value=["nobody"]),
    mistake("default_tier", "default_tier", value="gold"),
    mistake("exempt[0].methods[0]", "exempt", 0, "methods", 0, value="G ET"),
    mistake("exempt[0].paths[0]", "exempt", 0, "paths", 0, value="health"),
    mistake("exempt[1].addresses[0]", "exempt", 1, "addresses", 0, value="10.1"),
    mistake("exempt[2]", "exempt", slice(2, 2), value=[{"methods": ["GET"]}]),
    mistake("allow[0]", "allow", 0, value="198.51"),
    mistake("allow[1]", "allow", 1, value="usr:7"),
    mistake("block[0]", "block", 0, value=5),
    mistake("overrides[0].client", "overrides", 0, "client", value="192.0.2"),
    mistake("overrides[0].limits", "overrides", 0, "limits", value="50/minit"),
    mistake("overrides[0].rules", "overrides", 0, "rules", value=["apy"]),
    mistake("overrides[0].ruels", "overrides", 0, "ruels", value=["api"]),
    mistake("overrides[1].tier", "overrides", 1, "tier", value="prro"),
    mistake("overrides[1].client", "overrides", 1, "client", value="customr:1"),
    mistake("overrides[2]", "overrides", slice(2, 2), value=[5]),
    mistake("rules[0].limits", "rules", 0, "limits", value="5/minit"),
    mistake("rules[0].match.paths[0]", "rules", 0, "match", "paths", 0, value="login"),
    mistake("rules[0].match.methods[0]", "rules", 0, "match", "methods", 0, value="PSOT"),
    mistake("rules[0].match.tiers", "rules", 0, "match", "tiers", value=["gold"]),
    mistake("rules[0].stage", "rules", 0, "stage", value="erly"),
    mistake("rules[0].by", "rules", 0, "by", value="nobody"),
    mistake("rules[1].limits.free", "rules", 1, "limits", "free", value="10/hoor"),
    mistake("rules[1].limits.gold", "rules", 1, "limits", "gold", value="10/hour"),
    mistake("rules[1].cost", "rules", 1, "cost", value=0),
    mistake("rules[1].by[0]", "rules", 1, "by", 0, value="usre"),
    mistake("rules[0].over", "rules", 0, "over", value="yes"),
    mistake("rules[1].retry", "rules", 1, "retry", value="soon"),
    mistake("rules[2].retry", "rules", 2, "retry", value="5 seconds"),
    mistake("rules[1].slice.share", "rules", 1, "slice", "share", value="all"),
    mistake("rules[1].slice.for", "rules", 1, "slice", "for", value="soon"),
    mistake("rules[1].slice.fro", "rules", 1, "slice", "fro", value="1 second"),
    mistake("rules[1].deny_cache", "rules", 1, "deny_cache", value="yes"),
    mistake("rules[2].slice", "rules", 2, "slice", value="some"),
    mistake("rules[1].message", "rules", 1, "message", value=5),
    mistake("rules[1].mach", "rules", 1, "mach", value={}),
    mistake("rules[2].match.hosts[0]", "rules", 2, "match", "hosts", 0, value="a b"),
    mistake("rules[2].match.tiers", "rules", 2, "match", "tiers", value=["prro"]),
    mistake("rules[2].mode", "rules", 2, "mode", value="shaddow"),
    mistake("rules[2].cost.call", "rules", 2, "cost", value={"call": "no-such-function"}),
    mistake("rules[3].limits[0]", "rules", 3, "limits", 0, value="5 a second"),
    mistake("rules[3].limits[1]", "rules", 3, "limits", 1, value=5),
    mistake("rules[3].candidate.default", "rules", 3, "candidate", "default", value="4/minit"),
    mistake("rules[3].name", "rules", 3, "name", value="pro"),
    mistake("rules[3].failure", "rules", 3, "failure", value="shut"),
    mistake("rules[4]", "rules", slice(4, 4), value=[5]),
]


def told(tree: Tree) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read_policy(tree, environ={})
    return [problem.where for problem in caught.value.problems]


def test_without_mistakes_the_policy_is_read() -> None:
    assert len(read_policy(valid(), environ={}).rules) == 4


@pytest.mark.parametrize(("where", "plant"), MISTAKES)
def test_one_mistake_is_told_once_by_its_place(where: str, plant: Callable[[Tree], None]) -> None:
    tree = valid()
    plant(tree)
    assert told(tree) == [where]


@given(st.sets(st.integers(0, len(MISTAKES) - 1), min_size=2, max_size=8))
def test_several_mistakes_are_all_told_at_once(places: set[int]) -> None:
    tree = copy.deepcopy(valid())
    planted = []
    for place in sorted(places):
        where, plant = MISTAKES[place].values
        assert isinstance(where, str)
        assert callable(plant)
        planted.append(where)
        plant(tree)
    assert sorted(told(tree)) == sorted(planted)
