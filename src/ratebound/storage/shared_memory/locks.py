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

    `try_take` returns 0 if the lock was taken, and otherwise a number for `wait`. `release` releases a lock that this
    thread has, and does nothing if it has not.
    """

    handles: list[int]
    try_take: Callable[[int], int]
    release: Callable[[int], Any]

    def wait(self, handle: int, code: int, seconds: float) -> int:
        """Go on where `try_take` returned `code`. Return 0 if the lock is taken after all, or else another number.

        A thread that has the lock already does not wait: a signal handler has interrupted it, and must not go on.
        """
        raise NotImplementedError

    def abandon(self, handle: int) -> None:
        """Release a lock if this thread has it: an exception of a signal handler came while it was being taken."""
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

    def wait(self, handle: int, code: int, seconds: float) -> int:
        """Wait for a mutex; other threads run meanwhile. Take it over if its process has ended.

        What that process was writing is repaired by the mark of the shard.
        """
        if code == errno.EBUSY:
            until = _Time(*divmod(time.clock_gettime_ns(self._clock) + int(seconds * 1e9), 1_000_000_000))
            code = self._wait(handle, ctypes.addressof(until))
        return self._consistent(handle) if code == OWNER_DIED else code

    def abandon(self, handle: int) -> None:
        """Release a mutex if this thread has it. Nobody could use it again if it were not made consistent before."""
        code = self.try_take(handle)
        if code in (OWN, OWNER_DIED):
            self._consistent(handle)
        if code in (0, OWN, OWNER_DIED):
            self.release(handle)

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
        self._threads: list[Any] = [threading.RLock() for _ in range(SHARDS)]  # they know which thread has them

    def _try_take(self, handle: int) -> int:
        lock = self._threads[handle]
        if lock._is_owned():
            return OWN
        if not lock.acquire(blocking=False):
            return errno.EBUSY
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, handle)
        except BlockingIOError:
            lock.release()
            return errno.EBUSY
        return 0

    def _release(self, handle: int) -> None:
        lock = self._threads[handle]
        if lock._is_owned():
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, handle)
            lock.release()

    def wait(self, handle: int, code: int, seconds: float) -> int:
        """Try again and again, with a pause that grows."""
        ends, pause = time.monotonic() + seconds, 20e-6
        while code and code != OWN:
            left = ends - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, 1e-3)
            code = self._try_take(handle)
        return code

    def abandon(self, handle: int) -> None:
        """Release a lock if this thread has it."""
        self._release(handle)


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
