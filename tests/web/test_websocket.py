"""WebSocket over ASGI: what a connection has cost, who tells of it, and what is sent after its end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket

from ratebound.policy import Policy, Rule
from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.web import Charge
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.web.drivers import CountingStorage, connect, echo

pytestmark = pytest.mark.anyio


def left(sent: Iterable[dict[str, Any]]) -> list[bytes]:
    """What the start of a connection tells."""
    (start,) = [one for one in sent if one["type"] in ("websocket.accept", "websocket.http.response.start")]
    return [value for name, value in start["headers"] if name == b"ratelimit"]


def charging(then: Callable[[WebSocket], Awaitable[None]]) -> FastAPI:
    """Connections that cost 60 of 100, and what they do then."""
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.websocket("/ws")
    @limits.limit("100/minute", name="tokens")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        websocket.state.ratebound.charge(60)
        await then(websocket)

    return app


async def test_what_a_connection_says_that_it_has_cost_is_charged_when_it_ends() -> None:
    app = charging(WebSocket.close)
    assert left(await connect(app)) == [b'"tokens/minute";r=99;t=60']
    assert left(await connect(app)) == [b'"tokens/minute";r=39;t=60']
    (closed,) = await connect(app)
    assert closed["code"] == 1008


async def test_it_is_charged_when_the_client_has_left() -> None:
    async def listen(websocket: WebSocket) -> None:
        while True:
            await websocket.receive_text()

    app = charging(listen)
    with pytest.raises(Exception, match="1000"):  # WebSocketDisconnect, of which every server knows
        await connect(app)
    with pytest.raises(Exception, match="1000"):
        await connect(app)
    (closed,) = await connect(app)
    assert closed["code"] == 1008


async def test_a_connection_that_crashes_has_paid() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.websocket("/ws")
    @limits.limit("1/minute", charge="failure")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        raise RuntimeError("as asked")

    with pytest.raises(RuntimeError, match="as asked"):
        await connect(app)
    (closed,) = await connect(app)
    assert closed["code"] == 1008


@pytest.mark.parametrize(("charge", "opened"), [("failure", 5), ("success", 2)])
async def test_a_connection_that_was_accepted_is_a_success(charge: Charge, opened: int) -> None:
    app = RateLimitMiddleware(echo, "2/minute", charge={"default": charge})
    found = [(await connect(app))[0]["type"] for _ in range(5)]
    assert found.count("websocket.accept") == opened


@pytest.mark.parametrize("kind", ["close", "response", "nothing"])
async def test_a_connection_that_the_application_denies_is_a_failure(kind: str) -> None:
    async def deny(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if kind == "close":
            await send({"type": "websocket.close"})
        elif kind == "response":
            await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no"})

    outcomes: list[FinishedResponse] = []

    def charge(outcome: FinishedResponse) -> int:
        outcomes.append(outcome)
        return outcome.cost

    app = RateLimitMiddleware(deny, "2/minute", charge={"default": charge})
    await connect(app)
    told = {"close": (403, 0, 1, True), "response": (401, 2, 1, True), "nothing": (500, 0, 1, True)}
    assert outcomes == [FinishedResponse(*told[kind])]


async def test_what_is_sent_can_be_charged() -> None:
    app = RateLimitMiddleware(echo, "100/minute", charge={"default": lambda outcome: outcome.sent})
    await connect(app, texts=["twelve bytes", "ä"])
    assert left(await connect(app)) == [b'"default/minute";r=85;t=60']  # 14, and this one


async def test_nothing_is_settled_where_nothing_is_to_be() -> None:
    storage = CountingStorage(AsyncMemoryStorage())
    await connect(RateLimitMiddleware(echo, "100/minute", storage=storage))
    assert storage.calls == ["spend"]


async def test_the_gate_that_is_nearest_to_the_application_tells() -> None:
    app = FastAPI()
    RateLimits("7/minute", app=app)

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()

    assert left(await connect(RateLimitMiddleware(app, "90/minute"))) == [b'"default/minute";r=6;t=60']
    inner = RateLimitMiddleware(echo, Policy(rules=[Rule("inner", "3/minute")]))
    assert left(await connect(RateLimitMiddleware(inner, "90/minute"))) == [b'"inner/minute";r=2;t=60']


async def test_nothing_is_sent_after_our_close() -> None:
    async def chatty(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})

        async def read() -> None:
            while (await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": "read"})
            await send({"type": "websocket.send", "text": "not heard of it"})
            await send({"type": "websocket.close"})

        await asyncio.gather(read(), read())

    sent = await connect(RateLimitMiddleware(chatty, "9/minute", messages="2/minute"), texts="abcd")
    assert [one["type"].rpartition(".")[2] for one in sent] == ["accept", "send", "send", "close"]
    assert (sent[-1]["code"], sent[-1]["reason"]) == (1008, "too many messages")


async def test_a_refused_connection_is_known_to_who_is_around() -> None:
    seen: list[Any] = []

    def around(app: Any) -> Any:
        async def called(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            seen.append(scope["state"]["ratebound"])

        return called

    app = around(RateLimitMiddleware(echo, "1/minute"))
    await connect(app)
    await connect(app)
    assert [bool(one) for one in seen] == [True, False]


async def heartbeat(receive: Any, turns: list[str]) -> str:
    """A message, for which is waited again and again."""
    while True:
        turns.append("waits")
        task = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if task.done():
            return str(task.result().get("text"))
        task.cancel()
        await asyncio.wait([task])


async def test_no_message_is_lost_when_who_waits_for_it_is_cancelled() -> None:
    """A message that is held back is there for the next who waits, and is charged once."""
    turns: list[str] = []

    async def held(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(3):
            await send({"type": "websocket.send", "text": await heartbeat(receive, turns)})

    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) % 3:
            await asyncio.Future()  # until it is cancelled

    storage = CountingStorage(AsyncMemoryStorage())
    app = RateLimitMiddleware(
        held, "100/minute", messages="1/second burst 10 leaky-bucket", max_delay=20, sleep=nap, storage=storage
    )
    sent = await connect(app, texts=["a", "b", "c"])
    assert [one["text"] for one in sent if one["type"] == "websocket.send"] == ["a", "b", "c"]
    assert len(turns) > 3
    assert storage.calls.count("spend") == 4  # the connection, and each message once
    assert naps[0] >= naps[1] >= naps[2] > 0


async def test_a_message_that_is_too_many_is_so_for_the_next_who_waits() -> None:
    async def reading(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["text"] == "a"
        assert (await receive())["type"] == "websocket.disconnect"
        assert (await receive())["type"] == "websocket.disconnect"

    sent = await connect(RateLimitMiddleware(reading, "100/minute", messages="1/minute"), texts=["a", "b", "c"])
    assert [one["type"] for one in sent] == ["websocket.accept", "websocket.close"]
