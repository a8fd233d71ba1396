"""Faults of a database in real time: answers by the deadline, no exception but StorageError, and no double charge."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError, parse_limit
from ratebound.limit import Failure, Group
from ratebound.storage.blame import Blameless, TooLate
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import Bound, StatementAnswer
from ratebound.storage.postgres.failure import ServerError
from ratebound.storage.postgres.pool import ThreadPool
from ratebound.storage.postgres.statements import COMMIT
from ratebound.storage.postgres.steps import Steps, run
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.storage.postgres.transactions import Transactions
from ratebound.testing import Blocking
from tests.databases import Postgres, postgres_server
from tests.postgres.tables import fresh_url, make_tables
from tests.proxy import Proxy
from tests.servers import wait_until

HOUR = parse_limit("1000/hour fixed-window")
SPARE = 2.0  # seconds, for a busy machine


def group(*keys: str, cost: int = 1) -> Group:
    return [(key, (HOUR,), cost, None, None) for key in keys]


def used(storage: Any, key: str) -> int:
    """The units that are charged."""
    return 1000 - int(storage.evaluate([group(key)], "peek")[0][0][1])


KINDS: dict[str, Callable[[str], Any]] = {
    "threads": PostgresStorage,
    "tasks": lambda url: Blocking(AsyncPostgresStorage(url)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One to break, for all tests of this module."""
    with postgres_server() as server:
        make_tables(server.url)
        yield server


@pytest.fixture(autouse=True)
def mended(server: Postgres) -> Iterator[None]:
    yield
    server.resume()
    if server.process.poll() is not None:
        server.start()


class PanickingLink:
    """A connection to a server that dies in a COMMIT, because it cannot flush its log."""

    def __init__(self) -> None:
        self.trips = 0

    def exchange(self, bound: Sequence[Bound], until: float) -> Steps[list[StatementAnswer]]:
        self.trips += 1
        if bound[-1] is COMMIT:
            raise ServerError("53100", "could not write to file: No space left on device", "PANIC")
        yield from ()
        return []


def test_a_panic_at_the_commit_leaves_it_unknown() -> None:
    link: Any = PanickingLink()
    flow = Transactions(read_url("postgresql://localhost/x"), None).resetting(group("a"))
    with pytest.raises(StorageError, match="unknown whether it committed") as caught:
        run(flow(link, time.monotonic() + 5))
    assert not caught.value.undone
    assert link.trips == 2


def test_threads_get_places_in_the_order_in_which_they_came() -> None:
    pool = ThreadPool(1)
    place = pool.take(0.0)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(pool.take(time.monotonic() + 30)))
    thread.start()
    wait_until(lambda: bool(pool._waiting), 20, "a thread waits")
    pool.give(place)
    with pytest.raises(StorageError, match="were in use"):
        pool.take(0.0)  # a thread that gives a place back, and wants it again, comes after those who wait
    thread.join(20)
    assert len(found) == 1
    pool.give(found[0])
    assert pool.take(0.0).clean
    assert not pool._waiting


def test_a_place_that_an_exception_has_lost_is_given_to_those_who_wait() -> None:
    pool = ThreadPool(1)
    places = [pool.take(0.0)]
    thread = threading.Thread(target=lambda: places.append(pool.take(time.monotonic() + 30)))
    thread.start()
    wait_until(lambda: bool(pool._waiting), 20, "a thread waits")
    places.pop(0)
    thread.join(20)
    assert len(places) == 1


def test_a_signal_handler_that_raises_at_any_moment_leaves_no_lock_held(server: Postgres) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    def work() -> None:
        while not stop.is_set():
            storage.evaluate([group("other", cost=0)], "peek")

    stop = threading.Event()
    interrupted = 0
    with closing(PostgresStorage(fresh_url(server, options="timeout=20&pool=2"))) as storage:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        before = signal.signal(signal.SIGALRM, ring)
        try:
            for number in range(400):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 40 * 0.00005)
                    for _ in range(50):
                        storage.evaluate([group("mine")], "peek")
                except Alarm:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, before)
            stop.set()
            for thread in threads:
                thread.join(20)
        assert interrupted > 0
        assert not any(thread.is_alive() for thread in threads)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds + SPARE


