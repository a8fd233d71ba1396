"""A soak with crashes: processes and the server are killed at random instants.

The ledger's sums must equal an independent count: each process notes in a file what it is about to use, and what it has
flushed. Of a killed process, everything that it had flushed is there, nothing twice, and nothing that it had not begun
to use.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from ratebound import Limiter
from ratebound.ledger import Ledger
from tests.databases import Postgres
from tests.ledger.ledgers import make_tables, rows_of, totals_of_rules

LONG = os.environ.get("RATEBOUND_LONG") == "1"
ROUNDS = 40 if LONG else 5
KILLS = 15 if LONG else 3


def forked(run: Callable[[], None]) -> int:
    """Run a function in a child process, which ends without a clean stop."""
    pid = os.fork()
    if pid == 0:
        _run_and_end(run)
    return pid


def _run_and_end(run: Callable[[], None]) -> NoReturn:
    try:
        run()
    finally:
        os._exit(1)


def use_and_note(url: str, client: str, notes: Path, seed: int) -> None:
    """Use units until somebody kills this process. Each line of the notes is written before or after what it says."""
    chosen = random.Random(seed)
    ledger = Ledger(url, clients="name", every=0.01)
    limiter = Limiter("10/calendar-month over allow as calls", listeners=[ledger])
    file = os.open(notes, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        cost = chosen.randint(1, 9)
        os.write(file, f"use {cost}\n".encode())
        decision = limiter.hit(client, cost=cost)
        if chosen.random() < 0.2:
            os.write(file, f"use {cost}\n".encode())
            limiter.settle(decision, cost=cost * 2)
        if chosen.random() < 0.05:
            ledger.flush()
            os.write(file, b"flushed\n")


def bounds_of(notes: Path) -> tuple[int, int]:
    """The units that are in the ledger at least and at most."""
    used = least = 0
    for line in notes.read_text().splitlines():
        if line == "flushed":
            least = used
        else:
            used += int(line.removeprefix("use "))
    return least, used


def until_noted(notes: Path, what: str) -> None:
    ends = time.monotonic() + 30
    while not (notes.exists() and what in notes.read_text()):
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_killed_process_loses_no_more_than_it_had_not_flushed(ledger_url: str, tmp_path: Path) -> None:
    chosen = random.Random(20)
    for turn in range(ROUNDS):
        notes = [tmp_path / f"{turn}-{number}" for number in range(2)]
        pids = [forked(partial(use_and_note, ledger_url, f"client-{path.name}", path, turn)) for path in notes]
        for path in notes:
            until_noted(path, "flushed")
        time.sleep(chosen.uniform(0, 0.15))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with Ledger(ledger_url, clients="name", writes=False) as ledger:
        found = {client: units for (client, *_), (units, *_) in rows_of(ledger).items()}
        assert len(found) == ROUNDS * 2
        for client, units in found.items():
            least, most = bounds_of(tmp_path / client.removeprefix("client-"))
            assert least <= units <= most, client
        (total,) = totals_of_rules(ledger).values()
        assert total[0] == sum(found.values())


def test_a_server_that_is_killed_again_and_again_loses_nothing(fresh_postgres: Postgres) -> None:
    chosen = random.Random(7)
    make_tables(fresh_postgres.url)
    ledger = Ledger(fresh_postgres.url, clients="name", every=0.01)
    limiter = Limiter("1000000/day as d", listeners=[ledger])
    over = threading.Event()
    used = [0, 0]

    def use(place: int) -> None:
        while not over.is_set():
            limiter.hit(f"client{used[place] % 20}")
            used[place] += 1
            time.sleep(0.0005)

    threads = [threading.Thread(target=use, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(chosen.uniform(0.05, 0.3))
            fresh_postgres.kill()
            time.sleep(chosen.uniform(0, 0.1))
            fresh_postgres.start()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert ledger.close(60) is True
    assert ledger.state.failures > 0, "the server was away while something was written"
    assert sum(numbers[0] for numbers in rows_of(ledger).values()) == sum(used)
    assert totals_of_rules(ledger) == {"d": (sum(used), sum(used), 0, 0)}


def test_a_paused_server_stops_no_decision_and_a_close_ends_in_time(
    fresh_postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    make_tables(fresh_postgres.url)
    ledger = Ledger(fresh_postgres.url, clients="name", every=3600)
    limiter = Limiter("1000000/day as d", listeners=[ledger])
    limiter.hit("a")
    ledger.flush()
    fresh_postgres.pause()
    try:
        for _ in range(1000):
            assert limiter.hit("a").allowed
        writing = threading.Thread(target=ledger.close, args=(0.5,))
        writing.start()
        writing.join(30)
        assert not writing.is_alive()
    finally:
        fresh_postgres.resume()
