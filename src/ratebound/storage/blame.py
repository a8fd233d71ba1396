"""Failures of a storage call that are the program's fault: its own exceptions, and a blocked event loop.

The program's own exception is raised to the caller and does not count as an outage. A blocked event loop is answered by
the failure mode, and no breaker counts it.
"""

import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from ratebound.errors import StorageError
from ratebound.late_asyncio import asyncio

LENIENCE = 0.005  # seconds by which an event loop may be late without having been blocked
STALLED = "the program blocked its event loop, so the storage could not be called in time"


class Blameless(StorageError):
    """A storage call that was not made, or ended too late, although the storage works. No breaker counts it."""


class TooLate(StorageError):
    """The storage did not answer in time, or its answer was not read in time."""


class LoopWatch:
    """A context manager that measures for how long the running event loop is blocked.

    It checks every `interval` seconds.
    """

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
        """True if the loop was blocked for most of the time, so that the storage had too little time to answer."""
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
    """A collection that counts objects as long as they are referenced elsewhere. Callers hold a lock while changing it.

    A counter would stay wrong after an exception from a signal handler that came just before a decrement. A WeakSet
    would too: it removes entries in Python code, where such an exception is swallowed.
    """

    def __init__(self) -> None:
        self._found: list[ref[T]] = []

    def __len__(self) -> int:
        return sum(found() is not None for found in self._found)

    def __iter__(self) -> Iterator[T]:
        return iter([thing for found in self._found if (thing := found()) is not None])

    def add(self, thing: T) -> None:
        """Count an object from now on."""
        self._found = [found for found in self._found if found() is not None]
        self._found.append(ref(thing))

    def discard(self, thing: T) -> None:
        """Stop counting an object."""
        self._found = [found for found in self._found if found() not in (None, thing)]


def is_programs_own(error: BaseException) -> bool:
    """Return True if `error` came from a signal handler of the program, or is a stop like KeyboardInterrupt.

    An alarm that raises TimeoutError, or Celery's soft time limit, can interrupt a call at any moment. Its type may
    look like a socket failure, but its traceback contains the handler.
    """
    if not isinstance(error, Exception):
        return True
    if threading.get_ident() != threading.main_thread().ident:  # Python runs handlers in the main thread only
        return False
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def interrupted(error: BaseException) -> BaseException | None:
    """Return the program's own exception that interrupted the start of a thread, or None.

    The standard library may hide it there: its locks complain with a RuntimeError.
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
