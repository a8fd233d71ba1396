"""What docs/comparison.md says about peers that are installed, and where its figures come from."""

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import pytest

from ratebound import Limiter, MemoryStorage
from ratebound.limit import Algorithm
from ratebound.testing import FakeClock
from tests.documentation.pages import read

PAGE = read("docs/comparison.md")


def row(name: str, section: str = "Libraries") -> list[str]:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (line,) = re.findall(rf"^\| {re.escape(name)} \|.*", text, re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def spending(algorithm: Algorithm) -> list[Callable[[int], bool]]:
    """Return functions that spend from ten units: ours, of limits, of throttled-py and of pyrate-limiter."""
    from limits import parse
    from limits.storage import MemoryStorage as LimitsMemory
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    throttled = pytest.importorskip("throttled", reason="throttled-py comes with make bench")
    pyrate = pytest.importorskip("pyrate_limiter", reason="pyrate-limiter comes with make bench")
    fixed = algorithm == "fixed-window"
    ours = Limiter("10/minute", default_algorithm=algorithm, storage=MemoryStorage(clock=FakeClock()))
    limits = (FixedWindowRateLimiter if fixed else MovingWindowRateLimiter)(LimitsMemory())
    throttle = throttled.Throttled(
        using="fixed_window" if fixed else "gcra", quota="10/m burst 10", store=throttled.MemoryStore()
    )
    bucket = pyrate.Limiter(
        pyrate.InMemoryBucket(
            [pyrate.Rate(10, pyrate.Duration.MINUTE)],
            algorithm=pyrate.FixedWindow() if fixed else pyrate.SlidingWindowLog(),
        )
    )
    return [
        lambda cost: ours.hit("a", cost=cost).allowed,
        lambda cost: limits.hit(parse("10/minute"), "a", cost=cost),
        lambda cost: not throttle.limit("a", cost).limited,
        lambda cost: bool(bucket.try_acquire("a", cost, blocking=False)),
    ]


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-log"])
def test_a_denied_call_costs_what_the_table_says(algorithm: Algorithm) -> None:
    cells = row("A denied call costs nothing")[:4]
    assert cells == ["yes", "not with fixed windows", "not with fixed windows", "yes"]
    free = [cell == "yes" or algorithm != "fixed-window" for cell in cells]
    assert [[spend(cost) for cost in (8, 5, 2)] for spend in spending(algorithm)] == [
        [True, False, one] for one in free
    ]


def test_the_versions_are_those_that_were_run() -> None:
    (line,) = re.findall(r"^\| running it here \| (.*?);", PAGE, re.MULTILINE)
    named = dict(re.findall(r"([\w-]+) ([\d.]+)", line))
    assert set(named) == {"limits", "throttled-py", "pyrate-limiter", "slowapi", "Flask-Limiter"}
    for name, number in named.items():
        try:
            assert version(name) == number
        except PackageNotFoundError:
            assert name in ("throttled-py", "pyrate-limiter")  # they come with make bench


def test_every_time_is_one_of_the_readme() -> None:
    times = re.findall(r"([\d.]+(?:, [\d.]+ and [\d.]+)?) µs", PAGE)
    assert len(times) >= 6
    figures = set(re.findall(r"[\d.]+\d|\d", read("README.md").partition("## Web frameworks")[2]))
    assert {one for time in times for one in re.findall(r"[\d.]*\d", time)} <= figures
