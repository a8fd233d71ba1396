"""Opening zones on real files: what cannot be opened, what the error says, and many processes that open one at once."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratebound import Limiter, StorageError
from ratebound.storage.shared_memory import zone_file
from ratebound.storage.shared_memory.layout import HEADER_FIELDS, LEAST_SIZE, MAGIC, VERSION
from ratebound.storage.shared_memory.locks import GLIBC_MUTEXES, OTHER_MUTEXES, best_kind
from ratebound.storage.shared_memory.storage import LOCKS, SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import Header, drop_zone, zone_name
from ratebound.storage.urls import check_storage_url, open_async_storage, open_storage
from tests.mounts import in_own_mounts
from tests.shared_memory.conftest import RunApart

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
OTHER_USER = 54321
SMALL: dict[str, Any] = {"size": LEAST_SIZE}


@pytest.fixture
def directory() -> Iterator[str]:
    """A directory that every user can reach, as /dev/shm is."""
    with tempfile.TemporaryDirectory(prefix="zones-") as made:
        Path(made).chmod(0o1777)
        yield made


def opened(directory: str, name: str = "api", **options: Any) -> SharedMemoryStorage:
    return SharedMemoryStorage(name, directory=directory, **{**SMALL, **options})


def error_of(directory: str, **options: Any) -> str:
    with pytest.raises(StorageError) as raised:
        opened(directory, **options)
    assert raised.value.undone
    return str(raised.value)


def in_child(call: Callable[[], object], user: int | None = None) -> str:
    """Run a call in a child process, as another user if that is asked for. Return the text of what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            if user is not None:
                os.setegid(user)
                os.seteuid(user)
            os.write(writing, str(call()).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said


def remade(directory: str, **fields: object) -> None:
    """Write a zone, and change fields of its header."""
    path = in_child(lambda: opened(directory).zone_name.path)
    with Path(path).open("r+b") as file:
        header = Header(*HEADER_FIELDS.unpack(file.read(HEADER_FIELDS.size))[1:])
        file.seek(0)
        file.write(header._replace(**fields).packed())  # type: ignore[arg-type]


def count(storage: SharedMemoryStorage) -> bool:
    return bool(Limiter("2/hour", storage=storage).hit("user:1"))


# What cannot be opened


def test_a_zone_of_another_version_is_an_error_that_says_what_to_run(directory: str) -> None:
    remade(directory, version=VERSION + 1)
    assert error_of(directory) == (
        f"zone 'api' has version {VERSION + 1}, and this Ratebound writes version {VERSION}: stop the programs that use"
        f" it and run: ratebound zone drop api --directory {directory}; or give yours another name"
    )


def test_a_zone_of_another_size_is_an_error_that_names_both(directory: str) -> None:
    kept = opened(directory)
    expected = (
        "zone 'api' has 1 MB, and 2 MB were asked for: use the same size everywhere, or stop the programs that use it"
        f" and run: ratebound zone drop api --directory {directory}"
    )
    assert error_of(directory, size=2 << 20) == expected
    del kept
    assert error_of(directory, size=2 << 20) == expected  # also in a process that had not mapped it
    assert "1 MB, and 1048577 bytes were asked for" in error_of(directory, size=LEAST_SIZE + 1)


def test_without_a_size_a_zone_of_any_size_is_opened(directory: str) -> None:
    kept = opened(directory, size=3 << 20)
    assert open_storage(f"shm://api?directory={directory}").states.zone.owner is kept.states.zone.owner  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * LEAST_SIZE, MAGIC[:-1]])
def test_a_file_that_is_no_zone_is_an_error_and_stays(directory: str, content: bytes) -> None:
    path = Path(zone_name("api", directory).path)
    path.write_bytes(content)
    expected = f"{path} is not a zone: remove it, or give the zone another name"
    assert error_of(directory) == expected
    with pytest.raises(StorageError) as raised:
        drop_zone(zone_name("api", directory))
    assert str(raised.value) == expected
    assert path.read_bytes() == content


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_file_is_not_a_zone(directory: str, make: Callable[[str], None]) -> None:
    make(zone_name("api", directory).path)
    assert "is not a zone: remove it" in error_of(directory)


