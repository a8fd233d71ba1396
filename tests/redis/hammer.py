"""One process of many that hit one key: `python -m tests.redis.hammer kind url wrong`, started by test_grants.py.

`kind` is threads or tasks, `wrong` the seconds by which its clocks are ahead. It says what time it has, and then plays
each job it is given, a line each: how many asks, the key, the limit. It answers with what each grant left.
"""

import asyncio
import json
import sys
import threading
import time

HANDS = {"threads": 4, "tasks": 50}


def shift_clocks(wrong: int) -> None:
    """To be called before anything else is imported that might take hold of one."""
    for name, unit in {"time": 1, "monotonic": 1, "time_ns": 10**9, "monotonic_ns": 10**9}.items():
        right = getattr(time, name)
        setattr(time, name, lambda right=right, by=wrong * unit: right() + by)


def with_threads(url: str) -> None:
    from ratebound import Limiter
    from ratebound.storage.redis.storage import RedisStorage

    storage = RedisStorage(url)
    storage.connect()

    def job(asks: int, key: str, limit: str) -> list[int]:
        limiter = Limiter(limit, storage=storage)
        gate = threading.Barrier(HANDS["threads"])
        left: list[int] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                gate.wait()
                answers = [limiter.hit(key) for _ in range(asks // HANDS["threads"])]
                left.extend(answer.remaining for answer in answers if answer.allowed)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(HANDS["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            raise error
        return left

    tell([time.time()])
    for line in sys.stdin:
        tell(job(*told(line)))
    storage.close()


async def with_tasks(url: str) -> None:
    from ratebound import AsyncLimiter
    from ratebound.storage.redis.storage import AsyncRedisStorage

    storage = AsyncRedisStorage(url)
    await storage.connect()

    async def job(asks: int, key: str, limit: str) -> list[int]:
        limiter = AsyncLimiter(limit, storage=storage)
        left: list[int] = []

        async def work() -> None:
            for _ in range(asks // HANDS["tasks"]):
                answer = await limiter.hit(key)
                if answer.allowed:
                    left.append(answer.remaining)

        await asyncio.gather(*(work() for _ in range(HANDS["tasks"])))
        return left

    tell([time.time()])
    for line in sys.stdin:  # nothing else is to run in this loop meanwhile
        tell(await job(*told(line)))
    await storage.close()


def told(line: str) -> tuple[int, str, str]:
    asks, key, limit = json.loads(line)
    return asks, key, limit


def tell(numbers: list[int] | list[float]) -> None:
    sys.stdout.write(f"{json.dumps(numbers)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    shift_clocks(int(sys.argv[3]))
    if sys.argv[1] == "tasks":
        asyncio.run(with_tasks(sys.argv[2]))
    else:
        with_threads(sys.argv[2])
