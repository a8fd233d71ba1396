"""What users of peers' middleware ask for, by theme, and what two proxies do not do: our adapters must."""

import threading
from collections.abc import Callable
from typing import Any

import http_sf
import pytest
import redis
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from ratebound import MemoryStorage
from ratebound.policy import Policy, Rule
from ratebound.storage import workers
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import FakeClock
from ratebound.web import Charge, wsgi
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.peers.sites import SLOW, fields, flask_site, flask_statuses, hello, hello_wsgi, ok, statuses
from tests.servers import Server
from tests.web.applications import litestar_app, quart_app
from tests.web.drivers import environ_of, fetch, wsgi_fetch
from tests.web.suite import Answer

pytestmark = pytest.mark.anyio


def test_theme_2_workers_on_memory_are_told_of_in_flask_and_django(
    caplog: pytest.LogCaptureFixture, monkeypatch: Any, django_get: Callable[..., Answer]
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    for begin in (
        lambda: flask_site("5/minute"),
        lambda: wsgi.RateLimitMiddleware(hello_wsgi, "5/minute"),
        lambda: django_get({"policy": "5/minute"}, {"/": ok}, "/"),
    ):
        monkeypatch.setattr(workers, "_told", False)
        monkeypatch.setattr(workers, "_asked_in", 0)
        caplog.clear()
        begin()
        assert "each of 4 workers counts separately" in caplog.text


async def test_theme_4_a_fallback_does_not_weaken_a_login() -> None:
    app = FastAPI()
    limits = RateLimits("4/minute", app=app, storage="redis://127.0.0.1:1/0", deadline=0.5, workers=2)

    @app.get("/login")
    @limits.limit("5/minute", failure="closed")
    async def login() -> None: ...

    @app.get("/")
    async def home() -> None: ...

    assert await statuses(app, "/", 3) == [200, 200, 429]  # its share of the limit
    refused = await fetch(app, "GET", "/login")
    assert (refused.status, len(fields(refused, "retry-after"))) == (503, 1)
    await limits.gate.close()


async def test_theme_5_headers_are_sent_twice_by_middleware_and_decorator() -> None:
    app = FastAPI()
    limits = RateLimits(Policy(rules=[Rule("all", "100/minute")], headers="x-ratelimit"), app=app)

    @app.get("/", dependencies=[Depends(limits.limit("50/minute"))])
    @limits.limit("20/minute")
    async def home() -> Response:
        return PlainTextResponse("", headers={"X-RateLimit-Limit": "7"})

    outer = RateLimitMiddleware(app, "1000/minute", headers="x-ratelimit")
    answer = await fetch(outer, "GET", "/")
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"):
        assert len(fields(answer, name)) == 1
    assert fields(answer, "x-ratelimit-limit") == ["20"]


def test_theme_5_a_wait_is_told_too_short_then_0_then_negative() -> None:
    clock = FakeClock(999)
    storage = MemoryStorage(clock=clock)
    app, _ = flask_site("1/10 seconds", headers={"styles": "x-ratelimit", "reset": "delta"}, storage=storage)
    client = app.test_client()
    assert "Retry-After" not in client.get("/").headers
    for passed in range(100):
        told = client.get("/").headers
        left = 10 - passed * 0.1
        assert left <= int(told["Retry-After"]) < left + 1
        assert told["X-RateLimit-Reset"] == told["Retry-After"]
        clock.advance(0.1)
    assert client.get("/").status_code == 404  # nothing is there, and it may be asked for again


async def test_theme_6_default_limits_need_a_middleware_and_miss_included_routers() -> None:
    router = APIRouter()

    @router.get("/included")
    async def included() -> None: ...

    app = FastAPI()
    RateLimits("2/minute", app=app)  # text, and no list
    app.include_router(router)
    assert [await statuses(app, "/included", 2), await statuses(app, "/nowhere", 1)] == [[200, 200], [429]]


async def test_theme_6_default_and_own_limits_are_counted_apart() -> None:
    app = FastAPI()
    limits = RateLimits("3/minute", app=app)

    @app.get("/")
    async def root() -> None: ...

    @app.get("/home")
    async def home() -> None: ...

    @app.get("/test")
    @limits.limit("5/minute")
    async def own() -> None: ...

    assert [(await fetch(app, "GET", where)).status for where in ("/", "/home", "/", "/home")] == [200] * 3 + [429]
    assert await statuses(app, "/test", 6) == [200] * 5 + [429]  # more than the default, as it says


@pytest.mark.parametrize("is_async", [True, False])
async def test_theme_6_a_limit_above_the_decorator_of_the_route_is_none(is_async: bool) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    if is_async:

        @limits.limit("1/minute")
        @app.get("/")
        async def home() -> None: ...

    else:

        @limits.limit("1/minute")
        @app.get("/")
        def plain() -> None: ...

    assert await statuses(app, "/", 2) == [200, 429]


@pytest.mark.parametrize("function", [lambda key: "1/minute", lambda: "1/minute"])
async def test_theme_6_a_function_may_take_the_request_or_nothing(function: Callable[..., str]) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit(function, otherwise="2/minute")
    async def home() -> None: ...

    assert await statuses(app, "/", 3) == [200, 429, 429]


def test_theme_6_a_function_with_the_wrong_arguments_raises_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="is called with one argument"):
        RateLimits(app=FastAPI()).limit(lambda view, key: "1/minute", otherwise="2/minute")  # type: ignore[arg-type]


