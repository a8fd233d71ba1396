"""Who is asking. A rule's `by` takes the first identity that is present, and in the end always the address.

What a client sends is a claim. A header, a cookie or a token counts only when a verifier returned a stable identity for
it, or when a trusted proxy set it: else a random API key per request would be a fresh quota per request.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from ratebound.http.client_ip import ClientAddress, Proxies
from ratebound.http.prefix import MAX_TEXT, prefix_key
from ratebound.policy.function_errors import function_errors
from ratebound.policy.functions import check_takes
from ratebound.policy.identity.source import KIND, Source, VerifierCache, check_kind
from ratebound.policy.lazy_value import is_awaitable, unwrapped
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.problem import Problems, nearest, shown

log = logging.getLogger("ratebound")

BUILT_IN = ("address", "agent", "global", "prefix", "user")
CLAIMED = ("api-key", "bearer", "jwt", "session", "tenant")  # known by name, once a verifier stands behind them
ELSEWHERE = ("ip", "remote_address", "get_remote_address", "user_or_ip")  # what other packages call an address
PLAIN = (str, int, Identity, type(None))  # types of answers that are neither proxies nor to be awaited
MAX_CLAIM = 8192  # characters: what is longer is no token
MAX_BITS = 256  # of a number that is an identity: what is longer is none, and Python may refuse to write it
MAX_KNOWN = 8192  # addresses whose identities are remembered
UNIDENTIFIED = "the client counts as not identified by it"
AGENTS = 16  # a client may choose among so many quotas by its user agent, and no more


class RequestIdentities:
    """What has been learned of one request. `verified` holds results by source, `identities` by kind, `keys` those of
    which a list may say something, `said` what the overrides say. `passed_early`: the next to be asked is the late
    stage."""

    __slots__ = ("client", "identities", "keys", "owner", "passed_early", "said", "verified")

    def __init__(self, owner: object, client: ClientAddress) -> None:
        self.owner = owner
        self.client = client
        self.passed_early = False
        self.identities: dict[str, Identity | None] = {}
        self.verified: dict[str, Any] = {}
        self.keys: Sequence[str] = ()
        self.said: Sequence[Any] = ()


class PendingVerification(NamedTuple):
    """An answer that has to be awaited, under which source it is to be noted, and what the log calls it."""

    source: str
    answer: Awaitable[Any]
    what: str


class IdentityKind(NamedTuple):
    """One way to identify a client. `look` gives what `pick` makes an identity of; `early` needs only the address.
    `place` is where that is kept, if a name is not enough: two functions may have one. `of_client` gives the
    identity that an address is, and its key, where no more is needed."""

    name: str
    source: str
    look: Callable[[RequestView, RequestIdentities], Any]
    pick: Callable[[Any], Identity | None]
    early: bool
    functions: tuple[Callable[..., Any], ...] = ()
    place: str = ""
    of_client: Callable[[ClientAddress], tuple[Identity, str]] | None = None


Alternatives = tuple[tuple[IdentityKind, ...], ...]


def take(
    kind: IdentityKind, request: RequestView, found: RequestIdentities, rule: str = ""
) -> Identity | PendingVerification | None:
    """What this kind says of a request; asked once. Whatever a function of the user's answers, nothing is raised.
    `rule` is the one that asks, for the log."""
    place = kind.place or kind.name
    if place in found.identities:
        return found.identities[place]
    identity = None
    try:
        if kind.source in found.verified:
            answer = found.verified[kind.source]
        else:
            answer = kind.look(request, found)
            if type(answer) not in PLAIN:
                answer = unwrapped(answer)
                if is_awaitable(answer):
                    return PendingVerification(kind.source, answer, _asked_by(kind, rule))
            found.verified[kind.source] = answer
        identity = kind.pick(answer)
    except Exception:
        function_errors.note(_asked_by(kind, rule), UNIDENTIFIED)
        found.verified.setdefault(kind.source, None)
    found.identities[place] = found.identities[kind.name] = identity  # by name for those who explain
    return identity


def _asked_by(kind: IdentityKind, rule: str) -> str:
    return f"identifying by {kind.name}{f' for rule {rule}' if rule else ''}"


def resolve(
    by: Alternatives, request: RequestView, found: RequestIdentities, rule: str = ""
) -> Identity | PendingVerification | None:
    """The first alternative of which all parts are present."""
    for parts in by:
        if len(parts) == 1:
            identity = take(parts[0], request, found, rule)
            if identity is not None:
                return identity
            continue
        identities: list[Identity] = []
        for kind in parts:
            identity = take(kind, request, found, rule)
            if isinstance(identity, PendingVerification):
                return identity
            if identity is None:
                break
            identities.append(identity)
        else:
            return combined(identities)
    return None


def combined(parts: list[Identity]) -> Identity:
    """Several as one. Each value is led by its length, so that no two lists of values are written alike."""
    value = ",".join(f"{len(part.value)}:{part.value}" for part in parts)
    tier = next((part.tier for part in parts if part.tier is not None), None)
    return Identity("+".join(part.kind for part in parts), value, tier)


class IdentityKinds:
    """Makes kinds by name, for one policy: its sources, its trusted proxies, its width of IPv6. With `is_open`, names
    that some policy may define are taken for defined."""

    def __init__(self, sources: Mapping[str, Source], proxies: Proxies, ipv6: int, *, is_open: bool = False) -> None:
        self._sources = {_spelled(name): source for name, source in sources.items()}
        self._proxies = proxies
        self._ipv6 = ipv6
        self._is_open = is_open

    def alternatives(self, by: Any) -> Alternatives:
        """What `by` says: a name, names joined by '+', a function, or several of these to try in turn."""
        listed = list(by) if isinstance(by, Iterable) and not isinstance(by, str) else [by]
        if not listed:
            raise ValueError("by needs at least one identity, for example 'user' or 'address'")
        functions = [one for one in listed if callable(one)]
        problems, read = Problems(), []
        for place, one in enumerate(listed):
            with problems.at(*([place] if len(listed) > 1 else [])):
                read.append(self._parts(one, functions))
        problems.check()
        found = tuple(read)
        names = ["+".join(kind.name for kind in parts) for parts in found]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"by has {name!r} twice")
        for last in found[:-1]:
            if len(last) == 1 and last[0].name.partition(".")[0] in ("address", "global", "prefix"):
                raise ValueError(f"{last[0].name} is always present: what stands behind it in by is never reached")
        if any(kind.name == "agent" for parts in found for kind in parts if len(parts) == 1):
            raise ValueError("the agent alone is chosen by the client: write 'address + agent'")
        always = len(found[-1]) == 1 and found[-1][0].name in ("address", "global")
        return found if always else (*found, (self.kind("address"),))

    def giving(self, name: str) -> tuple[str, tuple[IdentityKind, ...]]:
        """Return how identities of that name are labelled, and every kind that may give one: its own, and sources that
        declare it. Raises ValueError if there is none."""
        declared = tuple(self.kind(source) for source, one in self._sources.items() if name in one.kinds)
        if declared and name != "user" and name not in self._sources:
            return name, declared
        try:
            own = self.kind(name)
        except ValueError as error:
            hint = f"; or declare it with the source that gives it, 'kinds: [{name}]'" if self._sources else ""
            raise ValueError(f"{error}{hint}") from None
        return own.name, (own, *(kind for kind in declared if kind.name != own.name))

    def _parts(self, one: Any, functions: Sequence[Any]) -> tuple[IdentityKind, ...]:
        if callable(one):
            check_takes(one, "the RequestView")
            alike = [other for other in functions if _function_name(other) == _function_name(one)]
            place = alike.index(one)  # two lambdas have one name
            return (_kind(f"call.{_function_name(one)}{f'-{place + 1}' if place else ''}", one, early=True),)
        if not isinstance(one, str):
            raise ValueError(f"by takes names of identities and functions, not {shown(one)}")
        return tuple(self.kind(name.strip()) for name in one.split("+"))

    def kind(self, name: str) -> IdentityKind:
        """The kind of that name, or a ValueError that says what it lacks."""
        name = _spelled(name)
        base, _, detail = name.partition(":")
        if name in self._sources:
            return self._claim(name, name, self._sources[name])
        if base == "jwt" and detail and "jwt" in self._sources:
            return self._claim(name, "jwt", self._sources["jwt"])
        if name == "address" or base == "prefix":
            ipv4, ipv6 = (32, self._ipv6) if name == "address" else _lengths(detail)
            return _address_kind(name.replace(":", "."), ipv4, ipv6)
        if name == "global":
            everyone = Identity("global", "")
            return IdentityKind(name, name, lambda request, found: None, lambda _: everyone, True)
        if name == "agent":
            return IdentityKind(
                name, name, lambda request, _: agent_class(request), lambda value: Identity("agent", value), True
            )
        if name == "user":
            return IdentityKind(
                name, name, lambda request, _: request.user, lambda value: as_identity("user", value), False
            )
        if self._is_open and KIND.fullmatch(base) and base not in ELSEWHERE:
            return IdentityKind(name, name, lambda request, found: None, lambda _: None, False)
        if name in CLAIMED or base in ("jwt", "header", "cookie"):
            raise ValueError(
                f"{name!r} is what a client claims: under identities give"
                f" {'jwt' if base == 'jwt' else name} a verifier, 'verify: …', or 'proxy: true' for a header that a"
                " trusted proxy sets"
            )
        if name.lower() in (*ELSEWHERE, "client", "host"):
            raise ValueError(f"unknown identity {name!r}: did you mean 'address'?")
        for source, one in self._sources.items():
            if name in one.kinds:
                raise ValueError(f"{name!r} is a kind that {source!r} gives: count by {source!r}")
        kinds = [kind for one in self._sources.values() for kind in one.kinds]
        known = [*BUILT_IN, *CLAIMED, *self._sources, *kinds]
        raise ValueError(f"unknown identity {name!r}: {nearest(name, known)}")

    def _claim(self, name: str, source_name: str, source: Source) -> IdentityKind:
        label, claim = name.replace(":", "."), name.partition(":")[2]
        if source.call is not None:
            return _kind(label, source.call, early=False)
        read = _reader(source_name, source)
        if source.proxy:
            proxies = self._proxies

            def from_proxy(request: RequestView, found: RequestIdentities) -> Any:
                value = _only(request, header) if proxies.trusts(request.peer) else None  # of two, one is the client's
                return None if value is None else value.strip()

            header = source.header or _default_header(source_name)
            return IdentityKind(label, source_name, from_proxy, lambda value: as_identity(label, value), False)
        verify, verifier = source.verify, source.verifier
        assert verify is not None
        assert verifier is not None

        verify_one: Callable[[str], Any] = verifier
        if isinstance(verifier, VerifierCache):
            is_usable = partial(_has_claim, claim) if source_name == "jwt" else is_somebody
            verify_one = partial(verifier, is_usable=is_usable)

        def verified(request: RequestView, found: RequestIdentities) -> Any:
            value = read(request)
            return verify_one(value) if value and len(value) <= MAX_CLAIM else None

        if source_name == "jwt":
            if not claim:
                raise ValueError("jwt has many claims: name one, for example 'jwt:sub'")
            return IdentityKind(
                label, "jwt", verified, lambda claims: _of_claims(label, claims, claim, source.tier), False, (verify,)
            )
        return IdentityKind(label, source_name, verified, lambda value: of_function(label, value), False, (verify,))


_OPEN = IdentityKinds({}, Proxies(), 64, is_open=True)


def check_by(by: Any) -> None:
    """Raise ValueError for what no policy can make right: what cannot be read, and names that no identity has."""
    _OPEN.alternatives(by)


def _spelled(name: str) -> str:
    """Names of headers have no case."""
    return name.lower() if name[:7].lower() == "header:" else name


def as_identity(kind: str, value: object) -> Identity | None:
    """Return what a verifier, a function or a framework answered, as an identity of this kind. None if it is nobody, or
    cannot be used, which is logged once for each kind and type."""
    if isinstance(value, Identity):
        text = id_text(value.value)
        if text:
            return Identity(kind, text, _as_tier(kind, value.tier))
        _log_unusable(kind, f"an Identity whose value is {_described(value.value)}")
        return None
    if value is None or value is False:
        return None
    text = id_text(value)
    if text is None:
        _log_unusable(kind, _described(value))
    return Identity(kind, text) if text else None


def id_text(value: object) -> str | None:
    """Return a stable id as text: text, a whole number of up to MAX_BITS, or a UUID. None for anything else."""
    if isinstance(value, str):
        return str.__str__(value)  # plain text, whatever a subclass makes of comparing it
    if isinstance(value, int) and not isinstance(value, bool) and int.bit_length(value) <= MAX_BITS:
        return int.__repr__(value)
    return str(value) if isinstance(value, UUID) else None


def _described(value: object) -> str:
    if isinstance(value, str):
        return "empty"  # other text is usable
    return "a number of too many bits" if type(value) is int else type(value).__name__


@lru_cache(maxsize=256)
def _log_unusable(kind: str, what: str) -> None:
    log.error(
        "identifying by %s gave %s; %s. Expected text, a whole number of up to %d bits, a UUID, an Identity of one of"
        " these, or None",
        kind,
        what,
        UNIDENTIFIED,
        MAX_BITS,
    )


def is_somebody(value: object) -> bool:
    """Return True if `as_identity` makes an identity of the value. Logs nothing."""
    return bool(id_text(value.value if isinstance(value, Identity) else value))


def of_function(kind: str, value: object) -> Identity | None:
    """Return what a function of the user's answered as an identity. An Identity that has a kind keeps it, so that
    several sources can name one client; else it is of the source's own kind."""
    identity = as_identity(kind, value)
    if identity is None or not isinstance(value, Identity) or value.kind in ("", kind):
        return identity
    own = str.__str__(value.kind) if isinstance(value.kind, str) else repr(type(value.kind))
    return identity._replace(kind=own) if _is_usable(kind, own) else identity


