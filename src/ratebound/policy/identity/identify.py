"""Identification of clients. A rule's `by` lists identities; the first that is present counts, at last the address.

What a client sends is only a claim. A header, a cookie or a token counts only if a verifier returned a stable identity
for it, or if a trusted proxy set it. Otherwise a client could get a new quota with a random API key in each request.
"""

import difflib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple
from unicodedata import decimal
from uuid import UUID

from ratebound.http.client_ip import ClientAddress, Proxies
from ratebound.http.prefix import MAX_TEXT, prefix_key
from ratebound.policy.function_errors import function_errors
from ratebound.policy.functions import check_takes, is_awaitable, unwrapped
from ratebound.policy.identity.fingerprint import fingerprint_of
from ratebound.policy.identity.source import KIND, Source, VerifierCache, check_kind
from ratebound.policy.identity.user_name import canonical_name
from ratebound.policy.match.path import Pattern
from ratebound.policy.match.request import Identity, RequestView, cookies_in
from ratebound.policy.match.request_body import UnreadableRequest
from ratebound.policy.match.request_value import NAMES, TARGETS, RequestValue, part_of
from ratebound.policy.problem import Problems, nearest, shown

log = logging.getLogger("ratebound")

BUILT_IN = ("address", "agent", "fingerprint", "global", "prefix", "user")
CLAIMED = ("api-key", "bearer", "jwt", "session", "tenant")  # names that a policy can use once they have a verifier
PARTS_OF_BODY = ("json", "form", "data", "post", "field")  # names of the body in other packages
PARTS_ELSEWHERE = dict.fromkeys(PARTS_OF_BODY, "body") | {"params": "path", "args": "query", "get": "query"}
ELSEWHERE = ("ip", "remote_address", "get_remote_address", "user_or_ip")  # names of an address in other packages
PLAIN = (str, int, Identity, type(None))  # types of answers that are neither proxies nor awaitable
MAX_CLAIM = 8192  # characters; a longer credential is not verified
MAX_BITS = 256  # of a number that is an identity; Python may raise for the text of a very long one
MAX_KNOWN = 8192  # addresses whose identities are remembered
UNIDENTIFIED = "the client counts as not identified by it"
WHOLE_NUMBER = re.compile(r"([+-]?)([0-9][0-9_]*)(?:\.0*)?")  # as Python and validators of types read one
DOTTED = ("\u0131", "i\u0307")  # `ı` in capitals and `İ` in small letters are an `I` and an `i` to some databases
BEHAVIOUR = ("agent", "fingerprint")  # kinds that depend on headers that the client chooses
AGENTS = 16  # the number of quotas among which a client can choose by its user agent


class RequestIdentities:
    """The identities of one request, as far as they are known.

    `verified` holds the answers of sources, `identities` the identities by kind, `keys` the keys that lists of clients
    are searched for, `overrides` the overrides found there. `passed_early` is True between the early and late stage.
    `doubled` names the sources whose credential is in the request twice, or is too long: they identify nobody, but must
    not be a way out of a block.
    """

    __slots__ = ("client", "doubled", "identities", "keys", "overrides", "owner", "passed_early", "verified")

    def __init__(self, owner: object, client: ClientAddress) -> None:
        self.owner = owner
        self.client = client
        self.passed_early = False
        self.doubled: tuple[str, ...] = ()
        self.identities: dict[str, Identity | None] = {}
        self.verified: dict[str, Any] = {}
        self.keys: Sequence[str] = ()
        self.overrides: Sequence[Any] = ()


class PendingVerification(NamedTuple):
    """An answer that must be awaited, the source that it belongs to, and its description for the log."""

    source: str
    answer: Awaitable[Any]
    what: str


class IdentityKind(NamedTuple):
    """One way to identify a client.

    `look` returns an answer, from which `pick` makes an identity. `early` kinds need only the address. `place` is the
    key under which the identity is stored, if the name is not unique: two functions may have the same name. `of_client`
    returns the identity and its key from the address alone, for kinds that need nothing else. `is_verified` kinds say
    who the client is, and no client can choose to be another: an address, or what the framework, a verifier or a
    trusted proxy found.
    """

    name: str
    source: str
    look: Callable[[RequestView, RequestIdentities], Any]
    pick: Callable[[Any], Identity | None]
    early: bool
    functions: tuple[Callable[..., Any], ...] = ()
    place: str = ""
    of_client: Callable[[ClientAddress], tuple[Identity, str]] | None = None
    is_verified: bool = False

    @property
    def base(self) -> str:
        """The name without its detail: 'prefix' for `prefix:56`."""
        return self.name.partition(".")[0]

    @property
    def is_target(self) -> bool:
        """True for a value of the request, like `body.username`: it says what a request is about, not who sent it."""
        return part_of(self.name) in TARGETS


