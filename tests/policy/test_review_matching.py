"""Ways past a rule, or out of one, that matching must not leave open; and what a policy must say when it is loaded."""

import time
import unicodedata
from typing import Any

import pytest

from ratebound.policy import Match, Policy, PolicyError, RequestView, Rule, Source, read_policy
from ratebound.policy.identity.user_name import canonical_name
from ratebound.policy.lint.checks import advise
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.path import spellings
from ratebound.policy.runtime.policy_changes import changes_between
from tests.policy.gates import decide, gate_of, request


def kind_of(match: Match, view: RequestView) -> str:
    return decide(gate_of(Policy(rules=[Rule("a", "9/minute", match=match, by="address")])), view).kind


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com:" + "0" * 300 + "80", "api.example.com" + "." * 300, " api.example.com :80",
        "api.example.com.:" + "9" * 5000, " " * 400 + "api.example.com",
    ],
)  # fmt: skip
def test_no_length_of_a_host_escapes_its_rule(host: str) -> None:
    assert kind_of(Match(hosts=("api.example.com",)), request(host=host)) == "limited"


def test_an_overlong_name_is_still_below_its_domain() -> None:
    assert kind_of(Match(hosts=("*.example.com",)), request(host="a." * 400 + "example.com:80")) == "limited"
    assert kind_of(Match(hosts=("example.com",)), request(host="a." * 400 + "example.com")) == "unmatched"


@pytest.mark.parametrize(
    "host",
    ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example:80", "bu\u0308cher.example", "b\xc3\xbccher.example"],
)
@pytest.mark.parametrize("pattern", ["bücher.example", "xn--bcher-kva.example", "*.example"])
def test_a_name_in_other_letters_is_the_same_in_every_writing(pattern: str, host: str) -> None:
    assert kind_of(Match(hosts=(pattern,)), request(host=host)) == "limited"


def test_names_are_written_as_browsers_do_today() -> None:
    assert kind_of(Match(hosts=("straße.example",)), request(host="xn--strae-oqa.example")) == "limited"


@pytest.mark.parametrize("host", [":80", "..", "*.", "*..", "*.:80", "a..b", "[]", "x" * 254, "ü" * 64 + ".example"])
def test_a_host_without_a_name_is_refused(host: str) -> None:
    with pytest.raises(PolicyError, match="invalid host"):
        Match(hosts=(host,))


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("http://api.example", "without a scheme and a path"),
        ("api.example/x", "without a scheme and a path"),
        ("https://api.example/", "without a scheme and a path"),
        ("api.example:80", "ports are ignored: write 'api.example'"),
        ("*.api.example:80", r"ports are ignored: write '\*.api.example'"),
        ("[::1]:80", r"ports are ignored: write '\[::1\]'"),
        ("api.example?x", "invalid host"),
        ("u@api.example", "invalid host"),
        ("::1", "invalid host"),
    ],
)
def test_a_host_that_is_more_than_a_host_is_refused(host: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        Match(hosts=(host,))


@pytest.mark.parametrize("target", ["http://api.example/x", "HTTP://API.example:80/x", "http://u:p@api.example/x"])
def test_the_host_of_a_whole_url_counts_as_the_header_does(target: str) -> None:
    match = Match(hosts=("api.example",))
    assert kind_of(match, request(target, host="other")) == "limited"
    assert kind_of(match, request("http://other/x", host="api.example")) == "limited"


def test_a_whole_url_of_another_host_does_not_release() -> None:
    free = Rule("free", "unlimited", match=Match(hosts=("in.example",)), final=True)
    gate = gate_of(Policy(rules=[free, Rule("all", "9/minute", by="address")]))
    assert decide(gate, request("/x", host="in.example")).kind == "unlimited"
    assert decide(gate, request("http://other/x", host="in.example")).kind == "limited"
    assert decide(gate, request("http://in.example/x", host="other")).kind == "limited"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "in.example,other",
            "other, in.example:80",
            ",in.example",
            "u@in.example",
            "u:p@in.example:80",
            "in.example/x",
        ),
        *("in.example?x", "in.example#x", "in.example\\x", "in.example@in.example/", "other/,IN.example./"),
    ],
)
def test_a_host_that_can_be_read_in_several_ways_is_bound_by_all_and_released_by_none(host: str) -> None:
    assert kind_of(Match(hosts=("in.example",)), request(host=host)) == "limited"
    free = Rule("free", "unlimited", match=Match(hosts=("in.example",)), final=True)
    gate = gate_of(Policy(rules=[free, Rule("all", "9/minute", by="address")]))
    assert decide(gate, request("/x", host=host)).kind == "limited"


