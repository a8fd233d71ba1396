"""FastAPI and Starlette: the policy's rules, and limits that are said at the endpoint, in one decision.

Two places in the application's middleware: the outermost, where early rules are asked and every response gets its
headers, errors of the server included; and the innermost, where the user and the endpoint are known.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ratekeeper import switch
from ratekeeper.policy import RequestView
from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.asgi import STATE, App, Receive, Scope, Send, ask, hush, lifespan, refuse, request_view, user_of
from ratekeeper.web.checked import checked
from ratekeeper.web.declared import Endpoint, RouteLimit, declare, declared, endpoint_name, exempt, short_name
from ratekeeper.web.gate import AsyncWebGate, log
from ratekeeper.web.routes import NOTHING, Found, Table, route_path
from ratekeeper.web.sending import Telling
from ratekeeper.web.websocket import connect

F = TypeVar("F", bound=Callable[..., Any])


class RateLimitExceeded(HTTPException):
    """A refusal on its way through the application's exception handling. `refused` has all there is to know."""

    def __init__(self, refused: Refused) -> None:
        headers = {name: value for name, value in refused.headers if name != "Content-Type"}
        super().__init__(refused.status, "Too Many Requests" if refused.status == 429 else None, headers)
        self.refused = refused


class RateLimits:
    """`limits = RateLimits("100/minute", app=app)`, or `limits.install(app)` later. See `WebGate` for the options.

    A refusal is answered by the application's own handler for its status or for RateLimitExceeded, if it has one.
    `user` says who is authenticated, from the scope; `messages` limits what comes through each WebSocket.
    """

    def __init__(
        self,
        policy: Any = None,
        *,
        app: Any = None,
        user: Callable[[Scope], Any] = user_of,
        messages: "str | RouteLimit | None" = None,
        **options: Any,
    ) -> None:
        self.gate = AsyncWebGate(policy, **options)
        self.user = user
        if isinstance(messages, str):
            messages = RouteLimit(limits=messages, name="messages")
        self.messages = None if messages is None else Endpoint("messages", [messages])
        self.gate.prepare(self.messages)
        self.app: Any = None
        if app is not None:
            self.install(app)

    def install(self, app: Any) -> None:
        """Into a FastAPI or Starlette application, before it has served a request."""
        if self.app is not None:
            raise RuntimeError("these limits are installed in an application already; mounted ones are part of it")
        if app.middleware_stack is not None:
            raise RuntimeError("install the limits before the application starts")
        self.app = app
        self._table: Table | None = None
        self._routes = 0
        self._is_stale = False
        app.user_middleware.append(Middleware(_Innermost, limits=self))
        build = app.build_middleware_stack
        app.build_middleware_stack = lambda: _Outermost(build(), self.gate)
        app.exception_handlers.setdefault(RateLimitExceeded, self._answer)

    def limit(self, limits: Any, **options: Any) -> "Declared":
        """Limits of one endpoint: a decorator below the route's, or `Depends(limits.limit("5/minute"))`.

        The options are those of RouteLimit. `user` is a dependency that gives the user, for `Depends` only.
        """
        user = options.pop("user", None)
        return Declared(self, RouteLimit(limits=limits, **options), user)

    def exempt(self, function: F) -> F:
        """No rule but early ones is asked for this endpoint."""
        return exempt(function)

    def find(self, scope: Scope) -> Found:
        """The endpoint that a request will be routed to."""
        table = self._table
        if table is None:
            table = self.read_routes()
        elif self._is_stale or len(self.app.router.routes) != self._routes:
            table = self.read_routes(prepare=False)  # a mistake in a route that was added is that route's own
        return table.find(scope["type"], scope.get("method", "GET"), route_path(scope))

    def read_routes(self, *, prepare: bool = True) -> Table:
        """Look at the application's routes, and raise for what is wrong with a limit of one."""
        routes = self.app.router.routes
        table = Table(routes, _flat, _depended)
        for endpoint in table.endpoints() if prepare else ():
            self.gate.prepare(endpoint)
        self._table, self._routes, self._is_stale = table, len(routes), False
        return table

    def look_again(self, found: Found, actual: Any) -> None:
        """The router went elsewhere than foreseen: some route was added below. Its limits hold from now on."""
        if declared(actual) and actual is not found.function:
            log.error("%r is limited, but its route was added while the application runs", actual)
            self._is_stale = True

    async def refuse(self, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """By the limit's own on_breach, by the application's handler, or as the policy says."""
        scope["state"][STATE] = refused
        if refused.breach is not None:
            response = await _called(refused.breach, refused)
            if response is not None:
                await response(scope, receive, send)
                return
        handlers = self.app.exception_handlers
        handler = handlers.get(refused.status) or handlers.get(RateLimitExceeded)
        if handler is None or handler == self._answer:
            await refuse(refused, scope, send)
        else:
            response = await _called(handler, Request(scope, receive, send), RateLimitExceeded(refused))
            await response(scope, receive, send)

    async def _answer(self, connection: HTTPConnection, error: Exception) -> Response:
        """The policy's own words, for a refusal that was raised by a dependency."""
        assert isinstance(error, RateLimitExceeded)
        refused = error.refused
        if refused.breach is not None:
            response = await _called(refused.breach, refused)
            if response is not None:
                return response  # type: ignore[no-any-return]
        is_head = connection.scope.get("method") == "HEAD"
        response = Response(b"" if is_head else refused.body, refused.status)
        del response.headers["content-length"]
        response.headers["content-length"] = str(len(refused.body))
        for name, value in refused.headers:
            response.headers.append(name, value)
        return response


class Declared:
    """A limit for an endpoint, as a decorator or as a dependency."""

    def __init__(self, limits: RateLimits, limit: RouteLimit, user: Callable[..., Any] | None) -> None:
        self.limits = limits
        self.limit = limit
        self.user = user
        self._endpoints: dict[Any, Endpoint] = {}
        self.__signature__ = _signature(user)
        # FastAPI looks at the instance for whether a dependency is to be awaited.
        self.__dict__["__call__"] = self.solve

    def __call__(self, function: Any = None, /, **solved: Any) -> Any:
        if function is None:
            return self.solve(**solved)
        if self.user is not None:
            raise TypeError("user= is a dependency: use Depends(limits.limit(…)), or key= with a decorator")
        declare(function, self.limit)
        return checked(function, self._check)

    async def solve(self, connection: HTTPConnection, response: Response, user: Any = None) -> Passed:
        """As a dependency: what was decided for this limit; it is decided now if it could not be foreseen."""
        scope, gate = connection.scope, self.limits.gate
        found = scope.get("state", {}).get(STATE)
        passed = found if gate.owns(found) else None
        if passed is not None and self.limit in passed.limits:
            return passed
        view = request_view(scope, self.limits.user(scope) if user is None else user)
        answer = await gate.alone(view, self._endpoint(scope))
        if isinstance(answer, Refused):
            if passed is not None:
                await gate.give_back(passed)
                scope["state"][STATE] = answer
            else:
                hush(found)
            raise RateLimitExceeded(answer)
        await gate.sleep(answer)
        if passed is not None:
            passed.join(answer)
            return passed
        if answer.settles:
            raise RuntimeError("a charge by result needs the middleware: limits.install(app)")
        hush(found)
        response.headers.update(dict(answer.headers))
        connection.state.ratekeeper = answer
        return answer

    def _endpoint(self, scope: Scope) -> Endpoint:
        function = scope.get("endpoint")
        endpoint = self._endpoints.get(function)
        if endpoint is None:
            found = [one for one in _dependencies(scope.get("route")) if (one.user is None) == (self.user is None)]
            place = found.index(self) if self in found else 0
            name = endpoint_name(function or self) + (".user" if self.user is not None else "")
            endpoint = Endpoint(short_name(f"{name}-{place + 1}" if place else name), [self.limit])
            self._endpoints[function] = endpoint
        return endpoint

    def _check(self) -> None:
        if self.limits.app is None and switch.limiting:
            raise RuntimeError("this endpoint would be unlimited: call limits.install(app)")


class _Outermost:
    """Early rules, headers on every response, and the storage's life."""

    def __init__(self, app: App, gate: AsyncWebGate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(self.app, self.gate, scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {})}  # the server's own is for all requests
        if scope["type"] == "http":
            send = Telling(self.gate, scope["state"], send).send
            if self.gate.has_early:
                answer, receive = await ask(self.gate, request_view(scope), None, receive, stage="early")
                hush(scope["state"].get(STATE))
                scope["state"][STATE] = answer
                if isinstance(answer, Refused):
                    await refuse(answer, scope, send)
                    return
                await self.gate.sleep(answer)
        await self.app(scope, receive, send)


class _Innermost:
    """The rules that are left, when all is known that they may ask for."""

    def __init__(self, app: App, limits: RateLimits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits, gate = self.limits, self.limits.gate
        if scope["type"] == "lifespan":
            limits.read_routes()  # what is wrong raises at the start
            await self.app(scope, receive, send)
            return
        found = limits.find(scope)
        view = request_view(scope, limits.user(scope), found.template)
        if scope["type"] == "websocket":
            await connect(self.app, gate, view, found.endpoint, limits.messages, scope, receive, send)
            return
        earlier = around if gate.owns(around := scope["state"].get(STATE)) else None
        answer, receive = await ask(gate, view, found.endpoint, receive, stage="late", earlier=earlier)
        if earlier is None:
            hush(around)
        if isinstance(answer, Refused):
            await limits.refuse(answer, scope, receive, send)
            return
        await gate.sleep(answer)
        scope["state"][STATE] = answer
        await self.app(scope, receive, send)
        if found is NOTHING or scope.get("endpoint") is not found.function:
            limits.look_again(found, scope.get("endpoint"))


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Routes with those of included routers in their places, where FastAPI keeps routers apart."""
    try:
        from fastapi import routing
    except ModuleNotFoundError:
        return routes
    flat: Callable[[Any], Iterable[Any]] | None = getattr(routing, "iter_route_contexts", None)
    return routes if flat is None else flat(list(routes))


def _depended(route: Any) -> Sequence[RouteLimit]:
    """The limits among a route's dependencies that need nothing but the request."""
    return [one.limit for one in _dependencies(route) if one.user is None]


def _dependencies(route: Any) -> list[Declared]:
    """The limits among a route's dependencies, at any depth, in their order."""
    found: list[Declared] = []
    left = [getattr(route, "dependant", None)]
    while left:
        dependant = left.pop()
        call = getattr(dependant, "call", None)
        if isinstance(call, Declared) and call not in found:
            found.append(call)
        left += reversed(getattr(dependant, "dependencies", ()))
    return found


def _signature(user: Callable[..., Any] | None) -> inspect.Signature:
    """What FastAPI shall give to `Declared.solve`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("connection", keyword, annotation=HTTPConnection),
        inspect.Parameter("response", keyword, annotation=Response),
    ]
    if user is not None:
        from fastapi import Depends

        parameters.append(inspect.Parameter("user", keyword, default=Depends(user)))
    return inspect.Signature(parameters)


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await run_in_threadpool(function, *args)
    return await value if isinstance(value, Awaitable) else value


__all__ = ["Passed", "RateLimitExceeded", "RateLimits", "Refused", "RequestView"]
