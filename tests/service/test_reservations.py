"""Signed tokens: a decision that is rebuilt from one is settled as the original would be, once, by anybody who knows
the secret."""

import asyncio
import base64
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound import AsyncLimiter, Limiter
from ratebound.clock import SECOND
from ratebound.decider import AsyncDecider
from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.limit import Limit, Slice, limit_set
from ratebound.lowered import LoweredLimits, lowered
from ratebound.notation import parse_limits
from ratebound.outcome import DegradedRows
from ratebound.service.reservations import (
    ExpiredToken,
    InvalidToken,
    SignedTokens,
    TokenUse,
    UsedToken,
    _once,
)
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock
from tests.servers import Server
from tests.service.http_calls import SECRET, run

TEXTS = [
    "7/second burst 7",
    "30/minute burst 10 gcra",
    "30/minute burst 10 leaky-bucket",
    "20/minute fixed-window",
    "20/minute sliding-log",
    "200/minute sliding-counter",
    "20000/hour sliding-log large as long",
    "50/calendar-day in Europe/Berlin as day",
    "50/calendar-month from 15 over allow as bill",
    "20/day fixed-window over allow as metered",
    "3 concurrent for 10 minutes",
    "2 concurrent as more",
    "9 distinct account/hour",
    "3 strikes/hour block 5 minutes then 1 hour forget 2 days",
]


def tokens() -> SignedTokens:
    return SignedTokens([SECRET])


History = tuple[str, int, list[int], float, int, bool]


@st.composite
def histories(draw: Any) -> History:
    texts = draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True))
    costs = draw(st.lists(st.integers(1, 9), max_size=4))
    return (
        "; ".join(texts),
        draw(st.integers(1, 6)),
        costs,
        draw(st.sampled_from([0.0, 0.5, 3.0, 70.0])),
        draw(st.integers(0, 12)),
        draw(st.booleans()),
    )


def values_for(text: str) -> dict[str, str] | None:
    return {"account": "a"} if "distinct" in text else None


@given(histories())
def test_a_decision_from_a_token_is_settled_as_the_original(
    history: tuple[str, int, list[int], float, int, bool],
) -> None:
    text, cost, others, pause, final, strike = history

    async def settled(by_token: bool) -> list[Any]:
        clock = FakeClock()
        storage = MemoryStorage(clock=clock)
        limiter = AsyncLimiter(text, storage=storage)
        values = values_for(text)
        decision = await limiter.hit("k", cost=cost, values=values)
        clock.advance(pause)
        for other in others:
            await limiter.hit("k", cost=other, values=values)
        found: list[Any] = []
        if by_token and decision.allowed:
            made = tokens()
            use = TokenUse(AsyncDecider(storage), made.maker)
            content = made.read("settle", made.make("settle", [decision], 3600))
            (after,) = await use.settle(content, final, strike)
        else:
            after = await limiter.settle(decision, cost=final, strike=strike)
        found += [
            after.allowed,
            after.final,
            list(map(tuple, after.rows)),
            after.limits,
            [ask[2] for ask in after.asks],
        ]
        if by_token and decision.allowed:
            await use.release(made.read("release", made.make_release([decision])))
        else:
            await limiter.release(decision)
        found += [await limiter.usage("k"), len(await limiter.holders("k"))]
        clock.advance(1)
        found.append(list(map(tuple, (await limiter.peek("k", values=values)).rows)))
        return found

    assert asyncio.run(settled(True)) == asyncio.run(settled(False))


