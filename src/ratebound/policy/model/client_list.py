"""Lists of single clients: addresses, ranges and identities, each with something to say about it."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from ratebound.http.prefix import Address, parse_network
from ratebound.policy.identity.identify import IdentityKind, IdentityKinds
from ratebound.policy.match.conditions import Ranges
from ratebound.policy.problem import shown

T = TypeVar("T")


class ClientList(Generic[T]):
    """Values by client. `kinds` are the identities that must be looked for, so that none of them is missed."""

    def __init__(self, entries: Iterable[tuple[str, T]], kinds: IdentityKinds) -> None:
        ranges: list[tuple[str, T]] = []
        self.kinds: dict[str, IdentityKind] = {}
        self._keys: dict[str, list[T]] = {}
        for text, value in entries:
            found = client_of(text, kinds)
            if found is None:
                ranges.append((text, value))
            else:
                given, key = found
                self.kinds.update((kind.name, kind) for kind in given)
                self._keys.setdefault(key, []).append(value)
        self._ranges = Ranges(ranges)
        self.empty = not self._keys and not ranges

    def find(self, keys: Iterable[str], address: Address | None) -> list[T]:
        """What is said of a client: by its identities first, then by its address, the narrowest range first."""
        return [*(value for key in keys for value in self._keys.get(key, ())), *self._ranges.find(address)]


def client_of(text: object, kinds: IdentityKinds) -> tuple[tuple[IdentityKind, ...], str] | None:
    """Return the kinds that may give this identity, and its key; None for an address or a range. Raises ValueError for
    anything else."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"expected an address, a range or an identity like 'user:42', not {shown(text)}")
    try:
        parse_network(text)
        return None
    except ValueError as error:
        name, colon, value = text.partition(":")
        if name in ("jwt", "header", "cookie"):
            detail, colon, value = value.partition(":")  # jwt:sub:42
            name = f"{name}:{detail}"
        if not colon or not value or name.isdecimal() or "/" in name:
            raise ValueError(f"{error}; or an identity like 'user:42'") from None
    label, given = kinds.giving(name)
    if any(kind.early for kind in given):
        raise ValueError(f"{text!r}: {name} names no single client; write the address or the range itself")
    return given, f"{label}:{value}"
