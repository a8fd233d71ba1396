"""A long random history of decisions, as text: the same seed must give the same text in every build.

    python -m tests.compiled.history SEED DECISIONS

prints one line for each decision. Everything that a storage can be asked is in it: several keys and limits at once,
costs, patience, peeks, settlements, resets, steps of the clock in both directions, few keys and many.
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

from ratebound import Limit
from ratebound.settling import settlement
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

ALGORITHMS = ("token-bucket", "gcra", "leaky-bucket", "fixed-window", "sliding-log", "sliding-counter")
PERIODS = (1, 7, 1_000, 999_983, 1_000_000, 60_000_000, 86_400_000_000)
COUNTS = (1, 2, 3, 7, 10, 100, 1_000, 10_000, 10**9)


def limits(chance: random.Random) -> list[Limit]:
    """Return limits of every algorithm; some share a scope and differ in count."""
    found = []
    for number in range(chance.randint(2, 9)):
        algorithm = chance.choice(ALGORITHMS)
        count, period = chance.choice(COUNTS), chance.choice(PERIODS)
        burst = max(1, count * chance.choice((1, 1, 2, 5)) // chance.choice((1, 2)))
        name = chance.choice(("", "", f"n{number}", "shared"))
        if algorithm in ALGORITHMS[:3] and burst * period <= count * 10**15:
            found.append(Limit(count, period, burst, algorithm, name))
        else:
            found.append(Limit(count, period, 0, algorithm, name, large=True))
    return found


def history(seed: int, decisions: int) -> Iterator[str]:
    """Yield a line for each decision."""
    chance = random.Random(seed)
    done = 0
    while done < decisions:
        random.seed(chance.random())  # eviction samples from it
        pool = limits(chance)
        clock = FakeClock()
        storage = MemoryStorage(max_keys=chance.choice((3, 20, 1_000)), clock=clock)
        keys = [f"k{number}" for number in range(chance.choice((1, 2, 30)))] + ["long" * 100]
        allowed: list[tuple[Any, Any]] = []
        for _ in range(chance.randint(1, 300)):
            step = chance.random()
            scale = chance.choice(pool).period_us
            if step < 0.6:
                clock.now += chance.choice((0, 0, 1, scale // 10, scale, 3 * scale)) + chance.randint(0, 2)
            elif step < 0.65:
                clock.now = max(clock.now - chance.randint(0, 2 * scale), 10**15)
            group = _group(chance, pool, keys)
            act = chance.random()
            if act < 0.75:
                (rows,) = storage.evaluate((group,))
                if all(row[0] for row in rows):
                    allowed.append((group, rows))
            elif act < 0.85 or not allowed:
                (rows,) = storage.evaluate((group,), "peek")
            elif act < 0.97:
                settled, answers = allowed.pop(chance.randrange(len(allowed)))
                costs = [chance.randint(0, 2 * ask[2]) for ask in settled]
                (rows,) = storage.evaluate((settlement(settled, answers, costs),), "force")
            else:
                storage.reset(group)
                rows = []
            yield f"{act:.3f} {list(rows)} {storage.keys} {storage.evicted}"
            done += 1


def _group(chance: random.Random, pool: list[Limit], keys: list[str]) -> Any:
    asks = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        scopes = {limit.scope: limit for limit in chance.sample(pool, chance.randint(1, len(pool)))}
        cost = chance.choice((1, 1, 1, 2, 3, max(limit.count for limit in scopes.values()) // 2 + 1))
        patience = chance.choice((None, None, None, 0, 10, chance.choice(pool).period_us))
        asks.append((chance.choice(keys), tuple(scopes.values()), cost, patience, None))
    return asks


if __name__ == "__main__":
    for line in history(int(sys.argv[1]), int(sys.argv[2])):
        print(line)  # noqa: T201
