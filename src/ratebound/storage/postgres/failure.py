"""Failures of a database, and what they mean: an error that the server has sent, a connection that is lost, or is late.

`meaning_of` turns the error of a server into a StorageError that says what to do. No driver is needed here.
"""

from typing import NamedTuple

from ratebound.errors import StorageError
from ratebound.storage.blame import TooLate

# The server ends the connection with these. What was sent after its last answer was not done.
ENDED = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04", "08000", "08003", "08006", "08P01")
AGAIN = ("40001", "40P01")  # a serialization failure, a deadlock: the server has undone it all
READ_ONLY = ("25006", "0A000")  # 0A000: a standby refuses to begin a transaction that writes


class ServerError(Exception):
    """An error that the server has sent. The transaction is undone, unless it came with the end of the connection."""

    def __init__(self, sqlstate: str, message: str, severity: str = "ERROR") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.ends_link = sqlstate in ENDED or severity in ("FATAL", "PANIC")  # PANIC: it may fail in a COMMIT


class LinkLost(Exception):
    """A connection that could not be made, or was lost."""


class LinkLate(Exception):
    """A connection on which nothing came in time."""


class _Meaning(NamedTuple):
    """The meaning of an error: a text, and whether the database itself is in trouble."""

    text: str
    outage: bool = True


# By the whole SQLSTATE, or by its class, the first two characters.
MEANINGS = {
    "25": _Meaning("PostgreSQL refused the transaction ({message})"),
    "25006": _Meaning(
        "PostgreSQL is read-only here ({message}): this is a standby, or the primary was replaced. Name all hosts in"
        " the URL, with target_session_attrs=read-write"
    ),
    "28": _Meaning("PostgreSQL refused the login ({message}): check the user and the password in the URL"),
    "3D000": _Meaning("there is no such database ({message}): create it, then run: ratebound storage init {url}"),
    "40": _Meaning("PostgreSQL undid the transaction again and again ({message})", outage=False),
    "42501": _Meaning(
        "PostgreSQL refused it ({message}): grant SELECT, INSERT, UPDATE and DELETE on the tables of Ratebound, and"
        " USAGE on their schema, to the user in the URL. Only `ratebound storage` needs more: a user who may create"
        " tables there"
    ),
    "42": _Meaning("the tables of Ratebound do not fit ({message}). Run: ratebound storage upgrade {url}"),
    "42P01": _Meaning("the tables of Ratebound are not there ({message}). Run: ratebound storage init {url}"),
    "3F000": _Meaning("the schema is not there ({message}). Run: ratebound storage init {url}"),
    "53100": _Meaning("the disk of PostgreSQL is full ({message}): free some space there"),
    "26": _Meaning("PgBouncer lost a prepared statement ({message}): take prepare=yes out of the URL"),
    "53300": _Meaning(
        "PostgreSQL has no connection left ({message}): give the URL a smaller pool, raise max_connections, or use"
        " PgBouncer"
    ),
    "53": _Meaning("PostgreSQL has too few resources ({message})"),
    "54": _Meaning("a state is too big for PostgreSQL ({message})", outage=False),
    "57P03": _Meaning("PostgreSQL is starting up or shutting down ({message})"),
    "57": _Meaning("PostgreSQL ended the connection ({message})"),
    "58": _Meaning("PostgreSQL has trouble with its files ({message})"),
    "XX": _Meaning("PostgreSQL has an internal error, or damaged data ({message})"),
}
MEANINGS["0A000"] = MEANINGS["25006"]
UNKNOWN = _Meaning("PostgreSQL answered with error {sqlstate} ({message})")
# libpq tells why a connection failed in words only.
ADVICE = {
    "authentication failed": "check the user and the password in the URL",
    "no password supplied": "write the password into the URL",
    "does not exist": "create the user or the database, then run: ratebound storage init {url}",
    "too many": "give the URL a smaller pool, raise max_connections, or use PgBouncer",
    "connection slots": "give the URL a smaller pool, raise max_connections, or use PgBouncer",
    "read-only": "name all hosts in the URL, so that the primary is found wherever it is",
    "pg_hba.conf": "allow this user and host in pg_hba.conf of the server",
    "invalid connection option": "leave the option out of the URL, or install a later libpq",
}
NO_LOCK, CANCELLED = "55P03", "57014"  # after lock_timeout; after statement_timeout, or by an operator


def meaning_of(error: ServerError, url: str, deadline: float) -> StorageError:
    """Return the StorageError for an error of the server. Nothing was charged."""
    if error.sqlstate == NO_LOCK:
        return TooLate(
            f"a lock in PostgreSQL was not free within {deadline:g} s: another process has it, or many wait for the"
            f" same key ({error})",
            undone=True,
            outage=False,
        )
    if error.sqlstate == CANCELLED:  # mostly several waits, each shorter than lock_timeout: the server itself is well
        return TooLate(
            f"PostgreSQL did not finish within {deadline:g} s: many wait for the same key, or it was told to stop"
            f" ({error})",
            undone=True,
            outage=False,
        )
    found = MEANINGS.get(error.sqlstate) or MEANINGS.get(error.sqlstate[:2], UNKNOWN)
    text = found.text.format(message=error, url=url, sqlstate=error.sqlstate or "without a code")
    return StorageError(text, undone=True, outage=found.outage)


def unreachable(text: str, url: str) -> StorageError:
    """Return the StorageError for a connection that could not be made, from the words of libpq."""
    advice = next((advice for words, advice in ADVICE.items() if words in text), "")
    advice = f": {advice.format(url=url)}" if advice else ""
    return StorageError(f"PostgreSQL cannot be reached ({text}){advice}", undone=True)
