"""Limits of a policy that its storage does not keep: a policy with such a limit is refused like any other mistake."""

from collections.abc import Iterable, Iterator, Sequence

from ratebound.limit import Limit
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Plan
from ratebound.policy.problem import Place, PolicyError, Problem
from ratebound.policy.runtime.compiled_rules import CompiledRule
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.storage import Refusals


class KeptLimits:
    """A check of policies against one storage. `refusals` tells why the storage does not keep a limit, if it does not.

    None means that it keeps all limits.
    """

    __slots__ = ("__weakref__", "refusals")

    def __init__(self, refusals: Refusals | None = None) -> None:
        self.refusals = refusals

    def check(self, compiled: CompiledPolicy) -> None:
        """Raise PolicyError with all limits of a policy that the storage does not keep."""
        if self.refusals is None:
            return
        found = [
            Problem(place, f"{limit.text!r} cannot be counted in this storage. {reason}")
            for place, limit in _limits(compiled.policy, compiled.rules)
            if (reason := self.refusals(limit))
        ]
        if found:
            raise PolicyError(dict.fromkeys(found))

    def problem_of(self, plan: Plan) -> str:
        """Return why the storage does not keep the limits of a plan; "" if it does."""
        if self.refusals is None or isinstance(plan, str):
            return ""
        return "; ".join(filter(None, map(self.refusals, plan)))


def _limits(policy: Policy, rules: Sequence[CompiledRule]) -> Iterator[tuple[Place, Limit]]:
    """Yield all limits that are known before a request comes, and their places."""
    for place, compiled in enumerate(rules):
        for name, plans in (("limits", compiled.plans), ("candidate", compiled.candidates)):
            for limit in _in_plans(plans.values()):
                yield ("rules", place, "penalty" if limit.is_penalty and compiled.penalty else name), limit
    for place, one in enumerate(policy.descriptors):
        for limit in _in_plans((one.plan,)):
            yield ("descriptors", place, "limits"), limit
    for place, override in enumerate(policy.overrides):
        for compiled in rules if override.limits is not None else ():
            if not override.rules or compiled.rule.name in override.rules:
                for limit in _in_plans((compiled.rule.plan(override.limits, compiled.counter_windows),)):
                    yield ("overrides", place, "limits"), limit


def _in_plans(plans: Iterable[Plan]) -> Iterator[Limit]:
    for plan in plans:
        if not isinstance(plan, str):
            yield from plan
