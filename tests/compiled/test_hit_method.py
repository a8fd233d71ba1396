"""`hit` of a limiter passes for a function of its class, and what tasks await for a coroutine, in both builds."""

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import pydoc
import sys
import types
import typing
import warnings
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any
from unittest import mock

import pytest

import ratebound
from ratebound import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Decision,
    InvalidKey,
    InvalidValue,
    Limiter,
    MemoryStorage,
    parse_limits,
)
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock, limiting_off
from ratebound.values import Values
from tests.limiters import limiter_of

METHOD_DESCRIPTOR = 1 << 17  # Py_TPFLAGS_METHOD_DESCRIPTOR
KINDS: list[Any] = [Limiter, AsyncLimiter]


class Text(str):
    """Text of another class: it takes the general path."""


def answer(value: Any) -> Any:
    """Return what `hit` returned, or what its coroutine returns."""
    return asyncio.run(value) if isinstance(value, Coroutine) else value


@pytest.fixture(params=KINDS)
def limiter(request: pytest.FixtureRequest, clock: FakeClock) -> Any:
    return request.param("2/minute", storage=MemoryStorage(clock=clock))


@pytest.mark.parametrize("kind", KINDS)
def test_the_method_is_a_function_to_tools(kind: Any) -> None:
    assert inspect.isfunction(kind.hit)
    assert inspect.isroutine(kind.hit)
    assert (kind.hit.__name__, kind.hit.__qualname__) == ("hit", f"{kind.__name__}.hit")
    assert kind.hit.__module__ == "ratebound.limiter"
    assert repr(kind.hit).startswith(f"<function {kind.__name__}.hit at ")
    assert inspect.unwrap(kind.hit).__globals__ is sys.modules["ratebound.limiter"].__dict__
    assert inspect.signature(kind.hit).return_annotation is Decision
    assert typing.get_type_hints(kind.hit) == {"key": str, "cost": int, "values": Values | None, "return": Decision}
    assert inspect.getsource(kind.hit).lstrip().startswith("@hit_method")
    assert "Spend `cost` if every limit allows it" in pydoc.plain(pydoc.render_doc(kind.hit))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_method_is_described_as_well(kind: Any) -> None:
    limiter = kind("5/minute")
    bound = limiter.hit
    assert inspect.ismethod(bound)
    values = "values: collections.abc.Mapping[str, str | int] | None = None"
    assert str(inspect.signature(bound)) == f"(key: str, *, cost: int = 1, {values}) -> ratebound.decision.Decision"
    assert typing.get_type_hints(bound) == {"key": str, "cost": int, "values": Values | None, "return": Decision}
    assert inspect.iscoroutinefunction(bound) == (kind is AsyncLimiter)
    assert bound.__doc__ == kind.hit.__doc__
    assert bound == limiter.hit


@pytest.mark.parametrize("kind", KINDS)
def test_the_method_is_called_without_being_bound(kind: Any) -> None:
    assert type(vars(kind)["hit"]).__flags__ & METHOD_DESCRIPTOR


@pytest.mark.parametrize("kind", KINDS)
def test_the_method_is_pickled_and_copied_as_a_function_is(kind: Any) -> None:
    assert pickle.loads(pickle.dumps(kind.hit)) is kind.hit
    assert copy.copy(kind.hit) is kind.hit
    assert copy.deepcopy(kind.hit) is kind.hit


