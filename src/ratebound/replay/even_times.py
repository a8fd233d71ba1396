"""Times of entries, spread over the unit in which the log writes time. Compiled where that can be done.

Most logs write whole seconds. All requests of a second would then come at once, which a limit with a short period would
deny although the real requests were spread. So the entries of one second, in their order, are spread over it evenly: of
n entries the i-th comes after i/n of the second. Their number in each second, and so in each minute, is unchanged.
"""

from typing import Final

from ratebound.replay.entry import Entry

MOST_HELD: Final = 250_000  # entries of one second that are spread together


class EvenTimes:
    """A buffer that holds the entries of the last second back until all of them are there.

    `unit` is the unit of the log's times in microseconds; 1 leaves times as they are. Times never step back.
    """

    __slots__ = ("_held", "_last", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._held: list[Entry] = []
        self._last = -(1 << 62)

    def put(self, entries: list[Entry]) -> tuple[list[Entry], list[int]]:
        """Take entries in the order of their times. Return those that are complete, and their times."""
        unit = self.unit
        if self._held:
            entries = self._held + entries
            self._held = []
        end = len(entries)
        if unit > 1 and end:
            at: int = entries[end - 1][0]
            slot = at // unit
            while end:
                at = entries[end - 1][0]
                if at // unit != slot:
                    break
                end -= 1
            if len(entries) - end < MOST_HELD:
                self._held = entries[end:]
                entries = entries[:end]
        return entries, self._times(entries)

    def rest(self) -> tuple[list[Entry], list[int]]:
        """Return the entries that are left, and their times."""
        held, self._held = self._held, []
        return held, self._times(held)

    def _times(self, entries: list[Entry]) -> list[int]:
        unit, last = self.unit, self._last
        times: list[int] = []
        count, i = len(entries), 0
        while i < count:
            at: int = entries[i][0]
            if unit == 1:
                if at > last:
                    last = at
                times.append(last)
                i += 1
                continue
            begin = at - at % unit
            end = begin + unit
            after = i + 1
            while after < count:
                at = entries[after][0]
                if at >= end or at < begin:
                    break
                after += 1
            many = after - i
            for place in range(many):
                at = begin + unit * place // many
                if at > last:
                    last = at
                times.append(last)
            i = after
        self._last = last
        return times
