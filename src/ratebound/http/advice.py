"""A lenient parser of the rate-limit headers that servers send: the client's side of headers.py.

Fields that break their grammar are ignored, and so are all fields of a response from a cache. Nothing here is a
promise: the remaining units may be gone by the next request, and a server may send any wait.
"""

import re
import time
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from ratebound.http.structured import Bare, Item, read_dictionary, read_list

Lines = Sequence[tuple[str, str]]

MAX_FIELD = 65_536
EPOCH = 100_000_000  # a reset above this many seconds, three years, is an instant and not a wait
WHOLE = re.compile(r"[0-9]{1,15}")
NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
FIRST_NUMBER = re.compile(r"[ \t]*([0-9]{1,15})(?![0-9])")
# Some servers send a policy with an extra name at its beginning. Strict parsing rejects it.
SALVAGED = re.compile(r'"([ !#-\[\]-~]{1,64})"((?: *; *[a-z]{1,2}=[0-9]{1,15}){1,8})')
WINDOWS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "month": 2_592_000, "year": 31_536_000}


class Quota(NamedTuple):
    """One limit as a server reports it; None for absent fields. Durations are seconds from now."""

    name: str  # "" if it has none
    limit: int | None = None
    remaining: int | None = None
    window: int | None = None
    reset_after: float | None = None
    unit: str = "requests"
    partition: bytes | None = None


def parse_rate_limit(headers: Lines, *, now: float | None = None) -> list[Quota]:
    """Return the limits that a response reports, in any known style. The newest style in the response wins.

    `now` is the Unix time at which it was received.
    """
    fields = _fields(headers)
    if _whole(fields.get("age", "")):
        return []
    found = _named(fields) or _dictionary(fields)
    if found:
        return found
    instant = _received(fields, now)
    for prefix in ("ratelimit", "x-ratelimit", "x-rate-limit"):
        quota = _three(fields, prefix, instant)
        if quota:
            found.append(quota)
            break
    return found + _windows(fields)


def parse_retry_after(headers: Lines, *, now: float | None = None) -> float | None:
    """Return the seconds to wait, or None without a valid field.

    The field is Retry-After (seconds, with or without a fraction, or a date), or one in milliseconds. A date is
    compared with the response's own Date, if present, because clocks differ.
    """
    fields = _fields(headers)
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if NUMBER.fullmatch(fields.get(name, "")):
            return float(fields[name]) / 1000
    text = fields.get("retry-after", "")
    if NUMBER.fullmatch(text):
        return float(text)
    instant = _date(text)
    return None if instant is None else max(instant - _received(fields, now), 0.0)


def _fields(headers: Lines) -> dict[str, str]:
    """Return the fields by lower-case name, lines joined.

    Retry-After, Age and Date have one value: the first line's.
    """
    fields: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        value = value.strip(" \t")
        if name not in fields:
            fields[name] = value[:MAX_FIELD]
        elif "ratelimit" in name and len(fields[name]) < MAX_FIELD:
            fields[name] = f"{fields[name]},{value[:MAX_FIELD]}"
    return fields


def _named(fields: dict[str, str]) -> list[Quota]:
    """Read draft-08 to draft-11, and the names proposed to follow: `a` for `r`, and `w` for `t`."""
    policies = {_identity(item): item.parameters for item in _items(fields.get("ratelimit-policy", ""))}
    quotas: dict[tuple[str, Bare | None], Quota] = {}
    for item in _items(fields.get("ratelimit", "")):
        name, partition = identity = _identity(item)
        policy = policies.get(identity) or policies.get((name, None))
        if policy is None:
            policy = next((found for (other, _), found in policies.items() if other == name), {})
        given = item.parameters
        remaining = _count(given.get("r", given.get("a")))
        if remaining is not None:
            after = _count(given.get("t", given.get("w")))
            quotas[identity] = _quota(name, partition, policy, remaining, after)
    for (name, partition), policy in policies.items():
        if _count(policy.get("q")) is not None and not any(name == other for other, _ in quotas):
            quotas[name, partition] = _quota(name, partition, policy, None, None)
    return list(quotas.values())


