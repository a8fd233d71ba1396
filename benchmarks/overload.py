"""Goodput of an overloaded server: the answers within one second, with `concurrent: auto` and without.

The clients are open: they come whatever the server does, and wait for their answer. Each load meets a new server.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from random import Random
from typing import Any

from benchmarks.builds import Done
from benchmarks.measure import Spread, spread
from benchmarks.overload_server import CAPACITY
from benchmarks.verdict import Verdict, at_least, at_most

LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # times the capacity
KINDS = {"without": "no", "concurrent: auto": "auto"}
WARM_UP, MEASURED = 4.0, 8.0  # seconds
IN_TIME = 1.0  # seconds
LEAST, MOST = 0.9, 0.5  # share of the best goodput at twice the capacity, with and without
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@dataclass(slots=True)
class Overloading:
    """Answers per second within one second, by kind and load, one for each round."""

    goodput: dict[tuple[str, float], list[float]] = field(default_factory=dict)

    def best(self) -> float:
        """Return the best goodput of the bare server, whatever the load."""
        return max(spread(found).median for (kind, _), found in self.goodput.items() if kind == "without")

    def share(self, kind: str, load: float) -> Spread:
        """Return the goodput at a load as a share of the best."""
        best = self.best()
        return spread([found / best for found in self.goodput[kind, load]])

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on twice the capacity."""
        if not self.goodput:
            return []
        what = "goodput at twice the capacity, as a share of the best: "
        auto, bare = self.share("concurrent: auto", 2.0), self.share("without", 2.0)
        return [
            at_least("pure", what + "concurrent: auto", LEAST, auto),
            at_most("pure", what + "without", MOST, bare),
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {"kind": kind, "load": load, "goodput": found, "share": self.share(kind, load)._asdict()}
            for (kind, load), found in self.goodput.items()
        ]


def steps(rounds: int) -> int:
    """Return the number of steps of a run."""
    return len(KINDS) * len(LOADS) * rounds


def measure_overload(rounds: int, done: Done) -> Overloading:
    """Return the goodput of both servers at each load."""
    results = Overloading()
    for number in range(rounds):
        for load in LOADS:
            for kind, concurrent in KINDS.items():
                with _served(concurrent) as port:
                    found = asyncio.run(_goodput(port, CAPACITY * load, Random(number)))
                results.goodput.setdefault((kind, load), []).append(found)
                done()
    return results


@contextmanager
def _served(concurrent: str) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.overload_server", str(port), concurrent])
    try:
        if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


async def _goodput(port: int, rate: float, random: Random) -> float:
    """Return the answers per second that came in time."""
    good = 0

    async def ask(counts: bool) -> None:
        nonlocal good
        begin = time.monotonic()
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(REQUEST)
                line = await reader.readline()
                await reader.read()
            finally:
                writer.close()
            good += counts and b" 200 " in line and time.monotonic() - begin <= IN_TIME

    begin = time.monotonic()
    arrives, tasks = 0.0, set[asyncio.Task[None]]()
    while arrives < WARM_UP + MEASURED:
        arrives += random.expovariate(rate)
        await asyncio.sleep(max(begin + arrives - time.monotonic(), 0))
        task = asyncio.create_task(ask(arrives > WARM_UP))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    _, late = await asyncio.wait(list(tasks) or [asyncio.create_task(asyncio.sleep(0))], timeout=IN_TIME + 0.5)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return good / MEASURED


WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, FLOOR = 56, 616, 40, 268


def draw(results: Overloading) -> str:
    """Return a picture of the goodput of both servers: an SVG for light and dark pages."""
    most = max(LOADS)

    def x(load: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * load / most, 1)

    def y(share: float) -> float:
        return round(FLOOR - (FLOOR - TOP) * share / 1.1, 1)

    lines = []
    for kind, colour in (("without", "#cf222e"), ("concurrent: auto", "#1a7f37")):
        shares = [(load, results.share(kind, load).median) for load in LOADS]
        points = " ".join(f"{x(load)},{y(share)}" for load, share in [(0.0, 0.0), *shares])
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        lines += [f'<circle cx="{x(load)}" cy="{y(share)}" r="3.5" fill="{colour}"/>' for load, share in shares]
        last = shares[-1][1]
        lines.append(f'<text x="{RIGHT}" y="{y(last) - 10}" text-anchor="end" fill="{colour}">{escape(kind)}</text>')
    grid = [
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(share)}" y2="{y(share)}" class="faint"/>'
        f'<text x="{LEFT - 8}" y="{y(share) + 4}" text-anchor="end">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    ticks = [f'<text x="{x(load)}" y="{FLOOR + 20}" text-anchor="middle">{load:g}×</text>' for load in (0, 1, 2, 3)]
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.faint{stroke:#8c959f;stroke-width:.6}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
    )
    title = "Answers within one second, as a share of the best, against the load in times the capacity"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{title}</title><style>{style}</style>",
            f'<text x="{LEFT}" y="20">Answers within one second, as a share of the best</text>',
            *grid,
            *ticks,
            f'<text x="{RIGHT}" y="{FLOOR + 42}" text-anchor="end">load, in times the capacity of the server</text>',
            *lines,
            "</svg>",
            "",
        ]
    )
