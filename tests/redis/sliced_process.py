"""One process of a fleet with slices: `python -m tests.redis.sliced_process url limits share for seconds`, started by
test_slices.py.

It waits for a line, hits one key for so many seconds, and prints a JSON list of what passed: the instants before and
after each allowed hit in microseconds, and whether a slice decided it.
"""

import json
import sys
import time
from random import Random

from ratebound import Limiter
from ratebound.outcome import SLICED


def main(url: str, limits: str, share: str, lives: str, seconds: str) -> None:
    limiter = Limiter(limits, storage=url, slice={"share": float(share), "for": float(lives)}, failure="raise")
    limiter.hit("warm up")
    random = Random()
    passed: list[tuple[int, int, bool]] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    ends = time.monotonic() + float(seconds)
    while time.monotonic() < ends:
        for _ in range(random.choice([1, 3, 10])):
            before = time.time_ns() // 1000
            decision = limiter.hit("k")
            if decision:
                passed.append((before, time.time_ns() // 1000, decision.rows[0][7] == SLICED))
        time.sleep(random.uniform(0, 0.05))
    limiter.close()
    sys.stdout.write(json.dumps(passed) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
