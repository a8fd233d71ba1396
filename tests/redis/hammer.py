"""One process of many that hit one key: `python -m tests.redis.hammer kind url wrong`, started by test_grants.py.

`kind` is threads or tasks, `wrong` the seconds by which its clocks are ahead. It says what time it has, and then plays
each job it is given, a line each: how many asks, the key, the limit. It answers with what each grant left.
"""

import asyncio
import json
import sys
import time


def shift_clocks(wrong: int) -> None:
    """To be called before anything else is imported that might take hold of one."""
    for name, unit in {"time": 1, "monotonic": 1, "time_ns": 10**9, "monotonic_ns": 10**9}.items():
        right = getattr(time, name)
        setattr(time, name, lambda right=right, by=wrong * unit: right() + by)


def with_threads(url: str) -> None:
    from ratebound import Limiter
    from ratebound.storage.redis.storage import RedisStorage
    from tests.hammer import granted_to_threads, tell

    storage = RedisStorage(url)
    storage.connect()
    tell([time.time()])
    for line in sys.stdin:
        asks, key, limit = json.loads(line)
        tell(granted_to_threads(Limiter(limit, storage=storage), asks, key))
    storage.close()


async def with_tasks(url: str) -> None:
    from ratebound import AsyncLimiter
    from ratebound.storage.redis.storage import AsyncRedisStorage
    from tests.hammer import granted_to_tasks, tell

    storage = AsyncRedisStorage(url)
    await storage.connect()
    tell([time.time()])
    for line in sys.stdin:  # nothing else is to run in this loop meanwhile
        asks, key, limit = json.loads(line)
        tell(await granted_to_tasks(AsyncLimiter(limit, storage=storage), asks, key))
    await storage.close()


if __name__ == "__main__":
    shift_clocks(int(sys.argv[3]))
    if sys.argv[1] == "tasks":
        asyncio.run(with_tasks(sys.argv[2]))
    else:
        with_threads(sys.argv[2])
