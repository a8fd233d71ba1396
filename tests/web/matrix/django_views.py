"""The site in Django. Django is configured once for a process; `application` changes the settings that a cell needs."""

from collections.abc import Callable
from functools import cache
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.signals import setting_changed
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path
from django.views.decorators.http import require_http_methods

from tests.web.matrix import sites

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="for tests",
        MIDDLEWARE=[],
        RATEBOUND=None,
        LOGGING_CONFIG=None,
        APPEND_SLASH=False,
    )
    django.setup()

from ratebound.web.django import limit


def view(name: str) -> Any:
    def ran(request: Any, rest: str = "") -> Any:
        return HttpResponse("ran", headers=sites.run(name))

    ran.__name__ = ran.__qualname__ = name
    if name == "own":
        return limit(sites.LIMIT, key="global")(ran)
    return require_http_methods(["DELETE"])(ran) if name == "erase" else ran


urlpatterns = [
    path(pattern[1:].replace("{rest}", "<path:rest>"), view(name))
    for name, (pattern, _) in sites.PATHS.items()
    if name not in sites.SUB
]
urlpatterns.append(path("sub/", include([path(below[1:], view(name)) for name, below in sites.SUB.items()])))


@cache
def handler(interface: str, *, middleware: bool) -> Any:
    settings.MIDDLEWARE = ["ratebound.web.django.RateLimitMiddleware"] if middleware else []
    return get_asgi_application() if interface == "asgi" else get_wsgi_application()


_current: list[Any] = [None]


def _use(policy: str, forced: str | None, cell: object) -> None:
    """Change the settings if the cell before was another: its counts end with it."""
    if _current[0] is not cell:
        _current[0] = cell
        settings.FORCE_SCRIPT_NAME = forced
        settings.RATEBOUND = {"policy": sites.policy_of(policy)}
        for name in ("FORCE_SCRIPT_NAME", "RATEBOUND"):
            setting_changed.send(sender=None, setting=name, value=getattr(settings, name), enter=True)


def application(interface: str, policy: str, *, middleware: bool, forced: str | None) -> Any:
    cell = object()
    _use(policy, forced, cell)
    app = handler(interface, middleware=middleware)

    async def tasks(scope: Any, receive: Any, send: Any) -> None:
        _use(policy, forced, cell)
        await app(scope, receive, send)

    def threads(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        _use(policy, forced, cell)
        return app(environ, start_response)

    return tasks if interface == "asgi" else threads
