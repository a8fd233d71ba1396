"""Wake-ups at an instant. The timers of event loops count milliseconds: a request would be half of one late.

On Linux a timerfd wakes the loop within about 0.1 ms, without keeping a core busy. Elsewhere the loop's own timer does.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

CLOCK_MONOTONIC = 1  # the clock of time.monotonic
NONBLOCKING = 0o4000 | 0o2000000  # TFD_NONBLOCK | TFD_CLOEXEC
ABSOLUTE = 1  # TFD_TIMER_ABSTIME

_Spec: Any = ctypes.c_long * 4  # struct itimerspec: interval and value, each in seconds and nanoseconds


class WakeUp:
    """Calls a function in the running loop at an instant. Only the last instant that was set counts."""

    __slots__ = ("_call", "_fd", "_handle", "_loop", "_settime", "_spec")

    def __init__(self, call: Callable[[], object], *, precise: bool = True) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._fd = -1
        self._settime: Any = None
        self._spec = _Spec()
        if precise and sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8:
            libc: Any = ctypes.CDLL(None)
            if hasattr(libc, "timerfd_settime"):
                self._settime = libc.timerfd_settime
                self._fd = libc.timerfd_create(CLOCK_MONOTONIC, NONBLOCKING)  # -1 without a free descriptor
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rang)

    def set(self, at: float) -> None:
        """Call at this time of `time.monotonic`, and at no time that was set before."""
        if self._fd >= 0:
            nanoseconds = max(int(at * 1e9), 1)  # 0 would turn the timer off
            self._spec[2], self._spec[3] = divmod(nanoseconds, 1_000_000_000)
            self._settime(self._fd, ABSOLUTE, ctypes.byref(self._spec), None)
            return
        self.clear()
        self._handle = self._loop.call_later(max(at - monotonic(), 0.0), self._call)

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew after it rang
            return
        self._call()

    def clear(self) -> None:
        """Call at no time."""
        if self._fd >= 0:
            self._spec[2] = self._spec[3] = 0
            self._settime(self._fd, ABSOLUTE, ctypes.byref(self._spec), None)
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Call at no time, and free the timer."""
        self.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
