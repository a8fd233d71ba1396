"""Both builds give the same answers: random histories are played in two processes and compared line by line."""

import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build" / "compiled"
LONG = os.environ.get("RATEBOUND_LONG") == "1"
DECISIONS = 2_000  # in each history
SEEDS = 500 if LONG else 2  # long: a million decisions
AT_ONCE = 25


def played(folder: Path, seed: int, seeds: int) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "tests.compiled.history", str(seed), str(DECISIONS), str(seeds)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    return subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_history_is_the_same_in_both_builds(capsys: pytest.CaptureFixture[str]) -> None:
    if not COMPILED.is_dir():
        if os.environ.get("RATEBOUND_EXPECT_COMPILED") == "1":
            pytest.fail("build/compiled is missing: run `make compiled`")
        pytest.skip("build/compiled is missing: `make compiled` builds it")
    lines = 0
    for seed in range(1, SEEDS + 1, AT_ONCE):
        seeds = min(AT_ONCE, SEEDS + 1 - seed)
        with played(ROOT / "src", seed, seeds) as pure, played(COMPILED, seed, seeds) as compiled:
            assert pure.stdout is not None
            assert compiled.stdout is not None
            assert (pure.stdout.readline(), compiled.stdout.readline()) == ("pure\n", "compiled\n")
            for one, other in zip_longest(pure.stdout, compiled.stdout):
                assert one == other
                lines += 1
        assert (pure.returncode, compiled.returncode) == (0, 0)
        if LONG:
            with capsys.disabled():
                print(f"{lines:,} decisions were the same in both builds")  # noqa: T201
    assert lines >= SEEDS * DECISIONS
