"""Operators' blocks: clients that people block by hand, in one shared document of the storage. No I/O here.

Every gate applies them before any rule. It decides by a copy of the document, which the first request after a second
reads again, so that they cost no trip per request. In memory the document itself is looked at.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from time import time_ns
from typing import Any, NamedTuple, TypeVar

from ratebound.clock import EPOCH, SECOND, Clock, utc_datetime
from ratebound.errors import StorageError
from ratebound.flow import Flow
from ratebound.fork import renew_in_children
from ratebound.http.client_ip import Proxies
from ratebound.http.prefix import Address, parse_network
from ratebound.limit import MAX_PERIOD
from ratebound.memory_fast_path import MemoryFastPath
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.identity.identify import IdentityKind, IdentityKinds
from ratebound.policy.match.conditions import Ranges
from ratebound.policy.model.client_list import client_of, split_client
from ratebound.policy.problem import shown
from ratebound.storage import documents_of, keeps_documents
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.memory_states import States

log = logging.getLogger("ratebound")

DOCUMENT = "blocks"
MAX_BLOCKS = 10_000
MAX_REASON = 200  # characters
MAX_CLIENT = 1_000  # characters
FRESH = SECOND  # microseconds for which a copy of the document is used
TRIES = 1_000  # to write: each one that fails means that somebody else has written
HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,4}")  # the first part of most IPv6 addresses
ANY_KIND = IdentityKinds({}, Proxies(), 64, is_open=True)  # any name that some policy could define

T = TypeVar("T")


class Block(NamedTuple):
    """A client that an operator has blocked. `until` is None if only `unblock` ends it. `reason` is for operators."""

    client: str
    since: datetime
    until: datetime | None = None
    reason: str = ""


class BlockedClients:
    """Blocks, made ready to be searched for the client of a request. `clock` says which of them have ended."""

    def __init__(self, blocks: Iterable[Block], clock: Clock) -> None:
        ranges: list[tuple[str, tuple[int | None, Block]]] = []
        self._keys: dict[str, tuple[int | None, Block]] = {}
        self._names: dict[str, None] = {}
        self._clock = clock
        self._ends: int | None = 0  # when the last block ends; None if one of them does not end by itself
        for block in blocks:
            until = None if block.until is None else _microseconds(block.until)
            self._ends = None if until is None or self._ends is None else max(until, self._ends)
            try:
                named = split_client(block.client)
            except ValueError as error:  # others must not go free because of it
                _warn_of_name(block.client, str(error))
                continue
            if named is None:
                ranges.append((block.client, (until, block)))
            else:
                self._names[named[0]] = None
                self._keys[f"{named[0].replace(':', '.')}:{named[1]}"] = until, block
        self._ranges = Ranges(ranges)
        self.name_users = "user" in self._names
        self._kinds: dict[IdentityKinds, list[IdentityKind]] = {}  # of policies: few, even after many reloads

    @property
    def have_ended(self) -> bool:
        """True if none of the blocks holds any more."""
        return self._ends is not None and self._ends <= self._clock()

    def kinds(self, known: IdentityKinds) -> list[IdentityKind]:
        """Return the kinds of identity to look for. Names that the policy does not know are left out."""
        kinds = self._kinds.get(known)
        if kinds is None:
            found: dict[str, IdentityKind] = {}
            for name in self._names:
                try:
                    found.update((kind.name, kind) for kind in known.giving(name)[1])
                except ValueError as error:
                    _warn_of_name(name, str(error))
            if len(self._kinds) >= 1_000:
                self._kinds.clear()
            kinds = self._kinds[known] = list(found.values())
        return kinds

    def find(self, keys: Iterable[str], address: Address | None) -> tuple[Block, int | None] | None:
        """Return the block of a client that ends last, and the microseconds until then; None if nothing blocks it.

        The wait is None for a block that does not end by itself.
        """
        found = [*(self._keys[key] for key in keys if key in self._keys), *self._ranges.find(address)]
        if not found:
            return None
        now, last = self._clock(), None
        for until, block in found:
            if until is None:
                return block, None
            if until > now and (last is None or until - now > last[1]):
                last = block, until - now
        return last

    def has(self, address: Address | None) -> bool:
        """Return True if a block names this address or a range that it is in."""
        return any(True for _ in self._ranges.find(address))


class MemoryBlocks:
    """The blocks in the memory of this process, for one gate: every change is seen at once."""

    def __init__(self, states: States, fast_path: MemoryFastPath) -> None:
        self._states = states
        self._fast_path = fast_path
        self._seen: tuple[object, BlockedClients | None] = (None, None)  # the documents, and the clients blocked there
        self.look()

    def look(self) -> BlockedClients | None:
        """Return the clients that are blocked now, None if there are none."""
        documents = self._states.documents
        seen, listed = self._seen
        if documents is not seen:
            listed = _listed(documents.get(DOCUMENT, (0, b""))[1], self._states.now, listed)
        if listed is not None and listed.have_ended:
            listed = None
        self._seen = documents, listed
        if listed is None:
            self._fast_path.unblocked = documents
        return listed


class CopiedBlocks:
    """A copy of the blocks in a storage, for one gate. `listed` is None if they block nobody.

    If `must_read` returns True, the caller reads the document: it calls `begin`, and then `take` or `fail`.
    """

    def __init__(self, clock: Clock) -> None:
        self.listed: BlockedClients | None = None
        self._clock = clock
        self._content = b""
        self._read_at: int | None = None  # when the copy was read, or a caller began to read it; None if it never was
        self._begun = 0  # reads, numbered in the order in which they began
        self._taken = 0  # the number of the last read that was taken
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def must_read(self) -> bool:
        """Return True if the caller must read the document now.

        A copy that is too old is read by one caller, and others go on with it. While there is no copy, all callers
        read.
        """
        if self.listed is not None and self.listed.have_ended:
            self.listed = None
        return self._read_at is None or not 0 <= self._clock() - self._read_at < FRESH

    def begin(self) -> int:
        """Return the number of a read that begins now."""
        with self._lock:
            self._begun += 1
            if self._read_at is not None:
                self._read_at = self._clock()
            return self._begun

    def take(self, number: int, content: bytes) -> None:
        """Use what a read has returned, unless one that began later has returned already."""
        with self._lock:
            if number > self._taken:
                self._taken = number
                self._use(content)

    def write(self, content: bytes) -> None:
        """Use what this process has written. Reads that are under way may not have seen it, and are not taken."""
        with self._lock:
            self._begun += 1
            self._taken = self._begun
            self._use(content)

    def fail(self) -> None:
        """Go on with the copy, because a read has failed. The next one is made when the copy is old."""
        self._read_at = self._clock()

    def _use(self, content: bytes) -> None:
        if content != self._content:
            self.listed = _listed(content, self._clock, self.listed)
            self._content = content
        self._read_at = self._clock()


def adding(
    storage: Any,
    client: object,
    for_: object,
    reason: object,
    kinds: IdentityKinds = ANY_KIND,
    tell: Callable[[bytes], None] | None = None,
) -> Flow[Block]:
    """Block a client. Return the block. Raises ValueError for a client, a time or a reason that cannot be stored.

    `tell` is called with the document that was written.
    """
    documents, clock = documents_of(storage), _clock_of(storage)
    name, length = canonical_client(client, kinds), None if for_ is None else _checked_length(for_)
    if not isinstance(reason, str) or len(reason) > MAX_REASON or not reason.isprintable():
        raise ValueError(f"reason must be one line of at most {MAX_REASON} characters, not {shown(reason)}")
    now = clock()
    block = Block(name, utc_datetime(now), None if length is None else utc_datetime(now + length), reason)

    def change(blocks: list[Block]) -> tuple[list[Block], Block]:
        others = [one for one in blocks if one.client != name]
        if len(others) >= MAX_BLOCKS:
            raise ValueError(
                f"{MAX_BLOCKS} clients are blocked, and there is no room for another: unblock some, or block a range"
                " of addresses that contains them"
            )
        return [*others, block], block

    return (yield from _changing(documents, clock, change, tell))


def removing(storage: Any, client: object, tell: Callable[[bytes], None] | None = None) -> Flow[bool]:
    """Unblock a client. Return False if it was not blocked. Raises ValueError for a name that cannot be read.

    `tell` is called with the document that was written.
    """
    documents = documents_of(storage)

    def change(blocks: list[Block]) -> tuple[list[Block] | None, bool]:
        # A name that cannot be read may be in the document all the same: a person has written it, or a later version.
        name = client if any(one.client == client for one in blocks) else canonical_client(client)
        others = [one for one in blocks if one.client != name]
        return (None, False) if len(others) == len(blocks) else (others, True)

    return (yield from _changing(documents, _clock_of(storage), change, tell))


def listing(storage: Any) -> Flow[list[Block]]:
    """Return all blocks that hold now, the oldest first."""
    _, content = yield partial(documents_of(storage).read_document, DOCUMENT)
    return _holding(_readable(content), _clock_of(storage))


def _changing(
    storage: Any,
    clock: Clock,
    change: Callable[[list[Block]], tuple[list[Block] | None, T]],
    tell: Callable[[bytes], None] | None,
) -> Flow[T]:
    """Change the document by compare-and-set, and leave out blocks that have ended. `change` returns the new blocks,
    None to leave them as they are, and the answer."""
    for _ in range(TRIES):
        version, content = yield partial(storage.read_document, DOCUMENT)
        blocks, answer = change(_holding(_readable(content), clock))
        if blocks is None:
            return answer
        new = write_blocks(blocks)
        if (yield partial(storage.write_document, DOCUMENT, new, version)):
            if tell is not None:
                tell(new)
            return answer
    raise StorageError(f"others changed the blocks {TRIES} times in between: try again", undone=True, outage=False)


def read_blocks(content: bytes) -> list[Block]:
    """Return the blocks in a document. Raises ValueError if it is not one of blocks."""
    if not content:
        return []
    try:
        return [_read_block(entry) for entry in json.loads(content)["blocks"]]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the shared document {DOCUMENT!r} in the storage is not a list of blocks"
            f" ({type(error).__name__}: {error}): delete it, or use another prefix"
        ) from None


def write_blocks(blocks: Sequence[Block]) -> bytes:
    """Return the document for blocks."""
    entries = [
        {
            "client": block.client,
            "since": block.since.isoformat(),
            "until": None if block.until is None else block.until.isoformat(),
            "reason": block.reason,
        }
        for block in blocks
    ]
    return json.dumps({"blocks": entries}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def canonical_client(text: object, kinds: IdentityKinds = ANY_KIND) -> str:
    """Return a client as blocks name it, so that it has one name: `2001:DB8::1/128` is `2001:db8::1`.

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


