"""Calls that must be made to their end, even if the task that makes them is cancelled."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from ratebound.late_asyncio import asyncio

T = TypeVar("T")
_running: set["asyncio.Task[Any]"] = set()  # an event loop itself holds its tasks weakly


async def uncancelled(call: Coroutine[Any, Any, T]) -> T:
    """Await a call in a task of its own, and return its result. Cancelling the caller does not cancel the call.

    Where another kind of loop than asyncio's runs, the call is awaited directly.
    """
    if asyncio._get_running_loop() is None:
        return await call
    task = asyncio.get_running_loop().create_task(call, name="ratebound-uncancelled")
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)
