"""Django: limited functions that a view calls, once or often, sync or async; what holds when one of them is refused."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from ratebound import MemoryStorage
from ratebound.web import request_limits
from ratebound.web.django import configured_limits, exempt, limit
from tests.web.django_running import running, view_for
from tests.web.django_site import MIDDLEWARE, site

Request = Any


def calling(kind: str, part: Any, answer: Any) -> Any:
    """A view that calls a part, and answers by what that says."""

    def view(request: Request) -> Any:
        return answer(request, part(request))

    async def view_async(request: Request) -> Any:
        return answer(request, await part(request))

    return view if kind == "wsgi" else view_async


# Rejected in part.


def test_a_view_that_goes_on_when_a_part_is_refused_is_not_free(kind: str, middleware: list[str]) -> None:
    part = limit("1/minute")(view_for(kind, name="part"))
    view = limit("4/minute")(calling(kind, part, lambda request, got: HttpResponse(str(got.status_code))))
    with running(kind, path("a", view), middleware=middleware) as sender:
        answers = [sender.get("/a") for _ in range(5)]
    assert [answer.body for answer in answers[:4]] == [b"200", b"429", b"429", b"429"]
    assert answers[4].status == 429
    assert [";r=2;" in dict(answers[1].headers)["ratelimit"], "retry-after" in dict(answers[1].headers)] == [
        True,
        False,
    ]


def test_the_policy_is_charged_when_a_part_is_refused_and_the_view_goes_on(kind: str) -> None:
    part = limit("1/minute")(view_for(kind, name="part"))
    view = calling(kind, part, lambda request, got: HttpResponse(str(got.status_code)))
    with running(kind, path("a", view), settings="4/minute") as sender:
        assert sender.passes("/a") == 4


def test_a_part_whose_refusal_leaves_gives_back_the_rest(kind: str, middleware: list[str]) -> None:
    part = limit("1/minute")(view_for(kind, name="part"))
    view = limit("4/minute", name="outer")(calling(kind, part, lambda request, got: got))
    other = limit("4/minute", name="outer")(view_for(kind))
    with running(kind, path("a", view), path("b", other), middleware=middleware) as sender:
        assert sender.passes("/a") == 1
        assert [sender.get("/a").status for _ in range(5)] == [429] * 5
        assert sender.passes("/b") == 3


def test_parts_that_pass_after_a_refused_one_join_what_was_before(kind: str, middleware: list[str]) -> None:
    refused = limit("1/minute")(view_for(kind, name="refused"))
    passes = limit("50/minute")(view_for(kind, name="passes"))

    def both(request: Request) -> Any:
        refused(request)
        return passes(request)

    async def both_async(request: Request) -> Any:
        await refused(request)
        return await passes(request)

    view = limit("9/minute", charge="failure")(both if kind == "wsgi" else both_async)
    with running(kind, path("a", view), middleware=middleware) as sender:
        answers = [sender.get("/a") for _ in range(12)]
    assert [answer.status for answer in answers] == [200] * 12
    assert ";r=9," in dict(answers[-1].headers)["ratelimit"]  # its charge was settled


def test_a_refusal_that_is_raised_gives_back_the_rest_if_nobody_catches_it(kind: str, middleware: list[str]) -> None:
    def denied(request: Request, refused: Any) -> Any:
        raise PermissionDenied

    part = limit("1/minute", on_breach=denied)(view_for(kind, name="part"))

    def catches(request: Request) -> Any:
        try:
            return part(request)
        except PermissionDenied:
            return HttpResponse("later")

    async def catches_async(request: Request) -> Any:
        try:
            return await part(request)
        except PermissionDenied:
            return HttpResponse("later")

    outer = limit("4/minute", name="outer")
    raising = outer(calling(kind, part, lambda request, got: got))
    catching = limit("4/minute", name="outer")(catches if kind == "wsgi" else catches_async)
    with running(kind, path("a", raising), path("b", catching), middleware=middleware) as sender:
        assert [sender.get("/a").status for _ in range(6)] == [200, 403, 403, 403, 403, 403]
        assert sender.passes("/b") == 3


# Called often.


def test_a_part_is_asked_each_time_it_is_called(kind: str, middleware: list[str]) -> None:
    part = limit("3/minute")(limit("9/minute")(view_for(kind, name="part")))

    def many(request: Request) -> Any:
        return HttpResponse(str([part(request).status_code for _ in range(4)]))

    async def many_async(request: Request) -> Any:
        return HttpResponse(str([(await part(request)).status_code for _ in range(4)]))

    view = many if kind == "wsgi" else many_async
    for outer in (view, limit("9/minute")(view)):
        with running(kind, path("a", outer), middleware=middleware) as sender:
            assert sender.get("/a").body == b"[200, 200, 200, 429]"


def test_parts_that_run_side_by_side_are_each_asked(middleware: list[str]) -> None:
    part = limit("9/minute")(limit("3/minute")(view_for("asgi", name="part")))

    async def many(request: Request) -> Any:
        got = await asyncio.gather(*(part(request) for _ in range(5)))
        return HttpResponse(str(sorted(one.status_code for one in got)))

    with running("asgi", path("a", limit("9/minute")(many)), middleware=middleware) as sender:
        assert sender.get("/a").body == b"[200, 200, 200, 429, 429]"


def test_one_limit_on_a_class_and_on_its_method_is_asked_once(kind: str, middleware: list[str]) -> None:
    class Page(View):  # type: ignore[misc]
        def get(self, request: Request) -> Any:
            return HttpResponse("get")

    class AsyncPage(View):  # type: ignore[misc]
        async def get(self, request: Request) -> Any:
            return HttpResponse("get")

    one = limit("3/minute", name="reports")
    above = Page if kind == "wsgi" else AsyncPage
    by_class: Any = one(method_decorator(one, name="get")(type("ByClass", (above,), {})))
    by_view: Any = method_decorator(limit("3/minute", name="others"), name="get")(type("ByView", (above,), {}))
    patterns = [path("a", by_class.as_view()), path("b", limit("3/minute", name="others")(by_view.as_view()))]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.passes("/a"), sender.passes("/b")] == [3, 3]


# From an async view.


def test_an_async_view_may_call_a_sync_part(kind: str, middleware: list[str]) -> None:
    part = limit("2/minute")(view_for("wsgi", name="part"))

    async def view(request: Request) -> Any:
        return part(request)

    with running(kind, path("a", view), middleware=middleware) as sender:
        answers = [sender.get("/a") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert dict(answers[2].headers)["retry-after"] == "60"


def test_an_async_view_may_call_a_sync_part_whose_refusal_is_awaited(kind: str, middleware: list[str]) -> None:
    async def busy(request: Request, refused: Any) -> Any:
        return HttpResponse("busy", status=503)

    part = limit("1/minute", on_breach=busy)(view_for("wsgi", name="part"))

    async def view(request: Request) -> Any:
        return part(request)

    with running(kind, path("a", view), middleware=middleware) as sender:
        assert [sender.get("/a").status for _ in range(2)] == [200, 503]


def looking_up_first(get_response: Any) -> Any:
    """A middleware that calls a function with limits of its own."""
    look_up = limit("9/minute", name="look-up")(view_for("wsgi", name="look_up"))

    def respond(request: Request) -> Any:
        look_up(request)
        return get_response(request)

    return respond


def test_a_request_that_is_rejected_gives_back_what_a_middleware_was_charged_for(kind: str) -> None:
    views = path("a", limit("1/minute")(view_for(kind))), path("b", view_for(kind, name="other"))
    stack = [MIDDLEWARE, f"{__name__}.{looking_up_first.__name__}"]
    with running(kind, *views, middleware=stack) as sender:
        assert [sender.get("/a").status for _ in range(4)] == [200, 429, 429, 429]
        assert '"look-up/minute";r=7' in dict(sender.get("/b").headers)["ratelimit"]


# Made anew.


def test_limits_that_are_made_for_each_request_are_one_quota(kind: str, middleware: list[str]) -> None:
    inner = view_for(kind, name="inner")

    def view(request: Request) -> Any:
        return limit("2/minute", key=[lambda _: request.GET.get("q"), "address"])(inner)(request)

    async def view_async(request: Request) -> Any:
        return await limit("2/minute", key=[lambda _: request.GET.get("q"), "address"])(inner)(request)

    patterns = [path("a", view if kind == "wsgi" else view_async)]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.passes(f"/a?q={q}") for q in "xyx"] == [2, 2, 0]
        assert len(configured_limits().views.per_request) == 1


def test_limits_without_end_are_no_leak(kind: str, middleware: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_ENDPOINTS", 10)
    inner = view_for(kind, name="inner")

    def view(request: Request, count: int) -> Any:
        return limit(f"{count}/minute", name=f"of-{count}")(inner)(request)

    async def view_async(request: Request, count: int) -> Any:
        return await limit(f"{count}/minute", name=f"of-{count}")(inner)(request)

    patterns = [path("a/<int:count>", view if kind == "wsgi" else view_async)]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert {sender.get(f"/a/{count}").status for _ in range(2) for count in range(50, 80)} == {200}
        keep: Any = configured_limits()
        gate = keep.gate if kind == "wsgi" else keep.tasks.gate
        assert len(keep.views.per_request) == 10
        assert max(len(gate._table._alone), len(gate._table._named)) <= 10


def test_a_request_is_let_go_when_it_is_done(kind: str, middleware: list[str]) -> None:
    kept: list[Any] = []

    def note(request: Request) -> str:
        kept.append(weakref.ref(request))
        return "ok"

    view = limit("9/minute", key=lambda request: request.method)(view_for(kind, note))
    with running(kind, path("a", view), middleware=middleware) as sender:
        assert sender.get("/a").status == 200
        gc.collect()
        assert kept[0]() is None


# What it is called with, and what comes of it.


def test_a_request_that_was_made_by_hand_is_limited_as_well() -> None:
    request = HttpRequest()
    request.method = "GET"
    request.META["REMOTE_ADDR"] = "10.0.0.7"
    seen: list[str] = []

    def view(request: Request) -> Any:
        seen.append(request.ratebound.verdict.identities[0].key)
        return HttpResponse("ok")

    with site({"storage": MemoryStorage()}):
        assert [limit("9/minute")(view)(request).status_code for _ in range(2)] == [200, 200]
    assert seen == ["address:10.0.0.7"] * 2


def test_an_error_that_becomes_a_response_settles(kind: str, middleware: list[str]) -> None:
    def missing(request: Request) -> str:
        raise Http404

    def broken(request: Request) -> str:
        raise ZeroDivisionError

    views = {
        "missing": limit("2/minute", charge="success")(view_for(kind, missing, "missing")),
        "broken": limit("2/minute", charge="success")(view_for(kind, broken, "broken")),
        "failing": limit("2/minute", charge="failure")(view_for(kind, missing, "failing")),
    }
    with running(kind, *(path(name, view) for name, view in views.items()), middleware=middleware) as sender:
        assert [sender.passes(f"/{name}") for name in views] == [20, 20, 2]


def test_a_part_that_is_exempt_asks_nothing(kind: str, middleware: list[str]) -> None:
    part = exempt(limit("1/minute")(view_for(kind, name="part")))
    view = calling(kind, part, lambda request, got: got)
    with running(kind, path("a", view), middleware=middleware) as sender:
        assert sender.passes("/a") == 20
