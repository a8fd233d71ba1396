"""The generic cell rate algorithm, which is token-bucket, gcra and leaky-bucket.

`expires + part / count` is the theoretical arrival time: the instant at which the bucket is untouched again. One unit
moves it by period / count. The fraction is kept, so that no rate drifts; a request conforms from the whole microsecond
of its instant on. A request of cost c conforms if the arrival time after it is no further ahead than a whole burst.

Packed, a state is (expires, part, last, since, given). `last` is the instant of the last write: an earlier `now` means
that the clock stepped back by the difference. `since` is the instant at which the bucket was last found untouched, and
`given` is the time by which refunds have moved it back since then; both are for refunds, see `_refund`. Instants from
before a step back cannot be compared with later ones, so `since` is then the first instant that was not used yet.

A leaky bucket allows the same requests, but sends each to the end of a queue: its delay is the time ahead of it. With
patience any bucket hands out places in the future: charged now, with a delay.

The place of a spend is the stretch of time that it adds: cost * period / count long, ending at the arrival time. The
request goes ahead no later than its place begins, and no earlier than a whole burst before its place ends. If no two
places overlap and each keeps these two bounds, the bucket's promise holds: requests that go ahead within D microseconds
have their places within D plus a whole burst. So a place that is given back while others are behind it can be handed
out again. It is kept as a hole, and the first hole that is large enough is taken before the end of the line. A hole
that reaches the end is no hole: the arrival time moves back to its beginning. Beyond MAX_HOLES the latest holes are
dropped: they count as taken until their time has passed.

A cost that a settlement charges on top has been used already, so its places may end later than a burst from then. Those
stretches are debts. They take the holes first, and move into every place in front of them that is given back; the end
of the last debt then becomes the hole. Otherwise a hole would allow again what the debt has used before. A debt that
ends within a burst from now is a place like any other.

A state with holes, debts or a turn has `more`, packed behind the rest: (turn, number of holes, start, part, end, part,
…), first the holes and then the debts, each in order. `turn` is the latest instant at which a waiter goes ahead, if the
arrival time does not say so: several buckets agreed on it (see `group_law.evaluate`), there are debts, or a part of a
place was given back.
"""

from typing import Final

from ratebound.compiling import COMPILED, mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import MAX_PERIOD, MAX_SPAN, Spent
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row

MAX_HOLES: Final = 32  # and as many debts


