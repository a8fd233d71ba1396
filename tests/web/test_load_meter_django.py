"""`concurrent: auto` in Django, for threads and for tasks."""

from tests.web.django_site import site  # first: it makes the settings

# isort: split
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from ratebound.web.django.configuration import configured_limits
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.test_load_meter import ONE, check_shed


@pytest.mark.parametrize(
    ("handler", "client_of", "caller"), [(WSGIHandler, wsgi_client, "threads"), (ASGIHandler, asgi_client, "tasks")]
)
def test_django(handler: Callable[[], Any], client_of: Callable[[Any], Any], caller: str) -> None:
    with site({"policy": "unlimited", "concurrent": ONE}):
        client = client_of(handler())
        try:
            assert client("GET", "/", {}).status == 200
            in_flight = getattr(configured_limits(), caller).gate.meter.in_flight
            assert in_flight.now_in == 0
            assert in_flight.enter()
            answer = client("GET", "/", {})
            check_shed(answer.status, dict(answer.headers), answer.body)
            in_flight.leave()
            assert client("GET", "/", {}).status == 200
            assert client("GET", "/stream", {}).body == b"onetwothree"
            assert (in_flight.now_in, in_flight.shed) == (0, 1)
        finally:
            getattr(client, "close", int)()
