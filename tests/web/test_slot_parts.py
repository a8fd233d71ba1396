"""Slots where a limit stands inside of a handler, over WebSocket, and where nobody sees the end of a response."""

from tests.web.django_site import MIDDLEWARE, HttpResponse, site  # first: it makes the settings

# isort: split
import asyncio
import gc
import io
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import flask
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, StreamingHttpResponse
from django.template import Context, Template
from django.template.response import SimpleTemplateResponse
from django.urls import path
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

from ratebound import MemoryStorage
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.django import limit
from ratebound.web.drf import throttle
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.drivers import (
    asgi_client,
    connect,
    echo,
    environ_of,
    fetch,
    http_scope,
    wsgi_client,
    wsgi_fetch,
)
from tests.web.running_requests import SlotLedger

pytestmark = pytest.mark.anyio


@pytest.fixture
def storage() -> SlotLedger:
    return SlotLedger()


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)


# FastAPI.


def app_with_part(storage: Any) -> tuple[FastAPI, RateLimits]:
    """An application on the plain path, whose endpoint calls a function that takes a slot."""
    app = FastAPI()
    limits = RateLimits("1000/minute", app=app, storage=storage)

    @limits.limit("1 concurrent", name="render")
    async def render() -> str:
        return "rendered"

    @app.get("/")
    async def home() -> str:
        return await render()

    @app.get("/fail")
    async def fail() -> str:
        await render()
        raise RuntimeError("as asked")

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        await render()

        async def parts() -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.Event().wait()

        return StreamingResponse(parts())

    return app, limits


@pytest.mark.parametrize("kind", [MemoryStorage, SlotLedger])
async def test_the_slot_of_a_function_is_held_until_the_response_ends(kind: Any) -> None:
    app, _ = app_with_part(kind())
    assert (await fetch(app, "GET", "/")).status == 200
    for _ in range(2):  # the second is on the plain path
        assert (await fetch(app, "GET", "/fail")).status == 500
        await stream_and_leave(app)
    assert (await fetch(app, "GET", "/")).status == 200


@pytest.mark.parametrize("kind", [MemoryStorage, SlotLedger])
async def test_it_is_held_while_the_response_is_sent(kind: Any) -> None:
    app, _ = app_with_part(kind())
    await fetch(app, "GET", "/")
    task = await begin_stream(app)
    assert (await fetch(app, "GET", "/")).status == 429
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await fetch(app, "GET", "/")).status == 200


async def begin_stream(app: Any) -> "asyncio.Task[None]":
    begun = asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
            begun.set()

    task = asyncio.create_task(app(http_scope("GET", "/stream"), receive, send))
    await begun.wait()
    return task


async def stream_and_leave(app: Any) -> None:
    begun = asyncio.Event()

    async def receive() -> Any:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            begun.set()

    await app(http_scope("GET", "/stream"), receive, send)


async def test_a_rejected_part_gives_back_the_slots_of_the_parts_before_it(storage: SlotLedger) -> None:
    app = FastAPI()
    limits = RateLimits(app=app, storage=storage)

    @limits.limit("5 concurrent", name="first")
    async def first() -> None: ...

    @limits.limit("1/minute", name="second")
    async def second() -> None: ...

    @app.get("/")
    async def home() -> None:
        await first()
        await second()

    assert (await fetch(app, "GET", "/")).status == 200
    assert (await fetch(app, "GET", "/")).status == 429
    assert not storage.held


async def test_background_tasks_run_without_the_slot(storage: SlotLedger) -> None:
    app, held = FastAPI(), []
    limits = RateLimits(app=app, storage=storage)

    @app.get("/")
    @limits.limit("1 concurrent")
    async def home(tasks: BackgroundTasks) -> str:
        held.append(len(storage.held))
        tasks.add_task(lambda: held.append(len(storage.held)))
        return "done"

    assert (await fetch(app, "GET", "/")).status == 200
    assert held == [1, 0]


async def test_a_middleware_that_answers_by_itself_holds_nothing(storage: SlotLedger) -> None:
    app = FastAPI()

    async def refuse(request: Any, call_next: Any) -> Any:
        return PlainTextResponse("no", 401)

    app.add_middleware(BaseHTTPMiddleware, dispatch=refuse)
    RateLimits("1 concurrent", app=app, storage=storage)
    assert [(await fetch(app, "GET", "/")).status for _ in range(3)] == [401] * 3
    assert storage.trips.count("spend") == 3
    assert not storage.held


