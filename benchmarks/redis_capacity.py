"""What one decision costs a Redis server, a client and the network: the figures that size a fleet.

Processor time is that of the server (`INFO cpu`) and of this process, not wall time, so a busy machine changes it
little. Bytes are those that the server counted on its connections.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.servers import cluster, redis_server

from benchmarks.builds import Done
from benchmarks.measure import Spread, spread
from ratebound import AsyncLimiter, Limiter

TASKS = 50
DECISIONS = 3_000  # in each round, on as many keys as USERS
USERS = 1_000
IDLE = 0.3  # seconds in which nobody asks
ONE = "1000/minute"
KINDS = {
    "one limit": ONE,
    "one limit, gcra": f"{ONE} gcra",
    "one limit, denied": "1/day sliding-counter",
    "four limits": "100/second; 1000/minute; 10000/hour; 100000/day",
}
WAYS = ("a thread", f"{TASKS} tasks")
ON_CLUSTER = "one limit, Cluster of 3"


class Costs(NamedTuple):
    """The costs of one decision: processor seconds of server and client, and bytes to the server and from it."""

    server: float
    client: float
    sent: float
    received: float


@dataclass(slots=True)
class Capacity:
    """The results: costs of each round by kind of limit and way of asking."""

    build: str
    server: str = ""  # its version
    costs: dict[tuple[str, str], list[Costs]] = field(default_factory=dict)
    local: dict[str, list[float]] = field(default_factory=dict)  # processor seconds of decisions without a trip

    def of(self, kind: str, way: str, what: str) -> Spread:
        """Return the spread of one cost over the rounds."""
        return spread([getattr(costs, what) for costs in self.costs[kind, way]])

    def rows(self) -> list[tuple[str, ...]]:
        """Return the texts of a table of costs."""
        found: list[tuple[str, ...]] = []
        for kind, way in self.costs:
            server, client = self.of(kind, way, "server"), self.of(kind, way, "client")
            sent, received = self.of(kind, way, "sent"), self.of(kind, way, "received")
            found.append(
                (
                    kind,
                    way,
                    f"{server.median * 1e6:.1f}",
                    f"{server.low * 1e6:.1f}–{server.high * 1e6:.1f}",
                    f"{1 / server.median:,.0f}",
                    f"{client.median * 1e6:.1f}",
                    f"{sent.median:.0f}",
                    f"{received.median:.0f}",
                )
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "server": self.server,
            "unit": "processor seconds and bytes per decision; median and quartiles over the rounds",
            "costs": [
                {"kind": kind, "way": way, **{what: self.of(kind, way, what)._asdict() for what in Costs._fields}}
                for kind, way in self.costs
            ],
            "local": {where: spread(times)._asdict() for where, times in self.local.items()},
        }


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * ((len(KINDS) + 1) * len(WAYS) + 1)


def measure_capacity(build: str, rounds: int, done: Done) -> Capacity:
    """Measure decisions on a server that is started here. A worker of this build runs this."""
    capacity = Capacity(build)
    with redis_server() as server, cluster(replicas=0) as nodes, ExitStack() as stack:
        admin = stack.enter_context(server.client())
        admins = [stack.enter_context(node.client()) for node in nodes.nodes]
        about: Any = admin.info("server")
        capacity.server = f"redis {about['redis_version']}"
        for _ in range(rounds):
            for kind, text in KINDS.items():
                _ask_both_ways(capacity, kind, server.url, text, [admin], done)
            _ask_both_ways(capacity, ON_CLUSTER, nodes.url, ONE, admins, done)
            for where, seconds in _without_trips(server.url).items():
                capacity.local.setdefault(where, []).append(seconds)
            done()
    return capacity


def _ask_both_ways(capacity: Capacity, kind: str, url: str, text: str, admins: Sequence[Any], done: Done) -> None:
    for way in WAYS:
        ask = _by_thread if way == WAYS[0] else _by_tasks
        capacity.costs.setdefault((kind, way), []).append(ask(url, text, admins))
        done()


def _users(count: int) -> list[str]:
    return [f"user:{1_000_000 + number % USERS}" for number in range(count)]


def _by_thread(url: str, text: str, admins: Sequence[Any]) -> Costs:
    with Limiter(text, storage=url) as limiter:
        _flush(admins)
        for user in _users(USERS):
            limiter.hit(user)
        asked = _users(DECISIONS)
        with _measured(admins) as costs:
            for user in asked:
                limiter.hit(user)
    return costs()


def _by_tasks(url: str, text: str, admins: Sequence[Any]) -> Costs:
    async def measured() -> Callable[[], Costs]:
        async with AsyncLimiter(text, storage=url) as limiter:
            _flush(admins)
            await _ask(limiter, _users(USERS))
            asked = _users(DECISIONS)
            with _measured(admins) as costs:
                await _ask(limiter, asked)
        return costs

    return asyncio.run(measured())()


async def _ask(limiter: AsyncLimiter, users: list[str]) -> None:
    """Ask for all users. Every task asks for the next one as soon as it has its answer."""

    async def work() -> None:
        while users:
            await limiter.hit(users.pop())

    await asyncio.gather(*(work() for _ in range(TASKS)))


def _without_trips(url: str) -> dict[str, float]:
    """Return the processor seconds of a decision in memory, in shared memory, and from slices of a hot key on Redis."""
    found = {}
    with TemporaryDirectory() as folder:
        storages = {"memory": "memory://", "shared memory": f"shm://fleet?size=4mb&directory={folder}", "slices": url}
        for where, storage in storages.items():
            with Limiter("1000000000/hour", storage=storage, slice=where == "slices") as limiter:
                users = ["user:1000000"] * DECISIONS if where == "slices" else _users(DECISIONS)
                for user in users:
                    limiter.hit(user)
                begin = time.process_time()
                for user in users:
                    limiter.hit(user)
                found[where] = (time.process_time() - begin) / DECISIONS
    return found


@contextmanager
def _measured(admins: Sequence[Any]) -> Iterator[Callable[[], Costs]]:
    """Measure the decisions of the body. What `INFO` costs, and what servers do while nobody asks, is taken off."""
    found: list[Costs] = []
    gc.collect()
    before = _used(admins)
    time.sleep(IDLE)
    again, begin = _used(admins), time.perf_counter()
    yield lambda: found[0]
    after, lasted = _used(admins), time.perf_counter() - begin
    own = [later - sooner for sooner, later in zip(before, again, strict=True)]
    own[0] *= lasted / IDLE
    spent = [later - sooner - less for sooner, later, less in zip(again, after, own, strict=True)]
    found.append(Costs(*(max(each, 0.0) / DECISIONS for each in spent)))


def _flush(admins: Sequence[Any]) -> None:
    for admin in admins:
        admin.flushdb()


def _used(admins: Sequence[Any]) -> Sequence[float]:
    """Return what all servers and this process have used so far, in the order of Costs."""
    infos: list[dict[str, Any]] = [admin.info("cpu", "stats") for admin in admins]
    return (
        sum(info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"] for info in infos),
        time.process_time(),
        sum(info["total_net_input_bytes"] for info in infos),
        sum(info["total_net_output_bytes"] for info in infos),
    )
