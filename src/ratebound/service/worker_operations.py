"""The calls of operators in a worker: its gate carries them out, and the supervisor reads the policy again."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ratebound.admin.calls import Operator
from ratebound.admin.messages import CallError
from ratebound.admin.operations import RETRY, Operations
from ratebound.admin.policy_source import AN_OBJECT, GatePolicySource, PolicyOrigin, described
from ratebound.errors import StorageError
from ratebound.flow import run_async
from ratebound.policy import AsyncGate, PolicyError, PolicyFile
from ratebound.policy.load.url_text import SECONDS, FetchError
from ratebound.policy.problem import Problem
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.service.run_folder import RunFolder, digest_of
from ratebound.storage import keeps_documents

RELOAD = signal.SIGUSR1  # to the supervisor. SIGHUP may also mean that its terminal was closed
RELOAD_WITHIN = 5.0  # seconds, for the supervisor and the workers
FETCH_WITHIN = RELOAD_WITHIN + SECONDS
LOOK = 0.02  # seconds between two looks at what a reload has led to
NOT_RELOADED = "The supervisor has not read the policy in time. It may do so later."
Answer = dict[str, Any]


class GivenFigures:
    """The figures that the control plane sends with a call: it keeps those of all workers."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def view(self) -> Any:
        """Return the figures, or a part of them."""
        return self._found.get("view", {})

    def history(self) -> Any:
        """Return an empty history: the control plane keeps it, and answers such calls itself."""
        return self._found.get("history", {})

    def names(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the keys of clients that any worker knows."""
        names: dict[str, str] = self._found.get("names", {})
        return {digest: names[digest] for digest in digests if digest in names}


class ServicePolicy:
    """The origin of the policy of a service. `supervisor` is its process, which reads the file. `fetched` is the policy
    of a URL, which another process fetches into that file."""

    def __init__(
        self,
        gate: AsyncGate,
        policy: object,
        folder: RunFolder,
        supervisor: int,
        fetched: FetchedPolicy | None = None,
    ) -> None:
        self._gate = gate
        self._file = policy if isinstance(policy, PolicyFile) else None
        self._origin = GatePolicySource(gate)
        self._folder = folder
        self._supervisor = supervisor
        self._fetched = fetched

    def describe(self) -> PolicyOrigin:
        """Return the policy in force, and what is wrong with the one that was refused or cannot be fetched."""
        origin = self._origin.describe()._replace(error=self._error)
        return origin if self._fetched is None else origin._replace(source=self._fetched.shown)

    def revision(self) -> str:
        """Return a text that changes with the policy, and with what is wrong with it."""
        return f"{self._origin.revision()}\0{self._error}"

    @property
    def _error(self) -> str:
        if not self._folder.has_old_policy:
            return ""
        found = self._folder.last_fetch if self._folder.has_fetch_failed else self._folder.last_reload
        return str(found.get("problem", ""))

    async def check(self, text: str | None, format: str | None) -> list[Any]:
        """Return what a policy would change: the one in `text`, or the file or URL as it is now."""
        if text is not None:
            return await asyncio.to_thread(self._origin.check, text, format)
        return await asyncio.to_thread(self._check_file)

    def _check_file(self) -> list[Any]:
        file = self._file
        if file is None:
            raise CallError(409, AN_OBJECT)
        try:
            new = file.read() if self._fetched is None else self._fetched.read()
        except FetchError as error:
            raise CallError(502, str(error)) from None
        return described(self._gate.policy, new)

    async def reload(self) -> list[Any]:
        """Let the supervisor read the policy, and wait until this worker uses it. Return what has changed."""
        file = self._file
        if file is None:
            raise CallError(409, AN_OBJECT)
        before = self._folder.last_reload.get("number", 0)
        if os.getppid() != self._supervisor:
            raise CallError(503, "The service is stopping.")
        os.kill(self._supervisor, RELOAD)
        try:
            async with asyncio.timeout(RELOAD_WITHIN if self._fetched is None else FETCH_WITHIN):
                while (found := self._folder.last_reload).get("number", 0) == before:
                    await asyncio.sleep(LOOK)
                if self._folder.has_fetch_failed:
                    raise CallError(502, str(self._folder.last_fetch["problem"]))
                if found["problem"]:
                    problems = [Problem(tuple(place), text, line) for place, text, line in found["problems"]]
                    raise PolicyError(problems or [Problem((), found["problem"])], str(file.path))
                while digest_of(file.text) != self._folder.last_reload["digest"]:
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise CallError(503, NOT_RELOADED) from None
        changes: list[Any] = found["changes"]
        return changes


class WorkerOperations:
    """The calls of operators, for the control plane to ask. `record` is for what the control plane answers itself."""

    def __init__(self, gate: AsyncGate, policy: ServicePolicy) -> None:
        self._gate = gate
        self._policy = policy
        self._operations = Operations(gate, GivenFigures({"view": {}}), policy)  # kept: it remembers revisions

    async def record(self, asked: Mapping[str, Any]) -> Answer:
        """Note in the log of changes what an operator sees. The answer has a `problem` if that cannot be done."""
        if keeps_documents(self._gate.storage):
            try:
                await self._gate.record(asked["action"], asked["target"], asked["detail"], by=asked["by"])
            except StorageError as error:
                return {"problem": [503, f"The storage could not answer: {error}", [], RETRY]}
        return {"value": True}

    async def call(self, asked: Mapping[str, Any]) -> Answer:
        """Carry out a call. The answer has a `value`, or a `problem` for the operator."""
        name, arguments = asked["name"], asked["arguments"]
        operator = Operator(*asked["operator"])
        operations = self._operations
        if "figures" in asked:
            operations = Operations(self._gate, GivenFigures(asked["figures"]), self._policy)
        try:
            return {"value": await run_async(operations.call(name, arguments, operator))}
        except CallError as error:
            return {"problem": [error.status, error.detail, error.errors, error.headers]}
