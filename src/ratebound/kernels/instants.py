"""The instants of a sliding log, in few bytes. Compiled where that can be done.

A list of numbers takes 40 bytes for each, in two places. Compiled, four instants are one object of 56 bytes that has no
boxed numbers. Uncompiled, that would be slower, so there it is a plain list: `new_instants` returns one or the other,
and both have the methods of a list that a log uses.
"""

from typing import cast

from ratebound.compiling import COMPILED, i64, mypyc_attr


@mypyc_attr(acyclic=True)
class Four:
    """Four instants."""

    __slots__ = ("a", "b", "c", "d")

    def __init__(self, a: i64, b: i64, c: i64, d: i64) -> None:
        self.a = a
        self.b = b
        self.c = c
        self.d = d


@mypyc_attr(acyclic=True)
class Instants:
    """A queue of instants: added at the end, dropped from the front. Do not use it uncompiled.

    The latest, at most three, are in `_a`, `_b` and `_c`; `_late` is their number. `_fours` has the earlier ones, and
    `_gone` is the number of instants in front that were dropped and whose object is still there.
    """

    __slots__ = ("_a", "_b", "_c", "_fours", "_gone", "_late")

    def __init__(self, values: list[int]) -> None:
        self._fours: list[Four] | None = None
        self._gone: i64 = 0
        self._late: i64 = 0
        self._a: i64 = 0
        self._b: i64 = 0
        self._c: i64 = 0
        for value in values:
            self.append(value)

    def append(self, instant: i64) -> None:
        """Add an instant at the end."""
        late = self._late
        if late == 0:
            self._a = instant
        elif late == 1:
            self._b = instant
        elif late == 2:
            self._c = instant
        else:
            four = Four(self._a, self._b, self._c, instant)
            fours = self._fours
            if fours is None:
                self._fours = [four]
            else:
                fours.append(four)
            self._late = 0
            return
        self._late = late + 1

    def __iadd__(self, values: list[int]) -> "Instants":
        for value in values:
            self.append(value)
        return self

    def __len__(self) -> int:
        fours = self._fours
        return self._late - self._gone + (0 if fours is None else len(fours) << 2)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, index: int) -> int:
        """Return the instant at an index, which must be one of 0 to len - 1."""
        place: i64 = index + self._gone
        fours = self._fours
        if fours is not None:
            full: i64 = len(fours)
            if place >> 2 < full:
                four = fours[place >> 2]
                at = place & 3
                if at == 0:
                    return four.a
                if at == 1:
                    return four.b
                return four.c if at == 2 else four.d
            place -= full << 2
        if place == 0:
            return self._a
        return self._b if place == 1 else self._c

    def __delitem__(self, part: slice) -> None:
        self.drop(part.stop)

    def drop(self, count: i64) -> None:
        """Drop so many instants from the front; there are as many, or more."""
        gone = self._gone + count
        fours = self._fours
        if fours is not None:
            whole = gone >> 2
            full: i64 = len(fours)
            if whole > full:
                whole = full
            if whole:
                del fours[:whole]
                gone -= whole << 2
        if gone and gone == self._late and not fours:
            gone = 0
            self._late = 0
        self._gone = gone


def new_instants(values: list[int]) -> Instants:
    """Return these instants, in order. Uncompiled, it is the list itself."""
    return Instants(values) if COMPILED else cast(Instants, values)


def listed(instants: Instants) -> list[int]:
    """Return a new list of the instants."""
    return [instants[i] for i in range(len(instants))]
