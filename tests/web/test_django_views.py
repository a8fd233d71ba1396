"""Django: under which names limits count, and which views they are for."""

from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import RedirectView

from ratebound import MemoryStorage
from ratebound.web.django import configured_limits, exempt, limit
from ratebound.web.rule_names import short_name
from tests.web.django_running import running, view_for
from tests.web.django_site import site

Request = Any


class Page(View):  # type: ignore[misc]
    def get(self, request: Request) -> Any:
        return HttpResponse("get")

    def post(self, request: Request) -> Any:
        return HttpResponse("post")


class AsyncPage(View):  # type: ignore[misc]
    async def get(self, request: Request) -> Any:
        return HttpResponse("get")

    async def post(self, request: Request) -> Any:
        return HttpResponse("post")


# One name in the code, several views.


def test_classes_that_are_wrapped_in_the_urlconf_each_have_a_quota(kind: str, middleware: list[str]) -> None:
    class Other(Page):
        pass

    patterns = [path("a", limit("2/minute")(Page.as_view())), path("b", limit("3/minute")(Other.as_view()))]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.passes("/a"), sender.passes("/b")] == [2, 3]


def test_one_class_at_two_urls_has_the_limits_of_each(kind: str, middleware: list[str]) -> None:
    patterns = [
        path("a", limit("2/minute")(limit("5/minute")(RedirectView.as_view(url="/x")))),
        path("more/", include([path("b", limit("2/minute")(RedirectView.as_view(url="/y")))])),
        path("c", RedirectView.as_view(url="/z")),
    ]
    with running(kind, *patterns, middleware=middleware) as sender:
        assert [sender.passes("/more/b"), sender.passes("/a"), sender.passes("/c")] == [2, 2, 20]
        told = [dict(sender.get(where).headers)["ratelimit-policy"] for where in ("/a", "/more/b")]
    assert [one.count(";q=") for one in told] == [2, 1]
    assert len({part.partition(";")[0].strip() for one in told for part in one.split(",")}) == 3


def test_a_number_is_that_of_the_urlconf_whoever_is_asked_first(kind: str, middleware: list[str]) -> None:
    """Two processes must count one view under one name, whichever of its URLs each has seen first."""
    names = []
    for order in ("ab", "ba"):
        patterns = [path(one, limit("9/minute")(RedirectView.as_view(url="/x"))) for one in "ab"]
        with running(kind, *patterns, middleware=middleware, settings={"headers": {"cacheable": "send"}}) as sender:
            told = {one: dict(sender.get(f"/{one}").headers)["ratelimit"] for one in order}
        names.append((told["a"], told["b"]))
    assert names[0] == names[1]
    assert names[0][0] != names[0][1]


URLCONFS: dict[str, ModuleType] = {}


