"""A policy file says what is wrong with it: by file, line and place, all at once, before anything runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratebound import parse_limit
from ratebound.policy import (
    ANY_FUNCTION,
    SCHEMA_PATH,
    Gate,
    Identity,
    Match,
    Override,
    Policy,
    PolicyError,
    Rule,
    Source,
    canonical_name,
    load_policy,
    read_policy,
)
from ratebound.policy.schema import KEYS
from ratebound.web.gate import WebGate
from tests.policy.gates import decide, gate_of, passes, request


def problems(text: str, **more: Any) -> list[tuple[int | None, str, str]]:
    """Line, place and message of each problem."""
    with pytest.raises(PolicyError) as caught:
        read_policy(text, file="policy.yaml", environ=more.pop("environ", {}), **more)
    return [(problem.line, problem.where, problem.message) for problem in caught.value.problems]


def problem(text: str, **more: Any) -> tuple[int | None, str, str]:
    (found,) = problems(text, **more)
    return found


BROKEN = """\
storag: redis://localhost
rules:
  - name: login
    limits: [5/minute, 3/hou]
    match:
      pathes: /login
  - name: api
    limits: 10/minute
    by: usr
  - name: api
    limits: 20/minute
    cost: 30
"""


def test_every_mistake_is_told_at_once_by_line_and_place() -> None:
    found = problems(BROKEN)
    assert [(line, where) for line, where, _ in found] == [
        (1, "storag"),
        (4, "rules[0].limits[1]"),
        (6, "rules[0].match.pathes"),
        (9, "rules[1].by"),
        (10, "rules[2].name"),
        (12, "rules[2].cost"),
    ]
    messages = [message for *_, message in found]
    assert "did you mean 'storage'?" in messages[0]
    assert "unknown unit 'hou': did you mean 'hour'?" in messages[1]
    assert "did you mean 'paths'?" in messages[2]
    assert "did you mean 'user'?" in messages[3]
    assert "is also the name of rules[1]" in messages[4]
    assert "30 can never pass" in messages[5]


def test_the_error_reads_like_a_compilers() -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy("rules:\n  - {name: a, limits: 5/minute, by: usr}", file="policy.yaml")
    assert str(caught.value) == "policy.yaml:2: rules[0].by: unknown identity 'usr': did you mean 'user'?"


RULE = "  - {name: a, limits: 5/minute}\n"
FUNCTIONS = (
    "unknown function 'find': load the policy with functions={'find': …}, name its module with --functions, or write"
    " module:function"
)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "", "the policy is empty: add 'rules'"),
        ("# nothing\n", "", "the policy is empty: add 'rules'"),
        ("{}", "", "the policy is empty: add 'rules'"),
        ("[]", "", "expected a mapping of keys to values"),
        ("rules: []", "rules", "limits nothing"),
        ("rules: 5", "rules", "expected a list"),
        ("rules: [5]", "rules[0]", "expected a mapping of keys to values"),
        ("rules: [{limits: 5/minute}]", "rules[0]", "a rule needs a name"),
        ("rules: [{name: a}]", "rules[0]", "a rule needs limits"),
        ("rules: [{name: a, limits: 5/minute, match: {user: false}}]", "rules[0].match.user", "write limits by tier"),
        ("rules: [{name: a b, limits: 5/minute}]", "rules[0].name", "expected 1 to 40"),
        ("rules: [{name: 5, limits: 5/minute}]", "rules[0].name", "expected 1 to 40"),
        ("rules: [{name: a, limits: 5}]", "rules[0].limits", "expected limits like"),
        ("rules: [{name: a, limits: []}]", "rules[0].limits", "at least one limit"),
        ("rules: [{name: a, limits: {}}]", "rules[0].limits", "at least one tier"),
        ("rules: [{name: a, limits: [5/minute, 9/minute]}]", "rules[0].limits", "would share one count"),
        (
            "{tiers: [pro], rules: [{name: a, limits: {pro: 5/minut, default: 5/hour}}]}",
            "rules[0].limits.pro",
            "did you mean 'minute'",
        ),
        ("rules: [{name: a, limits: 5/minute, mode: shaddow}]", "rules[0].mode", "did you mean 'shadow'"),
        ("rules: [{name: a, limits: 5/minute, failure: shut}]", "rules[0].failure", "expected one of"),
        ("rules: [{name: a, limits: 5/minute, stage: erly}]", "rules[0].stage", "did you mean 'early'"),
        ("rules: [{name: a, limits: 5/minute, final: 1}]", "rules[0].final", "true or false"),
        ("rules: [{name: a, limits: 5/minute, cost: 0}]", "rules[0].cost", "cost must be a whole number"),
        ("rules: [{name: a, limits: 5/minute, cost: {call: sise}}]", "rules[0].cost.call", "unknown function 'sise'"),
        (
            "rules: [{name: a, limits: 5/minute, cost: {call: graphq}}]",
            "rules[0].cost.call",
            "did you mean 'graphql'?",
        ),
        ("rules: [{name: a, limits: 5/minute, cost: {cal: x}}]", "rules[0].cost.cal", "did you mean 'call'"),
        ("rules: [{name: a, limits: {call: graphql}}]", "rules[0].limits", "need 'otherwise'"),
        ("rules: [{name: a, limits: 5/minute, candidate: unlimited}]", "rules[0].candidate", "reports nothing"),
        ("rules: [{name: a, limits: 5/minute, match: {}, by: []}]", "rules[0].by", "at least one"),
        ("rules: [{name: a, limits: 5/minute, by: [address, user]}]", "rules[0].by", "never reached"),
        ("rules: [{name: a, limits: 5/minute, by: agent}]", "rules[0].by", "address + agent"),
        ("rules: [{name: a, limits: 5/minute, by: prefix:200}]", "rules[0].by", "out of range"),
        ("rules: [{name: a, limits: 5/minute, by: user, stage: early}]", "rules[0].by", "before clients are"),
        ("rules: [{name: a, limits: 5/minute, match: {paths: []}}]", "rules[0].match", "every condition is empty"),
        ("rules: [{name: a, limits: 5/minute, match: {paths: x}}]", "rules[0].match.paths[0]", "must begin with '/'"),
        ("rules: [{name: a, limits: 5/minute, match: {tiers: pro}}]", "rules[0].match.tiers", "unknown tier 'pro'"),
        ("tiers: [a b]\nrules:\n" + RULE, "tiers", "cannot be a tier"),
        ("tiers: {pro: [5]}\nrules:\n" + RULE, "tiers.pro[0]", "expected an address"),
        ("default_tier: pro\ntiers: [basic]\nrules:\n" + RULE, "default_tier", "unknown tier"),
        ("storage: nowhere\nrules:\n" + RULE, "storage", "cannot open storage"),
        ("failure: shut\nrules:\n" + RULE, "failure", "expected one of"),
        ("switch: maybe\nrules:\n" + RULE, "switch", "expected one of"),
        ("ipv6: 500\nrules:\n" + RULE, "ipv6", "from 32 to 128"),
        ("headers: [nonsense]\nrules:\n" + RULE, "headers", "nonsense"),
        ("headers: {stiles: x}\nrules:\n" + RULE, "headers.stiles", "did you mean 'styles'"),
        ("rejection: {format: xml}\nrules:\n" + RULE, "rejection.format", "xml"),
        ("trusted: ['*']\nrules:\n" + RULE, "trusted", "*"),
        ("trusted: {hopps: 1}\nrules:\n" + RULE, "trusted.hopps", "did you mean 'hops'"),
        ("by: nobody\nrules:\n" + RULE, "by", "unknown identity"),
        ("identities: {api-key: {header: x-key}}\nrules:\n" + RULE, "identities.api-key", "one of verify, call"),
        ("identities: {api-key: {verify: find}}\nrules:\n" + RULE, "identities.api-key.verify", FUNCTIONS),
        ("identities: {address: {call: graphql}}\nrules:\n" + RULE, "identities.address", "built in"),
        ("identities: {team: {verify: graphql}}\nrules:\n" + RULE, "identities.team", "needs a header, a cookie"),
        ("identities: {tenant: {proxy: true}}\nrules:\n" + RULE, "identities.tenant", "no proxy is trusted"),
        ("allow: [nowhere]\nrules:\n" + RULE, "allow[0]", "cannot read the range 'nowhere'"),
        ("block: ['usr:5']\nrules:\n" + RULE, "block[0]", "did you mean 'user'"),
        ("block: ['address:5']\nrules:\n" + RULE, "block[0]", "does not identify a client"),
        ("exempt: [{methods: GET}]\nrules:\n" + RULE, "exempt[0]", "expected paths or addresses: any client can"),
        ("overrides: [{limits: 5/minute}]\nrules:\n" + RULE, "overrides[0]", "needs a client"),
        ("overrides: [{client: 'user:1'}]\nrules:\n" + RULE, "overrides[0]", "limits or a tier"),
        ("overrides: [{client: 'user:1', limits: 5/mi nute}]\nrules:\n" + RULE, "overrides[0].limits", "cannot read"),
        ("overrides: [{client: 'user:1', limits: deny, rules: b}]\nrules:\n" + RULE, "overrides[0].rules", "unknown"),
        ("rules: [{name: a, limits: 5/minute}]\nrules: []", "rules", "is given twice"),
        ("rules: [", "", "cannot read this as YAML"),
        ("rules: !!python/name:os.system", "rules", "cannot read"),
        ("? [a]\n: b", "", "a key must be a plain string"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_its_place(text: str, where: str, message: str) -> None:
    line, at, said = problem(text)
    assert (at, message in said) == (where, True), said
    assert line is not None or not text or not where


@pytest.mark.parametrize(
    "document",
    [
        lambda key: {key: 1, "rules": []},
        lambda key: {"rules": [{"name": "a", "limits": "1/day", key: 1}]},
        lambda key: {"identities": {key: key}, "rules": []},
    ],
)
def test_a_key_cannot_write_lines_of_its_own_into_a_log(document: Callable[[str], Any]) -> None:
    text = json.dumps(document("x\n2030-01-01T00:00:00Z INFO: all is well\x1b[2J\u202e"))
    with pytest.raises(PolicyError) as caught:
        read_policy(text, format="json")
    assert all(line.isprintable() for line in str(caught.value).split("\n"))
    assert not any(line.startswith("2030") for line in str(caught.value).split("\n"))


def test_a_rule_behind_a_final_one_that_takes_everything_is_refused() -> None:
    text = "rules:\n  - {name: a, limits: 5/minute, final: true, match: {paths: '/api/{p*}'}}\n  - name: b\n"
    rest = "    limits: 5/minute\n    match: {paths: /api/users, methods: GET}\n"
    assert problem(text + rest) == (
        3,
        "rules[1]",
        "never reached: the final rule 'a' before it matches the same requests; move this rule before it",
    )
    assert read_policy(text + rest.replace("/api/users", "/users"))


def test_a_tier_must_not_be_left_unlimited_by_oversight() -> None:
    text = "tiers: [free, pro]\nrules: [{name: a, limits: {free: 5/minute}}]"
    assert [where for _, where, _ in problems(text)] == ["rules[0].limits", "rules[0].limits"]
    assert problem("default_tier: free\n" + text)[2].startswith("tier 'pro' would be unlimited")
    assert read_policy("default_tier: free\n" + text.replace("5/minute}", "5/minute, default: 9/minute}"))


def test_a_broken_rule_does_not_make_others_look_broken() -> None:
    text = (
        "rules:\n  - {name: a, limits: 5/minut}\n  - {name: b, limits: 5/minute}\n"
        "  - {name: c, limits: 5/minute, by: x}\n"
        "overrides: [{client: 'user:1', limits: deny, rules: a}]"
    )
    assert [(line, where) for line, where, _ in problems(text)] == [(2, "rules[0].limits"), (4, "rules[2].by")]


JSON = """{
  "storage": "memory://",
  "rules": [
    {"name": "a", "limits": "5/minute"},
    {"name": "b",
     "limits": ["5/minute",
                "\\u0035/nothing"]}
  ]
}"""


def test_json_has_lines_too() -> None:
    line, where, said = problem(JSON, format="json")
    assert (line, where) == (7, "rules[1].limits[1]")
    assert "unknown unit 'nothing'" in said


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [('{"rules": [}', 1, "cannot read this as JSON"), ('{\n"rules": [],\n"rules": []}', 3, "given twice")],
)
def test_json_that_cannot_be_read(text: str, line: int, said: str) -> None:
    found = problem(text, format="json")
    assert (found[0], said in found[2]) == (line, True)


TOML = """\
storage = "memory://"
[trusted]
hops = 1
[[rules]]
name = "a"
limits = "5/minute"
[[rules]]
name = "b"
limits = "5/minute"
[rules.match]
paths = ["/a", "b"]
"""


def test_toml_has_lines_too() -> None:
    line, where, _ = problem(TOML, format="toml")
    assert (line, where) == (11, "rules[1].match.paths[1]")
    line, _, said = problem("rules = [\n", format="toml")
    assert "cannot read this as TOML" in said


def test_references_to_the_environment_are_filled_in() -> None:
    text = (
        "storage: ${STORE:-memory://}\nipv6: ${PREFIX}\nrules: [{name: a, limits: '${COUNT}/minute', message: '$$5'}]"
    )
    policy = read_policy(text, environ={"PREFIX": "56", "COUNT": "7"})
    assert (policy.storage, policy.ipv6, policy.rules[0].message) == ("memory://", 56, "$5")
    assert passes(gate_of(policy), request()) == 7


def test_a_reference_that_leads_nowhere_is_told() -> None:
    assert problem("rules: [{name: a, limits: 5/minute, message: '${NAME}'}]")[1:] == (
        "rules[0].message",
        "NAME is not set in the environment: set it, or write ${NAME:-default}",
    )
    assert "cannot read '${1}'" in problem("rules: [{name: a, limits: 5/minute, message: 'x ${1}'}]")[2]


def test_yaml_words_are_taken_as_they_are_written() -> None:
    text = (
        "headers: {jitter: 0.5}\nrules: [{name: a, limits: 5/minute, match: {headers: {x-v: 1.10, x-w: on, x-y: 007}}}]"
    )
    (rule,) = read_policy(text).rules
    assert rule.match.headers == {"x-v": "1.10", "x-w": "on", "x-y": "007"}


def test_yaml_may_share_parts() -> None:
    text = """
