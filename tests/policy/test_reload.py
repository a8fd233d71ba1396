"""A changed file is in force without a restart; a broken one is not, and says so."""

import gc
import logging
import os
import resource
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import Gate, Policy, PolicyError, PolicyFile, Rule
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.policy_changes import changes_between
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request


def text(limits: str, more: str = "") -> str:
    return f"{more}\nrules: [{{name: a, limits: {limits}}}]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text("5/minute"))
    return path


def test_a_reload_is_in_force_for_the_next_request_and_keeps_the_count(path: Path, clock: FakeClock) -> None:
    file = PolicyFile(path, every=0)
    gate = Gate(file, storage=MemoryStorage(clock=clock))
    assert passes(gate, request()) == 5
    path.write_text(text("8/minute"))
    assert file.reload()
    assert passes(gate, request()) == 3
    path.write_text(text("8/minute burst 9"))
    assert file.reload()
    assert passes(gate, request()) == 9, "another algorithm starts anew"
    assert file.changes == ("rule a: '8/minute burst 9' starts anew: its algorithm or its period has changed",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_fifo_in_place_of_the_file_is_told_and_does_not_stop_reloads(path: Path) -> None:
    file = PolicyFile(path, every=0)
    path.unlink()
    os.mkfifo(path)
    assert not file.reload()
    assert "not a directory, a FIFO or a device" in str(file.error)
    path.unlink()
    path.write_text(text("9/minute"))
    assert file.reload()
    assert file.error is None
    assert passes(gate_of(file.policy), request()) == 9


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_fifo_is_no_policy_from_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.yaml")
    with pytest.raises(PolicyError, match="expected a regular file"):
        PolicyFile(tmp_path / "policy.yaml")


def test_a_file_that_could_not_be_opened_is_read_when_it_can_be(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = PolicyFile(path, every=0)
    path.write_text(text("7/minute"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert not file.reload()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "Too many open files" in str(file.error)
        assert file.is_changed()
    assert len(caplog.records) == 1, "it is told once"
    assert file.reload()
    assert (file.policy.rules[0].limits, file.error, file.is_changed()) == ("7/minute", None, False)


def test_a_broken_file_leaves_the_old_policy_in_force_and_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = PolicyFile(path, every=0)
    gate = Gate(file)
    old = gate.policy
    path.write_text(text("5/minut"))
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert not file.reload()
    assert f"{path}:2: rules[0].limits: cannot read limit" in caplog.text
    assert file.error is not None
    assert file.error.problems[0].line == 2
    assert gate.policy is old
    path.unlink()
    assert not file.reload()
    assert passes(gate, request()) == 5
    path.write_text(text("7/minute"))
    assert file.reload()
    assert file.error is None


def test_a_file_that_is_broken_from_the_start_does_not_start(path: Path) -> None:
    path.write_text("rules: 5")
    with pytest.raises(PolicyError):
        PolicyFile(path)


def test_a_change_is_noticed_by_looking_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    file = PolicyFile(path, every=2.0, clock=lambda: now)
    gate = Gate(file)
    path.write_text(text("77/minute"))
    looks: list[int] = []
    look = file._look
    monkeypatch.setattr(file, "_look", lambda: looks.append(1) or look())  # type: ignore[func-returns-value]
    for _ in range(100):
        decide(gate, request())
    assert not looks, "it is not time yet"
    now += 2.0
    for _ in range(100):
        decide(gate, request())
    for thread in threading.enumerate():
        if thread.name == "ratebound policy":
            thread.join()
    assert len(looks) <= 2, "one look, and one more by the thread that reads"
    assert passes(gate, request(peer="192.0.2.2"), most=100) == 77


def test_where_no_thread_can_be_started_the_old_policy_decides_and_a_later_request_tries_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    now = 1000.0
    file = PolicyFile(path, every=2.0, clock=lambda: now)
    gate = Gate(file)
    path.write_text(text("77/minute"))
    now += 2.0
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert passes(gate, request()) == 5
    now += 2.0
    decide(gate, request())
    for thread in threading.enumerate():
        if thread.name == "ratebound policy":
            thread.join()
    assert passes(gate, request(peer="192.0.2.2"), most=100) == 77


def test_a_policy_can_be_swapped_by_a_call(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute"), Rule("b", "9/minute")]), clock)
    assert passes(gate, request()) == 5
    with caplog.at_level(logging.WARNING, "ratebound"):
        gate.use(Policy(rules=[Rule("a", "6/minute"), Rule("c", "9/hour")]))
    assert "a new policy is in force: 2 rules" in caplog.text
    assert "rule b is gone" in caplog.text
    assert passes(gate, request()) == 1


def test_what_a_swap_changes_is_listed() -> None:
    old = Policy(rules=[Rule("a", "5/minute"), Rule("b", "5/minute"), Rule("c", "5/minute", by="user")])
    new = Policy(
        rules=[Rule("a", "9/minute"), Rule("b", "5/hour"), Rule("c", "5/minute", by="global")],
        storage="memory://?max_keys=5",
    )
    assert list(changes_between(old, new)) == [
        "rule b: '5/hour' starts anew: its algorithm or its period has changed",
        "storage: a change takes a restart; the old one stays in use",
        "rule c: counts by global from now on, and starts anew",
    ]
    assert not list(changes_between(old, old))


def test_a_new_policy_that_a_sync_gate_cannot_use_is_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def find(view: Any) -> str:
        return "x"

    file = PolicyFile(path, every=0, functions={"find": find})
    gate = Gate(file)
    path.write_text("rules: [{name: a, limits: 9/minute, by: {call: find}}]")
    assert file.reload()
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert passes(gate, request()) == 5
    assert caplog.text.count("cannot be used here") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_process_follows_the_file_even_if_it_was_being_read(path: Path) -> None:
    file = PolicyFile(path, every=0)
    with file._lock:  # as a thread would hold it
        child = os.fork()
        if not child:
            os._exit(0 if file._lock.acquire(timeout=1) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_requests_go_on_while_a_policy_is_swapped(path: Path) -> None:
    file = PolicyFile(path, every=0)
    gate = Gate(file)
    failures: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                decide(gate, request())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for count in range(1, 30):
        path.write_text(text(f"{count}/minute"))
        assert file.reload()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


class Prepared:
    """Notes what it is prepared for: the rules of the new policy, those in force then, and the thread."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.noted: list[tuple[list[str], list[str], threading.Thread]] = []
        gate.before_new_policy(self.prepare)

    def prepare(self, compiled: CompiledPolicy) -> None:
        new, old = ([rule.name for rule in policy.rules] for policy in (compiled.policy, self.gate.policy))
        self.noted.append((new, old, threading.current_thread()))


def test_what_is_built_on_a_policy_is_prepared_before_the_policy_is_in_force(path: Path) -> None:
    file = PolicyFile(path, every=0)
    prepared = Prepared(Gate(file))
    path.write_text("rules: [{name: b, limits: 5/minute}]")
    thread = threading.Thread(target=file.reload)
    thread.start()
    thread.join()
    assert prepared.noted == [(["b"], ["a"], thread)]
    assert [rule.name for rule in prepared.gate.policy.rules] == ["b"]
    prepared.gate.use(Policy(rules=[Rule("c", "5/minute")]))
    assert prepared.noted[1:] == [(["c"], ["b"], threading.current_thread())]
    assert file.reload()
    assert len(prepared.noted) == 2, "the gate does not follow the file any more"


def test_a_preparation_that_fails_does_not_keep_a_policy_out_of_force(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def prepare(self, compiled: CompiledPolicy) -> None:
            raise RuntimeError("broken")

    file = PolicyFile(path, every=0)
    gate = Gate(file)
    broken = Broken()
    gate.before_new_policy(broken.prepare)
    prepared = Prepared(gate)
    path.write_text(text("9/minute"))
    assert file.reload()
    assert passes(gate, request()) == 9
    assert "preparing for a new policy failed" in caplog.text
    assert len(prepared.noted) == 1


def test_a_file_does_not_keep_the_gates_that_used_it(path: Path) -> None:
    file = PolicyFile(path, every=0)
    gate = Gate(file)
    prepared = Prepared(gate)
    gone = weakref.ref(gate), weakref.ref(prepared)
    del gate, prepared
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert file.reload()


def test_a_policy_that_was_being_read_while_a_gate_was_made_is_in_force(path: Path) -> None:
    file = PolicyFile(path, every=0)
    gate = Gate(file)
    file.compiled = CompiledPolicy(Policy(rules=[Rule("a", "9/minute")]))  # as by a thread that knew no gate yet
    assert passes(gate, request()) == 9
