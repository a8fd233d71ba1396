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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratebound.duration import Duration, as_seconds
from ratebound.fork import renew_in_children
from ratebound.limit import Limit
from ratebound.policy.load.loader import policy_text, read_policy
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.policy import Policy
from ratebound.policy.problem import PolicyError, Problem
from ratebound.policy.runtime.general_path import CompiledPolicy

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


class PolicyFile:
    """The policy of a file, which is read again when the file changes.

    `every` is the time between two looks at the file, in seconds or as a timedelta; with 0 only `reload` reads it.
    `error` is what is wrong with the file as it is now, or None if it is in force. The methods of `preparations` are
    called with each new policy in the thread that reads the file. `text` is the text of the policy in force. `source`
    is where `reload` reads: a process that follows another one may read that one's copy, and messages name the file.
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
        self.error: PolicyError | None = None
        self.changes: tuple[str, ...] = ()  # what the last reload made start anew, and what it could not change
        self._functions = functions
        self._environ = environ
        self._lock = threading.Lock()
        self._stamp = self._look()
        policy, self.text = self._load()
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
            threading.Thread(target=self.reload, name="ratebound policy", daemon=True).start()

    def is_changed(self) -> bool:
        """Return True if the file has changed since it was last read."""
        return self._look() != self._stamp

    def reload(self) -> bool:
        """Read the file now, and put its policy in force. Return False if it cannot be used: then the old policy stays
        in force, and `error` says why."""
        with self._lock:
            stamp = self._look()  # before reading: what is written meanwhile is seen the next time
            try:
                policy, text = self._load()
                compiled = CompiledPolicy(policy)
            except Exception as error:  # whatever it is, the old policy must stay in force, and say so
                known = (
                    error if isinstance(error, PolicyError) else PolicyError([Problem((), repr(error))], str(self.path))
                )
                self.error, self._stamp = known, stamp
                log.error("the policy file %s cannot be used; the old policy stays in force:\n%s", self.path, known)
                return False
            self.preparations.run(compiled)
            self.changes = log_swap(self.compiled.policy, policy)
            self.compiled, self.text, self.error, self._stamp = compiled, text, None, stamp
            return True

    def renew(self) -> None:
        """Replace the lock in a child process: the thread that may hold it is not there to release it."""
        self._lock = threading.Lock()

    def _load(self) -> tuple[Policy, str]:
        text, format = policy_text(self.source)
        return read_policy(
            text, format=format, file=str(self.path), functions=self._functions, environ=self._environ
        ), text

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


def changes_between(old: Policy, new: Policy) -> Iterator[str]:
    """Yield what a new policy makes start anew, and what it changes only after a restart."""
    before, after = _limits_of(old), _limits_of(new)
    for name, limits in after.items():
        if name in before:
            known = {limit.scope: limit for limit in before[name]}
            metered = {(limit.name, limit.period_us): limit.metered for limit in before[name]}
            for limit in limits:
                old_limit = known.get(limit.scope)
                if old_limit is not None:
                    yield from _kept(name, old_limit, limit)
                elif metered.get((limit.name, limit.period_us), limit.metered) != limit.metered:
                    now = "it is metered now" if limit.metered else "it is no longer metered"
                    yield f"rule {name}: '{limit.text}' starts anew: {now}"
                else:
                    yield f"rule {name}: '{limit.text}' starts anew: its algorithm or its period has changed"
    for name in before.keys() - after.keys():
        yield f"rule {name} is gone: what it has counted is forgotten"
    yield from _penalty_changes(old, new)
    if old.storage != new.storage:
        yield "storage: a change takes a restart; the old one stays in use"
    if old.ipv6 != new.ipv6:
        yield f"ipv6: clients are told apart by /{new.ipv6} from now on; rules by address start anew for IPv6"
    if old.concurrent != new.concurrent:
        yield "concurrent: a change takes a restart"
    if old.salt != new.salt:
        yield "salt: fingerprints change; rules that count by them start anew"
    counted = {rule.name: _counted_values(rule) for rule in old.descriptors}
    for one in new.descriptors:
        if counted.get(one.name, _counted_values(one)) != _counted_values(one):
            yield f"descriptors {one.name}: counts by other entries from now on, and starts anew"
    for rule in new.rules:
        if rule.name in old.rule_by and _counts_by(rule.name, old) != _counts_by(rule.name, new):
            yield f"rule {rule.name}: counts by {rule.by or new.by} from now on, and starts anew"


def _penalty_changes(old: Policy, new: Policy) -> Iterator[str]:
    for name, limit in new.penalty_limits.items():
        if name in old.penalty_limits and old.penalty_limits[name] != limit:
            yield f"penalty {name}: keeps its strikes and blocks; '{limit.text}' is for strikes from now on"
    for name in old.penalty_limits.keys() - new.penalty_limits.keys():
        yield f"penalty {name} is gone: nobody is blocked by it any more"


def _kept(rule: str, old: Limit, new: Limit) -> Iterator[str]:
    """Yield what is kept although a limit counts in other windows, or has another lease."""
    if old.calendar != new.calendar:
        yield f"rule {rule}: '{new.text}' keeps its count: only the beginning and the end of its windows have changed"
    elif new.has_slots and old.period_us != new.period_us:
        yield f"rule {rule}: '{new.text}' keeps its slots: the new lease is for those taken or renewed from now on"
    elif new.is_penalty and old != new:
        yield f"rule {rule}: '{new.text}' keeps its strikes and blocks, and is for strikes from now on"


def _counted_values(rule: DescriptorRule) -> list[str]:
    return [condition.key for condition in rule.conditions if condition.is_counted]


def _counts_by(rule: str, policy: Policy) -> list[list[str]]:
    return [[kind.name for kind in parts] for parts in policy.rule_by[rule]]


def _limits_of(policy: Policy) -> dict[str, list[Limit]]:
    return {
        rule.name: [
            limit
            for plan in rule.plans_with(policy.counter_windows[rule.name]).values()
            if isinstance(plan, tuple)
            for limit in plan
        ]
        for rule in policy.rules
    } | {rule.name: list(rule.plan) if isinstance(rule.plan, tuple) else [] for rule in policy.descriptors}
