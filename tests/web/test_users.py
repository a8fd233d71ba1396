"""Who a user is, in every adapter: the same user in any shape has one quota, and a limit by users whom nobody can know
says so."""

from tests.web.django_site import MIDDLEWARE  # first: it makes the settings

# isort: split
import functools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import flask
import pytest
from django.http import HttpResponse
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from werkzeug.local import LocalProxy

from ratebound.policy import Computed, Gate, Identity, Policy, RequestView, Rule, Source
from ratebound.policy.match.request import ANONYMOUS
from ratebound.web import RouteLimit, wsgi
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.django import limit
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.user import counts_by_user_alone, found_user_id, user_id
from tests.web.applications import ADAPTERS, bare_asgi, bare_wsgi
from tests.web.django_running import running, view_for
from tests.web.drivers import environ_of, fetch, wsgi_fetch

ANN = UUID("6f1c1f0e-31d5-4a2f-9d7c-1f0b8c2f7a11")


class Object(SimpleNamespace):
    """A user as frameworks have them."""


class Unnamed:
    """As Starlette's SimpleUser: authenticated, with a name and no identity."""

    is_authenticated = True
    display_name = str(ANN)

    @property
    def identity(self) -> str:
        raise NotImplementedError


SHAPES = [
    ANN,
    str(ANN),
    Identity("user", str(ANN)),
    Identity("user", ANN),  # type: ignore[arg-type]
    {"id": ANN},
    {"sub": str(ANN)},
    Object(id=ANN),
    Object(pk=ANN),
    Object(id=None, sub=str(ANN)),
    Object(identity="", username=str(ANN)),
    Object(id=ANN, is_authenticated=True),
    Unnamed(),
]
NOBODY = [None, False, "", Object(id=ANN, is_authenticated=False), {"id": ANN, "is_authenticated": False}]
ANYBODY = [
    Object(),
    object(),
    True,
    {"name": "ann"},
    [7],
    1.5,
    2**300,
    Identity("user", ""),
    Identity("user", 1.5),  # type: ignore[arg-type]
    Identity("user", None),  # type: ignore[arg-type]
    {"id": Identity("user", "")},
]
UNSTABLE = [b"\x07", 1.5, object(), True, [7]]  # ids that are there, and cannot be used
MINE = Policy(rules=[Rule("mine", "2/minute", by="user")])


def twice(user: Any) -> Any:
    return LocalProxy(lambda: SimpleLazyObject(lambda: user))


PROXIES = [
    lambda user: LocalProxy(lambda: user),
    lambda user: SimpleLazyObject(lambda: user),
    twice,
]
proxied = pytest.mark.parametrize("proxy", PROXIES, ids=["werkzeug", "django", "both"])


@pytest.mark.parametrize("user", SHAPES)
def test_a_user_is_the_same_in_every_shape(user: Any) -> None:
    found = user_id(user)
    assert str(found.value if isinstance(found, Identity) else found) == str(ANN)


@pytest.mark.parametrize(("user", "known"), [(7, 7), (0, 0), ({"id": 0}, 0), (Object(pk=7, id=8), 7)])
def test_a_user_may_be_a_number(user: Any, known: int) -> None:
    assert user_id(user) == known


@pytest.mark.parametrize("user", NOBODY)
def test_who_is_not_authenticated_is_nobody(user: Any) -> None:
    assert user_id(user) is None


@proxied
@pytest.mark.parametrize("user", SHAPES)
def test_a_user_behind_a_proxy_is_the_same(user: Any, proxy: Callable[[Any], Any]) -> None:
    found = user_id(proxy(user))
    assert str(found.value if isinstance(found, Identity) else found) == str(ANN)
    assert user_id({"id": proxy(ANN)}) == str(ANN)


@proxied
def test_a_number_behind_a_proxy_is_a_plain_number(proxy: Callable[[Any], Any]) -> None:
    assert user_id(proxy(7)) == 7
    assert type(user_id(proxy(7))) is int
    assert type(user_id(proxy("ann"))) is str


@proxied
@pytest.mark.parametrize("user", NOBODY)
def test_nobody_behind_a_proxy_is_nobody(user: Any, proxy: Callable[[Any], Any]) -> None:
    assert user_id(proxy(user)) is None


