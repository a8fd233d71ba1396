"""The limits of a Django site: read from the settings once for a process."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig, SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.http import RawPostDataException, UnreadablePostError
from django.urls import Resolver404, get_resolver, get_urlconf
from django.utils.functional import LazyObject, empty
from django.utils.module_loading import import_string

from ratebound.duration import Duration
from ratebound.flow import Flow, run, run_async
from ratebound.policy import Policy
from ratebound.policy.functions import check_takes, is_awaitable
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.policy.runtime.operator_documents import Change
from ratebound.policy.runtime.operator_overrides import ClientOverride
from ratebound.policy.runtime.operator_switches import RuleSwitch, SwitchState
from ratebound.policy.runtime.policy_url import FollowedPolicy
from ratebound.slots import Holder
from ratebound.uncancelled import uncancelled
from ratebound.usage import Usage
from ratebound.web.body import django_body
from ratebound.web.dashboard import dashboard_site, figures_of
from ratebound.web.django.calling import apart, at_once, awaited
from ratebound.web.django.flows import Caller
from ratebound.web.django.request import at_hand, paths_of, request_view, visit_of
from ratebound.web.django.view_limits import METHODS, ViewLimits
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.gate import AsyncWebGate, WebGate, as_policy
from ratebound.web.options import AnyPolicy, GateOptions, PolicyOptions, check_options
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint
from ratebound.web.rule_names import view_name
from ratebound.web.user import User, check_user, found_user_id, user_id
from ratebound.web.visit import Visit

GATE_OPTIONS = tuple(GateOptions.__annotations__)
STORAGE_OPTIONS = ("storage", "deadline", "workers")
DASHBOARDS: "WeakSet[Callable[..., Any]]" = WeakSet()  # their views
BODY_ERRORS = (RawPostDataException, RequestDataTooBig, UnreadablePostError)


class Settings(GateOptions, PolicyOptions, total=False):
    """RATEBOUND of the settings as a dict. It also takes the options of `WebGate` and `Policy`.

    Attributes:
        policy: Limits as text, the path of a policy file, a Policy, or a dict as in a file.
        user: A function of the HttpRequest, or its dotted name, that returns who is logged in. By default it is
            `request.user`.
        sleep: The function that waits for a number of seconds, for tests.

    Examples:
        >>> from ratebound.web.django import Settings
        >>> RATEBOUND: Settings = {"policy": "100/minute", "failure": "open"}
    """

    policy: AnyPolicy | None
    user: str | Callable[[Any], Any]
    sleep: Callable[[float], object]


class DjangoLimits:
    """The limits of the settings: gates for threads and for tasks, over one policy and one storage.

    RATEBOUND is limits as text, the path of a policy file, or a dict: `policy` (one of these, a Policy, or a dict as
    in a file), `user` (a function of the request that returns who is logged in), and settings of WebGate and Policy.
    """

    def __init__(self, given: Any) -> None:
        options = dict(given) if isinstance(given, Mapping) else {"policy": given}
        check_options((name for name in options if name != "rules"), tuple(Settings.__annotations__))
        policy, self._user = options.pop("policy", None), _imported(options.pop("user", None))
        if self._user is not None:
            check_user(self._user)
            check_takes(self._user, "the HttpRequest", option="user")
        gate_options = {name: options.pop(name) for name in GATE_OPTIONS if name in options}
        sleep = {"sleep": options.pop("sleep")} if "sleep" in options else {}
        self._policy: Policy | FollowedPolicy = as_policy(policy, options)
        is_async_sleep = bool(sleep) and inspect.iscoroutinefunction(sleep["sleep"])
        self.gate = WebGate(self._policy, **gate_options, **({} if is_async_sleep else sleep))
        self.gate.read_endpoints = partial(self._read_views, self.gate)
        self.threads = Caller(self, self.gate, at_once, self.find_user, is_task=False)
        self._task_options = {**gate_options, **(sleep if is_async_sleep else {})}
        self._tasks: Caller | None = None
        self.views = ViewLimits(_root_urlconf, _urlconf, _views, self.forget)
        self._sites: dict[Any, Any] = {}

    @property
    def tasks(self) -> Caller:
        """The caller for tasks. Its gate follows the policy and the switch of the gate for threads."""
        if self._tasks is None:
            # A twin of the one storage: it has its guard, and is closed with it.
            options = {name: value for name, value in self._task_options.items() if name not in STORAGE_OPTIONS}
            policy = self.gate.policy if isinstance(self._policy, Policy) else self._policy
            with _lock:
                if self._tasks is None:
                    made = AsyncWebGate(policy, storage=self.gate.gate.storage, **options)
                    made.read_endpoints = partial(self._read_views, made)
                    # Django closes responses in threads, so the gate for threads holds and releases all slots.
                    made.hold_slots = self.gate.hold_slots  # type: ignore[method-assign]
                    made.release_slots = _in_thread(self.gate.release_slots)
                    made.undo = _in_thread(self.gate.undo)
                    if self.gate.figures is not None:
                        self._share_figures(made)
                    self._tasks = Caller(self, made, apart, self.find_user_async, is_task=True)
        gate, own = self._tasks.gate, self.gate
        if gate.gate.switch != own.gate.switch:
            gate.switch = own.switch
        is_file = not isinstance(self._policy, Policy)  # which each gate reads again
        if not is_file and gate.current().policy is not own.current().policy:
            gate.use(own.policy)
        return self._tasks

    def forget(self, endpoint: Endpoint) -> None:
        """Drop an endpoint, and those that it was joined to."""
        for one in (endpoint, *self.views.unjoined(endpoint)):
            self.gate.forget(one)
            if self._tasks is not None:
                self._tasks.gate.forget(one)

    def mistakes(self) -> list[str]:
        """Prepare the limits of all views in the root URLconf, and return what is wrong with them, and with its
        handler429. A URLconf that cannot be loaded is for Django to report."""
        try:
            views = list(_views(_root_urlconf()))
        except Exception:
            return []
        found: dict[str, None] = {}
        try:
            _check_handler429()
        except Exception as error:  # an import runs the site's code: it may fail in any way
            found[f"handler429 of the root URLconf: {error}"] = None
        if not DASHBOARDS.isdisjoint(views):
            self.watch_dashboard()
        for view in views:
            for method in METHODS:
                try:
                    self.gate.prepare(self.views.of(view, method).endpoint)
                except ValueError as error:
                    found[f"the limits of {view_name(view)}: {error}"] = None
        return list(found)

    def rules_for(self, request: Any, visit: Visit, gate: Any, view: Callable[..., Any] | None) -> EndpointRules:
        """Return the rules of a view, or of a request that reaches none, for the late stage; note its route."""
        visit.is_late = True
        endpoint = None
        if view is not None:
            visit.checked, endpoint = self.views.of(view, request.method, getattr(request, "urlconf", None))
        rules: EndpointRules = gate.rules_for(endpoint)
        if rules.has_paths:
            visit.view.reread(paths_of(request))  # anew: a middleware may have shown the router another path
            found = request.resolver_match
            if found is not None and found.route is not None:
                visit.view.route = self.views.template(found.route)
        return rules

    def watch_dashboard(self) -> None:
        """Count what the dashboard shows from now on: the site has one."""
        if self.gate.figures is None:
            figures_of(self.gate)
            if self._tasks is not None:
                self._share_figures(self._tasks.gate)

    def _share_figures(self, gate: AsyncWebGate) -> None:
        """Count the decisions of the gate for tasks, too."""
        gate.listen(self.gate.figures.live.counts)

    def dashboard_site(self, auth: Callable[[Any], Any], ledger: Any) -> Any:
        """Return the site of the dashboard, for an `auth` of the request."""
        self.watch_dashboard()
        if auth not in self._sites:
            self._sites[auth] = dashboard_site(self.gate, auth, ledger)
        return self._sites[auth]

    def leads_to_dashboard(self, request: Any) -> bool:
        """Return True if a request will be routed to a dashboard, as far as can be told before all middleware has
        seen it."""
        if not DASHBOARDS:
            return False
        try:
            found = get_resolver(getattr(request, "urlconf", None) or _root_urlconf()).resolve(request.path_info)
        except Resolver404:
            return False
        return found.func in DASHBOARDS

    def usage(self, request: Any, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what the client of a request has used of each limit that the request was checked against. Charges
        nothing.

        With `all_rules` it is every limit that counts this client, whatever the path or method of the request, but for
        limits that all clients share. `user` is the user, if it is not `request.user`.
        """
        return run(self.usage_flow(request, self.threads, all_rules, user))

    async def ausage(self, request: Any, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what `usage` does, in a task."""
        return await run_async(self.usage_flow(request, self.tasks, all_rules, user))

    def usage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return the usage of all limits that count a client: `usage_of("user:42")`; see `Gate.usage_of`."""
        return self.gate.usage_of(identity, rule, tier=tier)

    async def ausage_of(
        self, identity: str | Sequence[str], rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Return what `usage_of` does, in a task."""
        return await self.tasks.gate.usage_of(identity, rule, tier=tier)  # type: ignore[no-any-return]

    def grant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Add units to what a client may use in the current windows of its quotas; see `Gate.grant`."""
        return self.gate.grant(identity, units, rule, tier=tier)

    async def agrant(
        self, identity: str | Sequence[str], units: int, rule: str | None = None, *, tier: str | None = None
    ) -> list[Usage]:
        """Do what `grant` does, in a task."""
        return await self.tasks.gate.grant(identity, units, rule, tier=tier)  # type: ignore[no-any-return]

    def reset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Forget what a client has spent, of limits of views too; see `Gate.reset`."""
        self.gate.reset(identity, rule)

    async def areset(self, identity: str | Sequence[str], rule: str | None = None) -> None:
        """Do what `reset` does, in a task."""
        await self.tasks.gate.reset(identity, rule)

    def holders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return the slots that a client holds now, of limits of views too; see `Gate.holders`."""
        return self.gate.holders(identity, rule)

    async def aholders(self, identity: str | Sequence[str], rule: str | None = None) -> list[Holder]:
        """Return what `holders` does, in a task."""
        return await self.tasks.gate.holders(identity, rule)  # type: ignore[no-any-return]

    def block(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Block a client before any rule: `block("user:42", "1 hour")`; see `Gate.block`."""
        return self.gate.block(client, for_, reason, by=by)

    async def ablock(self, client: str, for_: Duration | str | None = None, reason: str = "", *, by: str = "") -> Block:
        """Do what `block` does, in a task."""
        return await self.tasks.gate.block(client, for_, reason, by=by)  # type: ignore[no-any-return]

    def unblock(self, client: str, *, by: str = "") -> bool:
        """End the block of a client. Return False if it was not blocked; see `Gate.unblock`."""
        return self.gate.unblock(client, by=by)

    async def aunblock(self, client: str, *, by: str = "") -> bool:
        """Do what `unblock` does, in a task."""
        return await self.tasks.gate.unblock(client, by=by)  # type: ignore[no-any-return]

    def blocks(self) -> list[Block]:
        """Return all blocks that operators have set and that hold now; see `Gate.blocks`."""
        return self.gate.blocks()

    async def ablocks(self) -> list[Block]:
        """Return what `blocks` does, in a task."""
        return await self.tasks.gate.blocks()  # type: ignore[no-any-return]

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
        """Give a client other limits or another tier, also of views; see `Gate.override`."""
        return self.gate.override(client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by)

    async def aoverride(
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
        """Do what `override` does, in a task."""
        return await self.tasks.gate.override(  # type: ignore[no-any-return]
            client, limits=limits, tier=tier, rules=rules, for_=for_, reason=reason, by=by
        )

    def remove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """End the override of a client. Return False if there is none; see `Gate.remove_override`."""
        return self.gate.remove_override(client, rules=rules, by=by)

    async def aremove_override(self, client: str, *, rules: str | Sequence[str] = (), by: str = "") -> bool:
        """Do what `remove_override` does, in a task."""
        return await self.tasks.gate.remove_override(client, rules=rules, by=by)  # type: ignore[no-any-return]

    def overrides(self) -> list[ClientOverride]:
        """Return all overrides that operators have set and that hold now; see `Gate.overrides`."""
        return self.gate.overrides()

    async def aoverrides(self) -> list[ClientOverride]:
        """Return what `overrides` does, in a task."""
        return await self.tasks.gate.overrides()  # type: ignore[no-any-return]

    def set_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> RuleSwitch:
        """Switch a rule of the policy or of a view, or all rules; see `Gate.set_switch`."""
        return self.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by)

    async def aset_switch(
        self,
        state: SwitchState,
        *,
        rule: str | None = None,
        for_: Duration | str | None = None,
        reason: str = "",
        by: str = "",
    ) -> RuleSwitch:
        """Do what `set_switch` does, in a task."""
        return await self.tasks.gate.set_switch(state, rule=rule, for_=for_, reason=reason, by=by)  # type: ignore[no-any-return]

    def remove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """End the switch of a rule, or the one for all rules; see `Gate.remove_switch`."""
        return self.gate.remove_switch(rule, by=by)

    async def aremove_switch(self, rule: str | None = None, *, by: str = "") -> bool:
        """Do what `remove_switch` does, in a task."""
        return await self.tasks.gate.remove_switch(rule, by=by)  # type: ignore[no-any-return]

    def switches(self) -> list[RuleSwitch]:
        """Return all switches that operators have set and that hold now; see `Gate.switches`."""
        return self.gate.switches()

    async def aswitches(self) -> list[RuleSwitch]:
        """Return what `switches` does, in a task."""
        return await self.tasks.gate.switches()  # type: ignore[no-any-return]

    def promote(self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = "") -> RuleSwitch:
        """Enforce the candidate limits of a rule in place of its own; see `Gate.promote`."""
        return self.gate.promote(rule, for_=for_, reason=reason, by=by)

    async def apromote(
        self, rule: str, *, for_: Duration | str | None = None, reason: str = "", by: str = ""
    ) -> RuleSwitch:
        """Do what `promote` does, in a task."""
        return await self.tasks.gate.promote(rule, for_=for_, reason=reason, by=by)  # type: ignore[no-any-return]

    def changes(self) -> list[Change]:
        """Return the audit log, the newest change first; see `Gate.changes`."""
        return self.gate.changes()

    async def achanges(self) -> list[Change]:
        """Return what `changes` does, in a task."""
        return await self.tasks.gate.changes()  # type: ignore[no-any-return]

    def record(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Note in the audit log what an operator has done; see `Gate.record`."""
        return self.gate.record(action, target, detail, by=by)

    async def arecord(self, action: str, target: str, detail: str = "", *, by: str = "") -> Change:
        """Do what `record` does, in a task."""
        return await self.tasks.gate.record(action, target, detail, by=by)  # type: ignore[no-any-return]

    def usage_flow(self, request: Any, caller: Caller, all_rules: bool, user: Any) -> Flow[list[Usage]]:
        """Find the usage of a client; see `usage`."""
        request = getattr(request, "_request", request)  # of the REST framework
        if not all_rules:
            found: list[Usage] = yield partial(caller.gate.usage_after, visit_of(request).answer)
            return found
        view = request_view(request)
        view.reread(paths_of(request))
        view.user = user_id(user) if user is not None else (yield partial(caller.find_user, request))
        with at_hand(request, is_task=caller.is_task):
            found = yield partial(caller.gate.usage, view)
        return found

    def _read_views(self, gate: Any) -> None:
        """Make the limits of all views in the root URLconf known to a gate, once. The middleware reports mistakes."""
        gate.read_endpoints = lambda: None
        for view in _views(_root_urlconf()):
            for method in METHODS:
                with suppress(ValueError):
                    gate.prepare(self.views.of(view, method).endpoint)

    def find_user(self, request: Any) -> User:
        """Return who is logged in. Called only where a rule needs it, as it may read the database."""
        if self._user is not None:
            return user_id(at_once(self._given_user, request))
        found: User = None if getattr(request, "user", None) is None else at_once(_user_of, request)
        return found

    def _given_user(self, request: Any) -> Any:
        """Call the function of the settings. A lazy user is read where it is called, because that may block."""
        answer = self._user(request)
        return answer if is_awaitable(answer) else user_id(answer)

    async def find_user_async(self, request: Any) -> User:
        """Return who is logged in, for a task."""
        if self._user is not None:
            try:
                return user_id(await awaited(self._given_user(request)))
            except SynchronousOnlyOperation:  # as of a lazy user
                return user_id(await apart(self._given_user, request))
        user = getattr(request, "user", None)
        if user is None or _is_unread(user):
            find = getattr(request, "auser", None)
            if user is not None and (find is None or not _is_of_django(user)):
                return await sync_to_async(_user_of)(request)  # another package's, which cannot be awaited
            if find is None:
                return None
            user = await find()
            if not hasattr(request, "_cached_user"):
                request._cached_user = user  # where functions that look at `request.user` find it
        return found_user_id(user)

    def read_body(self, request: Any) -> bytes:
        """Return the body of a request, as far as a rule may look at it."""
        return django_body(request, BODY_ERRORS)

    def own_words(self, rejected: Rejected) -> Iterator[Callable[..., Any]]:
        """Yield the functions of the application that may answer a rejection."""
        if rejected.breach is not None:
            yield rejected.breach
        found = _handler429() if rejected.status == 429 else None
        if found is not None:
            yield _imported(found)


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls a function in a thread, to its end even if its caller is cancelled."""
    called = sync_to_async(function, thread_sensitive=False)
    return lambda *args: uncancelled(called(*args))


_lock = threading.Lock()
_configured: list[DjangoLimits] = []


def configured_limits() -> DjangoLimits:
    """Return the limits of the settings, which are read at the first call.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.

    Examples:
        >>> from ratebound.web.django import configured_limits
        >>> usage = configured_limits().gate.usage_of("user:42")
    """
    if _configured:
        return _configured[0]
    with _lock:
        if not _configured:
            _configured.append(DjangoLimits(getattr(settings, "RATEBOUND", None) or {}))
        return _configured[0]


def client_address(request: Any) -> str:
    """Return the client's address, as the proxies that the policy trusts tell it: the one that limits count by.

    Args:
        request: The HttpRequest, or the Request of the REST framework.

    Examples:
        >>> from django.test import RequestFactory
        >>> from ratebound.web.django import client_address
        >>> client_address(RequestFactory().get("/", REMOTE_ADDR="203.0.113.7"))
        '203.0.113.7'
    """
    view = visit_of(getattr(request, "_request", request)).view  # the second: of the REST framework
    if view.found is None:
        configured_limits().gate.gate.current().note_client(view)
    return view.address


def close() -> None:
    """Close the storage, for threads at once, and for tasks as soon as their event loop gets to it. The next request
    opens it again.

    Examples:
        >>> from ratebound.web.django import close
        >>> close()
    """
    with _lock:
        for one in _configured:
            one.gate.close()
        _configured.clear()


async def aclose() -> None:
    """Close the storage, and wait until this event loop has done its part.

    Examples:
        >>> import asyncio
        >>> from ratebound.web.django import aclose
        >>> asyncio.run(aclose())
    """
    close()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "ratebound-close"))


def _changed(*, setting: str, **_: Any) -> None:
    if setting in ("RATEBOUND", "REST_FRAMEWORK"):  # throttles with other rates have the same names
        close()


setting_changed.connect(_changed, dispatch_uid="ratebound")


def _handler429() -> Any:
    try:
        return getattr(get_resolver(get_urlconf()).urlconf_module, "handler429", None)
    except ModuleNotFoundError:
        return None  # a view that is called without a site around it


def _check_handler429() -> None:
    """Raise if handler429 cannot be imported, or takes other arguments than a request and a rejection."""
    handler = _imported(_handler429())
    if handler is not None and not callable(handler):
        raise TypeError(f"expected a view, not {handler!r}")
    if handler is not None:
        check_takes(handler, "the HttpRequest", "the rejection")


def _root_urlconf() -> Any:
    return getattr(settings, "ROOT_URLCONF", None)


def _urlconf() -> Any:
    return get_urlconf() or _root_urlconf()


def _views(urlconf: Any) -> Iterator[Callable[..., Any]]:
    """Yield all views of a URLconf; none where a view is called without a site around it."""
    try:
        patterns = [] if urlconf is None else get_resolver(urlconf).url_patterns
    except (ImproperlyConfigured, ModuleNotFoundError):
        return
    yield from _callbacks(patterns)


def _callbacks(patterns: Iterable[Any]) -> Iterator[Callable[..., Any]]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _callbacks(pattern.url_patterns)
        else:
            yield pattern.callback


def _user_of(request: Any) -> User:
    return found_user_id(getattr(request, "user", None))


def _is_unread(user: Any) -> bool:
    """Return True if the user has still to be looked up, which may block."""
    return isinstance(user, LazyObject) and user._wrapped is empty


def _is_of_django(user: Any) -> bool:
    """Return True for the user of Django's AuthenticationMiddleware, which can be awaited."""
    return getattr(vars(user).get("_setupfunc"), "__module__", "") == "django.contrib.auth.middleware"


def _imported(found: Any) -> Any:
    return import_string(found) if isinstance(found, str) else found
