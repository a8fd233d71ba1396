"""Access logs become entries: files of any size, in any of the formats, in the order of time."""

import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter

from ratebound.replay.entry import Entry, MalformedLine
from ratebound.replay.log_file import LogError, LogFile
from ratebound.replay.log_formats import WantedFields, make_format
from ratebound.replay.log_stream import SAMPLES, LogStream

_time_of = itemgetter(0)


class LogReader:
    """A reader of access logs. Iterating it once gives lists of some thousand entries, in the order of their times.

    `files` are paths; "-" is the standard input. `format` is "auto", a name of log_formats.FORMATS, or a format string
    of nginx, Apache or Envoy. `fields` are the names that an entry's `fields` hold; None: all. `mapping` gives names of
    fields for meanings, such as {"address": "x-forwarded-for"}. `window` is how many seconds lines may be out of order.

    Raises LogError if a file cannot be opened, or if no format fits it. A malformed line is counted and never raises.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        *,
        format: str = "auto",
        fields: Collection[str] | None = None,
        mapping: Mapping[str, str] | None = None,
        window: float = 10.0,
    ) -> None:
        if not files:
            raise LogError('no log file was given. Give at least one; "-" is the standard input')
        if not 0 <= window <= 3600:
            raise LogError(f"the window must be from 0 to 3600 seconds, not {window!r}")
        if sum(os.fspath(file) == "-" for file in files) > 1:
            raise LogError('the standard input ("-") was given twice')
        wish = WantedFields(fields, mapping or {})
        if format != "auto":
            make_format(format, (), wish)  # raises now, not when the first line is read
        microseconds = round(window * 1_000_000)
        self._streams = [LogStream(LogFile(file), format, wish, microseconds) for file in files]
        self._given = 0
        self._late = 0

    @property
    def format(self) -> str:
        """Return the name of the format; several, with commas between, if files differ; "" before anything is read."""
        names = [stream.format.name for stream in self._streams if stream.format is not None]
        return ", ".join(dict.fromkeys(names))

    @property
    def lines(self) -> int:
        """Return how many lines were read, malformed ones included."""
        return sum(stream.lines for stream in self._streams)

    @property
    def malformed(self) -> int:
        """Return how many lines do not have the format."""
        return sum(stream.malformed for stream in self._streams)

    @property
    def samples(self) -> list[MalformedLine]:
        """Return the first malformed lines."""
        return [sample for stream in self._streams for sample in stream.samples][:SAMPLES]

    @property
    def late(self) -> int:
        """Return how many entries were out of order by more than the window. Each got the newest time before it."""
        return self._late + sum(stream.late for stream in self._streams)

    @property
    def warnings(self) -> list[str]:
        """Return what a user should know about the logs that were read."""
        return [warning for stream in self._streams for warning in stream.warnings()]

    @property
    def resolution(self) -> int:
        """Return the resolution of the logs' times in microseconds; the coarsest, if they differ."""
        formats = [stream.format for stream in self._streams if stream.format is not None]
        return max((format.resolution for format in formats), default=1_000_000)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of the files were read, compressed or not."""
        return sum(stream.file.bytes_read for stream in self._streams)

    @property
    def bytes_total(self) -> int | None:
        """Return the size of all files; None if one has no size, such as the standard input."""
        sizes = [stream.file.bytes_total for stream in self._streams]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def __iter__(self) -> Iterator[list[Entry]]:
        """Yield the entries of all files."""
        if len(self._streams) == 1:
            return self._streams[0].batches()
        return self._merged()

    def _merged(self) -> Iterator[list[Entry]]:
        """Merge the files. A file is opened when the time of its first lines has come: rotated logs overlap little."""
        waiting = []
        for stream in self._streams:
            waiting.append(_MergedLog(stream, stream.first_time() if stream.file.repeatable else 0))
        waiting.sort(key=attrgetter("first"), reverse=True)
        open_sources: list[_MergedLog] = []
        try:
            while waiting or open_sources:
                end = min((source.head[-1].at for source in open_sources), default=None)
                while waiting and (end is None or waiting[-1].first <= end):
                    source = waiting.pop()
                    if source.advance():
                        open_sources.append(source)
                        end = source.head[-1].at if end is None else min(end, source.head[-1].at)
                if end is None:
                    return
                pieces = [piece for source in open_sources if (piece := source.take(end))]
                open_sources = [source for source in open_sources if source.head or source.advance()]
                yield self._sorted(pieces)
        finally:
            for source in open_sources:
                source.close()

    def _sorted(self, pieces: list[list[Entry]]) -> list[Entry]:
        entries = pieces[0]
        if len(pieces) > 1:
            entries = [entry for piece in pieces for entry in piece]
            entries.sort(key=_time_of)
        if entries[0].at < self._given:  # a file whose first lines are not its earliest
            late = bisect_right(entries, self._given - 1, key=_time_of)
            entries[:late] = [entry._replace(at=self._given) for entry in entries[:late]]
            self._late += late
        self._given = entries[-1].at
        return entries


class _MergedLog:
    """A log among others: the entries that were read and not yet given out."""

    __slots__ = ("_batches", "first", "head")

    def __init__(self, stream: LogStream, first: int) -> None:
        self.first = first
        self.head: list[Entry] = []
        self._batches = stream.batches()

    def advance(self) -> bool:
        """Read more entries. Return False at the end of the log."""
        self.head = next(self._batches, [])
        return bool(self.head)

    def take(self, end: int) -> list[Entry]:
        """Return the entries up to this time, and forget them."""
        count = bisect_right(self.head, end, key=_time_of)
        taken, self.head = self.head[:count], self.head[count:]
        return taken

    def close(self) -> None:
        """Close the log."""
        self._batches.close()
