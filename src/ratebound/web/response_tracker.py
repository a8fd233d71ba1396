"""A response on its way, without I/O: whether its start is held back, how much of it was sent, when it is settled.

ASGI, WSGI, Django and WebSocket connections drive it. Nothing of a body is held back. The start waits only where the
result decides about the cost: if the first part is the whole body, the headers can tell what is left after settling.
"""

from collections.abc import Iterable
from typing import Any, Final

from ratebound.flow import Flow
from ratebound.web.passed_fields import COMPLETE
from ratebound.web.visit import Visit, settle

FAILED = 500  # the status of a response to which an exception has led
NO_NAMES: Final[frozenset[str]] = frozenset()
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

    @property
    def hidden(self) -> frozenset[str]:
        """The names in lower case of the headers that no client gets, because they tell us the cost."""
        passed = self.visit.passed
        return NO_NAMES if passed is None else passed.terms.cost_headers

    def start(
        self, gate: Any, status: int, headers: Iterable[tuple[str, str]] = (), length: int | None = None
    ) -> Flow[None]:
        """Note the start, with its headers. `length` is its Content-Length."""
        self.status, self.length = status, length
        yield from self.visit.conclude(gate, status)
        if self.visit.measured_by is not None:
            self.visit.note_result(status)
        passed = self.visit.passed
        self.is_held = passed is not None and passed.settles
        if passed is not None and self.is_held:
            passed.start_response(status, headers)

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

    def break_off(self, gate: Any, *, raised: bool = False) -> Flow[None]:
        """Settle a response that will not be complete; do nothing if it is.

        `raised` means that the handler has raised an exception before anything was sent: then the server answers with
        a 500. Else the client has got a part of the response, or has gone away.
        """
        passed = self.visit.passed
        if passed is None:
            return
        if passed.settles:
            if raised:
                self.status, self.sent = FAILED, 0
            yield from settle(gate, passed, self.status, self.sent, is_broken=not raised)
        passed.break_off()
