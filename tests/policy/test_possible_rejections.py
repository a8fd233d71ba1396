"""Which rejections a route can get, before there is a request: nothing is left out that a request can meet."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import Match, Policy, Rule
from ratebound.policy.match.coverage import may_match, may_match_below
from ratebound.policy.match.path import Pattern
from ratebound.policy.model.policy import Override
from ratebound.policy.runtime.possible_rejections import can_be_spared, possible_rejections

STEPS = st.sampled_from(["a", "b", "{x}", "v{n}", "v1"])
PATTERNS = st.builds(
    lambda steps, rest: "/" + "/".join([*steps, *rest]), st.lists(STEPS, max_size=3), st.sampled_from([[], ["**"]])
)
PATHS = st.lists(st.sampled_from(["a", "b", "v1", "v2", "c"]), max_size=4).map(tuple)


@given(PATTERNS, PATTERNS, PATHS)
def test_a_path_that_matches_both_patterns_may_match(rule: str, route: str, path: tuple[str, ...]) -> None:
    if Pattern(rule).matches(path) and Pattern(route).matches(path):
        assert may_match(Match(paths=[rule]), "GET", [Pattern(route)])


@given(PATTERNS, st.lists(st.sampled_from(["a", "b", "v1"]), min_size=1, max_size=2), PATHS)
def test_a_page_below_any_prefix_may_match(rule: str, page: list[str], prefix: tuple[str, ...]) -> None:
    if Pattern(rule).matches((*prefix, *page)):
        assert may_match_below(Match(paths=[rule]), Pattern("/" + "/".join(page)))


def test_patterns_without_a_common_path_do_not_match() -> None:
    for rule, route in [("/a", "/b"), ("/a", "/a/b"), ("/a/**", "/b/{x}"), ("/v{n}", "/w1"), ("/a/b/**", "/a")]:
        assert not may_match(Match(paths=[rule]), "GET", [Pattern(route)])
        assert not may_match(Match(paths=[route]), "GET", [Pattern(rule)])
    assert not may_match(Match(methods=["POST"]), "GET", [Pattern("/a")])


def test_rules_that_never_deny_make_no_rejection() -> None:
    rules = [
        Rule("shadow", "5/minute", mode="shadow"),
        Rule("metered", "5/calendar-day", over="allow"),
        Rule("none", "unlimited"),
        Rule("closed", "deny", match=Match(paths=["/closed"])),
    ]
    assert possible_rejections(Policy(rules=rules), "GET", ["/a"]) == (False, False)
    assert possible_rejections(Policy(rules=[Rule("a", "5/minute")], switch="shadow"), "GET", ["/a"]) == (False, False)
    assert possible_rejections(Policy(rules=[Rule("a", "5/minute")], adaptive={"cpu": "85%"}), "GET", ["/a"]) == (
        True,
        True,
    )


def test_a_rule_behind_a_final_one_and_a_default_beside_another_do_not_count() -> None:
    free = Rule("free", "unlimited", match=Match(paths=["/a"]), final=True)
    default = Rule("rest", "5/minute", default=True)
    assert not possible_rejections(Policy(rules=[free, Rule("all", "5/minute")]), "GET", ["/a"]).exceeds
    assert not possible_rejections(Policy(rules=[Rule("free", "unlimited"), default]), "GET", ["/a"]).exceeds
    assert possible_rejections(Policy(rules=[free, default]), "GET", ["/b"]).exceeds


def test_a_path_that_no_policy_can_write_may_match_everything() -> None:
    assert possible_rejections(Policy(rules=[Rule("a", "5/minute", match=Match(paths=["/x"]))]), "GET", ["//"]).exceeds


def test_a_page_is_spared_unless_a_rule_means_it() -> None:
    def spared(*rules: Rule, **more: object) -> bool:
        return can_be_spared(Policy(rules=[*rules, Rule("all", "5/minute")], **more), "/docs")  # type: ignore[arg-type]

    assert spared()
    assert spared(Rule("a", "deny", match=Match(paths=["/admin/users"])))
    assert spared(Rule("a", "deny", match=Match(methods=["POST"])))
    assert spared(Rule("a", "deny", stage="early", by="address", match=Match(addresses=["192.0.2.1"])))
    assert spared(Rule("a", "9/minute", match=Match(paths=["/**"])))
    assert not spared(Rule("a", "9/minute", match=Match(paths=["/docs"])))
    assert not spared(Rule("a", "9/minute", match=Match(paths=["/docs/**"])))
    assert not spared(Rule("a", "deny", match=Match(paths=["/admin/**"])))
    assert not spared(Rule("a", "deny", match=Match(paths=["/api/{page}"])))
    assert not spared(overrides=[Override("192.0.2.1", "deny")])