@pytest.mark.parametrize("length", [len(MAGIC), HEADER_FIELDS.size, 4096, LEAST_SIZE - 1, LEAST_SIZE + 1])
def test_a_zone_that_was_cut_or_grown_is_damaged(directory: str, length: int) -> None:
    path = in_child(lambda: opened(directory).zone_name.path)
    os.truncate(path, length)
    said = error_of(directory)
    assert said.startswith(f"zone 'api' is damaged: it has {length} bytes")
    assert f"run: ratebound zone drop api --directory {directory}" in said


@pytest.mark.parametrize("field", ["buckets", "blocks"])
def test_a_zone_whose_header_contradicts_itself_is_damaged(directory: str, field: str) -> None:
    remade(directory, **{field: 1 << 40})
    assert "zone 'api' is damaged" in error_of(directory)


def test_a_zone_of_a_program_with_other_pointers_is_an_error(directory: str) -> None:
    remade(directory, pointer=4)
    assert "was made by a 32-bit program, and this one has 64 bits: stop the programs" in error_of(directory)


def test_a_zone_with_locks_of_another_c_library_is_an_error(directory: str) -> None:
    other = OTHER_MUTEXES if best_kind() == GLIBC_MUTEXES else GLIBC_MUTEXES
    remade(directory, lock_kind=other)
    assert "which this program cannot use: stop the programs" in error_of(directory)
    drop_zone(zone_name("api", directory))
    remade(directory, lock_kind=99)
    assert "has unknown locks" in error_of(directory)


def test_a_symbolic_link_is_not_followed(directory: str) -> None:
    made = opened(directory, "other").zone_name.path
    path = zone_name("api", directory).path
    os.symlink(made, path)
    expected = (
        f"{path} is a symbolic link, and zones are not looked for behind links: remove it, or give the zone another"
        " name"
    )
    assert error_of(directory) == expected
    os.unlink(path)
    os.symlink(f"{directory}/nothing", path)
    assert error_of(directory) == expected
    assert not Path(f"{directory}/nothing").exists()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "a b", "a+b", "-a", "ä", "a" * 65, "a\n"])
def test_a_name_that_is_not_allowed_is_an_error(directory: str, name: str) -> None:
    with pytest.raises(ValueError, match="the name of a zone is 1 to 64 of"):
        SharedMemoryStorage(name, directory=directory)
    assert not os.listdir(directory)


@pytest.mark.parametrize(
    "url",
    [
        "shm://",
        "shm://a b",
        "shm://.x",
        "shm:///api",
        "shm://api/0",
        "shm://user:secret@api",
        *(f"shm://api?{query}" for query in ("size=1", "size=big", "size=65gb", "size=2mb&size=3mb", "zone=1")),
        *(f"shm://api?timeout={text}" for text in ("0", "-1", "x", "nan", "")),
    ],
)
def test_a_url_that_cannot_be_read_is_found_before_anything_is_opened(url: str) -> None:
    for read in (check_storage_url, open_storage, open_async_storage):
        with pytest.raises(ValueError, match="zone|cannot open storage") as raised:
            read(url)
        assert "secret" not in str(raised.value)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a directory: make it first"):
        SharedMemoryStorage("api", directory=str(tmp_path / "missing"))


# Other users


@AS_ROOT
def test_another_users_zone_is_an_error_for_both(directory: str) -> None:
    assert in_child(lambda: opened(directory).zone_name.name, OTHER_USER) == "api"
    assert error_of(directory) == (
        f"zone 'api' belongs to user {OTHER_USER}, and this program runs as user 0: run both as one user, or give the"
        " zone another name"
    )
    drop_zone(zone_name("api", directory))
    path = in_child(lambda: opened(directory).zone_name.path)
    said = in_child(lambda: opened(directory), OTHER_USER)
    assert f"zone 'api' belongs to user 0, and this program runs as user {OTHER_USER}: run both as one user" in said
    said = in_child(lambda: drop_zone(zone_name("api", directory)), OTHER_USER)
    assert "StorageError: zone 'api' belongs to user 0" in said
    assert Path(path).is_file()


@AS_ROOT
def test_root_drops_another_users_zone_and_its_programs_go_on_with_a_new_one(directory: str) -> None:
    def use_and_drop() -> list[bool]:
        storage = opened(directory)
        before = [count(storage) for _ in range(3)]
        os.seteuid(0)
        child = os.fork()
        if not child:
            os.execv(sys.executable, [sys.executable, "-m", "ratebound", "zone", "drop", "api", "--yes", *where])
        assert os.waitpid(child, 0)[1] == 0
        os.seteuid(OTHER_USER)
        return [*before, *(count(storage) for _ in range(3))]

    where = ["--directory", directory]
    said = in_child(use_and_drop, OTHER_USER)
    assert said.splitlines()[-1] == str([True, True, False] * 2), said


