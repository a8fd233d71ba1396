"""One small factory for each library and way of calling it. A factory makes a block: many decisions in a row.

Each is written by hand as the library's documentation shows, with nothing between the loop and the library. Peers are
untyped here: they may be missing where only types are checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import pyrate_limiter
import rust_py_rate_limit
import throttled
import throttled.asyncio

from benchmarks.measure import AsyncBlock, AsyncContender, Block, Contender
from ratebound import AsyncLimiter, Limiter

SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
THROTTLED_KEYS = 2_000_000  # its store keeps 1024 keys unless told otherwise, and would forget the rest


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit in every library's terms."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def seconds(self) -> int:
        """The period in seconds."""
        return SECONDS[self.unit]


def ours(text: str, how: str) -> Contender:
    """Return Ratebound's contender."""

    def make() -> Block:
        hit = Limiter(text).hit

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not hit(key).allowed:
                    denied += 1
            return denied

        return block

    return Contender("ratebound", how, "Decision", make)


def ours_async(text: str, how: str) -> AsyncContender:
    """Return Ratebound's contender for tasks."""

    def make() -> AsyncBlock:
        hit = AsyncLimiter(text).hit

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not (await hit(key)).allowed:
                    denied += 1
            return denied

        return block

    return AsyncContender("ratebound", how, "Decision", make)


def ours_unread(text: str, how: str) -> Contender:
    """Return Ratebound's contender that reads no decision but the last one, which stands for all."""

    def make() -> Block:
        hit = Limiter(text).hit

        def block(keys: Sequence[str]) -> int:
            for key in keys:
                decision = hit(key)
            return 0 if decision.allowed else len(keys)

        return block

    return Contender("ratebound", f"{how}, unread", "Decision", make)


def ours_read(text: str, how: str) -> Contender:
    """Return Ratebound's contender that reads five properties of every decision."""

    def make() -> Block:
        hit = Limiter(text).hit

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                decision = hit(key)
                if not decision.allowed:
                    denied += 1
                _ = decision.remaining
                _ = decision.limit
                _ = decision.retry_after
                _ = decision.reset_after
            return denied

        return block

    return Contender("ratebound", f"{how}, five read", "Decision", make)


def limits_hit(strategy: str, rate: Rate) -> Contender:
    """Return a contender of limits with one limit."""

    def make() -> Block:
        hit, item = _limits_strategy(strategy).hit, limits.parse(str(rate))

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not hit(item, key):
                    denied += 1
            return denied

        return block

    return Contender("limits", strategy, "bool", make)


def limits_hits(strategy: str, rates: Sequence[Rate]) -> Contender:
    """Return a contender of limits with several limits as several hits: charges before a denial stay charged."""

    def make() -> Block:
        hit, items = _limits_strategy(strategy).hit, limits.parse_many("; ".join(map(str, rates)))

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                for item in items:
                    if not hit(item, key):
                        denied += 1
                        break
            return denied

        return block

    return Contender("limits", f"{len(rates)} × {strategy}", "bool", make)


def limits_hits_and_stats(strategy: str, rates: Sequence[Rate]) -> Contender:
    """Return a contender with the loop of web extensions that send headers: hit every limit, then read the first one's
    stats."""

    def make() -> Block:
        limiter, items = _limits_strategy(strategy), sorted(limits.parse_many("; ".join(map(str, rates))))

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                shown = items[0]
                for item in items:
                    if not limiter.hit(item, key, "index"):
                        denied += 1
                        shown = item
                        break
                limiter.get_window_stats(shown, key, "index")
            return denied

        return block

    return Contender("limits", f"{len(rates)} × {strategy} + stats", "bool, tuple", make)


def limits_async(strategy: str, rate: Rate) -> AsyncContender:
    """Return a contender of limits for tasks."""

    def make() -> AsyncBlock:
        limiter = getattr(limits.aio.strategies, f"{strategy}RateLimiter")(limits.aio.storage.MemoryStorage())
        hit, item = limiter.hit, limits.parse(str(rate))

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not await hit(item, key):
                    denied += 1
            return denied

        return block

    return AsyncContender("limits", strategy, "bool", make)


def throttled_limit(algorithm: str, rate: Rate) -> Contender:
    """Return a contender of throttled-py with one limit."""

    def make() -> Block:
        store = throttled.MemoryStore(options={"MAX_SIZE": THROTTLED_KEYS})
        limit = throttled.Throttled(using=algorithm, quota=_quota(rate), store=store).limit

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if limit(key).limited:
                    denied += 1
            return denied

        return block

    return Contender("throttled-py", algorithm, "RateLimitResult", make)


