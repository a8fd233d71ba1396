"""Real servers with four workers that count in one zone, behind a load generator: exactly the limit passes."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.web.serving import COMMANDS, Connection, Web, serving

WORKERS = 4
LIMIT = 300
CLIENTS = 12
SECONDS = 30
CLIENT = "198.51.100.1"
FLASK = "tests.shared_memory.flask_site:application"
FASTAPI = "tests.shared_memory.fastapi_site:app"
GUNICORN = ["gunicorn", "--bind", "{host}:{port}", "--no-control-socket"]
GRANIAN = ["granian", "--host", "{host}", "--port", "{port}"]
COMMANDS |= {
    "flask in gunicorn, shm": [*GUNICORN, FLASK],
    "fastapi in gunicorn, shm": [*GUNICORN, "--worker-class", "asgi", FASTAPI],
    "fastapi in gunicorn with uvicorn, shm": [*GUNICORN, "-k", "uvicorn.workers.UvicornWorker", FASTAPI],
    "fastapi in uvicorn, shm": ["uvicorn", "--host", "{host}", "--port", "{port}", "--no-proxy-headers", FASTAPI],
    "fastapi in hypercorn, shm": ["hypercorn", "--bind", "{host}:{port}", FASTAPI],
    "fastapi in granian, shm": [*GRANIAN, "--interface", "asgi", FASTAPI],
    "flask in granian, shm": [*GRANIAN, "--interface", "wsgi", FLASK],
}
SERVED = {
    "gunicorn": ("flask in gunicorn, shm", []),
    "gunicorn, made before the fork": ("flask in gunicorn, shm", ["--preload"]),
    "gunicorn with threads": ("flask in gunicorn, shm", ["--worker-class", "gthread", "--threads", "4", "--preload"]),
    "gunicorn with tasks": ("fastapi in gunicorn, shm", []),
    "gunicorn with tasks, made before the fork": ("fastapi in gunicorn, shm", ["--preload"]),
    "gunicorn with uvicorn's workers": ("fastapi in gunicorn with uvicorn, shm", []),
    "uvicorn": ("fastapi in uvicorn, shm", []),
    "hypercorn": ("fastapi in hypercorn, shm", []),
    "granian": ("fastapi in granian, shm", []),
    "granian with WSGI": ("flask in granian, shm", []),
}
SHORT = ["gunicorn", "gunicorn, made before the fork", "gunicorn with uvicorn's workers", "uvicorn", "granian"]
LONG = os.environ.get("RATEBOUND_LONG") == "1"


class Site:
    """What a server is started with: a zone that is its own, and a policy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = f"shm://site?size=2mb&directory={folder}&timeout=20"
        self.policy = folder / "policy.json"
        rules = [{"name": "rest", "limits": f"{LIMIT}/day", "by": "address"}]
        self.policy.write_text(json.dumps({"rules": rules, "trusted": ["127.0.0.1"]}))

    def serving(self, name: str) -> AbstractContextManager[Web]:
        server, options = SERVED[name]
        return serving(server, "--workers", str(WORKERS), *options, storage=self.storage, policy=str(self.policy))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def asked(web: Web, client: str = CLIENT) -> tuple[int, bytes]:
    """One request over a connection of its own, so that any worker may get it."""
    with Connection(web, client) as connection:
        status, _, body = connection.get("/")
        return status, body


def load(web: Web, requests: int, client: str = CLIENT) -> Counter[int]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return Counter(status for status, _ in pool.map(lambda _: asked(web, client), range(requests)))


clients = (f"203.0.113.{n % 250 + 1}" for n in itertools.count())


def pids(web: Web, wanted: Callable[[set[int]], bool]) -> set[int]:
    """Ask as many clients until the workers that answered are the wanted ones."""
    found: set[int] = set()
    deadline = time.monotonic() + SECONDS
    while not wanted(found):
        assert time.monotonic() < deadline, (found, web.log)
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = pool.map(lambda client: asked(web, client), list(itertools.islice(clients, 24)))
            found = {int(body) for status, body in answers if status == 200} | found
    return found


def all_workers(found: set[int]) -> bool:
    return len(found) >= WORKERS


