"""Which of our headers a response gets, and which of its own it loses: decided here for every adapter."""

import logging
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from ratebound.http.caching import NAMES as CACHING
from ratebound.http.header_plan import Pairs
from ratebound.http.headers import FIELDS
from ratebound.web.passed import Passed
from ratebound.web.rejected import Rejected

log = logging.getLogger("ratebound")

EXPOSE = "access-control-expose-headers"
RATES = frozenset(name.lower() for name in chain(*FIELDS.values()))
FOR_CDNS = CACHING - {"cache-control", "expires"}
NONE: frozenset[str] = frozenset()
# Fields of the application that ours replace, or that say whether a cache may keep the response. A response that has
# none of them, and is no redirect, takes ours as they are.
NOTED = frozenset({EXPOSE, "retry-after", *CACHING, *RATES})


def plain_fields(answer: Passed | Rejected | None, status: int) -> Pairs:
    """Return the headers to add to a plain response: no redirect, and none of its own headers is NOTED."""
    if isinstance(answer, Passed):
        return answer.headers
    if answer is None:
        return []
    if 0 < status < 400:  # 0: the start of a WebSocket
        rule = answer.verdict.rule
        _log_mild_status("" if rule is None else rule.name, status, answer.status)
    return answer.fields


@lru_cache(maxsize=256)
def _log_mild_status(rule: str, status: int, expected: int) -> None:
    log.warning(
        "a rejection%s was answered with status %d, which clients take for a success: answer with status %d",
        f" by rule {rule}" if rule else "",
        status,
        expected,
    )


def header_changes(
    answer: Passed | Rejected | None, status: int, existing: Iterable[tuple[str, str]]
) -> tuple[Pairs, frozenset[str]]:
    """Return the headers to add to any response, and the names in lower case of those to take off it.

    A response that a shared cache may store carries none of one client's numbers, not even those that a cache behind us
    kept from an earlier response. A rejection carries all, with the `no-store` that keeps it out of caches, and without
    the fields that CDNs obey instead.
    """
    if isinstance(answer, Rejected):
        return plain_fields(answer, status), FOR_CDNS
    if answer is None or answer.verdict.policy.response_headers.suit(status, existing):
        return plain_fields(answer, status), NONE
    return [], RATES


def with_headers(existing: Iterable[tuple[str, str]], ours: Pairs, dropped: frozenset[str] = NONE) -> Pairs:
    """Return the application's headers and ours, each field once: ours win. A list of exposed headers is added to."""
    taken = ({name.lower() for name, _ in ours} - {EXPOSE}) | dropped
    return [*(pair for pair in existing if pair[0].lower() not in taken), *ours]
