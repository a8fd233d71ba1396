"""The `ratebound` command with all of its commands. Each is imported when it is needed: all together take long."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec

import click

from ratebound.cli.app import app
from ratebound.cli.command_group import CommandGroup

# The commands besides those of app.py. Each has a module of its own.
NAMES = (
    *("policy", "replay", "call", "serve", "storage", "ask", "top"),
    *("state", "blocks", "overrides", "switches", "ledger", "completion"),
)


def all_commands() -> CommandGroup:
    """Return the whole command."""
    for name in NAMES:
        app.loaders[name] = partial(_loaded, name)
    app.loaders["loadtest"] = _loadtest
    if find_spec("fcntl") and find_spec("pwd"):  # systems without them have no zones
        app.loaders["zone"] = partial(_loaded, "zone")
    return app


def _loaded(name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"ratebound.cli.{name}"), name)
    return found


def _loadtest() -> click.Command:
    """Return the command `loadtest`; without its packages, one that says what to install."""
    try:
        return _loaded("loadtest")
    except ModuleNotFoundError as error:
        if error.name is not None:  # not ours, which says what to install
            raise
        missing = str(error)

    @click.command("loadtest", short_help="Send a load to a server (not installed).", add_help_option=False)
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def not_installed(rest: tuple[str, ...]) -> None:
        click.echo(missing, err=True)
        raise SystemExit(2)

    not_installed.ignore_unknown_options = True
    return not_installed
