"""One small site in every framework, behind every adapter, in one process.

The header `X-Cell` of a request chooses the adapter and the policy, so that one server serves them all. A handler
counts its runs under its name and sends the name back as `X-Ran`; a request for the cell `count` returns all counts.
"""

import json
import posixpath
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import unquote

from ratebound.policy import Match, Policy, Rule
from ratebound.web import AsyncWebGate, asgi, wsgi

LIMIT = "3/hour"
RUNS = 3
FORCED, MOUNTED, REWRITTEN = "/api", "/shop", "/v1"
METHODS = ["GET", "HEAD", "POST", "OPTIONS"]
ANSWER = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Methods": "GET", "Access-Control-Max-Age": "60"}

# The handlers by name: their paths, and the methods that they take. All but the last two are limited.
PATHS: dict[str, tuple[str, list[str]]] = {
    "login": ("/login", METHODS),
    "early": ("/early", METHODS),
    "own": ("/own", METHODS),  # limited by a decorator, in the adapters that have one
    "sub": ("/sub/login", METHODS),
    "cafe": ("/café", METHODS),
    "items": ("/items/{rest}", METHODS),
    "erase": ("/erase", ["DELETE"]),
    "shared": ("/shared", METHODS),
    "below": ("/sub/shared", METHODS),
    "asset": ("/assets/{rest}", METHODS),
    "door": ("/open/{rest}", METHODS),
}
FREE = ("asset", "door")
SUB = {"sub": "/login", "below": "/shared"}  # those of an application or a router of their own, below /sub
CORS = ("shared", "below")  # these answer every request as a CORS layer answers a preflight
COUNTS: Counter[str] = Counter()


EXEMPT = ("/assets/{path*}", "/{tenant}/public/{path*}")


def bound(prefix: str = "") -> Policy:
    """Rules for each limited handler by its path; exempt paths and one that a final rule frees."""

    def rule(name: str, **options: Any) -> Rule:
        return Rule(name, LIMIT, by="global", **options)

    def match(path: str, **options: Any) -> Match:
        return Match(paths=[prefix + path], **options)

    return Policy(
        exempt=[match(path) for path in EXEMPT],
        rules=[
            Rule("open", "unlimited", match=match("/open/{path*}"), final=True),
            rule("login", match=match("/login")),
            rule("early", match=match("/early"), stage="early"),
            rule("sub", match=match("/sub/login")),
            rule("cafe", match=match("/café")),
            rule("items", match=match("/items/{path*}")),
            rule("erase", match=match("/erase", methods=["DELETE"])),
            rule("shared", match=match("/shared")),
            rule("below", match=match("/sub/shared")),
        ],
    )


def default() -> Policy:
    """A default rule limits every handler that no other rule names."""
    return Policy(
        exempt=[Match(paths=EXEMPT)],
        rules=[
            Rule("open", "100000/hour", match=Match(paths=["/open/{path*}"]), by="global"),
            Rule("rest", LIMIT, default=True, by="global"),
        ],
    )


def policy_of(text: str) -> Policy:
    """Return the policy `default` or `bound`; `full /api` is `bound` with the prefix written in front of every path."""
    name, _, prefix = text.partition(" ")
    return default() if name == "default" else bound(prefix)


def run(name: str) -> dict[str, str]:
    """Count a run of a handler; return the headers of its response."""
    COUNTS[name] += 1
    return {"X-Ran": name, **(ANSWER if name in CORS else {})}


# Applications without a framework. They read a path as it is routed, or in every way that a path can be simplified.


def named(path: str, method: str) -> str | None:
    """Return the name of the handler for a path."""
    for name, (pattern, methods) in PATHS.items():
        begin, parameter, _ = pattern.partition("{rest}")
        found = path.startswith(begin) and len(path) > len(begin) if parameter else path == pattern
        if found and (methods is METHODS or method in methods):
            return name
    return None


def simplified(path: str) -> str:
    """Return a path as a lenient router reads it: decoded again, without parameters, dots, case and doubled slashes."""
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/?#]*)?", "", unquote(path)).replace("\\", "/")
    path = re.split(r"[?#\0]", path)[0]
    segments = [segment.partition(";")[0] for segment in path.split("/")]
    kept = [segment if segment in (".", "..") else segment.rstrip(" .\t\r\n") for segment in segments]
    return posixpath.normpath("/" + "/".join(kept).lower()).replace("//", "/")


def as_is(path: str) -> str:
    return path


