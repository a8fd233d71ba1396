"""Groups whose keys a storage cannot decide in one step: each part is atomic, and several parts take two rounds.

A part is what the storage decides in one step: a hash slot of a Redis Cluster, an item of Memcached. A group of several
parts is peeked everywhere first, and spent part by part only if all allow. If a part denies after all, because another
request came in between, or fails, the parts before it are refunded. Until then others see them charged: a denial too
many for a moment, never a grant too many.

A group that is denied by its peeks is struck afterwards, by a force. A part that denies later strikes by itself: the
limits of an ask are all in one part.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress

from ratebound.errors import StorageError
from ratebound.kernels.group_law import penalties_to_strike
from ratebound.limit import STRIKE, Ask, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.settling import undoing

Call = tuple[Group, Mode]
Rounds = Generator[list[Call], list[Sequence[Row]], Sequence[Row]]
PartOf = Callable[[str], Hashable]  # the part that a key is in


def decide(group: Group, mode: Mode, part_of: PartOf) -> Rounds:
    """Yield calls that may run side by side.

    Rows are sent back, or an error is thrown in. Return the rows of the group.
    """
    parts = _parts(group, part_of)
    if len(parts) == 1 or mode != "spend":
        answers = yield [([group[i] for i in part], mode) for part in parts]
        return _in_order(group, parts, answers)
    answers = yield [([group[i] for i in part], "peek") for part in parts]
    if not all(row[0] for rows in answers for row in rows):
        return (yield from _struck(group, _in_order(group, parts, answers), part_of))
    spent: list[Sequence[Row]] = []
    rows: Sequence[Row]
    for part in parts:
        try:
            (rows,) = yield [([group[i] for i in part], "spend")]
        except StorageError as error:
            if spent:
                error.undone = False  # it is unknown how far the group got
                with suppress(StorageError):
                    yield _refunds(group, parts, spent)
            raise
        if not all(row[0] for row in rows):
            if spent:
                with suppress(StorageError):  # it stays a denial, with a charge too many
                    yield _refunds(group, parts, spent)
            return _in_order(group, parts, [*answers[: len(spent)], rows, *answers[len(spent) + 1 :]])
        spent.append(rows)
    return _in_order(group, parts, spent)


def _struck(group: Group, rows: list[Row], part_of: PartOf) -> Rounds:
    """Count the strikes of a group that its peeks denied, and return its rows after them."""
    asked = [(key, limit) for key, limits, *_ in group for limit in limits]
    struck: dict[tuple[str, str], Limit] = {}  # a penalty that is in several asks is struck once
    for i in penalties_to_strike(group, rows):
        key, limit = asked[i]
        struck.setdefault((key, limit.scope), limit)
    if struck:
        strikes: list[Ask] = [(key, (limit,), 0, None, [STRIKE]) for (key, _), limit in struck.items()]
        with suppress(StorageError):  # it stays a denial, without the strike
            found = dict(zip(struck, (yield from decide(strikes, "force", part_of)), strict=True))
            return [found.get((key, limit.scope), row) for (key, limit), row in zip(asked, rows, strict=True)]
    return rows


def _refunds(group: Group, parts: list[list[int]], spent: list[Sequence[Row]]) -> list[Call]:
    return [(undoing([group[i] for i in parts[n]], rows), "force") for n, rows in enumerate(spent)]


def _parts(group: Group, part_of: PartOf) -> list[list[int]]:
    """Return the positions in the group, by part."""
    found: dict[Hashable, list[int]] = {}
    for i, (key, *_) in enumerate(group):
        found.setdefault(part_of(key), []).append(i)
    return list(found.values())


def _in_order(group: Group, parts: list[list[int]], answers: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts in the order of the group's asks and their limits."""
    by_ask: dict[int, list[Row]] = {}
    for part, rows in zip(parts, answers, strict=True):
        rest = iter(rows)
        for i in part:
            by_ask[i] = [next(rest) for _ in group[i][1]]
    return [row for i in range(len(group)) for row in by_ask[i]]
