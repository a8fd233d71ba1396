"""What only one of the HTTP libraries has: proxies, pickles, redirects, cancelled calls."""

import asyncio
import pickle

import aiohttp
import pytest
import requests
import urllib3

from ratebound.client import Backoff, Retry
from ratebound.client.aiohttp import polite
from ratebound.client.requests import PoliteAdapter
from ratebound.client.urllib3 import PolitePoolManager, PoliteProxyManager
from ratebound.testing import nothing_sleeps
from tests.client.scripted_server import Play, refusals, scripted_server

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
