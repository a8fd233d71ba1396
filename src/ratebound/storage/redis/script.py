"""The Lua script, its arguments and its answer. Both are plain doubles: see lua/group.lua."""

import hashlib
import struct
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from ratebound.calendar_period import Calendar
from ratebound.clock import utc_datetime
from ratebound.errors import StorageError
from ratebound.limit import MAX_BLOCKS, NOT_GIVEN, SPAN, Extra, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import HeldSlot
from ratebound.storage.redis.error_reply import is_foreign, meaning_of
from ratebound.storage.redis.keys import Keys

PARTS = (
    "numbers",
    "fast_path",
    "gcra",
    "fixed_window",
    "sliding_counter",
    "sliding_log",
    "quota",
    "concurrency",
    "distinct",
    "penalty",
    "group",
)
SOURCE = "\n".join(files(__package__).joinpath("lua", f"{part}.lua").read_text() for part in PARTS)
SHA = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()

# Kernels on the wire, by `limit.numbers.algorithm`. lua/numbers.lua has the same numbers under the same names. A number
# is never given to another kernel: programs of two versions may share one Redis.
NUMBERS = {
    "token-bucket": 0,
    "gcra": 1,
    "leaky-bucket": 2,
    "fixed-window": 3,
    "sliding-log": 4,
    "sliding-counter": 5,
    "quota": 6,
    "concurrent": 7,
    "distinct": 8,
    "penalty": 9,
}
RECORD = struct.Struct("<11d")
KNOWN = 1000
Found = list[Row] | StorageError
_known: dict[int, tuple[tuple[Limit, ...], list[bytes], bytes]] = {}
_periods: dict[Calendar, tuple[int, int, bytes]] = {}


NOT_OURS = "the server does not answer like Redis, or its reply belongs to another request"


class NotOurs(StorageError):
    """A reply that has not the shape of our script's."""


class OutsideWindows(list[Found | None]):
    """The answers of a call in which `now`, the server's clock, was outside of the windows that some groups were sent.

    Such a group has None, and nothing of it was decided. They are `undecided`, in order.
    """

    def __init__(self, found: Sequence[Found | None], groups: Sequence[Group], now: int) -> None:
        super().__init__(found)
        self.undecided = [group for group, each in zip(groups, found, strict=True) if each is None]
        self.now = now

    def completed(self, again: Sequence[Found] | StorageError) -> list[Found]:
        """Return all answers, with those to `undecided` in their places, or with the error of asking for them."""
        if isinstance(again, StorageError):
            return [again if each is None else each for each in self]
        rest = iter(again)
        return [next(rest) if each is None else each for each in self]

    def refusal(self) -> StorageError:
        """Return the error for groups that were asked twice and not decided."""
        at = utc_datetime(self.now).isoformat(timespec="seconds")
        text = (
            f"the clock of the Redis server says {at}, and is outside of the calendar periods around the time that it"
            " said just before; check that its clock is set by NTP and does not jump"
        )
        return StorageError(text, undone=True, outage=False)


def arguments(groups: Sequence[Group], mode: Mode, keys: Keys, now: int | None, at: int | None = None) -> list[Any]:
    """Return the arguments of EVALSHA after the digest: the number of keys, the keys, the rest.

    `now` replaces the server's clock. `at` is the instant around which calendar periods are sent; by default `now`, or
    the time of this machine. Raises ValueError for a slot or a value without an id.
    """
    at = now if at is None else at
    names: list[bytes] = []
    packed: list[bytes] = []
    for group in groups:
        if len(group) == 1 and mode != "force" and not keys.rotating:  # it cannot contain equal checks
            key, limits, cost, patience, extras = group[0]
            subject = keys.subject(key)
            scopes, records = _of_one(limits)
            names += [subject + scope for scope in scopes]
            if not records or cost != 1 or patience is not None:
                places = range(1, len(limits) + 1)
                records = _records(places, 1, limits, cost, patience, extras, mode, at)
            packed.append(records)
        else:
            packed.append(_packed(group, keys, names, mode, at))
    # No ints: hiredis calls str() on them and crashes the process if a signal handler raises there.
    count = b"%d" % len(names)
    if mode == "spend" and now is None and len(groups) == 1 and not keys.rotating:
        return [count, *names, *packed]
    return [count, *names, f"{mode}+old" if keys.rotating else mode, "" if now is None else str(now), *packed]


