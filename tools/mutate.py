"""Mutation testing: change the code in one small place at a time, and check that a test fails.

A mutant that passes every test is behaviour that no test checks. It fails the run, unless tools/equivalent_mutants.txt
lists it with the reason why no test can distinguish it from the original. Mutants run in the pure build.

    python tools/mutate.py                    # 60 mutants of the modules in TESTS, drawn by a printed seed
    python tools/mutate.py --all              # every mutant of the modules in TESTS
    python tools/mutate.py --all kernels/gcra # every mutant of the modules with this in their path
    python tools/mutate.py --show early       # every mutant with this in its name, as a diff, with the tests' output

Only function bodies are changed. A mutant is named by its code, not by its line, so that a list of mutants survives
changes elsewhere in the file. Each mutant runs in its own process, against a copy of the package.
"""

import argparse
import ast
import copy
import difflib
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ratebound"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.txt"
SAMPLE = 60
# Seconds for the tests of one mutant: one that loops or waits for ever was noticed. A busy machine notices nothing, so
# the second is long.
CPU_TIME, TIMEOUT = 60, 300

# The modules to change, and the tests that must notice, the quickest first.
TESTS: dict[str, list[str]] = {
    "kernels/__init__.py": [
        "tests/unit/test_fixed_window.py",
        "tests/unit/test_sliding_counter.py",
        "tests/unit/test_sliding_log.py",
        "tests/unit/test_gcra.py",
    ],
    "kernels/distinct.py": ["tests/unit/test_distinct.py"],
    "kernels/fixed_window.py": ["tests/unit/test_fixed_window.py"],
    "kernels/gcra.py": ["tests/unit/test_gcra.py"],
    "kernels/group_law.py": ["tests/unit/test_group_law.py", "tests/unit/test_concurrency.py"],
    "kernels/packing.py": ["tests/unit/test_packing.py"],
    "kernels/penalty.py": ["tests/unit/test_penalty.py"],
    "kernels/sliding_counter.py": ["tests/unit/test_sliding_counter.py"],
    "kernels/sliding_log.py": ["tests/unit/test_sliding_log.py"],
    "numbers.py": ["tests/unit/test_numbers.py"],
    "deny_cache.py": ["tests/unit/test_deny_cache.py"],
    "local_flow.py": ["tests/unit/test_slices.py", "tests/unit/test_deny_cache.py"],
    "slices.py": ["tests/unit/test_slices.py"],
    "decision.py": ["tests/unit/test_decision.py", "tests/unit/test_limiter.py"],
    "rate_limited.py": ["tests/unit/test_decision.py", "tests/unit/test_limiter.py"],
    "telling.py": ["tests/unit/test_telling.py"],
    "hit_method.py": ["tests/unit/test_memory_fast_path.py", "tests/unit/test_limiter.py"],
    "storage/memory.py": [
        "tests/unit/test_memory_fast_path.py",
        "tests/unit/test_memory.py",
        "tests/unit/test_limiter.py",
        "tests/unit/test_async_twin.py",
    ],
    "storage/memory_states.py": [
        "tests/unit/test_memory_fast_path.py",
        "tests/unit/test_settling.py",
        "tests/unit/test_limiter.py",
        "tests/unit/test_memory.py",
        "tests/unit/test_memory_penalties.py",
    ],
    "storage/shared_memory/cells.py": [
        "tests/shared_memory/test_cells.py",
        "tests/shared_memory/test_room.py",
        "tests/property/test_shared_memory_room.py",
    ],
    "storage/shared_memory/documents.py": ["tests/shared_memory/test_documents.py"],
    "storage/shared_memory/layout.py": ["tests/shared_memory/test_cells.py"],
    "storage/shared_memory/zone_states.py": [
        "tests/shared_memory/test_decisions.py",
        "tests/shared_memory/test_room.py",
        "tests/property/test_shared_memory.py",
    ],
    "waiting.py": ["tests/waiting/test_standing_in_line.py", "tests/waiting/test_waiting.py"],
    "policy/match/path.py": ["tests/policy/test_path.py"],
    "policy/runtime/fast_path.py": ["tests/policy/test_remembered.py", "tests/property/test_straight.py"],
    "policy/identity/identify.py": [
        "tests/policy/test_identity.py",
        "tests/policy/test_sources.py",
        "tests/policy/test_stages.py",
    ],
    "http/client_ip.py": ["tests/http/test_client_ip.py", "tests/http/test_client_ip_fuzz.py"],
    "http/denial.py": [
        "tests/http/test_headers.py",
        "tests/http/test_distinct_and_block_headers.py",
        "tests/http/test_quota_and_slot_headers.py",
        "tests/http/test_rejection.py",
        "tests/policy/test_adaptive.py",
    ],
    "http/prefix.py": ["tests/http/test_prefix.py", "tests/http/test_client_ip.py"],
    "service/check.py": ["tests/service/test_check.py"],
    "service/proxied_request.py": ["tests/service/test_check.py", "tests/service/test_check_hostile.py"],
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module. `name` says where and what; `source` is the module with the change."""

    module: str
    name: str
    source: str

    @property
    def title(self) -> str:
        """The module and the name."""
        return f"{self.module}: {self.name}"


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node with each change that its kind allows."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                changed = copy.deepcopy(node)
                changed.ops[i] = COMPARISONS[type(op)]()
                yield changed
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.UnaryOp) and not _is_negated_by_its_operator(test):
                negated = copy.copy(node)
                negated.test = ast.UnaryOp(ast.Not(), test)
                yield negated
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield ast.Return(ast.Constant(None))


def _is_negated_by_its_operator(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)


def functions(tree: ast.Module | ast.ClassDef, outer: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield the functions and methods of a module by name. A nested function belongs to the outer one."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{outer}{node.name}", node


def text(node: ast.AST) -> str:
    """Return the code of a statement; only its first line if it has a body."""
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]


def places(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, ast.AST]]:
    """Yield everything inside a node: the parent, the field and index there, the node itself, and its statement."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or isinstance(value, ast.arguments):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                within = child if isinstance(child, ast.stmt) else statement
                yield node, field, index, child, within
                yield from places(child, within)


def mutants_of(module: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    tree = ast.parse((PACKAGE / module).read_text())
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for where, function in functions(tree):
        for parent, field, index, node, statement in list(places(function, function)):
            before, kept = text(statement), getattr(parent, field)
            for changed in variants(node):
                new = changed if index is None else [*kept[:index], changed, *kept[index + 1 :]]
                setattr(parent, field, new)
                name = f"{where}: {before}  =>  {text(changed if node is statement else statement)}"
                seen[name] += 1
                if seen[name] > 1:
                    name += f"  ({seen[name]})"
                found.append(Mutant(module, name, ast.unparse(ast.fix_missing_locations(tree))))
                setattr(parent, field, kept)
    return found


def equivalents() -> dict[str, str]:
    """Return the titles of the mutants judged equivalent, each with the reason above it."""
    listed: dict[str, str] = {}
    reason = ""
    for line in EQUIVALENT.read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            listed[line] = reason
    return listed


def warm_up() -> None:
    """Import the tests' dependencies once for all child processes. The package itself is not imported."""
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=150,  # five times as many as in the tests
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
    )  # the first failure is enough: it need not be a small one
    for name in ("redis.asyncio", "yaml", "hypothesis.stateful"):
        importlib.import_module(name)


def run_tests(source: Path, tests: list[str], said: Path) -> None:
    """Run pytest on the package in `source`, in a child process. Ends the process with pytest's exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_TIME, CPU_TIME))
    os.setsid()  # one group, so that a timeout ends what the tests have started as well
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(source)  # for the programs that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(source), str(ROOT)]
    options = ["-x", "--tb=line", "--hypothesis-profile=mutants", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main([*options, *tests]))


def survives(mutant: Mutant) -> tuple[bool, str]:
    """Run the tests of a mutant. Return whether all of them pass, and their output."""
    with tempfile.TemporaryDirectory(prefix="ratebound-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(PACKAGE, source / "ratebound", ignore=shutil.ignore_patterns("__pycache__"))
        (source / "ratebound" / mutant.module).write_text(mutant.source)
        said = Path(folder) / "said"
        child = multiprocessing.get_context("fork").Process(target=run_tests, args=(source, TESTS[mutant.module], said))
        child.start()
        child.join(TIMEOUT)
        is_late = child.is_alive()
        if child.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return not is_late and child.exitcode == 0, said.read_text(errors="replace")


def difference(mutant: Mutant) -> str:
    """Return the diff of a mutant."""
    before = ast.unparse(ast.parse((PACKAGE / mutant.module).read_text())).splitlines()
    return "\n".join(difflib.unified_diff(before, mutant.source.splitlines(), lineterm="", n=2))


def main() -> None:
    """Run the mutants that the arguments select. Exits with status 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every mutant instead of a sample")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draw the same sample again")
    parser.add_argument("--show", metavar="TEXT", help="run every mutant with this in its name, and show it")
    parser.add_argument("modules", nargs="*", help="only modules with one of these in their path")
    options = parser.parse_args()
    named = [module for module in TESTS if any(part in module for part in options.modules)]
    chosen = named if options.modules else list(TESTS)
    mutants = [mutant for module in chosen for mutant in mutants_of(module)]
    listed = equivalents()
    gone = [
        title for title in listed if title not in {mutant.title for mutant in mutants} and title.split(":")[0] in chosen
    ]
    mutants = [mutant for mutant in mutants if mutant.title not in listed]
    total = len(mutants)
    if options.show:
        mutants = [mutant for mutant in mutants if options.show in mutant.title]
    elif not options.all:
        mutants = random.Random(options.seed).sample(mutants, min(SAMPLE, total))
        print(f"{len(mutants)} of {total} mutants, drawn with --seed {options.seed}")
    warm_up()
    for module in {mutant.module for mutant in mutants}:
        survived, said = survives(Mutant(module, "unchanged", (PACKAGE / module).read_text()))
        if not survived:
            raise SystemExit(f"the tests of {module} fail on the code as it is:\n{said[-2000:]}")
    begin = time.monotonic()
    alive = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, (survived, said) in zip(mutants, pool.map(survives, mutants), strict=True):
            if survived:
                alive.append(mutant)
                print(f"survives: {mutant.title}", flush=True)
            if options.show:
                print(difference(mutant), said[-2000:], sep="\n", flush=True)
    for title in gone:
        print(f"in {EQUIVALENT.name}, but not in the code: {title}")
    print(
        f"{len(mutants) - len(alive)} of {len(mutants)} mutants were noticed, in {time.monotonic() - begin:.0f} s;"
        f" {len(listed)} are listed as equivalent"
    )
    if alive or gone:
        raise SystemExit("Write a test that notices each survivor, or list it with the reason why no test can")


if __name__ == "__main__":
    main()
