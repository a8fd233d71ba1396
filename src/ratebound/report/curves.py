"""A picture of curves, as SVG: percentiles of latencies, with the share of answers from left to right.

The horizontal axis stretches the end: 50 %, 90 %, 99 %, 99.9 % are equally far apart, because the slow answers matter.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from ratebound.report.pictures import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, nice_ceiling, picture_head, vertical_axis

STEPS = 120
MARKS = ((0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
STYLES = ("first", "second")


class PercentileCurve(NamedTuple):
    """One curve. `value` returns what a share of the answers does not exceed, and `size` is how many there are."""

    name: str
    size: int
    value: Callable[[float], float]


def percentile_curves(
    picture: str, title: str, description: str, curves: Sequence[PercentileCurve], label: Callable[[float], str]
) -> str:
    """Return a picture of one or two curves. `label` writes a value of the vertical axis.

    A curve ends where it has no more answers: with 100 of them, at 99 %.
    """
    inner, floor = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
    most = max((curve.size for curve in curves), default=0)
    shares = [share for share, _ in MARKS if share <= 1 - 1 / max(most, 2)]
    end = max(_decades(1 - 1 / max(most, 2)), 1.0)
    top = max((curve.value(1.0) for curve in curves), default=0.0) or 1.0
    scale = 10 ** math.floor(math.log10(top))
    top = nice_ceiling(top / scale * 10) / 10 * scale
    parts = [picture_head(picture, title, description), *vertical_axis(top, label)]
    names = dict(MARKS)
    for share in shares:
        x = LEFT + inner * _decades(share) / end
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>')
        anchor = "middle" if share else "start"
        parts.append(f'<text class="axis {anchor}" x="{x:.1f}" y="{HEIGHT - 7}">{names[share]}</text>')
    for curve, style in zip(curves, STYLES, strict=False):
        last = _decades(1 - 1 / max(curve.size, 2))
        points = []
        for step in range(STEPS + 1):
            place = last * step / STEPS
            y = floor - (floor - TOP) * curve.value(1 - 10**-place) / top
            points.append(f"{LEFT + inner * place / end:.1f},{y:.1f}")
        parts.append(f'<polyline class="curve {style}" points="{" ".join(points)}"><title>{escape(curve.name)}</title>')
        parts.append("</polyline>")
    return "".join([*parts, "</svg>"])


def _decades(share: float) -> float:
    """Return how many nines a share has: 0.9 has one and 0.99 two."""
    return -math.log10(max(1 - share, 1e-12))
