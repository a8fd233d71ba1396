"""Decisions and all else that a storage does on a connection: flows (see steps.py) that threads and tasks run alike.

A decision takes two trips. The first begins a transaction, locks the states and reads them, with the database's clock.
The second writes what the kernels have changed and commits. A denial writes nothing: the locks are given back without
waiting for an answer. A peek is one trip without locks, unless the clock has stepped back.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ratebound.clock import Clock
from ratebound.errors import StorageError
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import Document, HeldSlot
from ratebound.storage.answers import all_rows
from ratebound.storage.blame import TooLate
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.connect import Bound, Link, StatementAnswer
from ratebound.storage.postgres.failure import LinkLate, LinkLost, ServerError
from ratebound.storage.postgres.statements import (
    BEGIN,
    BYTEA,
    CLOCK,
    COMMIT,
    INT8,
    ROLLBACK,
    Statements,
    array,
    int8,
    integer,
)
from ratebound.storage.postgres.steps import Steps
from ratebound.storage.stored_states import StateChange, StateNames, StoredGroup, holders_in

T = TypeVar("T")
Work = Callable[[Link, float], Steps[T]]  # a flow on a connection that ends by an instant
BATCH = 1000  # rows of one step of a sweep
WORTHWHILE = BATCH // 4  # expired rows of a batch for which a sweep goes on
HIDDEN = "PostgreSQL does not show the rows that were just locked: take row security off the tables of Ratebound"
UNCOMMITTED = "25P03"  # the server ended an idle transaction: it has not seen a COMMIT


class Transactions:
    """The flows for one address. It keeps no connection and no state, and threads may share it."""

    def __init__(self, address: PostgresAddress, clock: Clock | None) -> None:
        self._statements = Statements(address)
        self._names = StateNames(address.secret)
        self._clock = clock
        self._timeout = address.timeout

    def deciding(self, groups: Sequence[Group], mode: Mode) -> Work[list[Sequence[Row]]]:
        """Return the flow that decides groups, one after the other in one transaction."""
        stored = [StoredGroup(group, self._names) for group in groups]
        names = stored[0].names if len(stored) == 1 else sorted({name for each in stored for name in each.names})
        return lambda link, ends: self._decide(stored, names, mode, link, ends)

    def _decide(
        self, groups: Sequence[StoredGroup], names: list[bytes], mode: Mode, link: Link, ends: float
    ) -> Steps[list[Sequence[Row]]]:
        statements = self._statements
        if not groups:
            return []
        is_one = len(names) == 1
        wanted = names[0] if is_one else array(BYTEA, names)
        read = Bound(statements.read_one if is_one else statements.read, (wanted,))
        if mode == "peek":
            answer, clock = yield from link.exchange((read, CLOCK), ends)
            rows, changes = self._decided(groups, answer, integer(clock.rows[0][0]), mode)
            if not changes:
                return all_rows(rows)
            # The clock has stepped back, so that a state must be repaired: decide again with the locks.
        lock = Bound(statements.lock_one if is_one else statements.lock, (wanted,))
        *_, answer = yield from link.exchange((BEGIN, self._settings(ends), lock, read), ends)
        if not answer.rows:
            raise StorageError(HIDDEN, undone=True)
        rows, changes = self._decided(groups, answer, integer(answer.rows[0][2]), mode)
        if changes:
            yield from self._commit(link, [self._write(list(changes.values()))], ends)
        else:
            link.send_only((ROLLBACK,))
        return all_rows(rows)

    def _decided(
        self, groups: Sequence[StoredGroup], read: StatementAnswer, now: int, mode: Mode
    ) -> tuple[list[Sequence[Row] | StorageError], dict[bytes, StateChange]]:
        """Decide groups one after the other, and return their rows or errors, and what has to be written."""
        now = now if self._clock is None else self._clock()
        found = {row[0] or b"": row[1] or b"" for row in read.rows}
        answers: list[Sequence[Row] | StorageError] = []
        written: dict[bytes, StateChange] = {}
        for group in groups:
            try:
                rows, changes = group.decide(found, mode, now)
            except StorageError as error:  # a damaged state, which does not concern the other groups
                answers.append(error)
                continue
            answers.append(rows)
            for change in changes:
                found[change.name] = change.data
                written[change.name] = change
        return answers, written

    def _write(self, changes: Sequence[StateChange]) -> Bound:
        # A state without bytes is as good as none, and the next sweep takes it.
        values = [(name, data, int8(expires if data else 0)) for name, data, expires in changes]
        if len(values) == 1:
            return Bound(self._statements.write_one, values[0])
        names, states, expiries = zip(*values, strict=True)
        return Bound(self._statements.write, (array(BYTEA, names), array(BYTEA, states), array(INT8, expiries)))

    def resetting(self, group: Group) -> Work[None]:
        """Return the flow that removes the states of a group."""
        names = array(BYTEA, StoredGroup(group, self._names).names)
        statements = self._statements

        def reset(link: Link, ends: float) -> Steps[None]:
            lock, remove = Bound(statements.lock_there, (names,)), Bound(statements.remove, (names,))
            yield from link.exchange((BEGIN, self._settings(ends), lock), ends)
            yield from self._commit(link, (remove,), ends)

        return reset

    def listing_holders(self, key: str, limit: Limit) -> Work[list[HeldSlot]]:
        """Return the flow that lists the slots of a key that are held now."""
        name = self._names.of(key, limit.numbers)

        def holders(link: Link, ends: float) -> Steps[list[HeldSlot]]:
            read, clock = yield from link.exchange((Bound(self._statements.read_one, (name,)), CLOCK), ends)
            now = integer(clock.rows[0][0]) if self._clock is None else self._clock()
            return holders_in(limit.numbers, read.rows[0][1] or b"", now) if read.rows else []

        return holders

    def reading_documents(self, names: Sequence[str]) -> Work[list[Document]]:
        """Return the flow that reads shared documents."""
        wanted = [name.encode("utf-8", "surrogatepass") for name in names]

        def read(link: Link, ends: float) -> Steps[list[Document]]:
            bound = Bound(self._statements.read_documents, (array(BYTEA, wanted),))
            (answer,) = yield from link.exchange((bound,), ends)
            found = {name: (integer(version), content or b"") for name, version, content in answer.rows}
            return [found.get(name, (0, b"")) for name in wanted]

        return read

    def writing_document(self, name: str, content: bytes, version: int) -> Work[bool]:
        """Return the flow that writes a shared document, if `version` is the stored one."""
        values = (name.encode("utf-8", "surrogatepass"), content)
        bound = Bound(self._statements.first_document, values)
        if version:
            bound = Bound(self._statements.next_document, (*values, int8(version)))

        def write(link: Link, ends: float) -> Steps[bool]:
            yield from link.exchange((BEGIN, self._settings(ends)), ends)
            answers = yield from self._commit(link, (bound,), ends)
            return answers[0].touched == 1

        return write

    def sweep(self, link: Link, ends: float) -> Steps[tuple[int, bool]]:
        """Remove the expired rows of the next batch.

        Return their number, and True if it is worthwhile to go on. Nothing is done while another process sweeps.
        """
        statements = self._statements
        answers = yield from link.exchange((BEGIN, self._settings(ends), Bound(statements.lock_sweep)), ends)
        if not answers[2].rows:
            link.send_only((ROLLBACK,))
            return 0, False
        cursor = answers[2].rows[0][0] or b""
        now = None if self._clock is None else int8(self._clock())
        (answer,) = yield from link.exchange((Bound(statements.next_names, (cursor, now, int8(BATCH))),), ends)
        expired = [name or b"" for name, is_expired in answer.rows if integer(is_expired)]
        after = answer.rows[-1][0] if len(answer.rows) == BATCH else b""  # from the beginning again
        move = Bound(statements.move_cursor, (after,))
        sweep = Bound(statements.sweep, (array(BYTEA, expired), now))
        answers = yield from self._commit(link, (sweep, move), ends)
        return answers[0].touched, len(expired) >= WORTHWHILE

    def version(self, link: Link, ends: float) -> Steps[int]:
        """Return the version of the tables. Raises ServerError if they are not there."""
        (answer,) = yield from link.exchange((Bound(self._statements.version),), ends)
        return integer(answer.rows[0][0]) if answer.rows else 0

    def _settings(self, ends: float) -> Bound:
        """Return the statement that bounds a transaction: the server gives up a little before its caller does."""
        left = 1000 * (ends - time.monotonic())
        most = left - max(left / 10, 5)
        milliseconds = (0.9 * most, most, 1000 * max(1.0, 4 * self._timeout))  # first the lock: its error says why
        return Bound(self._statements.settings, tuple(str(max(int(each), 1)).encode() for each in milliseconds))

    def _commit(self, link: Link, bound: Sequence[Bound], ends: float) -> Steps[list[StatementAnswer]]:
        """Send statements and a COMMIT. Raises StorageError if it is unknown whether that was done.

        It is never the first trip of a transaction: a connection that was lost while it was idle must fail before it.
        """
        try:
            answers = yield from link.exchange((*bound, COMMIT), ends)
            if answers[-1].tag != b"COMMIT":  # PostgreSQL answers so if the transaction had failed before
                raise LinkLost("the transaction was not committed")
            return answers
        except LinkLate:
            raise TooLate(
                f"PostgreSQL did not answer within {self._timeout:g} s; it is unknown whether it committed"
            ) from None
        except LinkLost as error:
            raise StorageError(
                f"the connection to PostgreSQL was lost; it is unknown whether it committed ({error})"
            ) from error
        except ServerError as error:
            if error.ends_link and error.sqlstate != UNCOMMITTED:
                raise StorageError(
                    f"PostgreSQL ended the connection; it is unknown whether it committed ({error})"
                ) from error
            raise
