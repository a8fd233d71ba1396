"""What an application calls: RateLimits, and limits as decorators and dependencies."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from anyio import Event, from_thread
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from ratebound import switch
from ratebound.policy import Computed, RequestView
from ratebound.policy.cost import MAX_BODY
from ratebound.policy.match.reading import apart
from ratebound.web.answer import Passed, Refused
from ratebound.web.asgi import STATE, Receive, Scope, Send, hush, refuse, request_view, user_of
from ratebound.web.declared import Endpoint, RouteLimit, declare, declared, exempt, join, route_limit, short_name
from ratebound.web.fastapi.checked import HELD_UP, UNASKED, Left, can_be_checked, checked, own_partial, with_originals
from ratebound.web.fastapi.names import Names
from ratebound.web.fastapi.places import Innermost, Outermost
from ratebound.web.fastapi.site import PENDING, ROUTED, Asked, Site, has
from ratebound.web.functions import taking_request
from ratebound.web.gate import AsyncWebGate
from ratebound.web.options import AnyLimits, AnyPolicy, AsyncOptions, LimitOptions, checking_call
from ratebound.web.sending import REFUSED
from ratebound.web.user import check_user, identified, user_id, user_is_told
from ratebound.web.views import description
from ratebound.web.websocket import POLICY_VIOLATION

F = TypeVar("F", bound=Callable[..., Any])


class RateLimitExceeded(HTTPException):
    """A refusal on its way through the application's exception handling. `refused` has all there is to know."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.status, description(refused), dict(refused.fields))
        self.refused = refused


# Whose limits are whose, for an application with limits may be mounted in another that has its own.
OWNERS: WeakKeyDictionary[RouteLimit, object] = WeakKeyDictionary()
UNREADABLE = bytes(MAX_BODY + 1)  # what a body counts as that somebody else has read


