"""What functions of limits see of a request, in every adapter: the client's address, the parameters of its route, its
session, its state and the framework's own request; each read when it is asked for."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import flask
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from ratebound.policy import Gate, Policy, RequestView, Rule, Source
from ratebound.web import AsyncWebGate, RouteLimit
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.web.applications import ADAPTERS
from tests.web.drivers import connect, fetch
from tests.web.flask_site import Site

pytestmark = pytest.mark.anyio

PROXIED = {"x-forwarded-for": "198.51.100.7"}


@pytest.fixture(params=ADAPTERS.values(), ids=list(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


class Seen:
    """A function of limits that notes what it sees."""

    def __init__(self, look: Callable[[RequestView], Any]) -> None:
        self.look = look
        self.values: list[Any] = []

    def __call__(self, view: RequestView) -> str:
        self.values.append(self.look(view))
        return "everybody"


def policy(call: Callable[[RequestView], Any], **more: Any) -> Policy:
    return Policy(rules=[Rule("seen", "5/minute", by="seen")], identities={"seen": Source(call=call)}, **more)


def test_the_address_is_the_one_that_rules_count_by(adapter: Callable[..., Any]) -> None:
    for trusted, address in ((["127.0.0.1"], "198.51.100.7"), ([], "127.0.0.1")):
        seen = Seen(lambda view: view.address)
        with adapter(policy=policy(seen, trusted=trusted)) as send:
            assert send("GET", "/", PROXIED).status == 200
        assert seen.values == [address]


def test_functions_of_early_rules_see_the_address_too(adapter: Callable[..., Any]) -> None:
    seen = Seen(lambda view: (view.address, view.session))
    rules = [Rule("early", "5/minute", by=seen, stage="early"), Rule("late", "5/minute", by="address")]
    with adapter(policy=Policy(rules=rules, trusted=["127.0.0.1"])) as send:
        assert send("GET", "/", PROXIED).status == 200
    assert [address for address, _ in seen.values] == ["198.51.100.7"]


ROUTED = {"starlette": "7", "fastapi": "7", "flask": 7, "django wsgi": 7, "django asgi": 7}


@pytest.mark.parametrize("name", ADAPTERS)
def test_path_parameters_are_those_of_the_route(name: str) -> None:
    seen = Seen(lambda view: dict(view.path_params))
    with ADAPTERS[name](policy=policy(seen)) as send:
        assert send("GET", "/users/7", {}).status == 200
        assert send("GET", "/nowhere", {}).status == 404
    (params,), nowhere = (list(seen.values[0].values()) or [None],), seen.values[1]
    assert (params[0], nowhere) == (ROUTED.get(name), {})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("asgi", "dict"),
        ("starlette", "Request"),
        ("fastapi", "Request"),
        ("wsgi", "dict"),
        ("flask", "Request"),
        ("django wsgi", "WSGIRequest"),
        ("django asgi", "ASGIRequest"),
    ],
)
def test_the_request_is_the_framework_s_own(name: str, kind: str) -> None:
    seen = Seen(lambda view: (type(view.request).__name__, view.state is not None, view.session))
    with ADAPTERS[name](policy=policy(seen)) as send:
        assert send("GET", "/", {}).status == 200
    found, has_state, session = seen.values[0]
    assert (found, has_state or name == "asgi") == (kind, True)
    assert not session


def test_a_view_made_by_hand_has_what_it_was_given() -> None:
    view = RequestView("GET", "/", peer="192.0.2.1", path_params={"id": 7}, session={"a": 1}, state="s", request="r")
    assert (view.path_params, view.session, view.state, view.request) == ({"id": 7}, {"a": 1}, "s", "r")
    bare = RequestView("GET", "/", peer="192.0.2.1")
    assert (bare.path_params, bare.session, bare.state, bare.request, bare.address) == (
        {},
        None,
        None,
        None,
        "192.0.2.1",
    )
    seen = Seen(lambda view: view.address)
    headers = [("x-forwarded-for", "198.51.100.7")]
    Gate(policy(seen, trusted=["192.0.2.1"])).decide(RequestView("GET", "/", peer="192.0.2.1", headers=headers))
    assert seen.values == ["198.51.100.7"]


# Starlette and FastAPI.


async def text(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def test_a_key_may_be_a_path_parameter_with_its_convertor_below_mounts_and_included_routers() -> None:
    seen = Seen(lambda view: dict(view.path_params))
    app = FastAPI()
    limits = RateLimits(app=app, policy=policy(seen))
    router = APIRouter()

    @router.get("/teams/{team:int}/{name}")
    @limits.limit("9/minute", key=seen)
    def team(name: str) -> None: ...

    app.include_router(router, prefix="/in/{place}")
    app.router.routes.append(Mount("/at/{shop}", routes=[Route("/{item:int}", text), Route("/{item}", text)]))
    for path in ("/in/here/teams/7/red", "/at/main/42", "/at/main/hat"):
        assert (await fetch(app, "GET", path)).status == 200, path
    assert [seen.values[0], *seen.values[-2:]] == [
        {"place": "here", "team": 7, "name": "red"},
        {"shop": "main", "item": 42},
        {"shop": "main", "item": "hat"},
    ]


async def test_a_mounted_application_with_limits_of_its_own_sees_all_parameters() -> None:
    seen = Seen(lambda view: dict(view.path_params))
    inner = Starlette(routes=[Route("/{item}", text)])
    RateLimits(app=inner, policy=policy(seen))
    await fetch(Starlette(routes=[Mount("/at/{shop}", inner)]), "GET", "/at/main/hat")
    assert seen.values == [{"shop": "main", "item": "hat"}]


async def test_path_parameters_are_the_router_s_own_where_a_limit_is_asked_late() -> None:
    seen = Seen(lambda view: dict(view.path_params))
    app = FastAPI()
    limits = RateLimits(app=app)

    @limits.limit("5/minute", key=seen)
    async def part() -> None: ...

    def current(request: Request) -> str:
        return "ann"

    @app.get("/a/{id}")
    async def endpoint(id: str) -> None:
        await part()

    @app.get("/b/{id}", dependencies=[Depends(limits.limit("5/minute", key=seen, user=current))])
    async def depending(id: str) -> None: ...

    outer = Starlette(routes=[Mount("/x/{y}", app)])
    assert [(await fetch(outer, "GET", path)).status for path in ("/x/1/a/7", "/x/2/b/8")] == [200, 200]
    assert seen.values == [{"y": "1", "id": "7"}, {"y": "2", "id": "8"}]


async def text_app(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("ok")(scope, receive, send)


class Noting:
    """A middleware that keeps something for its request."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            Request(scope).state.tenant = "acme"
            scope["session"]["cart"] = "full"
        await self.app(scope, receive, send)


