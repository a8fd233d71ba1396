"""The Lua script, its arguments and its answer. Both are plain doubles: see lua/group.lua."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from struct import Struct
from typing import Any

from ratebound.errors import StorageError
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage.redis.error_reply import is_foreign, meaning_of
from ratebound.storage.redis.keys import Keys

PARTS = ("numbers", "fast_path", "gcra", "fixed_window", "sliding_counter", "sliding_log", "group")
SOURCE = "\n".join(files(__package__).joinpath("lua", f"{part}.lua").read_text() for part in PARTS)
SHA = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()

# Algorithms on the wire. lua/numbers.lua has the same numbers under the same names. A number is never given to another
# algorithm: programs of two versions may share one Redis.
NUMBERS = {
    "token-bucket": 0,
    "gcra": 1,
    "leaky-bucket": 2,
    "fixed-window": 3,
    "sliding-log": 4,
    "sliding-counter": 5,
}
RECORD = Struct("<11d")
NOT_GIVEN = (-1, -1, -1, -1)
KNOWN = 1000
_known: dict[int, tuple[tuple[Limit, ...], list[bytes], bytes]] = {}


class NotOurs(StorageError):
    """A reply that has not the shape of our script's."""


def arguments(groups: Sequence[Group], mode: Mode, keys: Keys, now: int | None) -> list[Any]:
    """Return the arguments of EVALSHA after the digest: the number of keys, the keys, the rest."""
    names: list[bytes] = []
    packed: list[bytes] = []
    for group in groups:
        if len(group) == 1 and mode != "force" and not keys.rotating:  # it cannot contain equal checks
            key, limits, cost, patience, _ = group[0]
            subject = keys.subject(key)
            scopes, records = _of_one(limits)
            names += [subject + scope for scope in scopes]
            packed.append(records if cost == 1 and patience is None else _records(limits, cost, patience))
        else:
            packed.append(_packed(group, keys, names))
    # No ints: hiredis calls str() on them and crashes the process if a signal handler raises there.
    count = b"%d" % len(names)
    if mode == "spend" and now is None and len(groups) == 1 and not keys.rotating:
        return [count, *names, *packed]
    return [count, *names, f"{mode}+old" if keys.rotating else mode, "" if now is None else str(now), *packed]


def _records(limits: Sequence[Limit], cost: int, patience: int | None) -> bytes:
    wait = -1 if patience is None else patience
    return b"".join(
        RECORD.pack(place, NUMBERS[limit.algorithm], limit.count, limit.period_us, limit.burst, cost, wait, *NOT_GIVEN)
        for place, limit in enumerate(limits, 1)
    )


def _of_one(limits: tuple[Limit, ...]) -> tuple[list[bytes], bytes]:
    """Return the scopes of limits and their records for a cost of one. They are made once and cached.

    The cache finds them by identity, because comparing limits would take longer than making the records. It keeps the
    tuple, so that no other object can get its identity.
    """
    found = _known.get(id(limits))
    if found is None:
        if len(_known) >= KNOWN:  # limits are made per request, so caching is not worth it
            _known.clear()
        found = _known[id(limits)] = (limits, [limit.scope.encode() for limit in limits], _records(limits, 1, None))
    return found[1], found[2]


def _packed(group: Group, keys: Keys, names: list[bytes]) -> bytes:
    """Return the records of a group. Add the names of its states to `names`, equal ones once."""
    places: dict[bytes, int] = {}
    records = []
    for key, limits, cost, patience, spent in group:
        subject, old = keys.subject(key), keys.old_subject(key)
        for i, limit in enumerate(limits):
            name = subject + limit.scope.encode()
            if name not in places:
                places[name] = len(places) + 1
                names += [name] if old is None else [name, old + limit.scope.encode()]
            numbers = (limit.count, limit.period_us, limit.burst, cost, -1 if patience is None else patience)
            spend = NOT_GIVEN if spent is None else spent[i]
            records.append(RECORD.pack(places[name], NUMBERS[limit.algorithm], *numbers, *spend))
    return b"".join(records)


def answers(reply: Sequence[Any], groups: int) -> list[list[Row] | StorageError]:
    """Return one entry for each group: its rows, or its error. Raises NotOurs."""
    try:
        if groups == 1:
            return [[_row(*reply)] if type(reply[0]) is int else [_row(*row) for row in reply]]
        found = [_refused(block) if isinstance(block, bytes) else [_row(*row) for row in block] for block in reply]
    except (TypeError, IndexError, ValueError):
        found = []
    if len(found) != groups:
        raise NotOurs("the server does not answer like Redis, or its reply belongs to another request")
    return found


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


def known_to_replicas(
    found: list[list[Row] | StorageError], replicas: int, wanted: int
) -> list[list[Row] | StorageError]:
    """Return the answers that are safe if `replicas` replicas have them: all, or only those that charged nothing.

    A spend that only the master has could be granted again after a failover.
    """
    try:
        check_replicas(replicas, wanted)
    except StorageError as error:
        return [error if isinstance(each, list) and all(row[0] for row in each) else each for each in found]
    return found


def check_replicas(replicas: int, wanted: int) -> None:
    """Raise StorageError if fewer replicas than `wanted` confirmed the writes."""
    if replicas < wanted:
        raise StorageError(
            f"{replicas} of the {wanted} replicas that ?replicas={wanted} requires confirmed the spend: it may be lost,"
            " so it does not count as granted; check with INFO replication which are connected and how far they lag"
        )


def all_rows(found: Sequence[list[Row] | StorageError]) -> list[Sequence[Row]]:
    """Return the rows of every group. Raises the first error among them, with the answers of all groups."""
    rows: list[Sequence[Row]] = []
    for each in found:
        if isinstance(each, StorageError):
            failed = StorageError(str(each), outage=each.outage)
            failed.undone = all(isinstance(other, StorageError) and other.undone for other in found)
            failed.answers = found if len(found) > 1 else None
            raise failed
        rows.append(each)
    return rows
