"""Which requests a match meets, and that the index says the same as each match by itself."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.http.prefix import parse_address
from ratebound.policy import Gate, Match, Policy, PolicyError, RequestView, Rule
from ratebound.policy.match.conditions import _matches_wildcard, methods_of
from ratebound.policy.match.coverage import covers
from ratebound.policy.match.index import Index
from ratebound.policy.match.path import Pattern, is_clean, spellings
from ratebound.policy.match.wildcard import WildcardIndex, fragments_of
from tests.policy.gates import decide, gate_of, request


def meets(match: Match, view: RequestView, tier: str | None = None) -> bool:
    return match.failure(view, list(spellings(view.path)), tier, parse_address(view.peer or "")) is None


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/", "/", True),
        ("/", "/a", False),
        ("/users/{id}", "/users/42", True),
        ("/users/{id}", "/users", False),
        ("/users/{id}", "/users/42/posts", False),
        ("/users/{id}/posts", "/users/42/posts/", True),
        ("/files/{path*}", "/files/a/b/c", True),
        ("/files/{path*}", "/files", True),
        ("/files/**", "/files/a/b/c", True),
        ("/files/{path*}", "/filesystem", False),
        ("/*/login", "/anything/login", True),
        ("/v{n}/login", "/v12/login", True),
        ("/v{n}/login", "/v/login", False),
        ("/report-{id}.pdf", "/report-7.pdf", True),
        ("/report-{id}.pdf", "/report-7.txt", False),
        ("/users/{id}", "/users/a%2Fb", True),
        ("/caf%C3%A9", "/café", True),
        ("/Straße", "/STRASSE", True),
        ("/login", "http://example.com/login", True),
    ],
)
def test_a_pattern_matches(pattern: str, path: str, expected: bool) -> None:
    assert meets(Match(paths=(pattern,)), request(path)) is expected


@pytest.mark.parametrize(
    "text", ["login", "/a/{", "/a/{b*}/c", "/{b**}", "/a?x=1", "/a//b", "/../a", "/a;b", "/a\\b", ""]
)
def test_a_pattern_that_cannot_match_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        Match(paths=(text,))


@pytest.mark.parametrize(
    "path",
    [
        "/auth/login/", "//auth//login", "/AUTH/Login", "/auth/./login", "/auth/x/../login", "/%61uth/%6Cogin",
        "/auth%2Flogin", "/auth\\login", "/auth/login;session=1", "/auth/%2e%2e/auth/login", "/%2561uth/login",
        "/auth/login?next=/", "/../auth/login", "/auth/login%3bx", "/auth/login#top", "/auth;a=b/login", "auth/login",
        "/auth%5clogin", "/x/..%2fauth/login", "/auth/login//",
        "/auth/login%20", "/auth/login.", "/auth/login%00.css", "/auth./login%09",
    ],
)  # fmt: skip
def test_no_spelling_escapes_a_rule(path: str) -> None:
    assert meets(Match(paths=("/auth/login",)), request(path))
    assert not Match(paths=("/auth/login",)).is_exact(request(path)) or path == "/auth/login/"


@pytest.mark.parametrize("path", ["/auth/logins", "/auth", "/auth/login/now", "/auth/log%00in", "/xauth/login"])
def test_another_path_is_another_path(path: str) -> None:
    assert not meets(Match(paths=("/auth/login",)), request(path))


def test_a_path_that_servers_may_read_as_two_meets_the_rules_of_both() -> None:
    view = request("/files/../login")
    assert meets(Match(paths=("/login",)), view)
    assert meets(Match(paths=("/files/{path*}",)), view)


def test_the_route_that_the_router_found_counts_too() -> None:
    rule = Rule("users", "5/minute", match=Match(paths=("/users/{id}",)), final=True)
    gate = gate_of(Policy(rules=[rule, Rule("all", "10/minute")]))
    verdict = decide(gate, request("/~ann", route="/users/{user_id}"))
    assert [rule.name for rule in verdict.asked] == ["users", "all"], "it binds, and does not release"
    verdict = decide(gate, request("/Users/ann", route="/users/{user_id}"))
    assert [rule.name for rule in verdict.asked] == ["users"]


def test_get_includes_head_and_methods_have_no_case() -> None:
    match = Match(methods=("get",))
    assert [meets(match, request(method=method)) for method in ("GET", "get", "HEAD", "POST")] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "view",
    [
        request(method="POST", headers={"x-http-method-override": "delete"}),
        request(method="POST", headers={"x-method-override": "DELETE"}),
        request(method="POST", query="a=b&_method=delete"),
        request(method="POST", query="a=b&%5fMethod=%44elete"),
    ],
)
def test_a_method_override_is_counted_as_both(view: RequestView) -> None:
    assert methods_of(view) == ("POST", "DELETE")
    assert meets(Match(methods=("DELETE",)), view)
    assert meets(Match(methods=("POST",)), view)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("api.example.com", True), ("API.Example.com:8443", True), ("api.example.com.", True), ("example.com", False),
        ("a.b.shop.example", True), ("shop.example", False), ("evilshop.example", False), ("", False),
    ],
)  # fmt: skip
def test_hosts(host: str, expected: bool) -> None:
    match = Match(hosts=("api.example.com", "*.shop.example"))
    assert meets(match, request(host=host)) is expected
    assert bool(found_by_index([match], request(host=host))) is expected


@pytest.mark.parametrize(
    ("wanted", "headers", "expected"),
    [
        ({"x-a": "1"}, [("x-a", "1")], True),
        ({"X-A": "1"}, [("x-a", "2"), ("x-a", " 1 ")], True),
        ({"x-a": ["1", "2"]}, [("x-a", "2")], True),
        ({"x-a": True}, [("x-a", "")], True),
        ({"x-a": False}, [("x-a", "")], False),
        ({"x-a": False}, [], True),
        ({"x-a": "b*d"}, [("x-a", "bcccd")], True),
        ({"x-a": "b*d*f"}, [("x-a", "bdf")], True),
        ({"x-a": "bb*bb"}, [("x-a", "bbb")], False),
        ({"x-a": "*bot*"}, [("x-a", "a robot")], True),
        ({"x-a": "1", "x-b": True}, [("x-a", "1")], False),
    ],
)
def test_headers(wanted: dict[str, Any], headers: list[tuple[str, str]], expected: bool) -> None:
    match = Match(headers=wanted)
    assert meets(match, request(headers=headers)) is expected
    assert bool(found_by_index([match], request(headers=headers))) is expected


@pytest.mark.parametrize(
    ("peer", "expected"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("11.0.0.1", False), ("2001:db8::9", True), (None, False)],
)
def test_addresses(peer: str | None, expected: bool) -> None:
    match = Match(addresses=("10.0.0.0/8", "2001:db8::/32"))
    assert meets(match, request(peer=peer)) is expected
    assert bool(found_by_index([match], request(peer=peer))) is expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"methods": ("GE T",)}, {"hosts": ("a b",)}, {"hosts": ("*",)}, {"addresses": ("10.0.0.1/8",)},
        {"addresses": ("nowhere",)}, {"headers": {"a b": "1"}}, {"headers": {"a": []}}, {"headers": {"a": None}},
        {"paths": 5}, {"tiers": ("",)},
    ],
)  # fmt: skip
def test_a_match_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        Match(**wrong)
    assert caught.value.problems[0].place[0] == next(iter(wrong))


class Filed:
    def __init__(self, match: Match, order: int) -> None:
        self.match, self.order = match, order


def found_by_index(matches: list[Match], view: RequestView, tier: str | None = None) -> list[int]:
    index = Index([Filed(match, order) for order, match in enumerate(matches)])
    address = parse_address(view.peer or "")
    return [values.order for values in index.find(view, spellings(view.path), methods_of(view), address, tier)]


segment = st.sampled_from(["a", "b", "c", "A", "{x}", "v{n}", "*", "v{n}-a", "{x}-a", "{x}a{y}", "{x}-long-word-{y}"])
pattern = st.builds(
    lambda parts, rest: "/" + "/".join([*parts, "{r*}"] if rest else parts),
    st.lists(segment, max_size=3),
    st.booleans(),
)
some = st.sampled_from
matches = st.builds(
    Match,
    paths=st.lists(pattern, max_size=2).map(tuple),
    methods=st.lists(some(["GET", "POST", "DELETE"]), max_size=1).map(tuple),
    hosts=st.lists(some(["a.example", "*.example", "b.test", "bücher.example"]), max_size=2).map(tuple),
    headers=st.dictionaries(
        some(["x-a", "x-b"]),
        some(["1", "2", "1*", "*2", "*", "*a*", "*ab*", "1*a*2", "*long words*", "*gerwords*", True, False])
        | st.lists(some(["1", "*2", "*a*", "1*"]), min_size=1, max_size=3),
        max_size=2,
    ),
    tiers=st.lists(some(["free", "pro"]), max_size=1).map(tuple),
    addresses=st.lists(some(["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32", "192.0.2.1"]), max_size=2).map(tuple),
)
views = st.builds(
    request,
    st.lists(some([*"abc", "v1", "v1-a", "1-long-word-a", "%61", "..", ".", "", "A;x", "a#b"]), max_size=4).map(
        lambda parts: "/" + "/".join(parts)
    ),
    some(["GET", "HEAD", "POST", "PUT"]),
    host=some(["", "a.example", "x.a.example:80", "b.test", "bücher.example"]),
    headers=st.lists(
        st.tuples(
            some(["x-a", "x-b", "x-http-method-override"]),
            some(["1", "2", "12", "GET", "DELETE", "1a2", "cabbage", "longer words", "1 long words 2"]),
        ),
        max_size=3,
    ),
    peer=some(["10.1.2.3", "10.9.9.9", "192.0.2.1", "2001:db8::1", None]),
)


@given(st.lists(matches, max_size=16), views, some([None, "free", "pro"]))
def test_the_index_finds_what_each_match_says(all_: list[Match], view: RequestView, tier: str | None) -> None:
    expected = [order for order, match in enumerate(all_) if meets(match, view, tier)]
    assert found_by_index(all_, view, tier) == expected


@given(matches, matches, views, some([None, "free", "pro"]))
def test_what_a_match_covers_it_meets(wide: Match, narrow: Match, view: RequestView, tier: str | None) -> None:
    if covers(wide, narrow) and meets(narrow, view, tier):
        assert meets(wide, view, tier)


@given(pattern, st.text(max_size=30))
def test_an_exact_match_is_a_match(text: str, path: str) -> None:
    pattern = Pattern(text)
    if is_clean(path) and pattern.is_exact(path):
        assert any(pattern.matches(reading) for reading in spellings(path))


letters = st.text("ab", max_size=12)
wildcard = st.lists(letters, min_size=2, max_size=4)


@given(st.lists(wildcard, min_size=1, max_size=8), letters)
def test_a_text_finds_every_piece_that_it_holds_and_no_other(wildcards: list[list[str]], text: str) -> None:
    values = {fragment: [fragment] for pieces in wildcards for fragment in fragments_of(pieces)}
    expected = {
        fragment
        for fragment in values
        if (fragment.side == "first" and text.startswith(fragment.text))
        or (fragment.side == "last" and text.endswith(fragment.text))
        or (fragment.side == "within" and fragment.text in text)
    }
    found = WildcardIndex(values).find(text)
    assert sorted(fragment for (fragment,) in found) == sorted(expected)


@given(wildcard, letters)
def test_what_fits_a_wildcard_holds_each_of_its_pieces(pieces: list[str], text: str) -> None:
    if _matches_wildcard(text, "*".join(pieces)):
        for fragment in fragments_of(pieces):
            assert WildcardIndex({fragment: [1]}).find(text)


def calls_of(gate: Gate, view: RequestView) -> int:
    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    decide(gate, view)
    sys.setprofile(profile)
    decide(gate, view)
    sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "match",
    [
        lambda n: Match(paths=(f"/service{n}/users/{{id}}",)),
        lambda n: Match(paths=("/service7/users/{id}",), hosts=(f"h{n}.example",)),
        lambda n: Match(headers={"x-service": f"s{n}"}),
        lambda n: Match(addresses=(f"10.{n // 250}.{n % 250}.0/24",)),
        lambda n: Match(paths=("/service7/users/1",), methods=(f"M{n}" if n != 7 else "GET",)),
        lambda n: Match(paths=(f"/service{n}/{{x}}s/{{id}}",)),
        lambda n: Match(paths=(f"/{{x}}{n}/users/{{id}}",)),
        lambda n: Match(paths=(f"/{{x}}vice{n}/users/*" if n == 7 else f"/s{{x}}ice{n}{{y}}/users/*",)),
        lambda n: Match(headers={f"x-h{n}": True}),
        lambda n: Match(headers={"x-service": f"s{n}*"}),
        lambda n: Match(headers={"x-service": f"*s{n}"}),
        lambda n: Match(headers={"user-agent": f"*robot-number-{n};*"}),
        lambda n: Match(headers={"user-agent": ["*moz*", f"*{n}; en*"] if n == 7 else [f"*x{n}*", f"*{n}?"]}),
        lambda n: Match(headers={"x-common": "1", "x-service": f"s{n}"}, addresses=("10.0.0.0/8",)),
        lambda n: Match(headers={"x-h7": f"*{n % 32}", "x-service": f"s{7 + n // 32}"}),
        lambda n: Match(headers={"x-common": "1"}, addresses=(f"10.0.{n % 250}.0/24",), tiers=(f"t{7 + n // 250}",)),
        lambda n: Match(tiers=(f"t{n}",)),
    ],
    ids=[
        "path", "host", "header", "range", "method", "two wildcards", "end of a segment", "middle of a segment",
        "header there", "begin of a header", "end of a header", "words in a header", "several wildcards",
        "one condition shared", "two that tell apart together", "range and tier", "tier",
    ],
)  # fmt: skip
def test_a_thousand_rules_cost_as_much_as_ten(match: Any) -> None:
    agent = "Mozilla/5.0 (robot-number-7; en) of a usual length, with words like other agents have"
    sent = {"user-agent": agent, "accept": "*/*", "x-common": "1", "x-service": "s7", "x-h7": "7"}
    view = request("/service7/users/1", host="h7.example", headers=sent, peer="10.0.7.1")
    gates = [
        gate_of(
            Policy(
                rules=[Rule(f"r{n}", "1000/second", match=match(n)) for n in range(size)],
                tiers=[f"t{n}" for n in range(1000)],
                default_tier="t7",
            )
        )
        for size in (10, 1000)
    ]
    assert [rule.name for rule in decide(gates[1], view).asked] == ["r7"]
    few, many = (calls_of(gate, view) for gate in gates)
    assert many <= 1.2 * few, "some look-ups more, where there are more lengths of text"
