"""The peers themselves: a test that fails here has been mended there, and its row is out of date."""

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import flask
import pytest
import redis
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.peers.sites import flask_statuses, statuses
from tests.servers import Server
from tests.web.drivers import exchange, fetch, http_scope

pytestmark = pytest.mark.anyio

F = TypeVar("F")


def typed(decorate: Any) -> Callable[[F], F]:
    """Theirs have no types."""
    return decorate  # type: ignore[no-any-return]


def slow_app(**options: Any) -> tuple[FastAPI, Any]:
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    app = FastAPI()
    limiter = app.state.limiter = Limiter(key_func=get_remote_address, **options)
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]
    return app, limiter


def limiter_app(key: Callable[[], str] | None = None, **options: Any) -> tuple[flask.Flask, Any]:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = flask.Flask("tests.peer")
    return app, Limiter(key or get_remote_address, app=app, **{"storage_uri": "memory://", **options})


async def test_their_row_13_slowapi_each_id_has_a_bucket_and_application_limits_are_skipped() -> None:
    from slowapi.middleware import SlowAPIMiddleware

    app, limiter = slow_app(application_limits=["1/minute"])
    app.add_middleware(SlowAPIMiddleware)

    @app.get("/u/{i}")
    @typed(limiter.limit("2/minute"))
    async def one(request: Request, i: int) -> None: ...

    assert [(await fetch(app, "GET", f"/u/{n}")).status for n in range(6)] == [200] * 6


async def test_their_row_14_a_bad_limit_leaves_the_route_unlimited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    app, limiter = slow_app()

    @app.get("/")
    @typed(limiter.limit("5 per fortnight"))
    async def home(request: Request) -> None: ...

    assert await statuses(app, "/", 20) == [200] * 20
    flask_app, flask_limiter = limiter_app()

    @flask_app.get("/")
    @typed(flask_limiter.limit("5 per fortnight"))
    def flask_home() -> str:
        return ""

    assert flask_statuses(flask_app, "/", 20) == [200] * 20


async def test_their_row_15_slowapi_a_stream_starts_once_for_each_part() -> None:
    from slowapi.middleware import SlowAPIASGIMiddleware

    async def parts() -> Any:
        for _ in range(3):
            yield "part"

    app, _ = slow_app(default_limits=["5/minute"], headers_enabled=True)
    app.add_middleware(SlowAPIASGIMiddleware)

    @app.get("/")
    async def home() -> StreamingResponse:
        return StreamingResponse(parts())

    sent = await exchange(app, http_scope("GET", "/"))
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) > 1
    told = {name.decode(): value.decode() for name, value in starts[0]["headers"]}
    assert not told["x-ratelimit-reset"].isdecimal()
    assert "retry-after" in told


def test_their_row_16_flask_limiter_forty_failed_logins_at_once_all_pass() -> None:
    app, limiter = limiter_app()
    gate = threading.Barrier(40)

    @app.get("/")
    @typed(limiter.limit("5/minute", deduct_when=lambda response: response.status_code == 401))
    def login() -> Any:
        gate.wait(30)  # all of them are let in before the first has failed
        return "", 401

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(app.test_client().get("/").status_code)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [401] * 40


def test_their_row_17_flask_limiter_refused_requests_burn_the_other_limit() -> None:
    app, limiter = limiter_app(headers_enabled=True)

    @app.get("/")
    @typed(limiter.limit("100/minute; 2/hour"))
    def home() -> str:
        return ""

    client = app.test_client()
    first = client.get("/").headers
    assert (first["X-RateLimit-Limit"], first["X-RateLimit-Remaining"]) == ("100", "99"), "not the one that will bite"
    assert flask_statuses(app, "/", 4) == [200, 429, 429, 429]
    minute = next(key for key in limiter.storage.storage if "100/1/minute" in key)
    assert limiter.storage.get(minute) == 5


def test_their_row_18_flask_limiter_two_limits_with_headers_are_four_trips(
    redis_url_server: Server, look: redis.Redis
) -> None:
    app, limiter = limiter_app(headers_enabled=True, storage_uri=redis_url_server.url, key_prefix="their-row18")

    @app.get("/")
    @typed(limiter.limit("100/minute; 1000/hour"))
    def home() -> str:
        return ""

    assert flask_statuses(app, "/", 1) == [200]
    look.config_resetstat()
    assert flask_statuses(app, "/", 1) == [200]
    stats: Any = look.info("commandstats")
    # Two scripts, then what remains and when it ends; what the scripts call is no trip.
    assert stats["cmdstat_evalsha"]["calls"] == 2
    assert {"cmdstat_get", "cmdstat_ttl"} <= stats.keys()
    limiter.storage.storage.close()


async def test_their_mounts_and_included_routers_are_exempt_in_slowapi() -> None:
    from slowapi.middleware import SlowAPIMiddleware

    async def inner(request: Any) -> Response:
        return PlainTextResponse("inner")

    app, _ = slow_app(default_limits=["1/minute"])
    app.add_middleware(SlowAPIMiddleware)
    app.mount("/mounted", Starlette(routes=[Route("/inner", inner)]))
    router = APIRouter()

    @router.get("/included")
    async def included() -> None: ...

    app.include_router(router)
    assert await statuses(app, "/mounted/inner", 3) == [200] * 3
    assert await statuses(app, "/included", 3) == [200] * 3


def test_their_empty_key_is_no_limit_in_flask_limiter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    app, limiter = limiter_app(lambda: "")

    @app.get("/")
    @typed(limiter.limit("1/minute"))
    def home() -> str:
        return ""

    assert flask_statuses(app, "/", 5) == [200] * 5


async def test_their_theme_10_slowapi_a_client_chooses_its_address() -> None:
    from slowapi.util import get_ipaddr

    app, limiter = slow_app()

    @app.get("/")
    @typed(limiter.limit("1/minute", key_func=get_ipaddr))
    async def home(request: Request) -> None: ...

    forged = [await fetch(app, "GET", "/", {"x_forwarded_for": f"198.51.100.{n}"}) for n in range(5)]
    assert [answer.status for answer in forged] == [200] * 5


async def test_their_theme_3_slowapi_an_endpoint_without_a_request_cannot_be_limited() -> None:
    _, limiter = slow_app()
    with pytest.raises(Exception, match='No "request" or "websocket" argument'):

        @typed(limiter.limit("1/minute"))
        async def home() -> None: ...
