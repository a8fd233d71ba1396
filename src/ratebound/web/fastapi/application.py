"""One application in which limits are installed: its routes, and the rules of each."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import HTTPConnection, Request

from ratebound.web.asgi import WIRE, own_prefixes, paths_with
from ratebound.web.asgi_types import Receive, Scope, Send
from ratebound.web.fastapi.documentation import is_documentation
from ratebound.web.fastapi.plain_path import PlainEntrance
from ratebound.web.fastapi.route_table import FoundRoute, RouteTable, host_of, route_path
from ratebound.web.fastapi.running_request import Current
from ratebound.web.gate import AsyncWebGate, log
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.rule_names import FunctionNames
from ratebound.web.user import user_is_given

UNKNOWN_USER = (
    "no middleware has set scope['user']. FastAPI: use Depends(limits.limit(…, user=current_user)) with the dependency"
    " that finds the user, or RateLimits(user=…), a function of the scope. Starlette: AuthenticationMiddleware"
)

# Reads a request that the router has routed. `LimitedApplication.wire` reads one that it has not.
ROUTED = WIRE._replace(
    state=lambda scope: HTTPConnection(scope).state,
    request=lambda scope: Request(scope) if scope["type"] == "http" else HTTPConnection(scope),
    no_user=lambda scope: "" if "user" in scope else UNKNOWN_USER,
)


class InstalledLimits(Protocol):
    """The limits of one or more applications, as far as these need to know."""

    gate: AsyncWebGate
    key: str
    messages: Endpoint | None
    keeps_body: bool
    names: FunctionNames
    current: Current
    lives: set[object]
    has_user_function: bool
    dashboards: list[Any]
    limit_docs: bool

    @property
    def user(self) -> Any:
        """A function of the scope that returns who is authenticated."""

    def marks(self, function: Any) -> Sequence[RouteLimit | None]:
        """Return the limits of a function, but for those of another `RateLimits`."""

    def depended(self, route: Any) -> Sequence[tuple[RouteLimit, bool]]:
        """Return the limits that a route has as dependencies, and True for each that needs nothing but the request."""

    async def reject(self, app: Any, rejected: Rejected, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


class LimitedApplication:
    """An application in which limits are installed. `index` is its place among the applications of these limits."""

    def __init__(self, limits: InstalledLimits, app: Any, index: int) -> None:
        self.innermost: Any = None  # Starlette's description of its innermost middleware
        self.limits = limits
        self.app = app
        self.marks = limits.marks
        self.index = index
        self._make_wires()
        self._table: RouteTable | None = None
        self._routes: list[Any] = []  # that the table was made of
        self._is_stale = False
        self._unforeseen: set[Any] = set()
        self.entrance = PlainEntrance(self)

    def _make_wires(self) -> None:
        """Make the wires that read requests. Mounted applications may take off prefixes by themselves."""
        told = ROUTED._replace(no_user=user_is_given) if self.limits.has_user_function else ROUTED
        self.routed = told._replace(paths=paths_with(own_prefixes(self.app)))
        self.wire = self.routed._replace(path_params=self._path_params)
        # A middleware has answered, maybe before the one that finds the user was reached.
        self.answered_wire = self.wire._replace(no_user=user_is_given)

    def table(self) -> RouteTable:
        """Return the routes of the application, as they are now."""
        table = self._table
        if table is None:
            table = self.read_routes()
        elif self._is_stale or len(self.app.router.routes) != len(self._routes):
            table = self.read_routes(prepare=False)  # a mistake in a route that was added is that route's own
        return table

    def find(self, scope: Scope) -> FoundRoute:
        """Return the endpoint that a request will be routed to."""
        found = _find(self.table(), scope)
        if found.endpoint is not None and found.endpoint.spared_path is not None and self._has_other_routes():
            # Another route may stand in the place of a page that is not limited.
            found = _find(self.read_routes(prepare=False), scope)
        return found

    def _has_other_routes(self) -> bool:
        """Return True if a route was replaced since the routes were read. Their number is the same."""
        return any(now is not then for now, then in zip(self.app.router.routes, self._routes, strict=False))

    def _path_params(self, scope: Scope) -> Mapping[str, Any]:
        """Return the parameters that the router will find, and those of the mount that has led here."""
        table = self._table or self.read_routes()
        found = table.path_params(scope["type"], scope.get("method", "GET"), route_path(scope), host_of(scope))
        return {**scope.get("path_params", {}), **found}

    def start(self) -> None:
        """Read the routes again if they were read before the application has its middleware."""
        self._is_stale = self._table is not None
        self.entrance.known = None

    def read_routes_once(self) -> None:
        """Read the application's routes, unless they were read before."""
        if self._table is None:
            self.read_routes()

    def read_routes(self, *, prepare: bool = True) -> RouteTable:
        """Read the application's routes. Raises ValueError if limits of one cannot be combined with the policy."""
        routes = self.app.router.routes
        table = RouteTable(routes, self)
        for endpoint in () if self._table is None else self._table.endpoints():
            self.limits.gate.release(endpoint)  # the new table has its own
        for endpoint in table.endpoints() if prepare else ():
            self.limits.gate.prepare(endpoint)
        self._table, self._routes, self._is_stale = table, list(routes), False
        self._make_wires()
        entrance = self.entrance
        entrance.wire, entrance.count, entrance.known = self.wire, len(routes), None if table.has_hosts else table.known
        return table

    def read_routes_again(self, function: Any) -> None:
        """Read the routes again before the next request: one may have been added that leads to this function."""
        code = getattr(function, "__code__", function)  # a handler may define the same function for each request
        if code not in self._unforeseen:
            self._unforeseen.add(code)
            self._is_stale = True
            self.entrance.known = None
            log.info("no route is known that leads to %r: its limits are checked when it is called", function)

    def depended(self, route: Any) -> Sequence[RouteLimit]:
        """Return the limits among a route's dependencies that need nothing but the request."""
        found = self.limits.depended(route)
        if found:
            self.limits.names.note(route.endpoint)
        return [limit for limit, is_foreseen in found if is_foreseen]

    def unforeseen(self, route: Any) -> Sequence[RouteLimit]:
        """Return the limits among a route's dependencies that are checked when they are called."""
        return [limit for limit, is_foreseen in self.limits.depended(route) if not is_foreseen]

    def is_spared(self, route: Any) -> bool:
        """Return True if a route is one of those that FastAPI adds for its documentation, and these are not limited."""
        return not self.limits.limit_docs and self._is_innermost() and is_documentation(self.app, route)

    def _is_innermost(self) -> bool:
        """Return True if no middleware stands between these limits and the router: it could lead requests elsewhere."""
        found = self.app.user_middleware
        own = next((place for place, one in enumerate(found) if one is self.innermost), len(found))
        return all(one.cls is found[own].cls for one in found[own:])  # other limits may follow

    def is_dashboard(self, app: object) -> bool:
        """Return True if this application is a dashboard of these limits."""
        return any(app is dashboard for dashboard in self.limits.dashboards)

    def named(self, function: Any, index: int, limit: RouteLimit, where: str) -> Endpoint:
        """Return one limit of a function as an endpoint of its own."""
        names = self.limits.names
        return Endpoint(names.of_limit(names.of(function), index, limit, function, where, self.index), [limit])


def _find(table: RouteTable, scope: Scope) -> FoundRoute:
    host = host_of(scope) if table.has_hosts else ""
    return table.find(scope["type"], scope.get("method", "GET"), route_path(scope), host)
