"""RESP connections over real sockets: pipelines, order, bounds, slow and silent peers, and how connections end."""

import asyncio
import gc
import select
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.metrics import CountedCommands
from ratebound.service.resp import MOST_WITHOUT_TOKEN, RespConnection
from ratebound.service.resp_commands import RespCommands
from tests.servers import Server, wait_until
from tests.service.resp_server import POLICY, TOKEN, Peer, RespServer, resp_server, wire
from tests.service.test_resp_reader import in_parts, read_all

LOOPS = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@pytest.fixture(scope="module")
def server() -> Iterator[RespServer]:
    with resp_server() as running:
        yield running


def is_open(peer: Peer) -> bool:
    """Return False if the server has closed the connection; nothing is read."""
    if not select.select([peer.socket], [], [], 0)[0]:
        return True
    try:
        return peer.socket.recv(1, socket.MSG_PEEK) != b""
    except ConnectionResetError:
        return False


def answered(peer: Peer, number: int) -> list[Any]:
    return [peer.answer() for _ in range(number)]


@LOOPS
def test_a_pipeline_is_answered_in_order(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with resp_server(loop_factory=loop_factory) as server, server.connect() as peer:
        words = [str(number) for number in range(5000)]
        peer.send(b"".join(wire("ECHO", word) for word in words))
        assert answered(peer, len(words)) == [word.encode() for word in words]


class NotedWrites:
    """A transport that notes what is written, and passes it on."""

    def __init__(self, transport: Any, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


def test_what_one_read_brought_is_answered_by_one_write(redis_url_server: Server) -> None:
    written: list[bytes] = []

    class Noting(RespConnection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(NotedWrites(transport, written))

    for storage, most in (("memory://", 1), (redis_url_server.url, 5)):
        with resp_server(storage, connection=Noting) as server, server.connect() as peer:
            peer.ask("RB.RESET", "write", "1000/hour")
            written.clear()
            peer.send(wire("RB.HIT", "write", "1000/hour") * 60)
            assert len(answered(peer, 60)) == 60
            assert len(written) <= most, storage


def test_commands_and_lines_may_be_mixed_and_cut_anywhere(server: RespServer) -> None:
    data = wire("ECHO", "a\r\nb") + b"PING\r\n" + wire("RB.HIT", "mixed", "5/minute") + b'echo "a b"\r\n' + wire("PING")
    for at in range(1, len(data)):
        with server.connect() as peer:
            peer.send(data[:at])
            peer.send(data[at:])
            found = answered(peer, 5)
            assert (found[0], found[1], found[3], found[4]) == (b"a\r\nb", b"PONG", b"a b", b"PONG")


def test_answers_of_redis_come_in_the_order_of_the_commands(redis_url_server: Server) -> None:
    with resp_server(redis_url_server.url) as server, server.connect() as peer:
        peer.ask("RB.RESET", "ordered", "1000/hour")
        sent = [wire("RB.HIT", "ordered", "1000/hour") + wire("ECHO", number) for number in range(300)]
        peer.send(b"".join(sent) + wire("CL.THROTTLE", "ordered", 15, 30, 60) + wire("PING"))
        found = answered(peer, 602)
        assert found[1:600:2] == [str(number).encode() for number in range(300)]
        assert [answer[5] for answer in found[0:600:2]] == list(range(999, 699, -1))
        assert found[601] == b"PONG"
        assert found[600][0] == 0


def test_a_pipeline_has_the_effects_of_its_commands_in_their_order(redis_url_server: Server) -> None:
    hit, peek, reset = (("RB." + name, "effects", "10/hour") for name in ("HIT", "PEEK", "RESET"))
    throttle = ("CL.THROTTLE", "effects", 9, 10, 3600)
    commands = [reset, *[hit] * 3, peek, peek, hit, reset, hit, ("ECHO", "x"), peek, *[throttle] * 2, (*throttle, 0)]
    for storage in ("memory://", redis_url_server.url):
        with resp_server(storage) as server, server.connect() as peer:
            peer.ask("RB.RESET", "effects", "10/hour burst 10")
            peer.send(b"".join(wire(*command) for command in commands))
            found = answered(peer, len(commands))
            left = [answer[5] if len(answer) > 5 else answer[2] for answer in found if isinstance(answer, list)]
            assert left == [9, 8, 7, 7, 7, 6, 9, 9, 9, 8, 8], storage
            assert [answer for answer in found if isinstance(answer, bytes)] == [b"OK", b"OK", b"x"]


def test_an_answer_is_in_the_protocol_of_its_command(redis_url_server: Server) -> None:
    for storage in ("memory://", redis_url_server.url):
        with resp_server(storage) as server, server.connect() as peer:
            peer.send(wire("RB.DECIDE", "GET", "/free") + wire("HELLO", 3) + wire("RB.DECIDE", "GET", "/free"))
            assert [type(answer) for answer in answered(peer, 3)] == [list, dict, dict]


def test_what_was_sent_before_quit_is_answered_and_nothing_after_it(redis_url_server: Server) -> None:
    for storage in ("memory://", redis_url_server.url):
        with resp_server(storage) as server, server.connect() as peer:
            peer.send(wire("RB.HIT", "quit", "1000/hour") + wire("QUIT") + wire("PING"))
            found = answered(peer, 2)
            assert (found[0][1], found[1]) == (1, b"OK")
            with pytest.raises(EOFError):
                peer.answer()


def test_a_peer_that_has_sent_everything_gets_all_answers(redis_url_server: Server) -> None:
    for storage in ("memory://", redis_url_server.url):
        with resp_server(storage, bounds=Bounds(pending=3)) as server, server.connect() as peer:
            peer.send(wire("RB.PEEK", "half", "1000/hour") * 50 + b"*1\r\n$4")
            peer.end()
            assert peer.rest().count(b"allowed") == 50


@LOOPS
def test_a_peer_that_does_not_read_is_not_read_from_and_then_closed(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with resp_server(loop_factory=loop_factory) as server, server.connect() as peer:
        peer.socket.setblocking(False)
        sent = 0
        pipeline = wire("COMMAND") * 1000
        while select.select([], [peer.socket], [], 0.5)[1]:
            sent += peer.socket.send(pipeline)
            assert sent < 50_000_000, "the server reads on, whatever is not read"
        server.call(lambda: server.connections.expire(server.loop.time() + 5))
        assert server.call(lambda: len(server.connections)) == 1
        server.call(lambda: server.connections.expire(server.loop.time() + 11))
        wait_until(lambda: server.call(lambda: len(server.connections)) == 0, 5, "the connection is closed")


@LOOPS
def test_a_peer_that_reads_late_gets_every_answer(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with resp_server(loop_factory=loop_factory) as server, server.connect() as peer:
        peer.socket.setblocking(False)
        pipeline = wire("COMMAND") * 20_000
        sent = 0
        found = 0
        received = []
        while found < 20_000:
            reads, writes, _ = select.select([peer.socket], [peer.socket] if sent < len(pipeline) else [], [], 10)
            assert reads or writes
            if writes:
                sent += peer.socket.send(pipeline[sent:])
            elif reads:
                received.append(peer.socket.recv(1 << 20))
                found += received[-1].count(b"cl.throttle")
        assert found == 20_000


def test_a_connection_without_a_command_is_closed_when_it_is_idle(server: RespServer) -> None:
    with server.connect() as peer:
        assert peer.ask("PING") == b"PONG"
        server.call(lambda: server.connections.expire(server.loop.time() + 70))
        assert peer.ask("PING") == b"PONG"
        server.call(lambda: server.connections.expire(server.loop.time() + 80))
        assert peer.rest() == b""


def test_a_command_that_does_not_end_is_refused(server: RespServer) -> None:
    with server.connect() as peer:
        assert peer.ask("PING") == b"PONG"
        peer.send(wire("PING") + b"*2\r\n$4\r\nECHO\r\n$1")
        assert peer.answer() == b"PONG"
        server.call(lambda: server.connections.expire(server.loop.time() + 9))
        peer.send(b"0")  # a byte now and then does not help
        server.call(lambda: server.connections.expire(server.loop.time() + 11))
        assert peer.rest() == b"-ERR Protocol error: the command took too long\r\n"


def test_a_peer_that_goes_on_after_an_error_is_closed() -> None:
    with resp_server() as server, server.connect() as peer:
        peer.send(b"*1\r\n:1\r\n")
        assert peer.rest() == b"-ERR Protocol error: expected '$', got ':'\r\n"
        peer.send(wire("PING") * 1000)
        server.call(lambda: server.connections.expire(server.loop.time() + 9))
        assert server.call(lambda: len(server.connections)) == 1
        server.call(lambda: server.connections.expire(server.loop.time() + 11))
        wait_until(lambda: server.call(lambda: len(server.connections)) == 0, 5, "the connection is closed")


def test_an_error_is_told_also_if_the_peer_has_ended(redis_url_server: Server) -> None:
    with resp_server(redis_url_server.url, bounds=Bounds(pending=1)) as server, server.connect() as peer:
        peer.send(wire("RB.PEEK", "k", "5/minute") * 20 + b"*1\r\n:1\r\n")
        peer.end()
        found = peer.rest()
        assert found.count(b"allowed") == 20
        assert found.endswith(b"-ERR Protocol error: expected '$', got ':'\r\n")


def test_a_command_whose_rest_was_not_read_yet_is_not_too_slow(fresh_redis: Server) -> None:
    """The peer has sent everything, and the server waits for its storage."""
    running = resp_server(f"{fresh_redis.url}?timeout=20", bounds=Bounds(pending=1), deadline=20)
    with running as server, server.connect() as peer:
        peer.ask("RB.PEEK", "k", "5/minute")
        fresh_redis.pause()
        peer.send(wire("RB.PEEK", "k", "5/minute") * 3 + b"*1\r\n$4\r\nPI")
        wait_until(lambda: server.call(lambda: any_task(server)), 5, "the storage is asked")
        server.call(lambda: server.connections.expire(server.loop.time() + 30))
        fresh_redis.resume()
        assert len(answered(peer, 3)) == 3
        peer.send(b"NG\r\n")
        assert peer.answer() == b"PONG"


def any_task(server: RespServer) -> bool:
    return any("_later" in repr(task.get_coro()) for task in asyncio.all_tasks(server.loop))


def test_a_command_that_comes_slowly_but_in_time_is_answered(server: RespServer) -> None:
    with server.connect() as peer:
        for byte in wire("ECHO", "slow"):
            peer.send(bytes([byte]))
        assert peer.answer() == b"slow"
        server.call(lambda: server.connections.expire(server.loop.time() + 60))
        assert peer.ask("PING") == b"PONG"


def test_too_many_connections_are_refused_as_redis_does() -> None:
    with resp_server(bounds=Bounds(connections=2)) as server, server.connect() as first, server.connect() as second:
        assert (first.ask("PING"), second.ask("PING")) == (b"PONG", b"PONG")
        with server.connect() as third:
            assert third.rest() == b"-ERR max number of clients reached\r\n"
        assert first.ask("PING") == b"PONG"
        second.socket.close()
        wait_until(lambda: server.call(lambda: len(server.connections)) == 1, 5, "the connection is closed")
        with server.connect() as fourth:
            assert fourth.ask("PING") == b"PONG"


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"*1000000000\r\n", b"invalid multibulk length"),
        (b"*1\r\n$1000000000\r\n", b"invalid bulk length"),
        (b"*1\r\n*1\r\n", b"expected '$', got '*'"),
        (b"*3\r\n$600000\r\n%b\r\n$600000\r\n%b\r\n" % (b"x" * 600_000, b"x" * 600_000), b"a command is longer than"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nRB.RESET k 1/minute\r\n", b"this is HTTP"),
    ],
    ids=["arguments", "size", "nested", "long", "http"],
)
def test_what_is_no_command_is_told_behind_the_answers_and_closes(
    server: RespServer, sent: bytes, error: bytes
) -> None:
    with server.connect() as peer:
        peer.send(wire("PING") * 3 + sent)
        found = peer.rest()
        assert found.startswith(b"+PONG\r\n" * 3 + b"-ERR Protocol error: " + error)
        assert found.count(b"\r\n") == 4


def test_an_error_of_the_protocol_comes_behind_answers_that_are_awaited(redis_url_server: Server) -> None:
    with resp_server(redis_url_server.url, bounds=Bounds(pending=2)) as server, server.connect() as peer:
        peer.send(wire("RB.PEEK", "k", "5/minute") * 20 + b"*1\r\n:1\r\n")
        found = peer.rest()
        assert found.count(b"allowed") == 20
        assert found.endswith(b"-ERR Protocol error: expected '$', got ':'\r\n")


def test_commands_are_short_until_a_token_is_given() -> None:
    with resp_server(tokens=[TOKEN]) as server:
        with server.connect() as peer:
            peer.send(wire("AUTH", "x" * (MOST_WITHOUT_TOKEN + 1)))
            assert peer.rest() == b"-ERR Protocol error: invalid bulk length\r\n"
        with server.connect() as peer:
            assert peer.ask("AUTH", TOKEN) == b"OK"
            assert peer.ask("ECHO", "x" * 500_000) == b"x" * 500_000
        with server.connect() as peer:
            peer.send(wire("PING") + wire("AUTH", TOKEN) + wire("PING"))
            assert [str(answer) for answer in answered(peer, 3)] == [
                "NOAUTH Authentication required.",
                "b'OK'",
                "b'PONG'",
            ]


@LOOPS
def test_stopping_answers_what_was_received_and_closes(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], redis_url_server: Server
) -> None:
    running = resp_server(redis_url_server.url, loop_factory=loop_factory)
    with running as server, server.connect() as peer, server.connect() as idle:
        idle.ask("PING")
        peer.send(wire("RB.PEEK", "k", "5/minute") * 200)
        peer.answer()
        asyncio.run_coroutine_threadsafe(server.connections.stop(5), server.loop).result(10)
        assert len(answered(peer, 199)) == 199
        assert peer.rest() == idle.rest() == b""
        with server.connect() as late:
            assert late.rest() == b"-ERR max number of clients reached\r\n"


def test_a_peer_that_goes_away_while_it_is_answered_leaves_nothing(redis_url_server: Server) -> None:
    with resp_server(redis_url_server.url) as server:
        for _ in range(20):
            with server.connect() as peer:
                peer.send(wire("RB.PEEK", "k", "5/minute") * 100)
        wait_until(lambda: server.call(lambda: len(server.connections)) == 0, 5, "all connections are closed")

        def tasks() -> list[str]:
            return [task.get_name() for task in asyncio.all_tasks() if "_later" in repr(task.get_coro())]

        wait_until(lambda: not server.call(tasks), 5, "no command is being answered")


def test_a_command_that_nobody_has_begun_to_answer_is_dropped_without_a_warning(redis_url_server: Server) -> None:
    counts: dict[bytes, int] = {}

    async def lose() -> None:
        engine = Engine(read_policy(POLICY), storage=redis_url_server.url)
        commands: Any = CountedCommands(RespCommands(engine, BearerTokens()), counts)
        connection = RespConnection(commands, Connections(Bounds()))
        connection.connection_made(asyncio.Transport())
        connection.data_received(wire("RB.HIT", "dropped", "1/hour"))
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(lose())
        gc.collect()
    assert not [str(one.message) for one in seen if "never awaited" in str(one.message)]
    assert counts == {}


def test_when_redis_is_away_limits_are_decided_locally_and_a_reset_is_refused(fresh_redis: Server) -> None:
    with resp_server(fresh_redis.url) as server, server.connect() as peer:
        assert peer.ask("RB.HIT", "k", "5/minute")[1] == 1
        fresh_redis.kill()
        found = peer.ask("RB.HIT", "k", "5/minute")
        assert found[1] == 1
        assert found[-2:] == [b"degraded", 1]
        assert str(peer.ask("RB.RESET", "k", "5/minute")) == "UNAVAILABLE The storage did not answer. Try again."
        assert peer.ask("PING") == b"PONG"


def test_limits_are_exact_over_many_connections(server: RespServer) -> None:
    peers = [server.connect() for _ in range(20)]
    for peer in peers:
        peer.send(wire("RB.HIT", "many", "100/hour") * 10)
    allowed = sum(answer[1] for peer in peers for answer in answered(peer, 10))
    for peer in peers:
        peer.socket.close()
    assert allowed == 100


# A fuzzer: whatever is sent, every command has an answer, and the server lives.

NAMES = st.sampled_from(
    ["PING", "ECHO", "CL.THROTTLE", "RB.HIT", "RB.PEEK", "RB.DECIDE", "HELLO", "CLIENT", "COMMAND", "x"]
)
ARGUMENTS = st.one_of(
    st.binary(max_size=20), st.sampled_from(["k", "1/minute", "COST", "1", "3", "/x", "\r\n", "*1\r\n"])
)
SENT = st.lists(st.tuples(NAMES, st.lists(ARGUMENTS, max_size=4)), min_size=1, max_size=8)


@given(SENT, st.lists(st.integers(0, 300), max_size=4), st.data())
def test_every_command_has_one_answer_whatever_is_sent(
    server: RespServer, sent: list[tuple[str, list[Any]]], cuts: list[int], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(wire(name, *words) for name, words in sent))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(stream)))
        stream[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    commands, error = read_all([bytes(stream)], Bounds().body)
    names = [command[0].upper() for command in commands]
    if b"QUIT" in names:
        commands, error = commands[: names.index(b"QUIT") + 1], ""
    with server.connect() as peer:
        for part in in_parts(bytes(stream), cuts):
            try:
                peer.send(part)
            except ConnectionError:
                break
        answers = []
        with suppress(EOFError, OSError):
            peer.end()
            while True:
                answers.append(peer.answer())
    assert len(answers) == len(commands) + bool(error)
    if error:
        assert str(answers[-1]) == f"ERR Protocol error: {error}"


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_refused_streams_leave_no_memory_behind(server: RespServer) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    hostile = [
        b"*1000000000\r\n",
        b"*1\r\n$1000000\r\n" + b"x" * 500_000,
        b"*1\r\n" * 5000,
        b"*999\r\n" * 5000,
        b"x" * 20_000,
    ]

    def attack(times: int) -> None:
        for _ in range(times):
            for data in hostile:
                with server.connect() as peer, suppress(OSError):  # the server may close before all is sent
                    peer.send(data)
                    peer.end()
                    peer.rest()
        wait_until(lambda: server.call(lambda: len(server.connections)) == 0, 5, "all connections are closed")

    attack(20)
    before = resident()
    attack(100)
    assert resident() - before < 50_000_000