@AS_ROOT
def test_a_document_that_another_user_has_planted_is_not_read(directory: str) -> None:
    storage = opened(directory)
    assert storage.write_document("blocks", b"ours", 0)
    (document,) = [path for path in storage.zone_name.documents() if not path.name.endswith("lock")]
    document.unlink()
    in_child(lambda: document.write_bytes(b"7:planted"), OTHER_USER)
    with pytest.raises(StorageError, match="it belongs to another user: remove it"):
        storage.read_document("blocks")
    document.unlink()
    document.symlink_to("/etc/hostname")
    with pytest.raises(StorageError, match="cannot read a document of the zone"):
        storage.read_document("blocks")


@AS_ROOT
def test_a_lock_of_documents_that_another_user_has_planted_is_not_waited_for(directory: str) -> None:
    storage = opened(directory)
    lock = Path(f"{storage.zone_name.path}+lock")
    in_child(lock.touch, OTHER_USER)
    lock.chmod(0o666)
    said = in_child(lambda: storage.write_document("blocks", b"ours", 0))
    assert "belongs to another user: remove it" in said


# Directories


@AS_ROOT
def test_a_directory_that_this_user_may_not_write_to_is_an_error(directory: str) -> None:
    os.chmod(directory, 0o755)
    said = in_child(lambda: opened(directory), OTHER_USER)
    assert (
        f"cannot make zone 'api' in {directory}: Permission denied. Use a directory that user {OTHER_USER} may write"
        " to, for example shm://api?directory=/run/app"
    ) in said


def test_a_limit_on_the_size_of_files_is_an_error_that_names_it(directory: str) -> None:
    def limited() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        return opened(directory)

    said = in_child(limited)
    assert "cannot make zone 'api' of 1 MB: the system allows this process no file of that size (ulimit -f)" in said
    assert not os.listdir(directory)


def code_that_opens(directory: str, size: int) -> str:
    return f"""
import os
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
try:
    SharedMemoryStorage("api", directory={directory!r}, size={size})
finally:
    print("files", os.listdir({directory!r}))
"""


def test_a_directory_that_is_too_small_is_an_error_and_nothing_is_left_in_it(directory: str) -> None:
    said = in_own_mounts(directory, "size=4m", code_that_opens(directory, 8 << 20))
    assert (
        f"cannot make zone 'api' of 8 MB: {directory} has 4 MB left. Ask for less (shm://api?size=8mb), use another"
        " directory (shm://api?directory=/run/app), or make the directory larger (docker run --shm-size=256m)"
    ) in said
    assert "files []" in said


def test_a_directory_with_room_for_one_zone_is_enough_for_many_processes_at_once(directory: str) -> None:
    """All of them would make it: a second one of the same size has no room."""
    code = f"""
import os
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
reading, writing = os.pipe()
children = []
for _ in range(16):
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        try:
            SharedMemoryStorage("api", directory={directory!r}, size=6 << 20)
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(writing)
print([os.waitpid(child, 0)[1] for child in children], os.listdir({directory!r}))
"""
    said = in_own_mounts(directory, "size=8m", code)
    assert said == f"{[0] * 16} ['ratebound-api']\n"


def test_a_read_only_file_system_is_an_error(directory: str) -> None:
    said = in_own_mounts(directory, "ro", code_that_opens(directory, LEAST_SIZE))
    assert f"cannot make zone 'api' in {directory}: Read-only file system. Use a directory that user 0 may" in said


# Zones that are there


def test_a_zone_from_before_the_last_start_of_the_system_is_made_anew(directory: str) -> None:
    in_child(lambda: [count(opened(directory)) for _ in range(3)])
    remade(directory, boot=b"another start of the system".ljust(36, b"\0"))
    storage = opened(directory)
    assert [count(storage) for _ in range(3)] == [True, True, False]


def test_a_dropped_zone_from_before_the_last_start_is_gone(directory: str) -> None:
    remade(directory, boot=bytes(36))
    assert drop_zone(zone_name("api", directory))
    assert not os.listdir(directory)


