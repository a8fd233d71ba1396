"""Storages that last: a decision beside the bare transaction that it needs, and what the ledger adds to a hit.

On PostgreSQL and SQLite ours is `evaluate` of the storage without its guard. The bare side is a locking read, an update
and a commit of as many rows through the same driver, on PostgreSQL pipelined into the same two trips. On Memcached a
hit is compared with the two calls of limits that tell as much: `hit` and `get_window_stats`. It is wall time, because
most of it is spent in a server or on a disk. Data are on a disk, and PostgreSQL writes with fsync. Everything runs on
one core: client and server take turns anyway.
"""

import asyncio
import atexit
import gc
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import limits
import limits.aio.storage
import limits.aio.strategies
import psycopg
from tests.databases import Postgres, memcached_servers, postgres_server

from benchmarks.builds import COMPILED, ROOT, Done, Worker
from benchmarks.measure import (
    AsyncBlock,
    AsyncContender,
    Block,
    Case,
    Contender,
    Spread,
    Times,
    added,
    counting,
    keys,
    measure,
    ratios,
    spread,
    steps_of,
)
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_most
from ratebound import AsyncLimiter, Limiter, parse_limits
from ratebound.events import Listener
from ratebound.storage import AsyncStorage, Storage
from ratebound.storage.urls import open_async_storage, open_storage

MOST_OF_BARE = 1.5  # times a bare transaction
MOST_OF_LIMITS = 1.0  # times the two calls of limits
MOST_OF_LEDGER = 1.0  # microseconds that the ledger adds to a hit of the compiled build
ONE = "1000000/hour"
FOUR = "1000000/hour; 2000000/day; 3000000/week; 1000000/minute"
FSYNC = {"fsync": "on", "shared_buffers": "128MB"}
DURABLE, DEFERRED = 1, 3  # calls for each key in a block: those that wait for the disk, and those that do not
STATE = bytes(33)  # as long as a state of ours


class Pair(NamedTuple):
    """Two ways to do the same, whose blocks are always run one right after the other."""

    name: str
    other: str
    most: float  # the required ratio of ours to the other
    each: int  # calls for each key in a block
    ours: Block
    theirs: Block


