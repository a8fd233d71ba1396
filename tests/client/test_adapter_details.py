"""What only one of the HTTP libraries has: proxies, pickles, redirects, cancelled calls."""

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import urllib3

from ratebound.client import Backoff, CircuitBreaker, Retry
from ratebound.client.aiohttp import polite
from ratebound.client.httpx import PoliteTransport
from ratebound.client.requests import PoliteAdapter
from ratebound.client.urllib3 import PolitePoolManager, PoliteProxyManager
from ratebound.testing import nothing_sleeps
from tests.client.scripted_server import Play, refusals, scripted_server
from tests.http.vendor_server import answering

SOON = Retry(backoff=Backoff("none", first=0.001, most=0.001))
NOWHERE = "http://api.example.invalid/path"


def test_requests_through_a_proxy_are_retried() -> None:
    with scripted_server(*refusals(1)) as proxy, nothing_sleeps(), requests.Session() as session:
        session.mount("http://", PoliteAdapter())
        assert session.get(NOWHERE, proxies={"http": proxy.url}, timeout=20).status_code == 200
        assert [request.target for request in proxy.received] == [NOWHERE] * 2


def test_urllib3_through_a_proxy_is_retried() -> None:
    with scripted_server(*refusals(1)) as proxy, nothing_sleeps(), PoliteProxyManager(proxy.url) as pools:
        assert pools.request("GET", NOWHERE).status == 200
        assert [request.target for request in proxy.received] == [NOWHERE] * 2


def test_an_adapter_of_requests_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="in each process"):
        pickle.dumps(PoliteAdapter())


@pytest.mark.parametrize("retries", [None, 5, urllib3.Retry(5, status_forcelist=[503], backoff_factor=0)])
def test_the_retries_of_urllib3_are_off_underneath(retries: urllib3.Retry | int | None) -> None:
    with scripted_server() as server, nothing_sleeps(), PolitePoolManager(retry=Retry(attempts=2)) as pools:
        server.always(Play(503, {"Retry-After": "0"}))
        assert pools.request("GET", server.url, retries=retries).status == 503
        assert len(server.received) == 2


@pytest.mark.parametrize(("retries", "followed"), [(2, 2), (urllib3.Retry(9, redirect=1), 1)])
def test_retries_of_urllib3_bound_its_redirects(retries: urllib3.Retry | int, followed: int) -> None:
    with scripted_server() as server, PolitePoolManager() as pools:
        server.always(Play(302, {"Location": "/again"}))
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            pools.request("GET", server.url, retries=retries)
        assert len(server.received) == 1 + followed


def test_without_retries_urllib3_returns_redirects_and_raises_errors_as_they_are() -> None:
    answers = Play(302, {"Location": "/again"}), Play(cut="before")
    with scripted_server(*answers) as server, PolitePoolManager(retry=None) as pools:
        assert pools.request("GET", server.url, retries=False).status == 302
        with pytest.raises(urllib3.exceptions.ProtocolError):
            pools.request("GET", server.url, retries=False)


def get_with_httpx(url: str, **options: Any) -> None:
    with httpx.Client(transport=PoliteTransport(**options)) as client:
        client.get(url)


def get_with_requests(url: str, **options: Any) -> None:
    with requests.Session() as session:
        session.mount("https://", PoliteAdapter(**options))
        session.get(url, timeout=20)


def get_with_urllib3(url: str, **options: Any) -> None:
    with PolitePoolManager(**options) as pools:
        pools.request("GET", url, timeout=20)


def get_with_aiohttp(url: str, **options: Any) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession(middlewares=(polite(**options),)) as session:
            await session.get(url)

    asyncio.run(run())


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x01\x00\x02\x02\x50"], ids=["end", "alert"])
@pytest.mark.parametrize("get", [get_with_httpx, get_with_requests, get_with_urllib3, get_with_aiohttp])
def test_a_handshake_that_the_server_ends_is_tried_again_and_counted(get: Callable[..., None], answer: bytes) -> None:
    """A balancer that starts anew does that."""
    breaker = CircuitBreaker(failures=2)
    with answering(lambda hello: answer) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(Exception, match=r"(?i)ssl|connect"):
            get(url, retry=Retry(attempts=2, backoff=SOON.backoff), breaker=breaker)
        assert len(server.requests) == 2
    assert not breaker.of(url).closed


def test_a_pool_that_blocks_gets_the_connection_of_a_refusal_back() -> None:
    refusal = Play(503, {"Retry-After": "0"}, b"x" * 1_000_000)
    with scripted_server(refusal) as server, nothing_sleeps(), PolitePoolManager(maxsize=1, block=True) as pools:
        response = pools.request("GET", server.url, preload_content=False, pool_timeout=20)
        assert response.status == 200
        response.drain_conn()
        assert pools.request("GET", server.url, pool_timeout=20).status == 200


def test_a_cancelled_call_of_aiohttp_leaks_no_connection() -> None:
    async def run() -> None:
        with scripted_server(Play(429, {"Retry-After": "30"})) as server:
            connector = aiohttp.TCPConnector(limit=1)
            async with aiohttp.ClientSession(connector=connector, middlewares=(polite(),)) as session:
                call = asyncio.create_task(session.get(server.url))
                async with asyncio.timeout(20):
                    while not server.received:
                        await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)  # it waits now, for 30 s
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                async with asyncio.timeout(20), session.get(server.url, middlewares=()) as response:
                    assert response.status == 200  # the only connection is free

    asyncio.run(run())


def test_the_total_timeout_of_aiohttp_is_for_the_whole_call() -> None:
    async def run() -> None:
        with scripted_server(Play(429, {"Retry-After": "30"})) as server:
            timeout = aiohttp.ClientTimeout(total=0.3)
            async with aiohttp.ClientSession(timeout=timeout, middlewares=(polite(),)) as session:
                with pytest.raises(TimeoutError):
                    await session.get(server.url)
                assert len(server.received) == 1

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_the_total_timeout_of_aiohttp_ends_the_reading_of_a_refusal_too(kind: str) -> None:
    events: list[object] = []

    async def run() -> None:
        refusal = Play(429, {"Retry-After": "30", "Content-Type": kind}, parts=(b"{", b"}"))  # the second never comes
        with scripted_server(refusal) as server:
            server.let_go()
            middleware = polite(listeners=[events.append])
            timeout = aiohttp.ClientTimeout(total=0.3)
            async with aiohttp.ClientSession(timeout=timeout, middlewares=(middleware,)) as session:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(20):
                        await session.get(server.url)
                assert len(server.received) == 1

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < 15  # and not after the 30 s of the server


def test_the_error_of_aiohttp_is_kept_where_aiohttp_repeats_nothing() -> None:
    async def run(method: str) -> BaseException:
        with scripted_server() as server:
            server.always(Play(cut="before"))
            async with aiohttp.ClientSession(middlewares=(polite(retry=SOON),)) as session:
                with pytest.raises(aiohttp.ClientConnectionError) as raised:
                    await session.request(method, server.url)
                return raised.value

    assert isinstance(asyncio.run(run("POST")), aiohttp.ClientOSError)
    error = asyncio.run(run("GET"))
    assert isinstance(error.__cause__, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
    assert any("4 attempts" in note for note in error.__notes__)
