"""What a handler has charged holds when its response breaks off, and nothing that a client does lowers it by itself."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from flask import Flask, g, stream_with_context

from ratebound.policy import RequestView
from ratebound.web import Passed, WebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.passed import CORS
from tests.web.drivers import environ_of, http_scope

pytestmark = pytest.mark.anyio

POLICY = {"by": "address", "rules": [{"name": "tokens", "limits": "1000/minute", "cost": 300}]}
Stream = Callable[[Any], AsyncIterator[bytes]]


async def charged_as_it_goes(passed: Any) -> AsyncIterator[bytes]:
    for used in (10, 20, 30):
        passed.charge(used, "tokens")
        yield b"part"
    await asyncio.sleep(3600)


async def charged_in_finally(passed: Any) -> AsyncIterator[bytes]:
    used = 0
    try:
        for _ in range(3):
            used += 10
            yield b"part"
        await asyncio.sleep(3600)
    finally:
        passed.charge(used, "tokens")


async def charged_at_the_end(passed: Any) -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b"part"
    await asyncio.sleep(3600)
    passed.charge(30, "tokens")


async def raising_after_a_charge(passed: Any) -> AsyncIterator[bytes]:
    yield b"part"
    passed.charge(30, "tokens")
    raise RuntimeError("as asked")


def fastapi_site(stream: Stream) -> tuple[Any, Any]:
    app = FastAPI()
    limits = RateLimits(POLICY, app=app)

    @app.get("/stream")
    async def answer(request: Request) -> StreamingResponse:
        return StreamingResponse(stream(request.state.ratebound))

    return app, limits.gate


def asgi_site(stream: Stream) -> tuple[Any, Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(stream(scope["state"]["ratebound"]))(scope, receive, send)

    limited = RateLimitMiddleware(app, POLICY)
    return limited, limited.gate


@pytest.fixture(params=[fastapi_site, asgi_site], ids=["FastAPI", "ASGI"])
def site(request: pytest.FixtureRequest) -> Callable[[Stream], tuple[Any, Any]]:
    return request.param  # type: ignore[no-any-return]


async def leave(app: Any, *, parts: int = 3, in_send: bool = False) -> None:
    """Request a stream, and go away after some parts: while the handler works, or while it waits for its `send`."""
    got, gone = 0, asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal got
        got += bool(message.get("body"))
        if got >= parts:
            gone.set()
            if in_send:
                await asyncio.sleep(3600)

    with contextlib.suppress(RuntimeError):
        await asyncio.wait_for(app(http_scope("GET", "/stream"), receive, send), 10)


async def used(gate: Any) -> int:
    (usage,) = await gate.usage_of("127.0.0.1")
    return int(usage.used)


@pytest.mark.parametrize("stream", [charged_as_it_goes, charged_in_finally, raising_after_a_charge])
async def test_a_stream_that_breaks_off_costs_what_its_handler_has_charged(site: Any, stream: Stream) -> None:
    app, gate = site(stream)
    await leave(app)
    assert await used(gate) == 30


async def test_a_client_that_leaves_before_the_charge_has_paid_the_estimate(site: Any) -> None:
    app, gate = site(charged_at_the_end)
    await leave(app)
    assert await used(gate) == 300


async def test_the_last_charge_before_the_client_left_holds_while_a_part_is_sent(site: Any) -> None:
    app, gate = site(charged_as_it_goes)
    await leave(app, parts=2, in_send=True)
    assert await used(gate) == 20


async def test_a_charge_that_comes_after_the_response_broke_off_is_logged_and_changes_nothing(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Any] = []

    async def stream(passed: Any) -> AsyncIterator[bytes]:
        kept.append(passed)
        yield b"part"

    app, gate = site(stream)
    await leave(app, parts=1, in_send=True)
    with caplog.at_level(logging.WARNING):
        kept[0].charge(10, "tokens")
    assert "after the response had broken off" in caplog.text
    assert await used(gate) == 300


def test_a_stream_that_a_server_closes_costs_what_its_handler_has_charged_in_flask() -> None:
    app = Flask("site")
    limits = FlaskLimits(app, POLICY)

    @app.get("/stream")
    def answer() -> Any:
        def parts() -> Iterator[bytes]:
            for count in (10, 20, 30):
                g.ratebound.charge(count, "tokens")
                yield b"part"

        return app.response_class(stream_with_context(parts()))

    start: Any = lambda *_: None  # noqa: E731
    body = iter(response := app.wsgi_app(environ_of("GET", "/stream"), start))
    assert [next(body), next(body)] == [b"part", b"part"]
    response.close()  # type: ignore[attr-defined]
    (usage,) = limits.gate.usage_of("127.0.0.1")
    assert usage.used == 20


def test_a_preflight_that_breaks_off_stays_charged() -> None:
    passed = WebGate(POLICY).before(RequestView("OPTIONS", "/", peer="127.0.0.1"))
    assert isinstance(passed, Passed)
    passed.bypass_handler()
    passed.start_response(200, [(name, "*") for name in CORS])
    assert passed.settlements(200, 0, is_broken=True) == []
