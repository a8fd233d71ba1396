"""What the rules of endpoints are called: short where that is plain, and never one name for two quotas by accident."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ratebound.web.declared import NAME, RouteLimit, endpoint_name, short_name


class Use(NamedTuple):
    """Who has a name: a limit, of a function, in an application."""

    limit: RouteLimit
    function: Any
    app: int


class Names:
    """`users.list`; with the whole of its module where two modules of one name have it: `shop.users.list`.

    Functions are noted when they are declared or when routes are read, so that every process finds the same names,
    whatever is asked of it first.
    """

    def __init__(self) -> None:
        self._full: dict[str, set[str]] = {}
        self._uses: dict[str, Use] = {}

    def note(self, function: Callable[..., Any]) -> None:
        """This function has limits."""
        self._full.setdefault(endpoint_name(function), set()).add(full_name(function))

    def of(self, function: Callable[..., Any]) -> str:
        """That of a function."""
        short, full = endpoint_name(function), full_name(function)
        return short if self._full.get(short) == {full} else short_name(full)

    def of_limit(self, name: str, place: int, limit: RouteLimit, function: Any, where: str, app: int) -> str:
        """That of a function's limit. `name` is the function's own; `where` tells its routes apart, and `app` the
        applications. What is still one name for two is left to the gate, which raises."""
        if limit.name:
            return limit.name
        name = name if not place else f"{name[: NAME - 3]}-{place + 1}"
        use = self._uses.setdefault(name, Use(limit, function, app))
        if use.limit is limit:
            return name
        if use.app != app:  # a factory of applications makes its functions anew for each
            return self.of_limit(short_name(f"{name}.{app + 1}"), 0, limit, function, where, app)
        if use.function is function and where:
            return self.of_limit(short_name(f"{name}.{where}"), 0, limit, function, "", app)
        return name


def full_name(function: Callable[..., Any]) -> str:
    """As `endpoint_name`, with the whole of the module's name."""
    named: Any = inspect.unwrap(getattr(function, "func", function))
    module = str(getattr(named, "__module__", "") or "").strip("_")
    own = str(getattr(named, "__qualname__", type(named).__qualname__)).rpartition("<locals>.")[2]
    return f"{module}.{own}" if module and module != "main" else own
