"""Live figures for everybody who looks: one read and one encoded event per second, however many look.

Nothing runs while nobody looks. A reader that is slow misses events: what it has not taken is replaced by what is new.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ratebound.admin.messages import CallError, encoded

log = logging.getLogger("ratebound.admin")

EVERY = 1.0  # seconds between two reads of the figures
RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser connects again
HEARTBEAT = b": still here\n\n"

Ask = Callable[[str], Awaitable[Any]]  # the answer of a call by its name


class LiveReader:
    """One who looks: the events that it has not taken, the newest of each name."""

    def __init__(self) -> None:
        self._pending: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._is_over = False

    def put(self, name: str, event: bytes) -> None:
        """Give it an event, in place of one of the same name that it has not taken."""
        self._pending[name] = event
        self._news.set()

    def end(self) -> None:
        """End it: `take` returns None from now on."""
        self._is_over = True
        self._news.set()

    async def take(self, within: float) -> bytes | None:
        """Return all events that are new; a heartbeat if there are none within some seconds; None at the end."""
        try:
            async with asyncio.timeout(within):
                await self._news.wait()
        except TimeoutError:
            return HEARTBEAT
        if self._is_over:
            return None
        self._news.clear()
        found = b"".join(self._pending.values())
        self._pending.clear()
        return found


class LiveFeed:
    """The events of live figures, for all readers of one event loop. `ask` makes a call of the table by its name."""

    def __init__(self, ask: Ask, *, every: float = EVERY) -> None:
        self._ask = ask
        self._every = every
        self._readers: set[LiveReader] = set()
        self._task: asyncio.Task[None] | None = None
        self._history: tuple[float, bytes] | None = None  # when it was read, and its event

    @property
    def readers(self) -> int:
        """The number of those who look now."""
        return len(self._readers)

    async def join(self) -> LiveReader:
        """Return a new reader, whose first event is the history. It must `leave`. Raises CallError."""
        reader = LiveReader()
        reader.put("history", RETRY + await self._read_history())
        self._readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ratebound live figures")
        return reader

    def leave(self, reader: LiveReader) -> None:
        """End a reader."""
        reader.end()
        self._readers.discard(reader)
        if not self._readers and self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> None:
        """End all readers."""
        for reader in list(self._readers):
            self.leave(reader)

    async def _read_history(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if self._history is None or not 0 <= now - self._history[0] < self._every:
            self._history = now, _event("history", await self._ask("history"))
        return self._history[1]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        at, revision = loop.time(), None
        while True:
            try:
                view = await self._ask("figures")
                found = view.get("revision")
                if revision is not None and found != revision:
                    self._send("changed", {"revision": found})
                revision = found
                self._send("figures", view)
            except CallError as error:
                self._send("problem", {"detail": error.detail})
            except Exception:  # the next one may work, and those who look must not wait for ever
                log.exception("the live figures could not be read; the next round tries again")
                self._send("problem", {"detail": "The figures could not be read: see the log."})
            at = max(at + self._every, loop.time())
            await asyncio.sleep(at - loop.time())

    def _send(self, name: str, content: object) -> None:
        event = _event(name, content)
        for reader in self._readers:
            reader.put(name, event)


def _event(name: str, content: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(content))
