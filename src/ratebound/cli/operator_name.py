"""The name of the operator who runs a command, for the audit log."""

import getpass

import click

BY = click.option("--by", metavar="NAME", help="Who does it, for the audit log; by default the login name.")


def operator(by: str | None) -> str:
    """Return who does it: the name that was given, or the login name; "" if there is none."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""
