"""A snapshot of what one process has counted, as JSON can hold it: published in a storage, and sent between processes.

All counts only grow while a process runs, so that any two snapshots of it give rates. Snapshots of other processes are
checked when they are read: another version may have written them, or somebody else.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

from ratebound.observe.label import SECONDS

BUCKETS: Final = len(SECONDS) + 1
MAX_BYTES: Final = 32_768  # of a snapshot that is published
MAX_ENTRIES: Final = 300  # of each part of a snapshot that is read


class Snapshot(TypedDict):
    """The counts of one process since it began, and the state that it sees now.

    `run` is chosen anew whenever counting begins. `ticks` are seconds of a clock that never goes back. `allowed` and
    `denied` count all decisions, and `degraded` those of them that were made without the storage. `shed` are requests
    that were turned away because of overload; they are not among the denied.
    """

    run: str
    name: str  # host:process
    ticks: float
    allowed: int
    denied: int
    degraded: int
    shed: int
    seconds: list[int]  # decisions by the time that they took, see SECONDS
    rules: dict[str, list[int]]  # allowed, denied
    used: dict[str, list[Any]]  # by limit: its rule, the sum of used shares, how many they are
    shadows: dict[str, list[Any]]  # by rule: allowed, denied, then the same of the rule itself; and since when
    candidates: dict[str, list[Any]]  # the same for candidate limits
    nodes: dict[str, list[Any]]  # is out of reach, calls, errors, calls by the time that they took
    keys: list[Any] | None  # states, the most that there can be, and if all processes share them
    factors: dict[str, float]  # by priority
    slots: dict[str, int]  # held by this process, by limit
    top: list[list[Any]]  # digest, denials, error
    penalized: list[list[Any]]  # digest, penalty, seconds
    blocked: NotRequired[list[str]]  # digests of `top` that operators block
    age: NotRequired[float]  # seconds since a reader has last seen it change; the reader adds it


def written_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as a document. If it is too long, the last entries of its longest part are left out."""
    parts: dict[str, Any] = dict(snapshot)
    while True:
        content = json.dumps(parts, separators=(",", ":")).encode()
        if len(content) <= MAX_BYTES:
            return content
        name, longest = max(
            ((name, part) for name, part in parts.items() if isinstance(part, dict | list) and name != "seconds"),
            key=lambda found: len(json.dumps(found[1])),
        )
        kept = len(longest) // 2
        parts[name] = longest[:kept] if isinstance(longest, list) else dict(list(longest.items())[:kept])


def read_snapshot(content: bytes | Mapping[str, Any]) -> Snapshot | None:
    """Return a snapshot that another process has written, None if it cannot be used."""
    try:
        found: Any = json.loads(content) if isinstance(content, bytes) else content
        snapshot: Snapshot = {
            "run": _text(found["run"]),
            "name": _text(found["name"]),
            "ticks": _number(found["ticks"]),
            "allowed": _count(found["allowed"]),
            "denied": _count(found["denied"]),
            "degraded": _count(found["degraded"]),
            "shed": _count(found["shed"]),
            "seconds": _buckets(found["seconds"]),
            "rules": _each(found["rules"], _count, _count),
            "used": _each(found["used"], _text, _number, _count),
            "shadows": _each(found["shadows"], _count, _count, _count, _count, _number),
            "candidates": _each(found["candidates"], _count, _count, _count, _count, _number),
            "nodes": _each(found["nodes"], bool, _count, _count, _buckets),
            "keys": None if found["keys"] is None else _fields(found["keys"], _count, _count, bool),
            "factors": {_text(name): _number(factor) for name, factor in _items(found["factors"])},
            "slots": {_text(name): _count(held) for name, held in _items(found["slots"])},
            "top": [_fields(one, _text, _count, _count) for one in found["top"][:MAX_ENTRIES]],
            "penalized": [_fields(one, _text, _text, _number) for one in found["penalized"][:MAX_ENTRIES]],
        }
        if "blocked" in found:
            snapshot["blocked"] = [_text(one) for one in found["blocked"][:MAX_ENTRIES]]
        if "age" in found:
            snapshot["age"] = _number(found["age"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return snapshot


def _each(found: Any, *kinds: Any) -> dict[str, list[Any]]:
    return {_text(name): _fields(fields, *kinds) for name, fields in _items(found)}


def _items(found: Any) -> list[tuple[Any, Any]]:
    return list(found.items())[:MAX_ENTRIES]


def _fields(found: Any, *kinds: Any) -> list[Any]:
    if type(found) is not list:
        raise TypeError("expected a list")
    return [kind(value) for kind, value in zip(kinds, found, strict=True)]


def _text(found: Any) -> str:
    if type(found) is not str or len(found) > 256:
        raise TypeError("expected a short text")
    return found


def _number(found: Any) -> float:
    if type(found) not in (int, float) or not 0 <= found < 1e18:  # not NaN either
        raise TypeError("expected a number")
    return float(found)


def _count(found: Any) -> int:
    if type(found) is not int or not 0 <= found < 10**18:
        raise TypeError("expected a count")
    return found


def _buckets(found: Any) -> list[int]:
    return _fields(found, *[_count] * BUCKETS)
