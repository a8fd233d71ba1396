"""Django: what a response is told and what it costs, whatever kind of response it is and whoever stands around."""

import io
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.urls import path

from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.web.asgi import RateLimitMiddleware as AsgiMiddleware
from ratebound.web.django import limit
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.django_running import running, view_for
from tests.web.drivers import environ_of

Request = Any
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]


def sent(outcome: FinishedResponse) -> int:
    return outcome.sent


def remaining(sender: Any) -> str:
    """What the quota `tokens` has left for the next one."""
    return str(dict(sender.get("/left").headers)["ratelimit"].partition(";r=")[2].partition(";")[0])


def left(kind: str, limits: str = "1000/minute") -> Any:
    return path("left", limit(limits, name="tokens")(view_for(kind, name="left")))


# Streams.


def test_a_charge_inside_of_a_stream_is_settled_at_its_end(kind: str, middleware: list[str]) -> None:
    def stream(request: Request) -> Any:
        def parts() -> Iterator[bytes]:
            yield b"some "
            yield b"tokens"
            request.ratebound.charge(60)

        return StreamingHttpResponse(parts())

    async def stream_async(request: Request) -> Any:
        async def parts() -> AsyncIterator[bytes]:
            yield b"some "
            yield b"tokens"
            request.ratebound.charge(60)

        return StreamingHttpResponse(parts())

    view = limit("1000/minute", name="tokens")(stream if kind == "wsgi" else stream_async)
    with running(kind, path("a", view), left(kind), middleware=middleware) as sender:
        assert sender.get("/a").body == b"some tokens"
        assert remaining(sender) == "939"


def test_a_charge_after_the_response_is_complete_is_an_error(kind: str, middleware: list[str]) -> None:
    seen: list[Any] = []

    def note(request: Request) -> str:
        seen.append(request.ratebound)
        return "ok"

    view = limit("1000/minute", name="tokens")(view_for(kind, note))
    with running(kind, path("a", view), middleware=middleware) as sender:
        sender.get("/a")
    with pytest.raises(RuntimeError, match="complete"):
        seen[0].charge(60)


def test_an_async_stream_without_an_event_loop_is_charged_as_any_other(middleware: list[str]) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 30
        yield b"x" * 10

    def stream(request: Request) -> Any:
        return StreamingHttpResponse(parts())

    async def stream_async(request: Request) -> Any:
        return StreamingHttpResponse(parts())

    said = limit("1000/minute", name="tokens", charge=sent)
    patterns = [path("a", said(stream)), path("b", said(stream_async)), left("wsgi")]
    with running("wsgi", *patterns, middleware=middleware) as sender, warnings.catch_warnings():
        warnings.simplefilter("ignore", Warning)  # Django warns that it has to read all of it first
        assert [len(sender.get(where).body) for where in ("/a", "/b")] == [40, 40]
        assert remaining(sender) == "919"


def test_a_sync_stream_in_an_event_loop_is_charged_as_any_other(middleware: list[str]) -> None:
    async def stream(request: Request) -> Any:
        return StreamingHttpResponse([b"x" * 30, b"x" * 10])

    patterns = [path("a", limit("1000/minute", name="tokens", charge=sent)(stream)), left("asgi")]
    with running("asgi", *patterns, middleware=middleware) as sender, warnings.catch_warnings():
        warnings.simplefilter("ignore", Warning)
        assert len(sender.get("/a").body) == 40
        assert remaining(sender) == "959"


def test_a_file_is_still_sent_by_the_server_unless_its_bytes_count() -> None:
    def download(request: Request) -> Any:
        return FileResponse(io.BytesIO(b"x" * 40))

    taken: list[Any] = []

    def wrapper(file: Any, size: int) -> Any:
        taken.append(file)
        return iter(lambda: file.read(size), b"")

    counted = limit("1000/minute", name="tokens", charge=sent)(download)
    patterns = [path("a", limit("9/minute", name="plain")(download)), path("b", counted), left("wsgi")]
    with running("wsgi", *patterns, settings="9/minute") as sender:
        for where, count in (("/a", 1), ("/b", 1)):
            environ = {**environ_of("GET", where), "wsgi.file_wrapper": wrapper}
            body = sender.handler(environ, lambda *_: lambda part: None)
            assert b"".join(body) == b"x" * 40
            assert len(taken) == count
        assert remaining(sender) == "959"


# What has no body, and what has none yet.


