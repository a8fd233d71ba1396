"""FastAPI: the OpenAPI document has rejections, and the pages that show it are not limited. Neither is a way around."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import FastAPIDeprecationWarning
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Mount, Route

from ratebound.policy import Match, Override, Policy, PolicyFile, Rule
from ratebound.web.fastapi import Passed, RateLimits
from tests.web.drivers import fetch

pytestmark = pytest.mark.anyio

PAGES = ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect")


async def statuses(app: Any, *paths: str, method: str = "GET", **more: Any) -> list[int]:
    return [(await fetch(app, method, path, **more)).status for path in paths]


def limited(*, policy: Any = "2/minute", **options: Any) -> FastAPI:
    app = FastAPI(**options)
    RateLimits(policy, app=app)
    app.get("/items")(lambda: "ran")
    return app


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_pages_of_fastapi_are_not_limited(page: str, method: str) -> None:
    app = limited()
    assert await statuses(app, page, page, page, page, method=method) == [200] * 4
    assert await statuses(app, "/items", "/items", "/items") == [200, 200, 429]
    assert await statuses(app, page) == [200]


async def test_they_are_limited_if_that_is_wanted() -> None:
    app = FastAPI()
    RateLimits("2/minute", app=app, limit_docs=True)
    assert await statuses(app, "/docs", "/redoc", "/openapi.json") == [200, 200, 429]


async def test_pages_at_other_addresses_are_known_by_their_routes() -> None:
    app = limited(docs_url="/manual", redoc_url=None, openapi_url="/api.json")
    assert await statuses(app, "/manual", "/manual", "/manual", "/api.json") == [200] * 4
    assert await statuses(app, "/docs", "/redoc", "/openapi.json") == [404, 404, 429]


@pytest.mark.parametrize(
    "path",
    [
        "/docs/",
        "//docs",
        "/DOCS",
        "/docs/x",
        "/docs%2f..%2fitems",
        "/docs/../items",
        "/items/../docs",
        "/docs;x",
        "/%2fdocs",
    ],
)
async def test_what_only_looks_like_a_page_is_limited(path: str) -> None:
    assert (await statuses(limited(), path, path, path))[-1] == 429


async def test_other_methods_of_a_page_are_limited() -> None:
    for method in ("POST", "OPTIONS", "DELETE"):
        assert await statuses(limited(), "/docs", "/docs", "/docs", method=method) == [405, 405, 429]


async def test_a_method_override_does_not_make_a_page_of_a_request() -> None:
    app = limited()
    headers = {"x-http-method-override": "GET"}
    assert await statuses(app, "/docs", "/docs", "/docs", method="POST", headers=headers) == [405, 405, 429]


async def test_a_route_of_the_application_at_the_same_path_is_limited() -> None:
    async def own(request: Request) -> PlainTextResponse:
        return PlainTextResponse("own")

    first = FastAPI(routes=[Route("/docs", own)])  # stands in front of FastAPI's own
    RateLimits("2/minute", app=first)
    assert await statuses(first, "/docs", "/docs", "/docs") == [200, 200, 429]
    other = FastAPI(docs_url=None)
    RateLimits("2/minute", app=other)
    other.get("/docs")(lambda: "own")
    assert await statuses(other, "/docs", "/docs", "/docs") == [200, 200, 429]
    replaced = FastAPI()
    RateLimits("2/minute", app=replaced)
    replaced.router.routes.insert(0, Route("/{page}", own))
    assert await statuses(replaced, "/docs", "/docs", "/docs") == [200, 200, 429]


async def test_pages_of_a_mounted_application_are_limited_by_those_around() -> None:
    app, inner = FastAPI(), FastAPI()
    RateLimits("2/minute", app=app)
    app.mount("/shop", inner)
    assert await statuses(app, "/shop/docs", "/shop/docs", "/shop/docs") == [200, 200, 429]
    assert await statuses(app, "/docs") == [200]


async def test_an_application_that_is_mounted_at_the_path_of_a_page_is_limited() -> None:
    app, inner = FastAPI(docs_url=None), FastAPI(openapi_url=None)
    RateLimits("2/minute", app=app)
    inner.get("/")(lambda: "own")
    app.mount("/docs", inner)
    assert await statuses(app, "/docs/", "/docs/", "/docs/") == [200, 200, 429]


async def test_prefixes_change_nothing() -> None:
    app = limited()
    around = Starlette(routes=[Mount("/api", app)])
    assert await statuses(around, *["/api/docs"] * 4) == [200] * 4
    assert await statuses(around, *["/api/items"] * 3) == [200, 200, 429]
    with pytest.warns(FastAPIDeprecationWarning, match="root_path"):
        rooted = limited(root_path="/docs")
    assert await statuses(rooted, "/docs/items", "/docs/items", "/docs/items") == [200, 200, 429]
    assert await statuses(rooted, "/docs/docs") == [200]


class _Elsewhere:
    """A middleware that leads every request to /items."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": "/items", "raw_path": b"/items"}
        await self.app(scope, receive, send)


