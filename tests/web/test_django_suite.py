"""Django gives the answers that every framework gives, for threads and for tasks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from ratebound.testing import FakeClock
from tests.web import suite
from tests.web.django_site import HttpResponse, site, urlpatterns
from tests.web.drivers import asgi_client, wsgi_client


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)


@contextmanager
def client(kind: str) -> Iterator[Any]:
    send = wsgi_client(WSGIHandler()) if kind == "wsgi" else asgi_client(ASGIHandler())
    try:
        yield send
    finally:
        getattr(send, "close", lambda: None)()


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("claim", suite.TABLE)
def test_django_answers_as_every_framework_does(claim: str, kind: str, clock: FakeClock) -> None:
    with site(suite.options(clock, suite.Naps(), is_async=kind == "asgi")), client(kind) as send:
        suite.play(send, suite.TABLE[claim])


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_leaky_bucket_holds_requests_back_for_a_second_at_most(kind: str, clock: FakeClock) -> None:
    naps = suite.Naps()
    with site(suite.options(clock, naps, is_async=kind == "asgi")), client(kind) as send:
        suite.play_queue(send, naps)


class Worded:
    """A URLconf whose site words its rejections."""

    urlpatterns = urlpatterns

    @staticmethod
    def handler429(request: Any, refused: Any) -> Any:
        return HttpResponse(suite.WORDS, status=429, headers={"Cache-Control": suite.WORDS_CACHE})


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_no_cache_keeps_a_rejection_that_the_site_words(kind: str, clock: FakeClock) -> None:
    options = suite.options(clock, suite.Naps(), is_async=kind == "asgi")
    with site(options, ROOT_URLCONF=Worded), client(kind) as send:
        suite.play(send, suite.WORDED)
