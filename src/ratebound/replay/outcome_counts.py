"""Counts of a replay: by client, by endpoint and by time. Compiled where that can be done.

Memory is bounded whatever the log holds. Up to MOST_CLIENTS clients have counts of their own, which are exact. When
there are more, the half with the fewest denials and requests is dropped into `others`, and `lost` remembers the largest
counts that were dropped: a client that comes again may miss at most so many. The number of different clients is
estimated then (HyperLogLog, with a standard error of 1.6 %).
"""

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

MOST_CLIENTS: Final = 100_000
MOST_BUCKETS: Final = 240
LONGEST_NAME: Final = 256  # characters of a client; longer ones are cut
SECOND: Final = 1_000_000
# Seconds of a bucket of time. Each divides the next one.
WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800)
REGISTERS: Final = 4096
REGISTER_BITS: Final = 12


class ClientCounts:
    """The requests of one client. Times are microseconds; -1 if there is none.

    `denied` is by the policy, `denied_before` by the policy that it is compared with. `refused` requests have a status
    of 401, 403, 404 or 429 in the log. `denied_us` is the time in which nothing was allowed between two denials.
    `missed` and `missed_denied` are how many more there may be, because the client was dropped before.
    """

    __slots__ = (
        "denied",
        "denied_before",
        "denied_us",
        "first_denied",
        "freed",
        "is_denied",
        "last_denied",
        "missed",
        "missed_denied",
        "name",
        "newly_denied",
        "refused",
        "requests",
        "shadow_denied",
    )

    def __init__(self, name: str, missed: int, missed_denied: int) -> None:
        self.name = name
        self.requests = 0
        self.denied = 0
        self.denied_before = 0
        self.newly_denied = 0
        self.freed = 0
        self.shadow_denied = 0
        self.refused = 0
        self.first_denied = -1
        self.last_denied = -1
        self.denied_us = 0
        self.is_denied = False  # the last request was
        self.missed = missed
        self.missed_denied = missed_denied

    def deny(self, at: int) -> None:
        """Note a denial by the policy."""
        self.denied += 1
        if self.first_denied < 0:
            self.first_denied = at
        if self.is_denied and at > self.last_denied:
            self.denied_us += at - self.last_denied
        self.last_denied = at
        self.is_denied = True


class DistinctNames:
    """An estimate of the number of different names, in 4 KB."""

    __slots__ = ("_registers",)

    def __init__(self) -> None:
        self._registers = bytearray(REGISTERS)

    def add(self, name: str) -> None:
        """Note a name."""
        digest = int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        place = digest % REGISTERS
        rank = 64 - REGISTER_BITS - (digest >> REGISTER_BITS).bit_length() + 1
        if rank > self._registers[place]:
            self._registers[place] = rank

    def estimate(self) -> int:
        """Return about how many different names were added."""
        total = 0.0
        for register in list(self._registers):  # the compiler iterates over no bytearray
            total += 2.0**-register
        found = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS / total
        empty = self._registers.count(0)
        if found <= 2.5 * REGISTERS and empty:
            found = REGISTERS * math.log(REGISTERS / empty)
        return round(found)


