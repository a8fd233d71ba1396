"""Users subclass and patch what is public, in both builds. Decisions may refuse it."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

import ratebound
from ratebound import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    GuardedStorage,
    Limiter,
    MemoryStorage,
    parse_limit,
    parse_limits,
)
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.policy import AsyncGate, Gate, RequestView
from ratebound.testing import FakeClock
from ratebound.values import Values
from ratebound.web import AsyncWebGate, WebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.limiters import limiter_of

POLICY = {"rules": [{"name": "all", "limits": "5/minute", "by": "address"}]}


def made() -> list[Any]:
    """Return an object of every class that users keep."""
    return [
        Limiter("5/minute"),
        AsyncLimiter("5/minute"),
        MemoryStorage(),
        AsyncMemoryStorage(),
        GuardedStorage(MemoryStorage()),
        Gate(POLICY),
        AsyncGate(POLICY),
        WebGate(POLICY),
        AsyncWebGate(POLICY),
        RateLimitMiddleware(lambda scope, receive, send: None, "5/minute"),
        WsgiMiddleware(lambda environ, start: [], "5/minute"),
    ]


@pytest.mark.parametrize("index", range(len(made())))
def test_weak_references_work(index: int) -> None:
    value = made()[index]
    reference = weakref.ref(value)
    assert reference() is value
    assert weakref.WeakKeyDictionary({value: 1})[value] == 1


@pytest.mark.parametrize("index", range(4))
def test_what_is_forgotten_goes_away(index: int) -> None:
    value = made()[index]
    reference = weakref.ref(value)
    del value
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("index", range(len(made())))
def test_attributes_can_be_added(index: int) -> None:
    value = made()[index]
    value.note_of_the_user = 1
    assert value.note_of_the_user == 1


class Counting(Limiter):
    """A limiter with a `hit` of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.hits: list[str] = []

    def hit(self, key: str, *, cost: int = 1, values: Values | None = None) -> Decision:
        self.hits.append(key)
        return super().hit(key.lower(), cost=cost, values=values)


class AsyncCounting(AsyncLimiter):
    """The same for tasks."""

    async def hit(self, key: str, *, cost: int = 1, values: Values | None = None) -> Decision:
        return await super().hit(key.lower(), cost=cost, values=values)


def test_a_limiter_can_be_subclassed(clock: FakeClock) -> None:
    limiter = Counting("2/minute", storage=MemoryStorage(clock=clock))
    assert [limiter.hit(key).remaining for key in ("A", "a")] == [1, 0]
    assert limiter.hits == ["A", "a"]
    assert limiter.peek("a").remaining == 0
    with limiter as entered:
        assert entered is limiter


def test_an_async_limiter_can_be_subclassed(clock: FakeClock) -> None:
    async def run() -> list[int]:
        limiter = AsyncCounting("2/minute", storage=MemoryStorage(clock=clock))
        return [(await limiter.hit(key)).remaining for key in ("A", "a")]

    assert asyncio.run(run()) == [1, 0]


class Refusing(MemoryStorage):
    """A storage with an `evaluate` of its own."""

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return [[(False, *row[1:]) for row in rows] for rows in super().evaluate(groups, mode)]


class RefusingAtOnce(MemoryStorage):
    """A storage with an `at_once` of its own."""

    def at_once(self, group: Group) -> Sequence[Row]:
        return [(False, *row[1:]) for row in super().at_once(group)]


@pytest.mark.parametrize("kind", [Refusing, RefusingAtOnce])
@pytest.mark.parametrize("listeners", [[], [lambda event: None]])
def test_a_storage_can_be_subclassed(kind: type[MemoryStorage], listeners: Any, clock: FakeClock) -> None:
    storage = kind(clock=clock)
    assert not Limiter("2/minute", storage=storage, listeners=listeners).hit("a")
    assert not asyncio.run(_hit(AsyncLimiter("2/minute", storage=storage, listeners=listeners)))
    plain = limiter_of("2/minute", clock, listeners=listeners)
    assert plain.hit("a")
    plain.storage = storage
    assert not plain.hit("a")
    plain.storage = MemoryStorage(clock=clock)
    assert plain.hit("a").remaining == 1


async def _hit(limiter: AsyncLimiter) -> Decision:
    return await limiter.hit("a")


class OwnGate(Gate):
    """A gate with an `decide` of its own."""

    def decide(self, *args: Any, **options: Any) -> Any:
        return "decided", super().decide(*args, **options)


class AsyncOwnGate(AsyncGate):
    """The same for tasks."""

    async def decide(self, *args: Any, **options: Any) -> Any:
        return "decided", await super().decide(*args, **options)


