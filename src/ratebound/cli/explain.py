"""The command `ratebound explain`: limits in words and in a picture. The numbers come from the kernels."""

import time
from bisect import bisect_right
from collections.abc import Sequence
from textwrap import fill, wrap

from rich.console import Console
from rich.text import Text

from ratebound.calendar_period import WEEKDAYS, local_time
from ratebound.cli.saturation import (
    Look,
    first_bindings,
    followed,
    longest_delay,
    most_in_one_period,
    recovery,
    saturable,
    saturate,
    steady,
    used_up,
)
from ratebound.cli.words import duration, number, per_time, period_name, short
from ratebound.limit import UNITS, Limit

PROMISES = {
    "token-bucket": "A bucket of {burst} that refills at {rate}: bursts pass at once, the average holds.",
    "gcra": "A bucket of {burst} that refills at {rate}: bursts pass at once, the average holds.",
    "leaky-bucket": "A queue of {burst} places, served evenly at {rate}: each admitted request gets its delay.",
    "fixed-window": "Counts to {count} in windows of one {period} that are aligned to the clock.",
    "sliding-log": "Stores every request: never more than {count} in any {period}, wherever it begins.",
    "sliding-counter": "Estimates the last {period} from two counters: never above {count} by its own estimate.",
    "calendar": "Counts to {count} in each {windows}; the whole count is there again when the next one begins.",
    "concurrent": "At most {count} requests at the same time. A request holds its slot until it ends.",
    "distinct": "At most {count} different values of '{values}' in any {period}. A value that counts already passes.",
    "penalty": "Blocks a key after {strikes} in any {period}.",
}
METERED = "Denies nothing. Counts in each {windows}, and reports units above {count} as overage."
COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")
BLOCKS = " ▁▂▃▄▅▆▇█"
INDENT = "   "
NARROW = 24  # characters beside the labels: with fewer, facts go below them
HEIGHT = 8  # lines of the picture
NICE = sorted(
    [step * UNITS[unit] for unit in ("microsecond", "millisecond") for step in (1, 2, 4, 10, 20, 40, 100, 200, 400)]
    + [step * UNITS[unit] for unit in ("second", "minute") for step in (1, 2, 4, 10, 20, 40)]
    + [step * UNITS["hour"] for step in (1, 2, 4, 8, 12)]
    + [step * UNITS["day"] for step in (1, 2, 4, 10, 20, 40, 100, 200)]
    + [step * UNITS["year"] for step in (1, 2, 4, 10, 20, 40, 100, 200, 400)]
)


def explain_limits(limits: tuple[Limit, ...], console: Console, now: int | None = None) -> None:
    """Print each limit, their combination, and a picture of a client that always asks.

    `now` is the instant in microseconds from which the next windows of the calendar are told; None for the clock's.
    """
    now = time.time_ns() // 1000 if now is None else now
    width = max(min(console.width, 100), 24)  # a narrower terminal wraps the lines itself
    for place, limit in enumerate(limits):
        title = Text(f"{place + 1}  " if len(limits) > 1 else "").append(str(limit), style=f"bold {_colour(place)}")
        if limit.algorithm not in str(limit):
            one_line = len(title) + 2 + len(limit.algorithm) <= width
            title.append(f"{'  ' if one_line else chr(10) + INDENT}{limit.algorithm}")
        _say(console, title, _promise(limit), _facts(limit, now), width)
    # Other limits hold nobody back over time, or only clients that misbehave: they are not in the picture.
    places = [place for place, limit in enumerate(limits) if limit.takes_cost and not limit.metered]
    drawn = [saturable(limits[place]) for place in places]
    bindings = first_bindings(drawn) if drawn else []
    if len(limits) > 1:
        law = "A request passes if every limit allows it; if one denies, none is charged."
        facts = [*_timeline([limits[place] for place in places], drawn, bindings), *_beside(limits)]
        _say(console, Text("Together", style="bold"), law, facts, width)
    if not drawn:
        return
    span = _span(drawn, bindings)
    aligned = any(limit.algorithm == "fixed-window" for limit in drawn)
    # With a penalty, a client that always asks would soon be blocked.
    client = "waits as it is told" if any(limit.is_penalty for limit in limits) else "always asks"
    asking = f"A client that {client}: units passed in the first {duration(span)}{' of a window' if aligned else ''}"
    console.print(fill(asking, width))
    console.print(_picture(drawn, places, span, width))


