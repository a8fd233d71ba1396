"""Small applications for the tests of the web."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import flask

from ratebound.web.flask import RateLimits
from tests.web.django_site import MIDDLEWARE, HttpResponse, path, site
from tests.web.drivers import environ_of, fetch, wsgi_fetch
from tests.web.suite import Answer

SLOW = "timeout=5&connect_timeout=5"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def hello_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


def fields(answer: Answer, name: str) -> list[str]:
    return [value for key, value in answer.headers if key == name]


async def statuses(app: Any, where: str, times: int) -> list[int]:
    return [(await fetch(app, "GET", where)).status for _ in range(times)]


def flask_site(*policy: Any, **options: Any) -> tuple[flask.Flask, RateLimits]:
    app = flask.Flask("tests.site")
    return app, RateLimits(app, *policy, **options)


def flask_statuses(app: flask.Flask, where: str, times: int) -> list[int]:
    client = app.test_client()
    return [client.get(where).status_code for _ in range(times)]


@contextmanager
def django_site() -> Iterator[Callable[..., Answer]]:
    """A function that sends a request to a site with these settings, which is made by the first request."""
    from django.core.handlers.wsgi import WSGIHandler

    kept: list[Any] = []

    def get(settings: dict[str, Any], views: dict[str, Any], where: str, method: str = "GET") -> Answer:
        if not kept:
            module = ModuleType("urls")
            module.__dict__["urlpatterns"] = [path(place.lstrip("/"), view) for place, view in views.items()]
            opened = site(settings, ROOT_URLCONF=module, MIDDLEWARE=[MIDDLEWARE])
            opened.__enter__()
            kept.extend([opened, WSGIHandler()])
        return wsgi_fetch(kept[1], environ_of(method, where))

    yield get
    if kept:
        from ratebound.web.django.configuration import close

        close()
        kept[0].__exit__(None, None, None)


def ok(request: Any) -> Any:
    return HttpResponse("ok")


def named(name: str) -> Any:
    """A view of its own."""

    def view(request: Any) -> Any:
        return HttpResponse(name)

    view.__name__ = view.__qualname__ = name
    return view
