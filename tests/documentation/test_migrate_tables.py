"""What the tables of docs/migrate say about web packages, beyond the examples."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
from fastapi import FastAPI, WebSocket

from ratebound import AsyncLimiter
from ratebound.policy import Computed, Policy, Rule
from ratebound.web import RouteLimit
from ratebound.web.fastapi import RateLimits
from tests.documentation.pages import read
from tests.peers.sites import django_site, flask_site, flask_statuses, ok, statuses
from tests.web.django_site import HttpResponse
from tests.web.drivers import connect
from tests.web.suite import Answer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def django_get() -> Iterator[Callable[..., Answer]]:
    with django_site() as get:
        yield get


OF_DJANGO_RATELIMIT = (  # which is not installed for the tests
    *("CACHE_PREFIX", "ENABLE", "EXCEPTION_CLASS", "FAIL_OPEN", "HASH_ALGORITHM", "IPV4_MASK", "IPV6_MASK"),
    *("IP_META_KEY", "USE_CACHE", "VIEW"),
)


def table(name: str) -> str:
    return read(f"docs/migrate/{name.lower()}.md")


def test_every_variable_of_their_configs_is_on_the_page() -> None:
    from flask_limiter.constants import ConfigVars
    from slowapi.extension import C

    for name, kind in (("Flask-Limiter", ConfigVars), ("slowapi", C)):
        for variable in (value for key, value in vars(kind).items() if key.isupper()):
            assert f"`{variable}`" in table(name), variable
    for variable in OF_DJANGO_RATELIMIT:
        assert f"`RATELIMIT_{variable}" in table("django-ratelimit"), variable


def test_every_public_name_of_theirs_is_on_the_page() -> None:
    import flask_limiter
    import slowapi
    import slowapi.middleware

    for name in {*flask_limiter.__all__, *_public(flask_limiter.Limiter)}:
        assert re.search(rf"\b{name}\b", table("Flask-Limiter")), name
    for name in {*_public(slowapi.Limiter), "SlowAPIMiddleware", "SlowAPIASGIMiddleware", "get_ipaddr"}:
        assert re.search(rf"\b{name}\b", table("slowapi")), name


def _public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_command_of_flask_limiter_is_on_the_page() -> None:
    from flask_limiter.commands import cli

    for name, command in cli.commands.items():
        assert f"flask limiter {name}" in table("Flask-Limiter")
        for option in command.params:
            assert option.name in ("endpoint", "y") or f"--{option.name}" in table("Flask-Limiter"), option.name


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (("2/m",), [200, 200, 429]),
        (("2/5m",), [200, 200, 429]),
        (("2/300s",), [200, 200, 429]),
        (("deny",), [403] * 3),
        (("unlimited",), [200] * 3),
        ((lambda request: None, "1/m"), [200, 429, 429]),
        ((lambda request: "unlimited", "1/m"), [200] * 3),
        ((lambda request: "deny", "1/m"), [403] * 3),
    ],
)
def test_rates_of_django_ratelimit_are_written_so(
    written: tuple[Any, ...], expected: list[int], django_get: Callable[..., Answer]
) -> None:
    from ratebound.web.django import limit

    limited = limit(written[0], **({"otherwise": written[1]} if written[1:] else {}))
    assert [django_get({}, {"/": limited(ok)}, "/").status for _ in range(3)] == expected


def test_a_view_of_django_may_only_be_told_that_it_was_limited(django_get: Callable[..., Answer]) -> None:
    from ratebound.web.django import limit

    def told(request: Any) -> Any:
        return HttpResponse(str(not request.ratebound.verdict.shadows[0].allowed))

    views = {"/": limit("1/minute", mode="shadow")(told)}
    assert [django_get({}, views, "/").body for _ in range(3)] == [b"False", b"True", b"True"]


def test_application_limits_of_flask_may_have_a_cost_and_a_condition() -> None:
    limit = RouteLimit(
        limits="4/minute", name="application", cost=2, exempt_when=lambda view: view.header("x-staff") == "yes"
    )
    app, _ = flask_site(application_limits=limit)
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}", name, lambda: "")
    client = app.test_client()
    assert [client.get(where).status_code for where in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]
    assert client.get("/a", headers={"x-staff": "yes"}).status_code == 200


async def test_a_handler_of_a_websocket_may_answer_a_message_that_is_too_many() -> None:
    app = FastAPI()
    limiter = AsyncLimiter("1/5 seconds")

    @app.websocket("/ws")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text("hello" if await limiter.hit(f"chat {text}") else "again")

    assert [message.get("text") for message in await connect(app, "/ws", ["a", "a", "b"])][1:] == [
        "hello",
        "again",
        "hello",
    ]


async def test_default_limits_of_slowapi_may_be_found_by_a_function() -> None:
    rule = Rule("default", Computed(lambda view: "1/minute", otherwise="100/minute"), default=True)
    app = FastAPI()
    limits = RateLimits(Policy(rules=[rule]), app=app)

    @app.get("/own")
    @limits.limit("2/minute")
    async def own() -> None: ...

    assert [await statuses(app, "/", 2), await statuses(app, "/own", 3)] == [[404, 429], [200, 200, 429]]


def blueprint_site(limiter: Any, app: flask.Flask) -> dict[str, int]:
    """How many pass in a limited blueprint: of a view without and with a limit of its own, and of an exempt one."""
    blueprint = flask.Blueprint("b", "b")
    decorators = {"plain": lambda view: view, "own": limiter.limit("3/minute"), "free": limiter.exempt}
    for name, decorate in decorators.items():

        def view() -> str:
            return ""

        view.__name__ = view.__qualname__ = name  # by which theirs tells views apart
        blueprint.add_url_rule(f"/{name}", name, decorate(view))
    limiter.limit("2/minute")(blueprint)
    app.register_blueprint(blueprint)
    return {name: flask_statuses(app, f"/{name}", 5).count(200) for name in decorators}


def test_a_limited_blueprint_and_its_views_differ_as_the_page_says() -> None:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    theirs = flask.Flask("tests.peer")
    limiter = Limiter(get_remote_address, app=theirs, storage_uri="memory://")
    assert blueprint_site(limiter, theirs) == {"plain": 2, "own": 3, "free": 2}
    app, keeper = flask_site()
    assert blueprint_site(keeper, app) == {"plain": 2, "own": 2, "free": 5}


def test_a_scope_is_a_name_as_the_page_says() -> None:
    _, keeper = flask_site()
    with pytest.raises(ValueError, match="my scope/1"):
        keeper.shared_limit("2/minute", scope="my scope/1")
