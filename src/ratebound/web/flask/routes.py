"""The limits of each endpoint of a Flask application: of its view, of its blueprints, of the application.

All of it is read at the first request: a mistake raises then, whatever was requested. Flask is not imported here: an
application is its `view_functions`, its `blueprints` and its `url_map`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakSet

from ratebound.web.endpoint_rules import log
from ratebound.web.route_limit import Endpoint, RouteLimit, checked_breach, declared
from ratebound.web.rule_names import full_name, method_name, numbered_names, short_name

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
OTHER = ""  # stands for all methods that clients invent, so that they cannot fill the table

Key = tuple[str | None, str]  # the name of an endpoint, None where none was found, and the method
DeclaredEndpoint = tuple[Endpoint | None, tuple[RouteLimit, ...]]  # for the gate, and as its view declares it


class DeclaredLimits(Protocol):
    """The limits that were declared to the extension, by decorator or call."""

    blueprints: dict[Any, list[RouteLimit]]
    exempted: set[Any]
    per_method: WeakSet[RouteLimit]
    limited: WeakSet[Callable[..., Any]]  # functions, as the decorator returns them


class Routes:
    """The endpoints of one application. `default` are the limits of each view, `common` those of all together."""

    def __init__(
        self, app: Any, declarations: DeclaredLimits, default: Sequence[RouteLimit], common: Sequence[RouteLimit]
    ) -> None:
        self._app = app
        self._declarations = declarations
        self._default = default
        self._common = common
        self._nowhere: DeclaredEndpoint = Endpoint("application", common) if common else None, ()

    def all(self) -> Iterator[tuple[Key, DeclaredEndpoint]]:
        """Yield the limits of every view and method of the application, and of requests that find none."""
        self._check_order()
        for method in (*METHODS, OTHER):
            yield (None, method), self._nowhere
        methods = {name: {*METHODS[:1]} for name in self._app.view_functions}
        for rule in self._app.url_map.iter_rules():
            if rule.endpoint in methods:
                methods[rule.endpoint] |= rule.methods or {*METHODS}
        for name, known in methods.items():
            for method in sorted(known):
                yield (name, method), self.of(name, method)

    def of(self, name: str | None, method: str) -> DeclaredEndpoint:
        """Create the limits of an endpoint. Keep the result: gates know an endpoint by identity."""
        if name is None:
            return self._nowhere
        declarations = self._declarations
        groups = [self._app.blueprints[group] for group in _groups(name) if group in self._app.blueprints]
        is_spared = any(group in declarations.exempted for group in groups)
        of_view, of_method = self._marks(name, method)
        own = (*_limits(of_view), *_limits(of_method))
        if None in of_view or None in of_method or (not own and is_spared):
            return Endpoint(self._title(name), (), exempt=True), own
        of_groups = [limit for group in groups for limit in declarations.blueprints.get(group, ())]
        limits = dict.fromkeys([*own, *of_groups], False)  # True: the policy's default rules apply beside it
        applying = [limit for limit in limits if _applies(limit, method)]
        limits.update((limit, limit.keep_defaults) for limit in applying)
        if not is_spared and name != "static" and not name.endswith(".static"):
            keeps = not applying or any(limit.keep_defaults for limit in applying)
            limits.update((limit, keeps) for limit in (*(self._default if keeps else ()), *self._common))
        names = numbered_names(self._title(name), [*_limits(of_view), *of_groups, *self._default])
        names |= numbered_names(self._title(name, method), _limits(of_method))
        named = []
        for limit, keeps in limits.items():
            title = limit.name or names[limit]
            if limit in declarations.per_method:
                title = method_name(title, method)
            named.append(replace(limit, name=title, keep_defaults=keeps))
        return Endpoint(self._title(name), named) if named else None, own

    def _marks(self, name: str, method: str) -> tuple[Sequence[RouteLimit | None], Sequence[RouteLimit | None]]:
        """Return the limits of a view, and of the function of a class-based one for this method."""
        view = self._app.view_functions[name]
        of_class = getattr(view, "view_class", None)
        if of_class is None:
            return declared(view), ()
        function = getattr(of_class, method.lower(), None) or (
            getattr(of_class, "get", None) if method == "HEAD" else None
        )
        return (*declared(view), *declared(of_class.dispatch_request)), declared(function) if function else ()

    def _title(self, name: str, method: str = "") -> str:
        """Return the name of an endpoint, which Flask keeps unique, behind the application's."""
        if "." not in name:
            module = self._app.import_name.rpartition(".")[2].strip("_")
            name = name if module in ("main", "", *self._app.blueprints) else f"{module}.{name}"
        if method:
            name = f"{name}.{'get' if method == 'HEAD' else method.lower()}"
        return short_name(name)

    def _check_order(self) -> None:
        """Raise or log if a limit stands above its route, whose decorator has handed on the function below it."""
        views = {id(view): view for view in self._app.view_functions.values()}
        reached = {id(inner) for view in views.values() for inner in _layers(view)}
        for function in list(self._declarations.limited):
            bare = [inner for inner in _layers(function) if id(inner) in views]
            if id(function) not in reached and bare and not _is_at_its_name(bare[0]):
                told = (
                    f"{short_name(full_name(function))} has its limit above its route, where it limits nothing:"
                    " put @limiter.limit(…) below @app.route(…)"
                )
                if "<locals>" not in function.__qualname__:
                    raise RuntimeError(told)
                # A local name cannot be looked up.
                log.error("%s. Ignore this if another view calls the function", told)


def listed(limits: Any, name: str = "") -> list[RouteLimit]:
    """Return limits of the extension, from a text, a RouteLimit, or a list of these. Texts are one limit together."""
    if not limits:
        return []
    several = limits if isinstance(limits, list | tuple) else [limits]
    texts = [one for one in several if not isinstance(one, RouteLimit)]
    if len(texts) > 1 and all(isinstance(one, str) for one in texts):
        texts = ["; ".join(texts)]
    found = [RouteLimit(limits=text) for text in texts] + [one for one in several if isinstance(one, RouteLimit)]
    names = numbered_names(name, found) if name else {limit: limit.name for limit in found}
    return [replace(checked_breach(one), name=one.name or names[one], keep_defaults=True) for one in found]


def _limits(marks: Iterable[RouteLimit | None]) -> list[RouteLimit]:
    return [mark for mark in marks if mark is not None]


def _applies(limit: RouteLimit, method: str) -> bool:
    """Return True if a limit applies to this method."""
    methods = limit.rule("any").match.methods
    return not methods or method in methods


def _groups(name: str) -> list[str]:
    """Return the blueprints of an endpoint, the innermost first: of 'a.b.view', 'a.b' and 'a'."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function, and those that it wraps."""
    while function is not None:
        yield function
        function = getattr(function, "__dict__", {}).get("__wrapped__")


def _is_at_its_name(function: Any) -> bool:
    """Return True if its module has it under its name: then a function that wraps it is another one."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    return getattr(module, getattr(function, "__name__", ""), None) is function
