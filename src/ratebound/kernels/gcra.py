"""The generic cell rate algorithm, which is token-bucket, gcra and leaky-bucket.

`tat + part / count` is the theoretical arrival time: the instant at which the bucket is untouched again. One unit moves
it by period / count. The fraction is kept, so that no rate drifts; a request conforms from the whole microsecond of its
instant on. A request of cost c conforms if the arrival time after it is no further ahead than a whole burst.

State is (tat, part, last, since, given). `last` is the instant of the last write: an earlier `now` means that the clock
stepped back by the difference. `since` is the instant at which the bucket was last found untouched, and `given` is the
time by which refunds have moved it back since then; both are for refunds, see `_refund`. Instants from before a step
back cannot be compared with later ones, so `since` is then the first instant that was not used yet.

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

A state with holes, debts or a turn is longer: (…, turn, number of holes, start, part, end, part, …), first the holes
and then the debts, each in order. `turn` is the latest instant at which a waiter goes ahead, if the arrival time does
not say so: several buckets agreed on it (see `kernels.evaluate`), there are debts, or a part of a place was given back.
"""

from ratebound.decision import Row
from ratebound.limit import MAX_PERIOD, MAX_SPAN, Limit, Spent, spans

State = tuple[int, ...]

MAX_HOLES = 32  # and as many debts


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if it conforms `lead` microseconds from now or later. A denial leaves the state as it is."""
    count = limit.count
    if state is None:
        ahead, part, since, given = 0, 0, now, 0
    else:
        try:
            tat, part, last, since, given = state
        except ValueError:  # the state is longer; checking its length first would slow down the plain ones
            return _spend_between(limit, state, now, cost, patience, lead)
        if now < last or part >= count:
            state = tat, part, last, since, given = repair(limit, state, now)
        ahead = tat - now  # how far ahead of now the arrival time lies
        if ahead < 0:
            since, given = max(since, now), 0
            ahead = part = 0
    if cost == 1:
        room, room_part, step, step_part = limit.unit
    elif cost <= limit.burst:
        room, room_part, step, step_part = spans(limit, cost)
    else:
        remaining, reset_after = _plain_standing(limit, state, now)
        return state, (False, remaining, None, reset_after, 0, now, 0, 0)
    early = ahead - room
    if part < room_part:  # rounded down: conforming from the whole microsecond on
        early -= 1
    delay = ahead if limit.queues else early if early > 0 else 0
    if patience is not None:
        if lead:  # checked here because only patience has a lead
            return _spend_between(limit, state, now, cost, patience, lead)
        early = delay - patience
    if early > 0:
        remaining, reset_after = _plain_standing(limit, state, now)
        return state, (False, remaining, early, reset_after, 0, now, 0, 0)
    ahead += step
    part += step_part
    if part >= count:
        ahead += 1
        part -= count
    remaining = (limit.full - ahead * count - part) // limit.period_us
    if remaining < 0:
        remaining = 0  # a place in the future
    elif remaining > limit.burst:
        remaining = limit.burst  # more than one unit a microsecond
    reset_after = ahead + 1 if part else ahead
    return (now + ahead, part, now, since, given), (True, remaining, 0, reset_after, delay, now, given, part)


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

    def __init__(self, limit: Limit, state: State | None, now: int) -> None:
        """Read a state that needs no repair."""
        self.limit = limit
        self.now = now
        self.depth = limit.burst * limit.period_us
        self.end = 0
        self.since, self.given, self.turn = now, 0, 0
        self.holes: Stretches = []
        self.debts: Stretches = []
        if state is not None:
            self.since = state[3]
            if state[0] < now:
                self.since = max(self.since, now)
            else:
                self.end, self.given = self.ahead(state[0], state[1]), state[4]
        if state is not None and len(state) > 5:
            self.turn = state[5]
            middle = 7 + 4 * state[6]
            self.holes = self._stretches(state[7:middle], 0)
            self.debts = self._stretches(state[middle:], self.depth)

    def _stretches(self, numbers: State, begin: int) -> Stretches:
        """Return the parts of the stretches that lie after `begin`."""
        found = []
        for i in range(0, len(numbers), 4):
            end = self.ahead(numbers[i + 2], numbers[i + 3])
            if end > begin:
                found.append((max(self.ahead(numbers[i], numbers[i + 1]), begin), end))
        return found

    def ahead(self, instant: int, part: int) -> int:
        """Return an instant and its fraction as 1/count microseconds from now."""
        return (instant - self.now) * self.limit.count + part

    def first_fit(self, size: int, begin: int, front: int = 0) -> tuple[int, int]:
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
        if self.limit.queues:
            return place // self.limit.count
        return (place - (self.limit.burst - cost) * self.limit.period_us) // self.limit.count

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
        most = self.limit.unit[2] if self.limit.queues else self.limit.refill_us
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

    def state(self) -> State:
        """Return the state to store: without holes at the end, and with at most MAX_HOLES holes and debts."""
        while self.holes and self.holes[-1][1] >= self.end:
            self.end = min(self.end, self.holes.pop()[0])
        del self.holes[MAX_HOLES:]
        self.debts = [(start, min(end, self.end)) for start, end in self.debts if start < self.end]
        if len(self.debts) > MAX_HOLES:  # refunds could not move the dropped debts, so spends up to now get none
            del self.debts[MAX_HOLES:]
            self.since = self.now + 1
        kept = (*self._instant(self.end), self.now, self.since, self.given)
        self.turn = min(self.turn, kept[0])  # every place begins at its turn or later
        if not self.holes and not self.debts and self.turn <= self.now:
            return kept
        edges = [edge for stretch in self.holes + self.debts for edge in stretch]
        return (*kept, self.turn, len(self.holes), *[number for edge in edges for number in self._instant(edge)])

    def _instant(self, ahead: int) -> tuple[int, int]:
        whole, part = divmod(ahead, self.limit.count)
        return self.now + whole, part

    def standing(self) -> tuple[int, int]:
        """Return (remaining, reset_after). Each hole gives the units that fit in it and conform now."""
        limit, remaining = self.limit, 0
        for start, end in [*self.holes, (self.end, self.end + limit.full)]:
            remaining += max(min(limit.full - start, end - start) // limit.period_us, 0)
        return min(remaining, limit.burst), -(-self.end // limit.count)


def _spend_between(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Spend if the state has holes or debts, or if the place must not begin before `lead`."""
    if state is not None:
        state = repair(limit, state, now)
    line = _Line(limit, state, now)
    if cost > limit.burst:
        remaining, reset_after = line.standing()
        return state, (False, remaining, None, reset_after, 0, now, 0, 0)
    size = cost * limit.period_us
    place, hole = line.first_fit(size, lead * limit.count)
    early = line.delay(cost, place)
    delay = max(early, 0)
    if patience is not None:
        early = delay - patience
    elif limit.queues:
        early = (place - (limit.burst - cost) * limit.period_us) // limit.count
    if early > 0:
        remaining, reset_after = line.standing()
        return state, (False, remaining, early, reset_after, 0, now, 0, 0)
    line.take(size, place, hole)
    if lead > delay or line.debts:
        line.turn = max(line.turn, now + lead, now + delay)
    state = line.state()
    remaining, reset_after = line.standing()
    ahead, part = divmod(place + size, limit.count)
    return state, (True, remaining, 0, reset_after, delay, now, line.given, part, ahead)


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """Return microseconds until `cost` goes ahead if `front` units take places before it; None if it never does."""
    if cost > limit.burst:
        return None
    line = _Line(limit, state, now)
    place, _ = line.first_fit(cost * limit.period_us, 0, front * limit.period_us)
    return max(line.delay(cost, place), 0)


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """Return (remaining, reset_after) of a state that needs no repair."""
    if state is not None and len(state) > 5 and state[0] >= now:
        return _Line(limit, state, now).standing()
    return _plain_standing(limit, state, now)


