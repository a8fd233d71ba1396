"""The results of one run: compared with the required ratios, as tables for people and as JSON for programs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import bytes_per_key
from benchmarks.builds import FOLDERS, PURE
from benchmarks.bytes_per_key import Weight
from benchmarks.cases import REQUIRED
from benchmarks.client import Calling
from benchmarks.dashboard import Watching
from benchmarks.decision_table import decision_sheet, lines_of
from benchmarks.fleet import Fleets
from benchmarks.gate import PEER, Gating
from benchmarks.growth import MOST, SMALL, Growth
from benchmarks.guard import Guarding
from benchmarks.imports import Importing
from benchmarks.layers import ENDPOINTS, RULES, Layering
from benchmarks.loadtest import Sending
from benchmarks.measure import Case, Spread, Times, spread
from benchmarks.memory import Footprint, judge
from benchmarks.overload import Overloading
from benchmarks.redis_capacity import Capacity
from benchmarks.redis_trips import Trips
from benchmarks.replay import Replaying
from benchmarks.service import Serving
from benchmarks.shared_memory import Sharing
from benchmarks.slices import Slicing
from benchmarks.storages import Lasting
from benchmarks.table import Sheet, between, figures
from benchmarks.verdict import Verdict, at_most
from benchmarks.web import Webbing

PACKAGES = (
    "ratebound",
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "rust-py-rate-limit",
    "redis",
    "hiredis",
    "slowapi",
    "Flask-Limiter",
    "starlette",
    "Flask",
    "uvicorn",
    "httptools",
    "uvloop",
    "grpcio",
    "psycopg",
    "pymemcache",
    "httpx",
    "requests",
    "urllib3",
    "aiohttp",
    "tenacity",
    "stamina",
    "aiolimiter",
    "requests-ratelimiter",
)
CHANGED = "Files of Ratebound changed during the run: some figures may be of other code."


@dataclass(slots=True)
class Results:
    """The results of all parts of a run."""

    machine: dict[str, Any]
    changed: bool = False  # our files changed during the run: later processes saw other code than earlier ones
    decisions: list[tuple[Case, Times]] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    memory: list[Footprint] = field(default_factory=list)
    trips: list[Trips] = field(default_factory=list)
    guarding: Guarding = field(default_factory=Guarding)
    gating: Gating = field(default_factory=Gating)
    layering: Layering = field(default_factory=Layering)
    webbing: Webbing = field(default_factory=Webbing)
    overloading: Overloading = field(default_factory=Overloading)
    sharing: Sharing = field(default_factory=Sharing)
    slicing: Slicing = field(default_factory=Slicing)
    weights: list[Weight] = field(default_factory=list)
    fleets: Fleets = field(default_factory=Fleets)
    capacity: list[Capacity] = field(default_factory=list)
    serving: list[Serving] = field(default_factory=list)
    watching: list[Watching] = field(default_factory=list)
    lasting: list[Lasting] = field(default_factory=list)
    calling: list[Calling] = field(default_factory=list)
    sending: Sending = field(default_factory=Sending)
    replaying: Replaying = field(default_factory=Replaying)
    importing: Importing = field(default_factory=Importing)

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required ratio that was measured."""
        found = {(line.build, line.case, line.contender): line.times for line in lines_of(self.decisions)}
        judged = []
        for required in REQUIRED:
            times = found.get((required.build, required.case, required.other))
            if times is not None:
                judged.append(required.verdict(times))
        for growth in self.growth:
            if growth.build == PURE:
                what = f"{growth.algorithm}: growth to {growth.keys:,} keys, in times a bare dict's"
                judged.append(at_most(PURE, what, MOST, growth.times))
        judged += [verdict for footprint in self.memory for verdict in judge(footprint)]
        judged += self.guarding.verdicts() + self.gating.verdicts() + self.layering.verdicts()
        judged += [verdict for trips in self.trips for verdict in trips.verdicts()]
        judged += self.webbing.verdicts() + self.overloading.verdicts() + self.sending.verdicts()
        judged += self.replaying.verdicts() + self.importing.verdicts()
        judged += [verdict for serving in self.serving for verdict in serving.verdicts()]
        judged += [verdict for watching in self.watching for verdict in watching.verdicts()]
        judged += [verdict for lasting in self.lasting for verdict in lasting.verdicts()]
        judged += [verdict for calling in self.calling for verdict in calling.verdicts()]
        return judged + self.sharing.verdicts() + self.slicing.verdicts() + self.fleets.verdicts()

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "machine": self.machine,
            "changed": self.changed,
            "unit": "seconds of CPU per decision; median and quartiles over the rounds",
            "decisions": [_plain(line) for line in lines_of(self.decisions)],
            "growth": [_plain(growth) for growth in self.growth],
            "memory": [_plain(footprint) for footprint in self.memory],
            "guard": self.guarding.as_json(),
            "gate": self.gating.as_json(),
            "layers": self.layering.as_json(),
            "redis": [trips.as_json() for trips in self.trips],
            "web": self.webbing.as_json(),
            "overload": self.overloading.as_json(),
            "shm": self.sharing.as_json(),
            "slices": self.slicing.as_json(),
            "bytes": [asdict(weight) for weight in self.weights],
            "fleet": self.fleets.as_json(),
            "capacity": [capacity.as_json() for capacity in self.capacity],
            "service": [serving.as_json() for serving in self.serving],
            "dashboard": [watching.as_json() for watching in self.watching],
            "loadtest": self.sending.as_json(),
            "replay": self.replaying.as_json(),
            "imports": self.importing.as_json(),
            "storages": [lasting.as_json() for lasting in self.lasting],
            "client": [calling.as_json() for calling in self.calling],
            "required": [_plain(verdict) for verdict in self.verdicts()],
        }