JUNK = [("x-http-method-override", f"x{n}") for n in range(20)]
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = (
    '--X\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    '--X\r\nContent-Disposition: form-data; name="_method"\r\nX-A: b\r\n\r\nDELETE\r\n--X--\r\n'
)


@pytest.mark.parametrize(
    "view",
    [
        request(method="POST", headers=[*JUNK, ("x-method-override", "DELETE")]),
        request(method="POST", query="&".join([f"_method=x{n}" for n in range(20)] + ["_method=DELETE"])),
        request(method="POST", query="a=" + "x" * 9000 + "&_method=DELETE"),
        request(method="POST", query="a=1;%5f%4dethod=+delete%20"),
        request(method="POST", body=b"a=b&_method=DELETE", headers=FORM),
        request(method="POST", body=b"a=b&_method=DELETE"),
        request(method="POST", body=PARTS.encode(), headers={"content-type": "multipart/form-data; boundary=X"}),
        request(method="POST", body=b'{"a": 1, "_method" : "DELETE"}', headers={"content-type": "application/json"}),
    ],
    ids=["headers", "fields", "long", "encoded", "form", "body", "parts", "json"],
)
def test_no_method_override_hides_among_others(view: RequestView) -> None:
    assert kind_of(Match(methods=("DELETE",)), view) == "limited"
    assert kind_of(Match(methods=("POST",)), view) == "limited"


def test_a_method_that_is_no_override_is_none() -> None:
    for query in ("x_method=DELETE", "a=_method=DELETE", "_methods=DELETE", "_method"):
        assert methods_of(request(method="POST", query=query)) == ("POST",)
    assert methods_of(request(method="GET", query="_method=DELETE")) == ("GET",)


def test_many_method_overrides_cost_no_more_than_reading_them() -> None:
    body = b"&".join(b"_method=m%d" % n for n in range(20_000))
    gate = gate_of(Policy(rules=[Rule(f"r{n}", "9/minute", match=Match(methods=("DELETE",))) for n in range(9)]))
    parts = b'name="_method"\n' * 60_000
    for view in (
        request(method="POST", body=body),
        request(method="POST", body=parts, headers={"content-type": "multipart/form-data"}),
        request(method="POST", body=b'"_method"' + b" " * 900_000, headers={"content-type": "application/json"}),
    ):
        begin = time.perf_counter()
        assert decide(gate, view).kind == "unmatched"
        assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("path", ["/search/#x", "/search/?x", "/search/x#y", "/search/%23x", "/x#/../search/y"])
def test_a_mark_in_a_path_cuts_nothing_off(path: str) -> None:
    assert kind_of(Match(paths=("/search/{q}",)), request(path)) == "limited"


@pytest.mark.parametrize("path", ["/login#", "/login?a=b", "/login%3fa=b", "/login%23", "/x#/../login", "/x?/../login"])
def test_a_mark_in_a_path_may_cut_as_well(path: str) -> None:
    assert kind_of(Match(paths=("/login",)), request(path)) == "limited"


@pytest.mark.parametrize(
    "path", ["/straße", "/stra%C3%9Fe", "/stra\xc3\x9fe", "/stra\xc3%9fe", "/STRA%c3\x9fE", "/x/../stra\xc3\x9fe"]
)
def test_bytes_that_came_as_latin_1_are_read_as_utf_8_too(path: str) -> None:
    assert kind_of(Match(paths=("/straße",)), request(path)) == "limited"
    assert kind_of(Match(paths=("/{x*}",)), request(path + "\udcff")) == "limited"