@pytest.mark.parametrize("where", ["outside", "inside", "router", "route"])
async def test_a_middleware_that_leads_a_request_elsewhere_does_not_take_the_sparing_along(where: str) -> None:
    app = limited()
    app.openapi()  # reads the routes, before the middleware is there
    if where == "outside":
        app.add_middleware(_Elsewhere)
    elif where == "inside":
        app.user_middleware.append(Middleware(_Elsewhere))
    elif where == "route":
        route: Any = next(one for one in app.router.routes if getattr(one, "path", "") == "/docs")
        route.app = PlainTextResponse("own")
        app.get("/new")(lambda: "ran")  # the routes are read again
    else:
        app.router.middleware_stack = _Elsewhere(app.router.middleware_stack)
    assert await statuses(app, "/docs", "/docs", "/docs") == [200, 200, 429]


async def test_a_middleware_that_answers_in_place_of_a_page_is_limited() -> None:
    app = limited()

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Any) -> Any:
        if request.headers.get("authorization") == "right":
            return await call_next(request)
        return PlainTextResponse("wrong password", 401)

    assert await statuses(app, *["/docs"] * 4, headers={"authorization": "right"}) == [200] * 4
    assert await statuses(app, *["/docs"] * 4) == [401, 401, 429, 429]
    assert await statuses(app, "/docs", headers={"authorization": "right"}) == [200]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("docs", "2/minute", match=Match(paths=["/docs"])),
        Rule("docs", "2/minute", match=Match(paths=["/API/Docs/"])),
        Rule("docs", "2/minute", match=Match(paths=["/docs/**"])),
    ],
)
async def test_a_rule_that_names_a_page_holds_for_it(rule: Rule) -> None:
    app = limited(policy=Policy(rules=[rule, Rule("all", "2/minute")]))
    assert await statuses(app, "/docs", "/docs", "/docs") == [200, 200, 429]
    assert await statuses(app, "/redoc", "/redoc", "/redoc") == [200, 200, 200]


@pytest.mark.parametrize("match", [Match(addresses=["127.0.0.1"]), Match(paths=["/**"]), Match(paths=["/{page}"])])
async def test_a_rule_that_denies_keeps_its_clients_from_the_pages(match: Match) -> None:
    app = limited(policy=Policy(rules=[Rule("closed", "deny", match=match)]))
    assert await statuses(app, "/docs") == [403]


async def test_early_rules_and_blocks_hold_for_the_pages() -> None:
    early = Rule("flood", "3/minute", stage="early", by="address")
    assert await statuses(limited(policy=Policy(rules=[early])), *["/docs"] * 4) == [200, 200, 200, 429]
    assert await statuses(limited(policy=Policy(rules=[Rule("a", "5/minute")], block=["127.0.0.1"])), "/docs") == [403]


async def test_an_override_that_denies_keeps_its_client_from_the_pages() -> None:
    policy = Policy(rules=[Rule("a", "5/minute", by="address")], overrides=[Override("127.0.0.1", "deny")])
    assert await statuses(limited(policy=policy), "/docs") == [403]


async def test_a_route_that_takes_the_place_of_a_page_is_limited() -> None:
    async def own(request: Request) -> PlainTextResponse:
        return PlainTextResponse("own")

    app = limited()
    assert await statuses(app, "/docs", "/docs", "/docs") == [200, 200, 200]
    routes = app.router.routes
    place = next(index for index, route in enumerate(routes) if getattr(route, "path", "") == "/docs")
    routes[place] = Route("/docs", own)
    assert await statuses(app, "/docs", "/docs", "/docs") == [200, 200, 429]


async def test_an_application_of_starlette_has_no_such_pages() -> None:
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("own")

    app = Starlette(routes=[Route("/docs", page), Route("/openapi.json", page)])
    RateLimits("2/minute", app=app)
    assert await statuses(app, "/docs", "/openapi.json", "/docs") == [200, 200, 429]


# The document.


def answers(document: dict[str, Any], path: str, method: str = "get") -> set[str]:
    return {*document["paths"][path][method]["responses"]} - {"200", "422"}


def response(document: dict[str, Any], path: str, status: str = "429") -> dict[str, Any]:
    found: dict[str, Any] = document["paths"][path]["get"]["responses"][status]
    return found if "$ref" not in found else document["components"]["responses"][found["$ref"].rpartition("/")[2]]