def _records(
    places: Iterable[int],
    first: int,
    limits: Sequence[Limit],
    cost: int,
    patience: int | None,
    extras: Sequence[Extra] | None,
    mode: Mode,
    at: int | None,
) -> bytes:
    """Return the records of an ask. `first` is the place of its first limit among the limits of the group, from 1."""
    wait = -1 if patience is None else patience
    records: list[bytes] = []
    for i, (place, limit) in enumerate(zip(places, limits, strict=True)):
        extra = NOT_GIVEN if extras is None else extras[i]
        if limit.is_penalty and extra[0] == SPAN:
            extra = (extra[0], first + i - extra[1], first + i + extra[2], 0)
        elif limit.is_penalty:
            extra = (extra[0], first, first + len(limits) - 1, 0)
        numbers = (limit.count, limit.period_us, limit.burst, cost, wait)
        records.append(RECORD.pack(place, NUMBERS[limit.numbers.algorithm], *numbers, *extra))
        if limit.is_quota:
            records.append(_windows(limit, at))
        elif limit.is_penalty:
            unused = MAX_BLOCKS + 1 - len(limit.blocks_us)
            records.append(RECORD.pack(0, limit.forget_us, *limit.blocks_us, *[0] * unused))
        elif (limit.has_slots or limit.is_distinct) and mode == "spend" and extra == NOT_GIVEN:
            raise ValueError("a limit of slots or of distinct values needs an id in the extras of its ask")
    return b"".join(records)


def _windows(limit: Limit, at: int | None) -> bytes:
    """Return the record that follows the record of a quota: see lua/group.lua.

    The server chooses one of three periods of the calendar by its own clock, which may differ from that of this
    machine. Windows of a constant length it computes itself.
    """
    calendar = limit.calendar
    if calendar is None:
        return RECORD.pack(0, limit.metered, *[0] * 9)
    now = time.time_ns() // 1000 if at is None else at
    begin, end, bounds = _periods.get(calendar, (0, 0, b""))
    if not begin <= now < end:
        index = calendar.index_at(now)
        starts = [calendar.start_of(index + i) for i in range(-1, 4)]
        begin, end, bounds = starts[1], starts[2], struct.pack("<6d", index - 1, *starts)
        if len(_periods) >= KNOWN:
            _periods.clear()
        _periods[calendar] = begin, end, bounds
    return struct.pack("<3d", 0, limit.metered, 1) + bounds + bytes(16)


def _of_one(limits: tuple[Limit, ...]) -> tuple[list[bytes], bytes]:
    """Return the scopes of limits and their records for a cost of one. They are made once and cached.

    The cache finds them by identity, because comparing limits would take longer than making the records. It keeps the
    tuple, so that no other object can get its identity. The records of quotas, and of limits that have extras, differ
    from call to call: then there are none.
    """
    found = _known.get(id(limits))
    if found is None:
        if len(_known) >= KNOWN:  # limits are made per request, so caching is not worth it
            _known.clear()
        fixed = all(limit.numbers.plain and not limit.is_quota for limit in limits)
        records = _records(range(1, len(limits) + 1), 1, limits, 1, None, None, "spend", None) if fixed else b""
        found = _known[id(limits)] = (limits, [limit.scope.encode() for limit in limits], records)
    return found[1], found[2]


def _packed(group: Group, keys: Keys, names: list[bytes], mode: Mode, at: int | None) -> bytes:
    """Return the records of a group. Add the names of its states to `names`, equal ones once."""
    known: dict[bytes, int] = {}
    records = []
    first = 1
    for key, limits, cost, patience, extras in group:
        subject, old = keys.subject(key), keys.old_subject(key)
        places = []
        for limit in limits:
            name = subject + limit.scope.encode()
            if name not in known:
                known[name] = len(known) + 1
                names += [name] if old is None else [name, old + limit.scope.encode()]
            places.append(known[name])
        records.append(_records(places, first, limits, cost, patience, extras, mode, at))
        first += len(limits)
    return b"".join(records)