Alternatives = tuple[tuple[IdentityKind, ...], ...]


def pending_of(request: RequestView, owner: object) -> RequestIdentities | None:
    """Return the identities of a request of which one has to be awaited; None if there is nothing to await."""
    found = request.found
    if isinstance(found, RequestIdentities) and found.owner is owner:
        for answer in found.verified.values():
            if type(answer) is PendingVerification:
                return found
    return None


def take(
    kind: IdentityKind, request: RequestView, found: RequestIdentities, rule: str = ""
) -> Identity | PendingVerification | None:
    """Return the identity of this kind, None if there is none, or a PendingVerification that must be awaited first.

    Each source is called once per request. An exception in a function of the application is logged and counts as None.
    `rule` is the name of the rule, for the log. Raises UnreadableRequest if a value of the request cannot be read.
    """
    place = kind.place or kind.name
    if place in found.identities:
        return found.identities[place]
    identity = None
    try:
        if kind.source in found.verified:
            answer = found.verified[kind.source]
            if type(answer) is PendingVerification:
                return answer
        else:
            answer = kind.look(request, found)
            if type(answer) not in PLAIN:
                answer = unwrapped(answer)
                if is_awaitable(answer):
                    answer = PendingVerification(kind.source, answer, _asked_by(kind, rule))
                    found.verified[kind.source] = answer
                    return answer
            found.verified[kind.source] = answer
        identity = kind.pick(answer)
    except UnreadableRequest:
        raise
    except Exception:
        function_errors.note(_asked_by(kind, rule), UNIDENTIFIED)
        found.verified.setdefault(kind.source, None)
    found.identities[place] = found.identities[kind.name] = identity  # by name too, for explain
    return identity


def _asked_by(kind: IdentityKind, rule: str) -> str:
    return f"identifying by {kind.name}{f' for rule {rule}' if rule else ''}"


def resolve(
    by: Alternatives, request: RequestView, found: RequestIdentities, rule: str = ""
) -> Identity | PendingVerification | None:
    """Return the identity of the first alternative whose parts are all present, None if there is none, or a
    PendingVerification that must be awaited first."""
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
    """Return one identity made of several. Each value is preceded by its length, so that different lists of values
    never give the same text."""
    value = ",".join(f"{len(part.value)}:{part.value}" for part in parts)
    tier = next((part.tier for part in parts if part.tier is not None), None)
    return Identity("+".join(part.kind for part in parts), value, tier)


