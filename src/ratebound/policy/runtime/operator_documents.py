"""Operators' documents: what people have decided by hand, in shared documents of the storage. No I/O here.

Each document is JSON: `{"blocks": […], "changes": […]}`. A change of an entry and the note about it (who, what, when)
are one compare-and-set write, so that neither is ever there without the other. Gates decide by a copy of the documents,
which the first request after a second reads again. In memory they look at the documents themselves.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ratebound.clock import EPOCH, SECOND, Clock, utc_datetime, wall_clock
from ratebound.errors import StorageError
from ratebound.flow import Flow
from ratebound.fork import renew_in_children
from ratebound.limit import MAX_PERIOD
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.problem import shown
from ratebound.storage import documents_of, unguarded
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.memory_states import States

log = logging.getLogger("ratebound")

AUDIT = "audit"  # the document of changes that no other document goes with
CHANGES = "changes"  # the key of the audit log in every document
MAX_CHANGES = 200  # in each document
MAX_REASON = 200  # characters
MAX_BY = 100  # of the name of an operator
MAX_TARGET = 1_000
MAX_DETAIL = 400
# Microseconds for which a copy of the documents is used, from the beginning of its read: a change is known everywhere
# within a second, the time of a trip included.
FRESH = 9 * SECOND // 10
KEPT = 7200 * SECOND  # microseconds for which entries that have ended stay in a document
TRIES = 1_000  # to write: each one that fails means that somebody else has written

T = TypeVar("T")


class DocumentContended(StorageError):
    """A document was not changed, because others have changed it again and again meanwhile."""


class OperatorEntry(Protocol):
    """An entry of a document. `until` is None if it does not end by itself."""

    @property
    def until(self) -> datetime | None:
        """When the entry ends."""


E = TypeVar("E", bound=OperatorEntry)


class Change(NamedTuple):
    """An entry of the audit log: who did what, and when.

    Attributes:
        at: When it was done.
        by: Who did it.
        action: What was done, like `block`.
        target: The client or the rule.
        detail: The rest, in words.
    """

    at: datetime
    by: str
    action: str
    target: str
    detail: str


# Called with the name and the content of a document that was written, and with the change that was noted in it.
Tell = Callable[[str, bytes, Change], None] | None


@dataclass(frozen=True)
class DocumentKind(Generic[E]):
    """A kind of document: its name, which is the key of its entries too, how many there may be, how one is read, and
    what it is for: a client, or a rule. Two entries that hold are never for the same.

    `read` raises KeyError, TypeError or ValueError for an entry that it cannot read. `write` returns what JSON stores.
    """

    name: str
    most: int
    read: Callable[[Any], E]
    write: Callable[[E], dict[str, Any]]
    target: Callable[[E], Any]

    def readable(self, content: bytes) -> list[E]:
        """Return the entries of a document, without those that cannot be read, which are logged. Raises ValueError if
        the document itself cannot be read."""
        return [entry for _, entry in self.parse(content)[1] if entry is not None]

    def parse(self, content: bytes) -> tuple[dict[str, Any], list[tuple[Any, E | None]]]:
        """Return the document as JSON has it, and its entries, each as JSON has it and as it is read: None if it cannot
        be read. Raises ValueError if it is no such document."""
        tree = _tree(self.name, content)
        return tree, [(raw, self._entry(raw)) for raw in tree[self.name]]

    def _entry(self, raw: Any) -> E | None:
        try:
            return self.read(raw)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            _log_entry(self.name, shown(raw), f"{type(error).__name__}: {error}")
            return None


def _no_entry(raw: Any) -> Any:
    raise TypeError("the audit log has changes only")


AUDIT_KIND: DocumentKind[Any] = DocumentKind(AUDIT, 0, _no_entry, _no_entry, _no_entry)


class DocumentDraft(Generic[E]):
    """A document while it is changed. `entries` are those that hold now; what is left in it is written.

    Keys that this version does not know are written as they were read, and so are entries that it cannot read. Entries
    that have ended are kept for some time: if the clock of this machine is ahead, they still hold on others.
    """

    def __init__(self, kind: DocumentKind[E], content: bytes, now: datetime) -> None:
        self._kind = kind
        self._tree, parsed = kind.parse(content)
        self._raw = {entry: raw for raw, entry in parsed if entry is not None}
        self.entries = holding(self._raw, now)
        kept = utc_datetime(microseconds_of(now) - KEPT)
        self._ended = [entry for entry in holding(self._raw, kept) if not is_holding(entry, now)]
        self.unreadable = [raw for raw, entry in parsed if entry is None]

    def check_room(self, what: str) -> None:
        """Raise ValueError if there is no room for another entry."""
        if len(self.entries) + len(self.unreadable) >= self._kind.most:
            raise ValueError(f"there are {self._kind.most} {self._kind.name}, and no room for another: {what}")

    def content(self, change: Change) -> bytes:
        """Return the document as it is now, with one more change in its audit log."""
        targets = {self._kind.target(entry) for entry in self.entries}
        room = max(0, self._kind.most - len(self.entries) - len(self.unreadable))
        ended = [entry for entry in self._ended if self._kind.target(entry) not in targets]
        kept = (*ended[max(0, len(ended) - room) :], *self.entries)
        written = (self._raw.get(entry) or self._kind.write(entry) for entry in kept)
        entries = [*self.unreadable, *written]
        changes = self._tree.get(CHANGES)
        known = changes if isinstance(changes, list) else []
        tree = {**self._tree, self._kind.name: entries, CHANGES: [*known, write_change(change)][-MAX_CHANGES:]}
        if self._kind is AUDIT_KIND:
            del tree[AUDIT]  # it has changes only
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def changing(
    storage: Any,
    kind: DocumentKind[E],
    change: Callable[[DocumentDraft[E], datetime], tuple[T, Change | None]],
    tell: Tell = None,
) -> Flow[T]:
    """Change a document by compare-and-set, and leave out entries that ended long ago. `change` changes the draft, and
    returns the answer with the change to note; None to leave the document as it is.

    `tell` is called with the name and the content that were written, and with the change. Raises StorageError if the
    document cannot be read or written: DocumentContended if others write all the time.
    """
    documents, now = documents_of(storage), utc_datetime(clock_of(storage)())
    for _ in range(TRIES):
        version, content = yield partial(documents.read_document, kind.name)
        try:
            draft = DocumentDraft(kind, content, now)
        except ValueError as error:
            raise StorageError(str(error), undone=True, outage=False) from None
        answer, noted = change(draft, now)
        if noted is None:
            return answer
        new = draft.content(noted)
        if (yield partial(documents.write_document, kind.name, new, version)):
            if tell is not None:
                tell(kind.name, new, noted)
            return answer
    text = f"others changed the {kind.name} {TRIES} times in between: try again"
    raise DocumentContended(text, undone=True, outage=False)


def listing_entries(storage: Any, kind: DocumentKind[E]) -> Flow[list[E]]:
    """Return all entries of a document that hold now, the oldest first."""
    _, content = yield partial(documents_of(storage).read_document, kind.name)
    try:
        return holding(kind.readable(content), utc_datetime(clock_of(storage)()))
    except ValueError as error:
        raise StorageError(str(error), undone=True, outage=False) from None


def recording(
    storage: Any, action: object, target: object, detail: object, by: object, tell: Tell = None
) -> Flow[Change]:
    """Note in the audit log what an operator has done that no other document shows. Return the change.

    Raises ValueError for a text that is too long or has more than one line.
    """
    texts = (checked_line("action", action, MAX_BY), checked_line("target", target, MAX_TARGET))
    noted = checked_line("detail", detail, MAX_DETAIL)
    who = checked_line("by", by, MAX_BY)

    def change(draft: DocumentDraft[Any], now: datetime) -> tuple[Change, Change]:
        made = Change(now, who, *texts, noted)
        return made, made

    return (yield from changing(storage, AUDIT_KIND, change, tell))


def listing_changes(storage: Any, names: Iterable[str]) -> Flow[list[Change]]:
    """Return the audit logs of these documents as one, the newest change first."""
    found: list[Change] = []
    for name, content in (yield from reading(storage, (*names, AUDIT))).items():
        try:
            found += read_changes(name, content)
        except ValueError as error:
            raise StorageError(str(error), undone=True, outage=False) from None
    return sorted(found, key=lambda change: change.at, reverse=True)


def reading(storage: Any, names: Sequence[str]) -> Flow[dict[str, bytes]]:
    """Return the contents of several documents by name: from one call of the storage if it can do that.

    A document that is damaged is left out, so that the others are followed. Raises StorageError if the storage does not
    answer.
    """
    documents = documents_of(storage)
    together = getattr(documents, "read_documents", None)
    if together is not None:
        try:
            answers = yield partial(together, names)
            return {name: content for name, (_, content) in zip(names, answers, strict=True)}
        except StorageError as error:
            if error.outage:
                raise
    found = {}
    for name in names:
        try:
            found[name] = (yield partial(documents.read_document, name))[1]
        except StorageError as error:
            if error.outage:
                raise
            log_unreadable(f"the shared document {name!r} cannot be read: {error}")
    return found


def read_changes(name: str, content: bytes) -> list[Change]:
    """Return the audit log of a document, the oldest change first. Changes that cannot be read are left out. Raises
    ValueError if it is no such document."""
    changes = _tree(name, content).get(CHANGES)
    found = []
    for raw in changes if isinstance(changes, list) else ():
        try:
            found.append(Change(instant(raw["at"]), *(_text(raw[key]) for key in Change._fields[1:])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            _log_entry(CHANGES, shown(raw), f"{type(error).__name__}: {error}")
    return found


def write_change(change: Change) -> dict[str, Any]:
    """Return what JSON stores for a change."""
    return {**change._asdict(), "at": change.at.isoformat()}


def _tree(name: str, content: bytes) -> dict[str, Any]:
    """Return a document as JSON has it. Raises ValueError if it is none."""
    if not content:
        return {name: [], CHANGES: []}
    try:
        tree = json.loads(content)
        if name == AUDIT and isinstance(tree, dict):
            tree.setdefault(AUDIT, [])
        if not isinstance(tree, dict) or not isinstance(tree[name], list):
            raise TypeError("expected lists in an object")
        return tree
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the shared document {name!r} in the storage is not a list of {name}"
            f" ({type(error).__name__}: {error}): delete it, or use another prefix"
        ) from None


def holding(entries: Iterable[E], now: datetime) -> list[E]:
    """Return the entries that have not ended."""
    return [entry for entry in entries if is_holding(entry, now)]


def is_holding(entry: OperatorEntry, now: datetime) -> bool:
    """Return True if an entry has not ended."""
    return entry.until is None or entry.until > now


def checked_length(for_: object, what: str) -> int | None:
    """Return a time in microseconds; None if none is given. Raises ValueError if it cannot be stored.

    `what` names the thing that lasts so long, such as 'a block'.
    """
    if for_ is None:
        return None
    length = round(read_seconds(for_) * SECOND)
    if not 0 < length <= MAX_PERIOD:
        raise ValueError(
            f"{what} lasts more than 0 seconds and at most {MAX_PERIOD // SECOND}, not {shown(for_)}: leave the time"
            " out for one that lasts until it is removed"
        )
    return length


def after(now: datetime, length: int | None) -> datetime | None:
    """Return the end of something that lasts for this many microseconds; None if it does not end by itself."""
    return None if length is None else utc_datetime(microseconds_of(now) + length)


def checked_line(name: str, given: object, most: int) -> str:
    """Return a text as it is. Raises ValueError if it is not one line of at most `most` characters."""
    if not isinstance(given, str) or len(given) > most or not given.isprintable():
        raise ValueError(f"{name} must be one line of at most {most} characters, not {shown(given)}")
    return given


def as_line(text: str, most: int) -> str:
    """Return a text as one line that `checked_line` accepts: it is cut, and what cannot be printed is replaced."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text[:most])