def site(policy: Any = None, **options: Any) -> tuple[FastAPI, RateLimits]:
    app = FastAPI()
    return app, RateLimits(policy, app=app, **options)


async def test_limits_by_decorator_dependency_and_policy_are_in_the_document() -> None:
    app, limits = site(Policy(rules=[Rule("search", "5/minute", match=Match(paths=["/search/**"], methods=["GET"]))]))
    app.get("/decorated")(limits.limit("1/minute", name="one")(lambda: "ran"))
    app.get("/depended", dependencies=[Depends(limits.limit("1/minute", name="two"))])(lambda: "ran")

    @app.get("/by-user")
    def by_user(_: Annotated[Passed, Depends(limits.limit("1/minute", user=lambda: "ann"))]) -> None: ...

    router = APIRouter(prefix="/search")
    router.get("/{word}")(lambda word: "ran")
    router.post("/{word}")(lambda word: "ran")
    app.include_router(router)
    app.get("/shadow")(limits.limit("1/minute", mode="shadow", name="three")(lambda: "ran"))
    app.get("/free")(lambda: "ran")
    document = app.openapi()
    found = {path: answers(document, path) for path in document["paths"]}
    assert {path for path, one in found.items() if one == {"429"}} == {
        "/decorated",
        "/depended",
        "/by-user",
        "/search/{word}",
    }
    assert found["/shadow"] == found["/free"] == answers(document, "/search/{word}", "post") == set()


async def test_an_exempt_endpoint_has_no_rejections() -> None:
    app, limits = site(Policy(rules=[Rule("all", "5/minute")], exempt=[Match(paths=["/health"])]))
    app.get("/health")(lambda: "ran")
    app.get("/spared")(limits.exempt(lambda: "ran"))
    app.get("/items")(lambda: "ran")
    document = app.openapi()
    assert [answers(document, path) for path in ("/health", "/spared", "/items")] == [set(), set(), {"429"}]


@pytest.mark.parametrize("format", ["problem+json", "jsonapi", "json", "text"])
@pytest.mark.parametrize("headers", ["draft-11", "draft-07", "draft-06", "draft-03", "x-ratelimit", "none"])
async def test_the_document_tells_what_is_sent(format: Any, headers: Any) -> None:
    app, _ = site("1/minute", rejection=format, headers=headers)
    app.get("/")(lambda: "ran")
    told = response(json.loads((await fetch(app, "GET", "/openapi.json")).body), "/")
    await fetch(app, "GET", "/")
    sent = await fetch(app, "GET", "/")
    assert sent.status == 429
    fields = dict(sent.headers)
    assert list(told["content"]) == [fields["content-type"]]
    known = {name for name in fields if "ratelimit" in name or name == "retry-after"}
    assert {name.lower() for name in told["headers"]} == known
    schema = told["content"][fields["content-type"]]["schema"]
    if schema["type"] == "object":
        assert json.loads(sent.body).keys() <= schema["properties"].keys()


async def test_503_is_there_where_a_limit_can_answer_it() -> None:
    closed = Rule("closed", "5/minute", match=Match(paths=["/closed"]), failure="closed")
    app, _ = site(Policy(rules=[closed, Rule("all", "9/minute", default=True)]))
    app.get("/closed")(lambda: "ran")
    app.get("/open")(lambda: "ran")
    document = app.openapi()
    assert answers(document, "/closed") == {"429", "503"}
    assert answers(document, "/open") == {"429"}
    assert "Retry-After" in response(document, "/closed", "503")["headers"]
    busy, _ = site(Policy(rules=[Rule("all", "unlimited")], concurrent="auto"))
    busy.get("/")(lambda: "ran")
    assert answers(busy.openapi(), "/") == {"503"}


async def test_statuses_of_the_policy_are_used() -> None:
    rejection = {"status": 420, "unavailable_status": 599}
    app, _ = site(Policy(rules=[Rule("all", "5/minute", failure="closed")], rejection=rejection))
    app.get("/")(lambda: "ran")
    assert answers(app.openapi(), "/") == {"420", "599"}


async def test_what_an_endpoint_describes_itself_stays() -> None:
    app, _ = site("5/minute")
    app.get("/", responses={429: {"description": "in my words"}})(lambda: "ran")
    document = app.openapi()
    assert document["paths"]["/"]["get"]["responses"]["429"] == {"description": "in my words"}
    assert "responses" not in document.get("components", {})


async def test_a_status_that_is_a_number_stays_as_well() -> None:
    app, limits = site("5/minute")
    app.get("/")(lambda: "ran")
    own = {"paths": {"/": {"get": {"responses": {429: {"description": "from YAML"}}}}}}
    assert limits.describe(app, own) == own


