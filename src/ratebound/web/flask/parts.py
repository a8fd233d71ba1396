"""Limits in the midst of a view, which it may make anew for each request: what each of them is to the gate.

The same text is the same part, and its functions are those of the limit that is being asked for. Two of one name that
differ in their limits or their cost, as by the plan of a client, are one part, and these are found likewise.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from threading import Lock
from typing import Any

from ratebound.decision import Decision
from ratebound.policy import RequestView, Verdict
from ratebound.web.answer import Passed
from ratebound.web.declared import FUNCTIONS, Endpoint, RouteLimit

MOST = 256  # parts that are kept ready: a message may be another one for each request
VARYING = ("limits", "cost")
OPTIONS = tuple(field.name for field in fields(RouteLimit) if field.init and field.name not in ("charge", "on_breach"))


class Part:
    """What was decided for a block of a view, or for a function that it calls."""

    __slots__ = ("_name", "_passed", "verdict")

    def __init__(self, verdict: Verdict | None, passed: Passed | None, name: str) -> None:
        self.verdict = verdict  # None for whom nothing is counted
        self._passed = passed
        self._name = name

    @property
    def decision(self) -> Decision | None:
        """What the limits of this part said; None if none was asked."""
        return None if self.verdict is None else self.verdict.decision

    def charge(self, cost: int) -> None:
        """What this part has cost, all in all: settled when the response is complete, and of no other limit."""
        if self._passed is not None and self.verdict is not None and self.verdict.asked:
            self._passed.charge(cost, self._name)


class Parts:
    """Those of one application. `asking` finds the limit whose functions are called; `forget` is told of each endpoint
    that is no longer kept."""

    def __init__(self, asking: Callable[[], RouteLimit], forget: Callable[[Endpoint], object]) -> None:
        self._asking = asking
        self._forget = forget
        self._known: dict[tuple[Any, ...], tuple[Endpoint, bool]] = {}
        self._varying: dict[str, set[str]] = {}
        self._late: dict[tuple[str, int | None], _Late] = {}
        self._lock = Lock()

    def of(self, limit: RouteLimit, name: str) -> tuple[Endpoint, bool]:
        """What a part is to the gate, and whether it looks at the body."""
        known = self._known.get(self._key(limit, name))
        if known is None:
            with self._lock:
                self._vary(limit, name)
                while len(self._known) >= MOST:
                    self._drop(next(iter(self._known)))
                known = self._known[self._key(limit, name)] = self._made(limit, name)
        return known

    def _key(self, limit: RouteLimit, name: str) -> tuple[Any, ...]:
        late = self._varying.get(name, ())
        return (name, limit.charge, *[None if one in late else _text(getattr(limit, one)) for one in OPTIONS])

    def _vary(self, limit: RouteLimit, name: str) -> None:
        """See what differs between this limit and others of its name."""
        same = {key: endpoint.limits[0] for key, (endpoint, _) in self._known.items() if key[0] == name}
        found = {option for option in VARYING for other in same.values() if _differ(limit, other, option)}
        if found:
            found |= self._varying.get(name, set())
            for key in same:
                self._drop(key)
            self._varying[name] = found

    def _drop(self, key: tuple[Any, ...]) -> None:
        endpoint, _ = self._known.pop(key)
        if all(other[0] != key[0] for other in self._known):
            self._varying.pop(key[0], None)
        self._forget(endpoint)

    def _made(self, limit: RouteLimit, name: str) -> tuple[Endpoint, bool]:
        late: dict[str, Any] = {one: self._found(one) for one in self._varying.get(name, ())}
        if "limits" in late and not callable(limit.limits):
            late["otherwise"] = limit.limits
        functions = [option for option in FUNCTIONS if callable(getattr(limit, option))]
        late |= {option: self._found(option) for option in functions}
        listed = limit.key if isinstance(limit.key, list | tuple) else ()
        if listed:
            late["key"] = [self._found("key", place) if callable(one) else one for place, one in enumerate(listed)]
        looking = [*(getattr(limit, option) for option in functions), *listed]
        reads_body = any(getattr(function, "reads_body", False) for function in looking)
        return Endpoint(name, [replace(limit, name=name, on_breach=None, **late)]), reads_body

    def _found(self, option: str, place: int | None = None) -> "_Late":
        return self._late.setdefault((option, place), _Late(self._asking, option, place))


class _Late:
    """A function of a limit, or a value, that is known only when it is called. It is equal to anything: limits of one
    name have to be, and one that was asked for before it was seen that they vary may still be under way."""

    __slots__ = ("_asking", "_option", "_place")
    __hash__ = object.__hash__

    def __init__(self, asking: Callable[[], RouteLimit], option: str, place: int | None) -> None:
        self._asking = asking
        self._option = option
        self._place = place

    def __call__(self, view: RequestView) -> Any:
        said = getattr(self._asking(), self._option)
        found = said if self._place is None else said[self._place]
        return found(view) if callable(found) else found

    def __eq__(self, other: object) -> bool:
        return True


def _text(one: Any) -> Any:
    """The same for all functions."""
    if isinstance(one, list | tuple):
        return tuple(map(_text, one))
    return callable if callable(one) else repr(one)


def _differ(one: RouteLimit, other: RouteLimit, option: str) -> bool:
    said = getattr(one, option), getattr(other, option)
    return not any(map(callable, said)) and said[0] != said[1]
