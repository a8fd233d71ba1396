"""The tables and the picture of docs/guides/fleet.md: slices and the deny cache on fleets, in simulated time.

Each row is one scenario, or one with and without slices. A row can be played again by itself, and is always the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from benchmarks.builds import PURE, Done
from benchmarks.measure import spread
from benchmarks.slices_simulation import Run, Scenario, simulate
from benchmarks.table import Sheet
from benchmarks.verdict import Verdict, at_most
from ratebound.clock import SECOND

HEAD = (
    "traffic",
    "processes",
    "share, for",
    "asked per process and `for`",
    "trips per decision",
    "units lost",
    "passed",
    "without slices",
)
DENIAL_HEAD = ("a client asks for", "limit", "with", "trips per decision", "passed", "with one trip each")
WORST_HEAD = ("limit", "traffic", "worst", "without slices", "with slices", "promised at most")

# All but one have a bucket of 2 000 units per second with a burst of 2 000.
PROCESSES = (1, 4, 20, 100, 1_000)
LIVES = (100, 1_000)  # milliseconds that a slice lives
SCALE = [
    Scenario("steady, 50 % of the limit", processes, load=0.5, for_ms=for_ms)
    for for_ms in LIVES
    for processes in PROCESSES
]
CHOICE = [
    Scenario("steady, 95 % of the limit", processes, load=0.95, share=share, for_ms=for_ms)
    for processes in (20, 100)
    for for_ms in LIVES
    for share in (0.01, 0.05, 0.2)
]
HOURLY = "1000000/hour"
TRAFFIC = [
    Scenario("steady, 80 % of the limit"),
    Scenario("steady, exactly the limit", load=1.0),
    Scenario("one hot key, 3 × the limit", load=3.0, seconds=20),
    Scenario("bursts: 5 seconds' requests in one", pattern="bursts"),
    Scenario("take, pause, flood", pattern="ambush", load=1.0),
    Scenario("2 000 keys by Zipf's law, below their limits", load=2.0, keys=2_000, limit="60000/minute", seconds=30),
    Scenario("2 000 keys by Zipf's law, 600/minute each", load=200, keys=2_000, limit="600/minute", seconds=30),
    Scenario("80 %, half of the processes die", deaths=0.5),
    Scenario("80 %, an outage of 10 s, `closed`", outage="closed"),
    Scenario("80 %, trips of 10 ms", latency_ms=10.0),
    Scenario("80 %, trips of 50 ms", latency_ms=50.0),
    Scenario("80 %, trips of 50 ms", latency_ms=50.0, for_ms=100),
    Scenario("`1000000/hour`, 80 %, trips of 150 ms", latency_ms=150.0, for_ms=10_000, limit=HOURLY, seconds=180),
]
WINDOWS = ("fixed-window", "sliding-log", "sliding-counter", "gcra")
USER = [
    *(
        Scenario(
            "ten times its limit", load=10, limit="100/minute fixed-window", seconds=180, share=share, deny_cache=deny
        )
        for share, deny in ((0.05, False), (0.05, True))
    ),
    *(
        Scenario(name, load=load, limit=f"100/minute {algorithm}", seconds=seconds, share=None, deny_cache=True)
        for name, load, seconds in (("ten times its limit", 10, 180), ("1 000 per second", 600, 60))
        for algorithm in WINDOWS
    ),
]
WORST = [
    Scenario("take, pause, flood", pattern="ambush", load=1.0),
    Scenario("take, pause, flood", pattern="ambush", load=1.0, processes=100),
    Scenario("take, pause, flood", pattern="ambush", load=1.0, share=0.5),
    *(
        Scenario("at the window's edge", pattern="edge", load=1.0, limit=f"20000/10 seconds {algorithm}")
        for algorithm in ("sliding-log large", "sliding-counter", "fixed-window")
    ),
]
SCENARIOS = list(dict.fromkeys([*SCALE, *CHOICE, *TRAFFIC, *USER, *WORST]))


LENGTHS = (SECOND, 10 * SECOND, 60 * SECOND)  # of times in which the promise is looked at


class Pair(NamedTuple):
    """The same traffic with slices, and with one trip for each decision."""

    sliced: Run
    plain: Run


@dataclass(slots=True)
class Fleets:
    """The results, by scenario."""

    pairs: dict[Scenario, Pair] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on the promise, if anything was played."""
        if not self.pairs:
            return []
        found = [run.most_in(length) / run.promised_in(length) for run, _ in self.pairs.values() for length in LENGTHS]
        return [at_most(PURE, "fleet: the most that passed, in times what slices promise", 1.0, spread([max(found)]))]

    def sheets(self) -> list[Sheet]:
        """Return the tables."""
        return [
            Sheet("Fleets of different sizes", HEAD, self._rows(SCALE)),
            Sheet("Share and for", HEAD, self._rows(CHOICE)),
            Sheet("Kinds of traffic", HEAD, self._rows(TRAFFIC)),
            Sheet(
                "A client that asks for more than its limit",
                DENIAL_HEAD,
                [denial_row(self.pairs[each]) for each in USER if each in self.pairs],
            ),
            Sheet(
                "The worst second and the worst period",
                WORST_HEAD,
                [worst_row(self.pairs[each]) for each in WORST if each in self.pairs],
            ),
        ]

    def _rows(self, scenarios: Sequence[Scenario]) -> list[tuple[str, ...]]:
        return [row(self.pairs[each]) for each in scenarios if each in self.pairs]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {
                **scenario._asdict(),
                "asked": sliced.asked,
                "trips": sliced.trips,
                "charged": sliced.charged,
                "passed": sliced.passes,
                "passed_without_slices": plain.passes,
            }
            for scenario, (sliced, plain) in self.pairs.items()
        ]


