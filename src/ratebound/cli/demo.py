"""The command `ratebound demo`: the same bursty traffic through every algorithm, side by side, on a simulated clock."""

from collections.abc import Sequence
from textwrap import fill

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratebound.cli.traffic import CYCLE, Event, bursty, busiest, play, variants
from ratebound.cli.words import duration, period_name
from ratebound.clock import SECOND
from ratebound.errors import RateboundError
from ratebound.limit import Limit

MOST_COUNT = 1_000  # every request is played
MOST_PERIODS = 12  # every period must be wide enough to see
LABEL = 16
NARROW = 76  # columns: fewer have no room for a table
BLOCKS = " ▁▂▃▄▅▆▇█"


def show_demo(limit: Limit, seconds: float | None, console: Console) -> None:
    """Print the demo of a limit. Raises RateboundError if it is no rate, or if count or `seconds` is out of range."""
    if limit.is_quota or not limit.takes_cost:
        raise RateboundError(
            f"the demo compares algorithms of rates, and '{limit}' is none: choose a limit like '10/second burst 5';"
            f' to see what yours does, run: ratebound explain "{limit}"'
        )
    until = CYCLE * limit.period_us if seconds is None else _until(limit, seconds)
    if limit.count > MOST_COUNT:
        raise RateboundError(f"the demo plays every request: choose a count up to {MOST_COUNT}, not {limit.count}")
    arrivals = bursty(limit, until)
    played = {algorithm: play(variant, arrivals) for algorithm, variant in variants(limit).items()}
    slices = _slices(limit, until, min(console.width, 140))
    against = f"{limit.count} per {period_name(limit.period_us)}, burst {limit.burst} for the buckets"
    console.print(fill(f"{len(arrivals)} requests against {against}", console.width), style="bold")
    console.print()
    console.print(_drawing(limit, until, arrivals, played, slices))
    console.print()
    console.print(_list(limit, played) if console.width < NARROW else _table(limit, played))
    console.print()
    console.print(_legend(limit, played, console.width))


def _until(limit: Limit, seconds: float) -> int:
    least, most = limit.period_us / SECOND, MOST_PERIODS * limit.period_us / SECOND
    if not least <= seconds <= most:
        raise RateboundError(
            f"--seconds must be from one period to {MOST_PERIODS}, here {least:g} to {most:g}, not {seconds:g}"
        )
    return round(seconds * SECOND)


def _slices(limit: Limit, until: int, width: int) -> int:
    """Return the number of columns for one period, beside the line at its beginning. The last label may hang over."""
    periods = -(-until // limit.period_us)
    return max((width - LABEL - len(duration(until)) - periods) // periods, 1)


def _drawing(limit: Limit, until: int, arrivals: Sequence[int], played: dict[str, list[Event]], slices: int) -> Text:
    asked = _spread(arrivals, limit, until, slices)
    peak = max(asked)
    drawing = Text(no_wrap=True)
    drawing.append_text(_line("asked", asked, peak, slices, "bold"))
    for algorithm, events in played.items():
        goes = _spread([event.goes for event in events if event.allowed], limit, until, slices)
        denied = _spread([event.arrives for event in events if not event.allowed], limit, until, slices)
        drawing.append_text(_line(algorithm, goes, peak, slices, "green"))
        drawing.append_text(_line("", denied, 0, slices, "red"))
    drawing.append_text(_axis(limit, until, slices))
    return drawing


def _spread(instants: Sequence[int], limit: Limit, until: int, slices: int) -> list[int]:
    """Return how many of the instants fall into each column."""
    columns = [0] * -(-until * slices // limit.period_us)
    for instant in instants:
        if instant < until:  # a queue may send a request after the right edge
            columns[instant * slices // limit.period_us] += 1
    return columns


def _line(label: str, columns: Sequence[int], peak: int, slices: int, style: str) -> Text:
    """Return bars as high as the share of the peak; without a peak, a mark in each column that is not empty."""
    line = Text(f"{label:<{LABEL}}")
    for place, many in enumerate(columns):
        if place % slices == 0:
            line.append("│", style="dim")
        line.append(BLOCKS[-(-8 * many // peak)] if peak else "×" if many else " ", style=style)
    return line.append("│\n" if len(columns) % slices == 0 else "\n", style="dim")


def _axis(limit: Limit, until: int, slices: int) -> Text:
    axis = " " * LABEL
    for start in range(0, until + 1, limit.period_us):
        axis += f"{duration(start):<{slices + 1}}"[: slices + 1]
    return Text(axis.rstrip(), style="dim")


def _table(limit: Limit, played: dict[str, list[Event]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True, min_width=max(map(len, played)))
    for header in ("asked", "admitted", "denied", f"most in any {period_name(limit.period_us)}", "longest delay"):
        table.add_column(header, justify="right")
    for algorithm, events in played.items():
        goes = sorted(event.goes for event in events if event.allowed)
        delay = max(event.goes - event.arrives for event in events)
        most, _ = busiest(goes, limit.period_us)
        table.add_row(
            algorithm,
            str(len(events)),
            str(len(goes)),
            str(len(events) - len(goes)),
            Text(str(most), style="bold red" if most > limit.count else ""),
            duration(delay) if delay else "-",
        )
    return table


def _list(limit: Limit, played: dict[str, list[Event]]) -> Text:
    """Return the table as a list, for a narrow terminal."""
    text = Text()
    for algorithm, events in played.items():
        goes = sorted(event.goes for event in events if event.allowed)
        delay = max(event.goes - event.arrives for event in events)
        most, _ = busiest(goes, limit.period_us)
        text.append(f"{algorithm}\n", style="bold")
        text.append(f"  {len(goes)} of {len(events)} admitted\n")
        text.append(f"  {most} in any {period_name(limit.period_us)}\n", style="bold red" if most > limit.count else "")
        if delay:
            text.append(f"  delay up to {duration(delay)}\n")
    text.rstrip()
    return text


def _legend(limit: Limit, played: dict[str, list[Event]], width: int) -> Text:
    period = period_name(limit.period_us)
    most, begin = busiest([event.goes for event in played["fixed-window"] if event.allowed], limit.period_us)
    boundary = -(-begin // limit.period_us) * limit.period_us
    around = f"{most} around {duration(boundary)}: a count on each side of the line"
    marks = "bars: go ahead   ×: denied   │: a window of the clock begins"
    legend = Text(f"{marks if len(marks) <= width else marks.replace('   ', chr(10))}\n\n", style="dim")
    indent = " " * (2 if width < NARROW else LABEL)
    for algorithm, words in (
        ("fixed-window", around if most > limit.count else "can allow more than a count around a line"),
        ("sliding-log", f"never more than {limit.count} in any {period}; stores every request"),
        ("sliding-counter", "an estimate of the same, from two counters"),
        ("token-bucket", f"{limit.burst} at once, then as it refills; gcra is another name for it"),
        ("leaky-bucket", "admits the same requests as token-bucket, and delays them to an even flow"),
    ):
        told = fill(words, width, initial_indent=indent, subsequent_indent=indent)
        if width < NARROW:
            legend.append(f"{algorithm}\n").append(f"{told}\n", style="dim")
        else:
            legend.append(f"{algorithm:<{LABEL}}").append(f"{told[LABEL:]}\n", style="dim")
    legend.rstrip()
    return legend
