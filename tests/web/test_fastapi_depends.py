"""FastAPI: limits as dependencies, with and without the middleware; users and functions of other packages."""

import logging
from typing import Any
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, Form, Request
from fastapi.responses import PlainTextResponse

from ratebound.policy import RequestView
from ratebound.policy.cost import MAX_BODY, json_batch_cost
from ratebound.web.fastapi import RateLimits
from ratebound.web.functions import taking_request
from tests.web.drivers import fetch
from tests.web.test_fastapi import remaining, statuses

pytestmark = pytest.mark.anyio
JSON = {"content-type": "application/json"}


class User:
    """As an application has them."""

    def __init__(self, **known: Any) -> None:
        self.__dict__ |= known


@pytest.mark.parametrize("charges", [["failure", None], [None, "failure"]], ids=str)
async def test_no_charge_by_result_is_promised_without_the_middleware(charges: list[Any]) -> None:
    app, limits = FastAPI(), RateLimits()
    several = [Depends(limits.limit("5/minute", name=f"n{place}", charge=one)) for place, one in enumerate(charges)]

    @app.get("/", dependencies=several)
    def home() -> None: ...

    assert await statuses(app, "/", "/") == [500, 500]


async def test_without_the_middleware_all_dependencies_are_told_of() -> None:
    app, limits = FastAPI(), RateLimits()
    two = [Depends(limits.limit("5/minute", name="first")), Depends(limits.limit("3/minute", name="second"))]

    @app.get("/", dependencies=two)
    def home() -> None: ...

    answers = [await fetch(app, "GET", "/") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert remaining(answers[0]) == {"first/minute": 4, "second/minute": 2}


async def test_without_the_middleware_a_batch_costs_what_it_is() -> None:
    app, limits = FastAPI(), RateLimits()

    @app.post("/", dependencies=[Depends(limits.limit("15/minute", cost=json_batch_cost))])
    async def rpc(request: Request) -> Any:
        return await request.json()

    answers = [await fetch(app, "POST", "/", JSON, b"[1,2,3,4,5,6,7,8,9,10]") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert (answers[0].body, list(remaining(answers[0]).values())) == (b"[1,2,3,4,5,6,7,8,9,10]", [5])


@pytest.mark.parametrize("how", ["read", "long"])
async def test_without_the_middleware_a_body_that_cannot_be_read_costs_what_nobody_has(how: str) -> None:
    app, limits = FastAPI(), RateLimits()
    limited = [Depends(limits.limit("15/minute", cost=json_batch_cost))]

    @app.post("/read", dependencies=limited)
    async def form(field: str = Form()) -> str:
        return field

    @app.post("/long", dependencies=limited)
    async def long() -> None: ...

    headers = {"content-type": "application/x-www-form-urlencoded", "content-length": str(MAX_BODY + 1)}
    if how == "read":
        headers["content-length"] = "7"
    assert (await fetch(app, "POST", f"/{how}", headers, b"field=1")).status == 429


ANN = UUID(int=7)


@pytest.mark.parametrize("is_installed", [True, False])
async def test_users_that_are_objects_have_quotas_of_their_own(
    is_installed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def current(request: Request) -> User:
        return User(id=request.headers["x-user"])

    app, limits = FastAPI(), RateLimits()
    if is_installed:
        limits.install(app)

    @app.get("/", dependencies=[Depends(limits.limit("2/minute", key="user", user=current))])
    def home() -> None: ...

    for name in ("ann", "bob"):
        assert await statuses(app, "/", "/", "/", headers={"x-user": name}) == [200, 200, 429]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_functions_may_take_nothing() -> None:
    app = FastAPI()
    is_free = {"now": False}
    limits = RateLimits("5/minute", app=app, by=lambda: "everybody")

    async def later() -> bool:
        return is_free["now"]

    @app.get("/plain")
    @limits.limit("1/minute", exempt_when=lambda: is_free["now"])
    async def plain() -> None: ...

    @app.get("/task")
    @limits.limit("1/minute", exempt_when=later)
    async def task() -> None: ...

    @app.get("/key")
    @limits.limit("1/minute", key=lambda: "all", cost=lambda: 1)
    async def key() -> None: ...

    @app.get("/limits")
    @limits.limit(lambda: "1/minute", otherwise="3/minute")
    async def found() -> None: ...

    for path in ("/plain", "/task", "/key", "/limits"):
        assert await statuses(app, path) == [200]
        assert await statuses(app, path) == [429]
    assert await statuses(app, "/key", peer="192.0.2.9") == [429]
    is_free["now"] = True
    assert await statuses(app, *["/plain", "/task"] * 2) == [200] * 4
    assert await statuses(app, *["/"] * 5) == [404] * 5
    assert await statuses(app, "/", peer="192.0.2.9") == [429]


def test_a_function_that_takes_the_request_gets_it() -> None:
    view = RequestView("GET", "/")
    assert taking_request(lambda request: request, "key")(view) is view
    assert taking_request(lambda request=None: request, "key")(view) is view
    assert taking_request(lambda *all: all, "key")(view) == (view,)
    assert taking_request(lambda: "nothing", "key")(view) == "nothing"
    assert taking_request(json_batch_cost, "cost") is json_batch_cost


def test_a_function_that_takes_nothing_may_look_at_the_body_by_its_mark() -> None:
    def cost() -> int:
        return 1

    cost.reads_body = True  # type: ignore[attr-defined]
    assert taking_request(cost, "cost").reads_body


async def test_an_override_of_a_limit_has_no_effect_where_it_is_foreseen() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    limit = limits.limit("1/minute")

    @app.get("/", dependencies=[Depends(limit)])
    def home() -> PlainTextResponse:
        return PlainTextResponse("")

    app.dependency_overrides[limit] = lambda: None
    assert await statuses(app, "/", "/") == [200, 429]


async def test_an_exempt_endpoint_is_exempt_from_limits_of_its_users() -> None:
    limits = RateLimits()
    app = FastAPI(dependencies=[Depends(limits.limit("1/minute", user=lambda: "ann"))])
    limits.install(app)

    @app.get("/")
    @limits.exempt
    def home() -> None: ...

    @app.get("/other")
    def other() -> None: ...

    assert await statuses(app, "/", "/", "/other", "/other") == [200, 200, 200, 429]


@pytest.mark.parametrize("by", ["address", "global"])
async def test_a_limit_with_a_user_counts_by_user(by: str) -> None:
    app = FastAPI()
    limits = RateLimits("100/minute", app=app, by=by)

    def current(request: Request) -> str | None:
        return request.headers.get("x-user")

    @app.get("/", dependencies=[Depends(limits.limit("1/minute", user=current))])
    def home() -> None: ...

    answers = [(await fetch(app, "GET", "/", {"x-user": user})).status for user in ("ann", "bob", "ann")]
    assert answers == [200, 200, 429]


@pytest.mark.parametrize("key", ["address", ["address"], "global"])
def test_a_user_that_nothing_looks_at_is_refused(key: Any) -> None:
    with pytest.raises(TypeError, match=r"user= is for a limit that counts by user.*key='user'"):
        RateLimits().limit("1/minute", key=key, user=lambda: "ann")


@pytest.mark.parametrize(
    "options",
    [
        {"key": "user + address"},
        {"key": ["user", "address"]},
        {"key": lambda view: view.user},
        {"key": "address", "exempt_when": lambda view: view.user == "ann"},
        {"key": "address", "cost": lambda view: 1},
    ],
)
def test_a_user_that_something_may_look_at_is_taken(options: Any) -> None:
    RateLimits().limit("1/minute", user=lambda: "ann", **options)
    RateLimits(tiers=["pro"]).limit({"pro": "9/minute", "default": "1/minute"}, key="address", user=lambda: "ann")
