"""Every path that a request may be routed by binds; what releases must match them all (law 13)."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import Gate, Match, Policy, RequestView, Rule
from ratebound.policy.match import reading as module
from ratebound.policy.match.reading import Paths, Readings, is_configured, read_paths, texts_of, without_prefix

SEGMENTS = st.sampled_from(["api", "login", "assets", "v1", "café", "a b", "x%2Fy"])
PATHS = st.lists(SEGMENTS, max_size=3).map(lambda parts: "/" + "/".join(parts))
PREFIXES = st.lists(SEGMENTS, max_size=2).map(lambda parts: "".join(f"/{part}" for part in parts))


def paths_of(target: str | None, below: str, prefix: str = "", *, is_known: bool = True) -> Paths:
    others = [((prefix + below).encode(), is_known)] if prefix else []
    return read_paths(target, below.encode(), others, [prefix] if prefix else [], prefix if is_known else "")


def decides(policy: Policy, paths: Paths, route: str | None = None) -> list[str]:
    verdict = Gate(policy).decide(RequestView("GET", paths, peer="192.0.2.1", route=route))
    return [verdict.kind, *(rule.name for rule in verdict.asked)]


LOGIN = Rule("login", "3/hour", match=Match(paths=["/login"]))
REST = Rule("rest", "100/hour", default=True)


def test_a_plain_path_is_its_only_reading() -> None:
    assert paths_of("/login", "/login") == "/login"
    assert paths_of(None, "/a b") == "/a%20b"
    assert paths_of("/caf%C3%A9", "/café") == "/caf%C3%A9"


def test_the_target_the_full_path_and_the_path_below_a_prefix_all_bind() -> None:
    paths = paths_of("/outside", "/login", "/api")
    assert set(texts_of(paths)) == {"/outside", "/api/login", "/login"}
    for path in ("/outside", "/api/login", "/login"):
        rule = Rule("found", "3/hour", match=Match(paths=[path]))
        assert decides(Policy(rules=[rule, REST]), paths)[1] == "found"


@pytest.mark.parametrize("path", ["/../login", "//login", "/LOGIN", "/%6cogin"])
def test_a_rule_that_is_written_with_the_prefix_binds_every_spelling_of_the_path_below_it(path: str) -> None:
    rule = Rule("found", "3/hour", match=Match(paths=["/api/login"]))
    for is_known in (True, False):
        paths = read_paths(path, unquote(path).encode(), [], ["/api"], "/api" if is_known else "")
        assert decides(Policy(rules=[rule, REST]), paths)[1] == "found"


@pytest.mark.parametrize("path", ["/api/health", "/health"])
def test_below_a_configured_prefix_either_spelling_releases(path: str) -> None:
    policy = Policy(rules=[REST], exempt=[Match(paths=[path])])
    assert decides(policy, paths_of("/api/health", "/health", "/api")) == ["exempt"]


def test_a_prefix_that_nobody_is_known_to_have_configured_releases_nothing() -> None:
    policy = Policy(rules=[LOGIN, REST], exempt=[Match(paths=["/assets/{path*}"])])
    paths = paths_of("/assets/login", "/login", "/assets", is_known=False)
    assert decides(policy, paths) == ["limited", "login", "rest"]


def test_such_a_prefix_releases_what_matches_with_and_without_it() -> None:
    policy = Policy(rules=[REST], exempt=[Match(paths=["/health", "/api/health"])])
    assert decides(policy, paths_of("/api/health", "/health", "/api", is_known=False)) == ["exempt"]


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["serve", "--root-path", "/api"], ""),
        (["serve", "--root-path=/api/"], ""),
        (["serve", "--url-prefix", "/api"], ""),
        (["serve"], "/api"),
        ([b"serve", Path("--root-path=/api"), None], ""),
        (None, "/api"),
    ],
)
def test_a_prefix_of_the_command_line_or_the_environment_is_configured(
    arguments: Any, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv("SCRIPT_NAME", variable)
    module.configured_prefixes.cache_clear()
    try:
        assert is_configured("/api")
        assert is_configured("/api/")
        assert not is_configured("/serve")
        assert not is_configured("")
    finally:
        module.configured_prefixes.cache_clear()


def test_a_rewritten_path_releases_only_if_the_target_is_released_too() -> None:
    one = Policy(rules=[LOGIN, REST], exempt=[Match(paths=["/v1/login"])])
    both = Policy(rules=[LOGIN, REST], exempt=[Match(paths=["/v1/login", "/login"])])
    paths = paths_of("/v1/login", "/login")
    assert decides(one, paths) == ["limited", "login", "rest"]
    assert decides(both, paths) == ["exempt"]


def test_an_encoded_slash_releases_nothing_below_a_prefix() -> None:
    policy = Policy(rules=[REST], exempt=[Match(paths=["/assets/{path*}"])])
    assert decides(policy, paths_of("/api/assets%2Flogin", "/assets/login", "/api")) == ["limited", "rest"]


@pytest.mark.parametrize("path", ["/files/a%2Fsecret", "/files//a", "/files/a%2e", "/files/a;b"])
def test_a_route_releases_no_path_that_servers_read_differently(path: str) -> None:
    policy = Policy(rules=[REST], exempt=[Match(paths=["/files/{name}"])])
    assert decides(policy, path, "/files/{name}")[0] == "limited"


def test_a_route_releases_only_where_every_reading_can_be_that_route() -> None:
    policy = Policy(rules=[LOGIN, REST], exempt=[Match(paths=["/users/{id}"])])
    assert decides(policy, "/users/%34", "/users/{id}") == ["exempt"]
    assert decides(policy, paths_of("/api/users/%34", "/users/4", "/api"), "/users/{id}") == ["exempt"]
    assert decides(policy, paths_of("/login", "/users/4"), "/users/{id}") == ["limited", "login", "rest"]


@given(PATHS, PATHS, PREFIXES, st.booleans())
def test_every_reading_binds_and_only_what_all_readings_allow_is_released(
    target: str, below: str, prefix: str, is_brought: bool
) -> None:
    paths = paths_of(target, below, prefix, is_known=not is_brought)
    readings = {target, *map(quote, (below, prefix + below))}
    for one in readings:
        rule = Rule("found", "3/hour", match=Match(paths=[one]))
        assert decides(Policy(rules=[rule, REST]), paths)[1] == "found"
    exempt = Policy(rules=[REST], exempt=[Match(paths=["/assets/{path*}"])])
    if decides(exempt, paths) == ["exempt"]:
        free = [one.startswith("/assets") for one in (target, below, prefix + below)]
        is_same = unquote(target) in (below, prefix + below)
        assert all(free) or (not is_brought and any(free[1:]) and (is_same or free[0]))


@given(PATHS, PREFIXES)
def test_a_prefix_is_taken_off_at_the_end_of_a_segment(path: str, prefix: str) -> None:
    below = without_prefix(prefix + path, prefix)
    assert below == path if path != "/" else below in ("/", prefix + path)
    assert without_prefix(f"{prefix}x{path}", prefix + "/") == f"{prefix}x{path}" or not prefix


def test_readings_know_their_target() -> None:
    paths = paths_of("/v1/login", "/login")
    assert isinstance(paths, Readings)
    assert RequestView("GET", paths).path == "/v1/login"


@pytest.mark.parametrize(
    "target",
    [
        "x:/login",
        "x:y:/login",
        "http://h/login",
        "/http://h/login",
        "//h/login",
        "http:///login",
        "x:login",
        "///h/login",
        "/\\h/login",
        "//h\\login",
        "\\\\h\\login",
    ],
)
def test_a_scheme_and_a_host_in_front_of_a_path_do_not_escape_its_rule(target: str) -> None:
    assert decides(Policy(rules=[LOGIN, REST]), target)[1] == "login"


def test_a_reading_that_is_known_releases_although_it_is_found_in_another_way_too() -> None:
    policy = Policy(rules=[REST], exempt=[Match(paths=["/health"])])
    others = [(b"/shop/health", True), (b"/health", True), (b"/shop/health", False)]
    assert decides(policy, read_paths("/api/shop/health", b"/api/shop/health", others, ["/api"])) == ["exempt"]
