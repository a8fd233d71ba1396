"""Litestar and Quart behind the pure ASGI adapter: around the application, and inside it, where each has a place.

Inside Litestar every route makes its middleware anew, after routing: one gate is shared, and closed by the application.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from litestar import Litestar, Request, WebSocket, get, head, post, websocket
from litestar.middleware import DefineMiddleware
from litestar.response import Stream
from quart import Quart, Response
from quart import request as quart_request
from quart import websocket as quart_websocket

from ratebound import MemoryStorage
from ratebound.policy import Match, Policy, Rule
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import FakeClock
from ratebound.web import AsyncWebGate, Passed
from ratebound.web.asgi import RateLimitMiddleware
from tests.web.drivers import CountingStorage, answer_of, connect, exchange, fetch, http_scope
from tests.web.suite import Answer

Message = MutableMapping[str, Any]
pytestmark = pytest.mark.anyio

PARTS = ("one", "two", "three")
OURS = ("ratelimit", "ratelimit-policy", "retry-after", "cache-control")


class Made(NamedTuple):
    """An application behind a gate. What happens in it is noted in `seen`."""

    app: Any
    gate: AsyncWebGate
    seen: list[Any]


Make = Callable[..., Made]


async def parts(seen: list[Any]) -> AsyncIterator[str]:
    for part in PARTS:
        seen.append(f"made {part}")
        yield part


async def endless() -> AsyncIterator[str]:
    while True:
        yield "part"
        await asyncio.sleep(0)


def litestar_app(seen: list[Any], **more: Any) -> Litestar:
    @get("/users/{id:int}", media_type="text/plain")
    async def user(request: Request[Any, Any, Any]) -> str:
        passed = request.scope["state"]["ratebound"]
        assert request.state.ratebound is passed
        seen.append(passed)
        return f"user {request.path_params['id']}"

    @head("/users/{id:int}")
    async def user_head() -> None:
        seen.append("head")

    @post("/login", media_type="text/plain", status_code=200)
    async def login() -> str:
        return "welcome"

    @get("/stream")
    async def stream() -> Stream:
        return Stream(parts(seen))

    @get("/endless")
    async def never_done() -> Stream:
        return Stream(endless())

    @get("/fail")
    async def fail() -> None:
        raise RuntimeError("as asked")

    @websocket("/rooms/{room:str}")
    async def room(socket: WebSocket[Any, Any, Any]) -> None:
        seen.append(socket.scope["state"]["ratebound"])
        await socket.accept()
        async for text in socket.iter_data("text"):
            await socket.send_text(text)

    async def ends() -> None:
        seen.append("ends")

    hooks = [ends, *more.pop("on_shutdown", ())]
    routes: list[Any] = [user, user_head, login, stream, never_done, fail, room, *more.pop("routes", ())]
    return Litestar(routes, on_shutdown=hooks, openapi_config=None, logging_config=None, **more)


def quart_app(seen: list[Any]) -> Quart:
    app = Quart("tested")

    @app.get("/users/<int:id>")
    async def user(id: int) -> str:
        seen.append(quart_request.scope["state"]["ratebound"])
        return f"user {id}"

    @app.post("/login")
    async def login() -> str:
        return "welcome"

    @app.get("/stream")
    async def stream() -> Response:
        return Response(parts(seen))

    @app.get("/endless")
    async def never_done() -> Response:
        return Response(endless())

    @app.get("/fail")
    async def fail() -> str:
        raise RuntimeError("as asked")

    @app.websocket("/rooms/<room>")
    async def room(room: str) -> None:
        seen.append(quart_websocket.scope["state"]["ratebound"])
        await quart_websocket.accept()
        while True:
            await quart_websocket.send(await quart_websocket.receive())

    @app.after_serving
    async def ends() -> None:
        seen.append("ends")

    return app


def around_litestar(policy: Any, **options: Any) -> Made:
    seen: list[Any] = []
    app = RateLimitMiddleware(litestar_app(seen), policy, **options)
    return Made(app, app.gate, seen)


def inside_litestar(policy: Any, *, user: Any = None, outside: Any = (), routes: Any = (), **options: Any) -> Made:
    seen: list[Any] = []
    gate = AsyncWebGate(policy, **options)
    who = {} if user is None else {"user": user}
    inside: list[Any] = [*outside, DefineMiddleware(RateLimitMiddleware, gate=gate, **who)]
    return Made(litestar_app(seen, middleware=inside, on_shutdown=[gate.close], routes=routes), gate, seen)


def around_quart(policy: Any, **options: Any) -> Made:
    seen: list[Any] = []
    app = RateLimitMiddleware(quart_app(seen), policy, **options)
    return Made(app, app.gate, seen)


def inside_quart(policy: Any, **options: Any) -> Made:
    seen: list[Any] = []
    app = quart_app(seen)
    limited = RateLimitMiddleware(app.asgi_app, policy, **options)
    app.asgi_app = limited  # type: ignore[method-assign]
    return Made(app, limited.gate, seen)


WAYS: dict[str, Make] = {
    "around litestar": around_litestar,
    "inside litestar": inside_litestar,
    "around quart": around_quart,
    "inside quart": inside_quart,
}


@pytest.fixture(params=WAYS.values(), ids=list(WAYS))
def make(request: pytest.FixtureRequest) -> Make:
    way: Make = request.param
    return way


@pytest.fixture(params=[way for name, way in WAYS.items() if name != "inside litestar"])
def make_that_sees_all(request: pytest.FixtureRequest) -> Make:
    """Where the gate stands before the router."""
    way: Make = request.param
    return way


def ours(answer: Answer) -> dict[str, str]:
    """Our headers, each of which is there once."""
    pairs = [(name, value) for name, value in answer.headers if name in OURS]
    assert len(pairs) == len(dict(pairs)), answer
    return dict(pairs)


def remaining(answer: Answer) -> int:
    return int(ours(answer)["ratelimit"].partition("r=")[2].partition(";")[0])


async def test_requests_are_allowed_and_refused_with_each_header_once(make: Make, clock: FakeClock) -> None:
    app, _, seen = make("2/minute", storage=MemoryStorage(clock=clock))
    answers = [await fetch(app, "GET", f"/users/{n}") for n in range(3)]
    told = {"ratelimit-policy": '"default/minute";q=2;w=60'}
    refused = {**told, "ratelimit": '"default/minute";r=0;t=60', "retry-after": "60", "cache-control": "no-store"}
    assert [(answer.status, ours(answer)) for answer in answers] == [
        (200, {**told, "ratelimit": '"default/minute";r=1;t=60'}),
        (200, {**told, "ratelimit": '"default/minute";r=0;t=60'}),
        (429, refused),
    ]
    assert [answer.body for answer in answers[:2]] == [b"user 0", b"user 1"]
    assert json.loads(answers[2].body)["title"] == "Quota Exceeded"
    assert len(seen) == 2
    clock.advance(60)
    assert (await fetch(app, "GET", "/users/3")).status == 200


async def test_the_handler_sees_the_decision(make: Make) -> None:
    app, gate, seen = make("5/minute")
    for left in (4, 3):
        assert remaining(await fetch(app, "GET", "/users/1")) == left
        passed = seen[-1]
        assert isinstance(passed, Passed)
        assert gate.owns(passed)
        assert passed.decision is not None
        assert passed.decision.remaining == left


async def test_errors_have_headers_once_and_count(make: Make) -> None:
    app = make("5/minute").app
    answers = [await fetch(app, "GET", "/fail") for _ in range(6)]
    assert [answer.status for answer in answers] == [500] * 5 + [429]
    assert [remaining(answer) for answer in answers] == [4, 3, 2, 1, 0, 0]


async def test_what_no_route_takes_counts_and_is_told_so(make_that_sees_all: Make) -> None:
    app = make_that_sees_all("3/minute").app
    answers = [
        await fetch(app, "GET", "/nowhere"),
        await fetch(app, "POST", "/users/1"),
        await fetch(app, "GET", "/users/nobody"),
        await fetch(app, "GET", "/nowhere"),
    ]
    assert [(answer.status, remaining(answer)) for answer in answers] == [(404, 2), (405, 1), (404, 0), (429, 0)]


async def test_inside_litestar_what_no_route_takes_is_not_limited() -> None:
    app = inside_litestar("1/minute").app
    answers = [await fetch(app, "GET", "/nowhere"), await fetch(app, "POST", "/users/1")]
    assert [(answer.status, ours(answer)) for answer in answers] == [(404, {}), (405, {})]
    assert remaining(await fetch(app, "GET", "/users/1")) == 0


async def test_parts_of_a_stream_are_sent_as_they_are_made_with_headers_once(make: Make) -> None:
    app, _, seen = make("5/minute")
    sent: list[dict[str, Any]] = []
    done = asyncio.Event()
    asked: list[Message] = [{"type": "http.request"}]

    async def receive() -> Message:
        if asked:
            return asked.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message.get("body"):
            seen.append(f"sent {message['body'].decode()}")
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    await asyncio.wait_for(app(http_scope("GET", "/stream"), receive, send), 30)
    assert seen == [f"{what} {part}" for part in PARTS for what in ("made", "sent")]
    assert remaining(answer_of(sent)) == 4


async def test_bytes_sent_are_charged_at_the_end_of_a_stream(make: Make) -> None:
    policy = Policy(rules=[Rule("bytes", "100/minute")])
    app = make(policy, charge={"bytes": lambda outcome: outcome.sent}).app
    assert remaining(await fetch(app, "GET", "/stream")) == 99  # a stream's start cannot know what will be sent
    assert remaining(await fetch(app, "GET", "/stream")) == 100 - len("".join(PARTS)) - 1
    assert remaining(await fetch(app, "GET", "/users/1")) == 100 - 2 * len("".join(PARTS)) - len("user 1")


async def test_who_disconnects_from_a_stream_has_paid(make: Make) -> None:
    app = make(Policy(rules=[Rule("files", "5/minute")]), charge={"files": "failure"}).app
    gone = asyncio.Event()
    begun: list[Message] = [{"type": "http.request"}]

    async def receive() -> Message:
        if begun:
            return begun.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            gone.set()

    await asyncio.wait_for(app(http_scope("GET", "/endless"), receive, send), 30)
    assert remaining(await fetch(app, "GET", "/users/1")) == 4  # its own is given back


async def test_a_head_is_a_get_without_a_body_also_when_refused(make: Make, clock: FakeClock) -> None:
    policy = Policy(rules=[Rule("reads", "2/minute", match=Match(methods=["GET"]))])
    app = make(policy, storage=MemoryStorage(clock=clock)).app
    assert remaining(await fetch(app, "HEAD", "/users/1")) == 1
    assert remaining(await fetch(app, "GET", "/users/1")) == 0
    sent = await exchange(app, http_scope("HEAD", "/users/1"))
    refused = answer_of(sent)
    assert (refused.status, refused.body, ours(refused)["retry-after"]) == (429, b"", "60")
    assert int(dict(refused.headers)["content-length"]) > 0, "as a GET would have"
    assert (await fetch(app, "POST", "/login")).status == 200


async def test_rules_hold_for_paths_and_methods_in_any_spelling(make: Make) -> None:
    policy = Policy(
        rules=[
            Rule("users", "2/minute", match=Match(paths=["/users/{id}"])),
            Rule("login", "1/minute", match=Match(paths=["/login"], methods=["POST"])),
            Rule("rest", "5/minute", default=True),
        ]
    )
    app = make(policy).app
    statuses = [(await fetch(app, "GET", path)).status for path in ("/users/1", "/users/2", "/users/3", "/%75sers/4")]
    assert statuses == [200, 200, 429, 429]
    assert [(await fetch(app, "POST", "/login")).status for _ in range(2)] == [200, 429]
    rest = await fetch(app, "GET", "/stream")
    assert ours(rest)["ratelimit"].startswith('"rest/minute";r=4')


async def test_connections_are_limited_and_told_of_it(make: Make, clock: FakeClock) -> None:
    policy = Policy(rules=[Rule("rooms", "2/minute", match=Match(paths=["/rooms/{room}"]))])
    app, _, seen = make(policy, storage=MemoryStorage(clock=clock))
    for left in (1, 0):
        accept, *echoed = await connect(app, f"/rooms/{left}", texts="a")
        told = [value for name, value in accept["headers"] if name == b"ratelimit"]
        assert (accept["type"], told) == ("websocket.accept", [f'"rooms/minute";r={left};t=60'.encode()])
        assert [message["text"] for message in echoed if message["type"] == "websocket.send"] == ["a"]
        assert seen[-1].decision.remaining == left
    closed = {"type": "websocket.close", "code": 1008, "reason": "too many connections"}
    assert await connect(app, "/rooms/3") == [closed]
    start, body = await connect(app, "/rooms/4", extensions={"websocket.http.response": {}})
    assert (start["status"], json.loads(body["body"])["status"]) == (429, 429)
    assert [value for name, value in start["headers"] if name == b"retry-after"] == [b"60"]
    assert len(seen) == 2


async def test_the_storage_is_closed_with_the_application_after_its_own_hooks(make: Make) -> None:
    app, gate, seen = make("5/minute")

    class Noting(CountingStorage):
        async def close(self) -> None:
            seen.append("closed")
            await super().close()

    gate.gate.storage = Noting(AsyncMemoryStorage())  # as if it had been opened here
    incoming: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        seen.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert seen == ["lifespan.startup.complete", "ends", "closed", "lifespan.shutdown.complete"]


async def test_around_an_application_patterns_are_of_the_whole_path(make_that_sees_all: Make) -> None:
    rules = [Rule("whole", "2/minute", match=Match(paths=["/api/users/{id}"])), Rule("rest", "9/minute", default=True)]
    app = make_that_sees_all(Policy(rules=rules)).app
    answers = [await fetch(app, "GET", f"/api/users/{n}", root_path="/api") for n in range(3)]
    assert [(answer.status, remaining(answer)) for answer in answers] == [(200, 1), (200, 0), (429, 0)]


async def test_inside_litestar_the_template_of_the_route_is_known() -> None:
    policy = Policy(rules=[Rule("users", "2/minute", match=Match(paths=["/users/{id}"]))])
    app, _, seen = inside_litestar(policy)
    answers = [await fetch(app, "GET", f"/api/users/{n}", root_path="/api") for n in range(3)]
    assert [(answer.status, remaining(answer)) for answer in answers] == [(200, 1), (200, 0), (429, 0)]
    assert len(seen) == 2
    around = around_litestar(policy).app
    assert remaining(await fetch(around, "GET", "/api/users/1", root_path="/api")) == 1  # the path below the prefix


async def test_inside_litestar_all_routes_of_a_gate_have_one_quota() -> None:
    app = inside_litestar("3/minute").app
    answers = [
        await fetch(app, "GET", "/users/1"),
        await fetch(app, "POST", "/login"),
        await fetch(app, "GET", "/stream"),
        await fetch(app, "HEAD", "/users/1"),
    ]
    assert [(answer.status, remaining(answer)) for answer in answers] == [(200, 2), (200, 1), (200, 0), (429, 0)]


@dataclass
class Account:
    """As applications have them: nothing that Starlette would know."""

    name: str


async def test_inside_litestar_a_user_has_one_quota_whatever_the_address() -> None:
    def authenticated(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            scope["user"] = Account(dict(scope["headers"])[b"x-name"].decode())
            await app(scope, receive, send)

        return middleware

    app = inside_litestar("5/minute", user=lambda scope: scope["user"].name, outside=[authenticated]).app
    requests = [("ann", "192.0.2.1"), ("ann", "192.0.2.2"), ("bob", "192.0.2.2")]
    answers = [await fetch(app, "GET", "/users/1", {"x-name": name}, peer=peer) for name, peer in requests]
    assert [remaining(answer) for answer in answers] == [4, 3, 4]


async def test_a_response_from_litestars_cache_counts_and_has_headers_of_its_own() -> None:
    made: list[int] = []

    @get("/cached", cache=60, media_type="text/plain")
    async def cached() -> str:
        made.append(1)
        return "kept"

    app = inside_litestar("2/minute", routes=[cached]).app
    answers = [await fetch(app, "GET", "/cached") for _ in range(3)]
    assert [(answer.status, remaining(answer)) for answer in answers] == [(200, 1), (200, 0), (429, 0)]
    assert ([answer.body for answer in answers[:2]], len(made)) == ([b"kept"] * 2, 1)
