"""A Django site with users and a database, as a program: it logs in, right and wrong, and prints the statuses.

Arguments: wsgi or asgi, whether the middleware is installed, and the file of the database.
"""

import asyncio
import json
import sys
from typing import Any

import django
from django.conf import settings

KIND, HAS_MIDDLEWARE, DATABASE = sys.argv[1], sys.argv[2] == "middleware", sys.argv[3]
FORM = "{{ form }}"

settings.configure(
    SECRET_KEY="for tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[
        *(f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")),
        "ratebound.web.django",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    LOGIN_URL="/login",
    LOGIN_REDIRECT_URL="/",
    USE_TZ=True,
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ],
                "loaders": [
                    (
                        "django.template.loaders.locmem.Loader",
                        {"registration/login.html": FORM, "admin/login.html": FORM},
                    )
                ],
            },
        }
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        *(["ratebound.web.django.RateLimitMiddleware"] if HAS_MIDDLEWARE else []),
    ],
    RATEBOUND={
        "policy": {
            "rules": [
                {"name": "admin", "limits": "3/hour", "match": {"paths": ["/admin/login/"], "methods": ["POST"]}},
                {"name": "rest", "limits": "unlimited", "default": True},
            ],
            "trusted": ["127.0.0.1"],
        },
        "charge": {"admin": "failure"},
    },
)
django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth import aauthenticate, authenticate, login  # noqa: E402
from django.contrib.auth.decorators import login_required  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.auth.views import LoginView  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import AsyncClient, Client  # noqa: E402
from django.urls import path  # noqa: E402

from ratebound.web.django import limit  # noqa: E402

few = limit("3/hour", key="address", charge="failure")


def credentials(request: Any) -> dict[str, str]:
    return {"username": request.POST["username"], "password": request.POST["password"]}


@few
def bare(request: Any) -> Any:
    """A view that does not hand its request to Django, and answers 200 to everybody."""
    return HttpResponse("no" if authenticate(**credentials(request)) is None else "yes")


@few
async def awaited(request: Any) -> Any:
    return HttpResponse("no" if await aauthenticate(**credentials(request)) is None else "yes")


@few
def several(request: Any) -> Any:
    """A view in which a client tries passwords, of which the last is right."""
    authenticate(request, username="ann", password="a guess")
    login(request, authenticate(request, username="ann", password="right"))
    return HttpResponse("yes")


@few
def strange(request: Any) -> Any:
    """Status 418 for who has logged in: no failure all the same."""
    user = authenticate(request, **credentials(request))
    if user is not None:
        login(request, user)
    return HttpResponse(status=418)


@few
def told(request: Any) -> Any:
    """A view that says by itself how it went."""
    request.ratebound.failed = request.POST["password"] != "right"
    return HttpResponse("shown again")


@login_required  # type: ignore[untyped-decorator]
@limit("2/hour", key=["user", "address"])
def export(request: Any) -> Any:
    return HttpResponse("all of it")


urlpatterns = [
    path("form", few(LoginView.as_view())),
    path("admin/", admin.site.urls),
    path("bare", bare),
    path("awaited", awaited),
    path("several", several),
    path("strange", strange),
    path("told", told),
    path("export", export),
]


class Visitor:
    """A client with an address of its own, which forgets its cookies."""

    last = 0

    def __init__(self) -> None:
        Visitor.last += 1
        self.address = f"192.0.2.{Visitor.last}"

    def send(self, where: str, password: str | None = None, user: Any = None) -> int:
        headers = {"x-forwarded-for": self.address}
        client = Client() if KIND == "wsgi" else AsyncClient()
        if user is not None:
            client.force_login(user)
        form = {"username": "ann", "password": password}
        sent = client.get(where, headers=headers) if password is None else client.post(where, form, headers=headers)
        return int((sent if KIND == "wsgi" else asyncio.run(_awaited(sent))).status_code)

    def try_all(self, where: str, passwords: str) -> list[int]:
        return [self.send(where, "right" if one == "r" else "wrong") for one in passwords]


async def _awaited(response: Any) -> Any:
    return await response


def main() -> None:
    call_command("migrate", verbosity=0)
    ann = User.objects.create_superuser("ann", password="right")
    places = ["form", "admin/login/", "bare", "awaited", "several", "strange", "told"]
    found: dict[str, Any] = {place: Visitor().try_all(f"/{place}", "wrwrwww") for place in places}
    found["only right"] = Visitor().try_all("/form", "rrrrr")
    somebody = Visitor()
    found["export"] = [somebody.send("/export") for _ in range(3)]
    found["export of ann"] = [somebody.send("/export", user=ann) for _ in range(3)]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