def _read_block(entry: Any) -> Block:
    client, since, until, reason = entry["client"], entry["since"], entry["until"], entry["reason"]
    if not isinstance(client, str) or not isinstance(reason, str):
        raise TypeError("expected text as client and reason")
    return Block(client, _instant(since), None if until is None else _instant(until), reason)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _readable(content: bytes) -> list[Block]:
    try:
        return read_blocks(content)
    except ValueError as error:
        raise StorageError(str(error), undone=True, outage=False) from None


def _holding(blocks: Iterable[Block], clock: Clock) -> list[Block]:
    now = utc_datetime(clock())
    return [block for block in blocks if block.until is None or block.until > now]


def _checked_length(given: object) -> int:
    """Return the length of a block in microseconds."""
    length = round(read_seconds(given) * SECOND)
    if not 0 < length <= MAX_PERIOD:
        raise ValueError(
            f"a block lasts more than 0 seconds and at most {MAX_PERIOD // SECOND}, not {shown(given)}: leave the time"
            " out for a block that lasts until it is removed"
        )
    return length


def _microseconds(instant: datetime) -> int:
    since = instant - EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _states_of(storage: Any) -> States | None:
    memory = storage.memory if isinstance(storage, AsyncMemoryStorage) else storage
    return memory.states if isinstance(memory, MemoryStorage) else None


