"""Sources of identities: headers, cookies, tokens and functions; and the cache of verified credentials."""

import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_bytes
from typing import Any

from ratebound.duration import Duration, as_seconds
from ratebound.fork import renew_in_children
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.functions import Functions, check_takes, find_function, find_nothing, is_awaitable, unwrapped
from ratebound.policy.match.request import RequestView
from ratebound.policy.problem import Place, Problems, as_texts, nearest, shown
from ratebound.policy.schema import KEYS

KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
OWN = (
    "address",
    "agent",
    "fingerprint",
    "global",
    "prefix",
)  # facts of the request: no function of the application may return these
MAX_CACHE = 86_400  # seconds
MAX_VERIFIED = 10_000  # credentials in the cache of one verifier
STRING = "a string"
YES_NO = "true or false"
PLAIN_KEYS = (
    ("header", str, STRING),
    ("cookie", str, STRING),
    ("tier", str, STRING),
    ("proxy", bool, YES_NO),
    ("verified", bool, YES_NO),
)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an identity: a header, a cookie or a bearer token with its verifier, or a function.

    One of `verify`, `call` and `proxy` is given: what a client sends must be verified.

    Args:
        header: The header with the credential.
        cookie: The cookie with the credential.
        verify: A function of the credential that the client sent. It returns text or an Identity that stays the same
            for that client, or None. The verifier of `jwt` returns the claims. It may be async for an AsyncGate.
        call: A function of the RequestView that returns text, an Identity, or None. It may be async for an AsyncGate.
        proxy: True accepts the header without a verifier, from trusted proxies only, which must overwrite what a client
            sends.
        tier: The claim with the tier, for `jwt`.
        cache: The time for which an identity that `verify` returned is used without calling it again: seconds, a
            timedelta, or text like '60 seconds'. A revoked credential keeps working for that long.
        kinds: The kinds of identities that a function returns, if they are not the source's name, so that lists can
            name their clients.
        verified: True if no client can choose what `call` returns, such as the owner of a session. Only then can
            penalties and limits of distinct values count by it.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Gate, Identity, Policy, RequestView, Rule, Source
        >>> keys = {"k1": Identity("api-key", "acme", tier="pro")}
        >>> policy = Policy(
        ...     rules=[Rule("api", {"pro": "100/minute", "default": "10/minute"}, by="api-key")],
        ...     tiers=["pro"],
        ...     identities={"api-key": Source(header="x-api-key", verify=keys.get)},
        ... )
        >>> request = RequestView("GET", "/orders", headers=[("x-api-key", "k1")], peer="203.0.113.7")
        >>> Gate(policy).decide(request).decision.remaining
        99
    """

    header: str = ""
    cookie: str = ""
    verify: Callable[[str], Any] | None = None
    call: Callable[[RequestView], Any] | None = None
    proxy: bool = False
    tier: str = ""
    cache: Duration | str = 0
    kinds: Any = ()
    verified: bool = False

    verifier: Callable[[str], Any] | None = field(init=False, repr=False, compare=False)  # `verify`, with its cache

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        for name, kind, expected in PLAIN_KEYS:
            if not isinstance(getattr(self, name), kind):
                problems.add((name,), f"expected {expected}, not {shown(getattr(self, name))}")
        for name, argument in (("verify", "the credential as text"), ("call", "the RequestView")):
            function = getattr(self, name)
            with problems.at(name):
                if function is not None and not callable(function):
                    raise ValueError(f"expected a function, not {shown(function)}")
                if function is not None:
                    check_takes(function, argument)
        if sum((self.verify is not None, self.call is not None, bool(self.proxy))) != 1:
            problems.add((), "expected one of verify, call and proxy: what a client sends must be verified")
        if self.header and self.cookie:
            problems.add((), "expected a header or a cookie, not both: remove one")
        if self.proxy and self.cookie:
            problems.add((), "'proxy: true' needs a header, not a cookie")
        if self.verified and self.call is None:
            problems.add(("verified",), "it is for 'call': what 'verify' and 'proxy' give is verified; leave it out")
        with problems.at("cache"):
            put(self, "cache", _cache_seconds(self.cache))
            if self.cache and self.verify is None:
                raise ValueError("only the answers of 'verify' are cached: leave out 'cache'")
        with problems.at("kinds"):
            put(self, "kinds", as_texts("kinds", self.kinds))
            for kind in self.kinds:
                check_kind(kind)
            if self.kinds and self.proxy:
                raise ValueError("the identity from a proxy's header has the name of its source: leave out 'kinds'")
        problems.check()
        put(self, "header", self.header.lower())
        assert isinstance(self.cache, float)
        cached = self.verify is not None and self.cache
        put(self, "verifier", VerifierCache(self.verify, self.cache) if cached and self.verify else self.verify)


def check_kind(kind: str) -> None:
    """Raise ValueError for a kind that a function of the application may not return."""
    if kind in OWN:
        raise ValueError(f"{kind!r} is built in: choose another name for this kind of identity")
    if not KIND.fullmatch(kind):
        raise ValueError(f"invalid kind of identity {shown(kind)}: expected small letters, digits, _ and -")


def read_source(given: Any, place: Place, functions: Functions, problems: Problems) -> Source:
    """Return a source that is given as such or as a mapping. If it has errors, add them to `problems` and return a
    source that identifies nobody."""
    if isinstance(given, Source):
        return given
    if not isinstance(given, Mapping):
        problems.add(place, f"expected a mapping of keys to values, or a Source, not {shown(given)}")
        return Source(call=find_nothing)
    known = {name: one for name, one in given.items() if name in KEYS["identity"]}
    for name in given:
        if name not in known:
            problems.add((*place, str(name)), f"unknown key {shown(name)}: {nearest(name, KEYS['identity'])}")
    if isinstance(known.get("verify"), Mapping):
        known = {**known, **_read_verify(known["verify"], (*place, "verify"), problems)}
        if "cache" in given and "cache" in given["verify"]:
            problems.add((*place, "cache"), "is given twice: remove this one, or the one in 'verify'")
    for key in ("verify", "call"):
        if key in known:
            function: Callable[..., Any] = find_nothing
            with problems.at(*place, key):
                function = find_function(known[key], functions)
            known[key] = function
    with problems.at(*place):
        return Source(**known)
    with Problems().at():  # keep its kinds: lists that name them are valid
        return Source(call=find_nothing, kinds=known.get("kinds", ()))
    return Source(call=find_nothing)


def _read_verify(given: Mapping[Any, Any], place: Place, problems: Problems) -> dict[str, Any]:
    """Return the arguments of a Source for a `verify: {call: …, cache: …}`."""
    for name in given:
        if name not in KEYS["verify"]:
            problems.add((*place, str(name)), f"unknown key {shown(name)}: {nearest(name, KEYS['verify'])}")
    if "call" not in given:
        problems.add(place, "expected 'call' with the function that verifies")
    cache = {"cache": given["cache"]} if "cache" in given else {}
    return {"verify": given.get("call", find_nothing), **cache}


def _cache_seconds(given: Any) -> float:
    seconds = read_seconds(given)
    if not 0 <= seconds <= MAX_CACHE:
        raise ValueError(
            f"expected at most a day, not {shown(seconds)} seconds: a revoked credential keeps working for that long"
        )
    return seconds


class VerifierCache:
    """A verifier whose answers are cached for some seconds. Safe for threads.

    Only an answer that identifies a client, one for which `is_usable` is true, is cached. Rejected credentials and
    exceptions are not, so a flood of invented keys cannot evict good ones, and a new key works at once. Credentials are
    stored as digests, keyed with a secret of this process.
    """

    def __init__(
        self,
        verify: Callable[[str], Any],
        seconds: Duration,
        *,
        size: int = MAX_VERIFIED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verify = verify
        self._seconds = as_seconds("seconds", seconds)
        self._size = size
        self._clock = clock
        self._secret = token_bytes(16)
        self._known: dict[bytes, tuple[float, Any]] = {}  # oldest first, hence in the order in which they expire
        self._lock = threading.Lock()
        renew_in_children(self)

    def __call__(self, credential: str, is_usable: Callable[[Any], bool] = bool) -> Any:
        digest = blake2b(credential.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret).digest()
        found = self._known.get(digest)
        if found is not None and found[0] > self._clock():
            return found[1]
        answer = self._verify(credential)
        if is_awaitable(answer):
            return self._remember_awaited(digest, answer, is_usable)
        return self._remember(digest, answer, is_usable)

    def renew(self) -> None:
        """Make a new lock in a child process: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()

    async def _remember_awaited(self, digest: bytes, answer: Awaitable[Any], is_usable: Callable[[Any], bool]) -> Any:
        return self._remember(digest, await answer, is_usable)

    def _remember(self, digest: bytes, answer: Any, is_usable: Callable[[Any], bool]) -> Any:
        answer = unwrapped(answer)
        if not is_usable(answer):
            with self._lock:
                self._known.pop(digest, None)
            return answer
        now = self._clock()
        with self._lock:
            self._known.pop(digest, None)  # so that it is inserted at the end
            while self._known:
                oldest = next(iter(self._known))
                if len(self._known) < self._size and self._known[oldest][0] > now:
                    break
                del self._known[oldest]
            self._known[digest] = (now + self._seconds, answer)
        return answer
