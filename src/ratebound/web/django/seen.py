"""What is known of views: the limits that each declares, under names of their own, and their routes as templates."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ratebound.web.declared import Endpoint, RouteLimit, declared, join
from ratebound.web.django.anew import Kept, content, endpoint_anew
from ratebound.web.django.names import Places, class_of, numbered, places, urlconf_name, view_name

Mark = RouteLimit | None  # None: exempt

NOWHERE: dict[RouteLimit, int] = {}
METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"}
CONVERTER = re.compile(r"<(?:(?P<converter>\w+):)?(?P<name>\w+)>")
GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")


class Seen(NamedTuple):
    """What a view declares for one method. `limits` has each as often as it stands there."""

    limits: tuple[RouteLimit, ...]
    endpoint: Endpoint | None
    reads_body: bool


class Views:
    """What each view declares; found out once. `root` and `urlconf` say which URLconf is the root one and
    which is in force, `views` what is in one, in order."""

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
        self.anew = Kept(forget)
        self._seen: dict[tuple[Callable[..., Any], str, Any], Seen] = {}
        self._endpoints: dict[tuple[str, tuple[Mark, ...], tuple[Mark, ...], Any], Endpoint] = {}
        self._joined: dict[tuple[Endpoint | None, ...], Endpoint | None] = {}
        self._routes: dict[str, str] = {}
        self._places: dict[Any, Places] = {}  # by URLconf
        self._added: dict[Any, Places] = {}  # by URLconf: those that it adds to what stands in the code

    def of(self, view: Callable[..., Any], method: str, urlconf: Any = None) -> Seen:
        """Return what a view of this URLconf declares; None is the root one."""
        seen = self._seen.get((view, method, urlconf))
        if seen is None:
            seen = self._look(view, method, self._root() if urlconf is None else urlconf)
            if method in METHODS:  # what a client invents is not kept
                self._seen[view, method, urlconf] = seen
        return seen

    def endpoint(self, full: str, marks: Sequence[Mark], asked: Sequence[Mark] = ()) -> Endpoint | None:
        """What a view of this name declares, but for what was asked already. Where it is not of the URLconf, it may be
        decorated anew for each request: those that say the same are one, and `marks` have to be at hand."""
        todo = tuple(mark for mark in marks if not is_among(mark, asked)) if asked else tuple(marks)
        if not todo:
            return None
        urlconf = self._urlconf()
        found = self._endpoints.get((full, tuple(marks), todo, urlconf))
        if found is not None:
            return found
        placed = self._placed(full, urlconf)
        if all(mark in placed for mark in todo):
            return self._stable(full, todo, marks, urlconf)
        which = tuple(place for place, mark in enumerate(marks) if mark in todo)
        says = tuple(None if mark is None else content(mark) for mark in marks)
        return self.anew.get((full, says, which), lambda: self._made(full, marks, which, urlconf))

    def _stable(self, full: str, todo: tuple[Mark, ...], marks: Sequence[Mark], urlconf: Any) -> Endpoint | None:
        """That of limits that stand in the code once."""
        if not todo:
            return None
        known = full, tuple(marks), todo, urlconf
        found = self._endpoints.get(known)
        if found is None:
            names = self._names(full, marks, urlconf)
            found = _joined([Endpoint(names[one], [one]) for one in todo if one is not None], full, todo)
            found = self._endpoints.setdefault(known, found)
        return found

    def _made(self, full: str, marks: Sequence[Mark], which: Sequence[int], urlconf: Any) -> Endpoint:
        names, todo = self._names(full, marks, urlconf), [(marks[place], place) for place in which]
        parts = [endpoint_anew(names[one], one, place) for one, place in todo if one is not None]
        return _joined(parts, full, [one for one, _ in todo])

    def joined(self, *endpoints: Endpoint | None) -> Endpoint | None:
        """Several as one, made once."""
        if endpoints not in self._joined:
            self._joined.setdefault(endpoints, join(*endpoints))
        return self._joined[endpoints]

    def unjoined(self, endpoint: Endpoint) -> list[Endpoint]:
        """Let go of all that were made of this one."""
        keys = [key for key in list(self._joined) if endpoint in key]
        found = [self._joined.pop(key, None) for key in keys]
        return [one for one in found if one is not None]

    def _placed(self, full: str, urlconf: Any) -> dict[RouteLimit, int]:
        if urlconf not in self._places:
            self._places[urlconf] = places(self._views(urlconf))
        return self._places[urlconf].get(full, NOWHERE)

    def _names(self, full: str, marks: Sequence[Mark], urlconf: Any) -> dict[RouteLimit, str]:
        """By place in the root URLconf. Those that another URLconf adds have its name, and last come those that no
        URLconf has, as of a function that a view calls. So which URLconf is asked first does not matter."""
        found = dict(self._placed(full, self._root()))
        added = self._added_by(full, urlconf)
        own = [limit for limit in added if limit not in found]
        for mark in marks:
            if mark is not None and mark not in own:
                found.setdefault(mark, len(found))
        names = {limit: numbered(full, place) for limit, place in found.items()}
        other = f"{full}:{urlconf_name(urlconf)}"
        return names | {limit: numbered(other, added[limit]) for limit in own}

    def _added_by(self, full: str, urlconf: Any) -> dict[RouteLimit, int]:
        if urlconf_name(urlconf) == urlconf_name(self._root()):
            return NOWHERE
        if urlconf not in self._added:
            self._added[urlconf] = places(self._views(urlconf), in_code=False)
        return self._added[urlconf].get(full, NOWHERE)

    def template(self, route: str) -> str:
        """`users/<int:pk>/` and `^users/(?P<pk>[0-9]+)/$` as `/users/{pk}/`."""
        template = self._routes.get(route)
        if template is None:
            text = GROUP.sub(r"{\1}", route).replace("^", "").replace("$", "").replace("\\Z", "").replace("\\", "")
            text = CONVERTER.sub(lambda m: f"{{{m['name']}{'*' if m['converter'] == 'path' else ''}}}", text)
            template = self._routes[route] = "/" + text.lstrip("/")
        return template

    def _look(self, view: Any, method: str, urlconf: Any) -> Seen:
        """At the view, and at the method of its class that will answer."""
        full, marks = view_name(view), tuple(dict.fromkeys(declared(view)))
        function = None if class_of(view) is None else method_of(class_of(view), method, getattr(view, "actions", None))
        more = () if function is None else tuple(one for one in dict.fromkeys(declared(function)) if one not in marks)
        if not any((*marks, *more)) and None in declared(class_of(view)):
            marks = (None,)  # exempt as a class: not where a limit is said
        own = self._stable(f"{full}.{getattr(function, '__name__', method.lower())}", more, more, urlconf)
        endpoint = self.joined(self._stable(full, marks, marks, urlconf), own)
        stand = (*declared(view), *(() if function is None else declared(function)))
        limits = tuple(mark for mark in stand if mark is not None)
        return Seen(limits, endpoint, looks_at_body(endpoint))


def _joined(parts: list[Endpoint], full: str, marks: Sequence[Mark]) -> Endpoint:
    if None in marks:
        parts.append(Endpoint(numbered(full, 0), (), exempt=True))
    found = join(*parts)
    assert found is not None
    return found


def is_among(mark: Mark, others: Iterable[Mark]) -> bool:
    """Whether one of these is the same quota."""
    return any(_is_one(mark, one) for one in others)


def _is_one(mark: Mark, other: Mark) -> bool:
    """Whether two are one quota: the same limit, or another of the same name, as on a class and on its method."""
    if mark is None or other is None or mark is other:
        return mark is other
    return bool(mark.name) and mark.name == other.name and bool(mark.limits == other.limits)


def looks_at_body(endpoint: Endpoint | None) -> bool:
    """Whether a function of its limits says that it looks at the body."""
    return any(getattr(one, "reads_body", False) for one in _parts(endpoint))


def _parts(endpoint: Endpoint | None) -> Iterator[Any]:
    """What may be a function that is asked before the view."""
    for limit in () if endpoint is None else endpoint.limits:
        keys = limit.key if isinstance(limit.key, list | tuple) else (limit.key,)
        yield from (limit.limits, limit.cost, limit.exempt_when, *keys)


def method_of(of_class: Any, method: str, actions: Any = None) -> Any:
    """The method of a class that will answer; None if there is none."""
    name = method.lower()
    if name == "head" and not hasattr(of_class, "head"):
        name = "get"
    if name not in getattr(of_class, "http_method_names", ()):  # what a client sends must not name another attribute
        return None
    return getattr(of_class, (actions or {}).get(name, name), None)
