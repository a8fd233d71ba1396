"""The `ratebound` command. Only this folder imports click and rich; without them the command says what to install."""

import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command. Exits with status 1 if its output cannot be written, and 2 without click or rich."""
    _open_closed_streams()
    try:
        command()(prog_name="ratebound")
    except OSError as error:  # of a help page or a script; commands tell it by themselves
        if error.errno not in NO_ROOM:
            raise
        sys.stderr.write(f"cannot write the answer: {error.strerror}\n")
        raise SystemExit(1) from None


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed. Else the next file that is opened, such as a
    database, would get the number of that stream and all that is written there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def command() -> "click.Group":
    """Return the command with all of its subcommands. Exits with status 2 if click or rich is not installed."""
    try:
        from ratebound.cli.all_commands import all_commands
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write('click and rich are not installed. Run: pip install "ratebound[cli]"\n')
        raise SystemExit(2) from None
    return all_commands()
