"""Log lines for denials, strikes, blocks, warnings, outages and recoveries, with fields for log processors.

Each kind of line has a budget. Suppressed lines are counted, and the next line of that kind reports the number.
"""

import logging

from ratebound.clock import Clock
from ratebound.decision import Decision
from ratebound.events import BlockBegan, Decided, Degraded, Event, Recovered, RequestShed, SlotLost, Struck, Warned
from ratebound.observe.client import denied_keys, naming
from ratebound.observe.line_budget import LineBudget

LOGGER = logging.getLogger("ratebound")


class LogListener:
    """A listener that logs denials and strikes, outages at ERROR, and blocks, warnings and recoveries at WARNING.

    Handlers of the logger run inline: if they are slow, use a logging.handlers.QueueHandler.

    Args:
        logger: The logger to write to. None means the logger `ratebound`.
        denials: False turns the lines of denials and strikes off.
        level: The level of denials and strikes.
        per_minute: The lines of each kind that may be logged at once, and then per minute, evenly.
        clear: True shows keys as clear text instead of digests. They may be personal.
        secret: The secret that digests are made with, so that they stay the same in other processes. None means a
            random one.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: `per_minute` is not a positive whole number.

    Examples:
        >>> import logging
        >>> from ratebound import Limiter
        >>> from ratebound.observe import LogListener
        >>> limiter = Limiter("100/minute", listeners=[LogListener(level=logging.WARNING, per_minute=10)])
    """

    logs = True  # a guard logs outages itself unless a listener does

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        denials: bool = True,
        level: int = logging.INFO,
        per_minute: int = 60,
        clear: bool = False,
        secret: str | bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._log = LOGGER if logger is None else logger
        self._level = level if denials else None
        self._name = naming(secret, clear=clear)
        self._budget = LineBudget(per_minute, clock=clock)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided):
            if not event.decision.allowed and self._level is not None and self._log.isEnabledFor(self._level):
                self._denied(event.decision, self._level)
        elif isinstance(event, Struck | BlockBegan | Warned):
            self._consequence(event)
        elif isinstance(event, Degraded):
            fields: dict[str, object] = {"node": event.node, "reason": event.reason}
            text = f"decisions are made without {_named(event.node)}: %(reason)s"
            self._say(logging.ERROR, "degraded", text, fields)
        elif isinstance(event, Recovered):
            fields = {"node": event.node, "seconds": event.seconds, "written_back": event.written_back}
            text = f"{_named(event.node)} decides again after %(seconds).3g s; %(written_back)d units written back"
            self._say(logging.WARNING, "recovered", text, fields)
        elif isinstance(event, SlotLost):
            fields = {"limit": ", ".join(limit.name for limit in event.decision.limits if limit.has_slots)}
            self._say(logging.WARNING, "slot_lost", "a slot of %(limit)s was lost and is held again", fields)
        elif isinstance(event, RequestShed) and self._level is not None:
            fields = {"in_flight": event.in_flight}
            self._say(
                self._level, "shed", "shed a request: at most %(in_flight)d may be in the process at once", fields
            )

    def _denied(self, decision: Decision, level: int) -> None:
        suppressed = self._budget.admit("denied")  # first: a suppressed line needs no digest
        if suppressed is None:
            return
        # The end of a lease is no time to wait for: a slot is free when a request ends.
        is_for_slots = decision.limit.has_slots and not decision.unavailable
        fields: dict[str, object] = {
            "limit": decision.limit.name,
            "retry_after": None if is_for_slots else decision.retry_after,
            "degraded": decision.degraded,
            "unavailable": decision.unavailable,
            "shed": decision.shed,
            "blocked": decision.blocked,
            "key": ", ".join(self._shown(key) for key in denied_keys(decision)[:3]),
        }
        text = "denied %(key)s by %(limit)s, "
        if decision.blocked:
            text += "blocked, "
        if is_for_slots:
            text += "no slot is free"
        else:
            text += "no wait can help" if decision.retry_after is None else "retry after %(retry_after).6g s"
        if decision.shed:
            text += "; the limit is lowered because of overload"
        if decision.degraded is not None:
            text += "; decided without the storage: %(degraded)s"
        self._write(level, "denied", text, fields, suppressed)

    def _consequence(self, event: Struck | BlockBegan | Warned) -> None:
        fields: dict[str, object] = {"limit": event.limit.name}
        if isinstance(event, BlockBegan):
            level, kind, text = logging.WARNING, "block_began", "blocked %(key)s by %(limit)s for %(seconds).6g s"
            fields["seconds"] = event.seconds
        elif isinstance(event, Warned):
            level, kind, text = logging.WARNING, "warned", "%(key)s has used %(share).6g%% of %(limit)s or more"
            fields |= {"share": event.limit.warn * 100, "remaining": event.remaining}
        elif self._level is None:
            return
        else:
            level, kind = self._level, "struck"
            text = "strike for %(key)s by %(limit)s, %(remaining)d more until a block"
            fields["remaining"] = event.remaining
        suppressed = self._budget.admit(kind) if self._log.isEnabledFor(level) else None
        if suppressed is not None:  # a suppressed line needs no digest
            self._write(level, kind, text, {**fields, "key": self._shown(event.key)}, suppressed)

    def _shown(self, key: str) -> str:
        return ascii(self._name(key))[1:-1]

    def _say(self, level: int, kind: str, text: str, fields: dict[str, object]) -> None:
        suppressed = self._budget.admit(kind)
        if suppressed is not None:
            self._write(level, kind, text, fields, suppressed)

    def _write(self, level: int, kind: str, text: str, fields: dict[str, object], suppressed: int) -> None:
        fields = {"event": kind, **fields, "suppressed": suppressed}
        if suppressed:
            text += " (%(suppressed)d more like this were not logged)"
        extra = {f"ratebound_{name}": value for name, value in fields.items()}  # no clash with a record's own names
        self._log.log(level, text, fields, extra=extra)


def _named(node: str) -> str:
    return "the storage %(node)s" if node else "the storage"
