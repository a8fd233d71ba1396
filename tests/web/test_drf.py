"""Django REST framework: several throttles at one view, those that are made for each request, and what they raise."""

from tests.web.django_site import MIDDLEWARE, site  # first: it makes the settings that the framework looks at

# isort: split
import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from ratebound import MemoryStorage
from ratebound.policy.cost import json_batch_cost
from ratebound.testing import FakeClock
from ratebound.web import request_limits
from ratebound.web.django import configured_limits, limit
from ratebound.web.drf import Throttle, throttle
from tests.servers import Server
from tests.web.django_running import Sender, running
from tests.web.drivers import environ_of, wsgi_fetch

Request = Any


@pytest.fixture(params=[[MIDDLEWARE], []], ids=["middleware", "throttle only"])
def middleware(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


class Api(APIView):  # type: ignore[misc]
    throttle_classes = ()

    def get(self, request: Request) -> Any:
        return Response({})

    def post(self, request: Request) -> Any:
        return Response({"got": request.data})


def api(name: str, **attributes: Any) -> Any:
    return type(name, (Api,), attributes).as_view()  # type: ignore[attr-defined]


# Names.


def test_functions_under_api_view_each_have_a_quota(middleware: list[str]) -> None:
    def one(request: Request) -> Any:
        return Response({})

    def two(request: Request) -> Any:
        return Response({})

    patterns = []
    for view in (one, two):
        throttled = api_view(["GET"])(throttle_classes([throttle("2/minute")])(view))
        patterns.append(path(f"throttled/{view.__name__}", throttled))
        del view.throttle_classes  # type: ignore[attr-defined]
        patterns.append(path(f"limited/{view.__name__}", limit("3/minute")(api_view(["GET"])(view))))
    with running("wsgi", *patterns, middleware=middleware) as sender:
        assert [sender.passes(f"/throttled/{name}") for name in ("one", "two")] == [2, 2]
        assert [sender.passes(f"/limited/{name}") for name in ("one", "two")] == [3, 3]


def test_limits_above_and_below_api_view_are_two(middleware: list[str]) -> None:
    def one(request: Request) -> Any:
        return Response({})

    view = limit("3/minute")(api_view(["GET"])(limit("2/minute")(one)))
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        assert sender.passes("/a") == 2


def test_a_limit_and_a_throttle_at_one_view_are_two(middleware: list[str]) -> None:
    view = limit("4/minute")(type("Both", (Api,), {"throttle_classes": [throttle("2/minute")]}))
    with running("wsgi", path("a", view.as_view()), middleware=middleware) as sender:  # type: ignore[attr-defined]
        assert sender.passes("/a") == 2
        told = dict(sender.get("/a").headers)
        assert told["retry-after"] == "60"


def test_all_throttles_of_a_view_are_one_decision(redis_url_server: Server, middleware: list[str]) -> None:
    view = api("Several", throttle_classes=[throttle("2/minute"), Throttle, throttle("50/hour"), throttle("2/minute")])
    framework = {"DEFAULT_THROTTLE_RATES": {"anon": "9/minute"}, "UNAUTHENTICATED_USER": None}
    look = redis_url_server.client()
    settings = {"storage": f"{redis_url_server.url}?prefix=several{len(middleware)}"}
    with (
        override_settings(REST_FRAMEWORK=framework),
        running("wsgi", path("a", view), settings=settings, middleware=middleware) as sender,
    ):
        sender.get("/a")
        before: Any = look.info("commandstats")
        assert sender.get("/a").status == 200
        after: Any = look.info("commandstats")
        assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1
        assert sender.get("/a").status == 429
        if middleware:
            told = dict(sender.get("/a").headers)["ratelimit"]
            assert told.count(";r=") == 4
            assert ";r=48;" in told  # a rejection by one has cost the others nothing
    look.close()


def test_a_throttle_may_be_picked_by_method(middleware: list[str]) -> None:
    reading, writing = throttle("2/minute"), throttle("3/minute")

    def get_throttles(self: Any) -> list[Any]:
        return [(reading if self.request.method == "GET" else writing)()]

    with running("wsgi", path("a", api("Picks", get_throttles=get_throttles)), middleware=middleware) as sender:
        assert [sender.passes("/a"), sender.passes("/a", method="POST")] == [2, 3]


def test_a_throttle_that_is_made_for_each_request_is_one(middleware: list[str]) -> None:
    def by_query(request: Request) -> Any:
        return request.GET.get("q")

    def get_throttles(self: Any) -> list[Any]:
        own = throttle("2/minute", key=lambda request: request.GET.get("q"))
        return [own(), throttle("9/minute")(), throttle("9/hour", key=[by_query, "address"])()]

    with running("wsgi", path("a", api("Makes", get_throttles=get_throttles)), middleware=middleware) as sender:
        assert [sender.passes("/a?q=1"), sender.passes("/a?q=2"), sender.passes("/a?q=1")] == [2, 2, 0]
        made = len(configured_limits().views._joined)
        sender.passes("/a?q=3")
        assert len(configured_limits().views._joined) == made


def test_functions_that_are_made_for_each_request_are_those_of_the_request(middleware: list[str]) -> None:
    def by(name: str) -> Any:
        return lambda request: request.GET.get(name)

    def get_throttles(self: Any) -> list[Any]:
        own = throttle("2/minute", key=lambda request: self.kwargs["pk"])
        return [own(), throttle("9/minute", key=by("q"))(), throttle("9/minute", key=by("r"))()]

    view = api("Closes", get_throttles=get_throttles, get=lambda self, request, pk: Response({}))
    with running("wsgi", path("a/<str:pk>", view), middleware=middleware) as sender:
        assert [sender.passes(f"/a/{pk}") for pk in ("x", "y", "x")] == [2, 2, 0]
        assert len(configured_limits().views.per_request) == 3
        assert sum(sender.get(f"/a/{number}?q=1&r={number}").status == 200 for number in range(12)) == 9


def test_the_last_of_throttles_that_say_the_same_is_asked_as_well(middleware: list[str]) -> None:
    def by(name: str) -> Any:
        return lambda request: request.GET.get(name)

    def get_throttles(self: Any) -> list[Any]:
        return [throttle("2/minute", key=by(name))() for name in ("q", "r")]

    with running("wsgi", path("a", api("Same", get_throttles=get_throttles)), middleware=middleware) as sender:
        assert [sender.get(f"/a?q={number}&r=1").status for number in range(3)] == [200, 200, 429]


def test_rates_without_end_are_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_ENDPOINTS", 10)

    def get_throttles(self: Any) -> list[Any]:
        return [throttle(f"{self.kwargs['count']}/minute")(), throttle("900/minute")()]

    view = api("Endless", get_throttles=get_throttles, get=lambda self, request, count: Response({}))
    with running("wsgi", path("a/<int:count>", view)) as sender:
        answers = [sender.get(f"/a/{count}").status for _ in range(2) for count in range(5, 25)]
        assert answers == [200] * 40
        keep: Any = configured_limits()
        assert len(keep.views.per_request) == 10
        assert len(keep.views._joined) <= 10
        assert len(keep.gate._table._alone) <= 10
        assert len(keep.gate._table._named) <= 20


def test_other_rates_in_the_settings_are_in_force_at_once(middleware: list[str]) -> None:
    view = api("Rates", throttle_classes=[Throttle])
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        for rate, passes in (("3/minute", 3), ("5/minute", 5)):
            framework = {"DEFAULT_THROTTLE_RATES": {"anon": rate}, "UNAUTHENTICATED_USER": None}
            with override_settings(REST_FRAMEWORK=framework), site({"storage": MemoryStorage(clock=FakeClock())}):
                sender.get("/nowhere")
                assert sender.passes("/a") == passes
                framework = {**framework, "DEFAULT_THROTTLE_RATES": {"anon": "1000/minute"}}
                with override_settings(REST_FRAMEWORK=framework):
                    assert sender.get("/a").status == 200


def test_a_throttle_that_is_asked_by_hand_and_refuses_gives_nothing_back() -> None:
    sms = throttle("1/minute", name="sms")

    def get(self: Any, request: Request) -> Any:
        return Response({"sent": sms().allow_request(request, self)})

    with running("wsgi", path("a", api("Free", get=get)), settings="3/minute") as sender:
        assert sender.passes("/a") == 3


def test_a_refusal_that_leaves_gives_back_what_the_policy_has_charged() -> None:
    view = api("Given", throttle_classes=[throttle("1/minute")])
    plain = api("Plain")
    rules = {"rules": [{"name": "all", "limits": "3/minute"}]}
    with running("wsgi", path("a", view), path("b", plain), settings={"policy": rules}) as sender:
        assert sender.passes("/a") == 1
        assert sender.passes("/b") == 2


def test_actions_of_a_viewset_each_have_their_throttles(middleware: list[str]) -> None:
    class Reports(ViewSet):  # type: ignore[misc]
        throttle_classes = (throttle("9/minute"),)

        def list(self, request: Request) -> Any:
            return Response([])

        def retrieve(self, request: Request) -> Any:
            return Response([])

        @action(detail=False, throttle_classes=[throttle("2/minute")])  # type: ignore[untyped-decorator]
        def print(self, request: Request) -> Any:
            return Response([])

        @action(detail=False, throttle_classes=[throttle("2/minute")])  # type: ignore[untyped-decorator]
        def mail(self, request: Request) -> Any:
            return Response([])

    def at(name: str) -> Any:
        extra = getattr(getattr(Reports, name), "kwargs", {})
        return path(name, Reports.as_view({"get": name}, **extra))

    patterns = [at(name) for name in ("list", "retrieve", "print", "mail")]
    with running("wsgi", *patterns, middleware=middleware) as sender:
        assert [sender.passes(f"/{name}") for name in ("print", "mail", "list", "retrieve")] == [2, 2, 9, 0]


def test_a_throttle_that_is_asked_by_hand_is_asked_each_time(middleware: list[str]) -> None:
    sms = throttle("2/minute", name="sms")

    def get(self: Any, request: Request) -> Any:
        return Response({"sent": [sms().allow_request(request, self) for _ in range(3)]})

    view = api("Hand", get=get, throttle_classes=[throttle("9/minute")])
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        assert json.loads(sender.get("/a").body) == {"sent": [True, True, False]}


# What it takes and what it says.


def test_functions_of_a_throttle_take_the_request(middleware: list[str]) -> None:
    found = throttle(lambda request: request.GET["limits"], otherwise="1/minute")
    with running("wsgi", path("a", api("Found", throttle_classes=[found])), middleware=middleware) as sender:
        assert sender.passes("/a?limits=3/minute") == 3


def test_a_batch_costs_what_it_has_and_the_view_reads_it_again(middleware: list[str]) -> None:
    view = api("Batch", throttle_classes=[throttle("10/minute", cost=json_batch_cost)])
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        answers = [_posted(sender, b"[1,2,3,4]") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert json.loads(answers[0].body) == {"got": [1, 2, 3, 4]}


def _posted(sender: Sender, body: bytes) -> Any:
    environ = environ_of("POST", "/a", body=body)
    environ.update({"CONTENT_TYPE": "application/json", "wsgi.input": io.BytesIO(body)})
    return wsgi_fetch(sender.handler, environ)


def test_a_storage_out_of_reach_is_a_503(middleware: list[str]) -> None:
    view = api("Closed", throttle_classes=[throttle("2/minute"), throttle("5/minute")])
    settings = {"storage": "redis://127.0.0.1:1", "failure": "closed"}
    with running("wsgi", path("a", view), settings=settings, middleware=middleware) as sender:
        answer = sender.get("/a", accept="application/json")
    assert answer.status == 503
    assert "detail" in json.loads(answer.body)
    assert int(dict(answer.headers)["retry-after"]) >= 1


def test_a_charge_that_nobody_would_settle_is_an_error() -> None:
    view = api("Charged", throttle_classes=[throttle("2/minute", charge="failure")])
    with running("wsgi", path("a", view)) as sender:
        assert sender.passes("/a") == 20
    with (
        running("wsgi", path("a", view), middleware=[]) as sender,
        override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True),
        pytest.raises(RuntimeError, match="MIDDLEWARE"),
    ):
        sender.get("/a")


def test_a_charge_is_settled_by_a_limit_around_the_view() -> None:
    view: Any = type("Around", (Api,), {"throttle_classes": [throttle("2/minute", charge="failure")]})
    with running("wsgi", path("a", limit("90/minute")(view).as_view()), middleware=[]) as sender:
        assert sender.passes("/a") == 20


def test_what_a_rest_view_has_cost_is_known_when_it_is_rendered(middleware: list[str]) -> None:
    view: Any = type("Rendered", (Api,), {})
    said = limit("100/minute", charge=lambda outcome: outcome.sent)
    with running("wsgi", path("a", said(view).as_view()), middleware=middleware) as sender:
        answer = sender.get("/a", accept="application/json")
    assert answer.body == b"{}"
    assert ";r=98;" in dict(answer.headers)["ratelimit"]


def test_a_limited_action_is_named_for_itself(middleware: list[str]) -> None:
    class Things(ViewSet):  # type: ignore[misc]
        @method_decorator(limit("2/minute"))  # type: ignore[untyped-decorator]
        def list(self, request: Request) -> Any:
            return Response([])

        @method_decorator(limit("3/minute"))  # type: ignore[untyped-decorator]
        def create(self, request: Request) -> Any:
            return Response([])

    view = Things.as_view({"get": "list", "post": "create"})
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        assert [sender.passes("/a"), sender.passes("/a", method="POST")] == [2, 3]


def test_the_framework_says_who_it_is_to_every_throttle(middleware: list[str]) -> None:
    class Header:
        def authenticate(self, request: Request) -> Any:
            return SimpleNamespace(pk=int(request.headers["x-user"]), is_authenticated=True), None

        def authenticate_header(self, request: Request) -> None:
            return None

    view = api("Users", authentication_classes=[Header], throttle_classes=[throttle("2/minute", key="user")])
    with running("wsgi", path("a", view), middleware=middleware) as sender:
        assert isinstance(sender.handler, WSGIHandler)
        assert [sender.passes("/a", **{"x-user": number}) for number in ("1", "2", "1")] == [2, 2, 0]


# Caches.


def test_no_cache_keeps_a_rejection_that_the_framework_words(middleware: list[str]) -> None:
    pattern = path("a", api("Worded", throttle_classes=[throttle("1/minute")]))
    with running("wsgi", pattern, middleware=middleware) as sender:
        assert sender.passes("/a") == 1
        headers = dict(sender.get("/a").headers)
    assert headers["cache-control"] == "no-store"
    assert headers["retry-after"] == "60"
