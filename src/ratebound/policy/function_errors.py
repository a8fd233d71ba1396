"""Logging of errors in the application's functions. A function that fails on every request must not flood the log."""

import logging
import threading
import time

from ratebound.fork import renew_in_children

log = logging.getLogger("ratebound")

SECONDS = 60  # between two tracebacks of one function
MAX_KNOWN = 1024  # functions that are remembered


class FunctionErrors:
    """A log of errors in functions: a traceback per function at most once a minute, with the number of errors since.

    A function is identified by what it was called for: "finding the cost for rule api".
    """

    def __init__(self) -> None:
        self.clock = time.monotonic
        self._known: dict[str, tuple[float, int]] = {}  # when it was logged, and the errors since
        self._lock = threading.Lock()
        renew_in_children(self)

    def note(self, what: str, consequence: str) -> None:
        """Log the exception that is being handled; call this in an `except` block only. `consequence` says how
        Ratebound goes on."""
        now = self.clock()
        with self._lock:
            logged, more = self._known.get(what, (now - SECONDS, 0))
            is_due = now - logged >= SECONDS
            if what not in self._known and len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[what] = (now, 0) if is_due else (logged, more + 1)
        if is_due:
            before = f" ({more} more errors since the last one that was logged)" if more else ""
            log.exception("%s failed; %s%s", what, consequence, before)

    def forget(self) -> None:
        """Clear the history, so that the next error of every function is logged."""
        with self._lock:
            self._known.clear()

    def renew(self) -> None:
        """Make a new lock in a child process: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()


function_errors = FunctionErrors()
