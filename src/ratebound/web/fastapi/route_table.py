"""The endpoint that a request will be routed to, found before the router runs. For routers that go through a list.

It reads a router's routes as Starlette describes them (a regular expression, methods, an endpoint, routes mounted
below) and goes through them in the same order. Nothing of the router is changed.
"""

import functools
import re
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

from ratebound.web.route_limit import Endpoint, RouteLimit, join

Scope = MutableMapping[str, Any]
MAX_PATHS = 4096  # whose results are remembered
MAX_LENGTH = 256  # characters of a request that is remembered: longer ones are looked up each time
FRAMEWORKS = ("starlette", "fastapi")  # whose routes match as they are described
REST = re.compile(r"\{([^{}:]+):path\}")
CONVERTOR = re.compile(r"\{([^{}:]+):[^{}]*\}")
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY")  # that a class may have a function for


class FoundRoute(NamedTuple):
    """The limits of an endpoint, and the template of its path. `is_dashboard` is True if the dashboard of these limits
    is mounted there."""

    endpoint: Endpoint | None = None
    template: str | None = None
    is_dashboard: bool = False


NOTHING = FoundRoute()


class RouteReader(Protocol):
    """The reader of a table: knows what only the framework knows."""

    def depended(self, route: Any) -> Sequence[RouteLimit]:
        """Return the limits that a route has as dependencies."""

    def is_dashboard(self, app: object) -> bool:
        """Return True if this application is the dashboard of the limits of this reader."""

    def is_spared(self, route: Any) -> bool:
        """Return True if a route leads to a page of the framework itself, which is not limited by default."""

    def marks(self, function: Any) -> Sequence[RouteLimit | None]:
        """Return the limits of a function that this reader checks."""

    def named(self, function: Any, index: int, limit: RouteLimit, where: str) -> Endpoint:
        """Return one limit of a function as an endpoint of its own."""


class RouteTable:
    """The routes of an application."""

    def __init__(self, routes: Iterable[Any], reader: RouteReader, prefix: str = "") -> None:
        self.routes = [TableRoute(route, reader, prefix) for route in flat_routes(routes)]
        self.known: dict[tuple[str, str, str, str], FoundRoute] = {}  # by kind, method, path and host
        self.has_hosts: bool = any(
            route.of_host is not None or (route.below is not None and route.below.has_hosts) for route in self.routes
        )

    def endpoints(self) -> Iterable[Endpoint]:
        """Yield the endpoints of all routes that have limits."""
        for route in self.routes:
            yield from route.endpoints()

    def find(self, kind: str, method: str, path: str, host: str = "") -> FoundRoute:
        """Return the route of a request. The host matters only if the table `has_hosts`."""
        known = self.known.get((kind, method, path, host))
        if known is None:
            known = self._find(kind, method, path, host)
            if len(method) + len(path) + len(host) <= MAX_LENGTH:
                if len(self.known) >= MAX_PATHS:
                    self.known.clear()
                self.known[kind, method, path, host] = known
        return known

    def path_params(self, kind: str, method: str, path: str, host: str = "") -> dict[str, Any]:
        """Return the path parameters that the router will find for a request."""
        found: dict[str, Any] = {}
        for route, match in self._walk(kind, method, path, host)[2]:
            found |= route.params(match)
        return found

    def _find(self, kind: str, method: str, path: str, host: str) -> FoundRoute:
        route, takes_method, _ = self._walk(kind, method, path, host)
        if route is None:
            return NOTHING
        return route.found(method) if takes_method else FoundRoute(None, route.template)

    def _walk(self, kind: str, method: str, path: str, host: str) -> "_Walk":
        """Go through the routes as the router does. Return the route, True if it takes the method (else the response
        is a 405, and the endpoint does not run), and all matches on the way."""
        partial: _Walk = (None, False, [])
        for route in self.routes:
            if route.of_host is not None:
                match = route.of_host.match(host)
                if match is not None and route.is_dashboard:
                    return route, True, [(route, match)]
                if match is not None:
                    return _LOST if route.below is None else _below(route, match, kind, method, path, host)
                continue
            match = route.regex.match(path) if route.regex is not None else None
            if match is None:
                continue
            if route.decides_itself:
                return _LOST
            if route.below is not None:
                return _below(route, match, kind, method, "/" + match["path"], host)
            if route.kind not in ("", kind):
                continue
            if kind == "websocket" or not route.methods or method in route.methods:
                return route, True, [(route, match)]
            if partial[0] is None:
                partial = route, False, [(route, match)]
        return partial


_Walk = tuple["TableRoute | None", bool, list[tuple["TableRoute", re.Match[str]]]]
_LOST: _Walk = (None, False, [])


def _below(route: "TableRoute", match: re.Match[str], kind: str, method: str, path: str, host: str) -> _Walk:
    assert route.below is not None
    found, takes_method, matched = route.below._walk(kind, method, path, host)
    return found, takes_method, [(route, match), *matched]


