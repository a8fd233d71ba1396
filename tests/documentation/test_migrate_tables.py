"""What the tables of docs/migrate say about web packages, beyond the examples."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse

from ratebound import AsyncLimiter
from ratebound.policy import Computed, Policy, Rule
from ratebound.web import RouteLimit
from ratebound.web.fastapi import RateLimits
from tests.documentation.pages import read
from tests.peers.sites import django_site, fields, flask_site, flask_statuses, ok, statuses
from tests.web.django_site import HttpResponse
from tests.web.drivers import connect, fetch
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


async def test_the_other_methods_of_a_limit_keep_the_default_limits_and_not_in_slowapi() -> None:
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIMiddleware
    from slowapi.util import get_remote_address

    theirs, ours = FastAPI(), FastAPI()
    limiter = Limiter(get_remote_address, default_limits=["2/minute"])
    theirs.state.limiter = limiter
    theirs.add_middleware(SlowAPIMiddleware)
    limits = RateLimits("2/minute", app=ours)

    @theirs.api_route("/", methods=["GET", "POST"])
    @limiter.limit("1/minute", methods=["POST"])
    async def before(request: Request) -> None: ...

    @ours.api_route("/", methods=["GET", "POST"])
    @limits.limit("1/minute", methods=["POST"])
    async def after() -> None: ...

    assert [await statuses(app, "/", 3) for app in (theirs, ours)] == [[200] * 3, [200, 200, 429]]


async def test_a_key_function_of_slowapi_is_written_so() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("1/minute", key=lambda view: view.header("Authorization"))
    async def by_header() -> None: ...

    @app.get("/request")
    @limits.limit("1/minute", key=lambda view: view.request.query_params.get("team"))
    async def by_query() -> None: ...

    async def passed(path: str, **more: Any) -> list[int]:
        return [(await fetch(app, "GET", path, **more)).status for _ in range(2)]

    for name in ("ann", "ben"):
        assert await passed("/", headers={"Authorization": name}) == [200, 429]
        assert await passed(f"/request?team={name}") == [200, 429]


async def test_one_client_is_reset_where_slowapi_resets_all() -> None:
    app = FastAPI()
    limits = RateLimits("1/minute", app=app)
    assert await statuses(app, "/", 2) == [404, 429]
    await limits.reset("address:127.0.0.1")
    assert await statuses(app, "/", 2) == [404, 429]


async def test_the_error_that_a_handler_gets_has_a_sentence_and_the_limit() -> None:
    app, (site, limiter) = FastAPI(), flask_site()
    limits = RateLimits(app=app)

    @app.exception_handler(429)
    async def too_many(request: Request, error: Any) -> PlainTextResponse:
        return PlainTextResponse(f"{error.detail} {error.rejected.decision.limit.count}", 429)

    @app.get("/")
    @limits.limit("1/minute")
    async def home() -> None: ...

    site.register_error_handler(429, lambda error: (f"{error.description} {error.rejected.decision.limit.count}", 429))
    site.add_url_rule("/", "home", limiter.limit("1/minute")(lambda: ""))
    told = "Too many requests: try again in 60 seconds. 1"
    assert [(await fetch(app, "GET", "/")).body for _ in range(2)][1].decode() == told
    assert [site.test_client().get("/").text for _ in range(2)][1] == told


def test_a_function_of_flask_limiter_that_deducts_is_written_so() -> None:
    app, limiter = flask_site()

    @app.get("/<int:status>")
    @limiter.limit("2/minute", charge=lambda done: done.cost if done.status == 401 else 0)
    def login(status: int) -> Any:
        return "", status

    client = app.test_client()
    found = [client.get(f"/{status}").status_code for status in (200, 200, 200, 401, 401, 401)]
    assert found == [200, 200, 200, 401, 401, 429]


@pytest.mark.parametrize(("key", "place"), [("query.q", "/?q="), (lambda request: request.GET.get("q"), "/?q=")])
def test_a_field_of_a_request_of_django_is_a_key(key: Any, place: str, django_get: Callable[..., Answer]) -> None:
    from ratebound.web.django import limit

    views = {"/": limit("1/minute", key=key)(ok)}
    for name in ("ann", "ben"):
        assert [django_get({}, views, f"{place}{name}").status for _ in range(2)] == [200, 429]


def test_a_limiter_in_a_view_of_django_counts_by_the_address_of_the_client(django_get: Callable[..., Answer]) -> None:
    from ratebound import Limiter
    from ratebound.web.django import client_address

    limiter = Limiter("1/minute")

    def view(request: Any) -> Any:
        key = client_address(request)
        limited = not limiter.peek(key).allowed, not limiter.hit(key).allowed
        return HttpResponse(str(limited))

    assert [django_get({}, {"/": view}, "/").body for _ in range(2)] == [b"(False, False)", b"(True, True)"]


async def test_a_response_of_ours_in_place_of_a_callback_keeps_the_exact_retry_after() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    async def busy(rejected: Any) -> PlainTextResponse:
        return PlainTextResponse(f"{rejected.retry_after:.0f}", 503, headers={"Retry-After": "7"})

    @app.get("/")
    @limits.limit("1/minute", on_breach=busy)
    async def home() -> None: ...

    answer = [await fetch(app, "GET", "/") for _ in range(2)][1]
    assert (answer.status, answer.body, fields(answer, "retry-after")) == (503, b"60", ["60"])


def test_the_names_of_the_web_adapters_of_throttled_py_are_on_the_page() -> None:
    flask_names = pytest.importorskip("throttled.contrib.flask", reason="throttled-py comes with make bench").__all__
    fastapi_names = pytest.importorskip("throttled.asyncio.contrib.fastapi").__all__
    inside = {
        "KeyFunc",
        "RateLimitContext",
        "RateLimitHeaderPolicy",
        "get_remote_address",
    }  # of the adapters themselves
    for name in {*flask_names, *fastapi_names} - inside:
        assert re.search(rf"\b{name}\b", table("throttled-py")), name
