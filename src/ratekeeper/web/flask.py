"""Flask: `RateKeeper(app, "100/minute")`, and limits on views, class-based views and blueprints.

All that holds for a request is asked once, before its view: the policy's rules, the view's limits, those of its
blueprints and of the application. A refusal is Flask's own 429, so that an errorhandler of the application can answer.
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ratekeeper.policy import RequestView
from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.declared import Endpoint, RouteLimit, declare, declared, short_name
from ratekeeper.web.declared import exempt as mark_exempt
from ratekeeper.web.gate import WebGate
from ratekeeper.web.views import Facts, body_fields, description, dotted_name, method_name
from ratekeeper.web.wsgi import Environ, read_body, request_view, telling

try:
    import flask
    from flask.views import View
    from werkzeug.exceptions import default_exceptions
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Flask is not there: install Ratekeeper with its extra [flask]") from error

T = TypeVar("T")

ANSWER = "ratekeeper"  # where the request's environ keeps what was decided
ASKED = "ratekeeper.asked"  # and which declared limits were asked
FREE = Endpoint("exempt", (), exempt=True)  # all but early rules
PARAMETER = re.compile(r"<(?:(?P<converter>\w+)(?:\([^>]*\))?:)?(?P<name>\w+)>")


class Route(NamedTuple):
    """What holds for one endpoint and method: as the gate wants it, and as it was declared."""

    endpoint: Endpoint | None
    declared: tuple[RouteLimit, ...] = ()


class RateKeeper:
    """Limits for a Flask application: `RateKeeper(app, "100/minute")`, or with a Policy or the path of a policy file.

    `default_limits` hold for each view that has none of its own, each view counted by itself; `application_limits` for
    all views together. `user` says who is logged in, `exempt_when` whom nothing is counted for. `on_breach` is told of
    each refusal and may return the response. Other settings are those of WebGate. Functions take the RequestView, or
    nothing and look at `flask.request`. Create it after the hooks that log a user in: hooks run in order.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        policy: Any = None,
        *,
        default_limits: Any = None,
        application_limits: Any = None,
        user: Callable[..., Any] | None = None,
        exempt_when: Callable[..., Any] | None = None,
        on_breach: Callable[[Refused], Any] | None = None,
        **settings: Any,
    ) -> None:
        if callable(settings.get("by")):
            settings["by"] = _of_view(settings["by"])
        self._policy = policy
        self._settings = settings
        self.user = user and _of_view(user)
        self.exempt_when = exempt_when and _of_view(exempt_when)
        self.on_breach = on_breach
        self.blueprints: dict[Any, list[RouteLimit]] = {}
        self.exempted: set[Any] = set()
        self.per_method: set[RouteLimit] = set()
        self.defaults = _listed(default_limits, keep_defaults=True)
        self.application = _listed(application_limits, name="application", keep_defaults=True)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Begin to limit this application. Its config may hold RATEKEEPER_POLICY, and RATEKEEPER_STORAGE and other
        settings of WebGate, which stand in for those given here. Each application has a gate of its own."""
        if ANSWER in app.extensions:
            raise RuntimeError("this application has a RateKeeper already")
        config = dict(app.config.get_namespace("RATEKEEPER_"))
        policy = config.pop("policy", self._policy)
        installed = Installed(self, app, WebGate(policy, **{**self._settings, **config}))
        app.extensions[ANSWER] = installed
        app.before_request(installed.enter)
        app.wsgi_app = installed.respond  # type: ignore[method-assign]

    @property
    def gate(self) -> WebGate:
        """That of the current application."""
        return _installed().gate

    def limit(self, limits: Any, *, per_method: bool = False, **options: Any) -> "Limited":
        """For a view, a class-based view, a blueprint (each of its views by itself) or any function that views call.

        Options are those of RouteLimit. `per_method` counts each method by itself.
        """
        for name in ("key", "cost", "exempt_when"):
            if callable(options.get(name)):
                options[name] = _of_view(options[name])
        limit = RouteLimit(limits=_of_view(limits) if callable(limits) else limits, **options)
        if per_method:
            self.per_method.add(limit)
        return Limited(self, limit)

    def shared_limit(self, limits: Any, scope: str, **options: Any) -> "Limited":
        """One quota for everything that is limited under this scope."""
        return self.limit(limits, name=scope, **options)

    def exempt(self, target: T) -> T:
        """Nothing is counted for this view, or for the views of this blueprint that have no limits of their own."""
        if isinstance(target, flask.Blueprint):
            self.exempted.add(target)
            return target
        if isinstance(target, type):
            target.decorators = [*getattr(target, "decorators", ()), mark_exempt]  # type: ignore[attr-defined]
            return target
        return mark_exempt(target)  # type: ignore[type-var]


class Limited:
    """One limit, to be put on something: as a decorator, or around a block, `with limiter.limit(…, name="mail"):`."""

    def __init__(self, keeper: RateKeeper, limit: RouteLimit) -> None:
        self._keeper = keeper
        self._limit = limit

    def __call__(self, target: T) -> T:
        if isinstance(target, flask.Blueprint):
            self._keeper.blueprints.setdefault(target, []).append(self._limit)
            return target
        if isinstance(target, type):
            if not issubclass(target, View):
                raise TypeError(f"{target.__name__} is no view: limits are for views, blueprints and functions")
            target.decorators = [*target.decorators, self]
            return target
        limit = self._limit
        if not limit.name:
            limit = replace(limit)  # its own, for each function: a view may call one that has the same decorator
            if self._limit in self._keeper.per_method:
                self._keeper.per_method.add(limit)
        return _limited(limit, target)  # type: ignore[return-value, arg-type]

    def __enter__(self) -> Passed:
        if not self._limit.name:
            raise ValueError("a block has no name of its own: limiter.limit('5/minute', name='mail')")
        return _installed().ask(self._limit, self._limit.name)

    def __exit__(self, *exception: object) -> None:
        pass


def _limited(limit: RouteLimit, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose limit is asked before its view, with all others; or here, if it was not the view that was found.

    That is so for functions that views call, and where a decorator between hides what is declared: never unlimited.
    """

    is_async = inspect.iscoroutinefunction(function)

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if limit not in flask.request.environ.get(ASKED, ()):
            _installed().ask(limit, dotted_name(function))
        return (flask.current_app.ensure_sync(function) if is_async else function)(*args, **kwargs)

    declare(asked, limit)
    return asked