def test_gates_can_be_subclassed() -> None:
    request = RequestView("GET", "/", peer="203.0.113.1")
    word, verdict = OwnGate(POLICY).decide(request)
    assert (word, verdict.allowed) == ("decided", True)

    async def run() -> Any:
        return await AsyncOwnGate(POLICY).decide(request)

    word, verdict = asyncio.run(run())
    assert (word, verdict.allowed) == ("decided", True)


def test_methods_can_be_patched(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter: Any = limiter_of("2/minute", clock)
    other: Any = limiter_of("2/minute", clock)
    with monkeypatch.context() as patch:
        patch.setattr(limiter, "hit", lambda key: "patched")
        assert (limiter.hit("a"), other.hit("a").remaining) == ("patched", 1)
        patch.setattr(Limiter, "hit", lambda self, key: "all")
        assert (limiter.hit("a"), other.hit("a")) == ("patched", "all")
    assert limiter.hit("a").remaining == 1


@pytest.mark.parametrize("on_class", [True, False])
@pytest.mark.parametrize("name", ["evaluate", "at_once"])
def test_the_methods_of_a_storage_can_be_patched(
    name: str, on_class: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage(clock=clock)
    calls: list[Any] = []
    real = getattr(MemoryStorage, name)

    def patched(self: MemoryStorage, *args: Any) -> Any:
        calls.append(args)
        return real(self, *args)

    with monkeypatch.context() as patch:
        if on_class:
            patch.setattr(MemoryStorage, name, patched)
        else:
            patch.setattr(storage, name, lambda *args: patched(storage, *args))
        limiter = Limiter("2/minute", storage=storage)
        limiter.hit("a")
        # Spends of a class are made by `at_once`, so its `evaluate` is asked for everything else.
        assert len(calls) == (0 if on_class and name == "evaluate" else 1)
        limiter.peek("a")
        assert len(calls) == (1 if on_class and name == "evaluate" else 2 if name == "evaluate" else 1)


def test_limits_can_be_set_while_running(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute", clock)
    assert limiter.hit("a").remaining == 1
    limiter.limits = parse_limits("5/minute; 100/hour")
    assert limiter.hit("a").remaining == 3
    assert limiter.limits == tuple(parse_limits("5/minute; 100/hour"))
    limiter.limits = parse_limit("1/minute")
    assert not limiter.hit("a")


def test_waiting_follows_the_limits_that_were_set(clock: FakeClock) -> None:
    limiter = limiter_of("10/second burst 1", clock)
    assert limiter.wait("a")
    limiter.limits = parse_limits("1/second fixed-window")
    assert limiter.wait("a", timeout=5)
    begin = clock.now
    assert limiter.wait("a", timeout=5)
    assert clock.now - begin <= 1_000_000


def test_decorated_tasks_follow_the_limits_that_were_set(clock: FakeClock) -> None:
    limiter = limiter_of("1/day", clock)

    @limiter.limit(key="k", timeout=0, fallback="denied")
    async def work() -> str:
        return "done"

    async def twice() -> list[str]:
        return [await work(), await work()]

    assert asyncio.run(twice()) == ["done", "denied"]
    limiter.limits = parse_limits("3/day")
    assert asyncio.run(twice()) == ["done", "done"]


def test_the_bound_of_a_memory_can_be_set(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    storage.max_keys = 3
    limiter = Limiter("5/minute", storage=storage)
    for number in range(10):
        limiter.hit(f"k{number}")
    assert (storage.max_keys, storage.keys) == (3, 3)


def test_every_kind_of_decision_is_a_decision(clock: FakeClock) -> None:
    one, several = limiter_of("2/minute", clock), limiter_of("2/minute; 5/hour", clock)
    check = one.check([Check("a", parse_limit("2/minute")), Check("b", parse_limit("2/minute"))])
    for decision in (one.hit("a"), several.hit("a"), check, one.peek("a"), one.hit("a", cost=3)):
        assert isinstance(decision, Decision)
        assert hash(decision) == hash(decision)
        assert decision == decision
        with pytest.raises(AttributeError):
            decision.surprise = 1  # type: ignore[attr-defined]


def test_a_subclass_of_a_decision_works_or_is_refused(clock: FakeClock) -> None:
    decision = limiter_of("2/minute", clock).hit("a")

    class Own(Decision):
        pass

    if not ratebound.compiled:
        assert Own(decision.asks, decision.rows).remaining == 1
        return
    with pytest.raises(TypeError, match="interpreted classes cannot inherit from compiled"):
        Own(decision.asks, decision.rows)
