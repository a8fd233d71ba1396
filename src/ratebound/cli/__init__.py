"""The `ratebound` command. Only this folder imports click and rich; without them the command says what to install."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def main() -> None:
    """Run the command. Exits with status 2 if click or rich is not installed."""
    command()(prog_name="ratebound")


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
