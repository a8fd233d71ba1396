"""The deny cache against the storage itself: never a false allowance, and no false denial but those of changes that
another process made within the last second."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Check, Decision, Limit, MemoryStorage
from ratebound.limit import Group
from ratebound.testing import FakeClock
from tests.remote import RemoteStorage, sliced

SECOND = 1_000_000
TEXTS = [
    "5/10 seconds",
    "5/10 seconds sliding-counter",
    "5/10 seconds fixed-window",
    "5/10 seconds burst 3",
    "5/calendar-day",
    "5/10 seconds; 8/minute",
]
GAPS = st.sampled_from([0, 1, 1000, SECOND // 10, SECOND // 2, SECOND - 1, SECOND, 2 * SECOND, 7 * SECOND])
COSTS = st.integers(1, 6)
KEYS = st.sampled_from("ab")
HITS = st.tuples(st.just("hit"), st.tuples(KEYS, COSTS))
PAIRS = st.tuples(st.just("pair"), st.tuples(COSTS, COSTS))
OWN_CHANGES = st.tuples(st.sampled_from(["reset", "refund", "raise", "lower"]), KEYS)
OTHERS_CHANGES = st.tuples(st.sampled_from(["other resets", "other refunds", "other hits", "other grants"]), KEYS)


class Pair:
    """A process with a deny cache, and another one on the same storage."""

    def __init__(self, text: str) -> None:
        self.clock = FakeClock(1_700_000_040 * SECOND)
        self.remote = RemoteStorage(MemoryStorage(clock=self.clock), self.clock)
        self.limiter = sliced(text, self.remote, slice=None, deny_cache=True)
        self.other = sliced(text, self.remote, slice=None)
        self.configured = self.limiter.limits
        self.allowed: list[Decision] = []
        self.others: list[Decision] = []
        self.denied: list[tuple[int, Group]] = []  # what the storage would have denied, and when
        self.false_denials = 0
        self.clock.now += 1

    def do(self, action: str, given: Any) -> None:
        if action == "hit":
            self.hit([Check(given[0], self.limiter.limits, given[1])])
        elif action == "pair":
            self.hit([Check(key, self.limiter.limits, cost) for key, cost in zip("ab", given, strict=True)])
        elif action == "reset":
            self.limiter.reset(given)
        elif action == "refund" and self.allowed:
            self.limiter.settle(self.allowed.pop(), cost=0)
        elif action in ("raise", "lower"):
            self.limiter.limits = tuple(_with_count(limit, 2 if action == "raise" else 1) for limit in self.configured)
        elif action == "other hits":
            decision = self.other.hit(given)
            self.others += [decision] if decision else []
        elif action == "other resets":
            self.other.reset(given)
        elif action == "other refunds" and self.others:
            self.other.settle(self.others.pop(), cost=0)
        elif action == "other grants" and "calendar" in self.configured[0].text:
            self.other.grant(given, 2)

    def hit(self, checks: list[Check]) -> None:
        """Hit, and compare with what the storage says at this instant."""
        now = self.clock.now
        group: Group = [check.ask() for check in checks]
        truth = all(row[0] for row in self.remote.memory.evaluate([group], "peek")[0])
        if not truth:
            self.denied.append((now, group))
        if len(checks) == 1:
            decision = self.limiter.hit(checks[0].key, cost=checks[0].cost)
        else:
            decision = self.limiter.check(checks)
        if decision:
            assert truth, "a false allowance"
            self.allowed.append(decision)
        elif truth:
            self.false_denials += 1
            assert any(now - at < SECOND and _covers(denied, group) for at, denied in self.denied), "a false denial"
            assert (decision.retry_after or 1) > 0


def _with_count(limit: Limit, times: int) -> Limit:
    name = limit.name if limit.named else ""
    burst = limit.burst * times
    return Limit(limit.count * times, limit.period_us, burst, limit.algorithm, name, calendar=limit.calendar)


def _covers(denied: Group, group: Group) -> bool:
    """Return True if a denial is about the same keys and limits, at the same costs or less."""
    pairs = zip(denied, group, strict=False)
    return len(denied) == len(group) and all(a[:2] == b[:2] and a[2] <= b[2] for a, b in pairs)


def played(text: str, actions: list[tuple[int, tuple[str, Any]]]) -> Pair:
    pair = Pair(text)
    for gap, (action, given_) in actions:
        pair.clock.now += gap
        pair.do(action, given_)
    return pair


@given(st.sampled_from(TEXTS), st.lists(st.tuples(GAPS, HITS | PAIRS | OWN_CHANGES | OTHERS_CHANGES), max_size=60))
def test_a_denial_is_false_for_at_most_a_second_after_another_process_changed_the_key(
    text: str, actions: list[tuple[int, tuple[str, Any]]]
) -> None:
    played(text, actions)


@given(
    st.sampled_from(TEXTS), st.lists(st.tuples(GAPS.filter(bool), HITS | PAIRS | OWN_CHANGES), min_size=5, max_size=60)
)
def test_a_process_alone_never_sees_a_false_denial(text: str, actions: list[tuple[int, tuple[str, Any]]]) -> None:
    assert played(text, actions).false_denials == 0


def test_a_limiter_that_repeats_denials_makes_fewer_trips() -> None:
    pair = Pair("5/10 seconds")
    for _ in range(100):
        pair.hit([Check("a", pair.limiter.limits)])
    assert len(pair.remote.trips) == 6
