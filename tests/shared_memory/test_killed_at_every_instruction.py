"""A worker is killed at every instruction of the code that takes locks, decides and stores, and of that of documents.

The instructions are those of the interpreter. Kills inside one of them are in test_killed_at_every_store.py.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ratebound.storage import shared_memory
from tests.builds import needs_pure_build
from tests.shared_memory.conftest import RunApart
from tests.shared_memory.kills import Enumeration, in_a_child
from tests.shared_memory.kinds_of_locks import LOCKS
from tests.shared_memory.operations import OPERATIONS, Scene

LONG = os.environ.get("RATEBOUND_LONG") == "1"
FOLDER = str(Path(shared_memory.__file__).parent)
STEPS = {  # of the instructions, every so manieth is a kill, if time is short
    "token-bucket, known key": 11,
    "sliding-log, new key": 37,
    "log of 14 grows": 67,
    "several shards, known and new": 211,
    "reset of a log": 67,
    "slots released together with a refund": 149,
}

pytestmark = needs_pure_build


def traced(work: Callable[[], object], kill_at: int) -> int:
    """Do something, and return the number of instructions of the zone's code. Be killed at one of them."""
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if passed == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            passed += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return passed


def killed_at(work: Callable[[], object], instruction: int) -> None:
    """Let a child do something until it kills itself at an instruction."""
    status = in_a_child(lambda: traced(work, instruction))
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"


def kill_at_instructions(name: str, locks: str, folder: str) -> None:
    """Kill a worker at the instructions of an operation, at one after the other."""
    (operation,) = (operation for operation in OPERATIONS if operation.name == name)
    enumeration = Enumeration(Scene(folder, locks), operation)
    counts: list[int] = []
    for _ in range(3):
        enumeration.begin.restore()
        counts.append(traced(enumeration.act, -1))
    instructions = min(counts)  # filling caches the first time takes more, and so does a collection of garbage
    assert instructions > 100
    step = 1 if LONG else STEPS[name]
    for instruction in range(LOCKS.index(locks) * step // 2, instructions, step):
        enumeration.begin.restore()
        killed_at(enumeration.act, instruction)
        enumeration.check()


@pytest.mark.parametrize("locks", LOCKS)
@pytest.mark.parametrize("name", STEPS)
def test_a_worker_killed_at_any_instruction_leaves_all_or_nothing(
    name: str, locks: str, run_apart: RunApart, tmp_path: Path
) -> None:
    run_apart(kill_at_instructions, name, locks, str(tmp_path))


def kill_while_writing(folder: str) -> None:
    """Kill a worker at the instructions of a write of a document."""
    storage = Scene(folder).storage
    version, old, new = 0, b"old", b"new"

    def write() -> None:
        assert storage.write_document("rules", new, version)

    for instruction in range(0, 10_000, 1 if LONG else 5):
        assert storage.write_document("rules", old, version)
        version += 1
        status = in_a_child(lambda at=instruction: traced(write, at))  # type: ignore[misc]
        found = storage.read_document("rules")
        assert found in ((version, old), (version + 1, new))
        version = found[0]
        if not os.WIFSIGNALED(status):
            assert found[1] == new
            return
    raise AssertionError("the write never ended")


def test_a_worker_killed_while_it_writes_a_document_leaves_the_old_one_or_the_new_one(
    run_apart: RunApart, tmp_path: Path
) -> None:
    run_apart(kill_while_writing, str(tmp_path))
    for left in tmp_path.iterdir():  # a file that was never renamed is as long as a document, and goes with the zone
        assert left.name.startswith("ratebound-")
