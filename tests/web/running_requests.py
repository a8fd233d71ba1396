"""Requests that run until a test lets them end, in every adapter, and a storage that knows which slots are held.

Each site has the same paths. `/work` answers 'done', `/fail` raises, `/stream` sends 'one' and then 'two': each of them
when the test lets it go on. `/file` is a file. A header names the request, so that a test can tell its handler apart.
"""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ratebound import MemoryStorage
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.web import wsgi
from ratebound.web.asgi import RateLimitMiddleware
from tests.web.drivers import answer_of, environ_of, http_scope
from tests.web.suite import Answer

SECONDS = 30  # after which a test fails, instead of waiting for ever
LIMITED = ["/work", "/fail", "/stream", "/file"]
ID = "x-run"
CONTENT = b"content of a file"


class SlotLedger(MemoryStorage):
    """A storage that knows by itself which slots are held: `held` has their ids, `most` is how many at once. `renewed`
    counts the renewals."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: set[int] = set()
        self.most = self.renewed = 0
        self.trips: list[str] = []
        self._changed = threading.Condition()

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        with self._changed:
            answers = super().evaluate(groups, mode)
            self.trips.append(mode)
            for group, rows in zip(groups, answers, strict=True):
                if mode != "peek" and all(row[0] for row in rows):
                    self._note(group)
                self.renewed += mode == "force" and any(ask[2] > 0 for ask in group)
            self.most = max(self.most, len(self.held))
            self._changed.notify_all()
            return answers

    def _note(self, group: Group) -> None:
        for _, limits, cost, _, extras in group:
            for limit, extra in zip(limits, extras or (), strict=bool(extras)):
                if limit.has_slots and extra[0] >= 0:
                    (self.held.add if cost > 0 else self.held.discard)(extra[0])

    def is_renewed(self, times: int) -> bool:
        """Return True once slots were renewed so often."""
        with self._changed:
            return self._changed.wait_for(lambda: self.renewed >= times, SECONDS)

    def is_settled(self, times: int = 1) -> bool:
        """Return True once so many trips have settled or released something."""
        with self._changed:
            return self._changed.wait_for(lambda: self.trips.count("force") >= times, SECONDS)

    def is_free(self) -> bool:
        """Return True once no slot is held."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.held, SECONDS)


class Run:
    """One request: `entered` once its handler runs, `answer` when it has ended, None if it broke off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entered: Future[None] = Future()
        self.go: Future[None] = Future()
        self.answer: Future[Answer | None] = Future()
        self.has_left = threading.Event()  # the client
        self.cancel: Callable[[], Any] = lambda: None  # by the server

    def settled(self) -> "Run":
        """Wait until the handler runs, or the request has ended."""
        waited: list[Future[Any]] = [self.entered, self.answer]
        assert wait(waited, SECONDS, FIRST_COMPLETED).done
        return self

    @property
    def passed(self) -> bool:
        return self.settled().entered.done()

    def end(self) -> Answer | None:
        """Let the handler go on, and return the answer."""
        if not self.go.done():
            self.go.set_result(None)
        return self.answer.result(SECONDS)

    def leave(self) -> None:
        """Let the client leave."""
        self.has_left.set()
        self.end()

    def status(self) -> int:
        answer = self.answer.result(SECONDS)
        assert answer is not None
        return answer.status


class Handlers:
    """The handlers of a site. They count how many of them run at once."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.running = self.most = 0
        self._lock = threading.Lock()

    def run(self, name: str) -> Run:
        run = self.runs[name] = Run(name)
        return run

    @contextmanager
    def entered(self, name: str) -> Iterator[Run]:
        run = self.runs[name]
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        if not run.entered.done():
            run.entered.set_result(None)
        try:
            yield run
        finally:
            with self._lock:
                self.running -= 1

    def work(self, name: str, path: str) -> str:
        with self.entered(name) as run:
            run.go.result(SECONDS)
        if path == "/fail":
            raise RuntimeError("as asked")
        return "done"

    async def work_async(self, name: str, path: str) -> str:
        with self.entered(name) as run:
            await asyncio.wrap_future(run.go)
        if path == "/fail":
            raise RuntimeError("as asked")
        return "done"

    def parts(self, name: str) -> Iterator[bytes]:
        with self.entered(name) as run:
            yield b"one"
            run.go.result(SECONDS)
            yield b"two"

    async def parts_async(self, name: str) -> AsyncIterator[bytes]:
        with self.entered(name) as run:
            yield b"one"
            await asyncio.wrap_future(run.go)
            yield b"two"


