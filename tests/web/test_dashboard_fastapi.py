"""The dashboard mounted in FastAPI and Starlette: routing alone decides which requests are not limited."""

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from ratebound.web import asgi
from ratebound.web.fastapi import RateLimits
from tests.web.dashboard_sites import READ, operator_in
from tests.web.drivers import connect, fetch
from tests.web.suite import Answer

EARLY_AND_REST = {
    "rules": [
        {"name": "flood", "limits": "1/hour", "by": "address", "stage": "early"},
        {"name": "rest", "limits": "1/hour", "by": "address", "default": True},
    ]
}


def is_operator(request: Request) -> Any:
    return operator_in(request.headers)


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello {request.url.path}")


def limits_with(policy: Any = "1/hour", **options: Any) -> RateLimits:
    return RateLimits(policy, storage=MemoryStorage(clock=FakeClock()), **options)


def play(app: Any, *paths: str, headers: Any = READ) -> list[Answer]:
    """Send requests in one event loop."""

    async def run() -> list[Answer]:
        return [await fetch(app, "GET", path, headers) for path in paths]

    return asyncio.run(run())


def statuses(app: Any, *paths: str) -> list[int]:
    return [answer.status for answer in play(app, *paths)]


def is_of_dashboard(answer: Answer) -> bool:
    return "content-security-policy" in dict(answer.headers)


Place = Callable[[Any], Any]
PLACES: dict[str, tuple[Place, str]] = {
    "a mount": (lambda app: Starlette(routes=[Mount("/limits", app)]), "/limits/"),
    "a mount in a mount": (
        lambda app: Starlette(routes=[Mount("/admin", routes=[Mount("/limits", app)])]),
        "/admin/limits/",
    ),
    "a mounted application": (
        lambda app: Starlette(routes=[Mount("/admin", Starlette(routes=[Mount("/limits", app)]))]),
        "/admin/limits/",
    ),
    "a router": (lambda app: Starlette(routes=[Mount("/admin", Router([Mount("/limits", app)]))]), "/admin/limits/"),
    "a mount with a parameter": (lambda app: Starlette(routes=[Mount("/{tenant}/limits", app)]), "/acme/limits/"),
    "the root": (lambda app: Starlette(routes=[Mount("/", app)]), "/"),
    "a host": (lambda app: Starlette(routes=[Host("test", app)]), "/"),
}


@pytest.mark.parametrize(("place", "path"), PLACES.values(), ids=list(PLACES))
def test_wherever_it_is_mounted_it_is_not_limited(place: Place, path: str) -> None:
    limits = limits_with(EARLY_AND_REST)
    app = place(limits.dashboard(auth=is_operator))
    limits.install(app)
    answers = play(app, *[f"{path}{file}" for file in ("", "dashboard.js", "api/session") * 2])
    assert [answer.status for answer in answers] == [200] * 6
    assert all(map(is_of_dashboard, answers))


@pytest.mark.parametrize("prefix", ["/api|", "/api/v1|"])
def test_under_a_prefix_of_the_server(prefix: str) -> None:
    for known in ("", prefix.strip("|")):
        app = FastAPI()
        app.root_path = known
        limits = limits_with(EARLY_AND_REST, app=app)
        app.mount("/limits", limits.dashboard(auth=is_operator))
        assert statuses(app, *[f"{prefix}/limits/{file}" for file in ("", "dashboard.js", "api/session")]) == [200] * 3


def test_routes_in_front_of_the_mount_are_limited() -> None:
    limits = limits_with()
    dashboard = limits.dashboard(auth=is_operator)
    app = Starlette(routes=[Route("/limits/mine", hello), Mount("/limits", dashboard)])
    limits.install(app)
    assert statuses(app, "/limits/mine", "/limits/mine", "/limits/") == [200, 429, 200]


PATHS = [
    "",
    "/",
    "//",
    "/limits",
    "/limits/",
    "/Limits/",
    "/limits//",
    "/limits/../x",
    "/x/limits/",
    "/limits%2f",
    "/x",
]
PREFIXES = ["", "/limits", "/x"]


@pytest.mark.parametrize(("prefix", "path"), list(product(PREFIXES, PATHS)), ids=str)
def test_a_request_is_limited_unless_it_reaches_the_dashboard(prefix: str, path: str) -> None:
    limits = limits_with(EARLY_AND_REST)
    mount = Mount("/limits", limits.dashboard(auth=is_operator))
    app = Starlette(routes=[Route("/x", hello), mount, Route("/x/{path:path}", hello)])
    limits.install(app)
    answers = play(app, *[f"{prefix}|{path}" if prefix else path or "/"] * 2)
    assert all(map(is_of_dashboard, answers)) or answers[1].status == 429, answers


def test_only_the_very_object_is_spared() -> None:
    limits, others = limits_with(), limits_with()
    dashboard = limits.dashboard(auth=is_operator)

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await dashboard(scope, receive, send)

    routes = [Mount("/wrapped", wrapped), Mount("/other", others.dashboard(auth=is_operator))]
    app = Starlette(routes=routes)
    limits.install(app)
    assert statuses(app, "/wrapped/", "/wrapped/") == [200, 429]
    assert statuses(app, "/other/") == [429]


