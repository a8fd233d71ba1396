"""Two middleware of a FastAPI or Starlette application. The outermost checks early rules and puts headers on every
response, errors of the server included. The innermost checks all other rules: there user and endpoint are known.

A response of middleware between them, say to a bad token, never passes the innermost one: then the rest is checked when
that response starts, and a rejection may take its place.
"""

from asyncio import _get_running_loop as running_loop  # None where another kind of loop runs
from collections.abc import Awaitable
from functools import partial
from typing import Any

from ratebound.flow import run_async
from ratebound.policy import RequestView
from ratebound.policy.model.rule import Stage
from ratebound.web.asgi import check_with_body, close_logged, reject, request_view, respond
from ratebound.web.asgi_plain_path import peer_of
from ratebound.web.asgi_response import START, AsgiResponse, break_off, leave, send_nothing, with_our_headers
from ratebound.web.asgi_types import STATE, App, Message, Receive, Scope, Send
from ratebound.web.body import KeptBody
from ratebound.web.fastapi.application import LimitedApplication
from ratebound.web.fastapi.plain_path import begin_plain
from ratebound.web.fastapi.running_request import RunningRequest
from ratebound.web.load_meter import METERED, LoadMeter, meter_asgi
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.visit import Visit
from ratebound.web.websocket import DENIED, STARTS, connect, deny

BEGUN = {START, "websocket.close", *STARTS}
ENDED = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")


