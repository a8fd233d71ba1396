"""Retry amplification under a total outage: requests that reach a server which answers 503 to everything, for each
call of the program.

Every contender makes the same calls, a few at a time. Waits between attempts are shortened for all by the same factor:
an outage lasts longer than anybody waits, so the number of attempts is the same.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

AT_ONCE = 20
SHORTER = 1 / 200  # all waits
CALLS = 3000

Call = Callable[[str], Awaitable[object]]


@contextmanager
def served(kind: str) -> Iterator[str]:
    """Start a server in a process of its own, and return its URL. See client_server.py for the kinds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.client_server", str(port), kind])
    try:
        for _ in range(400):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def counts(url: str) -> dict[int, int]:
    """Return how many answers of each status a server has given, and let it count from 0 again."""
    with urllib.request.urlopen(f"{url}/counts") as response:
        return {int(status): count for status, count in json.load(response).items()}
