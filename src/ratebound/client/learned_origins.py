"""The servers that one process calls: the quotas that it knows of each origin. Its memory is bounded."""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ratebound.client.learned_limits import BUCKET, LOG, MAX_LEARNED, SMOOTH, WINDOW, Shape, Sight, Watch
from ratebound.clock import SECOND, seconds
from ratebound.http.quota import Quota
from ratebound.limit import MAX_COUNT

MAX_ORIGINS = 256  # the origin that was used longest ago is forgotten
MAX_QUOTAS = 32  # of one origin
MAX_SHARED = 200  # quotas in the shared document
KINDS = (WINDOW, BUCKET, LOG, SMOOTH)
UNFIT = re.compile(r"[^A-Za-z0-9_.:/-]+")

QuotaId = tuple[str, bytes | None, str]  # name, partition, unit


class KnownLimit(NamedTuple):
    """A limit that a pacer keeps to, for people. Durations are seconds.

    Attributes:
        origin: The scheme, host and port of the API, or the name of the pacer.
        name: The name of the limit.
        unit: What is counted: "requests", "tokens", ….
        limit: The units of a window.
        window: The length of the window.
        kind: "configured", "window", "bucket", "log", or "smooth" while it is not known.
        remaining: What the last answer said; None if it said nothing.
    """

    origin: str
    name: str
    unit: str
    limit: int
    window: float
    kind: str
    remaining: int | None = None


class LearnedQuota:
    """One quota of an origin: its shape, and what this process saw of it."""

    __slots__ = ("key", "label", "name", "remaining", "shape", "unit", "watch")

    def __init__(self, key: str, quota: Quota) -> None:
        self.key = key
        self.name = quota.name
        self.unit = quota.unit
        self.label = _label(quota)
        self.shape: Shape | None = None
        self.remaining: int | None = None
        self.watch = Watch()


class LearnedOrigin:
    """All that is known of one origin. `answered` is True once an answer came, whatever it said.

    `probe_until` is the instant until which others wait for the first answer. `closed_until` is the end of the last
    refusal that this process saw, and `last_turn` the last turn that it gave, or its first caller. All are of this
    process's clock, which never steps back.
    """

    __slots__ = ("answered", "closed_until", "gate", "last_turn", "name", "probe_until", "quotas", "silent")

    def __init__(self, name: str, gate: str) -> None:
        self.name = name
        self.gate = gate
        self.quotas: OrderedDict[QuotaId, LearnedQuota] = OrderedDict()
        self.answered = False
        self.silent = False
        self.probe_until = 0.0
        self.closed_until = 0.0
        self.last_turn = 0.0

    def quota(self, key: str, quota: Quota) -> LearnedQuota:
        """Return what is known of a quota, which may be nothing. The one that was seen longest ago is forgotten."""
        found = self.quotas.get(id_of(quota))
        if found is None:
            found = self.quotas[id_of(quota)] = LearnedQuota(key, quota)
            if len(self.quotas) > MAX_QUOTAS:
                self.quotas.popitem(last=False)
        self.quotas.move_to_end(id_of(quota))
        return found


class LearnedOrigins:
    """All origins that a pacer has called. The caller holds the pacer's lock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._origins: OrderedDict[str, LearnedOrigin] = OrderedDict()

    def __iter__(self) -> Iterator[LearnedOrigin]:
        return iter(self._origins.values())

    def origin(self, name: str) -> LearnedOrigin:
        """Return what is known of an origin, which may be nothing."""
        found = self._origins.get(name)
        if found is None:
            found = self._origins[name] = LearnedOrigin(name, self.key(name, "gate"))
            if len(self._origins) > MAX_ORIGINS:
                self._origins.popitem(last=False)
        self._origins.move_to_end(name)
        return found

    def key(self, *parts: str) -> str:
        """Return the key of something in the storage. Names of strangers are not part of it in clear."""
        text = json.dumps([self._name, *parts])
        return f"pacer {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    def quota_key(self, origin: str, quota: Quota) -> str:
        """Return the key of a quota in the storage."""
        return self.key(origin, "quota", quota.name, (quota.partition or b"").hex(), quota.unit)


def id_of(quota: Quota) -> QuotaId:
    """Return the identity of a quota within its origin."""
    return quota.name, quota.partition, quota.unit


def known_limit(origin: LearnedOrigin, quota: LearnedQuota, shape: Shape) -> KnownLimit:
    """Return a learned quota for people."""
    shown = (origin.name, printable(quota.name), quota.unit, shape.units, seconds(shape.period), shape.kind)
    return KnownLimit(*shown, quota.remaining)


def printable(text: str) -> str:
    """Return a text of a stranger that is safe to show in a terminal: short, and without control characters."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text[:64])


def _label(quota: Quota) -> str:
    """Return the name of the limit that mirrors a quota, as errors show it."""
    text = UNFIT.sub("-", f"{quota.name or 'limit'}:{quota.unit}")[:56].strip("-")
    return f"server:{text}"


class SharedShape(NamedTuple):
    """One entry of the shared document: the shape of a quota, under the quota's key."""

    origin: str
    quota: Quota
    shape: Shape


def read_shapes(content: bytes) -> dict[str, SharedShape]:
    """Return the entries of a shared document by key, the oldest first. What cannot be read is left out."""
    try:
        entries = list(json.loads(content)["quotas"].items())[:MAX_SHARED] if content else []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    found = {}
    for key, entry in entries:
        try:
            found[key] = _read_shape(entry)
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
    return found


def _read_shape(entry: Any) -> SharedShape:
    shape = Shape(*entry["shape"])
    epoch = abs(shape.epoch) if type(shape.epoch) is int else None  # it is negative after a clock stepped back
    numbers = (shape.units, shape.period, shape.early, shape.end, epoch, *shape[10:])
    if any(type(number) is not int or not 0 <= number < 2**53 for number in numbers):
        raise ValueError("a number of a shape is out of range")
    if not (1 <= shape.units <= MAX_COUNT and 1 <= shape.period <= MAX_LEARNED and shape.fill <= shape.period):
        raise ValueError("no limit can mirror a shape")
    if shape.kind not in KINDS or shape.before not in ("", *KINDS):
        raise ValueError("a shape has an unknown kind")
    partition = entry["partition"]
    partition = None if partition is None else bytes.fromhex(partition)
    return SharedShape(
        str(entry["origin"]), Quota(str(entry["name"]), unit=str(entry["unit"]), partition=partition), shape
    )


def write_shapes(entries: dict[str, SharedShape]) -> bytes:
    """Return the entries as a shared document. The oldest ones are left out if there are too many."""
    kept = list(entries.items())[-MAX_SHARED:]
    tree = {
        key: {
            "origin": origin,
            "name": quota.name,
            "unit": quota.unit,
            "partition": None if quota.partition is None else quota.partition.hex(),
            "shape": list(shape),
        }
        for key, (origin, quota, shape) in kept
    }
    return json.dumps({"quotas": tree}, separators=(",", ":")).encode()


def sight_of(quota: Quota, sent: int, received: int, *, delayed: bool, count: int, unspent: int | None = None) -> Sight:
    """Return one quota of an answer in microseconds."""
    return Sight(
        count,
        None if quota.remaining is None else max(int(quota.remaining), 0),
        None if not quota.window else min(round(quota.window * SECOND), MAX_LEARNED),
        None if quota.reset_after is None else min(max(round(quota.reset_after * SECOND), 0), MAX_LEARNED),
        quota.kind,
        sent,
        received,
        delayed,
        unspent,
    )
