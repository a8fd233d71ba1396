"""How functions of the application are called that may block, or have to be awaited, from threads and from tasks; and
what becomes of their errors."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation, SynchronousOnlyOperation
from django.db import connections
from django.http import Http404
from django.http.multipartparser import MultiPartParserError

from ratebound.policy.functions import is_awaitable

__all__ = ["SynchronousOnlyOperation", "apart", "at_once", "awaited", "in_loop", "in_thread", "status_of"]


async def awaited(answer: Any) -> Any:
    return await answer if is_awaitable(answer) else answer


async def apart(function: Callable[..., Any], *args: Any) -> Any:
    """What it says, for a task: it is run in a thread, as it may block, unless it is awaited."""
    return await awaited(
        function(*args) if iscoroutinefunction(function) else await sync_to_async(_call)(function, *args)
    )


def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """What it says, for a thread, be it to be awaited."""
    try:
        answer = function(*args)
    except SynchronousOnlyOperation:
        answer = in_thread(function, *args)
    return _finished(answer) if is_awaitable(answer) else answer


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """What it says in a thread of its own: this one runs an event loop, which has to wait for a function that is not
    awaited."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(copy_context().run, _closing, function, *args).result()


def _closing(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    finally:
        connections.close_all()  # those of this thread


def _finished(answer: Any) -> Any:
    finish = async_to_sync(awaited)
    return in_thread(finish, answer) if in_loop() else finish(answer)


def in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def status_of(error: Exception) -> int:
    """Of the response that Django, or the REST framework, will make of it."""
    found = getattr(error, "status_code", None)
    if isinstance(found, int):
        return found
    if isinstance(error, Http404):
        return 404
    if isinstance(error, PermissionDenied):
        return 403
    return 400 if isinstance(error, BadRequest | SuspiciousOperation | MultiPartParserError) else 500
