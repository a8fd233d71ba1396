"""What an application calls: RateLimits, and limits to be put on views, blueprints, functions and blocks."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, Unpack
from weakref import WeakSet

import flask
from flask.views import View

from ratebound.policy.functions import check_takes
from ratebound.web.answer import Refused
from ratebound.web.declared import RouteLimit, declare, declared, route_limit
from ratebound.web.declared import exempt as mark_exempt
from ratebound.web.flask.installed import ANSWER, ASKED, Installed, current_request, installed
from ratebound.web.flask.parts import Part
from ratebound.web.flask.routes import Routes, listed
from ratebound.web.functions import taking_request
from ratebound.web.gate import WebGate, log
from ratebound.web.options import AnyLimits, AnyPolicy, Function, LimitOptions, Limits, Options, checking_call
from ratebound.web.user import check_user, counts_by_user_alone
from ratebound.web.views import dotted_name

P = ParamSpec("P")
T = TypeVar("T")

Declarable = Limits | RouteLimit | Sequence[str | RouteLimit] | None

FLASK_LIMITER = (
    "expected the application first, as in RateLimits(app, default_limits=['200 per day']), not {!r}. A function that"
    " finds the key, as Flask-Limiter's Limiter(get_remote_address, app=app) takes it, is by= here; leave it out to"
    " count by user or address"
)


def _application_first(init: Callable[P, None]) -> Callable[P, None]:
    """Make a constructor name the right call where Python would say "multiple values for argument 'app'"."""

    @functools.wraps(init)
    def made(*args: P.args, **options: P.kwargs) -> None:
        if len(args) > 1 and callable(args[1]) and not isinstance(args[1], flask.Flask):
            raise TypeError(FLASK_LIMITER.format(args[1]))
        init(*args, **options)

    return made


class RateLimits:
    """Limits for a Flask application: `RateLimits(app, "100/minute")`, or with a Policy or the path of a policy file.

    `default_limits` hold for each view that has none of its own, each view counted by itself; `application_limits` for
    all views together. `user` says who is logged in, `exempt_when` whom nothing is counted for. `on_breach` is told of
    each refusal and may return the response. Other settings are those of WebGate. Functions take the RequestView, or
    nothing and look at `flask.request`. Create it after the hooks that log a user in: hooks run in order.
    """

    @_application_first
    def __init__(
        self,
        app: flask.Flask | None = None,
        policy: AnyPolicy | None = None,
        *,
        default_limits: Declarable = None,
        application_limits: Declarable = None,
        user: Function | None = None,
        exempt_when: Function | None = None,
        on_breach: Callable[[Refused], Any] | None = None,
        **settings: Unpack[Options],
    ) -> None:
        if user is not None:
            check_user(user)
        self._policy = policy
        self._settings: dict[str, Any] = {**settings}
        self.user = None if user is None else taking_request(user, "user")
        self.exempt_when = exempt_when and taking_request(exempt_when, "exempt_when")
        if on_breach is not None:
            check_takes(on_breach, "the refusal", option="on_breach")
        self.on_breach = on_breach
        self.blueprints: dict[Any, list[RouteLimit]] = {}
        self.exempted: set[Any] = set()
        self.per_method: WeakSet[RouteLimit] = WeakSet()  # weak: a view may make limits for each request
        self.limited: WeakSet[Callable[..., Any]] = WeakSet()
        self._installed: list[Installed] = []
        self._default = listed(default_limits)
        self._common = listed(application_limits, "application")
        self._check([*self._default, *self._common])
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Begin to limit this application. Its config may hold RATEBOUND_POLICY, RATEBOUND_DEFAULT_LIMITS,
        RATEBOUND_APPLICATION_LIMITS, and RATEBOUND_STORAGE and other settings of WebGate, which stand in for those
        given here. Each application has a gate of its own."""
        if not isinstance(app, flask.Flask):
            raise TypeError(f"expected the application first, as in RateLimits(app, '100/minute'), not {app!r}")
        if ANSWER in app.extensions:
            raise RuntimeError("this application has a RateLimits already")
        left = [name for name in app.config if name.startswith("RATELIMIT_")]
        if left:
            log.warning(
                "%s in the config are Flask-Limiter's, and do nothing: see docs/coming-from.md", ", ".join(left)
            )
        settings = {**self._settings, **app.config.get_namespace("RATEBOUND_")}
        policy = settings.pop("policy", self._policy)
        default, common = settings.pop("default_limits", None), settings.pop("application_limits", None)
        if "by" in settings:
            settings["by"] = taking_request(settings["by"], "by")
        of_each = self._default if default is None else listed(default)
        of_all = self._common if common is None else listed(common, "application")
        gate = WebGate(policy, **settings)
        self._check([*of_each, *of_all, *self._declared()], gate)
        made = app.extensions[ANSWER] = Installed(self, app, gate, Routes(app, self, of_each, of_all))
        self._installed.append(made)

    @property
    def gate(self) -> WebGate:
        """That of the current application, or of the only one."""
        if len(self._installed) == 1 and not flask.has_app_context():
            return self._installed[0].gate
        return installed().gate

    @checking_call
    def limit(self, limits: AnyLimits, *, per_method: bool = False, **options: Unpack[LimitOptions]) -> "Limited":
        """For a view, a class-based view, a blueprint (each of its views by itself) or any function that views call.

        Options are those of RouteLimit. `per_method` counts each method by itself.
        """
        limit = route_limit(limits, options)
        if not flask.has_request_context():  # in a request the decision itself tells
            self._check([limit], *(made.gate for made in self._installed))
        if per_method:
            self.per_method.add(limit)
        return Limited(self, limit)

    def _check(self, limits: Sequence[RouteLimit], *gates: WebGate) -> None:
        """Raise for limits that do not go with the policy, and for limits by users whom nobody can know, which would
        count by address, unseen."""
        for gate in gates:
            for limit in limits:
                gate.check(limit)
        if self.user is None and any(counts_by_user_alone(limit.key) for limit in limits):
            raise ValueError(
                "key='user', and nobody says who the user is: RateLimits(app, …, user=lambda: session.get('user')); or"
                " write key=['user', 'address'] to count by address"
            )

    def _declared(self) -> list[RouteLimit]:
        """Return what was put on functions and blueprints before there was an application."""
        marks = [mark for function in list(self.limited) for mark in declared(function)]
        return [
            *(mark for mark in marks if mark is not None),
            *(one for group in self.blueprints.values() for one in group),
        ]

    def shared_limit(
        self,
        limits: AnyLimits,
        scope: str,
        *,
        per_method: bool = False,
        **options: Unpack[LimitOptions],
    ) -> "Limited":
        """One quota for everything that is limited under this scope."""
        given: LimitOptions = {**options, "name": scope}
        return self.limit(limits, per_method=per_method, **given)

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

    def __init__(self, keeper: RateLimits, limit: RouteLimit) -> None:
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
        limited = _limited(limit, target)  # type: ignore[arg-type]
        self._keeper.limited.add(limited)
        return limited  # type: ignore[return-value]

    def __enter__(self) -> "Part":
        if not self._limit.name:
            raise ValueError("a block has no name of its own: limiter.limit('5/minute', name='mail')")
        return installed().ask(self._limit, self._limit.name)

    def __exit__(self, *exception: object) -> None:
        pass


def _limited(limit: RouteLimit, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose limit is asked before its view, with all others; or here, if it was not the view that was found.

    That is so for functions that views call, and where a decorator between hides what is declared: never unlimited.
    """
    run = function
    if inspect.iscoroutinefunction(function):

        def run(*args: Any, **kwargs: Any) -> Any:
            if _in_loop():  # of an async view, or of an async decorator above this one: they await
                return function(*args, **kwargs)
            return flask.current_app.ensure_sync(function)(*args, **kwargs)

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        route = current_request().environ.get(ASKED)
        if route is None or limit not in route.declared:
            installed().ask(limit, limit.name or dotted_name(function))
        return run(*args, **kwargs)

    declare(asked, limit)
    return asked


def _in_loop() -> bool:
    """Whether this thread runs tasks, so that there is somebody to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
