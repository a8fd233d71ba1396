"""Real servers for the tests: on free loopback ports, data and log in a temporary folder, gone when their context ends.

They do not outlive the run either. On Linux the kernel kills a server when the thread that started it dies, so start
servers in a thread that lasts; elsewhere atexit does what it can.
"""

import atexit
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

HOST = "127.0.0.1"
SLOTS = 16384
PR_SET_PDEATHSIG = 1
LAUNCHER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
PACKAGES = {"redis-cli": "redis-tools", "h2load": "nghttp2-client"}  # where it is not the name of the program

# Workers that run beside each other take their ports from ranges of their own: one that is free now may be that of a
# server which another worker has stopped and will start again.
_share = 12_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_first = 20_000 + _share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = random.Random().sample(range(_first, _first + _share), _share)  # of its own: hypothesis seeds the global one


def needs(*programs: str) -> None:
    """Skip the test when a program is missing; in CI that is an error."""
    missing = [program for program in programs if not shutil.which(program)]
    if not missing:
        return
    packages = " ".join(PACKAGES.get(program, program) for program in missing)
    reason = f"not on the PATH: {', '.join(missing)}. Run tools/get_servers, or install {packages}"
    if os.environ.get("CI"):
        raise RuntimeError(reason)
    pytest.skip(reason)


def dying_with_us(command: Sequence[str]) -> list[str]:
    """Return a command that does the same, and that the kernel kills when the thread that starts it dies.

    A preexec_fn would need a real fork, which takes long in a worker of pytest with all its tests, and which grpcio
    does not survive in a process with its threads.
    """
    if sys.platform != "linux":
        return [*command]
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else [sys.executable, "-c", LAUNCHER, *command]


