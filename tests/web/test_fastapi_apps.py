"""FastAPI and Starlette: several applications, mounted ones, routers included twice; whose limits are whose."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from ratebound.policy import Policy, Rule
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.web.fastapi import Passed, RateLimits
from tests.web.drivers import fetch
from tests.web.test_fastapi import current_user, remaining, statuses

pytestmark = pytest.mark.anyio


async def test_a_router_in_an_application_without_the_limits_raises() -> None:
    limits, router = RateLimits(), APIRouter()

    @router.post("/login")
    @limits.limit("2/minute")
    def login() -> None: ...

    public, internal = FastAPI(), FastAPI()
    limits.install(public)
    for app in (public, internal):
        app.include_router(router)
    assert [(await fetch(public, "POST", "/login")).status for _ in range(3)] == [200, 200, 429]
    assert [(await fetch(internal, "POST", "/login")).status for _ in range(2)] == [500, 500]


async def test_limits_of_one_module_may_be_in_several_applications() -> None:
    limits, router = RateLimits("9/minute"), APIRouter()

    @router.get("/shared")
    @limits.limit("3/minute")
    async def shared() -> None: ...

    def make() -> FastAPI:
        app = FastAPI()
        limits.install(app)
        app.include_router(router)

        @app.get("/own")
        @limits.limit("1/minute")
        async def of_app(_: Annotated[Passed, Depends(limits.limit("5/hour", user=current_user))]) -> None: ...

        return app

    first, second = make(), make()
    limits.read_routes()
    assert await statuses(first, "/shared", "/shared") == [200, 200]
    assert await statuses(second, "/shared", "/shared") == [200, 429]
    assert await statuses(first, "/own", "/own") == [200, 429]
    assert await statuses(second, "/own", "/own") == [200, 429]


async def test_the_storage_is_closed_with_the_last_of_several_applications() -> None:
    class Closing(AsyncMemoryStorage):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    limits = RateLimits()
    storage = limits.gate.gate.storage = Closing()
    apps = [FastAPI(), FastAPI()]
    for app in apps:
        limits.install(app)
        app.get("/")(lambda: None)
    async with serving(apps[0]):
        async with serving(apps[1]):
            pass
        assert storage.closed == 0
    assert storage.closed == 1


class serving:
    """An application between the start and the end of its life."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.left: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    async def __aenter__(self) -> None:
        self.task = asyncio.ensure_future(self.app({"type": "lifespan"}, self.left.get, self.sent.put))
        await self.left.put({"type": "lifespan.startup"})
        assert (await self.sent.get())["type"] == "lifespan.startup.complete"

    async def __aexit__(self, *exception: object) -> None:
        await self.left.put({"type": "lifespan.shutdown"})
        assert (await self.sent.get())["type"] == "lifespan.shutdown.complete"
        await self.task


async def test_an_application_with_the_same_limits_below_another_is_asked_for_once() -> None:
    outer, inner = FastAPI(), FastAPI()
    limits = RateLimits(Policy(rules=[Rule("all", "9/minute"), Rule("early", "9/hour", stage="early")]), app=outer)
    limits.install(inner)

    @inner.get("/")
    @limits.limit("5/minute", name="home")
    async def home() -> None: ...

    @inner.get("/hidden")
    @limits.limit("5/minute", name="hidden")
    async def below() -> None: ...

    outer.mount("/plain", inner)
    outer.mount("/wrapped", CORSMiddleware(inner, allow_origins=["*"]))
    told = {"all/minute": 8, "early/hour": 8, "home/minute": 4}
    assert remaining(await fetch(outer, "GET", "/plain/")) == told
    told = {"all/minute": 7, "early/hour": 7, "hidden/minute": 4}
    assert remaining(await fetch(outer, "GET", "/wrapped/hidden")) == told


async def test_limits_are_asked_for_by_those_who_declared_them() -> None:
    storage = AsyncMemoryStorage()
    outer, inner = FastAPI(), FastAPI()
    outermost, innermost = RateLimits(app=outer, storage=storage), RateLimits(app=inner, storage=storage)

    @inner.get("/inner")
    @innermost.limit("4/minute")
    def of_inner() -> None: ...

    @inner.get("/depends", dependencies=[Depends(innermost.limit("4/minute"))])
    def depends() -> None: ...

    @inner.get("/outer")
    @outermost.limit("4/minute")
    def of_outer() -> None: ...

    outer.mount("/in", inner)
    for path in ("/in/inner", "/in/depends", "/in/outer"):
        assert await statuses(outer, *[path] * 5) == [200] * 4 + [429]


async def test_modules_of_one_name_keep_their_endpoints_apart() -> None:
    def made(module: str) -> Any:
        def show(request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

        show.__module__, show.__qualname__ = module, "show"
        return show

    limits = RateLimits()
    views = [limits.limit("2/minute")(made(f"shop.{part}.router")) for part in ("users", "orders")]
    lonely = limits.limit("2/minute")(made("shop.items"))
    app = Starlette(routes=[Route(f"/{place}", view) for place, view in enumerate((*views, lonely))])
    limits.install(app)
    told = [remaining(await fetch(app, "GET", f"/{place}")) for place in range(3)]
    assert told == [
        {"shop.users.router.show/minute": 1},
        {"shop.orders.router.show/minute": 1},
        {"items.show/minute": 1},
    ]


@pytest.mark.parametrize("is_installed", [True, False])
async def test_one_router_may_be_included_twice_with_limits_of_each(is_installed: bool) -> None:
    app, limits, router = FastAPI(), RateLimits(), APIRouter()

    @router.get("/x")
    def show() -> None: ...

    for count in (1, 2):
        app.include_router(router, prefix=f"/v{count}", dependencies=[Depends(limits.limit(f"{count}/minute"))])
    if is_installed:
        limits.install(app)
    assert await statuses(app, "/v1/x", "/v1/x", "/v2/x", "/v2/x", "/v2/x") == [200, 429, 200, 200, 429]


async def test_methods_that_a_client_invents_are_not_remembered() -> None:
    limits = RateLimits()

    @limits.limit("9000/minute")
    class Items(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    app = Starlette(routes=[Route("/", Items)])
    limits.install(app)
    for place in range(50):
        assert (await fetch(app, f"M{place}", "/")).status == 405
    assert await statuses(app, "/") == [200]
    table = limits.applications[0].read_routes()
    found = {id(table.find("http", f"M{place}", "/")) for place in range(50)}
    assert len(found) == 1
