"""Shared parts of the commands for operators: options, the storage that they open, and how entries are shown."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import click
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ratebound.cli.app import open_console
from ratebound.cli.exit_status import NO_STORAGE, errors_told
from ratebound.cli.parameters import FILE, STORAGE_URL
from ratebound.cli.policy import environ_with
from ratebound.cli.policy_functions import functions_from
from ratebound.cli.state import shared_url
from ratebound.policy import Gate
from ratebound.policy.load.loader import load_policy
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.urls import open_storage

STORAGE = click.option("--storage", type=STORAGE_URL, metavar="URL", help="The storage of the application.")
STORAGE_OR_POLICYS = click.option(
    "--storage",
    type=STORAGE_URL,
    metavar="URL",
    help="The storage of the application; by default that of the policy.",
)
POLICY = click.option("--policy", "file", type=FILE, help="The policy of the application, to check what is set.")
JSON = click.option("--json", "shape", flag_value="json", help="The same as --format json.")
FOR = click.option("--for", "length", metavar="TIME", help="How long: 90 seconds, 1h. By default until it is removed.")
REASON = click.option(
    "--reason", default="", show_default=False, metavar="TEXT", help="A reason for operators. Clients never see it."
)


class Opened(NamedTuple):
    """The storage of one command, and a gate if there is a policy."""

    storage: GuardedStorage
    gate: Gate | None


@contextmanager
def opened(
    storage: str | None,
    instead: str,
    file: str | None = None,
    environ: tuple[str, ...] = (),
    module: str | None = None,
) -> Iterator[Opened]:
    """Open the storage for one command. A mistake exits with status 2, and a storage that fails with status 1.

    `instead` is what an application with memory calls. `file` is its policy.
    """
    with errors_told(storage=NO_STORAGE, values=True):
        found = None
        try:
            policy = None
            if file is not None:
                policy = load_policy(file, functions=functions_from(module), environ=environ_with(environ))
                storage = storage or policy.storage
            found = GuardedStorage(open_storage(shared_url(storage, instead)))
            yield Opened(found, None if policy is None else Gate(policy, storage=found))
        finally:
            if found is not None:
                found.close()


def show(found: Sequence[Any], columns: Sequence[str], shape: str) -> None:
    """Show entries of a document, as JSON or as a table with these of their fields."""
    if shape == "json":
        document = [{name: _plain(value) for name, value in entry._asdict().items()} for entry in found]
        is_printable = all(_cell(value).isprintable() for entry in found for value in entry)
        click.echo(json.dumps(document, ensure_ascii=not is_printable, indent=2))
        return
    table = Table(box=SIMPLE, pad_edge=False)
    for name in columns:
        is_time = name in ("since", "until")
        table.add_column(f"{name} (UTC)" if is_time else name, no_wrap=is_time, overflow="fold")
    for entry in found:
        values = {name: getattr(entry, name) for name in columns}
        if values.get("until", "") is None:
            values["until"] = "no end"
        table.add_row(*(_shown(_cell(value)) for value in values.values()))
    open_console().print(table)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else list(value) if isinstance(value, tuple) else value


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


def _shown(text: str) -> Text:
    """Return text for a cell, with escapes if it cannot be printed. It is a Text, because rich would read words in
    brackets as styles."""
    return Text(text if text.isprintable() else ascii(text))
