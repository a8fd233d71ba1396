"""The cost of a request, and whether it is a strike, once its result is known: read and decided here for every rule.

At least one unit is charged before the work begins, so that no number of requests at once can pass for the price of
one; the difference is settled when the response is complete. An exception that the handler raised is a 500. Requests
that disconnect or time out, and responses that break off, stay charged, but for a charge by bytes: that settles them
by what was sent.
"""

import difflib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from ratebound.limit import MAX_COUNT
from ratebound.policy.functions import check_takes
from ratebound.policy.problem import nearest, shown

log = logging.getLogger("ratebound")


class FinishedResponse(NamedTuple):
    """A complete response, as functions of `charge` see it.

    Attributes:
        status: The status.
        sent: The bytes of its body.
        cost: The cost that was charged before.
        failed: The handler's own judgement (see `Passed.failed`), else True for a status of 400 or above.
        told: The cost in the header that the charge names; None if there is none that can be read.
    """

    status: int
    sent: int
    cost: int
    failed: bool = False
    told: int | None = None


Charge = Literal["failure", "success", "bytes"] | Mapping[str, Any] | Callable[[FinishedResponse], int]
"""What is charged when the response is known: a kind of result, a mapping as in a policy, or a function."""
Strike = Literal["failure"] | Mapping[str, Any]
Cost = Callable[[FinishedResponse], int]
"""What is charged when the response is known: a kind of result, a mapping as in a policy, or a function."""
Test = Callable[[FinishedResponse], bool]


class ByResult(NamedTuple):
    """The decisions of one rule about a result: the `cost` of the request, and whether it `strikes`. Each is None if
    the result does not matter for it. `header` is the name in lower case of the response's header that the cost reads.
    `is_by_bytes` is True if the cost is also found for a response that broke off."""

    cost: Cost | None = None
    strikes: Test | None = None
    header: str = ""
    is_by_bytes: bool = False


