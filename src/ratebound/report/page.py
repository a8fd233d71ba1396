"""The frame, styles and tables of a report: one HTML file that holds its pictures and loads nothing.

Reports show names that clients choose. Every function here that takes text escapes it and writes out invisible
characters; parameters that are HTML already say so.
"""

from collections.abc import Collection, Iterable, Sequence
from html import escape

from ratebound.report.pictures import share_bar

# No script, and nothing from elsewhere: a report is sent around
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
TEXTS = ("client", "day", "rule")  # columns of text; all others hold numbers

STYLE = """
:root { color-scheme: light dark; --ground: #f4f5f7; --card: #fff; --sunken: #e9ecf1; --line: #e1e4ea; --text: #1b2130;
  --muted: #5a6475; --lower: #4f74e8; --upper: #c2352b; --upper-fill: #f6c9c4; --owed: #8a5300; --owed-fill: #f3d9a8;
  --good: #14683a; --good-fill: #d3efdd;
  --sans: -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1117; --card: #161a22; --sunken: #262d39; --line: #2a313d;
  --text: #e7eaf0; --muted: #9ba6b6; --lower: #7d9bff; --upper: #ff8a80; --upper-fill: #5c2a2a; --owed: #eebb5c;
  --owed-fill: #4d3b14; --good: #6fd79a; --good-fill: #143c26; } }
@media print { :root { --ground: #fff; } .card, .tile { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 14px/1.45 var(--sans); }
main { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; max-width: 1080px; margin: 0 auto;
  padding: 32px 20px 56px; }
section { min-width: 0; }
h1, h2, p, dl, dd { margin: 0; }
h1 { font-size: 24px; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 15px; font-weight: 650; }
.muted, figcaption { color: var(--muted); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.tile, .card { padding: 16px 18px; border: 1px solid var(--line); border-radius: 12px; background: var(--card); }
.tile dt { color: var(--muted); }
.tile dd { font-size: 24px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.columns { display: grid; gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.head { display: flex; flex-wrap: wrap; gap: 6px 16px; align-items: center; margin-bottom: 10px; }
.head h2 { margin-right: auto; }
.legend { display: flex; gap: 14px; color: var(--muted); font-size: 12.5px; }
.legend span::before { content: ""; display: inline-block; width: 11px; height: 11px; margin-right: 6px;
  border-radius: 3px; vertical-align: -1px; background: var(--lower); }
.legend .upper::before { background: repeating-linear-gradient(45deg, var(--upper) 0 1.5px, var(--upper-fill) 0 4px);
  outline: 1px solid var(--upper); }
.owing .legend .upper::before { background: repeating-linear-gradient(45deg, var(--owed) 0 1.5px,
  var(--owed-fill) 0 4px); outline-color: var(--owed); }
figure { margin: 0; }
figcaption { margin: 6px 0 8px; font-size: 12.5px; }
.picture { display: block; width: 100%; height: auto; }
.picture .grid { stroke: var(--line); }
.picture .axis { fill: var(--muted); font: 11.5px var(--sans); }
.picture .end { text-anchor: end; }
.picture .middle { text-anchor: middle; }
.picture .day { fill: transparent; }
.picture g:hover .day { fill: var(--sunken); opacity: 0.6; }
.picture .lower { fill: var(--lower); }
.picture .upper { fill: var(--upper-fill); stroke: var(--upper); }
.picture .hatch { stroke: var(--upper); stroke-width: 2; }
.owing .picture .upper { fill: var(--owed-fill); stroke: var(--owed); }
.owing .picture .hatch { stroke: var(--owed); }
.picture .mark { stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 6 4; }
.picture .mark-name { fill: var(--text); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.picture .curve { fill: none; stroke: var(--lower); stroke-width: 2; stroke-linejoin: round; }
.picture .curve.second { stroke: var(--upper); stroke-dasharray: 7 4; }
.outcome { display: inline-block; min-width: 76px; padding: 1px 8px; border-radius: 999px; font-size: 11.5px;
  font-weight: 700; letter-spacing: 0.03em; text-align: center; white-space: nowrap; color: var(--muted);
  background: var(--sunken); }
.outcome.pass { color: var(--good); background: var(--good-fill); }
.outcome.fail { color: var(--upper); background: var(--upper-fill); }
.outcome.unknown { color: var(--owed); background: var(--owed-fill); }
.examples { margin: 4px 0 0; padding-left: 18px; color: var(--muted); font-size: 12.5px; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
thead th { padding: 3px 12px 6px 0; color: var(--muted); font-size: 12px; font-weight: 600; text-align: left; }
tbody :is(th, td) { padding: 7px 12px 7px 0; border-top: 1px solid var(--line); vertical-align: middle;
  overflow-wrap: anywhere; font-weight: 400; text-align: left; }
tr > :last-child { padding-right: 0; }
tr > .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.name { font-family: var(--mono); font-size: 12.5px; min-width: 12ch; }
.share { display: block; width: 100px; height: 8px; border-radius: 4px; }
.share .track { fill: var(--sunken); }
.share .used { fill: var(--lower); }
.share .denied { fill: var(--upper); }
details { margin-top: 8px; }
summary { cursor: pointer; color: var(--muted); font-size: 12.5px; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 600px) { main { padding: 16px 12px; } .picture .axis { font-size: 20px; } .share { width: 60px; } }
"""


