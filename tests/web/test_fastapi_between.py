"""FastAPI and Starlette: what middleware answers by itself is counted, and told of, like any answer."""

from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from ratebound.policy import Match, Policy, Rule
from ratebound.policy.model.rule import Stage
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.web.fastapi import RateLimitExceeded, RateLimits
from tests.web.drivers import CountingStorage, connect, exchange, fetch, http_scope
from tests.web.test_fastapi import field, remaining, statuses

pytestmark = pytest.mark.anyio


class Tokens(AuthenticationBackend):
    """One token is good."""

    async def authenticate(self, conn: Any) -> Any:
        if conn.headers.get("x-token") != "good":
            raise AuthenticationError("bad token")
        return AuthCredentials(), SimpleUser("ann")


def guarded(*routes: Route) -> Starlette:
    return Starlette(routes=routes, middleware=[Middleware(AuthenticationMiddleware, backend=Tokens())])


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


async def test_bad_tokens_are_counted_and_refused() -> None:
    app = guarded(Route("/", home))
    RateLimits("2/minute", app=app)
    answers = [await fetch(app, "GET", "/") for _ in range(4)]
    assert [answer.status for answer in answers] == [400, 400, 429, 429]
    assert [remaining(answer) for answer in answers[:2]] == [{"default/minute": 1}, {"default/minute": 0}]
    assert field(answers[2], "retry-after") == "60"
    assert b"bad token" not in answers[2].body
    # Who is known has a quota of their own, and those with bad tokens have not spent it.
    good = {"x-token": "good"}
    assert await statuses(app, "/", "/", "/", headers=good) == [200, 200, 429]


async def test_a_guess_cannot_be_told_from_a_refusal() -> None:
    app = guarded(Route("/", home))
    RateLimits("2/minute", app=app, by="address")
    assert await statuses(app, "/", "/") == [400, 400]
    wrong, right = await fetch(app, "GET", "/"), await fetch(app, "GET", "/", {"x-token": "good"})
    assert (wrong.status, right.status) == (429, 429)


async def test_what_the_endpoint_declares_and_where_it_is_hold_there_too() -> None:
    limits = RateLimits(Policy(rules=[Rule("items", "5/minute", match=Match(paths=["/items/{id}"]))]))

    @limits.limit("2/minute", name="own")
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse("item")

    app = guarded(Route("/items/{id}", item))
    limits.install(app)
    answers = [await fetch(app, "GET", f"/items/{place}") for place in range(3)]
    assert [answer.status for answer in answers] == [400, 400, 429]
    assert remaining(answers[0]) == {"own/minute": 1, "items/minute": 4}


async def test_early_rules_are_not_asked_twice() -> None:
    app = guarded(Route("/", home))
    storage = CountingStorage(AsyncMemoryStorage())
    rules = [Rule("early", "9/minute", stage="early"), Rule("late", "1/minute")]
    RateLimits(Policy(rules=rules), app=app, storage=storage)
    assert remaining(await fetch(app, "GET", "/")) == {"early/minute": 8, "late/minute": 0}
    assert storage.calls == ["spend", "spend"]
    assert await statuses(app, "/") == [429]


async def test_an_answer_of_the_application_is_asked_for_once() -> None:
    app = guarded(Route("/", home))
    storage = CountingStorage(AsyncMemoryStorage())
    RateLimits("5/minute", app=app, storage=storage)
    good = {"x-token": "good"}
    assert remaining(await fetch(app, "GET", "/", good)) == {"default/minute": 4}
    assert (await fetch(app, "GET", "/nowhere", good)).status == 404
    assert storage.calls == ["spend", "spend"]


