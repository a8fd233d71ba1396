"""Many tasks, one partner's API: each host gets its even share, and no host waits for another."""

import asyncio

from ratebound import AsyncLimiter

limiter = AsyncLimiter("200/second burst 1", max_delay=10)


async def fetch(host: str, page: int) -> str:
    async with limiter.acquire(host):
        return f"{host}/{page}"  # the request


async def main() -> None:
    pages = await asyncio.gather(*(fetch(host, page) for host in ("a.example", "b.example") for page in range(20)))
    print(f"fetched {len(pages)} pages, at most 200 a second from each host")


asyncio.run(main())
