"""Windows with ordinal numbers: the periods in which a quota counts. Compiled where that can be done."""

from ratebound.calendar_period import Calendar
from ratebound.compiling import mypyc_attr

Bounds = tuple[int, int, int]  # of a window: its ordinal, its end, and the end of the window after it


@mypyc_attr(acyclic=True)
class Windows:
    """The windows of one quota: periods of the calendar, or of a constant length."""

    __slots__ = ("_calendar", "_known", "_period")

    def __init__(self, period: int, calendar: Calendar | None) -> None:
        self._period = period
        self._calendar = calendar
        # The last answer, with the first and the last instant for which it holds: nearly every call needs it again.
        self._known: tuple[int, int, Bounds] = (0, -1, (0, 0, 0))

    def at(self, now: int) -> Bounds:
        """Return the window at an instant in microseconds."""
        known = self._known
        if known[0] <= now <= known[1]:
            return known[2]
        calendar = self._calendar
        if calendar is None:
            end = now - now % self._period + self._period
            return now // self._period, end, end + self._period
        index = calendar.index_at(now)
        begin, end = calendar.start_of(index), calendar.start_of(index + 1)
        found = (index, end, calendar.start_of(index + 2))
        self._known = (begin, end - 1, found)
        return found
