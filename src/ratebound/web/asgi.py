"""Pure ASGI: any framework, no import of one. Requests and WebSocket connections in, headers and rejections out.

It matches the policy's own path patterns, and the route's template where the framework routes before its middleware, as
Litestar does; an adapter that knows the router and the user hands in `find` and `user`.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Unpack

from ratebound.flow import run_async
from ratebound.policy import RequestView
from ratebound.policy.functions import check_takes
from ratebound.policy.match.reading import Paths, configured_prefixes, is_configured, read_paths, with_or_without
from ratebound.policy.match.request import ANONYMOUS, Wire
from ratebound.policy.model.rule import Stage
from ratebound.usage import Usage
from ratebound.web.asgi_plain_path import enter_plain, is_scripted, peer_of
from ratebound.web.asgi_response import AsgiResponse, as_fields, break_off, leave
from ratebound.web.asgi_types import STATE, VISIT, App, Message, Receive, Scope, Send
from ratebound.web.body import KeptBody
from ratebound.web.dashboard import Auth, DashboardLedger, asgi_dashboard, needing_auth
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.gate import AsyncWebGate
from ratebound.web.load_meter import METERED, meter_asgi
from ratebound.web.mounts import AsgiMount
from ratebound.web.options import AnyPolicy, AsyncOptions, checked_gate
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.user import User, found_user_id, identified, user_id, user_is_given
from ratebound.web.visit import Visit
from ratebound.web.websocket import connect

log = logging.getLogger("ratebound")

MAX_LAYERS = 1024  # of middleware and mounted applications
Find = Callable[[Scope], tuple[Endpoint | None, str | None]]

UNKNOWN_USER = (
    "no middleware around it has set scope['user']: put it inside your authentication middleware, or give it"
    " user=, a function of the scope"
)


def user_of(scope: Scope) -> User:
    """Return the user that an authentication middleware around this one has found, as Starlette's: `scope["user"]`."""
    user = scope.get("user")
    return None if user is None else found_user_id(user)


def header_name(name: bytes) -> str:
    """Return the name of a header as text in lower case."""
    return _known_name(name) if len(name) <= 64 else name.decode("latin-1").lower()


@lru_cache(maxsize=1024)
def _known_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _paths(scope: Scope, own: Sequence[str] = ()) -> Paths:
    """Return the readings of the path. `own` are prefixes that applications behind take off by themselves."""
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"]
    target = raw.partition(b"?")[0].decode("latin-1") if raw else None
    root: str = scope.get("root_path") or ""
    if target == path and not root and not own and not configured_prefixes():
        return path
    prefixes = dict.fromkeys(own, True)
    if root:
        outer: str = scope.get("app_root_path", root)
        is_known = not outer or is_configured(outer) or outer == getattr(scope.get("app"), "root_path", "")
        if outer:
            prefixes.setdefault(outer, is_known)
        # A mount is the application's own. One with parameters takes the request's word for a prefix.
        prefixes.setdefault(root, is_known and not scope.get("path_params"))
    others = [(with_or_without(path, prefix), is_known) for prefix, is_known in prefixes.items()]
    # Some frameworks cut at a prefix wherever it stands.
    others += [(path.split(prefix, 1)[1], False) for prefix in prefixes if prefix in path]
    found = [(other.encode("utf-8", "surrogatepass") or b"/", is_known) for other, is_known in others]
    known = root if prefixes.get(root) else ""
    return read_paths(target, path.encode("utf-8", "surrogatepass"), found, prefixes, known)


def paths_with(own: Sequence[str]) -> Callable[[Scope], Paths]:
    """Return the function that reads paths where applications take off these prefixes by themselves."""
    return partial(_paths, own=own) if own else _paths


