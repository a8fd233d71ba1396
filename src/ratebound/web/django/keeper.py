"""What the settings say: made once for a process."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig, SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.http import HttpResponse, RawPostDataException, UnreadablePostError
from django.urls import get_resolver, get_urlconf
from django.utils.functional import LazyObject, empty
from django.utils.module_loading import import_string

from ratebound.policy import Policy, PolicyFile
from ratebound.policy.cost import MAX_BODY
from ratebound.policy.functions import check_takes, is_awaitable
from ratebound.web.answer import Refused
from ratebound.web.declared import Endpoint
from ratebound.web.django.names import view_name
from ratebound.web.django.request import State, paths_of, state_of
from ratebound.web.django.seen import METHODS, Seen, Views, looks_at_body
from ratebound.web.django.waiting import apart, at_once, awaited
from ratebound.web.gate import AsyncWebGate, WebGate, as_policy
from ratebound.web.options import AnyPolicy, GateOptions, PolicyOptions, check_options
from ratebound.web.user import User, check_user, found_user_id, user_id
from ratebound.web.views import Facts, body_type

OF_GATE = tuple(GateOptions.__annotations__)
OF_STORAGE = ("storage", "deadline", "workers")
NOTHING = Seen((), None, False)
UNREADABLE = bytes(MAX_BODY + 1)


class Settings(GateOptions, PolicyOptions, total=False):
    """RATEBOUND as a dict: `RATEBOUND: Settings = {"policy": "100/minute"}`. See `Keeper`."""

    policy: AnyPolicy | None
    user: str | Callable[[Any], Any]
    sleep: Callable[[float], object]


class Keeper:
    """What the settings say: the gates for threads and for tasks, over one policy and one storage.

    RATEBOUND is limits as text, the path of a policy file, or a dict: `policy` (one of these, a Policy, or a dict as
    in a file), `user` (a function of the request: who is logged in), and settings of WebGate and Policy.
    """

    def __init__(self, given: Any) -> None:
        options = dict(given) if isinstance(given, Mapping) else {"policy": given}
        check_options((name for name in options if name != "rules"), tuple(Settings.__annotations__))
        policy, self._user = options.pop("policy", None), _imported(options.pop("user", None))
        if self._user is not None:
            check_user(self._user)
            check_takes(self._user, "the HttpRequest", option="user")
        of_gate = {name: options.pop(name) for name in OF_GATE if name in options}
        sleep = {"sleep": options.pop("sleep")} if "sleep" in options else {}
        found: Policy | PolicyFile = as_policy(policy, options)
        of_tasks = bool(sleep) and inspect.iscoroutinefunction(sleep["sleep"])
        self.gate = WebGate(found, **of_gate, **({} if of_tasks else sleep))
        self._found, self._of_gate = found, {**of_gate, **(sleep if of_tasks else {})}
        self._tasks: AsyncWebGate | None = None
        self.views = Views(_root, _urlconf, _views, self.forget)
        self._facts = Facts(self.gate.policy, functions=False)

    @property
    def tasks(self) -> AsyncWebGate:
        tasks = self._tasks
        if tasks is None:
            # A twin of the one storage: it has its guard, and is closed with it.
            options = {name: value for name, value in self._of_gate.items() if name not in OF_STORAGE}
            found = self.gate.policy if isinstance(self._found, Policy) else self._found
            with _lock:
                tasks = self._tasks
                if tasks is None:
                    tasks = self._tasks = AsyncWebGate(found, storage=self.gate.gate.storage, **options)
        if tasks.gate.switch != self.gate.gate.switch:
            tasks.switch = self.gate.switch
        return tasks

    @property
    def facts(self) -> Facts:
        policy = self.gate.policy
        if policy is not self._facts.policy:
            if self._tasks is not None and isinstance(self._found, Policy):  # a file is read again by each
                self._tasks.use(policy)
            self._facts = Facts(policy, functions=False)
        return self._facts

    def forget(self, endpoint: Endpoint) -> None:
        """Let go of an endpoint, and of those that it was joined to."""
        for one in (endpoint, *self.views.unjoined(endpoint)):
            self.gate.forget(one)
            if self._tasks is not None:
                self._tasks.forget(one)
        self._facts = Facts(self._facts.policy, functions=False)

    def mistakes(self) -> list[str]:
        """Make the limits of all views in the root URLconf ready, and return what is wrong with them, and with its
        handler429. A URLconf that cannot be loaded is for Django to report."""
        try:
            views = list(_views(_root()))
        except Exception:
            return []
        found: dict[str, None] = {}
        try:
            _check_handler429()
        except Exception as error:  # an import runs the site's code: it may fail in any way
            found[f"handler429 of the root URLconf: {error}"] = None
        for view in views:
            for method in METHODS:
                try:
                    self.gate.prepare(self.views.of(view, method).endpoint)
                except ValueError as error:
                    found[f"the limits of {view_name(view)}: {error}"] = None
        return list(found)

    def begin(self, request: Any, state: State, view: Callable[..., Any] | None) -> Seen:
        """Make ready for the late stage: the route, and what the view declares."""
        state.late = True
        if state.facts.has_paths:
            state.view.reread(paths_of(request))  # anew: a middleware may have shown the router another path
            found = request.resolver_match
            if found is not None and found.route is not None:
                state.view.route = self.views.template(found.route)
        if view is None:
            return NOTHING
        seen = self.views.of(view, request.method, getattr(request, "urlconf", None))
        state.asked = seen.limits
        return seen

    def user(self, request: Any) -> User:
        """Who is logged in; asked only where somebody wants to know, for it may take a look into the database."""
        if self._user is not None:
            return user_id(at_once(self._told, request))
        found: User = at_once(_user_of, request)
        return found

    def _told(self, request: Any) -> Any:
        """What the function of the settings says; looked at where it is called, for a lazy user may block."""
        answer = self._user(request)
        return answer if is_awaitable(answer) else user_id(answer)

    async def task_user(self, request: Any) -> User:
        if self._user is not None:
            try:
                return user_id(await awaited(self._told(request)))
            except SynchronousOnlyOperation:  # as a lazy user
                return user_id(await apart(self._told, request))
        user = getattr(request, "user", None)
        if user is None or _is_unread(user):
            find = getattr(request, "auser", None)
            if user is not None and (find is None or not _is_of_django(user)):
                return await sync_to_async(_user_of)(request)  # somebody else's, who has not said how to await it
            if find is None:
                return None
            user = await find()
            if not hasattr(request, "_cached_user"):
                request._cached_user = user  # where functions that look at `request.user` find it
        return found_user_id(user)

    def read_body(self, request: Any, state: State, endpoint: Endpoint) -> None:
        """Read it if somebody wants to look at it, where no door says so: for limits that are asked by themselves."""
        if state.view.body is None and (looks_at_body(endpoint) or self.gate.door().reads_body):
            state.view.body = self.body(request)

    def body(self, request: Any) -> bytes:
        """The body, as far as a rule may look at it. One that cannot be read any more is as one that is too large."""
        stated = request.META.get("CONTENT_LENGTH") or ""
        if len(stated) > 6 and stated.isdecimal() and int(stated) > MAX_BODY:
            return UNREADABLE  # before anybody reads all of it
        try:
            return bytes(request.body[: MAX_BODY + 1])
        except (RawPostDataException, RequestDataTooBig, UnreadablePostError):
            sends = (
                request.META.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in request.META
            )
            return UNREADABLE if sends else b""

    def refusal(self, request: Any, refused: Refused) -> Any:
        """The response: that of `on_breach`, of `handler429` in the root URLconf, or ours."""
        for words in _own_words(refused):
            response = at_once(words, request, refused)
            if response is not None:
                return response
        return _our_words(request, refused)

    async def task_refusal(self, request: Any, refused: Refused) -> Any:
        for words in _own_words(refused):
            response = await apart(words, request, refused)
            if response is not None:
                return response
        return _our_words(request, refused)


def _own_words(refused: Refused) -> Iterator[Callable[..., Any]]:
    """The functions that may answer."""
    if refused.breach is not None:
        yield refused.breach
    found = _handler429() if refused.status == 429 else None
    if found is not None:
        yield _imported(found)


def _our_words(request: Any, refused: Refused) -> Any:
    body = b"" if request.method == "HEAD" else refused.body
    response = HttpResponse(body, status=refused.status, content_type=body_type(refused))
    response.headers["Content-Length"] = str(len(refused.body))
    return response


_lock = threading.Lock()
_keepers: list[Keeper] = []


def keeper() -> Keeper:
    """That of the settings; made when it is first asked for."""
    if _keepers:
        return _keepers[0]
    with _lock:
        if not _keepers:
            _keepers.append(Keeper(getattr(settings, "RATEBOUND", None) or {}))
        return _keepers[0]


def client_address(request: Any) -> str:
    """Return the client's address, as the proxies that the policy trusts tell it: the one that limits count by."""
    view = state_of(getattr(request, "_request", request)).view  # the second: of the REST framework
    if view.found is None:
        keeper().gate.gate.current().note_client(view)
    return view.address


