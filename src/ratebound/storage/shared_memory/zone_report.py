"""Reports on zones, for operators. Nothing is changed, and no lock is taken.

The file is read, not mapped: it may be another user's, and a mapped file that is cut short ends the process. States are
being written meanwhile, so a count may be off by those.
"""

import fcntl
import os
import sys
import time
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ratebound.errors import StorageError
from ratebound.storage.shared_memory.cells import CLOSED, DROPPED, LINKED, MOVING, OPEN
from ratebound.storage.shared_memory.layout import (
    CELL,
    CHAINED,
    EVICTED,
    HEAD,
    HEADER,
    JOURNAL,
    LOCK,
    MAGIC,
    MARK,
    ONE,
    OVERFLOWED,
    RECOVERED,
    SHARDS,
    Geometry,
)
from ratebound.storage.shared_memory.locks import FILE_LOCKS, GLIBC_MUTEXES, KINDS
from ratebound.storage.shared_memory.zone_file import (
    ZoneName,
    boot_id,
    known_zone,
    open_file,
    read_header,
)

MARKS = {
    MOVING: "blocks are being chained",
    OPEN: "several states are being written",
    CLOSED: "several states have been written",
    DROPPED: "the zone is dropped",
}
# A cell with both of its copies read as chains: worth, `expires`, first block, blocks, numbers; then the word.
WHOLE_CELL = Struct("@5q24xq24s5q24xq")
AT_ONCE = 4096  # cells
OWNER_BITS = 0x3FFFFFFF  # of a mutex of glibc: the thread that has it. The other bits are flags
# What fcntl(2) reads and writes: its fields are in another order on Linux than on the BSDs.
FILE_LOCK = Struct("@hhqqi4x") if sys.platform == "linux" else Struct("@qqihh")


class LockHolder(NamedTuple):
    """A process that has the lock of a shard. `process` is 0 if it is in another container."""

    shard: int
    process: int
    is_stopped: bool


class ShardMark(NamedTuple):
    """A shard that is marked, because it is being written to or is to be repaired, and what the mark says."""

    shard: int
    text: str


class ZoneReport(NamedTuple):
    """The size, the owner, the fill, the counters and the locks of a zone."""

    name: str
    directory: str
    size: int
    version: int
    owner: int
    locks: str
    is_old: bool  # it is from before the last start of the system
    cells: int
    used: int  # cells, with those that have expired
    expired: int
    blocks: int
    used_blocks: int
    evicted: int
    overflowed: int
    repaired: int
    documents: int
    marks: list[ShardMark]
    holders: list[LockHolder] | None  # None if this kind of locks does not tell


def no_zone(name: ZoneName) -> StorageError:
    """Return the error for a zone that does not exist. It names the zones that do."""
    others = ", ".join(zones_in(name.directory))
    there = f"the zones there are {others}" if others else "there are no zones"
    return StorageError(f"there is no zone {name.name!r} in {name.directory}: {there}", undone=True)


def report_of(name: ZoneName) -> ZoneReport:
    """Return what is in a zone. Raises StorageError if there is none, or if it cannot be read."""
    known = known_zone(name)  # to open and close its file here would release the file locks of this process
    if known is not None:
        return _report(name, known.file)
    try:
        file = open_file(name, os.O_RDONLY)
    except FileNotFoundError:
        raise no_zone(name) from None
    try:
        return _report(name, file)
    finally:
        os.close(file)


def zones_in(directory: str) -> list[str]:
    """Return the names of the zones in a directory that this user may read."""
    names = []
    for path in sorted(Path(directory).glob("ratebound-*")):
        name = ZoneName(path.name.removeprefix("ratebound-"), directory)
        if "+" in name.name:
            continue
        if known_zone(name) is not None:
            names.append(name.name)
            continue
        try:
            file = open_file(name, os.O_RDONLY)
        except (OSError, StorageError):
            continue
        try:
            if os.pread(file, len(MAGIC), 0) == MAGIC:
                names.append(name.name)
        finally:
            os.close(file)
    return names


