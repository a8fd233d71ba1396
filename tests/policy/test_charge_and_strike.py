"""`charge` and `strike` of a rule: what they may be, in code and in a file, and what they decide."""

from typing import Any

import pytest

from ratebound.limit import MAX_COUNT
from ratebound.policy import Policy, PolicyError, Rule, read_policy
from ratebound.policy.lint.checks import advise
from ratebound.policy.model.charge_by_result import FinishedResponse, read_charge, read_strike, told_cost

PENALTY = "100/minute; 3 strikes/hour block 5 minutes"


def cost(charge: Any, status: int = 200, sent: int = 0, before: int = 1, told: int | None = None) -> int:
    found = read_charge(charge)
    assert found is not None
    assert found.cost is not None
    return found.cost(FinishedResponse(status, sent, before, status >= 400, told))


@pytest.mark.parametrize(
    ("charge", "charged"),
    [
        ("failure", [400, 401, 404, 499, 500, 599]),
        ("success", [101, 200, 304, 399]),
        ({"status": 401}, [401]),
        ({"status": "401"}, [401]),
        ({"status": [401, 404]}, [401, 404]),
        ({"status": "5xx"}, [500, 599]),
        ({"status": ["4XX", 200]}, [400, 401, 404, 499, 200]),
        ({"status": "400 - 404"}, [400, 401, 404]),
        ({"status": range(400, 402)}, [400, 401]),
    ],
    ids=str,
)
def test_statuses(charge: Any, charged: list[int]) -> None:
    looked_at = {101, 200, 304, 399, 400, 401, 404, 499, 500, 599}
    assert {status for status in looked_at if cost(charge, status, before=3)} == set(charged)
    assert {cost(charge, status, before=3) for status in looked_at} == {0, 3}


@pytest.mark.parametrize(
    ("charge", "costs"),
    [
        ("bytes", [2, 2, 3, 1000, 1001]),
        ({"bytes": 1}, [2, 2, 3, 1000, 1001]),
        ({"bytes": "1 KB"}, [2, 2, 2, 2, 2]),
        ({"bytes": "500 b"}, [2, 2, 2, 2, 3]),
        ({"bytes": "10 B"}, [2, 2, 2, 100, 101]),
    ],
    ids=str,
)
def test_bytes_are_rounded_up_and_cost_at_least_what_was_charged_before(charge: Any, costs: list[int]) -> None:
    assert [cost(charge, sent=sent, before=2) for sent in (0, 2, 3, 1000, 1001)] == costs


@pytest.mark.parametrize(("unit", "size"), [("1 KB", 1000), ("1KiB", 1024), ("2 MB", 2_000_000), ("1 GiB", 1024**3)])
def test_units_of_bytes(unit: str, size: int) -> None:
    assert [cost({"bytes": unit}, sent=3 * size + more) for more in (0, 1)] == [3, 4]


def test_a_header_tells_the_cost_or_keeps_the_charge() -> None:
    found = read_charge({"header": "X-Cost"})
    assert found is not None
    assert found.header == "x-cost"
    assert [cost({"header": "x-cost"}, before=3, told=told) for told in (None, 0, 7)] == [3, 0, 7]


@pytest.mark.parametrize(
    ("values", "told"),
    [([], None), ([" 7 "], 7), (["0"], 0), (["00" * 40 + "5"], 5), (["9" * 5000], MAX_COUNT), (["7", "7"], None)]
    + [([text], None) for text in ("", "-1", "1.5", "+7", "0x7", "seven", "²", "٣", "7, 7", "7;q=1")],
)
def test_what_a_header_tells(values: list[str], told: int | None) -> None:
    assert told_cost(values, "x-cost") == told


