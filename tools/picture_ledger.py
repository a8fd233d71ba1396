"""Make docs/pictures/history.png and ledger-report.png: the dashboard's history and the report of a month, from a real
ledger with a year of made-up traffic.

Run it as `python tools/picture_ledger.py`. It needs chromium on the PATH.
"""

import asyncio
import random
import shutil
import socket
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.operations import Operations
from ratebound.admin.sign_in import GivenSignIn
from ratebound.admin.site import AdminSite
from ratebound.clock import SECOND
from ratebound.ledger import Ledger
from ratebound.ledger.report import month_report
from ratebound.ledger.report_html import report_html
from ratebound.observe.gate_figures import GateFigures
from ratebound.policy import AsyncGate, Gate, Match, Policy, RequestView, Rule
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
DAYS = 370
POLICY = Policy(
    rules=[
        Rule("api", "18000/calendar-month", by="user", over="allow", cost=5),
        Rule("search", "12/hour", by="user", match=Match(paths="/search")),
        Rule("export", "4/hour", by="user", match=Match(paths="/export")),
    ]
)
CUSTOMERS = {"acme": 4.0, "zenith": 2.5, "initech": 2.0, "globex": 1.4, "hooli": 1.0, "umbra": 0.4}


def fill(ledger: Ledger) -> None:
    """Decide a year of requests, whose number changes with the hour, the day of the week and the month."""
    chosen = random.Random(11)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    clock = FakeClock()
    gate = Gate(POLICY, storage=MemoryStorage(clock=clock), listeners=[ledger])
    for hour in range(DAYS * 24, 0, -1):
        at = now - timedelta(hours=hour - 1)
        clock.now = int(at.timestamp()) * SECOND
        share = (0.5 if at.weekday() > 4 else 1) * (0.3 if at.hour < 7 else 1) * (1 - hour / DAYS / 48)
        for customer, size in CUSTOMERS.items():
            for _ in range(chosen.randrange(1 + round(9 * size * share))):
                path = chosen.choice(["/search", "/search", "/search", "/export", "/items"])
                gate.decide(RequestView("GET", path, peer="203.0.113.7", user=customer))
        if hour % 500 == 0:
            ledger.flush()
    ledger.flush()


def picture_report(browser: Browser, ledger: Ledger, folder: Path) -> None:
    """Make the picture of the report of the last whole month."""
    first = datetime.now(UTC).replace(day=1)
    file = folder / "report.html"
    file.write_text(report_html(month_report(ledger, f"{first - timedelta(days=1):%Y-%m}")), "utf-8")
    page = browser.new_page(viewport={"width": 1040, "height": 900})
    page.goto(file.as_uri())
    page.screenshot(path=PICTURES / "ledger-report.png", full_page=True)


def picture_history(browser: Browser, url: str) -> None:
    """Make the picture of the card of the dashboard."""
    page: Page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(url)
    page.get_by_role("button", name="30 days").click()
    page.get_by_role("button", name="Show names in history").click()
    page.get_by_text("user:acme").first.wait_for()
    page.wait_for_timeout(500)
    page.locator("#past").screenshot(path=PICTURES / "history.png")


def main() -> None:
    """Fill a ledger, serve a dashboard with it, and make the pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(f"sqlite:///{folder}/usage.db", clients="name") as ledger,
        sync_playwright() as driver,
    ):
        fill(ledger)
        gate = AsyncGate(POLICY)
        site = AdminSite(Operations(gate, GateFigures(gate), ledger=ledger), GivenSignIn(lambda request: "write"))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(AdminAsgi(site), log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        picture_report(browser, ledger, Path(folder))
        picture_history(browser, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        browser.close()
        server.should_exit = True
        thread.join(10)


if __name__ == "__main__":
    main()