def again(call: Callable[[], Any]) -> Any:
    """What a call returns once the database is back."""
    ends = time.monotonic() + 20
    while True:
        try:
            return call()
        except StorageError:
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_a_killed_server_is_a_storage_error_and_a_started_one_goes_on(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server))) as storage:
        storage.evaluate([group("a")])
        server.kill()
        for mode in ("spend", "peek", "force"):
            with bounded(5), pytest.raises(StorageError, match="cannot be reached") as caught:
                storage.evaluate([group("a")], mode)
            assert caught.value.undone
            assert caught.value.outage
        for call in (lambda: storage.reset(group("a")), lambda: storage.read_document("x")):
            with bounded(5), pytest.raises(StorageError):
                call()
        server.start()
        assert again(lambda: storage.evaluate([group("a")]))[0][0][1] == 998


def test_a_restart_between_two_calls_is_not_noticed(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server))) as storage:
        for _ in range(3):
            storage.evaluate([group("a")])
        server.restart()
        assert storage.evaluate([group("a")])[0][0][1] == 996
        assert storage.read_document("x") == (0, b"")


def test_operators_do_not_notice_a_restart_either(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server))) as storage:
        storage.evaluate([group("a")])
        server.restart()
        storage.reset(group("a"))
        assert used(storage, "a") == 0
        server.restart()
        assert storage.write_document("x", b"1", 0)
        assert storage.read_document("x") == (1, b"1")


def test_a_server_that_ends_the_connection_is_not_noticed_either(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server))) as storage:
        storage.evaluate([group("a")])
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert storage.evaluate([group("a")])[0][0][1] == 998


def test_a_paused_server_is_too_late_and_nothing_was_charged(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server, options="timeout=0.2"))) as storage:
        again(lambda: storage.evaluate([group("a")]))
        server.pause()
        for _ in range(3):
            with bounded(0.2), pytest.raises(StorageError) as caught:
                storage.evaluate([group("a")])
            assert caught.value.undone
        server.resume()
        assert again(lambda: storage.evaluate([group("a")]))[0][0][1] == 998


@pytest.fixture
def between(server: Postgres) -> Iterator[Proxy]:
    found = Proxy(server)  # type: ignore[arg-type]
    yield found
    found.close()


def through(between: Proxy, server: Postgres, options: str) -> str:
    return fresh_url(server, options=options).replace(f":{server.port}/", f":{between.port}/")


def test_a_connection_that_is_cut_before_the_commit_is_undone_and_made_again(
    server: Postgres, between: Proxy, kind: Any
) -> None:
    with closing(kind(through(between, server, "timeout=5"))) as storage:
        storage.evaluate([group("a")])
        for place in (0, 1, 40):
            between.cut_reply(place)
            assert storage.evaluate([group("a")])[0][0][0], "it was tried again on a new connection"
            between.mend()
        assert used(storage, "a") == 4, "each is charged once"


def cut_the_answer_to_the_commit(between: Proxy, storage: Any, how: Callable[[], None]) -> None:
    """Let a fault begin when the decision is made, before its commit is sent."""
    inner = getattr(storage, "storage", storage)
    transactions: Any = inner._transactions
    decided = transactions._decided

    def cutting(*arguments: Any) -> Any:
        how()
        del transactions._decided
        return decided(*arguments)

    transactions._decided = cutting


def test_a_connection_that_is_cut_at_the_commit_leaves_the_charge_unknown_and_is_never_repeated(
    server: Postgres, between: Proxy, kind: Any
) -> None:
    with closing(kind(through(between, server, "timeout=5"))) as storage:
        storage.evaluate([group("a")])
        cut_the_answer_to_the_commit(between, storage, lambda: between.cut_reply(0))
        with pytest.raises(StorageError, match="unknown whether it committed") as caught:
            storage.evaluate([group("a")])
        assert not caught.value.undone
        between.mend()
        assert used(storage, "a") == 2, "here it did, and only once"


