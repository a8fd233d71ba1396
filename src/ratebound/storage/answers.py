"""The answers of one call about several groups, of which some may have failed."""

from collections.abc import Sequence

from ratebound.errors import StorageError
from ratebound.outcome import Row


def all_rows(found: Sequence[Sequence[Row] | StorageError]) -> list[Sequence[Row]]:
    """Return the rows of every group. Raises the first error among them, with the answers of all groups."""
    rows: list[Sequence[Row]] = []
    for each in found:
        if isinstance(each, StorageError):
            failed = StorageError(str(each), outage=each.outage)
            failed.undone = all(isinstance(other, StorageError) and other.undone for other in found)
            failed.answers = found if len(found) > 1 else None
            raise failed
        rows.append(each)
    return rows
