"""The servers and the proxy that other tests rely on do what they say."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import redis

from tests import servers
from tests.proxy import Proxy, proxy
from tests.servers import HOST, Cluster, SentinelGroup, Server, redis_server, wait_until

PING, PONG = b"PING\r\n", b"+PONG\r\n"
RUN = """
import time
from tests.servers import redis_server
with redis_server() as server:
    print(server.process.pid, server.folder, flush=True)
    time.sleep(60)
"""


def is_running(pid: int) -> bool:
    """Not a zombie either: an orphan may have a parent that does not ask for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 2)


@pytest.fixture
def between(redis_url_server: Server) -> Iterator[Proxy]:
    with proxy(redis_url_server) as standing_between:
        yield standing_between


@pytest.fixture
def wire(between: Proxy) -> Iterator[socket.socket]:
    """A connection through the proxy that has been used: what is armed now hits the next reply."""
    with connect(between.port) as connection:
        connection.sendall(PING)
        assert connection.recv(64) == PONG
        yield connection


def test_a_killed_server_is_dead_and_comes_back_empty(fresh_redis: Server) -> None:
    with fresh_redis.client() as client:
        client.set("k", "v")
        pid = fresh_redis.process.pid
        fresh_redis.kill()
        assert fresh_redis.process.poll() == -signal.SIGKILL
        with pytest.raises(redis.ConnectionError):
            client.ping()
        fresh_redis.restart()
        assert fresh_redis.process.pid != pid
        assert client.get("k") is None


def test_a_restart_keeps_what_persistence_kept() -> None:
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server, server.client() as client:
        client.set("k", "v")
        server.kill()
        server.restart()
        assert client.get("k") == "v"


def test_a_paused_server_takes_requests_and_answers_once_resumed(fresh_redis: Server) -> None:
    with connect(fresh_redis.port) as connection:
        fresh_redis.pause()
        connection.settimeout(0.1)
        connection.sendall(PING)
        with pytest.raises(TimeoutError):
            connection.recv(64)
        fresh_redis.resume()
        connection.settimeout(2)
        assert connection.recv(64) == PONG


def test_a_paused_server_can_be_stopped(fresh_redis: Server) -> None:
    fresh_redis.pause()
    fresh_redis.stop()
    assert fresh_redis.process.poll() == 0


def test_options_reach_the_server_and_so_does_its_socket() -> None:
    with redis_server("--maxmemory", "10mb", "--requirepass", "secret") as server:
        with server.client(password="secret") as client:
            assert client.config_get("maxmemory") == {"maxmemory": "10485760"}
        with redis.Redis(unix_socket_path=server.unixsocket, password="secret") as client:
            assert client.ping()


def test_a_server_that_does_not_come_up_shows_its_log() -> None:
    with pytest.raises(RuntimeError, match="(?s)no-such-option.*Bad directive"), redis_server("--no-such-option", "1"):
        pass


def test_a_missing_program_skips_but_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="tools/get_servers"):
        servers.needs("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RuntimeError, match="no-such-program"):
        servers.needs("no-such-program")


def test_a_delayed_reply_comes_late(between: Proxy, wire: socket.socket) -> None:
    between.delay = 0.2
    start = time.monotonic()
    wire.sendall(PING)
    assert wire.recv(64) == PONG
    assert time.monotonic() - start >= 0.2


def test_dropped_connections_end_and_new_ones_are_served(between: Proxy, wire: socket.socket) -> None:
    between.drop()
    assert wire.recv(64) == b""
    with connect(between.port) as connection:
        connection.sendall(PING)
        assert connection.recv(64) == PONG


def test_refused_connections_end_and_old_ones_are_served(between: Proxy, wire: socket.socket) -> None:
    between.refuse = True
    with connect(between.port) as connection:
        assert connection.recv(64) == b""
    wire.sendall(PING)
    assert wire.recv(64) == PONG


def test_a_mute_proxy_passes_the_request_but_not_the_reply(
    between: Proxy, wire: socket.socket, redis_url_server: Server
) -> None:
    between.mute = True
    with redis_url_server.client() as client:
        client.delete("muted")
        wire.sendall(b"INCR muted\r\n")
        wait_until(lambda: client.get("muted") == "1", 2, "the request at the server")
    wire.settimeout(0.1)
    with pytest.raises(TimeoutError):
        wire.recv(64)


def test_a_cut_reply_ends_in_a_reset(between: Proxy, wire: socket.socket) -> None:
    between.cut_reply(3)
    wire.sendall(PING)
    assert wire.recv(64) == PONG[:3]
    with pytest.raises(ConnectionResetError):
        wire.recv(64)


def test_garbage_is_sent_once_instead_of_a_reply(between: Proxy, wire: socket.socket) -> None:
    between.garbage = b"?what\r\n"
    for expected in (b"?what\r\n", PONG):
        wire.sendall(PING)
        assert wire.recv(64) == expected


def test_a_proxy_before_a_dead_server_closes_connections(fresh_redis: Server) -> None:
    with proxy(fresh_redis) as dead_end, connect(dead_end.port) as before:
        before.sendall(PING)
        assert before.recv(64) == PONG
        fresh_redis.kill()
        assert before.recv(64) == b""
        with connect(dead_end.port) as after:
            assert after.recv(64) == b""


def test_sentinels_make_a_replica_master_when_the_master_is_killed(sentinels: SentinelGroup) -> None:
    dead, [replica] = sentinels.master, sentinels.replicas
    dead.kill()
    assert sentinels.wait_for_master_other_than(dead.port) == replica.port
    with replica.client() as client:
        assert client.set("k", "v")
    dead.restart()
    sentinels.wait_until_ok()
    assert (sentinels.master, sentinels.replicas) == (replica, [dead])


def test_a_cluster_serves_keys_and_promotes_a_replica_when_a_node_is_killed(redis_cluster: Cluster) -> None:
    assert len({redis_cluster.node_of(str(key)).port for key in range(30)}) == 3
    dead = redis_cluster.node_of("k")
    with dead.client() as client:
        assert client.set("k", "v")
        assert client.execute_command("WAIT", 1, 1000) == 1
    dead.kill()
    redis_cluster.wait_until_ok()
    promoted = redis_cluster.node_of("k")
    assert promoted is not dead
    with promoted.client() as client:
        assert client.get("k") == "v"
    dead.restart()
    redis_cluster.wait_until_ok()
    assert redis_cluster.node_of("k") is promoted


@pytest.mark.parametrize("group", [servers.sentinel_group, servers.cluster])
def test_nothing_is_left_of_a_group(group: Callable[[], AbstractContextManager[SentinelGroup | Cluster]]) -> None:
    with group() as started:
        members = started.nodes if isinstance(started, Cluster) else started.servers + started.sentinels
        assert all(is_running(member.process.pid) for member in members)
    assert not any(is_running(member.process.pid) or member.folder.exists() for member in members)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of the dead")
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_dies_with_the_run_that_started_it(death: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
    ) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        assert is_running(int(pid))
        os.kill(run.pid, death)
    wait_until(lambda: not is_running(int(pid)), 2, "the end of the server")
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run cannot do
