"""Dashboards of applications with several processes: figures of all of them, and changes that hold in all of them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import pytest

from tests.servers import HOST, Server, wait_until
from tests.web.serving import COMMANDS, Connection, Web, serving
from tests.zones import fresh_zone_url

GUNICORN = ["gunicorn", "--bind", "{host}:{port}", "--no-control-socket", "--threads", "4", "--workers", "3"]
UVICORN = ["uvicorn", "--host", HOST, "--port", "{port}", "--no-proxy-headers", "--workers", "3"]
COMMANDS["fastapi, 3 in uvicorn"] = [*UVICORN, "tests.web.served:app"]
COMMANDS["flask, 3 in gunicorn"] = [*GUNICORN, "tests.web.served_flask:application"]
COMMANDS["flask, 3 in gunicorn, loaded before they start"] = [*COMMANDS["flask, 3 in gunicorn"], "--preload"]
COMMANDS["django, 3 in gunicorn"] = [*GUNICORN, "tests.web.served_django:application"]
COMMANDS["django, 3 in uvicorn"] = [*UVICORN, "--lifespan", "off", "tests.web.served_django:asgi_application"]
SERVED = [name for name in COMMANDS if ", 3 in " in name]
LONG = os.environ.get("RATEBOUND_LONG") == "1"  # else each framework and each storage once
OPERATOR = {"x-role": "write", "Sec-Fetch-Site": "same-origin", "X-Ratebound-CSRF": "given"}


class Site:
    """An application with a dashboard, in several processes. Each request has a connection of its own."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self.url = web.url

    def status(self, client: str) -> int:
        with Connection(self._web, client) as connection:
            return connection.get("/stream")[0]

    def call(self, path: str, method: str = "GET", content: Any = None) -> Any:
        with Connection(self._web, "192.0.2.1") as connection:
            body = None if content is None else json.dumps(content)
            told = OPERATOR if body is None else {**OPERATOR, "Content-Type": "application/json"}
            connection.http.request(method, f"/limits/api/{path}", body, told)
            response = connection.http.getresponse()
            text = response.read()
        assert response.status == 200, (response.status, text, self._web.log)
        return json.loads(text)


@contextmanager
def dashboard(server: str, storage: str) -> Iterator[Site]:
    with serving(server, storage=storage, dashboard="yes") as web:
        yield Site(web)


def check_figures_of_all(site: Site) -> None:
    numbers = count()

    def all_are_shown() -> bool:
        for number in islice(numbers, 10):
            site.status(f"198.51.{number // 250 % 250}.{number % 250}")
        views = [site.call("figures") for _ in range(6)]
        return all(len(view["processes"]) == 3 and view["total"]["allowed"] > 0 for view in views)

    wait_until(all_are_shown, 60, "figures of three processes")
    assert sum(one["is_local"] for one in site.call("figures")["processes"]) == 1
    assert site.call("figures")["problem"] == ""


def check_a_block_holds_in_all(site: Site) -> None:
    assert site.status("203.0.113.9") == 200
    site.call("blocks", "POST", {"client": "203.0.113.9", "for": "1 hour"})
    wait_until(lambda: [site.status("203.0.113.9") for _ in range(12)] == [403] * 12, 60, "a block in all processes")
    assert [one["client"] for one in site.call("blocks")["blocks"]] == ["203.0.113.9"]
    site.call("blocks?client=203.0.113.9", "DELETE")
    wait_until(lambda: 403 not in {site.status("203.0.113.9") for _ in range(12)}, 60, "its end in all processes")


@pytest.mark.parametrize("server", SERVED if LONG else ["fastapi, 3 in uvicorn", "django, 3 in gunicorn"])
def test_on_redis(server: str, fresh_redis: Server) -> None:
    with dashboard(server, fresh_redis.url) as site:
        check_figures_of_all(site)
        check_a_block_holds_in_all(site)


@pytest.mark.parametrize("server", ["fastapi, 3 in uvicorn", "flask, 3 in gunicorn"][not LONG :])
def test_on_shared_memory(server: str) -> None:
    with fresh_zone_url() as url, dashboard(server, url) as site:
        check_figures_of_all(site)
        check_a_block_holds_in_all(site)


@pytest.mark.parametrize("server", ["fastapi, 3 in uvicorn", "flask, 3 in gunicorn"][: 1 + LONG])
def test_on_memory_the_page_says_that_it_shows_one_process(server: str) -> None:
    with dashboard(server, "memory://") as site:
        site.status("198.51.100.1")

        def is_said() -> bool:
            view = site.call("figures")
            return "one of 3 processes" in view["problem"] and len(view["processes"]) == 1

        wait_until(is_said, 60, "a problem that says so")
