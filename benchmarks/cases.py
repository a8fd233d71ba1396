"""The cases to measure, their contenders, and the required ratios."""

from dataclasses import dataclass

from benchmarks.contenders import (
    Rate,
    limits_async,
    limits_hit,
    limits_hits,
    limits_hits_and_stats,
    ours,
    ours_async,
    pyrate_acquire,
    pyrate_async,
    throttled_async,
    throttled_limit,
    throttled_limits,
)
from benchmarks.measure import THREADS, Case

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

CASES = (
    Case(
        "fixed-window",
        [
            ours(f"{USUAL} fixed-window", "fixed-window"),
            limits_hit("FixedWindow", USUAL),
            throttled_limit("fixed_window", USUAL),
            pyrate_acquire("FixedWindow", [USUAL]),
        ],
    ),
    Case(
        "sliding-log",
        [
            ours(f"{LOG} sliding-log", "sliding-log"),
            limits_hit("MovingWindow", LOG),
            pyrate_acquire("SlidingWindowLog", [LOG]),
        ],
    ),
    Case(
        "sliding-counter",
        [
            ours(f"{USUAL} sliding-counter", "sliding-counter"),
            limits_hit("SlidingWindowCounter", USUAL),
            throttled_limit("sliding_window", USUAL),
        ],
    ),
    Case(
        "token-bucket",
        [
            ours(f"{USUAL} token-bucket", "token-bucket"),
            throttled_limit("token_bucket", USUAL),
            pyrate_acquire("TokenBucket", [USUAL]),
        ],
    ),
    Case(
        "gcra",
        [
            ours(f"{USUAL} gcra", "gcra"),
            limits_hit("FixedWindow", USUAL),
            throttled_limit("gcra", USUAL),
            pyrate_acquire("GCRA", [USUAL]),
        ],
    ),
    Case(
        "leaky-bucket",
        [
            ours(f"{USUAL} leaky-bucket", "leaky-bucket"),
            throttled_limit("leaking_bucket", USUAL),
            pyrate_acquire("GCRA", [USUAL]),
        ],
    ),
    Case(
        "default",
        [
            ours(str(USUAL), "default"),
            limits_hit("FixedWindow", USUAL),
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
        "denied-fixed-window",
        [
            ours(f"{SPENT} fixed-window", "fixed-window"),
            limits_hit("FixedWindow", SPENT),
            throttled_limit("fixed_window", SPENT),
            pyrate_acquire("FixedWindow", [SPENT]),
        ],
        denied=True,
    ),
    Case(
        "denied-sliding-log",
        [
            ours(f"{SPENT} sliding-log", "sliding-log"),
            limits_hit("MovingWindow", SPENT),
            pyrate_acquire("SlidingWindowLog", [SPENT]),
        ],
        denied=True,
    ),
    Case(
        "denied-gcra",
        [
            ours(f"{SPENT} gcra", "gcra"),
            throttled_limit("gcra", SPENT),
            pyrate_acquire("GCRA", [SPENT]),
        ],
        denied=True,
    ),
    *(
        Case(
            name,
            [
                ours(f"{WIDE} gcra", "gcra"),
                limits_hit("FixedWindow", WIDE),
                throttled_limit("gcra", WIDE),
                pyrate_acquire("GCRA", [WIDE], blocking=True),
            ],
            threads=keys,
        )
        for name, keys in ((f"{THREADS}-threads-{THREADS}-keys", THREADS), (f"{THREADS}-threads-1-key", 1))
    ),
    Case(
        "async",
        [
            ours_async(f"{USUAL} gcra", "gcra"),
            limits_async("FixedWindow", USUAL),
            throttled_async("gcra", USUAL),
            pyrate_async("GCRA", USUAL),
        ],
    ),
)


@dataclass(frozen=True, slots=True)
class Required:
    """A required ratio: in `case` the contender `peer` takes at least `times` as long as ours."""

    case: str
    peer: str
    times: float

    def __str__(self) -> str:
        return f"{self.case}: {self.times:g} times as fast as {self.peer}"


REQUIRED = (
    Required("gcra", "limits FixedWindow", 1.5),
    Required("default", "limits FixedWindow", 1.5),
    Required("gcra", "throttled-py gcra", 2),
    Required("four-limits", "limits 4 × FixedWindow", 2),
)
