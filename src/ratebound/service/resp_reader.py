"""Commands out of the bytes of a RESP connection: arrays of bulk strings, or lines of words.

hiredis reads data that is a whole number of commands, as nearly every read is. It was written for clients, which trust
their server: it allocates what a header announces, accepts values of every type, and does not say where a command ends.
So bytes that announce too much, that hold something else or that end within a command are read by the strict reader
below instead. Both return the same commands for the same bytes.
"""

import re
import shlex

import hiredis

Command = list[bytes]
STAR = ord("*")

MAX_ARGUMENTS = 1024  # of one command, its name included
MAX_LINE = 16 * 1024  # bytes of a command that is a line of words
MAX_HEADER = 32  # bytes of `*3` or `$7`
# What hiredis must not see: a large header, an array in an array, and other types. The same bytes may be part of a
# bulk string. That is for the strict reader to find out.
UNUSUAL = re.compile(rb"\n(?:[%~>|=]|\*(?:\d\d\d\d|\d*\r\n[^$])|\$\d\d\d\d\d\d\d)")
BLANK_LINES = re.compile(rb"(?:\r?\n)+")
BULK = re.compile(rb"\$(0|[1-9]\d{0,8})\r\n")


class CommandReader:
    """The commands of one connection. `most` is the number of bytes that one command may have.

    `error` is a sentence once the peer has sent what is no command: then nothing more can be read.
    """

    __slots__ = ("_hiredis", "_strict", "error", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.error = ""
        self._hiredis = hiredis.Reader()
        self._strict: _StrictReader | None = None  # while a command is not complete

    @property
    def is_within_command(self) -> bool:
        """True if a part of a command was received, and its end was not."""
        return self._strict is not None and not self.error

    def read(self, data: bytes) -> list[Command]:
        """Return the commands that end in `data`, in order. Sets `error` behind the last of them."""
        commands: list[Command] = []
        strict = self._strict
        if strict is not None:
            self.error = strict.read(data, self.most, commands, is_one_enough=True)
            if self.error or not commands:
                return commands
            data = strict.rest()
            self._strict = None
            if not data:
                return commands
        if data.find(b"\r\n$", 1, 7) > 0 and data[0] == STAR and len(data) <= self.most and not UNUSUAL.search(data):
            found = self._read_whole(data)
            if found is not None:
                return commands + found if commands else found
            self._hiredis = hiredis.Reader()  # it may be within a command
            cut = data.rfind(b"\r\n*") + 2  # where the last command begins, probably
            found = self._read_whole(data[:cut]) if cut >= 2 else None
            if found is not None:
                commands += found
                data = data[cut:]
            elif cut >= 2:
                self._hiredis = hiredis.Reader()
        strict = _StrictReader()
        self.error = strict.read(data, self.most, commands)
        if not strict.is_done:
            self._strict = strict
        return commands

    def _read_whole(self, data: bytes) -> list[Command] | None:
        """Return the commands if `data` is a whole number of them; None if not, or if that is not certain."""
        gets = self._hiredis.gets
        found: list[Command] = []
        lines = 0
        ends = data.count(b"\r\n")
        try:
            self._hiredis.feed(data)
            while lines < ends:
                command = gets()
                if not command:  # it is incomplete, or empty
                    return None
                text = b"".join(command)  # raises TypeError if something is not bytes
                if b"\n" in text or b"\r" in text:
                    return None
                lines += 2 * len(command) + 1
                found.append(command)
        except (hiredis.HiredisError, TypeError):
            return None
        # hiredis skips two bytes behind each argument, whatever they are. As no argument has an end of a line, and
        # there are as many as there should be, these were ends of lines. And nothing is left over.
        return found if lines == ends and not self._hiredis.has_data() else None


class _StrictReader:
    """A reader that looks at every byte, and goes on where it stopped."""

    __slots__ = ("_arguments", "_buffer", "_held", "_missing", "_position", "_searched", "_size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0  # of the first byte that is not read yet
        self._searched = 0  # no line ends before it
        self._arguments: Command = []
        self._held = 0  # bytes in them
        self._missing = 0  # arguments that the command still needs
        self._size = -1  # of the argument that is being read; -1 before its header

    @property
    def is_done(self) -> bool:
        """True if everything was read, up to the end of a command."""
        return not self._missing and not self._buffer

    def rest(self) -> bytes:
        """Return the bytes that are not read yet."""
        return bytes(self._buffer)

    def read(self, data: bytes, most: int, commands: list[Command], *, is_one_enough: bool = False) -> str:
        """Append the commands that end in `data`, or the first one. Return what is wrong behind them, or no text."""
        self._buffer += data
        error = ""
        try:
            while self._read_next(most):
                if self._held > most:
                    raise _NoCommand(f"a command is longer than {most} bytes")
                if not self._missing and self._arguments:
                    commands.append(self._arguments)
                    self._arguments = []
                    self._held = 0
                    if is_one_enough:
                        break
            else:
                if self._held + len(self._buffer) - self._position > most:
                    raise _NoCommand(f"a command is longer than {most} bytes")
        except _NoCommand as wrong:
            error = str(wrong)
        # What was read of a command that is not complete is in `_arguments`, so the buffer may forget it.
        del self._buffer[: self._position]
        self._searched = max(self._searched - self._position, 0)
        self._position = 0
        return error

    def _read_next(self, most: int) -> bool:
        """Read a header, an argument or a line. Return False if its end is missing."""
        if self._size >= 0:
            return self._read_argument()
        if self._missing:
            if self._read_arguments(most):
                return True
        elif blank := BLANK_LINES.match(self._buffer, self._position):
            self._position = blank.end()  # they ask for nothing, so they must not cost much
        found = self._line()
        if found is None:
            return False
        if not self._missing:
            if found.startswith(b"*"):
                self._missing = _number(found, "multibulk", -1, MAX_ARGUMENTS)
            else:
                self._arguments = _words(found)
            return True
        if not found.startswith(b"$"):
            raise _NoCommand(f"expected '$', got '{_shown(found[:1])}'")
        self._size = _number(found, "bulk", 0, most)
        return True

    def _read_arguments(self, most: int) -> bool:
        """Read the arguments that are complete. Return False if there is none. Everything else is left as it is."""
        buffer, position, begun = self._buffer, self._position, self._missing
        while self._missing:
            header = BULK.match(buffer, position)
            if header is None:
                break
            begin = header.end()
            size = int(header[1])
            end = begin + size
            if size > most or buffer[end : end + 2] != b"\r\n":
                break
            self._arguments.append(bytes(buffer[begin:end]))
            self._held += size
            self._missing -= 1
            position = end + 2
        self._position = position
        return self._missing < begun

    def _read_argument(self) -> bool:
        end = self._position + self._size
        if len(self._buffer) < end + 2:
            return False
        if self._buffer[end : end + 2] != b"\r\n":
            raise _NoCommand("an argument is longer than its header says")
        self._arguments.append(bytes(self._buffer[self._position : end]))
        self._position = end + 2
        self._held += self._size
        self._missing -= 1
        self._size = -1
        return True

    def _line(self) -> bytes | None:
        """Return the next line without its end; None if it is not complete."""
        buffer, begin = self._buffer, self._position
        is_header = self._missing or buffer[begin : begin + 1] == b"*"
        most = MAX_HEADER if is_header else MAX_LINE
        end = buffer.find(b"\n", max(begin, self._searched), begin + most)
        if end < 0:
            self._searched = len(buffer)
            if len(buffer) - begin >= most:
                raise _NoCommand("too big count string" if is_header else "too big inline request")
            return None
        self._position = self._searched = end + 1
        line = bytes(buffer[begin:end])
        if line.endswith(b"\r"):
            return line[:-1]
        if is_header:
            raise _NoCommand("expected the end of a header")
        return line


class _NoCommand(Exception):
    """Bytes that are no command. The text says why."""


def _number(header: bytes, kind: str, least: int, most: int) -> int:
    """Return the number of a header, at least 0. `least` is the smallest that it may be."""
    text = header[1:]
    if text == b"-1" and least < 0:
        return 0  # a command without arguments: nothing
    if not text.isdigit() or len(text) > 10 or (text.startswith(b"0") and text != b"0") or int(text) > most:
        raise _NoCommand(f"invalid {kind} length")
    return int(text)


def _words(line: bytes) -> Command:
    """Return the words of a line. Those in quotes may have blanks."""
    words: Command
    if b'"' in line or b"'" in line:
        try:
            words = [word.encode("latin-1") for word in shlex.split(line.decode("latin-1"))]
        except ValueError:
            raise _NoCommand("unbalanced quotes in request") from None
    else:
        words = line.split()
    if len(words) > MAX_ARGUMENTS:
        raise _NoCommand("invalid multibulk length")
    if words and words[0].lower() in (b"post", b"host:"):
        # A web page can make a browser send this, with commands in the body.
        raise _NoCommand("this is HTTP")
    return words


def _shown(text: bytes) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text.decode("ascii", "replace"))
