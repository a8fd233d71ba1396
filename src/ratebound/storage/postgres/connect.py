"""The only module that uses psycopg: connections to a database, and what is sent on them.

A storage must answer by its deadline, for threads and for tasks. So everything here is a generator that yields what it
waits for, a socket and an instant, and never waits itself; steps.py waits. A connection stays in libpq's pipeline mode:
all statements of one trip are sent together.
"""

import ipaddress
import select
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq

from ratebound.errors import StorageError
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.failure import LinkLate, LinkLost, ServerError, meaning_of, unreachable
from ratebound.storage.postgres.steps import READ, WRITE, Resolution, Steps, Wait

Connection = psycopg.Connection[Any]
BINARY: Final = 1
PIPELINES: Final = 140000  # the first version of libpq that has them
_BAD = pq.ConnStatus.BAD
_SYNC = pq.ExecStatus.PIPELINE_SYNC
_FATAL = pq.ExecStatus.FATAL_ERROR
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

if pq.version() < PIPELINES:
    raise StorageError(
        f"libpq has version {pq.version() // 10000}, and Ratebound needs 14 or later."
        ' Run: pip install "psycopg[binary]"',
        undone=True,
    )


class Statement(NamedTuple):
    """A statement, its name for servers that keep it prepared, and the types (oids) of its parameters."""

    text: bytes
    name: bytes
    types: tuple[int, ...] = ()


class Bound(NamedTuple):
    """A statement with values of its parameters, each in PostgreSQL's binary form."""

    statement: Statement
    values: tuple[bytes | None, ...] = ()


Rows = list[tuple[bytes | None, ...]]


class StatementAnswer(NamedTuple):
    """The answer to one statement: its rows, the number of rows that it touched, and PostgreSQL's tag of it."""

    rows: Rows
    touched: int
    tag: bytes | None


class Link:
    """A connection to a server, in pipeline mode. One call uses it at a time."""

    __slots__ = ("_connection", "_owed", "_prepared", "prepares", "socket", "used_at")

    def __init__(self, connection: Any, prepares: bool) -> None:
        self._connection = connection
        self._owed = 0  # trips whose answers nobody has read yet
        self._prepared: set[bytes] = set()
        self.prepares = prepares
        self.socket: int = connection.socket
        self.used_at = time.monotonic()

    def exchange(self, bound: Sequence[Bound], until: float) -> Steps[list[StatementAnswer]]:
        """Send statements in one trip, and return their answers.

        Raises ServerError for the first statement that failed, LinkLost, and LinkLate after `until`. After LinkLost and
        LinkLate the connection must be closed.
        """
        try:
            sent = self._send(bound, self.prepares)
            while self._connection.flush():
                yield Wait(self.socket, READ | WRITE, until)
                self._connection.consume_input()
            return (yield from self._answers(sent, until))
        except psycopg.Error as error:
            raise LinkLost(_one_line(error)) from error

    def send_only(self, bound: Sequence[Bound]) -> None:
        """Send statements whose answers the next exchange will skip. Raises LinkLost."""
        try:
            self._send(bound, prepares=False)
            if self._connection.flush():
                raise LinkLost("the connection takes no more")
        except psycopg.Error as error:
            raise LinkLost(_one_line(error)) from error
        self._owed += 1

    def close(self) -> None:
        """Close the connection. The server undoes what was not committed."""
        self._connection.finish()

    def _send(self, bound: Sequence[Bound], prepares: bool) -> list[bytes]:
        """Queue statements. Return for each message the name that it prepares, or b"" for a statement's own."""
        connection, sent = self._connection, []
        for (text, name, types), values in bound:
            formats = (BINARY,) * len(values)
            if not prepares:
                connection.send_query_params(text, values, types, formats, BINARY)
            else:
                if name not in self._prepared and name not in sent:
                    connection.send_prepare(name, text, types)
                    sent.append(name)
                connection.send_query_prepared(name, values, formats, BINARY)
            sent.append(b"")
        connection.pipeline_sync()
        return sent

    def _answers(self, sent: list[bytes], until: float) -> Steps[list[StatementAnswer]]:
        connection, found, failed = self._connection, [], None
        while True:
            while connection.is_busy():
                yield Wait(self.socket, READ, until)
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                if connection.status == _BAD:
                    raise failed or LinkLost("the server closed the connection")
                continue
            status = result.status
            if status == _SYNC:
                if not self._owed:
                    break
                self._owed -= 1
            elif status == _FATAL and (error := _server_error(result)).ends_link:
                raise error
            elif self._owed:
                continue
            elif status in _FINE:
                found.append(result)
            elif failed is None and status == _FATAL:
                failed = error
        self._prepared.update(filter(None, sent[: len(found)]))
        if failed is not None:
            raise failed
        if len(found) != len(sent):
            raise LinkLost("the server sent another number of answers than expected")
        return [_answer(result) for name, result in zip(sent, found, strict=True) if not name]


def _answer(result: Any) -> StatementAnswer:
    columns = range(result.nfields)
    value = result.get_value
    rows = [tuple([value(row, column) for column in columns]) for row in range(result.ntuples)]
    return StatementAnswer(rows, result.command_tuples or 0, result.command_status)


