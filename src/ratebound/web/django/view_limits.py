"""Limits that Django views declare, under names of their own, and routes of Django as templates."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ratebound.web.django.request import limit_at_hand
from ratebound.web.request_limits import EndpointCache, content_of, looked_up_endpoint
from ratebound.web.route_limit import Endpoint, RouteLimit, declared, join
from ratebound.web.rule_names import (
    LimitNumbers,
    class_of_view,
    number_limits,
    numbered,
    short_name,
    urlconf_name,
    view_name,
)

Mark = RouteLimit | None  # None: exempt

NOWHERE: dict[RouteLimit, int] = {}
METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"}
CONVERTER = re.compile(r"<(?:(?P<converter>\w+):)?(?P<name>\w+)>")
GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")


class ViewDeclaration(NamedTuple):
    """The limits that a view declares for one method, as often as each stands there, and their endpoint."""

    limits: tuple[RouteLimit, ...]
    endpoint: Endpoint | None


class ViewLimits:
    """The limits of each view, found once. `root` and `urlconf` return the root URLconf and the one in force, `views`
    returns the views of one, in order.

    Names do not depend on the URLconf that a process meets first: see `_names`.
    """

    def __init__(
        self,
        root: Callable[[], Any],
        urlconf: Callable[[], Any],
        views: Callable[[Any], Iterable[Callable[..., Any]]],
        forget: Callable[[Endpoint], None],
    ) -> None:
        self._root = root
        self._urlconf = urlconf
        self._views = views
        self.per_request = EndpointCache(forget)
        self._declarations: dict[tuple[Callable[..., Any], str, Any], ViewDeclaration] = {}
        self._endpoints: dict[tuple[str, tuple[Mark, ...], tuple[Mark, ...], Any], Endpoint] = {}
        self._joined: dict[tuple[Endpoint | None, ...], Endpoint | None] = {}
        self._routes: dict[str, str] = {}
        self._numbers: dict[Any, LimitNumbers] = {}  # by URLconf
        self._added: dict[Any, LimitNumbers] = {}  # by URLconf: limits that it adds to those in the code

    def of(self, view: Callable[..., Any], method: str, urlconf: Any = None) -> ViewDeclaration:
        """Return the limits of a view in this URLconf; None is the root one."""
        found = self._declarations.get((view, method, urlconf))
        if found is None:
            found = self._read(view, method, self._root() if urlconf is None else urlconf)
            if method in METHODS:  # what a client invents is not kept
                self._declarations[view, method, urlconf] = found
        return found

    def endpoint(self, full: str, marks: Sequence[Mark], checked: Sequence[Mark] = ()) -> Endpoint | None:
        """Return the endpoint of a view of this name, without limits that were checked already. A view that is not in
        the URLconf may be decorated for each request: equal ones are one, and `marks` have to be at hand."""
        todo = tuple(mark for mark in marks if not is_among(mark, checked)) if checked else tuple(marks)
        if not todo:
            return None
        urlconf = self._urlconf()
        found = self._endpoints.get((full, tuple(marks), todo, urlconf))
        if found is not None:
            return found
        known = self._numbered(full, urlconf)
        if all(mark in known for mark in todo):
            return self._stable(full, todo, marks, urlconf)
        which = tuple(index for index, mark in enumerate(marks) if mark in todo)
        contents = tuple(None if mark is None else content_of(mark) for mark in marks)
        return self.per_request.find((full, contents, which), lambda: self._make(full, marks, which, urlconf))

    def _stable(self, full: str, todo: tuple[Mark, ...], marks: Sequence[Mark], urlconf: Any) -> Endpoint | None:
        """Return the endpoint of limits that stand in the code once."""
        if not todo:
            return None
        known = full, tuple(marks), todo, urlconf
        found = self._endpoints.get(known)
        if found is None:
            names = self._names(full, marks, urlconf)
            found = _joined([Endpoint(names[one], [one]) for one in todo if one is not None], full, todo)
            found = self._endpoints.setdefault(known, found)
        return found

    def _make(self, full: str, marks: Sequence[Mark], which: Sequence[int], urlconf: Any) -> Endpoint:
        names, todo = self._names(full, marks, urlconf), [(marks[index], index) for index in which]
        parts = [
            looked_up_endpoint(names[mark], mark, limit_at_hand(index)) for mark, index in todo if mark is not None
        ]
        return _joined(parts, full, [mark for mark, _ in todo])

    def joined(self, *endpoints: Endpoint | None) -> Endpoint | None:
        """Return several endpoints as one, made once."""
        if endpoints not in self._joined:
            self._joined.setdefault(endpoints, join(*endpoints))
        return self._joined[endpoints]

    def unjoined(self, endpoint: Endpoint) -> list[Endpoint]:
        """Drop and return all endpoints that this one was joined to."""
        keys = [key for key in list(self._joined) if endpoint in key]
        found = [self._joined.pop(key, None) for key in keys]
        return [one for one in found if one is not None]

    def _numbered(self, full: str, urlconf: Any) -> dict[RouteLimit, int]:
        if urlconf not in self._numbers:
            self._numbers[urlconf] = number_limits(self._views(urlconf))
        return self._numbers[urlconf].get(full, NOWHERE)

    def _names(self, full: str, marks: Sequence[Mark], urlconf: Any) -> dict[RouteLimit, str]:
        """Number limits by the order of the root URLconf. Those that another URLconf adds have its name in their own,
        and limits that no URLconf has, as of a function that a view calls, come last."""
        found = dict(self._numbered(full, self._root()))
        added = self._added_by(full, urlconf)
        own = [limit for limit in added if limit not in found]
        for mark in marks:
            if mark is not None and mark not in own:
                found.setdefault(mark, len(found))
        name, other = short_name(full), short_name(f"{full}:{urlconf_name(urlconf)}")
        names = {limit: numbered(name, index) for limit, index in found.items()}
        return names | {limit: numbered(other, added[limit]) for limit in own}

    def _added_by(self, full: str, urlconf: Any) -> dict[RouteLimit, int]:
        if urlconf_name(urlconf) == urlconf_name(self._root()):
            return NOWHERE
        if urlconf not in self._added:
            self._added[urlconf] = number_limits(self._views(urlconf), in_code=False)
        return self._added[urlconf].get(full, NOWHERE)

    def template(self, route: str) -> str:
        """Return `users/<int:pk>/` and `^users/(?P<pk>[0-9]+)/$` as `/users/{pk}/`."""
        template = self._routes.get(route)
        if template is None:
            text = GROUP.sub(r"{\1}", route).replace("^", "").replace("$", "").replace("\\Z", "").replace("\\", "")
            text = CONVERTER.sub(lambda m: f"{{{m['name']}{'*' if m['converter'] == 'path' else ''}}}", text)
            template = self._routes[route] = "/" + text.lstrip("/")
        return template

    def _read(self, view: Any, method: str, urlconf: Any) -> ViewDeclaration:
        """Read the limits of a view, and of the method of its class that will answer."""
        of_class = class_of_view(view)
        full, marks = view_name(view), tuple(dict.fromkeys(declared(view)))
        function = None if of_class is None else method_of(of_class, method, getattr(view, "actions", None))
        within = () if function is None else declared(function)
        more = tuple(one for one in dict.fromkeys(within) if one not in marks)
        if not any((*marks, *more)) and None in declared(of_class):
            marks = (None,)  # exempt as a class: not where a limit is declared
        own = self._stable(f"{full}.{getattr(function, '__name__', method.lower())}", more, more, urlconf)
        endpoint = self.joined(self._stable(full, marks, marks, urlconf), own)
        return ViewDeclaration(tuple(mark for mark in (*declared(view), *within) if mark is not None), endpoint)


def _joined(parts: list[Endpoint], full: str, marks: Sequence[Mark]) -> Endpoint:
    if None in marks:
        parts.append(Endpoint(short_name(full), (), exempt=True))
    found = join(*parts)
    assert found is not None
    return found


def is_among(mark: Mark, others: Iterable[Mark]) -> bool:
    """Return True if one of these is the same quota, as on a class and on its method."""
    return any(mark is one if mark is None or one is None else mark.shares_quota(one) for one in others)


def method_of(of_class: Any, method: str, actions: Any = None) -> Any:
    """Return the method of a class that will answer; None if there is none."""
    name = method.lower()
    if name == "head" and not hasattr(of_class, "head"):
        name = "get"
    if name not in getattr(of_class, "http_method_names", ()):  # what a client sends must not name another attribute
        return None
    return getattr(of_class, (actions or {}).get(name, name), None)
