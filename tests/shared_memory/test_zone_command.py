"""The commands on zones: what `ratebound zone` shows and drops, and the commands with `--storage shm://…`."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.blocks import blocks
from ratebound.cli.state import state
from ratebound.cli.zone import zone
from ratebound.storage.shared_memory.cells import LINKED, OPEN
from ratebound.storage.shared_memory.layout import HEAD, HEADER, LEAST_SIZE
from ratebound.storage.shared_memory.locks import GLIBC_MUTEXES, OTHER_MUTEXES, best_kind
from ratebound.storage.shared_memory.storage import LOCKS, SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import MappedZone, drop_zone
from ratebound.testing import FakeClock
from tests.shared_memory.test_opening import AS_ROOT, OTHER_USER, in_child, opened, remade


@pytest.fixture
def directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="zones-") as made:
        Path(made).chmod(0o1777)
        yield made


def run(command: click.Command, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(command, arguments, input=answer, env={"COLUMNS": "120"})


def shown(directory: str, name: str = "api") -> dict[str, Any]:
    done = run(zone, "show", name, "--directory", directory, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def spend(storage: Any, limits: str, keys: int) -> None:
    with Limiter(limits, storage=storage, failure="raise") as limiter:
        for key in range(keys):
            limiter.hit(f"user:{key}")


@pytest.mark.parametrize("locks", LOCKS)
def test_show_counts_cells_blocks_and_documents(directory: str, locks: str) -> None:
    storage = opened(directory, locks=locks)
    empty = shown(directory)
    assert (empty["used"], empty["expired"], empty["used_blocks"], empty["documents"]) == (0, 0, 0, 0)
    assert (empty["size"], empty["owner"], empty["is_old"]) == (LEAST_SIZE, os.geteuid(), False)
    assert (empty["holders"], empty["marks"]) == ([], [])
    spend(storage, "10/hour", 30)
    for _ in range(20):
        spend(storage, "100/hour sliding-log as log", 2)  # its entries need blocks
    storage.write_document("blocks", b"x", 0)
    found = shown(directory)
    assert (found["used"], found["expired"], found["documents"]) == (32, 0, 1)
    assert found["used_blocks"] >= 2
    assert found["fill"] == round(100 * 32 / found["cells"], 2)
    assert (found["evicted"], found["overflowed"], found["repaired"]) == (0, 0, 0)


def test_show_counts_what_has_expired(directory: str) -> None:
    storage = opened(directory, clock=FakeClock())  # it stands still, years ago
    spend(storage, "10/second", 5)
    found = shown(directory)
    assert (found["used"], found["expired"]) == (5, 5)


def test_show_counts_what_a_full_zone_dropped_and_what_found_no_room(directory: str) -> None:
    storage = opened(directory)
    spend(storage, "10/hour", 4000)
    full = shown(directory)
    assert full["used"] <= full["cells"] < 4000
    assert full["evicted"] >= 4000 - full["cells"]
    spend(storage, "1/hour as once", 4000)  # these deny, and are never dropped
    assert shown(directory)["overflowed"] > 0
    said = run(zone, "show", "api", "--directory", directory).stdout
    assert "The zone was full. Use a larger one" in said
    assert "start them with more, for example size=2mb." in said


def test_show_is_readable_by_people(directory: str) -> None:
    storage = opened(directory)
    spend(storage, "10/hour", 30)
    said = run(zone, "show", "api", "--directory", directory).stdout
    lines = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in said.splitlines() if "  " in line.strip())
    assert lines["zone"] == "api"
    assert lines["directory"] == directory
    assert lines["size"] == "1 MB"
    assert re.fullmatch(r"[\d,]+, 30 used \([\d.]+ %\): one for each key and limit", lines["cells"])
    assert lines["locks held now"] == "none"
    assert lines["marked shards"] == "none"


def test_show_takes_no_name_for_a_style(directory: str) -> None:
    styled = Path(directory, "[bold]zones")
    styled.mkdir(mode=0o700)
    spend(opened(str(styled)), "10/hour", 1)
    assert str(styled) in run(zone, "show", "api", "--directory", str(styled)).stdout.replace("\n", "")


@pytest.fixture
def child(directory: str) -> Iterator[Callable[[str], int]]:
    """Start a process that takes the lock of shard 5, and then stops itself."""
    started: list[subprocess.Popen[bytes]] = []

    def start(locks: str) -> int:
        code = f"""
