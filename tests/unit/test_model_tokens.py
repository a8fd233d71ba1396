"""The example of tokens commits what an answer has used, however it ends."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, MemoryStorage, RateLimited
from ratebound.testing import FakeClock

PATH = Path(__file__).parents[2] / "examples" / "model_tokens.py"
ORG = "org:7"


@pytest.fixture
def example(clock: FakeClock) -> Any:
    """The example, on a clock that stands still."""
    spec = importlib.util.spec_from_file_location("model_tokens", PATH)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.limiter = Limiter(module.LIMITS, storage=MemoryStorage(clock=clock))
    module.async_limiter = AsyncLimiter(module.LIMITS, storage=module.limiter.storage)
    return module


def test_an_answer_costs_its_tokens(example: Any) -> None:
    assert example.complete(ORG, "hello", most=9_000) == "HELLO"
    assert example.left(ORG) == 9_995


def test_a_denied_answer_costs_nothing(example: Any) -> None:
    with pytest.raises(RateLimited):
        example.complete(ORG, "hello", most=10_001)
    assert example.left(ORG) == 10_000


def test_a_stream_costs_what_was_sent_however_it_ends(example: Any) -> None:
    async def read(most: int | None) -> list[str]:
        found: list[str] = []
        stream: AsyncIterator[str] = example.stream(ORG, "hello world", most=5_000)
        async for token in stream:
            found.append(token)
            if len(found) == most:
                await stream.aclose()  # type: ignore[attr-defined]
        return found

    async def cancelled() -> None:
        async for token in example.stream(ORG, "hello world", most=5_000):
            if token == "L":
                asyncio.current_task().cancel()  # type: ignore[union-attr]

    async def main() -> None:
        assert await read(None) == list("HELLO WORLD")
        assert example.left(ORG) == 10_000 - 11
        assert await read(4) == list("HELL")
        assert example.left(ORG) == 10_000 - 15
        (error,) = await asyncio.gather(cancelled(), return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError)
        assert example.left(ORG) == 10_000 - 18
        assert example.limiter.holders(ORG) == [], "and its slot is free"

    asyncio.run(main())


def test_no_more_than_two_answers_are_made_at_once(example: Any) -> None:
    async def read() -> None:
        async for _ in example.stream(ORG, "hello world", most=3):
            pass

    async def main() -> list[bool]:
        found = await asyncio.gather(*(read() for _ in range(3)), return_exceptions=True)
        return [isinstance(each, RateLimited) for each in found]

    assert asyncio.run(main()) == [False, False, True]
    assert example.left(ORG) == 10_000 - 22


def test_the_example_runs(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    said = capsys.readouterr().out
    assert "denied by tokens, retry in 1.8 s" in said
    assert f"disconnected: {10_000 - 15 - 13 - 2} tokens left" in said