def test_a_broken_byte_elsewhere_hides_nothing() -> None:
    assert kind_of(Match(paths=("/straße/{x}",)), request("/stra\xc3\x9fe/\xff")) == "limited"


MARKS = "\u0315\u0300"


@pytest.mark.parametrize("path", ["/" + "%CC%95%CC%80" * 5400, "/" + MARKS * 16_000, "/" + f"{MARKS * 60}/" * 270])
def test_no_path_takes_the_square_of_its_length(path: str) -> None:
    begin = time.perf_counter()
    spellings(path)
    assert time.perf_counter() - begin < 1


def test_a_long_segment_is_still_read_in_one_form() -> None:
    word = "각한글é"
    match = Match(paths=(f"/{word * 60}",))
    assert kind_of(match, request("/" + unicodedata.normalize("NFD", word * 60))) == "limited"


def test_a_name_that_is_no_name_is_not_looked_at() -> None:
    begin = time.perf_counter()
    assert canonical_name(MARKS * 20_000) is None
    assert time.perf_counter() - begin < 0.2
    assert canonical_name(" " * 5000 + "Ann ") == "ann"
    assert canonical_name("x" * 1025) is None


@pytest.mark.parametrize("route", ["/{path:path}", "/<path:rest>", "/{path*}", "/*"])
def test_a_catch_all_route_does_not_release(route: str) -> None:
    gate = gate_of(Policy(rules=[Rule("a", "9/minute")], exempt=[Match(paths=("/{page}",))]))
    assert decide(gate, request("/admin/deep", route=route)).kind == "limited"
    assert decide(gate, request("/admin%2Fdeep", route=route)).kind == "limited"
    assert decide(gate, request("/about", route=route)).kind == "exempt"


def test_an_encoded_mark_that_may_end_a_path_does_not_release() -> None:
    free = Rule("free", "unlimited", match=Match(paths=("/a/{x}",)), final=True)
    gate = gate_of(Policy(rules=[free, Rule("a", "9/minute", match=Match(paths=("/a",)))]))
    for path in ("/a/%3f", "/a/%23x"):
        assert decide(gate, request(path)).kind == "limited"


def test_a_route_releases_another_spelling_of_its_path() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "9/minute")], exempt=[Match(paths=("/users/{id}",))]))
    assert decide(gate, request("/USERS/7", route="/users/{user_id}")).kind == "exempt"
    assert decide(gate, request("/USERS/7")).kind == "limited"
    assert decide(gate, request("/~ann", route="/users/{user_id}")).kind == "limited"