def described(until: datetime | None, reason: str, *parts: str) -> str:
    """Return the detail of a change: what was set, how long it holds, and why."""
    ends = "until it is removed" if until is None else f"until {until:%Y-%m-%d %H:%M:%S} UTC"
    text = ", ".join([*parts, ends]) + (f": {reason}" if reason else "")
    return text if len(text) <= MAX_DETAIL else f"{text[: MAX_DETAIL - 1]}…"


def read_common(raw: Any) -> tuple[datetime, datetime | None, str, str]:
    """Return the fields that all entries have: since, until, reason and by. Raises like `DocumentKind.read`."""
    until = raw.get("until")
    return (
        instant(raw["since"]),
        None if until is None else instant(until),
        _text(raw.get("reason", "")),
        _text(raw.get("by", "")),
    )


def write_common(since: datetime, until: datetime | None, reason: str, by: str) -> dict[str, Any]:
    """Return what JSON stores for the fields that all entries have."""
    ends = None if until is None else until.isoformat()
    return {"since": since.isoformat(), "until": ends, "reason": reason, "by": by}


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"expected text, not {shown(given)}")
    return given


def instant(text: str) -> datetime:
    """Return the instant that a text of a document names. Raises TypeError or ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


def microseconds_of(when: datetime) -> int:
    """Return an instant in microseconds since 1970."""
    since = when - EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def states_of(storage: Any) -> States | None:
    """Return the states of a storage if it is memory."""
    memory = storage.memory if isinstance(storage, AsyncMemoryStorage) else storage
    return memory.states if isinstance(memory, MemoryStorage) else None


def clock_of(storage: Any) -> Clock:
    """Return the clock of a storage: memory's own, one that a test has given, or the time of this machine."""
    storage = unguarded(storage)
    states = states_of(storage)
    if states is not None:
        return states.now
    given: Clock | None = getattr(storage, "_clock", None)
    return wall_clock if given is None else given


