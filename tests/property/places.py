"""What places in the future mean, written as plainly as possible: a list of stretches of time that do not overlap.

Each admitted request has one, as long as its cost takes to come back. A request takes the first stretch that is free
and long enough; it goes ahead when its stretch ends no later than a whole burst from then (a leaky bucket: when it
begins). Giving it back frees the stretch. Slow and obvious on purpose, and without a bound on what it remembers.
"""

from bisect import insort
from typing import NamedTuple

from ratebound import Limit


class Place(NamedTuple):
    """A stretch of time in 1/count microseconds, and the instant at which its request goes ahead."""

    begin: int
    end: int
    goes: int


class Bucket:
    def __init__(self, limit: Limit, places: list[Place]) -> None:
        self.limit = limit
        self.places = places  # in order

    def first_free(self, now: int, cost: int) -> int:
        begin = now * self.limit.count
        for place in self.places:
            if place.begin >= begin + cost * self.limit.period_us:
                break
            begin = max(begin, place.end)
        return begin

    def conforms(self, now: int, cost: int) -> int:
        return (self.first_free(now, cost) - (self.limit.burst - cost) * self.limit.period_us) // self.limit.count

    def delay(self, now: int, cost: int) -> int:
        if self.limit.queues:
            return self.first_free(now, cost) // self.limit.count - now
        return max(self.conforms(now, cost) - now, 0)

    def admits(self, now: int, cost: int, patience: int | None) -> bool:
        if patience is None:
            return self.conforms(now, cost) <= now
        return self.delay(now, cost) <= patience

    def left(self, now: int, most: int) -> int:
        """How many units pass now, one after the other, up to `most`."""
        copy = Bucket(self.limit, self.places.copy())
        for units in range(most):
            if not copy.admits(now, 1, None):
                return units
            copy.take(now, 1)
        return most

    def take(self, now: int, cost: int) -> Place:
        begin = self.first_free(now, cost)
        place = Place(begin, begin + cost * self.limit.period_us, now + self.delay(now, cost))
        insort(self.places, place)
        return place

    def give_back(self, place: Place) -> None:
        self.places.remove(place)
