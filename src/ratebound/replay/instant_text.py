"""Instants of a log as text."""

from datetime import UTC, datetime

SECOND = 1_000_000


def time_text(at: int) -> str:
    """Return an instant in microseconds as ISO 8601 in UTC, to the second; "" for -1."""
    if at < 0:
        return ""
    try:
        return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a line may have any time
        return f"{at // SECOND}"