def close() -> None:
    """Close the storage, for threads at once, and for tasks as soon as their event loop gets to it. The next request
    opens it again."""
    with _lock:
        for one in _keepers:
            one.gate.close()
        _keepers.clear()


async def aclose() -> None:
    """`close`, until this event loop has done its part."""
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
    """Raise if the handler cannot be imported, or cannot be called as it will be."""
    handler = _imported(_handler429())
    if handler is not None and not callable(handler):
        raise TypeError(f"expected a view, not {handler!r}")
    if handler is not None:
        check_takes(handler, "the HttpRequest", "the refusal")


def _root() -> Any:
    return getattr(settings, "ROOT_URLCONF", None)


def _urlconf() -> Any:
    return get_urlconf() or _root()


def _views(urlconf: Any) -> Iterator[Callable[..., Any]]:
    """All views of a URLconf; none where one is called without a site around it."""
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
    """Whether somebody has still to look up who it is, which may block."""
    return isinstance(user, LazyObject) and user._wrapped is empty


def _is_of_django(user: Any) -> bool:
    """Whether it is Django's own, which can be awaited: that of AuthenticationMiddleware."""
    return getattr(vars(user).get("_setupfunc"), "__module__", "") == "django.contrib.auth.middleware"


def _imported(found: Any) -> Any:
    return import_string(found) if isinstance(found, str) else found
