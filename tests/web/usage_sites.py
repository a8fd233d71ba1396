"""One application with quotas and a usage page, in each framework; operators reach its limits by `call`."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ratebound.policy import Identity
from ratebound.usage import Usage
from ratebound.web import asgi, wsgi
from tests.web.drivers import environ_of, fetch, wsgi_fetch
from tests.web.suite import Answer

CUSTOMERS = {"key-1": Identity("customer", "acme"), "key-2": Identity("customer", "zenith")}
POLICY: dict[str, Any] = {
    "identities": {"api-key": {"header": "x-api-key", "verify": CUSTOMERS.get, "kinds": ["customer"]}},
    "by": ["api-key", "user", "address"],
    "rules": [
        {"name": "monthly", "limits": "1000/calendar-month", "match": {"paths": ["/api"]}},
        {"name": "planned", "limits": "1/minute", "mode": "shadow"},
        {"name": "site", "limits": "5000/second", "by": "global", "match": {"paths": ["/api"]}},
        {"name": "rest", "limits": "50/minute", "default": True},
    ],
}
EXPORT: Any = {"limits": "3/calendar-day", "name": "export"}  # of an endpoint


class UsageSite:
    """A running application. `limits` is the adapter, for threads or for tasks."""

    def __init__(
        self, fetch: Callable[[str, Mapping[str, str]], Answer], limits: Any, run: Callable[[Any], Any]
    ) -> None:
        self._fetch = fetch
        self.limits = limits
        self._run = run

    def get(self, path: str, **headers: str) -> Answer:
        return self._fetch(path, {name.replace("_", "-"): value for name, value in headers.items()})

    def page(self, path: str = "/rate_limit", **headers: str) -> Any:
        answer = self.get(path, **headers)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def call(self, name: str, *arguments: Any, **more: Any) -> Any:
        """Call a method of the adapter, and wait for its answer."""
        found = getattr(self.limits, name)(*arguments, **more)
        return self._run(found) if inspect.isawaitable(found) else found


def brief(usages: list[Usage]) -> dict[str, int]:
    return {usage.name: usage.used for usage in usages}


def user_in(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-user")


def scope_user(scope: Any) -> str | None:
    return user_in({name.decode(): value.decode() for name, value in scope["headers"]})


@contextmanager
def _tasks(app: Any, limits: Any) -> Iterator[UsageSite]:
    loop = asyncio.new_event_loop()

    def get(path: str, headers: Mapping[str, str]) -> Answer:
        return loop.run_until_complete(asyncio.wait_for(fetch(app, "GET", path, headers), 30))

    try:
        yield UsageSite(get, limits, loop.run_until_complete)
    finally:
        loop.close()


def _threads(app: Any, limits: Any) -> UsageSite:
    def get(path: str, headers: Mapping[str, str]) -> Answer:
        return wsgi_fetch(app, environ_of("GET", path, headers))

    return UsageSite(get, limits, lambda found: found)


@contextmanager
def bare_asgi(**options: Any) -> Iterator[UsageSite]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        found = await middleware.usage(scope, all_rules=scope["path"] == "/all")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(brief(found)).encode()})

    middleware = asgi.RateLimitMiddleware(app, user=scope_user, **options)
    with _tasks(middleware, middleware) as site:
        yield site


@contextmanager
def bare_wsgi(**options: Any) -> Iterator[UsageSite]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        found = middleware.usage(environ, all_rules=environ["PATH_INFO"] == "/all")
        start_response("200 OK", [])
        return [json.dumps(brief(found)).encode()]

    middleware = wsgi.RateLimitMiddleware(app, user=lambda environ: environ.get("HTTP_X_USER"), **options)
    yield _threads(middleware, middleware)


@contextmanager
def fastapi(**options: Any) -> Iterator[UsageSite]:
    from fastapi import FastAPI, Request

    from ratebound.web.fastapi import RateLimits

    app = FastAPI()
    limits = RateLimits(app=app, user=scope_user, **options)
    app.get("/rate_limit")(limits.usage_page())

    @app.get("/api")
    @app.get("/mine")
    async def mine(request: Request) -> dict[str, int]:
        return brief(await limits.usage(request))

    @app.get("/all")
    async def everything(request: Request) -> dict[str, int]:
        return brief(await limits.usage(request, all_rules=True))

    @app.get("/export")
    @limits.limit(**EXPORT)
    def export(request: Request) -> str:
        return "sent"

    with _tasks(app, limits) as site:
        yield site


@contextmanager
def starlette(**options: Any) -> Iterator[UsageSite]:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from ratebound.web.fastapi import RateLimits

    limits = RateLimits(user=scope_user, **options)

    async def mine(request: Request) -> JSONResponse:
        return JSONResponse(brief(await limits.usage(request)))

    async def everything(request: Request) -> JSONResponse:
        return JSONResponse(brief(await limits.usage(request, all_rules=True)))

    @limits.limit(**EXPORT)
    async def export(request: Request) -> JSONResponse:
        return JSONResponse("sent")

    routes = [Route("/api", mine), Route("/mine", mine), Route("/all", everything), Route("/export", export)]
    app = Starlette(routes=[*routes, Route("/rate_limit", limits.usage_page())])
    limits.install(app)
    with _tasks(app, limits) as site:
        yield site


@contextmanager
def flask(**options: Any) -> Iterator[UsageSite]:
    import flask

    from ratebound.web.flask import RateLimits

    app = flask.Flask("usage")
    limits = RateLimits(app, user=lambda: flask.request.headers.get("x-user"), **options)
    app.add_url_rule("/rate_limit", view_func=limits.usage_page())

    @app.get("/api")
    @app.get("/mine")
    def mine() -> dict[str, int]:
        return brief(limits.usage(flask.request))

    @app.get("/all")
    def everything() -> dict[str, int]:
        return brief(limits.usage(all_rules=True))

    @app.get("/export")
    @limits.limit(**EXPORT)
    def export() -> str:
        return "sent"

    yield _threads(app, limits)


@contextmanager
def django(kind: str, **options: Any) -> Iterator[UsageSite]:
    from tests.web.django_site import HttpResponse, path, site

    # isort: split
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    from ratebound.web.django import configured_limits, limit, usage_page

    def answered(found: list[Usage]) -> Any:
        return HttpResponse(json.dumps(brief(found)))

    def mine(request: Any) -> Any:
        return answered(configured_limits().usage(request))

    def everything(request: Any) -> Any:
        return answered(configured_limits().usage(request, all_rules=True))

    async def mine_async(request: Any) -> Any:
        return answered(await configured_limits().ausage(request))

    async def everything_async(request: Any) -> Any:
        return answered(await configured_limits().ausage(request, all_rules=True))

    @limit(**EXPORT)
    def export(request: Any) -> Any:
        return HttpResponse("sent")

    views = (mine_async, everything_async) if kind == "asgi" else (mine, everything)
    patterns = [path("rate_limit", usage_page), path("export", export)]
    patterns += [path("api", views[0]), path("mine", views[0]), path("all", views[1])]
    settings = {**options, "user": lambda request: request.headers.get("x-user")}
    with site(settings, ROOT_URLCONF=type("Urls", (), {"urlpatterns": patterns})):
        if kind == "wsgi":
            yield _threads(WSGIHandler(), configured_limits())
        else:
            with _tasks(ASGIHandler(), _ForTasks(configured_limits())) as running:
                yield running


class _ForTasks:
    """The methods of Django's limits for tasks, under the names that all adapters have."""

    def __init__(self, limits: Any) -> None:
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, f"a{name}")


SITES: dict[str, Callable[..., Any]] = {
    "asgi": bare_asgi,
    "wsgi": bare_wsgi,
    "fastapi": fastapi,
    "starlette": starlette,
    "flask": flask,
    "django wsgi": lambda **options: django("wsgi", **options),
    "django asgi": lambda **options: django("asgi", **options),
}
WITH_PAGES = {name: site for name, site in SITES.items() if name not in ("asgi", "wsgi")}
