"""The page inside of an application: below a prefix, with the sign-in of the application, with and without events."""

from contextlib import ExitStack

import httpx
import pytest
from playwright.sync_api import expect

from ratebound.web import Operator
from tests.dashboard.conftest import OpenPage
from tests.dashboard.served_site import served_asgi, served_wsgi
from tests.servers import wait_until

POLICY = {"rules": [{"name": "rest", "default": True, "by": "address", "limits": "100000/hour"}]}
OPERATOR = Operator("ann", "write")


def in_fastapi() -> object:
    from fastapi import FastAPI

    from ratebound.web.fastapi import RateLimits

    app = FastAPI()
    limits = RateLimits(app=app, policy=POLICY)

    @app.get("/")
    async def home() -> str:
        return "hello"

    app.mount("/limits", limits.dashboard(auth=lambda request: OPERATOR))
    return app


def in_flask() -> object:
    from flask import Flask

    from ratebound.web.flask import RateLimits

    app = Flask(__name__)
    limits = RateLimits(app, policy=POLICY)

    @app.get("/")
    def home() -> str:
        return "hello"

    app.register_blueprint(limits.dashboard(auth=lambda: OPERATOR), url_prefix="/limits")
    return app


@pytest.mark.parametrize(("make", "serve"), [(in_fastapi, served_asgi), (in_flask, served_wsgi)])
def test_an_operator_of_the_application_sees_figures_and_blocks(
    open_page: OpenPage, servers: ExitStack, make: object, serve: object
) -> None:
    url = servers.enter_context(serve(make()))  # type: ignore[operator]
    assert httpx.get(url, trust_env=False).status_code == 200
    page = open_page(f"{url}limits/")
    expect(page.locator("#operator")).to_have_text("ann (write)")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("100000/hour")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()

    def moves() -> bool:
        assert httpx.get(url, trust_env=False).status_code == 200
        return page.locator(".tile .value").first.text_content() != "0"

    wait_until(moves, 20, "figures that move")
    page.locator("#block-client").fill("127.0.0.1")
    page.get_by_role("button", name="Block", exact=True).click()
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("127.0.0.1")
    assert httpx.get(url, trust_env=False).status_code == 403
    page.get_by_role("button", name="Unblock 127.0.0.1").click()
    expect(page.locator("#blocks")).to_contain_text("No client is blocked.")
    wait_until(lambda: httpx.get(url, trust_env=False).status_code == 200, 20, "a client that is free")
