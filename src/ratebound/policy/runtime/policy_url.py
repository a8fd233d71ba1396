"""A policy from a URL for programs that decide by themselves: a thread asks the server while requests are decided."""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from ratebound.duration import Duration, as_seconds
from ratebound.errors import RateboundError
from ratebound.fork import renew_in_children
from ratebound.policy.model.policy import Policy
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.reload import PolicyFile

JITTER = 0.1  # of the time between two fetches: the processes of a fleet do not ask all at once


class PolicyUrl:
    """The policy of a URL, which is fetched again and again. It can be used wherever a PolicyFile can.

    A bearer token is read from the environment variable RATEBOUND_POLICY_TOKEN.

    Args:
        url: The URL of a .yaml, .json or .toml policy.
        keep: The file in which the last good policy is kept; a start without the server uses it. None means one in the
            user's cache folder.
        every: The time between two fetches: seconds or a timedelta. With 0 only `reload` fetches.
        functions: The functions that the policy calls by name. It can import none.
        environ: The variables that fill in `${NAME}`. None means `os.environ`.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        FetchError: The policy cannot be fetched, and there is no copy.
        PolicyError: The policy is invalid, and there is no copy.
        ValueError: The URL cannot be used.

    Examples:
        >>> from ratebound.policy import FetchError, PolicyUrl
        >>> try:
        ...     PolicyUrl("http://127.0.0.1:1/policy.yaml", keep="policy.yaml")
        ... except FetchError as error:
        ...     print("no server and no copy")
        no server and no copy
    """

    def __init__(
        self,
        url: str,
        *,
        keep: str | os.PathLike[str] | None = None,
        every: Duration = 30.0,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.every = as_seconds("every", every)
        self._fetched = FetchedPolicy(url, keep, functions=functions, environ=environ)
        self._fetched.start()
        self._file = PolicyFile(self._fetched.keep, functions=self._fetched.functions, environ=environ, every=0)
        self.path = self._fetched.shown  # for messages
        self.preparations = self._file.preparations
        self.checks = self._file.checks
        self._clock = clock
        self._next = clock() + self.every
        self._is_polled = False
        self._lock = threading.Lock()
        self._fetching = threading.Lock()
        renew_in_children(self)

    @property
    def compiled(self) -> CompiledPolicy:
        """The policy in force, compiled."""
        return self._file.compiled

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._file.policy

    @property
    def text(self) -> str:
        """The text of the policy in force."""
        return self._file.text

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that the policy may name."""
        return self._fetched.functions

    @property
    def error(self) -> RateboundError | None:
        """The reason why the last fetch failed, or why its policy is not in force; None if it is."""
        return self._fetched.error or self._file.error

    @property
    def confirmed(self) -> datetime | None:
        """The time when the server last confirmed the policy; None if it never did."""
        return self._fetched.confirmed

    @property
    def changes(self) -> tuple[str, ...]:
        """The things that the last change of the policy made start anew, and those that it could not change."""
        return self._file.changes

    def refresh(self) -> None:
        """Begin to fetch in a thread of this process, once the first `every` has passed. Gates call this for each
        request."""
        if self._is_polled or not self.every or self._clock() < self._next:
            return
        with self._lock:
            if not self._is_polled:
                self._next = self._clock() + self.every
                poll = threading.Thread(target=_poll, args=(weakref.ref(self),), name="ratebound policy", daemon=True)
                with suppress(RuntimeError):  # too many threads: the next request after `every` tries again
                    poll.start()
                    self._is_polled = True

    def reload(self) -> bool:
        """Fetch now, and put the policy in force. Return False if it cannot be used: then the old policy stays in
        force, and `error` says why."""
        with self._fetching:
            is_fetched = self._fetched.fetch()
            # Another process may have fetched it into the same file
            return (not self._file.is_changed() or self._file.reload()) and is_fetched

    @property
    def format(self) -> str:
        """The format of the policy: yaml, json or toml."""
        return self._file.format

    def read(self) -> Policy:
        """Fetch the policy and return it, without putting it in force or keeping it.

        Raises:
            FetchError: The policy cannot be fetched.
            PolicyError: The policy is invalid. It has every error, with its place.
        """
        return self._fetched.read()

    def renew(self) -> None:
        """Forget the thread in a child process, where it does not run, and its locks."""
        self._lock = threading.Lock()
        self._fetching = threading.Lock()
        self._is_polled = False


FollowedPolicy = PolicyFile | PolicyUrl


def _poll(reference: "weakref.ref[PolicyUrl]") -> None:
    """Fetch again and again, as long as the policy is used."""
    while (policy := reference()) is not None:
        policy.reload()
        pause = policy.every * random.uniform(1 - JITTER, 1 + JITTER)
        del policy
        time.sleep(pause)
