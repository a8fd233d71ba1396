"""What can go wrong, by who is at fault. A denial is not here: it is a value (law 9).

RateboundError
├── InvalidLimit    the text or the numbers of a limit
├── InvalidCost     a cost that is not a positive whole number
├── InvalidKey      a key that is not text, or a group that holds no check
└── StorageError    the storage could not answer
"""

from collections.abc import Sequence
from typing import Any


class RateboundError(Exception):
    """Everything that Ratebound raises on purpose."""


class InvalidLimit(RateboundError, ValueError):
    """A limit that cannot be read, or cannot be kept exactly."""


class InvalidCost(RateboundError, ValueError):
    """A cost that is not a positive whole number."""


class InvalidKey(RateboundError, ValueError):
    """A key that is not text, or nothing to check at all."""


class StorageError(RateboundError):
    """The storage could not answer; the message says what to do.

    `undone`: it is certain that nothing was charged; else that is not known. `outage`: the storage itself is in
    trouble; else it is well, and refused just this group. `answers`, when several groups were asked and not all failed:
    the rows of each, or its own error.
    """

    def __init__(self, message: str, *, undone: bool = False, outage: bool = True) -> None:
        super().__init__(message)
        self.undone = undone
        self.outage = outage
        self.answers: Sequence[Any] | None = None
