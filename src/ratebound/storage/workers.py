"""Detection of the number of processes that share a limit, from inside one of them.

The best source is the server's own object: it is in the stack of the main thread while an application is loaded and
served, whether the number came from the command line, a file or a call. Otherwise command lines and the environment are
read. A number that is too large is safe; one that is too small is not.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

log = logging.getLogger("ratebound")

SERVERS = ("gunicorn", "uvicorn", "hypercorn", "granian", "fastapi")
ENVIRONMENT = ("WEB_CONCURRENCY", "GRANIAN_WORKERS", "UVICORN_WORKERS")
# By module: the variable in its functions that holds the number of workers, and that variable's attribute.
IN_STACK = {
    "gunicorn.arbiter": ("self", "num_workers"),
    "uvicorn._subprocess": ("config", "workers"),
    "hypercorn.asyncio.run": ("config", "workers"),
    "hypercorn.trio.run": ("config", "workers"),
    "granian.server.common": ("self", "workers"),
    "granian.server.mp": ("self", "workers"),
}
# Servers with one process, by module and by program: the environment variables are not meant for them.
SINGLE_IN_STACK = (
    "waitress",
    "waitress.runner",
    "waitress.server",
    "daphne.cli",
    "daphne.server",
    "cheroot.server",
    "werkzeug.serving",
    "wsgiref.simple_server",
    "django.core.servers.basehttp",
    "django.utils.autoreload",
)
SINGLE = ("waitress-serve", "waitress", "daphne")
RELOADING = ("uvicorn", "fastapi")  # with --reload they have one worker
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:\.exe)?")
IN_ONE_PROCESS = ("solo", "threads", "gevent", "eventlet")  # pools of Celery
OF_CELERY = ("-A", "--app", "-b", "--broker", "--result-backend", "--loader", "--config", "--workdir")  # take a value

SHARED = (
    "use a storage that processes share: storage='shm://api' on one host, or storage='redis://host:6379/0' for several"
)

_asked_in = 0  # the id of the process that has already looked
_told = False


def known_workers() -> int | None:
    """Return the number of workers of the server that runs this process, or None if it is unknown.

    It knows gunicorn, uvicorn, `fastapi run`, hypercorn, granian, uWSGI and Celery workers.
    """
    return (
        _of_uwsgi()
        or _of_stack()
        or _of_command(command_line())
        or _of_command(_parent())
        or _of_command(["gunicorn", *os.environ.get("GUNICORN_CMD_ARGS", "").split()])
        or max([_number(os.environ.get(name, "")) or 0 for name in ENVIRONMENT])
        or None
    )


def is_of_multiprocessing() -> bool:
    """Return True in a process that `multiprocessing` started. Its siblings cannot be counted from here."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned process imports its program, multiprocessing does not yet say that it has a parent.
    return process.parent_process() is not None or any(frame.f_code.co_name == "spawn_main" for frame in _frames())


def warn_of_many_workers() -> None:
    """Log a warning, once per process, if this process is one of several.

    States in memory are not shared, so each process grants the whole limit.
    """
    global _asked_in, _told
    if _told or _asked_in == os.getpid():
        return
    _asked_in = os.getpid()
    workers = known_workers()
    if workers is not None and workers > 1:
        _told = True
        log.warning(
            "memory:// is not shared between processes: each of %d workers counts separately, so clients get up to %d"
            f" times the limit; {SHARED}",
            workers,
            workers,
        )
    elif workers is None and is_of_multiprocessing():
        _told = True
        log.warning(
            "memory:// is not shared between processes: this process was started by multiprocessing and counts"
            f" separately; if others use the same limits, {SHARED}"
        )


def warn_of_whole_share() -> None:
    """Log a warning in a process of multiprocessing that it grants whole limits while the storage is out of reach."""
    if is_of_multiprocessing():
        log.warning(
            "this process was started by multiprocessing and the number of its siblings is unknown: each grants the"
            " whole limit while the storage is out of reach; set the number of processes, for example workers=4"
        )


def _of_uwsgi() -> int | None:
    """Return the number from uWSGI's own module, which it adds to every process.

    The module is not imported here: many projects have a file uwsgi.py that would start them.
    """
    found = getattr(sys.modules.get("uwsgi"), "numproc", None)
    return found if isinstance(found, int) and found > 0 else None