def machine(builds: Sequence[str]) -> dict[str, Any]:
    """Return a description of the machine, of Python, of the versions and of the measured builds."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {package: version(package) for package in PACKAGES},
        "sources": {build: sources(build) for build in builds},
    }


def sources(build: str) -> str:
    """Return a digest of the sources of a build: a version number does not distinguish two working trees.

    A compiled build holds the sources that it was made from.
    """
    digest = blake2b(digest_size=8)
    folder = FOLDERS[build] / "ratebound"
    for path in sorted(path for kind in ("*.py", "*.lua") for path in folder.rglob(kind)):
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
        decision_sheet(results.decisions),
        Sheet(
            "Growth with the keys",
            ("build", "who", "keys", f"ns at {SMALL:,}", "ns at all", "added", "times the dict's"),
            [row for growth in results.growth for row in _growth_rows(growth)],
        ),
        Sheet(
            "The guard and listeners: CPU time per call",
            ("case", "build", "who", "µs per call", "quartiles", "µs added", "quartiles"),
            _guard_rows(results.guarding),
        ),
        Sheet(
            "A policy's gate in memory: CPU time per request",
            ("build", "who", "µs per request", "quartiles", f"times {PEER.name}", "quartiles"),
            [(build, who, *figures(time, 1e6), *figures(peer)) for build, who, time, peer in results.gating.rows()],
        ),
        Sheet(
            f"{ENDPOINTS} endpoints on a policy of {RULES} rules: CPU time and memory of all, pure build",
            ("who", "ms", "quartiles", "MB"),
            [(way, *figures(seconds, 1e3), f"{size / 1e6:.2f}") for way, seconds, size in results.layering.rows()],
        ),
        Sheet(
            "Memory, one hit per key",
            ("build", "who", "keys", "bytes per key", "µs of CPU per new key"),
            [
                (
                    each.build if "ratebound" in each.name else "",
                    each.name,
                    f"{each.keys:,}",
                    f"{each.bytes_per_key:.0f}",
                    f"{each.seconds / each.keys * 1e6:.2f}",
                )
                for each in results.memory
            ],
        ),
        *(sheet for trips in results.trips for sheet in _trip_sheets(trips)),
        Sheet(
            "A request in process: CPU time, and what the limiter adds to it",
            (
                "case",
                "build",
                "who",
                "µs per request",
                "µs added",
                "quartiles",
                "times less than the peer",
                "quartiles",
            ),
            _web_rows(results.webbing),
        ),
        Sheet(
            "Commands to Redis per request",
            ("build", "who", "commands"),
            [
                (build, who, f"{trips:.2f}")
                for build, counted in results.webbing.trips.items()
                for who, trips in counted.items()
            ],
        ),
        Sheet(
            "An overloaded server: answers within one second",
            ("load", "who", "per second", "share of the best", "quartiles"),
            [
                (f"{load:g}", kind, f"{spread(found).median:.0f}", *figures(results.overloading.share(kind, load)))
                for (kind, load), found in results.overloading.goodput.items()
            ],
        ),
        *results.sharing.sheets(),
        *results.slicing.sheets(),
        *bytes_per_key.sheets(results.weights, list(results.machine["sources"])),
        *results.fleets.sheets(),
        *(sheet for capacity in results.capacity for sheet in _capacity_sheets(capacity)),
        *(sheet for serving in results.serving for sheet in serving.sheets()),
        *(sheet for watching in results.watching for sheet in watching.sheets()),
        *(sheet for lasting in results.lasting for sheet in lasting.sheets()),
        *(sheet for calling in results.calling for sheet in calling.sheets()),
        *results.sending.sheets(),
        *results.replaying.sheets(),
        *results.importing.sheets(),
        Sheet(
            "Required",
            ("build", "what", "threshold", "found", "quartiles", ""),
            [
                (build, what, threshold, f"{found.median:.2f}", between(found), "PASS" if passed else "MISS")
                for build, what, threshold, found, passed in results.verdicts()
            ],
        ),
    ]
    return [sheet for sheet in drawn if sheet.rows]


def _guard_rows(guarding: Guarding) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    case: tuple[str, str] = ("", "")
    for name, build, who, time, added in guarding.rows():
        first, case = (name, build) != case, (name, build)
        begin = case if first else ("", "")
        rows.append((*begin, who, *figures(time, 1e6), *(("", "") if first else figures(added))))
    return rows


def _web_rows(webbing: Webbing) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    case: tuple[str, str] = ("", "")
    for name, build, who, time, added, less in webbing.rows():
        first, case = (name, build) != case, (name, build)
        begin = case if first else ("", "")
        extra = ("", "") if first else figures(added, 1e6)
        rows.append((*begin, who, f"{time.median * 1e6:.1f}", *extra, *(figures(less) if less else ("", ""))))
    return rows


def _capacity_sheets(capacity: Capacity) -> list[Sheet]:
    return [
        Sheet(
            f"What a decision costs, {capacity.server}, {capacity.build} build: CPU time and bytes",
            (
                "decision",
                "asked by",
                "µs of the server",
                "quartiles",
                "per second and core",
                "µs of the client",
                "bytes sent",
                "received",
            ),
            capacity.rows(),
        ),
        Sheet(
            f"Decisions without a trip, {capacity.build} build: CPU time of the client",
            ("where", "µs", "quartiles"),
            [(where, *figures(spread(times), 1e6)) for where, times in capacity.local.items()],
        ),
    ]


def _trip_sheets(trips: Trips) -> list[Sheet]:
    return [
        Sheet(
            f"Wall time per call on {trips.server}, {trips.build} build",
            ("who", "µs per call", "quartiles", "times bare", "quartiles"),
            [
                (who, *figures(spread(times), 1e6), *figures(trips.times_bare(who)))
                for who, times in trips.times.items()
            ],
        ),
        Sheet(
            f"AsyncLimiter on {trips.server}, {trips.build} build",
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


def _growth_rows(growth: Growth) -> list[Sequence[str]]:
    times = f"{growth.times.median:.2f} ({between(growth.times)})"
    return [
        (growth.build, f"ratebound {growth.algorithm}", f"{growth.keys:,}", *_added(*growth.ours), times),
        ("", "bare dict", f"{growth.keys:,}", *_added(*growth.bare), ""),
    ]


def _added(small: Spread, large: Spread) -> list[str]:
    return [f"{seconds * 1e9:.0f}" for seconds in (small.median, large.median, large.median - small.median)]


def heading(results: Results) -> str:
    """Return the lines above the tables. The digests tell whether a figure is of the code that one has."""
    about = results.machine
    packages = ", ".join(f"{name} {number}" for name, number in about["packages"].items())
    digests = ", ".join(f"{build} {digest}" for build, digest in about["sources"].items())
    return (
        f"{about['python']}, {about['cpu']}, {about['cores']} cores, load {about['load'][0]} at the start.\n"
        f"Digest of the sources: {digests}.\n{packages}."
    )


def show(results: Results, console: Console) -> None:
    """Print the results on a terminal."""
    console.print(heading(results), highlight=False)
    if results.changed:
        console.print(CHANGED)
    if len(set(results.machine["sources"].values())) > 1:
        console.print("The compiled build was made from other sources than those in src. Run: make compiled")
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


def markdown(results: Results, what: str, command: str, started: datetime) -> str:
    """Return the results as a page of Markdown. `command` is what was run."""
    parts = [
        f"# Figures: {what}\n\n`{command}` on {started:%Y-%m-%d} at {started:%H:%M} UTC. {heading(results)}",
    ]
    if results.changed:
        parts.append(CHANGED)
    for sheet in sheets(results):
        lines = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
        parts.append(f"**{sheet.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"
