"""The page that tells a caller its own usage, in the manner of GitHub's `/rate_limit`, for all adapters."""

import json
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ratebound.errors import StorageError
from ratebound.flow import Flow, Step
from ratebound.lowered import configured
from ratebound.policy.runtime.usage import RuleAsk
from ratebound.usage import Usage, usage_ask
from ratebound.web.passed import Passed
from ratebound.web.rejected import Rejected

log = logging.getLogger("ratebound")

HEADERS = {"Cache-Control": "no-store"}  # it is about one caller, and soon wrong
CONTENT_TYPE = "application/json"


class Page(NamedTuple):
    """A response with a body of JSON."""

    status: int
    body: bytes


def _encoded(document: object) -> bytes:
    return json.dumps(document).encode()


UNAVAILABLE = Page(503, _encoded({"message": "Usage is not available now. Try again later."}))


def read_page(gate: Any, read_usage: Step) -> Flow[Page]:
    """Return the page for the usage that `read_usage` returns; a 503 if the storage could not be asked, because what
    this process knows alone is not what was used."""
    try:
        usages = yield read_usage
    except StorageError:
        log.exception("the usage of a client could not be read; the page answered 503")
        return UNAVAILABLE
    if any(usage.degraded for usage in usages):
        return UNAVAILABLE
    return Page(200, _encoded(usage_document(usages, gate.policy.response_headers.names)))


def usage_document(usages: Iterable[Usage], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the page: `resources` by name, and as `rate` the most pressing of them.

    `names` maps names of limits to those that clients see, as in headers. What headers do not tell is left out:
    penalties, and limits of distinct values that have room for more.
    """
    resources: dict[str, Any] = {}
    rate: tuple[tuple[bool, float], str] | None = None
    for usage in usages:
        if usage.limit.is_penalty or (usage.limit.is_distinct and usage.remaining):
            continue
        shown = names.get(usage.name, usage.name)
        name = usage.name if shown in resources else shown
        resources[name] = _resource(usage, name)
        if rate is None or _left(usage) < rate[0]:
            rate = _left(usage), name
    return {"resources": resources, "rate": None if rate is None else resources[rate[1]]}


def _resource(usage: Usage, name: str) -> dict[str, Any]:
    reset = math.ceil(usage.resets_at.timestamp())
    return {
        "limit": usage.quota,
        "used": usage.used,
        "remaining": usage.remaining,
        "reset": reset,
        "resets_at": datetime.fromtimestamp(reset, UTC).isoformat().replace("+00:00", "Z"),
        "resource": name,
    }


def _left(usage: Usage) -> tuple[bool, float]:
    """Return the order of pressure: what is told last (see `Limit.is_told_last`) comes last, else what is nearest to
    exhaustion first."""
    return usage.limit.is_told_last, usage.remaining / usage.quota


def asks_of(answer: Passed | Rejected) -> list[RuleAsk]:
    """Return the asks that show the usage of all limits that a request was checked against."""
    return [
        RuleAsk(rule.name, usage_ask(key, configured(limits)))
        for verdict in (answer.verdicts if isinstance(answer, Passed) else [answer.verdict])
        if verdict.decision is not None
        for rule, (key, limits, *_) in zip(verdict.asked, verdict.decision.asks, strict=True)
    ]
