"""Flask gives the answers that every framework gives."""

from typing import Any

import flask
import pytest

from ratekeeper.testing import FakeClock
from ratekeeper.web.flask import RateKeeper
from tests.web import suite
from tests.web.drivers import wsgi_client


def application(options: dict[str, Any]) -> flask.Flask:
    app = flask.Flask("suite")
    app.logger.disabled = True
    RateKeeper(app, **options)

    @app.get("/")
    def home() -> str:
        return "hello"

    @app.get("/users/<int:number>")
    def user(number: int) -> str:
        return f"user {number}"

    @app.post("/login")
    def login() -> tuple[str, int]:
        return ("welcome", 200) if flask.request.headers.get("x-password") == "right" else ("no", 401)

    @app.get("/stream")
    def stream() -> flask.Response:
        return flask.Response(iter(["one", "two", "three"]))

    @app.get("/teapot")
    def teapot() -> tuple[str, int, dict[str, str]]:
        return "teapot", 418, {"RateLimit": "mine", "X-Own": "yes"}

    @app.get("/queue")
    def queue() -> str:
        return "served"

    @app.get("/health")
    def health() -> str:
        return "well"

    @app.get("/fail")
    def fail() -> str:
        raise ZeroDivisionError

    @app.get("/tokens")
    def tokens() -> str:
        flask.g.ratekeeper.charge(7)
        return "spent"

    @app.get("/cached")
    def cached() -> tuple[str, dict[str, str]]:
        return "kept", {"Cache-Control": flask.request.headers["x-cache"]}

    @app.get("/moved")
    def moved() -> Any:
        return flask.redirect("/")

    @app.get("/secret")
    def secret() -> str:
        raise AssertionError

    return app


@pytest.mark.parametrize("claim", suite.TABLE)
def test_flask_answers_as_every_framework_does(claim: str, clock: FakeClock) -> None:
    app = application(suite.options(clock, suite.Naps(), is_async=False))
    suite.play(wsgi_client(app), suite.TABLE[claim])


def test_a_leaky_bucket_holds_requests_back_for_a_second_at_most(clock: FakeClock) -> None:
    naps = suite.Naps()
    suite.play_queue(wsgi_client(application(suite.options(clock, naps, is_async=False))), naps)


def words(*_: Any) -> tuple[bytes, int, dict[str, str]]:
    return suite.WORDS, 429, {"Cache-Control": suite.WORDS_CACHE}


def test_no_cache_keeps_a_rejection_that_the_errorhandler_words(clock: FakeClock) -> None:
    app = application(suite.options(clock, suite.Naps(), is_async=False))
    app.register_error_handler(429, words)
    suite.play(wsgi_client(app), suite.WORDED)


def test_no_cache_keeps_a_rejection_that_on_breach_words(clock: FakeClock) -> None:
    app = application({**suite.options(clock, suite.Naps(), is_async=False), "on_breach": words})
    suite.play(wsgi_client(app), suite.WORDED)
