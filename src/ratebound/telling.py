"""Telling listeners of events: the work that every decision with a listener does.

It is apart from the events because it is compiled: a NamedTuple in a compiled module would lose its docstring.
"""

from typing import Final

from ratebound.decision import Decision
from ratebound.events import Decided, Listener, log

# Compiled code reads a Final without looking up its name.
_DECIDED: Final[type[Decided]] = Decided
_tuple_new: Final = tuple.__new__


def decided(decision: Decision, seconds: float) -> Decided:
    """Return `Decided(decision, seconds)` in about half the time: a NamedTuple's constructor is a Python function."""
    return _tuple_new(_DECIDED, (decision, seconds))


def tell(listeners: tuple[Listener, ...], event: object) -> None:
    """Call every listener with an event. Log exceptions of listeners: they must not fail a decision."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed; the decision stands")
