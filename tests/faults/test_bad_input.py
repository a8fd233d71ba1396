"""Whatever comes in as a key, a cost or a group: a clear error, or a key like any other, and nothing else touched."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound import AsyncLimiter, Check, InvalidCost, InvalidKey, InvalidLimit, Limit, Limiter, parse_limit
from ratebound.limit import MAX_COUNT
from tests.servers import Server

STRANGE = {
    "empty": "",
    "NUL": "a\0b",
    "a line break, as if it were the protocol's": "a\r\n$3\r\nfoo\r\n",
    "a lone surrogate": "a\udc80",
    "braces, as if to choose a slot": "{other}user",
    "our own separators": "a;sliding-log;60000000:",
    "a megabyte": "x" * 1_000_000,
    "a megabyte that differs at the end": "x" * 1_000_000 + "y",
    "emoji": "👩‍👩‍👧",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
}


@pytest.fixture(params=["memory", "redis", "guarded by an open breaker"])
def storage(request: pytest.FixtureRequest, fresh_redis: Server) -> str:
    """Where the states are: here, there, or here because nobody is there."""
    return {"memory": "memory://", "redis": fresh_redis.url}.get(request.param, "redis://127.0.0.1:1")


@pytest.fixture
def limiter(storage: str) -> Iterator[Limiter]:
    with Limiter("2/day; 2/day burst 2", storage=storage) as limiter:
        yield limiter


def test_strange_keys_are_keys_like_any_other_each_with_a_quota_of_its_own(limiter: Limiter) -> None:
    for _ in range(2):
        assert all(limiter.hit(key) for key in STRANGE.values())
    assert not any(limiter.hit(key) for key in STRANGE.values())
    assert limiter.hit("a")


def test_strange_keys_are_keys_for_tasks_too(storage: str) -> None:
    async def main() -> None:
        async with AsyncLimiter("1/day", storage=storage) as limiter:
            assert all(await limiter.hit_many(STRANGE.values()))
            assert not any(await limiter.hit_many(STRANGE.values()))

    asyncio.run(main())


@pytest.mark.parametrize("key", [None, 42, b"user", ["user"], ("user",), object()])
def test_what_is_not_text_is_refused_and_charges_nobody(key: object, limiter: Limiter) -> None:
    with pytest.raises(InvalidKey, match="key must be text"):
        limiter.hit(key)  # type: ignore[arg-type]
    with pytest.raises(InvalidKey):
        limiter.hit_many(["first", key])  # type: ignore[list-item]
    assert limiter.peek("first").remaining == 2


@pytest.mark.parametrize("cost", [0, -1, 10**13, 10**400, 1.0, 0.5, float("nan"), float("inf"), "1", None, True, [1]])
def test_a_cost_that_is_none_is_refused_and_charges_nobody(cost: Any, limiter: Limiter) -> None:
    for call in (limiter.hit, limiter.peek, limiter.wait):
        with pytest.raises(InvalidCost, match="cost must be a whole number"):
            call("k", cost=cost)
    assert limiter.peek("k").remaining == 2


def test_the_largest_cost_is_answered(limiter: Limiter) -> None:
    decision = limiter.hit("k", cost=MAX_COUNT)
    assert not decision
    assert decision.retry_after is None
    assert limiter.peek("k").remaining == 2


@pytest.mark.parametrize("algorithm", ["gcra", "sliding-log"])
def test_ten_thousand_checks_in_a_group_are_one_decision(algorithm: str, storage: str) -> None:
    once = parse_limit(f"1/day {algorithm} as once")
    patient = f"{storage}?timeout=20" if storage.startswith("redis") else storage
    with Limiter("1/day", storage=patient, deadline=20) as limiter:
        checks = [Check(f"user:{number}", once) for number in range(10_000)]
        decision = limiter.check(checks)
        assert decision
        assert len(decision.outcomes) == 10_000
        fresh, used = Check("somebody else", once), checks[5_000]
        assert not limiter.check([fresh, used])
        assert limiter.check(fresh)


def test_a_group_of_nothing_is_refused(limiter: Limiter) -> None:
    with pytest.raises(InvalidKey):
        limiter.check([])
    assert limiter.hit_many([]) == []


def test_limits_that_no_number_can_hold_are_refused() -> None:
    for count, period in ((10**13, 1), (1, 10**18), (0, 1), (1, 0), (-1, 1), (2**63, 2**63)):
        with pytest.raises(InvalidLimit):
            Limit(count, period)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=40), min_size=2, max_size=2, unique=True))
def test_two_different_keys_are_never_one(redis_url_server: Server, pair: list[str]) -> None:
    for url in ("memory://", redis_url_server.url):
        with Limiter("1/day", storage=url) as limiter:
            for key in pair:
                if limiter.peek(key).remaining:
                    limiter.hit(key)
                else:
                    limiter.reset(key)
                    assert limiter.hit(key)
            limiter.reset(pair[0])
            assert not limiter.hit(pair[1])
            limiter.reset(pair[1])
