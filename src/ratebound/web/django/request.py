"""One request on its way: what was said about it, and what its response is told when it leaves."""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar, Token
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings

from ratebound.http.caching import CACHING
from ratebound.policy import RequestView
from ratebound.policy.functions import unwrapped
from ratebound.policy.match.reading import Paths, configured_prefixes
from ratebound.web.answer import EXPOSE, Passed, Refused, changes
from ratebound.web.asgi import STATE as AROUND
from ratebound.web.asgi import WIRE as OF_SCOPE
from ratebound.web.asgi import hush
from ratebound.web.asgi import request_view as view_of_scope
from ratebound.web.declared import FUNCTIONS, RouteLimit
from ratebound.web.declared import route_limit as made_limit
from ratebound.web.django.waiting import SynchronousOnlyOperation, in_thread, status_of
from ratebound.web.functions import taking_request
from ratebound.web.gate import AsyncWebGate, WebGate
from ratebound.web.views import Facts
from ratebound.web.wsgi import PASSED, paths_below
from ratebound.web.wsgi import WIRE as OF_ENVIRON
from ratebound.web.wsgi import request_view as view_of_environ

STATE = "_ratebound"  # where a request keeps its State
BODILESS = (204, 304)
UNKNOWN_USER = (
    "no middleware has set request.user. Django: add django.contrib.auth.middleware.AuthenticationMiddleware to"
    " MIDDLEWARE, or RATEBOUND = {'user': …}, a function of the request"
)

# The request, whether a task waits for it, and the limits that it is asked for, by their places.
Hand = tuple[Any, bool, Any]

_hand: ContextVar[Hand] = ContextVar("ratebound_request", default=(None, False, ()))


class State:
    """One request: as rules see it, what was said about it so far, which declared limits were asked and not yet come
    to, and whether somebody will see its response: only then it is told of them, and settled."""

    __slots__ = ("answer", "asked", "facts", "failed", "keep", "late", "part", "view", "watched")

    keep: Any  # these two only in the middleware
    facts: Facts

    def __init__(self, request: Any, *, watched: bool) -> None:
        self.view = _view(request)
        self.answer: Passed | Refused | None = None
        self.asked: tuple[RouteLimit, ...] = ()
        self.late = False
        self.failed: bool | None = None  # whether a login failed, before anything was decided
        self.part: tuple[Passed | None, int] | None = None  # one was refused: what was before it, and its status
        self.watched = watched

    @property
    def passed(self) -> Passed | None:
        return self.answer if isinstance(self.answer, Passed) else None

    def decide(self, request: Any, answer: Passed | Refused) -> None:
        """Note the decision for the whole request."""
        self.answer = request.ratebound = answer
        if self.failed is not None and isinstance(answer, Passed):
            answer.failed = self.failed

    def join(self, request: Any, answer: Passed) -> None:
        """One more decision was made for this request, for a function that it runs, and lets it pass."""
        answer.handle()
        before = self.resume()
        if before is None:
            before = self.answer = answer
        else:
            before.join(answer)
        request.ratebound = before

    def refuse(self, request: Any, refused: Refused) -> None:
        """A part of this request is refused. Only who sees its response can tell whether all of it is."""
        self.part = self.resume(), refused.status
        self.answer = request.ratebound = refused

    def word(self, status: int) -> None:
        """The refusal of a part was worded by the application, as a response of this status."""
        if self.part is not None:
            self.part = self.part[0], status

    def resume(self) -> Passed | None:
        """What has passed so far: a request that goes on was not refused with its part."""
        if self.part is not None:
            self.answer, self.part = self.part[0], None
        return self.passed

    def bypass_view(self, request: Any) -> None:
        """Note that middleware answered, and no view ran; for a preflight that reached django-cors-headers, which
        answers all that it is responsible for."""
        if self.passed is not None and getattr(request, "_cors_enabled", False) and self.view.is_preflight:
            self.passed.bypass_handler()

    def conclude(self, request: Any, status: int) -> Passed | None:
        """A part was refused, and this is the response that leaves: what is to be given back, if it is the refusal."""
        assert self.part is not None
        before, refused = self.part
        if status == refused:
            self.part = None
            return before
        request.ratebound = self.resume()
        return None