def bare_asgi(read: Callable[[str], str]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        path, prefix = scope["path"], scope.get("root_path", "")
        inside = path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path
        method = scope["method"]
        if read is simplified:
            method = headers.get(b"x-http-method-override", method.encode()).decode().upper()
        name = named(read(inside), method)
        ours = [(key.lower().encode(), value.encode()) for key, value in (run(name) if name else {}).items()]
        ours.append((b"content-length", b"0"))
        await send({"type": "http.response.start", "status": 200 if name else 404, "headers": ours})
        await send({"type": "http.response.body", "body": b""})

    return app


def bare_wsgi(read: Callable[[str], str]) -> Any:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        method = environ["REQUEST_METHOD"]
        if read is simplified:
            method = environ.get("HTTP_X_HTTP_METHOD_OVERRIDE", method).upper()
        name = named(read(path), method)
        ours = list((run(name) if name else {}).items())
        start_response("200 OK" if name else "404 Not Found", [*ours, ("Content-Length", "0")])
        return []

    return app


plain_asgi, lenient_asgi = partial(bare_asgi, as_is), partial(bare_asgi, simplified)
plain_wsgi, lenient_wsgi = partial(bare_wsgi, as_is), partial(bare_wsgi, simplified)


# Applications of the frameworks. `limit` is the decorator of the adapter, for the handler `own`.


def no_limit(handler: Any) -> Any:
    return handler


def starlette_app(limit: Callable[[Any], Any] = no_limit) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Mount, Route

    def endpoint(name: str) -> Any:
        async def handler(request: Request) -> Response:
            return PlainTextResponse("ran", headers=run(name))

        handler.__name__ = handler.__qualname__ = name
        return limit(handler) if name == "own" else handler

    routes: list[Any] = [
        Route(path.replace("{rest}", "{rest:path}"), endpoint(name), methods=methods)
        for name, (path, methods) in PATHS.items()
        if name not in SUB
    ]
    below = Starlette(routes=[Route(path, endpoint(name), methods=METHODS) for name, path in SUB.items()])
    return Starlette(routes=[*routes, Mount("/sub", app=below)])


def fastapi_app(limit: Callable[[Any], Any] = no_limit, **options: Any) -> Any:
    from fastapi import APIRouter, FastAPI
    from fastapi.responses import PlainTextResponse, Response

    def endpoint(name: str) -> Any:
        async def handler() -> Response:
            return PlainTextResponse("ran", headers=run(name))

        handler.__name__ = handler.__qualname__ = name
        return limit(handler) if name == "own" else handler

    app, router = FastAPI(openapi_url=None, **options), APIRouter(prefix="/sub")
    for name, (path, methods) in PATHS.items():
        if name not in SUB:
            app.api_route(path.replace("{rest}", "{rest:path}"), methods=methods)(endpoint(name))
    for name, path in SUB.items():
        router.api_route(path, methods=METHODS)(endpoint(name))
    app.include_router(router)
    return app


def litestar_app(**options: Any) -> Any:
    from litestar import HttpMethod, Litestar, Response, Router, route

    def endpoint(name: str, path: str) -> Any:
        async def handler() -> Response[str]:
            return Response("ran", headers=run(name))

        async def with_rest(rest: str) -> Response[str]:
            return Response("ran", headers=run(name))

        verbs = [HttpMethod(method) for method in PATHS[name][1] if method != "HEAD"]
        made = route(path.replace("{rest}", "{rest:path}"), http_method=verbs, status_code=200)
        return made(with_rest if "{rest}" in path else handler)

    routes = [endpoint(name, path) for name, (path, _) in PATHS.items() if name not in SUB]
    sub = Router("/sub", route_handlers=[endpoint(name, path) for name, path in SUB.items()])
    return Litestar([*routes, sub], openapi_config=None, logging_config=None, **options)


def quart_app() -> Any:
    from quart import Blueprint, Quart, Response

    def endpoint(name: str) -> Any:
        async def handler(rest: str = "") -> Response:
            return Response("ran", headers=run(name))

        handler.__name__ = name
        return handler

    app, sub = Quart("matrix"), Blueprint("below", "matrix", url_prefix="/sub")
    for name, (path, methods) in PATHS.items():
        if name not in SUB:
            app.route(path.replace("{rest}", "<path:rest>"), methods=methods)(endpoint(name))
    for name, path in SUB.items():
        sub.route(path, methods=METHODS)(endpoint(name))
    app.register_blueprint(sub)
    return app


def flask_app(install: Callable[[Any], Callable[[Any], Any]] = lambda app: no_limit) -> Any:
    """`install` puts the adapter into the application, and returns its decorator."""
    from flask import Blueprint, Flask, Response

    app, sub = Flask("matrix"), Blueprint("below", "matrix", url_prefix="/sub")
    limit = install(app)

    def endpoint(name: str) -> Any:
        def handler(rest: str = "") -> Response:
            return Response("ran", headers=run(name))

        handler.__name__ = handler.__qualname__ = name
        return limit(handler) if name == "own" else handler

    for name, (path, methods) in PATHS.items():
        if name not in SUB:
            app.route(path.replace("{rest}", "<path:rest>"), methods=methods)(endpoint(name))
    for name, path in SUB.items():
        sub.route(path, methods=METHODS)(endpoint(name))
    app.register_blueprint(sub)
    return app


# Adapters. `make` builds the application for a policy.


@dataclass(frozen=True)
class Adapter:
    """An application behind an adapter. It answers below `prefix`. `limits_own`: the handler `own` is decorated."""

    make: Callable[[str], Any]
    prefix: str = ""
    limits_own: bool = False
    only_own: bool = False
    replaces: bool = False  # the prefix is the application's own setting: it holds instead of the server's
    frees: bool = True  # what is exempt is free below the prefix: not if the request brings it, or if nobody can tell

    @property
    def limited(self) -> list[str]:
        """The handlers that have a limit."""
        if self.only_own:
            return ["own"]
        return [name for name in PATHS if name not in FREE and (name != "own" or self.limits_own)]


def behind_asgi(make: Callable[[], Any]) -> Callable[[str], Any]:
    return lambda policy: asgi.RateLimitMiddleware(make(), policy_of(policy))


def behind_wsgi(make: Callable[[], Any]) -> Callable[[str], Any]:
    return lambda policy: wsgi.RateLimitMiddleware(make(), policy_of(policy))


def with_rate_limits(make: Callable[..., Any]) -> Callable[[str], Any]:
    def made(policy: str) -> Any:
        from ratebound.web.fastapi import RateLimits

        limits = RateLimits(policy_of(policy))
        app = make(limits.limit(LIMIT, key="global"))
        limits.install(app)
        return app

    return made


def with_flask_keeper(policy: str) -> Any:
    from ratebound.web.flask import RateLimits as FlaskLimits

    def install(app: Any) -> Any:
        decorator: Any = FlaskLimits(app, policy_of(policy)).limit(LIMIT, key="global")
        return decorator

    return flask_app(install)


def with_litestar_routes(policy: str) -> Any:
    """Litestar's own middleware runs behind its router, and knows the route."""
    from litestar.middleware import DefineMiddleware

    gate = AsyncWebGate(policy_of(policy))
    return litestar_app(middleware=[DefineMiddleware(asgi.RateLimitMiddleware, gate=gate)])


def django_site(interface: str, *, middleware: bool, forced: str | None = None) -> Callable[[str], Any]:
    """Django has one configuration in a process: each request first sees to it that it is the one of its cell."""

    def made(policy: str) -> Any:
        from tests.web.matrix import django_views

        return django_views.application(interface, policy, middleware=middleware, forced=forced)

    return made


def mounted_asgi(make: Callable[[str], Any]) -> Callable[[str], Any]:
    def made(policy: str) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Mount

        return Starlette(routes=[Mount(MOUNTED, app=make(policy))])

    return made


def mounted_wsgi(make: Callable[[str], Any]) -> Callable[[str], Any]:
    def made(policy: str) -> Any:
        from werkzeug.middleware.dispatcher import DispatcherMiddleware

        return DispatcherMiddleware(bare_wsgi(lambda path: ""), {MOUNTED: make(policy)})

    return made


def for_tenants(make: Callable[[str], Any]) -> Callable[[str], Any]:
    """Mount an application below a parameter: the client chooses the prefix."""

    def made(policy: str) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Mount

        return Starlette(routes=[Mount("/{tenant}", app=make(policy))])

    return made


def behind_proxy(make: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let a proxy name the prefix in a header; here the client does."""

    def made(policy: str) -> Any:
        from werkzeug.middleware.proxy_fix import ProxyFix

        return ProxyFix(make(policy), x_prefix=1)

    return made


def without_version(path: str) -> str:
    """Return the path as a middleware that serves several versions rewrites it."""
    return re.sub(f"^({FORCED})?(/assets)?{REWRITTEN}/", r"\1/", path)


def rewritten_asgi(make: Callable[[str], Any]) -> Callable[[str], Any]:
    def made(policy: str) -> Any:
        app = make(policy)

        async def rewriting(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "path": without_version(scope["path"])}, receive, send)

        return rewriting

    return made


def rewritten_wsgi(make: Callable[[str], Any]) -> Callable[[str], Any]:
    def made(policy: str) -> Any:
        app = make(policy)

        def rewriting(environ: dict[str, Any], start_response: Any) -> Any:
            return app({**environ, "PATH_INFO": without_version(environ["PATH_INFO"])}, start_response)

        return rewriting

    return made


def django_app(interface: str) -> Any:
    from tests.web.matrix import django_views

    return django_views.application(interface, "bound", middleware=False, forced=None)


ASGI: dict[str, Adapter] = {
    "bare behind asgi": Adapter(behind_asgi(plain_asgi)),
    "lenient behind asgi": Adapter(behind_asgi(lenient_asgi)),
    "starlette behind asgi": Adapter(behind_asgi(starlette_app)),
    "fastapi behind asgi": Adapter(behind_asgi(fastapi_app)),
    "litestar behind asgi": Adapter(behind_asgi(litestar_app)),
    "quart behind asgi": Adapter(behind_asgi(quart_app)),
    "django behind asgi": Adapter(behind_asgi(lambda: django_app("asgi")), limits_own=True),
    "litestar": Adapter(with_litestar_routes),
    "starlette": Adapter(with_rate_limits(starlette_app), limits_own=True),
    "fastapi": Adapter(with_rate_limits(fastapi_app), limits_own=True),
    "django": Adapter(django_site("asgi", middleware=True), limits_own=True),
    "django decorators": Adapter(django_site("asgi", middleware=False), only_own=True),
    "fastapi, root_path": Adapter(
        with_rate_limits(partial(fastapi_app, root_path="/api")), "/api", True, replaces=True
    ),
    "fastapi behind asgi, root_path": Adapter(
        behind_asgi(partial(fastapi_app, root_path="/api")), "/api", replaces=True
    ),
    "django, forced": Adapter(django_site("asgi", middleware=True, forced=FORCED), FORCED, True, replaces=True),
    "fastapi, mounted": Adapter(mounted_asgi(with_rate_limits(fastapi_app)), MOUNTED, limits_own=True),
    "bare behind asgi, mounted": Adapter(mounted_asgi(behind_asgi(plain_asgi)), MOUNTED),
    "fastapi, tenants": Adapter(for_tenants(with_rate_limits(fastapi_app)), "/acme", True, frees=False),
    "bare behind asgi, tenants": Adapter(for_tenants(behind_asgi(plain_asgi)), "/acme", frees=False),
    "fastapi, rewritten": Adapter(rewritten_asgi(with_rate_limits(fastapi_app)), REWRITTEN, True, frees=False),
    "starlette behind asgi, rewritten": Adapter(rewritten_asgi(behind_asgi(starlette_app)), REWRITTEN, frees=False),
    "django, rewritten": Adapter(rewritten_asgi(django_site("asgi", middleware=True)), REWRITTEN, True, frees=False),
}
WSGI: dict[str, Adapter] = {
    "bare behind wsgi": Adapter(behind_wsgi(plain_wsgi)),
    "lenient behind wsgi": Adapter(behind_wsgi(lenient_wsgi)),
    "flask behind wsgi": Adapter(behind_wsgi(flask_app)),
    "django behind wsgi": Adapter(behind_wsgi(lambda: django_app("wsgi")), limits_own=True),
    "flask": Adapter(with_flask_keeper, limits_own=True),
    "django": Adapter(django_site("wsgi", middleware=True), limits_own=True),
    "django decorators": Adapter(django_site("wsgi", middleware=False), only_own=True),
    "django, forced": Adapter(django_site("wsgi", middleware=True, forced=FORCED), FORCED, True, replaces=True),
    "flask, mounted": Adapter(mounted_wsgi(with_flask_keeper), MOUNTED, limits_own=True, frees=False),
    "flask behind wsgi, mounted": Adapter(mounted_wsgi(behind_wsgi(flask_app)), MOUNTED, frees=False),
    "flask, proxied": Adapter(behind_proxy(with_flask_keeper), limits_own=True),
    "flask behind wsgi, proxied": Adapter(behind_proxy(behind_wsgi(flask_app))),
    "django, proxied": Adapter(behind_proxy(django_site("wsgi", middleware=True)), limits_own=True),
    "flask, rewritten": Adapter(rewritten_wsgi(with_flask_keeper), REWRITTEN, True, frees=False),
    "bare behind wsgi, rewritten": Adapter(rewritten_wsgi(behind_wsgi(plain_wsgi)), REWRITTEN, frees=False),
    "django, rewritten": Adapter(rewritten_wsgi(django_site("wsgi", middleware=True)), REWRITTEN, True, frees=False),
}


# The two applications that a server serves.


_making = threading.Lock()


@cache
def _made(interface: str, cell: str) -> Any:
    name, _, policy = cell.partition(" | ")
    return (ASGI if interface == "asgi" else WSGI)[name].make(policy)


def made(interface: str, cell: str) -> Any:
    """Return the application of a cell; two threads must not make two, for each has its quotas."""
    with _making:
        return _made(interface, cell)


async def asgi_application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    cell = dict(scope["headers"])[b"x-cell"].decode()
    if cell == "count":
        body = json.dumps(COUNTS).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
        return
    await made("asgi", cell)(scope, receive, send)


def wsgi_application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    cell = environ["HTTP_X_CELL"]
    if cell == "count":
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(COUNTS).encode()]
    answer: Iterable[bytes] = made("wsgi", cell)(environ, start_response)
    return answer
