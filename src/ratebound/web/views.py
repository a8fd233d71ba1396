"""What adapters of frameworks with views share: names of views, and refusals in the application's own words."""

from collections.abc import Callable, Iterable
from typing import Any

from ratebound.policy import Policy, Rule
from ratebound.web.answer import Refused
from ratebound.web.declared import Endpoint, short_name


def full_name(view: Callable[..., Any] | type) -> str:
    """Module and name in full: two applications may each have a `views.login`."""
    named: Any = view if hasattr(view, "__qualname__") else getattr(view, "func", type(view))
    return f"{named.__module__}.{named.__qualname__.rpartition('<locals>.')[2]}"


def dotted_name(view: Callable[..., Any] | type) -> str:
    return short_name(full_name(view))


def method_name(name: str, method: str) -> str:
    """A quota for each method; a HEAD is a GET."""
    return short_name(f"{name}:{'GET' if method == 'HEAD' else method}")


class Facts:
    """What adapters ask about a policy for each request, found out once.

    `functions` says whether functions of declared limits are given the RequestView, and so may look at its user.
    """

    __slots__ = ("_endpoints", "_for_user", "_functions", "has_early", "has_paths", "policy")

    def __init__(self, policy: Policy, *, functions: bool) -> None:
        self.policy = policy
        self.has_early = any(rule.stage == "early" for rule in policy.rules)
        self.has_paths = bool(policy.exempt) or any(rule.match.paths for rule in policy.rules)
        self._functions = functions
        lists = (policy.tier_names, policy.allow, policy.block, policy.overrides, policy.identities)
        late = [rule for rule in policy.rules if rule.stage == "late"]
        self._for_user = any(lists) or any(self._looks(rule, functions=True) for rule in late)
        self._endpoints: dict[Endpoint, bool] = {}

    def wants_user(self, endpoint: Endpoint | None) -> bool:
        """Whether any rule may count by the user, or look at a tier or a list: else nobody needs to be looked up."""
        if self._for_user or endpoint is None:
            return self._for_user
        wants = self._endpoints.get(endpoint)
        if wants is None:
            wants = any(self._looks(rule, functions=self._functions) for rule in endpoint.rules)
            self._endpoints[endpoint] = wants
        return wants

    def _looks(self, rule: Rule, *, functions: bool) -> bool:
        by = self.policy.by if rule.by is None else rule.by
        listed = [by] if isinstance(by, str) or not isinstance(by, Iterable) else by
        if functions and any(callable(one) for one in (*listed, rule.cost, rule.computed and rule.computed.function)):
            return True
        return any("user" in {name.strip() for name in one.split("+")} for one in listed if isinstance(one, str))


def body_type(refused: Refused) -> str:
    """Return the Content-Type of our own body. All other fields are added where the response leaves."""
    return next(value for name, value in refused.headers if name == "Content-Type")


def description(refused: Refused) -> str:
    """Why, in a sentence for the client: the limit's own message, if it has one."""
    verdict = refused.verdict
    if verdict.decision is None:
        return verdict.message or "This request is not allowed."
    return verdict.policy.rejection.refusal(verdict.decision, verdict.message or None).detail
