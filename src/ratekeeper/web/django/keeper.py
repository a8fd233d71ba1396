"""What the settings say, and what is known of views: made once for a process."""

import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.signals import setting_changed
from django.http import HttpResponse, RawPostDataException, UnreadablePostError
from django.urls import get_resolver, get_urlconf
from django.utils.module_loading import import_string

from ratekeeper.policy import Policy, PolicyFile, read_policy
from ratekeeper.policy.cost import MAX_BODY
from ratekeeper.storage.urls import open_storage
from ratekeeper.web.answer import Refused
from ratekeeper.web.declared import Endpoint, RouteLimit, declared
from ratekeeper.web.django.request import STATE
from ratekeeper.web.gate import AsyncWebGate, WebGate, as_policy
from ratekeeper.web.views import Facts, body_fields, dotted_name

OF_GATE = ("storage", "max_delay", "charge", "deadline", "workers", "listeners")
CONVERTER = re.compile(r"<(?:(?P<converter>\w+):)?(?P<name>\w+)>")
GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")


class Keeper:
    """What the settings say: the gates for threads and for tasks, over one policy and, in memory, over one storage.

    RATEKEEPER is limits as text, the path of a policy file, or a dict: `policy` (one of these, a Policy, or a dict as
    in a file), `user` (a function of the request: who is logged in), and settings of WebGate and Policy.
    """

    def __init__(self, given: Any) -> None:
        options = dict(given) if isinstance(given, Mapping) else {"policy": given}
        policy, self._user = options.pop("policy", None), _imported(options.pop("user", None))
        of_gate = {name: options.pop(name) for name in OF_GATE if name in options}
        sleep = {"sleep": options.pop("sleep")} if "sleep" in options else {}
        if isinstance(policy, Mapping):
            policy = read_policy(json.dumps(policy), format="json", file="RATEKEEPER")
        found: Policy | PolicyFile = as_policy(policy, options)
        url = of_gate.get("storage") or (found if isinstance(found, Policy) else found.policy).storage
        if isinstance(url, str) and url.startswith("memory"):
            of_gate["storage"] = open_storage(url)  # one for both gates
        of_tasks = bool(sleep) and inspect.iscoroutinefunction(sleep["sleep"])
        self.gate = WebGate(found, **of_gate, **({} if of_tasks else sleep))
        self._found, self._of_gate = found, {**of_gate, **(sleep if of_tasks else {})}
        self._tasks: AsyncWebGate | None = None
        self._endpoints: dict[tuple[str, tuple[RouteLimit | None, ...]], Endpoint] = {}
        self._routes: dict[str, str] = {}
        self._facts = Facts(self.gate.policy, functions=False)

    @property
    def tasks(self) -> AsyncWebGate:
        if self._tasks is None:
            self._tasks = AsyncWebGate(self._found, **self._of_gate)
        return self._tasks

    @property
    def facts(self) -> Facts:
        policy = self.gate.policy
        if policy is not self._facts.policy:
            self._facts = Facts(policy, functions=False)
        return self._facts

    def begin(self, request: Any, callback: Callable[..., Any] | None) -> Endpoint | None:
        """Make ready for the late stage: the route, and what the view declares."""
        state = getattr(request, STATE)
        state.late = True
        found = request.resolver_match
        if found is not None and found.route is not None and self.facts.has_paths:
            state.view.route = request.META.get("SCRIPT_NAME", "").rstrip("/") + self._template(found.route)
        if callback is None:
            return None
        marks = self._marks(callback, request.method)
        state.asked = tuple(mark for mark in marks if mark is not None)
        view: Any = getattr(callback, "view_class", None) or getattr(callback, "cls", callback)
        return self.endpoint(dotted_name(view), marks) if marks else None

    def endpoint(self, name: str, marks: tuple[RouteLimit | None, ...]) -> Endpoint:
        """What was declared, under a name; made once, also where Django decorates anew for each request."""
        known = (name, marks)
        if known not in self._endpoints:
            limits = [mark for mark in marks if mark is not None]
            self._endpoints[known] = Endpoint(name, limits, exempt=None in marks)
        return self._endpoints[known]

    def user(self, request: Any) -> Any:
        """Who is logged in; asked only where somebody wants to know, for it may take a look into the database."""
        if self._user is not None:
            return self._user(request)
        user = getattr(request, "user", None)
        return user.pk if user is not None and user.is_authenticated else None

    async def task_user(self, request: Any) -> Any:
        if self._user is not None:
            answer = self._user(request)
            return await answer if inspect.isawaitable(answer) else answer
        find = getattr(request, "auser", None)
        user = None if find is None else await find()
        return user.pk if user is not None and user.is_authenticated else None

    def body(self, request: Any) -> bytes | None:
        """The body, if it can still be read: what is too large, or was read by another, is for the view to refuse."""
        try:
            return bytes(request.body[: MAX_BODY + 1])
        except (RawPostDataException, RequestDataTooBig, UnreadablePostError):
            return None

    def refusal(self, request: Any, refused: Refused) -> Any:
        """The response, or something to await: that of `on_breach`, of `handler429` in the root URLconf, or ours."""
        if refused.breach is not None:
            response = refused.breach(request, refused)
            if response is not None:
                return response
        if refused.status == 429:
            handler = getattr(get_resolver(get_urlconf()).urlconf_module, "handler429", None)
            if handler is not None:
                return _imported(handler)(request, refused)
        body = b"" if request.method == "HEAD" else refused.body
        response = HttpResponse(body, status=refused.status, headers=dict(body_fields(refused)))
        response.headers["Content-Length"] = str(len(refused.body))
        return response

    def _marks(self, callback: Any, method: str) -> tuple[RouteLimit | None, ...]:
        """Of the view, and of the method of its class that will answer."""
        of_class = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
        if of_class is None:
            return declared(callback)
        name, actions = method.lower(), getattr(callback, "actions", None) or {}
        if name == "head" and not hasattr(of_class, "head"):
            name = "get"
        function = None
        if name in of_class.http_method_names:  # what a client sends must not name another attribute
            function = getattr(of_class, actions.get(name, name), None)
        marks = (*declared(callback), *(() if function is None else declared(function)))
        return tuple(dict.fromkeys(marks))

    def _template(self, route: str) -> str:
        """`users/<int:pk>/` and `^users/(?P<pk>[0-9]+)/$` as `/users/{pk}/`."""
        template = self._routes.get(route)
        if template is None:
            text = GROUP.sub(r"{\1}", route).replace("^", "").replace("$", "").replace("\\Z", "").replace("\\", "")
            text = CONVERTER.sub(lambda m: f"{{{m['name']}{'*' if m['converter'] == 'path' else ''}}}", text)
            template = self._routes[route] = "/" + text.lstrip("/")
        return template


_lock = threading.Lock()
_keepers: list[Keeper] = []


def keeper() -> Keeper:
    """That of the settings; made when it is first asked for."""
    if _keepers:
        return _keepers[0]
    with _lock:
        if not _keepers:
            _keepers.append(Keeper(getattr(settings, "RATEKEEPER", None) or {}))
        return _keepers[0]


def close() -> None:
    """Close the storage. The next request opens it again."""
    with _lock:
        for one in _keepers:
            one.gate.close()
        _keepers.clear()


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "RATEKEEPER":
        close()


setting_changed.connect(_changed, dispatch_uid="ratekeeper")


def _imported(found: Any) -> Any:
    return import_string(found) if isinstance(found, str) else found
