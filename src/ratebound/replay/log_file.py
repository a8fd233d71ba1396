"""The lines of one log file, as blocks of text: plain or compressed, of any size, with bounded memory.

A block ends with a line end. A line longer than LONGEST_LINE is never held as a whole: it is counted and skipped. A
file that grows is read to the end that it had when it was opened.
"""

import bz2
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ratebound.errors import RateboundError

BLOCK = 1 << 16  # larger blocks are slower: their entries do not fit into the caches of a processor
LONGEST_LINE = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LogError(RateboundError):
    """A log that cannot be read. The message says why, and what to do."""


class LineBlock(NamedTuple):
    """Some lines of a log."""

    text: str  # whole lines, each with its line end
    too_long: int = 0  # lines that were skipped before these, because they are too long
    sample: str = ""  # how the first of them starts


class Compression(NamedTuple):
    """A way to compress a file."""

    name: str
    magic: bytes  # how every member starts
    open: Callable[[], Any]


COMPRESSIONS = (
    Compression("gzip", b"\x1f\x8b\x08", lambda: zlib.decompressobj(31)),
    Compression("bzip2", b"BZh", bz2.BZ2Decompressor),
    Compression("xz", b"\xfd7zXZ\0", lzma.LZMADecompressor),
)
ZSTANDARD = b"\x28\xb5\x2f\xfd"
LONGEST_MAGIC = 6


class LogFile:
    """One log that is read once, from its start to its end. "-" is the standard input."""

    def __init__(self, name: str | os.PathLike[str], *, block: int = BLOCK) -> None:
        self.name = os.fspath(name)
        self.bytes_read = 0  # as they are in the file, compressed or not
        self.bytes_total: int | None = None
        self.problem = ""  # why the file was not read to its end
        self._block = block
        self._file: BinaryIO | None = None
        if self.name == "-":
            self._file = sys.stdin.buffer
            return
        file = _open(self.name)
        state = os.fstat(file.fileno())
        if stat.S_ISREG(state.st_mode):
            self.bytes_total = state.st_size
            file.close()  # until it is read: there may be more files than a process may have open
        else:
            self._file = file

    @property
    def repeatable(self) -> bool:
        """Return True if the file can be read again: it is not a pipe or the standard input."""
        return self.bytes_total is not None

    def close(self) -> None:
        """Close the file; the standard input stays open."""
        if self._file is not None and self.name != "-":
            self._file.close()
            self._file = None

    def blocks(self) -> Iterator[LineBlock]:
        """Yield the lines of the file."""
        if self._file is None:
            self._file = _open(self.name)
        self.bytes_read = 0
        self.problem = ""
        rest = b""
        skipping = False
        too_long = 0
        sample = ""
        first = True
        for data in self._plain_data():
            if first:
                first = False
                data = data.removeprefix(BYTE_ORDER_MARK)
            if skipping:
                end = data.find(b"\n")
                if end < 0:
                    continue
                data = data[end + 1 :]
                skipping = False
            data = rest + data if rest else data
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            data = data[:end]
            if _has_long_line(data):
                kept = [line for line in data.split(b"\n")[:-1] if len(line) <= LONGEST_LINE]
                long = [line for line in data.split(b"\n")[:-1] if len(line) > LONGEST_LINE]
                too_long += len(long)
                sample = sample or _text(long[0][:200])
                data = b"".join(line + b"\n" for line in kept)
            if len(rest) > LONGEST_LINE:
                skipping = True
                too_long += 1
                sample = sample or _text(rest[:200])
                rest = b""
            if data or too_long:
                yield LineBlock(_text(data), too_long, sample)
                too_long, sample = 0, ""
        if rest:
            yield LineBlock(_text(rest + b"\n"))

    def _plain_data(self) -> Iterator[bytes]:
        data = self._read()
        while 0 < len(data) < LONGEST_MAGIC and (more := self._read()):  # a pipe may give one byte at a time
            data += more
        if data.startswith(ZSTANDARD):
            raise LogError(f"{self.name} is compressed with Zstandard. Run: zstdcat {self.name} | ratebound replay -")
        for compression in COMPRESSIONS:
            if data.startswith(compression.magic):
                yield from self._decompressed(data, compression)
                return
        while data:
            yield data
            data = self._read()

    def _decompressed(self, data: bytes, compression: Compression) -> Iterator[bytes]:
        """Yield what all members of the file hold, at most a block at a time. Sets `problem` if the file is damaged."""
        member = compression.open()
        while True:
            try:
                plain = member.decompress(data, self._block)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError):
                self.problem = f"its {compression.name} data is damaged"
                return
            data = getattr(member, "unconsumed_tail", b"")  # zlib returns what it has not used, the others keep it
            if plain:
                yield plain
            if member.eof:
                data = member.unused_data.lstrip(b"\0")  # some programs pad files with zeros
                while len(data) < len(compression.magic) and (more := self._read()):
                    data = (data + more).lstrip(b"\0")
                if not data:
                    return
                if not data.startswith(compression.magic):
                    self.problem = f"something that is not {compression.name} follows its {compression.name} data"
                    return
                member = compression.open()
            elif not data and getattr(member, "needs_input", True):
                data = self._read()
                if not data:
                    if compression.name == "gzip" and (plain := member.flush()):
                        yield plain
                    if not member.eof:
                        self.problem = f"its {compression.name} data is cut off"
                    return

    def _read(self) -> bytes:
        size = self._block
        if self.bytes_total is not None:
            size = min(size, self.bytes_total - self.bytes_read)
        assert self._file is not None
        try:
            data = self._file.read1(size) if isinstance(self._file, io.BufferedReader) else self._file.read(size)
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}") from None
        self.bytes_read += len(data)
        return data


def _open(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb", buffering=0)
    except IsADirectoryError:
        raise LogError(f"{name} is a directory. Give its files, for example: {name.rstrip('/')}/access.log*") from None
    except FileNotFoundError:
        raise LogError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        raise LogError(f"cannot open {name}: {getattr(error, 'strerror', None) or error}") from None


def _has_long_line(data: bytes) -> bool:
    """Return True if a line is too long. It looks at one line end for each LONGEST_LINE bytes."""
    start, size = 0, len(data)
    while size - start > LONGEST_LINE:
        end = data.rfind(b"\n", start, start + LONGEST_LINE + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _text(data: bytes) -> str:
    r"""Decode lines. Bytes that are not UTF-8 become \xff, as most servers write them."""
    text = data.decode("utf-8", "backslashreplace")
    return text.replace("\r\n", "\n") if "\r" in text else text