def answers(reply: Sequence[Any], groups: Sequence[Group]) -> list[Found] | OutsideWindows:
    """Return one entry for each group: its rows, or its error. Raises NotOurs.

    Return OutsideWindows if a group has to be asked once more.
    """
    try:
        if len(groups) == 1:
            return [[_row(*reply)] if type(reply[0]) is int else [_row(*row) for row in reply]]
        found: list[Found] = [
            _refused(block) if isinstance(block, bytes) else [_row(*row) for row in block] for block in reply
        ]
    except (TypeError, IndexError, ValueError):
        return _outside_windows(reply, groups)
    if len(found) != len(groups):
        raise NotOurs(NOT_OURS)
    return found


def _outside_windows(reply: Any, groups: Sequence[Group]) -> OutsideWindows:
    """Return the answers in a reply that has the server's time, alone, for some groups with quotas. Raises NotOurs."""
    now: int | None = None
    found: list[Found | None] = []
    try:
        for block, group in zip([reply] if len(groups) == 1 else reply, groups, strict=True):
            if len(block) == 1 and type(block[0]) is int and _has_quota(group):
                now = block[0]
                found.append(None)
            else:
                found.append(_refused(block) if isinstance(block, bytes) else [_row(*row) for row in block])
    except (TypeError, IndexError, ValueError):
        now = None
    if now is None:
        raise NotOurs(NOT_OURS)
    return OutsideWindows(found, groups, now)


def _has_quota(group: Group) -> bool:
    return any(limit.is_quota for _, limits, *_ in group for limit in limits)


def holders_arguments(key: str, limit: Limit, keys: Keys, now: int | None) -> list[Any]:
    """Return the arguments of EVALSHA for the slots of a key that are held."""
    scope = limit.scope.encode()
    names = [subject + scope for subject in (keys.subject(key), keys.old_subject(key)) if subject is not None]
    return [b"%d" % len(names), *names, "holders", "" if now is None else str(now)]


def holders(reply: Any) -> list[HeldSlot]:
    """Return (id, expiry) of each slot, the earliest expiry first. Raises NotOurs."""
    found: dict[int, int] = {}
    try:
        for slot, expiry in zip(reply[::2], reply[1::2], strict=True):
            found[int(slot)] = max(found.get(int(slot), 0), int(expiry))
    except (TypeError, ValueError):
        raise NotOurs(NOT_OURS) from None
    return sorted(found.items(), key=lambda holder: (holder[1], holder[0]))


def _row(
    now: int,
    allowed: int,
    remaining: int,
    retry_after: int,
    reset_after: int,
    delay: int,
    given: int,
    part: int,
    ahead: int | None = None,
) -> Row:
    wait = None if retry_after < 0 else retry_after
    return allowed == 1, remaining, wait, reset_after, delay, now, given, part, ahead


def _refused(block: bytes) -> StorageError:
    text = block.decode(errors="replace")
    meaning = meaning_of(text) or f"Redis answered with an error ({text})"
    return StorageError(meaning, undone=True, outage=not is_foreign(text))


def known_to_replicas(found: list[Found], mode: Mode, replicas: int, wanted: int) -> list[Found]:
    """Return the answers that are safe if `replicas` replicas have them: all, or only the denials of spends.

    A spend that only the master has could be granted again after a failover. A denial stays one, even if its strike is
    lost.
    """
    try:
        check_replicas(replicas, wanted)
    except StorageError as error:
        return [
            error if isinstance(each, list) and (mode == "force" or all(row[0] for row in each)) else each
            for each in found
        ]
    return found


def check_replicas(replicas: int, wanted: int) -> None:
    """Raise StorageError if fewer replicas than `wanted` confirmed the writes."""
    if replicas < wanted:
        raise StorageError(
            f"{replicas} of the {wanted} replicas that ?replicas={wanted} requires confirmed the spend: it may be lost,"
            " so it does not count as granted; check with INFO replication which are connected and how far they lag"
        )
