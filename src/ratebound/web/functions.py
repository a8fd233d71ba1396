"""Functions that an application gives to a limit. They take the request, or nothing where the framework has it at hand.
A function that takes other arguments raises where the limit is declared, not for each request."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ratebound.policy.functions import binds, check_takes


def taking_request(function: Any, option: str, argument: str = "the RequestView") -> Any:
    """Return a function of the request, also if the given one takes nothing. Other values are returned as they are;
    functions in a list or a mapping are converted. Raises TypeError for a function that takes other arguments."""
    if isinstance(function, list | tuple):
        return [taking_request(one, option, argument) for one in function]
    if option == "distinct" and isinstance(function, Mapping):
        return {name: taking_request(one, option, argument) for name, one in function.items()}
    if not callable(function) or binds(function, 1):
        return function
    if not binds(function, 0):
        check_takes(function, argument, option=option)
        return function
    return _without_request(function)


def _without_request(function: Callable[[], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def called(_: Any) -> Any:
        return function()  # which may be a coroutine, to be awaited

    del called.__wrapped__  # or its signature would be that of the function
    return called