def own_prefixes(app: Any) -> list[str]:
    """Return the prefixes that applications take off paths by themselves, unseen from outside of them.

    FastAPI has `root_path`, Django has FORCE_SCRIPT_NAME. They may stand behind other middleware, or be mounted.
    """
    found: dict[str, None] = {}
    left, seen = [app], set[int]()
    while left and len(seen) < MAX_LAYERS:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        kinds = {kind.__module__.partition(".")[0] for kind in type(one).__mro__}
        if "fastapi" in kinds:
            found[str(getattr(one, "root_path", ""))] = None
        elif "django" in kinds:
            found[str(getattr(sys.modules["django.conf"].settings, "FORCE_SCRIPT_NAME", None) or "")] = None
        routes = getattr(one, "routes", None)
        mounted = [route.app for route in routes if hasattr(route, "routes")] if isinstance(routes, list) else []
        left += [*mounted, getattr(one, "app", None)]
    return [prefix for prefix in found if prefix.strip("/")]


def _host(scope: Scope) -> str:
    """Return the Host header; several, which some servers let through, joined by commas."""
    return ",".join([value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"])


WIRE = Wire(
    paths=_paths,
    query=lambda scope: scope.get("query_string", b"").decode("latin-1"),
    host=_host,
    headers=lambda scope: [(header_name(name), value.decode("latin-1")) for name, value in scope["headers"]],
    scheme=lambda scope: scope.get("scheme", "http"),
    is_scripted=is_scripted,
    path_params=lambda scope: scope.get("path_params") or {},
    session=lambda scope: scope.get("session"),
    state=lambda scope: scope.get("state"),
    request=lambda scope: scope,
    no_user=lambda scope: "" if "user" in scope else UNKNOWN_USER,
    anonymous=ANONYMOUS,
)


def request_view(scope: Scope, user: User = None, route: str | None = None, wire: Wire = WIRE) -> RequestView:
    """Return a request as rules see it; the handshake of a WebSocket is a GET."""
    return RequestView.on_demand(wire, scope, scope.get("method", "GET"), peer_of(scope), user, route)


class RateLimitMiddleware:
    """Limits for an ASGI application.

    A handler sees the decision in `scope["state"]["ratebound"]`; the server's own state is not touched. `usage_of`,
    `grant`, `reset`, `holders`, `block`, `unblock`, `blocks` and other calls for operators are those of the gate:
    `await middleware.reset("user:42")`.

    Args:
        app: The application.
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
        gate: A gate that several applications share, in place of a policy.
        user: A function of the scope that returns who is authenticated: an id, an `Identity`, or None. By default it is
            the user that Starlette's AuthenticationMiddleware has set.
        find: A function of the scope that returns the endpoint and the route of a request. Frameworks' adapters give
            it.
        messages: The limit of the messages of each WebSocket connection. A client that sends more is disconnected.
        **options: Options of `WebGate`, like `storage`, `max_delay` and `listeners`, and of `Policy`, like `failure`,
            `by` and `headers`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> from ratebound.web.asgi import RateLimitMiddleware
        >>> async def app(scope, receive, send): ...
        >>> limited = RateLimitMiddleware(app, "100/minute", failure="open")
    """

    def __init__(
        self,
        app: Any,
        policy: AnyPolicy | None = None,
        *,
        gate: AsyncWebGate | None = None,
        user: Callable[[Scope], Any] = user_of,
        find: Find | None = None,
        messages: "str | RouteLimit | None" = None,
        **options: Unpack[AsyncOptions],
    ) -> None:
        self.app: App = app
        self.gate = checked_gate(gate, policy, options) or AsyncWebGate(policy, **options)
        self._has_own_gate = gate is None
        self._has_user_function = user is not user_of
        self.user = identified(user, "the scope") if self._has_user_function else user
        self.find = find
        self._wire = WIRE._replace(paths=self._first_paths)
        if self._has_user_function:
            self._wire = self._wire._replace(no_user=user_is_given)
        self.messages = messages_endpoint(messages)
        self.gate.prepare(self.messages)
        self.usage_of, self.grant, self.reset = self.gate.usage_of, self.gate.grant, self.gate.reset
        self.block, self.unblock, self.blocks = self.gate.block, self.gate.unblock, self.gate.blocks
        self.override, self.overrides = self.gate.override, self.gate.overrides
        self.remove_override, self.remove_switch = self.gate.remove_override, self.gate.remove_switch
        self.set_switch, self.switches, self.promote = self.gate.set_switch, self.gate.switches, self.gate.promote
        self.changes, self.record = self.gate.changes, self.gate.record
        self.holders = self.gate.holders

    async def usage(self, scope: Scope, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what the client of a request has used of each limit that the request was checked against. Charges
        nothing.

        Args:
            scope: The scope of the request.
            all_rules: True for every limit that counts this client, whatever the path or method of the request, but for
                limits that all clients share.
            user: The user, if the adapter does not know it.
        """
        if not all_rules:
            return await self.gate.usage_after((scope.get("state") or {}).get(STATE))
        known = self.user(scope) if user is None else user_id(user)
        return await self.gate.usage(request_view(scope, known, None, self._wire))

    @needing_auth
    def dashboard(self, *, auth: Auth[[Scope]], ledger: DashboardLedger | None = None) -> App:
        """Return the dashboard of these limits as an application, to be mounted in front of this one: see
        `with_dashboard`.

        Behind the middleware its requests would be limited.

        Args:
            auth: A function of the scope, which may be async. It returns None, `"read"`, `"write"`, or an `Operator`.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.
        """
        check_takes(auth, "the scope", option="auth")
        return asgi_dashboard(self.gate, auth, ledger)

    @needing_auth
    def with_dashboard(self, path: str, *, auth: Auth[[Scope]], ledger: DashboardLedger | None = None) -> AsgiMount:
        """Return this application with the dashboard in front of it. Requests for the dashboard are not limited.

        Args:
            path: The path of the dashboard, like `"/limits"`.
            auth: A function of the scope, which may be async. It returns None, `"read"`, `"write"`, or an `Operator`.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.

        Examples:
            >>> from ratebound.web.asgi import RateLimitMiddleware
            >>> async def app(scope, receive, send): ...
            >>> limited = RateLimitMiddleware(app, "100/minute")
            >>> site = limited.with_dashboard("/limits", auth=lambda scope: None)
        """
        return AsgiMount(self, path, self.dashboard(auth=auth, ledger=ledger))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # every framework has types of its own here
        kind, gate = scope["type"], self.gate
        if gate.meter is not None and kind == "http" and METERED not in scope:
            entered = gate.meter.enter(partial(request_view, scope, None, None, self._wire))
            if isinstance(entered, Rejected):
                await reject(entered, scope, send)
            else:
                await meter_asgi(entered, self, scope, receive, send)
            return
        if kind == "http" and self.find is None and not self._has_user_function:
            plain = enter_plain(gate, self._wire, scope, send)
            if isinstance(plain, AsgiResponse):
                passed = plain.tracker.visit.answer
                if isinstance(passed, Passed) and passed.may_settle:
                    await respond(self.app, scope, receive, plain)
                    return
                try:
                    await self.app(scope, receive, plain)
                except BaseException as error:
                    await break_off(plain, isinstance(error, Exception))
                    raise
                if isinstance(passed, Passed) and not passed.ended:
                    await break_off(plain)
                return
            if plain is not None:
                await reject(plain, scope, send)
                return
        if kind == "lifespan":
            await lifespan(self.app, gate, scope, receive, send)
            return
        state = scope.get("state") or {}
        around = state.get(STATE)
        if kind not in ("http", "websocket") or (around is not None and gate.owns(around)):
            await self.app(scope, receive, send)  # the second: checked already, by one around this one
            return
        if self.find is not None:
            endpoint, route = self.find(scope)
        else:
            endpoint, route = None, self._template(scope) if "path_template" in scope else None
        user = self.user(scope) if self._has_user_function or "user" in scope else None
        visit = scope[VISIT] = Visit()
        if kind == "websocket":
            view = request_view({**scope}, user, route, self._wire)  # the application changes its scope
            await connect(self.app, gate, view, endpoint, self.messages, scope, receive, send, visit)
            return
        view = RequestView.on_demand(self._wire, scope, scope["method"], peer_of(scope), user, route)
        rules = gate.rules_for(endpoint)
        if rules.is_direct:
            verdict = await gate.decide_by(rules.compiled, view, rules.last_stage)
            answer = visit.answer = rules.answer(view, [verdict])
            if isinstance(answer, Passed) and answer.delay:
                await gate.sleep(answer)
        else:
            answer, receive = await check_with_body(visit, gate, rules, view, receive)
        if around is not None:
            silence(around)
        if isinstance(answer, Rejected):
            await reject(answer, scope, send)
            return
        scope["state"] = {**state, STATE: answer}
        await respond(self.app, scope, receive, AsgiResponse(gate, visit, send, scope["method"] == "HEAD"))

    def _first_paths(self, scope: Scope) -> Paths:
        """Read the application's prefixes when the first path is read: by then everything is mounted."""
        self._wire = self._wire._replace(paths=paths_with(own_prefixes(self.app)))
        return self._wire.paths(scope)

    def _template(self, scope: Scope) -> str:
        """Return the route's template, where the framework routes first, as Litestar does. Litestar's own does not say
        which parameters take more than one segment."""
        if self._has_own_gate:
            self._has_own_gate = False
            log.error(
                "a framework that creates its middleware for each route counts each route by itself:"
                " give all of them one gate=AsyncWebGate(…)"
            )
        template: str = scope["path_template"]
        for name, value in scope.get("path_params", {}).items():
            if "/" in str(value):
                template = template.replace(f"{{{name}}}", f"{{{name}:path}}")
        return template


async def check_with_body(
    visit: Visit,
    gate: AsyncWebGate,
    rules: EndpointRules,
    view: RequestView,
    receive: Receive,
    stage: Stage | None = None,
) -> tuple[Passed | Rejected, Receive]:
    """Check rules that may need the body. Return the answer, and a `receive` that begins with the body if it was
    read."""
    body = KeptBody(receive)
    answer = await run_async(visit.check(gate, rules, view, stage, read_body=body.read))
    return answer, body.receive if rules.reads_body else receive


def messages_endpoint(messages: "str | RouteLimit | None") -> Endpoint | None:
    """Return the endpoint that limits the messages of WebSocket connections. Raises ValueError for slots: a message
    does not last."""
    if isinstance(messages, str):
        messages = RouteLimit(limits=messages, name="messages")
    if messages is None:
        return None
    endpoint = Endpoint("messages", [messages])
    plans = [plan for rule in endpoint.rules for plan in rule.plans.values() if isinstance(plan, tuple)]
    if any(limit.has_slots for plan in plans for limit in plan):
        raise ValueError(
            f"messages={messages.limits!r} limits what lasts, and a message does not: give a rate like '10/second', or"
            " limit connections by a rule of the policy"
        )
    return endpoint


async def respond(app: App, scope: Scope, receive: Receive, response: AsgiResponse, send: Send | None = None) -> None:
    """Run an application whose response has to be settled, or holds slots, however it ends. `send` is given to it in
    place of the response.

    It must not be compiled: a compiled coroutine that awaits within `except` leaves its exception to other tasks."""
    visit = response.tracker.visit
    try:
        await app(scope, receive, response if send is None else send)
    except BaseException as error:
        await break_off(response, isinstance(error, Exception))
        raise
    else:
        await break_off(response)
    finally:
        if visit.holds:
            await leave(response.gate, visit)


async def reject(rejected: Rejected, scope: Scope, send: Send) -> None:
    """Answer without the application."""
    headers = [*as_fields(rejected.headers), (b"content-length", str(len(rejected.body)).encode())]
    await send({"type": "http.response.start", "status": rejected.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else rejected.body})


async def lifespan(app: App, gate: AsyncWebGate, scope: Scope, receive: Receive, send: Send) -> None:
    """Close the storage with the application. The first request opens it."""

    async def closing(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            await close_logged(gate)
        await send(message)

    await app(scope, receive, closing)


async def close_logged(gate: AsyncWebGate) -> None:
    """Close a gate, and log an error instead of raising it."""
    try:
        await gate.close()
    except Exception:
        log.exception("the storage could not be closed")
