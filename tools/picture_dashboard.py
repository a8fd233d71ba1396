"""Make docs/pictures/dashboard*.png: real pictures of the example service, after some minutes of its traffic.

Run it as `python tools/picture_dashboard.py`. It needs chromium on the PATH.
"""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
SECONDS = 150  # of traffic before the first picture: the chart of two minutes is full


def open_page(browser: Browser, url: str, width: int, height: int, scheme: str) -> Page:
    """Open the dashboard, and wait for its figures."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    page.get_by_role("button", name="2 min").click()
    page.get_by_role("table", name="Rules").wait_for()
    page.wait_for_timeout(2500)
    return page


def act(page: Page) -> None:
    """Do what operators do, so that there is something to see."""
    for client, reason in (("203.0.113.7", "scans for .env"), ("user:mallory", "stolen card")):
        page.locator("#block-client").fill(client)
        page.locator("#block-reason").fill(reason)
        page.get_by_role("button", name="Block", exact=True).click()
        page.get_by_role("button", name=f"Unblock {client}").wait_for()
    page.locator("#override-client").fill("user:ann")
    page.locator("#override-limits").fill("50/second burst 100")
    page.locator("#override-rules").fill("search")
    page.locator("#override-reason").fill("import of old orders")
    page.get_by_role("button", name="Override", exact=True).click()
    page.get_by_role("button", name="Remove the override of user:ann").wait_for()


def main() -> None:
    """Start the example service, wait, and make the pictures."""
    command = [sys.executable, str(ROOT / "examples" / "service" / "run.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as driver:
        assert process.stdout is not None
        try:
            url = next(found[0] for line in process.stdout if (found := re.search(r"http\S+/#token=\S+", line)))
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            time.sleep(SECONDS)
            page = open_page(browser, url, 1200, 1080, "light")
            act(page)
            page.wait_for_timeout(8000)  # until the messages have gone
            page.mouse.move(0, 0)  # away from the button
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=PICTURES / "dashboard.png")
            open_page(browser, url, 1200, 1080, "dark").screenshot(path=PICTURES / "dashboard-dark.png")
            open_page(browser, url, 360, 780, "light").screenshot(path=PICTURES / "dashboard-phone.png")
            browser.close()
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
