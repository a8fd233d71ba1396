"""Learned limits: what the answers of a server show about one of its quotas. Arithmetic only: no I/O and no clock.

A `Sight` is one quota in one answer. A `Shape` is what is known of the quota, and `mirrored` makes of it the limits to
ask before the next request. Times are microseconds of the storage's clock, which all processes share.

A server counts a request when it arrives, which is later than we count it and not always in the same order. So each
kind of quota has a mirror that forgives requests that arrive late:

- "window": all units come back at one instant. Each window has a counter of its own. Its end is known to lie between
  `early` and `end`: each answer narrows that, because resets are rounded up to whole seconds. A request that is sent
  near the end may be counted in either window, so both are charged with it.
- "bucket": units come back steadily. The mirror is a bucket of the same rate with a little less burst.
- "log": at most `count` in any stretch of time. The mirror is a sliding log that is 2 % longer, and at least by the
  time by which requests may be late.
- "smooth": not known, or two weighted windows. The mirrors are a bucket with hardly any burst and a log: that is
  accepted by servers of every kind. Meanwhile the remaining units show the kind: they fall and jump back for a window,
  stay where they are for a bucket, and are used up for a log.

A server may say the kind. Otherwise a reset that is longer than one unit needs to come back rules out a bucket, and an
end that moves ahead rules out a window. A reset that is longer than the period is that of two weighted windows. If the
server has much less left than a mirror, its kind was wrong.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from ratebound.clock import SECOND
from ratebound.limit import MAX_COUNT, UNITS, Algorithm, Limit

WINDOW: Final = "window"
BUCKET: Final = "bucket"
LOG: Final = "log"
SMOOTH: Final = "smooth"

MAX_LEARNED: Final = UNITS["year"]  # the longest period and reset that is believed
TELLING: Final = 3 * SECOND  # resets are whole seconds: those of shorter periods say nothing about the kind
LATE: Final = SECOND // 20  # a request may arrive so much later than others: this many microseconds
MOST_IN_LOG: Final = 1_000  # each unit of a log is stored
FEWEST: Final = 3  # units of a bucket that are enough to see how fast they come back
TUNING: Final = SECOND // 4  # the shortest time between two changes of the time in which a bucket fills up
MOST_FASTER: Final = 100  # how many times faster than its rounded period a bucket may fill up
FEW: Final = 100  # servers count few units in a log, and more in two windows
SETTLING: Final = 3 * SECOND // 5  # until all processes know a new shape, and have used the places that they took
LONGER: Final = 2 * SECOND  # a window may end so much later than a period from now: periods and resets are rounded
DRIFT: Final = 100_000  # one microsecond in so many: by how much clocks may disagree


class Sight(NamedTuple):
    """One quota in one answer. `sent` and `received` enclose the instant at which the server counted the request.

    `reset` is the time until units come back; None if the server did not say. `delayed` is True if the request had to
    wait. `unspent` is what the mirror, or while the kind is not known a log, had left when the request was sent; None
    if none was asked.
    """

    units: int
    remaining: int | None
    period: int | None
    reset: int | None
    kind: str
    sent: int
    received: int
    delayed: bool = False
    unspent: int | None = None


class Shape(NamedTuple):
    """All that is known of one quota. `told` is True if its kind is settled: the server named it, or refuted others.

    `early` and `end` enclose the end of the window with the number `epoch`. Before the instant `since` the kind
    `before` is kept to as well: processes learn of a change one after the other. `low` and `high` are the remaining
    units that were seen since the instant `watched`, while requests were sent at a steady rate.

    Servers round periods up to whole seconds. `fill` is the time in which a bucket was found to fill up, 0 if that is
    the period; it was changed at the instant `tuned`, by `step` percent.
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
    watched: int = 0
    low: int = 0
    high: int = 0
    fill: int = 0
    tuned: int = 0
    step: int = 16

    @property
    def refill(self) -> int:
        """The time in which all units come back, as far as it is known."""
        return self.fill or self.period


class Mirror(NamedTuple):
    """A limit that is asked for a quota, and the part of its key that is its own. `lasts` is the time in which this
    limit has no more than it shows, the rest of a window, or in which a log is kept to; else 0."""

    limit: Limit
    suffix: str
    lasts: int = 0


