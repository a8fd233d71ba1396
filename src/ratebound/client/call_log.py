"""The log of calls: retries at INFO, calls that gave up and circuits at WARNING, attempts and pacing at DEBUG.

The logger is `ratebound.client`. Lines name an API by its origin: paths, queries and headers may hold secrets. Each
kind of line has a budget, so that an outage does not flood the log.
"""

import logging

from ratebound.client.call_events import (
    BECAUSE,
    Attempted,
    CallEvent,
    CircuitClosed,
    CircuitOpened,
    GaveUp,
    Paced,
    Retrying,
    log,
)
from ratebound.clock import Clock
from ratebound.observe.line_budget import LineBudget


class CallLogListener:
    """A listener that logs. Adapters have one unless they are given another listener whose `logs` is True.

    Args:
        logger: The logger to write to. None means the logger `ratebound.client`.
        per_minute: The lines of each kind that may be logged at once, and then per minute, evenly.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: `per_minute` is not a positive whole number.

    Examples:
        >>> import logging, httpx
        >>> from ratebound.client.call_log import CallLogListener
        >>> from ratebound.client.httpx import PoliteTransport
        >>> listener = CallLogListener(logging.getLogger("billing"), per_minute=10)
        >>> client = httpx.Client(transport=PoliteTransport(listeners=[listener]))
    """

    logs = True

    def __init__(
        self, logger: logging.Logger | None = None, *, per_minute: int = 60, clock: Clock | None = None
    ) -> None:
        self._log = log if logger is None else logger
        self._budget = LineBudget(per_minute, clock=clock)

    def __call__(self, event: CallEvent) -> None:
        if isinstance(event, Attempted):
            if self._log.isEnabledFor(logging.DEBUG):
                result = "error" if event.error else "status"
                text = f"attempt %(attempt)d of %(method)s to %(origin)s: %({result})s after %(seconds).3g s"
                self._write(logging.DEBUG, "attempted", text, event, 0)
        elif isinstance(event, Paced):
            if self._log.isEnabledFor(logging.DEBUG):
                text = "waited %(seconds).3g s for a turn at %(origin)s"
                self._write(logging.DEBUG, "paced", text, event, 0)
        elif isinstance(event, Retrying):
            self._say(logging.INFO, "retrying", "retry %(method)s to %(origin)s in %(wait).3g s: %(reason)s", event)
        elif isinstance(event, GaveUp):
            because = BECAUSE.get(event.obstacle, "%(obstacle)s")
            text = f"gave up %(method)s to %(origin)s after %(attempts)d attempts (%(reason)s): {because}"
            self._say(logging.WARNING, "gave_up", text, event)
        elif isinstance(event, CircuitOpened):
            text = "%(origin)s is down: the last calls failed; nothing is sent to it for %(retry_after).3g s"
            self._say(logging.WARNING, "circuit_opened", text, event)
        elif isinstance(event, CircuitClosed):
            self._say(logging.WARNING, "circuit_closed", "%(origin)s answers again after %(seconds).3g s", event)

    def _say(self, level: int, kind: str, text: str, event: CallEvent) -> None:
        if self._log.isEnabledFor(level):
            suppressed = self._budget.admit(kind)
            if suppressed is not None:
                self._write(level, kind, text, event, suppressed)

    def _write(self, level: int, kind: str, text: str, event: CallEvent, suppressed: int) -> None:
        fields: dict[str, object] = {"event": kind, "suppressed": suppressed}
        for name, value in event._asdict().items():
            fields[name] = ascii(value)[1:-1][:300] if isinstance(value, str) else value
        if suppressed:
            text += " (%(suppressed)d more like this were not logged)"
        extra = {f"ratebound_{name}": value for name, value in fields.items()}  # no clash with a record's own names
        self._log.log(level, text, fields, extra=extra)
