"""Errors of the application's own functions in the log: one that fails for every request must not fill it."""

import logging
import threading
import time

from ratebound.fork import renew_in_children

log = logging.getLogger("ratebound")

SECONDS = 60  # between two tracebacks of one function
MAX_KNOWN = 1024  # functions that are remembered


class FunctionErrors:
    """Logs an error of a function with its traceback once a minute, with the number of errors in between. A function is
    known by what it was called for: "finding the cost for rule api"."""

    def __init__(self) -> None:
        self.clock = time.monotonic
        self._known: dict[str, tuple[float, int]] = {}  # when it was logged, and the errors since
        self._lock = threading.Lock()
        renew_in_children(self)

    def note(self, what: str, consequence: str) -> None:
        """Log the exception that is being handled. Call this in an `except` block only."""
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
        """Log the next error of every function."""
        with self._lock:
            self._known.clear()

    def renew(self) -> None:
        """Make a new lock in a child process: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()


function_errors = FunctionErrors()
