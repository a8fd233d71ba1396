"""Which endpoint a request will be routed to, known before the router is asked. For routers that go through a list.

It reads a router's routes as Starlette describes them (a regular expression, methods, an endpoint, routes mounted
below) and goes through them in the same order. Nothing of the router is changed.
"""

import re
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

from ratekeeper.web.declared import Endpoint, RouteLimit, declared, endpoint_of, join

Scope = MutableMapping[str, Any]
MAX_PATHS = 4096  # whose answers are remembered
REST = re.compile(r"\{([^{}:]+):path\}")
CONVERTOR = re.compile(r"\{([^{}:]+):[^{}]*\}")


class Found(NamedTuple):
    """An endpoint, what is declared for it, and the template of its path."""

    endpoint: Endpoint | None = None
    template: str | None = None
    function: Any = None


NOTHING = Found()


class Table:
    """The routes of an application. `flat` gives its routes with those of included routers among them, and
    `depended` the limits that a route has as dependencies."""

    def __init__(
        self,
        routes: Iterable[Any],
        flat: Callable[[Iterable[Any]], Iterable[Any]],
        depended: Callable[[Any], Sequence[RouteLimit]],
        prefix: str = "",
    ) -> None:
        self._routes = [_Route(route, flat, depended, prefix) for route in flat(routes)]
        self._known: dict[tuple[str, str, str], Found] = {}

    def endpoints(self) -> Iterable[Endpoint]:
        """All that is declared anywhere."""
        for route in self._routes:
            yield from route.endpoints()

    def find(self, kind: str, method: str, path: str) -> Found:
        """Where a request for this path will go."""
        known = self._known.get((kind, method, path))
        if known is None:
            if len(self._known) >= MAX_PATHS:
                self._known.clear()
            known = self._known[kind, method, path] = self._find(kind, method, path)
        return known

    def _find(self, kind: str, method: str, path: str) -> Found:
        partial = NOTHING
        for route in self._routes:
            match = route.regex.match(path) if route.regex is not None else None
            if match is None:
                continue
            if route.below is not None:
                return route.below.find(kind, method, "/" + match["path"])
            if route.kind not in ("", kind):
                continue
            if kind == "websocket" or not route.methods or method in route.methods:
                return route.found(method)
            if partial is NOTHING:
                partial = route.found(method)
        return partial


class _Route:
    """One route, or all that is mounted at one place."""

    def __init__(self, route: Any, flat: Any, depended: Any, prefix: str) -> None:
        self.regex: re.Pattern[str] | None = getattr(route, "path_regex", None)
        self.methods: frozenset[str] = frozenset(getattr(route, "methods", None) or ())
        path = getattr(route, "path", "") or ""
        mounted = getattr(route, "routes", None)
        self.below = Table(mounted, flat, depended, prefix + path) if mounted and self.regex is not None else None
        self.function: Any = getattr(route, "endpoint", None) or getattr(route, "app", None)
        plain = getattr(route, "original_route", route)  # FastAPI's view of an included route has every attribute
        is_mount = not hasattr(plain, "endpoint")
        self.kind = "" if is_mount else "http" if hasattr(plain, "methods") else "websocket"
        self.template = _template(prefix + path + ("/{path:path}" if is_mount else ""))
        self._more = tuple(depended(route))
        self._found: dict[str, Found] = {}

    def found(self, method: str) -> Found:
        verb = method if isinstance(self.function, type) else ""  # a class has a function for each method
        known = self._found.get(verb)
        if known is None:
            known = self._found[verb] = Found(self._endpoint(verb), self.template, self.function)
        return known

    def endpoints(self) -> Iterable[Endpoint]:
        if self.below is not None:
            yield from self.below.endpoints()
        else:
            verbs = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
            for verb in verbs if isinstance(self.function, type) else ("",):
                endpoint = self.found(verb).endpoint
                if endpoint is not None:
                    yield endpoint

    def _endpoint(self, verb: str) -> Endpoint | None:
        if self.function is None:
            return None
        own = getattr(self.function, verb.lower(), None) if verb else None
        if verb == "HEAD" and own is None:
            own = getattr(self.function, "get", None)  # which then answers
        if own is None or not declared(own):
            return endpoint_of(self.function, more=self._more)
        return join(endpoint_of(own), endpoint_of(self.function, more=self._more))


def _template(path: str) -> str:
    """As a policy writes it: `/files/{path*}`, and no convertors."""
    return CONVERTOR.sub(r"{\1}", REST.sub(r"{\1*}", path))


def route_path(scope: Scope) -> str:
    """The path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("/", ""):
        return path[len(root) :]
    return path
