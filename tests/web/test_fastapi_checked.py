"""FastAPI and Starlette: what a limited function, object or generator still is, and that none runs unlimited."""

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from ratebound.testing import limiting_off
from ratebound.web.fastapi import RateLimits
from tests.web.drivers import fetch
from tests.web.test_fastapi import statuses

pytestmark = pytest.mark.anyio


def show(a: int = 1) -> int:
    return a


async def show_task(a: int = 1) -> int:
    return a


class Plain:
    def __call__(self) -> str:
        return "done"


class Task:
    async def __call__(self) -> str:
        return "done"


ENDPOINTS: dict[str, Any] = {
    "a partial": lambda: functools.partial(show, a=2),
    "a partial of a coroutine": lambda: functools.partial(show_task, a=2),
    "a partial of a partial": lambda: functools.partial(functools.partial(show), a=2),
    "an object": Plain,
    "an object with a coroutine": Task,
    "a cached function": lambda: functools.lru_cache(lambda: "done"),
}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_whatever_is_called_is_limited(name: str) -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    app.add_api_route("/x", limits.limit("3/hour", name="b")(limits.limit("2/minute", name="a")(ENDPOINTS[name]())))
    assert await statuses(app, "/x", "/x", "/x") == [200, 200, 429]


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_it_is_limited_if_its_route_is_hidden(name: str) -> None:
    app, below = Starlette(), FastAPI()
    limits = RateLimits(app=app)
    below.add_api_route("/x", limits.limit("2/minute")(ENDPOINTS[name]()))
    app.mount("/s", CORSMiddleware(below, allow_origins=["*"]))
    assert await statuses(app, "/s/x", "/s/x", "/s/x") == [200, 200, 429]


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_it_raises_in_an_application_without_the_limits(name: str) -> None:
    app = FastAPI()
    app.add_api_route("/x", RateLimits().limit("2/minute")(ENDPOINTS[name]()))
    assert (await fetch(app, "GET", "/x")).status == 500
    with limiting_off():
        assert (await fetch(app, "GET", "/x")).status == 200


async def test_a_partial_above_its_route_is_limited() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    limits.limit("2/minute")(app.get("/x")(functools.partial(show, a=2)))
    assert await statuses(app, "/x", "/x", "/x") == [200, 200, 429]


async def test_the_limit_of_a_partial_is_not_that_of_its_function() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    app.add_api_route("/free", show)
    app.add_api_route("/x", limits.limit("1/minute")(functools.partial(show, a=2)))
    assert (await fetch(app, "GET", "/x")).body == b"2"
    assert await statuses(app, "/x", "/free", "/free", "/free") == [429, 200, 200, 200]


async def test_nor_is_that_of_a_partial_of_a_function_with_a_limit_of_its_own() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    limited = limits.limit("3/minute", name="own")(lambda: "done")
    app.add_api_route("/own", limited)
    app.add_api_route("/x", limits.limit("1/minute", name="less")(functools.partial(limited)))
    assert await statuses(app, "/x", "/x", "/own", "/own", "/own") == [200, 429, 200, 200, 429]


async def test_an_object_stays_what_it_is() -> None:
    app = Starlette()
    limits = RateLimits(app=app)

    class Files:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("file")(scope, receive, send)

    files = Files()
    assert limits.limit("2/minute")(files) is files
    assert isinstance(files, Files)
    assert type(files).__qualname__ == Files.__qualname__
    app.mount("/s", files)
    assert await statuses(app, "/s/a", "/s/b", "/s/c") == [200, 200, 429]


@pytest.mark.parametrize("endpoint", [staticmethod(show), Plain().__call__, 3])
def test_what_cannot_be_seen_to_is_no_endpoint(endpoint: Any) -> None:
    with pytest.raises(TypeError, match="expected a function"):
        RateLimits().limit("2/minute")(endpoint)


def test_nor_is_a_partial_of_anything_but_a_function() -> None:
    with pytest.raises(TypeError, match="partial of a function"):
        RateLimits().limit("2/minute")(functools.partial(Plain()))


async def test_a_limited_dependency_sees_what_is_raised_where_it_waits() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    seen: list[str] = []

    @limits.limit("100/minute")
    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
        except KeyError as error:
            seen.append("rolled back")
            raise HTTPException(409) from error
        else:
            seen.append("committed")
        finally:
            seen.append("closed")

    @app.get("/x")
    async def endpoint(request: Request, found: str = Depends(session)) -> str:
        if request.url.query:
            raise KeyError(found)
        return found

    assert (await fetch(app, "GET", "/x?fail")).status == 409
    assert (await fetch(app, "GET", "/x")).body == b'"session"'
    assert seen == ["rolled back", "closed", "committed", "closed"]


async def test_a_limited_generator_is_sent_to_and_closed_as_any_other() -> None:
    seen: list[object] = []

    @RateLimits().limit("2/minute")
    async def parts() -> Any:
        try:
            seen.append((yield 1))
            try:
                yield 2
            except ValueError:
                yield 3
            yield 4
        finally:
            seen.append("closed")

    with limiting_off():
        left = parts()
        assert await anext(left) == 1
        assert await left.asend("sent") == 2
        assert await left.athrow(ValueError()) == 3
        await left.aclose()
        assert seen == ["sent", "closed"]
        assert [part async for part in parts()] == [1, 2, 4]
