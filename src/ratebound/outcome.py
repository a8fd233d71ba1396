"""The answer of one limit: as users see it, and as kernels and storages pass it on (law 8)."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ratebound.compiling import i64

SLICED: Final = -2  # as `part`: the units came out of a slice, and `given` is its number; -1 would be NOT_GIVEN


class Outcome(NamedTuple):
    """The answer of one limit. Times are whole microseconds.

    The fields from `given` on are for settling.

    Attributes:
        allowed: True if this limit allows the cost.
        remaining: The units of cost that are left.
        retry_after_us: The time until the same request passes if no other comes: 0 if allowed, None if no wait can
            help.
        reset_after_us: The time until the state is as if untouched.
        delay_us: The time to hold an allowed request back.
        at_us: The storage's clock at the decision.
        given: The time that refunds had given back to a bucket; for a fixed window, the instant since which it counts;
            for a slot that was forced, 1 if it was not held before. If a slice decided, its number.
        part: The fraction of the instant at which this spend's place in a bucket ends; -2 if a slice decided.
        ahead_us: That instant, in microseconds from `at_us`; None if it equals `reset_after_us`.
    """

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    at_us: int
    given: int = 0
    part: int = 0
    ahead_us: int | None = None


# An Outcome as kernels and storages pass it on: the same fields in a plain tuple, which is four times as fast to make,
# and which compiled code does not put on the heap. All of its numbers are below 2**53.
Row = tuple[bool, i64, int | None, i64, i64, i64, i64, i64, int | None]


class DegradedRows(list[Row]):
    """Rows that were decided without the storage, and the reason.

    `closed` is True if they deny only because the storage is out of reach. `granted` is the number of the debt for a
    spend that the storage has certainly not seen and may be charged later (see fallback.py); otherwise 0.
    """

    def __init__(self, rows: Iterable[Row], reason: str, *, closed: bool = False, granted: int = 0) -> None:
        super().__init__(rows)
        self.reason = reason
        self.closed = closed
        self.granted = granted
