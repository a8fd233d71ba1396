"""Assertions on the figures of a load test, for CI: 'p99<50ms', 'granted>=1000'."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ratebound.loadtest.check import FAIL, PASS, UNKNOWN, LoadCheck
from ratebound.notation import parse_span

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
LATENCIES = ("p50", "p90", "p95", "p99", "p99.9", "max")
COUNTS = ("granted", "refused", "errors", "sent", "jain")
ASSERTION = re.compile(r"\s*([a-z0-9.]+)\s*(<=|>=|==|<|>)\s*([0-9][0-9.]*)\s*([a-zµ]*)\s*", re.IGNORECASE)
EXAMPLE = f"expected for example 'p99<50ms' or 'granted>=1000'; figures are {', '.join((*LATENCIES, *COUNTS))}"


class Assertion(NamedTuple):
    """A bound on one figure. Latencies are seconds."""

    text: str
    figure: str
    sign: str
    bound: float

    def check(self, figures: Mapping[str, float]) -> LoadCheck:
        """Compare a figure with the bound."""
        value = figures.get(self.figure)
        if value is None:
            return LoadCheck(f"Assertion {self.text}", UNKNOWN, "nothing was answered")
        shown = f"{value * 1000:.3g} ms" if self.figure in LATENCIES else f"{value:g}"
        outcome = PASS if OPERATORS[self.sign](value, self.bound) else FAIL
        return LoadCheck(f"Assertion {self.text}", outcome, f"{self.figure} is {shown}")


def parse_assertion(text: str) -> Assertion:
    """Return the assertion in a text. Raises ValueError if it cannot be read."""
    match = ASSERTION.fullmatch(text[:100])
    figure = match[1].lower() if match else ""
    try:
        if match is not None and figure in LATENCIES:
            return Assertion(text.strip(), figure, match[2], parse_span(match[3] + match[4]))
        if match is not None and figure in COUNTS and not match[4]:
            return Assertion(text.strip(), figure, match[2], float(match[3]))
    except ValueError:
        pass
    unit = " A latency needs a unit: ms or s." if match is not None and figure in LATENCIES and not match[4] else ""
    raise ValueError(f"cannot read assertion {text[:80]!r}: {EXAMPLE}.{unit}")
