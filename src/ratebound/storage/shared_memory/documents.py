"""The shared documents of a zone: one small file for each, beside the zone, as `version:content`.

Their names have a '+', which no name of a zone has. Files of other users are not read: everyone may write to /dev/shm.
A document is written under another name and then renamed, so a reader sees the old one or the new one. Writers take
turns by a lock on a file, which the system releases when a process ends.
"""

import errno
import fcntl
import os
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

from ratebound.errors import StorageError
from ratebound.fork import close_locked_file
from ratebound.storage import Document

PAUSE = 0.001


class Documents:
    """The documents of the zone whose file is at `path`. Calls end within `deadline` seconds."""

    def __init__(self, path: str, deadline: float) -> None:
        self._path = path
        self._deadline = deadline

    def read(self, name: str) -> Document:
        """Return the version and the content of a document; (0, b"") if there is none. Raises StorageError."""
        try:
            file = os.open(self._at(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(file, "rb") as stream:
                if os.fstat(file).st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "it belongs to another user: remove it", self._at(name))
                version, colon, content = stream.read().partition(b":")
        except FileNotFoundError:
            return 0, b""
        except OSError as error:
            raise StorageError(f"cannot read a document of the zone: {error}", undone=True) from None
        if not colon or not version.isdigit():
            raise StorageError(f"{self._at(name)} is not a document of a zone: remove it", undone=True, outage=False)
        return int(version), content

    def write(self, name: str, content: bytes, version: int) -> bool:
        """Store a document as `version` + 1, if `version` is the stored one. Raises StorageError."""
        try:
            lock = os.open(f"{self._path}+lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(lock).st_uid != os.geteuid():  # its owner could hold it for ever
                    raise PermissionError(errno.EPERM, "it belongs to another user: remove it", f"{self._path}+lock")
                self._take(lock)
                if self.read(name)[0] != version:
                    return False
                self._replace(name, b"%d:%s" % (version + 1, content))
                return True
            finally:
                close_locked_file(lock)
        except OSError as error:
            raise StorageError(f"cannot write a document of the zone: {error}", undone=True) from None

    def _take(self, lock: int) -> None:
        ends = time.monotonic() + self._deadline
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise StorageError(
                        "another process has been writing a document for too long", undone=True
                    ) from None
            time.sleep(PAUSE)

    def _replace(self, name: str, data: bytes) -> None:
        file, path = tempfile.mkstemp(prefix=f"{Path(self._path).name}+", dir=Path(self._path).parent)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
            os.replace(path, self._at(name))
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise

    def _at(self, name: str) -> str:
        return f"{self._path}+{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