def _server_error(result: Any) -> ServerError:
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    severity = (result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b"").decode("ascii", "replace")
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return ServerError(sqlstate, " ".join(message.decode("utf-8", "replace").split()), severity)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


class Route:
    """The way to a server: all hosts of an address, with the one first that was reached last."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._first = 0

    def connecting(self, ends: float) -> Steps[Link]:
        """Make a connection to the first host that accepts one. Raises LinkLost, LinkLate and ServerError."""
        address = self._address
        if address.connect_timeout is not None:
            ends = min(ends, time.monotonic() + address.connect_timeout)
        count, failures = len(address.hosts), []
        for turn in range(count):
            place = (self._first + turn) % count
            until = _share(ends, count - turn)  # a host that does not answer must leave time for the others
            try:
                link = yield from self._reach(*address.hosts[place], until)
            except (LinkLost, LinkLate, ServerError) as error:
                failures.append(error)
            else:
                self._first = place
                return link
        raise next((error for error in failures if isinstance(error, LinkLost)), failures[-1])

    def _reach(self, host: str, port: str, until: float) -> Steps[Link]:
        addresses = [""]
        if _is_name(host):
            addresses = yield Resolution(host, until)
        for turn, address in enumerate(addresses):
            try:
                share = _share(until, len(addresses) - turn)
                return (yield from _connecting(self._conninfo(host, port, address), share, self._address.prepare))
            except (LinkLost, LinkLate):
                if turn + 1 == len(addresses):
                    raise
        raise AssertionError("a name has one address or more")

    def _conninfo(self, host: str, port: str, address: str) -> bytes:
        given = {**self._address.login, "client_encoding": "UTF8", "host": host, "port": port, "hostaddr": address}
        return psycopg.conninfo.make_conninfo("", **{name: value for name, value in given.items() if value}).encode()


def _connecting(conninfo: bytes, until: float, prepares: bool) -> Steps[Link]:
    connection = pq.PGconn.connect_start(conninfo)
    is_made = False
    try:
        status = pq.PollingStatus.WRITING
        while status != pq.PollingStatus.OK:
            if connection.status == _BAD or status == pq.PollingStatus.FAILED:
                raise LinkLost(" ".join(connection.get_error_message().split()))
            yield Wait(connection.socket, READ if status == pq.PollingStatus.READING else WRITE, until)
            status = pq.PollingStatus(connection.connect_poll())
        connection.nonblocking = 1
        connection.enter_pipeline_mode()
        is_made = True
        return Link(connection, prepares)
    except psycopg.Error as error:
        raise LinkLost(_one_line(error)) from error
    finally:
        if not is_made:
            connection.finish()


def _share(ends: float, parts: int) -> float:
    now = time.monotonic()
    return now + (ends - now) / parts


def _is_name(host: str) -> bool:
    """Return True for a name that must be looked up: libpq would block meanwhile."""
    if not host or host.startswith(("/", "@")):
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def open_connection(address: PostgresAddress, seconds: float = 10.0) -> Connection:
    """Return a connection of psycopg, in autocommit mode, for what is not in the path of a request.

    It uses no prepared statements, because of PgBouncer. A statement that takes longer than `seconds` closes it. Raises
    StorageError if it cannot be made; statements raise `DatabaseError`, see `told`.
    """
    hosts, ports = zip(*address.hosts, strict=True)
    given = {**address.login, "client_encoding": "UTF8", "host": ",".join(hosts), "port": ",".join(ports)}
    conninfo = psycopg.conninfo.make_conninfo("", **{name: value for name, value in given.items() if value.strip(",")})
    try:
        connection: Any = psycopg.connect(
            conninfo, autocommit=True, prepare_threshold=None, connect_timeout=max(int(seconds), 2)
        )
    except psycopg.Error as error:
        raise unreachable(_one_line(error), address.url) from error
    connection.wait = partial(_wait_at_most, connection, seconds)  # its own wait has no end
    found: Connection = connection
    return found


def _wait_at_most(connection: Any, seconds: float, steps: Any, *_: Any, **__: Any) -> Any:
    """Do what `Connection.wait` does, for some seconds at most. Then close the connection and raise."""
    until = time.monotonic() + seconds
    poll = select.poll()
    try:
        events = next(steps)
        while True:
            poll.register(connection.fileno(), (events & READ and select.POLLIN) | (events & WRITE and select.POLLOUT))
            ready = poll.poll(max(until - time.monotonic(), 0.0) * 1000)
            if not ready:
                connection.close()
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            is_bad = ready[0][1] & ~(select.POLLIN | select.POLLOUT)
            found = (ready[0][1] & select.POLLIN and READ) | (ready[0][1] & select.POLLOUT and WRITE)
            events = steps.send(found or (events if is_bad else 0))
    except StopIteration as done:
        return done.value
    except BaseException:
        if connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            connection.close()  # an answer is on its way that nobody will read
        raise


DatabaseError = psycopg.Error


def told(error: psycopg.Error, address: PostgresAddress) -> StorageError:
    """Return the StorageError for an exception of psycopg."""
    if error.sqlstate:
        message = error.diag.message_primary or _one_line(error)
        return meaning_of(ServerError(error.sqlstate, message), address.url, address.timeout)
    return StorageError(f"communication with PostgreSQL failed ({_one_line(error)})")
