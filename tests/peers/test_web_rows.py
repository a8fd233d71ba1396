"""What peers' middleware gets wrong, and our adapters must not: the rows that no other file has by name.

Each test names the package in which the defect was found, and what must not happen. The tests of the second part run
the peer itself: one that fails there has been mended, and its row is out of date.
"""

import inspect
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import flask
import http_sf
import pytest
import redis
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from ratekeeper import AsyncLimiter, MemoryStorage, notation
from ratekeeper.policy import Computed, Policy, Rule
from ratekeeper.storage import workers
from ratekeeper.storage.memory import AsyncMemoryStorage
from ratekeeper.testing import FakeClock
from ratekeeper.web import RouteLimit, wsgi
from ratekeeper.web.asgi import RateLimitMiddleware
from ratekeeper.web.fastapi import RateLimits
from ratekeeper.web.flask import RateKeeper
from tests.servers import Server
from tests.web.applications import litestar_app, quart_app
from tests.web.django_site import MIDDLEWARE, HttpResponse, path, site
from tests.web.drivers import connect, environ_of, exchange, fetch, http_scope, wsgi_fetch
from tests.web.suite import Answer

pytestmark = pytest.mark.anyio
F = TypeVar("F")
SLOW = "timeout=5&connect_timeout=5"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def look(redis_url_server: Server) -> Iterator[redis.Redis]:
    with redis_url_server.client() as client:
        yield client


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def hello_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


def fields(answer: Answer, name: str) -> list[str]:
    return [value for key, value in answer.headers if key == name]


async def statuses(app: Any, where: str, times: int) -> list[int]:
    return [(await fetch(app, "GET", where)).status for _ in range(times)]


def flask_site(*policy: Any, **options: Any) -> tuple[flask.Flask, RateKeeper]:
    app = flask.Flask("tests.site")
    return app, RateKeeper(app, *policy, **options)


def flask_statuses(app: flask.Flask, where: str, times: int) -> list[int]:
    client = app.test_client()
    return [client.get(where).status_code for _ in range(times)]


@pytest.fixture
def django_get() -> Iterator[Callable[..., Answer]]:
    """`django_get(settings, {"/a": view}, "/a")`: a request to a site with these settings, which is kept."""
    from django.core.handlers.wsgi import WSGIHandler

    kept: list[Any] = []

    def get(settings: dict[str, Any], views: dict[str, Any], where: str, method: str = "GET") -> Answer:
        if not kept:
            module = ModuleType("urls")
            module.__dict__["urlpatterns"] = [path(place.lstrip("/"), view) for place, view in views.items()]
            opened = site(settings, ROOT_URLCONF=module, MIDDLEWARE=[MIDDLEWARE])
            opened.__enter__()
            kept.extend([opened, WSGIHandler()])
        return wsgi_fetch(kept[1], environ_of(method, where))

    yield get
    if kept:
        from ratekeeper.web.django.keeper import close

        close()
        kept[0].__exit__(None, None, None)


def ok(request: Any) -> Any:
    return HttpResponse("ok")


def named(name: str) -> Any:
    """A view of its own."""

    def view(request: Any) -> Any:
        return HttpResponse(name)

    view.__name__ = view.__qualname__ = name
    return view


# What was found by running them: section 4.1.


@pytest.mark.parametrize("text", ["100/minute; 2/300 seconds", "2/300 seconds; 100/minute", "2/5 minutes; 100/minute"])
def test_row_17_flask_limiter_the_header_shows_another_limit_than_the_one_that_bites(text: str) -> None:
    app, limiter = flask_site(headers="x-ratelimit", storage=MemoryStorage(clock=FakeClock()))

    @app.get("/")
    @limiter.limit(text)
    def home() -> str:
        return ""

    client = app.test_client()
    told = [client.get("/").headers for _ in range(3)]
    assert [(one["X-RateLimit-Limit"], one["X-RateLimit-Remaining"]) for one in told] == [
        ("2", "1"),
        ("2", "0"),
        ("2", "0"),
    ]
    assert told[2]["Retry-After"] == "300"


