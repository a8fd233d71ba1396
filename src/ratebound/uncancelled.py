"""Calls that must be made to their end, even if the task that makes them is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set["asyncio.Task[None]"] = set()  # an event loop itself holds its tasks weakly


async def uncancelled(call: Coroutine[Any, Any, None]) -> None:
    """Await a call in a task of its own. Cancelling the caller does not cancel the call.

    Where another kind of loop than asyncio's runs, the call is awaited directly.
    """
    if asyncio._get_running_loop() is None:
        await call
        return
    task = asyncio.get_running_loop().create_task(call, name="ratebound-release")
    _running.add(task)
    task.add_done_callback(_running.discard)
    await asyncio.shield(task)
