"""A process that sends requests as fast as its pacer lets it, and several of them.

    python -m tests.client.paced_worker URL STORAGE SECONDS

RATEBOUND_TEST_LIMIT is the limit that is configured; without it the limit is learned. It prints one line of JSON: for
each answer the time in seconds since the epoch, and the status.
"""

import http.client
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ratebound.client import Pacer

ROOT = Path(__file__).parents[2]


def main() -> None:
    url, storage, length = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if len(sys.argv) > 4:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(created).3f %(process)d %(message)s")
    limit = os.environ.get("RATEBOUND_TEST_LIMIT") or None
    pacer = Pacer(limit, storage=storage or None, name="tests", learn=not limit)
    answers: list[tuple[float, int]] = []
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    end = time.monotonic() + length
    with pacer:
        while time.monotonic() < end:
            turn = pacer.wait(url)
            connection.request("GET", "/")
            response = connection.getresponse()
            body = response.read()
            answers.append((time.time(), response.status))
            turn.answered(response.status, response.getheaders(), body)
            if response.status == 429 and len(sys.argv) > 4:
                sys.stderr.write(f"{time.time()} REFUSED {response.getheaders()} {pacer.limits()}\n")
    sys.stdout.write(json.dumps(answers))


class Ran(NamedTuple):
    """The answers of several processes, in order of time."""

    answers: list[tuple[float, int]]

    def refused_after(self, seconds: float) -> int:
        begin = self.answers[0][0] + seconds
        return sum(status != 200 for when, status in self.answers if when >= begin)

    def accepted_within(self, begin: float, end: float) -> int:
        return sum(status == 200 for when, status in self.answers if begin <= when < end)


def run_processes(url: str, storage: str, seconds: float, processes: int = 8, *debug: str, limit: str = "") -> Ran:
    """Run several processes at once, and return all answers. Without a limit they learn it."""
    from tests.servers import dying_with_us  # it imports much that the processes do not need

    command = dying_with_us([sys.executable, "-m", "tests.client.paced_worker", url, storage, str(seconds), *debug])
    given = {**os.environ, "RATEBOUND_TEST_LIMIT": limit}
    workers = [subprocess.Popen(command, cwd=ROOT, env=given, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        outputs = [worker.communicate(timeout=seconds + 60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert all(worker.returncode == 0 for worker in workers)
    return Ran(sorted((when, status) for output in outputs for when, status in json.loads(output)))


if __name__ == "__main__":
    main()
