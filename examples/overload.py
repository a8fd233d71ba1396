"""Survive overload: while the process is too busy, the least important requests are turned away first.

The machine of this example can work on 60 requests a second, and its seconds are those of a clock that the example
moves. When 120 requests come, reports are shed with 503, then searches, and orders go through. It recovers by itself
when the crowd has gone.
"""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratebound import MemoryStorage
from ratebound.adaptive import Pressure, Reading
from ratebound.policy import Match, Policy, Rule
from ratebound.testing import FakeClock
from ratebound.web.asgi import RateLimitMiddleware

CAPACITY = 60  # requests that the machine can work on in a second
PATHS = ("/reports", "/search", "/orders")

clock = FakeClock()
worked = dict.fromkeys(PATHS, 0)  # requests of this second that were let through


async def work(request: Request) -> PlainTextResponse:
    worked[request.url.path] += 1
    return PlainTextResponse("done")


pressure = Pressure(
    # In a real application: [CpuUse(0.85), LoopLag(0.1)], or `adaptive: {cpu: 85%, lag: 100 ms}` in a policy file.
    [Reading("requests", lambda: sum(worked.values()), CAPACITY)],
    background=False,  # this example samples by itself, so that it says the same on every machine
    clock=lambda: clock() / 1_000_000,
)
policy = Policy(
    rules=[
        Rule("reports", "40/second", match=Match(paths=["/reports"]), by="global", priority="low"),
        Rule("search", "40/second", match=Match(paths=["/search"]), by="global"),
        Rule("orders", "40/second", match=Match(paths=["/orders"]), by="global", priority="critical"),
    ],
    adaptive=pressure,
)
routes = [Route(path, work) for path in PATHS]
app = RateLimitMiddleware(Starlette(routes=routes), policy, storage=MemoryStorage(clock=clock))


async def pass_second(client: httpx.AsyncClient, crowd: int) -> int:
    """Send so many requests of each kind, and return how many were shed. The pressure looks four times a second."""
    worked.update(dict.fromkeys(PATHS, 0))
    statuses = [(await client.get(path)).status_code for path in PATHS for _ in range(crowd)]
    for _ in range(4):
        clock.advance(0.25)
        pressure.sample()
    return statuses.count(503)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://example.com") as client:
        for name, crowd, seconds in (("calm", 5, 1), ("a crowd", 40, 12), ("calm again", 5, 40)):
            for _ in range(seconds):
                shed = await pass_second(client, crowd)
            print(f"{name}: {3 * crowd} requests a second, {shed} shed, let through {worked}")


if __name__ == "__main__":
    asyncio.run(main())
