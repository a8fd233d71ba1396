"""Telling listeners of events: the work that every decision with a listener does.

It is apart from the events because it is compiled: a NamedTuple in a compiled module would lose its docstring.
"""

from collections.abc import Iterable
from typing import Any, Final

from ratebound.consequences import Consequence, consequences_of, consequences_of_settling
from ratebound.decision import Decision, MemoryDecision
from ratebound.events import Decided, Listener, Settled, log

# Compiled code reads a Final without looking up its name.
_DECIDED: Final[type[Decided]] = Decided
_SETTLED: Final[type[Settled]] = Settled
_tuple_new: Final = tuple.__new__


def decided(decision: Decision, seconds: float, request: Any = None) -> Decided:
    """Return `Decided(…)` in about half the time: a NamedTuple's constructor is a Python function."""
    return _tuple_new(_DECIDED, (decision, seconds, request))


def tell(listeners: tuple[Listener, ...], event: object) -> None:
    """Call every listener with an event. Log exceptions of listeners: they must not fail a decision."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed; the decision stands")


def tell_decided(listeners: tuple[Listener, ...], decision: Decision, seconds: float, request: Any = None) -> None:
    """Tell every listener of a decision, and of what follows from it. `seconds` is the time that it took, and `request`
    the request that a gate decided."""
    tell(listeners, decided(decision, seconds, request))
    if _is_watched(decision):
        tell_consequences(listeners, decision)


def tell_consequences(listeners: tuple[Listener, ...], decision: Decision) -> None:
    """Tell every listener of the strikes, blocks and warnings of a decision."""
    _tell_each(listeners, consequences_of(decision))


def tell_settled(listeners: tuple[Listener, ...], decision: Decision, settled: Decision) -> None:
    """Tell every listener that a decision was settled, and of the strikes, blocks and warnings that this has brought
    about."""
    tell(listeners, _tuple_new(_SETTLED, (decision, settled)))
    if _is_watched(decision):
        _tell_each(listeners, consequences_of_settling(decision, settled))


def _tell_each(listeners: tuple[Listener, ...], events: Iterable[Consequence]) -> None:
    for event in events:
        tell(listeners, event)


def _is_watched(decision: Decision) -> bool:
    if isinstance(decision, MemoryDecision):
        return decision._plan.is_watched
    for ask in decision.asks:
        for limit in ask[1]:
            if limit.is_watched:
                return True
    return False