class TableRoute:
    """A route, or all routes that are mounted at one path."""

    def __init__(self, route: Any, reader: RouteReader, prefix: str) -> None:
        self.regex: re.Pattern[str] | None = getattr(route, "path_regex", None)
        self.of_host: re.Pattern[str] | None = getattr(route, "host_regex", None) if self.regex is None else None
        self.methods: frozenset[str] = frozenset(getattr(route, "methods", None) or ())
        path = getattr(route, "path", "") or ""
        mounted = (getattr(route, "routes", None) or ()) if self.regex is not None or self.of_host is not None else ()
        self.below = RouteTable(mounted, reader, prefix + path) if mounted else None
        function = getattr(route, "endpoint", None) or getattr(route, "app", None)
        self._partials: list[Any] = []
        while isinstance(function, functools.partial):
            self._partials.append(function)
            function = function.func
        self.function: Any = function
        plain = getattr(route, "original_route", route)  # FastAPI's view of an included route has every attribute
        matches = getattr(type(plain), "matches", None)
        # A class of the application's own may match in its own way.
        self.decides_itself = getattr(matches, "__module__", "starlette").partition(".")[0] not in FRAMEWORKS
        is_mount = not hasattr(plain, "endpoint")
        self.is_dashboard = is_mount and reader.is_dashboard(getattr(plain, "_base_app", getattr(plain, "app", None)))
        self.kind = "" if is_mount else "http" if hasattr(plain, "methods") else "websocket"
        self.template = _template(prefix + path + ("/{path:path}" if is_mount else ""))
        self._convertors: dict[str, Any] = {**(getattr(route, "param_convertors", None) or {})}
        if is_mount and self.of_host is None:
            self._convertors.pop("path", None)  # the rest of the path
        self.path_format = str(getattr(route, "path_format", path))
        self.is_spared = not is_mount and reader.is_spared(plain)
        self._more = tuple(reader.depended(route))
        self.dependant = getattr(route, "dependant", None)
        self._reader = reader
        self._found: dict[str, FoundRoute] = {}

    def params(self, match: re.Match[str]) -> dict[str, Any]:
        """Return the path parameters of a match, converted."""
        return {name: convertor.convert(match[name]) for name, convertor in self._convertors.items()}

    def found(self, method: str) -> FoundRoute:
        """Return the limits of this route for a method, and its template."""
        verb = method if method in self._verbs() else ""  # a method that a client invents is not remembered
        known = self._found.get(verb)
        if known is None:
            known = self._found[verb] = FoundRoute(self._endpoint(verb), self.template, self.is_dashboard)
        return known

    def endpoints(self) -> Iterable[Endpoint]:
        """Yield the endpoints of this route and of all below it."""
        if self.below is not None:
            yield from self.below.endpoints()
        else:
            for verb in self._verbs() or ("",):
                endpoint = self.found(verb).endpoint
                if endpoint is not None:
                    yield endpoint

    def _verbs(self) -> Sequence[str]:
        return VERBS if isinstance(self.function, type) else ()

    def _endpoint(self, verb: str) -> Endpoint | None:
        if self.function is None:
            return None
        if self.is_spared:
            return Endpoint("documentation", (), spared_path=self.template)
        own = getattr(self.function, verb.lower(), None) if verb else None
        if verb == "HEAD" and own is None:
            own = getattr(self.function, "get", None)  # which then answers
        of_own = () if own is None else self._declared(own, ())
        return join(*of_own, *self._declared(self.function, self._more))

    def _declared(self, function: Any, more: Sequence[RouteLimit]) -> list[Endpoint]:
        """Return an endpoint for each limit of a function."""
        layers = [function, *reversed(self._partials)] if function is self.function else [function]
        marks = (*(mark for layer in layers for mark in self._reader.marks(layer)), *more)
        limits = [mark for mark in marks if mark is not None]
        found = [self._reader.named(function, index, limit, self.template) for index, limit in enumerate(limits)]
        return [*found, Endpoint("exempt", (), exempt=True)] if None in marks else found


def flat_routes(routes: Iterable[Any]) -> Iterable[Any]:
    """Return routes with those of included routers in their places, where FastAPI keeps routers apart."""
    try:
        from fastapi import routing
    except ModuleNotFoundError:
        return routes
    flat: Callable[[Any], Iterable[Any]] | None = getattr(routing, "iter_route_contexts", None)
    return routes if flat is None else flat(list(routes))


def _template(path: str) -> str:
    """Return a path as a policy writes it: `/files/{path*}`, without convertors."""
    return CONVERTOR.sub(r"{\1}", REST.sub(r"{\1*}", path))


def route_path(scope: Scope) -> str:
    """Return the path below the mount of the application."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("/", ""):
        return path[len(root) :]
    return path


def host_of(scope: Scope) -> str:
    """Return the requested host, as routers compare it: without the port."""
    for name, value in scope["headers"]:
        if name.lower() == b"host":
            host = str(value.decode("latin-1")).lower()
            return host if host.endswith("]") else host.rpartition(":")[0] or host
    return ""