def _plain_standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """Return (remaining, reset_after) of a state without holes."""
    if state is None or state[0] < now:
        return limit.burst, 0
    ahead, part = state[0] - now, state[1]
    remaining = (limit.full - ahead * limit.count - part) // limit.period_us
    return min(max(remaining, 0), limit.burst), ahead + (part > 0)


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Apply a signed cost: overdraw by at most one count each time, or refund what is still owed."""
    if state is not None:
        state = repair(limit, state, now)
    if cost <= 0 and (state is None or state[0] < now):
        return state, (True, limit.burst, 0, 0, 0, now, 0, 0)
    line = _Line(limit, state, now)
    span = abs(cost) * limit.period_us
    if cost > 0:
        _overdraw(line, span)
    elif spent is None:
        _move_back(line, span)
    elif cost < 0 and line.since <= spent[0] <= now:  # a spend later than now is from before a step back of the clock
        _refund(line, span, spent)
    state = line.state()
    remaining, reset_after = line.standing()
    return state, (True, remaining, 0, reset_after, 0, now, line.given, 0)


def _overdraw(line: _Line, span: int) -> None:
    """Charge a cost that has been used already: the first free time, up to one count behind the burst or the line.

    Without that bound one settlement could block a key for as long as it likes. All overdrafts together are bounded
    where numbers would no longer be exact.
    """
    count = line.limit.count
    span = min(span, max(line.depth - line.end, 0) + line.limit.period_us * count)
    line.turn = line.last_turn()
    holes = []
    for start, end in line.holes:
        taken = min(span, end - start)
        span -= taken
        line.owe(start, start + taken)
        if start + taken < end:
            holes.append((start + taken, end))
    line.holes = holes
    before = line.end
    line.end = max(before, min(before + span, (MAX_SPAN + MAX_PERIOD) * count))
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
        _move_back(line, min(span, max(owed, 0) * line.limit.count))


def _move_back(line: _Line, span: int) -> None:
    before = line.end // line.limit.count
    line.end = max(line.end - span, 0)
    line.given += before - line.end // line.limit.count


def repair(limit: Limit, state: State, now: int) -> State:
    """Return the state after a step back of the clock: debt and holes move back with the clock.

    A fraction of a larger count, used before, is rounded up; at the end of a hole it is rounded down.
    """
    tat, part, last, since, given, *more = state
    if now >= last and part < limit.count and not more:
        return state
    if part >= limit.count:
        tat, part = tat + 1, 0
    back = max(last - now, 0)
    if back:
        tat, last, since = tat - back, now, max(since, last + 1)
    if not more:
        return tat, part, last, since, given
    middle = 2 + 4 * more[1]
    holes, debts = (_mended(limit, numbers, back) for numbers in (more[2:middle], more[middle:]))
    mended = (tat, part, last, since, given, more[0] - back, len(holes) // 4, *holes, *debts)
    return state if mended == state else mended


def _mended(limit: Limit, stretches: list[int], back: int) -> list[int]:
    mended = []
    for i in range(0, len(stretches), 4):
        start, start_part, end, end_part = stretches[i : i + 4]
        if start_part >= limit.count:
            start, start_part = start + 1, 0
        if end_part >= limit.count:
            end_part = 0
        if (start, start_part) < (end, end_part):
            mended += [start - back, start_part, end - back, end_part]
    return mended


def without_holes(state: State) -> State:
    """Return a state that gives places at the end of the line only."""
    return state if len(state) == 5 else (*state[:6], 0, *state[7 + 4 * state[6] :])


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains. Exact if there are no holes, and never too short.

    When the next unit is whole, the debt that is left is that of all units above it.
    """
    if remaining >= limit.burst:
        return 0
    return reset_after + (limit.burst - remaining - 1) * limit.period_us // -limit.count
