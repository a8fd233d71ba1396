"""A RateKeeper in one application of Flask: asked before each view, and where a limit stands in the midst of one.

Who is turned away by another hook, before ours is reached, is asked for all the same; early rules are asked before the
application has done anything.
"""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Protocol
from weakref import WeakSet

import flask
from werkzeug.exceptions import HTTPException, default_exceptions

from ratekeeper.decision import Decision
from ratekeeper.policy import RequestView, Verdict
from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.declared import Endpoint, RouteLimit
from ratekeeper.web.door import Door
from ratekeeper.web.flask.body import body_of
from ratekeeper.web.flask.routes import FUNCTIONS, METHODS, OTHER, Key, Routes
from ratekeeper.web.gate import WebGate
from ratekeeper.web.views import Facts, body_fields, description, method_name
from ratekeeper.web.wsgi import PASSED, WIRE, Environ, read_body, request_view, telling

ANSWER = "ratekeeper"  # where the request's environ keeps what was decided
ASKED = "ratekeeper.asked"  # and the route that it was asked for
EARLY = "ratekeeper.early"  # and what was asked before the application
ASKING = "ratekeeper.asking"  # and the limit whose functions are called
FREE = Endpoint("exempt", (), exempt=True)  # all but early rules
LATE = (*FUNCTIONS, "on_breach")  # what a block may have anew for each request
PARAMETER = re.compile(r"<(?:(?P<converter>\w+)(?:\([^>]*\))?:)?(?P<name>\w+)>")

# What stands behind Flask's proxies: through them, every look at an attribute is a search of its own.
current_request: Callable[[], flask.Request] = flask.request._get_current_object  # type: ignore[attr-defined]
current_globals: Callable[[], Any] = flask.g._get_current_object


class Keeper(Protocol):
    """What the extension was told that is looked at for requests."""

    user: Callable[..., Any] | None
    exempt_when: Callable[..., Any] | None
    on_breach: Callable[[Refused], Any] | None
    per_method: WeakSet[RouteLimit]