def _say(console: Console, title: Text, words: str, facts: Sequence[tuple[str, str]], width: int) -> None:
    """Print a paragraph and a list of facts in two columns.

    It wraps lines itself because rich's tables end in spaces.
    """
    text = Text("\n".join(wrap(words, width, initial_indent=INDENT, subsequent_indent=INDENT)))
    column = max(len(label) for label, _ in facts) + 2
    if width - column < NARROW:  # one column: each fact below its label
        for label, fact in facts:
            text.append("\n" + fill(label, width, initial_indent=INDENT, subsequent_indent=INDENT), style="dim")
            text.append("\n" + fill(fact, width, initial_indent=2 * INDENT, subsequent_indent=2 * INDENT))
        facts = ()
    for label, fact in facts:
        first, *more = wrap(fact, width - column - len(INDENT))
        text.append(f"\n{INDENT}{label:<{column}}", style="dim").append(first)
        for line in more:
            text.append(f"\n{INDENT}{'':<{column}}{line}")
    console.print(title)
    console.print(text)
    console.print()


def _average(limit: Limit) -> str:
    a_second = limit.count * UNITS["second"] / limit.period_us
    return f"{number(a_second)} a second" if a_second >= 1 else per_time(limit.count, limit.period_us)


def _promise(limit: Limit) -> str:
    return (METERED if limit.metered else PROMISES[limit.algorithm]).format(
        burst=number(limit.burst),
        count=number(limit.count),
        period=period_name(limit.period_us),
        rate=_average(limit),
        windows=_windows(limit),
        values=limit.values,
        strikes=_strikes(limit),
    )


def _strikes(limit: Limit) -> str:
    return f"{limit.count} strike{'' if limit.count == 1 else 's'}"


def _windows(limit: Limit) -> str:
    """Return the windows of a quota for use after 'in each'."""
    calendar = limit.calendar
    if calendar is None:
        return f"window of one {period_name(limit.period_us)} that is aligned to the clock"
    begins = ""
    if calendar.begin > 1:
        begins = f" from {WEEKDAYS[calendar.begin - 1].capitalize()}" if calendar.unit == "week" else ""
        begins = begins or f" from day {calendar.begin}, or the last day of a shorter month"
    return f"calendar {calendar.unit} of {calendar.zone}{begins}"


def _facts(limit: Limit, now: int) -> list[tuple[str, str]]:
    if limit.has_slots:
        return _facts_of_slots(limit)
    if limit.is_distinct:
        return _facts_of_values(limit)
    if limit.is_penalty:
        return _facts_of_penalty(limit)
    if limit.is_quota:
        return _facts_of_quota(limit, now)
    at_once, reset_after = used_up(limit)
    period = period_name(limit.period_us)
    most = most_in_one_period(limit)
    facts = [("at once", number(at_once))]
    if limit.queues:
        facts.append(("the last of them waits", f"{duration(longest_delay(limit))}, the longest delay there is"))
        facts.append((f"in any {period}", f"admits up to {number(most)}; {number(limit.count)} of them go ahead"))
    else:
        facts.append((f"in any {period}", f"up to {number(most)}{_why_more(limit, most)}"))
    facts.append(("average rate", _average(limit)))
    facts.append(("always asking gets", per_time(*steady((limit,)))))
    facts.append(("once used up, untouched after", duration(reset_after)))
    return facts


def _facts_of_slots(limit: Limit) -> list[tuple[str, str]]:
    tenth = UNITS["second"] // 10
    rate = number(limit.count * UNITS["second"] / tenth)
    return [
        ("at once", number(limit.count)),
        ("cost", "one slot, whatever a request costs"),
        (
            "lease",
            f"{duration(limit.period_us)}, renewed while the request runs; if its process dies, the slot is free again"
            " within that time",
        ),
        ("throughput", f"depends on how long requests take: {rate} a second if each takes {duration(tenth)}"),
        ("retry after", "not known, because a slot is free when a request ends; a rule may give its own 'retry'"),
    ]


def _facts_of_values(limit: Limit) -> list[tuple[str, str]]:
    return [
        ("at once", f"{number(limit.count)} different values"),
        ("cost", "one value, whatever a request costs"),
        ("a value counts", f"until {duration(limit.period_us)} after its last allowed sight"),
        ("a denied value", "is not stored"),
        ("stored", f"up to {number(limit.count)} digests for each key"),
    ]


def _facts_of_penalty(limit: Limit) -> list[tuple[str, str]]:
    blocks = ", then ".join(map(duration, limit.blocks_us))
    return [
        ("strike", "a denial by another limit of the same check; several within one second are one"),
        ("no strike", "a denial because no slot is free, a cost above the limit, a waiter, or anything while blocked"),
        ("blocks for", f"{blocks}; the last one repeats" if len(limit.blocks_us) > 1 else f"{blocks}, each time"),
        ("forgets", f"{duration(limit.forget_us)} after the end of a block; a strike restarts that time"),
    ]


