"""The connections themselves: none is lost for good, whatever happens to who waits for one, or to the loop it is of."""

import asyncio
import gc
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from ratebound import StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.redis import hash_slots
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from tests.servers import Server, wait_until

LIMITS = (parse_limit("1000/day"),)
ASKED: list[Group] = [(("k", LIMITS, 1, None, None),)]
ONE = "timeout=2&connect_timeout=2&pool=1"


def connections(server: Server) -> int:
    with server.client() as admin:
        return len(admin.client_list()) - 1


def test_a_thread_that_cannot_be_started_costs_no_connection(
    fresh_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = RedisStorage(f"{fresh_redis.url}?{ONE}")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageError, match="can't start new thread") as caught:
            storage.evaluate(ASKED)
    assert caught.value.undone
    assert storage.evaluate(ASKED)[0][0][0]
    storage.close()


def test_an_exception_out_of_a_signal_handler_while_one_waits_costs_no_connection(
    fresh_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Exception):
        pass

    class Interrupted:
        """A queue in which the first to wait is interrupted."""

        def __init__(self) -> None:
            self.queue: SimpleQueue[Any] = SimpleQueue()
            self.put = self.queue.put
            self.waits = 0

        def get_nowait(self) -> Any:
            return self.queue.get_nowait()

        def get(self, timeout: float | None = None) -> Any:
            self.waits += 1
            if self.waits == 1:
                raise Late
            return self.queue.get(timeout=timeout)

    storage = RedisStorage(f"{fresh_redis.url}?{ONE}")
    with monkeypatch.context() as patched:
        patched.setattr("ratebound.storage.redis.sync_connections.SimpleQueue", Interrupted)
        with pytest.raises(Late):
            storage.evaluate(ASKED)
    for _ in range(3):
        assert storage.evaluate(ASKED)[0][0][0]
    storage.close()


def test_forgetting_connections_while_they_are_used_loses_none(fresh_redis: Server) -> None:
    storage = RedisStorage(f"{fresh_redis.url}?timeout=5&connect_timeout=5&pool=2")
    stop, answers = threading.Event(), list[bool]()

    def work() -> None:
        while not stop.is_set():
            answers.append(storage.evaluate(ASKED, "peek")[0][0][0])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        storage._connections.forget()
    wait_until(lambda: len(answers) > 50, 20, "answers meanwhile")
    stop.set()
    for thread in threads:
        thread.join()
    assert all(answers)
    assert len(storage._connections._places) == len(storage._connections._idle) <= 2
    assert storage.evaluate(ASKED)[0][0][0]
    storage.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio says of each that nobody has closed it, which is true
def test_an_event_loop_that_is_gone_takes_its_connection_with_it(fresh_redis: Server) -> None:
    storage = AsyncRedisStorage(f"{fresh_redis.url}?{ONE}")
    for _ in range(5):
        asyncio.run(storage.evaluate(ASKED))
    assert len(storage.loops) == 1
    gc.collect()
    wait_until(lambda: connections(fresh_redis) <= 1, 10, "the connections of closed loops are closed")
    storage._loops.clear()
    gc.collect()
    wait_until(lambda: connections(fresh_redis) == 0, 10, "the last one, too")


def test_a_refund_that_fails_changes_neither_a_denial_nor_the_error_that_led_to_it() -> None:
    keys = Keys()
    names = iter(f"key:{number}" for number in range(10_000))
    first = next(names)
    second = next(name for name in names if keys.tag(name) != keys.tag(first))
    group = [(first, LIMITS, 1, None, None), (second, LIMITS, 1, None, None)]
    granted = (True, 9, 0, 100, 0, 5, 0, 0, None)
    denied = (False, 0, 7, 100, 0, 5, 0, 0, None)
    gone = StorageError("its node is gone", undone=True)

    def after_the_first_part() -> hash_slots.Rounds:
        rounds = hash_slots.decide(group, "spend", keys)
        next(rounds)
        rounds.send([[granted], [granted]])
        rounds.send([[granted]])
        return rounds

    rounds = after_the_first_part()
    rounds.send([[denied]])
    with pytest.raises(StopIteration) as done:
        rounds.throw(gone)
    assert done.value.value == [granted, denied]
    rounds = after_the_first_part()
    failed = StorageError("the second is gone", undone=True)
    rounds.throw(failed)
    with pytest.raises(StorageError) as caught:
        rounds.throw(gone)
    assert caught.value is failed
    assert not failed.undone, "the first part may still be charged"