class IdentityKinds:
    """The kinds of identity of one policy, by name. They depend on its sources, its trusted proxies, `ipv6` and `salt`.

    With `is_open`, a name that a policy could define counts as defined.
    """

    def __init__(
        self, sources: Mapping[str, Source], proxies: Proxies, ipv6: int, salt: str = "", *, is_open: bool = False
    ) -> None:
        self._sources = {_spelled(name): source for name, source in sources.items()}
        self._proxies = proxies
        self._ipv6 = ipv6
        self._salt = salt
        self._is_open = is_open

    def alternatives(self, by: Any, patterns: Sequence[Pattern] = ()) -> Alternatives:
        """Return the alternatives of a `by`: a name, names joined by '+', a function, or a list of these to try in
        turn. `patterns` are those of the rule, for parameters of the path. Raises ValueError or PolicyError if it is
        invalid."""
        listed = list(by) if isinstance(by, Iterable) and not isinstance(by, str) else [by]
        if not listed:
            raise ValueError("by needs at least one identity, for example 'user' or 'address'")
        functions = [one for one in listed if callable(one)]
        problems, read = Problems(), []
        for place, one in enumerate(listed):
            with problems.at(*([place] if len(listed) > 1 else [])):
                read.append(self._parts(one, functions, patterns))
        problems.check()
        found = tuple(read)
        names = ["+".join(kind.name for kind in parts) for parts in found]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"by has {name!r} twice: remove one")
        for last in found[:-1]:
            if len(last) == 1 and last[0].name.partition(".")[0] in ("address", "fingerprint", "global", "prefix"):
                raise ValueError(
                    f"{last[0].name} is always present, so the identities after it in by are never reached: move it to"
                    " the end"
                )
        if any(kind.name == "agent" for parts in found for kind in parts if len(parts) == 1):
            raise ValueError("a client can choose its user agent, so it cannot count alone: write 'address + agent'")
        always = len(found[-1]) == 1 and found[-1][0].name in ("address", "global")
        return found if always else (*found, (self.kind("address"),))

    def returned_by(self, name: str) -> tuple[str, ...]:
        """Return the kinds that the source of this name declares; none if it declares none, or is no source."""
        source = self._sources.get(name)
        return () if source is None else tuple(source.kinds)

    @property
    def declared(self) -> list[str]:
        """The kinds that sources declare in `kinds`."""
        return [kind for source in self._sources.values() for kind in source.kinds]

    def giving(self, name: str) -> tuple[str, tuple[IdentityKind, ...]]:
        """Return the label of identities of that name, and every kind that can produce one: the kind of that name, and
        the sources that declare it in `kinds`. Raises ValueError if there is none."""
        declared = tuple(self.kind(source) for source, one in self._sources.items() if name in one.kinds)
        if declared and name != "user" and name not in self._sources:
            return name, declared
        try:
            own = self.kind(name)
        except ValueError as error:
            hint = f"; or declare it in the source that returns it, 'kinds: [{name}]'" if self._sources else ""
            raise ValueError(f"{error}{hint}") from None
        return own.name, (own, *(kind for kind in declared if kind.name != own.name))

    def _parts(self, one: Any, functions: Sequence[Any], patterns: Sequence[Pattern]) -> tuple[IdentityKind, ...]:
        if callable(one):
            check_takes(one, "the RequestView")
            alike = [other for other in functions if _function_name(other) == _function_name(one)]
            place = alike.index(one)  # two lambdas have the same name
            return (_kind(f"call.{_function_name(one)}{f'-{place + 1}' if place else ''}", one, early=True),)
        if not isinstance(one, str):
            raise ValueError(f"expected the name of an identity or a function, not {shown(one)}")
        return tuple(self.kind(name.strip(), patterns) for name in one.split("+"))

    def kind(self, name: str, patterns: Sequence[Pattern] = ()) -> IdentityKind:
        """Return the kind of that name. Raises ValueError that says what is missing if there is none."""
        name = _spelled(name)
        if part_of(name) in TARGETS:
            return _target_kind(RequestValue(name, patterns))
        base, _, detail = name.partition(":")
        if name in self._sources:
            return self._claim(name, name, self._sources[name])
        if base == "jwt" and detail and "jwt" in self._sources:
            return self._claim(name, "jwt", self._sources["jwt"])
        if name == "address" or base == "prefix":
            ipv4, ipv6 = (32, self._ipv6) if name == "address" else _lengths(detail)
            return _address_kind(name.replace(":", "."), ipv4, ipv6)
        if base == "fingerprint":
            return _fingerprint_kind(name.replace(":", "."), *_lengths(detail), self._salt)
        if name == "global":
            everyone = Identity("global", "")
            return IdentityKind(name, name, lambda request, found: None, lambda _: everyone, True)
        if name == "agent":
            return IdentityKind(
                name, name, lambda request, _: agent_class(request), lambda value: Identity("agent", value), True
            )
        if name == "user":
            return IdentityKind(
                name,
                name,
                lambda request, _: request.user,
                lambda value: as_identity("user", value),
                False,
                is_verified=True,
            )
        if detail and base in PARTS_ELSEWHERE:
            raise ValueError(f"unknown identity {name!r}: did you mean '{PARTS_ELSEWHERE[base]}.{detail}'?")
        if self._is_open and KIND.fullmatch(base) and base not in ELSEWHERE:
            return IdentityKind(name, name, lambda request, found: None, lambda _: None, False)
        if part_of(name):
            part, _, rest = name.partition(".")
            raise ValueError(
                f"{name!r} is chosen by the client, and is not what a request is about: write '{part}:{rest}', and add"
                " it to identities with a verifier"
            )
        if name in CLAIMED or base in ("jwt", "header", "cookie"):
            raise ValueError(
                f"{name!r} is only a claim of the client: add {'jwt' if base == 'jwt' else name} to identities, with a"
                " verifier, 'verify: …', or with 'proxy: true' for a header that a trusted proxy sets"
            )
        if name.lower() in (*ELSEWHERE, "client", "host"):
            raise ValueError(f"unknown identity {name!r}: did you mean 'address'?")
        for source, one in self._sources.items():
            if name in one.kinds:
                raise ValueError(f"{name!r} is a kind of identity from the source {source!r}: write 'by: {source}'")
        known = [*BUILT_IN, *CLAIMED, *self._sources, *self.declared]
        raise _UnknownIdentity(name, known)

    def check_source_of_values(self, name: str) -> None:
        """Raise ValueError unless this names an identity. The message also lists other sources of values."""
        try:
            self.kind(name)
        except _UnknownIdentity as error:
            raise ValueError(f"unknown source {name!r}: {_source_hint(name, error.known)}") from None

    def _claim(self, name: str, source_name: str, source: Source) -> IdentityKind:
        label, claim = name.replace(":", "."), name.partition(":")[2]
        if source.call is not None:
            return _kind(label, source.call, early=False)._replace(is_verified=source.verified)
        read = _reader(source_name, source)
        if source.proxy:
            proxies = self._proxies

            def from_proxy(request: RequestView, found: RequestIdentities) -> Any:
                lines = request.header_lines(header) if proxies.trusts(request.peer) else []
                value = _only(lines, found, source_name)  # of two, one is the client's
                return None if value is None else value.strip()

            header = source.header or _default_header(source_name)
            return IdentityKind(
                label, source_name, from_proxy, lambda value: as_identity(label, value), False, is_verified=True
            )
        verify, verifier = source.verify, source.verifier
        assert verify is not None
        assert verifier is not None

        verify_one: Callable[[str], Any] = verifier
        if isinstance(verifier, VerifierCache):
            is_usable = partial(_has_claim, claim) if source_name == "jwt" else is_somebody
            verify_one = partial(verifier, is_usable=is_usable)

        def verified(request: RequestView, found: RequestIdentities) -> Any:
            value = _only(read(request), found, source_name)
            return verify_one(value) if value else None

        if source_name == "jwt":
            if not claim:
                raise ValueError("a jwt has many claims: write which one to count by, for example 'jwt:sub'")
            return IdentityKind(
                label,
                "jwt",
                verified,
                lambda claims: _of_claims(label, claims, claim, source.tier),
                False,
                (verify,),
                is_verified=True,
            )
        return IdentityKind(
            label,
            source_name,
            verified,
            lambda value: of_function(label, value),
            False,
            (verify,),
            is_verified=True,
        )


