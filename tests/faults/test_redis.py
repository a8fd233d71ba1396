"""Real faults of a real Redis: every one is survived in time, told of, and over when the fault is.

Each fault is a context: inside it the server or the way to it is broken. The tests of a fault are one sentence, said
for threads and for tasks.
"""

import asyncio
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
import redis

from ratebound import AsyncLimiter, Decision, Limiter, StorageError
from ratebound.events import Degraded, Event, Recovered
from tests.faults.test_processes import FORK, run
from tests.proxy import Proxy
from tests.servers import HOST, Server

DEADLINE = 0.3
SPARE = 1.0  # seconds, for a busy machine
BACK = 15.0  # seconds within which a storage decides again; in truth the probe interval, and a restart of the server
COUNT = 100
UNKNOWN = "does-not-exist.invalid"

Fault = Callable[[Server, Proxy], AbstractContextManager[object]]


# Faults that last until they are mended


@contextmanager
def replies_never_come(server: Server, between: Proxy) -> Iterator[None]:
    between.mute = True
    yield
    between.mute = False
    between.drop()


@contextmanager
def replies_come_too_late(server: Server, between: Proxy) -> Iterator[None]:
    between.delay = 3 * DEADLINE
    yield
    between.delay = 0.0
    between.drop()


@contextmanager
def connections_are_refused(server: Server, between: Proxy) -> Iterator[None]:
    between.refuse = True
    between.drop()
    yield
    between.refuse = False


@contextmanager
def the_server_is_killed(server: Server, between: Proxy) -> Iterator[None]:
    server.kill()
    yield
    server.spawn()
    server.wait_until_up()


@contextmanager
def the_server_is_stopped(server: Server, between: Proxy) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


@contextmanager
def clients_are_paused(server: Server, between: Proxy) -> Iterator[None]:
    with server.client() as admin:
        admin.execute_command("CLIENT PAUSE", 60_000, "WRITE")  # ALL would hold up the one who unpauses, too
        yield
        admin.execute_command("CLIENT UNPAUSE")


@contextmanager
def a_script_runs_for_too_long(server: Server, between: Proxy) -> Iterator[None]:
    with server.client() as admin:
        admin.config_set("busy-reply-threshold", 100)

        def hog() -> None:
            with server.client() as client, suppress(redis.RedisError):
                client.eval("while true do end", 0)

        thread = threading.Thread(target=hog)
        thread.start()
        while _answers(server):
            time.sleep(0.01)
        yield
        admin.script_kill()
        thread.join()


@contextmanager
def memory_is_full(server: Server, between: Proxy) -> Iterator[None]:
    with server.client() as admin:
        admin.config_set("maxmemory", 1)
        yield
        admin.config_set("maxmemory", 0)


@contextmanager
def there_are_too_many_clients(server: Server, between: Proxy) -> Iterator[None]:
    with server.client() as admin:
        admin.config_set("maxclients", 1)
        between.drop()
        yield
        admin.config_set("maxclients", 1_000)


@contextmanager
def every_reply_is_garbage(server: Server, between: Proxy) -> Iterator[None]:
    between.garbage = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    between.lasting = True
    yield
    between.mend()


@contextmanager
def every_reply_is_cut(server: Server, between: Proxy) -> Iterator[None]:
    between.cut_reply(3)
    between.lasting = True
    yield
    between.mend()


LASTING: list[Fault] = [
    replies_never_come,
    replies_come_too_late,
    connections_are_refused,
    the_server_is_killed,
    the_server_is_stopped,
    clients_are_paused,
    a_script_runs_for_too_long,
    memory_is_full,
    there_are_too_many_clients,
    every_reply_is_garbage,
    every_reply_is_cut,
]


# Faults of a moment


def cut_in_mid_reply(between: Proxy) -> None:
    between.cut_reply(5)


def cut_before_a_reply(between: Proxy) -> None:
    between.cut_reply(0)


def one_garbage_reply(between: Proxy) -> None:
    between.garbage = b"\x00\xff garbage \r\n$-5\r\n"


def one_reply_of_another_shape(between: Proxy) -> None:
    between.garbage = b"*1\r\n*1\r\n:7\r\n"


def all_connections_dropped(between: Proxy) -> None:
    between.drop()


def half_closed_while_idle(between: Proxy) -> None:
    between.half_close()


def half_closed_before_a_reply(between: Proxy) -> None:
    between.half_close_next = True


MOMENTS = [
    cut_in_mid_reply,
    cut_before_a_reply,
    one_garbage_reply,
    one_reply_of_another_shape,
    all_connections_dropped,
    half_closed_while_idle,
    half_closed_before_a_reply,
]


def _answers(server: Server) -> bool:
    with server.client(socket_timeout=0.05) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


