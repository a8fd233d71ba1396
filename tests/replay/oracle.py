"""A plain replay: three algorithms in a few lines each, as their definitions say, without the engine."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from ratebound.replay.entry import Entry

SECOND = 1_000_000


class NaiveWindow:
    """At most `count` in each window of `period` that is aligned to the epoch."""

    def __init__(self, count: int, period: int) -> None:
        self.count, self.period = count, period
        self.seen: Counter[tuple[str, int]] = Counter()

    def fits(self, client: str, at: int) -> bool:
        return self.seen[client, at // self.period] < self.count

    def spend(self, client: str, at: int) -> None:
        self.seen[client, at // self.period] += 1


class NaiveLog:
    """At most `count` in any `period`."""

    def __init__(self, count: int, period: int) -> None:
        self.count, self.period = count, period
        self.seen: dict[str, list[int]] = {}

    def fits(self, client: str, at: int) -> bool:
        return len([one for one in self.seen.get(client, []) if at - one < self.period]) < self.count

    def spend(self, client: str, at: int) -> None:
        self.seen.setdefault(client, []).append(at)


class NaiveBucket:
    """A bucket of `burst` tokens that gets `count` in each `period`."""

    def __init__(self, count: int, period: int, burst: int) -> None:
        self.rate, self.burst = Fraction(count, period), burst
        self.tokens: dict[str, tuple[Fraction, int]] = {}

    def fits(self, client: str, at: int) -> bool:
        return self._now(client, at) >= 1

    def spend(self, client: str, at: int) -> None:
        self.tokens[client] = self._now(client, at) - 1, at

    def _now(self, client: str, at: int) -> Fraction:
        tokens, since = self.tokens.get(client, (Fraction(self.burst), at))
        return min(Fraction(self.burst), tokens + (at - since) * self.rate)


class NaiveRule(NamedTuple):
    name: str
    matches: Callable[[Entry], bool]
    limits: list[NaiveWindow | NaiveLog | NaiveBucket]


class NaiveReplay:
    """The counts of rules, limits and clients. A request is charged to all limits or to none."""

    def __init__(self, rules: Sequence[NaiveRule]) -> None:
        self.rules = rules
        self.of_rules: Counter[tuple[str, bool]] = Counter()
        self.of_limits: Counter[tuple[str, int, bool]] = Counter()
        self.of_clients: Counter[tuple[str, bool]] = Counter()

    def feed(self, entries: Sequence[Entry], times: Sequence[int]) -> None:
        for entry, at in zip(entries, times, strict=True):
            found = [rule for rule in self.rules if rule.matches(entry)]
            fit = [[limit.fits(entry.address, at) for limit in rule.limits] for rule in found]
            allowed = all(map(all, fit))
            for rule, answers in zip(found, fit, strict=True):
                self.of_rules[rule.name, all(answers)] += 1
                for place, answer in enumerate(answers):
                    self.of_limits[rule.name, place, answer] += 1
                    if allowed:
                        rule.limits[place].spend(entry.address, at)
            self.of_clients[entry.address, allowed] += 1


def naive_spread(times: Sequence[int], unit: int) -> list[int]:
    """Return times spread evenly over their unit, in their order."""
    slots = [at // unit for at in times]
    return [slot * unit + unit * slots[:place].count(slot) // slots.count(slot) for place, slot in enumerate(slots)]
