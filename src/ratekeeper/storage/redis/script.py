"""The one script, its arguments and its answer. What goes in and comes out is plain doubles: see lua/group.lua."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from struct import Struct
from typing import Any

from ratekeeper.decision import Row
from ratekeeper.errors import StorageError
from ratekeeper.limit import ALGORITHMS, Group, Mode
from ratekeeper.storage.redis.keys import Keys
from ratekeeper.storage.redis.refusal import meaning_of

PARTS = ("numbers", "gcra", "fixed_window", "sliding_counter", "sliding_log", "group")
SOURCE = "\n".join(files(__package__).joinpath("lua", f"{part}.lua").read_text() for part in PARTS)
SHA = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()

NUMBERS = {name: number for number, name in enumerate(ALGORITHMS)}
RECORD = Struct("<10d")
NOT_GIVEN = (-1, -1, -1)
FIELDS = 7  # of a row, but for `at`


def arguments(groups: Sequence[Group], mode: Mode, keys: Keys, now: int | None) -> list[Any]:
    """What follows the script's name in EVALSHA: the number of keys, the keys, the rest."""
    names: list[bytes] = []
    packed: list[bytes] = []
    for group in groups:
        if len(group) == 1 and mode != "force" and not keys.rotating:  # nothing in it can be equal
            key, limits, cost, patience, _ = group[0]
            subject = keys.subject(key)
            wait = -1 if patience is None else patience
            names += [subject + limit.scope.encode() for limit in limits]
            packed.append(
                b"".join(
                    [
                        RECORD.pack(
                            place,
                            NUMBERS[limit.algorithm],
                            limit.count,
                            limit.period,
                            limit.burst,
                            cost,
                            wait,
                            *NOT_GIVEN,
                        )
                        for place, limit in enumerate(limits, 1)
                    ]
                )
            )
        else:
            packed.append(_packed(group, keys, names))
    return [len(names), *names, f"{mode}+old" if keys.rotating else mode, "" if now is None else now, *packed]


def _packed(group: Group, keys: Keys, names: list[bytes]) -> bytes:
    """The records of a group; the names of its states are added to `names`, equal ones once."""
    places: dict[bytes, int] = {}
    records = []
    for key, limits, cost, patience, spent in group:
        subject, old = keys.subject(key), keys.old_subject(key)
        for i, limit in enumerate(limits):
            name = subject + limit.scope.encode()
            if name not in places:
                places[name] = len(places) + 1
                names += [name] if old is None else [name, old + limit.scope.encode()]
            numbers = (limit.count, limit.period, limit.burst, cost, -1 if patience is None else patience)
            spend = NOT_GIVEN if spent is None else spent[i]
            records.append(RECORD.pack(places[name], NUMBERS[limit.algorithm], *numbers, *spend))
    return b"".join(records)


def answers(reply: Sequence[Any]) -> list[list[Row] | StorageError]:
    """One for each group: its rows, or why it has none."""
    now, *blocks = reply
    return [_rows(block, now) if isinstance(block, list) else _refused(block) for block in blocks]


def _rows(block: list[int], now: int) -> list[Row]:
    rows: list[Row] = []
    for i in range(0, len(block), FIELDS):
        allowed, remaining, retry_after, reset_after, delay, given, hole = block[i : i + FIELDS]
        wait = None if retry_after < 0 else retry_after
        rows.append((allowed == 1, remaining, wait, reset_after, delay, now, given, hole))
    return rows


def _refused(block: bytes) -> StorageError:
    text = block.decode(errors="replace")
    foreign = (
        f"a key of ours holds what we did not write ({text}): give Ratekeeper a prefix of its own with ?prefix=…,"
        " or delete that key"
    )
    return StorageError(meaning_of(text) or foreign)


def all_rows(found: Sequence[list[Row] | StorageError]) -> list[Sequence[Row]]:
    """The rows of every group, or the first error among them."""
    rows: list[Sequence[Row]] = []
    for each in found:
        if isinstance(each, StorageError):
            raise each
        rows.append(each)
    return rows
