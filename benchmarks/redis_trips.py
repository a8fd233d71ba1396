"""Redis: the time of a decision beside the bare round trip and the peers, and the size of a state.

It is wall time, because most of it is spent in the server. One server is started here. Before each block it is emptied
and the block's keys are created again, so that nothing of an earlier block is left. The bare `EVALSHA` uses redis-py's
client, as the peers do; ours uses connections of redis-py, but not its `execute_command`. The required ratios are
medians of the ratios within each round.
"""

import asyncio
import gc
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import limits
import redis
import throttled
from tests.servers import redis_server

from benchmarks.builds import Done
from benchmarks.contenders import Rate
from benchmarks.measure import Block, Spread, counting, keys, ratios, spread
from benchmarks.verdict import Verdict, at_most
from ratebound import AsyncLimiter, Limiter
from ratebound.limit import ALGORITHMS
from ratebound.storage.redis.storage import RedisStorage

RATE = Rate(1_000, "minute")
FIVE = "1000/second{0}; 2000/minute{0}; 3000/hour{0}; 4000/day{0}; 5000/week{0}"
WARM_UP = 2  # decisions for each key before the clock starts
EACH = 5  # decisions for each key in a block: short blocks, so that those of one round meet the same weather
TASKS = (1, 100)
MOST, MOST_OF_FIVE = 1.3, 1.6  # times a bare EVALSHA
LIMITS = ("FixedWindow", "MovingWindow", "SlidingWindowCounter")
THROTTLED = ("fixed_window", "sliding_window", "leaking_bucket", "token_bucket", "gcra")

BARE = "bare EVALSHA"
OURS = {
    "ratebound default": str(RATE),
    **{f"ratebound {algorithm}": f"{RATE} {algorithm}" for algorithm in ALGORITHMS},
    "ratebound 5 × default": FIVE.format(""),
    "ratebound 5 × gcra": FIVE.format(" gcra"),
}
PEERS = (*(f"limits {name}" for name in LIMITS), *(f"throttled-py {name}" for name in THROTTLED))
WHO = (BARE, *OURS, *PEERS)
HITS = {name: (1, 100, 1_000) if name == "sliding-log" else (1,) for name in ALGORITHMS}


class Size(NamedTuple):
    """The bytes of one state."""

    algorithm: str
    hits: int
    bytes: int  # MEMORY USAGE of the key: its name, its value and the server's own overhead