class Part:
    """What was decided for a block of a view, or for a function that it calls."""

    __slots__ = ("_name", "_passed", "verdict")

    def __init__(self, verdict: Verdict | None, passed: Passed | None, name: str) -> None:
        self.verdict = verdict  # None for whom nothing is counted
        self._passed = passed
        self._name = name

    @property
    def decision(self) -> Decision | None:
        """What the limits of this part said; None if none was asked."""
        return None if self.verdict is None else self.verdict.decision

    def charge(self, cost: int) -> None:
        """What this part has cost, all in all: settled when the response is complete, and of no other limit."""
        if self._passed is not None and self.verdict is not None and self.verdict.asked:
            self._passed.charge(cost, self._name)


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
        self._keeper = keeper
        self._app = app
        self._routes = routes
        self._table: dict[Key, Route] = {}
        self._parts: dict[tuple[Any, ...], tuple[Endpoint, bool]] = {}
        self._templates: dict[str, str] = {}
        self._facts = Facts(gate.policy, functions=True)
        self._enter = _entering(self, self._table)
        self._is_watching = False
        self._watch()
        app.before_request(self._enter)
        self._wsgi_app = app.wsgi_app
        self._inner = self._early if gate.has_early else self._wsgi_app
        app.wsgi_app = self._responding()  # type: ignore[method-assign]

    def _responding(self) -> Callable[..., Any]:
        """The application's `wsgi_app`: our headers on every response, and what it has cost at its end."""
        gate = self.gate

        def respond(environ: Environ, start_response: Callable[..., Any]) -> Any:
            return telling(gate, self._inner, environ, ANSWER, start_response)

        return respond

    def _early(self, environ: Environ, start_response: Callable[..., Any]) -> Any:
        """Ask what is to be asked before the application has done anything."""
        view = request_view(environ)
        door = self.gate.door()
        if door.reads_body:
            view.body = read_body(environ)
        answer = self.gate.through(door, view, stage="early")
        environ[ANSWER] = answer
        if isinstance(answer, Passed):
            environ[EARLY] = view, answer
            self.gate.sleep(answer)
            return self._wsgi_app(environ, start_response)
        _hush(environ)
        with self._app.request_context(environ):
            current_globals().ratekeeper = answer
            try:
                response = self.refuse(answer)
            except HTTPException as error:
                response = self._app.handle_user_exception(error)
            return self._app.make_response(response)(environ, start_response)

    def _watch(self) -> None:
        """What answers before our hook is asked for all the same: who is turned away by another hook has asked, too.

        Only where there is anything in front of ours, which may be known only at the first request.
        """
        hooks = self._app.before_request_funcs.get(None) or [self._enter]
        if self._is_watching or (hooks[0] is self._enter and not self._app.url_value_preprocessors):
            return
        self._is_watching = True
        ordinary = self._app.preprocess_request

        def ask() -> Any:
            environ = current_request().environ
            is_answered = ASKED in environ or isinstance(environ.get(ANSWER), Refused)
            return None if is_answered else self._enter()

        def preprocess(*context: Any) -> Any:
            try:
                response = ordinary(*context)
            except Exception:
                refusal = ask()
                if refusal is None:
                    raise
                return refusal
            refusal = None if response is None else ask()
            return response if refusal is None else refusal

        self._app.preprocess_request = preprocess  # type: ignore[method-assign]

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
            self._inner = self._early if self._facts.has_early else self._wsgi_app
        wants_user = keeper.user is not None and self._facts.wants_user(endpoint)
        looks = wants_user or keeper.exempt_when is not None or self._facts.has_paths
        return Route(endpoint, declared, door, not (looks or door.reads_body or self._facts.has_early))

    def ask_all(self, route: Route, request: flask.Request) -> Passed | Refused:
        """For a request of which more is to be seen than its address."""
        keeper = self._keeper
        environ = request.environ
        view, earlier = environ.get(EARLY) or (request_view(environ), None)
        if earlier is not None:
            environ[EARLY] = ()  # the view leads back to the environ, which would be garbage for a collector
        self._place(view, request)
        door = route.door
        if keeper.exempt_when is not None and keeper.exempt_when(view):
            door = self.gate.door(FREE)
        elif keeper.user is not None and self._facts.wants_user(route.endpoint):
            view.user = keeper.user(view)
        if door.reads_body and view.body is None:
            view.body = body_of(request)
        return self.gate.through(door, view, stage=None if earlier is None else "late", earlier=earlier)

    def ask(self, limit: RouteLimit, name: str) -> Part:
        """Ask for one limit, in the midst of a request."""
        request = current_request()
        environ = request.environ
        if limit in self._keeper.per_method:
            name = method_name(name, request.method)
        endpoint, reads_body = self._part(limit, name)
        view = request_view(environ)
        self._place(view, request)
        before = environ.get(ANSWER)
        if self._keeper.exempt_when is not None and self._keeper.exempt_when(view):
            return Part(None, None, name)
        if self._keeper.user is not None and self._facts.wants_user(endpoint):
            view.user = self._keeper.user(view)
        if reads_body or self.gate.policy.reads_body:
            view.body = body_of(request)
        environ[ASKING] = limit
        answer = self.gate.alone(view, endpoint)
        if isinstance(answer, Refused):
            if isinstance(before, Passed):
                self.gate.give_back(before)
            _note(environ, answer)
            flask.abort(self._app.make_response(self.refuse(answer, limit.on_breach)))
        part = Part(answer.verdict, before if isinstance(before, Passed) else answer, name)
        if isinstance(before, Passed):
            before.join(answer)
        else:
            _note(environ, answer)
            environ.setdefault(PASSED, answer)  # so that what is asked later is told together with it
        self.gate.sleep(answer)
        return part

    def refuse(self, refused: Refused, breach: Callable[..., Any] | None = None) -> Any:
        """The response of who wants to be told, else an error that Flask knows how to answer."""
        for told in (breach or refused.breach, self._keeper.on_breach):
            response = None if told is None else told(refused)
            if response is not None:
                return response
        known = default_exceptions.get(refused.status, default_exceptions[429])
        ours = self._app.response_class(refused.body, refused.status, body_fields(refused))  # the rest is added later
        raise known(description=description(refused), response=ours)

    def meet(self, environ: Environ, answer: Passed | Refused) -> Passed | Refused:
        """Another gate stands around the application, or a hook before ours has called what is limited."""
        if isinstance(answer, Refused) or answer.decision is not None:
            around = environ[PASSED]
            if isinstance(around, Passed) and not self.gate.owns(around):
                around.tells = False  # the gate that is nearest to the application tells the client
        before = environ.get(ANSWER)
        if not isinstance(before, Passed) or EARLY in environ:  # which is part of the answer
            return answer
        if isinstance(answer, Refused):
            self.gate.give_back(before)
            return answer
        before.join(answer)
        before.delay = answer.delay
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
        view.route = request.root_path.rstrip("/") + template

    def _part(self, limit: RouteLimit, name: str) -> tuple[Endpoint, bool]:
        """What a part is to the gate, and whether it looks at the body.

        A view makes the limit of its block anew for each request, functions included: the same text is the same part,
        and its functions are those of the limit that is being asked for.
        """
        said = {field.name: getattr(limit, field.name) for field in fields(limit) if field.init}
        texts = [option if option in LATE and callable(one) else repr(one) for option, one in said.items()]
        key = (name, limit.charge, *texts)
        known = self._parts.get(key)
        if known is None:
            functions = [option for option in FUNCTIONS if callable(getattr(limit, option))]
            late: dict[str, Any] = {option: _late(option) for option in functions}
            endpoint = Endpoint(name, [replace(limit, name=name, on_breach=None, **late)])
            reads_body = any(getattr(getattr(limit, option), "reads_body", False) for option in functions)
            known = self._parts[key] = endpoint, reads_body
        return known


