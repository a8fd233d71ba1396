"""The service beside servers that answer a constant: processor time of the server for each request, and latency.

Servers run on one core and the load on another. The load comes from wrk, h2load and redis-benchmark. Each round meets
all servers once, so that a ratio compares two loads that were close in time.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from socket import create_connection
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
from tests.servers import free_port, redis_server

from benchmarks.builds import FOLDERS, ROOT, Done
from benchmarks.grpc_load import PATH, rate_limit_request
from benchmarks.measure import Spread, ratios, spread
from benchmarks.table import Sheet
from benchmarks.verdict import Verdict, at_most

SECONDS = 2.0  # of each load
PROGRAMS = ("wrk", "h2load", "redis-benchmark")
POLICY = (
    """\
rules:
"""
    + "".join(
        f"  - {{name: rule-{number}, match: {{paths: /api/{number}/*}}, by: address, limits: 1000000/second}}\n"
        for number in range(8)
    )
    + """\
  - {name: rest, default: true, by: address, limits: 1000000/second}
descriptors:
  - {name: edge, domain: bench, entries: [remote_address], limits: 1000000/second}
"""
)
TRACED = """\
local count = 0
request = function()
  count = count + 1
  wrk.headers["traceparent"] = string.format("00-%032x-%016x-01", count, count)
  return wrk.format(nil, nil)
end
"""
HEAD = ("server", "load", "µs", "quartiles", "p50 ms", "p99 ms", "per second")
HTTP, GRPC, RESP = "HTTP", "gRPC", "RESP"


class Load(NamedTuple):
    """A server and the load that it meets. `kind` is a peer, or a wire format of the service."""

    server: str
    load: str

    @property
    def name(self) -> str:
        """The server and the load."""
        return f"{self.server}, {self.load}"


CHECK, TRACED_CHECK = Load("service, check", "wrk"), Load("service, check", "wrk, traceparent")
UVICORN, TRACED_UVICORN = Load("uvicorn", "wrk"), Load("uvicorn", "wrk, traceparent")
RLS, ECHO = Load("service, gRPC", "h2load"), Load("grpcio", "h2load")
THROTTLE, CONSTANT = Load("service, CL.THROTTLE", "redis-benchmark"), Load("resp", "redis-benchmark")
PIPELINED = "redis-benchmark -P 16"
LOADS = [
    UVICORN,
    Load("http", "wrk"),
    CHECK,
    TRACED_UVICORN,
    TRACED_CHECK,
    Load("service, hit", "wrk"),
    ECHO,
    Load("grpcio-aio", "h2load"),
    Load("grpc", "h2load"),
    RLS,
    Load("service, gRPC", "same headers"),
    Load("service, gRPC", "traceparent"),
    CONSTANT,
    THROTTLE,
    Load("service, RB.HIT", "redis-benchmark"),
    Load("resp", PIPELINED),
    Load("service, CL.THROTTLE", PIPELINED),
]
ON_REDIS = [Load("collected", "wrk -c64, Redis"), Load("pipelined", "wrk -c64, Redis")]
PEERS = ("uvicorn", "http", "grpcio", "grpcio-aio", "grpc", "resp")
MOST = [  # ours, theirs, the most that ours may take in times theirs
    (CHECK, UVICORN, 0.9),
    (TRACED_CHECK, TRACED_UVICORN, 0.9),
    (RLS, ECHO, 0.1),
    (THROTTLE, CONSTANT, 2.0),
]


class Found(NamedTuple):
    """The result of one load: processor seconds for each request, latencies in milliseconds, requests per second."""

    seconds: float
    median: float
    slow: float
    rate: float


@dataclass(slots=True)
class Serving:
    """The results of all rounds by load, and the build of the service."""

    build: str = ""
    found: dict[Load, list[Found]] = field(default_factory=dict)

    def of(self, load: Load, what: str) -> Spread:
        """Return the spread of one figure over the rounds."""
        return spread([getattr(found, what) for found in self.found[load]])

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on the ratios."""
        judged = []
        for ours, theirs, most in MOST:
            if ours in self.found and theirs in self.found:
                pairs = [[found.seconds for found in self.found[load]] for load in (theirs, ours)]
                judged.append(at_most(self.build, f"{ours.name} / {theirs.name}", most, spread(ratios(*pairs))))
        return judged

    def sheets(self) -> list[Sheet]:
        """Return the table."""
        rows = [self._row(load) for load in self.found]
        return [Sheet(f"The service, {self.build}", HEAD, rows)] if rows else []

    def _row(self, load: Load) -> tuple[str, ...]:
        cpu = self.of(load, "seconds")
        latencies = [self.of(load, what).median for what in ("median", "slow")]
        shown = [f"{latency:.2f}" if latency else "" for latency in latencies]
        rate = f"{self.of(load, 'rate').median:,.0f}"
        return (
            load.server,
            load.load,
            f"{cpu.median * 1e6:.1f}",
            f"{cpu.low * 1e6:.1f}–{cpu.high * 1e6:.1f}",
            *shown,
            rate,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "unit": "processor seconds of the server for each request; latencies in milliseconds",
            "loads": [
                {"server": load.server, "load": load.load}
                | {what: self.of(load, what)._asdict() for what in Found._fields}
                for load in self.found
            ],
        }


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * (len(LOADS) + len(ON_REDIS))


