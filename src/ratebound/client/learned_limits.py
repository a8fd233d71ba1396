"""Learned limits: what the answers of a server show about one of its quotas. Arithmetic only: no I/O and no clock.

A `Sight` is one quota in one answer. A `Shape` is what is known of the quota, and `mirrored` makes of it the limits to
ask before the next request. Times are microseconds of the storage's clock, which all processes share.

A server counts a request when it arrives, which is later than we count it and not always in the same order. So each
kind of quota has a mirror that forgives requests that arrive late:

- "window": all units come back at one instant. Each window has a counter of its own. Its end is known to lie between
  `early` and `end`: each answer narrows that, because resets are rounded up to whole seconds. A request that is sent
  near the end may be counted in either window, so both are charged with it.
- "bucket": units come back steadily. The mirror is a bucket of the same rate with a little less burst.
- "log": at most `count` in any stretch of time. The mirror is a sliding log that is a little longer.
- "smooth": not known. A steady rate with hardly any burst, a little below that of the quota, is accepted by servers of
  every kind. Meanwhile the remaining units show the kind: they fall and jump back for a window, and hardly fall for a
  bucket.

A server may say the kind. Otherwise a reset that is longer than one unit needs to come back rules out a bucket, and an
end that moves ahead rules out a window.
"""

from typing import Final, NamedTuple

from ratebound.clock import SECOND
from ratebound.limit import MAX_COUNT, UNITS, Limit

WINDOW: Final = "window"
BUCKET: Final = "bucket"
LOG: Final = "log"
SMOOTH: Final = "smooth"

MAX_LEARNED: Final = UNITS["year"]  # the longest period and reset that is believed
TELLING: Final = 3 * SECOND  # resets are whole seconds: those of shorter periods say nothing about the kind
LATE: Final = SECOND // 20  # a request may arrive so much later than others: this many microseconds
MOST_IN_LOG: Final = 1_000  # each unit of a log is stored
FEW: Final = 100  # servers count few units in a log, and more in two windows
SETTLING: Final = 3 * SECOND // 5  # until all processes know a new shape, and have used the places that they took
DRIFT: Final = 100_000  # one microsecond in so many: by how much clocks may disagree


class Sight(NamedTuple):
    """One quota in one answer. `sent` and `received` enclose the instant at which the server counted the request.

    `reset` is the time until units come back; None if the server did not say. `delayed` is True if the request had to
    wait for this quota.
    """

    units: int
    remaining: int | None
    period: int | None
    reset: int | None
    kind: str
    sent: int
    received: int
    delayed: bool = False


class Shape(NamedTuple):
    """All that is known of one quota. `told` is True if the server named its kind.

    `early` and `end` enclose the end of the window with the number `epoch`. Before the instant `since` the kind
    `before` is kept to as well: processes learn of a change one after the other.
    """

    kind: str
    units: int
    period: int
    early: int = 0
    end: int = 0
    epoch: int = 0
    told: bool = False
    not_window: bool = False
    not_bucket: bool = False
    before: str = ""
    since: int = 0


class Mirror(NamedTuple):
    """A limit that is asked for a quota, and the part of its key that is its own. `lasts` is the time in which this
    limit has no more than it shows, the rest of a window, or in which a log is kept to; else 0."""

    limit: Limit
    suffix: str
    lasts: int = 0


class Watch:
    """The observations of one process of a quota whose kind is not known yet."""

    __slots__ = ("first", "first_at", "last", "last_at", "refusals", "waits")

    def __init__(self) -> None:
        self.first = -1
        self.first_at = 0
        self.last = -1
        self.last_at = 0
        self.waits = 0  # requests that had to wait
        self.refusals = 0

    def see(self, sight: Sight) -> None:
        """Remember the remaining units of an answer."""
        if sight.remaining is None:
            return
        if self.first < 0:
            self.first, self.first_at = sight.remaining, sight.sent
        self.last, self.last_at = sight.remaining, sight.sent
        self.waits += sight.delayed


def first_shape(sight: Sight) -> Shape | None:
    """Return what the first answer shows of a quota; None if it does not say enough to keep to it."""
    count, period, reset = sight.units, sight.period, sight.reset
    if period is None:
        if reset is None or not 0 < reset <= MAX_LEARNED:
            return None
        if sight.kind == BUCKET:
            period = _refill(sight)
        else:
            period = max(reset + -reset % SECOND, SECOND)
    period = min(period, MAX_LEARNED)
    shape = Shape(SMOOTH, count, period, told=sight.kind in (WINDOW, BUCKET))
    if shape.told:
        shape = shape._replace(kind=sight.kind)
    elif sight.period is None:
        shape = shape._replace(kind=WINDOW)
    elif reset is None:
        shape = shape._replace(kind=LOG if count <= MOST_IN_LOG else BUCKET, told=True)
    elif period >= TELLING:
        shape = _told_by_reset(shape, sight, None)
    return _with_end(shape, sight) if shape.kind == WINDOW else shape


