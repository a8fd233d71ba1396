"""A RateLimits in one application of Flask: asked before each view, and where a limit stands in the midst of one.

Who is turned away by another hook, before ours is reached, is asked for all the same; early rules are asked before any
hook. A refusal in the midst of a view is one only if it leaves the view: who catches it has a request that passed.
"""

import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import flask
from werkzeug.exceptions import HTTPException, default_exceptions

from ratebound.policy import RequestView
from ratebound.policy.functions import is_awaitable
from ratebound.web.answer import Passed, Refused
from ratebound.web.declared import Endpoint, RouteLimit
from ratebound.web.door import Door
from ratebound.web.flask.body import body_of
from ratebound.web.flask.parts import Part, Parts
from ratebound.web.flask.routes import METHODS, OTHER, Key, Routes
from ratebound.web.gate import WebGate
from ratebound.web.user import user_id
from ratebound.web.views import Facts, body_type, description, method_name
from ratebound.web.wsgi import PASSED, WIRE, Environ, request_view, telling

ANSWER = "ratebound"  # where the request's environ keeps what was decided
ASKED = "ratebound.asked"  # and the route that it was asked for
EARLY = "ratebound.early"  # and who has asked before any hook
ASKING = "ratebound.arguments"  # and the limit whose functions are called
FREE = Endpoint("exempt", (), exempt=True)  # all but early rules
PARAMETER = re.compile(r"<(?:(?P<converter>\w+)(?:\([^>]*\))?:)?(?P<name>\w+)>")

UNKNOWN_USER = "Flask: tell the extension who is logged in, RateLimits(app, …, user=lambda: session.get('user'))"

# What stands behind Flask's proxies: through them, every look at an attribute is a search of its own.
current_request: Callable[[], flask.Request] = flask.request._get_current_object  # type: ignore[attr-defined]
current_globals: Callable[[], Any] = flask.g._get_current_object
current_session: Callable[[], Any] = flask.session._get_current_object  # type: ignore[attr-defined]

FLASK_WIRE = WIRE._replace(
    path_params=lambda _: current_request().view_args or {},
    session=lambda _: current_session(),
    state=lambda _: current_globals(),
    request=lambda _: current_request(),
    anonymous=1,
)


class Keeper(Protocol):
    """What the extension was told that is looked at for requests."""

    user: Callable[..., Any] | None
    exempt_when: Callable[..., Any] | None
    on_breach: Callable[[Refused], Any] | None
    per_method: WeakSet[RouteLimit]


class Route:
    """What holds for one endpoint and method, under the policy in force. `is_plain` where nothing but the address and
    the method of a request has to be looked at before it is asked for."""

    __slots__ = ("declared", "door", "endpoint", "is_plain")

    def __init__(self, endpoint: Endpoint | None, declared: tuple[RouteLimit, ...], door: Door, is_plain: bool) -> None:
        self.endpoint = endpoint
        self.declared = declared
        self.door = door
        self.is_plain = is_plain


