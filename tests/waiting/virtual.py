"""An event loop whose time is simulated: when nothing is left to do, the clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from ratebound import AsyncLimiter, AsyncMemoryStorage

T = TypeVar("T")
START = 1_700_000_000_000_000


class Jumping(selectors.SelectSelector):
    """Instead of waiting, moves the loop's time on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits and no timer is set: a deadlock"
            self.now += max(timeout, 0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def clock() -> int:
    """The running loop's time as a storage clock, in microseconds."""
    return START + round(asyncio.get_running_loop().time() * 1_000_000)


def seconds() -> float:
    return asyncio.get_running_loop().time()


def limiter_of(text: str, **options: Any) -> AsyncLimiter:
    return AsyncLimiter(text, storage=AsyncMemoryStorage(clock=clock), **options)