async def test_a_middleware_that_breaks_off_its_own_response_holds_nothing(storage: SlotLedger) -> None:
    class Breaking:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})

    app = FastAPI()
    app.add_middleware(Breaking)
    RateLimits("1 concurrent", app=app, storage=storage)
    for _ in range(3):
        assert (await fetch(app, "GET", "/")).status == 200
    assert not storage.held


async def test_a_request_that_is_cancelled_while_it_is_held_back_holds_nothing(storage: SlotLedger) -> None:
    asleep = asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(app, "1/second burst 5 leaky-bucket; 9 concurrent", storage=storage, sleep=sleep)
    assert (await fetch(limited, "GET", "/")).status == 200
    task = asyncio.create_task(fetch(limited, "GET", "/"))
    await asleep.wait()
    assert len(storage.held) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not storage.held


async def test_slots_of_limits_that_are_not_installed_are_refused(storage: SlotLedger) -> None:
    app = FastAPI()
    limits = RateLimits(storage=storage)

    @app.get("/", dependencies=[Depends(limits.limit("1 concurrent"))])
    async def home() -> None: ...

    assert (await fetch(app, "GET", "/")).status == 500
    assert not storage.held


async def test_a_function_may_find_the_slots(storage: SlotLedger) -> None:
    app = FastAPI()
    limits = RateLimits(app=app, storage=storage)

    @app.get("/")
    @limits.limit(lambda: "1 concurrent", otherwise="5/minute")
    async def home() -> int:
        return len(storage.held)

    for _ in range(3):
        assert (await fetch(app, "GET", "/")).body == b"1"
    assert not storage.held


# WebSocket.


async def open_connection(app: Any) -> tuple["asyncio.Task[None]", "asyncio.Queue[Any]", "asyncio.Queue[Any]"]:
    """A connection that is open, or was refused: its task, what the client sends, and what it receives."""
    scope = http_scope("GET", "/ws") | {"type": "websocket", "subprotocols": [], "scheme": "ws"}
    del scope["method"]
    given: asyncio.Queue[Any] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    given.put_nowait({"type": "websocket.connect"})
    return asyncio.create_task(app(scope, given.get, sent.put)), given, sent


