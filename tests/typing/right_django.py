"""Django and its REST framework, which have no types of their own."""
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# mypy: disallow-subclassing-any=false

from typing import assert_type

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from ratebound.web import Rejected
from ratebound.web.django import Operator, Settings, dashboard, exempt, limit, staff_operator
from ratebound.web.drf import throttle

RATEBOUND: Settings = {
    "policy": "100/minute",
    "user": "shop.users.current",
    "storage": "memory://",
    "failure": "open",
    "headers": {"styles": "x-ratelimit", "retry_after": "date"},
}


def user_of(request: HttpRequest) -> str:
    return "ann"


def told(request: HttpRequest, refused: Rejected) -> HttpResponse | None:
    return None


@limit("5/minute", key=user_of, methods=["POST"], charge="failure", on_breach=told)
@limit("20/minute", key=["user", user_of], cost=lambda request: 2)
def login(request: HttpRequest, number: int) -> int:
    return number


@limit(lambda request: "5/minute", otherwise="1/minute", exempt_when=lambda request: False, mode="shadow")
async def waiting(request: HttpRequest) -> str:
    return ""


@limit("5/minute", failure="closed")
class Page(View):
    throttle_classes = [throttle("5/minute", name="pages")]

    def count(self) -> int:
        return 1


@method_decorator(limit("1/minute"), name="get")
class Report(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@exempt
def free(request: HttpRequest) -> str:
    return ""


def is_operator(request: HttpRequest) -> Operator | None:
    return Operator("ann", "read")


urlpatterns = [path("limits/", dashboard(auth=staff_operator)), path("wall/", dashboard(auth=is_operator))]


async def calls(request: HttpRequest) -> None:
    assert_type(login(request, 1), int)
    assert_type(await waiting(request), str)
    assert_type(Page().count(), int)
    assert_type(free(request), str)
