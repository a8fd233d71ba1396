"""The private folder of one run: the sockets on which the control plane asks workers, counters of dead workers, and the
policy in force.

Only the user of the service may enter it. The processes of a run share a lock in it, and one beside their zone of
shared memory if they have one. A lock that is free belongs to a run that was killed: the next start removes its files.
"""

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ratebound.errors import StorageError
from ratebound.fork import close_locked_file
from ratebound.service.listening import StartError
from ratebound.storage.shared_memory.zone_file import default_directory, drop_zone, zone_name

LOCK = "lock"
RELOAD = "reload.json"
FETCH = "fetch.json"
OLD = "policy-is-old"  # a file that is there while the policy file cannot be used
BESIDE = (
    "+run"  # ends the name of the lock beside a zone; a zone is dropped with all files that begin with its name and '+'
)
LONGEST_HOME = 60  # bytes: the path of a Unix socket has about 100
TRIES = 5


class RunFolder:
    """The folder of this run."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._locks = [lock]  # inherited by all processes of the run: they are free when the last of them has ended
        self._zone = ""

    def worker_socket(self, slot: int) -> str:
        """Return the path of the socket on which a worker is asked."""
        return str(self.path / f"worker-{slot}")

    @property
    def retired(self) -> Path:
        """The file with the last counters of workers that have died."""
        return self.path / "retired.json"

    @property
    def has_old_policy(self) -> bool:
        """True if the policy cannot be fetched or used as it is now, and the policy before it is in force."""
        return (self.path / OLD).exists() or self.has_fetch_failed

    def note_old_policy(self, is_old: bool) -> None:
        """Note for all processes whether the policy file cannot be used."""
        with suppress(OSError):  # the log says it, too
            if is_old:
                (self.path / OLD).touch(mode=0o600)
            else:
                (self.path / OLD).unlink(missing_ok=True)

    @property
    def last_reload(self) -> dict[str, Any]:
        """The result of the last reload, as it was noted; {} if there was none."""
        return self._noted(RELOAD)

    def note_reload(self, found: Mapping[str, Any]) -> None:
        """Note the result of reading the policy again, for all processes."""
        self._note(RELOAD, found)

    @property
    def has_fetch_failed(self) -> bool:
        """True if the last fetch of the policy from its URL has failed."""
        return bool(self.last_fetch.get("problem"))

    @property
    def last_fetch(self) -> dict[str, Any]:
        """The result of the last fetch of the policy: its `problem`, or "", and how many fetches were `asked` for."""
        return self._noted(FETCH)

    def note_fetch(self, problem: str, *, is_asked: bool = False) -> None:
        """Note for all processes the result of a fetch of the policy from its URL."""
        asked = self.last_fetch.get("asked", 0) + is_asked
        self._note(FETCH, {"problem": problem, "asked": asked})

    def _noted(self, name: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.path / name).read_text("utf-8"))
            return found
        return {}

    def _note(self, name: str, found: Mapping[str, Any]) -> None:
        with suppress(OSError):  # a full disk: the log says it, too
            replace_file(self.path / name, json.dumps(found))

    def policy(self, suffix: str) -> Path:
        """Return the path of the policy in force: every worker reads the text that the supervisor has checked."""
        return self.path / f"policy{suffix}"

    def keep_policy(self, suffix: str, text: str) -> None:
        """Keep the text of the policy in force. Raises OSError."""
        replace_file(self.policy(suffix), text)

    def own_zone(self) -> str:
        """Return the name of a zone for this run alone. It is dropped with the folder. Raises StartError."""
        name = f"serve-{self.path.name.removeprefix('run-')}"
        try:
            lock = _lock(Path(zone_name(name).path + BESIDE))
        except (OSError, StorageError) as error:
            raise StartError(f"cannot use shared memory in {default_directory()}: {error}") from None
        if lock is None:
            raise StartError(f"cannot lock a zone in {default_directory()}")
        self._locks.append(lock)
        self._zone = name
        return name

    def remove(self) -> None:
        """Remove the folder, and the zone if there is one."""
        if self._zone:
            _drop(self._zone)
        shutil.rmtree(self.path, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)


def digest_of(text: str) -> str:
    """Return a short name for the text of a policy: processes compare by it which one they have."""
    return sha256(text.encode()).hexdigest()[:16]


def replace_file(path: Path, text: str) -> None:
    """Write a file: others see the old text or the new one, never a part. Raises OSError."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, "utf-8")
    os.replace(beside, path)


def make_run_folder() -> RunFolder:
    """Make the folder of a run, and remove what killed runs left. Raises StartError."""
    home = (os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR") or "").partition(":")[0]
    if not home or len(os.fsencode(home)) > LONGEST_HOME or not os.access(home, os.W_OK):
        home = tempfile.gettempdir()
    above = Path(home, f"ratebound-{os.geteuid()}")
    try:
        _make_private(above)
        _remove_folders(above)
        _drop_zones()
        for _ in range(TRIES):
            path = above / f"run-{secrets.token_hex(4)}"
            path.mkdir(mode=0o700)
            lock = _lock(path / LOCK)
            if lock is not None:
                return RunFolder(path, lock)
    except OSError as error:
        raise StartError(f"cannot make a folder for this run in {above}: {error.strerror or error}") from None
    raise StartError(f"cannot lock a folder for this run in {above}")


def _make_private(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StartError(f"{path} must be a folder that only this user may enter: remove it, or run chmod 700 on it")


def _lock(path: Path) -> int | None:
    """Make a file and lock it. None if another start took it for a left-over in between."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return lock
    os.close(lock)
    return None


@contextmanager
def _free(path: Path) -> Iterator[bool]:
    """Lock a file of this user. The value is False if another process has locked it, or if it cannot be opened."""
    lock = -1
    try:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            if os.fstat(lock).st_uid != os.geteuid():
                raise PermissionError
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        if lock >= 0:
            close_locked_file(lock)


def _remove_folders(above: Path) -> None:
    for path in above.glob("run-*"):
        with _free(path / LOCK) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)


def _drop_zones() -> None:
    for path in Path(default_directory()).glob(f"ratebound-serve-*{BESIDE}"):
        with _free(path) as is_free:
            if is_free:
                _drop(path.name.removeprefix("ratebound-").removesuffix(BESIDE))


def _drop(zone: str) -> None:
    name = zone_name(zone)
    with suppress(StorageError):  # no worker has made it
        drop_zone(name)
    for path in name.documents():
        with suppress(OSError):
            path.unlink()