_OPEN = IdentityKinds({}, Proxies(), 64, is_open=True)


def check_by(by: Any) -> None:
    """Raise ValueError for a `by` that is invalid in every policy: one that cannot be read, or an impossible name."""
    _OPEN.alternatives(by)


def _spelled(name: str) -> str:
    """Return the name, in lower case if it names a header: headers are case-insensitive."""
    return name.lower() if name[:7].lower() == "header:" else name


def as_identity(kind: str, value: object) -> Identity | None:
    """Return the answer of a verifier, a function or a framework as an identity of this kind. Returns None for None and
    False, and for an unusable value, which is logged once for each kind and type."""
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
        return str.__str__(value)  # a plain str: a subclass may compare differently
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
        "identifying by %s returned %s; %s. Expected a string, a whole number of up to %d bits, a UUID, an Identity of"
        " one of these, or None",
        kind,
        what,
        UNIDENTIFIED,
        MAX_BITS,
    )


def is_somebody(value: object) -> bool:
    """Return True if `as_identity` makes an identity of the value. Logs nothing."""
    return bool(id_text(value.value if isinstance(value, Identity) else value))


def of_function(kind: str, value: object) -> Identity | None:
    """Return the answer of an application's function as an identity. An Identity that has a kind keeps it, so that
    several sources can return the same client; any other answer gets the kind of the source."""
    identity = as_identity(kind, value)
    if identity is None or not isinstance(value, Identity) or value.kind in ("", kind):
        return identity
    own = str.__str__(value.kind) if isinstance(value.kind, str) else repr(type(value.kind))
    return Identity(own, identity.value, identity.tier) if _is_usable(kind, own) else identity


@lru_cache(maxsize=256)
def _is_usable(source: str, kind: str) -> bool:
    try:
        check_kind(kind)
    except ValueError as error:
        log.error("identifying by %s returned an Identity that counts as %s instead: %s", source, source, error)
        return False
    return True


def _as_tier(kind: str, tier: object) -> str | None:
    if tier is None or isinstance(tier, str):
        return None if tier is None else str.__str__(tier)
    log.error("identifying by %s returned a tier of type %s: expected a string or None", kind, type(tier).__name__)
    return None