class RateLimits:
    """`limits = RateLimits("100/minute", app=app)`, or `limits.install(app)` later. See `WebGate` for the options.

    A refusal is answered by the application's own handler for its status or for RateLimitExceeded, if it has one.
    `user` says who is authenticated, from the scope; `messages` limits what comes through each WebSocket. Functions
    of limits take the RequestView, or nothing.
    """

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        app: Any = None,
        user: Callable[[Scope], Any] = user_of,
        messages: "str | RouteLimit | None" = None,
        **options: Unpack[AsyncOptions],
    ) -> None:
        if hasattr(policy, "build_middleware_stack"):
            raise TypeError("the application goes by name: RateLimits('100/minute', app=app)")
        if "by" in options:
            options["by"] = taking_request(options["by"], "by")
        self.gate = AsyncWebGate(policy, **options)
        self.user = user if user is user_of else identified(user, "the scope")
        self.key = f"ratebound.{id(self)}"  # under which a scope has the record of its request
        if isinstance(messages, str):
            messages = RouteLimit(limits=messages, name="messages")
        self.messages = None if messages is None else Endpoint("messages", [messages])
        self.gate.prepare(self.messages)
        self.sites: list[Site] = []
        self.lives: set[object] = set()
        self.names = Names()
        self.current: ContextVar[Asked | None] = ContextVar("ratebound", default=None)
        self.keeps_body = False  # whether a limit that looks at the body may be asked for late
        self._mark = object()
        if app is not None:
            self.install(app)

    def install(self, app: Any) -> None:
        """Into a FastAPI or Starlette application, before it has served a request. Several may have the same limits:
        then they share all quotas. What is mounted in one is part of it."""
        if any(site.app is app for site in self.sites):
            raise RuntimeError("these limits are installed in this application already")
        if not hasattr(app, "build_middleware_stack"):
            raise TypeError(f"expected a FastAPI or Starlette application, not {app!r}; for others: ratebound.web.asgi")
        if app.middleware_stack is not None:
            raise RuntimeError("install the limits before the application starts")
        site = Site(self, app, len(self.sites))
        self.sites.append(site)
        app.user_middleware.append(Middleware(Innermost, site=site))
        build = app.build_middleware_stack
        app.build_middleware_stack = lambda: Outermost(build(), site)
        app.exception_handlers.setdefault(RateLimitExceeded, answer)

    @checking_call
    def limit(
        self,
        limits: AnyLimits,
        *,
        user: Callable[..., Any] | None = None,
        **options: Unpack[LimitOptions],
    ) -> "Declared":
        """Limits of one endpoint: a decorator below the route's, or `Depends(limits.limit("5/minute"))`.

        The options are those of RouteLimit. `user` is a dependency that gives the user, for `Depends` only; with it,
        `key` is "user" unless you say more.
        """
        if user is not None:
            check_user(user)
        given: dict[str, Any] = {**options}
        if user is not None:
            if given.get("key") is None:
                given["key"] = "user"
            elif not _may_look_at_user(limits, given):
                raise TypeError(
                    f"user= is for a limit that counts by user, and key={given['key']!r} does not: write key='user', or"
                    " leave out user="
                )
        limit = route_limit(limits, given)
        if self.current.get() is None:  # in a request the decision itself tells
            self.gate.check(limit)
        OWNERS[limit] = self._mark
        return Declared(self, limit, user)

    def exempt(self, function: F) -> F:
        """No rule but early ones is asked for this endpoint."""
        for one in with_originals(function):
            exempt(one)
        return function

    def read_routes(self) -> None:
        """Look at the routes of all applications, and raise for what is wrong with a limit of one."""
        for site in self.sites:
            site.read_routes()

    def marks(self, function: Any) -> list[RouteLimit | None]:
        """What is declared on a function, but for limits that others ask for."""
        return [mark for mark in declared(function) if mark is None or OWNERS.get(mark, self._mark) is self._mark]

    def depended(self, route: Any) -> Sequence[tuple[RouteLimit, bool]]:
        """The limits among a route's dependencies, and whether each needs nothing but the request."""
        return [(one.limit, one.user is None) for one in _dependencies(route) if one.limits is self]

    def flat(self, routes: Iterable[Any]) -> Iterable[Any]:
        """Routes with those of included routers in their places, where FastAPI keeps routers apart."""
        try:
            from fastapi import routing
        except ModuleNotFoundError:
            return routes
        flat: Callable[[Any], Iterable[Any]] | None = getattr(routing, "iter_route_contexts", None)
        return routes if flat is None else flat(list(routes))

    async def ask(self, endpoint: Endpoint, view: RequestView, asked: Asked) -> None:
        """Ask for what could not be foreseen. A refusal is noted: whether it is the response's, which then gives back
        what was asked before, or whether the application does without, is told when the response starts."""
        passed, seen, kept, record = asked[0], asked[2], asked[3], asked[5]
        view.body = seen.body if kept is None else await kept.read()
        view.reread(seen.paths)  # as it was at the door: a mount below it is no prefix of this application
        answer = await self.gate.alone(view, endpoint)
        if isinstance(answer, Refused):
            record[REFUSED] = answer
            raise RateLimitExceeded(answer)
        await self.gate.sleep(answer)
        answer.handle()
        passed.join(answer)

    async def refuse(self, app: Any, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """By the limit's own on_breach, by the application's handler, or as the policy says."""
        scope["state"][STATE] = scope[self.key][STATE] = refused
        if refused.breach is not None:
            response = await _called(refused.breach, refused)
            if response is not None:
                await response(scope, receive, send)
                return
        handlers = app.exception_handlers
        handler = handlers.get(refused.status) or handlers.get(RateLimitExceeded)
        if handler is None or handler == answer:
            await refuse(refused, scope, send)
        else:
            response = await _called(handler, Request(scope, receive, send), RateLimitExceeded(refused))
            await response(scope, receive, send)


class Declared:
    """A limit for an endpoint, as a decorator or as a dependency."""

    def __init__(self, limits: RateLimits, limit: RouteLimit, user: Callable[..., Any] | None) -> None:
        self.limits = limits
        self.limit = limit
        self.user = user
        self._endpoints: dict[Any, Endpoint] = {}
        is_told = user is not None or limits.user is not user_of
        self._wire = ROUTED._replace(no_user=user_is_told) if is_told else ROUTED
        self._reads_body = any(getattr(one, "reads_body", False) for one in (limit.cost, limit.key, limit.limits))
        limits.keeps_body = limits.keeps_body or self._reads_body
        self.__signature__ = _signature(user)
        # FastAPI looks at the instance for whether a dependency is to be awaited.
        self.__dict__["__call__"] = self.solve

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, /, **solved: Any) -> Coroutine[Any, Any, Passed]: ...

    def __call__(self, function: Any = None, /, **solved: Any) -> Any:
        if function is None:
            return self.solve(**solved)
        if self.user is not None:
            raise TypeError("user= is a dependency: use Depends(limits.limit(…)), or key= with a decorator")
        if isinstance(function, functools.partial):
            declare(function, self.limit)
            made = own_partial(function)
            return functools.partial(self._limited(made.func, [made.func]), *made.args, **made.keywords)
        if not can_be_checked(function):
            raise TypeError(
                f"expected a function, a class, or an object that is called like one, not {function!r}: in a"
                " class, the limit stands next to the function"
            )
        return self._limited(function, with_originals(function))

    def _limited(self, function: Any, noted: Iterable[Any]) -> Any:
        for one in noted:
            declare(one, self.limit)
        self.limits.names.note(function)
        return checked(function, self._check, self._wait)

    def _check(self, function: Any) -> Left | None:
        """What has to be awaited before the function may run: nothing if all that it declares was asked."""
        asked = self.limits.current.get()
        if asked is None:
            if switch.limiting:
                raise RuntimeError(UNASKED.format(name=getattr(function, "__qualname__", repr(function))))
            return None
        return None if has(asked[0], self.limit) else self._ask(function, asked)

    async def _ask(self, function: Any, asked: Asked) -> None:
        """Once for each request: a task that comes while another of the same request asks waits for that one."""
        passed, pending = asked[0], asked[5].setdefault(PENDING, {})
        marks = self.limits.marks(function)
        limits = [mark for mark in marks if mark is not None]
        if len(limits) < len(marks):
            return  # exempt
        while left := tuple(limit for limit in limits if not has(passed, limit)):
            keys = [limit.name or limit for limit in left]
            other = next((pending[key] for key in keys if key in pending), None)
            if other is not None:
                await other.wait()
                continue
            done = Event()
            pending.update(dict.fromkeys(keys, done))
            try:
                await self._ask_for(left, limits, function, asked)
            finally:
                for key in keys:
                    del pending[key]
                done.set()

    async def _ask_for(
        self, left: tuple[RouteLimit, ...], limits: list[RouteLimit], function: Any, asked: Asked
    ) -> None:
        scope, seen, site = asked[1], asked[2], asked[4]
        endpoint = self._endpoints.get((function, left))
        if endpoint is None:
            endpoint = join(*(site.named(function, limits.index(limit), limit, "") for limit in left))
            assert endpoint is not None
            self._endpoints[function, left] = endpoint
            site.look_again(function)
        view = request_view(scope, self.limits.user(scope), seen.route, site.routed)
        await self.limits.ask(endpoint, view, asked)

    def _wait(self, left: Left) -> None:
        """For a plain function: it runs in a thread, whoever's, and the event loop of the request asks for it."""
        asked = self.limits.current.get()
        loop = None if asked is None else asked[6]
        try:
            if asyncio._get_running_loop() is not None:
                raise RuntimeError(HELD_UP)
            if loop is None:
                from_thread.run(_awaited, left)
            else:
                asyncio.run_coroutine_threadsafe(left, loop).result()
        finally:
            left.close()

    async def solve(self, connection: HTTPConnection, response: Response, user: Any = None) -> Passed:
        """As a dependency: what was decided for this limit; it is decided now if it could not be foreseen."""
        asked, scope = self.limits.current.get(), connection.scope
        if asked is not None and (has(asked[0], self.limit) or None in self.limits.marks(scope.get("endpoint"))):
            return asked[0]  # asked already, or exempt
        known = self.limits.user(scope) if user is None else user_id(user)
        view = request_view(scope, known, None, self._wire)
        if asked is None:
            return await self._solve_alone(connection, response, view)
        await self.limits.ask(self._endpoint(scope, asked[4].place), view, asked)
        return asked[0]

    async def _solve_alone(self, connection: HTTPConnection, response: Response, view: RequestView) -> Passed:
        """In an application in which the limits are not installed."""
        if self.limit.charged is not None:
            raise RuntimeError("a charge by result needs the middleware: limits.install(app)")
        scope, gate = connection.scope, self.limits.gate
        found = scope.get("state", {}).get(STATE)
        passed = found if gate.owns(found) else None
        if passed is None:
            hush(found)
        elif has(passed, self.limit):
            return passed
        if isinstance(connection, Request) and (self._reads_body or gate.policy.reads_body):
            view.body = await _body(connection)
        view.reread(apart(view.paths))  # nobody knows of which application the limits are
        answer = await gate.alone(view, self._endpoint(scope))
        if isinstance(answer, Refused):
            if passed is not None:
                await gate.give_back(passed)
                scope["state"][STATE] = answer
            raise RateLimitExceeded(answer)
        await gate.sleep(answer)
        if passed is None:
            connection.state.ratebound = passed = answer
        else:
            passed.join(answer)
        passed.end("nobody sees the end of its response, as these limits are not installed: limits.install(app)")
        response.headers.update(dict(passed.headers))
        return passed

    def _endpoint(self, scope: Scope, app: int = -1) -> Endpoint:
        """By the function that depends on it."""
        function = scope.get("endpoint") or self
        endpoint = self._endpoints.get(function)
        if endpoint is None:
            route, names, is_plain = scope.get("route"), self.limits.names, self.user is None
            own = [mark for mark in self.limits.marks(function) if mark is not None] if is_plain else []
            limits = own + [one.limit for one in _dependencies(route) if (one.user is None) == is_plain]
            place = limits.index(self.limit) if self.limit in limits else 0
            name = names.of(function) if is_plain else short_name(f"{names.of(function)}.user")
            name = names.of_limit(name, place, self.limit, function, str(getattr(route, "path", "")), app)
            endpoint = self._endpoints[function] = Endpoint(name, [self.limit])
        return endpoint


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


