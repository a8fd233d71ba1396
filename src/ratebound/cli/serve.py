"""The command `ratebound serve`: the service. Its options are made from the table of settings."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from ratebound.cli.parameters import FILE, LEDGER_URL, STORAGE_URL
from ratebound.cli.policy_functions import Function, public_functions
from ratebound.errors import RateboundError

MISSING = 'the service needs {name}, which is not installed. Run: pip install "ratebound[service]"'

# What a shell completes, by the name of a setting, or by what stands for its value.
KINDS = {"FILE": FILE, "FILE|URL": FILE, "storage": STORAGE_URL, "ledger": LEDGER_URL}


class _ServeCommand(click.Command):
    """A command whose options are read from the service's table when they are needed: the table needs more packages."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        settings = service_module("ratebound.service.settings")
        options: list[click.Parameter] = [
            click.Option(["--settings"], type=FILE, metavar="FILE", help="A settings file (.toml, .yaml or .json).")
        ]
        for setting in settings.SETTINGS:
            if not setting.is_secret:
                text = setting.help + (f" Default: {setting.default}." if setting.default else "")
                kind = KINDS.get(setting.name if setting.name in KINDS else setting.metavar)
                options.append(click.Option([setting.option], type=kind, metavar=setting.metavar, help=text))
        return [*options, *super().get_params(ctx)]


@click.command(cls=_ServeCommand, short_help="Serve limits over HTTP, gRPC and RESP.")
def serve(settings: str | None, **given: str | None) -> None:
    """Serve a policy, and callers' own limits, over HTTP, gRPC and RESP, until Ctrl-C.

    Each option can also be given as an environment variable (--http as RATEBOUND_HTTP) and in a settings file (http:).
    Options win over the environment, and the environment over the file. Secrets have no options: RATEBOUND_TOKENS or
    --token-file, RATEBOUND_ADMIN_TOKENS or --admin-token-file, RATEBOUND_ADMIN_READ_TOKENS or
    --admin-read-token-file, RATEBOUND_SECRET or --secret-file, RATEBOUND_LEDGER_SECRET or --ledger-secret-file.
    RATEBOUND_POLICY_TOKEN is the token for a policy from a URL.

    SIGTERM and Ctrl-C stop it after the accepted requests are answered. SIGHUP reads the policy again.

    \b
    Examples:
      ratebound serve --policy policy.yaml
      ratebound serve --policy policy.yaml --workers 4 --storage redis://localhost:6379/0
      ratebound serve --settings settings.toml
    """
    reader = service_module("ratebound.service.settings")
    supervisor = service_module("ratebound.service.supervisor")
    try:
        options = {name: text for name, text in given.items() if text is not None}
        chosen = reader.read_settings(options, file=settings)
        # A link with a token is for a person. What is no terminal may be a file that others read
        tell = click.echo if sys.stdout.isatty() else None
        status = supervisor.Supervisor(chosen, _functions(chosen.functions), tell=tell).run()
    except RateboundError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    raise SystemExit(status)


def service_module(module: str) -> Any:
    """Import a part of the service. Exits with status 2 if a package of its extra is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "ratebound":
            raise
        if error.name in ("fcntl", "pwd", "uvloop") and sys.platform == "win32":
            click.echo("the service needs a POSIX system: Linux or macOS", err=True)
        else:
            click.echo(MISSING.format(name=error.name), err=True)
        raise SystemExit(2) from None


def _functions(module: str) -> Mapping[str, Function]:
    """Return the functions that the policy may name."""
    if not module:
        return {}
    sys.path.insert(0, os.getcwd())  # for good: functions may import more when they are called
    return public_functions(module)