def measure_service(build: str, rounds: int, done: Done) -> Serving:
    """Measure all servers. The service is of this build."""
    missing = [program for program in PROGRAMS if which(program) is None]
    if missing:
        raise SystemExit(
            f"{', '.join(missing)}: not installed (Debian: apt-get install wrk nghttp2-client redis-tools)"
        )
    serving = Serving(build)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "traced.lua").write_text(TRACED)
        (folder / "call").write_bytes(rate_limit_request(1))
        servers = {peer: stack.enter_context(_peer(build, peer)) for peer in PEERS}
        redis = stack.enter_context(redis_server())
        for load in ON_REDIS:
            servers[load.server] = stack.enter_context(
                _peer(build, load.server, redis.url, str(folder / "policy.yaml"))
            )
        ours = stack.enter_context(_service(build, folder))
        for _ in range(rounds):
            for load in (*LOADS, *ON_REDIS):
                server = servers.get(load.server) or ours
                serving.found.setdefault(load, []).append(_measured(load, server, folder))
                done()
    return serving


class Server(NamedTuple):
    """A running server and its ports, by wire format."""

    process: psutil.Process
    ports: dict[str, int]

    def spent(self) -> float:
        """Return the processor seconds of the server and of its children so far."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextmanager
def _peer(build: str, kind: str, *arguments: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.service_peers", kind, str(port), *arguments]
    with started(build, command, {HTTP: port, GRPC: port, RESP: port}) as server:
        yield server


@contextmanager
def _service(build: str, folder: Path) -> Iterator[Server]:
    ports = {HTTP: free_port(), GRPC: free_port(), RESP: free_port()}
    command = [sys.executable, "-m", "ratebound", "serve", "--policy", str(folder / "policy.yaml")]
    command += ["--http", f"127.0.0.1:{ports[HTTP]}", "--grpc", f"127.0.0.1:{ports[GRPC]}"]
    command += ["--resp", f"127.0.0.1:{ports[RESP]}", "--admin", f"127.0.0.1:{free_port()}"]
    with started(build, command, ports) as server:
        yield server


@contextmanager
def started(
    build: str, command: list[str], ports: dict[str, int], environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server on the first core, and wait until it listens."""
    cores = sorted(os.sched_getaffinity(0))
    path = f"{FOLDERS[build]}:{ROOT}"
    process = subprocess.Popen(
        ["taskset", "-c", str(cores[0]), *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path} | dict(environ or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for port in set(ports.values()):
            _wait_for(port, process)
        yield Server(psutil.Process(process.pid), ports)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        with suppress(OSError), create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} did not listen on {port}")


def _measured(load: Load, server: Server, folder: Path) -> Found:
    before, begin = server.spent(), time.monotonic()
    count, median, slow = _loaded(load, server.ports, folder)
    return Found((server.spent() - before) / count, median, slow, count / (time.monotonic() - begin))


def _loaded(load: Load, ports: dict[str, int], folder: Path) -> tuple[int, float, float]:
    """Put a load on a server. Return the number of requests, and the median and the 99th percentile in milliseconds."""
    if load.load.startswith("wrk"):
        return _wrk(load, ports[HTTP], folder)
    if load.load == "h2load":
        return _h2load(ports[GRPC], folder)
    if load.load.startswith("redis-benchmark"):
        return _redis_benchmark(load, ports[RESP])
    kind = "traced" if load.load == "traceparent" else "same"
    text = run_beside([sys.executable, "-m", "benchmarks.grpc_load", str(ports[GRPC]), str(SECONDS), kind])
    return int(text), 0.0, 0.0


def _wrk(load: Load, port: int, folder: Path) -> tuple[int, float, float]:
    connections = "64" if "-c64" in load.load else "16"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS:g}s", "--latency"]
    path = "/v1/check/api/3/items" if "check" in load.server or "Redis" in load.load else "/"
    if path != "/":
        command += ["-H", "X-Forwarded-For: 203.0.113.7"]  # a check without the client's address is refused
    if "traceparent" in load.load:
        command += ["-s", str(folder / "traced.lua")]
    if load.server == "service, hit":
        script = folder / "hit.lua"
        body = '{"key": "user:42", "limits": "1000000/second"}'
        script.write_text(
            f"wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['Content-Type'] = 'application/json'\n"
        )
        command += ["-s", str(script)]
        path = "/v1/hit"
    text = run_beside([*command, f"http://127.0.0.1:{port}{path}"])
    if "Non-2xx" in text:
        raise SystemExit(f"{load.name}: not every answer was a 200\n{text}")
    count = int(_one(r"(\d+) requests in", text))
    return count, _milliseconds(_one(r"\n\s+50%\s+(\S+)", text)), _milliseconds(_one(r"\n\s+99%\s+(\S+)", text))


