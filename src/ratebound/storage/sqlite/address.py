"""The address of a storage in SQLite: its file and its options, from a URL. Nothing is opened here."""

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from ratebound.duration import as_seconds
from ratebound.errors import StorageError
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.stored_states import StateNames

DEADLINE = 0.25  # seconds
HOUR = 3600  # seconds: no timeout is longer
EXAMPLES = "expected for example 'sqlite:///limits.db' or 'sqlite:////var/lib/api/limits.db'"
OPTIONS = ("timeout", "synchronous", "secret")
SYNCHRONOUS = ("full", "normal", "off")


@dataclass(frozen=True)
class SqliteAddress:
    """The file of a database and how to use it.

    `timeout` is the deadline of a call in seconds. `synchronous` says when a decision is on the disk: with "full"
    before it is answered; with "normal" soon after, so that a power failure may lose the last ones; with "off" when the
    system writes it. A crash of the process loses nothing with any of them. With a `secret` the names of keys are
    keyed digests.

    Raises ValueError if an option is out of range.
    """

    path: str
    timeout: float = DEADLINE
    synchronous: str = "full"
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.path or self.path == ":memory:":
            raise ValueError(
                f"a database in memory is not shared, and it does not last: use memory://, or name a file; {EXAMPLES}"
            )
        if "\0" in self.path:
            raise ValueError("the name of a file cannot have a NUL character")
        if self.synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {self.synchronous!r}")
        object.__setattr__(self, "timeout", as_seconds("timeout", self.timeout, positive=True, most=HOUR))
        object.__setattr__(self, "path", os.path.abspath(self.path))  # a program may change its folder later
        StateNames(self.secret)  # raises if it is too long

    @property
    def url(self) -> str:
        """The address as a URL without options."""
        return f"sqlite:///{self.path}"


def read_url(url: str) -> SqliteAddress:
    """Return the address in a URL. Raises ValueError for one that cannot be read, without its secret."""
    parts = split_url(url)
    if not url[len(parts.scheme) :].startswith("://"):
        raise ValueError(f"cannot open storage {hidden(url)}: {EXAMPLES}")
    if parts.netloc:
        raise ValueError(f"cannot open storage {hidden(url)}: three slashes come before the name of a file; {EXAMPLES}")
    if "#" in url:
        raise ValueError(f"cannot open storage {hidden(url)}: write '#' as %23")
    options: dict[str, Any] = {}
    for place, (name, text) in enumerate(parse_qsl(parts.query, keep_blank_values=True), 1):
        if name not in OPTIONS or name in options:  # its name is not shown: it may be the rest of a secret with '&'
            raise ValueError(
                f"cannot open storage {hidden(url)}: option {place} is unknown or repeated; known are"
                f" {', '.join(OPTIONS)}"
            )
        options[name] = text
    try:
        if "timeout" in options:
            options["timeout"] = _seconds(options["timeout"])
        return SqliteAddress(unquote(parts.path[1:]), **options)
    except ValueError as error:
        raise ValueError(f"cannot open storage {hidden(url)}: {error}") from None


def check_file(url: str) -> None:
    """Raise StorageError if the file of a URL is not there, and ValueError if the URL cannot be read."""
    address = read_url(url)
    if not os.path.lexists(address.path):
        raise StorageError(
            f"there is no file {address.path}: start the application first, with storage='{address.url}'", undone=True
        )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("timeout must be seconds, like 0.1") from None
