"""A response on its way, without I/O: whether its start is held back, how much of it was sent, when it is settled.

ASGI, WSGI, Django and WebSocket connections drive it. Nothing of a body is held back. The start waits only where the
result decides about the cost: if the first part is the whole body, the headers can tell what is left after settling.
"""

from collections.abc import Iterable
from typing import Any

from ratebound.web.flow import Flow
from ratebound.web.passed_fields import COMPLETE
from ratebound.web.visit import Visit, settle

BODILESS = (204, 304)  # statuses of responses without a body


class ResponseTracker:
    """The response of a visit. `counts` is False where its body is not sent, as for HEAD.

    `is_held` is True from a start that has to wait until `end` or the next part of the body. Does no I/O: `start` and
    `end` are flows.
    """

    __slots__ = ("_counts", "is_held", "length", "sent", "status", "visit")

    def __init__(self, visit: Visit, *, counts: bool = True) -> None:
        self.visit = visit
        self._counts = counts
        self.status = self.sent = 0
        self.length: int | None = None
        self.is_held = False

    def start(self, gate: Any, status: int, names: Iterable[str] = (), length: int | None = None) -> Flow[None]:
        """Note the start. `names` are those of its headers, `length` is its Content-Length."""
        self.status, self.length = status, length
        yield from self.visit.conclude(gate, status)
        if self.visit.measured_by is not None:
            self.visit.note_result(status)
        passed = self.visit.passed
        self.is_held = passed is not None and passed.settles
        if passed is not None and self.is_held:
            passed.start_response(status, names)

    def add(self, size: int, *, is_last: bool = False) -> bool:
        """Count a part of the body. Return True if it is the last one: some applications send the whole body, and only
        then that there is no more."""
        if self._counts and self.status not in BODILESS:
            self.sent += size
        return is_last or self.sent == self.length

    def end(self, gate: Any) -> Flow[None]:
        """Settle: the response is complete."""
        passed = self.visit.passed
        if passed is not None:
            if passed.settles:
                yield from settle(gate, passed, self.status, self.sent)
            passed.ended = passed.ended or COMPLETE
