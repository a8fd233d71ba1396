"""Distinct values and blocks through faults of a real Redis: a blocked client stays blocked, and nothing is made up."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ratebound import AsyncLimiter, Decision, Limiter, StorageError
from ratebound.storage.redis.storage import RedisStorage
from tests.faults.test_redis import (
    BACK,
    DEADLINE,
    SPARE,
    Fault,
    connections_are_refused,
    replies_never_come,
    the_server_is_killed,
    the_server_is_stopped,
)
from tests.proxy import Proxy
from tests.servers import Server

GUESSING = "1/hour; 2 strikes/hour block 1 hour then 1 day as guessing"
AT_ONCE = "1/hour; 1 strike/hour block 1 hour then 1 day as guessing"
VALUES = "2 distinct account/hour; 100/hour"
HOUR = 3_600
A_SECOND = 1.05  # strikes within one second are one

Make = Callable[..., "Subject"]


class Subject:
    """A limiter for threads, or for tasks on a loop of its own. Every call has to end by the deadline."""

    def __init__(self, kind: str, url: str, limits: str, **options: Any) -> None:
        options = {"deadline": DEADLINE, "workers": 4, **options}
        self.runner: asyncio.Runner | None = None
        self.limiter: Any
        if kind == "threads":
            self.limiter = Limiter(limits, storage=url, **options)
        else:
            self.limiter = AsyncLimiter(limits, storage=url, **options)
            self.runner = asyncio.Runner()

    def hit(self, key: str = "a", account: str = "") -> Decision:
        begin = time.monotonic()
        decision = self.do(self.limiter.hit, key, **({"values": {"account": account}} if account else {}))
        assert time.monotonic() - begin < DEADLINE + SPARE
        return decision  # type: ignore[no-any-return]

    def do(self, method: Any, *arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        return result if self.runner is None else self.runner.run(result)

    def rest(self, seconds: float = 0.05) -> None:
        if self.runner is None:
            time.sleep(seconds)
        else:
            self.runner.run(asyncio.sleep(seconds))

    def hit_when_it_is_back(self, key: str = "a", account: str = "") -> Decision:
        """The first decision of the storage."""
        ends = time.monotonic() + BACK
        while (decision := self.hit(key, account)).degraded is not None:
            assert time.monotonic() < ends, f"still {decision.degraded}"
            self.rest()
        return decision

    def close(self) -> None:
        self.do(self.limiter.close)
        if self.runner is not None:
            self.runner.close()


@pytest.fixture(params=["threads", "tasks"])
def make(request: pytest.FixtureRequest, between: Proxy) -> Iterator[Make]:
    made: list[Subject] = []

    def subject(limits: str, **options: Any) -> Subject:
        url = f"{between.url}?timeout={DEADLINE}&connect_timeout={DEADLINE}"
        made.append(Subject(request.param, url, limits, **options))
        return made[-1]

    yield subject
    for each in made:
        each.close()


def blocked(subject: Subject) -> Decision:
    """Let the client be blocked by the server, with one denial."""
    subject.hit()
    found = subject.hit()
    assert found.blocked
    assert found.degraded is None
    return found


def remaining(server: Server, limiter: Any, place: int, key: str = "a") -> int:
    """What the server itself says is left of a limit."""
    direct = RedisStorage(server.url)
    rows = direct.evaluate((((key, (limiter.limits[place],), 1, None, [(-1, 0, 0, 0)]),),), "peek")[0]
    direct.close()
    return rows[0][1]


@pytest.mark.parametrize(
    "fault", [connections_are_refused, replies_never_come, the_server_is_stopped], ids=lambda fault: fault.__name__
)
def test_a_blocked_client_stays_blocked_through_an_outage_and_after_it(
    make: Make, fault: Fault, server: Server, between: Proxy
) -> None:
    subject = make(AT_ONCE)
    blocked(subject)
    with fault(server, between):
        for _ in range(6):
            decision = subject.hit()
            assert decision.degraded
            assert decision.blocked
            assert decision.retry_after is not None
            assert HOUR - 60 < decision.retry_after <= HOUR
        assert subject.hit("b"), "a client that is not blocked has its share"
    decision = subject.hit_when_it_is_back()
    assert decision.blocked
    assert decision.retry_after is not None
    assert decision.retry_after <= HOUR, "the first block: nothing of the outage was a strike"


def test_a_server_that_comes_back_empty_decides_again(make: Make, server: Server, between: Proxy) -> None:
    subject = make(AT_ONCE)
    blocked(subject)
    with the_server_is_killed(server, between):
        for _ in range(5):
            assert subject.hit().blocked
    assert subject.hit_when_it_is_back(), "the server knows of no block"
    with connections_are_refused(server, between):
        assert not subject.hit().blocked, "and so this process does not, either"


@pytest.mark.parametrize("failure", ["open", "closed", "raise"])
def test_every_failure_mode_that_answers_keeps_a_block(
    make: Make, failure: str, server: Server, between: Proxy
) -> None:
    subject = make(AT_ONCE, failure=failure)
    blocked(subject)
    with connections_are_refused(server, between):
        for _ in range(5):
            if failure == "raise":
                with pytest.raises(StorageError):
                    subject.hit()
            else:
                assert subject.hit().blocked
                other = subject.hit("b")
                assert other.allowed is (failure == "open")
                assert other.unavailable is (failure == "closed")
                assert not other.blocked


def test_denials_and_results_of_an_outage_are_no_strikes(make: Make, server: Server, between: Proxy) -> None:
    subject = make(GUESSING)
    before = subject.hit()
    assert not subject.hit().blocked
    assert remaining(server, subject.limiter, 1) == 1, "one strike"
    with connections_are_refused(server, between):
        subject.do(subject.limiter.settle, before, cost=1, strike=True)
        for _ in range(3):
            for _ in range(3):
                assert not subject.hit().blocked
            subject.rest(A_SECOND / 2)
    subject.hit_when_it_is_back("other")
    assert remaining(server, subject.limiter, 1) == 1
    decision = subject.hit()
    assert decision.degraded is None
    assert decision.blocked, "the next denial by the server is the second strike"


def test_a_strike_whose_answer_is_lost_counts_where_it_was_made(make: Make, server: Server, between: Proxy) -> None:
    subject = make(AT_ONCE)
    subject.hit()
    with replies_never_come(server, between):
        decision = subject.hit()
        assert decision.degraded
        assert not decision.blocked, "nobody here has seen the block"
    found = subject.hit_when_it_is_back()
    assert found.blocked
    with connections_are_refused(server, between):
        assert subject.hit().blocked, "now it was seen"


def test_a_block_that_is_lifted_is_lifted_here(make: Make, server: Server, between: Proxy) -> None:
    subject = make(AT_ONCE)
    blocked(subject)
    subject.do(subject.limiter.reset, "a")
    with connections_are_refused(server, between):
        assert not subject.hit().blocked
        with pytest.raises(StorageError):
            subject.do(subject.limiter.reset, "a")


@pytest.mark.parametrize("fault", [connections_are_refused, the_server_is_killed], ids=lambda fault: fault.__name__)
def test_values_are_counted_here_and_not_written_back(make: Make, fault: Fault, server: Server, between: Proxy) -> None:
    subject = make(VALUES)
    assert subject.hit(account="alice").degraded is None
    with fault(server, between):
        found = [subject.hit(account=account) for account in ("bob", "carol", "dave", "bob", "alice")]
        assert [decision.allowed for decision in found] == [True, True, False, True, False]
        assert all(decision.degraded for decision in found)
    subject.hit_when_it_is_back("other", "alice")
    subject.rest(0.2)
    counted = 0 if fault is the_server_is_killed else 1
    assert remaining(server, subject.limiter, 0) == 2 - counted
    assert subject.hit(account="eve").degraded is None
