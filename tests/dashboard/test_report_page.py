"""The HTML report of a month in a real browser: it loads nothing, breaks no policy, and is readable everywhere."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from ratebound.ledger import Ledger
from ratebound.ledger.report import month_report
from ratebound.ledger.report_html import report_html
from tests.dashboard.conftest import OpenPage
from tests.dashboard.test_page import LOW_CONTRAST
from tests.ledger_report.filled import MONTH, filled_ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    file = tmp_path / "report.html"
    with Ledger(filled_ledger(tmp_path), clients="name", writes=False) as ledger:
        file.write_text(report_html(month_report(ledger, MONTH)), "utf-8")
    return file.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_report_is_readable_in_both_colour_schemes_and_on_a_phone(
    open_page: OpenPage, url: str, scheme: str, width: int
) -> None:
    page = open_page(url, color_scheme=scheme, viewport={"width": width, "height": 800})
    expect(page.get_by_role("heading", name="Usage in November 2026")).to_be_visible()
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pictures_have_names_and_numbers_for_people_who_cannot_see_them(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    expect(page.get_by_role("img", name="Units per day")).to_be_visible()
    expect(page.get_by_role("img", name="Decisions per day")).to_be_visible()
    page.get_by_text("Numbers of each day").first.focus()
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="2026-11-02").first
    expect(row).to_contain_text("9")
    expect(page.locator("rect.upper")).to_have_count(2)  # one day with overage, one with a denial
