"""A policy file that is read again when it changes, without a restart.

A new policy is in force for the next request, by one assignment. A broken file changes nothing, and says so loudly.
Counts are kept, except where a limit's algorithm or period has changed (law 10), and these are named. So are a quota
whose time zone or first day has changed, which keeps its count, slots whose lease has changed, which are kept, and
penalties, which keep their strikes and blocks.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratebound.duration import Duration, as_seconds
from ratebound.fork import renew_in_children
from ratebound.policy.load.document import SUFFIXES
from ratebound.policy.load.loader import policy_text, read_policy
from ratebound.policy.model.policy import Policy
from ratebound.policy.problem import PolicyError, Problem
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.policy_changes import changes_between

log = logging.getLogger("ratebound")


class Preparations:
    """Methods to call with a new policy before it is in force, so that no request has to prepare for it.

    Methods are held weakly: a policy file may outlive the gates that use it.
    """

    def __init__(self) -> None:
        self._methods: list[weakref.WeakMethod[Callable[[CompiledPolicy], None]]] = []

    def add(self, method: Callable[[CompiledPolicy], None]) -> None:
        """Add a method of an object that its owner keeps."""
        self._methods.append(weakref.WeakMethod(method, self._methods.remove))

    def run(self, compiled: CompiledPolicy) -> None:
        """Call the methods of all objects that still exist. An exception is logged: the policy will be in force, and
        what is not prepared is made when a request needs it."""
        for reference in list(self._methods):
            method = reference()
            try:
                if method is not None:
                    method(compiled)
            except Exception:
                log.exception("preparing for a new policy failed")

    def run_strictly(self, compiled: CompiledPolicy) -> None:
        """Call the methods of all objects that still exist. Raises what one of them raises."""
        for reference in list(self._methods):
            method = reference()
            if method is not None:
                method(compiled)


class PolicyFile:
    r"""The policy of a file, which is read again when the file changes.

    `error` is what is wrong with the file as it is now, or None if it is in force. The methods of `preparations` are
    called with each new policy in the thread that reads the file. Those of `checks` are called before: if one raises,
    the new policy cannot be used. `text` is the text of the policy in force. `source` is where `reload` reads: a
    process that follows another one may read that one's copy, and messages name the file.

    Args:
        path: A .yaml, .json or .toml file.
        functions: The functions that the policy calls by name.
        environ: The variables that fill in `${NAME}`. None means `os.environ`.
        every: The time between two looks at the file: seconds or a timedelta. With 0 only `reload` reads it.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        ValueError: `every` is negative.

    Examples:
        >>> from pathlib import Path
        >>> from ratebound.policy import Gate, PolicyFile
        >>> path = Path("policy.toml")
        >>> _ = path.write_text('[[rules]]\nname = "api"\nlimits = "100/minute"\n')
        >>> file = PolicyFile(path)
        >>> gate = Gate(file)
        >>> _ = path.write_text('[[rules]]\nname = "api"\nlimits = "50/minute"\n')
        >>> file.reload(), file.policy.rules[0].limits
        (True, '50/minute')
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        environ: Mapping[str, str] | None = None,
        every: Duration = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self.source = self.path
        self.text = ""
        self.every = as_seconds("every", every)
        self.preparations = Preparations()
        self.checks = Preparations()
        self.error: PolicyError | None = None
        self.changes: tuple[str, ...] = ()  # what the last reload made start anew, and what it could not change
        self.functions = functions
        self._environ = environ
        self._lock = threading.Lock()
        self._stamp = self._look()
        policy, self.text = self._load(self.source)
        self.compiled = CompiledPolicy(policy)
        self._clock = clock
        renew_in_children(self)
        self._next = clock() + self.every

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.compiled.policy

    def refresh(self) -> None:
        """Look at the file if it is time to, and read a change in a thread of its own. Gates call this for each
        request."""
        if not self.every or (now := self._clock()) < self._next:
            return
        self._next = now + self.every
        if self.is_changed() and not self._lock.locked():  # else it is being read
            with suppress(RuntimeError):  # too many threads: the next request after `every` tries again
                threading.Thread(target=self.reload, name="ratebound policy", daemon=True).start()

    def is_changed(self) -> bool:
        """Return True if the file has changed since it was last read, or could not be read then."""
        return self._look() != self._stamp

    def reload(self) -> bool:
        """Read the file now, and put its policy in force. Return False if it cannot be used: then the old policy stays
        in force, and `error` says why."""
        with self._lock:
            stamp = self._look()  # before reading: what is written meanwhile is seen the next time
            try:
                policy, text = self._load(self.source)
                compiled = CompiledPolicy(policy)
                self.checks.run_strictly(compiled)
            except Exception as error:  # whatever it is, the old policy must stay in force, and say so
                known = (
                    error if isinstance(error, PolicyError) else PolicyError([Problem((), repr(error))], str(self.path))
                )
                # A file that cannot be opened now may be readable soon: this process may be out of descriptors.
                is_unread = isinstance(known.__context__, OSError)
                is_told = is_unread and str(known) == str(self.error)
                self.error, self._stamp = known, None if is_unread else stamp
                if not is_told:
                    log.error("the policy file %s cannot be used; the old policy stays in force:\n%s", self.path, known)
                return False
            self.preparations.run(compiled)
            self.changes = log_swap(self.compiled.policy, policy)
            self.compiled, self.text, self.error, self._stamp = compiled, text, None, stamp
            return True

    @property
    def format(self) -> str:
        """The format of the file: yaml, json or toml."""
        return SUFFIXES[self.path.suffix.lower()]

    def read(self) -> Policy:
        """Return the policy as it is in the file `path` now, without putting it in force.

        Raises:
            PolicyError: The policy is invalid. It has every error, with its place.
        """
        return self._load(self.path)[0]

    def renew(self) -> None:
        """Replace the lock in a child process: the thread that may hold it is not there to release it."""
        self._lock = threading.Lock()

    def _load(self, source: Path) -> tuple[Policy, str]:
        text, format = policy_text(source)
        file = str(self.path)
        return read_policy(text, format=format, file=file, functions=self.functions, environ=self._environ), text

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def log_swap(old: Policy, new: Policy) -> tuple[str, ...]:
    """Log that a new policy is in force. Return what it makes start anew, and what it cannot change."""
    changes = tuple(changes_between(old, new))
    if old.pressure is not None and new.pressure is not None:
        new.pressure.follow(old.pressure)
    count = len(new.rules) + len(new.descriptors)
    log.warning("a new policy is in force: %d rules%s", count, "".join(f"\n    {change}" for change in changes))
    return changes
