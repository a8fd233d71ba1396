"""FastAPI and Starlette: prefixes and mounts neither escape a rule nor gain an exemption."""

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.exceptions import FastAPIDeprecationWarning
from starlette.applications import Starlette
from starlette.routing import Mount

from ratebound.policy import Match, Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.web.test_fastapi import statuses

pytestmark = pytest.mark.anyio


async def test_an_exemption_of_the_outer_application_does_not_free_a_path_of_a_mounted_one() -> None:
    app, admin = FastAPI(), FastAPI()
    policy = Policy(rules=[Rule("all", "100/minute")], exempt=[Match(paths=["/reset"])])
    limits = RateLimits(policy, app=app)

    @admin.get("/reset", dependencies=[Depends(limits.limit("2/minute", key="user", user=lambda: "ann"))])
    def reset() -> str:
        return "done"

    app.mount("/admin", admin)
    assert await statuses(app, "/admin/reset", "/admin/reset", "/admin/reset") == [200, 200, 429]


@pytest.mark.parametrize("is_installed", [True, False])
async def test_a_prefix_of_a_mounted_application_does_not_escape_a_rule(is_installed: bool) -> None:
    app = FastAPI()
    with pytest.warns(FastAPIDeprecationWarning, match="root_path"):
        shop = FastAPI(root_path="/api")
    shop.get("/login")(lambda: "ran")
    app.mount("/", shop)
    policy = Policy(rules=[Rule("login", "2/minute", match=Match(paths=["/login"]))])
    served: Any = app
    if is_installed:
        RateLimits(policy, app=app)
    else:
        served = RateLimitMiddleware(app, policy)
    assert await statuses(served, "/login", "/api/login", "/api/login", "/login") == [200, 200, 429, 429]


@pytest.mark.parametrize("is_installed", [True, False])
async def test_a_mount_with_a_parameter_releases_nothing(is_installed: bool) -> None:
    policy = Policy(rules=[Rule("all", "2/minute")], exempt=[Match(paths=["/static/{path*}"])])
    shop = FastAPI()
    shop.get("/login")(lambda: "ran")
    if is_installed:
        RateLimits(policy, app=shop)
    app = Starlette(routes=[Mount("/{tenant}", shop if is_installed else RateLimitMiddleware(shop, policy))])
    assert await statuses(app, "/static/login", "/static/login", "/static/login") == [200, 200, 429]


async def test_an_exemption_holds_in_an_application_that_is_mounted_under_a_fixed_path() -> None:
    policy = Policy(rules=[Rule("all", "2/minute")], exempt=[Match(paths=["/health"])])
    shop = FastAPI()
    shop.get("/health")(lambda: "well")
    RateLimits(policy, app=shop)
    app = Starlette(routes=[Mount("/shop", shop)])
    assert await statuses(app, *["/shop/health"] * 4) == [200] * 4
