"""The `ratebound` command with all of its commands, in the order in which its help shows them."""

import click

from ratebound.cli.app import app
from ratebound.cli.ask import ask
from ratebound.cli.blocks import blocks
from ratebound.cli.call import call
from ratebound.cli.completion import completion
from ratebound.cli.ledger import ledger
from ratebound.cli.overrides import overrides
from ratebound.cli.policy import policy
from ratebound.cli.replay import replay
from ratebound.cli.serve import serve
from ratebound.cli.state import state
from ratebound.cli.storage import storage
from ratebound.cli.switches import switches
from ratebound.cli.top import top


def all_commands() -> click.Group:
    """Return the whole command. Without the packages of `loadtest`, that command says what to install."""
    for one in (
        *(policy, replay, _loadtest(), call, serve, storage, ask, top),
        *(state, blocks, overrides, switches, ledger, completion),
    ):
        app.add_command(one)
    try:
        from ratebound.cli.zone import zone
    except ModuleNotFoundError as error:
        if error.name not in ("fcntl", "pwd"):  # systems without them have no zones
            raise
    else:
        app.add_command(zone)
    return app


def _loadtest() -> click.Command:
    """Return the command `loadtest`; without its packages, one that says what to install."""
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
