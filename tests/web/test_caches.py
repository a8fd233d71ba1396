"""Responses that caches keep: no numbers of another client, and no rejection for others."""

from collections.abc import Callable
from typing import Any

import flask
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from ratebound.web.django import limit
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web.django_site import MIDDLEWARE, site
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.suite import Answer

FOREIGN = {"RateLimit": '"default/minute";r=1;t=60', "Cache-Control": "max-age=60"}
CDN = {"CDN-Cache-Control": "max-age=60", "Surrogate-Control": "max-age=60"}


def handler429(request: Any, refused: Any) -> Any:
    return HttpResponse("slow", status=429, headers=CDN)


urlpatterns = [
    path("", lambda request: HttpResponse("kept")),
    path("foreign", lambda request: HttpResponse("kept", headers=FOREIGN)),
]


def field(answer: Answer, name: str) -> list[str]:
    return [value for key, value in answer.headers if key == name]


def flask_app() -> Any:
    app = flask.Flask("site")
    FlaskLimits(app, "2/minute")
    app.get("/foreign")(lambda: ("kept", 200, FOREIGN))
    app.errorhandler(429)(lambda error: ("slow", 429, CDN))
    return wsgi_client(app)


def fastapi_app() -> Any:
    app = FastAPI()
    RateLimits("2/minute", app=app)
    app.get("/foreign")(lambda: Response("kept", headers=FOREIGN))
    app.exception_handler(429)(lambda request, error: PlainTextResponse("slow", 429, CDN))
    return asgi_client(app)


@pytest.mark.parametrize("adapter", ["flask", "fastapi", "django wsgi", "django asgi"])
def test_what_a_cache_kept_of_another_client_is_taken_off_and_no_network_keeps_a_refusal(adapter: str) -> None:
    with site("2/minute", ROOT_URLCONF=__name__):
        makers: dict[str, Callable[[], Any]] = {
            "flask": flask_app,
            "fastapi": fastapi_app,
            "django wsgi": lambda: wsgi_client(WSGIHandler()),
            "django asgi": lambda: asgi_client(ASGIHandler()),
        }
        send = makers[adapter]()
        answers = [send("GET", "/foreign", {}) for _ in range(3)]
        getattr(send, "close", lambda: None)()
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert field(answers[0], "ratelimit") == []
    assert field(answers[0], "cache-control") == ["max-age=60"]
    assert field(answers[2], "cache-control") == ["no-store"]
    assert field(answers[2], "cdn-cache-control") == field(answers[2], "surrogate-control") == []


def test_a_cache_around_the_middleware_of_django_hands_out_no_numbers_of_other_clients() -> None:
    middleware = [
        "django.middleware.cache.UpdateCacheMiddleware",
        MIDDLEWARE,
        "django.middleware.cache.FetchFromCacheMiddleware",
    ]
    caches = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with site("100/minute", ROOT_URLCONF=__name__, MIDDLEWARE=middleware, CACHES=caches):
        send = wsgi_client(WSGIHandler())
        first, *later = [send("GET", "/", {}) for _ in range(3)]
    assert field(first, "ratelimit") != []
    assert [field(answer, "ratelimit") for answer in later] == [[], []]


class FailedLogin:
    """Middleware of Django in which a login fails, as in one that reads a token."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        from django.contrib.auth.signals import user_login_failed

        user_login_failed.send(FailedLogin, credentials={}, request=request)
        return self._get_response(request)


limited = limit("3/minute", key="address", charge="failure", name="token")(lambda request: HttpResponse("in"))


class Urls:
    urlpatterns = (path("", limited),)


@pytest.mark.parametrize("early", [False, True])
def test_a_login_that_fails_in_a_middleware_counts(early: bool) -> None:
    rules = [{"name": "flood", "limits": "100/minute", "stage": "early" if early else "late"}]
    middleware = [MIDDLEWARE, f"{__name__}.FailedLogin"]
    with site({"policy": {"rules": rules}}, ROOT_URLCONF=Urls, MIDDLEWARE=middleware):
        send = wsgi_client(WSGIHandler())
        assert [send("GET", "/", {}).status for _ in range(5)] == [200, 200, 200, 429, 429]