class ByHost:
    """Picks the URLconf by the first part of the path."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Request) -> Any:
        name = request.path.split("/")[1]
        if name in URLCONFS:
            request.urlconf = URLCONFS[name]
        return self._get_response(request)


def hosts(**patterns: list[Any]) -> None:
    URLCONFS.clear()
    for name, listed in patterns.items():
        URLCONFS[name] = ModuleType(f"shop.{name}_urls")
        URLCONFS[name].__dict__["urlpatterns"] = listed


@limit("9/minute")
def noted(request: Request) -> Any:
    return HttpResponse("noted")


def test_one_class_in_several_urlconfs_has_the_limits_of_each(kind: str, middleware: list[str]) -> None:
    page = Page if kind == "wsgi" else AsyncPage
    hosts(
        api=[path("api/", limit("3/minute")(page.as_view()))],
        shop=[path("shop/", limit("4/minute")(page.as_view()))],
    )
    own = [f"{__name__}.ByHost", *middleware]
    with running(kind, path("", limit("2/minute")(page.as_view())), middleware=own) as sender:
        assert [sender.passes("/shop/"), sender.passes("/"), sender.passes("/api/")] == [4, 2, 3]


def test_names_do_not_depend_on_which_urlconf_is_asked_first(kind: str, middleware: list[str]) -> None:
    page = Page if kind == "wsgi" else AsyncPage
    names = []
    for order in (["/", "/api/", "/shop/"], ["/shop/", "/api/", "/"]):
        hosts(
            api=[path("api/", limit("9/minute")(page.as_view()))],
            shop=[path("shop/", limit("9/minute")(page.as_view()))],
        )
        settings = {"headers": {"cacheable": "send"}}
        view = limit("9/minute")(page.as_view())
        own = [f"{__name__}.ByHost", *middleware]
        with running(kind, path("", view), middleware=own, settings=settings) as sender:
            told = {one: dict(sender.get(one).headers)["ratelimit-policy"].partition(";")[0] for one in order}
        names.append([told[one] for one in ("/", "/api/", "/shop/")])
    assert names[0] == names[1]
    assert len(set(names[0])) == 3
    assert names[0][0] == f'"{short_name(f"{__name__}.{page.__name__}")}/minute"'  # as of a site with one URLconf


@pytest.mark.parametrize("in_root", [True, False])
def test_a_limit_that_stands_in_the_code_is_one_quota_in_all_urlconfs(in_root: bool, middleware: list[str]) -> None:
    hosts(api=[path("api/", noted)], shop=[path("shop/", noted)])
    root = [path("", noted)] if in_root else [path("", view_for("wsgi"))]
    with running("wsgi", *root, middleware=[f"{__name__}.ByHost", *middleware]) as sender:
        assert [sender.passes("/shop/", 5), sender.passes("/api/", 9)] == [5, 4]
        told = dict(sender.get("/shop/").headers)["ratelimit-policy"]
    assert f'"{short_name(f"{__name__}.noted")}/minute"' in told


def test_decorators_of_one_inner_name_do_not_make_views_share(kind: str, middleware: list[str]) -> None:
    def plainly(view: Any) -> Any:  # as it is often written: without functools.wraps
        async def inner_async(request: Request) -> Any:
            return await view(request)

        def inner(request: Request) -> Any:
            return view(request)

        return inner if kind == "wsgi" else inner_async

    views = [limit(f"{count}/minute")(plainly(view_for(kind))) for count in (2, 3)]
    with running(kind, path("a", views[0]), path("b", views[1]), middleware=middleware) as sender:
        assert [sender.passes("/b"), sender.passes("/a")] == [3, 2]


def test_each_method_of_a_class_has_its_limit(kind: str, middleware: list[str]) -> None:
    above = Page if kind == "wsgi" else AsyncPage
    own: Any = type("Own", (above,), {})
    for name, limits in (("get", "2/minute"), ("post", "3/minute"), ("dispatch", "9/minute")):
        own = method_decorator(limit(limits), name=name)(own)
    with running(kind, path("a", own.as_view()), middleware=middleware) as sender:
        assert [sender.passes("/a"), sender.passes("/a", method="HEAD"), sender.passes("/a", method="POST")] == [
            2,
            0,
            3,
        ]
        told = dict(sender.get("/a", "POST").headers)["ratelimit-policy"]
    assert "Own.post" in told


def test_one_name_on_a_class_and_on_its_method_is_one_quota(kind: str, middleware: list[str]) -> None:
    above = Page if kind == "wsgi" else AsyncPage
    named = limit("4/minute", name="reports")
    own: Any = limit("4/minute", name="reports")(method_decorator(named, name="get")(type("Own", (above,), {})))
    with running(kind, path("a", own.as_view()), middleware=middleware) as sender:
        assert sender.passes("/a") == 4


def test_limits_that_the_urlconf_does_not_show_keep_apart_from_those_it_shows(middleware: list[str]) -> None:
    limited: Any = limit("3/minute")(type("Hidden", (Page,), {}))

    def dispatch(self: Any, request: Request) -> Any:
        return limited.dispatch(self, request)

    own: Any = type("Shown", (limited,), {"dispatch": dispatch})
    with running("wsgi", path("a", limit("5/minute")(own.as_view())), middleware=middleware) as sender:
        assert sender.passes("/a") == 3
        told = dict(sender.get("/a").headers)["ratelimit-policy"]
    assert "Shown-2" in told


def test_a_limit_asked_before_does_not_rename_the_others_of_a_function(middleware: list[str]) -> None:
    shared = limit("9/minute")
    inner = limit("3/minute")(shared(view_for("wsgi", name="inner")))
    outer = shared(lambda request: inner(request))
    with running("wsgi", path("a", outer), path("b", lambda request: inner(request)), middleware=middleware) as sender:
        assert [sender.get(where).status for where in ("/a", "/b", "/a", "/b")] == [200, 200, 200, 429]


def test_nothing_grows_with_requests_to_methods_of_classes(kind: str, middleware: list[str]) -> None:
    above = Page if kind == "wsgi" else AsyncPage
    own: Any = limit("9/minute")(method_decorator(limit("9/minute"), name="get")(type("Own", (above,), {})))
    with running(kind, path("a", own.as_view()), middleware=middleware) as sender:
        for method in ("GET", "INVENTED"):
            sender.get("/a", method)
        views = configured_limits().views
        made = len(views._endpoints), len(views._joined), len(views._declarations)
        for method in ("GET", "INVENTED", "OTHER", "AS_VIEW"):
            sender.get("/a", method)
        assert (len(views._endpoints), len(views._joined), len(views._declarations)) == made


def test_a_limited_view_can_be_called_without_a_site() -> None:
    view = limit("2/minute")(view_for("wsgi"))
    for urlconf in (None, "no.such.module"):
        with site({"storage": MemoryStorage()}, ROOT_URLCONF=urlconf, MIDDLEWARE=[]):
            statuses = [view(RequestFactory().get("/")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


# What a decorator can be put on.


def test_exempt_holds_for_a_class_and_those_below_it(kind: str) -> None:
    above = Page if kind == "wsgi" else AsyncPage
    free: Any = exempt(type("Free", (above,), {}))
    below: Any = type("Below", (free,), {"dispatch": lambda self, request: View.dispatch(self, request)})
    patterns = [path("free", free.as_view()), path("below", below.as_view()), path("page", above.as_view())]
    with running(kind, *patterns, settings="2/minute") as sender:
        assert [sender.passes("/free"), sender.passes("/below"), sender.passes("/page")] == [20, 20, 2]


def test_a_limit_that_is_said_below_an_exempt_class_holds(kind: str) -> None:
    above = Page if kind == "wsgi" else AsyncPage
    free: Any = exempt(type("Free", (above,), {}))
    below: Any = method_decorator(limit("3/minute"), name="get")(type("Below", (free,), {}))
    with running(kind, path("a", below.as_view()), settings="9/minute") as sender:
        assert [sender.passes("/a"), sender.passes("/a", method="POST")] == [3, 20]


def test_a_method_without_method_decorator_is_told_at_once() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.get: .*method_decorator"):

        class Wrong(View):  # type: ignore[misc]
            @limit("5/minute")
            def get(self, request: Request) -> Any:
                raise AssertionError


def test_a_method_that_looks_like_a_function_is_told_when_it_is_called() -> None:
    with site({"storage": MemoryStorage()}), pytest.raises(TypeError, match="method_decorator"):
        limit("5/minute")(lambda this, request: HttpResponse())(Page(), RequestFactory().get("/"))


def test_functions_in_a_list_of_keys_take_the_request(kind: str, middleware: list[str]) -> None:
    view = limit("1/minute", key=[lambda request: request.GET.get("q"), "address"])(view_for(kind))
    with running(kind, path("a", view), middleware=middleware) as sender:
        assert [sender.get(f"/a{query}").status for query in ("?q=1", "?q=2", "?q=1", "", "")] == [
            200,
            200,
            429,
            200,
            429,
        ]
