"""Forks, event loops that come and go, and servers with several workers: each in a process of its own."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage import workers
from ratebound.storage.memory import MemoryStorage
from tests.servers import Server


def run(program: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints. It has to end well, and soon."""
    clean = {name: value for name, value in os.environ.items() if name not in ("WEB_CONCURRENCY", "GUNICORN_CMD_ARGS")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
    import os, sys, threading, time, warnings
    from ratebound import Limiter, MemoryStorage, StorageError, parse_limit

    def in_child(work):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0, "the child failed"

    class Faulty:
        error = None
        def __init__(self): self.memory = MemoryStorage()
        def evaluate(self, groups, mode="spend"):
            if self.error: raise self.error
            return self.memory.evaluate(groups, mode)
        def reset(self, group): self.memory.reset(group)
        def close(self): pass

    def held(lock):
        ready, done = threading.Event(), threading.Event()
        def hold():
            with lock:
                ready.set()
                done.wait(30)
        threading.Thread(target=hold, daemon=True).start()
        ready.wait()
        return done
"""


def test_a_memory_whose_lock_is_held_at_a_fork_works_in_the_child() -> None:
    program = """
    limiter = Limiter("2/hour")
    limiter.hit("a")
    done = held(limiter.storage.states._lock)
    def child():
        assert [limiter.hit("a").allowed for _ in range(2)] == [True, False]
        print("child well")
    in_child(child)
    done.set()
    assert limiter.hit("a")
    print("parent well")
    """
    assert run(textwrap.dedent(FORK) + textwrap.dedent(program)) == "child well\nparent well\n"


def test_a_limiter_that_another_thread_opens_at_a_fork_opens_and_closes_in_the_child() -> None:
    program = """
    limiter = Limiter("2/hour")
    done = held(limiter._decider.lock)
    def child():
        with limiter:
            assert limiter.hit("a")
        limiter.close()
        print("child well")
    in_child(child)
    done.set()
    """
    assert run(textwrap.dedent(FORK) + textwrap.dedent(program)) == "child well\n"


def test_a_signal_handler_may_close_a_limiter_that_is_being_opened() -> None:
    program = """
    import signal
    from ratebound import Limiter, MemoryStorage

    class Signalled(MemoryStorage):
        is_signalled = False

        @property
        def at_once(self):
            if self.is_signalled:
                self.is_signalled = False
                signal.raise_signal(signal.SIGTERM)
            return super().at_once

    storage = Signalled()
    limiter = Limiter("2/hour", storage=storage)
    signal.signal(signal.SIGTERM, lambda *_: limiter.close())
    storage.is_signalled = True
    with limiter:
        print("open")
    """
    assert run(program) == "open\n"


def test_a_guard_works_in_the_child_with_threads_of_its_own_and_owes_nothing() -> None:
    program = """
    storage = Faulty()
    limiter = Limiter("5/hour", storage=storage, deadline=5)
    guard = limiter.storage.guard
    assert limiter.hit("a").degraded is None
    assert limiter.storage._threads.alive == 1
    storage.error = StorageError("down", undone=True)
    for _ in range(4):
        assert limiter.hit("b").degraded
    assert len(guard.fallback.debts) == 1
    done = [held(lock) for lock in (guard._lock, guard.breaker("")._lock, limiter.storage._threads._lock,
                                    guard.fallback.debts._lock, guard.fallback.memory.states._lock)]
    def child():
        assert len(guard.fallback.debts) == 0
        assert limiter.hit("b").degraded
        assert not limiter.hit("b").allowed, "the share goes on"
        storage.error = None
        time.sleep(1.1)
        assert limiter.hit("c").degraded is None
        assert limiter.storage._threads.alive == 1
        limiter.close()
        print("child well")
    in_child(child)
    for event in done: event.set()
    assert len(guard.fallback.debts) == 1
    storage.error = None
    time.sleep(1.1)
    assert limiter.hit("c").degraded is None
    limiter.storage._writer.join()
    assert limiter.peek("b").remaining == 1
    print("parent well")
    """
    assert run(textwrap.dedent(FORK) + textwrap.dedent(program)) == "child well\nparent well\n"


class Slow:
    """Async, on a memory that all loops share; forgets what loop it was in."""

    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.error: Exception | None = None

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        return self.memory.evaluate(groups, mode)

    async def reset(self, group: Group) -> None: ...

    async def close(self) -> None: ...


def test_an_async_limiter_outlives_its_event_loops() -> None:
    storage = Slow()
    limiter = AsyncLimiter("6/hour", storage=storage)

    async def hits() -> list[bool]:
        return [(await limiter.hit("a")).allowed for _ in range(2)]

    assert [asyncio.run(hits()) for _ in range(4)] == [[True, True]] * 3 + [[False, False]]
    storage.error = OSError("gone")
    assert [asyncio.run(hits()) for _ in range(4)] == [[True, True]] * 3 + [[False, False]], "one local share"
    asyncio.run(limiter.close())


def test_an_async_limiter_serves_several_event_loops_at_once() -> None:
    storage = Slow()
    limiter = AsyncLimiter("50/hour", storage=storage, deadline=20)
    granted: list[int] = []

    async def hits() -> None:
        answers = await asyncio.gather(*(limiter.hit("a") for _ in range(25)))
        assert not any(answer.degraded for answer in answers)
        granted.append(sum(answer.allowed for answer in answers))

    threads = [threading.Thread(target=asyncio.run, args=(hits(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 50


# Several workers

BUILD = "from ratebound import Limiter; Limiter('5/minute').hit('a'); Limiter('5/minute')"
WARNING = (
    "each of 4 workers counts separately, so clients get up to 4 times the limit; use a storage that processes share:"
    " storage='shm://api' on one host, or storage='redis://host:6379/0' for several"
)


def served_by(tmp_path: Path, name: str, *options: str, program: str = BUILD, **environment: str) -> str:
    """What a program writes whose command line is that of a server."""
    script = tmp_path / name
    script.write_text(program)
    clean = {key: value for key, value in os.environ.items() if key not in ("WEB_CONCURRENCY", "GUNICORN_CMD_ARGS")}
    done = subprocess.run(
        [sys.executable, str(script), "app:app", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("options", [("-w", "4"), ("-w4",), ("--workers", "4"), ("--workers=4",)])
@pytest.mark.parametrize("name", ["gunicorn", "uvicorn", "hypercorn"])
def test_memory_under_several_workers_is_warned_of_once(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    assert served_by(tmp_path, name, *options).count(WARNING) == 1


def test_workers_are_known_from_the_environment_too(tmp_path: Path) -> None:
    assert WARNING in served_by(tmp_path, "anything", WEB_CONCURRENCY="4")
    assert WARNING in served_by(tmp_path, "gunicorn", GUNICORN_CMD_ARGS="--bind=:80 --workers=4")


def test_workers_are_known_to_a_process_that_the_server_started(tmp_path: Path) -> None:
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("this system does not show command lines in /proc")
    program = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {BUILD!r}]))"
    assert WARNING in served_by(tmp_path, "uvicorn", "--workers", "4", program=program)


def test_uwsgi_says_how_many_processes_it_has(tmp_path: Path) -> None:
    program = f"import sys, types; m = types.ModuleType('uwsgi'); m.numproc = 4; sys.modules['uwsgi'] = m; {BUILD}"
    assert WARNING in served_by(tmp_path, "anything", program=program)


def test_nobody_is_warned_who_has_one_worker_or_a_shared_storage(tmp_path: Path) -> None:
    assert served_by(tmp_path, "gunicorn", "-w", "1") == ""
    assert served_by(tmp_path, "gunicorn") == ""
    assert served_by(tmp_path, "myprogram", "-w", "4") == ""
    shared = "from ratebound import Limiter; Limiter('5/minute', storage='redis://localhost:1')"
    assert served_by(tmp_path, "gunicorn", "-w", "4", program=shared) == ""
    zone = f"from ratebound import Limiter; Limiter('5/minute', storage='shm://api?directory={tmp_path}').hit('a')"
    assert served_by(tmp_path, "gunicorn", "-w", "4", program=zone) == ""


def test_a_project_that_has_an_uwsgi_py_is_not_run_by_the_question(tmp_path: Path) -> None:
    (tmp_path / "uwsgi.py").write_text("print('started'); numproc = 4")
    assert served_by(tmp_path, "anything") == ""


def test_the_share_of_a_worker_follows_from_what_is_known(tmp_path: Path) -> None:
    program = (
        "import sys; from ratebound.storage.guard.guarded import GuardedStorage; from ratebound import MemoryStorage;"
        "print(GuardedStorage(MemoryStorage()).guard.fallback.workers,"
        " GuardedStorage(MemoryStorage(), workers=7).guard.fallback.workers, file=sys.stderr)"
    )
    assert served_by(tmp_path, "gunicorn", "-w", "4", program=program) == "4 7\n"
    assert served_by(tmp_path, "anything", program=program) == "1 7\n"


@pytest.mark.parametrize("value", ["", "0", "-1", "many", "4.5", "9" * 50])
def test_a_number_of_workers_that_cannot_be_meant_is_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["anything"])
    monkeypatch.setenv("WEB_CONCURRENCY", value)
    known: Any = workers.known_workers
    assert known() is None


def test_closing_a_limiter_closes_what_its_decorated_async_functions_opened(fresh_redis: Server) -> None:
    limiter = Limiter("100/hour", storage=fresh_redis.url)

    @limiter.limit(key="a")
    async def work() -> None: ...

    async def main() -> None:
        await work()
        limiter.close()
        await asyncio.sleep(0)

    asyncio.run(main())
    with fresh_redis.client() as admin:
        ends = time.monotonic() + 5
        while len(admin.client_list()) > 1 and time.monotonic() < ends:
            time.sleep(0.01)
        assert len(admin.client_list()) == 1
