"""The figures of all processes as a dashboard shows them: rates, and their history of an hour. No I/O here.

Processes send cumulative counts. The rate of a process is the difference of two of its snapshots by the time between
them, on its own clock. It holds until the next snapshot comes, or for a little longer than snapshots take if none
comes. So a process that starts, ends, restarts or was out of sight makes no spike: its first snapshot gives no rate,
and a count that falls gives none either.

Times below which half, or 99 %, of decisions are come from the counts by bucket, with a straight line within a bucket:
they are as exact as the bounds are close. Above the last bound, the bound is shown.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ratebound.observe.figures_snapshot import BUCKETS, Snapshot
from ratebound.observe.label import SECONDS

RECENT: Final = 120  # points of one second
HOUR: Final = 360  # points of ten seconds
STEP: Final = 10  # seconds
RATES_OVER: Final = 5  # seconds over which the shown rates are means
LATENCY_OVER: Final = 10  # seconds
HOLD: Final = 1.0  # seconds that a rate is held longer than 1.5 times the time between two snapshots
KEPT: Final = 60.0  # seconds after which a process that is out of sight is forgotten
LONGEST_GAP: Final = 10  # seconds: a longer pause of the view is a gap in its history
MOST_RULES: Final = 100  # in a view
MOST_CLIENTS: Final = 50
MOST_HISTORIES: Final = 50  # rules with a history
MOST_ENDED: Final = 256  # processes that ended, whose shadows are known apart from those of the others
TOTALS: Final = ("allowed", "denied", "degraded", "shed")

Key = tuple[Any, ...]  # names a count: ("allowed",), ("rule", "login", 0)
Point = list[float | None]


class Process:
    """A process as the view knows it: its last snapshot, and its rates by the names of counts. `was_local` is True if
    it has sent snapshots itself, not only published them."""

    __slots__ = ("changed", "counts", "held_for", "rates", "snapshot", "ticks", "was_local")

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot = snapshot
        self.ticks = snapshot["ticks"]
        self.counts = dict(_counts(snapshot))
        self.rates: dict[Key, float] = {}
        self.held_for = 0.0
        self.changed = now
        self.was_local = False

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Take a snapshot. The same one again changes nothing."""
        passed = snapshot["ticks"] - self.ticks
        self.snapshot = snapshot
        if passed <= 0:
            return
        before = self.counts
        self.ticks = snapshot["ticks"]
        self.counts = dict(_counts(snapshot))
        self.rates = {
            name: (count - before.get(name, 0)) / passed
            for name, count in self.counts.items()
            if count > before.get(name, 0)
        }
        self.held_for = 1.5 * passed + HOLD
        self.changed = now

    def rates_at(self, now: float) -> dict[Key, float]:
        """Return the rates that hold now."""
        return self.rates if now - self.changed <= self.held_for else {}


