"""The history of the dashboard, from the usage ledger: with given figures, and with a real ledger."""

import re
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ratebound import Limiter
from ratebound.admin.asgi import AdminAsgi
from ratebound.ledger import Ledger
from ratebound.policy import AsyncGate
from tests.admin.sites import EmptyFigures, a_policy, a_site
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_calls import FakeCalls
from tests.dashboard.served_site import READ, WRITE, served_asgi, served_site, tokens
from tests.dashboard.test_page import LOW_CONTRAST, link
from tests.servers import wait_until


@pytest.fixture
def calls() -> FakeCalls:
    made = FakeCalls()
    made.has_ledger = True
    return made


@pytest.fixture
def url(calls: FakeCalls, servers: ExitStack) -> str:
    return servers.enter_context(served_site(calls))


def orders(calls: FakeCalls) -> list[str]:
    return [arguments["by"] for name, arguments in list(calls.asked_of_ledger) if name == "top"]


def bars(page: Page) -> int:
    return page.locator("#past-chart g.bar").count()


def test_without_a_ledger_there_is_no_history(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    calls.has_ledger = False
    page = open_page(link(url))
    expect(page.locator("#health-words")).to_have_text("Healthy")
    expect(page.get_by_role("heading", name="History")).to_be_hidden()
    expect(page.get_by_role("link", name="History")).to_be_hidden()
    assert calls.asked_of_ledger == []


def test_history_shows_24_hours_30_days_and_12_months_of_the_browsers_zone(
    open_page: OpenPage, url: str, calls: FakeCalls
) -> None:
    page = open_page(link(url, READ), timezone_id="Europe/Berlin")
    expect(page.locator("#past-chart g.bar")).to_have_count(24)
    page.get_by_role("button", name="30 days").click()
    expect(page.locator("#past-chart g.bar")).to_have_count(30)
    page.get_by_role("button", name="12 months").click()
    expect(page.locator("#past-chart g.bar")).to_have_count(12)
    expect(page.get_by_role("button", name="12 months")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "false")
    asked = [arguments for name, arguments in calls.asked_of_ledger if name == "totals"]
    assert [one["by"] for one in asked] == ["hour", "day", "month"]
    assert {one["zone"] for one in asked} == {"Europe/Berlin"}
    assert re.search(r"T2[23]:00:00\.000Z", asked[1]["since"])  # midnight in Berlin


def test_top_clients_and_denial_rates_are_of_the_same_time(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url, READ))
    expect(page.locator("#past-chart g.bar")).to_have_count(24)
    expect(page.get_by_role("table", name="Denial rates of this time")).to_contain_text("23 %")
    top = page.get_by_role("table", name="Top clients of this time")
    expect(top.get_by_role("row").nth(1)).to_contain_text("91,204")
    asked = calls.asked_of_ledger[:3]
    assert {name for name, _ in asked} == {"totals", "top", "denials"}
    assert len({(arguments["since"], arguments["until"]) for _, arguments in asked}) == 1
    page.get_by_label("Sort clients by").select_option("overage")
    wait_until(lambda: orders(calls)[-1] == "overage", 20, "the clients are asked for by overage")


def test_names_are_shown_on_demand_and_only_to_writers(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    reader = open_page(link(url, READ))
    expect(reader.get_by_role("table", name="Top clients of this time")).to_contain_text("9f12c07ab3e1")
    expect(reader.get_by_role("button", name="Show names in history")).to_be_hidden()
    page = open_page(link(url, WRITE), failures=("401",))  # of what is on its way when the operator signs out
    page.get_by_role("button", name="Show names in history").click()
    expect(page.get_by_role("table", name="Top clients of this time")).to_contain_text("user:0")
    assert calls.changes[0]["action"] == "show names"
    page.get_by_role("button", name="30 days").click()  # names that were shown stay, and are not asked for again
    expect(page.locator("#past-chart g.bar")).to_have_count(30)
    expect(page.get_by_role("table", name="Top clients of this time")).to_contain_text("user:0")
    assert len(calls.changes) == 1
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert "user:0" not in page.content()


def test_a_bar_is_read_with_the_keyboard(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url, READ), timezone_id="UTC")
    page.get_by_role("button", name="30 days").click()
    expect(page.locator("#past-chart g.bar")).to_have_count(30)
    readout = page.locator("#past-readout")
    expect(readout).to_contain_text("In all: allowed ")
    chart = page.get_by_role("slider", name="Bar of the history, use the arrow keys")
    chart.focus()
    page.keyboard.press("End")
    today = datetime.now(UTC)
    expect(readout).to_contain_text(f"{today.day} {today:%b} {today.year}: allowed ")
    expect(chart).to_have_attribute("aria-valuenow", "29")
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    assert chart.get_attribute("aria-valuetext") == readout.text_content()
    expect(page.locator("#past-chart g.bar.is-chosen")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(readout).to_contain_text("In all: allowed ")


def test_a_ledger_out_of_reach_is_told_and_what_was_read_stays(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url, READ), failures=("503",))
    expect(page.locator("#past-chart g.bar")).to_have_count(24)
    calls.out_of_ledger = {"totals", "top", "denials"}
    page.get_by_role("button", name="30 days").click()
    expect(page.locator("#past-problem")).to_have_text("The ledger could not answer: the database does not answer")
    assert bars(page) == 24
    expect(page.locator("#health-words")).to_have_text("Healthy")  # decisions do not need the ledger
    calls.out_of_ledger = set()
    page.get_by_role("button", name="24 h").click()
    expect(page.locator("#past-problem")).to_be_hidden()


def test_what_the_ledger_answers_is_shown_if_the_rest_takes_too_long(
    open_page: OpenPage, url: str, calls: FakeCalls
) -> None:
    page = open_page(link(url, READ), failures=("503",))
    expect(page.locator("#past-chart g.bar")).to_have_count(24)
    calls.out_of_ledger = {"top"}
    page.get_by_role("button", name="12 months").click()
    expect(page.locator("#past-chart g.bar")).to_have_count(12)
    expect(page.locator("#past-problem")).to_have_text("The ledger could not answer: the database does not answer")
    expect(page.get_by_role("table", name="Denial rates of this time")).to_contain_text("login")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_history_is_readable_in_both_colour_schemes_and_on_a_phone(open_page: OpenPage, url: str, scheme: str) -> None:
    page = open_page(link(url), color_scheme=scheme, viewport={"width": 360, "height": 800})
    expect(page.locator("#past-chart g.bar")).to_have_count(24)
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_real_ledger_is_shown(open_page: OpenPage, servers: ExitStack, tmp_path: Path) -> None:
    ledger = servers.enter_context(Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name"))
    limiter = Limiter("3/hour as search", listeners=[ledger])
    hostile = "user:<b>\u202e"
    for _ in range(5):
        limiter.hit(hostile)
    ledger.flush()
    site = a_site(AsyncGate(a_policy()), EmptyFigures(), tokens(), ledger=ledger)
    page = open_page(link(servers.enter_context(served_asgi(AdminAsgi(site)))))
    expect(page.locator("#past-readout")).to_contain_text("In all: allowed 3, denied 2 (40")
    expect(page.get_by_role("table", name="Denial rates of this time")).to_contain_text("search")
    page.get_by_role("button", name="Show names in history").click()
    expect(page.get_by_role("table", name="Top clients of this time")).to_contain_text("user:<b>\\u202e")
    page.get_by_role("button", name="12 months").click()
    expect(page.locator("#past-chart g.bar")).to_have_count(12)
    expect(page.locator("#past-readout")).to_contain_text("In all: allowed 3, denied 2 (40")
