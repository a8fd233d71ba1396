"""Entries in the order of their times.

Servers write a line when a request ends, so that lines are slightly out of order by arrival. A window of some seconds
is kept and sorted. An entry that comes later than that gets the time of the newest entry that was given out.
"""

from bisect import bisect_left, bisect_right
from operator import itemgetter

from ratebound.replay.entry import Entry

MOST_KEPT = 100_000  # entries, whatever the window: about 70 MB

_time_of = itemgetter(0)


class TimeOrder:
    """A buffer that gives entries out in the order of their times."""

    __slots__ = ("_given", "_kept", "_window", "late")

    def __init__(self, window: int) -> None:
        self.late = 0
        self._window = window  # microseconds
        self._kept: list[Entry] = []  # sorted
        self._given = -(1 << 63)

    def put(self, entries: list[Entry]) -> list[Entry]:
        """Take some entries and return those that are older than the window, sorted."""
        if not entries:
            return entries
        entries.sort(key=_time_of)  # linear if they are in order
        if entries[0].at < self._given:
            self._delay(entries)
        kept = self._kept
        if kept and entries[0].at < kept[-1].at:
            start = bisect_right(kept, entries[0].at, key=_time_of)
            entries = kept[start:] + entries
            entries.sort(key=_time_of)
            del kept[start:]
        kept += entries
        end = bisect_right(kept, kept[-1].at - self._window, key=_time_of)
        end = max(end, len(kept) - MOST_KEPT)
        ready = kept[:end]
        del kept[:end]
        if ready:
            self._given = ready[-1].at
        return ready

    def rest(self) -> list[Entry]:
        """Return all entries that are left."""
        kept, self._kept = self._kept, []
        return kept

    def _delay(self, entries: list[Entry]) -> None:
        """Give late entries the time of the newest entry that was given out."""
        late = bisect_left(entries, self._given, key=_time_of)
        entries[:late] = [entry._replace(at=self._given) for entry in entries[:late]]
        self.late += late
