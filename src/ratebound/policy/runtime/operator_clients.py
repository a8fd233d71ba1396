"""The clients that operators have blocked or given other limits, ready for a fast look-up by request."""

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from ratebound.clock import Clock
from ratebound.http.prefix import Address, parse_network
from ratebound.policy.identity.identify import IdentityKind, IdentityKinds
from ratebound.policy.identity.named_client import OF_ADDRESS
from ratebound.policy.match.conditions import Ranges
from ratebound.policy.model.client_list import split_client
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.policy.runtime.operator_documents import microseconds_of
from ratebound.policy.runtime.operator_overrides import ClientOverride

log = logging.getLogger("ratebound")

E = TypeVar("E", bound=Block | ClientOverride)


class NamedClients(Generic[E]):
    """The entries of one document by client. `clock` says which of them have ended."""

    def __init__(self, document: str, entries: Sequence[E], clock: Clock) -> None:
        self.entries = entries
        ranges: list[tuple[str, tuple[int | None, E]]] = []
        self._document = document
        self._keys: dict[str, list[tuple[int | None, E]]] = {}
        self._clock = clock
        self.ends: int | None = 0  # when the last entry ends; None if one of them does not end by itself
        self.names: dict[str, None] = {}  # of the kinds of identity
        for entry in entries:
            until = None if entry.until is None else microseconds_of(entry.until)
            self.ends = None if until is None or self.ends is None else max(until, self.ends)
            try:
                named = split_client(entry.client)
            except ValueError as error:  # others must not go free because of it
                warn_of_name(document, entry.client, str(error))
                continue
            if named is None:
                ranges.append((entry.client, (until, entry)))
            else:
                self.names[named[0]] = None
                key = f"{named[0].replace(':', '.')}:{named[1]}"
                self._keys.setdefault(key, []).append((until, entry))
        self._ranges = Ranges(ranges)
        self._kinds: dict[IdentityKinds, list[IdentityKind]] = {}  # of policies: few, even after many reloads

    def kinds(self, known: IdentityKinds) -> list[IdentityKind]:
        """Return the kinds of identity to look for. Names that the policy does not know are left out."""
        kinds = self._kinds.get(known)
        if kinds is None:
            found: dict[str, IdentityKind] = {}
            for name in self.names:
                try:
                    found.update((kind.name, kind) for kind in known.giving(name)[1])
                except ValueError as error:
                    warn_of_name(self._document, name, str(error))
            if len(self._kinds) >= 1_000:
                self._kinds.clear()
            kinds = self._kinds[known] = list(found.values())
        return kinds

    def find(self, keys: Iterable[str], address: Address | None) -> list[tuple[E, int | None]]:
        """Return the entries that hold for a client, each with the microseconds until it ends: those of its identities
        first, then those of its address, narrowest range first. The time is None for one that does not end."""
        found = [*(one for key in keys for one in self._keys.get(key, ())), *self._ranges.find(address)]
        if not found:
            return []
        now = self._clock()
        waits = [(entry, None if until is None else until - now) for until, entry in found]
        return [(entry, wait) for entry, wait in waits if wait is None or wait > 0]

    def has(self, address: Address | None) -> bool:
        """Return True if an entry names this address or a range that it is in."""
        return any(True for _ in self._ranges.find(address))


class OperatorClients:
    """All clients that operators have named: `blocks`, and `overrides` of their limits. `ends` is when the last entry
    ends, in microseconds; None if one does not end by itself.

    What is as in `before` is taken from there: a long list takes a tenth of a second to make ready.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        overrides: Sequence[ClientOverride],
        clock: Clock,
        before: "OperatorClients | None" = None,
    ) -> None:
        # The override that names rules comes before one for all rules of the same client: it is more specific.
        ordered = sorted(overrides, key=lambda override: not override.rules)
        self.blocks: NamedClients[Block]
        self.overrides: NamedClients[ClientOverride]
        if before is not None and before.blocks.entries == blocks:
            self.blocks = before.blocks
        else:
            self.blocks = NamedClients("blocks", blocks, clock)
        if before is not None and before.overrides.entries == ordered:
            self.overrides = before.overrides
        else:
            self.overrides = NamedClients("overrides", ordered, clock)
        ends = self.blocks.ends, self.overrides.ends
        self.ends = None if ends[0] is None or ends[1] is None else max(ends[0], ends[1])
        self.name_users = "user" in self.blocks.names or "user" in self.overrides.names

    def kinds(self, known: IdentityKinds) -> list[IdentityKind]:
        """Return the kinds of identity to look for."""
        return [*self.blocks.kinds(known), *self.overrides.kinds(known)]

    def has(self, address: Address | None) -> bool:
        """Return True if an entry names this address or a range that it is in."""
        return self.blocks.has(address) or self.overrides.has(address)

    def block_of(self, keys: Iterable[str], address: Address | None) -> tuple[Block, int | None] | None:
        """Return the block of a client that ends last, and the microseconds until then; None if nothing blocks it.

        The wait is None for a block that does not end by itself.
        """
        last: tuple[Block, int | None] | None = None
        for block, wait in self.blocks.find(keys, address):
            if wait is None:
                return block, None
            if last is None or last[1] is None or wait > last[1]:
                last = block, wait
        return last

    def blocks_key(self, key: str) -> bool:
        """Return True if blocks cover every client that is counted under a key, such as `address:203.0.113.7`. A key of
        several identities at once is not looked for."""
        kind, _, value = key.partition(":")
        if kind.partition(".")[0] not in OF_ADDRESS:
            return self.block_of([key], None) is not None
        try:
            network = parse_network(value)
        except ValueError:
            return False
        found = self.blocks.find((), network.network_address)
        return any(parse_network(block.client).prefixlen <= network.prefixlen for block, _ in found)

    def overrides_of(self, keys: Iterable[str], address: Address | None) -> list[ClientOverride]:
        """Return the overrides of a client, the most specific first."""
        return [override for override, _ in self.overrides.find(keys, address)]


@lru_cache(maxsize=64)
def warn_of_name(document: str, name: str, why: str) -> None:
    """Log once that entries of a client have no effect."""
    log.warning("%s of clients named %r have no effect here: %s", document, name, why)
