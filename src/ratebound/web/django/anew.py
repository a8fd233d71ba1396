"""Limits that are made anew for each request: those that say the same are one quota, with the functions of the one that
is asked."""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import fields, replace
from types import CodeType
from typing import Any

from ratebound.policy import RequestView
from ratebound.web.declared import Endpoint, RouteLimit
from ratebound.web.django.request import limit_at_hand

MOST = 1000  # that are kept

LATE = ("limits", "key", "cost", "exempt_when")  # whose functions are looked up when they are called

_contents: weakref.WeakKeyDictionary[RouteLimit, Hashable] = weakref.WeakKeyDictionary()
_codes: dict[int, CodeType] = {}  # kept, so that no two have one id


def content(limit: RouteLimit) -> Hashable:
    """What a limit says: one that is made anew for each request says the same."""
    found = _contents.get(limit)
    if found is None:
        said = {field.name: getattr(limit, field.name) for field in fields(limit) if field.init}
        found = _contents[limit] = tuple(
            _plain(value, is_late=name in LATE, is_kept=name == "charge") for name, value in said.items()
        )
    return found


def _plain(value: Any, *, is_late: bool, is_kept: bool) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_plain(one, is_late=is_late, is_kept=is_kept) for one in value)
    if not callable(value):
        return repr(value)
    function = getattr(value, "__wrapped__", value)
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__ if is_late else function
    if not is_late and (function.__closure__ or function.__defaults__):
        return function  # type: ignore[no-any-return]
    _codes[id(code)] = code  # of which a comparison would compare all
    return id(code)


def endpoint_anew(name: str, limit: RouteLimit, place: Hashable) -> Endpoint:
    """Of one limit. Its functions are those of the limit that is at hand at this place."""
    endpoint = Endpoint(name, [limit])
    late = replace(limit, **{field: _late(getattr(limit, field), place, field) for field in LATE})
    endpoint.rules = (late.rule(name),)
    return endpoint


def _late(value: Any, place: Hashable, field: str) -> Any:
    if isinstance(value, list | tuple):
        return [_called(one, place, field, index) if callable(one) else one for index, one in enumerate(value)]
    return _called(value, place, field, None) if callable(value) else value


def _called(function: Callable[..., Any], place: Hashable, field: str, index: int | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(view: RequestView) -> Any:
        now = getattr(limit_at_hand(place), field)
        return (now if index is None else now[index])(view)

    return called


class Kept:
    """Endpoints by what they say, MOST of them; `forget` is told of each that goes."""

    def __init__(self, forget: Callable[[Endpoint], None]) -> None:
        self._forget = forget
        self._found: dict[Hashable, Endpoint] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable, make: Callable[[], Endpoint]) -> Endpoint:
        found = self._found.get(key)
        if found is None:
            with self._lock:
                found = self._found.get(key)
                if found is None:
                    while len(self._found) >= MOST:
                        self._forget(self._found.pop(next(iter(self._found))))
                    found = self._found[key] = make()
        return found
