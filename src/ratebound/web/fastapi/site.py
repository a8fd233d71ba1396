"""The limits in one application: its routes, and what holds for each."""

from asyncio import AbstractEventLoop
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from starlette.requests import HTTPConnection, Request

from ratebound.policy import RequestView
from ratebound.web.answer import Passed, Refused
from ratebound.web.asgi import WIRE, Receive, Scope, Send, own_prefixes, paths_with, user_of
from ratebound.web.declared import Endpoint, RouteLimit
from ratebound.web.fastapi.kept import Kept
from ratebound.web.fastapi.names import Names
from ratebound.web.fastapi.routes import Found, Table, host_of, route_path
from ratebound.web.gate import AsyncWebGate, log
from ratebound.web.user import user_is_told

UNKNOWN_USER = (
    "no middleware has set scope['user']. FastAPI: use Depends(limits.limit(…, user=current_user)) with the dependency"
    " that finds the user, or RateLimits(user=…), a function of the scope. Starlette: AuthenticationMiddleware"
)

# Reads a request that the router has routed. `Site.wire` reads one that it has not.
ROUTED = WIRE._replace(
    state=lambda scope: HTTPConnection(scope).state,
    request=lambda scope: Request(scope) if scope["type"] == "http" else HTTPConnection(scope),
    no_user=lambda scope: "" if "user" in scope else UNKNOWN_USER,
)

# What these limits know of one request, in a place of their own in its scope: middleware may copy the scope, or the
# state that handlers see. STATE: the decision; REFUSED: a refusal that was raised since; PENDING: what is being asked
# for. Plain, as the tuple below, for one is made for each request.
Record = dict[str, Any]
PENDING = "pending"

# A request that was let in: what was decided for it, and what is needed to ask for more.
Asked = tuple[Passed, Scope, RequestView, Kept | None, "Site", Record, AbstractEventLoop | None]


def has(passed: Passed, limit: RouteLimit) -> bool:
    """Whether a limit was asked, itself or another of its name, with which it shares one quota."""
    return limit in passed.limits or bool(limit.name and any(one.name == limit.name for one in passed.limits))


class Limits(Protocol):
    """What an application needs to know of its limits, and they of its framework. Several may have the same."""

    gate: AsyncWebGate
    key: str
    messages: Endpoint | None
    keeps_body: bool
    names: Names
    current: ContextVar[Asked | None]
    lives: set[object]

    @property
    def user(self) -> Any:
        """A function of the scope: who is authenticated."""

    def marks(self, function: Any) -> Sequence[RouteLimit | None]:
        """What is declared on a function, but for limits that others ask for."""

    def depended(self, route: Any) -> Sequence[tuple[RouteLimit, bool]]:
        """The limits that a route has as dependencies, and whether each needs nothing but the request."""

    def flat(self, routes: Iterable[Any]) -> Iterable[Any]:
        """Routes with those of included routers among them."""

    async def refuse(self, app: Any, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


class Site:
    """An application in which limits are installed."""

    def __init__(self, limits: Limits, app: Any, place: int) -> None:
        self.limits = limits
        self.app = app
        self.flat = limits.flat
        self.marks = limits.marks
        self.place = place  # among the applications of these limits
        self._make_wires()
        self._table: Table | None = None
        self._routes = 0
        self._is_stale = False
        self._unforeseen: set[Any] = set()

    def _make_wires(self) -> None:
        """Make what reads requests. Applications that are mounted here may take off prefixes by themselves."""
        told = ROUTED if self.limits.user is user_of else ROUTED._replace(no_user=user_is_told)
        self.routed = told._replace(paths=paths_with(own_prefixes(self.app)))
        self.wire = self.routed._replace(path_params=self._path_params)
        # A middleware has answered, maybe before the one that finds the user was reached.
        self.answered_wire = self.wire._replace(no_user=user_is_told)

    def find(self, scope: Scope) -> Found:
        """The endpoint that a request will be routed to."""
        table = self._table
        if table is None:
            table = self.read_routes()
        elif self._is_stale or len(self.app.router.routes) != self._routes:
            table = self.read_routes(prepare=False)  # a mistake in a route that was added is that route's own
        host = host_of(scope) if table.has_hosts else ""
        return table.find(scope["type"], scope.get("method", "GET"), route_path(scope), host)

    def _path_params(self, scope: Scope) -> Mapping[str, Any]:
        """Return the parameters that the router will find, and those of the mount that has led here."""
        table = self._table or self.read_routes()
        found = table.path_params(scope["type"], scope.get("method", "GET"), route_path(scope), host_of(scope))
        return {**scope.get("path_params", {}), **found}

    def read_routes(self, *, prepare: bool = True) -> Table:
        """Look at the application's routes, and raise for what is wrong with a limit of one."""
        routes = self.app.router.routes
        table = Table(routes, self)
        for endpoint in table.endpoints() if prepare else ():
            self.limits.gate.prepare(endpoint)
        self._table, self._routes, self._is_stale = table, len(routes), False
        self._make_wires()
        return table

    def look_again(self, function: Any) -> None:
        """Nobody foresaw that this function would be called. Its route may have been added since routes were read."""
        if function not in self._unforeseen:
            self._unforeseen.add(function)
            self._is_stale = True
            log.info("no route is known that leads to %r: its limits are asked when it is called", function)

    def depended(self, route: Any) -> Sequence[RouteLimit]:
        """The limits among a route's dependencies that can be foreseen."""
        found = self.limits.depended(route)
        if found:
            self.limits.names.note(route.endpoint)
        return [limit for limit, is_foreseen in found if is_foreseen]

    def named(self, function: Any, place: int, limit: RouteLimit, where: str) -> Endpoint:
        """One limit of a function as an endpoint of its own."""
        names = self.limits.names
        return Endpoint(names.of_limit(names.of(function), place, limit, function, where, self.place), [limit])
