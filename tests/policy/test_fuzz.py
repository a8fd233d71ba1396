"""Any bytes produce a decision or a clear error, and no spelling of a route gives more than its limit."""

import json
import re
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound.policy import Match, Policy, PolicyError, RequestView, Rule, Source, explain, read_policy
from ratebound.policy.model.rule import Stage
from tests.policy.gates import EXAMPLES, decide, gate_of, passes, request

anything = st.text(st.characters(codec=None), max_size=40)  # lone surrogates and control characters, too
latin = st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))
values = anything | latin
HEADERS = [
    "x-forwarded-for",
    "forwarded",
    "cookie",
    "authorization",
    "x-api-key",
    "x-tenant",
    "user-agent",
    "host",
    "x-a",
]
headers = st.lists(st.tuples(st.sampled_from([*HEADERS, "x-http-method-override", "origin"]), values), max_size=6)

POLICY = Policy(
    rules=[
        Rule("login", "5/minute", match=Match(paths=("/auth/login",), methods=("POST",)), by="address", stage="early"),
        Rule("user", {"pro": "100/minute", "default": "5/minute"}, by=["jwt:sub + tenant", "api-key", "session"]),
        Rule("files", "5/minute", match=Match(paths=("/files/**", "/v{n}/{x}"), hosts=("*.a",)), by="address + agent"),
        Rule("free", "unlimited", match=Match(paths=("/static/**",), headers={"x-a": "b*"}), final=True),
        Rule("rest", "50/minute", default=True, by="prefix:24/48", candidate="5/minute"),
    ],
    trusted=["10.0.0.0/8"],
    tiers=["pro"],
    identities={
        "api-key": Source(verify=lambda key: key[:3]),
        "jwt": Source(verify=lambda token: {"sub": token, "plan": "pro"}, tier="plan"),
        "session": Source(cookie="sid", verify=str),
        "tenant": Source(proxy=True),
    },
    exempt=[Match(paths=("/health",), methods=("GET",))],
    block=["user:mallory", "198.51.100.0/24"],
)  # fmt: skip
GATE = gate_of(POLICY)


@given(
    method=st.sampled_from(["GET", "POST", "OPTIONS"]) | values,
    path=st.sampled_from(["/", "/files/x", "/auth/login", "*", "", "http://x.a/files/#y", "//\\?"])
    | values
    | values.map(lambda text: f"/files/{text}"),
    query=values,
    host=values,
    headers=headers,
    peer=st.sampled_from(["10.0.0.1", "192.0.2.1", "2001:db8::1", None, ""]) | values,
    user=st.none() | values | st.integers(),
    route=st.none() | values,
    body=st.none() | st.binary(max_size=40),
    stage=st.sampled_from(["early", "late"]),
)
def test_any_request_has_a_verdict(
    method: str,
    path: str,
    query: str,
    host: str,
    headers: list[tuple[str, str]],
    peer: str | None,
    user: str | int | None,
    route: str | None,
    body: bytes | None,
    stage: Stage,
) -> None:
    view = RequestView(
        method, path, query=query, host=host, headers=headers, peer=peer, user=user, route=route, body=body
    )
    verdict = decide(GATE, view, stage)
    assert verdict.kind in ("limited", "unlimited", "exempt", "block", "unmatched")
    assert repr(verdict)
    assert explain(POLICY, view, stage).kind == verdict.kind


ODD = ["5/minute", "rules", "match", "paths", "limits", "&a", "*a", "<<", "${X}", "!!int", "null", "[", "]", "1e999"]
words = st.sampled_from([*re.findall(r"[\w/{}*]+|[^\w\s]|\n *", (EXAMPLES / "tiers.yaml").read_text()), *ODD])


def error_of(text: str, format: str) -> PolicyError | None:
    try:
        read_policy(text, format=format, environ={})
    except PolicyError as error:
        return error
    return None


documents = st.lists(words, max_size=60).map(" ".join) | anything


@given(documents, st.sampled_from(["yaml", "json", "toml"]))
def test_any_text_is_a_policy_or_a_clear_error(text: str, format: str) -> None:
    said = error_of(text, format)
    assert said is None or (said.problems and all(problem.message for problem in said.problems))


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | anything | st.sampled_from(["5/minute", "deny", "/a"])
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3), max_leaves=6
)
KNOWN = [
    "name",
    "match",
    "by",
    "limits",
    "candidate",
    "cost",
    "mode",
    "failure",
    "stage",
    "default",
    "final",
    "message",
]
TOP = [
    "storage",
    "failure",
    "switch",
    "headers",
    "rejection",
    "trusted",
    "ipv6",
    "salt",
    "by",
    "identities",
    "tiers",
    "default_tier",
]


@given(
    st.dictionaries(st.sampled_from([*TOP, "exempt", "allow", "block", "overrides"]), trees, max_size=3),
    st.lists(st.dictionaries(st.sampled_from(KNOWN), trees), max_size=2),
)
def test_any_value_under_any_key_is_a_policy_or_a_clear_error(top: dict[str, object], rules: list[object]) -> None:
    said = error_of(json.dumps({**top, "rules": rules}), "json")
    assert said is None or is_in_words(said)


