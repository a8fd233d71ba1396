"""Limits that a handler creates for each request. Equal ones are one quota, and one endpoint to the gate.

Their functions are looked up when they are called, in the limit of the request that is being checked: a closure over
one request never decides about another.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from types import CodeType
from typing import Any

from ratebound.fork import renew_in_children
from ratebound.policy import RequestView
from ratebound.web.route_limit import FUNCTIONS, Endpoint, RouteLimit

MAX_ENDPOINTS = 1000  # that are kept compiled: a limit may differ from request to request
VARYING = ("limits", "cost")  # options in which limits of one name may differ
COMPARED = tuple(field.name for field in fields(RouteLimit) if field.init and field.name not in ("charge", "on_breach"))


class LookedUp:
    """A function or value of a limit that is looked up in the limit of the current request."""

    __slots__ = ("_current", "_index", "_option", "reads_body")
    is_looked_up = True

    def __init__(
        self, current: Callable[[], RouteLimit], option: str, index: int | str | None = None, given: Any = None
    ) -> None:
        self._current = current
        self._option = option
        self._index = index
        self.reads_body = bool(getattr(given, "reads_body", False))

    def __call__(self, view: RequestView) -> Any:
        value = getattr(self._current(), self._option)
        found = value if self._index is None else value[self._index]
        return found(view) if callable(found) else found


def look_up_functions(limit: RouteLimit, current: Callable[[], RouteLimit]) -> dict[str, Any]:
    """Return the options of a limit that are functions, or lists with some, each looked up in `current()`."""
    found: dict[str, Any] = {}
    for option in FUNCTIONS:
        value = getattr(limit, option)
        if isinstance(value, list | tuple):
            found[option] = [
                LookedUp(current, option, index, one) if callable(one) else one for index, one in enumerate(value)
            ]
        elif option == "distinct" and isinstance(value, Mapping):
            found[option] = {
                name: LookedUp(current, option, name, one) if callable(one) else one for name, one in value.items()
            }
        elif callable(value):
            found[option] = LookedUp(current, option, None, value)
    return found


class EndpointCache:
    """Endpoints by a key, MAX_ENDPOINTS of them. `forget` is called for each one that is dropped."""

    def __init__(self, forget: Callable[[Endpoint], object]) -> None:
        self._forget = forget
        self._known: dict[Hashable, Endpoint] = {}
        self.get = self._known.get
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Hashable, make: Callable[[], Endpoint]) -> Endpoint:
        """Return the endpoint of a key, which is made if it is new."""
        found = self._known.get(key)
        if found is None:
            with self.lock:
                found = self._known.get(key)
                if found is None:
                    while len(self._known) >= MAX_ENDPOINTS:
                        self.drop(next(iter(self._known)))
                    found = self._known[key] = make()
        return found

    def drop(self, key: Hashable) -> None:
        """Forget the endpoint of a key."""
        self._forget(self._known.pop(key))

    def of_name(self, name: str) -> dict[Hashable, Endpoint]:
        """Return all endpoints of this name, by key."""
        return {key: endpoint for key, endpoint in self._known.items() if endpoint.name == name}


class PartEndpoints:
    """Endpoints for limits that stand inside of a view, by name. Two limits of one name may differ in their limits or
    their cost, for example by the plan of a client: they are one endpoint, and both options are looked up.

    `current` returns the limit that is being checked.
    """

    def __init__(self, current: Callable[[], RouteLimit], forget: Callable[[Endpoint], object]) -> None:
        self._current = current
        self._forget = forget
        self._cache = EndpointCache(self._drop)
        self._varying: dict[str, set[str]] = {}

    def of(self, limit: RouteLimit, name: str) -> Endpoint:
        """Return the endpoint of a limit under this name."""
        found = self._cache.get(self._key(limit, name))
        if found is None:
            with self._cache.lock:
                self._note_differences(limit, name)
                found = self._cache.find(self._key(limit, name), lambda: self._make(limit, name))
        return found

    def _drop(self, endpoint: Endpoint) -> None:
        if not self._cache.of_name(endpoint.name):
            self._varying.pop(endpoint.name, None)
        self._forget(endpoint)

    def _key(self, limit: RouteLimit, name: str) -> tuple[Any, ...]:
        varying = self._varying.get(name, ())
        charge = limit.charge if callable(limit.charge) else repr(limit.charge)
        return (name, charge, *[None if one in varying else _text(getattr(limit, one)) for one in COMPARED])

    def _note_differences(self, limit: RouteLimit, name: str) -> None:
        same = self._cache.of_name(name)
        found = {option for option in VARYING for one in same.values() if _differ(limit, one.limits[0], option)}
        if found:
            found |= self._varying.get(name, set())
            for key in same:
                self._cache.drop(key)
            self._varying[name] = found

    def _make(self, limit: RouteLimit, name: str) -> Endpoint:
        varying: dict[str, Any] = {one: LookedUp(self._current, one) for one in self._varying.get(name, ())}
        if "limits" in varying and not callable(limit.limits):
            varying["otherwise"] = limit.limits
        looked_up = varying | look_up_functions(limit, self._current)
        return Endpoint(name, [replace(limit, name=name, on_breach=None, **looked_up)])


def _text(value: Any) -> Any:
    """Return a value as one that can be compared. All functions are alike."""
    if isinstance(value, list | tuple):
        return tuple(map(_text, value))
    if isinstance(value, Mapping):
        return tuple((str(name), _text(one)) for name, one in value.items())
    return callable if callable(value) else repr(value)


def _differ(one: RouteLimit, other: RouteLimit, option: str) -> bool:
    given = getattr(one, option), getattr(other, option)
    return not any(map(callable, given)) and given[0] != given[1]


_contents: weakref.WeakKeyDictionary[RouteLimit, Hashable] = weakref.WeakKeyDictionary()
_codes: dict[int, CodeType] = {}  # kept, so that no two have one id


def content_of(limit: RouteLimit) -> Hashable:
    """Return the content of a limit: the same for all that one line of code creates."""
    found = _contents.get(limit)
    if found is None:
        options = {field.name: getattr(limit, field.name) for field in fields(limit) if field.init}
        found = _contents[limit] = tuple(_plain(value, name in FUNCTIONS) for name, value in options.items())
    return found


def _plain(value: Any, is_looked_up: bool) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_plain(one, is_looked_up) for one in value)
    if isinstance(value, Mapping):
        return tuple((str(name), _plain(one, is_looked_up)) for name, one in value.items())
    if not callable(value):
        return repr(value)
    function = getattr(value, "__wrapped__", value)
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__ if is_looked_up else function
    if not is_looked_up and (function.__closure__ or function.__defaults__):
        return function  # type: ignore[no-any-return]
    _codes[id(code)] = code  # a code object itself would be compared as a whole
    return id(code)


def looked_up_endpoint(name: str, limit: RouteLimit, current: Callable[[], RouteLimit]) -> Endpoint:
    """Return the endpoint of one limit, with functions that are looked up in `current()`."""
    endpoint = Endpoint(name, [limit])
    endpoint.rules = (replace(limit, **look_up_functions(limit, current)).rule(name),)
    return endpoint
