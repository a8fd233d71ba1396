"""The page in a real browser, mounted in applications in real servers: with events over ASGI, without over WSGI."""

import os
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.dashboard.conftest import OpenPage
from tests.servers import wait_until
from tests.web.serving import COMMANDS
from tests.web.test_dashboard_served import Site, dashboard

COMMANDS["fastapi, one in uvicorn"] = ["uvicorn", "--host", "{host}", "--port", "{port}", "tests.web.served:app"]
GUNICORN = ["gunicorn", "--bind", "{host}:{port}", "--no-control-socket", "--threads", "8"]
COMMANDS["flask, one in gunicorn"] = [*GUNICORN, "tests.web.served_flask:application"]
COMMANDS["django, one in gunicorn"] = [*GUNICORN, "tests.web.served_django:application"]


@pytest.mark.parametrize(
    ("server", "failures"),
    [
        ("fastapi, one in uvicorn", ()),
        ("flask, one in gunicorn", ("501",)),
        *([("django, one in gunicorn", ("501",))] if os.environ.get("RATEBOUND_LONG") == "1" else []),
    ],
)
def test_figures_move_and_a_click_ends_a_block(
    server: str, failures: tuple[str, ...], open_page: OpenPage, servers: ExitStack
) -> None:
    site: Site = servers.enter_context(dashboard(server, "memory://"))
    page = open_page(f"{site.url}/limits/", failures=failures, extra_http_headers={"x-role": "write"})
    expect(page.locator("#operator")).to_have_text("role write")
    decisions = page.locator(".tile", has=page.get_by_text("Decisions/s", exact=True)).locator(".value")

    def moves() -> bool:
        for number in range(10):
            site.status(f"198.51.100.{number}")
        return decisions.text_content() not in ("", "0", "–", "—", None)

    wait_until(moves, 30, "decisions on the page")
    site.call("blocks", "POST", {"client": "203.0.113.9", "reason": "scrapes"})
    assert site.status("203.0.113.9") == 403
    page.get_by_role("button", name="Unblock 203.0.113.9").click()
    expect(page.locator("#blocks")).not_to_contain_text("203.0.113.9")
    assert site.status("203.0.113.9") == 200
