"""Limits of an endpoint, given by decorator or dependency: noted on its function, checked with the policy's own.

Nothing is wrapped: an adapter looks at the function that its router has found. A mistake raises here, at import, and
never leaves an endpoint without its limit.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ratebound.arguments import SliceOption
from ratebound.limit import Failure
from ratebound.policy import Computed, Match, Policy, RequestView, Rule
from ratebound.policy.functions import check_takes, is_awaitable
from ratebound.policy.identity.identify import check_by
from ratebound.policy.match.request_value import part_of
from ratebound.policy.model.charge_by_result import Charge, Strike, read_charge
from ratebound.policy.model.rule import EXEMPT, Mode, Priority
from ratebound.policy.problem import PolicyError, Problem, shown
from ratebound.policy.runtime.possible_rejections import can_be_spared
from ratebound.web.functions import taking_request
from ratebound.web.options import Limits, check_limit_options
from ratebound.web.rule_names import MARK, numbered

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS = ("limits", "key", "cost", "exempt_when", "distinct")  # options that may have functions of the request

SOURCE = re.compile(r"'distinct: \{([^}:]*): ([^}]*)\}' in rule '[^']*'")


@contextmanager
def told_as_options() -> Iterator[None]:
    """Turn the problems of the first rule, which was made from a limit of an endpoint, into those of its options."""
    try:
        yield
    except PolicyError as error:
        raise PolicyError([_as_option(problem) for problem in error.problems], error.file) from None


def _as_option(problem: Problem) -> Problem:
    place = problem.place[2:] if problem.place[:2] == ("rules", 0) else problem.place
    if place[:1] == ("by",):
        place = ("key", *place[1:])
    message = problem.message.replace("'by: address'", "key='address'").replace(
        "a function in 'by'", "a function as key"
    )
    return Problem(place, SOURCE.sub(r"distinct={'\1': '\2'}", message), problem.line)


@dataclass(frozen=True, eq=False, kw_only=True)
class RouteLimit:
    """A limit of an endpoint. Checked at construction.

    Limits of one `name` share one quota, wherever they stand; without a name each endpoint has its own. Functions take
    the RequestView, or nothing.

    Args:
        limits: Text, limits, limits by tier, or a function of the request.
        key: The identity that shares a quota, as `by` of a Rule: a name, a function of the request, or several. None
            means the policy's `by`.
        cost: The units that a request costs, or a function of the request that returns them.
        name: The name of a quota that several endpoints share. Empty means a quota of its own.
        charge: What a request costs once its result is known, as in a Rule.
        strike: The results that are strikes of a penalty, as in a Rule.
        methods: The methods that are limited. Empty means all.
        exempt_when: A function of the request that returns True if nothing is counted.
        otherwise: The limits if a function returns None or raises. Limits from a function need them.
        message: The text of rejections. Empty means the policy's.
        mode: `"shadow"` for a rule that is evaluated and reported, and never denies.
        failure: What is decided while the storage is out of reach: `"local"`, `"open"`, `"closed"` or `"raise"`. Empty
            means the policy's.
        warn: The share of a limit, like 0.8 or `"80%"`, at which listeners receive `Warned`. None means never.
        priority: For a policy with `adaptive`: limits with a low priority are lowered first.
        keep_defaults: True if the policy's default rules apply, too. Else this limit replaces them.
        on_breach: A function of the rejection. It may return the response.
        distinct: Where the values of limits of distinct values come from, as in a Rule.
        penalty: The name of an entry of the policy's `penalties`.
        slice: Lets each process take a part of every limit from a shared storage at once: True, a share like `"5%"`, or
            a mapping of `share` and `for`. A limit that has a slice of its own keeps it.
        deny_cache: True lets a process repeat a denial for up to a second without asking the storage.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        ValueError: Options do not go together.
        TypeError: A function takes other arguments.

    Examples:
        >>> from ratebound.web import Endpoint, RouteLimit
        >>> limit = RouteLimit(limits="5/minute", key="address", message="Too many reports.")
        >>> endpoint = Endpoint("reports", [limit])
    """

    limits: Any
    key: Any = None
    cost: Any = 1
    name: str = ""
    charge: Charge | None = None
    strike: Strike | None = None
    methods: str | Sequence[str] = ()
    exempt_when: Callable[[RequestView], Any] | None = None
    otherwise: Limits | None = None
    message: str = ""
    mode: Mode = "enforce"
    failure: Failure | Literal[""] = ""
    warn: float | str | None = None
    priority: Priority = "normal"
    keep_defaults: bool = False
    on_breach: Callable[..., Any] | None = None
    distinct: Mapping[str, Any] | None = None
    penalty: str = ""
    slice: SliceOption | None = None
    deny_cache: bool = False

    def __post_init__(self) -> None:
        read_charge(self.charge)  # so that a function that takes other arguments is a TypeError here, as elsewhere
        if isinstance(self.limits, Computed):
            object.__setattr__(self, "otherwise", self.limits.otherwise)
            object.__setattr__(self, "limits", self.limits.function)
        if callable(self.limits) and self.otherwise is None:
            raise ValueError(
                "limits from a function need a fallback for when it fails: limit(function, otherwise='10/minute');"
                " without a function, give the limits as text: limit('5/minute')"
            )
        for name in FUNCTIONS:
            object.__setattr__(self, name, taking_request(getattr(self, name), name))
        for name in ("exempt_when", "on_breach"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ValueError(f"{name} must be a function, not {getattr(self, name)!r}")
        if self.key is not None:
            try:
                check_by(self.key)
            except ValueError as error:
                raise ValueError(f"key={shown(self.key)}: {error}") from None
        with told_as_options():
            self.rule(self.name or "endpoint")

    def rule(self, name: str) -> Rule:
        """Return this limit as a rule.

        Args:
            name: The name for a limit that has none of its own.
        """
        limits = self.limits
        if callable(limits):
            limits = Computed(_limits_unless_exempt(self.exempt_when, limits), self.otherwise)
        elif self.exempt_when is not None:
            limits = Computed(_limits_unless_exempt(self.exempt_when, None), limits)
        return Rule(
            self.name or name,
            limits,
            match=Match(methods=self.methods),
            by=self.key,
            cost=self.cost,
            mode=self.mode,
            failure=self.failure,
            message=self.message,
            warn=self.warn,
            priority=self.priority,
            charge=self.charge,
            strike=self.strike,
            distinct=self.distinct,
            penalty=self.penalty,
            slice=self.slice,
            deny_cache=self.deny_cache,
        )

    @property
    def needs_result(self) -> bool:
        """True if the result of a request decides about its cost or is a strike."""
        return self.charge is not None or self.strike is not None

    @property
    def functions(self) -> list[Any]:
        """The values of all options that may be functions of the request."""
        keys = self.key if isinstance(self.key, list | tuple) else (self.key,)
        return [self.limits, self.cost, self.exempt_when, *keys, *(self.distinct or {}).values()]

    @property
    def reads_body(self) -> bool:
        """True if a field of the body is counted, or one of the functions declares that it reads the body."""
        return any(getattr(one, "reads_body", False) or _names_body(one) for one in self.functions)

    def agrees_with(self, other: "RouteLimit") -> bool:
        """Return True if two limits are equal, or are looked up for each request.

        Args:
            other: Another limit.
        """
        given = self.limits, other.limits
        return bool(given[0] == given[1]) or any(getattr(one, "is_looked_up", False) for one in given)

    def shares_quota(self, other: "RouteLimit") -> bool:
        """Return True if two limits are one quota: the same limit, or two of one name that agree.

        Args:
            other: Another limit.
        """
        return self is other or (bool(self.name) and self.name == other.name and self.agrees_with(other))


def _names_body(given: Any) -> bool:
    return isinstance(given, str) and any(part_of(name.strip()) == "body" for name in given.split("+"))


def route_limit(
    limits: Any, options: Mapping[str, Any], breach_takes: Sequence[str] = ("the rejection",)
) -> RouteLimit:
    """Return a limit, from the arguments of a decorator. `breach_takes` describes the arguments of `on_breach`."""
    check_limit_options(options)
    return checked_breach(RouteLimit(limits=limits, **options), breach_takes)


def checked_breach(limit: RouteLimit, breach_takes: Sequence[str] = ("the rejection",)) -> RouteLimit:
    """Return the limit. Raises TypeError if its `on_breach` takes other arguments."""
    if limit.on_breach is not None:
        check_takes(limit.on_breach, *breach_takes, option="on_breach")
    return limit


def _limits_unless_exempt(
    exempt_when: Callable[[RequestView], Any] | None, limits: Callable[[RequestView], Any] | None
) -> Callable[[RequestView], Any]:
    """Return a function that returns EXEMPT for exempt requests, else what `limits` returns, else None: the limits
    as written."""
    if exempt_when is None:
        assert limits is not None
        return limits

    async def awaited(answer: Awaitable[Any], request: RequestView) -> Any:
        if await answer:
            return EXEMPT
        value = limits(request) if limits is not None else None
        return await value if is_awaitable(value) else value

    def found(request: RequestView) -> Any:
        exempt = exempt_when(request)
        if is_awaitable(exempt):
            return awaited(exempt, request)
        return EXEMPT if exempt else limits(request) if limits is not None else None

    found.reads_body = any(getattr(one, "reads_body", False) for one in (exempt_when, limits))  # type: ignore[attr-defined]
    return found


class Endpoint:
    """The limits of one endpoint, and a rule for each. Gates know it by identity: make it once.

    Args:
        name: The name of the endpoint, which its rules have.
        limits: The limits. Each quota counts once.
        exempt: True if only early rules of the policy apply.
        spared_path: The path of a page that is exempt by default: only if no rule of the policy is meant for it.

    Examples:
        >>> from ratebound.policy import RequestView
        >>> from ratebound.web import Endpoint, RouteLimit, WebGate
        >>> endpoint = Endpoint("reports", [RouteLimit(limits="5/minute")])
        >>> passed = WebGate().before(RequestView("GET", "/reports", peer="203.0.113.7"), endpoint)
        >>> passed.decision.remaining
        4
    """

    __slots__ = ("exempt", "keep_defaults", "limits", "name", "rules", "spared_path")

    def __init__(
        self, name: str, limits: Sequence[RouteLimit], *, exempt: bool = False, spared_path: str | None = None
    ) -> None:
        self.name = name
        self.spared_path = spared_path
        self.limits = limits = _once(limits)
        self.exempt = exempt
        self.keep_defaults = any(limit.keep_defaults for limit in limits)
        self.rules = tuple(limit.rule(numbered(name, index)) for index, limit in enumerate(limits))

    def is_exempt_under(self, policy: Policy) -> bool:
        """Return True if only the early rules of this policy apply to the endpoint.

        Args:
            policy: The policy in force.
        """
        return self.exempt or (self.spared_path is not None and can_be_spared(policy, self.spared_path))

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {', '.join(rule.name for rule in self.rules)})"


def _once(limits: Sequence[RouteLimit]) -> tuple[RouteLimit, ...]:
    """Return each quota once: a group and one of its endpoints may both have the shared one."""
    found: list[RouteLimit] = []
    for limit in limits:
        if not any(limit.shares_quota(one) for one in found):
            found.append(limit)
    return tuple(found)


def declare(function: Callable[..., Any], *limits: RouteLimit) -> None:
    """Note limits on a function, behind those that it has.

    Args:
        function: The function.
        *limits: The limits.

    Examples:
        >>> from ratebound.web import RouteLimit, declare
        >>> def report(): ...
        >>> declare(report, RouteLimit(limits="5/minute"))
    """
    setattr(function, MARK, (*getattr(function, MARK, ()), *limits))


def exempt(function: F) -> F:
    """Exempt an endpoint from all rules but those of the early stage, which are checked before it is known.

    Args:
        function: The endpoint.

    Returns:
        The same function.

    Examples:
        >>> from ratebound.web import exempt
        >>> @exempt
        ... def health():
        ...     return "ok"
    """
    setattr(function, MARK, (*getattr(function, MARK, ()), None))
    return function


def declared(function: Callable[..., Any]) -> tuple[RouteLimit | None, ...]:
    """Return the limits that were noted on a function; None among them means exempt."""
    return getattr(function, MARK, ())


def join(*endpoints: Endpoint | None) -> Endpoint | None:
    """Return several endpoints as one, under the name of the first: a view's and its group's. Keep the result.

    Args:
        *endpoints: The endpoints. None among them are left out.

    Examples:
        >>> from ratebound.web import Endpoint, RouteLimit, join
        >>> group = Endpoint("shop", [RouteLimit(limits="100/minute")])
        >>> join(Endpoint("reports", [RouteLimit(limits="5/minute")]), group)
        Endpoint('reports', reports, shop)
    """
    found = [endpoint for endpoint in endpoints if endpoint is not None]
    if len(found) < 2:
        return found[0] if found else None
    joined = Endpoint(found[0].name, (), exempt=any(endpoint.exempt for endpoint in found))
    pairs = [pair for endpoint in found for pair in zip(endpoint.limits, endpoint.rules, strict=True)]
    joined.limits = _once([limit for limit, _ in pairs])
    joined.rules = tuple(next(rule for other, rule in pairs if other is limit) for limit in joined.limits)
    joined.keep_defaults = any(endpoint.keep_defaults for endpoint in found)
    return joined
