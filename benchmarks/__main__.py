"""The command `python -m benchmarks`: measure, show, save. Exit status 1 if a required ratio is missed, except with
--quick."""

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

try:
    from benchmarks.cases import CASES
    from benchmarks.gate import measure_gate
    from benchmarks.gate import steps as gate_steps
    from benchmarks.guard import measure_guard
    from benchmarks.guard import steps as guard_steps
    from benchmarks.web import measure_web
    from benchmarks.web import steps as web_steps
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is not installed here: 'make bench' installs the peers and runs this") from None
from benchmarks.growth import LIMITS, blocks_of, measure_growth
from benchmarks.layers import measure_layers
from benchmarks.layers import steps as layer_steps
from benchmarks.measure import Case, Done, measure
from benchmarks.memory import CONTENDERS, measure_memory
from benchmarks.redis_trips import measure_trips, steps
from benchmarks.report import Results, machine, markdown, show, sources


class Scale(NamedTuple):
    """The size of a run."""

    rounds: int
    each: int  # decisions for each key in a block
    keys: int
    visits: int
    growth_rounds: int
    trip_rounds: int


FULL = Scale(rounds=25, each=40, keys=1_000_000, visits=100_000, growth_rounds=11, trip_rounds=60)
QUICK = Scale(rounds=5, each=20, keys=100_000, visits=50_000, growth_rounds=3, trip_rounds=15)


class Work(NamedTuple):
    """A part of the run. `run` calls `done` `steps` times."""

    name: str
    steps: int
    run: Callable[[Done], None]


def main() -> int:
    """Run the benchmarks, print and save the results."""
    options = _options()
    results = Results(machine())
    parts = WORK[options.what](results, QUICK if options.quick else FULL)
    work = [each for each in parts if (options.only or "") in each.name]
    if not work:
        names = ", ".join(each.name for each in parts)
        raise SystemExit(f"nothing is called {options.only!r}; there are {names}")
    started = datetime.now(UTC)
    _run(work)
    results.changed = sources() != results.machine["sources"]
    show(results, Console(width=None if sys.stdout.isatty() else 140))
    _save(results, options.output or f"benchmarks/results/{options.what}-{started:%Y%m%dT%H%M%SZ}.json", started)
    missed = [verdict for verdict in results.verdicts() if not verdict.passed]
    return 1 if missed and not options.quick else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="?", choices=tuple(WORK), default="memory", help="default memory")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and keys: for a look, not for a figure")
    parser.add_argument("--only", metavar="NAME", help="only the parts with NAME in their name, for example gcra")
    parser.add_argument("--output", metavar="FILE", help="where the JSON goes; the tables go beside it in Markdown")
    return parser.parse_args()


def _work(results: Results, scale: Scale) -> list[Work]:
    return [
        *(
            Work(case.name, scale.rounds * len(case.contenders), partial(_decide, results, scale, case))
            for case in CASES
        ),
        *(
            Work(f"growth-{algorithm}", blocks_of(scale.growth_rounds), partial(_grow, results, scale, algorithm))
            for algorithm in LIMITS
        ),
        Work("guard", guard_steps(scale.rounds), partial(_guard, results, scale)),
        Work("gate", gate_steps(scale.rounds), partial(_gate, results, scale)),
        Work("layers", layer_steps(scale.rounds), partial(_layer, results, scale)),
        Work("memory", len(CONTENDERS), partial(_weigh, results, scale)),
    ]


def _redis_work(results: Results, scale: Scale) -> list[Work]:
    return [Work("redis", steps(scale.trip_rounds), partial(_travel, results, scale))]


def _web_work(results: Results, scale: Scale) -> list[Work]:
    return [Work("web", web_steps(scale.rounds), partial(_serve, results, scale))]


WORK = {"memory": _work, "redis": _redis_work, "web": _web_work}


def _decide(results: Results, scale: Scale, case: Case, done: Done) -> None:
    results.add(case, measure(case, scale.rounds, scale.each, done))


def _grow(results: Results, scale: Scale, algorithm: str, done: Done) -> None:
    results.growth.append(measure_growth(algorithm, scale.keys, scale.visits, scale.growth_rounds, done))


def _weigh(results: Results, scale: Scale, done: Done) -> None:
    for name in CONTENDERS:
        results.memory.append(measure_memory(name, scale.keys))
        done()


def _guard(results: Results, scale: Scale, done: Done) -> None:
    measure_guard(results.guarding, scale.rounds, scale.each, done)


def _gate(results: Results, scale: Scale, done: Done) -> None:
    measure_gate(results.gating, scale.rounds, scale.each, done)


def _layer(results: Results, scale: Scale, done: Done) -> None:
    measure_layers(results.layering, scale.rounds, done)


def _travel(results: Results, scale: Scale, done: Done) -> None:
    measure_trips(results.trips, scale.trip_rounds, done)


def _serve(results: Results, scale: Scale, done: Done) -> None:
    measure_web(results.webbing, scale.rounds, scale.each, done)


def _run(work: list[Work]) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Refreshed by hand, between the blocks: a thread that draws would be measured with them.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        for each in work:
            task = progress.add_task(each.name, total=each.steps)
            progress.refresh()
            each.run(partial(_advance, progress, task))


def _advance(progress: Progress, task: TaskID) -> None:
    progress.advance(task)
    progress.refresh()


def _save(results: Results, output: str, started: datetime) -> None:
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"started": f"{started:%Y-%m-%d %H:%M} UTC", **results.as_json()}, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(results))
    print(f"saved as {path} and {path.with_suffix('.md')}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