def _entering(keeping: Installed, table: dict[Key, Route]) -> Callable[[], Any]:
    """The hook that asks for all that holds for a request; what it returns, if anything, is the response.

    Every request comes through here. A function that has what it needs in its closure is the least that Flask can call,
    which looks at each hook to see whether it is async.
    """
    gate = keeping.gate
    current_policy, through, on_demand = gate.gate.current, gate.through, RequestView.on_demand
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
        if route.is_plain:
            answer = through(route.door, on_demand(WIRE, environ, method, environ.get("REMOTE_ADDR") or None))
        else:
            answer = keeping.ask_all(route, request)
        if PASSED in environ:
            answer = keeping.meet(environ, answer)
        environ[ANSWER] = answer
        globals_now().__dict__["ratekeeper"] = answer  # the attribute is slow to set
        if isinstance(answer, Refused):
            return keeping.refuse(answer)
        if answer.delay:
            gate.sleep(answer)
        return None

    return enter


def _late(option: str) -> Callable[[RequestView], Any]:
    """A function of a limit that is known only when it is called."""
    return lambda view: getattr(current_request().environ[ASKING], option)(view)


def _hush(environ: Environ) -> None:
    around = environ.get(PASSED)
    if isinstance(around, Passed):
        around.tells = False


def _note(environ: Environ, answer: Passed | Refused) -> None:
    """For the handler, and for the response."""
    environ[ANSWER] = answer
    current_globals().ratekeeper = answer


def installed() -> Installed:
    found = flask.current_app.extensions.get(ANSWER)
    if not isinstance(found, Installed):
        raise RuntimeError("this application has no RateKeeper: limiter.init_app(app)")
    return found