def agent_class(request: RequestView) -> str:
    """Return the class of the user agent, one of AGENTS: a client that sends a new user agent in each request gets no
    more quotas than that."""
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


@lru_cache(maxsize=64)  # shared by all policies: identities of addresses do not depend on the policy
def _address_kind(label: str, ipv4: int, ipv6: int) -> IdentityKind:
    known: dict[str, tuple[Identity, str]] = {}  # by the text of an address, which is unique

    def of_client(client: ClientAddress) -> tuple[Identity, str]:
        found = known.get(client.text)
        if found is None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            if client.ip is None:
                value = client.text
                _tell_of_no_address(value[:80])
            else:
                value = prefix_key(client.ip, ipv6, ipv4).partition(":")[2]
            identity = Identity(label, value)
            found = identity, identity.key
            if len(client.text) <= MAX_TEXT:
                known[client.text] = found
        return found

    return IdentityKind(
        label,
        label,
        lambda _, found: of_client(found.client)[0],
        lambda one: one,
        True,
        of_client=of_client,
        is_verified=True,
    )


@lru_cache(maxsize=64)  # so that each peer is told once
def _tell_of_no_address(peer: str) -> None:
    log.warning("requests come without the address of a client (peer %r), so they all count as one client", peer)


def _target_kind(value: RequestValue) -> IdentityKind:
    """Return the kind for a value of the request. Spellings of one name are one key: else each would be a new quota."""
    label = value.text

    def pick(text: str | None) -> Identity | None:
        return None if text is None else target_identity(label, text)

    place = f"{label} {id(value)}"  # a parameter of the path depends on the patterns of its rule
    return IdentityKind(label, place, lambda request, _: value(request), pick, True, (value,), place)


def target_identity(label: str, text: str) -> Identity | None:
    """Return the identity of a value of the request; None if it is empty. Raises UnreadableRequest if it cannot be a
    name: an application that cleans it up would read one that was not counted."""
    if not text.strip():
        return None
    name = canonical_name(text)
    if name is None:
        raise UnreadableRequest("A value is too long, or has characters that are not allowed.")
    for letter in DOTTED:
        name = name.replace(letter, "i")
    return Identity(label, _canonical_id(name))


def _canonical_id(name: str) -> str:
    """Return a number or a UUID in one spelling, and any other name as it is. An application that reads the target as
    one of these finds the same account in all its spellings: 7, 07, +7, 7.0, and with the digits of any script."""
    with suppress(ValueError):
        return f"{UUID(name).int:x}"  # 32 digits are the same key as a number
    plain = name if name.isascii() else "".join([str(decimal(letter, letter)) for letter in name])
    number = WHOLE_NUMBER.fullmatch(plain)
    if number is None:
        return name
    size = number[2].replace("_", "").lstrip("0")
    return (number[1].replace("+", "") + size) if size else "0"


