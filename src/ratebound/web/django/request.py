"""A Django request as rules see it, and the functions of limits that take it."""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings

from ratebound.policy import RequestView
from ratebound.policy.functions import unwrapped
from ratebound.policy.match.reading import Paths, configured_prefixes
from ratebound.web.asgi import WIRE as SCOPE_WIRE
from ratebound.web.asgi import request_view as view_of_scope
from ratebound.web.django.calling import SynchronousOnlyOperation, in_thread
from ratebound.web.functions import taking_request
from ratebound.web.route_limit import FUNCTIONS, RouteLimit
from ratebound.web.route_limit import route_limit as plain_route_limit
from ratebound.web.visit import Visit
from ratebound.web.wsgi import WIRE as ENVIRON_WIRE
from ratebound.web.wsgi import paths_below

VISIT = "_ratebound"  # the attribute of a request that holds its Visit
UNKNOWN_USER = (
    "no middleware has set request.user. Django: add django.contrib.auth.middleware.AuthenticationMiddleware to"
    " MIDDLEWARE, or RATEBOUND = {'user': …}, a function of the request"
)

# The request, True if a task waits for it, and the limits that are checked, by their keys.
Hand = tuple[Any, bool, Any]

_hand: ContextVar[Hand] = ContextVar("ratebound_request", default=(None, False, ()))


def visit_of(request: Any) -> Visit:
    """Return the visit of a request, which is new where there is no middleware."""
    visit: Visit | None = getattr(request, VISIT, None)
    if visit is None:
        visit = Visit()
        visit.view = request_view(request)
        visit.view.reread(paths_of(request))
        setattr(request, VISIT, visit)
    return visit


def _at_hand() -> Any:
    """Return the request whose limits are checked, None if it is over. It is not kept in its view: that would be a
    cycle for every request."""
    return _hand.get()[0]


def _path_params(_: Any) -> Any:
    match = getattr(_at_hand(), "resolver_match", None)
    return {} if match is None else match.kwargs


def _no_user(_: Any) -> str:
    given = getattr(settings, "RATEBOUND", None)
    is_told = isinstance(given, Mapping) and given.get("user") is not None
    request = _at_hand()
    # Without a route a middleware has answered, maybe before the one that finds the user was reached.
    is_answered = getattr(request, "resolver_match", None) is None
    return "" if is_told or is_answered or hasattr(request, "user") else UNKNOWN_USER


FROM_DJANGO: dict[str, Callable[[Any], Any]] = {
    "path_params": _path_params,
    "session": lambda _: getattr(_at_hand(), "session", None),
    "state": lambda _: _at_hand(),
    "request": lambda _: _at_hand(),
    "no_user": _no_user,
}


def _hosts_of_environ(environ: dict[str, Any]) -> str:
    return _with_forwarded(ENVIRON_WIRE.host(environ), [environ.get("HTTP_X_FORWARDED_HOST", "")])


def _hosts_of_scope(scope: Any) -> str:
    sent = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-forwarded-host"]
    return _with_forwarded(SCOPE_WIRE.host(scope), sent)


def _with_forwarded(host: str, forwarded: Iterable[str]) -> str:
    """Return the host, and the one that a proxy has forwarded if Django believes that."""
    return ",".join(filter(None, (host, *forwarded))) if settings.USE_X_FORWARDED_HOST else host


WSGI = ENVIRON_WIRE._replace(**FROM_DJANGO, anonymous=1, host=_hosts_of_environ)
ASGI = SCOPE_WIRE._replace(**FROM_DJANGO, anonymous=1, host=_hosts_of_scope)


def request_view(request: Any) -> RequestView:
    """Return a request as rules see it."""
    environ, scope = getattr(request, "environ", None), getattr(request, "scope", None)
    if environ is None and scope is None:  # made by hand
        made = {"REQUEST_METHOD": request.method or "GET", "PATH_INFO": request.path, "wsgi.url_scheme": request.scheme}
        environ = {**made, **request.META}
    if environ is not None:
        return RequestView.on_demand(WSGI, environ, environ["REQUEST_METHOD"], environ.get("REMOTE_ADDR") or None)
    assert scope is not None
    query = scope.get("query_string", b"")  # text, where Django's own test client makes the scope
    scope = scope if isinstance(query, bytes) else {**scope, "query_string": query.encode()}
    view = view_of_scope(scope, wire=ASGI)
    view.peer = request.META.get("REMOTE_ADDR") or None  # as a middleware may have set it
    return view


def paths_of(request: Any) -> Paths:
    """Return the readings of the path that Django's router looks at, which middleware may have changed."""
    meta: dict[str, Any] = request.META
    scope = getattr(request, "scope", None)
    target: str | None
    if scope is None:
        target = meta.get("RAW_URI") or meta.get("REQUEST_URI")
    else:
        target = (scope.get("raw_path") or b"").decode("latin-1")
    target = target.partition("?")[0] if target else None
    path: str = request.path_info
    prefix: str = meta.get("SCRIPT_NAME") or ""
    if target == path and not prefix and not configured_prefixes():
        return path
    known = getattr(settings, "FORCE_SCRIPT_NAME", None) or ""
    return paths_below(target, path, prefix, "utf-8", known)


@contextmanager
def at_hand(request: Any, limits: Any = (), *, is_task: bool = False) -> Iterator[None]:
    """Hand this request, and these limits by their keys, to functions of limits."""
    token = _hand.set((request, is_task, limits))
    try:
        yield
    finally:
        _hand.reset(token)


def limit_at_hand(key: Hashable) -> Callable[[], RouteLimit]:
    """Return a function that finds the limit of this key among those that are checked."""

    def find() -> RouteLimit:
        found: RouteLimit = _hand.get()[2][key]
        return found

    return find


def of_request(given: Any, option: str) -> Any:
    """Return a function of the HttpRequest as one of the RequestView. A function with `reads_body` takes that already.
    Anything else is returned as it is; functions in a list or a mapping are converted."""
    if isinstance(given, list | tuple):
        return [of_request(one, option) for one in given]
    if option == "distinct" and isinstance(given, Mapping):
        return {name: of_request(one, option) for name, one in given.items()}
    if not callable(given) or getattr(given, "reads_body", False):
        return given
    function = taking_request(given, option, "the HttpRequest")

    def find(request: Any) -> Any:
        return unwrapped(function(request))

    @functools.wraps(function)
    def called(_: RequestView) -> Any:
        request, is_task, _ = _hand.get()
        try:
            return find(request)
        except SynchronousOnlyOperation:  # it looks into the database, as for a lazy user
            return sync_to_async(find)(request) if is_task else in_thread(find, request)

    return called


def route_limit(limits: Any, options: Mapping[str, Any]) -> RouteLimit:
    """Return a limit whose functions take the HttpRequest."""
    found = {name: of_request(one, name) if name in FUNCTIONS else one for name, one in options.items()}
    limits = of_request(limits, "limits") if callable(limits) else limits
    return plain_route_limit(limits, found, ("the HttpRequest", "the rejection"))
