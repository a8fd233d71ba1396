"""The command `ratebound blocks`: list, add and remove the clients that operators block, in the storage of an
application."""

import click

from ratebound.cli.command_group import CommandGroup
from ratebound.cli.operator_name import BY, operator
from ratebound.cli.operator_options import FOR, JSON, REASON, STORAGE, opened, show
from ratebound.cli.policy import FORMAT
from ratebound.flow import run
from ratebound.policy.runtime.operator_blocks import BLOCKS, Block, adding_block, removing_block
from ratebound.policy.runtime.operator_documents import listing_entries

INSTEAD = "gate.blocks()"
OF_PENALTIES = (
    "Blocks by penalties are not in this list: ratebound state usage CLIENT --policy FILE shows them, and ratebound"
    " state reset lifts them."
)


@click.group(cls=CommandGroup, short_help="List, add and remove clients that operators block.")
def blocks() -> None:
    """List, add and remove the clients that operators block by hand, in the storage of a running application.

    CLIENT is written as in the block list of a policy: 203.0.113.7, 203.0.113.0/24, user:42, api-key:acme. All
    processes that use the storage apply a change within a second.

    Blocks that a penalty began are not in this list. To see them, run: ratebound state usage CLIENT --policy FILE. To
    lift them, run: ratebound state reset CLIENT --policy FILE.

    \b
    Examples:
      ratebound blocks list --storage redis://localhost
      ratebound blocks add 203.0.113.7 --for 1h --storage redis://localhost
    """


@blocks.command("list", short_help="List the clients that operators block.")
@STORAGE
@FORMAT
@JSON
def list_blocks(storage: str | None, shape: str) -> None:
    """List the clients that operators block now, the oldest block first.

    \b
    Examples:
      ratebound blocks list --storage redis://localhost
      ratebound blocks list --storage shm://api --json
    """
    with opened(storage, INSTEAD) as (where, _):
        _show(run(listing_entries(where, BLOCKS)), shape)


@blocks.command(short_help="Block a client.")
@click.argument("client")
@FOR
@REASON
@BY
@STORAGE
@FORMAT
@JSON
def add(client: str, length: str | None, reason: str, by: str | None, storage: str | None, shape: str) -> None:
    """Block CLIENT before any rule, and show the block. A client that is blocked gets the new time and reason.

    \b
    Examples:
      ratebound blocks add 203.0.113.7 --for 1h --reason "scans for .env" --storage redis://localhost
      ratebound blocks add user:42 --storage redis://localhost
    """
    with opened(storage, INSTEAD) as (where, _):
        _show([run(adding_block(where, client, length, reason, by=operator(by)))], shape)


@blocks.command(short_help="Remove the block of a client.")
@click.argument("client")
@BY
@STORAGE
def remove(client: str, by: str | None, storage: str | None) -> None:
    """Remove the block of CLIENT. Exits with status 1 if no operator blocks it.

    \b
    Examples:
      ratebound blocks remove 203.0.113.7 --storage redis://localhost
      ratebound blocks remove user:42 --by ann --storage shm://api
    """
    with opened(storage, INSTEAD) as (where, _):
        if not run(removing_block(where, client, by=operator(by))):
            click.echo(f"no operator blocks {client}\n{OF_PENALTIES}", err=True)
            raise SystemExit(1)
        click.echo(f"{client} is no longer blocked")


def _show(found: list[Block], shape: str) -> None:
    if found or shape == "json":
        show(found, ("client", "since", "until", "by", "reason"), shape)
    else:
        click.echo("operators block nobody")
        click.echo(OF_PENALTIES, err=True)
