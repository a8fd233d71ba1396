"""The look of drawn pictures: one file for light and dark, and the shapes that the tools share.

A picture has the colours of `prefers-color-scheme`. Inside an `<img>` browsers take that from the `color-scheme` of the
page, so pictures follow the toggle of the site as well as the reader's system. Where a browser takes it from the system
alone, a picture stays readable: it has its own background.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
FONT = "Helvetica, Arial, sans-serif"
# The class of a shape is the name of its colour, with -line for strokes.
COLOURS = {  # light, dark
    "card": ("#ffffff", "#161b22"),
    "edge": ("#d0d7de", "#3d444d"),
    "ink": ("#24292f", "#e6edf3"),
    "faint": ("#8c959f", "#7d8590"),
    "green": ("#1a7f37", "#3fb950"),
    "red": ("#cf222e", "#ff7b72"),
    "blue": ("#0969da", "#58a6ff"),
    "amber": ("#9a6700", "#d29922"),
}


def picture(width: int, height: int, title: str, parts: Iterable[str], *, told: str = "", style: str = "") -> str:
    """Return a whole SVG. `title` and `told` are for screen readers, `style` is more CSS."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="{FONT}" font-size="12">',
        f"<title>{escape(title)}</title>",
    ]
    if told:
        head.append(f"<desc>{escape(told)}</desc>")
    body = list(parts)
    head.append(f"<style>{_colours(body)}{style}</style>")
    head.append(f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" class="card edge-line"/>')
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", *, kind: str = "ink", more: str = "") -> str:
    """Return a text. `kind` is its classes, `more` other attributes."""
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}"{end} class="{kind}"{more}>{escape(words)}</text>'


def line(path: str, kind: str = "faint-line", more: str = ' stroke-width=".8"') -> str:
    """Return a path without a filling."""
    return f'<path d="{path}" class="{kind}" fill="none"{more}/>'


def cross(x: float, y: float, arm: float) -> str:
    """Return the mark of a denied request."""
    path = f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm:.1f} {2 * arm:.1f}m0 {-2 * arm:.1f}l{-2 * arm:.1f} {2 * arm:.1f}"
    return line(path, "red-line", ' stroke-width="1.5"')


def write(pictures: dict[str, str]) -> None:
    """Write pictures by their file names."""
    for name, svg in pictures.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
        print(PICTURES / name)


def _colours(body: Iterable[str]) -> str:
    """Return the CSS of the colours that are used, in light and in dark."""
    used = {"card", "edge-line"} | {word for part in body for classes in part.split('class="')[1:]
                                    for word in classes.split('"', 1)[0].split()}  # fmt: skip
    schemes = ["", ""]
    for name, both in COLOURS.items():
        for place, colour in enumerate(both):
            schemes[place] += f".{name}{{fill:{colour}}}" if name in used else ""
            schemes[place] += f".{name}-line{{stroke:{colour}}}" if f"{name}-line" in used else ""
    return f"{schemes[0]}@media(prefers-color-scheme:dark){{{schemes[1]}}}"