def without(asked: tuple[RouteLimit, ...], limit: RouteLimit) -> tuple[RouteLimit, ...]:
    """The call has come for which this was asked: for another one it is asked again."""
    place = asked.index(limit)
    return asked[:place] + asked[place + 1 :]


def state_of(request: Any) -> State:
    """That of a request, which is new where there is no middleware."""
    state: State | None = getattr(request, STATE, None)
    if state is None:
        state = State(request, watched=False)
        state.view.reread(paths_of(request))
        setattr(request, STATE, state)
    return state


def _at_hand() -> Any:
    """Return the request whose limits are asked, None if it is over. It is not kept in its view: that would be a cycle
    for every request."""
    return _hand.get()[0]


def _path_params(_: Any) -> Any:
    match = getattr(_at_hand(), "resolver_match", None)
    return {} if match is None else match.kwargs


def _no_user(_: Any) -> str:
    given = getattr(settings, "RATEBOUND", None)
    is_told = isinstance(given, Mapping) and given.get("user") is not None
    request = _at_hand()
    is_answered = (
        getattr(request, "resolver_match", None) is None
    )  # maybe before the middleware that finds the user was reached
    return "" if is_told or is_answered or hasattr(request, "user") else UNKNOWN_USER


OF_DJANGO: dict[str, Callable[[Any], Any]] = {
    "path_params": _path_params,
    "session": lambda _: getattr(_at_hand(), "session", None),
    "state": lambda _: _at_hand(),
    "request": lambda _: _at_hand(),
    "no_user": _no_user,
}
ENVIRON_WIRE = OF_ENVIRON._replace(**OF_DJANGO, anonymous=1)
SCOPE_WIRE = OF_SCOPE._replace(**OF_DJANGO, anonymous=1)


def _view(request: Any) -> RequestView:
    environ = getattr(request, "environ", None)
    if environ is not None:
        return view_of_environ(environ, wire=ENVIRON_WIRE)
    scope, meta = getattr(request, "scope", None), request.META
    if scope is None:  # made by hand
        made = {"REQUEST_METHOD": request.method or "GET", "PATH_INFO": request.path, "wsgi.url_scheme": request.scheme}
        return view_of_environ({**made, **meta}, wire=ENVIRON_WIRE)
    query = scope.get("query_string", b"")  # text, where Django's own test client makes the scope
    scope = scope if isinstance(query, bytes) else {**scope, "query_string": query.encode()}
    view = view_of_scope(scope, wire=SCOPE_WIRE)
    view.peer = meta.get("REMOTE_ADDR") or None  # as a middleware may have set it
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


def leave(gate: WebGate, request: Any, state: State, response: Any) -> Any:
    """Our headers on a response, whoever made it; and what it has cost, if its result has a say in that."""
    if state.part is not None:
        undone = state.conclude(request, response.status_code)
        if undone is not None:
            gate.give_back(undone)
    passed = state.passed
    if passed is not None:
        if response.streaming:
            _watch(gate, sync_to_async(gate.after), request, passed, response)
        elif passed.settles:
            passed.start_response(response.status_code, response.headers)
            if not getattr(response, "is_rendered", True):
                return _when_rendered(gate, request, state, response)
            gate.after(passed, response.status_code, _sent(request, response))
        else:
            passed.end()
    return _told(request, state, response)


async def leave_task(gate: AsyncWebGate, threads: WebGate, request: Any, state: State, response: Any) -> Any:
    if state.part is not None:
        undone = state.conclude(request, response.status_code)
        if undone is not None:
            await gate.give_back(undone)
    passed = state.passed
    if passed is not None:
        if response.streaming:
            _watch(threads, gate.after, request, passed, response)
        elif passed.settles:
            passed.start_response(response.status_code, response.headers)
            if not getattr(response, "is_rendered", True):
                return _when_rendered(threads, request, state, response)
            await gate.after(passed, response.status_code, _sent(request, response))
        else:
            passed.end()
    return _told(request, state, response)


def fail(gate: WebGate, request: Any, state: State, error: Exception) -> None:
    """`leave` for a response that will be made of an error, where nobody sees it."""
    status = status_of(error)
    undone = None if state.part is None else state.conclude(request, status)
    if undone is not None:
        gate.give_back(undone)
    elif state.passed is not None and state.passed.settles:
        gate.after(state.passed, status, 0)