rules:
  - &base {name: a, limits: 5/minute, by: address, message: Slow down.}
  - {<<: *base, name: b}
  - {<<: [{final: true}, *base], name: c, message: No.}
"""
    rules = read_policy(text).rules
    assert [(rule.name, rule.by, rule.final, rule.message) for rule in rules] == [
        ("a", "address", False, "Slow down."),
        ("b", "address", False, "Slow down."),
        ("c", "address", True, "No."),
    ]
    assert "expects a mapping" in problem("rules: [{<<: 5, name: a, limits: 5/minute}]")[2]


def test_functions_are_handed_over_or_imported() -> None:
    text = "identities: {key: {header: x-key, verify: %s}}\nrules: [{name: a, limits: 5/minute, by: key}]"
    view = request(headers={"x-key": "ANN"})
    for name, functions in (("find", {"find": canonical_name}), ("ratebound.policy:canonical_name", None)):
        policy = read_policy(text % name, functions=functions)
        assert decide(gate_of(policy), view).identity == Identity("key", "ann")
    assert read_policy(text % "find", functions=ANY_FUNCTION)
    assert "cannot import 'no.such:thing': ModuleNotFoundError" in problem(text % "no.such:thing")[2]
    assert "is not a function" in problem(text % "math:pi")[2]


def test_a_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text("rules: [{name: a, limits: 5/minute}]")
    (tmp_path / "p.json").write_text('{"rules": [{"name": "a", "limits": "5/minute"}]}')
    (tmp_path / "p.toml").write_text('[[rules]]\nname = "a"\nlimits = "5/minute"\n')
    (tmp_path / "p.txt").write_text("")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("p.yml", "p.json", "p.toml"):
        assert load_policy(tmp_path / name).rules[0].name == "a"
    for name in ("p.txt", "none.yaml", "bytes.yaml"):
        with pytest.raises(PolicyError, match="cannot read the policy") as caught:
            load_policy(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


def test_python_objects_are_checked_alike() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(
            rules=[Rule("a", "5/minute", by="usr"), Rule("a", "5/minute")],
            tiers=["pro"],
            default_tier="prp",
            overrides=[Override("user:1", tier="gold")],
        )
    assert [problem.where for problem in caught.value.problems] == [
        "default_tier",
        "rules[0].by",
        "rules[1].name",
        "overrides[0].tier",
    ]
    with pytest.raises(PolicyError, match="expected a Rule"):
        Policy(rules=["5/minute"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="what a client sends must be verified"):
        Source(header="x-key")


def test_the_same_policy_as_objects() -> None:
    policy = Policy(rules=[Rule("a", [parse_limit("5/minute as quick"), "9/hour"], match=Match(methods=("GET",)))])
    same = read_policy("rules: [{name: a, limits: [5/minute as quick, 9/hour], match: {methods: GET}}]")
    assert policy.rules[0].plans == same.rules[0].plans
    assert [limit.name for limit in policy.rules[0].plans["default"]] == ["a/quick", "a/hour"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ("5/minute; 5/15 minutes", ["a/minute", "a/15-minutes"]),
        ("5/minute; 5/minute burst 9", ["a/minute", "a/minute-token-bucket"]),
    ],
)
def test_limits_are_named_for_their_rule(limits: str, names: list[str]) -> None:
    plan = Rule("a", limits).plans["default"]
    assert [limit.name for limit in plan] == names  # type: ignore[union-attr]


def test_limits_of_one_name_are_refused_not_dropped() -> None:
    with pytest.raises(PolicyError, match="have the same name"):
        Rule("a", "5/minute as x; 6/hour as x; 7/day as x")


def test_the_schema_knows_exactly_the_keys_that_are_read() -> None:
    """Every key that the schema offers is taken by the loader, and reaches the object that it is for."""
    assert KEYS["rule"] == {name for name in Rule.__dataclass_fields__ if Rule.__dataclass_fields__[name].init}
    assert KEYS["match"] == {name for name in Match.__dataclass_fields__ if Match.__dataclass_fields__[name].init}
    assert KEYS["identity"] == {name for name in Source.__dataclass_fields__ if Source.__dataclass_fields__[name].init}
    assert KEYS["override"] == set(Override.__dataclass_fields__)
    taken = {name for name in Policy.__dataclass_fields__ if Policy.__dataclass_fields__[name].init}
    assert KEYS["policy"] == taken | {"$schema"}


def test_the_options_of_headers_refusals_and_proxies_are_those_of_their_makers() -> None:
    import inspect

    from ratebound.http.client_ip import Proxies
    from ratebound.http.headers import Headers
    from ratebound.http.rejection import RejectionFormat

    assert KEYS["headers"] == inspect.signature(Headers).parameters.keys()
    assert KEYS["rejection"] == inspect.signature(RejectionFormat).parameters.keys() - {"headers"}
    assert KEYS["trusted"] == inspect.signature(Proxies).parameters.keys() - {"trusted"} | {"proxies"}


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    import jsonschema

    schema = json.loads(SCHEMA_PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    trees: list[Any] = [{"rulez": []}, {"rules": [{"name": "a b", "limits": "5/minute"}]}, {"rules": [{"name": "a"}]}]
    for tree in trees:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tree, schema)
        with pytest.raises(PolicyError):
            read_policy(json.dumps(tree), format="json")


def test_without_pyyaml_json_works_and_yaml_says_what_to_install() -> None:
    code = """
