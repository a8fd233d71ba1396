"""Operators' blocks: clients that people block by hand. Every gate applies them before any rule. No I/O here."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from ratebound.flow import Flow
from ratebound.http.client_ip import Proxies
from ratebound.http.prefix import parse_network
from ratebound.policy.identity.identify import IdentityKinds
from ratebound.policy.model.client_list import client_of, split_client
from ratebound.policy.problem import shown
from ratebound.policy.runtime.operator_documents import (
    MAX_BY,
    MAX_REASON,
    MAX_TARGET,
    Change,
    DocumentDraft,
    DocumentKind,
    after,
    changing,
    checked_length,
    checked_line,
    described,
    listing_entries,
    read_common,
    write_common,
)

MAX_BLOCKS = 10_000
MAX_CLIENT = MAX_TARGET  # characters
HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,4}")  # the first part of most IPv6 addresses
ANY_KIND = IdentityKinds({}, Proxies(), 64, is_open=True)  # any name that some policy could define

Tell = Callable[[str, bytes], None] | None  # called with the name and the content of a document that was written


class Block(NamedTuple):
    """A client that an operator has blocked. `until` is None if only `unblock` ends it. `reason` and `by`, the name of
    the operator, are for operators."""

    client: str
    since: datetime
    until: datetime | None = None
    reason: str = ""
    by: str = ""


def _read(raw: Any) -> Block:
    if not isinstance(raw["client"], str):
        raise TypeError("expected text as client")
    return Block(raw["client"], *read_common(raw))


def _write(block: Block) -> dict[str, Any]:
    return {"client": block.client, **write_common(*block[1:])}


def _target(block: Block) -> str:
    return block.client


BLOCKS: DocumentKind[Block] = DocumentKind("blocks", MAX_BLOCKS, _read, _write, _target)


def adding(
    storage: Any,
    client: object,
    for_: object,
    reason: object,
    kinds: IdentityKinds = ANY_KIND,
    tell: Tell = None,
    by: object = "",
) -> Flow[Block]:
    """Block a client. Return the block. Raises ValueError for a client, a time or a text that cannot be stored."""
    name, why = canonical_client(client, kinds), checked_line("reason", reason, MAX_REASON)
    who, length = checked_line("by", by, MAX_BY), checked_length(for_, "a block")

    def change(draft: DocumentDraft[Block], now: datetime) -> tuple[Block, Change]:
        block = Block(name, now, after(now, length), why, who)
        draft.entries = [one for one in draft.entries if one.client != name]
        draft.check_room("unblock some, or block a range of addresses that contains them")
        draft.entries.append(block)
        return block, Change(now, who, "block", name, described(block.until, why))

    return (yield from changing(storage, BLOCKS, change, tell))


def removing(storage: Any, client: object, tell: Tell = None, by: object = "") -> Flow[bool]:
    """Unblock a client. Return False if it was not blocked. Raises ValueError for a name that cannot be read."""
    who = checked_line("by", by, MAX_BY)

    def change(draft: DocumentDraft[Block], now: datetime) -> tuple[bool, Change | None]:
        # A name that cannot be read may be in the document all the same: a person has written it, or a later version.
        name = client if any(one.client == client for one in draft.entries) else canonical_client(client)
        others = [one for one in draft.entries if one.client != name]
        if len(others) == len(draft.entries):
            return False, None
        draft.entries = others
        return True, Change(now, who, "unblock", str(name), "")

    return (yield from changing(storage, BLOCKS, change, tell))


def listing(storage: Any) -> Flow[list[Block]]:
    """Return all blocks that hold now, the oldest first."""
    return (yield from listing_entries(storage, BLOCKS))


def canonical_client(text: object, kinds: IdentityKinds = ANY_KIND) -> str:
    """Return a client as operators' documents name it, so that it has one name: `2001:DB8::1/128` is `2001:db8::1`.

    Raises ValueError for a name that cannot be read, and for an identity of a kind that `kinds` does not know.
    """
    client_of(text, kinds)
    assert isinstance(text, str)
    if len(text) > MAX_CLIENT:
        raise ValueError(f"a client has at most {MAX_CLIENT} characters, not {len(text)}: {shown(text)}")
    named = split_client(text)
    if named is not None:
        if kinds is ANY_KIND and HEXADECIMAL.fullmatch(named[0]) and ":" in named[1]:
            parse_network(text)  # an address with a mistake in it, not an identity of the kind 'fe80'
        return ":".join(named)
    network = parse_network(text)
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)