class Installed:
    """A RateKeeper in one application."""

    def __init__(self, keeper: RateKeeper, app: flask.Flask, gate: WebGate) -> None:
        self.gate = gate
        self._keeper = keeper
        self._app = app
        self._wsgi_app = app.wsgi_app
        self._routes: dict[tuple[str | None, str], Route] = {}
        self._checked = False
        self._blocks: dict[RouteLimit, Endpoint] = {}
        self._templates: dict[str, str] = {}
        self._facts = Facts(gate.policy, functions=True)

    @property
    def facts(self) -> Facts:
        policy = self.gate.policy
        if policy is not self._facts.policy:
            self._facts = Facts(policy, functions=True)
        return self._facts

    def enter(self) -> Any:
        """Ask for all that holds for the request; what is returned, if anything, is the response."""
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        name = request.endpoint
        key = (name, request.method if name else "")  # where no view is found, the method is the client's to invent
        route = self._routes.get(key) or self._found(*key)
        environ = request.environ
        keeper = self._keeper
        endpoint = route.endpoint
        view = self._view(request)
        if keeper.exempt_when is not None and keeper.exempt_when(view):
            endpoint = FREE
        if keeper.user is not None and self.facts.wants_user(endpoint):
            view.user = keeper.user(view)
        door = self.gate.door(endpoint)
        if door.reads_body:
            view.body = read_body(environ)
        answer = self.gate.through(door, view)
        _note(environ, answer)
        if isinstance(answer, Refused):
            return self.refuse(answer)
        environ[ASKED] = route.declared
        if answer.delay:
            self.gate.sleep(answer)
        return None

    def ask(self, limit: RouteLimit, name: str) -> Passed:
        """Ask for one limit, in the midst of a request."""
        environ = flask.request.environ
        endpoint = self._blocks.get(limit)
        if endpoint is None:
            endpoint = self._blocks[limit] = Endpoint(name, [limit])
        view = self._view(flask.request)
        if self._keeper.user is not None and self.facts.wants_user(endpoint):
            view.user = self._keeper.user(view)
        answer = self.gate.alone(view, endpoint)
        before = environ.get(ANSWER)
        if isinstance(answer, Refused):
            if before:
                self.gate.give_back(before)
            _note(environ, answer)
            flask.abort(self._app.make_response(self.refuse(answer)))
        if isinstance(before, Passed):
            before.join(answer)
        else:
            _note(environ, answer)
        self.gate.sleep(answer)
        return answer

    def refuse(self, refused: Refused) -> Any:
        """The response of who wants to be told, else an error that Flask knows how to answer."""
        for breach in (refused.breach, self._keeper.on_breach):
            response = None if breach is None else breach(refused)
            if response is not None:
                return response
        known = default_exceptions.get(refused.status, default_exceptions[429])
        ours = self._app.response_class(refused.body, refused.status, body_fields(refused))  # `respond` adds the others
        raise known(description=description(refused), response=ours)

    def respond(self, environ: Environ, start_response: Callable[..., Any]) -> Any:
        """As the application's `wsgi_app`: our headers on every response, and what it has cost at its end."""
        return telling(self.gate, self._wsgi_app, environ, ANSWER, start_response)

    def _view(self, request: flask.Request) -> RequestView:
        view = request_view(request.environ)
        rule = request.url_rule
        if rule is not None and self.gate.gate.current().has_paths:
            template = self._templates.get(rule.rule) or self._template(rule.rule)
            view.route = request.root_path.rstrip("/") + template
        return view

    def _template(self, rule: str) -> str:
        """`/users/<int:id>` as `/users/{id}`."""
        template = self._templates[rule] = PARAMETER.sub(
            lambda found: f"{{{found['name']}{'*' if found['converter'] == 'path' else ''}}}", rule
        )
        return template

    def _found(self, name: str | None, method: str) -> Route:
        """What holds for an endpoint. At the first request all are looked at, so that what is wrong shows at once."""
        if not self._checked:
            for other in self._app.view_functions:
                self.gate.prepare(self._made(other, "GET").endpoint)
            self._checked = True
        route = self._routes[name, method] = self._made(name, method)
        return route

    def _made(self, name: str | None, method: str) -> Route:
        keeper = self._keeper
        if name is None:
            return Route(Endpoint("application", keeper.application) if keeper.application else None)
        marks = self._marks(name, method)
        groups = [self._app.blueprints[group] for group in _groups(name) if group in self._app.blueprints]
        own = tuple(mark for mark in marks if mark is not None)
        if None in marks or (not own and any(group in keeper.exempted for group in groups)):
            return Route(Endpoint(self._name(name), (), exempt=True), own)
        limits = [*own, *(limit for group in groups for limit in keeper.blueprints.get(group, []))]
        if not name.endswith("static") and not any(group in keeper.exempted for group in groups):
            keeps = not limits or any(limit.keep_defaults for limit in limits)
            more = [*(keeper.defaults if keeps else ()), *keeper.application]
            limits += more if keeps else [replace(limit, keep_defaults=False) for limit in more]
        limits = [
            replace(limit, name=method_name(limit.name or self._name(name), method))
            if limit in keeper.per_method
            else limit
            for limit in limits
        ]
        return Route(Endpoint(self._name(name), limits) if limits else None, own)

    def _marks(self, name: str, method: str) -> Sequence[RouteLimit | None]:
        view = self._app.view_functions[name]
        of_class = getattr(view, "view_class", None)
        if of_class is None:
            return declared(view)
        function = getattr(of_class, method.lower(), None) or (
            getattr(of_class, "get", None) if method == "HEAD" else None
        )
        return (*declared(view), *declared(of_class.dispatch_request), *(declared(function) if function else ()))

    def _name(self, name: str) -> str:
        """That of the endpoint, which Flask keeps unique, with the application's in front if it is no blueprint's."""
        if "." not in name:
            module = self._app.import_name.rpartition(".")[2].strip("_")
            name = name if module in ("main", "") else f"{module}.{name}"
        return short_name(name)


def _listed(limits: Any, **options: Any) -> list[RouteLimit]:
    """Limits as Flask-Limiter takes them, in a list, or as one text."""
    if not limits:
        return []
    if isinstance(limits, RouteLimit):
        return [limits]
    if isinstance(limits, list | tuple) and all(isinstance(limit, str) for limit in limits):
        limits = "; ".join(limits)
    return [RouteLimit(limits=limits, **options)]


def _of_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a RequestView, also if it takes nothing and looks at flask.request."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return function

    @functools.wraps(function)
    def called(_: Any) -> Any:
        return function()

    return called


def _note(environ: Environ, answer: Passed | Refused) -> None:
    """For the handler, and for the response."""
    environ[ANSWER] = answer
    flask.g._get_current_object().ratekeeper = answer  # not by the proxy, which is slow


def _groups(name: str) -> list[str]:
    """The blueprints of an endpoint, the innermost first: of 'a.b.view', 'a.b' and 'a'."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _installed() -> Installed:
    found = flask.current_app.extensions.get(ANSWER)
    if not isinstance(found, Installed):
        raise RuntimeError("this application has no RateKeeper: limiter.init_app(app)")
    return found
