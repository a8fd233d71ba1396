"""The calls of operators in the control plane: figures and the usage ledger are answered here, all else by a worker.

If a worker does not accept the connection, the next one is asked. A call that was sent is not sent again: if no answer
comes, it may have been carried out, and the operator is told so.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ratebound import __version__, compiled
from ratebound.admin.audit_log import log_call
from ratebound.admin.calls import Operator, is_audited
from ratebound.admin.ledger_calls import CALLED, NO_LEDGER, LedgerCalls, names_shown
from ratebound.admin.messages import CallError
from ratebound.flow import Flow
from ratebound.ledger import Ledger
from ratebound.observe.figures_view import FiguresView
from ratebound.observe.gate_figures import WATCHED_FOR
from ratebound.service.run_folder import RunFolder
from ratebound.service.worker_channel import WorkerSilent, ask_any_worker, ask_worker
from ratebound.service.worker_operations import LOOK, RELOAD_WITHIN

READ_WITHIN = 2.0  # seconds, for a call that the next worker can answer
RETRY = {"Retry-After": "1"}
UNSURE = "The worker has not answered: {reason}. The call may have been carried out: look before you repeat it."
NO_WORKER = "No worker could be asked: {reason}. Nothing was changed."
NO_ANSWER = "No worker answers: {reason}."
# Changes of operators' documents. A worker that changes one while another does so begins again: many at once would keep
# each other from ending, the more the longer the lists are.
IN_TURN = frozenset({"block", "unblock", "override", "remove_override", "set_switch", "remove_switch", "promote"})
BUSY = "Other changes are being made, and this one was not begun within {seconds:g} s. Nothing was changed."
MOST_QUESTIONS = 4  # to the ledger at once: a database that hangs must not take all threads
SLOW_LEDGER = "The ledger has not answered within {seconds:g} s. Ask for less time, or look at its database."


class ServiceCalls:
    """The calls of operators in a service, for its admin site. It keeps the figures of all workers.

    `paths` are the sockets of the workers. A call may take `seconds`. `ledger` is the usage ledger, for reading.
    """

    def __init__(self, paths: Sequence[str], folder: RunFolder, seconds: float, ledger: Ledger | None = None) -> None:
        self._all_paths = paths
        self._paths = list(paths)
        self._folder = folder
        self._seconds = seconds
        self._figures = FiguresView()
        self._view = self._figures.view()
        self._last_revision: dict[str, Any] = {"revision": ""}
        self._watched: float | None = None  # when somebody has last looked
        self._ledger = None if ledger is None else LedgerCalls(ledger)
        self.has_ledger = ledger is not None
        self._may_ask = asyncio.Semaphore(MOST_QUESTIONS)
        self._may_change = asyncio.Lock()

    def take(self, own: Sequence[Any], others: Iterable[Any], problem: str) -> None:
        """Take the figures of each worker, None for one that is silent, and of other processes, once a second."""
        self._figures.take([one for one in own if one is not None], others, problem)
        self._view = self._figures.view()
        # Those that answer come first: each call would wait for one that hangs
        self._paths = [path for _, path in sorted(zip([one is None for one in own], self._all_paths, strict=True))]

    @property
    def is_watched(self) -> bool:
        """True if somebody has looked at the figures in the last seconds."""
        return self._watched is not None and time.monotonic() - self._watched < WATCHED_FOR

    def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        """Carry out a call of the table. Raises CallError."""
        return (yield partial(self._call, name, dict(arguments), operator))

    async def _call(self, name: str, arguments: dict[str, Any], operator: Operator) -> Any:
        if name == "figures":
            self._watched = time.monotonic()
            return {**self._view, **await self._revision(operator)}
        if name == "history":
            return self._figures.history()
        if name == "shadow":
            return {"shadow": self._view["shadow_report"]}
        if name == "health":
            return await self._health(operator)
        if name == "top":
            if not arguments.get("names"):
                return {"top": self._view["top"]}
            names = await self._names([one["client"] for one in self._view["top"]])
            return await self._forward(name, arguments, operator, view={"top": self._view["top"]}, names=names)
        if name in CALLED:
            return await self._ask_ledger(name, arguments, operator)
        if name == "block" and "digest" in arguments:
            return await self._forward(name, arguments, operator, names=await self._names([arguments["digest"]]))
        found = await self._forward(name, arguments, operator)
        if name == "reload_policy" and found["valid"]:
            await self._wait_for_policy()
        return found

    async def _forward(self, name: str, arguments: dict[str, Any], operator: Operator, **figures: Any) -> Any:
        """Let a worker carry out a call."""
        can_repeat = not is_audited(name, arguments)
        given: dict[str, Any] = {"name": name, "arguments": arguments, "operator": operator}
        if figures:
            given["figures"] = figures
        seconds = min(self._seconds, READ_WITHIN) if can_repeat and name != "check_policy" else self._seconds
        if name not in IN_TURN:
            return await self._asked("call", seconds, can_repeat=can_repeat, **given)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(seconds / 2):
                await self._may_change.acquire()
        except TimeoutError:
            raise CallError(503, BUSY.format(seconds=seconds / 2), headers=RETRY) from None
        try:
            left = round(seconds - (time.monotonic() - begun), 1)
            return await self._asked("call", left, can_repeat=can_repeat, **given)
        finally:
            self._may_change.release()

    async def _asked(self, question: str, seconds: float, *, can_repeat: bool, **given: Any) -> Any:
        """Ask a worker. Raises CallError with its problem, or if no worker answers."""
        try:
            found = await ask_any_worker(self._paths, question, seconds, can_repeat=can_repeat, **given)
        except WorkerSilent as error:
            text = NO_ANSWER if can_repeat else UNSURE if error.was_asked else NO_WORKER
            raise CallError(503, text.format(reason=error), headers=RETRY) from None
        if "problem" in found:
            raise CallError(*found["problem"])
        return found["value"]

    async def _ask_ledger(self, name: str, arguments: dict[str, Any], operator: Operator) -> Any:
        """Read the ledger in a thread. Names are shown only if a worker has recorded that."""
        if self._ledger is None:
            raise CallError(404, NO_LEDGER)
        try:
            async with asyncio.timeout(self._seconds):
                await self._may_ask.acquire()
                question = asyncio.get_running_loop().run_in_executor(None, self._ledger.answer, name, arguments)
                question.add_done_callback(self._answered)
                found = await asyncio.shield(question)
        except TimeoutError:
            raise CallError(503, SLOW_LEDGER.format(seconds=self._seconds), headers=RETRY) from None
        if is_audited(name, arguments):
            await self._record(name, arguments, operator, names_shown(found))
        return found

    async def _record(
        self, name: str, arguments: dict[str, Any], operator: Operator, shown: tuple[str, str, str]
    ) -> None:
        """Let a worker note in the log of changes what an operator sees. Raises CallError if none can."""
        entry = {**dict(zip(("action", "target", "detail"), shown, strict=True)), "by": operator.name}
        status = 500
        try:
            await self._asked("record", self._seconds, can_repeat=False, **entry)
            status = 200
        except CallError as error:
            status = error.status
            raise
        finally:
            log_call(name, arguments, operator, status)

    def _answered(self, question: "asyncio.Future[Any]") -> None:
        self._may_ask.release()
        if not question.cancelled():
            question.exception()  # if nobody waits for it any more, it was told that it takes too long

    async def _revision(self, operator: Operator) -> dict[str, Any]:
        """Return the field of the figures that changes with every change by an operator."""
        with suppress(CallError):  # the figures say that the workers are silent
            self._last_revision = await self._forward("figures", {}, operator)
        return self._last_revision

    async def _names(self, digests: list[str]) -> dict[str, str]:
        """Return the keys of clients, by their digests: each worker knows those that it has denied."""
        known: dict[str, str] = {}
        found = await asyncio.gather(
            *(ask_worker(path, "names", digests=digests) for path in self._paths), return_exceptions=True
        )
        for one in found:
            if isinstance(one, dict):
                known |= one
            elif not isinstance(one, WorkerSilent):
                assert isinstance(one, BaseException)
                raise one
        return known

    async def _health(self, operator: Operator) -> Any:
        view = {"problem": self._view["problem"], "storage": self._view["storage"]}
        try:
            return await self._forward("health", {}, operator, view=view)
        except CallError as error:
            return {"healthy": False, "problems": [error.detail], "version": __version__, "compiled": compiled}

    async def _wait_for_policy(self) -> None:
        """Wait until all workers use the policy that the supervisor has read. Raises CallError."""
        try:
            async with asyncio.timeout(RELOAD_WITHIN):
                await asyncio.gather(*(self._wait_for_worker(path) for path in self._paths))
        except TimeoutError:
            text = "The policy was read, but not every worker uses it yet. See /readyz."
            raise CallError(503, text, headers=RETRY) from None

    async def _wait_for_worker(self, path: str) -> None:
        while True:
            try:
                if await ask_worker(path, "policy") == self._folder.last_reload.get("digest"):
                    return
            except WorkerSilent:  # it is started again, with the new policy
                pass
            await asyncio.sleep(LOOK)