def _refill(sight: Sight) -> int:
    """Return the time in which a bucket is filled, if its reset is the time until it is full."""
    assert sight.reset is not None
    gone = sight.units - (sight.remaining or 0)
    found = sight.reset * sight.units // gone if gone > 0 else sight.reset
    for usual in (UNITS["second"], UNITS["minute"], UNITS["hour"], UNITS["day"]):
        if 0.8 * usual <= found <= 1.25 * usual:
            return usual
    return max(min(found, MAX_LEARNED), SECOND)


def next_shape(shape: Shape, sight: Sight, watch: Watch) -> Shape:
    """Return what is known after another answer. `watch` has what this process saw before it."""
    shape = at(shape, sight.received)
    if sight.units != shape.units or _other_period(shape, sight):
        fresh = first_shape(sight)
        if fresh is None:
            return shape
        if fresh.period == shape.period and fresh.kind == shape.kind:
            return shape._replace(units=fresh.units)
        return fresh._replace(epoch=shape.epoch + 1)
    if shape.kind == WINDOW:
        return _next_window(shape, sight, watch)
    if shape.told or shape.since > sight.received:
        return shape
    if shape.period >= TELLING:
        return _told_by_reset(shape, sight, watch)
    return _tried(shape, sight, watch)


def _other_period(shape: Shape, sight: Sight) -> bool:
    if sight.period is not None:
        return min(sight.period, MAX_LEARNED) != shape.period
    if shape.kind != WINDOW or sight.reset is None:
        return False
    return sight.reset > shape.period + 2 * SECOND  # the first answer came in the middle of a window


