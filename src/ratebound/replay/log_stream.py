"""The entries of one log file, in the order of their times, and what was wrong with its lines."""

import re
from collections.abc import Generator, Iterator

from ratebound.replay.entry import Entry, MalformedLine
from ratebound.replay.log_file import LogError, LogFile
from ratebound.replay.log_formats import LogFormat, WantedFields, make_format
from ratebound.replay.time_order import TimeOrder

SAMPLES = 5  # malformed lines that are kept
SHOWN = 200  # characters of such a line
FIRST_LINES = 200  # from which the format is detected
GROUP = 64  # lines that are tried together when a block has a malformed one
# Values of queries, passwords in URLs, and what Authorization holds.
_SECRETS = re.compile(
    r"(?i)(?<=[?&;])([^=&;\s\"]{1,64})=[^&;\s\"]+|(?<=://)[^/@\s\"]+(?=@)|\b(bearer|basic)\s+[^\s\"]+"
)


class LogStream:
    """One log. `format` is a name, a format string, or "auto"; `window` is in microseconds."""

    def __init__(self, file: LogFile, format: str, wish: WantedFields, window: int) -> None:
        self.file = file
        self.lines = 0
        self.malformed = 0
        self.samples: list[MalformedLine] = []
        self.format: LogFormat | None = None  # None: nothing has been read yet
        self._whole = False  # every line of the last block is an entry
        self._wanted = format
        self._wish = wish
        self._order = TimeOrder(window)

    @property
    def late(self) -> int:
        """Return how many entries were out of order by more than the window."""
        return self._order.late

    def first_time(self) -> int:
        """Return the earliest time of the first lines, without reading the log; 0 if there is none."""
        try:
            for block in self.file.blocks():
                entries = self._read(block.text, 0)
                return min((entry.at for entry in entries), default=0)
        finally:
            self.file.close()
            self.malformed = 0
            self.samples.clear()
        return 0

    def batches(self) -> Generator[list[Entry], None, None]:
        """Yield the entries, some thousand at a time. Raises LogError if the format cannot be detected."""
        order = self._order
        try:
            for block in self.file.blocks():
                if block.too_long:
                    self._count_malformed(self.lines + 1, block.sample, block.too_long)
                    self.lines += block.too_long
                entries = self._read(block.text, self.lines)
                self.lines += len(entries) if self._whole else block.text.count("\n")
                if ready := order.put(entries):
                    yield ready
        finally:
            self.file.close()
        if rest := order.rest():
            yield rest

    def warnings(self) -> Iterator[str]:
        """Yield what a user should know about this log."""
        if self.file.problem:
            yield f"{self.file.name} was read in part: {self.file.problem}"
        if self.malformed * 2 > self.lines and self.format is not None:
            yield (
                f"{self.malformed} of {self.lines} lines of {self.file.name} are malformed. "
                f"The format {self.format.name!r} may be wrong"
            )

    def _read(self, text: str, before: int) -> list[Entry]:
        """Return the entries of a block; `before` is the number of lines before it."""
        if self.format is None:
            if not text.strip():
                return []
            try:
                self.format = make_format(self._wanted, text.split("\n", FIRST_LINES)[:FIRST_LINES], self._wish)
            except LogError as error:
                raise LogError(f"{self.file.name}: {error}") from None
        try:
            entries = self.format.read(text)
            self._whole = True
            return entries
        except ValueError:
            self._whole = False
            return self._read_slowly(self.format, text, before)

    def _read_slowly(self, format: LogFormat, text: str, before: int) -> list[Entry]:
        """Read a block that has malformed lines: by groups, and line by line only where a group has one."""
        lines = text.split("\n")[:-1]
        entries: list[Entry] = []
        for start in range(0, len(lines), GROUP):
            group = lines[start : start + GROUP]
            try:
                entries += format.read("\n".join(group) + "\n")
            except ValueError:
                for number, line in enumerate(group, before + start + 1):
                    if not line.startswith("#") and line and not line.isspace():
                        try:
                            entries += format.read(line + "\n")
                        except ValueError:
                            self._count_malformed(number, line)
        return entries

    def _count_malformed(self, number: int, text: str, count: int = 1) -> None:
        self.malformed += count
        if len(self.samples) < SAMPLES:
            self.samples.append(MalformedLine(self.file.name, number, printable(text)))


def printable(text: str) -> str:
    """Return the start of a line, without control characters and without values that may be secrets."""
    shown = _SECRETS.sub(_masked, text[: SHOWN * 2])[:SHOWN]
    shown = "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in shown)
    return shown + "…" if len(text) > SHOWN else shown


def _masked(match: re.Match[str]) -> str:
    if match[1]:
        return f"{match[1]}=…"
    return f"{match[2]} …" if match[2] else "…"
