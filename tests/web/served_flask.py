"""A Flask application for the tests of real servers. RATEBOUND_TEST_STORAGE says where it counts."""

import os
import time
from collections.abc import Iterator

import flask

from ratebound.web.flask import RateLimits

application = flask.Flask(__name__)
limiter = RateLimits(
    application,
    "20/hour",
    storage=os.environ.get("RATEBOUND_TEST_STORAGE", "memory://"),
    deadline=0.25,
    trusted=["127.0.0.1"],
)

if os.environ.get("RATEBOUND_TEST_DASHBOARD"):
    dashboard = limiter.dashboard(auth=lambda: flask.request.headers.get("x-role"))  # type: ignore[arg-type,return-value]
    application.register_blueprint(dashboard, url_prefix="/limits")


@application.get("/")
def home() -> str:
    return str(os.getpid())


@application.get("/users/<int:number>")
@limiter.limit("3/hour")
def user(number: int) -> str:
    return str(number)


@application.get("/login")
@limiter.limit("5/minute", charge="failure")
def login() -> tuple[str, int]:
    time.sleep(0.02)
    return "no", 401


@application.get("/stream")
def stream() -> flask.Response:
    return flask.Response(iter(["one", "two", "three"]))


@application.get("/endless")
@limiter.limit("3/hour", charge="failure", name="endless")
def endless() -> flask.Response:
    def parts() -> Iterator[str]:
        while True:
            yield "part " * 20
            time.sleep(0.02)

    return flask.Response(parts())


@application.get("/exports")
@limiter.limit("2 concurrent", name="exports")
def exports() -> flask.Response:
    return endless.__wrapped__()  # type: ignore[attr-defined,no-any-return]


@application.get("/download")
@limiter.limit("2 concurrent", name="download")
def download() -> flask.Response:
    return flask.send_file(__file__)