def _told_by_reset(shape: Shape, sight: Sight, watch: Watch | None) -> Shape:
    """Return the shape with the kind that the reset of a long period tells.

    A short reset is that of a bucket, or of a window that ends soon. A log suits both until that end has passed. From
    then on both have what a bucket has, so nobody has to wait for the log's whole period.
    """
    reset, remaining = sight.reset, sight.remaining
    if reset is None or remaining is None:
        return shape
    unit = -(-shape.period // shape.units)
    full = unit * (shape.units - remaining)
    if not (reset <= unit + 2 * SECOND or abs(reset - full) <= SECOND + shape.period // 100):
        shape = shape._replace(not_bucket=True)
    if reset > shape.period + SECOND:
        shape = shape._replace(not_window=True)
    if shape.not_bucket and shape.not_window:
        return _changed(shape, _of_any_kind(shape), sight, watch)
    if shape.not_bucket:
        return _with_end(_changed(shape, WINDOW, sight, watch), sight)
    if shape.kind == BUCKET or (watch and watch.first >= 0 and sight.sent - watch.first_at > unit + 2 * SECOND):
        return _changed(shape, BUCKET, sight, watch)
    if shape.units > MOST_IN_LOG:
        return shape._replace(kind=SMOOTH)
    return shape._replace(kind=BUCKET, before=LOG, since=sight.received + reset + SETTLING)


def _changed(shape: Shape, kind: str, sight: Sight, watch: Watch | None) -> Shape:
    """Return the shape with another kind; after the first answer, the kind before is kept to for a while."""
    if kind == shape.kind or watch is None:
        return shape._replace(kind=kind)
    return shape._replace(kind=kind, before=shape.kind, since=sight.received + SETTLING)


def _of_any_kind(shape: Shape) -> str:
    return LOG if shape.units <= FEW else SMOOTH


def _with_end(shape: Shape, sight: Sight) -> Shape:
    """Return a window that ends when this answer says."""
    if sight.reset is None:
        return shape._replace(early=sight.sent, end=sight.received + shape.period)
    reset = min(sight.reset, MAX_LEARNED)
    return shape._replace(early=sight.sent + max(reset - SECOND, 0), end=sight.received + reset)


def _next_window(shape: Shape, sight: Sight, watch: Watch) -> Shape:
    """Narrow the end of a window by one more answer."""
    if sight.reset is None or shape.period < TELLING or sight.sent < shape.end - shape.period:
        return shape
    early, end = sight.sent + max(sight.reset - SECOND, 0), sight.received + sight.reset
    if early <= shape.end and shape.early <= end:
        return shape._replace(early=max(shape.early, early), end=min(shape.end, end))
    jumped = sight.remaining is not None and sight.remaining > watch.last
    if not (shape.told or jumped or sight.period is None):
        shape = shape._replace(not_window=True)  # the end moved while the remaining units fell
        return _changed(shape, _of_any_kind(shape) if shape.not_bucket else BUCKET, sight, watch)
    moved = end > shape.end + shape.period // 2
    return shape._replace(early=early, end=end, epoch=shape.epoch + moved)


def _tried(shape: Shape, sight: Sight, watch: Watch) -> Shape:
    """Tell the kind of a short period by the remaining units of requests that are sent at a steady rate."""
    if sight.remaining is None or watch.first < 0 or shape.kind != SMOOTH:
        return shape
    since_last, since_first = sight.received - watch.last_at, sight.received - watch.first_at
    rise = sight.remaining - watch.last
    if not shape.not_window and rise >= max(2, shape.units // 4) and since_last < shape.period // 5:
        # The window ended between two answers.
        ahead = -(-SETTLING // shape.period) * shape.period
        found = shape._replace(kind=WINDOW, before=SMOOTH, early=watch.last_at + ahead, end=sight.received + ahead)
        return found._replace(since=found.end, epoch=shape.epoch + 1)
    if watch.waits < 3:
        return shape
    fell = watch.first - sight.remaining
    if not shape.not_bucket and fell >= max(2, shape.units // 4):
        return shape._replace(not_bucket=True)
    if not shape.not_bucket and since_first >= 2 * shape.period // 5 and 2 * sight.remaining >= shape.units:
        return shape._replace(kind=BUCKET, before=SMOOTH, since=sight.received + SETTLING)
    if shape.units <= FEW and since_first > 4 * shape.period:
        return shape._replace(kind=LOG, told=True, before=SMOOTH, since=sight.received + SETTLING)
    return shape


def refuted(shape: Shape, now: int) -> Shape:
    """Return the shape after the server refused requests that it should have accepted: its kind is not known."""
    if shape.told or shape.kind in (SMOOTH, LOG):
        return shape
    kind = _of_any_kind(shape)
    return shape._replace(kind=kind, not_window=True, not_bucket=True, before=shape.kind, since=now + SETTLING)


def at(shape: Shape, now: int) -> Shape:
    """Return the shape with the window that is the present one at `now`."""
    if shape.kind != WINDOW or (now < shape.end and now >= shape.since):
        return shape
    turns = (now - shape.end) // shape.period + 1
    ahead = turns * shape.period
    slack = abs(ahead) // DRIFT
    return shape._replace(early=shape.early + ahead - slack, end=shape.end + ahead + slack, epoch=shape.epoch + turns)


def mirrored(shape: Shape, now: int, name: str) -> list[Mirror]:
    """Return the limits to ask for a quota at `now`, nearly always one. `name` is for people."""
    if now < shape.since:
        kept = mirrored(shape._replace(kind=shape.before, since=0), now, name)
        if shape.before == LOG:
            kept = [kept[0]._replace(lasts=shape.since - now)]
        return [*kept, *mirrored(at(shape, now)._replace(since=0), now, name)]
    if shape.kind != WINDOW:
        return [Mirror(_limit_of(shape.kind, shape, name), shape.kind)]
    shape = at(shape, now)
    counter = _counter(shape, shape.units, name)
    found = [Mirror(counter, f"{WINDOW} {shape.epoch}", shape.end - now)]
    if now >= shape.early - min(LATE, shape.period // 20):
        found.append(Mirror(counter, f"{WINDOW} {shape.epoch + 1}", shape.end + shape.period - now))
    return found


def _counter(shape: Shape, count: int, name: str) -> Limit:
    """Return a limit that counts, and gives nothing back before its window is over."""
    return Limit(count, 2 * shape.period + 2 * SECOND, algorithm="sliding-counter", name=name)


def _limit_of(kind: str, shape: Shape, name: str) -> Limit:
    count, period = shape.units, shape.period
    if kind == LOG:
        return Limit(count, period + period // 50, algorithm="sliding-log", name=name, large=True)
    if kind == SMOOTH:
        burst = max(1, count // 100)
        return Limit(max(1, count - 2 * burst), period, burst, "gcra", name)
    if count < 3:
        period += period // 50
    return Limit(count, period, count - _kept_back(shape), "gcra", name)


def _kept_back(shape: Shape) -> int:
    """Return the units of a bucket's burst that are never used, so that late requests find room."""
    count = shape.units
    if count < 10:
        return 1 if count >= 3 else 0
    return min(count // 10, max(1, -(-LATE * count // shape.period)))


def correction(shape: Shape, sight: Sight, name: str) -> tuple[Mirror, int] | None:
    """Return the limit that must have nothing left if a quota is as far used as an answer says, and what may be left in
    the mirror then; None if the answer says nothing about the present.

    The limit shares its state with the mirror: both differ in count or burst only.
    """
    if sight.remaining is None:
        return None
    now = sight.received
    remaining = min(sight.remaining, shape.units)
    if shape.kind in (WINDOW, LOG):
        gone = shape.units - remaining
        if shape.kind == WINDOW:
            shape = at(shape, now)
            if sight.sent < shape.end - shape.period and shape.epoch:
                return None
            mirror = Mirror(_counter(shape, max(gone, 1), name), f"{WINDOW} {shape.epoch}")
        else:
            mirror = Mirror(_limit_of(LOG, shape._replace(units=max(gone, 1)), name), LOG)
        return (mirror, remaining) if gone else None
    limit = _limit_of(shape.kind, shape, name)
    left = remaining
    if shape.kind == BUCKET:
        back = (now - sight.sent) * shape.units // shape.period
        left = max(remaining - _kept_back(shape), 0) + back + 1
    if left >= limit.burst:
        return None
    used = Limit(limit.count, limit.period_us, limit.burst - left, "gcra", name)
    return Mirror(used, shape.kind), left


def checked_count(count: int | None) -> int | None:
    """Return a count that a limit can have; None if it is none."""
    return count if count is not None and 1 <= count <= MAX_COUNT else None
