"""Senders of load: how many requests one sends and reads for each second of its own processor time.

The server answers a constant and has a core of its own, if there are two. `ratebound loadtest` keeps an open schedule,
measures from due times and reads rate limit headers. wrk and httpx are closed: each connection waits for its answer.
httpx is shown with one request at once, which is its best, and with as many as wrk has.

python -m benchmarks.loadtest SENDER URL performs one sender, and prints its requests, its CPU seconds, and its delay.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.builds import Done, on_all_cores
from benchmarks.measure import spread
from benchmarks.table import Sheet
from benchmarks.verdict import Verdict, at_least, at_most

OWN, FASTER = "ratebound, 10 000/s", "ratebound, 20 000/s"
ONE_BY_ONE, MANY = "httpx, 1 at once", "httpx, 64 at once"
SENDERS = {OWN: "10000/s", FASTER: "20000/s", ONE_BY_ONE: "httpx-1", MANY: "httpx-64", "wrk, 64 at once": "wrk"}
SECONDS = 3.0
AT_ONCE = 64
LEAST = 10_000  # requests per second of CPU
MOST_DELAY = 10.0  # milliseconds of the sender, at 10 000 requests per second


@dataclass(slots=True)
class Sending:
    """Requests per second of CPU, and the 99th percentile of the sender's own delay in milliseconds, by round."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on our sender."""
        if not self.rates:
            return []
        return [
            at_least("pure", "load test: requests per second of CPU", LEAST, spread(self.rates[OWN])),
            at_most("pure", "load test: delay of 99 % at 10 000/s, in ms", MOST_DELAY, spread(self.delays[OWN])),
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [{"sender": name, "rates": found, "delays": self.delays.get(name)} for name, found in self.rates.items()]

    def sheets(self) -> list[Sheet]:
        """Return the table of all senders."""
        rows = [
            (
                name,
                f"{spread(found).median:,.0f}",
                f"{spread(found).low:,.0f}–{spread(found).high:,.0f}",
                f"{spread(self.delays[name]).median:.2f}" if name in self.delays else "closed: not measured",
            )
            for name, found in self.rates.items()
        ]
        columns = ("sender", "requests per second of CPU", "quartiles", "delay of 99 %, in ms")
        return [Sheet("Senders of load", columns, rows)]


def installed() -> list[str]:
    """Return the senders that can run here."""
    return [name for name, sender in SENDERS.items() if sender != "wrk" or shutil.which("wrk")]


def steps(rounds: int) -> int:
    """Return the number of steps of a run."""
    return len(installed()) * rounds


def measure_sending(rounds: int, done: Done) -> Sending:
    """Return the figures of all senders, one after the other in each round."""
    results = Sending()
    with _served() as url:
        for _ in range(rounds):
            for name in installed():
                count, cpu, delay = _wrk(url) if SENDERS[name] == "wrk" else _own(SENDERS[name], url)
                results.rates.setdefault(name, []).append(count / cpu)
                if delay is not None:
                    results.delays.setdefault(name, []).append(delay * 1000)
                done()
    return results


@contextmanager
def _served() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with on_all_cores():
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.loadtest_server", str(port)])
    try:
        if hasattr(os, "sched_setaffinity"):  # this process and the senders have the first core
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(process.pid))})
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


def _own(sender: str, url: str) -> tuple[int, float, float | None]:
    command = [sys.executable, "-m", "benchmarks.loadtest", sender, url]
    count, cpu, delay = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return count, cpu, delay


def _wrk(url: str) -> tuple[int, float, None]:
    command = ["wrk", "-t1", f"-c{AT_ONCE}", f"-d{SECONDS:.0f}s", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    found = re.search(r"(\d+) requests in", output)
    if found is None:
        raise SystemExit(f"wrk did not say how many requests it sent:\n{output}")
    return int(found[1]), usage.ru_utime + usage.ru_stime, None


def _ratebound(rate: str, url: str) -> tuple[int, float, float | None]:
    from ratebound.loadtest.arrivals import parse_arrivals
    from ratebound.loadtest.identities import Clients, parse_identity
    from ratebound.loadtest.plan import LoadPlan, LoadTarget
    from ratebound.loadtest.run import run_load_here

    clients = Clients(20, [parse_identity("header:X-Api-Key=key-{n}")])
    plan = LoadPlan(targets=[LoadTarget(url)], arrivals=parse_arrivals(rate, SECONDS), clients=clients)
    run = run_load_here(plan, on_progress=lambda progress: None)
    good = sum(status == 200 for status in run.answers.status)
    if good != run.due:
        raise SystemExit(f"{good} of {run.due} requests were answered: {run.notes}")
    return good, run.cpu * run.elapsed, run.delay.p99


async def _httpx(url: str, at_once: int) -> tuple[int, float, None]:
    import httpx

    count, end = 0, time.monotonic() + SECONDS
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=at_once)) as client:

        async def ask() -> None:
            nonlocal count
            while time.monotonic() < end:
                response = await client.get(url)
                count += response.status_code == 200

        begun = time.process_time()
        await asyncio.gather(*(ask() for _ in range(at_once)))
        return count, time.process_time() - begun, None


if __name__ == "__main__":
    import uvloop

    sender, url = sys.argv[1:3]
    kind, _, at_once = sender.partition("-")
    print(json.dumps(uvloop.run(_httpx(url, int(at_once))) if kind == "httpx" else _ratebound(sender, url)))