async def test_the_words_of_a_refusal_are_the_applications_own_there_too() -> None:
    app = FastAPI()
    RateLimits("1/minute", app=app)

    @app.middleware("http")
    async def closed(request: Request, call_next: Any) -> PlainTextResponse:
        return PlainTextResponse("no", 401)

    @app.exception_handler(429)
    def too_many(request: Request, error: RateLimitExceeded) -> JSONResponse:
        return JSONResponse({"slow": "down"}, 429)

    assert await statuses(app, "/") == [401]
    refused = await exchange(app, http_scope("GET", "/"))
    assert [message["type"] for message in refused] == ["http.response.start", "http.response.body"]
    assert (refused[0]["status"], refused[1]["body"]) == (429, b'{"slow":"down"}')


async def test_a_charge_by_result_sees_the_answer_of_the_middleware() -> None:
    app = FastAPI()
    RateLimits("2/minute", app=app, charge={"default": "failure"})

    class Answering(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            return PlainTextResponse("", int(request.headers["x-status"]))

    app.add_middleware(Answering)
    for _ in range(4):
        assert (await fetch(app, "GET", "/", {"x-status": "204"})).status == 204
    answers = [await fetch(app, "GET", "/", {"x-status": "401"}) for _ in range(3)]
    assert [answer.status for answer in answers] == [401, 401, 429]


async def test_a_preflight_that_middleware_answers_costs_nothing() -> None:
    app = FastAPI()
    RateLimits("1/minute", app=app)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    asked = {"origin": "https://example.com", "access-control-request-method": "GET"}
    for _ in range(3):
        assert (await fetch(app, "OPTIONS", "/", asked)).status == 200
    assert await statuses(app, "/", "/") == [404, 429]


async def test_a_script_in_a_browser_can_read_a_refusal_that_stands_in_for_another_answer() -> None:
    app = guarded(Route("/", home))
    RateLimits("1/minute", app=app)
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.com"], expose_headers=["X-Other"])
    answers = [await fetch(app, "GET", "/", {"origin": "https://example.com"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [400, 429]
    for answer in answers:
        assert field(answer, "access-control-allow-origin") == "https://example.com"
        exposed = [value for name, value in answer.headers if name == "access-control-expose-headers"]
        assert "RateLimit" in ", ".join(exposed)
        assert "X-Other" in exposed


async def test_an_error_in_middleware_is_counted() -> None:
    app = FastAPI()
    RateLimits("1/minute", app=app)

    @app.middleware("http")
    async def broken(request: Request, call_next: Any) -> None:
        raise RuntimeError("as asked")

    assert await statuses(app, "/", "/") == [500, 429]


async def test_connections_that_middleware_refuses_are_counted() -> None:
    app = FastAPI()
    RateLimits("2/minute", app=app, by="address")
    app.add_middleware(AuthenticationMiddleware, backend=Tokens())

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()

    denying: dict[str, Any] = {"websocket.http.response": {}}
    for _ in range(2):
        (closed,) = await connect(app, extensions=denying)
        assert (closed["type"], closed["code"]) == ("websocket.close", 1000)
    start, _ = await connect(app, extensions=denying)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    (closed,) = await connect(app)
    assert closed["code"] == 1008
    (closed,) = await connect(app, headers={"x-token": "good"})
    assert closed["code"] == 1008
    sent = await connect(app, headers={"x-token": "good"}, peer="192.0.2.9")
    assert [message["type"] for message in sent] == ["websocket.accept"]


@pytest.mark.parametrize("stage", ["early", "late"])
async def test_every_stage_is_refused_in_the_applications_own_words(stage: Stage) -> None:
    app = FastAPI()
    RateLimits(Policy(rules=[Rule("all", "1/minute", stage=stage)]), app=app)

    @app.exception_handler(429)
    async def too_many(request: Request, error: RateLimitExceeded) -> JSONResponse:
        return JSONResponse({"wait": error.rejected.retry_after}, 429)

    refused = [await fetch(app, "GET", "/") for _ in range(2)][1]
    assert (refused.status, refused.body[:8]) == (429, b'{"wait":')
    assert (field(refused, "content-type"), remaining(refused)) == ("application/json", {"all/minute": 0})
