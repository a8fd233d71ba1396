"""`@limit("5/minute")`: what a view declares. It is asked at the view's door by the middleware; a view that was not
asked for, because there is none or because a decorator hides what is declared, asks by itself: never unlimited."""

import asyncio
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from ratekeeper.web.answer import Refused
from ratekeeper.web.declared import Endpoint, RouteLimit, declare, declared, exempt
from ratekeeper.web.django.keeper import Keeper, keeper
from ratekeeper.web.django.names import bound_name, owner_of
from ratekeeper.web.django.request import (
    STATE,
    State,
    at_hand,
    at_once,
    awaited,
    leave,
    leave_task,
    route_limit,
    state_of,
)

__all__ = ["exempt", "limit"]

T = TypeVar("T")

NO_REQUEST = "@limit is for views: for a method write @method_decorator(limit(…)), or put @limit on the class"


def limit(limits: Any, **options: Any) -> Callable[[T], T]:
    """For views, as functions or classes, sync or async; for methods of class-based views with method_decorator.

    Options are those of RouteLimit. Its functions take the HttpRequest, and `on_breach` also the refusal.
    """
    said = route_limit(limits, options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            view.dispatch = _method(view.dispatch, said)  # type: ignore[attr-defined]
            return view
        if _is_method(view):
            raise TypeError(f"{view.__qualname__}: {NO_REQUEST}")
        return _asked(view, said)

    return decorate


def _asked(view: Any, said: RouteLimit) -> Any:
    @functools.wraps(view)
    def asked(request: Any, *args: Any, **kwargs: Any) -> Any:
        state = getattr(request, STATE, None)
        if state is not None and said in state.asked:
            return view(request, *args, **kwargs)
        if not hasattr(request, "META"):
            raise TypeError(f"expected a request, not {request!r}. {NO_REQUEST}")
        call = functools.partial(view, request, *args, **kwargs)
        inner = getattr(request, "_request", request)  # of the REST framework
        if _in_loop():
            return _ask_task(inner, asked, call)
        return _ask(inner, asked, call, awaits=_is_awaited(view))

    if iscoroutinefunction(view):
        markcoroutinefunction(asked)
    declare(asked, said)
    return asked


def _method(method: Any, said: RouteLimit) -> Any:
    @functools.wraps(method)
    def bound(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        own = functools.wraps(method)(functools.partial(method.__get__(self, type(self))))
        return _asked(own, said)(request, *args, **kwargs)

    declare(bound, said)
    return bound


def _is_method(view: Any) -> bool:
    """Whether this is a method as it stands in its class: its first argument will not be a request."""
    if not isinstance(view, FunctionType) or hasattr(view, "__wrapped__"):
        return False
    owner = view.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>") and view.__code__.co_varnames[:1] == ("self",)


def _is_awaited(view: Any) -> bool:
    """Whether who calls this view awaits its answer: also the dispatch of a class whose methods are async."""
    return iscoroutinefunction(view) or bool(getattr(owner_of(view)[0], "view_is_async", False))


def _asking(request: Any, function: Any) -> tuple[State, Endpoint | None, bool]:
    """What a view that was not asked for has to ask, and whether it is the one to see the response."""
    state = state_of(request)
    marks = declared(function)
    endpoint = keeper().views.endpoint(bound_name(function), marks, state.asked)
    if endpoint is None or endpoint.exempt:
        return state, None, False
    state.asked = (*state.asked, *(mark for mark in marks if mark is not None))
    watches, state.watched = not state.watched, True
    return state, endpoint, watches


def _ask(request: Any, function: Any, call: Callable[[], Any], *, awaits: bool) -> Any:
    keep = keeper()
    state, endpoint, watches = _asking(request, function)
    if endpoint is None:
        return call()
    keep.read_body(request, state, endpoint)
    state.view.user = keep.user(request) if keep.facts.wants_user(endpoint) else None
    at_hand(request)
    answer = keep.gate.alone(state.view, endpoint)
    if isinstance(answer, Refused):
        if state.passed is not None:
            keep.gate.give_back(state.passed)
        state.answer = request.ratekeeper = answer
        response = at_once(keep.refusal(request, answer))
    else:
        state.join(request, answer)
        keep.gate.sleep(answer)
        response = call()
    if awaits:
        return _left(keep, request, state, response, watches)
    return leave(keep.gate, request, state, response) if watches else response


async def _left(keep: Keeper, request: Any, state: State, response: Any, watches: bool) -> Any:
    """The response of an async view without an event loop around it: it was asked for in the thread that waits."""
    response = await awaited(response)
    return await sync_to_async(leave)(keep.gate, request, state, response) if watches else response


async def _ask_task(request: Any, function: Any, call: Callable[[], Any]) -> Any:
    keep = keeper()
    state, endpoint, watches = _asking(request, function)
    if endpoint is None:
        return await awaited(call())
    keep.read_body(request, state, endpoint)
    state.view.user = await keep.task_user(request) if keep.facts.wants_user(endpoint) else None
    at_hand(request)
    answer = await keep.tasks.alone(state.view, endpoint)
    if isinstance(answer, Refused):
        if state.passed is not None:
            await keep.tasks.give_back(state.passed)
        state.answer = request.ratekeeper = answer
        response = await awaited(keep.refusal(request, answer))
    else:
        state.join(request, answer)
        await keep.tasks.sleep(answer)
        response = await awaited(call())
    return await leave_task(keep.tasks, keep.gate, request, state, response) if watches else response


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
