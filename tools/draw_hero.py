"""Draw docs/pictures/hero.svg: the same requests at a token bucket and at a fixed window, animated by CSS.

    python tools/draw_hero.py

A limiter on a clock of its own decides every request, and the picture shows its answers. The first request that is told
to come back at an instant does so at exactly this instant, and passes. Without motion (`prefers-reduced-motion`) the
picture is the end of the loop: all requests with their answers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from drawing import cross, line, picture, text, write
from ratebound import Limiter, MemoryStorage
from ratebound.cli.traffic import busiest
from ratebound.clock import SECOND
from ratebound.limit import BUCKETS, Limit
from ratebound.notation import parse_limit
from ratebound.testing import FakeClock

LIMITS = {"Token bucket": parse_limit("5/second burst 3"), "Fixed window": parse_limit("5/second fixed-window")}
# The arrivals of requests in milliseconds: two alone, a burst on each side of a full second, and three more.
ARRIVALS = (260, 420, 700, 745, 795, 850, 910, 960, 1060, 1105, 1165, 1215, 1270, 1600, 1690, 1790)
UNTIL = 2_150_000  # microseconds that are shown

WIDTH, HEIGHT, LANE = 640, 372, 160
LEFT, RIGHT = 104, 616
TOP, GATE, PASSED = 36, 106, 124  # of a lane: where requests start, where they are decided, where those that pass go
ROW = 10  # between the marks of denied requests
LOOP = 9  # seconds
FIRST, LAST, FADE = (
    3.0,
    86.0,
    95.0,
)  # percent of the loop: the first and the last instant, and the end of the still part
FALL = 4.5  # percent of the loop that a request falls
NARROW = 620  # pixels of the picture on the page, below which texts are larger
STYLE = (
    f"text{{font-size:20px}}.head{{font-size:21px;font-weight:bold}}.fall{{opacity:0}}.halo{{paint-order:stroke;stroke-width:4px}}"
    f".level{{transform-box:fill-box;"
    f"transform-origin:bottom}}@media(min-width:{NARROW}px){{text{{font-size:14px}}.head{{font-size:16px}}}}"
)


class Answer(NamedTuple):
    """The answer to a request: `retry` is the instant at which it would pass, None if it passed now."""

    instant: int
    retry: int | None


class Level(NamedTuple):
    """The part of a limit that is left at an instant, from 0 to 1."""

    instant: int
    left: float


def draw_pictures() -> dict[str, str]:
    """Return the SVG text by file name."""
    parts, styles = _frame(), [_playhead()]
    instants: set[int] = set()
    told = []
    for place, (name, limit) in enumerate(LIMITS.items()):
        answers, levels = play(limit)
        passes = [answer.instant for answer in answers if answer.retry is None]
        most, _ = busiest(passes, SECOND)
        told.append(
            f"{name}, {limit}: {len(passes)} of {len(answers)} requests pass, at most {most} in any second."
            f" {_told(answers)}"
        )
        parts.append(f'<g transform="translate(0 {place * LANE})">')
        parts += _lane(name, limit, answers, most)
        parts.append("</g>")
        styles.append(_level_style(f"level{place}", levels))
        instants |= {answer.instant for answer in answers}
        parts[-1:-1] = _level(f"level{place}", limit, levels)
    styles += [_request_style(instant) for instant in sorted(instants)]
    style = STYLE + f"@media(prefers-reduced-motion:no-preference){{{''.join(styles)}}}"
    title = "The same requests at a token bucket and at a fixed window"
    return {"hero.svg": picture(WIDTH, HEIGHT, title, parts, told=" ".join(told), style=style)}


def play(limit: Limit) -> tuple[list[Answer], list[Level]]:
    """Hit a limiter at every arrival and at the first retry of each denial. Return the answers and the levels."""
    clock = FakeClock()
    begin = clock.now = 1000 * SECOND
    limiter = Limiter(limit, storage=MemoryStorage(clock=clock))
    answers: list[Answer] = []
    levels = [Level(0, 1.0)]
    waiting = [arrival * 1000 for arrival in ARRIVALS]
    while waiting and (instant := waiting.pop(0)) <= UNTIL:
        for moment in (instant - 1, instant):  # a window may begin in between
            clock.now = begin + moment
            levels.append(Level(moment, _left(limiter, limit)))
        outcome = limiter.hit("client").outcomes[0]
        levels.append(Level(instant, _left(limiter, limit)))
        if outcome.allowed:
            answers.append(Answer(instant, None))
            continue
        assert outcome.retry_after_us is not None
        retry = instant + outcome.retry_after_us
        if retry not in waiting:
            waiting = sorted([*waiting, retry])
        answers.append(Answer(instant, retry))
    clock.now = begin + UNTIL
    levels.append(Level(UNTIL, _left(limiter, limit)))
    return answers, levels


def _left(limiter: Limiter, limit: Limit) -> float:
    """Return the part that is left. A bucket refills all the time, so this is not a whole number of requests."""
    outcome = limiter.peek("client").outcomes[0]
    if limit.algorithm in BUCKETS:
        return 1 - outcome.reset_after_us / limit.refill_us
    return outcome.remaining / limit.count


def _told(answers: Sequence[Answer]) -> str:
    waits = [f"{(retry - instant) // 1000} ms" for instant, retry in answers if retry is not None]
    return f"Denied requests are told to retry in {', '.join(waits)}; one that comes back then passes."


def _x(instant: int) -> float:
    return round(LEFT + (RIGHT - LEFT) * instant / UNTIL, 1)


def _percent(instant: int) -> float:
    return round(FIRST + (LAST - FIRST) * instant / UNTIL, 2)


def _frame() -> list[str]:
    """Return the clock and the legend."""
    floor, tall = 2 * LANE + 2, PASSED - TOP + 12
    parts = []
    for instant in range(0, UNTIL, SECOND // 2):
        x = _x(instant)
        if not instant % SECOND:
            parts.append(line(f"M{x} {TOP}v{tall}M{x} {LANE + TOP}v{tall}", more=' stroke-dasharray="3 3"'))
        parts.append(text(x, floor, f"{instant / SECOND:g} s", "middle"))
    y = HEIGHT - 18
    parts += [
        f'<circle cx="{LEFT + 5}" cy="{y}" r="5" class="green"/>',
        text(LEFT + 16, y + 6, "passes"),
        cross(LEFT + 114, y, 4),
        text(LEFT + 126, y + 6, "denied"),
        line(f"M{LEFT + 218} {y}h30", "red-line", ' stroke-dasharray="2 2"'),
        text(LEFT + 256, y + 6, "exact retry_after"),
        line(f"M{LEFT} {TOP}v{tall}M{LEFT} {LANE + TOP}v{tall}", "blue-line play", ' opacity="0"'),
    ]
    return parts


def _lane(name: str, limit: Limit, answers: Sequence[Answer], most: int) -> list[str]:
    """Return the requests at one limit, with their answers."""
    numbers = str(limit).removesuffix(f" {limit.algorithm}")
    title = f'<text x="16" y="24" class="ink head">{name} <tspan font-weight="normal">{numbers}</tspan></text>'
    parts = [
        title,
        text(RIGHT + 8, 24, f"at most {most} in any second", "end"),
        line(f"M{LEFT} {GATE}H{RIGHT}", "ink-line", ' stroke-width="2"'),
    ]
    rows: dict[int, int] = {}
    label_ends = 0.0
    for instant, retry in answers:
        x, kind = _x(instant), f"{instant // 1000}"
        parts.append(f'<circle cx="{x:g}" cy="{GATE}" r="5" class="ink fall f{kind}"/>')
        if retry is None:
            parts.append(f'<circle cx="{x:g}" cy="{PASSED}" r="5" class="green p{kind}"/>')
            continue
        row = rows[retry] = rows.get(retry, -1) + 1
        y = GATE - 10 - ROW * row
        parts.append(f'<g class="d{kind}">')
        parts.append(cross(x, y, 4))
        parts.append(line(f"M{x + 5:g} {y}H{min(_x(retry), RIGHT):g}", "red-line", ' stroke-dasharray="2 2"'))
        if not row and x > label_ends:
            parts.append(text(x - 4, TOP + 18, f"{(retry - instant) // 1000} ms", kind="red card-line halo"))
            label_ends = x + 76
        parts.append("</g>")
    return parts


def _level(kind: str, limit: Limit, levels: Sequence[Level]) -> list[str]:
    """Return the vessel at the left: what is left of the limit."""
    x, y, width, height = 26, 50, 44, 66
    cells = limit.burst
    lines = "".join(f"M{x} {y + height * i / cells:g}h{width}" for i in range(1, cells))
    left = levels[-1].left
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" class="blue level {kind}" fill-opacity=".55"'
        f' style="transform:scaleY({left:.3g})"/>',
        line(lines, "card-line", ' stroke-width="2"'),
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" class="ink-line" fill="none"/>',
        text(x + width / 2, y + height + 22, "tokens" if limit.algorithm in BUCKETS else "room", "middle"),
    ]


def _level_style(kind: str, levels: Sequence[Level]) -> str:
    frames = f"0%,{FIRST}%{{transform:scaleY({levels[0].left:.3g})}}"
    seen = FIRST
    for (_, before), (instant, left), (_, after) in zip(levels, levels[1:], [*levels[2:], levels[-1]], strict=False):
        if not before == left == after:
            seen = max(_percent(instant), round(seen + 0.01, 2))  # two frames at one instant are a jump
            frames += f"{seen}%{{transform:scaleY({left:.3g})}}"
    return f"@keyframes {kind}{{{frames}}}.{kind}{{animation:{kind} {LOOP}s linear infinite}}"


def _playhead() -> str:
    return (
        f"@keyframes play{{0%,{FIRST}%{{opacity:.8;transform:none}}{LAST}%{{opacity:.8;transform:"
        f"translateX({RIGHT - LEFT}px)}}{LAST + 1}%,100%{{opacity:0;transform:translateX({RIGHT - LEFT}px)}}}}"
        f".play{{animation:play {LOOP}s linear infinite}}"
    )


def _request_style(instant: int) -> str:
    """Return how a request falls (f), passes (p) or is denied (d). Both limits decide it at the same time."""
    at, kind = _percent(instant), instant // 1000
    start, done = max(round(at - FALL, 2), 0), round(at + 2, 2)
    ends = f"{FADE}%{{opacity:1}}{FADE + 3}%,100%{{opacity:0}}"
    before = f"0%,{at}%{{opacity:0;transform:translateY("
    after = f"{round(at + 0.1, 2)}%{{opacity:1}}{done}%{{opacity:1;transform:none}}{ends}"
    moves = {
        "f": f"0%,{start}%{{opacity:0;transform:translateY({TOP - GATE}px)}}{round(start + 0.1, 2)}%{{opacity:1}}"
        f"{at}%{{opacity:1;transform:none}}{round(at + 0.1, 2)}%,100%{{opacity:0}}",
        "p": f"{before}{GATE - PASSED}px)}}{after}",
        "d": f"{before}10px)}}{after}",
    }
    frames = "".join(f"@keyframes {move}{kind}{{{steps}}}" for move, steps in moves.items())
    rules = "".join(f".{move}{kind}{{animation:{move}{kind} {LOOP}s infinite}}" for move in moves)
    return frames + rules


if __name__ == "__main__":
    write(draw_pictures())
