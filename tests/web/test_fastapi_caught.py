"""FastAPI and Starlette: rejections that are raised within a request, and limits that several tasks check."""

import asyncio
import contextlib
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from ratebound.policy import Policy, Rule
from ratebound.policy.cost import json_batch_cost
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.asgi_types import Message
from ratebound.web.body import KeptBody
from ratebound.web.fastapi import RateLimitExceeded, RateLimits, Rejected
from tests.web.drivers import connect, exchange, fetch, http_scope
from tests.web.test_fastapi import field, remaining, statuses

pytestmark = pytest.mark.anyio


class SlowStorage:
    """One that takes its time, so that others come while it is asked."""

    def __init__(self) -> None:
        self.inner = AsyncMemoryStorage()
        self.spent = 0

    async def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
        self.spent += mode == "spend"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await self.inner.evaluate(groups, mode)

    async def reset(self, group: Any) -> None:
        await self.inner.reset(group)

    async def close(self) -> None:
        await self.inner.close()


def with_fallback(limits: RateLimits, app: FastAPI, charge: int | None = None) -> None:
    """An endpoint that does without a function that is refused, and says what it has cost."""

    @limits.limit("1/hour", name="helper")
    async def helper() -> None: ...

    async def endpoint(request: Request) -> str:
        try:
            await helper()
        except RateLimitExceeded:
            if charge is not None:
                request.state.ratebound.charge(charge)
            return "fallback"
        return "helped"

    app.get("/e")(limits.limit("5/minute", name="own")(endpoint))
    app.get("/bare")(endpoint)


async def test_a_refusal_that_the_endpoint_catches_does_not_free_the_request() -> None:
    app = FastAPI()
    with_fallback(RateLimits(app=app), app)
    assert await statuses(app, *["/e"] * 7) == [200] * 5 + [429] * 2


async def test_nor_does_it_free_it_of_the_rules_of_the_policy() -> None:
    app = FastAPI()
    with_fallback(RateLimits(Policy(rules=[Rule("all", "3/minute")]), app=app), app)
    assert await statuses(app, *["/bare"] * 5) == [200] * 3 + [429] * 2


async def test_the_response_tells_of_what_has_passed_and_not_of_a_refusal_that_was_caught() -> None:
    app = FastAPI()
    with_fallback(RateLimits(app=app), app)
    await fetch(app, "GET", "/e")
    answer = await fetch(app, "GET", "/e")
    assert (answer.status, answer.body, remaining(answer)) == (200, b'"fallback"', {"own/minute": 3})
    assert "retry-after" not in dict(answer.headers)


async def test_after_a_caught_refusal_the_handler_may_say_what_it_has_cost() -> None:
    app = FastAPI()
    with_fallback(RateLimits(app=app), app, charge=3)
    await fetch(app, "GET", "/e")
    answer = await fetch(app, "GET", "/e")
    assert (answer.status, remaining(answer)) == (200, {"own/minute": 1})


def refused_in_the_midst(app: FastAPI, **options: Any) -> None:
    limits = RateLimits(app=app)

    @limits.limit("1/hour", name="helper", **options)
    async def helper() -> None: ...

    @app.get("/e")
    @limits.limit("5/minute", name="own")
    async def endpoint() -> None:
        await helper()

    @app.get("/own")
    @limits.limit("5/minute", name="own")
    async def own() -> None: ...


async def test_an_applications_own_handler_for_the_refusal_gets_the_headers_and_the_rest_is_given_back() -> None:
    app = FastAPI()
    refused_in_the_midst(app)

    @app.exception_handler(429)
    async def too_many(request: Request, error: RateLimitExceeded) -> JSONResponse:
        return JSONResponse({"mine": True}, 429)

    await fetch(app, "GET", "/e")
    answer = await fetch(app, "GET", "/e")
    assert (answer.status, answer.body, field(answer, "retry-after")) == (429, b'{"mine":true}', "3600")
    assert remaining(await fetch(app, "GET", "/own")) == {"own/minute": 3}


async def test_what_on_breach_answers_is_the_refusal_whatever_its_status() -> None:
    app = FastAPI()

    def breach(refused: Rejected) -> PlainTextResponse:
        return PlainTextResponse("come back later", 503)

    refused_in_the_midst(app, on_breach=breach)
    await fetch(app, "GET", "/e")
    answer = await fetch(app, "GET", "/e")
    assert (answer.status, answer.body, field(answer, "retry-after")) == (503, b"come back later", "3600")
    assert remaining(await fetch(app, "GET", "/own")) == {"own/minute": 3}


async def test_a_middleware_around_with_the_same_gate_tells_of_the_refusal_too() -> None:
    inner = FastAPI()
    limits = RateLimits("5/minute", app=inner)
    app = RateLimitMiddleware(inner, gate=limits.gate)

    @limits.limit("1/hour", name="helper")
    async def helper() -> None: ...

    @inner.get("/e")
    async def endpoint() -> None:
        await helper()

    @inner.get("/own")
    async def own() -> None: ...

    assert remaining(await fetch(app, "GET", "/e")) == {"default/minute": 4, "helper/hour": 0}
    answer = await fetch(app, "GET", "/e")
    assert (answer.status, remaining(answer)) == (429, {"helper/hour": 0})
    assert remaining(await fetch(app, "GET", "/own")) == {"default/minute": 3}