def _h2load(port: int, folder: Path) -> tuple[int, float, float]:
    log = folder / "h2load.log"
    log.unlink(missing_ok=True)
    command = ["h2load", "-D", f"{SECONDS:g}", "-c8", "-m32", "-d", str(folder / "call"), f"--log-file={log}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    text = run_beside([*command, f"http://127.0.0.1:{port}{PATH.decode()}"])
    count = int(_one(r"(\d+) succeeded", text))
    times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    if not count or not times:
        raise SystemExit(f"h2load had no answer\n{text}")
    return count, times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3


def _redis_benchmark(load: Load, port: int) -> tuple[int, float, float]:
    command = ["CL.THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"]
    if "RB.HIT" in load.server:
        command = ["RB.HIT", "user:__rand_int__", "1000000/second"]
    pipeline = 16 if "-P 16" in load.load else 1
    count = 400_000 if pipeline > 1 else 60_000
    options = ["-p", str(port), "-c", "50", "-n", str(count), "-P", str(pipeline), "-r", "1000", "--csv"]
    lines = run_beside(["redis-benchmark", *options, *command]).splitlines()
    cells = [cell.strip('"') for cell in lines[-1].split('","')]
    return count, float(cells[4]), float(cells[6])


def last_core() -> str:
    """Return the core for what asks a server."""
    return str(max(os.sched_getaffinity(0)))


def run_beside(command: list[str]) -> str:
    """Run a program on the last core, and return what it prints."""
    done = subprocess.run(
        ["taskset", "-c", last_core(), *command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"expected {pattern} in\n{text}")
    return found.group(1)


def _milliseconds(text: str) -> float:
    number, unit = float(text.rstrip("usm")), text.lstrip("0123456789.")
    return number * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
