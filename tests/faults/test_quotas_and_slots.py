"""Quotas and slots through faults of a real Redis: no caller is told of them, and the server learns what it missed."""

import asyncio
import time
from typing import Any

import pytest

from ratebound import Decision, Limit, StorageError, parse_limit, parse_limits
from ratebound.extras import extras_of
from ratebound.limit import GRANT, Group, Mode
from ratebound.slots import slots_of
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import Blocking
from tests.faults.test_redis import (
    BACK,
    DEADLINE,
    SPARE,
    Fault,
    connections_are_refused,
    replies_never_come,
    the_server_is_stopped,
)
from tests.proxy import Proxy
from tests.servers import Server

SLOTS, MONTH = parse_limits("3 concurrent; 73050/calendar-month")  # a hundred an hour
FAULTS = [connections_are_refused, replies_never_come, the_server_is_stopped]


class Subject:
    """A guarded Redis storage, called by threads or by tasks. Every call has to end by the deadline."""

    def __init__(self, kind: str, url: str) -> None:
        self.storage: Any
        options: Any = {"deadline": DEADLINE, "workers": 1}
        if kind == "threads":
            self.storage = GuardedStorage(RedisStorage(url), **options)
        else:
            self.storage = Blocking(AsyncGuardedStorage(AsyncRedisStorage(url), **options))

    def hit(self, *limits: Limit, key: str = "a") -> Decision:
        return self.decide(((key, limits, 1, None, extras_of(key, limits)),))

    def decide(self, group: Group, mode: Mode = "spend") -> Decision:
        begin = time.monotonic()
        decision = Decision(group, self.storage.evaluate((group,), mode)[0])
        assert time.monotonic() - begin < DEADLINE + SPARE
        return decision

    def release(self, decision: Decision) -> None:
        self.decide(slots_of(decision.asks, -1), "force")

    def wait_until_it_is_back(self) -> None:
        ends = time.monotonic() + BACK
        while self.hit(parse_limit("1000/hour"), key="other").degraded is not None:
            assert time.monotonic() < ends
            self.rest()

    def rest(self) -> None:
        """Let the write-back run: of tasks, in their event loop."""
        if isinstance(self.storage, Blocking):
            self.storage._runner.run(asyncio.sleep(0.05))
        else:
            time.sleep(0.05)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_slots_are_shared_out_released_and_put_back_through_an_outage(
    kind: str, fault: Fault, server: Server, between: Proxy
) -> None:
    subject = Subject(kind, f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}")
    before = [subject.hit(SLOTS) for _ in range(2)]
    assert [decision.degraded for decision in before] == [None, None]
    with fault(server, between):
        during = [subject.hit(SLOTS) for _ in range(4)]
        assert [decision.allowed for decision in during] == [True, False, False, False], "its own slots count first"
        subject.release(before[0])
        last = subject.hit(SLOTS)
        assert last.degraded
        subject.release(during[0])
    subject.wait_until_it_is_back()
    direct = RedisStorage(server.url)
    ends, found = time.monotonic() + BACK, set[int]()
    while found != {_id(before[1]), _id(last)} and time.monotonic() < ends:
        subject.rest()
        found = {holder[0] for holder in direct.holders("a", SLOTS)}
    direct.close()
    assert found == {_id(before[1]), _id(last)}
    subject.storage.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_quota_is_granted_at_its_average_rate_and_written_back_in_full(
    kind: str, server: Server, between: Proxy
) -> None:
    subject = Subject(kind, f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}")
    subject.hit(MONTH)
    with connections_are_refused(server, between):
        granted = sum(subject.hit(MONTH).allowed for _ in range(150))
        assert 100 <= granted <= 110, "an hour's burst"
        with pytest.raises(StorageError):
            subject.decide((("a", (MONTH,), 10, None, [GRANT]),), "force")
    subject.wait_until_it_is_back()
    direct = RedisStorage(server.url)
    ends, used = time.monotonic() + BACK, 0
    while used < granted - 2 and time.monotonic() < ends:
        subject.rest()
        used = direct.evaluate(((("a", (MONTH,), 1, None, None),),), "peek")[0][0][7]
    direct.close()
    assert granted - 2 <= used <= granted + 1, "all but those of the first three that the server may have counted"
    subject.storage.close()


def _id(decision: Decision) -> int:
    extras = decision.asks[0][4]
    assert extras is not None
    return extras[0][0]