def _facts_of_quota(limit: Limit, now: int) -> list[tuple[str, str]]:
    facts = []
    if limit.metered:
        facts.append(("denies", "nothing, every request passes"))
        facts.append(("overage", f"the units above {number(limit.count)}, in decision.overage"))
    else:
        facts.append(("at once", number(limit.count)))
        most = number(2 * limit.count)
        unit = "window" if limit.calendar is None else limit.calendar.unit
        more = f"up to {most}: one count just before the end of a {unit}, one just after!"
        facts.append((f"in any {unit}", more))
    facts.append(("average rate", _average(limit)))
    if limit.calendar is not None:
        facts.append(("resets", _next_windows(limit, now)))
    return facts


def _next_windows(limit: Limit, now: int) -> str:
    """Return when the next two windows of a calendar quota begin."""
    calendar, windows = limit.calendar, limit.numbers.windows
    assert calendar is not None
    assert windows is not None
    _, end, after = windows.at(now)
    first, then = (f"{local_time(instant, calendar.zone):%Y-%m-%d %H:%M}" for instant in (end, after))
    return f"{first} in {calendar.zone}, in {duration(end - now)}; then {then}"


def _why_more(limit: Limit, most: int) -> str:
    if most <= limit.count:
        return ""
    return {
        "fixed-window": ": one count just before a boundary of the clock, one just after!",
        "sliding-counter": ", if nearly all of a window came at its very end",
    }.get(limit.algorithm, ": a full bucket, and what refills meanwhile")


def _beside(limits: Sequence[Limit]) -> list[tuple[str, str]]:
    """Return the facts about limits that are not in the picture."""
    facts = []
    for limit in limits:
        if limit.has_slots:
            facts.append(("at any time", f"at most {number(limit.count)} by '{limit}'"))
        elif limit.is_distinct:
            values = f"at most {number(limit.count)} different values of '{limit.values}'"
            facts.append(("at any time", f"{values} by '{limit}'"))
        elif limit.is_penalty:
            first = duration(limit.blocks_us[0])
            facts.append((f"after {_strikes(limit)}", f"'{limit}' blocks; the first block lasts {first}"))
    return facts + [("never", f"'{limit}' denies nothing") for limit in limits if limit.metered]


def _timeline(limits: Sequence[Limit], drawn: Sequence[Limit], bindings: Sequence[Look]) -> list[tuple[str, str]]:
    """Return which of the limits binds when; `drawn` are the same as they can be saturated."""
    facts: list[tuple[str, str]] = []
    if not drawn:
        return facts
    for look in bindings:
        when = f"after {duration(look.now)}" if look.now else "at once"
        facts.append((when, f"{number(look.total)} have passed, '{limits[look.binding]}' says wait"))
    for place in sorted(set(range(len(limits))) - {look.binding for look in bindings}):
        facts.append(("never", f"'{limits[place]}' does not bind, in {duration(followed(drawn))} of always asking"))
    facts.append(("in the long run", per_time(*steady(drawn))))
    return facts


def _span(limits: Sequence[Limit], bindings: Sequence[Look]) -> int:
    """Return a time that shows the last change of the binding limit, or several recoveries of the limit."""
    wanted = 2 * bindings[-1].now if bindings[-1].now else 3 * recovery(limits[bindings[-1].binding])
    return next((nice for nice in NICE if nice >= wanted), NICE[-1])


def _picture(limits: Sequence[Limit], places: Sequence[int], span: int, width: int) -> Text:
    """Return columns of blocks as high as the units allowed by then; below them, the number of the binding limit.

    `places` are the places of the limits among all that are explained.
    """
    columns = (width - 10) // 4 * 4
    looks = saturate(limits, span)
    sampled = []
    for column in range(1, columns + 1):
        seen = bisect_right(looks, (span - 1) * column // columns, key=lambda look: look.now)
        sampled.append(looks[seen - 1])
    top = looks[-1].total
    levels = [-(-look.total * HEIGHT * 8 // top) for look in sampled]  # in eighths of a line
    picture = Text()
    for line in reversed(range(HEIGHT)):
        label = {HEIGHT - 1: short(top), HEIGHT // 2 - 1: short(top / 2)}.get(line, "")
        picture.append(f"{label:>7} {'┤' if label else '│'}", style="dim")
        for look, level in zip(sampled, levels, strict=True):
            picture.append(BLOCKS[min(max(level - 8 * line, 0), 8)], style=_colour(places[look.binding]))
        picture.append("\n")
    picture.append(f"{'0':>7} └{'─' * columns}\n", style="dim")
    middle, end = duration(span // 2), duration(span)
    if len(middle) + len(end) + 4 > columns:
        middle = ""
    axis = f"{'0':<{columns // 2 - len(middle) // 2}}{middle}"
    picture.append(f"{'':9}{axis}{end:>{max(columns - len(axis), len(end))}}", style="dim")
    if len(limits) > 1:
        picture.append(f"\n{'binds':>7}  ", style="dim")
        for look in sampled:
            picture.append(str(places[look.binding] + 1), style=_colour(places[look.binding]))
    return picture


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