async def test_two_functions_may_be_refused_in_one_request(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("1/hour", name="first")
    async def first() -> None: ...

    @limits.limit("1/hour", name="second")
    async def second() -> None: ...

    @app.get("/e")
    @limits.limit("5/minute", name="own")
    async def endpoint() -> None:
        with contextlib.suppress(RateLimitExceeded):
            await first()
        await second()

    @app.get("/own")
    @limits.limit("5/minute", name="own")
    async def own() -> None: ...

    assert await statuses(app, "/e", "/e", "/e") == [200, 429, 429]
    assert remaining(await fetch(app, "GET", "/own")) == {"own/minute": 3}
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_handshake_that_is_refused_in_its_midst_gives_back_what_its_connection_was_charged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("1/hour", name="helper")
    async def helper() -> None: ...

    @app.websocket("/ws")
    @limits.limit("5/minute", name="own", charge="failure")
    async def ws(websocket: WebSocket) -> None:
        await helper()
        await websocket.accept()
        await websocket.close()

    async def left() -> bytes:
        start = (await connect(app, extensions={"websocket.http.response": {}}))[0]
        return bytes(dict(start["headers"])[b"ratelimit"])

    assert b'"own/minute";r=4' in await left()
    for _ in range(6):
        assert await left() == b'"helper/hour";r=0;t=3600'
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_connection_that_catches_a_refusal_has_paid_for_itself() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("1/hour", name="helper")
    async def helper() -> None: ...

    @app.websocket("/ws")
    @limits.limit("3/minute", name="own")
    async def ws(websocket: WebSocket) -> None:
        with contextlib.suppress(RateLimitExceeded):
            await helper()
        await websocket.accept()
        await websocket.close()

    kinds = [(await connect(app))[0]["type"] for _ in range(4)]
    assert kinds == ["websocket.accept"] * 3 + ["websocket.close"]


async def test_tasks_of_one_request_ask_once() -> None:
    app, storage = FastAPI(), SlowStorage()
    limits = RateLimits(app=app, storage=storage)
    shared = limits.limit("10/hour", name="shared")

    @shared
    async def one() -> None: ...

    @shared
    async def other() -> None: ...

    @app.get("/e")
    async def endpoint(request: Request) -> int:
        await asyncio.gather(one(), other(), one())
        return int(request.state.ratebound.decision.remaining)

    assert (await fetch(app, "GET", "/e")).body == b"9"
    assert storage.spent == 1


async def test_tasks_of_one_request_are_all_refused() -> None:
    app = FastAPI()
    limits = RateLimits(app=app, storage=SlowStorage())

    @limits.limit("1/hour")
    async def helper() -> None: ...

    @app.get("/e")
    async def endpoint() -> list[str]:
        found = await asyncio.gather(helper(), helper(), return_exceptions=True)
        return [type(one).__name__ for one in found]

    assert (await fetch(app, "GET", "/e")).body == b'["NoneType","NoneType"]'
    assert (await fetch(app, "GET", "/e")).body == b'["RateLimitExceeded","RateLimitExceeded"]'


async def test_a_plain_function_is_asked_for_from_any_thread() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("2/minute")
    def plain() -> str:
        return "done"

    @app.get("/e")
    async def endpoint() -> str:
        return await asyncio.to_thread(plain)

    assert await statuses(app, "/e", "/e", "/e") == [200, 200, 429]


async def test_a_body_is_looked_at_while_another_waits_for_the_end_of_the_connection() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("100/minute", cost=json_batch_cost)
    async def helper() -> None: ...

    @app.post("/e")
    async def endpoint(request: Request) -> StreamingResponse:
        async def parts() -> Any:
            await asyncio.sleep(0)  # by now the response waits for the client to leave
            await helper()
            yield str(request.state.ratebound.decision.remaining)

        return StreamingResponse(parts())

    sent = await asyncio.wait_for(exchange(app, http_scope("POST", "/e"), b"[1, 2, 3]"), 30)
    assert b"".join(one.get("body", b"") for one in sent) == b"97"


@pytest.mark.parametrize("is_first", [True, False])
async def test_each_part_of_a_body_comes_once_whoever_asks_first(is_first: bool) -> None:
    left: list[Message] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        await asyncio.sleep(0)
        return left.pop(0) if left else await asyncio.Future()

    kept = KeptBody(receive)

    async def all_messages() -> list[Message]:
        return [await kept.receive() for _ in range(3)]

    waiting = [kept.read(), all_messages()]
    if is_first:
        waiting.reverse()
    found = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    messages: Any
    messages, body = found if is_first else reversed(found)
    assert body == b"ab"
    assert [one.get("body") for one in messages] == [b"a", b"b", None]
