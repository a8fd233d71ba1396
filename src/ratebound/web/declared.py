"""Limits that are said at an endpoint, by decorator or dependency: noted on its function, asked with the policy's own.

Nothing is wrapped: an adapter looks at the function that its router has found. A mistake raises here, at import, and
never leaves an endpoint without its limit.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypeVar

from ratebound.policy import Computed, Match, RequestView, Rule
from ratebound.policy.functions import check_takes, is_awaitable
from ratebound.policy.identity.identify import check_by
from ratebound.policy.model.rule import Failure, Mode
from ratebound.policy.problem import shown
from ratebound.web.charge import Charge, Outcome, charge_function
from ratebound.web.functions import taking_request
from ratebound.web.options import Limits, check_limit_options

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__ratebound__"
MADE = "__ratebound_endpoint__"
NAME = 40  # characters, as for any rule
FUNCTIONS = ("limits", "key", "cost", "exempt_when")  # of a limit, where it may have a function of the request


@dataclass(frozen=True, eq=False, kw_only=True)
class RouteLimit:
    """`limits` and `key` are as in a Rule: text, limits by tier, or a function of the RequestView, which then needs
    limits `otherwise`. A function may also take nothing. `charge` says what a request has cost when its result
    is known.

    Limits of one `name` share one quota, wherever they stand; without a name each endpoint has its own. They stand in
    for the policy's default rules, unless `keep_defaults`.
    """

    limits: Any
    key: Any = None
    cost: Any = 1
    name: str = ""
    charge: Charge | None = None
    methods: str | Sequence[str] = ()
    exempt_when: Callable[[RequestView], Any] | None = None
    otherwise: Limits | None = None
    message: str = ""
    mode: Mode = "enforce"
    failure: Failure | Literal[""] = ""
    keep_defaults: bool = False
    on_breach: Callable[..., Any] | None = None

    charged: Callable[[Outcome], int] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "charged", charge_function(self.charge))
        if isinstance(self.limits, Computed):
            object.__setattr__(self, "otherwise", self.limits.otherwise)
            object.__setattr__(self, "limits", self.limits.function)
        if callable(self.limits) and self.otherwise is None:
            raise ValueError(
                "limits that a function finds need others for when it fails: otherwise='10/minute'; and a decorator"
                " needs its limits: limit('5/minute')"
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
        self.rule(self.name or "endpoint")

    def rule(self, name: str) -> Rule:
        """The rule that it is, once the endpoint is known."""
        limits = self.limits
        if callable(limits):
            limits = Computed(_found(self.exempt_when, limits), self.otherwise)
        elif self.exempt_when is not None:
            limits = Computed(_found(self.exempt_when, None), limits)
        return Rule(
            self.name or name,
            limits,
            match=Match(methods=self.methods),
            by=self.key,
            cost=self.cost,
            mode=self.mode,
            failure=self.failure,
            message=self.message,
        )


def route_limit(limits: Any, options: Mapping[str, Any], breach_takes: Sequence[str] = ("the refusal",)) -> RouteLimit:
    """One limit, as a decorator is told of it. `breach_takes` is what `on_breach` is called with."""
    check_limit_options(options)
    limit = RouteLimit(limits=limits, **options)
    if limit.on_breach is not None:
        check_takes(limit.on_breach, *breach_takes, option="on_breach")
    return limit


def _found(
    exempt_when: Callable[[RequestView], Any] | None, limits: Callable[[RequestView], Any] | None
) -> Callable[[RequestView], Any]:
    """'unlimited' for whom it is exempt, else what the function says, else None: the limits as written."""
    if exempt_when is None:
        assert limits is not None
        return limits

    async def awaited(answer: Awaitable[Any], request: RequestView) -> Any:
        if await answer:
            return "unlimited"
        value = limits(request) if limits is not None else None
        return await value if is_awaitable(value) else value

    def found(request: RequestView) -> Any:
        exempt = exempt_when(request)
        if is_awaitable(exempt):
            return awaited(exempt, request)
        return "unlimited" if exempt else limits(request) if limits is not None else None

    found.reads_body = any(getattr(one, "reads_body", False) for one in (exempt_when, limits))  # type: ignore[attr-defined]
    return found


class Endpoint:
    """What is declared for one endpoint: a rule for each of its limits, under the endpoint's name. Made once."""

    __slots__ = ("exempt", "keep_defaults", "limits", "name", "rules")

    def __init__(self, name: str, limits: Sequence[RouteLimit], *, exempt: bool = False) -> None:
        self.name = name
        self.limits = limits = _once(limits)
        self.exempt = exempt
        self.keep_defaults = any(limit.keep_defaults for limit in limits)
        self.rules = tuple(
            limit.rule(name if not place else f"{name[: NAME - 3]}-{place + 1}") for place, limit in enumerate(limits)
        )

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {', '.join(rule.name for rule in self.rules)})"


