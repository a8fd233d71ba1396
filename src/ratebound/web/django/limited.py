"""`@limit("5/minute")`: what a view declares. It is asked at the view's door by the middleware; a view that was not
asked for, because there is none or because a decorator hides what is declared, asks by itself: never unlimited."""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from ratebound.web.answer import Passed, Refused
from ratebound.web.declared import Endpoint, RouteLimit, declare, declared, exempt
from ratebound.web.django.keeper import Keeper, keeper
from ratebound.web.django.login import remember
from ratebound.web.django.names import bound_name, class_of, owner_of
from ratebound.web.django.request import (
    STATE,
    State,
    at_hand,
    fail,
    fail_task,
    leave,
    leave_task,
    out_of_hand,
    route_limit,
    state_of,
    without,
)
from ratebound.web.django.seen import is_among, method_of
from ratebound.web.django.waiting import awaited, in_loop, status_of
from ratebound.web.options import AnyViewLimits, ViewLimitOptions, checking_call

__all__ = ["exempt", "limit"]

T = TypeVar("T")

NO_REQUEST = "@limit is for views: for a method write @method_decorator(limit(…)), or put @limit on the class"


@checking_call
def limit(limits: AnyViewLimits, **options: Unpack[ViewLimitOptions]) -> Callable[[T], T]:
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
    own: _Own | None = None

    @functools.wraps(view)
    def asked(request: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal own
        state = getattr(request, STATE, None)
        if state is not None and said in state.asked:
            state.asked = state.asked[1:] if state.asked[0] is said else without(state.asked, said)
            return view(request, *args, **kwargs)
        if not hasattr(request, "META"):
            raise TypeError(f"expected a request, not {request!r}. {NO_REQUEST}")
        call = functools.partial(view, request, *args, **kwargs)
        inner = getattr(request, "_request", request)  # of the REST framework
        if own is None:
            own = _Own(asked, view, said)
        if own.awaits and in_loop():
            return _ask_task(inner, own, call)
        return _ask(inner, own, call)

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


class _Own:
    """What a limited view knows of itself. `awaits` says whether who calls it awaits its answer: also the dispatch of a
    class whose methods are async."""

    __slots__ = ("awaits", "function", "name", "of_class", "said")

    def __init__(self, function: Any, view: Any, said: RouteLimit) -> None:
        owner, method = owner_of(function)
        self.function = function
        self.said = said
        self.name = bound_name(function)
        self.awaits = iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))
        self.of_class = class_of(function) or (type(owner) if method == "dispatch" else None)

    def below(self, request: Any, marks: Sequence[RouteLimit | None], asked: Sequence[RouteLimit]) -> Any:
        """The decorators below this one, and those of the method that it leads to: they are asked along with it."""
        found = [mark for mark in marks if mark is not None and mark not in asked]
        if self.said in found:
            found.remove(self.said)
        if self.of_class is not None:
            within = declared(method_of(self.of_class, request.method, getattr(self.function, "actions", None)))
            found += [mark for mark in within if mark is not None and is_among(mark, marks)]
        return found


class _Asking:
    """What a view that was not asked for has to ask, and whether it is the one to see the response."""

    __slots__ = ("below", "endpoint", "marks", "state", "watches")

    def __init__(self, keep: Keeper, request: Any, own: _Own) -> None:
        state = self.state = state_of(request)
        self.marks = declared(own.function)
        found = keep.views.endpoint(own.name, self.marks, state.asked)
        self.endpoint: Endpoint | None = None if found is None or found.exempt else found
        self.watches = self.endpoint is not None and not state.watched
        self.below = own.below(request, self.marks, state.asked)

    def pass_on(self, request: Any, answer: Passed) -> None:
        self.state.join(request, answer)
        if answer.terms.charges:
            remember(request)
        self.state.asked = (*self.state.asked, *self.below)


def _ask(request: Any, own: _Own, call: Callable[[], Any]) -> Any:
    keep = keeper()
    asking = _Asking(keep, request, own)
    state, endpoint = asking.state, asking.endpoint
    if endpoint is None:
        return call()
    state.watched = True
    keep.read_body(request, state, endpoint)
    state.view.user = keep.user(request) if keep.facts.wants_user(endpoint) else None
    hand = at_hand(request, asking.marks)
    try:
        answer = keep.gate.alone(state.view, endpoint)
    finally:
        out_of_hand(hand)
    if isinstance(answer, Refused):
        state.refuse(request, answer)
        try:
            response = keep.refusal(request, answer)
        except Exception as error:
            state.word(status_of(error))
            raise
        state.word(response.status_code)
    else:
        asking.pass_on(request, answer)
        keep.gate.sleep(answer)
        try:
            response = call()
        except Exception as error:
            if asking.watches:
                fail(keep.gate, request, state, error)
            raise
    if own.awaits or inspect.isawaitable(response):
        return _left(keep, request, state, response, asking.watches)
    return leave(keep.gate, request, state, response) if asking.watches else response


async def _left(keep: Keeper, request: Any, state: State, response: Any, watches: bool) -> Any:
    """The response of an async view without an event loop around it: it was asked for in the thread that waits."""
    if state.passed is not None and state.passed.terms.charges:
        remember(request)  # the view runs in this task, which does not see what that thread has noted
    try:
        response = await awaited(response)
    except Exception as error:
        if watches:
            await sync_to_async(fail)(keep.gate, request, state, error)
        raise
    return await sync_to_async(leave)(keep.gate, request, state, response) if watches else response


async def _ask_task(request: Any, own: _Own, call: Callable[[], Any]) -> Any:
    keep = keeper()
    asking = _Asking(keep, request, own)
    state, endpoint = asking.state, asking.endpoint
    if endpoint is None:
        return await awaited(call())
    state.watched = True
    keep.read_body(request, state, endpoint)
    state.view.user = await keep.task_user(request) if keep.facts.wants_user(endpoint) else None
    hand = at_hand(request, asking.marks, is_task=True)
    try:
        answer = await keep.tasks.alone(state.view, endpoint)
    finally:
        out_of_hand(hand)
    if isinstance(answer, Refused):
        state.refuse(request, answer)
        try:
            response = await keep.task_refusal(request, answer)
        except Exception as error:
            state.word(status_of(error))
            raise
        state.word(response.status_code)
    else:
        asking.pass_on(request, answer)
        await keep.tasks.sleep(answer)
        try:
            response = await awaited(call())
        except Exception as error:
            if asking.watches:
                await fail_task(keep.tasks, request, state, error)
            raise
    return await leave_task(keep.tasks, keep.gate, request, state, response) if asking.watches else response
