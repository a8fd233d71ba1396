"""The `ratebound` command. Only this folder imports click and rich; without them the command says what to install."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def main() -> None:
    """Run the command. Exits with status 2 if click or rich is not installed."""
    try:
        from ratebound.cli.app import app
        from ratebound.cli.ask import ask
        from ratebound.cli.blocks import blocks
        from ratebound.cli.call import call
        from ratebound.cli.ledger import ledger
        from ratebound.cli.overrides import overrides
        from ratebound.cli.policy import policy
        from ratebound.cli.replay import replay
        from ratebound.cli.serve import serve
        from ratebound.cli.state import state
        from ratebound.cli.storage import storage
        from ratebound.cli.switches import switches
        from ratebound.cli.top import top
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write('click and rich are not installed. Run: pip install "ratebound[cli]"\n')
        raise SystemExit(2) from None
    try:
        from ratebound.cli.zone import zone
    except ModuleNotFoundError as error:
        if error.name not in ("fcntl", "pwd"):  # systems without them have no zones
            raise
    else:
        app.add_command(zone)
    app.add_command(_loadtest())
    app.add_command(ask)
    app.add_command(blocks)
    app.add_command(call)
    app.add_command(ledger)
    app.add_command(overrides)
    app.add_command(policy)
    app.add_command(replay)
    app.add_command(state)
    app.add_command(storage)
    app.add_command(switches)
    app.add_command(serve)
    app.add_command(top)
    app(prog_name="ratebound")


def _loadtest() -> "click.Command":
    """Return the command `loadtest`; without its packages, one that says what to install."""
    import click

    try:
        from ratebound.cli.loadtest import loadtest
    except ModuleNotFoundError as error:
        if error.name is not None:  # not ours, which says what to install
            raise
        missing = str(error)
    else:
        return loadtest

    @click.command("loadtest", short_help="Send a load to a server (not installed).", add_help_option=False)
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def not_installed(rest: tuple[str, ...]) -> None:
        click.echo(missing, err=True)
        raise SystemExit(2)

    not_installed.ignore_unknown_options = True
    return not_installed
