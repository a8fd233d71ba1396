"""Fields of a decision that programs read most are slots in both builds, and cannot be used to change a decision."""

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest

import ratebound
from ratebound import Decision, Limiter
from ratebound.decision import OneLimitDecision

needs_compiled = pytest.mark.skipif(not ratebound.compiled, reason="properties of the pure build are Python's own")


def test_allowed_is_read_as_a_slot() -> None:
    assert isinstance(vars(Decision)["allowed"], types.MemberDescriptorType)


@needs_compiled
@pytest.mark.parametrize("name", ["limit", "retry_after"])
def test_properties_of_one_limit_are_read_as_slots(name: str) -> None:
    assert isinstance(vars(OneLimitDecision)[name], types.MemberDescriptorType)


@pytest.mark.parametrize("name", ["limit", "retry_after", "remaining", "reset_after"])
def test_properties_cannot_be_set_or_deleted(name: str) -> None:
    decision: Any = Limiter("1/minute").hit("key")
    with pytest.raises(AttributeError):
        setattr(decision, name, 1)
    with pytest.raises(AttributeError):
        delattr(decision, name)


@pytest.mark.parametrize("limits", ["1/minute", "1/minute; 5/hour"])
@pytest.mark.parametrize("use", [bool, repr, copy.copy])
def test_a_decision_without_allowed_raises_and_does_not_crash(limits: str, use: Callable[[Any], Any]) -> None:
    decision: Any = Limiter(limits).hit("key")
    del decision.allowed
    with pytest.raises(AttributeError, match="allowed"):
        use(decision)
    decision.allowed = True
    assert decision


@pytest.mark.parametrize("limits", ["1/minute", "1/minute; 5/hour"])
def test_allowed_is_true_or_false_itself(limits: str) -> None:
    limiter = Limiter(limits)
    assert [limiter.hit("key").allowed for _ in range(2)] == [True, False]
    assert type(limiter.hit("key").allowed) is bool
    assert type(limiter.peek("other").allowed) is bool


def test_hit_takes_its_cost_by_keyword_only() -> None:
    hit: Any = Limiter("5/minute").hit
    with pytest.raises(TypeError, match="positional"):
        hit("key", 2)
    with pytest.raises(TypeError):
        hit()
    assert hit("key", cost=2).remaining == 3
    assert hit(key="key").remaining == 2
