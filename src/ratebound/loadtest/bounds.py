"""Bounds of what a limit can have granted, if each request was decided at an unknown instant between two known ones.

A client knows when it sent a request and when the answer was there; the server decided in between. An answer
contradicts a limit only if no choice of instants explains it, so an honest server is never blamed. Two relaxations make
that cheap:

- Grants are alike, so the k-th instant lies between the k-th smallest begin and the k-th smallest end. The kernel takes
  them in this order, each as early as it can: an earlier grant never leaves less room later. A grant whose span is over
  by then is a surplus.
- A refusal needs an instant at which the limit was used up. It is fullest if every grant that can be there already is,
  as late as possible. Between two begins of spans a limit only recovers, so only the begins need a look.

With exact instants both are the kernel itself. A leaky bucket may refuse what would have to wait longer than the server
lets a request wait (`max_delay` of our middleware): the longest wait that explains all refusals is tried, too.

Windows need one thing more: where they begin. A fixed window is tried at every alignment that differs for these spans,
and with windows that begin with a request, as servers have them that let a count expire (INCR and EXPIRE of Redis).
A sliding counter begins with its first grant, and the span of that grant is cut into parts; a part is tried at its
beginning, with every span widened by its length.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from ratebound.kernels.packing import unpacked
from ratebound.kernels.sliding_counter import Counter
from ratebound.kernels.state import State
from ratebound.limit import ALGORITHMS, Limit

FOREVER = 2**52  # microseconds; an instant after every run
MOST_ALIGNMENTS = 400  # of fixed windows that are tried
ANCHOR_PARTS = 16  # into which the span of a sliding counter's first grant is cut
MOST_MISSING = 500  # refusals that are counted as grants for those after them
TRANSITIONS = 5  # changes from refused to granted that say where windows begin


class Span(NamedTuple):
    """The time in which a request was decided, in microseconds, both ends included."""

    begin: int
    end: int


class ClientSpans(NamedTuple):
    """The answers to one client. `unknown` are requests that may have been granted: no answer, or an error.

    `used_before` are the units that may have been used before the first request.
    """

    granted: Sequence[Span]
    refused: Sequence[Span]
    unknown: Sequence[Span] = ()
    used_before: int = 0


class Contradiction(NamedTuple):
    """An answer that the limit does not explain. `free_at` is the earliest instant at which a surplus grant fits."""

    span: Span
    free_at: int = 0


class Contradictions(NamedTuple):
    """Every answer of a client that limits do not explain. Unless `settled`, other instants may explain them."""

    surplus: Sequence[Contradiction] = ()
    unfounded: Sequence[Contradiction] = ()
    settled: bool = True
    at_most: int = 0  # what the limits can have granted of all requests
    longest_wait: int | None = None  # a leaky bucket refused what would have waited longer, in microseconds

    @property
    def total(self) -> int:
        """The number of answers that contradict the limits."""
        return len(self.surplus) + len(self.unfounded)


Full = Callable[[int], bool]
Explains = Callable[[Span], bool]


class PlacedLimit(NamedTuple):
    """A limit with its windows placed: which grants are too many, and which refusals it explains."""

    surplus: list[Contradiction]
    explains: Explains
    settled: bool
    fresh: Callable[[], State]  # makes an unused state with these windows
    add: Callable[[Span], None]  # counts a refusal as a grant, in what `explains` returns from then on
    origin: int = 0  # what is subtracted from an instant before it is given to the kernel
    longest_wait: int | None = None  # of a leaky bucket that refuses requests which would wait longer, in microseconds


def can_be_judged(limit: Limit) -> bool:
    """Return True for rates. Slots, distinct values, penalties and quotas depend on more than instants."""
    return limit.algorithm in ALGORITHMS and not limit.metered


def contradictions(limits: Sequence[Limit], seen: ClientSpans) -> Contradictions:
    """Return what contradicts the limits, with the windows placed where least does.

    A grant must fit every limit, and a refusal one of them. Fixed windows are placed last, for the refusals that no
    other limit explains. With two of them the first takes the best place for itself alone, which is not always the best
    for both, so what contradicts them is not settled.
    """
    ordered = sorted(limits, key=_is_fixed)
    readings: list[PlacedLimit] = []
    unexplained: Sequence[Span] = seen.refused
    for limit in ordered:
        reading = _best_reading(limit, seen, unexplained)
        readings.append(reading)
        unexplained = [span for span in unexplained if not reading.explains(span)]
    unexplained = _missing_grants(readings, unexplained)
    surplus = max((reading.surplus for reading in readings), key=len)
    most = min(_most(limit, reading, seen) for limit, reading in zip(ordered, readings, strict=True))
    return Contradictions(
        surplus,
        [Contradiction(span) for span in unexplained],
        all(reading.settled for reading in readings) and sum(map(_is_fixed, limits)) < 2,
        max(most, len(seen.granted) - len(surplus)),
        min((one.longest_wait for one in readings if one.longest_wait is not None), default=None),
    )


def _missing_grants(readings: Sequence[PlacedLimit], unexplained: Sequence[Span]) -> list[Span]:
    """Return the refusals that should have been grants. Each counts as one for those after it.

    A server that refuses one request too early, and keeps to its count, refuses all others of that window too early.
    """
    missing: list[Span] = []
    for span in sorted(unexplained, key=lambda span: span.end):
        if len(missing) < MOST_MISSING and any(reading.explains(span) for reading in readings):
            continue
        missing.append(span)
        if len(missing) < MOST_MISSING:
            for reading in readings:
                reading.add(span)
    return missing


def _is_fixed(limit: Limit) -> bool:
    return limit.algorithm == "fixed-window"


def _best_reading(limit: Limit, seen: ClientSpans, unexplained: Sequence[Span]) -> PlacedLimit:
    """Return the reading that fewest answers contradict, of all grants and of these refusals."""
    best: PlacedLimit | None = None
    fewest = math.inf
    for placed in _readings(limit, seen):
        reading = placed(fewest)
        many = len(reading.surplus)
        if many < fewest:
            many += _count_unexplained(unexplained, reading.explains, fewest - many)
        if best is None or many < fewest:
            best, fewest = reading, many
        if not fewest:
            break
    assert best is not None
    if fewest and _is_fixed(limit):
        begun = _begun_windows(limit, seen)
        if begun is not None and all(map(begun.explains, unexplained)):
            return begun
        if seen.unknown and _fits_loosely(limit, seen, unexplained):
            return best._replace(settled=False)
    return best


def _count_unexplained(refused: Iterable[Span], explains: Explains, enough: float) -> int:
    many = 0
    for span in refused:
        many += not explains(span)
        if many >= enough:
            break
    return many


def _readings(limit: Limit, seen: ClientSpans) -> Iterator[Callable[[float], PlacedLimit]]:
    """Return functions that place the limit. They stop to look for surplus grants when they have found so many."""
    if limit.algorithm == "fixed-window":
        yield from _fixed_windows(limit, seen)
    elif limit.algorithm == "sliding-counter":
        yield lambda _: _sliding_counter(limit, seen)
    else:
        holding = _Holding(limit, seen)
        full = holding.log() if limit.algorithm == "sliding-log" else holding.bucket()
        surplus = _surplus(limit, _fresh(limit), *_sorted(seen.granted))
        placed = PlacedLimit(surplus, holding.explaining(full), True, partial(_fresh, limit), holding.add)
        yield lambda _: placed
        longest = holding.longest_wait(seen.refused) if limit.algorithm == "leaky-bucket" else None
        if longest is not None:
            surplus = _surplus(limit, _fresh(limit), *_sorted(seen.granted), longest_wait=longest)
            explains = holding.explaining(holding.bucket(longest))
            bounded = PlacedLimit(surplus, explains, True, partial(_fresh, limit), holding.add, longest_wait=longest)
            yield lambda _: bounded


def _fresh(limit: Limit) -> State:
    return unpacked(limit.numbers, None)


def _sorted(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    return sorted(span.begin for span in spans), sorted(span.end for span in spans)


def _surplus(
    limit: Limit,
    state: State,
    begins: Sequence[int],
    ends: Sequence[int],
    origin: int = 0,
    longest_wait: int | None = None,
    enough: float = math.inf,
) -> list[Contradiction]:
    """Return the grants that the kernel cannot have made, when it makes each as early as it can: `enough` at most."""
    found = []
    now = -FOREVER
    for begin, end in zip(begins, ends, strict=True):
        now = max(now, begin)
        row = state.spend(limit.numbers, now - origin, 1, longest_wait, 0)
        if row[0]:
            continue
        free = now + (FOREVER if row[2] is None else row[2])
        if free > end:
            found.append(Contradiction(Span(begin, end), free))
            if len(found) >= enough:
                break
            continue
        now = free
        state.spend(limit.numbers, now - origin, 1, longest_wait, 0)
    return found


def _most(limit: Limit, reading: PlacedLimit, seen: ClientSpans) -> int:
    """Return how many of all requests the kernel can have granted: each as early as it can, in the order of begins.

    An end is at least that of every request before, which gives only more room.
    """
    spans = sorted((*seen.granted, *seen.refused, *seen.unknown))
    ends = accumulate((span.end for span in spans), max)
    begins = [span.begin for span in spans]
    return len(spans) - len(_surplus(limit, reading.fresh(), begins, list(ends), reading.origin))


class _Holding:
    """The fullest that a limit can be at an instant: everything that may be granted by then, as late as possible.

    Every span begins `widened` earlier, but no grant does so before `first`.
    """

    def __init__(self, limit: Limit, seen: ClientSpans, *, widened: int = 0, first: int = -FOREVER) -> None:
        self.limit = limit
        self.widened = widened
        spans = [*seen.granted, *(Span(span.begin, FOREVER) for span in seen.unknown)]
        self.begins = sorted(max(span.begin - widened, first) for span in spans)
        self.ends = sorted(max(span.end, first) for span in spans)
        if seen.used_before:
            start = min(span.begin for span in (*seen.granted, *seen.refused, *seen.unknown))
            used = [start] * min(seen.used_before, limit.burst)
            self.begins = sorted([*used, *self.begins])
            self.ends = sorted([*used, *self.ends])
        self._added = 0

    def add(self, span: Span) -> None:
        """Count a span as a grant from now on."""
        insort(self.begins, span.begin - self.widened)
        insort(self.ends, span.end)
        self._added += 1

    def explaining(self, full: Full) -> Explains:
        """Return a function that returns True if the limit can have been used up at an instant of a span."""
        known: dict[int, bool] = {}
        added = self._added

        def is_full(now: int) -> bool:
            nonlocal added
            if added != self._added:
                added = self._added
                known.clear()
            if now not in known:
                known[now] = full(now)
            return known[now]

        def explains(span: Span) -> bool:
            begin = span.begin - self.widened
            if is_full(begin):
                return True
            later = range(bisect_right(self.begins, begin), bisect_right(self.begins, span.end))
            return any(is_full(self.begins[place]) for place in later)

        return explains

    def bucket(self, longest_wait: int | None = None) -> Full:
        """Compute with times in 1/count microseconds, so that nothing is rounded."""
        count = self.limit.count
        # A request conforms from its whole microsecond on.
        least = (self.limit.burst - 1) * self.limit.period_us + count
        if longest_wait is not None:
            least = min(least, longest_wait * count + 1)
        wait = self._waits()
        return lambda now: wait(now) >= least

    def longest_wait(self, refused: Sequence[Span]) -> int | None:
        """Return the longest wait in a queue that is shorter than the waits of all refused requests can have been.

        None if a request was refused that had nothing to wait for, or if the queue was full at every refusal.
        """
        wait = self._waits()
        least = FOREVER * self.limit.count
        for span in refused:
            later = self.begins[bisect_right(self.begins, span.begin) : bisect_right(self.begins, span.end)]
            least = min(least, max(wait(now) for now in (span.begin, *later)))
        if least < 1 or least > (self.limit.burst - 1) * self.limit.period_us:
            return None
        return (least - 1) // self.limit.count

    def _waits(self) -> Callable[[int], int]:
        """Return a function that returns the longest time that a request may have to wait, in 1/count microseconds."""
        count, period = self.limit.count, self.limit.period_us
        arrivals = [-FOREVER * count]  # the arrival time after the first n ends

        def wait(now: int) -> int:
            past = bisect_left(self.ends, now)
            if len(arrivals) != len(self.ends) + 1:
                del arrivals[1:]
                for end in self.ends:
                    arrivals.append(max(arrivals[-1], end * count) + period)
            arrival, running = arrivals[past], bisect_right(self.begins, now) - past
            if running:
                arrival = max(arrival, now * count) + running * period
            return arrival - now * count

        return wait

    def log(self) -> Full:
        count, period = self.limit.count, self.limit.period_us
        return lambda now: bisect_right(self.begins, now) - bisect_right(self.ends, now - period) >= count

    def fixed(self, origin: int) -> Full:
        count, period = self.limit.count, self.limit.period_us

        def full(now: int) -> bool:
            window = now - (now - origin) % period
            return bisect_right(self.begins, now) - bisect_left(self.ends, window) >= count

        return full

    def counter(self, origin: int) -> Full:
        count, period = self.limit.count, self.limit.period_us

        def full(now: int) -> bool:
            window = now - (now - origin) % period
            left = window + period - now
            past = bisect_left(self.ends, window)
            current = bisect_right(self.begins, now) - past
            previous = past - bisect_left(self.ends, window - period)
            return current + -(-left * previous // period) >= count

        return full


def _fixed_windows(limit: Limit, seen: ClientSpans) -> Iterator[Callable[[float], PlacedLimit]]:
    """Return a reading for each alignment that differs for these spans.

    Whether a begin or an end is in a window changes only where a window begins there.
    """
    begins, ends = _sorted(seen.granted)
    holding = _Holding(limit, seen)
    origins, complete = _alignments(limit.period_us, seen)

    def placed(origin: int, enough: float) -> PlacedLimit:
        surplus = _surplus(limit, _fresh(limit), begins, ends, origin, enough=enough)
        explains = holding.explaining(holding.fixed(origin))
        return PlacedLimit(surplus, explains, complete, partial(_fresh, limit), holding.add, origin)

    for origin in origins:
        yield partial(placed, origin)


def _begun_windows(limit: Limit, seen: ClientSpans) -> PlacedLimit | None:
    """Return the reading in which a window begins with the first grant after the last one is over. None: no instants
    explain the grants so.

    `earliest[j]` is the first instant at which a window can begin with the j-th grant: not before the window that
    begins with the i-th is over, which holds all grants between.
    """
    count, period = limit.count, limit.period_us
    begins, ends = _sorted(seen.granted)
    if not begins:
        return None
    used_before = Span(begins[0] - period, begins[0]) if seen.used_before else None  # when that window began
    earliest: dict[int, int] = {0: begins[0]}

    def begin_holding(i: int, last: int) -> int | None:
        """Return the earliest begin of a window with the i-th grant that still holds the last one."""
        begin = max(earliest[i], begins[last] - period + 1)
        return begin if begin <= ends[i] else None

    first, starts = 0, [0]
    for j in range(1, len(begins)):
        while first < j and ends[first] <= begins[j - 1] - period:
            first += 1  # every window that begins so early is over
        found = [begin_holding(i, j - 1) for i in starts[bisect_left(starts, max(first, j - count)) :]]
        if used_before is not None and j <= count:
            found.append(max(used_before.begin, begins[j - 1] - period + 1))
        if not found:
            return None
        over = min((begin + period for begin in found if begin is not None), default=FOREVER)
        if over <= ends[j]:
            earliest[j] = max(begins[j], over)
            starts.append(j)
    last = len(begins) - 1
    if not any(i + count > last and begin_holding(i, last) is not None for i in earliest):
        return None
    full = [Span(begins[i + count - 1], ends[i] + period - 1) for i in earliest if i + count - 1 <= last]
    if used_before is not None:
        full.insert(0, Span(-FOREVER, used_before.end + period - 1))
    until = [span.end for span in full]

    def explains(span: Span) -> bool:
        place = bisect_left(until, span.begin)
        return place < len(full) and full[place].begin <= span.end

    return PlacedLimit([], explains, True, partial(_fresh, limit), lambda _: None, begins[0])


def _fits_loosely(limit: Limit, seen: ClientSpans, unexplained: Iterable[Span]) -> bool:
    """Return True unless grants and refusals contradict every server with such windows, wherever each begins.

    Two windows may be used up one after the other, and what a window has granted counts for one period at most.
    """
    twice = Limit(limit.count, limit.period_us, 2 * limit.count, "token-bucket")
    holding = _Holding(limit, seen)
    return not _surplus(twice, _fresh(twice), *_sorted(seen.granted)) and all(
        map(holding.explaining(holding.log()), unexplained)
    )


def _alignments(period: int, seen: ClientSpans) -> tuple[list[int], bool]:
    """Return the places where windows can begin, and True if no other needs a trial."""
    spans = (*seen.granted, *seen.refused, *seen.unknown)
    every = sorted({edge % period for span in spans for edge in span}) or [0]
    if len(every) <= MOST_ALIGNMENTS:
        return every, True
    near: list[int] = []
    changes = _transitions(seen)
    for change in changes:
        # A window begins after the refusal and no later than the grant: at an edge in between, or at the grant's end
        edges = [*_between(every, (change.begin + 1) % period, change.end % period), change.end % period]
        near += edges[:: math.ceil(len(edges) / (MOST_ALIGNMENTS // TRANSITIONS))]
    if not near:
        near = every[:: math.ceil(len(every) / MOST_ALIGNMENTS)]
    return list(dict.fromkeys(near)), len(near) < MOST_ALIGNMENTS // TRANSITIONS


def _between(edges: Sequence[int], low: int, high: int) -> Sequence[int]:
    """Return the edges from `low` to `high`, which may be around the end of a period."""
    if low <= high:
        return edges[bisect_left(edges, low) : bisect_right(edges, high)]
    return [*edges[bisect_left(edges, low) :], *edges[: bisect_right(edges, high)]]


def _transitions(seen: ClientSpans) -> list[Span]:
    """Return the shortest times between a refusal and a grant that certainly came after it."""
    ends = sorted((span.end, span.begin) for span in seen.refused)
    latest = list(accumulate((begin for _, begin in ends), max))
    found = []
    for grant in seen.granted:
        place = bisect_left(ends, (grant.begin, -FOREVER))
        if place:
            found.append(Span(latest[place - 1], grant.end))
    found.sort(key=lambda span: span.end - span.begin)
    return found[:TRANSITIONS]


def _sliding_counter(limit: Limit, seen: ClientSpans) -> PlacedLimit:
    """Return one reading: the windows of every busy time placed where least contradicts the limit.

    A counter forgets everything in an idle time, and its windows start again with the next grant. An idle time may be
    nearly long enough: then what contradicts the limit is not settled. Neither is it if a request without an answer may
    have been the first grant.
    """
    period = limit.period_us
    begins, ends = _sorted(seen.granted)
    settled = not seen.unknown and not seen.used_before
    cuts = [0]
    for k in range(1, len(begins)):
        if begins[k] - ends[k - 1] >= 2 * period:
            cuts.append(k)
        elif ends[k] - begins[k - 1] >= period:
            settled = False
    if not begins:
        holding = _Holding(limit, seen)
        return PlacedLimit([], holding.explaining(holding.counter(0)), settled, partial(_fresh, limit), holding.add)
    readings = []
    for first, last in zip(cuts, [*cuts[1:], len(begins)], strict=True):
        since = begins[first] if first else -FOREVER
        until = begins[last] if last < len(begins) else FOREVER
        busy = ClientSpans(
            [Span(*pair) for pair in zip(begins[first:last], ends[first:last], strict=True)],
            [span for span in seen.refused if since <= span.end and span.begin < until],
            seen.unknown,
            0 if first else seen.used_before,
        )
        readings.append(_anchored(limit, busy))

    def add(span: Span) -> None:
        for reading in readings:
            reading.add(span)

    return PlacedLimit(
        [one for reading in readings for one in reading.surplus],
        lambda span: any(reading.explains(span) for reading in readings),
        settled,
        readings[0].fresh,
        add,
    )


def _anchored(limit: Limit, busy: ClientSpans) -> PlacedLimit:
    """Return the reading of one busy time with its windows placed where least contradicts the limit."""
    begins, ends = _sorted(busy.granted)
    parts = ANCHOR_PARTS if ends[0] > begins[0] else 1
    step = -(-(ends[0] - begins[0]) // parts)
    best: PlacedLimit | None = None
    fewest = math.inf
    for anchor in range(begins[0], ends[0] + 1, max(step, 1)):
        early = [max(begin - step, anchor) for begin in begins]
        late = [max(end, anchor) for end in ends]
        surplus = _surplus(limit, _counter(limit, anchor), early, late)
        holding = _Holding(limit, busy, widened=step, first=anchor)
        explains = holding.explaining(holding.counter(anchor))
        many = len(surplus)
        if many < fewest:
            many += _count_unexplained(busy.refused, explains, fewest - many)
        if best is None or many < fewest:
            best, fewest = PlacedLimit(surplus, explains, True, partial(_counter, limit, anchor), holding.add), many
        if not fewest:
            break
    assert best is not None
    return best


def _counter(limit: Limit, anchor: int) -> State:
    """Return an unused sliding counter whose window begins at `anchor`."""
    return Counter(anchor + 2 * limit.period_us, 0, 0)
