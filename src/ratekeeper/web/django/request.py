"""One request on its way: what was said about it, and what its response is told when it leaves."""

import functools
import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from ratekeeper.policy import RequestView
from ratekeeper.web.answer import EXPOSE, Passed, Refused
from ratekeeper.web.asgi import request_view as view_of_scope
from ratekeeper.web.declared import RouteLimit
from ratekeeper.web.gate import AsyncWebGate, WebGate
from ratekeeper.web.views import refusal_fields
from ratekeeper.web.wsgi import request_view as view_of_environ

STATE = "_ratekeeper"  # where a request keeps its State

_request: ContextVar[Any] = ContextVar("ratekeeper_request")


class State:
    """One request: as rules see it, what was said about it so far, and which declared limits were asked."""

    __slots__ = ("answer", "asked", "in_middleware", "late", "view")

    def __init__(self, request: Any, *, in_middleware: bool) -> None:
        self.view = _view(request)
        self.answer: Passed | Refused | None = None
        self.asked: tuple[RouteLimit, ...] = ()
        self.late = False
        self.in_middleware = in_middleware

    @property
    def passed(self) -> Passed | None:
        return self.answer if isinstance(self.answer, Passed) else None


def _view(request: Any) -> RequestView:
    scope = getattr(request, "scope", None)
    if scope is None:
        return view_of_environ(request.environ)
    query = scope.get("query_string", b"")  # text, where Django's own test client makes the scope
    return view_of_scope(scope if isinstance(query, bytes) else {**scope, "query_string": query.encode()})


def leave(gate: WebGate, state: State, response: Any) -> Any:
    """Our headers on a response, whoever made it; and what it has cost, if its result has a say in that."""
    passed = state.passed
    if passed is not None and passed.settles:
        if response.streaming:
            response.streaming_content = _counted(gate, passed, response.status_code, response.streaming_content)
        else:
            gate.after(passed, response.status_code, len(response.content))
    return _told(state, response)


async def leave_task(gate: AsyncWebGate, threads: WebGate, state: State, response: Any) -> Any:
    passed = state.passed
    if passed is not None and passed.settles:
        if response.streaming:
            chunks, status = response.streaming_content, response.status_code
            response.streaming_content = (
                _counted_task(gate, passed, status, chunks)
                if response.is_async
                else _counted(threads, passed, status, chunks)  # Django runs it in a thread
            )
        else:
            await gate.after(passed, response.status_code, len(response.content))
    return _told(state, response)


def _told(state: State, response: Any) -> Any:
    if state.answer is not None:
        ours = refusal_fields(state.answer) if isinstance(state.answer, Refused) else state.answer.headers
        for name, value in ours:
            if name.lower() == EXPOSE and name in response.headers:
                value = f"{response.headers[name]}, {value}"
            response.headers[name] = value
    return response


def _counted(gate: WebGate, passed: Passed, status: int, chunks: Iterable[bytes]) -> Any:
    sent = 0
    for chunk in chunks:
        sent += len(chunk)
        yield chunk
    gate.after(passed, status, sent)  # not reached when the client goes away: the charge stays


async def _counted_task(gate: AsyncWebGate, passed: Passed, status: int, chunks: Any) -> Any:
    sent = 0
    async for chunk in chunks:
        sent += len(chunk)
        yield chunk
    await gate.after(passed, status, sent)


def within(request: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with the request at hand, for the functions of limits. A coroutine keeps the context that it begins in."""
    _request.set(request)
    return function(*args, **kwargs)


def of_request(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the HttpRequest as one of the RequestView."""

    @functools.wraps(function)
    def called(_: RequestView) -> Any:
        return function(_request.get())

    return called


async def awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