@dataclass(slots=True)
class Trips:
    """The results on Redis."""

    build: str
    server: str = ""  # its version
    times: dict[str, list[float]] = field(default_factory=dict)  # seconds per call of every round
    rates: dict[int, list[float]] = field(default_factory=dict)  # decisions per second, by tasks
    sizes: list[Size] = field(default_factory=list)

    def times_bare(self, who: str) -> Spread:
        """Return the ratio of a contender to the bare EVALSHA."""
        return spread(ratios(self.times[BARE], self.times[who]))

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value."""
        judged = []
        for how, most in (("default", MOST), ("gcra", MOST), ("5 × default", MOST_OF_FIVE), ("5 × gcra", MOST_OF_FIVE)):
            judged.append(at_most(self.build, f"{how}: times a {BARE}", most, self.times_bare(f"ratebound {how}")))
        for how in ("default", "gcra", "fixed-window"):
            for peer in PEERS:
                found = spread(ratios(self.times[f"ratebound {how}"], self.times[peer]))
                what = f"{how}: times as fast as {peer}"
                judged.append(Verdict(self.build, what, "above 1", found, found.median > 1))
        return judged

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "server": self.server,
            "unit": "seconds of wall time per call; median and quartiles over the rounds",
            "calls": [
                {"who": who, "time": spread(times)._asdict(), "times_bare": self.times_bare(who)._asdict()}
                for who, times in self.times.items()
            ],
            "async": [
                {"tasks": tasks, "decisions_per_second": spread(rates)._asdict()} for tasks, rates in self.rates.items()
            ],
            "sizes": [size._asdict() for size in self.sizes],
        }


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * (len(WHO) + len(TASKS)) + len(HITS)


def measure_trips(build: str, rounds: int, done: Done) -> Trips:
    """Measure the round trips. A worker of this build runs this."""
    trips = Trips(build)
    with redis_server() as server, server.client() as admin:
        about: Any = admin.info("server")
        trips.server = f"redis {about['redis_version']}"
        storage = RedisStorage(server.url)
        blocks = {name: _ours(text, storage) for name, text in OURS.items()}
        bare = redis.Redis.from_url(server.url, protocol=2)
        blocks[BARE] = _bare(bare)
        blocks |= {f"limits {name}": _limits(name, server.url) for name in LIMITS}
        blocks |= {f"throttled-py {name}": _throttled(name, server.url) for name in THROTTLED}
        trips.times = {name: [] for name in WHO}
        trips.rates = {tasks: [] for tasks in TASKS}
        turns: list[str | int] = [*WHO, *TASKS]
        for number in range(rounds):
            for place in range(len(turns)):
                turn = turns[(place + number) % len(turns)]
                admin.flushdb()
                gc.collect()
                if isinstance(turn, int):
                    trips.rates[turn].append(asyncio.run(_per_second(server.url, turn, number)))
                else:
                    trips.times[turn].append(_seconds(turn, blocks[turn], number))
                done()
        for algorithm, hits in HITS.items():
            trips.sizes += [_weigh(algorithm, count, storage, admin) for count in hits]
            done()
        storage.close()
        bare.close()
    return trips


def _seconds(who: str, block: Block, number: int) -> float:
    block(keys(number, WARM_UP))
    asked = keys(number, EACH)
    start = time.perf_counter()
    denied = block(asked)
    spent = time.perf_counter() - start
    _none_denied(who, denied, len(asked))
    return spent / len(asked)


async def _per_second(url: str, tasks: int, number: int) -> float:
    """Return decisions per second. Every task asks for the next key as soon as it has its answer."""
    async with AsyncLimiter(str(RATE), storage=url) as limiter:
        denied = 0

        async def work(asked: list[str]) -> None:
            nonlocal denied
            while asked:
                if not (await limiter.hit(asked.pop())).allowed:
                    denied += 1

        async def all_tasks(asked: list[str]) -> None:
            await asyncio.gather(*(work(asked) for _ in range(tasks)))

        await all_tasks(keys(number, WARM_UP))
        asked = keys(number, EACH)
        count = len(asked)
        start = time.perf_counter()
        await all_tasks(asked)
        spent = time.perf_counter() - start
    _none_denied(f"{tasks} tasks", denied, count)
    return count / spent


def _none_denied(who: str, denied: int, asked: int) -> None:
    if denied:
        raise AssertionError(f"redis: {who} denied {denied} of {asked}, expected none")


def _bare(client: Any) -> Block:
    execute, sha = client.execute_command, client.execute_command("SCRIPT LOAD", "return 1")
    return counting(lambda _: execute("EVALSHA", sha, 0) == 1)


def _ours(text: str, storage: RedisStorage) -> Block:
    hit = Limiter(text, storage=storage).hit
    return counting(lambda key: hit(key).allowed)


def _limits(strategy: str, url: str) -> Block:
    limiter = getattr(limits.strategies, f"{strategy}RateLimiter")(limits.storage.RedisStorage(url))
    hit, item = limiter.hit, limits.parse(str(RATE))
    return counting(lambda key: bool(hit(item, key)))


def _throttled(algorithm: str, url: str) -> Block:
    quota = throttled.per_duration(timedelta(seconds=RATE.seconds), RATE.count)  # the burst is the count, as ours
    limit = throttled.Throttled(using=algorithm, quota=quota, store=throttled.RedisStore(server=url)).limit
    return counting(lambda key: not limit(key).limited)


def _weigh(algorithm: str, hits: int, storage: RedisStorage, admin: Any) -> Size:
    admin.flushdb()
    limiter = Limiter(f"{RATE} {algorithm}", storage=storage)
    _none_denied(algorithm, sum(not limiter.hit("user:12345").allowed for _ in range(hits)), hits)
    (key,) = admin.keys()
    return Size(algorithm, hits, int(admin.memory_usage(key, samples=0)))
