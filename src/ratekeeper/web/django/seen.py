"""What is known of views: the limits that each declares, under names of their own, and their routes as templates."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ratekeeper.web.declared import Endpoint, RouteLimit, declared, join
from ratekeeper.web.django.names import Places, class_of, numbered, places, view_name

Mark = RouteLimit | None  # None: exempt

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"}
CONVERTER = re.compile(r"<(?:(?P<converter>\w+):)?(?P<name>\w+)>")
GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")


class Seen(NamedTuple):
    """What a view declares for one method."""

    limits: tuple[RouteLimit, ...]
    endpoint: Endpoint | None
    reads_body: bool


class Views:
    """What each view declares; found out once. `urlconf` says which is in force, `views` what is in it, in order."""

    def __init__(self, urlconf: Callable[[], Any], views: Callable[[Any], Iterable[Callable[..., Any]]]) -> None:
        self._urlconf = urlconf
        self._views = views
        self._seen: dict[tuple[Callable[..., Any], str], Seen] = {}
        self._endpoints: dict[tuple[str, tuple[Mark, ...], tuple[Mark, ...]], Endpoint] = {}
        self._joined: dict[tuple[Endpoint | None, ...], Endpoint | None] = {}
        self._routes: dict[str, str] = {}
        self._places: dict[Any, Places] = {}  # by URLconf

    def of(self, view: Callable[..., Any], method: str) -> Seen:
        seen = self._seen.get((view, method))
        if seen is None:
            seen = self._look(view, method)
            if method in METHODS:  # what a client invents is not kept
                self._seen[view, method] = seen
        return seen

    def endpoint(self, full: str, marks: Sequence[Mark], asked: Sequence[Mark] = ()) -> Endpoint | None:
        """What a view of this name declares, but for what was asked already; made once, also where Django decorates
        anew for each request."""
        todo = tuple(mark for mark in marks if not any(_is_one(mark, one) for one in asked))
        if not todo:
            return None
        known = full, tuple(marks), todo
        found = self._endpoints.get(known)
        if found is None:
            names = self._names(full, marks)
            parts = [Endpoint(names[one], [one]) for one in todo if one is not None]
            if None in todo:
                parts.append(Endpoint(numbered(full, 0), (), exempt=True))
            found = join(*parts)
            assert found is not None
            found = self._endpoints.setdefault(known, found)
        return found

    def joined(self, *endpoints: Endpoint | None) -> Endpoint | None:
        """Several as one, made once."""
        if endpoints not in self._joined:
            self._joined.setdefault(endpoints, join(*endpoints))
        return self._joined[endpoints]

    def _names(self, full: str, marks: Sequence[Mark]) -> dict[RouteLimit, str]:
        """By place in the URLconf; behind them come those that it does not have, as of a function that a view calls."""
        urlconf = self._urlconf()
        if urlconf not in self._places:
            self._places[urlconf] = places(self._views(urlconf))
        found = dict(self._places[urlconf].get(full, {}))
        for mark in marks:
            if mark is not None:
                found.setdefault(mark, len(found))
        return {limit: numbered(full, place) for limit, place in found.items()}

    def template(self, route: str) -> str:
        """`users/<int:pk>/` and `^users/(?P<pk>[0-9]+)/$` as `/users/{pk}/`."""
        template = self._routes.get(route)
        if template is None:
            text = GROUP.sub(r"{\1}", route).replace("^", "").replace("$", "").replace("\\Z", "").replace("\\", "")
            text = CONVERTER.sub(lambda m: f"{{{m['name']}{'*' if m['converter'] == 'path' else ''}}}", text)
            template = self._routes[route] = "/" + text.lstrip("/")
        return template

    def _look(self, view: Any, method: str) -> Seen:
        """At the view, and at the method of its class that will answer."""
        full, marks = view_name(view), tuple(dict.fromkeys(declared(view)))
        function = _method(view, method)
        more = () if function is None else tuple(one for one in dict.fromkeys(declared(function)) if one not in marks)
        if not any((*marks, *more)) and None in declared(class_of(view)):
            marks = (None,)  # exempt as a class: not where a limit is said
        own = self.endpoint(f"{full}.{getattr(function, '__name__', method.lower())}", more)
        endpoint = self.joined(self.endpoint(full, marks), own)
        limits = tuple(mark for mark in (*marks, *more) if mark is not None)
        return Seen(limits, endpoint, looks_at_body(endpoint))


def _is_one(mark: Mark, other: Mark) -> bool:
    """Whether two are one quota: the same limit, or another of the same name, as on a class and on its method."""
    if mark is None or other is None or mark is other:
        return mark is other
    return bool(mark.name) and mark.name == other.name and bool(mark.limits == other.limits)


def looks_at_body(endpoint: Endpoint | None) -> bool:
    """Whether a function of its limits says that it looks at the body."""
    for limit in () if endpoint is None else endpoint.limits:
        keys = limit.key if isinstance(limit.key, list | tuple) else (limit.key,)
        if any(getattr(one, "reads_body", False) for one in (limit.limits, limit.cost, limit.exempt_when, *keys)):
            return True
    return False


def _method(view: Any, method: str) -> Any:
    of_class = class_of(view)
    if of_class is None:
        return None
    name, actions = method.lower(), getattr(view, "actions", None) or {}
    if name == "head" and not hasattr(of_class, "head"):
        name = "get"
    if name not in of_class.http_method_names:  # what a client sends must not name another attribute
        return None
    return getattr(of_class, actions.get(name, name), None)