async def test_state_and_session_are_those_that_middleware_has_filled() -> None:
    seen = Seen(lambda view: (view.state.tenant, view.session["cart"], view.request.state.tenant))
    layers = [Middleware(SessionMiddleware, secret_key="for tests"), Middleware(Noting)]
    app = Starlette(routes=[Route("/", text)], middleware=layers)
    RateLimits(app=app, policy=policy(seen))
    assert (await fetch(app, "GET", "/")).status == 200
    assert seen.values == [("acme", "full", "acme")]
    pure = Seen(lambda view: (view.state["tenant"], view.session["cart"]))
    around: Any = Noting(RateLimitMiddleware(text_app, policy(pure)))
    inside = SessionMiddleware(around, secret_key="for tests")
    assert (await fetch(inside, "GET", "/")).status == 200
    assert pure.values == [("acme", "full")]


async def test_messages_of_a_connection_see_its_path_parameters() -> None:
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        async for message in socket.iter_text():
            await socket.send_text(message)

    seen = Seen(lambda view: (view.path, dict(view.path_params), view.address))
    app = Starlette(routes=[Mount("/in/{place}", routes=[WebSocketRoute("/{room}", echo)])])
    RateLimits(app=app, messages=RouteLimit(limits="5/minute", key=seen, name="messages"))
    await connect(app, "/in/here/blue", ["hello"])
    assert seen.values == [("/in/here/blue", {"place": "here", "room": "blue"}, "127.0.0.1")]


