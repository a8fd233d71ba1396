"""The locks of a zone. The system releases a lock whose process ends, however it ends.

Where the system has robust mutexes (Linux), they are used through ctypes: they exclude threads as well as processes,
and a child process may go on with them. Elsewhere there are file locks, each with a lock for the threads of the
process: they take three to five times as long. A zone says which kind it has.
"""

import ctypes
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from mmap import mmap
from typing import Any

from ratebound.fork import renew_in_children
from ratebound.storage.shared_memory.layout import HEAD, HEADER, LOCK, SHARDS

FILE_LOCKS, GLIBC_MUTEXES, OTHER_MUTEXES = 1, 2, 3
KINDS = {FILE_LOCKS: "file locks", GLIBC_MUTEXES: "mutexes of glibc", OTHER_MUTEXES: "mutexes of another C library"}
OWNER_DIED = getattr(errno, "EOWNERDEAD", 130)
OWN = errno.EDEADLK  # this thread has the lock already

_ERROR_CHECK = 2  # PTHREAD_MUTEX_ERRORCHECK
_ROBUST = 1  # PTHREAD_MUTEX_ROBUST
_SHARED = 1  # PTHREAD_PROCESS_SHARED


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Locks:
    """The locks of all shards. `handles` has one number for each shard, for the functions.

    `try_take` returns 0 if the lock was taken, and otherwise a number for `after_try`. `release` releases a lock that
    this thread has taken.
    """

    handles: list[int]
    try_take: Callable[[int], int]
    release: Callable[[int], Any]

    def after_try(self, handle: int, code: int) -> int:
        """Return 0 if `try_take` took the lock after all, OWN if this thread has it already, or else another number."""
        return code

    def take(self, handle: int, seconds: float) -> int:
        """Wait for a lock. Return what `after_try` does."""
        raise NotImplementedError


class Mutexes(Locks):
    """Robust mutexes in the zone itself."""

    def __init__(self, memory: mmap) -> None:
        quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None)  # the first keeps the interpreter's lock: it never waits
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.handles = [base + HEADER + shard * HEAD + LOCK for shard in range(SHARDS)]
        self.try_take = _function(quick, "pthread_mutex_trylock", 1)
        self.release = _function(quick, "pthread_mutex_unlock", 1)
        self._consistent = _function(quick, "pthread_mutex_consistent", 1)
        self._clock = time.CLOCK_REALTIME
        self._wait: Callable[[int, int], int] = _function(slow, "pthread_mutex_timedlock", 2)
        if hasattr(slow, "pthread_mutex_clocklock"):  # by a clock that nobody sets
            wait = slow.pthread_mutex_clocklock
            wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            self._clock = time.CLOCK_MONOTONIC
            self._wait = lambda handle, until: wait(handle, time.CLOCK_MONOTONIC, until)

    def after_try(self, handle: int, code: int) -> int:
        """Take over the mutex of a process that has ended. What it was writing is repaired by the mark of the shard."""
        return self._consistent(handle) if code == OWNER_DIED else code

    def take(self, handle: int, seconds: float) -> int:
        """Wait for a mutex. Other threads run meanwhile."""
        until = _Time(*divmod(time.clock_gettime_ns(self._clock) + int(seconds * 1e9), 1_000_000_000))
        return self.after_try(handle, self._wait(handle, ctypes.addressof(until)))

    def initialise(self) -> None:
        """Make the mutexes of a new zone."""
        library = ctypes.CDLL(None)
        attributes = ctypes.create_string_buffer(64)
        _done(library.pthread_mutexattr_init(attributes))
        _done(library.pthread_mutexattr_setpshared(attributes, _SHARED))
        _done(library.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _done(library.pthread_mutexattr_settype(attributes, _ERROR_CHECK))
        for handle in self.handles:
            _done(library.pthread_mutex_init(ctypes.c_void_p(handle), attributes))


class FileLocks(Locks):
    """Locks on bytes of the zone's file, which exclude processes, each with a lock that excludes threads."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.handles = list(range(SHARDS))
        self.try_take = self._try_take
        self.release = self._release
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the locks of threads in a forked child: the threads that may have held them do not exist there."""
        self._threads = [threading.Lock() for _ in range(SHARDS)]
        self._owners = [0] * SHARDS

    def _try_take(self, handle: int) -> int:
        if not self._threads[handle].acquire(blocking=False):
            return OWN if self._owners[handle] == threading.get_ident() else errno.EBUSY
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, handle)
        except BlockingIOError:
            self._threads[handle].release()
            return errno.EBUSY
        except BaseException:
            self._threads[handle].release()
            raise
        self._owners[handle] = threading.get_ident()
        return 0

    def _release(self, handle: int) -> None:
        self._owners[handle] = 0
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, handle)
        self._threads[handle].release()

    def take(self, handle: int, seconds: float) -> int:
        """Try again and again, with a pause that grows."""
        ends, pause = time.monotonic() + seconds, 20e-6
        while True:
            code = self._try_take(handle)
            left = ends - time.monotonic()
            if not code or code == OWN or left <= 0:
                return code
            time.sleep(min(pause, left))
            pause = min(2 * pause, 1e-3)


def best_kind() -> int:
    """Return the kind of locks for a new zone on this system."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return FILE_LOCKS
    if not hasattr(library, "pthread_mutexattr_setrobust") or not hasattr(library, "pthread_mutex_timedlock"):
        return FILE_LOCKS
    return GLIBC_MUTEXES if hasattr(library, "gnu_get_libc_version") else OTHER_MUTEXES


def _function(library: ctypes.CDLL, name: str, arguments: int) -> Any:
    found = getattr(library, name)
    found.argtypes = (ctypes.c_void_p,) * arguments
    found.restype = ctypes.c_int
    return found


def _done(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