def test_theme_11_threads_on_memory_are_counted_to_the_unit_and_nothing_raises() -> None:
    app = wsgi.RateLimitMiddleware(hello_wsgi, "100/hour")
    found: list[int] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        found.extend(wsgi_fetch(app, environ_of("GET", "/")).status for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found.count(200), found.count(429)) == (100, 100)


async def test_theme_12_a_moving_window_of_many_requests_is_a_list_of_all(
    redis_url_server: Server, look: redis.Redis
) -> None:
    url = f"{redis_url_server.url}?{SLOW}&prefix=theme12-"
    app = RateLimitMiddleware(hello, "70000/day", storage=url, deadline=5.0)

    async def size_after(times: int) -> int:
        assert set(await statuses(app, "/", times)) == {200}
        return sum(len(look.execute_command("DUMP", name, NEVER_DECODE=True)) for name in look.scan_iter("theme12-*"))

    few, many = await size_after(3), await size_after(300)
    assert 0 < many <= few + 16
    await app.gate.close()


def test_theme_13_django_ratelimit_one_an_hour_lets_two_through(django_get: Callable[..., Answer]) -> None:
    from ratebound.web.django import limit

    clock = FakeClock(3_599_000_000)  # a second before the hour is full
    views, settings = {"/": limit("1/hour")(ok)}, {"storage": MemoryStorage(clock=clock)}
    assert django_get(settings, views, "/").status == 200
    for _ in range(60):
        clock.advance(59)
        assert django_get(settings, views, "/").status == 429
    clock.advance(60)
    assert django_get(settings, views, "/").status == 200


@pytest.mark.parametrize(("charge", "good", "bad"), [("failure", 5, 2), ("success", 2, 5), (None, 2, 2)])
def test_theme_15_flask_limiter_what_fails_or_succeeds_cannot_be_left_uncounted(
    charge: Charge | None, good: int, bad: int
) -> None:
    for status, passes in ((200, good), (401, bad)):
        app, limiter = flask_site()

        @app.get("/")
        @limiter.limit("2/minute", charge=charge)
        def home(status: int = status) -> Any:
            return "", status

        assert flask_statuses(app, "/", 5).count(status) == passes


async def test_theme_17_fastapi_limiter_after_a_restart_of_redis_every_request_fails(
    redis_url_server: Server, look: redis.Redis
) -> None:
    app = FastAPI()
    url = f"{redis_url_server.url}?{SLOW}&prefix=theme17-"
    limits = RateLimits(app=app, storage=url, deadline=5.0, failure="closed")

    @app.get("/", dependencies=[Depends(limits.limit("3/minute"))])
    async def home() -> None: ...

    answers = []
    for _ in range(4):
        answers += await statuses(app, "/", 1)
        look.script_flush()
    assert answers == [200, 200, 200, 429]
    await limits.gate.close()


def test_theme_18_django_ratelimit_a_refusal_is_forbidden_and_not_too_many_requests(
    django_get: Callable[..., Answer],
) -> None:
    from ratebound.web.django import limit

    views = {"/": limit("1/minute")(ok)}
    answers = [django_get({}, views, "/") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert fields(answers[1], "content-type") == ["application/problem+json"]


@pytest.mark.parametrize("make", [quart_app, litestar_app])
async def test_theme_19_quart_and_litestar_have_no_headers_of_the_standard(make: Callable[[], Any]) -> None:
    app = RateLimitMiddleware(make(), "2/minute as short; 100/hour as long", storage=AsyncMemoryStorage())
    answers = [await fetch(app, "GET", "/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer, left in zip(answers, (1, 0, 0), strict=True):
        policies: Any = http_sf.parse(fields(answer, "ratelimit-policy")[0].encode(), tltype="list")
        states: Any = http_sf.parse(fields(answer, "ratelimit")[0].encode(), tltype="list")
        assert [(name, of["q"], of["w"]) for name, of in policies] == [
            ("default/short", 2, 60),
            ("default/long", 100, 3600),
        ]
        assert [name for name, _ in states] == ["default/short", "default/long"]
        assert states[0][1]["r"] == left


def test_nginx_a_refusal_is_503_without_headers_and_every_request_costs_one() -> None:
    policy = Policy(rules=[Rule("all", "10/minute", cost=lambda view: 8 if view.path == "/heavy" else 1)])
    app = wsgi.RateLimitMiddleware(hello_wsgi, policy)
    answers = [wsgi_fetch(app, environ_of("GET", where)) for where in ("/heavy", "/heavy", "/light")]
    assert [answer.status for answer in answers] == [200, 429, 200]
    assert [";r=" in fields(answer, "ratelimit")[0] for answer in answers] == [True] * 3


def test_traefik_an_error_of_redis_is_an_error_of_all_traffic(fresh_redis: Server) -> None:
    app = wsgi.RateLimitMiddleware(hello_wsgi, "3/minute", storage=f"{fresh_redis.url}?{SLOW}", workers=1)
    assert wsgi_fetch(app, environ_of("GET", "/")).status == 200
    with fresh_redis.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)  # from now on every write is refused
    answers = [wsgi_fetch(app, environ_of("GET", "/")).status for _ in range(6)]
    assert set(answers) == {200, 429}
    assert answers.count(200) <= 3
    app.gate.close()
