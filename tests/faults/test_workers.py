"""Workers are counted under the servers themselves: each is started, and says what a process of it knows."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratebound.storage.workers import ENVIRONMENT, _of_command, known_workers
from tests.servers import free_port

PROBE = """
import os
from pathlib import Path
from ratebound.storage.workers import known_workers

def note():
    file = Path(os.environ["FOUND"], str(os.getpid()))
    file.with_suffix(".part").write_text(str(known_workers()))
    file.with_suffix(".part").rename(file)
"""
WSGI = "from probe import note\nnote()\ndef app(environ, start_response): ...\n"
ASGI = "from probe import note\nnote()\nasync def app(scope, receive, send): ...\n"
CELERY = """
from celery import Celery
from celery.signals import worker_process_init
from probe import note
app = Celery("work", broker="memory://")
worker_process_init.connect(lambda **_: note(), weak=False)
note()
"""


@contextmanager
def started(command: list[str], folder: Path, **environment: str) -> Iterator[None]:
    hidden = ("WEB_CONCURRENCY", "GUNICORN_CMD_ARGS", "GRANIAN_WORKERS", "UVICORN_WORKERS")
    clean = {key: value for key, value in os.environ.items() if key not in hidden}
    (folder / "found").mkdir()
    paths = {"FOUND": str(folder / "found"), "PYTHONPATH": str(folder)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=clean | paths | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # all of its processes; an orderly stop takes Celery seconds
        server.wait()


def found(folder: Path, processes: int) -> set[str]:
    """What as many processes say, as soon as they have said it."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        files = [file for file in (folder / "found").iterdir() if not file.suffix]
        if len(files) >= processes:
            return {file.read_text() for file in files}
        time.sleep(0.05)
    raise AssertionError((folder / "log").read_text())


PORT = "{port}"
BINDS = {
    "uvicorn": ["--port", PORT],
    "gunicorn": ["--bind", f"127.0.0.1:{PORT}"],
    "hypercorn": ["--bind", f"127.0.0.1:{PORT}"],
    "granian": ["--port", PORT],
}


@pytest.mark.parametrize(
    ("server", "options", "environment", "files"),
    [
        ("uvicorn", ["--workers", "2", "app:app"], {}, {}),
        ("uvicorn", ["app:app"], {"UVICORN_WORKERS": "2"}, {}),
        ("uvicorn", ["app:app"], {"WEB_CONCURRENCY": "2"}, {}),
        ("hypercorn", ["--workers", "2", "app:app"], {}, {}),
        ("hypercorn", ["--config", "file:hyper.py", "app:app"], {}, {"hyper.py": "workers = 1 + 1"}),
        ("granian", ["--interface", "asgi", "--workers", "2", "app:app"], {}, {}),
        ("granian", ["--interface", "asgi", "app:app"], {"GRANIAN_WORKERS": "2"}, {}),
        ("gunicorn", ["-w", "2", "app:app"], {}, {}),
        ("gunicorn", ["app:app"], {"WEB_CONCURRENCY": "2"}, {}),
        ("gunicorn", ["app:app"], {}, {"gunicorn.conf.py": "workers = 1 + 1"}),
        ("gunicorn", ["-c", "other.py", "app:app"], {}, {"other.py": "workers = 1 + 1"}),
    ],
)
def test_a_process_knows_how_many_workers_its_server_has(
    server: str, options: list[str], environment: dict[str, str], files: dict[str, str], tmp_path: Path
) -> None:
    application = WSGI if server == "gunicorn" else ASGI
    for name, text in {"probe.py": PROBE, "app.py": application, **files}.items():
        (tmp_path / name).write_text(text)
    binds = [word.format(port=free_port()) for word in BINDS[server]]
    with started([sys.executable, "-m", server, *binds, *options], tmp_path, **environment):
        assert found(tmp_path, 2) == {"2"}


@pytest.mark.parametrize("environment", [{}, {"WEB_CONCURRENCY": "4"}], ids=["plain", "environment"])
def test_one_worker_that_is_started_anew_at_changes_is_one(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "app.py").write_text(ASGI)
    command = [sys.executable, "-m", "uvicorn", "--port", str(free_port()), "--reload", "app:app"]
    with started(command, tmp_path, **environment):
        assert found(tmp_path, 1) == {"1"}


@pytest.mark.parametrize("command", [["-m", "waitress", "--port={port}", "app:app"], ["serve.py", "{port}"]])
def test_a_server_of_one_process_is_one_whatever_the_environment_says(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "app.py").write_text(WSGI)
    (tmp_path / "serve.py").write_text(
        "import sys, threading, waitress\n"
        "def later():\n    import app\n"
        "threading.Timer(1, later).start()\n"
        "waitress.serve(lambda environ, start_response: None, host='127.0.0.1', port=int(sys.argv[1]))\n"
    )
    words = [word.format(port=free_port()) for word in command]
    with started([sys.executable, *words], tmp_path, WEB_CONCURRENCY="4"):
        assert found(tmp_path, 1) == {"1"}


def test_a_program_that_runs_uvicorn_with_workers_is_known_as_well(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "app.py").write_text(ASGI)
    call = f"uvicorn.run('app:app', port={free_port()}, workers=2)"
    (tmp_path / "serve.py").write_text(f"import uvicorn\nif __name__ == '__main__':\n    {call}\n")
    with started([sys.executable, "serve.py"], tmp_path):
        assert found(tmp_path, 2) == {"2"}


