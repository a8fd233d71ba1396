"""The command `python -m benchmarks`: measure, show, save. Exit status 1 if a required ratio is missed, except with
--quick."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

try:
    from benchmarks.cases import CASES
    from benchmarks.client import cost_steps, measure_costs, measure_outage, measure_rates, outage_steps, rate_steps
    from benchmarks.client_rates import LIMITS as SERVER_LIMITS
    from benchmarks.gate import measure_gate
    from benchmarks.gate import steps as gate_steps
    from benchmarks.guard import measure_guard
    from benchmarks.guard import steps as guard_steps
    from benchmarks.web import measure_web
    from benchmarks.web import steps as web_steps
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is not installed here: 'make bench' installs the peers and runs this") from None
from benchmarks.builds import BUILDS, PURE, Done, Worker, chosen, pin_to_one_core
from benchmarks.bytes_per_key import KINDS, measure_bytes
from benchmarks.bytes_per_key import steps as bytes_steps
from benchmarks.dashboard import measure_dashboards
from benchmarks.dashboard import steps as dashboard_steps
from benchmarks.fleet import SCENARIOS, measure_fleets
from benchmarks.fleet import draw as draw_fleets
from benchmarks.growth import LIMITS, blocks_of, measure_growth
from benchmarks.hit_parts import SETTINGS, Setting, measure_parts
from benchmarks.imports import measure_imports
from benchmarks.imports import steps as import_steps
from benchmarks.layers import measure_layers
from benchmarks.layers import steps as layer_steps
from benchmarks.loadtest import measure_sending
from benchmarks.loadtest import steps as sending_steps
from benchmarks.measure import Case, measure, steps_of
from benchmarks.memory import measure_memory, to_weigh
from benchmarks.overload import draw, measure_overload
from benchmarks.overload import steps as overload_steps
from benchmarks.redis_capacity import measure_capacity
from benchmarks.redis_capacity import steps as capacity_steps
from benchmarks.redis_trips import measure_trips, steps
from benchmarks.replay import measure_replay
from benchmarks.replay import steps as replay_steps
from benchmarks.report import Results, machine, markdown, show, sources
from benchmarks.service import measure_service
from benchmarks.service import steps as service_steps
from benchmarks.shared_memory import measure_calls, measure_processes, process_steps
from benchmarks.slices import measure_slices
from benchmarks.slices import steps as slice_steps
from benchmarks.storages import Lasting, ledger_steps, measure_ledger, measure_storages
from benchmarks.storages import steps as storage_steps


class Scale(NamedTuple):
    """The size of a run."""

    rounds: int
    each: int  # decisions for each key in a block
    keys: int
    visits: int
    growth_rounds: int
    trip_rounds: int
    web_rounds: int
    overload_rounds: int
    part_rounds: int
    process_rounds: int
    slice_rounds: int
    slice_seconds: float
    weighed_keys: int
    capacity_rounds: int
    service_rounds: int
    dashboard_rounds: int
    storage_rounds: int
    sending_rounds: int
    replay_rounds: int
    replay_lines: int
    import_rounds: int


FIGURES = Path(__file__).with_name("figures")
SERVED = ("redis", "overload", "fleet", "service", "dashboard", "loadtest", "client")

FULL = Scale(
    rounds=25,
    each=40,
    keys=1_000_000,
    visits=100_000,
    growth_rounds=11,
    trip_rounds=60,
    web_rounds=75,
    overload_rounds=3,
    part_rounds=25,
    process_rounds=9,
    slice_rounds=5,
    slice_seconds=3.0,
    weighed_keys=500_000,
    capacity_rounds=11,
    service_rounds=7,
    dashboard_rounds=5,
    storage_rounds=60,
    sending_rounds=7,
    replay_rounds=3,
    replay_lines=5_000_000,
    import_rounds=25,
)
QUICK = Scale(
    rounds=3,
    each=20,
    keys=100_000,
    visits=50_000,
    growth_rounds=3,
    trip_rounds=15,
    web_rounds=9,
    overload_rounds=1,
    part_rounds=3,
    process_rounds=2,
    slice_rounds=1,
    slice_seconds=1.5,
    weighed_keys=50_000,
    capacity_rounds=3,
    service_rounds=2,
    dashboard_rounds=1,
    storage_rounds=7,
    sending_rounds=1,
    replay_rounds=1,
    replay_lines=200_000,
    import_rounds=3,
)


class Work(NamedTuple):
    """A part of the run. `run` calls `done` `steps` times. It gets a worker for each build."""

    name: str
    steps: int
    run: Callable[[Sequence[Worker], Done], None]


def main() -> int:
    """Run the benchmarks, print and save the results."""
    options = _options()
    builds = chosen(options.builds or ("pure" if options.what in SERVED else "both"))
    results = Results(machine(builds))
    scale = QUICK if options.quick else FULL
    if options.lines:
        scale = scale._replace(replay_lines=options.lines)
    parts = WORK[options.what](results, scale, builds)
    work = [each for each in parts if (options.only or "") in each.name]
    if not work:
        names = ", ".join(each.name for each in parts)
        raise SystemExit(f"nothing is called {options.only!r}; there are {names}")
    started = datetime.now(UTC)
    if options.what not in SERVED:  # their servers need a core of their own
        pin_to_one_core()
    with ExitStack() as stack:
        _run(work, [stack.enter_context(Worker(build)) for build in builds])
    results.changed = {build: sources(build) for build in builds} != results.machine["sources"]
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    page = markdown(results, options.what, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), started)
    _save(results, page, options.output or f"benchmarks/results/{options.what}-{started:%Y%m%dT%H%M%SZ}.json", started)
    if options.publish:
        FIGURES.mkdir(exist_ok=True)
        (FIGURES / f"{options.what}.md").write_text(page, encoding="utf-8")
    if options.picture and results.overloading.goodput:
        Path(options.picture).write_text(draw(results.overloading), encoding="utf-8")
    if options.picture and results.fleets.pairs:
        Path(options.picture).write_text(draw_fleets(results.fleets), encoding="utf-8")
    missed = [verdict for verdict in results.verdicts() if not verdict.passed]
    return 1 if missed and not options.quick else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="?", choices=tuple(WORK), default="memory", help="default memory")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and keys: for a look, not for a figure")
    parser.add_argument("--builds", choices=(*BUILDS, "both"), help="default both, with servers pure")
    parser.add_argument("--only", metavar="NAME", help="only the parts with NAME in their name, for example gcra")
    parser.add_argument("--picture", metavar="FILE", help="where the picture of overload or of a fleet goes")
    parser.add_argument("--lines", type=int, metavar="N", help="of the log that is replayed; default 5 million")
    parser.add_argument("--output", metavar="FILE", help="where the JSON goes; the tables go beside it in Markdown")
    parser.add_argument("--publish", action="store_true", help="write the tables to benchmarks/figures as well")
    return parser.parse_args()


def _work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    rounds = scale.rounds
    return [
        *(Work(case.name, steps_of(case, builds, rounds), partial(_decide, results, scale, case)) for case in CASES),
        *(
            Work(
                f"growth-{algorithm}",
                len(builds) * blocks_of(scale.growth_rounds),
                partial(_grow, results, scale, algorithm),
            )
            for algorithm in LIMITS
        ),
        Work("guard", guard_steps(builds, rounds), partial(_guard, results, scale)),
        Work("gate", gate_steps(builds, rounds), partial(_gate, results, scale)),
        *([Work("layers", layer_steps(rounds), partial(_layer, results, scale))] if PURE in builds else []),
        Work("memory", len(to_weigh(builds)), partial(_weigh, results, scale)),
    ]


def _redis_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("redis", len(builds) * steps(scale.trip_rounds), partial(_travel, results, scale))]


def _web_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("web", web_steps(builds, scale.web_rounds), partial(_serve, results, scale))]


def _overload_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("overload", overload_steps(scale.overload_rounds), partial(_overload, results, scale))]


def _shm_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    rounds = scale.part_rounds
    return [
        *(Work(each.name, len(builds) * rounds, partial(_take_apart, results, scale, each)) for each in SETTINGS),
        Work("beside Redis", len(builds) * scale.trip_rounds, partial(_call, results, scale)),
        Work("processes", len(builds) * process_steps(scale.process_rounds), partial(_share, results, scale)),
    ]


def _slices_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("slices", len(builds) * slice_steps(scale.slice_rounds), partial(_slice, results, scale))]


def _bytes_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work(kind, bytes_steps(builds), partial(_weigh_everywhere, results, scale, kind)) for kind in KINDS]


def _fleet_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [
        Work("simulation", len(SCENARIOS), partial(_simulate, results)),
        Work("capacity", len(builds) * capacity_steps(scale.capacity_rounds), partial(_load, results, scale)),
    ]


def _service_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("service", len(builds) * service_steps(scale.service_rounds), partial(_answer, results, scale))]


def _dashboard_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("dashboard", len(builds) * dashboard_steps(scale.dashboard_rounds), partial(_watch, results, scale))]


def _storages_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [
        Work("storages", len(builds) * storage_steps(scale.storage_rounds), partial(_keep, results, scale)),
        Work("ledger", ledger_steps(builds, scale.rounds), partial(_record, results, scale)),
    ]


def _loadtest_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("loadtest", sending_steps(scale.sending_rounds), partial(_send, results, scale))]


def _replay_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("replay", replay_steps(scale.replay_rounds, builds), partial(_play, results, scale, builds))]


def _imports_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [Work("imports", import_steps(scale.import_rounds, builds), partial(_import, results, scale, builds))]


def _client_work(results: Results, scale: Scale, builds: Sequence[str]) -> list[Work]:
    return [
        Work("outage", len(builds) * outage_steps(), partial(_break_down, results)),
        *(
            Work(f"rates, {limit}", len(builds) * rate_steps(), partial(_pace, results, limit))
            for limit in SERVER_LIMITS
        ),
        Work("cost", len(builds) * cost_steps(), partial(_call_politely, results)),
    ]


WORK = {
    "memory": _work,
    "redis": _redis_work,
    "web": _web_work,
    "overload": _overload_work,
    "shm": _shm_work,
    "slices": _slices_work,
    "bytes": _bytes_work,
    "fleet": _fleet_work,
    "service": _service_work,
    "dashboard": _dashboard_work,
    "storages": _storages_work,
    "loadtest": _loadtest_work,
    "replay": _replay_work,
    "client": _client_work,
    "imports": _imports_work,
}


def _decide(results: Results, scale: Scale, case: Case, workers: Sequence[Worker], done: Done) -> None:
    times = measure("benchmarks.cases", case, workers, scale.rounds, scale.each, done)
    results.decisions.append((case, times))


def _grow(results: Results, scale: Scale, algorithm: str, workers: Sequence[Worker], done: Done) -> None:
    size = (scale.keys, scale.visits, scale.growth_rounds)
    for worker in workers:
        with Worker(worker.build) as large:  # of its own, so that a million keys leave with it
            results.growth.append(large.run(measure_growth, worker.build, algorithm, *size, done=done))


def _weigh(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for build, name in to_weigh([worker.build for worker in workers]):
        results.memory.append(measure_memory(build, name, scale.keys))
        done()


def _guard(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    results.guarding = measure_guard(workers, scale.rounds, scale.each, done)


def _gate(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    results.gating = measure_gate(workers, scale.rounds, scale.each, done)


def _layer(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    pure = next(worker for worker in workers if worker.build == PURE)
    results.layering = pure.run(measure_layers, scale.rounds, done=done)


def _travel(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.trips.append(worker.run(measure_trips, worker.build, scale.trip_rounds, done=done))


def _serve(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    results.webbing = measure_web(workers, scale.web_rounds, done)


def _overload(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    results.overloading = measure_overload(scale.overload_rounds, done)


def _play(results: Results, scale: Scale, builds: Sequence[str], workers: Sequence[Worker], done: Done) -> None:
    results.replaying = measure_replay(scale.replay_lines, scale.replay_rounds, builds, done)


def _import(results: Results, scale: Scale, builds: Sequence[str], workers: Sequence[Worker], done: Done) -> None:
    results.importing = measure_imports(scale.import_rounds, builds, done)


def _send(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    results.sending = measure_sending(scale.sending_rounds, done)


def _take_apart(results: Results, scale: Scale, setting: Setting, workers: Sequence[Worker], done: Done) -> None:
    results.sharing.parts += measure_parts(workers, setting, scale.part_rounds, done)


def _call(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.sharing.calls[worker.build] = measure_calls(worker.build, scale.trip_rounds, done)


def _share(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.sharing.rates |= measure_processes(worker.build, scale.process_rounds, done)


def _slice(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        measure_slices(worker.build, scale.slice_rounds, scale.slice_seconds, done, results.slicing)


def _weigh_everywhere(results: Results, scale: Scale, kind: str, workers: Sequence[Worker], done: Done) -> None:
    builds = [worker.build for worker in workers]
    results.weights.append(measure_bytes(kind, builds, scale.weighed_keys, done))


def _simulate(results: Results, workers: Sequence[Worker], done: Done) -> None:
    results.fleets = workers[0].run(measure_fleets, SCENARIOS, done=done)


def _load(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.capacity.append(worker.run(measure_capacity, worker.build, scale.capacity_rounds, done=done))


def _answer(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.serving.append(measure_service(worker.build, scale.service_rounds, done))


def _watch(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.watching.append(measure_dashboards(worker.build, scale.dashboard_rounds, done))


def _keep(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    for worker in workers:
        results.lasting.append(worker.run(measure_storages, worker.build, scale.storage_rounds, done=done))


def _record(results: Results, scale: Scale, workers: Sequence[Worker], done: Done) -> None:
    times = measure_ledger(workers, scale.rounds, scale.each, done)
    results.lasting += [Lasting(worker.build, ledger=times) for worker in workers]


def _break_down(results: Results, workers: Sequence[Worker], done: Done) -> None:
    results.calling += [measure_outage(worker, done) for worker in workers]


def _pace(results: Results, limit: str, workers: Sequence[Worker], done: Done) -> None:
    results.calling += [measure_rates(worker.build, limit, done) for worker in workers]


def _call_politely(results: Results, workers: Sequence[Worker], done: Done) -> None:
    results.calling += [measure_costs(worker, done) for worker in workers]


def _run(work: list[Work], workers: Sequence[Worker]) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Refreshed by hand, between the blocks: a thread that draws would be measured with them.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        for each in work:
            task = progress.add_task(each.name, total=each.steps)
            progress.refresh()
            each.run(workers, partial(_advance, progress, task))


def _advance(progress: Progress, task: TaskID) -> None:
    progress.advance(task)
    progress.refresh()


def _save(results: Results, page: str, output: str, started: datetime) -> None:
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"started": f"{started:%Y-%m-%d %H:%M} UTC", **results.as_json()}, indent=1) + "\n")
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    print(f"saved as {path} and {path.with_suffix('.md')}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
