"""Gates that operators work with, of both kinds, and a storage that is outside of their process."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ratebound import MemoryStorage, StorageError
from ratebound.limit import Group, Mode
from ratebound.policy import AsyncGate, Gate
from ratebound.testing import FakeClock
from tests.policy.gates import request


class RemoteStorage:
    """A storage outside the process, which a guard calls: memory that counts reads, and fails when it is told to.

    Gates on it keep copies, as on Redis.
    """

    deadline = 5.0

    def __init__(self, clock: FakeClock, memory: MemoryStorage | None = None) -> None:
        self._clock = clock
        self.memory = memory or MemoryStorage(clock=clock)
        self.reads = 0
        self.fails = False
        self.while_reading: Callable[[], object] = lambda: None

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Any]:
        self._answer()
        return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self.memory.reset(group)

    def close(self) -> None:
        pass

    def read_document(self, name: str) -> tuple[int, bytes]:
        self.reads += 1
        found = self.memory.read_document(name)
        self.while_reading()
        self._answer()
        return found

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        self._answer()
        return self.memory.write_document(name, content, version)

    def async_twin(self) -> "AsyncRemoteStorage":
        return AsyncRemoteStorage(self)

    def _answer(self) -> None:
        if self.fails:
            raise StorageError("the server is gone")


class AsyncRemoteStorage:
    deadline = 5.0

    def __init__(self, remote: RemoteStorage) -> None:
        self._remote = remote
        self._clock = remote._clock

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Any]:
        return self._remote.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self._remote.reset(group)

    async def close(self) -> None:
        pass

    async def read_document(self, name: str) -> tuple[int, bytes]:
        return self._remote.read_document(name)

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        return self._remote.write_document(name, content, version)


class OperatedGate:
    """A gate of either kind, called from threads."""

    def __init__(self, gate: Gate | AsyncGate, run: Callable[[Any], Any]) -> None:
        self.gate = gate
        self._run = run

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            found = getattr(self.gate, name)(*arguments, **more)
            return self._run(found) if inspect.isawaitable(found) else found

        return call

    def kind(self, *arguments: Any, stage: Any = None, **more: Any) -> str:
        verdict = self.decide(request(*arguments, **more), stage)
        return str(verdict.kind)


Make = Callable[..., OperatedGate]
