"""`@limit("5/minute")`: what a view declares. It is asked at the view's door by the middleware; a view that was not
asked for, because there is none or because a decorator hides what is declared, asks by itself: never unlimited."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.declared import Endpoint, RouteLimit, declare, declared, exempt, short_name
from ratekeeper.web.django.keeper import keeper
from ratekeeper.web.django.request import STATE, State, awaited, leave, leave_task, of_request, within
from ratekeeper.web.views import dotted_name, full_name

__all__ = ["exempt", "limit"]

T = TypeVar("T")


def limit(limits: Any, **options: Any) -> Callable[[T], T]:
    """For views, as functions or classes, sync or async; for methods of class-based views with method_decorator.

    Options are those of RouteLimit. Its functions take the HttpRequest, and `on_breach` also the refusal.
    """
    for name in ("key", "cost", "exempt_when"):
        if callable(options.get(name)):
            options[name] = of_request(options[name])
    route_limit = RouteLimit(limits=of_request(limits) if callable(limits) else limits, **options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            view.dispatch = _method(view.dispatch, decorate)  # type: ignore[attr-defined]
            return view

        @functools.wraps(view)
        def asked(request: Any, *args: Any, **kwargs: Any) -> Any:
            state = getattr(request, STATE, None)
            if state is not None and route_limit in state.asked:
                return view(request, *args, **kwargs)
            call = functools.partial(view, request, *args, **kwargs)
            return (_ask_task if _in_loop() else _ask)(getattr(request, "_request", request), asked, call)

        if iscoroutinefunction(view):
            markcoroutinefunction(asked)
        declare(asked, route_limit)
        return asked

    return decorate


def _method(method: Any, decorate: Callable[[Any], Any]) -> Any:
    @functools.wraps(method)
    def bound(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        own = functools.wraps(method)(functools.partial(method.__get__(self, type(self))))
        return decorate(own)(request, *args, **kwargs)

    for mark in declared(decorate(method)):
        if mark is not None and mark not in declared(bound):
            declare(bound, mark)
    return bound


def _asking(request: Any, function: Any) -> tuple[State, Endpoint | None]:
    """What a view that was not asked for has to ask; `state` is new where there is no middleware."""
    state = getattr(request, STATE, None)
    if state is None:
        state = State(request, in_middleware=False)
        setattr(request, STATE, state)
    todo = tuple(mark for mark in declared(function) if mark not in state.asked)
    state.asked = (*state.asked, *(mark for mark in todo if mark is not None))
    return state, keeper().endpoint(_name(function), todo) if todo else None


def _name(function: Any) -> str:
    """That of the view. A method may be inherited: it goes by the class of its instance."""
    inner = inspect.unwrap(function, stop=lambda one: isinstance(one, functools.partial))
    owner = getattr(inner.func, "__self__", None) if isinstance(inner, functools.partial) else None
    if owner is None:
        return dotted_name(function)
    method = inner.func.__name__
    return short_name(f"{full_name(type(owner))}{'' if method == 'dispatch' else f'.{method}'}")


def _ask(request: Any, function: Any, call: Callable[[], Any]) -> Any:
    keep = keeper()
    state, endpoint = _asking(request, function)
    if endpoint is None or endpoint.exempt:
        return call()
    state.view.user = keep.user(request) if keep.facts.wants_user(endpoint) else None
    answer = within(request, keep.gate.alone, state.view, endpoint)
    if isinstance(answer, Refused):
        if state.passed is not None:
            keep.gate.give_back(state.passed)
        state.answer = request.ratekeeper = answer
        response = keep.refusal(request, answer)
    else:
        _join(request, state, answer)
        keep.gate.sleep(answer)
        response = call()
    return response if state.in_middleware else leave(keep.gate, state, response)


async def _ask_task(request: Any, function: Any, call: Callable[[], Any]) -> Any:
    keep = keeper()
    state, endpoint = _asking(request, function)
    if endpoint is None or endpoint.exempt:
        return await awaited(call())
    state.view.user = await keep.task_user(request) if keep.facts.wants_user(endpoint) else None
    answer = await within(request, keep.tasks.alone, state.view, endpoint)
    if isinstance(answer, Refused):
        if state.passed is not None:
            await keep.tasks.give_back(state.passed)
        state.answer = request.ratekeeper = answer
        response = await awaited(keep.refusal(request, answer))
    else:
        _join(request, state, answer)
        await keep.tasks.sleep(answer)
        response = await awaited(call())
    return response if state.in_middleware else await leave_task(keep.tasks, keep.gate, state, response)


def _join(request: Any, state: State, answer: Passed) -> None:
    if state.passed is not None:
        state.passed.join(answer)
    else:
        state.answer = request.ratekeeper = answer


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
