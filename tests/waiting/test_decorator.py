"""Functions that wait for their turn."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ratebound import (
    AsyncLimiter,
    Limiter,
    MemoryStorage,
    RateLimited,
)
from ratebound.clock import SECOND
from ratebound.testing import FakeClock
from tests.waiting.virtual import clock as virtual_clock
from tests.waiting.virtual import run


def test_async_functions_decorated_by_one_limiter_stand_in_one_line() -> None:
    async def main() -> list[str]:
        memory = MemoryStorage(clock=virtual_clock)
        limiter = Limiter("4/200ms", storage=memory, max_delay=100)
        order: list[str] = []

        @limiter.limit(key="k", cost=4)
        async def big() -> None:
            order.append("big")

        @limiter.limit(key="k")
        async def small() -> None:
            order.append("small")

        await asyncio.gather(*(small() for _ in range(4)))
        await asyncio.gather(big(), *(small() for _ in range(30)))
        return order

    assert run(main())[4] == "big"


class Calls:
    """A decorated function that notes what it was called with."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self.seen.append((*args, *kwargs.items()))
        return "done"


def decorated(limiter: Limiter, calls: Calls, **options: Any) -> Callable[..., str]:
    @limiter.limit(**options)
    def send(user: str, text: str = "", size: int = 1) -> str:
        """Send a text."""
        return calls(user, text, size)

    return send


def test_a_decorated_function_waits_for_its_turn_by_key_and_cost() -> None:
    clock, calls = FakeClock(), Calls()
    limiter = Limiter("4/second", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    send = decorated(limiter, calls, key=lambda user, *args, **kw: f"user:{user}", cost=lambda *args, size=1: size)
    begin = clock.now
    assert send("a", size=4) == "done"
    assert send("b", "hello") == "done"
    assert clock.now == begin
    assert send("a") == "done"
    assert clock.now - begin == SECOND
    assert calls.seen == [("a", "", 4), ("b", "hello", 1), ("a", "", 1)]
    assert (send.__name__, send.__doc__) == ("send", "Send a text.")
    assert limiter.peek("user:b").remaining == 4


def test_past_its_timeout_a_decorated_function_raises_or_falls_back() -> None:
    clock, calls = FakeClock(), Calls()
    limiter = Limiter("1/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    send = decorated(limiter, calls, timeout=0.5)
    send("a")
    with pytest.raises(RateLimited) as caught:
        send("b")  # without a key, all calls share one
    assert caught.value.decision.retry_after == 59.5
    for fallback, expected in ((None, None), ("later", "later"), (lambda user: f"later, {user}", "later, c")):
        limited = decorated(limiter, calls, key="shared", fallback=fallback)
        limiter.hit("shared")
        assert limited("c") == expected
    assert calls.seen == [("a", "", 1)]


def test_a_decorator_needs_no_parentheses() -> None:
    limiter = Limiter("1/minute")

    @limiter.limit
    def call() -> str:
        return "called"

    assert call() == "called"
    with pytest.raises(RateLimited):
        call()


def test_a_rate_limited_raised_inside_the_function_is_not_taken_for_our_own() -> None:
    outer, inner = Limiter("9/minute"), Limiter("1/minute")
    inner.hit("x")

    @outer.limit(fallback="fallback")
    def call() -> None:
        inner.wait("x")

    with pytest.raises(RateLimited):
        call()


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_async_def_is_decorated_by_either_limiter(kind: type[Limiter] | type[AsyncLimiter]) -> None:
    limiter = kind("1/minute")

    @limiter.limit(key=lambda user: user)
    async def plain(user: str) -> str:
        return user

    async def later(user: str) -> str:
        return f"later, {user}"

    @limiter.limit(key=lambda user: user, fallback=later)
    async def kind_one(user: str) -> str:
        return user

    async def main() -> None:
        assert await plain("a") == "a"
        assert await kind_one("a") == "later, a"
        with pytest.raises(RateLimited):
            await plain("a")

    asyncio.run(main())
    if isinstance(limiter, Limiter):
        assert not limiter.hit("a")  # the same states


def test_a_decorator_refuses_what_it_cannot_hold_back() -> None:
    async def stream() -> Any:
        yield 1

    for limiter in (Limiter("1/second"), AsyncLimiter("1/second")):
        with pytest.raises(TypeError, match="async generator: call wait inside"):
            limiter.limit()(stream)
    with pytest.raises(TypeError, match="decorate it with Limiter.limit"):
        AsyncLimiter("1/second").limit()(len)
    with pytest.raises(TypeError, match="put @classmethod and its like above"):
        Limiter("1/second").limit()(classmethod(len))  # type: ignore[arg-type, type-var]
    with pytest.raises(ValueError, match="timeout must be seconds"):
        Limiter("1/second").limit(timeout=-1)
    assert Limiter("1/second").limit()(partial(len, "four"))() == 4

    async def task() -> None: ...

    blocking = Limiter("1/second")
    blocking.storage = _Opaque()
    with pytest.raises(TypeError, match="would block the event loop"):
        blocking.limit()(task)


class _Opaque:
    """A storage of a user's own, with no async twin."""

    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.evaluate, self.reset, self.close = self.memory.evaluate, self.memory.reset, self.memory.close
