"""Access logs become entries: files of any size, in any of the formats, in the order of time."""

import os
from collections.abc import Collection, Iterator, Sequence

from ratebound.replay.entry import Entry, MalformedLine
from ratebound.replay.log_file import LogError, LogFile
from ratebound.replay.log_formats import LogFormat, detect_format, make_format
from ratebound.replay.time_order import TimeOrder

SAMPLES = 5  # malformed lines that are shown
SHOWN = 200  # characters of a line that is shown
TRIED_LINES = 50  # from which the format is detected
GROUP = 64  # lines that are tried together when a block has a malformed one


class LogReader:
    """A reader of access logs. Iterating gives lists of entries, a few thousand each, in the order of their times.

    `format` is a name of `FORMATS` or "auto". `fields` are the names that an entry's `fields` hold; None: all.
    `window` is how many seconds a line may be out of order. Raises LogError if a file cannot be opened, or if no format
    fits it; a malformed line is counted and never raises.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        *,
        format: str = "auto",
        fields: Collection[str] | None = None,
        window: float = 5.0,
    ) -> None:
        if not files:
            raise LogError('no log file given. Give at least one, or "-" for the standard input')
        self.format = format
        self.lines = 0
        self.malformed = 0
        self.samples: list[MalformedLine] = []
        self.warnings: list[str] = []
        self.resolution = 1_000_000
        self._fields = fields
        self._known = None if format == "auto" else make_format(format, fields=fields)
        self._files = [LogFile(file) for file in files]
        self._order = TimeOrder(round(window * 1_000_000))

    @property
    def late(self) -> int:
        """The entries that were out of order by more than the window. Each has the time of the newest before it."""
        return self._order.late

    @property
    def bytes_read(self) -> int:
        """The bytes that were read, compressed or not."""
        return sum(file.bytes_read for file in self._files)

    @property
    def bytes_total(self) -> int | None:
        """The size of all files, None if one has no size, such as the standard input."""
        total = 0
        for file in self._files:
            if file.bytes_total is None:
                return None
            total += file.bytes_total
        return total

    def __iter__(self) -> Iterator[list[Entry]]:
        """Yield the entries of all files."""
        for file in self._files:
            try:
                for entries in self._entries(file):
                    if ready := self._order.put(entries):
                        yield ready
            finally:
                file.close()
        if rest := self._order.rest():
            yield rest

    def _entries(self, file: LogFile) -> Iterator[list[Entry]]:
        lines = 0
        known = self._known
        for block in file.blocks():
            if block.too_long:
                self._count_malformed(file.name, lines + 1, block.sample, block.too_long)
                lines += block.too_long
            if known is None:
                known = detect_format(block.text.split("\n", TRIED_LINES)[:TRIED_LINES], fields=self._fields)
                self.format = known.name
                self.resolution = known.resolution
            count = block.text.count("\n")
            try:
                entries = known.read(block.text)
            except ValueError:
                entries = self._read_slowly(known, file.name, lines, block.text)
            lines += count
            self.lines += count
            yield entries
        if file.problem:
            self.warnings.append(f"{file.name} was read in part: {file.problem}")

    def _read_slowly(self, known: LogFormat, name: str, before: int, text: str) -> list[Entry]:
        """Read a block that has malformed lines: by groups, and line by line only where a group has one."""
        lines = text.split("\n")[:-1]
        entries: list[Entry] = []
        for start in range(0, len(lines), GROUP):
            group = lines[start : start + GROUP]
            try:
                entries += known.read("\n".join(group) + "\n")
            except ValueError:
                for number, line in enumerate(group, before + start + 1):
                    if line and not line.isspace():
                        try:
                            entries += known.read(line + "\n")
                        except ValueError:
                            self._count_malformed(name, number, line)
        return entries

    def _count_malformed(self, name: str, number: int, text: str, count: int = 1) -> None:
        self.malformed += count
        if len(self.samples) < SAMPLES:
            self.samples.append(MalformedLine(name, number, printable(text)))


def printable(text: str) -> str:
    """Return the start of the text, with control characters replaced."""
    shown = "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text[:SHOWN])
    return shown + "…" if len(text) > SHOWN else shown
