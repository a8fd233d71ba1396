"""An endpoint that sees to it that its limits were asked before it runs (law 9). It is what it was in all else.

`check` is called with the endpoint, and gives what is left to be awaited first, or None; `wait` awaits that for
functions that cannot. Either may raise: then the endpoint does not run.
"""

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

Left = Coroutine[Any, Any, None]
Check = Callable[[Any], Left | None]
Wait = Callable[[Left], None]


def checked(endpoint: Any, check: Check, wait: Wait) -> Any:
    """The same function, of the same kind and with the same signature; or the same class."""
    if inspect.isclass(endpoint):
        return _checked_class(endpoint, check)
    if not inspect.isfunction(endpoint):
        return endpoint
    made = next(make(endpoint, check, wait) for is_kind, make in KINDS if is_kind(endpoint))
    # With the globals of the endpoint's own module: that is where FastAPI looks up what annotations name.
    copy = types.FunctionType(made.__code__, endpoint.__globals__, endpoint.__name__, None, made.__closure__)
    return functools.update_wrapper(copy, endpoint)


def with_originals(endpoint: Any) -> Iterator[Any]:
    """An endpoint, and those that it was made of here: a router may have one of these, whose decorator came first."""
    yield endpoint
    while getattr(endpoint, "__code__", None) in CODES:
        endpoint = endpoint.__wrapped__
        yield endpoint


def _coroutine(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        if (left := check(function)) is not None:
            await left
        return await function(*args, **kwargs)

    return called


def _async_generator(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        if (left := check(function)) is not None:
            await left
        async for part in function(*args, **kwargs):
            yield part

    return called


def _generator(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if (left := check(function)) is not None:
            wait(left)
        yield from function(*args, **kwargs)

    return called


def _plain(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if (left := check(function)) is not None:
            wait(left)
        return function(*args, **kwargs)

    return called


KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
    (inspect.isfunction, _plain),
)
CODES = {make(None, None, None).__code__ for _, make in KINDS}


def _checked_class(endpoint: Any, check: Check) -> type:
    """Routers make an instance for each request, and await it; one that is not awaited can only be refused."""
    made = getattr(endpoint, "__await__", None)
    if made is None:
        return _checked_init(endpoint, check)

    @functools.wraps(made)
    def __await__(self: Any) -> Any:
        if (left := check(type(self))) is not None:
            yield from left.__await__()
        return (yield from made(self))

    endpoint.__await__ = __await__
    return endpoint  # type: ignore[no-any-return]


def _checked_init(endpoint: Any, check: Check) -> type:
    made = endpoint.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if (left := check(type(self))) is not None:
            left.close()
            raise RuntimeError(f"nobody has asked for the limits of {endpoint!r}: no route was found that leads to it")
        made(self, *args, **kwargs)

    endpoint.__init__ = __init__
    return endpoint  # type: ignore[no-any-return]
