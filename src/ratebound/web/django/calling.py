"""Calls of the application's functions, which may block or have to be awaited, from threads and from tasks."""

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
    """Return a value, which is awaited first if it has to be."""
    return await answer if is_awaitable(answer) else answer


async def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function from a task, and return its result: in a thread, as it may block, unless it is async."""
    return await awaited(
        function(*args) if iscoroutinefunction(function) else await sync_to_async(_call)(function, *args)
    )


def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function from a thread, and return its result, also if that has to be awaited."""
    try:
        answer = function(*args)
    except SynchronousOnlyOperation:
        answer = in_thread(function, *args)
    return _finished(answer) if is_awaitable(answer) else answer


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread of its own, and return its result: this thread runs an event loop, which waits."""
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
    """Return True if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def status_of(error: Exception) -> int:
    """Return the status of the response that Django, or the REST framework, makes of an error."""
    found = getattr(error, "status_code", None)
    if isinstance(found, int):
        return found
    if isinstance(error, Http404):
        return 404
    if isinstance(error, PermissionDenied):
        return 403
    return 400 if isinstance(error, BadRequest | SuspiciousOperation | MultiPartParserError) else 500