async def test_it_can_be_turned_off() -> None:
    app, _ = site("5/minute", openapi=False)
    app.get("/")(lambda: "ran")
    assert answers(app.openapi(), "/") == set()


async def test_a_body_in_the_applications_own_words_is_not_described() -> None:
    app, limits = site("5/minute")
    app.get("/")(lambda: "ran")
    app.get("/breach")(limits.limit("1/minute", on_breach=lambda rejected: PlainTextResponse("no", 429))(lambda: "ran"))
    document = app.openapi()
    assert "content" in response(document, "/")
    assert "content" not in response(document, "/breach")
    app.exception_handler(429)(lambda request, error: PlainTextResponse("no", 429))
    app.openapi_schema = None
    assert "content" not in response(app.openapi(), "/")
    own, _ = site("5/minute", rejection=lambda rejection: "no")
    own.get("/")(lambda: "ran")
    assert "content" not in response(own.openapi(), "/")


async def test_routes_that_are_added_later_are_described() -> None:
    app, _ = site("5/minute")
    app.get("/first")(lambda: "ran")
    assert answers(app.openapi(), "/first") == {"429"}
    app.openapi_schema = None
    app.get("/second")(lambda: "ran")
    assert answers(app.openapi(), "/second") == {"429"}


async def test_a_document_of_the_application_itself_is_kept_and_can_be_described() -> None:
    app, limits = site("5/minute")
    app.get("/")(lambda: "ran")
    own = {
        "paths": {"/": {"get": {"responses": {"200": {}}}}},
        "components": {"responses": {"RateLimitExceeded": {"x": 1}}},
    }
    before = json.dumps(own)
    app.openapi = lambda: limits.describe(app, own)  # type: ignore[method-assign]
    document = json.loads((await fetch(app, "GET", "/openapi.json")).body)
    assert answers(document, "/") == {"429"}
    assert document["components"]["responses"]["RateLimitExceeded"] == {"x": 1}
    assert "Retry-After" in response(document, "/")["headers"]
    assert json.dumps(own) == before
    with pytest.raises(ValueError, match="not installed"):
        limits.describe(FastAPI(), {})


@pytest.mark.parametrize(
    "own",
    [
        {"paths": None},
        {"components": None},
        {"paths": {"/": None}},
        {"paths": {"/": {"get": None}}},
        {"paths": {"/": {"get": {"responses": None}}}},
        {"paths": {"/": {"get": {"responses": {"200": {}}}}}, "components": {"responses": None}},
    ],
)
async def test_a_document_may_have_null_where_nothing_is_written(own: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"rules": [{"name": "a", "limits": "5/minute"}]}')
    file = PolicyFile(path)
    app, limits = site(file)
    app.get("/")(lambda: "ran")
    described = limits.describe(app, own)
    path.write_text('{"rules": [{"name": "a", "limits": "6/minute"}]}')
    file.reload()
    assert limits.describe(app, described) == described
    assert ("429" in json.dumps(described)) is ("responses" in json.dumps(own.get("paths")))


@pytest.mark.parametrize("where", ["kept", "returned"])
async def test_a_program_may_change_the_document(where: str) -> None:
    app, _ = site("5/minute")
    app.get("/{word}")(lambda word: "ran")
    returned = app.openapi()
    document: Any = app.openapi_schema if where == "kept" else returned
    del document["paths"]["/{word}"]["get"]["responses"]["422"]
    document["tags"] = [{"name": "words"}]
    served = json.loads((await fetch(app, "GET", "/openapi.json")).body)
    assert served["paths"]["/{word}"]["get"]["responses"].keys() == {"200", "429"}
    assert served["tags"] == [{"name": "words"}]


async def test_the_document_follows_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{name: all, limits: 5/minute}]")
    policy = PolicyFile(file)
    app, _ = site(policy)
    app.get("/")(lambda: "ran")
    assert answers(app.openapi(), "/") == {"429"}
    for text, expected in (
        ("rules: [{name: all, limits: 5/minute, failure: closed}]", {"429", "503"}),
        ("rules: [{name: all, limits: unlimited}]", set()),
        ("rules: [{name: all, limits: 6/minute}]", {"429"}),
    ):
        file.write_text(text)
        policy.reload()
        assert answers(app.openapi(), "/") == expected
        assert len(app.openapi()["components"]["responses"]) == len(expected)


def test_two_routes_at_one_path_are_described_by_the_first() -> None:
    app, limits = site()
    paths: Iterable[Any] = (limits.limit("1/minute")(lambda: "first"), lambda: "second")
    for function in paths:
        app.get("/")(function)
    with pytest.warns(UserWarning, match="Duplicate"):
        assert answers(app.openapi(), "/") == {"429"}
