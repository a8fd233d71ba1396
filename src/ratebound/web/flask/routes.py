"""What holds for each endpoint of a Flask application: limits of its view, of its blueprints, of the application.

All of it is found out at the first request: what is wrong raises then, whatever was asked for. Flask is not imported
here: an application is its `view_functions`, its `blueprints` and its `url_map`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakSet

from ratebound.policy.functions import check_takes
from ratebound.web.declared import NAME, Endpoint, RouteLimit, declared, short_name
from ratebound.web.door import log
from ratebound.web.views import dotted_name, method_name

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
OTHER = ""  # stands for a method that nobody has heard of: the table is not the client's to fill

Key = tuple[str | None, str]  # the name of an endpoint, None where none was found, and the method
Holding = tuple[Endpoint | None, tuple[RouteLimit, ...]]  # as the gate wants it, and as its view declares it


class Said(Protocol):
    """What was said to the extension, by decorator or call."""

    blueprints: dict[Any, list[RouteLimit]]
    exempted: set[Any]
    per_method: WeakSet[RouteLimit]
    limited: WeakSet[Callable[..., Any]]  # functions, as the decorator has made them


class Routes:
    """The endpoints of one application. `default` and `common` are the limits of each view and of all together."""

    def __init__(self, app: Any, said: Said, default: Sequence[RouteLimit], common: Sequence[RouteLimit]) -> None:
        self._app = app
        self._said = said
        self._default = default
        self._common = common
        self._nowhere: Holding = Endpoint("application", common) if common else None, ()

    def all(self) -> Iterator[tuple[Key, Holding]]:
        """For every view and method that the application has, and for requests that find none."""
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

    def of(self, name: str | None, method: str) -> Holding:
        """Make what holds for an endpoint. Keep it: one that is made again is another endpoint to the gate."""
        if name is None:
            return self._nowhere
        said = self._said
        groups = [self._app.blueprints[group] for group in _groups(name) if group in self._app.blueprints]
        is_spared = any(group in said.exempted for group in groups)
        of_view, of_method = self._marks(name, method)
        own = (*_limits(of_view), *_limits(of_method))
        if None in of_view or None in of_method or (not own and is_spared):
            return Endpoint(self._title(name), (), exempt=True), own
        of_groups = [limit for group in groups for limit in said.blueprints.get(group, ())]
        limits = dict.fromkeys([*own, *of_groups], False)  # and whether the policy's default rules hold beside it
        holding = [limit for limit in limits if _holds(limit, method)]
        limits.update((limit, limit.keep_defaults) for limit in holding)
        if not is_spared and name != "static" and not name.endswith(".static"):
            keeps = not holding or any(limit.keep_defaults for limit in holding)
            limits.update((limit, keeps) for limit in (*(self._default if keeps else ()), *self._common))
        names = _named(self._title(name), [*_limits(of_view), *of_groups, *self._default])
        names |= _named(self._title(name, method), _limits(of_method))
        named = []
        for limit, keeps in limits.items():
            title = limit.name or names[limit]
            if limit in said.per_method:
                title = method_name(title, method)
            named.append(replace(limit, name=title, keep_defaults=keeps))
        return Endpoint(self._title(name), named) if named else None, own

    def _marks(self, name: str, method: str) -> tuple[Sequence[RouteLimit | None], Sequence[RouteLimit | None]]:
        """What is declared on a view, and on the function of a class-based one for this method."""
        view = self._app.view_functions[name]
        of_class = getattr(view, "view_class", None)
        if of_class is None:
            return declared(view), ()
        function = getattr(of_class, method.lower(), None) or (
            getattr(of_class, "get", None) if method == "HEAD" else None
        )
        return (*declared(view), *declared(of_class.dispatch_request)), declared(function) if function else ()

    def _title(self, name: str, method: str = "") -> str:
        """That of the endpoint, which Flask keeps unique, behind the application's, unless a blueprint is called so."""
        if "." not in name:
            module = self._app.import_name.rpartition(".")[2].strip("_")
            name = name if module in ("main", "", *self._app.blueprints) else f"{module}.{name}"
        if method:
            name = f"{name}.{'get' if method == 'HEAD' else method.lower()}"
        return short_name(name)

    def _check_order(self) -> None:
        """A route's decorator hands its function on as it is: what is put on it above that is on no view."""
        views = {id(view): view for view in self._app.view_functions.values()}
        reached = {id(inner) for view in views.values() for inner in _layers(view)}
        for function in list(self._said.limited):
            bare = [inner for inner in _layers(function) if id(inner) in views]
            if id(function) not in reached and bare and not _is_at_its_name(bare[0]):
                told = (
                    f"{dotted_name(function)} has its limit above its route, where it limits nothing:"
                    " put @limiter.limit(…) below @app.route(…)"
                )
                if "<locals>" not in function.__qualname__:
                    raise RuntimeError(told)
                log.error("%s (or it is called by another view, and all is well)", told)  # its name is not ours to see


def listed(limits: Any, name: str = "") -> list[RouteLimit]:
    """Limits of the extension: a text, a RouteLimit, or a list of these. Texts go together, as one limit."""
    if not limits:
        return []
    several = limits if isinstance(limits, list | tuple) else [limits]
    texts = [one for one in several if not isinstance(one, RouteLimit)]
    if len(texts) > 1 and all(isinstance(one, str) for one in texts):
        texts = ["; ".join(texts)]
    found = [RouteLimit(limits=text) for text in texts] + [one for one in several if isinstance(one, RouteLimit)]
    names = _named(name, found) if name else {limit: limit.name for limit in found}
    for limit in found:
        if limit.on_breach is not None:
            check_takes(limit.on_breach, "the refusal", option="on_breach")
    return [replace(limit, name=limit.name or names[limit], keep_defaults=True) for limit in found]


def _limits(marks: Iterable[RouteLimit | None]) -> list[RouteLimit]:
    return [mark for mark in marks if mark is not None]


def _named(title: str, limits: Iterable[RouteLimit]) -> dict[RouteLimit, str]:
    """A name for each, the same for all methods: that of the endpoint, with its place from the second on."""
    return {
        limit: f"{title[: NAME - 3]}-{place + 1}" if place else title
        for place, limit in enumerate(dict.fromkeys(limits))
    }


def _holds(limit: RouteLimit, method: str) -> bool:
    """Whether it has anything to say for this method."""
    methods = limit.rule("any").match.methods
    return not methods or method in methods


def _groups(name: str) -> list[str]:
    """The blueprints of an endpoint, the innermost first: of 'a.b.view', 'a.b' and 'a'."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _layers(function: Any) -> Iterator[Any]:
    """A function, and what it was wrapped around."""
    while function is not None:
        yield function
        function = getattr(function, "__dict__", {}).get("__wrapped__")


def _is_at_its_name(function: Any) -> bool:
    """Whether its module has it under its name, so that what was made of it is something beside it."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    return getattr(module, getattr(function, "__name__", ""), None) is function
