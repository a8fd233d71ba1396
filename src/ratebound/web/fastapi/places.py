"""Two places in an application's middleware: outermost, where early rules are asked and every response gets its
headers, errors of the server included; and innermost, where the user and the endpoint are known.

What middleware between them answers by itself, say to a bad token, never comes to the innermost place: then the rest is
asked when that response starts, and may be refused instead.
"""

from asyncio import _get_running_loop as running_loop  # None where another kind of loop runs
from collections.abc import Awaitable
from typing import Any

from ratebound.policy import RequestView
from ratebound.policy.model.rule import Stage
from ratebound.web.answer import Passed, Refused
from ratebound.web.asgi import STATE, App, Message, Receive, Scope, Send, ask, hush, read_body, request_view
from ratebound.web.fastapi.kept import Kept
from ratebound.web.fastapi.site import Record, Site
from ratebound.web.gate import AsyncWebGate, log
from ratebound.web.sending import START, Telling, nothing, started
from ratebound.web.websocket import DENIED, STARTS, connect, deny

CORS = "cors"  # under which a record has that the request reached CORSMiddleware
BEGUN = {START, "websocket.close", *STARTS}
ENDED = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")


class Outermost:
    """Early rules, headers on every response, and the storage's life."""

    def __init__(self, app: App, site: Site) -> None:
        self.app = app
        self.site = site
        self.limits = site.limits
        self.gate = site.limits.gate
        self._key = site.limits.key
        self._has_between = any(one.cls is not Innermost for one in site.app.user_middleware)
        _watch_cors(app, self._key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, gate = scope["type"], self.gate
        if kind == "lifespan":
            await self._live(scope, receive, send)
            return
        state = scope["state"] = {**scope.get("state", {})}  # the server's own is for all requests
        around = state.get(STATE)
        if self._key in scope:
            await self.app(scope, receive, send)  # an application around this one has the same limits
            return
        if around is not None and gate.owns(around):
            await self._tell(around, scope, receive, send)
            return
        record: Record = {}
        scope[self._key] = record
        if kind == "http":
            send = Telling(gate, record, send, scope["method"] == "HEAD").send
            if gate.has_early:
                answer, receive = await ask(gate, self._view(scope), None, receive, stage="early")
                hush(around)
                state[STATE] = record[STATE] = answer
                if isinstance(answer, Refused):
                    await self.limits.refuse(self.site.app, answer, scope, receive, send)
                    return
                await gate.sleep(answer)
        if self._has_between:
            send = Between(self.site, record, scope, receive, send).send
        await self.app(scope, receive, send)

    def _view(self, scope: Scope) -> RequestView:
        return request_view(scope, None, None, self.site.wire)

    async def _tell(self, around: Passed, scope: Scope, receive: Receive, send: Send) -> None:
        """A middleware around this one has the same gate, and has asked: what is left is to tell what comes of it."""
        record: Record = {STATE: around}
        scope[self._key] = record
        if scope["type"] == "http":
            send = Telling(self.gate, record, send, scope["method"] == "HEAD").send
        await self.app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The storage is opened by the first request and closed with the last application."""
        limits = self.limits
        limits.lives.add(self)

        async def closing(message: Message) -> None:
            if message["type"] in ENDED:
                limits.lives.discard(self)
                if not limits.lives:
                    try:
                        await self.gate.close()
                    except Exception:
                        log.exception("the storage could not be closed")
            await send(message)

        try:
            await self.app(scope, receive, closing)
        finally:
            limits.lives.discard(self)  # a start that failed


class Innermost:
    """The rules that are left, when all is known that they may ask for."""

    def __init__(self, app: App, site: Site) -> None:
        self.app = app
        self.site = site
        self.limits = site.limits
        self._key = site.limits.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        site, limits = self.site, self.limits
        gate, kind = limits.gate, scope["type"]
        if kind == "lifespan":
            site.read_routes()  # what is wrong raises at the start
            await self.app(scope, receive, send)
            return
        state = scope["state"]
        record: Record | None = scope.get(self._key)
        if record is None:  # middleware may make a scope of its own
            record = scope[self._key] = {}
        around, earlier = state.get(STATE), record.get(STATE)
        if around is not None or earlier is not None:
            earlier = next((one for one in (earlier, around) if gate.owns(one)), None)
            if earlier is not None and earlier.verdict.stage == "late":  # asked already, by one around this one
                record[STATE] = earlier
                await self._enter(earlier, request_view(scope), scope, record, receive, send)
                return
        found = site.find(scope)
        if kind == "websocket":
            view = request_view(
                {**scope}, limits.user(scope), found.template, site.wire
            )  # the router changes its scope
            app, messages = self._entered(view, record), limits.messages
            await connect(app, gate, view, found.endpoint, messages, scope, receive, send, record)
            return
        view = request_view(scope, limits.user(scope), found.template, site.wire)
        door = gate.door(found.endpoint)
        if door.reads_body:
            view.body, receive = await read_body(receive)
        answer = await gate.through(door, view, stage="late", earlier=earlier)
        if around is not earlier:
            hush(around)
        if isinstance(answer, Refused):
            await limits.refuse(site.app, answer, scope, receive, send)
            return
        if answer.delay:
            await gate.sleep(answer)
        state[STATE] = record[STATE] = answer
        if limits.keeps_body and view.body is None:
            await self._enter(answer, view, scope, record, receive, send)
            return
        # As there, with a call less: by far the most requests come here.
        token = limits.current.set((answer, scope, view, None, site, record, running_loop()))
        try:
            await self.app(scope, receive, send)
        finally:
            limits.current.reset(token)

    async def _enter(
        self, passed: Passed, view: RequestView, scope: Scope, record: Record, receive: Receive, send: Send
    ) -> None:
        """Run the application, and let it ask for what could not be foreseen."""
        limits, kept = self.limits, None
        if limits.keeps_body and view.body is None and scope["type"] == "http":
            kept = Kept(receive)
            receive = kept.receive
        token = limits.current.set((passed, scope, view, kept, self.site, record, running_loop()))
        try:
            await self.app(scope, receive, send)
        finally:
            limits.current.reset(token)

    def _entered(self, view: RequestView, record: Record) -> App:
        """The application, for a connection that was let in."""

        async def entered(scope: Scope, receive: Receive, send: Send) -> None:
            await self._enter(record[STATE], view, scope, record, receive, send)

        return entered


def _watch_cors(app: Any, key: str) -> None:
    """Find Starlette's CORSMiddleware in a stack, and have it noted when a request reaches it."""
    inner = getattr(app, "app", None)
    while inner is not None:
        if f"{type(inner).__module__}.{type(inner).__qualname__}" == "starlette.middleware.cors.CORSMiddleware":
            app.app = ReachedCors(inner, key)
        app, inner = inner, getattr(inner, "app", None)


class ReachedCors:
    """CORSMiddleware, which answers every preflight that reaches it, and lets none through."""

    def __init__(self, app: App, key: str) -> None:
        self.app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and self._key in scope:
            scope[self._key][CORS] = True
        await self.app(scope, receive, send)


class Between:
    """Sends what comes from the application, or from middleware that has answered without it."""

    __slots__ = ("_before", "_is_refused", "_receive", "_record", "_scope", "_send", "_site")

    def __init__(self, site: Site, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        self._site = site
        self._record = record
        self._scope = scope
        self._receive = receive
        self._send = send
        self._before: Passed | None = record.get(STATE)  # the innermost place puts another there
        self._is_refused = False

    def send(self, message: Message) -> Awaitable[None]:
        if self._is_refused:
            return nothing()
        if message["type"] in BEGUN and self._record.get(STATE) is self._before:
            return self._ask(message)
        return self._send(message)

    async def _ask(self, message: Message) -> None:
        scope, earlier = self._scope, self._before
        limits = self._site.limits
        gate, found = limits.gate, self._site.find(scope)
        view = request_view(scope, self._user(), found.template, self._site.answered_wire)
        stage: Stage | None = "late" if scope["type"] == "http" else None  # nothing was asked for a connection yet
        answer = await gate.before(view, found.endpoint, stage=stage, earlier=earlier)
        if earlier is None:
            hush(scope["state"].get(STATE))
        scope["state"][STATE] = self._record[STATE] = answer
        if scope["type"] == "websocket":
            await self._ask_connection(gate, answer, message)
        elif isinstance(answer, Refused):
            self._is_refused = True
            await limits.refuse(self._site.app, answer, scope, self._receive, self._with_origin(message))
        else:
            if self._record.get(CORS) and view.is_preflight:
                answer.bypass_handler()
            await gate.sleep(answer)
            await self._send(message)

    def _user(self) -> Any:
        """Nobody, where that cannot be told: who finds the user may not have been asked yet, or has just said no."""
        try:
            return self._site.limits.user(self._scope)
        except Exception:
            return None

    def _with_origin(self, replaced: Message) -> Send:
        """The refusal stands in for an answer that CORS middleware may have opened to scripts: so is the refusal."""
        fields = [
            one for one in replaced.get("headers", ()) if one[0].lower().startswith((b"access-control-", b"vary"))
        ]

        async def send(message: Message) -> None:
            if message["type"] == START:
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await self._send(message)

        return send

    async def _ask_connection(self, gate: AsyncWebGate, answer: Passed | Refused, message: Message) -> None:
        if isinstance(answer, Refused):
            self._is_refused = True
            await deny(answer, self._scope, self._send)
            return
        await gate.sleep(answer)
        if message["type"] in STARTS:
            message = started(message, answer)
        elif answer.settles:
            await gate.after(answer, DENIED, 0)
        await self._send(message)