@pytest.mark.parametrize("unstable", UNSTABLE)
@pytest.mark.parametrize("name", ["pk", "id"])
def test_an_id_that_cannot_be_used_is_not_replaced_by_a_name(name: str, unstable: Any) -> None:
    for user in (Object(**{name: unstable, "username": "ann"}), {name: unstable, "display_name": "ann"}):
        with pytest.raises(TypeError, match=rf"its {name} is {type(unstable).__name__}: .* str\(user\.{name}\)"):
            user_id(user)


@pytest.mark.parametrize("user", ANYBODY)
def test_a_user_without_a_stable_id_raises(user: Any) -> None:
    with pytest.raises(TypeError, match="cannot tell who the user is from"):
        user_id(user)


def test_a_user_without_a_stable_id_that_middleware_has_found_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Strange:
        pass

    assert [found_user_id(Strange()) for _ in range(3)] == [None] * 3
    assert [(record.levelname, "Strange" in record.message) for record in caplog.records] == [("ERROR", True)]


def test_a_gate_takes_a_uuid_for_a_user() -> None:
    gate = Gate(MINE)
    for user in (ANN, str(ANN)):
        assert gate.decide(RequestView("GET", "/", peer="192.0.2.1", user=user)).identities[0].value == str(ANN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("by", "alone"),
    [
        ("user", True),
        ("user + address", True),
        (["user + tenant", "user"], True),
        (["user", "address"], False),
        (("user", "api-key"), False),
        (["user", len], False),
        (len, False),
        ("address", False),
        (None, False),
    ],
)
def test_by_says_what_anonymous_clients_count_by_or_does_not(by: Any, alone: bool) -> None:
    assert counts_by_user_alone(by) is alone


# In every adapter.


def numbered_customer(key: str) -> Identity:
    return Identity("customer", int(key))  # type: ignore[arg-type]


def test_an_identity_with_a_number_has_a_quota_of_its_own_and_is_on_lists(adapter: Callable[..., Any]) -> None:
    policy = Policy(
        rules=[Rule("api", "2/minute", by="api-key")],
        identities={"api-key": Source(verify=numbered_customer, kinds=["customer"])},
        block=["customer:13"],
    )
    with adapter(policy=policy) as send:
        keys = ["7", "7", "7", "8", "13"]
        assert [send("GET", "/", {"x-api-key": key}).status for key in keys] == [200, 200, 429, 200, 403]


