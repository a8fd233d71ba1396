"""The pictures of a report: bars as SVG that stands in an HTML page and takes its colours from the page's styles.

Every picture has a title and a description for people who cannot see it. The upper part of a bar is hatched, so that
colour is never the only sign.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 6, 14, 26
NICE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
LABELS = 16  # at most so many texts below a picture
MAGNITUDES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k"))


class StackedBar(NamedTuple):
    """A bar of two parts. `name` stands below it, and `words` are told about it."""

    name: str
    lower: int
    upper: int
    words: str


def stacked_bars(
    picture: str,
    title: str,
    description: str,
    bars: Sequence[StackedBar],
    *,
    line: float | None = None,
    about: str = "",
) -> str:
    """Return a picture of bars beside each other. `picture` is a name for its parts that no other picture of the page
    has. `line` is a value at which a line is drawn across, and `about` says what it is."""
    top = nice_ceiling(max([line or 0, *(bar.lower + bar.upper for bar in bars)]))
    inner, floor = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
    step = inner / max(1, len(bars))
    wide = min(44.0, step * 0.72)

    def height(value: float) -> float:
        return (floor - TOP) * value / top

    parts = [
        picture_head(picture, title, description),
        f'<defs><pattern id="{picture}-hatch" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
    ]
    parts += vertical_axis(top, axis_number)
    every = math.ceil(len(bars) / LABELS) if bars else 1
    for number, bar in enumerate(bars):
        x = LEFT + step * (number + 0.5)
        low, high = height(bar.lower), height(bar.upper)
        parts.append(f"<g><title>{escape(bar.words)}</title>")
        # Points at a day without a bar are read, too
        parts.append(f'<rect class="day" x="{x - step / 2:.1f}" y="{TOP}" width="{step:.1f}" height="{floor - TOP}"/>')
        parts.append(_part("lower", x - wide / 2, floor - low, wide, low))
        parts.append(_part("upper", x - wide / 2, floor - low - high, wide, high, f"{picture}-hatch"))
        parts.append("</g>")
        if number % every == 0:
            parts.append(f'<text class="axis middle" x="{x:.1f}" y="{HEIGHT - 7}">{escape(bar.name)}</text>')
    if line is not None:
        y = floor - height(line)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis mark-name end" x="{WIDTH - RIGHT}" y="{y - 5:.1f}">{escape(about)}</text>')
    return "".join([*parts, "</svg>"])


def picture_head(picture: str, title: str, description: str) -> str:
    """Return the beginning of a picture, with its title and its description for people who cannot see it."""
    return (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="{picture}-title {picture}-words">'
        f'<title id="{picture}-title">{escape(title)}</title><desc id="{picture}-words">{escape(description)}</desc>'
    )


def vertical_axis(top: float, label: Callable[[float], str]) -> Iterator[str]:
    """Yield lines across at nothing, at half of `top` and at `top`, each with its value, which `label` writes."""
    floor = HEIGHT - BOTTOM
    for share in (0, 0.5, 1):
        y = floor - (floor - TOP) * share
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis end" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(label(top * share))}</text>'


def _part(kind: str, x: float, y: float, width: float, height: float, hatch: str = "") -> str:
    if height <= 0:
        return ""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.8):.1f}" rx="1.5"'
    return f'<rect class="{kind}" {at}/>' + (f'<rect fill="url(#{hatch})" {at}/>' if hatch else "")


def share_bar(share: float, kind: str) -> str:
    """Return a small bar that is filled to a share. It is a decoration: its number stands beside it."""
    filled = max(0.0, min(1.0, share)) * 100
    at = f'width="{max(filled, 0.6 if share > 0 else 0):.2f}" height="8"'
    return (
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/><rect class="{kind}" {at}/></svg>'
    )


def nice_ceiling(value: float) -> float:
    """Return a round number that is not below a value, for the top of an axis."""
    if value <= 1:
        return 1
    power: float = 10 ** math.floor(math.log10(value))
    return next((power * step for step in NICE if power * step >= value), power * 10.0)


def axis_number(value: float) -> str:
    """Return a number in few characters, for an axis."""
    for size, letter in MAGNITUDES:
        if value >= size:
            unit = 1000 if letter == "k" else size
            return f"{value / unit:.4g} {letter}"
    return f"{value:.4g}"
