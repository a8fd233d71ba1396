"""Calls to Redis, collected: the spends of all connections in one turn of the event loop go out as one call.

Groups of one call do not affect each other, so collecting changes no answer. It saves the start of the script for each
group, on the server and here. A call that fails has failed for all groups in it, as with a lost connection.
"""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

from ratebound.arguments import MANY
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage.urls import open_async_storage

Waiting = list[tuple[asyncio.Future[list[Sequence[Row]]], int, int]]  # who waits for which part of the rows


def with_collected_calls(storage: Any) -> Any:
    """Return the storage of a URL, with its calls collected if it is a Redis server that is no Cluster.

    On a Cluster every group goes to the node of its own hash slot, so there is nothing to collect. A storage that is
    given as an object is returned as it is.
    """
    if not isinstance(storage, str):
        return storage
    opened = open_async_storage(storage)
    kind = getattr(getattr(opened, "address", None), "kind", "")
    return CollectedCalls(opened) if kind in ("single", "sentinel") else opened


class CollectedCalls:
    """A storage for tasks that sends spends of one turn of the loop together, at most 100 groups in a call.

    Everything but spending is passed on to `inner` as it comes.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._groups: list[Group] = []
        self._waiting: Waiting = []
        self._calls: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order."""
        if mode != "spend" or len(groups) >= MANY:
            return await self._inner.evaluate(groups, mode)  # type: ignore[no-any-return]
        loop = asyncio.get_running_loop()
        if len(self._groups) + len(groups) > MANY:
            self._send()
        if not self._waiting:
            loop.call_soon(self._send)
        answer: asyncio.Future[list[Sequence[Row]]] = loop.create_future()
        start = len(self._groups)
        self._groups += groups
        self._waiting.append((answer, start, len(self._groups)))
        return await answer

    def _send(self) -> None:
        if self._waiting:
            groups, waiting = self._groups, self._waiting
            self._groups, self._waiting = [], []
            call = asyncio.get_running_loop().create_task(self._call(groups, waiting))
            self._calls.add(call)  # loops keep weak references only
            call.add_done_callback(self._calls.discard)

    async def _call(self, groups: list[Group], waiting: Waiting) -> None:
        try:
            rows = await self._inner.evaluate(groups, "spend")
        except BaseException as error:
            for answer, _, _ in waiting:
                if not answer.done():
                    answer.set_exception(copy.copy(error))  # each caller adds its own traceback
            if not isinstance(error, Exception):
                raise
        else:
            for answer, start, end in waiting:
                if not answer.done():
                    answer.set_result(rows[start:end])

    async def reset(self, group: Group) -> None:
        """Forget states."""
        await self._inner.reset(group)

    async def close(self) -> None:
        """Close the storage."""
        await self._inner.close()
