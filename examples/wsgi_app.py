"""WSGI: one line around any application. `gunicorn wsgi_app:application` serves it; run as it is, it asks itself."""

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

from ratebound.web.wsgi import RateLimitMiddleware


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


application = RateLimitMiddleware(hello, "3/minute")


def ask() -> None:
    environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.1"}
    setup_testing_defaults(environ)

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        print(status, dict(headers)["RateLimit"])

    application(environ, start_response)


if __name__ == "__main__":
    for _ in range(4):
        ask()
