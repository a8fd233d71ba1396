"""FastAPI and Starlette: limits at the endpoint, asked in one decision with the policy's own."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount, Route

from ratebound.policy import Identity, Match, Policy, PolicyError, RequestView, Rule
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import FakeClock, limiting_off
from ratebound.web.fastapi import Passed, RateLimitExceeded, RateLimits
from tests.web.drivers import CountingStorage, connect, exchange, fetch, http_scope
from tests.web.suite import Answer

pytestmark = pytest.mark.anyio


def field(answer: Answer, name: str) -> str:
    values = [value for key, value in answer.headers if key == name]
    assert len(values) == 1, answer
    return values[0]


def remaining(answer: Answer) -> dict[str, int]:
    """What is left, by limit."""
    found = {}
    for part in field(answer, "ratelimit").split(", "):
        name, *parameters = part.split(";")
        found[name.strip('"')] = int(dict(one.split("=") for one in parameters)["r"])
    return found


async def statuses(app: Any, *paths: str, **more: Any) -> list[int]:
    return [(await fetch(app, "GET", path, **more)).status for path in paths]


async def test_a_path_parameter_makes_no_bucket_of_its_own() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/users/{id}")
    @limits.limit("2/minute")
    async def user(id: int) -> int:
        return id

    assert await statuses(app, "/users/1", "/users/2", "/users/3") == [200, 200, 429]


async def test_an_endpoint_needs_no_request_and_may_be_a_plain_function() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/sync")
    @limits.limit("1/minute")
    def sync() -> str:
        return "done"

    @limits.limit("1/minute")
    @app.get("/above")
    def above() -> str:
        return "the route's decorator may come first"

    assert await statuses(app, "/sync", "/sync", "/above", "/above") == [200, 429, 200, 429]
    assert inspect.unwrap(sync)() == "done"


async def test_the_policy_and_the_endpoint_are_one_decision_and_one_trip() -> None:
    app = FastAPI()
    storage = CountingStorage(AsyncMemoryStorage())
    limits = RateLimits(Policy(rules=[Rule("all", "10/minute")]), app=app, storage=storage)

    @app.get("/login")
    @limits.limit("2/minute")
    @limits.limit("3/hour", key="address")
    async def login() -> None: ...

    @app.get("/other")
    async def other() -> None: ...

    first = await fetch(app, "GET", "/login")
    name = "test_fastapi.login"
    assert remaining(first) == {f"{name}/hour": 2, f"{name}-2/minute": 1, "all/minute": 9}
    await statuses(app, "/login", "/login", "/login")
    assert storage.calls == ["spend"] * 4
    # What was refused has cost nothing, of any limit.
    assert remaining(await fetch(app, "GET", "/other")) == {"all/minute": 7}


async def test_the_first_of_two_routes_that_match_is_the_one_that_counts() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/users/me")
    async def me() -> None: ...

    @app.get("/users/{id}")
    @limits.limit("1/minute")
    async def user(id: str) -> None: ...

    assert await statuses(app, "/users/me", "/users/me", "/users/1", "/users/me", "/users/2") == [200] * 4 + [429]


async def test_a_method_that_a_route_does_not_have_costs_its_endpoint_nothing_and_the_policy_counts_it() -> None:
    app = FastAPI()
    match = Match(paths=["/users/{id}"])
    limits = RateLimits(Policy(rules=[Rule("all", "4/minute", match=match)]), app=app)

    @app.get("/users/{id}")
    @limits.limit("1/minute")
    async def user(id: str) -> None: ...

    assert [(await fetch(app, "DELETE", "/users/1")).status for _ in range(3)] == [405] * 3
    assert remaining(await fetch(app, "GET", "/users/1")) == {"test_fastapi.user/minute": 0, "all/minute": 0}
    assert (await fetch(app, "DELETE", "/users/1")).status == 429


async def test_routers_and_mounts_keep_their_limits() -> None:
    limits = RateLimits()
    router = APIRouter(dependencies=[Depends(limits.limit("3/minute"))])
    inner = APIRouter()

    @inner.get("/deep/{id}")
    @limits.limit("1/minute")
    def deep(id: str) -> None: ...

    @router.get("/a")
    def first() -> None: ...

    @router.get("/b")
    def second() -> None: ...

    router.include_router(inner, prefix="/inner")
    mounted = FastAPI()

    @mounted.get("/z/{id}")
    @limits.limit("1/minute")
    def mount(id: str) -> None: ...

    app = FastAPI()
    app.include_router(router, prefix="/api")
    app.mount("/mounted", mounted)
    limits.install(app)
    assert await statuses(app, "/api/a", "/api/a", "/api/a", "/api/a") == [200, 200, 200, 429]
    assert await statuses(app, "/api/b") == [200]  # each endpoint by itself
    assert await statuses(app, "/api/inner/deep/1", "/api/inner/deep/2") == [200, 429]
    assert await statuses(app, "/mounted/z/1", "/mounted/z/2") == [200, 429]


async def test_below_a_root_path_the_routes_are_the_same() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/users/{id}")
    @limits.limit("1/minute")
    async def user(id: str) -> None: ...

    assert await statuses(app, "/v1/users/1", "/v1/users/2", "/users/3", root_path="/v1") == [200, 429, 429]


async def test_one_name_is_one_quota() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    shared = limits.limit("2/minute", name="expensive")

    @app.get("/a", dependencies=[Depends(shared)])
    async def first() -> None: ...

    @app.get("/b")
    @shared
    async def second() -> None: ...

    assert await statuses(app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


async def test_two_endpoints_of_one_name_do_not_share_a_quota_by_accident() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    def made(path: str) -> None:
        @app.get(path)
        @limits.limit("2/minute")
        async def show() -> None: ...

    made("/a")
    made("/b")
    with pytest.raises(ValueError, match="give one a name="):
        limits.read_routes()


@pytest.mark.parametrize("limits", ["5 per fortnight", "", 7, lambda view: "5/minute", {"free": "x"}])
def test_a_bad_limit_raises_where_it_is_written(limits: Any) -> None:
    with pytest.raises((PolicyError, ValueError)):
        RateLimits().limit(limits)


@pytest.mark.parametrize(
    "options", [{"cost": 0}, {"charge": "maybe"}, {"cost": 9}, {"exempt_when": 3}, {"mode": "quiet"}], ids=str
)
def test_a_bad_option_raises_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RateLimits().limit("5/minute", **options)


@pytest.mark.parametrize("arguments", [("app",), ("app", "5/minute"), ("5/minute", "app")], ids=str)
def test_an_application_in_place_of_a_policy_raises_with_the_right_call(arguments: tuple[str, ...]) -> None:
    given: Any = [FastAPI() if one == "app" else one for one in arguments]
    with pytest.raises(TypeError, match=re.escape("write RateLimits('100/minute', app=app)")):
        RateLimits(*given)


def test_what_only_the_policy_can_tell_raises_where_it_is_written() -> None:
    with pytest.raises(PolicyError, match="unknown tier"):
        RateLimits().limit({"free": "1/minute", "default": "2/minute"})


def test_what_only_the_routes_can_tell_raises_at_the_start() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("1/minute", name="shared")
    async def home() -> None: ...

    @app.get("/other")
    @limits.limit("2/minute", name="shared")
    async def other() -> None: ...

    with pytest.raises(ValueError, match="have different limits"):
        limits.read_routes()


async def test_an_endpoint_whose_limits_nobody_would_ask_for_fails_loudly() -> None:
    limits = RateLimits()

    @limits.limit("1/minute", name="a")
    async def coroutine(request: Request) -> PlainTextResponse:
        return PlainTextResponse("a")

    @limits.limit("1/minute", name="b")
    def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse("b")

    @limits.limit("1/minute", name="c")
    class Whole(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("c")

    class ByMethod(HTTPEndpoint):
        @limits.limit("1/minute", name="d")
        def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("d")

    endpoints: list[Any] = [coroutine, plain, Whole, ByMethod]
    routes = [Route(f"/{place}", one) for place, one in enumerate(endpoints)]
    paths = [route.path for route in routes]
    assert await statuses(Starlette(routes=routes), *paths) == [500] * 4
    with limiting_off():
        assert await statuses(Starlette(routes=routes), *paths) == [200] * 4
    app = Starlette(routes=routes)
    limits.install(app)
    assert await statuses(app, *paths, *paths) == [200] * 4 + [429] * 4


async def test_a_generator_stays_one() -> None:
    limits = RateLimits()

    @limits.limit("1/minute")
    async def parts() -> AsyncIterator[int]:
        yield 1

    @limits.limit("1/minute", name="plain")
    def plain() -> Iterator[int]:
        yield 2

    with pytest.raises(RuntimeError, match="would run unlimited, since its limits are not installed"):
        await anext(parts())
    with pytest.raises(RuntimeError, match="would run unlimited, since its limits are not installed"):
        next(plain())
    with limiting_off():
        assert [part async for part in parts()] == [1]
        assert list(plain()) == [2]


def test_it_is_installed_once_and_before_the_start() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    with pytest.raises(RuntimeError, match="already"):
        limits.install(app)
    asyncio.run(fetch(app, "GET", "/"))
    with pytest.raises(RuntimeError, match="before its first request"):
        RateLimits().install(app)


async def test_a_dependency_alone_needs_no_middleware() -> None:
    app, limits = FastAPI(), RateLimits()

    @app.get("/")
    async def home(decision: Annotated[Passed, Depends(limits.limit("2/minute"))]) -> int:
        assert decision.decision is not None
        return decision.decision.remaining

    answers = [await fetch(app, "GET", "/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.body for answer in answers[:2]] == [b"1", b"0"]
    assert [list(remaining(answer).values()) for answer in answers] == [[1], [0], [0]]
    assert field(answers[2], "retry-after") == "60"


async def test_a_charge_by_result_is_not_promised_without_the_middleware() -> None:
    app, limits = FastAPI(), RateLimits()

    @app.get("/", dependencies=[Depends(limits.limit("2/minute", charge="failure"))])
    async def home() -> None: ...

    assert await statuses(app, "/") == [500]


def current_user(request: Request) -> Identity | None:
    name = request.headers.get("x-user")
    return Identity("user", name) if name else None


async def test_a_user_that_a_dependency_finds_has_a_quota_and_a_refusal_costs_nothing_elsewhere() -> None:
    app = FastAPI()
    limits = RateLimits(Policy(rules=[Rule("all", "10/minute")]), app=app)

    @app.get("/")
    def home(_: Annotated[Passed, Depends(limits.limit("2/minute", key="user", user=current_user))]) -> None: ...

    @app.get("/other")
    def other() -> None: ...

    ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
    assert await statuses(app, "/", "/", "/", headers=ann) == [200, 200, 429]
    answer = await fetch(app, "GET", "/", ann)
    assert remaining(answer) == {"test_fastapi.home.user/minute": 0}
    assert field(answer, "content-type") == "application/problem+json"
    assert await statuses(app, "/", headers=bob) == [200]
    assert remaining(await fetch(app, "GET", "/other")) == {"all/minute": 6}  # 3 allowed, and this one


async def test_the_user_of_an_authentication_middleware_is_known() -> None:
    class Backend(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            name = conn.headers.get("x-user")
            return (AuthCredentials(), SimpleUser(name)) if name else None

    app = FastAPI()
    limits = RateLimits(app=app)
    app.add_middleware(AuthenticationMiddleware, backend=Backend())

    @app.get("/")
    @limits.limit("1/minute", key="user")
    async def home() -> None: ...

    assert await statuses(app, "/", "/", headers={"x-user": "ann"}, peer="192.0.2.1") == [200, 429]
    assert await statuses(app, "/", headers={"x-user": "ann"}, peer="192.0.2.2") == [429]
    assert await statuses(app, "/", headers={"x-user": "bob"}, peer="192.0.2.1") == [200]


async def test_early_rules_come_before_other_middleware_and_late_ones_after_it() -> None:
    seen: list[str] = []

    class Work(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            seen.append(request.url.path)
            return await call_next(request)

    policy = Policy(rules=[Rule("flood", "2/minute", stage="early"), Rule("all", "50/minute")])
    app = FastAPI()
    RateLimits(policy, app=app)
    app.add_middleware(Work)
    answers = [await fetch(app, "GET", "/") for _ in range(3)]
    assert [answer.status for answer in answers] == [404, 404, 429]
    assert remaining(answers[0]) == {"flood/minute": 1, "all/minute": 49}
    assert seen == ["/", "/"]


async def test_an_exempt_endpoint_is_not_counted_and_a_condition_can_say_who_is() -> None:
    app = FastAPI()
    limits = RateLimits("1/minute", app=app)

    @app.get("/health")
    @limits.exempt
    async def health() -> None: ...

    async def is_internal(view: RequestView) -> bool:
        return view.header("x-internal") == "yes"

    @app.get("/some")
    @limits.limit("1/minute", exempt_when=is_internal)
    async def some() -> None: ...

    @app.get("/plain")
    @limits.limit("1/minute", exempt_when=lambda view: view.header("x-internal") == "yes")
    async def plain() -> None: ...

    assert await statuses(app, *["/plain"] * 3, headers={"x-internal": "yes"}) == [200] * 3
    assert await statuses(app, "/plain", "/plain") == [200, 429]
    assert await statuses(app, *["/health"] * 3) == [200] * 3
    assert await statuses(app, *["/some"] * 3, headers={"x-internal": "yes"}) == [200] * 3
    assert await statuses(app, "/some", "/some") == [200, 429]


async def test_an_exempt_endpoint_is_closed_to_who_is_blocked() -> None:
    app = FastAPI()
    limits = RateLimits(Policy(rules=[Rule("all", "9/minute")], block=["192.0.2.66"]), app=app)

    @app.get("/health")
    @limits.exempt
    async def health() -> None: ...

    assert await statuses(app, "/health") == [200]
    assert await statuses(app, "/health", peer="192.0.2.66") == [403]


async def test_an_exempt_endpoint_passes_early_rules_once() -> None:
    app = FastAPI()
    limits = RateLimits(Policy(rules=[Rule("flood", "5/minute", stage="early"), Rule("all", "1/minute")]), app=app)

    @app.get("/health")
    @limits.exempt
    async def health() -> None: ...

    answers = [await fetch(app, "GET", "/health") for _ in range(2)]
    assert [remaining(answer) for answer in answers] == [{"flood/minute": 4}, {"flood/minute": 3}]


async def test_the_switch_holds_for_limits_of_endpoints() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("1/minute")
    async def home() -> None: ...

    assert await statuses(app, "/", "/") == [200, 429]
    for word in ("off", "shadow"):
        limits.gate.switch = word
        assert await statuses(app, "/", "/") == [200, 200]
    limits.gate.switch = None
    assert await statuses(app, "/") == [429]


async def test_limits_can_be_found_for_each_request() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    async def by_plan(view: RequestView) -> str:
        return {"gold": "3/minute", "silver": "2/minute"}[view.header("x-plan") or ""]

    @app.get("/")
    @limits.limit(by_plan, otherwise="1/minute", cost=lambda view: 1)
    async def home() -> None: ...

    assert await statuses(app, "/", "/", "/", headers={"x-plan": "silver"}) == [200, 200, 429]
    assert await statuses(app, "/", "/", headers={"x-plan": "lead"}, peer="192.0.2.9") == [200, 429]


async def test_methods_and_defaults_are_the_limits_own_affair() -> None:
    app = FastAPI()
    limits = RateLimits("5/minute", app=app)

    @app.api_route("/", methods=["GET", "POST"])
    @limits.limit("1/minute", methods=["POST"], keep_defaults=True, name="posts")
    async def home() -> None: ...

    assert remaining(await fetch(app, "POST", "/")) == {"posts/minute": 0, "default/minute": 4}
    assert (await fetch(app, "POST", "/")).status == 429
    assert remaining(await fetch(app, "GET", "/")) == {"default/minute": 3}


async def test_the_applications_own_handler_may_answer() -> None:
    app = FastAPI()
    limits = RateLimits("1/minute", app=app)

    @app.exception_handler(429)
    def too_many(request: Request, error: RateLimitExceeded) -> JSONResponse:
        return JSONResponse({"slow": "down", "wait": error.rejected.retry_after}, 429)

    @app.get("/late")
    def late(_: Annotated[Passed, Depends(limits.limit("1/minute", user=current_user))]) -> None: ...

    await fetch(app, "GET", "/")
    refused = await fetch(app, "GET", "/")
    assert (refused.status, refused.body[:14]) == (429, b'{"slow":"down"')
    assert (field(refused, "retry-after"), field(refused, "content-type")) == ("60", "application/json")
    assert remaining(refused) == {"default/minute": 0}
    raised = [await fetch(app, "GET", "/late", peer="192.0.2.7") for _ in range(2)][1]
    assert (raised.status, raised.body[:14]) == (429, b'{"slow":"down"')


async def test_a_handler_for_the_exception_may_answer() -> None:
    app = FastAPI()
    RateLimits("1/minute", app=app)

    @app.exception_handler(RateLimitExceeded)
    async def too_many(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
        return PlainTextResponse("slow down", error.status_code)

    await fetch(app, "GET", "/")
    refused = await fetch(app, "GET", "/")
    assert (refused.status, refused.body, remaining(refused)) == (429, b"slow down", {"default/minute": 0})


async def test_a_limit_may_answer_for_itself() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    heard: list[Any] = []

    @app.get("/")
    @limits.limit("1/minute", on_breach=lambda refused: PlainTextResponse("busy", 503))
    async def home() -> None: ...

    @app.get("/quiet")
    @limits.limit("1/minute", on_breach=heard.append)
    async def quiet() -> None: ...

    assert await statuses(app, "/", "/") == [200, 503]
    assert await statuses(app, "/quiet", "/quiet") == [200, 429]
    assert len(heard) == 1


async def test_forty_failed_logins_at_once_pass_five() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    tried: list[str] = []

    @app.post("/login")
    @limits.limit("5/minute", charge="failure")
    async def login(request: Request) -> PlainTextResponse:
        tried.append("login")
        await asyncio.sleep(0.01)
        return PlainTextResponse("", 200 if request.headers.get("x-password") == "right" else 401)

    good = {"x-password": "right"}
    assert [(await fetch(app, "POST", "/login", good)).status for _ in range(20)] == [200] * 20
    tried.clear()
    answers = await asyncio.gather(*[fetch(app, "POST", "/login") for _ in range(40)])
    assert sorted(answer.status for answer in answers) == [401] * 5 + [429] * 35
    assert len(tried) == 5
    assert (await fetch(app, "POST", "/login", good)).status == 429


async def test_a_handler_charges_what_its_work_has_cost() -> None:
    app = FastAPI()
    limits = RateLimits(Policy(rules=[Rule("requests", "50/minute")]), app=app)

    @app.get("/ask")
    @limits.limit("1000/minute", name="model")
    async def ask(request: Request) -> StreamingResponse:
        async def words() -> AsyncIterator[str]:
            yield "some "
            yield "words"
            request.state.ratebound.charge(120)

        return StreamingResponse(words())

    @app.get("/named")
    @limits.limit("1000/minute", name="model")
    async def named(request: Request) -> None:
        request.state.ratebound.charge(5, rule="requests")
        with pytest.raises(ValueError, match="no rule 'other' was asked"):
            request.state.ratebound.charge(5, rule="other")
        with pytest.raises(ValueError):
            request.state.ratebound.charge(-1)

    assert (await fetch(app, "GET", "/ask")).body == b"some words"
    assert remaining(await fetch(app, "GET", "/named")) == {"model/minute": 879, "requests/minute": 44}


async def test_class_based_endpoints_are_limited_by_method_or_as_a_whole() -> None:
    limits = RateLimits()

    class Items(HTTPEndpoint):
        @limits.limit("1/minute")
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("items")

        async def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("made")

    @limits.limit("1/minute")
    class Whole(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("whole")

    routes = [Route("/items", Items), Mount("/below", routes=[Route("/whole", Whole)])]
    app = Starlette(routes=routes)
    limits.install(app)
    assert await statuses(app, "/items", "/items") == [200, 429]
    assert [(await fetch(app, "POST", "/items")).status for _ in range(2)] == [200, 200]
    assert (await fetch(app, "HEAD", "/items")).status == 429
    assert await statuses(app, "/below/whole", "/below/whole") == [200, 429]


async def test_background_tasks_run_and_hold_nothing_up() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    ran: list[int] = []

    @app.get("/")
    @limits.limit("2/minute", charge="failure")
    async def home(tasks: BackgroundTasks) -> None:
        tasks.add_task(ran.append, 1)

    sent = await exchange(app, http_scope("GET", "/"))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert ran == [1]


async def test_a_route_that_is_added_later_is_limited() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)
    assert await statuses(app, "/late") == [404]

    @app.get("/late")
    @limits.limit("1/minute")
    async def late() -> None: ...

    assert await statuses(app, "/late", "/late") == [200, 429]


async def test_connections_and_messages_of_a_websocket_are_limited() -> None:
    app = FastAPI()
    limits = RateLimits(app=app, messages="3/minute")

    @app.websocket("/ws/{room}")
    @limits.limit("2/minute")
    async def ws(websocket: WebSocket, room: str) -> None:
        await websocket.accept()
        assert websocket.state.ratebound.decision.allowed
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    sent = await connect(app, "/ws/1", texts="abcd")
    assert [message["type"].rpartition(".")[2] for message in sent] == ["accept", "send", "send", "send", "close"]
    assert sent[-1]["code"] == 1008
    await connect(app, "/ws/2")
    (closed,) = await connect(app, "/ws/3")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


async def test_the_route_is_known_to_rules_of_the_policy() -> None:
    policy = Policy(rules=[Rule("files", "1/minute", match=Match(paths=["/files/{path*}"]))])
    app = FastAPI()
    limits = RateLimits(policy, app=app)

    @app.get("/files/{path:path}")
    async def files(path: str) -> None: ...

    assert limits.applications[0].find(http_scope("GET", "/files/a/b")).template == "/files/{path*}"
    assert await statuses(app, "/files/a", "/files/b/c") == [200, 429]
    # the path as it came has the server's root in front; the route does not
    assert await statuses(app, "/v1/files/a", root_path="/v1") == [429]


async def test_an_error_of_the_server_has_the_headers_and_is_raised() -> None:
    app = FastAPI()
    RateLimits("5/minute", app=app)

    @app.get("/")
    async def home() -> None:
        raise RuntimeError("as asked")

    answer = await fetch(app, "GET", "/")
    assert (answer.status, remaining(answer)) == (500, {"default/minute": 4})


async def test_a_refusal_lets_its_quota_come_back() -> None:
    clock = FakeClock()
    app = FastAPI()
    RateLimits("1/minute", app=app, storage=AsyncMemoryStorage(clock=clock))
    assert await statuses(app, "/", "/") == [404, 429]
    clock.advance(60)
    assert await statuses(app, "/") == [404]


async def test_a_route_that_is_added_below_an_included_router_is_limited_and_then_foreseen() -> None:
    app, router = FastAPI(), APIRouter()
    storage = CountingStorage(AsyncMemoryStorage())
    limits = RateLimits(Policy(rules=[Rule("all", "50/minute")]), app=app, storage=storage)

    @router.get("/first")
    async def first() -> None: ...

    app.include_router(router)
    assert await statuses(app, "/first") == [200]

    @router.get("/late")
    @limits.limit("2/minute")
    async def late() -> None: ...

    found = await statuses(app, "/late")
    if found == [200]:  # since FastAPI keeps routers apart; before, it is not served at all
        assert storage.calls == ["spend"] * 3
        assert await statuses(app, "/late", "/late") == [200, 429]
        assert storage.calls == ["spend"] * 5


async def test_an_application_with_limits_in_another_tells_of_its_own() -> None:
    outer, inner = FastAPI(), FastAPI()
    RateLimits(Policy(rules=[Rule("outer", "9/minute")]), app=outer)
    limits = RateLimits(
        Policy(rules=[Rule("inner", "2/minute"), Rule("early", "50/minute", stage="early")]),
        app=inner,
        charge={"inner": "failure"},
    )

    @inner.get("/")
    async def home(request: Request) -> None:
        assert limits.gate.owns(request.state.ratebound)

    @inner.get("/fail")
    async def fail() -> PlainTextResponse:
        return PlainTextResponse("", 400)

    outer.mount("/inner", inner)
    assert remaining(await fetch(outer, "GET", "/inner/")) == {"early/minute": 49, "inner/minute": 2}
    answers = [await fetch(outer, "GET", "/inner/fail") for _ in range(3)]
    assert [answer.status for answer in answers] == [400, 400, 429]
    assert remaining(answers[2]) == {"inner/minute": 0}
    assert remaining(await fetch(outer, "GET", "/other")) == {"outer/minute": 4}


async def test_a_policy_that_does_not_go_with_an_endpoint_leaves_the_old_one_in_force_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    policy = Policy(rules=[Rule("all", "9/minute")], tiers=["free"])
    limits = RateLimits(policy, app=app)

    @app.get("/")
    @limits.limit({"free": "1/minute", "default": "3/minute"}, name="home")
    async def home() -> None: ...

    @app.get("/other")
    async def other() -> None: ...

    assert remaining(await fetch(app, "GET", "/")) == {"home/minute": 2, "all/minute": 8}
    limits.gate.use(Policy(rules=[Rule("all", "99/minute")]))  # which knows no tiers
    assert remaining(await fetch(app, "GET", "/")) == {"home/minute": 1, "all/minute": 7}
    assert "the previous policy stays in force" in caplog.text
    assert remaining(await fetch(app, "GET", "/other")) == {"all/minute": 96}


async def test_after_the_response_it_is_too_late_for_a_charge() -> None:
    app = FastAPI()
    RateLimits("9/minute", app=app)
    late: list[str] = []

    @app.get("/")
    async def home(request: Request, tasks: BackgroundTasks) -> None:
        def charge() -> None:
            try:
                request.state.ratebound.charge(5)
            except RuntimeError as error:
                late.append(str(error))

        tasks.add_task(charge)

    await fetch(app, "GET", "/")
    assert late == ["the response is complete, and its cost is settled"]


def test_the_schema_knows_nothing_of_limits() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("1/minute")
    def home(
        q: int, first: Annotated[Passed, Depends(limits.limit("1/minute", user=current_user, name="other"))]
    ) -> None: ...

    operation = app.openapi()["paths"]["/"]["get"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["q"]


async def test_limits_of_a_user_and_of_the_endpoint_hold_together() -> None:
    app = FastAPI()
    limits = RateLimits(app=app)

    @app.get("/")
    @limits.limit("5/minute")
    def home(_: Annotated[Passed, Depends(limits.limit("2/minute", key="user", user=current_user))]) -> None: ...

    ann = {"x-user": "ann"}
    assert await statuses(app, "/", "/", "/", "/", headers=ann) == [200, 200, 429, 429]
    assert await statuses(app, "/", "/", "/", "/", headers={"x-user": "bob"}) == [200, 200, 429, 429]
    assert await statuses(app, "/", "/", headers={"x-user": "cid"}) == [200, 429]  # the endpoint's own five are used up


@pytest.mark.parametrize("is_installed", [True, False])
async def test_several_dependencies_of_one_endpoint_each_have_their_quota(is_installed: bool) -> None:
    app, limits = FastAPI(), RateLimits()
    if is_installed:
        limits.install(app)
    many = [Depends(limits.limit("9/minute")), Depends(limits.limit("2/hour"))]
    users = [Depends(limits.limit("9/second", user=current_user)), Depends(limits.limit("8/day", user=current_user))]

    @app.get("/", dependencies=many + users)
    async def home() -> None: ...

    assert await statuses(app, "/", "/", "/") == [200, 200, 429]


async def test_a_route_that_is_added_with_a_mistake_fails_by_itself() -> None:
    app = FastAPI()
    limits = RateLimits("9/minute", app=app)

    @app.get("/")
    @limits.limit("5/minute", name="shared")
    async def home() -> None: ...

    assert await statuses(app, "/") == [200]

    @app.get("/late")
    @limits.limit("2/minute", name="shared")
    async def late() -> None: ...

    assert await statuses(app, "/", "/late") == [200, 500]


async def test_a_script_in_a_browser_can_read_a_refusal() -> None:
    app = FastAPI()
    RateLimits("1/minute", app=app)
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.com"], allow_methods=["*"])
    asked = {"origin": "https://example.com", "access-control-request-method": "PUT"}
    for _ in range(3):
        assert (await fetch(app, "OPTIONS", "/", asked)).status == 200
    answers = [await fetch(app, "GET", "/", {"origin": "https://example.com"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [404, 429]
    for answer in answers:
        assert field(answer, "access-control-allow-origin") == "https://example.com"
        assert "RateLimit" in field(answer, "access-control-expose-headers")


async def test_a_class_below_a_limited_one_has_its_limits_and_a_quota_of_its_own() -> None:
    limits = RateLimits()

    @limits.limit("1/minute")
    class Above(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    class Below(Above):
        pass

    app = Starlette(routes=[Route("/above", Above), Route("/below", Below)])
    limits.install(app)
    assert await statuses(app, "/above", "/below", "/above", "/below") == [200, 200, 429, 429]
