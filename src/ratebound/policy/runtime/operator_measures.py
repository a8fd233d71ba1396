"""Operators' measures: all that their documents say now, made ready for the requests of one gate. No I/O here."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratebound.clock import Clock, utc_datetime
from ratebound.fork import renew_in_children
from ratebound.memory_fast_path import MemoryFastPath
from ratebound.policy.runtime.operator_blocks import BLOCKS
from ratebound.policy.runtime.operator_clients import OperatorClients
from ratebound.policy.runtime.operator_documents import (
    CopiedContents,
    DocumentKind,
    clock_of,
    holding,
    log_unreadable,
    microseconds_of,
    states_of,
)
from ratebound.policy.runtime.operator_overrides import OVERRIDES
from ratebound.policy.runtime.operator_switches import RULE_SWITCHES, RuleSwitches, switches_of
from ratebound.storage import keeps_documents
from ratebound.storage.memory_states import States

KINDS: tuple[DocumentKind[Any], ...] = (BLOCKS, OVERRIDES, RULE_SWITCHES)
DOCUMENTS: tuple[str, ...] = tuple(kind.name for kind in KINDS)


class OperatorMeasures:
    """The clients that operators have named, and the rules that they have switched; None if there are none.

    `ends` is when one of these has to be looked at again, in microseconds; None if nothing ends by itself.
    """

    __slots__ = ("clients", "ends", "switches")

    def __init__(self, clients: OperatorClients | None, switches: RuleSwitches | None) -> None:
        self.clients = clients
        self.switches = switches
        entries = () if switches is None else switches.entries
        ends = [microseconds_of(entry.until) for entry in entries if entry.until is not None]
        if clients is not None and clients.ends is not None:
            ends.append(clients.ends)
        self.ends = min(ends, default=None)


class MeasuresInForce:
    """The measures that the contents of documents make, by a clock. `forget` is called when other limits are in force:
    what the process has decided by itself is not to be used any more.

    Threads take turns: one that is slow must not put in force what another has replaced meanwhile.
    """

    def __init__(self, clock: Clock, forget: Callable[[], None]) -> None:
        self._clock = clock
        self._forget = forget
        self._contents = dict.fromkeys(DOCUMENTS, b"")
        self._entries: dict[str, Sequence[Any]] = dict.fromkeys(DOCUMENTS, ())
        self._measures: OperatorMeasures | None = None
        self._limits: tuple[list[Any], list[Any]] = ([], [])  # the overrides and switches in force
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self.lock = threading.RLock()

    def use(self, contents: Mapping[str, bytes]) -> None:
        """Use new contents. A document that cannot be read leaves in force what it said before."""
        with self.lock:
            before = self._contents
            changed = [kind for kind in KINDS if kind.name in contents and contents[kind.name] != before[kind.name]]
            self._contents = {**before, **contents}
            for kind in changed:
                try:
                    self._entries[kind.name] = kind.readable(contents[kind.name])
                except ValueError as error:
                    log_unreadable(str(error))
            if changed:
                self._renew_measures()

    def current(self) -> OperatorMeasures | None:
        """Return the measures that hold now, None if there are none."""
        measures = self._measures
        if measures is not None and measures.ends is not None and measures.ends <= self._clock():
            with self.lock:
                self._renew_measures()
        return self._measures

    def _renew_measures(self) -> None:
        now = utc_datetime(self._clock())
        blocks, overrides, switched = (holding(self._entries[name], now) for name in DOCUMENTS)
        before = None if self._measures is None else self._measures.clients
        clients = OperatorClients(blocks, overrides, self._clock, before) if blocks or overrides else None
        switches = switches_of(tuple(switched)) if switched else None
        self._measures = OperatorMeasures(clients, switches) if clients is not None or switches is not None else None
        limits = overrides, switched
        if limits != self._limits:
            self._limits = limits
            self._forget()


class MemoryMeasures:
    """The measures in the memory of this process, for one gate: every change is seen at once."""

    def __init__(self, states: States, fast_path: MemoryFastPath, forget: Callable[[], None]) -> None:
        self._states = states
        self._fast_path = fast_path
        self._seen: object = None  # the documents that are in force here
        self._in_force = MeasuresInForce(states.now, forget)
        self.look()

    def look(self) -> OperatorMeasures | None:
        """Return the measures that hold now, None if there are none."""
        documents = self._states.documents
        if documents is not self._seen:
            with self._in_force.lock:
                documents = self._states.documents  # the thread that had the lock may have seen later ones
                if documents is not self._seen:
                    self._in_force.use({name: documents.get(name, (0, b""))[1] for name in DOCUMENTS})
                    self._seen = documents
        measures = self._in_force.current()
        if measures is None:
            self._fast_path.unblocked = documents
        return measures


class CopiedMeasures:
    """The measures of a copy of the documents in a storage, for one gate. `copy` says when it has to be read."""

    def __init__(self, clock: Clock, forget: Callable[[], None]) -> None:
        self._in_force = MeasuresInForce(clock, forget)
        self.copy = CopiedContents(clock, self._in_force.use)

    def look(self) -> OperatorMeasures | None:
        """Return the measures that hold now by the copy, None if there are none."""
        return self._in_force.current()


def measures_in(
    storage: Any, fast_path: MemoryFastPath, forget: Callable[[], None]
) -> MemoryMeasures | CopiedMeasures | None:
    """Return operators' measures in a storage for one gate; None if it keeps no documents. `forget` is called when they
    have changed limits."""
    if not keeps_documents(storage):
        return None
    states = states_of(storage)
    return CopiedMeasures(clock_of(storage), forget) if states is None else MemoryMeasures(states, fast_path, forget)
