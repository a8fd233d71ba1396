"""RESP, the protocol of Redis: commands in, answers out, in order. What they mean is for resp_commands.py.

Everything that one read brought is answered by one write. An answer is bytes if it was found at once, else something to
await. At most `bounds.pending` commands of a connection are awaited at the same time, and only such that have the same
effect. The others wait as they were received, and the peer is not read from until all of them are begun.
"""

import asyncio
import logging
from collections import deque
from typing import Any

from ratebound.service.connections import Connections
from ratebound.service.resp_commands import RespCommands, effect_of
from ratebound.service.resp_reader import CommandReader

log = logging.getLogger("ratebound.service")

TOO_MANY = b"-ERR max number of clients reached\r\n"
NOT_ANSWERED = b"-ERR The command could not be answered.\r\n"
MOST_WITHOUT_TOKEN = 16 * 1024  # bytes of a command before AUTH
WRITE_AT = 64 * 1024  # bytes of answers that are collected before they are written


class RespConnection(asyncio.Protocol):
    """One connection. `commands` answers what it sends."""

    __slots__ = (
        "_answers",
        "_begun",
        "_commands",
        "_connections",
        "_effect",
        "_ending",
        "_held",
        "_is_paused",
        "_is_reading",
        "_is_refused",
        "_is_small",
        "_last",
        "_loop",
        "_may_linger",
        "_reader",
        "_session",
        "_tasks",
        "_transport",
        "_waiting",
        "_will_write",
    )

    def __init__(self, commands: RespCommands, connections: Connections) -> None:
        self._commands = commands
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._session = commands.new_session()
        body = connections.bounds.body
        self._is_small = not self._session.is_allowed  # commands are short before AUTH
        self._reader = CommandReader(min(body, MOST_WITHOUT_TOKEN) if self._is_small else body)
        self._transport: Any = None
        self._waiting: deque[list[bytes]] = deque()  # commands that nobody has begun to answer
        # Answers in the order of their commands: bytes, or a task that will return them. The first one is a task.
        self._answers: deque[bytes | asyncio.Task[bytes]] = deque()
        self._tasks = 0  # that are not done
        self._effect = 0  # of their commands
        self._held = 0  # bytes in `_answers`
        self._will_write = False
        self._ending = False  # after the answers that are left
        self._is_refused = False  # the peer has sent what is no command
        self._may_linger = True  # the peer may still send
        self._is_paused = False  # the peer does not read its answers
        self._is_reading = True
        self._begun: float | None = None  # when the command that is being read began
        self._last = self._loop.time()  # when something happened last

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, or refuse it."""
        self._transport = transport
        if not self._connections.add(self):
            transport.write(TOO_MANY)
            transport.close()
            self._ending = True

    def data_received(self, data: bytes) -> None:
        """Read what has come, answer it, and write all answers that are ready at once."""
        if self._ending:
            return
        self._last = self._loop.time()
        reader = self._reader
        received = reader.read(data)
        if reader.is_within_command:
            if self._begun is None or received:
                self._begun = self._last
        else:
            self._begun = None
        self._waiting += received
        self._answer_waiting()

    def eof_received(self) -> bool:
        """Answer what was received; the peer may still read. With TLS it may not."""
        self.finish()
        return bool(self._transport.can_write_eof())

    def connection_lost(self, error: Exception | None) -> None:
        """End what is still being answered: nobody waits for it."""
        self._ending = True
        self._connections.remove(self)
        self._waiting.clear()
        for answer in self._answers:
            if not isinstance(answer, bytes):
                # Not at once: a coroutine that is cancelled before its first step never awaits what it was given.
                self._loop.call_soon(answer.cancel)
        self._answers.clear()
        self._transport = None

    def pause_writing(self) -> None:
        """Answer nothing more to a peer that does not read its answers, and read nothing from it."""
        self._is_paused = True
        self._last = self._loop.time()
        self._read_if_possible()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        self._last = self._loop.time()
        if self._transport is not None:
            self._answer_waiting()

    # Answers

    def _answer_waiting(self) -> None:
        """Answer the commands that wait, as far as there is place, and write what is ready."""
        waiting, session, answers = self._waiting, self._session, self._answers
        answer_to, most = self._commands.answer, self._connections.bounds.pending
        ready: list[bytes] = []
        size = 0
        while waiting and self._tasks < most and self._held < WRITE_AT and not self._is_paused:
            if self._tasks and effect_of(waiting[0]) not in (0, self._effect):
                break
            command = waiting.popleft()
            answer = answer_to(session, command)
            if not isinstance(answer, bytes):
                self._effect = effect_of(command)
                task = self._loop.create_task(answer)
                task.add_done_callback(self._answered)
                answers.append(task)
                self._tasks += 1
            elif answers:
                answers.append(answer)
                self._held += len(answer)
            else:
                ready.append(answer)
                size += len(answer)
                if size >= WRITE_AT:
                    self._transport.write(b"".join(ready))  # this may pause writing
                    ready.clear()
                    size = 0
            if session.is_ending:
                self._ending = True
                waiting.clear()
        if ready:
            self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if self._reader.error and not waiting and not session.is_ending:
            self._refuse(self._reader.error)
        elif self._ending:
            self._close_if_answered()
        elif waiting or not self._is_reading:
            self._read_if_possible()
        if self._is_small and session.is_allowed:
            self._is_small = False
            self._reader.most = self._connections.bounds.body

    def _refuse(self, error: str) -> None:
        """Say behind all answers what is wrong, and end."""
        if not self._is_refused:
            self._ending = self._is_refused = True
            refusal = b"-ERR Protocol error: %b\r\n" % error.encode()
            if self._answers:
                self._answers.append(refusal)
                self._held += len(refusal)
            else:
                self._transport.write(refusal)
        self._close_if_answered()

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        """Write soon: answers that come in the same turn of the event loop are written together."""
        self._tasks -= 1
        if not self._will_write and self._transport is not None:
            self._will_write = True
            self._loop.call_soon(self._write_answers)

    def _write_answers(self) -> None:
        """Write the answers that are ready, in order, and go on."""
        self._will_write = False
        if self._transport is None:  # the connection was lost
            return
        self._last = self._loop.time()
        answers = self._answers
        ready: list[bytes] = []
        while answers:
            first = answers[0]
            if isinstance(first, bytes):
                self._held -= len(first)
                ready.append(first)
            elif first.done():
                ready.append(_result(first))
            else:
                break
            answers.popleft()
        if ready:
            self._transport.write(b"".join(ready))
        self._answer_waiting()

    def _close_if_answered(self) -> None:
        if self._answers or self._waiting:
            return
        if self._is_refused and self._may_linger and self._transport.can_write_eof():
            # Closed while the peer still sends, the connection would be reset, and the peer might not see why.
            self._transport.write_eof()
            self._read_if_possible()  # up to the peer's own end
        else:
            self._transport.close()

    def _read_if_possible(self) -> None:
        """Read from the peer if nothing that it sent waits to be answered."""
        reads = not (self._waiting or self._is_paused)
        if reads is not self._is_reading and self._transport is not None:
            self._is_reading = reads
            if reads:
                if self._begun is not None:
                    self._begun = self._loop.time()  # the peer could not go on until now
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # What its worker calls

    def finish(self) -> None:
        """Answer what was received, then close."""
        self._ending = True
        self._may_linger = False
        if self._transport is not None:
            self._close_if_answered()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Close if no command came for long, if one is too slow, or if its answers are not read."""
        bounds = self._connections.bounds
        if self._is_paused or self._is_refused:
            if now - self._last > bounds.request:
                self._transport.abort()
        elif self._begun is not None and self._is_reading and now - self._begun > bounds.request:
            self._refuse("the command took too long")
        elif not self._answers and now - self._last > bounds.idle:
            self._transport.close()


def _result(task: asyncio.Task[bytes]) -> bytes:
    """Return the answer of a task that is done."""
    if not task.cancelled():
        error = task.exception()
        if error is None:
            return task.result()
        log.error("a RESP command could not be answered; the caller got an error", exc_info=error)
    return NOT_ANSWERED