@dataclass(slots=True)
class Lasting:
    """The results: wall seconds per call in every round by pair, and CPU seconds per hit with the ledger."""

    build: str
    times: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)  # ours, the other
    about: dict[str, tuple[str, float]] = field(default_factory=dict)  # the name of the other, and the required ratio
    ledger: dict[str, Times] = field(default_factory=dict)  # by case

    def ratio(self, name: str) -> Spread:
        """Return the ratio of ours to the other within each round."""
        ours, theirs = self.times[name]
        return spread(ratios(theirs, ours))

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = [
            at_most(self.build, f"{name}: times {other}", most, self.ratio(name))
            for name, (other, most) in self.about.items()
        ]
        for case, times in self.ledger.items() if self.build == COMPILED else ():
            more = added(times[self.build], LEDGER, UNHEARD)
            judged.append(at_most(self.build, f"{case}: µs added by the ledger", MOST_OF_LEDGER, more))
        return judged

    def sheets(self) -> list[Sheet]:
        """Return the tables."""
        rows: list[Sequence[str]] = []
        for name, (ours, theirs) in self.times.items():
            other = self.about[name][0]
            rows.append((name, "ratebound", *figures(spread(ours), 1e6), *figures(self.ratio(name))))
            rows.append(("", other, *figures(spread(theirs), 1e6), "", ""))
        heard: list[Sequence[str]] = []
        for case, times in self.ledger.items():
            for who, found in times[self.build].items():
                more = figures(added(times[self.build], who, UNHEARD)) if who != UNHEARD else ("", "")
                heard.append((case if who == UNHEARD else "", who, *figures(spread(found), 1e6), *more))
        return [
            Sheet(
                f"Storages that last, {self.build} build: wall time per decision",
                ("case", "who", "µs per call", "quartiles", "times the other", "quartiles"),
                rows,
            ),
            Sheet(
                f"The ledger, {self.build} build: CPU time of a hit in memory",
                ("case", "who", "µs per hit", "quartiles", "µs added", "quartiles"),
                heard,
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "unit": "seconds of wall time per call, for the ledger of CPU time; median and quartiles over the rounds",
            "pairs": [
                {
                    "name": name,
                    "other": self.about[name][0],
                    "ours": spread(ours)._asdict(),
                    "theirs": spread(theirs)._asdict(),
                    "ratio": self.ratio(name)._asdict(),
                }
                for name, (ours, theirs) in self.times.items()
            ],
            "ledger": [
                {"case": case, "who": who, "time": spread(found)._asdict()}
                for case, times in self.ledger.items()
                for who, found in times[self.build].items()
            ],
        }


def steps(rounds: int) -> int:
    """Return how many times `done` is called for one build, by the pairs."""
    return rounds * len(PARTS)


def ledger_steps(builds: Sequence[str], rounds: int) -> int:
    """Return how many times `done` is called by the ledger's cases."""
    return sum(steps_of(case, builds, rounds) for case in CASES)


def measure_storages(build: str, rounds: int, done: Done) -> Lasting:
    """Measure all pairs. A worker of this build runs this."""
    found = Lasting(build)
    for part in PARTS:
        with ExitStack() as stack, asyncio.Runner() as runner:
            pairs = part(stack, runner)
            for pair in pairs:
                found.times[pair.name] = ([], [])
                found.about[pair.name] = (pair.other, pair.most)
            for number in range(rounds):
                for pair in Random(number).sample(pairs, len(pairs)):
                    _time_pair(pair, number, found.times[pair.name])
                done()
            stack.close()  # storages for tasks are closed in their loop
    return found


def measure_ledger(workers: Sequence[Worker], rounds: int, each: int, done: Done) -> dict[str, Times]:
    """Return the CPU time of a hit with the ledger and without, by case."""
    return {case.name: measure(__name__, case, workers, rounds, each, done) for case in CASES}


def _time_pair(pair: Pair, number: int, times: tuple[list[float], list[float]]) -> None:
    asked = keys(number, pair.each)
    turns = [(pair.ours, times[0]), (pair.theirs, times[1])]
    for block, found in turns if number % 2 else reversed(turns):
        block(asked[:10])  # the caches of the processor are this side's
        gc.collect()
        start = time.perf_counter()
        denied = block(asked)
        found.append((time.perf_counter() - start) / len(asked))
        if denied:
            raise AssertionError(f"{pair.name}: {denied} of {len(asked)} were denied, expected none")


BARE_TABLE = "CREATE TABLE bare (name bytea PRIMARY KEY, state bytea NOT NULL, expires bigint NOT NULL)"
LOCK_ONE = "SELECT name, state FROM bare WHERE name = %b FOR UPDATE"
SET_ONE = "UPDATE bare SET state = %b, expires = %s WHERE name = %b"
LOCK_FOUR = "SELECT name, state FROM bare WHERE name = ANY(%b) ORDER BY name FOR UPDATE"
SET_FOUR = (
    "UPDATE bare SET state = new.state, expires = new.expires"
    " FROM unnest(%b::bytea[], %b::bytea[], %b::bigint[]) AS new(name, state, expires) WHERE bare.name = new.name"
)


def postgres_pairs(stack: ExitStack, runner: asyncio.Runner) -> list[Pair]:
    """Return the pairs on a PostgreSQL server that writes with fsync."""
    stack.enter_context(_on_disk())
    server = stack.enter_context(postgres_server(FSYNC))
    _init(server.url)
    server.run(f"{BARE_TABLE} WITH (fillfactor = 70)")
    with server.connect() as connection, connection.cursor() as cursor:
        rows = [(name, STATE, 0) for key in set(keys(0, 1)) for name in _names(key, 4)]
        cursor.executemany("INSERT INTO bare VALUES (%s, %s, %s)", rows)
    pairs = []
    for label, commit, each in (("logged", "on", DURABLE), ("synchronous_commit=off", "off", DEFERRED)):
        for text, count in ((ONE, 1), (FOUR, 4)):
            what = f"{label}, {count} limit{'s' * (count > 1)}"
            pairs.append(_postgres_pair(stack, server, f"postgresql, {what}", commit, text, count, each))
        for text, count in ((ONE, 1), (FOUR, 4)):
            what = f"{label}, {count} limit{'s' * (count > 1)}"
            name = f"postgresql, tasks, {what}"
            pairs.append(_async_postgres_pair(stack, runner, server, name, commit, text, count, each))
    return pairs


def _init(url: str) -> None:
    """Make the tables by the command that operators use."""
    subprocess.run([sys.executable, "-m", "ratebound.cli", "storage", "init", url], check=True, capture_output=True)


def _postgres_pair(
    stack: ExitStack, server: Postgres, name: str, commit: str, text: str, count: int, each: int
) -> Pair:
    storage = open_storage(f"{server.url}?timeout=10&synchronous_commit={commit}")
    stack.callback(storage.close)
    connection = psycopg.connect(_bare_url(server, commit), autocommit=True, prepare_threshold=None)
    stack.callback(connection.close)

    def one(key: str) -> bool:
        (row,) = _names(key, 1)
        with connection.pipeline():
            connection.execute("BEGIN")
            found = connection.execute(LOCK_ONE, (row,)).fetchone()
            connection.execute(SET_ONE, (STATE, time.time_ns(), row))
            connection.execute("COMMIT")
        return found is not None

    def four(key: str) -> bool:
        rows = _names(key, count)
        with connection.pipeline():
            connection.execute("BEGIN")
            found = connection.execute(LOCK_FOUR, (rows,)).fetchall()
            connection.execute(SET_FOUR, (rows, [STATE] * count, [time.time_ns()] * count))
            connection.execute("COMMIT")
        return len(found) == count

    other = "a bare locking read, update and commit"
    return Pair(name, other, MOST_OF_BARE, each, _ours(storage, text), counting(one if count == 1 else four))


def _async_postgres_pair(
    stack: ExitStack, runner: asyncio.Runner, server: Postgres, name: str, commit: str, text: str, count: int, each: int
) -> Pair:
    storage = open_async_storage(f"{server.url}?timeout=10&synchronous_commit={commit}")
    stack.callback(lambda: runner.run(storage.close()))
    connect = psycopg.AsyncConnection.connect(_bare_url(server, commit), autocommit=True, prepare_threshold=None)
    connection = runner.run(connect)
    stack.callback(lambda: runner.run(connection.close()))

    async def one(key: str) -> bool:
        (row,) = _names(key, 1)
        async with connection.pipeline():
            await connection.execute("BEGIN")
            found = await (await connection.execute(LOCK_ONE, (row,))).fetchone()
            await connection.execute(SET_ONE, (STATE, time.time_ns(), row))
            await connection.execute("COMMIT")
        return found is not None

    async def four(key: str) -> bool:
        rows = _names(key, count)
        async with connection.pipeline():
            await connection.execute("BEGIN")
            found = await (await connection.execute(LOCK_FOUR, (rows,))).fetchall()
            await connection.execute(SET_FOUR, (rows, [STATE] * count, [time.time_ns()] * count))
            await connection.execute("COMMIT")
        return len(found) == count

    other = "a bare locking read, update and commit"
    theirs = _in_loop(runner, one if count == 1 else four)
    return Pair(name, other, MOST_OF_BARE, each, _ours_in_loop(runner, storage, text), theirs)


def _bare_url(server: Postgres, commit: str) -> str:
    return f"{server.url}?options=-csynchronous_commit%3D{commit}"


def _names(key: str, count: int) -> list[bytes]:
    """Return names of rows for a key, as long as ours, in the order in which they are locked."""
    begin = blake2b(key.encode(), digest_size=16).digest()
    return [begin + bytes([number]) * 16 for number in range(count)]


def sqlite_pairs(stack: ExitStack, runner: asyncio.Runner) -> list[Pair]:
    """Return the pairs on files of SQLite."""
    folder = stack.enter_context(_on_disk())
    pairs = []
    for synchronous, each in (("full", DURABLE), ("normal", DEFERRED)):
        for text, count in ((ONE, 1), (FOUR, 4)):
            what = f"synchronous={synchronous}, {count} limit{'s' * (count > 1)}"
            storage = open_storage(_sqlite_url(folder / f"ours-{synchronous}-{count}.db", synchronous))
            stack.callback(storage.close)
            bare = _bare_sqlite(stack, folder / f"bare-{synchronous}-{count}.db", synchronous, count)
            other = "a bare transaction"
            pairs.append(Pair(f"sqlite, {what}", other, MOST_OF_BARE, each, _ours(storage, text), counting(bare)))
        pairs.append(_async_sqlite_pair(stack, runner, folder, synchronous, each))
    return pairs


def _async_sqlite_pair(stack: ExitStack, runner: asyncio.Runner, folder: Path, synchronous: str, each: int) -> Pair:
    storage = open_async_storage(_sqlite_url(folder / f"tasks-{synchronous}.db", synchronous))
    stack.callback(lambda: runner.run(storage.close()))
    bare = _bare_sqlite(stack, folder / f"bare-tasks-{synchronous}.db", synchronous, 1)
    threads = stack.enter_context(ThreadPoolExecutor(1))

    async def in_thread(key: str) -> bool:
        return await asyncio.get_running_loop().run_in_executor(threads, bare, key)

    name, other = f"sqlite, tasks, synchronous={synchronous}, 1 limit", "a bare transaction in a thread"
    ours = _ours_in_loop(runner, storage, ONE)
    return Pair(name, other, MOST_OF_BARE, each, ours, _in_loop(runner, in_thread))


def _sqlite_url(path: Path, synchronous: str) -> str:
    return f"sqlite:///{path}?timeout=10&synchronous={synchronous}"


def _bare_sqlite(stack: ExitStack, path: Path, synchronous: str, count: int) -> Callable[[str], bool]:
    """Return a function that reads and writes `count` rows of a key in one transaction."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    stack.callback(connection.close)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(
        "CREATE TABLE states (name BLOB PRIMARY KEY, state BLOB NOT NULL, expires INTEGER NOT NULL)"
        " STRICT, WITHOUT ROWID"
    )
    execute, many = connection.execute, connection.executemany
    read = f"SELECT name, state FROM states WHERE name IN ({', '.join('?' * count)})"
    write = (
        "INSERT INTO states VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET state = excluded.state, expires = excluded.expires"
    )

    def transaction(key: str) -> bool:
        rows = _names(key, count)
        execute("BEGIN IMMEDIATE")
        execute(read, rows).fetchall()
        now = time.time_ns()
        if count == 1:
            execute(write, (rows[0], STATE, now))
        else:
            many(write, [(row, STATE, now) for row in rows])
        execute("COMMIT")
        return True

    return transaction


def memcached_pairs(stack: ExitStack, runner: asyncio.Runner) -> list[Pair]:
    """Return the pairs on a memcached server: a sliding counter and a fixed window, as both libraries have them."""
    (server,) = stack.enter_context(memcached_servers())
    pairs = []
    for algorithm, strategy in (("sliding-counter", "SlidingWindowCounter"), ("fixed-window", "FixedWindow")):
        text = f"{ONE} {algorithm}"
        ours, theirs = _memcached_hits(stack, text, server.url), _limits_hits(strategy, server.url)
        pairs.append(Pair(f"memcached, {algorithm}", TWO_CALLS, MOST_OF_LIMITS, DEFERRED, ours, theirs))
        ours, theirs = _memcached_tasks(stack, runner, text, server.url), _limits_tasks(runner, strategy, server.url)
        pairs.append(Pair(f"memcached, tasks, {algorithm}", TWO_CALLS, MOST_OF_LIMITS, DEFERRED, ours, theirs))
    return pairs


TWO_CALLS = "hit and get_window_stats of limits"


def _memcached_hits(stack: ExitStack, text: str, url: str) -> Block:
    hit = stack.enter_context(Limiter(text, storage=url)).hit
    return counting(lambda key: hit(key).allowed)


def _memcached_tasks(stack: ExitStack, runner: asyncio.Runner, text: str, url: str) -> Block:
    limiter = AsyncLimiter(text, storage=url)
    stack.callback(lambda: runner.run(limiter.close()))

    async def hit(key: str) -> bool:
        return (await limiter.hit(key)).allowed

    return _in_loop(runner, hit)


def _limits_hits(strategy: str, url: str) -> Block:
    limiter = getattr(limits.strategies, f"{strategy}RateLimiter")(limits.storage.MemcachedStorage(url))
    item = limits.parse(ONE)

    def hit_and_read(key: str) -> bool:
        passed = limiter.hit(item, key)
        limiter.get_window_stats(item, key)
        return bool(passed)

    return counting(hit_and_read)


def _limits_tasks(runner: asyncio.Runner, strategy: str, url: str) -> Block:
    storage = limits.aio.storage.MemcachedStorage(f"async+{url}")
    limiter = getattr(limits.aio.strategies, f"{strategy}RateLimiter")(storage)
    item = limits.parse(ONE)

    async def hit_and_read(key: str) -> bool:
        passed = await limiter.hit(item, key)
        await limiter.get_window_stats(item, key)
        return bool(passed)

    return _in_loop(runner, hit_and_read)


PARTS: tuple[Callable[[ExitStack, asyncio.Runner], list[Pair]], ...] = (postgres_pairs, sqlite_pairs, memcached_pairs)


def _ours(storage: Storage, text: str) -> Block:
    evaluate, asked = storage.evaluate, tuple(parse_limits(text))
    return counting(lambda key: evaluate((((key, asked, 1, None, None),),))[0][0][0])


def _ours_in_loop(runner: asyncio.Runner, storage: AsyncStorage, text: str) -> Block:
    evaluate, asked = storage.evaluate, tuple(parse_limits(text))

    async def allows(key: str) -> bool:
        return (await evaluate((((key, asked, 1, None, None),),)))[0][0][0]

    return _in_loop(runner, allows)


def _in_loop(runner: asyncio.Runner, allows: Callable[[str], Awaitable[bool]]) -> Block:
    """Return a block that one task runs, in the one event loop of the part."""

    async def block(asked: Sequence[str]) -> int:
        denied = 0
        for key in asked:
            if not await allows(key):
                denied += 1
        return denied

    return lambda asked: runner.run(block(asked))


@contextmanager
def _on_disk() -> Iterator[Path]:
    """Return a new folder on the disk of the working directory; new temporary folders are made in it meanwhile.

    The usual folder for temporary files may be in memory, where a flush costs nothing.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=ROOT / "build", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as a user of its own
        before = tempfile.tempdir
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


UNHEARD, LEDGER = "ratebound without listeners", "ratebound with the ledger"
USUAL, SPENT = "1000/minute", "10/day"  # the second is used up by the warm-up


@cache
def _ledger() -> Listener:
    """Return the one ledger of a worker. Its thread does not write during a block: that is not on the path of a hit."""
    home = tempfile.TemporaryDirectory(prefix="benchmark-ledger-", ignore_cleanup_errors=True)
    atexit.register(home.cleanup)
    made: Listener = import_module("ratebound.ledger").Ledger(
        f"sqlite:///{home.name}/usage.db", clients="name", every=3600
    )
    return made


def _hits(how: str, text: str, heard: bool) -> Contender:
    def start() -> Block:
        hit = Limiter(text, listeners=[_ledger()] if heard else []).hit
        return counting(lambda key: hit(key).allowed)

    return Contender("ratebound", how, "Decision", start)


def _async_hits(how: str, text: str, heard: bool) -> AsyncContender:
    def start() -> AsyncBlock:
        hit = AsyncLimiter(text, listeners=[_ledger()] if heard else []).hit

        async def block(asked: Sequence[str]) -> int:
            denied = 0
            for key in asked:
                if not (await hit(key)).allowed:
                    denied += 1
            return denied

        return block

    return AsyncContender("ratebound", how, "Decision", start)


CASES = (
    Case("hit", [_hits("without listeners", USUAL, False), _hits("with the ledger", USUAL, True)]),
    Case("denied hit", [_hits("without listeners", SPENT, False), _hits("with the ledger", SPENT, True)], denied=True),
    Case("await hit", [_async_hits("without listeners", USUAL, False), _async_hits("with the ledger", USUAL, True)]),
)