async def fail_task(gate: AsyncWebGate, request: Any, state: State, error: Exception) -> None:
    status = status_of(error)
    undone = None if state.part is None else state.conclude(request, status)
    if undone is not None:
        await gate.give_back(undone)
    elif state.passed is not None and state.passed.settles:
        await gate.after(state.passed, status, 0)


def _sent(request: Any, response: Any) -> int:
    return 0 if request.method == "HEAD" or response.status_code in BODILESS else len(response.content)


def _when_rendered(gate: WebGate, request: Any, state: State, response: Any) -> Any:
    """A response of a template, or of the REST framework, has no content before Django renders it, in a thread."""
    response.add_post_render_callback(lambda rendered: leave(gate, request, state, rendered))
    return response


def _watch(gate: WebGate, after_task: Callable[..., Any], request: Any, passed: Passed, response: Any) -> None:
    """Settle a stream at its end: until then, what makes it may still say what it has cost."""
    if getattr(response, "file_to_stream", None) is not None and not passed.settles:
        passed.end()  # the server sends the file by itself
        return
    if all(verdict.decision is None for verdict in passed.verdicts):
        return
    counts = request.method != "HEAD" and response.status_code not in BODILESS
    chunks, status = response.streaming_content, response.status_code
    response.streaming_content = (
        _counted_task(after_task, passed, status, counts, chunks)
        if response.is_async
        else _counted(gate, passed, status, counts, chunks)  # Django runs it in a thread
    )


def _counted(gate: WebGate, passed: Passed, status: int, counts: bool, chunks: Iterable[bytes]) -> Any:
    sent = 0
    for chunk in chunks:
        sent += len(chunk)
        yield chunk
    if passed.settles:
        gate.after(passed, status, sent if counts else 0)  # not reached when the client goes away: the charge stays
    passed.end()


async def _counted_task(after: Callable[..., Any], passed: Passed, status: int, counts: bool, chunks: Any) -> Any:
    sent = 0
    async for chunk in chunks:
        sent += len(chunk)
        yield chunk
    if passed.settles:
        await after(passed, status, sent if counts else 0)
    passed.end()


def _told(request: Any, state: State, response: Any) -> Any:
    answer = state.answer
    if answer is None:
        return response
    headers = response.headers
    told = [(name, headers[name]) for name in CACHING if name in headers]
    fields, dropped = changes(answer, response.status_code, told)
    for name in dropped:
        del headers[name]  # if it is there
    if fields:
        _hush_around(request)
        for name, value in fields:
            if len(name) == len(EXPOSE) and name.lower() == EXPOSE and name in headers:
                before = headers[name]
                value = before if value in before else f"{before}, {value}"  # a response may be sent twice
            headers[name] = value
    return response


def _hush_around(request: Any) -> None:
    """A gate around Django does not tell the client what ours tells."""
    environ = getattr(request, "environ", None)
    if environ is None:
        hush((getattr(request, "scope", {}).get("state") or {}).get(AROUND))
    else:
        hush(environ.get(PASSED))


def at_hand(request: Any, limits: Any = (), *, is_task: bool = False) -> Token[Hand]:
    """From here on this is the request that functions of limits are given, until `out_of_hand`."""
    return _hand.set((request, is_task, limits))


out_of_hand = _hand.reset


def limit_at_hand(place: Hashable) -> RouteLimit:
    """The limit at this place of those that the request is asked for."""
    found: RouteLimit = _hand.get()[2][place]
    return found


def of_request(given: Any, option: str) -> Any:
    """A function of the HttpRequest as one of the RequestView. One that looks at the body is that already: what was
    read for it is there. Anything else is returned as it is, and what is in a list likewise."""
    if isinstance(given, list | tuple):
        return [of_request(one, option) for one in given]
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
    """A limit whose functions are given the HttpRequest."""
    found = {name: of_request(one, name) if name in FUNCTIONS else one for name, one in options.items()}
    limits = of_request(limits, "limits") if callable(limits) else limits
    return made_limit(limits, found, ("the HttpRequest", "the refusal"))