@pytest.mark.parametrize(
    ("charge", "said"),
    [
        ("sometimes", "expected 'failure', 'success', 'bytes'"),
        (5, "expected 'failure', 'success', 'bytes'"),
        (True, "expected 'failure', 'success', 'bytes'"),
        ("faliure", "unknown charge 'faliure': did you mean 'failure'?"),
        ("byte", "unknown charge 'byte': did you mean 'bytes'?"),
        ("header", "not 'header'"),
        ({}, "expected one of the keys status, bytes, header"),
        ({"status": [401], "bytes": 1}, "expected one of the keys status, bytes, header"),
        ({"statuses": [401]}, "unknown key 'statuses': did you mean 'status'?"),
        ({"status": []}, "expected at least one status"),
        ({"status": True}, "expected statuses like 401, '5xx' or '400-499', not True"),
        ({"status": [99]}, "not 99"),
        ({"status": [600]}, "not 600"),
        ({"status": "6xx"}, "not '6xx'"),
        ({"status": "404-400"}, "not '404-400'"),
        ({"status": None}, "not None"),
        ({"bytes": 0}, "expected the size of a unit"),
        ({"bytes": "0 KB"}, "expected the size of a unit"),
        ({"bytes": "many"}, "expected the size of a unit"),
        ({"bytes": 1.5}, "expected the size of a unit"),
        ({"header": "x cost"}, "expected the name of a response header"),
        ({"header": ["x-cost"]}, "expected the name of a response header"),
        ({"header": "Content-Length"}, "content-length would be taken off the response"),
    ],
    ids=str,
)
def test_a_wrong_charge_raises_at_construction_and_says_what_to_write(charge: Any, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Rule("login", "5/minute", charge=charge)
    assert [problem.place for problem in caught.value.problems] == [("charge",)]
    assert said in str(caught.value)


def test_a_function_of_other_arguments_is_no_charge_and_none_is_a_strike() -> None:
    with pytest.raises(PolicyError, match="is called with one argument, the FinishedResponse"):
        Rule("login", "5/minute", charge=lambda: 1)
    with pytest.raises(PolicyError, match="expected 'failure' or"):
        Rule("login", PENALTY, strike=lambda response: True)


def test_an_async_function_is_no_charge() -> None:
    async def charge(response: FinishedResponse) -> int:
        return 1

    with pytest.raises(PolicyError, match="cannot be awaited"):
        Rule("login", "5/minute", charge=charge)


def test_a_misspelt_strike_names_what_was_meant() -> None:
    with pytest.raises(PolicyError, match="strike: unknown strike 'faliure': did you mean 'failure'"):
        Rule("login", PENALTY, strike="faliure")


@pytest.mark.parametrize("strike", ["success", "bytes", 401, {"header": "x"}, {}], ids=str)
def test_a_wrong_strike_raises(strike: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Rule("login", PENALTY, strike=strike)
    assert [problem.place for problem in caught.value.problems] == [("strike",)]


def test_which_results_are_strikes() -> None:
    by_failure, by_status = read_strike("failure"), read_strike({"status": [401]})
    assert by_failure is not None
    assert by_status is not None
    responses = [FinishedResponse(200, 0, 1), FinishedResponse(200, 0, 1, True), FinishedResponse(401, 0, 1, False)]
    assert [by_failure(one) for one in responses] == [False, True, False]
    assert [by_status(one) for one in responses] == [False, False, True]


def test_a_strike_needs_a_penalty() -> None:
    with pytest.raises(PolicyError, match="it is for penalties, and this rule has none: leave it out, or name one"):
        Rule("login", "5/minute", strike="failure")
    Rule("login", {"free": PENALTY, "pro": "5/minute"}, strike="failure")


FILE = """
rules:
  - {name: a, limits: 5/minute, charge: failure}
  - {name: b, limits: 5/minute, charge: {status: [401, 5xx, 410-412]}}
  - {name: c, limits: 100000000/day, charge: {bytes: 1 KB}}
  - {name: d, limits: 5/minute, charge: {header: x-cost}}
  - {name: e, limits: 5/minute, charge: {call: price}}
  - name: f
    limits: 100/minute; 3 strikes/hour block 5 minutes
    strike: {status: 401}
"""


def test_a_file_has_all_of_them() -> None:
    policy = read_policy(FILE, functions={"price": lambda response: 42})
    costs = []
    for rule in policy.rules[:-1]:
        assert rule.by_result is not None
        assert rule.by_result.cost is not None
        costs.append(rule.by_result.cost(FinishedResponse(411, 2500, 1, True, 7)))
    assert costs == [1, 1, 3, 7, 42]
    last = policy.rules[-1].by_result
    assert last is not None
    assert last.cost is None
    assert last.strikes is not None


def test_every_error_of_a_file_has_its_line_and_none_only_follows_from_another() -> None:
    text = """
rules:
  - {name: a, limits: 5/minute, charge: failures}
  - {name: b, limits: nonsense, strike: failure}
  - {name: c, limits: 5/minute, strike: failure}
"""
    with pytest.raises(PolicyError) as caught:
        read_policy(text)
    found = [(problem.line, problem.place[2:]) for problem in caught.value.problems]
    assert found == [(3, ("charge",)), (4, ("limits",)), (5, ("strike",))]


def test_a_rule_that_is_charged_by_result_is_not_redundant() -> None:
    strict = Rule("requests", "10/hour", by="address")
    for charge, count in (("bytes", 0), (None, 1)):
        policy = Policy(rules=[strict, Rule("weak", "200/hour", by="address", charge=charge)])
        assert len([one for one in advise(policy) if one.place[:2] == ("rules", 1)]) == count, charge