class AsgiServer:
    """Serves an application in an event loop of its own. If `is_strict`, sending to a client that has left raises."""

    def __init__(self, app: Any, handlers: Handlers, *, is_strict: bool = False) -> None:
        self.app = app
        self.is_strict = is_strict
        self.handlers = handlers
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._count = 0

    def start(self, path: str, method: str = "GET") -> Run:
        self._count += 1
        run = self.handlers.run(str(self._count))
        left = asyncio.Event()
        task = asyncio.run_coroutine_threadsafe(self._serve(run, path, method, left), self.loop)
        run.cancel = task.cancel
        end = run.leave

        def leave() -> None:
            self.loop.call_soon_threadsafe(left.set)
            end()

        run.leave = leave  # type: ignore[method-assign]
        return run

    async def _serve(self, run: Run, path: str, method: str, left: asyncio.Event) -> None:
        begin, sent = [{"type": "http.request", "body": b"", "more_body": False}], []

        async def receive() -> Any:
            if begin:
                return begin.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if run.has_left.is_set():
                if self.is_strict:
                    raise OSError("the client has left")
                return
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                left.set()

        try:
            await self.app(http_scope(method, path, {ID: run.name}), receive, send)
        except Exception:
            pass  # a server logs it
        finally:
            is_whole = bool(sent) and not sent[-1].get("more_body", sent[-1]["type"] != "http.response.body")
            run.answer.set_result(answer_of(sent) if is_whole else None)

    def close(self) -> None:
        for run in self.handlers.runs.values():
            if not run.go.done():
                run.go.set_result(None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class FileWrapper:
    """The `wsgi.file_wrapper` of a server."""

    def __init__(self, file: Any, size: int = 8192) -> None:
        self.file = file
        if hasattr(file, "close"):
            self.close = file.close

    def __getitem__(self, _: int) -> Any:
        part = self.file.read(8192)
        if not part:
            raise IndexError
        return part


class WsgiServer:
    """Serves an application in threads."""

    def __init__(self, app: Any, handlers: Handlers) -> None:
        self.app = app
        self.handlers = handlers
        self.bodies: list[Any] = []
        self._pool = ThreadPoolExecutor(16)
        self._count = 0

    def start(self, path: str, method: str = "GET") -> Run:
        self._count += 1
        run = self.handlers.run(str(self._count))
        self._pool.submit(self._serve, run, path, method)
        return run

    def _serve(self, run: Run, path: str, method: str) -> None:
        environ = environ_of(method, path, {ID: run.name}) | {"wsgi.file_wrapper": FileWrapper}
        started: list[Any] = []
        written: list[bytes] = []

        def start_response(status: str, headers: Any, *failure: Any) -> Any:
            started[:] = [int(status[:3]), [(name.lower(), value) for name, value in headers]]
            return written.append

        whole = False
        body: Any = ()
        try:
            body = self.app(environ, start_response)
            self.bodies.append(body)
            for part in body:
                if run.has_left.is_set():
                    break
                written.append(part)
            whole = not run.has_left.is_set()
        except Exception:
            whole = False  # a server logs it
        finally:
            getattr(body, "close", lambda: None)()
            run.answer.set_result(Answer(started[0], started[1], b"".join(written)) if whole else None)

    def close(self) -> None:
        for run in self.handlers.runs.values():
            if not run.go.done():
                run.go.set_result(None)
        self._pool.shutdown()


Server = AsgiServer | WsgiServer


def slot_policy(limits: str = "3 concurrent", **more: Any) -> dict[str, Any]:
    """A policy that limits what handlers do at once."""
    return {"rules": [{"name": "work", "limits": limits, "match": {"paths": LIMITED}, **more}], "by": "address"}


@contextmanager
def _closing(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.close()


def bare_asgi(handlers: Handlers) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        name, path = dict(scope["headers"])[ID.encode()].decode(), scope["path"]
        if path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            async for part in handlers.parts_async(name):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})
            return
        text = CONTENT if path == "/file" else (await handlers.work_async(name, path)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    return app


def bare_wsgi(handlers: Handlers) -> Any:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        name, path = environ["HTTP_X_RUN"], environ["PATH_INFO"]
        if path == "/stream":
            start_response("200 OK", [])
            return handlers.parts(name)
        if path == "/file":
            start_response("200 OK", [("Content-Length", str(len(CONTENT)))])
            return environ["wsgi.file_wrapper"](io.BytesIO(CONTENT))  # type: ignore[no-any-return]
        text = handlers.work(name, path).encode()
        start_response("200 OK", [("Content-Length", str(len(text)))])
        return [text]

    return app


def _behind_asgi(policy: Any, storage: Any, **options: Any) -> AbstractContextManager[Server]:
    handlers = Handlers()
    app = RateLimitMiddleware(bare_asgi(handlers), policy, storage=storage, **options)
    return _closing(AsgiServer(app, handlers, is_strict=True))


def _behind_wsgi(policy: Any, storage: Any, **options: Any) -> AbstractContextManager[Server]:
    handlers = Handlers()
    return _closing(WsgiServer(wsgi.RateLimitMiddleware(bare_wsgi(handlers), policy, storage=storage), handlers))


def _starlette(policy: Any, storage: Any, **options: Any) -> AbstractContextManager[Server]:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    from ratebound.web.fastapi import RateLimits

    handlers = Handlers()

    async def endpoint(request: Request) -> Response:
        name, path = request.headers[ID], request.url.path
        if path == "/stream":
            return StreamingResponse(handlers.parts_async(name))
        return PlainTextResponse(CONTENT if path == "/file" else await handlers.work_async(name, path))

    app = Starlette(routes=[Route(path, endpoint) for path in LIMITED])
    RateLimits(policy, app=app, storage=storage, **options)
    return _closing(AsgiServer(app, handlers))


def _fastapi(
    policy: Any, storage: Any, *, declared: str = "", way: str = "decorator"
) -> AbstractContextManager[Server]:
    """`declared` are the limits that the endpoints declare, by a decorator or as a dependency."""
    from fastapi import Depends, FastAPI, Header, Request
    from fastapi.responses import PlainTextResponse, StreamingResponse

    from ratebound.web.fastapi import RateLimits

    handlers, app = Handlers(), FastAPI()
    limits = RateLimits(policy, app=app, storage=storage)
    limit: Any = limits.limit(declared, name="work") if declared else (lambda function: function)
    depends = [Depends(limit)] if declared and way == "dependency" else []
    decorate: Any = limit if way == "decorator" else (lambda function: function)

    @app.get("/work", dependencies=depends)
    @app.head("/work", dependencies=depends)
    @app.get("/fail", dependencies=depends)
    @decorate  # type: ignore[untyped-decorator]
    def work(request: Request, x_run: str = Header()) -> PlainTextResponse:
        return PlainTextResponse(handlers.work(x_run, request.url.path))

    @app.get("/stream", dependencies=depends)
    @decorate  # type: ignore[untyped-decorator]
    async def stream(x_run: str = Header()) -> StreamingResponse:
        return StreamingResponse(handlers.parts_async(x_run))

    @app.get("/file", dependencies=depends)
    @decorate  # type: ignore[untyped-decorator]
    async def file() -> PlainTextResponse:
        return PlainTextResponse(CONTENT)

    return _closing(AsgiServer(app, handlers))


def _flask(policy: Any, storage: Any, *, declared: str = "") -> AbstractContextManager[Server]:
    import flask

    from ratebound.web.flask import RateLimits

    handlers, app = Handlers(), flask.Flask("running")
    app.logger.disabled = True
    limits = RateLimits(app, policy, storage=storage)
    decorate: Any = limits.limit(declared, name="work") if declared else (lambda function: function)

    @app.get("/<path>")
    @decorate  # type: ignore[untyped-decorator]
    def endpoint(path: str) -> Any:
        name = flask.request.headers[ID]
        if path == "stream":
            return flask.Response(handlers.parts(name))
        if path == "file":
            return flask.send_file(io.BytesIO(CONTENT), "text/plain")
        return handlers.work(name, f"/{path}")

    return _closing(WsgiServer(app, handlers))


@contextmanager
def _django(
    policy: Any, storage: Any, *, kind: str, view: str = "sync", declared: str = "", middleware: bool = True
) -> Iterator[Server]:
    from tests.web.django_site import MIDDLEWARE, site

    # isort: split
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path as route

    from ratebound.web.django import limit

    handlers = Handlers()
    decorate: Any = limit(declared, name="work") if declared else (lambda function: function)

    def streamed(name: str) -> Any:
        return StreamingHttpResponse(handlers.parts_async(name) if kind == "asgi" else handlers.parts(name))

    @decorate  # type: ignore[untyped-decorator]
    def endpoint(request: Any) -> Any:
        name, path = request.headers[ID], request.path
        if path == "/stream":
            return streamed(name)
        if path == "/file":
            return FileResponse(io.BytesIO(CONTENT))
        return HttpResponse(handlers.work(name, path))

    @decorate  # type: ignore[untyped-decorator]
    async def endpoint_async(request: Any) -> Any:
        name, path = request.headers[ID], request.path
        if path == "/stream":
            return streamed(name)
        if path == "/file":
            return FileResponse(io.BytesIO(CONTENT))
        return HttpResponse(await handlers.work_async(name, path))

    class Urls:
        urlpatterns = tuple(route(one[1:], endpoint if view == "sync" else endpoint_async) for one in LIMITED)

    with site({"policy": policy, "storage": storage}, ROOT_URLCONF=Urls, MIDDLEWARE=[MIDDLEWARE] if middleware else []):
        app: Any = WSGIHandler() if kind == "wsgi" else ASGIHandler()
        with _closing(WsgiServer(app, handlers) if kind == "wsgi" else AsgiServer(app, handlers)) as server:
            yield server


def _of_policy(make: Callable[..., AbstractContextManager[Server]], **more: Any) -> Any:
    return lambda limits, storage: make(slot_policy(limits), storage, **more)


def _of_endpoint(make: Callable[..., AbstractContextManager[Server]], **more: Any) -> Any:
    return lambda limits, storage: make(None, storage, declared=limits, **more)


# By the limits and the storage.
SITES: dict[str, Callable[[str, Any], AbstractContextManager[Server]]] = {
    "asgi": _of_policy(_behind_asgi),
    "starlette": _of_policy(_starlette),
    "fastapi": _of_policy(_fastapi),
    "fastapi, decorator": _of_endpoint(_fastapi),
    "fastapi, dependency": _of_endpoint(_fastapi, way="dependency"),
    "wsgi": _of_policy(_behind_wsgi),
    "flask": _of_policy(_flask),
    "flask, decorator": _of_endpoint(_flask),
    "django wsgi": _of_policy(_django, kind="wsgi"),
    "django wsgi, decorator": _of_endpoint(_django, kind="wsgi"),
    "django wsgi, decorator only": _of_endpoint(_django, kind="wsgi", middleware=False),
    "django wsgi, async view": _of_endpoint(_django, kind="wsgi", view="async"),
    "django asgi": _of_policy(_django, kind="asgi", view="async"),
    "django asgi, sync view": _of_policy(_django, kind="asgi"),
    "django asgi, decorator": _of_endpoint(_django, kind="asgi", view="async"),
    "django asgi, decorator only": _of_endpoint(_django, kind="asgi", view="async", middleware=False),
}
# By a whole policy and the storage.
POLICIES: dict[str, Callable[[Any, Any], AbstractContextManager[Server]]] = {
    "asgi": _behind_asgi,
    "starlette": _starlette,
    "fastapi": _fastapi,
    "wsgi": _behind_wsgi,
    "flask": _flask,
    "django wsgi": lambda policy, storage: _django(policy, storage, kind="wsgi"),
    "django asgi": lambda policy, storage: _django(policy, storage, kind="asgi", view="async"),
}
