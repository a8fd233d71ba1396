"""The `ratebound` command. Only this folder imports click and rich; without them the command says what to install."""

import errno
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command. Exits with status 1 if its output cannot be written, and 2 without click or rich."""
    try:
        command()(prog_name="ratebound")
    except OSError as error:  # of a help page or a script; commands tell it by themselves
        if error.errno not in NO_ROOM:
            raise
        sys.stderr.write(f"cannot write the answer: {error.strerror}\n")
        raise SystemExit(1) from None


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
