"""Paths of one shape match the same rules, and endpoints have the names of the ledger."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratebound.ledger.endpoint import endpoint_name
from ratebound.policy import read_policy
from ratebound.policy.match.request import RequestView
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.replay.path_shapes import ZEROS, PathShapes

PATTERNS = ["/users/{id}", "/users/me", "/Users/{id}/orders", "/files/{path*}", "/7/{id}", "/"]
POLICY = read_policy(
    {
        "rules": [
            {"name": f"rule-{place}", "match": {"paths": [path]}, "limits": "1/minute", "final": place == 1}
            for place, path in enumerate(PATTERNS)
        ]
        + [{"name": "default", "limits": "1/minute", "default": True}],
        "exempt": [{"paths": ["/health"]}],
    }
)
segments = st.sampled_from(
    ["users", "Users", "me", "7", "12", "x-1", "health", "orders", "files", "", "..", ".", "%2e%2e", "a;b", "é", "*"]
)
paths = st.lists(segments, max_size=5).map(lambda parts: "/" + "/".join(parts))


def zeroed(path: str) -> bytes:
    return path.encode().translate(ZEROS)


def rules_of(compiled: CompiledPolicy, path: str) -> list[str]:
    line = compiled.line("late")
    assert line is not None
    matched = line.find(RequestView("GET", path))
    return [matched.grounds.kind, *(bound.rule.name for bound in matched.bounds)]


@given(paths, paths)
@example("/users/12", "/users/13")
@example("/x//y", "/z//y")
@example("/users/me", "/users/x-1")
def test_paths_of_one_shape_match_the_same_rules(one: str, other: str) -> None:
    shapes, compiled = PathShapes([POLICY]), CompiledPolicy(POLICY)
    if shapes.describe("GET", one)[1] == shapes.describe("GET", other)[1]:
        assert rules_of(compiled, one) == rules_of(compiled, other), (one, other)


NUMBERLESS = read_policy(
    {
        "rules": [
            {"name": f"rule-{place}", "match": {"paths": [path]}, "limits": "1/minute"}
            for place, path in enumerate(PATTERNS[:4])
        ]
    }
)


@given(paths, st.lists(st.integers(0, 999), min_size=5, max_size=5))
@example("/users/12", [1, 2, 3, 4, 5])
@example("//7/users/12", [1, 2, 3, 4, 5])
@example("/users/..;/12", [1, 2, 3, 4, 5])
def test_numbers_of_as_many_digits_make_no_difference(path: str, numbers: list[int]) -> None:
    shapes, compiled = PathShapes([NUMBERLESS]), CompiledPolicy(NUMBERLESS)
    fresh = iter(numbers)
    parts = [str(next(fresh)).zfill(len(part))[: len(part)] if part.isdecimal() else part for part in path.split("/")]
    other = "/".join(parts)
    assert zeroed(other) == zeroed(path)
    if shapes.is_numbered(zeroed(path)):
        assert shapes.describe("GET", one := path)[0] == shapes.describe("GET", other)[0]
        assert rules_of(compiled, one) == rules_of(compiled, other), (one, other)


def test_versions_and_numbers_in_rules_are_not_taken_for_ids() -> None:
    assert PathShapes([NUMBERLESS]).is_numbered(b"/users/00")
    assert not PathShapes([NUMBERLESS]).is_numbered(b"/v0/users")
    assert not PathShapes([POLICY]).is_numbered(b"/users/00")


@given(paths, st.sampled_from(["GET", "BREW"]))
def test_endpoints_have_the_names_of_the_ledger(path: str, method: str) -> None:
    shapes = PathShapes([POLICY])
    for _ in range(2):  # the second time, segments are known
        assert shapes.describe(method, path)[0] == endpoint_name(method, path)


def test_ids_share_a_shape_and_literals_keep_theirs() -> None:
    shapes = PathShapes([POLICY])
    assert [shapes.describe("GET", path)[1] for path in ("/users/12", "/users/x-1", "/users/me", "/7/9")] == [
        "/users/*",
        "/users/*",
        "/users/me",
        "/7/*",
    ]
    assert shapes.describe("GET", "/users/%31")[1] == "/users/%31"


def test_patterns_that_look_into_a_segment_leave_paths_as_they_are() -> None:
    policy = read_policy({"rules": [{"name": "one", "match": {"paths": ["/v{n}/x"]}, "limits": "1/minute"}]})
    assert PathShapes([policy]).describe("GET", "/v1/x")[1] == "/v1/x"


@pytest.mark.parametrize("path", ["/a" * 10, "/a" * 11, "/a" * 12, "/7" * 12, "*", "users/7"])
def test_a_path_that_is_deep_or_begins_with_no_slash_has_the_name_of_the_ledger(path: str) -> None:
    assert PathShapes([POLICY]).describe("GET", path)[0] == endpoint_name("GET", path)