def hits_of_processes(number: int, directory: str, locks: str) -> list[str]:
    """Let so many processes open a zone at once, and hit. Return what each says: the zone's salt, and if it passed."""
    start, begin = os.pipe()
    answers, answer = os.pipe()
    children = []
    for _ in range(number):
        child = os.fork()
        if not child:
            try:
                os.close(begin)
                os.read(start, 1)  # ends for all of them at the same moment
                storage = opened(directory, locks=locks, deadline=60)
                passed = bool(Limiter("50/hour", storage=storage, failure="raise").hit("user:1"))
                salt = storage.states.zone.owner.header.salt.hex()  # type: ignore[attr-defined]
                os.write(answer, f"{salt} {passed}\n".encode())
            except BaseException:
                os.write(answer, traceback.format_exc().replace("\n", " | ").encode()[:4000] + b"\n")
            finally:
                os._exit(0)
        children.append(child)
    os.close(start)
    os.close(answer)
    os.close(begin)
    with os.fdopen(answers) as stream:
        lines = stream.read().splitlines()
    for child in children:
        os.waitpid(child, 0)
    return lines


@pytest.mark.parametrize("locks", LOCKS)
def test_two_hundred_processes_that_open_at_once_count_in_one_zone(
    directory: str, locks: str, run_apart: RunApart
) -> None:
    lines = run_apart(hits_of_processes, 200, directory, locks)
    assert len(lines) == 200
    assert len({line.split()[0] for line in lines}) == 1, set(lines)
    assert sum(line.endswith("True") for line in lines) == 50
    assert os.listdir(directory) == ["ratebound-api"]


def test_what_a_killed_maker_left_is_removed_by_the_next(directory: str) -> None:
    left = Path(directory, ".ratebound-api+abcdefgh")
    left.write_bytes(bytes(1000))
    of_another = Path(directory, ".ratebound-api.v2+abcdefgh")
    of_another.write_bytes(b"")
    kept = opened(directory)
    assert not left.exists()
    assert of_another.exists()
    assert count(kept)


def test_dropping_a_zone_leaves_those_whose_names_begin_alike(directory: str) -> None:
    storages = [opened(directory, name) for name in ("api", "api.v2", "api-2", "api.lock")]
    for storage in storages:
        assert storage.write_document("blocks", storage.zone_name.name.encode(), 0)
    drop_zone(storages[0].zone_name)
    assert not Path(storages[0].zone_name.path).exists()
    assert storages[0].read_document("blocks") == (0, b"")
    for storage in storages[1:]:
        assert Path(storage.zone_name.path).exists()
        assert storage.read_document("blocks") == (1, storage.zone_name.name.encode())


def test_dropping_a_zone_of_another_version_says_that_its_programs_cannot_be_told(directory: str) -> None:
    remade(directory, version=VERSION + 1)
    assert drop_zone(zone_name("api", directory)) is False
    assert not os.listdir(directory)


