"""How many processes share a limit: as far as can be known from inside one of them.

A server says it best itself: its own object stands in the stack of the main thread while an application is loaded and
served, whether the number came from the command line, a file, or a call. Where there is no such object, command lines
and the environment are read. A number that is too large is safe, one that is too small is not.
"""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

log = logging.getLogger("ratekeeper")

SERVERS = ("gunicorn", "uvicorn", "hypercorn", "granian", "fastapi")
ENVIRONMENT = ("WEB_CONCURRENCY", "GRANIAN_WORKERS", "UVICORN_WORKERS")
# By module, the variable of its functions that knows, and the attribute of it.
IN_STACK = {
    "gunicorn.arbiter": ("self", "num_workers"),
    "uvicorn._subprocess": ("config", "workers"),
    "hypercorn.asyncio.run": ("config", "workers"),
    "hypercorn.trio.run": ("config", "workers"),
    "granian.server.common": ("self", "workers"),
    "granian.server.mp": ("self", "workers"),
}
IN_ONE_PROCESS = ("solo", "threads", "gevent", "eventlet")  # pools of Celery

_asked_in = 0  # the process that has looked already
_told = False


def known_workers() -> int | None:
    """Return what the server that runs this process was told: gunicorn, uvicorn, `fastapi run`, hypercorn, granian,
    uWSGI or a Celery worker. None when nobody says."""
    return (
        _of_uwsgi()
        or _of_stack()
        or _of_command(sys.argv)
        or _of_command(_parent())
        or _of_command(["gunicorn", *os.environ.get("GUNICORN_CMD_ARGS", "").split()])
        or max([_number(os.environ.get(name, "")) or 0 for name in ENVIRONMENT])
        or None
    )


def is_of_multiprocessing() -> bool:
    """Return True in a process that `multiprocessing` started: others like it cannot be counted from here."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned process imports its program, multiprocessing does not yet say that it has a parent.
    return process.parent_process() is not None or any(frame.f_code.co_name == "spawn_main" for frame in _frames())


def warn_of_many_workers() -> None:
    """Warn, once in a process, if it is one of several: states in memory are not shared, so each grants the whole
    limit."""
    global _asked_in, _told
    if _told or _asked_in == os.getpid():
        return
    _asked_in = os.getpid()
    workers = known_workers()
    if workers is not None and workers > 1:
        _told = True
        log.warning(
            "memory:// is not shared between processes: each of %d workers counts for itself, so clients get up to %d"
            " times the limit; use a storage that all of them share, like storage='redis://host:6379/0'",
            workers,
            workers,
        )
    elif workers is None and is_of_multiprocessing():
        _told = True
        log.warning(
            "memory:// is not shared between processes: this one was started by multiprocessing, and counts for itself;"
            " if others use the same limits, use a storage that all of them share, like storage='redis://host:6379/0'"
        )


def warn_of_whole_share() -> None:
    """Warn in a process of multiprocessing that it grants whole limits while the storage is out of reach."""
    if is_of_multiprocessing():
        log.warning(
            "this process was started by multiprocessing, and how many others there are is not known: each grants the"
            " whole limit while the storage is out of reach; say how many share it, for example workers=4"
        )


def _of_uwsgi() -> int | None:
    """uWSGI puts a module of its own there. It is not imported: many a project has an uwsgi.py that starts it."""
    found = getattr(sys.modules.get("uwsgi"), "numproc", None)
    return found if isinstance(found, int) and found > 0 else None


def _of_stack() -> int | None:
    """What the server's own object says, which called what runs in the main thread."""
    found = []
    for frame in _frames():
        variable, attribute = IN_STACK.get(frame.f_globals.get("__name__", ""), ("", ""))
        number = getattr(frame.f_locals.get(variable), attribute, None) if variable else None
        if isinstance(number, int) and number > 0:
            found.append(number)
    return max(found, default=None)


def _frames() -> Iterator[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _of_command(command: Sequence[str]) -> int | None:
    """`-w 4`, `-w4`, `--workers 4` or `--workers=4`, behind the name of a server that knows them; or Celery's words."""
    paths = [Path(word) for word in command[:6]]  # python, its options and -m may come first
    names = {name for path in paths for name in (path.name, path.parent.name)}  # gunicorn/__main__.py
    if "celery" in names and "worker" in command:
        return _of_celery(command)
    return _number(_option(command, "-w", "--workers")) if names & {*SERVERS} else None


def _of_celery(command: Sequence[str]) -> int | None:
    """Processes of a Celery worker: as many as there are cores, unless it was told."""
    if _option(command, "-P", "--pool") in IN_ONE_PROCESS:
        return 1
    most = _option(command, "--autoscale").partition(",")[0]
    return _number(most) or _number(_option(command, "-c", "--concurrency")) or _of_celery_app() or os.cpu_count()


def _of_celery_app() -> int | None:
    """What the application is configured with, if that was read already: reading it here could import the caller."""
    app = getattr(sys.modules.get("celery"), "current_app", None)
    number = app.conf.worker_concurrency if app is not None and app.configured else None
    return number if isinstance(number, int) and number > 0 else None


def _option(command: Sequence[str], *names: str) -> str:
    """The value of an option: `-w 4`, `-w4`, `--workers 4`, `--workers=4`; empty if it is not there."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        for name in names:
            if word == name:
                return following
            if word.startswith(f"{name}=") or (len(name) == 2 and word.startswith(name)):
                return word.removeprefix(name).removeprefix("=")
    return ""


def _parent() -> list[str]:
    """The command line of the process that started this one, where the system shows it."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) else None