class _UnknownIdentity(ValueError):
    """The error of a name that is no identity of the policy. `known` are those that are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"unknown identity {name!r}: {nearest(name, known)}")
        self.known = known


def _source_hint(name: str, known: Sequence[str]) -> str:
    """Return what to write for a source of values that is unknown."""
    part, dot, rest = name.partition(".")
    if dot:
        near = [PARTS_ELSEWHERE[part]] if part in PARTS_ELSEWHERE else difflib.get_close_matches(part[:40], NAMES, 1)
        if near:
            return f"did you mean '{near[0]}.{rest}'?"
    if dot or name in NAMES:
        return "expected for example 'body.username', 'path.id', 'query.q', 'header.x-device' or 'cookie.cart'"
    hint = nearest(name, known)
    return f"{hint}{'' if hint.endswith('?') else '.'} For a field of the body write 'body.{name}'"


def choosable(by: Alternatives) -> str:
    """Return why a client can choose the key by which a rule counts it, and what to write; "" if it cannot.

    Whoever can choose a key could get somebody else blocked, or be somebody else in each request.
    """
    for parts in by:
        for kind in parts:
            if kind.is_verified or kind.base in BEHAVIOUR:
                continue
            if kind.name == "global":
                return "'global' is everybody together, so one client could block all: write 'by: address'"
            if kind.is_target and any(one.is_verified for one in parts):
                names = " + ".join(one.name for one in parts)
                return (
                    f"a client escapes it with another {kind.name!r} in each request: write 'by: address' here, and"
                    f" count by {names!r} in another rule, by a rate"
                )
            if kind.is_target:
                return f"any client can choose {kind.name!r}, and so block somebody else: write 'by: address'"
            if kind.base == "call":
                return (
                    "a function in 'by' may return what a client chooses: write 'by: address', or give the function"
                    " a name under 'identities', with 'verified: true' if no client can choose what it returns"
                )
            return (
                f"the function of the identity {kind.name!r} may return what a client chooses: write 'by: address', or"
                " 'verified: true' in this identity if no client can choose what it returns"
            )
        if not any(kind.is_verified for kind in parts):
            names = " + ".join(kind.name for kind in parts)
            return f"a client chooses the headers of which {names!r} is made: write 'by: address'"
    return ""


def _fingerprint_kind(label: str, ipv4: int, ipv6: int, salt: str) -> IdentityKind:
    prefix_of = _address_kind(label, ipv4, ipv6).of_client
    assert prefix_of is not None

    def look(request: RequestView, found: RequestIdentities) -> Identity:
        return Identity(label, fingerprint_of(request, prefix_of(found.client)[0].value, salt))

    return IdentityKind(label, label, look, lambda one: one, True)


def _lengths(detail: str) -> tuple[int, int]:
    """Return the lengths of the IPv4 and IPv6 prefixes: 24 and 48 for `prefix`, 32 and 56 for `prefix:56`, 16 and 56
    for `prefix:16/56`. Fingerprints have the same."""
    if not detail:
        return 24, 48
    first, slash, second = detail.rpartition("/")
    if not all(
        part.isascii() and part.isdecimal() and len(part) < 4 for part in ([first, second] if slash else [second])
    ):
        raise ValueError(f"cannot read prefix:{detail}: expected for example 'prefix:56' or 'prefix:24/48'")
    ipv4, ipv6 = int(first) if slash else 32, int(second)
    if not (8 <= ipv4 <= 32 and 16 <= ipv6 <= 128):
        raise ValueError(f"prefix:{detail} is out of range: expected 8 to 32 for IPv4, 16 to 128 for IPv6")
    return ipv4, ipv6


def _reader(name: str, source: Source) -> Callable[[RequestView], Sequence[str]]:
    """Return a function that returns all credentials of a source in a request."""
    base, _, detail = name.partition(":")
    cookie = source.cookie or (
        detail if base == "cookie" else "session" if base == "session" and not source.header else ""
    )
    if cookie:
        return lambda request: cookies_in(request, cookie)
    if base in ("bearer", "jwt") and not source.header:
        return _bearer
    header = source.header or _default_header(name)
    return lambda request: request.header_lines(header)


def _default_header(name: str) -> str:
    base, _, detail = name.partition(":")
    known = {"api-key": "x-api-key", "tenant": "x-tenant", "header": detail.lower()}
    if not known.get(base):
        raise ValueError(f"identity {name!r} needs a header, a cookie or a function: add 'header', 'cookie' or 'call'")
    return known[base]


def _only(credentials: Sequence[str], found: RequestIdentities, source: str) -> str | None:
    """Return the only one of some credentials, else None. If there are two, the application may read the other one, and
    serve another client than the one that is counted. It may also read one that is too long to be verified here: many
    decoders skip what a client has added to a signature."""
    if len(credentials) == 1 and len(credentials[0]) <= MAX_CLAIM:
        return credentials[0]
    if credentials:
        found.doubled = (*found.doubled, source)
    return None


def is_doubled(kinds: Iterable[IdentityKind], found: RequestIdentities) -> bool:
    """Return True if a credential for one of these kinds is in the request twice, or is too long."""
    return bool(found.doubled) and any(kind.source in found.doubled for kind in kinds)


def _bearer(request: RequestView) -> Sequence[str]:
    lines = request.header_lines("authorization")
    if len(lines) != 1:
        return lines
    scheme, *token = lines[0].split(maxsplit=1)[:2] or [""]
    return [token[0].strip()] if token and scheme.lower() == "bearer" else ()


def _has_claim(claim: str, claims: object) -> bool:
    return isinstance(claims, Mapping) and is_somebody(claims.get(claim))


def _of_claims(label: str, claims: object, claim: str, tier: str) -> Identity | None:
    if not isinstance(claims, Mapping):
        if claims is not None:
            log.error("the verifier of jwt returned %s: expected a mapping of claims or None", type(claims).__name__)
        return None
    identity = as_identity(label, claims.get(claim))
    if identity is None or not tier:
        return identity
    return identity._replace(tier=_as_tier(label, claims.get(tier)))
