"""Retry amplification under a total outage: the requests that reach a server which answers 503 to everything, for each
call of the program.

Every contender makes the same calls, a few at a time. Waits between attempts are shortened for all by the same factor.
An outage lasts longer than anybody waits, so this does not change the number of attempts.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import aiohttp
import httpx
import stamina
import tenacity
import urllib3

from ratebound.client import Backoff, CircuitBreaker, Retry
from ratebound.client.aiohttp import polite
from ratebound.client.urllib3 import PolitePoolManager
from ratebound.errors import RateboundError

AT_ONCE = 20
SHORTER = 1 / 200
CALLS = 1200


@contextmanager
def served(kind: str) -> Iterator[str]:
    """Start a server in a process of its own, and return its URL. See client_server.py for the kinds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.client_server", str(port), kind])
    try:
        for _ in range(400):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def counts(url: str) -> dict[int, int]:
    """Return how many answers of each status a server has given, and let it count from 0 again."""
    with urllib.request.urlopen(f"{url}/counts") as response:
        return {int(status): count for status, count in json.load(response).items()}


def amplification(contender: str, url: str) -> float:
    """Return the requests that the server got for each call of a contender."""
    counts(url)
    OUTAGE[contender](url)
    return sum(counts(url).values()) / CALLS


def _backoff() -> Backoff:
    return Backoff("full", first=0.5 * SHORTER, most=30.0 * SHORTER)


async def _make_calls(call: Callable[[], Awaitable[object]]) -> None:
    """Make all calls, a few at a time. How they end does not matter: all of them fail."""

    async def some() -> None:
        for _ in range(CALLS // AT_ONCE):
            with suppress(aiohttp.ClientError, RateboundError):
                await call()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def _in_threads(call: Callable[[], object]) -> None:
    def some() -> None:
        for _ in range(CALLS // AT_ONCE):
            with suppress(urllib3.exceptions.HTTPError, httpx.HTTPError, RateboundError):
                call()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for made in [pool.submit(some) for _ in range(AT_ONCE)]:
            made.result()


async def _get(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()
        response.raise_for_status()


def _tenacity(url: str) -> None:
    retry = tenacity.retry(
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=SHORTER, max=60 * SHORTER),
        reraise=True,
    )

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            await _make_calls(partial(retry(_get), session, url))

    asyncio.run(run())


def _stamina(url: str) -> None:
    stamina.instrumentation.set_on_retry_hooks([])  # it would log every retry
    retry = stamina.retry(
        on=aiohttp.ClientError, wait_initial=0.1 * SHORTER, wait_max=5.0 * SHORTER, wait_jitter=SHORTER
    )

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            await _make_calls(partial(retry(_get), session, url))

    asyncio.run(run())


def _urllib3_retry(url: str) -> None:
    retries = urllib3.Retry(total=3, status_forcelist=(429, 502, 503, 504), backoff_factor=SHORTER)
    with urllib3.PoolManager(maxsize=AT_ONCE) as pools:
        _in_threads(partial(pools.request, "GET", url, retries=retries))


def _httpx_retries(url: str) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE)
    with httpx.Client(transport=httpx.HTTPTransport(retries=3, limits=limits)) as client:
        _in_threads(partial(client.get, url))


def _ours_aiohttp(url: str, **options: Any) -> None:
    async def run() -> None:
        middleware = polite(retry=Retry(backoff=_backoff()), pacer=None, **options)
        async with aiohttp.ClientSession(middlewares=(middleware,)) as session:
            await _make_calls(partial(_get, session, url))

    asyncio.run(run())


def _ours_urllib3(url: str) -> None:
    options: dict[str, Any] = {"retry": Retry(backoff=_backoff()), "pacer": None, "breaker": None}
    with PolitePoolManager(maxsize=AT_ONCE, **options) as pools:
        _in_threads(partial(pools.request, "GET", url))


# The breaker stops nearly all calls of an outage, so the budget is measured without it.
OUTAGE: dict[str, Callable[[str], None]] = {
    "ratebound, aiohttp, breaker off": partial(_ours_aiohttp, breaker=None),
    "ratebound, urllib3, breaker off": _ours_urllib3,
    "ratebound, aiohttp, breaker on": partial(_ours_aiohttp, breaker=CircuitBreaker()),
    "tenacity, 5 attempts": _tenacity,
    "stamina, defaults (10 attempts)": _stamina,
    "urllib3 Retry(3)": _urllib3_retry,
    "httpx HTTPTransport(retries=3)": _httpx_retries,
}
BOUNDED = tuple(name for name in OUTAGE if name.startswith("ratebound"))
