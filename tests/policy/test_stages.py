"""A request is asked of the early rules once, and before all others, whoever asks and however."""

import asyncio
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.events import Decided
from ratebound.policy import AsyncGate, Gate, Identity, Match, Policy, RequestView, Rule, Verdict
from ratebound.policy.model.rule import Stage
from ratebound.policy.runtime.verdict import Judged
from ratebound.testing import FakeClock
from tests.policy.gates import example_gate, gate_of, request

LOGIN = Rule("login", "2/minute", match=Match(paths=("/login",)), stage="early")
ALL = Rule("all", "5/minute", by="user")


def remaining(verdict: Verdict | None) -> int:
    assert verdict is not None
    assert verdict.decision is not None
    return verdict.decision.remaining


def test_the_plain_call_asks_early_rules_first() -> None:
    gate = gate_of(Policy(rules=[ALL, LOGIN]))
    verdicts = [gate.decide(request("/login", user="ann")) for _ in range(4)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, False, False]
    assert [verdict.stage for verdict in verdicts] == ["late", "late", "early", "early"]
    assert verdicts[2].rule is LOGIN
    assert remaining(gate.decide(request(user="ann"))) == 2, "what the early stage refuses, the late one is not asked"


def test_the_documented_call_limits_the_login_of_the_example() -> None:
    gate = example_gate("endpoints.yaml")
    assert sum(bool(gate.decide(request("/auth/login", "POST"))) for _ in range(100)) == 5


def test_an_async_gate_asks_early_rules_first() -> None:
    async def run() -> list[bool]:
        async with AsyncGate(Policy(rules=[ALL, LOGIN]), storage=MemoryStorage(clock=FakeClock())) as gate:
            view = request("/login", user="bob")
            assert (await gate.decide(view, "early")).decision.remaining == 1  # type: ignore[union-attr]
            assert (await gate.decide(view)).earlier is None
            return [bool(await gate.decide(request("/login", user="ann"))) for _ in range(4)]

    assert asyncio.run(run()) == [True, False, False, False]


def test_what_the_early_stage_said_is_kept() -> None:
    gate = gate_of(Policy(rules=[LOGIN]))
    verdict = gate.decide(request("/login"))
    assert (verdict.kind, verdict.stage) == ("unmatched", "late")
    assert remaining(verdict.earlier) == 1
    assert gate_of(Policy(rules=[ALL])).decide(request("/login")).earlier is None


@pytest.mark.parametrize("last", [("late",), ()])
def test_one_who_asks_both_stages_is_charged_once_for_each(last: tuple[Stage, ...]) -> None:
    gate = gate_of(Policy(rules=[ALL, LOGIN]))
    view = request("/login")
    assert remaining(gate.decide(view, "early")) == 1
    view.user = "ann"
    verdict = gate.decide(view, *last)
    assert (verdict.stage, verdict.identity, verdict.earlier) == ("late", Identity("user", "ann"), None)
    assert remaining(gate.decide(request("/login"), "early")) == 0


def test_the_late_stage_by_itself_asks_late_rules_only() -> None:
    """An adapter may have asked the early ones with another view, or by another gate over the same rules."""
    gate = gate_of(Policy(rules=[ALL, LOGIN]))
    assert [bool(gate.decide(request("/login"), "late")) for _ in range(6)] == [True] * 5 + [False]


def test_a_view_that_is_asked_again_is_counted_again() -> None:
    gate = gate_of(Policy(rules=[LOGIN, Rule("all", "50/minute")]))
    view = request("/login")
    assert [bool(gate.decide(view)) for _ in range(5)] == [True, True, False, False, False]
    view = request("/login", peer="192.0.2.2")
    for _ in range(2):
        assert gate.decide(view, "early")
    assert not gate.decide(view, "early")
    assert not gate.decide(view), "a rejection is not a pass"


def test_what_passed_another_gate_has_not_passed_this_one() -> None:
    other, gate = gate_of(Policy(rules=[LOGIN])), gate_of(Policy(rules=[LOGIN]))
    view = request("/login")
    assert other.decide(view, "early")
    assert remaining(gate.decide(view).earlier) == 1
    assert other.decide(view, "early")
    gate.switch = "off"
    assert gate.decide(view, "early").kind == "off"
    gate.switch = None
    assert remaining(gate.decide(view).earlier) == 0


def test_listeners_hear_of_both_stages() -> None:
    heard: list[Any] = []
    gate = gate_of(Policy(rules=[ALL, LOGIN]), listeners=[heard.append])
    gate.decide(request("/login"))
    assert [type(event) for event in heard] == [Decided, Judged, Decided, Judged]
    assert [event.verdict.stage for event in heard if isinstance(event, Judged)] == ["early", "late"]


def test_lists_and_exemptions_hold_in_both_stages() -> None:
    gate = gate_of(
        Policy(rules=[LOGIN, ALL], block=["192.0.2.66"], exempt=[Match(paths=("/health",))], allow=["user:ann"])
    )
    assert gate.decide(request("/", peer="192.0.2.66")).stage == "early"
    assert gate.decide(request("/health")).kind == "exempt"
    assert gate.decide(request("/", user="ann")).kind == "allow"


def test_a_stage_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a stage is 'early' or 'late', not 'later'"):
        Gate(Policy(rules=[LOGIN])).decide(RequestView("GET", "/"), "later")  # type: ignore[arg-type]