def _clock_of(storage: Any) -> Clock:
    """Return the clock of a storage: memory's own, one that a test has given, or the time of this machine."""
    while hasattr(storage, "inner"):
        storage = storage.inner
    states = _states_of(storage)
    if states is not None:
        return states.now
    given: Clock | None = getattr(storage, "_clock", None)
    return _wall_clock if given is None else given


def _wall_clock() -> int:
    return time_ns() // 1000


def blocks_in(storage: Any, fast_path: MemoryFastPath) -> MemoryBlocks | CopiedBlocks | None:
    """Return the blocks in a storage for one gate; None if it keeps no documents."""
    if not keeps_documents(storage):
        return None
    states = _states_of(storage)
    return CopiedBlocks(_clock_of(storage)) if states is None else MemoryBlocks(states, fast_path)


def _listed(content: bytes, clock: Clock, before: BlockedClients | None) -> BlockedClients | None:
    """Return the clients in a document, and those from before if it cannot be read."""
    try:
        blocks = read_blocks(content)
        return BlockedClients(blocks, clock) if blocks else None
    except ValueError as error:
        _log_unreadable(str(error))
        return before


@lru_cache(maxsize=64)
def _warn_of_name(name: str, why: str) -> None:
    log.warning("blocks of clients named %r have no effect here: %s", name, why)


@lru_cache(maxsize=8)
def _log_unreadable(why: str) -> None:
    log.error("%s. Clients stay blocked as they were before", why)
