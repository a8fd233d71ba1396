"""The Flask extension among async views and functions."""

import functools
from collections.abc import Callable
from typing import Any

import flask
import pytest

from ratebound.policy import RequestView
from tests.web.flask_site import Site


async def is_staff(view: RequestView) -> bool:
    return view.header("x-staff") is not None


async def is_staff_too() -> bool:
    return "x-staff" in flask.request.headers


class IsStaff:
    async def __call__(self, view: RequestView) -> bool:
        return view.header("x-staff") is not None


@pytest.mark.parametrize("exempt_when", [is_staff, is_staff_too, IsStaff()])
def test_an_async_function_says_whom_nothing_is_counted_for(exempt_when: Callable[..., Any]) -> None:
    site = Site("2/minute", exempt_when=exempt_when)
    site.view("/a")
    assert [site.passes("/a", 5), site.passes("/a", 5, **{"x-staff": "1"})] == [2, 5]


def test_an_async_function_says_who_is_logged_in() -> None:
    async def user() -> str | None:
        return flask.request.headers.get("x-user")

    site = Site("2/minute", user=user, by="user")
    site.view("/a")
    assert [site.passes("/a", 5, **{"x-user": who}) for who in ("a", "b", "a")] == [2, 2, 0]


@pytest.mark.parametrize("is_own", [True, False])
def test_an_async_listener_may_answer(is_own: bool) -> None:
    async def later(refused: Any) -> tuple[str, int]:
        return f"in {refused.retry_after}", 420

    site = Site(on_breach=None if is_own else later)
    site.view("/a", site.limiter.limit("1/minute", on_breach=later if is_own else None))
    assert [site.get("/a").status_code, site.get("/a").status_code] == [200, 420]
    assert site.get("/a").text == "in 60.0"


def test_an_async_view_may_await_a_limited_function() -> None:
    site = Site()

    @site.limiter.limit("2/minute")
    async def called() -> str:
        return "called"

    @site.app.get("/a")
    async def view() -> str:
        return await called()

    @site.app.get("/sync")
    def other() -> Any:
        return called()

    assert [site.get(path).status_code for path in ("/a", "/sync", "/a", "/sync")] == [200, 200, 429, 429]


def test_an_async_decorator_may_stand_above_a_limited_view() -> None:
    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        async def around(**values: Any) -> str:
            return f"around {await view(**values)}"

        return around

    site = Site()

    @site.app.get("/a")
    @decorate
    @site.limiter.limit("2/minute")
    async def view() -> str:
        return "view"

    assert [site.get("/a").text for _ in range(2)] == ["around view"] * 2
    assert site.get("/a").status_code == 429
