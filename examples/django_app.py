"""Django in one file: a policy in the settings, limits on views, both sync and async; logins that count only when they
fail. `gunicorn django_app:application` serves it from this folder; run as it is, it asks itself."""

import asyncio
from typing import Any

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="an example has none",
    LOGGING_CONFIG=None,
    MIDDLEWARE=["ratebound.web.django.RateLimitMiddleware"],
    RATEBOUND={
        "policy": {
            "rules": [
                {"name": "site", "limits": "100/minute"},
                {"name": "users", "limits": "3/minute", "match": {"paths": ["/users/{number}"]}},
            ],
        },
    },
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402 - what follows needs the settings
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import AsyncClient, Client  # noqa: E402
from django.urls import path  # noqa: E402

from ratebound.web.django import limit  # noqa: E402


def user(request: Any, number: int) -> Any:
    return HttpResponse(f"user {number}")


@limit("5/15 minutes", key=lambda request: request.POST.get("name"), charge="failure")
def login(request: Any) -> Any:
    right = request.POST.get("password") == "correct horse"
    return HttpResponse("welcome" if right else "wrong", status=200 if right else 401)


@limit("2/minute")
async def report(request: Any) -> Any:
    return HttpResponse(f"{request.ratebound.decision.remaining} left")


def too_many(request: Any, rejected: Any) -> Any:
    return HttpResponse(f"Please wait {rejected.retry_after:.0f} seconds.", status=429)


urlpatterns = [path("users/<int:number>", user), path("login", login), path("report", report)]
handler429 = too_many
application = get_wsgi_application()
asgi_application = get_asgi_application()


async def ask_for_reports() -> None:
    client = AsyncClient()
    for _ in range(3):
        response = await client.get("/report")
        print("GET /report:", response.status_code, response.content.decode())


if __name__ == "__main__":
    client = Client()
    for number in range(1, 5):
        response = client.get(f"/users/{number}")
        print(f"GET /users/{number}: {response.status_code}  {response['RateLimit']}")
    for password in ["correct horse"] * 2 + ["guess"] * 6:
        response = client.post("/login", {"name": "ann", "password": password})
        print(f"POST /login {password!r}: {response.status_code}  {response.content.decode()}")
    asyncio.run(ask_for_reports())
