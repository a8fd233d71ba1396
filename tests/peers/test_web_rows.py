"""What peers' middleware gets wrong, and our adapters must not: the rows that no other file has by name.

Each test names the package in which the defect was found, and what must not happen.
"""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import flask
import pytest
import redis
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from ratebound import MemoryStorage, notation
from ratebound.limit import Failure
from ratebound.policy import Policy, Rule
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import FakeClock
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.peers.sites import SLOW, fields, flask_site, flask_statuses, hello, named, ok, statuses
from tests.servers import Server
from tests.web.drivers import fetch
from tests.web.suite import Answer

pytestmark = pytest.mark.anyio


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
    from ratebound.web.django import limit

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
    from ratebound.web.django import limit

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
    from ratebound.web.django import limit

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
    from ratebound.web.django import limit

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
            if "ratebound" in inspect.stack()[1].filename:  # the frameworks' own calls are theirs
                asked.append(name)
            return real(*args, **more)

        monkeypatch.setattr(module, name, noted)
    monkeypatch.setattr("ratebound.policy.model.rule.parse_limits", notation.parse_limits)
    for _ in range(3):
        assert (await fetch(app, "GET", "/")).status == 200
        assert flask_client.get("/").status_code == 200
    assert asked == []


@pytest.mark.parametrize("failure", ["local", "open"])
async def test_slowapi_a_storage_that_is_lost_before_the_headers_are_written_is_an_error(
    failure: Failure, fresh_redis: Server
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
    from ratebound.web.django import limit

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
    failure: Failure, expected: list[int], fresh_redis: Server, django_get: Callable[..., Answer]
) -> None:
    from ratebound.web.django import limit

    views = {"/": limit("2/minute", key="address")(ok), "/other": limit("1/minute", key="address")(named("other"))}
    settings = {"storage": fresh_redis.url, "failure": failure, "workers": 1}
    assert django_get(settings, views, "/other").status == 200
    fresh_redis.kill()
    answers = [django_get(settings, views, "/") for _ in range(4)]
    assert [answer.status for answer in answers] == expected
    for answer in answers:
        assert bool(fields(answer, "retry-after")) == (answer.status != 200)


@pytest.mark.parametrize("failure", ["local", "open"])
def test_django_smart_several_limits_at_once_always_fail_open(
    failure: Failure, django_get: Callable[..., Answer]
) -> None:
    from ratebound.web.django import limit

    views = {"/": limit("5/minute", key="address")(limit("100/hour", key="user", failure="closed")(ok))}
    settings = {"storage": "redis://127.0.0.1:1/0", "failure": failure, "deadline": 0.5}
    assert [django_get(settings, views, "/").status for _ in range(2)] == [503, 503]