async def app_that_raises(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept", "headers": []})
    raise RuntimeError("as asked")


def served(kind: str, storage: Any, then: str) -> Any:
    if kind == "asgi":
        return RateLimitMiddleware(app_that_raises if then == "raise" else echo, "2 concurrent", storage=storage)
    app = FastAPI()
    limits = RateLimits("2 concurrent" if kind == "fastapi" else None, app=app, storage=storage)

    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        if then == "raise":
            raise RuntimeError("as asked")
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    app.websocket("/ws")(limits.limit("2 concurrent")(ws) if kind == "decorator" else ws)
    return app


@pytest.fixture(params=["asgi", "fastapi", "decorator"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_connection_holds_its_slot_until_it_is_closed(kind: str, storage: SlotLedger) -> None:
    app = served(kind, storage, "echo")
    opened = [await open_connection(app) for _ in range(2)]
    for _, given, sent in opened:
        assert (await sent.get())["type"] == "websocket.accept"
        given.put_nowait({"type": "websocket.receive", "text": "a"})
        assert (await sent.get())["text"] == "a"
    assert len(storage.held) == 2
    refused, _, told = await open_connection(app)
    await refused
    assert (await told.get())["code"] == 1008
    task, given, _ = opened[0]
    given.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await task
    assert len(storage.held) == 1
    opened[1][0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened[1][0]
    assert not storage.held


async def test_a_connection_that_crashes_holds_nothing(kind: str, storage: SlotLedger) -> None:
    app = served(kind, storage, "raise")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="as asked"):
            await connect(app)
    assert not storage.held


async def test_messages_of_a_connection_are_limited_as_before(storage: SlotLedger) -> None:
    app = RateLimitMiddleware(echo, "2 concurrent", messages="2/minute", storage=storage)
    sent = await connect(app, texts=["a", "b", "c"])
    assert [one["type"] for one in sent][-1] == "websocket.close"
    assert not storage.held


def test_messages_have_no_slots() -> None:
    with pytest.raises(ValueError, match="a message does not"):
        RateLimitMiddleware(echo, "2 concurrent", messages="2 concurrent")


# Flask.


def test_the_slot_of_a_block_is_held_until_the_end_of_the_block(storage: SlotLedger) -> None:
    app, held = flask.Flask("blocks"), []
    limits = FlaskLimits(app, storage=storage)
    mail = limits.limit("2 concurrent", name="mail")

    @app.get("/")
    def home() -> str:
        for _ in range(3):
            with mail:
                with limits.limit("1 concurrent", name="print"):
                    held.append(len(storage.held))
                held.append(len(storage.held))
        held.append(len(storage.held))
        return "ok"

    assert wsgi_fetch(app, environ_of("GET", "/")).status == 200
    assert held == [2, 1] * 3 + [0]


def test_a_block_that_raises_holds_nothing(storage: SlotLedger) -> None:
    app = flask.Flask("blocks")
    limits = FlaskLimits(app, storage=storage)
    app.logger.disabled = True

    @app.get("/")
    def home() -> str:
        with limits.limit("1 concurrent", name="mail"):
            raise RuntimeError("as asked")

    assert [wsgi_fetch(app, environ_of("GET", "/")).status for _ in range(3)] == [500] * 3
    assert not storage.held


def test_the_slot_of_a_function_that_a_view_calls_is_held_until_the_response_ends(storage: SlotLedger) -> None:
    app, held = flask.Flask("parts"), []
    limits = FlaskLimits(app, storage=storage)

    @limits.limit("1 concurrent", name="render")
    def render() -> str:
        return "rendered"

    @app.get("/")
    def home() -> Any:
        text = render()

        def parts() -> Iterator[str]:
            held.append(len(storage.held))
            yield text

        return flask.Response(parts())

    for _ in range(2):
        assert wsgi_fetch(app, environ_of("GET", "/")).body == b"rendered"
    assert held == [1, 1]
    assert not storage.held


def test_a_part_after_the_headers_of_a_complete_response_holds_nothing(storage: SlotLedger) -> None:
    app = flask.Flask("parts")
    limits = FlaskLimits(app, "100/minute", storage=storage)

    @limits.limit("1 concurrent", name="render")
    def render() -> str:
        return "rendered"

    @app.get("/")
    def home() -> Any:
        def parts() -> Iterator[str]:
            yield render()

        return flask.Response(flask.stream_with_context(parts()), headers={"Content-Length": "8"})

    for _ in range(2):
        assert wsgi_fetch(app, environ_of("GET", "/")).body == b"rendered"
    assert not storage.held


def test_an_application_that_raises_through_holds_nothing(storage: SlotLedger) -> None:
    app = flask.Flask("raising")
    app.testing = True  # which lets exceptions through
    limits = FlaskLimits(app, storage=storage)

    @app.get("/")
    @limits.limit("1 concurrent")
    def home() -> str:
        raise RuntimeError("as asked")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="as asked"):
            wsgi_fetch(app, environ_of("GET", "/"))
    assert not storage.held


def test_a_body_that_is_not_bytes_holds_nothing(storage: SlotLedger) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"bytes", 5]

    limited = WsgiMiddleware(app, {"rules": [{"name": "one", "limits": "1 concurrent"}]}, storage=storage)
    for _ in range(2):
        with pytest.raises(TypeError):
            wsgi_fetch(limited, environ_of("GET", "/"))
    assert not storage.held


# Django.


def test_a_template_is_rendered_with_the_slot(storage: SlotLedger) -> None:
    held: list[int] = []

    class Seen:
        def __str__(self) -> str:
            held.append(len(storage.held))
            return "seen"

    class Response(SimpleTemplateResponse):  # type: ignore[misc]
        @property
        def rendered_content(self) -> str:
            return str(Template("{{ seen }}").render(Context({"seen": Seen()})))

    @limit("1 concurrent", name="page")
    def page(request: Any) -> Any:
        return Response("none")

    class Urls:
        urlpatterns = (path("", page),)

    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    for middleware in ([MIDDLEWARE], []):
        with site({"storage": storage}, ROOT_URLCONF=Urls, MIDDLEWARE=middleware, TEMPLATES=templates):
            assert wsgi_fetch(WSGIHandler(), environ_of("GET", "/")).body == b"seen"
    assert held == [1, 1]
    assert not storage.held


def raising_after(get_response: Any) -> Any:
    """A middleware that fails when it has the response."""
    if not iscoroutinefunction(get_response):

        def respond(request: Any) -> Any:
            raise RuntimeError(f"as asked, after {get_response(request).status_code}")

        return respond

    async def respond_async(request: Any) -> Any:
        raise RuntimeError(f"as asked, after {(await get_response(request)).status_code}")

    return markcoroutinefunction(respond_async)


raising_after.sync_capable = raising_after.async_capable = True  # type: ignore[attr-defined]


async def parts_async() -> AsyncIterator[bytes]:
    yield b"part"


class Unrenderable(SimpleTemplateResponse):  # type: ignore[misc]
    @property
    def rendered_content(self) -> str:
        raise RuntimeError("as asked")


# By name: a response, in a thread and in a task.
DROPPED: dict[str, Any] = {
    "whole": lambda is_task: HttpResponse("page"),
    "stream": lambda is_task: StreamingHttpResponse(parts_async() if is_task else iter([b"part"])),
    "file": lambda is_task: FileResponse(io.BytesIO(b"file")),
    "template": lambda is_task: Unrenderable("none"),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("client", [wsgi_client, asgi_client], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("by", ["django.middleware.http.ConditionalGetMiddleware", f"{__name__}.raising_after"])
@pytest.mark.parametrize("middleware", [[MIDDLEWARE], []], ids=["middleware", "decorator only"])
def test_a_response_that_is_never_sent_holds_nothing(
    client: Any, kind: str, by: str, middleware: list[str], storage: SlotLedger
) -> None:
    @limit("1 concurrent", name="page")
    def page(request: Any) -> Any:
        response = DROPPED[kind](hasattr(request, "scope"))
        response["ETag"] = '"1"'
        return response

    class Urls:
        urlpatterns = (path("", page),)

    expected = 500 if kind == "template" or by.endswith("raising_after") else 304
    with site({"storage": storage}, ROOT_URLCONF=Urls, MIDDLEWARE=[by, *middleware]):
        send = client(WSGIHandler() if client is wsgi_client else ASGIHandler())
        try:
            assert [send("GET", "/", {"if-none-match": '"1"'}).status for _ in range(3)] == [expected] * 3
        finally:
            getattr(send, "close", lambda: None)()
    assert storage.is_free()


def waiting_after(get_response: Any) -> Any:
    """A middleware that has the response, and is still busy with it."""

    async def respond(request: Any) -> Any:
        await get_response(request)
        request.scope["has left"].set()
        await asyncio.Event().wait()

    return markcoroutinefunction(respond)


waiting_after.sync_capable, waiting_after.async_capable = False, True  # type: ignore[attr-defined]


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Django leaves the body open
@pytest.mark.parametrize("kind", ["stream", "file"])
@pytest.mark.parametrize("by", ["the middleware", "the server"])
@pytest.mark.parametrize("middleware", [[MIDDLEWARE], []], ids=["middleware", "decorator only"])
async def test_a_client_that_leaves_before_the_response_begins_holds_nothing(
    kind: str, by: str, middleware: list[str], storage: SlotLedger
) -> None:
    @limit("1 concurrent", name="page")
    async def page(request: Any) -> Any:
        return DROPPED[kind](True)

    class Urls:
        urlpatterns = (path("", page),)

    has_left, begin = asyncio.Event(), [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if begin:
            return begin.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError("the client has left")

    stack = [f"{__name__}.waiting_after", *middleware] if by == "the middleware" else middleware
    with site({"storage": storage}, ROOT_URLCONF=Urls, MIDDLEWARE=stack):
        served = ASGIHandler()(http_scope("GET", "/") | {"has left": has_left}, receive, send)
        if by == "the middleware":
            await served
        else:
            with pytest.raises(OSError, match="has left"):
                await served
        assert await asyncio.to_thread(storage.is_free)
    del served
    gc.collect()  # else another test would be blamed for the open body


@pytest.mark.usefixtures("quiet")
def test_throttles_hold_slots_where_the_middleware_releases_them(storage: SlotLedger) -> None:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class Api(APIView):  # type: ignore[misc]
        throttle_classes = (throttle("1 concurrent"),)

        def get(self, request: Any) -> Any:
            return Response(len(storage.held))

    class Urls:
        urlpatterns = (path("", Api.as_view()),)

    with site({"storage": storage}, ROOT_URLCONF=Urls):
        for _ in range(3):
            assert wsgi_fetch(WSGIHandler(), environ_of("GET", "/")).body == b"1"
    assert not storage.held
    with site({"storage": storage}, ROOT_URLCONF=Urls, MIDDLEWARE=[]):
        assert wsgi_fetch(WSGIHandler(), environ_of("GET", "/")).status == 500
    assert not storage.held