class FiguresView:
    """The figures of all processes. Give it their snapshots once a second, by `take`.

    `clock` never goes back, `wall_clock` tells the time of day; both in seconds. It is thread-safe.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._processes: dict[str, Process] = {}
        self._present: dict[str, bool] = {}  # the processes of the last look; True for those of this host's service
        self._problem = ""
        self._second: int | None = None  # of the last point
        self._seconds: deque[dict[Key, float] | None] = deque(maxlen=RECENT)  # sums of all rates; None in a gap
        self._recent: deque[Point | None] = deque(maxlen=RECENT)
        self._step: list[dict[Key, float]] = []  # the seconds of the step that has begun
        self._hour: deque[Point | None] = deque(maxlen=HOUR)
        self._rules: deque[dict[str, list[float]] | None] = deque(maxlen=HOUR)  # allowed and denied by rule
        self._ended: dict[str, tuple[Snapshot, float]] = {}  # the last snapshot of a process, and when it was seen
        self._lock = threading.Lock()

    def take(self, own: Iterable[Snapshot], others: Iterable[Snapshot] = (), problem: str = "") -> None:
        """Take the snapshots of this process, or of the workers of this service, and those of other processes.

        A process that is in both counts once. One that has sent its own and does so no longer has ended: what it has
        published counts no more, because another process may do its work already. `problem` is a sentence for the
        operator, for example that the storage does not answer.
        """
        with self._lock:
            now = self._clock()
            self._problem = problem
            self._present = {}
            for snapshot in own:
                self._take(snapshot, now, is_local=True)
            for snapshot in others:
                known = self._processes.get(snapshot["run"])
                has_ended = known is not None and known.was_local
                if snapshot["run"] not in self._present and not has_ended:
                    self._take(snapshot, now, is_local=False)
            self._forget(now)
            self._record(now)

    def view(self) -> dict[str, Any]:
        """Return the figures of now, as JSON can hold them."""
        with self._lock:
            rates = _mean(self._last(RATES_OVER))
            latest = _sum(self._last(LATENCY_OVER))
            present = [self._processes[run] for run in self._present if run in self._processes]
            snapshots = [process.snapshot for process in present]
            p50, p99 = (_quantile(share, _buckets(latest, "seconds")) for share in (0.5, 0.99))
            return {
                "at": self._wall_clock(),
                "processes": [
                    {
                        "name": process.snapshot["name"],
                        "age": _shown(process.snapshot.get("age", 0.0)),
                        "is_local": self._present[process.snapshot["run"]],
                    }
                    for process in present
                ],
                "problem": self._problem,
                "total": {name: _shown(rates.get((name,), 0.0)) for name in TOTALS},
                "latency": None if p50 is None else {"p50": p50, "p99": p99},
                "rules": _rules(rates, latest, self._known_rules(snapshots), snapshots),
                "storage": {"nodes": _nodes(rates, latest, snapshots), **_keys(snapshots)},
                "factors": _factors(snapshots),
                "slots": _slots(snapshots),
                "top": _top(snapshots),
                "penalized": _penalized(snapshots),
                "shadow_report": self._shadow_report(snapshots),
            }

    def history(self) -> dict[str, Any]:
        """Return the history of the last two minutes and of the last hour, as JSON can hold it. A gap is None."""
        with self._lock:
            end = float(int(self._wall_clock()))
            amounts: dict[str, list[float]] = {}
            for rules in self._rules:
                for rule, (allowed, denied) in (rules or {}).items():
                    amount = amounts.setdefault(rule, [0.0, 0.0])
                    amount[0] += denied
                    amount[1] += allowed
            shown = sorted(amounts, key=lambda rule: (-amounts[rule][0], -amounts[rule][1], rule))[:MOST_HISTORIES]
            return {
                "recent": {"step": 1, "end": end, "points": _padded(self._recent, RECENT)},
                "hour": {"step": STEP, "end": end - len(self._step), "points": _padded(self._hour, HOUR)},
                "rules": {
                    rule: _padded(
                        [None if rules is None else rules.get(rule, [0.0, 0.0]) for rules in self._rules], HOUR
                    )
                    for rule in shown
                },
            }

    def _take(self, snapshot: Snapshot, now: float, *, is_local: bool) -> None:
        run = snapshot["run"]
        self._present[run] = is_local
        known = self._processes.get(run)
        if known is None:
            known = self._processes[run] = Process(snapshot, now)
            self._ended.pop(run, None)
        else:
            known.take(snapshot, now)
        known.was_local = known.was_local or is_local

    def _forget(self, now: float) -> None:
        for run, process in list(self._processes.items()):
            if run not in self._present and now - process.changed > KEPT:
                del self._processes[run]
                self._end(run, process.snapshot)

    def _end(self, run: str, snapshot: Snapshot) -> None:
        """Keep the shadows of a process that has ended."""
        if snapshot["shadows"] or snapshot["candidates"]:
            self._ended[run] = snapshot, self._wall_clock() - KEPT
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def _record(self, now: float) -> None:
        """Add points for the seconds since the last one."""
        second = int(now)
        if self._second is None:
            self._second = second  # rates need two looks
            return
        passed = second - self._second
        if passed < 1:
            return
        self._second = second
        is_gap = passed > LONGEST_GAP
        rates = _sum(
            [
                process.rates_at(now)
                for run, process in self._processes.items()
                if run in self._present or self._problem  # else it has gone, and perhaps another has taken its place
            ]
        )
        for _ in range(min(passed, HOUR * STEP)):
            self._add_second(None if is_gap else rates)

    def _add_second(self, rates: dict[Key, float] | None) -> None:
        self._seconds.append(rates)
        self._recent.append(None if rates is None else _point(rates))
        self._step.append({} if rates is None else {**rates, _SEEN: 1.0})
        if len(self._step) < STEP:
            return
        seen = [each for each in self._step if each]
        self._step = []
        mean = _mean(seen) if seen else None
        self._hour.append(None if mean is None else _point(mean))
        self._rules.append(None if mean is None else _rule_rates(mean))

    def _last(self, seconds: int) -> list[dict[Key, float]]:
        """Return the sums of all rates in the last seconds, without gaps."""
        found = list(self._seconds)[-seconds:]
        return [each for each in found if each is not None]

    def _known_rules(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """Return the rules to show: those that decided in the last hour, and those that have shadows."""
        known = {rule for rules in self._rules for rule in rules or ()}
        for snapshot in snapshots:
            known.update(snapshot["shadows"], snapshot["candidates"])
        return known

    def _shadow_report(self, snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
        """Return what shadows would have decided, since the first of the processes that run has counted them.

        Processes that have ended since then are part of it. Those that ended before may have had other limits.
        """
        found: dict[tuple[str, bool], list[Any]] = {}
        for snapshot in snapshots:
            for name, row in _shadows(snapshot):
                known = found.setdefault(name, [0, 0, 0, 0, row[4]])
                known[:] = [*_added(known, row), min(known[4], row[4])]
        since = {name: row[4] for name, row in found.items()}
        ended = [(self._processes[run].snapshot, None) for run in self._processes if run not in self._present]
        for snapshot, end in (*ended, *self._ended.values()):
            for name, row in _shadows(snapshot):
                if name in since and (end is None or end > since[name]):
                    found[name][:4] = _added(found[name], row)
        return [
            {
                "rule": rule,
                "candidate": candidate,
                "allowed": row[0],
                "denied": row[1],
                "live_allowed": row[2],
                "live_denied": row[3],
                "since": row[4],
            }
            for (rule, candidate), row in sorted(found.items())
        ][:MOST_RULES]


_SEEN: Final[Key] = ("seen",)


def _counts(snapshot: Snapshot) -> Iterator[tuple[Key, float]]:
    """Yield all counts of a snapshot that only grow, by their names."""
    yield ("allowed",), snapshot["allowed"]
    yield ("denied",), snapshot["denied"]
    yield ("degraded",), snapshot["degraded"]
    yield ("shed",), snapshot["shed"]
    for place, count in enumerate(snapshot["seconds"]):
        yield ("seconds", place), count
    for rule, (allowed, denied) in snapshot["rules"].items():
        yield ("rule", rule, 0), allowed
        yield ("rule", rule, 1), denied
    for limit, (rule, total, many) in snapshot["used"].items():
        yield ("used", rule, limit, 0), total
        yield ("used", rule, limit, 1), many
    for kind, shadows in (("shadow", snapshot["shadows"]), ("candidate", snapshot["candidates"])):
        for rule, row in shadows.items():
            yield (kind, rule, 0), row[0]
            yield (kind, rule, 1), row[1]
    for node, (_, calls, errors, seconds) in snapshot["nodes"].items():
        yield ("calls", node), calls
        yield ("errors", node), errors
        for place, count in enumerate(seconds):
            yield ("node", node, place), count


def _sum(parts: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for part in parts:
        for name, number in part.items():
            found[name] = found.get(name, 0.0) + number
    return found


def _mean(parts: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    return {name: number / len(parts) for name, number in _sum(parts).items()}


def _point(rates: Mapping[Key, float]) -> Point:
    point: Point = [_shown(rates.get((name,), 0.0)) for name in TOTALS]
    return [*point, _quantile(0.99, _buckets(rates, "seconds"))]


def _rule_rates(rates: Mapping[Key, float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, rate in rates.items():
        if name[0] == "rule":
            found.setdefault(name[1], [0.0, 0.0])[name[2]] = _shown(rate)
    return found


def _buckets(rates: Mapping[Key, float], *name: str) -> list[float]:
    return [rates.get((*name, place), 0.0) for place in range(BUCKETS)]


def _quantile(share: float, buckets: Sequence[float]) -> float | None:
    """Return the seconds below which this share of what was counted is; None if nothing was."""
    wanted = share * sum(buckets)
    if wanted <= 0:
        return None
    below = 0.0
    for place, many in enumerate(buckets[:-1]):
        if many and below + many >= wanted:
            least = SECONDS[place - 1] if place else 0.0
            return float(f"{least + (SECONDS[place] - least) * (wanted - below) / many:.4g}")
        below += many
    return SECONDS[-1]


def _shown(number: float) -> float:
    return round(number, 3)


def _padded(points: Iterable[Any], many: int) -> list[Any]:
    found = list(points)
    return [None] * (many - len(found)) + found


def _rules(
    rates: Mapping[Key, float], latest: Mapping[Key, float], known: set[str], snapshots: Sequence[Snapshot]
) -> list[dict[str, Any]]:
    known = known | {name[1] for name in rates if name[0] == "rule"}
    used: dict[str, float] = {}
    for name, many in latest.items():
        if name[0] == "used" and name[3] == 1:
            share = latest.get((*name[:3], 0), 0.0) / many
            used[name[1]] = max(used.get(name[1], 0.0), min(share, 1.0))
    shadows = {rule for snapshot in snapshots for rule in snapshot["shadows"]}
    candidates = {rule for snapshot in snapshots for rule in snapshot["candidates"]}

    def pair(kind: str, rule: str) -> dict[str, float]:
        allowed, denied = (_shown(rates.get((kind, rule, place), 0.0)) for place in (0, 1))
        return {"allowed": allowed, "denied": denied}

    found: list[dict[str, Any]] = [
        {
            "rule": rule,
            **pair("rule", rule),
            "used": _shown(used[rule]) if rule in used else None,
            "shadow": pair("shadow", rule) if rule in shadows else None,
            "candidate": pair("candidate", rule) if rule in candidates else None,
        }
        for rule in known
    ]
    found.sort(key=lambda one: (-one["denied"], -one["allowed"], one["rule"]))
    return found[:MOST_RULES]


def _nodes(
    rates: Mapping[Key, float], latest: Mapping[Key, float], snapshots: Sequence[Snapshot]
) -> list[dict[str, Any]]:
    is_open: dict[str, bool] = {}
    for snapshot in snapshots:
        for node, row in snapshot["nodes"].items():
            is_open[node] = is_open.get(node, False) or row[0]
    return [
        {
            "node": node,
            "is_open": is_open[node],
            "calls": _shown(rates.get(("calls", node), 0.0)),
            "errors": _shown(rates.get(("errors", node), 0.0)),
            "p99": _quantile(0.99, _buckets(latest, "node", node)),
        }
        for node in sorted(is_open)
    ]


def _keys(snapshots: Sequence[Snapshot]) -> dict[str, int | None]:
    """Return how many states there are: in a storage that all share, or in the memories of all processes together."""
    found = [snapshot["keys"] for snapshot in snapshots if snapshot["keys"] is not None]
    if not found:
        return {"keys": None, "max_keys": None}
    if any(row[2] for row in found):
        found = [row for row in found if row[2]][:1]
    return {"keys": sum(row[0] for row in found), "max_keys": sum(row[1] for row in found)}


def _factors(snapshots: Sequence[Snapshot]) -> dict[str, float]:
    """Return the lowest factor that a process has, for each priority."""
    found: dict[str, float] = {}
    for snapshot in snapshots:
        for priority, factor in snapshot["factors"].items():
            found[priority] = min(found.get(priority, 1.0), factor)
    return found


def _slots(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    found: dict[str, int] = {}
    for snapshot in snapshots:
        for limit, held in snapshot["slots"].items():
            found[limit] = found.get(limit, 0) + held
    return [{"limit": limit, "held": held} for limit, held in sorted(found.items(), key=lambda one: (-one[1], one[0]))]


def _top(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """Return the clients that were denied most. Each was denied at least `denials` - `error` times."""
    found: dict[str, list[int]] = {}
    blocked: set[str] = set()
    for snapshot in snapshots:
        blocked.update(snapshot.get("blocked", ()))
        for client, denials, error in snapshot["top"]:
            row = found.setdefault(client, [0, 0])
            row[0] += denials
            row[1] += error
    ordered = sorted(found.items(), key=lambda one: (-one[1][0], one[1][1], one[0]))
    return [
        {"client": client, "denials": row[0], "error": row[1], "blocked": client in blocked}
        for client, row in ordered[:MOST_CLIENTS]
    ]


def _penalized(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], float] = {}
    for snapshot in snapshots:
        age = snapshot.get("age", 0.0)
        for client, limit, seconds in snapshot["penalized"]:
            if seconds > age:
                found[client, limit] = max(found.get((client, limit), 0.0), seconds - age)
    ordered = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:MOST_CLIENTS]
    return [{"client": client, "limit": limit, "seconds": _shown(left)} for (client, limit), left in ordered]


def _shadows(snapshot: Snapshot) -> Iterator[tuple[tuple[str, bool], list[Any]]]:
    for rule, row in snapshot["shadows"].items():
        yield (rule, False), row
    for rule, row in snapshot["candidates"].items():
        yield (rule, True), row


def _added(row: Sequence[Any], other: Sequence[Any]) -> list[int]:
    return [one + two for one, two in zip(row[:4], other[:4], strict=True)]
