"""FastAPI and Starlette: endpoints of which the table of routes knows nothing are limited all the same."""

import asyncio
import functools
import gc
import logging
from collections.abc import Callable
from types import FunctionType
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute

from ratebound.policy import Policy, Rule
from ratebound.policy.cost import json_batch_cost
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import limiting_off
from ratebound.web.fastapi import Passed, RateLimits
from ratebound.web.route_limit import Endpoint
from tests.web.drivers import CountingStorage, connect, exchange, fetch, http_scope
from tests.web.test_fastapi import field, remaining, statuses

pytestmark = pytest.mark.anyio


def ok(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def ok_task(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def own(function: Any) -> Any:
    """A function of its own for each test: limits are noted on it."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__)
    made.__qualname__, made.__annotations__ = function.__qualname__, function.__annotations__
    return made


def hidden(function: Any) -> Any:
    """A decorator that keeps nothing of what it decorates."""
    if asyncio.iscoroutinefunction(function):

        async def task(request: Request) -> Any:
            return await function(request)

        return task

    def plain(request: Request) -> Any:
        return function(request)

    return plain


def in_cors(*routes: Any) -> Mount:
    return Mount("/s", app=CORSMiddleware(Starlette(routes=list(routes)), allow_origins=["*"]))


PLACES: dict[str, Callable[[Any], Any]] = {
    "of a host": lambda view: Host("test", app=Router([Route("/s/x", view)])),
    "of any host": lambda view: Host("{name}", app=Router([Route("/s/x", view)])),
    "wrapped in middleware": lambda view: in_cors(Route("/x", view)),
    "behind a decorator": lambda view: Route("/s/x", hidden(view)),
    "behind two": lambda view: Route("/s/x", hidden(hidden(view))),
    "partial": lambda view: Route("/s/x", functools.partial(view)),
}


@pytest.mark.parametrize("function", [ok, ok_task], ids=["plain", "coroutine"])
@pytest.mark.parametrize("place", PLACES)
async def test_an_endpoint_is_limited_wherever_it_is(place: str, function: Any) -> None:
    limits = RateLimits()
    view = limits.limit("3/hour")(limits.limit("2/minute")(own(function)))
    app = Starlette(routes=[PLACES[place](view)])
    limits.install(app)
    answers = [await fetch(app, "GET", "/s/x") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    name = f"test_fastapi_unforeseen.{function.__name__}"
    assert [remaining(answer) for answer in answers[:2]] == [
        {f"{name}/minute": left, f"{name}-2/hour": left + 1} for left in (1, 0)
    ]
    assert field(answers[2], "retry-after") == "60"


async def test_what_is_asked_late_gives_back_what_was_asked_early_and_is_one_trip_more() -> None:
    storage = CountingStorage(AsyncMemoryStorage())
    limits = RateLimits(Policy(rules=[Rule("all", "9/minute")]), storage=storage)
    view = limits.limit("3/hour")(limits.limit("1/minute")(own(ok_task)))
    app = Starlette(routes=[Route("/x", hidden(view)), Route("/other", own(ok_task))])
    limits.install(app)
    assert await statuses(app, "/x") == [200]
    assert storage.calls == ["spend", "spend"]
    refused = await fetch(app, "GET", "/x")
    assert (refused.status, storage.calls[2:]) == (429, ["spend", "spend", "force"])
    assert field(refused, "content-type") == "application/problem+json"
    assert remaining(await fetch(app, "GET", "/other")) == {"all/minute": 7}


async def test_limits_above_the_routes_decorator_all_hold() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("2/minute", name="upper")
    @limits.limit("9/hour", name="lower")
    @app.get("/")
    async def home() -> None: ...

    answers = [await fetch(app, "GET", "/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert remaining(answers[0]) == {"upper/minute": 1, "lower/hour": 8}


async def test_a_class_that_nobody_foresees_is_limited() -> None:
    limits = RateLimits()

    @limits.limit("1/minute", name="whole")
    class Whole(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("whole")

    class Below(Whole):
        pass

    class ByMethod(HTTPEndpoint):
        @limits.limit("1/minute", name="method")
        def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("method")

    app = Starlette(routes=[in_cors(Route("/a", Whole), Route("/b", ByMethod), Route("/c", Below))])
    limits.install(app)
    assert await statuses(app, "/s/a", "/s/a", "/s/b", "/s/b") == [200, 429, 200, 429]
    assert await statuses(app, "/s/c") == [429]  # one name is one quota


async def test_a_class_that_cannot_wait_refuses_to_run_unlimited() -> None:
    limits = RateLimits()

    @limits.limit("1/minute")
    class Callable_:
        def __init__(self) -> None:
            self.is_made = True

    async def view(request: Request) -> PlainTextResponse:
        Callable_()
        return PlainTextResponse("never")

    app = Starlette(routes=[Route("/", view)])
    limits.install(app)
    assert await statuses(app, "/") == [500]
    with limiting_off():
        assert Callable_().is_made


async def test_a_function_that_an_endpoint_calls_is_asked_once_for_each_request() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("2/minute")
    async def work() -> str:
        return "done"

    @limits.limit("2/minute")
    def plain_work() -> str:
        return "done"

    @app.get("/task")
    async def task() -> Any:
        return await work() + await work()

    @app.get("/plain")
    def plain() -> Any:
        return plain_work() + plain_work()

    for path in ("/task", "/plain"):
        assert await statuses(app, path, path, path) == [200, 200, 429]


async def test_a_plain_function_that_would_hold_up_the_event_loop_raises() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    said: list[str] = []

    @limits.limit("2/minute")
    def work() -> None:
        raise AssertionError("it ran unlimited")

    @app.get("/")
    async def home() -> None:
        try:
            work()
        except RuntimeError as error:
            said.append(str(error))

    assert await statuses(app, "/") == [200]
    assert "called by a coroutine" in said[0]


async def test_an_exempt_endpoint_is_exempt_wherever_it_is() -> None:
    limits = RateLimits()
    view = limits.exempt(limits.limit("1/minute")(own(ok_task)))
    inner = limits.limit("1/minute")(limits.exempt(own(ok)))
    app = Starlette(routes=[in_cors(Route("/x", view), Route("/y", inner))])
    limits.install(app)
    assert await statuses(app, "/s/x", "/s/x", "/s/y", "/s/y") == [200] * 4


async def test_a_connection_that_nobody_foresees_is_limited() -> None:
    limits = RateLimits()

    @limits.limit("1/minute")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")

    app = Starlette(routes=[WebSocketRoute("/ws", hidden(ws))])
    limits.install(app)
    assert [one["type"] for one in await connect(app)] == ["websocket.accept", "websocket.send"]
    (closed,) = await connect(app)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


@pytest.mark.parametrize("can_deny", [True, False])
async def test_a_dependency_may_refuse_a_connection(can_deny: bool) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.websocket("/ws")
    async def ws(
        websocket: WebSocket, _: Annotated[Passed, Depends(limits.limit("1/minute", user=lambda: "ann"))]
    ) -> None:
        await websocket.accept()

    more: dict[str, Any] = {"extensions": {"websocket.http.response": {}}} if can_deny else {}
    assert [one["type"] for one in await connect(app)] == ["websocket.accept"]
    first, *_ = await connect(app, **more)
    if can_deny:
        assert (first["type"], first["status"]) == ("websocket.http.response.start", 429)
    else:
        assert (first["type"], first["code"]) == ("websocket.close", 1008)


BATCH = b"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


async def test_a_batch_costs_what_it_is_wherever_its_limit_is_asked() -> None:
    limits = RateLimits()
    limit = functools.partial(limits.limit, "15/minute", cost=json_batch_cost)
    app = FastAPI()

    @app.post("/user", dependencies=[Depends(limit(user=lambda: "ann", name="a"))])
    async def user(request: Request) -> Any:
        return await request.json()

    @app.post("/parsed", dependencies=[Depends(limit(user=lambda: "ann", name="b"))])
    async def parsed(body: list[int]) -> Any:
        return body

    @limit(name="c")
    async def task(request: Request) -> Any:
        return PlainTextResponse(await request.body())

    @limit(name="d")
    async def streamed(request: Request) -> Any:
        return PlainTextResponse(b"".join([part async for part in request.stream()]))

    app.router.routes.append(
        in_cors(Route("/task", task, methods=["POST"]), Route("/plain", streamed, methods=["POST"]))
    )
    limits.install(app)
    for path in ("/user", "/parsed", "/s/task", "/s/plain"):
        answers = [await fetch(app, "POST", path, {"content-type": "application/json"}, BATCH) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 429], path
        assert answers[0].body.replace(b" ", b"") == BATCH.replace(b" ", b"")
        assert list(remaining(answers[0]).values()) == [5]


async def test_a_route_is_told_of_that_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratebound")
    limits = RateLimits()
    app = Starlette(routes=[Route("/", hidden(limits.limit("5/minute")(own(ok_task))))])
    limits.install(app)
    await statuses(app, "/", "/", "/")
    assert caplog.text.count("no route is known that leads to") == 1


async def test_the_messages_of_a_body_that_was_looked_at_come_in_their_order() -> None:
    limits = RateLimits()
    seen: list[bytes] = []

    @limits.limit("50/minute", cost=json_batch_cost)
    async def view(request: Request) -> PlainTextResponse:
        seen.extend([part async for part in request.stream()])
        return PlainTextResponse("")

    app = Starlette(routes=[in_cors(Route("/x", view, methods=["POST"]))])
    limits.install(app)
    await exchange(app, http_scope("POST", "/s/x"), BATCH)
    assert b"".join(seen) == BATCH


def test_the_schema_of_a_route_is_that_of_its_function() -> None:
    limits, router = RateLimits(), APIRouter()

    @router.get("/")
    @limits.limit("5/minute")
    def home(q: int) -> str:
        return str(q)

    (route,) = router.routes
    assert isinstance(route, APIRoute)
    assert [one.name for one in route.dependant.query_params] == ["q"]


async def test_limits_that_a_handler_creates_for_each_request_leave_nothing_behind() -> None:
    app = FastAPI()
    limits = RateLimits("1000/minute", app=app)

    @app.get("/own")
    @limits.limit("1000/minute")
    async def limited() -> str:
        return "ok"

    @app.get("/made")
    async def make() -> str:
        @limits.limit("100/minute", name="made")
        async def part() -> str:
            return "ok"

        return await part()

    async def count() -> int:
        told = [await fetch(app, "GET", path) for path in ("/made", "/own")]
        assert [answer.status for answer in told] == [200, 200]
        gc.collect()
        return sum(type(one) is Endpoint for one in gc.get_objects())

    found = [await count() for _ in range(5)]
    assert found[2:] == found[1:-1], "neither the limits of the handler, nor those of routes that are read again"
    assert remaining(await fetch(app, "GET", "/made"))["made/minute"] == 94