MAX_DIGITS = len(str(MAX_COUNT))
TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
STATUS = re.compile(r"([1-5])xx|([1-5][0-9]{2})(?:\s*-\s*([1-5][0-9]{2}))?", re.IGNORECASE)
SIZE = re.compile(r"([0-9]{1,15})\s*([KMG]?)(i?)B", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
EXPECTED = (
    "'failure', 'success', 'bytes', {'status': [401, 403]}, {'bytes': '1 KB'}, {'header': 'x-cost'} or a function of a"
    " FinishedResponse"
)


def read_charge(charge: Any) -> ByResult | None:
    """Return what a charge decides; None for None. Raises ValueError or TypeError for what is no charge."""
    if charge is None:
        return None
    if inspect.iscoroutinefunction(charge):
        raise ValueError(
            f"charge: {charge!r} is an async function, and cannot be awaited: let the handler set the cost, with"
            " request.state.ratebound.charge(cost)"
        )
    if callable(charge):
        check_takes(charge, "the FinishedResponse", option="charge")
        return ByResult(charge)
    if charge == "bytes":
        return ByResult(_by_bytes(1), is_by_bytes=True)
    test = RESULTS.get(charge) if isinstance(charge, str) else None
    if test is not None:
        return ByResult(_if(test))
    if not isinstance(charge, Mapping):
        expected = f"expected {EXPECTED}, not {shown(charge)}"
        raise ValueError(f"charge: {_misspelt('charge', charge, (*RESULTS, 'bytes')) or expected}")
    key, value = _only_entry("charge", charge, ("status", "bytes", "header"))
    if key == "status":
        return ByResult(_if(_has_status(value)))
    if key == "bytes":
        return ByResult(_by_bytes(_read_size(value)), is_by_bytes=True)
    return ByResult(_as_told, header=_read_header(value))


def read_strike(strike: Any) -> Test | None:
    """Return the test of a response that says whether it is a strike; None for None. Raises ValueError."""
    if strike is None:
        return None
    if strike == "failure":
        return _failure
    if not isinstance(strike, Mapping):
        expected = f"expected 'failure' or {{'status': [401, 403]}}, not {shown(strike)}"
        raise ValueError(f"strike: {_misspelt('strike', strike, ('failure',)) or expected}")
    return _has_status(_only_entry("strike", strike, ("status",))[1])


def told_cost(values: Iterable[str], header: str) -> int | None:
    """Return the cost in the values of a response's header. None, with a line in the log, if it is no whole number from
    0 up, or is there twice; None if it is not there."""
    given = [value.strip() for value in values]
    if not given:
        return None
    if len(given) > 1 or not (given[0].isascii() and given[0].isdecimal()):
        _log_invalid(header)
        return None
    digits = given[0].lstrip("0") or "0"
    return MAX_COUNT if len(digits) > MAX_DIGITS else min(int(digits), MAX_COUNT)


@lru_cache(maxsize=256)
def _log_invalid(header: str) -> None:
    log.error(
        "the header %s of a response is not one whole number from 0 up: what was charged before stays charged", header
    )


def _failure(response: FinishedResponse) -> bool:
    return response.failed


def _success(response: FinishedResponse) -> bool:
    return not response.failed


RESULTS: dict[str, Test] = {"failure": _failure, "success": _success}


def _if(test: Test) -> Cost:
    return lambda response: response.cost if test(response) else 0


def _by_bytes(unit: int) -> Cost:
    return lambda response: max(-(-response.sent // unit), response.cost)


def _as_told(response: FinishedResponse) -> int:
    return response.cost if response.told is None else response.told


def _misspelt(option: str, given: Any, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, in a message; '' if there is none."""
    near = difflib.get_close_matches(given[:40].lower(), known, 1) if isinstance(given, str) else []
    return f"unknown {option} {shown(given)}: did you mean '{near[0]}'?" if near else ""


def _has_status(given: Any) -> Test:
    statuses = _read_statuses(given)
    return lambda response: response.status in statuses


def _only_entry(option: str, given: Mapping[Any, Any], known: tuple[str, ...]) -> tuple[str, Any]:
    for key in given:
        if key not in known:
            raise ValueError(f"{option}: unknown key {shown(key)}: {nearest(key, known)}")
    if len(given) != 1:
        raise ValueError(f"{option}: expected one of the keys {', '.join(known)}, not {shown(dict(given))}")
    return next(iter(given.items()))


def _read_statuses(given: Any) -> frozenset[int]:
    found: set[int] = set()
    listed = list(given) if isinstance(given, list | tuple | set | frozenset | range) else [given]
    for one in listed:
        text = str(one) if isinstance(one, int) and not isinstance(one, bool) else one
        read = STATUS.fullmatch(text.strip()) if isinstance(text, str) else None
        if read is None or (read[3] is not None and read[2] > read[3]):
            raise ValueError(f"status: expected statuses like 401, '5xx' or '400-499', not {shown(one)}")
        first = int(read[1]) * 100 if read[1] else int(read[2])
        found.update(range(first, (first + 99 if read[1] else int(read[3] or first)) + 1))
    if not found:
        raise ValueError("status: expected at least one status, like [401, 403]")
    return frozenset(found)


def _read_size(given: Any) -> int:
    read = SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if read is not None:
        given = int(read[1]) * (1024 if read[3] else 1000) ** POWERS[read[2].lower()]
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"bytes: expected the size of a unit, like '1 KB', '1 MiB' or 1000, not {shown(given)}")
    return given


def _read_header(given: Any) -> str:
    if not isinstance(given, str) or TOKEN.fullmatch(given) is None:
        raise ValueError(f"header: expected the name of a response header like 'x-cost', not {shown(given)}")
    name = given.lower()
    if name.startswith("content-") or name in ("transfer-encoding", "set-cookie", "location"):
        raise ValueError(f"header: {name} would be taken off the response: use a header of its own, like 'x-cost'")
    return name