class OutermostMiddleware:
    """Checks early rules, puts headers on every response, and closes the storage at the end."""

    def __init__(self, app: App, application: LimitedApplication) -> None:
        self.app = app
        self.application = application
        self.limits = application.limits
        self.gate = application.limits.gate
        self._key = application.limits.key
        application.start()
        self._has_between = any(one.cls is not InnermostMiddleware for one in application.app.user_middleware)
        _watch_cors(app, self._key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, gate = scope["type"], self.gate
        if gate.meter is not None and kind == "http" and METERED not in scope:
            await _meter(gate.meter, self, scope, receive, send)
            return
        begun = begin_plain(gate, self._key, scope, send) if kind == "http" else None
        if begun is not None:
            visit = begun.tracker.visit
            if self._has_between:
                await respond(
                    self.app, scope, receive, begun, SendBetween(self.application, visit, scope, receive, begun).send
                )
                return
            try:
                await self.app(scope, receive, begun)
            except BaseException as error:
                await break_off(begun, isinstance(error, Exception))
                raise
            if isinstance(visit.answer, Passed) and not visit.answer.ended:
                await break_off(begun)
            return
        if kind == "lifespan":
            await self._live(scope, receive, send)
            return
        state = scope["state"] = {**scope.get("state", {})}  # the server's own is for all requests
        if self._key in scope:
            await self.app(scope, receive, send)  # an application around this one has the same limits
            return
        around = state.get(STATE)
        visit = scope[self._key] = Visit()
        response = AsgiResponse(gate, visit, send, scope.get("method") == "HEAD")
        if kind == "http":
            send = response
        if around is not None and gate.owns(around):
            visit.answer = around  # a middleware around this one has the same gate, and has checked everything
        else:
            if kind == "http" and gate.current().has_early:
                rules, view = gate.rules_for(None), request_view(scope, None, None, self.application.wire)
                answer, receive = await check_with_body(visit, gate, rules, view, receive, "early")
                silence(around)
                state[STATE] = answer
                if isinstance(answer, Rejected):
                    await self.limits.reject(self.application.app, answer, scope, receive, send)
                    return
            if self._has_between:
                send = SendBetween(self.application, visit, scope, receive, send).send
        if kind == "http":
            await respond(self.app, scope, receive, response, send)
            return
        try:
            await self.app(scope, receive, send)  # a connection settles itself
        finally:
            if visit.holds:
                await leave(gate, visit)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close the storage with the last application. The first request opens it."""
        limits = self.limits
        limits.lives.add(self)

        async def closing(message: Message) -> None:
            if message["type"] in ENDED:
                limits.lives.discard(self)
                if not limits.lives:
                    await close_logged(self.gate)
            await send(message)

        try:
            await self.app(scope, receive, closing)
        finally:
            limits.lives.discard(self)  # a start that failed


class InnermostMiddleware:
    """Checks the rules that are left, where everything is known that they may need."""

    def __init__(self, app: App, application: LimitedApplication) -> None:
        self.app = app
        self.application = application
        self.limits = application.limits
        self._key = application.limits.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application, limits = self.application, self.limits
        gate, kind = limits.gate, scope["type"]
        if kind == "http":
            entered = application.entrance.enter(scope)
            if isinstance(entered, RunningRequest):
                token = limits.current.set(entered)
                try:
                    await self.app(scope, receive, send)
                finally:
                    limits.current.reset(token)
                    if entered.visit.took_slots:  # by a function that it has called
                        await leave(gate, entered.visit)
                return
            if entered is not None:
                await limits.reject(application.app, entered, scope, receive, send)
                return
        if kind == "lifespan":
            application.read_routes()  # a mistake raises at the start
            await self.app(scope, receive, send)
            return
        state = scope["state"]
        visit: Visit | None = scope.get(self._key)
        if visit is None:  # middleware may make a scope of its own
            visit = scope[self._key] = Visit()
        around, earlier = state.get(STATE), visit.answer
        if around is not None or earlier is not None:
            earlier = next((one for one in (earlier, around) if gate.owns(one)), None)
            visit.answer = earlier
            if earlier is not None and earlier.verdict.stage == "late":  # checked already, by one around this one
                visit.is_late = True
                await self._enter(earlier, visit, request_view(scope), scope, receive, send)
                return
        found = application.find(scope)
        if found.is_dashboard and kind == "http":
            await self.app(scope, receive, send)
            return
        if visit.is_spared and gate.meter is not None and METERED not in scope:  # a middleware has changed the path
            await _meter(gate.meter, self, scope, receive, send)
            return
        user = limits.user(scope) if limits.has_user_function or "user" in scope else None
        if kind == "websocket":
            view = request_view({**scope}, user, found.template, application.wire)  # the router changes its scope
            app, messages = self._entered(visit, view), limits.messages
            await connect(app, gate, view, found.endpoint, messages, scope, receive, send, visit)
            return
        view = RequestView.on_demand(application.wire, scope, scope["method"], peer_of(scope), user, found.template)
        rules = gate.rules_for(found.endpoint)
        if rules.is_direct and earlier is None:
            answer = visit.answer = rules.answer(view, [await gate.decide_by(rules.compiled, view, rules.last_stage)])
            visit.is_late = True
            if isinstance(answer, Passed) and answer.delay:
                await gate.sleep(answer)
        else:
            stage: Stage | None = None if visit.is_spared else "late"
            answer, receive = await check_with_body(visit, gate, rules, view, receive, stage)
        if around is not None and around is not earlier:
            silence(around)
        if isinstance(answer, Rejected):
            await limits.reject(application.app, answer, scope, receive, send)
            return
        state[STATE] = answer
        await self._enter(answer, visit, view, scope, receive, send)

    async def _enter(
        self, passed: Passed, visit: Visit, view: RequestView, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the application, and let it check limits that could not be foreseen."""
        limits, body = self.limits, None
        if limits.keeps_body and view.body is None and scope["type"] == "http":
            body = KeptBody(receive)
            receive = body.receive
        running = RunningRequest(passed, visit, scope, view, body, self.application, running_loop())
        token = limits.current.set(running)
        try:
            await self.app(scope, receive, send)
        finally:
            limits.current.reset(token)
            if visit.holds:
                await leave(limits.gate, visit)

    def _entered(self, visit: Visit, view: RequestView) -> App:
        """Return the application, for a connection that was opened."""

        async def entered(scope: Scope, receive: Receive, send: Send) -> None:
            assert visit.passed is not None
            await self._enter(visit.passed, visit, view, scope, receive, send)

        return entered


async def _meter(
    meter: LoadMeter, middleware: OutermostMiddleware | InnermostMiddleware, scope: Scope, receive: Receive, send: Send
) -> None:
    """Call a middleware again if there is a place for the request, and reject the request otherwise."""
    entered = meter.enter(partial(request_view, scope, None, None, middleware.application.wire))
    if isinstance(entered, Rejected):
        await reject(entered, scope, send)
    else:
        await meter_asgi(entered, middleware, scope, receive, send)


def _watch_cors(app: Any, key: str) -> None:
    """Find Starlette's CORSMiddleware in a stack, and note which requests reach it."""
    inner = getattr(app, "app", None)
    while inner is not None:
        if f"{type(inner).__module__}.{type(inner).__qualname__}" == "starlette.middleware.cors.CORSMiddleware":
            app.app = NoteCors(inner, key)
        app, inner = inner, getattr(inner, "app", None)


class NoteCors:
    """Notes that a preflight has reached CORSMiddleware, which answers all of them, and lets none through."""

    def __init__(self, app: App, key: str) -> None:
        self.app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and self._key in scope:
            scope[self._key].reached_cors = True
        await self.app(scope, receive, send)


class SendBetween:
    """Sends the messages of the application, or of middleware that has answered without it."""

    __slots__ = ("_application", "_is_rejected", "_receive", "_scope", "_send", "_visit")

    def __init__(
        self, application: LimitedApplication, visit: Visit, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._application = application
        self._visit = visit
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_rejected = False

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message, or the rejection that takes its place."""
        if self._is_rejected:
            return send_nothing()
        if message["type"] in BEGUN and not self._visit.is_late:
            return self._check(message)
        return self._send(message)

    async def _check(self, message: Message) -> None:
        scope, visit, application = self._scope, self._visit, self._application
        limits, found, earlier = application.limits, application.find(scope), visit.answer
        gate, is_http = limits.gate, scope["type"] == "http"
        view = request_view(scope, self._user(), found.template, application.answered_wire)
        # Nothing was checked yet for a connection, nor for a request that was routed to the dashboard.
        stage: Stage | None = "late" if is_http and not visit.is_spared else None
        endpoint = found.endpoint
        if endpoint is not None and endpoint.spared_path is not None:
            endpoint = None  # the page was not reached, and the answer of a middleware is limited
        answer = await run_async(visit.check(gate, gate.rules_for(endpoint), view, stage))
        if earlier is None:
            silence(scope["state"].get(STATE))
        scope["state"][STATE] = answer
        self._is_rejected = isinstance(answer, Rejected)
        if isinstance(answer, Rejected):
            if is_http:
                await limits.reject(application.app, answer, scope, self._receive, self._with_origin(message))
            else:
                await deny(answer, scope, self._send)
            return
        if is_http:
            if visit.reached_cors and view.is_preflight:
                answer.bypass_handler()
        elif message["type"] in STARTS:
            message = with_our_headers(message, answer)
        elif answer.settles:
            await gate.after(answer, DENIED, 0)
        await self._send(message)

    def _user(self) -> Any:
        """Return the user, or None: the middleware that finds the user may not have run, or may have said no."""
        try:
            return self._application.limits.user(self._scope)
        except Exception:
            return None

    def _with_origin(self, replaced: Message) -> Send:
        """Return a `send` that copies CORS headers of the replaced response: scripts may read the rejection, too."""
        fields = [
            one for one in replaced.get("headers", ()) if one[0].lower().startswith((b"access-control-", b"vary"))
        ]

        async def send(message: Message) -> None:
            if message["type"] == START:
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await self._send(message)

        return send