def report_page(title: str, about: str, parts: Iterable[str]) -> str:
    """Return a page. `title` is text; `about`, the line below it, and `parts` are HTML. Empty parts are left out."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(visible(title))}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{escape(visible(title))}</h1><p class="muted">{about}</p></header>\n'
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def visible(text: str) -> str:
    """Return a text with everything that cannot be printed written as its number."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Return large figures beside each other, each with its name."""
    shown = "".join(f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>' for name, value in facts)
    return f'<dl class="tiles">{shown}</dl>'


def percent(share: float) -> str:
    """Return a share as text: small ones are not shown as nothing, and nearly all is not shown as all."""
    value = share * 100
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %" if value < 9.95 and value else f"{value:.0f} %"


def card(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    empty: str,
    note: str = "",
    texts: Collection[str] = TEXTS,
) -> str:
    """Return a section with a table of cells. `name` is unique in the page, `empty` stands there without rows, and
    `note` is HTML."""
    inside = table(title, columns, rows, texts) if rows else f'<p class="muted">{escape(empty)}</p>'
    return (
        f'<section class="card" aria-labelledby="{name}-heading"><div class="head"><h2 id="{name}-heading">{title}</h2>'
        f"</div>{inside}{note}</section>"
    )


def figure_card(
    name: str,
    title: str,
    legend: tuple[str, str],
    picture: str,
    caption: str,
    *,
    more: str = "",
    kind: str = "card",
) -> str:
    """Return a section with a picture, the names of its two colours and a caption.

    `name` is unique in the page. The caption is text, and all else is HTML. `more` stands below the picture.
    """
    return (
        f'<section class="{kind}" aria-labelledby="{name}-heading"><div class="head">'
        f'<h2 id="{name}-heading">{title}</h2><div class="legend" aria-hidden="true">'
        f'<span>{legend[0]}</span><span class="upper">{legend[1]}</span></div>'
        f"</div><figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>{more}</section>"
    )


def notes_card(notes: Iterable[str]) -> str:
    """Return a section with a list of sentences, each one once; "" without any."""
    items = "".join(f"<li>{escape(visible(note))}</li>" for note in dict.fromkeys(notes))
    if not items:
        return ""
    return (
        '<section class="card" aria-labelledby="notes-heading"><div class="head">'
        f'<h2 id="notes-heading">Notes</h2></div><ul class="examples">{items}</ul></section>'
    )


def table(label: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[str] = TEXTS) -> str:
    """Return a table of cells, which are HTML. `texts` names the columns that hold text."""
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead><tr>'
        f"{''.join(heading(column, texts) for column in columns)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def heading(column: str, texts: Collection[str] = TEXTS) -> str:
    """Return the heading of a column. The column "share" holds bars; columns in `texts` hold text, others numbers."""
    if column == "share":  # of a bar, which is a decoration
        return f'<th scope="col"><span class="unseen">{column}</span></th>'
    kind = "" if column in texts else ' class="number"'
    return f'<th scope="col"{kind}>{column}</th>'


def name_cell(text: str, tag: str = "th") -> str:
    """Return a cell with a name, as the heading of its row or, with `tag="td"`, as a plain cell."""
    scope = ' scope="row"' if tag == "th" else ""
    return f'<{tag}{scope} class="name">{escape(visible(text))}</{tag}>'


def number_cell(text: str) -> str:
    """Return a cell with a number that is written already."""
    return f'<td class="number">{escape(text)}</td>'


def bar_cell(share: float, kind: str) -> str:
    """Return a cell with a bar. `kind` is "used" or "denied"."""
    return f"<td>{share_bar(share, kind)}</td>"
