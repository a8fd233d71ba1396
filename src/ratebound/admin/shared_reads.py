"""Reads that many pages ask for at the same moment, made once for all of them.

Every open page reads all documents of operators when one of them has changed. A long list takes its time to make, in a
process that decides.
"""

import asyncio
from collections.abc import Awaitable, Callable

Read = Callable[[str], Awaitable[bytes]]
Task = asyncio.Task[bytes]


class SharedReads:
    """Answers of reads by name, for all who ask in one event loop. `read` makes one.

    Whoever asks while a read is under way gets the answer of the next one: the one under way may have missed a change
    that was made before.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._next: dict[str, Task] = {}  # reads that have not begun
        self._latest: dict[str, Task] = {}  # these, and those under way

    async def ask(self, name: str) -> bytes:
        """Return the answer of a read that begins now, or after the one that is under way. Raises what that raises."""
        task = self._next.get(name)
        if task is None or task.done():  # done before it has begun: it was cancelled, with its event loop
            task = asyncio.create_task(self._read_after(self._latest.get(name), name))
            self._next[name] = self._latest[name] = task
            task.add_done_callback(lambda done: self._forget(done, name))
        return await asyncio.shield(task)

    async def _read_after(self, before: Task | None, name: str) -> bytes:
        if before is not None and not before.done():
            await asyncio.wait([before])
        del self._next[name]
        return await self._read(name)

    def _forget(self, task: Task, name: str) -> None:
        if not task.cancelled():
            task.exception()  # perhaps nobody waits for it any more
        if self._latest.get(name) is task:
            del self._latest[name]
