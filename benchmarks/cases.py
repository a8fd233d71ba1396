"""The cases to measure, their contenders, and the required ratios."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.builds import COMPILED, PURE
from benchmarks.contenders import (
    Rate,
    limits_async,
    limits_hit,
    limits_hits,
    limits_hits_and_stats,
    ours,
    ours_async,
    ours_read,
    ours_unread,
    pyrate_acquire,
    pyrate_async,
    rust_allow,
    rust_async,
    rust_check,
    throttled_async,
    throttled_limit,
    throttled_limits,
)
from benchmarks.measure import THREADS, AsyncContender, Case, Contender, Spread
from benchmarks.verdict import Verdict, at_least, at_most
from ratebound.limit import ALGORITHMS

USUAL = Rate(1_000, "minute")
LOG = Rate(100, "minute")  # a log is for small counts; a key holds 20 to 60 entries here
SPENT = Rate(10, "day")  # used up by the warm-up, and does not come back during a block
WIDE = Rate(10_000_000, "minute")  # for threads that all hit one key
FOUR = (
    Rate(10_000_000, "second"),
    Rate(20_000_000, "minute"),
    Rate(30_000_000, "hour"),
    Rate(40_000_000, "day"),
)
FOUR_SPENT = (*FOUR[:3], SPENT)  # the last one denies: limits and throttled-py ask the other three before it

# The nearest that the peers have to each algorithm.
NEAREST: dict[str, Callable[[Rate], list[Contender]]] = {
    "fixed-window": lambda rate: [throttled_limit("fixed_window", rate), pyrate_acquire("FixedWindow", [rate])],
    "sliding-log": lambda rate: [limits_hit("MovingWindow", rate), pyrate_acquire("SlidingWindowLog", [rate])],
    "sliding-counter": lambda rate: [
        limits_hit("SlidingWindowCounter", rate),
        throttled_limit("sliding_window", rate),
    ],
    "token-bucket": lambda rate: [throttled_limit("token_bucket", rate), pyrate_acquire("TokenBucket", [rate])],
    "gcra": lambda rate: [throttled_limit("gcra", rate), pyrate_acquire("GCRA", [rate])],
    "leaky-bucket": lambda rate: [throttled_limit("leaking_bucket", rate), pyrate_acquire("GCRA", [rate])],
}


def _rate(algorithm: str, denied: bool) -> Rate:
    return SPENT if denied else LOG if algorithm == "sliding-log" else USUAL


def _by_threads(algorithm: str, denied: bool) -> Case:
    """Return an algorithm beside the fastest of limits, the full answer of rust-py-rate-limit, and its nearest."""
    rate = _rate(algorithm, denied)
    contenders = [
        ours(f"{rate} {algorithm}", algorithm),
        limits_hit("FixedWindow", rate),
        rust_check(rate),
        *(NEAREST[algorithm](rate) if algorithm in NEAREST else ()),
    ]
    return Case(f"denied-{algorithm}" if denied else algorithm, contenders, denied=denied)


def _by_tasks(algorithm: str, denied: bool) -> Case:
    rate = _rate(algorithm, denied)
    contenders: list[AsyncContender] = [
        ours_async(f"{rate} {algorithm}", algorithm),
        limits_async("FixedWindow", rate),
        rust_async(rate),
    ]
    if algorithm == "gcra":
        contenders += [throttled_async("gcra", rate), pyrate_async("GCRA", rate)]
    return Case(f"async-denied-{algorithm}" if denied else f"async-{algorithm}", contenders, denied=denied)


def _reading(algorithm: str, denied: bool) -> Case:
    text = f"{_rate(algorithm, denied)} {algorithm}"
    name = f"reading-denied-{algorithm}" if denied else f"reading-{algorithm}"
    return Case(name, [ours_unread(text, algorithm), ours_read(text, algorithm)], denied=denied)


EVERY_HIT = [
    make(algorithm, denied) for make in (_by_threads, _by_tasks) for denied in (False, True) for algorithm in ALGORITHMS
]
READING = [_reading(algorithm, denied) for denied in (False, True) for algorithm in ALGORITHMS]

CASES = (
    *EVERY_HIT,
    Case(
        "default",
        [
            ours(str(USUAL), "default"),
            limits_hit("FixedWindow", USUAL),
            rust_allow(USUAL),
            rust_check(USUAL),
            throttled_limit("token_bucket", USUAL),
            pyrate_acquire("SlidingWindowLog", [USUAL]),
        ],
    ),
    Case(
        "four-limits",
        [
            ours("; ".join(map(str, FOUR)), "4 × default"),
            limits_hits("FixedWindow", FOUR),
            limits_hits("SlidingWindowCounter", FOUR),
            limits_hits_and_stats("FixedWindow", FOUR),
            throttled_limits("token_bucket", FOUR),
            pyrate_acquire("SlidingWindowLog", FOUR),
        ],
    ),
    Case(
        "denied-four-limits",
        [
            ours("; ".join(map(str, FOUR_SPENT)), "4 × default"),
            limits_hits("FixedWindow", FOUR_SPENT),
            throttled_limits("token_bucket", FOUR_SPENT),
        ],
        denied=True,
    ),
    *READING,
    *(
        Case(
            name,
            [
                ours(f"{WIDE} gcra", "gcra"),
                limits_hit("FixedWindow", WIDE),
                rust_check(WIDE),
                throttled_limit("gcra", WIDE),
                pyrate_acquire("GCRA", [WIDE], blocking=True),
            ],
            threads=keys,
        )
        for name, keys in ((f"{THREADS}-threads-{THREADS}-keys", THREADS), (f"{THREADS}-threads-1-key", 1))
    ),
)


@dataclass(frozen=True, slots=True)
class Required:
    """A required ratio of a build: how many times as long as the first contender of `case` the `other` one takes."""

    build: str
    case: str
    other: str
    judge: Callable[[str, str, float, Spread], Verdict]  # at_least or at_most
    times: float

    def verdict(self, found: Spread) -> Verdict:
        """Return the verdict on a measured ratio."""
        how = f"times as fast as {self.other}" if self.judge is at_least else f"{self.other}, in times a hit"
        return self.judge(self.build, f"{self.case}: {how}", self.times, found)


REQUIRED = (
    Required(PURE, "gcra", "limits FixedWindow", at_least, 1.5),
    Required(PURE, "default", "limits FixedWindow", at_least, 1.5),
    Required(PURE, "gcra", "throttled-py gcra", at_least, 2),
    Required(PURE, "four-limits", "limits 4 × FixedWindow", at_least, 2.5),
    *(Required(COMPILED, case.name, "limits FixedWindow", at_least, 10) for case in EVERY_HIT),
    *(Required(COMPILED, case.name, "rust-py-rate-limit check", at_least, 1.75) for case in EVERY_HIT),
    Required(COMPILED, "four-limits", "limits 4 × FixedWindow", at_least, 15),
    Required(COMPILED, "denied-four-limits", "limits 4 × FixedWindow", at_least, 8),
    *(Required(COMPILED, case.name, case.contenders[1].name, at_most, 1.6) for case in READING),
)
