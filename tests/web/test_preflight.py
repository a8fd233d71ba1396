"""Preflights: no handler runs for one uncounted; one that the application's own CORS layer answers costs nothing.

Each adapter has two applications. In one a handler takes OPTIONS and answers as a CORS layer would. In the other a CORS
layer stands where it can answer without a handler. Both have a limit of three requests a minute.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flask
import flask_cors
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI, Response
from starlette.middleware.cors import CORSMiddleware

from ratebound.web import asgi, wsgi
from ratebound.web.django import limit
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web.django_site import MIDDLEWARE, site
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.suite import Client

ASKS = {"origin": "https://example.com", "access-control-request-method": "POST"}
CORS = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Methods": "POST"}
Made = tuple[Client, Callable[[], int]]  # and how often the handler ran

runs: list[str] = []


def handled(request: Any = None) -> Any:
    runs.append("ran")
    return HttpResponse("ran", headers=CORS)


urlpatterns = [path("a", handled), path("limited", limit("3/minute", key="address")(handled))]


def fastapi_handler() -> FastAPI:
    app = FastAPI()

    @app.api_route("/a", methods=["OPTIONS", "POST"])
    def run(response: Response) -> str:
        runs.append("ran")
        response.headers.update(CORS)
        return "ran"

    return app


def flask_handler() -> flask.Flask:
    app = flask.Flask("site")

    @app.route("/a", methods=["OPTIONS", "POST"])
    def run() -> Any:
        runs.append("ran")
        return "ran", 200, CORS

    return app


@contextmanager
def handler_of(adapter: str) -> Iterator[tuple[Client, str]]:
    """An application whose handler answers preflights itself."""
    with contextlib.ExitStack() as stack:
        if adapter == "asgi":
            client: Any = asgi_client(asgi.RateLimitMiddleware(fastapi_handler(), "3/minute"))
        elif adapter == "fastapi":
            app = fastapi_handler()
            RateLimits("3/minute", app=app)
            client = asgi_client(app)
        elif adapter == "wsgi":
            client = wsgi_client(wsgi.RateLimitMiddleware(flask_handler(), "3/minute"))
        elif adapter == "flask":
            served = flask_handler()
            FlaskLimits(served, "3/minute")
            client = wsgi_client(served)
        else:
            settings = None if "decorator" in adapter else "3/minute"
            stack.enter_context(site(settings, ROOT_URLCONF=__name__))
            client = asgi_client(ASGIHandler()) if "asgi" in adapter else wsgi_client(WSGIHandler())
        stack.callback(getattr(client, "close", lambda: None))
        yield client, "/limited" if "decorator" in adapter else "/a"


@contextmanager
def cors_of(adapter: str) -> Iterator[Client]:
    """An application whose CORS layer answers preflights."""
    with contextlib.ExitStack() as stack:
        if adapter in ("asgi", "fastapi"):
            app = fastapi_handler()
            app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["POST"])
            if adapter == "fastapi":
                RateLimits("3/minute", app=app)
            client: Any = asgi_client(app if adapter == "fastapi" else asgi.RateLimitMiddleware(app, "3/minute"))
        elif adapter == "wsgi":
            served = flask.Flask("site")
            served.post("/a")(handled)
            flask_cors.CORS(served)
            client = wsgi_client(wsgi.RateLimitMiddleware(served, "3/minute"))
        elif adapter == "flask":
            served = flask.Flask("site")
            FlaskLimits(served, "3/minute")
            served.post("/a")(lambda: "ran")
            flask_cors.CORS(served)
            client = wsgi_client(served)
        elif adapter == "fastapi middleware":
            app = fastapi_handler()

            @app.middleware("http")
            async def answering(request: Any, call_next: Any) -> Any:
                return Response(headers=CORS)

            RateLimits("3/minute", app=app)
            client = asgi_client(app)
        elif adapter == "flask hook":
            served = flask.Flask("site")
            served.before_request(lambda: ("", 204, CORS) if flask.request.method == "OPTIONS" else None)
            FlaskLimits(served, "3/minute")
            served.post("/a")(lambda: "ran")
            client = wsgi_client(served)
        else:
            middleware = [MIDDLEWARE, "corsheaders.middleware.CorsMiddleware"]
            stack.enter_context(
                site("3/minute", ROOT_URLCONF=__name__, MIDDLEWARE=middleware, CORS_ALLOW_ALL_ORIGINS=True)
            )
            client = asgi_client(ASGIHandler()) if "asgi" in adapter else wsgi_client(WSGIHandler())
        stack.callback(getattr(client, "close", lambda: None))
        yield client


HANDLERS = [
    "asgi",
    "fastapi",
    "wsgi",
    "flask",
    "django wsgi",
    "django asgi",
    "django decorator wsgi",
    "django decorator asgi",
]


@pytest.fixture(autouse=True)
def fresh() -> None:
    runs.clear()


@pytest.mark.parametrize("adapter", HANDLERS)
def test_a_handler_that_takes_preflights_never_runs_more_often_than_its_limit(adapter: str) -> None:
    with handler_of(adapter) as (send, where):
        assert [send("OPTIONS", where, ASKS).status for _ in range(6)] == [200] * 3 + [429] * 3
        assert len(runs) == 3
        assert send("POST", where, {}).status == 429


@pytest.mark.parametrize("adapter", ["fastapi", "flask", "django wsgi", "django asgi"])
def test_a_preflight_that_the_cors_layer_answers_costs_nothing(adapter: str) -> None:
    with cors_of(adapter) as send:
        answers = [send("OPTIONS", "/a", ASKS) for _ in range(6)]
        assert [answer.status for answer in answers] == [answers[0].status] * 6
        assert answers[0].status in (200, 204)
        assert not [name for name, _ in answers[0].headers if name.startswith("ratelimit")]
        assert [send("POST", "/a", {}).status for _ in range(4)] == [200] * 3 + [429]
        assert send("OPTIONS", "/a", ASKS).status == 429  # charged first


@pytest.mark.parametrize("adapter", ["fastapi", "flask", "django wsgi", "django asgi"])
def test_other_options_are_counted_behind_a_cors_layer(adapter: str) -> None:
    with cors_of(adapter) as send:
        assert [send("OPTIONS", "/a", {"origin": "https://example.com"}).status for _ in range(5)][3:] == [429, 429]


@pytest.mark.parametrize("adapter", ["asgi", "wsgi", "flask hook", "fastapi middleware"])
def test_where_nobody_can_tell_whether_a_handler_ran_a_preflight_counts(adapter: str) -> None:
    with cors_of(adapter) as send:
        statuses = [send("OPTIONS", "/a", ASKS).status for _ in range(5)]
        assert statuses == [statuses[0]] * 3 + [429] * 2
        assert statuses[0] < 300


def test_a_limited_function_that_runs_for_a_preflight_is_not_given_back() -> None:
    app = flask.Flask("site")
    flask_cors.CORS(app)
    limiter = FlaskLimits(app, "100/minute")

    @limiter.limit("2/minute")
    def work() -> None:
        runs.append("ran")

    app.before_request(lambda: work())
    app.post("/a")(lambda: "ran")
    send = wsgi_client(app)
    assert [send("OPTIONS", "/a", ASKS).status for _ in range(4)] == [200, 200, 429, 429]
    assert len(runs) == 2


@limit("2/minute", key="address")
def work(request: Any) -> Any:
    runs.append("ran")


def working(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """Middleware of Django that calls a limited function."""

    def respond(request: Any) -> Any:
        return work(request) or get_response(request)

    return respond


def test_a_limited_function_that_middleware_of_django_calls_is_not_given_back() -> None:
    middleware = [MIDDLEWARE, f"{__name__}.working", "corsheaders.middleware.CorsMiddleware"]
    with site("100/minute", ROOT_URLCONF=__name__, MIDDLEWARE=middleware, CORS_ALLOW_ALL_ORIGINS=True):
        send = wsgi_client(WSGIHandler())
        assert [send("OPTIONS", "/a", ASKS).status for _ in range(4)] == [200, 200, 429, 429]
    assert len(runs) == 2