@pytest.mark.parametrize("name", SERVED if LONG else SHORT)
def test_four_workers_pass_exactly_the_limit(site: Site, name: str) -> None:
    with site.serving(name) as web:
        assert len(pids(web, all_workers)) == WORKERS
        assert load(web, 2 * LIMIT) == {200: LIMIT, 429: LIMIT}
        assert load(web, 3 * WORKERS) == {429: 3 * WORKERS}
        assert "Traceback" not in web.log
        assert "counts separately" not in web.log


def test_a_reload_of_gunicorn_keeps_the_counts(site: Site) -> None:
    with site.serving("gunicorn") as web:
        before = pids(web, all_workers)
        assert load(web, LIMIT // 2) == {200: LIMIT // 2}
        web.process.send_signal(signal.SIGHUP)
        pids_of_new(web, before)
        assert load(web, LIMIT) == {200: LIMIT - LIMIT // 2, 429: LIMIT // 2}


def pids_of_new(web: Web, before: set[int]) -> None:
    """Wait until only workers that were not there before answer."""
    deadline = time.monotonic() + SECONDS
    while True:
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = pool.map(lambda client: answered(web, client), list(itertools.islice(clients, 24)))
            found = {int(body) for status, body in answers if status == 200}
        if found and not found & before and not any(map(is_running, before)):
            return
        assert time.monotonic() < deadline, web.log
        time.sleep(0.1)


def answered(web: Web, client: str = CLIENT) -> tuple[int, bytes]:
    """One request; (0, b"") if the worker ended before it answered."""
    try:
        return asked(web, client)
    except (OSError, http.client.HTTPException):
        return 0, b""


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["gunicorn", "gunicorn, made before the fork", "uvicorn"] if LONG else ["uvicorn"])
def test_workers_that_are_killed_under_load_keep_the_counts(site: Site, name: str) -> None:
    """A worker that is killed after it has counted a request, and before it has answered, has spent one unit."""
    with site.serving(name) as web:
        victims = sorted(pids(web, all_workers))[:2]
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def ask(_: int) -> None:
            status = answered(web)[0]
            with lock:
                statuses[status] += 1
                if victims and statuses[200] >= LIMIT // (2 * len(victims)):
                    os.kill(victims.pop(), signal.SIGKILL)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(ask, range(2 * LIMIT)))
        assert not victims
        while answered(web)[0] == 200:
            statuses[200] += 1
        assert LIMIT - statuses[0] <= statuses[200] <= LIMIT, statuses
        pids(web, all_workers)  # there are new ones, and they know the counts
        assert {answered(web)[0] for _ in range(20)} <= {0, 429}


def test_a_server_that_is_started_again_goes_on_with_the_counts(site: Site) -> None:
    with site.serving("uvicorn") as web:
        assert load(web, 100) == {200: 100}
    with site.serving("gunicorn") as web:  # and another server may go on with them
        assert load(web, LIMIT) == {200: LIMIT - 100, 429: 100}


@pytest.mark.parametrize("name", ["gunicorn", "uvicorn"] if LONG else ["gunicorn"])
def test_a_block_of_an_operator_reaches_all_workers(site: Site, name: str) -> None:
    with site.serving(name) as web:
        pids(web, all_workers)
        assert load(web, 2 * WORKERS) == {200: 2 * WORKERS}
        blocks(site, "add", CLIENT, "--reason", "scans")
        wait_for(web, 403)
        assert set(load(web, 40)) == {403}
        assert set(load(web, 10, "198.51.100.2")) == {200}
        blocks(site, "remove", CLIENT)
        wait_for(web, 200)


def blocks(site: Site, *arguments: str) -> None:
    command = [sys.executable, "-m", "ratebound", "blocks", *arguments, "--storage", site.storage]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)


def wait_for(web: Web, status: int) -> None:
    deadline = time.monotonic() + SECONDS
    while set(load(web, 16)) != {status}:
        assert time.monotonic() < deadline, web.log
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["gunicorn", "uvicorn"] if LONG else ["gunicorn"])
def test_a_zone_that_is_dropped_is_replaced_in_all_workers(site: Site, name: str) -> None:
    with site.serving(name) as web:
        pids(web, all_workers)
        assert load(web, LIMIT + 50) == {200: LIMIT, 429: 50}
        command = [sys.executable, "-m", "ratebound", "zone", "drop", "site", "--yes", "--directory", str(site.folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
        assert load(web, LIMIT + 50) == {200: LIMIT, 429: 50}