import sys
sys.modules["yaml"] = None
from ratebound.policy import read_policy
assert read_policy('{"rules": [{"name": "a", "limits": "5/minute"}]}', format="json")
try:
    read_policy("rules: []")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ratebound[policy]" in done.stdout


def test_an_alias_bomb_is_refused_in_time() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
    assert "nested too deep, or too large" in problem(bomb)[2]


@pytest.mark.parametrize("make", [lambda: Gate({}), lambda: WebGate({}), lambda: read_policy({})])
def test_an_empty_policy_says_what_it_lacks(make: Callable[[], Any]) -> None:
    with pytest.raises(PolicyError, match="^the policy is empty: add 'rules'$"):
        make()


@pytest.mark.parametrize("trusted", ["['*']", "['10.0.0.1/8']", "{proxies: ['10.0.0.1/8']}", "x"])
def test_a_problem_does_not_repeat_the_name_of_its_place(trusted: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy(f"trusted: {trusted}\nrules: [{{name: a, limits: 5/minute}}]")
    (problem,) = raised.value.problems
    assert problem.where.startswith("trusted")
    assert not problem.message.startswith("trusted: ")


def test_an_unknown_identity_is_told_every_name_once_and_kinds_too() -> None:
    text = "identities: {api-key: {verify: find, kinds: [customer]}}\nrules: [{name: a, by: zzz, limits: 5/minute}]"
    with pytest.raises(PolicyError) as raised:
        read_policy(text, functions={"find": str})
    said = str(raised.value).partition("expected one of ")[2].split(", ")
    assert sorted(set(said)) == said
    assert {"customer", "api-key", "user"} <= {*said}
