"""The options of adapters and of limits at an endpoint: their names and types, and their names in other packages.

Type checkers and the checks at run time read the same lists. An unknown option raises TypeError, and the message names
the option that does the same here.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from ratebound.adaptive import Pressure
from ratebound.arguments import SliceOption
from ratebound.duration import Duration
from ratebound.events import Listener
from ratebound.http.client_ip import Proxies
from ratebound.http.headers import Headers, ResetForm, RetryAfterForm, SharedCaching, Style
from ratebound.http.rejection import FormatName, Rejection, RejectionFormat
from ratebound.limit import Failure, Limit
from ratebound.policy import Computed, Match, Override, Policy, RequestView
from ratebound.policy.model.charge_by_result import Charge, Strike
from ratebound.policy.model.policy import Switch
from ratebound.policy.model.rule import Mode, Priority
from ratebound.policy.problem import nearest
from ratebound.policy.runtime.policy_url import FollowedPolicy

P = ParamSpec("P")
T = TypeVar("T")
G = TypeVar("G")

PlainLimits = str | Limit | Sequence[str | Limit]
Limits = PlainLimits | Mapping[str, PlainLimits]  # the latter by tier
Function = Callable[[RequestView], Any] | Callable[[], Any]  # without a parameter it looks at the framework's request
ViewFunction = Callable[[Any], Any] | Callable[[], Any]  # of Django's HttpRequest
AnyLimits = Limits | Computed | Function
AnyViewLimits = Limits | Computed | ViewFunction
By = str | Function | Sequence[str | Function]
ViewBy = str | ViewFunction | Sequence[str | ViewFunction]
AnyPolicy = Policy | FollowedPolicy | PlainLimits | PathLike[str] | Mapping[str, Any]


class HeaderOptions(TypedDict, total=False):
    """`headers` of a policy with more than its styles; see `Headers`."""

    styles: Style | Sequence[Style]
    reset: ResetForm
    retry_after: RetryAfterForm
    names: Mapping[str, str]
    jitter: float
    cacheable: SharedCaching


class RejectionOptions(TypedDict, total=False):
    """`rejection` of a policy with more than its format; see `RejectionFormat`."""

    format: FormatName | Callable[[Rejection], Any]
    status: int
    unavailable_status: int
    blocked_status: int
    documentation: str
    message: str


class PolicyOptions(TypedDict, total=False):
    """Options that go with limits as text; see `Policy`."""

    failure: Failure
    switch: Switch
    headers: Style | Sequence[Style] | HeaderOptions | Headers
    rejection: FormatName | Callable[[Rejection], Any] | RejectionOptions | RejectionFormat
    trusted: str | Sequence[str] | Mapping[str, Any] | Proxies
    ipv6: int
    salt: str
    concurrent: Literal["auto"] | Mapping[str, int] | None
    by: By
    identities: Mapping[str, Any]
    tiers: Sequence[str] | Mapping[str, Any]
    default_tier: str | None
    exempt: Sequence[Match]
    allow: Sequence[str]
    block: Sequence[str]
    overrides: Sequence[Override]
    adaptive: Mapping[str, Any] | Pressure | None
    penalties: Mapping[str, Any]


class GateOptions(TypedDict, total=False):
    """Options of a gate beside its policy; see `WebGate`."""

    storage: Any
    max_delay: Duration
    charge: Mapping[str, Charge] | None
    deadline: Duration | None
    workers: int | None
    listeners: Iterable[Listener]


class Options(GateOptions, PolicyOptions, total=False):
    """All options of an adapter for threads."""

    sleep: Callable[[float], object]


class AsyncOptions(GateOptions, PolicyOptions, total=False):
    """All options of an adapter for tasks."""

    sleep: Callable[[float], Awaitable[object]]


class PlainLimitOptions(TypedDict, total=False):
    """Options of a limit that take no function of the request."""

    name: str
    charge: Charge | None
    strike: Strike | None
    methods: str | Sequence[str]
    otherwise: Limits
    message: str
    mode: Mode
    failure: Failure
    warn: float | str | None
    priority: Priority
    keep_defaults: bool
    on_breach: Callable[..., Any] | None
    penalty: str
    slice: SliceOption | None
    deny_cache: bool


class LimitOptions(PlainLimitOptions, total=False):
    """Options of a limit at an endpoint; see `RouteLimit`."""

    key: By | None
    distinct: Mapping[str, str | Function] | None
    cost: int | Function
    exempt_when: Function | None


class ViewLimitOptions(PlainLimitOptions, total=False):
    """Options of a limit at a Django view: functions take the HttpRequest."""

    key: ViewBy | None
    distinct: Mapping[str, str | ViewFunction] | None
    cost: int | ViewFunction
    exempt_when: ViewFunction | None


FOR_LIMIT = tuple(LimitOptions.__annotations__)
FOR_ALL = tuple(Options.__annotations__)

FIRST = "give the limits first, as text: '5/minute'"
PERIOD = "write the limit as text: '2/5 seconds'"
BY_PREFIX = "use a prefix in the storage's URL: storage='redis://host?prefix=shop'"
STRIKES = "write '5/minute; 3 strikes/hour block 5 minutes'"
CHARGE = "use charge='failure', charge='success' or charge=function"
LOCAL = "failure='local' is the default"
ZONE = "write the time zone in the limit: '500/calendar-day in Europe/Berlin'"
OVER = "write it in the limit: '10000/calendar-month over allow'"
RETRY = "give the time in a rule of a policy: Rule('exports', '3 concurrent', retry=5)"

# What is written in the text of a limit, or in a rule.
OF_QUOTAS_AND_SLOTS = {"timezone": ZONE, "zone": ZONE, "tz": ZONE, "over": OVER, "retry": RETRY}
# Options of Flask-Limiter, slowapi, fastapi-limiter and django-ratelimit, and what to do here.
AT_LIMIT_ELSEWHERE = {
    "limit_value": FIRST,
    "rate": FIRST,
    "limiter": FIRST,
    "times": PERIOD,
    "milliseconds": PERIOD,
    "seconds": PERIOD,
    "minutes": PERIOD,
    "hours": PERIOD,
    "key_func": "use key=",
    "identifier": "use key=",
    "by": "use key= at an endpoint",
    "key_prefix": BY_PREFIX,
    "error_message": "use message=",
    "override_defaults": "use keep_defaults=True for override_defaults=False",
    "deduct_when": CHARGE,
    "per_method": "use methods=, with a limit for each method",
    "method": "use methods=",
    "scope": "use name=",
    "group": "use name=",
    "block": f"use mode='shadow' for block=False; to block clients, {STRIKES}",
    "values": "say where they are: distinct={'account': 'body.username'}",
    "meta_limits": STRIKES,
    "callback": "use on_breach=",
    "skip": "use exempt_when=",
    "blocking": "use a leaky bucket: '2/second burst 5 leaky-bucket'",
    **OF_QUOTAS_AND_SLOTS,
}
FOR_ALL_ELSEWHERE = {
    "key_func": "use by= here, or key= at an endpoint",
    "identifier": "use by= here, or key= at an endpoint",
    "key": "use by= here, or key= at an endpoint",
    "rate": FIRST,
    "limiter": FIRST,
    "default_limits": FIRST,
    "descriptors": "write them in a policy file: they are for Envoy, which asks the service",
    "application_limits": "use a rule of a policy: Policy(rules=[Rule('all', '1000/minute')])",
    "default_limits_per_method": "use per_method=True at each view",
    "default_limits_exempt_when": "use default_limits=RouteLimit(limits='5/minute', exempt_when=function)",
    "default_limits_deduct_when": "use default_limits=RouteLimit(limits='5/minute', charge=function)",
    "default_limits_cost": "use default_limits=RouteLimit(limits='5/minute', cost=2)",
    "application_limits_per_method": "use a rule for each method in a policy",
    "application_limits_exempt_when": "use application_limits=RouteLimit(limits='5/minute', exempt_when=function)",
    "application_limits_deduct_when": "use application_limits=RouteLimit(limits='5/minute', charge=function)",
    "application_limits_cost": "use application_limits=RouteLimit(limits='5/minute', cost=2)",
    "headers_enabled": "headers are on; headers='none' leaves them out",
    "header_name_mapping": "use the names of a style: headers='x-ratelimit'",
    "strategy": "write the algorithm behind the limit: '5/minute fixed-window'",
    "storage_uri": "use storage=",
    "storage_url": "use storage=",
    "storage_options": "put them into the storage's URL: storage='redis://host?timeout=0.1'",
    "redis": "use storage=",
    "use_cache": "use storage='redis://host'",
    "swallow_errors": "use failure='open'",
    "fail_open": "use failure='open'",
    "fail_on_first_breach": "leave it out: all limits are one decision",
    "meta_limits": STRIKES,
    "on_meta_breach": "use listeners=[function]: it gets a BlockBegan for each block",
    "in_memory_fallback": LOCAL,
    "in_memory_fallback_enabled": LOCAL,
    "retry_after": "use headers={'styles': 'x-ratelimit', 'retry_after': 'date'}",
    "key_prefix": BY_PREFIX,
    "cache_prefix": BY_PREFIX,
    "prefix": BY_PREFIX,
    "request_identifier": "use name= at an endpoint",
    "key_style": "leave it out: an endpoint is one quota, /users/1 and /users/2 share it",
    "enabled": "use switch='off' for enabled=False",
    "enable": "use switch='off' for enable=False",
    "auto_check": "leave it out: without limits of its own an adapter asks for decorated endpoints only",
    "config_filename": "give the path of a policy file first: 'policy.yaml'",
    "callback": "use on_breach= at an endpoint, or a handler for 429",
    "http_callback": "use on_breach= at an endpoint, or a handler for 429",
    "ws_callback": "use messages='1/5 seconds': who sends more is disconnected",
    "skip": "use exempt=[Match(paths=['/health'])]",
    "functions": "give PolicyFile('policy.yaml', functions={…}) instead of the path",
    **OF_QUOTAS_AND_SLOTS,
}


def check_options(given: Iterable[str], known: Collection[str] = FOR_ALL) -> None:
    """Raise TypeError for an unknown option of an adapter."""
    _check(given, known, FOR_ALL_ELSEWHERE, FOR_LIMIT, "an option of a limit: limit('5/minute', {0}=…)")


def check_limit_options(given: Iterable[str], known: Collection[str] = FOR_LIMIT) -> None:
    """Raise TypeError for an unknown option of a limit."""
    _check(given, known, AT_LIMIT_ELSEWHERE, FOR_ALL, "an option of the adapter, not of one limit")


def _check(
    given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str], others: Collection[str], where: str
) -> None:
    for name in given:
        if name not in known:
            hint = elsewhere.get(name) or (where.format(name) if name in others else nearest(name, known))
            raise TypeError(f"unknown option {name!r}: {hint}")


def checked_gate(gate: G | None, policy: Any, options: Mapping[str, Any]) -> G | None:
    """Return the gate. Raises TypeError unless either a gate or a policy was given."""
    if gate is not None and (policy is not None or options):
        raise TypeError("expected a gate or a policy, not both: a gate has its own policy and options")
    if gate is None and policy is None:
        raise TypeError("expected a policy: limits like '100/minute', a Policy, or the path of a policy file")
    return gate


def checking_call(function: Callable[P, T]) -> Callable[P, T]:
    """Make `limit(limits, **options)` raise a TypeError that says what to write, where Python's own would count
    arguments: `limit(rate="5/m")` and `limit("5/minute", get_remote_address)`."""
    parameters = list(inspect.signature(function).parameters.values())
    place = [one.name for one in parameters].index("limits")
    known = [*FOR_LIMIT, *(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)]

    @functools.wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> T:
        if len(args) > place + 1:
            raise TypeError(
                f"expected one argument and options by name, not {args[place + 1]!r} as the second argument:"
                " limit('5/minute', key=function)"
            )
        if len(args) == place and "limits" not in options:
            check_limit_options(options, known)
            raise TypeError("expected the limits: limit('5/minute')")
        return function(*args, **options)

    return called