@pytest.fixture(params=ADAPTERS.values(), ids=list(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "ratebound" and one.levelno >= logging.WARNING]


def test_a_user_has_one_quota_in_whatever_shape_the_application_has_it(adapter: Callable[..., Any]) -> None:
    users = iter([*SHAPES[:2], *SHAPES[2:], "bob"])
    with adapter(policy=MINE, user=lambda _: next(users)) as send:
        assert [send("GET", "/", {}).status for _ in SHAPES] == [200, 200] + [429] * (len(SHAPES) - 2)
        assert send("GET", "/", {}).status == 200


@proxied
def test_a_user_behind_a_proxy_has_its_own_quota_in_every_adapter(
    adapter: Callable[..., Any], proxy: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    users = iter([Object(id="ann"), "ann", {"id": "ann"}, 7, 7, 7, "bob", *NOBODY])
    with adapter(policy=MINE, user=lambda _: proxy(next(users))) as send:
        assert [send("GET", "/", {}).status for _ in range(7)] == [200, 200, 429, 200, 200, 429, 200]
        assert [send("GET", "/", {}).status for _ in NOBODY] == [200, 200, 429, 429, 429]
    assert not warnings(caplog)


@proxied
def test_a_function_that_finds_the_key_the_cost_or_the_limits_may_return_a_proxy(
    adapter: Callable[..., Any], proxy: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    keys = iter(["ann", "ann", "ann", "bob", None, Identity("user", "cid")])
    rule = Rule(
        "mine",
        Computed(lambda view: proxy("4/minute"), "1/minute"),
        by=lambda view: proxy(next(keys)),
        cost=lambda view: proxy(2),
    )
    with adapter(policy=Policy(rules=[rule])) as send:
        assert [send("GET", "/", {}).status for _ in range(6)] == [200, 200, 429, 200, 200, 200]
    assert not warnings(caplog)


def test_a_user_without_a_stable_id_is_an_error_of_the_application(adapter: Callable[..., Any]) -> None:
    with adapter(policy=MINE, user=lambda _: object()) as send:
        try:
            status = send("GET", "/", {}).status
        except TypeError:
            status = 500  # the server's to send
    assert status == 500


def test_a_limit_by_user_where_no_user_can_be_known_warns_once(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with adapter(policy=MINE) as send:
        assert [send("GET", "/", {}).status for _ in range(3)] == [200, 200, 429]
        for _ in range(ANONYMOUS):
            send("GET", "/", {})
    (warning,) = warnings(caplog)
    assert "'mine' counts by user" in warning
    assert "user=" in warning or "'user':" in warning  # what to do


def test_a_framework_that_knows_of_each_request_whether_it_has_a_user_warns_at_once(
    adapter: Callable[..., Any], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    knows = "flask" in request.node.name or "django" in request.node.name
    with adapter(policy=MINE) as send:
        send("GET", "/", {})
        assert len(warnings(caplog)) == knows
        for _ in range(ANONYMOUS - 2):
            send("GET", "/", {})
        assert len(warnings(caplog)) == knows
        send("GET", "/", {})
        assert len(warnings(caplog)) == 1


def test_a_shadow_by_user_warns_too(adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    with adapter(policy=Policy(rules=[Rule("tried", "2/minute", by="user + address", mode="shadow")])) as send:
        for _ in range(ANONYMOUS):
            send("GET", "/", {})
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    "policy",
    [
        Policy(rules=[Rule("any", "2/minute")]),
        Policy(rules=[Rule("any", "2/minute", by=["user", "address"])]),
        Policy(rules=[Rule("any", "2/minute", by="address")]),
        Policy(rules=[Rule("any", "2/minute", by="user")], identities={"user": Source(call=lambda view: None)}),
    ],
    ids=["default", "user or address", "address", "the policy's own user"],
)
def test_a_limit_that_says_what_anonymous_clients_count_by_does_not_warn(
    adapter: Callable[..., Any], policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    with adapter(policy=policy) as send:
        send("GET", "/", {})
    assert not warnings(caplog)


def test_an_anonymous_client_of_a_site_that_knows_users_does_not_warn(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with adapter(policy=MINE, user=lambda _: None) as send:
        send("GET", "/", {})
    assert not warnings(caplog)


@pytest.mark.parametrize("user", [5, "ann", {"id": 7}, Object(id=7), LocalProxy(lambda: Object(id=7))])
def test_a_user_that_is_no_function_raises_when_the_application_is_made(adapter: Callable[..., Any], user: Any) -> None:
    with pytest.raises((TypeError, ImportError)) as raised, adapter(policy=MINE, user=user):
        pass
    assert "user" in str(raised.value) or isinstance(user, str)  # for Django, text is a name to import


async def find_later(_: Any) -> str:
    return "ann"


class Later:
    async def __call__(self, _: Any) -> str:
        return "ann"


@pytest.mark.parametrize(
    "user", [find_later, Later(), functools.partial(find_later)], ids=["function", "object", "part"]
)
def test_an_async_user_is_awaited_or_raises_when_the_application_is_made(
    adapter: Callable[..., Any], user: Any, request: pytest.FixtureRequest
) -> None:
    awaits = "flask" in request.node.name or "django" in request.node.name
    if awaits:
        with adapter(policy=MINE, user=user) as send:
            assert [send("GET", "/", {}).status for _ in range(3)] == [200, 200, 429]
    else:
        with pytest.raises(TypeError, match=r"user=.* cannot be awaited here: .*middleware"):
            adapter(policy=MINE, user=user)


@pytest.mark.parametrize("charge", [5, "failure", ["mine"], len])
def test_charges_that_are_not_by_rule_raise_when_the_application_is_made(
    adapter: Callable[..., Any], charge: Any
) -> None:
    expected = r"expected charges by the names of rules, .*\{'login': 'failure'\}, not "
    with pytest.raises(TypeError, match=expected), adapter(policy=MINE, charge=charge):
        pass


def test_a_dependency_for_the_user_has_to_be_a_function() -> None:
    with pytest.raises(TypeError, match="expected a function as user=, not 5"):
        RateLimits().limit("5/minute", user=5)  # type: ignore[arg-type]


# Where users come from elsewhere.


@pytest.mark.anyio
@pytest.mark.parametrize("user", [None, Object(is_authenticated=False)], ids=["None", "anonymous"])
async def test_an_anonymous_client_of_an_authentication_middleware_does_not_warn(
    user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await fetch(RateLimitMiddleware(bare_asgi, MINE), "GET", "/", user=user)
    assert not warnings(caplog)


@pytest.mark.anyio
async def test_an_authentication_middleware_that_sets_only_known_users_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, starlette = RateLimitMiddleware(bare_asgi, MINE), Starlette()
    RateLimits(MINE, app=starlette)
    for one in (app, starlette):
        for place in range(ANONYMOUS + 10):
            known: dict[str, Any] = {"user": "ann"} if place == 9 else {}
            await fetch(one, "GET", "/", **known)
    assert not warnings(caplog)


def test_a_server_that_sets_only_known_users_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    app = wsgi.RateLimitMiddleware(bare_wsgi, MINE)
    for place in range(ANONYMOUS + 10):
        known = {"REMOTE_USER": "ann"} if place == 9 else {}
        wsgi_fetch(app, environ_of("GET", "/") | known)
    assert not warnings(caplog)


@pytest.mark.anyio
async def test_an_answer_of_an_authentication_middleware_that_has_no_user_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            raise AuthenticationError("no")

    app = Starlette(middleware=[Middleware(AuthenticationMiddleware, backend=Strict())])
    RateLimits(MINE, app=app)
    assert [(await fetch(app, "GET", "/")).status for _ in range(3)] == [400, 400, 429]
    assert not warnings(caplog)


def test_an_answer_of_a_middleware_before_that_of_django_s_users_does_not_warn(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    between = [MIDDLEWARE, f"{__name__}.turned_away", "django.contrib.auth.middleware.AuthenticationMiddleware"]
    with running(kind, settings=MINE, middleware=between) as site:
        assert [site.get("/").status for _ in range(3)] == [403, 403, 429]
    assert not warnings(caplog)


def turned_away(get_response: Any) -> Any:
    return lambda request: HttpResponse(status=403)


def test_a_function_of_django_s_settings_may_return_a_lazy_user(kind: str) -> None:
    @async_unsafe  # type: ignore[untyped-decorator]
    def look_up() -> Any:
        return Object(pk=ANN)

    def user(request: Any) -> Any:
        return SimpleLazyObject(look_up)

    view = view_for(kind, lambda request: request.ratebound.verdict.identities[0].value)
    with running(kind, path("", view), settings={"policy": MINE, "user": user}) as site:
        assert site.get("/").body == str(ANN).encode()


@pytest.mark.parametrize("stage", ["late", "early"])
@pytest.mark.parametrize("middleware", [[MIDDLEWARE], []], ids=["middleware", "decorator"])
def test_a_view_s_limit_that_inherits_by_user_lets_anonymous_clients_pass_in_django(
    kind: str, stage: str, middleware: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    view = limit("2/minute", name="own")(view_for(kind))
    rule = {"name": "all", "limits": "10/minute", "by": "address", "stage": stage}
    policy = {"by": "user", "rules": [rule]}
    with running(kind, path("", view), settings={"policy": policy}, middleware=middleware) as site:
        assert [site.get("/").status for _ in range(3)] == [200, 200, 429]
    (warning,) = warnings(caplog)
    assert "'own' counts by user" in warning


def test_a_view_of_a_django_request_can_be_read_when_the_request_is_over(kind: str) -> None:
    seen = []

    def key(view: RequestView) -> str:
        seen.append(view)
        return "ann"

    policy = Policy(rules=[Rule("all", "10/minute", by=key)])
    with running(kind, path("", view_for(kind)), settings=policy) as site:
        assert site.get("/").status == 200
    assert (seen[0].path_params, seen[0].session, seen[0].state, seen[0].request) == ({}, None, None, None)
    assert seen[0].no_user == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda app: FlaskLimits(app).limit("5/minute", key="user"),
        lambda app: FlaskLimits(app, default_limits=RouteLimit(limits="5/minute", key="user")),
        lambda app: FlaskLimits(app, application_limits=RouteLimit(limits="5/minute", key="user + address")),
    ],
    ids=["limit", "default_limits", "application_limits"],
)
def test_flask_refuses_a_limit_by_users_whom_it_cannot_know(make: Callable[[flask.Flask], Any]) -> None:
    with pytest.raises(ValueError, match=r"key='user' needs a function that returns the user: RateLimits\(app, user="):
        make(flask.Flask("shop"))