@lru_cache(maxsize=256)
def _is_usable(source: str, kind: str) -> bool:
    try:
        check_kind(kind)
    except ValueError as error:
        log.error("identifying by %s gave an Identity that counts as %s instead: %s", source, source, error)
        return False
    return True


def _as_tier(kind: str, tier: object) -> str | None:
    if tier is None or isinstance(tier, str):
        return None if tier is None else str.__str__(tier)
    log.error("identifying by %s gave a tier that is %s: expected text or None", kind, type(tier).__name__)
    return None


def agent_class(request: RequestView) -> str:
    """One of a few classes of user agents: a client that invents a new one for each request gains no more than that."""
    agent = request.header("user-agent") or ""
    return str(blake2b(agent.encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] % AGENTS)


def _function_name(function: Callable[..., Any]) -> str:
    return re.sub("[^a-z0-9_-]", "", getattr(function, "__name__", "function").lower())


def _kind(label: str, function: Callable[[RequestView], Any], *, early: bool) -> IdentityKind:
    own = f"{label} {id(function)}"
    return IdentityKind(
        label,
        own,
        lambda request, _: function(request),
        lambda value: of_function(label, value),
        early,
        (function,),
        own,
    )


@lru_cache(maxsize=64)  # one for all policies: what it remembers is the same for all
def _address_kind(label: str, ipv4: int, ipv6: int) -> IdentityKind:
    known: dict[str, tuple[Identity, str]] = {}  # by the text of an address, which is like no other client's

    def of_client(client: ClientAddress) -> tuple[Identity, str]:
        found = known.get(client.text)
        if found is None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            value = client.text if client.ip is None else prefix_key(client.ip, ipv6, ipv4).partition(":")[2]
            identity = Identity(label, value)
            found = identity, identity.key
            if len(client.text) <= MAX_TEXT:
                known[client.text] = found
        return found

    return IdentityKind(
        label, label, lambda _, found: of_client(found.client)[0], lambda one: one, True, of_client=of_client
    )


