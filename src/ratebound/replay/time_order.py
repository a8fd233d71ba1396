"""Entries in the order of their times.

Servers write a line when a request ends, so that lines are slightly out of order by arrival. A window of some seconds
is kept and sorted. An entry that comes later than that gets the time of the newest entry that was given out. A few
entries that are far ahead of those after them have a wrong time: they get the time of the last one after them.
"""

from bisect import bisect_left, bisect_right
from operator import itemgetter

from ratebound.replay.entry import Entry

FAR = 86_400_000_000  # microseconds: a day
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
        last, many = entries[-1].at, len(entries)
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
        if kept[-1].at > last + FAR:
            self._pull_back(max(last, self._given), many)
        end = bisect_right(kept, kept[-1].at - self._window, key=_time_of)
        end = max(end, len(kept) - MOST_KEPT)
        ready = kept[:end]
        del kept[:end]
        if ready:
            self._given = ready[-1].at
        return ready

    def _pull_back(self, last: int, many: int) -> None:
        """Give entries that are far ahead of the last of `many` ones its time, unless they are more than a few."""
        kept = self._kept
        ahead = kept[bisect_right(kept, last + FAR, key=_time_of) :]
        if len(ahead) * 10 <= many:
            del kept[len(kept) - len(ahead) :]
            place = bisect_right(kept, last, key=_time_of)
            kept[place:place] = [entry._replace(at=last) for entry in ahead]
            self.late += len(ahead)

    def rest(self) -> list[Entry]:
        """Return all entries that are left."""
        kept, self._kept = self._kept, []
        return kept

    def _delay(self, entries: list[Entry]) -> None:
        """Give late entries the time of the newest entry that was given out."""
        late = bisect_left(entries, self._given, key=_time_of)
        entries[:late] = [entry._replace(at=self._given) for entry in entries[:late]]
        self.late += late