def test_row_24_django_smart_two_views_with_one_key_share_a_count(django_get: Callable[..., Answer]) -> None:
    from ratekeeper.web.django import limit

    views = {
        "/browse": limit("500/minute", key="address")(named("browse")),
        "/login": limit("5/minute", key="address")(named("login")),
    }
    settings = {"storage": MemoryStorage(clock=FakeClock())}
    assert {django_get(settings, views, "/browse").status for _ in range(6)} == {200}
    assert [django_get(settings, views, "/login").status for _ in range(6)] == [200] * 5 + [429]


def test_row_25_django_smart_refused_requests_are_stored_and_prolong_the_ban(
    django_get: Callable[..., Answer], redis_url_server: Server, look: redis.Redis
) -> None:
    from ratekeeper.web.django import limit

    views = {"/": limit("5/hour sliding-log", key="address")(ok)}
    settings = {"storage": f"{redis_url_server.url}?{SLOW}&prefix=row25-"}

    def stored() -> dict[Any, bytes]:
        return {name: look.execute_command("DUMP", name, NEVER_DECODE=True) for name in look.scan_iter("row25-*")}

    assert [django_get(settings, views, "/").status for _ in range(5)] == [200] * 5
    before = stored()
    waits = [int(fields(django_get(settings, views, "/"), "retry-after")[0]) for _ in range(200)]
    assert len(before) == 1
    assert stored() == before
    assert waits == sorted(waits, reverse=True), "a wait that grows with what is refused"


def test_row_26_django_smart_a_cost_is_so_many_calls_and_not_atomic(
    django_get: Callable[..., Answer], redis_url_server: Server, look: redis.Redis
) -> None:
    from ratekeeper.web.django import limit

    views = {"/": limit("120/hour", cost=50, key="address")(ok)}
    settings = {"storage": f"{redis_url_server.url}?{SLOW}&prefix=row26-"}
    assert fields(django_get(settings, views, "/"), "ratelimit")[0].partition(";r=")[2].startswith("70;")
    look.config_resetstat()
    assert django_get(settings, views, "/").status == 200
    refused = django_get(settings, views, "/")
    stats: Any = look.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 2
    assert (refused.status, fields(refused, "ratelimit")[0].partition(";r=")[2][:3]) == (429, "20;")  # nothing in part


def test_row_26_django_smart_the_algorithm_asked_for_is_ignored(django_get: Callable[..., Answer]) -> None:
    from ratekeeper.web.django import limit

    clock = FakeClock(59_000_000)  # a second before the minute is full
    views = {
        "/fixed": limit("5/minute fixed-window")(named("fixed")),
        "/sliding": limit("5/minute sliding-log")(named("sliding")),
    }
    settings = {"storage": MemoryStorage(clock=clock)}
    for where in views:
        assert [django_get(settings, views, where).status for _ in range(6)] == [200] * 5 + [429]
    clock.advance(1)
    assert django_get(settings, views, "/fixed").status == 200
    assert django_get(settings, views, "/sliding").status == 429


async def test_row_28_asgi_ratelimit_a_fraction_of_a_second_is_rounded_to_allowed() -> None:
    clock = FakeClock()
    app = RateLimitMiddleware(hello, "1/second; 5/minute", storage=AsyncMemoryStorage(clock=clock))
    assert (await fetch(app, "GET", "/")).status == 200
    for _ in range(9):
        clock.advance(0.1)
        answer = await fetch(app, "GET", "/")
        assert (answer.status, fields(answer, "retry-after")) == (429, ["1"])
    clock.advance(0.1)
    answer = await fetch(app, "GET", "/")
    assert answer.status == 200
    assert '"default/minute";r=3' in fields(answer, "ratelimit")[0], "the refused ones fill the minute"


async def test_row_28_asgi_ratelimit_retry_after_is_always_the_full_window() -> None:
    clock = FakeClock()
    app = RateLimitMiddleware(hello, "1/minute fixed-window", storage=AsyncMemoryStorage(clock=clock))
    await fetch(app, "GET", "/")
    waits = []
    for _ in range(3):
        waits.append(int(fields(await fetch(app, "GET", "/"), "retry-after")[0]))
        clock.advance(10)
    assert [before - after for before, after in itertools.pairwise(waits)] == [10, 10]


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-log", "sliding-counter", "token-bucket"])
@pytest.mark.parametrize("begin", [0, 6_001_000, 9_999_999])
async def test_row_29_traffik_the_wait_was_honoured_and_is_refused_all_the_same(algorithm: str, begin: int) -> None:
    clock = FakeClock(begin)
    app = RateLimitMiddleware(hello, f"5/10 seconds {algorithm}", storage=AsyncMemoryStorage(clock=clock))
    assert await statuses(app, "/", 5) == [200] * 5
    for _ in range(10):
        refused = await fetch(app, "GET", "/")
        assert refused.status == 429
        clock.advance(int(fields(refused, "retry-after")[0]))
        answers = await statuses(app, "/", 6)
        assert (answers[0], answers[-1]) == (200, 429)


