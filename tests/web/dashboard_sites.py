"""One application with a dashboard at /limits, in each framework. The header X-Role says who looks at it."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ratebound.web import Operator, asgi, wsgi
from tests.web.drivers import environ_of, fetch, wsgi_fetch
from tests.web.suite import Answer

EXPORT: Any = {"limits": "3/calendar-day", "name": "export"}  # of an endpoint
READ = {"x-role": "read"}
WRITE = {"x-role": "write"}
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
CSRF = {"x-ratebound-csrf": "given"}


def operator_in(headers: Mapping[str, str]) -> Any:
    """Return what `auth` returns for these headers: a role, or an operator with a name, like ann:write."""
    name, colon, role = headers.get("x-role", "").rpartition(":")
    return Operator(name, role) if colon else role or None  # type: ignore[arg-type]


def operator_of_scope(scope: Any) -> Any:
    return operator_in({name.decode(): value.decode() for name, value in scope["headers"]})


def operator_of_environ(environ: Any) -> Any:
    return operator_in({"x-role": environ.get("HTTP_X_ROLE", "")})


class DashboardSite:
    """A running application with a dashboard."""

    def __init__(self, send: Callable[..., Answer], gates: Callable[[], list[Any]]) -> None:
        self.send = send
        self._gates = gates

    @property
    def gate(self) -> Any:
        """The gate that decides about the requests of this site."""
        return self._gates()[-1]

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("GET", path, headers or {})

    def statuses(self, path: str, count: int = 1, headers: Mapping[str, str] | None = None) -> list[int]:
        return [self.get(path, headers).status for _ in range(count)]

    def read(self, path: str, headers: Mapping[str, str] = READ) -> Any:
        answer = self.get(f"/limits/api/{path}", headers)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def write(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] = WRITE) -> Any:
        """Call what changes something, as the page does."""
        answer = self.try_to_write(method, path, content, {**headers, **SAME_ORIGIN, **CSRF})
        assert answer.status in (200, 201), answer
        return json.loads(answer.body)

    def try_to_write(self, method: str, path: str, content: Any, headers: Mapping[str, str]) -> Answer:
        body = b"" if content is None else json.dumps(content).encode()
        told = {"content-type": "application/json"} if body else {}
        return self.send(method, f"/limits/api/{path}", {**told, **headers}, body)


@contextmanager
def _tasks(app: Any, gates: Callable[[], list[Any]]) -> Iterator[DashboardSite]:
    loop = asyncio.new_event_loop()

    def send(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        return loop.run_until_complete(asyncio.wait_for(fetch(app, method, path, headers, body), 30))

    site = DashboardSite(send, gates)
    try:
        yield site
    finally:
        for gate in gates():
            closed = gate.close()
            if closed is not None:
                loop.run_until_complete(closed)
        loop.close()


@contextmanager
def _threads(app: Any, gates: Callable[[], list[Any]]) -> Iterator[DashboardSite]:
    def send(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        return wsgi_fetch(app, environ_of(method, path, headers, body))

    try:
        yield DashboardSite(send, gates)
    finally:
        for gate in gates():
            gate.close()


@contextmanager
def bare_asgi(*, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    middleware = asgi.RateLimitMiddleware(app, **options)
    with _tasks(
        middleware.with_dashboard("/limits", auth=operator_of_scope, ledger=ledger), lambda: [middleware.gate]
    ) as site:
        yield site


@contextmanager
def bare_wsgi(*, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    middleware = wsgi.RateLimitMiddleware(app, **options)
    with _threads(
        middleware.with_dashboard("/limits", auth=operator_of_environ, ledger=ledger), lambda: [middleware.gate]
    ) as site:
        yield site


@contextmanager
def starlette(*, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    from ratebound.web.fastapi import RateLimits

    limits = RateLimits(**options)

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    @limits.limit(**EXPORT)
    async def export(request: Request) -> PlainTextResponse:
        return PlainTextResponse("sent")

    async def is_operator(request: Request) -> Any:
        return operator_in(request.headers)

    dashboard = limits.dashboard(auth=is_operator, ledger=ledger)
    app = Starlette(routes=[Route("/", home), Route("/export", export), Mount("/limits", dashboard)])
    limits.install(app)
    with _tasks(app, lambda: [limits.gate]) as site:
        yield site


@contextmanager
def fastapi(*, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    from fastapi import FastAPI, Request

    from ratebound.web.fastapi import RateLimits

    app = FastAPI()
    limits = RateLimits(app=app, **options)

    @app.get("/")
    async def home() -> str:
        return "hello"

    @app.get("/export")
    @limits.limit(**EXPORT)
    def export() -> str:
        return "sent"

    def is_operator(request: Request) -> Any:
        return operator_in(request.headers)

    app.mount("/limits", limits.dashboard(auth=is_operator, ledger=ledger))
    with _tasks(app, lambda: [limits.gate]) as site:
        yield site


@contextmanager
def flask(*, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    import flask

    from ratebound.web.flask import RateLimits

    app = flask.Flask("dashboard")
    limits = RateLimits(app, **options)

    @app.get("/")
    def home() -> str:
        return "hello"

    @app.get("/export")
    @limits.limit(**EXPORT)
    def export() -> str:
        return "sent"

    def is_operator() -> Any:
        return operator_in({"x-role": flask.request.headers.get("X-Role", "")})

    app.register_blueprint(limits.dashboard(auth=is_operator, ledger=ledger), url_prefix="/limits")
    with _threads(app, lambda: [limits.gate]) as site:
        yield site


@contextmanager
def django(kind: str, *, ledger: Any = None, **options: Any) -> Iterator[DashboardSite]:
    from tests.web.django_site import HttpResponse, path, site

    # isort: split
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    from ratebound.web.django import configured_limits, dashboard, limit

    def home(request: Any) -> Any:
        return HttpResponse("hello")

    @limit(**EXPORT)
    def export(request: Any) -> Any:
        return HttpResponse("sent")

    def is_operator(request: Any) -> Any:
        return operator_in({"x-role": request.headers.get("X-Role", "")})

    urls = [path("", home), path("export", export), path("limits/", dashboard(auth=is_operator, ledger=ledger))]
    middleware = ["django.middleware.common.CommonMiddleware", "ratebound.web.django.RateLimitMiddleware"]
    middleware.append("django.middleware.csrf.CsrfViewMiddleware")
    with site(options, ROOT_URLCONF=type("Urls", (), {"urlpatterns": urls}), MIDDLEWARE=middleware):
        if kind == "wsgi":
            with _threads(WSGIHandler(), lambda: [configured_limits().gate]) as running:
                yield running
        else:
            gates = lambda: [configured_limits().gate, configured_limits().tasks.gate]  # noqa: E731
            with _tasks(ASGIHandler(), gates) as running:
                yield running


SITES: dict[str, Callable[..., Any]] = {
    "asgi": bare_asgi,
    "wsgi": bare_wsgi,
    "starlette": starlette,
    "fastapi": fastapi,
    "flask": flask,
    "django wsgi": partial(django, "wsgi"),
    "django asgi": partial(django, "asgi"),
}
WITH_ENDPOINTS = [name for name in SITES if name not in ("asgi", "wsgi")]
