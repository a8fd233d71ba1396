"""Django: what is declared where, for threads and for tasks, with the middleware and without."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View

from ratebound.policy import Policy, PolicyError, RequestView, Rule
from ratebound.policy.cost import json_batch_cost
from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.web.django import aclose, configured_limits, exempt, limit
from tests.servers import Server
from tests.web.django_running import running, view_for
from tests.web.django_site import MIDDLEWARE, site
from tests.web.drivers import environ_of, fetch, http_scope, wsgi_fetch
from tests.web.suite import Answer

Request = Any
NOBODY = SimpleNamespace(pk=None, is_authenticated=False)
BOTH = [MIDDLEWARE, __name__ + ".logged_in"]


def logged_in(get_response: Any) -> Any:
    """Stands in for AuthenticationMiddleware, below ours, with a user that is looked up only when asked for."""

    def answer(request: Request) -> Any:
        number = request.headers.get("x-user")
        request.user = SimpleNamespace(pk=int(number), is_authenticated=True) if number else NOBODY
        return get_response(request)

    async def answer_async(request: Request) -> Any:
        number = request.headers.get("x-user")

        async def auser() -> Any:
            return SimpleNamespace(pk=int(number), is_authenticated=True) if number else NOBODY

        request.auser = auser
        return await get_response(request)

    return answer_async if asyncio.iscoroutinefunction(get_response) else answer


logged_in.sync_capable = logged_in.async_capable = True  # type: ignore[attr-defined]


# Where limits are said.


def test_a_view_is_limited_with_the_middleware_and_without(kind: str, middleware: list[str]) -> None:
    view = limit("2/minute")(view_for(kind, lambda request: request.ratebound.decision.remaining))
    with running(kind, path("u/<int:number>", view), middleware=middleware) as sender:
        answers = [sender.get(f"/u/{number}") for number in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]  # peers: row 13; not 403: section 3, item 18
    assert [answer.body for answer in answers[:2]] == [b"1", b"0"]
    for answer, left in zip(answers, (1, 0, 0), strict=True):
        told = [value for name, value in answer.headers if name == "ratelimit"]
        assert told == [f'"tests.web.django_running.view/minute";r={left};t=60']
    assert [value for name, value in answers[2].headers if name == "retry-after"] == ["60"]


def test_bad_limits_raise_where_they_are_written() -> None:  # peers: row 14
    with pytest.raises(PolicyError, match="fortnight"):
        limit("5 per fortnight")
    with pytest.raises(TypeError, match="unknown"):
        limit("5/minute", unknown=True)  # type: ignore[call-arg]
    for wrong in ("5 per fortnight", {"policy": {"rules": [{"name": "a", "limits": "5/fortnight"}]}}):
        with site(wrong), pytest.raises(PolicyError, match="fortnight"):
            WSGIHandler()
    with site({"policy": "5/minute", "mistake": 1}), pytest.raises(TypeError, match="mistake"):
        WSGIHandler()


def test_stacked_limits_are_all_asked_at_once(kind: str, middleware: list[str]) -> None:
    view = limit("5/minute")(limit("3/minute")(view_for(kind)))
    with running(kind, path("a", view), middleware=middleware) as sender:
        assert sender.passes("/a") == 3
        told = [value for name, value in sender.get("/a").headers if name == "ratelimit"]
    assert len(told) == 1
    assert told[0].count(";r=") == 2
    assert ";r=0" in told[0]
    assert ";r=2" in told[0]  # the refused cost nothing


def test_class_based_views_are_limited_as_a_whole_or_by_method(kind: str, middleware: list[str]) -> None:
    if kind == "wsgi":

        class Page(View):  # type: ignore[misc]
            def get(self, request: Request) -> Any:
                return HttpResponse("get")

            def post(self, request: Request) -> Any:
                return HttpResponse("post")
    else:

        class Page(View):  # type: ignore[misc, no-redef]
            async def get(self, request: Request) -> Any:
                return HttpResponse("get")

            async def post(self, request: Request) -> Any:
                return HttpResponse("post")

    decorated = limit("2/minute")(type("Decorated", (Page,), {}))
    dispatch = method_decorator(limit("3/minute"), name="dispatch")(type("Dispatch", (Page,), {}))
    by_method = method_decorator(limit("1/minute"), name="post")(type("ByMethod", (Page,), {}))
    wrapped = limit("4/minute")(Page.as_view())
    patterns = [
        path("decorated", decorated.as_view()),  # type: ignore[attr-defined]
        path("dispatch", dispatch.as_view()),
        path("by-method", by_method.as_view()),
        path("wrapped", wrapped),
        path("plain", Page.as_view()),
    ]
    with running(kind, *patterns, middleware=middleware) as sender:
        passes = [sender.passes(f"/{name}") for name in ("decorated", "dispatch", "by-method", "wrapped", "plain")]
        assert passes == [2, 3, 20, 4, 20]
        assert sender.passes("/by-method", method="POST") == 1
        assert sender.passes("/decorated", method="HEAD") == 0
        made = len(configured_limits().views._endpoints)
        sender.passes("/dispatch")
        assert len(configured_limits().views._endpoints) == made  # nothing grows with the number of requests


def test_views_of_one_name_in_two_modules_do_not_share(kind: str) -> None:  # peers: row 24
    views = []
    for module in ("accounts.views", "shop.views"):
        view = view_for(kind, name="login")
        view.__module__ = module
        views.append(limit("2/minute")(view))
    with running(kind, path("a", views[0]), path("b", views[1])) as sender:
        assert [sender.passes("/a"), sender.passes("/b")] == [2, 2]


def test_a_name_shares_one_quota(kind: str) -> None:
    views = [limit("3/minute", name="reports")(view_for(kind, name=name)) for name in ("one", "two")]
    with running(kind, path("a", views[0]), path("b", views[1])) as sender:
        assert [sender.get(where).status for where in ("/a", "/b", "/a", "/b")] == [200, 200, 200, 429]


def test_limits_by_policy_and_by_decorator_live_together(kind: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "rules:\n  - {name: all, limits: 5/minute}\n  - {name: users, limits: 2/minute, match: {paths: ['/u/{id}']}}\n"
    )
    patterns = [
        path("a", limit("3/minute")(view_for(kind))),
        path("u/<int:id>", view_for(kind)),
        path("free", exempt(view_for(kind))),
    ]
    with running(kind, *patterns, settings=str(tmp_path / "policy.yaml")) as sender:
        assert [sender.passes("/a"), sender.passes("/u/1"), sender.passes("/u/2")] == [3, 2, 0]
        assert sender.passes("/free") == 20


def test_a_policy_may_stand_in_the_settings(kind: str) -> None:
    policy = {"rules": [{"name": "users", "limits": "2/minute", "match": {"paths": ["/u/{id}"]}}]}
    with running(kind, path("u/<int:id>", view_for(kind)), settings={"policy": policy}) as sender:
        assert sender.passes("/u/1") == 2


def test_the_route_is_known_as_its_template(kind: str) -> None:
    seen: list[Any] = []

    def note(request: Request) -> str:
        seen.append(request._ratebound.view.route)
        return "ok"

    view = view_for(kind, note)
    patterns = [
        path("api/", include([path("u/<int:pk>/", view), path("f/<path:rest>", view)])),
        re_path(r"^old/(?P<year>[0-9]{4})/$", view),
    ]
    policy = {"rules": [{"name": "years", "limits": "100/minute", "match": {"paths": ["/old/{year}"]}}]}
    with running(kind, *patterns, settings={"policy": policy}) as sender:
        for where in ("/api/u/7/", "/api/f/a/b", "/old/2024/"):
            assert sender.get(where).status == 200
    assert seen == ["/api/u/{pk}/", "/api/f/{rest*}", "/old/{year}/"]


def test_what_never_comes_to_a_view_counts_and_is_refused(kind: str) -> None:
    with running(kind, path("a", view_for(kind)), settings="3/minute") as sender:
        statuses = [sender.get(f"/scan/{number}").status for number in range(5)]
        assert statuses == [404, 404, 404, 429, 429]
        assert sender.get("/a").status == 429


# Who asks.


def test_users_are_known_wherever_the_middleware_stands(kind: str) -> None:
    view = limit("2/minute", key="user")(view_for(kind))
    with running(kind, path("a", view), middleware=BOTH) as sender:
        assert [sender.passes("/a", **{"x-user": number}) for number in ("1", "2", "1")] == [2, 2, 0]
        assert sender.passes("/a") == 2  # by address


def test_an_address_that_a_client_claims_counts_for_nothing(kind: str) -> None:  # peers: section 3, item 10
    with running(kind, path("a", view_for(kind)), settings="2/minute") as sender:
        assert [sender.get("/a", **{"x-forwarded-for": f"192.0.2.{n}"}).status for n in range(3)] == [200, 200, 429]
    with running(kind, path("a", view_for(kind)), settings={"policy": "2/minute", "trusted": ["127.0.0.1"]}) as sender:
        assert [sender.get("/a", **{"x-forwarded-for": f"192.0.2.{n}"}).status for n in range(3)] == [200] * 3


def test_nobody_is_looked_up_where_nobody_wants_to_know(kind: str) -> None:
    asked: list[Any] = []
    view = limit("2/minute", key="address")(view_for(kind))
    settings = {"policy": "5/minute", "by": "address", "user": asked.append}
    with running(kind, path("a", view), path("b", view_for(kind)), settings=settings) as sender:
        assert [sender.passes("/a"), sender.passes("/b")] == [2, 5]
    assert not asked


def test_functions_take_the_request(kind: str, middleware: list[str]) -> None:
    patterns = [
        path("key", limit("1/minute", key=lambda request: request.GET.get("q"))(view_for(kind, name="key"))),
        path("cost", limit("10/minute", cost=lambda request: 5)(view_for(kind, name="cost"))),
        path(
            "free",
            limit("1/minute", exempt_when=lambda request: "x-admin" in request.headers)(view_for(kind, name="free")),
        ),
        path(
            "found",
            limit(lambda request: request.GET["limits"], otherwise="1/minute")(view_for(kind, name="found")),
        ),
    ]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.get(f"/key?q={q}").status for q in "aab"] == [200, 429, 200]
        assert sender.passes("/cost") == 2
        assert [sender.passes("/free", **{"x-admin": "1"}), sender.passes("/free")] == [20, 1]
        assert sender.passes("/found?limits=4/minute") == 4


def test_a_key_from_a_form_is_read_before_the_view_which_reads_it_again() -> None:
    view = limit("1/minute", key=lambda request: request.POST.get("name"))(
        view_for("wsgi", lambda request: request.POST["name"])
    )
    with running("wsgi", path("a", view)) as sender:
        form = {"content-type": "application/x-www-form-urlencoded"}
        answers = [
            wsgi_fetch(
                sender.handler,
                {**environ_of("POST", "/a", {}, f"name={name}".encode()), "CONTENT_TYPE": form["content-type"]},
            )
            for name in ("ann", "bob", "ann")
        ]
    assert [(answer.status, answer.body) for answer in answers[:2]] == [(200, b"ann"), (200, b"bob")]
    assert answers[2].status == 429


# What a rejection is.


def test_the_sites_handler429_may_answer(kind: str, middleware: list[str]) -> None:
    def too_many(request: Request, refused: Any) -> Any:
        return HttpResponse(f"{request.path} again in {refused.retry_after:.0f} s", status=429)

    pattern = path("a", limit("1/minute")(view_for(kind)))
    with running(kind, pattern, middleware=middleware, handler429=too_many) as sender:
        sender.get("/a")
        answer = sender.get("/a", origin="https://example.com")
    assert (answer.status, answer.body) == (429, b"/a again in 60 s")
    for name in ("retry-after", "ratelimit", "ratelimit-policy", "access-control-expose-headers", "content-type"):
        assert [known for known, _ in answer.headers].count(name) == 1, name


def test_who_is_told_of_a_breach_may_answer_it(kind: str) -> None:
    def breach(request: Request, refused: Any) -> Any:
        return HttpResponse("sorry", status=420) if "x-polite" in request.headers else None

    with running(kind, path("a", limit("1/minute", on_breach=breach)(view_for(kind)))) as sender:
        sender.get("/a")
        assert [sender.get("/a", **{"x-polite": "1"}).status, sender.get("/a").status] == [420, 429]


def test_a_decorator_that_hides_what_is_declared_leaves_nothing_unlimited(kind: str) -> None:
    inner = limit("2/minute")(view_for(kind))

    def hidden(request: Request) -> Any:
        return inner(request)

    async def hidden_async(request: Request) -> Any:
        return await inner(request)

    with running(kind, path("a", hidden if kind == "wsgi" else hidden_async), settings="10/minute") as sender:
        assert sender.passes("/a") == 2
        told = [value for name, value in sender.get("/a").headers if name == "ratelimit"]
        assert len(told) == 1
        sender.passes("/a", most=5)
        assert sender.get("/nowhere").headers  # what was refused was given back:
        assert [v for n, v in sender.get("/nowhere").headers if n == "ratelimit"] == ['"default/minute";r=6;t=60']


# What it costs.


def test_forty_concurrent_failed_logins_pass_five() -> None:  # peers: row 16
    barrier = threading.Barrier(40, timeout=30)

    def login(request: Request) -> Any:
        return HttpResponse("no", status=401)

    statuses: list[int] = []
    with running("wsgi", path("login", limit("5/minute", charge="failure")(login))) as sender:

        def attempt() -> None:
            environ = environ_of("POST", "/login")
            barrier.wait()
            statuses.append(wsgi_fetch(sender.handler, environ).status)

        threads = [threading.Thread(target=attempt) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (statuses.count(401), statuses.count(429)) == (5, 35)


def test_forty_concurrent_failed_logins_of_tasks_pass_five() -> None:
    async def login(request: Request) -> Any:
        await asyncio.sleep(0)
        return HttpResponse("no", status=401)

    with running("asgi", path("login", limit("5/minute", charge="failure")(login))) as sender:

        async def attempts() -> list[Answer]:
            return await asyncio.gather(*(fetch(sender.handler, "POST", "/login") for _ in range(40)))

        statuses = [answer.status for answer in sender.loop.run_until_complete(attempts())]
    assert (statuses.count(401), statuses.count(429)) == (5, 35)


def test_a_stream_is_charged_for_its_bytes_when_it_ends(kind: str) -> None:
    def kilobytes(outcome: FinishedResponse) -> int:
        return outcome.sent // 1000

    async def awaited() -> AsyncIterator[bytes]:
        yield b"x" * 2000
        yield b"x" * 1000

    def view(request: Request) -> Any:
        return StreamingHttpResponse([b"x" * 2000, b"x" * 1000])

    async def view_async(request: Request) -> Any:
        return StreamingHttpResponse(awaited())

    found = limit("10/minute", charge=kilobytes, name="bytes")(view if kind == "wsgi" else view_async)
    other = limit("10/minute", name="bytes")(view_for(kind, name="other"))
    with running(kind, path("a", found), path("b", other)) as sender:
        assert len(sender.get("/a").body) == 3000
        told = dict(sender.get("/b").headers)
    assert told["ratelimit"] == '"bytes/minute";r=6;t=60'


def test_a_client_that_goes_away_has_paid() -> None:
    def view(request: Request) -> Any:
        return StreamingHttpResponse([b"one", b"two"])

    with running("wsgi", path("a", limit("2/minute", charge="failure")(view))) as sender:
        for _ in range(2):
            body = sender.handler(environ_of("GET", "/a"), lambda *_: lambda part: None)
            next(iter(body))
            body.close()
        assert sender.get("/a").status == 429


# Where it runs.


def test_tasks_never_leave_their_thread() -> None:  # peers: section 3, item 1
    threads = set()

    async def view(request: Request) -> Any:
        threads.add(threading.get_ident())
        return HttpResponse("ok")

    def key(request: Request) -> str:
        threads.add(threading.get_ident())
        return "key"

    with running("asgi", path("a", limit("5/minute", key=key)(view)), middleware=BOTH) as sender:
        assert sender.get("/a").status == 200
    assert threads == {threading.get_ident()}


def test_threads_and_tasks_count_together(redis_url_server: Server) -> None:
    view = limit("4/minute", name="shared")
    patterns = [path("a", view(view_for("wsgi"))), path("b", view(view_for("asgi")))]
    with running("asgi", *patterns, middleware=[]) as sender:  # without the middleware each asks where it runs
        assert [sender.get(where).status for where in ("/a", "/b", "/a", "/b", "/a", "/b")] == [200] * 4 + [429] * 2


def test_two_limits_with_headers_are_one_call_to_redis(redis_url_server: Server, kind: str) -> None:  # peers: row 18
    settings = {"policy": "50/minute", "storage": f"{redis_url_server.url}?prefix=django-{kind}", "by": "address"}
    view = limit("10/minute; 100/hour", keep_defaults=True)(view_for(kind))
    look = redis_url_server.client()
    with running(kind, path("a", view), settings=settings) as sender:
        sender.get("/a")
        before: Any = look.info("commandstats")
        answer = sender.get("/a")
        after: Any = look.info("commandstats")
        assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1
        assert "cmdstat_eval" not in after or after["cmdstat_eval"] == before["cmdstat_eval"]
        assert dict(answer.headers)["ratelimit"].count(";r=") == 3
        sender.loop.run_until_complete(aclose())
    look.close()


def test_rules_may_look_at_the_body_and_the_view_reads_it_again(kind: str) -> None:
    policy = Policy(rules=[Rule("batch", "10/minute", cost=json_batch_cost)])
    view = view_for(kind, lambda request: request.body)
    with running(kind, path("a", view), settings=policy) as sender:
        answers = [sender.get("/a", "POST", b"[1,2,3,4]") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].body == b"[1,2,3,4]"


def test_a_method_that_a_client_invents_finds_no_attribute_of_a_class() -> None:
    @limit("2/minute")
    class Page(View):  # type: ignore[misc]
        def get(self, request: Request) -> Any:
            return HttpResponse("get")

    with running("wsgi", path("a", Page.as_view())) as sender:
        for method in ("DISPATCH", "AS_VIEW", "__INIT__", "SETUP"):
            assert sender.get("/a", method).status in (405, 429)
        assert len(configured_limits().views._endpoints) == 1


def test_early_rules_come_before_the_middleware_below(kind: str) -> None:
    policy = {
        "rules": [
            {"name": "flood", "limits": "2/minute", "stage": "early"},
            {"name": "late", "limits": "5/minute"},
        ]
    }
    with running(kind, path("a", view_for(kind)), settings={"policy": policy}, middleware=BOTH) as sender:
        answers = [sender.get("/a", **{"x-user": "1"}) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert dict(answers[0].headers)["ratelimit"] == '"flood/minute";r=1;t=60, "late/minute";r=4;t=60'


def test_a_request_view_is_made_of_both_kinds_of_request(kind: str) -> None:
    seen: list[RequestView] = []

    def note(request: Request) -> str:
        seen.append(request._ratebound.view)
        return "ok"

    with running(kind, path("<path:rest>", view_for(kind, note)), settings="9/minute") as sender:
        sender.get("/%C3%A4/b?x=1", **{"x-one": "1"})
    view = seen[0]
    assert (view.method, view.path, view.query, view.header("x-one")) == ("GET", "/%C3%A4/b", "x=1", "1")
    assert view.peer == "127.0.0.1"


def test_a_disconnected_task_keeps_its_charge() -> None:
    async def slow(request: Request) -> Any:
        await asyncio.sleep(3600)

    with running("asgi", path("a", limit("1/minute", charge="failure")(slow))) as sender:
        messages = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            await asyncio.sleep(0.02)  # so that the view has begun
            return messages.pop(0)

        sender.loop.run_until_complete(sender.handler(http_scope("GET", "/a"), receive, None))
        assert sender.get("/a").status == 429
