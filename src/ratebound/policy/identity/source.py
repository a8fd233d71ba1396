"""Where an identity comes from, and how long the word of its verifier holds."""

import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_bytes
from typing import Any

from ratebound.clock import SECOND
from ratebound.fork import renew_in_children
from ratebound.notation import UNIT_NAMES
from ratebound.policy.functions import Functions, check_takes, find_function, find_nothing
from ratebound.policy.lazy_value import is_awaitable, unwrapped
from ratebound.policy.match.request import RequestView
from ratebound.policy.problem import Place, Problems, as_texts, nearest, shown
from ratebound.policy.schema import KEYS

KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
OWN = ("address", "agent", "global", "prefix")  # kinds that no function of the user's may give: they are facts
MAX_CACHE = 86_400  # seconds
MAX_VERIFIED = 10_000  # credentials that one verifier's cache remembers
DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
PLAIN_KEYS = (("header", str, "text"), ("cookie", str, "text"), ("tier", str, "text"), ("proxy", bool, "true or false"))


@dataclass(frozen=True, slots=True)
class Source:
    """Where an identity comes from: a header, a cookie or a bearer token with its verifier, or a function.

    `verify` is called with what the client sent and returns text or an Identity that stays the same for that client,
    or None; that of `jwt` returns the claims, of which `tier` names the one that holds the tier. `proxy` takes a header
    as it is, from trusted proxies only: they must overwrite what a client sends. `call` is asked with the whole
    request. Both may be async for an AsyncGate.

    An Identity of another kind than the source's name keeps it; `kinds` declares these, so that lists may name their
    clients. `cache` is how long an identity that `verify` found holds without asking again: seconds, or text like
    '60 seconds'. A credential that is revoked keeps working for that long.
    """

    header: str = ""
    cookie: str = ""
    verify: Callable[[str], Any] | None = None
    call: Callable[[RequestView], Any] | None = None
    proxy: bool = False
    tier: str = ""
    cache: float | str = 0
    kinds: Any = ()

    verifier: Callable[[str], Any] | None = field(init=False, repr=False, compare=False)  # `verify`, with its cache

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        for name, kind, expected in PLAIN_KEYS:
            if not isinstance(getattr(self, name), kind):
                problems.add((name,), f"expected {expected}, not {shown(getattr(self, name))}")
        for name, argument in (("verify", "what the client sent, as text"), ("call", "the RequestView")):
            function = getattr(self, name)
            with problems.at(name):
                if function is not None and not callable(function):
                    raise ValueError(f"expected a function, not {shown(function)}")
                if function is not None:
                    check_takes(function, argument)
        if sum((self.verify is not None, self.call is not None, bool(self.proxy))) != 1:
            problems.add((), "expected one of verify, call and proxy: what a client sends counts for nothing by itself")
        if self.header and self.cookie:
            problems.add((), "expected a header or a cookie, not both")
        if self.proxy and self.cookie:
            problems.add((), "a proxy sets a header, not a cookie")
        with problems.at("cache"):
            put(self, "cache", _as_cache(self.cache))
            if self.cache and self.verify is None:
                raise ValueError("only what 'verify' finds is remembered: leave out 'cache'")
        with problems.at("kinds"):
            put(self, "kinds", as_texts("kinds", self.kinds))
            for kind in self.kinds:
                check_kind(kind)
            if self.kinds and self.proxy:
                raise ValueError("a header that a proxy sets has one kind, its own: leave out 'kinds'")
        problems.check()
        put(self, "header", self.header.lower())
        assert not isinstance(self.cache, str)
        cached = self.verify is not None and self.cache
        put(self, "verifier", VerifierCache(self.verify, self.cache) if cached and self.verify else self.verify)


def check_kind(kind: str) -> None:
    """Raise ValueError for a kind that no verifier may give its identities."""
    if kind in OWN:
        raise ValueError(f"{kind} is built in, and known from the request alone: choose another name")
    if not KIND.fullmatch(kind):
        raise ValueError(f"{shown(kind)} is no kind of identity: expected small letters, digits, _ and -")


