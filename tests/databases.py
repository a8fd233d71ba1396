"""Real PostgreSQL, PgBouncer and memcached for the tests: on free loopback ports, gone when their context ends.

Like the servers of servers.py they do not outlive the run. PostgreSQL does not run as root: there it runs as its own
user, or as nobody.
"""

import atexit
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.servers import HOST, PR_SET_PDEATHSIG, free_port

PACKAGES = {"postgres": "postgresql", "initdb": "postgresql"}
UP_WITHIN = 30.0  # seconds
# Commits are not flushed to the disk unless a test asks for it: what a killed server has written stays with the system.
SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "max_connections": "250",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "log_min_messages": "warning",
}


def program(name: str) -> str:
    """The path of a program. Skips the test if it is missing; in CI that is an error."""
    places = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join([*places, "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        reason = f"not on the PATH: {name}. Run tools/get_servers, or install {PACKAGES.get(name, name)}"
        if os.environ.get("CI"):
            raise RuntimeError(reason)
        pytest.skip(reason)
    return found


@lru_cache
def other_user() -> str | None:
    """The user that runs what refuses to run as root; None if this is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("neither a user 'postgres' nor 'nobody' is there to run PostgreSQL")


class Database:
    """A server process in a folder of its own. It can be killed, paused, and started again on the same port."""

    name: str

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="ratebound-", ignore_cleanup_errors=True)
        self.folder = Path(self._home.name)
        self.port = free_port()
        self.process: subprocess.Popen[bytes]
        self._paused: list[psutil.Process] = []

    def command(self) -> list[str]:
        raise NotImplementedError

    def spawn(self) -> None:
        """Start the process. It may not be up yet."""
        parent = os.getpid()
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before we asked
                os._exit(1)

        user = other_user()
        if user is not None:
            shutil.chown(self.folder, user)
        with (self.folder / "log").open("ab") as log, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a preexec_fn while there are threads
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=user,
                start_new_session=True,  # control-C is for the run, which then ends its servers
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        atexit.register(self.kill)

    def start(self) -> None:
        """Start it and wait until it answers. One whose last processes have not gone yet is started again."""
        ends = time.monotonic() + UP_WITHIN
        self.spawn()
        while not self.answers():
            if self.process.poll() is not None:
                if time.monotonic() > ends:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"{self.name} did not come up\n{log[-4000:]}")
                time.sleep(0.05)
                self.spawn()
            if time.monotonic() > ends:
                raise RuntimeError(f"{self.name} did not answer within {UP_WITHIN:g} s")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Return True if it accepts connections."""
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it at once, with all of its processes."""
        every = self._processes()
        for process in every:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(every, 10)
        self.process.wait()
        self._paused = []

    def pause(self) -> None:
        """Stop all of its processes until `resume`."""
        self._paused = self._processes()
        for process in self._paused:
            with suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Let paused processes go on."""
        for process in self._paused:
            with suppress(psutil.Error):
                process.resume()
        self._paused = []

    def stop(self) -> None:
        """End it in order."""
        self.resume()
        self.process.send_signal(self.stop_signal)
        self.process.wait(20)

    stop_signal = signal.SIGTERM

    def restart(self) -> None:
        """Stop it, and start it on the same port and folder."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill it and remove its folder."""
        if hasattr(self, "process"):
            self.kill()
            atexit.unregister(self.kill)
        self._home.cleanup()

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        return []


class Postgres(Database):
    """A PostgreSQL server with a database 'ratebound' and a superuser of the same name, without a password."""

    name = "postgres"
    stop_signal = signal.SIGINT  # a fast shutdown: clients are disconnected

    def __init__(self, settings: Mapping[str, str] | None = None, data: Path | None = None) -> None:
        super().__init__()
        self.data = self.folder / "data"
        self._settings = {**SETTINGS, **(settings or {})}
        self.url = f"postgresql://ratebound@{HOST}:{self.port}/ratebound"
        shutil.copytree(_template() if data is None else data, self.data)
        self.data.chmod(0o700)
        user = other_user()
        if user is not None:
            for path in (self.folder, self.data, *self.data.rglob("*")):
                shutil.chown(path, user)

    def command(self) -> list[str]:
        given = {**self._settings, "port": str(self.port), "listen_addresses": HOST}
        given["unix_socket_directories"] = str(self.folder)
        return [program("postgres"), "-D", str(self.data), *(f"--{name}={value}" for name, value in given.items())]

    def answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.Error:
            return False
        return True

    def connect(self, database: str = "ratebound") -> psycopg.Connection[tuple[object, ...]]:
        """A plain connection to look inside with, in autocommit mode."""
        return psycopg.connect(
            host=HOST, port=self.port, user="ratebound", dbname=database, autocommit=True, connect_timeout=5
        )

    def run(self, *statements: str) -> None:
        """Run statements, one after the other."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        name = f"db{time.time_ns()}"
        self.run(f"CREATE DATABASE {name}")
        return f"postgresql://ratebound@{HOST}:{self.port}/{name}"


@lru_cache
def _template() -> Path:
    """The data of a new server, made once for each run."""
    home = tempfile.TemporaryDirectory(prefix="ratebound-template-", ignore_cleanup_errors=True)
    atexit.register(home.cleanup)
    folder, user = Path(home.name), other_user()
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    options = ["--no-sync", "--auth=trust", "--username=ratebound", "--encoding=UTF8", "--locale=C"]
    subprocess.run([program("initdb"), "-D", str(data), *options], check=True, capture_output=True, user=user)
    single = [program("postgres"), "--single", "-D", str(data), "postgres"]
    subprocess.run(single, check=True, capture_output=True, user=user, input=b"CREATE DATABASE ratebound\n")
    return data


class PgBouncer(Database):
    """A PgBouncer in transaction mode in front of a PostgreSQL server."""

    name = "pgbouncer"

    def __init__(self, server: Postgres, pool: int = 5) -> None:
        super().__init__()
        self.url = f"postgresql://ratebound@{HOST}:{self.port}/ratebound"
        (self.folder / "users.txt").write_text('"ratebound" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={HOST} port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nauth_type = trust\n"
            f"auth_file = {self.folder}/users.txt\npool_mode = transaction\ndefault_pool_size = {pool}\n"
            "max_client_conn = 500\nunix_socket_dir =\nlogfile =\n"
        )

    def command(self) -> list[str]:
        return [program("pgbouncer"), str(self.folder / "pgbouncer.ini")]


class Memcached(Database):
    """A memcached server."""

    name = "memcached"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options
        self.url = f"memcached://{HOST}:{self.port}"

    def command(self) -> list[str]:
        return [program("memcached"), "-l", HOST, "-p", str(self.port), "-U", "0", "-t", "2", *self._options]


@contextmanager
def running(*servers: Database) -> Iterator[None]:
    """Start servers, and close them at the end."""
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in reversed(servers):
            server.close()


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """One PostgreSQL server, with settings of postgresql.conf."""
    program("postgres")
    server = Postgres(settings)
    with running(server):
        yield server


@contextmanager
def pgbouncer_of(server: Postgres, pool: int = 5) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of a server."""
    program("pgbouncer")
    bouncer = PgBouncer(server, pool)
    with running(bouncer):
        yield bouncer


@contextmanager
def memcached_servers(count: int = 1, options: Sequence[str] = ()) -> Iterator[list[Memcached]]:
    """Memcached servers, with options of the command line."""
    program("memcached")
    servers = [Memcached(*options) for _ in range(count)]
    with running(*servers):
        yield servers
