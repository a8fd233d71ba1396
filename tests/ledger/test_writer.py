"""Writing the ledger: in the background, once, and completely on every clean stop; an outage loses nothing."""

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError
from ratebound.ledger import Ledger
from ratebound.ledger.usage_counts import OTHER
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy import AsyncGate, Policy, Rule
from tests.databases import Postgres
from tests.ledger.ledgers import make_tables, opened, rows_of, totals_of_rules
from tests.proxy import Proxy

LONG = os.environ.get("RATEBOUND_LONG") == "1"
WITHIN = 30.0  # seconds: a busy machine is no failure


def until(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN
    while not is_true():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)


def units_in(url: str) -> int:
    """The units of all clients and rules, read by a ledger of its own."""
    with Ledger(url, clients="name", writes=False) as ledger:
        units = sum(numbers[0] for numbers in rows_of(ledger).values())
        assert units == sum(numbers[0] for numbers in totals_of_rules(ledger).values())
        return units


def run(code: str, url: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that has a ledger and a limiter."""
    begin = (
        "import os, sys, threading\n"
        "from ratebound import Limiter\n"
        "from ratebound.ledger import Ledger\n"
        f"ledger = Ledger({url!r}, clients='name', every=3600)\n"
        "limiter = Limiter('100000/day as d', listeners=[ledger])\n"
    )
    return subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=120)


def test_it_writes_by_itself(ledger_url: str) -> None:
    with Ledger(ledger_url, clients="name", every=0.02) as ledger:
        limiter = Limiter("9/minute as m", listeners=[ledger])
        limiter.hit("a")
        until(lambda: ledger.state.flushes > 0 and ledger.state.pending == 0)
        assert rows_of(ledger) == {("a", "m", ""): (1, 1, 0, 0)}


def test_closing_writes_everything_and_counts_nothing_more(ledger_url: str) -> None:
    ledger = Ledger(ledger_url, clients="name", every=3600)
    limiter = Limiter("9/minute as m", listeners=[ledger])
    limiter.hit("a")
    assert ledger.close() is True
    limiter.hit("a")
    assert ledger.close() is True
    assert units_in(ledger_url) == 1
    assert ledger.usage("a")[0].units == 1, "a closed ledger still answers"


@pytest.mark.parametrize(
    "code",
    [
        "[limiter.hit('a') for _ in range(7)]\n",
        "[limiter.hit('a') for _ in range(7)]\nraise OSError\n",
        "[limiter.hit('a') for _ in range(7)]\nsys.exit(3)\n",
        "t = threading.Thread(target=lambda: [limiter.hit('a') for _ in range(7)])\nt.start()\n",
        "import atexit\natexit.register(ledger.close)\n[limiter.hit('a') for _ in range(7)]\n",
    ],
    ids=["the end", "an exception", "sys.exit", "a thread that outlives the main one", "closed twice"],
)
def test_the_end_of_a_program_writes_everything(tmp_path: Path, code: str) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ended = run(code, url)
    assert "ledger" not in ended.stderr
    assert units_in(url) == 7


def test_a_forked_child_writes_what_it_has_counted_and_nothing_of_its_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ended = run(
        "limiter.hit('a', cost=100)\n"
        "pid = os.fork()\n"
        "limiter.hit('a', cost=10 if pid else 1)\n"
        "if pid:\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n",
        url,
    )
    assert ended.stderr == ""
    assert units_in(url) == 111


def test_a_child_without_a_clean_end_loses_only_what_it_has_counted_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    run("limiter.hit('a', cost=100)\nif not os.fork():\n    limiter.hit('a')\n    os._exit(0)\nos.wait()\n", url)
    assert units_in(url) == 100


def count_in_child(limiter: Limiter) -> None:
    limiter.hit("a", cost=5)


@pytest.mark.parametrize("is_written_before", [False, True])
def test_children_of_multiprocessing_write_everything(ledger_url: str, is_written_before: bool) -> None:
    for ledger in opened(ledger_url):
        limiter = Limiter("100000/day as d", listeners=[ledger])
        limiter.hit("a", cost=100)
        if is_written_before:  # so that a connection is open at the fork
            ledger.flush()
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=count_in_child, args=(limiter,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(WITHIN)
        limiter.hit("a", cost=10)
        ledger.flush()
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert units_in(ledger_url) == 125


class Flaky:
    """A real database that fails before it writes, or after it: then the answer is lost."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.fails = ""

    def write(self, *given: Any) -> None:
        if self.fails == "before":
            raise StorageError("no way")
        self.inner.write(*given)
        if self.fails == "after":
            raise StorageError("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def flaky(ledger: Ledger) -> Flaky:
    database = Flaky(ledger._database)
    ledger._database = ledger._writer._database = database
    return database


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_failed_flush_is_repeated_and_counted_once(
    ledger: Ledger, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, limiter = flaky(ledger), Limiter("100/day as d", listeners=[ledger])
    with caplog.at_level(logging.WARNING, "ratebound"):
        for turn in range(6):
            database.fails = fails if turn in (1, 2, 4) else ""
            limiter.hit("a", cost=3)
            ledger._writer._try_to_write()
            if turn == 2:
                assert (ledger.state.failures, ledger.state.pending) == (2, 2)
                assert ledger.state.error
    assert rows_of(ledger) == {("a", "d", ""): (18, 6, 0, 0)}
    assert totals_of_rules(ledger) == {"d": (18, 6, 0, 0)}
    assert ledger.state[1:] == (3, 0, "")
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "the ledger is not written",
        "the ledger is written again",
    ] * 2


def test_flush_says_that_it_failed(ledger: Ledger) -> None:
    flaky(ledger).fails = "before"
    Limiter("100/day", listeners=[ledger]).hit("a")
    with pytest.raises(StorageError, match="no way"):
        ledger.flush()
    assert ledger.state.pending == 1
    ledger._database.fails = ""  # type: ignore[attr-defined]


def test_a_ledger_that_cannot_be_written_says_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/missing/usage.db", clients="name", every=3600)
    limiter = Limiter("100/day as d", listeners=[ledger])
    for key in "abc":
        limiter.hit(key)
    assert ledger.close(timeout=0.3) is False
    assert "3 entries are lost" in caplog.messages[-1]
    assert "check that its folder is there" in caplog.messages[-1]


def test_a_bug_does_not_end_the_writer(sqlite_ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    database, limiter = flaky(sqlite_ledger), Limiter("100/day as d", listeners=[sqlite_ledger])
    limiter.hit("a")
    database.write = None  # type: ignore[assignment,method-assign]
    sqlite_ledger._writer._try_to_write()
    assert "TypeError" in sqlite_ledger.state.error
    del database.write
    sqlite_ledger._writer._try_to_write()
    assert rows_of(sqlite_ledger) == {("a", "d", ""): (1, 1, 0, 0)}


def test_where_no_thread_can_be_started_decisions_are_counted_and_written_later(
    ledger_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Ledger(ledger_url, clients="name", every=0.02) as ledger:
        limiter = Limiter("100/day as d", listeners=[ledger])
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            limiter.hit("a")
        assert not caplog.records
        limiter.hit("a")
        until(lambda: ledger.state.flushes > 0 and ledger.state.pending == 0)
        assert rows_of(ledger) == {("a", "d", ""): (2, 2, 0, 0)}


def test_many_clients_are_bounded_in_memory_and_written_soon(sqlite_ledger: Ledger) -> None:
    most, clients = (100_000, 230_000) if LONG else (4_000, 9_000)
    ledger = sqlite_ledger
    ledger._counts.most, ledger._counts._half = most, most // 2
    limiter = Limiter("9/day as d", listeners=[ledger])
    for number in range(most // 2):
        limiter.hit(f"k{number}")
    until(lambda: ledger.state.pending == 0)  # half full: nobody waits for the next flush
    database = flaky(ledger)
    database.fails = "before"
    for number in range(clients):
        limiter.hit(f"k{number}")
        if number % 1000 == 0:
            assert ledger.state.pending <= 2 * most + 1
    until(lambda: ledger.state.failures > 0)
    database.fails = ""
    ledger.flush()
    ledger.flush()
    found = rows_of(ledger)
    assert sum(numbers[0] for numbers in found.values()) == most // 2 + clients
    assert found[OTHER, "d", ""][0] > 0


def test_tasks_are_counted_and_changes_of_their_gate_copied(ledger: Ledger) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("9/minute as m", listeners=[ledger])
        async with AsyncGate(Policy(rules=[Rule("all", "9/minute", by="user")]), storage="memory://") as gate:
            ledger.follow(gate)
            await asyncio.gather(*(limiter.hit("a") for _ in range(5)))
            await gate.block("user:1", by="ann")
            await asyncio.to_thread(ledger.flush)
            ledger.flush()  # in the loop's own thread the gate cannot be asked; nothing hangs

    asyncio.run(main())
    assert rows_of(ledger) == {("a", "m", ""): (5, 5, 0, 0)}
    assert [one.target for one in ledger.audit()] == ["user:1"]


def test_changes_during_an_outage_of_the_ledger_wait_for_it(sqlite_ledger: Ledger) -> None:
    database = flaky(sqlite_ledger)

    async def main() -> None:
        await AsyncLimiter("9/minute as m", listeners=[sqlite_ledger]).hit("a")
        policy = Policy(rules=[Rule("all", "9/minute", by="user")])
        async with AsyncGate(policy, storage="memory://", listeners=[sqlite_ledger]) as gate:
            for number in range(300):
                await gate.block(f"user:{number}", by="ann")
                await gate.record("note", f"user:{number}", by="bob")

    database.fails = "before"
    asyncio.run(main())
    with pytest.raises(StorageError):
        sqlite_ledger.flush()
    assert sqlite_ledger.state.pending == 601
    database.fails = ""
    sqlite_ledger.flush()
    assert len(sqlite_ledger.audit(most=1000)) == 600


class CommitCutter(Proxy):
    """Cuts the connection when a COMMIT is answered: it was carried out, and nobody knows."""

    cuts = 0

    def _pass_request(self, client: Any, server: Any) -> bool:
        data = client.recv(65536)
        if self.cuts and b"COMMIT\0" in data:  # not that of READ COMMITTED
            self.cuts -= 1
            self.cut_reply(0)
        server.sendall(data)
        return bool(data)


def test_a_commit_whose_answer_was_lost_is_counted_once(postgres: Postgres) -> None:
    url = postgres.new_database()
    make_tables(url)
    proxy = CommitCutter(postgres)  # type: ignore[arg-type]
    try:
        for ledger in opened(url.replace(str(postgres.port), str(proxy.port))):
            limiter = Limiter("100/day as d", listeners=[ledger])
            limiter.hit("a")
            ledger.flush()
            for turn in range(3):
                limiter.hit("a")
                proxy.cuts = 1
                with pytest.raises(StorageError):
                    ledger.flush()
                assert proxy.cuts == 0
                limiter.hit("a")
                ledger.flush()
                assert units_in(url) == 3 + 2 * turn
            assert rows_of(ledger) == {("a", "d", ""): (7, 7, 0, 0)}
    finally:
        proxy.close()


def test_old_rows_are_removed_a_part_at_a_time(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    database: Any = ledger._database
    monkeypatch.setattr("ratebound.ledger.database.SWEEPING", 0.0)
    monkeypatch.setattr(f"{type(database).__module__}.SWEPT", 5)
    database.write(b"w", 1, [UsageRecord(0, f"c{number:02}", "r", "", 1, 1, 0, 0) for number in range(12)])
    found = []
    for _ in range(3):
        is_done = database.maintain(2_000_000_000, 86_400)
        found.append((is_done, len(rows_of(ledger))))
    assert found == [(False, 7), (False, 2), (True, 0)]


def test_a_flush_that_is_interrupted_loses_nothing(sqlite_ledger: Ledger) -> None:
    """Interrupted after each line of the ledger's own code, one after the other, until it comes to its end."""
    limiter = Limiter("1000000/day as d", listeners=[sqlite_ledger])
    sqlite_ledger.flush()
    expected = interrupted = 0
    is_complete = False
    while not is_complete:
        limiter.hit("a")
        limiter.hit("b")
        expected += 2
        lines = 0

        def interrupt(frame: Any, event: str, argument: Any) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.endswith(
                ("ledger/writer.py", "ledger/ledger.py", "ledger/usage_counts.py")
            ):
                return None
            if event == "line" and frame.f_code.co_name != "__call__":
                lines += 1
                if lines > interrupted:  # noqa: B023
                    raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            sqlite_ledger.flush()
            is_complete = True
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
    sqlite_ledger.flush()
    assert interrupted > 30
    assert totals_of_rules(sqlite_ledger) == {"d": (expected, expected, 0, 0)}
