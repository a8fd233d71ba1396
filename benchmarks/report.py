"""The results of one run: compared with the required ratios, as tables for people and as JSON for programs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import ratebound
from benchmarks.cases import REQUIRED
from benchmarks.gate import Gating
from benchmarks.growth import MOST, SMALL, Growth
from benchmarks.guard import Guarding
from benchmarks.layers import ENDPOINTS, RULES, Layering
from benchmarks.measure import Case, Spread, ratios, spread
from benchmarks.memory import Footprint
from benchmarks.redis_trips import Trips
from benchmarks.web import Webbing

PACKAGES = (
    "ratebound",
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "redis",
    "hiredis",
    "slowapi",
    "Flask-Limiter",
    "starlette",
    "Flask",
)


class Line(NamedTuple):
    """One contender of one case: CPU seconds per decision, and the ratio to ours."""

    case: str
    contender: str
    returns: str
    time: Spread
    times: Spread


class Verdict(NamedTuple):
    """A required value, the measured one, and the verdict."""

    what: str
    threshold: str
    found: Spread
    passed: bool


class Sheet(NamedTuple):
    """A table before it is drawn, on a terminal or in Markdown."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(slots=True)
class Results:
    """The results of all parts of a run."""

    machine: dict[str, Any]
    changed: bool = False  # our files changed during the run: the memory part, in new processes, saw other code
    lines: list[Line] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    memory: list[Footprint] = field(default_factory=list)
    trips: Trips = field(default_factory=Trips)
    guarding: Guarding = field(default_factory=Guarding)
    gating: Gating = field(default_factory=Gating)
    layering: Layering = field(default_factory=Layering)
    webbing: Webbing = field(default_factory=Webbing)

    def add(self, case: Case, times: dict[str, list[float]]) -> None:
        """Add the times of a case."""
        ours = times[case.contenders[0].name]
        for contender in case.contenders:
            theirs = times[contender.name]
            times_ours = spread(ratios(ours, theirs))
            self.lines.append(Line(case.name, contender.name, contender.returns, spread(theirs), times_ours))

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required ratio that was measured."""
        found = {(line.case, line.contender): line.times for line in self.lines}
        judged = []
        for required in REQUIRED:
            times = found.get((required.case, required.peer))
            if times is not None:
                what = f"{required.case}: times as fast as {required.peer}"
                judged.append(Verdict(what, f"at least {required.times:g}", times, times.median >= required.times))
        for growth in self.growth:
            what = f"{growth.algorithm}: growth to {growth.keys:,} keys, in times a bare dict's"
            judged.append(Verdict(what, f"at most {MOST:g}", growth.times, growth.times.median <= MOST))
        return judged + [
            Verdict(*each)
            for part in (self.guarding, self.gating, self.layering, self.trips, self.webbing)
            for each in part.verdicts()
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "machine": self.machine,
            "changed": self.changed,
            "unit": "seconds of CPU per decision; median and quartiles over the rounds",
            "decisions": [_plain(line) for line in self.lines],
            "growth": [_plain(growth) for growth in self.growth],
            "memory": [_plain(footprint) for footprint in self.memory],
            "guard": self.guarding.as_json(),
            "gate": self.gating.as_json(),
            "layers": self.layering.as_json(),
            "redis": self.trips.as_json(),
            "web": self.webbing.as_json(),
            "required": [_plain(verdict) for verdict in self.verdicts()],
        }


def machine() -> dict[str, Any]:
    """Return a description of the machine, of Python and of the versions."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {package: version(package) for package in PACKAGES},
        "sources": sources(),
    }


