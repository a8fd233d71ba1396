"""The bytes of an item of Memcached: the states of all limits of one key.

One item for each key makes the limits of a key one step: a compare-and-swap decides all of them or none. An item is a
format byte, and for each state 16 bytes that name its limit, its length, and its bytes (see stored_states.py). The
first entry is no state: under a name that no limit has, it tells the instant of the last swap. Versions that do not
know it keep it as a state that they never need.
"""

import struct
import time
from collections.abc import Mapping
from typing import Final

from ratebound.clock import SECOND
from ratebound.errors import StorageError

FORMAT: Final = 1  # the first byte of an item: another number is one that this version does not know
DIGEST: Final = 16  # bytes that name a key, and as many that name a limit
ENTRY: Final = struct.Struct("<16sI")
INSTANT: Final = bytes(DIGEST)  # the name of the entry with the instant of the last swap
EXPIRES: Final = struct.Struct("<q")  # after the format byte of a state
SLACK: Final = 2  # seconds: Memcached counts in whole seconds, and may be one early
MONTH: Final = 2_592_000  # seconds: a longer time is taken for an instant
DRIFT: Final = 3_600  # seconds that the clock of a server may differ from ours
GRACE: Final = 3_600 * SECOND  # for which an expired state is kept: a clock that was ahead may be set back
LAST: Final = 2**31 - 1  # the latest instant that Memcached takes, in 2038


def states_in(data: bytes, key: bytes) -> dict[bytes, bytes]:
    """Return the states in an item by name; none for no bytes. `key` is the digest of the item's key.

    Raises StorageError for bytes of no item.
    """
    if not data:
        return {}
    if data[0] != FORMAT:
        raise StorageError(
            f"an item in Memcached has format {data[0]}, and this version reads format {FORMAT}: upgrade all processes"
            " that use it, or choose another ?prefix=",
            undone=True,
            outage=False,
        )
    found: dict[bytes, bytes] = {}
    place, end = 1, len(data)
    try:
        while place < end:
            limit, length = ENTRY.unpack_from(data, place)
            place += ENTRY.size
            if limit != INSTANT:
                found[key + limit] = data[place : place + length]
            place += length
    except struct.error:
        place = -1
    if place != end:
        raise StorageError(
            "an item in Memcached is damaged: something else has written to it. Choose another ?prefix=",
            undone=True,
            outage=False,
        )
    return found


def swapped_at(data: bytes) -> int:
    """Return the instant of the last swap of an item, by the clock of the host that made it; 0 if it is not known."""
    if data[1 : 1 + DIGEST] != INSTANT or len(data) < 1 + ENTRY.size + 1 + EXPIRES.size:
        return 0
    (instant,) = EXPIRES.unpack_from(data, 1 + ENTRY.size + 1)
    return int(instant)


def item_of(states: Mapping[bytes, bytes], now: int) -> tuple[bytes, int]:
    """Return the bytes of an item that is swapped now, and the time to live that Memcached takes.

    States that expired long ago are left out.
    """
    parts = [bytes((FORMAT,)), ENTRY.pack(INSTANT, 1 + EXPIRES.size), bytes((FORMAT,)), EXPIRES.pack(now)]
    latest = now
    for name, state in states.items():
        (expires,) = EXPIRES.unpack_from(state, 1)
        if expires < now - GRACE:
            continue
        latest = max(latest, expires)
        parts += (ENTRY.pack(name[DIGEST:], len(state)), state)
    seconds = -((now - latest) // SECOND) + SLACK
    if seconds > MONTH:
        seconds = min(seconds + int(time.time()) + DRIFT, LAST)
    return b"".join(parts), seconds
