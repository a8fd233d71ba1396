"""A page that is typed into a terminal: its files are written, its commands run, and what it shows is compared.

A block with a title is a file: ```python title="main.py". A block in `console` is a terminal: each line behind `$ ` is
a command, and the lines below it are what it prints. `…` stands for any text in a line, and alone in one for any lines.

A server goes on in the background, and its command returns when every line that the page shows of it is in its log.
Another command of the same program first ends the one that runs, as a reader does with control-C. A command with `&` at
its end runs beside all others.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers import HOST, dying_with_us, free_port
from tests.zones import fresh_zone_url

ROOT = Path(__file__).parents[2]
SERVERS = {"uvicorn", "flask", "gunicorn", "celery", "redis-server", "nginx", "ratebound serve", "node server.mjs"}
PORTS = ["8000", "8080", "3000", "4290", "4291", "4292", "4293", "6379"]  # those that pages name
LISTENERS = {"HTTP": "4290", "GRPC": "4291", "RESP": "4292", "ADMIN": "4293"}  # the default ports of the service
ZONE = re.compile(r"shm://[a-z]+")  # each page has one
PATIENCE = 30.0  # seconds until a server has said what the page shows
SLACK = 5.0  # seconds: a busy machine takes longer from one command to the next
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
MOMENTS = [  # what differs from run to run, and what stands for it
    (re.compile(r"(?im)^date: .*"), "date: …"),
    (re.compile(r"\b1[6-9]\d{8}\b"), "…"),  # seconds since 1970
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]+\d(\+00:00|Z)?"), "…"),
    (re.compile(r" {2,}"), "  "),  # columns are as wide as their longest value
    (re.compile(r"─+"), "─"),
]
WAITS = re.compile(
    r"(?i)((?:retry-after: |retry in |wait |again in |available in |after |;t=|;w=|\"retry_after\": ?|\"window\": ?)+)"
    r"(\d+(?:\.\d+)?)"
)


class Step(NamedTuple):
    """A file to write, if `title` is given, else a command with what it prints."""

    title: str | None
    text: str
    shown: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield the files and commands of a page, in order."""
    for block in BLOCK.finditer((ROOT / page).read_text()):
        if block["title"]:
            yield Step(block["title"], block["text"])
        elif block["language"] == "console":
            for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block["text"], re.MULTILINE):
                yield Step(None, command.strip(), shown)


def plain(text: str) -> str:
    for pattern, word in MOMENTS:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def same(shown: str, printed: str) -> bool:
    """Return True if a command printed what the page shows.

    Dates may differ, and waits by a few seconds. Waits of more than an hour, as to the end of a month, may differ by
    any time.
    """
    page = re.sub(r"(?m)^…$\n", "\0", plain(shown) + "\n")
    pieces = WAITS.split(page)  # text, the words before a wait, the wait, and again
    pattern = "".join(r"(\d+(?:\.\d+)?)" if place % 3 == 2 else loose(piece) for place, piece in enumerate(pieces))
    found = re.fullmatch(pattern, plain(printed) + "\n")
    if found is None:
        return False
    waits = zip(map(float, pieces[2::3]), map(float, found.groups()), strict=True)
    return all(abs(one - other) <= SLACK or one > 3600 for one, other in waits)


def loose(text: str) -> str:
    """Return a pattern for a text in which `…` stands for any text in a line, and NUL for any lines."""
    return re.escape(text).replace("…", ".*?").replace("\0", "(?:.*\n)*?")


def server_of(command: str) -> str | None:
    """Return the server that a command starts, None if it starts none."""
    if command.endswith("&"):
        return command
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    name = " ".join(words[:2]) if words[0] in ("node", "ratebound") else words[0]
    return name if name in SERVERS else None


class Terminal:
    """A folder, the servers that run in it, and ports, addresses and zones that no other test has."""

    def __init__(self, folder: Path, zone: str) -> None:
        self.folder = folder
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._names = {port: str(free_port()) for port in PORTS}
        self._zone = zone
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        package = str(Path(sys.modules["ratebound"].__file__ or "").parents[1])
        self._env = {**os.environ, "PATH": path, "PYTHONPATH": package, "PYTHONWARNINGS": "", "NO_COLOR": "1"}
        self._env |= {f"RATEBOUND_{name}": f"{HOST}:{self._names[port]}" for name, port in LISTENERS.items()}
        self._env |= {"XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}

    def here(self, text: str) -> str:
        """Return a text of the page with what stands for its ports and zones in this test."""
        self._names |= dict.fromkeys(ZONE.findall(text), self._zone)
        for name, mine in self._names.items():
            text = text.replace(name, mine)
        return text

    def there(self, text: str) -> str:
        for name, mine in self._names.items():
            text = text.replace(mine, name)
        return text

    def play(self, step: Step) -> str:
        """Carry out a step, and return what it printed, in the words of the page."""
        if step.title:
            path = self.folder / step.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.here(step.text))
            return ""
        program = server_of(step.text)
        if program is not None:
            return self.there(self._serve(program, self.here(step.text), self.here(step.shown)))
        command = ["bash", "-c", self.here(step.text)]
        done = subprocess.run(
            command, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        return self.there(done.stdout or done.stderr)

    def _serve(self, program: str, command: str, shown: str) -> str:
        if program in self.servers:
            stop(self.servers.pop(program))
        self._started += 1
        log = self.folder / f"server{self._started}.log"
        with log.open("wb") as file:
            self.servers[program] = subprocess.Popen(
                dying_with_us(["bash", "-c", f"exec env {command.removesuffix('&')}"]),
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        wanted = Counter(re.escape(line.strip()).replace("…", ".*") for line in shown.splitlines() if line.strip("… "))
        assert wanted, f"show a line of what {program} prints when it is ready"
        deadline = time.monotonic() + PATIENCE
        while any(len(re.findall(line, log.read_text(errors="replace"))) < count for line, count in wanted.items()):
            if time.monotonic() > deadline or self.servers[program].poll() is not None:
                raise AssertionError(f"{command}\ndoes not show {shown}:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        return shown

    def close(self) -> None:
        for server in self.servers.values():
            stop(server)


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    with fresh_zone_url() as zone:
        opened = Terminal(folder, zone)
        try:
            yield opened
        finally:
            opened.close()
