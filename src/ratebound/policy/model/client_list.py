"""Lists of clients: addresses, ranges and identities, each with a value such as a tier or an override."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Generic, TypeVar

from ratebound.http.prefix import Address, parse_network
from ratebound.policy.identity.identify import IdentityKind, IdentityKinds
from ratebound.policy.match.conditions import Ranges
from ratebound.policy.problem import shown

T = TypeVar("T")


class ClientList(Generic[T]):
    """A table of values by client. `kinds` are the kinds of identity in the table: a caller must look for all of
    them before `find`, so that no entry is missed."""

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
        self._changes: tuple[Callable[[T], T], ...] = ()
        self.empty = not self._keys and not ranges

    def find(self, keys: Iterable[str], address: Address | None) -> list[T]:
        """Return the values for a client: those of its identities first, then those of its address, narrowest range
        first."""
        found = [*(value for key in keys for value in self._keys.get(key, ())), *self._ranges.find(address)]
        for change in self._changes:
            found = [change(value) for value in found]
        return found

    def mapped(self, change: Callable[[T], T]) -> "ClientList[T]":
        """Return the same clients with other values. `change` is called with each value that is found, so that a
        mapped list takes no memory for its entries."""
        mapped = copy(self)
        mapped._changes = (*self._changes, change)
        return mapped


def split_client(text: object) -> tuple[str, str] | None:
    """Return the name of an identity's kind and its value; None for an address or a range. Raises ValueError for
    anything else."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"expected an address, a range or an identity like 'user:42', not {shown(text)}")
    try:
        parse_network(text)
        return None
    except ValueError as error:
        name, colon, value = text.partition(":")
        if name.lower() == "header":
            detail, colon, value = value.partition(":")
            name = f"header:{detail.lower()}"
        elif name in ("jwt", "cookie"):
            detail, colon, value = value.partition(":")  # jwt:sub:42
            name = f"{name}:{detail}"
        if not colon or not value or name.isdecimal() or "/" in name:
            raise ValueError(f"{error}; or an identity like 'user:42'") from None
    return name, value


def client_of(text: object, kinds: IdentityKinds) -> tuple[tuple[IdentityKind, ...], str] | None:
    """Return the kinds of identity that can produce this client, and its key; None for an address or a range. Raises
    ValueError for anything else."""
    named = split_client(text)
    if named is None:
        return None
    name, value = named
    label, given = kinds.giving(name)
    if any(kind.is_target for kind in given):
        raise ValueError(f"{text!r} does not identify a client: it says what a request is about, not who sent it")
    if any(kind.early for kind in given):
        raise ValueError(f"{text!r} does not identify a client: write the address or range itself, without '{name}:'")
    return given, f"{label}:{value}"
