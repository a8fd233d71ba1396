"""Django: what is read of a request before its view: its body, its user; and in which thread or loop."""

from tests.web.django_site import MIDDLEWARE  # first: it makes the settings that Django's own users look at

# isort: split
import asyncio
import io
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import middleware as auth
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View

from ratebound.policy import Match, Policy, Rule
from ratebound.policy.cost import json_batch_cost
from ratebound.web.django import aclose, close, configured_limits, limit
from tests.servers import Server
from tests.web.django_running import running, view_for
from tests.web.drivers import environ_of, wsgi_fetch

Request = Any
ABOVE = [f"{__name__}.known", MIDDLEWARE]


def person(number: int) -> Any:
    return SimpleNamespace(pk=number, is_authenticated=True)


def known(get_response: Any) -> Any:
    """A middleware that says who it is: as it is, looked up when asked for, or as Django's own."""

    def note(request: Request) -> None:
        who, number = request.headers["x-user"].split(":")
        if who == "django":
            request._cached_user = request._acached_user = person(int(number))
            auth.AuthenticationMiddleware(lambda _: HttpResponse()).process_request(request)
        else:
            request.session = {}
            auth.AuthenticationMiddleware(lambda _: HttpResponse()).process_request(request)
            request._acached_user = SimpleNamespace(pk=None, is_authenticated=False)
            request.user = person(int(number)) if who == "plain" else SimpleLazyObject(lambda: _slowly(int(number)))

    def answer(request: Request) -> Any:
        request.session = {}
        note(request)
        return get_response(request)

    async def answer_async(request: Request) -> Any:
        request.session = {}
        note(request)
        return await get_response(request)

    return answer_async if asyncio.iscoroutinefunction(get_response) else answer


known.sync_capable = known.async_capable = True  # type: ignore[attr-defined]


def earlier(get_response: Any) -> Any:
    """A middleware that reads from the body, and leaves the rest to others."""

    def answer(request: Request) -> Any:
        request.read(1)
        return get_response(request)

    return answer