import os, signal
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
storage = SharedMemoryStorage("api", directory={directory!r}, size={LEAST_SIZE}, locks={locks!r})
assert storage.states.zone.enter(5, 1.0)
print("inside", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"inside\n"
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.skipif(best_kind() == OTHER_MUTEXES, reason="where other C libraries keep the owner of a mutex is unknown")
@pytest.mark.parametrize("locks", LOCKS)
def test_show_names_the_stopped_process_that_has_a_lock_and_does_not_wait_for_it(
    directory: str, child: Callable[[str], int], locks: str
) -> None:
    process = child(locks)
    assert shown(directory)["holders"] == [{"shard": 5, "process": process, "is_stopped": True}]
    said = run(zone, "show", "api", "--directory", directory).stdout
    assert f"5: process {process}, which is stopped" in said
    assert "A stopped process keeps its lock." in said
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert shown(directory)["holders"] == []


def test_a_lock_of_this_process_is_shown_too(directory: str) -> None:
    if best_kind() != GLIBC_MUTEXES:
        pytest.skip("a process cannot ask the system for file locks of its own")
    storage = opened(directory)
    assert storage.states.zone.enter(3, 1.0)
    try:
        assert shown(directory)["holders"] == [{"shard": 3, "process": os.getpid(), "is_stopped": False}]
    finally:
        storage.states.zone.leave(3)


def test_show_tells_of_marks_and_leaves_them(directory: str) -> None:
    storage = opened(directory)
    mapped = storage.states.zone.owner
    assert isinstance(mapped, MappedZone)
    mapped.memory[HEADER + 2 * HEAD] = OPEN
    mapped.memory[HEADER + 7 * HEAD] = LINKED + 2
    for _ in range(2):
        assert shown(directory)["marks"] == [
            {"shard": 2, "text": "several states are being written"},
            {"shard": 7, "text": "it is being written together with shard 2"},
        ]
    said = run(zone, "show", "api", "--directory", directory).stdout
    assert "A mark without a lock is of a process that was killed." in said


def test_show_changes_no_byte(directory: str) -> None:
    path = Path(in_child(lambda: opened(directory).zone_name.path))
    before, status = path.read_bytes(), path.stat()
    shown(directory)
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def test_a_zone_from_before_the_last_start_is_shown_and_stays(directory: str) -> None:
    remade(directory, boot=bytes(36))
    assert shown(directory)["is_old"]
    said = run(zone, "show", "api", "--directory", directory).stdout
    assert "This zone is from before the last start of the system." in said
    assert os.listdir(directory) == ["ratebound-api"]


@AS_ROOT
def test_root_shows_the_zone_of_another_user_and_others_may_not(directory: str) -> None:
    in_child(lambda: opened(directory).zone_name.path, OTHER_USER)
    assert shown(directory)["owner"] == OTHER_USER
    said = in_child(lambda: run(zone, "show", "api", "--directory", directory).output, OTHER_USER + 1)
    assert said.startswith(f"zone 'api' belongs to user {OTHER_USER}, and this program runs as user {OTHER_USER + 1}")
    assert in_child(lambda: run(zone, "list", "--directory", directory).output, OTHER_USER + 1) == (
        f"there are no zones in {directory}\n"
    )


def test_an_unknown_name_is_an_error_that_names_the_zones_there_are(directory: str) -> None:
    done = run(zone, "show", "api", "--directory", directory)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"there is no zone 'api' in {directory}: there are no zones\n"
    kept = [opened(directory, name) for name in ("shop", "web.v2")]
    kept[0].write_document("blocks", b"x", 0)
    done = run(zone, "show", "api", "--directory", directory)
    assert done.stderr == f"there is no zone 'api' in {directory}: the zones there are shop, web.v2\n"
    assert run(zone, "list", "--directory", directory).stdout == "shop\nweb.v2\n"
    assert json.loads(run(zone, "list", "--directory", directory, "--json").stdout) == ["shop", "web.v2"]


@pytest.mark.parametrize("command", ["show", "drop"])
def test_a_mistake_exits_with_status_2(directory: str, command: str) -> None:
    done = run(zone, command, "a/b", "--directory", directory, answer="y\n")
    assert (done.exit_code, done.stderr.startswith("the name of a zone is 1 to 64 of")) == (2, True)
    done = run(zone, command, "api", "--directory", f"{directory}/missing", answer="y\n")
    assert (done.exit_code, "is not a directory" in done.stderr) == (2, True)


def test_a_zone_that_cannot_be_read_is_an_error(directory: str) -> None:
    Path(directory, "ratebound-api").write_text("hello")
    done = run(zone, "show", "api", "--directory", directory)
    assert (done.exit_code, "is not a zone: remove it" in done.stderr) == (1, True)
    Path(directory, "ratebound-api").unlink()
    remade(directory, version=77)
    done = run(zone, "show", "api", "--directory", directory)
    assert (done.exit_code, "has version 77" in done.stderr) == (1, True)
    done = run(zone, "drop", "api", "--directory", directory, "--yes")
    assert (done.exit_code, "could not be told: start them again" in done.stdout) == (0, True)


def test_drop_asks_and_the_program_goes_on_with_a_new_zone(directory: str) -> None:
    storage = opened(directory)
    with Limiter("2/hour", storage=storage, failure="raise") as limiter:
        assert [bool(limiter.hit("a")) for _ in range(3)] == [True, True, False]
        done = run(zone, "drop", "api", "--directory", directory, answer="n\n")
        assert done.exit_code == 1
        assert "Programs that use it go on with a new one, in which nothing has been counted. [y/N]" in done.stdout
        assert not limiter.hit("a")
        done = run(zone, "drop", "api", "--directory", directory, answer="y\n")
        assert (done.exit_code, "is dropped: programs that used it go on with a new one" in done.stdout) == (0, True)
        assert [bool(limiter.hit("a")) for _ in range(3)] == [True, True, False]
        assert shown(directory)["used"] == 1
    drop_zone(storage.zone_name)
    done = run(zone, "drop", "api", "--directory", directory, "--yes")
    assert (done.exit_code, "there is no zone 'api'" in done.stderr) == (1, True)


def test_drop_does_not_ask_about_a_zone_that_is_not_there(directory: str) -> None:
    kept = opened(directory, "shop")
    done = run(zone, "drop", "api", "--directory", directory)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"there is no zone 'api' in {directory}: the zones there are {kept.zone_name.name}\n"


def test_a_zone_may_be_named_by_the_url_of_its_storage(directory: str) -> None:
    kept = opened(directory)
    url = f"shm://api?size=1mb&directory={directory}"
    assert json.loads(run(zone, "show", url, "--json").stdout)["name"] == kept.zone_name.name
    assert "zone 'api' is dropped" in run(zone, "drop", url, "--yes").stdout


# Other commands, on shm://


def test_state_reads_and_resets_what_a_running_application_counts(directory: str) -> None:
    url = f"shm://api?directory={directory}"
    storage = SharedMemoryStorage("api", directory=directory, size=2 << 20)
    options = ["--storage", url, "--limits", "10/hour", "--json"]
    with Limiter("10/hour", storage=storage) as limiter:
        limiter.hit("user:1", cost=4)
        (usage,) = json.loads(run(state, "usage", "user:1", *options).stdout)
        assert usage["used"] == 4
        (usage,) = json.loads(run(state, "reset", "user:1", *options).stdout)
        assert usage["used"] == 0
        assert limiter.hit("user:1", cost=10)


def test_blocks_are_added_listed_and_removed(directory: str) -> None:
    url = f"shm://api?directory={directory}"
    kept = opened(directory)
    done = run(blocks, "add", "203.0.113.7", "--reason", "scans", "--storage", url)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(run(blocks, "list", "--storage", url, "--json").stdout)
    assert (found["client"], found["reason"]) == ("203.0.113.7", "scans")
    assert run(blocks, "remove", "203.0.113.7", "--storage", url).exit_code == 0
    assert kept.read_document("nothing") == (0, b"")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(blocks, ["list"]), (blocks, ["add", "203.0.113.7"]), (state, ["usage", "a", "--limits", "1/hour"])],
)
def test_no_command_makes_a_zone(directory: str, command: click.Command, arguments: list[str]) -> None:
    """It would be of the wrong user, or of the wrong size."""
    done = run(command, *arguments, "--storage", f"shm://api?directory={directory}")
    assert done.exit_code == 1
    assert f"there is no zone 'api' in {directory}: start the application first, with storage='shm://api" in done.stderr
    assert not os.listdir(directory)


def test_a_policy_file_with_a_zone_is_checked_and_its_states_are_read(directory: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"storage: shm://api?directory={directory}\nrules: [{{name: rest, limits: 5/hour, by: address}}]\n")
    kept = opened(directory)
    done = run(state, "usage", "203.0.113.7", "--policy", str(file), "--json")
    assert [one["remaining"] for one in json.loads(done.stdout)] == [5], done.output
    assert kept.zone_name.name == "api"


def test_the_program_has_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ratebound", "zone", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("show", "list", "drop"))


def test_a_zone_keeps_its_keys_until_it_is_well_filled(directory: str) -> None:
    """A new key takes the emptier one of its two buckets. The first with room would drop ten states here."""
    storage = opened(directory, size=8 << 20)
    keys = shown(directory)["cells"] * 6 // 10
    spend(storage, "10/hour", keys)
    found = shown(directory)
    assert found["used"] == keys - found["evicted"]
    assert found["evicted"] <= 2