class Watch:
    """The last answer that this process saw of a quota, and the refusals."""

    __slots__ = ("first_at", "last", "last_at", "refusals")

    def __init__(self) -> None:
        self.first_at = 0
        self.last = -1
        self.last_at = 0
        self.refusals = 0

    def see(self, sight: Sight) -> None:
        """Remember the remaining units of an answer."""
        if sight.remaining is None:
            return
        self.first_at = self.first_at or sight.sent
        self.last, self.last_at = sight.remaining, sight.sent


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
    elif _is_weighted(shape, sight):
        shape = shape._replace(told=True)
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
    if _is_weighted(shape, sight):
        return _changed(shape, SMOOTH, sight, watch)._replace(told=True)
    if shape.kind == WINDOW:
        return _next_window(shape, sight, watch)
    if shape.told or shape.since > sight.received:
        return shape
    if shape.kind == BUCKET and sight.unspent is not None:
        shape = _tuned(shape, sight)
    if shape.period >= TELLING:
        return _told_by_reset(shape, sight, watch)
    return _tried(shape, sight, watch)


def _is_weighted(shape: Shape, sight: Sight) -> bool:
    """Return True if units come back later than a period from now: the server counts in two weighted windows.

    Resets are rounded up to whole seconds, and periods too. Of long periods one second more is forgiven.
    """
    slack = SECOND if shape.period >= TELLING else 0
    return not shape.told and sight.period is not None and (sight.reset or 0) > shape.period + slack


def _other_period(shape: Shape, sight: Sight) -> bool:
    if sight.period is not None:
        return min(sight.period, MAX_LEARNED) != shape.period
    if shape.kind != WINDOW or sight.reset is None:
        return False
    return sight.reset > shape.period + LONGER  # the first answer came in the middle of a window