class Subject:
    """A limiter for threads, or one for tasks on a loop of its own, behind a proxy."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.events: list[Event] = []
        options = {"deadline": DEADLINE, "listeners": [self.events.append], **options}
        self.runner: asyncio.Runner | None = None
        self.limiter: Any
        if kind == "threads":
            self.limiter = Limiter(f"{COUNT}/hour", storage=url, **options)
        else:
            self.limiter = AsyncLimiter(f"{COUNT}/hour", storage=url, **options)
            self.runner = asyncio.Runner()
        self.slowest = 0.0

    def hit(self, key: str = "a") -> Decision:
        begin = time.monotonic()
        decision: Decision = self._do(self.limiter.hit, key)
        self.slowest = max(self.slowest, time.monotonic() - begin)
        return decision

    def peek(self, key: str = "a") -> Decision:
        return self._do(self.limiter.peek, key)  # type: ignore[no-any-return]

    def hits_until_it_is_back(self) -> int:
        """How many were granted before the storage decided again, that one included."""
        ends, granted = time.monotonic() + BACK, 0
        while True:
            decision = self.hit()
            granted += decision.allowed
            if decision.degraded is None:
                return granted
            assert time.monotonic() < ends, f"still {decision.degraded}"
            self.rest(0.05)

    def rest(self, seconds: float) -> None:
        if self.runner is None:
            time.sleep(seconds)
        else:
            self.runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self._do(self.limiter.close)
        if self.runner is not None:
            self.runner.close()

    def _do(self, method: Any, *arguments: Any) -> Any:
        result = method(*arguments)
        return result if self.runner is None else self.runner.run(result)


@pytest.fixture(params=["threads", "tasks"])
def subject(request: pytest.FixtureRequest, between: Proxy) -> Iterator[Subject]:
    found = Subject(request.param, f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}")
    yield found
    found.close()


def kinds(subject: Subject) -> list[type]:
    return [type(event) for event in subject.events if isinstance(event, Degraded | Recovered)]


@pytest.mark.parametrize("fault", LASTING, ids=lambda fault: fault.__name__)
def test_decisions_go_on_in_time_while_it_lasts_and_the_storage_decides_again_after(
    fault: Fault, subject: Subject, server: Server, between: Proxy
) -> None:
    granted = sum(subject.hit().allowed for _ in range(5))
    assert (granted, subject.hit("warm").degraded) == (5, None)
    with fault(server, between):
        subject.slowest = 0.0
        decisions = [subject.hit() for _ in range(12)]
        granted += sum(decision.allowed for decision in decisions)
        assert all(decision.degraded for decision in decisions), [decision.degraded for decision in decisions]
        assert all(decision.allowed for decision in decisions)
        assert subject.slowest < DEADLINE + SPARE
        assert kinds(subject) == [Degraded]
        subject.rest(1.1)  # a probe or two that fail
        assert subject.hit().degraded
        granted += 1
        assert kinds(subject) == [Degraded]
    granted += subject.hits_until_it_is_back()
    subject.rest(0.3)  # written back
    assert kinds(subject) == [Degraded, Recovered]
    granted += sum(subject.hit().allowed for _ in range(3))
    left = subject.peek()
    assert left.degraded is None
    recovered = next(event for event in subject.events if isinstance(event, Recovered))
    assert recovered.written_back > 0
    assert COUNT - granted <= left.remaining <= COUNT - recovered.written_back - 3
    assert subject.slowest < DEADLINE + SPARE


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_moment_costs_one_decision_at_most_and_leaves_no_trace(
    moment: Callable[[Proxy], None], subject: Subject, between: Proxy
) -> None:
    for _ in range(3):
        assert subject.hit().degraded is None
    moment(between)
    decisions = [subject.hit() for _ in range(10)]
    between.mend()
    assert all(decision.allowed for decision in decisions)
    assert sum(decision.degraded is not None for decision in decisions) <= 1
    assert decisions[-1].degraded is None
    assert subject.slowest < DEADLINE + SPARE
    subject.rest(0.2)
    assert COUNT - 13 <= subject.peek().remaining <= COUNT - 12
    assert kinds(subject) == []


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_name_that_is_not_found_and_a_port_where_nobody_listens_are_outages(
    kind: str, fresh_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def the_name_is_made_known() -> None:
        def found(host: Any, *rest: Any, **options: Any) -> Any:
            return look_up(HOST if host == UNKNOWN else host, *rest, **options)

        monkeypatch.setattr(socket, "getaddrinfo", found)

    def the_server_comes_up() -> None:
        fresh_redis.spawn()
        fresh_redis.wait_until_up()

    for host, mend in ((UNKNOWN, the_name_is_made_known), (HOST, the_server_comes_up)):
        subject = Subject(kind, f"redis://{host}:{fresh_redis.port}?timeout={DEADLINE}&connect_timeout={DEADLINE}")
        if host == HOST:
            fresh_redis.kill()
        decisions = [subject.hit() for _ in range(6)]
        assert all(decision.allowed and decision.degraded for decision in decisions)
        assert subject.slowest < DEADLINE + SPARE
        assert kinds(subject) == [Degraded]
        mend()
        subject.hits_until_it_is_back()
        subject.rest(0.3)  # written back
        assert kinds(subject) == [Degraded, Recovered]
        subject.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_server_that_is_down_at_the_start_is_used_from_when_it_comes_up(kind: str, fresh_redis: Server) -> None:
    fresh_redis.kill()
    subject = Subject(kind, fresh_redis.url)
    assert all(subject.hit().degraded for _ in range(5))
    fresh_redis.spawn()
    fresh_redis.wait_until_up()
    subject.hits_until_it_is_back()
    subject.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_every_failure_mode_with_a_server_that_hangs(kind: str, server: Server, between: Proxy) -> None:
    for failure in ("open", "closed", "raise"):
        subject = Subject(kind, f"{between.url}?timeout={DEADLINE}&prefix={failure}", failure=failure)
        assert subject.hit().degraded is None
        with replies_never_come(server, between):
            for _ in range(5):
                if failure == "raise":
                    with pytest.raises(StorageError):
                        subject.hit()
                else:
                    decision = subject.hit()
                    assert decision.degraded
                    assert (decision.allowed, decision.unavailable) == ((failure == "open"), (failure == "closed"))
        assert subject.slowest < DEADLINE + SPARE
        ends = time.monotonic() + BACK
        while time.monotonic() < ends:
            with suppress(StorageError):
                if subject.hit().degraded is None:
                    break
            subject.rest(0.05)
        assert subject.hit().degraded is None
        subject.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_foreign_value_under_one_key_degrades_that_key_alone(kind: str, server: Server) -> None:
    prefix = f"foreign-{kind}-"
    subject = Subject(kind, f"{server.url}?prefix={prefix}")
    subject.hit("spoiled")
    with server.client() as admin:
        (name,) = admin.scan_iter(f"{prefix}*")
        admin.delete(name)
        admin.hset(name, "a", "b")
    for _ in range(5):
        assert subject.hit("spoiled").degraded
        assert subject.hit("sound").degraded is None
    assert kinds(subject) == []
    subject.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_reset_in_an_outage_says_so(kind: str, server: Server, between: Proxy) -> None:
    subject = Subject(kind, f"{between.url}?timeout={DEADLINE}")
    subject.hit()
    with replies_never_come(server, between):
        for _ in range(5):
            with pytest.raises(StorageError):
                subject._do(subject.limiter.reset, "a")
    subject.hits_until_it_is_back()
    subject._do(subject.limiter.reset, "a")
    assert subject.peek().remaining == COUNT
    subject.close()


def test_a_client_of_redis_py_is_a_storage(server: Server) -> None:
    with server.client() as client, Limiter("2/hour as of-client", storage=client) as limiter:
        assert [limiter.hit("a").allowed for _ in range(3)] == [True, True, False]
        assert limiter.hit("a").degraded is None

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with client, AsyncLimiter("2/hour as of-client", storage=client) as limiter:
            assert not await limiter.hit("a")
            assert await limiter.hit("b")

    asyncio.run(main())


def test_a_limiter_made_before_a_fork_works_in_the_child(server: Server) -> None:
    program = """
    import asyncio
    from ratebound import AsyncLimiter
    limiter = Limiter("6/hour", storage=sys.argv[1])
    tasks = AsyncLimiter("6/hour", storage=sys.argv[1])
    async def hit():
        async with tasks:
            return await tasks.hit("a")
    def hits():
        for decision in (limiter.hit("a"), asyncio.run(hit())):
            assert decision and decision.degraded is None, decision.degraded
    hits()
    def child():
        hits()
        limiter.close()
        print("child well")
    in_child(child)
    hits()
    assert not limiter.hit("a")
    print("parent well")
    """
    url = f"{server.url}?prefix=fork&timeout=5&connect_timeout=5"
    assert run(textwrap.dedent(FORK) + textwrap.dedent(program), url) == "child well\nparent well\n"


def test_closing_in_an_outage_is_quick(server: Server, between: Proxy) -> None:
    for kind in ("threads", "tasks"):
        subject = Subject(kind, f"{between.url}?timeout={DEADLINE}")
        subject.hit()
        with replies_never_come(server, between):
            subject.hit()
            begin = time.monotonic()
            subject.close()
            assert time.monotonic() - begin < DEADLINE + 2 * SPARE
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ratebound-write")]
