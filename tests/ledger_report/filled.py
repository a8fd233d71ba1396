"""A ledger with a November that is known: written through limiters whose clock stands where a test wants it."""

from datetime import UTC, datetime
from pathlib import Path

from ratebound import Limiter
from ratebound.clock import SECOND
from ratebound.ledger import Change, Ledger
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

MONTH = "2026-11"
FORMULA = "=cmd|'/c calc'!A0"  # a client that would like to be a formula
CHANGE = Change(
    datetime(2026, 11, 3, 9, 30, tzinfo=UTC), "ann", "block", "203.0.113.7", "for 1 hour: scraping"
)  # that an operator made
MARKUP = "user:<script>alert(1)</script>\u202e"


def micros(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def fill(ledger: Ledger) -> None:
    """Write 3 clients: 12 units of a quota of 10 that is metered, and searches of which some are denied."""
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    quota = Limiter("10/calendar-month over allow as month", storage=storage, listeners=[ledger])
    search = Limiter("2/minute as search", storage=storage, listeners=[ledger])
    clock.now = micros("2026-11-02T10:00:00")
    quota.hit("user:42", cost=7)
    for _ in range(3):
        search.hit("user:42")  # the third is denied
    clock.now = micros("2026-11-30T23:30:00")  # in Berlin it is December
    quota.hit("user:42", cost=5)
    clock.now = micros("2026-11-15T08:00:00")
    search.hit(FORMULA)
    search.hit(MARKUP, cost=2)
    ledger.record_changes([CHANGE])
    ledger.flush()


def filled_ledger(folder: Path) -> str:
    """Make a ledger in a file, and return its URL."""
    return filled(f"sqlite:///{folder}/usage.db")


def filled(url: str) -> str:
    """Fill an empty ledger, and return its URL."""
    with Ledger(url, clients="name") as ledger:
        fill(ledger)
    return url
