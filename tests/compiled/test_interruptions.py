"""Signal handlers that raise, and forks, leave every state whole and every lock free, in both builds."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratebound import Limiter, MemoryStorage
from ratebound.limit import ALGORITHMS

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("RATEBOUND_LONG") == "1"

HELD = """
import signal
from ratebound import Limiter, MemoryStorage

def alarm(*_):
    raise InterruptedError("alarm")

def clock():  # runs while the lock is held
    if asking:
        asking.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        limiter.hit("a")  # waits for its own lock
    return 1_700_000_000_000_000

signal.signal(signal.SIGALRM, alarm)
limiter, asking = Limiter("5/minute", storage=MemoryStorage(clock=clock)), [True]
try:
    limiter.hit("a")
except InterruptedError:
    print(limiter.hit("a").remaining)
"""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_handler_that_raises_leaves_every_state_whole(algorithm: str) -> None:
    program = [sys.executable, "-m", "tests.compiled.interrupted", algorithm, "20000" if LONG else "500"]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=600 if LONG else 60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_waits_for_the_lock_can_be_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert (done.stdout, done.stderr) == ("4\n", "")


@contextmanager
def hitting(limiter: Limiter) -> Iterator[None]:
    """Let other threads hit all the time."""
    done = threading.Event()

    def run(number: int) -> None:
        while not done.is_set():
            limiter.hit(f"k{number}")
            limiter.hit("shared")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _use(limiter: Limiter) -> None:
    """Use a limiter in a child; a child that hangs is ended by its alarm."""
    signal.alarm(20)
    for number in range(200):
        limiter.hit("shared")
        limiter.hit(f"child {number}")
    assert limiter.hit("child").remaining == 99


def slow_clock() -> int:
    """Return the time, after letting other threads run: a fork may find the lock held."""
    threading.Event().wait(0)
    return 1_700_000_000_000_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads
@pytest.mark.parametrize("text", ["100/hour", "100/hour sliding-counter; 10000/day burst 20000; 200/minute"])
def test_a_forked_child_decides_whatever_other_threads_did(text: str) -> None:
    limiter = Limiter(text, storage=MemoryStorage(clock=slow_clock))
    with hitting(limiter):
        for _ in range(10):
            child = os.fork()
            if not child:
                try:
                    _use(limiter)
                except BaseException:
                    os._exit(1)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter.hit("parent").remaining == 99


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_of_multiprocessing_decide() -> None:
    limiter = Limiter("100/hour; 500/day", storage=MemoryStorage(clock=slow_clock))
    with hitting(limiter):
        children = [multiprocessing.get_context("fork").Process(target=_use, args=(limiter,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
