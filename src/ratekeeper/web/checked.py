"""An endpoint that fails loudly where nobody would ask for its limits (law 9). It is what it was in all else."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any


def checked(endpoint: Any, check: Callable[[], None]) -> Any:
    """The same function, of the same kind and with the same signature; or the same class."""
    if inspect.isclass(endpoint):
        return _checked_class(endpoint, check)
    if not inspect.isfunction(endpoint):
        return endpoint
    made = next(make(endpoint, check) for is_kind, make in KINDS if is_kind(endpoint))
    # With the globals of the endpoint's own module: that is where FastAPI looks up what annotations name.
    copy = types.FunctionType(made.__code__, endpoint.__globals__, endpoint.__name__, None, made.__closure__)
    return functools.update_wrapper(copy, endpoint)


def _coroutine(function: Callable[..., Any], check: Callable[[], None]) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        check()
        return await function(*args, **kwargs)

    return called


def _async_generator(function: Callable[..., Any], check: Callable[[], None]) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        check()
        async for part in function(*args, **kwargs):
            yield part

    return called


def _generator(function: Callable[..., Any], check: Callable[[], None]) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        check()
        yield from function(*args, **kwargs)

    return called


def _plain(function: Callable[..., Any], check: Callable[[], None]) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        check()
        return function(*args, **kwargs)

    return called


KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
    (inspect.isfunction, _plain),
)


def _checked_class(endpoint: type, check: Callable[[], None]) -> type:
    """Routers make an instance for each request."""
    made = endpoint.__init__  # type: ignore[misc]

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        check()
        made(self, *args, **kwargs)

    endpoint.__init__ = __init__  # type: ignore[misc]
    return endpoint