def test_an_answer_to_the_commit_that_comes_too_late_leaves_the_charge_unknown(
    server: Postgres, between: Proxy, kind: Any
) -> None:
    def mute() -> None:
        between.mute = True

    with closing(kind(through(between, server, "timeout=0.5"))) as storage:
        again(lambda: storage.evaluate([group("a")]))
        cut_the_answer_to_the_commit(between, storage, mute)
        with bounded(0.5), pytest.raises(TooLate, match="unknown whether it committed") as caught:
            storage.evaluate([group("a")])
        assert not caught.value.undone
        between.mute = False


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 200, b"Z", b"E\0\0\0\5\0", b"T\xff\xff\xff\xff"]
)
def test_garbage_instead_of_an_answer_is_a_storage_error_at_most(
    garbage: bytes, server: Postgres, between: Proxy, kind: Any
) -> None:
    with closing(kind(through(between, server, "timeout=1"))) as storage:
        again(lambda: storage.evaluate([group("a")]))
        between.garbage = garbage
        with bounded(1), suppress(StorageError):
            storage.evaluate([group("a")])
        between.mend()
        assert again(lambda: storage.evaluate([group("a")]))[0][0][0]


def test_more_calls_than_connections_wait_for_one_another(server: Postgres) -> None:
    with closing(PostgresStorage(fresh_url(server, options="timeout=10&pool=2"))) as storage:
        threads = [threading.Thread(target=storage.evaluate, args=([group("a")],)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert used(storage, "a") == 12
        with closing(server.connect()) as connection:
            count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            assert connection.execute(count).fetchone() == (3,), "two, and the one that counts them"


def test_calls_that_get_no_connection_in_time_are_undone_and_no_outage(server: Postgres) -> None:
    async def play() -> None:
        storage = AsyncPostgresStorage(fresh_url(server, options="timeout=0.3&pool=1"))
        await storage.connect()
        held = await storage._loop().pool.take(time.monotonic() + 1)
        with pytest.raises(StorageError, match="a larger pool") as caught:
            await storage.evaluate([group("a")])
        assert (caught.value.undone, caught.value.outage) == (True, False)
        storage._loop().pool.give(held)
        await storage.evaluate([group("a")])
        await storage.close()

    asyncio.run(play())


def test_a_cancelled_task_leaves_no_lock_and_no_connection_in_use(server: Postgres) -> None:
    async def play() -> None:
        storage = AsyncPostgresStorage(fresh_url(server, options="timeout=10&pool=2"))
        await storage.evaluate([group("a")])
        for turns in range(12):
            task = asyncio.ensure_future(storage.evaluate([group("a")]))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        before = (await storage.evaluate([group("a")], "peek"))[0][0][1]
        await asyncio.gather(*(storage.evaluate([group("a")]) for _ in range(5)))
        assert (await storage.evaluate([group("a")], "peek"))[0][0][1] == before - 5
        await storage.close()

    asyncio.run(play())


def test_a_blocked_event_loop_is_not_blamed_on_the_database(server: Postgres) -> None:
    async def play() -> None:
        storage = AsyncPostgresStorage(fresh_url(server, options="timeout=0.3"))
        await storage.connect()
        server.pause()
        task = asyncio.ensure_future(storage.evaluate([group("a")]))
        await asyncio.sleep(0.01)
        time.sleep(0.6)
        with pytest.raises(Blameless):
            await task
        server.resume()
        await storage.close()

    asyncio.run(play())


def test_a_database_that_is_serializable_and_read_only_by_default_is_overruled(server: Postgres, kind: Any) -> None:
    server.run(
        "ALTER DATABASE ratebound SET default_transaction_isolation = 'serializable'",
        "ALTER DATABASE ratebound SET default_transaction_read_only = on",
    )
    try:
        with server.connect() as connection:
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
            connection.execute("DELETE FROM ratebound_documents")
        secret = time.monotonic_ns()
        with closing(kind(f"{server.url}?timeout=20&secret={secret}")) as storage:
            hits: list[int] = []

            def work() -> None:
                for _ in range(10):
                    hits.append(storage.evaluate([group("a", "b")])[0][0][1])

            if isinstance(storage, PostgresStorage):
                threads = [threading.Thread(target=work) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert sorted(hits) == list(range(960, 1000))
            else:
                work()
            assert storage.write_document("x", b"1", 0)
            storage.reset(group("a"))
            assert used(storage, "a") == 0
    finally:
        with server.connect() as connection:
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
            connection.execute("ALTER DATABASE ratebound RESET ALL")


def test_missing_tables_say_which_command_makes_them(server: Postgres, kind: Any) -> None:
    url = server.new_database()
    with closing(kind(url.replace("ratebound@", "ratebound:hunter2@"))) as storage:
        for call in (
            lambda: storage.evaluate([group("a")]),
            lambda: storage.evaluate([group("a")], "peek"),
            lambda: storage.read_document("x"),
        ):
            with pytest.raises(StorageError, match="Run: ratebound storage init postgresql://127") as caught:
                again_if_late(call)
            assert "hunter2" not in str(caught.value)
            assert caught.value.undone
        make_tables(url)
        assert again(lambda: storage.evaluate([group("a")]))[0][0][0]


def again_if_late(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call()
        except TooLate:
            time.sleep(0.01)


def test_tables_of_a_later_version_are_left_alone(server: Postgres, kind: Any) -> None:
    url = server.new_database()
    make_tables(url)
    with server.connect(url.rpartition("/")[2]) as connection:
        connection.execute("UPDATE ratebound_schema SET version = 99")
    with (
        closing(kind(f"{url}?timeout=5")) as storage,
        pytest.raises(StorageError, match="have version 99, and this program knows version 1: upgrade Ratebound"),
    ):
        storage.evaluate([group("a")])


def test_a_user_without_privileges_is_told_which_ones_are_needed(server: Postgres, kind: Any) -> None:
    server.run("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    url = fresh_url(server).replace("ratebound@", "guest@")
    with closing(kind(url)) as storage, pytest.raises(StorageError, match="grant SELECT, INSERT, UPDATE and DELETE"):
        storage.evaluate([group("a")])
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest")
    with closing(kind(url)) as storage:
        assert storage.evaluate([group("a")])[0][0][0], "these are enough"
        assert storage.write_document("x", b"", 0)
        storage.reset(group("a"))
    server.run("DROP OWNED BY guest", "DROP ROLE guest")


def test_a_wrong_user_or_database_is_told_with_advice_and_without_the_password(server: Postgres, kind: Any) -> None:
    for url in (server.url.replace("ratebound@", "nobody:hunter2@"), f"{server.url}-nowhere?password=hunter2"):
        with (
            closing(kind(url + ("&" if "?" in url else "?") + "timeout=5")) as storage,
            pytest.raises(StorageError, match="does not exist.*create the user or the database") as caught,
        ):
            storage.evaluate([group("a")])
        assert "hunter2" not in str(caught.value)


def test_a_host_name_is_looked_up_within_the_deadline(server: Postgres, kind: Any) -> None:
    with closing(kind(fresh_url(server).replace("127.0.0.1", "localhost"))) as storage:
        assert storage.evaluate([group("a")])[0][0][0]
    with closing(kind("postgresql://no-such-host.invalid/x?timeout=0.5")) as storage:
        with bounded(0.5), pytest.raises(StorageError) as caught:
            storage.evaluate([group("a")])
        assert caught.value.undone


def test_a_damaged_state_fails_its_own_group_only(server: Postgres) -> None:
    with closing(PostgresStorage(fresh_url(server))) as storage:
        storage.evaluate([group("a"), group("b")])
        name = storage._transactions._names.of("a", HOUR.numbers)
        with server.connect() as connection:
            connection.execute("UPDATE ratebound_states SET state = '\\x0102' WHERE name = %s", (name,))
        with pytest.raises(StorageError, match="damaged|format") as caught:
            storage.evaluate([group("a"), group("b")])
        assert caught.value.answers is not None
        assert isinstance(caught.value.answers[0], StorageError)
        assert caught.value.answers[1][0][1] == 998
        assert used(storage, "b") == 2
        storage.reset(group("a"))
        assert used(storage, "a") == 0


MODES = {"local": True, "open": True, "closed": False}


@pytest.mark.parametrize("failure", MODES)
def test_the_failure_mode_answers_while_the_server_is_down_and_local_units_are_written_back(
    failure: Failure, server: Postgres
) -> None:
    url = fresh_url(server, options="timeout=1")
    with Limiter(HOUR, storage=url, failure=failure, workers=1) as limiter, closing(PostgresStorage(url)) as other:
        assert again(lambda: limiter.hit("a")).degraded is None
        server.kill()
        with bounded(4):
            decisions = [limiter.hit("a") for _ in range(5)]
        assert {bool(decision) for decision in decisions} == {MODES[failure]}
        assert all(decision.degraded for decision in decisions)
        server.start()
        ends = time.monotonic() + 20
        while limiter.hit("a").degraded is not None:
            assert time.monotonic() < ends
            time.sleep(0.05)
        charged = 5 if failure == "local" else 0
        while again(lambda: used(other, "a")) < 2 + charged:
            assert time.monotonic() < ends, "what was granted here is charged there"
            limiter.hit("b")
            time.sleep(0.02)


def test_an_async_limiter_survives_a_paused_server(server: Postgres) -> None:
    async def play() -> None:
        async with AsyncLimiter(HOUR, storage=fresh_url(server, options="timeout=0.3"), workers=1) as limiter:
            while (await limiter.hit("a")).degraded is not None:
                await asyncio.sleep(0.05)
            server.pause()
            with bounded(0.3):
                answers = await asyncio.gather(*(limiter.hit("a") for _ in range(20)))
            assert all(answer.degraded for answer in answers)
            server.resume()
            ends = time.monotonic() + 20
            while (await limiter.hit("a")).degraded is not None:
                assert time.monotonic() < ends
                await asyncio.sleep(0.05)

    asyncio.run(play())


def test_an_exception_of_the_programs_own_is_raised_as_it_is_and_breaks_nothing(server: Postgres) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    with closing(PostgresStorage(fresh_url(server, options="timeout=20&pool=1"))) as storage:
        storage.evaluate([group("a")])
        before = signal.signal(signal.SIGALRM, ring)
        try:
            server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Alarm):
                storage.evaluate([group("a")])
        finally:
            signal.signal(signal.SIGALRM, before)
        server.resume()
        assert storage.evaluate([group("a")])[0][0][1] == 998, "nothing was charged, and the connection's place is free"


def test_a_connection_that_was_idle_for_long_is_checked_before_it_is_used(
    server: Postgres, between: Proxy, kind: Any
) -> None:
    with closing(kind(through(between, server, "timeout=8"))) as storage:
        storage.evaluate([group("a")])
        inner = getattr(storage, "storage", storage)
        pool = inner._pool if isinstance(inner, PostgresStorage) else next(iter(inner._loops.values())).pool
        (link,) = pool._links._idle
        link.used_at -= 60
        assert storage.evaluate([group("a")])[0][0][1] == 998
        assert pool._links._idle == [link], "it answered"
        link.used_at -= 60
        between.forget_clients()  # as a firewall does: what is sent arrives nowhere, and nobody is told
        assert storage.evaluate([group("a")])[0][0][1] == 997, "within the deadline, on a new connection"
        assert link not in pool._links._idle
