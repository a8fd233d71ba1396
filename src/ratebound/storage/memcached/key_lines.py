"""Lines of callers that want to change the same item: in one process, one swap of a key is in flight at a time.

Threads that swapped the same item side by side would undo each other's work. So the first caller of a key leads, and
the others wait. When it has finished, the next one leads, and everybody who waits by then is decided in its one swap.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

from ratebound.errors import StorageError
from ratebound.storage.blame import Blameless, TooLate

J = TypeVar("J")
Swap = Callable[[list[J], float], Sequence[Any]]  # the jobs to decide in one swap, until when, and their answers
LEAST = 0.005  # seconds that a caller must have left to try again, after the one that led it has run out of time
LOST = 1.0  # seconds after its deadline, a caller that leads is taken for lost: a signal handler raised in it


class SwapTurn(Generic[J]):
    """The jobs of one caller, and later their answers.

    A caller leads if `led` is not empty: it has its own turn, and those that are decided with it. `called` gets
    something when a caller that waits has answers or an error, or leads.
    """

    __slots__ = ("answers", "began", "called", "error", "jobs", "led", "line", "until")

    def __init__(self, jobs: list[J], until: float) -> None:
        self.jobs = jobs
        self.until = until
        self.began = False  # as the one that leads
        self.called: SimpleQueue[None] | None = None  # no Event: a signal handler could leave its lock held
        self.answers: Sequence[Any] | None = None
        self.error: StorageError | None = None
        self.led: list[SwapTurn[J]] = []
        self.line: KeyLine[J] | None = None

    @property
    def is_over(self) -> bool:
        """True if there are answers, or an error."""
        return self.answers is not None or self.error is not None


class KeyLine(Generic[J]):
    """The turns that wait for one key, and the deadline of the one that leads."""

    __slots__ = ("until", "waiting")

    def __init__(self, until: float) -> None:
        self.until = until
        self.waiting: list[SwapTurn[J]] = []


class KeyLines(Generic[J]):
    """The lines of all keys in which somebody is. It is thread-safe."""

    def __init__(self) -> None:
        self.renew()

    def __len__(self) -> int:
        return len(self._lines)

    def renew(self) -> None:
        """Forget all lines: in a forked child, nobody stands in them."""
        self._lock = threading.Lock()
        self._lines: dict[bytes, KeyLine[J]] = {}

    def run(self, name: bytes, jobs: list[J], until: float, swap: Swap[J]) -> Sequence[Any]:
        """Return the answers to jobs of an item, from a swap of this caller or of one before it.

        `swap(jobs, until)` returns an answer for each job, or raises StorageError. Raises StorageError at `until`.
        """
        turn = SwapTurn(jobs, until)
        try:
            with self._lock:
                line = self._lines.get(name)
                if line is None or line.until + LOST < monotonic():
                    turn.line = self._lines[name] = KeyLine(until)
                    turn.led = [turn]
                else:
                    turn.line, turn.called = line, SimpleQueue()
                    line.waiting.append(turn)
            if turn.called is not None:
                with suppress(Empty):
                    turn.called.get(timeout=max(until - monotonic(), 0.0))
                self._leave(turn)
            if turn.led:
                _lead(turn, swap)
        finally:
            self._leave(turn)
            if turn.led:
                self._hand_over(name, turn)
        if turn.answers is None:
            assert turn.error is not None
            raise turn.error
        return turn.answers

    def _leave(self, turn: SwapTurn[J]) -> None:
        """Give a turn its error if it neither leads nor is over: its time is up, or a signal handler raised."""
        if turn.led or turn.is_over:
            return
        with self._lock:
            if turn.led or turn.is_over:
                return
            if turn.line is None:
                turn.error = Blameless("the call was interrupted", undone=True)
            elif turn in turn.line.waiting:
                turn.line.waiting.remove(turn)
                turn.error = Blameless("there are more calls for one key than Memcached answers in time", undone=True)
            else:
                turn.error = TooLate("Memcached did not answer in time; it is unknown whether it decided")

    def _hand_over(self, name: bytes, turn: SwapTurn[J]) -> None:
        """End the turn that leads: tell those that it led, and let the next one lead."""
        others = turn.led[1:]
        error = turn.error
        if not turn.is_over:
            error = turn.error = Blameless("a signal handler interrupted the decision", undone=not turn.began)
        again: list[SwapTurn[J]] = []
        with self._lock:
            for one in others:
                if one.is_over or error is None:
                    continue
                # The time of the caller that led is up, which need not be so for this one.
                if error.undone and _is_own(error) and one.until > monotonic() + LEAST:
                    again.append(one)
                else:
                    one.error = copy(error)
            line = turn.line
            assert line is not None
            next_turns = again + line.waiting
            is_ours = self._lines.get(name) is line
            if next_turns:
                first = next_turns[0]
                fresh: KeyLine[J] = KeyLine(first.until)
                for one in next_turns:
                    one.line = fresh
                if is_ours:
                    self._lines[name] = fresh
                first.led = next_turns
            elif is_ours:
                del self._lines[name]
            turn.led = []
        for one in (*(one for one in others if one.is_over), *next_turns[:1]):
            if one.called is not None:
                one.called.put(None)


def _lead(turn: SwapTurn[J], swap: Swap[J]) -> None:
    jobs = [job for one in turn.led for job in one.jobs]
    turn.began = True
    try:
        answers = swap(jobs, turn.until)
    except StorageError as error:
        turn.error = error
        return
    place = 0
    for one in turn.led:
        one.answers = answers[place : place + len(one.jobs)]
        place += len(one.jobs)


def _is_own(error: StorageError) -> bool:
    """Return True if an error is about the caller's own time, and not about the server."""
    return isinstance(error, TooLate | Blameless) or not error.outage