def _of_stack() -> int | None:
    """Return the number from the server's own object in the stack of the main thread."""
    found, is_single = [], False
    for frame in _frames():
        module = frame.f_globals.get("__name__", "")
        is_single = is_single or module in SINGLE_IN_STACK
        variable, attribute = IN_STACK.get(module, ("", ""))
        server = frame.f_locals.get(variable) if variable else None
        number = getattr(server, attribute, None)
        if module == "uvicorn._subprocess" and getattr(server, "should_reload", False):
            number = 1
        if isinstance(number, int) and number > 0:
            found.append(number)
    return max(found, default=1 if is_single else None)


def _frames() -> Iterator[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _of_command(command: Sequence[str]) -> int | None:
    """Return the number from a command line: `-w 4`, `-w4`, `--workers 4`, `--workers=4`, or Celery's options."""
    program, words = _program(command)
    if program == "celery":
        return _of_celery(words) if _subcommand(words) == "worker" else 1
    if program in SINGLE or (program in RELOADING and ("--reload" in words or words[:1] == ["dev"])):
        return 1
    return _number(_option(words, "-w", "--workers")) if program in SERVERS else None


def _program(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the program that a command runs, and its arguments: `uvicorn` for `python -m uvicorn`."""
    if not command or not PYTHON.fullmatch(os.path.basename(command[0])):
        return _name(command[0]) if command else "", command[1:]
    place = 1
    while place < len(command):
        word = command[place]
        if word.startswith("-m"):
            own = word == "-m"
            return "".join(command[place + 1 : place + 2]) if own else word[2:], command[place + 1 + own :]
        if word.startswith("-c"):
            break
        if not word.startswith("-"):
            return _name(word), command[place + 1 :]
        place += 2 if word in ("-W", "-X") else 1
    return "", ()


def _name(word: str) -> str:
    folder, name = os.path.split(word)
    return os.path.basename(folder) if name == "__main__.py" else name.removesuffix(".exe")


def _subcommand(words: Sequence[str]) -> str:
    """Return the first of Celery's arguments that is neither an option nor its value: `worker`, `beat`."""
    place = 0
    while place < len(words):
        if not words[place].startswith("-"):
            return words[place]
        place += 2 if words[place] in OF_CELERY else 1
    return ""


def command_line() -> list[str]:
    """Return `sys.argv` as a list of text, also if a program that embeds Python has set it to something else."""
    given = getattr(sys, "argv", None)
    if not isinstance(given, list | tuple):
        return []
    return [os.fsdecode(word) for word in given if isinstance(word, str | bytes | os.PathLike)]


def _of_celery(command: Sequence[str]) -> int | None:
    """Return the number of processes of a Celery worker: one for each core, unless it is configured."""
    if (_option(command, "-P", "--pool") or _celery_setting("worker_pool")) in IN_ONE_PROCESS:
        return 1
    most = _option(command, "--autoscale").partition(",")[0]
    told = _number(most) or _number(_option(command, "-c", "--concurrency"))
    number = _celery_setting("worker_concurrency")
    return told or (number if isinstance(number, int) and number > 0 else os.cpu_count())


def _celery_setting(name: str) -> Any:
    """Return a setting of the Celery application if it has been read already.

    Reading the configuration here could import the caller. Values assigned to `app.conf` are known before that.
    """
    state = sys.modules.get("celery._state")
    # Not celery.current_app: in a thread without an application that would create one for the whole process.
    app = getattr(getattr(state, "_tls", None), "current_app", None) or getattr(state, "default_app", None)
    if app is None:
        apps = list(getattr(state, "_apps", ()))
        app = apps[0] if len(apps) == 1 else None
    if app is None:
        return None
    return app.conf.get(name) if app.configured else getattr(app, "_preconf", {}).get(name)


def _option(command: Sequence[str], *names: str) -> str:
    """Return the value of an option: `-w 4`, `-w4`, `--workers 4`, `--workers=4`; empty if it is absent."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        for name in names:
            if word == name:
                return following
            if word.startswith(f"{name}=") or (len(name) == 2 and word.startswith(name)):
                return word.removeprefix(name).removeprefix("=")
    return ""


def _parent() -> list[str]:
    """Return the command line of the parent process, if the system shows it."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) else None
