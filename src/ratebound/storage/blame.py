"""What is not the storage's fault: an exception that the program raised itself, and an event loop that it blocked.

The first is neither swallowed nor counted as an outage; the second is answered by the failure mode and not counted.
"""

import asyncio
import signal
import threading
from types import CodeType
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from ratebound.errors import StorageError

LENIENCE = 0.005  # seconds by which an event loop may be late without having been blocked
STALLED = "the program blocked its event loop, so the storage could not be asked in time"


class Blameless(StorageError):
    """The storage goes on answering, but this call was not made, or too late to be waited for: no breaker counts it."""


class TooLate(StorageError):
    """The storage gave no answer in time, or nobody looked for it."""


class LoopWatch:
    """Sees, as a context, for how long the running event loop is blocked. It looks every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._blocked = 0.0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._next = self._loop.call_later(self._interval, self._look)
        return self

    def __exit__(self, *exception: object) -> None:
        self._next.cancel()
        self._add()

    @property
    def stalled(self) -> bool:
        """True if the loop was blocked for most of the time: who had to answer had too little of it."""
        return 2 * self._blocked > self._loop.time() - self._begin

    def _look(self) -> None:
        self._add()
        self._next = self._loop.call_later(self._interval, self._look)

    def _add(self) -> None:
        late = self._loop.time() - self._next.when()
        if late > LENIENCE:
            self._blocked += late


T = TypeVar("T")


class Living(Generic[T]):
    """Things that are counted as long as somebody holds them. Who changes it holds a lock.

    A counter would be wrong for ever after an exception out of a signal handler that came just before it was lowered.
    A WeakSet would be, too: it lowers its own in Python, where such an exception is swallowed.
    """

    def __init__(self) -> None:
        self._found: list[ref[T]] = []

    def __len__(self) -> int:
        return sum(found() is not None for found in self._found)

    def add(self, thing: T) -> None:
        self._found = [found for found in self._found if found() is not None]
        self._found.append(ref(thing))

    def discard(self, thing: T) -> None:
        self._found = [found for found in self._found if found() not in (None, thing)]


def is_programs_own(error: BaseException) -> bool:
    """Return True if `error` came out of a signal handler of the program, or is a stop like KeyboardInterrupt.

    An alarm that raises TimeoutError, or Celery's soft time limit, can come at any moment of a call. By its type it
    may look like a failure of the socket; its traceback leads through the handler.
    """
    if not isinstance(error, Exception):
        return True
    if threading.get_ident() != threading.main_thread().ident:  # Python runs handlers there only
        return False
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def interrupted(error: BaseException) -> BaseException | None:
    """Return the program's own exception that came while a thread was started, if there was one.

    There the standard library may hide it: its locks complain, and what they raise is a RuntimeError.
    """
    for found in (error, error.__context__):
        if found is not None and is_programs_own(found):
            return found
    return None


def _handlers() -> set[CodeType]:
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if not callable(handler):
            continue
        function = handler if hasattr(handler, "__code__") else type(handler).__call__  # an object that can be called
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
