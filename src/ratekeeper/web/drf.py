"""Django REST framework: throttles that ask Ratekeeper, with its rates, its scopes, and exact waits.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["ratekeeper.web.drf.Throttle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "20/minute", "user": "1000/day", "uploads": "5/minute"},
    }

Users are those that the framework authenticates, inside the view: hence this is asked after the policy, by itself.
"""

import functools
from typing import Any

from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.declared import Endpoint, RouteLimit, short_name
from ratekeeper.web.django.keeper import keeper
from ratekeeper.web.django.request import STATE, State, of_request, within
from ratekeeper.web.views import dotted_name

try:
    from rest_framework.settings import api_settings
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Django REST framework is not there: install djangorestframework") from error


class Throttle:
    """In one decision: the rate `user` or `anon`, by who it is, and that of the view's `throttle_scope`, if it has one.

    `limits` are for one view, see `throttle`.
    """

    def __init__(self, limit: RouteLimit | None = None) -> None:
        self._limit = limit
        self._wait: float | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go ahead; it is charged if so."""
        endpoint = self._endpoint(request, view)
        if endpoint is None:
            return True
        inner = getattr(request, "_request", request)
        state = getattr(inner, STATE, None) or State(inner, in_middleware=False)
        setattr(inner, STATE, state)
        gate = keeper().gate
        state.view.user, before = _user(request), state.view.user
        state.view.found = None  # who it is may be known only now
        answer = within(inner, gate.alone, state.view, endpoint)
        state.view.user = state.view.user or before
        if isinstance(answer, Refused):
            self._wait = answer.retry_after
            if isinstance(state.answer, Passed):
                gate.give_back(state.answer)
            state.answer = inner.ratekeeper = answer
            return False
        if isinstance(state.answer, Passed):
            state.answer.join(answer)
        else:
            state.answer = inner.ratekeeper = answer
        gate.sleep(answer)
        return True

    def wait(self) -> float | None:
        """Seconds until the same request passes, if alone; None when no wait can help."""
        return self._wait

    def _endpoint(self, request: Any, view: Any) -> Endpoint | None:
        if self._limit is not None:
            return keeper().endpoint(dotted_name(type(view)), (self._limit,))
        rates = api_settings.DEFAULT_THROTTLE_RATES
        scope = getattr(view, "throttle_scope", None)
        names = ["anon" if _user(request) is None else "user", *([scope] if scope else [])]
        if scope and scope not in rates:
            raise ValueError(f"no rate for the scope {scope!r}: DEFAULT_THROTTLE_RATES has {', '.join(rates)}")
        found = tuple(name for name in names if rates.get(name) is not None)
        return _of_rates(found, tuple(rates[name] for name in found)) if found else None


def throttle(limits: Any, **options: Any) -> Any:
    """For `throttle_classes` of one view: `throttle_classes = [throttle("5/minute")]`. Options are those of RouteLimit.

    Each view has a quota of its own; those that are given one `name` share one.
    """
    for name in ("key", "cost", "exempt_when"):
        if callable(options.get(name)):
            options[name] = of_request(options[name])
    return functools.partial(Throttle, RouteLimit(limits=limits, **options))


@functools.lru_cache(maxsize=1024)
def _of_rates(names: tuple[str, ...], rates: tuple[str, ...]) -> Endpoint:
    limits = [
        RouteLimit(limits=rate, name=short_name(f"rest.{name}"), key=["user", "address"])
        for name, rate in zip(names, rates, strict=True)
    ]
    return Endpoint(short_name(f"rest.{'+'.join(names)}"), limits)


def _user(request: Any) -> Any:
    user = request.user
    return user.pk if user is not None and user.is_authenticated else None
