"""The cost of our layer: CPU time of one call with it and without, on a connection that stays open."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import requests
import urllib3

from ratebound.client.aiohttp import polite
from ratebound.client.httpx import AsyncPoliteTransport, PoliteTransport
from ratebound.client.requests import PoliteAdapter
from ratebound.client.urllib3 import PolitePoolManager

CALLS = 100
WARM_UP = 10


def cost_of_a_call(library: str, polite_one: bool, url: str) -> float:
    """Return the CPU seconds of this process for one call."""
    return COSTS[library](polite_one, url)


def _timed(call: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        call()
    begin = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - begin) / CALLS


async def _timed_async(call: Callable[[], Any]) -> float:
    for _ in range(WARM_UP):
        await call()
    begin = time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.process_time() - begin) / CALLS


def _httpx(polite_one: bool, url: str) -> float:
    with httpx.Client(transport=PoliteTransport() if polite_one else None) as client:
        return _timed(lambda: client.get(url))


def _httpx_async(polite_one: bool, url: str) -> float:
    async def run() -> float:
        async with httpx.AsyncClient(transport=AsyncPoliteTransport() if polite_one else None) as client:
            return await _timed_async(lambda: client.get(url))

    return asyncio.run(run())


def _requests(polite_one: bool, url: str) -> float:
    with requests.Session() as session:
        if polite_one:
            session.mount("http://", PoliteAdapter())
        return _timed(lambda: session.get(url, timeout=10))


def _urllib3(polite_one: bool, url: str) -> float:
    with PolitePoolManager() if polite_one else urllib3.PoolManager() as pools:
        return _timed(lambda: pools.request("GET", url))


def _aiohttp(polite_one: bool, url: str) -> float:
    async def run() -> float:
        async with aiohttp.ClientSession(middlewares=(polite(),) if polite_one else ()) as session:

            async def call() -> None:
                async with session.get(url) as response:
                    await response.read()

            return await _timed_async(call)

    return asyncio.run(run())


COSTS: dict[str, Callable[[bool, str], float]] = {
    "httpx": _httpx,
    "httpx async": _httpx_async,
    "requests": _requests,
    "urllib3": _urllib3,
    "aiohttp": _aiohttp,
}