def sources() -> str:
    """Return a digest of our own files: a version number does not distinguish two working trees."""
    digest = blake2b(digest_size=8)
    for path in sorted(path for kind in ("*.py", "*.lua") for path in Path(ratebound.__file__).parent.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _plain(value: Any) -> Any:
    """Return named tuples as dicts, so that the JSON can be read without this file."""
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def sheets(results: Results) -> list[Sheet]:
    """Return the tables of the results."""
    drawn = [
        Sheet(
            "CPU time per decision",
            ("case", "who", "returns", "µs per decision", "quartiles", "times ours", "quartiles"),
            _decision_rows(results.lines),
        ),
        Sheet(
            "Growth with the keys",
            ("who", "keys", f"ns at {SMALL:,}", "ns at all", "added", "times the dict's"),
            [row for growth in results.growth for row in _growth_rows(growth)],
        ),
        Sheet(
            "The guard, and those who listen: CPU time per call",
            ("case", "who", "µs per call", "quartiles", "µs added", "quartiles"),
            _guard_rows(results.guarding),
        ),
        Sheet(
            "A policy's gate in memory: CPU time per request",
            ("who", "µs per request", "quartiles", "times a bare hit", "quartiles"),
            [(who, *_figures(time, 1e6), *_figures(bare)) for who, time, bare in results.gating.rows()],
        ),
        Sheet(
            f"{ENDPOINTS} endpoints on a policy of {RULES} rules: CPU time and memory of all",
            ("who", "ms", "quartiles", "MB"),
            [(way, *_figures(seconds, 1e3), f"{size / 1e6:.2f}") for way, seconds, size in results.layering.rows()],
        ),
        Sheet(
            "Memory, one hit per key",
            ("who", "keys", "bytes per key", "µs of CPU per new key"),
            [
                (each.name, f"{each.keys:,}", f"{each.bytes_per_key:.0f}", f"{each.seconds / each.keys * 1e6:.2f}")
                for each in results.memory
            ],
        ),
        *_trip_sheets(results.trips),
        Sheet(
            "A request in process: CPU time, and what the limiter adds to it",
            ("case", "who", "µs per request", "µs added", "quartiles", "times less than the peer", "quartiles"),
            _web_rows(results.webbing),
        ),
        Sheet(
            "Commands to Redis per request",
            ("who", "commands"),
            [(who, f"{trips:.2f}") for who, trips in results.webbing.trips.items()],
        ),
        Sheet(
            "Required",
            ("what", "threshold", "found", "quartiles", ""),
            [
                (what, threshold, f"{found.median:.2f}", _between(found), "PASS" if passed else "MISS")
                for what, threshold, found, passed in results.verdicts()
            ],
        ),
    ]
    return [sheet for sheet in drawn if sheet.rows]


def _decision_rows(lines: Sequence[Line]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    case = ""
    for line in lines:
        first, case = line.case != case, line.case
        asked = (case if first else "", line.contender, line.returns)
        took = (f"{line.time.median * 1e6:.2f}", _between(line.time, 1e6))
        times = ("", "") if first else (f"{line.times.median:.2f}", _between(line.times))
        rows.append(asked + took + times)
    return rows


def _guard_rows(guarding: Guarding) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    case = ""
    for name, who, time, added in guarding.rows():
        first, case = name != case, name
        rows.append((case if first else "", who, *_figures(time, 1e6), *(("", "") if first else _figures(added))))
    return rows


def _web_rows(webbing: Webbing) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    case = ""
    for name, who, time, added, less in webbing.rows():
        first, case = name != case, name
        extra = ("", "") if first else _figures(added, 1e6)
        rows.append(
            (case if first else "", who, f"{time.median * 1e6:.1f}", *extra, *(_figures(less) if less else ("", "")))
        )
    return rows


def _trip_sheets(trips: Trips) -> list[Sheet]:
    return [
        Sheet(
            f"Wall time per call on {trips.server}",
            ("who", "µs per call", "quartiles", "times bare", "quartiles"),
            [
                (who, *_figures(spread(times), 1e6), *_figures(trips.times_bare(who)))
                for who, times in trips.times.items()
            ],
        ),
        Sheet(
            f"AsyncLimiter on {trips.server}",
            ("tasks", "decisions per second", "quartiles"),
            [
                (str(tasks), f"{found.median:,.0f}", f"{found.low:,.0f}–{found.high:,.0f}")
                for tasks, found in ((tasks, spread(rates)) for tasks, rates in trips.rates.items())
            ],
        ),
        Sheet(
            f"Bytes of a key on {trips.server}",
            ("algorithm", "hits", "bytes"),
            [(size.algorithm, str(size.hits), str(size.bytes)) for size in trips.sizes],
        ),
    ]


def _figures(found: Spread, scale: float = 1) -> tuple[str, str]:
    return f"{found.median * scale:.2f}", _between(found, scale)


def _growth_rows(growth: Growth) -> list[Sequence[str]]:
    times = f"{growth.times.median:.2f} ({_between(growth.times)})"
    return [
        (f"ratebound {growth.algorithm}", f"{growth.keys:,}", *_added(*growth.ours), times),
        ("bare dict", f"{growth.keys:,}", *_added(*growth.bare), ""),
    ]


def _added(small: Spread, large: Spread) -> list[str]:
    return [f"{seconds * 1e9:.0f}" for seconds in (small.median, large.median, large.median - small.median)]


def _between(found: Spread, scale: float = 1) -> str:
    return f"{found.low * scale:.2f}–{found.high * scale:.2f}"


def heading(results: Results) -> str:
    """Return the lines above the tables."""
    about = results.machine
    packages = ", ".join(f"{name} {number}" for name, number in about["packages"].items())
    return (
        f"{about['python']}, {about['cpu']}, {about['cores']} cores, load {about['load'][0]} at the start\n{packages}"
    )


def show(results: Results, console: Console) -> None:
    """Print the results on a terminal."""
    console.print(heading(results), highlight=False)
    if results.changed:
        console.print("ratebound's files changed during the run: its memory figures may be of other code")
    for sheet in sheets(results):
        table = Table(title=sheet.title, title_justify="left")
        for place, name in enumerate(sheet.head):
            figures = any(row[place][:1].isdigit() for row in sheet.rows) and place > 0
            table.add_column(name, justify="right" if figures else "left")
        for place, row in enumerate(sheet.rows):
            table.add_row(*row, end_section=_ends_case(sheet, place))
        console.print(table)


def _ends_case(sheet: Sheet, place: int) -> bool:
    return place + 1 < len(sheet.rows) and sheet.head[0] == "case" and sheet.rows[place + 1][0] != ""


def markdown(results: Results) -> str:
    """Return the results as Markdown."""
    parts = []
    for sheet in sheets(results):
        lines = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
        parts.append(f"**{sheet.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"
