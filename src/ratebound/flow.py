"""Flows: generators without I/O that yield functions to call, and are sent what these return.

`run` drives a flow in a thread; `run_async` drives it in a task, and awaits what can be awaited. `run_at_once` runs a
coroutine that has nothing to wait for.
"""

import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[], Any]
Flow = Generator[Step, Any, T]


def run(flow: Flow[T]) -> T:
    """Drive a flow in this thread, and return its result."""
    try:
        step = next(flow)
        while True:
            try:
                value = step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def run_async(flow: Flow[T]) -> T:
    """Drive a flow in this task, and return its result."""
    try:
        step = next(flow)
        while True:
            try:
                value = step()
                if inspect.isawaitable(value):
                    value = await value
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Paused(RuntimeError):
    """A coroutine has paused where it must not."""


def run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not pause, without a task. Raises Paused if it pauses."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise Paused("a coroutine that must not pause has paused: a function of the policy returned an awaitable")