def test_the_method_can_be_called_in_every_way(limiter: Any) -> None:
    assert answer(limiter.hit("a")).remaining == 1
    assert answer(limiter.hit(key="a", cost=1)).remaining == 0
    assert answer(type(limiter).hit(limiter, "b", cost=2)).remaining == 0
    for wrong in ((), ("a", 1)):
        with pytest.raises(TypeError):
            limiter.hit(*wrong)
    with pytest.raises(TypeError):
        limiter.hit("a", price=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_method_takes_values_by_name_in_every_way(kind: Any, clock: FakeClock) -> None:
    limiter = kind("1 distinct account/hour", storage=MemoryStorage(clock=clock))
    assert list(inspect.signature(kind.hit).parameters) == ["self", "key", "cost", "values"]
    values = {"account": "alice"}
    for hit in (limiter.hit, functools.partial(kind.hit, limiter)):
        assert answer(hit("a", values=values)).allowed
        assert answer(hit(key="a", cost=5, values=values)).allowed
        assert not answer(hit("a", values={"account": "bob"})).allowed
        with pytest.raises(InvalidValue, match="needs a value"):
            answer(hit("a"))
        with pytest.raises(InvalidValue, match="unknown value 'user'"):
            answer(hit("a", values={"user": "alice"}))
        with pytest.raises(TypeError):
            answer(hit("a", 1, values))
    plain = kind("1/hour")
    with pytest.raises(InvalidValue, match="no limit here counts"):
        answer(plain.hit("a", values=values))
    assert answer(plain.hit("a", values={})).allowed


@pytest.mark.parametrize("on", ["class", "object"])
def test_the_method_can_be_mocked_with_its_signature(limiter: Any, on: str) -> None:
    with mock.patch.object(type(limiter) if on == "class" else limiter, "hit", autospec=True) as mocked:
        mocked.return_value = "mocked"
        assert answer(limiter.hit("a", cost=2)) == "mocked"
        mocked.assert_called_once_with(*([limiter] if on == "class" else []), "a", cost=2)
        with pytest.raises(TypeError):
            answer(limiter.hit())
    assert answer(limiter.hit("a")).remaining == 1


def test_a_limiter_can_be_mocked_as_a_whole(limiter: Any) -> None:
    mocked = mock.create_autospec(type(limiter), instance=True)
    mocked.hit.return_value = "mocked"
    assert answer(mocked.hit("a")) == "mocked"
    with pytest.raises(TypeError):
        answer(mocked.hit("a", 1))


def test_a_copied_limiter_counts_in_the_same_states(limiter: Any) -> None:
    copied = copy.copy(limiter)
    assert answer(copied.hit("a")).remaining == 1
    assert answer(limiter.hit("a")).remaining == 0
    assert (copied.limits, copied.storage) == (limiter.limits, limiter.storage)
    copied.limits = parse_limits("9/minute")
    assert [answer(each.peek("a")).remaining for each in (copied, limiter)] == [7, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_limiter_cannot_be_pickled(kind: Any) -> None:
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=f"cannot pickle a {kind.__name__}"):
            attempt(kind("2/minute"))


class Portable(Limiter):
    """A limiter that is pickled as its limits."""

    def __getstate__(self) -> Any:
        return self.limits

    def __setstate__(self, limits: Any) -> None:
        self.__init__(limits)  # type: ignore[misc]


def test_a_subclass_can_say_how_it_is_pickled() -> None:
    copied = pickle.loads(pickle.dumps(Portable("2/minute")))
    assert copied.hit("a").remaining == 1


def test_a_closed_limiter_raises_until_it_is_opened(limiter: Any) -> None:
    answer(limiter.close())
    with pytest.raises(RuntimeError, match="this limiter is closed"):
        answer(limiter.hit("a"))


def test_limits_that_are_off_count_nothing(limiter: Any) -> None:
    with limiting_off():
        assert [answer(limiter.hit("a")).remaining for _ in range(3)] == [2, 2, 2]
    assert answer(limiter.hit("a")).remaining == 1


def test_a_limiter_that_was_never_made_says_so() -> None:
    with pytest.raises(AttributeError):
        Limiter.__new__(Limiter).hit("a")


def test_hitting_is_a_coroutine_to_tools(clock: FakeClock) -> None:
    coroutine: Any = AsyncLimiter("2/minute").hit("a")
    assert inspect.iscoroutine(coroutine)
    assert inspect.isawaitable(coroutine)
    assert isinstance(coroutine, types.CoroutineType)
    assert isinstance(coroutine, Coroutine)
    assert (coroutine.__name__, coroutine.__qualname__) == ("hit", "AsyncLimiter.hit")
    assert not hasattr(coroutine, "surprise")
    coroutine.close()


def test_nothing_is_spent_before_it_is_awaited(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = AsyncLimiter("2/minute", storage=MemoryStorage(clock=clock))
        later = limiter.hit("a")
        assert (await limiter.peek("a")).remaining == 2
        assert (await later).remaining == 1

    asyncio.run(run())


@pytest.mark.parametrize("key", ["a", 5], ids=["fast path", "general path"])
def test_a_coroutine_that_nobody_awaits_warns(key: Any) -> None:
    hits: list[Any] = [AsyncLimiter("2/minute").hit(key)]
    with pytest.warns(RuntimeWarning, match=r"coroutine 'AsyncLimiter\.hit' was never awaited"):
        hits.clear()


def test_a_warning_that_is_an_error_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: reported.append((said.exc_type, str(said.exc_value))))
    hits: list[Any] = [AsyncLimiter("2/minute").hit("a")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hits.clear()
    assert reported == [(RuntimeWarning, "coroutine 'AsyncLimiter.hit' was never awaited")]


class Slow(AsyncMemoryStorage):
    """A storage that answers late."""

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(60)
        return await super().evaluate(groups, mode)


def test_a_task_that_is_abandoned_goes_away() -> None:
    limiter = AsyncLimiter("5/minute", storage=Slow(), deadline=100)
    loop = asyncio.new_event_loop()
    task = loop.create_task(limiter.hit("a"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    reference = weakref.ref(task)
    del task, loop
    gc.collect()
    assert reference() is None


def test_a_coroutine_that_is_awaited_closed_or_cancelled_does_not_warn(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = AsyncLimiter("5/minute", storage=MemoryStorage(clock=clock))
        await limiter.hit("a")
        limiter.hit("a").close()
        thrown: Any = limiter.hit("a")
        with pytest.raises(LookupError):
            thrown.throw(LookupError("thrown"))
        with pytest.raises(RuntimeError):
            thrown.send(None)
        task = asyncio.create_task(limiter.hit("a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InvalidKey):
            await limiter.hit(5)  # type: ignore[arg-type]
        assert (await limiter.peek("a")).remaining == 4

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(run())
        gc.collect()


def test_two_tasks_cannot_share_a_coroutine(clock: FakeClock) -> None:
    async def run() -> None:
        coroutine: Any = AsyncLimiter("5/minute", storage=MemoryStorage(clock=clock)).hit("a")
        tasks = [asyncio.create_task(coroutine), asyncio.create_task(coroutine)]
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, Decision)
        assert isinstance(second, RuntimeError)

    asyncio.run(run())


def test_a_coroutine_is_awaited_once(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = AsyncLimiter("5/minute", storage=MemoryStorage(clock=clock))
        coroutine = limiter.hit("a")
        await coroutine
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await coroutine
        assert (await limiter.peek("a")).remaining == 4

    asyncio.run(run())


def test_a_decision_that_raises_is_not_made_again() -> None:
    def broken() -> int:
        raise OSError("no clock")

    async def run() -> None:
        coroutine = AsyncLimiter("5/minute", storage=MemoryStorage(clock=broken)).hit("a")
        with pytest.raises(OSError, match="no clock"):
            await coroutine
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await coroutine

    asyncio.run(run())


@pytest.mark.parametrize("key", ["a", Text("a")], ids=["fast path", "general path"])
def test_tasks_groups_and_timeouts_take_the_coroutine(key: str, clock: FakeClock) -> None:
    async def run() -> list[Any]:
        limiter: Any = AsyncLimiter("9/minute", storage=MemoryStorage(clock=clock))
        loop = asyncio.get_running_loop()
        found = [
            await asyncio.wait_for(limiter.hit(key), 5),
            await asyncio.create_task(limiter.hit(key), name="hit"),
            await asyncio.ensure_future(limiter.hit(key)),
            await asyncio.shield(limiter.hit(key)),
            *await asyncio.gather(limiter.hit(key), limiter.hit(key)),
        ]
        async with asyncio.TaskGroup() as tasks:
            found.append(await tasks.create_task(limiter.hit(key)))
        asyncio.run_coroutine_threadsafe(limiter.hit(key), loop)
        await asyncio.sleep(0.0)
        return found

    assert [each.remaining for each in asyncio.run(run())] == [8, 7, 6, 5, 4, 3, 2]


def test_a_cancelled_general_path_is_cancelled_inside() -> None:
    reached: list[str] = []

    class Waiting(AsyncLimiter):
        async def _hit_in_general(self, key: str, cost: int, values: Any) -> Decision:
            reached.append("begun")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                reached.append("cancelled")
                raise
            raise AssertionError

    async def run() -> None:
        task = asyncio.create_task(Waiting("5/minute").hit("a", cost=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert reached == ["begun", "cancelled"]


def test_a_limiter_of_both_kinds_of_patches_goes_on(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter: Any = limiter_of("5/minute", clock)
    real = Limiter.hit
    monkeypatch.setattr(Limiter, "hit", lambda self, key, **options: real(self, key.lower(), **options))
    assert limiter.hit("A").remaining == 4
    monkeypatch.undo()
    assert Limiter.hit is real
    assert limiter.hit("a").remaining == 3


@pytest.mark.skipif(not ratebound.compiled, reason="the pure build has no such classes in use")
def test_both_limiters_run_compiled_code() -> None:
    assert all(type(vars(kind)["hit"]).__name__ == "HitMethod" for kind in KINDS)
