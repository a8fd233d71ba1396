"""The advice of one answer about limits. This stands in for `ratebound.http.advice.read_advice` until that exists."""

from typing import NamedTuple

from ratebound.http.advice import parse_rate_limit, parse_retry_after
from ratebound.http.quota import Quota
from ratebound.http.received import Lines


class AnswerAdvice(NamedTuple):
    """What one answer of a server says: its quotas, and whether and how long to wait."""

    quotas: tuple[Quota, ...] = ()
    retry_after: float | None = None
    refused: bool = False
    should_retry: bool | None = None
    reason: str = ""
    vendor: str = ""


def read_advice(status: int, headers: Lines, *, body: bytes | None = None, now: float | None = None) -> AnswerAdvice:
    """Return what an answer says about limits. Fields that cannot be read are left out."""
    quotas = tuple(parse_rate_limit(headers, now=now))
    return AnswerAdvice(quotas, parse_retry_after(headers, now=now), status in (429, 503, 529))
