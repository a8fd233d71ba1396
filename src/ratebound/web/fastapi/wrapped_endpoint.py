"""An endpoint that checks its limits before it runs, whoever calls it (law 9). It is otherwise unchanged.

`check` is called with the endpoint, and returns a coroutine to await first, or None; `wait` waits for that coroutine
in functions that cannot await. Either may raise: then the endpoint does not run.
"""

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from ratebound.web.fastapi.running_request import EndpointCheck

Unchecked = Coroutine[Any, Any, None]
Check = Callable[[Any], Unchecked | None]
Wait = Callable[[Unchecked], None]

CHECKS = "__ratebound_checks__"  # the attribute of an object that holds its checks
NOT_INSTALLED = (
    "{name} would run unlimited, since its limits are not installed: call limits.install(app) for the application that"
    " serves it. Outside of a request call {name}.__wrapped__, or use ratebound.testing.limiting_off()"
)
WOULD_BLOCK = (
    "a plain function with limits of its own was called by a coroutine, which they would block: make it async,"
    " await run_in_threadpool(function), or put functools.wraps on the decorator that hides it"
)


def wrap_endpoint(endpoint: Any, check: EndpointCheck, wait: Wait) -> Any:
    """Return the same function, of the same kind and with the same signature; or the same class, or the same object."""
    if inspect.isclass(endpoint):
        return _wrap_class(endpoint, check)
    if inspect.isfunction(type(endpoint).__call__):
        return _wrap_object(endpoint, check, wait)
    return _wrap_function(endpoint, check.of(endpoint), wait)


def _wrap_function(function: Any, check: Check, wait: Wait) -> Any:
    """Wrap a function. `check` is called with the arguments of each call."""
    made = next(make(function, check, wait) for is_kind, make in KINDS if is_kind(function))
    # With the globals of the function's own module: there FastAPI looks up the names of annotations.
    names = getattr(inspect.unwrap(function), "__globals__", {})
    copy = types.FunctionType(made.__code__, names, function.__name__, None, made.__closure__)
    return functools.update_wrapper(copy, function)


def can_be_checked(endpoint: Any) -> bool:
    """Return True if the endpoint can be wrapped."""
    return callable(endpoint) and not isinstance(endpoint, staticmethod | classmethod | types.MethodType)


def own_partial(endpoint: functools.partial[Any]) -> functools.partial[Any]:
    """Return a partial of a copy of its function, on which limits can be noted: the function itself may be served,
    too."""
    function = endpoint.func
    if not inspect.isfunction(function):
        raise TypeError(f"expected a partial of a function, not of {function!r}: write a function that calls it")
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return functools.partial(made, *endpoint.args, **endpoint.keywords)


def with_originals(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint, and those that it was wrapped around here: a router may have one of these, if its decorator
    came first."""
    yield endpoint
    while getattr(endpoint, "__code__", None) in CODES:
        endpoint = endpoint.__wrapped__
        yield endpoint


def _coroutine(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        if (unchecked := check(args)) is not None:
            await unchecked
        return await function(*args, **kwargs)

    return called


def _async_generator(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    async def called(*args: Any, **kwargs: Any) -> Any:
        if (unchecked := check(args)) is not None:
            await unchecked
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
        if (unchecked := check(args)) is not None:
            wait(unchecked)
        yield from function(*args, **kwargs)

    return called


def _plain(function: Callable[..., Any], check: Check, wait: Wait) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if (unchecked := check(args)) is not None:
            wait(unchecked)
        return function(*args, **kwargs)

    return called


KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
    (callable, _plain),  # functions, and callables that other packages make of them
)
CODES = {make(None, None, None).__code__ for _, make in KINDS}


def _wrap_class(endpoint: Any, check: Check) -> type:
    """Wrap a class. Routers create an instance for each request, and await it; an instance that is not awaited cannot
    wait for a check, and raises."""
    name = "__await__" if hasattr(endpoint, "__await__") else "__init__"
    original = getattr(endpoint, name)

    @functools.wraps(original)
    def __await__(self: Any) -> Any:
        if (unchecked := check(type(self))) is not None:
            yield from unchecked.__await__()
        return (yield from original(self))

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if (unchecked := check(type(self))) is not None:
            unchecked.close()
            raise RuntimeError(f"the limits of {endpoint!r} were not checked: no known route leads to it")
        original(self, *args, **kwargs)

    setattr(endpoint, name, __await__ if name == "__await__" else __init__)
    return endpoint  # type: ignore[no-any-return]


def _wrap_object(endpoint: Any, check: Check, wait: Wait) -> Any:
    """Wrap an object, which stays the same: a router may have it already. The checks of each object are kept in it, and
    its class calls them."""
    kind: Any = type(endpoint)
    if CHECKS not in vars(kind):
        kind.__call__ = _wrap_function(kind.__call__, _check_object, wait)
        setattr(kind, CHECKS, ())
    setattr(endpoint, CHECKS, (*getattr(endpoint, CHECKS), check))
    return endpoint


def _check_object(args: Any) -> Unchecked | None:
    endpoint = args[0]
    found = [one for check in getattr(endpoint, CHECKS) if (one := check(endpoint)) is not None]
    return _await_all(found) if found else None


async def _await_all(found: list[Unchecked]) -> None:
    for one in found:
        await one