def free_port() -> int:
    """A port never handed out before, and below those the kernel gives to clients: a client that tries again and again
    to reach a dead server there would one day connect to itself, and keep the server from coming back."""
    while True:
        port = _ports.pop()
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """A server that does not answer has not got there yet."""
    deadline = time.monotonic() + timeout
    while True:
        with suppress(redis.RedisError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(0.01)


class Server:
    def __init__(self, *options: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="ratebound-", ignore_cleanup_errors=True)
        self._options = options
        self.folder = Path(self._home.name)
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self.unixsocket = str(self.folder / "socket")
        self.process: subprocess.Popen[bytes]
        self._paused = False
        self.configure(
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.folder}",
            f"unixsocket {self.unixsocket}",
            'save ""',
            "appendonly no",
            "protected-mode no",
            "enable-debug-command yes",
            "shutdown-timeout 0",  # stop() does not wait for a replica that lags
            "repl-diskless-sync-delay 0",  # 5 s, in which more replicas might come
            "repl-ping-replica-period 1",  # 10 s, in which CLUSTER SLOTS leaves out replicas of an empty master
        )

    def configure(self, *lines: str) -> None:
        """Add to the configuration file. The server may rewrite it: a role given by Sentinel survives a restart."""
        with (self.folder / "server.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    @property
    def alive(self) -> bool:
        """It runs and is not paused."""
        return self.process.poll() is None and not self._paused

    def client(self, **settings: Any) -> redis.Redis:
        """A plain client to look inside with: it never tries twice."""
        ours: dict[str, Any] = {"decode_responses": True, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis(host=HOST, port=self.port, **ours | settings)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._paused = False

    def pause(self) -> None:
        if self._paused:
            return
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped
        self._paused = True

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self._paused = False

    def stop(self) -> None:
        self.resume()
        self.process.terminate()
        self.process.wait(10)

    def restart(self) -> None:
        """On the same port and folder; empty, unless an option turned persistence on."""
        self.stop()
        self.spawn()
        self.wait_until_up()

    def spawn(self) -> None:
        command = ["redis-server", str(self.folder / "server.conf"), *self._options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                dying_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # control-C is for the run, which then ends its servers
            )
        atexit.register(self.kill)

    def wait_until_up(self) -> None:
        try:
            wait_until(self._answers, 10, "an answer to PING")
        except (TimeoutError, ChildProcessError) as error:
            log = (self.folder / "log").read_text(errors="replace")
            raise RuntimeError(f"redis-server {' '.join(self._options)} did not come up: {error}\n{log}") from None

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise ChildProcessError(f"it ended with {self.process.returncode}")
        try:
            with socket.create_connection((HOST, self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))
        except OSError:
            return False

    def close(self) -> None:
        if hasattr(self, "process"):
            self.kill()
            atexit.unregister(self.kill)
        self._home.cleanup()


@contextmanager
def _running(*servers: Server) -> Iterator[None]:
    """All start at once. They are killed in the end: an orderly stop takes 0.1 s and their data goes anyway."""
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.wait_until_up()
        yield
    finally:
        for server in servers:
            server.close()


@contextmanager
def redis_server(*options: str) -> Iterator[Server]:
    """One standalone server; options as on the command line: "--maxmemory", "10mb"."""
    needs("redis-server")
    server = Server(*options)
    with _running(server):
        yield server


def _is_master(server: Server) -> bool:
    with server.client() as client:
        role: Any = client.role()
    return bool(role[0] == "master")


def _replicates(server: Server, master_port: int | None = None) -> bool:
    """Its link to its master (to this one, when given) is up."""
    with server.client() as client:
        info: Any = client.info("replication")
    return info.get("master_link_status") == "up" and master_port in (None, info["master_port"])


class SentinelGroup:
    """A master with its replicas, and the sentinels that say which is which."""

    service = "mymaster"

    def __init__(self, servers: Sequence[Server], sentinels: Sequence[Server]) -> None:
        self.servers = list(servers)
        self.sentinels = list(sentinels)
        addresses = ",".join(f"{HOST}:{sentinel.port}" for sentinel in sentinels)
        self.url = f"redis+sentinel://{addresses}/{self.service}"

    @property
    def master(self) -> Server:
        """The master now, as the first sentinel alive sees it."""
        sentinel = next(sentinel for sentinel in self.sentinels if sentinel.alive)
        port = self._master_port(sentinel)
        return next(server for server in self.servers if server.port == port)

    @property
    def replicas(self) -> list[Server]:
        """All the others, dead ones too."""
        master = self.master
        return [server for server in self.servers if server is not master]

    def wait_for_master_other_than(self, port: int, timeout: float = 20.0) -> int:
        """Until all sentinels alive agree on another master and it takes writes; its port."""

        def switched() -> bool:
            ports = {self._master_port(sentinel) for sentinel in self.sentinels if sentinel.alive}
            return len(ports) == 1 and port not in ports and _is_master(self.master)

        wait_until(switched, timeout, f"a master other than {port}")
        return self.master.port

    def wait_until_ok(self, timeout: float = 20.0) -> None:
        """Until everyone alive replicates, and every sentinel alive sees everyone alive."""
        wait_until(self._ok, timeout, "a sentinel group in order")

    def _ok(self) -> bool:
        master = self.master
        replicas = [server for server in self.replicas if server.alive]
        return (
            master.alive
            and _is_master(master)
            and all(_replicates(replica, master.port) for replica in replicas)
            and all(self._sees(sentinel, master, replicas) for sentinel in self.sentinels if sentinel.alive)
        )

    def _sees(self, sentinel: Server, master: Server, replicas: list[Server]) -> bool:
        peers = {other.port for other in self.sentinels if other.alive and other is not sentinel}
        client: Any
        with sentinel.client() as client:
            state = client.sentinel_master(self.service)
            slaves = client.sentinel_slaves(self.service)
            others = client.sentinel_sentinels(self.service)
        linked = {slave["port"] for slave in slaves if (slave["flags"], slave["master-link-status"]) == ("slave", "ok")}
        return (
            (state["port"], state["flags"]) == (master.port, "master")
            and linked >= {replica.port for replica in replicas}
            and peers <= {other["port"] for other in others if other["flags"] == "sentinel"}
        )

    def _master_port(self, sentinel: Server) -> int:
        with sentinel.client() as client:
            address: Any = client.sentinel_get_master_addr_by_name(self.service)
        return int(address[1])


@contextmanager
def sentinel_group(replicas: int = 1, sentinels: int = 3) -> Iterator[SentinelGroup]:
    """Everyone is told of everyone from the start: finding each other would take the sentinels seconds."""
    needs("redis-server")
    servers = [Server() for _ in range(1 + replicas)]
    watchers = [Server("--sentinel") for _ in range(sentinels)]
    ids = [secrets.token_hex(20) for _ in watchers]
    # Milliseconds. Pings rarer than down-after make healthy servers flap; below 200 the last INFO of a replica, asked
    # for every 1000 while its master is down, counts as too old (five pings) to promote it. With the default INFO and
    # publish periods a master that comes back is made a replica only after 10 s.
    periods = ("ping-period", 300, "ask-period", 100, "info-period", 200, "publish-period", 200)
    group = SentinelGroup(servers, watchers)
    name, master = group.service, servers[0].port
    for replica in servers[1:]:
        replica.configure(f"replicaof {HOST} {master}")
    for watcher, own in zip(watchers, ids, strict=True):
        watcher.configure(
            f"sentinel myid {own}",
            f"sentinel monitor {name} {HOST} {master} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 2000",
            *(f"sentinel known-replica {name} {HOST} {replica.port}" for replica in servers[1:]),
            *(
                f"sentinel known-sentinel {name} {HOST} {other.port} {theirs}"
                for other, theirs in zip(watchers, ids, strict=True)
                if theirs != own
            ),
        )
    with _running(*servers, *watchers):
        for watcher in watchers:
            with watcher.client() as client:
                client.execute_command("SENTINEL DEBUG", *periods)
        group.wait_until_ok()
        yield group


class Cluster:
    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = list(nodes)
        self.url = f"redis+cluster://{HOST}:{nodes[0].port}"

    def node_of(self, key: str) -> Server:
        """The master of the key's slot now, as the first node alive sees it."""
        alive = next(node for node in self.nodes if node.alive)
        slot = key_slot(key.encode())
        port = next(ports[0] for first, last, ports in self._slots(alive) if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def wait_until_ok(self, timeout: float = 20.0) -> None:
        """Until all nodes alive agree that all is well and that they, and no dead ones, serve every slot."""
        wait_until(self._ok, timeout, "a cluster in order")

    def _ok(self) -> bool:
        alive = [node for node in self.nodes if node.alive]
        views = [self._slots(node) for node in alive]
        return (
            all(view == views[0] for view in views)
            and sum(last - first + 1 for first, last, _ in views[0]) == SLOTS
            and {port for _, _, ports in views[0] for port in ports} == {node.port for node in alive}
            and all(_is_master(node) or _replicates(node) for node in alive)
            and all(self._state(node) == "ok" for node in alive)
        )

    def _slots(self, node: Server) -> list[tuple[int, int, list[int]]]:
        """(first slot, last slot, ports: the master's, then the replicas'), as this node sees it."""
        with node.client() as client:
            rows: Any = client.execute_command("CLUSTER SLOTS")
        return sorted((first, last, [master[1], *sorted(r[1] for r in rest)]) for first, last, master, *rest in rows)

    def _state(self, node: Server) -> str:
        with node.client() as client:
            info: Any = client.execute_command("CLUSTER INFO")
        return str(info["cluster_state"])


@contextmanager
def cluster(masters: int = 3, replicas: int = 1) -> Iterator[Cluster]:
    """The nodes find each other and their slots in nodes.conf, as after a restart: meeting would take longer."""
    needs("redis-server")
    nodes = [Server() for _ in range(masters * (1 + replicas))]
    ids = [secrets.token_hex(20) for _ in nodes]
    buses = [free_port() for _ in nodes]
    lines = []
    for i, (node, own, bus) in enumerate(zip(nodes, ids, buses, strict=True)):
        node.configure("cluster-enabled yes", "cluster-node-timeout 1000", f"cluster-port {bus}")
        if i < masters:
            slots = f"{i * SLOTS // masters}-{(i + 1) * SLOTS // masters - 1}"
            role = f"master - 0 0 {i + 1} connected {slots}"
        else:
            role = f"slave {ids[i % masters]} 0 0 {i % masters + 1} connected"
        lines.append(f"{own} {HOST}:{node.port}@{bus} {role}\n")
    for i, node in enumerate(nodes):
        myself = f"{HOST}:{node.port}@{buses[i]} "
        text = "".join(lines).replace(myself, f"{myself}myself,")
        (node.folder / "nodes.conf").write_text(f"{text}vars currentEpoch {masters} lastVoteEpoch 0\n")
    group = Cluster(nodes)
    with _running(*nodes):
        group.wait_until_ok()
        yield group