INNER: dict[str, tuple[str | list[str] | None, list[str]]] = {
    "identities": ("api-key", ["header", "cookie", "verify", "call", "proxy", "tier"]),
    "trusted": (None, ["proxies", "hops", "forwarded", "single"]),
    "headers": (None, ["styles", "reset", "retry_after", "names", "jitter"]),
    "rejection": (None, ["format", "status", "documentation", "message"]),
    "tiers": (None, ["free"]),
    "overrides": ([], ["client", "limits", "tier", "rules"]),
    "exempt": ([], ["paths", "methods", "hosts", "headers", "tiers", "addresses"]),
}
GOOD = ["x-a", "192.0.2.1", "a", "text", "draft-11", "10.0.0.0/8", "user:ann"]


@st.composite
def nearly_right(draw: st.DrawFn) -> dict[str, object]:
    """Known keys inside of known keys, with values of any kind."""
    key = draw(st.sampled_from(sorted(INNER)))
    around, names = INNER[key]
    inner = draw(st.dictionaries(st.sampled_from(names), scalars | st.sampled_from(GOOD) | trees, max_size=3))
    return {key: {around: inner} if isinstance(around, str) else [inner] if around == [] else inner}


@given(nearly_right(), st.sampled_from(["json", "yaml"]))
def test_any_value_under_any_inner_key_is_a_policy_or_told_in_words(top: dict[str, object], format: str) -> None:
    text = json.dumps({"trusted": ["10.0.0.1"], **top, "rules": [{"name": "a", "limits": "5/minute"}]})
    said = error_of(text, format)
    assert said is None or is_in_words(said)


def is_in_words(error: PolicyError) -> bool:
    """No message of Python's own, as for a value of a kind that nobody thought of."""
    return bool(str(error)) and not re.search(r"object is not|object has no|unhashable|got an unexpected", str(error))


deep = st.integers(1, 2000).flatmap(
    lambda depth: st.sampled_from(
        [
            ("toml", "a" + ".a" * depth + " = 1"),
            ("toml", "[[rules]]\nlimits" + " . limits" * depth + " = 1"),
            ("toml", "by = " + "{a = " * (depth % 300) + "1" + "}" * (depth % 300)),
            ("json", '{"by":' * depth + "1" + "}" * depth),
            ("yaml", "by: " + "[" * depth + "]" * depth),
        ]
    )
)


@settings(
    deadline=None, max_examples=settings.get_profile("ratebound").max_examples // 4
)  # reading deep text takes long
@given(deep)
def test_any_depth_is_a_clear_error(case: tuple[str, str]) -> None:
    format, text = case
    said = error_of(text, format)
    assert said is not None
    assert said.problems


ROUTES = ["/login", "/auth/login", "/users/{id}/posts", "/v{n}/export", "/files/{path*}", "/Straße/{x}"]


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A route, and ways to write a path that leads to it."""
    route = draw(st.sampled_from(ROUTES))
    plain = re.sub(r"\{\w+\*\}", "a/b", re.sub(r"\{\w+\}", "7", route))
    return route, draw(st.lists(written(plain), min_size=6, max_size=6))


@st.composite
def written(draw: st.DrawFn, plain: str) -> str:
    dots = st.sampled_from(["", "", "", ".", "x/..", "%2e", "y/%2E%2e", ""])
    marked = draw(st.sampled_from([[], [], [], ["x#", ".."], ["%3f", "%2e."]]))  # a server that does not cut there
    segments = [*marked]
    for segment in plain.strip("/").split("/"):
        for mess in draw(st.lists(dots, max_size=2)):
            segments.append(mess)
        segments.append("".join(draw(letter(c)) for c in segment) + draw(st.sampled_from(["", "", ";a=b", ";"])))
    slash = st.sampled_from(["/", "/", "//", "\\", "%2f", "%5C"])
    path = "/" + "".join(draw(slash) + segment for segment in segments)
    return path + draw(st.sampled_from(["", "/", "//", "/.", *([] if marked else ["?a=b", "#a", "%23a", "%3F"])]))


def letter(c: str) -> st.SearchStrategy[str]:
    encoded = "".join(f"%{byte:02x}" for byte in c.encode())
    ways = [c, c, c, encoded, encoded.upper(), encoded.replace("%", "%25"), quote(c)]
    if c.isascii():
        ways.append(c.swapcase())
    else:
        taken = c.encode().decode("latin-1")  # as WSGI hands over bytes
        ways += [taken, taken[0] + encoded[3:], encoded[:3] + taken[1:]]
    return st.sampled_from(ways)


@given(spelled())
def test_no_spelling_of_a_route_gives_more_than_its_limit(case: tuple[str, list[str]]) -> None:
    route, paths = case
    gate = gate_of(Policy(rules=[Rule("all", "5/minute", match=Match(paths=(route,)), by="address")]))
    assert passes(gate, *(request(path) for path in paths)) == 5, paths


@given(spelled())
def test_no_spelling_of_a_route_slips_past_its_limit_into_a_generous_rule(case: tuple[str, list[str]]) -> None:
    route, paths = case
    rules = [
        Rule("static", "unlimited", match=Match(paths=("/static/{path*}",)), final=True),
        Rule("all", "5/minute", match=Match(paths=(route,)), by="address"),
    ]
    gate = gate_of(Policy(rules=rules))
    assert passes(gate, *(request(f"/static/..{path}") for path in paths)) == 5, paths