def _report(name: ZoneName, file: int) -> ZoneReport:
    status = os.fstat(file)
    header = read_header(name, file, status.st_size)
    geometry = Geometry(header.size, header.buckets, header.blocks)
    is_old = header.boot != boot_id()
    now = time.monotonic_ns() // 1000 + header.anchor
    used = expired = used_blocks = evicted = overflowed = repaired = 0
    marks: list[ShardMark] = []
    for shard in range(SHARDS):
        head = os.pread(file, JOURNAL, HEADER + shard * HEAD).ljust(JOURNAL, b"\0")
        if head[MARK]:
            linked = f"it is being written together with shard {head[MARK] - LINKED}"
            marks.append(ShardMark(shard, MARKS.get(head[MARK], linked)))
        evicted += ONE.unpack_from(head, EVICTED)[0]
        overflowed += ONE.unpack_from(head, OVERFLOWED)[0]
        repaired += ONE.unpack_from(head, RECOVERED)[0]
        in_shard = _counted(file, geometry, shard, now)
        used += in_shard[0]
        expired += in_shard[0] if is_old else in_shard[1]
        used_blocks += in_shard[2]
    return ZoneReport(
        name=name.name,
        directory=name.directory,
        size=header.size,
        version=header.version,
        owner=status.st_uid,
        locks=KINDS.get(header.lock_kind, "unknown locks"),
        is_old=is_old,
        cells=SHARDS * geometry.cells,
        used=used,
        expired=expired,
        blocks=SHARDS * geometry.blocks,
        used_blocks=used_blocks,
        evicted=evicted,
        overflowed=overflowed,
        repaired=repaired,
        documents=sum(not path.name.endswith("+lock") for path in name.documents()),
        marks=marks,
        holders=[] if is_old else _holders(file, header.lock_kind),
    )


def _counted(file: int, geometry: Geometry, shard: int, now: int) -> tuple[int, int, int]:
    """Return the number of used cells, of expired ones and of used blocks of a shard."""
    used = expired = blocks = 0
    first = shard * geometry.cells
    for begin in range(first, first + geometry.cells, AT_ONCE):
        many = min(AT_ONCE, first + geometry.cells - begin)
        tags = os.pread(file, many, geometry.tags_at + begin)
        cells = os.pread(file, many * CELL, geometry.cells_at + begin * CELL) if any(tags) else b""
        cells = cells[: len(cells) // CELL * CELL]  # it may be cut short meanwhile
        for tag, cell in zip(tags, WHOLE_CELL.iter_unpack(cells), strict=False):
            if tag:
                _, expires_a, _, blocks_a, _, word_a, _, _, expires_b, _, blocks_b, _, word_b = cell
                used += 1
                expired += (expires_a if word_a > word_b else expires_b) < now
                blocks += (blocks_a if word_a & 255 == CHAINED else 0) + (blocks_b if word_b & 255 == CHAINED else 0)
    return used, expired, min(blocks, geometry.blocks)


def _holders(file: int, lock_kind: int) -> list[LockHolder] | None:
    """Return the processes that have locks now, or None if this kind of locks does not tell."""
    if lock_kind not in (FILE_LOCKS, GLIBC_MUTEXES):
        return None
    found = []
    for shard in range(SHARDS):
        if lock_kind == FILE_LOCKS:
            owner = _owner_of_file_lock(file, shard)
        else:
            word = int.from_bytes(os.pread(file, 4, HEADER + shard * HEAD + LOCK), sys.byteorder)
            owner = word & OWNER_BITS or None
        if owner is not None:
            found.append(LockHolder(shard, *_process(owner)))
    return found


def _owner_of_file_lock(file: int, byte: int) -> int | None:
    """Return the process that has a lock on a byte of a file, 0 if it is not told, or None if there is none."""
    is_linux = sys.platform == "linux"
    asked = (fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0) if is_linux else (byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = FILE_LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, FILE_LOCK.pack(*asked)))
    kind, owner = (answer[0], answer[4]) if is_linux else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else max(owner, 0)


def _process(thread: int) -> tuple[int, bool]:
    """Return the process of a thread, and whether it is stopped, as far as the system shows it."""
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return thread, False
    told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(told.get("Tgid", thread)), told.get("State", "")[:1] in ("T", "t")
