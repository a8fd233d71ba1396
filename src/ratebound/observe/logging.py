"""The log: refusals, degradations and recoveries, each with fields for those who read it by machine.

A log that an attack or an outage can flood is one more outage, so each kind of line has a budget, kept by the same
kernels that limit everything else. What it swallows is counted, and said in the next line of that kind.
"""

import logging
import threading

from ratebound.clock import Clock
from ratebound.decision import Decision
from ratebound.events import Decided, Degraded, Event, Recovered
from ratebound.fork import renew_in_children
from ratebound.limit import UNITS, Limit
from ratebound.observe.client import naming, refused_keys
from ratebound.storage.memory import MemoryStorage

LOGGER = logging.getLogger("ratebound")


class LogListener:
    """Logs refusals at `level`, degradations at ERROR and recoveries at WARNING.

    Of each kind `per_minute` lines may come at once, and then as many a minute, evenly. Keys are digests made with
    `secret`, or clear text if `clear`. The logger's own output is done inline: where it is slow, give it a
    logging.handlers.QueueHandler.
    """

    logs = True  # outages, which a guard logs by itself if nobody does

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        refusals: bool = True,
        level: int = logging.INFO,
        per_minute: int = 60,
        clear: bool = False,
        secret: str | bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._log = LOGGER if logger is None else logger
        self._level = level if refusals else None
        self._name = naming(secret, clear=clear)
        self._budget = (Limit(per_minute, UNITS["minute"], burst=per_minute),)
        self._storage = MemoryStorage(clock=clock)
        self._lock = threading.Lock()
        self._suppressed = {"refused": 0, "degraded": 0, "recovered": 0}
        renew_in_children(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided):
            if not event.decision.allowed and self._level is not None and self._log.isEnabledFor(self._level):
                self._refused(event.decision, self._level)
        elif isinstance(event, Degraded):
            fields: dict[str, object] = {"node": event.node, "reason": event.reason}
            text = f"decisions are made without {_named(event.node)}: %(reason)s"
            self._say(logging.ERROR, "degraded", text, fields)
        elif isinstance(event, Recovered):
            fields = {"node": event.node, "seconds": event.seconds, "written_back": event.written_back}
            text = f"{_named(event.node)} decides again after %(seconds).3g s; %(written_back)d units written back"
            self._say(logging.WARNING, "recovered", text, fields)

    def renew(self) -> None:
        """For a child process, where no other thread is."""
        self._lock = threading.Lock()

    def _refused(self, decision: Decision, level: int) -> None:
        suppressed = self._admit("refused")  # first: what is not logged needs no digest
        if suppressed is None:
            return
        fields: dict[str, object] = {
            "limit": decision.limit.name,
            "retry_after": decision.retry_after,
            "degraded": decision.degraded,
            "unavailable": decision.unavailable,
            "key": ", ".join(ascii(self._name(key))[1:-1] for key in refused_keys(decision)[:3]),
        }
        text = "refused %(key)s by %(limit)s, "
        text += "no wait can help" if decision.retry_after is None else "retry after %(retry_after).6g s"
        if decision.degraded is not None:
            text += "; decided without the storage: %(degraded)s"
        self._write(level, "refused", text, fields, suppressed)

    def _say(self, level: int, kind: str, text: str, fields: dict[str, object]) -> None:
        suppressed = self._admit(kind)
        if suppressed is not None:
            self._write(level, kind, text, fields, suppressed)

    def _admit(self, kind: str) -> int | None:
        """How many lines of this kind were swallowed since the last one, or None if this one is as well."""
        with self._lock:
            ((row,),) = self._storage.evaluate((((kind, self._budget, 1, None, None),),))
            if not row[0]:
                self._suppressed[kind] += 1
                return None
            suppressed, self._suppressed[kind] = self._suppressed[kind], 0
            return suppressed

    def _write(self, level: int, kind: str, text: str, fields: dict[str, object], suppressed: int) -> None:
        fields = {"event": kind, **fields, "suppressed": suppressed}
        if suppressed:
            text += " (%(suppressed)d more like this were not logged)"
        extra = {f"ratebound_{name}": value for name, value in fields.items()}  # no clash with a record's own names
        self._log.log(level, text, fields, extra=extra)


def _named(node: str) -> str:
    return "the storage %(node)s" if node else "the storage"