def _once(limits: Sequence[RouteLimit]) -> tuple[RouteLimit, ...]:
    """Each quota once: a group and one of its endpoints may both have the shared one."""
    found: list[RouteLimit] = []
    for limit in limits:
        if not any(
            limit is one or (limit.name and limit.name == one.name and limit.limits == one.limits) for one in found
        ):
            found.append(limit)
    return tuple(found)


def declare(function: Callable[..., Any], *limits: RouteLimit) -> None:
    """Note limits on a function, behind those that it has."""
    setattr(function, MARK, (*getattr(function, MARK, ()), *limits))


def exempt(function: F) -> F:
    """No rule is asked for this endpoint, but those of the early stage: they come before it is known."""
    setattr(function, MARK, (*getattr(function, MARK, ()), None))
    return function


def declared(function: Callable[..., Any]) -> tuple[RouteLimit | None, ...]:
    """What was noted on a function; None among it for exempt."""
    return getattr(function, MARK, ())


def endpoint_of(function: Callable[..., Any], *, name: str = "", more: Sequence[RouteLimit] = ()) -> Endpoint | None:
    """What is declared on a function, and `more` that holds for it; None if that is nothing."""
    marks = (*declared(function), *more)
    if not marks:
        return None
    holder = getattr(function, "__func__", function)
    made: tuple[Any, ...] = getattr(holder, "__dict__", {}).get(MADE, ((), "", None))  # not that of a class above it
    if made[0] == marks and made[1] == name:
        return made[2]  # type: ignore[no-any-return]
    limits = [mark for mark in marks if mark is not None]
    endpoint = Endpoint(name or endpoint_name(function), limits, exempt=None in marks)
    setattr(holder, MADE, (marks, name, endpoint))
    return endpoint


def join(*endpoints: Endpoint | None) -> Endpoint | None:
    """Several as one: that of a view and that of its group. The first is the one that is named. Keep the result."""
    found = [endpoint for endpoint in endpoints if endpoint is not None]
    if len(found) < 2:
        return found[0] if found else None
    joined = Endpoint(found[0].name, (), exempt=any(endpoint.exempt for endpoint in found))
    pairs = [pair for endpoint in found for pair in zip(endpoint.limits, endpoint.rules, strict=True)]
    joined.limits = _once([limit for limit, _ in pairs])
    joined.rules = tuple(next(rule for other, rule in pairs if other is limit) for limit in joined.limits)
    joined.keep_defaults = any(endpoint.keep_defaults for endpoint in found)
    return joined


def endpoint_name(function: Callable[..., Any]) -> str:
    """The end of its module's name and its own: `users.list`."""
    named: Any = inspect.unwrap(getattr(function, "func", function))
    module = str(getattr(named, "__module__", "") or "").rpartition(".")[2].strip("_")
    own = str(getattr(named, "__qualname__", type(named).__qualname__)).rpartition("<locals>.")[2]
    return short_name(f"{module}.{own}" if module and module != "main" else own)


def short_name(full: str) -> str:
    """A text as the name of a rule. What is too long, or has what no name has, gets a digest to stay apart."""
    text = "".join(c if c.isascii() and (c.isalnum() or c in "_.:-") else "-" for c in full).lstrip("_.:-")
    if text == full and len(text) <= NAME - 3:
        return text
    digest = blake2b(full.encode(), digest_size=3).hexdigest()
    return f"{text[: NAME - 10] or 'endpoint'}-{digest}"
