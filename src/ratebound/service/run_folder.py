"""The private folder of one run: the sockets on which the control plane asks workers, and what they leave behind.

Only the user of the service may enter it. Processes of a run hold a lock in it, so that the next start finds and
removes the folders, and the zones of shared memory, of runs that were killed.
"""

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ratebound.errors import StorageError
from ratebound.service.listening import StartError
from ratebound.storage.shared_memory.zone_file import drop_zone, zone_name

LOCK = "lock"
LONGEST_HOME = 60  # bytes: the path of a Unix socket has about 100


class RunFolder:
    """The folder of this run. `zone` is the name of a zone of shared memory that no other run has."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock  # shared by all processes of the run: it is free when the last of them has ended
        self.zone = f"serve-{path.name.removeprefix('run-')}"

    def worker_socket(self, slot: int) -> str:
        """Return the path of the socket on which a worker is asked."""
        return str(self.path / f"worker-{slot}")

    @property
    def retired(self) -> Path:
        """The file with the last counters of workers that have died."""
        return self.path / "retired.json"

    def remove(self) -> None:
        """Remove the folder, and the zone if there is one."""
        _remove(self.path, self.zone)
        os.close(self._lock)


def make_run_folder() -> RunFolder:
    """Make the folder of a run, and remove what killed runs left. Raises StartError."""
    home = (os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR") or "").partition(":")[0]
    if not home or len(os.fsencode(home)) > LONGEST_HOME or not os.access(home, os.W_OK):
        home = tempfile.gettempdir()
    above = Path(home, f"ratebound-{os.geteuid()}")
    try:
        _make_private(above)
        _remove_leftovers(above)
        path = above / f"run-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        return RunFolder(path, _locked(path))
    except OSError as error:
        raise StartError(f"cannot make a folder for this run in {above}: {error.strerror or error}") from None


def _make_private(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StartError(f"{path} must be a folder that only this user may enter: remove it, or run chmod 700 on it")


def _locked(path: Path) -> int:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove_leftovers(above: Path) -> None:
    for path in above.glob("run-*"):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being made, or being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its run goes on
        else:
            _remove(path, RunFolder(path, lock).zone)
        finally:
            os.close(lock)


def _remove(path: Path, zone: str) -> None:
    with suppress(StorageError):  # most runs have none
        drop_zone(zone_name(zone))
    shutil.rmtree(path, ignore_errors=True)
