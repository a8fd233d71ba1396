"""The page of a replay in a real browser: nothing is loaded, nothing fails, hostile names stay text."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from ratebound.policy import read_policy
from ratebound.replay.client_peaks import PeakTable
from ratebound.replay.engine import PolicyRun
from ratebound.replay.judged_policy import judged_policy
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.read_log import LogReader
from ratebound.replay.report import GivenPolicy, make_report
from ratebound.replay.report_html import report_html
from ratebound.replay.whole_log import replay_log
from tests.dashboard.conftest import FLAGS
from tests.servers import needs

NAME = "<img src=x onerror=alert(1)>&\u202eevil"


def page_of(tmp_path: Path) -> str:
    log = tmp_path / "access.log"
    line = '{} - {} [05/Nov/2026:10:00:{:02} +0000] "GET /{} HTTP/1.1" 200 1 "-" "-"\n'
    user = "ada<b>"
    log.write_text("".join(line.format("192.0.2.1", user, at, "<img src=x onerror=alert(1)>") for at in range(40)))
    given = []
    for limits in ("3/minute; 2 concurrent", "30/minute"):
        judged, unjudged = judged_policy(read_policy({"rules": [{"name": "all", "limits": limits}]}))
        given.append(GivenPolicy(NAME, PolicyRun(judged), unjudged))
    replay, reader = LogReplay(given[0].run, given[1].run, peaks=PeakTable()), LogReader([log])
    replay_log(reader, replay)
    return report_html(make_report(reader, replay, files=[NAME], policy=given[0], before=given[1]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_loads_nothing_and_reports_no_error(tmp_path: Path, scheme: str) -> None:
    needs("chromium")
    file = tmp_path / "report.html"
    file.write_text(page_of(tmp_path), "utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
            heard: list[str] = []
            asked: list[str] = []
            page.on("console", lambda message: heard.append(message.text))
            page.on("pageerror", lambda error: heard.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(file.as_uri())
            assert asked == [file.as_uri()]
            assert heard == []
            assert page.locator("img").count() == page.locator("script").count() == 0
            assert page.locator("svg.picture").count() == 5
            for picture in page.locator("svg.picture").all():
                assert picture.locator("desc").text_content()
            assert page.get_by_text("Not judged").count() == 1
            wide = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert wide
        finally:
            browser.close()
