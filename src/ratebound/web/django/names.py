"""Under which names the limits of views count. They are those of the code; where that has one name for several views,
as for one class at two URLs, their order in the URLconf tells them apart: it is the same in every process. A limit that
was put on a view in another URLconf than the root one has that URLconf's name in its own."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ratebound.web.declared import RouteLimit, declared, short_name
from ratebound.web.views import full_name

Places = dict[str, dict[RouteLimit, int]]  # by the name of a view: its limits, numbered


def class_of(view: Any) -> Any:
    """The class behind `as_view()`; None for a function."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def view_name(view: Any) -> str:
    """Module and name in full of a function or class, or of the class behind `as_view()`."""
    view = class_of(view) or view
    while isinstance(view, functools.partial):
        view = view.func
    full, own = full_name(view), getattr(view, "__name__", None)
    if own is not None and full.rpartition(".")[2] != own:  # `@api_view` gives its classes no other name than this
        full = f"{full.rpartition('.')[0]}.{own}"
    return full


def bound_name(function: Callable[..., Any]) -> str:
    """That of a view as it is called. A method may be inherited: it goes by the class of its instance."""
    owner, method = owner_of(function)
    if owner is None:
        return view_name(function)
    return view_name(type(owner)) if method == "dispatch" else f"{view_name(type(owner))}.{method}"


def owner_of(function: Callable[..., Any]) -> tuple[Any, str]:
    """The instance that a method was bound to, as `method_decorator` does it, and the method's name."""
    inner: Any = inspect.unwrap(function, stop=lambda one: isinstance(one, functools.partial))
    method = inner.func if isinstance(inner, functools.partial) else None
    return getattr(method, "__self__", None), getattr(method, "__name__", "")


def places(views: Iterable[Callable[..., Any]], *, in_code: bool = True) -> Places:
    """Return where limits stand, by the order of all views; without `in_code` only those that the URLconf adds."""
    found: Places = {}
    for view in views:
        left_out = () if in_code else _marks_in_code(view)
        for mark in declared(view):
            if mark is not None and mark not in left_out:
                known = found.setdefault(view_name(view), {})
                known.setdefault(mark, len(known))
    return found


def _marks_in_code(view: Any) -> tuple[RouteLimit | None, ...]:
    """Return what is declared where the view is defined: every URLconf that has the view has these."""
    of_class = class_of(view)
    if of_class is not None:
        return declared(of_class.dispatch)
    module = sys.modules.get(getattr(view, "__module__", ""))
    found: Any = getattr(module, getattr(view, "__name__", ""), None)
    return declared(found)


def urlconf_name(urlconf: Any) -> str:
    """Return the name of a URLconf, given as a module's name, a module, or patterns."""
    if isinstance(urlconf, str):
        return urlconf
    return str(getattr(urlconf, "__name__", None) or repr(urlconf))


def numbered(full: str, place: int) -> str:
    """The name of a rule for the limit at this place of a view."""
    name = short_name(full)
    if not place:
        return name
    return f"{name}-{place + 1}" if place < 99 else short_name(f"{full}-{place + 1}")
