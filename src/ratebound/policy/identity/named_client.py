"""Clients that an operator names, as the lists of a policy do: `user:42`, `203.0.113.7`, `api-key:acme`, `jwt:sub:42`.

A rule that counts by several identities at once has clients of several names: `["user:42", "203.0.113.7"]`. They are
separate texts, because a value may contain any character: joined ones could name another client (law 10).
"""

from collections.abc import Sequence
from typing import NamedTuple

from ratebound.http.client_ip import ClientAddress
from ratebound.http.prefix import parse_address
from ratebound.policy.identity.identify import Alternatives, IdentityKind, IdentityKinds, combined, target_identity
from ratebound.policy.match.request import Identity
from ratebound.policy.problem import shown

EXAMPLES = "'user:42', '203.0.113.7' or 'api-key:acme'"
OF_ADDRESS = ("address", "prefix")
WITH_DETAIL = ("jwt", "header", "cookie")


class NamedIdentity(NamedTuple):
    """One identity of a client. `sources` are the kinds that can produce it. `client` is set for an address."""

    label: str
    value: str
    sources: frozenset[str] = frozenset()
    client: ClientAddress | None = None

    @property
    def key(self) -> str:
        """The key under which lists of clients know it."""
        return f"{self.label}:{self.value}"

    def is_given_by(self, kind: IdentityKind) -> bool:
        """Return True if a kind can produce this identity."""
        base = kind.name.partition(".")[0]
        if self.client is not None:
            return base == self.label
        return kind.name == self.label or kind.name in self.sources or base == "call"

    def as_identity(self, kind: IdentityKind) -> Identity:
        """Return the identity that a kind produces for this client."""
        if self.client is not None and kind.of_client is not None:
            return kind.of_client(self.client)[0]
        return Identity(self.label, self.value)


NamedClient = Sequence[NamedIdentity]


def read_client(names: str | Sequence[str], kinds: IdentityKinds) -> NamedClient:
    """Return the client that one name stands for, or several for a rule that counts by several identities at once.

    Raises ValueError for a name that cannot be read.
    """
    listed: Sequence[object] = names if isinstance(names, list | tuple) else [names]
    if not listed:
        raise ValueError(f"expected the name of a client, for example {EXAMPLES}")
    return [_read(name, kinds) for name in listed]


def _examples(kinds: IdentityKinds) -> str:
    """Return examples of clients. An API key is none if the policy's sources return other kinds."""
    declared = kinds.declared
    return EXAMPLES.replace("api-key", declared[0]) if declared else EXAMPLES


def _read(name: object, kinds: IdentityKinds) -> NamedIdentity:
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a client like {EXAMPLES}, not {shown(name)}")
    if name == "global":
        return NamedIdentity("global", "")
    kind, colon, value = name.partition(":")
    address = parse_address(name)
    if address is not None:
        kind = "address"
    elif kind in OF_ADDRESS:
        address = parse_address(value)
        if address is None:
            raise ValueError(f"{shown(name)} names no address: expected for example '203.0.113.7'")
    if address is not None:
        return NamedIdentity(kind, str(address), client=ClientAddress(address, str(address), "peer"))
    if kind in WITH_DETAIL:
        detail, colon, value = value.partition(":")  # jwt:sub:42
        kind = f"{kind}:{detail.lower() if kind == 'header' else detail}"
    if not kind or not colon or not value:
        raise ValueError(f"{shown(name)} names no client: expected for example {_examples(kinds)}")
    try:
        label, sources = kinds.giving(kind)
    except ValueError:  # a kind that only a function of the policy produces
        label, sources = kind.replace(":", "."), ()
    if any(source.is_target for source in sources):
        target = target_identity(label, value)
        if target is None:
            raise ValueError(f"{shown(name)} names no client: expected for example {EXAMPLES}")
        value = target.value  # in the spelling that is counted
    return NamedIdentity(label, value, frozenset(source.name for source in sources))


def identity_in(by: Alternatives, client: NamedClient) -> Identity | None:
    """Return the identity by which a rule counts a named client; None if the rule does not count by what is named."""
    for parts in by:
        left, found = list(client), []
        for kind in parts:
            one = next((one for one in left if one.is_given_by(kind)), None)
            if one is None:
                break
            left.remove(one)
            found.append(one.as_identity(kind))
        else:
            if not left:
                return found[0] if len(found) == 1 else combined(found)
    return None
