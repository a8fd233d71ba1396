"""Operators' blocks: clients that people block by hand. Every gate applies them before any rule. No I/O here."""

from datetime import datetime
from typing import Any, NamedTuple

from ratebound.flow import Flow
from ratebound.policy.identity.identify import IdentityKinds
from ratebound.policy.runtime.client_name import ANY_KIND, canonical_client
from ratebound.policy.runtime.operator_documents import (
    MAX_BY,
    MAX_REASON,
    Change,
    DocumentDraft,
    DocumentKind,
    Tell,
    after,
    changing,
    checked_length,
    checked_line,
    described,
    read_common,
    write_common,
)

MAX_BLOCKS = 10_000


class Block(NamedTuple):
    """A client that an operator has blocked.

    Attributes:
        client: The client, as it was written.
        since: When it began.
        until: When it ends; None if only `unblock` ends it.
        reason: Why, in one line for operators.
        by: The name of the operator.
    """

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


def adding_block(
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


def removing_block(storage: Any, client: object, tell: Tell = None, by: object = "") -> Flow[bool]:
    """Unblock a client. Return False if it was not blocked. Raises ValueError for a name that cannot be read."""
    who = checked_line("by", by, MAX_BY)

    def change(draft: DocumentDraft[Block], now: datetime) -> tuple[bool, Change | None]:
        # A name that cannot be read may be in the document anyway: a person has written it, or a later version.
        name = client if any(one.client == client for one in draft.entries) else canonical_client(client)
        others = [one for one in draft.entries if one.client != name]
        if len(others) == len(draft.entries):
            return False, None
        draft.entries = others
        return True, Change(now, who, "unblock", str(name), "")

    return (yield from changing(storage, BLOCKS, change, tell))