def renumbered(get_response: Any) -> Any:
    """A middleware that knows better where a request comes from."""

    def answer(request: Request) -> Any:
        request.META["REMOTE_ADDR"] = request.headers["x-real"]
        return get_response(request)

    return answer


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are in a database, which Django does not let an event loop wait for."""

    @async_unsafe  # type: ignore[untyped-decorator]
    def get_user(request: Request) -> Any:
        return person(int(request.headers["x-user"]))

    async def aget_user(request: Request) -> Any:
        return person(int(request.headers["x-user"]))

    monkeypatch.setattr(auth.auth, "get_user", get_user)
    monkeypatch.setattr(auth.auth, "aget_user", aget_user)


def stored(get_response: Any) -> Any:
    """A middleware that finds them there, when it is asked for them."""

    def answer(request: Request) -> Any:
        request.session = {}
        auth.AuthenticationMiddleware(lambda _: HttpResponse()).process_request(request)
        return get_response(request)

    return answer


def _slowly(number: int) -> Any:
    with pytest.raises(RuntimeError):  # it may block: not in the event loop
        asyncio.get_running_loop()
    return person(number)


# Which host is asked for.


@pytest.mark.parametrize(("is_believed", "passed"), [(True, 2), (False, 5)])
def test_a_host_that_a_proxy_forwards_counts_where_django_believes_it(
    kind: str, is_believed: bool, passed: int
) -> None:
    policy = Policy(rules=[Rule("api", "2/minute", match=Match(hosts=["api.example"]), by="global")])
    with (
        running(kind, path("a", view_for(kind)), settings=policy) as sender,
        override_settings(USE_X_FORWARDED_HOST=is_believed),
    ):
        assert sender.passes("/a", 5, **{"x-forwarded-host": "api.example"}) == passed
        assert sender.passes("/a", 5, **{"x-forwarded-host": "other.example"}) == 5


# Who asks.


@pytest.mark.parametrize("who", ["plain", "lazy", "django"])
def test_whoever_a_middleware_has_found_is_known_at_the_view(kind: str, who: str) -> None:
    view = limit("2/minute", key="user")(view_for(kind, lambda request: request.ratebound.verdict.identities[0].key))
    with running(kind, path("a", view), middleware=ABOVE) as sender:
        answers = [sender.get("/a", **{"x-user": f"{who}:{number}"}) for number in (1, 1, 2)]
    assert [answer.body for answer in answers] == [b"user:1", b"user:1", b"user:2"]


@pytest.mark.parametrize("who", ["plain", "lazy", "django"])
def test_a_view_that_asks_by_itself_knows_them_as_well(kind: str, who: str) -> None:
    view = limit("2/minute", key="user")(view_for(kind))
    with running(kind, path("a", view), middleware=ABOVE[:1]) as sender:
        assert [sender.passes("/a", **{"x-user": f"{who}:{number}"}) for number in (1, 2, 1)] == [2, 2, 0]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("by", ["user", "address"])  # where all count by address, nobody else looks at the user
def test_functions_may_look_at_a_user_who_is_in_the_database(kind: str, by: str, middleware: list[str]) -> None:
    def by_user(request: Request) -> Any:
        return str(request.user.pk)

    options: list[dict[str, Any]] = [
        {"limits": "2/minute", "key": by_user},
        {"limits": "2/minute", "key": [by_user, "address"]},
        {"limits": lambda request: f"{2 * request.user.pk}/minute", "otherwise": "9/minute"},
        {"limits": "4/minute", "cost": lambda request: 2 * request.user.pk},
        {"limits": "2/minute", "exempt_when": lambda request: request.user.pk == 7},
        {"limits": "2/minute", "key": "user"},
    ]
    views = [limit(one.pop("limits"), **one)(view_for(kind, name=f"view{place}")) for place, one in enumerate(options)]
    patterns = [path(str(place), view) for place, view in enumerate(views)]
    stack = [f"{__name__}.stored", *middleware]
    with running(kind, *patterns, settings={"by": by}, middleware=stack) as sender:
        passes = [sender.passes(f"/{place}", **{"x-user": "1"}) for place in range(len(views))]
        assert passes == [2, 2, 2, 2, 2, 2]
        assert [sender.passes(f"/{place}", **{"x-user": "7"}) for place in (0, 1, 4, 5)] == [2, 2, 20, 2]


@pytest.mark.usefixtures("database")
def test_a_sync_part_of_an_async_view_may_look_at_them_as_well(kind: str, middleware: list[str]) -> None:
    part = limit("2/minute", key=lambda request: str(request.user.pk))(view_for("wsgi", name="part"))
    other = limit("2/minute", key="user")(view_for("wsgi", name="other"))

    async def view(request: Request) -> Any:
        return part(request)

    async def view_of_user(request: Request) -> Any:
        return other(request)

    patterns = [path("a", view), path("b", view_of_user)]
    with running(kind, *patterns, middleware=[f"{__name__}.stored", *middleware]) as sender:
        for where in ("/a", "/b"):
            assert [sender.passes(where, **{"x-user": number}) for number in "121"] == [2, 2, 0]


@pytest.mark.usefixtures("database")
def test_the_function_that_says_who_it_is_may_look_into_the_database(kind: str, middleware: list[str]) -> None:
    view = limit("2/minute", key="user")(view_for(kind))
    settings = {"user": lambda request: request.user.pk}
    stack = [f"{__name__}.stored", *middleware]
    with running(kind, path("a", view), settings=settings, middleware=stack) as sender:
        assert [sender.passes("/a", **{"x-user": number}) for number in "121"] == [2, 2, 0]


@pytest.mark.usefixtures("database")
def test_who_words_a_refusal_may_look_into_the_database(kind: str, middleware: list[str]) -> None:
    def sorry(request: Request, refused: Any) -> Any:
        return HttpResponse(f"sorry, {request.user.pk}", status=429)

    def breach(request: Request, refused: Any) -> Any:
        return HttpResponse(f"no, {request.user.pk}", status=429)

    patterns = [
        path("a", limit("1/minute")(view_for(kind, name="a"))),
        path("b", limit("1/minute", on_breach=breach)(view_for(kind, name="b"))),
    ]
    stack = [f"{__name__}.stored", *middleware]
    with running(kind, *patterns, middleware=stack, handler429=sorry) as sender:
        answers = [sender.get(where, **{"x-user": "5"}).body for where in ("/a", "/a", "/b", "/b")]
    assert answers == [b"ok", b"sorry, 5", b"ok", b"no, 5"]


def test_functions_stay_in_the_event_loop_if_they_can(middleware: list[str]) -> None:
    def key(request: Request) -> str:
        asyncio.get_running_loop()
        return "one"

    view = limit("2/minute", key=key)(view_for("asgi", lambda request: request.ratebound.verdict.identities[0].key))
    with running("asgi", path("a", view), middleware=middleware) as sender:
        assert sender.get("/a").body == b"call.key:one"


def test_an_address_that_a_middleware_has_set_counts(kind: str, middleware: list[str]) -> None:
    view = limit("2/minute")(view_for(kind))
    with running(kind, path("a", view), middleware=[f"{__name__}.renumbered", *middleware]) as sender:
        assert [sender.passes("/a", **{"x-real": f"10.0.0.{number}"}) for number in (1, 2, 1)] == [2, 2, 0]


# What it sends.


def test_a_batch_costs_what_it_has_at_a_view_as_well(kind: str, middleware: list[str]) -> None:
    view = limit("10/minute", cost=json_batch_cost)(view_for(kind, lambda request: request.body))
    with running(kind, path("a", view), middleware=middleware) as sender:
        answers = [sender.get("/a", "POST", b"[1,2,3,4]") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].body == b"[1,2,3,4]"


def test_a_key_may_stand_in_the_body(kind: str, middleware: list[str]) -> None:
    def account(request: Any) -> str:
        return str(request.body.decode())

    account.reads_body = True  # type: ignore[attr-defined]
    keys: list[Any] = [account, [account, "address"]]
    for key in keys:
        view = limit("1/minute", key=key)(view_for(kind))
        with running(kind, path("a", view), middleware=middleware) as sender:
            assert [sender.get("/a", "POST", who).status for who in (b"ann", b"bob", b"ann")] == [200, 200, 429]


def test_a_body_that_somebody_has_read_costs_what_nobody_has(middleware: list[str]) -> None:
    view = limit("10/minute", cost=json_batch_cost)(view_for("wsgi"))
    with running("wsgi", path("a", view), middleware=[f"{__name__}.earlier", *middleware]) as sender:
        assert [sender.get("/a", "POST", b"[1,2]").status, sender.get("/a").status] == [429, 200]


def test_a_body_that_django_refuses_to_read_costs_what_nobody_has(middleware: list[str]) -> None:
    view = limit("10/minute", cost=json_batch_cost)(view_for("wsgi"))
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        environ = {**environ_of("POST", "/a", body=b"[]"), "CONTENT_LENGTH": str(10**8)}
        assert wsgi_fetch(sender.handler, environ).status == 429


def test_a_body_that_says_it_is_too_large_is_not_read(middleware: list[str]) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise AssertionError

    view = limit("10/minute", cost=json_batch_cost)(view_for("wsgi"))
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        environ = {**environ_of("POST", "/a"), "CONTENT_LENGTH": str(3 * 10**8), "wsgi.input": Endless()}
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=None):
            assert wsgi_fetch(sender.handler, environ).status == 429


# Where it runs.


def test_a_switch_and_another_policy_hold_for_threads_and_for_tasks(kind: str) -> None:
    with running(kind, path("a", view_for(kind)), settings="1/minute") as sender:
        assert sender.passes("/a") == 1
        configured_limits().gate.switch = "off"
        assert sender.passes("/a") == 20
        configured_limits().gate.switch = None
        assert sender.passes("/a") == 0
        configured_limits().gate.use(Policy(rules=[Rule("more", "5/minute")]))
        assert sender.passes("/a") == 5


def test_async_views_are_limited_without_an_event_loop_around_them(middleware: list[str]) -> None:
    class Page(View):  # type: ignore[misc]
        async def get(self, request: Request) -> Any:
            return HttpResponse("get")

        async def post(self, request: Request) -> Any:
            return HttpResponse("post")

    by_method = method_decorator(limit("2/minute"), name="post")(type("ByMethod", (Page,), {}))
    by_dispatch = method_decorator(limit("3/minute"), name="dispatch")(type("ByDispatch", (Page,), {}))
    by_class: Any = limit("4/minute")(type("ByClass", (Page,), {}))
    patterns = [
        path("function", limit("1/minute")(limit("9/minute")(view_for("asgi")))),
        path("method", by_method.as_view()),
        path("dispatch", by_dispatch.as_view()),
        path("class", by_class.as_view()),
        path("view", limit("5/minute")(Page.as_view())),
    ]
    with running("wsgi", *patterns, middleware=middleware) as sender:
        passes = [sender.passes(f"/{name}") for name in ("function", "method", "dispatch", "class", "view")]
        assert passes == [1, 20, 3, 4, 5]
        assert sender.passes("/method", method="POST") == 2
        assert sender.passes("/class", method="INVENTED") == 0
        refused = dict(sender.get("/function").headers)
    assert refused["ratelimit"].count(";r=") == 2
    assert refused["retry-after"] == "60"


def test_an_async_view_without_an_event_loop_is_settled(middleware: list[str]) -> None:
    async def login(request: Request) -> Any:
        return HttpResponse("no", status=200 if "x-right" in request.headers else 401)

    with running("wsgi", path("a", limit("2/minute", charge="failure")(login)), middleware=middleware) as sender:
        assert sender.passes("/a", **{"x-right": "1"}) == 20
        assert sender.passes("/a") == 2


def test_threads_and_tasks_share_one_guard_and_one_storage(fresh_redis: Server) -> None:
    settings = {"policy": "9/minute", "storage": fresh_redis.url, "deadline": 0.2, "workers": 2}
    with running("asgi", path("a", view_for("asgi")), settings=settings) as sender:
        assert sender.get("/a").status == 200
        keep: Any = configured_limits()
        assert keep.tasks.gate.gate.storage.guard is keep.gate.gate.storage.guard
        sender.loop.run_until_complete(aclose())


@pytest.mark.parametrize("how", ["close", "aclose"])
def test_closing_closes_what_tasks_have_opened(fresh_redis: Server, how: str) -> None:
    look = fresh_redis.client()

    def connected() -> int:
        return len(look.client_list())

    with running(
        "asgi", path("a", view_for("asgi")), settings={"policy": "9/minute", "storage": fresh_redis.url}
    ) as site:
        before = connected()
        assert site.get("/a").status == 200
        assert connected() > before
        if how == "aclose":
            site.loop.run_until_complete(aclose())
        else:
            close()
            site.loop.run_until_complete(asyncio.sleep(0.05))  # the loop's part is done by the loop
        deadline = time.monotonic() + 10
        while connected() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert connected() == before
    look.close()