class CopiedContents:
    """The contents of documents in a storage, as they were read last. `use` is called with contents that have changed.

    If `must_read` returns True, the caller reads the documents: it calls `begin`, and then `take` or `fail`.
    """

    def __init__(self, clock: Clock, use: Callable[[Mapping[str, bytes]], None]) -> None:
        self._clock = clock
        self._use = use
        self._read_at: int | None = None  # when the read of the copy began; None if there never was one
        self._begun_at = 0  # when a caller began to read it last
        self._begun = 0  # reads, numbered in the order in which they began
        self._taken: dict[str, int] = {}  # the number of the last read that was taken, by document
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def must_read(self) -> bool:
        """Return True if the caller must read the documents now.

        A copy that is too old is read by one caller, and others go on with it. If it is much too old, or if there is
        none, all callers read: after a pause all of a burst of requests know what operators have changed.
        """
        if self._read_at is None:
            return True
        now = self._clock()
        age = now - self._read_at
        if 0 <= age < FRESH:
            return False
        return not (0 <= age < 2 * FRESH and 0 <= now - self._begun_at < FRESH)

    def begin(self) -> tuple[int, int]:
        """Return the number of a read that begins now, and the time."""
        with self._lock:
            self._begun += 1
            self._begun_at = self._clock()
            return self._begun, self._begun_at

    def take(self, read: tuple[int, int], contents: Mapping[str, bytes]) -> None:
        """Use what a read has returned, but for documents of which a later read is known already."""
        number, begun_at = read
        with self._lock:
            new = {name: content for name, content in contents.items() if number > self._taken.get(name, 0)}
            self._taken.update(dict.fromkeys(new, number))
            self._use(new)
            now = self._clock()
            self._read_at = min(now, max(begun_at, now - FRESH // 2))  # a slow read is not at once too old

    def write(self, name: str, content: bytes) -> None:
        """Use what this process has written. Reads of it that are under way may not have seen it, and are not taken."""
        with self._lock:
            self._begun += 1
            self._taken[name] = self._begun
            self._use({name: content})

    def fail(self) -> None:
        """Go on with the copy, because a read has failed. The next one is made when the copy is old."""
        self._read_at = self._clock()


@lru_cache(maxsize=64)
def _log_entry(name: str, entry: str, why: str) -> None:
    log.error("an entry of the shared document %r has no effect, because it cannot be read (%s): %s", name, why, entry)


@lru_cache(maxsize=8)
def log_unreadable(why: str) -> None:
    """Log once that a document cannot be read."""
    log.error("%s. Its last readable version stays in force", why)
