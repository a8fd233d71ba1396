"""The limits that Memcached does not keep, and why. This file needs no driver."""

from ratebound.limit import LOG_COUNT, Limit

USE_ANOTHER = "use Redis, PostgreSQL, SQLite or shared memory for it"
REFUSALS = {
    "concurrent": "slots of a concurrent limit, because a slot that Memcached drops would be given twice",
    "distinct": "limits of distinct values, because Memcached may drop the values that were seen",
    "penalty": "penalties, because Memcached may drop a block while it holds",
}


def refusal(limit: Limit) -> str:
    """Return why Memcached does not keep a limit; "" if it does."""
    reason = REFUSALS.get(limit.algorithm, "")
    if limit.algorithm == "sliding-log" and limit.count > LOG_COUNT:
        return (
            f"Memcached keeps no sliding log of {limit.count} entries, because an item is too small for it: use"
            " sliding-counter, or another storage"
        )
    return f"Memcached keeps no {reason}: {USE_ANOTHER}" if reason else ""