async def test_litestar_has_the_parameters_that_its_router_has_found() -> None:
    @get("/users/{id:int}")
    async def user() -> None: ...

    seen = Seen(lambda view: dict(view.path_params))
    inside = DefineMiddleware(RateLimitMiddleware, gate=AsyncWebGate(policy(seen)))
    app = Litestar([user], middleware=[inside], openapi_config=None, logging_config=None)
    assert (await fetch(app, "GET", "/users/7")).status == 200
    assert seen.values == [{"id": 7}]


# Flask.


def test_flask_has_its_session_its_globals_and_its_view_arguments() -> None:
    seen = Seen(lambda view: (view.session.get("cart"), view.state.tenant, view.path_params, view.request.path))
    app = flask.Flask("shop")
    app.secret_key = "for tests"

    @app.before_request
    def note() -> None:
        flask.g.tenant = "acme"
        flask.session["cart"] = "full"

    site = Site(app=app)
    site.view("/users/<int:number>", site.limiter.limit("5/minute", key=seen))
    assert site.get("/users/7").status_code == 200
    assert seen.values == [("full", "acme", {"number": 7}, "/users/7")]


def test_the_extension_s_own_functions_see_the_address() -> None:
    user, exempt = Seen(lambda view: view.address), Seen(lambda view: view.address)
    site = Site("5/minute", trusted=["127.0.0.1"], user=user, exempt_when=lambda view: exempt(view) == "")
    site.view("/")
    assert site.get("/", **PROXIED).status_code == 200
    assert user.values == exempt.values == ["198.51.100.7"]


# Django.


def test_functions_of_django_have_the_request_and_the_client_s_address(kind: str, middleware: list[str]) -> None:
    from django.urls import path

    from ratebound.web.django import client_address, limit
    from tests.web.django_running import running, view_for

    seen: list[Any] = []

    def key(request: Any) -> str:
        seen.append((client_address(request), request.resolver_match.kwargs))
        return client_address(request)

    view = limit("1/minute", key=key)(view_for(kind, lambda request: client_address(request)))
    settings = {"trusted": ["127.0.0.1"]}
    with running(kind, path("<int:id>", view), settings=settings, middleware=middleware) as site:
        answers = [site.get("/7", **{"x-forwarded-for": f"198.51.100.{n}"}) for n in (7, 7, 8)]
    assert [(one.status, one.body[:12]) for one in answers if one.status == 200] == [
        (200, b"198.51.100.7"),
        (200, b"198.51.100.8"),
    ]
    assert seen[0] == ("198.51.100.7", {"id": 7})


@pytest.mark.parametrize("key", ["address", Seen(lambda view: (view.request, view.session, view.state))])
def test_a_request_of_django_is_not_kept_by_its_view(key: Any) -> None:
    from django.urls import path

    from tests.web.django_running import running, view_for

    kept: list[weakref.ref[Any]] = []
    looked: list[RequestView] = []

    def answer(request: Any) -> str:
        kept.append(weakref.ref(request))
        looked.append(request._ratebound.view)
        return "ok"

    rules = [Rule("all", "5/minute", by="address" if key == "address" else lambda view: key(view) and None)]
    with running("wsgi", path("", view_for("wsgi", answer)), settings=Policy(rules=rules)) as site:
        gc.disable()
        try:
            assert site.get("/").status == 200
            assert key == "address" or key.values.pop()[0] is kept[0]()
            assert [one() for one in kept] == [None]
        finally:
            gc.enable()
    assert looked[0].method == "GET"
