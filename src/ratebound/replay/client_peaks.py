"""The largest use of each client in a second, a minute and an hour: the evidence for limits. Compiled where that can be
done.

Requests are counted as the engine's sliding counter counts them: a client's first window begins with its first request,
and the window before counts by the part of it that the last period still covers, rounded up. A client's `peak` is its
largest estimate. So a limit of N `sliding-counter` denies a request of a client if, and only if, its peak is above N.

Memory is bounded: MOST_RECORDS pairs of a client and a group of endpoints have windows of their own. When there are
more, the half with the fewest requests is closed: its peaks go into histograms, and a client that comes again counts as
another one. Histograms are exact up to 127, and above within 1.6 %.
"""

from typing import Final

from ratebound.numbers import product

SECOND: Final = 1_000_000
PERIODS: Final = (SECOND, 60 * SECOND, 3600 * SECOND)
MOST_RECORDS: Final = 100_000
MOST_GROUPS: Final = 100  # endpoints that have peaks of their own: the first ones of the log
EXACT: Final = 128
HALF: Final = 64
BITS: Final = 7


class CountHistogram:
    """A histogram of counts. Counts below EXACT have a bucket of their own, and larger ones share one with those
    that differ by less than 1.6 %."""

    __slots__ = ("_sums", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * EXACT
        self._sums: list[int] = [0] * EXACT
        self.total = 0
        self.largest = 0

    def add(self, value: int, many: int = 1) -> None:
        """Note a count."""
        if value < EXACT:
            place = value
        else:
            shift = value.bit_length() - BITS
            place = EXACT + (shift - 1) * HALF + (value >> shift) - HALF
            while place >= len(self.counts):
                self.counts += [0] * HALF
                self._sums += [0] * HALF
        self.counts[place] += many
        self._sums[place] += value * many
        self.total += many
        if value > self.largest:
            self.largest = value

    def take(self, other: "CountHistogram") -> None:
        """Add all counts of another histogram."""
        while len(self.counts) < len(other.counts):
            self.counts += [0] * HALF
            self._sums += [0] * HALF
        for place, many in enumerate(other.counts):
            self.counts[place] += many
            self._sums[place] += other._sums[place]
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def percentile(self, share: float) -> int:
        """Return the smallest count that is not below this share of all; 0 if there are none."""
        if share >= 1.0:
            return self.largest
        wanted = share * self.total
        seen = 0
        for place, many in enumerate(self.counts):
            seen += many
            if many and seen >= wanted:
                return min(-(-self._sums[place] // many), self.largest)
        return self.largest

    def above(self, limit: int) -> int:
        """Return how many counts are above a limit."""
        return sum([many for place, many in enumerate(self.counts) if many and self._sums[place] > limit * many])

    def excess(self, limit: int) -> int:
        """Return the sum of what exceeds a limit, of all counts."""
        return sum(
            [
                self._sums[place] - limit * many
                for place, many in enumerate(self.counts)
                if many and self._sums[place] > limit * many
            ]
        )


class ClientWindow:
    """A client's sliding counter for one period. Nothing is ever denied."""

    __slots__ = ("_current", "_end", "_previous", "peak")

    def __init__(self) -> None:
        self._end = 0
        self._current = 0
        self._previous = 0
        self.peak = 0

    def add(self, at: int, period: int, ended: CountHistogram) -> None:
        """Count a request. The count of a window that is over goes to `ended`."""
        left = self._end - at
        if left <= 0:
            if self._current:
                ended.add(self._current)
            if left > -period:
                self._previous = self._current
                self._end += period
                left += period
            else:
                self._previous = 0
                self._end = at + period
                left = period
            self._current = 0
        current = self._current + 1
        self._current = current
        if self._previous:
            current += (product(left, self._previous) + period - 1) // period
        if current > self.peak:
            self.peak = current

    def close(self, ended: CountHistogram) -> None:
        """End the last window."""
        if self._current:
            ended.add(self._current)
        self._current = 0


class ClientPeaks:
    """The windows of one client in one group of endpoints."""

    __slots__ = ("hour", "minute", "requests", "second")

    def __init__(self) -> None:
        self.requests = 0
        self.second = ClientWindow()
        self.minute = ClientWindow()
        self.hour = ClientWindow()

    def peaks(self) -> tuple[int, int, int]:
        """Return the largest use in a second, a minute and an hour."""
        return self.second.peak, self.minute.peak, self.hour.peak


class EndpointGroup:
    """All clients of one endpoint, or of all endpoints together if the name is empty.

    `windows` has the counts of all windows of all clients, and `dropped` the peaks of clients that were dropped, by
    period.
    """

    __slots__ = ("clients", "dropped", "name", "requests", "windows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.clients: dict[str, ClientPeaks] = {}
        self.windows = [CountHistogram() for _ in PERIODS]
        self.dropped = [CountHistogram() for _ in PERIODS]

    def add(self, client: str, at: int) -> int:
        """Count a request of a client. Return the number of records that were added, 0 or 1."""
        self.requests += 1
        found = self.clients.get(client)
        added = 0
        if found is None:
            found = self.clients[client] = ClientPeaks()
            added = 1
        found.requests += 1
        windows = self.windows
        found.second.add(at, SECOND, windows[0])
        found.minute.add(at, 60 * SECOND, windows[1])
        found.hour.add(at, 3600 * SECOND, windows[2])
        return added

    def close(self, client: ClientPeaks) -> None:
        """End the windows of a client."""
        client.second.close(self.windows[0])
        client.minute.close(self.windows[1])
        client.hour.close(self.windows[2])


class PeakTable:
    """The peaks of all clients, over all endpoints and for each group."""

    __slots__ = ("_by_name", "_records", "dropped", "everything", "most")

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self.most = most
        self.everything = EndpointGroup("")
        self.dropped = 0
        self._by_name: dict[str, EndpointGroup] = {}
        self._records = 0

    def add(self, client: str, endpoint: str, at: int) -> None:
        """Count a request."""
        self._records += self.everything.add(client, at)
        group = self._by_name.get(endpoint)
        if group is None and len(self._by_name) < MOST_GROUPS:
            group = self._by_name[endpoint] = EndpointGroup(endpoint)
        if group is not None:
            self._records += group.add(client, at)
        if self._records > self.most:
            self._drop()

    def groups(self) -> list[EndpointGroup]:
        """Return the groups of endpoints, those with the most requests first."""
        return sorted(self._by_name.values(), key=lambda group: (-group.requests, group.name))

    def finish(self) -> None:
        """End all windows."""
        for group in [self.everything, *self._by_name.values()]:
            for client in group.clients.values():
                group.close(client)

    def _drop(self) -> None:
        groups = [self.everything, *self._by_name.values()]
        ranked = sorted([client.requests for group in groups for client in group.clients.values()])
        middle = ranked[len(ranked) // 2]
        to_go = len(ranked) // 2 - len([1 for one in ranked if one < middle])  # of those that have exactly so many
        self._records = 0
        for group in groups:
            kept: dict[str, ClientPeaks] = {}
            for name, client in group.clients.items():
                if client.requests > middle or (client.requests == middle and to_go <= 0):
                    kept[name] = client
                    continue
                if client.requests == middle:
                    to_go -= 1
                group.close(client)
                self.dropped += 1
                for place, peak in enumerate(client.peaks()):
                    group.dropped[place].add(peak)
            group.clients = kept
            self._records += len(kept)
