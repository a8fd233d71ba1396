"""A case as the benchmarks have them, without peers, and functions that a worker of the benchmarks runs."""

import os
import sys
from collections.abc import Sequence

from benchmarks.builds import COMPILED, PURE, Done
from benchmarks.measure import Block, Case, Contender

import ratebound


def _counting(denied: int) -> Block:
    def block(keys: Sequence[str]) -> int:
        return denied * len(keys)

    return block


CASES = (
    Case(
        "small",
        [
            Contender("ratebound", "a", "int", lambda: _counting(0)),
            Contender("peer", "b", "int", lambda: _counting(0)),
            Contender("peer", "compiled only", "int", lambda: _counting(0), (COMPILED,)),
        ],
    ),
    Case("wrong", [Contender("peer", "that denies", "int", lambda: _counting(1), (PURE,))]),
)


def where(greeting: str, done: Done) -> tuple[str, str | None, int]:
    """Return the greeting, the file of the package and the process, after two steps."""
    sys.stdout.write("what is printed does not harm the answers\n")
    done()
    done()
    return greeting, ratebound.__file__, os.getpid()