def read_source(given: Any, place: Place, functions: Functions, problems: Problems) -> Source:
    """Read a source that is written as a mapping. Problems are added; a source that finds nobody stands in then."""
    if isinstance(given, Source):
        return given
    if not isinstance(given, Mapping):
        problems.add(place, f"expected keys with values, or a Source, not {shown(given)}")
        return Source(call=find_nothing)
    known = {name: one for name, one in given.items() if name in KEYS["identity"]}
    for name in given:
        if name not in known:
            problems.add((*place, str(name)), f"unknown key {shown(name)}: {nearest(name, KEYS['identity'])}")
    if isinstance(known.get("verify"), Mapping):
        known = {**known, **_read_verify(known["verify"], (*place, "verify"), problems)}
        if "cache" in given and "cache" in given["verify"]:
            problems.add((*place, "cache"), "is given twice: leave out this one, or that of 'verify'")
    for key in ("verify", "call"):
        if key in known:
            function: Callable[..., Any] = find_nothing
            with problems.at(*place, key):
                function = find_function(known[key], functions)
            known[key] = function
    with problems.at(*place):
        return Source(**known)
    with Problems().at():  # lists that name its kinds are not wrong
        return Source(call=find_nothing, kinds=known.get("kinds", ()))
    return Source(call=find_nothing)


def _read_verify(given: Mapping[Any, Any], place: Place, problems: Problems) -> dict[str, Any]:
    """Read `{call: …, cache: …}`."""
    for name in given:
        if name not in KEYS["verify"]:
            problems.add((*place, str(name)), f"unknown key {shown(name)}: {nearest(name, KEYS['verify'])}")
    if "call" not in given:
        problems.add(place, "expected 'call', the function that verifies")
    cache = {"cache": given["cache"]} if "cache" in given else {}
    return {"verify": given.get("call", find_nothing), **cache}


def _as_cache(given: Any) -> float:
    if isinstance(given, str):
        found = DURATION.fullmatch(given)
        length = None if found is None else UNIT_NAMES.get(found[2].lower())
        if found is None or length is None:
            raise ValueError(f"cannot read {shown(given)}: expected seconds, or text like '60 seconds'")
        given = float(found[1]) * length / SECOND
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"expected seconds, or text like '60 seconds', not {shown(given)}")
    if not 0 <= given <= MAX_CACHE:
        raise ValueError(f"expected up to a day, not {shown(given)} seconds: a revoked credential works for that long")
    return float(given)


class VerifierCache:
    """A verifier that remembers what it found, for some seconds.

    Only an answer that identifies somebody is remembered: `is_usable` says so. A credential that was rejected, and an
    exception, are not: they take no room, so that a flood of invented keys cannot push out a good one, and a key that
    was just made works at once. Credentials are kept as digests under a key of this process.
    """

    def __init__(
        self,
        verify: Callable[[str], Any],
        seconds: float,
        *,
        size: int = MAX_VERIFIED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verify = verify
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._secret = token_bytes(16)
        self._known: dict[bytes, tuple[float, Any]] = {}  # the oldest first: all hold for the same time
        self._lock = threading.Lock()
        renew_in_children(self)

    def __call__(self, credential: str, is_usable: Callable[[Any], bool] = bool) -> Any:
        digest = blake2b(credential.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret).digest()
        found = self._known.get(digest)
        if found is not None and found[0] > self._clock():
            return found[1]
        answer = self._verify(credential)
        if is_awaitable(answer):
            return self._awaited(digest, answer, is_usable)
        return self._noted(digest, answer, is_usable)

    def renew(self) -> None:
        """Make a new lock in a child process: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()

    async def _awaited(self, digest: bytes, answer: Awaitable[Any], is_usable: Callable[[Any], bool]) -> Any:
        return self._noted(digest, await answer, is_usable)

    def _noted(self, digest: bytes, answer: Any, is_usable: Callable[[Any], bool]) -> Any:
        answer = unwrapped(answer)
        if not is_usable(answer):
            with self._lock:
                self._known.pop(digest, None)
            return answer
        now = self._clock()
        with self._lock:
            self._known.pop(digest, None)  # it goes to the end
            while self._known:
                oldest = next(iter(self._known))
                if len(self._known) < self._size and self._known[oldest][0] > now:
                    break
                del self._known[oldest]
            self._known[digest] = (now + self._seconds, answer)
        return answer
