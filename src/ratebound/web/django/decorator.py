"""`@limit("5/minute")` on views. The middleware checks the limits of a view before it runs. A view that was not
checked, because there is no middleware or a decorator hides its limits, checks them by itself: never unlimited."""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from ratebound.flow import Flow, run, run_async
from ratebound.web.django.calling import awaited, in_loop
from ratebound.web.django.configuration import configured_limits
from ratebound.web.django.flows import Caller, check_part, fail, finish, leave_from_task
from ratebound.web.django.login import remember
from ratebound.web.django.request import VISIT, route_limit, visit_of
from ratebound.web.django.view_limits import is_among, method_of
from ratebound.web.options import AnyViewLimits, ViewLimitOptions, checking_call
from ratebound.web.route_limit import RouteLimit, declare, declared, exempt
from ratebound.web.rule_names import bound_name, class_of_view, owner_of
from ratebound.web.visit import Visit

__all__ = ["exempt", "limit"]

T = TypeVar("T")

NO_REQUEST = "@limit is for views: for a method write @method_decorator(limit(…)), or put @limit on the class"


@checking_call
def limit(limits: AnyViewLimits, **options: Unpack[ViewLimitOptions]) -> Callable[[T], T]:
    """Limit a view: a function or a class, sync or async; a method of a class-based view with method_decorator.

    Functions take the HttpRequest, and `on_breach` also the rejection.

    Args:
        limits: Limits as text, `Limit` objects, limits by tier, or a function of the request, which needs the option
            `otherwise`.
        **options: Options of `RouteLimit`, like `key`, `cost`, `name` and `charge`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: Options do not go together.

    Examples:
        >>> from django.http import HttpResponse
        >>> from ratebound.web.django import limit
        >>> @limit("5/minute", key="address", methods="POST")
        ... def login(request):
        ...     return HttpResponse("welcome")
    """
    limit = route_limit(limits, options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            view.dispatch = _method(view.dispatch, limit)  # type: ignore[attr-defined]
            return view
        if _is_method(view):
            raise TypeError(f"{view.__qualname__}: {NO_REQUEST}")
        return _limited(view, limit)

    return decorate


def _limited(view: Any, limit: RouteLimit) -> Any:
    own: _LimitedView | None = None

    @functools.wraps(view)
    def limited(request: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal own
        visit = getattr(request, VISIT, None)
        if visit is not None and limit in visit.checked:
            index = visit.checked.index(limit)  # one call for each check: another call is checked again
            visit.checked = visit.checked[:index] + visit.checked[index + 1 :]
            return view(request, *args, **kwargs)
        if not hasattr(request, "META"):
            raise TypeError(f"expected a request, not {request!r}. {NO_REQUEST}")
        call = functools.partial(view, request, *args, **kwargs)
        inner = getattr(request, "_request", request)  # of the REST framework
        if own is None:
            own = _LimitedView(limited, view, limit)
        limits = configured_limits()
        if own.awaits and in_loop():
            return run_async(_call_limited(inner, own, call, limits.tasks))
        return run(_call_limited(inner, own, call, limits.threads))

    if iscoroutinefunction(view):
        markcoroutinefunction(limited)
    declare(limited, limit)
    return limited


def _method(method: Any, limit: RouteLimit) -> Any:
    @functools.wraps(method)
    def bound(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        own = functools.wraps(method)(functools.partial(method.__get__(self, type(self))))
        return _limited(own, limit)(request, *args, **kwargs)

    declare(bound, limit)
    return bound


def _is_method(view: Any) -> bool:
    """Return True for a method as it stands in its class: its first argument is not a request."""
    if not isinstance(view, FunctionType) or hasattr(view, "__wrapped__"):
        return False
    owner = view.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>") and view.__code__.co_varnames[:1] == ("self",)


class _LimitedView:
    """A limited view. `awaits` is True if its caller awaits its response: also for the dispatch of a class with async
    methods."""

    __slots__ = ("awaits", "function", "limit", "name", "of_class")

    def __init__(self, function: Any, view: Any, limit: RouteLimit) -> None:
        owner, method = owner_of(function)
        self.function = function
        self.limit = limit
        self.name = bound_name(function)
        self.awaits = iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))
        self.of_class = class_of_view(function) or (type(owner) if method == "dispatch" else None)

    def below(
        self, request: Any, marks: Sequence[RouteLimit | None], checked: Sequence[RouteLimit]
    ) -> list[RouteLimit]:
        """Return the limits of decorators below this one, and of the method it leads to: they are checked together."""
        found = [mark for mark in marks if mark is not None and mark not in checked]
        if self.limit in found:
            found.remove(self.limit)
        if self.of_class is not None:
            within = declared(method_of(self.of_class, request.method, getattr(self.function, "actions", None)))
            found += [mark for mark in within if mark is not None and is_among(mark, marks)]
        return found


def _call_limited(request: Any, own: _LimitedView, call: Callable[[], Any], caller: Caller) -> Flow[Any]:
    """Check the limits of a view that the middleware has not checked, then call it."""
    visit, marks = visit_of(request), declared(own.function)
    endpoint = caller.limits.views.endpoint(own.name, marks, visit.checked)
    if endpoint is None or endpoint.exempt:
        return (yield call)
    watches, visit.is_watched = not visit.is_watched, True
    below = own.below(request, marks, visit.checked)
    response = yield from check_part(request, visit, caller, caller.gate.rules_alone(endpoint), marks)
    if response is None:
        visit.checked = (*visit.checked, *below)
        try:
            response = yield call
        except GeneratorExit:
            raise
        except BaseException as error:
            if watches and isinstance(error, Exception):
                yield from fail(request, visit, caller, error)
            elif watches:
                yield from visit.leave(caller.gate)
            raise
    if not caller.is_task and (own.awaits or inspect.isawaitable(response)):
        return _await_response(request, visit, caller, response, watches)
    return (yield from finish(request, visit, caller, response)) if watches else response


async def _await_response(request: Any, visit: Visit, caller: Caller, response: Any, watches: bool) -> Any:
    """Return the response of an async view that was checked in a thread which waits for it."""
    if visit.passed is not None and visit.passed.may_settle:
        remember(request)  # the view runs in this task, which does not see what that thread has noted
    try:
        response = await awaited(response)
    except BaseException as error:
        if watches and isinstance(error, Exception):
            await sync_to_async(run)(fail(request, visit, caller, error))
        elif watches:
            await leave_from_task(visit, caller)
        raise
    return await sync_to_async(run)(finish(request, visit, caller, response)) if watches else response
