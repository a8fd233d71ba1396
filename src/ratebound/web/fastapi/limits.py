"""RateLimits for FastAPI and Starlette, and limits as decorators and dependencies."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from anyio import Event, from_thread
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from ratebound.flow import run_async
from ratebound.policy import Computed, RequestView
from ratebound.policy.functions import check_takes
from ratebound.policy.match.reading import apart
from ratebound.switch import switch
from ratebound.usage import Usage
from ratebound.web.asgi import messages_endpoint, reject, request_view, user_of
from ratebound.web.asgi_types import STATE, VISIT, Receive, Scope, Send
from ratebound.web.body import starlette_body
from ratebound.web.dashboard import Auth, DashboardLedger, Operator, asgi_dashboard, needing_auth
from ratebound.web.fastapi.application import ROUTED, LimitedApplication
from ratebound.web.fastapi.dashboard import DashboardEntrance, MountedDashboard
from ratebound.web.fastapi.middleware import InnermostMiddleware, OutermostMiddleware
from ratebound.web.fastapi.openapi import DescribedApplication
from ratebound.web.fastapi.running_request import Current, EndpointCheck, RunningRequest, was_checked
from ratebound.web.fastapi.wrapped_endpoint import (
    NOT_INSTALLED,
    WOULD_BLOCK,
    Unchecked,
    can_be_checked,
    own_partial,
    with_originals,
    wrap_endpoint,
)
from ratebound.web.functions import taking_request
from ratebound.web.gate import AsyncWebGate
from ratebound.web.options import AnyLimits, AnyPolicy, AsyncOptions, LimitOptions, checking_call
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit, declare, declared, exempt, join, route_limit
from ratebound.web.rule_names import FunctionNames, short_name
from ratebound.web.usage_page import CONTENT_TYPE, HEADERS, read_page
from ratebound.web.user import check_user, identified, names_user, user_id, user_is_given
from ratebound.web.visit import Visit
from ratebound.web.websocket import POLICY_VIOLATION

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


class RateLimitExceeded(HTTPException):
    """A rejection on its way through the application's exception handling.

    Args:
        rejected: The rejection with all its details.
        visit: The request of which this rejects a part.
    """

    def __init__(self, rejected: Rejected, visit: Visit | None = None) -> None:
        super().__init__(rejected.status, rejected.description, dict(rejected.fields))
        self.rejected = rejected
        self.visit = visit  # of which this rejects a part


# The RateLimits of each limit: an application with limits may be mounted in another that has its own.
OWNERS: WeakKeyDictionary[RouteLimit, object] = WeakKeyDictionary()
RIGHT_CALL = "write RateLimits('100/minute', app=app)"


def _policy_first(init: Callable[P, None]) -> Callable[P, None]:
    """Make a constructor raise an error that names the right call, where Python would count the arguments."""

    @functools.wraps(init)
    def made(*args: P.args, **options: P.kwargs) -> None:
        for one in (*args[1:], options.get("policy")):
            if hasattr(one, "build_middleware_stack"):
                raise TypeError(f"expected a policy first, and the application as app=, not {one!r}: {RIGHT_CALL}")
        init(*args, **options)

    return made


class RateLimits:
    """Limits for FastAPI and Starlette.

    The application's own handler for the status or for RateLimitExceeded answers a rejection, if there is one.
    Functions of limits take the RequestView, or nothing. `usage_of`, `grant`, `reset`, `holders`, `block`, `unblock`,
    `blocks` and other calls for operators are those of the gate: `await limits.reset("user:42")`.

    Args:
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
            None means that only endpoints have limits.
        app: The application to limit. None means to call `install` later.
        user: A function of the scope that returns who is authenticated: an id, an `Identity`, or None. By default it is
            the user that Starlette's AuthenticationMiddleware has set.
        messages: The limit of the messages of each WebSocket connection. A client that sends more is disconnected.
        limit_docs: True if FastAPI's own pages (`/docs`, `/redoc`, `/openapi.json`) are limited, too.
        openapi: False if the OpenAPI document of FastAPI does not get the rejections of limited operations.
        **options: Options of `WebGate`, like `storage`, `max_delay` and `listeners`, and of `Policy`, like `failure`,
            `by` and `headers`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> import asyncio, httpx
        >>> from fastapi import FastAPI
        >>> from ratebound.web.fastapi import RateLimits
        >>> app = FastAPI()
        >>> limits = RateLimits("100/minute", app=app)
        >>> @app.get("/search")
        ... @limits.limit("1/minute")
        ... async def search():
        ...     return {}
        >>> async def statuses():
        ...     async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        ...         return [(await client.get("/search")).status_code for _ in range(2)]
        >>> asyncio.run(statuses())
        [200, 429]
    """

    @_policy_first
    def __init__(
        self,
        policy: AnyPolicy | None = None,
        *,
        app: Any = None,
        user: Callable[[Scope], Any] = user_of,
        messages: "str | RouteLimit | None" = None,
        limit_docs: bool = False,
        openapi: bool = True,
        **options: Unpack[AsyncOptions],
    ) -> None:
        if "by" in options:
            options["by"] = taking_request(options["by"], "by")
        self.gate = AsyncWebGate(policy, **options)
        self.limit_docs = limit_docs
        self._is_described = openapi
        self.has_user_function = user is not user_of
        self.user = identified(user, "the scope") if self.has_user_function else user
        self.key = f"ratebound.{id(self)}"  # the key of a visit in its scope
        self.messages = messages_endpoint(messages)
        self.gate.prepare(self.messages)
        self.applications: list[LimitedApplication] = []
        self.lives: set[object] = set()
        self.names = FunctionNames()
        self.current: Current = ContextVar("ratebound", default=None)
        self.dashboards: list[MountedDashboard] = []
        self.keeps_body = False  # True if a limit that reads the body may be checked late
        self._mark = object()
        self.gate.read_endpoints = self._read_new_routes
        self.usage_of, self.grant, self.reset = self.gate.usage_of, self.gate.grant, self.gate.reset
        self.block, self.unblock, self.blocks = self.gate.block, self.gate.unblock, self.gate.blocks
        self.override, self.overrides = self.gate.override, self.gate.overrides
        self.remove_override, self.remove_switch = self.gate.remove_override, self.gate.remove_switch
        self.set_switch, self.switches, self.promote = self.gate.set_switch, self.gate.switches, self.gate.promote
        self.changes, self.record = self.gate.changes, self.gate.record
        self.holders = self.gate.holders
        if app is not None:
            self.install(app)

    def install(self, app: Any) -> None:
        """Install the limits in a FastAPI or Starlette application, before it has served a request.

        Several applications may have the same limits, and then share all quotas. Mounted ones are part of the one
        around.

        Args:
            app: The application.

        Raises:
            TypeError: It is another kind of application.
            RuntimeError: The limits are installed already, or the application has started.

        Examples:
            >>> from starlette.applications import Starlette
            >>> from ratebound.web.fastapi import RateLimits
            >>> limits = RateLimits("100/minute")
            >>> limits.install(Starlette())
        """
        if any(one.app is app for one in self.applications):
            raise RuntimeError("these limits are installed in this application already: call install once")
        if not hasattr(app, "build_middleware_stack"):
            raise TypeError(
                f"expected a FastAPI or Starlette application, not {app!r}: for others use ratebound.web.asgi"
            )
        if app.middleware_stack is not None:
            raise RuntimeError("the application has started: call limits.install(app) before its first request")
        application = LimitedApplication(self, app, len(self.applications))
        self.applications.append(application)
        application.innermost = Middleware(InnermostMiddleware, application=application)
        app.user_middleware.append(application.innermost)
        build = app.build_middleware_stack
        app.build_middleware_stack = lambda: self._admitting(OutermostMiddleware(build(), application), application)
        app.exception_handlers.setdefault(RateLimitExceeded, answer_rejection)
        if self._is_described and hasattr(app, "openapi"):
            described = DescribedApplication(application, functools.partial(_answers_itself, app))
            made: Callable[[], dict[str, Any]] = app.openapi
            app.openapi = lambda: described.openapi(made)

    def describe(self, app: Any, document: dict[str, Any]) -> dict[str, Any]:
        """Return an OpenAPI document of an application with the rejections of these limits added.

        It is for an `app.openapi` of your own that is set after these limits were installed.

        Args:
            app: The application.
            document: The OpenAPI document of the application.

        Raises:
            ValueError: The limits are not installed in this application.
        """
        for application in self.applications:
            if application.app is app:
                return DescribedApplication(application, functools.partial(_answers_itself, app)).described(document)
        raise ValueError(f"these limits are not installed in {app!r}: call limits.install(app)")

    @checking_call
    def limit(
        self,
        limits: AnyLimits,
        *,
        user: Callable[..., Any] | None = None,
        **options: Unpack[LimitOptions],
    ) -> "DeclaredLimit":
        """Limit one endpoint: as a decorator below the route's, or as a dependency.

        Args:
            limits: Limits as text, `Limit` objects, limits by tier, or a function of the request, which needs the
                option `otherwise`.
            user: A dependency that returns the user, for `Depends` only; with it, `key` is "user" by default.
            **options: Options of `RouteLimit`, like `key`, `cost`, `name` and `charge`.

        Raises:
            PolicyError: The policy is invalid. It has every error, with its place.
            TypeError: An option is unknown or something else than expected. The message says what to write.
            ValueError: Options do not go together, or the policy cannot be combined with the limit.

        Examples:
            >>> from fastapi import Depends, FastAPI
            >>> from ratebound.web.fastapi import RateLimits
            >>> app = FastAPI()
            >>> limits = RateLimits(app=app)
            >>> @app.get("/reports", dependencies=[Depends(limits.limit("5/minute", key="address"))])
            ... async def reports(): ...
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
        if self.current.get() is None:  # in a request the decision itself raises
            self.gate.check(limit)
        OWNERS[limit] = self._mark
        return DeclaredLimit(self, limit, user)

    def exempt(self, function: F) -> F:
        """Exempt an endpoint from all rules but the early ones, which are checked before it is known.

        Args:
            function: The endpoint.

        Returns:
            The same function.

        Examples:
            >>> from fastapi import FastAPI
            >>> from ratebound.web.fastapi import RateLimits
            >>> app = FastAPI()
            >>> limits = RateLimits("100/minute", app=app)
            >>> @app.get("/health")
            ... @limits.exempt
            ... async def health(): ...
        """
        for one in with_originals(function):
            exempt(one)
        return function

    async def usage(self, request: HTTPConnection, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what the client of a request has used of each limit that the request was checked against. Charges
        nothing.

        Args:
            request: The Request or the WebSocket.
            all_rules: True for every limit that counts this client, whatever the path or method of the request, but for
                limits that all clients share.
            user: The user, if only a dependency knows it.
        """
        if not all_rules:
            return await self.gate.usage_after(request.scope.get("state", {}).get(STATE))
        return await self.gate.usage(self._client_view(request.scope, user))

    def usage_page(self, user: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return an endpoint that tells callers their own usage of all limits, as JSON.

        It costs nothing, except for early rules. Starlette: `Route("/rate_limit", limits.usage_page())`.

        Args:
            user: A dependency of FastAPI that returns the user.

        Examples:
            >>> from fastapi import FastAPI
            >>> from ratebound.web.fastapi import RateLimits
            >>> app = FastAPI()
            >>> limits = RateLimits("100/minute", app=app)
            >>> page = app.get("/rate_limit")(limits.usage_page())
        """

        async def usage_page(request: Request, user: Any = None) -> Response:
            view = self._client_view(request.scope, user)
            page = await run_async(read_page(self.gate, functools.partial(self.gate.usage, view)))
            return Response(page.body, page.status, HEADERS, CONTENT_TYPE)

        usage_page.__signature__ = _page_signature(user)  # type: ignore[attr-defined]
        return self.exempt(usage_page)

    @needing_auth
    def dashboard(self, *, auth: Auth[[Request]], ledger: DashboardLedger | None = None) -> MountedDashboard:
        """Return the dashboard of these limits as an application. Requests for it are not limited.

        What `auth` raises is for the application's own handlers of exceptions.

        Args:
            auth: A function of the Request, which may be async. It returns None, `"read"`, `"write"`, or an `Operator`.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.

        Examples:
            >>> from fastapi import FastAPI
            >>> from ratebound.web.fastapi import Operator, RateLimits
            >>> app = FastAPI()
            >>> limits = RateLimits("100/minute", app=app)
            >>> app.mount("/limits", limits.dashboard(auth=lambda request: Operator("alice", "read")))
        """
        check_takes(auth, "the Request", option="auth")
        site = asgi_dashboard(self.gate, functools.partial(_called_with_request, auth), ledger)
        dashboard = MountedDashboard(site, self)
        self.dashboards.append(dashboard)
        for application in self.applications:
            application.app.middleware_stack = self._admitting(application.app.middleware_stack, application)
        return dashboard

    def _admitting(self, stack: Any, application: LimitedApplication) -> Any:
        """Return a stack of middleware that lets requests for the dashboards of these limits pass, if there are any."""
        is_ours = bool(self.dashboards) and isinstance(stack, OutermostMiddleware)
        return DashboardEntrance(stack, application) if is_ours else stack

    def _client_view(self, scope: Scope, user: Any) -> RequestView:
        """Return a request whose handler runs, for rules that do not look at its path."""
        known = self.user(scope) if user is None else user_id(user)
        view = request_view(scope, known, None, ROUTED._replace(no_user=user_is_given))
        running = self.current.get()
        if running is not None:
            view.reread(running.view.paths)
        return view

    def _read_new_routes(self) -> None:
        for application in self.applications:
            application.read_routes_once()

    def read_routes(self) -> None:
        """Read the routes of all applications.

        Raises:
            ValueError: Limits cannot be combined with the policy.
        """
        for application in self.applications:
            application.read_routes()

    def marks(self, function: Any) -> list[RouteLimit | None]:
        """Return the limits of a function, but for those of another `RateLimits`.

        Args:
            function: The endpoint.
        """
        return [mark for mark in declared(function) if mark is None or OWNERS.get(mark, self._mark) is self._mark]

    def depended(self, route: Any) -> Sequence[tuple[RouteLimit, bool]]:
        """Return the limits that a route has as dependencies, and True for each that needs nothing but the request.

        Args:
            route: The route.
        """
        return [(one.limit, one.user is None) for one in _dependencies(route) if one.limits is self]

    async def check_part(self, endpoint: Endpoint, view: RequestView, running: RunningRequest) -> None:
        """Check limits that could not be foreseen. When the response starts, its status shows whether that is the
        response: then everything charged before is given back.

        Args:
            endpoint: The limits.
            view: The request.
            running: What is known of the request.

        Raises:
            RateLimitExceeded: The request is rejected.
        """
        view.body = running.view.body
        view.reread(running.view.paths)  # as it was at first: a mount below it is no prefix of this application
        visit, rules = running.visit, self.gate.rules_alone(endpoint)
        read_body = None if running.body is None else running.body.read
        answer = await run_async(visit.check_part(self.gate, rules, view, read_body=read_body))
        if isinstance(answer, Rejected):
            raise RateLimitExceeded(answer, visit)

    async def reject(self, app: Any, rejected: Rejected, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the limit's own `on_breach`, by the application's handler, or as the policy says.

        Args:
            app: The application.
            rejected: The rejection.
            scope: The scope of the request.
            receive: The receive function of ASGI.
            send: The send function of ASGI.
        """
        scope["state"][STATE] = rejected
        if rejected.breach is not None:
            response = await _called(rejected.breach, rejected)
            if response is not None:
                await response(scope, receive, send)
                return
        handler = _handler_of(app, rejected.status)
        if handler is None:
            await reject(rejected, scope, send)
        else:
            response = await _called(handler, Request(scope, receive, send), RateLimitExceeded(rejected))
            await response(scope, receive, send)


class DeclaredLimit:
    """A limit for an endpoint, as a decorator or as a dependency."""

    def __init__(self, limits: RateLimits, limit: RouteLimit, user: Callable[..., Any] | None) -> None:
        self.limits = limits
        self.limit = limit
        self.user = user
        self._endpoints: dict[Any, Endpoint] = {}
        self._is_temporary = limits.current.get() is not None  # created by a handler, for one request
        has_user_function = user is not None or limits.has_user_function
        self._wire = ROUTED._replace(no_user=user_is_given) if has_user_function else ROUTED
        limits.keeps_body = limits.keeps_body or limit.reads_body
        self.__signature__ = _signature(user)
        # FastAPI looks at the instance to see whether a dependency is async.
        self.__dict__["__call__"] = self.solve

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, /, **solved: Any) -> Coroutine[Any, Any, Passed]: ...

    def __call__(self, function: Any = None, /, **solved: Any) -> Any:
        if function is None:
            return self.solve(**solved)
        if self.user is not None:
            raise TypeError("user= is a dependency: write Depends(limits.limit(…)), or use key= with a decorator")
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
        check = EndpointCheck(self.limits.current, self.limit, self._check)
        return wrap_endpoint(function, check, self._wait)

    def _check(self, function: Any) -> Unchecked | None:
        """Return a coroutine that checks the limits of a function; None if all of them were checked."""
        running = self.limits.current.get()
        if running is None:
            if switch.limiting:
                raise RuntimeError(NOT_INSTALLED.format(name=getattr(function, "__qualname__", repr(function))))
            return None
        return None if was_checked(running.passed, self.limit) else self._check_now(function, running)

    async def _check_now(self, function: Any, running: RunningRequest) -> None:
        """Check once for each request: a task waits for another one of the same request that is checking."""
        passed, pending = running.passed, running.visit.pending
        marks = self.limits.marks(function)
        limits = [mark for mark in marks if mark is not None]
        if len(limits) < len(marks):
            return  # exempt
        while left := tuple(limit for limit in limits if not was_checked(passed, limit)):
            keys = [limit.name or limit for limit in left]
            other = next((pending[key] for key in keys if key in pending), None)
            if other is not None:
                await other.wait()
                continue
            done = Event()
            pending.update(dict.fromkeys(keys, done))
            try:
                await self._check_left(left, limits, function, running)
            finally:
                for key in keys:
                    del pending[key]
                done.set()

    async def _check_left(
        self, left: tuple[RouteLimit, ...], limits: list[RouteLimit], function: Any, running: RunningRequest
    ) -> None:
        scope, application = running.scope, running.application
        endpoint = self._endpoints.get((function, left))
        if endpoint is None:
            endpoint = join(*(application.named(function, limits.index(limit), limit, "") for limit in left))
            assert endpoint is not None
            self._endpoints[function, left] = endpoint
            application.read_routes_again(function)
        view = request_view(scope, self.limits.user(scope), running.view.route, application.routed)
        try:
            await self.limits.check_part(endpoint, view, running)
        finally:
            if self._is_temporary:
                self.limits.gate.release(endpoint)

    def _wait(self, unchecked: Unchecked) -> None:
        """Wait for a check in a plain function, which runs in a thread: the event loop of the request checks for it."""
        running = self.limits.current.get()
        loop = None if running is None else running.loop
        try:
            if asyncio._get_running_loop() is not None:
                raise RuntimeError(WOULD_BLOCK)
            if loop is None:
                from_thread.run(_awaited, unchecked)
            else:
                asyncio.run_coroutine_threadsafe(unchecked, loop).result()
        finally:
            unchecked.close()

    async def solve(self, connection: HTTPConnection, response: Response, user: Any = None) -> Passed:
        """Return the decision for this limit, as a dependency. It is checked now if it could not be foreseen."""
        running, scope = self.limits.current.get(), connection.scope
        if running is not None:
            is_exempt = None in self.limits.marks(scope.get("endpoint"))
            if is_exempt or was_checked(running.passed, self.limit):
                return running.passed
        known = self.limits.user(scope) if user is None else user_id(user)
        view = request_view(scope, known, None, self._wire)
        if running is None:
            return await self._solve_alone(connection, response, view)
        await self.limits.check_part(self._endpoint(scope, running.application.index), view, running)
        return running.passed

    async def _solve_alone(self, connection: HTTPConnection, response: Response, view: RequestView) -> Passed:
        """Check in an application in which the limits are not installed."""
        if self.limit.needs_result:
            raise RuntimeError(
                "charge= and strike= depend on the response, which only the middleware sees: limits.install(app)"
            )
        scope, gate = connection.scope, self.limits.gate
        found = scope.get("state", {}).get(STATE)
        passed = found if gate.owns(found) else None
        if passed is None:
            silence(found)
        elif was_checked(passed, self.limit):
            return passed
        rules = gate.rules_alone(self._endpoint(scope))
        if isinstance(connection, Request) and (rules.reads_body or gate.policy.reads_body):
            view.body = await starlette_body(connection)
        view.reread(apart(view.paths))  # it is not known to which application the limits belong
        visit = scope.get(VISIT)  # of a middleware around the application that has the same gate
        visit = visit if passed is not None and visit is not None and visit.answer is passed else Visit()
        visit.answer = passed
        answer = await run_async(visit.check_part(gate, rules, view))
        if isinstance(answer, Passed) and answer.slots:
            await gate.leave(answer)
            if rules.may_hold:  # else an operator's override has them, and the application is not to blame
                raise RuntimeError("slots end with the response, which only the middleware sees: limits.install(app)")
        if isinstance(answer, Rejected):
            await run_async(visit.reject(gate, answer))
            if passed is not None:
                scope["state"][STATE] = answer
            raise RateLimitExceeded(answer)
        if passed is None:
            connection.state.ratebound = passed = answer
        passed.end("these limits are not installed, so the end of its response is not seen: call limits.install(app)")
        response.headers.update(dict(passed.headers))
        return passed

    def _endpoint(self, scope: Scope, app: int = -1) -> Endpoint:
        """Return the endpoint of the function that depends on this limit."""
        function = scope.get("endpoint") or self
        endpoint = self._endpoints.get(function)
        if endpoint is None:
            route, names, is_plain = scope.get("route"), self.limits.names, self.user is None
            own = [mark for mark in self.limits.marks(function) if mark is not None] if is_plain else []
            limits = own + [one.limit for one in _dependencies(route) if (one.user is None) == is_plain]
            index = limits.index(self.limit) if self.limit in limits else 0
            name = names.of(function) if is_plain else short_name(f"{names.of(function)}.user")
            name = names.of_limit(name, index, self.limit, function, str(getattr(route, "path", "")), app)
            endpoint = self._endpoints[function] = Endpoint(name, [self.limit])
        return endpoint


def _dependencies(route: Any) -> list[DeclaredLimit]:
    """Return the limits among a route's dependencies, at any depth, in their order."""
    found: list[DeclaredLimit] = []
    left = [getattr(route, "dependant", None)]
    while left:
        dependant = left.pop()
        call = getattr(dependant, "call", None)
        if isinstance(call, DeclaredLimit) and call not in found:
            found.append(call)
        left += reversed(getattr(dependant, "dependencies", ()))
    return found


def _may_look_at_user(limits: Any, options: Mapping[str, Any]) -> bool:
    """Return True if a limit counts by user or by tier, or has a function, which may look at the user."""
    key = options["key"]
    listed = key if isinstance(key, list | tuple) else [key]
    if any(names_user(one) for one in listed):
        return True
    values = (options.get("distinct") or {}).values()
    if any(names_user(one) for one in values):
        return True
    functions = (*listed, limits, options.get("cost"), options.get("exempt_when"), *values)
    return isinstance(limits, Mapping | Computed) or any(callable(one) for one in functions)


def _signature(user: Callable[..., Any] | None) -> inspect.Signature:
    """Return the arguments that FastAPI passes to `DeclaredLimit.solve`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("connection", keyword, annotation=HTTPConnection),
        inspect.Parameter("response", keyword, annotation=Response),
    ]
    if user is not None:
        parameters.append(_user_parameter(user))
    return inspect.Signature(parameters)


def _page_signature(user: Callable[..., Any] | None) -> inspect.Signature:
    """Return the arguments that a framework passes to a usage page."""
    parameters = [inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)]
    if user is not None:
        parameters.append(_user_parameter(user))
    return inspect.Signature(parameters, return_annotation=Response)


def _user_parameter(user: Callable[..., Any]) -> inspect.Parameter:
    from fastapi import Depends

    return inspect.Parameter("user", inspect.Parameter.KEYWORD_ONLY, default=Depends(user))


def _handler_of(app: Any, status: int) -> Callable[..., Any] | None:
    """Return the application's own handler for rejections of this status; None if it has none."""
    handlers = app.exception_handlers
    handler: Callable[..., Any] | None = handlers.get(status) or handlers.get(RateLimitExceeded)
    return None if handler == answer_rejection else handler


def _answers_itself(app: Any, status: int) -> bool:
    return _handler_of(app, status) is not None


async def _awaited(unchecked: Unchecked) -> None:
    await unchecked


async def answer_rejection(connection: HTTPConnection, error: Exception) -> Response | None:
    """Return the policy's own response to a rejection that was raised while the application ran."""
    assert isinstance(error, RateLimitExceeded)
    rejected = error.rejected
    if rejected.breach is not None:
        response = await _called(rejected.breach, rejected)
        if response is not None:
            if error.visit is not None:  # which knows the response by its status
                error.visit.part_status = getattr(response, "status_code", rejected.status)
            return response  # type: ignore[no-any-return]
    if isinstance(connection, WebSocket):
        can_deny = "websocket.http.response" in connection.scope.get("extensions", {})
        if not can_deny or connection.application_state is not WebSocketState.CONNECTING:
            await connection.close(POLICY_VIOLATION, "too many connections")
            return None
    is_head = connection.scope.get("method") == "HEAD"
    response = Response(b"" if is_head else rejected.body, rejected.status)
    del response.headers["content-length"]
    response.headers["content-length"] = str(len(rejected.body))
    for name, value in rejected.headers:
        response.headers.append(name, value)
    return response


async def _called_with_request(function: Callable[..., Any], scope: Scope) -> Any:
    return await _called(function, Request(scope))


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await run_in_threadpool(function, *args)
    return await value if isinstance(value, Awaitable) else value


__all__ = ["Operator", "Passed", "RateLimitExceeded", "RateLimits", "Rejected", "RequestView"]
