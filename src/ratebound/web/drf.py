"""Django REST framework: throttles with its rates and scopes, and exact waits.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["ratebound.web.drf.Throttle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "20/minute", "user": "1000/day", "uploads": "5/minute"},
    }

The framework authenticates users inside the view: hence throttles are checked after the policy, by themselves.
"""

import functools
import math
import weakref
from collections.abc import Hashable
from dataclasses import fields
from typing import Any, Unpack

from ratebound.flow import run
from ratebound.web.django.configuration import configured_limits
from ratebound.web.django.login import remember
from ratebound.web.django.request import at_hand, limit_at_hand, route_limit, visit_of
from ratebound.web.options import AnyViewLimits, ViewLimitOptions, checking_call
from ratebound.web.rejected import Rejected
from ratebound.web.request_limits import content_of, looked_up_endpoint
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.rule_names import numbered, short_name, view_name
from ratebound.web.user import User, found_user_id

try:
    from rest_framework.exceptions import APIException
    from rest_framework.settings import api_settings
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Django REST framework is not installed. Run: pip install djangorestframework") from error

PENDING = "_ratebound_pending"  # the attribute of a view that lists throttles which were checked with the first
UNSETTLED = (
    "charges are settled and slots are released when the response is complete, and without the middleware nobody sees"
    " that: add 'ratebound.web.django.RateLimitMiddleware' to MIDDLEWARE"
)

# The endpoints of throttles that stand in the code.
_endpoints: weakref.WeakKeyDictionary[type, dict[Hashable, Endpoint]] = weakref.WeakKeyDictionary()


