"""Imports from packages that are installed with an extra of Ratebound."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def from_extra(extra: str, **packages: str) -> Iterator[None]:
    """Import from packages of an extra: if one is missing, the error says what to install.

    `packages` has the name of each package by the name of its module. Raises ModuleNotFoundError without a `name`, by
    which commands know that its message is for whoever typed them. If anything else is missing, the error is left as
    it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        if module not in packages:
            raise
        raise ModuleNotFoundError(
            f'{packages[module]} is not installed. Run: pip install "ratebound[{extra}]"'
        ) from None
