"""RateLimits for Flask, and limits for views, blueprints, functions and blocks."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, Unpack
from weakref import WeakSet

import flask
from flask.views import View

from ratebound.duration import Duration
from ratebound.policy.functions import check_takes
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.policy.runtime.operator_documents import Change
from ratebound.policy.runtime.operator_overrides import ClientOverride
from ratebound.policy.runtime.operator_switches import RuleSwitch, SwitchState
from ratebound.slots import Holder
from ratebound.usage import Usage
from ratebound.web.dashboard import Auth, DashboardLedger, Operator, needing_auth
from ratebound.web.flask.application import LimitedFlask, LimitedPart, current_request, limited_application
from ratebound.web.flask.dashboard import dashboard_blueprint
from ratebound.web.flask.routes import Routes, listed
from ratebound.web.functions import taking_request
from ratebound.web.gate import WebGate, log
from ratebound.web.options import AnyLimits, AnyPolicy, Function, LimitOptions, Limits, Options, checking_call
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import RouteLimit, declare, declared, route_limit
from ratebound.web.route_limit import exempt as mark_exempt
from ratebound.web.rule_names import full_name, short_name
from ratebound.web.user import check_user, counts_by_user_alone

P = ParamSpec("P")
T = TypeVar("T")

Declarable = Limits | RouteLimit | Sequence[str | RouteLimit] | None

FLASK_LIMITER = (
    "expected the application first, as in RateLimits(app, default_limits=['200 per day']), not {!r}. A function that"
    " finds the key, as in Flask-Limiter's Limiter(get_remote_address, app=app), is by= here; leave it out to count by"
    " user or address"
)


def _application_first(init: Callable[P, None]) -> Callable[P, None]:
    """Make a constructor raise an error that names the right call, where Python would complain about 'app'."""

    @functools.wraps(init)
    def made(*args: P.args, **options: P.kwargs) -> None:
        if len(args) > 1 and callable(args[1]) and not isinstance(args[1], flask.Flask):
            raise TypeError(FLASK_LIMITER.format(args[1]))
        if len(args) > 1 and "app" in options:
            raise TypeError(f"expected the application first, as in RateLimits(app, '100/minute'), not {args[1]!r}")
        init(*args, **options)

    return made


class RateLimits:
    """Limits for a Flask application.

    Functions take the RequestView, or nothing and look at `flask.request`. Create it after the hooks that log a user
    in: hooks run in order.

    Args:
        app: The application to limit. None means to call `init_app` later.
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
            None means that only endpoints have limits.
        default_limits: The limits of each view without limits of its own, each view counted by itself.
        application_limits: The limits of all views together.
        user: A function that returns who is logged in: an id, an `Identity`, or None.
        exempt_when: A function that returns True for a request that counts nothing.
        on_breach: A function of each rejection. It may return the response.
        **settings: Options of `WebGate`, like `storage`, `max_delay` and `listeners`, and of `Policy`, like `failure`,
            `by` and `headers`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read, or limits count by user and there is no `user`.

    Examples:
        >>> import flask
        >>> from ratebound.web.flask import RateLimits
        >>> app = flask.Flask("shop")
        >>> limits = RateLimits(app, "100/minute")
        >>> @app.get("/search")
        ... @limits.limit("1/minute")
        ... def search():
        ...     return "found"
        >>> client = app.test_client()
        >>> [client.get("/search").status_code for _ in range(2)]
        [200, 429]
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
        on_breach: Callable[[Rejected], Any] | None = None,
        **settings: Unpack[Options],
    ) -> None:
        if user is not None:
            check_user(user)
        self._policy = policy
        self._settings: dict[str, Any] = {**settings}
        self.user = None if user is None else taking_request(user, "user")
        self.exempt_when = exempt_when and taking_request(exempt_when, "exempt_when")
        if on_breach is not None:
            check_takes(on_breach, "the rejection", option="on_breach")
        self.on_breach = on_breach
        self.blueprints: dict[Any, list[RouteLimit]] = {}
        self.exempted: set[Any] = set()
        self.per_method: WeakSet[RouteLimit] = WeakSet()  # weak: a view may make limits for each request
        self.limited: WeakSet[Callable[..., Any]] = WeakSet()
        self.dashboards: dict[flask.Blueprint, Callable[..., Any]] = {}  # and their views
        self._applications: list[LimitedFlask] = []
        self._default = listed(default_limits)
        self._common = listed(application_limits, "application")
        self._check([*self._default, *self._common])
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limit this application. Each application has a gate of its own.

        Its config may hold RATEBOUND_POLICY, RATEBOUND_DEFAULT_LIMITS, RATEBOUND_APPLICATION_LIMITS, and
        RATEBOUND_STORAGE and other settings of WebGate, which replace those given here.

        Args:
            app: The application.

        Raises:
            PolicyError: The policy is invalid. It has every error, with its place.
            TypeError: It is no Flask application, or a setting is unknown.
            RuntimeError: The application has limits already.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import RateLimits
            >>> limits = RateLimits(default_limits="10/minute")
            >>> app = flask.Flask("shop")
            >>> app.config["RATEBOUND_POLICY"] = "100/minute"
            >>> limits.init_app(app)
        """
        if not isinstance(app, flask.Flask):
            raise TypeError(f"expected the application first, as in RateLimits(app, '100/minute'), not {app!r}")
        if "ratebound" in app.extensions:
            raise RuntimeError("this application has limits already: call init_app once")
        left = [name for name in app.config if name.startswith("RATELIMIT_")]
        if left:
            log.warning(
                "%s in the config are Flask-Limiter's, and have no effect: see docs/migrate/flask-limiter.md",
                ", ".join(left),
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
        made = app.extensions["ratebound"] = LimitedFlask(self, app, gate, Routes(app, self, of_each, of_all))
        self._applications.append(made)
        if any(one in self.dashboards for one in app.blueprints.values()):
            made.watch_dashboard()

    @property
    def gate(self) -> WebGate:
        """The gate of the current application, or of the only one."""
        if len(self._applications) == 1 and not flask.has_app_context():
            return self._applications[0].gate
        return limited_application().gate

    def usage(self, request: flask.Request | None = None, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what the client of a request has used of each limit that the request was checked against. Charges
        nothing.

        Args:
            request: The request. None means the current one.
            all_rules: True for every limit that counts this client, whatever the path or method of the request, but for
                limits that all clients share.
            user: The user, if it is not the one that the `user` of these limits returns.
        """
        return limited_application().usage(request or current_request(), all_rules=all_rules, user=user)

    def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client: `limits.usage_of("user:42")`; see `Gate.usage_of`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return self.gate.usage_of(identity, rule, tier=tier)

    def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas; see `Gate.grant`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            units: The units to add: a whole number from 1 to 10**12.
            rule: The name of the only rule to look at. None means all that count by this identity.
            tier: The tier of the client, unless the policy's lists give it one. None means the default tier.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: None of the rules has a quota.
            InvalidCost: The units are not a whole number from 1 to 10**12.
        """
        return self.gate.grant(identity, units, rule, tier=tier)

    def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent, of limits of views too; see `Gate.reset`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not be told, in every failure mode.
        """
        self.gate.reset(identity, rule)

    def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now, of limits of views too; see `Gate.holders`.

        Args:
            identity: The client, spelled as in the lists of a policy: `"user:42"`, `"203.0.113.7"`, `"api-key:acme"`. A
                rule that counts by several identities takes a list of them.
            rule: The name of the only rule to look at. None means all that count by this identity.

        Raises:
            ValueError: No rule counts by the identity.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        return self.gate.holders(identity, rule)

    def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `limits.block("user:42", "1 hour")`; see `Gate.block`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import RateLimits
            >>> limits = RateLimits(flask.Flask("shop"), "100/minute")
            >>> limits.block("203.0.113.7", "1 hour", "scraping", by="alice").client
            '203.0.113.7'
        """
        return self.gate.block(client, for_, reason, by=by)

    def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.unblock(client, by=by)

    def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage is out of reach.
        """
        return self.gate.blocks()

    def override(
        self,
        client: str,
        *,
        limits: str | None = None,
        tier: str | None = None,
        rules: str | Sequence[str] = (),
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> ClientOverride:
        """Give a client other limits or another tier, also of views; see `Gate.override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            limits: Text as in a rule, also `"deny"` or `"unlimited"`. Limits without an algorithm take that of the
                rule, so that the client keeps its count where the period is the same.
            tier: The other tier, in place of limits.
            rules: The names of the rules that get the limits. Empty means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The client, the time or a text is invalid, a rule or a tier does not exist, or a rule cannot
                have these limits.
        """
        return self.gate.override(client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by)

    def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`.

        Args:
            client: A client, written as in the `block` list of a policy: an address, a range, or an identity like
                `"user:42"`.
            rules: The names of the rules, exactly as the override has them. Empty means the override for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.remove_override(client, rules=rules, by=by)

    def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now; see `Gate.overrides`."""
        return self.gate.overrides()

    def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> RuleSwitch:
        """Switch a rule of the policy or of a view, or all rules; see `Gate.set_switch`.

        Args:
            state: `"on"` enforces the rule, also if the policy has it in shadow; `"off"` asks nothing, but the rule
                still matches; `"shadow"`; or `"candidate"` enforces its candidate limits. All rules can be on, off or
                shadow.
            rule: The name of the rule. None means all rules.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The state, the time or a text is invalid, or the rule does not exist or has no candidate.
        """
        return self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by)

    def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`.

        Args:
            rule: The name of the rule. None means the switch for all rules.
            by: The name of the operator, for the audit log.

        Raises:
            ValueError: The client, the time or a text is invalid, or there are too many entries.
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
        """
        return self.gate.remove_switch(rule, by=by)

    def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return self.gate.switches()

    def promote(self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = "") -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`.

        Args:
            rule: The name of the rule.
            for_: How long it holds: seconds, a timedelta, or text like `"1 hour"`. None means until it is removed.
            reason: One line for operators. Clients never see it.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: The time or a text is invalid, or the rule does not exist or has nothing to promote.
        """
        return self.gate.promote(rule, for_=for_, reason=reason, by=by)

    def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return self.gate.changes()

    def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`.

        Args:
            action: What was done, in one word.
            target: The client or the rule.
            detail: The rest, in words.
            by: The name of the operator, for the audit log.

        Raises:
            TypeError: The storage keeps no shared documents.
            StorageError: The storage could not be told, in every failure mode.
            ValueError: A text is invalid.
        """
        return self.gate.record(action, target, detail, by=by)

    def usage_page(self) -> Callable[[], Any]:
        """Return a view that tells callers their own usage of all limits, as JSON. It costs nothing, except for early
        rules: `app.add_url_rule("/rate_limit", view_func=limits.usage_page())`."""

        def usage_page() -> Any:
            return limited_application().usage_page(current_request())

        return mark_exempt(usage_page)

    @needing_auth
    def dashboard(
        self, *, auth: Auth[[]], name: str = "ratebound_dashboard", ledger: DashboardLedger | None = None
    ) -> flask.Blueprint:
        """Return the dashboard of these limits as a blueprint. Requests for it are not limited.

        What `auth` raises is for the application's own handlers of errors.

        Args:
            auth: A function without arguments, which looks at `flask.request`, `flask.session` or `flask.g`. It returns
                None, `"read"`, `"write"`, or an `Operator`.
            name: The name of the blueprint.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import Operator, RateLimits
            >>> app = flask.Flask("shop")
            >>> limits = RateLimits(app, "100/minute")
            >>> app.register_blueprint(limits.dashboard(auth=lambda: Operator("alice", "read")), url_prefix="/limits")
        """
        blueprint, view = dashboard_blueprint(name, taking_request(auth, "auth", "the request"), ledger)
        self.dashboards[blueprint] = view
        return blueprint

    @checking_call
    def limit(
        self, limits: AnyLimits, *, per_method: bool = False, **options: Unpack[LimitOptions]
    ) -> "LimitDecorator":
        """Limit a view, a class-based view, a blueprint (each of its views by itself) or a function that views call.

        Args:
            limits: Limits as text, `Limit` objects, limits by tier, or a function of the request, which needs the
                option `otherwise`.
            per_method: True counts each method by itself.
            **options: Options of `RouteLimit`, like `key`, `cost`, `name` and `charge`.

        Raises:
            PolicyError: The policy is invalid. It has every error, with its place.
            TypeError: An option is unknown or something else than expected. The message says what to write.
            ValueError: Options do not go together, or the limit counts by user and there is no `user`.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import RateLimits
            >>> app = flask.Flask("shop")
            >>> limits = RateLimits(app)
            >>> @app.post("/login")
            ... @limits.limit("5/minute", key="address", charge="failure")
            ... def login():
            ...     return "welcome"
        """
        limit = route_limit(limits, options)
        if not flask.has_request_context():  # in a request the decision itself raises
            self._check([limit], *(made.gate for made in self._applications))
        if per_method:
            self.per_method.add(limit)
        return LimitDecorator(self, limit)

    def _check(self, limits: Sequence[RouteLimit], *gates: WebGate) -> None:
        """Raise ValueError for limits that the policy cannot be combined with, and for limits by user where no user can
        be known, which would count by address."""
        for gate in gates:
            for limit in limits:
                gate.check(limit)
        if self.user is None and any(counts_by_user_alone(limit.key) for limit in limits):
            raise ValueError(
                "key='user' needs a function that returns the user: RateLimits(app, user=lambda: session.get('user'));"
                " or write key=['user', 'address'] to count by address"
            )

    def _declared(self) -> list[RouteLimit]:
        """Return the limits of functions and blueprints that were declared before there was an application."""
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
    ) -> "LimitDecorator":
        """Limit with one quota for everything under this scope.

        Args:
            limits: Limits as text, `Limit` objects, limits by tier, or a function of the request, which needs the
                option `otherwise`.
            scope: The name of the quota.
            per_method: True counts each method by itself.
            **options: Options of `RouteLimit`, like `key`, `cost`, `name` and `charge`.

        Raises:
            PolicyError: The policy is invalid. It has every error, with its place.
            TypeError: An option is unknown or something else than expected. The message says what to write.
            ValueError: Options do not go together, or the limit counts by user and there is no `user`.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import RateLimits
            >>> app = flask.Flask("shop")
            >>> mail = RateLimits(app).shared_limit("10/hour", "mail")
            >>> @app.post("/invite")
            ... @mail
            ... def invite():
            ...     return "sent"
        """
        given: LimitOptions = {**options, "name": scope}
        return self.limit(limits, per_method=per_method, **given)

    def exempt(self, target: T) -> T:
        """Exempt a view, or the views of a blueprint that have no limits of their own.

        Args:
            target: The view, or the blueprint.

        Returns:
            The same object.

        Examples:
            >>> import flask
            >>> from ratebound.web.flask import RateLimits
            >>> app = flask.Flask("shop")
            >>> limits = RateLimits(app, "100/minute")
            >>> @app.get("/health")
            ... @limits.exempt
            ... def health():
            ...     return "ok"
        """
        if isinstance(target, flask.Blueprint):
            self.exempted.add(target)
            return target
        if isinstance(target, type):
            target.decorators = [*getattr(target, "decorators", ()), mark_exempt]  # type: ignore[attr-defined]
            return target
        return mark_exempt(target)  # type: ignore[type-var]


class LimitDecorator:
    """One limit, as a decorator, or around a block: `with limiter.limit(…, name="mail"):`.

    A slot is held until the response ends, or around a block until the end of the block.
    """

    def __init__(self, limits: RateLimits, limit: RouteLimit) -> None:
        self._limits = limits
        self._limit = limit

    def __call__(self, target: T) -> T:
        if isinstance(target, flask.Blueprint):
            self._limits.blueprints.setdefault(target, []).append(self._limit)
            return target
        if isinstance(target, type):
            if not issubclass(target, View):
                raise TypeError(f"expected a view, a blueprint or a function, not the class {target.__name__}")
            target.decorators = [*target.decorators, self]
            return target
        limit = self._limit
        if not limit.name:
            limit = replace(limit)  # its own, for each function: a view may call one that has the same decorator
            if self._limit in self._limits.per_method:
                self._limits.per_method.add(limit)
        limited = _limited(limit, target)  # type: ignore[arg-type]
        self._limits.limited.add(limited)
        return limited  # type: ignore[return-value]

    def __enter__(self) -> LimitedPart:
        if not self._limit.name:
            raise ValueError("the limit of a block needs a name: limiter.limit('5/minute', name='mail')")
        return limited_application().enter_block(self._limit)

    def __exit__(self, *exception: object) -> None:
        if flask.has_request_context():
            limited_application().leave_block(self._limit)


def _limited(limit: RouteLimit, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that checks its limit, unless that was checked before the view, with all others.

    It was not for a function that a view calls, or where a decorator between hides the limit: never unlimited.
    """
    run = function
    if inspect.iscoroutinefunction(function):

        def run(*args: Any, **kwargs: Any) -> Any:
            if _in_loop():  # of an async view, or of an async decorator above this one, which awaits
                return function(*args, **kwargs)
            return flask.current_app.ensure_sync(function)(*args, **kwargs)

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        application = limited_application()
        if limit not in application.visit_of(current_request().environ).checked:
            application.check_part(limit, limit.name or short_name(full_name(function)))
        return run(*args, **kwargs)

    declare(limited, limit)
    return limited


def _in_loop() -> bool:
    """Return True if this thread runs an event loop, so that the caller can await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


__all__ = ["Operator", "RateLimits"]