RULES = "rules: [{name: a, limits: 10/minute}]"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (
            "identities: {api-key: {header: 5, proxy: true}}\ntrusted: [10.0.0.1]",
            "identities.api-key.header",
            "a string",
        ),
        ("identities: {s: {cookie: [a], call: json-batch}}", "identities.s.cookie", "a string"),
        ("identities: {s: {header: x-s, proxy: 'yes'}}", "identities.s.proxy", "true or false"),
        ("trusted: {single: 5}", "trusted.single", "names of headers"),
        ("headers: 5", "headers", "string or a list of strings"),
        ("headers: [[a]]", "headers", "string or a list of strings"),
        ("headers: {names: 5}", "headers.names", "names must map"),
        ("headers: {styles: 5}", "headers.styles", "string or a list of strings"),
        ("rejection: [a]", "rejection", "expected a format"),
        ("rejection: {format: [a]}", "rejection.format", "expected a format"),
        ("tiers: 5", "tiers", "string or a list of strings"),
        ("tiers: {free: 5}", "tiers.free", "a client or a list of clients"),
        ("tiers: {free: [5]}", "tiers.free[0]", "expected an address"),
        (
            "overrides: [{client: 192.0.2.1, limits: 1/minute, rules: 5}]",
            "overrides[0].rules",
            "rules must be a string or a list",
        ),
        ("storage: foo://x", "storage", "cannot open storage"),
        ("storage: redis://x:bad/0", "storage", "bad"),
        ("storage: 'redis://[x'", "storage", "cannot"),
    ],
)
def test_a_wrong_kind_of_value_is_told_in_words(text: str, place: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(f"{text}\n{RULES}")
    told = [(problem.where, problem.message) for problem in caught.value.problems]
    assert place in [where for where, _ in told], told
    assert message in dict(told)[place]
    assert "object" not in dict(told)[place]


@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 20_000 + "=1", "[a" + ".a" * 20_000 + "]", "x = {'a'" + " . 'a'" * 20_000 + " = 1}"],
    ids=["key", "table", "inline"],
)
def test_a_key_of_many_parts_is_refused_at_once(text: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(PolicyError, match="too deep"):
        read_policy(text, format="toml")
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize("depth", [90, 150, 200, 240, 300, 400, 600, 900])
@pytest.mark.parametrize("format", ["json", "toml", "yaml"])
def test_no_depth_of_nesting_is_a_traceback(depth: int, format: str) -> None:
    value = "[" * depth + "]" * depth
    with pytest.raises(PolicyError):
        read_policy(
            {"json": f'{{"by": {value}}}', "toml": f"by = {value}", "yaml": f"by: {value}"}[format], format=format
        )


def test_a_change_of_the_ipv6_prefix_is_told() -> None:
    old, new = (read_policy(f"ipv6: {length}\n{RULES}") for length in (64, 56))
    assert [change for change in changes_between(old, new) if "ipv6" in change and "/56" in change]
    assert not list(changes_between(old, old))


def test_a_live_limit_cannot_take_the_name_of_a_candidate() -> None:
    with pytest.raises(PolicyError, match=r"rules\[0\].limits: .*candidate"):
        Policy(rules=[Rule("a", "5/minute as candidate.minute", candidate="5/minute")])
    with pytest.raises(PolicyError, match=r"overrides\[0\].limits: .*candidate"):
        read_policy(
            "overrides: [{client: 192.0.2.1, limits: 5/minute as candidate.minute}]\n"
            "rules: [{name: a, limits: 5/minute, candidate: 5/minute}]"
        )


@pytest.mark.parametrize(
    "text",
    [
        "rules: [{name: a, match: {hosts: in.example}, limits: unlimited, final: true}, {name: b, limits: 9/second}]",
        "exempt: [{paths: /x, hosts: in.example}]\nrules: [{name: b, limits: 9/second}]",
    ],
)
def test_a_host_that_sets_free_is_advised_against(text: str) -> None:
    found = [warning for warning in advise(read_policy(text)) if warning.name == "unlimited-by-header"]
    assert len(found) == 1
    assert "host" in found[0].wrong


def test_a_proxy_that_only_tells_addresses_sets_no_identity() -> None:
    def policy(**trusted: Any) -> Policy:
        return Policy(
            rules=[Rule("a", "9/minute", by="tenant")], identities={"tenant": Source(proxy=True)}, trusted=trusted
        )

    single = {"cf-connecting-ip": ["173.245.48.0/20"]}
    with pytest.raises(PolicyError, match=r"identities.tenant: .*single"):
        policy(single=single)
    policy(single=single, trusted=["10.0.0.0/8"])
    policy(hops=1)


def test_what_is_never_counted_comes_before_the_block_list() -> None:
    gate = gate_of(
        "block: [192.0.2.1]\nallow: [192.0.2.1, 192.0.2.2]\nexempt: [{paths: /health}]\n"
        "rules: [{name: a, limits: 1/minute}]"
    )
    preflight = {"origin": "https://a.example", "access-control-request-method": "GET"}
    assert decide(gate, request("/x")).kind == "block"
    assert decide(gate, request("/x", "OPTIONS", headers=preflight)).kind == "block"
    assert decide(gate, request("/x", peer="192.0.2.2")).kind == "allow"
    assert decide(gate, request("/health")).kind == "exempt"
    gate.switch = "off"
    assert decide(gate, request("/x", "OPTIONS", headers=preflight)).kind == "off"