class ClientTable:
    """The counts of at most `most` clients, and of all `others` together."""

    __slots__ = ("_all", "_denied", "by_name", "dropped", "lost", "lost_denied", "most", "others")

    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self.most = most
        self.by_name: dict[str, ClientCounts] = {}
        self.others = ClientCounts("others", 0, 0)
        self.dropped = 0  # records; a client that came again may have had several
        self.lost = 0
        self.lost_denied = 0
        self._all = DistinctNames()
        self._denied = DistinctNames()

    def take(self, name: str) -> ClientCounts:
        """Return the counts of a client, which may be new."""
        if len(name) > LONGEST_NAME:
            name = name[:LONGEST_NAME]
        known = self.by_name.get(name)
        if known is not None:
            return known
        if len(self.by_name) >= self.most:
            self._drop()
        if self.dropped:
            self._all.add(name)
        made = self.by_name[name] = ClientCounts(name, self.lost, self.lost_denied)
        return made

    def note_denied(self, name: str) -> None:
        """Note that a client was denied for the first time."""
        if self.dropped:
            self._denied.add(name)

    @property
    def clients(self) -> int:
        """The number of different clients; an estimate if some were dropped."""
        return max(self._all.estimate(), len(self.by_name)) if self.dropped else len(self.by_name)

    @property
    def denied_clients(self) -> int:
        """The number of different clients that the policy denied; an estimate if some were dropped."""
        if self.dropped:
            return self._denied.estimate()
        return len([1 for client in self.by_name.values() if client.denied])

    def _drop(self) -> None:
        if not self.dropped:  # until now the names could be counted
            for client in self.by_name.values():
                self._all.add(client.name)
                if client.denied:
                    self._denied.add(client.name)
        ranked = sorted(self.by_name.values(), key=_weight, reverse=True)
        kept = ranked[: self.most // 2]
        others = self.others
        most = most_denied = 0
        for client in ranked[self.most // 2 :]:
            others.requests += client.requests
            others.denied += client.denied
            others.denied_before += client.denied_before
            others.newly_denied += client.newly_denied
            others.freed += client.freed
            others.shadow_denied += client.shadow_denied
            others.refused += client.refused
            most = max(most, client.requests)
            most_denied = max(most_denied, client.denied)
        self.dropped += len(ranked) - len(kept)
        self.lost += most
        self.lost_denied += most_denied
        self.by_name = {client.name: client for client in kept}


def _weight(client: ClientCounts) -> tuple[int, int]:
    return client.denied + client.denied_before + client.shadow_denied, client.requests


class EndpointCounts:
    """The requests to one endpoint."""

    __slots__ = ("denied", "denied_before", "name", "requests", "shadow_denied")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.denied = 0
        self.denied_before = 0
        self.shadow_denied = 0


class TimeBucket:
    """The requests from `start` on, in microseconds, for one width of the timeline."""

    __slots__ = ("denied", "denied_before", "requests", "shadow_denied", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.requests = 0
        self.denied = 0
        self.denied_before = 0
        self.shadow_denied = 0

    def take(self, other: "TimeBucket") -> None:
        """Add the counts of another bucket."""
        self.requests += other.requests
        self.denied += other.denied
        self.denied_before += other.denied_before
        self.shadow_denied += other.shadow_denied


class Timeline:
    """Buckets of time, at most MOST_BUCKETS. Their `width` (microseconds) grows with the time that the log spans."""

    __slots__ = ("_step", "buckets", "width")

    def __init__(self) -> None:
        self._step = 0
        self.width = WIDTHS[0] * SECOND
        self.buckets: dict[int, TimeBucket] = {}

    def bucket(self, at: int) -> TimeBucket:
        """Return the bucket of an instant."""
        start = at - at % self.width
        found = self.buckets.get(start)
        if found is None:
            found = self.buckets[start] = TimeBucket(start)
            while len(self.buckets) > 1 and self._span() > MOST_BUCKETS:
                self._widen()
                found = self.buckets[at - at % self.width]
        return found

    def _span(self) -> int:
        return (max(self.buckets) - min(self.buckets)) // self.width + 1

    def _widen(self) -> None:
        self._step += 1
        self.width = WIDTHS[self._step] * SECOND if self._step < len(WIDTHS) else self.width + self.width
        wider: dict[int, TimeBucket] = {}
        for start, bucket in self.buckets.items():
            start -= start % self.width
            if start in wider:
                wider[start].take(bucket)
            else:
                bucket.start = start
                wider[start] = bucket
        self.buckets = wider

    def ordered(self) -> list[TimeBucket]:
        """Return all buckets from the first to the last, also the empty ones between them."""
        if not self.buckets:
            return []
        starts: Iterable[int] = range(min(self.buckets), max(self.buckets) + 1, self.width)
        return [self.buckets.get(start) or TimeBucket(start) for start in starts]
