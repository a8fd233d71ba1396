"""FastAPI and Starlette: middleware that copies what it is given, and routes that decide for themselves."""

from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Mount

from ratebound.policy import Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.web.drivers import connect, fetch
from tests.web.test_fastapi import remaining, statuses

pytestmark = pytest.mark.anyio


def copies_scope(app: Any) -> Any:
    async def copying(scope: Any, receive: Any, send: Any) -> None:
        await app(dict(scope), receive, send)

    return copying


def copies_state(app: Any) -> Any:
    async def copying(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {**scope.get("state", {}), "more": 1}}, receive, send)

    return copying


def replaces_state(app: Any) -> Any:
    async def replacing(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {**scope.get("state", {})}
        await app(scope, receive, send)

    return replacing


COPYING = [copies_scope, copies_state, replaces_state]
EARLY = Policy(rules=[Rule("early", "50/minute", stage="early"), Rule("late", "3/minute")])


@pytest.mark.parametrize("policy", ["3/minute", EARLY], ids=["late", "early"])
@pytest.mark.parametrize("middleware", COPYING)
async def test_a_request_is_charged_once_whatever_middleware_copies(middleware: Any, policy: Any) -> None:
    app = FastAPI()
    RateLimits(policy, app=app)
    app.add_middleware(middleware)

    @app.get("/x")
    async def endpoint() -> None: ...

    first = await fetch(app, "GET", "/x")
    assert 2 in remaining(first).values()
    assert await statuses(app, "/x", "/x", "/x") == [200, 200, 429]


@pytest.mark.parametrize("middleware", COPYING)
async def test_a_connection_is_charged_once_whatever_middleware_copies(middleware: Any) -> None:
    app = FastAPI()
    RateLimits("3/minute", app=app)
    app.add_middleware(middleware)

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    kinds = [(await connect(app))[0]["type"] for _ in range(4)]
    assert kinds == ["websocket.accept"] * 3 + ["websocket.close"]


@pytest.mark.parametrize("middleware", COPYING)
async def test_a_result_is_charged_whatever_middleware_copies(middleware: Any) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    app.add_middleware(middleware)

    @app.get("/x")
    @limits.limit("2/minute", charge="failure")
    async def endpoint() -> None: ...

    assert await statuses(app, *["/x"] * 5) == [200] * 5


async def test_each_gate_settles_its_own() -> None:
    app = FastAPI()
    limits = RateLimits("5/minute", app=app)
    app.add_middleware(
        RateLimitMiddleware,
        policy=Policy(rules=[Rule("around", "2/minute")]),
        charge={"around": "failure"},
    )

    @app.get("/x")
    @limits.limit("2/minute", charge="failure", name="own")
    async def endpoint() -> None: ...

    assert await statuses(app, *["/x"] * 5) == [200] * 5
    assert remaining(await fetch(app, "GET", "/x")) == {"own/minute": 2}


class Tokens(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        if "authorization" not in conn.headers:
            raise AuthenticationError("no token")
        return AuthCredentials(), SimpleUser(conn.headers["authorization"])


async def test_a_user_who_cannot_be_told_is_nobody_where_middleware_answers_by_itself() -> None:
    app = FastAPI()
    RateLimits("2/minute", app=app, user=lambda scope: scope["user"].display_name)
    app.add_middleware(AuthenticationMiddleware, backend=Tokens())
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.get("/x")
    async def endpoint() -> None: ...

    preflight = {"origin": "http://a.test", "access-control-request-method": "GET"}
    assert (await fetch(app, "OPTIONS", "/x", preflight)).status == 200
    assert await statuses(app, "/x", "/x", "/x") == [400, 400, 429]
    assert await statuses(app, "/x", headers={"authorization": "ada"}) == [200]


async def test_a_user_that_raises_raises_for_the_application() -> None:
    app = FastAPI()
    RateLimits("2/minute", app=app, user=lambda scope: scope["user"].display_name)

    @app.get("/x")
    async def endpoint() -> None: ...

    assert (await fetch(app, "GET", "/x")).status == 500


class Versioned(APIRoute):
    """One of several for the same path: the header says which."""

    def matches(self, scope: Any) -> Any:
        match, found = super().matches(scope)
        version = dict(scope["headers"]).get(b"x-version", b"1").decode()
        return (match, found) if self.endpoint.__name__.endswith(version) else (Match.NONE, {})


@pytest.mark.parametrize("is_included", [True, False])
async def test_a_route_that_decides_for_itself_has_its_own_limit(is_included: bool) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    router = APIRouter(route_class=Versioned) if is_included else app.router
    router.route_class = Versioned

    @router.get("/x")
    @limits.limit("1/minute", name="old")
    async def version1() -> None: ...

    @router.get("/x", dependencies=[Depends(limits.limit("3/minute", name="new"))])
    async def version2() -> None: ...

    if is_included:
        app.include_router(router)
    assert await statuses(app, *["/x"] * 4, headers={"x-version": "2"}) == [200] * 3 + [429]
    assert await statuses(app, "/x", "/x") == [200, 429]


async def test_a_mount_that_decides_for_itself_has_the_limits_of_what_is_below() -> None:
    class Half(Mount):
        def matches(self, scope: Any) -> Any:
            is_ours = (b"x-half", self.name.encode()) in scope["headers"]  # type: ignore[union-attr]
            return super().matches(scope) if is_ours else (Match.NONE, {})

    app = FastAPI()
    limits = RateLimits(app=app)
    for name, text in (("a", "1/minute"), ("b", "2/minute")):
        below = FastAPI()

        @below.get("/x")
        @limits.limit(text, name=name)
        async def endpoint() -> None: ...

        app.router.routes.append(Half("/s", app=below, name=name))
    assert await statuses(app, *["/s/x"] * 3, headers={"x-half": "b"}) == [200, 200, 429]
    assert await statuses(app, "/s/x", "/s/x", headers={"x-half": "a"}) == [200, 429]


async def test_what_clients_write_is_remembered_only_if_it_is_short() -> None:
    app, below = FastAPI(), FastAPI()
    limits = RateLimits("1000/minute", app=app)
    app.mount("/s", below)

    @below.get("/{rest:path}")
    async def endpoint(rest: str) -> None: ...

    for number in range(20):
        assert (await fetch(app, "GET", f"/s/{number}{'a' * 1000}")).status == 200
    table = limits.applications[0]._table
    assert table is not None
    assert not table.known
    await fetch(app, "GET", "/s/a")
    assert len(table.known) == 1
