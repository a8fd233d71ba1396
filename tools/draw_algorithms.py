"""Draw docs/pictures: one SVG for each algorithm, decided by the real kernels.

    python tools/draw_algorithms.py

Rates and the calendar quota show the same traffic; for the quota, seconds are stretched to months. Slots have their own
traffic, because it matters how long a request takes.

The output depends on the kernels alone, so a test can compare it with the committed pictures.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from drawing import cross, line, picture, text, write
from ratebound.calendar_period import local_time
from ratebound.cli.traffic import CYCLE, Event, bursty, busiest, play, standing_at, variants
from ratebound.clock import SECOND
from ratebound.kernels.group_law import evaluate
from ratebound.kernels.packing import unpacked
from ratebound.limit import Limit, Mode
from ratebound.notation import parse_limit

LIMIT = parse_limit("10/second burst 5")
UNTIL = CYCLE * LIMIT.period_us

WIDTH, HEIGHT = 760, 306
LEFT, RIGHT = 124, 740
ASKED, GOES, STATE, FLOOR = 96, 156, 184, 270  # base lines of the dots, top and base line of the state
QUOTA = parse_limit("10/calendar-month in Europe/Berlin")
JANUARY = 2023 * 12  # the ordinal of the first month that is drawn
SLOTS = parse_limit("3 concurrent for 1 second")
DOT = 3.0
ARM = 2.4

# (arrival, running time) in milliseconds. The process of the one without a running time dies 150 ms after its arrival.
WORK: tuple[tuple[int, int | None], ...] = (
    (200, 900), (350, 500), (500, 1600), (700, 300), (800, 300), (900, 300), (1050, 200), (1150, None),
    (1250, 400), (1400, 200), (1700, 300), (1800, 300), (2200, 500), (2250, 1200), (2300, 250), (2400, 200),
    (2600, 600), (2650, 300), (2750, 500), (2900, 300), (3300, 500), (3350, 300), (3500, 200), (3600, 150),
)  # fmt: skip
DIES_AFTER = 150_000


class Scene(NamedTuple):
    """The time that a picture shows: from `begin` to the last of `ticks`, which are marked by lines with labels.

    Requests within one `slice` are stacked.
    """

    begin: int
    ticks: Sequence[tuple[int, str]]
    slice: int
    unit: str

    @property
    def until(self) -> int:
        """The last instant."""
        return self.ticks[-1][0]

    def x(self, instant: int) -> float:
        """Return the position of an instant."""
        return round(LEFT + (RIGHT - LEFT) * (instant - self.begin) / (self.until - self.begin), 1)


SECONDS = Scene(0, [(i * SECOND, f"{i} s") for i in range(CYCLE + 1)], LIMIT.period_us // 24, "second")


def _months() -> Scene:
    calendar = QUOTA.calendar
    assert calendar is not None
    begins = [calendar.start_of(JANUARY + i) for i in range(CYCLE + 1)]
    labels = [f"1 {local_time(begin, calendar.zone):%b}" for begin in begins]
    return Scene(begins[0], list(zip(begins, labels, strict=True)), QUOTA.period_us // 24, "month")


MONTHS = _months()


class Gauge(NamedTuple):
    """The content of the state panel: two lines of label, a value from (remaining, reset_after), and a mark."""

    label: tuple[str, str]
    value: Callable[[Limit, int, int], float]
    mark: Callable[[Limit], float]
    mark_label: str


def _used(limit: Limit, remaining: int, reset_after: int) -> float:
    return limit.burst - remaining


GAUGES = {
    "fixed-window": Gauge(("used in", "this window"), _used, lambda limit: limit.count, "count 10"),
    "sliding-log": Gauge(("used in the", "last second"), _used, lambda limit: limit.count, "count 10"),
    "sliding-counter": Gauge(("estimate of the", "last second"), _used, lambda limit: limit.count, "count 10"),
    "token-bucket": Gauge(
        ("tokens in", "the bucket"), lambda limit, remaining, _: remaining, lambda limit: limit.burst, "burst 5"
    ),
    "gcra": Gauge(
        ("arrival time", "ahead of now"),
        lambda limit, _, reset_after: reset_after,
        lambda limit: limit.refill_us,
        "burst 5 = 500 ms",
    ),
    "leaky-bucket": Gauge(("places taken", "in the queue"), _used, lambda limit: limit.burst, "burst 5"),
    "calendar": Gauge(("used in", "this month"), _used, lambda limit: limit.count, "count 10"),
    "concurrent": Gauge(("slots", "held"), _used, lambda limit: limit.count, "count 3"),
}


def draw_pictures() -> dict[str, str]:
    """Return the SVG text of every picture by file name."""
    arrivals = bursty(LIMIT, UNTIL)
    pictures = {
        f"{algorithm}.svg": draw(limit, play(limit, arrivals), SECONDS) for algorithm, limit in variants(LIMIT).items()
    }
    pictures["calendar.svg"] = draw(QUOTA, play(QUOTA, [_in_months(arrives) for arrives in arrivals]), MONTHS)
    pictures["concurrent.svg"] = draw_slots()
    return pictures


def _in_months(arrives: int) -> int:
    """Return the instant that is as far in its month as `arrives` is in its second."""
    month, rest = divmod(arrives, SECOND)
    begin, end = MONTHS.ticks[month][0], MONTHS.ticks[month + 1][0]
    return begin + (end - begin) * rest // SECOND


def draw(limit: Limit, events: Sequence[Event], scene: Scene) -> str:
    """Return one picture as SVG text."""
    goes = [event.goes for event in events if event.allowed]
    most, _ = busiest(goes, limit.period_us)
    delay = max(event.goes - event.arrives for event in events)
    told = f"{len(goes)} of {len(events)} admitted, at most {most} in any {scene.unit}"
    if delay:
        told += f", up to {delay // 1000} ms late"
    marks = [*_asked(events, scene), text(16, GOES, "goes ahead"), *_dots(goes, GOES, scene)]
    return _drawn(limit, events, scene, told, marks)


def _drawn(limit: Limit, events: Sequence[Event], scene: Scene, told: str, marks: Sequence[str]) -> str:
    """Return a picture of these marks, with its frame, its legend and its state."""
    numbers = str(limit).removesuffix(f" {limit.algorithm}")
    gauge = GAUGES[limit.algorithm]
    parts = [
        text(16, 26, limit.algorithm, more=' font-size="15" font-weight="bold"'),
        text(RIGHT, 26, f"{numbers}: {told}", "end"),
        *_clock(scene),
        text(16, ASKED, "asked"),
        *marks,
        text(16, (STATE + FLOOR) // 2 - 2, gauge.label[0]),
        text(16, (STATE + FLOOR) // 2 + 13, gauge.label[1]),
        *_state(limit, events, gauge, scene),
    ]
    return picture(WIDTH, HEIGHT, f"{limit.algorithm}, {numbers}: {told}", parts)


class Held(NamedTuple):
    """A slot: taken, given back or expired, and the instant at which its process died, if it did."""

    begin: int
    end: int
    died: int | None


def draw_slots() -> str:
    """Return the picture of slots as SVG text."""
    events, held = play_slots()
    admitted = [event for event in events if event.allowed and event.goes >= 0]
    asked = [event for event in events if event.goes >= 0]
    told = f"{len(admitted)} of {len(asked)} admitted, never more than {SLOTS.count} at once"
    marks = [*_asked(asked, SECONDS), text(16, GOES, "running"), *_bars(held)]
    return _drawn(SLOTS, events, SECONDS, told, marks)


def play_slots() -> tuple[list[Event], list[Held]]:
    """Play WORK on the kernel: take a slot, renew it every third of its lease, release it. Return what happened.

    An event that is no request goes ahead at -1.
    """
    steps: list[tuple[int, str, int]] = [(arrives * 1000, "take", i) for i, (arrives, _) in enumerate(WORK)]
    states = [unpacked(SLOTS.numbers, None)]
    events: list[Event] = []
    held: list[Held] = []
    while steps:
        steps.sort()
        now, step, slot = steps.pop(0)
        mode: Mode = "force" if step == "release" else "spend"
        ask = ("picture", (SLOTS,), -1 if step == "release" else 1, None, [(slot, 0, 0, 0)])
        allowed = evaluate([ask], mode, [0], states, now)[0][0]
        events.append(Event(now, allowed, now if step == "take" else -1, states[0].copy()))
        if step != "take" or not allowed:
            continue
        lasts = WORK[slot][1]
        if lasts is None:
            held.append(Held(now, now + SLOTS.period_us, now + DIES_AFTER))
            continue
        end = now + lasts * 1000
        held.append(Held(now, end, None))
        steps += [(renewal, "renew", slot) for renewal in range(now, end, SLOTS.period_us // 3)][1:]
        steps.append((end, "release", slot))
    return events, held


def _bars(held: Sequence[Held]) -> list[str]:
    """Return a bar for each slot, in the first lane that is free."""
    lanes = [0] * SLOTS.count
    parts = []
    for begin, end, died in held:
        lane = next(lane for lane, free in enumerate(lanes) if free <= begin)
        lanes[lane] = end
        y = GOES - 10 - 13 * lane
        x, right = SECONDS.x(begin), SECONDS.x(end if died is None else died)
        parts.append(_bar(x, y, right, 'class="green" fill-opacity="0.75"'))
        if died is not None:
            parts.append(_bar(right, y, SECONDS.x(end), 'class="red-line" fill="none" stroke-dasharray="3 2"'))
            parts.append(text(right + 6, y + 9, "process died"))
    return parts


def _bar(x: float, y: float, right: float, style: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{right - x:.1f}" height="10" rx="2" {style}/>'


def _clock(scene: Scene) -> list[str]:
    """Return the lines at which windows of the clock begin, the base lines and the legend."""
    parts = []
    for instant, label in scene.ticks:
        x = scene.x(instant)
        parts.append(line(f"M{x} 44V{FLOOR + 4}", more=' stroke-width=".8" stroke-dasharray="2 3"'))
        parts.append(text(x, FLOOR + 20, label, "middle"))
    for y in (ASKED + 4, GOES + 4, FLOOR):
        parts.append(line(f"M{LEFT} {y}H{RIGHT}"))
    parts.append(_dot(LEFT + 6, 52))
    parts.append(text(LEFT + 14, 56, "admitted"))
    parts.append(cross(LEFT + 78, 52, ARM))
    parts.append(text(LEFT + 86, 56, "denied"))
    return parts


def _asked(events: Sequence[Event], scene: Scene) -> list[str]:
    parts = []
    for (x, y), event in zip(_places([event.arrives for event in events], ASKED, scene), events, strict=True):
        parts.append(_dot(x, y) if event.allowed else cross(x, y, ARM))
    return parts


def _dots(instants: Sequence[int], base: int, scene: Scene) -> list[str]:
    return [_dot(x, y) for x, y in _places(instants, base, scene)]


def _places(instants: Sequence[int], base: int, scene: Scene) -> list[tuple[float, float]]:
    """Return a position for the mark of each instant; marks that would overlap are stacked."""
    stacks: dict[int, int] = {}
    places = []
    for instant in instants:
        place = (instant - scene.begin) // scene.slice
        stacks[place] = stacks.get(place, 0) + 1
        middle = scene.begin + place * scene.slice + scene.slice // 2
        places.append((scene.x(middle), base + DOT - 2 * DOT * stacks[place] + DOT))
    return places


def _state(limit: Limit, events: Sequence[Event], gauge: Gauge, scene: Scene) -> list[str]:
    """Return the state over time as an area, and the mark that it may not pass."""
    arrivals = {event.arrives for event in events}
    regular = range(scene.begin, scene.until + 1, limit.period_us // 100)
    instants = sorted({*regular, *arrivals, *(arrives - 1 for arrives in arrivals)})
    full = gauge.mark(limit)
    scale = (FLOOR - STATE - 14) / full
    points = []
    for instant in instants:
        value = gauge.value(limit, *standing_at(limit, events, instant))
        points.append((scene.x(instant), round(FLOOR - value * scale, 1)))
    path = f"M{points[0][0]} {FLOOR}V{points[0][1]}"
    for (_, before), (x, y) in pairwise(points):
        path += f"H{x}V{y}" if y != before else ""
    y = FLOOR - full * scale
    return [
        f'<path d="{path}H{RIGHT}V{FLOOR}Z" class="blue blue-line" fill-opacity="0.2" stroke-width="1.2"/>',
        line(f"M{LEFT} {y:.1f}H{RIGHT}", "ink-line", ' stroke-dasharray="5 3"'),
        text(LEFT + 4, y - 4, gauge.mark_label),
    ]


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{DOT:g}" class="green"/>'


if __name__ == "__main__":
    write(draw_pictures())