class Throttle:
    """A throttle: one decision over the rate `user` or `anon` and that of the view's `throttle_scope`, if it has one.

    The rates are those of DEFAULT_THROTTLE_RATES. All throttles of a view are checked together, in one trip.

    Args:
        limit: The limit of one view; see `throttle`. None means the rates of the settings.

    Examples:
        >>> REST_FRAMEWORK = {
        ...     "DEFAULT_THROTTLE_CLASSES": ["ratebound.web.drf.Throttle"],
        ...     "DEFAULT_THROTTLE_RATES": {"user": "1000/day", "anon": "100/day"},
        ... }
    """

    def __init__(self, limit: RouteLimit | None = None) -> None:
        self._limit = limit
        self._wait: float | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Return True if the request may go ahead, and charge it.

        Args:
            request: The Request of the REST framework.
            view: The view.

        Raises:
            APIException: The request is rejected with another status than 429.
        """
        pending = getattr(view, PENDING, [])
        if self._content in pending:
            pending.remove(self._content)
            return True  # the first of them has answered for all
        endpoint, limits = self._endpoint(request, view)
        return endpoint is None or self._check(request, view, endpoint, limits)

    def wait(self) -> float | None:
        """Seconds until the same request passes, if alone; None when no wait can help."""
        return self._wait

    @property
    def _content(self) -> Hashable:
        return None if self._limit is None else content_of(self._limit)

    def _check(self, request: Any, view: Any, endpoint: Endpoint, by_key: dict[Hashable, RouteLimit]) -> bool:
        inner = getattr(request, "_request", request)
        visit, limits = visit_of(inner), configured_limits()
        if not visit.is_watched and any(limit.needs_result for limit in endpoint.limits):
            raise RuntimeError(UNSETTLED)
        rules, read_body = limits.gate.rules_alone(endpoint), functools.partial(limits.read_body, inner)
        visit.view.user, before = _user(request), visit.view.user
        visit.view.found = None  # the user may be known only now
        with at_hand(inner, by_key):
            answer = run(visit.check_part(limits.gate, rules, visit.view, read_body=read_body))
        visit.view.user = visit.view.user or before
        if not isinstance(answer, Rejected):
            if answer.slots and not visit.is_watched:
                limits.gate.leave(answer)
                if rules.may_hold:  # else an operator's override has them, and the site is not to blame
                    raise RuntimeError(UNSETTLED)
            inner.ratebound = visit.answer
            if answer.may_settle:
                remember(inner)
            if not visit.is_watched and visit.passed is not None:
                visit.passed.end(UNSETTLED)
            return True
        inner.ratebound = answer
        self._wait = answer.retry_after
        view.headers = {**getattr(view, "headers", {}), **dict(answer.fields)}  # which go on the response
        if answer.status != 429:
            raise _rejection(answer)
        return False

    def _endpoint(self, request: Any, view: Any) -> tuple[Endpoint | None, dict[Hashable, RouteLimit]]:
        """Return the endpoint of this throttle and of all that the view will check next; and the limits, by key."""
        ours = [one for one in getattr(view, "get_throttles", list)() if type(one) is Throttle]
        if self._content in (contents := [one._content for one in ours]):
            contents.remove(self._content)
            setattr(view, PENDING, contents)
        else:
            ours = [self]
        limits: dict[Hashable, RouteLimit] = {}
        parts = [_of_rates(request, view) if one._limit is None else _of_view(view, one._limit, limits) for one in ours]
        return configured_limits().views.joined(*dict.fromkeys(parts)), limits


@checking_call
def throttle(limits: AnyViewLimits, **options: Unpack[ViewLimitOptions]) -> Any:
    """Return a throttle for one view, for its `throttle_classes`.

    Each view has a quota of its own; those that are given one `name` share one.

    Args:
        limits: Limits as text, `Limit` objects, limits by tier, or a function of the request, which needs the option
            `otherwise`. For limits by tier, `key` is a function that returns an `Identity` with a tier: `key="user"`
            knows no tier of users whom the framework has authenticated.
        **options: Options of `RouteLimit`, like `key`, `cost`, `name` and `charge`. Functions take the HttpRequest,
            whose `user` is the one that the framework has authenticated.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: Options do not go together.

    Examples:
        >>> from ratebound.web.drf import throttle
        >>> class ReportView:
        ...     throttle_classes = [throttle("5/minute", name="reports")]
    """
    return functools.partial(Throttle, route_limit(limits, options))


def _text(value: Any) -> str:
    """Return the content of a limit as text that is the same in every process."""
    if isinstance(value, RouteLimit):
        value = [getattr(value, field.name) for field in fields(value) if field.init]
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(getattr(value, "__qualname__", type(value).__qualname__)) if callable(value) else repr(value)


def _of_view(view: Any, limit: RouteLimit, limits: dict[Hashable, RouteLimit]) -> Endpoint:
    """Return the endpoint of a view's throttle, and note it under `limits`. One of the `throttle_classes` is named by
    its index there; one that `get_throttles` picks or creates by its content, and equal ones by their order."""
    where, index = _index(view, limit)
    nth = 0
    while (key := (where, index, content_of(limit), nth)) in limits and limits[key] is not limit:
        nth += 1
    limits[key] = limit
    if index >= 0:
        listed = _endpoints.setdefault(type(view), {})
        if key not in listed:
            listed.setdefault(key, Endpoint(numbered(short_name(f"{where}.throttle"), index), [limit]))
        return listed[key]
    name = numbered(short_name(f"{where}.throttle({_text(limit)})"), nth)
    cache = configured_limits().views.per_request
    return cache.find(key, lambda: looked_up_endpoint(name, limit, limit_at_hand(key)))


def _index(view: Any, limit: RouteLimit) -> tuple[str, int]:
    """Return the name of the view, or of its action if that has throttles of its own; and the limit's index among them,
    or -1."""
    name = view_name(type(view))
    listed = getattr(view, "throttle_classes", ())
    if listed is not getattr(type(view), "throttle_classes", ()) and getattr(view, "action", None):
        name = f"{name}.{view.action}"
    ours = [one.args[0] for one in listed if isinstance(one, functools.partial) and one.func is Throttle]
    return name, ours.index(limit) if limit in ours else -1


def _of_rates(request: Any, view: Any) -> Endpoint | None:
    rates = api_settings.DEFAULT_THROTTLE_RATES
    scope = getattr(view, "throttle_scope", None)
    names = ["anon" if _user(request) is None else "user", *([scope] if scope else [])]
    if scope and scope not in rates:
        raise ValueError(f"throttle_scope is {scope!r}, and DEFAULT_THROTTLE_RATES has {', '.join(rates)}: add a rate")
    found = tuple(name for name in names if rates.get(name) is not None)
    return _made_of_rates(found, tuple(rates[name] for name in found)) if found else None


@functools.lru_cache(maxsize=1024)
def _made_of_rates(names: tuple[str, ...], rates: tuple[str, ...]) -> Endpoint:
    limits = [
        RouteLimit(limits=rate, name=short_name(f"rest.{name}"), key=["user", "address"])
        for name, rate in zip(names, rates, strict=True)
    ]
    return Endpoint(short_name(f"rest.{'+'.join(names)}"), limits)


def _rejection(rejected: Rejected) -> APIException:
    error = APIException(rejected.description)
    error.status_code = rejected.status
    if rejected.retry_after is not None:
        error.wait = math.ceil(rejected.retry_after)  # of which the framework makes a Retry-After
    return error


def _user(request: Any) -> User:
    return found_user_id(request.user)
