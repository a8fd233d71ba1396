"""The command `ratebound blocks`: list, add and remove the clients that operators block, in the storage of an
application."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ratebound.cli.app import _console
from ratebound.cli.policy import FORMAT, _mistakes
from ratebound.cli.state import _shared
from ratebound.errors import RateboundError, StorageError
from ratebound.flow import run
from ratebound.policy.runtime.operator_blocks import Block, adding, listing, removing
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.urls import open_storage

STORAGE = click.option("--storage", metavar="URL", help="The storage of the application.")
OF_PENALTIES = (
    "Blocks by penalties are not in this list: ratebound state usage CLIENT --policy FILE shows them, and ratebound"
    " state reset lifts them."
)
JSON = click.option("--json", "shape", flag_value="json", help="The same as --format json.")


@click.group(short_help="List, add and remove clients that operators block.")
def blocks() -> None:
    """List, add and remove the clients that operators block by hand, in the storage of a running application.

    CLIENT is written as in the block list of a policy: 203.0.113.7, 203.0.113.0/24, user:42, api-key:acme. All
    processes that use the storage apply a change within a second.

    Blocks that a penalty began are not in this list. To see them, run: ratebound state usage CLIENT --policy FILE. To
    lift them, run: ratebound state reset CLIENT --policy FILE.
    """


@blocks.command("list", short_help="List the clients that operators block.")
@STORAGE
@FORMAT
@JSON
def list_blocks(storage: str | None, shape: str) -> None:
    """List the clients that operators block now, the oldest block first.

    For example: ratebound blocks list --storage redis://localhost
    """
    with _opened(storage) as opened:
        _show(run(listing(opened)), shape)


@blocks.command(short_help="Block a client.")
@click.argument("client")
@click.option("--for", "length", metavar="TIME", help="How long: 90 seconds, 1h. Without it until it is removed.")
@click.option("--reason", default="", metavar="TEXT", help="A reason for other operators. Clients never see it.")
@STORAGE
@FORMAT
@JSON
def add(client: str, length: str | None, reason: str, storage: str | None, shape: str) -> None:
    """Block CLIENT before any rule, and show the block. A client that is blocked gets the new time and reason.

    For example: ratebound blocks add 203.0.113.7 --for 1h --reason "scans for .env" --storage redis://localhost
    """
    with _opened(storage) as opened:
        _show([run(adding(opened, client, length, reason))], shape)


@blocks.command(short_help="Remove the block of a client.")
@click.argument("client")
@STORAGE
def remove(client: str, storage: str | None) -> None:
    """Remove the block of CLIENT. Exits with status 1 if no operator blocks it.

    For example: ratebound blocks remove 203.0.113.7 --storage redis://localhost
    """
    with _opened(storage) as opened:
        if not run(removing(opened, client)):
            click.echo(f"no operator blocks {client}\n{OF_PENALTIES}", err=True)
            raise SystemExit(1)
        click.echo(f"{client} is no longer blocked")


@contextmanager
def _opened(storage: str | None) -> Iterator[GuardedStorage]:
    """Open the storage for one command. A mistake exits with status 2, and a storage that fails with status 1."""
    with _mistakes():
        opened = None
        try:
            opened = GuardedStorage(open_storage(_shared(storage, "gate.blocks()")))
            yield opened
        except StorageError as error:
            click.echo(f"the storage could not be reached: {error}", err=True)
            raise SystemExit(1) from None
        except RateboundError:
            raise
        except (TypeError, ValueError) as error:
            raise RateboundError(str(error)) from None
        finally:
            if opened is not None:
                opened.close()


def _show(found: list[Block], shape: str) -> None:
    if shape == "json":
        document = [_document(block) for block in found]
        is_printable = all(block.client.isprintable() and block.reason.isprintable() for block in found)
        click.echo(json.dumps(document, ensure_ascii=not is_printable, indent=2))
    elif not found:
        click.echo("operators block nobody")
        click.echo(OF_PENALTIES, err=True)
    else:
        table = Table(box=SIMPLE, pad_edge=False)
        table.add_column("client", overflow="fold")
        for name in ("since (UTC)", "until (UTC)"):
            table.add_column(name, no_wrap=True)
        table.add_column("reason", overflow="fold")
        for block in found:
            until = "removed" if block.until is None else f"{block.until:%Y-%m-%d %H:%M:%S}"
            table.add_row(_shown(block.client), f"{block.since:%Y-%m-%d %H:%M:%S}", until, _shown(block.reason))
        _console().print(table)


def _shown(text: str) -> Text:
    """Return text for a cell, with escapes if it cannot be printed. It is a Text, because rich would read words in
    brackets as styles."""
    return Text(text if text.isprintable() else ascii(text))


def _document(block: Block) -> dict[str, Any]:
    until = None if block.until is None else block.until.isoformat()
    return {"client": block.client, "since": block.since.isoformat(), "until": until, "reason": block.reason}