# By reading them: section 4.2.


async def test_slowapi_signatures_are_looked_at_and_limits_read_again_for_each_request(monkeypatch: Any) -> None:
    """Flask-Limiter reads its limits again, too."""
    limits = RateLimits(Policy(rules=[Rule("all", "100/minute")]))
    app = FastAPI()

    @app.get("/")
    @limits.limit("50/minute; 500/hour", key=lambda view: view.header("x-tenant"), exempt_when=lambda view: False)
    def home() -> str:
        return ""

    limits.install(app)
    flask_app, limiter = flask_site("100/minute")

    @flask_app.get("/")
    @limiter.limit("50/minute; 500/hour", key=lambda: flask.request.headers.get("x-tenant"), keep_defaults=True)
    def flask_home() -> str:
        return ""

    flask_client = flask_app.test_client()
    await fetch(app, "GET", "/")
    flask_client.get("/")
    asked: list[str] = []
    for module, name in ((inspect, "signature"), (notation, "parse_limits"), (notation, "parse_limit")):
        real = getattr(module, name)

        def noted(*args: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            if "ratekeeper" in inspect.stack()[1].filename:  # the frameworks' own calls are theirs
                asked.append(name)
            return real(*args, **more)

        monkeypatch.setattr(module, name, noted)
    monkeypatch.setattr("ratekeeper.policy.rule.parse_limits", notation.parse_limits)
    for _ in range(3):
        assert (await fetch(app, "GET", "/")).status == 200
        assert flask_client.get("/").status_code == 200
    assert asked == []


@pytest.mark.parametrize("failure", ["local", "open"])
async def test_slowapi_a_storage_that_is_lost_before_the_headers_are_written_is_an_error(
    failure: str, fresh_redis: Server
) -> None:
    async def dying(scope: Any, receive: Any, send: Any) -> None:
        fresh_redis.kill()
        await hello(scope, receive, send)

    app = RateLimitMiddleware(dying, "5/minute", storage=f"{fresh_redis.url}?{SLOW}", deadline=2.0, failure=failure)
    answer = await fetch(app, "GET", "/")
    assert (answer.status, len(fields(answer, "ratelimit"))) == (200, 1)
    await app.gate.close()


async def test_slowapi_a_storage_that_is_lost_before_a_charge_is_settled_is_an_error(fresh_redis: Server) -> None:
    app = FastAPI()
    limits = RateLimits(app=app, storage=f"{fresh_redis.url}?{SLOW}", deadline=2.0, workers=1)

    @app.get("/")
    @limits.limit("5/minute", charge="failure")
    async def home() -> str:
        fresh_redis.kill()
        return "served"

    answer = await fetch(app, "GET", "/")
    assert (answer.status, answer.body, len(fields(answer, "ratelimit"))) == (200, b'"served"', 1)
    await limits.gate.close()


async def test_slowapi_routes_inside_a_mount_are_exempt() -> None:
    async def inner(request: Any) -> Response:
        return PlainTextResponse("inner")

    limits = RateLimits("2/minute")

    @limits.limit("1/minute")
    async def strict(request: Any) -> Response:
        return PlainTextResponse("strict")

    mounted = Starlette(routes=[Route("/inner", inner), Route("/strict", strict)])
    app = Starlette(routes=[Mount("/mounted", routes=[Route("/inner", inner)]), Mount("/app", mounted)])
    limits.install(app)
    assert await statuses(app, "/app/strict", 2) == [200, 429]
    assert await statuses(app, "/mounted/inner", 1) == [200]
    assert await statuses(app, "/app/inner", 2) == [200, 429]  # the quota of all that declare none


@pytest.mark.parametrize("found", [None, "", 0])
def test_flask_limiter_an_empty_key_is_no_limit(found: Any) -> None:
    app, limiter = flask_site()

    @app.get("/")
    @limiter.limit("2/minute", key=lambda: found)
    def home() -> str:
        return ""

    assert flask_statuses(app, "/", 4) == [200, 200, 429, 429]


async def test_flask_limiter_an_empty_key_is_no_limit_in_any_adapter(django_get: Callable[..., Answer]) -> None:
    from ratekeeper.web.django import limit

    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("2/minute", key=lambda view: "")
    async def home() -> None: ...

    assert await statuses(app, "/", 3) == [200, 200, 429]
    views = {"/": limit("2/minute", key=lambda request: "")(ok)}
    assert [django_get({}, views, "/").status for _ in range(3)] == [200, 200, 429]


def test_flask_limiter_a_block_is_known_by_its_place_in_the_file() -> None:
    app, limiter = flask_site()
    with pytest.raises(ValueError, match="name"), limiter.limit("2/minute"):
        pass

    def send(times: int) -> None:
        for _ in range(times):
            with limiter.limit("2/minute", name="mail"):
                pass

    @app.get("/<int:times>")
    def mail(times: int) -> str:
        send(times)
        with limiter.limit("2/minute", name="mail"):  # another line, the same quota
            return ""

    assert flask_statuses(app, "/0", 3) == [200, 200, 429]


async def test_flask_limiter_the_fallback_is_the_whole_limit_for_each_worker() -> None:
    lost = "redis://127.0.0.1:1/0"
    passed = 0
    for _ in range(4):
        app = RateLimitMiddleware(hello, "8/minute", storage=lost, deadline=0.5, workers=4)
        passed += (await statuses(app, "/", 8)).count(200)
        await app.gate.close()
    assert passed == 8


@pytest.mark.parametrize(
    ("failure", "expected"), [("local", [200, 200, 429, 429]), ("open", [200] * 4), ("closed", [503] * 4)]
)
def test_django_ratelimit_a_lost_connection_is_an_error_of_the_site(
    failure: str, expected: list[int], fresh_redis: Server, django_get: Callable[..., Answer]
) -> None:
    from ratekeeper.web.django import limit

    views = {"/": limit("2/minute", key="address")(ok), "/other": limit("1/minute", key="address")(named("other"))}
    settings = {"storage": fresh_redis.url, "failure": failure, "workers": 1}
    assert django_get(settings, views, "/other").status == 200
    fresh_redis.kill()
    answers = [django_get(settings, views, "/") for _ in range(4)]
    assert [answer.status for answer in answers] == expected
    for answer in answers:
        assert bool(fields(answer, "retry-after")) == (answer.status != 200)


@pytest.mark.parametrize(
    "failure",
    [
        "local",
        pytest.param(
            "open", marks=pytest.mark.xfail(strict=True, reason="a policy's 'open' overrides a rule's own mode")
        ),
    ],
)
def test_django_smart_several_limits_at_once_always_fail_open(failure: str, django_get: Callable[..., Answer]) -> None:
    from ratekeeper.web.django import limit

    views = {"/": limit("5/minute", key="address")(limit("100/hour", key="user", failure="closed")(ok))}
    settings = {"storage": "redis://127.0.0.1:1/0", "failure": failure, "deadline": 0.5}
    assert [django_get(settings, views, "/").status for _ in range(2)] == [503, 503]


# What their users ask for: section 3.


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
        caplog.clear()
        begin()
        assert "each of 4 workers counts for itself" in caplog.text


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


@pytest.mark.parametrize("function", [lambda key: "1/minute", lambda: "1/minute", lambda view, key: "1/minute"])
async def test_theme_6_a_function_with_the_wrong_arguments_is_an_error_on_every_request(
    function: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit(function, otherwise="2/minute")
    async def home() -> None: ...

    fits = len(inspect.signature(function).parameters) == 1  # it is handed the request, whatever it calls it
    assert (await statuses(app, "/", 3)).count(200) == (1 if fits else 2)
    assert bool(caplog.records) != fits


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
    from ratekeeper.web.django import limit

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
    charge: str | None, good: int, bad: int
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
    from ratekeeper.web.django import limit

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


# What the page for those who come from them says, beyond its examples.

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
OF_DJANGO_RATELIMIT = (  # which is not installed for the tests
    *("CACHE_PREFIX", "ENABLE", "EXCEPTION_CLASS", "FAIL_OPEN", "HASH_ALGORITHM", "IPV4_MASK", "IPV6_MASK"),
    *("IP_META_KEY", "USE_CACHE", "VIEW"),
)


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_every_variable_of_their_configs_is_on_the_page() -> None:
    from flask_limiter.constants import ConfigVars
    from slowapi.extension import C

    for name, kind in (("Flask-Limiter", ConfigVars), ("slowapi", C)):
        for variable in (value for key, value in vars(kind).items() if key.isupper()):
            assert f"`{variable}`" in section(name), variable
    for variable in OF_DJANGO_RATELIMIT:
        assert f"`RATELIMIT_{variable}" in section("django-ratelimit"), variable


def test_every_public_name_of_theirs_is_on_the_page() -> None:
    import flask_limiter
    import slowapi
    import slowapi.middleware

    for name in {*flask_limiter.__all__, *_public(flask_limiter.Limiter)}:
        assert re.search(rf"\b{name}\b", section("Flask-Limiter")), name
    for name in {*_public(slowapi.Limiter), "SlowAPIMiddleware", "SlowAPIASGIMiddleware", "get_ipaddr"}:
        assert re.search(rf"\b{name}\b", section("slowapi")), name


def _public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_command_of_flask_limiter_is_on_the_page() -> None:
    from flask_limiter.commands import cli

    for name, command in cli.commands.items():
        assert f"flask limiter {name}" in section("Flask-Limiter")
        for option in command.params:
            assert option.name in ("endpoint", "y") or f"--{option.name}" in section("Flask-Limiter"), option.name


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (("2/m",), [200, 200, 429]),
        (("2/5m",), [200, 200, 429]),
        (("2/300s",), [200, 200, 429]),
        (("deny",), [403] * 3),
        (("unlimited",), [200] * 3),
        ((lambda request: None, "1/m"), [200, 429, 429]),
        ((lambda request: "unlimited", "1/m"), [200] * 3),
        ((lambda request: "deny", "1/m"), [403] * 3),
    ],
)
def test_rates_of_django_ratelimit_are_written_so(
    written: tuple[Any, ...], expected: list[int], django_get: Callable[..., Answer]
) -> None:
    from ratekeeper.web.django import limit

    limited = limit(written[0], **({"otherwise": written[1]} if written[1:] else {}))
    assert [django_get({}, {"/": limited(ok)}, "/").status for _ in range(3)] == expected


