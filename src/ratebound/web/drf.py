"""Django REST framework: throttles that ask Ratebound, with its rates, its scopes, and exact waits.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["ratebound.web.drf.Throttle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "20/minute", "user": "1000/day", "uploads": "5/minute"},
    }

Users are those that the framework authenticates, inside the view: hence this is asked after the policy, by itself.
"""

import functools
import math
import weakref
from collections.abc import Hashable
from dataclasses import fields
from typing import Any, Unpack

from ratebound.web.answer import Refused
from ratebound.web.declared import Endpoint, RouteLimit, short_name
from ratebound.web.django.anew import content, endpoint_anew
from ratebound.web.django.keeper import keeper
from ratebound.web.django.login import remember
from ratebound.web.django.names import numbered, view_name
from ratebound.web.django.request import at_hand, out_of_hand, route_limit, state_of
from ratebound.web.options import AnyViewLimits, ViewLimitOptions, checking_call
from ratebound.web.user import User, found_user_id
from ratebound.web.views import description

try:
    from rest_framework.exceptions import APIException
    from rest_framework.settings import api_settings
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Django REST framework is not there: install djangorestframework") from error

PENDING = "_ratebound_pending"  # where a view notes which of its throttles were asked along with the first
UNSETTLED = (
    "a charge is settled when the response is complete, and nobody will see that: put"
    " 'ratebound.web.django.RateLimitMiddleware' under MIDDLEWARE"
)

# Of those that stand in the code.
_endpoints: weakref.WeakKeyDictionary[type, dict[Hashable, Endpoint]] = weakref.WeakKeyDictionary()


class Throttle:
    """In one decision: the rate `user` or `anon`, by who it is, and that of the view's `throttle_scope`, if it has one.

    `limits` are for one view, see `throttle`. All throttles of a view are asked together, in one trip.
    """

    def __init__(self, limit: RouteLimit | None = None) -> None:
        self._limit = limit
        self._wait: float | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go ahead; it is charged if so. A refusal that is no 429 is raised."""
        pending = getattr(view, PENDING, [])
        if self._content in pending:
            pending.remove(self._content)
            return True  # the first of them has answered for all
        endpoint, limits = self._endpoint(request, view)
        return endpoint is None or self._ask(request, view, endpoint, limits)

    def wait(self) -> float | None:
        """Seconds until the same request passes, if alone; None when no wait can help."""
        return self._wait

    @property
    def _content(self) -> Hashable:
        return None if self._limit is None else content(self._limit)

    def _ask(self, request: Any, view: Any, endpoint: Endpoint, limits: dict[Hashable, RouteLimit]) -> bool:
        inner = getattr(request, "_request", request)
        state, keep = state_of(inner), keeper()
        if not state.watched and any(limit.charged is not None for limit in endpoint.limits):
            raise RuntimeError(UNSETTLED)
        keep.read_body(inner, state, endpoint)
        state.view.user, before = _user(request), state.view.user
        state.view.found = None  # who it is may be known only now
        hand = at_hand(inner, limits)
        try:
            answer = keep.gate.alone(state.view, endpoint)
        finally:
            out_of_hand(hand)
        state.view.user = state.view.user or before
        if not isinstance(answer, Refused):
            state.join(inner, answer)
            if answer.terms.charges:
                remember(inner)
            if not state.watched and state.passed is not None:
                state.passed.end(UNSETTLED)
            keep.gate.sleep(answer)
            return True
        self._wait = answer.retry_after
        view.headers = {
            **getattr(view, "headers", {}),
            **dict(answer.fields),
        }  # which go on the response
        state.refuse(inner, answer)
        if answer.status != 429:
            raise _refusal(answer)
        return False

    def _endpoint(self, request: Any, view: Any) -> tuple[Endpoint | None, dict[Hashable, RouteLimit]]:
        """Of this one, and of all that the view will ask next; and the limits, by their places."""
        ours = [one for one in getattr(view, "get_throttles", list)() if type(one) is Throttle]
        if self._content in (contents := [one._content for one in ours]):
            contents.remove(self._content)
            setattr(view, PENDING, contents)
        else:
            ours = [self]
        limits: dict[Hashable, RouteLimit] = {}
        parts = [_of_rates(request, view) if one._limit is None else _of_view(view, one._limit, limits) for one in ours]
        return keeper().views.joined(*dict.fromkeys(parts)), limits


@checking_call
def throttle(limits: AnyViewLimits, **options: Unpack[ViewLimitOptions]) -> Any:
    """For `throttle_classes` of one view: `throttle_classes = [throttle("5/minute")]`. Options are those of RouteLimit.

    Each view has a quota of its own; those that are given one `name` share one.
    """
    return functools.partial(Throttle, route_limit(limits, options))


def _text(value: Any) -> str:
    """What it says, in words that are the same in every process."""
    if isinstance(value, RouteLimit):
        value = [getattr(value, field.name) for field in fields(value) if field.init]
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(getattr(value, "__qualname__", type(value).__qualname__)) if callable(value) else repr(value)


def _of_view(view: Any, limit: RouteLimit, limits: dict[Hashable, RouteLimit]) -> Endpoint:
    """One that is among the `throttle_classes` goes by its place there; one that `get_throttles` picks, or makes, by
    what it says, and where several say the same, by which of them it is. It is noted under `limits`."""
    where, place = _place(view, limit)
    nth = 0
    while (key := (where, place, content(limit), nth)) in limits and limits[key] is not limit:
        nth += 1
    limits[key] = limit
    if place >= 0:
        listed = _endpoints.setdefault(type(view), {})
        if key not in listed:
            listed.setdefault(key, Endpoint(numbered(f"{where}.throttle", place), [limit]))
        return listed[key]
    name = f"{where}.throttle({_text(limit)})"
    return keeper().views.anew.get(key, lambda: endpoint_anew(numbered(name, nth), limit, key))


def _place(view: Any, limit: RouteLimit) -> tuple[str, int]:
    """The view, or its action if that has throttles of its own; and where among them it is, -1 for nowhere."""
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
        raise ValueError(f"no rate for the scope {scope!r}: DEFAULT_THROTTLE_RATES has {', '.join(rates)}")
    found = tuple(name for name in names if rates.get(name) is not None)
    return _made_of_rates(found, tuple(rates[name] for name in found)) if found else None


@functools.lru_cache(maxsize=1024)
def _made_of_rates(names: tuple[str, ...], rates: tuple[str, ...]) -> Endpoint:
    limits = [
        RouteLimit(limits=rate, name=short_name(f"rest.{name}"), key=["user", "address"])
        for name, rate in zip(names, rates, strict=True)
    ]
    return Endpoint(short_name(f"rest.{'+'.join(names)}"), limits)


def _refusal(refused: Refused) -> APIException:
    refusal = APIException(description(refused))
    refusal.status_code = refused.status
    if refused.retry_after is not None:
        refusal.wait = math.ceil(refused.retry_after)  # of which the framework makes a Retry-After
    return refusal


def _user(request: Any) -> User:
    return found_user_id(request.user)