def _told_by_reset(shape: Shape, sight: Sight, watch: Watch | None) -> Shape:
    """Return the shape with the kind that the reset of a long period tells.

    A short reset comes from a bucket, or from a window that ends soon. A log suits both until that end has passed. From
    then on both have what a bucket has, so nobody has to wait for the log's whole period.
    """
    reset, remaining = sight.reset, sight.remaining
    if reset is None or remaining is None:
        return shape
    unit = -(-shape.period // shape.units)
    full = unit * (shape.units - remaining)
    if not (reset <= unit + 2 * SECOND or abs(reset - full) <= SECOND + shape.period // 100):
        shape = shape._replace(not_bucket=True)
    if shape.not_bucket and shape.not_window:
        return _changed(shape, _of_any_kind(shape), sight, watch)
    if shape.not_bucket and (shape.kind == WINDOW or reset <= shape.period - SECOND):
        return _with_end(_changed(shape, WINDOW, sight, watch), sight)
    if shape.not_bucket:  # a window that has just begun, which is rare, or a log
        return _changed(shape, _of_any_kind(shape), sight, watch)
    if shape.kind == BUCKET or (watch and watch.first_at and sight.sent - watch.first_at > unit + 2 * SECOND):
        return _changed(shape, BUCKET, sight, watch)
    if shape.units > MOST_IN_LOG:
        return shape._replace(kind=SMOOTH)
    return shape._replace(kind=BUCKET, before=LOG, since=sight.received + reset + SETTLING)


def _tuned(shape: Shape, sight: Sight) -> Shape:
    """Return a bucket that fills up faster if the server's is full when the mirror has nothing left, and slower if the
    server's is half empty.

    Nothing is lost while the server's is not full. The other half lasts until an answer shows the effect of a step.
    """
    fill, count = shape.refill, shape.units
    if sight.remaining is None or count < FEWEST or sight.sent < shape.tuned + max(fill // 2, TUNING):
        return shape
    if sight.remaining >= count - max(1, count // 10) and not sight.unspent:
        least = max(shape.period - SECOND, shape.period // MOST_FASTER)
        found = max(fill - fill * shape.step // 100, least)
        return shape._replace(fill=found, tuned=sight.received) if found < fill else shape
    if 2 * sight.remaining < count and shape.fill:
        return slower(shape, sight.received)
    return shape


def slower(shape: Shape, now: int) -> Shape:
    """Return a bucket that was found to fill up more slowly than it was taken to."""
    found = min(shape.fill + shape.fill * shape.step // 100, shape.period)
    return shape._replace(fill=found, tuned=now, step=max(shape.step // 2, 2))


def as_told(shape: Shape, now: int) -> Shape:
    """Return a bucket that fills up as slowly as the server says: it has refused a request although it told of units
    that are left. The next steps are smaller, and after a few such refusals there are none."""
    return shape._replace(fill=0, tuned=now, step=shape.step // 2)


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
    reset = min(sight.reset, shape.period + LONGER)
    return shape._replace(early=sight.sent + max(reset - SECOND, 0), end=sight.received + reset)


def _next_window(shape: Shape, sight: Sight, watch: Watch) -> Shape:
    """Narrow the end of a window by one more answer."""
    if shape.period < TELLING:
        has_more = sight.unspent is not None and (sight.remaining or 0) >= sight.unspent + max(2, 3 * shape.units // 4)
        if shape.told or not has_more or not shape.end - shape.period <= sight.sent < sight.received < shape.early:
            return shape
        return _changed(shape._replace(not_window=True, watched=0), SMOOTH, sight, watch)  # units came back meanwhile
    if sight.reset is None or sight.sent < shape.end - shape.period:
        return shape
    reset = min(sight.reset, shape.period + LONGER)
    early, end = sight.sent + max(reset - SECOND, 0), sight.received + reset
    if early <= shape.end and shape.early <= end:
        return shape._replace(early=max(shape.early, early), end=min(shape.end, end))
    if not (shape.told or sight.period is None):
        shape = shape._replace(not_window=True)
        return _changed(shape, _of_any_kind(shape) if shape.not_bucket else BUCKET, sight, watch)
    moved = end > shape.end + shape.period // 2
    return shape._replace(early=early, end=end, epoch=shape.epoch + moved)


def _tried(shape: Shape, sight: Sight, watch: Watch) -> Shape:
    """Tell the kind of a short period by the remaining units of requests that are sent at a steady rate.

    All processes together see enough of them; one of many sees a few only. The first period does not count: in it the
    rate is not steady yet.
    """
    if sight.remaining is None or watch.last < 0 or shape.kind != SMOOTH:
        return shape
    period = shape.period
    since_last = sight.received - watch.last_at
    rise = sight.remaining - watch.last
    full = shape.units - 2 - shape.units * since_last // period  # at least, after the end of a window
    many = max(2, shape.units // 4)
    if (
        not shape.not_window
        and 0 < shape.watched <= watch.last_at
        and rise >= many
        and sight.remaining >= max(full, (sight.unspent or 0) + many)
        and since_last < period // 2
    ):  # the window ended between the two answers
        ahead = -(-SETTLING // period) * period
        found = shape._replace(kind=WINDOW, before=SMOOTH, early=watch.last_at + ahead, end=sight.received + ahead)
        return found._replace(since=found.end, epoch=shape.epoch + 1)
    if not sight.delayed or shape.not_bucket:
        return shape
    if not shape.watched:
        return shape._replace(watched=sight.received + period, low=shape.units, high=0)
    if sight.sent < shape.watched:
        return shape
    shape = shape._replace(low=min(shape.low, sight.remaining), high=max(shape.high, sight.remaining))
    if shape.high - shape.low > shape.units // 5:
        return shape._replace(not_bucket=True)
    if sight.received - shape.watched >= 3 * period // 2:
        if 2 * shape.low < shape.units:  # a log that is used up, or a bucket that fills up slowly
            return shape._replace(watched=0)
        return shape._replace(kind=BUCKET, before=SMOOTH, since=sight.received + SETTLING)
    return shape


def joined(shape: Shape, other: Shape) -> Shape:
    """Return a shape with the remaining units that another process saw, too."""
    if not (shape.watched and shape.watched == other.watched):
        return shape
    return shape._replace(low=min(shape.low, other.low), high=max(shape.high, other.high))


def refuted(shape: Shape, now: int) -> Shape:
    """Return the shape after the server had less left than its kind allows: it is of another kind."""
    if shape.told:
        return shape
    if shape.kind == SMOOTH:
        return shape._replace(told=True)
    if shape.kind == BUCKET and 0 < shape.fill < shape.period:
        return slower(shape._replace(step=max(shape.step, 10)), now)
    kind = LOG if shape.kind == WINDOW and shape.period >= TELLING and shape.units <= FEW else SMOOTH
    shape = shape._replace(not_window=True, not_bucket=True, before=shape.kind, since=now + SETTLING)
    return shape._replace(kind=kind, told=kind == SMOOTH)


def surprise(shape: Shape) -> int:
    """Return the units that must be missing at once to show that a quota is of another kind than it was taken for."""
    return max(3, shape.units // 4)


def at(shape: Shape, now: int) -> Shape:
    """Return the shape with the window that is the present one at `now`.

    A window that ends much later than a period from now was seen before the clock stepped back. Its number may become
    negative then.
    """
    earliest = max(shape.since, shape.end - shape.period - 2 * LONGER)
    if shape.kind != WINDOW or earliest <= now < shape.end:
        return shape
    turns = (now - shape.end) // shape.period + 1
    ahead = turns * shape.period
    slack = abs(ahead) // DRIFT
    return shape._replace(early=shape.early + ahead - slack, end=shape.end + ahead + slack, epoch=shape.epoch + turns)


def mirrored(shape: Shape, now: int, name: str) -> list[Mirror]:
    """Return the limits to ask for a quota at `now`, nearly always one. `name` is for people."""
    if now < shape.since:
        kept = mirrored(shape._replace(kind=shape.before, since=0), now, name)
        kept = [each._replace(lasts=shape.since - now) if each.suffix == LOG else each for each in kept]
        new = mirrored(at(shape, now)._replace(since=0), now, name)
        return [*(each for each in kept if each.suffix not in {other.suffix for other in new}), *new]
    if shape.kind != WINDOW:
        kinds = (SMOOTH, LOG) if shape.kind == SMOOTH and shape.units <= MOST_IN_LOG else (shape.kind,)
        return [Mirror(_limit_of(kind, shape, name), kind) for kind in kinds]
    shape = at(shape, now)
    counter = _counter(shape, shape.units, name)
    found = [Mirror(counter, f"{WINDOW} {shape.epoch}", shape.end - now)]
    if now >= shape.early - min(LATE, shape.period // 20):
        found.append(Mirror(counter, f"{WINDOW} {shape.epoch + 1}", shape.end + shape.period - now))
    return found


def _counter(shape: Shape, count: int, name: str) -> Limit:
    """Return a limit that counts, and gives nothing back before its window is over."""
    return _kept(count, 2 * shape.period + 2 * SECOND, 0, "sliding-counter", name)


def _limit_of(kind: str, shape: Shape, name: str) -> Limit:
    count, period = shape.units, shape.period
    if kind == LOG:
        return _kept(count, period + max(period // 50, LATE), 0, "sliding-log", name)
    if kind == SMOOTH:
        if shape.told or count > MOST_IN_LOG:
            return _kept(max(1, count - 1 - count // 100), period, max(1, count // 100), "gcra", name)
        burst = 2 + count // 50 if count >= 10 else 1
        return _kept(count, period + period // 100, burst, "gcra", name)  # the log is kept, too
    if count < 3:
        period += period // 50
    # The period is part of the name of a state, and stays as it is.
    rate = min(count * shape.period // shape.refill, MAX_COUNT)
    return _kept(rate, period, count - _kept_back(shape), "gcra", name)


@lru_cache(maxsize=1024)  # to make a limit takes longer than to ask a storage in memory for it
def _kept(count: int, period: int, burst: int, algorithm: Algorithm, name: str) -> Limit:
    """Return a limit that is kept for the next turn."""
    return Limit(count, period, burst, algorithm, name, large=algorithm == "sliding-log")


def _kept_back(shape: Shape) -> int:
    """Return the units of a bucket's burst that are never used, so that late requests find room."""
    count = shape.units
    if count < 10:
        return 1 if count >= 3 else 0
    return min(count // 10, max(1, -(-LATE * count // shape.refill)))


def corrections(shape: Shape, sight: Sight, name: str) -> list[tuple[Mirror, int]]:
    """Return the limits that must have nothing left if a quota is as far used as an answer says, each with what may be
    left in its mirror then; nothing if the answer says nothing about the present.

    Such a limit shares its state with a mirror: both differ in count or burst only.
    """
    if sight.remaining is None:
        return []
    now = sight.received
    remaining = min(sight.remaining, shape.units)
    gone = shape.units - remaining
    if shape.kind == WINDOW:
        shape = at(shape, now)
        if not gone or (sight.sent < shape.end - shape.period and shape.epoch):
            return []
        return [(Mirror(_counter(shape, gone, name), f"{WINDOW} {shape.epoch}"), remaining)]
    mirror = mirrored(shape._replace(since=0), now, name)[-1]  # of a steady rate it is the log
    limit, kind = mirror.limit, mirror.suffix
    if kind == LOG:
        return [(Mirror(_limit_of(LOG, shape._replace(units=gone), name), LOG), remaining)] if gone else []
    back = (now - sight.sent) * shape.units // shape.refill
    left = max(remaining - _kept_back(shape), 0) + back + 1 if kind == BUCKET else remaining
    if left >= limit.burst:
        return []
    return [(Mirror(_kept(limit.count, limit.period_us, limit.burst - left, "gcra", name), kind), left + back)]


def checked_count(count: int | None) -> int | None:
    """Return a count that a limit can have; None if it is none."""
    return count if count is not None and 1 <= count <= MAX_COUNT else None