def _may_look_at_user(limits: Any, options: Mapping[str, Any]) -> bool:
    """Return True if a limit counts by user or by tier, or has a function, which may look at the user."""
    key = options["key"]
    listed = key if isinstance(key, list | tuple) else [key]
    if any("user" in [name.strip() for name in one.split("+")] for one in listed if isinstance(one, str)):
        return True
    functions = (*listed, limits, options.get("cost"), options.get("exempt_when"))
    return isinstance(limits, Mapping | Computed) or any(callable(one) for one in functions)


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


async def _awaited(left: Left) -> None:
    await left


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY:
        return UNREADABLE
    try:
        return await request.body()
    except RuntimeError:  # its form was read, and is not kept
        return UNREADABLE


async def answer(connection: HTTPConnection, error: Exception) -> Response | None:
    """The policy's own words, for a refusal that was raised in the midst of a request."""
    assert isinstance(error, RateLimitExceeded)
    refused = error.refused
    if refused.breach is not None:
        response = await _called(refused.breach, refused)
        if response is not None:
            refused.status = getattr(response, "status_code", refused.status)  # by which the response is known
            return response  # type: ignore[no-any-return]
    if isinstance(connection, WebSocket):
        can_deny = "websocket.http.response" in connection.scope.get("extensions", {})
        if not can_deny or connection.application_state is not WebSocketState.CONNECTING:
            await connection.close(POLICY_VIOLATION, "too many connections")
            return None
    is_head = connection.scope.get("method") == "HEAD"
    response = Response(b"" if is_head else refused.body, refused.status)
    del response.headers["content-length"]
    response.headers["content-length"] = str(len(refused.body))
    for name, value in refused.headers:
        response.headers.append(name, value)
    return response


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await run_in_threadpool(function, *args)
    return await value if isinstance(value, Awaitable) else value


__all__ = ["Passed", "RateLimitExceeded", "RateLimits", "Refused", "RequestView"]
