"""Django sites for the tests: some URLs, a clock that stands still, and who sends requests, as WSGI or as ASGI."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from tests.web.django_site import MIDDLEWARE, site
from tests.web.drivers import environ_of, fetch, wsgi_fetch
from tests.web.suite import Answer

Request = Any


class Sender:
    """Sends requests to a handler, in this thread or in one event loop."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.handler = WSGIHandler() if kind == "wsgi" else ASGIHandler()
        self.loop = asyncio.new_event_loop()

    def get(self, where: str, method: str = "GET", body: Any = b"", **headers: str) -> Answer:
        if self.kind == "wsgi":
            return wsgi_fetch(self.handler, environ_of(method, where, headers, body))
        return self.loop.run_until_complete(fetch(self.handler, method, where, headers, body))

    def passes(self, where: str, most: Any = 20, method: str = "GET", **headers: str) -> int:
        for count in range(most):
            if self.get(where, method, **headers).status == 429:
                return count
        return int(most)


@contextmanager
def running(
    kind: str, *patterns: Any, settings: Any = None, middleware: list[str] | None = None, **urlconf: Any
) -> Iterator[Sender]:
    """A site with these URLs, on a clock that stands still."""
    module = ModuleType("urls")
    module.__dict__.update(urlpatterns=list(patterns), **urlconf)
    given = {"policy": settings} if not isinstance(settings, dict) else settings
    given = {"storage": MemoryStorage(clock=FakeClock()), **given}
    with site(given, ROOT_URLCONF=module, MIDDLEWARE=[MIDDLEWARE] if middleware is None else middleware):
        sender = Sender(kind)
        try:
            yield sender
        finally:
            sender.loop.close()


def view_for(kind: str, answer: Callable[[Request], Any] = lambda request: "ok", name: str = "view") -> Any:
    """A view for threads or for tasks."""

    def view(request: Request, **_: Any) -> Any:
        return HttpResponse(answer(request))

    async def view_async(request: Request, **_: Any) -> Any:
        return HttpResponse(answer(request))

    found = view if kind == "wsgi" else view_async
    found.__qualname__ = found.__name__ = name
    return found