def _quota(name: str, partition: Bare | None, policy: dict[str, Bare], left: int | None, after: int | None) -> Quota:
    unit = policy.get("qu")
    return Quota(
        name,
        _count(policy.get("q")),
        left,
        _count(policy.get("w")) or None,
        None if after is None else float(after),
        unit if isinstance(unit, str) and unit != "request" else "requests",  # the draft's registry uses the singular
        partition if isinstance(partition, bytes) else None,
    )


def _items(text: str) -> list[Item]:
    """Return named items. Items of the old drafts, whose value is a number, are left out."""
    items = read_list(text)
    if items is None and text.startswith('"'):
        pairs = [(name, re.findall(r"([a-z]{1,2})=([0-9]{1,15})", rest)) for name, rest in SALVAGED.findall(text)]
        items = [Item(name, {key: int(value) for key, value in found}) for name, found in pairs]
    return [item for item in items or [] if isinstance(item.value, str)]


def _identity(item: Item) -> tuple[str, Bare | None]:
    return str(item.value), item.parameters.get("pk")


def _dictionary(fields: dict[str, str]) -> list[Quota]:
    """Read draft-07: `limit=100, remaining=50, reset=5`."""
    members = read_dictionary(fields.get("ratelimit", "")) or {}
    names = ("limit", "remaining", "reset")
    limit, remaining, reset = [_count(members[name].value) if name in members else None for name in names]
    if limit is None and remaining is None:
        return []
    window = _window(fields.get("ratelimit-policy", ""), limit)
    return [Quota("", limit, remaining, window, None if reset is None else float(reset))]


def _three(fields: dict[str, str], prefix: str, now: float) -> Quota | None:
    """Read three fields, of the old drafts or with X-. A reset is seconds, a Unix time, or that in milliseconds."""
    policy = fields.get(f"{prefix}-limit", "")
    limit, remaining = (_first(fields.get(f"{prefix}-{part}", "")) for part in ("limit", "remaining"))
    if limit is None and remaining is None:
        return None
    text = fields.get(f"{prefix}-reset", "").partition(",")[0].strip(" \t")
    reset = float(text) if NUMBER.fullmatch(text) else None
    if reset is not None and reset > EPOCH:
        reset = max((reset / 1000 if reset > EPOCH * 1000 else reset) - now, 0.0)
    window = _window(policy, limit) or _window(fields.get("ratelimit-policy", ""), limit)
    return Quota("", limit, remaining, window, reset)


def _windows(fields: dict[str, str]) -> list[Quota]:
    """Read Kong's fields: `X-RateLimit-Remaining-Minute`."""
    found = []
    for unit, length in WINDOWS.items():
        limit, remaining = (_first(fields.get(f"x-ratelimit-{part}-{unit}", "")) for part in ("limit", "remaining"))
        if limit is not None or remaining is not None:
            found.append(Quota(unit, limit, remaining, length))
    return found


def _window(text: str, limit: int | None) -> int | None:
    """Return the window of the old drafts' policy with this quota: `100, 100;w=60`."""
    for item in read_list(text) or []:
        if item.value == limit and _count(item.parameters.get("w")):
            return _count(item.parameters["w"])
    return None


def _count(value: Bare | None) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _whole(text: str) -> int | None:
    return int(text) if WHOLE.fullmatch(text) else None


def _first(text: str) -> int | None:
    match = FIRST_NUMBER.match(text)
    return int(match[1]) if match else None


def _received(fields: dict[str, str], now: float | None) -> float:
    date = _date(fields.get("date", ""))
    if date is not None:
        return date
    return time.time() if now is None else now


def _date(text: str) -> float | None:
    """Return the Unix time of an HTTP date in any of its three forms; the oldest has no zone and means UTC."""
    if not text or len(text) > 64:
        return None
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        return (instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant).timestamp()
    except (ValueError, OverflowError):
        return None