@mypyc_attr(acyclic=True)
class Bucket(State):
    """The state of a token bucket, GCRA or leaky bucket."""

    __slots__ = ("given", "last", "more", "part", "since")

    def __init__(
        self,
        expires: int = UNTOUCHED,
        part: int = 0,
        last: int = UNTOUCHED,
        since: int = UNTOUCHED,
        given: int = 0,
        more: tuple[int, ...] | None = None,
    ) -> None:
        self.expires = expires
        self.part = part
        self.last = last
        self.since = since
        self.given = given
        self.more = more

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the cost conforms now; a leaky bucket may still delay it."""
        if cost > limit.burst:
            return False
        if self.more is not None:
            return self._fits_between(limit, now, cost)
        part = self.part
        if now < self.last or part >= limit.count:
            return False
        ahead = self.expires - now
        if ahead < 0:
            return True
        if cost == 1:
            room, room_part = limit.room, limit.room_part
        else:
            room, room_part = limit.room_for(cost)
        return ahead <= room or (ahead == room + 1 and part < room_part)

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if it conforms `lead` microseconds from now or later. A denial leaves the state as it is."""
        if lead or self.more is not None:
            return self._spend_between(limit, now, cost, patience, lead)
        count = limit.count
        if now < self.last or self.part >= count:
            self.repair(limit, now)
        ahead = self.expires - now  # how far ahead of now the arrival time lies
        part = self.part
        untouched = ahead < 0
        if untouched:
            ahead = part = 0
        if cost == 1:
            early = ahead - limit.room
            if part < limit.room_part:  # rounded down: conforming from the whole microsecond on
                early -= 1
            if early > 0 and patience is None:  # what is left is less than this one unit
                return (False, 0, early, ahead + 1 if part else ahead, 0, now, 0, 0, None)
            step = limit.step
            step_part = limit.step_part
        elif cost <= limit.burst:
            room, room_part = limit.room_for(cost)
            early = ahead - room
            if part < room_part:
                early -= 1
            step, step_part = divmod(product(limit.period_us, cost), count)
        else:
            remaining, reset_after = self._plain_standing(limit, now)
            return (False, remaining, None, reset_after, 0, now, 0, 0, None)
        delay = ahead if limit.queues else early if early > 0 else 0
        if patience is not None:
            early = delay - patience
        if early <= 0:
            ahead += step
            part += step_part
            if part >= count:
                ahead += 1
                part -= count
        taken = product(ahead, count) if COMPILED else ahead * count  # without a call, which would be slow here
        remaining = (limit.full - taken - part) // limit.period_us
        if remaining < 0:
            remaining = 0  # a place in the future
        elif remaining > limit.burst:
            remaining = limit.burst  # more than one unit a microsecond
        reset_after = ahead + 1 if part else ahead
        if early > 0:
            return (False, remaining, early, reset_after, 0, now, 0, 0, None)
        if untouched:
            if now > self.since:
                self.since = now
            self.given = 0
        self.expires = now + ahead
        self.part = part
        self.last = now
        return (True, remaining, 0, reset_after, delay, now, self.given, part, None)

    def _plain_standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after) of a state without holes."""
        ahead = self.expires - now
        if ahead < 0:
            return limit.burst, 0
        part = self.part
        remaining = (limit.full - product(ahead, limit.count) - part) // limit.period_us
        if remaining < 0:
            remaining = 0
        elif remaining > limit.burst:
            remaining = limit.burst
        return remaining, ahead + 1 if part else ahead

    def _spend_between(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Spend if the state has holes or debts, or if the place must not begin before `lead`."""
        self.repair(limit, now)
        line = _Line(limit, self, now)
        if cost > limit.burst:
            remaining, reset_after = line.standing()
            return (False, remaining, None, reset_after, 0, now, 0, 0, None)
        size = product(limit.period_us, cost)
        place, hole = line.first_fit(size, product(lead, limit.count), 0)
        early = line.delay(cost, place)
        delay = max(early, 0)
        if patience is not None:
            early = delay - patience
        elif limit.queues:
            early = line.early(cost, place)
        if early > 0:
            remaining, reset_after = line.standing()
            return (False, remaining, early, reset_after, 0, now, 0, 0, None)
        line.take(size, place, hole)
        if lead > delay or line.debts:
            line.turn = max(line.turn, now + lead, now + delay)
        line.write(self)
        remaining, reset_after = line.standing()
        ahead, part = divmod(place + size, limit.count)
        return (True, remaining, 0, reset_after, delay, now, line.given, part, ahead)

    def _fits_between(self, limit: Numbers, now: int, cost: int) -> bool:
        state = self.copy()
        state.repair(limit, now)
        line = _Line(limit, state, now)
        place, _ = line.first_fit(product(limit.period_us, cost), 0, 0)
        return line.early(cost, place) <= 0

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after) of a state that needs no repair."""
        if self.more is not None and self.expires >= now:
            return _Line(limit, self, now).standing()
        return self._plain_standing(limit, now)

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` goes ahead if `front` units take places before it; None if it never does."""
        if cost > limit.burst:
            return None
        line = _Line(limit, self, now)
        place, _ = line.first_fit(product(limit.period_us, cost), 0, product(limit.period_us, front))
        return max(line.delay(cost, place), 0)

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Apply a signed cost: overdraw by at most one count each time, or refund what is still owed."""
        self.repair(limit, now)
        if cost <= 0 and self.expires < now:
            return (True, limit.burst, 0, 0, 0, now, 0, 0, None)
        line = _Line(limit, self, now)
        span = product(limit.period_us, abs(cost))
        if cost > 0:
            _overdraw(line, span)
        elif spent is None:
            _move_back(line, span)
        elif cost < 0 and line.since <= spent[0] <= now:  # a later spend is from before a step back of the clock
            _refund(line, span, spent)
        line.write(self)
        remaining, reset_after = line.standing()
        return (True, remaining, 0, reset_after, 0, now, line.given, 0, None)

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, move debt and holes back with it.

        A fraction of a larger count, used before, is rounded up; at the end of a hole it is rounded down.
        """
        back = self.last - now if now < self.last else 0
        more = self.more
        if more is not None:
            middle = 2 + 4 * more[1]
            holes = _mended(limit.count, more[2:middle], back)
            debts = _mended(limit.count, more[middle:], back)
            more = (more[0] - back, len(holes) // 4, *holes, *debts)
        self.more = more
        if self.part >= limit.count:
            self.expires += 1
            self.part = 0
        if back:
            self.expires -= back
            if self.since <= self.last:
                self.since = self.last + 1
            self.last = now

    def copy(self) -> "Bucket":
        """Return an equal state."""
        return Bucket(self.expires, self.part, self.last, self.since, self.given, self.more)

    def without_holes(self) -> "Bucket":
        """Return an equal state that gives places at the end of the line only."""
        more = self.more
        rest = None if more is None else (more[0], 0, *more[2 + 4 * more[1] :])
        return Bucket(self.expires, self.part, self.last, self.since, self.given, rest)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, part, last, since, given), and behind them `more`."""
        return (self.expires, self.part, self.last, self.since, self.given, *(self.more or ()))


def _mended(count: int, stretches: tuple[int, ...], back: int) -> list[int]:
    mended: list[int] = []
    for i in range(0, len(stretches), 4):
        start, start_part, end, end_part = stretches[i], stretches[i + 1], stretches[i + 2], stretches[i + 3]
        if start_part >= count:
            start, start_part = start + 1, 0
        if end_part >= count:
            end_part = 0
        if (start, start_part) < (end, end_part):
            mended += [start - back, start_part, end - back, end_part]
    return mended


Stretches = list[tuple[int, int]]


def _joined(stretches: Stretches, start: int, end: int) -> Stretches:
    """Return the stretches with one more, merged with those that it touches."""
    apart = []
    for each in stretches:
        if each[1] < start or end < each[0]:
            apart.append(each)
        else:
            start, end = min(start, each[0]), max(end, each[1])
    return sorted([*apart, (start, end)])


class _Line:
    """A state as a line of places, holes and debts, with instants in 1/count microseconds from `now`."""

    __slots__ = ("debts", "depth", "end", "given", "holes", "limit", "now", "since", "turn")

    def __init__(self, limit: Numbers, state: Bucket, now: int) -> None:
        """Read a state that needs no repair."""
        self.limit = limit
        self.now = now
        self.depth = product(limit.period_us, limit.burst)
        self.end = 0
        self.given = 0
        self.turn = 0
        self.holes: Stretches = []
        self.debts: Stretches = []
        self.since = state.since
        if state.expires < now:
            self.since = max(self.since, now)
        else:
            self.end, self.given = self.ahead(state.expires, state.part), state.given
        more = state.more
        if more is not None:
            self.turn = more[0]
            middle = 2 + 4 * more[1]
            self.holes = self._stretches(more[2:middle], 0)
            self.debts = self._stretches(more[middle:], self.depth)

    def _stretches(self, numbers: tuple[int, ...], begin: int) -> Stretches:
        """Return the parts of the stretches that lie after `begin`."""
        found: Stretches = []
        for i in range(0, len(numbers), 4):
            end = self.ahead(numbers[i + 2], numbers[i + 3])
            if end > begin:
                found.append((max(self.ahead(numbers[i], numbers[i + 1]), begin), end))
        return found

    def ahead(self, instant: int, part: int) -> int:
        """Return an instant and its fraction as 1/count microseconds from now."""
        return product(instant - self.now, self.limit.count) + part

    def first_fit(self, size: int, begin: int, front: int) -> tuple[int, int]:
        """Return where the first free place of `size` begins, and the index of its hole, or -1 for the end of the line.

        It begins no earlier than `begin`, and `front` is handed out before it.
        """
        for i, (start, end) in enumerate(self.holes):
            start += front
            front = max(start - end, 0)
            start = max(start, begin)
            if not front and start + size <= end:
                return start, i
        return max(self.end + front, begin), -1

    def delay(self, cost: int, place: int) -> int:
        """Return microseconds until a request with this place goes ahead; 0 or less means now."""
        return place // self.limit.count if self.limit.queues else self.early(cost, place)

    def early(self, cost: int, place: int) -> int:
        """Return microseconds until a request with this place conforms; 0 or less means now."""
        return (place - product(self.limit.period_us, self.limit.burst - cost)) // self.limit.count

    def take(self, size: int, place: int, hole: int) -> None:
        """Take a place of `size` in a hole, or at the end of the line if `hole` is -1."""
        start, end = self.holes[hole] if hole >= 0 else (self.end, place + size)
        rest = [piece for piece in ((start, place), (place + size, end)) if piece[0] < piece[1]]
        if hole >= 0:
            self.holes[hole : hole + 1] = rest
        else:
            self.holes += rest
            self.end = end

    def last_turn(self) -> int:
        """Return the instant from which on no request waits for its place. It is never too early."""
        if self.debts:
            return self.turn
        most = self.limit.step if self.limit.queues else self.limit.refill_us
        return max(self.turn, self.now + self.end // self.limit.count - most)

    def owe(self, start: int, end: int) -> None:
        """Note a stretch that was used already as a debt, as far as it lies further ahead than a burst."""
        start = max(start, self.depth)
        if start < end:
            self.debts = _joined(self.debts, start, end)

    def free(self, start: int, end: int) -> None:
        """Make a hole. Debts behind it move into the free place first, so the hole is made of the last debts."""
        while start < end and self.debts and self.debts[-1][0] >= end:
            begin, last = self.debts.pop()
            size = min(end - start, last - begin)
            if begin < last - size:
                self.debts.append((begin, last - size))
            self.holes = _joined(self.holes, last - size, last)
            self.owe(start, start + size)
            start += size
        if start < end:
            self.holes = _joined(self.holes, start, end)

    def write(self, state: Bucket) -> None:
        """Write the line into a state: without holes at the end, and with at most MAX_HOLES holes and debts."""
        while self.holes and self.holes[-1][1] >= self.end:
            self.end = min(self.end, self.holes.pop()[0])
        del self.holes[MAX_HOLES:]
        self.debts = [(start, min(end, self.end)) for start, end in self.debts if start < self.end]
        if len(self.debts) > MAX_HOLES:  # refunds could not move the dropped debts, so spends up to now get none
            del self.debts[MAX_HOLES:]
            self.since = self.now + 1
        expires, part = self._instant(self.end)
        self.turn = min(self.turn, expires)  # every place begins at its turn or later
        more: tuple[int, ...] | None = None
        if self.holes or self.debts or self.turn > self.now:
            edges = [edge for stretch in self.holes + self.debts for edge in stretch]
            more = (self.turn, len(self.holes), *[number for edge in edges for number in self._instant(edge)])
        state.expires = expires
        state.part = part
        state.last = self.now
        state.since = self.since
        state.given = self.given
        state.more = more

    def _instant(self, ahead: int) -> tuple[int, int]:
        whole, part = divmod(ahead, self.limit.count)
        return self.now + whole, part

    def standing(self) -> tuple[int, int]:
        """Return (remaining, reset_after). Each hole gives the units that fit in it and conform now."""
        limit, remaining = self.limit, 0
        for start, end in [*self.holes, (self.end, self.end + limit.full)]:
            remaining += max(min(limit.full - start, end - start) // limit.period_us, 0)
        return min(remaining, limit.burst), -(-self.end // limit.count)


def _overdraw(line: _Line, span: int) -> None:
    """Charge a cost that has been used already: the first free time, up to one count behind the burst or the line.

    Without that bound one settlement could block a key for as long as it likes. All overdrafts together are bounded
    where numbers would no longer be exact.
    """
    count = line.limit.count
    span = min(span, max(line.depth - line.end, 0) + product(line.limit.period_us, count))
    line.turn = line.last_turn()
    holes: Stretches = []
    for start, end in line.holes:
        taken = min(span, end - start)
        span -= taken
        line.owe(start, start + taken)
        if start + taken < end:
            holes.append((start + taken, end))
    line.holes = holes
    before = line.end
    line.end = max(before, min(before + span, product(MAX_SPAN + MAX_PERIOD, count)))
    line.owe(before, line.end)


def _refund(line: _Line, span: int, spent: Spent) -> None:
    """Give back the part of a spend's time that is still ahead, so that nothing is minted.

    The position of a place is known if nothing has moved it since it was taken: it becomes a hole, or shortens the line
    if it is the last. If all allowed requests have gone ahead, no hole is needed: the places behind it move forward.
    Debt is paid off oldest first. So such a spend owes at most the time until its place ends, less the time given back
    since, which may have moved it.
    """
    now = line.now
    at, until, part, given = spent
    end = line.ahead(until, part)
    known = given == line.given
    line.turn = line.last_turn()  # the line may get shorter than what is left of a waiter's place shows
    if known and end == line.end:
        line.end = max(end - span, 0)
    elif line.holes or line.turn > now:
        if known and 0 < end < line.end:
            line.free(max(end - span, 0), end)
    elif now == at:
        _move_back(line, span)
    else:
        owed = until + (part > 0) + given - line.given - 1 - now
        _move_back(line, min(span, product(max(owed, 0), line.limit.count)))


def _move_back(line: _Line, span: int) -> None:
    before = line.end // line.limit.count
    line.end = max(line.end - span, 0)
    line.given += before - line.end // line.limit.count


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains. Exact if there are no holes, and never too short.

    When the next unit is whole, the debt that is left is that of all units above it.
    """
    if remaining >= limit.burst:
        return 0
    return reset_after + product(limit.period_us, limit.burst - remaining - 1) // -limit.count
