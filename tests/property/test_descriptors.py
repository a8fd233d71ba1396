"""Descriptors find the rule that envoyproxy/ratelimit would find, and keys are as different as their values."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import PolicyError, read_policy
from ratebound.policy.imports import import_envoy_descriptors
from ratebound.policy.runtime.compiled_descriptors import DescriptorTable, override_identity

KEYS = ("a", "b")
VALUES = ("", "x", "xy", "xyz", "*", "x*", "xy*")
SENT = ("", "x", "xy", "xyz", "xyzz", "w")


def levels(below: st.SearchStrategy[list[dict[str, Any]]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """The descriptors of one level, in any order: no two have the same key and value."""

    def of_level(pairs: list[tuple[str, str]]) -> st.SearchStrategy[list[dict[str, Any]]]:
        return st.tuples(*(one_descriptor(key, value, below) for key, value in pairs)).map(list)

    pairs = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=5, unique=True)
    return pairs.flatmap(of_level)


def one_descriptor(key: str, value: str, below: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A descriptor with a limit, with others below it, with both, or with nothing."""
    return st.fixed_dictionaries(
        {"key": st.just(key), "value": st.just(value)},
        optional={"rate_limit": st.builds(dict, limited=st.just(True)), "descriptors": below},
    )


TREES = levels(levels(levels(st.just([]))))


def numbered(level: list[dict[str, Any]], counts: Iterator[int]) -> list[dict[str, Any]]:
    """The same descriptors, each limit with a count of its own."""
    made = []
    for one in level:
        found = {key: one[key] for key in ("key", "value") if one[key]}
        if "rate_limit" in one:
            found["rate_limit"] = {"unit": "hour", "requests_per_unit": next(counts)}
        if "descriptors" in one:
            found["descriptors"] = numbered(one["descriptors"], counts)
        made.append(found)
    return made


def reference(level: list[dict[str, Any]], entries: list[tuple[str, str]]) -> int | None:
    """The count of the limit that envoyproxy/ratelimit finds, by a walk over its configuration. It never goes back."""
    limit = None
    for place, (key, value) in enumerate(entries):
        same = [one for one in level if one["key"] == key]
        taken = [one for one in same if value and one.get("value") == value and not value.endswith("*")]
        taken += [one for one in same if one.get("value", "").endswith("*") and value.startswith(one["value"][:-1])]
        taken += [one for one in same if not one.get("value")]
        if not taken:
            return None
        rate: Mapping[str, Any] = taken[0].get("rate_limit", {})
        limit = rate.get("requests_per_unit") if place == len(entries) - 1 else None
        level = taken[0].get("descriptors", [])
    return limit


@given(TREES, st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(SENT)), max_size=4), max_size=20))
def test_an_imported_tree_finds_what_the_service_finds(tree: Any, sent: list[list[tuple[str, str]]]) -> None:
    level = numbered(tree, iter(range(1, 1000)))
    try:
        text = import_envoy_descriptors(json.dumps({"domain": "edge", "descriptors": level})).text
    except PolicyError:
        return  # it has no limit at all
    table = DescriptorTable(read_policy(text, environ={}))
    for entries in sent:
        found = table.find(b"edge", [(key.encode(), value.encode()) for key, value in entries])
        count = found.plan[0].count if found is not None and isinstance(found.plan, tuple) else None
        assert count == reference(level, entries), (text, entries)


PARTS = st.lists(st.text("|\\ab", max_size=4).map(str.encode) | st.binary(max_size=4), min_size=2, max_size=2)


@given(PARTS, PARTS)
def test_different_values_have_different_keys(first: list[bytes], second: list[bytes]) -> None:
    policy = read_policy({"descriptors": [{"name": "r", "domain": "e", "entries": ["a", "b"], "limits": "1/hour"}]})
    found = DescriptorTable(policy).find(b"e", [(b"a", b""), (b"b", b"")])
    assert found is not None
    one, other = ([(b"a", values[0]), (b"b", values[1])] for values in (first, second))
    assert (found.identity(one) == found.identity(other)) == (first == second)
    assert (override_identity(b"e", one) == override_identity(b"e", other)) == (first == second)
