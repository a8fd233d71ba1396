"""One Flask application with limits: checked before each view, and where a limit stands inside of one.

A request that another hook answers before ours is reached is checked, too; early rules are checked before any
hook. A rejection inside of a view counts as one only if it leaves the view: a request whose view catches it has passed.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import flask
from werkzeug.exceptions import HTTPException, default_exceptions

from ratebound.decision import Decision
from ratebound.flow import run
from ratebound.policy import RequestView, Verdict
from ratebound.policy.functions import is_awaitable
from ratebound.usage import Usage
from ratebound.web.body import flask_body
from ratebound.web.dashboard import dashboard_site, figures_of
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.flask.plain_path import LimitedRoute, PlainRequests
from ratebound.web.flask.routes import METHODS, OTHER, Key, Routes
from ratebound.web.gate import WebGate
from ratebound.web.load_meter import LoadMeter
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.request_limits import PartEndpoints
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.rule_names import method_name
from ratebound.web.usage_page import CONTENT_TYPE, HEADERS, read_page
from ratebound.web.user import user_id
from ratebound.web.visit import Visit, release_part
from ratebound.web.wsgi import PASSED, WIRE, metered, request_view
from ratebound.web.wsgi_response import Application, Environ

BLOCKS = "ratebound.blocks"  # the key in an environ of the blocks that the view has entered and not left
CHECKING = "ratebound.checking"  # the key in an environ of the limit whose functions are called
EXEMPT = Endpoint("exempt", (), exempt=True)
PARAMETER = re.compile(r"<(?:(?P<converter>\w+)(?:\([^>]*\))?:)?(?P<name>\w+)>")

UNKNOWN_USER = "Flask: RateLimits needs a function that returns the user: user=lambda: session.get('user')"

# The objects behind Flask's proxies: through them, every look at an attribute is a search of its own.
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


class ExtensionOptions(Protocol):
    """The options of the extension that matter to requests."""

    user: Callable[..., Any] | None
    exempt_when: Callable[..., Any] | None
    on_breach: Callable[[Rejected], Any] | None
    per_method: WeakSet[RouteLimit]
    dashboards: dict[Any, Callable[..., Any]]  # blueprints and their views


class LimitedPart:
    """The decision for a block of a view, or for a function that it calls. `verdict` is None for exempt requests."""

    __slots__ = ("_name", "_passed", "verdict")

    def __init__(self, verdict: Verdict | None, passed: Passed | None, name: str) -> None:
        self.verdict = verdict
        self._passed = passed
        self._name = name

    @property
    def decision(self) -> Decision | None:
        """The decision of the limits of this part; None if none was checked."""
        return None if self.verdict is None else self.verdict.decision

    def leave(self, gate: WebGate) -> None:
        """Release the slots of this part."""
        if self._passed is not None and self.verdict is not None:
            run(release_part(gate, self._passed, self.verdict))

    def charge(self, cost: int) -> None:
        """Set the whole cost of this part, and of no other limit: settled when the response is complete."""
        if self._passed is not None and self.verdict is not None and self.verdict.asked:
            self._passed.charge(cost, self._name)


class LimitedFlask:
    """An application that is limited from now on."""

    def __init__(self, options: ExtensionOptions, app: flask.Flask, gate: WebGate, routes: Routes) -> None:
        self.gate = gate
        self.has_users = options.user is not None  # it can be asked who the user is
        self.key = f"ratebound.visit {id(self)}"  # the key of a visit in its environ
        self.wire = FLASK_WIRE._replace(no_user=lambda _: UNKNOWN_USER if options.user is None else "")
        self._options = options
        self._app = app
        self._routes = routes
        self._table: dict[Key, LimitedRoute] = {}
        self._parts = PartEndpoints(lambda: current_request().environ[CHECKING], gate.forget)
        self._templates: dict[str, str] = {}
        self.plain = PlainRequests(gate, self.key, self.wire, self._table)
        self._check_request = _checking_hook(self, self._table)
        self._is_watching = False
        self._sites: dict[Any, Any] = {}
        gate.read_endpoints = self._read_routes_once
        self._watch()
        app.before_request(self._check_request)
        responding = self.plain.responding(app.wsgi_app)
        app.wsgi_app = responding if gate.meter is None else partial(self._metered, gate.meter, responding)  # type: ignore[method-assign]
        app.handle_user_exception = self._noting_rejections(app.handle_user_exception)  # type: ignore[method-assign]
        app.make_default_options_response = self._answering_options(  # type: ignore[method-assign]
            app.make_default_options_response
        )

    def watch_dashboard(self) -> None:
        """Count what the dashboard shows from now on: the application has one."""
        figures_of(self.gate)
        self._watch()

    def dashboard_site(self, auth: Callable[[Any], Any], ledger: Any) -> Any:
        """Return the site of the dashboard, for an `auth` of the request."""
        if auth not in self._sites:
            self._sites[auth] = dashboard_site(self.gate, auth, ledger)
        return self._sites[auth]

    def _is_dashboard(self, endpoint: str | None) -> bool:
        """Return True if an endpoint of Flask is a dashboard of these limits: the very view, wherever it stands."""
        dashboards = self._options.dashboards
        if not dashboards or endpoint is None:
            return False
        view = self._app.view_functions.get(endpoint)
        return any(view is one for one in dashboards.values())

    def _metered(self, meter: LoadMeter, app: Application, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Call the application if there is a place for the request, or if it is routed to the dashboard."""
        if self._options.dashboards and self._is_dashboard(self._routed(environ)):
            return app(environ, start_response)
        return metered(meter, app, environ, start_response)

    def _routed(self, environ: Environ) -> str | None:
        """Return the endpoint that Flask will find for a request."""
        adapter = self._app.create_url_adapter(self._app.request_class(environ))
        try:
            return None if adapter is None else str(adapter.match()[0])
        except HTTPException:
            return None

    def _noting_rejections(self, ordinary: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap Flask's handling of exceptions: one may be the rejection of a part that nobody has caught."""

        def handle(*context: Any) -> Any:
            rejected = _rejection_in(context[-1])
            if rejected is not None:
                run(self.visit_of(current_request().environ).reject(self.gate, rejected))
                _note(rejected)
            return ordinary(*context)

        return handle

    def _answering_options(self, ordinary: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function that Flask calls to answer OPTIONS by itself: then no view runs."""

        def answer(*args: Any) -> Any:
            environ = current_request().environ
            passed = self.visit_of(environ).passed
            if passed is not None and request_view(environ).is_preflight:
                passed.bypass_handler()
            return ordinary(*args)

        return answer

    def _watch(self) -> None:
        """Check requests that are answered before our hook is reached, by another hook for example.

        Only where there is anything in front of ours, which may be known only at the first request, or early rules.
        """
        hooks = self._app.before_request_funcs.get(None) or [self._check_request]
        is_first = hooks[0] is self._check_request and not self._app.url_value_preprocessors
        if self._is_watching or (is_first and not self.gate.has_early and not self._options.dashboards):
            return
        self._is_watching = True
        ordinary = self._app.preprocess_request

        def check_unless_checked() -> Any:
            visit = self.visit_of(current_request().environ)
            if visit.is_late or isinstance(visit.answer, Rejected):
                return None
            return self._check_answered(visit) if visit.is_spared else self._check_request()

        def preprocess(*context: Any) -> Any:
            is_dashboard = self._is_dashboard(current_request().endpoint)
            if is_dashboard:
                self.visit_of(current_request().environ).is_spared = True
            rejection = self._check_early() if self.gate.has_early and not is_dashboard else None
            if rejection is not None:
                return rejection
            try:
                response = ordinary(*context)
            except Exception as error:
                rejection = check_unless_checked() if _rejection_in(error) is None else None
                if rejection is None:
                    raise
                return rejection
            rejection = None if response is None else check_unless_checked()
            return response if rejection is None else rejection

        self._app.preprocess_request = preprocess  # type: ignore[method-assign]

    def find(self, name: str | None, method: str) -> LimitedRoute:
        """Return the rules of an endpoint, under the policy as it is now."""
        self._read_routes_once()
        if (name, method) not in self._table and (name is None or method not in METHODS):
            method = OTHER
        known = self._table.get((name, method))
        declared = self._routes.of(name, method) if known is None else (known.endpoint, known.declared)
        route = self._table[name, method] = self._make(*declared)
        return route

    def _read_routes_once(self) -> None:
        if not self._table:
            self._watch()
            made = {key: self._make(*declared) for key, declared in self._routes.all()}
            self._table.update(made)  # all or nothing: a mistake raises at every request

    def _make(self, endpoint: Endpoint | None, declared: tuple[RouteLimit, ...]) -> LimitedRoute:
        rules = self.gate.rules_for(endpoint)
        if rules.base.has_early:
            self._watch()
        needs_more = self._finds_user(rules) or self._options.exempt_when is not None or rules.has_paths
        return LimitedRoute(endpoint, declared, rules, rules.is_plain and not rules.base.has_early and not needs_more)

    def _finds_user(self, rules: EndpointRules) -> bool:
        return self._options.user is not None and (rules.wants_user or rules.has_functions)

    def visit_of(self, environ: Environ) -> Visit:
        """Return the visit of a request, which is new in a request context without a server. A middleware around the
        application that has the same gate may have checked the policy already."""
        visit: Visit | None = environ.get(self.key)
        if visit is None:
            visit = environ[self.key] = Visit()
        around = visit.around = environ.get(PASSED)
        if visit.answer is None and self.gate.owns(around):
            visit.answer = around
        return visit

    def _view(self, request: flask.Request, rules: EndpointRules) -> tuple[RequestView, bool]:
        """Return a request as rules see it, and True if it is exempt."""
        options, view = self._options, request_view(request.environ, wire=self.wire)
        if rules.has_paths and request.url_rule is not None:
            view.route = self._template(request.url_rule.rule)
        finds_user = self._finds_user(rules) or (options.user is not None and self.gate.operators_name_users())
        if finds_user or options.exempt_when is not None:
            self.gate.current().note_client(view)
        if options.exempt_when is not None and self.finished(options.exempt_when(view)):
            return view, True
        if options.user is not None and finds_user:
            view.user = user_id(self.finished(options.user(view)))
        return view, False

    def _template(self, rule: str) -> str:
        """Return a rule of Flask as a policy writes it: `/users/<int:id>` as `/users/{id}`."""
        template = self._templates.get(rule)
        if template is None:
            template = self._templates[rule] = PARAMETER.sub(
                lambda found: f"{{{found['name']}{'*' if found['converter'] == 'path' else ''}}}", rule
            )
        return template

    def _check_early(self) -> Any:
        """Check early rules, before any hook. Return the response of a rejection, or None."""
        request = current_request()
        visit = self.visit_of(request.environ)
        if visit.answer is not None:
            return None  # a middleware that has our gate has checked everything
        view, read_body = request_view(request.environ, wire=self.wire), partial(flask_body, request)
        answer = _note(run(visit.check(self.gate, self.gate.rules_for(), view, "early", read_body=read_body)))
        if isinstance(answer, Passed):
            return None
        silence(request.environ.get(PASSED))
        return self.reject(answer)

    def _check_answered(self, visit: Visit) -> Any:
        """Check a request for the dashboard that a hook has answered instead: it is not spared."""
        request = current_request()
        visit.is_late, rules = True, self.gate.rules_for()
        view, _ = self._view(request, rules)
        answer = _note(run(visit.check(self.gate, rules, view, read_body=partial(flask_body, request))))
        return self.reject(answer) if isinstance(answer, Rejected) else None

    def check_late(self, route: LimitedRoute, request: flask.Request, visit: Visit) -> Passed | Rejected:
        """Check a request that needs more than its address, or for which something was decided before: by a gate around
        the application, by early rules, or for a function that a hook before ours has called."""
        gate, around = self.gate, request.environ.get(PASSED)
        is_same, rules = gate.owns(around), route.rules
        if is_same:  # it has checked the policy
            self.visit_of(request.environ)
            rules = gate.rules_alone(route.endpoint or EXEMPT)
        view, is_exempt = self._view(request, rules)
        if is_exempt or (is_same and not rules.terms.limits):
            rules = gate.rules_for(EXEMPT)
        stage, read_body = "late" if visit.is_begun or is_same else None, partial(flask_body, request)
        answer = run(visit.check(gate, rules, view, stage, read_body=read_body))  # type: ignore[arg-type]
        if isinstance(answer, Rejected) or (answer.decision is not None and not is_same):
            silence(around)
        return answer

    def check_part(self, limit: RouteLimit, name: str) -> LimitedPart:
        """Check one limit inside of a view. Raises the rejection as an HTTPException."""
        request, gate = current_request(), self.gate
        environ = request.environ
        if limit in self._options.per_method:
            name = method_name(name, request.method)
        rules = gate.rules_alone(self._parts.of(limit, name))
        view, is_exempt = self._view(request, rules)
        if is_exempt:
            return LimitedPart(None, None, name)
        visit, environ[CHECKING] = self.visit_of(environ), limit
        answer = run(visit.check_part(gate, rules, view, read_body=partial(flask_body, request)))
        if isinstance(answer, Rejected):
            self._raise_part(answer, limit, visit)
        if isinstance(visit.answer, Passed):
            _note(visit.answer)
        return LimitedPart(answer.verdict, visit.passed, name)

    def enter_block(self, limit: RouteLimit) -> LimitedPart:
        """Check the limit of a block of a view. Raises the rejection as an HTTPException."""
        part = self.check_part(limit, limit.name)
        current_request().environ.setdefault(BLOCKS, []).append((limit, part))
        return part

    def leave_block(self, limit: RouteLimit) -> None:
        """Release the slots of the block of this limit that was entered last."""
        blocks: list[tuple[RouteLimit, LimitedPart]] = current_request().environ.get(BLOCKS, [])
        for index in reversed(range(len(blocks))):
            if blocks[index][0] is limit:
                blocks.pop(index)[1].leave(self.gate)
                return

    def _raise_part(self, rejected: Rejected, limit: RouteLimit, visit: Visit) -> NoReturn:
        """Raise the rejection of a part. No error is kept in a variable: its traceback would be a cycle."""
        try:
            response = self._app.make_response(self.reject(rejected, limit.on_breach))
        except HTTPException as error:
            _mark(error, rejected, visit)
            raise
        raise _mark(HTTPException(response=response), rejected, visit)

    def usage(self, request: flask.Request, *, all_rules: bool, user: Any) -> list[Usage]:
        """Return the usage of a client; see `RateLimits.usage`."""
        if all_rules:
            return self.gate.usage(self._client_view(request, user))
        return self.gate.usage_after(self.visit_of(request.environ).answer)

    def usage_page(self, request: flask.Request) -> Any:
        """Return the response that tells a caller its own usage."""
        page = run(read_page(self.gate, partial(self.gate.usage, self._client_view(request, None))))
        return self._app.response_class(page.body, page.status, HEADERS, content_type=CONTENT_TYPE)

    def _client_view(self, request: flask.Request, user: Any) -> RequestView:
        """Return a request whose view runs, for rules that do not look at its path."""
        view = request_view(request.environ, wire=self.wire)
        find = self._options.user
        if user is None and find is not None:
            self.gate.current().note_client(view)
            user = self.finished(find(view))
        view.user = user_id(user)
        return view

    def reject(self, rejected: Rejected, breach: Callable[..., Any] | None = None) -> Any:
        """Return the response of `on_breach`, or raise an error that Flask knows how to answer."""
        for words in (breach or rejected.breach, self._options.on_breach):
            response = None if words is None else self.finished(words(rejected))
            if response is not None:
                return response
        known = default_exceptions.get(rejected.status, default_exceptions[429])
        ours = self._app.response_class(rejected.body, rejected.status, content_type=rejected.body_type)
        error: Any = known(description=rejected.description, response=ours)
        error.rejected = rejected
        if rejected.retry_after is not None:
            error.retry_after = math.ceil(rejected.retry_after)
        try:
            raise error
        finally:
            del error  # its traceback would be a cycle

    def finished(self, answer: Any) -> Any:
        """Return the result of a function of the extension, also if it is async."""
        return self._app.ensure_sync(_awaited)(answer) if is_awaitable(answer) else answer


def _checking_hook(limited: LimitedFlask, table: dict[Key, LimitedRoute]) -> Callable[[], Any]:
    """Return the hook that checks all limits of a request, and returns the response of a rejection.

    Every request comes through here. A function that has all it needs in its closure is the least that Flask can call,
    which looks at each hook to see whether it is async.
    """
    gate, key, has_users = limited.gate, limited.key, limited.has_users
    current_policy, decide_by, on_demand, wire = gate.current, gate.decide_by, RequestView.on_demand, limited.wire
    request_now, globals_now, check_plain = current_request, current_globals, limited.plain.check

    def check_request() -> Any:
        request = request_now()
        answer: Passed | Rejected | None = check_plain(request)
        if answer is not None:
            globals_now().__dict__["ratebound"] = answer  # the attribute is slow to set
            return limited.reject(answer) if isinstance(answer, Rejected) else None
        environ = request.environ
        rule = request.url_rule
        method = request.method
        try:
            route = table[rule and rule.endpoint, method]  # type: ignore[index]  # no rule is false
        except KeyError:
            route = limited.find(request.endpoint, method)
        if route.rules.base is not current_policy():
            route = limited.find(request.endpoint, method)
        visit = environ.get(key) or limited.visit_of(environ)
        if visit.is_spared:
            return None
        visit.is_late, visit.checked = True, route.declared
        is_direct = route.is_plain and route.rules.is_direct and not (has_users and gate.operators_name_users())
        if is_direct and visit.answer is None and PASSED not in environ:
            view, rules = on_demand(wire, environ, method, environ.get("REMOTE_ADDR") or None), route.rules
            answer = visit.answer = rules.answer(view, [decide_by(rules.compiled, view, rules.last_stage)])
            if isinstance(answer, Passed) and answer.delay:
                gate.sleep(answer)
        else:
            answer = limited.check_late(route, request, visit)
        globals_now().__dict__["ratebound"] = answer
        return limited.reject(answer) if isinstance(answer, Rejected) else None

    return check_request


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _rejection_in(error: Any) -> Rejected | None:
    """Return the rejection that an exception stands for, if it is one of ours."""
    rejected = getattr(error, "rejected", None)
    return rejected if isinstance(rejected, Rejected) else None


def _mark(error: HTTPException, rejected: Rejected, visit: Visit) -> HTTPException:
    """Let an error stand for the rejection of a part. The response is known by its status, if a view catches the error
    and answers in its place."""
    error.rejected = rejected  # type: ignore[attr-defined]
    visit.part_status = error.get_response().status_code
    return error


def _note(answer: Passed | Rejected) -> Passed | Rejected:
    """Show the handler what was decided."""
    current_globals().ratebound = answer
    return answer


def limited_application() -> LimitedFlask:
    """Return the current application as one with limits. Raises RuntimeError if it has none."""
    found = flask.current_app.extensions.get("ratebound")
    if not isinstance(found, LimitedFlask):
        raise RuntimeError("this application has no limits: call limiter.init_app(app)")
    return found
