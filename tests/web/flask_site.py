"""Applications of Flask for tests: one to build on, and that of the suite."""

from collections.abc import Callable
from typing import Any

import flask

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from ratebound.web.flask import RateLimits


class Site:
    """An application on a clock that stands still."""

    def __init__(self, policy: Any = None, app: flask.Flask | None = None, **options: Any) -> None:
        self.app = flask.Flask("tests.site") if app is None else app
        self.clock = FakeClock()
        self.limiter = RateLimits(self.app, policy, **{"storage": MemoryStorage(clock=self.clock), **options})

    def view(self, path: str, *decorators: Callable[[Any], Any], answer: Any = "ok", **more: Any) -> None:
        def view(**_: Any) -> Any:
            return answer() if callable(answer) else answer

        view.__name__ = path.strip("/").partition("/")[0] or "home"
        for decorate in decorators:
            view = decorate(view)
        self.app.add_url_rule(path, view_func=view, **more)

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        return self.app.test_client().open(path, method=method, headers=headers)

    def passes(self, path: str, most: Any = 20, method: str = "GET", **headers: str) -> int:
        """How many in turn go ahead before the first is refused."""
        for count in range(most):
            if self.get(path, method, **headers).status_code in (429, 403):
                return count
        return int(most)


def application(options: dict[str, Any]) -> flask.Flask:
    app = flask.Flask("suite")
    app.logger.disabled = True
    RateLimits(app, **options)

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
        flask.g.ratebound.charge(7)
        return "spent"

    @app.get("/cached")
    def cached() -> tuple[str, dict[str, str]]:
        return "kept", {"Cache-Control": flask.request.headers["x-cache"]}

    @app.get("/moved")
    def moved() -> Any:
        return flask.redirect("/")

    @app.get("/form")
    def form() -> str:
        flask.g.ratebound.failed = flask.request.headers.get("x-password") != "right"
        return "shown"

    @app.get("/secret")
    def secret() -> str:
        raise AssertionError

    return app