def test_two_drops_at_the_same_time_do_not_take_the_next_zone_away(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, name = opened(directory), zone_name("api", directory)
    mapped, is_first = zone_file.mapped_zone, [True]

    def overtaken(*arguments: Any, **options: Any) -> Any:
        """Find the zone. Before the first drop goes on, another one drops it, and the program opens the next."""
        found = mapped(*arguments, **options)
        if is_first and is_first.pop():
            drop_zone(name)
            assert count(running)
        return found

    monkeypatch.setattr(zone_file, "mapped_zone", overtaken)
    drop_zone(name)
    assert not is_first
    assert count(opened(directory))
    assert not count(running)  # both programs count in one zone


def test_threads_may_be_in_a_zone_that_another_thread_leaves_for_the_next_one(directory: str) -> None:
    """In a child: a zone that is unmapped while a thread is in it would end the process."""

    def hit_and_drop() -> str:
        storage, name = opened(directory, deadline=30.0), zone_name("api", directory)
        limiter, ended = Limiter("9000/day; 9000/day as other", storage=storage, failure="raise"), threading.Event()

        def hit() -> None:
            while not ended.is_set():
                limiter.hit("user:1")

        threads = [threading.Thread(target=hit, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            while not Path(name.path).exists():
                time.sleep(0.001)
            drop_zone(name)
        ended.set()
        for thread in threads:
            thread.join()
        return "done"

    assert in_child(hit_and_drop) == "done"


def test_dropping_a_zone_that_is_not_there_is_an_error(directory: str) -> None:
    with pytest.raises(StorageError, match="there is no zone 'api' in "):
        drop_zone(zone_name("api", directory))


# Containers


def in_own_processes(code: str) -> "subprocess.Popen[str]":
    """Start Python code as the first process of a PID namespace, as containers do."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    command = [unshare, "--pid", "--fork", "--kill-child", "--map-root-user", sys.executable, "-c", code]
    if os.geteuid() == 0:
        command.remove("--map-root-user")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "started\n":
        said = process.communicate()[1]
        pytest.skip(f"no PID namespace can be made here: {said}")
    return process


def container(directory: str, locks: str, doing: str) -> str:
    return f"""
print("started", flush=True)
import sys
from ratebound import Limiter
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
try:
    storage = SharedMemoryStorage("api", directory={directory!r}, size={LEAST_SIZE}, locks={locks!r})
    limiter = Limiter("3/hour", storage=storage, failure="raise")
    {doing}
except Exception as error:
    print(error, flush=True)
"""


INSIDE = """assert storage.states.zone.enter(5, 1.0)
    print("inside", flush=True)
    sys.stdin.read()"""
HITS = """print([bool(limiter.hit("a")) for _ in range(2)], flush=True)"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_two_containers_do_not_share_mutexes(directory: str) -> None:
    """Their processes have the same ids, so a mutex of the one looks like one that the other has itself."""
    one = in_own_processes(container(directory, "mutex", INSIDE))
    assert one.stdout is not None
    assert one.stdout.readline() == "inside\n"
    other = in_own_processes(container(directory, "mutex", "print(storage.states.zone.enter(5, 0.1))"))
    assert other.communicate()[0] == (
        "zone 'api' is in use in another container, whose processes have other ids, and its locks go by ids. Give each"
        " container a zone of its own, for example by another name; or add locks=file to the URL everywhere, stop all"
        f" programs that use it and run: ratebound zone drop api --directory {directory}\n"
    )
    one.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_a_container_that_is_started_again_goes_on_with_the_counts(directory: str) -> None:
    for expected in ([True, True], [True, False]):
        process = in_own_processes(container(directory, "mutex", HITS))
        assert process.communicate()[0] == f"{expected}\n"
    storage = opened(directory)
    assert not Limiter("3/hour", storage=storage, failure="raise").hit("a")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_many_processes_of_a_container_that_is_started_again_take_the_zone_over(directory: str) -> None:
    in_own_processes(container(directory, "mutex", HITS)).communicate()
    code = f"""
print("started", flush=True)
import os
from ratebound import Limiter
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
reading, writing = os.pipe()
children = []
for _ in range(16):
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        try:
            storage = SharedMemoryStorage("api", directory={directory!r}, size={LEAST_SIZE}, deadline=20)
            os._exit(bool(Limiter("6/hour", storage=storage, failure="raise").hit("b")))
        except BaseException as error:
            print(error, flush=True)
            os._exit(9)
    children.append(child)
os.close(writing)
print(sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
    assert in_own_processes(code).communicate()[0] == f"{[0] * 10 + [1] * 6}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_a_lock_of_a_container_that_was_killed_is_free_in_the_next(directory: str) -> None:
    one = in_own_processes(container(directory, "mutex", INSIDE))
    assert one.stdout is not None
    assert one.stdout.readline() == "inside\n"
    one.kill()
    one.communicate()
    other = in_own_processes(container(directory, "mutex", "print(storage.states.zone.enter(5, 5.0))"))
    assert other.communicate()[0] == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_containers_share_a_zone_with_file_locks(directory: str) -> None:
    one = in_own_processes(container(directory, "file", INSIDE))
    assert one.stdout is not None
    assert one.stdout.readline() == "inside\n"
    other = in_own_processes(container(directory, "file", "print(storage.states.zone.enter(5, 0.1))"))
    assert other.communicate()[0] == "False\n"
    one.communicate()


KEPT_TO_THE_END = """
import sys, threading
from ratebound import Limiter
threading.kept = Limiter("5/minute", storage=f"shm://hits?directory={sys.argv[1]}")
threading.kept.hit("k")
"""


def test_a_zone_that_lives_as_long_as_its_process_ends_without_a_word(tmp_path: Path) -> None:
    """A module of the standard library goes after ours, and the zone with it: nothing of `os` is left by then."""
    program = [sys.executable, "-c", KEPT_TO_THE_END, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "ratebound-hits").exists()
