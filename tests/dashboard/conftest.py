"""A browser for the tests of the dashboard. Every page is watched: it may not report an error or ask another host."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.servers import needs

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT = 20_000  # milliseconds: a busy machine is no failure
expect.set_options(timeout=TIMEOUT)

OpenPage = Callable[..., Page]


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a browser. Meanwhile the event loop of its driver disturbs tests in this process that run loops."""
    needs("chromium")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for this folder."""
    with running_browser() as running:
        yield running


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """What a test enters here ends after its pages are closed: a page complains of a server that has gone."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def open_page(browser: Browser, servers: ExitStack) -> Iterator[OpenPage]:
    """Return a function that opens a page of a fresh profile: `open_page(url, failures=("401",), **options)`.

    At the end of the test nothing may have gone to another host, and the console may hold no error: neither an
    exception, nor a breach of the content security policy, nor a failed request unless its status is in `failures`.
    """
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def watch(page: Page, host: str, failures: tuple[str, ...]) -> None:
        def heard(text: str) -> None:
            if not ("Failed to load resource" in text and any(status in text for status in failures)):
                wrong.append(text)

        def asked(url: str) -> None:
            if urlsplit(url).netloc != host:
                wrong.append(f"a request to {url}")

        page.on("console", lambda message: heard(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked(request.url))

    def open_url(url: str, failures: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        watch(page, urlsplit(url).netloc, failures)
        page.goto(url)
        return page

    yield open_url
    for context in contexts:
        context.close()
    assert wrong == []