def _lengths(detail: str) -> tuple[int, int]:
    """`prefix` is /24 and /48, `prefix:56` changes the second, `prefix:16/56` both."""
    if not detail:
        return 24, 48
    first, slash, second = detail.rpartition("/")
    if not all(
        part.isascii() and part.isdecimal() and len(part) < 4 for part in ([first, second] if slash else [second])
    ):
        raise ValueError(f"cannot read prefix:{detail}: expected for example 'prefix:56' or 'prefix:24/48'")
    ipv4, ipv6 = int(first) if slash else 32, int(second)
    if not (8 <= ipv4 <= 32 and 16 <= ipv6 <= 128):
        raise ValueError(f"prefix:{detail} is out of range: IPv4 from 8 to 32, IPv6 from 16 to 128")
    return ipv4, ipv6


def _reader(name: str, source: Source) -> Callable[[RequestView], str | None]:
    base, _, detail = name.partition(":")
    cookie = source.cookie or (
        detail if base == "cookie" else "session" if base == "session" and not source.header else ""
    )
    if cookie:
        return lambda request: request.cookie(cookie)
    if base in ("bearer", "jwt") and not source.header:
        return _bearer
    header = source.header or _default_header(name)
    return lambda request: _only(request, header)


def _default_header(name: str) -> str:
    base, _, detail = name.partition(":")
    known = {"api-key": "x-api-key", "tenant": "x-tenant", "header": detail.lower()}
    if not known.get(base):
        raise ValueError(f"identity {name!r} needs a header, a cookie or a function to come from")
    return known[base]


def _only(request: RequestView, header: str) -> str | None:
    """Of two lines the application may take the other one, and serve somebody else than the one who is counted."""
    lines = request.header_lines(header)
    return lines[0] if len(lines) == 1 else None


def _bearer(request: RequestView) -> str | None:
    scheme, _, token = (_only(request, "authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _has_claim(claim: str, claims: object) -> bool:
    return isinstance(claims, Mapping) and is_somebody(claims.get(claim))


def _of_claims(label: str, claims: object, claim: str, tier: str) -> Identity | None:
    if not isinstance(claims, Mapping):
        if claims is not None:
            log.error("the verifier of jwt gave %s: expected the claims or None", type(claims).__name__)
        return None
    identity = as_identity(label, claims.get(claim))
    if identity is None or not tier:
        return identity
    return identity._replace(tier=_as_tier(label, claims.get(tier)))
