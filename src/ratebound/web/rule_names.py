"""Names of rules that endpoints declare, and how several limits of one endpoint are numbered.

A name says where its limit stands in the code, is the same in every process, and is never one name for two quotas by
accident. Every adapter takes its names from here.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

L = TypeVar("L")  # a RouteLimit, which is above this module

MAX_LENGTH = 40  # characters of a rule's name
MARK = "__ratebound__"  # the attribute of a function that holds what it declares

LimitNumbers = dict[str, dict[Any, int]]  # by the name of a view: its limits, numbered from 0


def short_name(full: str) -> str:
    """Return a text as the name of a rule. A digest keeps texts apart that are too long, or hold other characters."""
    text = "".join(c if c.isascii() and (c.isalnum() or c in "_.:-") else "-" for c in full).lstrip("_.:-")
    if text == full and len(text) <= MAX_LENGTH - 3:
        return text
    digest = blake2b(full.encode(), digest_size=3).hexdigest()
    return f"{text[: MAX_LENGTH - 10] or 'endpoint'}-{digest}"


def numbered(name: str, index: int) -> str:
    """Return the name of one of several limits of an endpoint: `login`, then `login-2`, `login-3` and so on."""
    if not index:
        return name
    number = f"-{index + 1}"
    return f"{name[: MAX_LENGTH - len(number)]}{number}"


def numbered_names(name: str, limits: Iterable[L]) -> dict[L, str]:
    """Return a name for each of an endpoint's limits, in their order."""
    return {limit: numbered(name, index) for index, limit in enumerate(dict.fromkeys(limits))}


def method_name(name: str, method: str) -> str:
    """Return the name of a quota for one method. A HEAD counts as a GET."""
    return short_name(f"{name}:{'GET' if method == 'HEAD' else method}")


def endpoint_name(function: Callable[..., Any]) -> str:
    """Return the last part of a function's module and its own name: `users.list`."""
    return short_name(_joined(_module(function).rpartition(".")[2], _qualname(function)))


def qualified_name(function: Callable[..., Any]) -> str:
    """Return `endpoint_name` with the whole name of the module."""
    return _joined(_module(function), _qualname(function))


def full_name(view: Callable[..., Any] | type) -> str:
    """Return module and name of a function or class: two applications may each have a `views.login`."""
    named: Any = view if hasattr(view, "__qualname__") else getattr(view, "func", type(view))
    return f"{named.__module__}.{named.__qualname__.rpartition('<locals>.')[2]}"


def _module(function: Any) -> str:
    return str(getattr(_named(function), "__module__", "") or "")


def _qualname(function: Any) -> str:
    named = _named(function)
    return str(getattr(named, "__qualname__", type(named).__qualname__)).rpartition("<locals>.")[2]


def _named(function: Any) -> Any:
    return inspect.unwrap(getattr(function, "func", function))


def _joined(module: str, own: str) -> str:
    module = module.strip("_")
    return f"{module}.{own}" if module and module != "main" else own


class NameUse(NamedTuple):
    """The holder of a name: a limit of a function in an application."""

    limit: Any
    function: Any
    app: int


class FunctionNames:
    """Names of functions: `users.list`, or `shop.users.list` where two modules named `users` have a `list`.

    Functions are noted when they are declared or when routes are read, so that every process finds the same names
    whichever request comes first.
    """

    def __init__(self) -> None:
        self._qualified: dict[str, set[str]] = {}
        self._uses: dict[str, NameUse] = {}

    def note(self, function: Callable[..., Any]) -> None:
        """Remember a function that has limits."""
        self._qualified.setdefault(endpoint_name(function), set()).add(qualified_name(function))

    def of(self, function: Callable[..., Any]) -> str:
        """Return the name of a function."""
        short, qualified = endpoint_name(function), qualified_name(function)
        return short if self._qualified.get(short) == {qualified} else short_name(qualified)

    def of_limit(self, name: str, index: int, limit: Any, function: Any, where: str, app: int) -> str:
        """Return the name of a function's limit. `name` is the function's own; `where` tells its routes apart, and
        `app` the applications. Two limits that still have one name are left to the gate, which raises."""
        if limit.name:
            return str(limit.name)
        name = numbered(name, index)
        use = self._uses.setdefault(name, NameUse(limit, function, app))
        if use.limit is limit:
            return name
        if use.app != app:  # a factory of applications creates new functions for each
            return self.of_limit(short_name(f"{name}.{app + 1}"), 0, limit, function, where, app)
        if use.function is function and where:
            return self.of_limit(short_name(f"{name}.{where}"), 0, limit, function, "", app)
        return name


def class_of_view(view: Any) -> Any:
    """Return the class behind Django's `as_view()`; None for a function."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def view_name(view: Any) -> str:
    """Return module and name of a Django view: a function, a class, or the class behind `as_view()`."""
    view = class_of_view(view) or view
    while isinstance(view, functools.partial):
        view = view.func
    full, own = full_name(view), getattr(view, "__name__", None)
    if own is not None and full.rpartition(".")[2] != own:  # `@api_view` gives its classes no other name than this
        full = f"{full.rpartition('.')[0]}.{own}"
    return full


def bound_name(function: Callable[..., Any]) -> str:
    """Return the name of a view as it is called. An inherited method is named for the class of its instance."""
    owner, method = owner_of(function)
    if owner is None:
        return view_name(function)
    return view_name(type(owner)) if method == "dispatch" else f"{view_name(type(owner))}.{method}"


def owner_of(function: Callable[..., Any]) -> tuple[Any, str]:
    """Return the instance that a method was bound to, as `method_decorator` does it, and the method's name."""
    inner: Any = inspect.unwrap(function, stop=lambda one: isinstance(one, functools.partial))
    method = inner.func if isinstance(inner, functools.partial) else None
    return getattr(method, "__self__", None), getattr(method, "__name__", "")


def number_limits(views: Iterable[Callable[..., Any]], *, in_code: bool = True) -> LimitNumbers:
    """Number the limits of views by the order of their URLconf; without `in_code` only those that the URLconf adds."""
    found: LimitNumbers = {}
    for view in views:
        left_out = () if in_code else _declared_in_code(view)
        for mark in getattr(view, MARK, ()):
            if mark is not None and mark not in left_out:
                known = found.setdefault(view_name(view), {})
                known.setdefault(mark, len(known))
    return found


def _declared_in_code(view: Any) -> tuple[Any, ...]:
    """Return the limits of a view where it is defined: every URLconf that has the view has these."""
    of_class = class_of_view(view)
    if of_class is not None:
        return getattr(of_class.dispatch, MARK, ())
    module = sys.modules.get(getattr(view, "__module__", ""))
    return getattr(getattr(module, getattr(view, "__name__", ""), None), MARK, ())


def urlconf_name(urlconf: Any) -> str:
    """Return the name of a URLconf, given as a module's name, a module, or patterns."""
    if isinstance(urlconf, str):
        return urlconf
    return str(getattr(urlconf, "__name__", None) or repr(urlconf))