@pytest.fixture(params=["memory", "shm", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "shm":
        yield request.getfixturevalue("zone_url")
    else:
        yield request.getfixturevalue("redis_url_server").url


@pytest.mark.parametrize("text", TEXTS)
def test_every_kind_of_limit_is_settled_and_undone_on_every_storage(url: str, text: str) -> None:
    name = uuid.uuid4().hex
    slow = text.replace("/second", "/day").replace("/minute", "/day")  # so that nothing comes back meanwhile

    async def main() -> None:
        async with AsyncLimiter(slow, storage=url) as limiter:
            made = tokens()
            use = TokenUse(limiter._decider, made.maker)
            values = values_for(text)

            async def used(key: str) -> list[int]:
                return [one.used for one in await limiter.usage(name + key)]

            for final in (0, 3, 6):
                one = await limiter.hit(f"{name}a{final}", cost=3, values=values)
                other = await limiter.hit(f"{name}b{final}", cost=3, values=values)
                content = made.read("settle", made.make("settle", [one], 60))
                (after,) = await use.settle(content, final)
                expected = await limiter.settle(other, cost=final)
                assert await used(f"a{final}") == await used(f"b{final}")
                assert after.limits == expected.limits == list(limiter.limits)
                with pytest.raises(UsedToken):
                    await use.settle(content, final)
                await use.release(made.read("release", made.make_release([one])))
                await limiter.release(other)
                assert await used(f"a{final}") == await used(f"b{final}")
            decision = await limiter.hit(f"{name}c", cost=3, values=values)
            content = made.read("reservation", made.make("reservation", [decision], 60))
            await use.undo(content)
            assert await used("c") == [0] * len(limiter.limits)
            with pytest.raises(UsedToken):
                await use.undo(content)

    run(main)


def test_histories_end_the_same_by_token_and_by_object_on_every_storage(url: str) -> None:
    @settings(max_examples=40)
    @given(histories())
    def test(history: History) -> None:
        text, cost, others, _, final, strike = history
        slow = text.replace("/second", "/day").replace("/minute", "/day")
        values = values_for(text)

        async def ended(limiter: AsyncLimiter, key: str, by_token: bool) -> list[Any]:
            decision = await limiter.hit(key, cost=cost, values=values)
            for other in others:
                await limiter.hit(key, cost=other, values=values)
            if by_token and decision.allowed:
                made = tokens()
                use = TokenUse(limiter._decider, made.maker)
                settle, release = made.make("settle", [decision], 3600), made.make_release([decision])
                (after,) = await use.settle(made.read("settle", settle), final, strike)
                await use.release(made.read("release", release))
            else:
                after = await limiter.settle(decision, cost=final, strike=strike)
                await limiter.release(decision)
            usage = [(one.used, one.remaining, one.blocked) for one in await limiter.usage(key)]
            peeked = [row[:2] for row in (await limiter.peek(key, values=values)).rows]
            return [after.allowed, [row[:2] for row in after.rows], after.limits, usage, peeked]

        async def main() -> None:
            name = uuid.uuid4().hex
            async with AsyncLimiter(slow, storage=url) as limiter:
                assert await ended(limiter, name + "a", True) == await ended(limiter, name + "b", False)

        run(main)

    test()


@given(st.sampled_from(TEXTS), st.integers(1, 19), st.sampled_from(["", "open", "closed", "raise", "local"]))
def test_a_token_carries_limits_as_they_are(text: str, step: int, failure: str) -> None:
    found = limit_set(parse_limits(text))
    (limit,) = found
    rows = [(True, 1, 0, 0, 0, 0, 0, 0, None)]
    changed = Limit(*(*limit.__reduce__()[1][:6], failure, *limit.__reduce__()[1][7:]))  # type: ignore[index]
    for limits in (found, (changed,), lowered(found, step)):
        made = tokens()
        decision = Decision([("k", limits, 1, None, None)], rows)
        read = made.read("settle", made.make("settle", [decision], 60)).decisions[0].decision()
        assert read.limits == list(limits)
        assert [one.failure for one in read.limits] == [one.failure for one in limits]
        assert [one.scope for one in read.limits] == [one.scope for one in limits]
        if isinstance(limits, LoweredLimits):
            rebuilt = read.asks[0][1]
            assert isinstance(rebuilt, LoweredLimits)
            assert rebuilt.configured == limits.configured


def test_a_token_carries_what_the_notation_has_no_words_for() -> None:
    plain = Limit(100, 60_000_000, warn=0.8, slice=Slice(0.1, 500_000), failure="open")
    slots = Limit(3, algorithm="concurrent", retry_us=5_000_000)
    cached = Limit(5, 60_000_000, deny_cache=True, name="cached")
    made = tokens()
    decision = Decision([("k", (plain, slots, cached), 1, None, None)], [(True, 1, 0, 0, 0, 0, 0, 0, None)] * 3)
    read = made.read("settle", made.make("settle", [decision], 60)).decisions[0].decision()
    assert [limit.__reduce__() for limit in read.limits] == [limit.__reduce__() for limit in (plain, slots, cached)]


def test_a_token_that_was_changed_is_refused() -> None:
    made = tokens()
    token = made.make("settle", [Limiter("5/minute").hit("k")], 60)
    raw = bytearray(base64.urlsafe_b64decode(token[4:] + "=" * (-len(token[4:]) % 4)))
    for place in range(0, len(raw), 3):
        changed = bytes([*raw[:place], raw[place] ^ 1, *raw[place + 1 :]])
        with pytest.raises(InvalidToken):
            made.read("settle", "rb1." + base64.urlsafe_b64encode(changed).decode().rstrip("="))
    for text in ("", "rb1.", "rb2." + token[4:], token[:-5], token[4:], "rb1.é", "rb1.%", "rb1.A"):
        with pytest.raises(InvalidToken):
            made.read("settle", text)
    assert made.read("settle", token).decisions


def test_a_token_of_another_version_is_refused() -> None:
    made = tokens()
    decision = Limiter("5/minute").hit("k")
    token = made.make("settle", [decision], 60)
    raw = base64.urlsafe_b64decode(token[4:] + "=" * (-len(token[4:]) % 4))[32:]
    for payload in (b"", b"\x90", raw[:-1], raw.replace(b"5/minute", b"5/minutf")):
        signed = made._mac(made._keys[0], payload) + payload
        with pytest.raises(InvalidToken):
            made.read("settle", "rb1." + base64.urlsafe_b64encode(signed).decode().rstrip("="))


def test_the_first_secret_signs_and_all_verify() -> None:
    old, new = b"o" * 32, b"n" * 32
    decision = Limiter("5/minute").hit("k")
    before, after = SignedTokens([old]), SignedTokens([new, old])
    assert after.read("settle", before.make("settle", [decision], 60)).decisions
    with pytest.raises(InvalidToken):
        before.read("settle", after.make("settle", [decision], 60))
    with pytest.raises(InvalidToken):
        SignedTokens([new]).read("settle", before.make("settle", [decision], 60))


@pytest.mark.parametrize("secrets", [[], [b"short"], [b"x" * 32, b""], ["x" * 32]])
def test_a_secret_that_is_too_short_is_refused(secrets: Any) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        SignedTokens(secrets)


def test_a_secret_is_not_shown() -> None:
    assert repr(tokens()) == "SignedTokens(1 secrets)"


def test_two_instances_use_a_token_once_between_them(redis_url_server: Server) -> None:
    name = uuid.uuid4().hex

    async def main() -> None:
        async with (
            AsyncLimiter("100/minute", storage=redis_url_server.url) as one,
            AsyncLimiter("100/minute", storage=redis_url_server.url) as two,
        ):
            decision = await one.hit(name, cost=10)
            token = tokens().make("reservation", [decision], 60)
            uses = [TokenUse(limiter._decider, tokens().maker) for limiter in (one, two) * 5]
            results = await asyncio.gather(
                *(use.settle(tokens().read("reservation", token), 4) for use in uses), return_exceptions=True
            )
            assert sum(isinstance(result, list) for result in results) == 1
            assert sum(isinstance(result, UsedToken) for result in results) == 9
            assert (await two.peek(name)).remaining == 96

    run(main)


def test_without_the_storage_a_token_is_not_used(fresh_redis: Server) -> None:
    async def main() -> None:
        async with AsyncLimiter("100/minute", storage=fresh_redis.url, deadline=0.2) as limiter:
            made = tokens()
            use = TokenUse(limiter._decider, made.maker)
            content = made.read("settle", made.make("settle", [await limiter.hit("k", cost=10)], 60))
            fresh_redis.kill()
            for _ in range(3):
                with pytest.raises(StorageError):
                    await use.settle(content, 1)

    run(main)


def test_a_process_settles_what_it_granted_without_the_storage_and_another_charges_only_more(
    fresh_redis: Server,
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"storage": fresh_redis.url, "deadline": 0.2, "workers": 1}
        async with AsyncLimiter("100/minute", **options) as one, AsyncLimiter("100/minute", **options) as two:
            fresh_redis.kill()
            decision = await one.hit("k", cost=10)
            assert decision.degraded
            made = tokens()
            ours, theirs = TokenUse(one._decider, made.maker), TokenUse(two._decider, tokens().maker)
            content = made.read("settle", made.make("settle", [decision], 60))
            rows = content.decisions[0].decision().rows
            assert isinstance(rows, DegradedRows)
            assert isinstance(decision.rows, DegradedRows)
            assert (rows.reason, rows.granted) == (decision.rows.reason, decision.rows.granted)
            (after,) = await ours.settle(content, 4)
            assert after.remaining == 96
            with pytest.raises(UsedToken):
                await ours.settle(content, 4)
            with pytest.raises(StorageError):
                await theirs.settle(content, 4)

    run(main)


def test_another_process_never_gives_back_what_the_storage_was_not_charged() -> None:
    async def main() -> None:
        async with AsyncLimiter("100/minute") as limiter:
            await limiter.hit("k", cost=50)
            made = tokens()
            for final, remaining in ((1, 50), (30, 30)):
                decision = await limiter.peek("k", cost=10)
                granted = Decision(decision.asks, DegradedRows(decision.rows, "away", granted=7))
                content = made.read("settle", made.make("settle", [granted], 60))
                (after,) = await TokenUse(limiter._decider, b"another").settle(content, final)
                assert after.remaining == remaining
                assert (await limiter.peek("k")).remaining == remaining

    run(main)


def test_a_caller_cannot_reset_the_use_of_a_token() -> None:
    """A caller can read what is in a token, and may reset any key."""

    async def main() -> None:
        async with AsyncLimiter("100/minute", storage=MemoryStorage(clock=FakeClock())) as limiter:
            made = tokens()
            token = made.make("settle", [await limiter.hit("k")], 60)
            use = TokenUse(limiter._decider, made.maker)
            await use.settle(made.read("settle", token), 4)
            payload = base64.urlsafe_b64decode(token[4:] + "=" * (-len(token[4:]) % 4))[32:]
            seen = msgspec.msgpack.decode(payload)[1]
            await limiter.reset(f"ratebound:token:{seen.hex()}", limits=_once(60 * SECOND))
            with pytest.raises(UsedToken):
                await use.settle(made.read("settle", token), 4)

    run(main)


def test_a_token_expires() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with AsyncLimiter("100/minute", storage=MemoryStorage(clock=clock)) as limiter:
            made = tokens()
            content = made.read("settle", made.make("settle", [await limiter.hit("k")], 60))
            clock.advance(60.1)
            with pytest.raises(ExpiredToken):
                await TokenUse(limiter._decider, made.maker).settle(content, 4)

    run(main)