def test_a_view_of_django_may_only_be_told_that_it_was_limited(django_get: Callable[..., Answer]) -> None:
    from ratekeeper.web.django import limit

    def told(request: Any) -> Any:
        return HttpResponse(str(not request.ratekeeper.verdict.shadows[0].allowed))

    views = {"/": limit("1/minute", mode="shadow")(told)}
    assert [django_get({}, views, "/").body for _ in range(3)] == [b"False", b"True", b"True"]


def test_application_limits_of_flask_may_have_a_cost_and_a_condition() -> None:
    limit = RouteLimit(
        limits="4/minute", name="application", cost=2, exempt_when=lambda view: view.header("x-staff") == "yes"
    )
    app, _ = flask_site(application_limits=limit)
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}", name, lambda: "")
    client = app.test_client()
    assert [client.get(where).status_code for where in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]
    assert client.get("/a", headers={"x-staff": "yes"}).status_code == 200


async def test_a_handler_of_a_websocket_may_answer_a_message_that_is_too_many() -> None:
    app = FastAPI()
    limiter = AsyncLimiter("1/5 seconds")

    @app.websocket("/ws")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text("hello" if await limiter.hit(f"chat {text}") else "again")

    assert [message.get("text") for message in await connect(app, "/ws", ["a", "a", "b"])][1:] == [
        "hello",
        "again",
        "hello",
    ]


async def test_default_limits_of_slowapi_may_be_found_by_a_function() -> None:
    rule = Rule("default", Computed(lambda view: "1/minute", otherwise="100/minute"), default=True)
    app = FastAPI()
    limits = RateLimits(Policy(rules=[rule]), app=app)

    @app.get("/own")
    @limits.limit("2/minute")
    async def own() -> None: ...

    assert [await statuses(app, "/", 2), await statuses(app, "/own", 3)] == [[404, 429], [200, 200, 429]]


# The peers themselves.


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
