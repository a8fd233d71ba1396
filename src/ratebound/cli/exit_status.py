"""The end of a command after an error: the words on stderr, and the exit status. Only statuses that are an answer are
decided elsewhere."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from ratebound.errors import RateboundError, StorageError

FAILED = 1  # a storage or a stream that fails
MISTAKE = 2  # what whoever typed the command can mend
INTERRUPTED = 130  # as shells have it for Ctrl-C
NO_STORAGE = "the storage could not be reached: "


@contextmanager
def errors_told(*, storage: str = "", values: bool = False, unwritten: int = FAILED) -> Iterator[None]:
    """Print an error as its message alone, and exit.

    `storage` is what is said before the error of a storage. With `values`, ValueError and TypeError are mistakes of the
    user too. `unwritten` is the status if the answer cannot be written, for commands whose status 1 is an answer.
    """
    try:
        yield
    except StorageError as error:
        _end(f"{storage}{error}", FAILED)
    except ModuleNotFoundError as error:
        if error.name is not None:  # not the words that say what to install
            raise
        _end(str(error), MISTAKE)
    except RateboundError as error:
        _end(str(error), MISTAKE)
    except (TypeError, ValueError) as error:
        if not values:
            raise
        _end(str(error), MISTAKE)
    except OSError as error:
        _give_up_output()
        if error.errno == errno.EPIPE:  # whoever read the answer has read enough, as `head` does
            raise SystemExit(unwritten) from None
        what = "cannot write the answer" if error.filename is None else f"cannot use {error.filename}"
        _end(f"{what}: {error.strerror or error}", unwritten)
    except KeyboardInterrupt:
        _end("interrupted: there is no result", INTERRUPTED)


def _give_up_output() -> None:
    """Let what is still in the buffer of stdout go nowhere: at its end Python would fail to write it once more."""
    with suppress(OSError, ValueError):  # tests have streams without a number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _end(message: str, status: int) -> None:
    click.echo(message, err=True)
    raise SystemExit(status) from None
