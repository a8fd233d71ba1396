"""The times of decisions as lines and as a table: a row for each build of ours, and one for each peer."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.builds import BUILDS
from benchmarks.measure import Case, Spread, Times, ratios, spread
from benchmarks.table import Sheet, figures


class Line(NamedTuple):
    """One contender of one case in one build: CPU seconds per decision, and the ratio to ours of this build."""

    case: str
    build: str
    contender: str
    returns: str
    time: Spread
    times: Spread


def lines_of(decisions: Sequence[tuple[Case, Times]]) -> list[Line]:
    """Return one line for each contender of each case in each build."""
    return [
        Line(
            case.name,
            build,
            contender.name,
            contender.returns,
            spread(times[contender.name]),
            spread(ratios(times[case.contenders[0].name], times[contender.name])),
        )
        for case, by_build in decisions
        for build, times in by_build.items()
        for contender in case.contenders
    ]


def decision_sheet(decisions: Sequence[tuple[Case, Times]]) -> Sheet:
    """Return a table with a row for each build of ours and one for each peer, and with the ratio to ours of each build.

    The time of a peer is that of its blocks in all workers. Its ratio to a build of ours is of blocks of one worker.
    """
    builds = [build for build in BUILDS if any(build in times for _, times in decisions)]
    rows: list[Sequence[str]] = []
    for case, by_build in decisions:
        ours = {build: times[case.contenders[0].name] for build, times in by_build.items()}
        start = len(rows)
        for contender in case.contenders:
            series = {build: times[contender.name] for build, times in by_build.items()}
            if contender.library == "ratebound":
                for build, mine in series.items():
                    against = dict.fromkeys(builds, mine)
                    rows.append(_row(contender.returns, f"{contender.name}, {build}", mine, against, ours))
            else:
                everywhere = [seconds for times in series.values() for seconds in times]
                rows.append(_row(contender.returns, contender.name, everywhere, series, ours))
        rows[start:] = [(case.name if place == 0 else "", *row) for place, row in enumerate(rows[start:])]
    ratios_of = [name for build in builds for name in (f"times {build}", "quartiles")]
    return Sheet("CPU time per decision", ("case", "who", "returns", "µs per decision", "quartiles", *ratios_of), rows)


def _row(
    returns: str, who: str, seconds: list[float], against: dict[str, list[float]], ours: dict[str, list[float]]
) -> Sequence[str]:
    found = [
        ("", "") if against[build] is ours[build] else figures(spread(ratios(ours[build], against[build])))
        for build in against
    ]
    return (who, returns, *figures(spread(seconds), 1e6), *(text for pair in found for text in pair))
