"""Functions that an application gives to a limit: one that cannot be called is refused where it is written, in every
adapter, with what it is called with."""

from tests.web.django_site import site  # first: it makes the settings

# isort: split
import functools
from collections.abc import Callable
from typing import Any

import flask
import pytest

from ratebound.policy import Computed, Policy, PolicyError, Rule, Source
from ratebound.web import RouteLimit
from ratebound.web.asgi import RateLimitMiddleware as AsgiMiddleware
from ratebound.web.django import limit as django_limit
from ratebound.web.django.configuration import configured_limits
from ratebound.web.drf import throttle
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.applications import bare_asgi, bare_wsgi
from tests.web.django_running import running, view_for


def by_group(group: str, request: Any) -> str:
    """As django-ratelimit calls the function of a key."""
    return group


of_group: Any = by_group

LIMITS: dict[str, tuple[Callable[..., Any], str]] = {
    "RouteLimit": (lambda limits, **options: RouteLimit(limits=limits, **options), "RequestView"),
    "fastapi": (RateLimits().limit, "RequestView"),
    "flask": (FlaskLimits(flask.Flask("shop")).limit, "RequestView"),
    "django": (django_limit, "HttpRequest"),
    "drf": (throttle, "HttpRequest"),
}


@pytest.fixture(params=LIMITS)
def declaring(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], str]:
    return LIMITS[request.param]


@pytest.mark.parametrize("option", ["key", "cost", "exempt_when", "limits"])
def test_a_function_that_takes_too_much_raises_where_the_limit_is_declared(
    option: str, declaring: tuple[Callable[..., Any], str]
) -> None:
    limit, argument = declaring
    options = {"otherwise": "5/minute"} if option == "limits" else {option: of_group}
    with pytest.raises(TypeError) as raised:
        limit(of_group if option == "limits" else "5/minute", **options)
    said = str(raised.value)
    assert f"{option}: by_group(group: str, request: Any) " in said
    assert f"is called with one argument, the {argument}" in said


def test_a_function_in_a_list_of_keys_is_looked_at_too(declaring: tuple[Callable[..., Any], str]) -> None:
    with pytest.raises(TypeError, match="key: by_group"):
        declaring[0]("5/minute", key=[of_group, "address"])


def test_a_function_may_take_nothing_or_more_than_it_needs(declaring: tuple[Callable[..., Any], str]) -> None:
    def injecting(function: Any) -> Any:
        @functools.wraps(function)
        def called(request: Any) -> Any:
            return function("group", request)

        return called

    for key in (lambda: "a", lambda view: "a", lambda view, more=1: "a", lambda *all: "a", injecting(of_group), str):
        declaring[0]("5/minute", key=key)


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_function_of_django_that_takes_nothing_is_called(kind: str) -> None:
    from django.urls import path

    view = django_limit("1/minute", key=lambda: "all")(view_for(kind))
    with running(kind, path("", view)) as sender:
        assert [sender.get("/").status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: RateLimits().limit("5/minute", on_breach=of_group), "one argument, the rejection"),
        (lambda: FlaskLimits().limit("5/minute", on_breach=lambda: None), "one argument, the rejection"),
        (lambda: FlaskLimits(on_breach=of_group), "one argument, the rejection"),
        (lambda: FlaskLimits(default_limits=RouteLimit(limits="5/minute", on_breach=of_group)), "one argument"),
        (lambda: django_limit("5/minute", on_breach=lambda refused: None), "2 arguments, the HttpRequest and the rej"),
        (lambda: RateLimits().limit("5/minute", charge=of_group), "one argument, the FinishedResponse"),
        (lambda: FlaskLimits(user=of_group), "user: by_group.* the RequestView"),
        (lambda: FlaskLimits(exempt_when=of_group), "exempt_when: by_group.* the RequestView"),
        (lambda: RateLimits(user=of_group), "user: by_group.* the scope"),
        (lambda: AsgiMiddleware(bare_asgi, "5/minute", user=of_group), "user: by_group.* the scope"),
        (lambda: WsgiMiddleware(bare_wsgi, "5/minute", user=of_group), "user: by_group.* the environ"),
    ],
)
def test_other_functions_are_looked_at_too(declare: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        declare()


def test_the_function_of_django_s_settings_is_looked_at_too() -> None:
    with site({"policy": "5/minute", "user": by_group}), pytest.raises(TypeError, match="user: by_group.* HttpRequest"):
        configured_limits()


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: Policy(rules=[Rule("a", "5/minute", by=of_group)]), "rules[0].by"),
        (lambda: Rule("a", "5/minute", cost=of_group), "cost"),
        (lambda: Rule("a", Computed(of_group, "5/minute")), "limits"),
        (lambda: Source(call=of_group), "call"),
        (lambda: Source(verify=of_group), "verify"),
    ],
)
def test_functions_of_a_policy_are_looked_at_too(make: Callable[[], Any], place: str) -> None:
    with pytest.raises(PolicyError, match="by_group.* is called with one argument") as raised:
        make()
    assert [problem.where for problem in raised.value.problems] == [place]


def test_a_policy_takes_functions_of_every_making() -> None:
    class Verifier:
        def __call__(self, credential: str) -> str:
            return credential

    functions: list[Any] = [Verifier(), str, functools.partial(of_group, "a"), {}.get]
    for verify in functions:
        Source(verify=verify)
