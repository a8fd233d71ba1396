"""Record an outage: a real Redis is killed and started again under steady traffic, for three failure modes.

    python -m benchmarks.storage_outage

It writes storage_outage.json, of which tools/draw_outage.py draws the picture in docs/explanation/failure.md.
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import Server, redis_server

from ratebound import Limiter
from ratebound.errors import StorageError
from ratebound.events import Degraded, Recovered
from ratebound.limit import Failure, Group, Mode
from ratebound.outcome import Row
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.redis.storage import RedisStorage

DATA = Path(__file__).with_suffix(".json")
LIMIT = "50/second burst 25"
WORKERS = 2  # the share of one process is half of the limit
MODES: tuple[Failure, ...] = ("local", "open", "closed")
RATE = 100  # requests per second, for each mode
KILLED, STARTED, UNTIL = 3.0, 6.0, 10.0  # seconds
SLICE = 0.1  # seconds that are counted together
SENDERS = 5  # threads for each mode: a slow decision delays the requests of one


class Recorded(RedisStorage):
    """Redis that records when it was called, and whether it answered."""

    def __init__(self, url: str, begin: float) -> None:
        super().__init__(url)
        self.begin = begin
        self.calls: list[tuple[float, bool]] = []

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide on Redis, and note the time of the answer or of the error."""
        try:
            rows = super().evaluate(groups, mode)
        except StorageError:
            self.calls.append((time.monotonic() - self.begin, False))
            raise
        self.calls.append((time.monotonic() - self.begin, True))
        return rows


def record_mode(mode: Failure, url: str, begin: float) -> dict[str, Any]:
    """Send requests until the end. Return counts for each slice, the breaker's times, and the slowest decision."""
    counts = [{"allowed": 0, "denied": 0, "unavailable": 0} for _ in range(round(UNTIL / SLICE))]
    changes: list[dict[str, Any]] = []

    def heard(event: object) -> None:
        at = round(time.monotonic() - begin, 3)
        if isinstance(event, Degraded):
            changes.append({"at": at, "change": "opened"})
        elif isinstance(event, Recovered):
            changes.append({"at": at, "change": "recovered", "written_back": event.written_back})

    inner = Recorded(url, begin)
    storage = GuardedStorage(inner, failure=mode, workers=WORKERS, listeners=[heard])
    degraded: list[float] = []
    took = [0.0]
    lock = threading.Lock()

    def send(first: int) -> None:
        for number in range(first, round(UNTIL * RATE), SENDERS):
            time.sleep(max(begin + number / RATE - time.monotonic(), 0))
            asked = time.monotonic() - begin
            decision = limiter.hit(f"client of {mode}")
            answered = time.monotonic() - begin
            if answered >= UNTIL:
                break
            kind = "allowed" if decision else "unavailable" if decision.unavailable else "denied"
            with lock:
                took.append(answered - asked)
                counts[int(answered / SLICE)][kind] += 1
                if decision.degraded:
                    degraded.append(round(answered, 3))

    with Limiter(LIMIT, storage=storage) as limiter:
        run_together([threading.Thread(target=send, args=(first,)) for first in range(SENDERS)])
    opened = next(change["at"] for change in changes if change["change"] == "opened")
    probes = [{"at": round(at, 3), "answered": answered} for at, answered in inner.calls if at > opened + 0.001]
    last = next(place for place, probe in enumerate(probes) if probe["answered"])
    return {
        "mode": mode,
        **{kind: [count[kind] for count in counts] for kind in counts[0]},
        "degraded": [min(degraded), max(degraded)],
        "changes": changes,
        "probes": probes[: last + 1],
        "slowest_ms": round(max(took) * 1000, 1),
    }


def run_together(threads: Sequence[threading.Thread]) -> None:
    """Start threads and wait for all of them."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def record(server: Server) -> dict[str, Any]:
    """Kill and start the server while all modes send requests."""
    begin = time.monotonic() + 0.5
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda mode=mode: found.append(record_mode(mode, server.url, begin))) for mode in MODES
    ]
    for thread in threads:
        thread.start()
    time.sleep(begin + KILLED - time.monotonic())
    server.kill()
    time.sleep(begin + STARTED - time.monotonic())
    server.spawn()
    server.wait_until_up()
    up = time.monotonic() - begin
    for thread in threads:
        thread.join()
    return {
        "limit": LIMIT,
        "workers": WORKERS,
        "rate": RATE,
        "slice": SLICE,
        "killed": KILLED,
        "started": STARTED,
        "up": round(up, 3),
        "until": UNTIL,
        "modes": sorted(found, key=lambda mode: MODES.index(mode["mode"])),
    }


def main() -> None:
    """Record an outage of a Redis that keeps its counts over a restart."""
    with redis_server("--appendonly", "yes") as server:
        recorded = record(server)
    modes = ",\n".join(json.dumps(mode) for mode in recorded.pop("modes"))
    DATA.write_text(f'{json.dumps(recorded)[:-1]}, "modes": [\n{modes}\n]}}\n', encoding="utf-8")
    print(DATA)


if __name__ == "__main__":
    main()