class Installed:
    """From here on an application is limited."""

    def __init__(self, keeper: Keeper, app: flask.Flask, gate: WebGate, routes: Routes) -> None:
        self.gate = gate
        self.wire = FLASK_WIRE._replace(no_user=lambda _: UNKNOWN_USER if keeper.user is None else "")
        self._keeper = keeper
        self._app = app
        self._routes = routes
        self._table: dict[Key, Route] = {}
        self._parts = Parts(lambda: current_request().environ[ASKING], self._forget)
        self._templates: dict[str, str] = {}
        self._facts = Facts(gate.policy, functions=True)
        self._enter = _entering(self, self._table)
        self._is_watching = False
        self._watch()
        app.before_request(self._enter)
        app.wsgi_app = _responding(gate, app.wsgi_app)  # type: ignore[method-assign]
        app.handle_user_exception = self._hearing(app.handle_user_exception)  # type: ignore[method-assign]
        app.make_default_options_response = self._answering_options(  # type: ignore[method-assign]
            app.make_default_options_response
        )

    def _hearing(self, ordinary: Callable[..., Any]) -> Callable[..., Any]:
        """What Flask does with an exception, where that may be the refusal of a part that nobody has caught."""

        def hear(*context: Any) -> Any:
            refused = _refused(context[-1])
            if refused is not None:
                self._turn_away(refused)
            return ordinary(*context)

        return hear

    def _ask_early(self) -> Any:
        """Ask what is to be asked before any hook; what it returns, if anything, is the response."""
        request = current_request()
        environ = request.environ
        if self.gate.owns(environ.get(PASSED)):
            return None  # all was asked, by a middleware that has our gate
        view = request_view(environ, wire=self.wire)
        door = self.gate.door()
        if door.reads_body:
            view.body = body_of(request)
        answer = self.gate.through(door, view, stage="early")
        environ[EARLY] = self
        _note(environ, answer)
        if isinstance(answer, Refused):
            _hush(environ)
            return self.refuse(answer)
        environ.setdefault(PASSED, None)  # so that what is asked later meets it
        self.gate.sleep(answer)
        return None

    def _watch(self) -> None:
        """What answers before our hook is asked for all the same: who is turned away by another hook has asked, too.

        Only where there is anything in front of ours, which may be known only at the first request, or early rules.
        """
        hooks = self._app.before_request_funcs.get(None) or [self._enter]
        is_first = hooks[0] is self._enter and not self._app.url_value_preprocessors
        if self._is_watching or (is_first and not self._facts.has_early):
            return
        self._is_watching = True
        ordinary = self._app.preprocess_request

        def ask() -> Any:
            environ = current_request().environ
            is_answered = ASKED in environ or isinstance(environ.get(ANSWER), Refused)
            return None if is_answered else self._enter()

        def preprocess(*context: Any) -> Any:
            refusal = self._ask_early() if self.gate.has_early else None
            if refusal is not None:
                return refusal
            try:
                response = ordinary(*context)
            except Exception as error:
                refusal = ask() if _refused(error) is None else None
                if refusal is None:
                    raise
                return refusal
            refusal = None if response is None else ask()
            return response if refusal is None else refusal

        self._app.preprocess_request = preprocess  # type: ignore[method-assign]

    def _answering_options(self, ordinary: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what Flask calls to answer OPTIONS by itself: then no view runs."""

        def answer(*args: Any) -> Any:
            environ = current_request().environ
            passed = environ.get(ANSWER)
            if isinstance(passed, Passed) and request_view(environ).is_preflight:
                passed.bypass_handler()
            return ordinary(*args)

        return answer

    def find(self, name: str | None, method: str) -> Route:
        """What holds for an endpoint, as the policy is now."""
        if not self._table:
            self._watch()
            made = {key: self._made(*holding) for key, holding in self._routes.all()}
            self._table.update(made)  # all or nothing: what is wrong shows at every request
        if (name, method) not in self._table and (name is None or method not in METHODS):
            method = OTHER
        known = self._table.get((name, method))
        holding = self._routes.of(name, method) if known is None else (known.endpoint, known.declared)
        route = self._table[name, method] = self._made(*holding)
        return route

    def _made(self, endpoint: Endpoint | None, declared: tuple[RouteLimit, ...]) -> Route:
        keeper = self._keeper
        door = self.gate.door(endpoint)
        policy = self.gate.policy
        if policy is not self._facts.policy:
            self._facts = Facts(policy, functions=True)
            self._watch()
        wants_user = keeper.user is not None and self._facts.wants_user(endpoint)
        looks = wants_user or keeper.exempt_when is not None or self._facts.has_paths
        return Route(endpoint, declared, door, not (looks or door.reads_body or self._facts.has_early))

    def ask_all(self, route: Route, request: flask.Request) -> Passed | Refused:
        """For a request of which more is to be seen than its address."""
        environ = request.environ
        is_begun = environ.get(EARLY) is self
        view, is_exempt = self._seen(request, route.endpoint)
        door = self.gate.door(FREE) if is_exempt else route.door
        if is_begun and door.last_stage == "early":
            early: Passed = environ[ANSWER]
            return early
        if door.reads_body:
            view.body = body_of(request)
        return self.gate.through(door, view, stage="late" if is_begun else None)

    def _ask_alone(
        self, request: flask.Request, endpoint: Endpoint, reads_body: bool, limit: RouteLimit | None = None
    ) -> Passed | Refused | None:
        """Without the rules of the policy; None for whom nothing is counted."""
        view, is_exempt = self._seen(request, endpoint)
        if is_exempt:
            return None
        if reads_body or self.gate.policy.reads_body:
            view.body = body_of(request)
        request.environ[ASKING] = limit
        return self.gate.alone(view, endpoint)

    def _seen(self, request: flask.Request, endpoint: Endpoint | None) -> tuple[RequestView, bool]:
        """A request as rules look at it, and whether nothing is counted for it."""
        keeper = self._keeper
        view = request_view(request.environ, wire=self.wire)
        self._place(view, request)
        wants_user = keeper.user is not None and self._facts.wants_user(endpoint)
        if wants_user or keeper.exempt_when is not None:
            self.gate.gate.current().note_client(view)
        if keeper.exempt_when is not None and self._settled(keeper.exempt_when(view)):
            return view, True
        if keeper.user is not None and wants_user:
            view.user = user_id(self._settled(keeper.user(view)))
        return view, False

    def ask(self, limit: RouteLimit, name: str) -> Part:
        """Ask for one limit, in the midst of a request."""
        request = current_request()
        environ = request.environ
        if limit in self._keeper.per_method:
            name = method_name(name, request.method)
        endpoint, reads_body = self._parts.of(limit, name)
        answer = self._ask_alone(request, endpoint, reads_body, limit)
        if answer is None:
            return Part(None, None, name)
        if isinstance(answer, Refused):
            self._reject(answer, limit)
        answer.handle()
        before = self._before(environ)
        if before is None:
            _note(environ, answer)
            environ.setdefault(PASSED, None)  # so that what is asked later meets it
        else:
            before.join(answer)
        self.gate.sleep(answer)
        return Part(answer.verdict, answer if before is None else before, name)

    def _reject(self, refused: Refused, limit: RouteLimit) -> NoReturn:
        """For a part. No error is kept in a variable: with its traceback that would be garbage for a collector."""
        try:
            response = self._app.make_response(self.refuse(refused, limit.on_breach))
        except HTTPException as error:
            self._marked(error, refused)
            raise
        raise self._marked(HTTPException(response=response), refused)

    def _marked(self, error: HTTPException, refused: Refused) -> HTTPException:
        """What was decided before stands, unless this is what the client gets: if it reaches Flask, or if the view
        answers in its place, but with its status."""
        error.refused = refused  # type: ignore[attr-defined]
        status = error.get_response().status_code

        def check(response: flask.Response) -> flask.Response:
            if response.status_code == status:
                self._turn_away(refused)
            return response

        flask.after_this_request(check)
        return error

    def _turn_away(self, refused: Refused) -> None:
        environ = current_request().environ
        if isinstance(environ.get(ANSWER), Refused):
            return
        before = self._before(environ)
        if before is not None:
            self._undo(before)
        _note(environ, refused)
        _hush(environ)

    def _undo(self, passed: Passed) -> None:
        """The request was refused after all. A middleware around us that has decided is not to settle it again."""
        self.gate.give_back(passed)
        passed.end("the request was refused, and costs nothing")

    def _before(self, environ: Environ) -> Passed | None:
        """What let this request pass up to now, of ours: that may be a middleware that has our gate."""
        before = environ.get(ANSWER)
        if before is None and self.gate.owns(environ.get(PASSED)):
            before = environ[PASSED]
            _note(environ, before)
        return before if isinstance(before, Passed) else None

    def _forget(self, endpoint: Endpoint) -> None:
        self.gate.forget(endpoint)
        self._facts = Facts(self._facts.policy, functions=True)  # which keeps what it has seen

    def _settled(self, answer: Any) -> Any:
        """What a function of the extension has said, also if it is async."""
        return self._app.ensure_sync(_awaited)(answer) if is_awaitable(answer) else answer

    def refuse(self, refused: Refused, breach: Callable[..., Any] | None = None) -> Any:
        """The response of who wants to be told, else an error that Flask knows how to answer."""
        for told in (breach or refused.breach, self._keeper.on_breach):
            response = None if told is None else self._settled(told(refused))
            if response is not None:
                return response
        known = default_exceptions.get(refused.status, default_exceptions[429])
        ours = self._app.response_class(refused.body, refused.status, content_type=body_type(refused))
        error: Any = known(description=description(refused), response=ours)
        error.refused = refused
        if refused.retry_after is not None:
            error.retry_after = math.ceil(refused.retry_after)
        try:
            raise error
        finally:
            del error  # with its traceback it would be garbage for a collector

    def meet(self, route: Route, request: flask.Request) -> Passed | Refused:
        """Ask, where something was decided before: by a gate around the application, by early rules, or for what a hook
        before ours has called."""
        environ = request.environ
        around, before = environ[PASSED], self._before(environ)
        own, is_same = route.endpoint, self.gate.owns(around)  # which has asked the policy
        if is_same:
            alone = self._ask_alone(request, own, route.door.reads_body) if own and own.rules else None
            answer = around if alone is None else alone
        else:
            answer = self.ask_all(route, request)
        if isinstance(answer, Refused) or (answer.decision is not None and not is_same):
            _hush(environ)  # the gate that is nearest to the application tells the client
        if before is None:
            return answer
        if isinstance(answer, Refused):
            self._undo(before)
            return answer
        before.delay = 0.0 if answer is before else answer.delay
        if answer is not before:
            before.join(answer)
        return before

    def _place(self, view: RequestView, request: flask.Request) -> None:
        """Tell a policy that has paths how the router spells this one: `/users/<int:id>` as `/users/{id}`."""
        rule = request.url_rule
        if rule is None or not self._facts.has_paths:
            return
        template = self._templates.get(rule.rule)
        if template is None:
            template = self._templates[rule.rule] = PARAMETER.sub(
                lambda found: f"{{{found['name']}{'*' if found['converter'] == 'path' else ''}}}", rule.rule
            )
        view.route = template


def _entering(keeping: Installed, table: dict[Key, Route]) -> Callable[[], Any]:
    """The hook that asks for all that holds for a request; what it returns, if anything, is the response.

    Every request comes through here. A function that has what it needs in its closure is the least that Flask can call,
    which looks at each hook to see whether it is async.
    """
    gate = keeping.gate
    current_policy, through, on_demand, wire = gate.gate.current, gate.through, RequestView.on_demand, keeping.wire
    request_now, globals_now = current_request, current_globals

    def enter() -> Any:
        request = request_now()
        environ = request.environ
        rule = request.url_rule
        method = request.method
        try:
            route = table[rule and rule.endpoint, method]  # type: ignore[index]  # no rule is false
        except KeyError:
            route = keeping.find(request.endpoint, method)
        if route.door.base is not current_policy():
            route = keeping.find(request.endpoint, method)
        environ[ASKED] = route
        if PASSED in environ:
            answer = keeping.meet(route, request)
        elif route.is_plain:
            answer = through(route.door, on_demand(wire, environ, method, environ.get("REMOTE_ADDR") or None))
        else:
            answer = keeping.ask_all(route, request)
        environ[ANSWER] = answer
        globals_now().__dict__["ratebound"] = answer  # the attribute is slow to set
        if isinstance(answer, Refused):
            return keeping.refuse(answer)
        if answer.delay:
            gate.sleep(answer)
        return None

    return enter


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _responding(gate: WebGate, app: Callable[..., Any]) -> Callable[..., Any]:
    """An application's `wsgi_app`: our headers on every response, and what it has cost at its end."""

    def respond(environ: Environ, start_response: Callable[..., Any]) -> Any:
        return telling(gate, app, environ, ANSWER, start_response)

    return respond


def _refused(error: Any) -> Refused | None:
    """Return what an exception stands for, if it is a refusal of ours."""
    refused = getattr(error, "refused", None)
    return refused if isinstance(refused, Refused) else None


def _hush(environ: Environ) -> None:
    around = environ.get(PASSED)
    if isinstance(around, Passed):
        around.tells = False


def _note(environ: Environ, answer: Passed | Refused) -> None:
    """For the handler, and for the response."""
    environ[ANSWER] = answer
    current_globals().ratebound = answer


def installed() -> Installed:
    found = flask.current_app.extensions.get(ANSWER)
    if not isinstance(found, Installed):
        raise RuntimeError("this application has no RateLimits: limiter.init_app(app)")
    return found