class Rewriting:
    """A middleware that routes requests by a header, as some proxies do."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wanted = dict(scope.get("headers", ())).get(b"x-rewrite-url")
        if wanted is not None:
            scope = {**scope, "path": wanted.decode(), "raw_path": wanted}
        await self.app(scope, receive, send)


@pytest.mark.parametrize("policy", ["1/hour", EARLY_AND_REST])
def test_a_middleware_that_changes_the_path_opens_no_way_around_limits(policy: Any) -> None:
    limits = limits_with(policy)
    dashboard = limits.dashboard(auth=is_operator)
    app = Starlette(routes=[Route("/x", hello), Mount("/limits", dashboard)], middleware=[Middleware(Rewriting)])
    limits.install(app)
    away = play(app, *["/limits/"] * 3, headers={**READ, "x-rewrite-url": "/x"})
    assert [answer.status for answer in away] == [200, 429, 429]
    assert statuses(app, "/limits/", "/limits/") == [200, 200]


def test_a_middleware_that_changes_the_path_opens_no_way_around_the_load(clock: FakeClock) -> None:
    limits = limits_with(
        {"rules": [{"name": "rest", "limits": "9/hour"}], "concurrent": {"least": 1, "first": 1, "most": 1}}
    )
    dashboard = limits.dashboard(auth=is_operator)
    app = Starlette(routes=[Route("/x", hello), Mount("/limits", dashboard)], middleware=[Middleware(Rewriting)])
    limits.install(app)
    assert limits.gate.meter is not None
    assert limits.gate.meter.in_flight.enter()
    assert statuses(app, "/limits/", "/x") == [200, 503]
    away = play(app, "/limits/", headers={**READ, "x-rewrite-url": "/x"})
    assert [answer.status for answer in away] == [503]


def test_a_middleware_that_leads_to_the_dashboard() -> None:
    limits = limits_with()
    dashboard = limits.dashboard(auth=is_operator)
    app = Starlette(routes=[Route("/x", hello), Mount("/limits", dashboard)], middleware=[Middleware(Rewriting)])
    limits.install(app)
    answers = play(app, *["/x"] * 3, headers={**READ, "x-rewrite-url": "/limits/"})
    assert [answer.status for answer in answers] == [200] * 3


class Refusing:
    """A middleware that answers by itself."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and b"authorization" not in dict(scope["headers"]):
            await PlainTextResponse("no", 401)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@pytest.mark.parametrize("policy", ["2/hour", {"rules": [{"name": "flood", "limits": "2/hour", "stage": "early"}]}])
def test_the_answer_of_a_middleware_in_front_of_the_dashboard_is_limited(policy: Any) -> None:
    limits = limits_with(policy)
    dashboard = limits.dashboard(auth=is_operator)
    app = Starlette(routes=[Mount("/limits", dashboard)], middleware=[Middleware(Refusing)])
    limits.install(app)
    assert statuses(app, *["/limits/"] * 4) == [401, 401, 429, 429]
    passed = play(app, *["/limits/"] * 3, headers={**READ, "authorization": "x"})
    assert [answer.status for answer in passed] == [200] * 3


def test_what_auth_raises_is_for_the_handlers_of_the_application() -> None:
    app = FastAPI()
    limits = limits_with(app=app)

    async def signed_in(request: Request) -> Any:
        if "x-role" not in request.headers:
            raise HTTPException(303, headers={"Location": "/login"})
        return operator_in(request.headers)

    app.mount("/limits", limits.dashboard(auth=signed_in))
    answers = play(app, *["/limits/"] * 3, headers={})
    assert [(answer.status, dict(answer.headers)["location"]) for answer in answers] == [(303, "/login")] * 3
    assert statuses(app, "/limits/") == [200]


def test_a_dashboard_may_be_mounted_while_the_application_runs() -> None:
    app = FastAPI()
    limits = limits_with(app=app)
    assert statuses(app, "/", "/") == [404, 429]
    app.mount("/limits", limits.dashboard(auth=is_operator))
    assert statuses(app, "/limits/", "/limits/") == [200, 200]
    assert statuses(app, "/") == [429]


def test_connections_to_the_dashboard_are_limited_and_closed() -> None:
    limits = limits_with()
    app = Starlette(routes=[Mount("/limits", limits.dashboard(auth=is_operator))])
    limits.install(app)

    async def run() -> list[str]:
        return [(await connect(app, "/limits/"))[-1]["type"] for _ in range(2)]

    assert set(asyncio.run(run())) == {"websocket.close"}


def test_behind_a_middleware_of_asgi_the_dashboard_stands_in_front() -> None:
    limited = asgi.RateLimitMiddleware(Starlette(), "1/hour", storage=MemoryStorage(clock=FakeClock()))

    def of_scope(scope: Any) -> Any:
        return operator_in({name.decode(): value.decode() for name, value in scope["headers"]})

    app = limited.with_dashboard("/limits", auth=of_scope)
    for prefix in ("", "/api|"):
        assert statuses(app, *[f"{prefix}/limits/{file}" for file in ("", "dashboard.js", "api/session")]) == [200] * 3
    (moved,) = play(app, "/api|/limits")
    assert (moved.status, dict(moved.headers)["location"]) == (308, "./limits/")
    assert statuses(app, "/limitsx", "/limitsx") == [404, 429]
    for wrong in ("limits", "/limits/", "/", "", "/a b", "/{x}"):
        with pytest.raises(ValueError, match="written like '/limits'"):
            limited.with_dashboard(wrong, auth=of_scope)
