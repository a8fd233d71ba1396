"""The exceptions that Ratebound raises. A denial is not among them: it is a value (law 9).

RateboundError
├── InvalidLimit    the text or the numbers of a limit
├── InvalidCost     a cost that is not a positive whole number
├── InvalidKey      a key that is not text, or a group without checks
├── InvalidValue    a value that a limit of distinct values cannot count, or a missing one
└── StorageError    the storage could not answer
"""

from collections.abc import Sequence
from typing import Any


class RateboundError(Exception):
    """The base class of every exception that Ratebound raises on purpose.

    Examples:
        >>> from ratebound import Limiter, RateboundError
        >>> try:
        ...     Limiter("ten per minute")
        ... except RateboundError as error:
        ...     print(type(error).__name__)
        InvalidLimit
    """


class InvalidLimit(RateboundError, ValueError):
    """A limit that cannot be parsed, or cannot be enforced exactly."""


class InvalidCost(RateboundError, ValueError):
    """A cost that is not a positive whole number."""


class InvalidKey(RateboundError, ValueError):
    """A key that is not text, or a group without checks."""


class InvalidValue(RateboundError, ValueError):
    """A value that a limit of distinct values cannot count, or a missing one."""


class StorageError(RateboundError):
    """The storage could not answer. The message says what to do.

    `answers` is set when a call had several groups and only some failed: it holds the rows of each group, or that
    group's own error.

    Args:
        message: What happened, and what to do.
        undone: True if the storage certainly charged nothing; otherwise the charge is unknown.
        outage: True if the storage itself is in trouble; False if a healthy storage rejected only this group.

    Examples:
        >>> from ratebound import Limiter, StorageError
        >>> limiter = Limiter("5/minute", storage="redis://localhost:1", failure="raise")
        >>> try:
        ...     limiter.hit("user:42")
        ... except StorageError as error:
        ...     print(error.outage)
        True
    """

    def __init__(self, message: str, *, undone: bool = False, outage: bool = True) -> None:
        super().__init__(message)
        self.undone = undone
        self.outage = outage
        self.answers: Sequence[Any] | None = None