def test_a_head_is_not_charged_for_bytes_that_are_not_sent(kind: str, middleware: list[str]) -> None:
    def stream(request: Request) -> Any:
        return StreamingHttpResponse([b"x" * 40])

    async def stream_async(request: Request) -> Any:
        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * 40

        return StreamingHttpResponse(parts())

    said = limit("1000/minute", name="tokens", charge=sent)
    patterns = [
        path("a", said(view_for(kind, lambda request: "x" * 40))),
        path("b", said(stream if kind == "wsgi" else stream_async)),
        left(kind),
    ]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.get(where, "HEAD").status for where in ("/a", "/b")] == [200, 200]
        assert remaining(sender) == "999"
        assert [len(sender.get(where).body) for where in ("/a", "/b")] == [40, 40]
        assert remaining(sender) == "918"


def test_a_response_that_is_rendered_later_is_charged_when_it_is(kind: str, middleware: list[str]) -> None:
    def page(request: Request) -> Any:
        return TemplateResponse(request, engines["django"].from_string("{{ 40 }} bytes"))

    async def page_async(request: Request) -> Any:
        return page(request)

    view = limit("1000/minute", name="tokens", charge=sent)(page if kind == "wsgi" else page_async)
    with (
        override_settings(TEMPLATES=TEMPLATES),
        running(kind, path("a", view), left(kind), middleware=middleware) as sender,
    ):
        answer = sender.get("/a")
        assert answer.body == b"40 bytes"
        assert ";r=992;" in dict(answer.headers)["ratelimit"]
        assert remaining(sender) == "991"


def test_limits_on_a_class_and_on_its_method_are_told_and_settled_once(middleware: list[str]) -> None:
    """The innermost of several decorators must not settle before the others have answered."""
    inner = limit("1000/minute", name="tokens")(view_for("wsgi"))

    @limit("500/minute", name="outer", charge=sent)
    def outer(request: Request) -> Any:
        response = inner(request)
        request.ratebound.charge(60, rule="tokens")
        return response

    with running("wsgi", path("a", outer), left("wsgi"), middleware=middleware) as sender:
        told = dict(sender.get("/a").headers)["ratelimit"]
        assert [part.split(";")[:2] for part in told.split(", ")] == [
            ['"outer/minute"', "r=498"],
            ['"tokens/minute"', "r=940"],
        ]
        assert remaining(sender) == "939"


# A gate around the site.


def test_of_two_gates_the_one_nearest_to_the_view_tells(kind: str, middleware: list[str]) -> None:
    around: Any = WsgiMiddleware if kind == "wsgi" else AsgiMiddleware
    patterns = [path("a", limit("3/minute")(view_for(kind))), path("b", view_for(kind, name="other"))]
    with running(kind, *patterns, middleware=middleware) as sender:
        sender.handler = around(sender.handler, "100/minute")
        answers = [sender.get("/a") for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        for answer, count in zip(answers, (2, 1, 0, 0), strict=True):
            assert [name for name, _ in answer.headers].count("ratelimit") == 1
            assert f"r={count};" in dict(answer.headers)["ratelimit"]
            assert "q=3;" in dict(answer.headers)["ratelimit-policy"]
        other = dict(sender.get("/b").headers)
        assert "q=100;" in other["ratelimit-policy"]  # where ours has nothing to tell


def test_an_async_handler429_answers_in_a_thread_as_well(kind: str, middleware: list[str]) -> None:
    async def too_many(request: Request, refused: Any) -> Any:
        return HttpResponse("later", status=429)

    pattern = path("a", limit("1/minute")(view_for(kind)))
    with running(kind, pattern, middleware=middleware, handler429=too_many) as sender:
        sender.get("/a")
        answer = sender.get("/a")
    assert (answer.status, answer.body) == (429, b"later")


# Rejections.


def test_a_refusal_may_be_a_template_wherever_it_is_made(kind: str) -> None:
    def busy(request: Request, refused: Any) -> Any:
        return TemplateResponse(request, engines["django"].from_string("busy"), status=429)

    early = {"rules": [{"name": "all", "limits": "1/minute", "stage": "early"}]}
    for policy, where in (("1/minute", "/a"), ("1/minute", "/nowhere"), (early, "/a")):
        settings = {"policy": policy}
        patterns = [path("a", view_for(kind))]
        with (
            override_settings(TEMPLATES=TEMPLATES),
            running(kind, *patterns, settings=settings, handler429=busy) as sender,
        ):
            sender.get(where)
            answer = sender.get(where)
        assert [answer.status, answer.body] == [429, b"busy"]
        assert dict(answer.headers)["retry-after"] == "60"


def test_a_response_that_is_sent_twice_exposes_each_header_once(kind: str) -> None:
    response = HttpResponse("always")

    def view(request: Request) -> Any:
        return response

    async def view_async(request: Request) -> Any:
        return response

    with running(kind, path("a", view if kind == "wsgi" else view_async), settings="9/minute") as sender:
        told = [dict(sender.get("/a", origin="https://a.example").headers) for _ in range(3)]
    assert len({one["access-control-expose-headers"] for one in told}) == 1
