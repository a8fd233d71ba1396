"""Draw docs/pictures: one SVG for each algorithm, with the same traffic, decided by the real kernels.

    python tools/draw_algorithms.py

The output depends on the kernels alone, so a test can compare it with the committed pictures.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ratebound.cli.traffic import CYCLE, Event, bursty, busiest, play, standing_at, variants
from ratebound.clock import SECOND
from ratebound.limit import Limit
from ratebound.notation import parse_limit

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
LIMIT = parse_limit("10/second burst 5")
UNTIL = CYCLE * LIMIT.period_us

WIDTH, HEIGHT = 760, 306
LEFT, RIGHT = 124, 740
ASKED, GOES, STATE, FLOOR = 96, 156, 184, 270  # base lines of the dots, top and base line of the state
SLICE = LIMIT.period_us // 24  # requests within it are stacked
DOT = 3.0
GREEN, RED, BLUE, INK, FAINT = "#1a7f37", "#cf222e", "#0969da", "#24292f", "#8c959f"


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
}


def draw_pictures() -> dict[str, str]:
    """Return the SVG text of every picture by file name."""
    arrivals = bursty(LIMIT, UNTIL)
    return {f"{algorithm}.svg": draw(limit, play(limit, arrivals)) for algorithm, limit in variants(LIMIT).items()}


def draw(limit: Limit, events: Sequence[Event]) -> str:
    """Return one picture as SVG text."""
    goes = [event.goes for event in events if event.allowed]
    most, _ = busiest(goes, limit.period_us)
    delay = max(event.goes - event.arrives for event in events)
    told = f"{len(goes)} of {len(events)} admitted, at most {most} in any second"
    if delay:
        told += f", up to {delay // 1000} ms late"
    numbers = str(limit).removesuffix(f" {limit.algorithm}")
    gauge = GAUGES[limit.algorithm]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{limit.algorithm}, {numbers}: {told}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="16" y="26" font-size="15" font-weight="bold" fill="{INK}">{limit.algorithm}</text>',
        _text(RIGHT, 26, f"{numbers}: {told}", "end"),
        *_clock(limit),
        _text(16, ASKED, "asked"),
        *_asked(events),
        _text(16, GOES, "goes ahead"),
        *_dots(goes, GOES),
        _text(16, (STATE + FLOOR) // 2 - 2, gauge.label[0]),
        _text(16, (STATE + FLOOR) // 2 + 13, gauge.label[1]),
        *_state(limit, events, gauge),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _clock(limit: Limit) -> list[str]:
    """Return the lines at which windows of the clock begin, the base lines and the legend."""
    parts = []
    for instant in range(0, UNTIL + 1, limit.period_us):
        x = _x(instant)
        parts.append(f'<path d="M{x} 44V{FLOOR + 4}" stroke="{FAINT}" stroke-width="0.8" stroke-dasharray="2 3"/>')
        parts.append(_text(x, FLOOR + 20, f"{instant // SECOND} s", "middle"))
    for y in (ASKED + 4, GOES + 4, FLOOR):
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{FAINT}" stroke-width="0.8"/>')
    parts.append(f'<circle cx="{LEFT + 6}" cy="52" r="{DOT}" fill="{GREEN}"/>')
    parts.append(_text(LEFT + 14, 56, "admitted"))
    parts.append(_cross(LEFT + 78, 52))
    parts.append(_text(LEFT + 86, 56, "denied"))
    return parts


def _asked(events: Sequence[Event]) -> list[str]:
    parts = []
    for (x, y), event in zip(_places([event.arrives for event in events], ASKED), events, strict=True):
        parts.append(_dot(x, y) if event.allowed else _cross(x, y))
    return parts


def _dots(instants: Sequence[int], base: int) -> list[str]:
    return [_dot(x, y) for x, y in _places(instants, base)]


def _places(instants: Sequence[int], base: int) -> list[tuple[float, float]]:
    """Return a position for the mark of each instant; marks that would overlap are stacked."""
    stacks: dict[int, int] = {}
    places = []
    for instant in instants:
        slot = instant // SLICE
        stacks[slot] = stacks.get(slot, 0) + 1
        places.append((_x(slot * SLICE + SLICE // 2), base + DOT - 2 * DOT * stacks[slot] + DOT))
    return places


def _state(limit: Limit, events: Sequence[Event], gauge: Gauge) -> list[str]:
    """Return the state over time as an area, and the mark that it may not pass."""
    arrivals = {event.arrives for event in events}
    instants = sorted({*range(0, UNTIL + 1, limit.period_us // 100), *arrivals, *(arrives - 1 for arrives in arrivals)})
    full = gauge.mark(limit)
    scale = (FLOOR - STATE - 14) / full
    points = []
    for instant in instants:
        value = gauge.value(limit, *standing_at(limit, events, instant))
        points.append((_x(instant), round(FLOOR - value * scale, 1)))
    path = f"M{points[0][0]} {FLOOR}V{points[0][1]}"
    for (_, before), (x, y) in pairwise(points):
        path += f"H{x}V{y}" if y != before else ""
    y = FLOOR - full * scale
    return [
        f'<path d="{path}H{RIGHT}V{FLOOR}Z" fill="{BLUE}" fill-opacity="0.2" stroke="{BLUE}" stroke-width="1.2"/>',
        f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{INK}" stroke-dasharray="5 3"/>',
        _text(LEFT + 4, y - 4, gauge.mark_label),
    ]


def _x(instant: int) -> float:
    return round(LEFT + (RIGHT - LEFT) * instant / UNTIL, 1)


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x}" cy="{y:.1f}" r="{DOT}" fill="{GREEN}"/>'


def _cross(x: float, y: float) -> str:
    arm = DOT - 0.6
    path = f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm:.1f} {2 * arm:.1f}m0 {-2 * arm:.1f}l{-2 * arm:.1f} {2 * arm:.1f}"
    return f'<path d="{path}" stroke="{RED}" stroke-width="1.5" fill="none"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{words}</text>'


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, svg in draw_pictures().items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
        print(PICTURES / name)