@pytest.mark.parametrize(
    ("options", "processes", "number"),
    [
        (["-c", "2"], 3, "2"),
        (["--concurrency=2"], 3, "2"),
        (["--autoscale=3,1"], 2, "3"),
        (["-P", "solo"], 1, "1"),
        ([], 2, str(os.cpu_count())),
    ],
)
def test_the_processes_of_a_celery_worker_are_known(
    options: list[str], processes: int, number: str, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "work.py").write_text(CELERY)
    command = [sys.executable, "-m", "celery", "-A", "work", "worker", "--without-gossip", *options]
    with started(command, tmp_path):
        assert found(tmp_path, processes) == {number}


@pytest.mark.parametrize(
    ("settings", "processes", "number"),
    [({"worker_concurrency": 3}, 2, "3"), ({"worker_pool": "solo"}, 1, "1"), ({"worker_pool": "threads"}, 1, "1")],
)
def test_the_settings_of_a_celery_application_are_known(
    settings: dict[str, object], processes: int, number: str, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    assigned = "".join(f"app.conf.{name} = {value!r}\n" for name, value in settings.items())
    (tmp_path / "work.py").write_text(CELERY.replace("note()\n", f"{assigned}note()\n"))
    command = [sys.executable, "-m", "celery", "-A", "work", "worker", "--without-gossip"]
    with started(command, tmp_path):
        assert found(tmp_path, processes) == {number}


def test_the_scheduler_of_celery_is_no_worker(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "worker.py").write_text(CELERY)
    with started([sys.executable, "-m", "celery", "-A", "worker", "beat"], tmp_path):
        assert found(tmp_path, 1) == {"1"}


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        ("/usr/bin/fastapi run main.py --workers 4", 4),
        ("python -m fastapi run --workers=4", 4),
        ("fastapi dev main.py", 1),
        ("uvicorn --workers 4 --reload app:app", 1),
        ("/srv/env/bin/python3.11 -X dev -W error /srv/env/bin/gunicorn -w 4 app:app", 4),
        ("python -mgunicorn -w 4 app:app", 4),
        ("/srv/env/lib/site-packages/gunicorn/__main__.py -w 4 app:app", 4),
        ("python /srv/fastapi/train.py --workers 8", None),
        ("/srv/uvicorn/train.py --workers 8", None),
        ("python train.py gunicorn --workers 8", None),
        ("python -c pass gunicorn --workers 8", None),
        ("python", None),
        ("", None),
        ("waitress-serve --port=80 app:app", 1),
        ("granian --interface wsgi --workers 4 app:app", 4),
        ("celery -A app worker -c 4", 4),
        ("celery -A app worker -c4 -P threads", 1),
        ("celery -A app worker --pool=gevent --concurrency 100", 1),
        ("celery -A app worker --autoscale 10,3 -c 4", 10),
        ("celery -A app beat -c 4", 1),
        ("celery -A worker beat", 1),
        ("celery -A worker --quiet beat -s worker", 1),
        ("celery --app=worker -C worker -c 4", 4),
        ("myprogram --workers 4", None),
    ],
)
def test_a_command_says_how_many_there_are(command: str, workers: int | None) -> None:
    assert _of_command(command.split()) == workers


@pytest.mark.parametrize("odd", [None, (), [], [None], [b"gunicorn", b"-w"], [Path("/bin/gunicorn"), 7], "gunicorn", 7])
def test_an_odd_command_line_says_nothing(odd: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", odd)
    assert known_workers() is None


def test_a_missing_command_line_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delattr(sys, "argv")
    assert known_workers() is None


def test_a_command_line_of_bytes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [b"/bin/gunicorn", b"-w", b"3"])
    assert known_workers() == 3


# multiprocessing

PROGRAM = """
import logging, multiprocessing, sys
from ratebound import Limiter
logging.basicConfig(format="%(process)d %(message)s")
limiter = Limiter("5/minute", storage=sys.argv[2])

def work(use):
    if use:
        limiter.hit("a")
        limiter.hit("a")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    limiter.hit("a")
    children = [context.Process(target=work, args=(use,)) for use in (True, True, False)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
"""


def written_by(tmp_path: Path, method: str, storage: str) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", method, storage]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stderr


def test_a_forked_process_that_goes_on_with_a_memory_is_warned_once_and_one_that_does_not_is_not(
    tmp_path: Path,
) -> None:
    lines = written_by(tmp_path, "fork", "memory://").splitlines()
    assert ["was started by multiprocessing and counts separately" in line for line in lines] == [True, True]
    assert len({line.split()[0] for line in lines}) == 2


def test_a_spawned_process_with_a_memory_is_warned_once(tmp_path: Path) -> None:
    lines = written_by(tmp_path, "spawn", "memory://").splitlines()
    assert ["was started by multiprocessing and counts separately" in line for line in lines] == [True] * 3


def test_a_process_that_grants_whole_limits_in_an_outage_says_so(tmp_path: Path) -> None:
    text = written_by(tmp_path, "fork", "redis://127.0.0.1:1")
    assert "for example workers=4" in text
