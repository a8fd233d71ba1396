"""Short plans for the tests of load runs."""

from collections import Counter
from typing import Any

from ratebound.loadtest.arrivals import Arrivals, parse_arrivals
from ratebound.loadtest.plan import LoadPlan, LoadTarget
from ratebound.loadtest.run import LoadRun, run_load_here


def planned(url: str, rate: str | Arrivals = "burst 20 every 1s", duration: float = 0.1, **options: Any) -> LoadPlan:
    """Return a plan of one URL. Options of a target go to the target."""
    target = {name: options.pop(name) for name in ("method", "headers", "body") if name in options}
    arrivals = parse_arrivals(rate, duration) if isinstance(rate, str) else rate
    return LoadPlan(targets=[LoadTarget(url, **target)], arrivals=arrivals, **options)


def ran(url: str, rate: str | Arrivals = "burst 20 every 1s", duration: float = 0.1, **options: Any) -> LoadRun:
    """Perform such a plan."""
    return run_load_here(planned(url, rate, duration, **options))


def ends(run: LoadRun) -> Counter[int | str]:
    """Count answers by status, or by error."""
    return Counter(answer.error or answer.status for answer in run.answers)