def throttled_limits(algorithm: str, rates: Sequence[Rate]) -> Contender:
    """Return a contender with one Throttled for each limit. Each has its own prefix; otherwise they would share one
    state."""

    def make() -> Block:
        store = throttled.MemoryStore(options={"MAX_SIZE": THROTTLED_KEYS})
        calls = [
            throttled.Throttled(using=algorithm, quota=_quota(rate), store=store, key_prefix=rate.unit).limit
            for rate in rates
        ]

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                for limit in calls:
                    if limit(key).limited:
                        denied += 1
                        break
            return denied

        return block

    return Contender("throttled-py", f"{len(rates)} × {algorithm}", "RateLimitResult", make)


def throttled_async(algorithm: str, rate: Rate) -> AsyncContender:
    """Return a contender of throttled-py for tasks."""

    def make() -> AsyncBlock:
        store = throttled.asyncio.MemoryStore(options={"MAX_SIZE": THROTTLED_KEYS})
        limit = throttled.asyncio.Throttled(using=algorithm, quota=_quota(rate), store=store).limit

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if (await limit(key)).limited:
                    denied += 1
            return denied

        return block

    return AsyncContender("throttled-py", algorithm, "RateLimitResult", make)


def pyrate_acquire(algorithm: str, rates: Sequence[Rate], *, blocking: bool = False) -> Contender:
    """Return a contender of pyrate-limiter. `blocking` is for threads: without it, calls that collide on any key are
    denied."""

    def make() -> Block:
        acquire = pyrate_limiter.Limiter(_PerName(algorithm, rates)).try_acquire

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not acquire(key, blocking=blocking):
                    denied += 1
            return denied

        return block

    how = f"{len(rates)} × {algorithm}" if len(rates) > 1 else algorithm
    return Contender("pyrate-limiter", f"{how}, blocking" if blocking else how, "bool", make)


def pyrate_async(algorithm: str, rate: Rate) -> AsyncContender:
    """Return a contender of pyrate-limiter for tasks."""

    def make() -> AsyncBlock:
        acquire = pyrate_limiter.Limiter(_PerName(algorithm, [rate])).try_acquire_async

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not await acquire(key, blocking=False):
                    denied += 1
            return denied

        return block

    return AsyncContender("pyrate-limiter", algorithm, "bool", make)


def rust_allow(rate: Rate) -> Contender:
    """Return a contender of rust-py-rate-limit that asks for a yes or no."""

    def make() -> Block:
        allow = rust_py_rate_limit.RateLimiter(limit=rate.count, window_seconds=rate.seconds).allow

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not allow(key):
                    denied += 1
            return denied

        return block

    return Contender("rust-py-rate-limit", "allow", "bool", make)


def rust_check(rate: Rate) -> Contender:
    """Return a contender of rust-py-rate-limit that asks for a full answer."""

    def make() -> Block:
        check = rust_py_rate_limit.RateLimiter(limit=rate.count, window_seconds=rate.seconds).check

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not check(key)["allowed"]:
                    denied += 1
            return denied

        return block

    return Contender("rust-py-rate-limit", "check", "dict", make)


def rust_async(rate: Rate) -> AsyncContender:
    """Return a contender of rust-py-rate-limit for tasks. It has no async call, so a task calls `check` as it is."""

    def make() -> AsyncBlock:
        check = rust_py_rate_limit.RateLimiter(limit=rate.count, window_seconds=rate.seconds).check

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not check(key)["allowed"]:
                    denied += 1
            return denied

        return block

    return AsyncContender("rust-py-rate-limit", "check", "dict", make)


def _limits_strategy(strategy: str) -> Any:
    return getattr(limits.strategies, f"{strategy}RateLimiter")(limits.storage.MemoryStorage())


def _quota(rate: Rate) -> Any:
    return throttled.per_duration(timedelta(seconds=rate.seconds), rate.count)  # the burst is the count, as ours


class _PerName(pyrate_limiter.BucketFactory):  # type: ignore[misc]  # untyped here
    """A factory of one bucket for each key, made on demand, as pyrate-limiter's documentation shows."""

    def __init__(self, algorithm: str, rates: Sequence[Rate]) -> None:
        self.clock = pyrate_limiter.MonotonicClock()
        self.rates = [pyrate_limiter.Rate(rate.count, rate.seconds * 1000) for rate in rates]
        self.algorithm = getattr(pyrate_limiter, algorithm)()
        keeps_log = isinstance(self.algorithm, pyrate_limiter.LogAlgorithm)
        self.kind = pyrate_limiter.InMemoryBucket if keeps_log else pyrate_limiter.StateBucket
        self.buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: Any) -> Any:
        if item.name not in self.buckets:
            self.buckets[item.name] = self.create(self.kind, self.rates, algorithm=self.algorithm)
        return self.buckets[item.name]
