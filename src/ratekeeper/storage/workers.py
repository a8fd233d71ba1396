"""How many processes share a limit: as far as can be known from inside one of them."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger("ratekeeper")

SERVERS = ("gunicorn", "uvicorn", "hypercorn", "granian")

_told = False


def known_workers() -> int | None:
    """What the server that runs this process was told: by uWSGI's own word, by `--workers` of the command line, this
    process's or its parent's, or by WEB_CONCURRENCY. None when nobody says."""
    return (
        _of_uwsgi()
        or _of_command(sys.argv)
        or _of_command(_parent())
        or _of_command(["gunicorn", *os.environ.get("GUNICORN_CMD_ARGS", "").split()])
        or _number(os.environ.get("WEB_CONCURRENCY", ""))
    )


def warn_of_many_workers() -> None:
    """Once in a process: states in memory are not shared, so every worker grants the whole limit."""
    global _told
    if _told:
        return
    _told = True
    workers = known_workers()
    if workers is not None and workers > 1:
        log.warning(
            "memory:// is not shared between processes: each of %d workers counts for itself, so clients get up to %d"
            " times the limit; use a storage that all of them share, like storage='redis://host:6379/0'",
            workers,
            workers,
        )


def _of_uwsgi() -> int | None:
    """uWSGI puts a module of its own there. It is not imported: many a project has an uwsgi.py that starts it."""
    found = getattr(sys.modules.get("uwsgi"), "numproc", None)
    return found if isinstance(found, int) and found > 0 else None


def _of_command(command: Sequence[str]) -> int | None:
    """`-w 4`, `-w4`, `--workers 4` or `--workers=4`, behind the name of a server that knows them."""
    paths = [Path(word) for word in command[:6]]  # python, its options and -m may come first
    if not any(name in SERVERS for path in paths for name in (path.name, path.parent.name)):  # gunicorn/__main__.py
        return None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word in ("-w", "--workers"):
            return _number(following)
        for begin in ("--workers=", "-w"):
            if word.startswith(begin) and _number(word.removeprefix(begin)):
                return _number(word.removeprefix(begin))
    return None


def _parent() -> list[str]:
    """The command line of the process that started this one, where the system shows it."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) else None