def measure_fleets(scenarios: Sequence[Scenario], done: Done) -> Fleets:
    """Play scenarios, each with and without slices. Traffic without slices is played once for all that share it."""
    fleets = Fleets()
    plain: dict[Scenario, Run] = {}
    for scenario in scenarios:
        bare = scenario.without_slices()
        if bare not in plain:
            plain[bare] = simulate(bare)
        fleets.pairs[scenario] = Pair(simulate(scenario), plain[bare])
        done()
    return fleets


def play(scenario: Scenario) -> Pair:
    """Play one scenario, with and without slices."""
    return Pair(simulate(scenario), simulate(scenario.without_slices()))


def row(pair: Pair) -> tuple[str, ...]:
    """Return the texts of one row about traffic."""
    scenario, asked = pair.sliced.scenario, pair.sliced.asked
    each = asked / scenario.seconds / scenario.processes / scenario.keys * scenario.for_ms / 1_000
    return (
        scenario.name,
        f"{scenario.processes:,}".replace(",", " "),
        _slice(scenario),
        f"{each:.2g}" if each < 10 else f"{each:.0f}",
        f"{_trips(pair.sliced):.3f}",
        f"{_lost(pair.sliced):.1%}",
        f"{pair.sliced.passes / asked:.1%}",
        f"{pair.plain.passes / asked:.1%}",
    )


def denial_row(pair: Pair) -> tuple[str, ...]:
    """Return the texts of one row about a client that is denied."""
    scenario, asked = pair.sliced.scenario, pair.sliced.asked
    parts = [*(["slices"] if scenario.share else []), *(["deny cache"] if scenario.deny_cache else [])]
    return (
        scenario.name,
        f"`{scenario.limit}`",
        ", ".join(parts),
        f"{_trips(pair.sliced):.3f}",
        f"{pair.sliced.passes / asked:.1%}",
        f"{pair.plain.passes / asked:.1%}",
    )


def worst_row(pair: Pair) -> tuple[str, ...]:
    """Return the texts of one row about the worst time: a second for a bucket, a period for windows."""
    scenario = pair.sliced.scenario
    limit = scenario.parsed()
    length, name = (SECOND, "second") if scenario.pattern == "ambush" else (limit.period_us, "period")
    traffic = f"{scenario.name}; {scenario.processes} processes, {_slice(scenario)}"
    found = (pair.plain.most_in(length), pair.sliced.most_in(length), pair.sliced.promised_in(length))
    return (f"`{scenario.limit}`", traffic, name, *(f"{share:.1%}" for share in found))


def _slice(scenario: Scenario) -> str:
    return "none" if scenario.share is None else f"{scenario.share:.0%}, {scenario.for_ms / 1_000:g} s"


WIDTH, HEIGHT = 760, 330
PANELS = ((64, 356), (448, 740))  # left and right of each
TOP, FLOOR = 64, 262
COLOURS = {100: "#cf222e", 1_000: "#0969da"}


def draw(fleets: Fleets) -> str:
    """Return a picture of trips and lost units by the number of processes: an SVG for light and dark pages."""
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.faint{stroke:#8c959f;stroke-width:.6}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
    )
    title = "Trips per decision and lost units, by the number of processes that share one key"
    told = "One key, 1 000 requests per second in all, which is half of its limit; slices of 5 %"
    panels = [
        _panel(fleets, PANELS[0], "trips per decision", _trips, (0.0, 0.5, 1.0)),
        _panel(fleets, PANELS[1], "lost units, of those charged", _lost, (0.0, 0.1, 0.2, 0.3)),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title><style>{style}</style>",
            f'<text x="{PANELS[0][0]}" y="22">{escape(told)}</text>',
            *(line for panel in panels for line in panel),
            "</svg>",
            "",
        ]
    )


def _trips(run: Run) -> float:
    return run.trips / run.asked


def _lost(run: Run) -> float:
    return 1 - run.passes / run.charged


def _panel(
    fleets: Fleets, sides: tuple[int, int], label: str, value: Callable[[Run], float], ticks: Sequence[float]
) -> list[str]:
    left, right = sides

    def x(processes: int) -> float:
        return round(left + (right - left) * PROCESSES.index(processes) / (len(PROCESSES) - 1), 1)

    def y(value: float) -> float:
        return round(FLOOR - (FLOOR - TOP) * value / ticks[-1], 1)

    parts = [f'<text x="{left}" y="{TOP - 14}">{escape(label)}</text>']
    for tick in ticks:
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}" class="faint"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for processes in PROCESSES:
        parts.append(f'<text x="{x(processes)}" y="{FLOOR + 20}" text-anchor="middle">{processes}</text>')
    parts.append(f'<text x="{right}" y="{FLOOR + 42}" text-anchor="end">processes</text>')
    for place, (for_ms, colour) in enumerate(COLOURS.items()):
        points = []
        for scenario in SCALE:
            if scenario.for_ms == for_ms:
                run = fleets.pairs[scenario].sliced
                points.append((x(scenario.processes), y(value(run))))
        line = " ".join(f"{at},{height}" for at, height in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{at}" cy="{height}" r="3.5" fill="{colour}"/>' for at, height in points]
        top = TOP + 18 + 18 * place
        parts.append(f'<text x="{left + 10}" y="{top}" style="fill:{colour}">for {for_ms / 1_000:g} s</text>')
    return parts
