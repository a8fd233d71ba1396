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

UNASKED = (
    "nobody asks for the limits of {name}, and it would be unlimited: call limits.install(app) for the application that"
    " serves it. Outside of a request call {name}.__wrapped__, or use ratebound.testing.limiting_off()"
)
HELD_UP = (
    "a plain function with limits of its own was called by a coroutine, which they would hold up: make it async,"
    " await run_in_threadpool(function), or put functools.wraps on the decorator that hides it"
)


def checked(endpoint: Any, check: Check, wait: Wait) -> Any:
    """The same function, of the same kind and with the same signature; or the same class, or the same object."""
    if inspect.isclass(endpoint):
        return _checked_class(endpoint, check)
    if inspect.isfunction(type(endpoint).__call__):
        return _checked_object(endpoint, check, wait)
    made = next(make(endpoint, check, wait) for is_kind, make in KINDS if is_kind(endpoint))
    # With the globals of the endpoint's own module: that is where FastAPI looks up what annotations name.
    names = getattr(inspect.unwrap(endpoint), "__globals__", {})
    copy = types.FunctionType(made.__code__, names, endpoint.__name__, None, made.__closure__)
    return functools.update_wrapper(copy, endpoint)


def can_be_checked(endpoint: Any) -> bool:
    """Whether it can be seen to that its limits are asked, whoever calls it."""
    return callable(endpoint) and not isinstance(endpoint, staticmethod | classmethod | types.MethodType)


def own_partial(endpoint: functools.partial[Any]) -> functools.partial[Any]:
    """One of a function of its own, on which limits can be noted: the function itself may be served as it is, too."""
    function = endpoint.func
    if not inspect.isfunction(function):
        raise TypeError(f"expected a partial of a function, not of {function!r}: put it into a function")
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return functools.partial(made, *endpoint.args, **endpoint.keywords)


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
        parts = function(*args, **kwargs)
        step = anext(parts)
        try:
            while True:
                try:
                    part = await step
                except StopAsyncIteration:
                    return
                try:
                    step = parts.asend((yield part))
                except GeneratorExit:
                    raise
                except BaseException as error:  # what a dependency cleans up after is raised where it waits
                    step = parts.athrow(error)
        finally:
            await parts.aclose()

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
    (callable, _plain),  # functions, and what other packages make of them
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


def _checked_object(endpoint: Any, check: Check, wait: Wait) -> Any:
    """It stays what it is, for a router may have it already; but it is of a class of its own, that asks first."""
    kind: type = type(endpoint)
    call = checked(kind.__call__, lambda _: check(endpoint), wait)
    names = {"__call__": call, "__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    endpoint.__class__ = type(kind.__name__, (kind,), names)
    return endpoint


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
