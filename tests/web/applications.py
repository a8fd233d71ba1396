"""The application of the suite, in each framework that this project's own adapters are tested with."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ratebound.testing import FakeClock
from ratebound.web import wsgi
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.suite import WORDS, WORDS_CACHE, Client, Naps, options

PARTS = ("one", "two", "three")
TEXTS = {
    "/": "hello",
    "/queue": "served",
    "/health": "well",
    "/secret": "never",
    "/fail": "",
    "/tokens": "spent",
    "/form": "shown",
}


def below(scope: Any) -> str:
    """Return the path below the prefix under which the application is served."""
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


def plain(path: str, password: str | None) -> tuple[int, str]:
    """What is the same wherever it runs: a status and a text."""
    if path.startswith("/users/"):
        return 200, f"user {path[7:]}"
    if path == "/login":
        return (200, "welcome") if password == "right" else (401, "no")
    return (200, TEXTS[path]) if path in TEXTS else (404, "not found")


async def bare_asgi(scope: Any, receive: Any, send: Any) -> None:
    path = below(scope)
    headers = dict(scope["headers"])
    status, text = plain(path, headers.get(b"x-password", b"").decode())
    parts, own = [text], []
    if path == "/fail":
        status = 500
    elif path == "/stream":
        status, parts = 200, list(PARTS)
    elif path == "/teapot":
        status, parts, own = 418, ["teapot"], [(b"RateLimit", b"mine"), (b"x-own", b"yes")]
    elif path == "/tokens":
        scope["state"]["ratebound"].charge(7)
    elif path == "/cached":
        status, parts, own = 200, ["kept"], [(b"Cache-Control", headers.get(b"x-cache", b""))]
    elif path == "/moved":
        status, parts, own = 302, [], [(b"location", b"/")]
    elif path == "/form":
        scope["state"]["ratebound"].failed = headers.get(b"x-password") != b"right"
    await send({"type": "http.response.start", "status": status, "headers": own})
    for place, part in enumerate(parts or [""]):
        more = place + 1 < len(parts)
        await send({"type": "http.response.body", "body": part.encode(), "more_body": more})


def bare_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    status, text = plain(path, environ.get("HTTP_X_PASSWORD"))
    own = []
    if path == "/fail":
        status = 500
    elif path == "/teapot":
        status, text, own = 418, "teapot", [("ratelimit", "mine"), ("X-Own", "yes")]
    elif path == "/tokens":
        environ["ratebound.passed"].charge(7)
    elif path == "/cached":
        status, text, own = 200, "kept", [("Cache-Control", environ.get("HTTP_X_CACHE", "")), ("Content-Length", "4")]
    elif path == "/moved":
        status, text, own = 302, "", [("Location", "/"), ("Content-Length", "0")]
    elif path == "/form":
        environ["ratebound.passed"].failed = environ.get("HTTP_X_PASSWORD") != "right"
    elif path == "/stream":
        start_response("200 OK", [])
        return (part.encode() for part in PARTS)
    start_response(f"{status} Some Words", own)
    return [text.encode()]


async def streamed() -> AsyncIterator[str]:
    for part in PARTS:
        yield part


def starlette_app() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def text(request: Request) -> Response:
        path = below(request.scope)
        if path == "/fail":
            raise RuntimeError("as asked")
        if path == "/stream":
            return StreamingResponse(streamed())
        if path == "/teapot":
            return PlainTextResponse("teapot", 418, {"RateLimit": "mine", "X-Own": "yes"})
        if path == "/tokens":
            request.state.ratebound.charge(7)
        if path == "/cached":
            return PlainTextResponse("kept", 200, {"Cache-Control": request.headers["x-cache"]})
        if path == "/moved":
            return RedirectResponse("/", 302)
        if path == "/form":
            request.state.ratebound.failed = request.headers.get("x-password") != "right"
        status, content = plain(path, request.headers.get("x-password"))
        return PlainTextResponse(content, status)

    paths = ["/", "/users/{id}", "/stream", "/teapot", "/queue", "/health", "/fail", "/secret", "/tokens"]
    paths += ["/cached", "/moved", "/form"]
    return Starlette(routes=[Route(path, text) for path in paths] + [Route("/login", text, methods=["POST"])])


def fastapi_app() -> Any:
    from fastapi import FastAPI, Header, Request
    from fastapi.responses import PlainTextResponse, RedirectResponse, StreamingResponse

    app = FastAPI()

    @app.get("/users/{id}", response_class=PlainTextResponse)
    @app.head("/users/{id}", response_class=PlainTextResponse)
    def user(id: str) -> str:
        return f"user {id}"

    @app.post("/login")
    def login(x_password: str = Header()) -> PlainTextResponse:
        status, content = plain("/login", x_password)
        return PlainTextResponse(content, status)

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(streamed())

    @app.get("/teapot")
    async def teapot() -> PlainTextResponse:
        return PlainTextResponse("teapot", 418, {"RateLimit": "mine", "X-Own": "yes"})

    @app.get("/fail")
    async def fail() -> None:
        raise RuntimeError("as asked")

    @app.get("/", response_class=PlainTextResponse)
    @app.get("/queue", response_class=PlainTextResponse)
    @app.get("/health", response_class=PlainTextResponse)
    @app.get("/secret", response_class=PlainTextResponse)
    async def text(request: Request) -> str:
        return plain(below(request.scope), None)[1]

    @app.get("/tokens", response_class=PlainTextResponse)
    async def tokens(request: Request) -> str:
        request.state.ratebound.charge(7)
        return "spent"

    @app.get("/cached")
    async def cached(x_cache: str = Header()) -> PlainTextResponse:
        return PlainTextResponse("kept", 200, {"Cache-Control": x_cache})

    @app.get("/moved")
    async def moved() -> RedirectResponse:
        return RedirectResponse("/", 302)

    @app.get("/form", response_class=PlainTextResponse)
    async def form(request: Request) -> str:
        request.state.ratebound.failed = request.headers.get("x-password") != "right"
        return "shown"

    return app


def litestar_app() -> Any:
    from litestar import Litestar, Request, Response, get, head, post
    from litestar.response import Redirect, Stream

    @get("/users/{id:str}", media_type="text/plain")
    async def user(request: Request[Any, Any, Any]) -> str:
        return f"user {request.path_params['id']}"

    @head("/users/{id:str}")
    async def user_head() -> None: ...

    @post("/login")
    async def login(request: Request[Any, Any, Any]) -> Response[str]:
        status, content = plain("/login", request.headers.get("x-password"))
        return Response(content, status_code=status, media_type="text/plain")

    @get("/stream")
    async def stream() -> Stream:
        return Stream(streamed())

    @get("/teapot")
    async def teapot() -> Response[str]:
        own = {"RateLimit": "mine", "X-Own": "yes"}
        return Response("teapot", status_code=418, headers=own, media_type="text/plain")

    @get(
        ["/", "/queue", "/health", "/secret", "/tokens", "/form", "/fail"],
        media_type="text/plain",
        sync_to_thread=False,
    )
    def text(request: Request[Any, Any, Any]) -> str:
        path = below(request.scope)
        if path == "/fail":
            raise RuntimeError("as asked")
        if path == "/tokens":
            request.scope["state"]["ratebound"].charge(7)
        if path == "/form":
            request.scope["state"]["ratebound"].failed = request.headers.get("x-password") != "right"
        return plain(path, None)[1]

    @get("/cached")
    async def cached(request: Request[Any, Any, Any]) -> Response[str]:
        told = {"Cache-Control": request.headers["x-cache"]}
        return Response("kept", headers=told, media_type="text/plain")

    @get("/moved")
    async def moved() -> Redirect:
        return Redirect("/", status_code=302)

    routes: list[Any] = [user, user_head, login, stream, teapot, text, cached, moved]
    return Litestar(routes, openapi_config=None, logging_config=None)


def quart_app() -> Any:
    from quart import Quart, Response, redirect, request

    app = Quart("suite")
    app.config["PROPAGATE_EXCEPTIONS"] = False

    @app.route("/<path:path>", methods=["GET", "POST"])
    @app.route("/", methods=["GET"], defaults={"path": ""})
    async def text(path: str) -> Any:
        if path == "fail":
            raise RuntimeError("as asked")
        if path == "stream":
            return Response(streamed())
        if path == "teapot":
            return Response("teapot", 418, {"RateLimit": "mine", "X-Own": "yes"})
        if path == "tokens":
            request.scope["state"]["ratebound"].charge(7)
        if path == "cached":
            return Response("kept", 200, {"Cache-Control": request.headers["x-cache"]})
        if path == "moved":
            return redirect("/", 302)
        if path == "form":
            request.scope["state"]["ratebound"].failed = request.headers.get("x-password") != "right"
        status, content = plain(f"/{path}", request.headers.get("x-password"))
        return Response(content, status)

    return app


def behind_middleware(make: Callable[[], Any]) -> Callable[[FakeClock, Naps], Client]:
    def client(clock: FakeClock, naps: Naps) -> Client:
        return asgi_client(RateLimitMiddleware(make(), **options(clock, naps, is_async=True)))

    return client


def installed(make: Callable[[], Any]) -> Callable[[FakeClock, Naps], Client]:
    def client(clock: FakeClock, naps: Naps) -> Client:
        app = make()
        RateLimits(app=app, **options(clock, naps, is_async=True))
        return asgi_client(app)

    return client


def worded(make: Callable[[], Any]) -> Callable[[], Any]:
    """An application that answers rejections in its own words."""

    def app() -> Any:
        from starlette.responses import PlainTextResponse

        made = make()
        made.add_exception_handler(429, lambda *_: PlainTextResponse(WORDS, 429, {"Cache-Control": WORDS_CACHE}))
        return made

    return app


def on_wsgi(clock: FakeClock, naps: Naps) -> Client:
    return wsgi_client(wsgi.RateLimitMiddleware(bare_wsgi, **options(clock, naps, is_async=False)))


CLIENTS: dict[str, Callable[[FakeClock, Naps], Client]] = {
    "asgi": behind_middleware(lambda: bare_asgi),
    "starlette": installed(starlette_app),
    "starlette behind asgi": behind_middleware(starlette_app),
    "fastapi": installed(fastapi_app),
    "fastapi behind asgi": behind_middleware(fastapi_app),
    "litestar behind asgi": behind_middleware(litestar_app),
    "quart behind asgi": behind_middleware(quart_app),
    "wsgi": on_wsgi,
}

WORDED: dict[str, Callable[[FakeClock, Naps], Client]] = {
    "starlette": installed(worded(starlette_app)),
    "fastapi": installed(worded(fastapi_app)),
}

# The same applications behind an adapter that is given these options, Flask and Django among them.


@contextmanager
def _closing(client: Client) -> Iterator[Client]:
    try:
        yield client
    finally:
        getattr(client, "close", lambda: None)()


def _behind_asgi(**options: Any) -> AbstractContextManager[Client]:
    return _closing(asgi_client(RateLimitMiddleware(bare_asgi, **options)))


def _starlette(**options: Any) -> AbstractContextManager[Client]:
    app = starlette_app()
    RateLimits(app=app, **options)
    return _closing(asgi_client(app))


def _fastapi(**options: Any) -> AbstractContextManager[Client]:
    app = fastapi_app()
    RateLimits(app=app, **options)
    return _closing(asgi_client(app))


def _behind_wsgi(**options: Any) -> AbstractContextManager[Client]:
    return _closing(wsgi_client(wsgi.RateLimitMiddleware(bare_wsgi, **options)))


def _flask(**options: Any) -> AbstractContextManager[Client]:
    from tests.web.flask_site import application

    return _closing(wsgi_client(application(options)))


@contextmanager
def _django(kind: str, options: dict[str, Any]) -> Iterator[Client]:
    from tests.web.django_site import site

    # isort: split
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    with site(options), _closing(wsgi_client(WSGIHandler()) if kind == "wsgi" else asgi_client(ASGIHandler())) as send:
        yield send


ADAPTERS: dict[str, Callable[..., AbstractContextManager[Client]]] = {
    "asgi": _behind_asgi,
    "starlette": _starlette,
    "fastapi": _fastapi,
    "wsgi": _behind_wsgi,
    "flask": _flask,
    "django wsgi": lambda **options: _django("wsgi", options),
    "django asgi": lambda **options: _django("asgi", options),
}
