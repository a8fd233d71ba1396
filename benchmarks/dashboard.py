"""What open dashboards cost the service: processor time of all its processes, with and without them.

All processes of the service run on one core, and what asks them on another. The service decides 10 000 requests in a
second meanwhile. Each round measures with no dashboard and with 50 of them, close in time.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.servers import free_port

from benchmarks.builds import ROOT, Done
from benchmarks.measure import Spread, spread
from benchmarks.service import HTTP, POLICY, Server, last_core, run_beside, started
from benchmarks.table import Sheet
from benchmarks.verdict import Verdict, at_most

RATE = 10_000  # decisions in a second
SECONDS = 10.0  # of each measurement
OPEN = 50  # dashboards
MOST = 0.05  # of one core
DENYING = "  - {name: denied, match: {paths: /denied}, by: address, limits: 1/hour}\n"


@dataclass(slots=True)
class Watching:
    """Shares of one core that the service took, by the number of open dashboards, one for each round."""

    build: str = ""
    shares: dict[int, list[float]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)  # decisions in a second, of all measurements
    events: list[float] = field(default_factory=list)  # in a second, of the stream that had the fewest

    def added(self) -> Spread:
        """Return what the open dashboards added, as a share of one core."""
        return spread([watched - alone for alone, watched in zip(self.shares[0], self.shares[OPEN], strict=True)])

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on the share of a core that the dashboards take."""
        return [at_most(self.build, f"{OPEN} open dashboards, share of a core", MOST, self.added())]

    def sheets(self) -> list[Sheet]:
        """Return the table."""
        rows = [
            (str(many), f"{found.median:.3f}", f"{found.low:.3f}–{found.high:.3f}")
            for many, found in ((many, spread(shares)) for many, shares in self.shares.items())
        ]
        title = f"Open dashboards at {spread(self.rates).median:,.0f} decisions per second, {self.build}"
        return [Sheet(title, ("dashboards", "share of a core", "quartiles"), rows)]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "unit": "processor seconds of all processes of the service in a second",
            "shares": {str(many): spread(shares)._asdict() for many, shares in self.shares.items()},
            "added": self.added()._asdict(),
            "decisions per second": spread(self.rates)._asdict(),
            "events per second, of the stream with the fewest": spread(self.events)._asdict(),
        }


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return 2 * rounds


def measure_dashboards(build: str, rounds: int, done: Done) -> Watching:
    """Measure the service of a build with no dashboard and with many."""
    watching = Watching(build, {0: [], OPEN: []})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "policy.yaml").write_text(POLICY.replace("rules:\n", f"rules:\n{DENYING}"))
        ports = {HTTP: free_port(), "admin": free_port()}
        command = [sys.executable, "-m", "ratebound", "serve", "--policy", str(folder / "policy.yaml")]
        command += ["--http", str(ports[HTTP]), "--grpc", "off", "--resp", "off", "--admin", str(ports["admin"])]
        token = secrets.token_hex(16)
        server = stack.enter_context(started(build, command, ports, {"RATEBOUND_ADMIN_READ_TOKENS": token}))
        _share(server, watching)  # warm
        for _ in range(rounds):
            watching.shares[0].append(_share(server, watching))
            done()
            with _dashboards(ports["admin"], token, watching):
                watching.shares[OPEN].append(_share(server, watching))
            done()
    return watching


def _share(server: Server, watching: Watching) -> float:
    """Return the share of a core that the service takes under load."""
    before, begin = server.spent(), time.monotonic()
    answered, _ = _loaded(server.ports[HTTP])
    seconds = time.monotonic() - begin
    watching.rates.append(answered / seconds)
    if answered < 0.95 * RATE * SECONDS:
        raise SystemExit(f"only {answered / seconds:,.0f} of {RATE:,} requests in a second were answered")
    return (server.spent() - before) / seconds


def _loaded(port: int) -> tuple[int, int]:
    text = run_beside([sys.executable, "-m", "benchmarks.dashboard_load", "load", str(port), str(RATE), str(SECONDS)])
    answered, denied = text.split()
    return int(answered), int(denied)


@contextmanager
def _dashboards(port: int, token: str, watching: Watching) -> Iterator[None]:
    command = ["taskset", "-c", last_core(), sys.executable, "-m", "benchmarks.dashboard_load"]
    command += ["streams", str(port), token, str(OPEN)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "open\n":
            raise SystemExit("the dashboards could not be opened")
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        fewest, _ = process.communicate(timeout=30)
        watching.events.append(int(fewest) / seconds)
        if int(fewest) < 0.8 * seconds:
            raise SystemExit(f"a dashboard had only {fewest.strip()} events in {seconds:.0f} s")
