"""Waiting for a database, by a thread or by a task, until an instant.

A flow is a generator that yields what it waits for. It is written once; `run` and `run_async` wait for it. When the
instant has passed, they throw LinkLate into the flow. A flow that is left, because its task is cancelled or a signal
handler raised, is closed.
"""

import asyncio
import select
import socket
import time
from collections.abc import Generator
from functools import partial
from queue import Empty
from typing import Any, NamedTuple, TypeVar

from ratebound.storage.postgres.failure import LinkLate, LinkLost
from ratebound.storage.threads import Threads

READ, WRITE = 1, 2
T = TypeVar("T")


class Wait(NamedTuple):
    """Wait until a socket can be read or written. `socket` is -1 for a pause, which ends at `until`."""

    socket: int
    events: int
    until: float  # by time.monotonic()


class Resolution(NamedTuple):
    """Wait for the addresses of a host."""

    host: str
    until: float


Step = Wait | Resolution
Steps = Generator[Step, Any, T]

_threads = Threads(8)  # a resolver may hang


def pause(until: float) -> Steps[None]:
    """Do nothing until an instant."""
    try:
        yield Wait(-1, 0, until)
    except LinkLate:
        return


def run(steps: Steps[T]) -> T:
    """Run a flow in this thread, and return what it returns."""
    try:
        step = next(steps)
        while True:
            answer = None
            try:
                if isinstance(step, Wait):
                    _wait(step)
                else:
                    answer = _resolve(step)
            except (LinkLate, LinkLost) as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _wait(step: Wait) -> None:
    left = step.until - time.monotonic()
    if step.socket < 0:
        time.sleep(max(left, 0.0))
        raise LinkLate
    poll = select.poll()
    poll.register(step.socket, (select.POLLIN if step.events & READ else 0) | (step.events & WRITE and select.POLLOUT))
    if not poll.poll(max(left, 0.0) * 1000):  # rounded up to milliseconds
        raise LinkLate


def _resolve(step: Resolution) -> list[str]:
    replies = _threads.start(partial(_addresses, step.host))
    if replies is None:
        raise LinkLate
    try:
        reply = replies.get(timeout=max(step.until - time.monotonic(), 0.0))
    except Empty:
        raise LinkLate from None
    return _resolved(step.host, reply.value, reply.error)


async def run_async(steps: Steps[T]) -> T:
    """Run a flow in this task, and return what it returns."""
    try:
        step = next(steps)
        while True:
            failed: Exception | None = None
            answer = None
            try:
                answer = await (_wait_async(step) if isinstance(step, Wait) else _resolve_async(step))
            except (LinkLate, LinkLost) as error:
                failed = error
            step = steps.send(answer) if failed is None else steps.throw(failed)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def _wait_async(step: Wait) -> None:
    loop = asyncio.get_running_loop()
    left = step.until - time.monotonic()
    if step.socket < 0:
        await asyncio.sleep(max(left, 0.0))
        raise LinkLate
    ready: asyncio.Future[bool] = loop.create_future()
    if step.events & READ:
        loop.add_reader(step.socket, _set, ready, True)
    if step.events & WRITE:
        loop.add_writer(step.socket, _set, ready, True)
    timer = loop.call_later(max(left, 0.0), _set, ready, False)
    try:
        in_time = await ready
    finally:
        timer.cancel()
        if step.events & READ:
            loop.remove_reader(step.socket)
        if step.events & WRITE:
            loop.remove_writer(step.socket)
    if not in_time:
        raise LinkLate


async def _resolve_async(step: Resolution) -> list[str]:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def work() -> None:
        value, error = None, None
        try:
            value = _addresses(step.host)
        except OSError as failed:
            error = failed
        loop.call_soon_threadsafe(_set, ready, (value, error))  # raises in this thread if the loop has ended

    if _threads.start(work) is None:
        raise LinkLate
    try:
        async with asyncio.timeout(max(step.until - time.monotonic(), 0.0)):
            value, failed = await ready
    except TimeoutError:
        raise LinkLate from None
    return _resolved(step.host, value, failed)


def _set(ready: "asyncio.Future[Any]", value: Any) -> None:
    if not ready.done():
        ready.set_result(value)


def _addresses(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _resolved(host: str, found: list[str] | None, error: BaseException | None) -> list[str]:
    if not found:
        raise LinkLost(f"the name {host!r} has no address ({error})")
    return found
